// SPDX-License-Identifier: Apache-2.0
/* Limits and watermarks at work: what is taken from whom, in which order, and what stays. */
#include "debt.h"
#include "limits_world.h"

/* ---- max lowered while running ------------------------------------------------------------- */

static void lowered_max_takes_cached_pages_first(void **state)
{
	(void)state;
	start(16, 0, 0);
	for (uint32_t i = 0; i < 4; i++)
		cached(e1, c1, i * 200);
	cached(e2, c2, 0);
	limit(1, 0, 0, UINT32_MAX, 2, MM_OOM_NONE);	/* and no high */
	settle();
	assert_int_equal(charge(1), 2);
	assert_int_equal(charge(2), 1);
	assert_int_equal(mm_vmstat(t.mm)->reclaim_limit, 2);
	assert_null(pressure(m1));
	/* The coldest went. */
	assert_int_equal(found(e1, c1, 0), 0);
	assert_int_equal(found(e1, c1, 200), 0);
	assert_int_equal(found(e1, c1, 400), PAGES);
	assert_int_equal(found(e1, c1, 600), PAGES);
	mmt_fini(&t);
}

static void lowered_max_asks_the_engine_for_what_it_holds(void **state)
{
	const struct mm_event *ev;
	uint64_t ids[32];

	(void)state;
	start(16, 0, 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 32, ids), 0);
	cached(e1, c1, 0);
	limit(1, 0, 0, 2, 2, MM_OOM_NONE);
	settle();
	assert_int_equal(charge(1), 4);
	ev = pressure(m1);
	assert_non_null(ev);
	assert_int_equal(ev->bytes, 2 * X);
	assert_int_equal(ev->deadline_ns, t.now + ANSWER);
	assert_null(pressure(m2));
	assert_int_equal(mmt_free(&t, e1, ids, 16), 0);
	settle();
	assert_int_equal(charge(1), 2);
	pass(10 * ANSWER);
	assert_null(pressure(m1));
	assert_int_equal(event(1, MM_MEMCG_OOM), 0);
	mmt_fini(&t);
}

static void lowered_max_packs_half_empty_extents(void **state)
{
	uint64_t ids[32], moved;
	uint32_t ext = 0;

	(void)state;
	start(16, 0, 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 32, ids), 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(mmt_free(&t, e1, ids + i * PAGES + 4, 4), 0);
	limit(1, 0, 0, 2, 2, MM_OOM_NONE);
	settle();
	assert_int_equal(mm_vmstat(t.mm)->vacates, 2);
	for (uint32_t left = 2; left; left--) {
		mmt_simple(&t, MM_EVENTS, 0, m1);
		for (uint32_t i = 0; i < t.rp.nr_events; i++)
			ext = t.events[i].kind == MM_EVENT_VACATE ? t.events[i].extent : ext;
		for (uint32_t i = 0; i < 32; i++) {
			if (i % PAGES >= 4 || mm_page_extent(ids[i]) != ext)
				continue;
			assert_int_equal(mmt_alloc(&t, e1, c1, 0, 1, &moved), 0);
			assert_int_equal(mmt_free(&t, e1, &ids[i], 1), 0);
			ids[i] = moved;
		}
	}
	settle();
	assert_int_equal(charge(1), 2);
	assert_int_equal(mm_vmstat(t.mm)->vacate_fail, 0);
	mmt_fini(&t);
}

static void parked_sequences_go_last(void **state)
{
	uint32_t lease, park;

	(void)state;
	start(16, 0, 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, PAGES, NULL), 0);
	lease = mmt_chain(&t, e1, c1, 0, PAGES);
	assert_int_equal(mmt_park(&t, MM_PARK, e1, lease, 0, 0), 0);
	park = t.rp.park;
	cached(e1, c1, 200);	/* hotter than what is parked */
	limit(1, 0, 0, 1, 1, MM_OOM_NONE);
	settle();
	assert_int_equal(found(e1, c1, 200), 0);
	assert_int_equal(found(e1, c1, 0), PAGES);
	assert_non_null(pressure(m1));
	pass(ANSWER - 1);
	assert_int_equal(charge(1), 2);
	pass(1);
	assert_int_equal(charge(1), 1);
	assert_int_equal(event(1, MM_MEMCG_OOM), 0);
	assert_int_equal(mmt_park(&t, MM_RESUME, e1, 0, park, 0), 0);
	assert_int_equal(t.rp.nr_pages, 0);
	mmt_fini(&t);
}

static void above_high_parked_sequences_stay(void **state)
{
	uint32_t lease;

	(void)state;
	start(16, 0, 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, PAGES, NULL), 0);
	lease = mmt_chain(&t, e1, c1, 0, PAGES);
	assert_int_equal(mmt_park(&t, MM_PARK, e1, lease, 0, 0), 0);
	cached(e1, c1, 200);
	limit(1, 0, 0, 1, 8, MM_OOM_KILL);
	settle();
	assert_int_equal(charge(1), 2);
	assert_non_null(pressure(m1));
	for (uint32_t i = 0; i < 8; i++)
		pass(200 * ANSWER);
	assert_int_equal(charge(1), 2);
	assert_int_equal(mm_vmstat(t.mm)->oom_kills, 0);
	mmt_fini(&t);
}

static void unparked_pages_are_like_others(void **state)
{
	uint32_t a, b;

	(void)state;
	start(16, 0, 0);
	a = mmt_chain(&t, e1, c1, 0, PAGES);
	assert_int_equal(mmt_lease(&t, MM_LEASE_DUP, e1, 0, a, 4), 0);
	b = t.rp.lease;
	assert_int_equal(mmt_park(&t, MM_PARK, e1, a, 0, 0), 0);
	a = t.rp.park;
	assert_int_equal(mmt_park(&t, MM_PARK, e1, b, 0, 0), 0);
	b = t.rp.park;
	cached(e1, c1, 200);
	assert_int_equal(mmt_park(&t, MM_UNPARK, e1, 0, a, 0), 0);
	assert_int_equal(mmt_park(&t, MM_UNPARK, e1, 0, b, 0), 0);
	limit(1, 0, 0, 1, 1, MM_OOM_NONE);
	settle();
	assert_int_equal(found(e1, c1, 0), 0);
	assert_int_equal(found(e1, c1, 200), PAGES);
	mmt_fini(&t);
}

static void what_stays_is_charged_and_counted(void **state)
{
	uint64_t ids[32];

	(void)state;
	start(16, 0, 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 32, ids), 0);
	limit(1, 0, 0, 2, 2, MM_OOM_NONE);
	settle();
	for (uint32_t i = 0; i < 20; i++)
		pass(100 * ANSWER);
	assert_int_equal(charge(1), 4);
	assert_int_equal(event(1, MM_MEMCG_OOM), 1);	/* once, however long it lasts */
	assert_int_equal(mm_vmstat(t.mm)->oom_kills, 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 1, NULL), -EDQUOT);
	/* Raised again, all is well, and it grows. */
	limit(1, 0, 0, 8, 8, MM_OOM_NONE);
	settle();
	assert_true(mm_next_deadline(t.mm) == UINT64_MAX);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 32, NULL), 0);
	assert_int_equal(charge(1), 8);
	mmt_fini(&t);
}

static void raised_max_wakes_who_waits(void **state)
{
	(void)state;
	start(16, 0, 0);
	limit(1, 0, 0, 1, 1, MM_OOM_NONE);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, PAGES, NULL), 0);
	assert_int_equal(mmt_attach(&t, 1, &e2, &m2), 0);
	{
		struct mm_cache_desc d = mmt_desc(1);

		assert_int_equal(mmt_open(&t, e2, &d, &c2), 0);
	}
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, PAGES, t.now + 1000 * ANSWER), MMT_LATER);
	limit(1, 0, 0, 2, 2, MM_OOM_NONE);
	assert_int_equal(t.nr_late, 1);
	assert_int_equal(t.late.result, 0);
	assert_int_equal(charge(1), 2);
	mmt_fini(&t);
}

/* ---- killing ------------------------------------------------------------------------------- */

static void worst_debtor_is_killed_one_at_a_time(void **state)
{
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t e3, m3, c3;

	(void)state;
	start(16, 0, 0);
	assert_int_equal(mmt_attach(&t, 1, &e3, &m3), 0);
	assert_int_equal(mmt_open(&t, e3, &d, &c3), 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 3 * PAGES, NULL), 0);
	assert_int_equal(mmt_alloc(&t, e3, c3, 0, 4 * PAGES, NULL), 0);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 6 * PAGES, NULL), 0);
	limit(1, 0, 0, 2, 2, MM_OOM_KILL);
	settle();
	pass(ANSWER - 1);
	assert_int_equal(t.nr_kill, 0);
	pass(1);
	assert_int_equal(t.nr_kill, 1);
	assert_int_equal(t.killed, e3);
	/* While it is dying nobody else is. */
	pass(ANSWER);
	pass(ANSWER);
	assert_int_equal(t.nr_kill, 1);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m3), 0);
	settle();
	assert_int_equal(charge(1), 3);
	/* Still above, the next one has another chance to answer. */
	for (uint32_t i = 0; i < 200 && t.nr_kill == 1; i++)
		pass(ANSWER);
	assert_int_equal(t.nr_kill, 2);
	assert_int_equal(t.killed, e1);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m1), 0);
	settle();
	assert_int_equal(charge(1), 0);
	assert_int_equal(mm_vmstat(t.mm)->oom_kills, 2);
	assert_int_equal(charge(2), 6);
	mmt_fini(&t);
}

static void who_dies_before_anybody_is_told_is_not_killed(void **state)
{
	struct mm_effect fx;

	(void)state;
	start(16, 0, 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 3 * PAGES, NULL), 0);
	limit(1, 0, 0, 2, 2, MM_OOM_KILL);
	settle();
	t.now += ANSWER;
	mm_tick(t.mm, t.now, 100);
	mm_check(t.mm);
	assert_int_equal(mm_vmstat(t.mm)->oom_kills, 1);
	assert_int_equal(t.mm->nr_kills, 1);
	assert_int_equal(mm_submit(t.mm, &(struct mm_request){ .op = MM_MEMBER_GONE, .member = m1 },
				   t.now), 0);
	mm_check(t.mm);
	while (mm_next_effect(t.mm, &fx))
		assert_true(fx.kind != MM_EFFECT_KILL);
	mmt_fini(&t);
}

static void who_does_not_die_delays_the_next_for_a_time_only(void **state)
{
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t e3, m3, c3;

	(void)state;
	start(16, 0, 0);
	assert_int_equal(mmt_attach(&t, 1, &e3, &m3), 0);
	assert_int_equal(mmt_open(&t, e3, &d, &c3), 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 3 * PAGES, NULL), 0);
	assert_int_equal(mmt_alloc(&t, e3, c3, 0, 4 * PAGES, NULL), 0);
	limit(1, 0, 0, 2, 2, MM_OOM_KILL);
	settle();
	pass(ANSWER);
	assert_int_equal(t.killed, e3);
	pass(DEBT_DYING_NS - 1);
	assert_int_equal(t.nr_kill, 1);
	for (uint32_t i = 0; i < 200 && t.nr_kill == 1; i++)
		pass(ANSWER);
	assert_int_equal(t.nr_kill, 2);
	assert_int_equal(t.killed, e1);
	/* Neither is gone; there is nobody else. */
	pass(2 * DEBT_DYING_NS);
	for (uint32_t i = 0; i < 200; i++)
		pass(ANSWER);
	assert_int_equal(t.nr_kill, 2);
	assert_int_equal(charge(1), 7);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m3), 0);
	settle();
	assert_int_equal(charge(1), 3);
	mmt_fini(&t);
}

static void who_answers_in_time_is_not_killed(void **state)
{
	uint64_t ids[32];

	(void)state;
	start(16, 0, 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 32, ids), 0);
	limit(1, 0, 0, 2, 2, MM_OOM_KILL);
	settle();
	pass(ANSWER / 2);
	assert_int_equal(mmt_free(&t, e1, ids, 16), 0);
	settle();
	pass(ANSWER);
	assert_int_equal(t.nr_kill, 0);
	/* A second time the engine has its time again. */
	limit(1, 0, 0, 1, 1, MM_OOM_KILL);
	settle();
	pass(ANSWER - 1);
	assert_int_equal(t.nr_kill, 0);
	pass(1);
	assert_int_equal(t.nr_kill, 1);
	mmt_fini(&t);
}

/* An engine of tenant 1 that has the cache of the first one open. */
static uint32_t another(uint32_t *m)
{
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t e, c;

	assert_int_equal(mmt_attach(&t, 1, &e, m), 0);
	assert_int_equal(mmt_open(&t, e, &d, &c), 0);
	assert_int_equal(c, c1);
	return e;
}

static uint32_t leased_by(uint32_t e, uint32_t from)
{
	assert_int_equal(mmt_lookup(&t, e, c1, 0, mmt_tokens(from), PAGES * MMT_PT), 0);
	assert_int_equal(t.rp.nr_pages, PAGES);
	return t.rp.lease;
}

/* What B leases is in the extents of others, who hold nothing and must not pay for it. */
static void who_leases_is_killed_not_who_wrote(void **state)
{
	uint32_t who[4] = { 0 }, m[4], b, mb;

	(void)state;
	start(16, 0, 0);
	who[0] = e1;
	for (uint32_t i = 1; i < 4; i++)
		who[i] = another(&m[i]);
	b = another(&mb);
	for (uint32_t i = 0; i < 4; i++) {
		cached(who[i], c1, i * 200);
		leased_by(b, i * 200);
	}
	assert_int_equal(charge(1), 4);
	limit(1, 0, 0, 1, 1, MM_OOM_KILL);
	settle();
	pass(ANSWER);
	assert_int_equal(t.nr_kill, 1);
	assert_int_equal(t.killed, b);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, mb), 0);
	for (uint32_t i = 0; i < 200; i++)
		pass(ANSWER);
	assert_true(charge(1) <= 1);
	assert_int_equal(t.nr_kill, 1);
	mmt_fini(&t);
}

/* Many leases of one page are one page; held pages count beside leased ones. */
static void shared_beginnings_count_once(void **state)
{
	uint32_t b, mb;

	(void)state;
	start(16, 0, 0);
	b = another(&mb);
	cached(e1, c1, 0);
	for (uint32_t i = 0; i < 20; i++)
		leased_by(b, 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, PAGES + 1, NULL), 0);
	limit(1, 0, 0, 1, 1, MM_OOM_KILL);
	settle();
	pass(ANSWER);
	assert_int_equal(t.nr_kill, 1);
	assert_int_equal(t.killed, e1);
	mmt_fini(&t);
}

/* Nobody holds or leases a thing there: a kill would give nothing back. */
static void nobody_without_a_part_is_killed(void **state)
{
	(void)state;
	start(16, 0, 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 2 * PAGES, NULL), 0);
	another(&m2);
	limit(1, 0, 0, 1, 1, MM_OOM_KILL);
	settle();
	pass(ANSWER);
	assert_int_equal(t.killed, e1);
	assert_int_equal(mmt_simple(&t, MM_FENCE, e1, 0), 0);
	for (uint32_t i = 0; i < 200; i++)
		pass(ANSWER);
	assert_int_equal(t.nr_kill, 1);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m1), 0);
	for (uint32_t i = 0; i < 200; i++)
		pass(ANSWER);
	assert_int_equal(t.nr_kill, 1);
	assert_int_equal(charge(1), 0);
	mmt_fini(&t);
}

/* What is being emptied may yet stay: until it is back the debt goes on. */
static void one_lowering_is_one_event(void **state)
{
	uint32_t b, mb, m3, e3;

	(void)state;
	start(16, 0, 0);
	b = another(&mb);
	e3 = another(&m3);
	for (uint32_t i = 0; i < 4; i++) {
		cached(i & 1 ? e3 : e1, c1, i * 200);
		leased_by(b, i * 200);
	}
	limit(1, 0, 0, 1, 1, MM_OOM_NONE);
	settle();
	for (uint32_t i = 0; i < 20; i++)
		pass(ANSWER);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m3), 0);
	for (uint32_t i = 0; i < 200; i++)
		pass(ANSWER);
	assert_int_equal(charge(1), 4);
	assert_int_equal(event(1, MM_MEMCG_OOM), 1);
	mmt_fini(&t);
}

/* Within a max that rose it is out of debt; the next lowering is another one. */
static void second_lowering_is_another_event(void **state)
{
	uint64_t ids[4 * PAGES];

	(void)state;
	start(16, 0, 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 4 * PAGES, ids), 0);
	for (uint32_t i = 1; i <= 2; i++) {
		limit(1, 0, 0, 2, 2, MM_OOM_NONE);
		settle();
		pass(ANSWER);
		assert_int_equal(event(1, MM_MEMCG_OOM), i);
		limit(1, 0, 0, 4, 4, MM_OOM_NONE);	/* and down again with no step between */
	}
	/* The same by giving back, however rarely it is looked at by then. */
	limit(1, 0, 0, 2, 2, MM_OOM_NONE);
	for (uint32_t i = 0; i < 100; i++)
		pass(10 * ANSWER);
	assert_int_equal(event(1, MM_MEMCG_OOM), 3);
	assert_int_equal(mmt_free(&t, e1, ids, 2 * PAGES), 0);
	settle();
	limit(1, 0, 0, 1, 1, MM_OOM_NONE);
	settle();
	pass(ANSWER);
	assert_int_equal(event(1, MM_MEMCG_OOM), 4);
	mmt_fini(&t);
}

/* ---- extents nobody unmaps ----------------------------------------------------------------- */

/* Four cached extents, of which a member maps the first three. */
static void mapped_by(uint32_t member)
{
	for (uint32_t i = 0; i < 4; i++)
		cached(e1, c1, i * 200);
	for (uint32_t ext = 1; ext <= 3; ext++)
		assert_int_equal(mmt_map(&t, MM_IMPORT, member, ext, 0), 0);
}

static void extent_mapped_past_its_time_is_debt(void **state)
{
	(void)state;
	start(16, 0, 0);
	mapped_by(m1);
	limit(1, 0, 0, UINT32_MAX, 1, MM_OOM_NONE);
	settle();
	assert_int_equal(charge(1), 1);
	assert_int_equal(mmt_device_extents(&t, mmt_device), 4);
	pass(ANSWER - 1);
	assert_int_equal(event(1, MM_MEMCG_OOM), 0);
	pass(1);
	assert_int_equal(event(1, MM_MEMCG_OOM), 1);
	for (uint32_t i = 0; i < 50; i++)
		pass(ANSWER);
	for (uint32_t ext = 1; ext <= 2; ext++)
		assert_int_equal(mmt_map(&t, MM_UNIMPORT, m1, ext, 0), 0);
	pass(ANSWER);
	assert_true(tenant_at(t.mm, 1)->in_debt);
	assert_int_equal(event(1, MM_MEMCG_OOM), 1);
	assert_int_equal(mmt_map(&t, MM_UNIMPORT, m1, 3, 0), 0);
	assert_false(tenant_at(t.mm, 1)->in_debt);
	assert_int_equal(mm_vmstat(t.mm)->oom_kills, 0);
	mmt_fini(&t);
}

static void who_does_not_unmap_is_killed(void **state)
{
	uint32_t b, mb, d, md;

	(void)state;
	start(16, 0, 0);
	b = another(&mb);
	d = another(&md);
	mapped_by(mb);
	assert_int_equal(mmt_map(&t, MM_IMPORT, md, 1, 0), 0);
	leased_by(e1, 600);		/* has most, and maps nothing */
	limit(1, 0, 0, UINT32_MAX, 1, MM_OOM_KILL);
	settle();
	pass(ANSWER - 1);
	assert_int_equal(t.nr_kill, 0);
	pass(1);
	assert_int_equal(t.nr_kill, 1);
	assert_int_equal(t.killed, b);
	for (uint32_t i = 0; i < 5; i++)
		pass(ANSWER);
	assert_int_equal(t.nr_kill, 1);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, mb), 0);
	pass(ANSWER);
	assert_int_equal(t.nr_kill, 2);		/* it maps one of them as well */
	assert_int_equal(t.killed, d);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, md), 0);
	for (uint32_t i = 0; i < 50; i++)
		pass(ANSWER);
	assert_int_equal(t.nr_kill, 2);
	assert_int_equal(mmt_device_extents(&t, mmt_device), 1);
	assert_int_equal(event(1, MM_MEMCG_OOM), 1);
	mmt_fini(&t);
}

static void nobody_pays_for_a_slow_device_or_below_max(void **state)
{
	(void)state;
	start(16, 0, 0);
	mapped_by(m1);
	limit(1, 0, 0, 1, 5, MM_OOM_KILL);	/* above high only */
	for (uint32_t i = 0; i < 20; i++)
		pass(ANSWER);
	assert_int_equal(charge(1), 1);
	assert_int_equal(event(1, MM_MEMCG_OOM), 0);
	for (uint32_t ext = 1; ext <= 3; ext++) {
		t.hold = ext == 3;
		assert_int_equal(mmt_map(&t, MM_UNIMPORT, m1, ext, 0), 0);
	}
	limit(1, 0, 0, 1, 1, MM_OOM_KILL);
	for (uint32_t i = 0; i < 20; i++)
		mmt_tick(&t, t.now + ANSWER);
	assert_int_equal(mmt_device_extents(&t, mmt_device), 2);
	assert_int_equal(event(1, MM_MEMCG_OOM), 0);
	assert_int_equal(t.nr_kill, 0);
	mmt_fini(&t);
}

/* ---- watermarks ---------------------------------------------------------------------------- */

static void below_low_extents_are_given_back_up_to_high(void **state)
{
	(void)state;
	start(8, 2, 4);
	for (uint32_t i = 0; i < 6; i++)
		cached(e1, c1, i * 200);
	settle();
	assert_int_equal(charge(1), 6);		/* 2 free: not below low */
	cached(e2, c2, 0);
	settle();
	assert_int_equal(charge(1), 3);
	assert_int_equal(charge(2), 1);
	assert_int_equal(mm_vmstat(t.mm)->reclaim_background, 3);
	assert_int_equal(found(e1, c1, 400), 0);
	assert_int_equal(found(e1, c1, 600), PAGES);
	assert_true(mm_next_deadline(t.mm) == UINT64_MAX);
	mmt_fini(&t);
}

static void content_used_while_it_is_taken_stays(void **state)
{
	uint32_t budget = 1;

	(void)state;
	start(4, 1, 1);
	for (uint32_t i = 0; i < 3; i++)
		cached(e1, c1, i * 200);
	cached(e2, c2, 0);
	t.now++;
	mm_tick(t.mm, t.now, budget);		/* picks the first, but takes none of it yet */
	mm_check(t.mm);
	assert_int_equal(mm_vmstat(t.mm)->reclaim_background, 1);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 0);
	assert_int_equal(mmt_lookup(&t, e1, c1, 0, mmt_tokens(0), PAGES * MMT_PT), 0);
	assert_int_equal(t.rp.nr_pages, PAGES);
	settle();
	assert_int_equal(found(e1, c1, 0), PAGES);
	assert_int_equal(found(e1, c1, 200), 0);
	mmt_fini(&t);
}

static void background_steps_keep_to_the_budget(void **state)
{
	(void)state;
	start(8, 3, 4);
	for (uint32_t i = 0; i < 5; i++)
		cached(e1, c1, i * 200);
	cached(e2, c2, 0);
	for (uint32_t i = 0; i < 200 && mm_next_deadline(t.mm) <= t.now; i++) {
		uint64_t before = mm_vmstat(t.mm)->pages_evict;

		mm_tick(t.mm, t.now, 4);
		mm_check(t.mm);
		assert_true(mm_vmstat(t.mm)->pages_evict - before <= 4);
		mmt_run(&t);
	}
	assert_int_equal(charge(1), 3);
	mmt_fini(&t);
}

/* Where single pages do, chosen by the policy, no extent has to be evicted for it. */
static void who_has_cached_pages_leaves_the_low_watermark_alone(void **state)
{
	(void)state;
	start(8, 2, 4);
	for (uint32_t i = 0; i < 6; i++)
		cached(e1, c1, i * 200);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 3, NULL), 0);
	settle();
	assert_int_equal(charge(1), 6);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 3);
	assert_int_equal(mm_vmstat(t.mm)->reclaim_background, 0);
	/* More than it can give: the rest comes out of what is free, and that is filled again. */
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 6 * PAGES - 3, NULL), 0);
	assert_int_equal(charge(1), 7 - 1);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 2 * PAGES, NULL), 0);
	assert_int_equal(charge(1), 8);
	mmt_fini(&t);
}

/* Three extents of each; what is free is what low keeps. */
static void start_down_to_low(void)
{
	start(8, 2, 2);
	for (uint32_t i = 0; i < 3; i++)
		cached(e1, c1, i * 200);
	for (uint32_t i = 0; i < 3; i++)
		cached(e2, c2, i * 200);
}

/* A busy engine does not leave to another for ever what is colder than its own. */
static void who_is_idle_gives_up_what_is_colder(void **state)
{
	(void)state;
	start_down_to_low();
	settle();
	assert_int_equal(charge(1), 3);
	for (uint32_t i = 3; i < 15; i++) {
		cached(e2, c2, i * 200);
		settle();
	}
	assert_int_equal(charge(1), 0);
	assert_int_equal(charge(2), 6);
	mmt_fini(&t);
}

static void who_uses_its_pages_keeps_them(void **state)
{
	(void)state;
	start_down_to_low();
	for (uint32_t i = 3; i < 15; i++) {
		for (uint32_t k = 0; k < 3; k++)
			assert_int_equal(found(e1, c1, k * 200), PAGES);
		cached(e2, c2, i * 200);
		settle();
	}
	assert_int_equal(charge(1), 3);
	assert_int_equal(charge(2), 3);
	assert_int_equal(mm_vmstat(t.mm)->reclaim_background, 0);
	mmt_fini(&t);
}

/* No watermarks, or none below which somebody is: a full pool is enough. */
static void who_is_idle_gives_up_a_full_pool(void **state)
{
	(void)state;
	start(8, 0, 0);
	for (uint32_t i = 0; i < 8; i++)
		cached(e1, c1, i * 200);
	busy(e2, c2, 32);
	assert_true(charge(2) >= 7);
	mmt_fini(&t);
}

/* What it has just cached is not taken to have something free, time after time. */
static void the_last_extent_of_an_engine_is_not_reclaimed_in_the_background(void **state)
{
	(void)state;
	start(4, 1, 2);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 3 * PAGES, NULL), 0);
	cached(e2, c2, 0);
	settle();
	assert_int_equal(charge(2), 1);
	assert_int_equal(found(e2, c2, 0), PAGES);
	assert_int_equal(mm_vmstat(t.mm)->reclaim_background, 0);
	mmt_fini(&t);
}

static void what_is_owed_to_a_tenant_is_new_memory_below_low_too(void **state)
{
	struct mm_cache_desc d = mmt_desc(1);

	(void)state;
	start(8, 3, 3);
	for (uint32_t i = 0; i < 5; i++)
		cached(i ? e2 : e1, i ? c2 : c1, i * 200);
	cached(e1, c1, 1200);		/* its first one is used again */
	assert_int_equal(found(e1, c1, 0), 0);
	assert_int_equal(charge(1), 1);
	limit(1, 0, 2, UINT32_MAX, UINT32_MAX, MM_OOM_NONE);
	cached(e1, c1, 1400);
	assert_int_equal(charge(1), 2);
	assert_int_equal(found(e1, c1, 1200), PAGES);
	settle();
	assert_int_equal(charge(2), 3);
	assert_int_equal(mmt_open_min(&t, e1, &d, 3 * PAGES, &c1), 0);
	cached(e1, c1, 1600);
	assert_int_equal(charge(1), 3);
	mmt_fini(&t);
}

static void half_empty_extents_are_packed_when_nothing_cheaper_is_left(void **state)
{
	uint32_t leases[4];
	uint64_t ids[4 * PAGES];

	(void)state;
	start(4, 1, 1);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 4 * PAGES, ids), 0);
	for (uint32_t i = 0; i < 4; i++) {
		uint64_t *x = ids + i * PAGES;

		assert_int_equal(mmt_commit(&t, e1, c1, 0, mmt_tokens(i * 200), 2 * MMT_PT, x), 0);
		leases[i] = t.rp.lease;
		assert_int_equal(mmt_free(&t, e1, x + 3, PAGES - 3), 0);	/* one held */
	}
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(mmt_unlease(&t, e1, leases[i]), 0);
	settle();
	assert_true(mm_vmstat(t.mm)->vacates >= 1);
	assert_true(mm_vmstat(t.mm)->pages_move >= 2);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 0);
	mmt_fini(&t);
}

/* ---- protection ---------------------------------------------------------------------------- */

static void tenant_below_low_is_spared_while_another_has_something(void **state)
{
	(void)state;
	start(8, 2, 3);
	limit(1, 0, 3, UINT32_MAX, UINT32_MAX, MM_OOM_NONE);
	for (uint32_t i = 0; i < 3; i++)
		cached(e1, c1, i * 200);	/* the coldest, but protected */
	limit(2, 0, 4, UINT32_MAX, UINT32_MAX, MM_OOM_NONE);
	for (uint32_t i = 0; i < 4; i++)
		cached(e2, c2, i * 200);
	limit(2, 0, 0, UINT32_MAX, UINT32_MAX, MM_OOM_NONE);
	settle();
	assert_int_equal(charge(1), 3);
	assert_int_equal(charge(2), 2);
	assert_int_equal(event(1, MM_MEMCG_LOW), 0);
	/* Alone it is not spared, and that counts. */
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 4 * PAGES, NULL), 0);
	settle();
	assert_int_equal(charge(1), 1);
	assert_int_equal(event(1, MM_MEMCG_LOW), 2);
	mmt_fini(&t);
}

static void nothing_is_taken_below_min(void **state)
{
	(void)state;
	start(8, 0, 0);
	limit(1, 2, 2, UINT32_MAX, UINT32_MAX, MM_OOM_NONE);
	for (uint32_t i = 0; i < 3; i++)
		cached(e1, c1, i * 200);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 5 * PAGES, NULL), 0);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, PAGES, t.now + ANSWER), 0);
	assert_int_equal(charge(1), 2);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, PAGES, t.now + ANSWER), MMT_LATER);
	pass(ANSWER);
	assert_int_equal(t.late.result, -ENOMEM);
	assert_int_equal(charge(1), 2);
	/* Its own are its own to take. */
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 2 * PAGES, t.now + ANSWER), 0);
	mmt_fini(&t);
}

static void direct_reclaim_prefers_who_is_above_low(void **state)
{
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t e3, m3, c3;

	(void)state;
	start(4, 0, 0);
	limit(1, 0, 2, UINT32_MAX, UINT32_MAX, MM_OOM_NONE);
	cached(e1, c1, 0);
	cached(e1, c1, 200);
	cached(e2, c2, 0);
	cached(e2, c2, 200);
	assert_int_equal(mmt_attach(&t, 3, &e3, &m3), 0);
	assert_int_equal(mmt_open(&t, e3, &d, &c3), 0);
	assert_int_equal(mmt_alloc_until(&t, e3, c3, 0, 2 * PAGES, t.now + ANSWER), 0);
	assert_int_equal(charge(1), 2);
	assert_int_equal(charge(2), 0);
	assert_int_equal(mmt_alloc_until(&t, e3, c3, 0, PAGES, t.now + ANSWER), 0);
	assert_int_equal(charge(1), 1);
	assert_int_equal(event(1, MM_MEMCG_LOW), 1);
	mmt_fini(&t);
}

/* At its max a tenant takes from itself, and asks its own engines only. */
static void max_is_met_with_what_the_tenant_has(void **state)
{
	struct mm_cache_desc d = mmt_desc(2);
	uint32_t other;

	(void)state;
	start(16, 0, 0);
	cached(e1, c1, 0);
	cached(e2, c2, 0);
	limit(1, 0, 0, UINT32_MAX, 1, MM_OOM_NONE);
	assert_int_equal(mmt_open(&t, e1, &d, &other), 0);
	assert_int_equal(mmt_alloc(&t, e1, other, 0, 1, NULL), -EDQUOT);
	assert_int_equal(mmt_alloc(&t, e1, other, 0, 1, NULL), 0);
	assert_int_equal(charge(2), 1);
	t.nr_notify = 0;
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 1, t.now + ANSWER), -EDQUOT);
	assert_null(pressure(m2));
	mmt_fini(&t);
}

/* ---- found by the simulator ---------------------------------------------------------------- */

/* Looking for what the first does not have must not use up the second's turn. */
static void tenant_with_nothing_to_take_does_not_starve_another(void **state)
{
	(void)state;
	start(16, 0, 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 2 * PAGES, NULL), 0);
	for (uint32_t i = 0; i < 4; i++)
		cached(e2, c2, i * 200);
	limit(1, 0, 0, 1, 1, MM_OOM_NONE);
	limit(2, 0, 0, 1, 1, MM_OOM_NONE);
	for (uint32_t i = 0; i < 200 && mm_next_deadline(t.mm) <= t.now; i++) {
		mm_tick(t.mm, t.now, 1);
		mm_check(t.mm);
		mmt_run(&t);
	}
	assert_true(mm_next_deadline(t.mm) > t.now);
	assert_int_equal(charge(2), 1);
	mmt_fini(&t);
}

static void slab_keeps_what_it_was_promised(void **state)
{
	uint64_t ids[3 * PAGES];

	(void)state;
	start(16, 0, 0);
	{
		struct mm_cache_desc d = mmt_desc(1);
		struct mm_request rq = { .op = MM_CACHE_OPEN, .engine = e1,
					 .open = { &d, 2 * PAGES } };

		assert_int_equal(mmt_submit(&t, &rq), 0);
	}
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 3 * PAGES, ids), 0);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(mmt_free(&t, e1, ids + i * PAGES + 1, PAGES - 1), 0);
	limit(1, 0, 0, 1, 1, MM_OOM_NONE);
	settle();
	assert_int_equal(mm_vmstat(t.mm)->vacates, 1);	/* of three two are its own */
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 2 * PAGES - 2, NULL), 0);
	mmt_fini(&t);
}

/* Above high, not max: what its engine waits for is not taken from it again and again. */
static void waiting_engine_above_high_keeps_its_extents(void **state)
{
	uint32_t e3, m3, c3;
	struct mm_cache_desc d = mmt_desc(1);

	(void)state;
	start(4, 0, 0);
	assert_int_equal(mmt_attach(&t, 1, &e3, &m3), 0);
	assert_int_equal(mmt_open(&t, e3, &d, &c3), 0);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 2 * PAGES, NULL), 0);
	cached(e1, c1, 0);
	cached(e1, c1, 200);
	limit(1, 0, 0, 1, UINT32_MAX, MM_OOM_NONE);
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 3 * PAGES, t.now + ANSWER / 2), MMT_LATER);
	settle();
	pass(ANSWER);
	assert_int_equal(t.late.result, -ENOMEM);
	settle();
	assert_int_equal(charge(1), 1);
	mmt_fini(&t);
}

/* Evicting a node empties extents of other groups, which are being emptied as well. */
static void extents_of_all_groups_are_emptied_together(void **state)
{
	struct mm_cache_desc d = mmt_desc(3);
	uint64_t ids[2 * PAGES];
	uint32_t c;

	(void)state;
	d.nr_groups = 2;
	d.group[1] = (struct mm_group_desc){ MM_GROUP_WINDOW, 2 * MMT_PT, 0 };
	d.shard[0].page_bytes[1] = MMT_PAGE;
	for (uint32_t budget = 1; budget < 3 * PAGES; budget++) {
		start(16, 0, 0);
		assert_int_equal(mmt_open(&t, e1, &d, &c), 0);
		for (uint32_t i = 0; i < 3; i++) {
			assert_int_equal(mmt_alloc(&t, e1, c, 0, PAGES, ids), 0);
			assert_int_equal(mmt_alloc(&t, e1, c, 1, PAGES, ids + PAGES), 0);
			assert_int_equal(mmt_commit_keys(&t, e1, c, 0, 0, mmt_tokens(i * 200),
							 PAGES * MMT_PT, ids, PAGES, NULL, 0), 0);
			assert_int_equal(mmt_unlease(&t, e1, t.rp.lease), 0);
		}
		assert_int_equal(charge(1), 6);
		limit(1, 0, 0, UINT32_MAX, 1, MM_OOM_NONE);
		for (uint32_t i = 0; i < 500 && mm_next_deadline(t.mm) <= t.now; i++) {
			mm_tick(t.mm, t.now, budget);
			mm_check(t.mm);
			mmt_run(&t);
		}
		assert_true(mm_next_deadline(t.mm) > t.now);
		assert_true(charge(1) <= 1);
		mmt_fini(&t);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lowered_max_takes_cached_pages_first),
		cmocka_unit_test(lowered_max_asks_the_engine_for_what_it_holds),
		cmocka_unit_test(lowered_max_packs_half_empty_extents),
		cmocka_unit_test(parked_sequences_go_last),
		cmocka_unit_test(above_high_parked_sequences_stay),
		cmocka_unit_test(unparked_pages_are_like_others),
		cmocka_unit_test(what_stays_is_charged_and_counted),
		cmocka_unit_test(raised_max_wakes_who_waits),
		cmocka_unit_test(worst_debtor_is_killed_one_at_a_time),
		cmocka_unit_test(who_dies_before_anybody_is_told_is_not_killed),
		cmocka_unit_test(who_does_not_die_delays_the_next_for_a_time_only),
		cmocka_unit_test(who_answers_in_time_is_not_killed),
		cmocka_unit_test(who_leases_is_killed_not_who_wrote),
		cmocka_unit_test(shared_beginnings_count_once),
		cmocka_unit_test(nobody_without_a_part_is_killed),
		cmocka_unit_test(one_lowering_is_one_event),
		cmocka_unit_test(second_lowering_is_another_event),
		cmocka_unit_test(extent_mapped_past_its_time_is_debt),
		cmocka_unit_test(who_does_not_unmap_is_killed),
		cmocka_unit_test(nobody_pays_for_a_slow_device_or_below_max),
		cmocka_unit_test(below_low_extents_are_given_back_up_to_high),
		cmocka_unit_test(content_used_while_it_is_taken_stays),
		cmocka_unit_test(background_steps_keep_to_the_budget),
		cmocka_unit_test(who_has_cached_pages_leaves_the_low_watermark_alone),
		cmocka_unit_test(who_is_idle_gives_up_what_is_colder),
		cmocka_unit_test(who_uses_its_pages_keeps_them),
		cmocka_unit_test(who_is_idle_gives_up_a_full_pool),
		cmocka_unit_test(the_last_extent_of_an_engine_is_not_reclaimed_in_the_background),
		cmocka_unit_test(what_is_owed_to_a_tenant_is_new_memory_below_low_too),
		cmocka_unit_test(half_empty_extents_are_packed_when_nothing_cheaper_is_left),
		cmocka_unit_test(tenant_below_low_is_spared_while_another_has_something),
		cmocka_unit_test(nothing_is_taken_below_min),
		cmocka_unit_test(direct_reclaim_prefers_who_is_above_low),
		cmocka_unit_test(max_is_met_with_what_the_tenant_has),
		cmocka_unit_test(tenant_with_nothing_to_take_does_not_starve_another),
		cmocka_unit_test(slab_keeps_what_it_was_promised),
		cmocka_unit_test(waiting_engine_above_high_keeps_its_extents),
		cmocka_unit_test(extents_of_all_groups_are_emptied_together),
	};

	return limits_run(tests);
}
