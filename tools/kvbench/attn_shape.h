/* SPDX-License-Identifier: Apache-2.0 */
/* attn_shape - one attention call in numbers: what it computes and what it must read
 *
 * Model:      a shape is what `kvbench attn` takes on its command line. MLA rows are dim wide,
 *             their first dim_v elements are the value (576 and 512 for DeepSeek): read once
 *             for both. A position is one cached token of one sequence.
 * Units:      flop: a multiply and an add are two. bytes: payload of the cache, padding left out.
 * Errors:     attn_shape_check() says in words what is wrong; nothing else fails.
 * Context:    pure functions.
 */
#ifndef ATTN_SHAPE_H
#define ATTN_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels.h"

struct attn_shape {
	uint32_t kind;			/* enum kern_kind */
	uint32_t heads, kv_heads;
	uint32_t dim, dim_v;
	uint32_t ctx, batch, q_len;
	uint32_t dtype, q_dtype;	/* enum kern_dtype; q_dtype 0: what the fast paths take */
	uint32_t scale;			/* enum kern_scale */
	uint32_t page_tokens, threads;
	uint32_t shared;		/* leading tokens on pages that all sequences have */
	bool contiguous;		/* pages in order of address instead of shuffled */
	enum kern_impl impl;		/* KERN_AUTO: the best of this CPU */
};

/* GQA 32/8 of 128 or, with kind KERN_MLA, 128 heads of 576/512: what is 0 becomes the usual.
 * 8-bit rows get a scale for each token. */
void attn_shape_default(struct attn_shape *);

/* NULL, or what is wrong with it. */
const char *attn_shape_check(const struct attn_shape *);

/* A page of one layer as libkv lays it out; returns its bytes. */
uint64_t attn_shape_view(const struct attn_shape *, struct kern_view *);

/* For one query of one sequence and one cached position: all heads, q.k and p.v. */
double attn_shape_flop_pos(const struct attn_shape *);
/* What a position occupies, scales included, read once. */
double attn_shape_bytes_pos(const struct attn_shape *);

/* A whole call: every query sees what is before it; pages that sequences share count once. */
double attn_shape_flop(const struct attn_shape *);
double attn_shape_bytes(const struct attn_shape *);

uint32_t attn_shape_pages(const struct attn_shape *);		/* of one sequence */
uint32_t attn_shape_shared_pages(const struct attn_shape *);	/* whole ones */
uint32_t attn_shape_table_pages(const struct attn_shape *);	/* distinct ones of a call */

/* "gqa 32/8 d128 bf16, 8192 tokens" into buf. */
const char *attn_shape_name(const struct attn_shape *, char *buf, unsigned int size);
const char *attn_dtype_name(uint32_t dtype);
/* The names libkv takes: f8 is fp8, too. 0: there is none of that name. */
uint32_t attn_dtype_parse(const char *name);

#endif
