// SPDX-License-Identifier: Apache-2.0
/* Bytes of e4m3 and int8 written as such: subnormals, zeroes and NaN at every place of a tile. How
 * many there are decides how a kernel widens rows, and must decide nothing else. */
#include "attn_case.h"
#include "kern_impl.h"

enum fill {
	FILL_NORMAL, /* small ones, so that subnormals count beside them */
	FILL_FEW,    /* a subnormal or zero here and there */
	FILL_TINY,   /* nothing else */
	FILL_ZERO,
	FILL_PARTS, /* FILL_TINY before token 2048, FILL_NORMAL from there on */
	FILL_NR,
};

static uint8_t byte_of(struct attn_case *c, enum fill fill, uint32_t t)
{
	uint64_t r = attn_next(&c->seed);
	uint8_t tiny = r & 0x87, normal = (r & 0x80) | (8 + (r & 0xff) % 24);

	if (c->dtype == KERN_I8)
		return r >> 8 & 0xff;
	switch (fill) {
	case FILL_FEW:
		return (r >> 32) % 100 ? normal : tiny;
	case FILL_TINY:
		return tiny;
	case FILL_ZERO:
		return r & 0x80;
	case FILL_PARTS:
		return t < 2048 ? tiny : normal;
	default:
		return normal;
	}
}

static uint8_t *element(const struct attn_case *c, bool value, uint32_t t, uint32_t head,
			uint32_t column)
{
	const struct kern_view *v = &c->at.view;
	uint64_t page = c->pte[0][t / c->page_tokens];
	uint32_t row = t % c->page_tokens;
	const char *at = value ? kern_v_row(v, page, head, row) : kern_k_row(v, page, head, row);

	return (uint8_t *)(uintptr_t)at + column;
}

/* A case of one sequence, of which every byte is one of ours; scales make them count. */
static void build(struct attn_case *c, enum fill fill)
{
	uint32_t t, head, i;

	attn_build(c);
	for (head = 0; head < c->kv_heads; head++) {
		c->k_scale[head] = c->dtype == KERN_I8 ? 0.001f : 2;
		c->v_scale[head] = c->dtype == KERN_I8 ? 0.01f : 8;
		for (t = 0; t < c->len[0]; t++) {
			for (i = 0; i < c->dk; i++)
				*element(c, false, t, head, i) = byte_of(c, fill, t);
			for (i = 0; i < c->dv && c->kind == KERN_GQA; i++)
				*element(c, true, t, head, i) = byte_of(c, fill, t);
		}
	}
	c->at.k_scale = c->k_scale;
	c->at.v_scale = c->v_scale;
	free(c->ref_out);
	free(c->ref_lse);
	attn_reference(c);
}

static void check(struct attn_case c, enum fill fill)
{
	build(&c, fill);
	attn_for_each_impl(impl)
	{
		if (fill != FILL_ZERO) /* of zeroes a relative error says nothing */
			attn_expect(&c, impl);
		attn_expect_plans(&c, impl);
	}
	attn_free(&c);
}

static void all_kinds(void **state)
{
	static const uint32_t widths[] = {128, 64, 96, 112, 192};
	struct attn_case c = {.dtype = KERN_F8,
			      .scale = KERN_SCALE_HEAD,
			      .group = 4,
			      .q_dtype = KERN_BF16,
			      .seed = 7};
	uint32_t fill, i;

	(void)state;
	for (fill = 0; fill < FILL_NR; fill++)
		for (i = 0; i < 5; i++) {
			c.dk = c.dv = widths[i];
			c.len[0] = i ? 333 : 2048 + 640;
			check(c, fill);
		}
}

static void groups_and_queries(void **state)
{
	static const uint32_t groups[] = {3, 8, 9, 16, 5};
	uint32_t i;

	(void)state;
	for (i = 0; i < 15; i++)
		check((struct attn_case){.dtype = i % 3 ? KERN_F8 : KERN_I8,
					 .scale = KERN_SCALE_HEAD,
					 .group = groups[i % 5],
					 .q_len = 1 + i / 5,
					 .dk = 128,
					 .dv = i % 4 ? 128 : 64,
					 .len = {700 + i},
					 .page_tokens = i % 2 ? 64 : 10,
					 .q_dtype = KERN_BF16,
					 .seed = 30 + i},
		      i % 2 ? FILL_FEW : FILL_NORMAL);
}

/* A row of out with one weight times one element is that, wherever it stands. */
static void each_place(void **state)
{
	static const uint8_t bytes[] = {0x01, 0x87, 0x04, 0x08, 0x7e};
	struct attn_case c = {.dtype = KERN_F8,
			      .scale = KERN_SCALE_HEAD,
			      .group = 4,
			      .dk = 128,
			      .len = {320},
			      .q_dtype = KERN_BF16,
			      .seed = 3};
	uint32_t t, i;

	(void)state;
	build(&c, FILL_ZERO);
	for (t = 0; t < 128; t++) {
		uint32_t column = t * 37 % 128;
		uint8_t with = bytes[t % 5], *at = element(&c, true, t, 0, column);
		float want = kern_num_get(KERN_F8, &with, 0) * c.v_scale[0] / 320;

		*at = with;
		attn_for_each_impl(impl)
		{
			assert_int_equal(attn_run(&c.at, impl), 0);
			for (i = 0; i < 128; i++) {
				float got = kern_num_get(KERN_BF16, c.out, i);

				if (fabsf(got - (i == column ? want : 0)) > fabsf(want) / 64)
					fail_msg("%s: %#x at token %u: column %u of out is %g",
						 kern_impl_name(impl), with, t, i, (double)got);
			}
		}
		*at = 0;
	}
	attn_free(&c);
}

/* NaN reaches its own column, or as a key all of the queries that see it; bits beside it stay. */
static void nan_at_each_place(void **state)
{
	struct attn_case c = {.dtype = KERN_F8,
			      .scale = KERN_SCALE_HEAD,
			      .group = 4,
			      .dk = 128,
			      .len = {320},
			      .q_dtype = KERN_BF16,
			      .seed = 4};
	uint16_t before[4 * 128];
	uint32_t t, i;

	(void)state;
	build(&c, FILL_NORMAL);
	attn_for_each_impl(impl)
	{
		assert_int_equal(attn_run(&c.at, impl), 0);
		memcpy(before, c.out, sizeof(before));
		for (t = 0; t < 256; t++) {
			bool value = t < 128;
			uint32_t column = t * 37 % 128;
			uint8_t *at = element(&c, value, t % 128, 0, column), old = *at;

			*at = t % 3 ? 0x7f : 0xff;
			assert_int_equal(attn_run(&c.at, impl), 0);
			for (i = 0; i < 4 * 128; i++) {
				const uint16_t *out = c.out;

				if (value && i % 128 != column)
					assert_int_equal(out[i], before[i]);
				else
					assert_true(isnan(kern_num_get(KERN_BF16, c.out, i)));
			}
			*at = old;
		}
	}
	attn_free(&c);
}

/* Several sequences of the same pages: each gives the bits it gives alone. */
static void alone_and_in_a_batch(void **state)
{
	struct attn_case c = {.dtype = KERN_F8,
			      .scale = KERN_SCALE_HEAD,
			      .group = 4,
			      .dk = 128,
			      .batch = 4,
			      .len = {2700, 2700, 2700, 2700},
			      .q_dtype = KERN_BF16,
			      .seed = 5};
	uint32_t fill, i;

	(void)state;
	for (fill = 0; fill < FILL_NR; fill++) {
		struct attn_case b = c;

		build(&b, fill);
		for (i = 1; i < b.batch; i++)
			memcpy(b.pte[i], b.pte[0], 42 * sizeof(uint64_t));
		attn_for_each_impl(impl)
		{
			attn_expect_plans(&b, impl);
			attn_expect_singles(&b, impl);
		}
		attn_free(&b);
	}
}

/* The weight that counts most is exact whatever the scale of its row: there is no error of its own
 * in a call that sees one token, or little else. One and many rows of queries. */
static void the_heaviest_weight_is_exact(void **state)
{
	uint32_t i;

	(void)state;
	for (i = 0; i < 240; i++) {
		struct attn_case c = {
			.dtype = i & 1 ? KERN_I8 : KERN_F8,
			.scale = KERN_SCALE_TOKEN,
			.q_dtype = KERN_BF16,
			.kv_heads = 2,
			.group = i & 2 ? 4 : 24,
			.dk = 128,
			.spread = i & 4 ? 20 : 0,
			.len = { i & 4 ? 200 : 1 },
			.seed = i,
		};

		attn_build(&c);
		attn_for_each_impl(impl)
			attn_expect(&c, impl);
		attn_free(&c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_kinds),	     cmocka_unit_test(groups_and_queries),
		cmocka_unit_test(each_place),	     cmocka_unit_test(nan_at_each_place),
		cmocka_unit_test(alone_and_in_a_batch),
		cmocka_unit_test(the_heaviest_weight_is_exact),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
