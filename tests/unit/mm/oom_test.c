// SPDX-License-Identifier: Apache-2.0
/* Reports of refused allocations: what is in them, and how many there are. */
#include "two_engines.h"

#define SEC	1000000000ull
#define PER	8u		/* pages an extent */
#define BYTES(pages) ((pages) * MMT_PAGE)

static int setup(void **state)
{
	struct mm_config cfg = mmt_config();

	(void)state;
	cfg.max_engines = cfg.max_members = cfg.max_tenants = 24;
	cfg.max_caches = 60;
	cfg.max_pending = 64;
	two_engines_of(&cfg, 10, 20);
	t.now = 100 * SEC;
	return 0;
}

/* The newest report; there must be one. */
static struct mm_oom_report newest(void)
{
	struct mm_oom_report r;
	uint64_t seq = 0;

	memset(&r, 0, sizeof(r));
	while (mm_next_oom(t.mm, &seq, &r))
		assert_true(r.seq == seq);
	assert_true(r.seq);
	return r;
}

static uint32_t nr_reports(void)
{
	struct mm_oom_report r;
	uint64_t seq = 0;
	uint32_t nr = 0;

	while (mm_next_oom(t.mm, &seq, &r))
		nr++;
	return nr;
}

static void time_out(uint32_t engine, uint32_t cache, uint32_t nr)
{
	t.nr_late = 0;
	assert_int_equal(mmt_alloc_until(&t, engine, cache, 0, nr, t.now + 500), MMT_LATER);
	mmt_tick(&t, t.now + 500);
	assert_int_equal(t.nr_late, 1);
	assert_true(t.late.result == -ENOMEM || t.late.result == -EDQUOT);
}

/* Who keeps most that cannot be taken stands first, whoever has more that can. */
static void holders_are_ordered_by_what_cannot_be_taken(void **state)
{
	struct mm_oom_report r;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 24, NULL), 0);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 8, NULL), 0);
	assert_int_equal(mmt_unlease(&t, e2, mmt_chain(&t, e2, c2, 0, 32)), 0);
	time_out(e1, c1, 40);
	r = newest();
	assert_int_equal(r.nr_holders, 2);
	assert_int_equal(r.holder[0].engine, e1);
	assert_int_equal(r.holder[0].held_bytes, BYTES(24));
	assert_int_equal(r.holder[1].engine, e2);
	assert_int_equal(r.holder[1].held_bytes, BYTES(8));
	assert_int_equal(r.holder[1].cached_bytes, BYTES(32));
}

static void a_report_says_who_asked_and_who_has_it(void **state)
{
	struct mm_oom_report r;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 60, NULL), 0);
	assert_int_equal(nr_reports(), 0);
	time_out(e2, c2, 5);
	r = newest();
	assert_int_equal(r.seq, 1);
	assert_true(r.when_ns == t.now && r.last_ns == t.now);
	assert_int_equal(r.count, 1);
	assert_int_equal(r.missed, 0);
	assert_int_equal(r.engine, e2);
	assert_int_equal(r.tenant, 20);
	assert_int_equal(r.cache, c2);
	assert_int_equal(r.group, 0);
	assert_int_equal(r.nr_pages, 5);
	assert_int_equal(r.bytes, BYTES(5));
	assert_int_equal(r.device, 0);
	assert_int_equal(r.result, -ENOMEM);
	assert_int_equal(r.reason, MM_TIMED_OUT);
	assert_int_equal(r.pool_bytes, 8 * MMT_EXTENT);
	assert_int_equal(r.extent_bytes, 8 * MMT_EXTENT);
	assert_int_equal(r.free_bytes, 0);
	assert_int_equal(r.held_bytes, BYTES(60));
	assert_int_equal(r.fragmented_bytes, BYTES(4));
	assert_int_equal(r.cached_bytes + r.leased_bytes + r.quarantined_bytes + r.leaving_bytes +
			 r.reserved_bytes + r.protected_bytes + r.promised_bytes, 0);
	assert_int_equal(r.nr_waiting, 1);
	assert_int_equal(r.nr_holders, 1);
	assert_int_equal(r.holder[0].engine, e1);
	assert_int_equal(r.holder[0].tenant, 10);
	assert_int_equal(r.holder[0].held_bytes, BYTES(60));
	assert_int_equal(mm_vmstat(t.mm)->oom, 1);
}

static void why_nothing_could_be_taken(void **state)
{
	struct mm_request limits = { .op = MM_TENANT_SET, .tenant = {
		.tenant = 10, .device = 0,
		.limits = { 0, 4 * MMT_EXTENT, MM_NO_LIMIT, MM_NO_LIMIT } } };
	struct mm_cache_desc d = mmt_desc(1);
	struct mm_oom_report r;
	uint64_t ids[PER];
	uint32_t lease, e3, m3, c3;

	(void)state;
	assert_int_equal(mmt_submit(&t, &limits), 0);
	lease = mmt_chain(&t, e1, c1, 0, PER);			/* one extent leased */
	assert_true(lease);
	lease = mmt_chain(&t, e1, c1, 1000, PER);		/* one cached, and protected */
	assert_int_equal(mmt_unlease(&t, e1, lease), 0);
	assert_int_equal(mmt_reserve(&t, e1, 0, MMT_EXTENT), 0);
	assert_int_equal(mmt_attach(&t, 30, &e3, &m3), 0);	/* one quarantined */
	assert_int_equal(mmt_open(&t, e3, &d, &c3), 0);
	assert_int_equal(mmt_alloc(&t, e3, c3, 0, PER, ids), 0);
	assert_int_equal(mmt_simple(&t, MM_FENCE, e3, 0), 0);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, PER, ids), 0);	/* two on their way out */
	assert_int_equal(mmt_map(&t, MM_IMPORT, m2, mm_page_extent(ids[0]), 0), 0);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 2 * PER, NULL), 0);
	assert_int_equal(mmt_free(&t, e2, ids, PER), 0);
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 3 * PER, t.now + 500), MMT_LATER);
	mmt_tick(&t, t.now + 500);
	r = newest();
	assert_int_equal(r.engine, e1);
	assert_int_equal(r.leased_bytes, BYTES(PER));
	assert_int_equal(r.cached_bytes, BYTES(PER));
	assert_int_equal(r.protected_bytes, 0);		/* its own low keeps nothing from it */
	assert_int_equal(r.reserved_bytes, MMT_EXTENT);
	assert_int_equal(r.quarantined_bytes, BYTES(PER));
	assert_int_equal(r.held_bytes, BYTES(2 * PER));
	assert_int_equal(r.leaving_bytes + r.fragmented_bytes, MMT_EXTENT);
	assert_true(r.extent_bytes + r.reserved_bytes + r.free_bytes == r.pool_bytes);
	t.now += 2 * SEC;
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 6 * PER, t.now + 500), MMT_LATER);
	mmt_tick(&t, t.now + 500);
	r = newest();
	assert_int_equal(r.engine, e2);
	assert_int_equal(r.protected_bytes, r.cached_bytes);	/* tenant 10 is below its low */
}

static void a_tenant_at_its_max_is_told_so(void **state)
{
	struct mm_request limits = { .op = MM_TENANT_SET, .tenant = {
		.tenant = 10, .device = MM_ALL_DEVICES,
		.limits = { 0, 0, MMT_EXTENT, MMT_EXTENT } } };
	struct mm_oom_report r;

	(void)state;
	assert_int_equal(mmt_submit(&t, &limits), 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, PER, NULL), 0);
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 1, t.now + 500), -EDQUOT);
	r = newest();
	assert_int_equal(r.result, -EDQUOT);
	assert_int_equal(r.reason, MM_TENANT_MAX);
	assert_int_equal(r.a, MMT_EXTENT);
	assert_int_equal(r.b, MMT_EXTENT);
	assert_int_equal(r.free_bytes, 7 * MMT_EXTENT);
	assert_int_equal(r.nr_waiting, 0);	/* there was nobody to wait for */
}

static void a_question_is_not_reported(void **state)
{
	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 64, NULL), 0);
	for (uint32_t i = 0; i < 100; i++)
		assert_int_equal(mmt_alloc(&t, e2, c2, 0, 1, NULL), -ENOMEM);
	assert_int_equal(nr_reports(), 0);
	assert_int_equal(mm_vmstat(t.mm)->alloc_fail, 100);
	assert_int_equal(mm_vmstat(t.mm)->oom, 0);
	/* Nor what was wrong, or what the device would not give. */
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 3, 1, t.now + 500), -EINVAL);
	assert_int_equal(nr_reports(), 0);
}

static void who_is_refused_again_soon_is_counted(void **state)
{
	struct mm_oom_report r;
	uint64_t first;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 64, NULL), 0);
	time_out(e2, c2, 5);
	first = t.now;
	time_out(e2, c2, 6);
	time_out(e2, c2, 7);
	r = newest();
	assert_int_equal(nr_reports(), 1);
	assert_int_equal(r.count, 3);
	assert_int_equal(r.nr_pages, 5);		/* the picture is of the first */
	assert_true(r.when_ns == first && r.last_ns == t.now);
	t.now = first + SEC - 500;
	time_out(e2, c2, 8);
	assert_int_equal(nr_reports(), 2);
	assert_int_equal(newest().count, 1);
	assert_int_equal(mm_vmstat(t.mm)->oom, 4);
}

static void the_ring_is_bounded_and_says_what_it_missed(void **state)
{
	struct mm_cache_desc d = mmt_desc(1);
	struct mm_oom_report r;
	uint32_t e[12], m, c[12];
	uint64_t seq = 0;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 64, NULL), 0);
	for (uint32_t i = 0; i < 12; i++) {
		assert_int_equal(mmt_attach(&t, 100 + i, &e[i], &m), 0);
		assert_int_equal(mmt_open(&t, e[i], &d, &c[i]), 0);
		time_out(e[i], c[i], 1);
	}
	assert_int_equal(nr_reports(), MM_OOM_REPORTS);
	assert_int_equal(newest().engine, e[MM_OOM_REPORTS - 1]);
	t.now += SEC;
	time_out(e[10], c[10], 1);
	assert_int_equal(nr_reports(), MM_OOM_REPORTS);
	assert_int_equal(newest().seq, MM_OOM_REPORTS + 1);
	assert_int_equal(newest().missed, 12 - MM_OOM_REPORTS);
	time_out(e[11], c[11], 1);
	assert_int_equal(newest().missed, 0);
	assert_true(mm_next_oom(t.mm, &seq, &r));
	assert_int_equal(r.seq, 3);			/* the oldest two are gone */
	seq = MM_OOM_REPORTS + 2;
	assert_false(mm_next_oom(t.mm, &seq, &r));
	assert_int_equal(mm_vmstat(t.mm)->oom, 14);
}

static void holders_are_those_with_most(void **state)
{
	struct mm_cache_desc d = mmt_desc(1);
	struct mm_oom_report r;
	uint32_t e[11], m, c;

	(void)state;
	for (uint32_t i = 0; i < 7; i++) {		/* 1, 2, ... 7 pages, an extent each */
		assert_int_equal(mmt_attach(&t, 100 + i, &e[i], &m), 0);
		assert_int_equal(mmt_open(&t, e[i], &d, &c), 0);
		assert_int_equal(mmt_alloc(&t, e[i], c, 0, 1 + (i * 3) % 7, NULL), 0);
	}
	for (uint32_t i = 7; i < 11; i++) {
		assert_int_equal(mmt_attach(&t, 100 + i, &e[i], &m), 0);
		assert_int_equal(mmt_reserve(&t, e[i], 0, 1000 * i), 0);
	}
	time_out(e2, c2, 5);
	r = newest();
	assert_int_equal(r.nr_holders, MM_OOM_HOLDERS);
	assert_int_equal(r.holder[0].held_bytes, BYTES(7));
	for (uint32_t i = 1; i < MM_OOM_HOLDERS; i++) {
		const struct mm_oom_holder *a = &r.holder[i - 1], *b = &r.holder[i];

		assert_true(a->held_bytes + a->leased_bytes + a->reserved_bytes >=
			    b->held_bytes + b->leased_bytes + b->reserved_bytes);
	}
	assert_int_equal(r.holder[6].reserved_bytes, 10000);
	assert_int_equal(r.holder[7].reserved_bytes, 9000);	/* one page, 8,192, is less */
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(holders_are_ordered_by_what_cannot_be_taken),
		T(a_report_says_who_asked_and_who_has_it),
		T(why_nothing_could_be_taken),
		T(a_tenant_at_its_max_is_told_so),
		T(a_question_is_not_reported),
		T(who_is_refused_again_soon_is_counted),
		T(the_ring_is_bounded_and_says_what_it_missed),
		T(holders_are_those_with_most),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
