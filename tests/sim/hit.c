// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "sim.h"

struct hit { /* one LOOKUP or RESUME being checked */
	struct sim *s;
	struct cache *cache;
	uint32_t engine, ci;
	const struct seq *q;
	const struct mm_reply *r;
	uint32_t path[SIM_DEPTH + 2]; /* nodes of the pages found; path[i] is page i */
	uint32_t end;		      /* node after the full pages: path's last or the root */
	uint32_t tail;
	uint64_t len_tokens; /* found, tail included */
};

static uint32_t page_of(const struct hit *h, uint32_t group, uint32_t i)
{
	uint64_t id = h->r->pages[(size_t)group * h->r->nr_pages + i];
	struct page *p;

	if (!id)
		return 0;
	p = model_page(h->s, id);
	SIM_CHECK(h->s, p, "found page %llx was never granted", (unsigned long long)id);
	SIM_CHECK(h->s, p->state == PAGE_CACHED, "found page %llx is %s", (unsigned long long)id,
		  p->state == PAGE_GONE ? "stale" : "held");
	return (uint32_t)(p - h->s->page);
}

/* Must the reply name this group's page of page i, which is full? */
static bool needs(const struct hit *h, uint32_t group, uint32_t i)
{
	const struct mm_cache_desc *d = &h->cache->desc;

	switch (d->group[group].kind) {
	case MM_GROUP_FULL:
		return true;
	case MM_GROUP_WINDOW:
		return tree_window_needs(d, group, i, h->len_tokens);
	default:
		return i + 1 == h->r->nr_pages && !h->r->tail_tokens;
	}
}

static void check_pages(struct hit *h)
{
	const struct mm_cache_desc *d = &h->cache->desc;
	uint32_t pt = d->page_tokens, parent = h->cache->root;
	struct sim *s = h->s;

	for (uint32_t i = 0; i < h->r->nr_pages; i++) {
		uint32_t n = tree_child(s, parent, h->q->tokens + i * pt, pt, h->q->key[i]);

		SIM_CHECK(s, n, "found page %u of content nobody committed, or that is gone", i);
		for (uint32_t g = 0; g < d->nr_groups; g++) {
			uint32_t p = page_of(h, g, i);

			SIM_CHECK(s, p || !needs(h, g, i), "page %u lacks group %u", i, g);
			SIM_CHECK(s, !p || p == s->node[n].page[g],
				  "page %u group %u: %llx holds other content", i, g,
				  (unsigned long long)s->page[p].id);
			if (p) {
				memory_read(s, &s->page[p], n);
				s->node[n].stamp[g] = s->evicts;
			}
		}
		h->path[i] = n;
		parent = n;
	}
	h->end = parent;
}

/* The page right after the full ones, of which the reply says tail_tokens match. */
static uint32_t tail_node(struct hit *h, const uint32_t *rest, uint32_t nr_rest)
{
	struct sim *s = h->s;
	uint64_t id = h->r->tail_pages ? h->r->tail_pages[h->cache->full] : 0;
	struct page *p = model_page(s, id);
	struct node *n;
	uint32_t pt = h->cache->desc.page_tokens;

	if (h->r->tail_adopted) /* new ids in the old places */
		for (uint32_t f = 0; id && f < 1; f++) {
			struct extent *x = model_extent(s, mm_page_extent(id));

			SIM_CHECK(s, !p && mm_page_slot(id) < x->nr_slots,
				  "adopted page %llx is not new", (unsigned long long)id);
			p = &s->page[x->frame[mm_page_slot(id)].page];
		}
	SIM_CHECK(s,
		  id && p && p->state == PAGE_CACHED && p->group == h->cache->full &&
			  p->cache == h->ci,
		  "tail page %llx is not cached here", (unsigned long long)id);
	n = &s->node[p->node];
	SIM_CHECK(s, n->parent == h->end && n->key == h->q->key[h->r->nr_pages],
		  "tail page %llx does not follow page %u", (unsigned long long)id, h->r->nr_pages);
	SIM_CHECK(s, tree_prefix(n, rest, nr_rest) == h->r->tail_tokens,
		  "tail page %llx matches %u tokens, not %u", (unsigned long long)id,
		  tree_prefix(n, rest, nr_rest), h->r->tail_tokens);
	SIM_CHECK(s, h->r->tail_tokens < pt || !h->cache->plain, "a whole page as a tail");
	SIM_CHECK(s, !h->cache->opaque || h->r->tail_tokens == n->nr_tokens,
		  "a match inside an opaque page");
	return p->node;
}

static void check_tail_groups(struct hit *h)
{
	const struct mm_cache_desc *d = &h->cache->desc;
	struct node *n = &h->s->node[h->tail];

	for (uint32_t g = 0; g < d->nr_groups; g++) {
		uint64_t id = h->r->tail_pages[g];
		uint64_t want = n->page[g] ? h->s->page[n->page[g]].id : 0;
		bool need = d->group[g].kind != MM_GROUP_WINDOW || d->group[g].window_tokens;

		SIM_CHECK(h->s, id || !need, "tail page lacks group %u", g);
		SIM_CHECK(h->s, !id || h->r->tail_adopted || id == want,
			  "tail page %llx of group %u holds other content", (unsigned long long)id,
			  g);
		SIM_CHECK(h->s,
			  d->group[g].kind != MM_GROUP_STATE || h->r->tail_tokens == n->nr_tokens,
			  "group %u has no snapshot inside a page", g);
		if (id && n->page[g])
			memory_read(h->s, &h->s->page[n->page[g]], h->tail);
		if (id && !h->r->tail_adopted)
			n->stamp[g] = h->s->evicts;
	}
}

/* An entirely matched partial page becomes held: same places, new ids. */
static void check_adopted(struct hit *h, uint32_t flags)
{
	struct sim *s = h->s;
	struct node *n = &s->node[h->tail];
	uint32_t old[SIM_GROUPS] = {0};

	SIM_CHECK(s, flags & MM_LOOKUP_ADOPT, "adopted without being asked");
	SIM_CHECK(s, h->r->tail_tokens == n->nr_tokens && n->nr_tokens < h->cache->desc.page_tokens,
		  "adopted a page not partial and whole");
	SIM_CHECK(s, !tree_pinned(s, h->tail), "adopted a page that is leased");
	SIM_CHECK(s, !h->r->tail_lease, "adopted and leased");
	for (uint32_t g = 0; g < h->cache->desc.nr_groups; g++) {
		struct page *p = &s->page[n->page[g]];
		uint64_t id = h->r->tail_pages[g];

		if (!n->page[g]) {
			SIM_CHECK(s, !id, "adopted a page of group %u nobody committed", g);
			continue;
		}
		SIM_CHECK(s, id && id >> MM_GEN_BITS == p->id >> MM_GEN_BITS && id != p->id,
			  "page %llx adopted as %llx", (unsigned long long)p->id,
			  (unsigned long long)id);
		SIM_CHECK(s, s->extent[mm_page_extent(id)].writer == h->engine,
			  "adopted page %llx lies in another's extent", (unsigned long long)p->id);
		old[g] = n->page[g];
	}
	for (uint32_t g = 0; g < h->cache->desc.nr_groups; g++) {
		if (!old[g])
			continue;
		n = &s->node[h->tail];
		n->page[g] = 0;
		s->page[old[g]].state = PAGE_GONE;
		h->cache->nr[PAGE_CACHED][g]--;
		h->cache->nr[PAGE_GONE][g]++;
		model_grant(s, h->engine, h->ci, g, h->r->tail_pages[g]);
		s->sum.adopted_pages++;
	}
	tree_remove(s, h->tail);
	s->sum.adopted++;
}

/* ---- what should at least have been found ---------------------------------------------------- */

/* Is len_tokens, whose last node is path[nr - 1], surely a hit in the groups that are not full? */
static bool sure_hit(struct sim *s, struct cache *c, const uint32_t *path, uint32_t nr,
		     uint64_t len_tokens)
{
	const struct mm_cache_desc *d = &c->desc;

	for (uint32_t g = 0; g < d->nr_groups; g++) {
		if (d->group[g].kind == MM_GROUP_STATE && nr && !tree_sure(s, path[nr - 1], g))
			return false;
		for (uint32_t i = 0; i < nr && d->group[g].kind == MM_GROUP_WINDOW; i++)
			if (tree_window_needs(d, g, i, len_tokens) && !tree_sure(s, path[i], g))
				return false;
	}
	return true;
}

static bool sure_full(struct sim *s, struct cache *c, uint32_t node)
{
	for (uint32_t g = 0; g < c->desc.nr_groups; g++)
		if (c->desc.group[g].kind == MM_GROUP_FULL && !tree_sure(s, node, g))
			return false;
	return true;
}

/* Tokens surely matched inside the page after path[nr - 1]. */
static uint32_t sure_tail(struct sim *s, struct cache *c, const struct seq *q, uint32_t *path,
			  uint32_t nr)
{
	uint32_t pt = c->desc.page_tokens, best = 0;
	const uint32_t *rest = q->tokens + nr * pt;
	uint32_t nr_rest = q->nr_tokens - nr * pt, first = nr ? path[nr - 1] : c->root;

	if (c->opaque)
		return 0;
	for (uint32_t i = s->node[first].child; i; i = s->node[i].next) {
		uint32_t t = tree_prefix(&s->node[i], rest, nr_rest);

		if (s->node[i].key == q->key[nr] && sure_full(s, c, i) && t > best && t < pt)
			best = t;
	}
	/* mm may pick any of the longest; so all of them must do. */
	for (uint32_t i = s->node[first].child; best && i; i = s->node[i].next) {
		uint32_t t = tree_prefix(&s->node[i], rest, nr_rest);

		if (s->node[i].key != q->key[nr] || t < best)
			continue;
		path[nr] = i;
		if (!sure_hit(s, c, path, nr + 1, (uint64_t)nr * pt + t))
			return 0;
		for (uint32_t g = 0; g < c->desc.nr_groups; g++)
			if (c->desc.group[g].kind == MM_GROUP_STATE && t != s->node[i].nr_tokens)
				return 0;
	}
	return best;
}

static uint64_t sure_tokens(struct sim *s, struct cache *c, const struct seq *q)
{
	uint32_t pt = c->desc.page_tokens, nr = 0, n = c->root;
	uint32_t path[SIM_DEPTH + 2];

	while ((nr + 1) * pt <= q->nr_tokens && nr < s->cfg.batch_pages) {
		n = tree_child(s, n, q->tokens + nr * pt, pt, q->key[nr]);
		if (!n || !sure_full(s, c, n))
			break;
		path[nr++] = n;
	}
	while (nr && !sure_hit(s, c, path, nr, (uint64_t)nr * pt))
		nr--;
	if (nr == s->cfg.batch_pages)
		return (uint64_t)nr * pt;
	return (uint64_t)nr * pt + sure_tail(s, c, q, path, nr);
}

/* With full groups only, what the reply leaves out is known to be gone. */
static void learn_missing(struct hit *h)
{
	struct sim *s = h->s;
	uint32_t nr = h->r->nr_pages, pt = h->cache->desc.page_tokens;
	const uint32_t *rest = h->q->tokens + nr * pt;
	uint32_t nr_rest = h->q->nr_tokens - nr * pt, next;

	if (!h->cache->plain || nr >= s->cfg.batch_pages)
		return;
	for (uint32_t i = s->node[h->end].child; i; i = next) {
		struct node *n = &s->node[i];
		uint32_t t = tree_prefix(n, rest, nr_rest);

		next = n->next;
		if (n->key != h->q->key[nr] || i == h->tail)
			continue;
		if ((t == pt && nr_rest >= pt) || (!h->cache->opaque && t > h->r->tail_tokens))
			model_forget(s, &s->page[n->page[h->cache->full]]);
	}
}

/* ---- leases ---------------------------------------------------------------------------------- */

/* The tail's lease keeps of window groups its own page only: the rest is up to the other lease. */
static void pin_named(struct hit *h, struct lease *l, bool tail)
{
	const struct mm_cache_desc *d = &h->cache->desc;

	for (uint32_t g = 0; g < d->nr_groups; g++) {
		for (uint32_t i = 0; i < h->r->nr_pages; i++) {
			uint32_t kind = d->group[g].kind;

			if (!h->r->pages[(size_t)g * h->r->nr_pages + i])
				continue;
			if (kind == MM_GROUP_FULL ||
			    (kind == MM_GROUP_WINDOW && !tail &&
			     tree_window_needs(d, g, i, h->len_tokens)) ||
			    (kind == MM_GROUP_STATE && !tail && !h->r->tail_tokens &&
			     i + 1 == h->r->nr_pages))
				tree_pin(h->s, l, h->path[i], g);
		}
		if (tail && h->r->tail_pages[g])
			tree_pin(h->s, l, h->tail, g);
	}
}

static void check_leases(struct hit *h)
{
	struct sim *s = h->s;
	struct lease *l;

	SIM_CHECK(s, h->r->lease || !h->r->nr_pages, "%u pages found but not leased",
		  h->r->nr_pages);
	if (h->r->lease) {
		l = tree_lease_new(s, h->r->lease, h->engine, h->ci, h->end);
		pin_named(h, l, false);
		s->sum.leases_new++;
	}
	if (!h->r->tail_tokens || h->r->tail_adopted) {
		SIM_CHECK(s, !h->r->tail_lease, "a tail lease without a tail");
		return;
	}
	SIM_CHECK(s, h->r->tail_lease, "a tail without a lease");
	l = tree_lease_new(s, h->r->tail_lease, h->engine, h->ci, h->tail);
	pin_named(h, l, true);
	s->sum.leases_new++;
}

/* One eligible candidate, and adoption asked for: then it has to happen. */
static bool must_adopt(struct hit *h, const uint32_t *rest, uint32_t nr_rest)
{
	struct sim *s = h->s;
	struct node *n = &s->node[h->tail];

	if (tree_pinned(s, h->tail) || n->nr_tokens == h->cache->desc.page_tokens ||
	    h->r->tail_tokens != n->nr_tokens)
		return false;
	for (uint32_t i = 0; i < SIM_SLOTS; i++) /* a parked sequence may end here */
		if (s->park[i].id && s->park[i].cache == h->ci &&
		    s->park[i].seq.nr_tokens == tree_tokens(s, h->tail))
			return false;
	for (uint32_t g = 0; g < h->cache->desc.nr_groups; g++)
		if (!n->page[g] ||
		    s->extent[mm_page_extent(s->page[n->page[g]].id)].writer != h->engine)
			return false;
	for (uint32_t i = s->node[h->end].child; i; i = s->node[i].next)
		if (i != h->tail && s->node[i].key == n->key &&
		    tree_prefix(&s->node[i], rest, nr_rest) >= h->r->tail_tokens)
			return false;
	return true;
}

/* complete: all that is cached has to be found. */
void hit_check(struct sim *s, const struct call *c, const struct seq *q, bool complete,
	       const struct mm_reply *r)
{
	struct hit h = {.s = s, .engine = c->engine, .ci = c->cache, .q = q, .r = r};
	uint32_t pt = s->cache[c->cache].desc.page_tokens, flags = c->req.flags;
	uint64_t sure = complete ? sure_tokens(s, &s->cache[c->cache], q) : 0;
	const uint32_t *rest = q->tokens + r->nr_pages * pt;

	h.cache = &s->cache[c->cache];
	SIM_CHECK(s, r->nr_groups == h.cache->desc.nr_groups, "reply has %u groups", r->nr_groups);
	SIM_CHECK(s,
		  (uint64_t)r->nr_pages * pt <= q->nr_tokens && r->nr_pages <= s->cfg.batch_pages,
		  "%u pages found of %u tokens", r->nr_pages, q->nr_tokens);
	h.len_tokens = (uint64_t)r->nr_pages * pt + r->tail_tokens;
	check_pages(&h);
	if (r->tail_tokens) {
		h.tail = tail_node(&h, rest, q->nr_tokens - r->nr_pages * pt);
		check_tail_groups(&h);
	}
	SIM_CHECK(s, h.len_tokens >= sure, "found %llu tokens, %llu are surely cached",
		  (unsigned long long)h.len_tokens, (unsigned long long)sure);
	if (complete)
		learn_missing(&h);
	SIM_CHECK(s, !r->tail_adopted || r->tail_tokens, "adopted without a tail");
	if (r->tail_tokens && !r->tail_adopted && flags & MM_LOOKUP_ADOPT)
		SIM_CHECK(s, !must_adopt(&h, rest, q->nr_tokens - r->nr_pages * pt),
			  "a tail that nobody else needs is not adopted");
	check_leases(&h);
	if (r->tail_adopted)
		check_adopted(&h, flags);
}

/* ---- commit ---------------------------------------------------------------------------------- */

/* The request counts, not what the generator had in mind: it may have been spoilt. */
static uint32_t key_of(const struct call *c, uint32_t page)
{
	for (uint32_t i = 0; i < c->req.commit.nr_keys; i++)
		if (c->keys[i].page == page)
			return c->seq.key[page];
	return 0;
}

/* One committed page: either its own ids are published, or those already there are named. */
static uint32_t commit_page(struct sim *s, const struct call *c, const struct mm_reply *r,
			    uint32_t parent, uint32_t i, uint32_t start, uint32_t nr_tokens)
{
	struct cache *k = &s->cache[c->cache];
	const uint32_t *tokens = c->req.commit.tokens + start;
	uint32_t key = key_of(c, s->node[parent].depth);
	uint32_t node = tree_child(s, parent, tokens, nr_tokens, key);
	bool dup = false;

	/* The model's node is gone if mm publishes a full group's page anew. */
	if (node &&
	    r->pages[(size_t)k->full * r->nr_pages + i] ==
		    c->pages[(size_t)k->full * r->nr_pages + i] &&
	    c->pages[(size_t)k->full * r->nr_pages + i]) {
		model_forget(s, &s->page[s->node[node].page[k->full]]);
		node = 0;
	}
	if (!node)
		node = tree_new(s, c->cache, parent, tokens, nr_tokens, key);
	for (uint32_t g = 0; g < k->desc.nr_groups; g++) {
		uint64_t own = c->pages[(size_t)g * r->nr_pages + i];
		uint64_t id = r->pages[(size_t)g * r->nr_pages + i];
		uint32_t there = s->node[node].page[g];

		SIM_CHECK(s, id || k->desc.group[g].kind != MM_GROUP_FULL,
			  "page %u group %u is committed without content", i, g);
		if (there && id == s->page[there].id) {
			memory_read(s, &s->page[there], node);
			s->node[node].stamp[g] = s->evicts;
			dup |= own != 0;
			s->sum.dup_pages += own != 0;
			continue;
		}
		SIM_CHECK(s, id == own,
			  "page %u group %u is committed as %llx, which is other "
			  "content",
			  i, g, (unsigned long long)id);
		if (!own)
			continue;
		if (there) /* then what was there must be gone */
			model_forget(s, &s->page[there]);
		model_publish(s, model_page(s, own), node);
		s->sum.committed++;
		s->engine[c->engine].commits++;
	}
	s->sum.dup_nodes += dup;
	return node;
}

void commit_check(struct sim *s, const struct call *c, const struct mm_reply *r)
{
	struct cache *k = &s->cache[c->cache];
	struct lease *old = model_lease(s, c->req.commit.lease), *l, kept;
	uint32_t node = old ? old->node : k->root, pt = k->desc.page_tokens;
	uint32_t start = 0, end = c->req.commit.nr_tokens;

	SIM_CHECK(s, r->nr_pages == c->req.commit.nr_pages && r->nr_groups == k->desc.nr_groups,
		  "%u pages of %u groups committed", r->nr_pages, r->nr_groups);
	memset(&kept, 0, sizeof(kept));
	for (uint32_t i = 0; i < r->nr_pages; i++, start += pt) {
		uint32_t nr = end - start < pt ? end - start : pt;

		node = commit_page(s, c, r, node, i, start, nr);
		for (uint32_t g = 0; g < k->desc.nr_groups; g++) {
			if (!r->pages[(size_t)g * r->nr_pages + i])
				continue;
			kept.pin[kept.nr_pins].node = node;
			kept.pin[kept.nr_pins++].group = g;
		}
	}
	for (uint32_t i = 0; old && i < old->nr_pins && kept.nr_pins < SIM_PINS; i++)
		kept.pin[kept.nr_pins++] = old->pin[i];
	if (old)
		tree_unlease(s, old);
	l = tree_lease(s, r->lease, c->engine, c->cache, node);
	tree_pin_chain(s, l, &kept);
	s->sum.leases_moved++;
}
