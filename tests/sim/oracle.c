// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>

#include "sim.h"

/* ---- what may refuse a request --------------------------------------------------------------- */

static bool desc_valid(const struct sim *s, const struct mm_cache_desc *d)
{
	if (!d->page_tokens || d->page_tokens > 65536 || !d->nr_groups || !d->nr_shards ||
	    d->nr_groups > MM_MAX_GROUPS || d->nr_shards > MM_MAX_SHARDS)
		return false;
	for (uint32_t g = 0; g < d->nr_groups; g++)
		if (d->group[g].kind < MM_GROUP_FULL || d->group[g].kind > MM_GROUP_STATE)
			return false;
	for (uint32_t i = 0; i < d->nr_shards; i++) {
		if (d->shard[i].device >= s->cfg.nr_devices)
			return false;
		for (uint32_t g = 0; g < d->nr_groups; g++)
			if (!d->shard[i].page_bytes[g] || d->shard[i].page_bytes[g] % 64)
				return false;
	}
	return true;
}

static bool key_is_zero(const uint8_t key[MM_KEY_BYTES])
{
	static const uint8_t zero[MM_KEY_BYTES];

	return !memcmp(key, zero, MM_KEY_BYTES);
}

/* The shared cache of this tenant and model, whether or not somebody has it open. */
static struct cache *cache_shared(struct sim *s, uint32_t uid, const uint8_t key[MM_KEY_BYTES])
{
	for (uint32_t c = 1; c < s->nr_caches; c++)
		if (!s->cache[c].dead && s->cache[c].shared && s->cache[c].uid == uid &&
		    !memcmp(s->cache[c].desc.model_key, key, MM_KEY_BYTES))
			return &s->cache[c];
	return NULL;
}

static enum expect expect_open(struct sim *s, struct engine *e, const struct mm_cache_desc *d)
{
	struct cache *c;

	if (!desc_valid(s, d))
		return EXPECT_FAIL;
	if (key_is_zero(d->model_key))
		return EXPECT_ROOM;
	c = cache_shared(s, e->uid, d->model_key);
	if (!c)
		return EXPECT_ROOM;
	if (model_has_open(s, e, c))
		return EXPECT_ANY;
	if (memcmp(c->desc.layout_key, d->layout_key, MM_KEY_BYTES))
		return c->nr_engines ? EXPECT_FAIL : EXPECT_ANY;
	return EXPECT_ROOM;
}

static enum expect expect_close(struct sim *s, struct engine *e, struct cache *c, uint32_t flags)
{
	uint32_t ei = model_engine_index(s, e), ci = model_cache_index(s, c);
	enum expect expect = EXPECT_OK;

	if (flags)
		return flags == MM_CLOSE_GIVE_BACK ? EXPECT_OK : EXPECT_FAIL;
	for (uint32_t i = 0; i < e->nr_held; i++)
		if (s->page[e->held[i]].cache == ci)
			return EXPECT_FAIL;
	for (uint32_t i = 0; i < SIM_SLOTS; i++)
		if (s->lease[i].id && s->lease[i].engine == ei && s->lease[i].cache == ci)
			return EXPECT_FAIL;
	for (uint32_t i = 0; i < SIM_SLOTS; i++)
		if (s->park[i].id && s->park[i].engine == ei && s->park[i].cache == ci)
			expect = EXPECT_ANY;
	for (uint32_t i = 0; i < SIM_CALLS; i++)
		if (s->call[i].used && s->call[i].engine == ei && s->call[i].cache == ci)
			expect = EXPECT_ANY;
	for (uint32_t x = 0; x < s->top_extent; x++)
		for (uint32_t i = 0; s->extent[x].cache == ci && i < s->extent[x].nr_imports; i++)
			if (s->member[s->extent[x].import[i].member].engine == ei)
				expect = EXPECT_ANY;
	return expect;
}

/* Does this engine hold, or lease, something in the extent? Then it cannot be on its way out. */
static bool extent_used_by(struct sim *s, struct extent *x, uint32_t engine)
{
	for (uint32_t f = 0; f < x->nr_slots; f++) {
		struct page *p = &s->page[x->frame[f].page];

		if (!x->frame[f].page)
			continue;
		if (p->state == PAGE_HELD && p->engine == engine)
			return true;
		if (p->state == PAGE_CACHED && s->node[p->node].pins[p->group])
			return true;
	}
	return false;
}

static enum expect expect_import(struct sim *s, struct engine *e, const struct call *c)
{
	struct member *m = model_member(s, c->req.member);
	struct extent *x;

	if (c->req.map.extent >= SIM_EXTENTS)
		return EXPECT_FAIL;
	x = &s->extent[c->req.map.extent];
	if (c->req.map.shard >= MM_MAX_SHARDS || x->shard[c->req.map.shard].state != SHARD_LIVE)
		return EXPECT_FAIL;
	if (!x->cache)
		return EXPECT_ANY;
	if (s->cache[x->cache].uid != e->uid)
		return EXPECT_FAIL;
	if (!model_has_open(s, e, &s->cache[x->cache]) ||
	    model_import_find(x, (uint32_t)(m - s->member), c->req.map.shard))
		return EXPECT_ANY;
	return extent_used_by(s, x, model_engine_index(s, e)) ? EXPECT_OK : EXPECT_ANY;
}

static enum expect expect_unimport(struct sim *s, const struct call *c)
{
	struct member *m = model_member(s, c->req.member);

	if (!m || c->req.map.extent >= SIM_EXTENTS)
		return EXPECT_FAIL;
	if (!model_import_find(&s->extent[c->req.map.extent], (uint32_t)(m - s->member),
			       c->req.map.shard))
		return EXPECT_FAIL;
	return s->engine[m->engine].fenced ? EXPECT_ANY : EXPECT_OK;
}

static bool page_held_by(struct sim *s, uint64_t id, uint32_t engine)
{
	struct page *p = model_page(s, id);

	return p && p->state == PAGE_HELD && p->engine == engine;
}

static enum expect expect_free(struct sim *s, struct engine *e, const struct call *c)
{
	uint32_t nr = c->req.free.nr_pages;

	if (!nr || nr > s->cfg.batch_pages)
		return EXPECT_ANY;
	for (uint32_t i = 0; i < nr; i++) {
		if (!page_held_by(s, c->pages[i], model_engine_index(s, e)))
			return EXPECT_FAIL;
		for (uint32_t j = 0; j < i; j++)
			if (c->pages[j] == c->pages[i])
				return EXPECT_FAIL;
	}
	return EXPECT_OK;
}

static enum expect expect_unlease(struct sim *s, struct engine *e, const struct call *c)
{
	uint32_t nr = c->req.unlease.nr_leases;

	if (!nr || nr > s->cfg.batch_pages)
		return EXPECT_ANY;
	for (uint32_t i = 0; i < nr; i++) {
		struct lease *l = model_lease(s, c->ids[i]);

		if (!l || l->engine != model_engine_index(s, e))
			return EXPECT_FAIL;
		for (uint32_t j = 0; j < i; j++)
			if (c->ids[j] == c->ids[i])
				return EXPECT_FAIL;
	}
	return EXPECT_OK;
}

static enum expect expect_commit_pages(struct sim *s, struct engine *e, struct cache *k,
				       const struct call *c, uint32_t depth)
{
	uint32_t nr = c->req.commit.nr_pages, pt = k->desc.page_tokens;
	uint64_t len = (uint64_t)depth * pt + c->req.commit.nr_tokens;
	enum expect expect = EXPECT_ROOM;

	for (uint32_t i = 0; i < nr * k->desc.nr_groups; i++) {
		uint32_t g = i / nr;
		struct page *p = model_page(s, c->pages[i]);

		if (!c->pages[i]) {
			if (k->desc.group[g].kind == MM_GROUP_FULL ||
			    (k->desc.group[g].kind == MM_GROUP_WINDOW &&
			     tree_window_needs(&k->desc, g, depth + i % nr, len)))
				expect = EXPECT_ANY;
			continue;
		}
		if (!page_held_by(s, c->pages[i], model_engine_index(s, e)) || p->group != g ||
		    p->cache != model_cache_index(s, k))
			return EXPECT_FAIL;
		for (uint32_t j = 0; j < i; j++)
			if (c->pages[j] == c->pages[i])
				return EXPECT_FAIL;
	}
	return expect;
}

static enum expect expect_commit(struct sim *s, struct engine *e, struct cache *k,
				 const struct call *c)
{
	struct lease *l = model_lease(s, c->req.commit.lease);
	uint32_t nr = c->req.commit.nr_pages, pt = k->desc.page_tokens;
	uint32_t nr_tokens = c->req.commit.nr_tokens, depth = 0;

	if (c->req.commit.lease) {
		if (!l || l->engine != model_engine_index(s, e) ||
		    l->cache != model_cache_index(s, k))
			return EXPECT_FAIL;
		depth = s->node[l->node].depth;
		if (tree_tokens(s, l->node) != depth * pt)
			return EXPECT_FAIL; /* nothing follows a partial page */
	}
	if (!nr || !nr_tokens)
		return EXPECT_ANY;
	if (nr_tokens > nr * pt || nr_tokens <= (nr - 1) * pt)
		return EXPECT_FAIL;
	if (nr_tokens != nr * pt && !(c->req.flags & MM_COMMIT_PARTIAL))
		return EXPECT_FAIL;
	if (nr > s->cfg.batch_pages)
		return EXPECT_FAIL;
	for (uint32_t i = 0; i < c->req.commit.nr_keys; i++)
		if (c->keys[i].page < depth || c->keys[i].page >= depth + nr ||
		    (i && c->keys[i].page <= c->keys[i - 1].page))
			return EXPECT_ANY;
	if (k->opaque && nr_tokens != nr * pt)
		return expect_commit_pages(s, e, k, c, depth) == EXPECT_FAIL ? EXPECT_FAIL
									     : EXPECT_ANY;
	return expect_commit_pages(s, e, k, c, depth);
}

static enum expect expect_lookup(struct sim *s, struct cache *k, const struct call *c)
{
	uint32_t nr = c->req.lookup.nr_tokens, pt = k->desc.page_tokens;
	uint32_t nr_pages = (nr + pt - 1) / pt;

	for (uint32_t i = 0; i < c->req.lookup.nr_keys; i++)
		if (c->keys[i].page >= nr_pages || (i && c->keys[i].page <= c->keys[i - 1].page))
			return EXPECT_ANY;
	return nr && nr_pages <= s->cfg.batch_pages ? EXPECT_ROOM : EXPECT_ANY;
}

static enum expect expect_lease(struct sim *s, struct engine *e, const struct call *c)
{
	uint32_t id = c->req.op == MM_PARK ? c->req.park.lease : c->req.lease.lease;
	struct lease *l = model_lease(s, id);
	uint32_t depth = c->req.lease.depth_pages;

	if (!l || l->engine != model_engine_index(s, e))
		return EXPECT_FAIL;
	if (c->req.op == MM_PARK)
		return l->node == s->cache[l->cache].root ? EXPECT_ANY : EXPECT_ROOM;
	if (c->req.op == MM_LEASE_DUP)
		return depth > s->node[l->node].depth ? EXPECT_FAIL : EXPECT_ROOM;
	if (c->req.group >= s->cache[l->cache].desc.nr_groups)
		return EXPECT_FAIL;
	if (s->cache[l->cache].desc.group[c->req.group].kind != MM_GROUP_WINDOW ||
	    depth > s->node[l->node].depth)
		return EXPECT_ANY;
	return EXPECT_OK;
}

static enum expect expect_hint(struct sim *s, struct engine *e, const struct call *c)
{
	struct lease *l = model_lease(s, c->req.hint.lease);
	const struct mm_hint *h = &c->req.hint.hint;
	uint32_t to;

	if (!l || l->engine != model_engine_index(s, e))
		return EXPECT_FAIL;
	to = h->to_page ? h->to_page : s->node[l->node].depth;
	if (h->from_page >= to || to > s->node[l->node].depth || h->priority > 2)
		return EXPECT_FAIL;
	return EXPECT_OK;
}

static enum expect expect_park(struct sim *s, struct engine *e, const struct call *c)
{
	struct park *p = model_park(s, c->req.park.park);

	if (!p || p->engine != model_engine_index(s, e))
		return EXPECT_FAIL;
	return c->req.op == MM_UNPARK ? EXPECT_OK : EXPECT_ROOM;
}

static enum expect expect_in_cache(struct sim *s, struct engine *e, const struct call *c)
{
	struct cache *k = model_cache(s, c->req.cache);

	if (!k || !model_has_open(s, e, k))
		return EXPECT_FAIL;
	switch (c->req.op) {
	case MM_CACHE_CLOSE:
		return expect_close(s, e, k, c->req.flags);
	case MM_ALLOC:
		if (c->req.group >= k->desc.nr_groups)
			return EXPECT_FAIL;
		if (c->req.alloc.nr_pages > s->cfg.batch_pages)
			return EXPECT_FAIL;
		return c->req.alloc.nr_pages ? EXPECT_ROOM : EXPECT_ANY;
	case MM_LOOKUP:
		return expect_lookup(s, k, c);
	default:
		return expect_commit(s, e, k, c);
	}
}

/* Any open may ask for more than there is. */
static enum expect expect_promise(const struct call *c, enum expect open)
{
	return open == EXPECT_OK && c->req.open.min_pages ? EXPECT_ROOM : open;
}

static enum expect expect_of_engine(struct sim *s, struct engine *e, const struct call *c)
{
	switch (c->req.op) {
	case MM_CACHE_OPEN:
		return expect_promise(c, expect_open(s, e, &c->desc));
	case MM_CACHE_CLOSE:
	case MM_ALLOC:
	case MM_LOOKUP:
	case MM_COMMIT:
		return expect_in_cache(s, e, c);
	case MM_FREE:
		return expect_free(s, e, c);
	case MM_UNLEASE:
		return expect_unlease(s, e, c);
	case MM_LEASE_DUP:
	case MM_DROP_HEAD:
	case MM_PARK:
		return expect_lease(s, e, c);
	case MM_HINT:
		return expect_hint(s, e, c);
	case MM_RESUME:
	case MM_UNPARK:
		return expect_park(s, e, c);
	case MM_RESERVE:
		if (c->req.reserve.device >= s->cfg.nr_devices ||
		    c->req.reserve.what >= MM_NR_RESERVES)
			return EXPECT_FAIL;
		return c->req.reserve.bytes <=
				       e->reserved_for[c->req.reserve.what][c->req.reserve.device]
			       ? EXPECT_OK
			       : EXPECT_ROOM;
	case MM_MEMBER_ATTACH:
		return EXPECT_ROOM;
	case MM_STAT:
		return EXPECT_OK;
	default:
		return EXPECT_ANY; /* acks */
	}
}

enum expect oracle_expect(struct sim *s, struct call *c)
{
	struct engine *e = model_engine(s, c->req.engine);
	struct member *m = model_member(s, c->req.member);
	struct cache *k = model_cache(s, c->req.cache);

	c->engine = e ? model_engine_index(s, e) : 0;
	c->cache = k ? model_cache_index(s, k) : 0;
	switch (c->req.op) {
	case MM_ENGINE_ATTACH:
		return EXPECT_ROOM;
	case MM_MEMBER_GONE:
		return m ? EXPECT_OK : EXPECT_FAIL;
	case MM_EVENTS:
		if (!m)
			return EXPECT_FAIL;
		return s->engine[m->engine].fenced ? EXPECT_ANY : EXPECT_OK;
	case MM_UNIMPORT:
		return expect_unimport(s, c);
	case MM_TENANT_SET:
		return expect_tenant_set(s, c);
	case MM_IMPORT: /* the member says whose */
		if (!m || s->engine[m->engine].fenced)
			return EXPECT_FAIL;
		c->engine = m->engine;
		return expect_import(s, &s->engine[m->engine], c);
	case MM_FENCE:
		if (!e) /* it may linger until its frames are scrubbed */
			return s->sum.fences ? EXPECT_ANY : EXPECT_FAIL;
		return e->fenced ? EXPECT_ANY : EXPECT_OK;
	default:
		break;
	}
	if (c->req.op <= 0 || c->req.op >= MM_NR_OPS)
		return EXPECT_FAIL;
	if (!e || e->fenced)
		return EXPECT_FAIL;
	return expect_of_engine(s, e, c);
}
