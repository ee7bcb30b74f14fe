/* SPDX-License-Identifier: Apache-2.0 */
/* kvreplay - what was asked for, the runs that answer it, and how they are shown
 *
 * Model:      options.c fills in kvreplay; main.c makes a run of each policy at each capacity, in
 *             that order; report.c prints them, plot.c draws them.
 * Ownership:  main.c's.
 */
#ifndef KVREPLAY_H
#define KVREPLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mm.h"
#include "replay.h"
#include "trace.h"

#define KVREPLAY_MAX_CAPACITIES 64
#define KVREPLAY_MAX_ENGINES	1024

struct kvreplay {
	const char *trace_path, *plot_path;
	enum trace_format format;
	bool policy[MM_NR_POLICIES];
	const char *capacity_text;
	uint64_t capacities[KVREPLAY_MAX_CAPACITIES];	/* pages; UINT64_MAX: whatever is needed */
	unsigned int nr_capacities;
	uint32_t nr_engines;		/* 0: not said */
	uint64_t page_bytes;
	uint32_t page_tokens;
	uint64_t wait_ns;
	double decode_rate;
	bool apart, bound, json;
};

struct kvreplay_run {
	uint32_t policy;
	uint64_t capacity_pages;
	struct replay_result res;
	double min_ratio;	/* NAN: not asked for */
};

/* Ends the program with a line where the command line is wrong. */
void kvreplay_options(struct kvreplay *, int argc, char **argv);
/* Pages of a "1k" or "64G"; -EINVAL. A list of them, separated by commas. */
int kvreplay_capacity(const char *text, size_t len, uint64_t page_bytes, uint64_t *pages);
int kvreplay_size(const char *text, size_t len, uint64_t *bytes);

void kvreplay_report(const struct kvreplay *, const struct trace *, const struct trace_gaps *,
		     const struct kvreplay_run *, unsigned int nr_runs);
int kvreplay_plot(const struct kvreplay *, const struct kvreplay_run *, unsigned int nr_runs);

/* On a terminal: a bar on stderr, of all runs together. */
void kvreplay_progress_begin(const char *what, uint64_t done, uint64_t total);
void kvreplay_progress(void *unused, uint32_t done);
void kvreplay_progress_end(void);

#endif
