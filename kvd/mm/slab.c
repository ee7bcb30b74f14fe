// SPDX-License-Identifier: Apache-2.0
#include "admit.h"
#include "cache.h"
#include "compact.h"
#include "core.h"
#include "import.h"
#include "policy.h"

uint32_t slab_bucket(const struct mm *mm, uint32_t ext)
{
	return slab_bucket_of(extent_at(mm, ext));
}

static void bucket_in(struct mm *mm, uint32_t ext, uint32_t bucket)
{
	struct extent *x = extent_at(mm, ext);
	struct slab *s = slab_of(mm, x);

	bucket_list_add_tail(mm, &s->bucket[bucket], ext);
	s->mask |= 1u << bucket;
	x->bucket = (uint8_t)bucket;
	if (bucket == SLAB_EMPTY)
		slab_trim_soon(mm, x->bind);
}

static void bucket_out(struct mm *mm, uint32_t ext)
{
	struct extent *x = extent_at(mm, ext);
	struct slab *s = slab_of(mm, x);

	bucket_list_del(mm, &s->bucket[x->bucket], ext);
	if (!s->bucket[x->bucket].nr)
		s->mask &= ~(1u << x->bucket);
}

void slab_move_bucket(struct mm *mm, uint32_t ext, uint32_t bucket)
{
	bucket_out(mm, ext);
	bucket_in(mm, ext, bucket);
}

void slab_set_draining(struct mm *mm, uint32_t ext, bool draining)
{
	struct extent *x = extent_at(mm, ext);
	struct slab *s = slab_of(mm, x);
	uint32_t by = draining ? 1 : -1u;

	MM_ASSERT(x->draining != draining);
	x->draining = draining;
	for (uint32_t i = 0; i < FRAME_NR; i++)
		s->off[i] += by * x->nr[i];
	s->off_pinned += by * x->nr_pinned;
	extent_update(mm, ext);
}

void slab_add(struct mm *mm, uint32_t ext, uint32_t bind)
{
	struct extent *x = extent_at(mm, ext);
	struct slab *s;

	MM_ASSERT(!x->bind && x->state == EXTENT_LIVE);
	x->bind = bind;
	x->writer = pool_id(mm, &mm->engines, bind_at(mm, bind)->engine);
	s = slab_of(mm, x);
	bind_at(mm, bind)->nr_extents++;
	admit_count(mm, bind, x->group, true);
	for (uint32_t i = 0; i < FRAME_NR; i++)
		s->nr[i] += x->nr[i];
	s->nr_pinned += x->nr_pinned;
	bucket_in(mm, ext, slab_bucket(mm, ext));
	extent_update(mm, ext);
}

void slab_remove(struct mm *mm, uint32_t ext)
{
	struct extent *x = extent_at(mm, ext);
	struct slab *s = slab_of(mm, x);

	bucket_out(mm, ext);
	if (x->on_cold)
		cold_list_del(mm, &s->cold, ext);
	x->on_cold = false;
	if (x->on_take)
		take_list_del(mm, &mm->takeable, ext);
	x->on_take = false;
	for (uint32_t i = 0; i < FRAME_NR; i++)
		s->nr[i] -= x->nr[i];
	s->nr_pinned -= x->nr_pinned;
	bind_at(mm, x->bind)->nr_extents--;
	admit_count(mm, x->bind, x->group, false);
	x->bind = NIL;
}

void slab_grant(struct mm *mm, uint32_t bind, uint32_t group, uint32_t nr, uint64_t *ids)
{
	struct slab *s = &bind_at(mm, bind)->slab[group];

	MM_ASSERT(slab_free(s) >= nr);
	/* One that fills up goes to an empty bucket: it stays the fullest until it has no more. */
	for (uint32_t i = 0; i < nr; ) {
		uint32_t with_room = s->mask & ((1u << SLAB_FULL) - 1);
		uint32_t fullest = 31 - (uint32_t)__builtin_clz(with_room);

		i += frame_grant(mm, s->bucket[fullest].head, nr - i, ids + i);
	}
	engine_at(mm, bind_at(mm, bind)->engine)->allocs += nr;
	mm->vmstat.pages_alloc += nr;
}

void slab_strip_cold(struct mm *mm, uint32_t bind, uint32_t group, uint32_t nr)
{
	struct slab *s = &bind_at(mm, bind)->slab[group];

	while (slab_free(s) < nr && s->cold.head) {
		struct extent *x = extent_at(mm, s->cold.head);

		node_strip(mm, frame_at(mm, x->frames[FRAME_COLD].head)->node, group);
	}
}

/* ---- adoption of orphans ------------------------------------------------------------------- */

/* With scrubbing, frames of the dead must not reach another engine as they are: such extents only
 * go back to the device. */
uint32_t slab_orphans(const struct cache *c)
{
	return c->scrub ? NIL : c->orphans.head;
}

/* Not one being emptied; not one that the adopter's processes map already, for they can only read
 * it; and not one that its last writer, having closed the cache, still can write to. */
bool slab_adoptable(const struct mm *mm, uint32_t bind, uint32_t ext)
{
	const struct extent *x = extent_at(mm, ext);

	if (x->draining)
		return false;
	return !x->nr_imports || (!import_maps(mm, bind_at(mm, bind)->engine, ext) &&
				  !import_maps(mm, pool_find(mm, &mm->engines, x->writer), ext));
}

/* The extent of the coldest node there, if that helps. */
static uint32_t coldest_orphan(const struct mm *mm, uint32_t bind, uint32_t orphans, uint32_t group)
{
	uint32_t n = policy_oldest(mm, orphans), f = n ? node_at(mm, n)->loc[group] : NIL;
	uint32_t ext = f ? frame_at(mm, f)->extent : NIL;

	if (!ext || extent_at(mm, ext)->bind != orphans || !slab_adoptable(mm, bind, ext))
		return NIL;
	return ext;
}

/* One with frames at hand, the fullest first, else one with cached frames to take. */
static uint32_t orphan_of(const struct mm *mm, uint32_t bind, uint32_t orphans, uint32_t group,
			  bool reclaimable)
{
	const struct slab *s = &bind_at(mm, orphans)->slab[group];
	uint32_t second = reclaimable ? coldest_orphan(mm, bind, orphans, group) : NIL;

	for (uint32_t k = SLAB_FULL + 1; k--; )	/* an empty one is about to be retired */
		for (uint32_t e = s->bucket[k].head; e; e = extent_at(mm, e)->bucket_link.next) {
			const struct extent *x = extent_at(mm, e);

			if (!slab_adoptable(mm, bind, e))
				continue;
			if (x->nr[FRAME_FREE] || x->nr[FRAME_COLD])
				return e;
			if (!second && x->nr[FRAME_CACHED] > x->nr_pinned)
				second = e;
		}
	return reclaimable ? second : NIL;
}

static bool homed_here(const struct mm *mm, uint32_t f)
{
	const struct node *n = node_at(mm, frame_at(mm, f)->node);

	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++)
		if (n->loc[g])
			return n->loc[g] == f && !n->pins;
	return false;
}

/* The nodes of an extent follow it to the adopter's queues. Frames are listed in the order of
 * their commit, parents first, so the last one put at the cold end is a leaf. */
static void move_queues(struct mm *mm, const struct extent *x,
			void (*move)(struct mm *, uint32_t))
{
	static const uint8_t states[] = { FRAME_CACHED, FRAME_COLD };

	for (uint32_t i = 0; i < 2; i++)
		for (uint32_t f = x->frames[states[i]].head; f; f = frame_at(mm, f)->link.next)
			if (homed_here(mm, f))
				move(mm, frame_at(mm, f)->node);
}

static void adopt(struct mm *mm, uint32_t ext, uint32_t bind)
{
	struct extent *x = extent_at(mm, ext);
	uint32_t old = x->bind;

	move_queues(mm, x, policy_del);
	slab_remove(mm, ext);
	slab_add(mm, ext, bind);
	move_queues(mm, x, policy_add_cold);
	slab_trim_soon(mm, old);
	mm->vmstat.extents_adopt++;
}

bool slab_adopt(struct mm *mm, uint32_t bind, uint32_t group, bool reclaimable)
{
	const struct cache *c = cache_at(mm, bind_at(mm, bind)->cache);

	for (uint32_t o = slab_orphans(c); o; o = bind_at(mm, o)->cache_link.next) {
		uint32_t ext = orphan_of(mm, bind, o, group, reclaimable);

		if (ext) {
			adopt(mm, ext, bind);
			return true;
		}
	}
	return false;
}

/* ---- empties ------------------------------------------------------------------------------- */

void slab_trim_soon(struct mm *mm, uint32_t bind)
{
	struct bind *b = bind_at(mm, bind);

	if (!b->on_trim)
		trim_list_add_tail(mm, &mm->trim, bind);
	b->on_trim = true;
}

/* What is being copied from stays until the copies are done: that calls for another trim. */
static void trim_group(struct mm *mm, struct slab *s, uint32_t keep)
{
	uint32_t next;

	for (uint32_t e = s->bucket[SLAB_DRAINING].head; e; e = next) {
		const struct extent *x = extent_at(mm, e);

		next = x->bucket_link.next;
		if (x->nr[FRAME_FREE] == extent_pages(x) && !x->nr_from)
			extent_retire(mm, e);
	}
	for (uint32_t e = s->bucket[SLAB_EMPTY].head; e; e = next) {
		next = extent_at(mm, e)->bucket_link.next;
		if (s->bucket[SLAB_EMPTY].nr <= keep || s->pend_pages)
			break;
		if (!extent_at(mm, e)->nr_from)
			extent_retire(mm, e);
	}
}

void slab_trim(struct mm *mm)
{
	uint32_t bind;

	while ((bind = mm->trim.head)) {
		struct bind *b = bind_at(mm, bind);
		bool alive = b->engine && !engine_at(mm, b->engine)->fenced;

		for (uint32_t g = 0; g < cache_at(mm, b->cache)->desc.nr_groups; g++)
			trim_group(mm, &b->slab[g], alive);
		trim_list_del(mm, &mm->trim, bind);
		b->on_trim = false;
		cache_bind_put(mm, bind);
	}
}

/* ---- free ---------------------------------------------------------------------------------- */

/* All HELD by the engine, whatever cache and group, and named once: marks them. On error none is
 * marked. Pages of one extent mostly come together, so that it is looked at once. */
static int take_all_held(struct mm *mm, uint32_t engine, const uint64_t *ids, uint32_t nr,
			 struct mm_reply *rp)
{
	for (uint32_t i = 0, run, f; i < nr; i += run) {
		const struct extent *x = extent_at(mm, mm_page_extent(ids[i]));
		int err = frame_resolve(mm, ids[i], &f, rp);

		if (!err && bind_at(mm, x->bind)->engine != engine)
			err = reply_error(rp, -EACCES, MM_NOT_OWNER, ids[i], 0);
		run = err ? 0 : frame_mark_held(mm, mm_page_extent(ids[i]), ids + i, nr - i);
		if (run)
			continue;
		if (!err)	/* says what is wrong with it */
			err = frame_take_held(mm, ids[i], x->bind, x->group, &f, rp);
		frame_unmark(mm, ids, i);
		MM_ASSERT(err);
		return err;
	}
	return 0;
}

int slab_op_free(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	int err;
	uint32_t engine = engine_find(mm, rq->engine, rp, &err), nr = rq->free.nr_pages;
	const uint64_t *ids = rq->free.pages;

	if (!engine)
		return err;
	if (nr > mm->cfg.batch_pages)
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, nr, mm->cfg.batch_pages);
	err = take_all_held(mm, engine, ids, nr, rp);
	if (err)
		return err;
	for (uint32_t i = 0, run; i < nr; i += run) {
		uint32_t ext = mm_page_extent(ids[i]);

		for (run = 1; i + run < nr && mm_page_extent(ids[i + run]) == ext; run++)
			;
		frame_release(mm, ext, ids + i, run);
	}
	engine_at(mm, engine)->frees += nr;
	mm->vmstat.pages_free += nr;
	rp->nr_pages = nr;
	return 0;
}
