/* SPDX-License-Identifier: Apache-2.0 */
#include <argp.h>
#include <errno.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "attn.h"
#include "bench.h"
#include "emit.h"

static const struct {
	const char *name;
	int (*run)(struct bench_env *, struct bench *);
} benches[] = {
	{ "alloc", bench_alloc },     { "ring", bench_ring }, { "prefix", bench_prefix },
	{ "session", bench_session }, { "idle", bench_idle }, { "mm", bench_mm },
	{ "attn", bench_attn },
};
#define NR_BENCHES (sizeof(benches) / sizeof(benches[0]))

uint64_t bench_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct bench_series *bench_series(struct bench *b, const char *name)
{
	struct bench_series *s = &b->series[b->nr_series++];

	s->name = name;
	return s;
}

struct bench_ratio *bench_ratio(struct bench *b, const char *name, double goal)
{
	struct bench_ratio *r = &b->ratio[b->nr_ratios++];

	r->name = name;
	r->goal = goal;
	return r;
}

void bench_add(struct bench_series *s, double ns)
{
	if (s->nr < BENCH_MAX_SAMPLES)
		s->ns[s->nr++] = ns;
}

void bench_add_ratio(struct bench_ratio *r, double value)
{
	if (r->nr < BENCH_MAX_SAMPLES)
		r->value[r->nr++] = value;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* The q-th quantile of n sorted values. */
static double quantile(const double *v, unsigned int n, double q)
{
	return n ? v[(unsigned int)(q * (n - 1) + 0.5)] : NAN;
}

static void report_series(struct emit *e, const char *name, struct bench *b)
{
	static const struct emit_col cols[] = {
		{ "name", "WHAT", EMIT_STR },	      { "median_ns", "MEDIAN", EMIT_NS },
		{ "p10_ns", "P10", EMIT_NS },	      { "p90_ns", "P90", EMIT_NS },
		{ "samples", "SAMPLES", EMIT_COUNT },
	};
	union emit_val rows[BENCH_MAX_SERIES * 5];
	unsigned int i;

	for (i = 0; i < b->nr_series; i++) {
		struct bench_series *s = &b->series[i];

		qsort(s->ns, s->nr, sizeof(*s->ns), ascending);
		rows[i * 5].s = s->name;
		rows[i * 5 + 1].u = (uint64_t)(quantile(s->ns, s->nr, .5) + .5);
		rows[i * 5 + 2].u = (uint64_t)(quantile(s->ns, s->nr, .1) + .5);
		rows[i * 5 + 3].u = (uint64_t)(quantile(s->ns, s->nr, .9) + .5);
		rows[i * 5 + 4].u = s->nr;
	}
	if (b->nr_series)
		emit_table(e, name, cols, 5, rows, b->nr_series);
}

static void report_ratios(struct emit *e, const char *name, struct bench *b)
{
	static const struct emit_col cols[] = {
		{ "name", "RATIO", EMIT_STR },	{ "median", "MEDIAN", EMIT_RATIO },
		{ "p10", "P10", EMIT_RATIO },	{ "p90", "P90", EMIT_RATIO },
		{ "goal", "GOAL", EMIT_RATIO },
	};
	union emit_val rows[BENCH_MAX_RATIOS * 5];
	unsigned int i;

	for (i = 0; i < b->nr_ratios; i++) {
		struct bench_ratio *r = &b->ratio[i];

		qsort(r->value, r->nr, sizeof(*r->value), ascending);
		rows[i * 5].s = r->name;
		rows[i * 5 + 1].f = quantile(r->value, r->nr, .5);
		rows[i * 5 + 2].f = quantile(r->value, r->nr, .1);
		rows[i * 5 + 3].f = quantile(r->value, r->nr, .9);
		rows[i * 5 + 4].f = r->goal > 0 ? r->goal : NAN;
	}
	if (b->nr_ratios)
		emit_table(e, name, cols, 5, rows, b->nr_ratios);
}

struct args {
	const char *which;
	struct bench_env env;
	bool json;
};

static const struct argp_option options[] = {
	{ "connect", 'c', "SPEC", 0, "a running daemon (unix:PATH); default: start one", 0 },
	{ "kvd", 'k', "FILE", 0, "the kvd to start (default: beside kvbench)", 0 },
	{ "samples", 'n', "N", 0, "samples of each thing, taken in turn (default 15)", 0 },
	{ "json", 'j', NULL, 0, "JSON with raw numbers", 0 },
	{ 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct args *a = state->input;

	switch (key) {
	case 'c':
		a->env.connect = arg;
		return 0;
	case 'k':
		a->env.kvd = arg;
		return 0;
	case 'n':
		a->env.samples = (unsigned int)atoi(arg);
		if (a->env.samples < 1 || a->env.samples > BENCH_MAX_SAMPLES)
			argp_error(state, "--samples takes 1 to %d, not '%s'", BENCH_MAX_SAMPLES,
				   arg);
		return 0;
	case 'j':
		a->json = true;
		return 0;
	case ARGP_KEY_ARG:
		if (a->which)
			argp_error(state, "one benchmark at a time: '%s' or '%s'", a->which, arg);
		a->which = arg;
		return 0;
	case ARGP_KEY_NO_ARGS:
		argp_error(state, "which benchmark? kvbench --help names them");
	}
	return ARGP_ERR_UNKNOWN;
}

__attribute__((visibility("default"))) /* libc looks for it */
const char *argp_program_version = "kvbench " KV_VERSION;

static const char doc[] =
	"Measure a pool. Everything compared is sampled in turn in one run; ratios are medians of "
	"sample-by-sample ratios, with the 10th and 90th percentile.\v"
	"Benchmarks:\n"
	"  alloc    one page through a magazine beside malloc; 64 pages through the\n"
	"           ring beside two raw shared-memory ping-pongs and 64 memory-manager\n"
	"           operations\n"
	"  ring     a round trip to the daemon beside a raw ping-pong\n"
	"  prefix   lookup of a cached 131,072-token prompt beside memcmp of its tokens\n"
	"  session  open and close of a session\n"
	"  idle     CPU time of a daemon with one idle session, per second\n"
	"  mm       the memory manager alone: instructions, cache lines and time of an\n"
	"           operation from 10 thousand to 10 million pages; beside malloc and\n"
	"           memcmp\n"
	"  attn     decode attention beside the memory and the arithmetic of this\n"
	"           machine; it has options of its own: kvbench attn --help\n"
	"  all      every one of them\n\n"
	"Examples:\n"
	"  kvbench alloc\n"
	"  kvbench attn --suite\n"
	"  kvbench ring --connect unix:/run/kvd/kvd.sock --json\n";

static int run_all(struct args *a, struct emit *e)
{
	bool all = !strcmp(a->which, "all"), known = false;
	struct bench *b;
	char name[64];
	size_t i;
	int err = 0;

	for (i = 0; i < NR_BENCHES && !err; i++) {
		if (!all && strcmp(a->which, benches[i].name))
			continue;
		known = true;
		b = calloc(1, sizeof(*b));
		if (!b)
			return -ENOMEM;
		if (all && !a->json)
			emit_note(e, "%s%s\n", i ? "\n== " : "== ", benches[i].name);
		if (isatty(STDERR_FILENO))
			fprintf(stderr, "measuring %s ...\r", benches[i].name);
		err = benches[i].run(&a->env, b);
		if (!err) {
			snprintf(name, sizeof(name), "%s_series", benches[i].name);
			report_series(e, name, b);
			snprintf(name, sizeof(name), "%s_ratios", benches[i].name);
			report_ratios(e, name, b);
		}
		free(b);
	}
	if (!known) {
		fprintf(stderr, "kvbench: no benchmark '%s': see kvbench --help\n", a->which);
		return -EINVAL;
	}
	return err;
}

int main(int argc, char **argv)
{
	static const struct argp argp = { options, parse, "BENCHMARK", doc, NULL, NULL, NULL };
	struct args a = { .env.samples = 15 };
	char self[4096], kvd[4200];
	struct emit *e;
	ssize_t n;
	int err;

	if (argc > 1 && !strcmp(argv[1], "attn"))
		return attn_main(argc - 1, argv + 1);
	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, &a);
	n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	self[n > 0 ? n : 0] = '\0';
	snprintf(kvd, sizeof(kvd), "%s/kvd", dirname(self));
	if (!a.env.kvd)
		a.env.kvd = kvd;
	if (bench_daemon_start(&a.env))
		return 1;
	e = emit_open(a.json);
	a.env.emit = e;
	err = run_all(&a, e);
	bench_daemon_stop(&a.env);
	if (!err)
		emit_close(e);
	return err ? 1 : 0;
}
