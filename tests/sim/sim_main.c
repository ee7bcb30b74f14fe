// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

#define TOTALS_EVERY 64	 /* steps between comparisons of all sums */
#define SEED_SECONDS 120 /* a run that takes longer hangs */
#define CANARY_SEEDS 400
#define CANARY_RUNS  4 /* lies of a kind that must be caught */

static struct sim *the_sim; /* for mm_panic and signals, which have no other way to it */

struct outcome {
	bool failed;
	uint64_t step, digest, trail;
	char why[512];
};

void sim_say(struct sim *s, const char *fmt, ...)
{
	va_list ap;

	printf("%8" PRIu64 " ", s->step);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
}

void sim_fail(struct sim *s, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(s->why, sizeof(s->why), fmt, ap);
	va_end(ap);
	longjmp(s->failed, 1);
}

void mm_panic(const char *what, const char *file, int line)
{
	sim_fail(the_sim, "mm_panic: %s at %s:%d", what, file, line);
}

static void on_signal(int sig)
{
	fprintf(stderr, "mmsim: signal %d in seed %" PRIu64 " at step %" PRIu64 "\n", sig,
		the_sim->seed, the_sim->step);
	_exit(1);
}

static void sim_reset(struct sim *s, const struct sim_options *opt, uint64_t seed)
{
	for (uint32_t x = 0; x < SIM_EXTENTS; x++) {
		free(s->extent[x].frame);
		free(s->extent[x].import);
	}
	for (uint32_t e = 0; e < SIM_SERIALS; e++)
		free(s->engine[e].held);
	free(s->page);
	free(s->bucket);
	free(s->node);
	memset(s, 0, sizeof(*s));
	s->opt = opt;
	s->seed = seed;
	s->rng = seed * 0x2545f4914f6cdd1dull + 1;
	s->now_ns = 1000;
	s->nr_engines = s->nr_members = s->nr_caches = 1; /* 0 is none */
	world_draw(s);
}

static void run_steps(struct sim *s, uint64_t nr_ops)
{
	for (s->step = 1; s->step <= nr_ops; s->step++) {
		gen_step(s);
		if (s->step % TOTALS_EVERY == 0)
			totals_check(s);
		if (s->step % s->opt->check_every == 0)
			mm_check(s->mm);
	}
	s->step--;
	if (s->opt->nr_ops == nr_ops || s->canary)
		gen_end(s);
}

/* garbage fills mm's memory beforehand: nothing may depend on it. */
static void run_seed(struct sim *s, const struct sim_options *opt, uint64_t seed, uint64_t nr_ops,
		     enum canary canary, int garbage, struct outcome *out)
{
	size_t len;
	void *mem;

	sim_reset(s, opt, seed);
	s->canary = canary;
	memset(out, 0, sizeof(*out));
	len = mm_footprint(&s->cfg);
	mem = aligned_alloc(4096, (len + 4095) / 4096 * 4096 + 4096);
	if (!mem)
		abort();
	memset(mem, garbage, len);
	if (setjmp(s->failed)) {
		out->failed = true;
		memcpy(out->why, s->why, sizeof(out->why));
	} else {
		alarm(SEED_SECONDS);
		SIM_CHECK(s, len, "mm_footprint refuses the config");
		SIM_CHECK(s, !mm_init(&s->mm, mem, len, &s->cfg), "mm_init fails");
		mm_check(s->mm);
		run_steps(s, nr_ops);
		out->digest = mm_digest(s->mm);
	}
	alarm(0);
	out->step = s->step;
	out->trail = s->trail;
	free(mem);
}

/* ---- a failing seed: fewer kinds of operations ----------------------------------------------- */

static void shrink(struct sim *s, const struct sim_options *opt, uint64_t seed, uint64_t steps)
{
	struct sim_options less = *opt;
	struct outcome out;

	less.verbose = false;
	less.nr_ops = UINT64_MAX; /* no end phase */
	for (uint32_t op = SIM_MEMBER; op < SIM_NR_OPS; op++) {
		uint32_t before = less.without;

		less.without |= 1u << op;
		run_seed(s, &less, seed, steps, CANARY_NONE, 0xa5, &out);
		if (out.failed)
			steps = out.step;
		else
			less.without = before;
	}
	run_seed(s, &less, seed, steps, CANARY_NONE, 0xa5, &out);
	printf("mmsim: shrunk: --seed %" PRIu64 " --ops %" PRIu64 " --without 0x%x: step %" PRIu64
	       ": %s\n",
	       seed, steps, less.without, out.step, out.failed ? out.why : "passes");
}

static void report(struct sim *s, const struct sim_options *opt, uint64_t seed,
		   const struct outcome *out)
{
	printf("mmsim: FAILED seed %" PRIu64 " step %" PRIu64 ": %s\n", seed, out->step, out->why);
	if (opt->verbose)
		model_dump(s);
	fflush(stdout);
	if (opt->once || out->step >= opt->nr_ops)
		return;
	shrink(s, opt, seed, out->step);
	fflush(stdout);
}

/* ---- what was covered ------------------------------------------------------------------------ */

struct coverage {
	struct totals sum;
	uint64_t ok[MM_NR_OPS], err[MM_NR_OPS], steps, evicts;
};

static void cover(struct coverage *c, const struct sim *s)
{
	const uint64_t *from = (const uint64_t *)&s->sum;
	uint64_t *to = (uint64_t *)&c->sum;

	for (size_t i = 0; i < sizeof(c->sum) / sizeof(*to); i++)
		to[i] += from[i];
	for (uint32_t op = 0; op < MM_NR_OPS; op++) {
		c->ok[op] += s->op_ok[op];
		c->err[op] += s->op_err[op];
	}
	c->steps += s->step;
	c->evicts += s->evicts;
}

static void print_coverage(const struct coverage *c, uint64_t seeds, uint64_t failed,
			   double seconds)
{
	const struct totals *t = &c->sum;

	printf("mmsim: %" PRIu64 " seeds, %" PRIu64 " failed, %" PRIu64
	       " steps twice, %.0f steps/s\n",
	       seeds, failed, c->steps, 2 * (double)c->steps / seconds);
	printf("  ok/refused by op:");
	for (uint32_t op = 1; op < MM_NR_OPS; op++)
		printf(" %u:%" PRIu64 "/%" PRIu64, op, c->ok[op], c->err[op]);
	printf("\n  granted %" PRIu64 " freed %" PRIu64 " committed %" PRIu64 " dup %" PRIu64
	       " adopted %" PRIu64 " evicted %" PRIu64 " quarantined %" PRIu64 " extents %" PRIu64
	       " destroyed %" PRIu64 " failed creates %" PRIu64 " scrubs %" PRIu64
	       " orphans %" PRIu64 " deferred %" PRIu64 " events %" PRIu64 " moves %" PRIu64
	       " done %" PRIu64 " vacates %" PRIu64 " pages %" PRIu64 "\n",
	       t->granted, t->freed, t->committed, t->dup_pages, t->adopted, c->evicts,
	       t->quarantined, t->extents, t->destroys, t->failed_creates, t->scrubs, t->orphans,
	       t->deferred, t->events,
	       t->moves, t->moved, t->vacates, t->vacated);
}

static int run_seeds(struct sim *s, const struct sim_options *opt)
{
	struct coverage coverage = {.steps = 0};
	uint64_t failed = 0, seeds = 0;
	struct timespec start, end;

	clock_gettime(CLOCK_MONOTONIC, &start);
	for (uint64_t seed = opt->first_seed; seed <= opt->last_seed; seed++) {
		struct sim_options quiet = *opt;
		struct outcome one, two;

		run_seed(s, opt, seed, opt->nr_ops, CANARY_NONE, 0xa5, &one);
		cover(&coverage, s);
		seeds++;
		if (one.failed) {
			failed++;
			report(s, opt, seed, &one);
			continue;
		}
		quiet.verbose = false;
		run_seed(s, &quiet, seed, opt->nr_ops, CANARY_NONE, 0x3c, &two);
		if (two.failed || one.digest != two.digest || one.trail != two.trail) {
			failed++;
			printf("mmsim: FAILED seed %" PRIu64 ": the second run differs%s%s\n", seed,
			       two.failed ? ": " : "", two.why);
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	print_coverage(&coverage, seeds, failed,
		       (double)(end.tv_sec - start.tv_sec) +
			       (double)(end.tv_nsec - start.tv_nsec) / 1e9);
	return failed != 0;
}

/* ---- the test of the test -------------------------------------------------------------------- */

static bool run_canary(struct sim *s, const struct sim_options *opt, enum canary kind)
{
	uint32_t told = 0, caught = 0;
	char why[512] = "";

	for (uint64_t seed = opt->first_seed; seed < opt->first_seed + CANARY_SEEDS; seed++) {
		struct outcome out;

		if (told == CANARY_RUNS)
			break;
		run_seed(s, opt, seed, opt->nr_ops, kind, 0xa5, &out);
		if (!s->canary_fired)
			continue;
		told++;
		caught += out.failed;
		if (out.failed)
			memcpy(why, out.why, sizeof(why));
		else
			printf("mmsim: canary %s: seed %" PRIu64 " not caught\n", canary_name[kind],
			       seed);
	}
	printf("mmsim: canary %-14s %u of %u caught: %s\n", canary_name[kind], caught, told, why);
	return told && caught == told;
}

static int run_canaries(struct sim *s, const struct sim_options *opt)
{
	uint32_t missed = 0;

	for (enum canary kind = 1; kind < CANARY_NR; kind++)
		missed += !run_canary(s, opt, kind);
	printf("mmsim: %u of %u kinds of lies missed\n", missed, CANARY_NR - 1);
	return missed != 0;
}

/* ---- options --------------------------------------------------------------------------------- */

static void usage(void)
{
	puts("usage: mmsim [--seed N | --seeds A..B] [--ops N] [--check-every N] [--without MASK]\n"
	     "             [--canary] [--once] [--verbose]\n"
	     "Drives the memory manager with random requests and compares it with a naive model.\n"
	     "Each seed runs twice and must end alike. A failing seed is shrunk unless --once.\n"
	     "--canary falsifies replies: every kind of lie must be caught.");
}

static void parse(int argc, char **argv, struct sim_options *o)
{
	for (int i = 1; i < argc; i++) {
		char *end, *arg = i + 1 < argc ? argv[i + 1] : (char *)"";

		if (!strcmp(argv[i], "--verbose")) {
			o->verbose = true;
			continue;
		} else if (!strcmp(argv[i], "--canary")) {
			o->canary = true;
			continue;
		} else if (!strcmp(argv[i], "--once")) {
			o->once = true;
			continue;
		}
		i++;
		if (!strcmp(argv[i - 1], "--seed")) {
			o->first_seed = o->last_seed = strtoull(arg, &end, 0);
		} else if (!strcmp(argv[i - 1], "--seeds")) {
			o->first_seed = o->last_seed = strtoull(arg, &end, 0);
			if (!strncmp(end, "..", 2))
				o->last_seed = strtoull(end + 2, &end, 0);
		} else if (!strcmp(argv[i - 1], "--ops")) {
			o->nr_ops = strtoull(arg, &end, 0);
		} else if (!strcmp(argv[i - 1], "--check-every")) {
			o->check_every = strtoull(arg, &end, 0);
		} else if (!strcmp(argv[i - 1], "--without")) {
			o->without = (uint32_t)strtoul(arg, &end, 0);
		} else {
			usage();
			exit(!strcmp(argv[i - 1], "--help") ? 0 : 2);
		}
		if (end == arg || *end) {
			fprintf(stderr, "mmsim: %s: bad number '%s'\n", argv[i - 1], arg);
			exit(2);
		}
	}
}

int main(int argc, char **argv)
{
	struct sim_options opt = {
		.first_seed = 1,
		.last_seed = 20,
		.nr_ops = 5000,
		.check_every = 1000,
	};
	int rc;

	parse(argc, argv, &opt);
	if (!opt.check_every)
		opt.check_every = UINT64_MAX;
	the_sim = calloc(1, sizeof(*the_sim));
	if (!the_sim)
		return 1;
	signal(SIGSEGV, on_signal);
	signal(SIGFPE, on_signal);
	signal(SIGBUS, on_signal);
	signal(SIGALRM, on_signal);
	rc = opt.canary ? run_canaries(the_sim, &opt) : run_seeds(the_sim, &opt);
	return rc;
}
