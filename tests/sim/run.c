// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

#define TOTALS_EVERY 64	 /* steps between comparisons of all sums */
#define SEED_SECONDS 600 /* a run that takes longer hangs */
#define DENSE_STEPS  256 /* mm_check after each of the first */
#define CHECK_COST   4	 /* then one after as many steps as a fourth of what it looks at */
#define CANARY_SEEDS 400
#define CANARY_RUNS  4 /* lies of a kind that must be caught */

static const char *const feature_name[FEAT_NR] = {
#define X(name) #name,
	SIM_FEATURES(X)
#undef X
};

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
	for (uint32_t x = 0; x < s->top_extent; x++) {
		for (uint32_t i = 0; i < MM_MAX_SHARDS; i++)
			memory_drop(&s->extent[x].shard[i]);
		free(s->extent[x].frame);
		free(s->extent[x].import);
	}
	for (uint32_t e = 0; e < s->nr_engines; e++)
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
	budget_start(s);
	world_draw(s);
}

/* What mm_check has to look at, roughly. */
static uint64_t check_cost(const struct sim *s)
{
	uint64_t cost = s->nr_live * 16 + s->nr_todo;

	for (uint32_t x = 0; x < s->top_extent; x++)
		cost += 8 + s->extent[x].nr_slots;
	for (uint32_t c = 1; c < s->nr_caches; c++)
		for (uint32_t g = 0; g < s->cache[c].desc.nr_groups && !s->cache[c].dead; g++)
			cost += s->cache[c].nr[PAGE_CACHED][g];
	return cost;
}

/* Dense where there is little to look at, and never more than a constant a step. */
static void check_sampled(struct sim *s, uint64_t *due)
{
	if (s->step > DENSE_STEPS && s->step < *due)
		return;
	mm_check(s->mm);
	*due = s->step + check_cost(s) / CHECK_COST;
	if (*due > s->step + s->opt->check_every)
		*due = s->step + s->opt->check_every;
}

static void run_steps(struct sim *s, uint64_t nr_ops)
{
	uint64_t due = 0;

	for (s->step = 1; s->step <= nr_ops; s->step++) {
		gen_step(s);
		if (s->step % TOTALS_EVERY == 0 || s->opt->check_every == 1)
			totals_check(s);
		check_sampled(s, &due);
	}
	s->step--;
	if (s->opt->nr_ops == nr_ops || s->canary)
		end_run(s);
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

/* ---- a failing seed: fewer features, fewer kinds of operations, fewer steps ------------------ */

static void shrink_by(struct sim *s, struct sim_options *less, uint64_t seed, uint64_t *mask,
		      uint64_t bit)
{
	uint64_t before = *mask;
	struct outcome out;

	*mask |= bit;
	run_seed(s, less, seed, less->nr_ops - 1, CANARY_NONE, 0xa5, &out);
	if (out.failed)
		less->nr_ops = out.step + 1; /* so many steps, and no end */
	else
		*mask = before;
}

static void shrink(struct sim *s, const struct sim_options *opt, uint64_t seed, uint64_t steps)
{
	struct sim_options less = *opt;
	struct outcome out;

	less.verbose = false;
	less.nr_ops = steps + 1;
	for (uint32_t f = FEAT_CORE + 1; f < FEAT_NR; f++)
		shrink_by(s, &less, seed, &less.off, 1ull << f);
	for (uint32_t op = SIM_MEMBER; op < SIM_NR_OPS; op++)
		shrink_by(s, &less, seed, &less.without, 1ull << op);
	run_seed(s, &less, seed, less.nr_ops - 1, CANARY_NONE, 0xa5, &out);
	printf("mmsim: shrunk: mmsim --once --seed %" PRIu64 " --ops %" PRIu64 " --off 0x%" PRIx64
	       " --without 0x%" PRIx64 ": step %" PRIu64 ": %s\n",
	       seed, less.nr_ops - 1, less.off, less.without, out.step,
	       out.failed ? out.why : "passes");
}

static void report(struct sim *s, const struct sim_options *opt, uint64_t seed,
		   const struct outcome *out)
{
	printf("mmsim: FAILED seed %" PRIu64 " step %" PRIu64 ": %s\n"
	       "mmsim: again: mmsim --verbose --once --seed %" PRIu64 " --ops %" PRIu64
	       " --off 0x%" PRIx64 " --without 0x%" PRIx64 "\n  features:",
	       seed, out->step, out->why, seed, opt->nr_ops, opt->off, opt->without);
	for (uint32_t f = 0; f < FEAT_NR; f++)
		if (s->world.features >> f & 1)
			printf(" %s", feature_name[f]);
	putchar('\n');
	if (opt->verbose)
		model_dump(s);
	fflush(stdout);
	if (opt->once || out->step >= opt->nr_ops)
		return;
	shrink(s, opt, seed, out->step);
	fflush(stdout);
}

/* ---- what was covered ------------------------------------------------------------------------ */

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
	c->trail += s->trail;
}

bool run_seed_twice(struct sim *s, const struct sim_options *opt, uint64_t seed,
		    struct coverage *coverage)
{
	struct sim_options quiet = *opt;
	struct outcome one, two;

	run_seed(s, opt, seed, opt->nr_ops, CANARY_NONE, 0xa5, &one);
	cover(coverage, s);
	coverage->seeds++;
	coverage->failed++;
	if (one.failed) {
		report(s, opt, seed, &one);
		return false;
	}
	quiet.verbose = false;
	run_seed(s, &quiet, seed, opt->nr_ops, CANARY_NONE, 0x3c, &two);
	if (two.failed || one.digest != two.digest || one.trail != two.trail) {
		printf("mmsim: FAILED seed %" PRIu64 ": the second run differs%s%s\n", seed,
		       two.failed ? ": " : "", two.why);
		fflush(stdout);
		return false;
	}
	coverage->failed--;
	return true;
}

/* ---- the test of the test -------------------------------------------------------------------- */

/* Lies that only show when a certain extent goes to another tenant: some are never seen. */
static bool may_stay_hidden(enum canary kind)
{
	return kind == CANARY_DIRTY_CREATE || kind == CANARY_BAD_COPY;
}

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
		if (!out.failed && may_stay_hidden(kind))
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

int run_canaries(struct sim *s, const struct sim_options *opt)
{
	uint32_t missed = 0;

	for (enum canary kind = 1; kind < CANARY_NR; kind++)
		missed += !run_canary(s, opt, kind);
	printf("mmsim: %u of %u kinds of lies missed\n", missed, CANARY_NR - 1);
	return missed != 0;
}

struct sim *run_start(void)
{
	the_sim = calloc(1, sizeof(*the_sim));
	if (!the_sim)
		abort();
	signal(SIGSEGV, on_signal);
	signal(SIGFPE, on_signal);
	signal(SIGBUS, on_signal);
	signal(SIGALRM, on_signal);
	return the_sim;
}
