// SPDX-License-Identifier: Apache-2.0
/* The reference against dense attention written out from its definition: own addresses, own
 * conversion, own mask, two passes over an array of scores. */
#include "attn_case.h"

#define MAX_LEN 64

struct dense {
	struct kern_attn at;
	uint32_t len, start, end;
	float *k, *v, *q, *out, *lse; /* k [len][kv_heads][dk], v likewise */
	float *slopes, *sinks;
	char *pages;
	uint64_t pte[MAX_LEN];
};

/* Sixteenths in [-1, 1]: exact in every dtype. */
static float exact(uint64_t *s)
{
	return ((float)attn_below(s, 33) - 16) / 16;
}

/* Bits of such a value in a 16-bit format, from its sign, exponent and leading bits. */
static uint16_t bits16(float f, int mantissa, int bias)
{
	int exp;
	float m = frexpf(fabsf(f), &exp); /* [0.5, 1) */
	uint32_t frac = (uint32_t)ldexpf(2 * m - 1, mantissa);

	if (f == 0)
		return 0;
	return (uint16_t)((f < 0) << 15 | (uint32_t)(exp - 1 + bias) << mantissa | frac);
}

static void put(const struct dense *d, uint64_t at, uint32_t i, float f)
{
	char *p = d->pages + at;

	if (d->at.view.dtype == KERN_F32)
		memcpy(p + i * 4, &f, 4);
	else if (d->at.view.dtype == KERN_F16)
		memcpy(p + i * 2, &(uint16_t){bits16(f, 10, 15)}, 2);
	else
		memcpy(p + i * 2, &(uint16_t){bits16(f, 7, 127)}, 2);
}

/* Page i of the sequence stands at slot nr - 1 - i. */
static void lay_out(struct dense *d, uint64_t *seed)
{
	const struct kern_view *w = &d->at.view;
	uint32_t nr = (d->len + w->page_tokens - 1) / w->page_tokens;
	uint64_t page_bytes =
		w->layer_off + 4ull * w->page_tokens * w->kv_heads * (w->head_dim + w->head_dim_v);
	uint32_t t, h, i;

	d->pages = malloc(nr * page_bytes);
	memset(d->pages, 0xff, nr * page_bytes);
	for (t = 0; t < nr; t++)
		d->pte[t] = (uintptr_t)d->pages + (nr - 1 - t) * page_bytes;
	for (t = 0; t < d->len; t++)
		for (h = 0; h < w->kv_heads; h++) {
			uint64_t page = (nr - 1 - t / w->page_tokens) * page_bytes + w->layer_off;
			uint64_t row = t % w->page_tokens;
			float *k = d->k + (t * w->kv_heads + h) * w->head_dim;
			float *v = d->v + (t * w->kv_heads + h) * w->head_dim_v;
			uint64_t k_at = page + h * w->head_stride + row * w->k_row;
			uint64_t v_at =
				w->kind == KERN_MLA
					? k_at + w->head_dim * kern_dtype_size(w->dtype)
					: page + h * w->head_stride + w->v_off + row * w->v_row;

			for (i = 0; i < w->head_dim; i++)
				put(d, k_at, i, k[i] = exact(seed));
			for (i = 0; i < w->head_dim_v; i++)
				put(d, v_at, i, v[i] = exact(seed));
		}
}

static bool visible(const struct dense *d, uint32_t query, uint32_t t)
{
	int64_t pos = (int64_t)d->len - d->at.q_len + query;

	return t <= pos && t >= d->start && t < d->end && (!d->at.window || pos - t < d->at.window);
}

static double dense_score(const struct dense *d, const float *q, uint32_t query, uint32_t head,
			  uint32_t t)
{
	const struct kern_view *w = &d->at.view;
	uint32_t kv = head / (d->at.heads / w->kv_heads), i;
	double s = 0;

	for (i = 0; i < w->head_dim; i++)
		s += (double)q[i] * d->k[(t * w->kv_heads + kv) * w->head_dim + i];
	if (w->kind == KERN_MLA)
		for (i = 0; i < w->head_dim_v; i++)
			s += (double)q[w->head_dim + i] * d->v[t * w->head_dim_v + i];
	s *= d->at.scale;
	if (d->at.softcap > 0)
		s = d->at.softcap * tanh(s / d->at.softcap);
	if (d->at.alibi)
		s -= d->slopes[head] * ((double)d->len - d->at.q_len + query - t);
	return s;
}

static void check_row(const struct dense *d, uint32_t query, uint32_t head)
{
	const struct kern_view *w = &d->at.view;
	bool mla = w->kind == KERN_MLA;
	uint32_t width = mla ? w->head_dim : w->head_dim_v;
	uint32_t q_width = mla ? w->head_dim + w->head_dim_v : w->head_dim;
	uint32_t kv = head / (d->at.heads / w->kv_heads), row = query * d->at.heads + head, t, i;
	const float *values = mla ? d->k : d->v;
	double s[MAX_LEN], sum = d->at.sinks ? exp(d->sinks[head]) : 0, want;

	for (t = 0; t < d->len; t++)
		if (visible(d, query, t))
			sum += exp(dense_score(d, d->q + row * q_width, query, head, t));
	for (t = 0; t < d->len; t++)
		s[t] = visible(d, query, t)
			       ? exp(dense_score(d, d->q + row * q_width, query, head, t)) / sum
			       : 0;
	for (i = 0; i < width; i++) {
		for (want = 0, t = 0; t < d->len; t++)
			want += s[t] * values[(t * w->kv_heads + kv) * width + i];
		assert_float_equal(d->out[row * width + i], want, 1e-6);
	}
	if (sum == 0)
		assert_true(d->lse[row] == -INFINITY);
	else
		assert_float_equal(d->lse[row], log(sum), 1e-5);
}

static void draw(struct dense *d, uint64_t *s)
{
	bool mla = attn_below(s, 2);
	uint32_t dk = 8 * (1 + attn_below(s, 4)), dv = 8 * (1 + attn_below(s, 4));
	uint32_t dtype = 1 + attn_below(s, 3), size = kern_dtype_size(dtype);
	uint32_t pt = 1 + attn_below(s, 20), row = (dk + dv) * size;

	d->at.view = (struct kern_view){
		.kind = mla ? KERN_MLA : KERN_GQA,
		.dtype = dtype,
		.page_tokens = pt,
		.kv_heads = mla ? 1 : 1 + attn_below(s, 3),
		.head_dim = dk,
		.head_dim_v = dv,
		.layer_off = attn_below(s, 2) * 64,
		.head_stride = mla ? 0 : row * pt,
		.v_off = mla ? 0 : (uint64_t)dk * size * pt,
		.k_row = mla ? row : dk * size,
		.v_row = mla ? 0 : dv * size,
	};
	d->len = attn_below(s, MAX_LEN + 1);
	d->start = attn_below(s, 3) ? 0 : attn_below(s, d->len + 1);
	d->end = attn_below(s, 3) ? UINT32_MAX : attn_below(s, d->len + 1);
	d->at.batch = 1;
	d->at.heads = d->at.view.kv_heads * (1 + attn_below(s, 4));
	d->at.q_len = 1 + attn_below(s, 5);
	d->at.q_dtype = KERN_F32;
	d->at.scale = 0.1f + 0.1f * (float)attn_below(s, 10);
	d->at.softcap = attn_below(s, 2) ? 0 : 0.5f;
	d->at.window = attn_below(s, 2) ? 0 : 1 + attn_below(s, 30);
}

static void fill_heads(struct dense *d, uint64_t *s, uint32_t rows, uint32_t q_width)
{
	uint32_t i;

	for (i = 0; i < rows * q_width; i++)
		d->q[i] = exact(s);
	for (i = 0; i < d->at.heads; i++) {
		d->slopes[i] = 0.1f * (float)(i + 1);
		d->sinks[i] = exact(s);
	}
	d->at.alibi = attn_below(s, 2) ? d->slopes : NULL;
	d->at.sinks = attn_below(s, 2) ? d->sinks : NULL;
}

static void check_one(uint64_t seed)
{
	struct dense d = {0};
	const struct kern_view *w = &d.at.view;
	uint32_t q_width, width, rows, query, head;

	draw(&d, &seed);
	q_width = w->kind == KERN_MLA ? w->head_dim + w->head_dim_v : w->head_dim;
	width = w->kind == KERN_MLA ? w->head_dim : w->head_dim_v;
	rows = d.at.q_len * d.at.heads;
	d.k = malloc((d.len + 1) * w->kv_heads * w->head_dim * 4ull);
	d.v = malloc((d.len + 1) * w->kv_heads * w->head_dim_v * 4ull);
	d.q = malloc(rows * q_width * 4ull);
	d.out = malloc(rows * width * 4ull);
	d.lse = malloc(rows * 4ull);
	d.slopes = malloc(d.at.heads * 4ull);
	d.sinks = malloc(d.at.heads * 4ull);
	fill_heads(&d, &seed, rows, q_width);
	lay_out(&d, &seed);
	d.at.pte = (const uint64_t *const[]){d.pte};
	d.at.kv_len = &d.len;
	d.at.kv_start = &d.start;
	d.at.kv_end = &d.end;
	d.at.q = d.q;
	d.at.out = d.out;
	d.at.lse = d.lse;
	d.at.q_stride_head = q_width;
	d.at.q_stride_tok = d.at.heads * q_width;
	d.at.out_stride_head = width;
	d.at.out_stride_tok = d.at.heads * width;
	assert_int_equal(kern_attn(&d.at, KERN_REF, NULL), 0);
	for (query = 0; query < d.at.q_len; query++)
		for (head = 0; head < d.at.heads; head++)
			check_row(&d, query, head);
	free(d.k);
	free(d.v);
	free(d.q);
	free(d.out);
	free(d.lse);
	free(d.slopes);
	free(d.sinks);
	free(d.pages);
}

static void reference_against_dense(void **state)
{
	uint64_t i;

	(void)state;
	for (i = 0; i < 300; i++)
		check_one(7000 + i);
}

/* Worked by hand: two tokens, logits 0 and ln 3, values 1 and 5: (1 * 1 + 3 * 5) / 4. */
static void by_hand(void **state)
{
	float rows[2][16] = {{0}}, q[8] = {1}, out[8], lse;
	uint64_t pte[1] = {(uintptr_t)rows};
	uint32_t len = 2, i;
	struct kern_attn at = {
		.view = {.kind = KERN_GQA,
			 .dtype = KERN_F32,
			 .page_tokens = 2,
			 .kv_heads = 1,
			 .head_dim = 8,
			 .head_dim_v = 8,
			 .v_off = 32,
			 .k_row = 64,
			 .v_row = 64},
		.batch = 1,
		.heads = 1,
		.q_len = 1,
		.q_dtype = KERN_F32,
		.pte = (const uint64_t *const[]){pte},
		.kv_len = &len,
		.q = q,
		.out = out,
		.lse = &lse,
		.scale = 0.5f,
	};

	(void)state;
	rows[1][0] = 2 * logf(3);
	for (i = 0; i < 8; i++) {
		rows[0][8 + i] = 1;
		rows[1][8 + i] = 5;
	}
	for (enum kern_impl impl = KERN_REF; impl < KERN_NR_IMPL; impl++) {
		if (!kern_impl_usable(impl))
			continue;
		assert_int_equal(attn_run(&at, impl), 0);
		for (i = 0; i < 8; i++)
			assert_float_equal(out[i], 4, 1e-6);
		assert_float_equal(lse, logf(4), 1e-6);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(by_hand),
		cmocka_unit_test(reference_against_dense),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
