/* SPDX-License-Identifier: Apache-2.0 */
/* forward - run tokens through a model; where the KV lives is the backend's business
 *
 * Model:      forward_step() computes n tokens at positions pos .. pos + n - 1 of one sequence. In
 *             each layer it calls store() once with the rows of these tokens and then attend()
 *             once with their queries; query i sees the rows of positions 0 .. pos + i. So a
 *             prefill is a few large steps, a decode steps of one, and a prefix whose rows the
 *             backend already has is skipped by starting at its length.
 *             forward_shape() says what rows and queries look like:
 *               FORWARD_GQA  k, v [n][kv_heads][head_dim], k roped
 *                            q    [n][heads][head_dim] -> out, the same shape
 *               FORWARD_MLA  absorbed: k [n][rank] latent, v [n][rope] roped key, one row for all
 *                            heads; q [n][heads][rank + rope] -> out [n][heads][rank]
 *             attend() is softmax(scale q·k) v in either case; an MLA row's value is its latent.
 * Equality:   FORWARD_AS_MLA runs a GQA model as the MLA model that it exactly is: latent = M·v of
 *             all KV heads with a fixed orthogonal M, rope part = the roped KV heads side by side,
 *             a query zero outside its group's part, W_UK = 0, W_UV = the group's rows of Mᵀ.
 * Invariants: chunking does not change results, given a backend whose attend() keeps that too.
 * Ownership:  create/destroy; the model must outlive it; the backend is used only inside a step.
 * Context:    one thread per struct forward; a step allocates nothing.
 * Errors:     -EINVAL n, pos or a token out of range, or a model that has no MLA form; whatever a
 *             backend returns ends the step at once and is passed on.
 * See:        models/README.md, tests/unit/kvgen/forward_test.c
 */
#ifndef FORWARD_H
#define FORWARD_H

#include <stdint.h>

#include "model.h"

enum forward_mode {
	FORWARD_NATIVE = 0,	/* as the model was trained: GQA or MLA */
	FORWARD_AS_MLA = 1,	/* GQA models only */
};

enum forward_kind { FORWARD_GQA = 1, FORWARD_MLA = 2 };

/* What the backend has to hold and compute. */
struct forward_shape {
	uint32_t kind;			/* enum forward_kind */
	uint32_t layers, heads;
	uint32_t kv_heads, head_dim;	/* GQA, else 0 */
	uint32_t rank, rope;		/* MLA, else 0 */
	uint32_t max_pos;
	float scale;			/* of the unabsorbed head */
};

struct attn_backend {
	int (*store)(void *ctx, uint32_t layer, uint32_t pos, uint32_t n, const float *k,
		     const float *v);
	int (*attend)(void *ctx, uint32_t layer, uint32_t pos, uint32_t n, const float *q,
		      float *out);
	void *ctx;
};

struct forward;

#define FORWARD_MAX_CHUNK	512u	/* what libkv's attention takes as q_len */

/* max_chunk: the most tokens of one step, at most FORWARD_MAX_CHUNK and the model's positions. */
int forward_create(struct forward **, const struct model *, enum forward_mode, uint32_t max_chunk,
		   struct fault *);
void forward_destroy(struct forward *);

void forward_shape(const struct forward *, struct forward_shape *);

/* logits [vocab] of the last token, or NULL when nobody wants them. */
int forward_step(struct forward *, const struct attn_backend *, const uint32_t *tokens, uint32_t n,
		 uint32_t pos, float *logits);

#endif
