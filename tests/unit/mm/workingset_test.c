// SPDX-License-Identifier: Apache-2.0
/* workingset_test - shadows of evicted pages, refault distance, reuse gaps, of each tenant */
#include "mmt.h"
#include "workingset.h"

#define MS	1048576ull

static struct mmt s;
static uint32_t e, c;

static void begin(uint32_t max_shadows)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);

	cfg.max_shadows = max_shadows;
	cfg.device[0].pool_bytes = 2 * MMT_EXTENT;	/* 16 pages */
	mmt_init(&s, &cfg);
	assert_int_equal(mmt_attach(&s, 100, &e, NULL), 0);
	assert_int_equal(mmt_open(&s, e, &d, &c), 0);
}

static struct mm_workingset_info info(void)
{
	struct mm_workingset_info ws;

	assert_int_equal(mm_workingset(s.mm, 100, &ws), 0);
	return ws;
}

static void use(uint32_t from, uint32_t nr)
{
	assert_int_equal(mmt_unlease(&s, e, mmt_chain(&s, e, c, from, nr)), 0);
}

static void a_refault_has_the_distance_of_the_evictions_since(void **state)
{
	struct mm_workingset_info ws;

	(void)state;
	begin(64);
	s.now += 5000 * MS;	/* so a sum is not a difference */
	use(0, 4);
	s.now += 1000 * MS;
	use(1000, 12);
	use(2000, 4);		/* evicts the first chain */
	ws = info();
	assert_int_equal(ws.evictions, 4);
	assert_int_equal(ws.refaults, 0);
	s.now += 24 * MS;
	use(0, 4);		/* 4 more went for it */
	ws = info();
	assert_int_equal(ws.evictions, 8);
	assert_int_equal(ws.refaults, 4);
	assert_int_equal(mm_vmstat(s.mm)->refaults, 4);
	assert_int_equal(ws.distance[4], 1);	/* head went last: 5; its descendants 6, 7, 8 */
	assert_int_equal(ws.distance[3], 3);
	assert_int_equal(ws.gap_ms[11], 4);	/* 1024 ms */
	mmt_fini(&s);
}

static void a_hit_is_a_gap_and_no_refault(void **state)
{
	struct mm_workingset_info ws;

	(void)state;
	begin(64);
	use(0, 4);
	s.now += 100 * MS;
	assert_int_equal(mmt_lookup(&s, e, c, 0, mmt_tokens(0), 4 * MMT_PT), 0);
	assert_int_equal(mmt_unlease(&s, e, s.rp.lease), 0);
	ws = info();
	assert_int_equal(ws.refaults, 0);
	assert_int_equal(ws.gap_ms[7], 4);
	mmt_fini(&s);
}

static void shadows_are_bounded_and_the_oldest_are_forgotten(void **state)
{
	(void)state;
	for (uint32_t max = 0; max < 30; max++) {
		uint32_t known = max < 16 ? 0 : max > 24 ? 8 : max - 16;

		begin(max);
		use(0, 8);
		use(1000, 8);
		for (uint32_t i = 0; i < 4; i++)
			use(2000 + 200 * i, 8);
		use(2000, 8);	/* its head is the 17th last to go, its tail the 24th */
		assert_int_equal(info().evictions, 40);
		assert_int_equal(info().refaults, known);
		use(0, 8);	/* the 40th to 33rd last */
		assert_int_equal(info().refaults, known);
		mmt_fini(&s);
	}
}

/* What was used before it was evicted has been used once more when it comes back. */
static void uses_outlive_an_eviction(void **state)
{
	static const uint8_t uses[] = { 0, 1, 29, 30, 31 };

	(void)state;
	for (uint32_t i = 0; i < sizeof(uses); i++) {
		uint32_t n;

		begin(64);
		use(0, 1);
		node_at(s.mm, pool_next(s.mm, &s.mm->nodes, 0))->hits = uses[i] & 31;
		use(1000, 16);
		use(0, 1);
		assert_int_equal(info().refaults, 1);
		n = pool_next(s.mm, &s.mm->nodes, 0);
		while (node_at(s.mm, n)->path != workingset_path(s.mm, n) ||
		       memcmp(node_tokens(s.mm, n), mmt_tokens(0), MMT_PT * 4) ||
		       node_at(s.mm, n)->parent)
			n = pool_next(s.mm, &s.mm->nodes, n);
		assert_int_equal(node_at(s.mm, n)->hits, uses[i] < 31 ? uses[i] + 1 : 31);
		mmt_fini(&s);
	}
}

/* The same tokens behind another parent are another page. */
static void a_path_is_more_than_its_last_page(void **state)
{
	uint64_t ids[2];
	uint32_t tokens[2 * MMT_PT];

	(void)state;
	begin(64);
	use(0, 2);
	use(1000, 14);
	use(2000, 4);
	memcpy(tokens, mmt_tokens(3000), MMT_PT * 4);
	memcpy(tokens + MMT_PT, mmt_tokens(MMT_PT), MMT_PT * 4);
	assert_int_equal(mmt_alloc(&s, e, c, 0, 2, ids), 0);
	assert_int_equal(mmt_commit(&s, e, c, 0, tokens, 2 * MMT_PT, ids), 0);
	assert_int_equal(info().refaults, 0);
	assert_int_equal(mmt_unlease(&s, e, s.rp.lease), 0);
	use(0, 2);
	assert_int_equal(info().refaults, 2);
	mmt_fini(&s);
}

static void use_keyed(uint32_t from, uint8_t digest)
{
	struct mm_page_key key = { .page = 0, .digest = { [MM_KEY_BYTES - 1] = digest } };
	uint64_t ids[2];

	assert_int_equal(mmt_alloc(&s, e, c, 0, 2, ids), 0);
	assert_int_equal(mmt_commit_keys(&s, e, c, 0, 0, mmt_tokens(from), 2 * MMT_PT, ids, 2, &key,
					 1), 0);
	assert_int_equal(mmt_unlease(&s, e, s.rp.lease), 0);
}

/* The same tokens with another picture are other content. */
static void a_path_is_its_keys_too(void **state)
{
	(void)state;
	begin(64);
	use_keyed(0, 1);
	use(1000, 14);
	use(2000, 4);
	use_keyed(0, 2);
	assert_int_equal(info().refaults, 0);
	use_keyed(0, 1);
	assert_int_equal(info().refaults, 2);
	mmt_fini(&s);
}

static void an_adopted_tail_is_not_evicted(void **state)
{
	uint64_t id;

	(void)state;
	begin(64);
	assert_int_equal(mmt_alloc(&s, e, c, 0, 1, &id), 0);
	assert_int_equal(mmt_commit(&s, e, c, 0, mmt_tokens(0), 5, &id), 0);
	assert_int_equal(mmt_unlease(&s, e, s.rp.lease), 0);
	assert_int_equal(mmt_lookup(&s, e, c, MM_LOOKUP_ADOPT, mmt_tokens(0), 9), 0);
	assert_true(s.rp.tail_adopted);
	assert_int_equal(info().evictions, 0);
	mmt_fini(&s);
}

static void an_unknown_tenant_has_none(void **state)
{
	struct mm_workingset_info ws;

	(void)state;
	begin(0);
	assert_int_equal(mm_workingset(s.mm, 101, &ws), -ENOENT);
	mmt_fini(&s);
}

static void metadata_stays_within_its_bound(void **state)
{
	struct mm_config small = mmt_config(), big = small;
	uint32_t more = 1u << 20;

	(void)state;
	assert_int_equal(sizeof(struct shadow), 16);
	assert_int_equal(sizeof(struct node), 96);
	big.max_frames += more;
	big.max_shadows += more;
	assert_true(mm_footprint(&big) - mm_footprint(&small) <= 64ull * more);
	small = big;
	big.max_nodes += more;
	assert_true(mm_footprint(&big) - mm_footprint(&small) <= 96ull * more + 64);
	big.max_shadows = UINT32_MAX;
	assert_int_equal(mm_footprint(&big), 0);
	big.max_shadows = 0;
	big.policy = MM_NR_POLICIES;
	assert_int_equal(mm_footprint(&big), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_refault_has_the_distance_of_the_evictions_since),
		cmocka_unit_test(a_hit_is_a_gap_and_no_refault),
		cmocka_unit_test(shadows_are_bounded_and_the_oldest_are_forgotten),
		cmocka_unit_test(uses_outlive_an_eviction),
		cmocka_unit_test(a_path_is_more_than_its_last_page),
		cmocka_unit_test(a_path_is_its_keys_too),
		cmocka_unit_test(an_adopted_tail_is_not_evicted),
		cmocka_unit_test(an_unknown_tenant_has_none),
		cmocka_unit_test(metadata_stays_within_its_bound),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
