// SPDX-License-Identifier: Apache-2.0
#include "cache.h"
#include "core.h"
#include "policy.h"
#include "reclaim.h"

/* ---- own and orphaned cached pages --------------------------------------------------------- */

/* A node with a frame in this slab may be homed elsewhere, so its own queues may not do. */
static uint32_t unpinned_in(const struct mm *mm, const struct slab *s)
{
	for (uint32_t k = 1; k <= SLAB_FULL; k++)
		for (uint32_t e = s->bucket[k].head; e; e = extent_at(mm, e)->bucket_link.next) {
			const struct extent *x = extent_at(mm, e);

			if (x->nr[FRAME_CACHED] == x->nr_pinned)
				continue;
			for (uint32_t f = x->frames[FRAME_CACHED].head; f;
			     f = frame_at(mm, f)->link.next)
				if (!node_at(mm, frame_at(mm, f)->node)->pins)
					return frame_at(mm, f)->node;
		}
	return NIL;
}

bool reclaim_pages(struct mm *mm, uint32_t bind, uint32_t group, uint32_t nr)
{
	struct slab *s = &bind_at(mm, bind)->slab[group];
	uint32_t budget = EVICT_BUDGET;

	while (slab_ready(s) < nr && slab_adopt(mm, bind, group, false))
		;
	while (slab_ready(s) < nr && budget) {
		uint32_t n = slab_reclaimable(s) ? policy_victim(mm, bind) : NIL;

		if (!n && slab_reclaimable(s))
			n = unpinned_in(mm, s);
		if (n)
			node_evict(mm, n, &budget);
		else
			MM_ASSERT(slab_adopt(mm, bind, group, true));
	}
	return slab_ready(s) >= nr;
}

/* ---- whole extents of others --------------------------------------------------------------- */

struct shortage {
	uint64_t bytes[MM_MAX_DEVICES];
	uint32_t slots;
	uint32_t from, to, nr_inside;	/* frames to clear for a block, extents in the way */
	bool hopeless;
};

static bool any_short(const struct mm *mm, const struct shortage *s)
{
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		if (s->bytes[d])
			return true;
	return s->slots || s->nr_inside;
}

/* May x be taken for w? Not when its pages have been counted as reclaimable already, nor when an
 * allocation before w in the queue is collecting extents in that slab. */
static bool may_take(const struct mm *mm, const struct reclaim *w, const struct extent *x)
{
	const struct slab *s = slab_of(mm, x);

	if (!x->on_take || (x->bind == w->bind && x->group == w->group))
		return false;
	return !s->waiters.head || pending_at(mm, s->waiters.head)->seq >= w->seq;
}

static bool inside(const struct extent *x, const struct shortage *s)
{
	return x->base >= s->from && x->base < s->to;
}

/* The frames are fragmented: looks for an aligned block that taking extents would clear. */
static void find_block(const struct mm *mm, const struct reclaim *w, struct shortage *s)
{
	uint32_t order = cache_at(mm, bind_at(mm, w->bind)->cache)->order[w->group];

	for (uint32_t t = mm->takeable.head; t; t = extent_at(mm, t)->take_link.next) {
		s->from = ((extent_at(mm, t)->base - 1) >> order << order) + 1;
		s->to = s->from + (1u << order);
		if (s->to - 1 > mm->cfg.max_frames)
			continue;
		s->nr_inside = 0;
		for (uint32_t e = pool_next(mm, &mm->extents, 0); e;
		     e = pool_next(mm, &mm->extents, e)) {
			const struct extent *x = extent_at(mm, e);
			bool over = x->base < s->to && x->base + extent_pages(x) > s->from;

			if (over && !may_take(mm, w, x)) {
				s->nr_inside = 0;
				break;
			}
			/* A larger one begins before the block. */
			s->from = over && x->base < s->from ? x->base : s->from;
			s->nr_inside += over;
		}
		if (s->nr_inside)
			return;
	}
	s->hopeless = true;
}

static struct shortage shortage_of(const struct mm *mm, const struct reclaim *w,
				   uint32_t nr_extents)
{
	const struct cache *c = cache_at(mm, bind_at(mm, w->bind)->cache);
	uint32_t slots = mm->extents.max - mm->extents.nr_used + mm->nr_leaving;
	struct shortage s = { .slots = (uint32_t)core_less(nr_extents, slots) };

	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		s.bytes[d] = core_less(c->need[w->group][d] * nr_extents +
				       mm->device[d].extent_bytes + mm->device[d].reserved_bytes,
				       mm->cfg.device[d].pool_bytes + mm->device[d].leaving_bytes);
	/* Frames on their way out may merge into a block, or not: then there is a next time. */
	if (!buddy_fits(&mm->frame_buddy, c->order[w->group]) && !mm->nr_leaving)
		find_block(mm, w, &s);
	return s;
}

/* Would retiring x help? Then it is taken off the shortage. */
static bool helps(const struct mm *mm, const struct reclaim *w, const struct extent *x,
		  struct shortage *s)
{
	const struct cache *c = cache_at(mm, x->cache);
	bool in = s->nr_inside && inside(x, s), help = s->slots || in;

	if (!may_take(mm, w, x))
		return false;
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		help = help || (s->bytes[d] && c->need[x->group][d]);
	if (!help)
		return false;
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		s->bytes[d] = core_less(s->bytes[d], c->need[x->group][d]);
	s->slots -= s->slots != 0;
	s->nr_inside -= in;
	return true;
}

bool reclaim_extents(struct mm *mm, const struct reclaim *w, uint32_t nr_extents)
{
	struct shortage s = shortage_of(mm, w, nr_extents), left = s;
	uint32_t next;

	for (uint32_t e = mm->takeable.head; e && any_short(mm, &left);
	     e = extent_at(mm, e)->take_link.next)
		helps(mm, w, extent_at(mm, e), &left);
	if (any_short(mm, &left) || s.hopeless)
		return false;
	for (uint32_t e = mm->takeable.head; e && any_short(mm, &s); e = next) {
		struct extent *x = extent_at(mm, e);

		if (helps(mm, w, x, &s)) {
			extent_evict(mm, e);
			next = x->take_link.next;	/* evicting may have moved neighbours */
			extent_retire(mm, e);
		} else {
			next = x->take_link.next;
		}
	}
	return mm->nr_leaving != 0;
}
