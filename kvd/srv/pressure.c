// SPDX-License-Identifier: Apache-2.0
#include "srv/pressure.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "io/log.h"
#include "io/loop.h"

#define ALL	UINT32_MAX	/* cursor: the total has been given, no tenant yet */

static void put_tenant(const struct pressure_view *v, uint32_t key, char name[KV_NAME_BYTES])
{
	tenants_name(v->tenants, key, name);
}

static void put_engine(const struct pressure_view *v, uint32_t engine, char name[KV_NAME_BYTES],
		       uint32_t *pid)
{
	struct session_info who;

	if (!sessions_engine(v->sessions, engine, &who))
		return;
	memcpy(name, who.name, KV_NAME_BYTES);
	*pid = (uint32_t)who.pid;
}

/* ---- averages ------------------------------------------------------------------------------ */

bool pressure_next(const struct pressure_view *v, uint32_t *cursor, struct kv_admin_pressure *out)
{
	const struct mm *mm = exec_mm(v->exec);
	struct mm_tenant_info tenant = { .key = MM_ALL_TENANTS };
	struct mm_psi psi;
	uint32_t id = *cursor == ALL ? 0 : *cursor;
	bool all = *cursor == 0;

	if (!all && !mm_next_tenant(mm, &id, &tenant))
		return false;
	*cursor = all ? ALL : id;
	if (mm_psi(mm, tenant.key, loop_now(), &psi) < 0)
		return false;
	*out = (struct kv_admin_pressure){
		.key = tenant.key, .all = all,
		.some_total_ns = psi.some_total_ns, .full_total_ns = psi.full_total_ns,
	};
	memcpy(out->some_avg, psi.some_avg, sizeof(out->some_avg));
	memcpy(out->full_avg, psi.full_avg, sizeof(out->full_avg));
	if (!all)
		put_tenant(v, tenant.key, out->tenant);
	return true;
}

/* ---- reports ------------------------------------------------------------------------------- */

static const char *limit_name(const struct mm_oom_report *r)
{
	if (r->reason != MM_TABLE_FULL)
		return "";
	switch (r->a) {
	case offsetof(struct mm_config, max_extents):
		return "max_extents";
	case offsetof(struct mm_config, max_frames):
		return "max_frames";
	case offsetof(struct mm_config, max_pending):
		return "max_pending";
	default:
		return "";
	}
}

static void put_holders(const struct pressure_view *v, const struct mm_oom_report *r,
			struct kv_admin_oom *out)
{
	for (uint32_t i = 0; i < r->nr_holders; i++) {
		const struct mm_oom_holder *h = &r->holder[i];
		struct kv_admin_oom_holder *o = &out->holder[i];

		*o = (struct kv_admin_oom_holder){
			.engine = h->engine, .held_bytes = h->held_bytes,
			.leased_bytes = h->leased_bytes, .cached_bytes = h->cached_bytes,
			.reserved_bytes = h->reserved_bytes,
		};
		put_tenant(v, h->tenant, o->tenant);
		put_engine(v, h->engine, o->name, &o->pid);
	}
}

bool pressure_next_oom(const struct pressure_view *v, uint64_t *seq, struct kv_admin_oom *out)
{
	struct mm_oom_report r;

	_Static_assert(MM_OOM_HOLDERS == KV_OOM_HOLDERS, "the same list");
	if (!mm_next_oom(exec_mm(v->exec), seq, &r))
		return false;
	*out = (struct kv_admin_oom){
		.seq = r.seq, .age_ns = loop_now() - r.when_ns, .span_ns = r.last_ns - r.when_ns,
		.engine = r.engine, .cache = r.cache, .group = r.group, .nr_pages = r.nr_pages,
		.device = r.device, .count = r.count, .missed = r.missed, .result = r.result,
		.reason = (uint32_t)r.reason, .a = r.a, .b = r.b, .bytes = r.bytes,
		.pool_bytes = r.pool_bytes, .extent_bytes = r.extent_bytes,
		.reserved_bytes = r.reserved_bytes, .free_bytes = r.free_bytes,
		.held_bytes = r.held_bytes, .leased_bytes = r.leased_bytes,
		.cached_bytes = r.cached_bytes, .protected_bytes = r.protected_bytes,
		.quarantined_bytes = r.quarantined_bytes, .fragmented_bytes = r.fragmented_bytes,
		.leaving_bytes = r.leaving_bytes, .promised_bytes = r.promised_bytes,
		.nr_waiting = r.nr_waiting, .nr_holders = r.nr_holders,
	};
	control_device_name(v->control, r.device, out->device_name, sizeof(out->device_name));
	snprintf(out->limit, sizeof(out->limit), "%s", limit_name(&r));
	put_tenant(v, r.tenant, out->tenant);
	put_engine(v, r.engine, out->name, &out->pid);
	put_holders(v, &r, out);
	return true;
}

static const char *why(const struct kv_admin_oom *r)
{
	switch ((enum mm_reason)r->reason) {
	case MM_TENANT_MAX:
		return "its tenant is at its max";
	case MM_TABLE_FULL:
		return "a table of kvd is full";
	case MM_TIMED_OUT:
		return "no room came before its deadline";
	default:
		return "the pool is full and nobody can give anything back";
	}
}

void pressure_log(const struct pressure_view *v, uint64_t *seq)
{
	struct kv_admin_oom r;
	char bytes[24], held[24], leased[24];

	while (pressure_next_oom(v, seq, &r))
		log_warn("engine %u '%s' (tenant %s) was refused %u pages (%s) on %s: %s; held %s, "
			 "leased %s there: kvctl oom says more",
			 r.engine, r.name, r.tenant, r.nr_pages,
			 control_human_bytes(r.bytes, bytes, sizeof(bytes)), r.device_name, why(&r),
			 control_human_bytes(r.held_bytes, held, sizeof(held)),
			 control_human_bytes(r.leased_bytes, leased, sizeof(leased)));
}
