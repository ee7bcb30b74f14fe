/* SPDX-License-Identifier: Apache-2.0 */
/* key - everything but the tokens that conditions the KV, as one digest a page
 *
 * Model:      a page is found by (its parent, its tokens, its extra key). A key that conditions the
 *             whole sequence (LoRA, salt, other) goes into page 0 and reaches every later page
 *             through the chain; a media item goes into the page that holds its first token, with
 *             its place inside that page, and reaches the later pages likewise.
 *
 *               digest = SHA-256("kvd page key v1" | field ...)
 *               field  = kind u32 | place in page u32 | data bytes u64 | data      (little-endian)
 *
 * Invariants: the fields parse back uniquely, so two different lists never give the same input to
 *             the hash. Fields of a page stand by kind, place, then as given: the order of
 *             unrelated keys in the caller's array does not matter, that of two media items at one
 *             place or of two LoRAs does.
 * Context:    any thread; allocates scratch; never blocks.
 * Units:      positions in tokens; page counts from the start of the sequence.
 * Cost:       one SHA-256 over the data; sorts the keys.
 * Errors:     -EINVAL bad key, -E2BIG more than max pages have keys, -ENOMEM. *nr_out and out are
 *             unspecified on error.
 * See:        FIPS 180-4 (by libmd), tests/unit/libkv/key_test.c
 */
#ifndef KEY_H
#define KEY_H

#include <kv/page.h>

#include "kv_abi.h"

/* out: ascending by page. nr_out may be 0: no keys. */
int key_build(const struct kv_key *keys, uint32_t nr, uint32_t page_tokens, struct kv_page_key *out,
	      uint32_t max, uint32_t *nr_out);

/* Whether key_build() would take these keys. */
int key_check(const struct kv_key *keys, uint32_t nr);

#endif
