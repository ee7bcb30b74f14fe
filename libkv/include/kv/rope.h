/* SPDX-License-Identifier: Apache-2.0 */
/* rope.h - rotary embedding by tables: plain, YaRN, or any frequencies divided by given factors
 *
 * The i-th pair (a, b) of a row at position p becomes (a cos - b sin, a sin + b cos) of the angle
 * p * frequency[i], frequency[i] = theta^(-2i/dim) before scaling (Su 2021).
 * YaRN (Peng 2023, as in DeepSeek-V2 and V3) divides the slow frequencies by factor, leaves the
 * fast ones and ramps between them. Whether it applies, to the tables and to the softmax scale
 * alike and at every position, is decided here and once: by the model's configured maximum being
 * above original_positions, never by how long a sequence happens to be.
 *
 * Angles are computed in double, tables hold fp32. A kv_rope does not change once it is made, so
 * all layers and threads share one; 4 * dim bytes a position.
 */
#ifndef KV_ROPE_H
#define KV_ROPE_H

#include <kv/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kv_rope_pairing {
	KV_ROPE_ADJACENT = 0,		/* (0, 1), (2, 3), ...: DeepSeek's own code */
	KV_ROPE_HALVES = 1,		/* (0, dim/2), (1, dim/2 + 1), ...: if the weights are so */
};

struct kv_rope_params {
	uint32_t dim;			/* elements of a row that are rotated: even, at most 576 */
	uint32_t pairing;		/* enum kv_rope_pairing */
	double theta;			/* rope_theta; 0 means 10000 */
	uint32_t max_positions;		/* the model's configured maximum */
	uint32_t first, nr;		/* tables for [first, first + nr); nr 0: to max_positions */
	uint32_t original_positions;	/* YaRN: original_max_position_embeddings; 0: no YaRN */
	double factor;			/* YaRN: at least 1 */
	double beta_fast, beta_slow;	/* YaRN: 0 means 32 and 1 */
	double mscale, mscale_all_dim;	/* YaRN: as in the config; mscale is 1 where it has none,
					 * mscale_all_dim 0 */
	const float *factors;		/* [dim/2] divide each frequency (longrope, llama3), in
					 * place of YaRN; NULL for none */
};

struct kv_rope {
	const float *cos, *sin;		/* [nr][dim/2] */
	uint32_t dim, pairing;
	uint32_t first, nr;
	float softmax;			/* multiplies head_dim^-0.5: YaRN's m^2, else 1 */
};

KV_API int kv_rope_init(struct kv_rope *, const struct kv_rope_params *);
KV_API void kv_rope_fini(struct kv_rope *);	/* NULL and an all-zero one are allowed */

/* head_dim^-0.5 * m^2, m = 0.1 * mscale_all_dim * ln(factor) + 1 where YaRN applies, else 1.
 * head_dim is the unabsorbed one, nope + rope: DeepSeek-V3 0.135234, V2 and V2-Lite 0.114721,
 * Kimi-K2 0.130861. [concurrent] */
KV_API double kv_rope_softmax_scale(const struct kv_rope_params *, uint32_t head_dim);

/* Rotate the first dim elements of nr_rows rows of fp32 that stand stride elements apart, all at
 * one position; -EINVAL if the tables do not have it. [concurrent] */
KV_API int kv_rope_apply(const struct kv_rope *, uint32_t position, float *rows, uint32_t nr_rows,
			 uint64_t stride);

#ifdef __cplusplus
}
#endif
#endif
