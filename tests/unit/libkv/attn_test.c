// SPDX-License-Identifier: Apache-2.0
/* kv_attn() over sequences against float64 attention over the rows their histories say, computed
 * without any page: after appends, matches, forks, copy-on-write and truncation. */
#include <pthread.h>

#include "attn_fixture.h"

/* ---- sequences in every condition ------------------------------------------------------------ */

static void life(uint32_t kind, uint32_t dtype, uint32_t window)
{
	struct kv_seq *s[MAX_BATCH];
	uint32_t prompt[MAX_TOK], i, hit;

	fix_open(&f, "embedded:host:8M", fix_layout(kind, dtype, PT), window);
	assert_int_equal(kv_seq_create(f.cache, NULL, 0, &s[0]), 0);
	check_all(s, 1); /* no tokens at all */
	extend(s[0], 100, 1, false);
	check_all(s, 1);
	extend(s[0], 101, 21, true);
	assert_int_equal(kv_seq_fork(s[0], &s[1]), 0);
	check_all(s, 2);
	extend(s[1], 500, 5, false); /* copies the tail */
	extend(s[0], 122, 2, true);
	check_all(s, 2);
	for (i = 0; i < 30; i++)
		prompt[i] = 100 + i;
	assert_int_equal(kv_seq_create(f.cache, NULL, 0, &s[2]), 0);
	assert_int_equal(kv_seq_match(s[2], prompt, 24, &hit), 0);
	assert_int_equal(hit, 23);
	check_all(s + 2, 1);
	assert_int_equal(kv_seq_truncate(s[0], 22), 0);
	check_all(s, 3);
	extend(s[0], 900, 4, true);
	assert_int_equal(kv_seq_create(f.cache, NULL, 0, &s[3]), 0);
	check_all(s, 4); /* an empty one among others */
	assert_int_equal(kv_seq_park(s[1]), 0);
	assert_int_equal(kv_seq_resume(s[1], &hit), 0);
	check_all(s, 4);
	if (window) {
		assert_int_equal(kv_seq_drop_head(s[0], 1, 26 + 1 - FIX_WINDOW - MAX_Q), 0);
		check_all(s, 4);
	}
	for (i = 0; i < 4; i++)
		kv_seq_release(s[i]);
	fix_close(&f);
}

#define LIFE(name, kind, dtype, window) \
	static void name(void **state) \
	{ \
		(void)state; \
		life(kind, dtype, window); \
	}

LIFE(gqa_f32, KV_GQA, KV_F32, 0)
LIFE(gqa_f16, KV_GQA, KV_F16, FIX_WINDOW)
LIFE(gqa_bf16, KV_GQA, KV_BF16, FIX_WINDOW)
LIFE(mla_f32, KV_MLA, KV_F32, FIX_WINDOW)
LIFE(mla_f16, KV_MLA, KV_F16, 0)
LIFE(mla_bf16, KV_MLA, KV_BF16, FIX_WINDOW)

/* ---- arguments ------------------------------------------------------------------------------- */

static void shorter_lens(void **state)
{
	struct kv_seq *s;
	uint32_t len;
	struct check c = {.seqs = &s, .lens = &len, .batch = 1, .q_len = 1, .heads = 4};

	(void)state;
	fix_open(&f, "embedded:host:8M", fix_layout(KV_GQA, KV_F32, PT), FIX_WINDOW);
	assert_int_equal(kv_seq_create(f.cache, NULL, 0, &s), 0);
	extend(s, 100, 22, true);
	for (c.group = 0; c.group < 2; c.group++)
		for (len = 0; len <= 22; len++)
			check(&c);
	len = 23;
	assert_int_equal(call(&c), -EINVAL);
	assert_int_equal(kv_seq_drop_head(s, 1, 13), 0); /* to 12 */
	c.group = 1;
	len = 22;
	check(&c);
	len = 21;
	assert_int_equal(call(&c), -EINVAL);
	assert_non_null(strstr(kv_error(), "token 11"));
	c.group = 0;
	check(&c);
	kv_seq_release(s);
	fix_close(&f);
}

static void refused(const char *text, struct kv_attn a)
{
	assert_int_equal(kv_attn(f.cache, &a), -EINVAL);
	if (!strstr(kv_error(), text))
		fail_msg("'%s' lacks '%s'", kv_error(), text);
}

#define WITH(...) \
	({ \
		struct kv_attn a_ = good; \
		__VA_ARGS__; \
		a_; \
	})

static void bad_arguments(void **state)
{
	struct kv_seq *s, *parked, *none = NULL;
	struct kv_attn good = {.batch = 1, .seqs = &s, .heads = 4, .q = q_mem, .out = out_mem};
	const uint64_t *pte[1];
	uint32_t len = 5;

	(void)state;
	fix_open(&f, "embedded:host:8M", fix_layout(KV_GQA, KV_F32, PT), 0);
	assert_int_equal(kv_seq_create(f.cache, NULL, 0, &s), 0);
	assert_int_equal(kv_seq_create(f.cache, NULL, 0, &parked), 0);
	assert_int_equal(kv_seq_park(parked), 0);
	extend(s, 1, 5, true);
	assert_int_equal(kv_attn(f.cache, &good), 0);
	refused("group 1", WITH(a_.group = 1));
	refused("layer 2", WITH(a_.layer = 2));
	refused("5 heads", WITH(a_.heads = 5));
	refused("0 heads", WITH(a_.heads = 0));
	refused("q_len 513", WITH(a_.q_len = 513));
	refused("q_dtype is 7", WITH(a_.q_dtype = 7));
	refused("q or out", WITH(a_.q = NULL));
	refused("q or out", WITH(a_.out = NULL));
	refused("seqs", WITH(a_.seqs = NULL));
	refused("NULL", WITH(a_.seqs = &none));
	refused("parked", WITH(a_.seqs = &parked));
	refused("softcap", WITH(a_.softcap = -1));
	refused("scale", WITH(a_.scale = NAN));
	assert_int_equal(kv_attn(f.cache, NULL), -EINVAL);
	good.batch = 0;
	assert_int_equal(kv_attn(f.cache, &good), 0);
	good.batch = 1;
	pte[0] = kv_seq_pte(s, 0, NULL);
	assert_int_equal(kv_attn_pages(f.cache, &good, pte, &len), 0);
	assert_int_equal(kv_attn_pages(f.cache, &good, NULL, &len), -EINVAL);
	assert_int_equal(kv_attn_pages(f.cache, &good, pte, NULL), -EINVAL);
	kv_seq_release(s);
	kv_seq_release(parked);
	fix_close(&f);
}

static void mla_needs_a_scale(void **state)
{
	struct kv_attn a = {.heads = 4};
	const char *impl = NULL;
	bool fast;

	(void)state;
	fix_open(&f, "embedded:host:8M", fix_layout(KV_MLA, KV_F32, PT), 0);
	assert_int_equal(kv_attn(f.cache, &a), -EINVAL);
	assert_non_null(strstr(kv_error(), "scale"));
	assert_int_equal(kv_attn_query(f.cache, &a, &impl, &fast), -EINVAL);
	a.scale = 0.1f;
	assert_int_equal(kv_attn_query(f.cache, &a, &impl, &fast), 0);
	assert_non_null(impl);
	assert_true(!strcmp(impl, "ref") || !strcmp(impl, "generic") || !strcmp(impl, "avx2") ||
		    !strncmp(impl, "avx512", 6) || !strcmp(impl, "amx"));
	assert_int_equal(kv_attn_query(f.cache, &a, NULL, NULL), 0);
	fix_close(&f);
}

/* kv_store_pages() and kv_attn_pages() on pages of the caller's own, no sequence anywhere. */
static void raw_pages(void **state)
{
	static float k[6 * FIX_MAX_ROW], v[6 * FIX_MAX_ROW];
	uint32_t tokens[6] = {1, 2, 3, 4, 5, 6}, i, h, vw, kw, len = 6;
	static struct dense d;
	struct check c = {.batch = 1, .q_len = 1, .heads = 4, .layer = 1};
	struct kv_attn a = {
		.batch = 1, .heads = 4, .layer = 1, .q = q_mem, .out = out_mem, .lse = lse_mem};
	uint64_t ids[2], pte[2];
	const uint64_t *ptes[1] = {pte};

	(void)state;
	fix_open(&f, "embedded:host:8M", fix_layout(KV_GQA, KV_F32, PT), 0);
	kw = fix_widths(&f.params.group[0].layout, &vw);
	assert_int_equal(kv_pages_alloc(f.cache, 0, 2, ids), 0);
	assert_int_equal(kv_pages_pte(f.cache, 0, 2, ids, pte), 0);
	for (i = 0; i < 6; i++) {
		fix_row(fix_history(tokens, i, 0), 0, 1, k + i * kw, kw, 0);
		fix_row(fix_history(tokens, i, 0), 0, 1, v + i * vw, vw, 1);
	}
	assert_int_equal(kv_store_pages(f.cache, 0, 1, pte, 0, 2, k, v), 0);
	assert_int_equal(kv_store_pages(f.cache, 0, 1, pte, 2, 4, k + 2 * kw, v + 2 * vw), 0);
	assert_int_equal(kv_store_pages(f.cache, 1, 1, pte, 0, 1, k, v), -EINVAL);
	assert_int_equal(kv_store_pages(f.cache, 0, 2, pte, 0, 1, k, v), -EINVAL);
	assert_int_equal(kv_store_pages(f.cache, 0, 1, NULL, 0, 1, k, v), -EINVAL);
	assert_int_equal(kv_attn_pages(f.cache, &a, ptes, &len), 0);
	load_dense(&d, tokens, 6, 0, 1, 4);
	compare(&c, &d, 0, 6);
	for (h = 0; h < 2; h++)
		assert_int_equal(kv_page_free(f.cache, 0, ids[h]), 0);
	fix_close(&f);
}

/* ---- at once --------------------------------------------------------------------------------- */

struct worker {
	struct kv_seq *seq;
	const float *want; /* of one call alone */
	int err;
};

/* Stores of different sequences and attention over all of them at the same time. */
static void *work(void *arg)
{
	struct worker *w = arg;
	float out[4 * 8], q[4 * 16];
	struct kv_attn a = {.batch = 1, .seqs = &w->seq, .heads = 4, .q = q, .out = out};
	uint32_t i;

	for (i = 0; i < 4 * 16; i++)
		q[i] = (float)i / 64;
	for (i = 0; i < 50 && !w->err; i++) {
		w->err = kv_attn(f.cache, &a);
		if (!w->err && memcmp(out, w->want, sizeof(out)))
			w->err = -EIO;
	}
	return NULL;
}

static void concurrent(void **state)
{
	struct worker w[4] = {0};
	pthread_t thread[4];
	float want[4][4 * 8], q[4 * 16];
	uint32_t i;

	(void)state;
	fix_open(&f, "embedded:host:8M", fix_layout(KV_GQA, KV_F32, PT), 0);
	for (i = 0; i < 4 * 16; i++)
		q[i] = (float)i / 64;
	for (i = 0; i < 4; i++) {
		struct kv_attn a = {
			.batch = 1, .seqs = &w[i].seq, .heads = 4, .q = q, .out = want[i]};

		assert_int_equal(kv_seq_create(f.cache, NULL, 0, &w[i].seq), 0);
		extend(w[i].seq, 100 * i, 5 + 7 * i, false);
		assert_int_equal(kv_attn(f.cache, &a), 0);
		w[i].want = want[i];
	}
	for (i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, work, &w[i]), 0);
	for (i = 0; i < 4; i++) {
		pthread_join(thread[i], NULL);
		assert_int_equal(w[i].err, 0);
		kv_seq_release(w[i].seq);
	}
	fix_close(&f);
}

static void merge(void **state)
{
	float a[2] = {1, 2}, b[2] = {3, 4}, la[1] = {0}, lb[1] = {logf(3)}, out[2], lse[1];
	const float *parts[] = {a, b}, *lses[] = {la, lb};

	(void)state;
	kv_attn_merge(out, lse, parts, lses, 2, 1, 2);
	assert_true(fabsf(out[0] - 2.5f) < 1e-6 && fabsf(out[1] - 3.5f) < 1e-6);
	assert_true(fabsf(lse[0] - logf(4)) < 1e-6);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gqa_f32),	     cmocka_unit_test(gqa_f16),
		cmocka_unit_test(gqa_bf16),	     cmocka_unit_test(mla_f32),
		cmocka_unit_test(mla_f16),	     cmocka_unit_test(mla_bf16),
		cmocka_unit_test(shorter_lens),	     cmocka_unit_test(bad_arguments),
		cmocka_unit_test(mla_needs_a_scale), cmocka_unit_test(raw_pages),
		cmocka_unit_test(concurrent),	     cmocka_unit_test(merge),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
