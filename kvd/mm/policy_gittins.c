// SPDX-License-Identifier: Apache-2.0
/* The leaf whose keeping is worth least goes first (worth.h). The worth of a class is not monotonic
 * in age, so each queue has three candidates: its oldest leaf, its youngest, which is how a small
 * cache refuses what is used once, and the cheapest that a hand going round has met. */
#include "core.h"
#include "policy.h"
#include "worth.h"

#define SKIP	8u	/* nodes with children that are passed over in one go */

static uint32_t gittins_class(const struct mm *mm, uint32_t node, bool tail)
{
	const struct node *n = node_at(mm, node);

	if (!n->hits)
		return tail ? 0 : n->appended ? 2 : 1;
	if (n->hits < 4)
		return 2 + n->hits;
	return n->hits < 8 ? 6 : n->hits < 16 ? 7 : 8;
}

static const struct worth *learnt(const struct mm *mm, const struct node *n)
{
	return worth_at(mm, cache_at(mm, n->cache)->tenant);
}

static uint64_t gittins_worth(const struct mm *mm, uint32_t node)
{
	const struct node *n = node_at(mm, node);
	uint64_t ms = (policy_clock(mm) - n->age) >> 10, due = policy_unpack_ms(n->reuse), w, left;

	if (policy_expired(mm, node))
		return 0;
	w = worth_of(learnt(mm, n), n->class, ms);
	/* An engine that names the time is as good as a hit at that time, until twice the time. */
	if (n->reuse && ms < 2 * due) {
		left = ms < due ? due - ms : 0;
		left = left > due / 4 ? left : due / 4 + 1;
		w = w > WORTH_ONE / left ? w : WORTH_ONE / left;
	}
	return n->prio == 1 ? w << 2 : n->prio ? w << 4 : w;
}

/* Of equal worth the one used before goes first, of one chain the deepest. */
static bool gittins_colder(const struct mm *mm, uint32_t a, uint32_t b)
{
	uint64_t x = gittins_worth(mm, a), y = gittins_worth(mm, b);
	const struct node *m = node_at(mm, a), *n = node_at(mm, b);

	if (x != y)
		return x < y;
	return m->age != n->age ? m->age < n->age : m->depth > n->depth;
}

static bool leaf(const struct mm *mm, uint32_t n)
{
	return n && !node_at(mm, n)->children;
}

static void consider(const struct mm *mm, uint32_t n, uint32_t *best)
{
	if (leaf(mm, n) && n != *best && (!*best || gittins_colder(mm, n, *best)))
		*best = n;
}

static void go_round(const struct mm *mm, struct policy_queue *q)
{
	uint32_t n = q->rove ? q->rove : q->list.head;

	if (leaf(mm, n) && (!leaf(mm, q->low) || gittins_worth(mm, n) < gittins_worth(mm, q->low)))
		q->low = n;
	q->rove = node_at(mm, n)->queue.next;
}

static uint32_t gittins_victim(struct mm *mm, uint32_t bind)
{
	struct policy_bind *b = &bind_at(mm, bind)->policy;
	uint32_t best = NIL;

	for (uint32_t m = b->mask; m; m &= m - 1) {
		struct policy_queue *q = &b->queue[__builtin_ctz(m)];

		for (uint32_t i = 0; i < SKIP && q->old && !leaf(mm, q->old); i++)
			q->old = node_at(mm, q->old)->queue.next;
		for (uint32_t i = 0; i < SKIP && q->young && !leaf(mm, q->young); i++)
			q->young = node_at(mm, q->young)->queue.prev;
		go_round(mm, q);
		consider(mm, q->old, &best);
		consider(mm, q->young, &best);
		consider(mm, q->low, &best);
	}
	return best;
}

const struct policy_ops policy_gittins = { gittins_class, gittins_victim, gittins_worth,
					   gittins_colder };
