/* SPDX-License-Identifier: Apache-2.0 */
/* kernels - decode attention on paged KV: one parameter block, several implementations
 *
 * Model:      A sequence's KV lives in pages; its PTE array holds each page's address in this
 *             process. A kern_view says where one layer's rows stand inside any page of a group:
 *               GQA  page + layer_off + head * head_stride      -> K rows [token][head_dim]
 *                                        ... + v_off            -> V rows [token][head_dim_v]
 *               MLA  page + layer_off                           -> rows  [token][rank + rope]
 *             token t stands in page t / page_tokens, row t % page_tokens.
 *             8-bit elements have a scale: value = element * scale, of a head (the caller's) or of
 *             each token and head (in the page, behind the rows).
 * Invariants: every implementation gives the same out and LSE within the tolerances of
 *             docs/testing.md: relative L2 of out 3e-3 with bf16 queries (5e-3 below 512 elements,
 *             and KERN_AMX on KERN_F8_DS), 1e-3 with f16, 1e-5 with f32; elements 8e-4 (that
 *             KERN_F8_DS: 1.2e-3) or 2.01/128 of themselves.
 *             A query never uses a row it does not see, whatever its bytes (NaN included); the PTE
 *             of a page no query sees is never read. An infinity or NaN of a row that is seen
 *             reaches, from K, the scores of the queries that see it, from V its own column of
 *             their out, and nothing else. What a sequence gives does not depend on the rest of
 *             the batch, to the bit.
 *             KERN_REF is float64 on the dequantised cache and is the definition.
 * Ownership:  all memory belongs to the caller; kernels allocate nothing and keep nothing.
 * Context:    any thread; pure functions of their arguments; no global state but the CPU probe.
 *             The first look at KERN_AMX (KERN_AUTO takes it, unless KV_CPU forces another) asks
 *             Linux to let this process use tile registers: from then on a signal frame is 8 KiB
 *             larger once a thread has touched them, sigaltstack() wants AT_MINSIGSTKSZ bytes, and
 *             where a smaller one is in place already the kernel refuses and KERN_AMX is not
 *             usable.
 * Units:      offsets and row strides in bytes; q/out strides in elements of their dtype;
 *             lengths in tokens; scale and LSE natural (fp32; empty row: out 0, lse -inf).
 * Errors:     -EINVAL for a parameter outside the stated range, -EOPNOTSUPP for an implementation
 *             this CPU lacks; nothing is written on error.
 * See:        docs/architecture.md; facts: softmax(scale * q.k) v, Shazeer 2019 (MQA), Ainslie
 *             2023 (GQA), DeepSeek-V2 2024 (MLA, absorbed form). Uses nothing of ours.
 */
#ifndef KERNELS_H
#define KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kern_kind { KERN_GQA = 1, KERN_MLA = 2 };

enum kern_dtype {
	KERN_F32 = 1,
	KERN_F16 = 2,
	KERN_BF16 = 3,
	KERN_F8 = 4,	/* e4m3fn: 448 the largest, no infinity, 0x7f and 0xff NaN, subnormals */
	KERN_I8 = 5,	/* stored as -127 to 127 */
	KERN_F8_DS = 6, /* MLA only, a row of parts: rank e4m3, a fp32 scale for each 128 of them,
			 * rope bf16. 656 bytes for 512 + 64; rank is a multiple of 128 */
};

enum kern_scale {
	KERN_SCALE_NONE = 0, /* the only one for rows that are no KERN_F8 or KERN_I8 */
	KERN_SCALE_HEAD,     /* one for K and one for V of each KV head, given with the call */
	KERN_SCALE_TOKEN,    /* one for each row, in the page */
};

enum kern_impl {
	KERN_AUTO = 0,	  /* the best for the call; KV_CPU= in the environment forces one */
	KERN_REF,	  /* float64 reference */
	KERN_GENERIC,	  /* portable C */
	KERN_AVX2,	  /* AVX2 + FMA + F16C */
	KERN_AVX512,	  /* AVX-512 F/BW/VL/DQ, fp32 arithmetic */
	KERN_AVX512_BF16, /* and AVX512-BF16 products where cache and q are bf16 */
	KERN_AMX,	  /* and AMX-BF16, VBMI, GFNI: tiles where q is bf16, rows too or bytes */
	KERN_NR_IMPL,
};

#define KERN_MAX_DIM   576u /* head_dim, head_dim_v, rank + rope: multiples of 8 up to this */
#define KERN_MAX_HEADS 1024u
#define KERN_MAX_Q     512u
#define KERN_DS_BLOCK  128u /* elements of a KERN_F8_DS row that share a scale */

/* Where one layer of one group stands inside a page. Filled by libkv/layout.c only. */
struct kern_view {
	uint32_t kind;	      /* enum kern_kind */
	uint32_t dtype;	      /* enum kern_dtype of the cached rows */
	uint32_t page_tokens; /* rows a page holds, any value >= 1 */
	uint32_t kv_heads;    /* GQA; 1 for MLA */
	uint32_t head_dim;    /* GQA: K width. MLA: rank (the value part of a row) */
	uint32_t head_dim_v;  /* GQA: V width. MLA: rope (the key-only part of a row) */
	uint64_t layer_off;   /* from the page base to this layer */
	uint64_t head_stride; /* between KV heads; 0 for MLA */
	uint64_t v_off;	      /* from a head's K rows to its V rows; 0 for MLA */
	uint64_t k_row;	      /* between K rows (MLA: between rows) */
	uint64_t v_row;	      /* between V rows; 0 for MLA */
	uint32_t scale;	      /* enum kern_scale */
	/* KERN_SCALE_TOKEN: from a head's K rows (MLA: from layer_off) to its fp32 scales, one a
	 * token next to each other. MLA has no V scales: a row has one. */
	uint64_t k_scale_off, v_scale_off;
};

/* One attention call: batch sequences, one layer, q_len queries each. The last query stands at
 * position kv_len - 1, the i-th q_len - 1 - i before it; each sees the tokens up to its own
 * position (causal), from kv_start on, before kv_end, within the window.
 *   s = cap(scale * q.k) + slope * (t - position of the query)
 * A split gives each call its tokens by kv_start and kv_end, while positions stay those of kv_len;
 * kern_merge() joins the parts. A sink is part of the LSE, so exactly one part may have it; a row
 * without tokens has the sink as its LSE. With dcp ranks this one holds the tokens t with
 * t / dcp_interleave % dcp == dcp_rank, and its pages hold these only, in order; lengths, windows
 * and positions stay those of the whole sequence. Strides of q and out are free (any order, gaps)
 * as long as rows of out do not overlap. */
struct kern_attn {
	struct kern_view view;
	uint32_t batch;		    /* 0 is allowed and does nothing */
	uint32_t heads;		    /* query heads, a multiple of kv_heads */
	uint32_t q_len;		    /* 1 to KERN_MAX_Q; may exceed kv_len (empty rows) */
	uint32_t q_dtype;	    /* of q and out: KERN_F32, KERN_F16 or KERN_BF16 */
	const uint64_t *const *pte; /* [batch] -> page addresses, indexed by t / page_tokens */
	const uint32_t *kv_len;	    /* [batch] */
	const uint32_t *kv_start;   /* [batch], or NULL for 0: tokens before it are gone */
	const uint32_t *kv_end; /* [batch], or NULL for kv_len: tokens from it on are left out */
	const void *q;		/* [batch][q_len][heads][head_dim | rank + rope] */
	uint64_t q_stride_seq, q_stride_tok, q_stride_head;
	void *out; /* [batch][q_len][heads][head_dim_v | rank] */
	uint64_t out_stride_seq, out_stride_tok, out_stride_head;
	float *lse;	    /* [batch][q_len][heads] dense, or NULL */
	float scale;	    /* multiplies q.k before soft-cap and mask */
	float softcap;	    /* 0: none, else cap * tanh(s / cap) */
	uint32_t window;    /* 0: none, else a query sees at most this many tokens */
	const float *sinks; /* [heads] or NULL: a logit that takes mass and adds no value */
	const float *alibi; /* [heads] slopes, or NULL */
	/* a context-parallel shard; dcp 0 or 1: none */
	uint32_t dcp, dcp_rank, dcp_interleave;
	/* KERN_SCALE_HEAD: [kv_heads] each, NULL is 1 for all; MLA: k_scale[0] only. */
	const float *k_scale, *v_scale;
};

/* 0, or -EINVAL for ranges, strides or alignments no implementation takes; kern_attn() and
 * kern_attn_scratch() call it. Page addresses are not looked at: 64-byte aligned, please. */
int kern_attn_check(const struct kern_attn *);

/* Bytes of scratch kern_attn() needs for this call and implementation; 0 is possible, and the
 * answer to a call that would fail. Depends on the view, heads, q_len and q_dtype only. */
size_t kern_attn_scratch(const struct kern_attn *, enum kern_impl);

/* Runs one call on the calling thread. scratch is 64-byte aligned, kern_attn_scratch() bytes. */
int kern_attn(const struct kern_attn *, enum kern_impl, void *scratch);

/* The implementation KERN_AUTO stands for, and whether it has a fast instance for this call or
 * takes its generic kernel. KERN_AUTO itself if KV_CPU (one of the names below, read once) forces
 * one that is unknown or not usable: such calls fail with -EOPNOTSUPP rather than run another. */
enum kern_impl kern_attn_query(const struct kern_attn *, bool *fast);
const char *kern_impl_name(enum kern_impl);
bool kern_impl_usable(enum kern_impl); /* by this CPU */

/* Merge partial results of the same query rows over disjoint token sets:
 *   lse = log(sum exp(lse_i)), out = sum out_i * exp(lse_i - lse).
 * parts[i] is [rows][dim] fp32, lses[i] [rows]. A part whose lse is -inf is empty, its row is not
 * read; all empty gives 0 and -inf. A row with a NaN among its lses has NaN in out and lse, so that
 * merging on does not lose it. out and lse may be parts[0] and lses[0]. */
void kern_merge(float *out, float *lse, const float *const *parts, const float *const *lses,
		uint32_t nr_parts, uint32_t rows, uint32_t dim);

enum kern_pairing {
	KERN_ROPE_ADJACENT = 0, /* (0, 1), (2, 3), ... */
	KERN_ROPE_HALVES,	/* (0, dim / 2), (1, dim / 2 + 1), ... */
};

/* Rotary embedding by table: the i-th pair (a, b) becomes (a cos - b sin, a sin + b cos), with
 * cos[(position - first) * dim / 2 + i]. A row's elements from dim on stay. */
struct kern_rope {
	const float *cos, *sin; /* [nr][dim / 2] */
	uint32_t dim;		/* even, up to head_dim; MLA: up to rope */
	uint32_t pairing;	/* enum kern_pairing */
	uint32_t first, nr;	/* the tables have positions [first, first + nr) */
};

/* Rotates one row in place. position is one that the tables have. */
void kern_rope_row(const struct kern_rope *, uint32_t position, float *row);

/* Rows to write into the pages of one sequence, from token pos on. */
struct kern_store {
	struct kern_view view;
	const uint64_t *pte;
	uint32_t pos, n;
	uint32_t src_dtype;	      /* of k and v: KERN_F32 (also 0), KERN_F16 or KERN_BF16 */
	const void *k;		      /* [n][kv_heads][head_dim]; MLA [n][rank], already normed */
	const void *v;		      /* [n][kv_heads][head_dim_v]; MLA [n][rope] */
	uint64_t k_stride, v_stride;  /* elements between tokens; 0: dense */
	const float *k_scale, *v_scale; /* KERN_SCALE_HEAD, as in kern_attn; above 0 */
	const struct kern_rope *rope; /* applied to K (MLA: to v), or NULL: it is roped already */
	const uint32_t *positions;    /* [n] for rope, or NULL: pos, pos + 1, ... */
};

/* Converts to the dtype of the cache: round to nearest even, NaN stays NaN; f16 and bf16 overflow
 * to infinity. 8-bit elements are divided by their scale and saturate (int8: NaN is 0);
 * KERN_SCALE_TOKEN, and KERN_F8_DS for each 128, take max |finite element| / 448 (int8: / 127) as
 * the scale, 1 if that maximum is 0. -EINVAL for a bad view, a scale that is not above 0 or not
 * finite, tokens beyond 2^32, a rope that does not fit the rows or a position its tables do not
 * have. Nothing is written on error. */
int kern_store(const struct kern_store *);

/* Pages of one sequence, to read rows from or convert them into. */
struct kern_rows {
	struct kern_view view;
	const uint64_t *pte;
	const float *k_scale, *v_scale; /* KERN_SCALE_HEAD, as in kern_attn */
};

/* The inverse of kern_store(): dense rows of fp32, dequantised. */
int kern_load(const struct kern_rows *, uint32_t pos, uint32_t n, float *k, float *v);

/* Tokens [from_pos, from_pos + n) of one sequence become tokens from to_pos on of another, whose
 * rows are of another dtype, scale or place: the import and export of the MLA layouts. Same kind,
 * heads and dimensions, and scales of to as kern_store() takes them (-EINVAL, nothing is written).
 * As by kern_load() and kern_store(), but equal dtypes and scales are copied bit for bit, and the
 * latents of a flat e4m3 row keep their bytes in a KERN_F8_DS one (each of its scales is then the
 * row's). The rows may not overlap. */
int kern_convert(const struct kern_rows *to, uint32_t to_pos, const struct kern_rows *from,
		 uint32_t from_pos, uint32_t n);

/* Copy the first tokens of a page with their scales, all layers: view describes layer 0,
 * layer_stride the others. */
void kern_copy_rows(void *dst_page, const void *src_page, const struct kern_view *, uint32_t layers,
		    uint64_t layer_stride, uint32_t tokens);

/* Element size of a dtype, 0 if unknown or, KERN_F8_DS, not the same for all elements. */
static inline uint32_t kern_dtype_size(uint32_t dtype)
{
	switch (dtype) {
	case KERN_F32:
		return 4;
	case KERN_F16:
	case KERN_BF16:
		return 2;
	case KERN_F8:
	case KERN_I8:
		return 1;
	default:
		return 0;
	}
}

/* Can queries, and rows to be stored, be of this dtype? */
static inline bool kern_dtype_float(uint32_t dtype)
{
	return dtype >= KERN_F32 && dtype <= KERN_BF16;
}

/* Bytes of an MLA row, 0 for an unknown dtype. */
static inline uint32_t kern_mla_row_bytes(uint32_t dtype, uint32_t rank, uint32_t rope)
{
	if (dtype == KERN_F8_DS)
		return rank + rank / KERN_DS_BLOCK * 4 + rope * 2;
	return kern_dtype_size(dtype) * (rank + rope);
}

#endif
