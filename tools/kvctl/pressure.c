// SPDX-License-Identifier: Apache-2.0
/* kvctl pressure and kvctl oom: who waits for memory, who was refused it, and why. */
#include "kvctl.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "admin.h"
#include "emit.h"

#define NR(a) (sizeof(a) / sizeof((a)[0]))

static void *must(void *p)
{
	if (!p) {
		fputs("out of memory\n", stderr);
		exit(1);
	}
	return p;
}

/* ---- pressure ------------------------------------------------------------------------------ */

int kvctl_pressure(int fd, struct emit *e, const char *name)
{
	static const struct emit_col cols[] = {
		{ "tenant", "TENANT", EMIT_STR },
		{ "some_avg10", "SOME% 10s", EMIT_FLOAT },
		{ "some_avg60", "60s", EMIT_FLOAT },
		{ "some_avg300", "300s", EMIT_FLOAT },
		{ "some_total_ns", "TOTAL", EMIT_NS },
		{ "full_avg10", "FULL% 10s", EMIT_FLOAT },
		{ "full_avg60", "60s", EMIT_FLOAT },
		{ "full_avg300", "300s", EMIT_FLOAT },
		{ "full_total_ns", "TOTAL", EMIT_NS },
	};
	struct kv_admin_pressure *p;
	union emit_val *rows, *v;
	uint32_t nr;
	int err = admin_get(fd, KV_ADMIN_PRESSURE, sizeof(*p), (void **)&p, &nr);

	if (err)
		return err;
	v = rows = must(calloc(nr + 1, NR(cols) * sizeof(*rows)));
	for (uint32_t i = 0; i < nr; i++) {
		(v++)->s = p[i].all ? "(all)" : p[i].tenant;
		for (uint32_t k = 0; k < 3; k++)
			(v++)->f = p[i].some_avg[k] / 100.0;
		(v++)->u = p[i].some_total_ns;
		for (uint32_t k = 0; k < 3; k++)
			(v++)->f = p[i].full_avg[k] / 100.0;
		(v++)->u = p[i].full_total_ns;
	}
	emit_table(e, name, cols, NR(cols), rows, nr);
	free(rows);
	free(p);
	return 0;
}

/* ---- oom ----------------------------------------------------------------------------------- */

#define OF_REPORT(member, kind) \
	{ { #member, #member, kind }, offsetof(struct kv_admin_oom, member), \
	  sizeof(((struct kv_admin_oom *)0)->member) }
#define OF_HOLDER(member, title, kind) \
	{ { #member, title, kind }, offsetof(struct kv_admin_oom_holder, member), \
	  sizeof(((struct kv_admin_oom_holder *)0)->member) }

struct member {
	struct emit_col col;
	size_t offset, bytes;
};

static const struct member report_members[] = {
	OF_REPORT(seq, EMIT_ID), OF_REPORT(age_ns, EMIT_NS), OF_REPORT(span_ns, EMIT_NS),
	OF_REPORT(count, EMIT_COUNT), OF_REPORT(missed, EMIT_COUNT),
	OF_REPORT(engine, EMIT_ID), OF_REPORT(name, EMIT_STR), OF_REPORT(pid, EMIT_ID),
	OF_REPORT(tenant, EMIT_STR), OF_REPORT(cache, EMIT_ID), OF_REPORT(group, EMIT_ID),
	OF_REPORT(nr_pages, EMIT_COUNT), OF_REPORT(bytes, EMIT_BYTES),
	OF_REPORT(limit, EMIT_STR), OF_REPORT(a, EMIT_ID), OF_REPORT(b, EMIT_ID),
	OF_REPORT(device_name, EMIT_STR), OF_REPORT(device, EMIT_ID),
	OF_REPORT(pool_bytes, EMIT_BYTES), OF_REPORT(extent_bytes, EMIT_BYTES),
	OF_REPORT(reserved_bytes, EMIT_BYTES), OF_REPORT(free_bytes, EMIT_BYTES),
	OF_REPORT(promised_bytes, EMIT_BYTES), OF_REPORT(held_bytes, EMIT_BYTES),
	OF_REPORT(leased_bytes, EMIT_BYTES), OF_REPORT(cached_bytes, EMIT_BYTES),
	OF_REPORT(protected_bytes, EMIT_BYTES), OF_REPORT(quarantined_bytes, EMIT_BYTES),
	OF_REPORT(fragmented_bytes, EMIT_BYTES), OF_REPORT(leaving_bytes, EMIT_BYTES),
	OF_REPORT(nr_waiting, EMIT_COUNT),
};

static const struct member holder_members[] = {
	OF_HOLDER(engine, "ENGINE", EMIT_ID), OF_HOLDER(name, "NAME", EMIT_STR),
	OF_HOLDER(pid, "PID", EMIT_ID), OF_HOLDER(tenant, "TENANT", EMIT_STR),
	OF_HOLDER(held_bytes, "HELD", EMIT_BYTES), OF_HOLDER(leased_bytes, "LEASED", EMIT_BYTES),
	OF_HOLDER(cached_bytes, "CACHED", EMIT_BYTES),
	OF_HOLDER(reserved_bytes, "RESERVED", EMIT_BYTES),
};

enum { HOLDER_NAME = 1, HOLDER_PID = 2 };	/* in holder_members */

static union emit_val value(const struct member *m, const void *record)
{
	const char *at = (const char *)record + m->offset;
	union emit_val v = { .u = 0 };
	uint32_t u;

	if (m->col.kind == EMIT_STR) {
		v.s = at;
	} else if (m->bytes == sizeof(u)) {
		memcpy(&u, at, sizeof(u));
		v.u = u;
	} else {
		memcpy(&v.u, at, sizeof(v.u));
	}
	return v;
}

static const char *reason(const struct kv_admin_oom *r)
{
	switch (r->reason) {
	case KV_TENANT_MAX:
		return "tenant_max";
	case KV_TABLE_FULL:
		return "table_full";
	case KV_TIMED_OUT:
		return "timed_out";
	default:
		return "pool_full";
	}
}

/* One table of reports, and one of their holders with the seq of the report they are in. */
static void show_json(struct emit *e, const struct kv_admin_oom *r, uint32_t nr)
{
	enum { NM = NR(report_members) + 2, NH = NR(holder_members) + 1 };
	struct emit_col cols[NM] = { { "result", "", EMIT_STR }, { "reason", "", EMIT_STR } };
	struct emit_col hcols[NH] = { { "seq", "", EMIT_ID } };
	union emit_val *rows = must(calloc(nr + 1, NM * sizeof(*rows))), *row = rows;
	union emit_val *hrows = must(calloc(nr * KV_OOM_HOLDERS + 1, NH * sizeof(*rows)));
	union emit_val *hrow = hrows;

	for (uint32_t c = 2; c < NM; c++)
		cols[c] = report_members[c - 2].col;
	for (uint32_t c = 1; c < NH; c++)
		hcols[c] = holder_members[c - 1].col;
	for (uint32_t i = 0; i < nr; i++, row += NM) {
		row[0].s = strerrorname_np(-r[i].result);
		row[1].s = reason(&r[i]);
		for (uint32_t c = 2; c < NM; c++)
			row[c] = value(&report_members[c - 2], &r[i]);
		for (uint32_t h = 0; h < r[i].nr_holders && h < KV_OOM_HOLDERS; h++, hrow += NH) {
			hrow[0].u = r[i].seq;
			for (uint32_t c = 1; c < NH; c++)
				hrow[c] = value(&holder_members[c - 1], &r[i].holder[h]);
		}
	}
	emit_table(e, "reports", cols, NM, rows, nr);
	emit_table(e, "holders", hcols, NH, hrows, (unsigned int)((hrow - hrows) / NH));
	free(rows);
	free(hrows);
}

static const char *human(enum emit_kind kind, uint64_t v)
{
	static char buf[16][32];
	static unsigned int at;

	return emit_format(buf[at++ % 16], kind, (union emit_val){ .u = v });
}

#define BYTES(v) human(EMIT_BYTES, v)

static void show_head(struct emit *e, const struct kv_admin_oom *r)
{
	emit_note(e, "Report %s, %s ago: engine %u%s%s%s (tenant %s) was refused %u page%s (%s) of "
		  "cache %u, group %u.\n", human(EMIT_ID, r->seq), human(EMIT_NS, r->age_ns),
		  r->engine, *r->name ? " '" : "", r->name, *r->name ? "'" : ", gone since,",
		  r->tenant, r->nr_pages, r->nr_pages == 1 ? "" : "s", BYTES(r->bytes), r->cache,
		  r->group);
	if (r->count > 1)
		emit_note(e, "  %u times within %s; the numbers are of the first.\n", r->count,
			  human(EMIT_NS, r->span_ns));
	if (r->missed)
		emit_note(e, "  %u refusals of other engines before it have no report.\n",
			  r->missed);
}

static void show_why(struct emit *e, const struct kv_admin_oom *r)
{
	if (r->reason == KV_TENANT_MAX)
		emit_note(e, "  Why:      tenant '%s' is at its max: %s of %s on %s\n", r->tenant,
			  BYTES(r->b), BYTES(r->a), r->device_name);
	else if (r->reason == KV_TABLE_FULL)
		emit_note(e, "  Why:      a table of kvd is full: %s, %s\n",
			  *r->limit ? r->limit : "see docs/knobs.md", human(EMIT_COUNT, r->b));
	else if (r->reason == KV_TIMED_OUT)
		emit_note(e, "  Why:      no room came before its deadline\n");
	else
		emit_note(e, "  Why:      no room, and nobody to wait for\n");
	emit_note(e, "  %-9s pool %s = extents %s + reserved %s + free %s (promised %s)\n",
		  r->device_name, BYTES(r->pool_bytes), BYTES(r->extent_bytes),
		  BYTES(r->reserved_bytes), BYTES(r->free_bytes), BYTES(r->promised_bytes));
	emit_note(e, "  Extents:  held %s, leased %s, cached %s (%s of it kept by min and low of "
		  "other tenants),\n            quarantined %s, free pages in extents in use %s, "
		  "leaving %s\n", BYTES(r->held_bytes), BYTES(r->leased_bytes),
		  BYTES(r->cached_bytes), BYTES(r->protected_bytes), BYTES(r->quarantined_bytes),
		  BYTES(r->fragmented_bytes), BYTES(r->leaving_bytes));
	emit_note(e, "  Waiting:  %u allocation%s\n", r->nr_waiting,
		  r->nr_waiting == 1 ? "" : "s");
}

static void show_holders(struct emit *e, const struct kv_admin_oom *r)
{
	enum { NH = NR(holder_members) };
	struct emit_col cols[NH];
	union emit_val rows[KV_OOM_HOLDERS][NH];
	uint32_t nr = r->nr_holders < KV_OOM_HOLDERS ? r->nr_holders : KV_OOM_HOLDERS;
	char pid[KV_OOM_HOLDERS][12];

	if (!nr)
		return;
	for (uint32_t c = 0; c < NH; c++)
		cols[c] = holder_members[c].col;
	cols[HOLDER_PID].kind = EMIT_STR;
	for (uint32_t h = 0; h < nr; h++) {
		for (uint32_t c = 0; c < NH; c++)
			rows[h][c] = value(&holder_members[c], &r->holder[h]);
		snprintf(pid[h], sizeof(pid[h]), "%u", r->holder[h].pid);
		rows[h][HOLDER_PID].s = r->holder[h].pid ? pid[h] : NULL;	/* gone since */
		if (!*r->holder[h].name)
			rows[h][HOLDER_NAME].s = NULL;
	}
	emit_table(e, NULL, cols, NH, rows[0], nr);
}

/* The largest cause that somebody can do something about. */
static void show_advice(struct emit *e, const struct kv_admin_oom *r)
{
	const struct kv_admin_oom_holder *most = &r->holder[0];

	emit_note(e, "\n  What to do: ");
	if (r->result == -EDQUOT)
		emit_note(e, "kvctl tenant set %s max=..., or end or shrink one of its engines.\n",
			  r->tenant);
	else if (r->reason == KV_TABLE_FULL)
		emit_note(e, "give pages back; the table is sized for the pool and max_sessions "
			  "(docs/knobs.md).\n");
	else if (r->leaving_bytes >= r->bytes)
		emit_note(e, "room is on its way: a process has yet to unmap extents. If it hangs, "
			  "end it (kvctl engines).\n");
	else if (r->quarantined_bytes >= r->bytes)
		emit_note(e, "end the processes of engines in quarantine (kvctl engines): their "
			  "pages wait for that.\n");
	else if (r->protected_bytes >= r->bytes)
		emit_note(e, "cached pages of other tenants are protected: lower their low or min "
			  "(kvctl tenant list).\n");
	else if (r->fragmented_bytes >= r->bytes &&
		 r->fragmented_bytes > r->held_bytes + r->leased_bytes)
		emit_note(e, "free pages lie in extents that engines keep: smaller extents "
			  "(extent_bytes) waste less.\n");
	else if (r->reserved_bytes + r->promised_bytes > r->held_bytes + r->leased_bytes)
		emit_note(e, "most is reserved or promised: open caches with a smaller minimum, or "
			  "reserve less.\n");
	else if (r->nr_holders)
		emit_note(e, "engine %u%s%s%s has most: let it give pages back, limit tenant %s "
			  "(kvctl tenant set), or start kvd with a larger --device.\n",
			  most->engine, *most->name ? " '" : "", most->name,
			  *most->name ? "'" : "", most->tenant);
	else
		emit_note(e, "start kvd with a larger --device, or ask for fewer pages.\n");
}

int kvctl_oom(int fd, struct emit *e, bool json, unsigned int last)
{
	struct kv_admin_oom *all, *r;
	uint32_t nr;
	int err = admin_get(fd, KV_ADMIN_OOM, sizeof(*all), (void **)&all, &nr);

	if (err)
		return err;
	r = last && last < nr ? all + nr - last : all;
	nr -= (uint32_t)(r - all);
	if (json)
		show_json(e, r, nr);
	else if (!nr)
		emit_note(e, "No allocation that could wait has been refused.\n");
	for (uint32_t i = 0; i < nr && !json; i++) {
		if (i)
			emit_note(e, "\n");
		show_head(e, &r[i]);
		show_why(e, &r[i]);
		show_holders(e, &r[i]);
		show_advice(e, &r[i]);
	}
	free(all);
	return 0;
}
