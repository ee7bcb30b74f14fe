// SPDX-License-Identifier: Apache-2.0
/* attn_run - contract in attn_run.h */
#include "attn_run.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

#define CALL_NS	    8e6		/* a measurement of a shape aims at */
#define CEILING_NS  2e6		/* and of a ceiling */
#define PROBE_NS    5e5
#define TRIES	    12
#define MIN_SAMPLES 25u
#define KEEP_AT_LEAST 10u
#define PATIENCE    12		/* times the seconds asked for, on a busy machine */

struct sample {
	double lane[ATTN_MAX_LANES];	/* ns of a call */
	double plan[ATTN_MAX_LANES];	/* and of planning one */
	double touch[ATTN_NR_TOUCHES];	/* GB/s */
	double sequential;
	double peak[ATTN_NR_PEAKS];	/* Gflop/s; the yardstick's is the mean of two */
	double probe;			/* the lower of the two */
};

struct run {
	const struct attn_opts *opts;
	struct attn_lane lane[ATTN_MAX_LANES];
	struct attn_team *team[ATTN_MAX_LANES];
	unsigned int lanes;
	uint32_t calls[ATTN_MAX_LANES], touch_calls;
	uint64_t rounds[ATTN_NR_PEAKS];
	enum attn_peak yardstick;
	struct sample *sample;
	unsigned int nr;
};

size_t attn_pool_bytes(void)
{
	long page = sysconf(_SC_PAGESIZE), avail = sysconf(_SC_AVPHYS_PAGES);
	long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE), l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
	size_t want = 4 * (size_t)(l3 > l2 ? l3 : l2 > 0 ? l2 : 0);
	size_t room = (size_t)avail * (size_t)page / 4;

	want = want < 256u << 20 ? 256u << 20 : want > 4ull << 30 ? 4ull << 30 : want;
	return want < room ? want : room;
}

/* ---- measurements ---- */

/* One of the things that a sample consists of; returns nanoseconds. */
typedef uint64_t (*timed)(struct run *, unsigned int what, bool *lost);

/* Again while a thread lost its processor; the shortest, if all did. */
static double undisturbed(struct run *r, timed fn, unsigned int what)
{
	uint64_t best = UINT64_MAX, ns;
	bool lost = true;
	int i;

	for (i = 0; i < TRIES && lost; i++) {
		lost = false;
		ns = fn(r, what, &lost);
		best = !lost || ns < best ? ns : best;
	}
	return (double)(best ? best : 1);
}

struct probe {
	enum attn_peak what;
	uint64_t rounds;
};

static void probe_member(void *arg, unsigned int me, unsigned int n)
{
	const struct probe *p = arg;

	(void)me;
	(void)n;
	attn_peak_run(p->what, p->rounds);
}

static uint64_t probe_ns(struct run *r, unsigned int what, bool *lost)
{
	struct probe p = { what, r->rounds[what] };

	return attn_team_run(r->team[0], probe_member, &p, lost);
}

/* Gflop/s of the whole team, NaN if this CPU has none. */
static double probe(struct run *r, enum attn_peak what)
{
	double flop = attn_peak_run(what, 1) * (double)r->rounds[what];

	if (!attn_peak_has(what))
		return NAN;
	return flop * attn_team_size(r->team[0]) / undisturbed(r, probe_ns, what);
}

static uint64_t lane_ns(struct run *r, unsigned int i, bool *lost)
{
	return attn_lane_run(&r->lane[i], r->team[i], r->calls[i], lost);
}

static double time_lane(struct run *r, unsigned int i)
{
	return undisturbed(r, lane_ns, i) / r->calls[i];
}

static uint64_t touch_ns(struct run *r, unsigned int variant, bool *lost)
{
	return attn_touch_run(&r->lane[0], r->team[0], variant, r->touch_calls, lost);
}

static uint64_t stream_ns(struct run *r, unsigned int variant, bool *lost)
{
	return attn_stream_run(&r->lane[0], r->team[0], variant, r->touch_calls, lost);
}

/* GB/s of touch_ns or stream_ns. */
static double read_rate(struct run *r, timed fn, unsigned int variant)
{
	return attn_table_bytes(&r->lane[0]) * r->touch_calls / undisturbed(r, fn, variant);
}

static uint32_t calls_for(double goal_ns, double one_ns)
{
	double n = ceil(goal_ns / (one_ns > 1 ? one_ns : 1));

	return n < 1 ? 1 : n > 1e6 ? 1000000 : (uint32_t)n;
}

/* The rounds of the fastest of a few tries: waiting for a processor must not make them fewer. */
static uint64_t calibrate_probe(enum attn_peak what)
{
	const uint64_t rounds = 4000;
	uint64_t best = UINT64_MAX, start;
	int i;

	for (i = 0; i < 5; i++) {
		start = bench_now_ns();
		attn_peak_run(what, rounds);
		start = bench_now_ns() - start;
		best = start < best ? start : best;
	}
	return (uint64_t)(PROBE_NS / (double)(best ? best : 1) * (double)rounds) + 1;
}

static void calibrate(struct run *r)
{
	unsigned int i;

	for (i = 0; i < r->lanes; i++) {
		r->calls[i] = 1;
		time_lane(r, i);
		r->calls[i] = calls_for(CALL_NS, time_lane(r, i));
	}
	r->touch_calls = 1;
	read_rate(r, touch_ns, 0);
	r->touch_calls = calls_for(CEILING_NS, attn_table_bytes(&r->lane[0]) /
				   read_rate(r, touch_ns, 0));
	for (i = 0; i < ATTN_NR_PEAKS; i++)
		r->rounds[i] = calibrate_probe(i);
}

static void take(struct run *r, struct sample *s)
{
	double before = probe(r, r->yardstick), after;
	unsigned int i;

	for (i = 0; i < r->lanes; i++) {
		s->lane[i] = time_lane(r, i);
		s->plan[i] = r->lane[i].plan_ns;
	}
	for (i = 0; i < ATTN_NR_TOUCHES; i++)
		s->touch[i] = read_rate(r, touch_ns, i);
	s->sequential = 0;
	for (i = 0; i < ATTN_NR_STREAMS; i++)
		s->sequential = fmax(s->sequential, read_rate(r, stream_ns, i));
	for (i = 0; i < ATTN_NR_PEAKS; i++)
		s->peak[i] = i == r->yardstick ? 0 : probe(r, i);
	after = probe(r, r->yardstick);
	s->peak[r->yardstick] = (before + after) / 2;
	s->probe = fmin(before, after);
}

static unsigned int nr_good(const struct run *r, double best)
{
	unsigned int i, n = 0;

	for (i = 0; i < r->nr; i++)
		n += !(r->sample[i].probe < ATTN_MIN_PROBE * best);
	return n;
}

static double best_probe(const struct run *r)
{
	double best = 0;
	unsigned int i;

	for (i = 0; i < r->nr; i++)
		best = fmax(best, r->sample[i].probe);
	return best;
}

/* Returns the seconds it took. */
static double sample_all(struct run *r)
{
	uint64_t start = bench_now_ns();
	double goal = r->opts->seconds * 1e9, spent = 0;

	while (r->nr < ATTN_MAX_SAMPLES && spent < PATIENCE * goal) {
		if (spent >= goal && nr_good(r, best_probe(r)) >= MIN_SAMPLES)
			break;
		take(r, &r->sample[r->nr++]);
		spent = (double)(bench_now_ns() - start);
	}
	return spent / 1e9;
}

/* ---- figures ---- */

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* NaN stays NaN: such a series has no number in it at all. */
struct attn_stat attn_stat_of(double *v, unsigned int n)
{
	if (!n || isnan(v[0]))
		return (struct attn_stat){ NAN, NAN, NAN };
	qsort(v, n, sizeof(*v), ascending);
	return (struct attn_stat){ v[(unsigned int)(.5 * (n - 1) + .5)],
				   v[(unsigned int)(.1 * (n - 1) + .5)],
				   v[(unsigned int)(.9 * (n - 1) + .5)] };
}

/* The statistics of an expression of each sample s. */
#define STAT(r, expr) __extension__({						\
	double stat_v[ATTN_MAX_SAMPLES];					\
	unsigned int stat_i;							\
	for (stat_i = 0; stat_i < (r)->nr; stat_i++) {				\
		const struct sample *s = &(r)->sample[stat_i];			\
		stat_v[stat_i] = (expr);					\
	}									\
	attn_stat_of(stat_v, (r)->nr);						\
})

static enum attn_peak arithmetic(enum kern_impl impl)
{
	const char *name = kern_impl_name(impl);

	return !strcmp(name, "amx") ? ATTN_PEAK_AMX
	       : !strcmp(name, "avx512bf16") ? ATTN_PEAK_BF16 : ATTN_PEAK_FMA;
}

static void lane_rates(const struct run *r, const struct attn_result *res, unsigned int i,
		       struct attn_rates *out)
{
	const struct attn_lane *l = &r->lane[i];
	double bytes = attn_shape_bytes(&l->shape), flop = attn_shape_flop(&l->shape);
	double queries = (double)l->shape.batch * l->shape.q_len;
	double first = (double)r->lane[0].shape.batch * r->lane[0].shape.q_len;
	enum attn_peak own = arithmetic(l->impl), yard = r->yardstick;

	out->ns = STAT(r, s->lane[i]);
	out->gbs = STAT(r, bytes / s->lane[i]);
	out->gflops = STAT(r, flop / s->lane[i]);
	out->tokens = STAT(r, queries * 1e9 / s->lane[i]);
	out->touch_ratio = STAT(r, bytes / s->lane[i] / s->touch[res->best_touch]);
	out->peak_ratio = STAT(r, flop / s->lane[i] / s->peak[yard]);
	out->own_ratio = STAT(r, flop / s->lane[i] / s->peak[own]);
	out->against = STAT(r, queries / s->lane[i] / (first / s->lane[0]));
	out->impl = kern_impl_name(l->impl);
	out->arithmetic = attn_peak_name(own);
	out->fast = l->fast;
	out->plan_ns = STAT(r, s->plan[i]);
	out->plan_share = STAT(r, s->plan[i] / (s->plan[i] + s->lane[i]));
}

static void drop_slow(struct run *r, struct attn_result *res)
{
	double best = best_probe(r);
	unsigned int i;

	for (i = 0; i < r->nr; i++)
		if (!(r->sample[i].probe < ATTN_MIN_PROBE * best))
			r->sample[res->kept++] = r->sample[i];
	res->dropped = r->nr - res->kept;
	r->nr = res->kept;
}

static void judge(const struct run *r, struct attn_result *res)
{
	if (res->kept < KEEP_AT_LEAST)
		snprintf(res->void_why, sizeof(res->void_why),
			 "only %u samples with steady arithmetic: the machine is busy", res->kept);
	else if (res->touch_of_sequential.median < ATTN_MIN_TOUCH)
		snprintf(res->void_why, sizeof(res->void_why),
			 "touch is %.2f of sequential read, under %.2f",
			 res->touch_of_sequential.median, ATTN_MIN_TOUCH);
	else if (res->seconds < r->opts->seconds)
		snprintf(res->void_why, sizeof(res->void_why), "the run took only %.2f s",
			 res->seconds);
}

static void figure(struct run *r, struct attn_result *res)
{
	unsigned int i, best;

	drop_slow(r, res);
	for (i = 0; i < ATTN_NR_TOUCHES; i++) {
		res->touch[i] = STAT(r, s->touch[i]);
		if (res->touch[i].median > res->touch[res->best_touch].median)
			res->best_touch = i;
	}
	best = res->best_touch;
	res->sequential = STAT(r, s->sequential);
	res->touch_of_sequential = STAT(r, s->touch[best] / s->sequential);
	for (i = 0; i < ATTN_NR_PEAKS; i++)
		res->peak[i] = STAT(r, s->peak[i]);
	for (i = 0; i < r->lanes; i++)
		lane_rates(r, res, i, &res->lane[i]);
	judge(r, res);
}

/* ---- a run ---- */

const char *attn_unusable_cpu(void)
{
	const char *name = getenv("KV_CPU");
	int i;

	if (!name || !*name)
		return NULL;
	for (i = KERN_REF; i < KERN_NR_IMPL; i++)
		if (!strcmp(name, kern_impl_name(i)))
			return kern_impl_usable(i) ? NULL : name;
	return name;
}

void attn_explain(const struct attn_shape *s, size_t pool, int err, char *why, size_t size)
{
	const char *cpu = attn_unusable_cpu();
	char name[96];

	attn_shape_name(s, name, sizeof(name));
	if (err == -ENOMEM)
		snprintf(why, size, "out of memory for %s, with a pool of %zu MiB", name,
			 pool >> 20);
	else if (err == -EOPNOTSUPP && s->impl == KERN_AUTO && cpu)
		snprintf(why, size, "KV_CPU=%s is no implementation that runs on this CPU", cpu);
	else
		snprintf(why, size, "%s: %s", name,
			 err == -EOPNOTSUPP ? "not supported" : strerror(-err));
}

static int explain(const struct attn_shape *s, const struct attn_lane *l, int err,
		   struct attn_result *res)
{
	if (err)
		attn_explain(s, l->pool_bytes, err, res->void_why, sizeof(res->void_why));
	return err;
}

static int open_lanes(struct run *r, const struct attn_shape *shapes, unsigned int n,
		      struct attn_result *res)
{
	size_t pool = r->opts->pool_bytes ? r->opts->pool_bytes : attn_pool_bytes();
	unsigned int i;
	int err;

	for (i = 0; i < n; i++) {
		/* all are called in turn, so together they are as large as one alone */
		err = attn_lane_open(&r->lane[i], &shapes[i], pool / n);
		if (err)
			return explain(&shapes[i], &r->lane[i], err, res);
		r->lanes++;
		r->team[i] = attn_team_start(shapes[i].threads);
		if (!r->team[i])
			return explain(&shapes[i], &r->lane[i], -ENOMEM, res);
		res->pool_bytes += r->lane[i].pool_bytes;
		res->lane[i].error = NAN;
		if (r->opts->check)
			res->lane[i].error = attn_lane_error(&r->lane[i], r->team[i]);
	}
	return 0;
}

int attn_run(const struct attn_shape *shapes, unsigned int n, const struct attn_opts *opts,
	     struct attn_result *res)
{
	struct run r = { .opts = opts };
	unsigned int i;
	int err;

	memset(res, 0, sizeof(*res));
	attn_peak_init();
	r.yardstick = attn_peak_has(ATTN_PEAK_BF16) ? ATTN_PEAK_BF16 : ATTN_PEAK_FMA;
	res->yardstick = r.yardstick;
	r.sample = calloc(ATTN_MAX_SAMPLES, sizeof(*r.sample));
	err = r.sample ? open_lanes(&r, shapes, n, res)
		       : explain(shapes, &r.lane[0], -ENOMEM, res);
	if (!err) {
		calibrate(&r);
		res->seconds = sample_all(&r);
		figure(&r, res);
	}
	for (i = 0; i < r.lanes; i++) {
		err = err ? err : explain(&shapes[i], &r.lane[i], r.lane[i].err, res);
		attn_team_stop(r.team[i]);
		attn_lane_close(&r.lane[i]);
	}
	free(r.sample);
	return err;
}
