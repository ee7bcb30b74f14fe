/* SPDX-License-Identifier: Apache-2.0 */
/* extent - the unit of device memory: 2^k frames of one group, the same slots in every shard
 *
 * Model:      NONE -> CREATING -> LIVE -> RETIRING -> DESTROYING -> NONE
 *                        |  one shard failed: the others are rolled back    ^
 *                        '---------------------------------------------------'
 *             CREATING and DESTROYING have one effect a shard; RETIRING waits until no member maps
 *             it. LIVE belongs to a slab (engine, cache, group); a slab whose engine is gone holds
 *             orphans. fx_todo are shards whose effect mm_next_effect has not handed out, fx_busy
 *             those it has; the extents with fx_todo form the effect queue, which so cannot
 *             overflow.
 * Invariants: device.extent_bytes and tenant.charge are the sum over all charged shards; a LIVE
 *             extent without HELD, QUARANTINED, IO or pinned frames, and none being moved, is on
 *             mm.takeable, coldest first; RETIRING and DESTROYING extents have no frame in use.
 * Ownership:  extent.c writes the state; slab.c the bucket link; import.c the importers.
 * Cost:       O(shards) to create and destroy, O(1) else; frames are not touched at creation.
 * Limits:     max_extents, max_frames, 2^20 frames an extent.
 * See:        slab.h, import.h, tests/unit/mm/extent_test.c
 */
#ifndef MM_EXTENT_H
#define MM_EXTENT_H

#include <stdbool.h>
#include <stdint.h>

#include "frame.h"
#include "mm.h"
#include "pool.h"

enum extent_state {
	EXTENT_NONE,
	EXTENT_CREATING,
	EXTENT_LIVE,
	EXTENT_RETIRING,
	EXTENT_DESTROYING,
};

struct extent {
	struct pool_obj obj;
	uint32_t gen_top;	/* survives: newest generation granted under this extent id */
	uint8_t state, group, bucket, scrubbing;
	uint32_t cache, bind;	/* bind 0: in no slab (RETIRING, DESTROYING, unwanted CREATING) */
	uint32_t writer;	/* id of the engine that writes or was the last to */
	uint32_t base, order;	/* first frame */
	uint32_t fresh;		/* slots ever granted */
	uint32_t nr[FRAME_NR];	/* FREE counts slots never granted too */
	struct list frames[FRAME_NR];
	uint32_t nr_pinned;	/* CACHED frames whose node is pinned */
	struct link bucket_link, cold_link, take_link, fx_link, retire_link, drain_link;
	bool on_take, on_fx, on_cold, leaving;
	bool draining;			/* compact.h: being emptied, nothing is granted from it */
	uint8_t drain_flags, drain_fails;
	uint32_t drain_seq, drain_slot;	/* drain_slot: where looking goes on */
	uint32_t nr_from;		/* moves on their way out of it */
	uint64_t drain_ns;		/* draining, RETIRING: until when; else: not before */
	uint16_t charged;	/* shards */
	uint16_t fx_todo, fx_busy, fx_ok, fx_retry;
	int32_t fx_error;
	uint32_t fx_seq;
	uint32_t scrub_slot, scrub_nr;	/* run being scrubbed */
	uint32_t nr_imports;	/* (member, shard) pairs */
};

/* How many of nr such extents could be created now; why says what is short when fewer. */
uint32_t extent_creatable(const struct mm *, uint32_t bind, uint32_t group, uint32_t nr,
			  struct mm_reply *why);
uint32_t extent_create(struct mm *, uint32_t bind, uint32_t group);
void extent_update(struct mm *, uint32_t ext); /* counts changed: bucket, cold and takeable lists */
void extent_evict(struct mm *, uint32_t ext);	/* no frame stays cached; none may be pinned */
void extent_retire(struct mm *, uint32_t ext);	/* LIVE and all FREE */
void extent_unmapped(struct mm *, uint32_t ext);	/* an import went */
/* Calls fn for each LIVE extent of a bind; fn may move it to another bucket, not further. */
void extent_each(struct mm *, uint32_t bind, void (*fn)(struct mm *, uint32_t ext));
void extent_scrub(struct mm *, uint32_t ext);	/* its quarantined frames, or free them at once */
int extent_complete(struct mm *, uint64_t effect_id, int result);
bool extent_next_effect(struct mm *, struct mm_effect *);
void extent_retry(struct mm *);			/* failed destroys and scrubs again */

static inline uint32_t extent_pages(const struct extent *x)
{
	return 1u << x->order;
}

static inline bool extent_takeable(const struct extent *x)
{
	return !(x->nr[FRAME_HELD] | x->nr[FRAME_QUARANTINED] | x->nr[FRAME_IO] | x->nr_pinned |
		 x->nr_from);
}

uint64_t extent_shard_bytes(const struct mm *, const struct extent *, uint32_t shard);
/* First extent id of a page id, if it can name one. */
struct extent *extent_lookup(struct mm *, uint32_t ext);	/* NULL: not CREATING..DESTROYING */

#endif
