/* SPDX-License-Identifier: Apache-2.0 */
/* core - struct mm: the versioned head of the one block of memory, and where each table lies in it
 *
 * Model:      [ struct mm | tables ... ], tables found by offset, elements by index from 1.
 *             The block may arrive with anything in it: mm_init clears the tags of the buddies and
 *             the heads of the key table; tables are not touched before their use.
 * Ownership:  each table belongs to the module of its name; this header only knows where it is.
 * Errors:     MM_ASSERT: a broken invariant of ours ends in mm_panic.
 */
#ifndef MM_CORE_H
#define MM_CORE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buddy.h"
#include "cache.h"
#include "compact.h"
#include "engine.h"
#include "extent.h"
#include "frame.h"
#include "key.h"
#include "lease.h"
#include "list.h"
#include "memcg.h"
#include "mm.h"
#include "node.h"
#include "oom.h"
#include "park.h"
#include "pending.h"
#include "pool.h"
#include "psi.h"
#include "reply.h"
#include "shrink.h"
#include "slab.h"

#define MM_MAGIC	0x6d6d76643030316bull
#define MM_VERSION	1u

#define MM_ASSERT(cond) \
	do { \
		if (__builtin_expect(!(cond), 0)) \
			mm_panic(#cond, __FILE__, __LINE__); \
	} while (0)

struct device {
	uint64_t extent_bytes, reserved_bytes;
	uint64_t promised_bytes;	/* and not taken yet: admit.h */
	uint64_t leaving_bytes;		/* of extents RETIRING or DESTROYING */
	uint64_t draining_bytes;	/* of extents that are being emptied */
};

struct mm {
	uint64_t magic, len;
	uint32_t version, pad;
	struct mm_config cfg;
	uint64_t now_ns;
	uint64_t clock;			/* of last use: policy.h */
	uint64_t nr_shadowed;		/* nodes evicted, ever */
	uint64_t off_frames, off_tokens, off_key_heads, off_imports, off_path;
	uint64_t off_worth, off_shadows, off_shadow_heads;
	uint32_t key_mask;
	uint32_t fx_seq, pressure_seq;
	struct pending_queue queue;
	struct compact compact;
	struct shrink shrink;
	uint32_t nr_kills;		/* engines to be killed that nobody was told of */
	bool dirty;			/* room in the pool changed: those who wait for it */
	bool more;			/* work is left for mm_tick */
	bool retry;			/* effects failed that mm_tick issues again */
	uint64_t retry_ns;		/* when */
	struct device device[MM_MAX_DEVICES];
	struct pool tenants, engines, members, caches, binds, extents, nodes, leases, parks, keys;
	struct pool pendings;
	struct buddy frame_buddy, token_buddy;
	struct list takeable, retiring, draining, fx, notify, trim, waiting, wake;
	struct list cancelled;		/* allocations yet to be told so */
	struct list recent;		/* engines that work and do not wait, psi.h */
	uint32_t nr_pinned_nodes, nr_pinned_units, nr_idle_keys;	/* idle: no pinned node */
	uint32_t nr_leaving;		/* extents RETIRING or DESTROYING */
	struct mm_vmstat vmstat;
	struct psi psi;
	struct oom oom;
	struct reply_queue replies;
};

#define CORE_TABLE(fn, type, pool) \
	static inline struct type *fn(const struct mm *mm, uint32_t i) \
	{ \
		return (struct type *)((uintptr_t)mm + mm->pool.off) + (i - 1); \
	}

CORE_TABLE(tenant_at, tenant, tenants)
CORE_TABLE(engine_at, engine, engines)
CORE_TABLE(member_at, member, members)
CORE_TABLE(cache_at, cache, caches)
CORE_TABLE(bind_at, bind, binds)
CORE_TABLE(extent_at, extent, extents)
CORE_TABLE(node_at, node, nodes)
CORE_TABLE(lease_at, lease, leases)
CORE_TABLE(park_at, park, parks)
CORE_TABLE(key_at, key, keys)
CORE_TABLE(pending_at, pending, pendings)

static inline struct frame *frame_at(const struct mm *mm, uint32_t i)
{
	return (struct frame *)((uintptr_t)mm + mm->off_frames) + (i - 1);
}

/* Scratch: nodes of the chain being looked at, batch_pages + 1 of them. */
static inline uint32_t *core_path(const struct mm *mm)
{
	return (uint32_t *)((uintptr_t)mm + mm->off_path);
}

static inline struct slab *slab_of(const struct mm *mm, const struct extent *x)
{
	return &bind_at(mm, x->bind)->slab[x->group];
}

static inline uint64_t core_less(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static inline uint64_t core_mix(uint64_t z)
{
	z += 0x9e3779b97f4a7c15ull;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

LIST_DEFINE(frame_list, frame_at, link)
LIST_DEFINE(bucket_list, extent_at, bucket_link)
LIST_DEFINE(cold_list, extent_at, cold_link)
LIST_DEFINE(take_list, extent_at, take_link)
LIST_DEFINE(fx_list, extent_at, fx_link)
LIST_DEFINE(retire_list, extent_at, retire_link)
LIST_DEFINE(drain_list, extent_at, drain_link)
LIST_DEFINE(queue_list, node_at, queue)
LIST_DEFINE(notify_list, member_at, notify_link)
LIST_DEFINE(member_list, member_at, engine_link)
LIST_DEFINE(engine_bind_list, bind_at, engine_link)
LIST_DEFINE(cache_bind_list, bind_at, cache_link)
LIST_DEFINE(trim_list, bind_at, trim_link)
LIST_DEFINE(cache_list, cache_at, tenant_link)
LIST_DEFINE(lease_list, lease_at, engine_link)
LIST_DEFINE(park_list, park_at, engine_link)
LIST_DEFINE(pending_list, pending_at, link)
LIST_DEFINE(waiter_list, pending_at, slab_link)
LIST_DEFINE(wake_list, bind_at, wake_link)
LIST_DEFINE(recent_list, engine_at, recent_link)

#endif
