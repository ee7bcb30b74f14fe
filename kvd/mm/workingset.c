// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core.h"
#include "policy.h"
#include "workingset.h"
#include "worth.h"

#define CHAIN_MAX	16u	/* shadows looked at */

static struct shadow *shadow_at(const struct mm *mm, uint32_t i)
{
	return (struct shadow *)((uintptr_t)mm + mm->off_shadows) + (i - 1);
}

uint32_t workingset_heads(uint32_t max_shadows)
{
	return max_shadows ? 1u << (31 - (uint32_t)__builtin_clz(max_shadows)) : 0;
}

static uint32_t *head_of(const struct mm *mm, uint32_t path)
{
	uint32_t mask = workingset_heads(mm->cfg.max_shadows) - 1;

	return (uint32_t *)((uintptr_t)mm + mm->off_shadow_heads) + (path & mask);
}

uint32_t workingset_path(const struct mm *mm, uint32_t node)
{
	const struct node *n = node_at(mm, node);
	const uint32_t *tokens = node_tokens(mm, node);
	uint64_t h = mm->cfg.seed ^ n->nr_tokens, w;

	h = core_mix(h ^ (n->parent ? (uint64_t)node_at(mm, n->parent)->path << 32 :
				      pool_id(mm, &mm->caches, n->cache)));
	for (uint32_t i = 0; n->key && i < MM_KEY_BYTES; i += sizeof(w)) {
		memcpy(&w, key_at(mm, n->key)->digest + i, sizeof(w));
		h = core_mix(h ^ w);
	}
	for (uint32_t i = 0; i < n->nr_tokens; i++)
		h = (h ^ tokens[i]) * 0x9e3779b97f4a7c15ull + (h >> 29);
	return (uint32_t)(core_mix(h) >> 32);
}

/* ---- the ring ------------------------------------------------------------------------------ */

/* Evictions since that of shadow i, from 1. */
static uint32_t distance(const struct mm *mm, uint32_t i)
{
	uint32_t max = mm->cfg.max_shadows, next = (uint32_t)(mm->nr_shadowed % max);

	return (next + max - i) % max + 1;
}

static uint32_t find(const struct mm *mm, uint32_t path)
{
	uint32_t i = *head_of(mm, path), far = 0;

	for (uint32_t k = 0; k < CHAIN_MAX && i; k++) {
		const struct shadow *s = shadow_at(mm, i);

		if (distance(mm, i) <= far || i > mm->nr_shadowed)
			return NIL;
		if (s->live && s->path == path)
			return i;
		far = distance(mm, i);
		i = s->next;
	}
	return NIL;
}

static uint32_t log2_of(uint64_t v)
{
	uint32_t b = v ? 64 - (uint32_t)__builtin_clzll(v) : 0;

	return b < MM_LOG2_BUCKETS ? b : MM_LOG2_BUCKETS - 1;
}

/* ---- events -------------------------------------------------------------------------------- */

void workingset_evict(struct mm *mm, uint32_t node)
{
	const struct node *n = node_at(mm, node);
	uint32_t i, *head;

	tenant_at(mm, cache_at(mm, n->cache)->tenant)->workingset.evictions++;
	if (!mm->cfg.max_shadows)
		return;
	i = (uint32_t)(mm->nr_shadowed++ % mm->cfg.max_shadows) + 1;
	head = head_of(mm, n->path);
	*shadow_at(mm, i) = (struct shadow){
		.path = n->path, .next = *head, .used_ms = (uint32_t)(n->age >> 10),
		.hits = n->hits, .class = n->class, .live = 1,
	};
	*head = i;
}

static inline void used_again(struct mm *mm, const struct node *n, uint32_t class, uint32_t gap,
			      uint64_t now)
{
	uint32_t tenant = cache_at(mm, n->cache)->tenant;
	struct worth *w = worth_at(mm, tenant);

	tenant_at(mm, tenant)->workingset.gap_ms[log2_of(gap)]++;
	if (w)
		worth_reuse(w, class, gap, now);
}

void workingset_create(struct mm *mm, uint32_t node)
{
	struct node *n = node_at(mm, node);
	struct mm_workingset_info *ws = &tenant_at(mm, cache_at(mm, n->cache)->tenant)->workingset;
	uint64_t now = policy_clock(mm) >> 10;
	uint32_t i;
	struct shadow *s;

	n->path = workingset_path(mm, node);
	i = mm->cfg.max_shadows ? find(mm, n->path) : NIL;
	if (!i)
		return;
	s = shadow_at(mm, i);
	s->live = 0;
	n->hits = (s->hits < POLICY_MAX_HITS ? s->hits + 1 : s->hits) & POLICY_MAX_HITS;
	ws->refaults++;
	ws->distance[log2_of(distance(mm, i))]++;
	mm->vmstat.refaults++;
	used_again(mm, n, s->class, (uint32_t)now - s->used_ms, now);
}

void workingset_use(struct mm *mm, uint32_t node, uint64_t clock)
{
	struct node *n = node_at(mm, node);

	if (!n->age)	/* made just now */
		return;
	used_again(mm, n, n->class, (uint32_t)(clock >> 10) - (uint32_t)(n->age >> 10),
		   clock >> 10);
	n->hits = (n->hits < POLICY_MAX_HITS ? n->hits + 1 : n->hits) & POLICY_MAX_HITS;
	n->reuse = 0;	/* what the engine expected has happened */
}

/* ---- reports ------------------------------------------------------------------------------- */

int mm_workingset(const struct mm *mm, uint32_t tenant, struct mm_workingset_info *info)
{
	uint32_t t = tenant_find(mm, tenant);

	if (!t)
		return -ENOENT;
	*info = tenant_at(mm, t)->workingset;
	return 0;
}

void workingset_check(const struct mm *mm)
{
	uint64_t seen = mm->nr_shadowed;
	uint32_t heads = workingset_heads(mm->cfg.max_shadows);

	seen = seen < mm->cfg.max_shadows ? seen : mm->cfg.max_shadows;
	for (uint32_t i = 0; i < heads; i++)
		MM_ASSERT(*head_of(mm, i) <= seen);
	for (uint32_t i = 1; i <= seen; i++) {
		MM_ASSERT(shadow_at(mm, i)->next <= mm->cfg.max_shadows);
		MM_ASSERT(shadow_at(mm, i)->class < POLICY_CLASSES);
		if (shadow_at(mm, i)->live && distance(mm, i) == 1)
			MM_ASSERT(*head_of(mm, shadow_at(mm, i)->path) == i);
	}
	for (uint32_t t = pool_next(mm, &mm->tenants, 0); t; t = pool_next(mm, &mm->tenants, t))
		if (worth_at(mm, t))
			worth_check(worth_at(mm, t));
	for (uint32_t n = pool_next(mm, &mm->nodes, 0); n; n = pool_next(mm, &mm->nodes, n)) {
		MM_ASSERT(node_at(mm, n)->path == workingset_path(mm, n));
		MM_ASSERT(node_at(mm, n)->class < POLICY_CLASSES && node_at(mm, n)->prio < 3);
	}
}

uint64_t workingset_digest(const struct mm *mm, uint64_t h)
{
	uint64_t seen = mm->nr_shadowed;

	seen = seen < mm->cfg.max_shadows ? seen : mm->cfg.max_shadows;
	for (uint32_t i = 1; i <= seen; i++) {
		const struct shadow *s = shadow_at(mm, i);

		h = core_mix(h ^ ((uint64_t)s->path << 32 | (uint32_t)s->hits << 16 |
				  (uint32_t)s->class << 1 | s->live)) + (h << 7);
	}
	return core_mix(h ^ mm->nr_shadowed);
}
