/* SPDX-License-Identifier: Apache-2.0 */
/* pending - allocation: where n pages come from, and the queue of those that wait
 *
 * Model:      in this order, all n or none:
 *               1. FREE, then COLD frames of own extents        2. those of orphans, adopted
 *               3. an extent already being created, or a new one: the allocation waits for it
 *               4. own coldest unpinned nodes, then those of orphans
 *               5. with a deadline: whole extents nothing holds on to, of anybody, coldest first:
 *                  emptied and retired; others are asked by a pressure event; it waits
 *             One that waits for the pool (5) bars those after it on its devices from 3 and 5; one
 *             that waits because its tenant is at its max (own) does so within the tenant only, and
 *             waits for what the tenant gives back. Who is after whom: fair.h; a newcomer may be
 *             before one that waits. So a change is of use only to
 *               - waiters of the slab it is in (wake), or for orphans of slabs of the same cache
 *                 and group: tried again in order
 *               - if it is of the pool's room (dirty): the first that bars a device, and the next
 *                 once that has what it wants; of each tenant at its max, the first there too
 *               - if it is of the clock: those whose deadline has passed.
 * Invariants: slab.pend_pages is the sum of slab.waiters; nothing is changed by an allocation
 *             refused at once; heads and due_ns are what a walk over the queue would find.
 * Cost:       O(1) a page; 5 O(extents); a change O(devices), and tenants at their max, and what it
 *             is of use to; the walk O(waiting), once when a first one leaves or is served.
 *             Cancelled ones have left the queue and wait for room for their reply only.
 * Limits:     max_pending; a call tries PENDING_BUDGET waiters and evicts EVICT_BUDGET nodes for
 *             each of them, the rest is left for mm_tick.
 * Errors:     -ENOMEM MM_POOL_FULL, MM_TABLE_FULL, MM_TIMED_OUT; -EDQUOT MM_TENANT_MAX; -EIO when
 *             the device refused the extent; -EACCES MM_NOT_OWNER when cancelled.
 */
#ifndef MM_PENDING_H
#define MM_PENDING_H

#include <stdbool.h>
#include <stdint.h>

#include "fair.h"
#include "list.h"
#include "mm.h"
#include "pool.h"

#define PENDING_BUDGET	128u

struct slab;

struct pending {
	struct pool_obj obj;
	uint32_t engine, bind, group, nr_pages;
	uint32_t cache;		/* cancelled: the id of the one that was closed, bind is 0 */
	uint64_t deadline_ns, cookie;
	uint64_t seq;		/* order of arrival */
	struct link link, slab_link;
	/* Devices it bars those after it from while it waits for somebody's room: everybody, or
	 * (own) those of its tenant. Both 0: it waits for an extent of its own being made. */
	uint32_t bars, own;
	bool pressed;		/* has raised its pressure event */
	int32_t create_error;	/* the device refused: create no more for it */
};

/* What the queue knows of a tenant. All but start holds only while pass is the queue's. */
struct pending_tenant {
	uint64_t start;		/* of its engine that took last */
	uint64_t pass;
	uint64_t floor;		/* lowest start of an engine that waits for room */
	uint32_t own_head[MM_MAX_DEVICES];	/* first one of own; 0: none */
	uint32_t next;		/* tenant with one of own */
	bool listed;
};

struct pending_queue {
	uint64_t last_seq, last_stamp;
	uint64_t start;		/* of the tenant that took last */
	uint64_t due_ns;	/* next deadline of one that waits for room; UINT64_MAX: none */
	uint32_t head[MM_MAX_DEVICES];	/* first one that bars the device; 0: none */
	uint32_t own;		/* a tenant with an own_head; the others follow by next */
	uint64_t pass;		/* number of the walk the above and pending_tenant are from */
	bool stale;		/* they are to be found again; never between calls */
	uint32_t left;		/* of this call's PENDING_BUDGET */
	uint64_t nr_looks;	/* steps ever spent on those that wait, for tests */
};

static inline bool pending_wants_room(const struct pending *p)
{
	return p->bars | p->own;
}

void pending_run(struct mm *);
/* A slab has more FREE, COLD or unpinned frames than before, or fewer on their way. */
void pending_wake(struct mm *, uint32_t bind, uint32_t group);
void pending_leave(struct mm *, uint32_t bind);	/* it has no waiters any more */
void pending_drop(struct mm *, uint32_t engine);	/* without a reply */
void pending_cancel(struct mm *, uint32_t bind);	/* with one */
struct fair_place pending_place(const struct mm *, uint32_t p);
void pending_create_failed(struct mm *, uint32_t bind, uint32_t group, int error);
uint64_t pending_next_deadline(const struct mm *);
int pending_op_alloc(struct mm *, const struct mm_request *, struct mm_reply *);

#endif
