// SPDX-License-Identifier: Apache-2.0
/* Two shards of three groups under a squeeze: random work, every hit held against the rule by brute
 * force over the nodes, and every page's content followed in each shard. */
#include "mmt.h"

#define PT	4u		/* tokens a page */
#define FULL	0u
#define WINDOW	1u		/* of 6 tokens: 2 pages */
#define STATE	2u
#define GROUPS	3u
#define SHARDS	2u
#define DEPTH	8u		/* pages in a sequence */
#define STEPS	4000
#define LEASES	12u
#define EXTS	65u
#define SLOTS	16u

struct rank_page {
	uint64_t content;	/* 0: nothing */
};

struct owned {			/* a lease of ours, and what it was promised */
	uint32_t id, nr_pages;
	uint32_t tokens[DEPTH * PT];
	uint64_t pages[GROUPS][DEPTH];
};

static struct mmt t;
static struct rank_page rank[SHARDS][EXTS][SLOTS];
static bool there[SHARDS][EXTS];
static struct owned lease[LEASES];
static uint32_t e, m, c, other, other_c, park;
static struct owned parked;
static uint64_t rng, held_by_other[64];
static uint32_t nr_other, nr_hits, nr_squeezed, nr_short;

static uint32_t below(uint32_t n)
{
	rng = core_mix(rng);
	return (uint32_t)(rng >> 33) % n;
}

/* ---- devices ------------------------------------------------------------------------------- */

static void carry_out(const struct mm_effect *fx)
{
	switch (fx->kind) {
	case MM_EFFECT_CREATE:
		assert_false(there[fx->shard][fx->extent]);
		there[fx->shard][fx->extent] = true;
		memset(rank[fx->shard][fx->extent], 0, sizeof(rank[0][0]));
		break;
	case MM_EFFECT_DESTROY:
		assert_true(there[fx->shard][fx->extent]);
		there[fx->shard][fx->extent] = false;
		break;
	case MM_EFFECT_SCRUB:
		for (uint32_t i = 0; i < fx->nr_slots; i++)
			rank[fx->shard][fx->extent][fx->slot + i].content = 0;
		break;
	case MM_EFFECT_MOVE:
		assert_true(there[fx->shard][fx->to_extent]);
		rank[fx->shard][fx->to_extent][fx->to_slot] =
			rank[fx->shard][fx->extent][fx->slot];
		break;
	default:
		break;
	}
}

/* In random order, one device ahead of the other; extents of the other engine are in the tables as
 * well. A device may refuse to make a shard. */
static void devices(bool may_fail)
{
	mmt_fetch(&t);
	while (t.nr_fx) {
		uint32_t i = below(t.nr_fx);
		bool fail = may_fail && t.fx[i].kind == MM_EFFECT_CREATE && !below(20);

		if (!fail)
			carry_out(&t.fx[i]);
		mmt_complete(&t, i, fail ? -ENOMEM : 0);
		mmt_replies(&t, 0);
		mmt_fetch(&t);
	}
}

static void events(void)
{
	uint32_t members[2] = { m, 0 };

	for (uint32_t i = 0; members[i]; i++)
		assert_int_equal(mmt_simple(&t, MM_EVENTS, 0, members[i]), 0);
}

/* ---- the rule, by brute force -------------------------------------------------------------- */

static uint64_t prefix_hash(const uint32_t *tokens, uint32_t nr_pages, uint32_t group)
{
	uint64_t h = 99 + group;

	for (uint32_t i = 0; i < nr_pages * PT; i++)
		h = core_mix(h ^ tokens[i]) + i;
	return h | 1;
}

/* The node of exactly these tokens below parent, by looking at every node there is. */
static uint32_t scan(uint32_t cache, uint32_t parent, const uint32_t *tokens)
{
	const struct pool *nodes = &t.mm->nodes;
	uint32_t found = NIL;

	for (uint32_t n = pool_next(t.mm, nodes, 0); n; n = pool_next(t.mm, nodes, n)) {
		const struct node *no = node_at(t.mm, n);

		if (no->cache != cache || no->parent != parent || no->nr_tokens != PT || no->key ||
		    memcmp(node_tokens(t.mm, n), tokens, PT * sizeof(*tokens)))
			continue;
		assert_int_equal(found, NIL);
		found = n;
	}
	return found;
}

/* The longest length at which full groups are contiguous, the window group has its last window and
 * the state group a snapshot exactly there. */
static uint32_t longest(const uint32_t *tokens, uint32_t nr_pages, uint32_t *path)
{
	uint32_t cache = pool_find(t.mm, &t.mm->caches, c), nr = 0, parent = NIL, best = 0;

	while (nr < nr_pages && (path[nr] = scan(cache, parent, tokens + nr * PT)))
		parent = path[nr++];
	for (uint32_t len = 1; len <= nr; len++) {
		bool hit = node_at(t.mm, path[len - 1])->loc[STATE] != 0;

		for (uint32_t i = 0; i < len; i++)
			hit = hit && node_at(t.mm, path[i])->loc[FULL];
		for (uint32_t i = len > 2 ? len - 2 : 0; i < len; i++)
			hit = hit && node_at(t.mm, path[i])->loc[WINDOW];
		best = hit ? len : best;
	}
	return best;
}

static void check_page(uint64_t id, uint64_t content)
{
	uint32_t x = mm_page_extent(id), slot = mm_page_slot(id);

	for (uint32_t s = 0; s < SHARDS; s++) {
		assert_true(there[s][x]);
		assert_true(rank[s][x][slot].content == content);
	}
}

static bool leased_by(uint32_t len, uint32_t g, uint32_t i)
{
	return g == FULL || (g == WINDOW && i + 2 >= len) || (g == STATE && i + 1 == len);
}

/* What a hit of t.rp, t.pages must be. */
static void check_hit(const uint32_t *tokens, uint32_t want, const uint32_t *path)
{
	assert_int_equal(t.rp.nr_pages, want);
	for (uint32_t g = 0; g < GROUPS && want; g++)
		for (uint32_t i = 0; i < want; i++) {
			uint64_t id = t.pages[g * want + i];
			uint32_t f = node_at(t.mm, path[i])->loc[g];

			if (leased_by(want, g, i))
				assert_true(id != 0);
			if (g == WINDOW && i + 2 < want)
				assert_true(id == 0);
			if (id) {
				assert_true(id == frame_id(t.mm, f));
				check_page(id, prefix_hash(tokens, i + 1, g));
			}
		}
	nr_hits += want != 0;
}

static void keep(struct owned *l, uint32_t id, const uint32_t *tokens, uint32_t nr)
{
	*l = (struct owned){ .id = id, .nr_pages = nr };
	memcpy(l->tokens, tokens, nr * PT * sizeof(*tokens));
	for (uint32_t g = 0; g < GROUPS; g++)
		for (uint32_t i = 0; i < nr; i++)
			l->pages[g][i] = t.pages[g * nr + i];
}

/* ---- what is done -------------------------------------------------------------------------- */

static uint32_t free_slot(void)
{
	uint32_t i = below(LEASES);

	if (lease[i].id)
		assert_int_equal(mmt_unlease(&t, e, lease[i].id), 0);
	lease[i].id = 0;
	return i;
}

static void draw(uint32_t *tokens)
{
	for (uint32_t i = 0; i < DEPTH * PT; i++)
		tokens[i] = i % PT ? i : below(3);	/* few prefixes, much shared */
}

static void look(void)
{
	uint32_t tokens[DEPTH * PT], path[DEPTH], nr = 1 + below(DEPTH), want, at = free_slot();

	draw(tokens);
	want = longest(tokens, nr, path);
	assert_int_equal(mmt_lookup(&t, e, c, 0, tokens, nr * PT), 0);
	check_hit(tokens, want, path);
	if (t.rp.lease)
		keep(&lease[at], t.rp.lease, tokens, want);
	if (t.rp.tail_lease)
		assert_int_equal(mmt_unlease(&t, e, t.rp.tail_lease), 0);
}

static int get(uint32_t group, uint64_t *id)
{
	uint64_t deadline = below(3) ? t.now + 1000 : 0;
	int r = mmt_alloc_until(&t, e, c, group, 1, deadline);

	if (r == MMT_LATER) {
		uint64_t cookie = t.cookie;

		for (uint32_t i = 0; i < 40 && r == MMT_LATER; i++) {
			mmt_fetch(&t);
			if (t.nr_fx) {
				carry_out(&t.fx[0]);
				mmt_complete(&t, 0, 0);
			} else {
				t.now += 1000;
				mm_tick(t.mm, t.now, 64);
				nr_squeezed++;
			}
			r = mmt_replies(&t, cookie);
		}
		assert_true(r != MMT_LATER);
	}
	*id = r ? 0 : t.pages[0];
	if (*id)
		assert_true(there[0][mm_page_extent(*id)] && there[1][mm_page_extent(*id)]);
	return r;
}

/* The pages of a sequence after a lease (or from the root): written, committed, leased. */
static void publish(void)
{
	uint32_t tokens[DEPTH * PT], at = below(LEASES), from = 0, nr, want;
	uint64_t ids[GROUPS * DEPTH] = { 0 };

	draw(tokens);
	if (lease[at].id && below(3)) {
		from = lease[at].nr_pages;
		memcpy(tokens, lease[at].tokens, from * PT * sizeof(*tokens));
	} else {
		at = free_slot();
	}
	if (from == DEPTH)
		return;
	nr = 1 + below(DEPTH - from);
	for (uint32_t i = 0; i < nr * GROUPS; i++) {
		uint32_t g = i / nr, page = i % nr;
		uint64_t *id = &ids[i];

		if (g == WINDOW && page + 2 < nr && !below(3))
			continue;	/* behind the window, given back already */
		if (g == STATE && page + 1 < nr && below(3))
			continue;
		if (get(g, id)) {
			nr_short++;
			for (uint32_t k = 0; k < i; k++)
				if (ids[k])
					assert_int_equal(mmt_free(&t, e, &ids[k], 1), 0);
			return;
		}
		for (uint32_t s = 0; s < SHARDS; s++)
			rank[s][mm_page_extent(*id)][mm_page_slot(*id)].content =
				prefix_hash(tokens, from + page + 1, g);
	}
	assert_int_equal(mmt_commit_keys(&t, e, c, 0, from ? lease[at].id : 0, tokens + from * PT,
					 nr * PT, ids, nr, NULL, 0), 0);
	want = t.rp.lease;
	for (uint32_t g = 0; g < GROUPS; g++)
		for (uint32_t i = 0; i < nr; i++) {
			uint64_t id = t.pages[g * nr + i];

			if (id)
				check_page(id, prefix_hash(tokens, from + i + 1, g));
			lease[at].pages[g][from + i] = id;
		}
	for (uint32_t i = 0; i < nr * GROUPS; i++)
		if (ids[i] && ids[i] != lease[at].pages[i / nr][from + i % nr])
			assert_int_equal(mmt_free(&t, e, &ids[i], 1), 0);
	lease[at].id = want;
	lease[at].nr_pages = from + nr;
	memcpy(lease[at].tokens, tokens, (from + nr) * PT * sizeof(*tokens));
}

static void drop_head(void)
{
	struct owned *l = &lease[below(LEASES)];
	uint32_t depth;

	if (!l->id)
		return;
	depth = below(l->nr_pages + 1);
	assert_int_equal(mmt_lease(&t, MM_DROP_HEAD, e, WINDOW, l->id, depth), 0);
	for (uint32_t i = 0; i < depth; i++)
		l->pages[WINDOW][i] = 0;
}

static void park_or_resume(void)
{
	uint32_t at = free_slot(), path[DEPTH], want, node;
	struct owned *l = &lease[below(LEASES)];

	if (park) {
		/* What was evicted since and came again is no part of it. */
		node = park_at(t.mm, pool_find(t.mm, &t.mm->parks, park))->node;
		want = longest(parked.tokens, node ? node_at(t.mm, node)->depth + 1 : 0, path);
		assert_int_equal(mmt_park(&t, MM_RESUME, e, 0, park, 0), 0);
		check_hit(parked.tokens, want, path);
		if (t.rp.lease)
			keep(&lease[at], t.rp.lease, parked.tokens, want);
		park = 0;
	} else if (l->id) {
		parked = *l;
		assert_int_equal(mmt_park(&t, MM_PARK, e, l->id, 0, 0), 0);
		park = t.rp.park;
		l->id = 0;
	}
}

/* Another engine takes room on both devices, or on the small one, and gives it back. */
static void press(void)
{
	if (below(2) || nr_other + 8 > 64) {
		if (nr_other)
			assert_int_equal(mmt_free(&t, other, held_by_other, nr_other), 0);
		nr_other = 0;
		assert_int_equal(mmt_reserve(&t, other, 1, 0), 0);
		return;
	}
	if (below(2)) {
		mmt_reserve(&t, other, 1, below(4) * MMT_EXTENT / 4);
		return;
	}
	if (!mmt_alloc_until(&t, other, other_c, 0, 8, t.now + 500)) {
		memcpy(held_by_other + nr_other, t.pages, 8 * sizeof(uint64_t));
		nr_other += 8;
	} else {
		devices(false);
		t.now += 1000;
		mm_tick(t.mm, t.now, 64);
		for (struct mm_reply rp; mm_next_reply(t.mm, &rp);)
			if (rp.op == MM_ALLOC && !rp.result && rp.engine == other) {
				memcpy(held_by_other + nr_other, rp.pages, 8 * sizeof(uint64_t));
				nr_other += 8;
			}
	}
}

/* Nothing a lease needs is ever taken, in any shard. */
static void check_leases(void)
{
	for (uint32_t l = 0; l < LEASES; l++)
		for (uint32_t g = 0; g < GROUPS && lease[l].id; g++)
			for (uint32_t i = 0; i < lease[l].nr_pages; i++) {
				uint64_t id = lease[l].pages[g][i];

				if (id && (g == FULL || leased_by(lease[l].nr_pages, g, i)))
					check_page(id, prefix_hash(lease[l].tokens, i + 1, g));
			}
	for (uint32_t x = 1; x < EXTS; x++)
		if (extent_lookup(t.mm, x) && extent_at(t.mm, x)->state == EXTENT_LIVE &&
		    cache_at(t.mm, extent_at(t.mm, x)->cache)->desc.nr_shards == SHARDS)
			assert_true(there[0][x] && there[1][x]);
}

static void start(bool scrub)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(5);

	memset(there, 0, sizeof(there));
	memset(lease, 0, sizeof(lease));
	park = nr_other = nr_hits = nr_squeezed = nr_short = 0;
	cfg.device[0].pool_bytes = 24 * MMT_EXTENT;
	cfg.device[1].pool_bytes = 7 * MMT_EXTENT / 2;	/* 14 of its half-sized ones: nearly full */
	cfg.device[0].scrub = cfg.device[1].scrub = scrub;
	d.page_tokens = PT;
	d.nr_groups = GROUPS;
	d.nr_shards = SHARDS;
	d.shard[1].device = 1;
	d.group[WINDOW] = (struct mm_group_desc){ MM_GROUP_WINDOW, 6, 0 };
	d.group[STATE] = (struct mm_group_desc){ MM_GROUP_STATE, 0, 0 };
	for (uint32_t g = 0; g < GROUPS; g++) {
		d.shard[0].page_bytes[g] = MMT_PAGE;
		d.shard[1].page_bytes[g] = MMT_PAGE / 4;
	}
	mmt_init(&t, &cfg);
	t.hold = true;
	assert_int_equal(mmt_attach(&t, 10, &e, &m), 0);
	assert_int_equal(mmt_open(&t, e, &d, &c), 0);
	d = mmt_desc(0);
	d.model_key[0] = 0;
	d.nr_shards = SHARDS;
	d.shard[1] = d.shard[0];
	d.shard[1].device = 1;
	d.shard[1].page_bytes[0] = MMT_PAGE / 4;
	assert_int_equal(mmt_attach(&t, 20, &other, NULL), 0);
	assert_int_equal(mmt_open(&t, other, &d, &other_c), 0);
}

static void run(uint64_t seed, bool scrub)
{
	rng = seed;
	start(scrub);
	for (uint32_t i = 0; i < STEPS; i++) {
		uint32_t what = below(20);

		if (what < 8)
			look();
		else if (what < 14)
			publish();
		else if (what < 16)
			drop_head();
		else if (what < 18)
			park_or_resume();
		else
			press();
		devices(true);
		events();
		check_leases();
	}
	assert_true(nr_hits > STEPS / 20);
	assert_true(nr_short + nr_squeezed > 0 && mm_vmstat(t.mm)->pages_evict > 100);
	mmt_fini(&t);
}

static void hits_are_the_longest_the_rule_allows(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 6; seed++)
		run(seed, false);
}

static void scrubbed_shards_agree_as_well(void **state)
{
	(void)state;
	for (uint64_t seed = 11; seed <= 13; seed++)
		run(seed, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hits_are_the_longest_the_rule_allows),
		cmocka_unit_test(scrubbed_shards_agree_as_well),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
