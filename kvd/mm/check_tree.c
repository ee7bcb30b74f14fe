// SPDX-License-Identifier: Apache-2.0
#include "cache.h"
#include "check.h"
#include "core.h"
#include "policy.h"
#include "workingset.h"

/* ---- nodes --------------------------------------------------------------------------------- */

static bool reachable(const struct mm *mm, uint32_t n)
{
	const struct node *no = node_at(mm, n);
	struct node_query q = { no->cache, no->parent, no->key, node_tokens(mm, n),
				no->nr_tokens };

	return node_find(mm, &q) == n;	/* also: no sibling equal to it is found first */
}

static uint32_t own_leases(const struct mm *mm, uint32_t n)
{
	uint32_t nr = 0;

	for (uint32_t l = pool_next(mm, &mm->leases, 0); l; l = pool_next(mm, &mm->leases, l))
		nr += lease_at(mm, l)->node == n;
	return nr;
}

static uint32_t children(const struct mm *mm, uint32_t n, uint32_t *pinned)
{
	uint32_t nr = 0;

	*pinned = 0;
	for (uint32_t k = pool_next(mm, &mm->nodes, 0); k; k = pool_next(mm, &mm->nodes, k)) {
		if (node_at(mm, k)->parent != n)
			continue;
		nr++;
		*pinned += node_at(mm, k)->pins != 0;
	}
	return nr;
}

static uint32_t needing(const struct mm *mm, uint32_t n)
{
	uint32_t nr = 0;

	for (uint32_t l = pool_next(mm, &mm->leases, 0); l; l = pool_next(mm, &mm->leases, l)) {
		uint32_t from = lease_from(mm, l);

		for (uint32_t k = lease_at(mm, l)->node; k && node_at(mm, k)->depth >= from;
		     k = node_at(mm, k)->parent)
			nr += k == n;
	}
	return nr;
}

static void check_place(const struct mm *mm, uint32_t n)
{
	const struct node *no = node_at(mm, n);
	const struct cache *c = cache_at(mm, no->cache);
	uint32_t frames = 0;

	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++) {
		const struct frame *fr = frame_at(mm, no->loc[g]);

		if (!no->loc[g])
			continue;
		frames++;
		MM_ASSERT(g < c->desc.nr_groups && fr->node == n);
		MM_ASSERT(extent_at(mm, fr->extent)->group == g);
		MM_ASSERT(fr->state == FRAME_CACHED || fr->state == FRAME_COLD);
		if (no->dropped >> g & 1 && !no->need)
			MM_ASSERT(fr->state == FRAME_COLD);
	}
	if (!no->pins && !no->children)
		MM_ASSERT(frames);
}

static void check_node(const struct mm *mm, uint32_t n)
{
	const struct node *no = node_at(mm, n), *up = node_at(mm, no->parent);
	const struct cache *c = cache_at(mm, no->cache);
	uint32_t pinned, kids = children(mm, n, &pinned);

	MM_ASSERT(pool_live(mm, &mm->caches, no->cache));
	MM_ASSERT(no->nr_tokens && no->nr_tokens <= c->desc.page_tokens);
	MM_ASSERT(!no->children == !kids);
	if (no->nr_tokens < c->desc.page_tokens)
		MM_ASSERT(!no->children);
	MM_ASSERT(no->pins == own_leases(mm, n) + pinned);
	MM_ASSERT(no->need == needing(mm, n) && !no->marked);
	MM_ASSERT(!(no->dropped & ~c->window_mask));
	MM_ASSERT(reachable(mm, n));
	if (no->parent) {
		MM_ASSERT(pool_live(mm, &mm->nodes, no->parent) && up->cache == no->cache);
		MM_ASSERT(no->depth == up->depth + 1);
		MM_ASSERT(up->pins || up->age >= no->age);
	} else {
		MM_ASSERT(!no->depth);
	}
	check_place(mm, n);
}

/* The tree of siblings, root by root: ordered by key and tokens because each is reachable;
 * here, that nothing hangs in it twice or under another parent. */
static uint32_t count_tree(const struct mm *mm, uint32_t root, uint32_t parent)
{
	uint32_t nr = 0;

	for (uint32_t n = root; n; nr++) {
		MM_ASSERT(pool_live(mm, &mm->nodes, n) && node_at(mm, n)->parent == parent);
		MM_ASSERT(nr <= mm->nodes.nr_used);
		/* Recursion only to the left: the right spine is walked. */
		if (node_at(mm, n)->left)
			nr += count_tree(mm, node_at(mm, n)->left, parent);
		n = node_at(mm, n)->right;
	}
	return nr;
}

static void check_nodes(const struct mm *mm)
{
	uint64_t nr = 0, units = 0, pinned = 0, pinned_units = 0, in_trees = 0;

	for (uint32_t n = pool_next(mm, &mm->nodes, 0); n; n = pool_next(mm, &mm->nodes, n)) {
		uint32_t u = node_units(node_at(mm, n)->nr_tokens);

		check_node(mm, n);
		in_trees += count_tree(mm, node_at(mm, n)->children, n);
		nr++;
		units += u;
		pinned += node_at(mm, n)->pins != 0;
		pinned_units += node_at(mm, n)->pins ? u : 0;
	}
	for (uint32_t c = pool_next(mm, &mm->caches, 0); c; c = pool_next(mm, &mm->caches, c))
		in_trees += count_tree(mm, cache_at(mm, c)->children, NIL);
	MM_ASSERT(nr == mm->nodes.nr_used && nr == in_trees);
	MM_ASSERT(units + mm->token_buddy.free_units == mm->token_buddy.units);
	MM_ASSERT(pinned == mm->nr_pinned_nodes && pinned_units == mm->nr_pinned_units);
	buddy_check(mm, &mm->token_buddy);
}

static void check_sums(const struct mm *mm, uint32_t cache)
{
	uint64_t nodes = 0, tokens = 0;

	for (uint32_t n = pool_next(mm, &mm->nodes, 0); n; n = pool_next(mm, &mm->nodes, n)) {
		if (node_at(mm, n)->cache != cache)
			continue;
		nodes++;
		tokens += node_at(mm, n)->nr_tokens;
	}
	MM_ASSERT(nodes == cache_at(mm, cache)->nr_nodes);
	MM_ASSERT(tokens == cache_at(mm, cache)->cached_tokens);
}

/* ---- queues, leases, parks, keys ----------------------------------------------------------- */

static void check_queues(const struct mm *mm)
{
	uint32_t listed = 0, idle = 0;

	for (uint32_t b = pool_next(mm, &mm->binds, 0); b; b = pool_next(mm, &mm->binds, b)) {
		policy_check(mm, b);
		for (uint32_t at = 0; at < POLICY_QUEUES; at++)
			listed += bind_at(mm, b)->policy.queue[at].list.nr;
	}
	for (uint32_t n = pool_next(mm, &mm->nodes, 0); n; n = pool_next(mm, &mm->nodes, n))
		idle += !node_at(mm, n)->pins && policy_home(mm, n);
	MM_ASSERT(idle == listed);
}

static void check_parks(const struct mm *mm)
{
	uint32_t hanging = 0, named = 0;

	for (uint32_t n = pool_next(mm, &mm->nodes, 0); n; n = pool_next(mm, &mm->nodes, n)) {
		uint32_t prev = NIL;

		for (uint32_t p = node_at(mm, n)->parks; p; p = park_at(mm, p)->node_link.next) {
			MM_ASSERT(park_at(mm, p)->node == n);
			MM_ASSERT(park_at(mm, p)->node_link.prev == prev);
			MM_ASSERT(++hanging <= mm->parks.nr_used);
			prev = p;
		}
	}
	for (uint32_t p = pool_next(mm, &mm->parks, 0); p; p = pool_next(mm, &mm->parks, p)) {
		named += park_at(mm, p)->node != NIL;
		MM_ASSERT(pool_live(mm, &mm->binds, park_at(mm, p)->bind));
	}
	MM_ASSERT(hanging == named);
}

static void check_key(const struct mm *mm, uint32_t key)
{
	const struct key *k = key_at(mm, key);
	uint32_t refs = 0, pinned = 0;

	for (uint32_t n = pool_next(mm, &mm->nodes, 0); n; n = pool_next(mm, &mm->nodes, n)) {
		refs += node_at(mm, n)->key == key;
		pinned += node_at(mm, n)->key == key && node_at(mm, n)->pins;
	}
	MM_ASSERT(refs == k->nr_refs && refs && pinned == k->nr_pinned);
	MM_ASSERT(key_find(mm, k->digest) == key);
}

void check_tree(const struct mm *mm)
{
	uint32_t idle = 0, owned = 0;

	check_nodes(mm);
	check_queues(mm);
	workingset_check(mm);
	check_parks(mm);
	for (uint32_t c = pool_next(mm, &mm->caches, 0); c; c = pool_next(mm, &mm->caches, c))
		check_sums(mm, c);
	for (uint32_t l = pool_next(mm, &mm->leases, 0); l; l = pool_next(mm, &mm->leases, l)) {
		const struct lease *le = lease_at(mm, l);

		MM_ASSERT(pool_live(mm, &mm->nodes, le->node));
		MM_ASSERT(le->cache == bind_at(mm, le->bind)->cache);
		MM_ASSERT(bind_at(mm, le->bind)->engine == le->engine);
		MM_ASSERT(node_at(mm, le->node)->cache == le->cache);
	}
	for (uint32_t k = pool_next(mm, &mm->keys, 0); k; k = pool_next(mm, &mm->keys, k)) {
		check_key(mm, k);
		idle += !key_at(mm, k)->nr_pinned;
		owned += key_at(mm, k)->nr_pinned &&
			 pool_find(mm, &mm->engines, key_at(mm, k)->owner);
	}
	for (uint32_t e = pool_next(mm, &mm->engines, 0); e; e = pool_next(mm, &mm->engines, e))
		owned -= engine_at(mm, e)->nr_keys;
	MM_ASSERT(!owned);
	MM_ASSERT(idle == mm->nr_idle_keys);
}
