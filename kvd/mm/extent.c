// SPDX-License-Identifier: Apache-2.0
#include "admit.h"
#include "cache.h"
#include "compact.h"
#include "core.h"
#include "event.h"
#include "import.h"

#define EXTENT_RETRY_NS	100000000ull	/* before a failed destroy or scrub is tried again */

#define FX_EXTENT_SHIFT	4
#define FX_SEQ_SHIFT	24

struct extent *extent_lookup(struct mm *mm, uint32_t ext)
{
	if (!pool_live(mm, &mm->extents, ext))
		return NULL;
	return extent_at(mm, ext);
}

static uint16_t all_shards(const struct mm *mm, const struct extent *x)
{
	return (uint16_t)((1u << cache_at(mm, x->cache)->desc.nr_shards) - 1);
}

uint64_t extent_shard_bytes(const struct mm *mm, const struct extent *x, uint32_t shard)
{
	return cache_at(mm, x->cache)->extent_bytes[x->group][shard];
}

/* ---- budgets ------------------------------------------------------------------------------- */

uint32_t extent_creatable(const struct mm *mm, uint32_t bind, uint32_t group, uint32_t nr,
			  struct mm_reply *why)
{
	const struct cache *c = cache_at(mm, bind_at(mm, bind)->cache);
	uint32_t can = nr, slots = mm->extents.max - mm->extents.nr_used;

	if (slots < can) {
		reply_table_full(why, mm, max_extents);
		can = slots;
	}
	/* Frames may be fragmented: only a whole block counts, and one is enough to go on. */
	if (can && !buddy_fits(&mm->frame_buddy, c->order[group])) {
		reply_table_full(why, mm, max_frames);
		can = 0;
	}
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++) {
		uint64_t want = c->need[group][d], room = admit_room(mm, bind, group, d);

		if (want && room / want < can) {
			reply_error(why, -ENOMEM, MM_POOL_FULL, want * nr, room);
			can = (uint32_t)(room / want);
		}
	}
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++) {
		uint64_t want = c->need[group][d], room = admit_quota(mm, bind, group, d);
		uint64_t limit = tenant_at(mm, c->tenant)->limit[d].max_bytes;

		if (want && room / want < can) {
			reply_error(why, -EDQUOT, MM_TENANT_MAX, limit, core_less(limit, room));
			can = (uint32_t)(room / want);
		}
	}
	return can;
}

static void charge(struct mm *mm, struct extent *x)
{
	struct cache *c = cache_at(mm, x->cache);

	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		memcg_charge(mm, c->tenant, d, c->need[x->group][d]);
	c->nr_extents++;
	x->charged = all_shards(mm, x);
}

/* A shard is charged from the moment it is asked for until the device has it back. */
static void uncharge(struct mm *mm, struct extent *x, uint16_t shards)
{
	struct cache *c = cache_at(mm, x->cache);

	for (uint32_t s = 0; s < c->desc.nr_shards; s++) {
		uint32_t d = c->desc.shard[s].device;
		uint64_t bytes = c->extent_bytes[x->group][s];

		if (!(shards & x->charged & 1u << s))
			continue;
		if (x->leaving)
			memcg_left(mm, c->tenant, d, bytes);
		memcg_uncharge(mm, c->tenant, d, bytes);
		admit_wake(mm, d);
	}
	x->charged &= (uint16_t)~shards;
	mm->dirty = true;
}

static void leave(struct mm *mm, struct extent *x)
{
	const struct cache *c = cache_at(mm, x->cache);

	for (uint32_t s = 0; s < c->desc.nr_shards; s++)
		if (x->charged & 1u << s)
			memcg_leave(mm, c->tenant, c->desc.shard[s].device,
				    c->extent_bytes[x->group][s]);
	x->leaving = true;
	mm->nr_leaving++;
}

/* ---- effects ------------------------------------------------------------------------------- */

static void fx_begin(struct mm *mm, uint32_t ext, uint16_t shards)
{
	struct extent *x = extent_at(mm, ext);

	MM_ASSERT(!x->fx_busy && !x->fx_todo && shards);
	x->fx_todo = shards;
	x->fx_seq = ++mm->fx_seq;
	if (!x->on_fx)
		fx_list_add_tail(mm, &mm->fx, ext);
	x->on_fx = true;
}

static void fx_cancel(struct mm *mm, uint32_t ext)
{
	struct extent *x = extent_at(mm, ext);

	x->fx_todo = 0;
	if (x->on_fx)
		fx_list_del(mm, &mm->fx, ext);
	x->on_fx = false;
}

bool extent_next_effect(struct mm *mm, struct mm_effect *fx)
{
	uint32_t ext = mm->fx.head, shard;
	struct extent *x = extent_at(mm, ext);
	const struct cache *c;

	if (!ext)
		return false;
	c = cache_at(mm, x->cache);
	shard = (uint32_t)__builtin_ctz(x->fx_todo);
	x->fx_todo &= (uint16_t)~(1u << shard);
	x->fx_busy |= (uint16_t)(1u << shard);
	if (!x->fx_todo)
		fx_cancel(mm, ext);
	*fx = (struct mm_effect){
		.id = (uint64_t)x->fx_seq << FX_SEQ_SHIFT | ext << FX_EXTENT_SHIFT | shard,
		.kind = x->state == EXTENT_CREATING ? MM_EFFECT_CREATE :
			x->state == EXTENT_DESTROYING ? MM_EFFECT_DESTROY : MM_EFFECT_SCRUB,
		.extent = ext, .shard = shard, .device = c->desc.shard[shard].device,
		.bytes = c->extent_bytes[x->group][shard],
		.page_bytes = c->desc.shard[shard].page_bytes[x->group],
	};
	if (fx->kind == MM_EFFECT_SCRUB) {
		fx->slot = x->scrub_slot;
		fx->nr_slots = x->scrub_nr;
	}
	return true;
}

/* ---- creation and destruction -------------------------------------------------------------- */

uint32_t extent_create(struct mm *mm, uint32_t bind, uint32_t group)
{
	struct bind *b = bind_at(mm, bind);
	uint32_t order = cache_at(mm, b->cache)->order[group];
	uint32_t base = buddy_alloc(mm, &mm->frame_buddy, 1u << order);
	uint32_t ext = base ? pool_get(mm, &mm->extents) : NIL;
	struct extent *x = extent_at(mm, ext);

	if (!ext) {
		if (base)
			buddy_free(mm, &mm->frame_buddy, base, 1u << order);
		return NIL;
	}
	x->state = EXTENT_CREATING;
	x->cache = b->cache;
	x->bind = bind;
	x->group = (uint8_t)group;
	x->base = base;
	x->order = order;
	x->nr[FRAME_FREE] = 1u << order;
	x->bucket = SLAB_CREATING;
	bucket_list_add_tail(mm, &b->slab[group].bucket[SLAB_CREATING], ext);
	b->slab[group].nr_coming += 1u << order;
	b->nr_extents++;
	charge(mm, x);
	admit_count(mm, bind, group, true);
	fx_begin(mm, ext, all_shards(mm, x));
	return ext;
}

static void extent_free(struct mm *mm, uint32_t ext)
{
	struct extent *x = extent_at(mm, ext);
	uint32_t cache = x->cache;

	MM_ASSERT(x->state == EXTENT_DESTROYING && !x->nr_imports && !x->fx_ok && !x->charged);
	mm->nr_leaving--;
	cache_at(mm, cache)->nr_extents--;
	buddy_free(mm, &mm->frame_buddy, x->base, extent_pages(x));
	x->state = EXTENT_NONE;
	pool_put(mm, &mm->extents, ext);
	mm->dirty = true;
	cache_put(mm, cache);
}

static void destroy(struct mm *mm, uint32_t ext)
{
	struct extent *x = extent_at(mm, ext);

	x->state = EXTENT_DESTROYING;
	if (x->fx_ok)
		fx_begin(mm, ext, x->fx_ok);
	else
		extent_free(mm, ext);
}

/* All shards have answered: it lives, or what was made is taken back. */
static void created(struct mm *mm, uint32_t ext)
{
	struct extent *x = extent_at(mm, ext);
	uint32_t bind = x->bind, group = x->group;
	int error = x->fx_error;

	if (bind) {
		struct slab *s = slab_of(mm, x);

		bucket_list_del(mm, &s->bucket[SLAB_CREATING], ext);
		s->nr_coming -= extent_pages(x);
		bind_at(mm, bind)->nr_extents--;
		if (!error)
			admit_count(mm, bind, group, false);
		x->bind = NIL;
		pending_wake(mm, bind, group);
	}
	mm->dirty = true;
	if (!error)
		mm->vmstat.extents_create++;
	if (!error && bind) {
		x->state = EXTENT_LIVE;
		slab_add(mm, ext, bind);
		return;
	}
	if (!error) {		/* a failed one is leaving since it failed */
		leave(mm, x);
		mm->vmstat.extents_destroy++;
	}
	destroy(mm, ext);
	if (bind) {
		pending_create_failed(mm, bind, group, error);
		slab_trim_soon(mm, bind);
	}
}

void extent_retire(struct mm *mm, uint32_t ext)
{
	struct extent *x = extent_at(mm, ext);
	uint32_t bind = x->bind;

	MM_ASSERT(x->state == EXTENT_LIVE && x->nr[FRAME_FREE] == extent_pages(x));
	compact_end(mm, ext);
	slab_remove(mm, ext);
	slab_trim_soon(mm, bind);
	leave(mm, x);
	x->state = EXTENT_RETIRING;
	x->drain_ns = mm->now_ns + compact_rest_ns(mm);
	retire_list_add_tail(mm, &mm->retiring, ext);
	for (uint32_t m = pool_next(mm, &mm->members, 0); m && x->nr_imports;
	     m = pool_next(mm, &mm->members, m))
		if (*import_bits(mm, m, ext))
			event_notify(mm, m);
	extent_unmapped(mm, ext);
}

void extent_unmapped(struct mm *mm, uint32_t ext)
{
	struct extent *x = extent_at(mm, ext);

	if (x->state != EXTENT_RETIRING || x->nr_imports)
		return;
	retire_list_del(mm, &mm->retiring, ext);
	mm->vmstat.extents_destroy++;
	destroy(mm, ext);
}

/* ---- in life ------------------------------------------------------------------------------- */

static void move_cold(struct mm *mm, struct extent *x, uint32_t ext)
{
	struct list *cold = &slab_of(mm, x)->cold;

	if (x->on_cold)
		cold_list_del(mm, cold, ext);
	else
		cold_list_add_tail(mm, cold, ext);
	x->on_cold = !x->on_cold;
}

static void move_take(struct mm *mm, struct extent *x, uint32_t ext)
{
	x->on_take = !x->on_take;
	if (!x->on_take) {
		take_list_del(mm, &mm->takeable, ext);
		return;
	}
	take_list_add_tail(mm, &mm->takeable, ext);
	mm->dirty = true;
	mm->shrink.kick |= mm->shrink.hungry;
}

void extent_update(struct mm *mm, uint32_t ext)
{
	struct extent *x = extent_at(mm, ext);
	uint32_t bucket = slab_bucket_of(x);

	if (bucket != x->bucket)
		slab_move_bucket(mm, ext, bucket);
	if (x->draining)
		compact_changed(mm, ext);
	if (slab_cold(x) != x->on_cold)
		move_cold(mm, x, ext);
	if (extent_takeable(x) != x->on_take)
		move_take(mm, x, ext);
}

void extent_evict(struct mm *mm, uint32_t ext)
{
	struct extent *x = extent_at(mm, ext);
	bool full = cache_at(mm, x->cache)->desc.group[x->group].kind == MM_GROUP_FULL;
	uint32_t f, budget = UINT32_MAX;

	while ((f = x->frames[FRAME_COLD].head))
		node_strip(mm, frame_at(mm, f)->node, x->group);
	/* Without its full page a node is of no use; without a window or a snapshot it still is. */
	while ((f = x->frames[FRAME_CACHED].head)) {
		if (full)
			node_evict(mm, frame_at(mm, f)->node, &budget);
		else
			node_strip(mm, frame_at(mm, f)->node, x->group);
	}
}

/* ---- scrubbing ----------------------------------------------------------------------------- */

static uint16_t scrub_shards(const struct mm *mm, const struct extent *x)
{
	const struct cache *c = cache_at(mm, x->cache);
	uint16_t mask = 0;

	for (uint32_t s = 0; s < c->desc.nr_shards; s++)
		if (mm->cfg.device[c->desc.shard[s].device].scrub)
			mask |= (uint16_t)(1u << s);
	return mask;
}

/* The next run of quarantined slots from slot on; false: none. */
static bool next_run(const struct mm *mm, struct extent *x, uint32_t slot)
{
	while (slot < x->fresh && frame_at(mm, x->base + slot)->state != FRAME_QUARANTINED)
		slot++;
	x->scrub_slot = slot;
	x->scrub_nr = 0;
	while (slot < x->fresh && frame_at(mm, x->base + slot)->state == FRAME_QUARANTINED)
		slot++, x->scrub_nr++;
	return x->scrub_nr != 0;
}

static void free_run(struct mm *mm, const struct extent *x)
{
	for (uint32_t i = 0; i < x->scrub_nr; i++) {
		frame_renew(mm, x->base + x->scrub_slot + i);
		frame_set_state(mm, x->base + x->scrub_slot + i, FRAME_FREE);
	}
}

static void scrub_next(struct mm *mm, uint32_t ext, uint32_t slot)
{
	struct extent *x = extent_at(mm, ext);
	uint16_t shards = scrub_shards(mm, x);

	while (next_run(mm, x, slot)) {
		if (shards) {
			fx_begin(mm, ext, shards);
			return;
		}
		free_run(mm, x);
		slot = x->scrub_slot + x->scrub_nr;
	}
	if (x->scrubbing) {
		uint32_t engine = bind_at(mm, x->bind)->engine;

		x->scrubbing = 0;
		engine_at(mm, engine)->nr_scrubs--;
		engine_drained(mm, engine);
	}
}

void extent_scrub(struct mm *mm, uint32_t ext)
{
	struct extent *x = extent_at(mm, ext);

	if (x->nr[FRAME_QUARANTINED] && scrub_shards(mm, x)) {
		x->scrubbing = 1;
		engine_at(mm, bind_at(mm, x->bind)->engine)->nr_scrubs++;
	}
	scrub_next(mm, ext, 0);
}

/* ---- completions --------------------------------------------------------------------------- */

/* Due from the first failure on: later calls must not push it away. */
static void retry_later(struct mm *mm, struct extent *x, uint16_t shards)
{
	x->fx_retry |= shards;
	if (!mm->retry)
		mm->retry_ns = mm->now_ns + EXTENT_RETRY_NS;
	mm->retry = true;
}

static void complete_create(struct mm *mm, uint32_t ext, uint16_t bit, int result)
{
	struct extent *x = extent_at(mm, ext);

	if (!result) {
		x->fx_ok |= bit;
	} else {
		/* The other shards are not worth starting any more, those made will go again. */
		if (!x->leaving) {
			leave(mm, x);
			if (x->bind)
				admit_count(mm, x->bind, x->group, false);
		}
		uncharge(mm, x, bit | x->fx_todo);
		x->fx_error = result;
		fx_cancel(mm, ext);
	}
	if (!x->fx_todo && !x->fx_busy)
		created(mm, ext);
}

static void complete_destroy(struct mm *mm, uint32_t ext, uint16_t bit, int result)
{
	struct extent *x = extent_at(mm, ext);

	if (result) {
		retry_later(mm, x, bit);
	} else {
		x->fx_ok &= (uint16_t)~bit;
		uncharge(mm, x, bit);
	}
	if (!x->fx_ok)
		extent_free(mm, ext);
}

static void complete_scrub(struct mm *mm, uint32_t ext, uint16_t bit, int result)
{
	struct extent *x = extent_at(mm, ext);

	if (result)
		retry_later(mm, x, bit);
	if (x->fx_todo || x->fx_busy || x->fx_retry)
		return;
	free_run(mm, x);
	scrub_next(mm, ext, x->scrub_slot + x->scrub_nr);
}

int extent_complete(struct mm *mm, uint64_t id, int result)
{
	uint32_t shard = id & ((1u << FX_EXTENT_SHIFT) - 1);
	uint32_t ext = (uint32_t)(id >> FX_EXTENT_SHIFT) & ((1u << MM_EXTENT_BITS) - 1);
	struct extent *x = extent_lookup(mm, ext);
	uint16_t bit = (uint16_t)(1u << shard);

	if (!x || x->fx_seq != id >> FX_SEQ_SHIFT || !(x->fx_busy & bit))
		return -ENOENT;
	x->fx_busy &= (uint16_t)~bit;
	if (x->state == EXTENT_CREATING)
		complete_create(mm, ext, bit, result);
	else if (x->state == EXTENT_DESTROYING)
		complete_destroy(mm, ext, bit, result);
	else
		complete_scrub(mm, ext, bit, result);
	return 0;
}

void extent_retry(struct mm *mm)
{
	if (!mm->retry || mm->now_ns < mm->retry_ns)
		return;
	mm->retry = false;
	for (uint32_t e = pool_next(mm, &mm->extents, 0); e; e = pool_next(mm, &mm->extents, e)) {
		struct extent *x = extent_at(mm, e);
		uint16_t shards = x->fx_retry;

		if (!shards)
			continue;
		if (x->fx_todo || x->fx_busy) {
			retry_later(mm, x, shards);
			continue;
		}
		x->fx_retry = 0;
		fx_begin(mm, e, shards);
	}
}

void extent_each(struct mm *mm, uint32_t bind, void (*fn)(struct mm *, uint32_t))
{
	struct bind *b = bind_at(mm, bind);

	for (uint32_t e = pool_next(mm, &mm->extents, 0); e && b->nr_extents;
	     e = pool_next(mm, &mm->extents, e))
		if (extent_at(mm, e)->bind == bind && extent_at(mm, e)->state == EXTENT_LIVE)
			fn(mm, e);
}

int mm_extent_shards(const struct mm *mm, uint32_t ext, uint32_t *nr_shards)
{
	if (!pool_live(mm, &mm->extents, ext))
		return -ENOENT;
	*nr_shards = cache_at(mm, extent_at(mm, ext)->cache)->desc.nr_shards;
	return 0;
}
