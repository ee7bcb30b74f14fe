// SPDX-License-Identifier: Apache-2.0
/* Mapping extents: addresses, groups kept apart, retirement on demand, fork. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "pool_test.h"
#include "internal.h"

static struct kv *kv;

static int setup(void **state)
{
	(void)state;
	ok(kv_open("embedded:host:16M", NULL, &kv));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	kv_close(kv);
	return 0;
}

static struct kv_cache *open_pages(const char *model, uint32_t bytes0, uint32_t bytes1)
{
	struct kv_cache_params p = test_params(model);
	struct kv_cache *c;

	p.group[0].layout = opaque_layout(bytes0);
	if (bytes1) {
		p.nr_groups = 2;
		p.group[1] =
			(struct kv_group){ .kind = KV_GROUP_FULL, .layout = opaque_layout(bytes1) };
	}
	ok(kv_cache_open(kv, &p, &c));
	return c;
}

static void test_addresses(void **state)
{
	struct kv_cache *c = open_pages(NULL, 64 << 10, 0);
	uint64_t ids[40], pte[41], want[41] = { 0 };
	uint32_t i, k;
	uint8_t *p;
	void *addr;

	(void)state;
	ok(kv_pages_alloc(c, 0, 40, ids));
	for (i = 0; i < 40; i++) {
		ok(kv_page_map(c, 0, ids[i], &addr));
		assert_int_equal((uintptr_t)addr % 64, 0);
		memset(addr, (int)i + 1, 64 << 10);
		want[i] = (uintptr_t)addr;
	}
	for (i = 0; i < 40; i++)
		for (p = (uint8_t *)(uintptr_t)want[i], k = 0; k < 64 << 10; k += 4093)
			assert_int_equal(p[k], i + 1);
	ids[7] = 0;
	want[7] = 0;
	ok(kv_pages_pte(c, 0, 40, ids, pte));
	assert_memory_equal(pte, want, 40 * sizeof(pte[0]));
}

static void test_wrong_ids(void **state)
{
	struct kv_cache *c = open_pages(NULL, 64 << 10, 128 << 10), *d;
	uint64_t id, far, pte;
	void *addr = NULL;

	(void)state;
	d = open_pages("other", 64 << 10, 0);
	ok(kv_page_alloc(c, 0, &id));
	refused(kv_page_map(c, 0, 0, &addr), -EINVAL, "names no page");
	refused(kv_page_map(c, 2, id, &addr), -EINVAL, "group 2");
	refused(kv_page_map(c, 1, id, &addr), -EINVAL, "is of group 0");
	refused(kv_page_map(d, 0, id, &addr), -EINVAL, "of cache");
	far = id | 0xfffffull << 24;
	refused(kv_page_map(c, 0, far, &addr), -EINVAL, "outside its extent");
	far = (id & 0xfffffffffffull) | 0xffffeull << 44;
	refused(kv_page_map(c, 0, far, &addr), -ENOENT, "is gone");
	refused(kv_pages_pte(c, 0, 1, &far, &pte), -ENOENT, "is gone");
	assert_null(addr);
	ok(kv_page_map(c, 0, id, &addr));
	refused(kv_page_map(c, 1, id, &addr), -EINVAL, "is of group 0");
}

static uint32_t nr_mapped(void)
{
	uint32_t i, n = 0;

	for (i = 0; i < kv->map.nr; i++)
		n += kv->map.ext[i].base != NULL;
	return n;
}

/* A cache that filled the pool with cached pages, all mapped, makes room for another one: its
 * extents are unmapped on demand and the ids that come back map afresh. */
static void test_retire(void **state)
{
	struct kv_cache *c = open_pages("a", 256 << 10, 0), *d;
	uint32_t tokens[PAGE_TOKENS * 64], lease = 0, n, before;
	uint64_t ids[64];
	const uint64_t *pages[1] = { ids };
	void *addr;

	(void)state;
	for (n = 0; n < 64 && !kv_pages_alloc(c, 0, 1, &ids[n]); n++) {
		ok(kv_page_map(c, 0, ids[n], &addr));
		memset(addr, 0x5a, 256 << 10);
	}
	assert_int_equal(n, 64);
	test_tokens(tokens, n * PAGE_TOKENS, 1);
	ok(kv_commit(c, &lease, 0, tokens, n * PAGE_TOKENS, n, pages, false, NULL, 0, NULL));
	ok(kv_unlease(c, 1, &lease));
	before = nr_mapped();
	assert_true(before >= 2);
	d = open_pages("b", 512 << 10, 0);
	for (n = 0; n < 20; n++) {
		ok(kv_pages_alloc(d, 0, 1, &ids[n]));
		ok(kv_page_map(d, 0, ids[n], &addr));
		memset(addr, 0xa5, 512 << 10);
	}
	assert_true(kv->retired > 0);
	assert_true(nr_mapped() * 2 <= before * 2 + 2);
	ok(kv_pages_free(d, 0, 20, ids));
	kv_cache_close(d);
	kv_cache_close(c);
	assert_int_equal(nr_mapped(), 0);
}

static void test_not_inherited(void **state)
{
	struct kv_cache *c = open_pages(NULL, 64 << 10, 0);
	uint64_t id;
	void *addr;
	int status;
	pid_t pid;

	(void)state;
	ok(kv_page_alloc(c, 0, &id));
	ok(kv_page_map(c, 0, id, &addr));
	*(volatile char *)addr = 1;
	pid = fork();
	if (!pid) {
		signal(SIGSEGV, SIG_DFL);
		*(volatile char *)addr = 2;
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	assert_int_equal(*(volatile char *)addr, 1);
}

static int (*real_import)(struct kv *, uint32_t, uint32_t, struct link_extent *);
static bool read_only;

static int import_as_told(struct kv *k, uint32_t extent, uint32_t shard, struct link_extent *x)
{
	int rc = real_import(k, extent, shard, x);

	x->writable = x->writable && !read_only;
	return rc;
}

/* An extent that was mapped read-only is mapped anew, at the same address, once this engine is
 * granted a page of it. */
static void test_becomes_writer(void **state)
{
	struct kv_cache *c = open_pages(NULL, 64 << 10, 0);
	struct link_ops ops = *kv->ops;
	const struct link_ops *real = kv->ops;
	void *first, *second;
	uint64_t ids[2];

	(void)state;
	real_import = ops.import;
	ops.import = import_as_told;
	kv->ops = &ops;
	ok(kv_pages_alloc(c, 0, 1, ids));
	read_only = true;
	ok(kv_page_map(c, 0, ids[0], &first));
	assert_false(kv->map.ext[ids[0] >> 44].writable);
	read_only = false;
	ok(kv_pages_alloc(c, 0, 1, ids + 1));
	assert_int_equal(ids[0] >> 44, ids[1] >> 44);
	ok(kv_page_map(c, 0, ids[1], &second));
	memset(second, 1, 64 << 10);
	memset(first, 2, 64 << 10); /* the old address is writable too */
	ok(kv_page_map(c, 0, ids[0], &second));
	assert_ptr_equal(first, second);
	kv->ops = real;
}

static void test_close_unmaps(void **state)
{
	struct kv_cache *c = open_pages(NULL, 64 << 10, 0);
	uint64_t id;
	void *addr;

	(void)state;
	ok(kv_page_alloc(c, 0, &id));
	ok(kv_page_map(c, 0, id, &addr));
	assert_int_equal(nr_mapped(), 1);
	ok(kv_page_free(c, 0, id));
	kv_cache_close(c);
	assert_int_equal(nr_mapped(), 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_addresses),     T(test_wrong_ids),      T(test_retire),
		T(test_not_inherited), T(test_becomes_writer), T(test_close_unmaps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
