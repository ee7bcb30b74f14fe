// SPDX-License-Identifier: Apache-2.0
/* Engines, members, tenants, caches, tables that fill up, and what mm says about itself. */
#include "mmt.h"

static struct mmt t;
static uint32_t e1, m1, c1;

static int setup(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);

	(void)state;
	mmt_init(&t, &cfg);
	assert_int_equal(mmt_attach(&t, 1000, &e1, &m1), 0);
	assert_int_equal(mmt_open(&t, e1, &d, &c1), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	mmt_fini(&t);
	return 0;
}

static void a_config_out_of_range_has_no_footprint(void **state)
{
	struct mm_config c = mmt_config(), bad;
	struct mm *mm;
	static char mem[64] __attribute__((aligned(64)));

	(void)state;
	assert_true(mm_footprint(&c) > 0);
#define BAD(field, value) \
	do { \
		bad = c; \
		bad.field = value; \
		assert_int_equal(mm_footprint(&bad), 0); \
		assert_int_equal(mm_init(&mm, mem, sizeof(mem), &bad), -EINVAL); \
	} while (0)
	BAD(nr_devices, 0);
	BAD(nr_devices, 9);
	BAD(device[1].pool_bytes, 0);
	BAD(device[0].extent_bytes, 0);
	BAD(device[0].extent_align, 0);
	BAD(max_tenants, 0);
	BAD(max_engines, 0);
	BAD(max_members, 0);
	BAD(max_caches, 0);
	BAD(max_extents, 1u << 20);
	BAD(max_frames, 0);
	BAD(max_nodes, 0);
	BAD(max_leases, 0);
	BAD(max_parks, 1u << 25);
	BAD(max_keys, 1u << 25);
	BAD(max_pending, 1u << 21);
	BAD(max_tokens, 0);
	BAD(batch_pages, 0);
	assert_int_equal(mm_init(&mm, mem, sizeof(mem), &c), -EINVAL);	/* too short */
	assert_int_equal(mm_init(&mm, NULL, 1 << 30, &c), -EINVAL);
	assert_int_equal(mm_init(&mm, mem + 1, 1 << 30, &c), -EINVAL);
}

static void ids_do_not_come_back(void **state)
{
	uint32_t seen[300], nr = 0, e, m;

	(void)state;
	for (uint32_t i = 0; i < 300; i++) {
		assert_int_equal(mmt_attach(&t, 1000 + i, &e, &m), 0);
		for (uint32_t k = 0; k < nr; k++)
			assert_int_not_equal(seen[k], e);
		seen[nr++] = e;
		assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m), 0);
		mmt_refused(&t, mmt_simple(&t, MM_MEMBER_GONE, 0, m), -ENOENT, MM_NO_SUCH_ID);
		mmt_refused(&t, mmt_simple(&t, MM_STAT, e, 0), -ENOENT, MM_NO_SUCH_ID);
	}
	assert_int_equal(t.mm->tenants.nr_used, 1);
}

static void tables_of_people_fill_up(void **state)
{
	uint32_t e, m;

	(void)state;
	for (uint32_t i = 1; i < 4; i++)
		assert_int_equal(mmt_attach(&t, 1000 + i, &e, &m), 0);
	mmt_refused(&t, mmt_attach(&t, 2000, &e, &m), -ENOMEM, MM_TABLE_FULL);
	assert_int_equal(t.rp.a, offsetof(struct mm_config, max_tenants));
	for (uint32_t i = 4; i < 6; i++)
		assert_int_equal(mmt_attach(&t, 1000, &e, &m), 0);
	mmt_refused(&t, mmt_attach(&t, 1000, &e, &m), -ENOMEM, MM_TABLE_FULL);
	assert_int_equal(t.rp.a, offsetof(struct mm_config, max_engines));
	for (uint32_t i = 6; i < 10; i++)
		assert_int_equal(mmt_simple(&t, MM_MEMBER_ATTACH, e1, 0), 0);
	mmt_refused(&t, mmt_simple(&t, MM_MEMBER_ATTACH, e1, 0), -ENOMEM, MM_TABLE_FULL);
	assert_int_equal(t.rp.a, offsetof(struct mm_config, max_members));
	assert_int_equal(t.rp.b, 10);
	t.mm->cfg.max_engines = 6;
	mmt_refused(&t, mmt_simple(&t, MM_MEMBER_ATTACH, e1 + 100, 0), -ENOENT, MM_NO_SUCH_ID);
}

static void members_run_out_before_engines(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mmt s;
	uint32_t e, m;

	(void)state;
	cfg.max_members = 1;
	mmt_init(&s, &cfg);
	assert_int_equal(mmt_attach(&s, 1, &e, &m), 0);
	mmt_refused(&s, mmt_attach(&s, 1, &e, &m), -ENOMEM, MM_TABLE_FULL);
	mmt_fini(&s);
}

static void the_same_key_with_another_geometry_is_refused(void **state)
{
	struct mm_cache_desc d;
	uint32_t c, e2;

	(void)state;
	assert_int_equal(mmt_attach(&t, 1000, &e2, NULL), 0);
#define OTHER(field, value) \
	do { \
		d = mmt_desc(1); \
		d.field = value; \
		mmt_refused(&t, mmt_open(&t, e2, &d, &c), -EINVAL, MM_LAYOUT_DIFFERS); \
	} while (0)
	OTHER(layout_key[3], 9);
	OTHER(page_tokens, 32);
	OTHER(group[0].opaque, 1);
	OTHER(shard[0].page_bytes[0], 4096);
	OTHER(shard[0].device, 1);
	OTHER(shard[0].replicated, 1);
	d = mmt_desc(1);
	d.nr_shards = 2;
	d.shard[1] = d.shard[0];
	mmt_refused(&t, mmt_open(&t, e2, &d, &c), -EINVAL, MM_LAYOUT_DIFFERS);
	d = mmt_desc(1);
	assert_int_equal(mmt_open(&t, e2, &d, &c), 0);
	assert_int_equal(c, c1);
	assert_int_equal(mmt_open(&t, e2, &d, &c), 0);	/* again */
	assert_int_equal(c, c1);
}

static void bad_descriptions_are_refused(void **state)
{
	struct mm_cache_desc d;
	uint32_t c;

	(void)state;
#define WRONG(field, value) \
	do { \
		d = mmt_desc(2); \
		d.field = value; \
		mmt_refused(&t, mmt_open(&t, e1, &d, &c), -EINVAL, MM_BAD_ARGUMENT); \
	} while (0)
	WRONG(page_tokens, 0);
	WRONG(page_tokens, 65537);
	WRONG(nr_groups, 0);
	WRONG(nr_groups, 9);
	WRONG(nr_shards, 0);
	WRONG(nr_shards, 17);
	WRONG(group[0].kind, 0);
	WRONG(group[0].kind, 4);
	WRONG(group[0].kind, MM_GROUP_WINDOW);
	WRONG(shard[0].device, 2);
	WRONG(shard[0].page_bytes[0], 0);
	WRONG(shard[0].page_bytes[0], 100);
	WRONG(shard[0].page_bytes[0], 1ull << 50);
	mmt_refused(&t, mmt_open(&t, e1, NULL, &c), -EINVAL, MM_BAD_ARGUMENT);
}

static void a_private_cache_dies_with_its_engine(void **state)
{
	struct mm_cache_desc d = mmt_desc(0);
	uint32_t e2, m2, a, b, lease;

	(void)state;
	assert_int_equal(mmt_attach(&t, 1000, &e2, &m2), 0);
	assert_int_equal(mmt_open(&t, e1, &d, &a), 0);
	assert_int_equal(mmt_open(&t, e2, &d, &b), 0);
	assert_int_not_equal(a, b);
	lease = mmt_chain(&t, e2, b, 0, 20);
	mmt_refused(&t, mmt_lookup(&t, e1, b, 0, mmt_tokens(0), 16), -EACCES, MM_NOT_OWNER);
	assert_int_equal(mmt_park(&t, MM_PARK, e2, lease, 0, 0), 0);
	assert_int_equal(mmt_simple(&t, MM_FENCE, e2, 0), 0);
	assert_int_equal(t.mm->nodes.nr_used, 0);
	assert_int_equal(mmt_device_extents(&t, 0), 0);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m2), 0);
	assert_int_equal(t.mm->caches.nr_used, 2);
}

static void a_cache_is_left_clean(void **state)
{
	struct mm_cache_desc d = mmt_desc(1);
	uint64_t id;
	uint32_t lease, c2;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 1, &id), 0);
	mmt_refused(&t, mmt_close(&t, e1, c1), -EBUSY, MM_LEASED);
	assert_int_equal(mmt_commit(&t, e1, c1, 0, mmt_tokens(0), 16, &id), 0);
	lease = t.rp.lease;
	mmt_refused(&t, mmt_close(&t, e1, c1), -EBUSY, MM_LEASED);
	assert_int_equal(mmt_park(&t, MM_PARK, e1, lease, 0, 0), 0);	/* a park is no reason */
	assert_int_equal(mmt_close(&t, e1, c1), 0);
	mmt_refused(&t, mmt_close(&t, e1, c1), -EACCES, MM_NOT_OWNER);
	mmt_refused(&t, mmt_close(&t, e1, 4000), -ENOENT, MM_NO_SUCH_ID);
	assert_int_equal(t.mm->parks.nr_used, 0);
	assert_int_equal(mmt_open(&t, e1, &d, &c2), 0);
	assert_int_equal(c2, c1);		/* its content has kept it */
	assert_int_equal(mmt_lookup(&t, e1, c1, 0, mmt_tokens(0), 16), 0);
	assert_int_equal(t.rp.nr_pages, 1);
	assert_int_equal(mmt_unlease(&t, e1, t.rp.lease), 0);
	assert_int_equal(mmt_close(&t, e1, c1), 0);
}

static void caches_leases_parks_fill_up(void **state)
{
	struct mm_cache_desc d;
	uint32_t c, lease = mmt_chain(&t, e1, c1, 0, 2);

	(void)state;
	for (uint8_t i = 2; i <= 3; i++) {
		d = mmt_desc(i);
		assert_int_equal(mmt_open(&t, e1, &d, &c), 0);
	}
	d = mmt_desc(7);
	mmt_refused(&t, mmt_open(&t, e1, &d, &c), -ENOMEM, MM_TABLE_FULL);
	assert_int_equal(t.rp.a, offsetof(struct mm_config, max_caches));
	assert_int_equal(t.rp.b, 3);		/* its share of six */
	for (uint32_t i = 0; i < 16; i++) {
		assert_int_equal(mmt_lease(&t, MM_LEASE_DUP, e1, 0, lease, 1), 0);
		assert_int_equal(mmt_park(&t, MM_PARK, e1, t.rp.lease, 0, 0), 0);
	}
	mmt_refused(&t, mmt_park(&t, MM_PARK, e1, lease, 0, 0), -ENOMEM, MM_TABLE_FULL);
	for (uint32_t i = 1; i < 64; i++)
		assert_int_equal(mmt_lease(&t, MM_LEASE_DUP, e1, 0, lease, 0), 0);
	mmt_refused(&t, mmt_lease(&t, MM_LEASE_DUP, e1, 0, lease, 0), -ENOMEM, MM_TABLE_FULL);
	mmt_refused(&t, mmt_lookup(&t, e1, c1, 0, mmt_tokens(0), 16), -ENOMEM, MM_TABLE_FULL);
	mmt_refused(&t, mmt_park(&t, MM_RESUME, e1, 0, 1, 0), -ENOMEM, MM_TABLE_FULL);
	{
		uint64_t id;

		assert_int_equal(mmt_alloc(&t, e1, c1, 0, 1, &id), 0);
		mmt_refused(&t, mmt_commit(&t, e1, c1, 0, mmt_tokens(500), 16, &id), -ENOMEM,
			    MM_TABLE_FULL);
	}
}

static void full_content_tables_evict_the_idle(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);
	struct mm_page_key key = { 0 };
	struct mmt s;
	uint64_t id;
	uint32_t e, c, kept[8], nr = 0;
	enum { NODES, TOKENS, KEYS, NR } what;

	(void)state;
	for (what = NODES; what < NR; what++) {
		cfg = mmt_config();
		cfg.max_nodes = what == NODES ? 8 : 512;
		cfg.max_tokens = what == TOKENS ? 8 * MMT_PT : 16384;
		cfg.max_keys = what == KEYS ? 16 : 64;	/* half is its share */
		mmt_init(&s, &cfg);
		assert_int_equal(mmt_attach(&s, 1, &e, NULL), 0);
		assert_int_equal(mmt_open(&s, e, &d, &c), 0);
		for (uint32_t i = 0; i < 20; i++) {	/* idle ones make room */
			key.digest[0] = (uint8_t)(i + 1);
			assert_int_equal(mmt_alloc(&s, e, c, 0, 1, &id), 0);
			assert_int_equal(mmt_commit_keys(&s, e, c, 0, 0, mmt_tokens(i), 16, &id, 1,
							 &key, 1), 0);
			if (i < 12)
				assert_int_equal(mmt_unlease(&s, e, s.rp.lease), 0);
			else
				kept[nr++ % 8] = s.rp.lease;
		}
		assert_true(mm_vmstat(s.mm)->pages_evict >= (what == KEYS ? 4 : 12));
		key.digest[0] = 99;
		assert_int_equal(mmt_alloc(&s, e, c, 0, 1, &id), 0);
		mmt_refused(&s, mmt_commit_keys(&s, e, c, 0, 0, mmt_tokens(600), 16, &id, 1,
						&key, 1), -ENOMEM, MM_TABLE_FULL);
		assert_int_equal(s.rp.a, what == NODES ? offsetof(struct mm_config, max_nodes) :
				 what == TOKENS ? offsetof(struct mm_config, max_tokens) :
						  offsetof(struct mm_config, max_keys));
		assert_int_equal(mmt_unlease(&s, e, kept[0]), 0);
		nr = 0;
		mmt_fini(&s);
	}
}

static void what_cannot_fit_evicts_nothing(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);
	struct mmt s;
	uint64_t ids[8];
	uint32_t e, c, idle;

	(void)state;
	cfg.max_tokens = 8 * MMT_PT;
	mmt_init(&s, &cfg);
	assert_int_equal(mmt_attach(&s, 1, &e, NULL), 0);
	assert_int_equal(mmt_open(&s, e, &d, &c), 0);
	mmt_chain(&s, e, c, 0, 3);
	idle = mmt_chain(&s, e, c, 500, 3);
	assert_int_equal(mmt_unlease(&s, e, idle), 0);
	assert_int_equal(mmt_alloc(&s, e, c, 0, 6, ids), 0);
	mmt_refused(&s, mmt_commit(&s, e, c, 0, mmt_tokens(900), 6 * MMT_PT, ids), -ENOMEM,
		    MM_TABLE_FULL);
	assert_int_equal(s.rp.a, offsetof(struct mm_config, max_tokens));
	assert_int_equal(mm_vmstat(s.mm)->pages_evict, 0);
	assert_int_equal(mmt_commit(&s, e, c, 0, mmt_tokens(900), 5 * MMT_PT, ids), 0);
	assert_int_equal(mm_vmstat(s.mm)->pages_evict, 3);
	mmt_fini(&s);
}

static void another_engine_s_idle_nodes_make_room_too(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);
	struct mmt s;
	uint64_t id[2];
	uint32_t a, b, c, cb;

	(void)state;
	cfg.max_nodes = 4;
	mmt_init(&s, &cfg);
	assert_int_equal(mmt_attach(&s, 1, &a, NULL), 0);
	assert_int_equal(mmt_attach(&s, 2, &b, NULL), 0);
	assert_int_equal(mmt_open(&s, a, &d, &c), 0);
	assert_int_equal(mmt_open(&s, b, &d, &cb), 0);
	assert_int_equal(mmt_unlease(&s, a, mmt_chain(&s, a, c, 0, 3)), 0);
	assert_int_equal(mmt_alloc(&s, b, cb, 0, 2, id), 0);
	assert_int_equal(mmt_commit(&s, b, cb, 0, mmt_tokens(0), 32, id), 0);
	assert_int_equal(mm_vmstat(s.mm)->pages_evict, 1);
	mmt_fini(&s);
}

static void a_fragmented_arena_refuses_politely(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1), big = mmt_desc(2);
	struct mm_page_key key = { .page = 0, .digest = { 1 } };
	struct mmt s;
	uint64_t id[4];
	uint32_t e, c, cb, lease[4];

	(void)state;
	cfg.max_tokens = 64;
	big.page_tokens = 32;
	mmt_init(&s, &cfg);
	assert_int_equal(mmt_attach(&s, 1, &e, NULL), 0);
	assert_int_equal(mmt_open(&s, e, &d, &c), 0);
	assert_int_equal(mmt_open(&s, e, &big, &cb), 0);
	for (uint32_t i = 0; i < 4; i++)
		lease[i] = mmt_chain(&s, e, c, i * 100, 1);
	assert_int_equal(mmt_unlease(&s, e, lease[0]), 0);
	assert_int_equal(mmt_unlease(&s, e, lease[2]), 0);
	assert_int_equal(mmt_alloc(&s, e, cb, 0, 1, id), 0);
	assert_int_equal(mmt_commit_keys(&s, e, cb, 0, 0, mmt_tokens(0), 32, id, 1, &key, 1),
			 -ENOMEM);
	assert_int_equal(s.rp.a, offsetof(struct mm_config, max_tokens));
	assert_int_equal(s.mm->keys.nr_used, 0);
	mmt_fini(&s);
}

static void the_walks_add_up(void **state)
{
	struct mm_engine_info ei;
	struct mm_cache_info ci;
	struct mm_meminfo mi;
	uint64_t ids[4];
	uint32_t id = 0, lease;

	(void)state;
	lease = mmt_chain(&t, e1, c1, 0, 3);
	(void)lease;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 4, ids), 0);
	assert_int_equal(mmt_reserve(&t, e1, 1, 4096), 0);
	assert_int_equal(mmt_lookup(&t, e1, c1, 0, mmt_tokens(0), 40), 0);
	assert_true(mm_next_engine(t.mm, &id, &ei));
	assert_int_equal(ei.engine, e1);
	assert_int_equal(ei.tenant_uid, 1000);
	assert_int_equal(ei.nr_members, 1);
	assert_int_equal(ei.nr_leases, 3);
	assert_int_equal(ei.held_pages, 4);
	assert_int_equal(ei.held_bytes, 4 * MMT_PAGE);
	assert_int_equal(ei.extent_bytes, MMT_EXTENT);
	assert_int_equal(ei.reserved_bytes, 4096);
	assert_int_equal(ei.allocs, 7);
	assert_int_equal(ei.commits, 3);
	assert_int_equal(ei.hit_tokens, 40);
	assert_false(mm_next_engine(t.mm, &id, &ei));
	id = 0;
	assert_true(mm_next_cache(t.mm, &id, &ci));
	assert_int_equal(ci.cache, c1);
	assert_true(ci.shared && ci.nr_engines == 1 && ci.nr_extents == 1);
	assert_int_equal(ci.nodes, 3);
	assert_int_equal(ci.cached_tokens, 48);
	assert_int_equal(ci.cached_pages, 3);
	assert_int_equal(ci.leased_pages, 3);
	assert_int_equal(ci.held_pages, 4);
	assert_int_equal(ci.free_pages, 1);
	assert_int_equal(ci.page_bytes, MMT_PAGE);
	assert_false(mm_next_cache(t.mm, &id, &ci));
	mm_meminfo(t.mm, 0, &mi);
	assert_int_equal(mi.free_bytes + mi.extent_bytes, mi.pool_bytes);
	assert_int_equal(mi.leased_bytes, 3 * MMT_PAGE);
	assert_int_equal(mi.frame_free_bytes, MMT_PAGE);
	mm_meminfo(t.mm, 1, &mi);
	assert_int_equal(mi.reserved_bytes, 4096);
	assert_int_equal(mi.nr_extents, 0);
	mm_meminfo(t.mm, 5, &mi);
	assert_int_equal(mi.pool_bytes, 0);
	assert_int_equal(mmt_simple(&t, MM_STAT, e1, 0), 0);
	assert_int_equal(t.rp.a, 4);
	assert_int_equal(t.rp.b, 4 * MMT_PAGE);
}

static void opaque_pages_match_whole(void **state)
{
	struct mm_cache_desc d = mmt_desc(3);
	uint32_t c;

	(void)state;
	d.group[0].opaque = 1;
	assert_int_equal(mmt_open(&t, e1, &d, &c), 0);
	mmt_chain(&t, e1, c, 0, 2);
	assert_int_equal(mmt_lookup(&t, e1, c, 0, mmt_tokens(0), 20), 0);
	assert_true(t.rp.nr_pages == 1 && !t.rp.tail_tokens);
}

/* Nothing in the block is an address, and no answer that waits there is lost. */
static void a_copy_of_the_block_is_as_good(void **state)
{
	struct mm_request rq = { .op = MM_ALLOC, .alloc.nr_pages = 3 };
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);
	size_t len = mm_footprint(&cfg);
	struct mm *copy = aligned_alloc(64, (len + 63) / 64 * 64);
	struct mm_reply rp;
	uint64_t ids[1];
	struct mmt w;

	(void)state;
	mmt_init(&w, &cfg);
	mmt_attach(&w, 1, &rq.engine, NULL);
	mmt_open(&w, rq.engine, &d, &rq.cache);
	assert_int_equal(mmt_alloc(&w, rq.engine, rq.cache, 0, 1, ids), 0);
	assert_int_equal(mm_submit(w.mm, &rq, w.now), 0);
	memcpy(copy, w.mem, len);
	memset(w.mem, 0x5a, len);
	mm_check(copy);
	assert_true(mm_next_reply(copy, &rp));
	assert_int_equal(rp.result, 0);
	assert_int_equal(rp.nr_pages, 3);
	assert_in_range((uintptr_t)rp.pages, (uintptr_t)copy, (uintptr_t)copy + len - 1);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(mm_page_extent(rp.pages[i]), mm_page_extent(ids[0]));
	free(w.mem);
	free(copy);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_copy_of_the_block_is_as_good),
		cmocka_unit_test(a_config_out_of_range_has_no_footprint),
		T(ids_do_not_come_back),
		T(tables_of_people_fill_up),
		cmocka_unit_test(members_run_out_before_engines),
		T(the_same_key_with_another_geometry_is_refused),
		T(bad_descriptions_are_refused),
		T(a_private_cache_dies_with_its_engine),
		T(a_cache_is_left_clean),
		T(caches_leases_parks_fill_up),
		cmocka_unit_test(full_content_tables_evict_the_idle),
		cmocka_unit_test(what_cannot_fit_evicts_nothing),
		cmocka_unit_test(another_engine_s_idle_nodes_make_room_too),
		cmocka_unit_test(a_fragmented_arena_refuses_politely),
		T(the_walks_add_up),
		T(opaque_pages_match_whole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
