// SPDX-License-Identifier: Apache-2.0
/* kern_merge, alone and as what joins the parts of a split call. */
#include "attn_case.h"

#include <errno.h>

#include "kern_impl.h"

#define DIM  8
#define MANY 6

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

static void expect_nan(const float *lse_of, uint32_t nr)
{
	float row[MANY][DIM], out[DIM], lse = 1;
	const float *parts[MANY], *lses[MANY];
	uint32_t i;

	for (i = 0; i < nr; i++) {
		fill(row[i], isnan(lse_of[i]) ? NAN : 1);
		parts[i] = row[i];
		lses[i] = &lse_of[i];
	}
	fill(out, 1);
	kern_merge(out, &lse, parts, lses, nr, 1, DIM);
	assert_true(isnan(lse));
	for (i = 0; i < DIM; i++)
		assert_true(isnan(out[i]));
}

/* One after the other, each merged into what there is already. */
static void fold(const float *lse_of, uint32_t nr)
{
	float out[DIM], row[DIM], lse = -INFINITY;
	uint32_t i;

	fill(out, 0);
	for (i = 0; i < nr; i++) {
		fill(row, isnan(lse_of[i]) ? NAN : 1);
		kern_merge(out, &lse, (const float *const[]){out, row},
			   (const float *const[]){&lse, &lse_of[i]}, 2, 1, DIM);
	}
	assert_true(isnan(lse));
	for (i = 0; i < DIM; i++)
		assert_true(isnan(out[i]));
}

/* Whatever it meets, wherever it stands: alone, with empty parts, with finite ones, in any order. */
static void nan_is_never_lost(void **state)
{
	static const float others[] = {NAN, -INFINITY, 0, -30000, 30000};
	float lse_of[MANY];
	uint32_t nr, at, a, b, i;

	(void)state;
	for (nr = 1; nr <= MANY; nr++)
		for (at = 0; at < nr; at++)
			for (a = 0; a < 5; a++)
				for (b = 0; b < 5; b++) {
					for (i = 0; i < nr; i++)
						lse_of[i] = others[i & 1 ? a : b];
					lse_of[at] = NAN;
					expect_nan(lse_of, nr);
					fold(lse_of, nr);
				}
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

/* ---- context-parallel shards ---- */

struct shard {
	uint64_t *pte[ATTN_MAX_BATCH];
	float *out, *lse;
};

/* What a rank holds: the tokens t with t / run % ranks == rank, close together in pages of its own
 * that hold NaN elsewhere. */
static void build_shard(const struct attn_case *c, struct shard *s, uint32_t ranks, uint32_t rank,
			uint32_t run)
{
	float *k = malloc(c->kv_heads * c->dk * 4), *v = malloc(c->kv_heads * c->dv * 4);
	uint32_t seq, t, n, lo, hi;

	for (seq = 0; seq < c->batch; seq++) {
		s->pte[seq] = calloc(c->len[seq] / c->page_tokens + 1, sizeof(uint64_t));
		attn_seen(c, seq, &lo, &hi);
		for (t = n = 0; t < hi; t++) {
			uint64_t *page = &s->pte[seq][n / c->page_tokens];

			if (t / run % ranks != rank)
				continue;
			if (t >= lo && !*page) {
				*page = (uintptr_t)attn_alloc(c->page_bytes);
				memset((void *)(uintptr_t)*page, 0xff, c->page_bytes);
			}
			if (t >= lo) {
				attn_load(&c->at.view, c->pte[seq], t, 1, k, v);
				attn_store(&c->at.view, s->pte[seq], n, 1, k, v);
			}
			n++;
		}
	}
	free(k);
	free(v);
}

static void free_shard(const struct attn_case *c, struct shard *s)
{
	uint32_t seq, page;

	for (seq = 0; seq < c->batch; seq++) {
		for (page = 0; page <= c->len[seq] / c->page_tokens; page++)
			free((void *)(uintptr_t)s->pte[seq][page]);
		free(s->pte[seq]);
	}
	free(s->out);
	free(s->lse);
}

/* Each rank on its own, planned or not; merged they are the whole. */
static void run_shards(struct attn_case *c, enum kern_impl impl, struct shard *s, uint32_t ranks,
		       uint32_t run)
{
	const float *out[8], *lse[8];
	uint32_t i;

	for (i = 0; i < ranks; i++) {
		struct kern_attn at = c->at;

		at.dcp = ranks;
		at.dcp_rank = i;
		at.dcp_interleave = run;
		at.pte = (const uint64_t *const *)s[i].pte;
		at.sinks = i + 1 < ranks ? NULL : c->at.sinks;
		at.out = s[i].out;
		at.lse = s[i].lse;
		memset(s[i].out, ATTN_POISON, c->out_elems * 4);
		memset(s[i].lse, ATTN_POISON, c->out_rows * 4);
		if (i & 1)
			assert_int_equal(attn_run(&at, impl), 0);
		else
			attn_run_plan(&at, impl, 3, run);
		out[i] = s[i].out;
		lse[i] = s[i].lse;
	}
	kern_merge(c->out, c->lse, out, lse, ranks, c->out_rows, kern_out_width(&c->at.view));
	for (i = 0; i < c->out_rows; i++)
		assert_true(attn_lse_near(c->lse[i], c->ref_lse[i]));
	for (i = 0; i < c->out_rows * kern_out_width(&c->at.view); i++)
		assert_float_equal(((float *)c->out)[i], c->ref_out[i], 4e-6);
}

static void check_shards(struct attn_case c, uint32_t ranks, uint32_t run)
{
	struct shard s[8] = {0};
	uint32_t i, width;

	attn_build(&c);
	/* [seq][tok][head], as kern_merge and lse have it */
	width = kern_out_width(&c.at.view);
	c.at.out_stride_head = width;
	c.at.out_stride_tok = c.at.heads * width;
	c.at.out_stride_seq = c.q_len * c.at.out_stride_tok;
	free(c.ref_out);
	free(c.ref_lse);
	attn_reference(&c);
	for (i = 0; i < ranks; i++) {
		build_shard(&c, &s[i], ranks, i, run);
		s[i].out = malloc(c.out_elems * 4);
		s[i].lse = malloc(c.out_rows * 4);
	}
	for (enum kern_impl impl = KERN_REF; impl < KERN_NR_IMPL; impl++)
		if (kern_impl_usable(impl))
			run_shards(&c, impl, s, ranks, run);
	for (i = 0; i < ranks; i++)
		free_shard(&c, &s[i]);
	attn_free(&c);
}

/* Kernels with instances for bf16 queries count positions as the reference does. */
static void shard_of_bf16(void **state)
{
	struct attn_case c = {.len = {700},
			      .q_dtype = KERN_BF16,
			      .q_len = 3,
			      .group = 4,
			      .alibi = true,
			      .seed = 30};
	struct shard s = {0};
	float want[12];

	(void)state;
	attn_build(&c);
	build_shard(&c, &s, 3, 1, 16);
	c.at.dcp = 3;
	c.at.dcp_rank = 1;
	c.at.dcp_interleave = 16;
	c.at.pte = (const uint64_t *const *)s.pte;
	assert_int_equal(attn_run(&c.at, KERN_REF), 0);
	memcpy(want, c.lse, sizeof(want));
	attn_for_each_impl(impl)
	{
		uint32_t i;

		memset(c.lse, ATTN_POISON, sizeof(want));
		assert_int_equal(attn_run(&c.at, impl), 0);
		for (i = 0; i < c.out_rows; i++)
			assert_true(attn_lse_near(c.lse[i], want[i]));
	}
	free_shard(&c, &s);
	attn_free(&c);
}

/* Lengths that leave ranks without a token, windows that begin in any rank's run. */
static void shards_against_whole(void **state)
{
	static const uint32_t runs[] = {1, 16, 64};
	uint32_t ranks, i;

	(void)state;
	for (ranks = 2; ranks <= 4; ranks++)
		for (i = 0; i < 3; i++) {
			struct attn_case c = {.batch = 5,
					      .len = {4600, 3, 0, 130, 64},
					      .dtype = KERN_F32,
					      .q_len = 1 + 2 * (i & 1),
					      .kv_heads = 2,
					      .group = 2,
					      .dk = 16,
					      .sinks = i != 1,
					      .alibi = i == 2,
					      .seed = 20 + i};

			check_shards(c, ranks, runs[i]);
			c.window = 61;
			c.page_tokens = 24;
			check_shards(c, ranks, runs[i]);
			c.kind = KERN_MLA;
			c.kv_heads = 1;
			c.window = 0;
			c.starts = true;
			c.start[0] = 1000;
			c.start[3] = 129;
			check_shards(c, ranks, runs[i]);
		}
}

/* The shard of a position and back, and counts, by definition. */
static void positions_of_shards(void **state)
{
	struct kern_attn at = {.dcp = 3, .dcp_interleave = 5};
	uint32_t t, n;

	(void)state;
	for (at.dcp_rank = 0; at.dcp_rank < 3; at.dcp_rank++)
		for (t = n = 0; t < 200; t++) {
			assert_int_equal(kern_local(&at, t), n);
			if (t / 5 % 3 == at.dcp_rank)
				assert_int_equal(kern_position(&at, n++), t);
		}
	at.dcp_interleave = 1u << 31;
	assert_int_equal(kern_local(&at, UINT32_MAX), 0);
	at.dcp_rank = 1;
	assert_int_equal(kern_local(&at, UINT32_MAX), (1u << 31) - 1);
	at.dcp = 0;
	assert_int_equal(kern_local(&at, 77), 77);
	assert_int_equal(kern_position(&at, 77), 77);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_parts),	       cmocka_unit_test(one_side_empty),
		cmocka_unit_test(both_sides_empty),    cmocka_unit_test(into_the_first_part),
		cmocka_unit_test(far_apart_and_large), cmocka_unit_test(split_against_unsplit),
		cmocka_unit_test(shards_against_whole),  cmocka_unit_test(positions_of_shards),
		cmocka_unit_test(shard_of_bf16),       cmocka_unit_test(nan_is_never_lost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
