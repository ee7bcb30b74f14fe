/* SPDX-License-Identifier: Apache-2.0 */
/* worth - what keeping a page is worth, learnt from the reuse seen
 *
 * Model:      for a class of pages, F(a) is the share used again within a of their last use.
 *             Keeping a page costs room for a time, its gain is a hit; the best it can do from age
 *             a on is the Gittins index
 *                 max over t of (F(a + t) - F(a)) / integral from a to a + t of (1 - F)
 *             = the steepest chord from a to a later point of F over the time spent waiting, found
 *             for all ages in one pass over the upper hull.
 *             F is counted in buckets, four an octave of ms, so it has no unit of its own; each
 *             bucket is divided by the pages old enough to have reached it. Old counts fade, and
 *             a reuse counts what the page it is of counts by now. Chains come and go as one, so a
 *             bucket holds few independent events: each is averaged with its neighbours.
 *             Buckets below a sixteenth of the median gap are one: what returns so soon is a hit
 *             under any policy.
 * Invariants: integer; one learner a tenant; bounded; epochs begin in order of time.
 * Units:      ms (of 1024 * 1024 ns); counts << 12; worth << 40, hits a ms.
 * Cost:       O(1) an event, O(classes * buckets) every 1024 pages, sooner while young.
 * See:        docs/decisions/0002-eviction.md, tests/unit/mm/worth_test.c
 */
#ifndef MM_WORTH_H
#define MM_WORTH_H

#include <stdint.h>

#include "policy.h"

#define WORTH_BUCKETS	120u	/* to 2^31 ms */
#define WORTH_EPOCHS	64u
#define WORTH_ONE	(1ull << 40)
#define WORTH_UNIT	4096u	/* one page in the counts */

struct worth {
	uint32_t seen[POLICY_CLASSES];			/* pages that entered the class */
	uint32_t reuse[POLICY_CLASSES][WORTH_BUCKETS];
	/* When they entered: a ring, newest at head; what left it is older. */
	uint32_t entered[WORTH_EPOCHS][POLICY_CLASSES];
	uint64_t start_ms[WORTH_EPOCHS];
	uint32_t unit[WORTH_EPOCHS];	/* what a page that entered then counts by now */
	uint32_t head, nr_epochs, in_epoch;
	uint32_t due;			/* pages until the table is made anew */
	uint32_t total;			/* pages seen, to 2^16 */
	uint64_t table[POLICY_CLASSES][WORTH_BUCKETS];
};

struct worth *worth_at(const struct mm *, uint32_t tenant);	/* NULL: nothing is learnt */
void worth_init(struct mm *, uint32_t tenant);
void worth_enter(struct worth *, uint32_t class, uint64_t now_ms);
void worth_reuse(struct worth *, uint32_t class, uint64_t gap_ms, uint64_t now_ms);
uint64_t worth_of(const struct worth *, uint32_t class, uint64_t age_ms);
void worth_check(const struct worth *);
uint32_t worth_bucket(uint64_t ms);
uint64_t worth_bucket_start(uint32_t bucket);

#endif
