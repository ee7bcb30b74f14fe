// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "replay.h"
#include "world.h"

#define WAIT_NS 1000000000ull /* for extents of other engines to come, which takes no time */

struct replay {
	const struct trace *trace;
	const struct replay_config *cfg;
	struct replay_result *res;
	struct world *worlds;
	uint32_t nr_worlds;
	uint8_t *known; /* a bit for each block ever committed, a row for each world */
	uint64_t row_bytes;
	double area; /* pages x ns */
	uint64_t now_ns, used_pages;
};

uint64_t replay_part(uint64_t capacity_pages, uint32_t nr_engines, uint32_t e)
{
	return capacity_pages / nr_engines + (e < capacity_pages % nr_engines);
}

static void ignore(struct world *w, const struct mm_reply *rp)
{
	(void)w;
	(void)rp;
}

static int open_worlds(struct replay *r)
{
	const struct replay_config *cfg = r->cfg;
	struct world_config wc = { .page_bytes = cfg->page_bytes,
				   .most_pages = r->trace->nr_distinct,
				   .batch_pages = r->trace->max_blocks,
				   .policy = cfg->policy,
				   .nr_engines = cfg->apart ? 1 : cfg->nr_engines,
				   .max_waiting = cfg->nr_engines,
				   .on_reply = ignore };
	uint32_t nr = cfg->apart ? cfg->nr_engines : 1;
	int err;

	r->row_bytes = r->trace->nr_distinct / 8 + 1;
	r->worlds = calloc(nr, sizeof(*r->worlds));
	r->known = calloc(nr, r->row_bytes);
	if (!r->worlds || !r->known)
		return -ENOMEM;
	for (; r->nr_worlds < nr; r->nr_worlds++) {
		wc.capacity_pages = replay_part(cfg->capacity_pages, nr, r->nr_worlds);
		err = world_open(&r->worlds[r->nr_worlds], &wc);
		if (err)
			return err;
		r->res->capacity_pages += r->worlds[r->nr_worlds].capacity_pages;
	}
	return 0;
}

static void note_commit(struct replay *r, const struct world *w, const uint32_t *blocks,
			uint32_t nr)
{
	uint8_t *row = r->known + (uint64_t)(w - r->worlds) * r->row_bytes;
	uint32_t i;

	for (i = 0; i < nr; i++) {
		r->res->refaults += row[blocks[i] / 8] >> blocks[i] % 8 & 1;
		row[blocks[i] / 8] |= (uint8_t)(1u << blocks[i] % 8);
	}
}

/* Pages for the blocks that were not there, and their commit; *lease moves to the new tail. */
static int fill(struct replay *r, struct world *w, uint32_t engine, const uint32_t *blocks,
		uint32_t nr, uint32_t *lease)
{
	struct mm_request rq = { .op = MM_ALLOC,
				 .alloc = { .nr_pages = nr, .deadline_ns = w->now_ns + WAIT_NS } };
	struct mm_reply rp;
	int err = world_call(w, engine, &rq, &rp);

	if (err == -ENOMEM || err == -EDQUOT) {
		r->res->refused++;
		return 0;
	}
	if (err)
		return err;
	rq = (struct mm_request){ .op = MM_COMMIT,
				  .commit = { .lease = *lease,
					      .tokens = blocks,
					      .nr_tokens = nr,
					      .pages = rp.pages,
					      .nr_pages = nr } };
	err = world_call(w, engine, &rq, &rp);
	if (err)
		return err;
	*lease = rp.lease;
	note_commit(r, w, blocks, nr);
	return 0;
}

static void count_hits(struct replay *r, const struct trace_request *q, uint32_t hit)
{
	uint64_t tokens = (uint64_t)hit * r->cfg->page_tokens;

	r->res->blocks += q->nr_blocks;
	r->res->tokens += q->input_tokens;
	r->res->hit_blocks += hit;
	r->res->hit_tokens += tokens < q->input_tokens ? tokens : q->input_tokens;
}

static int request(struct replay *r, uint32_t i)
{
	const struct trace_request *q = &r->trace->requests[i];
	const uint32_t *blocks = r->trace->blocks + q->first_block;
	uint32_t engine = r->cfg->apart ? 0 : i % r->cfg->nr_engines, nr = q->nr_blocks, lease;
	struct world *w = &r->worlds[r->cfg->apart ? i % r->cfg->nr_engines : 0];
	struct mm_request rq = { .op = MM_LOOKUP, .lookup = { .tokens = blocks, .nr_tokens = nr } };
	struct mm_reply rp;
	uint32_t hit;
	int err;

	world_advance(w, q->at_ns);
	err = nr ? world_call(w, engine, &rq, &rp) : 0;
	if (err || !nr) {
		count_hits(r, q, 0);
		return err;
	}
	hit = rp.nr_pages;
	lease = rp.lease;
	count_hits(r, q, hit);
	if (nr > w->capacity_pages) {
		r->res->oversized++;
		nr = (uint32_t)w->capacity_pages;
	}
	err = hit < nr ? fill(r, w, engine, blocks + hit, nr - hit, &lease) : 0;
	if (err || !lease)
		return err;
	rq = (struct mm_request){ .op = MM_UNLEASE,
				  .unlease = { .leases = &lease, .nr_leases = 1 } };
	return world_call(w, engine, &rq, &rp);
}

static void note_use(struct replay *r, uint64_t now_ns)
{
	uint64_t used = 0;
	uint32_t k;

	for (k = 0; k < r->nr_worlds; k++)
		used += world_used_pages(&r->worlds[k]);
	r->area += (double)r->used_pages * (double)(now_ns - r->now_ns);
	r->now_ns = now_ns;
	r->used_pages = used;
	if (used > r->res->peak_pages)
		r->res->peak_pages = used;
}

static uint64_t wall_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int run(struct replay *r)
{
	uint64_t end = trace_end_ns(r->trace);
	uint32_t i;
	int err = 0;

	for (i = 0; i < r->trace->nr_requests && !err; i++) {
		err = request(r, i);
		note_use(r, r->trace->requests[i].at_ns);
		if (r->cfg->progress)
			r->cfg->progress(r->cfg->ctx, i + 1);
	}
	r->res->mean_pages = end ? r->area / (double)end : (double)r->used_pages;
	for (i = 0; i < r->nr_worlds; i++) {
		r->res->ops += r->worlds[i].nr_ops;
		r->res->evictions += mm_vmstat(r->worlds[i].mm)->pages_evict;
	}
	return err;
}

int replay_prefixes(const struct trace *t, const struct replay_config *cfg,
		    struct replay_result *res)
{
	struct replay r = { .trace = t, .cfg = cfg, .res = res };
	uint64_t from = wall_ns();
	int err;

	*res = (struct replay_result){ 0 };
	err = open_worlds(&r);
	if (!err)
		err = run(&r);
	while (r.nr_worlds)
		world_close(&r.worlds[--r.nr_worlds]);
	free(r.worlds);
	free(r.known);
	res->wall_ns = wall_ns() - from;
	return err;
}
