/* SPDX-License-Identifier: Apache-2.0 */
/* magazine - a few held pages of one group at hand, so that alloc and free need no IPC
 *
 * Model:      a bounded stack of page ids. Empty: half a magazine is fetched in one batch;
 *             full: half of it is given back in one batch (Bonwick and Adams, "Magazines
 *             and Vmem", 2001).
 * Invariants: nr <= cap; every id in it is held by this engine and known to nobody else; none is
 *             of an extent that is being left (map.h).
 * Ownership:  the cache's. The memory is wiped in a forked child (cap 0, nr 0), so the child takes
 *             the slow path, which refuses it.
 * Context:    one thread per kv; no lock, no IPC on the fast path.
 * Cost:       O(1), a handful of instructions a page.
 * Limits:     cap = min(64 pages, 1 % of the pool, 64 MiB), at least one page.
 */
#ifndef MAGAZINE_H
#define MAGAZINE_H

#include <stdbool.h>
#include <stdint.h>

#define MAGAZINE_MAX_PAGES 64u
#define MAGAZINE_MAX_BYTES (64ull << 20)

struct kv;
struct kv_cache;

struct magazine {
	uint32_t nr, cap;
	uint64_t ids[MAGAZINE_MAX_PAGES];
};

uint32_t magazine_cap(uint64_t pool_bytes, uint64_t page_bytes);

/* NULL: no memory. */
struct magazine *magazine_create(uint32_t cap);
void magazine_destroy(struct magazine *);

/* Slow halves of kv_page_alloc and kv_page_free. */
int magazine_refill(struct kv_cache *, uint32_t group, uint64_t *id);
int magazine_spill(struct kv_cache *, uint32_t group, uint64_t id);

/* Give back everything of a cache's magazines or of all of them; pages given back, or -errno. */
int64_t magazine_flush(struct kv_cache *);
int64_t magazine_flush_all(struct kv *);

/* Give back the pages of one extent. */
int magazine_leave(struct kv_cache *, uint32_t group, uint32_t extent);

#endif
