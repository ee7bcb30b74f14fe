// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core.h"
#include "policy.h"
#include "workingset.h"

uint32_t node_units(uint32_t nr_tokens)
{
	return (nr_tokens + NODE_UNIT_TOKENS - 1) / NODE_UNIT_TOKENS;
}

uint32_t *node_tokens(const struct mm *mm, uint32_t n)
{
	return (uint32_t *)((uintptr_t)mm + mm->off_tokens) +
	       (uint64_t)(node_at(mm, n)->tokens - 1) * NODE_UNIT_TOKENS;
}

/* ---- the ordered tree of siblings ---------------------------------------------------------- */

static uint32_t *children_of(const struct mm *mm, uint32_t cache, uint32_t parent)
{
	return parent ? &node_at(mm, parent)->children : &cache_at(mm, cache)->children;
}

static uint32_t common(const uint32_t *a, const uint32_t *b, uint32_t nr)
{
	uint32_t i = 0;

	while (i + 16 <= nr && !memcmp(a + i, b + i, 16 * sizeof(*a)))
		i += 16;
	while (i < nr && a[i] == b[i])
		i++;
	return i;
}

static uint32_t min32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

uint32_t node_match(const struct mm *mm, uint32_t n, const struct node_query *q)
{
	const struct node *no = node_at(mm, n);

	if (no->key != q->key)
		return 0;
	return common(q->tokens, node_tokens(mm, n), min32(q->nr_tokens, no->nr_tokens));
}

static int compare(const struct mm *mm, const struct node_query *q, uint32_t n)
{
	const struct node *no = node_at(mm, n);
	const uint32_t *tokens = node_tokens(mm, n);
	uint32_t nr = min32(q->nr_tokens, no->nr_tokens), i;

	if (q->key != no->key)
		return q->key < no->key ? -1 : 1;
	i = common(q->tokens, tokens, nr);
	if (i < nr)
		return q->tokens[i] < tokens[i] ? -1 : 1;
	return (q->nr_tokens > no->nr_tokens) - (q->nr_tokens < no->nr_tokens);
}

static uint64_t priority(const struct mm *mm, uint32_t n)
{
	return core_mix(mm->cfg.seed ^ n);
}

uint32_t node_find(const struct mm *mm, const struct node_query *q)
{
	uint32_t n = *children_of(mm, q->cache, q->parent);

	while (n) {
		const struct node *no = node_at(mm, n);
		const uint32_t *tokens = node_tokens(mm, n);
		int c;

		/* Mostly an only child is the one asked for, and its own is asked for next. */
		__builtin_prefetch(node_at(mm, no->children));
		if (no->key != q->key)
			c = q->key < no->key ? -1 : 1;
		else if (tokens[0] != q->tokens[0])
			c = q->tokens[0] < tokens[0] ? -1 : 1;
		else if (no->nr_tokens == q->nr_tokens &&
			 !memcmp(tokens, q->tokens, q->nr_tokens * sizeof(*tokens)))
			break;
		else
			c = compare(mm, q, n);
		n = c < 0 ? no->left : no->right;
	}
	return n;
}

void node_neighbours(const struct mm *mm, const struct node_query *q, uint32_t *before,
		     uint32_t *after)
{
	uint32_t n = *children_of(mm, q->cache, q->parent);

	*before = *after = NIL;
	while (n) {
		int c = compare(mm, q, n);

		if (!c) {
			*before = *after = n;
			return;
		}
		if (c < 0) {
			*after = n;
			n = node_at(mm, n)->left;
		} else {
			*before = n;
			n = node_at(mm, n)->right;
		}
	}
}

static void tree_insert(struct mm *mm, const struct node_query *q, uint32_t n)
{
	uint32_t *ref = children_of(mm, q->cache, q->parent), *less, *more, t;

	while (*ref && priority(mm, *ref) >= priority(mm, n))
		ref = compare(mm, q, *ref) < 0 ? &node_at(mm, *ref)->left :
						 &node_at(mm, *ref)->right;
	t = *ref;
	*ref = n;
	less = &node_at(mm, n)->left;
	more = &node_at(mm, n)->right;
	while (t) {
		if (compare(mm, q, t) < 0) {
			*more = t;
			more = &node_at(mm, t)->left;
			t = *more;
		} else {
			*less = t;
			less = &node_at(mm, t)->right;
			t = *less;
		}
	}
	*less = *more = NIL;
}

static void tree_remove(struct mm *mm, uint32_t n)
{
	const struct node *no = node_at(mm, n);
	struct node_query q = { no->cache, no->parent, no->key, node_tokens(mm, n),
				no->nr_tokens };
	uint32_t *ref = children_of(mm, no->cache, no->parent);
	uint32_t less = no->left, more = no->right;

	while (*ref != n)
		ref = compare(mm, &q, *ref) < 0 ? &node_at(mm, *ref)->left :
						  &node_at(mm, *ref)->right;
	while (less && more) {
		if (priority(mm, less) >= priority(mm, more)) {
			*ref = less;
			ref = &node_at(mm, less)->right;
			less = *ref;
		} else {
			*ref = more;
			ref = &node_at(mm, more)->left;
			more = *ref;
		}
	}
	*ref = less ? less : more;
}

/* ---- birth and death ----------------------------------------------------------------------- */

/* The node comes with one pin of the caller's; its key is a reference the caller already took. */
uint32_t node_create(struct mm *mm, const struct node_query *q, uint32_t unit)
{
	uint32_t n = pool_get(mm, &mm->nodes);
	struct cache *c = cache_at(mm, q->cache);
	struct node *no = node_at(mm, n);

	MM_ASSERT(n);
	no->cache = q->cache & 0xffff;
	no->parent = q->parent;
	no->key = q->key & 0xffffff;
	no->prio = 1;
	no->nr_tokens = q->nr_tokens & 0x1ffff;
	no->depth = q->parent ? node_at(mm, q->parent)->depth + 1 : 0;
	no->tokens = unit;
	memcpy(node_tokens(mm, n), q->tokens, q->nr_tokens * sizeof(*q->tokens));
	tree_insert(mm, q, n);
	workingset_create(mm, n);
	c->nr_nodes++;
	c->cached_tokens += q->nr_tokens;
	node_pin(mm, n);
	return n;
}

static bool has_frame(const struct node *n)
{
	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++)
		if (n->loc[g])
			return true;
	return false;
}

static void frame_out(struct mm *mm, uint32_t n, uint32_t group)
{
	uint32_t f = node_at(mm, n)->loc[group];

	node_at(mm, n)->loc[group] = NIL;
	frame_set_state(mm, f, FRAME_FREE);
	frame_at(mm, f)->node = NIL;
	mm->vmstat.pages_evict++;
}

static void destroy_one(struct mm *mm, uint32_t n)
{
	struct node *no = node_at(mm, n);
	struct cache *c = cache_at(mm, no->cache);

	MM_ASSERT(!no->pins && !no->children);
	policy_del(mm, n);
	if (has_frame(no))
		workingset_evict(mm, n);
	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++)
		if (no->loc[g])
			frame_out(mm, n, g);
	park_move_up(mm, n);
	tree_remove(mm, n);
	if (no->parent && !node_at(mm, no->parent)->children && !node_at(mm, no->parent)->pins)
		policy_leaf(mm, no->parent);
	buddy_free(mm, &mm->token_buddy, no->tokens, node_units(no->nr_tokens));
	c->nr_nodes--;
	c->cached_tokens -= no->nr_tokens;
	if (no->key)
		key_put(mm, no->key);
	pool_put(mm, &mm->nodes, n);
}

void node_destroy(struct mm *mm, uint32_t n)
{
	while (n) {
		uint32_t parent = node_at(mm, n)->parent;
		const struct node *p = node_at(mm, parent);

		destroy_one(mm, n);
		/* A parent that only led here goes as well. */
		n = parent && !p->pins && !p->children && !has_frame(p) ? parent : NIL;
	}
}

void node_set_loc(struct mm *mm, uint32_t n, uint32_t group, uint32_t f)
{
	struct node *no = node_at(mm, n);

	MM_ASSERT(no->pins && !no->loc[group]);
	no->loc[group] = f;
	no->dropped &= (uint8_t)~(1u << group);
	frame_at(mm, f)->node = n;
	frame_set_state(mm, f, FRAME_CACHED);
}

/* Takes one frame from a node that is unpinned or has it COLD. */
void node_strip(struct mm *mm, uint32_t n, uint32_t group)
{
	struct node *no = node_at(mm, n);
	uint32_t f = no->loc[group], home = policy_home(mm, n), next;

	MM_ASSERT(!no->pins || frame_at(mm, f)->state == FRAME_COLD);
	if (no->pins) {
		frame_out(mm, n, group);
		return;
	}
	no->loc[group] = NIL;
	next = policy_home(mm, n);
	no->loc[group] = f;
	if (next != home)
		policy_del(mm, n);
	frame_out(mm, n, group);
	if (next != home)
		policy_add_cold(mm, n);
	if (!next && !no->children)
		node_destroy(mm, n);
}

void node_move(struct mm *mm, uint32_t n, uint32_t group, uint32_t to)
{
	uint32_t from = node_at(mm, n)->loc[group], home = policy_home(mm, n);

	MM_ASSERT(!node_at(mm, n)->pins && frame_at(mm, from)->state == FRAME_CACHED);
	node_at(mm, n)->loc[group] = to;
	MM_ASSERT(policy_home(mm, n) == home);	/* it keeps its place in its queue */
	frame_at(mm, to)->node = n;
	frame_set_state(mm, to, FRAME_CACHED);
	frame_set_state(mm, from, FRAME_FREE);
	frame_at(mm, from)->node = NIL;
}

void node_evict(struct mm *mm, uint32_t n, uint32_t *budget)
{
	uint32_t at = n;

	MM_ASSERT(!node_at(mm, n)->pins);
	while (*budget) {
		uint32_t parent = node_at(mm, at)->parent;

		if (node_at(mm, at)->children) {
			at = node_at(mm, at)->children;
			continue;
		}
		(*budget)--;
		if (at == n) {
			node_destroy(mm, n);
			return;
		}
		destroy_one(mm, at);
		at = parent;
	}
}

/* ---- pins ---------------------------------------------------------------------------------- */

static uint32_t nr_groups(const struct mm *mm, uint32_t n)
{
	return cache_at(mm, node_at(mm, n)->cache)->desc.nr_groups;
}

/* Frames whose node was pinned or unpinned, of one extent a group: a chain mostly lies in few. */
struct tally {
	uint32_t ext[MM_MAX_GROUPS], nr[MM_MAX_GROUPS];
	uint32_t nr_groups, nodes, units;
};

static void tally_flush(struct mm *mm, struct tally *t, uint32_t g, bool pin)
{
	struct extent *x = extent_at(mm, t->ext[g]);
	uint32_t by = pin ? t->nr[g] : -t->nr[g];

	if (!t->nr[g])
		return;
	slab_count_pinned(slab_of(mm, x), x, by);
	t->nr[g] = 0;
	if (!pin && mm->waiting.head)
		pending_wake(mm, x->bind, x->group);
	if (extent_takeable(x) != x->on_take)
		extent_update(mm, t->ext[g]);
}

static inline void tally_node(struct mm *mm, struct tally *t, const struct node *no, bool pin)
{
	for (uint32_t g = 0; g < t->nr_groups; g++) {
		const struct frame *fr = frame_at(mm, no->loc[g]);

		if (!no->loc[g] || fr->state != FRAME_CACHED)
			continue;
		if (fr->extent != t->ext[g]) {
			tally_flush(mm, t, g, pin);
			t->ext[g] = fr->extent;
		}
		t->nr[g]++;
	}
	t->nodes++;
	t->units += node_units(no->nr_tokens);
}

static void tally_end(struct mm *mm, struct tally *t, bool pin)
{
	for (uint32_t g = 0; g < t->nr_groups; g++)
		tally_flush(mm, t, g, pin);
	mm->nr_pinned_nodes += pin ? t->nodes : -t->nodes;
	mm->nr_pinned_units += pin ? t->units : -t->units;
}

void node_pin(struct mm *mm, uint32_t n)
{
	uint64_t clock = policy_clock(mm);
	struct tally t;

	if (!n || node_at(mm, n)->pins++)
		return;
	t = (struct tally){ .nr_groups = nr_groups(mm, n) };
	do {
		struct node *no = node_at(mm, n);

		policy_del(mm, n);
		workingset_use(mm, n, clock);
		tally_node(mm, &t, no, true);
		key_pin(mm, no->key);
		n = no->parent;
	} while (n && !node_at(mm, n)->pins++);
	tally_end(mm, &t, true);
}

void node_unpin(struct mm *mm, uint32_t n)
{
	uint64_t now = policy_clock(mm);
	bool tail = true;
	struct tally t;

	mm->clock = now > mm->clock ? now : mm->clock + 1;
	MM_ASSERT(node_at(mm, n)->pins);
	if (--node_at(mm, n)->pins)
		return;
	t = (struct tally){ .nr_groups = nr_groups(mm, n) };
	do {
		struct node *no = node_at(mm, n);
		uint32_t parent;

		no->age = mm->clock & ((1ull << 48) - 1);
		tally_node(mm, &t, no, false);
		key_unpin(mm, no->key);
		parent = no->parent;
		policy_add_hot(mm, n, tail);
		tail = false;
		/* Its frames may all have gone cold and been taken while it was pinned. */
		if (!no->children && !has_frame(no))
			destroy_one(mm, n);
		n = parent;
		MM_ASSERT(!n || node_at(mm, n)->pins);
	} while (n && !--node_at(mm, n)->pins);
	tally_end(mm, &t, false);
}

/* ---- windows ------------------------------------------------------------------------------- */

void node_need(struct mm *mm, uint32_t n)
{
	struct node *no = node_at(mm, n);

	no->need++;
	for (uint32_t g = 0; no->dropped; g++) {
		if (!(no->dropped >> g & 1))
			continue;
		if (no->loc[g] && frame_at(mm, no->loc[g])->state == FRAME_COLD)
			frame_set_state(mm, no->loc[g], FRAME_CACHED);
		no->dropped &= (uint8_t)~(1u << g);
	}
}

static void cool(struct mm *mm, const struct node *no)
{
	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++)
		if (no->dropped >> g & 1 && no->loc[g] &&
		    frame_at(mm, no->loc[g])->state == FRAME_CACHED)
			frame_set_state(mm, no->loc[g], FRAME_COLD);
}

void node_unneed(struct mm *mm, uint32_t n)
{
	struct node *no = node_at(mm, n);

	MM_ASSERT(no->need);
	if (!--no->need)
		cool(mm, no);
}

void node_drop(struct mm *mm, uint32_t n, uint32_t group)
{
	struct node *no = node_at(mm, n);

	no->dropped |= (uint8_t)(1u << group);
	if (!no->need)
		cool(mm, no);
}
