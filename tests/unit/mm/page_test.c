// SPDX-License-Identifier: Apache-2.0
#include "mmt.h"

static struct mmt t;
static uint32_t e1, e2, m1, m2, c1, c2;

static int setup(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);

	(void)state;
	mmt_init(&t, &cfg);
	assert_int_equal(mmt_attach(&t, 1000, &e1, &m1), 0);
	assert_int_equal(mmt_attach(&t, 1000, &e2, &m2), 0);
	assert_int_equal(mmt_open(&t, e1, &d, &c1), 0);
	assert_int_equal(t.rp.geom[0].extent_pages, 8);
	assert_int_equal(t.rp.geom[0].extent_bytes[0], MMT_EXTENT);
	assert_int_equal(mmt_open(&t, e2, &d, &c2), 0);
	assert_int_equal(c1, c2);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	mmt_fini(&t);
	return 0;
}

static void sizes_hold(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct node), 96);
	assert_true(sizeof(struct frame) <= 32);
}

static void pages_are_distinct_and_come_back(void **state)
{
	uint64_t a[20];

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 20, a), 0);
	for (uint32_t i = 0; i < 20; i++)
		for (uint32_t k = 0; k < i; k++)
			assert_true(a[i] >> 24 != a[k] >> 24);
	assert_int_equal(mmt_device_extents(&t, 0), 3);
	assert_int_equal(mmt_free(&t, e1, a, 20), 0);
	assert_int_equal(mmt_device_extents(&t, 0), 1);	/* one empty one is kept */
	assert_int_equal(mm_vmstat(t.mm)->pages_free, 20);
}

static void the_fullest_extent_is_taken_first(void **state)
{
	uint64_t a[16], b;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 16, a), 0);
	assert_int_equal(mmt_free(&t, e1, a, 6), 0);		/* first extent: 2 left */
	assert_int_equal(mmt_free(&t, e1, a + 8, 1), 0);	/* second: 7 left */
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 1, &b), 0);
	assert_int_equal(mm_page_extent(b), mm_page_extent(a[8]));
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 1, &b), 0);
	assert_int_equal(mm_page_extent(b), mm_page_extent(a[0]));
}

static void free_is_all_or_none(void **state)
{
	uint64_t a[4], b, bad[4];

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 4, a), 0);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 1, &b), 0);
	memcpy(bad, a, sizeof(bad));
	bad[3] = a[0];
	mmt_refused(&t, mmt_free(&t, e1, bad, 4), -EINVAL, MM_BAD_ARGUMENT);
	bad[3] = b;
	mmt_refused(&t, mmt_free(&t, e1, bad, 4), -EACCES, MM_NOT_OWNER);
	bad[3] = a[3] + 1;
	mmt_refused(&t, mmt_free(&t, e1, bad, 4), -ESTALE, MM_STALE_PAGE);
	bad[3] = 0;
	mmt_refused(&t, mmt_free(&t, e1, bad, 4), -EINVAL, MM_BAD_ARGUMENT);
	bad[3] = 1ull << 44 | 0xfffffull << 24 | 1;
	mmt_refused(&t, mmt_free(&t, e1, bad, 4), -ESTALE, MM_STALE_PAGE);
	bad[3] = 60ull << 44 | 1;
	mmt_refused(&t, mmt_free(&t, e1, bad, 4), -ENOENT, MM_NO_SUCH_ID);
	bad[3] = 65ull << 44 | 1;
	mmt_refused(&t, mmt_free(&t, e1, bad, 4), -EINVAL, MM_BAD_ARGUMENT);
	mmt_refused(&t, mmt_free(&t, e1 + 1000, a, 4), -ENOENT, MM_NO_SUCH_ID);
	mmt_refused(&t, mmt_free(&t, e1, a, 65), -EINVAL, MM_BAD_ARGUMENT);
	assert_int_equal(mmt_free(&t, e1, a, 0), 0);
	assert_int_equal(mmt_free(&t, e1, a, 4), 0);
	mmt_refused(&t, mmt_free(&t, e1, a, 1), -ESTALE, MM_STALE_PAGE);
}

static void a_published_page_cannot_be_freed(void **state)
{
	uint64_t a[1];

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 1, a), 0);
	assert_int_equal(mmt_commit(&t, e1, c1, 0, mmt_tokens(0), MMT_PT, a), 0);
	mmt_refused(&t, mmt_free(&t, e1, a, 1), -EACCES, MM_NOT_OWNER);
}

static void bad_allocations_are_refused(void **state)
{
	(void)state;
	mmt_refused(&t, mmt_alloc(&t, e1, c1, 0, 0, NULL), -EINVAL, MM_BAD_ARGUMENT);
	mmt_refused(&t, mmt_alloc(&t, e1, c1, 0, 65, NULL), -EINVAL, MM_BAD_ARGUMENT);
	mmt_refused(&t, mmt_alloc(&t, e1, c1, 1, 1, NULL), -EINVAL, MM_BAD_ARGUMENT);
	mmt_refused(&t, mmt_alloc(&t, e1, c1 + 77, 0, 1, NULL), -ENOENT, MM_NO_SUCH_ID);
	mmt_refused(&t, mmt_alloc(&t, 0, c1, 0, 1, NULL), -ENOENT, MM_NO_SUCH_ID);
}

static void a_generation_never_is_zero(void **state)
{
	uint64_t a, b;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 1, &a), 0);
	frame_at(t.mm, extent_at(t.mm, mm_page_extent(a))->base + mm_page_slot(a))->gen = 0xffffff;
	extent_at(t.mm, mm_page_extent(a))->gen_top = 0xffffff;
	a |= 0xffffff;
	assert_int_equal(mmt_free(&t, e1, &a, 1), 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 1, &b), 0);
	assert_int_equal(mm_page_gen(b), 1);
	assert_int_equal(b >> 24, a >> 24);
	assert_int_equal(extent_at(t.mm, mm_page_extent(a))->gen_top, 1);
	mmt_refused(&t, mmt_free(&t, e1, &a, 1), -ESTALE, MM_STALE_PAGE);
}

static void ids_of_an_extent_s_earlier_life_stay_stale(void **state)
{
	uint64_t a[16], b[16];

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 16, a), 0);
	assert_int_equal(mmt_free(&t, e1, a, 16), 0);
	for (uint32_t round = 0; round < 10; round++) {
		assert_int_equal(mmt_alloc(&t, e1, c1, 0, 16, b), 0);
		for (uint32_t i = 0; i < 16; i++)
			for (uint32_t k = 0; k < 16; k++)
				assert_true(b[i] != a[k]);
		mmt_refused(&t, mmt_free(&t, e1, a + 8, 8), -ESTALE, MM_STALE_PAGE);
		assert_int_equal(mmt_free(&t, e1, b, 16), 0);
	}
}

static void everything_is_refused_after_a_fence(void **state)
{
	uint64_t a[2];
	uint32_t lease, d;
	struct mm_cache_desc desc = mmt_desc(9);

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 2, a), 0);
	assert_int_equal(mmt_commit(&t, e1, c1, 0, mmt_tokens(0), MMT_PT, a), 0);
	lease = t.rp.lease;
	assert_int_equal(mmt_simple(&t, MM_FENCE, e1, 0), 0);
	assert_int_equal(mmt_simple(&t, MM_FENCE, e1, 0), 0);	/* once is enough */
	mmt_refused(&t, mmt_alloc(&t, e1, c1, 0, 1, NULL), -EACCES, MM_FENCED);
	mmt_refused(&t, mmt_free(&t, e1, a, 1), -EACCES, MM_FENCED);
	mmt_refused(&t, mmt_lookup(&t, e1, c1, 0, mmt_tokens(0), 4), -EACCES, MM_FENCED);
	mmt_refused(&t, mmt_commit(&t, e1, c1, 0, mmt_tokens(0), 16, a), -EACCES, MM_FENCED);
	mmt_refused(&t, mmt_unlease(&t, e1, lease), -EACCES, MM_FENCED);
	mmt_refused(&t, mmt_open(&t, e1, &desc, &d), -EACCES, MM_FENCED);
	mmt_refused(&t, mmt_close(&t, e1, c1), -EACCES, MM_FENCED);
	mmt_refused(&t, mmt_map(&t, MM_IMPORT, m1, 1, 0), -EACCES, MM_FENCED);
	mmt_refused(&t, mmt_simple(&t, MM_MEMBER_ATTACH, e1, 0), -EACCES, MM_FENCED);
	mmt_refused(&t, mmt_simple(&t, MM_STAT, e1, 0), -EACCES, MM_FENCED);
	mmt_refused(&t, mmt_simple(&t, MM_PRESSURE_ACK, e1, 0), -EACCES, MM_FENCED);
	mmt_refused(&t, mmt_simple(&t, MM_VACATE_ACK, e1, 0), -EACCES, MM_FENCED);
	mmt_refused(&t, mmt_reserve(&t, e1, 0, 1), -EACCES, MM_FENCED);
	mmt_refused(&t, mmt_lease(&t, MM_LEASE_DUP, e1, 0, lease, 0), -EACCES, MM_FENCED);
	mmt_refused(&t, mmt_lease(&t, MM_DROP_HEAD, e1, 0, lease, 0), -EACCES, MM_FENCED);
	mmt_refused(&t, mmt_park(&t, MM_PARK, e1, lease, 0, 0), -EACCES, MM_FENCED);
	mmt_refused(&t, mmt_park(&t, MM_RESUME, e1, 0, 1, 0), -EACCES, MM_FENCED);
	mmt_refused(&t, mmt_park(&t, MM_UNPARK, e1, 0, 1, 0), -EACCES, MM_FENCED);
}

static void quarantine_lasts_until_the_last_member_is_gone(void **state)
{
	uint64_t a[10], b[10];
	uint32_t m3;
	struct mm_meminfo mi;

	(void)state;
	assert_int_equal(mmt_simple(&t, MM_MEMBER_ATTACH, e1, 0), 0);
	m3 = t.rp.member;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 10, a), 0);
	assert_int_equal(mmt_commit(&t, e1, c1, 0, mmt_tokens(0), 2 * MMT_PT, a), 0);
	assert_int_equal(mmt_map(&t, MM_IMPORT, m3, mm_page_extent(a[0]), 0), 0);
	assert_true(t.rp.writable);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m1), 0); /* its death is the engine's */
	mm_meminfo(t.mm, 0, &mi);
	assert_int_equal(mi.quarantined_bytes, 8 * MMT_PAGE);
	assert_int_equal(mi.cached_bytes, 2 * MMT_PAGE);
	assert_int_equal(mi.held_bytes, 0);
	mmt_refused(&t, mmt_simple(&t, MM_MEMBER_GONE, 0, m1), -ENOENT, MM_NO_SUCH_ID);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m3), 0);
	mm_meminfo(t.mm, 0, &mi);
	assert_int_equal(mi.quarantined_bytes, 0);
	assert_int_equal(mi.nr_extents, 1);		/* what was published stays */
	mmt_refused(&t, mmt_simple(&t, MM_FENCE, e1, 0), -ENOENT, MM_NO_SUCH_ID);
	/* The orphan is adopted by whoever needs pages of the same cache. */
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 6, b), 0);
	assert_int_equal(mm_page_extent(b[0]), mm_page_extent(a[0]));
	assert_int_equal(mm_vmstat(t.mm)->extents_adopt, 1);
	for (uint32_t i = 0; i < 6; i++)
		for (uint32_t k = 0; k < 10; k++)
			assert_true(b[i] != a[k]);
	assert_int_equal(mmt_lookup(&t, e2, c2, 0, mmt_tokens(0), 40), 0);
	assert_int_equal(t.rp.nr_pages, 2);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_hold),
		T(pages_are_distinct_and_come_back),
		T(the_fullest_extent_is_taken_first),
		T(free_is_all_or_none),
		T(a_published_page_cannot_be_freed),
		T(bad_allocations_are_refused),
		T(a_generation_never_is_zero),
		T(ids_of_an_extent_s_earlier_life_stay_stale),
		T(everything_is_refused_after_a_fence),
		T(quarantine_lasts_until_the_last_member_is_gone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
