// SPDX-License-Identifier: Apache-2.0
/* A seeded list of combinations of every feature, each implementation against the reference: most
 * of them small, every 16th large enough to cross borders of chunks and blocks.
 * ATTN_CASES=n in the environment runs n of them, ATTN_SEED=n begins the list elsewhere. */
#include "attn_case.h"

#define NR_CASES   2400
#define FIRST_SEED 1000

static const uint32_t dims[] = {64, 80, 96, 112, 128, 192, 256, 512};
static const uint32_t pages[] = {1,  2,  3,  7,	 8,  15,  16,  17,  31,	 32,   48,
				 61, 64, 69, 80, 112, 128, 129, 512, 2048, 2049, 5000};
static const uint32_t groups[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  12,  15,	16,
				  17, 31, 32, 33, 48, 64, 71, 71, 100, 127, 128};
static const uint32_t lens[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300};

#define PICK(s, table) ((table)[attn_below(s, sizeof(table) / sizeof(*(table)))])

static bool one_in(uint64_t *s, uint32_t n)
{
	return !attn_below(s, n);
}

/* Any width up to 576; for MLA the two parts of a row together. */
static void draw_dims(struct attn_case *c, uint64_t *s)
{
	c->dk = one_in(s, 3) ? PICK(s, dims) : 8 * (1 + attn_below(s, KERN_MAX_DIM / 8));
	c->dv = one_in(s, 3) ? c->dk : 8 * (1 + attn_below(s, KERN_MAX_DIM / 8));
	if (c->dtype == KERN_F8_DS) {
		c->kind = KERN_MLA;
		c->dk = KERN_DS_BLOCK * (1 + attn_below(s, 4));
	}
	if (c->kind == KERN_GQA)
		return;
	c->kv_heads = 1;
	if (one_in(s, 4))
		c->dk = 512;
	if (c->dk > KERN_MAX_DIM - 8)
		c->dk = KERN_MAX_DIM - 64;
	c->dv = 8 * (1 + attn_below(s, (KERN_MAX_DIM - c->dk) / 8));
}

static void draw_lens(struct attn_case *c, uint64_t *s, bool distant)
{
	uint32_t base = distant ? 1500 + attn_below(s, 6000) : attn_below(s, 400), i;
	bool sharing = one_in(s, 2);

	for (i = 0; i < c->batch; i++) {
		c->len[i] = one_in(s, 6) ? PICK(s, lens) : base + attn_below(s, 70);
		c->start[i] = attn_below(s, c->len[i] + 2);
		c->end[i] = attn_below(s, c->len[i] + 70);
		if (sharing && !one_in(s, 4))
			c->share[i] = base - attn_below(s, base / 4 + 1);
	}
}

static void draw_shard(struct attn_case *c, uint64_t *s)
{
	c->dcp = 2 + attn_below(s, 3);
	c->dcp_rank = attn_below(s, c->dcp);
	c->dcp_interleave = one_in(s, 2) ? 1 + attn_below(s, 70) : c->page_tokens;
}

static struct attn_case draw_features(uint64_t *s)
{
	return (struct attn_case){
		.kind = one_in(s, 3) ? KERN_MLA : KERN_GQA,
		.dtype = 1 + attn_below(s, 6),
		.scale = attn_below(s, 3),
		.q_dtype = one_in(s, 2) ? KERN_BF16 : 1 + attn_below(s, 3),
		.page_tokens = PICK(s, pages),
		.kv_heads = 1 + attn_below(s, 3),
		.group = PICK(s, groups),
		.batch = 1 + attn_below(s, ATTN_MAX_BATCH),
		.q_len = one_in(s, 2)	 ? 1
			 : one_in(s, 12) ? 1 + attn_below(s, KERN_MAX_Q)
					 : 1 + attn_below(s, 9),
		.window = one_in(s, 3) ? 1 + attn_below(s, one_in(s, 4) ? 4000 : 150) : 0,
		.softcap = one_in(s, 4) ? (one_in(s, 3) ? 1e-3f : 3) : 0,
		.spread = one_in(s, 3)	 ? 4
			  : one_in(s, 3) ? 0.01f
					 : 1,
		.starts = one_in(s, 5),
		.ends = one_in(s, 6),
		.sinks = one_in(s, 4),
		.alibi = one_in(s, 4),
		.strided = one_in(s, 2),
		.token_major = one_in(s, 4),
		.repeat = one_in(s, 4),
		.no_lse = one_in(s, 8),
	};
}

/* Multiplications of the reference. */
static uint64_t work(const struct attn_case *c)
{
	uint64_t rows = (uint64_t)c->kv_heads * c->group * c->q_len, tokens = 0;
	uint32_t i;

	for (i = 0; i < c->batch; i++)
		tokens += c->len[i] + 1;
	return rows * tokens * (c->dk + c->dv);
}

static uint64_t memory(const struct attn_case *c)
{
	uint64_t row = 4ull * c->kv_heads * (c->dk + c->dv), tokens = 0;
	uint32_t i;

	for (i = 0; i < c->batch; i++)
		tokens += c->len[i] + c->page_tokens;
	return row * tokens;
}

static void halve_lens(struct attn_case *c)
{
	uint32_t i;

	for (i = 0; i < c->batch; i++) {
		c->len[i] /= 2;
		c->start[i] /= 2;
		c->end[i] /= 2;
		c->share[i] /= 2;
	}
}

enum respect { LENS, GROUP, QUERIES, BATCH, DIMS, NR_RESPECTS };

static void smaller(struct attn_case *c, enum respect what)
{
	if (what == LENS) {
		halve_lens(c);
	} else if (what == GROUP) {
		c->group = (c->group + 1) / 2;
	} else if (what == QUERIES) {
		c->q_len = (c->q_len + 1) / 2;
	} else if (what == DIMS) {
		c->dk = c->dtype == KERN_F8_DS ? KERN_DS_BLOCK : c->dk / 16 * 8 + 8;
		c->dv = c->dv / 16 * 8 + 8;
	} else if (c->kv_heads > 1) {
		c->kv_heads = 1;
	} else {
		c->batch = (c->batch + 1) / 2;
	}
}

/* In one respect after the other, batch and width late, and what was drawn to be kept last: the list
 * has long sequences, large groups, many queries, large batches and wide rows, not all at once. */
static void shrink(struct attn_case *c, uint64_t limit, enum respect keep)
{
	uint32_t turn;

	for (turn = 0; work(c) > limit; turn++) {
		enum respect what = turn % NR_RESPECTS;

		if (turn >= (what == keep ? 8u : what >= BATCH ? 3u : 0u) * NR_RESPECTS)
			smaller(c, what);
	}
	while (memory(c) > 8 * limit)
		c->page_tokens = (c->page_tokens + 1) / 2;
}

static struct attn_case draw(uint64_t seed)
{
	bool large = seed % 16 == 0, distant = seed % 32 == 0;
	uint64_t *s = &seed;
	struct attn_case c = draw_features(s);

	draw_dims(&c, s);
	draw_lens(&c, s, distant);
	shrink(&c, large ? 4u << 20 : 1u << 18, distant ? LENS : attn_below(s, NR_RESPECTS));
	if (one_in(s, 8))
		draw_shard(&c, s);
	c.seed = seed;
	return c;
}

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 0) : otherwise;
}

static void random_combinations(void **state)
{
	uint64_t first = number("ATTN_SEED", FIRST_SEED), nr = number("ATTN_CASES", NR_CASES), i;

	(void)state;
	for (i = first; i < first + nr; i++) {
		struct attn_case c = draw(i);

		attn_build(&c);
		attn_for_each_impl(impl)
		{
			attn_expect(&c, impl);
			attn_expect_plans(&c, impl);
			attn_expect_singles(&c, impl);
		}
		attn_free(&c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_combinations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
