/* SPDX-License-Identifier: Apache-2.0 */
/* lease - (engine, tail node, generation): pins a chain from the root to the tail
 *
 * Model:      pinning the tail pins every ancestor once (node.h). Of window groups a lease needs
 *             only the pages from drop[group] on: a looked-up lease starts at the last window, one
 *             that grew by commits at 0 until DROP_HEAD. One count a node serves all window groups:
 *             the lease counts as needing a node from the smallest drop[] on (from), so with
 *             several window groups a frame may stay warm until the widest window is dropped too;
 *             never the other way round.
 * Invariants: node.need = leases whose [from, tail] includes the node (caches with window groups).
 * Ownership:  lease.c; commit.c moves a lease by lease_move.
 * Cost:       pin O(1) amortised; need O(pages of the window), O(pages kept) after commits.
 * Limits:     max_leases.
 * Errors:     -ENOENT unknown or another engine's, -EINVAL bad depth, twice in one UNLEASE.
 */
#ifndef MM_LEASE_H
#define MM_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "list.h"
#include "mm.h"
#include "pool.h"

struct lease {
	struct pool_obj obj;
	uint32_t engine, bind, cache, node;
	struct link engine_link;
	uint32_t drop[MM_MAX_GROUPS];
	bool mark;
};

/* May the engine have nr more leases? 0, or an error with its share. */
int lease_room(const struct mm *, uint32_t engine, uint32_t nr, struct mm_reply *);
/* drop NULL: needs everything. There is known to be room. */
uint32_t lease_create(struct mm *, uint32_t bind, uint32_t node, const uint32_t *drop);
void lease_release(struct mm *, uint32_t lease);
void lease_move(struct mm *, uint32_t lease, uint32_t node);	/* to a descendant; id changes */
uint32_t lease_find(const struct mm *, uint32_t engine, uint32_t id);	/* 0: none */
uint32_t lease_from(const struct mm *, uint32_t lease);

int lease_op_dup(struct mm *, const struct mm_request *, struct mm_reply *);
int lease_op_unlease(struct mm *, const struct mm_request *, struct mm_reply *);
int lease_op_hint(struct mm *, const struct mm_request *, struct mm_reply *);
int lease_op_drop_head(struct mm *, const struct mm_request *, struct mm_reply *);

#endif
