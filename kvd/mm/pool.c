// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core.h"

void pool_init(struct pool *p, uint32_t size, uint32_t max, uint32_t clear_from, uint32_t keep)
{
	*p = (struct pool){ .size = size, .max = max, .clear_from = clear_from, .keep = keep };
	while (1u << p->id_bits <= max)
		p->id_bits++;
}

uint32_t pool_get(struct mm *mm, struct pool *p)
{
	struct pool_obj *o;
	uint32_t i;

	if (p->nr_freed && (p->nr_freed >= p->keep || p->fresh == p->max)) {
		i = p->head;
		o = pool_obj_at(mm, p, i);
		p->head = o->next_free;
		if (!p->head)
			p->tail = NIL;
		p->nr_freed--;
	} else if (p->fresh < p->max) {
		i = ++p->fresh;
		o = pool_obj_at(mm, p, i);
		memset(o, 0, p->size);	/* the block may have arrived with anything in it */
	} else {
		return NIL;
	}
	MM_ASSERT(!(o->gen_live & POOL_LIVE));
	memset((char *)o + p->clear_from, 0, p->size - p->clear_from);
	o->next_free = NIL;
	o->gen_live |= POOL_LIVE;
	p->nr_used++;
	return i;
}

void pool_put(struct mm *mm, struct pool *p, uint32_t i)
{
	struct pool_obj *o = pool_obj_at(mm, p, i);

	MM_ASSERT(o->gen_live & POOL_LIVE);
	o->gen_live++;		/* clears the mark and carries into the generation */
	p->nr_used--;
	p->nr_freed++;
	if (!p->keep) {
		o->next_free = p->head;
		p->head = i;
		if (!p->tail)
			p->tail = i;
		return;
	}
	o->next_free = NIL;
	if (p->tail)
		pool_obj_at(mm, p, p->tail)->next_free = i;
	else
		p->head = i;
	p->tail = i;
}

uint32_t pool_next(const struct mm *mm, const struct pool *p, uint32_t i)
{
	while (++i <= p->fresh)
		if (pool_obj_at(mm, p, i)->gen_live & POOL_LIVE)
			return i;
	return NIL;
}

void pool_renew(struct mm *mm, struct pool *p, uint32_t i)
{
	pool_obj_at(mm, p, i)->gen_live += 2;
}
