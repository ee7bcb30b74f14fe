// SPDX-License-Identifier: Apache-2.0
/* Tenants and their limits: who was promised what, and what everybody's bytes add up to. */
#include <string.h>

#include "sim.h"

#define ULL(x) ((unsigned long long)(x))

static const struct mm_limits no_limits = {0, 0, MM_NO_LIMIT, MM_NO_LIMIT};

struct tenant *budget_tenant(struct sim *s, uint32_t key)
{
	uint32_t i = key - SIM_FIRST_TENANT;

	SIM_CHECK(s, i < SIM_TENANTS, "tenant %u was never there", key);
	return &s->tenant[i];
}

void budget_start(struct sim *s)
{
	for (uint32_t t = 0; t < SIM_TENANTS; t++)
		for (uint32_t d = 0; d < MM_MAX_DEVICES; d++) {
			s->tenant[t].limit[d] = no_limits;
			s->tenant[t].ceiling[d] = MM_NO_LIMIT;
		}
}

/* ---- setting limits -------------------------------------------------------------------------- */

static uint64_t some_bytes(struct sim *s, uint64_t pool)
{
	return rng_percent(s, 20) ? rng_next(s) % (2 * pool) : rng_next(s) % (pool + 1);
}

static void draw_limits(struct sim *s, struct mm_limits *l, uint64_t pool)
{
	*l = no_limits;
	if (rng_percent(s, 30))
		l->min_bytes = some_bytes(s, pool / 3);
	l->low_bytes = l->min_bytes + (rng_percent(s, 40) ? some_bytes(s, pool / 2) : 0);
	if (rng_percent(s, 60))
		l->max_bytes = some_bytes(s, pool);
	l->high_bytes = l->max_bytes;
	if (rng_percent(s, 40))
		l->high_bytes = rng_next(s) % (pool + 1);
	if (l->high_bytes > l->max_bytes)
		l->high_bytes = l->max_bytes;
	if (gen_hostile(s)) {
		uint64_t *field[] = {&l->min_bytes, &l->low_bytes, &l->high_bytes, &l->max_bytes};

		*field[rng_below(s, 4)] = rng_percent(s, 50) ? rng_next(s) : rng_below(s, 2);
	}
}

void gen_tenant_set(struct sim *s)
{
	struct call *c = call_new(s, MM_TENANT_SET);
	uint32_t d = rng_below(s, s->cfg.nr_devices);

	c->req.tenant.tenant = SIM_FIRST_TENANT + rng_below(s, s->world.nr_tenants + 1);
	c->req.tenant.device = rng_percent(s, 30) ? MM_ALL_DEVICES : d;
	if (rng_percent(s, s->world.unlimited_percent))
		c->req.tenant.limits = no_limits;
	else
		draw_limits(s, &c->req.tenant.limits, s->cfg.device[d].pool_bytes);
	c->req.tenant.oom_action =
		rng_percent(s, s->world.kill_percent) ? MM_OOM_KILL : MM_OOM_NONE;
	if (gen_hostile(s))
		c->req.tenant.device = s->cfg.nr_devices + rng_below(s, 20);
	if (gen_hostile(s))
		c->req.tenant.oom_action = MM_OOM_KILL + 1 + rng_below(s, 3);
	call_submit(s, c);
}

static bool concerns(const struct sim *s, const struct mm_request *r, uint32_t device)
{
	return device < s->cfg.nr_devices &&
	       (r->tenant.device == MM_ALL_DEVICES || r->tenant.device == device);
}

static bool mins_fit(struct sim *s, const struct mm_request *r)
{
	for (uint32_t d = 0; d < s->cfg.nr_devices; d++) {
		uint64_t others = 0, pool = s->cfg.device[d].pool_bytes;

		for (uint32_t t = 0; t < SIM_TENANTS; t++)
			if (t + SIM_FIRST_TENANT != r->tenant.tenant)
				others += s->tenant[t].limit[d].min_bytes;
		SIM_CHECK(s, others <= pool, "device %u: the mins of tenants exceed the pool", d);
		if (concerns(s, r, d) && r->tenant.limits.min_bytes > pool - others)
			return false;
	}
	return true;
}

static bool is_there(struct sim *s, uint32_t key)
{
	if (budget_tenant(s, key)->configured)
		return true;
	for (uint32_t i = 0; i < s->nr_live; i++)
		if (s->engine[s->live[i]].uid == key)
			return true;
	return false;
}

enum expect expect_tenant_set(struct sim *s, const struct call *c)
{
	const struct mm_request *r = &c->req;
	const struct mm_limits *l = &r->tenant.limits;

	if ((l->low_bytes && l->min_bytes > l->low_bytes) ||
	    (l->high_bytes != MM_NO_LIMIT && l->high_bytes > l->max_bytes) ||
	    r->tenant.oom_action > MM_OOM_KILL ||
	    (r->tenant.device >= s->cfg.nr_devices && r->tenant.device != MM_ALL_DEVICES))
		return EXPECT_FAIL;
	if (!mins_fit(s, r))
		return EXPECT_FAIL;
	return is_there(s, r->tenant.tenant) ? EXPECT_OK : EXPECT_ROOM;
}

void ok_tenant_set(struct sim *s, struct call *c, const struct mm_reply *r)
{
	struct tenant *t = budget_tenant(s, c->req.tenant.tenant);

	(void)r;
	t->oom_action = c->req.tenant.oom_action;
	t->configured = t->oom_action != MM_OOM_NONE;
	for (uint32_t d = 0; d < s->cfg.nr_devices; d++) {
		if (concerns(s, &c->req, d)) {
			t->limit[d] = c->req.tenant.limits;
			t->ceiling[d] = MM_NO_LIMIT; /* until the next look */
		}
		t->configured |= memcmp(&t->limit[d], &no_limits, sizeof(no_limits)) != 0;
		t->limited |= t->configured;
	}
}

/* Only a tenant that asked for it, and stays above its max, loses an engine. */
void budget_killed(struct sim *s, const struct engine *e)
{
	const struct tenant *t = budget_tenant(s, e->uid);
	struct mm_tenant_info info;
	bool above = false;

	SIM_CHECK(s, !mm_tenant_info(s->mm, e->uid, &info), "tenant %u is gone", e->uid);
	for (uint32_t d = 0; d < s->cfg.nr_devices; d++)
		above |= info.device[d].charge_bytes > t->limit[d].max_bytes;
	if (canary_lose(s, CANARY_KILL))
		above = false;
	SIM_CHECK(s, above && t->oom_action == MM_OOM_KILL,
		  "engine %u is killed, its tenant is %sabove max, oom_action %u", e->id,
		  above ? "" : "not ", t->oom_action);
}

/* Everything back to where it was. */
void budget_end(struct sim *s)
{
	for (uint32_t t = 0; t < SIM_TENANTS; t++) {
		struct call *c;

		if (!s->tenant[t].configured)
			continue;
		c = call_new(s, MM_TENANT_SET);
		c->req.tenant.tenant = SIM_FIRST_TENANT + t;
		c->req.tenant.device = MM_ALL_DEVICES;
		c->req.tenant.limits = no_limits;
		call_submit(s, c);
		SIM_CHECK(s, !s->tenant[t].configured, "tenant %u keeps its limits",
			  SIM_FIRST_TENANT + t);
	}
}

/* ---- promises -------------------------------------------------------------------------------- */

void budget_promise(struct sim *s, struct engine *e, const struct cache *k, uint32_t min_pages)
{
	uint32_t ci = model_cache_index(s, k), free = SIM_OPENS;

	for (uint32_t i = 0; i < SIM_OPENS; i++) {
		if (e->promise[i].cache == ci)
			e->promise[i].cache = 0;
		if (!e->promise[i].cache)
			free = i;
	}
	if (!min_pages)
		return;
	SIM_CHECK(s, free < SIM_OPENS, "sim: promises");
	e->promise[free].cache = ci;
	e->promise[free].min_pages = min_pages;
	s->sum.promised++;
}

/* A promise is about bytes: a max set since, or a full table, may stand in its way. */
static bool excused(struct sim *s, const struct engine *e, enum mm_reason why)
{
	const struct tenant *t = budget_tenant(s, e->uid);

	for (uint32_t d = 0; d < s->cfg.nr_devices; d++)
		if (t->limit[d].max_bytes != MM_NO_LIMIT && why == MM_TENANT_MAX)
			return true;
	return why == MM_TABLE_FULL;
}

static void redeem(struct sim *s, uint32_t ei, uint32_t ci, uint32_t group, uint32_t min_pages)
{
	struct engine *e = &s->engine[ei];
	uint32_t granted = 0;

	while (granted < min_pages) {
		struct call *c = gen_call(s, MM_ALLOC, ei);
		uint32_t left = min_pages - granted, before = e->nr_held;

		c->req.cache = s->cache[ci].id;
		c->req.group = group;
		c->req.alloc.nr_pages = left < s->cfg.batch_pages ? left : s->cfg.batch_pages;
		c->req.alloc.deadline_ns = s->now_ns + 1000ull * 1000 * 1000;
		s->last_reason = MM_OK;
		if (call_submit(s, c))
			end_settle(s);
		if (e->nr_held == before && s->last_reason == MM_TIMED_OUT) {
			c = gen_call(s, MM_ALLOC, ei); /* for the true reason */
			c->req.cache = s->cache[ci].id;
			c->req.group = group;
			c->req.alloc.nr_pages = left < s->cfg.batch_pages ? left
									  : s->cfg.batch_pages;
			if (call_submit(s, c))
				end_settle(s);
		}
		if (e->fenced)		/* killed for its tenant's debt */
			return;
		if (e->nr_held == before && excused(s, e, s->last_reason))
			return;
		SIM_CHECK(s, e->nr_held > before,
			  "engine %u was promised %u pages of group %u, %u are granted, reason %d",
			  e->id, min_pages, group, granted, s->last_reason);
		granted += e->nr_held - before;
		s->sum.redeemed += e->nr_held - before;
	}
}

/* Nobody holds a page or a lease: now all come for what they were promised, and keep it. */
void budget_redeem(struct sim *s)
{
	for (uint32_t i = 0; i < s->nr_live; i++) {
		struct engine *e = &s->engine[s->live[i]];

		for (uint32_t p = 0; p < SIM_OPENS && !e->fenced; p++) {
			uint32_t ci = e->promise[p].cache, min_pages = e->promise[p].min_pages;

			for (uint32_t g = 0; ci && g < s->cache[ci].desc.nr_groups; g++)
				redeem(s, s->live[i], ci, g, min_pages);
		}
	}
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Of extents that the model knows to be the tenant's: the others have granted nothing yet. */
static uint64_t known_charge(const struct sim *s, uint32_t key, uint32_t device)
{
	uint64_t bytes = 0;

	for (uint32_t x = 0; x < s->top_extent; x++) {
		const struct extent *e = &s->extent[x];

		if (!e->cache || s->cache[e->cache].uid != key)
			continue;
		for (uint32_t i = 0; i < SIM_SHARDS; i++)
			if (e->shard[i].state > SHARD_LEFT && e->shard[i].device == device)
				bytes += e->shard[i].bytes;
	}
	return bytes;
}

static void check_charge(struct sim *s, struct tenant *t, const struct mm_tenant_info *i,
			 uint32_t d)
{
	const struct mm_tenant_device *m = &i->device[d];
	uint64_t charge = canary_number(s, CANARY_CHARGE, m->charge_bytes);

	SIM_CHECK(s, !memcmp(&m->limits, &t->limit[d], sizeof(m->limits)),
		  "tenant %u device %u has other limits than were set", i->key, d);
	SIM_CHECK(s, charge >= known_charge(s, i->key, d),
		  "tenant %u device %u: charge %llu, its extents have %llu", i->key, d, ULL(charge),
		  ULL(known_charge(s, i->key, d)));
	if (t->ceiling[d] != MM_NO_LIMIT && canary_lose(s, CANARY_OVER_MAX))
		charge = t->ceiling[d] + 1;
	/* What was above a max when it was set may stay, but not grow. */
	SIM_CHECK(s, charge <= t->ceiling[d], "tenant %u device %u: charge %llu grew beyond %llu",
		  i->key, d, ULL(charge), ULL(t->ceiling[d]));
	t->ceiling[d] = charge > t->limit[d].max_bytes ? charge : t->limit[d].max_bytes;
	SIM_CHECK(s, m->peak_bytes >= charge && m->leaving_bytes <= charge,
		  "tenant %u device %u: charge %llu, peak %llu, leaving %llu", i->key, d,
		  ULL(charge), ULL(m->peak_bytes), ULL(m->leaving_bytes));
}

/* Shares of time are shares, and no more time than there was. */
static void check_psi(struct sim *s, uint32_t key)
{
	uint64_t now = s->now_ns, some;
	struct mm_psi p;

	SIM_CHECK(s, !mm_psi(s->mm, key, now, &p), "tenant %u has no pressure", key);
	some = p.some_total_ns;
	for (uint32_t i = 0; i < 3; i++)
		SIM_CHECK(s, p.some_avg[i] <= 10000 && p.full_avg[i] <= p.some_avg[i] + 1,
			  "tenant %u: pressure some %u, full %u of 10000", key, p.some_avg[i],
			  p.full_avg[i]);
	some = canary_lose(s, CANARY_PSI) ? now + 1 : some;
	SIM_CHECK(s, p.full_total_ns <= some && some <= now,
		  "tenant %u: some waited %llu ns, all %llu, of %llu", key, ULL(some),
		  ULL(p.full_total_ns), ULL(now));
}

static void check_tenant(struct sim *s, const struct mm_tenant_info *i,
			 struct mm_tenant_device *sum)
{
	struct tenant *t = budget_tenant(s, i->key);
	uint32_t engines = 0;

	for (uint32_t e = 0; e < s->nr_live; e++)
		engines += s->engine[s->live[e]].uid == i->key;
	SIM_CHECK(s, i->nr_engines >= engines && !i->configured == !t->configured &&
		  i->oom_action == t->oom_action, "tenant %u: %u engines (%u), configured %u (%u)",
		  i->key, i->nr_engines, engines, i->configured, t->configured);
	t->seen = true;
	check_psi(s, i->key);
	for (uint32_t d = 0; d < s->cfg.nr_devices; d++) {
		const struct mm_tenant_device *m = &i->device[d];

		check_charge(s, t, i, d);
		sum[d].charge_bytes += canary_number(s, CANARY_CHARGE, m->charge_bytes);
		sum[d].held_bytes += m->held_bytes;
		sum[d].cached_bytes += m->cached_bytes;
		sum[d].leased_bytes += m->leased_bytes;
		sum[d].quarantined_bytes += m->quarantined_bytes;
		sum[d].reserved_bytes += m->reserved_bytes;
		sum[d].promised_bytes += m->promised_bytes;
		sum[d].leaving_bytes += m->leaving_bytes;
	}
}

/* Every byte of a device is somebody's. */
void budget_check(struct sim *s)
{
	struct mm_tenant_device sum[MM_MAX_DEVICES];
	struct mm_tenant_info info;
	uint32_t id = 0, seen = 0;

	memset(sum, 0, sizeof(sum));
	for (uint32_t t = 0; t < SIM_TENANTS; t++)
		s->tenant[t].seen = false;
	while (mm_next_tenant(s->mm, &id, &info)) {
		check_tenant(s, &info, sum);
		SIM_CHECK(s, ++seen <= SIM_TENANTS, "mm_next_tenant walks in circles");
	}
	for (uint32_t t = 0; t < SIM_TENANTS; t++)
		SIM_CHECK(s, s->tenant[t].seen || !is_there(s, SIM_FIRST_TENANT + t),
			  "tenant %u is forgotten", SIM_FIRST_TENANT + t);
	for (uint32_t d = 0; d < s->cfg.nr_devices; d++) {
		struct mm_meminfo m;

		mm_meminfo(s->mm, d, &m);
		SIM_CHECK(s,
			  sum[d].charge_bytes == m.extent_bytes &&
				  sum[d].held_bytes == m.held_bytes &&
				  sum[d].cached_bytes == m.cached_bytes &&
				  sum[d].leased_bytes == m.leased_bytes &&
				  sum[d].quarantined_bytes == m.quarantined_bytes &&
				  sum[d].reserved_bytes == m.reserved_bytes,
			  "device %u: tenants have %llu bytes in extents, %llu held, %llu cached, "
			  "%llu quarantined, %llu reserved",
			  d, ULL(sum[d].charge_bytes), ULL(sum[d].held_bytes),
			  ULL(sum[d].cached_bytes), ULL(sum[d].quarantined_bytes),
			  ULL(sum[d].reserved_bytes));
		sum[d].promised_bytes += canary_number(s, CANARY_PROMISED, 0) * m.pool_bytes;
		SIM_CHECK(s,
			  m.extent_bytes + m.reserved_bytes + sum[d].promised_bytes <=
				  m.pool_bytes + sum[d].leaving_bytes,
			  "device %u: %llu bytes in extents, %llu reserved, %llu promised, the "
			  "pool has %llu and %llu leaving",
			  d, ULL(m.extent_bytes), ULL(m.reserved_bytes), ULL(sum[d].promised_bytes),
			  ULL(m.pool_bytes), ULL(sum[d].leaving_bytes));
	}
}
