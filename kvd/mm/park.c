// SPDX-License-Identifier: Apache-2.0
#include "core.h"
#include "lookup.h"

static void hang(struct mm *mm, uint32_t park, uint32_t node)
{
	struct park *p = park_at(mm, park);

	p->node = node;
	p->node_link = (struct link){ NIL, NIL };
	if (!node)
		return;
	p->node_link.next = node_at(mm, node)->parks;
	if (p->node_link.next)
		park_at(mm, p->node_link.next)->node_link.prev = park;
	node_at(mm, node)->parks = park;
	for (uint32_t n = node; n && !node_at(mm, n)->parked; n = node_at(mm, n)->parent)
		node_at(mm, n)->parked = 1;
}

/* Up to the first node that may still be needed: where chains branch it stays marked. */
static void unmark(struct mm *mm, uint32_t n)
{
	while (n && node_at(mm, n)->parked && !node_at(mm, n)->parks) {
		const struct node *kid = node_at(mm, node_at(mm, n)->children);

		if (node_at(mm, n)->children && (kid->parked || kid->left || kid->right))
			return;
		node_at(mm, n)->parked = 0;
		n = node_at(mm, n)->parent;
	}
}

static void unhang(struct mm *mm, uint32_t park)
{
	struct park *p = park_at(mm, park);

	if (!p->node)
		return;
	if (p->node_link.prev)
		park_at(mm, p->node_link.prev)->node_link.next = p->node_link.next;
	else
		node_at(mm, p->node)->parks = p->node_link.next;
	if (p->node_link.next)
		park_at(mm, p->node_link.next)->node_link.prev = p->node_link.prev;
}

void park_free(struct mm *mm, uint32_t park)
{
	unhang(mm, park);
	unmark(mm, park_at(mm, park)->node);
	park_list_del(mm, &engine_at(mm, park_at(mm, park)->engine)->parks, park);
	pool_put(mm, &mm->parks, park);
}

void park_move_up(struct mm *mm, uint32_t node)
{
	uint32_t park;

	while ((park = node_at(mm, node)->parks)) {
		unhang(mm, park);
		hang(mm, park, node_at(mm, node)->parent);
	}
}

static uint32_t find(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp, int *err)
{
	uint32_t engine = engine_find(mm, rq->engine, rp, err);
	uint32_t park = engine ? pool_find(mm, &mm->parks, rq->park.park) : NIL;

	if (engine && (!park || park_at(mm, park)->engine != engine)) {
		*err = reply_error(rp, -ENOENT, MM_NO_SUCH_ID, rq->park.park, 0);
		return NIL;
	}
	return park;
}

int park_op_park(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	int err = 0;
	uint32_t engine = engine_find(mm, rq->engine, rp, &err), lease, park;
	struct park *p;

	if (!engine)
		return err;
	lease = lease_find(mm, engine, rq->park.lease);
	if (!lease)
		return reply_error(rp, -ENOENT, MM_NO_SUCH_ID, rq->park.lease, 0);
	err = reply_share_of(rp, max_parks, engine_at(mm, engine)->parks.nr, 1,
			     pool_free(&mm->parks));
	if (err)
		return err;
	park = pool_get(mm, &mm->parks);
	p = park_at(mm, park);
	p->engine = engine;
	p->bind = lease_at(mm, lease)->bind;
	park_list_add_tail(mm, &engine_at(mm, engine)->parks, park);
	hang(mm, park, lease_at(mm, lease)->node);
	lease_release(mm, lease);
	rp->park = pool_id(mm, &mm->parks, park);
	rp->cache = pool_id(mm, &mm->caches, bind_at(mm, p->bind)->cache);
	return 0;
}

int park_op_resume(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	int err = 0;
	uint32_t park = find(mm, rq, rp, &err), node;

	if (!park)
		return err;
	if (rq->flags & ~MM_LOOKUP_ADOPT)
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, rq->flags, 0);
	node = park_at(mm, park)->node;
	unhang(mm, park);	/* its own park must not keep a tail from being adopted */
	err = lookup_chain(mm, park_at(mm, park)->bind, node, rq->flags, rp);
	if (err) {
		hang(mm, park, node);
		return err;
	}
	unmark(mm, node);
	park_at(mm, park)->node = NIL;
	rp->park = rq->park.park;
	park_free(mm, park);
	return 0;
}

int park_op_unpark(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	int err = 0;
	uint32_t park = find(mm, rq, rp, &err);

	if (park)
		park_free(mm, park);
	return err;
}

int mm_park_shape(const struct mm *mm, uint32_t engine_id, uint32_t park_id, uint32_t *nr_pages,
		  uint32_t *nr_groups)
{
	uint32_t engine = pool_find(mm, &mm->engines, engine_id);
	uint32_t park = pool_find(mm, &mm->parks, park_id), node;

	if (!engine || !park || park_at(mm, park)->engine != engine)
		return -ENOENT;
	node = park_at(mm, park)->node;
	*nr_pages = node ? node_at(mm, node)->depth + 1 : 0;
	*nr_groups = cache_at(mm, bind_at(mm, park_at(mm, park)->bind)->cache)->desc.nr_groups;
	return 0;
}
