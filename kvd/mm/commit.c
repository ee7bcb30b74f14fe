// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core.h"
#include "commit.h"
#include "lookup.h"
#include "policy.h"

struct plan {
	const struct mm_request *rq;
	uint32_t engine, bind, cache;
	uint32_t lease;			/* 0: starts at the root */
	uint32_t base;			/* node appended to */
	uint32_t first_page;		/* index of the first page committed */
	uint32_t nr_old;		/* pages whose node exists */
	uint32_t at;			/* the last of them, or base */
};

/* Page i of the commit, as a question to the children of parent. The key is left out. */
static struct node_query page_query(const struct mm *mm, const struct plan *p, uint32_t i,
				    uint32_t parent)
{
	uint32_t page_tokens = cache_at(mm, p->cache)->desc.page_tokens;
	uint32_t rest = p->rq->commit.nr_tokens - i * page_tokens;

	return (struct node_query){
		.cache = p->cache, .parent = parent,
		.tokens = p->rq->commit.tokens + i * page_tokens,
		.nr_tokens = rest < page_tokens ? rest : page_tokens,
	};
}

/* ---- plan ---------------------------------------------------------------------------------- */

static int check_shape(struct mm *mm, struct plan *p, struct mm_reply *rp)
{
	const struct mm_request *rq = p->rq;
	const struct cache *c = cache_at(mm, p->cache);
	uint32_t pt = c->desc.page_tokens, nr = rq->commit.nr_pages;
	uint64_t room = (uint64_t)nr * pt, tokens = rq->commit.nr_tokens;
	bool partial = rq->flags & MM_COMMIT_PARTIAL;

	if (rq->flags & ~MM_COMMIT_PARTIAL || !nr || nr > mm->cfg.batch_pages || tokens > room ||
	    tokens <= room - pt || (tokens < room && !partial))
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, tokens, nr);
	if (rq->commit.lease) {
		p->lease = lease_find(mm, p->engine, rq->commit.lease);
		if (!p->lease || lease_at(mm, p->lease)->cache != p->cache)
			return reply_error(rp, -ENOENT, MM_NO_SUCH_ID, rq->commit.lease, 0);
		p->base = lease_at(mm, p->lease)->node;
		p->first_page = node_at(mm, p->base)->depth + 1;
		if (node_at(mm, p->base)->nr_tokens < pt)
			return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, rq->commit.lease, 0);
	}
	if (!lookup_keys_valid(rq->commit.keys, rq->commit.nr_keys, p->first_page,
			       p->first_page + nr))
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, 0, 0);
	return 0;
}

/* Every page held, of the right group, named once; a node has a frame in some group. */
static int check_pages(struct mm *mm, const struct plan *p, struct mm_reply *rp)
{
	const struct mm_cache_desc *desc = &cache_at(mm, p->cache)->desc;
	const uint64_t *ids = p->rq->commit.pages;
	uint32_t nr = p->rq->commit.nr_pages, total = nr * desc->nr_groups, done = 0, f;
	int err = 0;

	for (uint32_t i = 0; i < nr; i++) {
		uint64_t any = 0;

		for (uint32_t g = 0; g < desc->nr_groups; g++)
			any |= ids[g * nr + i];
		if (!any)
			return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, i, 0);
	}
	for (; done < total && !err; done++) {
		if (ids[done])
			err = frame_take_held(mm, ids[done], p->bind, done / nr, &f, rp);
		else if (desc->group[done / nr].kind == MM_GROUP_FULL)
			err = reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, done, 0);
	}
	frame_unmark(mm, ids, err ? done - 1 : total);
	return err;
}

static void find_old(struct mm *mm, struct plan *p)
{
	struct key_walk w = { p->rq->commit.keys, p->rq->commit.nr_keys, 0 };
	uint32_t *path = core_path(mm);

	p->at = p->base;
	for (p->nr_old = 0; p->nr_old < p->rq->commit.nr_pages; p->nr_old++) {
		struct node_query q = page_query(mm, p, p->nr_old, p->at);
		const uint8_t *digest = lookup_page_key(&w, p->first_page + p->nr_old);
		uint32_t n;

		q.key = digest ? key_find(mm, digest) : 0;
		n = q.key == KEY_UNKNOWN ? NIL : node_find(mm, &q);
		if (!n)
			break;
		path[p->nr_old] = p->at = n;
	}
}

/* ---- room ---------------------------------------------------------------------------------- */

/* Distinct keys of the new pages that no pinned node carries: eviction may take the others away. */
static uint32_t new_keys(const struct mm *mm, const struct plan *p)
{
	const struct mm_page_key *keys = p->rq->commit.keys;
	uint32_t nr = 0;

	for (uint32_t i = 0; i < p->rq->commit.nr_keys; i++) {
		uint32_t k = 0, known = key_find(mm, keys[i].digest);

		if (keys[i].page < p->first_page + p->nr_old ||
		    (known != KEY_UNKNOWN && key_at(mm, known)->nr_pinned))
			continue;
		while (k < i && memcmp(keys[k].digest, keys[i].digest, MM_KEY_BYTES))
			k++;
		nr += k == i;
	}
	return nr;
}

static uint32_t new_units(const struct mm *mm, const struct plan *p)
{
	uint32_t sum = 0;

	for (uint32_t i = p->nr_old; i < p->rq->commit.nr_pages; i++)
		sum += node_units(page_query(mm, p, i, NIL).nr_tokens);
	return sum;
}

/* Would evicting every unpinned node, but for those the commit builds on, make room enough? */
static int check_room(struct mm *mm, const struct plan *p, struct mm_reply *rp)
{
	uint32_t nodes = mm->nodes.max - mm->nr_pinned_nodes, keys = mm->nr_idle_keys;
	uint32_t units = mm->token_buddy.units - mm->nr_pinned_units;
	uint32_t want_keys = new_keys(mm, p);
	int err;

	for (uint32_t n = p->at; n && !node_at(mm, n)->pins; n = node_at(mm, n)->parent) {
		nodes--;
		units -= node_units(node_at(mm, n)->nr_tokens);
		keys -= node_at(mm, n)->key && keys;
	}
	err = lease_room(mm, p->engine, p->lease ? 0 : 1, rp);
	if (err)
		return err;
	if (nodes < p->rq->commit.nr_pages - p->nr_old)
		return reply_table_full(rp, mm, max_nodes);
	if (units < new_units(mm, p))
		return reply_table_full(rp, mm, max_tokens);
	if (!want_keys)
		return 0;
	return reply_share_of(rp, max_keys, engine_at(mm, p->engine)->nr_keys, want_keys,
			      pool_free(&mm->keys) + keys);
}

/* The coldest node of a tenant; of all for 0. */
static uint32_t coldest_of(struct mm *mm, uint32_t tenant)
{
	uint32_t n = NIL;

	for (uint32_t b = pool_next(mm, &mm->binds, 0); b; b = pool_next(mm, &mm->binds, b)) {
		uint32_t cold;

		if (tenant && cache_at(mm, bind_at(mm, b)->cache)->tenant != tenant)
			continue;
		cold = policy_victim(mm, b);
		if (cold && (!n || policy_colder(mm, cold, n)))
			n = cold;
	}
	return n;
}

/* Own coldest node first, else the tenant's, else the coldest of all. */
static bool evict_one(struct mm *mm, uint32_t bind)
{
	uint32_t n = policy_victim(mm, bind), budget = UINT32_MAX;

	if (!n)
		n = coldest_of(mm, cache_at(mm, bind_at(mm, bind)->cache)->tenant);
	if (!n)
		n = coldest_of(mm, NIL);
	if (n)
		node_evict(mm, n, &budget);
	return n != NIL;
}

static uint32_t *runs_of(const struct mm *mm)
{
	return core_path(mm) + mm->cfg.batch_pages + 1;
}

/* Token runs and keys of the new pages, evicting as needed. Keys end in path[]. */
static int make_room(struct mm *mm, const struct plan *p, struct mm_reply *rp)
{
	struct key_walk w = { p->rq->commit.keys, p->rq->commit.nr_keys, 0 };
	uint32_t nr = p->rq->commit.nr_pages, *run = runs_of(mm), *key = core_path(mm), i;

	while (mm->nodes.max - mm->nodes.nr_used < nr - p->nr_old)
		MM_ASSERT(evict_one(mm, p->bind));
	for (i = p->nr_old; i < nr; i++) {
		uint32_t units = node_units(page_query(mm, p, i, NIL).nr_tokens);
		const uint8_t *digest = lookup_page_key(&w, p->first_page + i);

		do
			run[i] = buddy_alloc(mm, &mm->token_buddy, units);
		while (!run[i] && evict_one(mm, p->bind));
		if (!run[i])
			goto undo;
		do
			key[i] = digest ? key_get(mm, p->engine, digest) : 0;
		while (digest && !key[i] && evict_one(mm, p->bind));
		MM_ASSERT(!digest || key[i]);
	}
	return 0;
undo:
	while (i-- > p->nr_old) {
		buddy_free(mm, &mm->token_buddy, run[i],
			   node_units(page_query(mm, p, i, NIL).nr_tokens));
		if (key[i])
			key_put(mm, key[i]);
	}
	return reply_table_full(rp, mm, max_tokens);
}

/* ---- publish ------------------------------------------------------------------------------- */

static void publish_page(struct mm *mm, const struct plan *p, uint32_t i, uint32_t n,
			 uint64_t *chain)
{
	uint32_t nr = p->rq->commit.nr_pages;
	uint32_t nr_groups = cache_at(mm, p->cache)->desc.nr_groups;

	for (uint32_t g = 0; g < nr_groups; g++) {
		uint64_t id = p->rq->commit.pages[g * nr + i];
		uint32_t have = node_at(mm, n)->loc[g], f = NIL;

		if (id && have) {
			mm->vmstat.pages_dup++;
		} else if (id) {
			struct mm_reply unused;

			frame_resolve(mm, id, &f, &unused);
			node_set_loc(mm, n, g, f);
			mm->vmstat.pages_commit++;
			engine_at(mm, p->engine)->commits++;
		}
		chain[g * nr + i] = frame_id(mm, node_at(mm, n)->loc[g]);
	}
}

/* Is more found than is new? What is committed piece by piece is as its first piece. */
static bool appends(const struct mm *mm, const struct plan *p)
{
	const struct node *at = node_at(mm, p->at);

	if (!p->at)
		return false;
	if (!at->hits && !at->age)
		return at->appended;
	return at->depth + 1 >= p->rq->commit.nr_pages - p->nr_old;
}

static uint32_t publish(struct mm *mm, const struct plan *p, uint64_t *chain)
{
	bool appended = appends(mm, p);
	uint32_t *path = core_path(mm), *run = runs_of(mm), tail = p->at;

	for (uint32_t i = 0; i < p->rq->commit.nr_pages; i++) {
		if (i >= p->nr_old) {
			struct node_query q = page_query(mm, p, i, tail);

			q.key = path[i];
			path[i] = tail = node_create(mm, &q, run[i]);
			node_at(mm, tail)->appended = appended;
		}
		publish_page(mm, p, i, path[i], chain);
	}
	return tail;
}

int commit_op(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	struct plan p = { .rq = rq };
	int err = 0;
	uint32_t nr = rq->commit.nr_pages, nr_groups, tail, lease;
	uint64_t *chain;

	p.engine = engine_find(mm, rq->engine, rp, &err);
	p.bind = p.engine ? cache_bind(mm, p.engine, rq->cache, rp, &err) : NIL;
	if (!p.bind)
		return err;
	p.cache = bind_at(mm, p.bind)->cache;
	nr_groups = cache_at(mm, p.cache)->desc.nr_groups;
	err = check_shape(mm, &p, rp);
	if (!err)
		err = check_pages(mm, &p, rp);
	if (err)
		return err;
	find_old(mm, &p);
	err = check_room(mm, &p, rp);
	if (err)
		return err;
	node_pin(mm, p.at);	/* what exists must survive making room for the rest */
	err = make_room(mm, &p, rp);
	if (!err) {
		rp->pages = chain = reply_words(mm, nr * nr_groups);
		tail = publish(mm, &p, chain);
		lease = p.lease ? p.lease : lease_create(mm, p.bind, tail, NULL);
		if (p.lease)
			lease_move(mm, lease, tail);
		for (uint32_t i = p.nr_old; i < nr; i++)
			node_unpin(mm, core_path(mm)[i]);
		rp->lease = pool_id(mm, &mm->leases, lease);
		rp->nr_pages = nr;
		rp->nr_groups = nr_groups;
	}
	if (p.at)
		node_unpin(mm, p.at);
	return err;
}
