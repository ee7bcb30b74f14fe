// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static void check_budget(struct sim *s, uint32_t device)
{
	uint64_t bytes = 0, reserved = 0;

	for (uint32_t x = 0; x < s->top_extent; x++)
		for (uint32_t i = 0; i < SIM_SHARDS; i++)
			if (s->extent[x].shard[i].state > SHARD_LEFT &&
			    s->extent[x].shard[i].device == device)
				bytes += s->extent[x].shard[i].bytes;
	for (uint32_t i = 0; i < s->nr_live; i++)
		reserved += s->engine[s->live[i]].reserved[device];
	SIM_CHECK(s, bytes + reserved <= s->cfg.device[device].pool_bytes,
		  "device %u: %llu bytes in extents, %llu reserved, the pool has %llu", device,
		  (unsigned long long)bytes, (unsigned long long)reserved,
		  (unsigned long long)s->cfg.device[device].pool_bytes);
}

static void extent_reset(struct extent *x)
{
	free(x->frame);
	x->frame = NULL;
	for (uint32_t i = 0; i < MM_MAX_SHARDS; i++)
		memory_drop(&x->shard[i]);
	x->cache = x->group = x->writer = x->nr_slots = 0;
	memset(x->shard, 0, sizeof(x->shard));
}

static void take_create(struct sim *s, const struct mm_effect *e)
{
	struct extent *x = model_extent(s, e->extent);
	struct shard *h = &x->shard[e->shard];

	SIM_CHECK(s, h->state == SHARD_NONE, "extent %u shard %u is created twice", e->extent,
		  e->shard);
	SIM_CHECK(s, !x->cache, "extent %u is created while shards of an older one are left",
		  e->extent);
	SIM_CHECK(s,
		  e->device < s->cfg.nr_devices && e->bytes && e->page_bytes &&
			  e->bytes % s->cfg.device[e->device].extent_align == 0,
		  "extent %u shard %u: %llu bytes on device %u", e->extent, e->shard,
		  (unsigned long long)e->bytes, e->device);
	*h = (struct shard){SHARD_CREATING, e->device, e->bytes, e->page_bytes, NULL, 0};
	s->sum.extents++;
	check_budget(s, e->device);
}

static void take_destroy(struct sim *s, const struct mm_effect *e)
{
	struct extent *x = model_extent(s, e->extent);
	struct shard *h = &x->shard[e->shard];

	SIM_CHECK(s, h->state == SHARD_LIVE || h->state == SHARD_DOOMED,
		  "extent %u shard %u is destroyed but not live", e->extent, e->shard);
	s->nr_doomed -= h->state == SHARD_DOOMED;
	for (uint32_t i = 0; i < s->nr_todo; i++)
		SIM_CHECK(s, s->todo[i].effect.kind != MM_EFFECT_MOVE ||
			  (s->todo[i].effect.extent != e->extent &&
			   s->todo[i].effect.to_extent != e->extent),
			  "extent %u is destroyed while pages move", e->extent);
	for (uint32_t i = 0; i < x->nr_imports; i++)
		SIM_CHECK(s, x->import[i].shard != e->shard,
			  "extent %u shard %u is destroyed while member %u maps it", e->extent,
			  e->shard, s->member[x->import[i].member].id);
	for (uint32_t f = 0; f < x->nr_slots; f++) {
		struct page *p = &s->page[x->frame[f].page];

		if (!x->frame[f].page)
			continue;
		SIM_CHECK(s, p->state != PAGE_HELD && p->state != PAGE_QUARANTINED,
			  "extent %u is destroyed with page %llx %s", e->extent,
			  (unsigned long long)p->id,
			  p->state == PAGE_HELD ? "held" : "quarantined");
		if (p->state == PAGE_CACHED)
			model_forget(s, p);
	}
	h->state = SHARD_DESTROYING;
	s->sum.destroys++;
}

static void take_scrub(struct sim *s, const struct mm_effect *e)
{
	struct extent *x = model_extent(s, e->extent);

	SIM_CHECK(s, x->shard[e->shard].state == SHARD_LIVE,
		  "scrub of extent %u shard %u, not live", e->extent, e->shard);
	SIM_CHECK(s, e->nr_slots && (!x->cache || e->slot + e->nr_slots <= x->nr_slots),
		  "scrub of extent %u slots %u + %u", e->extent, e->slot, e->nr_slots);
	s->sum.scrubs++;
	for (uint32_t f = e->slot; f < e->slot + e->nr_slots && f < x->nr_slots; f++) {
		struct page *p = &s->page[x->frame[f].page];

		if (!x->frame[f].page)
			continue;
		SIM_CHECK(s, p->state != PAGE_HELD && p->state != PAGE_QUARANTINED,
			  "scrub of page %llx, which is %s", (unsigned long long)p->id,
			  p->state == PAGE_HELD ? "held" : "quarantined");
		if (p->state == PAGE_CACHED)
			model_forget(s, p);
	}
}

/* Returns what stands at the source. */
static uint32_t take_move(struct sim *s, const struct mm_effect *e)
{
	struct extent *x = model_extent(s, e->extent), *to = model_extent(s, e->to_extent);
	struct page *p;

	SIM_CHECK(s,
		  x->shard[e->shard].state == SHARD_LIVE && to->shard[e->shard].state == SHARD_LIVE,
		  "move from extent %u to %u, shard %u: not live", e->extent, e->to_extent,
		  e->shard);
	SIM_CHECK(s, x != to && x->cache && x->cache == to->cache && x->group == to->group &&
		  e->page_bytes == x->shard[e->shard].page_bytes &&
		  e->device == x->shard[e->shard].device && e->nr_slots == 1,
		  "move from extent %u to %u, which are not alike", e->extent, e->to_extent);
	SIM_CHECK(s, e->slot < x->nr_slots && e->to_slot < to->nr_slots && x->frame[e->slot].page,
		  "move of extent %u slot %u to %u slot %u", e->extent, e->slot, e->to_extent,
		  e->to_slot);
	p = &s->page[to->frame[e->to_slot].page];
	SIM_CHECK(s, !to->frame[e->to_slot].page ||
		  (p->state != PAGE_HELD && p->state != PAGE_QUARANTINED),
		  "move to page %llx, which is in use", (unsigned long long)p->id);
	s->sum.moves++;
	return x->frame[e->slot].page;
}

static void take_kill(struct sim *s, const struct mm_effect *e)
{
	struct engine *g = model_engine(s, e->engine);

	if (!g)
		return; /* it died of itself meanwhile */
	SIM_CHECK(s, g->fenced && !g->killed, "engine %u is to be killed, it is %s", g->id,
		  g->killed ? "already" : "not fenced");
	g->killed = true;
	g->dies_step = s->step + rng_below(s, s->world.max_delay_steps + 1);
}

static void take_effect(struct sim *s, const struct mm_effect *e)
{
	uint32_t page = 0;

	SIM_CHECK(s, e->kind == MM_EFFECT_NOTIFY || e->shard < SIM_SHARDS, "effect: shard %u",
		  e->shard);
	switch (e->kind) {
	case MM_EFFECT_CREATE:
		take_create(s, e);
		break;
	case MM_EFFECT_DESTROY:
		take_destroy(s, e);
		break;
	case MM_EFFECT_SCRUB:
		take_scrub(s, e);
		break;
	case MM_EFFECT_NOTIFY:
		for (uint32_t i = 0; i < s->nr_members; i++)
			if (s->member[i].id == e->member && s->member[i].alive)
				s->member[i].notified = true;
		return;
	case MM_EFFECT_KILL:
		take_kill(s, e);
		return;
	case MM_EFFECT_MOVE:
		page = take_move(s, e);
		break;
	default:
		sim_fail(s, "effect of kind %d", e->kind);
	}
	SIM_CHECK(s, s->nr_todo < SIM_EFFECTS, "%u effects outstanding", SIM_EFFECTS);
	for (uint32_t i = 0; i < s->nr_todo; i++)
		SIM_CHECK(s, s->todo[i].effect.id != e->id, "effect id %llx is outstanding",
			  (unsigned long long)e->id);
	s->todo[s->nr_todo++] = (struct todo){
		*e,
		s->step + rng_below(s, s->world.max_delay_steps + 1),
		page,
	};
}

void effects_drain(struct sim *s)
{
	struct mm_effect e;

	while (mm_next_effect(s->mm, &e)) {
		s->evicts = mm_vmstat(s->mm)->pages_evict;
		if (s->opt->verbose)
			sim_say(s,
				"  effect %llx kind %d extent %u shard %u device %u bytes %llu "
				"slots %u + %u member %x",
				(unsigned long long)e.id, e.kind, e.extent, e.shard, e.device,
				(unsigned long long)e.bytes, e.slot, e.nr_slots, e.member);
		if (s->canary)
			canary_effect(s, &e);
		s->trail = (s->trail ^ e.id ^ (uint64_t)e.kind << 60) * 0x9e3779b97f4a7c15ull;
		take_effect(s, &e);
	}
}

bool effects_coming(const struct sim *s)
{
	if (s->nr_doomed)
		return true;
	for (uint32_t i = 0; i < s->nr_todo; i++)
		if (s->todo[i].effect.kind == MM_EFFECT_CREATE ||
		    s->todo[i].effect.kind == MM_EFFECT_DESTROY)
			return true;
	return false;
}

static void finish(struct sim *s, const struct mm_effect *e, int result)
{
	struct extent *x = model_extent(s, e->extent);
	struct shard *h = &x->shard[e->shard];

	switch (e->kind) {
	case MM_EFFECT_CREATE:
		h->state = result ? SHARD_LEFT : SHARD_LIVE;
		if (!result)
			memory_create(s, h);
		s->sum.failed_creates += result != 0;
		break;
	case MM_EFFECT_DESTROY:
		h->state = result ? SHARD_DOOMED : SHARD_LEFT;
		memory_drop(h);
		s->nr_doomed += result != 0;
		s->sum.failed_destroys += result != 0;
		break;
	case MM_EFFECT_MOVE:
		memory_move(s, e, result);
		s->sum.failed_moves += result != 0;
		return;
	default:
		s->sum.failed_scrubs += result != 0;
		if (result)
			break;
		memory_scrub(s, e);
		for (uint32_t f = e->slot; f < e->slot + e->nr_slots && f < x->nr_slots; f++)
			x->frame[f].scrubbed |= 1u << e->shard;
	}
	if (model_extent_idle(x))
		extent_reset(x);
}

/* Devices fail in every way they can, until the end. */
static int draw_result(struct sim *s, enum mm_effect_kind kind)
{
	static const int error[] = {-ENOMEM, -EIO, -ENODEV, -1};
	uint32_t permille = kind == MM_EFFECT_CREATE  ? s->world.fail_create_permille
			    : kind == MM_EFFECT_DESTROY ? s->world.fail_destroy_permille
			    : kind == MM_EFFECT_MOVE	? s->world.fail_move_permille
							: s->world.fail_scrub_permille;

	if (s->stopping || !rng_permille(s, permille))
		return 0;
	return kind == MM_EFFECT_CREATE ? -ENOMEM : error[rng_below(s, 4)];
}

static void complete(struct sim *s, uint32_t i)
{
	struct mm_effect e = s->todo[i].effect;
	uint64_t moved = mm_vmstat(s->mm)->pages_move;
	uint32_t page = s->todo[i].page;
	int result = draw_result(s, e.kind), rc;

	s->todo[i] = s->todo[--s->nr_todo];
	finish(s, &e, result);
	s->stale_effect[s->nr_stale++ % SIM_STALE] = e.id;
	if (s->opt->verbose)
		sim_say(s, "  complete %llx: %d", (unsigned long long)e.id, result);
	if (e.kind == MM_EFFECT_DESTROY && canary_lose(s, CANARY_LOST_DESTROY))
		return;
	if (e.kind == MM_EFFECT_SCRUB && canary_lose(s, CANARY_LOST_SCRUB))
		return;
	rc = mm_complete(s->mm, e.id, result, world_clock(s));
	SIM_CHECK(s, !rc, "mm_complete of effect %llx: %d", (unsigned long long)e.id, rc);
	SIM_CHECK(s, mm_vmstat(s->mm)->pages_move == moved ||
		  (e.kind == MM_EFFECT_MOVE && !result),
		  "effect %llx of kind %d moves a page", (unsigned long long)e.id, e.kind);
	if (mm_vmstat(s->mm)->pages_move != moved)
		model_moved(s, &e, page);
	call_drain(s);
}

/* In random order; effects that completions bring are taken as well. */
void effects_run(struct sim *s, bool all)
{
	uint32_t rounds = 0;

	for (;;) {
		uint32_t due[SIM_EFFECTS], nr = 0;

		effects_drain(s);
		for (uint32_t i = 0; i < s->nr_todo; i++)
			if (all || s->todo[i].due_step <= s->step)
				due[nr++] = i;
		if (!nr)
			return;
		complete(s, due[rng_below(s, nr)]);
		SIM_CHECK(s, ++rounds < 100000, "effects without end");
	}
}
