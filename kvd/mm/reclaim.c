// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "admit.h"
#include "cache.h"
#include "core.h"
#include "policy.h"
#include "reclaim.h"
#include "shrink.h"

#define LOOK		4u	/* extents looked into for a window page or a snapshot */
#define EACH		4u	/* pages of each */
#define MAX_WINDOW	64u	/* pages looked ahead from each */

/* ---- own and orphaned cached pages --------------------------------------------------------- */

/* One step stays: the caller has counted that there is a page to take, so each call gets on. */
static void looked(uint32_t *budget)
{
	*budget -= *budget > 1;
}

/* A node with a frame in this slab may be homed elsewhere, so its own queues may not do. Pinned
 * pages go to the end of their extent's list: the next look does not begin with them again. */
static uint32_t unpinned_in(struct mm *mm, const struct slab *s, uint32_t *budget)
{
	for (uint32_t k = 1; k <= SLAB_FULL; k++)
		for (uint32_t e = s->bucket[k].head; e; e = extent_at(mm, e)->bucket_link.next) {
			struct list *l = &extent_at(mm, e)->frames[FRAME_CACHED];

			looked(budget);
			if (extent_at(mm, e)->nr[FRAME_CACHED] == extent_at(mm, e)->nr_pinned)
				continue;
			for (uint32_t i = l->nr; i; i--) {
				uint32_t f = l->head;

				if (!node_at(mm, frame_at(mm, f)->node)->pins)
					return frame_at(mm, f)->node;
				frame_list_del(mm, l, f);
				frame_list_add_tail(mm, l, f);
				looked(budget);
			}
		}
	return NIL;
}

/* ---- one group's frame --------------------------------------------------------------------- */

/* Who would miss a window page or a snapshot, the least likely first. */
enum { PASSED, TAIL, NEEDED };

static uint32_t only_child(const struct mm *mm, uint32_t n)
{
	uint32_t child = node_at(mm, n)->children;

	if (!child || node_at(mm, child)->left || node_at(mm, child)->right)
		return NIL;
	return child;
}

/* Hits end at leaves and where chains part, mostly, and need a window before that. */
static uint32_t missed(const struct mm *mm, uint32_t n, uint32_t group)
{
	const struct mm_cache_desc *d = &cache_at(mm, node_at(mm, n)->cache)->desc;
	uint32_t pages = d->group[group].kind == MM_GROUP_STATE ? 1 :
			 (d->group[group].window_tokens + d->page_tokens - 1) / d->page_tokens;

	if (!node_at(mm, n)->children)
		return TAIL;
	for (uint32_t at = n, i = 0; i < pages && i < MAX_WINDOW; i++) {
		at = only_child(mm, at);
		if (!at)
			return NEEDED;
	}
	return PASSED;
}

struct choice {
	uint32_t node, missed;
};

static void consider(const struct mm *mm, uint32_t n, uint32_t group, struct choice *best)
{
	uint32_t m = missed(mm, n, group);

	if (best->node && (m > best->missed ||
			   (m == best->missed && !policy_colder(mm, n, best->node))))
		return;
	*best = (struct choice){ n, m };
}

/* Of the policy's victim and a few of the pages that lie longest in their extents. */
static uint32_t choose(struct mm *mm, uint32_t bind, uint32_t group, uint32_t *budget)
{
	const struct slab *s = &bind_at(mm, bind)->slab[group];
	uint32_t n = policy_victim(mm, bind), look = LOOK;
	uint32_t f = n ? node_at(mm, n)->loc[group] : NIL;
	struct choice best = { 0 };

	if (f && slab_of(mm, extent_at(mm, frame_at(mm, f)->extent)) == s)
		consider(mm, n, group, &best);
	for (uint32_t k = SLAB_FULL; k; k--)
		for (uint32_t e = s->bucket[k].head; e && look;
		     e = extent_at(mm, e)->bucket_link.next) {
			f = extent_at(mm, e)->frames[FRAME_CACHED].head;
			look--;
			for (uint32_t i = 0; i < EACH && f; i++, f = frame_at(mm, f)->link.next)
				if (!node_at(mm, frame_at(mm, f)->node)->pins)
					consider(mm, frame_at(mm, f)->node, group, &best);
		}
	return best.node ? best.node : unpinned_in(mm, s, budget);
}

/* A window page or a snapshot goes alone where others still pass through the node; with the last
 * one of a chain its full page is of no use any more. */
static void take_frame(struct mm *mm, uint32_t bind, uint32_t group, uint32_t *budget)
{
	uint32_t n = choose(mm, bind, group, budget);

	if (!node_at(mm, n)->children) {
		node_evict(mm, n, budget);
		return;
	}
	(*budget)--;
	node_strip(mm, n, group);
}

static bool is_full(const struct mm *mm, uint32_t bind, uint32_t group)
{
	return cache_at(mm, bind_at(mm, bind)->cache)->desc.group[group].kind == MM_GROUP_FULL;
}

bool reclaim_pages(struct mm *mm, uint32_t bind, uint32_t group, uint32_t nr)
{
	struct slab *s = &bind_at(mm, bind)->slab[group];
	uint32_t budget = EVICT_BUDGET;

	while (slab_ready(s) < nr && slab_adopt(mm, bind, group, false))
		;
	while (slab_ready(s) < nr && budget) {
		uint32_t n;

		if (slab_reclaimable(s) && !is_full(mm, bind, group)) {
			take_frame(mm, bind, group, &budget);
			continue;
		}
		n = slab_reclaimable(s) ? policy_victim(mm, bind) : NIL;
		if (!n && slab_reclaimable(s))
			n = unpinned_in(mm, s, &budget);
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
	uint32_t tenant;	/* only its extents; 0: anybody's */
	uint32_t asker;		/* its tenant, which is not protected from itself; 0: nobody's */
	bool below_low;		/* nobody has anything above its low */
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

static uint32_t tenant_of(const struct mm *mm, const struct reclaim *w)
{
	return cache_at(mm, bind_at(mm, w->bind)->cache)->tenant;
}

/* May x be taken for w? Not when its pages have been counted as reclaimable already, nor when an
 * allocation before w in the queue is collecting extents in that slab; and from a slab that is left
 * with no more than it was promised its room would go to nobody else. */
static bool may_take(const struct mm *mm, const struct reclaim *w, const struct extent *x)
{
	const struct slab *s = slab_of(mm, x);
	struct fair_place first;

	if (!x->on_take || (x->bind == w->bind && x->group == w->group))
		return false;
	if (s->nr_extents - s->nr_marked <= s->promise)
		return false;
	if (w->own && cache_at(mm, x->cache)->tenant != tenant_of(mm, w))
		return false;
	if (!s->waiters.head)
		return true;
	if (!pending_wants_room(pending_at(mm, s->waiters.head)))
		return false;	/* it had its turn: this is what it got */
	first = pending_place(mm, s->waiters.head);
	return !fair_before(&first, &w->at);
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
	struct shortage s = { .slots = (uint32_t)core_less(nr_extents, slots),
			      .asker = c->tenant };

	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++) {
		uint64_t want = c->need[w->group][d] * nr_extents, over;

		s.bytes[d] = admit_short(mm, w->bind, w->group, d, nr_extents);
		over = !w->own ? 0 : core_less(want, admit_quota(mm, w->bind, w->group, d) +
					       tenant_at(mm, c->tenant)->leaving[d]);
		s.bytes[d] = over > s.bytes[d] ? over : s.bytes[d];
	}
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

	if (!may_take(mm, w, x) || (s->tenant && c->tenant != s->tenant))
		return false;
	if (!s->tenant && c->tenant != s->asker && !x->draining &&
	    !shrink_may_take(mm, x, s->below_low))
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

/* Counts it as taken while a reclaim is planned. */
static void mark(struct mm *mm, const struct extent *x)
{
	const struct cache *c = cache_at(mm, x->cache);

	slab_of(mm, x)->nr_marked++;
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		tenant_at(mm, c->tenant)->marked[d] += c->need[x->group][d];
}

static void unmark(struct mm *mm, const struct extent *x)
{
	slab_of(mm, x)->nr_marked = 0;
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		tenant_at(mm, cache_at(mm, x->cache)->tenant)->marked[d] = 0;
}

/* Would all that may be taken do? left says what would still be missing. */
static bool would_do(struct mm *mm, const struct reclaim *w, const struct shortage *s,
		     struct shortage *left)
{
	uint32_t e;

	*left = *s;
	for (e = mm->takeable.head; e && any_short(mm, left); e = extent_at(mm, e)->take_link.next)
		if (helps(mm, w, extent_at(mm, e), left))
			mark(mm, extent_at(mm, e));
	for (e = mm->takeable.head; e; e = extent_at(mm, e)->take_link.next)
		unmark(mm, extent_at(mm, e));
	return !any_short(mm, left) && !s->hopeless;
}

static bool plan(struct mm *mm, const struct reclaim *w, struct shortage *s, struct shortage *left)
{
	if (would_do(mm, w, s, left))
		return true;
	s->below_low = true;
	return would_do(mm, w, s, left);
}

static void take(struct mm *mm, const struct reclaim *w, struct shortage *s)
{
	uint32_t next;

	for (uint32_t e = mm->takeable.head; e && any_short(mm, s); e = next) {
		struct extent *x = extent_at(mm, e);
		uint32_t tenant = cache_at(mm, x->cache)->tenant;
		bool low = s->below_low && tenant != s->asker && !shrink_may_take(mm, x, false);

		if (helps(mm, w, x, s)) {
			if (low)
				memcg_event(mm, tenant, MM_MEMCG_LOW);
			mm->vmstat.reclaim_direct++;
			extent_evict(mm, e);
			next = x->take_link.next;	/* evicting may have moved neighbours */
			extent_retire(mm, e);
		} else {
			next = x->take_link.next;
		}
	}
}

/* Whole extents of tenants above their low are not enough. Before anybody is taken below it mixed
 * ones are emptied. True: some are under way. */
static bool drain(struct mm *mm, const struct reclaim *w, const struct shortage *left)
{
	bool coming = false;

	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++) {
		while (left->bytes[d] > mm->device[d].draining_bytes &&
		       shrink_drain_mixed(mm, 1u << d, w->bind, w->group))
			;
		coming = coming || (left->bytes[d] && mm->device[d].draining_bytes);
	}
	return coming;
}

bool reclaim_extents(struct mm *mm, const struct reclaim *w, uint32_t nr_extents)
{
	struct shortage s = shortage_of(mm, w, nr_extents), left;

	if (!would_do(mm, w, &s, &left) && !w->own && drain(mm, w, &left))
		return true;
	if (!plan(mm, w, &s, &left))
		return false;
	take(mm, w, &s);
	return mm->nr_leaving != 0;
}

bool reclaim_bytes(struct mm *mm, uint64_t bytes[MM_MAX_DEVICES], uint32_t tenant)
{
	const struct reclaim nobody = { .at.tenant_start = UINT64_MAX };	/* comes last */
	struct shortage s = { .tenant = tenant }, left;
	bool enough;

	memcpy(s.bytes, bytes, sizeof(s.bytes));
	enough = plan(mm, &nobody, &s, &left);
	memcpy(bytes, left.bytes, sizeof(left.bytes));
	if (enough)
		take(mm, &nobody, &s);
	return enough;
}
