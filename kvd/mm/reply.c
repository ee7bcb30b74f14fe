// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core.h"
#include "event.h"

static uint64_t *words(const struct mm *mm)
{
	return (uint64_t *)((uintptr_t)mm + mm->replies.off_words);
}

void reply_init(struct reply_queue *q, uint32_t batch_pages)
{
	const uint32_t events = EVENT_MAX * sizeof(struct mm_event) / sizeof(uint64_t);

	q->nr_words = REPLY_ARRAYS * batch_pages + events;
	q->worst[REPLY_NO_ARRAY] = 0;
	q->worst[REPLY_ONE_BATCH] = batch_pages;
	q->worst[REPLY_ALL_GROUPS] = MM_MAX_GROUPS * batch_pages;
	q->worst[REPLY_EVENT_ARRAY] = events;
	q->worst[REPLY_GEOM_ARRAY] =
		MM_MAX_GROUPS * sizeof(struct mm_group_geom) / sizeof(uint64_t);
}

bool reply_room(const struct mm *mm, uint32_t nr_words)
{
	const struct reply_queue *q = &mm->replies;

	return q->nr < REPLY_RING && q->nr_words - q->used_words >= nr_words;
}

uint64_t *reply_words(struct mm *mm, uint32_t nr_words)
{
	struct reply_queue *q = &mm->replies;
	uint64_t *at = words(mm) + q->used_words;

	MM_ASSERT(q->nr_words - q->used_words >= nr_words);
	q->used_words += nr_words;
	return at;
}

struct mm_reply *reply_next(struct mm *mm)
{
	struct reply_queue *q = &mm->replies;
	struct mm_reply *rp = &q->slot[(q->head + q->nr) % REPLY_RING];

	MM_ASSERT(q->nr < REPLY_RING);
	/* In parts: compilers clear more than 64 bytes by a string instruction, which is slow. */
	_Static_assert(sizeof(*rp) == 96, "two parts");
	memset(rp, 0, 64);
	memset((char *)rp + 64, 0, 32);
	return rp;
}

/* Arrays are found from the start of mm while a reply is in the queue: mm may lie elsewhere when
 * it is taken out. */
static const uint64_t *moved(const uint64_t *array, uintptr_t by)
{
	return array ? (const uint64_t *)((uintptr_t)array + by) : NULL;
}

void reply_done(struct mm *mm, struct mm_reply *rp)
{
	rp->pages = moved(rp->pages, -(uintptr_t)mm);
	rp->tail_pages = moved(rp->tail_pages, -(uintptr_t)mm);
	mm->replies.nr++;
}

void reply_push(struct mm *mm, const struct mm_reply *rp)
{
	struct mm_reply *to = reply_next(mm);

	*to = *rp;
	reply_done(mm, to);
}

const struct mm_reply *mm_take_reply(struct mm *mm)
{
	struct reply_queue *q = &mm->replies;
	struct mm_reply *rp = &q->slot[q->head];

	if (!q->nr)
		return NULL;
	rp->pages = moved(rp->pages, (uintptr_t)mm);
	rp->tail_pages = moved(rp->tail_pages, (uintptr_t)mm);
	q->head = (q->head + 1) % REPLY_RING;
	q->nr--;
	return rp;
}

bool mm_next_reply(struct mm *mm, struct mm_reply *rp)
{
	const struct mm_reply *next = mm_take_reply(mm);

	if (next)
		*rp = *next;
	return next != NULL;
}

int reply_error(struct mm_reply *rp, int result, enum mm_reason reason, uint64_t a, uint64_t b)
{
	rp->reason = reason;
	rp->a = a;
	rp->b = b;
	return result;
}

int reply_share(struct mm_reply *rp, size_t limit, uint32_t have, uint32_t want, uint32_t nr_free)
{
	uint64_t share = ((uint64_t)have + nr_free + 1) / 2;

	if (have + (uint64_t)want <= share)
		return 0;
	return reply_error(rp, -ENOMEM, MM_TABLE_FULL, limit, share);
}
