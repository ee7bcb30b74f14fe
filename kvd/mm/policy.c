// SPDX-License-Identifier: Apache-2.0
#include "core.h"
#include "policy.h"
#include "worth.h"

#define CLOCK_MAX	((1ull << 48) - (1ull << 32))
#define SAMPLE		16u
#define LONG_TOKENS	32768u	/* attention over so many costs as much as all the rest */

static const struct policy_ops *ops(const struct mm *mm)
{
	return mm->cfg.policy == MM_POLICY_GITTINS ? &policy_gittins : &policy_lru;
}

/* ---- time ---------------------------------------------------------------------------------- */

uint64_t policy_clock(const struct mm *mm)
{
	uint64_t now = mm->now_ns >> 10;

	now = now < CLOCK_MAX ? now : CLOCK_MAX;
	return now > mm->clock ? now : mm->clock;
}

/* 5 bits exponent, 3 bits mantissa. */
uint32_t policy_pack_ms(uint32_t ms)
{
	uint32_t shift = ms < 16 ? 0 : 28 - (uint32_t)__builtin_clz(ms);
	uint64_t up = ms + (1ull << shift) - 1;

	if (ms < 8)
		return ms;
	shift = up >> (shift + 4) ? shift + 1 : shift;
	return (shift + 1) << 3 | (uint32_t)(up >> shift & 7);
}

uint64_t policy_unpack_ms(uint32_t packed)
{
	return packed < 8 ? packed : (8ull | (packed & 7)) << ((packed >> 3) - 1);
}

bool policy_expired(const struct mm *mm, uint32_t node)
{
	const struct node *n = node_at(mm, node);

	return n->ttl && (policy_clock(mm) - n->age) >> 10 >= policy_unpack_ms(n->ttl);
}

/* ---- queues -------------------------------------------------------------------------------- */

static inline uint32_t home_of(const struct mm *mm, const struct node *n)
{
	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++)
		if (n->loc[g])
			return extent_at(mm, frame_at(mm, n->loc[g])->extent)->bind;
	return NIL;
}

static inline uint32_t queue_of(const struct node *n)
{
	if (n->ttl)
		return POLICY_TTL + (n->ttl >> 5);
	if (n->prio != 1)
		return n->prio ? POLICY_HIGH : POLICY_LOW;
	return n->reuse ? POLICY_REUSE : n->class;
}

uint32_t policy_home(const struct mm *mm, uint32_t node)
{
	return home_of(mm, node_at(mm, node));
}

uint32_t policy_queue_of(const struct mm *mm, uint32_t node)
{
	return queue_of(node_at(mm, node));
}

/* Does a stand before b in a queue they share? The nodes of one chain have one age. */
static bool before(const struct mm *mm, uint32_t a, uint32_t b)
{
	const struct node *x = node_at(mm, a), *y = node_at(mm, b);

	return x->age != y->age ? x->age < y->age : x->depth > y->depth;
}

void policy_add_hot(struct mm *mm, uint32_t node, bool tail)
{
	struct node *n = node_at(mm, node);
	struct worth *w = worth_at(mm, cache_at(mm, n->cache)->tenant);
	uint32_t home = home_of(mm, n), at;
	struct policy_bind *b = &bind_at(mm, home)->policy;
	struct policy_queue *q;

	n->class = ops(mm)->class(mm, node, tail) & 15;
	if (w)
		worth_enter(w, n->class, n->age >> 10);
	if (!home)
		return;
	at = queue_of(n);
	q = &b->queue[at];
	queue_list_add_tail(mm, &q->list, node);
	b->mask |= 1u << at;
	if (!q->old)
		q->old = node;
	if (!n->children)
		q->young = node;
}

void policy_add_cold(struct mm *mm, uint32_t node)
{
	uint32_t home = policy_home(mm, node), at = policy_queue_of(mm, node);
	struct policy_bind *b = &bind_at(mm, home)->policy;

	if (!home)
		return;
	queue_list_add_head(mm, &b->queue[at].list, node);
	b->mask |= 1u << at;
	b->queue[at].old = node;
	if (!b->queue[at].young)
		b->queue[at].young = node;
}

void policy_del(struct mm *mm, uint32_t node)
{
	const struct node *n = node_at(mm, node);
	uint32_t home = home_of(mm, n), at = queue_of(n);
	struct policy_queue *q = &bind_at(mm, home)->policy.queue[at];

	if (!home)
		return;
	if (q->old == node)
		q->old = n->queue.next;
	if (q->young == node)
		q->young = n->queue.prev;
	if (q->rove == node)
		q->rove = n->queue.next;
	if (q->low == node)	/* its neighbours are as old as it was */
		q->low = n->queue.next ? n->queue.next : n->queue.prev;
	queue_list_del(mm, &q->list, node);
	if (!q->list.nr)
		bind_at(mm, home)->policy.mask &= ~(1u << at);
}

void policy_leaf(struct mm *mm, uint32_t node)
{
	uint32_t home = policy_home(mm, node), at = policy_queue_of(mm, node);
	struct policy_queue *q = &bind_at(mm, home)->policy.queue[at];

	if (!home)
		return;
	if (!q->old || before(mm, node, q->old))
		q->old = node;
	if (!q->young || before(mm, q->young, node))
		q->young = node;
}

/* ---- choice -------------------------------------------------------------------------------- */

uint32_t policy_victim(struct mm *mm, uint32_t bind)
{
	const struct policy_bind *b = &bind_at(mm, bind)->policy;
	uint32_t n = b->mask ? ops(mm)->victim(mm, bind) : NIL;

	if (!n && b->mask)
		n = b->queue[__builtin_ctz(b->mask)].list.head;
	return n;
}

uint32_t policy_oldest(const struct mm *mm, uint32_t bind)
{
	const struct policy_bind *b = &bind_at(mm, bind)->policy;
	uint32_t best = NIL;

	for (uint32_t m = b->mask; m; m &= m - 1) {
		uint32_t n = b->queue[__builtin_ctz(m)].list.head;

		if (!best || node_at(mm, n)->age < node_at(mm, best)->age)
			best = n;
	}
	return best;
}

bool policy_colder(const struct mm *mm, uint32_t a, uint32_t b)
{
	return ops(mm)->colder(mm, a, b);
}

uint64_t policy_last_use(const struct mm *mm, uint32_t bind)
{
	const struct policy_bind *b = &bind_at(mm, bind)->policy;
	uint64_t last = 0;

	for (uint32_t m = b->mask; m; m &= m - 1) {
		uint32_t n = b->queue[__builtin_ctz(m)].list.tail;

		if (node_at(mm, n)->age > last)
			last = node_at(mm, n)->age;
	}
	return last;
}

/* Tokens of a page, more of them where each looks back on many. */
static uint64_t cost(const struct mm *mm, const struct node *n)
{
	uint64_t back = (uint64_t)n->depth * cache_at(mm, n->cache)->desc.page_tokens;

	return n->nr_tokens + n->nr_tokens * back / LONG_TOKENS;
}

uint64_t policy_extent_worth(const struct mm *mm, uint32_t ext)
{
	const struct extent *x = extent_at(mm, ext);
	uint32_t step = x->fresh / SAMPLE ? x->fresh / SAMPLE : 1, nr = 0;
	uint64_t sum = 0;

	for (uint32_t i = 0, slot = 0; i < SAMPLE && slot < x->fresh; i++, slot += step) {
		const struct frame *f = frame_at(mm, x->base + slot);
		const struct node *n = node_at(mm, f->node);
		uint64_t w, c;

		nr++;
		if (f->state != FRAME_CACHED)
			continue;
		w = n->pins ? UINT32_MAX : ops(mm)->worth(mm, f->node);
		c = cost(mm, n);
		w = w < UINT32_MAX ? w : UINT32_MAX;
		sum += w * (c < 1u << 20 ? c : 1u << 20) >> 8;
	}
	return nr ? sum / nr * x->fresh : 0;
}

/* ---- the proof ----------------------------------------------------------------------------- */

static bool lies_in(const struct mm *mm, uint32_t mark, uint32_t bind, uint32_t at)
{
	return !mark || (pool_live(mm, &mm->nodes, mark) && !node_at(mm, mark)->pins &&
			 policy_home(mm, mark) == bind && policy_queue_of(mm, mark) == at);
}

void policy_check(const struct mm *mm, uint32_t bind)
{
	const struct policy_bind *b = &bind_at(mm, bind)->policy;

	for (uint32_t at = 0; at < POLICY_QUEUES; at++) {
		const struct policy_queue *q = &b->queue[at];
		uint32_t nr = 0, prev = NIL;

		MM_ASSERT((b->mask >> at & 1) == (q->list.nr != 0));
		for (uint32_t n = q->list.head; n; n = node_at(mm, n)->queue.next) {
			MM_ASSERT(node_at(mm, n)->queue.prev == prev && !node_at(mm, n)->pins);
			MM_ASSERT(policy_home(mm, n) == bind && policy_queue_of(mm, n) == at);
			MM_ASSERT(++nr <= q->list.nr);
			prev = n;
		}
		MM_ASSERT(nr == q->list.nr && q->list.tail == prev);
		MM_ASSERT(lies_in(mm, q->old, bind, at) && lies_in(mm, q->young, bind, at));
		MM_ASSERT(lies_in(mm, q->low, bind, at) && lies_in(mm, q->rove, bind, at));
	}
}
