/* SPDX-License-Identifier: Apache-2.0 */
/* map - where this process has the extents of its rank
 *
 * Model:      an array by extent id: base address, stride, who it belongs to, how many of its pages
 *             this engine holds. Mapped on first use: read-write if this engine writes the extent,
 *             read-only otherwise. An extent that gets this engine as its new writer is mapped anew
 *             over the same address, so that PTEs stay.
 * Invariants: base != NULL iff this process is an importer of (extent, rank) in mm's eyes;
 *             an extent belongs to one cache and group until it is retired.
 * Ownership:  kv's; entries of a cache go with map_drop_cache.
 * Context:    one thread per kv; map_addr does no call once the extent is mapped.
 * Cost:       O(1) a page; 40 bytes an extent.
 * Errors:     -EINVAL a page of another cache or group, -EPIPE, -ENOMEM address space, else mm's.
 */
#ifndef MAP_H
#define MAP_H

#include <stdbool.h>
#include <stdint.h>

#define MAP_MAX_EXTENTS (1u << 20)

struct kv;
struct kv_cache;

struct map_extent {
	uint8_t *base; /* NULL: not mapped */
	uint64_t bytes;
	struct kv_cache *cache; /* NULL: nothing known of it */
	uint32_t slots;		/* pages that fit */
	uint32_t held;		/* pages this engine holds, magazines included */
	uint8_t group;
	bool writable; /* as mapped */
	bool writer;   /* this engine was granted a page of it */
};

struct map {
	struct map_extent *ext;
	uint32_t nr;
};

static inline uint32_t map_id_extent(uint64_t id)
{
	return (uint32_t)(id >> 44);
}
static inline uint32_t map_id_slot(uint64_t id)
{
	return (uint32_t)(id >> 24) & 0xfffffu;
}

/* Pages were granted to this engine (alloc, adopt) or left it (free, commit). id 0 is skipped. */
int map_hold(struct kv_cache *, uint32_t group, const uint64_t *ids, uint32_t n);
void map_unhold(struct kv *, const uint64_t *ids, uint32_t n);
uint32_t map_held(const struct kv *, uint32_t extent);

int map_addr(struct kv_cache *, uint32_t group, uint64_t id, void **addr);

/* Unmap and tell the pool; nothing happens if it is not mapped. */
int map_retire(struct kv *, uint32_t extent);
void map_drop_cache(struct kv_cache *);
void map_fini(struct kv *);

#endif
