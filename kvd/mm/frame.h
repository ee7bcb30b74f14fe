/* SPDX-License-Identifier: Apache-2.0 */
/* frame - a slot of an extent: who has the place now
 *
 * Model:                 grant            commit
 *                 FREE ---------> HELD ---------> CACHED <--> COLD   (COLD: cached, but every lease
 *                  ^  ^------------'|  ^------------'|         |      dropped it: taken first)
 *                  |      free      |     adopt      |         |
 *                  |                v                v evict   v
 *                  '---------- QUARANTINED     (FREE)       (FREE)
 *
 *             IO: a cached page is being moved here (compact.h), FREE or CACHED when that is done.
 *             Slots of an extent never granted (slot >= extent.fresh) are FREE without their frame
 *             having been written.
 * Invariants: a frame is on the list of its state in its extent; extent and slab counters equal the
 *             lists; CACHED and COLD have a node that names them, others have none.
 *             A generation is never 0 and changes with every grant.
 * Ownership:  HELD and QUARANTINED belong to the writer of the extent; only frame_set_state moves.
 * Cost:       O(1) a change; 20 bytes a frame, one byte more in the buddy.
 * Errors:     frame_resolve: -EINVAL, -ENOENT, -ESTALE.
 * See:        extent.h, slab.h, tests/unit/mm/page_test.c
 */
#ifndef MM_FRAME_H
#define MM_FRAME_H

#include <stdint.h>

#include "list.h"

struct mm;
struct mm_reply;

enum frame_state {
	FRAME_FREE,
	FRAME_HELD,
	FRAME_CACHED,
	FRAME_COLD,
	FRAME_QUARANTINED,
	FRAME_IO,
	FRAME_NR,
};

struct frame {
	/* moving: compact.c copies from it; mark: seen in the array being validated */
	uint32_t gen : 24, state : 6, moving : 1, mark : 1;
	uint32_t extent, node;
	struct link link;
};

void frame_set_state(struct mm *, uint32_t f, enum frame_state to);
/* At most nr FREE frames of an extent become HELD; their ids, and how many. */
uint32_t frame_grant(struct mm *, uint32_t ext, uint32_t nr, uint64_t *ids);
/* Of an extent that is LIVE, pages from the first on that are HELD and not yet marked: marks them
 * and says how many. */
uint32_t frame_mark_held(struct mm *, uint32_t ext, const uint64_t *ids, uint32_t nr);
/* HELD frames of one extent, by ids known to be right, become FREE and unmarked. */
void frame_release(struct mm *, uint32_t ext, const uint64_t *ids, uint32_t nr);
uint32_t frame_reserve(struct mm *, uint32_t ext);	/* a FREE frame becomes IO */
void frame_renew(struct mm *, uint32_t f);		/* new generation: old ids are stale */
uint64_t frame_id(const struct mm *, uint32_t f);	/* page id; 0 for 0 */
uint32_t frame_slot(const struct mm *, uint32_t f);
int frame_resolve(struct mm *, uint64_t id, uint32_t *f, struct mm_reply *);

/* HELD by engine, of cache and group, not yet marked: marks it. */
int frame_take_held(struct mm *, uint64_t id, uint32_t bind, uint32_t group, uint32_t *f,
		    struct mm_reply *);
void frame_unmark(struct mm *, const uint64_t *ids, uint32_t nr);

#endif
