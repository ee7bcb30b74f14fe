// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "sim.h"

bool gen_hostile(struct sim *s)
{
	return !s->stopping && rng_permille(s, s->world.hostile_permille);
}

/* An id that is wrong in one of the ways ids go wrong. */
static uint32_t bad_id(struct sim *s, const uint32_t *stale, uint32_t good)
{
	switch (rng_below(s, 5)) {
	case 0:
		return (uint32_t)rng_next(s);
	case 1:
		return good ^ 1u << rng_below(s, 32);
	case 2:
		return rng_below(s, 20);
	default:
		return stale[rng_below(s, SIM_STALE)];
	}
}

/* Just too much, far too much, nothing. */
static uint32_t hostile_size(struct sim *s, uint32_t max)
{
	switch (rng_below(s, 4)) {
	case 0:
		return 0;
	case 1:
		return UINT32_MAX - rng_below(s, 2);
	case 2:
		return 1u << rng_range(s, 16, 31);
	default:
		return max + 1 + rng_below(s, 3);
	}
}

/* A live engine, mostly one not fenced; 0 if there is none. */
static uint32_t pick_engine(struct sim *s)
{
	uint32_t e = 0;

	for (int try = 0; try < 4 && s->nr_live; try++) {
		e = s->live[rng_below(s, s->nr_live)];
		if (!s->engine[e].fenced)
			return e;
	}
	return gen_hostile(s) ? e : 0;
}

static uint32_t pick_cache(struct sim *s, const struct engine *e)
{
	if (gen_hostile(s) && s->nr_caches > 1)
		return rng_range(s, 1, s->nr_caches - 1);
	return e->nr_opens ? e->open[rng_below(s, e->nr_opens)] : 0;
}

static struct lease *pick_lease(struct sim *s, uint32_t engine)
{
	uint32_t first = rng_below(s, SIM_SLOTS);
	bool any = gen_hostile(s);

	for (uint32_t i = 0; i < SIM_SLOTS; i++) {
		struct lease *l = &s->lease[(first + i) % SIM_SLOTS];

		if (l->id && (any || l->engine == engine))
			return l;
	}
	return NULL;
}

static struct park *pick_park(struct sim *s, uint32_t engine)
{
	uint32_t first = rng_below(s, SIM_SLOTS);
	bool any = gen_hostile(s);

	for (uint32_t i = 0; i < SIM_SLOTS; i++) {
		struct park *p = &s->park[(first + i) % SIM_SLOTS];

		if (p->id && (any || p->engine == engine))
			return p;
	}
	return NULL;
}

struct call *gen_call(struct sim *s, enum mm_op op, uint32_t engine)
{
	struct call *c = call_new(s, op);
	struct engine *e = &s->engine[engine];

	c->req.engine = e->id;
	if (e->nr_members)
		c->req.member = s->member[e->member[0]].id;
	if (gen_hostile(s) && rng_percent(s, 20))
		c->req.engine = bad_id(s, s->stale_engine, e->id);
	return c;
}

/* ---- engines ------------------------------------------------------------------------------ */

static void gen_attach(struct sim *s)
{
	struct call *c;

	if (s->nr_live >= s->world.max_engines || s->nr_engines >= SIM_SERIALS - 8)
		return;
	c = call_new(s, MM_ENGINE_ATTACH);
	c->req.attach.tenant = SIM_FIRST_TENANT + rng_below(s, s->world.nr_tenants);
	call_submit(s, c);
}

static void gen_member(struct sim *s)
{
	uint32_t e = pick_engine(s);

	if (e && s->engine[e].nr_members < SIM_MEMBERS / 2 && s->nr_members < SIM_SERIALS - 8)
		call_submit(s, gen_call(s, MM_MEMBER_ATTACH, e));
}

static void gen_fence(struct sim *s)
{
	uint32_t e = pick_engine(s);

	if (e && rng_percent(s, 30))
		call_submit(s, gen_call(s, MM_FENCE, e));
}

void gen_member_gone(struct sim *s, uint32_t m)
{
	struct call *c = call_new(s, MM_MEMBER_GONE);

	c->req.engine = s->engine[s->member[m].engine].id;
	c->req.member = s->member[m].id;
	if (gen_hostile(s))
		c->req.member = bad_id(s, s->stale_member, c->req.member);
	call_submit(s, c);
}

static void gen_gone(struct sim *s)
{
	struct engine *e;

	if (!s->nr_live)
		return;
	e = &s->engine[s->live[rng_below(s, s->nr_live)]];
	if (!e->fenced && rng_percent(s, 80))
		return; /* mostly those already dying */
	gen_member_gone(s, e->member[rng_below(s, e->nr_members)]);
}

static void spoil_desc(struct sim *s, struct mm_cache_desc *d)
{
	switch (rng_below(s, 8)) {
	case 0:
		d->page_tokens = 0;
		break;
	case 1:
		d->nr_groups = rng_percent(s, 50) ? 0 : MM_MAX_GROUPS + 1;
		break;
	case 2:
		d->nr_shards = rng_percent(s, 50) ? 0 : 1u << 31;
		break;
	case 3:
		d->shard[0].device = s->cfg.nr_devices;
		break;
	case 4:
		d->shard[0].page_bytes[0] += 1;
		break;
	case 5:
		d->shard[0].page_bytes[0] = 0;
		break;
	case 6:
		d->group[0].kind = 77;
		break;
	default:
		d->layout_key[9] ^= 1;
	}
}

static void gen_open(struct sim *s)
{
	uint32_t e = pick_engine(s), m = rng_below(s, s->world.nr_models);
	struct call *c;

	if (!e || s->engine[e].nr_opens >= SIM_OPENS || s->nr_caches >= SIM_SERIALS - 8)
		return;
	for (uint32_t i = 0; i < s->engine[e].nr_opens; i++)
		if (s->cache[s->engine[e].open[i]].shared &&
		    !memcmp(s->cache[s->engine[e].open[i]].desc.model_key,
			    s->world.model[m].model_key, MM_KEY_BYTES) &&
		    !gen_hostile(s))
			return;
	c = gen_call(s, MM_CACHE_OPEN, e);
	c->desc = s->world.model[m];
	if (rng_percent(s, s->world.private_percent))
		memset(c->desc.model_key, 0, MM_KEY_BYTES);
	if (gen_hostile(s))
		spoil_desc(s, &c->desc);
	c->req.open.desc = &c->desc;
	if (rng_percent(s, s->world.promise_percent))
		c->req.open.min_pages = gen_hostile(s) ? (uint32_t)rng_next(s) : rng_below(s, 64);
	call_submit(s, c);
}

static void gen_close(struct sim *s)
{
	uint32_t e = pick_engine(s), k = e ? pick_cache(s, &s->engine[e]) : 0;
	struct call *c;

	if (!k || rng_percent(s, 50))
		return;
	c = gen_call(s, MM_CACHE_CLOSE, e);
	c->req.cache = s->cache[k].id;
	if (rng_percent(s, 30))
		c->req.flags = MM_CLOSE_GIVE_BACK;
	if (gen_hostile(s))
		c->req.flags = (uint32_t)rng_next(s);
	call_submit(s, c);
}

/* ---- mappings ----------------------------------------------------------------------------- */

static uint32_t pick_extent(struct sim *s, uint32_t engine)
{
	struct engine *e = &s->engine[engine];
	struct lease *l = pick_lease(s, engine);

	if (e->nr_held && rng_percent(s, 60))
		return mm_page_extent(s->page[e->held[rng_below(s, e->nr_held)]].id);
	if (l && l->nr_pins && !gen_hostile(s)) {
		uint32_t i = rng_below(s, l->nr_pins);

		return mm_page_extent(s->page[s->node[l->pin[i].node].page[l->pin[i].group]].id);
	}
	return gen_hostile(s) ? rng_below(s, s->top_extent + 3) : SIM_EXTENTS;
}

static void gen_import(struct sim *s)
{
	uint32_t e = pick_engine(s), x = e ? pick_extent(s, e) : SIM_EXTENTS, m;
	struct call *c;

	if (x == SIM_EXTENTS || !s->engine[e].nr_members)
		return;
	m = s->engine[e].member[rng_below(s, s->engine[e].nr_members)];
	c = gen_call(s, MM_IMPORT, e);
	c->req.member = s->member[m].id;
	c->req.map.extent = x;
	c->req.map.shard = rng_below(s, SIM_SHARDS);
	if (s->extent[x].cache && !gen_hostile(s))
		c->req.map.shard %= s->cache[s->extent[x].cache].desc.nr_shards;
	if (!gen_hostile(s) && model_import_find(&s->extent[x], m, c->req.map.shard))
		return;
	if (gen_hostile(s))
		c->req.map.extent = (uint32_t)rng_next(s);
	call_submit(s, c);
}

static void unimport(struct sim *s, uint32_t x, uint32_t m, uint32_t shard)
{
	struct call *c = call_new(s, MM_UNIMPORT);

	c->req.engine = s->engine[s->member[m].engine].id;
	c->req.member = s->member[m].id;
	c->req.map.extent = x;
	c->req.map.shard = shard;
	call_submit(s, c);
}

static void gen_unimport(struct sim *s)
{
	uint32_t e = pick_engine(s), first = rng_below(s, s->top_extent + 1);

	for (uint32_t n = 0; e && n < s->top_extent; n++) {
		uint32_t x = (first + n) % s->top_extent;

		for (uint32_t i = 0; i < s->extent[x].nr_imports; i++) {
			struct import im = s->extent[x].import[i];

			if (s->member[im.member].engine != e && !gen_hostile(s))
				continue;
			if (gen_hostile(s))
				im.shard ^= 1;
			unimport(s, x, im.member, im.shard);
			return;
		}
	}
}

static void retire(struct sim *s, uint32_t m, uint32_t x)
{
	struct extent *e = model_extent(s, x);

	for (uint32_t i = 0; i < e->nr_imports;) {
		if (e->import[i].member != m) {
			i++;
			continue;
		}
		unimport(s, x, m, e->import[i].shard);
		i = 0;
	}
}

/* As libkv does: a new page for each held one there, while there is room. */
static void vacate(struct sim *s, uint32_t m, uint32_t x)
{
	uint32_t ei = s->member[m].engine;
	struct engine *e = &s->engine[ei];
	struct call *c;

	s->sum.vacates++;
	for (uint32_t i = e->nr_held; i-- > 0;) {
		struct page p = s->page[e->held[i]];
		uint32_t had = e->nr_held;

		if (mm_page_extent(p.id) != x)
			continue;
		c = gen_call(s, MM_ALLOC, ei);
		c->req.cache = s->cache[p.cache].id;
		c->req.group = p.group;
		c->req.alloc.nr_pages = 1;
		call_submit(s, c);
		if (e->fenced || e->nr_held == had)
			break;
		c = gen_call(s, MM_FREE, ei);
		c->req.cache = s->cache[p.cache].id;
		c->pages[0] = p.id;
		c->req.free.pages = c->pages;
		c->req.free.nr_pages = 1;
		call_submit(s, c);
		s->sum.vacated++;
		if (e->fenced)
			break;
		i = i < e->nr_held ? i : e->nr_held;
	}
	c = gen_call(s, MM_VACATE_ACK, ei);
	c->req.ack.extent = x;
	call_submit(s, c);
}

void gen_poll(struct sim *s, uint32_t m)
{
	struct call *c = call_new(s, MM_EVENTS);
	uint32_t nr;

	c->req.engine = s->engine[s->member[m].engine].id;
	c->req.member = s->member[m].id;
	s->member[m].notified = false;
	s->last_reply.nr_events = 0;
	call_submit(s, c);
	nr = s->last_reply.nr_events;
	if (s->member[m].lazy && !s->stopping && rng_percent(s, 90))
		return;
	for (uint32_t i = 0; i < nr && i < SIM_EVENTS_MAX; i++)
		if (s->events[i].kind == MM_EVENT_RETIRE)
			retire(s, m, s->events[i].extent);
	/* Answers to these bring no events, but may end the member. */
	for (uint32_t i = 0; i < nr && i < SIM_EVENTS_MAX && s->member[m].alive; i++)
		if (s->events[i].kind == MM_EVENT_VACATE && !s->engine[s->member[m].engine].fenced)
			vacate(s, m, s->events[i].extent);
}

static void gen_events(struct sim *s)
{
	uint32_t e = pick_engine(s);

	if (!e)
		return;
	for (uint32_t i = 0; i < s->engine[e].nr_members; i++) {
		uint32_t m = s->engine[e].member[i];

		if (s->member[m].alive && (s->member[m].notified || rng_percent(s, 20)))
			gen_poll(s, m);
	}
}

/* ---- pages -------------------------------------------------------------------------------- */

static void alloc(struct sim *s, uint32_t e, uint32_t k, uint32_t group, uint32_t nr)
{
	struct call *c = gen_call(s, MM_ALLOC, e);

	c->req.cache = s->cache[k].id;
	c->req.group = group;
	c->req.alloc.nr_pages = nr < s->cfg.batch_pages ? nr : s->cfg.batch_pages;
	if (rng_percent(s, s->world.deadline_percent))
		c->req.alloc.deadline_ns = s->now_ns + rng_below(s, 50 * 1000 * 1000);
	if (gen_hostile(s))
		c->req.alloc.deadline_ns = UINT64_MAX - rng_below(s, 2);
	if (gen_hostile(s))
		c->req.alloc.nr_pages = hostile_size(s, s->cfg.batch_pages);
	if (gen_hostile(s))
		c->req.group = rng_below(s, 12);
	call_submit(s, c);
}

static void gen_alloc(struct sim *s)
{
	uint32_t e = pick_engine(s), k = e ? pick_cache(s, &s->engine[e]) : 0;

	if (!k || s->engine[e].nr_held >= s->world.max_held)
		return;
	alloc(s, e, k, rng_below(s, s->cache[k].desc.nr_groups), rng_range(s, 1, 8));
}

void gen_give(struct sim *s, uint32_t e, uint32_t nr)
{
	struct call *c = gen_call(s, MM_FREE, e);
	struct engine *g = &s->engine[e];
	uint32_t first = rng_below(s, g->nr_held);

	if (nr > s->cfg.batch_pages)
		nr = s->cfg.batch_pages;
	if (nr > SIM_BATCH)
		nr = SIM_BATCH;
	for (uint32_t i = 0; i < nr; i++)
		c->pages[i] = s->page[g->held[(first + i) % g->nr_held]].id;
	c->req.cache =
		s->page[g->held[first]].cache ? s->cache[s->page[g->held[first]].cache].id : 0;
	c->req.free.nr_pages = nr;
	c->req.free.pages = c->pages;
	if (gen_hostile(s)) {
		uint32_t i = rng_below(s, nr);

		switch (rng_below(s, 4)) {
		case 0:
			c->pages[i] = s->page[rng_range(s, 1, s->nr_pages - 1)].id;
			break;
		case 1:
			c->pages[i] = rng_next(s);
			break;
		case 2:
			c->pages[i] ^= 1ull << rng_below(s, 64);
			break;
		default:
			c->pages[i] = c->pages[0];
		}
	}
	call_submit(s, c);
}

static void gen_free(struct sim *s)
{
	uint32_t e = pick_engine(s), nr = rng_range(s, 1, 8);

	if (e && s->engine[e].nr_held)
		gen_give(s, e, nr < s->engine[e].nr_held ? nr : s->engine[e].nr_held);
}

/* ---- content ------------------------------------------------------------------------------ */

static uint32_t set_keys(struct call *c, const struct seq *q, uint32_t from, uint32_t to)
{
	uint32_t nr = 0;

	for (uint32_t i = from; i < to; i++) {
		if (!q->key[i])
			continue;
		c->keys[nr].page = i;
		world_key(q->key[i], c->keys[nr++].digest);
	}
	return nr;
}

static void gen_lookup(struct sim *s)
{
	uint32_t e = pick_engine(s), k = e ? pick_cache(s, &s->engine[e]) : 0, pt;
	struct call *c;

	if (!k)
		return;
	pt = s->cache[k].desc.page_tokens;
	c = gen_call(s, MM_LOOKUP, e);
	world_seq(s, &c->seq);
	if (c->seq.nr_tokens > SIM_DEPTH * pt)
		c->seq.nr_tokens = SIM_DEPTH * pt;
	c->req.cache = s->cache[k].id;
	c->req.lookup.tokens = c->seq.tokens;
	c->req.lookup.nr_tokens = c->seq.nr_tokens;
	c->req.lookup.keys = c->keys;
	c->req.lookup.nr_keys = set_keys(c, &c->seq, 0, (c->seq.nr_tokens + pt - 1) / pt);
	if (rng_percent(s, s->world.adopt_percent))
		c->req.flags = MM_LOOKUP_ADOPT;
	call_submit(s, c);
}

/* Held pages of a cache and group, nr at most, picked from the newest on. */
static uint32_t held_of(struct sim *s, const struct engine *e, uint32_t k, uint32_t group,
			uint32_t nr, uint64_t *ids)
{
	uint32_t found = 0;

	for (uint32_t i = e->nr_held; i > 0 && found < nr; i--) {
		struct page *p = &s->page[e->held[i - 1]];

		if (p->cache == k && p->group == group)
			ids[found++] = p->id;
	}
	return found;
}

/* Fills pages[group][nr]: full groups always, others where a sensible engine would have some. */
static bool commit_pages(struct sim *s, struct call *c, const struct engine *e, uint32_t k,
			 uint32_t depth, uint32_t nr, uint64_t len_tokens)
{
	const struct mm_cache_desc *d = &s->cache[k].desc;
	bool everywhere = rng_percent(s, 30), lax = rng_percent(s, 10);

	for (uint32_t g = 0; g < d->nr_groups; g++) {
		uint64_t ids[SIM_BATCH];
		uint32_t have = held_of(s, e, k, g, nr, ids), used = 0;

		for (uint32_t i = 0; i < nr; i++) {
			bool need = d->group[g].kind == MM_GROUP_FULL;

			if (d->group[g].kind == MM_GROUP_WINDOW)
				need = tree_window_needs(d, g, depth + i, len_tokens);
			if (need && used == have && !(lax && d->group[g].kind != MM_GROUP_FULL))
				return false;
			if (d->group[g].kind == MM_GROUP_STATE)
				need = rng_percent(s, i + 1 == nr ? 70 : 15);
			if ((need || everywhere) && used < have)
				c->pages[g * nr + i] = ids[used++];
		}
	}
	return true;
}

static void spoil_commit(struct sim *s, struct call *c, uint32_t engine)
{
	uint32_t i = rng_below(s, c->req.commit.nr_pages);
	struct lease *l = pick_lease(s, engine), *now;

	switch (rng_below(s, 7)) {
	case 0:
		c->pages[i] = s->page[rng_range(s, 1, s->nr_pages - 1)].id;
		break;
	case 1:
		c->pages[i] = rng_next(s);
		break;
	case 2:
		c->req.commit.lease = bad_id(s, s->stale_lease, c->req.commit.lease);
		break;
	case 3:
		c->req.commit.nr_tokens += rng_range(s, 1, 5);
		break;
	case 4:
		c->pages[i] = c->pages[0];
		break;
	case 5:
		c->req.commit.lease = l ? l->id : 12345;
		break;
	default:
		c->pages[i] = 0;
	}
	now = model_lease(s, c->req.commit.lease);
	if (now && s->node[now->node].depth + c->req.commit.nr_pages > SIM_DEPTH)
		c->req.commit.lease = 12345; /* deeper than the model goes */
}

/* The sequence to commit: what the lease stands on, and more, mostly of a document. */
static void commit_seq(struct sim *s, const struct lease *l, uint32_t k, struct seq *q)
{
	uint32_t pt = s->cache[k].desc.page_tokens, start, len;
	struct seq doc;

	memset(q, 0, sizeof(*q));
	if (l)
		tree_path(s, l->node, q);
	start = q->nr_tokens;
	world_seq(s, &doc);
	len = doc.nr_tokens > start ? doc.nr_tokens : start + rng_range(s, 1, 2 * pt);
	for (uint32_t d = 0; d < SIM_DOCS && start; d++)
		if (s->world.doc[d].nr_tokens > start &&
		    !memcmp(s->world.doc[d].tokens, q->tokens, start * sizeof(*q->tokens)))
			doc = s->world.doc[d];
	if (len > SIM_DEPTH * pt)
		len = SIM_DEPTH * pt;
	for (uint32_t t = start; t < len && t < doc.nr_tokens; t++)
		q->tokens[q->nr_tokens++] = doc.tokens[t];
	world_extend(s, q, len);
	for (uint32_t i = start / pt; i <= SIM_DEPTH; i++)
		q->key[i] = doc.key[i];
}

static void commit(struct sim *s, uint32_t e, uint32_t k, struct lease *l)
{
	struct call *c = gen_call(s, MM_COMMIT, e);
	uint32_t pt = s->cache[k].desc.page_tokens, depth = l ? s->node[l->node].depth : 0, nr, end;
	uint32_t have = SIM_DEPTH, start = depth * pt;
	uint64_t ids[SIM_BATCH];

	commit_seq(s, l, k, &c->seq);
	for (uint32_t g = 0; g < s->cache[k].desc.nr_groups; g++)
		if (s->cache[k].desc.group[g].kind == MM_GROUP_FULL) {
			nr = held_of(s, &s->engine[e], k, g, SIM_DEPTH, ids);
			have = nr < have ? nr : have;
		}
	if (c->seq.nr_tokens <= start)
		return;
	nr = (c->seq.nr_tokens - start + pt - 1) / pt;
	nr = nr < have ? nr : have;
	nr = nr < s->cfg.batch_pages ? nr : s->cfg.batch_pages;
	if (nr > 1 && rng_percent(s, 40))
		nr = rng_range(s, 1, nr);
	if (!nr) {
		alloc(s, e, k, s->cache[k].full, rng_range(s, 1, 6));
		return;
	}
	end = start + nr * pt;
	if (end > c->seq.nr_tokens || (pt > 1 && rng_percent(s, s->world.partial_percent)))
		end = end > c->seq.nr_tokens ? c->seq.nr_tokens : end - rng_range(s, 1, pt - 1);
	if (end % pt && !rng_percent(s, 5 + s->world.partial_percent) && nr > 1)
		end = start + --nr * pt;
	if (end % pt || rng_percent(s, 10))
		c->req.flags = MM_COMMIT_PARTIAL;
	if (!commit_pages(s, c, &s->engine[e], k, depth, nr, end)) {
		alloc(s, e, k, rng_below(s, s->cache[k].desc.nr_groups), rng_range(s, 1, 6));
		return;
	}
	c->req.cache = s->cache[k].id;
	c->req.commit.lease = l ? l->id : 0;
	c->req.commit.tokens = c->seq.tokens + start;
	c->req.commit.nr_tokens = end - start;
	c->req.commit.pages = c->pages;
	c->req.commit.nr_pages = nr;
	c->req.commit.keys = c->keys;
	c->req.commit.nr_keys = set_keys(c, &c->seq, depth, depth + nr);
	if (gen_hostile(s))
		spoil_commit(s, c, e);
	call_submit(s, c);
}

static void gen_commit(struct sim *s)
{
	uint32_t e = pick_engine(s), k = e ? pick_cache(s, &s->engine[e]) : 0;
	struct lease *l = e && rng_percent(s, 50) ? pick_lease(s, e) : NULL;

	if (l && l->engine == e)
		k = l->cache;
	if (!k)
		return;
	if (l && !gen_hostile(s) &&
	    (l->engine != e || s->node[l->node].depth >= SIM_DEPTH ||
	     tree_tokens(s, l->node) % s->cache[k].desc.page_tokens))
		l = NULL;
	if (l && (l->cache != k || s->node[l->node].depth >= SIM_DEPTH))
		l = NULL;
	commit(s, e, k, l);
}

/* ---- leases and parks --------------------------------------------------------------------- */

static void gen_dup(struct sim *s)
{
	uint32_t e = pick_engine(s);
	struct lease *l = e ? pick_lease(s, e) : NULL;
	struct call *c;

	if (!l)
		return;
	c = gen_call(s, MM_LEASE_DUP, e);
	c->req.cache = s->cache[l->cache].id;
	c->req.lease.lease = l->id;
	if (rng_percent(s, 60))
		c->req.lease.depth_pages =
			rng_below(s, s->node[l->node].depth + 1 + gen_hostile(s));
	if (gen_hostile(s))
		c->req.lease.lease = bad_id(s, s->stale_lease, l->id);
	call_submit(s, c);
}

static void gen_unlease(struct sim *s)
{
	uint32_t e = pick_engine(s), nr = rng_range(s, 1, 4), found = 0;
	struct call *c;

	if (!e)
		return;
	c = gen_call(s, MM_UNLEASE, e);
	for (uint32_t i = 0; i < nr && i < s->cfg.batch_pages; i++) {
		struct lease *l = pick_lease(s, e);
		bool twice = false;

		for (uint32_t j = 0; l && j < found; j++)
			twice |= c->ids[j] == l->id;
		if (!l || (twice && !gen_hostile(s)))
			continue;
		c->req.cache = s->cache[l->cache].id;
		c->ids[found++] = gen_hostile(s) ? bad_id(s, s->stale_lease, l->id) : l->id;
	}
	if (!found)
		return;
	c->req.unlease.leases = c->ids;
	c->req.unlease.nr_leases = found;
	call_submit(s, c);
}

static void gen_park(struct sim *s)
{
	uint32_t e = pick_engine(s);
	struct lease *l = e ? pick_lease(s, e) : NULL;
	struct call *c;

	if (!l)
		return;
	c = gen_call(s, MM_PARK, e);
	c->req.cache = s->cache[l->cache].id;
	c->req.park.lease = gen_hostile(s) ? bad_id(s, s->stale_lease, l->id) : l->id;
	call_submit(s, c);
}

static void with_park(struct sim *s, enum mm_op op)
{
	uint32_t e = pick_engine(s);
	struct park *p = e ? pick_park(s, e) : NULL;
	struct call *c;

	if (!p)
		return;
	c = gen_call(s, op, e);
	c->req.cache = s->cache[p->cache].id;
	c->req.park.park = gen_hostile(s) ? bad_id(s, s->stale_park, p->id) : p->id;
	call_submit(s, c);
}

static void gen_resume(struct sim *s)
{
	with_park(s, MM_RESUME);
}

static void gen_unpark(struct sim *s)
{
	with_park(s, MM_UNPARK);
}

static void gen_hint(struct sim *s)
{
	uint32_t e = pick_engine(s), depth;
	struct lease *l = e ? pick_lease(s, e) : NULL;
	struct mm_hint *h;
	struct call *c;

	if (!l)
		return;
	c = gen_call(s, MM_HINT, e);
	c->req.cache = s->cache[l->cache].id;
	c->req.hint.lease = gen_hostile(s) ? bad_id(s, s->stale_lease, l->id) : l->id;
	depth = s->node[l->node].depth;
	h = &c->req.hint.hint;
	h->from_page = rng_below(s, depth + gen_hostile(s));
	h->to_page = rng_percent(s, 30) ? 0 : rng_range(s, h->from_page, depth + gen_hostile(s));
	h->priority = rng_below(s, 3 + gen_hostile(s));
	h->reuse_ms = rng_percent(s, 50) ? 0 : 1u << rng_below(s, 32);
	h->ttl_ms = rng_percent(s, 50) ? 0 : (uint32_t)rng_next(s) >> rng_below(s, 32);
	call_submit(s, c);
}

static void gen_drop_head(struct sim *s)
{
	uint32_t e = pick_engine(s);
	struct lease *l = e ? pick_lease(s, e) : NULL;
	struct call *c;

	if (!l)
		return;
	c = gen_call(s, MM_DROP_HEAD, e);
	c->req.cache = s->cache[l->cache].id;
	c->req.group = rng_below(s, s->cache[l->cache].desc.nr_groups + gen_hostile(s));
	c->req.lease.lease = gen_hostile(s) ? bad_id(s, s->stale_lease, l->id) : l->id;
	c->req.lease.depth_pages = rng_below(s, s->node[l->node].depth + 1);
	call_submit(s, c);
}

/* ---- the rest ----------------------------------------------------------------------------- */

static void gen_reserve(struct sim *s)
{
	uint32_t e = pick_engine(s), d = rng_below(s, s->cfg.nr_devices + gen_hostile(s));
	struct call *c;

	if (!e)
		return;
	c = gen_call(s, MM_RESERVE, e);
	c->req.reserve.device = d;
	c->req.reserve.what = rng_below(s, MM_NR_RESERVES + gen_hostile(s));
	if (d < s->cfg.nr_devices && rng_percent(s, 60))
		c->req.reserve.bytes = rng_below(s, (uint32_t)s->cfg.device[d].pool_bytes / 3);
	if (gen_hostile(s))
		c->req.reserve.bytes = rng_next(s);
	call_submit(s, c);
}

static void gen_ack(struct sim *s)
{
	uint32_t e = pick_engine(s);
	struct call *c;

	if (!e)
		return;
	c = gen_call(s, rng_percent(s, 50) ? MM_PRESSURE_ACK : MM_VACATE_ACK, e);
	c->req.ack.extent = rng_below(s, s->top_extent + 1);
	c->req.ack.seq = rng_below(s, 4);
	call_submit(s, c);
}

static void gen_stat(struct sim *s)
{
	uint32_t e = pick_engine(s);

	if (e)
		call_submit(s, gen_call(s, MM_STAT, e));
}

static void gen_complete(struct sim *s)
{
	uint64_t id = s->stale_effect[rng_below(s, SIM_STALE)], before;

	if (rng_percent(s, 50))
		id = rng_next(s);
	for (uint32_t i = 0; i < s->nr_todo; i++)
		if (s->todo[i].effect.id == id)
			return;
	if (mm_next_deadline(s->mm) <= s->now_ns)
		return; /* the call would also do work that is due */
	before = mm_digest(s->mm);
	SIM_CHECK(s, mm_complete(s->mm, id, 0, s->now_ns) < 0, "effect %llx is completed twice",
		  (unsigned long long)id);
	SIM_CHECK(s, mm_digest(s->mm) == before, "a wrong completion changed something");
	call_drain(s);
}

/* Requests of every kind, all fields random: refused, or at least survived. */
static void gen_garbage(struct sim *s)
{
	static const enum mm_op ops[] = {
		MM_IMPORT, MM_UNIMPORT,	 MM_LEASE_DUP,	 MM_PARK,	 MM_RESUME,
		MM_UNPARK, MM_DROP_HEAD, MM_CACHE_CLOSE, MM_MEMBER_GONE, MM_FENCE,
		MM_EVENTS, MM_ALLOC,	 MM_STAT,
	};
	struct call *c;

	if (!s->world.hostile_permille)
		return;
	c = call_new(s, ops[rng_below(s, sizeof(ops) / sizeof(*ops))]);
	c->req.engine = bad_id(s, s->stale_engine, s->nr_live ? s->engine[s->live[0]].id : 1);
	c->req.member = bad_id(s, s->stale_member, 1);
	c->req.cache = bad_id(s, s->stale_cache, 1);
	c->req.map.extent = rng_percent(s, 50) ? (uint32_t)rng_next(s) : rng_below(s, 10);
	c->req.map.shard = rng_percent(s, 50) ? (uint32_t)rng_next(s) : rng_below(s, 3);
	call_submit(s, c);
}

/* Whoever holds a lease reads what it covers, any time. */
static void gen_read(struct sim *s)
{
	uint32_t e = pick_engine(s);
	struct lease *l = e ? pick_lease(s, e) : NULL;

	if (l)
		memory_read_lease(s, l);
}

/* A process that has been fenced but lives still writes to the pages it held. */
static void gen_scribble(struct sim *s)
{
	struct engine *e;

	if (!s->nr_live)
		return;
	e = &s->engine[s->live[rng_below(s, s->nr_live)]];
	if (e->fenced && e->nr_held)
		memory_scribble(s, &s->page[e->held[rng_below(s, e->nr_held)]]);
}

/* One row an operation: its share of the steps, the feature it belongs to, its generator. What it
 * may answer is in oracle.c (before) and reply.c (after). */
const struct sim_op_desc sim_ops[SIM_NR_OPS] = {
	[SIM_ATTACH] = {"attach", 4, FEAT_CORE, gen_attach},
	[SIM_MEMBER] = {"member", 3, FEAT_MEMBERS, gen_member},
	[SIM_FENCE] = {"fence", 1, FEAT_DEATH, gen_fence},
	[SIM_GONE] = {"gone", 3, FEAT_DEATH, gen_gone},
	[SIM_OPEN] = {"open", 8, FEAT_CORE, gen_open},
	[SIM_CLOSE] = {"close", 2, FEAT_CLOSE, gen_close},
	[SIM_IMPORT] = {"import", 20, FEAT_MAP, gen_import},
	[SIM_UNIMPORT] = {"unimport", 6, FEAT_MAP, gen_unimport},
	[SIM_ALLOC] = {"alloc", 80, FEAT_CORE, gen_alloc},
	[SIM_FREE] = {"free", 30, FEAT_CORE, gen_free},
	[SIM_LOOKUP] = {"lookup", 80, FEAT_LOOKUP, gen_lookup},
	[SIM_COMMIT] = {"commit", 80, FEAT_COMMIT, gen_commit},
	[SIM_DUP] = {"dup", 8, FEAT_DUP, gen_dup},
	[SIM_UNLEASE] = {"unlease", 60, FEAT_CORE, gen_unlease},
	[SIM_PARK] = {"park", 15, FEAT_PARK, gen_park},
	[SIM_RESUME] = {"resume", 15, FEAT_PARK, gen_resume},
	[SIM_UNPARK] = {"unpark", 5, FEAT_PARK, gen_unpark},
	[SIM_DROP_HEAD] = {"drop_head", 6, FEAT_DROP_HEAD, gen_drop_head},
	[SIM_RESERVE] = {"reserve", 4, FEAT_RESERVE, gen_reserve},
	[SIM_EVENTS] = {"events", 12, FEAT_CORE, gen_events},
	[SIM_ACK] = {"ack", 2, FEAT_HOSTILE, gen_ack},
	[SIM_STAT] = {"stat", 1, FEAT_CORE, gen_stat},
	[SIM_COMPLETE] = {"complete", 1, FEAT_HOSTILE, gen_complete},
	[SIM_GARBAGE] = {"garbage", 1, FEAT_HOSTILE, gen_garbage},
	[SIM_READ] = {"read", 20, FEAT_CORE, gen_read},
	[SIM_SCRIBBLE] = {"scribble", 3, FEAT_DEATH, gen_scribble},
	[SIM_HINT] = {"hint", 8, FEAT_HINT, gen_hint},
	[SIM_TENANT_SET] = {"tenant_set", 4, FEAT_LIMITS, gen_tenant_set},
};

/* Of those that were killed, one process after the other. */
void gen_deaths(struct sim *s, bool all)
{
	for (uint32_t i = s->nr_live; i-- > 0;) {
		struct engine *e = &s->engine[s->live[i]];

		for (uint32_t m = 0; e->killed && m < e->nr_members; m++) {
			if (!s->member[e->member[m]].alive || (!all && s->step < e->dies_step))
				continue;
			gen_member_gone(s, e->member[m]);
			if (!all)
				return;
		}
	}
}

void gen_step(struct sim *s)
{
	uint32_t w = rng_below(s, s->world.weights), op = 0;

	while (op < SIM_NR_OPS - 1 && w >= s->world.weight[op])
		w -= s->world.weight[op++];
	if (s->nr_live < 1)
		op = SIM_ATTACH;
	if (s->opt->verbose)
		sim_say(s, "%s", sim_ops[op].name);
	gen_deaths(s, false);
	sim_ops[op].gen(s);
	if (!rng_percent(s, s->world.hold_effects_percent))
		effects_run(s, false);
	s->now_ns += rng_below(s, (uint32_t)s->world.max_step_ns);
	if (rng_permille(s, s->world.jump_permille)) {
		s->now_ns += rng_next(s) % (2 * MM_MAX_WAIT_NS);
		s->sum.jumps++;
	}
	if (mm_next_deadline(s->mm) <= s->now_ns && rng_percent(s, 70))
		call_tick(s, rng_range(s, 1, 64));
}
