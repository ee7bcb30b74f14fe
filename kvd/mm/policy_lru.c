// SPDX-License-Identifier: Apache-2.0
/* Least recently used goes first. Hints weigh the time: a page of low priority ages four times as
 * fast, one of high priority four times as slowly; one past its time to live goes at once. */
#include "core.h"
#include "policy.h"

static uint32_t lru_class(const struct mm *mm, uint32_t node, bool tail)
{
	(void)mm, (void)node, (void)tail;
	return 0;
}

static uint64_t idle(const struct mm *mm, uint32_t node)
{
	const struct node *n = node_at(mm, node);
	uint64_t t = policy_clock(mm) - n->age;

	if (policy_expired(mm, node))
		return UINT64_MAX;
	return n->prio == 1 ? t << 2 : n->prio ? t : t << 4;
}

static bool lru_colder(const struct mm *mm, uint32_t a, uint32_t b)
{
	uint64_t x = idle(mm, a), y = idle(mm, b);

	return x != y ? x > y : node_at(mm, a)->age < node_at(mm, b)->age;
}

static uint32_t lru_victim(struct mm *mm, uint32_t bind)
{
	const struct policy_bind *b = &bind_at(mm, bind)->policy;
	uint32_t best = NIL;

	for (uint32_t m = b->mask; m; m &= m - 1) {
		uint32_t n = b->queue[__builtin_ctz(m)].list.head;

		if (!best || lru_colder(mm, n, best))
			best = n;
	}
	return best;
}

static uint64_t lru_worth(const struct mm *mm, uint32_t node)
{
	uint64_t t = idle(mm, node) >> 12;

	return (1ull << 40) / (t + 1);
}

const struct policy_ops policy_lru = { lru_class, lru_victim, lru_worth, lru_colder };
