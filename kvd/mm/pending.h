/* SPDX-License-Identifier: Apache-2.0 */
/* pending - allocation: where n pages come from, and the queue of those that wait
 *
 * Model:      in this order, all n or none:
 *               1. FREE, then COLD frames of own extents        2. those of orphans, adopted
 *               3. an extent already being created, or a new one: the allocation waits for it
 *               4. own coldest unpinned nodes, then those of orphans
 *               5. with a deadline: whole extents nothing holds on to, of anybody, coldest first:
 *                  emptied and retired; others are asked by a pressure event; it waits
 *             Waiting allocations are tried again, in order, after each change; one that waits for
 *             the pool (5) bars later ones on its devices from 3 and 5.
 * Invariants: slab.pend_pages is the sum of the waiting allocations; nothing is changed by an
 *             allocation refused at once.
 * Cost:       O(1) a page; 5 O(extents); a retry O(waiting).
 * Limits:     max_pending, EVICT_BUDGET nodes a call.
 * Errors:     -ENOMEM MM_POOL_FULL, MM_TABLE_FULL, MM_TIMED_OUT; -EDQUOT MM_TENANT_MAX; -EIO when
 *             the device refused the extent.
 */
#ifndef MM_PENDING_H
#define MM_PENDING_H

#include <stdbool.h>
#include <stdint.h>

#include "list.h"
#include "mm.h"
#include "pool.h"

#define EVICT_BUDGET 65536u

struct pending {
	struct pool_obj obj;
	uint32_t engine, bind, group, nr_pages;
	uint64_t deadline_ns, cookie;
	struct link link;
	/* Devices it bars later ones from while it waits for somebody's room; 0: it waits for an
	 * extent of its own being made. */
	uint32_t bars;
	bool pressed;		/* has raised its pressure event */
	int32_t create_error;	/* the device refused: create no more for it */
};

void pending_run(struct mm *);
void pending_drop(struct mm *, uint32_t engine);	/* without a reply */
void pending_create_failed(struct mm *, uint32_t bind, uint32_t group, int error);
uint64_t pending_next_deadline(const struct mm *);
int pending_op_alloc(struct mm *, const struct mm_request *, struct mm_reply *);

#endif
