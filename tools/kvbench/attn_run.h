/* SPDX-License-Identifier: Apache-2.0 */
/* attn_run - shapes and the machine's ceilings sampled in turn, their rates and ratios
 *
 * Model:      a sample is a probe of the arithmetic, a few calls of each shape, every touch variant
 *             and a sequential read over the first shape's pages, the other arithmetics, and the
 *             first probe again. A time in which a thread lost its processor is taken anew; a
 *             sample with a probe under .9 of the best one is dropped. Ratios are made sample by
 *             sample.
 * Invariants: touch is the variant with the best median; the yardstick of peak_ratio is vdpbf16ps
 *             where the CPU has it, else fp32 FMA.
 * Units:      rates in 1e9 bytes or flop a second.
 * Errors:     -errno of attn_lane_open(), void_why says of what; so it does of a result that means
 *             nothing.
 */
#ifndef ATTN_RUN_H
#define ATTN_RUN_H

#include <stddef.h>

#include "attn_peak.h"
#include "attn_shape.h"
#include "attn_touch.h"

#define ATTN_MAX_LANES	 4u
#define ATTN_MAX_SAMPLES 500u
#define ATTN_WHY	 160u	/* bytes of a reason */
#define ATTN_MIN_TOUCH	 .70	/* of sequential read: less and the run is void */
#define ATTN_MIN_PROBE	 .90	/* of the best probe: less and the sample is dropped */

struct attn_opts {
	double seconds;			/* to sample at least */
	size_t pool_bytes;		/* 0: attn_pool_bytes() */
	bool check;			/* compare with the reference first */
};

struct attn_stat {
	double median, p10, p90;
};

struct attn_rates {
	struct attn_stat ns;		/* of a call */
	struct attn_stat gbs, gflops;
	struct attn_stat tokens;	/* queries answered a second */
	struct attn_stat touch_ratio;
	struct attn_stat peak_ratio;	/* of the yardstick */
	struct attn_stat own_ratio;	/* of the arithmetic the implementation uses */
	struct attn_stat against;	/* tokens a second over the first shape's */
	const char *impl, *arithmetic;
	bool fast;
	struct attn_stat plan_ns;	/* planning of a call, in none of the other times */
	struct attn_stat plan_share;	/* of both together, were each call planned */
	double error;			/* from the reference, NaN if not checked */
};

struct attn_result {
	struct attn_rates lane[ATTN_MAX_LANES];
	struct attn_stat touch[ATTN_NR_TOUCHES], sequential, touch_of_sequential;
	struct attn_stat peak[ATTN_NR_PEAKS];
	unsigned int best_touch;
	enum attn_peak yardstick;
	unsigned int kept, dropped;
	double seconds;
	size_t pool_bytes;
	char void_why[ATTN_WHY];		/* "" if it counts */
};

/* Sorts v. NaN if there is none, or the first is. */
struct attn_stat attn_stat_of(double *v, unsigned int n);

/* Four times the largest cache, 256 MiB to 4 GiB, and no more than a quarter of free memory. */
size_t attn_pool_bytes(void);

/* What KV_CPU= says, if that is nothing that runs here; else NULL. */
const char *attn_unusable_cpu(void);

/* In words: what attn_lane_open() of a shape, or memory beside its pool, failed with. */
void attn_explain(const struct attn_shape *, size_t pool_bytes, int err, char *why, size_t size);

/* shapes[0] is what the ceilings are for. */
int attn_run(const struct attn_shape *shapes, unsigned int n, const struct attn_opts *,
	     struct attn_result *);

#endif
