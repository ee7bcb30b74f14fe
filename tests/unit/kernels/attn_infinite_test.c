// SPDX-License-Identifier: Apache-2.0
/* Elements of seen rows that are no finite numbers: they reach what they are multiplied into and
 * nothing beside it, in every implementation. */
#include "attn_case.h"
#include "kern_impl.h"

static const float bad_values[] = {INFINITY, -INFINITY, NAN};

/* One element of one cached row. */
struct spot {
	uint32_t seq, token, head, column;
	bool value; /* of V, else of K (MLA: the row has both) */
	float with;
};

/* Writes it and gives what stood there. */
static float put_spot(const struct attn_case *c, const struct spot *s)
{
	const struct kern_view *v = &c->at.view;
	uint64_t page = c->pte[s->seq][s->token / c->page_tokens];
	uint32_t row = s->token % c->page_tokens, dtype = c->dtype, column = s->column;
	const char *at = s->value ? kern_v_row(v, page, s->head, row)
				  : kern_k_row(v, page, s->head, row);
	float old;

	if (dtype == KERN_F8_DS) {
		dtype = column < c->dk ? KERN_F8 : KERN_BF16;
		at += column < c->dk ? 0 : kern_ds_rope(v);
		column -= column < c->dk ? 0 : c->dk;
	}
	old = kern_num_get(dtype, at, column);
	kern_num_put(dtype, (void *)(uintptr_t)at, column, s->with);
	return old;
}

static bool sees(const struct attn_case *c, const struct spot *s, uint32_t seq, uint32_t query,
		 uint32_t head)
{
	struct kern_span span = kern_span(&c->at, seq, query);

	return c->pte[seq][s->token / c->page_tokens] ==
		       c->pte[s->seq][s->token / c->page_tokens] &&
	       head / c->group == s->head && s->token >= span.lo && s->token < span.hi;
}

static bool same_kind(float got, float want)
{
	if (isnan(want) || isinf(want))
		return isnan(want) ? isnan(got) : got == want;
	return fabsf(got - want) < 2e-3f || fabsf(got - want) < fabsf(want) * 2.01f / 128;
}

static void fail_at(const struct attn_case *c, enum kern_impl impl, const struct spot *s,
		    uint32_t seq, uint32_t query, uint32_t head, uint32_t column)
{
	attn_describe(c, impl);
	fail_msg("%g in %s of token %u, head %u, column %u: sequence %u, query %u, head %u, "
		 "column %u is wrong",
		 (double)s->with, s->value ? "V" : "K", s->token, s->head, s->column, seq, query,
		 head, column);
}

/* Rows that do not see the spot, and of those that do the columns of V beside it, keep the bits of
 * before; all else is what the reference says. */
static void compare(const struct attn_case *c, enum kern_impl impl, const struct spot *s,
		    const void *before)
{
	const struct kern_attn *at = &c->at;
	uint32_t width = kern_out_width(&at->view), size = kern_dtype_size(c->q_dtype);
	uint32_t seq, tok, head, i;

	for (seq = 0; seq < c->batch; seq++)
		for (tok = 0; tok < c->q_len; tok++)
			for (head = 0; head < at->heads; head++) {
				bool hit = sees(c, s, seq, tok, head);
				bool beside = s->value && c->kind == KERN_GQA;
				uint64_t from = kern_out_at(at, seq, tok, head);

				for (i = 0; i < width; i++) {
					size_t e = from + i;
					bool good =
						!hit || (beside && i != s->column)
							? !memcmp((const char *)before + e * size,
								  (char *)c->out + e * size, size)
							: same_kind(kern_num_get(c->q_dtype,
										 c->out, e),
								    c->ref_out[e]);

					if (!good)
						fail_at(c, impl, s, seq, tok, head, i);
				}
			}
}

static void check_spot(struct attn_case *c, const struct spot *s)
{
	size_t size = c->out_elems * 4;
	void *before[KERN_NR_IMPL] = {NULL}, *plain = malloc(size);
	struct spot back = *s;

	attn_for_each_impl(impl)
	{
		before[impl] = malloc(size);
		assert_int_equal(attn_run(&c->at, impl), 0);
		memcpy(before[impl], c->out, size);
	}
	back.with = put_spot(c, s);
	free(c->ref_out);
	free(c->ref_lse);
	attn_reference(c);
	attn_for_each_impl(impl)
	{
		assert_int_equal(attn_run(&c->at, impl), 0);
		compare(c, impl, s, before[impl]);
		memcpy(plain, c->out, size);
		attn_run_plan(&c->at, impl, 3, c->seed);
		assert_memory_equal(plain, c->out, size);
		free(before[impl]);
	}
	put_spot(c, &back);
	free(plain);
}

/* Spots all over a case: in each place of a tile, in each kind of column. */
static void check_case(struct attn_case c)
{
	const uint32_t tokens[] = {0, 1, 17, 63, 64, 2047, 2048, 3000};
	uint32_t i, n = 0, kinds = c.kind == KERN_MLA ? 1 : 2;

	attn_build(&c);
	for (i = 0; i < sizeof(tokens) / sizeof(*tokens) + 2; i++) {
		uint32_t token = i < 8 ? tokens[i] : c.len[0] - 1 - i % 2, j;

		if (token >= c.len[0] || (c.window && token + c.window < c.len[0] + 1))
			continue;
		for (j = 0; j < 3; j++, n++) {
			struct spot s = {.token = token,
					 .head = n % c.kv_heads,
					 .value = n / 2 % kinds,
					 .with = bad_values[j]};
			uint32_t width = c.kind == KERN_MLA ? c.dk + c.dv
					 : s.value	    ? c.dv
							    : c.dk;

			s.column = n % 4 == 0 ? 0 : n % 4 == 1 ? width - 1 : n * 5 % width;
			check_spot(&c, &s);
		}
	}
	attn_free(&c);
}

static void one_head_many_columns(void **state)
{
	struct attn_case c = {.len = {100}, .group = 4, .q_dtype = KERN_BF16, .dk = 64, .seed = 1};
	struct spot s = {.token = 40, .value = true};

	(void)state;
	attn_build(&c);
	for (s.column = 0; s.column < 64; s.column++) {
		s.with = bad_values[s.column % 3];
		check_spot(&c, &s);
	}
	attn_free(&c);
}

static void dtypes_and_groups(void **state)
{
	static const uint32_t dtypes[] = {KERN_F32, KERN_F16, KERN_BF16};
	static const uint32_t groups[] = {1, 3, 4, 8, 16, 17, 33};
	uint32_t i, j;

	(void)state;
	for (i = 0; i < 3; i++)
		for (j = 0; j < 7; j++)
			check_case((struct attn_case){.dtype = dtypes[i],
						      .q_dtype = j % 3 == 2 ? KERN_F32 : KERN_BF16,
						      .group = groups[j],
						      .kv_heads = 1 + j % 2,
						      .dk = 32,
						      .len = {150},
						      .seed = 10 * i + j});
}

static void rows_that_cannot_be_read_in_place(void **state)
{
	(void)state;
	check_case((struct attn_case){
		.len = {150}, .group = 5, .dk = 40, .dv = 24, .q_dtype = KERN_BF16, .seed = 40});
	check_case((struct attn_case){.len = {150},
				      .group = 5,
				      .page_tokens = 7,
				      .q_dtype = KERN_BF16,
				      .seed = 41});
	check_case((struct attn_case){.len = {150},
				      .group = 20,
				      .page_tokens = 7,
				      .dk = 72,
				      .q_dtype = KERN_BF16,
				      .seed = 42});
}

static void queries_that_do_not_see_it(void **state)
{
	uint32_t q_len;

	(void)state;
	for (q_len = 2; q_len < 6; q_len++) {
		check_case((struct attn_case){.q_len = q_len,
					      .len = {131},
					      .group = 3,
					      .window = 70,
					      .q_dtype = KERN_BF16,
					      .seed = 50 + q_len});
		check_case((struct attn_case){.q_len = q_len,
					      .batch = 2,
					      .len = {129, 200},
					      .group = 8,
					      .softcap = 5,
					      .q_dtype = KERN_BF16,
					      .seed = 60 + q_len});
	}
}

static void several_chunks(void **state)
{
	(void)state;
	check_case((struct attn_case){.len = {4500},
				      .group = 4,
				      .dk = 32,
				      .sinks = true,
				      .q_dtype = KERN_BF16,
				      .seed = 70});
	check_case((struct attn_case){.len = {2100},
				      .group = 18,
				      .dk = 32,
				      .page_tokens = 16,
				      .q_dtype = KERN_BF16,
				      .seed = 71});
}

/* Sequences that share a page are hit together, and only by what stands in it. */
static void shared_pages(void **state)
{
	struct attn_case c = {.batch = 3,
			      .len = {4200, 4300, 4101},
			      .group = 4,
			      .dk = 32,
			      .q_dtype = KERN_BF16,
			      .seed = 80};
	struct spot s = {.token = 3000, .value = true, .column = 7, .with = INFINITY};

	(void)state;
	attn_build(&c);
	memcpy(c.pte[1], c.pte[0], 64 * sizeof(uint64_t));
	free(c.ref_out);
	free(c.ref_lse);
	attn_reference(&c);
	check_spot(&c, &s);
	s.seq = 2;
	check_spot(&c, &s);
	s.token = 4100;
	check_spot(&c, &s);
	attn_free(&c);
}

/* Bytes have no infinity, but e4m3 has NaN; what is too large saturates and is no special case. */
static void rows_of_bytes(void **state)
{
	static const uint32_t groups[] = {2, 4, 16, 20};
	uint32_t i, scale;

	(void)state;
	for (i = 0; i < 4; i++)
		for (scale = KERN_SCALE_HEAD; scale <= KERN_SCALE_TOKEN; scale++)
			check_case((struct attn_case){.dtype = KERN_F8,
						      .scale = scale,
						      .group = groups[i],
						      .dk = 64,
						      .q_len = 2,
						      .len = {140},
						      .q_dtype = KERN_BF16,
						      .seed = 100 + 10 * i + scale});
}

static void mla_rows(void **state)
{
	static const uint32_t heads[] = {1, 5, 16, 40}, dtypes[] = {KERN_BF16, KERN_F8_DS};
	uint32_t i;

	(void)state;
	for (i = 0; i < 8; i++)
		check_case((struct attn_case){.kind = KERN_MLA,
					      .dtype = dtypes[i / 4],
					      .group = heads[i % 4],
					      .dk = 64 << i / 4,
					      .dv = 32,
					      .len = {140},
					      .q_len = 1 + i % 2,
					      .q_dtype = KERN_BF16,
					      .seed = 90 + i});
}

/* A row whose only score is NaN is no empty row: the reference says so too. */
static void nan_is_all_there_is(void **state)
{
	const struct spot spot = {.with = NAN};

	(void)state;
	for (uint32_t q_dtype = KERN_F32; q_dtype <= KERN_BF16; q_dtype++) {
		struct attn_case c = {.len = {1}, .group = 2, .q_dtype = q_dtype, .seed = 7};

		attn_build(&c);
		put_spot(&c, &spot);
		for (enum kern_impl impl = KERN_REF; impl < KERN_NR_IMPL; impl++) {
			if (!kern_impl_usable(impl))
				continue;
			memset(c.out, 0, c.out_elems * 4);
			memset(c.lse, 0, c.out_rows * 4);
			assert_int_equal(attn_run(&c.at, impl), 0);
			if (!isnan(c.lse[0]) || !isnan(c.lse[1]) ||
			    !isnan(kern_num_get(q_dtype, c.out, 0)))
				fail_msg("%s lost the NaN", kern_impl_name(impl));
		}
		attn_free(&c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nan_is_all_there_is),
		cmocka_unit_test(one_head_many_columns),
		cmocka_unit_test(dtypes_and_groups),
		cmocka_unit_test(rows_that_cannot_be_read_in_place),
		cmocka_unit_test(queries_that_do_not_see_it),
		cmocka_unit_test(several_chunks),
		cmocka_unit_test(shared_pages),
		cmocka_unit_test(rows_of_bytes),
		cmocka_unit_test(mla_rows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
