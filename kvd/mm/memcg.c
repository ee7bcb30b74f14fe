// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "cache.h"
#include "core.h"
#include "debt.h"
#include "worth.h"

uint32_t tenant_find(const struct mm *mm, uint32_t key)
{
	uint32_t t = pool_next(mm, &mm->tenants, 0);

	while (t && tenant_at(mm, t)->key != key)
		t = pool_next(mm, &mm->tenants, t);
	return t;
}

uint32_t tenant_create(struct mm *mm, uint32_t key)
{
	uint32_t t = pool_get(mm, &mm->tenants);

	if (!t)
		return NIL;
	tenant_at(mm, t)->key = key;
	worth_init(mm, t);
	for (uint32_t d = 0; d < MM_MAX_DEVICES; d++)
		tenant_at(mm, t)->limit[d] = (struct mm_limits){
			.high_bytes = MM_NO_LIMIT, .max_bytes = MM_NO_LIMIT,
		};
	return t;
}

void tenant_put(struct mm *mm, uint32_t tenant)
{
	if (--tenant_at(mm, tenant)->nr_refs)
		return;
	for (uint32_t d = 0; d < MM_MAX_DEVICES; d++)
		MM_ASSERT(!tenant_at(mm, tenant)->charge[d] &&
			  !tenant_at(mm, tenant)->leaving[d] &&
			  !tenant_at(mm, tenant)->promised[d]);
	pool_put(mm, &mm->tenants, tenant);
}

/* ---- the charge ---------------------------------------------------------------------------- */

uint64_t memcg_room(const struct mm *mm, uint32_t tenant, uint32_t device)
{
	const struct tenant *t = tenant_at(mm, tenant);

	return core_less(t->limit[device].max_bytes, t->charge[device]);
}

void memcg_charge(struct mm *mm, uint32_t tenant, uint32_t device, uint64_t bytes)
{
	struct tenant *t = tenant_at(mm, tenant);
	bool was_over = t->charge[device] > t->limit[device].high_bytes;

	t->charge[device] += bytes;
	if (t->charge[device] > t->peak[device])
		t->peak[device] = t->charge[device];
	if (!was_over && t->charge[device] > t->limit[device].high_bytes)
		memcg_event(mm, tenant, MM_MEMCG_HIGH);
	mm->device[device].extent_bytes += bytes;
	shrink_charged(mm, tenant, device);
}

void memcg_uncharge(struct mm *mm, uint32_t tenant, uint32_t device, uint64_t bytes)
{
	tenant_at(mm, tenant)->charge[device] -= bytes;
	mm->device[device].extent_bytes -= bytes;
	debt_settle(mm, tenant);
}

void memcg_leave(struct mm *mm, uint32_t tenant, uint32_t device, uint64_t bytes)
{
	struct tenant *t = tenant_at(mm, tenant);

	mm->shrink.kick = mm->shrink.kick || t->ask_ns ||
			  t->charge[device] > t->limit[device].max_bytes;
	t->leaving[device] += bytes;
	mm->device[device].leaving_bytes += bytes;
}

void memcg_left(struct mm *mm, uint32_t tenant, uint32_t device, uint64_t bytes)
{
	tenant_at(mm, tenant)->leaving[device] -= bytes;
	mm->device[device].leaving_bytes -= bytes;
}

void memcg_event(struct mm *mm, uint32_t tenant, enum mm_memcg_event which)
{
	tenant_at(mm, tenant)->events[which]++;
}

/* ---- against the limits -------------------------------------------------------------------- */

uint64_t memcg_usage(const struct mm *mm, uint32_t tenant, uint32_t device)
{
	const struct tenant *t = tenant_at(mm, tenant);

	return t->charge[device] - t->leaving[device];
}

static uint64_t above(const struct mm *mm, uint32_t tenant, uint32_t device, uint64_t limit)
{
	return core_less(memcg_usage(mm, tenant, device), limit);
}

bool memcg_below_min(const struct mm *mm, uint32_t tenant, uint32_t device)
{
	return !memcg_above_min(mm, tenant, device);
}

bool memcg_below_low(const struct mm *mm, uint32_t tenant, uint32_t device)
{
	return !memcg_above_low(mm, tenant, device);
}

uint64_t memcg_above_min(const struct mm *mm, uint32_t tenant, uint32_t device)
{
	return above(mm, tenant, device, tenant_at(mm, tenant)->limit[device].min_bytes);
}

uint64_t memcg_above_low(const struct mm *mm, uint32_t tenant, uint32_t device)
{
	const struct mm_limits *l = &tenant_at(mm, tenant)->limit[device];

	return above(mm, tenant, device, l->low_bytes ? l->low_bytes : l->min_bytes);
}

uint64_t memcg_over_high(const struct mm *mm, uint32_t tenant, uint32_t device)
{
	return above(mm, tenant, device, tenant_at(mm, tenant)->limit[device].high_bytes);
}

bool memcg_would_pass_high(const struct mm *mm, uint32_t tenant, const uint64_t *need, uint32_t nr)
{
	const struct tenant *t = tenant_at(mm, tenant);

	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		if (need[d] && need[d] * nr > core_less(t->limit[d].high_bytes, t->charge[d]))
			return true;
	return false;
}

uint64_t memcg_excess(const struct mm *mm, uint32_t tenant, uint32_t device)
{
	return above(mm, tenant, device, tenant_at(mm, tenant)->limit[device].max_bytes);
}

/* ---- setting limits ------------------------------------------------------------------------ */

/* What the mins of the others leave of a pool. */
static uint64_t min_left(const struct mm *mm, uint32_t tenant, uint32_t device)
{
	uint64_t left = mm->cfg.device[device].pool_bytes;

	for (uint32_t t = pool_next(mm, &mm->tenants, 0); t; t = pool_next(mm, &mm->tenants, t))
		left -= t == tenant ? 0 : tenant_at(mm, t)->limit[device].min_bytes;
	return left;
}

static bool at_default(const struct tenant *t)
{
	for (uint32_t d = 0; d < MM_MAX_DEVICES; d++)
		if (t->limit[d].min_bytes || t->limit[d].low_bytes ||
		    t->limit[d].high_bytes != MM_NO_LIMIT || t->limit[d].max_bytes != MM_NO_LIMIT)
			return false;
	return t->oom_action == MM_OOM_NONE;
}

/* A tenant whose limits are its own stays without engines: they are its reference. */
static void set_configured(struct mm *mm, uint32_t tenant)
{
	struct tenant *t = tenant_at(mm, tenant);
	bool is = !at_default(t);

	t->nr_refs += is;
	if (t->configured) {
		t->configured = is;
		tenant_put(mm, tenant);
	} else {
		t->configured = is;
	}
}

static int check_limits(const struct mm *mm, const struct mm_request *rq, uint32_t from,
			uint32_t to, struct mm_reply *rp)
{
	const struct mm_limits *l = &rq->tenant.limits;
	uint32_t tenant = tenant_find(mm, rq->tenant.tenant);

	if (l->low_bytes && l->min_bytes > l->low_bytes)
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, l->min_bytes, l->low_bytes);
	if (l->high_bytes != MM_NO_LIMIT && l->high_bytes > l->max_bytes)
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, l->high_bytes, l->max_bytes);
	if (rq->tenant.oom_action > MM_OOM_KILL)
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, rq->tenant.oom_action,
				   MM_OOM_KILL);
	for (uint32_t d = from; d < to; d++)
		if (l->min_bytes > min_left(mm, tenant, d))
			return reply_error(rp, -ENOMEM, MM_POOL_FULL, l->min_bytes,
					   min_left(mm, tenant, d));
	return 0;
}

int memcg_op_set(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	bool all = rq->tenant.device == MM_ALL_DEVICES;
	uint32_t from = all ? 0 : rq->tenant.device, to = all ? mm->cfg.nr_devices : from + 1;
	uint32_t tenant = tenant_find(mm, rq->tenant.tenant);
	int err;

	if (!all && from >= mm->cfg.nr_devices)
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, from, mm->cfg.nr_devices);
	err = check_limits(mm, rq, from, to, rp);
	if (err)
		return err;
	if (!tenant && pool_full(&mm->tenants)) {
		err = reply_table_full(rp, mm, max_tenants);
		return cache_clear_tenant(mm) ? -EAGAIN : err;
	}
	if (!tenant)
		tenant = tenant_create(mm, rq->tenant.tenant);
	tenant_at(mm, tenant)->nr_refs++;
	tenant_at(mm, tenant)->oom_action = rq->tenant.oom_action;
	for (uint32_t d = from; d < to; d++)
		tenant_at(mm, tenant)->limit[d] = rq->tenant.limits;
	debt_settle(mm, tenant);
	set_configured(mm, tenant);
	tenant_put(mm, tenant);
	mm->dirty = true;	/* somebody may have waited for a higher max */
	mm->shrink.kick = true;
	return 0;
}
