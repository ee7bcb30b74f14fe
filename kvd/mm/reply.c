// SPDX-License-Identifier: Apache-2.0
#include "core.h"

static uint64_t *words(const struct mm *mm)
{
	return (uint64_t *)((uintptr_t)mm + mm->replies.off_words);
}

void reply_begin(struct mm *mm)
{
	if (!mm->replies.nr)
		mm->replies.used_words = 0;
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

void reply_push(struct mm *mm, const struct mm_reply *rp)
{
	struct reply_queue *q = &mm->replies;
	struct reply_slot *slot = &q->slot[(q->head + q->nr) % REPLY_RING];

	MM_ASSERT(q->nr < REPLY_RING);
	slot->reply = *rp;
	slot->pages_at = rp->pages ? (uint64_t)(rp->pages - words(mm)) + 1 : 0;
	slot->events_at = rp->events ?
		(uint64_t)((const uint64_t *)rp->events - words(mm)) + 1 : 0;
	slot->reply.pages = NULL;
	slot->reply.events = NULL;
	q->nr++;
}

bool mm_next_reply(struct mm *mm, struct mm_reply *rp)
{
	struct reply_queue *q = &mm->replies;
	const struct reply_slot *slot = &q->slot[q->head];

	if (!q->nr)
		return false;
	*rp = slot->reply;
	if (slot->pages_at)
		rp->pages = words(mm) + slot->pages_at - 1;
	if (slot->events_at)
		rp->events = (const struct mm_event *)(words(mm) + slot->events_at - 1);
	q->head = (q->head + 1) % REPLY_RING;
	q->nr--;
	return true;
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
