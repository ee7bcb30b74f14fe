/* SPDX-License-Identifier: Apache-2.0 */
/* replay - a trace through the memory manager: what was hit, what was evicted, who waited
 *
 * Model:      replay_prefixes, traces with blocks: at its time a request looks all of its blocks
 *             up, allocates pages for those missing, commits them and lets go of everything, tail
 *             first, so that tails are older than heads. Only a contiguous prefix hits.
 *             replay_lengths, traces without: a request allocates the pages of its prompt, waits
 *             in mm's queue where there is none, gets a page whenever its answer fills one, and
 *             frees all at its end. With one engine nothing ever waits in mm: room comes from
 *             others; a refusal is then at once.
 *             Request i is the (i mod nr_engines)-th engine's. Engines share one pool and cache,
 *             or have a pool of capacity / nr_engines each (apart).
 *             refaults are counted here and not taken from mm_vmstat: mm forgets an eviction after
 *             as many more as it has shadows, and two paths of one hash are one to it; this is
 *             exact over the whole trace.
 * Invariants: the same call gives the same result, but for wall_ns.
 * Errors:     -errno, nothing to free.
 */
#ifndef REPLAY_H
#define REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "trace.h"

struct replay_config {
	uint64_t capacity_pages, page_bytes;
	uint32_t page_tokens;
	uint32_t policy;		/* enum mm_policy */
	uint32_t nr_engines;
	bool apart;
	uint64_t wait_ns;		/* lengths: an allocation's deadline */
	double decode_rate;		/* lengths: tokens a second of each request */
	void (*progress)(void *ctx, uint32_t done);	/* requests so far; NULL: none */
	void *ctx;
};

struct replay_result {
	uint64_t capacity_pages;	/* of all pools, in whole extents */
	uint64_t blocks, hit_blocks, tokens, hit_tokens;
	uint64_t evictions, refaults;	/* refaults: blocks committed again after their eviction */
	uint64_t oversized;		/* requests larger than a pool */
	uint64_t refused;		/* prompts that got no pages (lengths: oversized too) */
	double mean_pages;		/* over time */
	uint64_t peak_pages;
	uint64_t ops, wall_ns;		/* requests to mm; real time */

	/* lengths only */
	uint64_t served, waited, aborted;	/* aborted: no page for the answer in time */
	uint64_t wait_p50_ns, wait_p90_ns, wait_p99_ns, wait_max_ns;	/* of those that waited */
	double some_share, full_share;	/* of time: one or more wait; and nobody gets on */
};

int replay_prefixes(const struct trace *, const struct replay_config *, struct replay_result *);
int replay_lengths(const struct trace *, const struct replay_config *, struct replay_result *);

/* The e-th engine's part of a capacity that engines have apart. */
uint64_t replay_part(uint64_t capacity_pages, uint32_t nr_engines, uint32_t e);

#endif
