/* SPDX-License-Identifier: Apache-2.0 */
/* node - content in the page cache: (parent, extra key, tokens) and where it lies
 *
 * Model:      a tree of pages; the children of a node form a treap ordered by (key, tokens) whose
 *             priorities are a hash of the index, so the neighbours of a query have the longest
 *             common prefix with it. loc[group] is a frame or 0.
 *             pins = own leases + pinned children: an unpinned node has no pinned descendant and,
 *             if it has a frame, is in a queue of the bind that writes that frame's extent.
 *             need counts the leases whose window reaches the node; dropped has a bit for each
 *             window group some lease has left behind here: once need is 0 those frames are COLD.
 * Invariants: no two siblings have equal (key, tokens); a partial node is a leaf; an unpinned leaf
 *             has a frame; age of an unpinned node >= age of its children.
 * Ownership:  node.c; tokens live in the arena (buddy units of 16), once.
 * Cost:       find and insert O(log siblings) comparisons, pin and unpin amortised O(1).
 *             96 bytes a node besides tokens.
 * Limits:     max_nodes, max_tokens (rounded up to 16 a node), max_keys.
 */
#ifndef MM_NODE_H
#define MM_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "list.h"
#include "mm.h"

#define NODE_UNIT_TOKENS 16u

struct node {
	uint32_t parent;				/* pool: next free */
	uint32_t live : 1, dropped : 8, nr_tokens : 17;	/* live: pool's */
	uint32_t prio : 2, class : 4;	/* policy.h: hint, class by use so far */
	uint32_t left, right, children;
	uint32_t key : 24, ttl : 8;	/* ttl, reuse: hints, ms as policy_pack_ms has them */
	uint32_t tokens;		/* first unit in the arena */
	uint32_t pins : 31;
	uint32_t marked : 1;		/* debt.h: counted; 0 between calls */
	uint32_t need : 25, hits : 5;	/* hits: used so often since its first use */
	uint32_t appended : 1;		/* came behind a hit at least as long as what came */
	uint32_t parked : 1;		/* perhaps a parked sequence needs it (park.h) */
	struct link queue;
	uint32_t parks : 24, reuse : 8;	/* first park hanging here */
	uint32_t depth;		/* page index in the chain, from 0 */
	uint32_t path;			/* hash: workingset.h */
	uint64_t age : 48, cache : 16;	/* age: mm.clock when last unpinned; 0: not yet */
	uint32_t loc[MM_MAX_GROUPS];
};

/* What the children of a node are asked for. */
struct node_query {
	uint32_t cache, parent;	/* parent 0: the root */
	uint32_t key;
	const uint32_t *tokens;
	uint32_t nr_tokens;
};

uint32_t node_find(const struct mm *, const struct node_query *);	/* exactly these; 0 */
void node_neighbours(const struct mm *, const struct node_query *, uint32_t *before,
		     uint32_t *after);
uint32_t node_match(const struct mm *, uint32_t n, const struct node_query *);	/* common tokens */
uint32_t node_create(struct mm *, const struct node_query *, uint32_t unit);	/* see node.c */
void node_destroy(struct mm *, uint32_t n);		/* a leaf, unpinned; husks above go too */
void node_set_loc(struct mm *, uint32_t n, uint32_t group, uint32_t f);	/* HELD -> CACHED */
/* Its unpinned content lies at an IO frame of the same bind now: that -> CACHED, old -> FREE. */
void node_move(struct mm *, uint32_t n, uint32_t group, uint32_t to);
void node_strip(struct mm *, uint32_t n, uint32_t group);	/* that frame -> FREE */
void node_evict(struct mm *, uint32_t n, uint32_t *budget);	/* its subtree, leaves first */
void node_pin(struct mm *, uint32_t n);
void node_unpin(struct mm *, uint32_t n);
void node_need(struct mm *, uint32_t n);
void node_unneed(struct mm *, uint32_t n);
void node_drop(struct mm *, uint32_t n, uint32_t group);
uint32_t *node_tokens(const struct mm *, uint32_t n);
uint32_t node_units(uint32_t nr_tokens);

#endif
