// SPDX-License-Identifier: Apache-2.0
/* attn - contract in attn.h */
#include "attn.h"

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <kv/pool.h>

#include "attn_step.h"
#include "bench.h"

struct attn_args {
	struct attn_shape shape;
	struct attn_opts opts;
	const struct attn_model *step;
	bool suite, json, shaped;
};

enum {
	OPT_KIND = 256,
	OPT_HEADS,
	OPT_KV_HEADS,
	OPT_DIM,
	OPT_DIM_V,
	OPT_CTX,
	OPT_BATCH,
	OPT_Q_LEN,
	OPT_DTYPE,
	OPT_Q_DTYPE,
	OPT_SCALE,
	OPT_PAGE,
	OPT_THREADS,
	OPT_SHARED,
	OPT_CONTIGUOUS,
	OPT_IMPL,
	OPT_STEP,
	OPT_SUITE,
	OPT_SECONDS,
	OPT_POOL,
	OPT_CHECK,
};

static const struct argp_option options[] = {
	{ "kind", OPT_KIND, "gqa|mla", 0, "what is cached (gqa; MHA and MQA are cases of it)", 0 },
	{ "heads", OPT_HEADS, "N", 0, "query heads (32; mla 128)", 0 },
	{ "kv-heads", OPT_KV_HEADS, "N", 0, "KV heads (8; mla 1)", 0 },
	{ "dim", OPT_DIM, "N", 0, "width of a key (128; mla 576, the whole row)", 0 },
	{ "dim-v", OPT_DIM_V, "N", 0, "width of a value (the key's; mla 512)", 0 },
	{ "ctx", OPT_CTX, "N", 0, "cached tokens of a sequence (8192; mla 4096)", 0 },
	{ "batch", OPT_BATCH, "N", 0, "sequences (1)", 0 },
	{ "q-len", OPT_Q_LEN, "N", 0, "queries of a sequence, causal (1)", 0 },
	{ "dtype", OPT_DTYPE, "NAME", 0, "of the cache: f32, f16, bf16, f8, i8, f8_ds (bf16)", 0 },
	{ "q-dtype", OPT_Q_DTYPE, "NAME", 0, "of queries and output (f32, f16: as cached)", 0 },
	{ "scale", OPT_SCALE, "head|token", 0, "of 8-bit elements (token)", 0 },
	{ "page", OPT_PAGE, "N", 0, "tokens of a page (64)", 0 },
	{ "threads", OPT_THREADS, "N", 0, "threads (1)", 0 },
	{ "shared-prefix", OPT_SHARED, "N", 0, "leading tokens all sequences share (0)", 0 },
	{ "contiguous", OPT_CONTIGUOUS, NULL, 0, "pages in order of address, not shuffled", 0 },
	{ "impl", OPT_IMPL, "NAME", 0, "ref, generic, avx2, ... (the best of this CPU)", 0 },
	{ "layer-step", OPT_STEP, "MODEL", OPTION_ARG_OPTIONAL,
	  "a whole MLA layer: v3, v2-lite or kimi-k2 (v3)", 0 },
	{ "suite", OPT_SUITE, NULL, 0, "all that has a goal; four kinds side by side", 1 },
	{ "seconds", OPT_SECONDS, "S", 0, "to sample each case at least (1)", 1 },
	{ "pool-mib", OPT_POOL, "N", 0, "size of the pool (4 times the largest cache)", 1 },
	{ "check", OPT_CHECK, NULL, 0, "compare with the float64 reference first", 1 },
	{ "json", 'j', NULL, 0, "JSON with raw numbers", 1 },
	{ 0 },
};

static uint32_t number(struct argp_state *state, const char *what, const char *arg)
{
	char *end;
	unsigned long v;

	errno = 0;
	v = strtoul(arg, &end, 10);
	if (end == arg || *end || arg[0] == '-')
		argp_error(state, "--%s takes a number, not '%s'", what, arg);
	if (errno || v > UINT32_MAX)
		argp_error(state, "--%s is %s, must be at most %u", what, arg, UINT32_MAX);
	return (uint32_t)v;
}

static uint32_t dtype(struct argp_state *state, const char *arg)
{
	uint32_t v = attn_dtype_parse(arg);

	if (!v)
		argp_error(state, "--dtype is f32, f16, bf16, f8, i8 or f8_ds, not '%s'", arg);
	return v;
}

static enum kern_impl impl(struct argp_state *state, const char *arg)
{
	int i;

	for (i = KERN_AUTO; i < KERN_NR_IMPL; i++)
		if (!strcmp(arg, kern_impl_name(i)) && kern_impl_usable(i))
			return i;
	argp_error(state, "no implementation '%s' on this CPU", arg);
	return KERN_AUTO;
}

static uint32_t *number_of(struct attn_shape *s, int key)
{
	switch (key) {
	case OPT_HEADS:
		return &s->heads;
	case OPT_KV_HEADS:
		return &s->kv_heads;
	case OPT_DIM:
		return &s->dim;
	case OPT_DIM_V:
		return &s->dim_v;
	case OPT_CTX:
		return &s->ctx;
	case OPT_BATCH:
		return &s->batch;
	case OPT_Q_LEN:
		return &s->q_len;
	case OPT_PAGE:
		return &s->page_tokens;
	case OPT_THREADS:
		return &s->threads;
	case OPT_SHARED:
		return &s->shared;
	}
	return NULL;
}

static error_t parse_shape(int key, char *arg, struct argp_state *state, struct attn_shape *s)
{
	uint32_t *n = number_of(s, key);
	size_t i;

	if (n) {
		for (i = 0; options[i].key != key; i++)
			;
		*n = number(state, options[i].name, arg);
		if (!*n && key != OPT_SHARED)
			argp_error(state, "--%s cannot be 0", options[i].name);
		return 0;
	}
	switch (key) {
	case OPT_KIND:
		if (strcmp(arg, "gqa") && strcmp(arg, "mla"))
			argp_error(state, "--kind is gqa or mla, not '%s'", arg);
		s->kind = strcmp(arg, "mla") ? KERN_GQA : KERN_MLA;
		return 0;
	case OPT_DTYPE:
		s->dtype = dtype(state, arg);
		return 0;
	case OPT_Q_DTYPE:
		s->q_dtype = dtype(state, arg);
		if (!kern_dtype_float(s->q_dtype))
			argp_error(state, "--q-dtype is f32, f16 or bf16, not '%s'", arg);
		return 0;
	case OPT_SCALE:
		if (strcmp(arg, "head") && strcmp(arg, "token"))
			argp_error(state, "--scale is head or token, not '%s'", arg);
		s->scale = *arg == 'h' ? KERN_SCALE_HEAD : KERN_SCALE_TOKEN;
		return 0;
	case OPT_CONTIGUOUS:
		s->contiguous = true;
		return 0;
	case OPT_IMPL:
		s->impl = impl(state, arg);
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct attn_args *a = state->input;
	char *end;

	if (!parse_shape(key, arg, state, &a->shape)) {
		a->shaped = true;
		return 0;
	}
	switch (key) {
	case OPT_SUITE:
		a->suite = true;
		return 0;
	case OPT_STEP:
		a->step = attn_model_find(arg ? arg : "v3");
		if (!a->step)
			argp_error(state, "--layer-step is v3, v2-lite or kimi-k2, not '%s'", arg);
		return 0;
	case OPT_SECONDS:
		a->opts.seconds = strtod(arg, &end);
		if (end == arg || *end || !(a->opts.seconds > 0 && a->opts.seconds <= 600))
			argp_error(state, "--seconds is more than 0, to 600, not '%s'", arg);
		return 0;
	case OPT_POOL:
		a->opts.pool_bytes = (size_t)number(state, "pool-mib", arg) << 20;
		return 0;
	case OPT_CHECK:
		a->opts.check = true;
		return 0;
	case 'j':
		a->json = true;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "what is '%s'?", arg);
		return 0;
	case ARGP_KEY_END:
		if (a->suite && a->shaped)
			argp_error(state, "--suite has shapes of its own");
		if (a->step && (a->suite || a->shape.kind == KERN_GQA))
			argp_error(state, "--layer-step is one shape, of --kind mla");
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

/* argp breaks the lines of a paragraph itself. */
static const char doc[] =
	"Measure decode attention beside what this machine can do at most, in turn in one process."
	"\v"
	"touch_ratio is the rate of the cache's bytes over that of the best of seven loops that "
	"only load the pages of the same tables; peak_ratio that of the arithmetic over vdpbf16ps "
	"(fp32 FMA where the CPU has none); plan_share is what planning each call anew would take "
	"of it, in none of the times. Pages are shuffled in a pool of four times the largest "
	"cache, and none comes back before all others were read. A sample whose arithmetic probe "
	"is under .90 of the best is dropped. The run is void, and exits with 3, if touch is under "
	".70 of a sequential read or too few samples are left.\n\n"
	"--layer-step times a whole MLA layer (kv_mla_step), weights cold, and attention alone: "
	"the rest of a step is its products, with norms and the new rows. products_bound is the "
	"time they would take at the peak of their arithmetic, or that reading the weights once "
	"takes, the longer one, over the time they took; step_bound the same over the whole "
	"step.\n\n"
	"Examples:\n"
	"  kvbench attn                      (32/8 heads of 128, 8192 tokens, bf16)\n"
	"  kvbench attn --kind mla --heads 128 --ctx 4096\n"
	"  kvbench attn --heads 32 --kv-heads 1 --dtype f16 --impl avx2\n"
	"  kvbench attn --batch 8 --shared-prefix 8192 --ctx 8256 --json\n"
	"  kvbench attn --layer-step=v2-lite --batch 16\n"
	"  kvbench attn --suite\n";

/* ---- one shape ---- */

static void report_shape(struct emit *e, const struct attn_shape *s)
{
	static const struct emit_col cols[] = {
		{ "kind", "KIND", EMIT_STR },
		{ "heads", "HEADS", EMIT_COUNT },
		{ "kv_heads", "KV HEADS", EMIT_COUNT },
		{ "dim", "DIM", EMIT_COUNT },
		{ "dim_v", "DIM V", EMIT_COUNT },
		{ "ctx", "TOKENS", EMIT_COUNT },
		{ "batch", "BATCH", EMIT_COUNT },
		{ "q_len", "QUERIES", EMIT_COUNT },
		{ "dtype", "CACHE", EMIT_STR },
		{ "scale", "SCALE", EMIT_STR },
		{ "q_dtype", "Q", EMIT_STR },
		{ "page_tokens", "PAGE", EMIT_COUNT },
		{ "threads", "THREADS", EMIT_COUNT },
		{ "shared_prefix", "SHARED", EMIT_COUNT },
		{ "contiguous", "CONTIGUOUS", EMIT_BOOL },
	};
	static const char *const scales[] = { NULL, "head", "token" };
	union emit_val row[] = {
		{ .s = s->kind == KERN_MLA ? "mla" : "gqa" },
		{ .u = s->heads },
		{ .u = s->kv_heads },
		{ .u = s->dim },
		{ .u = s->dim_v },
		{ .u = s->ctx },
		{ .u = s->batch },
		{ .u = s->q_len },
		{ .s = attn_dtype_name(s->dtype) },
		{ .s = scales[s->scale] },
		{ .s = attn_dtype_name(s->q_dtype) },
		{ .u = s->page_tokens },
		{ .u = s->threads },
		{ .u = s->shared },
		{ .u = s->contiguous },
	};

	emit_record(e, "attn_shape", cols, sizeof(cols) / sizeof(cols[0]), row);
}

static void report_run(struct emit *e, const struct attn_shape *s, const struct attn_result *r)
{
	static const struct emit_col cols[] = {
		{ "impl", "IMPLEMENTATION", EMIT_STR },
		{ "arithmetic", "ARITHMETIC", EMIT_STR },
		{ "flop_per_position", "FLOP/POSITION", EMIT_COUNT },
		{ "bytes_per_position", "BYTES/POSITION", EMIT_COUNT },
		{ "flop_per_byte", "FLOP/BYTE", EMIT_RATIO },
		{ "flop", "FLOP/CALL", EMIT_COUNT },
		{ "bytes", "BYTES/CALL", EMIT_BYTES },
		{ "pool_bytes", "POOL", EMIT_BYTES },
		{ "samples", "SAMPLES", EMIT_COUNT },
		{ "dropped", "DROPPED", EMIT_COUNT },
		{ "seconds", "SECONDS", EMIT_RATIO },
		{ "best_touch", "BEST TOUCH", EMIT_STR },
		{ "yardstick", "PEAK OF", EMIT_STR },
		{ "plan_ns", "PLANNING", EMIT_NS },
		{ "relative_error", "ERROR", EMIT_FLOAT },
		{ "void", "VOID", EMIT_BOOL },
		{ "void_why", "WHY", EMIT_STR },
	};
	union emit_val row[] = {
		{ .s = r->lane[0].impl },
		{ .s = r->lane[0].arithmetic },
		{ .u = (uint64_t)attn_shape_flop_pos(s) },
		{ .u = (uint64_t)attn_shape_bytes_pos(s) },
		{ .f = attn_shape_flop(s) / attn_shape_bytes(s) },
		{ .u = (uint64_t)attn_shape_flop(s) },
		{ .u = (uint64_t)attn_shape_bytes(s) },
		{ .u = r->pool_bytes },
		{ .u = r->kept },
		{ .u = r->dropped },
		{ .f = r->seconds },
		{ .s = attn_touch_name(r->best_touch) },
		{ .s = attn_peak_name(r->yardstick) },
		{ .u = (uint64_t)r->lane[0].plan_ns.median },
		{ .f = r->lane[0].error },
		{ .u = r->void_why[0] != '\0' },
		{ .s = r->void_why[0] ? r->void_why : NULL },
	};

	emit_record(e, "attn", cols, sizeof(cols) / sizeof(cols[0]), row);
}

#define STAT_COLS 5

static unsigned int stat_row(union emit_val *rows, unsigned int n, const char *name,
			     const char *unit, const struct attn_stat *s)
{
	union emit_val *row = rows + n * STAT_COLS;

	row[0].s = name;
	row[1].s = unit;
	row[2].f = s->median;
	row[3].f = s->p10;
	row[4].f = s->p90;
	return n + 1;
}

static const struct emit_col stat_cols[STAT_COLS] = {
	{ "name", "WHAT", EMIT_STR },	   { "unit", "UNIT", EMIT_STR },
	{ "median", "MEDIAN", EMIT_RATIO }, { "p10", "P10", EMIT_RATIO },
	{ "p90", "P90", EMIT_RATIO },
};

static void report_figures(struct emit *e, const struct attn_result *r)
{
	const struct attn_rates *l = &r->lane[0];
	union emit_val rows[(8 + ATTN_NR_PEAKS + ATTN_NR_TOUCHES) * STAT_COLS];
	struct attn_stat us = { l->ns.median / 1e3, l->ns.p10 / 1e3, l->ns.p90 / 1e3 };
	unsigned int n = 0, i;

	n = stat_row(rows, n, "call", "us", &us);
	n = stat_row(rows, n, "cache read", "GB/s", &l->gbs);
	n = stat_row(rows, n, "arithmetic", "GFLOP/s", &l->gflops);
	n = stat_row(rows, n, "tokens", "1/s", &l->tokens);
	n = stat_row(rows, n, "sequential read", "GB/s", &r->sequential);
	for (i = 0; i < ATTN_NR_PEAKS; i++)
		n = stat_row(rows, n, attn_peak_name(i), "GFLOP/s", &r->peak[i]);
	emit_table(e, "attn_rates", stat_cols, STAT_COLS, rows, n);

	n = stat_row(rows, 0, "touch_ratio", "1", &l->touch_ratio);
	n = stat_row(rows, n, "peak_ratio", "1", &l->peak_ratio);
	n = stat_row(rows, n, "own_peak_ratio", "1", &l->own_ratio);
	n = stat_row(rows, n, "touch_of_sequential", "1", &r->touch_of_sequential);
	n = stat_row(rows, n, "plan_share", "1", &l->plan_share);
	emit_table(e, "attn_ratios", stat_cols, STAT_COLS, rows, n);

	for (i = n = 0; i < ATTN_NR_TOUCHES; i++)
		n = stat_row(rows, n, attn_touch_name(i), "GB/s", &r->touch[i]);
	emit_table(e, "attn_touch", stat_cols, STAT_COLS, rows, n);
}

int attn_one(const struct attn_shape *s, const struct attn_opts *opts, struct emit *e)
{
	struct attn_result *r = malloc(sizeof(*r));
	char name[96];
	int err;

	if (!r) {
		fputs("kvbench attn: out of memory\n", stderr);
		return -ENOMEM;
	}
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "measuring %s ...\033[K\r", attn_shape_name(s, name, sizeof(name)));
	err = attn_run(s, 1, opts, r);
	if (isatty(STDERR_FILENO))
		fputs("\033[K", stderr);
	if (err) {
		fprintf(stderr, "kvbench attn: %s\n", r->void_why);
	} else {
		report_shape(e, s);
		report_run(e, s, r);
		report_figures(e, r);
		if (r->void_why[0]) {
			emit_note(e, "\nVOID: %s\n", r->void_why);
			err = ATTN_EXIT_VOID;
		}
	}
	free(r);
	return err;
}

/* ---- a layer ---- */

static void report_step(struct emit *e, const struct attn_model *m,
			const struct attn_step_result *r)
{
	static const struct emit_col cols[] = {
		{ "model", "MODEL", EMIT_STR },
		{ "hidden", "HIDDEN", EMIT_COUNT },
		{ "q_rank", "Q RANK", EMIT_COUNT },
		{ "weight_bytes", "WEIGHTS", EMIT_BYTES },
		{ "layers", "LAYERS IN TURN", EMIT_COUNT },
		{ "products_flop", "PRODUCTS' FLOP", EMIT_COUNT },
		{ "impl", "ATTENTION", EMIT_STR },
		{ "arithmetic", "PEAK OF", EMIT_STR },
		{ "samples", "SAMPLES", EMIT_COUNT },
		{ "dropped", "DROPPED", EMIT_COUNT },
		{ "seconds", "SECONDS", EMIT_RATIO },
		{ "void", "VOID", EMIT_BOOL },
		{ "void_why", "WHY", EMIT_STR },
	};
	union emit_val row[] = {
		{ .s = m->name },
		{ .u = m->hidden },
		{ .u = m->q_rank },
		{ .u = r->weight_bytes },
		{ .u = r->layers },
		{ .u = (uint64_t)r->products_flop },
		{ .s = r->impl },
		{ .s = r->arithmetic },
		{ .u = r->kept },
		{ .u = r->dropped },
		{ .f = r->seconds },
		{ .u = r->void_why[0] != '\0' },
		{ .s = r->void_why[0] ? r->void_why : NULL },
	};

	emit_record(e, "attn_step", cols, sizeof(cols) / sizeof(cols[0]), row);
}

static struct attn_stat in_us(struct attn_stat ns)
{
	return (struct attn_stat){ ns.median / 1e3, ns.p10 / 1e3, ns.p90 / 1e3 };
}

static void report_step_figures(struct emit *e, const struct attn_step_result *r)
{
	union emit_val rows[12 * STAT_COLS];
	struct attn_stat step = in_us(r->step), products = in_us(r->products);
	struct attn_stat attention = in_us(r->attention);
	unsigned int n;

	n = stat_row(rows, 0, "step", "us", &step);
	n = stat_row(rows, n, "products", "us", &products);
	n = stat_row(rows, n, "attention", "us", &attention);
	n = stat_row(rows, n, "tokens", "1/s", &r->tokens);
	n = stat_row(rows, n, "products", "GFLOP/s", &r->products_gflops);
	n = stat_row(rows, n, "weights read", "GB/s", &r->weights_gbs);
	n = stat_row(rows, n, "attention", "GFLOP/s", &r->attention_gflops);
	n = stat_row(rows, n, "cache read", "GB/s", &r->attention_gbs);
	n = stat_row(rows, n, "sequential read", "GB/s", &r->sequential);
	n = stat_row(rows, n, r->arithmetic, "GFLOP/s", &r->peak);
	emit_table(e, "attn_step_rates", stat_cols, STAT_COLS, rows, n);

	n = stat_row(rows, 0, "attention_share", "1", &r->attention_share);
	n = stat_row(rows, n, "products_bound", "1", &r->products_bound);
	n = stat_row(rows, n, "step_bound", "1", &r->step_bound);
	emit_table(e, "attn_step_ratios", stat_cols, STAT_COLS, rows, n);
}

static int one_step(const struct attn_args *a, struct emit *e)
{
	struct attn_step_result r;
	int err;

	if (isatty(STDERR_FILENO))
		fprintf(stderr, "measuring a layer of %s ...\033[K\r", a->step->name);
	err = attn_step_run(a->step, &a->shape, &a->opts, &r);
	if (isatty(STDERR_FILENO))
		fputs("\033[K", stderr);
	if (err) {
		fprintf(stderr, "kvbench attn: %s\n", r.void_why[0] ? r.void_why : kv_error());
		return err;
	}
	report_shape(e, &a->shape);
	report_step(e, a->step, &r);
	report_step_figures(e, &r);
	if (!r.void_why[0])
		return 0;
	emit_note(e, "\nVOID: %s\n", r.void_why);
	return ATTN_EXIT_VOID;
}

/* As one of all benchmarks: the usual shape. Void or not is in what it prints. */
int bench_attn(struct bench_env *env, struct bench *b)
{
	struct attn_opts opts = { .seconds = 1 };
	struct attn_shape shape = { 0 };
	int err;

	(void)b;
	attn_shape_default(&shape);
	err = attn_one(&shape, &opts, env->emit);
	return err < 0 ? err : 0;
}

int attn_main(int argc, char **argv)
{
	static const struct argp argp = { options, parse, "", doc, NULL, NULL, NULL };
	static char name[] = "kvbench attn";
	struct attn_args a = { .opts.seconds = 1 };
	const char *wrong;
	struct emit *e;
	int err;

	argv[0] = name;
	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, &a);
	if (a.step)
		attn_step_shape(a.step, &a.shape);
	attn_shape_default(&a.shape);
	wrong = attn_shape_check(&a.shape);
	if (!wrong && a.step)
		wrong = attn_step_check(a.step, &a.shape);
	if (wrong) {
		fprintf(stderr, "kvbench attn: %s\n", wrong);
		return 2;
	}
	if (a.shape.impl == KERN_AUTO && attn_unusable_cpu()) {
		fprintf(stderr,
			"kvbench attn: KV_CPU=%s is no implementation that runs on this CPU\n",
			attn_unusable_cpu());
		return 1;
	}
	e = emit_open(a.json);
	err = a.suite  ? attn_suite(&a.opts, e)
	      : a.step ? one_step(&a, e)
		       : attn_one(&a.shape, &a.opts, e);
	if (err < 0)
		return 1;
	emit_close(e);
	return err;
}
