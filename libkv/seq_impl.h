/* SPDX-License-Identifier: Apache-2.0 */
/* seq_impl - a sequence's pages and what the seq files, hint.c and attn.c share of them
 *
 * Model:      per group one id and one PTE a page. A page is leased (the chain behind lease pins
 *             it, immutable), held (a struct seq_ref, counted among forks) or dropped (id 0).
 *
 *               page    0 .. lease_pages-1 | lease_pages .. nr_pages-1
 *                       leased, a few held | held
 *
 * Invariants: I1 nr_pages = ceil(len / page_tokens) and committed <= len.
 *             I2 lease_pages = committed / page_tokens, or one more when a truncate or park left
 *                the end of the sequence inside a leased page: then committed = len.
 *             I3 a held page with refs > 1 holds committed tokens only and is either the partial
 *                last page of its sequences or stands below lease_pages (a duplicate that could
 *                not be swapped). So what is stored or published belongs to one sequence alone.
 *             I4 rows of a group before head are gone; pages wholly before it have id 0.
 *             I5 sequences that count the same ref have it at the same page of the same group.
 *             I6 version changes with every id, PTE and address of their arrays.
 * Ownership:  the sequence owns its arrays; a ref belongs to the sequences that count it.
 * Context:    one thread per kv; busy marks the sequence of a call that waits, so that the
 *             engine's pressure callback cannot change it underneath.
 * Errors:     0/-errno; on error nothing has changed.
 * See:        kv/seq.h, tests/unit/libkv/seq_model_test.c
 */
#ifndef SEQ_IMPL_H
#define SEQ_IMPL_H

#include "internal.h"
#include "layout.h"

struct seq_ref {
	uint64_t id;
	uint32_t refs;
};

struct seq_group {
	uint64_t *ids, *pte;   /* [cap_pages] */
	struct seq_ref **held; /* [cap_pages] NULL: leased, or dropped */
	uint32_t head;	       /* tokens */
};

struct kv_seq {
	struct kv_cache *cache;
	struct kv_seq *prev, *next; /* in cache->seqs */
	uint32_t page_tokens, nr_groups;
	uint32_t len, committed;
	uint32_t nr_pages, lease_pages;
	uint32_t cap_pages, cap_tokens;
	uint32_t lease, park, park_len;
	uint64_t version;
	bool parked, busy;
	uint32_t nr_keys;
	struct kv_key *keys; /* ascending by position */
	uint32_t *tokens;
	struct seq_group group[KV_MAX_GROUPS];
};

/* Pages [first, first + nr) of a group. */
struct seq_range {
	uint32_t first, nr;
};

static inline uint32_t seq_pages_of(const struct kv_seq *s, uint32_t tokens)
{
	return (uint32_t)(((uint64_t)tokens + s->page_tokens - 1) / s->page_tokens);
}

static inline const struct kv_layout *seq_layout(const struct kv_seq *s, uint32_t group)
{
	return &s->cache->layout[group];
}

/* seq.c: every call that changes a sequence is between the two. -EINVAL parked, -EBUSY. */
int seq_enter(struct kv_seq *);
void seq_leave(struct kv_seq *);

/* May rows of tokens [pos, pos + n) be written? */
int seq_check_store(const struct kv_seq *, uint32_t group, uint32_t pos, uint32_t n);

/* seq_pages.c: room in the arrays; contents and counts stay. */
int seq_pages_reserve(struct kv_seq *, uint64_t nr_pages, uint64_t nr_tokens);

/* Held pages, mapped, in places that are empty so far: in all groups or in none. */
int seq_pages_grant(struct kv_seq *, const struct seq_range want[KV_MAX_GROUPS]);
void seq_pages_revoke(struct kv_seq *, const struct seq_range had[KV_MAX_GROUPS]);

/* Give up pages of one group, leased ones are only forgotten; cut: all groups, from nr_pages on. */
void seq_pages_put(struct kv_seq *, uint32_t group, uint32_t first, uint32_t nr);
void seq_pages_cut(struct kv_seq *, uint32_t nr_pages);

/* Take over a page that was granted outside (adopted). */
int seq_pages_adopt(struct kv_seq *, uint32_t group, uint32_t page, uint64_t id);

/* A last page that must be copied before it is written: partial, and leased or shared. */
bool seq_pages_shared(const struct kv_seq *, uint32_t group, uint32_t page);
bool seq_pages_leased(const struct kv_seq *, uint32_t group, uint32_t page);

/* The lease covers depth pages from now on: dup gives the shorter one (0: none), set takes it. */
int seq_lease_dup(struct kv_seq *, uint32_t depth, uint32_t *lease);
void seq_lease_set(struct kv_seq *, uint32_t lease, uint32_t depth);

/* seq_move.c: what sequences hold of a group in an extent gets other pages as far as there is room;
 * every fork sees the same. -ENOMEM, -EDQUOT: some stayed. No call on a sequence may be under way.
 * Cost: all pages of the group once, and the cache's sequences for each page that is shared. */
int seq_move(struct kv_cache *, uint32_t group, uint32_t extent);

/* seq_cache.c: the committed partial last page becomes the cache's, if it is this sequence's alone.
 * Best effort. len must be committed. */
void seq_cache_publish_tail(struct kv_seq *);

#endif
