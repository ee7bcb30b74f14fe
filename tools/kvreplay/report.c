// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "emit.h"
#include "kvreplay.h"
#include "world.h"

#define MAX_COLS 40

/* One run as a row; the columns are the same for all of a report. */
struct row {
	const struct kvreplay *k;
	const struct trace *trace;
	const struct kvreplay_run *run;
	struct emit_col cols[MAX_COLS];
	union emit_val vals[MAX_COLS];
	unsigned int nr;
};

static void add(struct row *r, const char *key, const char *title, enum emit_kind kind,
		union emit_val v)
{
	r->cols[r->nr] = (struct emit_col){ key, title, kind };
	r->vals[r->nr++] = v;
}

static void add_s(struct row *r, const char *key, const char *title, const char *s)
{
	add(r, key, title, EMIT_STR, (union emit_val){ .s = s });
}

static void add_u(struct row *r, const char *key, const char *title, uint64_t u)
{
	add(r, key, title, EMIT_COUNT, (union emit_val){ .u = u });
}

static void add_f(struct row *r, const char *key, const char *title, double f)
{
	add(r, key, title, EMIT_FRACTION, (union emit_val){ .f = f });
}

static void add_ns(struct row *r, const char *key, const char *title, uint64_t ns)
{
	add(r, key, title, EMIT_NS, (union emit_val){ .u = ns });
}

static double ratio(uint64_t part, uint64_t all)
{
	return all ? (double)part / (double)all : 0;
}

/* A trace with nothing to hit has no hit ratio, not one of 0. */
static double hit_ratio(const struct row *r, uint64_t part, uint64_t all)
{
	return r->trace->format == TRACE_AZURE ? NAN : ratio(part, all);
}

static void add_what(struct row *r)
{
	const struct kvreplay_run *run = r->run;

	if (r->k->json) {
		add_s(r, "trace", "", r->trace->path);
		add_s(r, "format", "", trace_format_name(r->trace->format));
		add_u(r, "requests", "", r->trace->nr_requests);
		add_u(r, "engines", "", r->k->nr_engines);
		add(r, "private", "", EMIT_BOOL, (union emit_val){ .u = r->k->apart });
	}
	add_s(r, "policy", "POLICY", world_policy_name(run->policy));
	add_u(r, "capacity_pages", "PAGES", run->res.capacity_pages);
	add(r, "capacity_bytes", "BYTES", EMIT_BYTES,
	    (union emit_val){ .u = run->res.capacity_pages * r->k->page_bytes });
}

static void add_hits(struct row *r)
{
	const struct replay_result *res = &r->run->res;
	double hit = hit_ratio(r, res->hit_blocks, res->blocks);

	if (r->k->json)
		add_u(r, "blocks", "", res->blocks);
	add_f(r, "hit_ratio_blocks", "HITS", hit);
	add_f(r, "hit_ratio_tokens", "OF TOKENS", hit_ratio(r, res->hit_tokens, res->tokens));
	if (!r->k->bound)
		return;
	add_f(r, "min_ratio_blocks", "MIN", r->run->min_ratio);
	add_f(r, "ratio_to_min", "OF MIN", r->run->min_ratio > 0 ? hit / r->run->min_ratio : NAN);
}

static void add_cache(struct row *r)
{
	const struct replay_result *res = &r->run->res;

	add_u(r, "evictions", "EVICTED", res->evictions);
	add_u(r, "refaults", "REFAULTS", res->refaults);
	add_u(r, "oversized", "OVERSIZED", res->oversized);
	if (r->k->json)
		add_u(r, "refused", "", res->refused);
	add(r, "occupancy_mean_pages", "MEAN USE", r->k->json ? EMIT_FLOAT : EMIT_COUNT,
	    r->k->json ? (union emit_val){ .f = res->mean_pages }
		       : (union emit_val){ .u = (uint64_t)(res->mean_pages + .5) });
	add_u(r, "occupancy_peak_pages", "PEAK USE", res->peak_pages);
}

static void add_waits(struct row *r)
{
	const struct replay_result *res = &r->run->res;

	if (r->k->json) {
		add_u(r, "evictions", "", res->evictions);
		add_u(r, "oversized", "", res->oversized);
	}
	add(r, "occupancy_mean_pages", "MEAN USE", EMIT_FLOAT,
	    (union emit_val){ .f = res->mean_pages });
	add_u(r, "occupancy_peak_pages", "PEAK USE", res->peak_pages);
	add_u(r, "served", "SERVED", res->served);
	add_u(r, "refused", "REFUSED", res->refused);
	add_u(r, "aborted", "ABORTED", res->aborted);
	add_u(r, "waited", "WAITED", res->waited);
	add_ns(r, "wait_p50_ns", "P50", res->wait_p50_ns);
	add_ns(r, "wait_p90_ns", "P90", res->wait_p90_ns);
	add_ns(r, "wait_p99_ns", "P99", res->wait_p99_ns);
	add_ns(r, "wait_max_ns", "MAX", res->wait_max_ns);
	add_f(r, "pressure_some", "SOME", res->some_share);
	add_f(r, "pressure_full", "FULL", res->full_share);
}

static void fill(struct row *r)
{
	r->nr = 0;
	add_what(r);
	if (r->trace->format == TRACE_MOONCAKE || r->k->json)
		add_hits(r);
	if (r->trace->format == TRACE_MOONCAKE)
		add_cache(r);
	else
		add_waits(r);
	if (r->trace->format == TRACE_AZURE && r->k->json)
		add_f(r, "refaults", "", NAN);
	if (r->k->json)
		add_u(r, "operations", "", r->run->res.ops);
}

static void report_gaps(struct emit *e, const struct trace_gaps *g)
{
	static const struct emit_col cols[] = {
		{ "from_s", "REUSED AFTER S", EMIT_COUNT },
		{ "to_s", "BEFORE S", EMIT_COUNT },
		{ "count", "BLOCKS", EMIT_COUNT },
	};
	union emit_val rows[TRACE_NR_GAPS * 3];
	unsigned int i;

	for (i = 0; i < g->nr; i++) {
		rows[i * 3].u = i ? 1ull << (i - 1) : 0;
		rows[i * 3 + 1].u = 1ull << i;
		rows[i * 3 + 2].u = g->count[i];
	}
	emit_table(e, "reuse_gap", cols, 3, rows, g->nr);
}

static void say_trace(struct emit *e, const struct trace *t)
{
	emit_note(e, "%s (%s): %" PRIu32 " requests in %.1f minutes", t->path,
		  trace_format_name(t->format), t->nr_requests, (double)trace_end_ns(t) / 60e9);
	if (t->format == TRACE_MOONCAKE)
		emit_note(e, ", %" PRIu64 " blocks, %" PRIu32 " of them distinct", t->nr_blocks,
			  t->nr_distinct);
	emit_note(e, "\n");
}

/* A single run is a document of its own; several are its members in "runs". */
void kvreplay_report(const struct kvreplay *k, const struct trace *t, const struct trace_gaps *g,
		     const struct kvreplay_run *runs, unsigned int nr_runs)
{
	struct row r = { .k = k, .trace = t };
	union emit_val *rows = calloc(nr_runs * MAX_COLS, sizeof(*rows));
	struct emit *e = emit_open(k->json);
	unsigned int i;

	for (i = 0; rows && i < nr_runs; i++) {
		r.run = &runs[i];
		fill(&r);
		memcpy(rows + i * r.nr, r.vals, r.nr * sizeof(*rows));
	}
	if (!rows) {
		emit_note(e, "out of memory\n");
	} else if (k->json && nr_runs == 1) {
		emit_record(e, NULL, r.cols, r.nr, rows);
	} else {
		say_trace(e, t);
		emit_table(e, "runs", r.cols, r.nr, rows, nr_runs);
	}
	if (t->format == TRACE_MOONCAKE && (k->json || nr_runs == 1))
		report_gaps(e, g);
	else if (t->format == TRACE_AZURE)
		emit_null(e, "reuse_gap");
	emit_close(e);
	free(rows);
}
