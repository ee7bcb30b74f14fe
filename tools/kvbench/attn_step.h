/* SPDX-License-Identifier: Apache-2.0 */
/* attn_step - a whole MLA layer step (kv_mla_step_pages()), split into its products and attention
 *
 * Model:      layers of a published shape with random weights, as many as do not fit the caches,
 *             and an attn_lane for the pages. In turn: a step, attention alone by the same call the
 *             step makes on the next table, the arithmetic probe and a sequential read. What a step
 *             takes besides attention is put down to its products; norms, rope, the new rows and
 *             conversions are in it.
 *             The products' bound is what they take at the peak of their arithmetic, or what
 *             reading the weights once takes at the rate of sequential reads, whichever is longer.
 * Units:      rates in 1e9 a second; a multiply and an add are two.
 * Errors:     -errno; void_why says of what, or kv_error() where that is "". -EOPNOTSUPP without
 *             oneDNN. A run with too few steady samples is void, and void_why says so.
 */
#ifndef ATTN_STEP_H
#define ATTN_STEP_H

#include "attn_run.h"

struct attn_model {
	const char *name;
	uint32_t hidden, heads, q_rank;
	uint32_t nope, rope, v_dim, rank;
};

struct attn_step_result {
	struct attn_stat step, attention, products;	/* ns */
	struct attn_stat tokens;			/* computed a second, in this layer */
	struct attn_stat products_gflops, weights_gbs;
	struct attn_stat attention_gflops, attention_gbs;
	struct attn_stat sequential, peak;
	struct attn_stat attention_share;		/* of the step */
	struct attn_stat products_bound, step_bound;	/* the bound over products, over the step */
	const char *arithmetic;				/* whose peak it is */
	const char *impl;				/* of attention */
	double products_flop;				/* of a step */
	uint64_t weight_bytes;				/* of a layer */
	uint32_t layers;
	unsigned int kept, dropped;
	double seconds;
	char void_why[ATTN_WHY];
};

/* NULL: there is none of that name. */
const struct attn_model *attn_model_find(const char *name);

/* What the shape leaves open becomes the model's; queries become what the step makes of them. */
void attn_step_shape(const struct attn_model *, struct attn_shape *);

/* NULL, or what is wrong with it (attn_shape_check() has been asked already). */
const char *attn_step_check(const struct attn_model *, const struct attn_shape *);

int attn_step_run(const struct attn_model *, const struct attn_shape *, const struct attn_opts *,
		  struct attn_step_result *);

#endif
