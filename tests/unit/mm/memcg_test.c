// SPDX-License-Identifier: Apache-2.0
/* Tenants: limits, what is charged against them, what they may be. */
#include "mmt.h"

#define set mmt_limits

static struct mm_limits limits(uint64_t min, uint64_t low, uint64_t high, uint64_t max)
{
	return (struct mm_limits){ min * MMT_EXTENT, low * MMT_EXTENT,
				   high == MM_NO_LIMIT ? high : high * MMT_EXTENT,
				   max == MM_NO_LIMIT ? max : max * MMT_EXTENT };
}

static struct mm_limits max_of(uint64_t extents)
{
	return limits(0, 0, extents, extents);
}

#define NO_LIMITS limits(0, 0, MM_NO_LIMIT, MM_NO_LIMIT)

static struct mm_tenant_info info_of(struct mmt *t, uint32_t key)
{
	struct mm_tenant_info i;

	assert_int_equal(mm_tenant_info(t->mm, key, &i), 0);
	return i;
}

static uint32_t nr_tenants(struct mmt *t)
{
	struct mm_tenant_info i;
	uint32_t n = 0;

	for (uint32_t id = 0; mm_next_tenant(t->mm, &id, &i); n++)
		;
	return n;
}

static void limits_make_a_tenant_that_stays_until_they_are_the_default_again(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_tenant_info i;
	struct mmt t;

	(void)state;
	mmt_init(&t, &cfg);
	assert_int_equal(set(&t, 7, 0, limits(1, 2, 3, 4), MM_OOM_KILL), 0);
	i = info_of(&t, 7);
	assert_true(i.configured);
	assert_int_equal(i.oom_action, MM_OOM_KILL);
	assert_int_equal(i.device[0].limits.min_bytes, MMT_EXTENT);
	assert_int_equal(i.device[0].limits.max_bytes, 4 * MMT_EXTENT);
	assert_true(i.device[1].limits.max_bytes == MM_NO_LIMIT);
	assert_int_equal(set(&t, 7, MM_ALL_DEVICES, NO_LIMITS, MM_OOM_KILL), 0);
	assert_int_equal(nr_tenants(&t), 1);
	assert_int_equal(set(&t, 7, MM_ALL_DEVICES, NO_LIMITS, MM_OOM_NONE), 0);
	assert_int_equal(nr_tenants(&t), 0);
	mmt_fini(&t);
}

static void impossible_limits_are_refused_and_change_nothing(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mmt t;

	(void)state;
	mmt_init(&t, &cfg);
	assert_int_equal(set(&t, 1, MM_ALL_DEVICES, limits(5, 5, 8, 8), 0), 0);
	mmt_refused(&t, set(&t, 2, 0, limits(2, 1, 8, 8), 0), -EINVAL, MM_BAD_ARGUMENT);
	mmt_refused(&t, set(&t, 2, 0, limits(0, 0, 9, 8), 0), -EINVAL, MM_BAD_ARGUMENT);
	mmt_refused(&t, set(&t, 2, 2, NO_LIMITS, 0), -EINVAL, MM_BAD_ARGUMENT);
	mmt_refused(&t, set(&t, 2, 0, NO_LIMITS, 2), -EINVAL, MM_BAD_ARGUMENT);
	mmt_refused(&t, set(&t, 2, 0, limits(4, 4, 8, 8), 0), -ENOMEM, MM_POOL_FULL);
	assert_int_equal(t.rp.a, 4 * MMT_EXTENT);
	assert_int_equal(t.rp.b, 3 * MMT_EXTENT);
	assert_int_equal(set(&t, 2, 0, limits(3, 0, MM_NO_LIMIT, 8), 0), 0);
	/* What a tenant has already does not stand in its own way. */
	assert_int_equal(set(&t, 1, 1, limits(8, 8, 8, 8), 0), 0);
	mmt_fini(&t);
}

static void limits_need_room_for_a_tenant(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mmt t;

	(void)state;
	mmt_init(&t, &cfg);
	for (uint32_t k = 1; k <= cfg.max_tenants; k++)
		assert_int_equal(set(&t, k, 0, max_of(1), 0), 0);
	mmt_refused(&t, set(&t, 9, 0, max_of(1), 0), -ENOMEM, MM_TABLE_FULL);
	assert_int_equal(set(&t, 1, 0, max_of(2), 0), 0);
	mmt_fini(&t);
}

static void max_bounds_what_a_tenant_is_charged(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);
	struct mmt t;
	uint32_t e, c;

	(void)state;
	mmt_init(&t, &cfg);
	assert_int_equal(set(&t, 7, MM_ALL_DEVICES, max_of(2), 0), 0);
	assert_int_equal(mmt_attach(&t, 7, &e, NULL), 0);
	assert_int_equal(mmt_open(&t, e, &d, &c), 0);
	assert_int_equal(mmt_alloc_until(&t, e, c, 0, 16, UINT64_MAX), 0);
	assert_int_equal(mmt_alloc(&t, e, c, 0, 1, NULL), -EDQUOT);
	assert_int_equal(t.rp.reason, MM_TENANT_MAX);
	assert_int_equal(t.rp.a, 2 * MMT_EXTENT);
	assert_int_equal(t.rp.b, 2 * MMT_EXTENT);
	assert_int_equal(info_of(&t, 7).device[0].charge_bytes, 2 * MMT_EXTENT);
	assert_int_equal(info_of(&t, 7).events[MM_MEMCG_MAX], 1);
	assert_int_equal(set(&t, 7, 0, max_of(3), 0), 0);
	assert_int_equal(mmt_alloc(&t, e, c, 0, 1, NULL), 0);
	assert_int_equal(info_of(&t, 7).device[0].peak_bytes, 3 * MMT_EXTENT);
	mmt_fini(&t);
}

/* Each time the charge comes to be above high, not when it is at it. */
static void high_is_counted_when_it_is_passed(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);
	uint64_t ids[40];
	struct mmt t;
	uint32_t e, c;

	(void)state;
	mmt_init(&t, &cfg);
	assert_int_equal(set(&t, 7, MM_ALL_DEVICES, limits(0, 0, 2, 5), 0), 0);
	assert_int_equal(mmt_attach(&t, 7, &e, NULL), 0);
	assert_int_equal(mmt_open(&t, e, &d, &c), 0);
	for (uint32_t x = 0; x < 5; x++) {
		assert_int_equal(mmt_alloc(&t, e, c, 0, 8, ids + 8 * x), 0);
		assert_int_equal(info_of(&t, 7).events[MM_MEMCG_HIGH], x >= 2);
	}
	mmt_fini(&t);
}

static void above_high_own_cached_pages_go_before_new_extents(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);
	struct mmt t;
	uint32_t e, c;

	(void)state;
	mmt_init(&t, &cfg);
	assert_int_equal(set(&t, 7, 0, limits(0, 0, 2, 4), 0), 0);
	assert_int_equal(mmt_attach(&t, 7, &e, NULL), 0);
	assert_int_equal(mmt_open(&t, e, &d, &c), 0);
	assert_int_equal(mmt_unlease(&t, e, mmt_chain(&t, e, c, 0, 16)), 0);
	assert_int_equal(mmt_alloc(&t, e, c, 0, 12, NULL), 0);
	assert_int_equal(mmt_device_extents(&t, 0), 2);
	assert_int_equal(t.mm->vmstat.pages_evict, 12);
	assert_int_equal(info_of(&t, 7).events[MM_MEMCG_HIGH], 1);
	/* 4 cached pages are left: one extent more is needed, not two. */
	assert_int_equal(mmt_alloc_until(&t, e, c, 0, 12, t.now + 1000), 0);
	assert_int_equal(mmt_device_extents(&t, 0), 3);
	assert_int_equal(info_of(&t, 7).events[MM_MEMCG_HIGH], 3);	/* passed, then the rest */
	assert_int_equal(info_of(&t, 7).events[MM_MEMCG_MAX], 0);
	mmt_fini(&t);
}

static void what_is_leaving_is_no_usage(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);
	uint64_t ids[16];
	struct mmt t;
	uint32_t e, c;

	(void)state;
	mmt_init(&t, &cfg);
	assert_int_equal(set(&t, 7, 0, limits(1, 2, 8, 8), 0), 0);
	assert_int_equal(mmt_attach(&t, 7, &e, NULL), 0);
	assert_int_equal(mmt_open(&t, e, &d, &c), 0);
	assert_int_equal(mmt_alloc_until(&t, e, c, 0, 16, t.now + 1000), 0);
	memcpy(ids, t.pages, sizeof(ids));
	assert_true(memcg_below_low(t.mm, 1, 0));
	assert_false(memcg_below_min(t.mm, 1, 0));
	assert_int_equal(memcg_above_min(t.mm, 1, 0), MMT_EXTENT);
	t.hold = true;
	assert_int_equal(mmt_free(&t, e, ids, 16), 0);
	assert_int_equal(info_of(&t, 7).device[0].charge_bytes, 2 * MMT_EXTENT);
	assert_int_equal(info_of(&t, 7).device[0].leaving_bytes, MMT_EXTENT);
	assert_int_equal(memcg_usage(t.mm, 1, 0), MMT_EXTENT);
	assert_true(memcg_below_min(t.mm, 1, 0));
	assert_int_equal(set(&t, 7, 0, (struct mm_limits){ 0, 0, 1, 2 }, 0), 0);
	assert_int_equal(memcg_excess(t.mm, 1, 0), MMT_EXTENT - 2);
	assert_int_equal(memcg_over_high(t.mm, 1, 0), MMT_EXTENT - 1);
	t.hold = false;
	mmt_run(&t);
	assert_int_equal(info_of(&t, 7).device[0].leaving_bytes, 0);
	mmt_fini(&t);
}

static void a_tenant_tells_what_its_engines_use(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);
	struct mm_tenant_info i;
	struct mmt t;
	uint32_t e, f, c, lease;

	(void)state;
	mmt_init(&t, &cfg);
	assert_int_equal(mmt_attach(&t, 7, &e, NULL), 0);
	assert_int_equal(mmt_attach(&t, 8, &f, NULL), 0);
	assert_int_equal(mmt_open(&t, e, &d, &c), 0);
	lease = mmt_chain(&t, e, c, 0, 4);
	assert_true(lease);
	assert_int_equal(mmt_alloc(&t, e, c, 0, 2, NULL), 0);
	assert_int_equal(mmt_lookup(&t, e, c, 0, mmt_tokens(0), 6 * MMT_PT), 0);
	assert_int_equal(mmt_reserve_for(&t, e, 1, MM_RESERVE_WEIGHTS, 1000), 0);
	i = info_of(&t, 7);
	assert_int_equal(i.nr_engines, 1);
	assert_int_equal(i.nr_caches, 1);
	assert_int_equal(i.device[0].held_bytes, 2 * MMT_PAGE);
	assert_int_equal(i.device[0].cached_bytes, 4 * MMT_PAGE);
	assert_int_equal(i.device[0].leased_bytes, 4 * MMT_PAGE);
	assert_int_equal(i.device[0].free_bytes, 2 * MMT_PAGE);
	assert_int_equal(i.device[1].reserved_bytes, 1000);
	assert_int_equal(i.lookup_tokens, 6 * MMT_PT);
	assert_int_equal(i.hit_tokens, 4 * MMT_PT);
	assert_int_equal(mmt_simple(&t, MM_FENCE, e, 0), 0);
	i = info_of(&t, 7);
	assert_int_equal(i.device[0].quarantined_bytes, 2 * MMT_PAGE);
	assert_int_equal(info_of(&t, 8).nr_engines, 1);
	assert_int_equal(mm_tenant_info(t.mm, 9, &i), -ENOENT);
	mmt_fini(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(limits_make_a_tenant_that_stays_until_they_are_the_default_again),
		cmocka_unit_test(impossible_limits_are_refused_and_change_nothing),
		cmocka_unit_test(limits_need_room_for_a_tenant),
		cmocka_unit_test(max_bounds_what_a_tenant_is_charged),
		cmocka_unit_test(high_is_counted_when_it_is_passed),
		cmocka_unit_test(above_high_own_cached_pages_go_before_new_extents),
		cmocka_unit_test(what_is_leaving_is_no_usage),
		cmocka_unit_test(a_tenant_tells_what_its_engines_use),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
