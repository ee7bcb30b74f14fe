// SPDX-License-Identifier: Apache-2.0
/* Magazines: bounds, no request on the fast path, batches, bad ids, flush, cost beside malloc. */
#include <errno.h>
#include <stdio.h>
#include <time.h>
#include "pool_test.h"
#include "internal.h"

#define MIB (1ull << 20)

static struct kv *kv;
static struct kv_cache *cache;

static int setup(void **state)
{
	struct kv_cache_params p = test_params(NULL);

	(void)state;
	ok(kv_open("embedded:host:64M", NULL, &kv));
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

static void test_cap(void **state)
{
	(void)state;
	assert_int_equal(magazine_cap(64 * MIB, 4096), 64);	 /* at most 64 pages */
	assert_int_equal(magazine_cap(64 * MIB, 64 << 10), 10);	 /* 1 % of the pool */
	assert_int_equal(magazine_cap(1 << 20, MIB), 1);	 /* at least one page */
	assert_int_equal(magazine_cap(1ull << 40, 4 * MIB), 16); /* 64 MiB */
	assert_int_equal(magazine_cap(0, 64), 1);
}

/* A pair costs no request: the pool's own count of grants stands still. */
static void test_no_request(void **state)
{
	struct kv_info a, b;
	uint64_t id;
	uint32_t i;

	(void)state;
	ok(kv_page_alloc(cache, 0, &id));
	ok(kv_page_free(cache, 0, id));
	ok(kv_info(kv, &a));
	for (i = 0; i < 1000; i++) {
		ok(kv_page_alloc(cache, 0, &id));
		assert_int_not_equal(id, 0);
		ok(kv_page_free(cache, 0, id));
	}
	ok(kv_info(kv, &b));
	assert_int_equal(a.allocs, b.allocs);
	assert_int_equal(a.frees, b.frees);
	assert_int_equal(b.held_pages, cache->mag[0]->cap / 2);
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Every page out is one page in, no id twice, the hoard is bounded. */
static void test_many(void **state)
{
	enum { N = 1000 };
	static uint64_t ids[N], sorted[N];
	uint64_t held;
	uint32_t i;

	(void)state;
	for (i = 0; i < N; i++)
		ok(kv_page_alloc(cache, 0, &ids[i]));
	memcpy(sorted, ids, sizeof(ids));
	qsort(sorted, N, sizeof(sorted[0]), by_value);
	for (i = 1; i < N; i++)
		assert_true(sorted[i - 1] >> 24 != sorted[i] >> 24);
	assert_true(held_pages() >= N && held_pages() <= N + cache->mag[0]->cap);
	for (i = 0; i < N; i++)
		ok(kv_page_free(cache, 0, ids[i]));
	held = held_pages();
	assert_true(held <= cache->mag[0]->cap);
	assert_true(cache->mag[0]->nr <= cache->mag[0]->cap);
	assert_int_equal(magazine_flush_all(kv), held);
	assert_int_equal(held_pages(), 0);
}

static void test_flush(void **state)
{
	uint64_t id;

	(void)state;
	ok(kv_page_alloc(cache, 0, &id));
	assert_true(held_pages() > 1);
	assert_true(magazine_flush(cache) > 0);
	assert_int_equal(held_pages(), 1);
	assert_int_equal(cache->mag[0]->nr, 0);
	ok(kv_page_free(cache, 0, id));
	assert_int_equal(magazine_flush_all(kv), 1);
	assert_int_equal(held_pages(), 0);
	assert_int_equal(magazine_flush_all(kv), 0);
}

/* Refused at once, whatever is wrong with it, and nothing has changed. */
static void bad_free(uint32_t group, uint64_t id, int err, const char *word)
{
	uint32_t nr = cache->mag[0]->nr;

	refused(kv_page_free(cache, group, id), err, word);
	refused(kv_pages_free(cache, group, 1, &id), err, word);
	assert_int_equal(cache->mag[0]->nr, nr);
}

static void test_bad_ids(void **state)
{
	uint64_t id, again;

	(void)state;
	refused(kv_page_alloc(cache, 1, &id), -EINVAL, "group 1");
	bad_free(7, 1, -EINVAL, "group 7");
	bad_free(0, 0, -EINVAL, "names no page");
	bad_free(0, 1, -ESTALE, "does not hold it"); /* before anything was granted */
	ok(kv_page_alloc(cache, 0, &id));
	bad_free(0, id ^ 1, -ESTALE, "does not hold it");	       /* another generation */
	bad_free(0, id | 0xfffffull << 24, -ESTALE, "does not hold it"); /* slot */
	bad_free(0, id | 0xfffffull << 44, -ESTALE, "does not hold it"); /* extent */
	ok(kv_page_free(cache, 0, id));
	bad_free(0, id, -ESTALE, "freed or given away already");
	bad_free(0, cache->mag[0]->ids[0], -ESTALE, "already"); /* never handed out */
	ok(kv_page_alloc(cache, 0, &again));
	assert_int_equal(again, id);
	ok(kv_page_free(cache, 0, id));
	assert_true(magazine_flush(cache) > 0);
	bad_free(0, id, -ESTALE, "does not hold it"); /* long ago */
	assert_int_equal(held_pages(), 0);
}

/* The slow path, with a full magazine, refuses as well. */
static void test_double_free_when_full(void **state)
{
	uint32_t cap = cache->mag[0]->cap, i;
	uint64_t ids[MAGAZINE_MAX_PAGES + 1];

	(void)state;
	for (i = 0; i <= cap; i++)
		ok(kv_page_alloc(cache, 0, &ids[i]));
	magazine_flush(cache);
	for (i = 0; i < cap; i++)
		ok(kv_page_free(cache, 0, ids[i]));
	assert_int_equal(cache->mag[0]->nr, cap);
	bad_free(0, ids[0], -ESTALE, "already");
	ok(kv_page_free(cache, 0, ids[cap]));
	bad_free(0, ids[cap], -ESTALE, "already");
	for (i = 0; i <= cap; i++)
		assert_true(kv_page_free(cache, 0, ids[i]) == -ESTALE);
	magazine_flush(cache);
	assert_int_equal(held_pages(), 0);
}

/* Every page is freed twice, in any order: none is ever out twice. */
static void test_never_out_twice(void **state)
{
	static uint64_t out[200];
	uint32_t nr = 0, i, k;
	uint64_t rng = 1, id;

	(void)state;
	for (i = 0; i < 20000; i++) {
		rng = rng * 6364136223846793005ull + 1442695040888963407ull;
		if (nr < 200 && (rng >> 33) % 100 < 51) {
			ok(kv_page_alloc(cache, 0, &id));
			for (k = 0; k < nr; k++)
				assert_true(out[k] != id);
			out[nr++] = id;
		} else if (nr) {
			k = (uint32_t)(rng >> 40) % nr;
			id = out[k];
			out[k] = out[--nr];
			ok(kv_page_free(cache, 0, id));
			assert_int_equal(kv_page_free(cache, 0, id), -ESTALE);
		}
	}
	ok(kv_pages_free(cache, 0, nr, out));
	assert_true(kv_pages_free(cache, 0, nr, out) == -ESTALE || !nr);
	magazine_flush(cache);
	assert_int_equal(held_pages(), 0);
}

/* A pool of two extents' worth of big pages: the hoard never makes an allocation fail. */
static void test_small_pool(void **state)
{
	struct kv_cache_params p = test_params(NULL);
	uint64_t a[64], id;
	struct kv_cache *c;
	struct kv *small;
	uint32_t n = 0;

	(void)state;
	p.group[0].layout = opaque_layout(1 << 20);
	ok(kv_open("embedded:host:8M", NULL, &small));
	ok(kv_cache_open(small, &p, &c));
	while (n < 64 && kv_page_alloc(c, 0, &a[n]) == 0)
		n++;
	assert_int_equal(n, 8);
	refused(kv_page_alloc(c, 0, &id), -ENOMEM, "embedded pool is full");
	ok(kv_page_free(c, 0, a[--n]));
	ok(kv_page_alloc(c, 0, &a[n]));
	ok(kv_page_free(c, 0, a[n]));
	/* What sits in the magazine is found by an allocation past it. */
	ok(kv_pages_alloc(c, 0, 1, &a[n]));
	kv_close(small);
}

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Prints the cost; judged by kvbench, not here, where sanitizers and neighbours distort it. */
static void test_cost(void **state)
{
	enum { N = 2000000 };
	double t0, t1, t2;
	uint64_t id;
	uint32_t i;

	(void)state;
	ok(kv_page_alloc(cache, 0, &id));
	ok(kv_page_free(cache, 0, id));
	t0 = now_s();
	for (i = 0; i < N; i++) {
		if (kv_page_alloc(cache, 0, &id) || kv_page_free(cache, 0, id))
			fail();
	}
	t1 = now_s();
	for (i = 0; i < N; i++) {
		void *volatile p = malloc(64);

		free(p);
	}
	t2 = now_s();
	print_message("magazine pair %.2f ns, malloc(64) pair %.2f ns\n", (t1 - t0) * 1e9 / N,
		      (t2 - t1) * 1e9 / N);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cap),
		T(test_no_request),
		T(test_many),
		T(test_flush),
		T(test_bad_ids),
		T(test_double_free_when_full),
		T(test_never_out_twice),
		cmocka_unit_test(test_small_pool),
		T(test_cost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
