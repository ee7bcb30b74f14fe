/* SPDX-License-Identifier: Apache-2.0 */
/* bound - Belady's MIN: the most hits any policy that knows the future could have
 *
 * Model:      blocks are independent of each other: a hit needs no contiguous prefix, room is made
 *             block by block, and a block that will not be used again, or later than all that is
 *             cached, is not taken in. So no policy over prefixes is above it.
 * Cost:       O(n log n) time, 20 bytes a block of the trace.
 * Errors:     -ENOMEM.
 */
#ifndef BOUND_H
#define BOUND_H

#include <stdint.h>

#include "trace.h"

/* Hits among the requests engine, engine + nr_engines, ... with a cache of pages of their own. */
int bound_min(const struct trace *, uint64_t pages, uint32_t engine, uint32_t nr_engines,
	      uint64_t *hits);

#endif
