// SPDX-License-Identifier: Apache-2.0
/* Raw pages, caches, lookups, commits, leases and parks on an embedded pool. */
#include <errno.h>
#include <stdio.h>
#include "internal.h"
#include "pool_test.h"

#define N 6u /* pages in most tests */

static struct kv *kv;
static struct kv_cache *cache;

static int setup(void **state)
{
	struct kv_cache_params p = test_params("model");

	(void)state;
	ok(kv_open("embedded:host:32M", NULL, &kv));
	ok(kv_cache_open(kv, &p, &cache));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	kv_close(kv);
	return 0;
}

static uint64_t held_pages(void)
{
	struct kv_info info;

	ok(kv_info(kv, &info));
	return info.held_pages;
}

/* nr pages of seed's tokens are cached; lease pins them. */
static uint32_t publish(uint32_t *tokens, uint64_t *ids, uint32_t nr, uint32_t seed)
{
	const uint64_t *pages[1] = { ids };
	uint32_t lease = 0;

	test_tokens(tokens, nr * PAGE_TOKENS, seed);
	ok(kv_pages_alloc(cache, 0, nr, ids));
	ok(kv_commit(cache, &lease, 0, tokens, nr * PAGE_TOKENS, nr, pages, false, NULL, 0, NULL));
	assert_int_not_equal(lease, 0);
	return lease;
}

/* ---- caches -------------------------------------------------------------------------------- */

static void test_cache_facts(void **state)
{
	struct kv_layout l = test_layout(2);

	(void)state;
	assert_int_not_equal(kv_cache_id(cache), 0);
	assert_int_equal(kv_cache_page_tokens(cache), PAGE_TOKENS);
	assert_int_equal(kv_cache_page_bytes(cache, 0), kv_layout_page_bytes(&l));
	assert_int_equal(kv_cache_page_bytes(cache, 1), 0);
	assert_true(kv_cache_extent_pages(cache, 0) > 0);
	assert_int_equal(kv_cache_extent_pages(cache, 0) & (kv_cache_extent_pages(cache, 0) - 1),
			 0);
	assert_memory_equal(kv_cache_layout(cache, 0), &l, sizeof(l));
	assert_null(kv_cache_layout(cache, 8));
}

static void bad_params(const struct kv_cache_params *p, const char *word)
{
	struct kv_cache *c = NULL;

	refused(kv_cache_open(kv, p, &c), -EINVAL, word);
	assert_null(c);
}

static void test_bad_params(void **state)
{
	struct kv_cache_params p = test_params("bad");
	struct kv_cache *c;

	(void)state;
	p.nr_groups = 0;
	bad_params(&p, "1 to 8 groups");
	p.nr_groups = 9;
	bad_params(&p, "1 to 8 groups");
	p = test_params("bad");
	p.nr_shards = 17;
	bad_params(&p, "1 to 16 shards");
	p = test_params("bad");
	p.device[0] = 1;
	bad_params(&p, "device 1");
	p = test_params("bad");
	p.group[0].kind = 4;
	bad_params(&p, "unknown kind");
	p.group[0].kind = KV_GROUP_WINDOW;
	bad_params(&p, "window_tokens");
	p = test_params("bad");
	p.group[0].window_tokens = 8;
	bad_params(&p, "window_tokens");
	p = test_params("bad");
	p.nr_groups = 2;
	p.group[1] = p.group[0];
	p.group[1].layout.page_tokens = 32;
	bad_params(&p, "share page_tokens");
	p = test_params("bad");
	p.group[0].layout.head_dim = 7;
	bad_params(&p, "");
	refused(kv_cache_join(kv, &p, 1, &c), -EINVAL, "kv_cache_open");
}

/* The same model opens once more with the same layout only; without a name nothing is shared. */
static void test_same_model(void **state)
{
	struct kv_cache_params p = test_params("model");
	struct kv_cache *c;

	(void)state;
	p.group[0].layout.dtype = KV_F16;
	refused(kv_cache_open(kv, &p, &c), -EINVAL, "another layout");
	p.revision = "2";
	ok(kv_cache_open(kv, &p, &c));
	assert_int_not_equal(kv_cache_id(c), kv_cache_id(cache));
	p = test_params(NULL);
	ok(kv_cache_open(kv, &p, &c));
	kv_cache_close(c);
	kv_cache_close(NULL);
}

/* ---- pages --------------------------------------------------------------------------------- */

static void test_alloc_free(void **state)
{
	uint64_t ids[300];
	uint32_t i;

	(void)state;
	ok(kv_pages_alloc(cache, 0, 300, ids));
	for (i = 0; i < 300; i++)
		assert_int_not_equal(ids[i], 0);
	assert_int_equal(held_pages(), 300);
	ok(kv_pages_free(cache, 0, 300, ids));
	assert_int_equal(held_pages(), 0);
	ok(kv_pages_alloc(cache, 0, 0, ids));
	ok(kv_pages_free(cache, 0, 0, ids));
	refused(kv_pages_alloc(cache, 3, 1, ids), -EINVAL, "group 3");
	refused(kv_pages_free(cache, 3, 1, ids), -EINVAL, "group 3");
	refused(kv_pages_free(cache, 0, 1, ids), -ESTALE, "stale");
}

static void test_free_all_or_none(void **state)
{
	uint64_t ids[3];

	(void)state;
	ok(kv_pages_alloc(cache, 0, 2, ids));
	ids[2] = ids[0];
	refused(kv_pages_free(cache, 0, 3, ids), -ESTALE, "already");
	assert_int_equal(held_pages(), 2);
	ids[2] = 0;
	refused(kv_pages_free(cache, 0, 3, ids), -EINVAL, "names no page");
	ok(kv_pages_free(cache, 0, 2, ids));
}

/* More than one request carries, the bad id last: found before the first request goes. */
static void test_free_many_or_none(void **state)
{
	enum { MANY = 2000 };
	static uint64_t ids[MANY + 1];

	(void)state;
	kv->batch_pages = 100;
	ok(kv_pages_alloc(cache, 0, MANY, ids));
	ids[MANY] = ids[0];
	refused(kv_pages_free(cache, 0, MANY + 1, ids), -ESTALE, "already");
	assert_int_equal(held_pages(), MANY);
	ok(kv_pages_free(cache, 0, MANY, ids));
	refused(kv_pages_free(cache, 0, MANY, ids), -ESTALE, "does not hold it");
	assert_int_equal(held_pages(), 0);
}

/* Pages of another group, of another cache, and those the cache took. */
static void test_free_what_is_not_held(void **state)
{
	struct kv_cache_params p = test_params("two groups");
	uint32_t tokens[N * PAGE_TOKENS], lease;
	uint64_t ids[N], a, b;
	struct kv_cache *c;

	(void)state;
	p.nr_groups = 2;
	p.group[1] = p.group[0];
	ok(kv_cache_open(kv, &p, &c));
	ok(kv_page_alloc(c, 0, &a));
	ok(kv_page_alloc(c, 1, &b));
	refused(kv_page_free(c, 1, a), -EINVAL, "is of group 0");
	refused(kv_pages_free(c, 0, 1, &b), -EINVAL, "is of group 1");
	refused(kv_page_free(cache, 0, a), -EINVAL, "of cache");
	ok(kv_page_free(c, 0, a));
	ok(kv_page_free(c, 1, b));
	kv_cache_close(c);
	lease = publish(tokens, ids, N, 11);
	refused(kv_page_free(cache, 0, ids[2]), -ESTALE, "does not hold it");
	refused(kv_pages_free(cache, 0, N, ids), -ESTALE, "does not hold it");
	ok(kv_unlease(cache, 1, &lease));
	refused(kv_page_free(cache, 0, ids[2]), -ESTALE, "does not hold it");
	assert_int_equal(held_pages(), 0);
}

static void test_exhaustion(void **state)
{
	struct kv_cache_params p = test_params(NULL);
	struct kv_cache *big;
	uint64_t ids[64], id;

	(void)state;
	p.group[0].layout = opaque_layout(1 << 20);
	ok(kv_cache_open(kv, &p, &big));
	refused(kv_pages_alloc(big, 0, 64, ids), -ENOMEM, "embedded pool is full");
	assert_non_null(strstr(kv_error(), "MiB wanted"));
	assert_int_equal(held_pages(), 0);
	ok(kv_pages_alloc(big, 0, 32, ids));
	refused(kv_pages_alloc(big, 0, 1, &id), -ENOMEM, "give pages back");
	refused(kv_page_alloc(cache, 0, &id), -ENOMEM, "give pages back");
	ok(kv_pages_free(big, 0, 32, ids));
	ok(kv_page_alloc(cache, 0, &id));
}

/* With wait_ms nobody gives anything in an embedded pool: refused after the wait, not before. */
static void test_exhaustion_wait(void **state)
{
	const struct kv_options o = { .wait_ms = 30 };
	struct kv_cache_params p = test_params(NULL);
	struct kv_cache *c;
	uint64_t ids[9];
	struct kv *small;

	(void)state;
	p.group[0].layout = opaque_layout(1 << 20);
	ok(kv_open("embedded:host:8M", &o, &small));
	ok(kv_cache_open(small, &p, &c));
	ok(kv_pages_alloc(c, 0, 8, ids));
	assert_int_equal(kv_pages_alloc(c, 0, 1, ids + 8), -ENOMEM);
	kv_close(small);
}

/* ---- lookup and commit --------------------------------------------------------------------- */

static void test_commit_lookup(void **state)
{
	uint32_t tokens[N * PAGE_TOKENS + 5], lease, i;
	struct kv_match m;
	uint64_t ids[N];

	(void)state;
	lease = publish(tokens, ids, N, 1);
	assert_int_equal(held_pages(), 0);
	ok(kv_lookup(cache, tokens, N * PAGE_TOKENS, NULL, 0, false, &m));
	assert_int_equal(m.nr_pages, N);
	assert_int_equal(m.tail_tokens, 0);
	for (i = 0; i < N; i++)
		assert_int_equal(m.pages[0][i], ids[i]);
	ok(kv_unlease(cache, 1, &m.lease));
	/* half way: two full pages and five tokens of the third */
	ok(kv_lookup(cache, tokens, 2 * PAGE_TOKENS + 5, NULL, 0, false, &m));
	assert_int_equal(m.nr_pages, 2);
	assert_int_equal(m.tail_tokens, 5);
	assert_int_equal(m.tail_pages[0], ids[2]);
	assert_int_not_equal(m.tail_lease, 0);
	assert_false(m.tail_adopted);
	ok(kv_unlease(cache, 1, &m.lease));
	ok(kv_unlease(cache, 1, &m.tail_lease));
	tokens[0]++;
	ok(kv_lookup(cache, tokens, N * PAGE_TOKENS, NULL, 0, false, &m));
	assert_int_equal(m.nr_pages, 0);
	assert_int_equal(m.lease, 0);
	ok(kv_lookup(cache, tokens, 0, NULL, 0, false, &m));
	assert_int_equal(m.nr_pages, 0);
	ok(kv_unlease(cache, 1, &lease));
	refused(kv_unlease(cache, 1, &lease), -ENOENT, "no such id");
}

static void test_commit_steps(void **state)
{
	uint32_t tokens[N * PAGE_TOKENS], lease = 0, i;
	uint64_t ids[N], chain[N];
	struct kv_match m;

	(void)state;
	test_tokens(tokens, N * PAGE_TOKENS, 2);
	ok(kv_pages_alloc(cache, 0, N, ids));
	for (i = 0; i < N; i++) {
		const uint64_t *pages[1] = { ids + i };
		uint64_t *const one[1] = { chain + i };

		ok(kv_commit(cache, &lease, i, tokens + i * PAGE_TOKENS, PAGE_TOKENS, 1, pages,
			     false, NULL, 0, one));
	}
	assert_memory_equal(chain, ids, sizeof(ids));
	ok(kv_lookup(cache, tokens, N * PAGE_TOKENS, NULL, 0, false, &m));
	assert_int_equal(m.nr_pages, N);
}

/* The same tokens once more: the chain names the first pages, the second stay held. */
static void test_commit_twice(void **state)
{
	uint32_t tokens[N * PAGE_TOKENS], lease, again = 0;
	uint64_t ids[N], mine[N], chain[N] = { 0 };
	const uint64_t *pages[1] = { mine };
	uint64_t *const chains[1] = { chain };

	(void)state;
	lease = publish(tokens, ids, N, 3);
	ok(kv_pages_alloc(cache, 0, N, mine));
	ok(kv_commit(cache, &again, 0, tokens, N * PAGE_TOKENS, N, pages, false, NULL, 0, chains));
	assert_memory_equal(chain, ids, sizeof(ids));
	assert_int_equal(held_pages(), N);
	ok(kv_pages_free(cache, 0, N, mine));
	ok(kv_unlease(cache, 1, &again));
	ok(kv_unlease(cache, 1, &lease));
}

static void test_commit_bad(void **state)
{
	uint32_t tokens[2 * PAGE_TOKENS] = { 0 }, lease = 0;
	uint64_t ids[2], keep;
	const uint64_t *pages[1] = { ids }, *none[1] = { NULL };

	(void)state;
	ok(kv_pages_alloc(cache, 0, 2, ids));
	keep = ids[1];
	refused(kv_commit(cache, &lease, 0, tokens, 0, 0, pages, false, NULL, 0, NULL), -EINVAL,
		"do not fill");
	refused(kv_commit(cache, &lease, 0, tokens, PAGE_TOKENS, 2, pages, true, NULL, 0, NULL),
		-EINVAL, "do not fill");
	refused(kv_commit(cache, &lease, 0, tokens, 17, 2, pages, false, NULL, 0, NULL), -EINVAL,
		"partial");
	refused(kv_commit(cache, &lease, 0, tokens, 32, 2, none, false, NULL, 0, NULL), -EINVAL,
		"no page array");
	lease = 77;
	refused(kv_commit(cache, &lease, 0, tokens, 32, 2, pages, false, NULL, 0, NULL), -ENOENT,
		"no such id");
	assert_int_equal(lease, 77);
	lease = 0;
	ids[1] ^= 1;
	refused(kv_commit(cache, &lease, 0, tokens, 32, 2, pages, false, NULL, 0, NULL), -ESTALE,
		"does not hold it");
	assert_int_equal(lease, 0);
	ids[1] = ids[0];
	refused(kv_commit(cache, &lease, 0, tokens, 32, 2, pages, false, NULL, 0, NULL), -ESTALE,
		"already");
	assert_int_equal(held_pages(), 2);
	ids[1] = keep;
	ok(kv_pages_free(cache, 0, 2, ids));
}

/* More pages than one request carries, the last one not held: nothing is published. And what such
 * a commit does when all is well. */
static void test_commit_many(void **state)
{
	enum { MANY = 700 };
	static uint32_t tokens[MANY * PAGE_TOKENS];
	static uint64_t ids[MANY], chain[MANY];
	const uint64_t *pages[1] = { ids };
	uint64_t *const chains[1] = { chain };
	uint32_t lease = 0;
	struct kv_match m;

	(void)state;
	kv->batch_pages = 100;
	test_tokens(tokens, MANY * PAGE_TOKENS, 12);
	ok(kv_pages_alloc(cache, 0, MANY, ids));
	ids[MANY - 1] ^= 1;
	refused(kv_commit(cache, &lease, 0, tokens, MANY * PAGE_TOKENS, MANY, pages, false, NULL, 0,
			  chains),
		-ESTALE, "does not hold it");
	assert_int_equal(lease, 0);
	assert_int_equal(held_pages(), MANY);
	ok(kv_lookup(cache, tokens, MANY * PAGE_TOKENS, NULL, 0, false, &m));
	assert_int_equal(m.nr_pages, 0);
	ids[MANY - 1] ^= 1;
	ok(kv_commit(cache, &lease, 0, tokens, MANY * PAGE_TOKENS, MANY, pages, false, NULL, 0,
		     chains));
	assert_memory_equal(chain, ids, sizeof(ids));
	assert_int_equal(held_pages(), 0);
	ok(kv_unlease(cache, 1, &lease));
}

/* A partial page that its writer gave up: found by its tokens, adopted without a copy. */
static void test_partial_adopt(void **state)
{
	uint32_t tokens[2 * PAGE_TOKENS], lease = 0;
	uint64_t ids[2];
	const uint64_t *pages[1] = { ids };
	struct kv_match m;
	void *addr, *same;

	(void)state;
	test_tokens(tokens, 2 * PAGE_TOKENS, 4);
	ok(kv_pages_alloc(cache, 0, 2, ids));
	ok(kv_page_map(cache, 0, ids[1], &addr));
	memset(addr, 0x77, 64);
	ok(kv_commit(cache, &lease, 0, tokens, PAGE_TOKENS + 9, 2, pages, true, NULL, 0, NULL));
	assert_int_equal(held_pages(), 0);
	ok(kv_unlease(cache, 1, &lease));
	ok(kv_lookup(cache, tokens, PAGE_TOKENS + 12, NULL, 0, true, &m));
	assert_int_equal(m.nr_pages, 1);
	assert_int_equal(m.tail_tokens, 9);
	assert_true(m.tail_adopted);
	assert_int_equal(m.tail_lease, 0);
	assert_int_equal(held_pages(), 1);
	ok(kv_page_map(cache, 0, m.tail_pages[0], &same));
	assert_ptr_equal(same, addr);
	assert_int_equal(((uint8_t *)same)[63], 0x77);
	memset(same, 1, 64);
	ok(kv_pages_free(cache, 0, 1, m.tail_pages));
	ok(kv_unlease(cache, 1, &m.lease));
}

static void test_keys(void **state)
{
	const struct kv_key lora = { .kind = KV_KEY_LORA, .data = "a", .bytes = 1 };
	const struct kv_key salt = { .kind = KV_KEY_SALT, .data = "a", .bytes = 1 };
	const struct kv_key media = {
		.kind = KV_KEY_MEDIA, .position = 40, .data = "img", .bytes = 3
	};
	uint32_t tokens[N * PAGE_TOKENS], lease = 0;
	const uint64_t *pages[1];
	struct kv_key both[2];
	uint64_t ids[N];
	struct kv_match m;

	(void)state;
	both[0] = lora;
	both[1] = media;
	test_tokens(tokens, N * PAGE_TOKENS, 5);
	ok(kv_pages_alloc(cache, 0, N, ids));
	pages[0] = ids;
	ok(kv_commit(cache, &lease, 0, tokens, 2 * PAGE_TOKENS, 2, pages, false, both, 2, NULL));
	pages[0] = ids + 2;
	ok(kv_commit(cache, &lease, 2, tokens + 2 * PAGE_TOKENS, 4 * PAGE_TOKENS, 4, pages, false,
		     both, 2, NULL));
	ok(kv_lookup(cache, tokens, N * PAGE_TOKENS, both, 2, false, &m));
	assert_int_equal(m.nr_pages, N);
	ok(kv_lookup(cache, tokens, N * PAGE_TOKENS, &lora, 1, false, &m));
	assert_int_equal(m.nr_pages, 2); /* the picture stands in page 2 */
	ok(kv_lookup(cache, tokens, N * PAGE_TOKENS, &salt, 1, false, &m));
	assert_int_equal(m.nr_pages, 0);
	ok(kv_lookup(cache, tokens, N * PAGE_TOKENS, NULL, 0, false, &m));
	assert_int_equal(m.nr_pages, 0);
	both[1].kind = 9;
	refused(kv_lookup(cache, tokens, PAGE_TOKENS, both, 2, false, &m), -EINVAL, "");
}

/* A prompt that one request cannot carry is looked up as far as one goes. */
static void test_long_prompt(void **state)
{
	enum { LONG = 4u << 20 };
	uint32_t *tokens = calloc(LONG, sizeof(*tokens));
	uint32_t first[N * PAGE_TOKENS], lease;
	struct kv_match m;
	uint64_t ids[N];

	(void)state;
	lease = publish(first, ids, N, 6);
	memcpy(tokens, first, sizeof(first));
	ok(kv_lookup(cache, tokens, LONG, NULL, 0, false, &m));
	assert_int_equal(m.nr_pages, N);
	free(tokens);
	ok(kv_unlease(cache, 1, &lease));
}

/* ---- leases and parks ---------------------------------------------------------------------- */

static void test_leases(void **state)
{
	uint32_t tokens[N * PAGE_TOKENS], lease, dup, part, all[2];
	uint64_t ids[N];

	(void)state;
	lease = publish(tokens, ids, N, 7);
	ok(kv_lease_dup(cache, lease, 0, &dup));
	ok(kv_lease_dup(cache, lease, 2, &part));
	assert_true(dup != lease && part != lease && dup != part);
	refused(kv_lease_dup(cache, 9999, 0, &dup), -ENOENT, "no such id");
	refused(kv_lease_drop_head(cache, lease, 4, 1), -EINVAL, "group 4");
	all[0] = dup;
	all[1] = part;
	ok(kv_unlease(cache, 2, all));
	all[0] = lease;
	all[1] = lease;
	assert_true(kv_unlease(cache, 2, all) < 0); /* all or none */
	ok(kv_unlease(cache, 1, &lease));
}

static void test_park(void **state)
{
	uint32_t tokens[N * PAGE_TOKENS], lease, park;
	struct kv_info info;
	struct kv_match m;
	uint64_t ids[N];

	(void)state;
	lease = publish(tokens, ids, N, 8);
	ok(kv_park(cache, lease, &park));
	ok(kv_info(kv, &info));
	assert_int_equal(info.nr_parks, 1);
	assert_int_equal(info.nr_leases, 0);
	ok(kv_resume(cache, park, false, &m));
	assert_int_equal(m.nr_pages, N);
	assert_memory_equal(m.pages[0], ids, sizeof(ids));
	refused(kv_resume(cache, park, false, &m), -ENOENT, "no such id");
	ok(kv_park(cache, m.lease, &park));
	ok(kv_unpark(cache, park));
	refused(kv_unpark(cache, park), -ENOENT, "no such id");
	ok(kv_info(kv, &info));
	assert_int_equal(info.nr_parks, 0);
}

static void test_windows(void **state)
{
	struct kv_cache_params p = test_params("hybrid");
	uint32_t tokens[N * PAGE_TOKENS], lease = 0, i;
	uint64_t full[N], win[N];
	const uint64_t *pages[2] = { full, win };
	struct kv_match m;
	struct kv_cache *c;

	(void)state;
	p.nr_groups = 2;
	p.group[1] = (struct kv_group){ .kind = KV_GROUP_WINDOW,
					.window_tokens = 2 * PAGE_TOKENS,
					.layout = test_layout(1) };
	ok(kv_cache_open(kv, &p, &c));
	test_tokens(tokens, N * PAGE_TOKENS, 9);
	ok(kv_pages_alloc(c, 0, N, full));
	ok(kv_pages_alloc(c, 1, N, win));
	ok(kv_commit(c, &lease, 0, tokens, N * PAGE_TOKENS, N, pages, false, NULL, 0, NULL));
	ok(kv_lease_drop_head(c, lease, 1, N - 2));
	ok(kv_lookup(c, tokens, N * PAGE_TOKENS, NULL, 0, false, &m));
	assert_int_equal(m.nr_pages, N);
	for (i = 0; i < N; i++)
		assert_int_equal(m.pages[0][i], full[i]);
	assert_int_equal(m.pages[1][N - 1], win[N - 1]);
	kv_cache_close(c);
}

/* ---- info and close ------------------------------------------------------------------------ */

static void test_counts(void **state)
{
	uint32_t tokens[N * PAGE_TOKENS], lease;
	struct kv_match m;
	struct kv_info a;
	uint64_t ids[N];

	(void)state;
	lease = publish(tokens, ids, N, 10);
	ok(kv_lookup(cache, tokens, N * PAGE_TOKENS, NULL, 0, false, &m));
	ok(kv_info(kv, &a));
	assert_int_equal(a.lookup_tokens, N * PAGE_TOKENS);
	assert_int_equal(a.hit_tokens, N * PAGE_TOKENS);
	assert_int_equal(a.nr_leases, 2);
	assert_true(a.extent_bytes > 0 && a.nr_extents > 0);
	assert_int_equal(a.nr_members, 1);
	(void)lease;
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_cache_facts),
		T(test_bad_params),
		T(test_same_model),
		T(test_alloc_free),
		T(test_free_all_or_none),
		T(test_free_many_or_none),
		T(test_free_what_is_not_held),
		T(test_exhaustion),
		T(test_exhaustion_wait),
		T(test_commit_lookup),
		T(test_commit_steps),
		T(test_commit_twice),
		T(test_commit_bad),
		T(test_commit_many),
		T(test_partial_adopt),
		T(test_keys),
		T(test_long_prompt),
		T(test_leases),
		T(test_park),
		T(test_windows),
		T(test_counts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
