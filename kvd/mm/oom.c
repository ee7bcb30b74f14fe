// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "cache.h"
#include "core.h"
#include "oom.h"
#include "vmstat.h"

/* ---- what the bytes of a device are -------------------------------------------------------- */

struct bytes {
	uint64_t held, leased, cached, quarantined, free;
};

static void add_bind(const struct mm *mm, uint32_t bind, uint32_t device, struct bytes *sum)
{
	const struct bind *b = bind_at(mm, bind);

	for (uint32_t g = 0; g < cache_at(mm, b->cache)->desc.nr_groups; g++) {
		const struct slab *s = &b->slab[g];
		uint64_t page = vmstat_page_bytes(mm, b->cache, g, 1u << device);

		sum->held += page * s->nr[FRAME_HELD];
		sum->leased += page * s->nr_pinned;
		sum->cached += page * (slab_reclaimable(s) + s->nr[FRAME_COLD]);
		sum->quarantined += page * s->nr[FRAME_QUARANTINED];
		sum->free += page * s->nr[FRAME_FREE];
	}
}

/* Cached bytes of the others that their min and low keep. */
static uint64_t protected_bytes(const struct mm *mm, uint32_t asker, uint32_t device)
{
	uint64_t sum = 0;

	for (uint32_t t = pool_next(mm, &mm->tenants, 0); t; t = pool_next(mm, &mm->tenants, t)) {
		struct bytes of = { 0 };

		for (uint32_t c = tenant_at(mm, t)->caches.head; c && t != asker;
		     c = cache_at(mm, c)->tenant_link.next) {
			const struct cache *k = cache_at(mm, c);

			for (uint32_t b = k->binds.head; b; b = bind_at(mm, b)->cache_link.next)
				add_bind(mm, b, device, &of);
			for (uint32_t b = k->orphans.head; b; b = bind_at(mm, b)->cache_link.next)
				add_bind(mm, b, device, &of);
		}
		sum += core_less(of.cached, memcg_above_low(mm, t, device));
	}
	return sum;
}

static uint64_t stuck(const struct mm_oom_holder *h)
{
	return h->held_bytes + h->leased_bytes + h->reserved_bytes;
}

static uint64_t all_of(const struct mm_oom_holder *h)
{
	return stuck(h) + h->cached_bytes;
}

/* Most of what cannot be taken first; of equals who has more, then who came first. */
static void add_holder(struct mm_oom_report *r, const struct mm_oom_holder *h)
{
	uint32_t at = r->nr_holders;

	while (at && (stuck(&r->holder[at - 1]) < stuck(h) ||
		      (stuck(&r->holder[at - 1]) == stuck(h) &&
		       all_of(&r->holder[at - 1]) < all_of(h))))
		at--;
	if (!all_of(h) || at == MM_OOM_HOLDERS)
		return;
	r->nr_holders += r->nr_holders < MM_OOM_HOLDERS;
	memmove(&r->holder[at + 1], &r->holder[at], (r->nr_holders - 1 - at) * sizeof(*h));
	r->holder[at] = *h;
}

static void find_holders(const struct mm *mm, struct mm_oom_report *r)
{
	for (uint32_t e = pool_next(mm, &mm->engines, 0); e; e = pool_next(mm, &mm->engines, e)) {
		const struct engine *en = engine_at(mm, e);
		struct bytes of = { 0 };
		struct mm_oom_holder h = {
			.engine = pool_id(mm, &mm->engines, e),
			.tenant = tenant_at(mm, en->tenant)->key,
			.reserved_bytes = en->reserved[r->device],
		};

		for (uint32_t b = en->binds.head; b; b = bind_at(mm, b)->engine_link.next)
			add_bind(mm, b, r->device, &of);
		h.held_bytes = of.held + of.quarantined;
		h.leased_bytes = of.leased;
		h.cached_bytes = of.cached;
		add_holder(r, &h);
	}
}

static void picture(const struct mm *mm, uint32_t tenant, struct mm_oom_report *r)
{
	const struct device *dev = &mm->device[r->device];
	struct bytes all = { 0 };

	for (uint32_t b = pool_next(mm, &mm->binds, 0); b; b = pool_next(mm, &mm->binds, b))
		add_bind(mm, b, r->device, &all);
	r->pool_bytes = mm->cfg.device[r->device].pool_bytes;
	r->extent_bytes = dev->extent_bytes;
	r->free_bytes = r->pool_bytes - dev->extent_bytes - dev->reserved_bytes;
	r->held_bytes = all.held;
	r->leased_bytes = all.leased;
	r->cached_bytes = all.cached;
	r->quarantined_bytes = all.quarantined;
	r->fragmented_bytes = all.free;
	r->leaving_bytes = dev->leaving_bytes;
	r->reserved_bytes = dev->reserved_bytes;
	r->promised_bytes = dev->promised_bytes;
	r->protected_bytes = protected_bytes(mm, tenant, r->device);
	r->nr_waiting = mm->waiting.nr;
	find_holders(mm, r);
}

/* The device that has least left of those an extent needs; at the tenant's max, by that. */
static uint32_t scarcest(const struct mm *mm, const struct cache *c, const struct oom_ask *ask)
{
	bool own = ask->reply->result == -EDQUOT;
	uint64_t least = UINT64_MAX;
	uint32_t device = 0;

	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++) {
		uint64_t need = c->need[ask->group][d];
		uint64_t room = !own ? mm->cfg.device[d].pool_bytes - mm->device[d].extent_bytes -
				       mm->device[d].reserved_bytes :
				       memcg_room(mm, c->tenant, d);

		if (need && room / need < least) {
			least = room / need;
			device = d;
		}
	}
	return device;
}

/* ---- the ring ------------------------------------------------------------------------------ */

static struct mm_oom_report *slot(struct oom *o, uint64_t seq)
{
	return &o->ring[seq % MM_OOM_REPORTS];
}

/* The engine's report, if it is so young that this one counts in it. */
static struct mm_oom_report *same(struct mm *mm, uint32_t engine)
{
	for (uint32_t i = 0; i < MM_OOM_REPORTS; i++) {
		struct mm_oom_report *r = &mm->oom.ring[i];

		if (r->seq && r->engine == engine && mm->now_ns - r->when_ns < OOM_QUIET_NS)
			return r;
	}
	return NULL;
}

void oom_refused(struct mm *mm, const struct oom_ask *ask)
{
	const struct bind *b = bind_at(mm, ask->bind);
	const struct cache *c = cache_at(mm, b->cache);
	uint32_t engine = pool_id(mm, &mm->engines, b->engine);
	struct mm_oom_report *r = same(mm, engine);

	mm->vmstat.oom++;
	if (r) {
		r->count++;
		r->last_ns = mm->now_ns;
		return;
	}
	r = slot(&mm->oom, mm->oom.last_seq + 1);
	if (r->seq && mm->now_ns - r->when_ns < OOM_QUIET_NS) {
		mm->oom.missed++;
		return;
	}
	*r = (struct mm_oom_report){
		.seq = ++mm->oom.last_seq, .when_ns = mm->now_ns, .last_ns = mm->now_ns,
		.count = 1, .missed = mm->oom.missed,
		.engine = engine, .tenant = tenant_at(mm, c->tenant)->key,
		.cache = pool_id(mm, &mm->caches, b->cache), .group = ask->group,
		.nr_pages = ask->nr_pages,
		.device = scarcest(mm, c, ask),
		.result = ask->reply->result, .reason = ask->reply->reason,
		.a = ask->reply->a, .b = ask->reply->b,
	};
	r->bytes = ask->nr_pages * vmstat_page_bytes(mm, b->cache, ask->group, 1u << r->device);
	mm->oom.missed = 0;
	picture(mm, c->tenant, r);
}

bool mm_next_oom(const struct mm *mm, uint64_t *seq, struct mm_oom_report *report)
{
	const struct oom *o = &mm->oom;
	uint64_t first = o->last_seq > MM_OOM_REPORTS ? o->last_seq - MM_OOM_REPORTS + 1 : 1;
	uint64_t next = *seq + 1 > first ? *seq + 1 : first;

	if (next > o->last_seq)
		return false;
	*seq = next;
	*report = o->ring[next % MM_OOM_REPORTS];
	return true;
}
