// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "sim.h"

uint64_t rng_next(struct sim *s)
{
	uint64_t z = s->rng += 0x9e3779b97f4a7c15ull; /* splitmix64 */

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

uint32_t rng_below(struct sim *s, uint32_t n)
{
	return n ? (uint32_t)((rng_next(s) >> 32) * n >> 32) : 0;
}

uint32_t rng_range(struct sim *s, uint32_t lo, uint32_t hi)
{
	return lo + rng_below(s, hi - lo + 1);
}

bool rng_permille(struct sim *s, uint32_t permille)
{
	return rng_below(s, 1000) < permille;
}

bool rng_percent(struct sim *s, uint32_t percent)
{
	return rng_below(s, 100) < percent;
}

void world_key(uint32_t key, uint8_t digest[MM_KEY_BYTES])
{
	/* Digests of one run differ in one byte only, and not always in the first. */
	memset(digest, 0x5a, MM_KEY_BYTES);
	digest[(key * 11) % MM_KEY_BYTES] = (uint8_t)key;
}

static bool world_has(const struct sim *s, enum sim_feature f)
{
	return s->world.features >> f & 1;
}

/* [lo, hi], 0 without the feature. Drawn in any case, so that --off leaves the rest alone. */
static uint32_t draw(struct sim *s, enum sim_feature f, uint32_t lo, uint32_t hi)
{
	uint32_t v = rng_range(s, lo, hi);

	return world_has(s, f) ? v : 0;
}

/* A limit of mm's: now and then one that is soon reached. */
static uint32_t draw_limit(struct sim *s, uint32_t lo, uint32_t hi, uint32_t wide_lo,
			   uint32_t wide_hi)
{
	uint32_t tight = rng_range(s, lo, hi), wide = rng_range(s, wide_lo, wide_hi);

	return rng_percent(s, 40) && world_has(s, FEAT_SMALL) ? tight : wide;
}

static void draw_groups(struct sim *s, struct mm_cache_desc *d)
{
	uint32_t full = 0, pt = d->page_tokens;

	d->nr_groups = rng_range(s, 1, SIM_GROUPS);
	if (rng_percent(s, 40) || !world_has(s, FEAT_HYBRID))
		d->nr_groups = 1;
	full = rng_below(s, d->nr_groups);
	for (uint32_t g = 0; g < d->nr_groups; g++) {
		struct mm_group_desc *gd = &d->group[g];

		gd->kind = g == full ? MM_GROUP_FULL : MM_GROUP_WINDOW;
		if (g != full && rng_percent(s, 40))
			gd->kind = rng_percent(s, 70) ? MM_GROUP_STATE : MM_GROUP_FULL;
		if (gd->kind == MM_GROUP_WINDOW)
			gd->window_tokens = rng_range(s, 1, pt * 4);
		if (gd->kind != MM_GROUP_STATE && rng_percent(s, 10))
			gd->opaque = 1;
	}
}

static void draw_model(struct sim *s, uint32_t m)
{
	struct mm_cache_desc *d = &s->world.model[m];

	memset(d, 0, sizeof(*d));
	memset(d->model_key, 0x11, sizeof(d->model_key));
	d->model_key[31 - m] = (uint8_t)(0x20 + m);
	memset(d->layout_key, 0x33, sizeof(d->layout_key));
	d->layout_key[m] = (uint8_t)(0x40 + m);
	d->page_tokens = s->world.page_tokens;
	if (rng_percent(s, 25))
		d->page_tokens = rng_range(s, 1, SIM_PAGE_TOKENS);
	draw_groups(s, d);
	d->nr_shards = rng_range(s, 1, SIM_SHARDS);
	if (!world_has(s, FEAT_SHARDS))
		d->nr_shards = 1;
	for (uint32_t i = 0; i < d->nr_shards; i++) {
		d->shard[i].device = rng_below(s, s->cfg.nr_devices);
		d->shard[i].replicated = i > 0 && rng_percent(s, 20);
		for (uint32_t g = 0; g < d->nr_groups; g++)
			d->shard[i].page_bytes[g] = 64ull * rng_range(s, 1, 64);
		if (i && d->shard[i].replicated)
			memcpy(d->shard[i].page_bytes, d->shard[0].page_bytes,
			       sizeof(d->shard[i].page_bytes));
	}
}

static void draw_watermarks(struct sim *s)
{
	for (uint32_t d = 0; d < s->cfg.nr_devices; d++) {
		struct mm_device_config *c = &s->cfg.device[d];
		uint64_t high = rng_next(s) % (c->pool_bytes / 2);
		uint64_t low = rng_next(s) % (high + 1), min = rng_next(s) % (low / 2 + 1);

		if (!world_has(s, FEAT_WMARK))
			continue;
		c->wmark_min_bytes = rng_percent(s, 50) ? 0 : min;
		c->wmark_low_bytes = low;
		c->wmark_high_bytes = high;
	}
}

static void draw_config(struct sim *s)
{
	struct mm_config *c = &s->cfg;

	memset(c, 0, sizeof(*c));
	c->seed = s->seed;
	c->nr_devices = rng_range(s, 1, 2);
	for (uint32_t d = 0; d < c->nr_devices; d++) {
		c->device[d].extent_align = 4096;
		c->device[d].extent_bytes = 4096ull * rng_range(s, 1, 8);
		c->device[d].pool_bytes =
			c->device[d].extent_bytes * rng_range(s, 3, 24) + 4096ull * rng_below(s, 3);
		c->device[d].scrub = rng_percent(s, 60) && world_has(s, FEAT_SCRUB);
	}
	c->answer_ns = rng_percent(s, 20) ? 0 : 1000ull * rng_range(s, 1, 2000);
	c->idle_ns = rng_percent(s, 40) ? 0 : 1000ull * rng_range(s, 1, 500);
	c->policy = draw(s, FEAT_GITTINS, MM_POLICY_GITTINS, MM_POLICY_GITTINS);
	c->max_shadows = draw(s, FEAT_SHADOWS, 1, 400);
	draw_watermarks(s);
	c->max_tenants = rng_range(s, 2, 6);
	c->max_engines = rng_range(s, 2, 10);
	c->max_members = c->max_engines + rng_below(s, 12);
	c->max_caches = rng_range(s, 2, 12);
	c->max_extents = draw_limit(s, 3, 8, 16, 64);
	c->max_frames = draw_limit(s, 64, 128, 512, 4096);
	c->max_nodes = draw_limit(s, 16, 40, 256, 1024);
	c->max_leases = draw_limit(s, 3, 12, 32, 200);
	c->max_parks = draw_limit(s, 1, 4, 8, 100);
	c->max_keys = draw_limit(s, 1, 3, 8, 64);
	c->max_pending = draw_limit(s, 1, 3, 8, 64);
	c->max_tokens = draw_limit(s, 200, 600, 16384, 16384);
	c->batch_pages = draw_limit(s, 2, 8, 12, 32);
}

static void draw_features(struct sim *s)
{
	static const uint32_t density[] = {25, 50, 75, 75, 90, 100};
	uint32_t percent = density[rng_below(s, 6)];
	uint64_t on = 0;

	for (uint32_t f = 0; f < FEAT_NR; f++)
		on |= rng_percent(s, percent) ? 1ull << f : 0;
	/* A run without content, or without ways to give it up, shows little: they are rare. */
	for (uint32_t f = FEAT_LOOKUP; f <= FEAT_COMMIT; f++)
		on |= rng_percent(s, 95) ? 1ull << f : 0;
	on |= 1ull << FEAT_CORE;
	s->world.features = on & ~s->opt->off;
}

static void draw_weights(struct sim *s)
{
	static const uint32_t factor[] = {1, 2, 4, 4, 4, 8, 16};
	struct world *w = &s->world;

	w->weights = 0;
	for (uint32_t op = 0; op < SIM_NR_OPS; op++) {
		w->weight[op] = sim_ops[op].weight * factor[rng_below(s, 7)];
		if (op >= SIM_IMPORT && rng_percent(s, 4))
			w->weight[op] = 0;
		if (s->opt->without >> op & 1 || !world_has(s, sim_ops[op].feature))
			w->weight[op] = 0;
		w->weights += w->weight[op];
	}
}

static void draw_faults(struct sim *s)
{
	static const uint32_t delays[] = {1, 2, 10, 60, 400};
	struct world *w = &s->world;

	w->hostile_permille = draw(s, FEAT_HOSTILE, 5, 120);
	w->lazy_percent = draw(s, FEAT_LAZY, 5, 60);
	w->hold_effects_percent = draw(s, FEAT_HOLD, 5, 70);
	w->fail_create_permille = draw(s, FEAT_FAIL_CREATE, 10, 300);
	w->fail_destroy_permille = draw(s, FEAT_FAIL_DESTROY, 10, 500);
	w->fail_scrub_permille = draw(s, FEAT_FAIL_SCRUB, 10, 500);
	w->fail_move_permille = draw(s, FEAT_FAIL_MOVE, 10, 500);
	w->jump_permille = draw(s, FEAT_JUMP, 1, 20);
	w->backward_permille = draw(s, FEAT_BACKWARD, 10, 500);
	w->max_delay_steps = delays[rng_below(s, 5)];
	if (!world_has(s, FEAT_SLOW))
		w->max_delay_steps = 0;
}

void world_draw(struct sim *s)
{
	struct world *w = &s->world;

	draw_features(s);
	draw_config(s);
	draw_weights(s);
	draw_faults(s);
	w->nr_tenants = rng_range(s, 1, 3);
	w->nr_models = rng_range(s, 1, SIM_MODELS);
	w->page_tokens = rng_range(s, 1, SIM_PAGE_TOKENS);
	if (rng_percent(s, 40))
		w->page_tokens = 4;
	w->alphabet = rng_percent(s, 70) ? rng_range(s, 2, 4) : 50000;
	w->max_engines = rng_range(s, 1, s->cfg.max_engines + 1);
	w->max_held = rng_percent(s, 50) ? rng_range(s, 8, 24) : rng_range(s, 24, 200);
	w->adopt_percent = draw(s, FEAT_ADOPT, 1, 80);
	w->partial_percent = draw(s, FEAT_PARTIAL, 1, 60);
	w->key_percent = draw(s, FEAT_KEYS, 5, 50);
	w->private_percent = draw(s, FEAT_PRIVATE, 10, 60);
	w->deadline_percent = draw(s, FEAT_DEADLINE, 20, 100);
	w->promise_percent = draw(s, FEAT_PROMISE, 10, 60);
	w->kill_percent = draw(s, FEAT_KILL, 10, 90);
	w->unlimited_percent = rng_range(s, 5, 60);
	w->max_step_ns = rng_percent(s, 50) ? 1000 : 1000000;
	for (uint32_t m = 0; m < w->nr_models; m++)
		draw_model(s, m);
	for (uint32_t d = 0; d < SIM_DOCS; d++)
		world_extend(s, &w->doc[d], rng_range(s, 1, SIM_DEPTH * w->page_tokens));
}

uint64_t world_clock(struct sim *s)
{
	if (s->stopping || !rng_permille(s, s->world.backward_permille))
		return s->now_ns;
	s->sum.backward++;
	return rng_next(s) % (s->now_ns + 1);
}

/* Appends random tokens up to nr_tokens. */
void world_extend(struct sim *s, struct seq *q, uint32_t nr_tokens)
{
	if (nr_tokens > SIM_DEPTH * SIM_PAGE_TOKENS)
		nr_tokens = SIM_DEPTH * SIM_PAGE_TOKENS;
	while (q->nr_tokens < nr_tokens)
		q->tokens[q->nr_tokens++] = rng_below(s, s->world.alphabet);
}

void world_seq(struct sim *s, struct seq *q)
{
	struct seq *doc = &s->world.doc[rng_below(s, SIM_DOCS)];
	uint32_t cut;

	*q = *doc;
	if (rng_percent(s, 50))
		q->nr_tokens = rng_range(s, 1, doc->nr_tokens);
	if (rng_percent(s, 30)) {
		cut = rng_below(s, q->nr_tokens + 1);
		q->nr_tokens = cut;
		world_extend(s, q, cut + rng_range(s, 1, 3 * s->world.page_tokens));
		if (rng_percent(s, 30))
			*doc = *q;
	}
	if (rng_percent(s, s->world.key_percent)) {
		q->key[rng_below(s, SIM_DEPTH)] = rng_below(s, SIM_KEYS);
		if (rng_percent(s, 30))
			*doc = *q;
	}
}
