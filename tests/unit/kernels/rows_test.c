// SPDX-License-Identifier: Apache-2.0
/* Conversions, kern_store, kern_load and kern_copy_rows. */
#include "attn_case.h"

#include <errno.h>

/* The value of 16 bits from the format's definition. */
static double value16(uint16_t h, int mantissa, int bias)
{
	int exps = 15 - mantissa, exp = h >> mantissa & ((1 << exps) - 1);
	double frac = ldexp(h & ((1 << mantissa) - 1), -mantissa);
	double mag = exp ? ldexp(1 + frac, exp - bias) : ldexp(frac, 1 - bias);

	return h & 0x8000 ? -mag : mag;
}

static bool is_nan16(uint16_t h, int mantissa)
{
	return (h & 0x7fff) >> mantissa == (1 << (15 - mantissa)) - 1 && h & ((1 << mantissa) - 1);
}

static bool is_inf16(uint16_t h, int mantissa)
{
	return (h & 0x7fff) == ((1 << (15 - mantissa)) - 1) << mantissa;
}

/* Every bit pattern: widening is exact, narrowing it again gives it back. */
static void every_half(void **state)
{
	uint32_t h;

	(void)state;
	for (h = 0; h < 65536; h++) {
		float f = kern_num_from_f16((uint16_t)h), b = kern_num_from_bf16((uint16_t)h);

		if (is_nan16((uint16_t)h, 10))
			assert_true(isnan(f) && is_nan16(kern_num_to_f16(f), 10));
		else if (is_inf16((uint16_t)h, 10))
			assert_true(f == (h & 0x8000 ? -INFINITY : INFINITY));
		else
			assert_true(f == (float)value16((uint16_t)h, 10, 15));
		if (is_nan16((uint16_t)h, 7))
			assert_true(isnan(b) && is_nan16(kern_num_to_bf16(b), 7));
		else if (!is_inf16((uint16_t)h, 7))
			assert_true(b == (float)value16((uint16_t)h, 7, 127));
		if (!isnan(f))
			assert_int_equal(kern_num_to_f16(f), h);
		if (!isnan(b))
			assert_int_equal(kern_num_to_bf16(b), h);
	}
}

/* Between neighbours: the middle goes to the even one, a hair off it to the nearer. */
static void every_tie(void **state)
{
	uint32_t h, sign;

	(void)state;
	for (sign = 0; sign < 2; sign++)
		for (h = sign << 15; h < (sign << 15) + 0x7bff; h++) {
			float a = kern_num_from_f16((uint16_t)h);
			float b = kern_num_from_f16((uint16_t)(h + 1)), mid = a + (b - a) / 2;

			assert_int_equal(kern_num_to_f16(mid), h + (h & 1));
			assert_int_equal(kern_num_to_f16(nextafterf(mid, a)), h);
			assert_int_equal(kern_num_to_f16(nextafterf(mid, b)), h + 1);
		}
	for (h = 0; h < 0x7f80; h++) {
		uint32_t mid = h << 16 | 0x8000;

		assert_int_equal(kern_num_to_bf16(kern_num_float(mid)), h + (h & 1));
		assert_int_equal(kern_num_to_bf16(kern_num_float(mid - 1)), h);
		assert_int_equal(kern_num_to_bf16(kern_num_float(mid + 1)), h + 1);
	}
}

static void ends_of_the_range(void **state)
{
	(void)state;
	assert_int_equal(kern_num_to_f16(65519.0f), 0x7bff);
	assert_int_equal(kern_num_to_f16(65520.0f), 0x7c00);
	assert_int_equal(kern_num_to_f16(-1e30f), 0xfc00);
	assert_int_equal(kern_num_to_f16(INFINITY), 0x7c00);
	assert_int_equal(kern_num_to_f16(0x1p-25f), 0);
	assert_int_equal(kern_num_to_f16(nextafterf(0x1p-25f, 1)), 1);
	assert_int_equal(kern_num_to_f16(-0.0f), 0x8000);
	assert_int_equal(kern_num_to_bf16(kern_num_float(0x7f7fffff)), 0x7f80);
	assert_int_equal(kern_num_to_bf16(-INFINITY), 0xff80);
	/* a NaN whose payload is in the low bits only, and one that would carry into the sign */
	assert_true(is_nan16(kern_num_to_bf16(kern_num_float(0x7f800001)), 7));
	assert_true(is_nan16(kern_num_to_bf16(kern_num_float(0x7fffffff)), 7));
	assert_true(is_nan16(kern_num_to_f16(kern_num_float(0xff800001)), 10));
}

/* Each kernel's own widening of rows, subnormals and infinities included: with one token the
 * output is its value row. */
static void every_half_through_the_kernels(void **state)
{
	static uint16_t rows[64][72];
	struct kern_attn at = {
		.view = {.kind = KERN_GQA,
			 .page_tokens = 1,
			 .kv_heads = 64,
			 .head_dim = 8,
			 .head_dim_v = 64,
			 .head_stride = 144,
			 .v_off = 16,
			 .k_row = 16,
			 .v_row = 128},
		.batch = 1,
		.heads = 64,
		.q_len = 1,
		.q_dtype = KERN_F32,
		.out_stride_head = 64,
		.q_stride_head = 8,
	};
	static float q[64 * 8], out[64 * 64];
	uint64_t pte[1] = {(uintptr_t)rows};
	uint32_t len = 1, base, i;

	(void)state;
	at.pte = (const uint64_t *const[]){pte};
	at.kv_len = &len;
	at.q = q;
	at.out = out;
	for (at.view.dtype = KERN_F16; at.view.dtype <= KERN_BF16; at.view.dtype++)
		for (base = 0; base < 65536; base += 4096) {
			for (i = 0; i < 4096; i++)
				rows[i / 64][8 + i % 64] = (uint16_t)(base + i);
			attn_for_each_impl(impl)
			{
				assert_int_equal(attn_run(&at, impl), 0);
				for (i = 0; i < 4096; i++) {
					float want = kern_num_get(at.view.dtype, rows[i / 64],
								  8 + i % 64);

					assert_true(out[i] == want ||
						    (isnan(want) && isnan(out[i])));
				}
			}
		}
}

static float odd_value(uint64_t *s)
{
	static const float special[] = {0,	 -0.0f,	      INFINITY,	   -INFINITY, 1e-7f, 6e-8f,
					-1e-39f, 1.00390625f, 1.01171875f, 65504,     65520, 1e38f};

	return attn_below(s, 4) ? attn_value(s)
				: special[attn_below(s, sizeof(special) / sizeof(*special))];
}

static void store_and_load(void **state)
{
	struct attn_case c = {.len = {100}, .page_tokens = 7, .dk = 24, .dv = 40};
	float k[100 * 72], v[100 * 120], k2[100 * 72], v2[100 * 120];
	uint64_t seed = 1;
	uint32_t i, kv;

	(void)state;
	for (i = 0; i < 100 * 72; i++)
		k[i] = odd_value(&seed);
	for (i = 0; i < 100 * 120; i++)
		v[i] = odd_value(&seed);
	for (i = 0; i < 9; i++) {
		struct attn_case d = c;

		d.dtype = KERN_F32 + i % 3;
		d.kind = i < 6 ? KERN_GQA : KERN_MLA;
		d.token_major = i >= 3;
		kv = d.kv_heads = d.kind == KERN_MLA ? 1 : 3;
		attn_build(&d);
		/* in two goes, the seam inside a page */
		assert_int_equal(attn_store(&d.at.view, d.pte[0], 0, 38, k, v), 0);
		assert_int_equal(attn_store(&d.at.view, d.pte[0], 38, 62, k + 38 * 24 * kv,
					    v + 38 * 40 * kv),
				 0);
		assert_int_equal(attn_load(&d.at.view, d.pte[0], 0, 100, k2, v2), 0);
		for (uint32_t e = 0; e < 100 * 24 * kv; e++) {
			float want;

			kern_num_put(d.dtype, &want, 0, k[e]);
			want = kern_num_get(d.dtype, &want, 0);
			assert_memory_equal(&want, &k2[e], 4);
		}
		for (uint32_t e = 0; e < 100 * 40 * kv; e++) {
			float want;

			kern_num_put(d.dtype, &want, 0, v[e]);
			want = kern_num_get(d.dtype, &want, 0);
			assert_memory_equal(&want, &v2[e], 4);
		}
		attn_free(&d);
	}
}

static void store_touches_only_its_rows(void **state)
{
	struct attn_case c = {.len = {8},
			      .page_tokens = 8,
			      .kv_heads = 2,
			      .dk = 8,
			      .dv = 8,
			      .dtype = KERN_F32,
			      .seed = 3};
	float row[16] = {0};
	uint32_t i, zeros = 0;

	(void)state;
	attn_build(&c);
	memset(c.pages[0], 0xff, c.page_bytes);
	assert_int_equal(attn_store(&c.at.view, c.pte[0], 3, 1, row, row), 0);
	assert_int_equal(attn_store(&c.at.view, c.pte[0], 5, 0, NULL, NULL), 0);
	for (i = 0; i < c.page_bytes; i++)
		zeros += !((char *)c.pages[0])[i];
	assert_int_equal(zeros, 2 * (8 + 8) * 4);
	attn_free(&c);
}

static void store_rejects(void **state)
{
	struct kern_view v = {.kind = KERN_GQA,
			      .dtype = KERN_F32,
			      .page_tokens = 4,
			      .kv_heads = 1,
			      .head_dim = 8,
			      .head_dim_v = 8,
			      .k_row = 32,
			      .v_row = 32};

	(void)state;
	assert_int_equal(attn_store(&v, NULL, UINT32_MAX, 0, NULL, NULL), 0);
	assert_int_equal(attn_store(&v, NULL, UINT32_MAX, 2, NULL, NULL), -EINVAL);
	assert_int_equal(attn_load(&v, NULL, UINT32_MAX, 2, NULL, NULL), -EINVAL);
	v.dtype = 9;
	assert_int_equal(attn_store(&v, NULL, 0, 0, NULL, NULL), -EINVAL);
	assert_int_equal(attn_load(&v, NULL, 0, 0, NULL, NULL), -EINVAL);
}

/* Of two layers, the first rows of each and nothing else. */
static void copy_first_rows(struct attn_case c)
{
	uint64_t layer_stride, e;
	uint32_t layer, t, n = 5;
	float k[2 * 24], v[2 * 40], k2[2 * 24], v2[2 * 40];
	char *src, *dst;
	size_t same = 0, rows;

	attn_build(&c);
	layer_stride = c.page_bytes;
	src = attn_alloc(2 * layer_stride);
	dst = attn_alloc(2 * layer_stride);
	for (e = 0; e < 2 * layer_stride; e++)
		src[e] = (char)(e % 251 & 0x3f);
	memset(dst, 0x55 | 0x80, 2 * layer_stride);
	kern_copy_rows(dst, src, &c.at.view, 2, layer_stride, n);
	for (layer = 0; layer < 2; layer++) {
		uint64_t from = (uintptr_t)src + layer * layer_stride;
		uint64_t to = (uintptr_t)dst + layer * layer_stride;

		for (t = 0; t < n; t++) {
			attn_load(&c.at.view, &from, t, 1, k, v);
			attn_load(&c.at.view, &to, t, 1, k2, v2);
			assert_memory_equal(k, k2, c.kv_heads * 24 * 4);
			assert_memory_equal(v, v2, c.kv_heads * 40 * 4);
		}
	}
	for (e = 0; e < 2 * layer_stride; e++)
		same += (unsigned char)dst[e] == (0x55 | 0x80);
	rows = 2ull * n * c.kv_heads * (24 + 40) * kern_dtype_size(c.dtype);
	assert_int_equal(same, 2 * layer_stride - rows);
	free(src);
	free(dst);
	attn_free(&c);
}

static void copy_rows(void **state)
{
	struct attn_case c = {.page_tokens = 9, .kv_heads = 2, .dk = 24, .dv = 40};

	(void)state;
	for (c.dtype = KERN_F32; c.dtype <= KERN_BF16; c.dtype++) {
		c.kind = KERN_GQA;
		c.kv_heads = 2;
		for (int major = 0; major < 2; major++) {
			c.token_major = major;
			copy_first_rows(c);
		}
		c.kind = KERN_MLA;
		c.kv_heads = 1;
		copy_first_rows(c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_half),
		cmocka_unit_test(every_tie),
		cmocka_unit_test(ends_of_the_range),
		cmocka_unit_test(every_half_through_the_kernels),
		cmocka_unit_test(store_and_load),
		cmocka_unit_test(store_touches_only_its_rows),
		cmocka_unit_test(store_rejects),
		cmocka_unit_test(copy_rows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
