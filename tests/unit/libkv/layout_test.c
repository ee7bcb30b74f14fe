// SPDX-License-Identifier: Apache-2.0
/* kv/layout.h against bytes computed by hand, and libkv/layout.h against kv_layout_view() */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <kv/kv.h>

#include "layout.h"

#define GQA(dt, n, h, d, dv, pt) \
	{ \
		.kind = KV_GQA, .dtype = dt, .layers = n, .kv_heads = h, .head_dim = d, \
		.head_dim_v = dv, .page_tokens = pt \
	}
#define MLA(dt, n, r, e, pt) \
	{ \
		.kind = KV_MLA, .dtype = dt, .layers = n, .rank = r, .rope = e, .page_tokens = pt \
	}

#define GQA8(dt, sc, n, h, d, dv, pt) \
	{ \
		.kind = KV_GQA, .dtype = dt, .scale = sc, .layers = n, .kv_heads = h, \
		.head_dim = d, .head_dim_v = dv, .page_tokens = pt \
	}
#define MLA8(dt, sc, n, r, e, pt) \
	{ \
		.kind = KV_MLA, .dtype = dt, .scale = sc, .layers = n, .rank = r, .rope = e, \
		.page_tokens = pt \
	}

static const struct kv_layout llama = GQA(KV_BF16, 32, 8, 128, 128, 64);
static const struct kv_layout deepseek = MLA(KV_BF16, 61, 512, 64, 64);

struct size_case {
	const char *name;
	struct kv_layout layout;
	uint64_t token_bytes, page_bytes;
};

static const struct size_case sizes[] = {
	{"Llama-3-8B", GQA(KV_BF16, 32, 8, 128, 128, 64), 131072, 131072 * 64},
	{"Llama-3-70B", GQA(KV_BF16, 80, 8, 128, 128, 64), 327680, 327680 * 64},
	{"DeepSeek-V3", MLA(KV_BF16, 61, 512, 64, 64), 70272, 70272 * 64},
	{"GLM-4.6", GQA(KV_F16, 92, 8, 128, 128, 16), 376832, 376832 * 16},
	{"falcon-7b", GQA(KV_BF16, 32, 1, 64, 64, 64), 8192, 8192 * 64},
	{"MiMo-V2 (K 192, V 128)", GQA(KV_BF16, 1, 4, 192, 128, 64), 2560, 2560 * 64},
	/* rows of 32 bytes: 64 tokens fill whole lines, 3 tokens (96) are padded to 128 */
	{"stories260K f32", GQA(KV_F32, 5, 4, 8, 8, 64), 1280, 1280 * 64},
	{"stories260K f32, 3 tokens", GQA(KV_F32, 5, 4, 8, 8, 3), 1280, 5 * 4 * 2 * 128},
	{"stories260K bf16, 1 token", GQA(KV_BF16, 5, 4, 8, 8, 1), 640, 5 * 4 * 2 * 64},
	/* 5 rows of (24+8)*2 = 64; 5 rows of (16+8)*2 = 48 -> 240 -> 256 */
	{"MLA 24+8, 5 tokens", MLA(KV_F16, 3, 24, 8, 5), 192, 3 * 320},
	{"MLA 16+8, 5 tokens", MLA(KV_F16, 3, 16, 8, 5), 144, 3 * 256},
	{"opaque 656, 64 tokens",
	 {.kind = KV_OPAQUE, .page_tokens = 64, .opaque_token_bytes = 656},
	 656,
	 656 * 64},
	{"opaque 7, 3 tokens",
	 {.kind = KV_OPAQUE, .page_tokens = 3, .opaque_token_bytes = 7},
	 7,
	 64},
	/* 8 bits; scales of tokens are 4 bytes a row, in blocks of their own */
	{"Llama-3-8B f8", GQA8(KV_F8, KV_SCALE_HEAD, 32, 8, 128, 128, 64), 65536, 65536 * 64},
	{"Llama-3-8B f8, tokens", GQA8(KV_F8, KV_SCALE_TOKEN, 32, 8, 128, 128, 64), 67584,
	 67584 * 64},
	{"i8 tokens, 3 a page", GQA8(KV_I8, KV_SCALE_TOKEN, 5, 4, 8, 8, 3), 480, 5 * 4 * 4 * 64},
	{"DeepSeek-V3 flat f8", MLA8(KV_F8, KV_SCALE_HEAD, 61, 512, 64, 64), 35136, 35136 * 64},
	{"DeepSeek-V3 flat f8, tokens", MLA8(KV_F8, KV_SCALE_TOKEN, 61, 512, 64, 64), 35380,
	 35380 * 64},
	{"DeepSeek-V3 f8_ds", MLA8(KV_F8_DS, 0, 61, 512, 64, 64), 40016, 40016 * 64},
	{"f8_ds 128+8, 5 tokens", MLA8(KV_F8_DS, 0, 2, 128, 8, 5), 2 * 148, 2 * 768},
	{"beyond 32 bits", GQA(KV_F32, 128, 64, 512, 512, 65536), 33554432, 33554432ull * 65536},
};

static void byte_sizes(void **state)
{
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		const struct size_case *c = &sizes[i];

		if (kv_layout_check(&c->layout))
			fail_msg("%s: %s", c->name, kv_error());
		if (kv_layout_token_bytes(&c->layout) != c->token_bytes ||
		    kv_layout_page_bytes(&c->layout) != c->page_bytes)
			fail_msg("%s: %llu a token, %llu a page", c->name,
				 (unsigned long long)kv_layout_token_bytes(&c->layout),
				 (unsigned long long)kv_layout_page_bytes(&c->layout));
	}
}

static void gqa_view(void **state)
{
	struct kv_layout l = GQA(KV_F16, 3, 5, 24, 8, 7);
	struct kv_view v;

	(void)state;
	/* K: 7 * 48 = 336 -> 384; V: 7 * 16 = 112 -> 128; head 512, layer 2560 */
	assert_int_equal(kv_layout_view(&l, 2, &v), 0);
	assert_int_equal(v.k_row, 48);
	assert_int_equal(v.v_row, 16);
	assert_int_equal(v.v_off, 384);
	assert_int_equal(v.head_stride, 512);
	assert_int_equal(v.layer_stride, 2560);
	assert_int_equal(v.layer_off, 5120);
	assert_int_equal(kv_layout_page_bytes(&l), 3 * 2560);
	assert_int_equal(kv_layout_view(&l, 3, &v), -EINVAL);
	assert_non_null(strstr(kv_error(), "layer 3"));
}

static void mla_view(void **state)
{
	struct kv_layout l = MLA(KV_BF16, 4, 32, 8, 5);
	struct kv_view v;

	(void)state;
	/* a row is 80, 5 rows 400 -> 448 */
	assert_int_equal(kv_layout_view(&l, 3, &v), 0);
	assert_int_equal(v.k_row, 80);
	assert_int_equal(v.v_row, 0);
	assert_int_equal(v.v_off, 0);
	assert_int_equal(v.head_stride, 0);
	assert_int_equal(v.layer_stride, 448);
	assert_int_equal(v.layer_off, 3 * 448);
}

static void scales_have_places(void **state)
{
	struct kv_layout g = GQA8(KV_F8, KV_SCALE_TOKEN, 3, 5, 24, 8, 70);
	struct kv_layout m = MLA8(KV_I8, KV_SCALE_TOKEN, 4, 32, 8, 5);
	struct kern_view k;
	struct kv_view v;

	(void)state;
	/* K: 70 * 24 = 1680 -> 1728; V: 560 -> 576; scales: 280 -> 320 each */
	assert_int_equal(kv_layout_view(&g, 2, &v), 0);
	assert_int_equal(v.v_off, 1728);
	assert_int_equal(v.k_scale_off, 2304);
	assert_int_equal(v.v_scale_off, 2624);
	assert_int_equal(v.head_stride, 2944);
	assert_int_equal(v.layer_off, 2 * 5 * 2944);
	assert_int_equal(layout_kern_view(&g, 2, &k), 0);
	assert_int_equal(k.scale, KERN_SCALE_TOKEN);
	assert_int_equal(k.k_scale_off, 2304);
	assert_int_equal(k.v_scale_off, 2624);
	/* rows: 5 * 40 = 200 -> 256; scales: 20 -> 64 */
	assert_int_equal(kv_layout_view(&m, 3, &v), 0);
	assert_int_equal(v.k_scale_off, 256);
	assert_int_equal(v.v_scale_off, 0);
	assert_int_equal(v.layer_off, 3 * 320);
	m.scale = KV_SCALE_HEAD;
	assert_int_equal(kv_layout_view(&m, 3, &v), 0);
	assert_int_equal(v.k_scale_off, 0);
	assert_int_equal(v.layer_stride, 256);
}

static void opaque_has_no_view(void **state)
{
	struct kv_layout l = {.kind = KV_OPAQUE, .page_tokens = 4, .opaque_token_bytes = 100};
	struct kern_view k;
	struct kv_view v;

	(void)state;
	assert_int_equal(kv_layout_view(&l, 0, &v), -EOPNOTSUPP);
	assert_int_equal(layout_kern_view(&l, 0, &k), -EOPNOTSUPP);
}

/* Every block starts on a line, blocks do not overlap and stay inside the page. */
static void blocks_fit(void **state)
{
	uint32_t dtype, dim, pt;

	(void)state;
	for (dtype = KV_F32; dtype <= KV_I8; dtype++) {
		for (dim = 8; dim <= 576; dim += 56) {
			for (pt = 1; pt <= 70; pt += 3) {
				struct kv_layout l = GQA(dtype, 3, 2, dim, 584 - dim, pt);
				struct kv_view v;

				l.scale = dtype == KV_I8 ? KV_SCALE_TOKEN : 0;
				assert_int_equal(kv_layout_view(&l, 2, &v), 0);
				assert_int_equal((v.layer_off | v.head_stride | v.v_off) % 64, 0);
				assert_int_equal(v.k_row, dim * kv_dtype_bytes(dtype));
				assert_true(v.v_off >= pt * v.k_row);
				assert_true(v.head_stride >= v.v_off + pt * v.v_row);
				assert_true(v.layer_stride >= 2 * v.head_stride);
				assert_int_equal(kv_layout_page_bytes(&l), 3 * v.layer_stride);
			}
		}
	}
}

static void kernels_see_the_same(void **state)
{
	const struct kv_layout *both[] = {&llama, &deepseek};
	struct kern_view k;
	struct kv_view v;
	int i;

	(void)state;
	for (i = 0; i < 2; i++) {
		const struct kv_layout *l = both[i];
		bool mla = l->kind == KV_MLA;

		assert_int_equal(layout_kern_view(l, 7, &k), 0);
		assert_int_equal(kv_layout_view(l, 7, &v), 0);
		assert_int_equal(k.kind, mla ? KERN_MLA : KERN_GQA);
		assert_int_equal(k.dtype, KERN_BF16);
		assert_int_equal(k.page_tokens, 64);
		assert_int_equal(k.kv_heads, mla ? 1 : 8);
		assert_int_equal(k.head_dim, mla ? 512 : 128);
		assert_int_equal(k.head_dim_v, mla ? 64 : 128);
		assert_int_equal(k.layer_off, v.layer_off);
		assert_int_equal(k.head_stride, v.head_stride);
		assert_int_equal(k.v_off, v.v_off);
		assert_int_equal(k.k_row, v.k_row);
		assert_int_equal(k.v_row, v.v_row);
		assert_int_equal(layout_kern_view(l, l->layers, &k), -EINVAL);
	}
}

/* ---- bad layouts ----------------------------------------------------------------------------- */

struct bad_case {
	struct kv_layout base;
	size_t field; /* offset of the uint32_t that gets value */
	uint32_t value;
	const char *text;
};

#define F(name) offsetof(struct kv_layout, name)
#define G	GQA(KV_BF16, 2, 2, 64, 64, 16)
#define M	MLA(KV_BF16, 2, 512, 64, 16)
#define O \
	{ \
		.kind = KV_OPAQUE, .page_tokens = 16, .opaque_token_bytes = 656 \
	}

#define F8 GQA8(KV_F8, KV_SCALE_TOKEN, 2, 2, 64, 64, 16)
#define I8 MLA8(KV_I8, KV_SCALE_TOKEN, 2, 512, 64, 16)
#define DS MLA8(KV_F8_DS, 0, 2, 512, 64, 16)

static const struct bad_case bad[] = {
	{G, F(kind), 0, "kind is 0"},
	{G, F(kind), 4, "kind is 4"},
	{G, F(dtype), 0, "dtype is 0"},
	{G, F(dtype), 7, "dtype is 7"},
	{G, F(dtype), KV_I8, "i8 rows need a scale"},
	{G, F(dtype), KV_F8_DS, "f8_ds rows are MLA's"},
	{G, F(scale), KV_SCALE_HEAD, "scale is 1"},
	{F8, F(scale), 3, "scale is 3"},
	{I8, F(scale), 0, "i8 rows need a scale"},
	{DS, F(scale), KV_SCALE_TOKEN, "scale is 2"},
	{DS, F(rank), 448, "multiple of 128"},
	{O, F(scale), KV_SCALE_HEAD, "scale is 1"},
	{G, F(layers), 0, "layers is 0"},
	{G, F(layers), 4097, "layers is 4097"},
	{G, F(kv_heads), 0, "kv_heads is 0"},
	{G, F(kv_heads), 1025, "kv_heads is 1025"},
	{G, F(head_dim), 0, "head_dim is 0"},
	{G, F(head_dim), 60, "head_dim is 60"},
	{G, F(head_dim), 584, "head_dim is 584"},
	{G, F(head_dim_v), 0, "head_dim_v is 0"},
	{G, F(head_dim_v), 4, "head_dim_v is 4"},
	{G, F(head_dim_v), 1024, "head_dim_v is 1024"},
	{G, F(page_tokens), 0, "page_tokens is 0"},
	{G, F(page_tokens), 65537, "page_tokens is 65537"},
	{G, F(rank), 8, "rank is 8"},
	{G, F(rope), 8, "rope is 8"},
	{G, F(opaque_token_bytes), 1, "opaque_token_bytes is 1"},
	{M, F(rank), 0, "rank is 0"},
	{M, F(rank), 510, "rank is 510"},
	{M, F(rank), 520, "rank 520 + rope 64 is 584"},
	{M, F(rope), 0, "rope is 0"},
	{M, F(rope), 72, "rank 512 + rope 72 is 584"},
	{M, F(rope), 0xfffffff8u, "rope is 4294967288"},
	{M, F(kv_heads), 1, "kv_heads is 1"},
	{M, F(head_dim), 64, "head_dim is 64"},
	{M, F(head_dim_v), 64, "head_dim_v is 64"},
	{M, F(opaque_token_bytes), 656, "opaque_token_bytes is 656"},
	{O, F(opaque_token_bytes), 0, "opaque_token_bytes is 0"},
	{O, F(page_tokens), 0, "page_tokens is 0"},
	{O, F(kv_heads), 1, "kv_heads is 1"},
	{O, F(head_dim), 8, "head_dim is 8"},
	{O, F(head_dim_v), 8, "head_dim_v is 8"},
	{O, F(rank), 8, "rank is 8"},
	{O, F(rope), 8, "rope is 8"},
};

static void bad_layouts(void **state)
{
	struct kv_layout l, out;
	struct kv_view v;
	bool repl;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		l = bad[i].base;
		assert_int_equal(kv_layout_check(&l), 0);
		memcpy((char *)&l + bad[i].field, &bad[i].value, sizeof(bad[i].value));
		assert_int_equal(kv_layout_check(&l), -EINVAL);
		if (!strstr(kv_error(), bad[i].text))
			fail_msg("case %zu: '%s' lacks '%s'", i, kv_error(), bad[i].text);
		assert_int_equal(kv_layout_page_bytes(&l), 0);
		assert_int_equal(kv_layout_token_bytes(&l), 0);
		assert_int_equal(kv_layout_view(&l, 0, &v), -EINVAL);
		assert_int_equal(kv_layout_shard(&l, 1, 0, &out, &repl), -EINVAL);
	}
	assert_int_equal(kv_layout_check(NULL), -EINVAL);
}

/* ---- shards ---------------------------------------------------------------------------------- */

static void shard_gqa(void **state)
{
	static const uint32_t heads[] = {8, 6, 1, 3};
	uint32_t i, tp, s;

	(void)state;
	for (i = 0; i < 4; i++) {
		for (tp = 1; tp <= 16; tp++) {
			struct kv_layout l = GQA(KV_BF16, 2, heads[i], 128, 64, 64), out;
			uint32_t kv = heads[i], different = 0;
			bool ok = kv >= tp ? kv % tp == 0 : tp % kv == 0, repl;
			char number[16];

			for (s = 0; s < tp; s++) {
				int err = kv_layout_shard(&l, tp, s, &out, &repl);

				assert_int_equal(err, ok ? 0 : -EINVAL);
				if (!ok)
					continue;
				different += !repl;
				assert_int_equal(out.kv_heads, kv >= tp ? kv / tp : 1);
				out.kv_heads = kv;
				assert_memory_equal(&out, &l, sizeof(l));
			}
			if (ok) {
				assert_int_equal(different, kv < tp ? kv : tp);
				continue;
			}
			snprintf(number, sizeof(number), "%u KV heads", kv);
			assert_non_null(strstr(kv_error(), number));
			snprintf(number, sizeof(number), "%u shards", tp);
			assert_non_null(strstr(kv_error(), number));
		}
	}
}

static void shard_8_heads_by_hand(void **state)
{
	/* tp:                            1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 */
	static const uint32_t want[17] = {0, 8, 4, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1};
	struct kv_layout out;
	uint32_t tp;
	bool repl;

	(void)state;
	for (tp = 1; tp <= 16; tp++) {
		assert_int_equal(kv_layout_shard(&llama, tp, tp - 1, &out, &repl),
				 want[tp] ? 0 : -EINVAL);
		if (want[tp])
			assert_int_equal(out.kv_heads, want[tp]);
	}
	/* two ranks a head at 16: the second of each pair repeats */
	assert_int_equal(kv_layout_shard(&llama, 16, 6, &out, &repl), 0);
	assert_false(repl);
	assert_int_equal(kv_layout_shard(&llama, 16, 7, &out, &repl), 0);
	assert_true(repl);
	/* Llama-3-70B per rank at tp 8 */
	assert_int_equal(kv_layout_shard(&sizes[1].layout, 8, 3, &out, &repl), 0);
	assert_int_equal(kv_layout_token_bytes(&out), 40960);
}

static void shard_mla_and_opaque(void **state)
{
	struct kv_layout o = O, out;
	uint32_t tp, s;
	bool repl;

	(void)state;
	for (tp = 1; tp <= 16; tp++) {
		for (s = 0; s < tp; s++) {
			assert_int_equal(kv_layout_shard(&deepseek, tp, s, &out, &repl), 0);
			assert_memory_equal(&out, &deepseek, sizeof(out));
			assert_int_equal(repl, s > 0);
			assert_int_equal(kv_layout_shard(&o, tp, s, &out, &repl), 0);
			assert_memory_equal(&out, &o, sizeof(out));
			assert_false(repl);
		}
	}
	assert_int_equal(kv_layout_shard(&llama, 2, 1, &out, NULL), 0);
	assert_int_equal(kv_layout_shard(&llama, 0, 0, &out, &repl), -EINVAL);
	assert_int_equal(kv_layout_shard(&llama, KV_MAX_SHARDS + 1, 0, &out, &repl), -EINVAL);
	assert_int_equal(kv_layout_shard(&llama, 4, 4, &out, &repl), -EINVAL);
	assert_non_null(strstr(kv_error(), "shard 4"));
}

static void dtypes(void **state)
{
	uint32_t d = 99;

	(void)state;
	assert_int_equal(kv_dtype_bytes(KV_F32), 4);
	assert_int_equal(kv_dtype_bytes(KV_F16), 2);
	assert_int_equal(kv_dtype_bytes(KV_BF16), 2);
	assert_int_equal(kv_dtype_bytes(0), 0);
	assert_int_equal(kv_dtype_bytes(KV_F8), 1);
	assert_int_equal(kv_dtype_bytes(KV_I8), 1);
	assert_int_equal(kv_dtype_bytes(KV_F8_DS), 0);
	assert_int_equal(kv_dtype_bytes(7), 0);
	assert_int_equal(kv_dtype_parse("f32", &d), 0);
	assert_int_equal(d, KV_F32);
	assert_int_equal(kv_dtype_parse("f16", &d), 0);
	assert_int_equal(d, KV_F16);
	assert_int_equal(kv_dtype_parse("bf16", &d), 0);
	assert_int_equal(d, KV_BF16);
	assert_int_equal(kv_dtype_parse("f8", &d), 0);
	assert_int_equal(d, KV_F8);
	assert_int_equal(kv_dtype_parse("int8", &d), 0);
	assert_int_equal(d, KV_I8);
	assert_int_equal(kv_dtype_parse("f8_ds", &d), 0);
	assert_int_equal(d, KV_F8_DS);
	assert_int_equal(kv_dtype_parse("bf16", &d), 0);
	assert_int_equal(kv_dtype_parse("f9", &d), -EINVAL);
	assert_non_null(strstr(kv_error(), "f9"));
	assert_int_equal(kv_dtype_parse("", &d), -EINVAL);
	assert_int_equal(kv_dtype_parse(NULL, &d), -EINVAL);
	assert_int_equal(d, KV_BF16);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(byte_sizes),
		cmocka_unit_test(gqa_view),
		cmocka_unit_test(mla_view),
		cmocka_unit_test(scales_have_places),
		cmocka_unit_test(opaque_has_no_view),
		cmocka_unit_test(blocks_fit),
		cmocka_unit_test(kernels_see_the_same),
		cmocka_unit_test(bad_layouts),
		cmocka_unit_test(shard_gqa),
		cmocka_unit_test(shard_8_heads_by_hand),
		cmocka_unit_test(shard_mla_and_opaque),
		cmocka_unit_test(dtypes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
