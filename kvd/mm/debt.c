// SPDX-License-Identifier: Apache-2.0
#include "cache.h"
#include "core.h"
#include "debt.h"
#include "import.h"
#include "vmstat.h"

void debt_begin(struct mm *mm, uint32_t tenant)
{
	struct tenant *t = tenant_at(mm, tenant);

	if (!t->in_debt)
		memcg_event(mm, tenant, MM_MEMCG_OOM);
	t->in_debt = true;
}

static bool within_max(const struct mm *mm, const struct tenant *t)
{
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		if (t->charge[d] > t->limit[d].max_bytes)
			return false;
	return true;
}

void debt_settle(struct mm *mm, uint32_t tenant)
{
	struct tenant *t = tenant_at(mm, tenant);

	if (!t->in_debt || !within_max(mm, t))
		return;
	t->in_debt = false;
	t->ask_ns = t->asks = 0;	/* who is above it again has the whole time again */
	mm->shrink.kick = true;
}

void debt_check(const struct mm *mm, uint32_t tenant)
{
	const struct tenant *t = tenant_at(mm, tenant);

	MM_ASSERT(!t->in_debt || !within_max(mm, t));
}

/* ---- an engine's part ---------------------------------------------------------------------- */

static uint64_t held(const struct mm *mm, uint32_t engine, uint32_t devices)
{
	uint32_t b = engine_at(mm, engine)->binds.head;
	uint64_t bytes = 0;

	for (; b; b = bind_at(mm, b)->engine_link.next)
		for (uint32_t g = 0; g < MM_MAX_GROUPS; g++)
			bytes += bind_at(mm, b)->slab[g].nr[FRAME_HELD] *
				 vmstat_page_bytes(mm, bind_at(mm, b)->cache, g, devices);
	return bytes;
}

static uint64_t cached(const struct mm *mm, const struct node *no, uint32_t devices)
{
	uint64_t bytes = 0;

	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++)
		if (no->loc[g] && frame_at(mm, no->loc[g])->state == FRAME_CACHED)
			bytes += vmstat_page_bytes(mm, no->cache, g, devices);
	return bytes;
}

/* Chains share their beginnings: a node that is marked has been counted, with all above it. */
static uint64_t leased(struct mm *mm, uint32_t engine, uint32_t devices)
{
	const struct list *leases = &engine_at(mm, engine)->leases;
	uint64_t bytes = 0;
	uint32_t n;

	for (uint32_t l = leases->head; l; l = lease_at(mm, l)->engine_link.next)
		for (n = lease_at(mm, l)->node; n && !node_at(mm, n)->marked;
		     n = node_at(mm, n)->parent) {
			node_at(mm, n)->marked = 1;
			bytes += cached(mm, node_at(mm, n), devices);
		}
	for (uint32_t l = leases->head; l; l = lease_at(mm, l)->engine_link.next)
		for (n = lease_at(mm, l)->node; n && node_at(mm, n)->marked;
		     n = node_at(mm, n)->parent)
			node_at(mm, n)->marked = 0;
	return bytes;
}

/* ---- extents that stay mapped ------------------------------------------------------------- */

static bool late(const struct mm *mm, const struct extent *x, uint32_t tenant)
{
	return cache_at(mm, x->cache)->tenant == tenant && x->drain_ns <= mm->now_ns;
}

static uint64_t extent_bytes(const struct mm *mm, const struct extent *x, uint32_t devices)
{
	const struct cache *c = cache_at(mm, x->cache);
	uint64_t bytes = 0;

	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		bytes += devices >> d & 1 ? c->need[x->group][d] : 0;
	return bytes;
}

/* In late extents; engine 0: whoever maps them. */
static uint64_t mapped(const struct mm *mm, uint32_t tenant, uint32_t engine, uint32_t devices)
{
	uint64_t bytes = 0;

	for (uint32_t e = mm->retiring.head; e; e = extent_at(mm, e)->retire_link.next)
		if (late(mm, extent_at(mm, e), tenant) && (!engine || import_maps(mm, engine, e)))
			bytes += extent_bytes(mm, extent_at(mm, e), devices);
	return bytes;
}

static uint64_t next_late(const struct mm *mm, uint32_t tenant)
{
	uint64_t next = UINT64_MAX;

	for (uint32_t e = mm->retiring.head; e; e = extent_at(mm, e)->retire_link.next) {
		const struct extent *x = extent_at(mm, e);

		if (cache_at(mm, x->cache)->tenant == tenant && x->drain_ns > mm->now_ns &&
		    x->drain_ns < next)
			next = x->drain_ns;
	}
	return next;
}

/* Devices on which late extents are more than max leaves room for. */
static uint32_t mapped_above(const struct mm *mm, uint32_t tenant)
{
	const struct tenant *t = tenant_at(mm, tenant);
	uint32_t devices = 0;

	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++) {
		uint64_t bytes = mapped(mm, tenant, NIL, 1u << d);
		uint64_t rest = core_less(memcg_usage(mm, tenant, d), t->draining[d]);

		if (bytes && rest + bytes > t->limit[d].max_bytes)
			devices |= 1u << d;
	}
	return devices;
}

uint64_t debt_mapped(struct mm *mm, uint32_t tenant)
{
	const struct tenant *t = tenant_at(mm, tenant);
	uint64_t next, again = mm->now_ns + compact_rest_ns(mm);
	uint32_t devices;

	if (!mm->retiring.head || within_max(mm, t))
		return UINT64_MAX;
	next = next_late(mm, tenant);
	devices = mapped_above(mm, tenant);
	if (!devices)
		return next;
	debt_begin(mm, tenant);
	if (t->oom_action != MM_OOM_KILL || !mm->cfg.answer_ns)
		return next;
	debt_kill(mm, tenant, devices, true);
	return again < next ? again : next;	/* others may map them, too */
}

/* ---- killing ------------------------------------------------------------------------------- */

/* Its pages are on their way. */
static bool dying(const struct mm *mm, const struct engine *e)
{
	return e->fenced && mm->now_ns - e->fenced_ns < DEBT_DYING_NS;
}

/* One at a time. */
void debt_kill(struct mm *mm, uint32_t tenant, uint32_t devices, bool late_only)
{
	uint32_t worst = NIL;
	uint64_t most = 0;

	for (uint32_t e = pool_next(mm, &mm->engines, 0); e; e = pool_next(mm, &mm->engines, e)) {
		uint64_t part;

		if (engine_at(mm, e)->tenant != tenant)
			continue;
		if (dying(mm, engine_at(mm, e)))
			return;
		if (engine_at(mm, e)->fenced)
			continue;
		part = late_only ? mapped(mm, tenant, e, devices) :
				   held(mm, e, devices) + leased(mm, e, devices);
		if (part > most) {
			most = part;
			worst = e;
		}
	}
	if (!worst)
		return;
	tenant_at(mm, tenant)->oom_kills++;
	tenant_at(mm, tenant)->asks = 0;
	mm->vmstat.oom_kills++;
	engine_kill(mm, worst);
}
