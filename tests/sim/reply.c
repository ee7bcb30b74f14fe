// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

/* ---- errors ---------------------------------------------------------------------------------- */

/* Of these an engine gets a share only. */
static bool is_shared(size_t off)
{
	return off == offsetof(struct mm_config, max_caches) ||
	       off == offsetof(struct mm_config, max_leases) ||
	       off == offsetof(struct mm_config, max_parks) ||
	       off == offsetof(struct mm_config, max_keys) ||
	       off == offsetof(struct mm_config, max_pending);
}

static void check_table_full(struct sim *s, const struct mm_reply *r)
{
	static const struct {
		size_t off, size;
	} limit[] = {
#define L(f) {offsetof(struct mm_config, f), sizeof(((struct mm_config *)0)->f)}
		L(max_tenants), L(max_engines), L(max_members), L(max_caches), L(max_extents),
		L(max_frames),	L(max_nodes),	L(max_leases),	L(max_parks),  L(max_keys),
		L(max_pending), L(max_tokens),	L(batch_pages),
#undef L
	};
	uint64_t value = 0;

	for (size_t i = 0; i < sizeof(limit) / sizeof(*limit); i++) {
		if (limit[i].off != r->a)
			continue;
		memcpy(&value, (const char *)&s->cfg + r->a, limit[i].size); /* little-endian */
		SIM_CHECK(s, r->b == value || (is_shared(r->a) && r->b < value),
			  "op %d: limit at %llu is %llu, not %llu", r->op,
			  (unsigned long long)r->a, (unsigned long long)value,
			  (unsigned long long)r->b);
		return;
	}
	sim_fail(s, "op %d: no limit at offset %llu", r->op, (unsigned long long)r->a);
}

/* Is a share of these really used up, and the one that mm names? */
static void check_share(struct sim *s, const struct mm_reply *r, uint32_t own, uint32_t all,
			uint32_t max, uint32_t want)
{
	uint32_t share = (own + max - all + 1) / 2;

	SIM_CHECK(s, r->b == share && own + want > share,
		  "op %d: %u of %u in use, %u of them its own, share %llu", r->op, all, max, own,
		  (unsigned long long)r->b);
}

/* A table of leases or parks refuses only what the model counts to be too much. */
static void check_really_full(struct sim *s, const struct call *c, const struct mm_reply *r)
{
	uint32_t leases = 0, parks = 0, own_leases = 0, own_parks = 0;

	for (uint32_t i = 0; i < SIM_SLOTS; i++) {
		leases += s->lease[i].id != 0;
		parks += s->park[i].id != 0;
		own_leases += s->lease[i].id && s->lease[i].engine == c->engine;
		own_parks += s->park[i].id && s->park[i].engine == c->engine;
	}
	if (r->a == offsetof(struct mm_config, max_leases))
		check_share(s, r, own_leases, leases, s->cfg.max_leases,
			    r->op == MM_LOOKUP || r->op == MM_RESUME ? 2 : 1);
	if (r->a == offsetof(struct mm_config, max_parks))
		check_share(s, r, own_parks, parks, s->cfg.max_parks, 1);
	if (r->a == offsetof(struct mm_config, max_engines))
		SIM_CHECK(s, r->op == MM_ENGINE_ATTACH, "op %d needs no engine", r->op);
}

/* Pages on their way here take room too. */
static uint32_t moving_to(struct sim *s, uint32_t extent)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < s->nr_todo; i++)
		nr += s->todo[i].effect.kind == MM_EFFECT_MOVE &&
		      s->todo[i].effect.to_extent == extent;
	return nr;
}

/* Frames that nobody uses in extents this engine surely still writes. */
static uint32_t free_slots(struct sim *s, uint32_t engine, uint32_t cache, uint32_t group)
{
	uint32_t total = 0;

	for (uint32_t i = 0; i < s->top_extent; i++) {
		struct extent *x = &s->extent[i];
		uint32_t nr = 0;
		bool held = false;

		if (x->cache != cache || x->group != group || x->writer != engine)
			continue;
		for (uint32_t f = 0; f < x->nr_slots; f++) {
			struct page *p = &s->page[x->frame[f].page];
			bool clean = !x->frame[f].owner || x->frame[f].owner == engine;

			held |= x->frame[f].page && p->state == PAGE_HELD;
			nr += clean && (!x->frame[f].page || p->state == PAGE_GONE);
		}
		if (held)
			total += nr - (nr < moving_to(s, i) ? nr : moving_to(s, i));
	}
	return total;
}

/* Then what it gives back is not given to it again. */
static bool above_max(struct sim *s, uint32_t engine)
{
	const struct tenant *t = budget_tenant(s, s->engine[engine].uid);
	struct mm_tenant_info info;

	if (mm_tenant_info(s->mm, s->engine[engine].uid, &info))
		return false;
	for (uint32_t d = 0; d < s->cfg.nr_devices; d++)
		if (info.device[d].charge_bytes > t->limit[d].max_bytes)
			return true;
	return false;
}

static void check_refused_alloc(struct sim *s, const struct call *c)
{
	uint32_t nr;

	s->sum.refused++;
	if (c->expect != EXPECT_ROOM || s->engine[c->engine].fenced || above_max(s, c->engine))
		return;
	nr = free_slots(s, c->engine, c->cache, c->req.group);
	SIM_CHECK(s, nr < c->req.alloc.nr_pages, "refused %u pages with %u free in own extents",
		  c->req.alloc.nr_pages, nr);
}

/* Only a max that was set refuses by it. */
static void check_tenant_max(struct sim *s, const struct call *c)
{
	const struct tenant *t = budget_tenant(s, s->engine[c->engine].uid);

	for (uint32_t d = 0; d < s->cfg.nr_devices; d++)
		if (t->limit[d].max_bytes != MM_NO_LIMIT)
			return;
	sim_fail(s, "tenant %u has no max that could refuse it", s->engine[c->engine].uid);
}

static void reply_error(struct sim *s, const struct call *c, const struct mm_reply *r)
{
	bool fenced = s->engine[c->engine].fenced && r->op == MM_ALLOC;

	s->op_err[r->op]++;
	s->last_reason = r->reason;
	SIM_CHECK(s,
		  r->result != -EAGAIN || r->op == MM_CACHE_OPEN || r->op == MM_ENGINE_ATTACH ||
			  r->op == MM_RESERVE || r->op == MM_TENANT_SET,
		  "op %d: -EAGAIN in a reply", r->op);
	SIM_CHECK(s, r->result < 0, "op %d: result %d", r->op, r->result);
	if (c->cancelled) {
		SIM_CHECK(s, r->result == -EACCES && r->reason == MM_NOT_OWNER,
			  "an allocation in a closed cache is refused: %d reason %d", r->result,
			  r->reason);
		s->sum.cancelled++;
		return;
	}
	SIM_CHECK(s, r->reason != MM_OK, "op %d: result %d without a reason", r->op, r->result);
	SIM_CHECK(s, c->expect != EXPECT_OK || fenced,
		  "op %d is refused: %d reason %d (%llu, %llu)", r->op, r->result, r->reason,
		  (unsigned long long)r->a, (unsigned long long)r->b);
	if (r->reason == MM_TABLE_FULL) {
		check_table_full(s, r);
		check_really_full(s, c, r);
	}
	SIM_CHECK(s,
		  c->expect != EXPECT_ROOM || fenced || r->reason == MM_POOL_FULL ||
			  r->reason == MM_TENANT_MAX || r->reason == MM_TABLE_FULL ||
			  (r->reason == MM_TIMED_OUT && r->op == MM_ALLOC),
		  "op %d is refused: %d reason %d, expected room or a full table", r->op, r->result,
		  r->reason);
	if (r->reason == MM_TENANT_MAX)
		check_tenant_max(s, c);
	if (r->op == MM_ALLOC)
		check_refused_alloc(s, c);
	/* Those refused for lack of memory may have set reclaim going. */
	if (c->have_before && r->reason != MM_POOL_FULL && r->reason != MM_TIMED_OUT &&
	    r->reason != MM_TENANT_MAX && !(r->op == MM_ALLOC && r->reason == MM_TABLE_FULL) &&
	    r->result != -EAGAIN)
		SIM_CHECK(s, mm_digest(s->mm) == c->digest_before,
			  "op %d failed with %d reason %d but changed something", r->op, r->result,
			  r->reason);
}

/* ---- successes ------------------------------------------------------------------------------- */

static uint32_t member_new(struct sim *s, uint32_t engine, uint32_t id)
{
	struct engine *e = &s->engine[engine];
	uint32_t m = s->nr_members, alive = 0;

	SIM_CHECK(s, id && !model_member(s, id), "member id %u is %s", id, id ? "alive" : "none");
	SIM_CHECK(s, m < SIM_SERIALS && e->nr_members < SIM_MEMBERS, "sim: members");
	s->nr_members++;
	s->member[m] = (struct member){.id = id, .engine = engine, .alive = true};
	s->member[m].lazy = rng_percent(s, s->world.lazy_percent);
	e->member[e->nr_members++] = m;
	e->nr_alive++;
	for (uint32_t i = 0; i < s->nr_live; i++)
		alive += s->engine[s->live[i]].nr_alive;
	SIM_CHECK(s, alive <= s->cfg.max_members, "%u members, max_members is %u", alive,
		  s->cfg.max_members);
	return m;
}

static void ok_engine_attach(struct sim *s, struct call *c, const struct mm_reply *r)
{
	uint32_t e = s->nr_engines;

	SIM_CHECK(s, r->engine && !model_engine(s, r->engine), "engine id %u is %s", r->engine,
		  r->engine ? "alive" : "none");
	SIM_CHECK(s, e < SIM_SERIALS, "sim: engines");
	SIM_CHECK(s, s->nr_live < s->cfg.max_engines, "more than max_engines %u",
		  s->cfg.max_engines);
	s->nr_engines++;
	free(s->engine[e].held);
	memset(&s->engine[e], 0, sizeof(s->engine[e]));
	s->engine[e].id = r->engine;
	s->engine[e].uid = c->req.attach.tenant;
	s->live[s->nr_live++] = e;
	s->sum.engines++;
	member_new(s, e, r->member);
}

static void ok_member_attach(struct sim *s, struct call *c, const struct mm_reply *r)
{
	member_new(s, c->engine, r->member);
}

static void ok_fence(struct sim *s, struct call *c, const struct mm_reply *r)
{
	(void)r;
	SIM_CHECK(s, c->engine || mm_digest(s->mm) == c->digest_before || !c->have_before,
		  "fencing no engine changes something");
	if (c->engine && !s->engine[c->engine].fenced)
		model_fence(s, &s->engine[c->engine]);
}

static void ok_member_gone(struct sim *s, struct call *c, const struct mm_reply *r)
{
	struct member *m = model_member(s, c->req.member);
	struct engine *e = &s->engine[m->engine];
	uint32_t mi = (uint32_t)(m - s->member);

	(void)r;
	if (!e->fenced)
		model_fence(s, e);
	m->alive = false;
	model_stale(s, s->stale_member, m->id);
	for (uint32_t x = 0; x < s->top_extent; x++)
		for (uint32_t i = 0; i < s->extent[x].nr_imports;)
			if (s->extent[x].import[i].member == mi)
				model_import_del(&s->extent[x], &s->extent[x].import[i]);
			else
				i++;
	if (!--e->nr_alive)
		model_engine_gone(s, e);
}

static struct cache *cache_new(struct sim *s, struct call *c, uint32_t id)
{
	uint32_t i = s->nr_caches;
	struct cache *k = &s->cache[i];

	SIM_CHECK(s, id && !model_cache(s, id), "cache id %u is %s", id, id ? "another's" : "none");
	SIM_CHECK(s, i < SIM_SERIALS, "sim: caches");
	s->nr_caches++;
	memset(k, 0, sizeof(*k));
	k->id = id;
	k->uid = s->engine[c->engine].uid;
	k->desc = c->desc;
	k->root = tree_new(s, i, 0, NULL, 0, 0);
	k->owner = c->engine;
	k->plain = true;
	for (uint32_t b = 0; b < MM_KEY_BYTES; b++)
		k->shared |= c->desc.model_key[b] != 0;
	for (uint32_t g = k->desc.nr_groups; g-- > 0;) {
		k->plain &= k->desc.group[g].kind == MM_GROUP_FULL;
		k->opaque |= k->desc.group[g].opaque != 0;
		if (k->desc.group[g].kind == MM_GROUP_FULL)
			k->full = g;
	}
	return k;
}

static void check_geometry(struct sim *s, const struct cache *k, const struct mm_reply *r)
{
	SIM_CHECK(s, r->geom && r->nr_groups == k->desc.nr_groups, "cache %u has no geometry",
		  k->id);
	for (uint32_t g = 0; g < k->desc.nr_groups; g++) {
		const struct mm_group_geom *m = &r->geom[g];

		SIM_CHECK(s, m->extent_pages && !(m->extent_pages & (m->extent_pages - 1)),
			  "cache %u group %u: %u pages an extent", k->id, g, m->extent_pages);
		for (uint32_t i = 0; i < k->desc.nr_shards; i++) {
			uint64_t align = s->cfg.device[k->desc.shard[i].device].extent_align;

			SIM_CHECK(s,
				  m->extent_bytes[i] % align == 0 &&
					  m->extent_bytes[i] >=
						  m->extent_pages * k->desc.shard[i].page_bytes[g],
				  "cache %u group %u shard %u: %llu bytes an extent", k->id, g, i,
				  (unsigned long long)m->extent_bytes[i]);
		}
	}
}

static void ok_open(struct sim *s, struct call *c, const struct mm_reply *r)
{
	struct engine *e = &s->engine[c->engine];
	struct cache *k = NULL;

	for (uint32_t i = 1; i < s->nr_caches; i++)
		if (!s->cache[i].dead && s->cache[i].shared && s->cache[i].uid == e->uid &&
		    !memcmp(s->cache[i].desc.model_key, c->desc.model_key, MM_KEY_BYTES))
			k = &s->cache[i];
	if (k && !k->nr_engines && k->id != r->cache) {
		SIM_CHECK(s,
			  !k->nr[PAGE_CACHED][k->full] || s->node[k->root].child == 0 ||
				  !tree_sure(s, s->node[k->root].child, k->full),
			  "shared cache %u is forgotten with its content", k->id);
		model_cache_drop(s, k);
		k = NULL;
	}
	if (!k)
		k = cache_new(s, c, r->cache);
	SIM_CHECK(s, k->id == r->cache, "shared cache %u opened as %u", k->id, r->cache);
	check_geometry(s, k, r);
	memcpy(k->geom, r->geom, r->nr_groups * sizeof(*k->geom));
	budget_promise(s, e, k, c->req.open.min_pages);
	if (model_has_open(s, e, k))
		return;
	SIM_CHECK(s, e->nr_opens < SIM_OPENS, "sim: opens");
	e->open[e->nr_opens++] = model_cache_index(s, k);
	k->nr_engines++;
}

/* Nothing is left of what the engine had there; what waits will hear of it. */
static void close_gives_back(struct sim *s, const struct call *c)
{
	struct engine *e = &s->engine[c->engine];

	s->sum.given_back++;
	for (uint32_t i = 0; i < e->nr_held;) {
		struct page *p = &s->page[e->held[i]];

		if (p->cache != c->cache) {
			i++;
			continue;
		}
		model_release(s, p);	/* the last one is in its place now */
		s->sum.freed++;
		e->frees++;
	}
	for (uint32_t i = 0; i < SIM_SLOTS; i++)
		if (s->lease[i].id && s->lease[i].engine == c->engine &&
		    s->lease[i].cache == c->cache)
			tree_unlease(s, &s->lease[i]);
	for (uint32_t i = 0; i < SIM_CALLS; i++) {
		struct call *w = &s->call[i];

		if (w->used && w->req.op == MM_ALLOC && w->engine == c->engine &&
		    w->cache == c->cache)
			w->cancelled = true;
	}
}

static void ok_close(struct sim *s, struct call *c, const struct mm_reply *r)
{
	struct engine *e = &s->engine[c->engine];
	struct cache *k = &s->cache[c->cache];

	(void)r;
	if (c->req.flags & MM_CLOSE_GIVE_BACK)
		close_gives_back(s, c);
	for (uint32_t i = 0; i < e->nr_opens; i++)
		if (e->open[i] == c->cache)
			e->open[i--] = e->open[--e->nr_opens];
	budget_promise(s, e, k, 0);
	for (uint32_t i = 0; i < SIM_SLOTS; i++)
		if (s->park[i].id && s->park[i].engine == c->engine &&
		    s->park[i].cache == c->cache) {
			s->park[i].id = 0;
			e->nr_parks--;
		}
	/* Its extents are orphans now, even if it comes back. */
	for (uint32_t x = 0; x < s->top_extent; x++)
		if (s->extent[x].cache == c->cache && s->extent[x].writer == c->engine)
			s->extent[x].writer = 0;
	k->nr_engines--;
	if (!k->shared)
		model_cache_drop(s, k);
}

static void ok_import(struct sim *s, struct call *c, const struct mm_reply *r)
{
	struct extent *x = &s->extent[c->req.map.extent];
	uint32_t m = (uint32_t)(model_member(s, c->req.member) - s->member);
	uint32_t shard = c->req.map.shard;

	s->sum.imports++;
	/* Mapped already: a writer that left the cache, and came back, may have lost the extent. */
	if (model_import_find(x, m, shard)) {
		SIM_CHECK(s, !r->writable || model_import_find(x, m, shard)->writable,
			  "extent %u is mapped read-only, and now said to be writable",
			  c->req.map.extent);
		return;
	}
	if (r->writable && x->cache)
		model_claim(s, c->req.map.extent, c->engine);
	SIM_CHECK(s, r->writable || x->writer != c->engine || c->expect != EXPECT_OK,
		  "extent %u is read-only to its writer %u", c->req.map.extent, c->req.engine);
	model_import_add(s, c->req.map.extent, m, shard, r->writable);
}

static void ok_unimport(struct sim *s, struct call *c, const struct mm_reply *r)
{
	struct extent *x = &s->extent[c->req.map.extent];
	uint32_t m = (uint32_t)(model_member(s, c->req.member) - s->member);

	(void)r;
	model_import_del(x, model_import_find(x, m, c->req.map.shard));
}

static void ok_alloc(struct sim *s, struct call *c, const struct mm_reply *r)
{
	SIM_CHECK(s, r->nr_pages == c->req.alloc.nr_pages, "%u pages granted, %u asked for",
		  r->nr_pages, c->req.alloc.nr_pages);
	for (uint32_t i = 0; i < r->nr_pages; i++)
		model_grant(s, c->engine, c->cache, c->req.group, r->pages[i]);
	s->sum.granted += r->nr_pages;
	s->engine[c->engine].allocs += r->nr_pages;
}

static void ok_free(struct sim *s, struct call *c, const struct mm_reply *r)
{
	(void)r;
	for (uint32_t i = 0; i < c->req.free.nr_pages; i++)
		model_release(s, model_page(s, c->pages[i]));
	s->sum.freed += c->req.free.nr_pages;
	s->engine[c->engine].frees += c->req.free.nr_pages;
}

static void count_hit(struct sim *s, const struct call *c, const struct mm_reply *r)
{
	struct cache *k = &s->cache[c->cache];
	uint64_t tokens = (uint64_t)r->nr_pages * k->desc.page_tokens + r->tail_tokens;

	s->engine[c->engine].hit_tokens += tokens;
	k->hit_tokens += tokens;
	s->sum.hit_tokens += tokens;
	s->sum.hit_pages += r->nr_pages;
	s->sum.tail_hits += r->tail_tokens != 0;
}

static void ok_lookup(struct sim *s, struct call *c, const struct mm_reply *r)
{
	s->sum.lookups++;
	s->sum.lookup_tokens += c->req.lookup.nr_tokens;
	s->engine[c->engine].lookup_tokens += c->req.lookup.nr_tokens;
	s->cache[c->cache].lookup_tokens += c->req.lookup.nr_tokens;
	count_hit(s, c, r);
	hit_check(s, c, &c->seq, true, r);
}

static void ok_commit(struct sim *s, struct call *c, const struct mm_reply *r)
{
	commit_check(s, c, r);
}

static void ok_dup(struct sim *s, struct call *c, const struct mm_reply *r)
{
	struct lease *old = model_lease(s, c->req.lease.lease), *l;
	uint32_t depth = c->req.lease.depth_pages, node = old->node;

	if (depth)
		node = tree_ancestor(s, node, depth);
	l = tree_lease_new(s, r->lease, c->engine, old->cache, node);
	tree_pin_chain(s, l, old);
	s->sum.leases_new++;
}

static void ok_unlease(struct sim *s, struct call *c, const struct mm_reply *r)
{
	(void)r;
	for (uint32_t i = 0; i < c->req.unlease.nr_leases; i++)
		tree_unlease(s, model_lease(s, c->ids[i]));
}

static void ok_park(struct sim *s, struct call *c, const struct mm_reply *r)
{
	struct lease *l = model_lease(s, c->req.park.lease);
	struct park *p = NULL;
	uint32_t nr = 0, own = 0;

	SIM_CHECK(s, r->park && !model_park(s, r->park), "park id %u is %s", r->park,
		  r->park ? "alive" : "none");
	for (uint32_t i = 0; i < SIM_SLOTS; i++) {
		nr += s->park[i].id != 0;
		own += s->park[i].id && s->park[i].engine == c->engine;
		if (!s->park[i].id && !p)
			p = &s->park[i];
	}
	SIM_CHECK(s, p && nr < s->cfg.max_parks, "%u parks alive, max_parks is %u", nr + 1,
		  s->cfg.max_parks);
	SIM_CHECK(s, own < s->cfg.max_parks - nr, "an engine has %u parks and leaves %u", own,
		  s->cfg.max_parks - nr);
	p->id = r->park;
	p->engine = c->engine;
	p->cache = l->cache;
	/* Whoever waits for room may have taken it from what was just parked. */
	p->stamp = s->evicts == c->evicts_before ? s->evicts + s->sum.adopted : UINT64_MAX;
	tree_path(s, l->node, &p->seq);
	s->engine[c->engine].nr_parks++;
	tree_unlease(s, l);
}

static void end_park(struct sim *s, struct park *p)
{
	s->engine[p->engine].nr_parks--;
	model_stale(s, s->stale_park, p->id);
	p->id = 0;
}

static void ok_resume(struct sim *s, struct call *c, const struct mm_reply *r)
{
	struct park *p = model_park(s, c->req.park.park);

	s->sum.resumes++;
	s->sum.resume_tokens += p->seq.nr_tokens;
	/* What was evicted and committed again since is not what was parked. */
	c->cache = p->cache;
	hit_check(s, c, &p->seq, p->stamp == s->evicts + s->sum.adopted, r);
	end_park(s, p);
}

static void ok_unpark(struct sim *s, struct call *c, const struct mm_reply *r)
{
	(void)r;
	end_park(s, model_park(s, c->req.park.park));
}

static void ok_drop_head(struct sim *s, struct call *c, const struct mm_reply *r)
{
	struct lease *l = model_lease(s, c->req.lease.lease);

	(void)r;
	for (uint32_t i = 0; i < l->nr_pins;) {
		struct node *n = &s->node[l->pin[i].node];

		if (l->pin[i].group != c->req.group || n->depth > c->req.lease.depth_pages) {
			i++;
			continue;
		}
		if (!--n->pins[c->req.group])
			s->cache[l->cache].nr_pinned[c->req.group]--;
		l->pin[i] = l->pin[--l->nr_pins];
	}
}

static void ok_hint(struct sim *s, struct call *c, const struct mm_reply *r)
{
	const struct mm_hint *h = &c->req.hint.hint;
	uint32_t depth = s->node[model_lease(s, c->req.hint.lease)->node].depth;
	uint32_t nr = (h->to_page ? h->to_page : depth) - h->from_page;

	SIM_CHECK(s, r->nr_pages == nr, "a hint for %u pages reaches %u", nr, r->nr_pages);
}

static void ok_reserve(struct sim *s, struct call *c, const struct mm_reply *r)
{
	struct engine *e = &s->engine[c->engine];
	uint32_t d = c->req.reserve.device, what = c->req.reserve.what;

	(void)r;
	e->reserved[d] += c->req.reserve.bytes - e->reserved_for[what][d];
	e->reserved_for[what][d] = c->req.reserve.bytes;
}

/* Its engine holds a page there, and it is the one who decides. */
static void check_vacate(struct sim *s, const struct call *c, const struct mm_event *ev)
{
	struct member *m = model_member(s, c->req.member);
	const struct engine *e = &s->engine[m->engine];
	bool holds = false;

	for (uint32_t i = 0; i < e->nr_held; i++)
		holds |= mm_page_extent(s->page[e->held[i]].id) == ev->extent;
	SIM_CHECK(s, holds && e->member[0] == (uint32_t)(m - s->member) && ev->seq,
		  "member %u is to leave extent %u where it holds nothing", c->req.member,
		  ev->extent);
	SIM_CHECK(s, ev->deadline_ns, "vacate without a deadline");
}

static void ok_events(struct sim *s, struct call *c, const struct mm_reply *r)
{
	uint32_t m = (uint32_t)(model_member(s, c->req.member) - s->member);

	for (uint32_t i = 0; i < r->nr_events; i++) {
		const struct mm_event *ev = &r->events[i];
		bool mapped = false;

		s->sum.events++;
		if (ev->kind == MM_EVENT_VACATE)
			check_vacate(s, c, ev);
		if (ev->kind != MM_EVENT_RETIRE)
			continue;
		for (uint32_t j = 0; j < model_extent(s, ev->extent)->nr_imports; j++)
			mapped |= s->extent[ev->extent].import[j].member == m;
		SIM_CHECK(s, mapped, "member %u is to leave extent %u it does not map",
			  c->req.member, ev->extent);
	}
	s->last_reply = *r;
	if (r->nr_events)
		memcpy(s->events, r->events,
		       (r->nr_events < SIM_EVENTS_MAX ? r->nr_events : SIM_EVENTS_MAX) *
			       sizeof(*r->events));
}

static void ok_nothing(struct sim *s, struct call *c, const struct mm_reply *r)
{
	(void)s;
	(void)c;
	(void)r;
}

static void (*const ok[MM_NR_OPS])(struct sim *, struct call *, const struct mm_reply *) = {
	[MM_ENGINE_ATTACH] = ok_engine_attach,
	[MM_MEMBER_ATTACH] = ok_member_attach,
	[MM_FENCE] = ok_fence,
	[MM_MEMBER_GONE] = ok_member_gone,
	[MM_CACHE_OPEN] = ok_open,
	[MM_CACHE_CLOSE] = ok_close,
	[MM_IMPORT] = ok_import,
	[MM_UNIMPORT] = ok_unimport,
	[MM_ALLOC] = ok_alloc,
	[MM_FREE] = ok_free,
	[MM_LOOKUP] = ok_lookup,
	[MM_COMMIT] = ok_commit,
	[MM_LEASE_DUP] = ok_dup,
	[MM_UNLEASE] = ok_unlease,
	[MM_PARK] = ok_park,
	[MM_RESUME] = ok_resume,
	[MM_UNPARK] = ok_unpark,
	[MM_DROP_HEAD] = ok_drop_head,
	[MM_RESERVE] = ok_reserve,
	[MM_EVENTS] = ok_events,
	[MM_PRESSURE_ACK] = ok_nothing,
	[MM_VACATE_ACK] = ok_nothing,
	[MM_STAT] = ok_nothing,
	[MM_TENANT_SET] = ok_tenant_set,
	[MM_HINT] = ok_hint,
};

void oracle_reply(struct sim *s, const struct mm_reply *r)
{
	struct call *c = NULL;

	for (uint32_t i = 0; i < SIM_CALLS && !c; i++)
		if (s->call[i].used && s->call[i].req.cookie == r->cookie)
			c = &s->call[i];
	SIM_CHECK(s, c, "reply to cookie %llu, which waits for none",
		  (unsigned long long)r->cookie);
	SIM_CHECK(s, c->req.op == r->op, "op %d answered as op %d", c->req.op, r->op);
	if (r->result) {
		c->used = false;
		if ((unsigned int)r->op < MM_NR_OPS)
			reply_error(s, c, r);
		return;
	}
	SIM_CHECK(s, c->expect != EXPECT_FAIL, "op %d must be refused", r->op);
	SIM_CHECK(s, !c->cancelled, "an allocation in a closed cache succeeds");
	SIM_CHECK(s,
		  !s->engine[c->engine].fenced || r->op == MM_MEMBER_GONE || r->op == MM_FENCE ||
			  r->op == MM_UNIMPORT || r->op == MM_EVENTS,
		  "op %d succeeds for fenced engine %u", r->op, c->req.engine);
	s->op_ok[r->op]++;
	ok[r->op](s, c, r);
	c->used = false;
}
