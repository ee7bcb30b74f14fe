// SPDX-License-Identifier: Apache-2.0
#include "cache.h"
#include "check.h"
#include "core.h"
#include "debt.h"
#include "import.h"

/* Walks a list of mm and compares its count; calls the body with i. */
#define EACH(i, list_, at, field) \
	for (uint32_t i = (list_).head, prev_ = NIL, left_ = check_count(&(list_)); \
	     check_link(i, i ? at(mm, i)->field.prev : NIL, prev_, &(list_), left_); \
	     prev_ = i, i = at(mm, i)->field.next, left_--)

static uint32_t check_count(const struct list *l)
{
	MM_ASSERT(!l->head == !l->nr && !l->tail == !l->nr);
	return l->nr;
}

static bool check_link(uint32_t i, uint32_t its_prev, uint32_t prev, const struct list *l,
		       uint32_t left)
{
	MM_ASSERT(!i == !left);
	if (!i)
		MM_ASSERT(l->tail == prev);
	else
		MM_ASSERT(its_prev == prev);
	return i != NIL;
}

/* ---- extents and frames -------------------------------------------------------------------- */

static void check_frame(const struct mm *mm, uint32_t ext, uint32_t f, uint32_t state)
{
	const struct frame *fr = frame_at(mm, f);
	const struct extent *x = extent_at(mm, ext);
	const struct node *n = node_at(mm, fr->node);

	MM_ASSERT(fr->extent == ext && fr->state == state && !fr->mark && fr->gen);
	MM_ASSERT(f >= x->base && f < x->base + x->fresh);
	if (state != FRAME_CACHED && state != FRAME_COLD) {
		MM_ASSERT(!fr->node);
		return;
	}
	MM_ASSERT(pool_live(mm, &mm->nodes, fr->node));
	MM_ASSERT(n->loc[x->group] == f && n->cache == x->cache);
	if (state == FRAME_COLD)
		MM_ASSERT(n->dropped >> x->group & 1 && !n->need);
}

static void check_frames(const struct mm *mm, uint32_t ext)
{
	const struct extent *x = extent_at(mm, ext);
	uint32_t sum = 0, pinned = 0;

	for (uint32_t s = 0; s < FRAME_NR; s++) {
		uint32_t unwritten = s == FRAME_FREE ? extent_pages(x) - x->fresh : 0;

		EACH(f, x->frames[s], frame_at, link) {
			check_frame(mm, ext, f, s);
			if (s == FRAME_CACHED)
				pinned += node_at(mm, frame_at(mm, f)->node)->pins != 0;
		}
		MM_ASSERT(x->nr[s] == x->frames[s].nr + unwritten);
		sum += x->nr[s];
	}
	MM_ASSERT(sum == extent_pages(x) && pinned == x->nr_pinned);
}

static void check_imports(const struct mm *mm, uint32_t ext)
{
	uint32_t sum = 0;

	for (uint32_t m = pool_next(mm, &mm->members, 0); m; m = pool_next(mm, &mm->members, m))
		sum += import_count(*import_bits(mm, m, ext));
	MM_ASSERT(sum == extent_at(mm, ext)->nr_imports);
}

static void check_extent(const struct mm *mm, uint32_t ext)
{
	const struct extent *x = extent_at(mm, ext);
	bool live = x->state == EXTENT_LIVE;
	bool takeable = live && !x->nr[FRAME_HELD] && !x->nr[FRAME_QUARANTINED] &&
			!x->nr[FRAME_IO] && !x->nr_pinned && !x->nr_from;

	MM_ASSERT(x->state > EXTENT_NONE && x->state <= EXTENT_DESTROYING);
	MM_ASSERT(pool_live(mm, &mm->caches, x->cache));
	MM_ASSERT(x->base && x->base + extent_pages(x) - 1 <= mm->cfg.max_frames);
	MM_ASSERT(!(x->fx_todo & x->fx_busy) && x->on_fx == (x->fx_todo != 0));
	MM_ASSERT(x->on_take == takeable &&
		  x->leaving == (x->state >= EXTENT_RETIRING || x->fx_error));
	check_frames(mm, ext);
	check_imports(mm, ext);
	if (x->bind) {
		MM_ASSERT(live || x->state == EXTENT_CREATING);
		MM_ASSERT(bind_at(mm, x->bind)->cache == x->cache);
		MM_ASSERT(x->bucket == (live ? slab_bucket(mm, ext) : SLAB_CREATING));
	} else {
		MM_ASSERT(!live && x->nr[FRAME_FREE] == extent_pages(x));
	}
	if (x->state == EXTENT_RETIRING)
		MM_ASSERT(x->nr_imports);
	if (x->state == EXTENT_CREATING || x->state == EXTENT_DESTROYING)
		MM_ASSERT(!x->nr_imports && (x->fx_todo || x->fx_busy || x->fx_retry));
	if (x->scrubbing)
		MM_ASSERT(live && x->nr[FRAME_QUARANTINED] &&
			  (x->fx_todo || x->fx_busy || x->fx_retry));
}

/* Nobody was promised what is not there, or on its way. */
static void check_promises(const struct mm *mm, uint32_t d)
{
	const struct device *dev = &mm->device[d];
	uint64_t sum = 0;

	for (uint32_t t = pool_next(mm, &mm->tenants, 0); t; t = pool_next(mm, &mm->tenants, t)) {
		uint64_t mine = 0;

		for (uint32_t b = pool_next(mm, &mm->binds, 0); b;
		     b = pool_next(mm, &mm->binds, b)) {
			const struct cache *c = cache_at(mm, bind_at(mm, b)->cache);

			for (uint32_t g = 0; g < MM_MAX_GROUPS && c->tenant == t; g++) {
				const struct slab *s = &bind_at(mm, b)->slab[g];

				mine += core_less(s->promise, s->nr_extents) * c->need[g][d];
			}
		}
		MM_ASSERT(mine == tenant_at(mm, t)->promised[d]);
		sum += mine;
	}
	MM_ASSERT(sum == dev->promised_bytes);
	MM_ASSERT(dev->extent_bytes + dev->reserved_bytes + sum <=
		  mm->cfg.device[d].pool_bytes + dev->leaving_bytes);
}

static uint64_t check_reserved(const struct mm *mm, uint32_t engine, uint32_t d)
{
	const struct engine *e = engine_at(mm, engine);
	uint64_t sum = 0;

	for (uint32_t w = 0; w < MM_NR_RESERVES; w++)
		sum += e->reserved_for[w][d];
	MM_ASSERT(sum == e->reserved[d]);
	return sum;
}

static void check_budgets(const struct mm *mm)
{
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++) {
		uint64_t extents = 0, leave = 0, reserved = 0, min = 0;

		for (uint32_t e = pool_next(mm, &mm->extents, 0); e;
		     e = pool_next(mm, &mm->extents, e)) {
			const struct extent *x = extent_at(mm, e);
			const struct cache *c = cache_at(mm, x->cache);

			for (uint32_t s = 0; s < c->desc.nr_shards; s++) {
				if (c->desc.shard[s].device != d || !(x->charged & 1u << s))
					continue;
				extents += c->extent_bytes[x->group][s];
				leave += x->leaving ? c->extent_bytes[x->group][s] : 0;
			}
		}
		for (uint32_t e = pool_next(mm, &mm->engines, 0); e;
		     e = pool_next(mm, &mm->engines, e))
			reserved += check_reserved(mm, e, d);
		for (uint32_t t = pool_next(mm, &mm->tenants, 0); t;
		     t = pool_next(mm, &mm->tenants, t))
			min += tenant_at(mm, t)->limit[d].min_bytes;
		MM_ASSERT(min <= mm->cfg.device[d].pool_bytes);
		MM_ASSERT(extents == mm->device[d].extent_bytes);
		MM_ASSERT(leave == mm->device[d].leaving_bytes);
		MM_ASSERT(reserved == mm->device[d].reserved_bytes);
		MM_ASSERT(extents + reserved <= mm->cfg.device[d].pool_bytes);
		check_promises(mm, d);
	}
}

static void check_extents(const struct mm *mm)
{
	uint32_t take = 0, retire = 0, fx = 0, leave = 0, frames = 0, retry = 0;

	for (uint32_t e = pool_next(mm, &mm->extents, 0); e; e = pool_next(mm, &mm->extents, e)) {
		const struct extent *x = extent_at(mm, e);

		check_extent(mm, e);
		take += x->on_take;
		fx += x->on_fx;
		retire += x->state == EXTENT_RETIRING;
		leave += x->leaving;
		frames += extent_pages(x);
		retry += x->fx_retry != 0;
	}
	EACH(e, mm->takeable, extent_at, take_link)
		MM_ASSERT(extent_at(mm, e)->on_take);
	EACH(e, mm->retiring, extent_at, retire_link)
		MM_ASSERT(extent_at(mm, e)->state == EXTENT_RETIRING);
	EACH(e, mm->fx, extent_at, fx_link)
		MM_ASSERT(extent_at(mm, e)->on_fx);
	MM_ASSERT(take == mm->takeable.nr && retire == mm->retiring.nr && fx == mm->fx.nr);
	MM_ASSERT(leave == mm->nr_leaving && (!retry || mm->retry));
	MM_ASSERT(frames + mm->frame_buddy.free_units == mm->cfg.max_frames);
	buddy_check(mm, &mm->frame_buddy);
	check_budgets(mm);
}

/* ---- binds, caches ------------------------------------------------------------------------- */

static uint32_t check_slab(const struct mm *mm, uint32_t bind, uint32_t g)
{
	const struct slab *s = &bind_at(mm, bind)->slab[g];
	uint32_t nr[FRAME_NR] = { 0 }, off[FRAME_NR] = { 0 }, pinned = 0, off_pinned = 0;
	uint32_t extents = 0, coming = 0, failing = 0;

	for (uint32_t k = 0; k < SLAB_BUCKETS; k++) {
		if (k != SLAB_CREATING)
			MM_ASSERT((s->mask >> k & 1) == (s->bucket[k].nr != 0));
		EACH(e, s->bucket[k], extent_at, bucket_link) {
			const struct extent *x = extent_at(mm, e);

			MM_ASSERT(x->bind == bind && x->group == g && x->bucket == k);
			extents++;
			failing += x->leaving;
			coming += k == SLAB_CREATING ? extent_pages(x) : 0;
			for (uint32_t i = 0; i < FRAME_NR && k != SLAB_CREATING; i++) {
				nr[i] += x->nr[i];
				off[i] += x->draining ? x->nr[i] : 0;
			}
			pinned += x->nr_pinned;
			off_pinned += x->draining ? x->nr_pinned : 0;
		}
	}
	EACH(e, s->cold, extent_at, cold_link)
		MM_ASSERT(extent_at(mm, e)->nr[FRAME_COLD] && extent_at(mm, e)->bind == bind &&
			  !extent_at(mm, e)->draining);
	for (uint32_t i = 0; i < FRAME_NR; i++)
		MM_ASSERT(nr[i] == s->nr[i] && off[i] == s->off[i]);
	MM_ASSERT(pinned == s->nr_pinned && off_pinned == s->off_pinned && coming == s->nr_coming);
	MM_ASSERT(extents - failing == s->nr_extents && !s->nr_marked);
	return extents;
}

/* Not those that copies are still made from. */
static uint32_t nr_empty(const struct mm *mm, const struct slab *s)
{
	uint32_t nr = 0;

	for (uint32_t e = s->bucket[SLAB_EMPTY].head; e; e = extent_at(mm, e)->bucket_link.next)
		nr += !extent_at(mm, e)->nr_from;
	return nr;
}

static void check_bind(const struct mm *mm, uint32_t bind)
{
	const struct bind *b = bind_at(mm, bind);
	uint32_t extents = 0, pend[MM_MAX_GROUPS] = { 0 };

	MM_ASSERT(pool_live(mm, &mm->caches, b->cache) && !b->on_trim);
	MM_ASSERT(b->engine ? pool_live(mm, &mm->engines, b->engine) : b->nr_extents != 0);
	for (uint32_t p = mm->waiting.head; p; p = pending_at(mm, p)->link.next)
		if (pending_at(mm, p)->bind == bind)
			pend[pending_at(mm, p)->group] += pending_at(mm, p)->nr_pages;
	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++) {
		const struct slab *s = &b->slab[g];
		bool alive = b->engine && !engine_at(mm, b->engine)->fenced;

		extents += check_slab(mm, bind, g);
		MM_ASSERT(pend[g] == s->pend_pages);
		MM_ASSERT(nr_empty(mm, s) <= alive || s->pend_pages);
		if (!alive)
			MM_ASSERT(!s->nr[FRAME_HELD] && !s->promise);
		if (!b->engine)
			MM_ASSERT(!s->nr[FRAME_QUARANTINED] && !s->nr_coming);
	}
	MM_ASSERT(extents == b->nr_extents);
}

static void check_cache(const struct mm *mm, uint32_t cache)
{
	const struct cache *c = cache_at(mm, cache);
	uint32_t extents = 0;

	MM_ASSERT(pool_live(mm, &mm->tenants, c->tenant));
	MM_ASSERT(c->binds.nr || c->orphans.nr || c->nr_extents);
	EACH(b, c->binds, bind_at, cache_link)
		MM_ASSERT(bind_at(mm, b)->cache == cache && bind_at(mm, b)->engine);
	EACH(b, c->orphans, bind_at, cache_link)
		MM_ASSERT(bind_at(mm, b)->cache == cache && !bind_at(mm, b)->engine);
	for (uint32_t e = pool_next(mm, &mm->extents, 0); e; e = pool_next(mm, &mm->extents, e))
		extents += extent_at(mm, e)->cache == cache;
	MM_ASSERT(extents == c->nr_extents);
}

/* ---- engines, tenants, queues -------------------------------------------------------------- */

static void check_engine(const struct mm *mm, uint32_t engine)
{
	const struct engine *e = engine_at(mm, engine);
	uint32_t pend = 0, scrubs = 0;

	MM_ASSERT(pool_live(mm, &mm->tenants, e->tenant));
	MM_ASSERT(e->members.nr || (e->fenced && e->draining && e->nr_scrubs));
	EACH(m, e->members, member_at, engine_link)
		MM_ASSERT(member_at(mm, m)->engine == engine && pool_live(mm, &mm->members, m));
	EACH(b, e->binds, bind_at, engine_link) {
		MM_ASSERT(bind_at(mm, b)->engine == engine);
		for (uint32_t x = pool_next(mm, &mm->extents, 0); x;
		     x = pool_next(mm, &mm->extents, x))
			scrubs += extent_at(mm, x)->bind == b && extent_at(mm, x)->scrubbing;
	}
	EACH(l, e->leases, lease_at, engine_link)
		MM_ASSERT(lease_at(mm, l)->engine == engine && !lease_at(mm, l)->mark);
	EACH(p, e->parks, park_at, engine_link)
		MM_ASSERT(park_at(mm, p)->engine == engine);
	for (uint32_t p = mm->waiting.head; p; p = pending_at(mm, p)->link.next)
		pend += pending_at(mm, p)->engine == engine;
	MM_ASSERT(pend == e->nr_pending && scrubs == e->nr_scrubs);
	if (e->fenced)
		MM_ASSERT(!e->leases.nr && !e->parks.nr && !pend);
}

static void check_tenant(const struct mm *mm, uint32_t tenant)
{
	const struct tenant *t = tenant_at(mm, tenant);
	uint32_t refs = 0;
	uint64_t sum[MM_MAX_DEVICES] = { 0 }, leave[MM_MAX_DEVICES] = { 0 };

	EACH(c, t->caches, cache_at, tenant_link)
		MM_ASSERT(cache_at(mm, c)->tenant == tenant);
	for (uint32_t e = pool_next(mm, &mm->engines, 0); e; e = pool_next(mm, &mm->engines, e))
		refs += engine_at(mm, e)->tenant == tenant;
	for (uint32_t c = pool_next(mm, &mm->caches, 0); c; c = pool_next(mm, &mm->caches, c))
		refs += cache_at(mm, c)->tenant == tenant;
	for (uint32_t e = pool_next(mm, &mm->extents, 0); e; e = pool_next(mm, &mm->extents, e)) {
		const struct extent *x = extent_at(mm, e);
		const struct cache *c = cache_at(mm, x->cache);

		for (uint32_t s = 0; s < c->desc.nr_shards && c->tenant == tenant; s++)
			if (x->charged & 1u << s) {
				uint64_t bytes = c->extent_bytes[x->group][s];

				sum[c->desc.shard[s].device] += bytes;
				leave[c->desc.shard[s].device] += x->leaving ? bytes : 0;
			}
	}
	MM_ASSERT(refs + t->configured == t->nr_refs && t->nr_refs);
	debt_check(mm, tenant);
	for (uint32_t d = 0; d < MM_MAX_DEVICES; d++) {
		const struct mm_limits *l = &t->limit[d];

		MM_ASSERT(sum[d] == t->charge[d] && t->charge[d] <= t->peak[d]);
		MM_ASSERT(leave[d] == t->leaving[d]);
		MM_ASSERT(!l->low_bytes || l->min_bytes <= l->low_bytes);
		MM_ASSERT(l->high_bytes == MM_NO_LIMIT || l->high_bytes <= l->max_bytes);
	}
}

/* What is at hand is enough for none that waits, and who waits for an extent has one coming. */
static void check_not_forgotten(const struct mm *mm, const struct pending *pe)
{
	const struct slab *s = &bind_at(mm, pe->bind)->slab[pe->group];

	MM_ASSERT(slab_ready(s) < pe->nr_pages);
	MM_ASSERT(pending_wants_room(pe) ? pe->deadline_ns > mm->now_ns : s->nr_coming != 0);
}

static void check_queue(const struct mm *mm)
{
	const struct pending_queue *q = &mm->queue;
	uint32_t listed = 0;
	uint64_t due = UINT64_MAX, seq = 0;

	EACH(p, mm->waiting, pending_at, link) {
		const struct pending *pe = pending_at(mm, p);

		MM_ASSERT(pool_live(mm, &mm->pendings, p) && pe->seq > seq);
		seq = pe->seq;
		MM_ASSERT(!pe->bars || !pe->own);
		due = pending_wants_room(pe) && pe->deadline_ns < due ? pe->deadline_ns : due;
		if (!mm->more)
			check_not_forgotten(mm, pe);
	}
	check_fair(mm);
	MM_ASSERT(!q->stale && due == q->due_ns && seq <= q->last_seq);
	for (uint32_t b = pool_next(mm, &mm->binds, 0); b; b = pool_next(mm, &mm->binds, b))
		for (uint32_t g = 0; g < MM_MAX_GROUPS; g++) {
			const struct slab *s = &bind_at(mm, b)->slab[g];
			uint32_t pages = 0;

			seq = 0;
			EACH(p, s->waiters, pending_at, slab_link) {
				const struct pending *pe = pending_at(mm, p);

				MM_ASSERT(pe->bind == b && pe->group == g && pe->seq > seq);
				seq = pe->seq;
				pages += pe->nr_pages;
			}
			MM_ASSERT(pages == s->pend_pages);
			listed += s->waiters.nr;
		}
	MM_ASSERT(listed == mm->waiting.nr);
	EACH(b, mm->wake, bind_at, wake_link)
		MM_ASSERT(bind_at(mm, b)->on_wake && pool_live(mm, &mm->binds, b));
}

/* Nobody forgets to answer them. */
static void check_cancelled(const struct mm *mm)
{
	EACH(p, mm->cancelled, pending_at, link) {
		const struct pending *pe = pending_at(mm, p);

		MM_ASSERT(pool_live(mm, &mm->pendings, p) && !pe->bind && pe->cache);
		MM_ASSERT(pool_live(mm, &mm->engines, pe->engine) &&
			  !engine_at(mm, pe->engine)->fenced);
	}
	MM_ASSERT(!mm->cancelled.nr || mm->more);
}

static void check_kills(const struct mm *mm)
{
	uint32_t nr = 0;

	for (uint32_t i = pool_next(mm, &mm->engines, 0); i; i = pool_next(mm, &mm->engines, i))
		nr += engine_at(mm, i)->kill;
	MM_ASSERT(nr == mm->nr_kills);
}

void mm_check(const struct mm *mm)
{
	MM_ASSERT(mm->magic == MM_MAGIC && mm->version == MM_VERSION);
	MM_ASSERT(!mm->trim.nr);
	check_extents(mm);
	compact_check(mm);
	for (uint32_t i = pool_next(mm, &mm->binds, 0); i; i = pool_next(mm, &mm->binds, i))
		check_bind(mm, i);
	for (uint32_t i = pool_next(mm, &mm->caches, 0); i; i = pool_next(mm, &mm->caches, i))
		check_cache(mm, i);
	for (uint32_t i = pool_next(mm, &mm->engines, 0); i; i = pool_next(mm, &mm->engines, i))
		check_engine(mm, i);
	for (uint32_t i = pool_next(mm, &mm->tenants, 0); i; i = pool_next(mm, &mm->tenants, i))
		check_tenant(mm, i);
	check_kills(mm);
	check_queue(mm);
	check_cancelled(mm);
	EACH(m, mm->notify, member_at, notify_link)
		MM_ASSERT(member_at(mm, m)->on_notify && pool_live(mm, &mm->members, m));
	MM_ASSERT(mm->waiting.nr + mm->cancelled.nr == mm->pendings.nr_used &&
		  mm->replies.nr <= REPLY_RING);
	check_tree(mm);
}
