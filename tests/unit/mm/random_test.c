// SPDX-License-Identifier: Apache-2.0
/* Random requests: every invariant after every step, and twice the same from the same seed. */
#include "mmt.h"

#define STEPS	1500
#define ENGINES	4
#define HELD	200
#define LEASES	40

struct client {
	uint32_t id, member, cache, nr_held[2], nr_leases, park;
	uint64_t held[2][HELD];
	uint32_t lease[LEASES];
};

static uint64_t rng;

static uint32_t below(uint32_t n)
{
	rng = core_mix(rng);
	return (uint32_t)(rng >> 33) % n;
}

static void join(struct mmt *t, struct client *c, bool scrub)
{
	struct mm_cache_desc d = mmt_desc((uint8_t)(1 + below(2)));

	memset(c, 0, sizeof(*c));
	d.page_tokens = 4;
	d.nr_groups = 2;
	d.nr_shards = 1 + scrub;
	d.shard[1].device = 1;
	d.group[1] = (struct mm_group_desc){ MM_GROUP_WINDOW, 9, 0 };
	for (uint32_t s = 0; s < 2; s++)
		d.shard[s].page_bytes[0] = d.shard[s].page_bytes[1] = MMT_PAGE;
	if (mmt_attach(t, 1000, &c->id, &c->member))
		return;
	if (mmt_open(t, c->id, &d, &c->cache))
		c->cache = 0;
}

static void leave(struct mmt *t, struct client *c)
{
	mmt_simple(t, MM_MEMBER_GONE, 0, c->member);
	memset(c, 0, sizeof(*c));
}

static void take(struct mmt *t, struct client *c)
{
	uint32_t g = below(2), nr = 1 + below(6);
	uint64_t deadline = below(3) ? 0 : t->now + 1 + below(50);

	if (c->nr_held[g] + nr > HELD)
		return;
	if (mmt_alloc_until(t, c->id, c->cache, g, nr, deadline))
		return;		/* one granted later is not followed: it stays held until the end */
	memcpy(&c->held[g][c->nr_held[g]], t->pages, nr * sizeof(uint64_t));
	c->nr_held[g] += nr;
}

static void publish(struct mmt *t, struct client *c)
{
	uint32_t nr = 1 + below(3), tok[16], at = c->nr_leases;
	uint32_t lease = at && below(2) ? c->lease[at - 1] : 0, partial = below(3) == 0;
	uint64_t ids[8];

	if (c->nr_held[0] < nr || c->nr_held[1] < nr || at == LEASES)
		return;
	for (uint32_t i = 0; i < 16; i++)
		tok[i] = below(2);
	for (uint32_t i = 0; i < nr; i++) {
		ids[i] = c->held[0][c->nr_held[0] - 1 - i];
		ids[nr + i] = below(4) ? c->held[1][c->nr_held[1] - 1 - i] : 0;
	}
	if (mmt_commit_keys(t, c->id, c->cache, partial, lease, tok, nr * 4 - partial, ids,
			    nr, NULL, 0))
		return;
	c->lease[lease ? at - 1 : c->nr_leases++] = t->rp.lease;
	for (uint32_t g = 0; g < 2; g++) {
		uint32_t kept = 0, base = c->nr_held[g] - nr;

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
	if (c->nr_leases + 2 > LEASES || c->nr_held[0] == HELD || c->nr_held[1] == HELD)
		return;
	if (mmt_lookup(t, c->id, c->cache, below(2) * MM_LOOKUP_ADOPT, tok, below(17)))
		return;
	if (t->rp.lease)
		c->lease[c->nr_leases++] = t->rp.lease;
	if (t->rp.tail_lease)
		c->lease[c->nr_leases++] = t->rp.tail_lease;
	for (uint32_t g = 0; g < 2 && t->rp.tail_adopted; g++)
		c->held[g][c->nr_held[g]++] = t->rp.tail_pages[g];
}

static void give_back(struct mmt *t, struct client *c)
{
	uint32_t g = below(2), nr = below(8);

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
		mmt_map(t, below(2) ? MM_IMPORT : MM_UNIMPORT, c->member, ext, below(2));
	else if (!mmt_simple(t, MM_EVENTS, 0, c->member))
		for (uint32_t i = 0, nr = t->rp.nr_events; i < nr; i++)
			if (t->events[i].kind == MM_EVENT_RETIRE)
				mmt_map(t, MM_UNIMPORT, c->member, t->events[i].extent, 0);
}

static void step(struct mmt *t, struct client *c, bool scrub)
{
	t->now += below(5);
	if (!c->id) {
		join(t, c, scrub);
		return;
	}
	switch (below(20)) {
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
	default:
		lease_op(t, c);
	}
}

static uint64_t run(uint64_t seed, bool scrub)
{
	static struct client c[ENGINES];
	static struct mmt t;
	struct mm_config cfg = mmt_config();
	uint64_t h = 0;

	cfg.device[0].pool_bytes = cfg.device[1].pool_bytes = 12 * MMT_EXTENT;
	cfg.device[1].scrub = scrub;
	cfg.max_nodes = 60;
	cfg.max_tokens = 80 * 16;
	cfg.seed = seed;
	rng = seed;
	memset(c, 0, sizeof(c));
	mmt_init(&t, &cfg);
	for (uint32_t i = 0; i < STEPS; i++) {
		step(&t, &c[below(ENGINES)], scrub);
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
	(void)state;
	for (uint64_t seed = 1; seed <= 8; seed++)
		assert_true(run(seed, seed & 1) == run(seed, seed & 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(invariants_hold_and_runs_repeat),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
