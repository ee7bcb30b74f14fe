/* SPDX-License-Identifier: Apache-2.0 */
#include "bare.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

void mm_panic(const char *what, const char *file, int line)
{
	fprintf(stderr, "kvbench: mm: %s at %s:%d\n", what, file, line);
	abort();
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

const struct mm_reply *bare_call(struct bare_mm *b, const struct mm_request *rq)
{
	static const struct mm_reply none = { .result = -EIO };
	const struct mm_reply *re;
	struct mm_effect fx;

	if (mm_submit(b->mm, rq, 1))
		return &none;
	while (!(re = mm_take_reply(b->mm))) {
		if (!mm_next_effect(b->mm, &fx))
			return &none;
		if (fx.kind != MM_EFFECT_NOTIFY)
			mm_complete(b->mm, fx.id, 0, 1);
	}
	return re;
}

int bare_start(struct bare_mm *b, const struct mm_config *cfg, const struct mm_cache_desc *desc)
{
	struct mm_request rq = { .op = MM_ENGINE_ATTACH };
	struct mm_reply re;
	uint64_t t;

	b->len = (mm_footprint(cfg) + 4095) / 4096 * 4096;
	b->mem = mmap(NULL, b->len, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (b->mem == MAP_FAILED) {
		b->mem = NULL;
		return -ENOMEM;
	}
	t = now_ns();
	if (mm_init(&b->mm, b->mem, b->len, cfg))
		return -EINVAL;
	b->init_ns = now_ns() - t;
	re = *bare_call(b, &rq);
	b->engine = re.engine;
	rq = (struct mm_request){ .op = MM_CACHE_OPEN, .engine = b->engine, .open.desc = desc };
	if (!re.result)
		re = *bare_call(b, &rq);
	b->cache = re.cache;
	return re.result;
}

int bare_init(struct bare_mm *b)
{
	struct mm_config cfg = {
		.seed = 1,
		.nr_devices = 1,
		.device[0] = { .pool_bytes = 1ull << 30,
			       .extent_bytes = 16ull << 20,
			       .extent_align = 2ull << 20 },
		.max_tenants = 4,
		.max_engines = 4,
		.max_members = 8,
		.max_caches = 4,
		.max_extents = 1024,
		.max_frames = 1u << 20,
		.max_nodes = 1u << 16,
		.max_leases = 1024,
		.max_parks = 64,
		.max_keys = 64,
		.max_pending = 64,
		.max_tokens = 1u << 22,
		.batch_pages = 4096,
	};
	struct mm_cache_desc desc = { .page_tokens = 64,
				      .nr_groups = 1,
				      .nr_shards = 1,
				      .group[0] = { .kind = MM_GROUP_FULL },
				      .shard[0] = { .page_bytes = { 2048 } } };

	return bare_start(b, &cfg, &desc);
}
