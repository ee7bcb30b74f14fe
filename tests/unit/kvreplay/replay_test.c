/* SPDX-License-Identifier: Apache-2.0 */
/* Replays of traces small enough to work out by hand. */
#include "kvreplay_test.h"

#include <errno.h>
#include <math.h>

#include "bound.h"
#include "replay.h"
#include "world.h"

/* With three pages and LRU, coldest first: 21 | 231 (hit 1) | 314, 2 evicted | 421 (hit 1), 3
 * evicted, 2 back | 231 (hit 1), 4 evicted, 3 back. */
static const char by_hand[] =
	RQ(0, 1024, [1, 2]) RQ(1000, 1024, [1, 3]) RQ(2000, 512, [4]) RQ(3000, 600, [1, 2])
		RQ(4000, 1024, [1, 3]);

static struct replay_config config(uint64_t pages)
{
	return (struct replay_config){ .capacity_pages = pages,
				       .page_bytes = 4096,
				       .page_tokens = 512,
				       .policy = MM_POLICY_LRU,
				       .nr_engines = 1,
				       .wait_ns = 10000000000ull,
				       .decode_rate = 10 };
}

static struct replay_result prefixes(const char *text, const struct replay_config *cfg)
{
	struct replay_result res;
	struct trace t;

	read_good(&t, text);
	assert_int_equal(replay_prefixes(&t, cfg, &res), 0);
	trace_free(&t);
	return res;
}

static void lru_by_hand(void **state)
{
	struct replay_config cfg = config(3);
	struct replay_result r = prefixes(by_hand, &cfg);

	(void)state;
	assert_int_equal(r.capacity_pages, 3);
	assert_int_equal(r.blocks, 9);
	assert_int_equal(r.hit_blocks, 3);
	assert_int_equal(r.tokens, 4 * 1024 + 600 - 512);
	assert_int_equal(r.hit_tokens, 3 * 512);
	assert_int_equal(r.evictions, 3);
	assert_int_equal(r.refaults, 2);
	assert_int_equal(r.peak_pages, 3);
	assert_true(fabs(r.mean_pages - 2.75) < 1e-9);
	assert_int_equal(r.oversized + r.refused, 0);
}

static void a_pool_that_holds_all_misses_first_uses_only(void **state)
{
	struct replay_config cfg = config(4);
	struct replay_result r = prefixes(by_hand, &cfg);

	(void)state;
	assert_int_equal(r.hit_blocks, 5);
	assert_int_equal(r.hit_tokens, 512 + 600 + 1024);	/* the last block is partial */
	assert_int_equal(r.evictions + r.refaults, 0);
	cfg.capacity_pages = 1u << 30;
	assert_int_equal(prefixes(by_hand, &cfg).hit_blocks, 5);
}

static void a_prompt_larger_than_the_pool_keeps_its_head(void **state)
{
	struct replay_config cfg = config(2);
	struct replay_result r =
		prefixes(RQ(0, 1536, [1, 2, 3]) RQ(1, 1536, [1, 2, 3]) RQ(2, 1, [9]), &cfg);

	(void)state;
	assert_int_equal(r.oversized, 2);
	assert_int_equal(r.hit_blocks, 2);
	assert_int_equal(r.peak_pages, 2);
	assert_int_equal(r.evictions, 1);
}

static const char twice_each[] = RQ(0, 1024, [1, 2]) RQ(1, 1024, [1, 2]) RQ(2, 1024, [1, 2])
	RQ(3, 1024, [1, 2]);

static void engines_share_a_cache_or_have_one_each(void **state)
{
	struct replay_config cfg = config(4);
	struct replay_result r;

	(void)state;
	cfg.nr_engines = 2;
	r = prefixes(twice_each, &cfg);
	assert_int_equal(r.hit_blocks, 6);
	assert_int_equal(r.peak_pages, 2);
	cfg.apart = true;
	r = prefixes(twice_each, &cfg);
	assert_int_equal(r.hit_blocks, 4);
	assert_int_equal(r.peak_pages, 4);
	assert_int_equal(r.capacity_pages, 4);
	cfg.capacity_pages = 3;		/* two pages and one */
	r = prefixes(twice_each, &cfg);
	assert_int_equal(r.hit_blocks, 3);
	assert_int_equal(r.oversized, 2);
}

/* An engine whose own pages are few takes room from another's cached ones. */
static void engines_evict_each_others_pages(void **state)
{
	struct replay_config cfg = config(3);
	struct replay_result r;

	(void)state;
	cfg.nr_engines = 2;
	r = prefixes(RQ(0, 1536, [1, 2, 3]) RQ(1, 1536, [4, 5, 6]) RQ(2, 1536, [4, 5, 6]), &cfg);
	assert_int_equal(r.refused, 0);
	assert_int_equal(r.hit_blocks, 3);
	assert_int_equal(r.evictions, 3);
}

static uint64_t min_hits(const char *text, uint64_t pages, uint32_t engine, uint32_t nr)
{
	struct trace t;
	uint64_t hits;

	read_good(&t, text);
	assert_int_equal(bound_min(&t, pages, engine, nr, &hits), 0);
	trace_free(&t);
	return hits;
}

static void min_by_hand(void **state)
{
	(void)state;
	assert_int_equal(min_hits(by_hand, 0, 0, 1), 0);
	assert_int_equal(min_hits(by_hand, 1, 0, 1), 3);	/* block 1 */
	assert_int_equal(min_hits(by_hand, 2, 0, 1), 4);	/* and 2, used before 3 */
	assert_int_equal(min_hits(by_hand, 3, 0, 1), 5);	/* all, for 4 is not taken in */
	assert_int_equal(min_hits(by_hand, 100, 0, 1), 5);
	assert_int_equal(min_hits(by_hand, 100, 0, 2), 1);	/* 0, 2, 4: block 1 */
	assert_int_equal(min_hits(by_hand, 100, 1, 2), 1);	/* 1 and 3: block 1 */
}

/* MIN against the best of all choices, tried one by one. */
static uint64_t best(const uint32_t *blocks, unsigned int nr, uint32_t cached, unsigned int pages)
{
	uint64_t most = 0, hits;
	uint32_t out;

	if (!nr)
		return 0;
	if (cached >> *blocks & 1)
		return 1 + best(blocks + 1, nr - 1, cached, pages);
	most = best(blocks + 1, nr - 1, cached, pages);
	cached |= 1u << *blocks;
	if ((unsigned int)__builtin_popcount(cached) <= pages) {
		hits = best(blocks + 1, nr - 1, cached, pages);
		return hits > most ? hits : most;
	}
	for (out = 0; out < 8; out++) {
		if (!(cached >> out & 1) || out == *blocks)
			continue;
		hits = best(blocks + 1, nr - 1, cached & ~(1u << out), pages);
		most = hits > most ? hits : most;
	}
	return most;
}

static void min_is_the_best_there_is(void **state)
{
	uint32_t blocks[12], seed = 1, round, i, pages;
	struct trace_request rq[12];
	struct trace t = { .requests = rq, .blocks = blocks, .nr_requests = 12, .nr_blocks = 12,
			   .nr_distinct = 5, .max_blocks = 1 };
	uint64_t hits;

	(void)state;
	for (round = 0; round < 60; round++) {
		for (i = 0; i < 12; i++) {
			seed = seed * 1664525 + 1013904223;
			blocks[i] = (seed >> 16) % 5;
			rq[i] = (struct trace_request){ .first_block = i, .nr_blocks = 1 };
		}
		pages = 1 + round % 3;
		assert_int_equal(bound_min(&t, pages, 0, 1, &hits), 0);
		assert_int_equal(hits, best(blocks, 12, 0, pages));
	}
}

#define AZURE "TIMESTAMP,ContextTokens,GeneratedTokens\n"

static struct replay_result lengths(const char *text, const struct replay_config *cfg)
{
	struct replay_result res;
	struct trace t;

	read_good(&t, text);
	assert_int_equal(replay_lengths(&t, cfg, &res), 0);
	trace_free(&t);
	return res;
}

/* The first holds two pages and a third for its answer until 1 s; the second, half a second later,
 * needs two of four: it waits for half a second and is done at 2 s. */
static const char wait_a_bit[] = AZURE "2023-11-16 18:00:00,1024,10\n2023-11-16 18:00:00.5,1000,10";

static void a_request_waits_for_anothers_end(void **state)
{
	struct replay_config cfg = config(4);
	struct replay_result r;

	(void)state;
	cfg.nr_engines = 2;
	r = lengths(wait_a_bit, &cfg);
	assert_int_equal(r.served, 2);
	assert_int_equal(r.refused + r.aborted + r.oversized, 0);
	assert_int_equal(r.waited, 1);
	assert_int_equal(r.wait_p50_ns, 500000000);
	assert_int_equal(r.wait_max_ns, 500000000);
	assert_int_equal(r.peak_pages, 3);
	assert_true(fabs(r.mean_pages - 2.5) < 1e-9);
	assert_true(fabs(r.some_share - .25) < 1e-9);
	assert_true(r.full_share == 0);
	cfg.capacity_pages = 5;
	assert_int_equal(lengths(wait_a_bit, &cfg).waited, 0);
}

static void a_wait_ends_at_its_deadline(void **state)
{
	struct replay_config cfg = config(4);
	struct replay_result r;

	(void)state;
	cfg.nr_engines = 2;
	cfg.wait_ns = 200000000;
	r = lengths(wait_a_bit, &cfg);
	assert_int_equal(r.served, 1);
	assert_int_equal(r.refused, 1);
	assert_int_equal(r.waited, 1);
	assert_int_equal(r.wait_max_ns, 200000000);
	assert_true(fabs(r.some_share - .2) < 1e-9);
	cfg.wait_ns = 0;
	r = lengths(wait_a_bit, &cfg);
	assert_int_equal(r.refused, 1);
	assert_int_equal(r.waited, 0);
}

/* Two that fill the pool and both want a page more: nobody gets on until the first gives up. */
static void full_pressure_is_when_nobody_gets_on(void **state)
{
	struct replay_config cfg = config(2);
	struct replay_result r;

	(void)state;
	cfg.nr_engines = 2;
	cfg.wait_ns = 1000000000;
	r = lengths(AZURE "2023-11-16 18:00:00,512,10\n2023-11-16 18:00:00,502,20", &cfg);
	assert_int_equal(r.aborted, 1);
	assert_int_equal(r.served, 1);
	assert_true(r.some_share >= r.full_share);
	assert_int_equal(r.peak_pages, 2);
}

static void a_request_larger_than_the_pool_is_not_asked_for(void **state)
{
	struct replay_config cfg = config(2);
	struct replay_result r;

	(void)state;
	cfg.nr_engines = 2;
	r = lengths(AZURE "2023-11-16 18:00:00,1024,1\n2023-11-16 18:00:00,0,0", &cfg);
	assert_int_equal(r.oversized, 1);
	assert_int_equal(r.refused, 1);
	assert_int_equal(r.served, 1);
	assert_int_equal(r.peak_pages, 0);
}

/* The counters the occupancy comes from say the same as a walk over mm's extents. */
static void used_pages_are_what_mm_holds(void **state)
{
	struct world_config wc = { .capacity_pages = 100, .page_bytes = 4096, .most_pages = 100,
				   .batch_pages = 50, .nr_engines = 2, .max_waiting = 4 };
	uint32_t tokens[50], i, lease;
	struct mm_request rq;
	struct mm_reply rp;
	struct mm_meminfo mi;
	struct world w;

	(void)state;
	assert_int_equal(world_open(&w, &wc), 0);
	for (i = 0; i < 20; i++) {
		for (uint32_t k = 0; k < 50; k++)
			tokens[k] = i * 100 + k;
		rq = (struct mm_request){ .op = MM_ALLOC, .alloc = { 30, w.now_ns + 1000 } };
		assert_int_equal(world_call(&w, i % 2, &rq, &rp), 0);
		rq = (struct mm_request){ .op = MM_COMMIT,
					  .commit = { .tokens = tokens, .nr_tokens = 30,
						      .pages = rp.pages, .nr_pages = 30 } };
		assert_int_equal(world_call(&w, i % 2, &rq, &rp), 0);
		lease = rp.lease;
		rq = (struct mm_request){ .op = MM_UNLEASE, .unlease = { &lease, 1 } };
		assert_int_equal(world_call(&w, i % 2, &rq, &rp), 0);
		mm_check(w.mm);
		mm_meminfo(w.mm, 0, &mi);
		assert_int_equal((mi.held_bytes + mi.cached_bytes) / 4096, world_used_pages(&w));
		world_advance(&w, i * 1000000000ull);
	}
	assert_int_equal(world_used_pages(&w), 100);
	world_close(&w);
}

/* More pages than mm has extent ids: extents of several, and a capacity in whole ones. */
static void a_huge_pool_has_larger_extents(void **state)
{
	struct world_config wc = { .capacity_pages = 2500001, .page_bytes = 4096,
				   .most_pages = 3000000, .batch_pages = 64, .nr_engines = 1,
				   .max_waiting = 1 };
	struct mm_request rq = { .op = MM_ALLOC, .alloc = { .nr_pages = 64 } };
	struct mm_reply rp;
	struct world w;

	(void)state;
	assert_int_equal(world_open(&w, &wc), 0);
	assert_int_equal(w.capacity_pages, 2500000);
	assert_int_equal(world_call(&w, 0, &rq, &rp), 0);
	assert_int_equal(world_used_pages(&w), 64);
	world_close(&w);
	wc.capacity_pages = 1ull << 62;
	assert_int_equal(world_open(&w, &wc), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lru_by_hand),
		cmocka_unit_test(a_pool_that_holds_all_misses_first_uses_only),
		cmocka_unit_test(a_prompt_larger_than_the_pool_keeps_its_head),
		cmocka_unit_test(engines_share_a_cache_or_have_one_each),
		cmocka_unit_test(engines_evict_each_others_pages),
		cmocka_unit_test(min_by_hand),
		cmocka_unit_test(min_is_the_best_there_is),
		cmocka_unit_test(a_request_waits_for_anothers_end),
		cmocka_unit_test(a_wait_ends_at_its_deadline),
		cmocka_unit_test(full_pressure_is_when_nobody_gets_on),
		cmocka_unit_test(a_request_larger_than_the_pool_is_not_asked_for),
		cmocka_unit_test(used_pages_are_what_mm_holds),
		cmocka_unit_test(a_huge_pool_has_larger_extents),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
