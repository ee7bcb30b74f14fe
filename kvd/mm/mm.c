// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "admit.h"
#include "cache.h"
#include "commit.h"
#include "core.h"
#include "event.h"
#include "import.h"
#include "lookup.h"
#include "workingset.h"
#include "worth.h"

#define ID_REUSE	1024u	/* freed ids rest until so many others have been freed */

/* ---- memory -------------------------------------------------------------------------------- */

static uint64_t carve(uint64_t *at, uint64_t bytes)
{
	uint64_t off = *at;

	*at += (bytes + 63) & ~63ull;
	return off;
}

static void carve_pool(struct pool *p, uint64_t *at)
{
	p->off = carve(at, (uint64_t)p->size * p->max);
}

static uint32_t max_binds(const struct mm_config *cfg)
{
	uint64_t all = (uint64_t)cfg->max_engines * cfg->max_caches;
	uint64_t cap = 4ull * (cfg->max_engines + cfg->max_caches);

	/* Binds of dead engines linger in shared caches. */
	return (uint32_t)((all < cap ? all : cap) + cfg->max_caches);
}

static void size_pools(struct mm *mm, const struct mm_config *cfg)
{
	const uint32_t obj = sizeof(struct pool_obj);

	pool_init(&mm->tenants, sizeof(struct tenant), cfg->max_tenants, obj, 1);
	pool_init(&mm->engines, sizeof(struct engine), cfg->max_engines, obj, ID_REUSE);
	pool_init(&mm->members, sizeof(struct member), cfg->max_members, obj, ID_REUSE);
	pool_init(&mm->caches, sizeof(struct cache), cfg->max_caches, obj, ID_REUSE);
	pool_init(&mm->binds, sizeof(struct bind), max_binds(cfg), obj, 0);
	pool_init(&mm->extents, sizeof(struct extent), cfg->max_extents,
		  offsetof(struct extent, state), 1);
	pool_init(&mm->nodes, sizeof(struct node), cfg->max_nodes, 0, 0);
	pool_init(&mm->leases, sizeof(struct lease), cfg->max_leases, obj, ID_REUSE);
	pool_init(&mm->parks, sizeof(struct park), cfg->max_parks, obj, ID_REUSE);
	pool_init(&mm->keys, sizeof(struct key), cfg->max_keys, obj, 0);
	pool_init(&mm->pendings, sizeof(struct pending), cfg->max_pending, obj, 0);
}

static struct pool *const_pools(struct mm *mm, uint32_t i)
{
	struct pool *pools[] = { &mm->tenants, &mm->engines, &mm->members, &mm->caches, &mm->binds,
				 &mm->extents, &mm->nodes, &mm->leases, &mm->parks, &mm->keys,
				 &mm->pendings };

	return i < sizeof(pools) / sizeof(pools[0]) ? pools[i] : NULL;
}

static uint32_t token_units(const struct mm_config *cfg)
{
	return (uint32_t)((cfg->max_tokens + NODE_UNIT_TOKENS - 1) / NODE_UNIT_TOKENS);
}

/* Where everything lies; returns the length. */
static uint64_t lay_out(struct mm *mm, const struct mm_config *cfg)
{
	uint64_t at = 0;
	uint32_t heads = 1;
	struct pool *p;

	carve(&at, sizeof(struct mm));
	size_pools(mm, cfg);
	for (uint32_t i = 0; (p = const_pools(mm, i)); i++)
		carve_pool(p, &at);
	while (heads < cfg->max_keys)
		heads *= 2;
	mm->key_mask = heads - 1;
	mm->off_key_heads = carve(&at, heads * sizeof(uint32_t));
	mm->off_frames = carve(&at, (uint64_t)cfg->max_frames * sizeof(struct frame));
	mm->frame_buddy.off_links = mm->off_frames + offsetof(struct frame, link);
	mm->frame_buddy.stride = sizeof(struct frame);
	mm->frame_buddy.off_tags = carve(&at, cfg->max_frames);
	mm->off_tokens = carve(&at, (uint64_t)token_units(cfg) * NODE_UNIT_TOKENS * 4);
	mm->token_buddy.off_links = mm->off_tokens;
	mm->token_buddy.stride = NODE_UNIT_TOKENS * 4;
	mm->token_buddy.off_tags = carve(&at, token_units(cfg));
	mm->off_imports = carve(&at, 2ull * cfg->max_members * cfg->max_extents);
	mm->off_worth = carve(&at, cfg->policy == MM_POLICY_GITTINS ?
					   (uint64_t)cfg->max_tenants * sizeof(struct worth) : 0);
	mm->off_shadows = carve(&at, (uint64_t)cfg->max_shadows * sizeof(struct shadow));
	mm->off_shadow_heads = carve(&at, 4ull * workingset_heads(cfg->max_shadows));
	mm->off_path = carve(&at, 8ull * (cfg->batch_pages + 1));
	reply_init(&mm->replies, cfg->batch_pages);
	mm->replies.off_words = carve(&at, mm->replies.nr_words * sizeof(uint64_t));
	return at;
}

static bool between(uint64_t v, uint64_t lo, uint64_t hi)
{
	return v >= lo && v <= hi;
}

static bool config_valid(const struct mm_config *c)
{
	if (!between(c->nr_devices, 1, MM_MAX_DEVICES))
		return false;
	for (uint32_t d = 0; d < c->nr_devices; d++)
		if (!between(c->device[d].pool_bytes, 1, 1ull << 62) ||
		    !between(c->device[d].extent_bytes, 1, 1ull << 40) ||
		    !between(c->device[d].extent_align, 1, 1ull << 40) ||
		    c->device[d].wmark_min_bytes > c->device[d].pool_bytes ||
		    c->device[d].wmark_low_bytes > c->device[d].wmark_high_bytes ||
		    c->device[d].wmark_high_bytes > c->device[d].pool_bytes)
			return false;
	return between(c->max_tenants, 1, 65535) && between(c->max_engines, 1, 65535) &&
	       between(c->max_members, 1, 65535) && between(c->max_caches, 1, 65535) &&
	       between(c->max_extents, 1, (1u << MM_EXTENT_BITS) - 1) &&
	       between(c->max_frames, 1, 1u << 30) && between(c->max_nodes, 1, 1u << 30) &&
	       between(c->max_leases, 1, 1u << 24) && c->max_parks < 1u << 24 &&
	       c->max_keys < 1u << 24 && c->max_pending <= 1u << 20 &&
	       between(c->max_tokens, 1, 1ull << 34) && between(c->batch_pages, 1, 1u << 20) &&
	       c->max_shadows <= 1u << 28 && c->policy < MM_NR_POLICIES;
}

size_t mm_footprint(const struct mm_config *cfg)
{
	struct mm mm = { 0 };

	return config_valid(cfg) ? lay_out(&mm, cfg) : 0;
}

static void *block(struct mm *mm, uint64_t off)
{
	return (void *)((uintptr_t)mm + off);
}

int mm_init(struct mm **mmp, void *mem, size_t len, const struct mm_config *cfg)
{
	struct mm *mm = mem;

	if (!config_valid(cfg) || !mem || (uintptr_t)mem % 64 || len < mm_footprint(cfg))
		return -EINVAL;
	memset(mm, 0, sizeof(*mm));
	mm->magic = MM_MAGIC;
	mm->version = MM_VERSION;
	mm->len = lay_out(mm, cfg);
	mm->cfg = *cfg;
	/* All else is written before it is read. */
	memset(block(mm, mm->off_key_heads), 0, (mm->key_mask + 1ull) * sizeof(uint32_t));
	memset(block(mm, mm->frame_buddy.off_tags), 0, cfg->max_frames);
	memset(block(mm, mm->token_buddy.off_tags), 0, token_units(cfg));
	memset(block(mm, mm->off_shadow_heads), 0, 4ull * workingset_heads(cfg->max_shadows));
	buddy_init(mm, &mm->frame_buddy, cfg->max_frames);
	buddy_init(mm, &mm->token_buddy, token_units(cfg));
	mm->queue.due_ns = UINT64_MAX;
	mm->queue.pass = 1;
	mm->compact.idle_ns = mm->shrink.next_ns = UINT64_MAX;
	*mmp = mm;
	return 0;
}

/* ---- requests ------------------------------------------------------------------------------ */

static int unknown_op(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	(void)mm;
	return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, (uint32_t)rq->op, MM_NR_OPS);
}

static const struct operation {
	int (*fn)(struct mm *, const struct mm_request *, struct mm_reply *);
	enum reply_array array;
	bool asks;			/* an engine that does it is not idle */
} ops[MM_NR_OPS] = {
	[0] = { unknown_op, REPLY_NO_ARRAY, false },
	[MM_ENGINE_ATTACH] = { engine_op_attach, REPLY_NO_ARRAY, false },
	[MM_MEMBER_ATTACH] = { engine_op_member, REPLY_NO_ARRAY, false },
	[MM_FENCE] = { engine_op_fence, REPLY_NO_ARRAY, false },
	[MM_MEMBER_GONE] = { engine_op_gone, REPLY_NO_ARRAY, false },
	[MM_CACHE_OPEN] = { cache_op_open, REPLY_GEOM_ARRAY, true },
	[MM_CACHE_CLOSE] = { cache_op_close, REPLY_NO_ARRAY, false },
	[MM_IMPORT] = { import_op_import, REPLY_NO_ARRAY, false },
	[MM_UNIMPORT] = { import_op_unimport, REPLY_NO_ARRAY, false },
	[MM_ALLOC] = { pending_op_alloc, REPLY_ONE_BATCH, true },
	[MM_FREE] = { slab_op_free, REPLY_NO_ARRAY, true },
	[MM_LOOKUP] = { lookup_op, REPLY_ALL_GROUPS, true },
	[MM_COMMIT] = { commit_op, REPLY_ALL_GROUPS, true },
	[MM_LEASE_DUP] = { lease_op_dup, REPLY_NO_ARRAY, true },
	[MM_UNLEASE] = { lease_op_unlease, REPLY_NO_ARRAY, true },
	[MM_PARK] = { park_op_park, REPLY_NO_ARRAY, true },
	[MM_RESUME] = { park_op_resume, REPLY_ALL_GROUPS, true },
	[MM_UNPARK] = { park_op_unpark, REPLY_NO_ARRAY, true },
	[MM_DROP_HEAD] = { lease_op_drop_head, REPLY_NO_ARRAY, true },
	[MM_RESERVE] = { admit_op_reserve, REPLY_NO_ARRAY, true },
	[MM_EVENTS] = { event_op_events, REPLY_EVENT_ARRAY, false },
	[MM_PRESSURE_ACK] = { event_op_pressure_ack, REPLY_NO_ARRAY, false },
	[MM_VACATE_ACK] = { compact_op_vacate_ack, REPLY_NO_ARRAY, false },
	[MM_STAT] = { engine_op_stat, REPLY_NO_ARRAY, false },
	[MM_TENANT_SET] = { memcg_op_set, REPLY_NO_ARRAY, false },
	[MM_HINT] = { lease_op_hint, REPLY_NO_ARRAY, true },
};

static void begin(struct mm *mm, uint64_t now_ns)
{
	if (now_ns > mm->now_ns)
		mm->now_ns = now_ns;
	psi_advance(mm);
	reply_begin(&mm->replies);
}

/* What one change makes possible for others: waiting allocations, then superfluous extents, whose
 * going may again be what somebody waits for. With more set the rest is mm_tick's. */
static void settle(struct mm *mm)
{
	if (!(mm->waiting.head | mm->wake.head | mm->cancelled.head | mm->queue.stale)) {
		mm->dirty = false;
		if (mm->trim.head)
			slab_trim(mm);
		return;
	}
	do {
		pending_run(mm);
		slab_trim(mm);
	} while ((mm->dirty || mm->wake.head) && mm->waiting.head && !mm->more);
}

/* Found once for all that want to know who is at work. */
static void asked(struct mm *mm, uint32_t id, bool seen)
{
	uint32_t engine = pool_find(mm, &mm->engines, id);

	if (!engine)
		return;
	if (seen)
		compact_seen(mm, engine);
	psi_touch(mm, engine);
}

int mm_submit(struct mm *mm, const struct mm_request *rq, uint64_t now_ns)
{
	const struct operation *op = &ops[(uint32_t)rq->op < MM_NR_OPS ? rq->op : 0];
	struct mm_reply *rp;

	begin(mm, now_ns);
	if (!reply_room(mm, mm->replies.worst[op->array]))
		return -EAGAIN;
	rp = reply_next(mm);
	rp->cookie = rq->cookie;
	rp->op = rq->op;
	rp->engine = rq->engine;
	rp->member = rq->member;
	rp->cache = rq->cache;
	rp->result = op->fn(mm, rq, rp);
	asked(mm, rq->engine, op->asks && rp->result >= 0);
	if (rp->result != REPLY_LATER)
		reply_done(mm, rp);
	settle(mm);
	return 0;
}

int mm_complete(struct mm *mm, uint64_t effect_id, int result, uint64_t now_ns)
{
	int err;

	begin(mm, now_ns);
	err = compact_is_effect(effect_id) ? compact_complete(mm, effect_id, result) :
					     extent_complete(mm, effect_id, result);
	settle(mm);
	return err;
}

/* The budget is that of the background work: the waiting allocations have their own (pending.h). */
void mm_tick(struct mm *mm, uint64_t now_ns, unsigned int budget)
{
	begin(mm, now_ns);
	mm->more = false;
	mm->dirty = true;
	extent_retry(mm);
	shrink_tick(mm, &budget);
	compact_tick(mm, &budget);
	settle(mm);
}

uint64_t mm_next_deadline(const struct mm *mm)
{
	uint64_t next = pending_next_deadline(mm), background = compact_next_deadline(mm);

	if (mm->more)
		return mm->now_ns;
	if (background < next)
		next = background;
	if (shrink_next_deadline(mm) < next)
		next = shrink_next_deadline(mm);
	if (mm->retry && mm->retry_ns < next)
		next = mm->retry_ns;
	return next;
}

bool mm_next_effect(struct mm *mm, struct mm_effect *fx)
{
	return engine_next_effect(mm, fx) || extent_next_effect(mm, fx) ||
	       compact_next_effect(mm, fx) || event_next_effect(mm, fx);
}
