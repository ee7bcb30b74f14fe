/* SPDX-License-Identifier: Apache-2.0 */
/* policy - which unpinned node goes first, and what keeping one is worth
 *
 * Model:      a node is homed in the bind that writes the extent of its first frame (in group
 *             order) and sits in one of that bind's queues while unpinned; a node without frames
 *             has no home and sits nowhere. A queue is in order of last use, coldest at the head:
 *             unpinning puts a chain at its hot end, tail before head; adopted and re-homed nodes
 *             go to the cold end. Which queue, and which of a few candidates goes, is the policy's:
 *
 *               queues 0..8   classes by past use (policy_ops.class); lru has class 0 only
 *                      9,10   nodes an engine gave low, high priority
 *                      11     nodes with an expected reuse
 *                      12..19 nodes with a time to live, one queue for each factor of 16
 *
 * Invariants: in a queue <=> unpinned and homed; the marks of a queue are in it or 0.
 * Ownership:  whoever changes a node's pins or frames takes it off before and puts it back after,
 *             and calls policy_leaf when an unpinned node lost its last child.
 * Units:      clock: 1024 ns, never the same twice; ms are 1024 clocks; worth: hits a ms, << 40.
 * Cost:       O(groups) a node; policy_victim O(queues): three candidates each.
 * See:        docs/decisions/0002-eviction.md, worth.h, tests/unit/mm/policy_test.c
 */
#ifndef MM_POLICY_H
#define MM_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "list.h"

struct mm;

#define POLICY_CLASSES	9u
#define POLICY_LOW	9u
#define POLICY_HIGH	10u
#define POLICY_REUSE	11u
#define POLICY_TTL	12u
#define POLICY_QUEUES	20u
#define POLICY_MAX_HITS	31u

struct policy_queue {
	struct list list;
	uint32_t old, young;	/* no leaf before, after it */
	uint32_t low, rove;	/* cheapest leaf met by a hand that goes round */
};

struct policy_bind {
	uint32_t mask;		/* of non-empty queues */
	struct policy_queue queue[POLICY_QUEUES];
};

struct policy_ops {
	uint32_t (*class)(const struct mm *, uint32_t node, bool tail);
	uint32_t (*victim)(struct mm *, uint32_t bind);
	uint64_t (*worth)(const struct mm *, uint32_t node);
	bool (*colder)(const struct mm *, uint32_t a, uint32_t b);
};

extern const struct policy_ops policy_lru, policy_gittins;

uint32_t policy_home(const struct mm *, uint32_t node);	/* bind; 0: none */
/* Last use was now; tail: the first of a chain. */
void policy_add_hot(struct mm *, uint32_t node, bool tail);
void policy_add_cold(struct mm *, uint32_t node);
void policy_del(struct mm *, uint32_t node);
void policy_leaf(struct mm *, uint32_t node);

/* The next to go: a leaf, or, where other binds have all the leaves, a node whose subtree goes
 * with it; 0: none. */
uint32_t policy_victim(struct mm *, uint32_t bind);
uint32_t policy_oldest(const struct mm *, uint32_t bind);	/* last used longest ago; 0: none */
bool policy_colder(const struct mm *, uint32_t a, uint32_t b);	/* across binds: a goes first */
uint64_t policy_last_use(const struct mm *, uint32_t bind);	/* clock of the hottest; 0 */
/* Tokens a second, roughly, that the cached content of an extent is expected to save, from a
 * sample of 16 frames: the cheapest extents are taken first. */
uint64_t policy_extent_worth(const struct mm *, uint32_t ext);

uint64_t policy_clock(const struct mm *);
uint32_t policy_queue_of(const struct mm *, uint32_t node);
uint32_t policy_pack_ms(uint32_t ms);	/* to 8 bits, rounded up; 0 for 0 */
uint64_t policy_unpack_ms(uint32_t packed);
bool policy_expired(const struct mm *, uint32_t node);
void policy_check(const struct mm *, uint32_t bind);

#endif
