/* SPDX-License-Identifier: Apache-2.0 */
/* page.h - raw pages, leases and lookups, for engines that keep their own block tables
 *
 * A page id is 64 bits: extent 20 | slot 20 | generation 24; never 0. A page is held (private and
 * writable, from kv_page_alloc, or an adopted tail) or reached through a lease (immutable). Engines
 * that use seq.h need nothing of this.
 *
 * Ownership: what the calls return (pages, leases, parks) is the engine's until it gives it back or
 *   closes the cache; arrays and structs are the caller's and copied during the call. A page that
 *   is freed or committed must be held: -ESTALE names one that is not (freed twice, committed,
 *   another generation, never granted), -EINVAL one of another group or cache, and nothing changed.
 * Large requests: pages_free, commit and unlease send what one request cannot carry (the pool's
 *   batch_pages, 16384 unless configured; for a commit over all groups, and its tokens must fit the
 *   data area) in several. Only where a call says so can it stop in between.
 * Threads: as pool.h says; none of these is [concurrent]. Only a lead may call them, but for
 *   kv_page_map and kv_pages_pte; a member gets -EACCES.
 * Cost: kv_page_alloc/free of one page come from a magazine in this process, no IPC; the rest is
 *   one ring round trip for a batch.
 */
#ifndef KV_PAGE_H
#define KV_PAGE_H

#include <kv/cache.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The extent that holds a page, as kv_vacate_fn names it. */
static inline uint32_t kv_page_extent(uint64_t id)
{
	return (uint32_t)(id >> 44);
}

/* One page, its content undefined. */
KV_API int kv_page_alloc(struct kv_cache *, uint32_t group, uint64_t *id);
KV_API int kv_page_free(struct kv_cache *, uint32_t group, uint64_t id);

/* n pages at once, all or none, past the magazine. free checks every id first and then gives all of
 * them back; only a session that dies meanwhile (-EPIPE) stops it, and takes all pages with it. */
KV_API int kv_pages_alloc(struct kv_cache *, uint32_t group, uint32_t n, uint64_t *ids);
/* The same with a wait of its own instead of kv_options.wait_ms, for each request of the batch. */
KV_API int kv_pages_alloc_wait(struct kv_cache *, uint32_t group, uint32_t n, uint64_t *ids,
			       uint32_t wait_ms);
KV_API int kv_pages_free(struct kv_cache *, uint32_t group, uint32_t n, const uint64_t *ids);

/* Address of a page in this process (its rank's shard), mapping its extent if need be: writable
 * if this engine writes the extent, else a store faults. Valid while the page is held or leased. */
KV_API int kv_page_map(struct kv_cache *, uint32_t group, uint64_t id, void **addr);

/* Addresses of n pages into a PTE array, as kernels want it; id 0 gives 0. */
KV_API int kv_pages_pte(struct kv_cache *, uint32_t group, uint32_t n, const uint64_t *ids,
			uint64_t *pte);

/* Everything but the tokens that conditions the KV. One function turns it into page keys. */
enum kv_key_kind { KV_KEY_LORA = 1, KV_KEY_SALT = 2, KV_KEY_MEDIA = 3, KV_KEY_OTHER = 4 };

struct kv_key {
	uint32_t kind; /* enum kv_key_kind: a LoRA never equals a salt of that name */
	uint32_t position;		/* KV_KEY_MEDIA: first token it stands at; else 0 */
	const void *data;		/* name, salt or content digest */
	size_t bytes;
};

struct kv_match {
	uint32_t lease;			/* pins the whole chain; 0 if nothing matched */
	uint32_t nr_pages;		/* full pages */
	const uint64_t *pages[KV_MAX_GROUPS];	/* [nr_pages] each, 0 where a window needs none;
						 * libkv's, valid until the next call */
	uint32_t tail_tokens;		/* tokens of the next page that match too */
	uint32_t tail_lease;		/* pins the source of the tail; 0 if adopted */
	bool tail_adopted;		/* tail_pages are held by this engine now, no copy needed */
	uint64_t tail_pages[KV_MAX_GROUPS];
};

/* adopt: an unshared partial tail in this engine's own extents may be taken over, not copied. */
KV_API int kv_lookup(struct kv_cache *, const uint32_t *tokens, uint32_t nr_tokens,
		     const struct kv_key *keys, uint32_t nr_keys, bool adopt, struct kv_match *);

/* Publish held pages as the continuation of lease (0: from the start). pages[g] is [nr_pages], 0
 * where group g has none. nr_tokens = nr_pages * page_tokens, or less in the last page if partial
 * (its writer gives it up). first_page: how many pages the chain of lease has. *lease moves to the
 * new end. chain[g][i] (may be NULL) tells the id cached for each page: if it differs from yours,
 * the same tokens were there already and you still hold your page.
 * Every page is checked first. A commit larger than one request that the pool has no room for
 * (-ENOMEM) may have published some of its first pages: *lease is the end of those, chain has 0 in
 * every group for the others, which are held as before. Commit on from there, or take -ENOMEM as
 * final and free them. -EPIPE: the session is gone, with all its pages. */
KV_API int kv_commit(struct kv_cache *, uint32_t *lease, uint32_t first_page,
		     const uint32_t *tokens, uint32_t nr_tokens, uint32_t nr_pages,
		     const uint64_t *const *pages, bool partial, const struct kv_key *keys,
		     uint32_t nr_keys, uint64_t *const *chain);

/* A second lease on the first depth_pages of the chain (0: all of it). */
KV_API int kv_lease_dup(struct kv_cache *, uint32_t lease, uint32_t depth_pages, uint32_t *out);
/* All or none within one request. More: a wrong lease (-ENOENT) stops at its request, and those of
 * the requests before it are given back. */
KV_API int kv_unlease(struct kv_cache *, uint32_t n, const uint32_t *leases);

/* This lease no longer needs the pages of a window group before depth_pages. */
KV_API int kv_lease_drop_head(struct kv_cache *, uint32_t lease, uint32_t group,
			      uint32_t depth_pages);

/* What the engine knows of the future of cached pages. Advice: it changes what the pool evicts
 * first, and nothing else; but a pin holds. All 0 is what a page has that nobody hinted at. */
enum kv_priority { KV_PRIORITY_NORMAL, KV_PRIORITY_LOW, KV_PRIORITY_HIGH };

struct kv_hint {
	uint32_t priority;		/* enum kv_priority */
	uint32_t reuse_ms;		/* expected next use, from now; 0: not known */
	uint32_t ttl_ms;		/* of no use after; 0: no end */
	bool pin;			/* kv_seq_hint() only */
};

/* Pages [from_page, to_page) of the chain of a lease; to_page 0: to its end. To pin them keep a
 * lease: kv_lease_dup(). */
KV_API int kv_lease_hint(struct kv_cache *, uint32_t lease, uint32_t from_page, uint32_t to_page,
			 const struct kv_hint *);

/* A lease becomes a park: reclaimable, remembered as one object. Resume gives what is left of it
 * (perhaps fewer pages) and consumes the park; unpark forgets it. */
KV_API int kv_park(struct kv_cache *, uint32_t lease, uint32_t *park);
KV_API int kv_resume(struct kv_cache *, uint32_t park, bool adopt, struct kv_match *);
KV_API int kv_unpark(struct kv_cache *, uint32_t park);

#ifdef __cplusplus
}
#endif
#endif
