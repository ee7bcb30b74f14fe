// SPDX-License-Identifier: Apache-2.0
/* kvctl tenant: who pays for memory, how far, and how often the limits were met. */
#include "kvctl.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <kv/pool.h>

#include "admin.h"
#include "emit.h"

#define NR(a) (sizeof(a) / sizeof((a)[0]))
#define TEXT_BYTES 200u
#define MAX_BYTES  (64ull << 40)	/* of any device */
#define GAP_NS	   (1ull << 20)	/* kv_admin_tenant.reuse_gap_ms's unit */

/* ---- what there is to say ------------------------------------------------------------------ */

/* A number of a kv_admin_tenant, or of one of its devices. */
struct fact {
	const char *key, *title, *help;
	enum emit_kind kind;
	size_t offset, bytes;
	bool device;
};

#define OF_TENANT(member, title, kind, help) \
	{ #member, title, help, kind, offsetof(struct kv_admin_tenant, member), \
	  sizeof(((struct kv_admin_tenant *)0)->member), false }
#define OF_DEVICE(member, title, kind, help) \
	{ #member, title, help, kind, offsetof(struct kv_admin_tenant_device, member), \
	  sizeof(((struct kv_admin_tenant_device *)0)->member), true }

static const struct fact facts[] = {
	OF_TENANT(nr_engines, "ENGINES", EMIT_COUNT, "engines attached"),
	OF_TENANT(nr_caches, "CACHES", EMIT_COUNT, "caches, open or left behind"),
	OF_DEVICE(current_bytes, "CURRENT", EMIT_BYTES, "charged for extents, until given back"),
	OF_DEVICE(peak_bytes, "PEAK", EMIT_BYTES, "the most that was ever charged"),
	OF_DEVICE(min_bytes, "MIN", EMIT_BYTES, "never reclaimed below"),
	OF_DEVICE(low_bytes, "LOW", EMIT_BYTES, "not reclaimed below while others have more"),
	OF_DEVICE(high_bytes, "HIGH", EMIT_LIMIT, "above it own cached pages go first"),
	OF_DEVICE(max_bytes, "MAX", EMIT_LIMIT, "no new extent beyond it"),
	OF_TENANT(low_events, "LOW EV.", EMIT_COUNT, "times it was reclaimed below low"),
	OF_TENANT(high_events, "HIGH EV.", EMIT_COUNT, "times high was passed or cost it pages"),
	OF_TENANT(max_events, "MAX EV.", EMIT_COUNT, "times max kept it from more"),
	OF_TENANT(oom_events, "OOM EV.", EMIT_COUNT, "times it could not be shrunk to max"),
	OF_TENANT(oom_kills, "KILLS", EMIT_COUNT, "engines killed for that"),
};

/* Only show and set have them. */
static const struct fact more_facts[] = {
	OF_DEVICE(leaving_bytes, "LEAVING", EMIT_BYTES, "part of current on its way back"),
	OF_DEVICE(reserved_bytes, "RESERVED", EMIT_BYTES, "outside the pool: weights and such"),
	OF_DEVICE(promised_bytes, "PROMISED", EMIT_BYTES, "promised to open caches, not yet taken"),
	OF_DEVICE(held_bytes, "HELD", EMIT_BYTES, "pages its engines write"),
	OF_DEVICE(cached_bytes, "CACHED", EMIT_BYTES, "pages of cached prefixes"),
	OF_DEVICE(leased_bytes, "LEASED", EMIT_BYTES, "part of cached that somebody uses"),
	OF_DEVICE(quarantined_bytes, "QUARANTINED", EMIT_BYTES, "pages of engines that died"),
	OF_DEVICE(free_bytes, "FREE PAGES", EMIT_BYTES, "free pages in its extents"),
	OF_TENANT(lookup_tokens, "LOOKUP TOKENS", EMIT_COUNT, "tokens it looked up"),
	OF_TENANT(hit_tokens, "HIT TOKENS", EMIT_COUNT, "tokens of them that were cached"),
	OF_TENANT(evictions, "EVICTIONS", EMIT_COUNT, "cached pages that were reclaimed"),
	OF_TENANT(refaults, "REFAULTS", EMIT_COUNT, "evicted pages that were committed again"),
};

static union emit_val fact_value(const struct fact *f, const struct kv_admin_tenant *t, uint32_t d)
{
	const char *from = f->device ? (const char *)&t->device[d] : (const char *)t;
	union emit_val v = { .u = 0 };
	uint32_t u;

	if (f->bytes == sizeof(u)) {
		memcpy(&u, from + f->offset, sizeof(u));
		v.u = u;
	} else {
		memcpy(&v.u, from + f->offset, sizeof(v.u));
	}
	return v;
}

static void *must(void *p)
{
	if (!p) {
		fputs("out of memory\n", stderr);
		exit(1);
	}
	return p;
}

/* ---- list ---------------------------------------------------------------------------------- */

/* Those of the tenant, or of each of its devices, behind what the columns have already. */
static uint32_t add_cols(struct emit_col *cols, uint32_t n, bool device)
{
	for (uint32_t i = 0; i < NR(facts); i++)
		if (facts[i].device == device)
			cols[n++] = (struct emit_col){ facts[i].key, facts[i].title,
						       facts[i].kind };
	return n;
}

static union emit_val *add_vals(union emit_val *v, const struct kv_admin_tenant *t, uint32_t d,
				bool device)
{
	for (uint32_t i = 0; i < NR(facts); i++)
		if (facts[i].device == device)
			*v++ = fact_value(&facts[i], t, d);
	return v;
}

/* Two tables: what is of a tenant as a whole, and what is of each of its devices. */
static void list_json(struct emit *e, const struct kv_admin_tenant *t, uint32_t nr)
{
	enum { NC = NR(facts) + 2 };
	struct emit_col whole[NC] = { { "name", "", EMIT_STR } };
	struct emit_col each[NC] = { { "name", "", EMIT_STR }, { "device", "", EMIT_ID } };
	uint32_t nw = add_cols(whole, 1, false), ne = add_cols(each, 2, true), rows = 0;
	union emit_val *w = must(calloc((size_t)nr + 1, nw * sizeof(*w))), *wv = w;
	union emit_val *v = must(calloc((size_t)nr * 8 + 1, ne * sizeof(*v))), *vv = v;

	for (uint32_t i = 0; i < nr; i++) {
		(wv++)->s = t[i].name;
		wv = add_vals(wv, &t[i], 0, false);
		for (uint32_t d = 0; d < t[i].nr_devices && d < 8; d++, rows++) {
			(vv++)->s = t[i].name;
			(vv++)->u = d;
			vv = add_vals(vv, &t[i], d, true);
		}
	}
	emit_table(e, "tenants", whole, nw, w, nr);
	emit_table(e, "devices", each, ne, v, rows);
	free(w);
	free(v);
}

/* A row for each tenant and device; what is of the tenant as a whole stands in the first. */
static void list_text(struct emit *e, const struct kv_admin_tenant *t, uint32_t nr)
{
	enum { NC = NR(facts) + 2 };
	struct emit_col cols[NC] = { { "name", "TENANT", EMIT_STR },
				     { "device", "DEVICE", EMIT_ID } };
	union emit_val *rows = must(calloc((size_t)nr * 8 + 1, NC * sizeof(*rows))), *row = rows;

	for (uint32_t c = 0; c < NR(facts); c++)
		cols[c + 2] = (struct emit_col){ facts[c].key, facts[c].title,
						 facts[c].device ? facts[c].kind : EMIT_ONCE };
	for (uint32_t i = 0; i < nr; i++)
		for (uint32_t d = 0; d < t[i].nr_devices && d < 8; d++, row += NC) {
			row[0].s = t[i].name;
			row[1].u = d;
			for (uint32_t c = 0; c < NR(facts); c++)
				row[c + 2] = d && !facts[c].device ?
					     (union emit_val){ .u = UINT64_MAX } :
					     fact_value(&facts[c], &t[i], d);
		}
	emit_table(e, NULL, cols, NC, rows, (unsigned int)((row - rows) / NC));
	free(rows);
}

/* ---- show ---------------------------------------------------------------------------------- */

enum { NR_ALL = NR(facts) + NR(more_facts) };

static const struct fact *fact_at(uint32_t i)
{
	return i < NR(facts) ? &facts[i] : &more_facts[i - NR(facts)];
}

static const char *action(const struct kv_admin_tenant *t)
{
	return t->oom_action ? "kill" : "none";
}

struct line {
	char what[40], value[72];
};

/* ---- what became of pages ------------------------------------------------------------------ */

static uint64_t bucket_from(uint32_t b)
{
	return b ? 1ull << (b - 1) : 0;
}

static uint64_t bucket_to(uint32_t b)
{
	return b + 1 == KV_LOG2_BUCKETS ? UINT64_MAX : 1ull << b;	/* not included */
}

/* The bucket of the median; KV_LOG2_BUCKETS: nothing has been counted. */
static uint32_t median(const uint64_t *count)
{
	uint64_t all = 0, below = 0;
	uint32_t b;

	for (b = 0; b < KV_LOG2_BUCKETS; b++)
		all += count[b];
	for (b = 0; b < KV_LOG2_BUCKETS && 2 * (below += count[b]) < all; b++)
		;
	return all ? b : KV_LOG2_BUCKETS;
}

/* The median as a range, in units of so many ns, or plain numbers (0). */
static const char *show_median(const uint64_t *count, uint64_t unit_ns, char *text, size_t len)
{
	enum emit_kind kind = unit_ns ? EMIT_NS : EMIT_COUNT;
	uint64_t unit = unit_ns ? unit_ns : 1;
	uint32_t b = median(count);
	char from[32], to[32];

	if (b == KV_LOG2_BUCKETS)
		return "-";
	emit_format(from, kind, (union emit_val){ .u = bucket_from(b) * unit });
	if (b + 1 == KV_LOG2_BUCKETS)
		snprintf(text, len, "%s or more", from);
	else
		snprintf(text, len, "%s to %s", from,
			 emit_format(to, kind, (union emit_val){ .u = bucket_to(b) * unit -
								      !unit_ns }));
	return text;
}

static union emit_val *put_medians(union emit_val *row, struct line *l,
				   const struct kv_admin_tenant *t)
{
	row[0].s = "REFAULT DISTANCE";
	row[1].s = show_median(t->refault_distance, 0, l[0].value, sizeof(l->value));
	row[2].s = "median of evictions in between: a cache larger by so many pages had had it";
	row[3].s = "REUSE GAP";
	row[4].s = show_median(t->reuse_gap_ms, GAP_NS, l[1].value, sizeof(l->value));
	row[5].s = "median of the time between two uses of a cached page";
	return row + 6;
}

/* Buckets that have something; to null: open. */
static void put_buckets(struct emit *e, const char *name, const uint64_t *count, uint64_t unit,
			const char *from, const char *to)
{
	const struct emit_col cols[] = { { from, "", EMIT_COUNT }, { to, "", EMIT_LIMIT },
					 { "count", "", EMIT_COUNT } };
	union emit_val rows[KV_LOG2_BUCKETS][NR(cols)];
	uint32_t nr = 0;

	for (uint32_t b = 0; b < KV_LOG2_BUCKETS; b++) {
		if (!count[b])
			continue;
		rows[nr][0].u = bucket_from(b) * unit;
		rows[nr][1].u = b + 1 == KV_LOG2_BUCKETS ? UINT64_MAX : bucket_to(b) * unit;
		rows[nr++][2].u = count[b];
	}
	emit_table(e, name, cols, NR(cols), rows[0], nr);
}

/* ---- a tenant ------------------------------------------------------------------------------ */

/* A line a fact, with its meaning: those of the tenant, or of one device. */
static union emit_val *put_lines(union emit_val *row, struct line *l,
				 const struct kv_admin_tenant *t, uint32_t d, bool device)
{
	for (uint32_t i = 0; i < NR_ALL; i++) {
		const struct fact *f = fact_at(i);

		if (f->device != device)
			continue;
		if (device && t->nr_devices > 1)
			snprintf(l[i].what, sizeof(l[i].what), "device %u %s", d, f->title);
		else
			snprintf(l[i].what, sizeof(l[i].what), "%s", f->title);
		row[0].s = l[i].what;
		row[1].s = emit_format(l[i].value, f->kind, fact_value(f, t, d));
		row[2].s = f->help;
		row += 3;
	}
	return row;
}

static void show_text(struct emit *e, const struct kv_admin_tenant *t)
{
	static const struct emit_col cols[] = { { "what", "TENANT", EMIT_STR },
						{ "value", NULL, EMIT_STR },
						{ "meaning", "MEANING", EMIT_STR } };
	struct emit_col named[3] = { cols[0], cols[1], cols[2] };
	struct line *lines = must(calloc(9 * (size_t)NR_ALL, sizeof(*lines))), medians[2];
	union emit_val *rows = must(calloc(9 * (size_t)NR_ALL + 3, 3 * sizeof(*rows)));
	union emit_val *row = put_lines(rows, lines, t, 0, false);

	named[1].title = t->name;
	row = put_medians(row, medians, t);
	row[0].s = "OOM ACTION";
	row[1].s = action(t);
	row[2].s = "when it stays above max: nothing, or kill the engine that keeps most";
	row += 3;
	for (uint32_t d = 0; d < t->nr_devices && d < 8; d++)
		row = put_lines(row, lines + (d + 1) * (size_t)NR_ALL, t, d, true);
	emit_table(e, "lines", named, 3, rows, (unsigned int)((row - rows) / 3));
	free(rows);
	free(lines);
}

static uint32_t put_facts(struct emit_col *cols, union emit_val *vals, uint32_t n,
			  const struct kv_admin_tenant *t, uint32_t d, bool device)
{
	for (uint32_t i = 0; i < NR_ALL; i++) {
		const struct fact *f = fact_at(i);

		if (f->device != device)
			continue;
		cols[n] = (struct emit_col){ f->key, f->title, f->kind };
		vals[n++] = fact_value(f, t, d);
	}
	return n;
}

static void show_json(struct emit *e, const struct kv_admin_tenant *t)
{
	struct emit_col cols[NR_ALL + 3] = { { "name", "", EMIT_STR },
					     { "configured", "", EMIT_BOOL },
					     { "oom_action", "", EMIT_STR } };
	union emit_val vals[8 * (NR_ALL + 1)] = { { .s = t->name }, { .u = t->configured },
						  { .s = action(t) } };
	uint32_t n = put_facts(cols, vals, 3, t, 0, false), at = 0;

	emit_record(e, "tenant", cols, n, vals);
	cols[0] = (struct emit_col){ "device", "", EMIT_ID };
	for (uint32_t d = 0; d < t->nr_devices && d < 8; d++, at += n) {
		vals[at].u = d;
		n = put_facts(cols, vals + at, 1, t, d, true);
	}
	emit_table(e, "devices", cols, n, vals, at / n);
	put_buckets(e, "refault_distance", t->refault_distance, 1, "from", "to");
	put_buckets(e, "reuse_gap", t->reuse_gap_ms, GAP_NS, "from_ns", "to_ns");
}

static void show_one(struct emit *e, bool json, const struct kv_admin_tenant *t)
{
	if (json)
		show_json(e, t);
	else
		show_text(e, t);
}

/* ---- set ----------------------------------------------------------------------------------- */

static char why[TEXT_BYTES];

static int bad(const char *word, const char *what)
{
	snprintf(why, sizeof(why), "'%.60s' %s", word, what);
	return -EINVAL;
}

/* KNOB=VALUE into the request. */
static int parse_change(struct kv_admin_tenant_set *q, const char *word)
{
	const struct {
		const char *name;
		uint32_t bit;
		uint64_t *to, none;
	} knobs[] = {
		{ "min=", KV_TENANT_SET_MIN, &q->min_bytes, 0 },
		{ "low=", KV_TENANT_SET_LOW, &q->low_bytes, 0 },
		{ "high=", KV_TENANT_SET_HIGH, &q->high_bytes, KV_NO_LIMIT },
		{ "max=", KV_TENANT_SET_MAX, &q->max_bytes, KV_NO_LIMIT },
	};

	if (!strncmp(word, "oom_action=", 11) && q->mask & KV_TENANT_SET_OOM)
		return bad(word, "is a second one of its kind: say which holds");
	if (!strcmp(word, "oom_action=none") || !strcmp(word, "oom_action=kill")) {
		q->oom_action = !strcmp(word, "oom_action=kill");
		q->mask |= KV_TENANT_SET_OOM;
		return 0;
	}
	for (uint32_t i = 0; i < NR(knobs); i++) {
		const char *value = word + strlen(knobs[i].name);

		if (strncmp(word, knobs[i].name, strlen(knobs[i].name)))
			continue;
		if (q->mask & knobs[i].bit)
			return bad(word, "is a second one of its kind: say which holds");
		q->mask |= knobs[i].bit;
		*knobs[i].to = knobs[i].none;
		if (!strcmp(value, "none") || (!strcmp(value, "max") && knobs[i].none))
			return 0;
		if (!kv_parse_size(value, knobs[i].to) && *knobs[i].to <= MAX_BYTES)
			return 0;
		return bad(word, "has no size up to 64T: write it as 8G or 512M, or none");
	}
	return bad(word, "is no change: write min=SIZE, low=SIZE, high=SIZE, max=SIZE (or =none), "
			 "oom_action=none or oom_action=kill");
}

const char *kvctl_tenant_usage(char *const *words, unsigned int nr_words)
{
	struct kv_admin_tenant_set q = { 0 };
	bool list = nr_words == 1 && !strcmp(words[0], "list");
	bool show = nr_words == 2 && !strcmp(words[0], "show");

	if (list || show)
		return NULL;
	if (nr_words < 3 || strcmp(words[0], "set"))
		return "say tenant list, tenant show NAME, or tenant set NAME KNOB=VALUE...";
	if (strlen(words[1]) >= sizeof(q.name))
		return "the name of a tenant has at most 31 characters";
	for (unsigned int i = 2; i < nr_words; i++)
		if (parse_change(&q, words[i]))
			return why;
	return NULL;
}

/* ---- the command --------------------------------------------------------------------------- */

static int ask(int fd, char *const *words, unsigned int nr_words, unsigned int device,
	       struct kv_admin_tenant **t, uint32_t *nr)
{
	struct kv_admin_tenant_set q = { .device = device };

	if (strcmp(words[0], "set"))
		return admin_get(fd, KV_ADMIN_TENANTS, sizeof(**t), (void **)t, nr);
	strcpy(q.name, words[1]);
	for (unsigned int i = 2; i < nr_words; i++)
		parse_change(&q, words[i]);
	return admin_ask(fd, KV_ADMIN_TENANT_SET, &q.head, sizeof(q), sizeof(**t), (void **)t, nr);
}

int kvctl_tenant(int fd, struct emit *e, bool json, char *const *words, unsigned int nr_words,
		 unsigned int device)
{
	struct kv_admin_tenant *t;
	uint32_t nr, i = 0;
	int err = ask(fd, words, nr_words, device, &t, &nr);

	if (err)
		return err;
	for (i = 0; i < nr; i++)
		t[i].name[sizeof(t[i].name) - 1] = '\0';
	if (!strcmp(words[0], "list")) {
		(json ? list_json : list_text)(e, t, nr);
	} else {
		for (i = 0; i < nr && !strcmp(words[0], "show") && strcmp(t[i].name, words[1]); i++)
			;
		if (i < nr)
			show_one(e, json, &t[i]);
		else
			err = admin_fail(-ENOENT, "no tenant '%s': kvctl tenant list shows them",
					 words[1]);
	}
	free(t);
	return err;
}
