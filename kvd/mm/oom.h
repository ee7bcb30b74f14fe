/* SPDX-License-Identifier: Apache-2.0 */
/* oom - reports of allocations that were refused for want of memory
 *
 * Model:      a ring of mm_oom_report. A report is a picture of the moment, of the device that was
 *             short: what its bytes were, and who held most. An allocation with deadline 0 is a
 *             question, which its client repeats or follows by one that waits: it is counted in
 *             vmstat.alloc_fail and never reported. Every other one refused counts in vmstat.oom.
 * Invariants: statistics: nothing depends on them. seq rises by one a report.
 * Cost:       a report O(engines + tenants + caches + binds), so there is at most one a second for
 *             each engine (others count in it) and MM_OOM_REPORTS a second in all (others count in
 *             missed of the next). Reading O(1).
 * See:        kvctl oom, tests/unit/mm/oom_test.c
 */
#ifndef MM_OOM_H
#define MM_OOM_H

#include <stdint.h>

#include "mm.h"

#define OOM_QUIET_NS	1000000000ull

struct oom {
	uint64_t last_seq;
	uint32_t missed;
	struct mm_oom_report ring[MM_OOM_REPORTS];	/* report seq is at seq % MM_OOM_REPORTS */
};

struct oom_ask {
	uint32_t bind, group, nr_pages;
	const struct mm_reply *reply;	/* with result, reason, a and b */
};

void oom_refused(struct mm *, const struct oom_ask *);

#endif
