// SPDX-License-Identifier: Apache-2.0
/* What mm says about itself, to the last digit, and the exact ends of every range it accepts. */
#include "two_engines.h"

static int setup(void **state)
{
	(void)state;
	return two_engines(1000, 1000);
}

/* ---- ranges -------------------------------------------------------------------------------- */

static void every_limit_is_accepted_to_its_end_and_no_further(void **state)
{
	struct mm_config c = mmt_config(), x;

	(void)state;
	c.max_frames = c.max_nodes = c.max_leases = c.max_extents = 64;
	c.max_tokens = 4096;
#define RANGE(field, lo, hi) \
	do { \
		x = c; \
		x.field = (lo); \
		assert_true(mm_footprint(&x) > 0); \
		x.field = (hi); \
		assert_true(mm_footprint(&x) > 0); \
		x.field = (hi) + 1; \
		assert_true(mm_footprint(&x) == 0); \
		if (!(lo)) \
			break; \
		x.field = (lo) - 1; \
		assert_true(mm_footprint(&x) == 0); \
	} while (0)
	x = c;
	for (uint32_t d = 2; d < MM_MAX_DEVICES; d++)
		c.device[d] = c.device[0];
	RANGE(nr_devices, 1, MM_MAX_DEVICES);
	RANGE(device[0].pool_bytes, 1, 1ull << 62);
	RANGE(device[1].extent_bytes, 1, 1ull << 40);
	RANGE(device[0].extent_align, 1, 1ull << 40);
	RANGE(max_tenants, 1, 65535);
	RANGE(max_engines, 1, 65535);
	RANGE(max_members, 1, 65535);
	RANGE(max_caches, 1, 65535);
	RANGE(max_extents, 1, (1u << 20) - 1);
	RANGE(max_frames, 1, 1u << 30);
	RANGE(max_nodes, 1, 1u << 30);
	RANGE(max_leases, 1, 1u << 24);
	RANGE(max_parks, 0, (1u << 24) - 1);
	RANGE(max_keys, 0, (1u << 24) - 1);
	RANGE(max_shadows, 0, 1u << 28);
	RANGE(policy, 0, (uint32_t)MM_NR_POLICIES - 1);
	RANGE(max_pending, 0, 1u << 20);
	RANGE(max_tokens, 1, 1ull << 34);
	RANGE(batch_pages, 1, 1u << 20);
#undef RANGE
}

static void watermarks_are_in_order_and_within_the_pool(void **state)
{
	struct mm_config c = mmt_config(), x;

	(void)state;
#define MARKS(dev, min, low, high, fits) \
	do { \
		x = c; \
		x.device[dev].wmark_min_bytes = (min); \
		x.device[dev].wmark_low_bytes = (low); \
		x.device[dev].wmark_high_bytes = (high); \
		assert_int_equal(mm_footprint(&x) != 0, fits); \
	} while (0)
	for (uint32_t d = 0; d < c.nr_devices; d++) {
		uint64_t pool = c.device[d].pool_bytes;

		MARKS(d, 0, 0, 0, true);
		MARKS(d, pool, pool, pool, true);
		MARKS(d, pool + 1, pool, pool, false);
		MARKS(d, 0, 5, 4, false);
		MARKS(d, 0, 5, 5, true);
		MARKS(d, 0, 5, pool + 1, false);
	}
#undef MARKS
}

static void each_table_adds_to_the_footprint(void **state)
{
	struct mm_config c = mmt_config(), x;
	size_t len = mm_footprint(&c), binds;

	(void)state;
	assert_int_equal(len % 8, 0);
#define GROWS(field, by, least, most) \
	do { \
		x = c; \
		x.field += (by); \
		assert_in_range(mm_footprint(&x), len + (least), len + (most)); \
	} while (0)
	GROWS(max_tenants, 64, 64 * 64, 64 * sizeof(struct tenant));
	binds = 4 * (c.max_engines + c.max_caches + 64) - c.max_engines * c.max_caches;
	GROWS(max_engines, 64, 64 * sizeof(struct engine) + (binds - 1) * sizeof(struct bind),
	      64 * sizeof(struct engine) + binds * sizeof(struct bind));
	GROWS(max_members, 64, 64 * 2 * 64,	/* two bytes a member and extent */
	      64 * (2 * 64 + sizeof(struct member)));
	/* Binds: engines * caches at first, 4 of each at most, and one a cache for the orphans. */
	binds = 4 * (c.max_engines + c.max_caches + 64) + 64 - c.max_engines * c.max_caches;
	GROWS(max_caches, 64, 64 * sizeof(struct cache) + (binds - 1) * sizeof(struct bind),
	      64 * sizeof(struct cache) + binds * sizeof(struct bind));
	GROWS(max_extents, 64, 64 * 2 * 10, 64 * (2 * 10 + sizeof(struct extent)));
	GROWS(max_frames, 1024, 1024 * 21, 1024 * 21);	/* a tag beside each frame */
	GROWS(max_nodes, 1024, 1024 * 96, 1024 * (96 + 65));	/* and a unit of tokens */
	GROWS(max_leases, 1024, 1024 * 32, 1024 * sizeof(struct lease));
	GROWS(max_parks, 1024, 1024 * 16, 1024 * sizeof(struct park));
	GROWS(max_keys, 1024, 1024 * 36, 1024 * (sizeof(struct key) + 8));
	GROWS(max_pending, 1024, 1024 * 32, 1024 * sizeof(struct pending));
	GROWS(max_tokens, 4096, 4096 * 4 + 256, 4096 * 4 + 256);	/* a tag a unit of 16 */
	GROWS(batch_pages, 64, 64 * 8 * 8, 64 * 8 * 9 * 3);
#undef GROWS
}

static void a_cache_is_described_within_its_ranges(void **state)
{
	struct mm_cache_desc d = mmt_desc(3);
	uint32_t x;

	(void)state;
	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++)
		d.group[g].kind = MM_GROUP_FULL;
	for (uint32_t s = 0; s < MM_MAX_SHARDS; s++)
		for (uint32_t g = 0; g < MM_MAX_GROUPS; g++)
			d.shard[s].page_bytes[g] = 64;
	d.nr_groups = MM_MAX_GROUPS;
	d.nr_shards = MM_MAX_SHARDS;
	d.page_tokens = 65536;
	assert_int_equal(mmt_open(&t, e1, &d, &x), 0);
	assert_int_equal(t.rp.nr_groups, MM_MAX_GROUPS);
	assert_int_equal(mmt_close(&t, e1, x), 0);
#define BAD(field, value) \
	do { \
		struct mm_cache_desc b = d; \
		b.field = (value); \
		mmt_refused(&t, mmt_open(&t, e1, &b, &x), -EINVAL, MM_BAD_ARGUMENT); \
	} while (0)
	BAD(page_tokens, 65537);
	BAD(nr_groups, MM_MAX_GROUPS + 1);
	BAD(nr_shards, MM_MAX_SHARDS + 1);
	BAD(shard[MM_MAX_SHARDS - 1].device, 2);
	BAD(shard[MM_MAX_SHARDS - 1].page_bytes[MM_MAX_GROUPS - 1], 65);
	BAD(shard[0].page_bytes[0], (1ull << 40) + 64);
	BAD(group[MM_MAX_GROUPS - 1].kind, MM_GROUP_STATE + 1);
	BAD(group[MM_MAX_GROUPS - 1].kind, 0);
#undef BAD
}

static void requests_of_no_kind_are_refused(void **state)
{
	(void)state;
	mmt_refused(&t, mmt_simple(&t, 0, e1, m1), -EINVAL, MM_BAD_ARGUMENT);
	mmt_refused(&t, mmt_simple(&t, MM_NR_OPS, e1, m1), -EINVAL, MM_BAD_ARGUMENT);
	mmt_refused(&t, mmt_simple(&t, (enum mm_op)UINT32_MAX, e1, m1), -EINVAL, MM_BAD_ARGUMENT);
}

/* ---- walks --------------------------------------------------------------------------------- */

static void an_engine_is_described_by_its_id(void **state)
{
	struct mm_engine_info i;
	uint64_t ids[16];

	(void)state;
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 9, ids), 0);
	assert_int_equal(mmt_free(&t, e2, ids, 2), 0);
	assert_int_equal(mm_engine_info(t.mm, e1, &i), 0);
	assert_true(i.engine == e1 && i.held_pages == 0 && i.allocs == 0 && !i.nr_extents);
	assert_int_equal(mm_engine_info(t.mm, e2, &i), 0);
	assert_true(i.engine == e2 && i.held_pages == 7 && i.held_bytes == 7 * MMT_PAGE);
	assert_true(i.allocs == 9 && i.frees == 2 && i.commits == 0);
	assert_true(i.nr_extents == 2 && i.extent_bytes == 2 * MMT_EXTENT);
	assert_int_equal(i.nr_members, 1);
	assert_int_equal(mm_engine_info(t.mm, e2 + 1, &i), -ENOENT);
	assert_int_equal(mm_engine_info(t.mm, 0, &i), -ENOENT);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m1), 0);
	assert_int_equal(mm_engine_info(t.mm, e1, &i), -ENOENT);
	assert_int_equal(mm_engine_info(t.mm, e2, &i), 0);
	assert_int_equal(mmt_simple(&t, MM_STAT, e2, m2), 0);
	assert_true(t.rp.a == 7 && t.rp.b == 7 * MMT_PAGE);
}

static void a_cache_is_described_to_the_token(void **state)
{
	struct mm_cache_info i = { 0 };
	uint32_t id = 0, lease = mmt_chain(&t, e1, c1, 0, 3);
	uint64_t ids[4];

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 2, ids), 0);
	assert_int_equal(mmt_lookup(&t, e2, c2, 0, mmt_tokens(0), 2 * MMT_PT + 5), 0);
	assert_int_equal(t.rp.nr_pages, 2);
	assert_int_equal(t.rp.tail_tokens, 5);
	assert_true(mm_next_cache(t.mm, &id, &i));
	assert_true(i.cache == c1 && i.nr_engines == 2 && i.page_tokens == MMT_PT && i.shared);
	assert_true(i.nr_groups == 1 && i.nr_shards == 1 && i.nr_extents == 1);
	assert_true(i.held_pages == 2 && i.cached_pages == 3 && i.free_pages == 3);
	assert_true(i.leased_pages == 3 && i.nodes == 3 && i.cached_tokens == 3 * MMT_PT);
	assert_true(i.page_bytes == MMT_PAGE);
	assert_true(i.lookup_tokens == 2 * MMT_PT + 5 && i.hit_tokens == 2 * MMT_PT + 5);
	assert_int_equal(i.model_key[0], 1);
	assert_int_equal(mmt_unlease(&t, e2, t.rp.lease), 0);
	assert_int_equal(mmt_unlease(&t, e1, lease), 0);
	assert_false(mm_next_cache(t.mm, &id, &i));
	assert_int_equal(mm_vmstat(t.mm)->hit_pages, 2);
	assert_int_equal(mm_vmstat(t.mm)->tail_hits, 1);
	assert_int_equal(mm_vmstat(t.mm)->leases, 3);
}

static void a_device_is_described_to_the_byte(void **state)
{
	struct mm_meminfo i;
	uint64_t ids[16];

	(void)state;
	mmt_chain(&t, e1, c1, 0, 3);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 7, ids), 0);
	assert_int_equal(mmt_reserve(&t, e1, 0, 12345), 0);
	mm_meminfo(t.mm, 0, &i);
	assert_true(i.pool_bytes == 8 * MMT_EXTENT && i.extent_bytes == 2 * MMT_EXTENT);
	assert_true(i.reserved_bytes == 12345 && i.free_bytes == 6 * MMT_EXTENT - 12345);
	assert_true(i.held_bytes == 7 * MMT_PAGE && i.cached_bytes == 3 * MMT_PAGE);
	assert_true(i.leased_bytes == 3 * MMT_PAGE && i.frame_free_bytes == 6 * MMT_PAGE);
	assert_true(i.quarantined_bytes == 0 && i.nr_extents == 2);
	mm_meminfo(t.mm, 1, &i);
	assert_true(i.extent_bytes == 0 && i.nr_extents == 0 && i.free_bytes == 8 * MMT_EXTENT);
	assert_int_equal(mmt_simple(&t, MM_FENCE, e1, 0), 0);
	mm_meminfo(t.mm, 0, &i);
	assert_true(i.held_bytes == 0 && i.quarantined_bytes == 7 * MMT_PAGE);
	assert_true(i.leased_bytes == 0 && i.cached_bytes == 3 * MMT_PAGE);
}

/* Two groups of two shards on two devices, no two sizes equal. */
static void sums_go_over_all_shards_and_groups(void **state)
{
	static const uint64_t size[2][2] = { { 8192, 4096 }, { 2048, 1024 } };	/* shard, group */
	struct mm_cache_desc d = mmt_desc(7);
	struct mm_engine_info ei;
	struct mm_tenant_info ti;
	struct mm_cache_info ci;
	struct mm_meminfo mi;
	uint32_t c, id = 0;
	uint64_t bytes = 0;

	(void)state;
	d.nr_groups = d.nr_shards = 2;
	d.group[1].kind = MM_GROUP_FULL;
	d.shard[1].device = 1;
	for (uint32_t s = 0; s < 2; s++)
		memcpy(d.shard[s].page_bytes, size[s], sizeof(size[s]));
	assert_int_equal(mmt_open(&t, e2, &d, &c), 0);
	for (uint32_t g = 0; g < 2; g++)
		for (uint32_t s = 0; s < 2; s++)
			bytes += t.rp.geom[g].extent_bytes[s];
	assert_int_equal(mmt_alloc(&t, e2, c, 0, 3, NULL), 0);
	assert_int_equal(mmt_alloc(&t, e2, c, 1, 5, NULL), 0);
	assert_int_equal(mmt_reserve(&t, e2, 1, 99), 0);
	assert_int_equal(mm_engine_info(t.mm, e2, &ei), 0);
	assert_true(ei.extent_bytes == bytes && ei.nr_extents == 2 && ei.held_pages == 8);
	assert_true(ei.held_bytes == 3 * 10240 + 5 * 5120 && ei.reserved_bytes == 99);
	while (mm_next_cache(t.mm, &id, &ci) && ci.cache != c)
		;
	assert_true(ci.cache == c && ci.page_bytes == 15360 && ci.nr_extents == 2);
	assert_true(ci.held_pages == 8 && ci.nr_groups == 2 && ci.nr_shards == 2);
	mm_meminfo(t.mm, 0, &mi);
	assert_true(mi.held_bytes == 3 * 8192 + 5 * 4096 && mi.nr_extents == 2);
	mm_meminfo(t.mm, 1, &mi);
	assert_true(mi.held_bytes == 3 * 2048 + 5 * 1024 && mi.reserved_bytes == 99);
	assert_int_equal(mm_tenant_info(t.mm, 1000, &ti), 0);
	assert_true(ti.key == 1000 && ti.nr_engines == 2 && ti.nr_caches == 2);
	assert_true(ti.device[0].held_bytes == 3 * 8192 + 5 * 4096);
	assert_true(ti.device[1].held_bytes == 3 * 2048 + 5 * 1024);
	assert_true(ti.device[1].reserved_bytes == 99 && ti.device[0].reserved_bytes == 0);
	assert_true(ti.device[0].charge_bytes + ti.device[1].charge_bytes == bytes);
	assert_int_equal(mm_tenant_info(t.mm, 1001, &ti), -ENOENT);
}

static void shapes_are_told_to_their_engine_only(void **state)
{
	uint32_t lease = mmt_chain(&t, e1, c1, 0, 3), pages, groups, tokens, park;

	(void)state;
	pages = groups = tokens = 77;
	assert_int_equal(mm_cache_shape(t.mm, e1, c1, &tokens, &groups), 0);
	assert_true(tokens == MMT_PT && groups == 1);
	assert_int_equal(mm_cache_shape(t.mm, e1, c1 + 1, &tokens, &groups), -ENOENT);
	assert_int_equal(mm_cache_shape(t.mm, 0, c1, &tokens, &groups), -ENOENT);
	assert_int_equal(mmt_park(&t, MM_PARK, e1, lease, 0, 0), 0);
	park = t.rp.park;
	pages = groups = 77;
	assert_int_equal(mm_park_shape(t.mm, e1, park, &pages, &groups), 0);
	assert_true(pages == 3 && groups == 1);
	assert_int_equal(mm_park_shape(t.mm, e2, park, &pages, &groups), -ENOENT);
	assert_int_equal(mm_park_shape(t.mm, e1, park + 1, &pages, &groups), -ENOENT);
	assert_int_equal(mmt_park(&t, MM_RESUME, e1, 0, park, 4), -EINVAL);
	assert_int_equal(mmt_park(&t, MM_RESUME, e1, 0, park, 0), 0);
	assert_int_equal(t.rp.park, park);
	assert_int_equal(t.rp.nr_pages, 3);
	assert_int_equal(mm_park_shape(t.mm, e1, park, &pages, &groups), -ENOENT);
}

/* ---- what was asked, and what there is ----------------------------------------------------- */

static void a_refusal_says_what_was_asked_for_and_what_there_is(void **state)
{
	(void)state;
	mmt_refused(&t, mmt_alloc(&t, e1, c1, 0, 65, NULL), -EINVAL, MM_BAD_ARGUMENT);
	assert_true(t.rp.a == 65 && t.rp.b == 64);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 60, NULL), 0);
	mmt_refused(&t, mmt_alloc(&t, e1, c1, 0, 5, NULL), -ENOMEM, MM_POOL_FULL);
	assert_true(t.rp.a == MMT_EXTENT && t.rp.b == 0);
	mmt_refused(&t, mmt_reserve(&t, e1, 0, 1), -ENOMEM, MM_POOL_FULL);
	assert_true(t.rp.a == 1 && t.rp.b == 0);
	mmt_refused(&t, mmt_unlease(&t, e1, 77), -ENOENT, MM_NO_SUCH_ID);
	assert_int_equal(t.rp.a, 77);
	mmt_refused(&t, mmt_simple(&t, MM_FENCE, 99, 0), -ENOENT, MM_NO_SUCH_ID);
	assert_int_equal(t.rp.a, 99);
	mmt_refused(&t, mmt_simple(&t, MM_MEMBER_GONE, 0, 98), -ENOENT, MM_NO_SUCH_ID);
	assert_int_equal(t.rp.a, 98);
	mmt_refused(&t, mmt_simple(&t, MM_EVENTS, 0, 97), -ENOENT, MM_NO_SUCH_ID);
	assert_int_equal(t.rp.a, 97);
	mmt_refused(&t, mmt_map(&t, MM_IMPORT, m1, 50, 0), -ENOENT, MM_NO_SUCH_ID);
	assert_int_equal(t.rp.a, 50);
	mmt_refused(&t, mmt_map(&t, MM_IMPORT, m1, 1, 1), -EINVAL, MM_BAD_ARGUMENT);
	assert_int_equal(t.rp.a, 1);
	mmt_refused(&t, mmt_map(&t, MM_UNIMPORT, m1, 1, 0), -ENOENT, MM_NO_SUCH_ID);
	mmt_refused(&t, mmt_map(&t, MM_IMPORT, m1 + 50, 1, 0), -ENOENT, MM_NO_SUCH_ID);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(every_limit_is_accepted_to_its_end_and_no_further),
		T(watermarks_are_in_order_and_within_the_pool),
		T(each_table_adds_to_the_footprint),
		T(a_cache_is_described_within_its_ranges),
		T(requests_of_no_kind_are_refused),
		T(an_engine_is_described_by_its_id),
		T(a_cache_is_described_to_the_token),
		T(a_device_is_described_to_the_byte),
		T(sums_go_over_all_shards_and_groups),
		T(shapes_are_told_to_their_engine_only),
		T(a_refusal_says_what_was_asked_for_and_what_there_is),
	};
#undef T

	return cmocka_run_group_tests(tests, NULL, NULL);
}
