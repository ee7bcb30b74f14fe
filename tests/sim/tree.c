// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "sim.h"

uint32_t tree_new(struct sim *s, uint32_t cache, uint32_t parent, const uint32_t *tokens,
		  uint32_t nr_tokens, uint32_t key)
{
	uint32_t i = s->free_node;
	struct node *n;

	if (i) {
		s->free_node = s->node[i].next;
	} else {
		if (s->nr_nodes + 1 >= s->max_nodes) {
			s->max_nodes = s->max_nodes ? s->max_nodes * 2 : 1024;
			s->node = realloc(s->node, s->max_nodes * sizeof(*s->node));
			if (!s->node)
				abort();
		}
		if (!s->nr_nodes)
			s->nr_nodes = 1;
		i = s->nr_nodes++;
	}
	n = &s->node[i];
	memset(n, 0, sizeof(*n));
	n->live = true;
	n->cache = cache;
	n->parent = parent;
	n->key = key;
	n->nr_tokens = nr_tokens;
	n->what = s->node[parent].what * 0x9e3779b97f4a7c15ull + key + ((uint64_t)cache << 40) + 1;
	for (uint32_t t = 0; t < nr_tokens; t++)
		n->what = (n->what ^ tokens[t]) * 0xbf58476d1ce4e5b9ull + (n->what >> 31) + 1;
	if (nr_tokens)
		memcpy(n->tokens, tokens, nr_tokens * sizeof(*tokens));
	if (parent) {
		n->depth = s->node[parent].depth + 1;
		n->next = s->node[parent].child;
		s->node[parent].child = i;
	}
	return i;
}

uint32_t tree_child(struct sim *s, uint32_t parent, const uint32_t *tokens, uint32_t nr_tokens,
		    uint32_t key)
{
	for (uint32_t i = s->node[parent].child; i; i = s->node[i].next) {
		struct node *n = &s->node[i];

		if (n->key == key && n->nr_tokens == nr_tokens &&
		    !memcmp(n->tokens, tokens, nr_tokens * sizeof(*tokens)))
			return i;
	}
	return 0;
}

uint32_t tree_prefix(const struct node *n, const uint32_t *tokens, uint32_t nr_tokens)
{
	uint32_t i = 0;

	while (i < nr_tokens && i < n->nr_tokens && n->tokens[i] == tokens[i])
		i++;
	return i;
}

void tree_remove(struct sim *s, uint32_t node)
{
	uint32_t *link = &s->node[s->node[node].parent].child;

	while (*link != node)
		link = &s->node[*link].next;
	*link = s->node[node].next;
	s->node[node].live = false;
	s->node[node].next = s->free_node;
	s->free_node = node;
}

void tree_forget(struct sim *s, uint32_t node, enum page_state state)
{
	struct cache *c = &s->cache[s->node[node].cache];

	while (s->node[node].child)
		tree_forget(s, s->node[node].child, state);
	for (uint32_t g = 0; g < c->desc.nr_groups; g++) {
		struct page *p = &s->page[s->node[node].page[g]];

		SIM_CHECK(s, !s->node[node].pins[g],
			  "page %llx is needed by a live lease but evicted",
			  (unsigned long long)p->id);
		if (!s->node[node].page[g])
			continue;
		p->state = state;
		c->nr[PAGE_CACHED][g]--;
		c->nr[state][g]++;
		if (state == PAGE_DROPPED)
			s->sum.dropped++;
		else
			s->sum.evicted++;
	}
	tree_remove(s, node);
}

bool tree_sure(const struct sim *s, uint32_t node, uint32_t group)
{
	const struct node *n = &s->node[node];

	return n->page[group] && (n->pins[group] || n->stamp[group] == s->evicts);
}

bool tree_pinned(const struct sim *s, uint32_t node)
{
	for (uint32_t g = 0; g < SIM_GROUPS; g++)
		if (s->node[node].pins[g])
			return true;
	return false;
}

uint32_t tree_ancestor(const struct sim *s, uint32_t node, uint32_t depth)
{
	while (s->node[node].depth > depth)
		node = s->node[node].parent;
	return node;
}

uint32_t tree_tokens(const struct sim *s, uint32_t node)
{
	uint32_t nr = 0;

	for (; node; node = s->node[node].parent)
		nr += s->node[node].nr_tokens;
	return nr;
}

void tree_path(struct sim *s, uint32_t node, struct seq *q)
{
	uint32_t path[SIM_DEPTH + 2], nr = 0;

	memset(q, 0, sizeof(*q));
	for (; s->node[node].parent; node = s->node[node].parent)
		path[nr++] = node;
	for (uint32_t i = 0; i < nr; i++) {
		struct node *n = &s->node[path[nr - 1 - i]];

		memcpy(q->tokens + q->nr_tokens, n->tokens, n->nr_tokens * sizeof(*n->tokens));
		q->nr_tokens += n->nr_tokens;
		q->key[i] = n->key;
	}
}

/* Does a window group need this page of a sequence of len_tokens? */
bool tree_window_needs(const struct mm_cache_desc *d, uint32_t group, uint32_t page,
		       uint64_t len_tokens)
{
	uint64_t start = (uint64_t)page * d->page_tokens, window = d->group[group].window_tokens;

	if (start >= len_tokens)
		return false;
	return start + d->page_tokens + window > len_tokens;
}

/* ---- leases ---------------------------------------------------------------------------------- */

/* One more, which no commit has moved, is within the engine's share. */
struct lease *tree_lease_new(struct sim *s, uint32_t id, uint32_t engine, uint32_t cache,
			     uint32_t node)
{
	uint32_t nr = 0, own = 0;

	for (uint32_t i = 0; i < SIM_SLOTS; i++) {
		nr += s->lease[i].id != 0;
		own += s->lease[i].id && s->lease[i].engine == engine;
	}
	SIM_CHECK(s, nr < s->cfg.max_leases && own < s->cfg.max_leases - nr,
		  "engine %u has %u of %u leases, %u are taken", engine, own, s->cfg.max_leases,
		  nr);
	return tree_lease(s, id, engine, cache, node);
}

struct lease *tree_lease(struct sim *s, uint32_t id, uint32_t engine, uint32_t cache, uint32_t node)
{
	struct lease *l = NULL;
	uint32_t nr = 0;

	SIM_CHECK(s, id && !model_lease(s, id), "lease id %u is %s", id, id ? "alive" : "none");
	for (uint32_t i = 0; i < SIM_SLOTS; i++) {
		nr += s->lease[i].id != 0;
		if (!s->lease[i].id && !l)
			l = &s->lease[i];
	}
	SIM_CHECK(s, nr < s->cfg.max_leases && l, "%u leases alive, max_leases is %u", nr + 1,
		  s->cfg.max_leases);
	memset(l, 0, sizeof(*l));
	l->id = id;
	l->engine = engine;
	l->cache = cache;
	l->node = node;
	s->engine[engine].nr_leases++;
	return l;
}

void tree_pin(struct sim *s, struct lease *l, uint32_t node, uint32_t group)
{
	SIM_CHECK(s, l->nr_pins < SIM_PINS, "sim: pins");
	l->pin[l->nr_pins].node = node;
	l->pin[l->nr_pins++].group = group;
	if (!s->node[node].pins[group]++)
		s->cache[l->cache].nr_pinned[group]++;
}

/*
 * What a lease on its node surely keeps: full groups of the whole chain; of window groups what old
 * kept (NULL: what is there) and the window of this length still covers.
 */
void tree_pin_chain(struct sim *s, struct lease *l, const struct lease *old)
{
	const struct mm_cache_desc *d = &s->cache[l->cache].desc;
	uint32_t len = tree_tokens(s, l->node);

	for (uint32_t n = l->node; s->node[n].parent; n = s->node[n].parent) {
		for (uint32_t g = 0; g < d->nr_groups; g++) {
			bool kept = !old;

			for (uint32_t i = 0; old && i < old->nr_pins; i++)
				kept |= old->pin[i].node == n && old->pin[i].group == g;
			if (!s->node[n].page[g])
				continue;
			if (d->group[g].kind == MM_GROUP_FULL ||
			    (kept && d->group[g].kind == MM_GROUP_WINDOW &&
			     tree_window_needs(d, g, s->node[n].depth - 1, len)) ||
			    (kept && d->group[g].kind == MM_GROUP_STATE && n == l->node))
				tree_pin(s, l, n, g);
		}
	}
}

void tree_unlease(struct sim *s, struct lease *l)
{
	for (uint32_t i = 0; i < l->nr_pins; i++)
		if (!--s->node[l->pin[i].node].pins[l->pin[i].group])
			s->cache[l->cache].nr_pinned[l->pin[i].group]--;
	s->engine[l->engine].nr_leases--;
	model_stale(s, s->stale_lease, l->id);
	l->id = 0;
}
