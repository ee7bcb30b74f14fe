// SPDX-License-Identifier: Apache-2.0
/* A seeded list of combinations of every feature, each implementation against the reference. */
#include "attn_case.h"

#define NR_CASES 400

static const uint32_t dims[] = {8, 16, 24, 32, 40, 64, 80, 96, 112, 128, 192, 256};
static const uint32_t pages[] = {1, 2, 8, 16, 32, 61, 64, 69, 128};
static const uint32_t groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16};
static const uint32_t lens[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300};

#define PICK(s, table) ((table)[attn_below(s, sizeof(table) / sizeof(*(table)))])

static bool one_in(uint64_t *s, uint32_t n)
{
	return !attn_below(s, n);
}

static struct attn_case draw(uint64_t seed)
{
	uint64_t *s = &seed;
	struct attn_case c = {
		.kind = one_in(s, 3) ? KERN_MLA : KERN_GQA,
		.dtype = 1 + attn_below(s, 6),
		.scale = attn_below(s, 3),
		.q_dtype = 1 + attn_below(s, 3),
		.page_tokens = PICK(s, pages),
		.kv_heads = 1 + attn_below(s, 3),
		.group = PICK(s, groups),
		.dk = PICK(s, dims),
		.dv = PICK(s, dims),
		.batch = 1 + attn_below(s, 3),
		.q_len = one_in(s, 2) ? 1 : 1 + attn_below(s, 9),
		.window = one_in(s, 3) ? 1 + attn_below(s, 150) : 0,
		.softcap = one_in(s, 4) ? (one_in(s, 3) ? 1e-3f : 3) : 0,
		.spread = one_in(s, 3)	 ? 4
			  : one_in(s, 3) ? 0.01f
					 : 1,
		.starts = one_in(s, 4),
		.ends = one_in(s, 6),
		.sinks = one_in(s, 4),
		.alibi = one_in(s, 4),
		.strided = one_in(s, 2),
		.token_major = one_in(s, 4),
		.repeat = one_in(s, 3),
		.no_lse = one_in(s, 8),
	};
	uint32_t i;

	if (c.kind == KERN_MLA)
		c.kv_heads = 1;
	if (one_in(s, 25))
		c.q_len = 40 + attn_below(s, 40);
	for (i = 0; i < c.batch; i++) {
		c.len[i] = one_in(s, 2) ? PICK(s, lens) : attn_below(s, 400);
		if (one_in(s, 16))
			c.len[i] += 500;
		c.start[i] = attn_below(s, c.len[i] + 2);
		c.end[i] = attn_below(s, c.len[i] + 70);
	}
	c.seed = seed;
	return c;
}

static void random_combinations(void **state)
{
	uint32_t i;

	(void)state;
	for (i = 0; i < NR_CASES; i++)
		attn_check_all(draw(1000 + i));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_combinations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
