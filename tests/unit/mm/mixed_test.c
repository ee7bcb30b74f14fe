// SPDX-License-Identifier: Apache-2.0
/* Limits and protection where every extent holds something of everything. */
#include "limits_world.h"

/* ---- held, leased and cached pages in every extent ----------------------------------------- */

#define MIXED	6u

static struct {
	uint32_t nr, ext[MIXED], lease[MIXED];
	uint32_t nr_held;
	uint64_t held[MIXED * PAGES];
} mixed;

/* One more full extent: pages of two chains, the first one leased, and held ones. */
static void mix(uint32_t e, uint32_t c, uint32_t leased, uint32_t held)
{
	uint32_t from = mixed.nr * 300, cold = PAGES - leased - held;
	uint64_t ids[PAGES];

	assert_int_equal(mmt_alloc(&t, e, c, 0, PAGES, ids), 0);
	mixed.ext[mixed.nr] = mm_page_extent(ids[0]);
	assert_int_equal(mm_page_extent(ids[PAGES - 1]), mixed.ext[mixed.nr]);
	assert_int_equal(mmt_commit(&t, e, c, 0, mmt_tokens(from), leased * MMT_PT, ids), 0);
	mixed.lease[mixed.nr++] = t.rp.lease;
	if (cold) {
		assert_int_equal(mmt_commit(&t, e, c, 0, mmt_tokens(from + 150), cold * MMT_PT,
					    ids + leased), 0);
		assert_int_equal(mmt_unlease(&t, e, t.rp.lease), 0);
	}
	memcpy(mixed.held + mixed.nr_held, ids + leased + cold, held * sizeof(*ids));
	mixed.nr_held += held;
}

static void start_mixed(uint32_t extents, uint32_t low, uint32_t high)
{
	memset(&mixed, 0, sizeof(mixed));
	start(extents, low, high);
}

static const struct mm_event *vacate_event(uint32_t member)
{
	mmt_simple(&t, MM_EVENTS, 0, member);
	for (uint32_t i = 0; i < t.rp.nr_events; i++)
		if (t.events[i].kind == MM_EVENT_VACATE)
			return &t.events[i];
	return NULL;
}

/* As libkv does, and its sequences end soon. Pages that moved. */
static uint32_t vacate(uint32_t e, uint32_t m, uint32_t c)
{
	const struct mm_event *ev;
	uint32_t moved = 0;

	while ((ev = vacate_event(m))) {
		uint32_t ext = ev->extent;

		for (uint32_t i = 0; i < mixed.nr_held; i++) {
			uint64_t old = mixed.held[i];

			if (mm_page_extent(old) != ext)
				continue;
			assert_int_equal(mmt_alloc(&t, e, c, 0, 1, &mixed.held[i]), 0);
			assert_true(mm_page_extent(mixed.held[i]) != ext);
			assert_int_equal(mmt_free(&t, e, &old, 1), 0);
			moved++;
		}
		for (uint32_t i = 0; i < mixed.nr; i++)
			if (mixed.ext[i] == ext && mixed.lease[i]) {
				assert_int_equal(mmt_unlease(&t, e, mixed.lease[i]), 0);
				mixed.lease[i] = 0;
			}
		settle();
	}
	return moved;
}

static void mixed_extents_shrink_to_a_lowered_max(void **state)
{
	(void)state;
	start_mixed(16, 0, 0);
	for (uint32_t i = 0; i < 4; i++)
		mix(e1, c1, 2, 1);
	limit(1, 0, 0, 2, 2, MM_OOM_KILL);
	settle();
	assert_int_equal(charge(1), 4);
	assert_int_equal(vacate(e1, m1, c1), 2);
	assert_int_equal(charge(1), 2);
	for (uint32_t i = 0; i < 8; i++)
		pass(10 * ANSWER);
	assert_int_equal(t.nr_kill, 0);
	assert_int_equal(event(1, MM_MEMCG_OOM), 0);
	assert_int_equal(mm_vmstat(t.mm)->vacate_fail, 0);
	assert_null(pressure(m1));
	assert_int_equal(mmt_free(&t, e1, mixed.held, 4), 0);	/* all its own still */
	mmt_fini(&t);
}

static void least_used_mixed_extent_goes_first(void **state)
{
	const struct mm_event *ev;

	(void)state;
	start_mixed(16, 0, 0);
	mix(e1, c1, 1, 3);
	mix(e1, c1, 1, 2);
	mix(e1, c1, 1, 1);
	mix(e1, c1, 2, 1);
	limit(1, 0, 0, 3, 3, MM_OOM_NONE);
	settle();
	assert_int_equal(mm_vmstat(t.mm)->vacates, 1);
	ev = vacate_event(m1);
	assert_non_null(ev);
	assert_int_equal(ev->extent, mixed.ext[2]);
	assert_int_equal(vacate(e1, m1, c1), 1);
	assert_int_equal(charge(1), 3);
	mmt_fini(&t);
}

/* Nothing is begun that what is used would find no room for. */
static void extents_in_full_use_stay(void **state)
{
	(void)state;
	start_mixed(16, 0, 0);
	mix(e1, c1, 1, 7);
	mix(e1, c1, 1, 7);
	limit(1, 0, 0, 1, 1, MM_OOM_NONE);
	settle();
	for (uint32_t i = 0; i < 4; i++)
		pass(100 * ANSWER);
	assert_int_equal(mm_vmstat(t.mm)->vacates, 0);
	assert_int_equal(charge(1), 2);
	mmt_fini(&t);
}

static void room_of_parked_pages_is_taken_past_the_deadline(void **state)
{
	(void)state;
	start_mixed(16, 0, 0);
	mix(e1, c1, 4, 2);
	mix(e1, c1, 4, 2);
	assert_int_equal(mmt_park(&t, MM_PARK, e1, mixed.lease[0], 0, 0), 0);
	mixed.lease[0] = 0;
	limit(1, 0, 0, 1, 1, MM_OOM_KILL);
	settle();
	pass(ANSWER - 1);
	assert_int_equal(mm_vmstat(t.mm)->vacates, 0);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 0);
	pass(1);
	assert_int_equal(mm_vmstat(t.mm)->vacates, 1);
	assert_int_equal(vacate(e1, m1, c1), 2);
	assert_int_equal(charge(1), 1);
	assert_int_equal(t.nr_kill, 0);
	mmt_fini(&t);
}

static void vacating_in_vain_becomes_rarer(void **state)
{
	uint64_t early;

	(void)state;
	start_mixed(16, 0, 0);
	mix(e1, c1, 1, 1);
	mix(e1, c1, 1, 1);
	limit(1, 0, 0, 1, 1, MM_OOM_NONE);
	for (uint32_t i = 0; i < 16; i++)
		pass(ANSWER);
	early = mm_vmstat(t.mm)->vacates;
	assert_true(early >= 4 && early <= 10);
	for (uint32_t i = 0; i < 128; i++)
		pass(ANSWER);
	assert_true(mm_vmstat(t.mm)->vacates <= early + 8);
	assert_int_equal(mm_vmstat(t.mm)->vacate_fail, mm_vmstat(t.mm)->vacates);
	assert_int_equal(charge(1), 2);
	mmt_fini(&t);
}

static void nobody_is_killed_before_vacating_was_tried(void **state)
{
	(void)state;
	start_mixed(16, 0, 0);
	mix(e1, c1, 1, 1);
	mix(e1, c1, 1, 1);
	limit(1, 0, 0, 1, 1, MM_OOM_KILL);
	settle();
	pass(ANSWER - 1);
	assert_int_equal(t.nr_kill, 0);
	assert_int_equal(mm_vmstat(t.mm)->vacates, 1);
	/* The first has failed; the second has as long. */
	pass(1);
	assert_int_equal(mm_vmstat(t.mm)->vacate_fail, 1);
	assert_int_equal(mm_vmstat(t.mm)->vacates, 2);
	pass(ANSWER - 1);
	assert_int_equal(t.nr_kill, 0);
	for (uint32_t i = 0; i < 64 && !t.nr_kill; i++)
		pass(ANSWER);
	assert_int_equal(t.killed, e1);
	assert_true(mm_vmstat(t.mm)->vacate_fail >= 2);
	mmt_fini(&t);
}

/* ---- protection before mixed extents ------------------------------------------------------- */

/* Up to its low the second takes new memory, what the watermark keeps too; then it has no low. */
static void mix_into_reserve(uint32_t extents)
{
	limit(2, 0, extents, UINT32_MAX, UINT32_MAX, MM_OOM_NONE);
	for (uint32_t i = 0; i < extents; i++)
		mix(e2, c2, 1, 1);
	limit(2, 0, 0, UINT32_MAX, UINT32_MAX, MM_OOM_NONE);
}

static void below_low_nothing_is_taken_that_mixed_extents_can_give(void **state)
{
	(void)state;
	start_mixed(9, 2, 3);
	limit(1, 0, 3, UINT32_MAX, UINT32_MAX, MM_OOM_NONE);
	for (uint32_t i = 0; i < 3; i++)
		cached(e1, c1, i * 200);	/* the coldest */
	mix_into_reserve(5);
	settle();
	assert_int_equal(charge(1), 3);
	assert_int_equal(vacate(e2, m2, c2), 2);
	settle();
	assert_int_equal(charge(1), 3);
	assert_int_equal(charge(2), 3);
	assert_int_equal(event(1, MM_MEMCG_LOW), 0);
	mmt_fini(&t);
}

static void below_low_is_taken_when_nobody_answers(void **state)
{
	(void)state;
	start_mixed(8, 2, 3);
	limit(1, 0, 3, UINT32_MAX, UINT32_MAX, MM_OOM_NONE);
	for (uint32_t i = 0; i < 3; i++)
		cached(e1, c1, i * 200);
	mix_into_reserve(4);
	settle();
	pass(ANSWER - 1);
	assert_int_equal(charge(1), 3);
	for (uint32_t i = 0; i < 16; i++)
		pass(ANSWER);
	assert_int_equal(charge(1), 1);
	assert_int_equal(charge(2), 4);
	assert_int_equal(event(1, MM_MEMCG_LOW), 2);
	mmt_fini(&t);
}

/* They are both below their low: neither is packed for the other's sake. */
static void mixed_extents_below_low_are_protected_too(void **state)
{
	(void)state;
	start_mixed(8, 2, 3);
	limit(1, 0, 3, UINT32_MAX, UINT32_MAX, MM_OOM_NONE);
	limit(2, 0, 4, UINT32_MAX, UINT32_MAX, MM_OOM_NONE);
	for (uint32_t i = 0; i < 3; i++)
		cached(e1, c1, i * 200);
	for (uint32_t i = 0; i < 4; i++)
		mix(e2, c2, 1, 1);
	settle();
	assert_int_equal(mm_vmstat(t.mm)->vacates, 0);
	assert_int_equal(charge(1), 1);
	assert_int_equal(charge(2), 4);
	mmt_fini(&t);
}

static void third_engine(uint32_t *e3, uint32_t *c3)
{
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t m3;

	assert_int_equal(mmt_attach(&t, 3, e3, &m3), 0);
	assert_int_equal(mmt_open(&t, *e3, &d, c3), 0);
}

static void waiting_allocation_spares_who_is_below_low(void **state)
{
	uint32_t e3, c3;

	(void)state;
	start_mixed(7, 0, 0);
	third_engine(&e3, &c3);
	limit(1, 0, 3, UINT32_MAX, UINT32_MAX, MM_OOM_NONE);
	for (uint32_t i = 0; i < 3; i++)
		cached(e1, c1, i * 200);
	for (uint32_t i = 0; i < 4; i++)
		mix(e2, c2, 1, 1);
	/* Who cannot wait is refused, yet the room is on its way. */
	assert_int_equal(mmt_alloc(&t, e3, c3, 0, PAGES, NULL), -ENOMEM);
	assert_int_equal(charge(1), 3);
	assert_non_null(vacate_event(m2));
	assert_int_equal(mmt_alloc_until(&t, e3, c3, 0, PAGES, t.now + 10 * ANSWER), MMT_LATER);
	assert_int_equal(vacate(e2, m2, c2), 1);
	settle();
	assert_int_equal(t.late.result, 0);
	assert_int_equal(t.late.nr_pages, PAGES);
	assert_int_equal(charge(1), 3);
	assert_int_equal(charge(2), 3);
	assert_int_equal(event(1, MM_MEMCG_LOW), 0);
	mmt_fini(&t);
}

static void waiting_allocation_takes_below_low_when_nobody_answers(void **state)
{
	uint32_t e3, c3;

	(void)state;
	start_mixed(7, 0, 0);
	third_engine(&e3, &c3);
	limit(1, 0, 3, UINT32_MAX, UINT32_MAX, MM_OOM_NONE);
	for (uint32_t i = 0; i < 3; i++)
		cached(e1, c1, i * 200);
	for (uint32_t i = 0; i < 4; i++)
		mix(e2, c2, 1, 1);
	assert_int_equal(mmt_alloc_until(&t, e3, c3, 0, PAGES, t.now + 100 * ANSWER), MMT_LATER);
	pass(ANSWER - 1);
	assert_int_equal(t.nr_late, 0);
	for (uint32_t i = 0; i < 16 && !t.nr_late; i++)
		pass(ANSWER);
	assert_int_equal(t.nr_late, 1);
	assert_int_equal(t.late.result, 0);
	assert_int_equal(charge(1), 2);
	assert_int_equal(event(1, MM_MEMCG_LOW), 1);
	mmt_fini(&t);
}

/* Without any protection as well: cached pages are no reason to refuse. */
static void waiting_allocation_gets_the_room_of_cached_pages_in_mixed_extents(void **state)
{
	(void)state;
	start_mixed(4, 0, 0);
	for (uint32_t i = 0; i < 4; i++)
		mix(e1, c1, 1, 1);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, PAGES, t.now + 10 * ANSWER), MMT_LATER);
	assert_int_equal(vacate(e1, m1, c1), 1);
	settle();
	assert_int_equal(t.late.result, 0);
	assert_int_equal(charge(1), 3);
	mmt_fini(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mixed_extents_shrink_to_a_lowered_max),
		cmocka_unit_test(least_used_mixed_extent_goes_first),
		cmocka_unit_test(extents_in_full_use_stay),
		cmocka_unit_test(room_of_parked_pages_is_taken_past_the_deadline),
		cmocka_unit_test(vacating_in_vain_becomes_rarer),
		cmocka_unit_test(nobody_is_killed_before_vacating_was_tried),
		cmocka_unit_test(below_low_nothing_is_taken_that_mixed_extents_can_give),
		cmocka_unit_test(below_low_is_taken_when_nobody_answers),
		cmocka_unit_test(mixed_extents_below_low_are_protected_too),
		cmocka_unit_test(waiting_allocation_spares_who_is_below_low),
		cmocka_unit_test(waiting_allocation_takes_below_low_when_nobody_answers),
		cmocka_unit_test(waiting_allocation_gets_the_room_of_cached_pages_in_mixed_extents),
	};

	return limits_run(tests);
}
