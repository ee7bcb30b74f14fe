// SPDX-License-Identifier: Apache-2.0
/* Scales of KV heads are part of what a cache is: engines with the same share pages and read the
 * numbers that were written, engines with others are refused, and so are calls. */
#include "seq_fixture.h"

#include <math.h>

#include "daemon_test.h"

#define PT     8u
#define HEADS  4u
#define TOKENS 50u
#define ROW    (HEADS * 16u)

static struct daemon_proc d;
static struct fix f, g;
static float k_of[4] = {1 / 300.0f, 1 / 170.0f, 1 / 280.0f, 1 / 512.0f};
static float v_of[4] = {1 / 256.0f, 1 / 333.0f, 1 / 64.0f, 1 / 400.0f};
static float q[ROW], out[ROW];

static int start(void **state)
{
	static const char *const args[] = {"--device", "host:16M"};

	(void)state;
	daemon_start(&d, args, 2);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	daemon_stop(&d);
	return 0;
}

static struct kv_layout scaled(uint32_t kind)
{
	struct kv_layout l = fix_layout(kind, KV_F8, PT);

	l.scale = KV_SCALE_HEAD;
	return l;
}

static void params_of(struct fix *x, uint32_t kind)
{
	fix_params(x, scaled(kind), 0);
	x->params.group[0].k_scale = k_of;
	x->params.group[0].v_scale = kind == KV_GQA ? v_of : NULL;
}

static void open_as(struct fix *x, const char *spec)
{
	ok(kv_open(spec, NULL, &x->kv));
	ok(kv_cache_open(x->kv, &x->params, &x->cache));
}

static void attend(struct fix *x, struct kv_seq *s, uint32_t layer)
{
	const struct kv_attn a = {.batch = 1, .seqs = &s, .heads = HEADS, .layer = layer, .q = q,
				  .out = out, .scale = 0.11f};
	uint32_t i;

	for (i = 0; i < ROW; i++)
		q[i] = (float)((int)(i * 37 % 64) - 32) / 64;
	memset(out, 0xff, sizeof(out));
	ok(kv_attn(x->cache, &a));
}

/* Against float64 on the rows that the tokens stand for: 8 bits are near, other scales are not. */
static void check_out(const struct kv_seq *s, uint32_t layer)
{
	static float k[TOKENS][FIX_MAX_ROW], v[TOKENS][FIX_MAX_ROW];
	double p[TOKENS], sum, err = 0, norm = 0;
	uint32_t t, head, c, n = kv_seq_len(s);

	for (t = 0; t < n; t++) {
		uint64_t h = fix_history(kv_seq_tokens(s), t, 0);

		fix_row(h, 0, layer, k[t], 32, 0);
		fix_row(h, 0, layer, v[t], 16, 1);
	}
	for (head = 0; head < HEADS; head++) {
		for (sum = 0, t = 0; t < n; t++) {
			for (p[t] = 0, c = 0; c < 16; c++)
				p[t] += (double)q[head * 16 + c] * k[t][head / 2 * 16 + c];
			sum += p[t] = exp(p[t] * 0.11);
		}
		for (c = 0; c < 8; c++) {
			double want = 0, got = out[head * 8 + c];

			for (t = 0; t < n; t++)
				want += p[t] / sum * v[t][head / 2 * 8 + c];
			err += (got - want) * (got - want);
			norm += want * want;
		}
	}
	if (!(sqrt(err) < 0.1 * sqrt(norm)))
		fail_msg("layer %u: off by %g of %g", layer, sqrt(err), sqrt(norm));
}

static void fill(struct fix *x, struct kv_seq **s, const uint32_t *tokens)
{
	ok(kv_seq_create(x->cache, NULL, 0, s));
	ok(kv_seq_append(*s, tokens, TOKENS));
	fix_store(x, *s, 0, 0, TOKENS);
	ok(kv_seq_commit(*s, TOKENS));
}

static void engines_with_the_same_scales_share(void **state)
{
	float first[ROW];
	uint32_t tokens[TOKENS], hit, layer;
	struct kv_seq *s, *other;

	(void)state;
	test_tokens(tokens, TOKENS, 1);
	params_of(&f, KV_GQA);
	params_of(&g, KV_GQA);
	open_as(&f, d.spec);
	open_as(&g, d.spec);
	fill(&f, &s, tokens);
	ok(kv_seq_create(g.cache, NULL, 0, &other));
	ok(kv_seq_match(other, tokens, TOKENS, &hit));
	assert_int_equal(hit, TOKENS / PT * PT);
	ok(kv_seq_append(other, tokens + hit, TOKENS - hit));
	fix_store(&g, other, 0, hit, TOKENS);
	for (layer = 0; layer < 2; layer++) {
		attend(&f, s, layer);
		check_out(s, layer);
		memcpy(first, out, sizeof(out));
		attend(&g, other, layer);
		assert_memory_equal(first, out, HEADS * 8 * sizeof(float));
	}
	kv_seq_release(s);
	kv_seq_release(other);
	fix_close(&g);
	fix_close(&f);
}

/* Any of them, in any layer; and none at all. */
static void engines_with_other_scales_are_refused(void **state)
{
	struct kv_cache *c;
	uint32_t i, kind;

	(void)state;
	for (kind = KV_GQA; kind <= KV_MLA; kind++) {
		uint32_t n = kind == KV_GQA ? 4 : 2;

		params_of(&f, kind);
		params_of(&g, kind);
		f.params.model = g.params.model = kind == KV_GQA ? "gqa" : "mla";
		open_as(&f, d.spec);
		ok(kv_open(d.spec, NULL, &g.kv));
		for (i = 0; i < (kind == KV_GQA ? 2 * n : n); i++) {
			float other[4], *from = i < n ? k_of : v_of;

			memcpy(other, from, sizeof(other));
			other[i % n] = nextafterf(other[i % n], 1);
			*(i < n ? &g.params.group[0].k_scale : &g.params.group[0].v_scale) = other;
			refused(kv_cache_open(g.kv, &g.params, &c), -EINVAL, "scales");
			g.params.group[0].k_scale = k_of;
			g.params.group[0].v_scale = kind == KV_GQA ? v_of : NULL;
		}
		g.params.group[0].k_scale = g.params.group[0].v_scale = NULL;
		refused(kv_cache_open(g.kv, &g.params, &c), -EINVAL, "scales");
		kv_close(g.kv);
		fix_close(&f);
	}
}

static void no_scales_are_ones(void **state)
{
	float ones[4] = {1, 1, 1, 1};

	(void)state;
	params_of(&f, KV_GQA);
	f.params.model = "ones";
	f.params.group[0].k_scale = f.params.group[0].v_scale = NULL;
	open_as(&f, d.spec);
	params_of(&g, KV_GQA);
	g.params.model = "ones";
	g.params.group[0].k_scale = ones;
	g.params.group[0].v_scale = NULL;
	open_as(&g, d.spec);
	assert_int_equal(kv_cache_id(f.cache), kv_cache_id(g.cache));
	fix_close(&g);
	fix_close(&f);
}

/* A rank has the scales of its own heads: two of four here, and one of two that repeat. */
static void a_rank_has_those_of_its_heads(void **state)
{
	static const float k[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	uint32_t heads, rank, layer;

	(void)state;
	for (heads = 2; heads <= 4; heads += 2)
		for (rank = 0; rank < 2; rank++) {
			struct kv_options opts = {.rank = rank};
			struct kv_attn a = {.heads = heads};
			struct kv_cache *mine;
			uint8_t token[16];
			struct kv *kv;

			params_of(&f, KV_GQA);
			f.params.model = heads == 2 ? "two" : "four";
			f.params.nr_shards = 2;
			f.params.group[0].layout.kv_heads = heads;
			f.params.group[0].k_scale = k;
			f.params.group[0].v_scale = NULL;
			open_as(&f, d.spec);
			ok(kv_member_token(f.kv, token));
			opts.member_token = token;
			mine = f.cache;
			kv = NULL;
			if (rank) {
				ok(kv_open(d.spec, &opts, &kv));
				ok(kv_cache_join(kv, &f.params, kv_cache_id(f.cache), &mine));
			}
			for (layer = 0; layer < 2; layer++) {
				a.layer = layer;
				a.k_scale = k + layer * heads + rank * heads / 2;
				ok(kv_attn_query(mine, &a, NULL, NULL));
				a.k_scale = k + layer * heads + !rank * heads / 2;
				refused(kv_attn_query(mine, &a, NULL, NULL), -EINVAL,
					"k_scale of layer");
			}
			kv_cache_close(f.cache); /* the member's end is the engine's */
			kv_close(f.kv);
			kv_close(kv);
		}
}

static void calls_that_disagree_are_refused(void **state)
{
	float row[FIX_MAX_ROW] = {0}, bad[2] = {k_of[0], 1};
	uint32_t tokens[TOKENS];
	struct kv_attn_plan *plan;
	struct kv_seq *s;
	struct kv_store rows = {.pos = TOKENS, .n = 1, .k = row, .v = row};
	struct kv_attn a = {.batch = 1, .seqs = &s, .heads = HEADS, .q = q, .out = out};

	(void)state;
	test_tokens(tokens, TOKENS, 2);
	params_of(&f, KV_GQA);
	open_as(&f, "embedded:host:8M");
	fill(&f, &s, tokens);
	ok(kv_seq_append(s, tokens, 1));
	rows.k_scale = k_of;
	rows.v_scale = a.v_scale = v_of;
	ok(kv_seq_store_rows(s, &rows));
	rows.k_scale = a.k_scale = bad;
	refused(kv_seq_store_rows(s, &rows), -EINVAL, "k_scale of layer 0, head 1 is 1");
	refused(kv_attn(f.cache, &a), -EINVAL, "was opened with");
	refused(kv_attn_plan(f.cache, &a, 1, &plan), -EINVAL, "was opened with");
	a.k_scale = k_of;
	ok(kv_attn(f.cache, &a));
	a.layer = 1; /* these were layer 0's */
	refused(kv_attn(f.cache, &a), -EINVAL, "k_scale of layer 1");
	a.k_scale = NULL;
	refused(kv_attn(f.cache, &a), -EINVAL, "v_scale of layer 1");
	a.v_scale = v_of + 2;
	ok(kv_attn(f.cache, &a));
	kv_seq_release(s);
	fix_close(&f);
}

/* Nobody else reads its pages. */
static void a_private_cache_leaves_it_to_the_calls(void **state)
{
	float ones[ROW], row[FIX_MAX_ROW], scale[2] = {0.5f, 0.5f};
	uint32_t token = 1, i;
	struct kv_seq *s;
	struct kv_store rows = {.n = 1, .k = row, .v = row};
	struct kv_attn a = {.batch = 1, .seqs = &s, .heads = HEADS, .q = q, .out = out};

	(void)state;
	params_of(&f, KV_GQA);
	f.params.model = NULL;
	f.params.group[0].k_scale = f.params.group[0].v_scale = NULL;
	open_as(&f, "embedded:host:8M");
	ok(kv_seq_create(f.cache, NULL, 0, &s));
	ok(kv_seq_append(s, &token, 1));
	for (i = 0; i < FIX_MAX_ROW; i++)
		row[i] = 0.25f;
	rows.v_scale = scale;
	ok(kv_seq_store_rows(s, &rows));
	ok(kv_attn(f.cache, &a));
	memcpy(ones, out, sizeof(out));
	a.v_scale = scale;
	ok(kv_attn(f.cache, &a));
	for (i = 0; i < HEADS * 8; i++) {
		assert_float_equal(ones[i], 0.5, 1e-6);
		assert_float_equal(out[i], 0.25, 1e-6);
	}
	kv_seq_release(s);
	fix_close(&f);
}

static void bad_scales_are_refused(void **state)
{
	static const float bad[] = {0, -1, NAN, INFINITY};
	struct kv_cache *c;
	float k[4];
	uint32_t i;

	(void)state;
	params_of(&f, KV_GQA);
	ok(kv_open("embedded:host:8M", NULL, &f.kv));
	f.params.group[0].k_scale = k;
	for (i = 0; i < 4; i++) {
		memcpy(k, k_of, sizeof(k));
		k[i] = bad[i];
		refused(kv_cache_open(f.kv, &f.params, &c), -EINVAL,
			i & 2 ? "k_scale of layer 1" : "k_scale of layer 0");
	}
	f.params.group[0].k_scale = k_of;
	f.params.group[0].layout.scale = KV_SCALE_TOKEN;
	refused(kv_cache_open(f.kv, &f.params, &c), -EINVAL, "no KV_SCALE_HEAD");
	f.params.group[0].layout = opaque_layout(64 * PAGE_TOKENS);
	refused(kv_cache_open(f.kv, &f.params, &c), -EINVAL, "no KV_SCALE_HEAD");
	f.params.group[0].layout = scaled(KV_MLA);
	refused(kv_cache_open(f.kv, &f.params, &c), -EINVAL, "v_scale is given");
	kv_close(f.kv);
}

int main(void)
{
	const struct CMUnitTest here[] = {
		cmocka_unit_test(calls_that_disagree_are_refused),
		cmocka_unit_test(a_private_cache_leaves_it_to_the_calls),
		cmocka_unit_test(bad_scales_are_refused),
	};
	const struct CMUnitTest served[] = {
		cmocka_unit_test(engines_with_the_same_scales_share),
		cmocka_unit_test(engines_with_other_scales_are_refused),
		cmocka_unit_test(no_scales_are_ones),
		cmocka_unit_test(a_rank_has_those_of_its_heads),
	};
	int failed = cmocka_run_group_tests_name("embedded", here, NULL, NULL);

	return daemon_here() ? failed + cmocka_run_group_tests_name("kvd", served, start, stop)
			     : failed;
}
