/* SPDX-License-Identifier: Apache-2.0 */
/* psi - pressure stall information: the share of time allocations waited for memory
 *
 * Model:      a domain is one tenant, or all. some: an allocation of it waits. full: every engine
 *             of it that works waits; an engine works while it is attached, unfenced, has a cache
 *             open, and asked for something (or ceased to wait) within the last PSI_RECENT_NS.
 *             Both are steps in time, added up to totals and, every PSI_PERIOD_NS on the clock,
 *             folded into averages over 10, 60 and 300 s: avg = avg * e + share * (1 - e), with
 *             e = exp(-2 s / window), as Linux PSI does. Periods in which nothing changed are
 *             folded in together. Direct reclaim takes no time in here, so only waiting counts.
 * Invariants: nr_stalled, nr_running count the domain's engines that wait, that work without
 *             waiting; the latter are on mm.recent, the one quiet for longest first. Statistics:
 *             nothing depends on them.
 * Cost:       O(1) a change; folding O(log periods); an engine that falls silent O(1), once.
 *             mm_psi O(engines that fell silent since the last call into mm): reading folds a
 *             copy, so nothing needs to wake up for averages to decay.
 * Units:      averages in 2^-PSI_SHIFT, out in 1/10000.
 * See:        kernel/sched/psi.c, kernel/sched/loadavg.c in Linux; tests/unit/mm/psi_test.c
 */
#ifndef MM_PSI_H
#define MM_PSI_H

#include <stdbool.h>
#include <stdint.h>

struct mm;

#define PSI_PERIOD_NS	2000000000ull
#define PSI_RECENT_NS	10000000000ull
#define PSI_TOUCH_NS	100000000ull	/* asking again so soon changes nothing */
#define PSI_SHIFT	30
#define PSI_AVGS	3u

enum psi_kind { PSI_SOME, PSI_FULL, PSI_KINDS };

struct psi {
	uint64_t since_ns;	/* accounted up to here */
	uint64_t stall_ns[PSI_KINDS];	/* within the period that since_ns is in */
	uint64_t total_ns[PSI_KINDS];
	uint32_t avg[PSI_KINDS][PSI_AVGS];
	uint32_t nr_stalled, nr_running;
};

void psi_stall(struct mm *, uint32_t engine);	/* its first allocation waits */
void psi_resume(struct mm *, uint32_t engine);	/* its last one does no more */
void psi_touch(struct mm *, uint32_t engine);	/* it asked for something */
void psi_forget(struct mm *, uint32_t engine);	/* fenced */
void psi_advance(struct mm *);			/* time went on: who fell silent */

#endif
