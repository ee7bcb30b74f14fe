/* SPDX-License-Identifier: Apache-2.0 */
/* lookup - the longest usable cached prefix of a sequence
 *
 * Model:      1. descend by full pages while full groups have theirs; 2. the hit is the greatest
 *             depth at which each window group holds its last window and each state group a
 *             snapshot; 3. the next page may match in part: the sibling with the longest common
 *             prefix, if all groups have it and none is opaque; with a state group only if all of
 *             its tokens match, for a snapshot is of one length.
 *             A hit is cut at batch_pages pages, then without a tail.
 * Invariants: the pages a reply names are pinned by its leases (or held, when adopted).
 * Cost:       O(pages * (groups + log siblings)).
 * Errors:     -EINVAL keys not ascending or beyond the tokens, -ENOMEM no lease free.
 */
#ifndef MM_LOOKUP_H
#define MM_LOOKUP_H

#include <stdbool.h>
#include <stdint.h>

#include "mm.h"

/* A walk over the extra keys of a request, page by page. */
struct key_walk {
	const struct mm_page_key *keys;
	uint32_t nr, at;
};

const uint8_t *lookup_page_key(struct key_walk *, uint32_t page);	/* NULL: none */
bool lookup_keys_valid(const struct mm_page_key *, uint32_t nr, uint32_t from, uint32_t to);
/* The chain of a node, as if its own tokens had been looked up. */
int lookup_chain(struct mm *, uint32_t bind, uint32_t node, uint32_t flags, struct mm_reply *);
int lookup_op(struct mm *, const struct mm_request *, struct mm_reply *);

#endif
