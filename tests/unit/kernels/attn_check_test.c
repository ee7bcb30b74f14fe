// SPDX-License-Identifier: Apache-2.0
/* What a call may ask for, and which implementation answers. */
#include "attn_case.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t page[64];
static const uint64_t table[1] = {(uintptr_t)0};
static const uint64_t *const tables[1] = {table};
static const uint32_t len;
static float q[64], out[64];

static struct kern_attn good(void)
{
	return (struct kern_attn){
		.view = {.kind = KERN_GQA,
			 .dtype = KERN_BF16,
			 .page_tokens = 4,
			 .kv_heads = 2,
			 .head_dim = 8,
			 .head_dim_v = 8,
			 .head_stride = 128,
			 .v_off = 64,
			 .k_row = 16,
			 .v_row = 16},
		.batch = 1,
		.heads = 4,
		.q_len = 1,
		.q_dtype = KERN_F32,
		.pte = tables,
		.kv_len = &len,
		.q = q,
		.out = out,
		.q_stride_head = 8,
		.out_stride_head = 8,
		.scale = 1,
	};
}

static struct kern_attn good_mla(void)
{
	struct kern_attn at = good();

	at.view = (struct kern_view){.kind = KERN_MLA,
				     .dtype = KERN_F16,
				     .page_tokens = 4,
				     .kv_heads = 1,
				     .head_dim = 8,
				     .head_dim_v = 8,
				     .k_row = 32};
	return at;
}

#define REJECTED(base, change) \
	do { \
		struct kern_attn at = base(); \
\
		assert_int_equal(kern_attn_check(&at), 0); \
		at.change; \
		out[0] = 7; \
		assert_int_equal(kern_attn_check(&at), -EINVAL); \
		for (int i = KERN_AUTO; i < KERN_NR_IMPL; i++) { \
			assert_int_equal(kern_attn(&at, i, page), -EINVAL); \
			assert_int_equal(kern_attn_scratch(&at, i), 0); \
		} \
		assert_true(out[0] == 7); \
	} while (0)

static void views_rejected(void **state)
{
	(void)state;
	REJECTED(good, view.kind = 0);
	REJECTED(good, view.kind = 3);
	REJECTED(good, view.dtype = 0);
	REJECTED(good, view.dtype = KERN_F8_DS); /* GQA has no such rows */
	REJECTED(good, view.dtype = KERN_F8_DS + 1);
	REJECTED(good, view.scale = KERN_SCALE_HEAD); /* bf16 needs none */
	REJECTED(good, view.scale = KERN_SCALE_TOKEN);
	REJECTED(good, view.k_scale_off = 4);
	REJECTED(good, view.v_scale_off = 4);
	REJECTED(good, view.page_tokens = 0);
	REJECTED(good, view.kv_heads = 0);
	REJECTED(good, view.kv_heads = KERN_MAX_HEADS + 1);
	REJECTED(good, view.head_dim = 0);
	REJECTED(good, view.head_dim = 12);
	REJECTED(good, view.head_dim = KERN_MAX_DIM + 8);
	REJECTED(good, view.head_dim_v = 0);
	REJECTED(good, view.head_dim_v = 4);
	REJECTED(good, view.k_row = 14);
	REJECTED(good, view.k_row = 17);
	REJECTED(good, view.v_row = 8);
	REJECTED(good, view.v_off = 65);
	REJECTED(good, view.layer_off = 1);
	REJECTED(good, view.head_stride = 129);
	REJECTED(good_mla, view.kv_heads = 2);
	REJECTED(good_mla, view.head_stride = 32);
	REJECTED(good_mla, view.v_off = 16);
	REJECTED(good_mla, view.v_row = 32);
	REJECTED(good_mla, view.k_row = 30);
	REJECTED(good_mla, view.head_dim = KERN_MAX_DIM);
	REJECTED(good_mla, view.dtype = KERN_F8_DS); /* rank 8 is no multiple of 128 */
}

static struct kern_attn f8(void)
{
	struct kern_attn at = good();

	at.view.dtype = KERN_F8;
	at.view.scale = KERN_SCALE_TOKEN;
	at.view.k_scale_off = 256;
	at.view.v_scale_off = 272;
	return at;
}

static struct kern_attn f8_mla(void)
{
	struct kern_attn at = good_mla();

	at.view.dtype = KERN_F8;
	at.view.scale = KERN_SCALE_TOKEN;
	at.view.k_scale_off = 256;
	return at;
}

static struct kern_attn ds(void)
{
	struct kern_attn at = good_mla();

	at.view.dtype = KERN_F8_DS;
	at.view.head_dim = 128;
	at.view.head_dim_v = 64;
	at.view.k_row = 128 + 4 + 128;
	at.out_stride_head = 128;
	return at;
}

static void scaled_views_rejected(void **state)
{
	(void)state;
	REJECTED(f8, view.scale = KERN_SCALE_TOKEN + 1);
	REJECTED(f8, view.scale = KERN_SCALE_HEAD); /* it has no place in the page */
	REJECTED(f8, view.scale = KERN_SCALE_NONE);
	REJECTED(f8, view.k_scale_off = 258);
	REJECTED(f8, view.v_scale_off = 257);
	REJECTED(f8, view.layer_off = 2);
	REJECTED(f8, view.head_stride = 130);
	REJECTED(f8_mla, view.v_scale_off = 4);
	REJECTED(ds, view.k_row = 256);
	REJECTED(ds, view.k_row = 262);
	REJECTED(ds, view.layer_off = 2);
	REJECTED(ds, view.head_dim = 136);
	REJECTED(ds, view.scale = KERN_SCALE_HEAD);
}

static void calls_rejected(void **state)
{
	(void)state;
	REJECTED(good, heads = 0);
	REJECTED(good, heads = 3);
	REJECTED(good, heads = KERN_MAX_HEADS + 2);
	REJECTED(good, q_len = 0);
	REJECTED(good, q_len = KERN_MAX_Q + 1);
	REJECTED(good, q_dtype = 0);
	REJECTED(good, q_dtype = 4);
	REJECTED(good, pte = NULL);
	REJECTED(good, kv_len = NULL);
	REJECTED(good, q = NULL);
	REJECTED(good, out = NULL);
	REJECTED(good, scale = NAN);
	REJECTED(good, scale = INFINITY);
	REJECTED(good, softcap = -1);
	REJECTED(good, dcp = 2);
	REJECTED(good, dcp = 2; at.dcp_interleave = 1; at.dcp_rank = 2);
	REJECTED(good, softcap = NAN);
	REJECTED(good, out_stride_head = 7);
	REJECTED(good, q_len = 2);
	REJECTED(good, batch = 2);
}

static void an_empty_batch_needs_nothing(void **state)
{
	struct kern_attn at = good();

	(void)state;
	at.batch = 0;
	at.pte = NULL;
	at.kv_len = NULL;
	at.q = NULL;
	at.out = NULL;
	for (int i = KERN_REF; i < KERN_NR_IMPL; i++)
		if (kern_impl_usable(i))
			assert_int_equal(attn_run(&at, i), 0);
}

static void scratch_is_asked_for_and_aligned(void **state)
{
	struct kern_attn at = good();
	char *scratch;
	size_t bytes;

	(void)state;
	attn_for_each_impl(impl)
	{
		bytes = kern_attn_scratch(&at, impl);
		assert_true(bytes > 0);
		scratch = attn_alloc(bytes);
		assert_int_equal(kern_attn(&at, impl, NULL), -EINVAL);
		assert_int_equal(kern_attn(&at, impl, scratch + 4), -EINVAL);
		assert_int_equal(kern_attn(&at, impl, scratch), 0);
		free(scratch);
	}
}

static void names_and_unknown_implementations(void **state)
{
	struct kern_attn at = good();

	(void)state;
	assert_string_equal(kern_impl_name(KERN_REF), "ref");
	assert_string_equal(kern_impl_name(KERN_GENERIC), "generic");
	assert_string_equal(kern_impl_name(KERN_AVX2), "avx2");
	assert_string_equal(kern_impl_name(KERN_AVX512), "avx512");
	assert_string_equal(kern_impl_name(KERN_AVX512_BF16), "avx512bf16");
	assert_string_equal(kern_impl_name(KERN_AMX), "amx");
	assert_string_equal(kern_impl_name(KERN_NR_IMPL), "unknown");
	assert_true(kern_impl_usable(KERN_REF) && kern_impl_usable(KERN_GENERIC));
	assert_false(kern_impl_usable(KERN_NR_IMPL));
	assert_int_equal(kern_attn(&at, KERN_NR_IMPL, page), -EOPNOTSUPP);
	assert_int_equal(kern_dtype_size(KERN_F32), 4);
	assert_int_equal(kern_dtype_size(KERN_F16), 2);
	assert_int_equal(kern_dtype_size(KERN_BF16), 2);
	assert_int_equal(kern_dtype_size(0), 0);
}

/* The choice is made once a process, so each question is asked in a fork. */
static int answer_with(const char *forced)
{
	struct kern_attn at = good();
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid) {
		bool fast;
		enum kern_impl impl;

		if (forced)
			setenv("KV_CPU", forced, 1);
		else
			unsetenv("KV_CPU");
		impl = kern_attn_query(&at, &fast);
		if (impl != KERN_AUTO && attn_run(&at, KERN_AUTO))
			_exit(100);
		if (impl == KERN_AUTO && kern_attn(&at, KERN_AUTO, page) != -EOPNOTSUPP)
			_exit(101);
		_exit(impl);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void environment_forces_one(void **state)
{
	(void)state;
	for (int i = KERN_REF; i < KERN_NR_IMPL; i++)
		assert_int_equal(answer_with(kern_impl_name(i)),
				 kern_impl_usable(i) ? i : KERN_AUTO);
	assert_int_equal(answer_with("no-such-cpu"), KERN_AUTO);
	assert_int_equal(answer_with(""), answer_with(NULL));
	assert_true(answer_with(NULL) >= KERN_GENERIC);
}

/* Memory that was sized for one call does for all calls of the shape; and it is not much. */
static void scratch_depends_on_the_shape_only(void **state)
{
	static const float per_head[4];
	struct kern_attn at = good();
	uint32_t impl;

	(void)state;
	at.view.head_dim = at.view.head_dim_v = KERN_MAX_DIM;
	at.view.k_row = at.view.v_row = KERN_MAX_DIM * 2;
	at.out_stride_seq = at.out_stride_tok = at.out_stride_head = KERN_MAX_DIM;
	for (at.q_dtype = KERN_F32; at.q_dtype <= KERN_BF16; at.q_dtype++)
		for (impl = KERN_AUTO; impl < KERN_NR_IMPL; impl++) {
			struct kern_attn other = at;
			size_t bytes = kern_attn_scratch(&at, impl);

			other.batch = 9;
			other.lse = out;
			other.softcap = 3;
			other.window = 5;
			other.sinks = other.alibi = per_head;
			other.dcp = 2;
			other.dcp_interleave = 16;
			other.kv_start = other.kv_end = &len;
			assert_int_equal(kern_attn_scratch(&other, impl), bytes);
			assert_true(bytes < (impl == KERN_AUTO || impl == KERN_AMX ? 1150 : 900)
						    << 10);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(environment_forces_one),
		cmocka_unit_test(views_rejected),
		cmocka_unit_test(scaled_views_rejected),
		cmocka_unit_test(calls_rejected),
		cmocka_unit_test(an_empty_batch_needs_nothing),
		cmocka_unit_test(scratch_is_asked_for_and_aligned),
		cmocka_unit_test(scratch_depends_on_the_shape_only),
		cmocka_unit_test(names_and_unknown_implementations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
