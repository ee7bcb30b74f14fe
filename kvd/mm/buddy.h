/* SPDX-License-Identifier: Apache-2.0 */
/* buddy - contiguous runs of units: frames of extents, token ids of nodes
 *
 * Model:      free blocks are 2^order units, aligned to their size, each order a list. The links
 *             lie in the free units themselves, a tag byte a unit says "a free block of this order
 *             starts here". A run of any length is cut out of the smallest block that holds it and
 *             the rest goes back, so a run costs no rounding.
 * Invariants: no two free buddies of one order; free_units is the sum of the blocks.
 * Ownership:  whoever was given a run may write over the links in it; it must know its length.
 * Units:      units are numbered from 1 outside, from 0 inside; 0 is no run.
 * Cost:       O(log units) a call; init touches O(log units) units.
 */
#ifndef MM_BUDDY_H
#define MM_BUDDY_H

#include <stdbool.h>
#include <stdint.h>

struct mm;

#define BUDDY_ORDERS 32

struct buddy {
	uint64_t off_links;	/* of unit 1 */
	uint64_t off_tags;
	uint32_t stride;	/* from a unit's link to the next unit's */
	uint32_t units, free_units;
	uint32_t mask;		/* orders with a free block */
	uint32_t head[BUDDY_ORDERS];
};

void buddy_init(struct mm *, struct buddy *, uint32_t units);	/* offsets are set */
uint32_t buddy_alloc(struct mm *, struct buddy *, uint32_t nr);	/* 0: no such run */
void buddy_free(struct mm *, struct buddy *, uint32_t unit, uint32_t nr);
void buddy_check(const struct mm *, const struct buddy *);

/* Is there a block of 2^order units? */
static inline bool buddy_fits(const struct buddy *b, uint32_t order)
{
	return b->mask >> order != 0;
}

#endif
