/* SPDX-License-Identifier: Apache-2.0 */
/* reply - the queue of answers and the arrays they carry
 *
 * Model:      a ring of replies; arrays are cut off a bump buffer that starts anew when the ring is
 *             empty at the next call. A reply is written in its slot (reply_next to reply_done) and
 *             read there by the caller; in the queue its pointers count from the start of mm.
 *             A reply has one array, of pages, events or geometry by its op, and perhaps a tail.
 * Invariants: mm_submit starts only with a slot and its worst-case array left; nothing is pushed
 *             between reply_next and reply_done.
 * Limits:     REPLY_RING replies, REPLY_ARRAYS * batch_pages words and EVENT_MAX events.
 */
#ifndef MM_REPLY_H
#define MM_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mm.h"

#define REPLY_RING	32u
#define REPLY_ARRAYS	(MM_MAX_GROUPS + 2u)
#define REPLY_LATER	1	/* an operation that is answered later */

/* What an operation may need room for in its reply. */
enum reply_array {
	REPLY_NO_ARRAY,
	REPLY_ONE_BATCH,
	REPLY_ALL_GROUPS,
	REPLY_EVENT_ARRAY,
	REPLY_GEOM_ARRAY,
	REPLY_NR_ARRAYS,
};

struct reply_queue {
	uint64_t off_words;
	uint32_t nr_words, used_words;
	uint32_t worst[REPLY_NR_ARRAYS];	/* words */
	uint32_t head, nr;
	struct mm_reply slot[REPLY_RING];
};

void reply_init(struct reply_queue *, uint32_t batch_pages);
bool reply_room(const struct mm *, uint32_t nr_words);
uint64_t *reply_words(struct mm *, uint32_t nr_words);
struct mm_reply *reply_next(struct mm *);	/* the next slot, all zero; not in the queue yet */
void reply_done(struct mm *, struct mm_reply *);	/* now it is */
void reply_push(struct mm *, const struct mm_reply *);	/* both, for a copy */
int reply_error(struct mm_reply *, int result, enum mm_reason, uint64_t a, uint64_t b);
/* May an engine that has so many of a table's entries, of which nr_free are left, take want more?
 * Only if it leaves as many as it then has (mm_config says why). 0, or -ENOMEM with its share. */
int reply_share(struct mm_reply *, size_t limit, uint32_t have, uint32_t want, uint32_t nr_free);

/* A call starts: old arrays go. */
static inline void reply_begin(struct reply_queue *q)
{
	if (!q->nr)
		q->used_words = 0;
}

#define reply_share_of(rp, field, have, want, nr_free) \
	reply_share(rp, offsetof(struct mm_config, field), have, want, nr_free)

/* Fills a reply with a full table's name and size; returns -ENOMEM. */
#define reply_table_full(rp, mm, field) \
	reply_error(rp, -ENOMEM, MM_TABLE_FULL, offsetof(struct mm_config, field), (mm)->cfg.field)

#endif
