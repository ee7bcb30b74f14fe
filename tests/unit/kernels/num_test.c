// SPDX-License-Identifier: Apache-2.0
/* e4m3 and int8, every value; the same through the kernels' own widening. */
#include "attn_case.h"

/* From the definition: bias 7, no infinity, one NaN of each sign. */
static double f8_value(uint32_t e)
{
	uint32_t exp = e >> 3 & 15, frac = e & 7;
	double mag = exp ? ldexp(1 + frac / 8.0, (int)exp - 7) : ldexp(frac / 8.0, -6);

	return e & 0x80 ? -mag : mag;
}

static bool f8_is_nan(uint32_t e)
{
	return (e & 0x7f) == 0x7f;
}

static void every_f8(void **state)
{
	uint32_t e;

	(void)state;
	for (e = 0; e < 256; e++) {
		float f = kern_num_from_f8((uint8_t)e);

		if (f8_is_nan(e)) {
			assert_true(isnan(f));
			assert_int_equal(kern_num_to_f8(f), e);
			continue;
		}
		assert_true((double)f == f8_value(e));
		assert_int_equal(signbit(f) != 0, e >> 7);
		assert_int_equal(kern_num_to_f8(f), e);
	}
}

/* Between neighbours: the middle goes to the even one, a hair off it to the nearer. */
static void every_f8_tie(void **state)
{
	uint32_t e, sign;

	(void)state;
	for (sign = 0; sign < 256; sign += 128)
		for (e = sign; e < sign + 0x7e; e++) {
			float a = (float)f8_value(e), b = (float)f8_value(e + 1), mid = (a + b) / 2;

			assert_int_equal(kern_num_to_f8(mid), e + (e & 1));
			assert_int_equal(kern_num_to_f8(nextafterf(mid, a)), e);
			assert_int_equal(kern_num_to_f8(nextafterf(mid, b)), e + 1);
		}
}

/* Where formulas change: the two sides of each power of two, fp32 subnormals, and far beyond. */
static void f8_range(void **state)
{
	(void)state;
	assert_int_equal(kern_num_to_f8(448), 0x7e);
	assert_int_equal(kern_num_to_f8(464), 0x7e);
	assert_int_equal(kern_num_to_f8(1e30f), 0x7e);
	assert_int_equal(kern_num_to_f8(INFINITY), 0x7e);
	assert_int_equal(kern_num_to_f8(-INFINITY), 0xfe);
	assert_int_equal(kern_num_to_f8(-449), 0xfe);
	assert_int_equal(kern_num_to_f8(0.0f), 0);
	assert_int_equal(kern_num_to_f8(-0.0f), 0x80);
	assert_int_equal(kern_num_to_f8(1e-45f), 0);
	assert_int_equal(kern_num_to_f8(-1e-45f), 0x80);
	assert_int_equal(kern_num_to_f8(0x1p-10f), 0);
	assert_int_equal(kern_num_to_f8(nextafterf(0x1p-10f, 1)), 1);
	assert_int_equal(kern_num_to_f8(0x1p-6f), 8);
	assert_int_equal(kern_num_to_f8(nextafterf(0x1p-6f, 0)), 8);
	assert_int_equal(kern_num_to_f8(kern_num_float(0x7f800001)), 0x7f);
	assert_int_equal(kern_num_to_f8(kern_num_float(0xffffffff)), 0xff);
}

/* No float is nearer to another value than to the one it gets. */
static void f8_nearest(void **state)
{
	uint64_t seed = 5;
	uint32_t i, j;

	(void)state;
	for (i = 0; i < 20000; i++) {
		float x = ldexpf((float)(int32_t)attn_next(&seed), (int)attn_below(&seed, 24) - 44);
		uint32_t e = kern_num_to_f8(x);
		double err = fabs((double)x - f8_value(e));

		assert_false(f8_is_nan(e));
		for (j = 0; j < 256; j++)
			assert_true(f8_is_nan(j) || err <= fabs((double)x - f8_value(j)));
	}
}

static void int8(void **state)
{
	int i;

	(void)state;
	for (i = -127; i <= 127; i++) {
		int8_t b = (int8_t)i;
		float f = (float)i;

		assert_true(kern_num_get(KERN_I8, &b, 0) == f);
		assert_int_equal(kern_num_to_i8(f), i);
		assert_int_equal(kern_num_to_i8(f + 0.499f), i);
		if (i < 127)
			assert_int_equal(kern_num_to_i8(f + 0.5f), i & 1 ? i + 1 : i);
	}
	assert_int_equal(kern_num_to_i8(1e30f), 127);
	assert_int_equal(kern_num_to_i8(-INFINITY), -127);
	assert_int_equal(kern_num_to_i8(NAN), 0);
}

/* With one token the output is its value row: every byte of every dtype, in every column. */
static void every_byte_through_the_kernels(void **state)
{
	static uint8_t rows[64][8 + 256];
	static float q[64 * 8], out[64 * 256];
	uint64_t pte[1] = {(uintptr_t)rows};
	uint32_t len = 1, i, width;
	struct kern_attn at = {
		.view = {.kind = KERN_GQA,
			 .page_tokens = 1,
			 .kv_heads = 64,
			 .head_dim = 8,
			 .head_stride = sizeof(rows[0]),
			 .v_off = 8,
			 .k_row = 8,
			 .v_row = 256},
		.batch = 1,
		.q_len = 1,
		.q_dtype = KERN_F32,
		.q_stride_head = 8,
		.out_stride_head = 256,
		.pte = (const uint64_t *const[]){pte},
		.kv_len = &len,
		.q = q,
		.out = out,
	};

	(void)state;
	for (i = 0; i < 64 * 256; i++)
		rows[i / 256][8 + i % 256] = (uint8_t)(i % 256 + i / 256 * 37);
	for (at.view.dtype = KERN_F8; at.view.dtype <= KERN_I8; at.view.dtype++)
		for (width = 8; width <= 256; width += 8)
			attn_for_each_impl(impl)
			{
				at.view.head_dim_v = width;
				at.heads = 64;
				assert_int_equal(attn_run(&at, impl), 0);
				for (i = 0; i < 64 * 256; i++) {
					float want = kern_num_get(at.view.dtype, rows[i / 256],
								  8 + i % 256);

					if (i % 256 < width)
						assert_true(out[i] == want ||
							    (isnan(want) && isnan(out[i])));
				}
			}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_f8),
		cmocka_unit_test(every_f8_tie),
		cmocka_unit_test(f8_range),
		cmocka_unit_test(f8_nearest),
		cmocka_unit_test(int8),
		cmocka_unit_test(every_byte_through_the_kernels),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
