/* SPDX-License-Identifier: Apache-2.0 */
/* The commands that print one snapshot. Each is a table of fields over one admin record. */
#include "kvctl.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "admin.h"
#include "emit.h"

#define NR(a) (sizeof(a) / sizeof((a)[0]))
#define MAX_FIELDS 16u
#define TEXT_BYTES 24u

/* Where a column comes from: a member of the record, or a function of it. text is a buffer of
 * TEXT_BYTES that lives as long as the row. */
struct field {
	struct emit_col col;
	size_t offset;
	size_t bytes; /* 4, 8: an integer; else a string */
	void (*get)(const void *record, char *text, union emit_val *);
};

#define MEMBER(type, member, title, kind) \
	{ \
		{ #member, title, kind }, offsetof(struct type, member), \
			sizeof(((struct type *)0)->member), NULL \
	}
#define DERIVED(key, title, kind, get) { { key, title, kind }, 0, 0, get }

static union emit_val value(const struct field *f, const char *record, char *text)
{
	union emit_val v;
	uint32_t u;

	if (f->get) {
		f->get(record, text, &v);
		return v;
	}
	if (f->col.kind == EMIT_STR) {
		v.s = record + f->offset;
		return v;
	}
	if (f->bytes == 4) {
		memcpy(&u, record + f->offset, 4);
		v.u = u;
	} else {
		memcpy(&v.u, record + f->offset, 8);
	}
	return v;
}

/* Ask for cmd and show its records: a table, or (one) the first of them line by line. */
static int show(int fd, uint32_t cmd, struct emit *e, const char *name, const struct field *fields,
		unsigned int nf, size_t record_bytes, bool one)
{
	struct emit_col cols[MAX_FIELDS];
	union emit_val *rows;
	uint32_t nr, i, c;
	char *records, *text;
	int err = admin_get(fd, cmd, record_bytes, (void **)&records, &nr);

	if (err)
		return err;
	rows = calloc(nr + 1, nf * sizeof(*rows));
	text = calloc(nr + 1, nf * (size_t)TEXT_BYTES);
	if (!rows || !text) {
		fputs("out of memory\n", stderr);
		exit(1);
	}
	for (c = 0; c < nf; c++)
		cols[c] = fields[c].col;
	for (i = 0; i < nr * nf; i++)
		rows[i] = value(&fields[i % nf], records + i / nf * record_bytes,
				text + i * (size_t)TEXT_BYTES);
	if (one)
		emit_record(e, name, cols, nf, rows);
	else
		emit_table(e, name, cols, nf, rows, nr);
	free(text);
	free(rows);
	free(records);
	return 0;
}

static const struct field status_fields[] = {
	MEMBER(kv_admin_status, release, "Release", EMIT_STR),
	MEMBER(kv_admin_status, pid, "Process", EMIT_ID),
	MEMBER(kv_admin_status, socket, "Socket", EMIT_STR),
	MEMBER(kv_admin_status, uptime_ns, "Up for", EMIT_NS),
	MEMBER(kv_admin_status, nr_devices, "Devices", EMIT_COUNT),
	MEMBER(kv_admin_status, nr_engines, "Engines", EMIT_COUNT),
	MEMBER(kv_admin_status, nr_sessions, "Sessions", EMIT_COUNT),
	MEMBER(kv_admin_status, nr_caches, "Caches", EMIT_COUNT),
	MEMBER(kv_admin_status, requests, "Requests", EMIT_COUNT),
	MEMBER(kv_admin_status, loop_wakeups, "Wake-ups", EMIT_COUNT),
	MEMBER(kv_admin_status, checks, "Self-checks", EMIT_COUNT),
};

int kvctl_status(int fd, struct emit *e, const char *name)
{
	return show(fd, KV_ADMIN_STATUS, e, name, status_fields, NR(status_fields),
		    sizeof(struct kv_admin_status), true);
}

int kvctl_check(int fd, struct emit *e, const char *name)
{
	int err = show(fd, KV_ADMIN_CHECK, e, name, status_fields, NR(status_fields),
		       sizeof(struct kv_admin_status), true);

	if (!err)	/* kvd would have aborted */
		emit_note(e, "\nAll invariants hold.\n");
	return err;
}

int kvctl_meminfo(int fd, struct emit *e, const char *name)
{
	static const struct field fields[] = {
		MEMBER(kv_admin_meminfo, name, "DEVICE", EMIT_STR),
		MEMBER(kv_admin_meminfo, pool_bytes, "POOL", EMIT_BYTES),
		MEMBER(kv_admin_meminfo, extent_bytes, "EXTENTS", EMIT_BYTES),
		MEMBER(kv_admin_meminfo, reserved_bytes, "RESERVED", EMIT_BYTES),
		MEMBER(kv_admin_meminfo, free_bytes, "FREE", EMIT_BYTES),
		MEMBER(kv_admin_meminfo, promised_bytes, "PROMISED", EMIT_BYTES),
		MEMBER(kv_admin_meminfo, held_bytes, "HELD", EMIT_BYTES),
		MEMBER(kv_admin_meminfo, cached_bytes, "CACHED", EMIT_BYTES),
		MEMBER(kv_admin_meminfo, leased_bytes, "LEASED", EMIT_BYTES),
		MEMBER(kv_admin_meminfo, quarantined_bytes, "QUARANTINED", EMIT_BYTES),
		MEMBER(kv_admin_meminfo, frame_free_bytes, "FREE PAGES", EMIT_BYTES),
		MEMBER(kv_admin_meminfo, nr_extents, "NR", EMIT_COUNT),
	};

	return show(fd, KV_ADMIN_MEMINFO, e, name, fields, NR(fields),
		    sizeof(struct kv_admin_meminfo), false);
}

static double hit_ratio(uint64_t hit, uint64_t asked)
{
	return asked ? (double)hit / (double)asked : NAN;
}

static void engine_state(const void *record, char *text, union emit_val *v)
{
	const struct kv_admin_engine *g = record;

	(void)text;
	v->s = g->fenced ? "quarantine" : "live";
}

static void engine_hits(const void *record, char *text, union emit_val *v)
{
	const struct kv_admin_engine *g = record;

	(void)text;
	v->f = hit_ratio(g->hit_tokens, g->lookup_tokens);
}

int kvctl_engines(int fd, struct emit *e, const char *name)
{
	static const struct field fields[] = {
		MEMBER(kv_admin_engine, engine, "ENGINE", EMIT_ID),
		MEMBER(kv_admin_engine, name, "NAME", EMIT_STR),
		MEMBER(kv_admin_engine, pid, "PID", EMIT_ID),
		MEMBER(kv_admin_engine, tenant, "TENANT", EMIT_STR),
		DERIVED("state", "STATE", EMIT_STR, engine_state),
		MEMBER(kv_admin_engine, nr_members, "MEMBERS", EMIT_COUNT),
		MEMBER(kv_admin_engine, age_ns, "AGE", EMIT_NS),
		MEMBER(kv_admin_engine, held_pages, "HELD", EMIT_COUNT),
		MEMBER(kv_admin_engine, held_bytes, "HELD BYTES", EMIT_BYTES),
		MEMBER(kv_admin_engine, extent_bytes, "EXTENTS", EMIT_BYTES),
		MEMBER(kv_admin_engine, nr_leases, "LEASES", EMIT_COUNT),
		MEMBER(kv_admin_engine, nr_parks, "PARKS", EMIT_COUNT),
		MEMBER(kv_admin_engine, quarantined_pages, "QUARANT.", EMIT_COUNT),
		MEMBER(kv_admin_engine, reserved_bytes, "RESERVED", EMIT_BYTES),
		DERIVED("hit_ratio", "HIT", EMIT_RATIO, engine_hits),
	};

	return show(fd, KV_ADMIN_ENGINES, e, name, fields, NR(fields),
		    sizeof(struct kv_admin_engine), false);
}

/* The first bytes of a digest are enough to tell caches apart. */
static void cache_key(const void *record, char *text, union emit_val *v)
{
	const struct kv_admin_cache *c = record;
	int i;

	for (i = 0; i < 6; i++)
		snprintf(text + 2 * i, 3, "%02x", c->model_key[i]);
	v->s = text;
}

static void cache_hits(const void *record, char *text, union emit_val *v)
{
	const struct kv_admin_cache *c = record;

	(void)text;
	v->f = hit_ratio(c->hit_tokens, c->lookup_tokens);
}

int kvctl_caches(int fd, struct emit *e, const char *name)
{
	static const struct field fields[] = {
		MEMBER(kv_admin_cache, cache, "CACHE", EMIT_ID),
		DERIVED("model_key", "MODEL KEY", EMIT_STR, cache_key),
		MEMBER(kv_admin_cache, tenant, "TENANT", EMIT_STR),
		MEMBER(kv_admin_cache, shared, "SHARED", EMIT_BOOL),
		MEMBER(kv_admin_cache, nr_engines, "ENGINES", EMIT_COUNT),
		MEMBER(kv_admin_cache, nr_groups, "GROUPS", EMIT_COUNT),
		MEMBER(kv_admin_cache, nr_shards, "SHARDS", EMIT_COUNT),
		MEMBER(kv_admin_cache, page_tokens, "TOKENS", EMIT_COUNT),
		MEMBER(kv_admin_cache, page_bytes, "PAGE", EMIT_BYTES),
		MEMBER(kv_admin_cache, held_pages, "HELD", EMIT_COUNT),
		MEMBER(kv_admin_cache, cached_pages, "CACHED", EMIT_COUNT),
		MEMBER(kv_admin_cache, leased_pages, "LEASED", EMIT_COUNT),
		MEMBER(kv_admin_cache, free_pages, "FREE", EMIT_COUNT),
		MEMBER(kv_admin_cache, cached_tokens, "CACHED TOKENS", EMIT_COUNT),
		DERIVED("hit_ratio", "HIT", EMIT_RATIO, cache_hits),
	};

	return show(fd, KV_ADMIN_CACHES, e, name, fields, NR(fields), sizeof(struct kv_admin_cache),
		    false);
}

int kvctl_vmstat(int fd, struct emit *e, const char *name)
{
	static const struct field fields[] = {
		MEMBER(kv_admin_counter, name, "COUNTER", EMIT_STR),
		MEMBER(kv_admin_counter, value, "VALUE", EMIT_COUNT),
		MEMBER(kv_admin_counter, help, "MEANING", EMIT_STR),
	};

	return show(fd, KV_ADMIN_VMSTAT, e, name, fields, NR(fields),
		    sizeof(struct kv_admin_counter), false);
}
