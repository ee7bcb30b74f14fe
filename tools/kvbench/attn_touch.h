/* SPDX-License-Identifier: Apache-2.0 */
/* attn_touch - how fast the pages of a table can be read by somebody who does nothing else
 *
 * Model:      variants differ in the order of their loads. Most load one word of each cache line,
 *             the least work that brings it in; one loads every byte.
 *             sequential is the same over as many consecutive bytes, whatever pages they are in.
 * Units:      bytes and nanoseconds. Pages are split over the team by their number.
 * Context:    one caller.
 */
#ifndef ATTN_TOUCH_H
#define ATTN_TOUCH_H

#include "attn_lane.h"

#define ATTN_NR_TOUCHES 7u
#define ATTN_NR_STREAMS 2u

const char *attn_touch_name(unsigned int variant);

/* Reads the pages of calls tables. */
uint64_t attn_touch_run(struct attn_lane *, struct attn_team *, unsigned int variant,
			uint32_t calls, bool *lost);

/* Reads as much of the pool as calls tables have, in order. */
uint64_t attn_stream_run(struct attn_lane *, struct attn_team *, unsigned int variant,
			 uint32_t calls, bool *lost);

/* What each of them reads for a table. */
double attn_table_bytes(const struct attn_lane *);

#endif
