/* SPDX-License-Identifier: Apache-2.0 */
/* bench - samples of several things taken in turn, their medians, spreads and ratios
 *
 * Model:      a benchmark fills series (ns per operation), one sample of each in turn so that a
 *             drifting machine drifts for all; ratios are taken sample by sample, then the median.
 * Units:      nanoseconds a sample.  Limits: BENCH_MAX_SERIES, BENCH_MAX_SAMPLES.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define BENCH_MAX_SERIES	16
#define BENCH_MAX_SAMPLES	101
#define BENCH_MAX_RATIOS	8

struct bench_series {
	const char *name;
	double ns[BENCH_MAX_SAMPLES];
	unsigned int nr;
};

struct bench_ratio {
	const char *name;
	double value[BENCH_MAX_SAMPLES];
	unsigned int nr;
	double goal;		/* at most; 0: none */
};

struct bench {
	struct bench_series series[BENCH_MAX_SERIES];
	struct bench_ratio ratio[BENCH_MAX_RATIOS];
	unsigned int nr_series, nr_ratios, samples;
};

struct emit;

/* What a subcommand may use. connect: NULL starts a kvd of our own for the time of the run. */
struct bench_env {
	const char *connect, *kvd;
	unsigned int samples;
	char spec[128];		/* "unix:PATH" of the running daemon */
	char dir[64];
	pid_t daemon;		/* 0: not ours */
	struct emit *emit;	/* for tables of a benchmark's own */
};

uint64_t bench_now_ns(void);
struct bench_series *bench_series(struct bench *, const char *name);
struct bench_ratio *bench_ratio(struct bench *, const char *name, double goal);
void bench_add(struct bench_series *, double ns);
void bench_add_ratio(struct bench_ratio *, double value);

/* Starts kvd if connect is NULL; prints a line and returns -errno on failure. */
int bench_daemon_start(struct bench_env *);
void bench_daemon_stop(struct bench_env *);
double bench_daemon_cpu_seconds(pid_t);

/* A cache with small pages that every subcommand opens the same way. */
struct kv;
struct kv_cache;
int bench_cache(struct kv *, uint32_t page_tokens, struct kv_cache **);

int bench_alloc(struct bench_env *, struct bench *);
int bench_ring(struct bench_env *, struct bench *);
int bench_prefix(struct bench_env *, struct bench *);
int bench_session(struct bench_env *, struct bench *);
int bench_idle(struct bench_env *, struct bench *);
int bench_mm(struct bench_env *, struct bench *);
int bench_attn(struct bench_env *, struct bench *);

#endif
