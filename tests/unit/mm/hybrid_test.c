// SPDX-License-Identifier: Apache-2.0
/* Full, window and state groups together; two shards. */
#include "mmt.h"

#define FULL	0u
#define WINDOW	1u
#define STATE	2u

static struct mmt t;
static uint32_t e, m, c;

static struct mm_cache_desc hybrid_desc(uint32_t nr_groups)
{
	struct mm_cache_desc d = mmt_desc(5);

	d.nr_groups = nr_groups;
	d.nr_shards = 2;
	d.shard[1].device = 1;
	d.group[WINDOW] = (struct mm_group_desc){ MM_GROUP_WINDOW, 2 * MMT_PT, 0 };
	d.group[STATE] = (struct mm_group_desc){ MM_GROUP_STATE, 0, 0 };
	for (uint32_t s = 0; s < 2; s++)
		for (uint32_t g = 0; g < 3; g++)
			d.shard[s].page_bytes[g] = MMT_PAGE / (s + 1);
	return d;
}

static int setup_n(uint32_t nr_groups)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = hybrid_desc(nr_groups);

	mmt_init(&t, &cfg);
	assert_int_equal(mmt_attach(&t, 1000, &e, &m), 0);
	assert_int_equal(mmt_open(&t, e, &d, &c), 0);
	assert_int_equal(t.rp.nr_groups, nr_groups);
	for (uint32_t g = 0; g < nr_groups; g++) {
		assert_int_equal(t.rp.geom[g].extent_pages, 8);
		assert_int_equal(t.rp.geom[g].extent_bytes[0], MMT_EXTENT);
		assert_int_equal(t.rp.geom[g].extent_bytes[1], MMT_EXTENT / 2);
	}
	return 0;
}

static int setup2(void **state)
{
	(void)state;
	return setup_n(2);
}

static int setup3(void **state)
{
	(void)state;
	return setup_n(3);
}

static int teardown(void **state)
{
	(void)state;
	mmt_fini(&t);
	return 0;
}

/* Commits nr pages; of the other groups those in the masks. */
static uint32_t chain(uint32_t from, uint32_t nr, uint32_t window, uint32_t snap, uint32_t lease)
{
	uint32_t groups = cache_at(t.mm, 1)->desc.nr_groups;
	uint64_t ids[3 * 16] = { 0 };

	for (uint32_t g = 0; g < groups; g++)
		for (uint32_t i = 0; i < nr; i++)
			if (g == FULL || (g == WINDOW ? window : snap) >> i & 1)
				assert_int_equal(mmt_alloc(&t, e, c, g, 1, &ids[g * nr + i]), 0);
	assert_int_equal(mmt_commit_keys(&t, e, c, 0, lease, mmt_tokens(from), nr * MMT_PT, ids, nr,
					 NULL, 0), 0);
	return t.rp.lease;
}

static void a_hit_needs_the_whole_last_window(void **state)
{
	(void)state;
	chain(0, 6, 0x1b, 0, 0);	/* window pages 0, 1, 3, 4 */
	assert_int_equal(mmt_lookup(&t, e, c, 0, mmt_tokens(0), 6 * MMT_PT), 0);
	assert_int_equal(t.rp.nr_pages, 5);
	assert_true(t.pages[5 + 0] == 0 && t.pages[5 + 2] == 0);	/* none needed there */
	assert_true(t.pages[5 + 3] && t.pages[5 + 4]);
	assert_int_equal(t.rp.tail_tokens, 0);		/* page 5 lacks the window group */
	assert_int_equal(mmt_lookup(&t, e, c, 0, mmt_tokens(0), 4 * MMT_PT), 0);
	assert_int_equal(t.rp.nr_pages, 2);		/* 3: 1 and 2; 4: 2 and 3 */
	assert_int_equal(mmt_lookup(&t, e, c, 0, mmt_tokens(0), MMT_PT), 0);
	assert_int_equal(t.rp.nr_pages, 1);
}

static void a_missing_window_page_is_filled_by_a_commit(void **state)
{
	uint32_t lease;

	(void)state;
	lease = chain(0, 4, 0x3, 0, 0);
	assert_int_equal(mmt_lookup(&t, e, c, 0, mmt_tokens(0), 4 * MMT_PT), 0);
	assert_int_equal(t.rp.nr_pages, 2);
	chain(2 * MMT_PT, 2, 0x3, 0, t.rp.lease);
	assert_int_equal(mm_vmstat(t.mm)->pages_dup, 2);
	assert_int_equal(mmt_lookup(&t, e, c, 0, mmt_tokens(0), 4 * MMT_PT), 0);
	assert_int_equal(t.rp.nr_pages, 4);
	assert_int_equal(mmt_unlease(&t, e, lease), 0);
}

static void pages_behind_the_window_are_taken_first(void **state)
{
	uint32_t lease = chain(0, 8, 0xff, 0, 0), dup;
	struct mm_meminfo mi;
	uint64_t id;

	(void)state;
	assert_int_equal(mmt_lease(&t, MM_LEASE_DUP, e, 0, lease, 0), 0);
	dup = t.rp.lease;
	mmt_refused(&t, mmt_lease(&t, MM_DROP_HEAD, e, WINDOW, lease, 9), -EINVAL, MM_BAD_ARGUMENT);
	mmt_refused(&t, mmt_lease(&t, MM_DROP_HEAD, e, FULL, lease, 2), -EINVAL, MM_BAD_ARGUMENT);
	mmt_refused(&t, mmt_lease(&t, MM_DROP_HEAD, e, 77, lease, 2), -EINVAL, MM_BAD_ARGUMENT);
	assert_int_equal(mmt_lease(&t, MM_DROP_HEAD, e, WINDOW, lease, 6), 0);
	assert_int_equal(mmt_lease(&t, MM_DROP_HEAD, e, WINDOW, lease, 5), 0);	/* no way back */
	assert_int_equal(bind_at(t.mm, 1)->slab[WINDOW].nr[FRAME_COLD], 0);
	assert_int_equal(mmt_lease(&t, MM_DROP_HEAD, e, WINDOW, dup, 4), 0);
	assert_int_equal(bind_at(t.mm, 1)->slab[WINDOW].nr[FRAME_COLD], 4);
	assert_int_equal(mmt_unlease(&t, e, dup), 0);
	assert_int_equal(bind_at(t.mm, 1)->slab[WINDOW].nr[FRAME_COLD], 6);
	/* Still good for a hit, which makes them warm again. */
	assert_int_equal(mmt_lookup(&t, e, c, 0, mmt_tokens(0), 3 * MMT_PT), 0);
	assert_int_equal(t.rp.nr_pages, 3);
	assert_int_equal(bind_at(t.mm, 1)->slab[WINDOW].nr[FRAME_COLD], 4);
	mm_meminfo(t.mm, 0, &mi);
	assert_int_equal(mmt_alloc(&t, e, c, WINDOW, 1, &id), 0);
	assert_int_equal(bind_at(t.mm, 1)->slab[WINDOW].nr[FRAME_COLD], 3);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 1);
	assert_int_equal(mi.nr_extents, mmt_device_extents(&t, 0));
	assert_int_equal(mmt_lookup(&t, e, c, 0, mmt_tokens(0), 8 * MMT_PT), 0);
	assert_int_equal(t.rp.nr_pages, 8);
}

static void growth_after_a_drop_needs_what_it_commits(void **state)
{
	uint32_t lease = chain(0, 4, 0xf, 0, 0);

	(void)state;
	assert_int_equal(mmt_lease(&t, MM_DROP_HEAD, e, WINDOW, lease, 4), 0);
	assert_int_equal(bind_at(t.mm, 1)->slab[WINDOW].nr[FRAME_COLD], 4);
	assert_int_equal(mmt_lease(&t, MM_LEASE_DUP, e, 0, lease, 2), 0);
	chain(2 * MMT_PT + 1000, 2, 0x3, 0, t.rp.lease);
	assert_int_equal(bind_at(t.mm, 1)->slab[WINDOW].nr[FRAME_COLD], 4);
	assert_int_equal(bind_at(t.mm, 1)->slab[WINDOW].nr_pinned, 2);
	assert_int_equal(mmt_unlease(&t, e, t.rp.lease), 0);
	assert_int_equal(mmt_unlease(&t, e, lease), 0);
	assert_int_equal(mmt_alloc(&t, e, c, WINDOW, 10, NULL), 0);
}

static void a_state_is_good_for_its_length_only(void **state)
{
	uint64_t ids[3];

	(void)state;
	chain(0, 5, 0x1f, 0x0a, 0);	/* snapshots after pages 1 and 3 */
	assert_int_equal(mmt_lookup(&t, e, c, 0, mmt_tokens(0), 5 * MMT_PT), 0);
	assert_int_equal(t.rp.nr_pages, 4);
	assert_int_equal(t.rp.tail_tokens, 0);
	assert_int_equal(mmt_lookup(&t, e, c, 0, mmt_tokens(0), 3 * MMT_PT), 0);
	assert_int_equal(t.rp.nr_pages, 2);
	assert_int_equal(mmt_lookup(&t, e, c, 0, mmt_tokens(0), MMT_PT), 0);
	assert_int_equal(t.rp.nr_pages, 0);
	/* A partial tail with its snapshot: all of it or nothing. */
	for (uint32_t g = 0; g < 3; g++)
		assert_int_equal(mmt_alloc(&t, e, c, g, 1, &ids[g]), 0);
	assert_int_equal(mmt_lookup(&t, e, c, 0, mmt_tokens(0), 4 * MMT_PT), 0);
	assert_int_equal(mmt_commit_keys(&t, e, c, MM_COMMIT_PARTIAL, t.rp.lease,
					 mmt_tokens(500), 5, ids, 1, NULL, 0), 0);
	{
		uint32_t tok[5 * MMT_PT];

		memcpy(tok, mmt_tokens(0), sizeof(tok));
		memcpy(tok + 4 * MMT_PT, mmt_tokens(500), 16 * 4);
		assert_int_equal(mmt_lookup(&t, e, c, 0, tok, 4 * MMT_PT + 4), 0);
		assert_true(t.rp.nr_pages == 4 && !t.rp.tail_tokens);
		assert_int_equal(mmt_lookup(&t, e, c, 0, tok, 4 * MMT_PT + 9), 0);
		assert_true(t.rp.nr_pages == 4 && t.rp.tail_tokens == 5);
		assert_true(t.rp.tail_pages[STATE] == ids[STATE]);
	}
}

static void two_shards_fail_and_succeed_together(void **state)
{
	uint64_t id;

	(void)state;
	t.hold = true;
	assert_int_equal(mmt_alloc(&t, e, c, FULL, 1, &id), MMT_LATER);
	assert_int_equal(t.nr_fx, 2);
	assert_int_equal(t.fx[0].kind, MM_EFFECT_CREATE);
	assert_int_equal(t.fx[0].device, 0);
	assert_int_equal(t.fx[0].bytes, MMT_EXTENT);
	assert_int_equal(t.fx[0].page_bytes, MMT_PAGE);
	assert_int_equal(t.fx[1].device, 1);
	mmt_complete(&t, 0, 0);
	assert_int_equal(mmt_replies(&t, t.cookie), MMT_LATER);
	mmt_complete(&t, 0, -EIO);
	assert_int_equal(mmt_replies(&t, t.cookie), -EIO);
	mmt_fetch(&t);
	assert_int_equal(t.nr_fx, 1);		/* the other shard is taken back */
	assert_int_equal(t.fx[0].kind, MM_EFFECT_DESTROY);
	assert_int_equal(mmt_device_extents(&t, 0), 1);
	mmt_complete(&t, 0, 0);
	assert_int_equal(mmt_device_extents(&t, 0), 0);
	assert_int_equal(mmt_alloc(&t, e, c, FULL, 1, &id), MMT_LATER);
	mmt_complete(&t, 0, -ENOMEM);
	mmt_complete(&t, 0, -ENOMEM);
	assert_int_equal(mmt_replies(&t, t.cookie), -ENOMEM);
	assert_int_equal(mmt_device_extents(&t, 1), 0);
}

static void a_squeeze_evicts_all_groups_alike(void **state)
{
	uint32_t lease;
	uint64_t ids[32];

	(void)state;
	for (uint32_t i = 0; i < 8; i++) {
		lease = chain(i * 200, 4, 0xf, 0, 0);
		assert_int_equal(mmt_unlease(&t, e, lease), 0);
	}
	/* 8 extents fit in device 0, 4 of each group; all are full of cached pages. */
	assert_int_equal(mmt_device_extents(&t, 0), 8);
	assert_int_equal(mmt_alloc(&t, e, c, FULL, 4, ids), 0);
	assert_int_equal(mmt_alloc(&t, e, c, WINDOW, 4, ids), 0);
	assert_int_equal(mmt_lookup(&t, e, c, 0, mmt_tokens(0), 64), 0);
	assert_int_equal(t.rp.nr_pages, 0);
	assert_int_equal(mmt_lookup(&t, e, c, 0, mmt_tokens(200), 64), 0);
	assert_int_equal(t.rp.nr_pages, 4);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 8);
}

static void a_window_extent_can_be_taken_without_the_nodes(void **state)
{
	struct mm_cache_desc d = mmt_desc(6);
	uint32_t lease = chain(0, 8, 0xff, 0, 0), e2, m2, c2;

	(void)state;
	assert_int_equal(mmt_lease(&t, MM_DROP_HEAD, e, WINDOW, lease, 8), 0);
	assert_int_equal(mmt_attach(&t, 1000, &e2, &m2), 0);
	assert_int_equal(mmt_open(&t, e2, &d, &c2), 0);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 48, NULL), 0);
	/* The pool is full: the cold extent is the only one to be had. */
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 8, t.now + 100), 0);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 8);
	assert_int_equal(mmt_unlease(&t, e, lease), 0);
	assert_int_equal(mmt_lookup(&t, e, c, 0, mmt_tokens(0), 128), 0);
	assert_int_equal(t.rp.nr_pages, 0);
}

static void nodes_without_frames_go_with_their_last_child(void **state)
{
	struct mm_cache_desc d = mmt_desc(7);
	uint64_t ids[8];
	uint32_t wc, lease;

	(void)state;
	d.group[0] = (struct mm_group_desc){ MM_GROUP_WINDOW, MMT_PT, 0 };
	assert_int_equal(mmt_open(&t, e, &d, &wc), 0);
	assert_int_equal(mmt_alloc(&t, e, wc, 0, 4, ids), 0);
	assert_int_equal(mmt_commit(&t, e, wc, 0, mmt_tokens(0), 64, ids), 0);
	lease = t.rp.lease;
	assert_int_equal(mmt_lease(&t, MM_DROP_HEAD, e, 0, lease, 4), 0);
	assert_int_equal(mmt_alloc(&t, e, wc, 0, 7, ids), 0);	/* 4 free, 3 of the 4 cold */
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 3);
	assert_int_equal(mmt_alloc(&t, e, wc, 0, 1, ids), 0);
	assert_int_equal(t.mm->nodes.nr_used, 4);		/* pinned without a frame */
	assert_int_equal(mmt_unlease(&t, e, lease), 0);
	assert_int_equal(t.mm->nodes.nr_used, 0);
}

/* ---- one group short of pages -------------------------------------------------------------- */

/* What is left of a pool of 8 extents goes to held pages. */
static void fill_up(void)
{
	while (mmt_device_extents(&t, 0) < 8)
		assert_int_equal(mmt_alloc(&t, e, c, FULL, 8, NULL), 0);
}

static uint32_t hit(uint32_t from, uint32_t nr)
{
	uint32_t pages;

	assert_int_equal(mmt_lookup(&t, e, c, 0, mmt_tokens(from), nr * MMT_PT), 0);
	pages = t.rp.nr_pages;
	if (pages)
		assert_int_equal(mmt_unlease(&t, e, t.rp.lease), 0);
	return pages;
}

static void window_pages_go_alone_where_the_full_page_is_of_use(void **state)
{
	(void)state;
	assert_int_equal(mmt_unlease(&t, e, chain(0, 8, 0xff, 0, 0)), 0);
	fill_up();
	/* The last two are what a hit of the chain needs. */
	assert_int_equal(mmt_alloc(&t, e, c, WINDOW, 6, NULL), 0);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 6);
	assert_int_equal(bind_at(t.mm, 1)->slab[FULL].nr[FRAME_CACHED], 8);
	assert_int_equal(hit(0, 8), 8);
	/* With those goes the leaf. */
	assert_int_equal(mmt_alloc(&t, e, c, WINDOW, 1, NULL), 0);
	assert_int_equal(bind_at(t.mm, 1)->slab[FULL].nr[FRAME_CACHED], 7);
	assert_int_equal(hit(0, 8), 0);
}

static void pages_of_other_chains_stay_when_a_window_is_wanted(void **state)
{
	uint32_t full;

	(void)state;
	/* The coldest chain has left its window behind. */
	assert_int_equal(mmt_unlease(&t, e, chain(200, 8, 0, 0, 0)), 0);
	assert_int_equal(mmt_unlease(&t, e, chain(0, 4, 0xf, 0, 0)), 0);
	assert_int_equal(mmt_unlease(&t, e, chain(400, 4, 0xf, 0, 0)), 0);
	fill_up();
	full = bind_at(t.mm, 1)->slab[FULL].nr[FRAME_CACHED];
	assert_int_equal(mmt_alloc(&t, e, c, WINDOW, 4, NULL), 0);
	assert_int_equal(bind_at(t.mm, 1)->slab[FULL].nr[FRAME_CACHED], full);
	assert_int_equal(hit(0, 4), 4);
	assert_int_equal(hit(400, 4), 4);
}

static void passed_snapshots_go_first(void **state)
{
	(void)state;
	assert_int_equal(mmt_unlease(&t, e, chain(0, 8, 0xff, 0x8a, 0)), 0);
	fill_up();
	assert_int_equal(mmt_alloc(&t, e, c, STATE, 5, NULL), 0);	/* there are */
	assert_int_equal(mmt_alloc(&t, e, c, STATE, 2, NULL), 0);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 2);
	assert_int_equal(hit(0, 8), 8);
	assert_int_equal(hit(0, 5), 0);
	assert_int_equal(mmt_alloc(&t, e, c, STATE, 1, NULL), 0);
	assert_int_equal(hit(0, 8), 0);
}

static void snapshot_where_chains_part_goes_last(void **state)
{
	uint32_t lease, b[4 * MMT_PT];

	(void)state;
	assert_int_equal(mmt_unlease(&t, e, chain(0, 4, 0xf, 0xa, 0)), 0);
	assert_int_equal(mmt_lookup(&t, e, c, 0, mmt_tokens(0), 2 * MMT_PT), 0);
	assert_int_equal(t.rp.nr_pages, 2);
	lease = t.rp.lease;
	assert_int_equal(mmt_unlease(&t, e, chain(1000, 2, 0x3, 0x2, lease)), 0);
	memcpy(b, mmt_tokens(0), sizeof(b));
	memcpy(b + 2 * MMT_PT, mmt_tokens(1000), sizeof(b) / 2);
	fill_up();
	assert_int_equal(mmt_alloc(&t, e, c, STATE, 5, NULL), 0);
	assert_int_equal(mmt_alloc(&t, e, c, STATE, 1, NULL), 0);
	assert_int_equal(hit(0, 4), 2);			/* the colder end went */
	assert_int_equal(mmt_lookup(&t, e, c, 0, b, 4 * MMT_PT), 0);
	assert_int_equal(t.rp.nr_pages, 4);
	assert_int_equal(mmt_unlease(&t, e, t.rp.lease), 0);
	assert_int_equal(mmt_alloc(&t, e, c, STATE, 1, NULL), 0);
	assert_int_equal(mmt_lookup(&t, e, c, 0, b, 4 * MMT_PT), 0);
	assert_int_equal(t.rp.nr_pages, 2);
	assert_int_equal(mmt_unlease(&t, e, t.rp.lease), 0);
	assert_int_equal(mmt_alloc(&t, e, c, STATE, 1, NULL), 0);
	assert_int_equal(hit(0, 4), 0);
}

int main(void)
{
#define T2(f) cmocka_unit_test_setup_teardown(f, setup2, teardown)
#define T3(f) cmocka_unit_test_setup_teardown(f, setup3, teardown)
	const struct CMUnitTest tests[] = {
		T2(a_hit_needs_the_whole_last_window),
		T2(a_missing_window_page_is_filled_by_a_commit),
		T2(pages_behind_the_window_are_taken_first),
		T2(growth_after_a_drop_needs_what_it_commits),
		T3(a_state_is_good_for_its_length_only),
		T2(two_shards_fail_and_succeed_together),
		T2(a_squeeze_evicts_all_groups_alike),
		T2(a_window_extent_can_be_taken_without_the_nodes),
		T2(nodes_without_frames_go_with_their_last_child),
		T2(window_pages_go_alone_where_the_full_page_is_of_use),
		T2(pages_of_other_chains_stay_when_a_window_is_wanted),
		T3(passed_snapshots_go_first),
		T3(snapshot_where_chains_part_goes_last),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
