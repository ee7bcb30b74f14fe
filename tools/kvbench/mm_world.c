/* SPDX-License-Identifier: Apache-2.0 */
#include "mm_world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "trace.h"

#define EXTENT_PAGES 256u
#define PAGE_BYTES   262144ull

static uint64_t mix(uint64_t z)
{
	z += 0x9e3779b97f4a7c15ull;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static uint32_t below(struct world *w, uint32_t n)
{
	return (uint32_t)(mix(w->random++) % n);
}

/* ---- requests ------------------------------------------------------------------------------ */

static void must(bool ok, const char *what)
{
	if (!ok)
		mm_panic(what, __FILE__, __LINE__);
}

static const struct mm_reply *call(struct world *w, struct mm_request *rq, const char *what)
{
	const struct mm_reply *re;


	rq->flags = 0;
	rq->cookie = 0;
	rq->group = 0;
	rq->engine = w->bare.engine;
	rq->cache = w->bare.cache;
	re = bare_call(&w->bare, rq);
	must(!re->result, what);
	return re;
}

/* Nothing but what mm reads of such a request: clearing all of it would be measured, too. */
static void alloc(struct world *w, uint64_t *pages, uint32_t nr)
{
	struct mm_request rq;
	const struct mm_reply *re;

	rq.op = MM_ALLOC;
	rq.alloc = (typeof(rq.alloc)){ .nr_pages = nr };
	re = call(w, &rq, "alloc");
	memcpy(pages, re->pages, nr * sizeof(*pages));
}

static void give_back(struct world *w, const uint64_t *pages, uint32_t nr)
{
	struct mm_request rq;

	rq.op = MM_FREE;
	rq.free = (typeof(rq.free)){ pages, nr };
	call(w, &rq, "free");
}

static uint32_t lookup(struct world *w, const uint32_t *tokens, uint32_t pages, uint32_t *found)
{
	struct mm_request rq = { .op = MM_LOOKUP,
				 .lookup = { .tokens = tokens,
					     .nr_tokens = pages * WORLD_PAGE_TOKENS } };
	const struct mm_reply *re = call(w, &rq, "lookup");

	*found = re->nr_pages;
	return re->lease;
}

static uint32_t commit(struct world *w, uint32_t lease, const uint32_t *tokens,
		       const uint64_t *pages, uint32_t nr)
{
	struct mm_request rq = { .op = MM_COMMIT,
				 .commit = { .lease = lease, .tokens = tokens,
					     .nr_tokens = nr * WORLD_PAGE_TOKENS,
					     .pages = pages, .nr_pages = nr } };

	return call(w, &rq, "commit")->lease;
}

static void unlease(struct world *w, uint32_t lease)
{
	struct mm_request rq = { .op = MM_UNLEASE, .unlease = { &lease, 1 } };

	call(w, &rq, "unlease");
}

/* ---- chains -------------------------------------------------------------------------------- */

/* The first pages of a chain, those of the chains it branches off included. */
static void chain_tokens(const struct world *w, uint32_t c, uint32_t pages, uint32_t *tokens)
{
	for (uint32_t i = pages; i--; ) {
		while (i < w->chain[c].branch)
			c = w->chain[c].parent;
		for (uint32_t k = 0; k < WORLD_PAGE_TOKENS; k++)
			tokens[i * WORLD_PAGE_TOKENS + k] = (uint32_t)mix(
				(uint64_t)w->chain[c].seed << 32 | (i * WORLD_PAGE_TOKENS + k));
	}
}

static struct world_chain new_chain(struct world *w)
{
	uint32_t least = WORLD_LOOKUP_PAGES << below(w, 5), p;
	struct world_chain c = { .pages = least + below(w, least),
				 .seed = (uint32_t)mix(w->random++) };

	if (w->nr_chains && below(w, 2)) {
		p = 1 + below(w, w->nr_chains);
		c.parent = p;
		c.branch = 1 + below(w, w->chain[p].branch + w->chain[p].pages - 1);
		if (c.branch + c.pages > WORLD_MAX_CHAIN)
			c.pages = WORLD_MAX_CHAIN - c.branch;
	}
	return c;
}

/* Of the pages a chain is given one in eight stays free, so that every extent has some. */
static void fill_chain(struct world *w, uint32_t c, uint64_t *spare, uint32_t *nr_spare)
{
	uint32_t branch = w->chain[c].branch, nr = w->chain[c].pages, lease = 0, found, kept = 0;
	static uint64_t pages[2 * WORLD_MAX_CHAIN];

	alloc(w, pages, nr + nr / 8);
	for (uint32_t i = 0; i < nr + nr / 8; i++)
		if (i % 9 == 8 && *nr_spare < w->nr_pages / 8)
			spare[(*nr_spare)++] = pages[i];
		else
			pages[kept++] = pages[i];
	chain_tokens(w, c, branch + nr, w->whole);
	if (branch) {
		lease = lookup(w, w->whole, branch, &found);
		must(found == branch, "a branch");
	}
	unlease(w, commit(w, lease, w->whole + branch * WORLD_PAGE_TOKENS, pages, nr));
}

static int fill(struct world *w)
{
	uint64_t *spare = malloc((w->nr_pages / 8 + 1) * sizeof(*spare));
	uint32_t nr_spare = 0, left = w->nr_pages;

	if (!spare)
		return -ENOMEM;
	while (left >= 2 * WORLD_LOOKUP_PAGES && w->nr_chains + 1 < w->max_chains) {
		struct world_chain c = new_chain(w);

		if (c.pages + c.pages / 8 > left)
			c.pages = left / 9 * 8;
		if (!c.pages)
			break;
		left -= c.pages + c.pages / 8;
		w->chain[++w->nr_chains] = c;
		fill_chain(w, w->nr_chains, spare, &nr_spare);
	}
	for (uint32_t i = 0, n; i < nr_spare; i += n) {
		n = nr_spare - i < WORLD_MAX_CHAIN ? nr_spare - i : WORLD_MAX_CHAIN;
		give_back(w, spare + i, n);
	}
	free(spare);
	return 0;
}

/* ---- the world ----------------------------------------------------------------------------- */

void world_config(struct mm_config *cfg, uint32_t nr_pages)
{
	uint32_t extents = (nr_pages + EXTENT_PAGES - 1) / EXTENT_PAGES;

	*cfg = (struct mm_config){
		.seed = 1, .nr_devices = 1,
		.device[0] = { .pool_bytes = (uint64_t)extents * EXTENT_PAGES * PAGE_BYTES,
			       .extent_bytes = EXTENT_PAGES * PAGE_BYTES,
			       .extent_align = 2ull << 20 },
		.max_tenants = 4, .max_engines = 4, .max_members = 8, .max_caches = 4,
		.max_extents = extents, .max_frames = extents * EXTENT_PAGES,
		.max_nodes = extents * EXTENT_PAGES, .max_leases = 4096, .max_parks = 64,
		.max_keys = 64, .max_pending = 64, .max_tokens = extents * EXTENT_PAGES * 16ull,
		.batch_pages = 2 * WORLD_MAX_CHAIN,
	};
}

static int start(struct world *w)
{
	struct mm_cache_desc desc = { .page_tokens = WORLD_PAGE_TOKENS, .nr_groups = 1,
				      .nr_shards = 1, .group[0] = { .kind = MM_GROUP_FULL },
				      .shard[0] = { .page_bytes = { PAGE_BYTES } } };
	struct mm_config cfg;

	world_config(&cfg, w->nr_pages);
	return bare_start(&w->bare, &cfg, &desc);
}

int world_create(struct world **world, uint32_t nr_pages)
{
	struct world *w = calloc(1, sizeof(*w));
	int err = -ENOMEM;

	if (!w)
		return err;
	w->nr_pages = (nr_pages + EXTENT_PAGES - 1) / EXTENT_PAGES * EXTENT_PAGES;
	w->max_chains = w->nr_pages / 64 + 2;
	w->chain = calloc(w->max_chains, sizeof(*w->chain));
	w->held = malloc(w->nr_pages * sizeof(*w->held));
	if (w->chain && w->held)
		err = start(w);
	if (!err)
		err = fill(w);
	if (err)
		world_destroy(w);
	else
		*world = w;
	return err;
}

void world_destroy(struct world *w)
{
	if (w->bare.mem)
		munmap(w->bare.mem, w->bare.len);
	free(w->chain);
	free(w->held);
	free(w);
}

/* ---- steps --------------------------------------------------------------------------------- */

const char *world_op_name(enum world_op op)
{
	static const char *const names[WORLD_NR_OPS] = {
		"alloc", "free", "lookup, 64 pages", "lookup, 1 page",
		"commit, 1 page", "commit, 64 pages", "evict",
	};

	return names[op];
}

/* A chain whose first pages are all there still; its tokens. */
static void find_chain(struct world *w, uint32_t step)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < 1000 && found < WORLD_LOOKUP_PAGES; i++) {
		uint32_t c = 1 + below(w, w->nr_chains), lease;

		if (w->chain[c].branch + w->chain[c].pages < WORLD_LOOKUP_PAGES)
			continue;
		chain_tokens(w, c, WORLD_LOOKUP_PAGES, w->tokens[step]);
		lease = lookup(w, w->tokens[step], WORLD_LOOKUP_PAGES, &found);
		if (lease)
			unlease(w, lease);
	}
	must(found == WORLD_LOOKUP_PAGES, "no chain is whole");
}

static void hold_all(struct world *w)
{
	struct mm_meminfo mi;
	uint32_t left, n;

	mm_meminfo(w->bare.mm, 0, &mi);
	left = (uint32_t)(mi.frame_free_bytes / PAGE_BYTES);
	for (w->nr_held = 0; left; left -= n, w->nr_held += n) {
		n = left < WORLD_MAX_CHAIN ? left : WORLD_MAX_CHAIN;
		alloc(w, w->held + w->nr_held, n);
	}
}

static void new_tokens(struct world *w, uint32_t step)
{
	for (uint32_t i = 0; i < WORLD_LOOKUP_PAGES * WORLD_PAGE_TOKENS; i++)
		w->tokens[step][i] = (uint32_t)mix(w->random++);
}

void world_prepare(struct world *w, enum world_op op, uint32_t nr_steps)
{
	uint32_t per = op == WORLD_COMMIT_CHAIN ? WORLD_LOOKUP_PAGES : 1, found;

	w->at = 0;
	w->nr_steps = nr_steps;
	if (op == WORLD_EVICT)
		hold_all(w);
	if (op == WORLD_LOOKUP || op == WORLD_LOOKUP_ONE || op == WORLD_COMMIT)
		for (uint32_t i = 0; i < nr_steps; i++)
			find_chain(w, i);
	if (op == WORLD_COMMIT)
		for (uint32_t i = 0; i < nr_steps; i++)
			w->lease[i] = lookup(w, w->tokens[i], WORLD_LOOKUP_PAGES, &found);
	if (op == WORLD_COMMIT || op == WORLD_COMMIT_CHAIN)
		for (uint32_t i = 0; i < nr_steps; i++)
			new_tokens(w, i);
	if (op != WORLD_EVICT && op != WORLD_LOOKUP && op != WORLD_LOOKUP_ONE)
		for (uint32_t i = 0; i < nr_steps; i++)
			alloc(w, w->page + i * per, per);
	if (op == WORLD_ALLOC)
		for (uint32_t i = 0; i < nr_steps; i++)
			give_back(w, w->page + i, 1);
}

void world_pair(struct world *w, uint32_t nr)
{
	alloc(w, w->page, nr);
	give_back(w, w->page, nr);
}

void world_step(struct world *w, enum world_op op)
{
	uint32_t i = w->at++, found;
	uint64_t *pages = w->page + (op == WORLD_COMMIT_CHAIN ? i * WORLD_LOOKUP_PAGES : i);

	switch (op) {
	case WORLD_ALLOC:
	case WORLD_EVICT:
		alloc(w, pages, 1);
		break;
	case WORLD_FREE:
		give_back(w, pages, 1);
		break;
	case WORLD_LOOKUP:
		unlease(w, lookup(w, w->tokens[i], WORLD_LOOKUP_PAGES, &found));
		break;
	case WORLD_LOOKUP_ONE:
		unlease(w, lookup(w, w->tokens[i], 1, &found));
		break;
	case WORLD_COMMIT:
		w->lease[i] = commit(w, w->lease[i], w->tokens[i], pages, 1);
		break;
	default:
		w->lease[i] = commit(w, 0, w->tokens[i], pages, WORLD_LOOKUP_PAGES);
	}
}

void world_finish(struct world *w, enum world_op op)
{
	for (uint32_t i = 0; i < w->nr_steps; i++) {
		if (op == WORLD_ALLOC || op == WORLD_EVICT)
			give_back(w, w->page + i, 1);
		if (op == WORLD_COMMIT || op == WORLD_COMMIT_CHAIN)
			unlease(w, w->lease[i]);
	}
	for (uint32_t i = 0, n; i < w->nr_held; i += n) {
		n = w->nr_held - i < WORLD_MAX_CHAIN ? w->nr_held - i : WORLD_MAX_CHAIN;
		give_back(w, w->held + i, n);
	}
	w->nr_held = 0;
}

void world_steps(struct world *w, enum world_op op, uint32_t nr)
{
	while (nr--)
		world_step(w, op);
}

/* ---- counting ------------------------------------------------------------------------------ */

struct window {
	struct world *world;
	enum world_op op;
	uint32_t nr;
};

static void run_window(void *arg)
{
	const struct window *win = arg;

	world_steps(win->world, win->op, win->nr);
}

void world_count(struct world *w, enum world_op op, uint32_t nr, struct world_count *c)
{
	struct window win = { w, op, nr };

	world_prepare(w, op, nr);
	c->instructions = (double)trace_instructions(run_window, &win) / nr;
	world_finish(w, op);
	world_prepare(w, op, nr);
	win.nr = 1;
	c->lines = (double)trace_lines(w->bare.mem, w->bare.len, nr, run_window, &win) / nr;
	world_finish(w, op);
}
