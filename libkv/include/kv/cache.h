/* SPDX-License-Identifier: Apache-2.0 */
/* cache.h - the KV of one model: 1 to 8 groups of layers, 1 to 16 shards (ranks)
 *
 * A node of the page cache is page_tokens tokens of one sequence and has a page in every group, so
 * all groups share page_tokens. Engines of the same tenant that open the same model name and
 * revision with the same layouts (and scales of heads) share one cache: a prefix computed by one is
 * found by all.
 */
#ifndef KV_CACHE_H
#define KV_CACHE_H

#include <kv/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KV_MAX_GROUPS	8
#define KV_MAX_SHARDS	16

enum kv_group_kind { KV_GROUP_FULL = 1, KV_GROUP_WINDOW = 2, KV_GROUP_STATE = 3 };

struct kv_group {
	uint32_t kind;			/* enum kv_group_kind */
	uint32_t window_tokens; /* KV_GROUP_WINDOW: a query sees at most these many last tokens */
	struct kv_layout layout;	/* of the whole model; kv_layout_shard() divides it */
	/* KV_SCALE_HEAD: [layers][kv_heads] of the whole model, MLA [layers] and k_scale only; all
	 * above 0, copied. NULL: 1. Stores and attention use them by themselves. They are part of
	 * what the cache is: who opens the model with others is refused, as with another layout,
	 * and so is a call that names others. A private cache opened without both of them has none:
	 * there the calls say. */
	const float *k_scale, *v_scale;
};

struct kv_cache_params {
	const char *model; /* name and weights revision; NULL: private to this engine */
	const char *revision;		/* may be NULL */
	uint32_t nr_groups, nr_shards;	/* nr_shards 0 means 1 */
	uint32_t device[KV_MAX_SHARDS];
	struct kv_group group[KV_MAX_GROUPS];
	/* Room promised to this engine: it will be able to hold so many tokens in every group,
	 * rounded up to whole extents, as long as the cache is open; nobody else can take it.
	 * Opening fails with -ENOMEM (pool) or -EDQUOT (the tenant's max) when it cannot be
	 * promised. 0: no promise. Opened again by the same engine: the last one counts. */
	uint32_t min_tokens;
};

struct kv_cache;

KV_API int kv_cache_open(struct kv *, const struct kv_cache_params *, struct kv_cache **);

/* A member: the same params as its lead gave and the id that the lead's kv_cache_id() told. */
KV_API int kv_cache_join(struct kv *, const struct kv_cache_params *, uint32_t id,
			 struct kv_cache **);

/* All its sequences, pages and leases are given back first. NULL is allowed. */
KV_API void kv_cache_close(struct kv_cache *);

KV_API uint32_t kv_cache_id(const struct kv_cache *);
KV_API uint32_t kv_cache_page_tokens(const struct kv_cache *);
KV_API uint64_t kv_cache_page_bytes(const struct kv_cache *, uint32_t group);	/* of this rank */
/* Pages of one extent, a power of two. A member learns it with the first page it maps: 0 before. */
KV_API uint32_t kv_cache_extent_pages(const struct kv_cache *, uint32_t group);
/* This rank's layout of a group. */
KV_API const struct kv_layout *kv_cache_layout(const struct kv_cache *, uint32_t group);

#ifdef __cplusplus
}
#endif
#endif
