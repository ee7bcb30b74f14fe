// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core.h"
#include "policy.h"

static uint32_t depth_of(const struct mm *mm, uint32_t node)
{
	return node ? node_at(mm, node)->depth + 1 : 0;
}

uint32_t lease_from(const struct mm *mm, uint32_t lease)
{
	const struct lease *l = lease_at(mm, lease);
	uint32_t windows = cache_at(mm, l->cache)->window_mask, from = UINT32_MAX;

	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++)
		if (windows >> g & 1 && l->drop[g] < from)
			from = l->drop[g];
	return from;
}

/* Pages [from, to) of the chain that ends at node. */
static void each_node(struct mm *mm, uint32_t node, uint32_t from, uint32_t to,
		      void (*fn)(struct mm *, uint32_t))
{
	for (uint32_t n = node; n && node_at(mm, n)->depth >= from; n = node_at(mm, n)->parent)
		if (node_at(mm, n)->depth < to)
			fn(mm, n);
}

uint32_t lease_create(struct mm *mm, uint32_t bind, uint32_t node, const uint32_t *drop)
{
	uint32_t lease = pool_get(mm, &mm->leases);
	struct lease *l = lease_at(mm, lease);
	struct bind *b = bind_at(mm, bind);

	MM_ASSERT(lease && node);
	l->engine = b->engine;
	l->bind = bind;
	l->cache = b->cache;
	l->node = node;
	if (drop)
		memcpy(l->drop, drop, sizeof(l->drop));
	lease_list_add_tail(mm, &engine_at(mm, l->engine)->leases, lease);
	node_pin(mm, node);
	each_node(mm, node, lease_from(mm, lease), UINT32_MAX, node_need);
	mm->vmstat.leases++;
	return lease;
}

void lease_release(struct mm *mm, uint32_t lease)
{
	struct lease *l = lease_at(mm, lease);

	each_node(mm, l->node, lease_from(mm, lease), UINT32_MAX, node_unneed);
	node_unpin(mm, l->node);
	lease_list_del(mm, &engine_at(mm, l->engine)->leases, lease);
	pool_put(mm, &mm->leases, lease);
}

void lease_move(struct mm *mm, uint32_t lease, uint32_t node)
{
	struct lease *l = lease_at(mm, lease);
	uint32_t from = lease_from(mm, lease), had = depth_of(mm, l->node), old = l->node;

	node_pin(mm, node);
	each_node(mm, node, from > had ? from : had, UINT32_MAX, node_need);
	l->node = node;
	node_unpin(mm, old);
	pool_renew(mm, &mm->leases, lease);
}

uint32_t lease_find(const struct mm *mm, uint32_t engine, uint32_t id)
{
	uint32_t lease = pool_find(mm, &mm->leases, id);

	return lease && lease_at(mm, lease)->engine == engine ? lease : NIL;
}

int lease_room(const struct mm *mm, uint32_t engine, uint32_t nr, struct mm_reply *rp)
{
	if (!nr)
		return 0;
	return reply_share_of(rp, max_leases, engine_at(mm, engine)->leases.nr, nr,
			      pool_free(&mm->leases));
}

static uint32_t find(struct mm *mm, const struct mm_request *rq, uint32_t id,
		     struct mm_reply *rp, int *err)
{
	uint32_t engine = engine_find(mm, rq->engine, rp, err);
	uint32_t lease = engine ? lease_find(mm, engine, id) : NIL;

	if (engine && !lease)
		*err = reply_error(rp, -ENOENT, MM_NO_SUCH_ID, id, 0);
	return lease;
}

int lease_op_dup(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	int err = 0;
	uint32_t old = find(mm, rq, rq->lease.lease, rp, &err), node, depth, drop[MM_MAX_GROUPS];
	const struct lease *l = lease_at(mm, old);

	if (!old)
		return err;
	node = l->node;
	depth = rq->lease.depth_pages ? rq->lease.depth_pages : depth_of(mm, node);
	if (depth > depth_of(mm, node))
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, depth, depth_of(mm, node));
	err = lease_room(mm, l->engine, 1, rp);
	if (err)
		return err;
	while (depth_of(mm, node) > depth)
		node = node_at(mm, node)->parent;
	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++)
		drop[g] = l->drop[g] < depth ? l->drop[g] : depth;
	rp->lease = pool_id(mm, &mm->leases, lease_create(mm, l->bind, node, drop));
	rp->cache = pool_id(mm, &mm->caches, l->cache);
	rp->nr_pages = depth;
	return 0;
}

int lease_op_unlease(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	int err = 0;
	uint32_t engine = engine_find(mm, rq->engine, rp, &err), nr = rq->unlease.nr_leases, i;
	const uint32_t *ids = rq->unlease.leases;

	if (!engine)
		return err;
	if (nr > mm->cfg.batch_pages)
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, nr, mm->cfg.batch_pages);
	for (i = 0; i < nr && !err; i++) {
		uint32_t lease = lease_find(mm, engine, ids[i]);

		if (!lease)
			err = reply_error(rp, -ENOENT, MM_NO_SUCH_ID, ids[i], 0);
		else if (lease_at(mm, lease)->mark)
			err = reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, ids[i], 0);
		else
			lease_at(mm, lease)->mark = true;
	}
	/* The one that failed is marked only if an equal one before it was. */
	for (uint32_t k = 0; k < i; k++) {
		uint32_t lease = lease_find(mm, engine, ids[k]);

		if (lease)
			lease_at(mm, lease)->mark = false;
	}
	for (uint32_t k = 0; k < nr && !err; k++)
		lease_release(mm, lease_find(mm, engine, ids[k]));
	return err;
}

int lease_op_drop_head(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	int err = 0;
	uint32_t lease = find(mm, rq, rq->lease.lease, rp, &err), g = rq->group, from;
	uint32_t depth = rq->lease.depth_pages;
	struct lease *l = lease_at(mm, lease);

	if (!lease)
		return err;
	if (g >= MM_MAX_GROUPS || !(cache_at(mm, l->cache)->window_mask >> g & 1))
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, g, 0);
	if (depth > depth_of(mm, l->node))
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, depth, depth_of(mm, l->node));
	if (depth <= l->drop[g])
		return 0;
	for (uint32_t n = l->node; n && node_at(mm, n)->depth >= l->drop[g];
	     n = node_at(mm, n)->parent)
		if (node_at(mm, n)->depth < depth)
			node_drop(mm, n, g);
	from = lease_from(mm, lease);
	l->drop[g] = depth;
	each_node(mm, l->node, from, lease_from(mm, lease), node_unneed);
	return 0;
}

/* Every node of the range is pinned by the lease, so none of them changes its queue. */
int lease_op_hint(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	int err = 0;
	uint32_t lease = find(mm, rq, rq->hint.lease, rp, &err);
	const struct mm_hint *h = &rq->hint.hint;
	uint32_t depth, to;

	if (!lease)
		return err;
	depth = depth_of(mm, lease_at(mm, lease)->node);
	to = h->to_page ? h->to_page : depth;
	if (h->from_page >= to || to > depth)
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, to, depth);
	if (h->priority > 2)
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, h->priority, 2);
	for (uint32_t n = lease_at(mm, lease)->node; n && node_at(mm, n)->depth >= h->from_page;
	     n = node_at(mm, n)->parent) {
		struct node *no = node_at(mm, n);

		if (no->depth >= to)
			continue;
		no->prio = h->priority & 3;
		no->reuse = policy_pack_ms(h->reuse_ms) & 255;
		no->ttl = policy_pack_ms(h->ttl_ms) & 255;
	}
	rp->nr_pages = to - h->from_page;
	return 0;
}
