// SPDX-License-Identifier: Apache-2.0
/* Faults have stopped: everything must converge. */
#include <string.h>

#include "sim.h"

#define SETTLE_ROUNDS 400 /* until nobody waits for anything */
#define SETTLE_LEAST  8
#define NEWCOMER_TRIES 8

/* What is not over yet, or NULL. */
static const char *waiting(struct sim *s)
{
	static char what[80];

	if (s->nr_todo)
		return "an effect";
	if (s->nr_doomed)
		return "a failed destruction";
	for (uint32_t i = 0; i < SIM_CALLS; i++) {
		const struct call *c = &s->call[i];

		if (!c->used || s->engine[c->engine].fenced)
			continue;
		snprintf(what, sizeof(what), "request %llu of kind %d",
			 (unsigned long long)c->req.cookie, c->req.op);
		return what;
	}
	return NULL;
}

/* Devices answer, members do what they are asked to, time goes by: every wait must end. */
void end_settle(struct sim *s)
{
	for (uint32_t i = 0; i < SETTLE_LEAST || waiting(s); i++) {
		SIM_CHECK(s, i < SETTLE_ROUNDS, "faults have stopped but still %s waits",
			  waiting(s));
		effects_run(s, true);
		gen_deaths(s, true);
		/* In the end all deadlines have passed. */
		s->now_ns += i < SETTLE_ROUNDS / 2 ? 100 * 1000 * 1000 : MM_MAX_WAIT_NS / 50;
		call_tick(s, 64);
		for (uint32_t l = 0; l < s->nr_live; l++) {
			struct engine *e = &s->engine[s->live[l]];

			for (uint32_t m = 0; m < e->nr_members && !e->fenced; m++)
				if (s->member[e->member[m]].alive)
					gen_poll(s, e->member[m]);
		}
	}
}

static void give_back(struct sim *s, uint32_t ei)
{
	struct engine *e = &s->engine[ei];
	struct call *c;

	while (e->nr_held && !e->fenced)
		gen_give(s, ei, e->nr_held);
	for (uint32_t i = 0; i < SIM_SLOTS; i++) {
		if (s->lease[i].id && s->lease[i].engine == ei) {
			c = gen_call(s, MM_UNLEASE, ei);
			c->req.cache = s->cache[s->lease[i].cache].id;
			c->ids[0] = s->lease[i].id;
			c->req.unlease.leases = c->ids;
			c->req.unlease.nr_leases = 1;
			call_submit(s, c);
		}
		if (s->park[i].id && s->park[i].engine == ei) {
			c = gen_call(s, MM_UNPARK, ei);
			c->req.cache = s->cache[s->park[i].cache].id;
			c->req.park.park = s->park[i].id;
			call_submit(s, c);
		}
	}
}

/* Extents of a group that fit into an empty pool. */
static uint32_t most_extents(struct sim *s, const struct cache *k, uint32_t group)
{
	uint32_t most = s->cfg.max_frames / k->geom[group].extent_pages;

	most = most < s->cfg.max_extents ? most : s->cfg.max_extents;
	for (uint32_t d = 0; d < s->cfg.nr_devices; d++) {
		uint64_t bytes = 0, pool;

		for (uint32_t i = 0; i < k->desc.nr_shards; i++)
			if (k->desc.shard[i].device == d)
				bytes += k->geom[group].extent_bytes[i];
		/* The last ones are for those below their min. */
		pool = s->cfg.device[d].pool_bytes - s->cfg.device[d].wmark_min_bytes;
		if (bytes && pool / bytes < most)
			most = (uint32_t)(pool / bytes);
	}
	return most;
}

/* Nothing that the departed left may be in the way: the whole pool can be had. */
static void take_all(struct sim *s, uint32_t e, uint32_t k)
{
	uint32_t want = most_extents(s, &s->cache[k], 0) * s->cache[k].geom[0].extent_pages;

	while (s->engine[e].nr_held < want) {
		uint32_t left = want - s->engine[e].nr_held, before = s->engine[e].nr_held;
		struct call *c = gen_call(s, MM_ALLOC, e);

		c->req.cache = s->cache[k].id;
		c->req.alloc.nr_pages = left < s->cfg.batch_pages ? left : s->cfg.batch_pages;
		c->req.alloc.deadline_ns = s->now_ns + 1000ull * 1000 * 1000;
		if (call_submit(s, c))
			end_settle(s);
		SIM_CHECK(s, s->engine[e].nr_held > before,
			  "nobody uses the pool, %u pages of %u are granted, %u an extent", before,
			  want, s->cache[k].geom[0].extent_pages);
	}
}

/* Full tables make room for whoever asks again. */
static void until_served(struct sim *s, uint32_t *nr, uint32_t engine, uint32_t model)
{
	uint32_t before = *nr;

	for (uint32_t i = 0; *nr == before; i++) {
		struct call *c = engine ? gen_call(s, MM_CACHE_OPEN, engine)
					: call_new(s, MM_ENGINE_ATTACH);

		SIM_CHECK(s, i < NEWCOMER_TRIES, "a newcomer is refused %s though nobody is there",
			  engine ? "a cache" : "attachment");
		c->req.attach.tenant = SIM_FIRST_TENANT;
		if (engine) {
			c->desc = s->world.model[model];
			memset(c->desc.model_key, 0, MM_KEY_BYTES);
			c->req.open.desc = &c->desc;
		}
		call_submit(s, c);
		end_settle(s);
	}
}

/* A newcomer gets what it asks for, whatever the departed left in the cache. */
static void newcomer(struct sim *s, uint32_t model)
{
	uint32_t e;

	until_served(s, &s->nr_engines, 0, 0);
	e = s->nr_engines - 1;
	until_served(s, &s->nr_caches, e, model);
	take_all(s, e, s->nr_caches - 1);
	give_back(s, e);
	gen_member_gone(s, s->engine[e].member[0]);
	end_settle(s);
}

/* Without content no byte is taken. */
static void check_empty(struct sim *s)
{
	bool content = false;

	for (uint32_t x = 0; x < s->top_extent; x++)
		for (uint32_t f = 0; f < s->extent[x].nr_slots; f++)
			content |= s->extent[x].frame[f].page &&
				   s->page[s->extent[x].frame[f].page].state == PAGE_CACHED;
	for (uint32_t d = 0; d < s->cfg.nr_devices && !content; d++) {
		struct mm_meminfo m;

		mm_meminfo(s->mm, d, &m);
		SIM_CHECK(s, m.free_bytes == s->cfg.device[d].pool_bytes && !m.nr_extents,
			  "everybody has gone, and device %u has %llu of %llu bytes free", d,
			  (unsigned long long)m.free_bytes,
			  (unsigned long long)s->cfg.device[d].pool_bytes);
	}
}

static void bury_fenced(struct sim *s)
{
	for (uint32_t i = s->nr_live; i-- > 0;) {
		struct engine *e = &s->engine[s->live[i]];

		for (uint32_t m = 0; m < e->nr_members && e->fenced; m++)
			if (s->member[e->member[m]].alive)
				gen_member_gone(s, e->member[m]);
	}
}

void end_run(struct sim *s)
{
	s->stopping = true;
	end_settle(s);
	for (uint32_t i = 0; i < s->nr_live; i++)
		give_back(s, s->live[i]);
	bury_fenced(s);
	end_settle(s);
	totals_check(s);
	budget_redeem(s);
	totals_check(s);
	for (uint32_t i = 0; i < s->nr_live; i++)
		give_back(s, s->live[i]);
	while (s->nr_live) {
		struct engine *e = &s->engine[s->live[0]];

		for (uint32_t m = 0; m < e->nr_members; m++)
			if (s->member[e->member[m]].alive)
				gen_member_gone(s, e->member[m]);
	}
	end_settle(s);
	mm_check(s->mm);
	totals_check(s);
	totals_end(s);
	budget_end(s);
	for (uint32_t m = 0; m < s->world.nr_models; m++)
		newcomer(s, m);
	mm_check(s->mm);
	totals_check(s);
	totals_end(s);
	check_empty(s);
}
