// SPDX-License-Identifier: Apache-2.0
/* What the pages really hold: cells that only clients and devices write to. The tables of model.c
 * may be wrong about a page in the same way as mm; its content is not. */
#include <stdlib.h>

#include "sim.h"

void memory_create(struct sim *s, struct shard *h)
{
	h->nr_mem = (uint32_t)(h->bytes / h->page_bytes);
	h->mem = calloc(h->nr_mem, sizeof(*h->mem));
	SIM_CHECK(s, h->mem, "sim: out of memory");
	for (uint32_t i = 0; i < h->nr_mem && canary_lose(s, CANARY_DIRTY_CREATE); i++)
		h->mem[i] = (struct cell){s->nr_engines - 1, 1};
}

void memory_drop(struct shard *h)
{
	free(h->mem);
	h->mem = NULL;
	h->nr_mem = 0;
}

void memory_scrub(struct sim *s, const struct mm_effect *e)
{
	struct shard *h = &s->extent[e->extent].shard[e->shard];

	SIM_CHECK(s, e->nr_slots <= h->nr_mem && e->slot <= h->nr_mem - e->nr_slots,
		  "scrub of extent %u slots %u + %u of %u", e->extent, e->slot, e->nr_slots,
		  h->nr_mem);
	for (uint32_t i = 0; i < e->nr_slots; i++)
		h->mem[e->slot + i] = (struct cell){0, 0};
}

/* One that failed has left something, but not the page. */
void memory_move(struct sim *s, const struct mm_effect *e, int result)
{
	struct shard *from = &s->extent[e->extent].shard[e->shard];
	struct shard *to = &s->extent[e->to_extent].shard[e->shard];

	SIM_CHECK(s, from->mem && to->mem && e->slot < from->nr_mem && e->to_slot < to->nr_mem,
		  "move of extent %u slot %u to extent %u slot %u", e->extent, e->slot,
		  e->to_extent, e->to_slot);
	to->mem[e->to_slot] = from->mem[e->slot];
	if (result)
		to->mem[e->to_slot].what = rng_next(s);
	else if (canary_lose(s, CANARY_BAD_COPY))
		to->mem[e->to_slot].what++;
}

static struct cell *cell(struct sim *s, const struct page *p, uint32_t shard)
{
	struct shard *h = &s->extent[mm_page_extent(p->id)].shard[shard];
	uint32_t slot = mm_page_slot(p->id);

	SIM_CHECK(s, h->mem && slot < h->nr_mem, "page %llx shard %u lies outside its extent",
		  (unsigned long long)p->id, shard);
	return &h->mem[slot];
}

static uint64_t content(const struct sim *s, uint32_t node, uint32_t group, uint32_t shard)
{
	const struct mm_cache_desc *d = &s->cache[s->node[node].cache].desc;

	return s->node[node].what ^ (uint64_t)group << 8 ^ (d->shard[shard].replicated ? 0 : shard);
}

void memory_granted(struct sim *s, const struct page *p, uint32_t engine)
{
	const struct mm_cache_desc *d = &s->cache[p->cache].desc;

	for (uint32_t i = 0; i < d->nr_shards; i++) {
		struct cell *c = cell(s, p, i);
		const struct engine *old = &s->engine[c->writer];

		if (c->writer && c->writer != engine) {
			SIM_CHECK(s, old->uid == s->engine[engine].uid,
				  "page %llx, granted to tenant %u, holds what tenant %u wrote",
				  (unsigned long long)p->id, s->engine[engine].uid, old->uid);
			SIM_CHECK(s, !s->cfg.device[d->shard[i].device].scrub,
				  "page %llx, granted to engine %u, holds what engine %u wrote",
				  (unsigned long long)p->id, s->engine[engine].id, old->id);
		}
		*c = (struct cell){engine, ~p->id};
	}
}

/* The holder finds its page as it left it, writes the content, and commits. */
void memory_publish(struct sim *s, const struct page *p, uint32_t node)
{
	uint32_t nr = s->cache[p->cache].desc.nr_shards;

	for (uint32_t i = 0; i < nr; i++) {
		struct cell *c = cell(s, p, i);

		if (canary_lose(s, CANARY_OVERWRITE))
			c->what++;
		SIM_CHECK(s, c->writer == p->engine && c->what == ~p->id,
			  "page %llx of engine %u was written by engine %u",
			  (unsigned long long)p->id, s->engine[p->engine].id,
			  s->engine[c->writer].id);
		c->what = content(s, node, p->group, i);
	}
}

void memory_read(struct sim *s, const struct page *p, uint32_t node)
{
	uint32_t nr = s->cache[p->cache].desc.nr_shards;

	s->sum.reads++;
	for (uint32_t i = 0; i < nr; i++) {
		struct cell *c = cell(s, p, i);

		if (canary_lose(s, CANARY_STALE_ZEROS))
			*c = (struct cell){0, 0};
		SIM_CHECK(s, c->what == content(s, node, p->group, i),
			  "page %llx shard %u does not hold what was committed; engine %u wrote it",
			  (unsigned long long)p->id, i, s->engine[c->writer].id);
	}
}

void memory_read_lease(struct sim *s, const struct lease *l)
{
	for (uint32_t i = 0; i < l->nr_pins; i++) {
		const struct node *n = &s->node[l->pin[i].node];

		memory_read(s, &s->page[n->page[l->pin[i].group]], l->pin[i].node);
	}
}

void memory_scribble(struct sim *s, const struct page *p)
{
	uint32_t nr = s->cache[p->cache].desc.nr_shards;

	s->sum.scribbles++;
	for (uint32_t i = 0; i < nr; i++)
		*cell(s, p, i) = (struct cell){p->engine, rng_next(s)};
}
