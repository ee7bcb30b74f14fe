// SPDX-License-Identifier: Apache-2.0
#include "admit.h"
#include "cache.h"
#include "core.h"
#include "reclaim.h"

static uint64_t min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t max(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* ---- promises of slabs --------------------------------------------------------------------- */

static uint64_t unmet_extents(const struct slab *s)
{
	return core_less(s->promise, s->nr_extents);
}

static uint64_t unmet(const struct mm *mm, uint32_t bind, uint32_t group, uint32_t device)
{
	const struct bind *b = bind_at(mm, bind);

	return unmet_extents(&b->slab[group]) * cache_at(mm, b->cache)->need[group][device];
}

/* A slab's unmet part becomes another: the sums follow. */
static void set_slab(struct mm *mm, uint32_t bind, uint32_t group, uint32_t promise,
		     uint32_t nr_extents)
{
	struct bind *b = bind_at(mm, bind);
	struct slab *s = &b->slab[group];
	const struct cache *c = cache_at(mm, b->cache);
	uint64_t before = unmet_extents(s), after;

	s->promise = promise;
	s->nr_extents = nr_extents;
	after = unmet_extents(s);
	for (uint32_t d = 0; before != after && d < mm->cfg.nr_devices; d++) {
		tenant_at(mm, c->tenant)->promised[d] += (after - before) * c->need[group][d];
		mm->device[d].promised_bytes += (after - before) * c->need[group][d];
		shrink_charged(mm, NIL, d);
	}
	mm->dirty = mm->dirty || after < before;
}

/* They need not wait for who is before them, so they are woken by themselves. */
void admit_wake(struct mm *mm, uint32_t device)
{
	for (uint32_t p = mm->waiting.head; p; p = pending_at(mm, p)->link.next) {
		const struct pending *pe = pending_at(mm, p);

		if (cache_at(mm, bind_at(mm, pe->bind)->cache)->need[pe->group][device] &&
		    admit_entitled(mm, pe->bind, pe->group, device))
			pending_wake(mm, pe->bind, pe->group);
	}
}

void admit_count(struct mm *mm, uint32_t bind, uint32_t group, bool joins)
{
	const struct slab *s = &bind_at(mm, bind)->slab[group];

	set_slab(mm, bind, group, s->promise, s->nr_extents + (joins ? 1u : -1u));
}

/* ---- room for extents ---------------------------------------------------------------------- */

static uint64_t taken(const struct mm *mm, uint32_t device)
{
	return mm->device[device].extent_bytes + mm->device[device].reserved_bytes +
	       mm->device[device].promised_bytes;
}

/* What a slab may have of the last free bytes: its promise, and what lifts its tenant to min. */
uint64_t admit_entitled(const struct mm *mm, uint32_t bind, uint32_t group, uint32_t device)
{
	const struct cache *c = cache_at(mm, bind_at(mm, bind)->cache);
	uint64_t need = c->need[group][device];
	uint64_t below = core_less(tenant_at(mm, c->tenant)->limit[device].min_bytes,
				   memcg_usage(mm, c->tenant, device));

	if (need)
		below = (below + need - 1) / need * need;
	return max(unmet(mm, bind, group, device), below);
}

uint64_t admit_room(const struct mm *mm, uint32_t bind, uint32_t group, uint32_t device)
{
	const struct mm_device_config *cfg = &mm->cfg.device[device];
	uint64_t others = taken(mm, device) - unmet(mm, bind, group, device);
	uint64_t room = core_less(cfg->pool_bytes, others);

	return max(core_less(room, cfg->wmark_min_bytes),
		   min(room, admit_entitled(mm, bind, group, device)));
}

uint64_t admit_quota(const struct mm *mm, uint32_t bind, uint32_t group, uint32_t device)
{
	uint32_t tenant = cache_at(mm, bind_at(mm, bind)->cache)->tenant;
	uint64_t others = tenant_at(mm, tenant)->promised[device] - unmet(mm, bind, group, device);

	return core_less(memcg_room(mm, tenant, device), others);
}

uint64_t admit_short(const struct mm *mm, uint32_t bind, uint32_t group, uint32_t device,
		     uint32_t nr)
{
	const struct cache *c = cache_at(mm, bind_at(mm, bind)->cache);
	uint64_t want = c->need[group][device] * nr;
	uint64_t keep = want <= admit_entitled(mm, bind, group, device) ? 0 :
			mm->cfg.device[device].wmark_min_bytes;

	if (!want)
		return 0;
	return core_less(want + keep + taken(mm, device) - unmet(mm, bind, group, device),
			 mm->cfg.device[device].pool_bytes + mm->device[device].leaving_bytes);
}

/* ---- promising ----------------------------------------------------------------------------- */

static uint32_t promise_extents(const struct cache *c, uint32_t group, uint32_t min_pages)
{
	uint64_t pages = 1ull << c->order[group];

	return (uint32_t)((min_pages + pages - 1) / pages);
}

/* What a promise would leave unmet on a device, and what the bind's present one does. */
static uint64_t would_be_unmet(const struct mm *mm, const struct cache *c, uint32_t bind,
			       uint32_t device, uint32_t min_pages, uint64_t *now)
{
	unsigned __int128 sum = 0;

	*now = 0;
	for (uint32_t g = 0; g < c->desc.nr_groups; g++) {
		uint32_t has = bind ? bind_at(mm, bind)->slab[g].nr_extents : 0;

		*now += bind ? unmet(mm, bind, g, device) : 0;
		sum += (unsigned __int128)core_less(promise_extents(c, g, min_pages), has) *
		       c->need[g][device];
	}
	/* More than any pool, and with the others of a sum still below 2^64. */
	return sum > 1ull << 62 ? 3ull << 61 : (uint64_t)sum;
}

/* Bytes by which the tenant's max (within) or else the pool is too small for the promise. */
static uint64_t promise_short(const struct mm *mm, uint32_t tenant, const struct cache *c,
			      uint32_t bind, uint32_t d, uint32_t min_pages, bool within)
{
	const struct tenant *t = tenant_at(mm, tenant);
	uint64_t usage = memcg_usage(mm, tenant, d), now, pool, keep;
	uint64_t want = would_be_unmet(mm, c, bind, d, min_pages, &now);

	if (want <= now)
		return 0;
	if (within)
		return core_less(usage + t->promised[d] - now + want, t->limit[d].max_bytes);
	keep = want <= core_less(t->limit[d].min_bytes, usage + t->promised[d] - now) ? 0 :
	       mm->cfg.device[d].wmark_min_bytes;
	pool = mm->cfg.device[d].pool_bytes + mm->device[d].leaving_bytes;
	return core_less(taken(mm, d) - now + want + keep, pool);
}

/* reclaim_bytes, but of the bind's own slabs only what they have beyond the promise they are to
 * get: the rest counts for it. No slab goes below both promises, so the sums stay. */
static bool take_beside(struct mm *mm, const struct cache *c, uint32_t bind, uint32_t min_pages,
			uint32_t tenant, uint64_t *left)
{
	uint32_t old[MM_MAX_GROUPS];
	struct slab *s = bind_at(mm, bind)->slab;
	bool ok;

	for (uint32_t g = 0; bind && g < c->desc.nr_groups; g++) {
		old[g] = s[g].promise;
		if (s[g].promise < promise_extents(c, g, min_pages))
			s[g].promise = promise_extents(c, g, min_pages);
	}
	ok = reclaim_bytes(mm, left, tenant);
	for (uint32_t g = 0; bind && g < c->desc.nr_groups; g++)
		s[g].promise = old[g];
	return ok;
}

/* Takes what stands in the way; false with the device that remains short, and by how much. */
static bool make_room(struct mm *mm, uint32_t tenant, const struct cache *c, uint32_t bind,
		      uint32_t min_pages, bool within, uint64_t *left)
{
	bool any = false;

	for (uint32_t d = 0; d < MM_MAX_DEVICES; d++) {
		left[d] = d < mm->cfg.nr_devices ?
			  promise_short(mm, tenant, c, bind, d, min_pages, within) : 0;
		any = any || left[d];
	}
	return !any || take_beside(mm, c, bind, min_pages, within ? tenant : NIL, left);
}

int admit_check(struct mm *mm, uint32_t tenant, const struct cache *c, uint32_t bind,
		uint32_t min_pages, struct mm_reply *rp)
{
	uint64_t left[MM_MAX_DEVICES], now;
	uint32_t d = 0;

	if (!make_room(mm, tenant, c, bind, min_pages, true, left)) {
		while (!left[d])
			d++;
		return reply_error(rp, -EDQUOT, MM_TENANT_MAX,
				   tenant_at(mm, tenant)->limit[d].max_bytes,
				   tenant_at(mm, tenant)->charge[d] +
				   tenant_at(mm, tenant)->promised[d]);
	}
	if (!make_room(mm, tenant, c, bind, min_pages, false, left)) {
		uint64_t want;

		while (!left[d])
			d++;
		want = would_be_unmet(mm, c, bind, d, min_pages, &now);
		return reply_error(rp, -ENOMEM, MM_POOL_FULL, want, core_less(want, left[d]));
	}
	return 0;
}

void admit_promise(struct mm *mm, uint32_t bind, uint32_t min_pages)
{
	const struct bind *b = bind_at(mm, bind);
	const struct cache *c = cache_at(mm, b->cache);

	for (uint32_t g = 0; g < c->desc.nr_groups; g++)
		set_slab(mm, bind, g, promise_extents(c, g, min_pages), b->slab[g].nr_extents);
}

/* ---- reservations -------------------------------------------------------------------------- */

static void reserve(struct mm *mm, uint32_t engine, uint32_t device, uint32_t what, uint64_t bytes)
{
	struct engine *e = engine_at(mm, engine);
	uint64_t had = e->reserved_for[what][device];

	e->reserved_for[what][device] = bytes;
	e->reserved[device] += bytes - had;
	mm->device[device].reserved_bytes += bytes - had;
	shrink_charged(mm, NIL, device);
	mm->dirty = mm->dirty || bytes < had;
}

void admit_unreserve(struct mm *mm, uint32_t engine)
{
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		for (uint32_t w = 0; w < MM_NR_RESERVES; w++)
			reserve(mm, engine, d, w, 0);
}

int admit_op_reserve(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	int err = 0;
	uint32_t engine = engine_find(mm, rq->engine, rp, &err);
	uint32_t d = rq->reserve.device, what = rq->reserve.what;
	uint64_t had, room, bytes[MM_MAX_DEVICES] = { 0 };

	if (!engine)
		return err;
	if (d >= mm->cfg.nr_devices)
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, d, mm->cfg.nr_devices);
	if (what >= MM_NR_RESERVES)
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, what, MM_NR_RESERVES);
	had = engine_at(mm, engine)->reserved_for[what][d];
	room = had + core_less(mm->cfg.device[d].pool_bytes,
			       taken(mm, d) + mm->cfg.device[d].wmark_min_bytes);
	if (rq->reserve.bytes <= max(had, room)) {
		reserve(mm, engine, d, what, rq->reserve.bytes);
		return 0;
	}
	if (rq->reserve.bytes > mm->cfg.device[d].pool_bytes)
		return reply_error(rp, -ENOMEM, MM_POOL_FULL, rq->reserve.bytes, room);
	/* It must be free when it is promised: the caller comes again when what leaves has left. */
	bytes[d] = core_less(taken(mm, d) + mm->cfg.device[d].wmark_min_bytes +
			     rq->reserve.bytes - had,
			     mm->cfg.device[d].pool_bytes + mm->device[d].leaving_bytes);
	if (!bytes[d] || reclaim_bytes(mm, bytes, NIL))
		return reply_error(rp, -EAGAIN, MM_POOL_FULL, rq->reserve.bytes, room);
	return reply_error(rp, -ENOMEM, MM_POOL_FULL, rq->reserve.bytes,
			   core_less(rq->reserve.bytes, bytes[d]));
}
