/* SPDX-License-Identifier: Apache-2.0 */
/* pool - fixed tables of objects, handed out by index or by an id that does not alias
 *
 * Model:      every object starts with a struct pool_obj. Slots never used are taken from a water
 *             mark, so that a fresh table needs no initialisation; freed ones are chained. Tables
 *             whose ids leave mm reuse the slot freed longest ago, the others the last one.
 * Invariants: used + freed == fresh; a live object's generation is odd-marked (LIVE bit).
 * Units:      index 1..max; 0 is nobody. id = generation << id_bits | index.
 * Cost:       O(1), plus clearing the object; memory is touched when first used.
 * Limits:     max < 2^31; an id repeats after 2^(32 - id_bits) lives of one slot.
 */
#ifndef MM_POOL_H
#define MM_POOL_H

#include <stdbool.h>
#include <stdint.h>

struct mm;

#define POOL_LIVE 1u

struct pool_obj {
	uint32_t next_free;
	uint32_t gen_live;	/* generation << 1 | POOL_LIVE */
};

struct pool {
	uint64_t off;
	uint32_t size, max;
	uint32_t clear_from;	/* bytes of an object that survive its lives */
	uint32_t id_bits;
	uint32_t keep;	/* reuse freed slots only when so many wait; 0: last in, first out */
	uint32_t fresh;		/* slots ever used */
	uint32_t nr_used, nr_freed, head, tail;
};

void pool_init(struct pool *, uint32_t size, uint32_t max, uint32_t clear_from, uint32_t keep);
uint32_t pool_get(struct mm *, struct pool *);			/* 0: full */
void pool_put(struct mm *, struct pool *, uint32_t i);
uint32_t pool_next(const struct mm *, const struct pool *, uint32_t i);	/* live, after i; 0 */
void pool_renew(struct mm *, struct pool *, uint32_t i); /* the old id dies, a new one is born */

static inline struct pool_obj *pool_obj_at(const struct mm *mm, const struct pool *p, uint32_t i)
{
	return (struct pool_obj *)((uintptr_t)mm + p->off + (uint64_t)(i - 1) * p->size);
}

static inline bool pool_live(const struct mm *mm, const struct pool *p, uint32_t i)
{
	return i && i <= p->fresh && pool_obj_at(mm, p, i)->gen_live & POOL_LIVE;
}

static inline uint32_t pool_id(const struct mm *mm, const struct pool *p, uint32_t i)
{
	return i ? (pool_obj_at(mm, p, i)->gen_live >> 1) << p->id_bits | i : 0; /* MM_NO_ID */
}

/* 0: no such id. */
static inline uint32_t pool_find(const struct mm *mm, const struct pool *p, uint32_t id)
{
	uint32_t i = id & ((1u << p->id_bits) - 1);

	return pool_live(mm, p, i) && pool_id(mm, p, i) == id ? i : 0;
}

static inline uint32_t pool_free(const struct pool *p)
{
	return p->max - p->nr_used;
}

static inline bool pool_full(const struct pool *p)
{
	return p->nr_used == p->max;
}

#endif
