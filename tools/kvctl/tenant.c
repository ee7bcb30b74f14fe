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

/* A row for each tenant and device. */
static void show_list(struct emit *e, const struct kv_admin_tenant *t, uint32_t nr)
{
	enum { NC = NR(facts) + 2 };
	struct emit_col cols[NC] = { { "name", "TENANT", EMIT_STR },
				     { "device", "DEVICE", EMIT_ID } };
	union emit_val *rows = must(calloc((size_t)nr * 8 + 1, NC * sizeof(*rows))), *row = rows;

	for (uint32_t c = 0; c < NR(facts); c++)
		cols[c + 2] = (struct emit_col){ facts[c].key, facts[c].title, facts[c].kind };
	for (uint32_t i = 0; i < nr; i++)
		for (uint32_t d = 0; d < t[i].nr_devices && d < 8; d++, row += NC) {
			row[0].s = t[i].name;
			row[1].u = d;
			for (uint32_t c = 0; c < NR(facts); c++)
				row[c + 2] = fact_value(&facts[c], &t[i], d);
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
	char what[40], value[32];
};

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
	struct line *lines = must(calloc(9 * (size_t)NR_ALL, sizeof(*lines)));
	union emit_val *rows = must(calloc(9 * (size_t)NR_ALL + 1, 3 * sizeof(*rows)));
	union emit_val *row = put_lines(rows, lines, t, 0, false);

	named[1].title = t->name;
	row[0].s = "OOM ACTION";
	row[1].s = action(t);
	row[2].s = "when it stays above max: nothing, or kill the engine that holds most";
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
		{ "min=", KV_TENANT_MIN, &q->min_bytes, 0 },
		{ "low=", KV_TENANT_LOW, &q->low_bytes, 0 },
		{ "high=", KV_TENANT_HIGH, &q->high_bytes, KV_NO_LIMIT },
		{ "max=", KV_TENANT_MAX, &q->max_bytes, KV_NO_LIMIT },
	};

	if (!strcmp(word, "oom_action=none") || !strcmp(word, "oom_action=kill")) {
		q->oom_action = !strcmp(word, "oom_action=kill");
		q->mask |= KV_TENANT_OOM;
		return 0;
	}
	for (uint32_t i = 0; i < NR(knobs); i++) {
		const char *value = word + strlen(knobs[i].name);

		if (strncmp(word, knobs[i].name, strlen(knobs[i].name)))
			continue;
		q->mask |= knobs[i].bit;
		*knobs[i].to = knobs[i].none;
		if (!strcmp(value, "none") || (!strcmp(value, "max") && knobs[i].none))
			return 0;
		if (!kv_parse_size(value, knobs[i].to) && *knobs[i].to != KV_NO_LIMIT)
			return 0;
		return bad(word, "has no size: write it as 8G or 512M, or none");
	}
	return bad(word, "is no change: write min=SIZE, low=SIZE, high=SIZE, max=SIZE (or =none), "
			 "oom_action=none or oom_action=kill");
}

const char *kvctl_tenant_usage(char *const *words, unsigned int nr_words)
{
	struct kv_admin_tenant_set q;
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
		show_list(e, t, nr);
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
