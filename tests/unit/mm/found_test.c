// SPDX-License-Identifier: Apache-2.0
/* What the simulator found, each by what goes wrong without its fix. More of it is where it
 * belongs: reclaim_test.c, compact_test.c, wait_test.c, extent_test.c, admit_test.c. */
#include "limits_world.h"

static int promise(uint32_t e, uint32_t pages)
{
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t c;

	return mmt_open_min(&t, e, &d, pages, &c);
}

/* Ticks with so small a budget while something is due; false: without end. */
static bool ends(uint32_t budget)
{
	for (uint32_t i = 0; i < 300 && mm_next_deadline(t.mm) <= t.now; i++) {
		mm_tick(t.mm, t.now, budget);
		mm_check(t.mm);
		mmt_run(&t);
	}
	return mm_next_deadline(t.mm) > t.now;
}

/* ---- copies -------------------------------------------------------------------------------- */

/* Two extents, each with four pages free, one cached and leased, and three cached only. */
static void half_leased(uint32_t lease[2])
{
	uint64_t ids[2 * PAGES];

	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 2 * PAGES, ids), 0);
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t whole;

		assert_int_equal(mmt_commit(&t, e1, c1, 0, mmt_tokens(i * 200), 4 * MMT_PT,
					    ids + i * PAGES), 0);
		whole = t.rp.lease;
		assert_int_equal(mmt_lease(&t, MM_LEASE_DUP, e1, 0, whole, 1), 0);
		lease[i] = t.rp.lease;
		assert_int_equal(mmt_unlease(&t, e1, whole), 0);
		assert_int_equal(mmt_free(&t, e1, ids + i * PAGES + 4, 4), 0);
	}
}

/* The extent cannot go before the lease does: copies gained nothing, and were copied back when the
 * other one had its turn, for ever. */
static void nothing_is_copied_out_while_something_there_is_leased(void **state)
{
	uint32_t lease[2];

	(void)state;
	start(16, 0, 0);
	half_leased(lease);
	limit(1, 0, 0, UINT32_MAX, 1, MM_OOM_NONE);
	settle();
	for (uint32_t i = 0; i < 20; i++)
		pass(ANSWER);
	assert_int_equal(mm_vmstat(t.mm)->pages_move, 0);
	assert_int_equal(mm_vmstat(t.mm)->move_fail, 0);
	/* Once they are gone it is met at last. */
	assert_int_equal(mmt_unlease(&t, e1, lease[0]), 0);
	assert_int_equal(mmt_unlease(&t, e1, lease[1]), 0);
	for (uint32_t i = 0; i < 200 && charge(1) > 1; i++)
		pass(ANSWER);
	assert_int_equal(charge(1), 1);
	mmt_fini(&t);
}

/* ---- promises ------------------------------------------------------------------------------ */

/* Emptied for a limit it stays so, but for a promise made meanwhile. */
static void promise_made_meanwhile_has_back_what_is_being_emptied(void **state)
{
	uint64_t ids[3 * PAGES];

	(void)state;
	start(16, 0, 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 3 * PAGES, ids), 0);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(mmt_free(&t, e1, ids + i * PAGES + 2, PAGES - 2), 0);
	limit(1, 0, 0, 1, 1, MM_OOM_NONE);
	settle();
	assert_int_equal(mm_vmstat(t.mm)->vacates, 2);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, PAGES, NULL), -EDQUOT);
	assert_int_equal(promise(e1, 3 * PAGES), 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 3 * PAGES - 6, NULL), 0);
	mmt_fini(&t);
}

/* The room would be promised again and go to nobody, so the device was never filled. */
static void promised_extents_are_not_taken_to_fill_the_device(void **state)
{
	(void)state;
	start(4, 2, 3);
	assert_int_equal(promise(e1, 2 * PAGES), 0);
	cached(e1, c1, 0);
	cached(e1, c1, 200);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, PAGES, NULL), 0);
	assert_true(ends(100));
	assert_int_equal(charge(1), 2);
	assert_int_equal(found(e1, c1, 0), PAGES);
	assert_int_equal(found(e1, c1, 200), PAGES);
	mmt_fini(&t);
}

/* ---- turns --------------------------------------------------------------------------------- */

/* One that is above its limit is looked at first, in vain. */
static void tenant_with_nothing_to_take_does_not_keep_a_device_short(void **state)
{
	(void)state;
	start(8, 0, 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 2 * PAGES, NULL), 0);
	for (uint32_t i = 0; i < 6; i++)
		cached(e2, c2, i * 200);
	limit(1, 0, 0, 1, 1, MM_OOM_NONE);
	t.mm->cfg.device[0].wmark_low_bytes = 1 * X;
	t.mm->cfg.device[0].wmark_high_bytes = 3 * X;
	assert_true(ends(1));
	mmt_fini(&t);
}

/* It need not wait its turn, so what is given back is not only for the first of the queue. */
static void tenant_below_its_min_is_woken_behind_a_larger_request(void **state)
{
	struct mm_cache_desc d = mmt_desc(1);
	uint64_t ids[4 * PAGES];
	uint32_t e3, m3, c3;

	(void)state;
	start(4, 0, 0);
	limit(2, 1, 1, UINT32_MAX, UINT32_MAX, MM_OOM_NONE);
	assert_int_equal(mmt_attach(&t, 3, &e3, &m3), 0);
	assert_int_equal(mmt_open(&t, e3, &d, &c3), 0);
	assert_int_equal(mmt_alloc(&t, e3, c3, 0, 4 * PAGES, ids), 0);
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 3 * PAGES, t.now + ANSWER), MMT_LATER);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, PAGES, t.now + ANSWER), MMT_LATER);
	t.nr_late = 0;
	assert_int_equal(mmt_free(&t, e3, ids, 2 * PAGES), 0);
	mmt_run(&t);
	assert_int_equal(t.nr_late, 1);
	assert_int_equal(t.late.engine, e2);
	assert_int_equal(t.late.result, 0);
	mmt_fini(&t);
}

/* Work for others is no reason to let it live on. */
static void who_is_killed_is_told_of_before_other_work(void **state)
{
	struct mm_effect fx;

	(void)state;
	start(16, 0, 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 2 * PAGES, NULL), 0);
	limit(1, 0, 0, 1, 1, MM_OOM_KILL);
	settle();
	t.hold = true;
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 1, t.now + 100 * ANSWER), MMT_LATER);
	assert_int_equal(t.nr_fx, 1);
	t.nr_fx = 0;
	{
		struct mm_request rq = { .op = MM_ALLOC, .engine = e2, .cache = c2,
					 .alloc = { PAGES, t.now + 100 * ANSWER } };

		assert_int_equal(mm_submit(t.mm, &rq, t.now), 0);
	}
	t.now += ANSWER;
	mm_tick(t.mm, t.now, 100);
	assert_true(mm_next_effect(t.mm, &fx));
	assert_int_equal(fx.kind, MM_EFFECT_KILL);
	assert_true(mm_next_effect(t.mm, &fx));
	assert_int_equal(fx.kind, MM_EFFECT_CREATE);
	mmt_fini(&t);
}

/* Its own cached pages count: of others as many extents go as are missing beside them. */
static void others_give_only_what_ones_own_pages_do_not(void **state)
{
	(void)state;
	start(4, 0, 0);
	cached(e1, c1, 0);
	for (uint32_t i = 0; i < 3; i++)
		cached(e2, c2, i * 200);
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, PAGES + PAGES / 2, t.now + ANSWER), 0);
	settle();
	assert_int_equal(charge(1), 2);
	assert_int_equal(charge(2), 2);
	mmt_fini(&t);
}

/* What somebody who died left to its cache counts as ours: it is not emptied for us meanwhile. */
static void what_can_be_adopted_is_not_traded(void **state)
{
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t e3, m3, c3;

	(void)state;
	start(5, 0, 0);
	assert_int_equal(mmt_attach(&t, 1, &e3, &m3), 0);
	assert_int_equal(mmt_open(&t, e3, &d, &c3), 0);
	for (uint32_t i = 0; i < 4; i++)
		cached(e3, c3, i * 200);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m3), 0);
	mmt_run(&t);
	t.now += ANSWER;
	cached(e1, c1, 2000);
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 5 * PAGES, t.now + ANSWER), 0);
	assert_int_equal(t.rp.nr_pages, 5 * PAGES);
	mmt_fini(&t);
}

/* Behind more extents of a protected tenant than a look goes past. */
static void what_is_cold_is_found_behind_what_is_protected(void **state)
{
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t e3, c3;

	(void)state;
	start(10, 0, 0);
	assert_int_equal(mmt_attach(&t, 3, &e3, NULL), 0);
	assert_int_equal(mmt_open(&t, e3, &d, &c3), 0);
	limit(1, 7, 7, UINT32_MAX, UINT32_MAX, MM_OOM_NONE);
	for (uint32_t i = 0; i < 7; i++)
		cached(e1, c1, i * 200);
	cached(e3, c3, 0);
	cached(e3, c3, 200);
	busy(e2, c2, 40);
	assert_int_equal(charge(1), 7);
	assert_int_equal(charge(3), 0);
	assert_int_equal(charge(2), 3);
	mmt_fini(&t);
}

static void what_is_parked_is_not_traded(void **state)
{
	uint32_t lease;

	(void)state;
	start(4, 0, 0);
	lease = mmt_chain(&t, e1, c1, 0, PAGES);
	assert_int_equal(mmt_park(&t, MM_PARK, e1, lease, 0, 0), 0);
	cached(e1, c1, 200);
	busy(e2, c2, 30);
	assert_int_equal(charge(1), 1);
	assert_int_equal(charge(2), 3);
	mmt_fini(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_can_be_adopted_is_not_traded),
		cmocka_unit_test(what_is_cold_is_found_behind_what_is_protected),
		cmocka_unit_test(what_is_parked_is_not_traded),
		cmocka_unit_test(others_give_only_what_ones_own_pages_do_not),
		cmocka_unit_test(nothing_is_copied_out_while_something_there_is_leased),
		cmocka_unit_test(promise_made_meanwhile_has_back_what_is_being_emptied),
		cmocka_unit_test(promised_extents_are_not_taken_to_fill_the_device),
		cmocka_unit_test(tenant_with_nothing_to_take_does_not_keep_a_device_short),
		cmocka_unit_test(tenant_below_its_min_is_woken_behind_a_larger_request),
		cmocka_unit_test(who_is_killed_is_told_of_before_other_work),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
