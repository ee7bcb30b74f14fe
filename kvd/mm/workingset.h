/* SPDX-License-Identifier: Apache-2.0 */
/* workingset - what became of pages after their last use: reuse gaps, and refaults of evicted ones
 *
 * Model:      an evicted node leaves a shadow, 16 bytes in a ring of the last max_shadows, found by
 *             the hash of its path (cache, key and tokens of every page down to it). A node made
 *             anew whose path has a shadow is a refault; its distance is the evictions since, as in
 *             Linux mm/workingset.c: a cache larger by so many pages would still have had it.
 *             Nodes and shadows carry how often the page was used, for the policy.
 *             Chains of the hash table are never unlinked: a slot of the ring that was overwritten
 *             is younger than what points to it, and ends the chain.
 * Invariants: at most max_shadows live shadows; none is younger than the last eviction.
 * Units:      ms of 1024 * 1024 ns; log2 buckets, 0 for 0.
 * Cost:       O(1); 16 bytes a shadow and 4 at most for the table.
 * Limits:     max_shadows, 0: no refaults are seen. Two paths of one 32-bit hash are taken for one.
 * See:        policy.h, worth.h, tests/unit/mm/workingset_test.c
 */
#ifndef MM_WORKINGSET_H
#define MM_WORKINGSET_H

#include <stdint.h>

struct mm;

struct shadow {
	uint32_t path;
	uint32_t next;			/* in the chain of its bucket, older */
	uint32_t used_ms;		/* last use */
	uint32_t hits : 8, class : 8, live : 1, pad : 15;
};

uint32_t workingset_heads(uint32_t max_shadows);	/* size of the table: 2^k, 0 for 0 */
uint32_t workingset_path(const struct mm *, uint32_t node);
void workingset_evict(struct mm *, uint32_t node);	/* it goes, with its frames */
void workingset_create(struct mm *, uint32_t node);	/* is it a refault? */
/* From unpinned to pinned, at policy_clock(). */
void workingset_use(struct mm *, uint32_t node, uint64_t clock);
void workingset_check(const struct mm *);
uint64_t workingset_digest(const struct mm *, uint64_t h);

#endif
