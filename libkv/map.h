/* SPDX-License-Identifier: Apache-2.0 */
/* map - where this process has the extents of its rank, and which of their pages are held
 *
 * Model:      an array by extent id: base address, stride, who it belongs to, and a word a slot
 *             that says which generation of it this engine holds, if any. Mapped on first use:
 *             read-write if this engine writes the extent, read-only otherwise. An extent that
 *             gets this engine as its new writer is mapped anew over the same address, so that
 *             PTEs stay.
 *
 *               0 -- map_hold --> USED <-- map_take, map_give --> IDLE     both -- map_unhold --> 0
 *
 *             USED: the engine's to write, free and commit. IDLE: libkv's, in a magazine or in a
 *             request that gives it away, so that nobody can give it away twice. An extent that
 *             kvd wants empty is leaving: no magazine keeps a page of it.
 * Invariants: base != NULL iff this process is an importer of (extent, rank) in mm's eyes;
 *             an extent belongs to one cache and group until it is retired;
 *             held = slots whose word is not 0; a member holds nothing (page NULL).
 * Ownership:  kv's; entries of a cache go with map_drop_cache. A fork() by another thread while an
 *             extent is being mapped may leave the child with that mapping.
 * Context:    one thread per kv; map_addr does no call once the extent is mapped.
 * Cost:       O(1) a page; 48 bytes an extent, 4 a slot where pages are held.
 * Errors:     -EINVAL a page of another cache or group, -ESTALE not held, -EPIPE, -ENOMEM address
 *             space, else mm's.
 */
#ifndef MAP_H
#define MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAP_MAX_EXTENTS (1u << 20)
#define MAP_GEN_MASK	0xffffffu
#define MAP_USED	(1u << 31)
#define MAP_IDLE	(1u << 30)

struct kv;
struct kv_cache;

struct map_extent {
	uint8_t *base; /* NULL: not mapped */
	uint64_t bytes;
	struct kv_cache *cache; /* NULL: nothing known of it */
	uint32_t slots;		/* pages that fit */
	uint32_t held;		/* pages this engine holds, magazines included */
	uint32_t *page;		/* [slots] generation | MAP_USED or MAP_IDLE, 0: not held */
	uint8_t group;
	bool writable; /* as mapped */
	bool writer;   /* this engine was granted a page of it */
	bool leaving;  /* kvd has asked for it to be vacated */
};

struct map {
	struct map_extent *ext;
	uint32_t nr, nr_leaving;
};

static inline uint32_t map_id_extent(uint64_t id)
{
	return (uint32_t)(id >> 44);
}
static inline uint32_t map_id_slot(uint64_t id)
{
	return (uint32_t)(id >> 24) & 0xfffffu;
}

/* The word of a page, if it may be held at all: NULL for what is of another cache or group. */
static inline uint32_t *map_page(const struct map *map, const struct kv_cache *c, uint32_t group,
				 uint64_t id)
{
	const struct map_extent *e = map->ext + map_id_extent(id);

	if (map_id_extent(id) >= map->nr || e->cache != c || e->group != group || !e->page ||
	    map_id_slot(id) >= e->slots)
		return NULL;
	return e->page + map_id_slot(id);
}

static inline uint32_t map_word(uint64_t id, uint32_t state)
{
	return ((uint32_t)id & MAP_GEN_MASK) | state;
}

static inline bool map_leaving(const struct map *map, uint64_t id)
{
	return map_id_extent(id) < map->nr && map->ext[map_id_extent(id)].leaving;
}

/* Pages were granted to this engine (alloc, adopt): USED. All or none; id 0 is skipped. */
int map_hold(struct kv_cache *, uint32_t group, const uint64_t *ids, uint32_t n);
/* They left it (free, commit). */
void map_unhold(struct kv *, const uint64_t *ids, uint32_t n);

/* USED -> IDLE, all or none: -EINVAL or -ESTALE names the first that is not USED or comes twice.
 * id 0 is skipped. map_give is the way back. */
int map_take(struct kv_cache *, uint32_t group, const uint64_t *ids, uint32_t n);
void map_give(struct kv *, const uint64_t *ids, uint32_t n);
uint32_t map_held(const struct kv *, uint32_t extent);

/* The extent is to be left: true if this engine holds pages of it. map_stay: none is any more. */
bool map_leave(struct kv *, uint32_t extent);
void map_stay(struct kv *);

int map_addr(struct kv_cache *, uint32_t group, uint64_t id, void **addr);

/* Unmap and tell the pool; nothing happens if it is not mapped. */
int map_retire(struct kv *, uint32_t extent);
void map_drop_cache(struct kv_cache *);
void map_fini(struct kv *);

#endif
