// SPDX-License-Identifier: Apache-2.0
/* kv_mla_step() against DeepSeek-V3's formulas in float64 (mla_ref.h), and those against the
 * figures that the published reference module gives. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#include "mla_ref.h"
#include "pool_test.h"

#define MAX_SEQS 8u

/* ---- models ---------------------------------------------------------------------------------- */

/* The published module: D 64, 4 heads of 16, latents 24 and 32, rope 8; u(seed) / sqrt(fan_in). */
static struct ref_model m01_model(void)
{
	struct ref_model m = {.hidden = 64, .heads = 4, .nope = 16, .rope = 8, .v = 16,
			      .rank = 32, .q_rank = 24, .eps = 1e-6, .theta = 1e4};
	double *uq = ref_matrix(64, 24, 2, 24), *qr = ref_matrix(32, 24, 3, 24);
	double *dkv = ref_matrix(32, 64, 4, 64), *kr = ref_matrix(8, 64, 7, 64);
	double *uk = ref_matrix(64, 32, 5, 32), *uv = ref_matrix(64, 32, 6, 32);

	m.wq_a = ref_matrix(24, 64, 1, 64);
	m.wq_b = ref_interleave(uq, 16, qr, 8, 4, 24);
	m.wkv_a = ref_interleave(dkv, 32, kr, 8, 1, 64);
	m.wkv_b = ref_interleave(uk, 16, uv, 16, 4, 32);
	m.wo = ref_matrix(64, 64, 8, 64);
	free(uq);
	free(qr);
	free(dkv);
	free(kr);
	free(uk);
	free(uv);
	return m;
}

/* DeepSeek-V3's heads, latents and YaRN on a small hidden size. */
static struct ref_model v3_model(uint32_t heads, uint32_t q_rank)
{
	struct ref_model m = {.hidden = 160, .heads = heads, .nope = 128, .rope = 64, .v = 128,
			      .rank = 512, .q_rank = q_rank, .eps = 1e-6, .theta = 1e4,
			      .yarn_factor = 40, .yarn_original = 4096, .yarn_mscale = 1};
	uint32_t i;

	if (q_rank) {
		m.wq_a = ref_matrix(q_rank, 160, 11, 40);
		m.wq_b = ref_matrix(heads * 192, q_rank, 12, q_rank / 3.0);
		m.q_norm = ref_matrix(1, q_rank, 13, 9);
		for (i = 0; i < q_rank; i++)
			m.q_norm[i] += 1;
	} else {
		m.wq = ref_matrix(heads * 192, 160, 12, 40);
	}
	m.wkv_a = ref_matrix(576, 160, 14, 40);
	m.wkv_b = ref_matrix(heads * 256, 512, 15, 170);
	m.wo = ref_matrix(160, heads * 128, 16, heads * 128);
	m.kv_norm = ref_matrix(1, 512, 17, 9);
	for (i = 0; i < 512; i++)
		m.kv_norm[i] += 1;
	return m;
}

static double *hidden_states(const struct ref_model *m, uint32_t n, uint32_t seed)
{
	return ref_matrix(n, m->hidden, seed, 1);
}

static void round_all(double *x, size_t n)
{
	size_t i;

	for (i = 0; x && i < n; i++)
		x[i] = ref_bf16(x[i]);
}

static void round_weights(struct ref_model *m)
{
	size_t q = (size_t)m->heads * (m->nope + m->rope);

	round_all(m->wq, q * m->hidden);
	round_all(m->wq_a, (size_t)m->q_rank * m->hidden);
	round_all(m->wq_b, q * m->q_rank);
	round_all(m->wkv_a, (size_t)(m->rank + m->rope) * m->hidden);
	round_all(m->wkv_b, (size_t)m->heads * (m->nope + m->v) * m->rank);
	round_all(m->wo, (size_t)m->hidden * m->heads * m->v);
}

/* ---- the layer on pages ---------------------------------------------------------------------- */

struct layer {
	struct kv *kv;
	struct kv_cache *cache;
	struct kv_mla *mla;
	struct kv_rope rope;
	struct kv_seq *seq[MAX_SEQS];
	uint32_t hidden, heads;
};

static void *convert(const double *x, size_t n, uint32_t dtype)
{
	char *to = malloc(n * 4 + 1);
	size_t i;

	for (i = 0; i < n; i++) {
		float f = (float)(dtype == KV_BF16 ? ref_bf16(x[i]) : x[i]);

		if (dtype == KV_BF16)
			memcpy(to + 2 * i, (char *)&f + 2, 2);
		else
			memcpy(to + 4 * i, &f, 4);
	}
	return to;
}

static void make_rope(struct layer *l, const struct ref_model *m)
{
	struct kv_rope_params r = {.dim = m->rope, .theta = m->theta, .max_positions = 4096,
				   .pairing = m->halves ? KV_ROPE_HALVES : KV_ROPE_ADJACENT};

	if (m->yarn_factor) {
		r.max_positions = 163840;
		r.nr = 4096;
		r.original_positions = (uint32_t)m->yarn_original;
		r.factor = m->yarn_factor;
		r.mscale = r.mscale_all_dim = m->yarn_mscale;
	}
	ok(kv_rope_init(&l->rope, &r));
}

struct how {
	uint32_t weights, cache, scale, row_tile, page_tokens;
	bool premultiply;
};

static void make_mla(struct layer *l, const struct ref_model *m, const struct how *how)
{
	struct kv_mla_params p = {.hidden = m->hidden, .heads = m->heads, .nope = m->nope,
				  .rope = m->rope, .v_dim = m->v, .rank = m->rank,
				  .q_rank = m->q_rank, .dtype = how->weights,
				  .rotary = &l->rope, .premultiply = how->premultiply,
				  .row_tile = how->row_tile};
	size_t q = (size_t)m->heads * (m->nope + m->rope);

	if (m->q_rank) {
		p.wq_a = convert(m->wq_a, (size_t)m->q_rank * m->hidden, p.dtype);
		p.wq_b = convert(m->wq_b, q * m->q_rank, p.dtype);
	} else {
		p.wq = convert(m->wq, q * m->hidden, p.dtype);
	}
	p.wkv_a = convert(m->wkv_a, (size_t)(m->rank + m->rope) * m->hidden, p.dtype);
	p.wkv_b = convert(m->wkv_b, (size_t)m->heads * (m->nope + m->v) * m->rank, p.dtype);
	p.wo = convert(m->wo, (size_t)m->hidden * m->heads * m->v, p.dtype);
	p.q_norm = m->q_norm ? convert(m->q_norm, m->q_rank, KV_F32) : NULL;
	p.kv_norm = m->kv_norm ? convert(m->kv_norm, m->rank, KV_F32) : NULL;
	ok(kv_mla_create(&p, &l->mla));
	free((void *)p.wq);
	free((void *)p.wq_a);
	free((void *)p.wq_b);
	free((void *)p.wkv_a);
	free((void *)p.wkv_b);
	free((void *)p.wo);
	free((void *)p.q_norm);
	free((void *)p.kv_norm);
}

static const float scale_of_all = 1 / 64.0f;	/* where a layout has KV_SCALE_HEAD */

static void layer_open(struct layer *l, const struct ref_model *m, const struct how *how)
{
	struct kv_cache_params c = {.model = "mla", .nr_groups = 1};
	const float scales[2] = {scale_of_all, scale_of_all};
	uint32_t i;

	memset(l, 0, sizeof(*l));
	l->hidden = m->hidden;
	l->heads = m->heads;
	c.group[0].kind = KV_GROUP_FULL;
	c.group[0].layout = (struct kv_layout){.kind = KV_MLA, .dtype = how->cache, .layers = 2,
					       .scale = how->scale,
					       .rank = m->rank, .rope = m->rope,
					       .page_tokens = how->page_tokens ? how->page_tokens
									       : 16};
	c.group[0].k_scale = how->scale == KV_SCALE_HEAD ? scales : NULL;
	ok(kv_open("embedded:host:32M", NULL, &l->kv));
	ok(kv_cache_open(l->kv, &c, &l->cache));
	for (i = 0; i < MAX_SEQS; i++)
		ok(kv_seq_create(l->cache, NULL, 0, &l->seq[i]));
	make_rope(l, m);
	make_mla(l, m, how);
}

static void layer_close(struct layer *l)
{
	uint32_t i;

	for (i = 0; i < MAX_SEQS; i++)
		kv_seq_release(l->seq[i]);
	kv_mla_destroy(l->mla);
	kv_rope_fini(&l->rope);
	kv_cache_close(l->cache);
	kv_close(l->kv);
}

/* Appends n tokens to each of batch sequences and runs them through the layer, h [batch][n]. */
static float *feed(struct layer *l, const struct ref_model *m, uint32_t batch,
		   const double *const *h, uint32_t n, uint32_t shift, float *lse)
{
	static uint32_t tokens[512];
	size_t width = (size_t)n * m->hidden, i;
	float *x = malloc(sizeof(*x) * batch * width), *out = malloc(sizeof(*out) * batch * width);
	uint32_t positions[MAX_SEQS], b;
	struct kv_mla_step s = {.layer = 1, .batch = batch, .q_len = n, .seqs = l->seq, .x = x,
				.out = out, .lse = lse, .positions = shift ? positions : NULL,
				.k_scale = &scale_of_all};

	for (b = 0; b < batch; b++) {
		positions[b] = kv_seq_len(l->seq[b]) + shift;
		ok(kv_seq_append(l->seq[b], tokens, n));
		for (i = 0; i < width; i++)
			x[b * width + i] = (float)h[b][i];
	}
	for (i = 0; i < batch * width; i++)
		out[i] = NAN;
	for (i = 0; lse && i < (size_t)batch * n * m->heads; i++)
		lse[i] = NAN;
	ok(kv_mla_step(l->mla, l->cache, &s));
	free(x);
	return out;
}

static double norm_of(const double *x, uint32_t n)
{
	double sum = 0;
	uint32_t i;

	for (i = 0; i < n; i++)
		sum += x[i] * x[i];
	return sqrt(sum);
}

static double distance(const float *got, const double *want, uint32_t n)
{
	double sum = 0;
	uint32_t i;

	for (i = 0; i < n; i++)
		sum += (got[i] - want[i]) * (got[i] - want[i]);
	return sqrt(sum) / norm_of(want, n);
}

/* ---- the reference itself -------------------------------------------------------------------- */

static void near(double got, double want, double limit)
{
	if (!(fabs(got - want) <= limit))
		fail_msg("%.15g is not %.15g +- %g", got, want, limit);
}

static void published_figures(void **state)
{
	static const double out5[6] = {-0.187087254, 0.029741685, 0.0267646421, -0.107775174,
				       0.00273125576, -0.03467144};
	static const double lse5[4] = {1.93865235, 1.81859624, 1.82768224, 1.65377678};
	static const struct {
		uint32_t query;
		double norm, out0, lse0;
	} figure[] = {{0, 2.49769819255, 0.146886484616, 0.247813012302},
		      {1, 1.65806359577, -0.0636554694391, 0.657537712276},
		      {5, 1.01092186705, -0.187087254, 1.93865235},
		      {63, 0.417787098537, -0.0438483253266, 4.22875703432}};
	struct ref_model m = m01_model();
	double *h = hidden_states(&m, 64, 9), *rows = ref_rows(&m, h, 64, 0);
	double out[3][64], lse[3][4];
	uint32_t f, i, mode;

	(void)state;
	for (f = 0; f < 4; f++) {
		for (mode = 0; mode < 3; mode++)
			ref_layer(&m, rows, h, figure[f].query, 0, mode, out[mode], lse[mode]);
		near(norm_of(out[0], 64), figure[f].norm, 1e-9);
		near(out[0][0], figure[f].out0, 1e-9);
		near(lse[0][0], figure[f].lse0, 1e-8);
		for (i = 0; i < 64; i++) {
			near(out[1][i], out[0][i], 1e-12);
			near(out[2][i], out[0][i], 1e-12);
		}
		for (i = 0; i < 4; i++) {
			near(lse[1][i], lse[0][i], 1e-12);
			if (figure[f].query == 5)
				near(lse[0][i], lse5[i], 1e-8);
		}
		for (i = 0; figure[f].query == 5 && i < 6; i++)
			near(out[0][i], out5[i], 1e-9);
	}
	free(h);
	free(rows);
	ref_free(&m);
}

static void reference_is_relative(void **state)
{
	struct ref_model m = m01_model();
	double *h = hidden_states(&m, 6, 9), *rows = ref_rows(&m, h, 6, 0);
	double *far = ref_rows(&m, h, 6, 1000), out[2][64], lse[2][4];
	uint32_t i;

	(void)state;
	ref_layer(&m, rows, h, 5, 0, REF_ABSORBED, out[0], lse[0]);
	ref_layer(&m, far, h, 5, 1000, REF_ABSORBED, out[1], lse[1]);
	for (i = 0; i < 64; i++)
		near(out[1][i], out[0][i], 1e-12);
	free(h);
	free(rows);
	free(far);
	ref_free(&m);
}

/* ---- the published module on pages ----------------------------------------------------------- */

static void published_module(bool premultiply)
{
	static const uint32_t queries[] = {0, 1, 5, 63};
	struct how how = {.weights = KV_F32, .cache = KV_F32, .premultiply = premultiply};
	struct ref_model m = m01_model();
	double *h = hidden_states(&m, 64, 9), *rows = ref_rows(&m, h, 64, 0), want[64], lse[4];
	float got_lse[64 * 4], *got;
	struct layer l;
	uint32_t f, i;

	layer_open(&l, &m, &how);
	got = feed(&l, &m, 1, (const double *const *)&h, 64, 0, got_lse);
	for (f = 0; f < 4; f++) {
		ref_layer(&m, rows, h, queries[f], 0, REF_MATERIALISED, want, lse);
		for (i = 0; i < 64; i++)
			near(got[queries[f] * 64 + i], want[i], 2e-6);
		for (i = 0; i < 4; i++)
			near(got_lse[queries[f] * 4 + i], lse[i], 2e-6);
	}
	free(got);
	free(h);
	free(rows);
	ref_free(&m);
	layer_close(&l);
}

static void published_two_products(void **state)
{
	(void)state;
	published_module(false);
}

static void published_premultiplied(void **state)
{
	(void)state;
	published_module(true);
}

/* Positions of pages do not change, those of the rotation do. */
static void shift_changes_nothing(void **state)
{
	struct how how = {.weights = KV_F32, .cache = KV_F32};
	struct ref_model m = m01_model();
	double *h = hidden_states(&m, 6, 9);
	float *near_out, *far_out, lse[2][6 * 4];
	struct layer l;
	uint32_t i;

	(void)state;
	layer_open(&l, &m, &how);
	near_out = feed(&l, &m, 1, (const double *const *)&h, 6, 0, lse[0]);
	ok(kv_seq_truncate(l.seq[0], 0));
	far_out = feed(&l, &m, 1, (const double *const *)&h, 6, 1000, lse[1]);
	for (i = 0; i < 6 * 64; i++)
		near(far_out[i], near_out[i], 2e-6);
	for (i = 0; i < 6 * 4; i++)
		near(lse[1][i], lse[0][i], 2e-6);
	assert_memory_not_equal(near_out, far_out, 6 * 64 * sizeof(float));
	free(near_out);
	free(far_out);
	free(h);
	ref_free(&m);
	layer_close(&l);
}

/* ---- DeepSeek-V3's shape --------------------------------------------------------------------- */

/* Prefill in two parts, then single tokens: every out of every kind of call against float64. */
static void against_reference(struct ref_model m, const struct how *how, double limit)
{
	enum { FIRST = 9, SECOND = 4, SINGLE = 3, ALL = FIRST + SECOND + SINGLE };
	uint32_t steps[] = {FIRST, SECOND, 1, 1, 1}, at = 0, i, t;
	double *h = hidden_states(&m, ALL, 21), *rows, *want = malloc(sizeof(*want) * m.hidden);
	double *lse = malloc(sizeof(*lse) * m.heads);
	float *got_lse = malloc(sizeof(*got_lse) * FIRST * m.heads);
	struct layer l;

	if (how->weights == KV_BF16) {
		round_weights(&m);
		round_all(h, (size_t)ALL * m.hidden);
	}
	m.bf16_cache = how->cache == KV_BF16;
	rows = ref_rows(&m, h, ALL, 0);
	layer_open(&l, &m, how);
	for (i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
		const double *x = h + (size_t)at * m.hidden;
		float *got = feed(&l, &m, 1, &x, steps[i], 0, got_lse);

		for (t = 0; t < steps[i]; t++) {
			double d;

			/* the first, the last and the middle of a prefill say enough */
			if (t && t + 1 < steps[i] && t != steps[i] / 2)
				continue;
			ref_layer(&m, rows, h, at + t, 0, REF_ABSORBED, want, lse);
			d = distance(got + (size_t)t * m.hidden, want, m.hidden);
			if (!(d <= limit))
				fail_msg("token %u: off by %g, limit %g", at + t, d, limit);
			d = distance(got_lse + (size_t)t * m.heads, lse, m.heads);
			if (!(d <= limit))
				fail_msg("token %u: lse off by %g, limit %g", at + t, d, limit);
		}
		free(got);
		at += steps[i];
	}
	layer_close(&l);
	free(h);
	free(rows);
	free(want);
	free(lse);
	free(got_lse);
	ref_free(&m);
}

static void v3_f32(void **state)
{
	(void)state;
	against_reference(v3_model(128, 96),
			  &(struct how){.weights = KV_F32, .cache = KV_F32, .page_tokens = 5},
			  5e-6);
}

static void v3_without_q_lora(void **state)
{
	(void)state;
	against_reference(v3_model(16, 0), &(struct how){.weights = KV_F32, .cache = KV_F32}, 5e-6);
}

static void v3_premultiplied(void **state)
{
	(void)state;
	against_reference(v3_model(8, 96),
			  &(struct how){.weights = KV_F32, .cache = KV_F32, .premultiply = true},
			  5e-6);
}

static void v3_one_head(void **state)
{
	(void)state;
	against_reference(v3_model(1, 96), &(struct how){.weights = KV_F32, .cache = KV_F32}, 5e-6);
}

static void v3_halves(void **state)
{
	struct ref_model m = v3_model(4, 96);

	(void)state;
	m.halves = true;
	against_reference(m, &(struct how){.weights = KV_F32, .cache = KV_F32}, 5e-6);
}

static void v3_f16_cache(void **state)
{
	(void)state;
	against_reference(v3_model(8, 96), &(struct how){.weights = KV_F32, .cache = KV_F16}, 2e-3);
}

/* An element is off by up to a sixteenth, out by the mean of many; with a wrong scale by all. */
static void v3_8_bits(void **state)
{
	static const struct how how[] = {
		{.weights = KV_F32, .cache = KV_F8, .scale = KV_SCALE_HEAD},
		{.weights = KV_F32, .cache = KV_F8, .scale = KV_SCALE_TOKEN},
		{.weights = KV_BF16, .cache = KV_F8, .scale = KV_SCALE_TOKEN, .page_tokens = 5},
		{.weights = KV_F32, .cache = KV_I8, .scale = KV_SCALE_TOKEN},
		{.weights = KV_BF16, .cache = KV_F8_DS},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(how) / sizeof(*how); i++)
		against_reference(v3_model(8, 96), &how[i], 6e-2);
}

static void v3_bf16(void **state)
{
	(void)state;
	against_reference(v3_model(128, 96),
			  &(struct how){.weights = KV_BF16, .cache = KV_BF16, .page_tokens = 5},
			  6e-3);
}

static void v3_bf16_without_q_lora(void **state)
{
	(void)state;
	against_reference(v3_model(16, 0),
			  &(struct how){.weights = KV_BF16, .cache = KV_BF16, .row_tile = 16},
			  6e-3);
}

static void v3_bf16_premultiplied(void **state)
{
	(void)state;
	against_reference(v3_model(8, 96),
			  &(struct how){.weights = KV_BF16, .cache = KV_BF16, .premultiply = true},
			  6e-3);
}

/* ---- batches --------------------------------------------------------------------------------- */

/* Five sequences of different lengths at once, and each alone. */
static void batch_is_single(uint32_t dtype, uint32_t row_tile, double limit)
{
	enum { N = 5 };
	struct how how = {.weights = dtype, .cache = dtype, .row_tile = row_tile};
	struct ref_model m = v3_model(4, 96);
	const double *h[N];
	float *together, *alone;
	struct layer l;
	uint32_t i;

	layer_open(&l, &m, &how);
	for (i = 0; i < N; i++) {
		h[i] = hidden_states(&m, 32, 40 + i);
		l.seq[0] = l.seq[0];
	}
	for (i = 0; i < N; i++) {
		struct kv_seq *swap = l.seq[0];

		l.seq[0] = l.seq[i];
		l.seq[i] = swap;
		free(feed(&l, &m, 1, &h[i], 3 + 5 * i, 0, NULL));
		swap = l.seq[0];
		l.seq[0] = l.seq[i];
		l.seq[i] = swap;
	}
	together = feed(&l, &m, N, h, 2, 0, NULL);
	for (i = 0; i < N; i++) {
		struct kv_seq *swap = l.seq[0];
		size_t j;

		l.seq[0] = l.seq[i];
		l.seq[i] = swap;
		ok(kv_seq_truncate(l.seq[0], 3 + 5 * i));
		alone = feed(&l, &m, 1, &h[i], 2, 0, NULL);
		for (j = 0; j < 2 * m.hidden; j++) {
			float a = alone[j], b = together[i * 2 * m.hidden + j];

			if (row_tile ? memcmp(&a, &b, sizeof(a)) : !(fabsf(a - b) <= limit))
				fail_msg("sequence %u: %.9g alone, %.9g in the batch", i, a, b);
		}
		free(alone);
		swap = l.seq[0];
		l.seq[0] = l.seq[i];
		l.seq[i] = swap;
	}
	for (i = 0; i < N; i++)
		free((void *)h[i]);
	free(together);
	ref_free(&m);
	layer_close(&l);
}

static void batch_f32(void **state)
{
	(void)state;
	batch_is_single(KV_F32, 0, 1e-5);
}

static void batch_bf16(void **state)
{
	(void)state;
	batch_is_single(KV_BF16, 0, 2e-2);
}

static void batch_to_the_bit(void **state)
{
	(void)state;
	batch_is_single(KV_F32, 4, 0);
	batch_is_single(KV_BF16, 16, 0);
}

/* More rows than one pass takes, padded entries among them, on page tables of the caller's own. */
static void pages_and_padding(void **state)
{
	enum { N = 600 };
	struct how how = {.weights = KV_F32, .cache = KV_F32};
	struct ref_model m = m01_model();
	double *h = hidden_states(&m, 1, 9), *rows = ref_rows(&m, h, 1, 0), want[64], want_lse[4];
	float *x = malloc(sizeof(*x) * N * 64), *lse = malloc(sizeof(*lse) * N * 4);
	static uint64_t ids[N], pte[N];
	static const uint64_t *table[N];
	static uint32_t lens[N];
	struct kv_mla_step s = {.batch = N, .x = x, .out = x, .lse = lse};
	struct kv_mla_info info;
	struct layer l;
	uint32_t i, j;

	(void)state;
	layer_open(&l, &m, &how);
	ok(kv_pages_alloc(l.cache, 0, N, ids));
	ok(kv_pages_pte(l.cache, 0, N, ids, pte));
	ref_layer(&m, rows, h, 0, 0, REF_ABSORBED, want, want_lse);
	for (i = 0; i < N; i++) {
		table[i] = i % 7 == 3 ? NULL : pte + i;
		lens[i] = i % 7 == 3 ? 0 : 1;
		for (j = 0; j < 64; j++)
			x[i * 64 + j] = i % 7 == 3 ? NAN : (float)h[j];
	}
	ok(kv_mla_step_pages(l.mla, l.cache, &s, table, lens));
	for (i = 0; i < N; i++) {
		for (j = 0; j < 64; j++)
			near(x[i * 64 + j], lens[i] ? want[j] : 0, 2e-6);
		for (j = 0; j < 4 && lens[i]; j++)
			near(lse[i * 4 + j], want_lse[j], 2e-6);
		assert_true(lens[i] || (isinf(lse[i * 4]) && lse[i * 4] < 0));
	}
	kv_mla_info(l.mla, &info);
	assert_true(info.scratch_bytes > 0 && info.weight_bytes >= 4 * (64 * 24 + 64 * 64));
	near(info.scale, 1 / sqrt(24), 1e-7);
	ok(kv_pages_free(l.cache, 0, N, ids));
	free(x);
	free(lse);
	free(h);
	free(rows);
	ref_free(&m);
	layer_close(&l);
}

/* ---- at once --------------------------------------------------------------------------------- */

struct worker {
	struct layer *l;
	struct kv_seq *seq;
	const float *x, *want;
	uint32_t wrong;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	float *out = malloc(sizeof(*out) * w->l->hidden);
	struct kv_mla_step s = {.batch = 1, .seqs = &w->seq, .x = w->x, .out = out};
	uint32_t i;

	for (i = 0; i < 20; i++)
		w->wrong += kv_mla_step(w->l->mla, w->l->cache, &s) ||
			    memcmp(out, w->want, sizeof(*out) * w->l->hidden);
	free(out);
	return NULL;
}

static void concurrent(void **state)
{
	struct how how = {.weights = KV_BF16, .cache = KV_BF16};
	struct ref_model m = v3_model(4, 96);
	double *h = hidden_states(&m, 4, 5);
	uint32_t token = 1, i, j;
	struct worker w[4];
	pthread_t thread[4];
	struct layer l;

	(void)state;
	layer_open(&l, &m, &how);
	for (i = 0; i < 4; i++) {
		float *x = malloc(sizeof(*x) * m.hidden), *want = malloc(sizeof(*want) * m.hidden);
		struct kv_mla_step s = {.batch = 1, .seqs = &l.seq[i], .x = x, .out = want};

		for (j = 0; j < m.hidden; j++)
			x[j] = (float)h[i * m.hidden + j];
		ok(kv_seq_append(l.seq[i], &token, 1));
		ok(kv_mla_step(l.mla, l.cache, &s));
		w[i] = (struct worker){&l, l.seq[i], x, want, 0};
	}
	for (i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, work, &w[i]), 0);
	for (i = 0; i < 4; i++) {
		pthread_join(thread[i], NULL);
		assert_int_equal(w[i].wrong, 0);
		free((void *)w[i].x);
		free((void *)w[i].want);
	}
	free(h);
	ref_free(&m);
	layer_close(&l);
}

/* Blocks of products and of attention are the same whoever computes them. */
static void threads_to_the_bit(void **state)
{
	struct how how = {.weights = KV_BF16, .cache = KV_BF16};
	struct ref_model m = v3_model(16, 96);
	const double *h = hidden_states(&m, 40, 5);
	float *one, *three;
	struct layer l;

	(void)state;
	layer_open(&l, &m, &how);
	one = feed(&l, &m, 1, &h, 40, 0, NULL);
	ok(kv_seq_truncate(l.seq[0], 0));
	ok(kv_threads_set(3));
	three = feed(&l, &m, 1, &h, 40, 0, NULL);
	ok(kv_threads_set(1));
	assert_memory_equal(one, three, 40 * m.hidden * sizeof(*one));
	free(one);
	free(three);
	free((void *)h);
	ref_free(&m);
	layer_close(&l);
}

static uint32_t threads(void)
{
	DIR *d = opendir("/proc/self/task");
	uint32_t n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* A step makes no threads, however many OpenMP may use, and leaves that setting alone. */
static void no_threads(void **state)
{
	struct how how = {.weights = KV_BF16, .cache = KV_BF16};
	struct ref_model m = v3_model(16, 96);
	const double *h = hidden_states(&m, 8, 5);
	int (*get)(void);
	void (*set)(int);
	struct layer l;
	void *openmp;
	uint32_t before;

	(void)state;
	openmp = dlopen("libgomp.so.1", RTLD_NOW);
	if (!openmp) {
		print_message("skip no_threads: there is no libgomp\n");
		skip();
	}
	get = (int (*)(void))dlsym(openmp, "omp_get_max_threads");
	set = (void (*)(int))dlsym(openmp, "omp_set_num_threads");
	set(1);
	layer_open(&l, &m, &how);
	set(5);
	before = threads();
	kv_mla_destroy(l.mla);
	make_mla(&l, &m, &how);
	free(feed(&l, &m, 1, &h, 8, 0, NULL));
	assert_int_equal(threads(), before);
	assert_int_equal(get(), 5);
	layer_close(&l);
	dlclose(openmp);
	free((void *)h);
	ref_free(&m);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void bad_parameters(void **state)
{
	static float w[64 * 64];
	struct kv_rope_params rp = {.dim = 8, .max_positions = 16};
	struct kv_rope rope;
	struct kv_mla_params good = {.hidden = 16, .heads = 2, .nope = 8, .rope = 8, .v_dim = 8,
				     .rank = 16, .dtype = KV_F32, .wq = w, .wkv_a = w, .wkv_b = w,
				     .wo = w, .rotary = &rope}, p;
	struct kv_mla *mla;

	(void)state;
	ok(kv_rope_init(&rope, &rp));
#define REFUSED(word, ...) \
	do { \
		p = good; \
		__VA_ARGS__; \
		refused(kv_mla_create(&p, &mla), -EINVAL, word); \
	} while (0)
	REFUSED("heads is 0", p.heads = 0);
	REFUSED("rank is 577", p.rank = 577);
	REFUSED("hidden", p.hidden = 0);
	REFUSED("row_tile is 65", p.row_tile = 65);
	REFUSED("dtype", p.dtype = KV_F16);
	REFUSED("wkv_a", p.wkv_a = NULL);
	REFUSED("wq is wanted", p.wq = NULL);
	REFUSED("wq is wanted", p.wq_a = w);
	REFUSED("wq_a and wq_b are wanted", p.q_rank = 8);
	REFUSED("q_norm", p.q_norm = w);
	REFUSED("rotary", p.rope = 16);
	REFUSED("rotary", p.rotary = NULL);
	REFUSED("eps", p.eps = -1);
	refused(kv_mla_create(NULL, &mla), -EINVAL, "NULL");
	ok(kv_mla_create(&good, &mla));
	kv_mla_destroy(mla);
	kv_mla_destroy(NULL);
	kv_rope_fini(&rope);
}

static void bad_steps(void **state)
{
	struct how how = {.weights = KV_F32, .cache = KV_F32};
	struct ref_model m = m01_model();
	float x[64] = {0}, out[64];
	uint32_t token = 1, at, len;
	struct layer l;
	struct kv_mla_step good, s;

	(void)state;
	layer_open(&l, &m, &how);
	ok(kv_seq_append(l.seq[0], &token, 1));
	good = (struct kv_mla_step){.batch = 1, .seqs = l.seq, .x = x, .out = out};
#undef REFUSED
#define REFUSED(word, ...) \
	do { \
		s = good; \
		__VA_ARGS__; \
		refused(kv_mla_step(l.mla, l.cache, &s), -EINVAL, word); \
	} while (0)
	REFUSED("group 1", s.group = 1);
	REFUSED("layer 2", s.layer = 2);
	REFUSED("dtype", s.dtype = KV_F16);
	REFUSED("x or out", s.x = NULL);
	REFUSED("x or out", s.out = NULL);
	REFUSED("seqs", s.seqs = NULL);
	REFUSED("fewer than its 2", s.q_len = 2);
	REFUSED("positions 4096", s.positions = &at; at = 4096);
	REFUSED("positions 4294967295", s.positions = &at; at = UINT32_MAX);
	REFUSED("2 tokens", s.lens = &len; len = 2);
	refused(kv_mla_step_pages(l.mla, l.cache, &good, NULL, NULL), -EINVAL, "page tables");
	ok(kv_mla_step(l.mla, l.cache, &good));
	ok(kv_seq_commit(l.seq[0], 1));
	REFUSED("committed", (void)0);
	good.batch = 0;
	ok(kv_mla_step(l.mla, l.cache, &good));
	ref_free(&m);
	layer_close(&l);
}

enum { LONG = 600 };	/* tokens, more than a step takes at once */

/* All bytes of a sequence's pages; overwrites them first. */
static void mark_pages(struct kv_seq *s)
{
	uint32_t nr, i;
	const uint64_t *pte = kv_seq_pte(s, 0, &nr);

	for (i = 0; i < nr; i++)
		memset((void *)(uintptr_t)pte[i], 0x5a, 16 * 40 * sizeof(float));
}

static bool marked(struct kv_seq *s)
{
	uint32_t nr, i, j;
	const uint64_t *pte = kv_seq_pte(s, 0, &nr);

	for (i = 0; i < nr; i++)
		for (j = 0; j < 16 * 40 * sizeof(float); j++)
			if (((const uint8_t *)(uintptr_t)pte[i])[j] != 0x5a)
				return false;
	return true;
}

/* Entry 0 is fine and entry 1 is not, or both are asked for too much: no row is written. */
static void a_refused_step_writes_nothing(void **state)
{
	struct how how = {.weights = KV_F32, .cache = KV_F32};
	struct ref_model m = m01_model();
	static uint32_t tokens[LONG];
	static float x[2 * LONG * 64], out[2 * LONG * 64];
	struct layer l, other;
	uint32_t i, lens[2] = {LONG, LONG};
	struct kv_seq *two[2];
	const uint64_t *pte[2];
	struct kv_mla_step s = {.batch = 2, .q_len = 1, .seqs = two, .x = x, .out = out};

	(void)state;
	for (i = 0; i < 2 * LONG * 64; i++)
		x[i] = 1;
	layer_open(&l, &m, &how);
	layer_open(&other, &m, &how);
	for (i = 0; i < 4; i++)
		ok(kv_seq_append(l.seq[i], tokens, LONG));
	ok(kv_seq_append(other.seq[0], tokens, LONG));
	ok(kv_seq_commit(l.seq[2], LONG));
	ok(kv_seq_commit(l.seq[3], LONG));
	ok(kv_seq_park(l.seq[3]));
	two[0] = l.seq[0];
	two[1] = l.seq[1];
	pte[0] = kv_seq_pte(two[0], 0, NULL);
	pte[1] = NULL;
	mark_pages(two[0]);
	mark_pages(two[1]);
	mark_pages(other.seq[0]);
#undef REFUSED
#define REFUSED(word) \
	do { \
		refused(kv_mla_step(l.mla, l.cache, &s), -EINVAL, word); \
		assert_true(marked(l.seq[0]) && marked(l.seq[1]) && marked(other.seq[0])); \
	} while (0)
	s.q_len = 513;
	REFUSED("at most 512");
	s.q_len = 1;
	two[1] = other.seq[0];
	REFUSED("sequence 1 is of another cache");
	two[1] = l.seq[2];
	REFUSED("committed");
	two[1] = l.seq[3];
	REFUSED("parked");
	two[1] = NULL;
	REFUSED("sequence 1 is NULL");
	two[1] = l.seq[1];
	lens[1] = LONG + 1;
	s.lens = lens;
	REFUSED("601 tokens");
	lens[1] = LONG;
	refused(kv_mla_step_pages(l.mla, l.cache, &s, pte, lens), -EINVAL, "table 1 is NULL");
	assert_true(marked(two[0]));
	s.q_len = 512;
	ok(kv_mla_step(l.mla, l.cache, &s));
	assert_false(marked(two[0]) || marked(two[1]));
	ref_free(&m);
	layer_close(&l);
	layer_close(&other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(published_figures),
		cmocka_unit_test(reference_is_relative),
		cmocka_unit_test(published_two_products),
		cmocka_unit_test(published_premultiplied),
		cmocka_unit_test(shift_changes_nothing),
		cmocka_unit_test(v3_f32),
		cmocka_unit_test(v3_without_q_lora),
		cmocka_unit_test(v3_premultiplied),
		cmocka_unit_test(v3_one_head),
		cmocka_unit_test(v3_halves),
		cmocka_unit_test(v3_f16_cache),
		cmocka_unit_test(v3_8_bits),
		cmocka_unit_test(v3_bf16),
		cmocka_unit_test(v3_bf16_without_q_lora),
		cmocka_unit_test(v3_bf16_premultiplied),
		cmocka_unit_test(batch_f32),
		cmocka_unit_test(batch_bf16),
		cmocka_unit_test(batch_to_the_bit),
		cmocka_unit_test(pages_and_padding),
		cmocka_unit_test(concurrent),
		cmocka_unit_test(threads_to_the_bit),
		cmocka_unit_test(no_threads),
		cmocka_unit_test(bad_parameters),
		cmocka_unit_test(bad_steps),
		cmocka_unit_test(a_refused_step_writes_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
