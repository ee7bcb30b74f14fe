/* SPDX-License-Identifier: Apache-2.0 */
/* cache - the KV of one model: geometry, binds of the engines that opened it, root of its nodes
 *
 * Model:      model key given: shared by the engines of one tenant that give the same key; key
 *             zero: of one engine, dies with it. bind (slab.h) is one engine's part of a cache.
 * Invariants: nr_extents and nr_nodes count all that name the cache; a cache with no open bind, no
 *             extent and no node does not exist.
 * Ownership:  cache.c creates and frees caches and binds.
 *             What engines left behind gives way to newcomers: when caches or tenants are full,
 *             the coldest cache nobody has open (tenant without engines) is cleared; its slot is
 *             free once its extents are gone.
 * Cost:       open O(caches of the tenant); a new one O(caches), and EVICT_BUDGET nodes when it
 *             has to clear; close O(extents, and what it gives back; for a private one its nodes).
 * Limits:     max_caches.
 * Errors:     open: -EINVAL with MM_LAYOUT_DIFFERS, -ENOMEM with MM_TABLE_FULL, -EAGAIN with it
 *             when a slot is on its way; close: -EBUSY, unless it gives back.
 */
#ifndef MM_CACHE_H
#define MM_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "list.h"
#include "mm.h"
#include "pool.h"

struct cache {
	struct pool_obj obj;
	uint32_t tenant;
	uint32_t creator;		/* id of the engine that opened it first: its share */
	struct link tenant_link;
	struct mm_cache_desc desc;
	bool shared;
	uint32_t order[MM_MAX_GROUPS];
	uint64_t extent_bytes[MM_MAX_GROUPS][MM_MAX_SHARDS];
	uint64_t need[MM_MAX_GROUPS][MM_MAX_DEVICES];	/* bytes an extent takes of each device */
	uint32_t window_mask, full_mask, state_mask;	/* groups of each kind */
	uint32_t device_mask;
	bool tails;			/* a match inside a page is possible */
	bool scrub;			/* on some device: orphans are not adopted */
	struct list binds, orphans;	/* of engines; without */
	uint32_t children;		/* root of the nodes without parent */
	uint32_t nr_extents, nr_nodes;
	uint64_t cached_tokens, lookup_tokens, hit_tokens;
};

/* The engine's bind of an open cache; 0 with the error in *err and the reply. */
uint32_t cache_bind(struct mm *, uint32_t engine, uint32_t cache_id, struct mm_reply *, int *err);
void cache_put(struct mm *, uint32_t cache);		/* frees it when empty */
void cache_leave(struct mm *, uint32_t bind);	/* the engine goes; extents orphan or retire */
void cache_bind_put(struct mm *, uint32_t bind);	/* frees an orphaned bind without extents */

bool cache_clear_tenant(struct mm *);	/* true: a tenant is on its way out */

int cache_op_open(struct mm *, const struct mm_request *, struct mm_reply *);
int cache_op_close(struct mm *, const struct mm_request *, struct mm_reply *);

#endif
