// SPDX-License-Identifier: Apache-2.0
/* One plan for all layers of a step: the bits of calls of their own, by an engine's threads and by
 * libkv's; a plan that no longer holds is refused, one that still does is not. */

#include "seq_fixture.h"

#define PAGES	24u
#define ENTRIES 110u /* three chunks and a half */
#define BATCH	4u
#define HEADS	16u
#define LAYERS	5u
#define Q_MEM	(BATCH * 2 * HEADS * 16)
#define OUT_MEM (BATCH * 2 * HEADS * 8)

static struct fix f;
static uint64_t ids[PAGES], pages[PAGES], tables[BATCH][ENTRIES];
static const uint64_t *const ptes[BATCH] = {tables[0], tables[1], tables[2], tables[3]};
static uint32_t lens[BATCH];
static float q[LAYERS][Q_MEM], sinks[LAYERS][HEADS], slopes[HEADS];
static float out[OUT_MEM], lse[BATCH * 2 * HEADS];
static float want[LAYERS][OUT_MEM], want_lse[LAYERS][BATCH * 2 * HEADS];

static void ok(int err)
{
	if (err)
		fail_msg("%d: %s", err, kv_error());
}

static float value(uint64_t *r)
{
	*r = fix_mix(*r, 7);
	return (float)(int)(*r & 255) / 128 - 1;
}

static void fill_pages(void)
{
	static float k[64 * 2 * 16], v[64 * 2 * 8];
	uint32_t i, j, layer;
	uint64_t r = 1;

	for (i = 0; i < PAGES; i++)
		for (layer = 0; layer < LAYERS; layer++) {
			for (j = 0; j < sizeof(k) / sizeof(*k); j++)
				k[j] = value(&r);
			for (j = 0; j < sizeof(v) / sizeof(*v); j++)
				v[j] = value(&r);
			ok(kv_store_pages(f.cache, 0, layer, pages + i, 0, 64, k, v));
		}
}

/* Sequences 0, 1 and 2 share 64 pages; each is of another length. */
static void open_tables(uint32_t dtype)
{
	struct kv_layout l = fix_layout(KV_GQA, dtype, 64);
	uint64_t r = 2;
	uint32_t i, j;

	l.layers = LAYERS;
	fix_open(&f, "embedded:host:16M", l, 0);
	ok(kv_pages_alloc(f.cache, 0, PAGES, ids));
	ok(kv_pages_pte(f.cache, 0, PAGES, ids, pages));
	fill_pages();
	for (i = 0; i < BATCH; i++) {
		lens[i] = ENTRIES * 64 - 13 * i * i;
		for (j = 0; j < ENTRIES; j++)
			tables[i][j] = pages[(j * 7 + (i == 3 || j >= 64 ? i : 0)) % PAGES];
	}
	for (i = 0; i < LAYERS; i++) {
		for (j = 0; j < Q_MEM; j++)
			q[i][j] = value(&r);
		for (j = 0; j < HEADS; j++)
			sinks[i][j] = 3 * value(&r);
	}
	for (i = 0; i < HEADS; i++)
		slopes[i] = (1 + value(&r)) / 100;
}

static void close_tables(void)
{
	ok(kv_pages_free(f.cache, 0, PAGES, ids));
	fix_close(&f);
}

/* A model whose layers are not alike. */
static struct kv_attn call_of(uint32_t layer, uint32_t q_len)
{
	return (struct kv_attn){.layer = layer,
				.batch = BATCH,
				.heads = HEADS,
				.q_len = q_len,
				.q = q[layer],
				.out = out,
				.lse = lse,
				.scale = 0.1f + 0.05f * (float)layer,
				.softcap = layer == 2 ? 5 : 0,
				.sinks = layer % 2 ? sinks[layer] : NULL,
				.alibi = layer == 3 ? slopes : NULL};
}

static void want_all(uint32_t q_len)
{
	uint32_t layer;

	for (layer = 0; layer < LAYERS; layer++) {
		struct kv_attn a = call_of(layer, q_len);

		a.out = want[layer];
		a.lse = want_lse[layer];
		ok(kv_attn_pages(f.cache, &a, ptes, lens));
	}
}

static void expect(uint32_t layer, uint32_t q_len)
{
	assert_memory_equal(out, want[layer], sizeof(out) / 2 * q_len);
	assert_memory_equal(lse, want_lse[layer], sizeof(lse) / 2 * q_len);
	memset(out, 0x5a, sizeof(out));
	memset(lse, 0x5a, sizeof(lse));
}

static void all_layers(uint32_t q_len, uint32_t threads, bool own)
{
	struct kv_attn_plan *plan = NULL;
	uint32_t layer;

	for (layer = 0; layer < LAYERS; layer++) {
		struct kv_attn a = call_of(layer, q_len);

		ok(layer ? kv_attn_next(plan, &a)
			 : kv_attn_plan_pages(f.cache, &a, ptes, lens, threads, &plan));
		memset(&a, 0xff, sizeof(a)); /* was copied */
		if (own)
			fix_run_items(plan, threads);
		else
			ok(kv_attn_run(plan));
		expect(layer, q_len);
	}
	ok(kv_attn_finish(plan));
}

static void the_bits_of_calls_of_their_own(void **state)
{
	static const uint32_t dtypes[] = {KV_F32, KV_BF16};
	uint32_t i, q_len, threads;

	(void)state;
	for (i = 0; i < 2; i++) {
		open_tables(dtypes[i]);
		for (q_len = 1; q_len <= 2; q_len++) {
			ok(kv_threads_set(1));
			want_all(q_len);
			for (threads = 1; threads <= 4; threads++)
				all_layers(q_len, threads, true);
			all_layers(q_len, 0, false);
			ok(kv_threads_set(3));
			all_layers(q_len, 0, false);
			all_layers(q_len, 1, false);
			all_layers(q_len, 7, false);
		}
		ok(kv_threads_set(1));
		close_tables();
	}
}

static void refuse(struct kv_attn_plan *plan, const struct kv_attn *a, int err, const char *word)
{
	assert_int_equal(kv_attn_next(plan, a), err);
	if (!strstr(kv_error(), word))
		fail_msg("%s does not say %s", kv_error(), word);
}

static void other_calls_are_refused(void **state)
{
	struct kv_attn a = call_of(0, 1), b;
	struct kv_attn_plan *plan;

	(void)state;
	open_tables(KV_F32);
	want_all(1);
	ok(kv_attn_plan_pages(f.cache, &a, ptes, lens, 2, &plan));
	refuse(plan, &a, -EINVAL, "0 items were run");
	ok(kv_attn_run(plan));
	assert_int_equal(kv_attn_run(plan), -EINVAL);
	b = a;
	b.batch--;
	refuse(plan, &b, -EINVAL, "another group, batch");
	b = a;
	b.heads = 8;
	refuse(plan, &b, -EINVAL, "heads");
	b = a;
	b.q_len = 2;
	refuse(plan, &b, -EINVAL, "q_len");
	b = a;
	b.q_dtype = KV_BF16;
	refuse(plan, &b, -EINVAL, "q_dtype");
	b = a;
	b.dcp = 2;
	b.dcp_interleave = 1;
	refuse(plan, &b, -EINVAL, "dcp");
	b = a;
	b.group = 1;
	refuse(plan, &b, -EINVAL, "group 1 does not exist");
	b = a;
	b.layer = LAYERS;
	refuse(plan, &b, -EINVAL, "layer 5 does not exist");
	b = a;
	b.q = NULL;
	refuse(plan, &b, -EINVAL, "q or out");
	assert_int_equal(kv_attn_next(NULL, &a), -EINVAL);
	assert_int_equal(kv_attn_next(plan, NULL), -EINVAL);
	assert_int_equal(kv_attn_run(NULL), -EINVAL);
	a = call_of(4, 1);
	ok(kv_attn_next(plan, &a)); /* it is as it was */
	ok(kv_attn_run(plan));
	expect(4, 1);
	ok(kv_attn_next(plan, &a));
	assert_int_equal(kv_attn_finish(plan), -EINVAL); /* nothing was run */
	a.batch = 0;
	ok(kv_attn_plan_pages(f.cache, &a, ptes, lens, 2, &plan));
	ok(kv_attn_run(plan));
	ok(kv_attn_next(plan, &a));
	ok(kv_attn_run(plan));
	ok(kv_attn_finish(plan));
	close_tables();
}

static void tables_that_changed(void **state)
{
	struct kv_attn a = call_of(0, 1);
	struct kv_attn_plan *plan;
	uint64_t word;
	uint32_t i;

	(void)state;
	open_tables(KV_F32);
	ok(kv_attn_plan_pages(f.cache, &a, ptes, lens, 3, &plan));
	ok(kv_attn_run(plan));
	for (i = 0; i < 3; i++) {
		/* shared: the first and the last such entry */
		word = tables[i][0];
		tables[i][0] = pages[1];
		refuse(plan, &a, -ESTALE, "make another");
		tables[i][0] = word;
		word = tables[i][63];
		tables[i][63] = pages[(63 * 7 + 1) % PAGES];
		refuse(plan, &a, -ESTALE, "make another");
		tables[i][63] = word;
	}
	lens[3]--;
	refuse(plan, &a, -ESTALE, "lengths");
	lens[3]++;
	/* all three alike, and what nobody shares: the plan holds, what is read is what is there */
	for (i = 0; i < 3; i++)
		tables[i][5] = pages[3];
	tables[1][70] = pages[4];
	tables[3][2] = pages[5];
	want_all(1);
	ok(kv_attn_next(plan, &a));
	ok(kv_attn_run(plan));
	expect(0, 1);
	ok(kv_attn_finish(plan));
	close_tables();
}

/* Sequences of their own pages with the same tokens: committing the second one swaps its pages for
 * those of the first. */
static void sequences_whose_pages_change(void **state)
{
	uint32_t tokens[64], i;
	struct kv_seq *s[2];
	struct kv_attn a = call_of(1, 1);
	struct kv_attn_plan *plan;
	const uint64_t *pte;
	uint64_t was;

	(void)state;
	for (i = 0; i < 64; i++)
		tokens[i] = i + 1;
	fix_open(&f, "embedded:host:8M", fix_layout(KV_GQA, KV_F32, 4), 0);
	for (i = 0; i < 2; i++) {
		ok(kv_seq_create(f.cache, NULL, 0, &s[i]));
		ok(kv_seq_append(s[i], tokens, 41));
		fix_store(&f, s[i], 0, 0, 41);
	}
	a.batch = 2;
	a.seqs = s;
	a.sinks = NULL;
	a.out = want[0];
	a.lse = want_lse[0];
	ok(kv_attn(f.cache, &a));
	a.out = out;
	a.lse = lse;
	ok(kv_attn_plan(f.cache, &a, 2, &plan));
	ok(kv_attn_run(plan));
	was = kv_seq_pte(s[1], 0, NULL)[0];
	ok(kv_seq_commit(s[0], 41));
	ok(kv_seq_commit(s[1], 41));
	pte = kv_seq_pte(s[1], 0, NULL);
	assert_true(pte[0] != was && pte[0] == kv_seq_pte(s[0], 0, NULL)[0]);
	memset(out, 0x5a, sizeof(out));
	ok(kv_attn_next(plan, &a));
	ok(kv_attn_run(plan));
	assert_memory_equal(out, want[0], 2 * HEADS * 8 * sizeof(float));
	ok(kv_seq_append(s[1], tokens, 1));
	refuse(plan, &a, -ESTALE, "lengths");
	a.lens = (const uint32_t[]){41, 41};
	ok(kv_attn_next(plan, &a)); /* to the same tokens as before */
	ok(kv_attn_run(plan));
	ok(kv_seq_park(s[0]));
	refuse(plan, &a, -EINVAL, "parked");
	ok(kv_attn_finish(plan));
	kv_seq_release(s[0]);
	kv_seq_release(s[1]);
	fix_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_bits_of_calls_of_their_own),
		cmocka_unit_test(other_calls_are_refused),
		cmocka_unit_test(tables_that_changed),
		cmocka_unit_test(sequences_whose_pages_change),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
