// SPDX-License-Identifier: Apache-2.0
/* kern_ref - the definition: two passes in float64 over the dequantised cache
 *
 * Written to be read against the formula in kernels.h, not to be quick: the scores are computed
 * twice so that no scratch and no rescaling is needed. */
#include <math.h>
#include <string.h>

#include "kern_impl.h"
#include "kern_num.h"

/* One query row: what it attends with and what it sees. */
struct ref_row {
	const struct kern_attn *at;
	uint32_t seq, head;
	struct kern_span span;
	double q[KERN_MAX_DIM];
};

static double float_at(const char *p)
{
	float f;

	memcpy(&f, p, sizeof(f));
	return (double)f;
}

/* The scale of a token's K or V, whole row. */
static double row_scale(const struct ref_row *r, uint32_t t, bool value)
{
	const struct kern_view *view = &r->at->view;
	uint32_t head = r->head / (r->at->heads / view->kv_heads);
	bool v = value && view->kind == KERN_GQA;
	const float *given = v ? r->at->v_scale : r->at->k_scale;

	if (view->scale == KERN_SCALE_HEAD)
		return given ? (double)given[head] : 1;
	if (view->scale == KERN_SCALE_NONE)
		return 1;
	return float_at(kern_scale_at(view, r->at->pte[r->seq][t / view->page_tokens], head,
				      t % view->page_tokens) +
			(v ? view->v_scale_off - view->k_scale_off : 0));
}

/* Element c of a row, without the row's scale. */
static double element(const struct kern_view *view, const char *row, uint32_t c)
{
	if (view->dtype != KERN_F8_DS)
		return (double)kern_num_get(view->dtype, row, c);
	if (c >= view->head_dim)
		return (double)kern_num_get(KERN_BF16, row + kern_ds_rope(view),
					    c - view->head_dim);
	return (double)kern_num_get(KERN_F8, row, c) *
	       float_at(row + kern_ds_scales(view) + c / KERN_DS_BLOCK * sizeof(float));
}

static double score(const struct ref_row *r, uint32_t t)
{
	const struct kern_attn *at = r->at;
	const struct kern_view *view = &at->view;
	const char *k = kern_k_row(view, at->pte[r->seq][t / view->page_tokens],
				   r->head / (at->heads / view->kv_heads), t % view->page_tokens);
	double s = 0;
	uint32_t c;

	for (c = 0; c < kern_q_width(view); c++)
		s += r->q[c] * element(view, k, c);
	s *= row_scale(r, t, false) * (double)at->scale;
	if (at->softcap > 0)
		s = at->softcap * tanh(s / at->softcap);
	if (at->alibi)
		s += at->alibi[r->head] * (double)(kern_position(at, t) - r->span.pos);
	return s;
}

/* Adds a token's value with weight p. */
static void add_value(const struct ref_row *r, uint32_t t, double p, double *acc)
{
	const struct kern_view *view = &r->at->view;
	const char *v =
		kern_v_row(view, r->at->pte[r->seq][t / view->page_tokens],
			   r->head / (r->at->heads / view->kv_heads), t % view->page_tokens);
	uint32_t c;

	p *= row_scale(r, t, true);
	for (c = 0; c < kern_out_width(view); c++)
		acc[c] += p * element(view, v, c);
}

/* Returns the row's LSE; acc holds the normalised output. */
static double ref_row(const struct ref_row *r, double *acc)
{
	double sink = r->at->sinks ? r->at->sinks[r->head] : -INFINITY;
	double max = sink, sum = 0;
	bool empty = sink == -INFINITY;
	uint32_t t, c;

	for (c = 0; c < KERN_MAX_DIM; c++)
		acc[c] = 0;
	for (t = r->span.lo; t < r->span.hi; t++) {
		double s = score(r, t);

		max = fmax(max, s); /* never a NaN, which the sum will be */
		empty = empty && s == -INFINITY;
	}
	if (empty)
		return -INFINITY;
	sum = exp(sink - max);
	for (t = r->span.lo; t < r->span.hi; t++) {
		double p = exp(score(r, t) - max);

		sum += p;
		add_value(r, t, p, acc);
	}
	for (c = 0; c < KERN_MAX_DIM; c++)
		acc[c] /= sum;
	return max + log(sum);
}

static void ref_head(const struct kern_attn *at, uint32_t seq, uint32_t query, uint32_t head)
{
	struct ref_row r = {
		.at = at, .seq = seq, .head = head, .span = kern_span(at, seq, query)};
	double acc[KERN_MAX_DIM], lse;
	uint64_t from = kern_q_at(at, seq, query, head), to = kern_out_at(at, seq, query, head);
	uint32_t c;

	for (c = 0; c < kern_q_width(&at->view); c++)
		r.q[c] = kern_num_get(at->q_dtype, at->q, from + c);
	lse = ref_row(&r, acc);
	for (c = 0; c < kern_out_width(&at->view); c++)
		kern_num_put(at->q_dtype, at->out, to + c, (float)acc[c]);
	if (at->lse)
		at->lse[kern_lse_at(at, seq, query, head)] = (float)lse;
}

/* Whole sequences only; rows are those of a KV head, query-major. */
static void ref_run(const struct kern_attn *at, const struct kern_part *part, void *scratch)
{
	uint32_t group = at->heads / at->view.kv_heads, rows = kern_head_rows(at);
	uint32_t i, head, row, end = part->block1 * KERN_BLOCK_ROWS;

	(void)scratch;
	for (i = 0; i < part->nr_seqs; i++)
		for (head = part->head0; head < part->head1; head++)
			for (row = part->block0 * KERN_BLOCK_ROWS; row < rows && row < end; row++)
				ref_head(at, part->seqs[i], row / group,
					 head * group + row % group);
}

static bool ref_usable(void)
{
	return true;
}

static bool ref_preferred(void)
{
	return false;
}

static bool ref_fast(const struct kern_attn *at)
{
	(void)at;
	return false;
}

static size_t ref_scratch(const struct kern_attn *at)
{
	(void)at;
	return 0;
}

const struct kern_ops kern_ops_ref = {
	.usable = ref_usable,
	.preferred = ref_preferred,
	.fast = ref_fast,
	.scratch = ref_scratch,
	.run = ref_run,
};
