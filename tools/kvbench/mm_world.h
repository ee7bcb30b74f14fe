/* SPDX-License-Identifier: Apache-2.0 */
/* mm_world - a memory manager of any number of pages, full of a realistic tree of prefixes
 *
 * Model:      chains of 64 to 2,048 pages, short ones the most frequent; half of them begin at the
 *             root, half branch off inside an earlier one. Tokens are a hash of chain and place, so
 *             nothing but the chains' shapes is stored. One engine has one cache and writes all.
 *             A step is one operation of a kind somewhere random; what one needs (pages to free,
 *             leases to extend) world_prepare has made before, so that a step is mm's work alone.
 * Ownership:  world_create owns its memory; world_destroy gives it back.
 * Units:      pages; a page is WORLD_PAGE_TOKENS tokens.
 * Context:    one thread. Deterministic: same seed and size, same steps.
 */
#ifndef MM_WORLD_H
#define MM_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "bare.h"

#define WORLD_PAGE_TOKENS  4u
#define WORLD_MAX_CHAIN	   2048u
#define WORLD_LOOKUP_PAGES 64u
#define WORLD_STEPS	   256u	/* most steps between two world_prepare */

enum world_op {
	WORLD_ALLOC,		/* one page, some are free */
	WORLD_FREE,		/* one page */
	WORLD_LOOKUP,		/* of the first WORLD_LOOKUP_PAGES pages of a chain */
	WORLD_LOOKUP_ONE,	/* of the first page of a chain */
	WORLD_COMMIT,		/* one page behind a leased chain, as decoding does */
	WORLD_COMMIT_CHAIN,	/* WORLD_LOOKUP_PAGES new pages from the root, as a prompt does */
	WORLD_EVICT,		/* allocation of one page when none is free: one is evicted */
	WORLD_NR_OPS,
};

struct world_chain {
	uint32_t parent, branch;	/* parent 0: begins at the root */
	uint32_t pages, seed;
};

struct world {
	struct bare_mm bare;
	uint32_t nr_pages;
	struct world_chain *chain;	/* from 1 */
	uint32_t nr_chains, max_chains;
	uint64_t random;
	uint64_t *held;			/* pages taken so that none is free */
	uint32_t nr_held;
	uint32_t at, nr_steps;		/* of those prepared */
	uint64_t page[WORLD_STEPS * WORLD_LOOKUP_PAGES];
	uint32_t lease[WORLD_STEPS];
	uint32_t tokens[WORLD_STEPS][WORLD_LOOKUP_PAGES * WORLD_PAGE_TOKENS];
	uint32_t whole[WORLD_MAX_CHAIN * WORLD_PAGE_TOKENS];
};

int world_create(struct world **, uint32_t nr_pages);
void world_destroy(struct world *);
void world_prepare(struct world *, enum world_op, uint32_t nr_steps);
void world_step(struct world *, enum world_op);
void world_steps(struct world *, enum world_op, uint32_t nr);
void world_finish(struct world *, enum world_op);	/* gives back what the steps left */

struct world_count {
	double instructions, lines;	/* of one step */
};

/* The mean of nr steps, prepared and finished; where trace_works(). */
void world_count(struct world *, enum world_op, uint32_t nr, struct world_count *);

void world_pair(struct world *, uint32_t nr);	/* allocates nr pages and frees them */

void world_config(struct mm_config *, uint32_t nr_pages);
const char *world_op_name(enum world_op);

#endif
