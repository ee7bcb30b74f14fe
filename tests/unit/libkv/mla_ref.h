/* SPDX-License-Identifier: Apache-2.0 */
/* mla_ref - DeepSeek-V3's attention layer in float64, from the formulas of its papers, by hand
 *
 * ref_layer() works on hidden states, without pages or caches of any kind, in three ways that must
 * agree: K and V materialised for every head, absorbed, and with W_O * W_UV as one matrix. Nothing
 * of libkv is used.
 */
#ifndef MLA_REF_H
#define MLA_REF_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define REF __attribute__((unused)) static

enum ref_mode { REF_MATERIALISED, REF_ABSORBED, REF_PREMULTIPLIED };

struct ref_model {
	uint32_t hidden, heads, nope, rope, v, rank, q_rank;
	double *wq, *wq_a, *wq_b, *wkv_a, *wkv_b, *wo, *q_norm, *kv_norm;
	double eps, theta;
	bool halves;
	double yarn_factor, yarn_original, yarn_mscale; /* factor 0: none */
	bool bf16_cache;				/* rows are rounded as a bf16 cache does */
};

/* The generator of the published reference module. */
REF double ref_u(uint32_t i, uint32_t seed)
{
	uint32_t x = i * 2654435761u + seed * 97531u + 12345u;

	x ^= x >> 15;
	x *= 2246822519u;
	x ^= x >> 13;
	return x / 2147483648.0 - 1;
}

REF double *ref_matrix(uint32_t rows, uint32_t cols, uint32_t seed, double fan_in)
{
	double *m = malloc(sizeof(*m) * rows * cols);
	uint32_t i;

	for (i = 0; i < rows * cols; i++)
		m[i] = ref_u(i, seed) / sqrt(fan_in);
	return m;
}

/* [heads][a rows | b rows][cols] of two matrices [heads][..][cols]. */
REF double *ref_interleave(const double *a, uint32_t na, const double *b, uint32_t nb,
			   uint32_t heads, uint32_t cols)
{
	double *m = malloc(sizeof(*m) * heads * (na + nb) * cols), *to = m;
	uint32_t h;

	for (h = 0; h < heads; h++) {
		memcpy(to, a + (size_t)h * na * cols, sizeof(*m) * na * cols);
		to += na * cols;
		memcpy(to, b + (size_t)h * nb * cols, sizeof(*m) * nb * cols);
		to += nb * cols;
	}
	return m;
}

REF void ref_free(struct ref_model *m)
{
	free(m->wq);
	free(m->wq_a);
	free(m->wq_b);
	free(m->wkv_a);
	free(m->wkv_b);
	free(m->wo);
	free(m->q_norm);
	free(m->kv_norm);
}

REF void ref_mul(double *y, const double *w, const double *x, uint32_t n, uint32_t k)
{
	uint32_t i, j;

	for (i = 0; i < n; i++) {
		double sum[4] = {0};

		for (j = 0; j + 4 <= k; j += 4) {
			sum[0] += w[(size_t)i * k + j] * x[j];
			sum[1] += w[(size_t)i * k + j + 1] * x[j + 1];
			sum[2] += w[(size_t)i * k + j + 2] * x[j + 2];
			sum[3] += w[(size_t)i * k + j + 3] * x[j + 3];
		}
		for (; j < k; j++)
			sum[0] += w[(size_t)i * k + j] * x[j];
		y[i] = sum[0] + sum[1] + (sum[2] + sum[3]);
	}
}

/* y += x^T w, w [k][n]. */
REF void ref_mul_t(double *y, const double *w, const double *x, uint32_t n, uint32_t k)
{
	uint32_t i, j;

	for (j = 0; j < k; j++)
		for (i = 0; i < n; i++)
			y[i] += x[j] * w[(size_t)j * n + i];
}

REF void ref_norm(double *x, const double *w, uint32_t n, double eps)
{
	double sum = 0;
	uint32_t i;

	for (i = 0; i < n; i++)
		sum += x[i] * x[i];
	for (i = 0; i < n; i++)
		x[i] = x[i] / sqrt(sum / n + eps) * (w ? w[i] : 1);
}

/* modeling_deepseek.py: yarn_find_correction_range, yarn_linear_ramp_mask. */
REF double ref_frequency(const struct ref_model *m, uint32_t i)
{
	double d = m->rope, base = m->theta, freq = 1 / pow(base, 2 * i / d), low, high, mask;

	if (!m->yarn_factor)
		return freq;
	low = floor(d * log(m->yarn_original / (32 * 2 * M_PI)) / (2 * log(base)));
	high = ceil(d * log(m->yarn_original / (1 * 2 * M_PI)) / (2 * log(base)));
	low = fmax(low, 0);
	high = fmin(high, d - 1);
	mask = 1 - fmin(fmax((i - low) / (high - low), 0), 1);
	return freq / m->yarn_factor * (1 - mask) + freq * mask;
}

REF void ref_rope(const struct ref_model *m, double *x, double position)
{
	uint32_t i, half = m->rope / 2;

	for (i = 0; i < half; i++) {
		uint32_t a = m->halves ? i : 2 * i, b = m->halves ? half + i : 2 * i + 1;
		double angle = position * ref_frequency(m, i), xa = x[a], xb = x[b];

		x[a] = xa * cos(angle) - xb * sin(angle);
		x[b] = xb * cos(angle) + xa * sin(angle);
	}
}

REF double ref_scale(const struct ref_model *m)
{
	double mscale = 1;

	if (m->yarn_factor)
		mscale = 0.1 * m->yarn_mscale * log(m->yarn_factor) + 1;
	return mscale * mscale / sqrt(m->nope + m->rope);
}

REF double ref_bf16(double x)
{
	float f = (float)x;
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000;
	memcpy(&f, &u, sizeof(f));
	return f;
}

/* The row a cache holds: normed latent, roped key. */
REF void ref_row(const struct ref_model *m, const double *h, double position, double *row)
{
	uint32_t i;

	ref_mul(row, m->wkv_a, h, m->rank + m->rope, m->hidden);
	ref_norm(row, m->kv_norm, m->rank, m->eps);
	ref_rope(m, row + m->rank, position);
	for (i = 0; m->bf16_cache && i < m->rank + m->rope; i++)
		row[i] = ref_bf16(row[i]);
}

/* q [heads][nope | rope], roped. */
REF void ref_query(const struct ref_model *m, const double *h, double position, double *q)
{
	uint32_t width = m->nope + m->rope, i;
	double *a;

	if (m->q_rank) {
		a = malloc(sizeof(*a) * m->q_rank);
		ref_mul(a, m->wq_a, h, m->q_rank, m->hidden);
		ref_norm(a, m->q_norm, m->q_rank, m->eps);
		ref_mul(q, m->wq_b, a, m->heads * width, m->q_rank);
		free(a);
	} else {
		ref_mul(q, m->wq, h, m->heads * width, m->hidden);
	}
	for (i = 0; i < m->heads; i++)
		ref_rope(m, q + i * width + m->nope, position);
}

/* Scores of one head against all rows; returns its log-sum-exp, s becomes the weights. */
REF double ref_softmax(double *s, uint32_t n)
{
	double max = -INFINITY, sum = 0;
	uint32_t t;

	for (t = 0; t < n; t++)
		max = s[t] > max ? s[t] : max;
	for (t = 0; t < n; t++)
		sum += exp(s[t] - max);
	for (t = 0; t < n; t++)
		s[t] = exp(s[t] - max) / sum;
	return max + log(sum);
}

/* One head's attention over n rows [rank | rope]: o [v], or the latent it is made of [rank]. */
REF double ref_head(const struct ref_model *m, const double *q, const double *rows, uint32_t n,
		    uint32_t head, bool absorbed, double *o, double *latent)
{
	uint32_t width = m->rank + m->rope, t, i;
	const double *uk = m->wkv_b + (size_t)head * (m->nope + m->v) * m->rank;
	const double *uv = uk + (size_t)m->nope * m->rank;
	double *s = malloc(sizeof(*s) * n), lse;
	double *qk = calloc(m->rank, sizeof(*qk)), *k = malloc(sizeof(*k) * (m->nope + m->v));

	if (absorbed)
		ref_mul_t(qk, uk, q, m->rank, m->nope);
	for (t = 0; t < n; t++) {
		const double *row = rows + (size_t)t * width;

		s[t] = 0;
		if (absorbed) {
			for (i = 0; i < m->rank; i++)
				s[t] += qk[i] * row[i];
		} else {
			ref_mul(k, uk, row, m->nope, m->rank);
			for (i = 0; i < m->nope; i++)
				s[t] += q[i] * k[i];
		}
		for (i = 0; i < m->rope; i++)
			s[t] += q[m->nope + i] * row[m->rank + i];
		s[t] *= ref_scale(m);
	}
	lse = ref_softmax(s, n);
	memset(latent, 0, sizeof(*latent) * m->rank);
	memset(o, 0, sizeof(*o) * m->v);
	for (t = 0; t < n; t++) {
		const double *row = rows + (size_t)t * width;

		if (absorbed) {
			for (i = 0; i < m->rank; i++)
				latent[i] += s[t] * row[i];
			continue;
		}
		ref_mul(k, uv, row, m->v, m->rank);
		for (i = 0; i < m->v; i++)
			o[i] += s[t] * k[i];
	}
	if (absorbed)
		ref_mul(o, uv, latent, m->v, m->rank);
	free(s);
	free(qk);
	free(k);
	return lse;
}

/* out += (W_O * W_UV) of this head, made first, then applied to its latent. */
REF void ref_premultiplied(const struct ref_model *m, uint32_t head, const double *latent,
			   double *out)
{
	const double *uv = m->wkv_b + ((size_t)head * (m->nope + m->v) + m->nope) * m->rank;
	double *w = malloc(sizeof(*w) * m->rank), y;
	uint32_t i;

	for (i = 0; i < m->hidden; i++) {
		memset(w, 0, sizeof(*w) * m->rank);
		ref_mul_t(w, uv, m->wo + ((size_t)i * m->heads + head) * m->v, m->rank, m->v);
		ref_mul(&y, w, latent, 1, m->rank);
		out[i] += y;
	}
	free(w);
}

/* h [n][hidden] at positions first, first + 1, ...; out [hidden] and lse [heads] of the token at
 * index query, which sees rows 0 to query. */
REF void ref_layer(const struct ref_model *m, const double *rows, const double *h, uint32_t query,
		   double first, enum ref_mode mode, double *out, double *lse)
{
	uint32_t width = m->nope + m->rope, head;
	double *q = malloc(sizeof(*q) * m->heads * width);
	double *o = malloc(sizeof(*o) * m->heads * m->v);
	double *latent = malloc(sizeof(*latent) * m->rank);

	ref_query(m, h + (size_t)query * m->hidden, first + query, q);
	memset(out, 0, sizeof(*out) * m->hidden);
	for (head = 0; head < m->heads; head++) {
		lse[head] = ref_head(m, q + head * width, rows, query + 1, head,
				     mode != REF_MATERIALISED, o + head * m->v, latent);
		if (mode == REF_PREMULTIPLIED)
			ref_premultiplied(m, head, latent, out);
	}
	if (mode != REF_PREMULTIPLIED)
		ref_mul(out, m->wo, o, m->hidden, m->heads * m->v);
	free(q);
	free(o);
	free(latent);
}

/* Rows of all n tokens. */
REF double *ref_rows(const struct ref_model *m, const double *h, uint32_t n, double first)
{
	uint32_t width = m->rank + m->rope, t;
	double *rows = malloc(sizeof(*rows) * n * width);

	for (t = 0; t < n; t++)
		ref_row(m, h + (size_t)t * m->hidden, first + t, rows + (size_t)t * width);
	return rows;
}

#endif
