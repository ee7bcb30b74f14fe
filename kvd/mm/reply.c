// SPDX-License-Identifier: Apache-2.0
#include <string.h>

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

static struct reply_slot *next_slot(struct mm *mm)
{
	struct reply_queue *q = &mm->replies;

	MM_ASSERT(q->nr < REPLY_RING);
	return &q->slot[(q->head + q->nr) % REPLY_RING];
}

struct mm_reply *reply_next(struct mm *mm)
{
	struct reply_slot *slot = next_slot(mm);

	/* In halves: compilers clear more than 64 bytes by a string instruction, which is slow. */
	_Static_assert(sizeof(*slot) == 128, "two halves");
	memset(slot, 0, 64);
	memset((char *)slot + 64, 0, 64);
	return &slot->reply;
}

static uint32_t word_of(const struct mm *mm, const void *at)
{
	return (uint32_t)((const uint64_t *)at - words(mm)) + 1;
}

void reply_done(struct mm *mm, struct mm_reply *rp)
{
	struct reply_slot *slot = next_slot(mm);
	const void *array = rp->pages;

	MM_ASSERT(rp == &slot->reply);
	if (rp->op == MM_EVENTS)
		array = rp->events;
	else if (rp->op == MM_CACHE_OPEN)
		array = rp->geom;
	slot->array_at = array ? word_of(mm, array) : 0;
	slot->tail_at = rp->tail_pages ? word_of(mm, rp->tail_pages) : 0;
	mm->replies.nr++;
}

void reply_push(struct mm *mm, const struct mm_reply *rp)
{
	struct mm_reply *to = reply_next(mm);

	*to = *rp;
	reply_done(mm, to);
}

bool mm_next_reply(struct mm *mm, struct mm_reply *rp)
{
	struct reply_queue *q = &mm->replies;
	const struct reply_slot *slot = &q->slot[q->head];
	void *array;

	if (!q->nr)
		return false;
	*rp = slot->reply;
	array = slot->array_at ? words(mm) + slot->array_at - 1 : NULL;
	if (rp->op == MM_EVENTS)
		rp->events = array;
	else if (rp->op == MM_CACHE_OPEN)
		rp->geom = array;
	else
		rp->pages = array;
	if (slot->tail_at)
		rp->tail_pages = words(mm) + slot->tail_at - 1;
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
