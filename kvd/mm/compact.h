/* SPDX-License-Identifier: Apache-2.0 */
/* compact - extents are emptied, so that the pool gets them back whole
 *
 * Model:      a LIVE extent is drained: nothing is granted from it, and what is in it leaves.
 *               COLD and, with DRAIN_EVICT, CACHED unpinned    evicted
 *               CACHED unpinned        copied to a FREE frame of the fullest extent of the slab
 *                                      (MM_EFFECT_MOVE); no room: given up, evicted if DRAIN_STICKY
 *                                      or DRAIN_LAST
 *               CACHED pinned          stays until its leases go, for lessees have its address;
 *                                      until then nothing else is copied away
 *               HELD                   its engine is asked (MM_EVENT_VACATE) and moves it itself
 *             Once all is FREE it retires. Past its deadline with pages that do not leave it is
 *             given up, and left alone for a time that doubles; after some DRAIN_LAST so is all of
 *             the slab, that who is short may turn to others. A slab that runs out of pages takes
 *             its extents back, but for DRAIN_STICKY ones above max, and for DRAIN_LAST ones while
 *             its cached pages will do.
 *             A move: frame to is IO while the shards are copied; then, if the node is unpinned and
 *             still at from, it is named instead of from; else the copy is worth nothing.
 *             Drained are: what reclaim picks (shrink.h); the emptiest extents whose pages fit into
 *             the others of the slab, when somebody waits for the pool; those of an engine that
 *             asked nothing for idle_ns and whose held pages need fewer.
 * Invariants: draining extents are on mm.draining and in their slab's bucket SLAB_DRAINING; nr_from
 *             counts the moves out of an extent, which does not retire before they end.
 * Cost:       a step one frame; looking for extents to drain O(buckets) a slab.
 * Limits:     COMPACT_MOVES at once, COMPACT_DRAINS that do not just evict.
 * Errors:     VACATE_ACK: -ENOENT unknown or not the engine's, -EBUSY with a: pages still held.
 * See:        shrink.h, tests/unit/mm/compact_test.c
 */
#ifndef MM_COMPACT_H
#define MM_COMPACT_H

#include <stdbool.h>
#include <stdint.h>

#include "mm.h"

#define COMPACT_MOVES	64u
#define COMPACT_DRAINS	64u
#define COMPACT_REST_NS	1000000000ull	/* stands for answer_ns where that is 0 */

enum {
	DRAIN_EVICT = 1,	/* cached pages are not worth moving */
	DRAIN_STICKY = 2,	/* a limit wants it: its engine does not get it back */
	DRAIN_ASKED = 4,	/* the engine was told */
	DRAIN_HELD = 8,		/* only extents with HELD pages (compact_pack) */
	DRAIN_ROOM = 16,	/* leased and full ones too: cached pages make the room */
	DRAIN_LAST = 32,	/* its engine takes it back last: its own cached pages go first */
};

struct move {
	uint32_t from, to;	/* frames; 0: not in use */
	uint32_t gen;		/* of from, when it began */
	uint32_t seq;
	uint16_t todo, busy;	/* shards */
	bool failed;
};

struct compact {
	struct move move[COMPACT_MOVES];
	uint32_t nr_moves, nr_todo;	/* in use; with shards to hand out */
	uint32_t nr_packing;		/* draining without DRAIN_EVICT */
	uint32_t move_seq, drain_seq;
	uint32_t want, fill;		/* devices somebody waits for; below their watermark */
	uint32_t at;			/* bind the look for room has come to */
	uint64_t pack_ns;		/* not before */
	uint64_t idle_ns;		/* when an engine may have become idle; UINT64_MAX: never */
};

bool compact_drain(struct mm *, uint32_t ext, uint32_t flags);	/* false: it cannot be now */
bool compact_pack(struct mm *, uint32_t bind, uint32_t group, uint32_t flags);	/* one extent */
/* Room is wanted there: somebody waits for it; they have too little free. */
void compact_want(struct mm *, uint32_t waits, uint32_t fill);
/* nr pages are wanted there: drains end that need not go on. */
bool compact_give_back(struct mm *, uint32_t bind, uint32_t group, uint32_t nr);
void compact_leave(struct mm *, uint32_t bind);		/* its engine goes: drains end */
void compact_end(struct mm *, uint32_t ext);		/* it retires, or is let be */
void compact_changed(struct mm *, uint32_t ext);	/* counts of a draining extent */
void compact_seen(struct mm *, uint32_t engine);	/* it asked for something */
void compact_tick(struct mm *, uint32_t *budget);
uint64_t compact_rest_ns(const struct mm *);		/* what answers are waited for */
uint64_t compact_next_deadline(const struct mm *);
bool compact_next_effect(struct mm *, struct mm_effect *);
bool compact_is_effect(uint64_t effect_id);
int compact_complete(struct mm *, uint64_t effect_id, int result);
int compact_op_vacate_ack(struct mm *, const struct mm_request *, struct mm_reply *);
uint32_t compact_events(const struct mm *, uint32_t engine, struct mm_event *, uint32_t max);
void compact_check(const struct mm *);

#endif
