// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bound.h"
#include "kvreplay.h"
#include "emit.h"
#include "world.h"

#define LENGTHS_ENGINES 4u /* where nothing is said: one engine alone never waits in mm */

static int complain(const char *what, int err)
{
	fprintf(stderr, "kvreplay: %s: %s\n", what, strerror(-err));
	return err;
}

/* As much as the trace can use. */
static uint64_t enough(const struct kvreplay *k, const struct trace *t)
{
	uint64_t pages = t->nr_distinct;
	uint32_t i;

	if (t->format == TRACE_AZURE)
		for (i = 0; i < t->nr_requests; i++)
			pages += ((uint64_t)t->requests[i].input_tokens +
				  t->requests[i].output_tokens + k->page_tokens - 1) /
				 k->page_tokens;
	else if (k->apart)
		pages *= k->nr_engines;
	return pages > k->nr_engines ? pages : k->nr_engines;
}

static int bound(const struct kvreplay *k, const struct trace *t, struct kvreplay_run *run)
{
	uint32_t nr = k->apart ? k->nr_engines : 1, e;
	uint64_t hits, all = 0;
	int err;

	for (e = 0; e < nr; e++) {
		err = bound_min(t, replay_part(run->res.capacity_pages, nr, e), e, nr, &hits);
		if (err)
			return err;
		all += hits;
	}
	run->min_ratio = t->nr_blocks ? (double)all / (double)t->nr_blocks : 0;
	return 0;
}

static int one_run(const struct kvreplay *k, const struct trace *t, struct kvreplay_run *run)
{
	struct replay_config cfg = { .capacity_pages = run->capacity_pages,
				     .page_bytes = k->page_bytes,
				     .page_tokens = k->page_tokens,
				     .policy = run->policy,
				     .nr_engines = k->nr_engines,
				     .apart = k->apart,
				     .wait_ns = k->wait_ns,
				     .decode_rate = k->decode_rate,
				     .progress = kvreplay_progress };
	int err = t->format == TRACE_AZURE ? replay_lengths(t, &cfg, &run->res)
					   : replay_prefixes(t, &cfg, &run->res);

	run->min_ratio = NAN;
	return !err && k->bound && t->format == TRACE_MOONCAKE ? bound(k, t, run) : err;
}

/* How fast, for whoever watches: not in the output, which is the same each time. */
static void say_speed(const struct kvreplay *k, const struct kvreplay_run *runs, unsigned int nr)
{
	uint64_t ns = 0, ops = 0;
	unsigned int i;

	for (i = 0; i < nr; i++) {
		ns += runs[i].res.wall_ns;
		ops += runs[i].res.ops;
	}
	if (!k->json || isatty(STDERR_FILENO))
		fprintf(stderr,
			"%u runs in %.2f s, %.0f operations of the memory manager a second\n", nr,
			(double)ns / 1e9, ns ? (double)ops * 1e9 / (double)ns : 0);
}

static unsigned int plan(const struct kvreplay *k, const struct trace *t, struct kvreplay_run *runs)
{
	unsigned int nr = 0, c;
	uint32_t p;

	for (p = 0; p < MM_NR_POLICIES; p++)
		for (c = 0; c < k->nr_capacities && k->policy[p]; c++)
			runs[nr++] = (struct kvreplay_run){
				.policy = p,
				.capacity_pages = k->capacities[c] == UINT64_MAX ? enough(k, t)
										 : k->capacities[c],
			};
	return nr;
}

static int run_all(const struct kvreplay *k, const struct trace *t, struct kvreplay_run *runs,
		   unsigned int nr)
{
	char what[64];
	unsigned int i;
	int err = 0;

	for (i = 0; i < nr && !err; i++) {
		snprintf(what, sizeof(what), "%s at %llu pages", world_policy_name(runs[i].policy),
			 (unsigned long long)runs[i].capacity_pages);
		kvreplay_progress_begin(what, (uint64_t)i * t->nr_requests,
					(uint64_t)nr * t->nr_requests);
		err = one_run(k, t, &runs[i]);
		kvreplay_progress_end();
		if (err == -EINVAL)
			fprintf(stderr, "kvreplay: %s: no memory manager is that large\n", what);
		else if (err)
			complain(what, err);
	}
	return err;
}

static int check(struct kvreplay *k, const struct trace *t)
{
	unsigned int c;

	if (k->apart && !k->nr_engines && t->format == TRACE_MOONCAKE) {
		fprintf(stderr, "kvreplay: --private needs --engines N\n");
		return -EINVAL;
	}
	if (!k->nr_engines)
		k->nr_engines = t->format == TRACE_AZURE ? LENGTHS_ENGINES : 1;
	if (k->bound && t->format == TRACE_AZURE) {
		fprintf(stderr, "kvreplay: --bound: %s has no block ids, so there are no hits\n",
			t->path);
		return -EINVAL;
	}
	for (c = 0; c < k->nr_capacities && k->apart; c++)
		if (k->capacities[c] < k->nr_engines) {
			fprintf(stderr, "kvreplay: %llu pages are not one for each of %u engines\n",
				(unsigned long long)k->capacities[c], k->nr_engines);
			return -EINVAL;
		}
	if (k->plot_path && t->format == TRACE_AZURE) {
		fprintf(stderr, "kvreplay: --plot: %s has no block ids, so there are no hits\n",
			t->path);
		return -EINVAL;
	}
	return 0;
}

int main(int argc, char **argv)
{
	static struct kvreplay_run runs[KVREPLAY_MAX_CAPACITIES * MM_NR_POLICIES];
	struct kvreplay k;
	struct trace t;
	struct trace_gaps gaps;
	char why[TRACE_WHY_LEN];
	unsigned int nr;
	int err;

	kvreplay_options(&k, argc, argv);
	err = trace_read(&t, k.trace_path, k.format, k.page_tokens, why);
	if (err)
		fprintf(stderr, "kvreplay: %s\n", why);
	else if (check(&k, &t))
		exit(2);	/* options that do not go together, or not with this trace */
	if (!err) {
		nr = plan(&k, &t, runs);
		err = run_all(&k, &t, runs, nr);
	}
	if (!err) {
		err = trace_gaps(&t, &gaps);
		if (err)
			complain("reuse gaps", err);
	}
	if (!err && k.plot_path)
		err = kvreplay_plot(&k, runs, nr);
	if (!err) {
		kvreplay_report(&k, &t, &gaps, runs, nr);
		say_speed(&k, runs, nr);
	}
	trace_free(&t);
	return err ? 1 : 0;
}
