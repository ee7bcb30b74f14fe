/* SPDX-License-Identifier: Apache-2.0 */
/* attn_fixture - attention in float64 over the rows their histories say, computed without any page
 *
 * check_all() holds kv_attn() and kv_attn_pages() of the sequences of fixture f against it, over
 * all groups and layers, with the group's window.
 */
#ifndef ATTN_FIXTURE_H
#define ATTN_FIXTURE_H

#include <math.h>

#include "seq_fixture.h"

#define PT	  4u
#define MAX_HEADS 8u
#define MAX_Q	  3u
#define MAX_BATCH 6u
#define MAX_TOK	  64u

FIX struct fix f;

/* ---- the definition -------------------------------------------------------------------------- */

struct dense {
	uint32_t heads, kv_heads, dk, dv;
	double k[MAX_TOK][FIX_MAX_ROW], v[MAX_TOK][FIX_MAX_ROW];
};

FIX void load_dense(struct dense *d, const uint32_t *tokens, uint32_t n, uint32_t group,
		       uint32_t layer, uint32_t heads)
{
	const struct kv_layout *l = &f.params.group[group].layout;
	bool mla = l->kind == KV_MLA;
	float k[FIX_MAX_ROW], v[FIX_MAX_ROW];
	uint32_t vw, kw = fix_widths(l, &vw), pos, i;

	d->heads = heads;
	d->kv_heads = mla ? 1 : l->kv_heads;
	d->dk = mla ? l->rank + l->rope : l->head_dim;
	d->dv = mla ? l->rank : l->head_dim_v;
	for (pos = 0; pos < n; pos++) {
		uint64_t h = fix_history(tokens, pos, 0);

		fix_row(h, group, layer, k, kw, 0);
		fix_row(h, group, layer, v, vw, 1);
		for (i = 0; i < kw; i++) {
			d->k[pos][i] = k[i];
			if (mla)
				d->v[pos][i] = k[i]; /* the latent is key and value */
		}
		for (i = 0; i < vw; i++)
			(mla ? &d->k[pos][kw + i] : &d->v[pos][i])[0] = v[i];
	}
}

/* Query at position len - 1 - (q_len - 1 - i) sees the tokens up to itself. */
FIX double dense_row(const struct dense *d, const float *q, uint32_t head, int64_t seen,
			uint32_t window, double scale, double *out)
{
	uint32_t kv = head / (d->heads / d->kv_heads), t, i;
	int64_t first = window && seen > window ? seen - window : 0;
	double s[MAX_TOK], max = -INFINITY, sum = 0;

	memset(out, 0, d->dv * sizeof(*out));
	for (t = (uint32_t)first; t < seen; t++) {
		s[t] = 0;
		for (i = 0; i < d->dk; i++)
			s[t] += q[i] * d->k[t][kv * d->dk + i];
		s[t] *= scale;
		max = s[t] > max ? s[t] : max;
	}
	for (t = (uint32_t)first; t < seen; t++)
		sum += exp(s[t] - max);
	for (t = (uint32_t)first; t < seen; t++)
		for (i = 0; i < d->dv; i++)
			out[i] += exp(s[t] - max) / sum * d->v[t][kv * d->dv + i];
	return seen > 0 ? max + log(sum) : -INFINITY;
}

/* ---- a call checked against it --------------------------------------------------------------- */

struct check {
	struct kv_seq *const *seqs;
	const uint32_t *lens;
	uint32_t batch, group, layer, q_len, heads;
	float scale;
	bool by_pages;
};

FIX float q_mem[MAX_BATCH * MAX_Q * MAX_HEADS * FIX_MAX_ROW];
FIX float out_mem[MAX_BATCH * MAX_Q * MAX_HEADS * FIX_MAX_ROW];
FIX float lse_mem[MAX_BATCH * MAX_Q * MAX_HEADS];

FIX int call(const struct check *c)
{
	const uint64_t *pte[MAX_BATCH];
	uint32_t lens[MAX_BATCH], i;
	struct kv_attn a = {.group = c->group,
			    .layer = c->layer,
			    .batch = c->batch,
			    .seqs = c->seqs,
			    .lens = c->lens,
			    .heads = c->heads,
			    .q_len = c->q_len,
			    .q = q_mem,
			    .out = out_mem,
			    .lse = lse_mem,
			    .scale = c->scale};

	if (!c->by_pages)
		return kv_attn(f.cache, &a);
	for (i = 0; i < c->batch; i++) {
		pte[i] = kv_seq_pte(c->seqs[i], c->group, NULL);
		lens[i] = c->lens ? c->lens[i] : kv_seq_len(c->seqs[i]);
	}
	a.seqs = NULL;
	a.lens = NULL;
	return kv_attn_pages(f.cache, &a, pte, lens);
}

FIX void compare(const struct check *c, const struct dense *d, uint32_t i, uint32_t len)
{
	const struct kv_layout *l = &f.params.group[c->group].layout;
	double scale = c->scale ? c->scale : 1 / sqrt(d->dk), want[FIX_MAX_ROW], err = 0, norm = 0;
	double limit = l->dtype == KV_F32 ? 1e-5 : l->dtype == KV_F16 ? 1e-3 : 3e-3, lse;
	uint32_t qi, h, j;

	for (qi = 0; qi < c->q_len; qi++) {
		for (h = 0; h < c->heads; h++) {
			uint32_t row = (i * c->q_len + qi) * c->heads + h;
			int64_t seen = (int64_t)len - (c->q_len - 1 - qi);

			lse = dense_row(d, q_mem + row * d->dk, h, seen,
					f.params.group[c->group].window_tokens, scale, want);
			for (j = 0; j < d->dv; j++) {
				double e = out_mem[row * d->dv + j] - want[j];

				err += e * e;
				norm += want[j] * want[j];
			}
			if (seen <= 0)
				assert_true(isinf(lse_mem[row]) && lse_mem[row] < 0);
			else if (fabs(lse_mem[row] - lse) > 1e-3)
				fail_msg("seq %u query %u head %u: lse %g, want %g", i, qi, h,
					 lse_mem[row], lse);
		}
	}
	if (!(sqrt(err) <= limit * sqrt(norm) + 1e-12))
		fail_msg("seq %u of %u tokens, group %u layer %u, q_len %u: error %g of %g", i, len,
			 c->group, c->layer, c->q_len, sqrt(err), sqrt(norm));
}

FIX void check(const struct check *c)
{
	static struct dense d;
	uint64_t r = 42;
	uint32_t i;

	for (i = 0; i < sizeof(q_mem) / sizeof(*q_mem); i++) {
		r = r * 6364136223846793005ull + 1442695040888963407ull;
		q_mem[i] = (float)(int)(r >> 40 & 0xff) / 128 - 1;
		out_mem[i] = NAN;
	}
	if (call(c))
		fail_msg("%s", kv_error());
	for (i = 0; i < c->batch; i++) {
		uint32_t len = c->lens ? c->lens[i] : kv_seq_len(c->seqs[i]);

		load_dense(&d, kv_seq_tokens(c->seqs[i]), len, c->group, c->layer, c->heads);
		compare(c, &d, i, len);
	}
}

/* All groups and layers, one and several queries, by sequence and by page table. */
FIX void check_all(struct kv_seq *const *seqs, uint32_t batch)
{
	struct check c = {.seqs = seqs, .batch = batch};
	bool mla = f.params.group[0].layout.kind == KV_MLA;

	for (c.group = 0; c.group < f.nr_groups; c.group++) {
		for (c.layer = 0; c.layer < f.params.group[c.group].layout.layers; c.layer++) {
			for (c.q_len = 1; c.q_len <= MAX_Q; c.q_len += 2) {
				for (c.heads = 2; c.heads <= MAX_HEADS; c.heads += 6) {
					c.scale = mla ? 0.2f : c.q_len == 1 ? 0 : 0.35f;
					c.by_pages = false;
					check(&c);
					c.by_pages = true;
					check(&c);
				}
			}
		}
	}
}

FIX void extend(struct kv_seq *s, uint32_t first, uint32_t n, bool commit)
{
	uint32_t len = kv_seq_len(s), tokens[MAX_TOK], i;

	for (i = 0; i < n; i++)
		tokens[i] = first + i;
	if (kv_seq_append(s, tokens, n))
		fail_msg("%s", kv_error());
	fix_store(&f, s, 0, len, len + n);
	if (commit && kv_seq_commit(s, len + n))
		fail_msg("%s", kv_error());
}

#endif
