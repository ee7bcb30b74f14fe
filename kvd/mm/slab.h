/* SPDX-License-Identifier: Apache-2.0 */
/* slab - pages of one group, carved out of extents of one engine
 *
 * Model:      bind (engine, cache)        bucket: 0 wholly empty
 *               slab[group]                       1..8 by used eighths, fullest taken from first
 *                 bucket[] -> extents             9 no FREE frame
 *                 cold     -> extents            10 still being created, 11 draining (compact.h)
 *             A bind without an engine holds what a dead engine left in a shared cache: orphans,
 *             which another engine of the cache adopts extent by extent.
 * Invariants: nr[] and nr_pinned are the sums over the LIVE extents, off[] and off_pinned the part
 *             of those draining; mask has a bit for each non-empty bucket; a living engine keeps at
 *             most one empty extent a group once nothing waits for pages, an orphaned bind none.
 * Cost:       O(1) a page granted or freed.
 * Limits:     binds: one for each (engine, cache), at most 4 * (max_engines + max_caches).
 * See:        frame.h, pending.h (who decides), tests/unit/mm/page_test.c
 */
#ifndef MM_SLAB_H
#define MM_SLAB_H

#include <stdbool.h>
#include <stdint.h>

#include "extent.h"
#include "frame.h"
#include "mm.h"
#include "policy.h"
#include "pool.h"

#define SLAB_EMPTY	0u
#define SLAB_FULL	9u
#define SLAB_CREATING	10u
#define SLAB_DRAINING	11u
#define SLAB_BUCKETS	12u

struct cache;
struct extent;

struct slab {
	struct list bucket[SLAB_BUCKETS];
	struct list cold;		/* extents with COLD frames */
	uint32_t mask;
	uint32_t nr[FRAME_NR], nr_pinned;
	uint32_t off[FRAME_NR], off_pinned;
	uint32_t nr_coming;		/* pages of extents being created */
	uint32_t promise, nr_extents;	/* in extents, admit.h; without those failing to be made */
	uint32_t nr_marked;	/* picked by a reclaim that is being planned, 0 between calls */
	uint32_t nr_vain;	/* drains for others in a row that came to nothing */
	uint64_t vain_ns;	/* none before: compact.h */
	uint32_t pend_pages;		/* pages that waiting allocations want */
	struct list waiters;		/* those, in order */
	uint32_t wake_at;		/* where trying them again goes on; 0: no such pass */
};

struct bind {
	struct pool_obj obj;
	uint32_t engine, cache;		/* engine 0: orphans */
	struct link engine_link, cache_link, trim_link, wake_link;
	bool on_trim, on_wake;
	uint32_t wake;			/* groups whose waiters are to be tried again */
	uint32_t nr_extents;		/* CREATING and LIVE */
	struct policy_bind policy;	/* unpinned nodes homed here */
	struct slab slab[MM_MAX_GROUPS];
};

void slab_grant(struct mm *, uint32_t bind, uint32_t group, uint32_t nr, uint64_t *ids);
void slab_strip_cold(struct mm *, uint32_t bind, uint32_t group, uint32_t nr);
bool slab_adopt(struct mm *, uint32_t bind, uint32_t group, bool reclaimable);	/* one orphan */
uint32_t slab_orphans(const struct cache *);	/* first bind to adopt from; 0: none */
bool slab_adoptable(const struct mm *, uint32_t bind, uint32_t ext);
void slab_add(struct mm *, uint32_t ext, uint32_t bind);
void slab_remove(struct mm *, uint32_t ext);
void slab_move_bucket(struct mm *, uint32_t ext, uint32_t bucket);
uint32_t slab_bucket(const struct mm *, uint32_t ext);
void slab_trim_soon(struct mm *, uint32_t bind);
void slab_trim(struct mm *);		/* at the end of each call: retire superfluous empties */

static inline uint32_t slab_reclaimable(const struct slab *s)
{
	return s->nr[FRAME_CACHED] - s->nr_pinned - (s->off[FRAME_CACHED] - s->off_pinned);
}

/* May an extent go, or would the slab be left with less than it was promised (admit.h)? */
static inline bool slab_can_spare(const struct slab *s)
{
	return s->nr_extents - s->bucket[SLAB_DRAINING].nr > s->promise;
}

/* Frames that can be granted; not those of extents that are being emptied. */
static inline uint32_t slab_free(const struct slab *s)
{
	return s->nr[FRAME_FREE] - s->off[FRAME_FREE];
}

static inline uint32_t slab_bucket_of(const struct extent *x)
{
	uint32_t pages = extent_pages(x), used = pages - x->nr[FRAME_FREE];

	if (x->draining)
		return SLAB_DRAINING;
	if (!used)
		return SLAB_EMPTY;
	if (used == pages)
		return SLAB_FULL;
	return 1 + (uint32_t)((uint64_t)used * 8 >> x->order);
}

static inline bool slab_cold(const struct extent *x)
{
	return x->nr[FRAME_COLD] && !x->draining;
}

/* Is it on the lists its counts say? If not, extent_update has something to do. */
static inline bool slab_in_place(const struct extent *x)
{
	return !x->draining && slab_bucket_of(x) == x->bucket && slab_cold(x) == x->on_cold &&
	       extent_takeable(x) == x->on_take;
}

/* Pages that can be granted at once. */
static inline uint32_t slab_ready(const struct slab *s)
{
	return slab_free(s) + s->nr[FRAME_COLD] - s->off[FRAME_COLD];
}

/* by more frames of a state; of pinned ones. */
static inline void slab_count(struct slab *s, struct extent *x, enum frame_state state, uint32_t by)
{
	x->nr[state] += by;
	s->nr[state] += by;
	if (x->draining)
		s->off[state] += by;
}

/* by frames change their state, none of them pinned. */
static inline void slab_recount(struct slab *s, struct extent *x, enum frame_state from,
				enum frame_state to, uint32_t by)
{
	slab_count(s, x, from, -by);
	slab_count(s, x, to, by);
}

static inline void slab_count_pinned(struct slab *s, struct extent *x, uint32_t by)
{
	x->nr_pinned += by;
	s->nr_pinned += by;
	if (x->draining)
		s->off_pinned += by;
}

void slab_set_draining(struct mm *, uint32_t ext, bool draining);

int slab_op_free(struct mm *, const struct mm_request *, struct mm_reply *);

#endif
