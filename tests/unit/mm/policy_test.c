// SPDX-License-Identifier: Apache-2.0
/* policy_test - which page goes: leaves first, the learnt worth against lru, hints */
#include "mmt.h"
#include "policy.h"
#include "worth.h"

#define PAGES	64u	/* of the pool */
#define MS	1000000ull

static struct mmt s;
static uint32_t e, c;

static void begin(uint32_t policy, uint32_t max_shadows)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);

	cfg.policy = policy;
	cfg.max_shadows = max_shadows;
	cfg.device[0].pool_bytes = PAGES / 8 * MMT_EXTENT;
	mmt_init(&s, &cfg);
	assert_int_equal(mmt_attach(&s, 100, &e, NULL), 0);
	assert_int_equal(mmt_open(&s, e, &d, &c), 0);
}

/* Page id as 16 tokens, all of them the same. */
static void fill(uint32_t *tokens, const uint32_t *page, uint32_t nr)
{
	for (uint32_t i = 0; i < nr * MMT_PT; i++)
		tokens[i] = page[i / MMT_PT];
}

/* One prompt: looked up, completed, given back. Returns the pages hit. */
static uint32_t prompt(const uint32_t *page, uint32_t nr)
{
	uint32_t tokens[32 * MMT_PT], hit, lease;
	uint64_t ids[32];

	fill(tokens, page, nr);
	assert_int_equal(mmt_lookup(&s, e, c, 0, tokens, nr * MMT_PT), 0);
	hit = s.rp.nr_pages;
	lease = s.rp.lease;
	if (s.rp.tail_lease)
		assert_int_equal(mmt_unlease(&s, e, s.rp.tail_lease), 0);
	if (hit < nr) {
		assert_int_equal(mmt_alloc(&s, e, c, 0, nr - hit, ids), 0);
		assert_int_equal(mmt_commit(&s, e, c, lease, tokens + hit * MMT_PT,
					    (nr - hit) * MMT_PT, ids), 0);
		lease = s.rp.lease;
	}
	assert_int_equal(mmt_unlease(&s, e, lease), 0);
	return hit;
}

static uint32_t cached(uint32_t first, uint32_t nr)
{
	uint32_t page[32], tokens[32 * MMT_PT], hit;

	for (uint32_t i = 0; i < nr; i++)
		page[i] = first + i;
	fill(tokens, page, nr);
	assert_int_equal(mmt_lookup(&s, e, c, 0, tokens, nr * MMT_PT), 0);
	hit = s.rp.nr_pages;
	if (s.rp.tail_lease)
		assert_int_equal(mmt_unlease(&s, e, s.rp.tail_lease), 0);
	if (hit)
		assert_int_equal(mmt_unlease(&s, e, s.rp.lease), 0);
	return hit;
}

static void chain(uint32_t first, uint32_t nr)
{
	uint32_t page[32];

	for (uint32_t i = 0; i < nr; i++)
		page[i] = first + i;
	prompt(page, nr);
}

static void hint(uint32_t first, uint32_t nr, struct mm_hint h)
{
	uint32_t page[32], tokens[32 * MMT_PT];
	struct mm_request rq = { .op = MM_HINT, .engine = e, .hint = { .hint = h } };

	for (uint32_t i = 0; i < nr; i++)
		page[i] = first + i;
	fill(tokens, page, nr);
	assert_int_equal(mmt_lookup(&s, e, c, 0, tokens, nr * MMT_PT), 0);
	assert_int_equal(s.rp.nr_pages, nr);
	rq.hint.lease = s.rp.lease;
	assert_int_equal(mmt_submit(&s, &rq), 0);
	assert_int_equal(s.rp.nr_pages, nr - h.from_page);
	assert_int_equal(mmt_unlease(&s, e, rq.hint.lease), 0);
}

/* Conversations over one system page: a few go on and on, most prompts come once. */
static uint32_t replay(uint32_t policy)
{
	uint32_t hits = 0, rng = 12345, once = 100000, page[10] = { 1 };

	begin(policy, 4096);
	for (uint32_t i = 0; i < 1500; i++) {
		s.now += 900 * MS + (rng >> 22) * MS;
		rng = rng * 1664525 + 1013904223;
		for (uint32_t k = 1; k < 10; k++)
			page[k] = i % 4 ? once++ : 1000 + 16 * (i / 4 % 6) + k;
		hits += prompt(page, 10);
	}
	mmt_fini(&s);
	return hits;
}

static void a_learnt_policy_hits_more_than_lru(void **state)
{
	uint32_t lru = replay(MM_POLICY_LRU), gittins = replay(MM_POLICY_GITTINS);

	(void)state;
	print_message("hits: lru %u, gittins %u\n", lru, gittins);
	assert_true(lru >= 1499);
	assert_true(gittins > lru + lru / 2);
	assert_int_equal(gittins, replay(MM_POLICY_GITTINS));
}

/* Each prefix of a chain is hit until its own tail is gone. */
static void leaves_go_before_parents(void **state)
{
	(void)state;
	for (uint32_t policy = 0; policy < MM_NR_POLICIES; policy++) {
		begin(policy, 64);
		s.now += 10 * MS;
		chain(100, 24);
		for (uint32_t i = 0; i < 12; i++) {
			uint64_t before = mm_vmstat(s.mm)->pages_evict;
			uint32_t nodes = s.mm->nodes.nr_used, n = 0;

			s.now += 10 * MS;
			chain(1000 + 100 * i, 8);
			/* mm_check saw every node's parent alive; what went were leaves */
			for (n = pool_next(s.mm, &s.mm->nodes, 0); n;
			     n = pool_next(s.mm, &s.mm->nodes, n))
				assert_true(!node_at(s.mm, n)->parent ||
					    node_at(s.mm, node_at(s.mm, n)->parent)->children);
			assert_int_equal(s.mm->nodes.nr_used, nodes + 8 -
					 (mm_vmstat(s.mm)->pages_evict - before));
		}
		assert_true(mm_vmstat(s.mm)->pages_evict > 0);
		mmt_fini(&s);
	}
}

static void what_is_past_its_time_goes_first(void **state)
{
	(void)state;
	for (uint32_t policy = 0; policy < MM_NR_POLICIES; policy++) {
		begin(policy, 64);
		chain(100, 16);
		s.now += 10 * MS;
		chain(200, 16);
		hint(200, 16, (struct mm_hint){ .priority = 1, .ttl_ms = 1000 });
		s.now += 10 * MS;
		chain(300, 16);
		s.now += 5000 * MS;
		chain(400, 30);
		assert_true(cached(200, 16) < 16);
		assert_int_equal(cached(300, 16), 16);
		assert_int_equal(cached(100, 16), 16);
		mmt_fini(&s);
	}
}

static void priority_weighs_the_time(void **state)
{
	(void)state;
	begin(MM_POLICY_LRU, 0);
	chain(100, 16);
	hint(100, 16, (struct mm_hint){ .priority = 2 });
	s.now += 1000 * MS;
	chain(200, 16);
	s.now += 1000 * MS;
	chain(300, 16);
	hint(300, 16, (struct mm_hint){ .priority = 0 });
	s.now += 900 * MS;
	chain(400, 28);	/* idle: 2900 / 4, 1900, 900 * 4 */
	assert_int_equal(cached(100, 16), 16);
	assert_int_equal(cached(200, 16), 16);
	assert_int_equal(cached(300, 16), 4);
	mmt_fini(&s);
}

static void what_is_expected_back_is_kept(void **state)
{
	(void)state;
	begin(MM_POLICY_GITTINS, 64);
	chain(100, 16);
	hint(100, 16, (struct mm_hint){ .priority = 1, .reuse_ms = 20000 });
	for (uint32_t i = 0; i < 8; i++) {
		s.now += 1000 * MS;
		chain(1000 + 100 * i, 20);
	}
	assert_int_equal(cached(100, 16), 16);
	mmt_fini(&s);
}

static int try_hint(uint32_t lease, struct mm_hint h)
{
	struct mm_request rq = { .op = MM_HINT, .engine = e, .hint = { lease, h } };
	uint64_t before = mm_digest(s.mm);
	int r = mmt_submit(&s, &rq);

	if (r)
		assert_int_equal(mm_digest(s.mm), before);
	return r;
}

static void bad_hints_change_nothing(void **state)
{
	uint32_t lease;

	(void)state;
	begin(MM_POLICY_GITTINS, 64);
	lease = mmt_chain(&s, e, c, 0, 4);
	assert_int_equal(try_hint(lease, (struct mm_hint){ .priority = 3 }), -EINVAL);
	assert_true(s.rp.a == 3 && s.rp.b == 2);
	assert_int_equal(try_hint(lease, (struct mm_hint){ .from_page = 4 }), -EINVAL);
	assert_int_equal(try_hint(lease, (struct mm_hint){ 2, 2, 1, 0, 0 }), -EINVAL);
	assert_int_equal(try_hint(lease, (struct mm_hint){ 0, 5, 1, 0, 0 }), -EINVAL);
	assert_int_equal(try_hint(lease, (struct mm_hint){ UINT32_MAX, 0, 1, 0, 0 }), -EINVAL);
	assert_int_equal(try_hint(lease + 77, (struct mm_hint){ 0 }), -ENOENT);
	assert_int_equal(try_hint(lease, (struct mm_hint){ 1, 3, 2, UINT32_MAX, UINT32_MAX }), 0);
	assert_int_equal(s.rp.nr_pages, 2);
	assert_int_equal(mmt_unlease(&s, e, lease), 0);
	mmt_fini(&s);
}

/* What was expected has happened; the other hints stay. */
static void a_use_ends_the_expectation_of_it(void **state)
{
	uint32_t page[2] = { 1, 2 }, n = 0;

	(void)state;
	begin(MM_POLICY_GITTINS, 0);
	prompt(page, 2);
	hint(1, 2, (struct mm_hint){ 0, 0, 2, 5000, 9000 });
	for (uint32_t used = 0; used < 2; used++) {
		for (n = pool_next(s.mm, &s.mm->nodes, 0); n;
		     n = pool_next(s.mm, &s.mm->nodes, n)) {
			assert_int_equal(node_at(s.mm, n)->reuse, used ? 0 : policy_pack_ms(5000));
			assert_int_equal(node_at(s.mm, n)->ttl, policy_pack_ms(9000));
			assert_int_equal(node_at(s.mm, n)->prio, 2);
		}
		prompt(page, 2);
	}
	mmt_fini(&s);
}

/* Pages behind a hit at least as long as they are; what is committed piece by piece is as its first
 * piece. */
static void pages_are_appended_behind_as_many(void **state)
{
	(void)state;
	for (uint32_t nr = 1; nr < 7; nr++) {
		uint32_t page[16], tokens[16 * MMT_PT], lease, n;
		uint64_t ids[16];

		for (uint32_t i = 0; i < 16; i++)
			page[i] = i + 1;
		begin(MM_POLICY_GITTINS, 0);
		prompt(page, 3);
		fill(tokens, page, 16);
		assert_int_equal(mmt_lookup(&s, e, c, 0, tokens, 16 * MMT_PT), 0);
		assert_int_equal(s.rp.nr_pages, 3);
		lease = s.rp.lease;
		assert_int_equal(mmt_alloc(&s, e, c, 0, nr + 4, ids), 0);
		assert_int_equal(mmt_commit(&s, e, c, lease, tokens + 3 * MMT_PT, nr * MMT_PT,
					    ids), 0);
		assert_int_equal(mmt_commit(&s, e, c, s.rp.lease, tokens + (3 + nr) * MMT_PT,
					    4 * MMT_PT, ids + nr), 0);
		n = lease_at(s.mm, lease_find(s.mm, 1, s.rp.lease))->node;
		for (; n; n = node_at(s.mm, n)->parent)
			assert_int_equal(node_at(s.mm, n)->appended,
					 node_at(s.mm, n)->depth >= 3 && nr <= 3);
		mmt_fini(&s);
	}
}

static void hints_are_written_on_the_pages_they_name(void **state)
{
	uint32_t lease, nr = 0;

	(void)state;
	begin(MM_POLICY_GITTINS, 0);
	lease = mmt_chain(&s, e, c, 0, 4);
	for (uint32_t ms = 1; ms < 100; ms += 3, nr++) {
		assert_int_equal(try_hint(lease, (struct mm_hint){ 1, 3, nr % 3, ms, ms + 1 }), 0);
		for (uint32_t n = lease_at(s.mm, lease_find(s.mm, 1, lease))->node; n;
		     n = node_at(s.mm, n)->parent) {
			const struct node *no = node_at(s.mm, n);
			bool named = no->depth == 1 || no->depth == 2;

			assert_int_equal(no->prio, named ? nr % 3 : 1);
			assert_int_equal(no->reuse, named ? policy_pack_ms(ms) : 0);
			assert_int_equal(no->ttl, named ? policy_pack_ms(ms + 1) : 0);
		}
	}
	mmt_fini(&s);
}

/* New: the end of a chain, another page, one appended to a hit; then by uses. */
static void pages_are_classed_by_their_uses(void **state)
{
	static const uint8_t used[32] = { 0, 3, 4, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7,
					  8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8 };
	uint32_t page[2] = { 1, 2 }, n;

	(void)state;
	begin(MM_POLICY_GITTINS, 0);
	prompt(page, 2);
	n = pool_next(s.mm, &s.mm->nodes, 0);
	for (uint32_t tail = 0; tail < 2; tail++)
		for (uint32_t hits = 1; hits < 32; hits++) {
			node_at(s.mm, n)->hits = hits & 31;
			assert_int_equal(policy_gittins.class(s.mm, n, tail), used[hits]);
		}
	for (uint32_t appended = 0; appended < 2; appended++) {
		node_at(s.mm, n)->hits = 0;
		node_at(s.mm, n)->appended = appended & 1;
		assert_int_equal(policy_gittins.class(s.mm, n, true), 0);
		assert_int_equal(policy_gittins.class(s.mm, n, false), 1 + appended);
	}
	free(s.mem);
}

/* A hit in the time that is left, in a quarter of it at least, until twice the time has passed;
 * priorities are 1, 4 and 16 times that. What has expired is worth nothing. */
static void worth_of_a_page_with_hints_is_as_documented(void **state)
{
	static const uint32_t due[] = { 1, 4, 8, 9, 100, 4096, 1000000 };
	uint32_t page[1] = { 1 }, n;
	struct node *no;

	(void)state;
	begin(MM_POLICY_GITTINS, 0);
	prompt(page, 1);
	n = pool_next(s.mm, &s.mm->nodes, 0);
	no = node_at(s.mm, n);
	s.mm->now_ns = 1ull << 45;
	for (uint32_t i = 0; i < sizeof(due) / sizeof(*due); i++)
		for (uint32_t tenth = 0; tenth < 25; tenth++) {
			uint64_t whole = policy_unpack_ms(policy_pack_ms(due[i]));
			uint64_t ms = whole * tenth / 10, left = ms < whole ? whole - ms : 0, want;

			left = left > whole / 4 ? left : whole / 4 + 1;
			want = ms < 2 * whole ? WORTH_ONE / left : 1;
			no->reuse = policy_pack_ms(due[i]) & 255;
			no->age = (s.mm->now_ns >> 10) - (ms << 10);
			for (uint32_t prio = 0; prio < 3; prio++) {
				no->prio = prio & 3;
				assert_int_equal(policy_gittins.worth(s.mm, n),
						 want << (prio == 1 ? 2 : prio ? 4 : 0));
			}
			no->ttl = policy_pack_ms(5) & 255;
			assert_int_equal(policy_gittins.worth(s.mm, n) == 0, ms >= 5);
			no->ttl = 0;
		}
	free(s.mem);
}

/* By lru a page of low priority ages 4 times as fast, one of high priority 4 times as slowly. */
static void priorities_weigh_the_time_since_the_last_use(void **state)
{
	static const uint64_t times[3] = { 16, 4, 1 };
	uint32_t page[2] = { 1, 2 }, a, b;

	(void)state;
	begin(MM_POLICY_LRU, 0);
	prompt(page, 2);
	a = pool_next(s.mm, &s.mm->nodes, 0);
	b = pool_next(s.mm, &s.mm->nodes, a);
	s.mm->now_ns = 1ull << 45;
	for (uint32_t i = 0; i < 9; i++)
		for (uint32_t k = 0; k < 200; k++) {
			struct node *x = node_at(s.mm, a), *y = node_at(s.mm, b);
			uint64_t idle[2] = { 7u << (k / 10), 13u << (k % 17) };
			uint64_t t[2] = { idle[0] * times[i / 3], idle[1] * times[i % 3] };

			x->prio = i / 3 & 3;
			y->prio = i % 3 & 3;
			x->age = (s.mm->now_ns >> 10) - idle[0];
			y->age = (s.mm->now_ns >> 10) - idle[1];
			assert_int_equal(policy_lru.worth(s.mm, a),
					 (1ull << 40) / ((t[0] >> 12) + 1));
			assert_int_equal(policy_lru.colder(s.mm, a, b),
					 t[0] != t[1] ? t[0] > t[1] : idle[0] > idle[1]);
		}
	free(s.mem);
}

/* Of 16 of its pages at most, evenly spread, for all of them. */
static void extents_are_worth_what_their_pages_are(void **state)
{
	(void)state;
	for (uint32_t order = 0; order < 7; order++) {
		uint32_t pages = 1u << order, used = pages - pages / 4, ext, lease;
		uint32_t step = used / 16 ? used / 16 : 1, nr = 0;
		struct mm_config cfg = mmt_config();
		struct mm_cache_desc d = mmt_desc(1);
		uint64_t sum = 0;

		cfg.policy = MM_POLICY_LRU;
		cfg.device[0].pool_bytes = cfg.device[0].extent_bytes = pages * MMT_PAGE;
		mmt_init(&s, &cfg);
		assert_int_equal(mmt_attach(&s, 100, &e, NULL), 0);
		assert_int_equal(mmt_open(&s, e, &d, &c), 0);
		lease = mmt_chain(&s, e, c, 0, used);
		assert_int_equal(mmt_unlease(&s, e, lease), 0);
		ext = pool_next(s.mm, &s.mm->extents, 0);
		assert_int_equal(extent_pages(extent_at(s.mm, ext)), pages);
		s.mm->now_ns = 1ull << 45;
		for (uint32_t i = 0; i < used; i++) {
			uint32_t n = frame_at(s.mm, extent_at(s.mm, ext)->base + i)->node;

			node_at(s.mm, n)->age = (s.mm->now_ns >> 10) - ((i * 7 % 23 + 1) << 22);
			if (i % step || i / step >= 16)
				continue;
			nr++;
			sum += policy_lru.worth(s.mm, n) * MMT_PT >> 8;
		}
		assert_int_equal(policy_extent_worth(s.mm, ext), sum / nr * used);
		free(s.mem);
	}
}

/* The youngest leaf is a candidate, also where a younger page has children. */
static void the_youngest_leaf_is_found_behind_its_parents(void **state)
{
	uint32_t old[1] = { 100 }, chain[3] = { 1, 2, 3 }, last[1] = { 200 }, n, bind, lease;
	uint32_t tokens[MMT_PT];
	struct worth *w;

	(void)state;
	begin(MM_POLICY_GITTINS, 0);
	s.now = 1ull << 45;
	for (uint32_t i = 0; i < 2; i++) {	/* twice, so they are of one class */
		prompt(old, 1);
		prompt(chain, 3);
		prompt(last, 1);
	}
	fill(tokens, last, 1);
	assert_int_equal(mmt_lookup(&s, e, c, 0, tokens, MMT_PT), 0);
	lease = s.rp.lease;
	/* The longer unused the more worth: the oldest leaf is not the one to go. */
	w = worth_at(s.mm, cache_at(s.mm, 1)->tenant);
	for (uint32_t b = 0; b < WORTH_BUCKETS; b++)
		w->table[3][b] = 1000 + b;
	n = pool_next(s.mm, &s.mm->nodes, 0);
	assert_int_equal(node_at(s.mm, n)->class, 3);
	node_at(s.mm, n)->age -= 100ull << 20;
	bind = policy_home(s.mm, n);
	assert_int_equal(node_at(s.mm, policy_victim(s.mm, bind))->depth, 2);
	node_at(s.mm, n)->age += 100ull << 20;
	assert_int_equal(mmt_unlease(&s, e, lease), 0);
	mmt_fini(&s);
}

static void packed_times_are_rounded_up_by_an_eighth_at_most(void **state)
{
	(void)state;
	for (uint64_t ms = 0; ms <= UINT32_MAX; ms = ms < 4096 ? ms + 1 : ms + ms / 97) {
		uint32_t packed = policy_pack_ms((uint32_t)ms);
		uint64_t got = policy_unpack_ms(packed);

		assert_in_range(packed, 0, 255);
		assert_in_range(got, ms, ms + ms / 8);
	}
	assert_in_range(policy_unpack_ms(policy_pack_ms(UINT32_MAX)), UINT32_MAX, 1ull << 32);
}

static uint32_t extent_of(uint32_t first)
{
	uint32_t page[8], tokens[8 * MMT_PT], ext;

	for (uint32_t i = 0; i < 8; i++)
		page[i] = first + i;
	fill(tokens, page, 8);
	assert_int_equal(mmt_lookup(&s, e, c, 0, tokens, 8 * MMT_PT), 0);
	assert_int_equal(s.rp.nr_pages, 8);
	ext = mm_page_extent(s.pages[0]);
	assert_int_equal(mmt_unlease(&s, e, s.rp.lease), 0);
	return ext;
}

static void an_idle_extent_is_cheaper_than_one_in_use(void **state)
{
	(void)state;
	begin(MM_POLICY_LRU, 0);
	chain(100, 8);
	chain(200, 8);
	s.now += 100000 * MS;
	extent_of(200);
	s.now += 1000 * MS;
	for (uint32_t n = pool_next(s.mm, &s.mm->extents, 0); n;
	     n = pool_next(s.mm, &s.mm->extents, n)) {
		const struct extent *x = extent_at(s.mm, n);
		const uint32_t *tokens = node_tokens(s.mm, frame_at(s.mm, x->base)->node);

		if (tokens[0] < 200)
			assert_true(policy_extent_worth(s.mm, n) <
				    policy_extent_worth(s.mm, extent_of(200)) / 10);
	}
	mmt_fini(&s);
}

static void buckets_cover_all_times(void **state)
{
	(void)state;
	for (uint32_t b = 1; b < WORTH_BUCKETS; b++) {
		assert_true(worth_bucket_start(b) > worth_bucket_start(b - 1));
		assert_int_equal(worth_bucket(worth_bucket_start(b)), b);
		assert_int_equal(worth_bucket(worth_bucket_start(b) - 1), b - 1);
	}
	assert_int_equal(worth_bucket(UINT64_MAX), WORTH_BUCKETS - 1);
}

/* Half of a class comes back after 100 s: worth rises until then and is nothing after. */
static void worth_is_highest_when_the_reuse_is_near(void **state)
{
	static struct worth w;
	uint64_t now = 0;

	(void)state;
	memset(&w, 0, sizeof(w));
	for (uint32_t i = 0; i < 20000; i++) {
		now += 50;
		worth_enter(&w, 3, now);
		if (i % 2 && now > 100000)
			worth_reuse(&w, 3, 100000, now);
	}
	worth_check(&w);
	assert_true(worth_of(&w, 3, 10) > 0);
	assert_true(2 * worth_of(&w, 3, 80000) > 3 * worth_of(&w, 3, 10));
	assert_true(worth_of(&w, 3, 200000) < worth_of(&w, 3, 80000));
	assert_int_equal(worth_of(&w, 3, 300000), 0);
	assert_int_equal(worth_of(&w, 4, 10), 0);
	/* A hit in two after 100 s: about 1 in 200 s. */
	assert_in_range(worth_of(&w, 3, 10), WORTH_ONE / 400000, WORTH_ONE / 100000);
}

/* Half come back so late that what was counted when they came has faded: half all the same. */
static void worth_of_long_gaps_is_not_raised_by_fading(void **state)
{
	static struct worth w;

	(void)state;
	memset(&w, 0, sizeof(w));
	for (uint64_t now = 0; now < 400000; now++) {
		worth_enter(&w, 3, now);
		if (now % 2 && now > 140000)
			worth_reuse(&w, 3, 140000, now);
	}
	worth_check(&w);
	assert_in_range(worth_of(&w, 3, 10), WORTH_ONE / 600000, WORTH_ONE / 200000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_learnt_policy_hits_more_than_lru),
		cmocka_unit_test(leaves_go_before_parents),
		cmocka_unit_test(what_is_past_its_time_goes_first),
		cmocka_unit_test(priority_weighs_the_time),
		cmocka_unit_test(what_is_expected_back_is_kept),
		cmocka_unit_test(a_use_ends_the_expectation_of_it),
		cmocka_unit_test(pages_are_appended_behind_as_many),
		cmocka_unit_test(hints_are_written_on_the_pages_they_name),
		cmocka_unit_test(bad_hints_change_nothing),
		cmocka_unit_test(pages_are_classed_by_their_uses),
		cmocka_unit_test(worth_of_a_page_with_hints_is_as_documented),
		cmocka_unit_test(priorities_weigh_the_time_since_the_last_use),
		cmocka_unit_test(extents_are_worth_what_their_pages_are),
		cmocka_unit_test(the_youngest_leaf_is_found_behind_its_parents),
		cmocka_unit_test(packed_times_are_rounded_up_by_an_eighth_at_most),
		cmocka_unit_test(an_idle_extent_is_cheaper_than_one_in_use),
		cmocka_unit_test(buckets_cover_all_times),
		cmocka_unit_test(worth_is_highest_when_the_reuse_is_near),
		cmocka_unit_test(worth_of_long_gaps_is_not_raised_by_fading),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
