// SPDX-License-Identifier: Apache-2.0
/* attn_suite - all cases that have a goal, and the kinds of attention side by side */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attn.h"

#define ATTEMPTS 3	/* of a case whose run was void */

/* What is compared with the goal: a ratio of the first shape to a ceiling, of the second shape's
 * tokens a second to the first's, or of this touch_ratio to that of the case before. */
enum metric { OF_TOUCH, OF_PEAK, AGAINST, OF_BEFORE };

static const char *const metric_name[] = {
	[OF_TOUCH] = "of touch",
	[OF_PEAK] = "of vdpbf16ps",
	[AGAINST] = "of the other's rate",
	[OF_BEFORE] = "of one thread's ratio",
};

struct suite_case {
	const char *name;
	enum metric metric;
	double floor, goal;
	unsigned int lanes;
	struct attn_shape shape[2];
};

#define DEMO .heads = 4, .kv_heads = 4, .dim = 32, .ctx = 346, .dtype = KERN_F32

static const struct suite_case cases[] = {
	{ "GQA 32/8 bf16", OF_TOUCH, .65, .80, 1, { { .heads = 32 } } },
	{ "GQA 32/8 bf16, two threads", OF_BEFORE, 0, .90, 1, { { .threads = 2 } } },
	{ "GQA 64/8 bf16", OF_TOUCH, .52, .65, 1, { { .heads = 64 } } },
	{ "GQA 32/8 f16", OF_TOUCH, .65, .75, 1, { { .dtype = KERN_F16 } } },
	{ "GQA 32/8 f8 / bf16", AGAINST, .85, 1.2, 2, { { .heads = 32 }, { .dtype = KERN_F8 } } },
	{ "GQA 32/8 i8 / bf16", AGAINST, 0, 0, 2, { { .heads = 32 }, { .dtype = KERN_I8 } } },
	{ "GQA 32/8 bf16, AVX2", OF_TOUCH, .38, .45, 1, { { .impl = KERN_AVX2 } } },
	{ "MLA 128 heads bf16", OF_PEAK, .65, .82, 1, { { .kind = KERN_MLA, .heads = 128 } } },
	{ "MLA 16 heads bf16", OF_PEAK, .28, .42, 1, { { .kind = KERN_MLA, .heads = 16 } } },
	{ "MLA 128 f8 / bf16", AGAINST, 0, 0, 2,
	  { { .kind = KERN_MLA }, { .kind = KERN_MLA, .dtype = KERN_F8 } } },
	{ "MLA 128 f8_ds / bf16", AGAINST, 0, 0, 2,
	  { { .kind = KERN_MLA }, { .kind = KERN_MLA, .dtype = KERN_F8_DS } } },
	{ "8 sharing 8k tokens / unshared", AGAINST, 1.7, 2.1, 2,
	  { { .batch = 8, .ctx = 8256 }, { .batch = 8, .ctx = 8256, .shared = 8192 } } },
	{ "GQA 32/8 pages / contiguous", AGAINST, 0, .95, 2,
	  { { .contiguous = true }, { .heads = 32 } } },
	{ "demo model, pages / contiguous", AGAINST, 0, .95, 2,
	  { { DEMO, .contiguous = true }, { DEMO } } },
};
#define NR_CASES (sizeof(cases) / sizeof(cases[0]))

static const struct {
	const char *name;
	struct attn_shape shape;
} kinds[ATTN_MAX_LANES] = {
	{ "MHA 32/32", { .heads = 32, .kv_heads = 32, .ctx = 4096 } },
	{ "GQA 32/8", { .heads = 32, .kv_heads = 8, .ctx = 4096 } },
	{ "MQA 32/1", { .heads = 32, .kv_heads = 1, .ctx = 4096 } },
	{ "MLA 128", { .kind = KERN_MLA, .heads = 128, .ctx = 4096 } },
};

static const uint32_t query_counts[ATTN_MAX_LANES] = { 1, 4, 32, 256 };

struct suite {
	const struct attn_opts *opts;
	struct emit *emit;
	struct attn_result *res;
	unsigned int at, of;
	bool is_void;
};

static void progress(struct suite *s, const char *name)
{
	s->at++;
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "[%u/%u] %s ...\033[K\r", s->at, s->of, name);
}

/* A busy moment is no property of the code: a void run gets another chance. */
static int measure(struct suite *s, const char *name, struct attn_shape *shapes, unsigned int n)
{
	unsigned int i;
	int err;

	progress(s, name);
	for (i = 0; i < n; i++)
		attn_shape_default(&shapes[i]);
	for (i = 0; i < ATTEMPTS; i++) {
		err = attn_run(shapes, n, s->opts, s->res);
		if (err || !s->res->void_why[0])
			return err;
	}
	s->is_void = true;
	return 0;
}

/* ---- cases with goals ---- */

static const struct emit_col goal_cols[] = {
	{ "case", "CASE", EMIT_STR },	     { "impl", "IMPL", EMIT_STR },
	{ "gbs", "GB/S", EMIT_RATIO },	     { "gflops", "GFLOP/S", EMIT_RATIO },
	{ "what", "RATIO", EMIT_STR },	     { "median", "MEDIAN", EMIT_RATIO },
	{ "p10", "P10", EMIT_RATIO },	     { "p90", "P90", EMIT_RATIO },
	{ "floor", "FLOOR", EMIT_RATIO },    { "goal", "GOAL", EMIT_RATIO },
	{ "met", "MET", EMIT_STR },	     { "own_peak_ratio", "OF ITS PEAK", EMIT_RATIO },
	{ "touch_gbs", "TOUCH", EMIT_RATIO }, { "sequential_gbs", "SEQUENTIAL", EMIT_RATIO },
	{ "samples", "SAMPLES", EMIT_COUNT }, { "dropped", "DROPPED", EMIT_COUNT },
};
#define GOAL_COLS (sizeof(goal_cols) / sizeof(goal_cols[0]))

static struct attn_stat case_ratio(const struct suite_case *c, const struct attn_result *r,
				   double before)
{
	struct attn_stat ratio = r->lane[0].touch_ratio;

	if (c->metric == OF_PEAK)
		return r->lane[0].peak_ratio;
	if (c->metric == AGAINST)
		return r->lane[1].against;
	if (c->metric == OF_BEFORE)
		return (struct attn_stat){ ratio.median / before, ratio.p10 / before,
					   ratio.p90 / before };
	return ratio;
}

static const char *verdict(const struct suite_case *c, const struct attn_result *r,
			   const struct attn_stat *ratio)
{
	if (r->void_why[0])
		return "VOID";
	if (!(c->goal > 0))
		return NULL;
	if (ratio->median >= c->goal)
		return "yes";
	return c->floor > 0 && ratio->median >= c->floor ? "floor" : "no";
}

static void case_row(const struct suite_case *c, const struct attn_result *r, double before,
		     union emit_val *row)
{
	const struct attn_rates *l = &r->lane[c->lanes - 1];
	struct attn_stat ratio = case_ratio(c, r, before);

	row[0].s = c->name;
	row[1].s = l->impl;
	row[2].f = l->gbs.median;
	row[3].f = l->gflops.median;
	row[4].s = metric_name[c->metric];
	row[5].f = ratio.median;
	row[6].f = ratio.p10;
	row[7].f = ratio.p90;
	row[8].f = c->floor > 0 ? c->floor : NAN;
	row[9].f = c->goal > 0 ? c->goal : NAN;
	row[10].s = verdict(c, r, &ratio);
	row[11].f = l->own_ratio.median;
	row[12].f = r->touch[r->best_touch].median;
	row[13].f = r->sequential.median;
	row[14].u = r->kept;
	row[15].u = r->dropped;
}

static void empty_row(const struct suite_case *c, union emit_val *row)
{
	unsigned int i;

	for (i = 0; i < GOAL_COLS; i++)
		if (goal_cols[i].kind == EMIT_RATIO)
			row[i].f = NAN;
		else
			row[i].u = 0;
	row[0].s = c->name;
	row[4].s = metric_name[c->metric];
	row[9].f = c->goal > 0 ? c->goal : NAN;
	row[10].s = "not here";
}

static int run_cases(struct suite *s)
{
	union emit_val rows[NR_CASES * GOAL_COLS];
	double before = NAN;
	size_t i;
	int err;

	for (i = 0; i < NR_CASES; i++) {
		struct attn_shape shape[2] = { cases[i].shape[0], cases[i].shape[1] };

		err = measure(s, cases[i].name, shape, cases[i].lanes);
		if (err == -EOPNOTSUPP) {
			empty_row(&cases[i], rows + i * GOAL_COLS);
			continue;
		}
		if (err)
			return err;
		case_row(&cases[i], s->res, before, rows + i * GOAL_COLS);
		before = s->res->lane[0].touch_ratio.median;
	}
	emit_table(s->emit, "attn_goals", goal_cols, GOAL_COLS, rows, NR_CASES);
	return 0;
}

/* ---- side by side ---- */

static int run_kinds(struct suite *s)
{
	static const struct emit_col cols[] = {
		{ "kind", "KIND", EMIT_STR },
		{ "impl", "IMPL", EMIT_STR },
		{ "flop_per_position", "FLOP/POSITION", EMIT_COUNT },
		{ "bytes_per_position", "BYTES/POSITION", EMIT_COUNT },
		{ "flop_per_byte", "FLOP/BYTE", EMIT_RATIO },
		{ "gbs", "GB/S", EMIT_RATIO },
		{ "gflops", "GFLOP/S", EMIT_RATIO },
		{ "tokens_per_s", "TOKENS/S", EMIT_RATIO },
		{ "tokens_ratio", "TOKENS RATIO", EMIT_RATIO },
		{ "p10", "P10", EMIT_RATIO },
		{ "p90", "P90", EMIT_RATIO },
		{ "bytes_ratio", "BYTES RATIO", EMIT_RATIO },
	};
	enum { N = sizeof(cols) / sizeof(cols[0]) };
	struct attn_shape shape[ATTN_MAX_LANES];
	union emit_val rows[ATTN_MAX_LANES * N];
	unsigned int i;
	int err;

	for (i = 0; i < ATTN_MAX_LANES; i++)
		shape[i] = kinds[i].shape;
	err = measure(s, "kinds side by side", shape, ATTN_MAX_LANES);
	if (err)
		return err;
	for (i = 0; i < ATTN_MAX_LANES; i++) {
		const struct attn_rates *l = &s->res->lane[i];
		double bytes = attn_shape_bytes_pos(&shape[i]);
		union emit_val *row = rows + i * N;

		row[0].s = kinds[i].name;
		row[1].s = l->impl;
		row[2].u = (uint64_t)attn_shape_flop_pos(&shape[i]);
		row[3].u = (uint64_t)bytes;
		row[4].f = attn_shape_flop_pos(&shape[i]) / bytes;
		row[5].f = l->gbs.median;
		row[6].f = l->gflops.median;
		row[7].f = l->tokens.median;
		row[8].f = l->against.median;
		row[9].f = l->against.p10;
		row[10].f = l->against.p90;
		row[11].f = attn_shape_bytes_pos(&shape[0]) / bytes;
	}
	emit_table(s->emit, "attn_kinds", cols, N, rows, ATTN_MAX_LANES);
	return 0;
}

/* ---- several queries at once: speculation, chunks of a prompt ---- */

static int run_queries(struct suite *s)
{
	static const struct emit_col cols[] = {
		{ "q_len", "QUERIES", EMIT_COUNT },
		{ "impl", "IMPL", EMIT_STR },
		{ "gflops", "GFLOP/S", EMIT_RATIO },
		{ "tokens_per_s", "TOKENS/S", EMIT_RATIO },
		{ "tokens_ratio", "TOKENS RATIO", EMIT_RATIO },
		{ "p10", "P10", EMIT_RATIO },
		{ "p90", "P90", EMIT_RATIO },
		{ "own_peak_ratio", "OF ITS PEAK", EMIT_RATIO },
	};
	enum { N = sizeof(cols) / sizeof(cols[0]) };
	struct attn_shape shape[ATTN_MAX_LANES] = { { 0 } };
	union emit_val rows[ATTN_MAX_LANES * N];
	unsigned int i;
	int err;

	for (i = 0; i < ATTN_MAX_LANES; i++) {
		shape[i].ctx = 2048;
		shape[i].q_len = query_counts[i];
	}
	err = measure(s, "several queries", shape, ATTN_MAX_LANES);
	if (err)
		return err;
	for (i = 0; i < ATTN_MAX_LANES; i++) {
		const struct attn_rates *l = &s->res->lane[i];
		union emit_val *row = rows + i * N;

		row[0].u = query_counts[i];
		row[1].s = l->impl;
		row[2].f = l->gflops.median;
		row[3].f = l->tokens.median;
		row[4].f = l->against.median;
		row[5].f = l->against.p10;
		row[6].f = l->against.p90;
		row[7].f = l->own_ratio.median;
	}
	emit_note(s->emit, "\nGQA 32/8 bf16, 2,048 tokens, causal queries:\n");
	emit_table(s->emit, "attn_queries", cols, N, rows, ATTN_MAX_LANES);
	return 0;
}

static void peaks(struct suite *s)
{
	static const struct emit_col cols[] = {
		{ "name", "ARITHMETIC", EMIT_STR },
		{ "gflops", "GFLOP/S A THREAD", EMIT_RATIO },
	};
	union emit_val rows[ATTN_NR_PEAKS * 2];
	unsigned int i;

	for (i = 0; i < ATTN_NR_PEAKS; i++) {
		rows[i * 2].s = attn_peak_name(i);
		rows[i * 2 + 1].f = s->res->peak[i].median;
	}
	emit_table(s->emit, "attn_peaks", cols, 2, rows, ATTN_NR_PEAKS);
}

int attn_suite(const struct attn_opts *opts, struct emit *e)
{
	struct suite s = { .opts = opts, .emit = e, .of = NR_CASES + 2 };
	int err;

	s.res = calloc(1, sizeof(*s.res));
	if (!s.res) {
		fputs("kvbench attn: out of memory\n", stderr);
		return -ENOMEM;
	}
	err = run_cases(&s);
	err = err ? err : run_kinds(&s);
	err = err ? err : run_queries(&s);
	if (!err)
		peaks(&s);
	if (isatty(STDERR_FILENO))
		fputs("\033[K", stderr);
	if (err)
		fprintf(stderr, "kvbench attn: %s\n", s.res->void_why);
	free(s.res);
	if (!err && s.is_void)
		emit_note(e, "\nVOID: the machine was too busy for some of these\n");
	return err ? err : s.is_void ? ATTN_EXIT_VOID : 0;
}
