// SPDX-License-Identifier: Apache-2.0
/* Corners that a mutation run found untested. */
#include "two_engines.h"

static int setup(void **state)
{
	(void)state;
	return two_engines(1000, 2000);
}

static void a_raised_reservation_takes_no_more_than_the_difference(void **state)
{
	uint32_t lease = mmt_chain(&t, e1, c1, 0, 32);

	(void)state;
	assert_int_equal(mmt_unlease(&t, e1, lease), 0);
	assert_int_equal(mmt_device_extents(&t, 0), 4);
	assert_int_equal(mmt_reserve(&t, e2, 0, 3 * MMT_EXTENT), 0);
	assert_int_equal(mmt_reserve(&t, e2, 0, 5 * MMT_EXTENT), -EAGAIN);
	assert_int_equal(mmt_device_extents(&t, 0), 3);
	assert_int_equal(mmt_reserve(&t, e2, 0, 5 * MMT_EXTENT), 0);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 8);
}

static void the_fenced_are_not_asked_for_anything(void **state)
{
	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 40, NULL), 0);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 24, NULL), 0);
	assert_int_equal(mmt_simple(&t, MM_FENCE, e1, 0), 0);
	mmt_fetch(&t);
	t.nr_notify = 0;
	(void)mmt_alloc_until(&t, e2, c2, 0, 8, t.now + 500);
	assert_int_equal(t.nr_notify, 0);
}

static void who_waits_presses_once(void **state)
{
	uint64_t a[64];

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 64, a), 0);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 8, t.now + 5000), MMT_LATER);
	assert_int_equal(t.nr_notify, 1);
	assert_int_equal(mmt_simple(&t, MM_EVENTS, 0, m1), 0);
	assert_int_equal(t.events[0].seq, 1);
	assert_int_equal(mmt_free(&t, e1, a, 1), 0);
	mmt_tick(&t, t.now + 10);
	mmt_tick(&t, t.now + 10);
	assert_int_equal(mmt_simple(&t, MM_EVENTS, 0, m1), 0);
	for (uint32_t i = 0; i < t.rp.nr_events; i++)
		if (t.events[i].kind == MM_EVENT_PRESSURE)
			assert_int_equal(t.events[i].seq, 1);
}

/* Pages of 64 tokens are compared in strides. */
static void a_difference_within_a_long_page_is_seen(void **state)
{
	uint32_t tokens[128] = { 0 }, c, lease;
	struct mm_cache_desc d = mmt_desc(8);
	uint64_t ids[2];

	(void)state;
	d.page_tokens = 64;
	assert_int_equal(mmt_open(&t, e1, &d, &c), 0);
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 2, ids), 0);
	assert_int_equal(mmt_commit_keys(&t, e1, c, 0, 0, tokens, 128, ids, 2, NULL, 0), 0);
	for (uint32_t differs = 65; differs < 128; differs++) {
		tokens[differs] = 5;
		assert_int_equal(mmt_lookup(&t, e1, c, 0, tokens, 128), 0);
		assert_int_equal(t.rp.nr_pages, 1);
		assert_int_equal(t.rp.tail_tokens, differs - 64);
		lease = t.rp.lease;
		assert_int_equal(mmt_unlease(&t, e1, t.rp.tail_lease), 0);
		assert_int_equal(mmt_unlease(&t, e1, lease), 0);
		tokens[differs] = 0;
	}
	tokens[84] = 7;		/* now the cached one differs */
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 1, ids), 0);
	assert_int_equal(mmt_open(&t, e2, &d, &c), 0);
	assert_int_equal(mmt_alloc(&t, e2, c, 0, 2, ids), 0);
	assert_int_equal(mmt_commit_keys(&t, e2, c, 0, 0, tokens, 128, ids, 2, NULL, 0), 0);
	tokens[84] = 0;
	assert_int_equal(mmt_lookup(&t, e2, c, 0, tokens, 128), 0);
	assert_true(t.rp.nr_pages == 1 && t.rp.tail_tokens == 20);
}

static void what_finds_nothing_needs_no_lease(void **state)
{
	uint32_t lease = mmt_chain(&t, e1, c1, 0, 1);

	(void)state;
	while (!mmt_lease(&t, MM_LEASE_DUP, e1, 0, lease, 0))
		;
	assert_int_equal(t.rp.reason, MM_TABLE_FULL);
	assert_int_equal(mmt_lookup(&t, e1, c1, 0, mmt_tokens(2000), 40), 0);
	assert_true(!t.rp.nr_pages && !t.rp.tail_tokens && !t.rp.lease);
	mmt_refused(&t, mmt_lookup(&t, e1, c1, 0, mmt_tokens(0), 16), -ENOMEM, MM_TABLE_FULL);
}

static void a_table_of_one_cache_is_cleared_for_a_newcomer(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1), other = mmt_desc(2);
	struct mmt s;
	uint32_t e, m, c, tries = 0;

	(void)state;
	cfg.max_caches = 1;
	mmt_init(&s, &cfg);
	assert_int_equal(mmt_attach(&s, 1, &e, &m), 0);
	assert_int_equal(mmt_open(&s, e, &d, &c), 0);
	mmt_chain(&s, e, c, 0, 2);
	assert_int_equal(mmt_simple(&s, MM_MEMBER_GONE, 0, m), 0);
	assert_int_equal(mmt_attach(&s, 1, &e, &m), 0);
	while (mmt_open(&s, e, &other, &c)) {
		assert_int_equal(s.rp.reason, MM_TABLE_FULL);
		assert_true(++tries < 4);
	}
	assert_int_equal(mm_vmstat(s.mm)->pages_evict, 2);
	mmt_fini(&s);
}

static void keys_of_one_commit_are_counted_once_each(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);
	struct mm_page_key key[4] = { { 0 } };
	struct mmt s;
	uint64_t ids[4];
	uint32_t e, c;

	(void)state;
	cfg.max_keys = 5;	/* of which one engine may have 3 */
	mmt_init(&s, &cfg);
	assert_int_equal(mmt_attach(&s, 1, &e, NULL), 0);
	assert_int_equal(mmt_open(&s, e, &d, &c), 0);
	assert_int_equal(mmt_alloc(&s, e, c, 0, 4, ids), 0);
	for (uint32_t i = 0; i < 4; i++) {
		key[i].page = i;
		key[i].digest[7] = (uint8_t)(i + 1);
	}
	mmt_refused(&s, mmt_commit_keys(&s, e, c, 0, 0, mmt_tokens(0), 64, ids, 4, key, 4),
		    -ENOMEM, MM_TABLE_FULL);
	assert_int_equal(s.rp.a, offsetof(struct mm_config, max_keys));
	assert_int_equal(s.rp.b, 3);
	memcpy(key[3].digest, key[1].digest, MM_KEY_BYTES);
	assert_int_equal(mmt_commit_keys(&s, e, c, 0, 0, mmt_tokens(0), 64, ids, 4, key, 4), 0);
	mmt_fini(&s);
}

static void a_page_is_committed_in_its_own_group_and_cache(void **state)
{
	struct mm_cache_desc d = mmt_desc(6);
	uint64_t own[2], other, ids[2];
	uint32_t c;

	(void)state;
	d.nr_groups = 2;
	d.group[1].kind = MM_GROUP_FULL;
	d.shard[0].page_bytes[1] = MMT_PAGE;
	assert_int_equal(mmt_open(&t, e1, &d, &c), 0);
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 1, &own[0]), 0);
	assert_int_equal(mmt_alloc(&t, e1, c, 1, 1, &own[1]), 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 1, &other), 0);
	ids[0] = own[1];
	ids[1] = own[0];
	mmt_refused(&t, mmt_commit_keys(&t, e1, c, 0, 0, mmt_tokens(0), 16, ids, 1, NULL, 0),
		    -EINVAL, MM_BAD_ARGUMENT);
	ids[0] = other;
	ids[1] = own[1];
	mmt_refused(&t, mmt_commit_keys(&t, e1, c, 0, 0, mmt_tokens(0), 16, ids, 1, NULL, 0),
		    -EINVAL, MM_BAD_ARGUMENT);
	assert_int_equal(mmt_commit_keys(&t, e1, c, 0, 0, mmt_tokens(0), 16, own, 1, NULL, 0), 0);
}

static void an_import_names_cache_and_engine(void **state)
{
	uint64_t id;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 1, &id), 0);
	assert_int_equal(mmt_map(&t, MM_IMPORT, m2, mm_page_extent(id), 0), 0);
	assert_true(t.rp.cache == c2 && t.rp.engine == e2 && t.rp.writable);
}

static void parks_of_one_place_end_one_by_one(void **state)
{
	uint32_t lease = mmt_chain(&t, e1, c1, 0, 2), park[5];
	static const uint8_t order[5] = { 2, 0, 4, 1, 3 };

	(void)state;
	for (uint32_t i = 0; i < 5; i++) {
		assert_int_equal(mmt_lease(&t, MM_LEASE_DUP, e1, 0, lease, 0), 0);
		assert_int_equal(mmt_park(&t, MM_PARK, e1, t.rp.lease, 0, 0), 0);
		park[i] = t.rp.park;
	}
	for (uint32_t i = 0; i < 5; i++) {
		if (i == 3)
			assert_int_equal(mmt_park(&t, MM_UNPARK, e1, 0, park[order[i]], 0), 0);
		else
			assert_int_equal(mmt_park(&t, MM_RESUME, e1, 0, park[order[i]], 0), 0);
		assert_true(i == 3 || t.rp.nr_pages == 2);
	}
}

static void a_wait_for_one_device_does_not_bar_another(void **state)
{
	struct mm_cache_desc d = mmt_desc(3);
	uint32_t c;

	(void)state;
	d.shard[0].device = 1;
	assert_int_equal(mmt_open(&t, e2, &d, &c), 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 64, NULL), 0);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 8, t.now + 5000), MMT_LATER);
	assert_int_equal(mmt_alloc(&t, e2, c, 0, 8, NULL), 0);
	assert_int_equal(mmt_alloc_until(&t, e2, c, 0, 8, t.now + 5000), 0);
}

/* Slots that come back are counted, neither twice nor as a loss. */
static void slots_on_their_way_back_are_not_taken_again(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);
	uint64_t ids[2 * 8];

	(void)state;
	cfg.max_extents = 6;
	mmt_init(&t, &cfg);
	assert_int_equal(mmt_attach(&t, 1000, &e1, &m1), 0);
	assert_int_equal(mmt_attach(&t, 2000, &e2, &m2), 0);
	assert_int_equal(mmt_open(&t, e1, &d, &c1), 0);
	assert_int_equal(mmt_open(&t, e2, &d, &c2), 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 16, ids), 0);
	assert_int_equal(mmt_unlease(&t, e1, mmt_chain(&t, e1, c1, 0, 24)), 0);
	t.hold = true;
	assert_int_equal(mmt_free(&t, e1, ids, 16), 0);		/* keeps one, empty */
	assert_int_equal(t.nr_fx, 1);
	/* Free are 1, coming 1, empty 1: of three only what is missing is taken. */
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 24, t.now + 5000), MMT_LATER);
	assert_int_equal(mm_vmstat(t.mm)->reclaim_direct, 1);
	t.hold = false;
	mmt_run(&t);
	assert_int_equal(t.late.result, 0);
	assert_int_equal(t.late.nr_pages, 24);
	mmt_fini(&t);
}

/* Of two pages the second one finds no room: the first one's key goes with it. */
static void a_commit_that_fails_half_way_leaves_no_key(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1), big = mmt_desc(2);
	struct mm_page_key key = { .page = 0, .digest = { 1 } };
	uint32_t e, c, cb, lease[8];
	struct mmt s;
	uint64_t id[2];

	(void)state;
	cfg.max_tokens = 128;
	big.page_tokens = 32;
	mmt_init(&s, &cfg);
	assert_int_equal(mmt_attach(&s, 1, &e, NULL), 0);
	assert_int_equal(mmt_open(&s, e, &d, &c), 0);
	assert_int_equal(mmt_open(&s, e, &big, &cb), 0);
	for (uint32_t i = 0; i < 8; i++)
		lease[i] = mmt_chain(&s, e, c, i * 100, 1);
	for (uint32_t i = 0; i < 5; i++)	/* a pair and two single ones, whichever they are */
		if (i != 2)
			assert_int_equal(mmt_unlease(&s, e, lease[i == 4 ? 5 : i]), 0);
	assert_int_equal(mmt_alloc(&s, e, cb, 0, 2, id), 0);
	assert_int_equal(mmt_commit_keys(&s, e, cb, 0, 0, mmt_tokens(0), 64, id, 2, &key, 1),
			 -ENOMEM);
	assert_int_equal(s.rp.a, offsetof(struct mm_config, max_tokens));
	assert_int_equal(s.mm->keys.nr_used, 0);
	mm_check(s.mm);
	assert_int_equal(mmt_commit_keys(&s, e, cb, 0, 0, mmt_tokens(0), 32, id, 1, &key, 1), 0);
	assert_int_equal(s.mm->keys.nr_used, 1);
	mmt_fini(&s);
}

static void a_key_belongs_to_its_page_of_the_whole_chain(void **state)
{
	struct mm_page_key key = { .page = 2, .digest = { 7 } };
	uint32_t lease = mmt_chain(&t, e1, c1, 0, 1);
	uint64_t ids[2];

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 2, ids), 0);
	assert_int_equal(mmt_commit_keys(&t, e1, c1, 0, lease, mmt_tokens(MMT_PT), 2 * MMT_PT, ids,
					 2, &key, 1), 0);
	assert_int_equal(mmt_lookup(&t, e1, c1, 0, mmt_tokens(0), 3 * MMT_PT), 0);
	assert_int_equal(t.rp.nr_pages, 2);
	assert_int_equal(mmt_lookup_keys(&t, e1, c1, 0, mmt_tokens(0), 3 * MMT_PT, &key, 1), 0);
	assert_int_equal(t.rp.nr_pages, 3);
}

/* Pages that are cached already need no new node. */
static void a_commit_of_what_is_cached_evicts_nothing(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);
	uint64_t ids[3];

	(void)state;
	cfg.max_nodes = 6;
	mmt_fini(&t);
	mmt_init(&t, &cfg);
	assert_int_equal(mmt_attach(&t, 1, &e1, &m1), 0);
	assert_int_equal(mmt_open(&t, e1, &d, &c1), 0);
	assert_int_equal(mmt_unlease(&t, e1, mmt_chain(&t, e1, c1, 0, 2)), 0);
	assert_int_equal(mmt_unlease(&t, e1, mmt_chain(&t, e1, c1, 500, 3)), 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 3, ids), 0);
	assert_int_equal(mmt_commit(&t, e1, c1, 0, mmt_tokens(0), 3 * MMT_PT, ids), 0);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 0);
	assert_int_equal(t.mm->nodes.nr_used, 6);
}

/* Three engines, one cache of a window and a full group; what the first wrote is the others' by
 * halves. */
static void a_page_whose_window_goes_is_evicted_where_the_rest_lies(void **state)
{
	struct mm_cache_desc d = mmt_desc(3);
	uint32_t e3, m3, c3, c;
	uint64_t ids[16];

	(void)state;
	d.nr_groups = 2;
	d.group[0] = (struct mm_group_desc){ MM_GROUP_WINDOW, 2 * MMT_PT, 0 };
	d.group[1].kind = MM_GROUP_FULL;
	d.shard[0].page_bytes[1] = MMT_PAGE;
	mmt_fini(&t);
	{
		struct mm_config cfg = mmt_config();

		cfg.device[0].pool_bytes = 2 * MMT_EXTENT;
		mmt_init(&t, &cfg);
	}
	assert_int_equal(mmt_attach(&t, 1, &e1, &m1), 0);
	assert_int_equal(mmt_attach(&t, 1, &e2, &m2), 0);
	assert_int_equal(mmt_attach(&t, 1, &e3, &m3), 0);
	assert_int_equal(mmt_open(&t, e1, &d, &c), 0);
	assert_int_equal(mmt_open(&t, e2, &d, &c2), 0);
	assert_int_equal(mmt_open(&t, e3, &d, &c3), 0);
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 7, ids), 0);
	assert_int_equal(mmt_alloc(&t, e1, c, 1, 7, ids + 7), 0);
	assert_int_equal(mmt_commit_keys(&t, e1, c, 0, 0, mmt_tokens(0), 7 * MMT_PT, ids, 7, NULL,
					 0), 0);
	assert_int_equal(mmt_unlease(&t, e1, t.rp.lease), 0);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m1), 0);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 1, ids), 0);
	assert_int_equal(mmt_alloc(&t, e3, c3, 1, 1, ids + 1), 0);
	assert_int_equal(mm_vmstat(t.mm)->extents_adopt, 2);
	/* Windows go, the last one of the chain with its full page. */
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 6, ids), 0);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 7);
	assert_int_equal(mmt_alloc(&t, e3, c3, 1, 7, ids), 0);
	mm_check(t.mm);
	assert_int_equal(mmt_lookup(&t, e3, c3, 0, mmt_tokens(0), 7 * MMT_PT), 0);
	assert_int_equal(t.rp.nr_pages, 0);
}

/* Nothing is left of pages whose only group was taken frame by frame. */
static void pages_of_nothing_but_a_window_leave_no_node(void **state)
{
	struct mm_limits none = { .high_bytes = MM_NO_LIMIT };
	struct mm_cache_desc d = mmt_desc(3);
	struct mm_cache_info info;
	uint32_t c, id = 0;

	(void)state;
	d.group[0] = (struct mm_group_desc){ MM_GROUP_WINDOW, 2 * MMT_PT, 0 };
	assert_int_equal(mmt_open(&t, e1, &d, &c), 0);
	assert_int_equal(mmt_unlease(&t, e1, mmt_chain(&t, e1, c, 0, 16)), 0);
	assert_int_equal(mmt_limits(&t, 1000, 0, none, MM_OOM_NONE), 0);
	for (uint32_t i = 0; i < 100 && mm_next_deadline(t.mm) <= t.now; i++) {
		mmt_tick(&t, t.now);
		mmt_run(&t);
	}
	assert_int_equal(mmt_device_extents(&t, 0), 0);
	while (mm_next_cache(t.mm, &id, &info))
		assert_int_equal(info.nodes, 0);
}

static uint32_t height(uint32_t n)
{
	uint32_t left, right;

	if (!n)
		return 0;
	left = height(node_at(t.mm, n)->left);
	right = height(node_at(t.mm, n)->right);
	return 1 + (left > right ? left : right);
}

/* Pages with the same beginning, coming in order, are found in few steps all the same. */
static void siblings_that_come_in_order_make_no_list(void **state)
{
	uint32_t tokens[MMT_PT] = { 0 };
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);
	uint64_t ids[32];

	(void)state;
	cfg.device[0].pool_bytes = 64 * MMT_EXTENT;
	mmt_fini(&t);
	mmt_init(&t, &cfg);
	assert_int_equal(mmt_attach(&t, 1, &e1, &m1), 0);
	assert_int_equal(mmt_open(&t, e1, &d, &c1), 0);
	for (uint32_t i = 0; i < 256; i++) {
		if (i % 32 == 0)
			assert_int_equal(mmt_alloc(&t, e1, c1, 0, 32, ids), 0);
		tokens[0] = i + 1;
		assert_int_equal(mmt_commit(&t, e1, c1, 0, tokens, MMT_PT, &ids[i % 32]), 0);
		assert_int_equal(mmt_unlease(&t, e1, t.rp.lease), 0);
	}
	assert_true(height(cache_at(t.mm, 1)->children) <= 32);
}

/* What lies on another device is no help. */
static void a_device_is_filled_by_its_own_extents(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1), other = mmt_desc(2);

	(void)state;
	other.shard[0].device = 1;
	mmt_fini(&t);
	cfg.answer_ns = 1000;
	cfg.device[0].wmark_low_bytes = 2 * MMT_EXTENT;
	cfg.device[0].wmark_high_bytes = 3 * MMT_EXTENT;
	mmt_init(&t, &cfg);
	assert_int_equal(mmt_attach(&t, 1, &e1, &m1), 0);
	assert_int_equal(mmt_open(&t, e1, &d, &c1), 0);
	assert_int_equal(mmt_open(&t, e1, &other, &c2), 0);
	assert_int_equal(mmt_unlease(&t, e1, mmt_chain(&t, e1, c2, 0, 16)), 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 48, NULL), 0);
	assert_int_equal(mmt_unlease(&t, e1, mmt_chain(&t, e1, c1, 0, 8)), 0);
	for (uint32_t i = 0; i < 100 && mm_next_deadline(t.mm) <= t.now; i++) {
		mmt_tick(&t, t.now);
		mmt_run(&t);
	}
	assert_int_equal(mmt_device_extents(&t, 0), 6);
	assert_int_equal(mmt_device_extents(&t, 1), 2);
}

/* The only key there may be is that of the chain it is committed to again. */
static void keys_of_pages_that_are_there_need_no_room(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);
	struct mm_page_key key = { .page = 0, .digest = { 1 } };
	uint32_t tokens[2 * MMT_PT] = { 0 }, e, c;
	uint64_t ids[2];
	struct mmt s;

	(void)state;
	cfg.max_keys = 1;
	mmt_init(&s, &cfg);
	assert_int_equal(mmt_attach(&s, 7, &e, NULL), 0);
	assert_int_equal(mmt_open(&s, e, &d, &c), 0);
	assert_int_equal(mmt_alloc(&s, e, c, 0, 1, ids), 0);
	assert_int_equal(mmt_commit_keys(&s, e, c, 0, 0, tokens, MMT_PT, ids, 1, &key, 1), 0);
	assert_int_equal(mmt_unlease(&s, e, s.rp.lease), 0);
	assert_int_equal(mmt_alloc(&s, e, c, 0, 2, ids), 0);
	assert_int_equal(mmt_commit_keys(&s, e, c, 0, 0, tokens, 2 * MMT_PT, ids, 2, &key, 1), 0);
	assert_true(s.pages[0] != ids[0] && s.pages[1] == ids[1]);
	mmt_fini(&s);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(a_raised_reservation_takes_no_more_than_the_difference),
		T(the_fenced_are_not_asked_for_anything),
		T(who_waits_presses_once),
		T(a_difference_within_a_long_page_is_seen),
		T(what_finds_nothing_needs_no_lease),
		cmocka_unit_test(a_table_of_one_cache_is_cleared_for_a_newcomer),
		cmocka_unit_test(keys_of_pages_that_are_there_need_no_room),
		cmocka_unit_test(keys_of_one_commit_are_counted_once_each),
		T(a_page_is_committed_in_its_own_group_and_cache),
		T(an_import_names_cache_and_engine),
		T(parks_of_one_place_end_one_by_one),
		T(a_wait_for_one_device_does_not_bar_another),
		cmocka_unit_test(slots_on_their_way_back_are_not_taken_again),
		cmocka_unit_test(a_commit_that_fails_half_way_leaves_no_key),
		T(a_key_belongs_to_its_page_of_the_whole_chain),
		T(a_commit_of_what_is_cached_evicts_nothing),
		T(a_page_whose_window_goes_is_evicted_where_the_rest_lies),
		T(pages_of_nothing_but_a_window_leave_no_node),
		T(siblings_that_come_in_order_make_no_list),
		T(a_device_is_filled_by_its_own_extents),
	};
#undef T

	return cmocka_run_group_tests(tests, NULL, NULL);
}
