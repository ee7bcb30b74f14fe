// SPDX-License-Identifier: Apache-2.0
/* 8-bit pages from end to end: rotated and quantised by the store, committed, matched, forked and
 * copied on write, attended to; against float64 on the same rows exported to fp32. */
#include "seq_fixture.h"

#include <math.h>

#define PT	16u
#define HEADS	4u
#define MAX_LEN 192u
#define MAX_ROW 144u /* of all KV heads */

static struct fix f;
static struct kv_rope rope;
static float k_rows[2 * MAX_LEN * MAX_ROW], v_rows[2 * MAX_LEN * MAX_ROW];
static float q[HEADS * MAX_ROW], out[HEADS * MAX_ROW], lse[HEADS];
static const float k_scale[2] = {1 / 300.0f, 1 / 170.0f}, v_scale[2] = {1 / 256.0f, 1 / 333.0f};

static struct kv_layout layout8(uint32_t kind, uint32_t dtype, uint32_t scale)
{
	struct kv_layout l = fix_layout(kind, dtype, PT);

	l.scale = scale;
	if (kind == KV_MLA) {
		l.rank = 128;
		l.rope = 16;
	}
	return l;
}

static uint32_t rope_dim(const struct kv_layout *l)
{
	return l->kind == KV_MLA ? l->rope : l->head_dim;
}

static void append(struct kv_seq *s, const uint32_t *tokens, uint32_t n)
{
	const struct kv_layout *l = &f.params.group[0].layout;
	uint32_t pos = kv_seq_len(s), vw, kw = fix_widths(l, &vw), i;
	struct kv_store rows = {.pos = pos, .n = n, .k = k_rows, .v = v_rows, .rope = &rope};

	if (l->scale == KV_SCALE_HEAD) {
		rows.k_scale = k_scale;
		rows.v_scale = v_scale;
	}
	assert_int_equal(kv_seq_append(s, tokens + pos, n), 0);
	for (rows.layer = 0; rows.layer < l->layers; rows.layer++) {
		for (i = 0; i < n; i++) {
			uint64_t h = fix_history(tokens, pos + i, 0);

			fix_row(h, 0, rows.layer, k_rows + i * kw, kw, 0);
			fix_row(h, 0, rows.layer, v_rows + i * vw, vw, 1);
		}
		if (kv_seq_store_rows(s, &rows))
			fail_msg("%s", kv_error());
	}
}

/* The sequence's rows of a layer in k_rows and v_rows, head by head, by way of fp32 pages. */
static void export_rows(const struct kv_seq *s, uint32_t layer)
{
	static float page[MAX_LEN * 2 * MAX_ROW] __attribute__((aligned(64)));
	const struct kv_layout *l = &f.params.group[0].layout;
	struct kv_layout plain = *l;
	uint64_t pte[1] = {(uintptr_t)page};
	const struct kv_rows to = {.layout = &plain, .pte = pte};
	struct kv_rows from = {.layout = l, .layer = layer, .pte = kv_seq_pte(s, 0, NULL)};
	uint32_t len = kv_seq_len(s), t, head;
	struct kv_view v;

	if (l->scale == KV_SCALE_HEAD) {
		from.k_scale = k_scale;
		from.v_scale = v_scale;
	}
	plain.dtype = KV_F32;
	plain.scale = 0;
	plain.layers = 1;
	plain.page_tokens = MAX_LEN;
	if (kv_convert_rows(&to, 0, &from, 0, len) || kv_layout_view(&plain, 0, &v))
		fail_msg("%s", kv_error());
	for (head = 0; head < (l->kind == KV_MLA ? 1 : l->kv_heads); head++)
		for (t = 0; t < len; t++) {
			const char *row = (char *)page + head * v.head_stride + t * v.k_row;
			const char *val = (char *)page + head * v.head_stride + v.v_off +
					  t * v.v_row;

			memcpy(k_rows + ((uint64_t)head * MAX_LEN + t) * MAX_ROW, row, v.k_row);
			if (l->kind == KV_GQA)
				memcpy(v_rows + ((uint64_t)head * MAX_LEN + t) * MAX_ROW, val,
				       v.v_row);
		}
}

static void check_head(const struct kv_layout *l, uint32_t len, uint32_t head, float scale)
{
	bool mla = l->kind == KV_MLA;
	uint32_t kw = mla ? l->rank + l->rope : l->head_dim, vw = mla ? l->rank : l->head_dim_v;
	uint64_t first = mla ? 0 : (uint64_t)(head / (HEADS / l->kv_heads)) * MAX_LEN;
	double p[MAX_LEN], sum = 0, err = 0, norm = 0, want;
	uint32_t t, c;

	for (t = 0; t < len; t++) {
		double s = 0;

		for (c = 0; c < kw; c++)
			s += (double)q[head * kw + c] * k_rows[(first + t) * MAX_ROW + c];
		sum += p[t] = exp(s * scale);
	}
	assert_true(fabs(lse[head] - log(sum)) < 1e-5);
	for (c = 0; c < vw; c++) {
		const float *v = mla ? k_rows : v_rows;

		for (want = 0, t = 0; t < len; t++)
			want += p[t] / sum * v[(first + t) * MAX_ROW + c];
		err += (out[head * vw + c] - want) * (out[head * vw + c] - want);
		norm += want * want;
	}
	if (!(sqrt(err) <= 1e-5 * sqrt(norm)))
		fail_msg("head %u of %u tokens: error %g of %g", head, len, sqrt(err), sqrt(norm));
}

static void check(struct kv_seq *s)
{
	const struct kv_layout *l = &f.params.group[0].layout;
	struct kv_attn a = {.batch = 1,
			    .seqs = &s,
			    .heads = HEADS,
			    .q = q,
			    .out = out,
			    .lse = lse,
			    .scale = 0.11f};
	uint32_t i, head;

	if (l->scale == KV_SCALE_HEAD) {
		a.k_scale = k_scale;
		a.v_scale = v_scale;
	}
	for (i = 0; i < HEADS * MAX_ROW; i++)
		q[i] = (float)((int)(i * 37 % 64) - 32) / 64;
	for (a.layer = 0; a.layer < l->layers; a.layer++) {
		memset(out, 0xff, sizeof(out));
		if (kv_attn(f.cache, &a))
			fail_msg("%s", kv_error());
		export_rows(s, a.layer);
		for (head = 0; head < HEADS; head++)
			check_head(l, kv_seq_len(s), head, a.scale);
	}
}

/* What was stored is what was given, rotated, as near as 8 bits are. */
static void check_content(const struct kv_seq *s, const uint32_t *tokens)
{
	const struct kv_layout *l = &f.params.group[0].layout;
	uint32_t vw, kw = fix_widths(l, &vw), t, c, dim = rope_dim(l);
	uint32_t k_dim = l->kind == KV_MLA ? l->rank : l->head_dim;
	float row[MAX_ROW], rope_row[MAX_ROW];

	export_rows(s, 1);
	for (t = 0; t < kv_seq_len(s); t++) {
		uint64_t h = fix_history(tokens, t, 0);
		float *rotated = l->kind == KV_MLA ? rope_row : row;

		fix_row(h, 0, 1, row, kw, 0);
		fix_row(h, 0, 1, rope_row, vw, 1);
		assert_int_equal(kv_rope_apply(&rope, t, rotated, 1, dim), 0);
		for (c = 0; c < k_dim; c++)
			assert_true(fabsf(k_rows[(uint64_t)t * MAX_ROW + c] - row[c]) <= 0.08f);
	}
}

/* Calls give the scales of heads, too: they agree with those of the cache. */
static void open_scaled(struct kv_layout l)
{
	const float k[4] = {k_scale[0], k_scale[l.kind == KV_GQA], k_scale[0], k_scale[1]};
	const float v[4] = {v_scale[0], v_scale[1], v_scale[0], v_scale[1]};

	fix_params(&f, l, 0);
	if (l.scale == KV_SCALE_HEAD) {
		f.params.group[0].k_scale = k;
		f.params.group[0].v_scale = l.kind == KV_GQA ? v : NULL;
	}
	if (kv_open("embedded:host:8M", NULL, &f.kv) ||
	    kv_cache_open(f.kv, &f.params, &f.cache))
		fail_msg("%s", kv_error());
	f.params.group[0].k_scale = f.params.group[0].v_scale = NULL;
}

static void life(uint32_t kind, uint32_t dtype, uint32_t scale)
{
	const struct kv_layout l = layout8(kind, dtype, scale);
	const struct kv_rope_params rp = {.dim = rope_dim(&l), .max_positions = 4096};
	uint32_t tokens[MAX_LEN], hit, i;
	struct kv_seq *s, *fork, *other;

	for (i = 0; i < MAX_LEN; i++)
		tokens[i] = i * 7 + 1;
	open_scaled(l);
	assert_int_equal(kv_rope_init(&rope, &rp), 0);
	assert_int_equal(kv_seq_create(f.cache, NULL, 0, &s), 0);
	append(s, tokens, 100);
	append(s, tokens, 50); /* the seam is inside a page */
	check_content(s, tokens);
	check(s);
	assert_int_equal(kv_seq_commit(s, 150), 0);
	/* a fork writes on: its last page is a copy, scales and all */
	assert_int_equal(kv_seq_fork(s, &fork), 0);
	append(fork, tokens, 5);
	check_content(fork, tokens);
	check(fork);
	check(s);
	assert_int_equal(kv_seq_create(f.cache, NULL, 0, &other), 0);
	assert_int_equal(kv_seq_match(other, tokens, 150, &hit), 0);
	assert_true(hit >= 144);
	append(other, tokens, 160 - hit);
	check_content(other, tokens);
	check(other);
	kv_seq_release(other);
	kv_seq_release(fork);
	kv_seq_release(s);
	kv_rope_fini(&rope);
	fix_close(&f);
}

#define LIFE(name, kind, dtype, scale) \
	static void name(void **state) \
	{ \
		(void)state; \
		life(kind, dtype, scale); \
	}

LIFE(gqa_f8, KV_GQA, KV_F8, KV_SCALE_NONE)
LIFE(gqa_f8_head, KV_GQA, KV_F8, KV_SCALE_HEAD)
LIFE(gqa_f8_token, KV_GQA, KV_F8, KV_SCALE_TOKEN)
LIFE(gqa_i8_token, KV_GQA, KV_I8, KV_SCALE_TOKEN)
LIFE(mla_f8_token, KV_MLA, KV_F8, KV_SCALE_TOKEN)
LIFE(mla_f8_head, KV_MLA, KV_F8, KV_SCALE_HEAD)
LIFE(mla_i8_token, KV_MLA, KV_I8, KV_SCALE_TOKEN)
LIFE(mla_f8_ds, KV_MLA, KV_F8_DS, KV_SCALE_NONE)

/* Pages of one model have one meaning. */
static void scales_are_identity(void **state)
{
	struct kv_cache *other;
	uint32_t scale;

	(void)state;
	fix_open(&f, "embedded:host:8M", layout8(KV_GQA, KV_F8, KV_SCALE_TOKEN), 0);
	for (scale = KV_SCALE_NONE; scale <= KV_SCALE_TOKEN; scale++) {
		f.params.group[0].layout.scale = scale;
		if (scale == KV_SCALE_TOKEN) {
			assert_int_equal(kv_cache_open(f.kv, &f.params, &other), 0);
			kv_cache_close(other);
		} else {
			assert_int_equal(kv_cache_open(f.kv, &f.params, &other), -EINVAL);
			assert_non_null(strstr(kv_error(), "another layout"));
		}
	}
	fix_close(&f);
}

static void stores_refuse(void **state)
{
	static float row[MAX_ROW];
	const struct kv_rope_params rp = {.dim = 16, .max_positions = 100, .nr = 3};
	struct kv_store rows = {.n = 4, .k = row, .v = row};
	uint32_t tokens[4] = {0};
	struct kv_seq *s;

	(void)state;
	fix_open(&f, "embedded:host:8M", layout8(KV_GQA, KV_F8, KV_SCALE_TOKEN), 0);
	assert_int_equal(kv_rope_init(&rope, &rp), 0);
	assert_int_equal(kv_seq_create(f.cache, NULL, 0, &s), 0);
	assert_int_equal(kv_seq_append(s, tokens, 4), 0);
	assert_int_equal(kv_seq_store_rows(s, NULL), -EINVAL);
	rows.rope = &rope;
	assert_int_equal(kv_seq_store_rows(s, &rows), -EINVAL);
	assert_non_null(strstr(kv_error(), "position 3"));
	rows.rope = NULL;
	rows.dtype = KV_F8;
	assert_int_equal(kv_seq_store_rows(s, &rows), -EINVAL);
	assert_int_equal(kv_convert_rows(NULL, 0, NULL, 0, 0), -EINVAL);
	kv_seq_release(s);
	kv_rope_fini(&rope);
	fix_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gqa_f8),	cmocka_unit_test(gqa_f8_head),
		cmocka_unit_test(gqa_f8_token), cmocka_unit_test(gqa_i8_token),
		cmocka_unit_test(mla_f8_token), cmocka_unit_test(mla_f8_head),
		cmocka_unit_test(mla_i8_token), cmocka_unit_test(mla_f8_ds),
		cmocka_unit_test(scales_are_identity),
		cmocka_unit_test(stores_refuse),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
