/* SPDX-License-Identifier: Apache-2.0 */
/* seq.h - sequences: the tokens of one request and the pages behind them
 *
 *	create -> match (prefix from the cache) -> append + store rows + commit ... -> release
 *
 * length:    tokens that have a place in a page (matched or appended)
 * committed: tokens the engine has accepted and whose rows are written in every layer; full pages
 *            of them are published so that others can reuse them
 * Pages shared with a fork or with the cache are never written: append copies a shared partial
 * tail first (copy-on-write), also after a truncate below the committed mark.
 *
 * Full and window groups only: kv_seq_create() on a cache with a state group is -EOPNOTSUPP. A
 * member rank has no sequences (-EPERM): its lead sends it page ids for kv_pages_pte() and
 * kv_attn_pages(). While a call on a sequence waits for room, the pressure callback may use every
 * other sequence; this one gives -EBUSY and cannot be released.
 */
#ifndef KV_SEQ_H
#define KV_SEQ_H

#include <kv/page.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kv_seq;
struct kv_rope;

/* An empty sequence. keys (copied) condition its KV: LoRA, salt, media; nr_keys 0 for none. */
KV_API int kv_seq_create(struct kv_cache *, const struct kv_key *keys, uint32_t nr_keys,
			 struct kv_seq **);

/* An empty sequence takes the longest cached prefix of tokens: shared pages for full ones, a copy
 * of the rows for the part inside a page. At most nr_tokens - 1, so that at least one token is
 * left to compute. *hit is the new length; those tokens are committed. */
KV_API int kv_seq_match(struct kv_seq *, const uint32_t *tokens, uint32_t nr_tokens, uint32_t *hit);

/* Make room for n more tokens (page allocation, copy-on-write); their rows are then stored for each
 * layer by kv_seq_store() or by the engine's own kernels through kv_seq_pte(). */
KV_API int kv_seq_append(struct kv_seq *, const uint32_t *tokens, uint32_t n);

/* Write n rows (fp32, dense) of one layer of a group at token position pos, converting to the
 * cache's dtype. GQA: k [n][kv_heads][head_dim], v [n][kv_heads][head_dim_v]; MLA: k [n][rank]
 * (normed latent), v [n][rope] (roped key). Only tokens above the committed mark.
 * [concurrent] for different sequences. */
KV_API int kv_seq_store(struct kv_seq *, uint32_t group, uint32_t layer, uint32_t pos, uint32_t n,
			const float *k, const float *v);

/* Rows as a model makes them. */
struct kv_store {
	uint32_t group, layer;
	uint32_t pos, n;
	uint32_t dtype;			/* of k and v: KV_F32 (also 0), KV_F16 or KV_BF16 */
	const void *k, *v;		/* as of kv_seq_store() */
	uint64_t k_stride, v_stride;	/* elements between tokens; 0: dense */
	const float *k_scale, *v_scale;	/* KV_SCALE_HEAD: as in attn.h; NULL: the cache's, else 1 */
	const struct kv_rope *rope;	/* rope.h: rotates K (MLA: v); NULL: it is roped already */
	const uint32_t *positions;	/* [n] for rope; NULL: pos, pos + 1, ... */
};

/* kv_seq_store() of rows that are not plain fp32, or that are rotated on their way. Elements are
 * rounded to nearest even and saturate in 8 bits; KV_SCALE_TOKEN and KV_F8_DS find their scales.
 * [concurrent] for different sequences. */
KV_API int kv_seq_store_rows(struct kv_seq *, const struct kv_store *);

/* Tokens below upto are accepted and written; publishes the full pages among them. Pages whose
 * tokens are cached already are swapped for the cached ones, so page ids and PTEs may change. On
 * error the pages published so far stay committed (kv_seq_committed()). */
KV_API int kv_seq_commit(struct kv_seq *, uint32_t upto);

/* A second sequence with the same tokens; pages are shared until one of them writes. Pages with
 * uncommitted tokens are about to be written and are copied at once: commit first. */
KV_API int kv_seq_fork(struct kv_seq *, struct kv_seq **child);

/* Forget tokens from len on. -EINVAL if the next token's window would reach dropped ones; len 0 is
 * always possible. */
KV_API int kv_seq_truncate(struct kv_seq *, uint32_t len);

/* Window groups: tokens before upto will not be read again in this group (whole pages are freed).
 * Attention must not reach before it. */
KV_API int kv_seq_drop_head(struct kv_seq *, uint32_t group, uint32_t upto);

/* Park: commit what is written (the partial tail included), give every page up to the pool as one
 * reclaimable object. Resume: get back what is still there; *len tokens, the rest must be
 * recomputed by append. A parked sequence allows only resume and release, and its length is 0.
 * Tokens above the committed mark are forgotten, and so is a partial tail that a fork shares or
 * that a truncate left inside a page of the cache. If
 * park fails, the sequence stays, cut to its committed tokens; if resume fails because pages cannot
 * be mapped, it is empty and no longer parked. */
KV_API int kv_seq_park(struct kv_seq *);
KV_API int kv_seq_resume(struct kv_seq *, uint32_t *len);

/* What is known of the future of tokens [from_token, to_token) (0: to the end): of the pages they
 * stand in, as far as those are published; -ENOENT if none is. Tokens committed later need a hint
 * of their own.
 * hint->pin keeps everything from the start to to_token in the cache, also after the sequence is
 * gone: by a lease of libkv's own, so within what the pool lets an engine lease (-ENOMEM), until a
 * hint without pin covers to_token, of this or any other sequence with the same beginning, or the
 * cache is closed. */
KV_API int kv_seq_hint(struct kv_seq *, uint32_t from_token, uint32_t to_token,
		       const struct kv_hint *hint);

/* Publishes the committed partial tail, gives everything back, frees the sequence. NULL allowed. */
KV_API void kv_seq_release(struct kv_seq *);

KV_API uint32_t kv_seq_len(const struct kv_seq *);
KV_API uint32_t kv_seq_committed(const struct kv_seq *);
KV_API const uint32_t *kv_seq_tokens(const struct kv_seq *);
/* Pages by kind, of all groups: held by this engine (shared by forks counted once per sequence)
 * and reached through the lease. */
KV_API void kv_seq_pages(const struct kv_seq *, uint32_t *held, uint32_t *leased);
/* This rank's page addresses of a group, one per page_tokens tokens; valid until the next call
 * that changes the sequence, or kv_poll(). Page ids likewise. */
KV_API const uint64_t *kv_seq_pte(const struct kv_seq *, uint32_t group, uint32_t *nr);
KV_API const uint64_t *kv_seq_page_ids(const struct kv_seq *, uint32_t group, uint32_t *nr);

/* Another number whenever an address or id that these two tell has changed, or where they stand.
 * Equal: what was fetched before is still right. No call to the daemon. */
KV_API uint64_t kv_seq_pte_version(const struct kv_seq *);

#ifdef __cplusplus
}
#endif
#endif
