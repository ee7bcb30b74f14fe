/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim - room made by taking cached pages: of the own slab, or whole extents of others
 *
 * Model:      reclaim_pages evicts within a slab and its orphans until an allocation fits.
 *             In window and state groups only the group's frame goes, unless it is a leaf's.
 *             reclaim_extents retires extents nothing holds on to, of anybody, coldest first; when
 *             those of tenants above their low are not enough mixed ones are drained (shrink.h),
 *             and only when there are none is somebody taken below low.
 * Invariants: nothing leased, held or quarantined is taken; leaves go before parents; extents are
 *             taken only if together they are enough.
 * Cost:       O(1) a page; extents O(extents).
 * Limits:     EVICT_BUDGET a call, of nodes evicted and, where the policy has none for the slab, of
 *             extents and pinned pages looked at; one node at least.
 * See:        pending.h (when it is called), policy.h (which page goes).
 */
#ifndef MM_RECLAIM_H
#define MM_RECLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "fair.h"
#include "mm.h"

#define EVICT_BUDGET	65536u

/* For whom: an allocation of this slab, at this place of the queue (pending.h). */
struct reclaim {
	uint32_t bind, group;
	struct fair_place at;
	bool own;	/* its tenant is at its max: only what is charged to that helps */
};

/* Evicts until nr pages are ready; the caller has counted that they can be. False: the budget is
 * spent. */
bool reclaim_pages(struct mm *, uint32_t bind, uint32_t group, uint32_t nr);
/* Retires extents, if they are enough for nr_extents more. True: room is on its way. */
bool reclaim_extents(struct mm *, const struct reclaim *, uint32_t nr_extents);
/* The same for bytes of each device, of a tenant's extents (0: anybody's). False: bytes says what
 * would still be missing, and nothing was taken. */
bool reclaim_bytes(struct mm *, uint64_t bytes[MM_MAX_DEVICES], uint32_t tenant);

#endif
