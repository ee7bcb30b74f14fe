/* SPDX-License-Identifier: Apache-2.0 */
/* mla.h - the attention layer of MLA models as one call, for engines that hand over the weights
 *
 *	x -> [wq_a -> RMSNorm -> wq_b | wq] -> q_nope * W_UK | rope(q_pe)	the absorbed query
 *	x -> wkv_a -> RMSNorm(latent) | rope(k_pe) -> the pages			one row, all heads
 *	attention (attn.h) -> W_UV -> wo, or one matrix W_O * W_UV -> out
 *
 * (DeepSeek-V2, 2024.) Matrices are row-major [out][in], as checkpoints have them; vectors and
 * activations between them are fp32. With bf16 weights their inputs are rounded to bf16, sums are
 * fp32. Products are made by oneDNN, which is loaded by the first kv_mla_create(); without it that
 * call is -EOPNOTSUPP and nothing else changes. A step computes on the calling thread and on those
 * of kv_threads_set(), with the same result to the bit; oneDNN and OpenMP make no threads for it,
 * and their settings stay what they are for the rest of the process.
 *
 * A rank of a tensor-parallel model passes its heads' slices of wq (wq_b), wkv_b and wo, and sums
 * out over the ranks; wq_a, wkv_a and the norms are whole.
 */
#ifndef KV_MLA_H
#define KV_MLA_H

#include <kv/attn.h>
#include <kv/rope.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kv_mla;

struct kv_mla_params {
	uint32_t hidden;
	uint32_t heads;			/* of this rank */
	uint32_t nope, rope;		/* qk_nope_head_dim, qk_rope_head_dim */
	uint32_t v_dim;			/* v_head_dim */
	uint32_t rank;			/* kv_lora_rank */
	uint32_t q_rank;		/* q_lora_rank; 0: q has no LoRA */
	uint32_t dtype;			/* enum kv_dtype of the matrices: KV_F32 or KV_BF16 */
	const void *wq;			/* q_rank 0: [heads][nope | rope][hidden]; else NULL */
	const void *wq_a;		/* [q_rank][hidden] */
	const void *wq_b;		/* [heads][nope | rope][q_rank] */
	const void *wkv_a;		/* [rank | rope][hidden] */
	const void *wkv_b;		/* [heads][nope | v_dim][rank] */
	const void *wo;			/* [hidden][heads][v_dim] */
	const float *q_norm;		/* [q_rank]; NULL: ones */
	const float *kv_norm;		/* [rank]; NULL: ones */
	float eps;			/* of both norms; 0 means 1e-6 */
	float scale;			/* of the scores; 0: (nope + rope)^-0.5 * rotary->softmax */
	const struct kv_rope *rotary;	/* dim = rope; must stay until kv_mla_destroy() */
	/* One matrix W_O * W_UV, [hidden][heads][rank], in place of two. It saves a product and
	 * reads rank / v_dim times wo: for every published model that is slower. */
	bool premultiply;
	/* 0: products are made for as many rows as there are. Else always in tiles of so many, up
	 * to 64: then what a sequence gets does not depend on the rest of the batch, to the bit.
	 * 16 costs little where bf16 runs on AMX. */
	uint32_t row_tile;
};

struct kv_mla_info {
	uint64_t weight_bytes;		/* held: packed; those passed in may be freed */
	uint64_t scratch_bytes;		/* held for steps: grows to the largest and as many as ran
					 * at the same time */
	float scale;			/* of the scores */
};

/* Copies and packs the weights of one layer (premultiplies if asked to). [concurrent] */
KV_API int kv_mla_create(const struct kv_mla_params *, struct kv_mla **);
KV_API void kv_mla_destroy(struct kv_mla *);	/* no step runs; NULL is allowed */
KV_API void kv_mla_info(const struct kv_mla *, struct kv_mla_info *);	/* [concurrent] */

struct kv_mla_step {
	uint32_t group, layer;		/* layer: index inside the group's layout */
	uint32_t batch, q_len;		/* tokens computed of each sequence: 1 (also 0) to 512 */
	struct kv_seq *const *seqs;	/* [batch], all of this cache */
	const uint32_t *lens;		/* [batch] tokens with the q_len new ones, whose places
					 * are there (kv_seq_append()); NULL for kv_seq_len(). 0: an
					 * entry that only pads the batch, its out is 0 */
	const uint32_t *positions;	/* [batch] rotary position of the first new token; NULL: its
					 * index. Only differences matter to the scores */
	uint32_t dtype;			/* enum kv_dtype of x and out: KV_F32 (also 0) or KV_BF16 */
	const void *x;			/* [batch][q_len][hidden], after the layer's input norm */
	void *out;			/* [batch][q_len][hidden]; may be x */
	float *lse;			/* [batch][q_len][heads] or NULL */
	const float *k_scale;		/* KV_SCALE_HEAD: as in attn.h; NULL: the cache's, else 1 */
};

/* Writes the rows of the new tokens and attends: new token i of q_len sees the tokens up to itself.
 * The cache's group is KV_MLA of this rank and rope, any dtype. bf16 weights on a cache narrower
 * than f16 or f32 give bf16 queries. All arguments and sequences are checked before anything is
 * written: after -EINVAL or -EOPNOTSUPP the rows and out are as they were; after another error out
 * is undefined and the rows of the new tokens may have been written. [concurrent] for different
 * sequences, on one kv_mla too: each step takes scratch of its own. */
KV_API int kv_mla_step(struct kv_mla *, struct kv_cache *, const struct kv_mla_step *);

/* The same on page tables of the caller's own, as kv_attn_pages(); seqs and lens of the struct are
 * ignored. [concurrent] for different pages. */
KV_API int kv_mla_step_pages(struct kv_mla *, struct kv_cache *, const struct kv_mla_step *,
			     const uint64_t *const *pte, const uint32_t *lens);

#ifdef __cplusplus
}
#endif
#endif
