// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core.h"
#include "lookup.h"
#include "policy.h"

struct hit {
	uint32_t bind, cache;
	uint32_t depth;			/* full pages */
	uint32_t tail, tail_tokens;	/* node whose first tokens match what follows */
	uint32_t start[MM_MAX_GROUPS];	/* first page each window group needs */
};

const uint8_t *lookup_page_key(struct key_walk *w, uint32_t page)
{
	while (w->at < w->nr && w->keys[w->at].page < page)
		w->at++;
	if (w->at < w->nr && w->keys[w->at].page == page)
		return w->keys[w->at].digest;
	return NULL;
}

bool lookup_keys_valid(const struct mm_page_key *keys, uint32_t nr, uint32_t from, uint32_t to)
{
	for (uint32_t i = 0; i < nr; i++) {
		if (keys[i].page < from || keys[i].page >= to)
			return false;
		if (i && keys[i].page <= keys[i - 1].page)
			return false;
	}
	return true;
}

/* ---- the hit rule -------------------------------------------------------------------------- */

static uint32_t pages_of(uint32_t tokens, uint32_t page_tokens)
{
	return tokens / page_tokens + (tokens % page_tokens != 0);
}

/* Pages of a window group behind a hit of depth pages. */
static uint32_t window_start(const struct cache *c, uint32_t g, uint32_t depth)
{
	uint32_t pages = pages_of(c->desc.group[g].window_tokens, c->desc.page_tokens);

	return c->desc.group[g].kind == MM_GROUP_WINDOW && depth > pages ? depth - pages : 0;
}

/* Adds page i to the runs of present pages; is [0, i] a hit? False in *on: full groups end here. */
static bool hit_step(const struct cache *c, const struct node *n, uint32_t i, uint32_t *run,
		     bool *on)
{
	uint32_t here = 0;
	bool hit = true;

	for (uint32_t g = 0; g < c->desc.nr_groups; g++)
		here |= (n->loc[g] ? 1u : 0) << g;
	for (uint32_t w = c->window_mask; w; w &= w - 1) {
		uint32_t g = (uint32_t)__builtin_ctz(w);

		run[g] = here >> g & 1 ? run[g] + 1 : 0;
		hit = hit && run[g] >= i + 1 - window_start(c, g, i + 1);
	}
	*on = !(c->full_mask & ~here);
	return hit && !((c->full_mask | c->state_mask) & ~here);
}

/* ---- what a hit is given ------------------------------------------------------------------- */

static bool whole(const struct mm *mm, const struct cache *c, uint32_t n)
{
	for (uint32_t g = 0; g < c->desc.nr_groups; g++)
		if (!node_at(mm, n)->loc[g])
			return false;
	return true;
}

static bool adoptable(const struct mm *mm, const struct hit *h)
{
	const struct cache *c = cache_at(mm, h->cache);
	const struct node *n = node_at(mm, h->tail);

	if (n->nr_tokens == c->desc.page_tokens || h->tail_tokens != n->nr_tokens)
		return false;
	if (n->pins || n->children || n->parks)
		return false;
	for (uint32_t g = 0; g < c->desc.nr_groups; g++)
		if (extent_at(mm, frame_at(mm, n->loc[g])->extent)->bind != h->bind)
			return false;
	return true;
}

static void adopt(struct mm *mm, const struct hit *h, uint64_t *pages)
{
	struct node *n = node_at(mm, h->tail);
	uint32_t nr = cache_at(mm, h->cache)->desc.nr_groups;

	policy_del(mm, h->tail);
	for (uint32_t g = 0; g < nr; g++) {
		uint32_t f = n->loc[g];

		n->loc[g] = NIL;
		frame_set_state(mm, f, FRAME_HELD);
		frame_at(mm, f)->node = NIL;
		frame_renew(mm, f);
		pages[g] = frame_id(mm, f);
	}
	node_destroy(mm, h->tail);
	mm->vmstat.pages_adopt += nr;
}

static void give_tail(struct mm *mm, const struct hit *h, bool take, struct mm_reply *rp)
{
	const struct node *n = node_at(mm, h->tail);
	uint32_t nr = cache_at(mm, h->cache)->desc.nr_groups, drop[MM_MAX_GROUPS];
	uint64_t *pages = reply_words(mm, nr);

	rp->tail_tokens = h->tail_tokens;
	rp->tail_pages = pages;
	rp->tail_adopted = take;
	if (take) {
		adopt(mm, h, pages);
		return;
	}
	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++)
		drop[g] = n->depth;
	for (uint32_t g = 0; g < nr; g++)
		pages[g] = frame_id(mm, n->loc[g]);
	rp->tail_lease = pool_id(mm, &mm->leases, lease_create(mm, h->bind, h->tail, drop));
}

static int give(struct mm *mm, struct hit *h, uint32_t flags, struct mm_reply *rp)
{
	const struct cache *c = cache_at(mm, h->cache);
	bool take = h->tail && flags & MM_LOOKUP_ADOPT && adoptable(mm, h);
	uint32_t want = (h->depth ? 1 : 0) + (h->tail && !take ? 1 : 0), *path = core_path(mm);
	int err = lease_room(mm, bind_at(mm, h->bind)->engine, want, rp);
	uint64_t *pages;

	if (err)
		return err;
	rp->cache = pool_id(mm, &mm->caches, h->cache);
	rp->nr_pages = h->depth;
	rp->nr_groups = c->desc.nr_groups;
	if (h->depth) {
		for (uint32_t g = 0; g < MM_MAX_GROUPS; g++)
			h->start[g] = window_start(c, g, h->depth);
		rp->pages = pages = reply_words(mm, h->depth * c->desc.nr_groups);
		for (uint32_t g = 0; g < c->desc.nr_groups; g++)
			for (uint32_t i = 0; i < h->depth; i++)
				*pages++ = i < h->start[g] ? 0 :
					   frame_id(mm, node_at(mm, path[i])->loc[g]);
		rp->lease = pool_id(mm, &mm->leases,
				    lease_create(mm, h->bind, path[h->depth - 1], h->start));
	}
	if (h->tail)
		give_tail(mm, h, take, rp);
	return 0;
}

/* ---- LOOKUP -------------------------------------------------------------------------------- */

static void find_tail(const struct mm *mm, struct hit *h, const struct node_query *q)
{
	const struct cache *c = cache_at(mm, h->cache);
	uint32_t near[2];

	node_neighbours(mm, q, &near[0], &near[1]);
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t match = near[i] && whole(mm, c, near[i]) ? node_match(mm, near[i], q) : 0;

		if (c->state_mask && match && match < node_at(mm, near[i])->nr_tokens)
			continue;	/* a snapshot is for exactly its length */
		if (match > h->tail_tokens) {
			h->tail = near[i];
			h->tail_tokens = match;
		}
	}
}

static bool query_key(const struct mm *mm, struct key_walk *w, uint32_t page, struct node_query *q)
{
	const uint8_t *digest = w->nr ? lookup_page_key(w, page) : NULL;

	q->key = digest ? key_find(mm, digest) : 0;
	return q->key != KEY_UNKNOWN;
}

static void descend(const struct mm *mm, const struct mm_request *rq, struct hit *h)
{
	const struct cache *c = cache_at(mm, h->cache);
	struct key_walk w = { rq->lookup.keys, rq->lookup.nr_keys, 0 };
	uint32_t page_tokens = c->desc.page_tokens, *path = core_path(mm);
	uint32_t nr = rq->lookup.nr_tokens / page_tokens, rest;
	struct node_query q = { .cache = h->cache, .tokens = rq->lookup.tokens,
				.nr_tokens = page_tokens };
	uint32_t run[MM_MAX_GROUPS] = { 0 };
	bool on = true;

	if (nr > mm->cfg.batch_pages)
		nr = mm->cfg.batch_pages;
	for (uint32_t i = 0; i < nr; i++, q.tokens += page_tokens) {
		if (!query_key(mm, &w, i, &q))
			break;
		path[i] = node_find(mm, &q);
		if (!path[i])
			break;
		if (hit_step(c, node_at(mm, path[i]), i, run, &on))
			h->depth = i + 1;
		if (!on)
			break;
		q.parent = path[i];
	}
	if (!c->tails || h->depth == mm->cfg.batch_pages)
		return;
	rest = rq->lookup.nr_tokens - h->depth * page_tokens;
	q.parent = h->depth ? path[h->depth - 1] : NIL;
	q.tokens = rq->lookup.tokens + h->depth * page_tokens;
	q.nr_tokens = rest < page_tokens ? rest : page_tokens;
	w.at = 0;
	if (rest && query_key(mm, &w, h->depth, &q))
		find_tail(mm, h, &q);
}

int lookup_op(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	struct hit h = { 0 };
	int err = 0;
	uint32_t engine = engine_find(mm, rq->engine, rp, &err), hit_tokens;
	struct cache *c;

	if (!engine)
		return err;
	h.bind = cache_bind(mm, engine, rq->cache, rp, &err);
	if (!h.bind)
		return err;
	h.cache = bind_at(mm, h.bind)->cache;
	c = cache_at(mm, h.cache);
	if (rq->flags & ~MM_LOOKUP_ADOPT || rq->lookup.nr_tokens > INT32_MAX ||
	    !lookup_keys_valid(rq->lookup.keys, rq->lookup.nr_keys, 0,
			       pages_of(rq->lookup.nr_tokens, c->desc.page_tokens)))
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, 0, 0);
	descend(mm, rq, &h);
	err = give(mm, &h, rq->flags, rp);
	if (err)
		return err;
	hit_tokens = h.depth * c->desc.page_tokens + h.tail_tokens;
	mm->vmstat.lookups++;
	mm->vmstat.lookup_tokens += rq->lookup.nr_tokens;
	mm->vmstat.hit_tokens += hit_tokens;
	mm->vmstat.hit_pages += h.depth;
	mm->vmstat.tail_hits += h.tail_tokens != 0;
	c->lookup_tokens += rq->lookup.nr_tokens;
	c->hit_tokens += hit_tokens;
	engine_at(mm, engine)->lookup_tokens += rq->lookup.nr_tokens;
	engine_at(mm, engine)->hit_tokens += hit_tokens;
	tenant_at(mm, c->tenant)->lookup_tokens += rq->lookup.nr_tokens;
	tenant_at(mm, c->tenant)->hit_tokens += hit_tokens;
	return 0;
}

int lookup_chain(struct mm *mm, uint32_t bind, uint32_t node, uint32_t flags, struct mm_reply *rp)
{
	struct hit h = { .bind = bind, .cache = bind_at(mm, bind)->cache };
	const struct cache *c = cache_at(mm, h.cache);
	uint32_t run[MM_MAX_GROUPS] = { 0 }, *path = core_path(mm), nr, last = node;
	bool on = true;

	if (node && node_at(mm, node)->nr_tokens < c->desc.page_tokens)
		last = node_at(mm, node)->parent;
	nr = last ? node_at(mm, last)->depth + 1 : 0;
	for (uint32_t n = last; n; n = node_at(mm, n)->parent)
		if (node_at(mm, n)->depth < mm->cfg.batch_pages)
			path[node_at(mm, n)->depth] = n;
	for (uint32_t i = 0; i < nr && i < mm->cfg.batch_pages && on; i++)
		if (hit_step(c, node_at(mm, path[i]), i, run, &on))
			h.depth = i + 1;
	if (last != node && h.depth == nr && nr < mm->cfg.batch_pages && c->tails &&
	    whole(mm, c, node)) {
		h.tail = node;
		h.tail_tokens = node_at(mm, node)->nr_tokens;
	}
	return give(mm, &h, flags, rp);
}
