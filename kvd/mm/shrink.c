// SPDX-License-Identifier: Apache-2.0
#include "admit.h"
#include "cache.h"
#include "compact.h"
#include "core.h"
#include "debt.h"
#include "event.h"
#include "policy.h"
#include "shrink.h"

#define SAMPLE		4u	/* frames of an extent looked at, at either end */
#define WINDOW		32u	/* the cheapest of so many is taken */
#define GLANCE		4u	/* extents looked at for colder content than one's own */
#define PRICE		8u	/* of a victim, in the budget; a look that finds none is free */
#define MAX_ASKS	6u	/* the time between two asks doubles so often */

static bool parked(const struct mm *mm, uint32_t f)
{
	return f && node_at(mm, frame_at(mm, f)->node)->parked;
}

/* A few of its pages, the oldest and the newest, tell. */
bool shrink_parked(const struct mm *mm, const struct extent *x)
{
	uint32_t f = x->frames[FRAME_CACHED].head, b = x->frames[FRAME_CACHED].tail;

	for (uint32_t i = 0; i < SAMPLE && f; i++) {
		if (parked(mm, f) || parked(mm, b))
			return true;
		f = frame_at(mm, f)->link.next;
		b = frame_at(mm, b)->link.prev;
	}
	return false;
}

/* ---- whose it may be ----------------------------------------------------------------------- */

/* Charged, and not on its way back. */
static uint64_t usage(const struct mm *mm, uint32_t tenant, uint32_t d)
{
	const struct tenant *t = tenant_at(mm, tenant);

	return core_less(memcg_usage(mm, tenant, d), t->draining[d] + t->marked[d]);
}

/* Would taking an extent of that group leave its tenant with less than that somewhere? */
static bool leaves_less(const struct mm *mm, const struct cache *c, uint32_t group, bool low)
{
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++) {
		const struct mm_limits *l = &tenant_at(mm, c->tenant)->limit[d];

		if (c->need[group][d] && usage(mm, c->tenant, d) <
		    c->need[group][d] + (low ? l->low_bytes : l->min_bytes))
			return true;
	}
	return false;
}

static bool below(const struct mm *mm, const struct extent *x, bool low)
{
	return leaves_less(mm, cache_at(mm, x->cache), x->group, low);
}

bool shrink_may_take(const struct mm *mm, const struct extent *x, bool below_low)
{
	return !below(mm, x, false) && (below_low || !below(mm, x, true));
}

struct scope {
	uint32_t tenant;	/* only its own, and unprotected; 0: anybody's */
	uint32_t devices;
	bool parked, below_low;
	bool leave_one;		/* of each slab that an engine has */
	uint32_t flags;		/* of the drain */
};

static bool eligible(const struct mm *mm, const struct extent *x, const struct scope *sc)
{
	const struct cache *c = cache_at(mm, x->cache);
	const struct slab *s = slab_of(mm, x);

	if (x->draining || !(c->device_mask & sc->devices))
		return false;
	if (sc->tenant && c->tenant != sc->tenant)
		return false;
	/* Who waits for pages of that slab would take it back at once. */
	if (s->waiters.head && !(sc->flags & DRAIN_STICKY))
		return false;
	if (!slab_can_spare(s))
		return false;
	if (sc->leave_one && bind_at(mm, x->bind)->engine &&
	    s->nr_extents - s->bucket[SLAB_DRAINING].nr <= 1)
		return false;
	if (!sc->tenant && !shrink_may_take(mm, x, sc->below_low))
		return false;
	return sc->parked || !shrink_parked(mm, x);
}

/* Those that may be taken are listed coldest first, extent by extent; among the first ones the
 * content decides. */
static uint32_t pick(const struct mm *mm, const struct scope *sc)
{
	uint64_t least = UINT64_MAX;
	uint32_t best = NIL, window = WINDOW;

	for (uint32_t e = mm->takeable.head; e && window; e = extent_at(mm, e)->take_link.next) {
		const struct extent *x = extent_at(mm, e);
		uint64_t worth;

		if (!eligible(mm, x, sc))
			continue;
		window--;
		worth = policy_extent_worth(mm, e);
		if (worth < least) {
			least = worth;
			best = e;
		}
	}
	return best;
}

static bool take_one(struct mm *mm, const struct scope *sc, uint32_t *budget)
{
	uint32_t e = pick(mm, sc);
	uint32_t tenant = e ? cache_at(mm, extent_at(mm, e)->cache)->tenant : NIL;
	bool low = e && !sc->tenant && below(mm, extent_at(mm, e), true);

	if (!e || !compact_drain(mm, e, sc->flags | DRAIN_EVICT))
		return false;
	*budget -= *budget < PRICE ? *budget : PRICE;
	if (low)
		memcg_event(mm, tenant, MM_MEMCG_LOW);
	return true;
}

/* ---- devices ------------------------------------------------------------------------------- */

/* What nobody has, reserved or was promised, soon. */
static uint64_t free_soon(const struct mm *mm, uint32_t d)
{
	const struct device *dev = &mm->device[d];

	return core_less(mm->cfg.device[d].pool_bytes + dev->leaving_bytes + dev->draining_bytes,
			 dev->extent_bytes + dev->reserved_bytes + dev->promised_bytes);
}

/* By a promise, its min or its low. */
static uint64_t owed(const struct mm *mm, uint32_t bind, uint32_t group, uint32_t d)
{
	uint32_t tenant = cache_at(mm, bind_at(mm, bind)->cache)->tenant;
	uint64_t below_low = core_less(tenant_at(mm, tenant)->limit[d].low_bytes,
				       memcg_usage(mm, tenant, d));
	uint64_t entitled = admit_entitled(mm, bind, group, d);

	return entitled > below_low ? entitled : below_low;
}

/* Is an extent more owed to it, on each device that has a part of one? */
static bool owed_more(const struct mm *mm, uint32_t bind, uint32_t group)
{
	const uint64_t *need = cache_at(mm, bind_at(mm, bind)->cache)->need[group];

	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		if (owed(mm, bind, group, d) < need[d])
			return false;
	return true;
}

uint32_t shrink_spares(const struct mm *mm, uint32_t bind, uint32_t group, uint32_t nr)
{
	const struct cache *c = cache_at(mm, bind_at(mm, bind)->cache);

	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++) {
		uint64_t low = mm->cfg.device[d].wmark_low_bytes, need = c->need[group][d];
		uint64_t room, due;

		if (!low || !need)
			continue;
		room = core_less(free_soon(mm, d), low);
		due = owed(mm, bind, group, d);
		room = room > due ? room : due;
		nr = room / need < nr ? (uint32_t)(room / need) : nr;
	}
	return nr;
}

/* Would the policy have all that is seen of x go before n? The oldest and the newest are. */
static bool all_colder(const struct mm *mm, const struct extent *x, uint32_t n)
{
	uint32_t f = x->frames[FRAME_CACHED].head, b = x->frames[FRAME_CACHED].tail;

	for (uint32_t i = 0; i < SAMPLE && f; i++) {
		if (!policy_colder(mm, frame_at(mm, f)->node, n) ||
		    !policy_colder(mm, frame_at(mm, b)->node, n))
			return false;
		f = frame_at(mm, f)->link.next;
		b = frame_at(mm, b)->link.prev;
	}
	return true;
}

static bool draining_on(const struct mm *mm, uint32_t devices)
{
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		if (devices >> d & 1 && mm->device[d].draining_bytes)
			return true;
	return false;
}

bool shrink_trade(struct mm *mm, uint32_t bind, uint32_t group)
{
	uint32_t cache = bind_at(mm, bind)->cache, devices = cache_at(mm, cache)->device_mask;
	const struct scope sc = { .devices = devices };
	uint32_t e = mm->shrink.hand, n = NIL;

	if (draining_on(mm, devices))
		return false;
	if (!extent_lookup(mm, e) || !extent_at(mm, e)->on_take)
		e = mm->takeable.head;
	for (uint32_t i = 0; e && i < GLANCE; i++, e = extent_at(mm, e)->take_link.next) {
		const struct extent *x = extent_at(mm, e);

		/* Its own, and what it could adopt, it has the use of as it is. */
		if ((x->cache == cache && x->group == group) || !eligible(mm, x, &sc))
			continue;
		n = n ? n : policy_victim(mm, bind);
		if (!n || !all_colder(mm, x, n))
			continue;
		mm->shrink.hand = x->take_link.next;
		return compact_drain(mm, e, DRAIN_EVICT);
	}
	mm->shrink.hand = e;
	return false;
}

void shrink_claim(struct mm *mm, uint32_t bind, uint32_t group)
{
	uint32_t devices = cache_at(mm, bind_at(mm, bind)->cache)->device_mask;

	if (!draining_on(mm, devices) && owed_more(mm, bind, group))
		shrink_drain_mixed(mm, devices, bind, group);
}

static void look_again(struct mm *mm, uint64_t ns)
{
	mm->shrink.hungry = true;
	if (ns < mm->shrink.next_ns)
		mm->shrink.next_ns = ns;
}

/* Nobody is taken below low for what another could have given back. */
static bool spare(const struct mm *mm, const struct cache *c, uint32_t group, uint32_t devices)
{
	bool there = false;

	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		there = there || (devices >> d & 1 && c->need[group][d]);
	return there && !leaves_less(mm, c, group, false) && !leaves_less(mm, c, group, true);
}

bool shrink_drain_mixed(struct mm *mm, uint32_t devices, uint32_t not_bind, uint32_t not_group)
{
	uint32_t b = mm->shrink.at, nr = mm->binds.nr_used + 1;	/* once round, past 0 */

	while (nr--) {
		b = pool_next(mm, &mm->binds, b);
		for (uint32_t g = 0; b && g < MM_MAX_GROUPS; g++) {
			if ((b == not_bind && g == not_group) ||
			    !spare(mm, cache_at(mm, bind_at(mm, b)->cache), g, devices) ||
			    !compact_pack(mm, b, g, DRAIN_ROOM | DRAIN_LAST))
				continue;
			mm->shrink.at = b;
			return true;
		}
	}
	return false;
}

/* Parked or not: true if it is being taken. */
static bool take_kind(struct mm *mm, uint32_t d, bool below_low, uint32_t *budget)
{
	struct scope sc = { .devices = 1u << d, .below_low = below_low, .leave_one = true };

	if (!take_one(mm, &sc, budget)) {
		sc.parked = true;
		if (!take_one(mm, &sc, budget))
			return false;
	}
	mm->vmstat.reclaim_background++;
	return true;
}

/* What a tenant has below its low is left alone while what others have above theirs is packed, or
 * has just begun to be. */
static bool take_any(struct mm *mm, uint32_t d, uint32_t *budget)
{
	struct scope low = { .devices = 1u << d, .below_low = true, .parked = true,
			     .leave_one = true };

	if (take_kind(mm, d, false, budget))
		return true;
	if (!pick(mm, &low))
		return false;
	if (shrink_drain_mixed(mm, 1u << d, NIL, 0)) {
		*budget -= *budget < PRICE ? *budget : PRICE;
		return true;
	}
	return !mm->device[d].draining_bytes && take_kind(mm, d, true, budget);
}

static void fill(struct mm *mm, uint32_t d, uint32_t *budget)
{
	const struct mm_device_config *cfg = &mm->cfg.device[d];
	uint32_t bit = 1u << d;

	if (free_soon(mm, d) < cfg->wmark_low_bytes)
		mm->shrink.filling |= bit;
	while (mm->shrink.filling & bit) {
		if (free_soon(mm, d) >= cfg->wmark_high_bytes) {
			mm->shrink.filling &= ~bit;
		} else if (!take_any(mm, d, budget)) {
			compact_want(mm, 0, bit);
			look_again(mm, mm->now_ns + compact_rest_ns(mm));
			return;
		} else if (!*budget) {	/* after something was found, lest looking never ends */
			mm->shrink.kick = true;
			return;
		}
	}
}

/* ---- tenants ------------------------------------------------------------------------------- */

/* Where its cached pages begin to go: high may be none beside a max. */
static uint64_t soft(const struct mm_limits *l)
{
	return l->high_bytes < l->max_bytes ? l->high_bytes : l->max_bytes;
}

/* Devices on which it is above a limit; *bytes: by how much, together. */
static uint32_t over(const struct mm *mm, uint32_t tenant, bool max, uint64_t *bytes)
{
	uint32_t mask = 0;

	*bytes = 0;
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++) {
		const struct mm_limits *l = &tenant_at(mm, tenant)->limit[d];
		uint64_t by = core_less(usage(mm, tenant, d), max ? l->max_bytes : soft(l));

		mask |= by ? 1u << d : 0;
		*bytes += by;
	}
	return mask;
}

/* The same without what is draining, which may yet be given up. */
static bool above_soft(const struct mm *mm, uint32_t tenant)
{
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		if (memcg_usage(mm, tenant, d) > soft(&tenant_at(mm, tenant)->limit[d]))
			return true;
	return false;
}

/* Above max its engines do not get back what is being emptied; above high they may. */
static uint32_t sticky(const struct mm *mm, uint32_t tenant)
{
	uint64_t bytes;

	return over(mm, tenant, true, &bytes) ? DRAIN_STICKY : 0;
}

static bool take_cached(struct mm *mm, uint32_t tenant, bool parked, uint32_t *budget)
{
	struct scope sc = { .tenant = tenant, .parked = parked };
	uint64_t bytes;

	while ((sc.devices = over(mm, tenant, parked, &bytes))) {
		sc.flags = sticky(mm, tenant);
		if (!take_one(mm, &sc, budget))
			return false;
		mm->vmstat.reclaim_limit++;
		if (!*budget) {
			mm->shrink.kick = true;
			return false;
		}
	}
	return true;
}

/* Pages in use may need the room of cached ones; of parked ones only past the deadline. */
static uint32_t pack_flags(const struct mm *mm, uint32_t tenant, uint32_t bind, bool late)
{
	uint32_t flags = sticky(mm, tenant), engine = bind_at(mm, bind)->engine;

	if (flags && (late || !engine || !engine_at(mm, engine)->parks.nr))
		flags |= DRAIN_ROOM;
	return flags;
}

static void pack_binds(struct mm *mm, uint32_t tenant, uint32_t bind, bool late)
{
	uint64_t bytes;

	for (; bind; bind = bind_at(mm, bind)->cache_link.next)
		for (uint32_t g = 0; g < MM_MAX_GROUPS; g++)
			while (over(mm, tenant, false, &bytes) &&
			       compact_pack(mm, bind, g, pack_flags(mm, tenant, bind, late)))
				;
}

static void pack_tenant(struct mm *mm, uint32_t tenant, bool late)
{
	uint32_t c = tenant_at(mm, tenant)->caches.head;

	for (; c; c = cache_at(mm, c)->tenant_link.next) {
		pack_binds(mm, tenant, cache_at(mm, c)->binds.head, late);
		pack_binds(mm, tenant, cache_at(mm, c)->orphans.head, late);
	}
}

static void ask(struct mm *mm, uint32_t tenant, uint64_t bytes)
{
	struct tenant *t = tenant_at(mm, tenant);

	t->ask_ns = mm->now_ns + (compact_rest_ns(mm) << (t->asks < MAX_ASKS ? t->asks : MAX_ASKS));
	t->asks++;
	if (!mm->cfg.answer_ns)
		return;
	for (uint32_t e = pool_next(mm, &mm->engines, 0); e; e = pool_next(mm, &mm->engines, e))
		if (engine_at(mm, e)->tenant == tenant && !engine_at(mm, e)->fenced)
			event_pressure(mm, e, bytes, mm->now_ns + mm->cfg.answer_ns);
}

static void past_deadline(struct mm *mm, uint32_t tenant, uint32_t *budget)
{
	struct tenant *t = tenant_at(mm, tenant);
	uint64_t bytes;
	uint32_t devices;

	if (take_cached(mm, tenant, true, budget) || mm->shrink.kick)
		return;
	pack_tenant(mm, tenant, true);
	devices = over(mm, tenant, true, &bytes);
	if (!devices)
		return;
	debt_begin(mm, tenant);
	if (t->oom_action == MM_OOM_KILL && mm->cfg.answer_ns)
		debt_kill(mm, tenant, devices, false);
}

static void shrink_tenant(struct mm *mm, uint32_t tenant, uint32_t *budget)
{
	struct tenant *t = tenant_at(mm, tenant);
	uint64_t bytes, hard, mapped = debt_mapped(mm, tenant);

	if (mapped < mm->shrink.next_ns)
		mm->shrink.next_ns = mapped;
	if (!over(mm, tenant, false, &bytes)) {
		if (!above_soft(mm, tenant))
			t->ask_ns = t->asks = 0;
		return;
	}
	if (take_cached(mm, tenant, false, budget) || mm->shrink.kick)
		return;
	if (t->ask_ns && t->ask_ns <= mm->now_ns && over(mm, tenant, true, &hard))
		past_deadline(mm, tenant, budget);
	if (over(mm, tenant, false, &bytes) && t->ask_ns <= mm->now_ns) {
		pack_tenant(mm, tenant, t->asks != 0);
		if (over(mm, tenant, false, &bytes))
			ask(mm, tenant, bytes);
		else
			t->ask_ns = mm->now_ns + compact_rest_ns(mm);
	}
	look_again(mm, t->ask_ns);
}

/* ---- when ---------------------------------------------------------------------------------- */

void shrink_charged(struct mm *mm, uint32_t tenant, uint32_t d)
{
	if (tenant && usage(mm, tenant, d) > soft(&tenant_at(mm, tenant)->limit[d]))
		mm->shrink.kick = true;
	if (free_soon(mm, d) < mm->cfg.device[d].wmark_low_bytes)
		mm->shrink.kick = true;
}

void shrink_tick(struct mm *mm, uint32_t *budget)
{
	struct shrink *s = &mm->shrink;

	if (!s->kick && s->next_ns > mm->now_ns)
		return;
	s->kick = s->hungry = false;
	s->next_ns = UINT64_MAX;
	for (uint32_t t = pool_next(mm, &mm->tenants, 0); t; t = pool_next(mm, &mm->tenants, t))
		shrink_tenant(mm, t, budget);
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		fill(mm, d, budget);
}

uint64_t shrink_next_deadline(const struct mm *mm)
{
	return mm->shrink.kick ? mm->now_ns : mm->shrink.next_ns;
}
