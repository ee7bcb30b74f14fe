/* SPDX-License-Identifier: Apache-2.0 */
/* key - extra keys of pages, each digest stored once
 *
 * Model:      a hash table of 32-byte digests with a count of the nodes that carry them; key 0 is
 *             no extra key.
 * Invariants: a key exists while a node refers to it; equal digests have equal indices;
 *             engine.nr_keys counts the pinned keys it owns.
 * Cost:       O(1).      Limits: max_keys.
 */
#ifndef MM_KEY_H
#define MM_KEY_H

#include <stdint.h>

#include "mm.h"
#include "pool.h"

#define KEY_UNKNOWN UINT32_MAX	/* a digest no node carries */

struct key {
	struct pool_obj obj;
	uint32_t next, nr_refs;
	uint32_t nr_pinned;	/* of those, by pinned nodes */
	uint32_t owner;		/* id of the engine that brought it, or brought it back to use */
	uint8_t digest[MM_KEY_BYTES];
};

uint32_t key_find(const struct mm *, const uint8_t *digest);	/* KEY_UNKNOWN: none */
/* One more reference, by a commit of this engine; 0: the table is full. */
uint32_t key_get(struct mm *, uint32_t engine, const uint8_t *digest);
void key_put(struct mm *, uint32_t key);
void key_pin(struct mm *, uint32_t key);	/* by a node; 0 is no key */
void key_unpin(struct mm *, uint32_t key);

#endif
