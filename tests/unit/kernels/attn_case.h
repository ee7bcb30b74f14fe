/* SPDX-License-Identifier: Apache-2.0 */
/* attn_case - builds one attention call from a few numbers, runs it and holds it to the reference
 *
 * Model:      struct attn_case is filled by designated initialisers (0 means the plain choice) or
 *             by attn_random(). attn_build() makes shuffled pages, each its own allocation, writes
 *             NaN everywhere and then only the rows some query sees; table entries of pages
 *             without such a row are wild addresses. attn_expect() runs an implementation on
 *             poisoned outputs and compares with float64; attn_expect_plans() holds plans of the
 *             call to the same bits, attn_expect_singles() each sequence alone. With dcp the pages
 *             hold what the rank has, and the reference is the rank's part.
 * Ownership:  attn_build() allocates, attn_free() frees.
 */
#ifndef ATTN_CASE_H
#define ATTN_CASE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kern_impl.h"
#include "kern_num.h"
#include "kern_plan.h"
#include "kernels.h"

#define ATTN_MAX_BATCH 8
#define ATTN_POISON    0x5a
#define ATTN_WILD      0xdeadbeefdead0000ull

struct attn_case {
	uint32_t kind, dtype, scale, q_dtype, page_tokens, kv_heads, group, dk, dv;
	uint32_t batch, q_len, len[ATTN_MAX_BATCH], start[ATTN_MAX_BATCH], end[ATTN_MAX_BATCH];
	uint32_t window, dcp, dcp_rank, dcp_interleave;
	uint32_t share[ATTN_MAX_BATCH]; /* so many first tokens in full pages of sequence 0 */
	float softcap, spread; /* spread: standard deviation of the logits */
	bool starts, ends, sinks, alibi, strided, token_major, repeat, no_lse;
	uint64_t seed;

	/* built */
	struct kern_attn at;
	uint64_t *pte[ATTN_MAX_BATCH];
	void **pages;
	uint32_t nr_pages, out_rows;
	size_t page_bytes, q_elems, out_elems;
	float *sink, *slope, *k_scale, *v_scale, *ref_out, *ref_lse;
	void *q, *out;
	float *lse;
};

static inline uint64_t attn_next(uint64_t *s)
{
	uint64_t z = *s += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static inline uint32_t attn_below(uint64_t *s, uint32_t n)
{
	return (uint32_t)(attn_next(s) >> 32) % n;
}

/* About randn / 10, clamped to 1. */
static inline float attn_value(uint64_t *s)
{
	uint64_t r = attn_next(s);
	int sum = (int)(r & 0xffff) + (int)(r >> 16 & 0xffff) + (int)(r >> 32 & 0xffff) +
		  (int)(r >> 48);
	float x = ((float)sum / 65536 - 2) * 1.7320508f / 10;

	return x > 1 ? 1 : x < -1 ? -1 : x;
}

static inline void *attn_alloc(size_t bytes)
{
	void *p = NULL;

	assert_int_equal(posix_memalign(&p, 64, bytes ? bytes : 1), 0);
	return p;
}

/* Plain fp32 rows, dense, scales of heads 1. */
static inline int attn_store(const struct kern_view *view, const uint64_t *pte, uint32_t pos,
			     uint32_t n, const float *k, const float *v)
{
	const struct kern_store s = {
		.view = *view, .pte = pte, .pos = pos, .n = n, .k = k, .v = v};

	return kern_store(&s);
}

static inline int attn_load(const struct kern_view *view, const uint64_t *pte, uint32_t pos,
			    uint32_t n, float *k, float *v)
{
	const struct kern_rows rows = {.view = *view, .pte = pte};

	return kern_load(&rows, pos, n, k, v);
}

/* ---- building ---- */

static inline void attn_defaults(struct attn_case *c)
{
	c->kind = c->kind ? c->kind : KERN_GQA;
	c->dtype = c->dtype ? c->dtype : KERN_BF16;
	c->q_dtype = c->q_dtype ? c->q_dtype : KERN_F32;
	c->page_tokens = c->page_tokens ? c->page_tokens : 64;
	c->kv_heads = c->kv_heads ? c->kv_heads : 1;
	c->group = c->group ? c->group : 1;
	c->dk = c->dk ? c->dk : 64;
	c->dv = c->dv ? c->dv : c->dk;
	c->batch = c->batch ? c->batch : 1;
	c->q_len = c->q_len ? c->q_len : 1;
	c->spread = c->spread > 0 ? c->spread : 1;
	if (c->dtype != KERN_F8 && c->dtype != KERN_I8)
		c->scale = KERN_SCALE_NONE;
	if (c->dtype == KERN_F8_DS) {
		c->kind = KERN_MLA;
		c->kv_heads = 1;
		c->dk = c->dk < 128 ? 128 : c->dk / 128 * 128;
	}
	if (c->scale == KERN_SCALE_TOKEN)
		c->token_major = false; /* scales of a head stand next to each other */
}

/* Bytes of the K and of the V part of a row. */
static inline uint64_t attn_k_bytes(const struct attn_case *c)
{
	return c->dtype == KERN_F8_DS ? c->dk + c->dk / 32 : kern_dtype_size(c->dtype) * c->dk;
}

static inline uint64_t attn_v_bytes(const struct attn_case *c)
{
	return (c->dtype == KERN_F8_DS ? 2 : kern_dtype_size(c->dtype)) * c->dv;
}

/* Puts the layer in the middle of the page, so that a wrong offset leaves the allocation. */
static inline void attn_build_view(struct attn_case *c)
{
	uint64_t k_bytes = attn_k_bytes(c), v_bytes = attn_v_bytes(c), row = k_bytes + v_bytes;
	uint64_t scales = c->scale == KERN_SCALE_TOKEN ? 4ull * c->page_tokens : 0, rows;
	struct kern_view *v = &c->at.view;

	*v = (struct kern_view){
		.kind = c->kind,
		.dtype = c->dtype,
		.scale = c->scale,
		.page_tokens = c->page_tokens,
		.kv_heads = c->kv_heads,
		.head_dim = c->dk,
		.head_dim_v = c->dv,
		.layer_off = 64,
	};
	rows = row * c->page_tokens;
	if (scales)
		v->k_scale_off = rows;
	if (c->kind == KERN_MLA) {
		v->k_row = row;
	} else if (c->token_major) {
		v->head_stride = row;
		v->v_off = k_bytes;
		v->k_row = v->v_row = row * c->kv_heads;
	} else {
		v->v_off = k_bytes * c->page_tokens;
		v->k_row = k_bytes;
		v->v_row = v_bytes;
		v->v_scale_off = scales ? rows + scales : 0;
		v->head_stride = rows + 2 * scales;
	}
	c->page_bytes = 64 + (rows + 2 * scales) * c->kv_heads;
}

static inline uint32_t attn_nr_pages(const struct attn_case *c, uint32_t seq)
{
	uint32_t tokens = kern_local(&c->at, c->len[seq]);

	return tokens / c->page_tokens + (tokens % c->page_tokens > 0);
}

static inline void attn_build_pages(struct attn_case *c)
{
	uint32_t seq, i, used = 0;

	for (seq = 0; seq < c->batch; seq++)
		c->nr_pages += attn_nr_pages(c, seq);
	c->pages = calloc(c->nr_pages + 1, sizeof(*c->pages));
	for (i = 0; i < c->nr_pages; i++) {
		c->pages[i] = attn_alloc(c->page_bytes);
		memset(c->pages[i], 0xff, c->page_bytes); /* NaN in every dtype */
	}
	for (i = c->nr_pages; i > 1; i--) {
		uint32_t j = attn_below(&c->seed, i);
		void *p = c->pages[j];

		c->pages[j] = c->pages[i - 1];
		c->pages[i - 1] = p;
	}
	for (seq = 0; seq < c->batch; seq++) {
		uint32_t n = attn_nr_pages(c, seq);

		c->pte[seq] = calloc(n + 2, sizeof(uint64_t));
		for (i = 0; i < n; i++)
			c->pte[seq][i] = (uintptr_t)c->pages[used++];
		for (i = 0; seq && i < n && i < c->share[seq] / c->page_tokens &&
			    i < attn_nr_pages(c, 0); i++)
			c->pte[seq][i] = c->pte[0][i];
		c->pte[seq][n] = ATTN_WILD;
		c->pte[seq][n + 1] = UINT64_MAX;
	}
}

/* The first and one past the last token any query of the sequence sees, from the definition; with
 * dcp counted among those of the rank. */
static inline void attn_seen(const struct attn_case *c, uint32_t seq, uint32_t *lo, uint32_t *hi)
{
	uint32_t len = c->len[seq];
	int64_t first = (int64_t)len - c->q_len; /* position of query 0 */

	*lo = c->starts ? c->start[seq] : 0;
	if (first < 0)
		first = 0;
	if (c->window && first + 1 - (int64_t)c->window > *lo)
		*lo = (uint32_t)(first + 1 - c->window);
	*hi = c->ends && c->end[seq] < len ? c->end[seq] : len;
	*lo = kern_local(&c->at, *lo);
	*hi = kern_local(&c->at, *hi);
}

/* Of heads: powers of two and others, so that some elements saturate and some become subnormal. */
static inline void attn_build_scales(struct attn_case *c)
{
	uint32_t i;

	c->k_scale = malloc(c->kv_heads * 4);
	c->v_scale = malloc(c->kv_heads * 4);
	for (i = 0; i < c->kv_heads; i++) {
		c->k_scale[i] = (1 + attn_value(&c->seed)) / (c->dtype == KERN_I8 ? 200 : 600);
		c->v_scale[i] = (1 + attn_value(&c->seed)) / (c->dtype == KERN_I8 ? 200 : 2);
	}
	c->at.k_scale = attn_below(&c->seed, 8) ? c->k_scale : NULL;
	c->at.v_scale = attn_below(&c->seed, 8) ? c->v_scale : NULL;
}

static inline int attn_put(const struct attn_case *c, uint32_t seq, uint32_t t, const float *k,
			   const float *v)
{
	const struct kern_store s = {.view = c->at.view,
				     .pte = c->pte[seq],
				     .pos = t,
				     .n = 1,
				     .k = k,
				     .v = v,
				     .k_scale = c->at.k_scale,
				     .v_scale = c->at.v_scale};

	return kern_store(&s);
}

static inline void attn_fill(struct attn_case *c, uint32_t seq)
{
	size_t n = c->kv_heads, i;
	float *k = malloc(n * c->dk * 4), *v = malloc(n * c->dv * 4);
	uint32_t lo, hi, t, page;

	attn_seen(c, seq, &lo, &hi);
	for (t = lo; t < hi; t++) {
		for (i = 0; i < n * c->dk; i++)
			k[i] = attn_value(&c->seed);
		for (i = 0; i < n * c->dv; i++)
			v[i] = attn_value(&c->seed);
		assert_int_equal(attn_put(c, seq, t, k, v), 0);
	}
	free(k);
	free(v);
	for (page = 0; page < attn_nr_pages(c, seq); page++)
		if (lo >= hi || (page + 1) * c->page_tokens <= lo || page * c->page_tokens >= hi)
			c->pte[seq][page] = page & 1 ? ATTN_WILD : UINT64_MAX;
	/* a page may stand in a table twice: full pages only, so that all its rows are there */
	if (c->repeat && hi - lo >= 4 * c->page_tokens && lo < hi) {
		page = (lo + c->page_tokens - 1) / c->page_tokens;
		c->pte[seq][page + 1] = c->pte[seq][page];
	}
}

static inline void attn_build_q(struct attn_case *c)
{
	struct kern_attn *at = &c->at;
	uint32_t width = c->kind == KERN_MLA ? c->dk + c->dv : c->dk;
	uint32_t out = c->kind == KERN_MLA ? c->dk : c->dv;
	uint32_t gap = c->strided ? 8 : 0;
	uint64_t seq, tok, head, i, to;

	at->q_stride_head = width + gap;
	at->q_stride_tok = at->heads * at->q_stride_head + 3 * gap;
	at->q_stride_seq = at->q_len * at->q_stride_tok + 5 * gap;
	at->out_stride_tok = out + gap; /* the other order, for once */
	at->out_stride_head = at->q_len * at->out_stride_tok + 2 * gap;
	at->out_stride_seq = at->heads * at->out_stride_head + 7 * gap;
	c->q_elems = at->q_stride_seq * c->batch;
	c->out_elems = at->out_stride_seq * c->batch;
	c->q = attn_alloc(c->q_elems * 4);
	c->out = attn_alloc(c->out_elems * 4);
	memset(c->out, 0, c->out_elems * 4); /* its gaps are compared too */
	memset(c->q, 0xff, c->q_elems * 4);
	for (seq = 0; seq < c->batch; seq++)
		for (tok = 0; tok < c->q_len; tok++)
			for (head = 0; head < at->heads; head++)
				for (i = 0; i < width; i++) {
					to = seq * at->q_stride_seq + tok * at->q_stride_tok +
					     head * at->q_stride_head + i;
					kern_num_put(c->q_dtype, c->q, to, attn_value(&c->seed));
				}
	at->q = c->q;
	at->out = c->out;
	c->out_rows = c->batch * c->q_len * at->heads;
	c->lse = attn_alloc(c->out_rows * 4);
	at->lse = c->no_lse ? NULL : c->lse;
	at->scale = c->spread / (0.01f * sqrtf((float)width));
}

static inline void attn_build_heads(struct attn_case *c)
{
	uint32_t i, n = c->kv_heads * c->group;

	c->sink = malloc(n * 4);
	c->slope = malloc(n * 4);
	for (i = 0; i < n; i++) {
		c->sink[i] = attn_value(&c->seed) * 20;
		c->slope[i] = exp2f(-8.0f * (float)(i + 1) / (float)n);
	}
	c->at.sinks = c->sinks ? c->sink : NULL;
	c->at.alibi = c->alibi ? c->slope : NULL;
}

static inline void attn_reference(struct attn_case *c);

static inline void attn_build(struct attn_case *c)
{
	uint32_t seq;

	attn_defaults(c);
	c->at = (struct kern_attn){
		.batch = c->batch,
		.heads = c->kv_heads * c->group,
		.q_len = c->q_len,
		.q_dtype = c->q_dtype,
		.pte = (const uint64_t *const *)c->pte,
		.kv_len = c->len,
		.kv_start = c->starts ? c->start : NULL,
		.kv_end = c->ends ? c->end : NULL,
		.softcap = c->softcap,
		.window = c->window,
		.dcp = c->dcp,
		.dcp_rank = c->dcp_rank,
		.dcp_interleave = c->dcp_interleave,
	};
	attn_build_view(c);
	attn_build_scales(c);
	attn_build_pages(c);
	for (seq = 0; seq < c->batch; seq++)
		attn_fill(c, seq);
	attn_build_q(c);
	attn_build_heads(c);
	attn_reference(c);
}

static inline void attn_free(struct attn_case *c)
{
	uint32_t i;

	for (i = 0; i < c->nr_pages; i++)
		free(c->pages[i]);
	for (i = 0; i < c->batch; i++)
		free(c->pte[i]);
	free(c->pages);
	free(c->q);
	free(c->out);
	free(c->lse);
	free(c->sink);
	free(c->slope);
	free(c->k_scale);
	free(c->v_scale);
	free(c->ref_out);
	free(c->ref_lse);
}

/* ---- running and comparing ---- */

static inline int attn_run(const struct kern_attn *at, enum kern_impl impl)
{
	size_t bytes = kern_attn_scratch(at, impl);
	void *scratch = attn_alloc(bytes);
	int err;

	memset(scratch, 0xff, bytes);
	err = kern_attn(at, impl, scratch);
	free(scratch);
	return err;
}

/* The reference sees the same q, widened, and is not rounded on its way out. */
static inline void attn_reference(struct attn_case *c)
{
	struct kern_attn at = c->at;
	float *q = malloc(c->q_elems * 4 + 1);
	size_t i;

	for (i = 0; i < c->q_elems; i++)
		q[i] = kern_num_get(c->q_dtype, c->q, i);
	c->ref_out = malloc(c->out_elems * 4 + 1);
	c->ref_lse = malloc(c->out_rows * 4 + 1);
	at.q = q;
	at.q_dtype = KERN_F32;
	at.out = c->ref_out;
	at.lse = c->ref_lse;
	assert_int_equal(attn_run(&at, KERN_REF), 0);
	free(q);
}

static inline void attn_describe(const struct attn_case *c, enum kern_impl impl)
{
	uint32_t i;

	print_error("%s %s dtype %u scale %u q %u page %u heads %ux%u dims %u %u q_len %u window %u"
		    " dcp %u/%u run %u cap %g spread %g flags%s%s%s%s%s%s%s lens",
		    kern_impl_name(impl), c->kind == KERN_MLA ? "mla" : "gqa", c->dtype, c->scale,
		    c->q_dtype,
		    c->page_tokens, c->kv_heads, c->group, c->dk, c->dv, c->q_len, c->window,
		    c->dcp_rank, c->dcp, c->dcp_interleave,
		    (double)c->softcap, (double)c->spread, c->starts ? " starts" : "",
		    c->ends ? " ends" : "", c->sinks ? " sinks" : "", c->alibi ? " alibi" : "",
		    c->strided ? " strided" : "", c->token_major ? " tokmajor" : "",
		    c->repeat ? " repeat" : "");
	for (i = 0; i < c->batch; i++)
		print_error(" %u (%u shared)", c->len[i], c->share[i]);
	print_error("\n");
}

static inline bool attn_lse_near(float got, float want)
{
	float diff = fabsf(got - want);

	if (want == -INFINITY)
		return got == -INFINITY;
	return diff < 1e-6f || diff < fabsf(want) * 8.01f / 65536;
}

/* Sums up the error of one row; false if one element is off. */
static inline bool attn_row_near(const struct attn_case *c, size_t at, uint32_t width,
				 double abs_limit, double *err, double *norm)
{
	uint32_t i;

	for (i = 0; i < width; i++) {
		double want = c->ref_out[at + i];
		double got = (double)kern_num_get(c->q_dtype, c->out, at + i);
		double diff = fabs(got - want);

		if (!(diff < abs_limit || diff < fabs(want) * 2.01 / 128))
			return false;
		*err += diff * diff;
		*norm += want * want;
	}
	return true;
}

/* Everything between the rows of out must be as it was. */
static inline size_t attn_gaps_spoilt(const struct attn_case *c, uint32_t width)
{
	const struct kern_attn *at = &c->at;
	size_t size = kern_dtype_size(c->q_dtype), used = 0, i, same = 0;
	const unsigned char *out = c->out;

	used = (size_t)c->out_rows * width * size;
	for (i = 0; i < c->out_elems * 4; i++) {
		size_t e = i / size, in_seq = e % at->out_stride_seq;
		size_t in_head = in_seq % at->out_stride_head;

		if (e < c->out_elems && in_seq / at->out_stride_head < at->heads &&
		    in_head / at->out_stride_tok < at->q_len &&
		    in_head % at->out_stride_tok < width)
			used--;
		else if (out[i] == ATTN_POISON)
			same++;
		else
			return i + 1;
	}
	assert_int_equal(used, 0);
	return same + c->out_rows * width * size == c->out_elems * 4 ? 0 : 1;
}

/* The bounds of docs/testing.md: relative L2, and of an element (or 2.01/128 of it). */
static inline void attn_limits(const struct attn_case *c, enum kern_impl impl, double *l2,
			       double *element)
{
	/* KERN_AMX rounds values with their scales to bf16 */
	bool ds = impl == KERN_AMX && c->q_dtype == KERN_BF16 && c->dtype == KERN_F8_DS;
	/* bf16 rounds out, and may round p: both average out over many elements only */
	bool short_call = c->out_rows * kern_out_width(&c->at.view) < 512;

	*l2 = c->q_dtype == KERN_F32	 ? 1e-5
	      : c->q_dtype == KERN_F16	 ? 1e-3
	      : ds || short_call	 ? 5e-3
					 : 3e-3;
	*element = ds ? 1.2e-3 : 8e-4;
}

static inline bool attn_matches(const struct attn_case *c, enum kern_impl impl)
{
	const struct kern_attn *at = &c->at;
	uint32_t width = kern_out_width(&at->view);
	double limit, element;
	double err = 0, norm = 0;
	uint32_t seq, tok, head, row = 0;

	attn_limits(c, impl, &limit, &element);
	memset(c->out, ATTN_POISON, c->out_elems * 4);
	memset(c->lse, ATTN_POISON, c->out_rows * 4);
	if (attn_run(at, impl))
		return false;
	for (seq = 0; seq < c->batch; seq++)
		for (tok = 0; tok < c->q_len; tok++)
			for (head = 0; head < at->heads; head++, row++) {
				size_t pos = seq * at->out_stride_seq + tok * at->out_stride_tok +
					     head * at->out_stride_head;

				if (!attn_row_near(c, pos, width, element, &err, &norm))
					return false;
				if (at->lse && !attn_lse_near(c->lse[row], c->ref_lse[row]))
					return false;
			}
	return sqrt(err) <= limit * sqrt(norm) && !attn_gaps_spoilt(c, width);
}

static inline void attn_expect(const struct attn_case *c, enum kern_impl impl)
{
	if (!attn_matches(c, impl)) {
		attn_describe(c, impl);
		fail_msg("differs from the reference");
	}
}

/* Every implementation this CPU has but the reference itself. */
#define attn_for_each_impl(impl) \
	for (enum kern_impl impl = KERN_GENERIC; impl < KERN_NR_IMPL; impl++) \
		if (kern_impl_usable(impl))

/* Runs a plan's items, last one first or in an order drawn from seed. Returns how many segments
 * are shared. */
static inline uint32_t attn_run_plan(const struct kern_attn *at, enum kern_impl impl,
				     uint32_t workers, uint64_t seed)
{
	size_t bytes = kern_attn_scratch(at, impl), plan_bytes = kern_plan_bytes(at, workers);
	void *scratch = attn_alloc(bytes), *mem = attn_alloc(plan_bytes), *partials;
	uint32_t i, j, shared, *order;
	struct kern_plan *plan;

	memset(scratch, 0xff, bytes);
	memset(mem, 0xff, plan_bytes);
	assert_int_equal(kern_plan_make(at, impl, workers, mem, &plan), 0);
	partials = attn_alloc(plan->partial_bytes);
	memset(partials, 0xff, plan->partial_bytes);
	kern_plan_partials(plan, at, partials);
	order = malloc((plan->nr_items + 1) * sizeof(*order));
	for (i = 0; i < plan->nr_items; i++)
		order[i] = plan->nr_items - 1 - i;
	for (i = plan->nr_items; seed && i > 1; i--) {
		uint32_t o = order[i - 1];

		j = attn_below(&seed, i);
		order[i - 1] = order[j];
		order[j] = o;
	}
	for (i = 0; i < plan->nr_items; i++)
		kern_plan_item(plan, at, order[i], scratch);
	shared = plan->nr_shared;
	free(order);
	free(partials);
	free(mem);
	free(scratch);
	return shared;
}

/* Planned for any number of threads and run in any order, a call gives the bits of kern_attn(). */
static inline void attn_expect_plans(const struct attn_case *c, enum kern_impl impl)
{
	static const uint32_t workers[] = {1, 2, 7, 300};
	size_t size = c->out_elems * 4;
	void *out = malloc(size + 1), *lse = malloc(c->out_rows * 4 + 1);
	uint32_t i;

	memset(c->out, ATTN_POISON, size);
	memset(c->lse, ATTN_POISON, c->out_rows * 4);
	assert_int_equal(attn_run(&c->at, impl), 0);
	memcpy(out, c->out, size);
	memcpy(lse, c->lse, c->out_rows * 4);
	for (i = 0; i < sizeof(workers) / sizeof(*workers); i++) {
		memset(c->out, ATTN_POISON, size);
		memset(c->lse, ATTN_POISON, c->out_rows * 4);
		attn_run_plan(&c->at, impl, workers[i], i & 1 ? c->seed : 0);
		if (memcmp(out, c->out, size) || memcmp(lse, c->lse, c->out_rows * 4)) {
			attn_describe(c, impl);
			fail_msg("planned for %u threads, the bits differ", workers[i]);
		}
	}
	free(out);
	free(lse);
}

/* Each sequence as a call of its own, the last one first, gives the bits it gives in the batch. */
static inline void attn_expect_singles(const struct attn_case *c, enum kern_impl impl)
{
	size_t size = c->out_elems * 4, elem = kern_dtype_size(c->q_dtype);
	size_t rows = (size_t)c->q_len * c->at.heads;
	void *out = malloc(size + 1), *lse = malloc(c->out_rows * 4 + 1);
	uint32_t i;

	memset(c->out, ATTN_POISON, size);
	memset(c->lse, ATTN_POISON, c->out_rows * 4);
	assert_int_equal(attn_run(&c->at, impl), 0);
	memcpy(out, c->out, size);
	memcpy(lse, c->lse, c->out_rows * 4);
	memset(c->out, ATTN_POISON, size);
	memset(c->lse, ATTN_POISON, c->out_rows * 4);
	for (i = c->batch; i--;) {
		struct kern_attn one = c->at;

		one.batch = 1;
		one.pte += i;
		one.kv_len += i;
		one.kv_start = one.kv_start ? one.kv_start + i : NULL;
		one.kv_end = one.kv_end ? one.kv_end + i : NULL;
		one.q = (const char *)one.q + i * one.q_stride_seq * elem;
		one.out = (char *)one.out + i * one.out_stride_seq * elem;
		one.lse = one.lse ? one.lse + i * rows : NULL;
		assert_int_equal(attn_run(&one, impl), 0);
	}
	if (memcmp(out, c->out, size) || memcmp(lse, c->lse, c->out_rows * 4)) {
		attn_describe(c, impl);
		fail_msg("a sequence alone has other bits than in the batch");
	}
	free(out);
	free(lse);
}

static inline void attn_check_all(struct attn_case c)
{
	attn_build(&c);
	attn_for_each_impl(impl)
	{
		attn_expect(&c, impl);
		attn_expect_plans(&c, impl);
	}
	attn_free(&c);
}

static inline uint32_t attn_max_scale(uint32_t dtype)
{
	return dtype == KERN_F8 || dtype == KERN_I8 ? KERN_SCALE_TOKEN : KERN_SCALE_NONE;
}

/* The same over all cache and query dtypes; KERN_F8_DS makes it MLA. */
static inline void attn_check_dtypes(struct attn_case c)
{
	for (c.dtype = KERN_F32; c.dtype <= KERN_F8_DS; c.dtype++)
		for (c.q_dtype = KERN_F32; c.q_dtype <= KERN_BF16; c.q_dtype++)
			for (c.scale = 0; c.scale <= attn_max_scale(c.dtype); c.scale++)
				attn_check_all(c);
}

#endif
