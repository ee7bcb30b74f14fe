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

/* Of one tenant; of all for 0. */
static void check_psi(const struct mm *mm, const struct psi *psi, uint32_t tenant)
{
	uint32_t nr_stalled = 0, nr_running = 0;

	for (uint32_t i = pool_next(mm, &mm->engines, 0); i; i = pool_next(mm, &mm->engines, i)) {
		const struct engine *e = engine_at(mm, i);

		MM_ASSERT(!e->on_recent || (!e->fenced && !e->nr_pending && e->binds.nr));
		if (tenant && e->tenant != tenant)
			continue;
		nr_stalled += e->nr_pending != 0;
		nr_running += e->on_recent;
	}
	MM_ASSERT(nr_stalled == psi->nr_stalled && nr_running == psi->nr_running);
	MM_ASSERT(psi->since_ns <= mm->now_ns);
	for (uint32_t k = 0; k < PSI_KINDS; k++) {
		MM_ASSERT(psi->stall_ns[k] <= psi->since_ns % PSI_PERIOD_NS);
		for (uint32_t i = 0; i < PSI_AVGS; i++)
			MM_ASSERT(psi->avg[k][i] <= 1u << PSI_SHIFT);
	}
}

static void check_recent(const struct mm *mm)
{
	uint64_t last = 0;
	uint32_t nr = 0;

	for (uint32_t e = mm->recent.head; e; e = engine_at(mm, e)->recent_link.next, nr++) {
		MM_ASSERT(engine_at(mm, e)->on_recent && engine_at(mm, e)->active_ns >= last);
		last = engine_at(mm, e)->active_ns;
	}
	MM_ASSERT(nr == mm->recent.nr && nr == mm->psi.nr_running && last <= mm->now_ns);
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
	check_psi(mm, &t->psi, tenant);
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
	check_psi(mm, &mm->psi, NIL);
	check_recent(mm);
	for (uint32_t d = 0; d < MM_MAX_DEVICES; d++)
		MM_ASSERT(mm->queue.head[d] ==
			  (d < mm->cfg.nr_devices ? first_of(mm, d, NIL) : NIL));
	for (uint32_t t = pool_next(mm, &mm->tenants, 0); t; t = pool_next(mm, &mm->tenants, t))
		check_tenant(mm, t);
	for (uint32_t e = pool_next(mm, &mm->engines, 0); e; e = pool_next(mm, &mm->engines, e))
		MM_ASSERT(engine_at(mm, e)->fair.nr == engine_at(mm, e)->nr_pending);
}
