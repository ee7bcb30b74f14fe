// SPDX-License-Identifier: Apache-2.0
/* Random requests: every invariant after every step, and twice the same from the same seed; in a
 * small world, and in one with as many devices, groups and shards as there may be. */
#include "mmt.h"

#define ENGINES	4
#define HELD	200
#define LEASES	40

struct client {
	uint32_t id, member, cache, nr_held[MM_MAX_GROUPS], nr_leases, park;
	uint64_t held[MM_MAX_GROUPS][HELD];
	uint32_t lease[LEASES];
};

struct shape {
	uint32_t devices, groups, shards, steps, pool;	/* pool: extents of one shard a device */
	bool scrub;
};

static const struct shape *world;
static uint64_t rng;

static uint32_t below(uint32_t n)
{
	rng = core_mix(rng);
	return (uint32_t)(rng >> 33) % n;
}

static void join(struct mmt *t, struct client *c)
{
	static const struct mm_group_desc kind[] = {
		{ MM_GROUP_FULL, 0, 0 }, { MM_GROUP_WINDOW, 9, 0 }, { MM_GROUP_STATE, 0, 0 },
	};
	uint8_t model = (uint8_t)(1 + below(2));
	struct mm_cache_desc d = mmt_desc(model);

	memset(c, 0, sizeof(*c));
	d.page_tokens = 4;
	d.nr_groups = world->groups;
	d.nr_shards = world->shards;
	for (uint32_t g = 0; g < world->groups; g++)
		d.group[g] = kind[model == 1 && g ? 1 : g % 3];
	for (uint32_t s = 0; s < world->shards; s++) {
		d.shard[s].device = s % world->devices;
		for (uint32_t g = 0; g < world->groups; g++)
			d.shard[s].page_bytes[g] = MMT_PAGE;
	}
	if (mmt_attach(t, 1000 + below(2), &c->id, &c->member))
		return;
	if (mmt_open(t, c->id, &d, &c->cache))
		c->cache = 0;
}

static void leave(struct mmt *t, struct client *c)
{
	mmt_simple(t, MM_MEMBER_GONE, 0, c->member);
	memset(c, 0, sizeof(*c));
}

static void take_of(struct mmt *t, struct client *c, uint32_t g)
{
	uint32_t nr = 1 + below(6);
	uint64_t deadline = below(3) ? 0 : t->now + 1 + below(50);

	if (c->nr_held[g] + nr > HELD)
		return;
	if (mmt_alloc_until(t, c->id, c->cache, g, nr, deadline))
		return;		/* one granted later is not followed: it stays held until the end */
	memcpy(&c->held[g][c->nr_held[g]], t->pages, nr * sizeof(uint64_t));
	c->nr_held[g] += nr;
}

static void take(struct mmt *t, struct client *c)
{
	uint32_t all = world->groups > 2 && below(2), g = below(world->groups);

	if (!all)
		take_of(t, c, g);
	for (g = 0; all && g < world->groups; g++)
		take_of(t, c, g);
}

static void publish(struct mmt *t, struct client *c)
{
	uint32_t nr = 1 + below(3), tok[16], at = c->nr_leases;
	uint32_t lease = at && below(2) ? c->lease[at - 1] : 0, partial = below(3) == 0;
	uint64_t ids[3 * MM_MAX_GROUPS];

	for (uint32_t g = 0; g < world->groups; g += 3)
		if (c->nr_held[g] < nr)
			return;
	if (at == LEASES)
		return;
	for (uint32_t i = 0; i < 16; i++)
		tok[i] = below(2);
	for (uint32_t g = 0; g < world->groups; g++)
		for (uint32_t i = 0; i < nr; i++)
			ids[g * nr + i] = c->nr_held[g] >= nr && (g % 3 == 0 || below(4)) ?
					  c->held[g][c->nr_held[g] - 1 - i] : 0;
	if (mmt_commit_keys(t, c->id, c->cache, partial, lease, tok, nr * 4 - partial, ids,
			    nr, NULL, 0))
		return;
	c->lease[lease ? at - 1 : c->nr_leases++] = t->rp.lease;
	for (uint32_t g = 0; g < world->groups; g++) {
		uint32_t kept = 0, base = c->nr_held[g] - nr;

		if (c->nr_held[g] < nr)
			continue;
		for (uint32_t i = nr; i--; ) {	/* duplicates stay ours */
			uint64_t id = c->held[g][base + i];
			uint32_t k = nr - 1 - i;

			if (!ids[g * nr + k] || t->pages[g * nr + k] != id)
				c->held[g][base + kept++] = id;
		}
		c->nr_held[g] = base + kept;
	}
}

static void look(struct mmt *t, struct client *c)
{
	uint32_t tok[16];

	for (uint32_t i = 0; i < 16; i++)
		tok[i] = below(2);
	for (uint32_t g = 0; g < world->groups; g++)
		if (c->nr_held[g] == HELD)
			return;
	if (c->nr_leases + 2 > LEASES)
		return;
	if (mmt_lookup(t, c->id, c->cache, below(2) * MM_LOOKUP_ADOPT, tok, below(17)))
		return;
	if (t->rp.lease)
		c->lease[c->nr_leases++] = t->rp.lease;
	if (t->rp.tail_lease)
		c->lease[c->nr_leases++] = t->rp.tail_lease;
	for (uint32_t g = 0; g < world->groups && t->rp.tail_adopted; g++)
		c->held[g][c->nr_held[g]++] = t->rp.tail_pages[g];
}

static void give_back(struct mmt *t, struct client *c)
{
	uint32_t g = below(world->groups), nr = below(8);

	if (nr > c->nr_held[g])
		nr = c->nr_held[g];
	if (!mmt_free(t, c->id, &c->held[g][c->nr_held[g] - nr], nr))
		c->nr_held[g] -= nr;
}

static void lease_op(struct mmt *t, struct client *c)
{
	uint32_t lease = c->nr_leases ? c->lease[c->nr_leases - 1] : 0;

	switch (below(5)) {
	case 0:
		if (c->nr_leases < LEASES && !mmt_lease(t, MM_LEASE_DUP, c->id, 0, lease, below(3)))
			c->lease[c->nr_leases++] = t->rp.lease;
		break;
	case 1:
		mmt_lease(t, MM_DROP_HEAD, c->id, 1, lease, below(5));
		break;
	case 2:
		if (!c->park && !mmt_park(t, MM_PARK, c->id, lease, 0, 0)) {
			c->park = t->rp.park;
			c->nr_leases--;
		}
		break;
	case 3:
		if (c->park && c->nr_leases + 2 <= LEASES &&
		    !mmt_park(t, MM_RESUME, c->id, 0, c->park, 0)) {
			c->park = 0;
			if (t->rp.lease)
				c->lease[c->nr_leases++] = t->rp.lease;
			if (t->rp.tail_lease)
				c->lease[c->nr_leases++] = t->rp.tail_lease;
		}
		break;
	default:
		if (lease && !mmt_unlease(t, c->id, lease))
			c->nr_leases--;
	}
}

static void map_op(struct mmt *t, struct client *c)
{
	uint32_t ext = 1 + below(16);

	if (below(3))
		mmt_map(t, below(2) ? MM_IMPORT : MM_UNIMPORT, c->member, ext,
			below(world->shards));
	else if (!mmt_simple(t, MM_EVENTS, 0, c->member))
		for (uint32_t i = 0, nr = t->rp.nr_events; i < nr; i++)
			if (t->events[i].kind == MM_EVENT_RETIRE)
				mmt_map(t, MM_UNIMPORT, c->member, t->events[i].extent, 0);
}

/* What is told to engines and by them, and what operators set. */
static void word_op(struct mmt *t, struct client *c)
{
	uint32_t lease = c->nr_leases ? c->lease[c->nr_leases - 1] : 0, d = below(world->devices);
	struct mm_request hint = { .op = MM_HINT, .engine = c->id, .hint = {
					   lease, { .priority = below(3), .reuse_ms = below(9),
						    .ttl_ms = below(9) } } };
	struct mm_request reserve = { .op = MM_RESERVE, .engine = c->id,
				      .reserve = { d, 0, below(2) * MMT_EXTENT } };
	struct mm_request ack = { .op = below(2) ? MM_VACATE_ACK : MM_PRESSURE_ACK,
				  .engine = c->id, .ack = { below(16), below(4), 0 } };
	uint64_t x = MMT_EXTENT;

	switch (below(4)) {
	case 0:
		mmt_submit(t, &hint);
		break;
	case 1:
		mmt_submit(t, &reserve);
		break;
	case 2:
		mmt_submit(t, &ack);
		break;
	default:
		mmt_limits(t, 1000 + below(2), below(2) ? d : MM_ALL_DEVICES,
			   (struct mm_limits){ below(2) * x, below(4) * x, (4 + below(40)) * x,
					       (4 + below(40)) * x },
			   below(8) ? MM_OOM_NONE : MM_OOM_KILL);
	}
}

static void step(struct mmt *t, struct client *c)
{
	t->now += below(5);
	if (!c->id) {
		join(t, c);
		return;
	}
	switch (below(23)) {
	case 0:
		if (!below(6))
			leave(t, c);
		break;
	case 1: case 2: case 3: case 4:
		take(t, c);
		break;
	case 5: case 6: case 7: case 8:
		publish(t, c);
		break;
	case 9: case 10: case 11:
		look(t, c);
		break;
	case 12: case 13:
		give_back(t, c);
		break;
	case 14: case 15:
		map_op(t, c);
		break;
	case 16:
		mmt_tick(t, t->now + 10);
		break;
	case 17:
		t->hold = below(2);
		if (!t->hold)
			mmt_run(t);
		break;
	case 18: case 19:
		word_op(t, c);
		break;
	default:
		lease_op(t, c);
	}
}

static struct mm_config config_of(uint64_t seed)
{
	struct mm_config cfg = mmt_config();

	cfg.nr_devices = world->devices;
	for (uint32_t d = 0; d < world->devices; d++) {
		cfg.device[d] = cfg.device[0];
		cfg.device[d].pool_bytes = world->pool * MMT_EXTENT;
		cfg.device[d].wmark_low_bytes = seed & 2 ? 2 * MMT_EXTENT : 0;
		cfg.device[d].wmark_high_bytes = seed & 2 ? 4 * MMT_EXTENT : 0;
		cfg.device[d].scrub = d && world->scrub;
	}
	cfg.answer_ns = 20;
	cfg.idle_ns = 300;
	cfg.policy = seed & 4 ? MM_POLICY_LRU : MM_POLICY_GITTINS;
	cfg.max_extents = 128;
	cfg.max_nodes = 60;
	cfg.max_tokens = 80 * 16;
	cfg.max_shadows = 40;
	cfg.seed = seed;
	return cfg;
}

static uint64_t run(uint64_t seed)
{
	static struct client c[ENGINES];
	static struct mmt t;
	struct mm_config cfg = config_of(seed);
	uint64_t h = 0;

	rng = seed;
	memset(c, 0, sizeof(c));
	mmt_init(&t, &cfg);
	for (uint32_t i = 0; i < world->steps; i++) {
		step(&t, &c[below(ENGINES)]);
		h = core_mix(h ^ mm_digest(t.mm));
	}
	t.hold = false;
	for (uint32_t i = 0; i < ENGINES; i++)
		if (c[i].id)
			leave(&t, &c[i]);
	mmt_run(&t);
	assert_int_equal(t.mm->engines.nr_used + t.mm->members.nr_used + t.mm->leases.nr_used, 0);
	mmt_fini(&t);
	return h;
}

static void invariants_hold_and_runs_repeat(void **state)
{
	static const struct shape small = { 2, 2, 1, 1500, 12, false };
	static const struct shape scrubbed = { 2, 2, 2, 1500, 12, true };

	(void)state;
	for (uint64_t seed = 1; seed <= 8; seed++) {
		world = seed & 1 ? &scrubbed : &small;
		assert_true(run(seed) == run(seed));
	}
}

static void so_they_do_in_a_world_as_large_as_can_be(void **state)
{
	static const struct shape large = { MM_MAX_DEVICES, MM_MAX_GROUPS, MM_MAX_SHARDS, 2000, 90,
					    false };
	static const struct shape windows = { MM_MAX_DEVICES, 2, MM_MAX_DEVICES, 1500, 12, true };

	(void)state;
	for (uint64_t seed = 1; seed <= 8; seed++) {
		world = seed & 1 ? &large : &windows;
		assert_true(run(seed) == run(seed));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(invariants_hold_and_runs_repeat),
		cmocka_unit_test(so_they_do_in_a_world_as_large_as_can_be),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
