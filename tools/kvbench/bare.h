/* SPDX-License-Identifier: Apache-2.0 */
/* bare - a memory manager of our own, without a daemon: one engine with one cache
 *
 * Ownership:  bare_start maps mem, whoever called it unmaps it, even when it failed (NULL: not
 *             mapped).
 * Context:    one thread.
 */
#ifndef BARE_H
#define BARE_H

#include <stddef.h>
#include <stdint.h>

#include "mm.h"

struct bare_mm {
	struct mm *mm;
	void *mem;
	size_t len;
	uint32_t engine, cache;
	uint64_t init_ns;	/* mm_init alone */
};

/* Both 0/-errno. bare_init: a page is 64 tokens. */
int bare_start(struct bare_mm *, const struct mm_config *, const struct mm_cache_desc *);
int bare_init(struct bare_mm *);
/* Submits, carries out effects at once, and gives the reply; -EIO in it when there was none. */
const struct mm_reply *bare_call(struct bare_mm *, const struct mm_request *);

#endif
