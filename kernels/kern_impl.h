/* SPDX-License-Identifier: Apache-2.0 */
/* kern_impl - what an implementation of the attention call provides, and the geometry all share
 *
 * Model:      kern_attn() and kern_plan_item() validate a call once and hand it to one struct
 *             kern_ops, in parts. The helpers below are the only place that turns tokens into
 *             addresses and queries into the tokens they see, so the implementations cannot
 *             disagree on either.
 *             Parts are cut on two fixed grids that depend on the geometry only: chunks of about
 *             KERN_CHUNK_TOKENS tokens (whole pages), and blocks of KERN_BLOCK_ROWS of the
 *             q_len * group query rows of a KV head. A chunk gives each row an unnormalised
 *             partial result, and a row's partials are folded in the order of its chunks, a sink
 *             last: so its bits are the same whoever computed which chunk, when, and for how many
 *             rows at once.
 * Invariants: ops->run is called with a checked block and cannot fail.
 *             What a row's partial is depends on the call's shape, the row and the chunk, not on
 *             the other rows of the block: an implementation may choose its way by the heads or
 *             q_len of the call, never by how many rows it was handed.
 * Context:    internal to kernels/.
 */
#ifndef KERN_IMPL_H
#define KERN_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels.h"

#define KERN_CHUNK_TOKENS 2048u
#define KERN_BLOCK_ROWS	  128u
#define KERN_ROW_PAD	  32u /* a partial row is padded to a multiple of this many elements */
#define KERN_ROW_TAIL	  16u /* floats after it: max, sum, and to the end of a cache line */

/* Where the partials of one sequence are kept: slot 0 has the chunks up to base, folded, each
 * later chunk its own. A slot is [kv_heads][q_len * group][kern_partial_floats()]. */
struct kern_place {
	float *rows;
	uint32_t base;
	uint32_t nr_slots;
};

enum kern_part_kind {
	KERN_PART_WHOLE,  /* attend to all tokens, write out and lse */
	KERN_PART_LEAD,	  /* attend to the first chunks, fold them into slot 0 */
	KERN_PART_CHUNKS, /* attend to chunks, each into its slot */
	KERN_PART_FOLD,	  /* fold the slots, write out and lse */
};

/* A part of a call. Several sequences: their pages in these chunks are the same, each of their
 * queries sees all of these chunks, and together their rows fit a block. */
struct kern_part {
	enum kern_part_kind kind;
	const uint32_t *seqs;
	uint32_t nr_seqs;
	uint32_t head0, head1;	 /* KV heads */
	uint32_t block0, block1; /* of each head's rows */
	uint32_t chunk0, chunk1; /* WHOLE and FOLD: not looked at */
	const struct kern_place *places; /* by sequence; WHOLE: not looked at */
};

struct kern_ops {
	bool splits;				/* takes parts of any kind, not only WHOLE */
	bool (*usable)(void);			/* does this CPU run it */
	bool (*preferred)(void);		/* may KERN_AUTO be it; the last fast one is */
	bool (*fast)(const struct kern_attn *); /* has it an instance for this call */
	bool (*suits)(const struct kern_attn *); /* may KERN_AUTO be it here; NULL: where fast */
	size_t (*scratch)(const struct kern_attn *); /* for any part */
	void (*run)(const struct kern_attn *, const struct kern_part *, void *scratch);
};

extern const struct kern_ops kern_ops_ref;
extern const struct kern_ops kern_ops_generic;
extern const struct kern_ops kern_ops_avx2;
extern const struct kern_ops kern_ops_avx512;
extern const struct kern_ops kern_ops_avx512_bf16;
extern const struct kern_ops kern_ops_amx;

/* 0, or -EINVAL for a view no kernel can work on. */
int kern_view_check(const struct kern_view *);

/* Checks a call and gives the implementation impl stands for. -EINVAL, or -EOPNOTSUPP where this
 * CPU lacks it. */
int kern_ops_get(const struct kern_attn *, enum kern_impl, const struct kern_ops **);

/* Elements of a query row and of an output row. */
static inline uint32_t kern_q_width(const struct kern_view *v)
{
	return v->kind == KERN_MLA ? v->head_dim + v->head_dim_v : v->head_dim;
}

static inline uint32_t kern_out_width(const struct kern_view *v)
{
	return v->kind == KERN_MLA ? v->head_dim : v->head_dim_v;
}

/* The tokens before token t that this rank holds. */
static inline uint32_t kern_local(const struct kern_attn *a, uint32_t t)
{
	uint64_t run = a->dcp_interleave, cycle = run * a->dcp, before = a->dcp_rank * run, rest;

	if (a->dcp <= 1)
		return t;
	rest = t % cycle < before ? 0 : t % cycle - before;
	return (uint32_t)(t / cycle * run + (rest < run ? rest : run));
}

/* The position in the sequence of token i of those this rank holds. */
static inline int64_t kern_position(const struct kern_attn *a, uint32_t i)
{
	uint64_t run = a->dcp_interleave;

	if (a->dcp <= 1)
		return i;
	return (int64_t)((i / run * a->dcp + a->dcp_rank) * run + i % run);
}

/* The tokens [lo, hi) a query sees, counted among those of this rank; empty if lo >= hi. pos is the
 * query's own position in the whole sequence, negative if that is shorter than the queries. lo, hi
 * and pos never fall from one query of a sequence to the next. */
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
	return (struct kern_span){kern_local(a, (uint32_t)lo), kern_local(a, (uint32_t)hi),
				  past - 1};
}

/* ---- the grids ---- */

static inline uint32_t kern_chunk_tokens(const struct kern_view *v)
{
	return v->page_tokens < KERN_CHUNK_TOKENS
		       ? KERN_CHUNK_TOKENS / v->page_tokens * v->page_tokens
		       : v->page_tokens;
}

/* Query rows of one KV head, and the blocks they are cut into. */
static inline uint32_t kern_head_rows(const struct kern_attn *a)
{
	return a->heads / a->view.kv_heads * a->q_len;
}

static inline uint32_t kern_blocks(const struct kern_attn *a)
{
	return (kern_head_rows(a) + KERN_BLOCK_ROWS - 1) / KERN_BLOCK_ROWS;
}

static inline uint32_t kern_row_pad(uint32_t n)
{
	return (n + KERN_ROW_PAD - 1) / KERN_ROW_PAD * KERN_ROW_PAD;
}

/* Floats of a partial row: the padded values, then max and sum. */
static inline uint32_t kern_partial_floats(const struct kern_attn *a)
{
	return kern_row_pad(kern_out_width(&a->view)) + KERN_ROW_TAIL;
}

static inline uint32_t kern_place_slot(const struct kern_place *place, uint32_t chunk)
{
	return chunk <= place->base ? 0 : chunk - place->base;
}

static inline float *kern_place_row(const struct kern_attn *a, const struct kern_place *place,
				    uint32_t slot, uint32_t head, uint32_t row)
{
	size_t at = (size_t)slot * a->view.kv_heads + head;

	return place->rows + (at * kern_head_rows(a) + row) * kern_partial_floats(a);
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

/* The K scale of a token, KERN_SCALE_TOKEN; GQA's V scale is v_scale_off - k_scale_off further. */
static inline const char *kern_scale_at(const struct kern_view *v, uint64_t page, uint32_t head,
					uint32_t row)
{
	return (const char *)(uintptr_t)(page + v->layer_off + head * v->head_stride +
					 v->k_scale_off + row * (uint64_t)sizeof(float));
}

/* From a row to the parts of a KERN_F8_DS one. */
static inline uint32_t kern_ds_scales(const struct kern_view *v)
{
	return v->head_dim;
}

static inline uint32_t kern_ds_rope(const struct kern_view *v)
{
	return v->head_dim + v->head_dim / KERN_DS_BLOCK * (uint32_t)sizeof(float);
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
