/* SPDX-License-Identifier: Apache-2.0 */
#include "forward.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops.h"

struct forward {
	const struct model *m;
	struct forward_shape shape;
	uint32_t max_chunk;
	uint32_t head_in, head_out;	/* head widths before absorption: q, attention output */
	uint32_t rope_width;
	float *rope;			/* ops_rope_table of rope_width */
	float *mix, *mix_t;		/* AS_MLA: M [rank][rank], orthogonal, and its transpose */
	/* per token of a chunk: */
	float *x, *h;			/* [dim] residual stream, its normed copy */
	float *q, *heads_out;		/* [heads][head_in], [heads][head_out] */
	float *k, *v;			/* GQA rows, AS_MLA or not; MLA: latent and roped key */
	float *latent;			/* AS_MLA [rank] */
	float *q_row, *out_row;		/* MLA [heads][rank + rope], [heads][rank] */
	float *gate, *up;		/* [hidden] */
};

/* ---- life ---- */

/* Gram-Schmidt, twice for full orthogonality, on a fixed pseudo-random matrix (splitmix64). */
static void fill_orthogonal(float *out, double *m, uint32_t n)
{
	uint64_t state = 0x6b766467656e0001u;

	for (size_t i = 0; i < (size_t)n * n; i++) {
		uint64_t z = state += 0x9e3779b97f4a7c15u;

		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
		z = (z ^ z >> 27) * 0x94d049bb133111ebu;
		m[i] = (double)((z ^ z >> 31) >> 11) / (double)(1ull << 52) - 1.0;
	}
	for (uint32_t r = 0; r < 2 * n; r++) {
		double *row = m + (size_t)(r / 2) * n, norm = 0;

		for (uint32_t p = 0; p < r / 2; p++) {
			double c = 0;

			for (uint32_t i = 0; i < n; i++)
				c += row[i] * m[(size_t)p * n + i];
			for (uint32_t i = 0; i < n; i++)
				row[i] -= c * m[(size_t)p * n + i];
		}
		for (uint32_t i = 0; i < n; i++)
			norm += row[i] * row[i];
		for (uint32_t i = 0; i < n; i++)
			row[i] /= sqrt(norm);
	}
	for (size_t i = 0; i < (size_t)n * n; i++)
		out[i] = (float)m[i];
}

static int create_mix(struct forward *fw)
{
	uint32_t n = fw->shape.rank;
	double *work = calloc((size_t)n * n, sizeof(*work));

	fw->mix = calloc((size_t)n * n, sizeof(*fw->mix));
	fw->mix_t = calloc((size_t)n * n, sizeof(*fw->mix_t));
	if (!work || !fw->mix || !fw->mix_t) {
		free(work);
		return -ENOMEM;
	}
	fill_orthogonal(fw->mix, work, n);
	for (uint32_t r = 0; r < n; r++)
		for (uint32_t c = 0; c < n; c++)
			fw->mix_t[(size_t)c * n + r] = fw->mix[(size_t)r * n + c];
	free(work);
	return 0;
}

static void set_shape(struct forward *fw, enum forward_mode mode)
{
	const struct model_dims *d = &fw->m->d;
	struct forward_shape *s = &fw->shape;

	s->layers = d->layers;
	s->heads = d->heads;
	s->max_pos = d->max_pos;
	if (d->attn == MODEL_MLA) {
		fw->head_in = d->nope + d->rope;
		fw->head_out = d->v;
		fw->rope_width = d->rope;
	} else {
		fw->head_in = fw->head_out = fw->rope_width = d->head_dim;
	}
	s->scale = 1.0f / sqrtf((float)fw->head_in);
	if (d->attn == MODEL_GQA && mode == FORWARD_NATIVE) {
		s->kind = FORWARD_GQA;
		s->kv_heads = d->kv_heads;
		s->head_dim = d->head_dim;
		return;
	}
	s->kind = FORWARD_MLA;
	s->rank = d->attn == MODEL_MLA ? d->rank : d->kv_heads * d->head_dim;
	s->rope = d->attn == MODEL_MLA ? d->rope : s->rank;
}

static int alloc_buffers(struct forward *fw)
{
	const struct model_dims *d = &fw->m->d;
	const struct forward_shape *s = &fw->shape;
	size_t kv = d->attn == MODEL_MLA ? d->rank + d->rope : (size_t)d->kv_heads * d->head_dim;
	const struct {
		float **at;
		size_t n;
	} want[] = {
		{ &fw->x, d->dim },
		{ &fw->h, d->dim },
		{ &fw->q, (size_t)d->heads * fw->head_in },
		{ &fw->heads_out, (size_t)d->heads * fw->head_out },
		{ &fw->k, kv },
		{ &fw->v, kv },
		{ &fw->latent, s->rank },
		{ &fw->q_row, (size_t)d->heads * (s->rank + s->rope) },
		{ &fw->out_row, (size_t)d->heads * s->rank },
		{ &fw->gate, d->hidden },
		{ &fw->up, d->hidden },
	};

	for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
		*want[i].at = calloc(want[i].n * fw->max_chunk + 1, sizeof(float));
		if (!*want[i].at)
			return -ENOMEM;
	}
	fw->rope = calloc((size_t)d->max_pos * fw->rope_width, sizeof(float));
	if (!fw->rope)
		return -ENOMEM;
	ops_rope_table(fw->rope, d->max_pos, fw->rope_width, d->theta);
	return 0;
}

int forward_create(struct forward **out, const struct model *m, enum forward_mode mode,
		   uint32_t max_chunk, struct fault *f)
{
	uint32_t most = m->d.max_pos < FORWARD_MAX_CHUNK ? m->d.max_pos : FORWARD_MAX_CHUNK;
	struct forward *fw;
	int err = 0;

	if (!max_chunk || max_chunk > most)
		return fault_set(f, -EINVAL, "a step of %u tokens: use 1 to %u", max_chunk, most);
	if (mode == FORWARD_AS_MLA && m->d.attn == MODEL_MLA)
		return fault_set(f, -EINVAL, "the model has MLA attention: run it as it is");
	if (mode == FORWARD_AS_MLA && 2 * m->d.kv_heads * m->d.head_dim > MODEL_MAX_ROW)
		return fault_set(f, -EINVAL,
				 "as MLA this model has rows of %u elements, libkv takes %u: run "
				 "it as GQA",
				 2 * m->d.kv_heads * m->d.head_dim, MODEL_MAX_ROW);
	fw = calloc(1, sizeof(*fw));
	if (fw) {
		fw->m = m;
		fw->max_chunk = max_chunk;
		set_shape(fw, mode);
		err = alloc_buffers(fw);
		if (!err && mode == FORWARD_AS_MLA)
			err = create_mix(fw);
	}
	if (!fw || err) {
		forward_destroy(fw);
		return fault_set(f, -ENOMEM, "no memory to run the model in steps of %u tokens: "
				 "take smaller steps", max_chunk);
	}
	*out = fw;
	return 0;
}

void forward_destroy(struct forward *fw)
{
	if (!fw)
		return;
	free(fw->rope);
	free(fw->mix);
	free(fw->mix_t);
	free(fw->x);
	free(fw->h);
	free(fw->q);
	free(fw->heads_out);
	free(fw->k);
	free(fw->v);
	free(fw->latent);
	free(fw->q_row);
	free(fw->out_row);
	free(fw->gate);
	free(fw->up);
	free(fw);
}

void forward_shape(const struct forward *fw, struct forward_shape *shape)
{
	*shape = fw->shape;
}

/* ---- attention ---- */

static const float *rope_at(const struct forward *fw, uint32_t pos)
{
	return fw->rope + (size_t)pos * fw->rope_width;
}

/* Rows and queries of a GQA model, roped. */
static void project_gqa(struct forward *fw, const struct model_layer *l, uint32_t n, uint32_t pos)
{
	const struct model_dims *d = &fw->m->d;
	uint32_t hd = d->head_dim, kv = d->kv_heads * hd;

	ops_matmul(fw->q, fw->h, l->wq, n, d->dim, d->heads * hd);
	ops_matmul(fw->k, fw->h, l->wk, n, d->dim, kv);
	ops_matmul(fw->v, fw->h, l->wv, n, d->dim, kv);
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t j = 0; j < d->heads; j++)
			ops_rope(fw->q + ((size_t)i * d->heads + j) * hd, rope_at(fw, pos + i), hd);
		for (uint32_t j = 0; j < d->kv_heads; j++)
			ops_rope(fw->k + (size_t)i * kv + j * hd, rope_at(fw, pos + i), hd);
	}
}

static int attend_gqa(struct forward *fw, const struct attn_backend *b, uint32_t layer, uint32_t n,
		      uint32_t pos)
{
	int err;

	project_gqa(fw, &fw->m->layer[layer], n, pos);
	err = b->store(b->ctx, layer, pos, n, fw->k, fw->v);
	return err ? err : b->attend(b->ctx, layer, pos, n, fw->q, fw->heads_out);
}

/* q_pe of a head is its query in its group's part of the row; the latent part stays zero. */
static int attend_as_mla(struct forward *fw, const struct attn_backend *b, uint32_t layer,
			 uint32_t n, uint32_t pos)
{
	const struct model_dims *d = &fw->m->d;
	uint32_t rank = fw->shape.rank, hd = d->head_dim, group = d->heads / d->kv_heads;
	int err;

	project_gqa(fw, &fw->m->layer[layer], n, pos);
	ops_matmul(fw->latent, fw->v, fw->mix, n, rank, rank);
	memset(fw->q_row, 0, (size_t)n * d->heads * 2 * rank * sizeof(float));
	for (uint32_t i = 0; i < n * d->heads; i++)
		memcpy(fw->q_row + (size_t)i * 2 * rank + rank + i % d->heads / group * hd,
		       fw->q + (size_t)i * hd, hd * sizeof(float));
	err = b->store(b->ctx, layer, pos, n, fw->latent, fw->k);
	if (!err)
		err = b->attend(b->ctx, layer, pos, n, fw->q_row, fw->out_row);
	if (err)
		return err;
	for (uint32_t i = 0; i < n * d->heads; i++)
		ops_matmul(fw->heads_out + (size_t)i * hd, fw->out_row + (size_t)i * rank,
			   fw->mix_t + (size_t)(i % d->heads / group) * hd * rank, 1, rank, hd);
	return 0;
}

static void project_mla(struct forward *fw, const struct model_layer *l, uint32_t n, uint32_t pos)
{
	const struct model_dims *d = &fw->m->d;
	uint32_t row = d->rank + d->rope;

	ops_matmul(fw->q, fw->h, l->wq, n, d->dim, d->heads * fw->head_in);
	for (uint32_t i = 0; i < n; i++) {
		float *k_pe = fw->v + (size_t)i * d->rope, *c = fw->k + (size_t)i * d->rank;
		const float *h = fw->h + (size_t)i * d->dim;

		ops_matmul(c, h, l->w_dkv, 1, d->dim, d->rank);
		ops_matmul(k_pe, h, l->w_dkv + (size_t)d->rank * d->dim, 1, d->dim, d->rope);
		ops_rmsnorm(c, c, l->kv_norm, d->rank, d->eps);
		ops_rope(k_pe, rope_at(fw, pos + i), d->rope);
		for (uint32_t j = 0; j < d->heads; j++) {
			float *q = fw->q + ((size_t)i * d->heads + j) * fw->head_in;
			float *q_row = fw->q_row + ((size_t)i * d->heads + j) * row;

			ops_matmul_t(q_row, q, l->w_uk + (size_t)j * d->nope * d->rank, d->nope,
				     d->rank);
			ops_rope(q + d->nope, rope_at(fw, pos + i), d->rope);
			memcpy(q_row + d->rank, q + d->nope, d->rope * sizeof(float));
		}
	}
}

static int attend_mla(struct forward *fw, const struct attn_backend *b, uint32_t layer, uint32_t n,
		      uint32_t pos)
{
	const struct model_dims *d = &fw->m->d;
	const struct model_layer *l = &fw->m->layer[layer];
	int err;

	project_mla(fw, l, n, pos);
	err = b->store(b->ctx, layer, pos, n, fw->k, fw->v);
	if (!err)
		err = b->attend(b->ctx, layer, pos, n, fw->q_row, fw->out_row);
	if (err)
		return err;
	for (uint32_t i = 0; i < n * d->heads; i++)
		ops_matmul(fw->heads_out + (size_t)i * d->v, fw->out_row + (size_t)i * d->rank,
			   l->w_uv + (size_t)(i % d->heads) * d->v * d->rank, 1, d->rank, d->v);
	return 0;
}

/* ---- the step ---- */

static void norm_rows(struct forward *fw, const float *weight, uint32_t n)
{
	uint32_t dim = fw->m->d.dim;

	for (uint32_t i = 0; i < n; i++)
		ops_rmsnorm(fw->h + (size_t)i * dim, fw->x + (size_t)i * dim, weight, dim,
			    fw->m->d.eps);
}

static int run_layer(struct forward *fw, const struct attn_backend *b, uint32_t layer, uint32_t n,
		     uint32_t pos)
{
	const struct model_dims *d = &fw->m->d;
	const struct model_layer *l = &fw->m->layer[layer];
	int err;

	norm_rows(fw, l->attn_norm, n);
	if (fw->shape.kind == FORWARD_GQA)
		err = attend_gqa(fw, b, layer, n, pos);
	else if (d->attn == MODEL_GQA)
		err = attend_as_mla(fw, b, layer, n, pos);
	else
		err = attend_mla(fw, b, layer, n, pos);
	if (err)
		return err;
	ops_matmul(fw->h, fw->heads_out, l->wo, n, d->heads * fw->head_out, d->dim);
	ops_add(fw->x, fw->h, n * d->dim);

	norm_rows(fw, l->ffn_norm, n);
	ops_matmul(fw->gate, fw->h, l->w1, n, d->dim, d->hidden);
	ops_matmul(fw->up, fw->h, l->w3, n, d->dim, d->hidden);
	ops_swiglu(fw->gate, fw->up, n * d->hidden);
	ops_matmul(fw->h, fw->gate, l->w2, n, d->hidden, d->dim);
	ops_add(fw->x, fw->h, n * d->dim);
	return 0;
}

int forward_step(struct forward *fw, const struct attn_backend *b, const uint32_t *tokens,
		 uint32_t n, uint32_t pos, float *logits)
{
	const struct model *m = fw->m;
	uint32_t dim = m->d.dim;
	float *last;

	if (!n || n > fw->max_chunk || pos >= m->d.max_pos || n > m->d.max_pos - pos)
		return -EINVAL;
	for (uint32_t i = 0; i < n; i++)
		if (tokens[i] >= m->d.vocab)
			return -EINVAL;
	for (uint32_t i = 0; i < n; i++)
		memcpy(fw->x + (size_t)i * dim, m->embed + (size_t)tokens[i] * dim,
		       dim * sizeof(float));
	for (uint32_t layer = 0; layer < m->d.layers; layer++) {
		int err = run_layer(fw, b, layer, n, pos);

		if (err)
			return err;
	}
	if (!logits)
		return 0;
	last = fw->x + (size_t)(n - 1) * dim;
	ops_rmsnorm(last, last, m->final_norm, dim, m->d.eps);
	ops_matmul(logits, last, m->classifier, 1, dim, m->d.vocab);
	return 0;
}
