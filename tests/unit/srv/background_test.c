// SPDX-License-Identifier: Apache-2.0
/* background_test - pools as exec_default_config makes them: somebody fills one with cached pages,
 * and others find room in it that background reclaim has made beforehand */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "srv/exec.h"

#define MIB		(1ull << 20)
#define PAGE		(64ull << 10)
#define TOKENS		16u
#define BATCH		16u	/* half a smallest extent */
#define MS		1000000ull

struct pool {
	struct mm *mm;
	void *mem;
	struct mm_config cfg;
	uint64_t now_ns, cookie;
	uint64_t ids[BATCH];
	struct mm_reply rp;
	bool answered;
	uint32_t from;		/* tokens no chain has had */
};

static void run(struct pool *p)
{
	struct mm_effect fx;
	struct mm_reply rp;
	bool any = true;

	while (any) {
		for (any = false; mm_next_effect(p->mm, &fx); any = true)
			if (fx.kind != MM_EFFECT_NOTIFY && fx.kind != MM_EFFECT_KILL)
				assert_int_equal(mm_complete(p->mm, fx.id, 0, p->now_ns), 0);
		for (; mm_next_reply(p->mm, &rp); any = true) {
			if (rp.cookie != p->cookie)
				continue;
			p->answered = true;
			p->rp = rp;
			if (rp.op == MM_ALLOC && !rp.result)
				memcpy(p->ids, rp.pages, rp.nr_pages * sizeof(*p->ids));
		}
	}
}

/* Answered without time passing, so nothing is reclaimed in the background meanwhile. */
static int ask(struct pool *p, struct mm_request *rq)
{
	rq->cookie = ++p->cookie;
	p->answered = false;
	assert_int_equal(mm_submit(p->mm, rq, p->now_ns), 0);
	run(p);
	assert_true(p->answered);
	return p->rp.result;
}

/* What is due, until nothing is. */
static void background(struct pool *p)
{
	for (uint32_t i = 0; i < 10000 && mm_next_deadline(p->mm) <= p->now_ns; i++) {
		mm_tick(p->mm, p->now_ns, 64);
		run(p);
	}
	assert_true(mm_next_deadline(p->mm) > p->now_ns);
}

static void make(struct pool *p, uint64_t bytes, uint64_t extent_bytes)
{
	size_t len;

	memset(p, 0, sizeof(*p));
	exec_default_config(&p->cfg, 1, &bytes, extent_bytes);
	len = (mm_footprint(&p->cfg) + 63) / 64 * 64;
	p->mem = aligned_alloc(64, len);
	assert_non_null(p->mem);
	assert_int_equal(mm_init(&p->mm, p->mem, len, &p->cfg), 0);
}

static void attach(struct pool *p, uint32_t tenant, uint32_t *engine, uint32_t *cache)
{
	struct mm_cache_desc d = {
		.model_key = { 1 }, .layout_key = { 1 }, .page_tokens = TOKENS, .nr_groups = 1,
		.nr_shards = 1, .group[0] = { MM_GROUP_FULL, 0, 0 },
		.shard[0].page_bytes[0] = PAGE,
	};
	struct mm_request rq = { .op = MM_ENGINE_ATTACH, .attach = { tenant } };

	assert_int_equal(ask(p, &rq), 0);
	*engine = p->rp.engine;
	rq = (struct mm_request){ .op = MM_CACHE_OPEN, .engine = *engine, .open = { &d, 0 } };
	assert_int_equal(ask(p, &rq), 0);
	*cache = p->rp.cache;
}

static int alloc(struct pool *p, uint32_t engine, uint32_t cache)
{
	struct mm_request rq = { .op = MM_ALLOC, .engine = engine, .cache = cache,
				 .alloc = { BATCH, 0 } };

	p->now_ns += MS;
	return ask(p, &rq);
}

/* A batch of new cached pages nobody leases. */
static void cached(struct pool *p, uint32_t engine, uint32_t cache)
{
	uint32_t tokens[BATCH * TOKENS];
	struct mm_request rq = { .op = MM_COMMIT, .engine = engine, .cache = cache };

	assert_int_equal(alloc(p, engine, cache), 0);
	for (uint32_t i = 0; i < BATCH * TOKENS; i++)
		tokens[i] = p->from++;
	rq.commit.tokens = tokens;
	rq.commit.nr_tokens = BATCH * TOKENS;
	rq.commit.pages = p->ids;
	rq.commit.nr_pages = BATCH;
	assert_int_equal(ask(p, &rq), 0);
	rq = (struct mm_request){ .op = MM_UNLEASE, .engine = engine,
				  .unlease = { &p->rp.lease, 1 } };
	assert_int_equal(ask(p, &rq), 0);
}

static uint64_t free_bytes(const struct pool *p)
{
	struct mm_meminfo mi;

	mm_meminfo(p->mm, 0, &mi);
	return mi.free_bytes;
}

static uint64_t low(const struct pool *p)
{
	return p->cfg.device[0].wmark_low_bytes;
}

/* Fills the pool twice over. */
static void fill(struct pool *p, uint32_t engine, uint32_t cache)
{
	for (uint64_t b = 0; b < 2 * p->cfg.device[0].pool_bytes; b += BATCH * PAGE) {
		cached(p, engine, cache);
		background(p);
		assert_true(free_bytes(p) >= low(p));
	}
}

static void another_finds_room_that_background_reclaim_made(void **state)
{
	static const uint64_t pool[] = { 32 * MIB, 64 * MIB, 128 * MIB, 512 * MIB };

	(void)state;
	for (size_t i = 0; i < sizeof(pool) / sizeof(pool[0]); i++) {
		uint32_t e1, c1, e2, c2;
		struct pool p;

		make(&p, pool[i], 0);
		assert_true(low(&p) >= p.cfg.device[0].extent_bytes);
		attach(&p, 1, &e1, &c1);
		attach(&p, 2, &e2, &c2);
		fill(&p, e1, c1);
		assert_int_equal(mm_vmstat(p.mm)->reclaim_background, 0);
		/* None of them waits, or takes from the first itself; half the pool is theirs. */
		for (uint64_t b = 0; b < pool[i] / 2; b += BATCH * PAGE) {
			assert_int_equal(alloc(&p, e2, c2), 0);
			background(&p);
			assert_true(free_bytes(&p) >= low(&p));
		}
		assert_int_equal(mm_vmstat(p.mm)->reclaim_direct, 0);
		assert_int_equal(mm_vmstat(p.mm)->alloc_fail, 0);
		assert_true(mm_vmstat(p.mm)->reclaim_background > 0);
		mm_check(p.mm);
		free(p.mem);
	}
}

/* Too few extents to keep one free: reclaim waits until it is asked. */
static void smallest_pools_are_reclaimed_when_somebody_asks(void **state)
{
	uint32_t e1, c1, e2, c2;
	struct pool p;

	(void)state;
	make(&p, 16 * MIB, 0);
	assert_int_equal(low(&p), 0);
	attach(&p, 1, &e1, &c1);
	attach(&p, 2, &e2, &c2);
	fill(&p, e1, c1);
	assert_int_equal(free_bytes(&p), 0);
	assert_int_equal(alloc(&p, e2, c2), -ENOMEM);
	assert_int_equal(mm_vmstat(p.mm)->reclaim_direct, 1);
	assert_int_equal(alloc(&p, e2, c2), 0);
	assert_int_equal(mm_vmstat(p.mm)->reclaim_background, 0);
	mm_check(p.mm);
	free(p.mem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(another_finds_room_that_background_reclaim_made),
		cmocka_unit_test(smallest_pools_are_reclaimed_when_somebody_asks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
