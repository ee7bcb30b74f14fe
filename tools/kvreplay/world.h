/* SPDX-License-Identifier: Apache-2.0 */
/* world - a memory manager in virtual time: one device, one cache, engines of one tenant
 *
 * Model:      the caller says what time it is and submits requests. Effects (extents made and
 *             destroyed) succeed at once and cost no time; replies go to on_reply. An extent is a
 *             single page as long as mm can name that many, so that the capacity is exact.
 *             A token of mm stands for a whole block of the trace; a page holds one.
 * Ownership:  on_reply must not call mm: a reply's arrays live until the next call.
 * Context:    one thread. A broken invariant of mm ends the program (mm_panic).
 * Errors:     -errno; capacity that no config can describe is -EINVAL.
 */
#ifndef WORLD_H
#define WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mm.h"

struct world;
typedef void world_reply_fn(struct world *, const struct mm_reply *);

struct world_config {
	uint64_t capacity_pages, page_bytes;
	uint64_t most_pages;		/* that can ever be in use: the tables are no larger */
	uint32_t batch_pages;		/* most of one request */
	uint32_t policy;		/* enum mm_policy */
	uint32_t nr_engines;
	uint32_t max_waiting;		/* allocations waiting at once, of all engines */
	world_reply_fn *on_reply;
	void *ctx;
};

struct world {
	struct mm *mm;
	void *mem;
	size_t len;
	uint64_t now_ns, nr_ops;
	uint64_t capacity_pages;	/* what the pool really holds */
	uint32_t nr_engines, cache;
	uint32_t *engines;		/* ids */
	uint64_t *pages;		/* of world_call's reply */
	world_reply_fn *on_reply;
	void *ctx;
};

int world_open(struct world *, const struct world_config *);
void world_close(struct world *);

/* Submits a request of the engine-th engine; it and cache are filled in. */
int world_submit(struct world *, uint32_t engine, struct mm_request *);
/* The same, with time passing until the reply is there; *rp is valid until the next call. */
int world_call(struct world *, uint32_t engine, struct mm_request *, struct mm_reply *rp);
/* Time passes; what is due on the way happens at its time. */
void world_advance(struct world *, uint64_t now_ns);
uint64_t world_next_ns(const struct world *);	/* when something is due; UINT64_MAX: nothing */

uint64_t world_used_pages(const struct world *);	/* held and cached */

const char *world_policy_name(uint32_t policy);
uint32_t world_policy_find(const char *name);	/* MM_NR_POLICIES: none */
extern const uint32_t world_default_policy;

#endif
