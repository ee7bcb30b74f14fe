// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "admit.h"
#include "core.h"
#include "policy.h"
#include "reclaim.h"

#define MAX_PAGE_BYTES	(1ull << 40)

/* ---- description --------------------------------------------------------------------------- */

static bool groups_valid(const struct mm_cache_desc *d)
{
	for (uint32_t g = 0; g < d->nr_groups; g++) {
		const struct mm_group_desc *gd = &d->group[g];

		if (gd->kind < MM_GROUP_FULL || gd->kind > MM_GROUP_STATE)
			return false;
		if (gd->kind == MM_GROUP_WINDOW && !gd->window_tokens)
			return false;
	}
	return true;
}

static bool desc_valid(const struct mm *mm, const struct mm_cache_desc *d)
{
	if (!d || !d->page_tokens || d->page_tokens > 65536)
		return false;
	if (!d->nr_groups || d->nr_groups > MM_MAX_GROUPS || !d->nr_shards ||
	    d->nr_shards > MM_MAX_SHARDS || !groups_valid(d))
		return false;
	for (uint32_t s = 0; s < d->nr_shards; s++) {
		if (d->shard[s].device >= mm->cfg.nr_devices)
			return false;
		for (uint32_t g = 0; g < d->nr_groups; g++) {
			uint64_t bytes = d->shard[s].page_bytes[g];

			if (!bytes || bytes % 64 || bytes > MAX_PAGE_BYTES)
				return false;
		}
	}
	return true;
}

static bool same_geometry(const struct mm_cache_desc *a, const struct mm_cache_desc *b)
{
	if (memcmp(a->layout_key, b->layout_key, MM_KEY_BYTES) ||
	    a->page_tokens != b->page_tokens || a->nr_groups != b->nr_groups ||
	    a->nr_shards != b->nr_shards)
		return false;
	for (uint32_t g = 0; g < a->nr_groups; g++)
		if (memcmp(&a->group[g], &b->group[g], sizeof(a->group[g])))
			return false;
	for (uint32_t s = 0; s < a->nr_shards; s++)
		if (a->shard[s].device != b->shard[s].device ||
		    a->shard[s].replicated != b->shard[s].replicated ||
		    memcmp(a->shard[s].page_bytes, b->shard[s].page_bytes,
			   a->nr_groups * sizeof(uint64_t)))
			return false;
	return true;
}

/* ---- geometry ------------------------------------------------------------------------------ */

/* 2^order pages of the largest shard come as near to the device's extent_bytes as a factor can,
 * the smaller of two equally near, but not beyond what a page id can name. */
static uint32_t pick_order(const struct mm *mm, const struct mm_cache_desc *d, uint32_t g)
{
	uint32_t big = 0, order = 0;
	uint64_t page, target;

	for (uint32_t s = 1; s < d->nr_shards; s++)
		if (d->shard[s].page_bytes[g] > d->shard[big].page_bytes[g])
			big = s;
	page = d->shard[big].page_bytes[g];
	target = mm->cfg.device[d->shard[big].device].extent_bytes;
	while (order < MM_SLOT_BITS && 2u << order <= mm->cfg.max_frames &&
	       (page << (order + 1) <= target ||
		(unsigned __int128)target * target >
		(unsigned __int128)(page << order) * (page << (order + 1))))
		order++;
	return order;
}

/* Bytes of a group's extents by shard and by device; does one fit into every pool? */
static bool size_extents(const struct mm *mm, struct cache *c, uint32_t g)
{
	bool fits = true;

	memset(c->need[g], 0, sizeof(c->need[g]));
	for (uint32_t s = 0; s < c->desc.nr_shards; s++) {
		uint32_t d = c->desc.shard[s].device;
		uint64_t align = mm->cfg.device[d].extent_align;
		uint64_t bytes = c->desc.shard[s].page_bytes[g] << c->order[g];

		c->extent_bytes[g][s] = (bytes + align - 1) / align * align;
		c->need[g][d] += c->extent_bytes[g][s];
		fits = fits && c->need[g][d] <= mm->cfg.device[d].pool_bytes;
	}
	return fits;
}

static void set_geometry(const struct mm *mm, struct cache *c)
{
	const struct mm_cache_desc *d = &c->desc;

	c->tails = true;
	for (uint32_t g = 0; g < d->nr_groups; g++) {
		c->order[g] = pick_order(mm, d, g);
		while (!size_extents(mm, c, g) && c->order[g])
			c->order[g]--;
		if (d->group[g].kind == MM_GROUP_WINDOW)
			c->window_mask |= 1u << g;
		if (d->group[g].kind == MM_GROUP_FULL)
			c->full_mask |= 1u << g;
		if (d->group[g].kind == MM_GROUP_STATE)
			c->state_mask |= 1u << g;
		if (d->group[g].opaque)
			c->tails = false;
	}
	for (uint32_t s = 0; s < d->nr_shards; s++) {
		c->device_mask |= 1u << d->shard[s].device;
		c->scrub |= mm->cfg.device[d->shard[s].device].scrub;
	}
}

static void give_geometry(struct mm *mm, uint32_t cache, struct mm_reply *rp)
{
	const struct cache *c = cache_at(mm, cache);
	uint32_t nr_words = c->desc.nr_groups * sizeof(struct mm_group_geom) / sizeof(uint64_t);
	struct mm_group_geom *geom = (struct mm_group_geom *)reply_words(mm, nr_words);

	rp->geom = geom;
	rp->cache = pool_id(mm, &mm->caches, cache);
	rp->nr_groups = c->desc.nr_groups;
	for (uint32_t g = 0; g < c->desc.nr_groups; g++) {
		geom[g].extent_pages = 1u << c->order[g];
		geom[g].pad = 0;
		memcpy(geom[g].extent_bytes, c->extent_bytes[g], sizeof(geom[g].extent_bytes));
	}
}

/* ---- life ---------------------------------------------------------------------------------- */

static uint32_t create(struct mm *mm, const struct cache *shape)
{
	uint32_t cache = pool_get(mm, &mm->caches), tenant = shape->tenant;
	struct cache *c = cache_at(mm, cache);
	struct pool_obj obj = c->obj;

	MM_ASSERT(cache);
	*c = *shape;
	c->obj = obj;
	cache_list_add_tail(mm, &tenant_at(mm, tenant)->caches, cache);
	tenant_at(mm, tenant)->nr_refs++;
	return cache;
}

void cache_put(struct mm *mm, uint32_t cache)
{
	struct cache *c = cache_at(mm, cache);
	uint32_t tenant = c->tenant;

	if (c->binds.nr || c->orphans.nr || c->nr_extents)
		return;
	MM_ASSERT(!c->nr_nodes && !c->children);
	cache_list_del(mm, &tenant_at(mm, tenant)->caches, cache);
	pool_put(mm, &mm->caches, cache);
	tenant_put(mm, tenant);
}

void cache_bind_put(struct mm *mm, uint32_t bind)
{
	struct bind *b = bind_at(mm, bind);
	uint32_t cache = b->cache;

	if (b->engine || b->nr_extents)
		return;
	MM_ASSERT(!b->policy.mask && !b->on_trim);
	cache_bind_list_del(mm, &cache_at(mm, cache)->orphans, bind);
	pool_put(mm, &mm->binds, bind);
	cache_put(mm, cache);
}

/* An extent with content; pages may be on their way into others. */
static uint32_t any_cached(const struct mm *mm, const struct bind *b)
{
	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++)
		for (uint32_t k = 1; k <= SLAB_FULL; k++)
			for (uint32_t e = b->slab[g].bucket[k].head; e;
			     e = extent_at(mm, e)->bucket_link.next)
				if (extent_at(mm, e)->nr[FRAME_CACHED] ||
				    extent_at(mm, e)->nr[FRAME_COLD])
					return e;
	return NIL;
}

void cache_leave(struct mm *mm, uint32_t bind)
{
	struct bind *b = bind_at(mm, bind);
	struct cache *c = cache_at(mm, b->cache);
	uint32_t ext;

	admit_promise(mm, bind, 0);
	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++) {
		struct list *creating = &b->slab[g].bucket[SLAB_CREATING];

		while ((ext = creating->head)) {	/* destroyed as soon as it is made */
			bucket_list_del(mm, creating, ext);
			if (!extent_at(mm, ext)->leaving)
				admit_count(mm, bind, g, false);
			extent_at(mm, ext)->bind = NIL;
			b->nr_extents--;
		}
		b->slab[g].nr_coming = 0;
	}
	compact_leave(mm, bind);
	while (!c->shared && (ext = any_cached(mm, b)))
		extent_evict(mm, ext);
	engine_bind_list_del(mm, &engine_at(mm, b->engine)->binds, bind);
	cache_bind_list_del(mm, &c->binds, bind);
	cache_bind_list_add_tail(mm, &c->orphans, bind);
	b->engine = NIL;
	pending_leave(mm, bind);
	slab_trim_soon(mm, bind);
	mm->dirty = true;
}

/* ---- what was left behind ------------------------------------------------------------------ */

enum standing {
	IN_USE,		/* open, or somebody has yet to unmap it */
	LEFT,		/* content nobody has open, so none of it is leased or parked */
	GOING,		/* waits for the device only */
};

static enum standing standing(const struct mm *mm, uint32_t cache)
{
	const struct cache *c = cache_at(mm, cache);

	if (c->binds.nr)
		return IN_USE;
	if (c->nr_nodes)
		return LEFT;
	for (uint32_t x = mm->retiring.head; x; x = extent_at(mm, x)->retire_link.next)
		if (extent_at(mm, x)->cache == cache)
			return IN_USE;
	return GOING;
}

/* When the hottest of its content was last used. */
static uint64_t last_use(const struct mm *mm, uint32_t cache)
{
	uint64_t last = 0;

	for (uint32_t o = cache_at(mm, cache)->orphans.head; o;
	     o = bind_at(mm, o)->cache_link.next) {
		uint64_t used = policy_last_use(mm, o);

		last = used > last ? used : last;
	}
	return last;
}

/* Its extents retire at the end of the call. With the budget spent the rest is left for next time,
 * when it is the coldest again. */
static void clear(struct mm *mm, uint32_t cache, uint32_t *budget)
{
	while (cache_at(mm, cache)->children && *budget)
		node_evict(mm, cache_at(mm, cache)->children, budget);
}

/* True: a cache, or a bind of one, is on its way out. */
static bool clear_coldest(struct mm *mm)
{
	uint32_t victim = NIL, budget = EVICT_BUDGET;

	for (uint32_t c = pool_next(mm, &mm->caches, 0); c; c = pool_next(mm, &mm->caches, c)) {
		enum standing is = standing(mm, c);

		if (is == GOING)
			return true;
		if (is == LEFT && (!victim || last_use(mm, c) < last_use(mm, victim)))
			victim = c;
	}
	if (victim)
		clear(mm, victim, &budget);
	return victim != NIL;
}

/* Nobody attached and nothing mapped: when was it last used? 0: it is on its way out already. */
static bool tenant_left(const struct mm *mm, uint32_t tenant, uint64_t *last)
{
	const struct tenant *t = tenant_at(mm, tenant);

	*last = 0;
	if (t->nr_refs != t->caches.nr)
		return false;
	for (uint32_t c = t->caches.head; c; c = cache_at(mm, c)->tenant_link.next) {
		enum standing is = standing(mm, c);

		if (is == IN_USE)
			return false;
		if (is == LEFT && last_use(mm, c) >= *last)
			*last = last_use(mm, c);
	}
	return true;
}

bool cache_clear_tenant(struct mm *mm)
{
	uint32_t victim = NIL, budget = EVICT_BUDGET;
	uint64_t last, coldest = UINT64_MAX;

	for (uint32_t t = pool_next(mm, &mm->tenants, 0); t; t = pool_next(mm, &mm->tenants, t)) {
		if (!tenant_left(mm, t, &last) || last >= coldest)
			continue;
		coldest = last;
		victim = t;
	}
	for (uint32_t c = victim ? tenant_at(mm, victim)->caches.head : NIL; c;
	     c = cache_at(mm, c)->tenant_link.next)
		clear(mm, c, &budget);
	return victim != NIL;
}

/* ---- open and close ------------------------------------------------------------------------ */

static uint32_t bind_of(const struct mm *mm, uint32_t engine, uint32_t cache)
{
	uint32_t b = engine_at(mm, engine)->binds.head;

	while (b && bind_at(mm, b)->cache != cache)
		b = bind_at(mm, b)->engine_link.next;
	return b;
}

uint32_t cache_bind(struct mm *mm, uint32_t engine, uint32_t cache_id, struct mm_reply *rp,
		    int *err)
{
	uint32_t cache = pool_find(mm, &mm->caches, cache_id), bind;

	if (!cache) {
		*err = reply_error(rp, -ENOENT, MM_NO_SUCH_ID, cache_id, 0);
		return NIL;
	}
	bind = bind_of(mm, engine, cache);
	if (!bind)
		*err = reply_error(rp, -EACCES, MM_NOT_OWNER, cache_id, 0);
	return bind;
}

static uint32_t find_shared(const struct mm *mm, uint32_t tenant, const struct mm_cache_desc *d)
{
	uint32_t c = tenant_at(mm, tenant)->caches.head;

	while (c && (!cache_at(mm, c)->shared ||
		     memcmp(cache_at(mm, c)->desc.model_key, d->model_key, MM_KEY_BYTES)))
		c = cache_at(mm, c)->tenant_link.next;
	return c;
}

/* Room for one more bind, and for a new cache in the engine's share. What was left behind counts as
 * free, but has to go first. */
static int open_room(struct mm *mm, uint32_t engine, bool is_new, struct mm_reply *rp)
{
	uint32_t mine = 0, nr_free = pool_free(&mm->caches), id = pool_id(mm, &mm->engines, engine);
	int err;

	for (uint32_t c = is_new ? pool_next(mm, &mm->caches, 0) : NIL; c;
	     c = pool_next(mm, &mm->caches, c)) {
		if (standing(mm, c) != IN_USE)
			nr_free++;
		else if (cache_at(mm, c)->creator == id)
			mine++;
	}
	err = is_new ? reply_share_of(rp, max_caches, mine, 1, nr_free) : 0;
	if (err)
		return err;
	if (!pool_full(&mm->binds) && !(is_new && pool_full(&mm->caches)))
		return 0;
	err = reply_table_full(rp, mm, max_caches);
	return clear_coldest(mm) ? -EAGAIN : err;
}

static void bind_new(struct mm *mm, uint32_t engine, uint32_t cache)
{
	uint32_t bind = pool_get(mm, &mm->binds);

	bind_at(mm, bind)->engine = engine;
	bind_at(mm, bind)->cache = cache;
	engine_bind_list_add_tail(mm, &engine_at(mm, engine)->binds, bind);
	cache_bind_list_add_tail(mm, &cache_at(mm, cache)->binds, bind);
}

/* The cache an open is for: the tenant's own of that model, or what a new one would be. */
static int find_or_shape(struct mm *mm, uint32_t tenant, const struct mm_cache_desc *d,
			 uint32_t *cache, struct cache *shape, struct mm_reply *rp)
{
	static const uint8_t zero[MM_KEY_BYTES];
	bool shared = memcmp(d->model_key, zero, MM_KEY_BYTES) != 0;

	*cache = shared ? find_shared(mm, tenant, d) : NIL;
	if (*cache) {
		if (same_geometry(&cache_at(mm, *cache)->desc, d))
			return 0;
		return reply_error(rp, -EINVAL, MM_LAYOUT_DIFFERS, 0, 0);
	}
	*shape = (struct cache){ .tenant = tenant, .desc = *d, .shared = shared };
	set_geometry(mm, shape);
	return 0;
}

int cache_op_open(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	const struct mm_cache_desc *d = rq->open.desc;
	int err = 0;
	uint32_t engine = engine_find(mm, rq->engine, rp, &err), tenant, cache, bind;
	struct cache shape;

	if (!engine)
		return err;
	if (!desc_valid(mm, d))
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, 0, 0);
	tenant = engine_at(mm, engine)->tenant;
	err = find_or_shape(mm, tenant, d, &cache, &shape, rp);
	bind = cache ? bind_of(mm, engine, cache) : NIL;
	if (!err && !bind)
		err = open_room(mm, engine, !cache, rp);
	if (!err)
		err = admit_check(mm, tenant, cache ? cache_at(mm, cache) : &shape, bind,
				  rq->open.min_pages, rp);
	if (err)
		return err;
	if (!cache) {
		cache = create(mm, &shape);
		cache_at(mm, cache)->creator = rq->engine;
	}
	if (!bind) {
		bind_new(mm, engine, cache);
		bind = bind_of(mm, engine, cache);
	}
	admit_promise(mm, bind, rq->open.min_pages);
	give_geometry(mm, cache, rp);
	return 0;
}

/* Does the engine still have something there that somebody must give back? */
static int left_open(const struct mm *mm, uint32_t bind, struct mm_reply *rp)
{
	const struct bind *b = bind_at(mm, bind);

	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++)
		if (b->slab[g].nr[FRAME_HELD] || b->slab[g].pend_pages)
			return reply_error(rp, -EBUSY, MM_LEASED, b->slab[g].nr[FRAME_HELD], 0);
	for (uint32_t l = engine_at(mm, b->engine)->leases.head; l;
	     l = lease_at(mm, l)->engine_link.next)
		if (lease_at(mm, l)->bind == bind)
			return reply_error(rp, -EBUSY, MM_LEASED, 0, 0);
	return 0;
}

static void free_held(struct mm *mm, uint32_t ext)
{
	struct extent *x = extent_at(mm, ext);

	engine_at(mm, bind_at(mm, x->bind)->engine)->frees += x->nr[FRAME_HELD];
	mm->vmstat.pages_free += x->nr[FRAME_HELD];
	while (x->frames[FRAME_HELD].head)
		frame_set_state(mm, x->frames[FRAME_HELD].head, FRAME_FREE);
}

static void give_back(struct mm *mm, uint32_t bind)
{
	struct engine *e = engine_at(mm, bind_at(mm, bind)->engine);
	uint32_t next;

	pending_cancel(mm, bind);
	for (uint32_t l = e->leases.head; l; l = next) {
		next = lease_at(mm, l)->engine_link.next;
		if (lease_at(mm, l)->bind == bind)
			lease_release(mm, l);
	}
	extent_each(mm, bind, free_held);
}

int cache_op_close(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	int err = 0;
	uint32_t engine = engine_find(mm, rq->engine, rp, &err), bind, next;

	if (!engine)
		return err;
	if (rq->flags & ~MM_CLOSE_GIVE_BACK)
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, rq->flags, 0);
	bind = cache_bind(mm, engine, rq->cache, rp, &err);
	if (!bind)
		return err;
	if (rq->flags & MM_CLOSE_GIVE_BACK)
		give_back(mm, bind);
	else
		err = left_open(mm, bind, rp);
	if (err)
		return err;
	for (uint32_t p = engine_at(mm, engine)->parks.head; p; p = next) {
		next = park_at(mm, p)->engine_link.next;
		if (park_at(mm, p)->bind == bind)
			park_free(mm, p);
	}
	cache_leave(mm, bind);
	return 0;
}

int mm_cache_shape(const struct mm *mm, uint32_t engine_id, uint32_t cache_id,
		   uint32_t *page_tokens, uint32_t *nr_groups)
{
	uint32_t engine = pool_find(mm, &mm->engines, engine_id);
	uint32_t cache = pool_find(mm, &mm->caches, cache_id);

	if (!engine || engine_at(mm, engine)->fenced || !cache || !bind_of(mm, engine, cache))
		return -ENOENT;
	*page_tokens = cache_at(mm, cache)->desc.page_tokens;
	*nr_groups = cache_at(mm, cache)->desc.nr_groups;
	return 0;
}
