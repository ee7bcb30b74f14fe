// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "world.h"

#define TOKEN_UNIT     16u /* mm stores a node's tokens in runs of so many */
#define MAX_POOL_BYTES (1ull << 62)
#define MAX_PAGES      (1ull << 29) /* in use; a pool may be larger */
#define MAX_TICKS      (1u << 20)   /* from one time to the next */
#define TICK_BUDGET    (1u << 20)
#define SPARE	       1024u /* room in tables, so that it is the pool that is full */

static const char *const policies[MM_NR_POLICIES] = {
	[MM_POLICY_LRU] = "lru",
	[MM_POLICY_GITTINS] = "gittins",
};

const uint32_t world_default_policy = MM_POLICY_GITTINS;

const char *world_policy_name(uint32_t policy)
{
	return policies[policy];
}

uint32_t world_policy_find(const char *name)
{
	uint32_t p;

	for (p = 0; p < MM_NR_POLICIES; p++)
		if (!strcmp(policies[p], name))
			break;
	return p;
}

void mm_panic(const char *what, const char *file, int line)
{
	fprintf(stderr, "kvreplay: mm: %s at %s:%d\n", what, file, line);
	abort();
}

/* ---- time, effects and replies ------------------------------------------------------------- */

/* Replies first: the next call to mm takes their arrays away. */
static void settle(struct world *w)
{
	struct mm_effect fx;
	struct mm_reply rp;

	for (;;) {
		while (mm_next_reply(w->mm, &rp))
			w->on_reply(w, &rp);
		do {
			if (!mm_next_effect(w->mm, &fx))
				return;
		} while (fx.kind == MM_EFFECT_NOTIFY || fx.kind == MM_EFFECT_KILL);
		mm_complete(w->mm, fx.id, 0, w->now_ns);
	}
}

static void tick_at(struct world *w, uint64_t now_ns)
{
	w->now_ns = now_ns > w->now_ns ? now_ns : w->now_ns;
	mm_tick(w->mm, w->now_ns, TICK_BUDGET);
	settle(w);
}

uint64_t world_next_ns(const struct world *w)
{
	return mm_next_deadline(w->mm);
}

void world_advance(struct world *w, uint64_t now_ns)
{
	unsigned int most = MAX_TICKS;

	while (mm_next_deadline(w->mm) <= now_ns && most--)
		tick_at(w, mm_next_deadline(w->mm));
	w->now_ns = now_ns > w->now_ns ? now_ns : w->now_ns;
}

int world_submit(struct world *w, uint32_t engine, struct mm_request *rq)
{
	int err;

	rq->engine = w->engines[engine];
	rq->cache = w->cache;
	w->nr_ops++;
	err = mm_submit(w->mm, rq, w->now_ns);
	settle(w);
	return err;
}

/* ---- calls that wait ----------------------------------------------------------------------- */

struct call {
	uint64_t cookie;
	struct mm_reply *reply;
	bool done;
};

static void on_call(struct world *w, const struct mm_reply *rp)
{
	struct call *c = w->ctx;

	if (rp->cookie != c->cookie)
		return;
	c->done = true;
	*c->reply = *rp;
	if (rp->pages) {
		memcpy(w->pages, rp->pages, rp->nr_pages * sizeof(*w->pages));
		c->reply->pages = w->pages;
	}
}

int world_call(struct world *w, uint32_t engine, struct mm_request *rq, struct mm_reply *rp)
{
	struct call c = { .cookie = w->nr_ops + 1, .reply = rp };
	world_reply_fn *on_reply = w->on_reply;
	void *ctx = w->ctx;
	int err;

	rq->cookie = c.cookie;
	w->on_reply = on_call;
	w->ctx = &c;
	err = world_submit(w, engine, rq);
	while (!err && !c.done) {
		if (mm_next_deadline(w->mm) == UINT64_MAX)
			err = -EPROTO; /* mm has forgotten a request */
		else
			tick_at(w, mm_next_deadline(w->mm));
	}
	w->on_reply = on_reply;
	w->ctx = ctx;
	return err ? err : rp->result;
}

/* ---- opening ------------------------------------------------------------------------------- */

/* Pages of an extent: as few as let mm's extent ids name the whole pool. */
static unsigned int extent_order(uint64_t pages)
{
	unsigned int order = 0;

	while (pages >> order >= (1u << MM_EXTENT_BITS) - 1 - SPARE)
		order++;
	return order;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static int configure(struct world *w, const struct world_config *wc, struct mm_config *cfg)
{
	uint64_t pages = least(wc->capacity_pages, wc->most_pages ? wc->most_pages : 1), tables;
	unsigned int order = extent_order(pages);
	uint64_t extent_bytes = wc->page_bytes << order;

	w->capacity_pages = wc->capacity_pages >> order << order;
	if (!w->capacity_pages || w->capacity_pages > MAX_POOL_BYTES / wc->page_bytes ||
	    pages > MAX_PAGES)
		return -EINVAL;
	/* Each engine may have extents begun and one of its own empty. */
	tables = (pages >> order) + 2ull * wc->nr_engines + SPARE / 2;
	*cfg = (struct mm_config){
		.seed = 1,
		.nr_devices = 1,
		.device[0] = { .pool_bytes = w->capacity_pages * wc->page_bytes,
			       .extent_bytes = extent_bytes,
			       .extent_align = extent_bytes },
		.max_tenants = 2,
		.max_engines = wc->nr_engines + 1,
		.max_members = wc->nr_engines + 1,
		.max_caches = 4,
		.max_extents = (uint32_t)least(tables, (1u << MM_EXTENT_BITS) - 1),
		.max_frames = (uint32_t)(tables << order),
		.max_nodes = (uint32_t)(pages + wc->batch_pages + SPARE),
		.max_leases = 64 + 4 * wc->nr_engines,
		.max_keys = 1,
		/* One engine may have half of what the others leave. */
		.max_pending = 2 * wc->max_waiting + 64,
		.batch_pages = wc->batch_pages ? wc->batch_pages : 1,
		.max_shadows = (uint32_t)least(pages > MM_MIN_SHADOWS ? pages : MM_MIN_SHADOWS,
					       1u << 28),
		.policy = wc->policy,
	};
	cfg->max_tokens = (uint64_t)cfg->max_nodes * TOKEN_UNIT;
	return 0;
}

static int attach(struct world *w, uint32_t engine, uint64_t page_bytes)
{
	/* Whole pages only: there is no match inside a block. */
	struct mm_cache_desc desc = { .model_key = { 1 },
				      .layout_key = { 1 },
				      .page_tokens = 1,
				      .nr_groups = 1,
				      .nr_shards = 1,
				      .group[0] = { .kind = MM_GROUP_FULL, .opaque = 1 },
				      .shard[0] = { .page_bytes = { page_bytes } } };
	struct mm_request rq = { .op = MM_ENGINE_ATTACH, .attach = { .tenant = 1 } };
	struct mm_reply rp;
	int err = world_call(w, engine, &rq, &rp);

	if (err)
		return err;
	w->engines[engine] = rp.engine;
	rq = (struct mm_request){ .op = MM_CACHE_OPEN, .open = { .desc = &desc } };
	err = world_call(w, engine, &rq, &rp);
	w->cache = rp.cache;
	return err;
}

int world_open(struct world *w, const struct world_config *wc)
{
	struct mm_config cfg;
	uint32_t i;
	int err;

	*w = (struct world){ .nr_engines = wc->nr_engines };
	err = configure(w, wc, &cfg);
	if (err)
		return err;
	w->len = mm_footprint(&cfg);
	if (!w->len)
		return -EINVAL;
	w->mem = mmap(NULL, w->len, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (w->mem == MAP_FAILED)
		w->mem = NULL;
	w->engines = calloc(wc->nr_engines, sizeof(*w->engines));
	w->pages = calloc(cfg.batch_pages, sizeof(*w->pages));
	err = w->mem && w->engines && w->pages ? mm_init(&w->mm, w->mem, w->len, &cfg) : -ENOMEM;
	for (i = 0; i < wc->nr_engines && !err; i++)
		err = attach(w, i, wc->page_bytes);
	if (err) {
		world_close(w);
		return err;
	}
	w->on_reply = wc->on_reply;
	w->ctx = wc->ctx;
	w->nr_ops = 0;
	return 0;
}

void world_close(struct world *w)
{
	if (w->mem)
		munmap(w->mem, w->len);
	free(w->engines);
	free(w->pages);
	*w = (struct world){ 0 };
}

uint64_t world_used_pages(const struct world *w)
{
	const struct mm_vmstat *v = mm_vmstat(w->mm);

	return v->pages_alloc - v->pages_free - v->pages_evict;
}
