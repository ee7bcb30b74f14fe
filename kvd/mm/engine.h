/* SPDX-License-Identifier: Apache-2.0 */
/* engine - engines, and their member processes
 *
 * Model:      attached --FENCE or first MEMBER_GONE--> fenced --last MEMBER_GONE--> draining
 *             --scrubs done--> gone. Fenced: leases, parks and waiting allocations are dropped,
 *             HELD pages QUARANTINED. Draining: imports are gone, pages are scrubbed and freed;
 *             then extents are orphaned or retired, reservations returned, the id freed.
 * Invariants: a member belongs to a living engine; an engine without members is fenced; a fenced
 *             one has no lease, park or waiting allocation.
 * Ownership:  engine.c; the notify queue is event.c's.
 * Cost:       fence O(what the engine has).
 * Limits:     max_tenants, max_engines, max_members.
 * Errors:     -ENOENT unknown id, -EACCES with MM_FENCED; attaching also -EAGAIN (cache.h).
 */
#ifndef MM_ENGINE_H
#define MM_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "fair.h"
#include "list.h"
#include "mm.h"
#include "pool.h"

struct pressure {
	uint32_t seq, acked;
	uint64_t bytes, deadline_ns;
};

struct engine {
	struct pool_obj obj;
	uint32_t tenant, lead;
	bool fenced, draining;
	bool kill;			/* somebody has to be told to do it */
	uint64_t fenced_ns;		/* when it was */
	struct list members, binds, leases, parks;
	uint32_t nr_scrubs;		/* extents with scrubs on their way */
	uint32_t nr_pending, nr_keys;	/* keys: owned and pinned */
	uint64_t reserved[MM_MAX_DEVICES];	/* the sum of reserved_for */
	uint64_t reserved_for[MM_NR_RESERVES][MM_MAX_DEVICES];
	struct pressure pressure;
	struct fair fair;
	struct link recent_link;
	/* psi's: its last request or end of waiting, up to PSI_TOUCH_NS ago, since mm.recent is in
	 * this order and a request must not cost a move there. */
	uint64_t active_ns;
	bool on_recent;
	uint64_t seen_ns;	/* compact's: its last request, exactly: idle_ns may be short */
	bool packed;			/* idle since, and looked at */
	uint64_t debts;			/* extents it was asked to leave and did not */
	uint64_t allocs, frees, lookup_tokens, hit_tokens, commits;
};

struct member {
	struct pool_obj obj;
	uint32_t engine;
	struct link engine_link, notify_link;
	bool on_notify;
};

/* A living, unfenced engine; 0 with the error in *err and the reply. */
uint32_t engine_find(struct mm *, uint32_t id, struct mm_reply *, int *err);
void engine_kill(struct mm *, uint32_t engine);		/* fences it, too */
bool engine_next_effect(struct mm *, struct mm_effect *);
void engine_drained(struct mm *, uint32_t engine);	/* a scrub ended: is it gone now? */

int engine_op_attach(struct mm *, const struct mm_request *, struct mm_reply *);
int engine_op_member(struct mm *, const struct mm_request *, struct mm_reply *);
int engine_op_fence(struct mm *, const struct mm_request *, struct mm_reply *);
int engine_op_gone(struct mm *, const struct mm_request *, struct mm_reply *);
int engine_op_stat(struct mm *, const struct mm_request *, struct mm_reply *);

#endif
