// SPDX-License-Identifier: Apache-2.0
/* The edge cases of decode kernels, by name, on every implementation. attn_case.h puts NaN in every
 * unused row and a wild address in every unused table entry, in all of them. */
#include "attn_case.h"
#include "kern_impl.h"

#include <sys/mman.h>

static void length_zero_alone(void **state)
{
	struct attn_case c = {.kv_heads = 2, .group = 4, .q_len = 3, .seed = 1};
	uint32_t i;

	(void)state;
	attn_build(&c);
	attn_for_each_impl(impl)
	{
		attn_expect(&c, impl);
		for (i = 0; i < c.out_rows; i++)
			assert_true(c.lse[i] == -INFINITY);
		for (i = 0; i < c.out_elems; i++)
			assert_true(((float *)c.out)[i] == 0);
	}
	attn_free(&c);
}

static void length_zero_mixed_in(void **state)
{
	(void)state;
	attn_check_dtypes((struct attn_case){
		.batch = 5, .len = {0, 70, 0, 1, 0}, .group = 4, .strided = true, .seed = 2});
}

/* Rows added to fill a batch have no pages at all: their table is never looked at. */
static void padded_batch_rows(void **state)
{
	struct attn_case c = {.batch = 4, .len = {65, 0, 0, 0}, .group = 2, .seed = 3};

	(void)state;
	attn_build(&c);
	free(c.pte[2]);
	c.pte[2] = NULL;
	attn_for_each_impl(impl) attn_expect(&c, impl);
	attn_free(&c);
}

static void length_one(void **state)
{
	(void)state;
	attn_check_dtypes((struct attn_case){.len = {1}, .group = 4, .seed = 4});
	attn_check_all((struct attn_case){
		.kind = KERN_MLA, .len = {1}, .dk = 64, .dv = 16, .group = 5, .seed = 4});
}

static void last_page_of_one_token_or_full(void **state)
{
	(void)state;
	attn_check_all((struct attn_case){
		.batch = 6, .len = {63, 64, 65, 128, 129, 257}, .group = 4, .seed = 5});
	attn_check_all((struct attn_case){
		.batch = 4, .len = {256, 257, 511, 512}, .group = 3, .page_tokens = 16, .seed = 5});
}

static void fewer_tokens_than_queries(void **state)
{
	(void)state;
	attn_check_all((struct attn_case){
		.batch = 5, .len = {0, 1, 2, 3, 4}, .q_len = 4, .group = 3, .seed = 6});
}

static void page_sizes(void **state)
{
	static const uint32_t sizes[] = {1, 8, 16, 61, 64, 69, 128};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		struct attn_case c = {.page_tokens = sizes[i],
				      .batch = 2,
				      .len = {300, 1025},
				      .group = 4,
				      .repeat = true,
				      .seed = 7 + i};

		attn_check_all(c);
		c.q_len = 3;
		c.window = 700;
		attn_check_all(c);
	}
}

static void groups(void **state)
{
	static const uint32_t sizes[] = {1, 3, 5, 6, 7, 9, 32, 64, 71, 128, 130};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		attn_check_all((struct attn_case){.group = sizes[i],
						  .kv_heads = 2,
						  .dk = 32,
						  .len = {150},
						  .q_len = 1 + i % 3,
						  .alibi = true,
						  .seed = 20 + i});
		attn_check_all((struct attn_case){.kind = KERN_MLA,
						  .group = sizes[i],
						  .dk = 32,
						  .dv = 8,
						  .len = {100},
						  .q_dtype = KERN_BF16,
						  .seed = 20 + i});
	}
}

static void head_sizes(void **state)
{
	static const uint32_t sizes[] = {8, 16, 24, 64, 80, 96, 112, 128, 192, 256, 512, 576};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		struct attn_case c = {.dk = sizes[i], .group = 5, .len = {90}, .seed = 40 + i};

		attn_check_all(c);
		c.q_dtype = KERN_BF16;
		attn_check_all(c);
		c.dtype = c.q_dtype = KERN_F16;
		c.q_len = 2;
		attn_check_all(c);
	}
}

static void k_and_v_of_different_width(void **state)
{
	(void)state;
	attn_check_dtypes(
		(struct attn_case){.dk = 192, .dv = 128, .group = 4, .len = {70}, .seed = 60});
	attn_check_dtypes((struct attn_case){.dk = 8,
					     .dv = 40,
					     .group = 3,
					     .len = {70},
					     .strided = true,
					     .token_major = true,
					     .kv_heads = 2,
					     .seed = 61});
}

static void mla_shapes(void **state)
{
	(void)state;
	attn_check_dtypes((struct attn_case){
		.kind = KERN_MLA, .dk = 512, .dv = 64, .group = 16, .len = {130}, .seed = 62});
	attn_check_all((struct attn_case){.kind = KERN_MLA,
					  .dk = 512,
					  .dv = 64,
					  .group = 128,
					  .q_dtype = KERN_BF16,
					  .q_len = 2,
					  .len = {70},
					  .seed = 63});
	attn_check_dtypes((struct attn_case){.kind = KERN_MLA,
					     .dk = 256,
					     .dv = 32,
					     .group = 7,
					     .batch = 2,
					     .len = {65, 64},
					     .strided = true,
					     .seed = 64});
}

static void soft_cap(void **state)
{
	static const float caps[] = {1e-6f, 1e-3f, 0.5f, 3, 50, 1e30f};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(caps) / sizeof(*caps); i++)
		attn_check_all((struct attn_case){.softcap = caps[i],
						  .spread = i % 2 ? 5 : 0.2f,
						  .group = 4,
						  .batch = 2,
						  .len = {200, 1},
						  .seed = 70 + i});
}

static void window_with_and_without_sinks(void **state)
{
	static const uint32_t windows[] = {1, 2, 63, 64, 65, 199, 200, 201, 100000};
	size_t i;
	int sinks;

	(void)state;
	for (i = 0; i < sizeof(windows) / sizeof(*windows); i++)
		for (sinks = 0; sinks < 2; sinks++)
			attn_check_all((struct attn_case){.window = windows[i],
							  .sinks = sinks,
							  .q_len = 1 + 3 * sinks,
							  .group = 3,
							  .batch = 2,
							  .len = {200, 2},
							  .seed = 80 + i});
}

/* A sink is part of the row even if no token is. */
static void sink_of_an_empty_row(void **state)
{
	struct attn_case c = {.sinks = true, .group = 4, .seed = 90};

	(void)state;
	attn_build(&c);
	attn_for_each_impl(impl)
	{
		attn_expect(&c, impl);
		assert_float_equal(c.lse[3], c.sink[3], 1e-6);
	}
	c.sink[1] = c.sink[2] = -INFINITY;
	free(c.ref_out);
	free(c.ref_lse);
	attn_reference(&c);
	attn_for_each_impl(impl)
	{
		attn_expect(&c, impl);
		assert_true(c.lse[1] == -INFINITY);
	}
	attn_free(&c);
}

static void dropped_head_of_the_sequence(void **state)
{
	(void)state;
	attn_check_all((struct attn_case){.starts = true,
					  .batch = 6,
					  .q_len = 2,
					  .group = 4,
					  .len = {200, 200, 200, 200, 200, 5},
					  .start = {0, 1, 64, 130, 199, 5},
					  .seed = 91});
}

static void alibi_without_power_of_two(void **state)
{
	(void)state;
	attn_check_all((struct attn_case){.alibi = true,
					  .kv_heads = 3,
					  .group = 4,
					  .q_len = 3,
					  .batch = 2,
					  .len = {700, 3},
					  .seed = 92});
	attn_check_all((struct attn_case){
		.alibi = true, .softcap = 2, .kv_heads = 1, .group = 7, .len = {700}, .seed = 93});
}

static void several_queries(void **state)
{
	static const uint32_t nr[] = {2, 3, 4, 16, 33, 130};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(nr) / sizeof(*nr); i++)
		attn_check_all((struct attn_case){.q_len = nr[i],
						  .kv_heads = 2,
						  .group = 3,
						  .dk = 32,
						  .batch = 2,
						  .len = {150, nr[i]},
						  .window = i & 1 ? 40 : 0,
						  .strided = true,
						  .seed = 100 + i});
	attn_check_all((struct attn_case){.q_len = 512,
					  .dk = 16,
					  .group = 2,
					  .len = {600},
					  .q_dtype = KERN_BF16,
					  .seed = 107});
}

/* Every way the ends of what a query sees can stand in a tile, odd ones too. */
static void every_end_within_a_tile(void **state)
{
	static const uint32_t windows[] = {0, 1, 4, 17, 32};
	uint32_t len, i;

	(void)state;
	for (len = 1; len < 140; len++)
		for (i = 0; i < sizeof(windows) / sizeof(*windows); i++)
			attn_check_all((struct attn_case){.q_len = 4,
							  .group = 1 + i,
							  .dk = 8,
							  .page_tokens = 16,
							  .window = windows[i],
							  .q_dtype = KERN_BF16,
							  .len = {len},
							  .seed = 200 + len});
	/* as many queries as make the ragged tiles whole vectors */
	for (len = 60; len < 130; len++)
		for (i = 16; i < 19; i++)
			attn_check_all((struct attn_case){.q_len = i,
							  .window = 40,
							  .dk = 8,
							  .q_dtype = KERN_BF16,
							  .len = {len},
							  .seed = len});
}

/* What a later query sees may be anything for the earlier ones. */
static void nan_ahead_of_a_causal_query(void **state)
{
	struct attn_case c = {
		.q_len = 4, .group = 4, .dk = 64, .len = {72}, .q_dtype = KERN_BF16, .seed = 110};
	float row[64], *ref = NULL;
	uint32_t i, head;

	(void)state;
	attn_build(&c);
	ref = malloc(c.out_elems * 4);
	for (i = 0; i < 64; i++)
		row[i] = i & 1 ? NAN : INFINITY;
	attn_for_each_impl(impl)
	{
		assert_int_equal(attn_run(&c.at, impl), 0);
		for (i = 0; i < c.out_elems; i++)
			ref[i] = kern_num_get(c.q_dtype, c.out, i);
		attn_store(&c.at.view, c.pte[0], 70, 1, row, row);
		attn_store(&c.at.view, c.pte[0], 71, 1, row, row);
		assert_int_equal(attn_run(&c.at, impl), 0);
		for (head = 0; head < 4; head++)
			for (i = 0; i < 2 * 64; i++) {
				size_t at = head * c.at.out_stride_head + i;

				assert_true(kern_num_get(c.q_dtype, c.out, at) == ref[at]);
			}
		assert_true(isnan(kern_num_get(c.q_dtype, c.out, 3 * 64)));
		for (i = 0; i < 64; i++)
			row[i] = 0.25f;
		attn_store(&c.at.view, c.pte[0], 70, 1, row, row);
		attn_store(&c.at.view, c.pte[0], 71, 1, row, row);
		for (i = 0; i < 64; i++)
			row[i] = i & 1 ? NAN : INFINITY;
	}
	free(ref);
	attn_free(&c);
}

/* Logits so low that a finite "minus infinity" would win against them. */
static void very_low_and_high_logits(void **state)
{
	(void)state;
	attn_check_all((struct attn_case){.spread = 200,
					  .group = 4,
					  .len = {300},
					  .q_len = 2,
					  .dtype = KERN_F32,
					  .softcap = 1e-6f,
					  .seed = 111});
	attn_check_all((struct attn_case){
		.alibi = true, .group = 2, .len = {3000}, .window = 9, .dk = 8, .seed = 112});
}

static void scores_of_minus_infinity(void **state)
{
	struct attn_case c = {.dtype = KERN_F32, .dk = 8, .len = {150}, .group = 2, .seed = 113};
	float k[8] = {0}, v[8] = {0};
	float *q;
	uint32_t t;

	(void)state;
	attn_build(&c);
	q = c.q;
	q[0] = q[8] = 1;
	k[0] = -INFINITY;
	for (t = 0; t < 150; t++)
		if (t < 80)
			assert_int_equal(attn_store(&c.at.view, c.pte[0], t, 1, k, v), 0);
	free(c.ref_out);
	free(c.ref_lse);
	attn_reference(&c);
	attn_for_each_impl(impl) attn_expect(&c, impl);
	attn_free(&c);
}

/* Copies what the case built to where another view has it, by addresses worked out here. */
static void copy_to_view(const struct attn_case *c, const struct kern_view *to, const uint64_t *pte)
{
	const struct kern_view *from = &c->at.view;
	uint64_t t, head;

	for (t = 0; t < c->len[0]; t++)
		for (head = 0; head < c->kv_heads; head++) {
			uint64_t row = t % c->page_tokens;
			char *src = (char *)(uintptr_t)c->pte[0][t / c->page_tokens];
			char *dst = (char *)(uintptr_t)pte[t / c->page_tokens];

			src += from->layer_off + head * from->head_stride;
			dst += to->layer_off + head * to->head_stride;
			memcpy(dst + row * to->k_row, src + row * from->k_row, from->k_row);
			memcpy(dst + to->v_off + row * to->v_row,
			       src + from->v_off + row * from->v_row, from->v_row);
		}
}

/* Pages more than 2^32 bytes from each other, and heads and V inside a page: 160 GiB, sparse. */
static void offsets_beyond_32_bits(void **state)
{
	const uint64_t span = 160ull << 30, stride = span / 4;
	struct attn_case c = {.len = {200}, .group = 2, .kv_heads = 3, .seed = 114};
	struct kern_attn at, near;
	uint64_t far[4], t;
	char *base;

	(void)state;
	base = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		    -1, 0);
	if (base == MAP_FAILED)
		skip();
	attn_build(&c);
	at = near = c.at;
	at.view.layer_off = 17ull << 28;
	at.view.head_stride = 23ull << 29;
	at.view.v_off = 19ull << 28;
	at.view.k_row = at.view.v_row = 1ull << 20;
	for (t = 0; t < 4; t++)
		far[t] = (uintptr_t)base + t * stride;
	at.pte = (const uint64_t *const[]){far};
	copy_to_view(&c, &at.view, far);
	c.at = at;
	attn_for_each_impl(impl) attn_expect(&c, impl);
	c.at = near;
	munmap(base, span);
	attn_free(&c);
}

/* The last tokens of a sequence of almost 2^32: its table is sparse too. */
static void positions_beyond_31_bits(void **state)
{
	const uint32_t len = UINT32_MAX - 5, pages = len / 64 + 1;
	struct attn_case c = {
		.len = {200}, .group = 2, .window = 100, .alibi = true, .q_len = 3, .seed = 116};
	uint64_t *pte;
	uint32_t t, shift;
	float k[64], v[64];

	(void)state;
	pte = mmap(NULL, pages * 8ull, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (pte == MAP_FAILED)
		skip();
	attn_build(&c);
	shift = len - 200;
	for (t = 0; t < 4; t++)
		pte[pages - 4 + t] = (uintptr_t)attn_alloc(c.page_bytes);
	for (t = 200 - 102; t < 200; t++) {
		attn_load(&c.at.view, c.pte[0], t, 1, k, v);
		assert_int_equal(attn_store(&c.at.view, pte, t + shift, 1, k, v), 0);
	}
	c.at.pte = (const uint64_t *const[]){pte};
	c.at.kv_len = &len;
	attn_for_each_impl(impl) attn_expect(&c, impl);
	for (t = 0; t < 4; t++)
		free((void *)(uintptr_t)pte[pages - 4 + t]);
	munmap(pte, pages * 8ull);
	attn_free(&c);
}

/* Lengths, windows and dropped heads that end on, before and behind the grid of chunks. */
static void borders_of_chunks(void **state)
{
	static const int32_t off[] = {-64, -1, 0, 1, 17};
	static const uint32_t pages[] = {1, 16, 61, 64, 1024, 4096};
	uint32_t i, j, chunk;

	(void)state;
	for (i = 0; i < sizeof(off) / sizeof(*off); i++)
		for (j = 0; j < sizeof(pages) / sizeof(*pages); j++) {
			struct attn_case c = {.batch = 2,
					      .page_tokens = pages[j],
					      .group = 3,
					      .dk = 16,
					      .q_len = 1 + 2 * (i & 1),
					      .sinks = j & 1,
					      .q_dtype = KERN_BF16,
					      .seed = 300 + 10 * i + j};

			c.at.view.page_tokens = pages[j];
			chunk = kern_chunk_tokens(&c.at.view);
			c.len[0] = chunk + off[i];
			c.len[1] = 2 * chunk + off[i];
			attn_check_all(c);
			c.window = 2048 + off[4 - i];
			attn_check_all(c);
			c.starts = c.ends = true;
			c.start[0] = c.start[1] = chunk + off[4 - i];
			c.end[0] = c.end[1] = 2 * chunk + off[i] - 1;
			attn_check_all(c);
		}
}

/* kern_attn() on one sequence of the batch gives the same bits as on the whole batch. */
static void batch_against_single(void **state)
{
	struct attn_case c = {.batch = 4,
			      .len = {300, 5, 0, 513},
			      .q_len = 2,
			      .kv_heads = 2,
			      .group = 4,
			      .sinks = true,
			      .strided = true,
			      .seed = 115};

	(void)state;
	attn_build(&c);
	attn_for_each_impl(impl)
	{
		attn_expect_singles(&c, impl);
	}
	attn_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(length_zero_alone),
		cmocka_unit_test(length_zero_mixed_in),
		cmocka_unit_test(padded_batch_rows),
		cmocka_unit_test(length_one),
		cmocka_unit_test(last_page_of_one_token_or_full),
		cmocka_unit_test(fewer_tokens_than_queries),
		cmocka_unit_test(page_sizes),
		cmocka_unit_test(groups),
		cmocka_unit_test(head_sizes),
		cmocka_unit_test(k_and_v_of_different_width),
		cmocka_unit_test(mla_shapes),
		cmocka_unit_test(soft_cap),
		cmocka_unit_test(window_with_and_without_sinks),
		cmocka_unit_test(sink_of_an_empty_row),
		cmocka_unit_test(dropped_head_of_the_sequence),
		cmocka_unit_test(alibi_without_power_of_two),
		cmocka_unit_test(several_queries),
		cmocka_unit_test(every_end_within_a_tile),
		cmocka_unit_test(nan_ahead_of_a_causal_query),
		cmocka_unit_test(very_low_and_high_logits),
		cmocka_unit_test(scores_of_minus_infinity),
		cmocka_unit_test(offsets_beyond_32_bits),
		cmocka_unit_test(positions_beyond_31_bits),
		cmocka_unit_test(borders_of_chunks),
		cmocka_unit_test(batch_against_single),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
