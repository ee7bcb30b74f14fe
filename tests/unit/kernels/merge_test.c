// SPDX-License-Identifier: Apache-2.0
/* kern_merge, alone and as what joins the parts of a split call. */
#include "attn_case.h"

#include <errno.h>

#define DIM 8

static void fill(float *row, float f)
{
	int i;

	for (i = 0; i < DIM; i++)
		row[i] = f;
}

/* Masses 1 and 3. */
static void two_parts(void **state)
{
	float a[DIM], b[DIM], out[DIM], lse, la = 0, lb = logf(3);
	int i;

	(void)state;
	fill(a, 4);
	fill(b, 8);
	kern_merge(out, &lse, (const float *const[]){a, b}, (const float *const[]){&la, &lb}, 2, 1,
		   DIM);
	for (i = 0; i < DIM; i++)
		assert_float_equal(out[i], 7, 1e-6);
	assert_float_equal(lse, logf(4), 1e-6);
}

/* The rows of an empty part are not looked at. */
static void one_side_empty(void **state)
{
	float a[DIM], b[DIM], out[DIM], lse, la = -5, lb = -INFINITY;
	int i, order;

	(void)state;
	fill(a, 4);
	fill(b, NAN);
	for (order = 0; order < 2; order++) {
		fill(out, NAN);
		kern_merge(out, &lse,
			   order ? (const float *const[]){a, b} : (const float *const[]){b, a},
			   order ? (const float *const[]){&la, &lb}
				 : (const float *const[]){&lb, &la},
			   2, 1, DIM);
		for (i = 0; i < DIM; i++)
			assert_true(out[i] == 4);
		assert_true(lse == -5);
	}
}

static void both_sides_empty(void **state)
{
	float a[DIM], out[DIM], lse = 1, none = -INFINITY;
	int i;

	(void)state;
	fill(a, NAN);
	fill(out, NAN);
	kern_merge(out, &lse, (const float *const[]){a, a}, (const float *const[]){&none, &none}, 2,
		   1, DIM);
	for (i = 0; i < DIM; i++)
		assert_true(out[i] == 0);
	assert_true(lse == -INFINITY);
	fill(out, NAN);
	kern_merge(out, &lse, NULL, NULL, 0, 1, DIM);
	assert_true(out[0] == 0 && lse == -INFINITY);
}

static void into_the_first_part(void **state)
{
	float a[2][DIM], b[2][DIM], la[2] = {0, -INFINITY}, lb[2] = {0, 2};
	int i;

	(void)state;
	fill(a[0], 1);
	fill(a[1], NAN);
	fill(b[0], 3);
	fill(b[1], 6);
	kern_merge(a[0], la, (const float *const[]){a[0], b[0]}, (const float *const[]){la, lb}, 2,
		   2, DIM);
	for (i = 0; i < DIM; i++) {
		assert_float_equal(a[0][i], 2, 1e-6);
		assert_true(a[1][i] == 6);
	}
	assert_float_equal(la[0], logf(2), 1e-6);
	assert_true(la[1] == 2);
}

static void far_apart_and_large(void **state)
{
	float a[DIM], b[DIM], out[DIM], lse, la = 30000, lb = -30000;

	(void)state;
	fill(a, 1);
	fill(b, 2);
	kern_merge(out, &lse, (const float *const[]){b, a}, (const float *const[]){&lb, &la}, 2, 1,
		   DIM);
	assert_true(out[0] == 1 && lse == 30000);
}

/* Cuts every sequence at cuts[], runs the parts and merges. Sinks go to the first part only. */
static void run_split(struct attn_case *c, enum kern_impl impl, const uint32_t *cuts, uint32_t nr)
{
	uint32_t start[ATTN_MAX_BATCH], end[ATTN_MAX_BATCH], i, seq;
	float *out[8], *lse[8];

	for (i = 0; i < nr; i++) {
		struct kern_attn part = c->at;

		for (seq = 0; seq < c->batch; seq++) {
			start[seq] = c->starts && c->start[seq] > cuts[i] ? c->start[seq] : cuts[i];
			end[seq] = cuts[i + 1];
		}
		out[i] = malloc(c->out_elems * 4);
		lse[i] = malloc(c->out_rows * 4);
		memset(out[i], 0, c->out_elems * 4);
		part.kv_start = start;
		part.kv_end = end;
		part.out = out[i];
		part.lse = lse[i];
		part.sinks = i ? NULL : c->at.sinks;
		assert_int_equal(attn_run(&part, impl), 0);
	}
	kern_merge(c->out, c->lse, (const float *const *)out, (const float *const *)lse, nr,
		   c->out_rows, c->dv);
	for (i = 0; i < nr; i++) {
		free(out[i]);
		free(lse[i]);
	}
}

static void split_against_unsplit(void **state)
{
	static const uint32_t cuts[] = {0, 1, 64, 170, 170, 290, UINT32_MAX};
	struct attn_case c = {.batch = 4,
			      .len = {300, 64, 0, 200},
			      .q_len = 3,
			      .kv_heads = 2,
			      .group = 4,
			      .window = 180,
			      .alibi = true,
			      .sinks = true,
			      .starts = true,
			      .start = {0, 3, 0, 150},
			      .seed = 5};
	uint32_t i;

	(void)state;
	attn_build(&c);
	/* [seq][tok][head], as kern_merge and lse have it */
	c.at.out_stride_head = c.dv;
	c.at.out_stride_tok = c.at.heads * c.dv;
	c.at.out_stride_seq = c.q_len * c.at.out_stride_tok;
	free(c.ref_out);
	free(c.ref_lse);
	attn_reference(&c);
	for (enum kern_impl impl = KERN_REF; impl < KERN_NR_IMPL; impl++) {
		if (!kern_impl_usable(impl))
			continue;
		run_split(&c, impl, cuts, 6);
		for (i = 0; i < c.out_rows; i++)
			assert_true(attn_lse_near(c.lse[i], c.ref_lse[i]));
		for (i = 0; i < c.out_rows * c.dv; i++)
			assert_float_equal(((float *)c.out)[i], c.ref_out[i], 2e-6);
	}
	attn_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_parts),	       cmocka_unit_test(one_side_empty),
		cmocka_unit_test(both_sides_empty),    cmocka_unit_test(into_the_first_part),
		cmocka_unit_test(far_apart_and_large), cmocka_unit_test(split_against_unsplit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
