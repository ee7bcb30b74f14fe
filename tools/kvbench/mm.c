/* SPDX-License-Identifier: Apache-2.0 */
/* The memory manager alone: what an operation costs as the pool grows, and beside malloc, memcmp.
 *
 * Counts (instructions, cache lines) are exact and the same in every run; times are 10th
 * percentiles, each world's beside dependent random reads in a buffer of its size, because more
 * memory is slower to reach whatever one does with it.
 */
#include "bench.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bare.h"
#include "emit.h"
#include "mm_world.h"
#include "trace.h"

#define NR_SIZES     4u
#define TIMED_STEPS  64u
#define PROBE_READS  5000u
#define PAIRS	     2048u /* short: seldom interrupted */
#define BATCH	     64u
#define LONG_TOKENS  131072u
#define LONG_PAGES   2048u
#define GOAL_COUNTS  1.3
#define GOAL_TIME    1.5
#define GOAL_INIT_NS 2000000000ull

static const uint32_t sizes[NR_SIZES] = { 10000, 100000, 1000000, 10000000 };

struct cost {
	struct world_count count;
	double ns;
};

struct scale {
	struct cost cost[NR_SIZES][WORLD_NR_OPS];
	double probe_ns[NR_SIZES];
	uint64_t init_ns[NR_SIZES], bytes[NR_SIZES];
	unsigned int nr; /* sizes there was memory for */
	bool counted;
};

/* ---- counts and times of one world ---------------------------------------------------------- */

/* A step of many instructions says enough about all of its pages. */
static uint32_t counted_steps(enum world_op op)
{
	return op == WORLD_COMMIT_CHAIN ? 2 : op == WORLD_LOOKUP ? 6 : 16;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* The 10th percentile: what else the machine does can only add. */
static double undisturbed(double *v, unsigned int nr)
{
	qsort(v, nr, sizeof(*v), ascending);
	return v[nr / 10];
}

static double step_ns(struct world *w, enum world_op op, unsigned int samples)
{
	uint32_t nr = op == WORLD_COMMIT_CHAIN ? 8 : TIMED_STEPS;
	double ns[BENCH_MAX_SAMPLES];
	unsigned int i;
	uint64_t t;

	for (i = 0; i < samples; i++) {
		world_prepare(w, op, nr);
		t = bench_now_ns();
		world_steps(w, op, nr);
		ns[i] = (double)(bench_now_ns() - t) / nr;
		world_finish(w, op);
	}
	return undisturbed(ns, samples);
}

/* Reads at random, the next address hanging on what was read (nothing but zeros). */
static double probe_ns(size_t bytes, unsigned int samples)
{
	uint64_t lines = bytes / 64, state = 1, t;
	double ns[BENCH_MAX_SAMPLES];
	unsigned int i, k;
	char *buf = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (buf == MAP_FAILED)
		return NAN;
	for (size_t at = 0; at < bytes; at += 4096)
		buf[at + 8] = 1; /* a page of its own, not the one all zeros share */
	for (i = 0; i < samples; i++) {
		t = bench_now_ns();
		for (k = 0; k < PROBE_READS; k++) {
			uint64_t line = (uint64_t)((unsigned __int128)state * lines >> 64);

			state = state * 6364136223846793005u + 1442695040888963407u +
				*(volatile uint64_t *)(buf + line * 64);
		}
		ns[i] = (double)(bench_now_ns() - t) / PROBE_READS;
	}
	munmap(buf, bytes);
	return undisturbed(ns, samples);
}

static uint64_t available_bytes(void)
{
	unsigned long long kib = 0, limit;
	FILE *f = fopen("/proc/meminfo", "r");
	char line[128];

	while (f && fgets(line, sizeof(line), f) && sscanf(line, "MemAvailable: %llu", &kib) != 1)
		;
	if (f)
		fclose(f);
	f = fopen("/sys/fs/cgroup/memory.max", "r");
	if (f && fscanf(f, "%llu", &limit) == 1 && limit >> 10 < kib)
		kib = limit >> 10;
	if (f)
		fclose(f);
	return kib << 10;
}

static int measure(struct scale *s, unsigned int i, unsigned int samples)
{
	struct world *w;
	unsigned int op;
	int err = world_create(&w, sizes[i]);

	if (err)
		return err;
	s->init_ns[i] = w->bare.init_ns;
	s->bytes[i] = w->bare.len;
	/* All counts first: the many steps timed change what a small world looks like. */
	for (op = 0; op < WORLD_NR_OPS && s->counted; op++)
		world_count(w, op, counted_steps(op), &s->cost[i][op].count);
	for (op = 0; op < WORLD_NR_OPS; op++)
		s->cost[i][op].ns = step_ns(w, op, samples);
	world_destroy(w);
	s->probe_ns[i] = probe_ns(s->bytes[i], samples);
	return 0;
}

/* ---- tables --------------------------------------------------------------------------------- */

static void report_costs(struct emit *e, const struct scale *s)
{
	static const struct emit_col cols[] = {
		{ "op", "OPERATION", EMIT_STR },	{ "pages", "PAGES", EMIT_COUNT },
		{ "instructions", "INSTRUCTIONS", EMIT_FLOAT }, { "lines", "LINES", EMIT_FLOAT },
		{ "ns", "TIME", EMIT_NS },		{ "probe_ns", "RANDOM READ", EMIT_FLOAT },
	};
	union emit_val rows[NR_SIZES * WORLD_NR_OPS * 6], *r = rows;
	unsigned int op, i;

	for (op = 0; op < WORLD_NR_OPS; op++)
		for (i = 0; i < s->nr; i++, r += 6) {
			const struct cost *c = &s->cost[i][op];

			r[0].s = world_op_name(op);
			r[1].u = sizes[i];
			r[2].f = s->counted ? c->count.instructions : NAN;
			r[3].f = s->counted ? c->count.lines : NAN;
			r[4].u = (uint64_t)(c->ns + .5);
			r[5].f = s->probe_ns[i];
		}
	emit_table(e, "mm_costs", cols, 6, rows, WORLD_NR_OPS * s->nr);
}

static void report_growth(struct emit *e, const struct scale *s)
{
	static const struct emit_col cols[] = {
		{ "op", "GROWTH", EMIT_STR },
		{ "instructions", "INSTRUCTIONS", EMIT_RATIO },
		{ "lines", "LINES", EMIT_RATIO },
		{ "goal", "GOAL", EMIT_RATIO },
		{ "time", "TIME", EMIT_RATIO },
		{ "probe", "RANDOM READ", EMIT_RATIO },
		{ "time_over_probe", "TIME / READ", EMIT_RATIO },
		{ "time_goal", "GOAL", EMIT_RATIO },
	};
	union emit_val rows[WORLD_NR_OPS * 8], *r = rows;
	double probe = s->probe_ns[s->nr - 1] / s->probe_ns[0];
	unsigned int op;

	for (op = 0; op < WORLD_NR_OPS; op++, r += 8) {
		const struct cost *a = &s->cost[0][op], *b = &s->cost[s->nr - 1][op];
		bool siblings = op == WORLD_LOOKUP_ONE; /* nothing but the search among them */

		r[0].s = world_op_name(op);
		r[1].f = s->counted ? b->count.instructions / a->count.instructions : NAN;
		r[2].f = s->counted ? b->count.lines / a->count.lines : NAN;
		r[3].f = siblings ? NAN : GOAL_COUNTS;
		r[4].f = b->ns / a->ns;
		r[5].f = probe;
		r[6].f = b->ns / a->ns / probe;
		r[7].f = GOAL_TIME;
	}
	emit_table(e, "mm_growth", cols, 8, rows, WORLD_NR_OPS);
}

/* Bytes one more of a thing costs. */
static double bytes_each(uint32_t frames, uint32_t nodes, uint64_t tokens)
{
	struct mm_config a, b;

	world_config(&a, 1000000);
	b = a;
	b.max_frames += frames;
	b.max_nodes += nodes;
	b.max_tokens += tokens;
	return (double)(mm_footprint(&b) - mm_footprint(&a)) / (frames + nodes + (double)tokens);
}

static void report_facts(struct emit *e, const struct scale *s)
{
	static const struct emit_col cols[] = {
		{ "pages", "PAGES", EMIT_COUNT },
		{ "init_ns", "START-UP", EMIT_NS },
		{ "init_goal_ns", "GOAL", EMIT_NS },
		{ "bytes", "BLOCK", EMIT_BYTES },
		{ "frame_bytes", "A FRAME", EMIT_FLOAT },
		{ "frame_goal", "GOAL", EMIT_FLOAT },
		{ "node_bytes", "A NODE", EMIT_FLOAT },
		{ "node_goal", "GOAL", EMIT_FLOAT },
		{ "token_bytes", "A TOKEN", EMIT_FLOAT },
	};
	const union emit_val row[] = {
		{ .u = sizes[s->nr - 1] },
		{ .u = s->init_ns[s->nr - 1] },
		{ .u = GOAL_INIT_NS },
		{ .u = s->bytes[s->nr - 1] },
		{ .f = bytes_each(1u << 20, 0, 0) },
		{ .f = 64 },
		{ .f = bytes_each(0, 1u << 20, 0) },
		{ .f = 96 },
		{ .f = bytes_each(0, 0, 1u << 20) },
	};

	emit_table(e, "mm_facts", cols, 9, row, 1);
}

static int scale(struct bench_env *env)
{
	struct scale s = { .counted = trace_works() };
	struct mm_config cfg;
	int err = 0;

	if (!s.counted)
		emit_note(env->emit, "no counts: the trap flag does not work here\n");
	for (; s.nr < NR_SIZES && !err; s.nr++) {
		world_config(&cfg, sizes[s.nr]);
		if (mm_footprint(&cfg) / 4 * 5 + sizes[s.nr] * 16ull > available_bytes())
			break;
		err = measure(&s, s.nr, env->samples);
	}
	if (s.nr < NR_SIZES && !err)
		emit_note(env->emit, "no memory for more than %u pages: growth is up to there\n",
			  s.nr ? sizes[s.nr - 1] : 0);
	if (err || !s.nr)
		return err ? err : -ENOMEM;
	report_costs(env->emit, &s);
	report_growth(env->emit, &s);
	report_facts(env->emit, &s);
	return 0;
}

/* ---- beside malloc -------------------------------------------------------------------------- */

static double pairs_ns(struct world *w, uint32_t nr)
{
	uint64_t t = bench_now_ns();
	unsigned int i;

	for (i = 0; i < PAIRS / nr; i++)
		world_pair(w, nr);
	return (double)(bench_now_ns() - t) / (PAIRS / nr * nr);
}

/* Of as many bytes as mm keeps about a page of nobody's. */
static double malloc_ns(uint32_t nr)
{
	size_t bytes = (size_t)bytes_each(1u << 20, 0, 0);
	uint64_t t = bench_now_ns();
	void *p[BATCH];
	unsigned int i, k;

	for (i = 0; i < PAIRS / nr; i++) {
		for (k = 0; k < nr; k++) {
			p[k] = malloc(bytes);
			__asm__ volatile("" : : "r"(p[k]) : "memory");
		}
		for (k = 0; k < nr; k++)
			free(p[k]);
	}
	return (double)(bench_now_ns() - t) / (PAIRS / nr * nr);
}

static int pairs(struct bench_env *env, struct bench *b)
{
	struct bench_series *one = bench_series(b, "mm alloc+free, one page a request");
	struct bench_series *many = bench_series(b, "mm alloc+free a page, 64 a request");
	struct bench_series *m1 = bench_series(b, "malloc+free of a page's bookkeeping");
	struct bench_series *m64 = bench_series(b, "the same, 64 at a time");
	struct bench_ratio *r1 = bench_ratio(b, "one page a request / malloc+free", 3);
	struct bench_ratio *r64 = bench_ratio(b, "64 a request, a page / malloc+free", 3);
	struct world *w;
	unsigned int i;
	int err = world_create(&w, 10000);

	for (i = 0; i < env->samples && !err; i++) {
		double x, y, z;

		pairs_ns(w, BATCH); /* warm */
		x = pairs_ns(w, 1);
		y = pairs_ns(w, BATCH);
		malloc_ns(1);
		z = malloc_ns(1);

		bench_add(one, x);
		bench_add(many, y);
		bench_add(m1, z);
		bench_add(m64, malloc_ns(BATCH));
		bench_add_ratio(r1, x / z);
		bench_add_ratio(r64, y / z);
	}
	if (!err)
		world_destroy(w);
	return err;
}

/* ---- beside memcmp -------------------------------------------------------------------------- */

static int fill_long(struct bare_mm *m, const uint32_t *tokens)
{
	struct mm_request rq = { .op = MM_ALLOC, .engine = m->engine, .cache = m->cache,
				 .alloc.nr_pages = LONG_PAGES };
	static uint64_t pages[LONG_PAGES];
	struct mm_reply re;

	re = *bare_call(m, &rq);
	if (re.result)
		return re.result;
	memcpy(pages, re.pages, sizeof(pages));
	rq.op = MM_COMMIT;
	rq.commit = (typeof(rq.commit)){ .tokens = tokens, .nr_tokens = LONG_TOKENS,
					 .pages = pages, .nr_pages = LONG_PAGES };
	re = *bare_call(m, &rq);
	rq.op = MM_UNLEASE;
	rq.unlease = (typeof(rq.unlease)){ &re.lease, 1 };
	if (!re.result)
		re = *bare_call(m, &rq);
	return re.result;
}

static double long_ns(struct bare_mm *m, const uint32_t *tokens)
{
	struct mm_request rq = { .op = MM_LOOKUP, .engine = m->engine, .cache = m->cache,
				 .lookup = { .tokens = tokens, .nr_tokens = LONG_TOKENS } };
	struct mm_reply re;
	uint64_t t = bench_now_ns();
	uint32_t lease;

	re = *bare_call(m, &rq);
	t = bench_now_ns() - t;
	lease = re.lease;
	if (re.result || re.nr_pages != LONG_PAGES)
		return NAN;
	rq.op = MM_UNLEASE;
	rq.unlease = (typeof(rq.unlease)){ &lease, 1 };
	re = *bare_call(m, &rq);
	return re.result ? NAN : (double)t;
}

static double memcmp_ns(const uint32_t *a, const uint32_t *b)
{
	uint64_t t = bench_now_ns();
	int differs = memcmp(a, b, LONG_TOKENS * sizeof(*a));

	__asm__ volatile("" : : "r"(differs) : "memory");
	return (double)(bench_now_ns() - t);
}

static int long_lookup(struct bench_env *env, struct bench *b)
{
	struct bench_series *look = bench_series(b, "lookup of 131,072 tokens, mm alone");
	struct bench_series *cmp = bench_series(b, "memcmp of the same array");
	struct bench_ratio *r = bench_ratio(b, "lookup / memcmp", 10);
	uint32_t *tokens = malloc(2 * LONG_TOKENS * sizeof(*tokens)), i;
	struct bare_mm m = { 0 };
	int err = tokens ? bare_init(&m) : -ENOMEM;

	for (i = 0; i < LONG_TOKENS && tokens; i++)
		tokens[i] = tokens[LONG_TOKENS + i] = i * 2654435761u >> 8;
	if (!err)
		err = fill_long(&m, tokens);
	for (i = 0; i < env->samples && !err; i++) {
		double x, y;

		long_ns(&m, tokens); /* warm, as memcmp is */
		x = long_ns(&m, tokens);
		memcmp_ns(tokens, tokens + LONG_TOKENS);
		y = memcmp_ns(tokens, tokens + LONG_TOKENS);
		bench_add(look, x);
		bench_add(cmp, y);
		bench_add_ratio(r, x / y);
		err = x > 0 ? 0 : -EIO;
	}
	if (m.mem)
		munmap(m.mem, m.len);
	free(tokens);
	return err;
}

int bench_mm(struct bench_env *env, struct bench *b)
{
	int err = scale(env);

	if (!err)
		err = pairs(env, b);
	if (!err)
		err = long_lookup(env, b);
	if (err)
		fprintf(stderr, "kvbench: mm: %s\n", strerror(-err));
	return err;
}
