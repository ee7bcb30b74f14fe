/* SPDX-License-Identifier: Apache-2.0 */
/* mmt - what the unit tests of mm share: a small world, one call per request, effects carried out
 *
 * Model:      struct mmt holds an mm over malloc'd garbage and the last reply with copies of its
 *             arrays. mmt_* submit one request, run mm_check, and return the reply's result; an
 *             answer that comes later is MMT_LATER until mmt_replies finds it.
 *             Effects are completed at once unless hold is set.
 */
#ifndef MMT_H
#define MMT_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "core.h"
#include "mm.h"

#define MMT_LATER	12345
#define MMT_PAGES	1024
#define MMT_PT		16u		/* tokens a page in most tests */
#define MMT_EXTENT	65536ull
#define MMT_PAGE	8192ull		/* so 8 pages an extent */
#define MMT_FX		2048

#define UNUSED __attribute__((unused))

void mm_panic(const char *what, const char *file, int line)
{
	fprintf(stderr, "mm_panic: %s at %s:%d\n", what, file, line);
	abort();
}

struct mmt {
	struct mm *mm;
	void *mem;
	struct mm_config cfg;
	uint64_t now, cookie;
	bool hold;			/* effects stay in fx[] */
	int create_result;		/* what the next creations answer */
	struct mm_effect fx[MMT_FX];
	uint32_t nr_fx, nr_notify, notified, nr_kill, killed;
	struct mm_reply rp;		/* the last one */
	uint64_t pages[MMT_PAGES];
	uint64_t tail_pages[MM_MAX_GROUPS];
	struct mm_group_geom geom[MM_MAX_GROUPS];
	struct mm_event events[64];
	uint32_t nr_late;		/* replies that were not the request's own */
	struct mm_reply late;
	uint64_t late_pages[MMT_PAGES];
};

static UNUSED struct mm_config mmt_config(void)
{
	struct mm_config c = {
		.seed = 7, .nr_devices = 2, .max_tenants = 4, .max_engines = 6, .max_members = 10,
		.max_caches = 6, .max_extents = 64, .max_frames = 1024, .max_nodes = 512,
		.max_leases = 128, .max_parks = 32, .max_keys = 32, .max_pending = 8,
		.max_tokens = 16384, .batch_pages = 64,
	};

	for (uint32_t d = 0; d < 2; d++)
		c.device[d] = (struct mm_device_config){ .pool_bytes = 8 * MMT_EXTENT,
							 .extent_bytes = MMT_EXTENT,
							 .extent_align = 4096 };
	return c;
}

static UNUSED void mmt_init(struct mmt *t, const struct mm_config *cfg)
{
	size_t len;

	memset(t, 0, sizeof(*t));
	t->cfg = *cfg;
	t->now = 1000;
	len = mm_footprint(cfg);
	assert_true(len > 0);
	t->mem = aligned_alloc(64, (len + 63) / 64 * 64);
	assert_non_null(t->mem);
	memset(t->mem, 0xa5, len);
	assert_int_equal(mm_init(&t->mm, t->mem, len, cfg), 0);
	mm_check(t->mm);
}

static UNUSED void mmt_fini(struct mmt *t)
{
	mm_check(t->mm);
	free(t->mem);
}

/* ---- replies and effects ------------------------------------------------------------------- */

static UNUSED int mmt_replies(struct mmt *t, uint64_t cookie)
{
	struct mm_reply rp;
	int result = MMT_LATER;

	while (mm_next_reply(t->mm, &rp)) {
		uint32_t groups = rp.nr_groups ? rp.nr_groups : 1;
		uint64_t *to = rp.cookie == cookie ? t->pages : t->late_pages;

		if (rp.op == MM_EVENTS && rp.events) {
			memcpy(t->events, rp.events, (rp.nr_events < 64 ? rp.nr_events : 64) *
			       sizeof(*rp.events));
			rp.events = t->events;
		} else if (rp.op == MM_CACHE_OPEN && !rp.result) {
			memcpy(t->geom, rp.geom, groups * sizeof(*rp.geom));
			rp.geom = t->geom;
		} else if (rp.pages) {
			assert_true(groups * rp.nr_pages <= MMT_PAGES);
			memcpy(to, rp.pages, groups * rp.nr_pages * sizeof(*to));
			rp.pages = to;
		}
		if (rp.tail_pages) {
			memcpy(t->tail_pages, rp.tail_pages, groups * sizeof(*rp.tail_pages));
			rp.tail_pages = t->tail_pages;
		}
		if (rp.cookie == cookie) {
			t->rp = rp;
			result = rp.result;
		} else {
			t->late = rp;
			t->nr_late++;
		}
	}
	return result;
}

static UNUSED void mmt_complete(struct mmt *t, uint32_t i, int result)
{
	struct mm_effect fx = t->fx[i];

	t->fx[i] = t->fx[--t->nr_fx];
	assert_int_equal(mm_complete(t->mm, fx.id, result, t->now), 0);
	mm_check(t->mm);
}

static UNUSED void mmt_fetch(struct mmt *t)
{
	struct mm_effect fx;

	while (mm_next_effect(t->mm, &fx)) {
		if (fx.kind == MM_EFFECT_NOTIFY) {
			t->nr_notify++;
			t->notified = fx.member;
			continue;
		}
		if (fx.kind == MM_EFFECT_KILL) {
			t->nr_kill++;
			t->killed = fx.engine;
			continue;
		}
		assert_true(t->nr_fx < MMT_FX);
		t->fx[t->nr_fx++] = fx;
	}
}

/* Carries out everything there is. */
static UNUSED void mmt_run(struct mmt *t)
{
	mmt_fetch(t);
	while (t->nr_fx) {
		mmt_complete(t, 0, t->fx[0].kind == MM_EFFECT_CREATE ? t->create_result : 0);
		mmt_replies(t, 0);
		mmt_fetch(t);
	}
}

static UNUSED int mmt_submit(struct mmt *t, struct mm_request *rq)
{
	int result;

	rq->cookie = ++t->cookie;
	memset(&t->rp, 0, sizeof(t->rp));
	assert_int_equal(mm_submit(t->mm, rq, t->now), 0);
	result = mmt_replies(t, rq->cookie);
	mm_check(t->mm);
	mmt_fetch(t);
	while (!t->hold && t->nr_fx) {
		mmt_complete(t, 0, t->fx[0].kind == MM_EFFECT_CREATE ? t->create_result : 0);
		if (result == MMT_LATER)
			result = mmt_replies(t, rq->cookie);
		else
			mmt_replies(t, 0);
		mmt_fetch(t);
	}
	if (result && result != MMT_LATER)
		assert_true(t->rp.reason != MM_OK);
	return result;
}

static UNUSED void mmt_tick(struct mmt *t, uint64_t now)
{
	t->now = now;
	mm_tick(t->mm, now, 100);
	mm_check(t->mm);
	mmt_fetch(t);
	mmt_replies(t, 0);
}

/* ---- requests ------------------------------------------------------------------------------ */

static UNUSED int mmt_attach(struct mmt *t, uint32_t uid, uint32_t *engine, uint32_t *member)
{
	struct mm_request rq = { .op = MM_ENGINE_ATTACH, .attach = { uid } };
	int r = mmt_submit(t, &rq);

	*engine = t->rp.engine;
	if (member)
		*member = t->rp.member;
	return r;
}

/* Requests that carry an engine or a member and nothing else. */
static UNUSED int mmt_simple(struct mmt *t, enum mm_op op, uint32_t engine, uint32_t member)
{
	struct mm_request rq = { .op = op, .engine = engine, .member = member };

	return mmt_submit(t, &rq);
}

static UNUSED uint32_t mmt_device;	/* where caches lie */

static UNUSED struct mm_cache_desc mmt_desc(uint8_t model)
{
	struct mm_cache_desc d = { .page_tokens = MMT_PT, .nr_groups = 1, .nr_shards = 1 };

	d.model_key[0] = model;
	d.layout_key[0] = 1;
	d.group[0].kind = MM_GROUP_FULL;
	d.shard[0].device = mmt_device;
	d.shard[0].page_bytes[0] = MMT_PAGE;
	return d;
}

static UNUSED int mmt_open_min(struct mmt *t, uint32_t engine, const struct mm_cache_desc *d,
			       uint32_t min_pages, uint32_t *cache)
{
	struct mm_request rq = { .op = MM_CACHE_OPEN, .engine = engine, .open = { d, min_pages } };
	int r = mmt_submit(t, &rq);

	if (!r)
		*cache = t->rp.cache;
	return r;
}

static UNUSED int mmt_open(struct mmt *t, uint32_t engine, const struct mm_cache_desc *d,
			   uint32_t *cache)
{
	struct mm_request rq = { .op = MM_CACHE_OPEN, .engine = engine, .open = { .desc = d } };
	int r = mmt_submit(t, &rq);

	*cache = t->rp.cache;
	return r;
}

static UNUSED int mmt_close(struct mmt *t, uint32_t engine, uint32_t cache)
{
	struct mm_request rq = { .op = MM_CACHE_CLOSE, .engine = engine, .cache = cache };

	return mmt_submit(t, &rq);
}

static UNUSED int mmt_close_all(struct mmt *t, uint32_t engine, uint32_t cache)
{
	struct mm_request rq = { .op = MM_CACHE_CLOSE, .engine = engine, .cache = cache,
				 .flags = MM_CLOSE_GIVE_BACK };

	return mmt_submit(t, &rq);
}

static UNUSED int mmt_map(struct mmt *t, enum mm_op op, uint32_t member, uint32_t ext,
			  uint32_t shard)
{
	struct mm_request rq = { .op = op, .member = member, .map = { ext, shard } };

	return mmt_submit(t, &rq);
}

static UNUSED int mmt_alloc_until(struct mmt *t, uint32_t engine, uint32_t cache, uint32_t group,
				  uint32_t nr, uint64_t deadline)
{
	struct mm_request rq = { .op = MM_ALLOC, .engine = engine, .cache = cache, .group = group,
				 .alloc = { nr, deadline } };

	return mmt_submit(t, &rq);
}

static UNUSED int mmt_alloc(struct mmt *t, uint32_t engine, uint32_t cache, uint32_t group,
			    uint32_t nr, uint64_t *ids)
{
	int r = mmt_alloc_until(t, engine, cache, group, nr, 0);

	if (!r && ids) {
		assert_int_equal(t->rp.nr_pages, nr);
		memcpy(ids, t->pages, nr * sizeof(*ids));
	}
	return r;
}

static UNUSED int mmt_free(struct mmt *t, uint32_t engine, const uint64_t *ids, uint32_t nr)
{
	struct mm_request rq = { .op = MM_FREE, .engine = engine, .free = { ids, nr } };

	return mmt_submit(t, &rq);
}

static UNUSED int mmt_lookup_keys(struct mmt *t, uint32_t engine, uint32_t cache, uint32_t flags,
				  const uint32_t *tokens, uint32_t nr,
				  const struct mm_page_key *keys, uint32_t nr_keys)
{
	struct mm_request rq = { .op = MM_LOOKUP, .engine = engine, .cache = cache, .flags = flags,
				 .lookup = { tokens, nr, keys, nr_keys } };

	return mmt_submit(t, &rq);
}

static UNUSED int mmt_lookup(struct mmt *t, uint32_t engine, uint32_t cache, uint32_t flags,
			     const uint32_t *tokens, uint32_t nr)
{
	return mmt_lookup_keys(t, engine, cache, flags, tokens, nr, NULL, 0);
}

static UNUSED int mmt_commit_keys(struct mmt *t, uint32_t engine, uint32_t cache, uint32_t flags,
				  uint32_t lease, const uint32_t *tokens, uint32_t nr_tokens,
				  const uint64_t *ids, uint32_t nr,
				  const struct mm_page_key *keys, uint32_t nr_keys)
{
	struct mm_request rq = { .op = MM_COMMIT, .engine = engine, .cache = cache, .flags = flags,
				 .commit = { lease, tokens, nr_tokens, ids, nr, keys, nr_keys } };

	return mmt_submit(t, &rq);
}

/* Commits nr_tokens from the lease on, allocating the pages of one group. */
static UNUSED int mmt_commit(struct mmt *t, uint32_t engine, uint32_t cache, uint32_t lease,
			     const uint32_t *tokens, uint32_t nr_tokens, const uint64_t *ids)
{
	uint32_t nr = (nr_tokens + MMT_PT - 1) / MMT_PT;

	return mmt_commit_keys(t, engine, cache, nr_tokens % MMT_PT ? MM_COMMIT_PARTIAL : 0, lease,
			       tokens, nr_tokens, ids, nr, NULL, 0);
}

static UNUSED int mmt_unlease(struct mmt *t, uint32_t engine, uint32_t lease)
{
	struct mm_request rq = { .op = MM_UNLEASE, .engine = engine, .unlease = { &lease, 1 } };

	return mmt_submit(t, &rq);
}

static UNUSED int mmt_lease(struct mmt *t, enum mm_op op, uint32_t engine, uint32_t group,
			    uint32_t lease, uint32_t depth)
{
	struct mm_request rq = { .op = op, .engine = engine, .group = group,
				 .lease = { lease, depth } };

	return mmt_submit(t, &rq);
}

static UNUSED int mmt_park(struct mmt *t, enum mm_op op, uint32_t engine, uint32_t lease,
			   uint32_t park, uint32_t flags)
{
	struct mm_request rq = { .op = op, .engine = engine, .flags = flags,
				 .park = { lease, park } };

	return mmt_submit(t, &rq);
}

static UNUSED int mmt_limits(struct mmt *t, uint32_t tenant, uint32_t device, struct mm_limits l,
			     uint32_t oom_action)
{
	struct mm_request rq = { .op = MM_TENANT_SET,
				 .tenant = { tenant, device, oom_action, l } };

	return mmt_submit(t, &rq);
}

static UNUSED int mmt_reserve_for(struct mmt *t, uint32_t engine, uint32_t device, uint32_t what,
				  uint64_t bytes)
{
	struct mm_request rq = { .op = MM_RESERVE, .engine = engine,
				 .reserve = { device, what, bytes } };

	return mmt_submit(t, &rq);
}

static UNUSED int mmt_reserve(struct mmt *t, uint32_t engine, uint32_t device, uint64_t bytes)
{
	struct mm_request rq = { .op = MM_RESERVE, .engine = engine,
				 .reserve = { .device = device, .bytes = bytes } };

	return mmt_submit(t, &rq);
}

#define MMT_TOKENS	4096u

/* The tokens from, from + 1, ... */
static UNUSED const uint32_t *mmt_tokens(uint32_t from)
{
	static uint32_t all[MMT_TOKENS];

	assert_true(from < MMT_TOKENS);
	if (!all[1])
		for (uint32_t i = 0; i < MMT_TOKENS; i++)
			all[i] = i;
	return all + from;
}

/* A chain of full pages with tokens from on, leased. */
static UNUSED uint32_t mmt_chain(struct mmt *t, uint32_t engine, uint32_t cache, uint32_t from,
				 uint32_t nr_pages)
{
	uint64_t ids[64];

	assert_true(from + nr_pages * MMT_PT <= MMT_TOKENS);
	assert_int_equal(mmt_alloc(t, engine, cache, 0, nr_pages, ids), 0);
	assert_int_equal(mmt_commit(t, engine, cache, 0, mmt_tokens(from), nr_pages * MMT_PT, ids),
			 0);
	return t->rp.lease;
}

static UNUSED uint32_t mmt_device_extents(struct mmt *t, uint32_t device)
{
	struct mm_meminfo mi;

	mm_meminfo(t->mm, device, &mi);
	return mi.nr_extents;
}

/* A request that must fail, leaving everything as it was. */
#define mmt_refused(t, call, err, why) \
	do { \
		uint64_t before_ = mm_digest((t)->mm); \
		assert_int_equal(call, err); \
		assert_int_equal((t)->rp.reason, why); \
		if ((why) == MM_NO_SUCH_ID || (why) == MM_STALE_PAGE || (why) == MM_NOT_OWNER) \
			assert_int_equal((t)->rp.b, 0); \
		assert_true(mm_digest((t)->mm) == before_); \
	} while (0)

#endif
