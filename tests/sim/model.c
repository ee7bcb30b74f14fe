// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "sim.h"

/* ---- pages: every id ever granted, by id -------------------------------------------------- */

static uint32_t *page_bucket(struct sim *s, uint64_t id)
{
	uint32_t i = (uint32_t)((id * 0x9e3779b97f4a7c15ull) >> 32) & (s->nr_buckets - 1);

	while (s->bucket[i] && s->page[s->bucket[i]].id != id)
		i = (i + 1) & (s->nr_buckets - 1);
	return &s->bucket[i];
}

static void page_grow(struct sim *s)
{
	s->max_pages = s->max_pages ? s->max_pages * 2 : 4096;
	s->nr_buckets = s->max_pages * 2;
	s->page = realloc(s->page, s->max_pages * sizeof(*s->page));
	free(s->bucket);
	s->bucket = calloc(s->nr_buckets, sizeof(*s->bucket));
	if (!s->page || !s->bucket)
		abort();
	for (uint32_t p = 1; p < s->nr_pages; p++)
		if (!s->page[p].unnamed)
			*page_bucket(s, s->page[p].id) = p;
}

struct page *model_page(struct sim *s, uint64_t id)
{
	uint32_t p = s->nr_buckets ? *page_bucket(s, id) : 0;

	return p ? &s->page[p] : NULL;
}

static uint32_t page_new(struct sim *s, uint64_t id)
{
	if (s->nr_pages + 1 >= s->max_pages)
		page_grow(s);
	if (!s->nr_pages)
		s->nr_pages = 1;
	memset(&s->page[s->nr_pages], 0, sizeof(*s->page));
	s->page[s->nr_pages].id = id;
	if (id)
		*page_bucket(s, id) = s->nr_pages;
	return s->nr_pages++;
}

/* ---- ids ---------------------------------------------------------------------------------- */

struct engine *model_engine(struct sim *s, uint32_t id)
{
	for (uint32_t i = 0; id && i < s->nr_live; i++)
		if (s->engine[s->live[i]].id == id)
			return &s->engine[s->live[i]];
	return NULL;
}

struct member *model_member(struct sim *s, uint32_t id)
{
	for (uint32_t i = 0; id && i < s->nr_live; i++) {
		struct engine *e = &s->engine[s->live[i]];

		for (uint32_t m = 0; m < e->nr_members; m++)
			if (s->member[e->member[m]].id == id && s->member[e->member[m]].alive)
				return &s->member[e->member[m]];
	}
	return NULL;
}

struct cache *model_cache(struct sim *s, uint32_t id)
{
	for (uint32_t c = s->nr_caches; id && c > 1; c--)
		if (s->cache[c - 1].id == id && !s->cache[c - 1].dead)
			return &s->cache[c - 1];
	return NULL;
}

struct lease *model_lease(struct sim *s, uint32_t id)
{
	for (uint32_t i = 0; id && i < SIM_SLOTS; i++)
		if (s->lease[i].id == id)
			return &s->lease[i];
	return NULL;
}

struct park *model_park(struct sim *s, uint32_t id)
{
	for (uint32_t i = 0; id && i < SIM_SLOTS; i++)
		if (s->park[i].id == id)
			return &s->park[i];
	return NULL;
}

bool model_has_open(const struct sim *s, const struct engine *e, const struct cache *c)
{
	for (uint32_t i = 0; i < e->nr_opens; i++)
		if (e->open[i] == model_cache_index(s, c))
			return true;
	return false;
}

uint32_t model_engine_index(const struct sim *s, const struct engine *e)
{
	return (uint32_t)(e - s->engine);
}

uint32_t model_cache_index(const struct sim *s, const struct cache *c)
{
	return (uint32_t)(c - s->cache);
}

void model_stale(struct sim *s, uint32_t *ring, uint32_t id)
{
	ring[s->nr_stale++ % SIM_STALE] = id;
}

/* ---- extents ------------------------------------------------------------------------------ */

struct extent *model_extent(struct sim *s, uint32_t extent)
{
	SIM_CHECK(s, extent < SIM_EXTENTS, "extent %u is beyond max_extents", extent);
	if (extent >= s->top_extent)
		s->top_extent = extent + 1;
	return &s->extent[extent];
}

bool model_extent_whole(const struct extent *x)
{
	bool some = false;

	for (uint32_t i = 0; i < MM_MAX_SHARDS; i++) {
		if (x->shard[i].state == SHARD_NONE)
			continue;
		if (x->shard[i].state != SHARD_LIVE)
			return false;
		some = true;
	}
	return some;
}

bool model_extent_idle(const struct extent *x)
{
	for (uint32_t i = 0; i < MM_MAX_SHARDS; i++)
		if (x->shard[i].state > SHARD_LEFT)
			return false;
	return true;
}

struct import *model_import_find(struct extent *x, uint32_t member, uint32_t shard)
{
	for (uint32_t i = 0; i < x->nr_imports; i++)
		if (x->import[i].member == member && x->import[i].shard == shard)
			return &x->import[i];
	return NULL;
}

void model_import_add(struct sim *s, uint32_t extent, uint32_t member, uint32_t shard,
		      bool writable)
{
	struct extent *x = model_extent(s, extent);

	if (x->nr_imports == x->max_imports) {
		x->max_imports = x->max_imports ? x->max_imports * 2 : 8;
		x->import = realloc(x->import, x->max_imports * sizeof(*x->import));
		if (!x->import)
			abort();
	}
	x->import[x->nr_imports++] = (struct import){member, shard, writable};
}

void model_import_del(struct extent *x, struct import *im)
{
	*im = x->import[--x->nr_imports];
}

/* The first grant tells which cache and group an extent belongs to: then its geometry is known. */
static void extent_bind(struct sim *s, uint32_t extent, uint32_t cache, uint32_t group)
{
	struct extent *x = model_extent(s, extent);
	struct cache *c = &s->cache[cache];

	SIM_CHECK(s, model_extent_whole(x), "extent %u is granted from but not created", extent);
	if (!x->cache) {
		for (uint32_t i = 0; i < MM_MAX_SHARDS; i++) {
			struct shard *h = &x->shard[i];

			if (i >= c->desc.nr_shards) {
				SIM_CHECK(s, h->state == SHARD_NONE, "extent %u: shard %u too many",
					  extent, i);
				continue;
			}
			SIM_CHECK(s, h->state == SHARD_LIVE, "extent %u lacks shard %u", extent, i);
			SIM_CHECK(s,
				  h->device == c->desc.shard[i].device &&
					  h->bytes == c->geom[group].extent_bytes[i] &&
					  h->page_bytes == c->desc.shard[i].page_bytes[group],
				  "extent %u shard %u is not of cache %u group %u: device %u, "
				  "bytes %llu, page %llu",
				  extent, i, c->id, group, h->device, (unsigned long long)h->bytes,
				  (unsigned long long)h->page_bytes);
		}
		x->cache = cache;
		x->group = group;
		x->nr_slots = c->geom[group].extent_pages;
		x->frame = calloc(x->nr_slots, sizeof(*x->frame));
		if (!x->frame)
			abort();
	}
	SIM_CHECK(s, x->cache == cache && x->group == group,
		  "extent %u of cache %u group %u serves cache %u group %u", extent,
		  s->cache[x->cache].id, x->group, c->id, group);
}

/* One writer: nobody else may still be able to write here. */
void model_claim(struct sim *s, uint32_t extent, uint32_t engine)
{
	struct extent *x = model_extent(s, extent);
	struct engine *old = &s->engine[x->writer];

	if (x->writer == engine)
		return;
	if (x->writer)
		SIM_CHECK(s, old->fenced || !model_has_open(s, old, &s->cache[x->cache]),
			  "extent %u of engine %u is given to engine %u", extent, old->id,
			  s->engine[engine].id);
	for (uint32_t i = 0; i < x->nr_imports; i++) {
		struct member *m = &s->member[x->import[i].member];

		SIM_CHECK(s, !x->import[i].writable || m->engine == engine,
			  "extent %u gets writer %u while member %u of engine %u maps it writable",
			  extent, s->engine[engine].id, m->id, s->engine[m->engine].id);
		SIM_CHECK(s, x->import[i].writable || m->engine != engine,
			  "extent %u gets writer %u whose member %u maps it read-only", extent,
			  s->engine[engine].id, m->id);
	}
	if (x->writer)
		s->sum.orphans++;
	x->writer = engine;
}

static void frame_check(struct sim *s, uint32_t extent, struct frame *f, uint32_t engine)
{
	struct extent *x = model_extent(s, extent);
	struct page *old = &s->page[f->page];

	if (f->page) {
		SIM_CHECK(s, old->state != PAGE_HELD, "granted page %llx is held by engine %u",
			  (unsigned long long)old->id, s->engine[old->engine].id);
		SIM_CHECK(s, old->state != PAGE_QUARANTINED,
			  "granted page %llx is quarantined for engine %u",
			  (unsigned long long)old->id, s->engine[old->engine].id);
		if (old->state == PAGE_CACHED)
			model_forget(s, old);
	}
	for (uint32_t i = 0; i < s->nr_todo; i++) {
		const struct mm_effect *e = &s->todo[i].effect;
		uint32_t slot = (uint32_t)(f - x->frame);

		SIM_CHECK(s,
			  e->kind != MM_EFFECT_SCRUB || e->extent != extent || slot < e->slot ||
				  slot >= e->slot + e->nr_slots,
			  "extent %u slot %u is granted while scrubbed", extent, slot);
		SIM_CHECK(s,
			  e->kind != MM_EFFECT_MOVE || e->to_extent != extent ||
				  e->to_slot != slot,
			  "extent %u slot %u is granted while moved to", extent, slot);
	}
	if (!f->owner || f->owner == engine)
		return;
	for (uint32_t i = 0; i < MM_MAX_SHARDS; i++)
		SIM_CHECK(s,
			  x->shard[i].state == SHARD_NONE ||
				  !s->cfg.device[x->shard[i].device].scrub || f->scrubbed & 1u << i,
			  "extent %u slot %u shard %u goes from engine %u to %u without a scrub",
			  extent, (uint32_t)(f - x->frame), i, s->engine[f->owner].id,
			  s->engine[engine].id);
}

/* ---- pages change state ------------------------------------------------------------------- */

static void page_set(struct sim *s, struct page *p, enum page_state state)
{
	struct cache *c = &s->cache[p->cache];

	c->nr[p->state][p->group]--;
	p->state = state;
	c->nr[state][p->group]++;
}

static void engine_add_held(struct sim *s, struct engine *e, struct page *p)
{
	if (e->nr_held == e->max_held) {
		e->max_held = e->max_held ? e->max_held * 2 : 64;
		e->held = realloc(e->held, e->max_held * sizeof(*e->held));
		if (!e->held)
			abort();
	}
	p->engine = model_engine_index(s, e);
	p->pos = e->nr_held;
	e->held[e->nr_held++] = (uint32_t)(p - s->page);
}

static void engine_del_held(struct sim *s, struct page *p)
{
	struct engine *e = &s->engine[p->engine];

	e->held[p->pos] = e->held[--e->nr_held];
	s->page[e->held[p->pos]].pos = p->pos;
}

void model_grant(struct sim *s, uint32_t engine, uint32_t cache, uint32_t group, uint64_t id)
{
	uint32_t extent = mm_page_extent(id), slot = mm_page_slot(id), p;
	struct frame *f;

	SIM_CHECK(s, id && mm_page_gen(id), "granted page id %llx is none", (unsigned long long)id);
	SIM_CHECK(s, !model_page(s, id), "page id %llx was granted before", (unsigned long long)id);
	extent_bind(s, extent, cache, group);
	SIM_CHECK(s, slot < s->extent[extent].nr_slots, "page %llx: slot %u of %u",
		  (unsigned long long)id, slot, s->extent[extent].nr_slots);
	model_claim(s, extent, engine);
	f = &s->extent[extent].frame[slot];
	frame_check(s, extent, f, engine);
	p = page_new(s, id);
	s->page[p].cache = cache;
	s->page[p].group = group;
	s->cache[cache].nr[PAGE_GONE][group]++;
	page_set(s, &s->page[p], PAGE_HELD);
	engine_add_held(s, &s->engine[engine], &s->page[p]);
	memory_granted(s, &s->page[p], engine);
	f->page = p;
	f->owner = engine;
	f->scrubbed = 0;
}

void model_release(struct sim *s, struct page *p)
{
	engine_del_held(s, p);
	page_set(s, p, PAGE_GONE);
}

void model_publish(struct sim *s, struct page *p, uint32_t node)
{
	memory_publish(s, p, node);
	engine_del_held(s, p);
	page_set(s, p, PAGE_CACHED);
	p->node = node;
	s->node[node].page[p->group] = (uint32_t)(p - s->page);
	s->node[node].stamp[p->group] = s->evicts;
}

/* A cached page turns out to be gone. Without its full groups a node is gone, and all below it. */
void model_forget(struct sim *s, struct page *p)
{
	struct node *n = &s->node[p->node];

	SIM_CHECK(s, !n->pins[p->group], "page %llx is needed by a live lease but evicted",
		  (unsigned long long)p->id);
	SIM_CHECK(s, n->stamp[p->group] != s->evicts,
		  "page %llx is gone and pages_evict does not say so", (unsigned long long)p->id);
	if (s->cache[p->cache].desc.group[p->group].kind == MM_GROUP_FULL) {
		tree_forget(s, p->node, PAGE_GONE);
		return;
	}
	n->page[p->group] = 0;
	page_set(s, p, PAGE_GONE);
	s->sum.evicted++;
}

/* What was copied is named from now on; by which generation the next answer tells. */
void model_moved(struct sim *s, const struct mm_effect *e, uint32_t page)
{
	struct frame *to = &s->extent[e->to_extent].frame[e->to_slot];
	struct page *old = &s->page[page], *p = &s->page[to->page];
	uint32_t n = old->node, g = old->group, i;

	SIM_CHECK(s, old->state == PAGE_CACHED &&
		  s->extent[e->extent].frame[e->slot].page == page,
		  "moved page %llx is not cached any more", (unsigned long long)old->id);
	SIM_CHECK(s, !s->node[n].pins[g], "moved page %llx is leased",
		  (unsigned long long)old->id);
	SIM_CHECK(s, !to->page || (p->state != PAGE_HELD && p->state != PAGE_QUARANTINED),
		  "page %llx moves to where page %llx is", (unsigned long long)old->id,
		  (unsigned long long)p->id);
	if (to->page && p->state == PAGE_CACHED)
		model_forget(s, p);
	i = page_new(s, 0);
	old = &s->page[page];
	p = &s->page[i];
	p->id = (uint64_t)e->to_extent << (MM_SLOT_BITS + MM_GEN_BITS) |
		(uint64_t)e->to_slot << MM_GEN_BITS;
	p->unnamed = true;
	p->cache = old->cache;
	p->group = g;
	p->node = n;
	s->cache[p->cache].nr[PAGE_GONE][g]++;
	page_set(s, p, PAGE_CACHED);
	page_set(s, old, PAGE_GONE);
	s->node[n].page[g] = i;
	to->page = i;
	to->owner = s->extent[e->extent].frame[e->slot].owner;
	to->scrubbed = 0;
	s->sum.moved++;
	memory_read(s, p, n);
}

void model_name(struct sim *s, uint64_t id)
{
	uint32_t x = mm_page_extent(id), slot = mm_page_slot(id);
	struct page *p;

	if (!id || model_page(s, id) || x >= s->top_extent || slot >= s->extent[x].nr_slots)
		return;
	p = &s->page[s->extent[x].frame[slot].page];
	if (!s->extent[x].frame[slot].page || !p->unnamed || p->state != PAGE_CACHED)
		return;
	p->id = id;
	p->unnamed = false;
	*page_bucket(s, id) = (uint32_t)(p - s->page);
}

/* ---- death -------------------------------------------------------------------------------- */

void model_fence(struct sim *s, struct engine *e)
{
	uint32_t ei = model_engine_index(s, e);

	e->fenced = true;
	s->sum.fences++;
	s->sum.quarantined += e->nr_held;
	for (uint32_t i = 0; i < e->nr_held; i++)
		page_set(s, &s->page[e->held[i]], PAGE_QUARANTINED);
	for (uint32_t i = 0; i < SIM_SLOTS; i++) {
		if (s->lease[i].id && s->lease[i].engine == ei)
			tree_unlease(s, &s->lease[i]);
		if (s->park[i].id && s->park[i].engine == ei)
			s->park[i].id = 0;
	}
	e->nr_parks = 0;
	for (uint32_t i = 0; i < e->nr_opens; i++) {
		struct cache *c = &s->cache[e->open[i]];

		c->nr_engines--;
		if (!c->shared)
			model_cache_drop(s, c);
	}
	e->nr_opens = 0;
}

void model_engine_gone(struct sim *s, struct engine *e)
{
	uint32_t ei = model_engine_index(s, e);

	for (uint32_t i = 0; i < e->nr_held; i++)
		page_set(s, &s->page[e->held[i]], PAGE_GONE);
	e->nr_held = 0;
	for (uint32_t d = 0; d < s->cfg.nr_devices; d++)
		s->late_reserved[d] += e->reserved[d];
	memset(e->reserved, 0, sizeof(e->reserved));
	e->gone = true;
	model_stale(s, s->stale_engine, e->id);
	for (uint32_t i = 0; i < s->nr_live; i++)
		if (s->live[i] == ei)
			s->live[i--] = s->live[--s->nr_live];
}

/* Nobody can look here any more. Whether mm counts these pages as evicted is its own affair. */
void model_cache_drop(struct sim *s, struct cache *c)
{
	uint32_t child;

	while ((child = s->node[c->root].child))
		tree_forget(s, child, PAGE_DROPPED);
	c->dead = true;
	model_stale(s, s->stale_cache, c->id);
}

void model_dump(struct sim *s)
{
	for (uint32_t i = 0; i < s->top_extent; i++) {
		struct extent *x = &s->extent[i];
		uint32_t nr[PAGE_STATES] = {0};

		if (model_extent_idle(x))
			continue;
		for (uint32_t f = 0; f < x->nr_slots; f++)
			if (x->frame[f].page)
				nr[s->page[x->frame[f].page].state]++;
		printf("  extent %u cache %x group %u writer %x slots %u: held %u cached %u "
		       "quarantined %u "
		       "dropped %u imports %u shards",
		       i, s->cache[x->cache].id, x->group, s->engine[x->writer].id, x->nr_slots,
		       nr[PAGE_HELD], nr[PAGE_CACHED], nr[PAGE_QUARANTINED], nr[PAGE_DROPPED],
		       x->nr_imports);
		for (uint32_t h = 0; h < MM_MAX_SHARDS; h++)
			if (x->shard[h].state)
				printf(" %u:%llu@%u", x->shard[h].state,
				       (unsigned long long)x->shard[h].bytes, x->shard[h].device);
		putchar('\n');
	}
}
