// SPDX-License-Identifier: Apache-2.0
#include "check.h"
#include "core.h"

/* The first of those for which mask(p) has the device, by comparing each with each. */
static uint32_t first_of(const struct mm *mm, uint32_t device, uint32_t tenant)
{
	uint32_t first = NIL;

	for (uint32_t p = mm->waiting.head; p; p = pending_at(mm, p)->link.next) {
		const struct pending *pe = pending_at(mm, p);
		struct fair_place mine = pending_place(mm, p), its;

		if (tenant && engine_at(mm, pe->engine)->tenant != tenant)
			continue;
		if (!((tenant ? pe->own : pe->bars) >> device & 1))
			continue;
		its = first ? pending_place(mm, first) : mine;
		if (!first || fair_before(&mine, &its))
			first = p;
	}
	return first;
}

/* Heads, floor and membership of the list of tenants at their max. */
static void check_tenant(const struct mm *mm, uint32_t tenant)
{
	const struct tenant *t = tenant_at(mm, tenant);
	uint64_t floor = UINT64_MAX;
	uint32_t nr = 0, nr_own = 0;
	bool listed = false;

	for (uint32_t p = mm->waiting.head; p; p = pending_at(mm, p)->link.next) {
		const struct pending *pe = pending_at(mm, p);
		const struct engine *e = engine_at(mm, pe->engine);

		if (e->tenant != tenant)
			continue;
		nr++;
		nr_own += pe->own != 0;
		if (pending_wants_room(pe) && e->fair.start < floor)
			floor = e->fair.start;
	}
	MM_ASSERT(nr == t->fair.nr && t->fair.stamp <= mm->queue.last_stamp);
	for (uint32_t i = mm->queue.own; i && !listed; i = tenant_at(mm, i)->queue.next)
		listed = i == tenant;
	MM_ASSERT(listed == (nr_own != 0));
	if (t->queue.pass != mm->queue.pass) {
		MM_ASSERT(floor == UINT64_MAX);
		return;
	}
	MM_ASSERT(floor == t->queue.floor);
	for (uint32_t d = 0; d < MM_MAX_DEVICES; d++)
		MM_ASSERT(t->queue.own_head[d] == first_of(mm, d, tenant));
}

void check_fair(const struct mm *mm)
{
	for (uint32_t d = 0; d < MM_MAX_DEVICES; d++)
		MM_ASSERT(mm->queue.head[d] ==
			  (d < mm->cfg.nr_devices ? first_of(mm, d, NIL) : NIL));
	for (uint32_t t = pool_next(mm, &mm->tenants, 0); t; t = pool_next(mm, &mm->tenants, t))
		check_tenant(mm, t);
	for (uint32_t e = pool_next(mm, &mm->engines, 0); e; e = pool_next(mm, &mm->engines, e))
		MM_ASSERT(engine_at(mm, e)->fair.nr == engine_at(mm, e)->nr_pending);
}
