// SPDX-License-Identifier: Apache-2.0
/* kvbench attn: flop and bytes of a call against constants worked out by hand */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include <kv/layout.h>

#include "attn_shape.h"

static void assert_numbers(struct attn_shape s, double flop_pos, double bytes_pos)
{
	attn_shape_default(&s);
	assert_null(attn_shape_check(&s));
	assert_true(attn_shape_flop_pos(&s) == flop_pos);
	assert_true(attn_shape_bytes_pos(&s) == bytes_pos);
}

static void position(void **state)
{
	(void)state;
	assert_numbers((struct attn_shape){ .heads = 32, .kv_heads = 32 }, 16384, 16384);
	assert_numbers((struct attn_shape){ .heads = 32, .kv_heads = 8 }, 16384, 4096);
	assert_numbers((struct attn_shape){ .heads = 64, .kv_heads = 8 }, 32768, 4096);
	assert_numbers((struct attn_shape){ .heads = 32, .kv_heads = 1 }, 16384, 512);
	assert_numbers((struct attn_shape){ .heads = 32, .kv_heads = 8, .dtype = KERN_F32 }, 16384,
		       8192);
	assert_numbers((struct attn_shape){ .heads = 16, .kv_heads = 2, .dim = 192, .dim_v = 128 },
		       10240, 1280);
	/* the row serves as key and as value: 576 elements are read once */
	assert_numbers((struct attn_shape){ .kind = KERN_MLA, .heads = 128 }, 278528, 1152);
	assert_numbers((struct attn_shape){ .kind = KERN_MLA, .heads = 16 }, 34816, 1152);
	/* 8 heads of 256 bytes and two scales */
	assert_numbers((struct attn_shape){ .dtype = KERN_F8 }, 16384, 2112);
	assert_numbers((struct attn_shape){ .dtype = KERN_I8, .scale = KERN_SCALE_HEAD }, 16384,
		       2048);
	assert_numbers((struct attn_shape){ .kind = KERN_MLA, .dtype = KERN_F8 }, 278528, 580);
	assert_numbers((struct attn_shape){ .kind = KERN_MLA, .dtype = KERN_F8_DS }, 278528, 656);
}

static void whole_call(void **state)
{
	struct attn_shape s = { .heads = 32, .kv_heads = 8, .ctx = 8192 };

	(void)state;
	attn_shape_default(&s);
	assert_true(attn_shape_flop(&s) == 134217728.0);
	assert_true(attn_shape_bytes(&s) == 33554432.0);
	assert_int_equal(attn_shape_table_pages(&s), 128);
	s.batch = 3;
	assert_true(attn_shape_flop(&s) == 402653184.0);
	assert_true(attn_shape_bytes(&s) == 100663296.0);
	assert_int_equal(attn_shape_table_pages(&s), 384);
}

/* Query i of 4 sees 100 - 3 + i tokens: 97 + 98 + 99 + 100. */
static void causal(void **state)
{
	struct attn_shape s = { .heads = 2, .kv_heads = 1, .dim = 8, .ctx = 100, .q_len = 4 };

	(void)state;
	attn_shape_default(&s);
	assert_true(attn_shape_flop_pos(&s) == 64);
	assert_true(attn_shape_flop(&s) == 394.0 * 64);
	assert_true(attn_shape_bytes(&s) == 100.0 * 32);
}

/* Whole pages of the prefix count once, the page it ends in is each sequence's own. */
static void shared_prefix(void **state)
{
	struct attn_shape s = { .ctx = 1000, .batch = 8, .shared = 700 };

	(void)state;
	attn_shape_default(&s);
	assert_int_equal(attn_shape_shared_pages(&s), 10);
	assert_int_equal(attn_shape_table_pages(&s), 10 + 8 * 6);
	assert_true(attn_shape_bytes(&s) == (640 + 8 * 360.0) * 4096);
	assert_true(attn_shape_flop(&s) == 8 * 1000.0 * 16384);
	s.batch = 1;
	assert_int_equal(attn_shape_shared_pages(&s), 0);
	assert_true(attn_shape_bytes(&s) == 1000.0 * 4096);
}

/* The pages are those of libkv. */
static void assert_layout(struct attn_shape s)
{
	struct kv_layout l = { .layers = 1 };
	struct kern_view got;
	struct kv_view want;

	attn_shape_default(&s);
	l.kind = s.kind;
	l.dtype = s.dtype;
	l.page_tokens = s.page_tokens;
	if (s.kind == KERN_MLA) {
		l.rank = s.dim_v;
		l.rope = s.dim - s.dim_v;
	} else {
		l.kv_heads = s.kv_heads;
		l.head_dim = s.dim;
		l.head_dim_v = s.dim_v;
	}
	assert_int_equal(kv_layout_view(&l, 0, &want), 0);
	assert_true(attn_shape_view(&s, &got) == kv_layout_page_bytes(&l));
	assert_true(got.layer_off == want.layer_off && got.head_stride == want.head_stride);
	assert_true(got.v_off == want.v_off && got.k_row == want.k_row && got.v_row == want.v_row);
	assert_true(attn_shape_bytes_pos(&s) == (double)kv_layout_token_bytes(&l));
}

static void layout(void **state)
{
	uint32_t dtype, page;

	(void)state;
	for (dtype = KERN_F32; dtype <= KERN_BF16; dtype++)
		for (page = 1; page < 130; page += 21) {
			assert_layout((struct attn_shape){ .dtype = dtype, .page_tokens = page });
			assert_layout((struct attn_shape){ .dtype = dtype, .page_tokens = page,
							   .dim = 72, .dim_v = 40 });
			assert_layout((struct attn_shape){ .dtype = dtype, .page_tokens = page,
							   .kind = KERN_MLA });
		}
}

static void assert_wrong(struct attn_shape s, const char *word)
{
	const char *why;

	attn_shape_default(&s);
	why = attn_shape_check(&s);
	assert_non_null(why);
	assert_non_null(strstr(why, word));
}

static void wrong_shapes(void **state)
{
	(void)state;
	assert_wrong((struct attn_shape){ .heads = 30 }, "--heads");
	assert_wrong((struct attn_shape){ .heads = 1032 }, "--heads");
	assert_wrong((struct attn_shape){ .kind = KERN_MLA, .kv_heads = 2 }, "--kv-heads");
	assert_wrong((struct attn_shape){ .kind = KERN_MLA, .dim = 512 }, "--dim");
	assert_wrong((struct attn_shape){ .dim = 100 }, "--dim");
	assert_wrong((struct attn_shape){ .dim = 584 }, "--dim");
	assert_wrong((struct attn_shape){ .page_tokens = 65537 }, "--page");
	assert_wrong((struct attn_shape){ .dtype = KERN_F8_DS }, "f8_ds");
	assert_wrong((struct attn_shape){ .scale = KERN_SCALE_HEAD }, "--scale");
	assert_wrong((struct attn_shape){ .ctx = 3, .q_len = 4 }, "--q-len");
	assert_wrong((struct attn_shape){ .q_len = 513 }, "--q-len");
	assert_wrong((struct attn_shape){ .ctx = 5, .shared = 6 }, "--shared-prefix");
	assert_wrong((struct attn_shape){ .batch = 1025 }, "--batch");
	assert_wrong((struct attn_shape){ .threads = 257 }, "--threads");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(position),	 cmocka_unit_test(whole_call),
		cmocka_unit_test(causal),	 cmocka_unit_test(shared_prefix),
		cmocka_unit_test(layout),	 cmocka_unit_test(wrong_shapes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
