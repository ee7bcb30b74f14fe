/* SPDX-License-Identifier: Apache-2.0 */
/* memcg - tenants: who pays for extents, and how far
 *
 * Model:      a tenant is a number of the caller's (key) with mm_limits for each device. An extent
 *             is charged to the tenant of its cache, shard by shard, from the moment it is asked
 *             for until the device has it back; pages are reported beside it.
 * Invariants: charge is the sum over the charged shards of its extents; charge <= peak. A tenant
 *             exists while an engine, a cache or a limit that was set refers to it.
 * Ownership:  memcg.c writes limits, charge and peak; engine.c and cache.c hold references.
 * Cost:       O(1) a charge; finding a tenant O(tenants).      Limits: max_tenants.
 * Errors:     -EDQUOT MM_TENANT_MAX.
 * See:        docs/knobs.md, tests/unit/mm/memcg_test.c
 */
#ifndef MM_MEMCG_H
#define MM_MEMCG_H

#include <stdint.h>

#include "list.h"
#include "mm.h"
#include "pool.h"

struct tenant {
	struct pool_obj obj;
	uint32_t key, nr_refs;
	struct mm_limits limit[MM_MAX_DEVICES];
	uint64_t charge[MM_MAX_DEVICES], peak[MM_MAX_DEVICES];
	struct list caches;
	struct mm_workingset_info workingset;
};

uint32_t tenant_find(const struct mm *, uint32_t key);	/* 0: none */
uint32_t tenant_create(struct mm *, uint32_t key);	/* no limits, no reference; 0: full */
void tenant_put(struct mm *, uint32_t tenant);

/* May the tenant take bytes more of a device, by its max? */
uint64_t memcg_room(const struct mm *, uint32_t tenant, uint32_t device);
void memcg_charge(struct mm *, uint32_t tenant, uint32_t device, uint64_t bytes);
void memcg_uncharge(struct mm *, uint32_t tenant, uint32_t device, uint64_t bytes);

#endif
