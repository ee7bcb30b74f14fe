/* SPDX-License-Identifier: Apache-2.0 */
/* memcg - tenants: who pays for extents, and how far
 *
 * Model:      a tenant is a number of the caller's (key) with mm_limits for each device. An extent
 *             is charged to the tenant of its cache, shard by shard, from the moment it is asked
 *             for until the device has it back; pages are reported beside it.
 * Invariants: charge is the sum over the charged shards of its extents, leaving the part of it that
 *             is RETIRING or DESTROYING; charge <= peak. A tenant exists while an engine, a cache
 *             or limits that differ from the default (configured) refer to it. The mins of all
 *             tenants fit each pool.
 * Ownership:  memcg.c writes limits, charge and peak; engine.c and cache.c hold references;
 *             fair is fair.c's, queue pending.c's, psi psi.c's.
 * Cost:       O(1) a charge; finding a tenant and setting limits O(tenants).
 * Limits:     max_tenants.
 * Errors:     -EDQUOT MM_TENANT_MAX; setting limits: mm.h.
 * See:        docs/knobs.md, tests/unit/mm/memcg_test.c
 */
#ifndef MM_MEMCG_H
#define MM_MEMCG_H

#include <stdbool.h>
#include <stdint.h>

#include "fair.h"
#include "list.h"
#include "mm.h"
#include "pending.h"
#include "pool.h"
#include "psi.h"

struct tenant {
	struct pool_obj obj;
	uint32_t key, nr_refs;
	struct mm_limits limit[MM_MAX_DEVICES];
	uint64_t charge[MM_MAX_DEVICES], peak[MM_MAX_DEVICES], leaving[MM_MAX_DEVICES];
	uint64_t promised[MM_MAX_DEVICES];	/* unmet: admit.h */
	uint64_t draining[MM_MAX_DEVICES];	/* of extents that will be given back: compact.h */
	uint64_t marked[MM_MAX_DEVICES];	/* by a reclaim being planned, 0 between calls */
	uint64_t ask_ns;			/* shrink.h: until when its engines may answer */
	uint32_t asks;
	bool in_debt;				/* debt.h: everything was tried */
	uint32_t oom_action;			/* enum mm_oom_action */
	bool configured;
	uint64_t events[MM_NR_MEMCG_EVENTS], oom_kills;
	uint64_t lookup_tokens, hit_tokens;
	struct list caches;
	struct fair fair;
	struct pending_tenant queue;
	struct psi psi;
	struct mm_workingset_info workingset;
};

uint32_t tenant_find(const struct mm *, uint32_t key);	/* 0: none */
uint32_t tenant_create(struct mm *, uint32_t key);	/* no limits, no reference; 0: full */
void tenant_put(struct mm *, uint32_t tenant);

/* May the tenant take bytes more of a device, by its max? */
uint64_t memcg_room(const struct mm *, uint32_t tenant, uint32_t device);
void memcg_charge(struct mm *, uint32_t tenant, uint32_t device, uint64_t bytes);
void memcg_uncharge(struct mm *, uint32_t tenant, uint32_t device, uint64_t bytes);
void memcg_leave(struct mm *, uint32_t tenant, uint32_t device, uint64_t bytes); /* on its way */
void memcg_left(struct mm *, uint32_t tenant, uint32_t device, uint64_t bytes);	/* was leaving */
void memcg_event(struct mm *, uint32_t tenant, enum mm_memcg_event);

/* The charge without what is on its way back already: what reclaim compares with the limits. */
uint64_t memcg_usage(const struct mm *, uint32_t tenant, uint32_t device);
bool memcg_below_min(const struct mm *, uint32_t tenant, uint32_t device); /* or just at it */
bool memcg_below_low(const struct mm *, uint32_t tenant, uint32_t device);
uint64_t memcg_excess(const struct mm *, uint32_t tenant, uint32_t device);	/* over max */
uint64_t memcg_over_high(const struct mm *, uint32_t tenant, uint32_t device);
/* Would nr extents more, of so many bytes on each device? */
bool memcg_would_pass_high(const struct mm *, uint32_t tenant, const uint64_t *need, uint32_t nr);
/* Bytes that may be taken from it without going below min, and without going below low. */
uint64_t memcg_above_min(const struct mm *, uint32_t tenant, uint32_t device);
uint64_t memcg_above_low(const struct mm *, uint32_t tenant, uint32_t device);

int memcg_op_set(struct mm *, const struct mm_request *, struct mm_reply *);

#endif
