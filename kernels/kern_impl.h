/* SPDX-License-Identifier: Apache-2.0 */
/* kern_impl - what an implementation of the attention call provides, and the geometry all share
 *
 * Model:      kern_attn() validates a call once and hands it to one struct kern_ops. The helpers
 *             below are the only place that turns tokens into addresses and queries into the
 *             tokens they see, so the implementations cannot disagree on either.
 * Invariants: ops->run is called with a checked block and cannot fail.
 * Context:    internal to kernels/.
 */
#ifndef KERN_IMPL_H
#define KERN_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels.h"

struct kern_ops {
	bool (*usable)(void);			/* does this CPU run it */
	bool (*preferred)(void);		/* may KERN_AUTO be it; the last fast one is */
	bool (*fast)(const struct kern_attn *); /* has it an instance for this call */
	size_t (*scratch)(const struct kern_attn *);
	void (*run)(const struct kern_attn *, void *scratch);
};

extern const struct kern_ops kern_ops_ref;
extern const struct kern_ops kern_ops_generic;
extern const struct kern_ops kern_ops_avx2;
extern const struct kern_ops kern_ops_avx512;
extern const struct kern_ops kern_ops_avx512_bf16;
extern const struct kern_ops kern_ops_amx;

/* 0, or -EINVAL for a view no kernel can work on. */
int kern_view_check(const struct kern_view *);

/* Elements of a query row and of an output row. */
static inline uint32_t kern_q_width(const struct kern_view *v)
{
	return v->kind == KERN_MLA ? v->head_dim + v->head_dim_v : v->head_dim;
}

static inline uint32_t kern_out_width(const struct kern_view *v)
{
	return v->kind == KERN_MLA ? v->head_dim : v->head_dim_v;
}

/* The tokens [lo, hi) a query sees, empty if lo >= hi. pos is the query's own position, negative
 * if the sequence is shorter than the queries. lo, hi and pos never fall from one query of a
 * sequence to the next. */
struct kern_span {
	uint32_t lo, hi;
	int64_t pos;
};

static inline struct kern_span kern_span(const struct kern_attn *a, uint32_t seq, uint32_t query)
{
	int64_t past = (int64_t)a->kv_len[seq] - (a->q_len - 1 - query);
	int64_t lo = a->kv_start ? a->kv_start[seq] : 0;
	int64_t hi = past > 0 ? past : 0;

	if (a->window && lo < past - a->window)
		lo = past - a->window;
	if (a->kv_end && hi > a->kv_end[seq])
		hi = a->kv_end[seq];
	return (struct kern_span){(uint32_t)lo, (uint32_t)hi, past - 1};
}

/* The K row of a token (MLA: its row) from its page's address; V is v_off and v_row further. */
static inline const char *kern_k_row(const struct kern_view *v, uint64_t page, uint32_t head,
				     uint32_t row)
{
	return (const char *)(uintptr_t)(page + v->layer_off + head * v->head_stride +
					 row * v->k_row);
}

static inline const char *kern_v_row(const struct kern_view *v, uint64_t page, uint32_t head,
				     uint32_t row)
{
	if (v->kind == KERN_MLA)
		return kern_k_row(v, page, head, row);
	return (const char *)(uintptr_t)(page + v->layer_off + head * v->head_stride + v->v_off +
					 row * v->v_row);
}

/* Rows of q and out, in elements from their base. */
static inline uint64_t kern_q_at(const struct kern_attn *a, uint32_t seq, uint32_t query,
				 uint32_t head)
{
	return seq * a->q_stride_seq + query * a->q_stride_tok + head * a->q_stride_head;
}

static inline uint64_t kern_out_at(const struct kern_attn *a, uint32_t seq, uint32_t query,
				   uint32_t head)
{
	return seq * a->out_stride_seq + query * a->out_stride_tok + head * a->out_stride_head;
}

static inline uint64_t kern_lse_at(const struct kern_attn *a, uint32_t seq, uint32_t query,
				   uint32_t head)
{
	return ((uint64_t)seq * a->q_len + query) * a->heads + head;
}

#endif
