// SPDX-License-Identifier: Apache-2.0
/* The crew of threads, and calls it shares out: every item once, the same bits from any number of
 * threads, no thread before it is wanted, none left behind, none in a forked child. */
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "seq_fixture.h"
#include "threads.h"

#define NR_ITEMS 3000u

static uint32_t nr_tasks(void)
{
	DIR *d = opendir("/proc/self/task");
	uint32_t n = 0;
	struct dirent *e;

	assert_non_null(d);
	while ((e = readdir(d)))
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

/* Waits for what a child of fork() says by its exit status. */
static int child_status(pid_t pid)
{
	int status;

	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- the crew -------------------------------------------------------------------------------- */

struct counts {
	_Atomic uint32_t runs[NR_ITEMS];
	_Atomic uint32_t all;
};

static void count(void *ctx, uint32_t i)
{
	struct counts *c = ctx;

	atomic_fetch_add(&c->runs[i], 1);
	atomic_fetch_add(&c->all, 1);
}

static bool each_once(uint32_t items, uint32_t most)
{
	static _Thread_local struct counts counts;
	struct counts *c = &counts;
	uint32_t i;

	for (i = 0; i < items; i++)
		atomic_store(&c->runs[i], 0);
	atomic_store(&c->all, 0);
	threads_run(count, c, items, most);
	for (i = 0; i < items; i++)
		if (atomic_load(&c->runs[i]) != 1)
			return false;
	return atomic_load(&c->all) == items;
}

static int limit_with(const char *value, bool one_cpu)
{
	pid_t pid = fork();
	cpu_set_t set;
	int cpu;

	if (pid)
		return child_status(pid);
	if (one_cpu) {
		sched_getaffinity(0, sizeof(set), &set);
		for (cpu = 0; !CPU_ISSET(cpu, &set); cpu++)
			;
		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
		sched_setaffinity(0, sizeof(set), &set);
	}
	if (value)
		setenv("KV_THREADS", value, 1);
	else
		unsetenv("KV_THREADS");
	cpu = threads_limit();
	_exit(cpu < 0 ? 100 : cpu);
}

/* First of the tests: the environment counts until kv_threads_set() is called. */
static void what_the_environment_says(void **state)
{
	(void)state;
	assert_int_equal(limit_with(NULL, false), 1);
	assert_int_equal(limit_with("", false), 1);
	assert_int_equal(limit_with("3", false), 3);
	assert_int_equal(limit_with("0", true), 1);
	assert_int_equal(limit_with("7", true), 7); /* asked for */
	assert_int_equal(limit_with("many", false), 100);
	assert_int_equal(limit_with("-1", false), 100);
	assert_int_equal(limit_with("2000", false), 100);
	assert_int_equal(kv_threads_set(2000), -EINVAL);
	assert_int_equal(kv_threads_set(5), 0);
	assert_int_equal(threads_limit(), 5);
	assert_int_equal(kv_threads_set(0), 0);
	assert_true(threads_limit() >= 1);
}

static void every_item_once(void **state)
{
	static const uint32_t items[] = {0, 1, 2, 3, 100, NR_ITEMS};
	uint32_t i, most, round;

	(void)state;
	for (round = 0; round < 30; round++)
		for (i = 0; i < sizeof(items) / sizeof(*items); i++)
			for (most = 1; most <= 7; most += 2)
				assert_true(each_once(items[i], most));
	threads_stop();
}

static void *call_often(void *arg)
{
	uint32_t i;

	for (i = 0; i < 200; i++)
		if (!each_once(50, 3))
			*(bool *)arg = true;
	return NULL;
}

static void callers_at_the_same_time(void **state)
{
	pthread_t thread[4];
	bool failed[4] = {0};
	uint32_t i;

	(void)state;
	for (i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, call_often, &failed[i]), 0);
	for (i = 0; i < 20; i++)
		assert_int_equal(kv_threads_set(3), 0); /* takes the crew away between jobs */
	for (i = 0; i < 4; i++) {
		pthread_join(thread[i], NULL);
		assert_false(failed[i]);
	}
	threads_stop();
}

static void started_late_and_joined(void **state)
{
	uint32_t before;

	(void)state;
	threads_stop();
	before = nr_tasks();
	assert_int_equal(kv_threads_set(4), 0);
	assert_int_equal(nr_tasks(), before);
	assert_true(each_once(100, 4));
	assert_int_equal(nr_tasks(), before + 3);
	assert_true(each_once(100, 2));
	assert_int_equal(nr_tasks(), before + 3);
	assert_int_equal(kv_threads_set(1), 0);
	assert_int_equal(nr_tasks(), before);
}

/* More than the crew has places for: as many as it has, or as the system lets it start. */
static void more_than_there_may_be(void **state)
{
	uint32_t before;

	(void)state;
	threads_stop();
	before = nr_tasks();
	assert_true(each_once(NR_ITEMS, 2000));
	assert_true(nr_tasks() > before);
	assert_true(nr_tasks() < before + THREADS_MAX);
	threads_stop();
	assert_int_equal(nr_tasks(), before);
}

static void a_forked_child_has_its_own(void **state)
{
	pid_t pid;

	(void)state;
#ifdef __SANITIZE_THREAD__ /* it ends a child that starts threads */
	skip();
#endif
	assert_true(each_once(100, 3));
	pid = fork();
	if (!pid) {
		uint32_t before = nr_tasks();
		bool good = each_once(100, 3) && nr_tasks() == before + 2;

		exit(good ? 7 : 8); /* by way of the destructor, which joins them */
	}
	assert_int_equal(child_status(pid), 7);
	assert_true(each_once(100, 3));
	threads_stop();
}

/* ---- calls ----------------------------------------------------------------------------------- */

#define PAGES	  16u
#define ENTRIES	  300u /* 19,200 tokens: the pages again and again */
#define BATCH	  3u
#define HEADS	  4u
#define OUT	  8u

static struct fix f;
static uint64_t ids[PAGES], pages[PAGES], tables[BATCH][ENTRIES];
static const uint64_t *const ptes[BATCH] = {tables[0], tables[1], tables[2]};
static const uint32_t lens[BATCH] = {ENTRIES * 64, ENTRIES * 64 - 7, ENTRIES * 64 - 5000};
static float q[BATCH * HEADS * 16], out[BATCH * HEADS * OUT], lse[BATCH * HEADS];
static float want[BATCH * HEADS * OUT], want_lse[BATCH * HEADS];
static const struct kv_attn call = {
	.batch = BATCH, .heads = HEADS, .q = q, .out = out, .lse = lse};

/* The first two sequences share 6,400 tokens. */
static void open_long(void)
{
	static float k[64 * 2 * 16], v[64 * 2 * 8];
	uint64_t r = 1;
	uint32_t i, j;

	fix_open(&f, "embedded:host:8M", fix_layout(KV_GQA, KV_F32, 64), 0);
	assert_int_equal(kv_pages_alloc(f.cache, 0, PAGES, ids), 0);
	assert_int_equal(kv_pages_pte(f.cache, 0, PAGES, ids, pages), 0);
	for (i = 0; i < PAGES; i++) {
		for (j = 0; j < sizeof(k) / sizeof(*k); j++)
			k[j] = (float)(int)((r = fix_mix(r, j)) & 255) / 128 - 1;
		for (j = 0; j < sizeof(v) / sizeof(*v); j++)
			v[j] = (float)(int)((r = fix_mix(r, j)) & 255) / 128 - 1;
		assert_int_equal(kv_store_pages(f.cache, 0, 0, pages + i, 0, 64, k, v), 0);
	}
	for (i = 0; i < BATCH; i++)
		for (j = 0; j < ENTRIES; j++)
			tables[i][j] = pages[(j * 7 + (i == 2 || j >= 100 ? i : 0)) % PAGES];
	for (i = 0; i < sizeof(q) / sizeof(*q); i++)
		q[i] = (float)(int)((r = fix_mix(r, i)) & 255) / 128 - 1;
	assert_int_equal(kv_threads_set(1), 0);
	for (i = 0; i < BATCH; i++) { /* each sequence alone */
		struct kv_attn one = call;

		one.batch = 1;
		one.q = q + i * HEADS * 16;
		one.out = want + i * HEADS * OUT;
		one.lse = want_lse + i * HEADS;
		assert_int_equal(kv_attn_pages(f.cache, &one, ptes + i, lens + i), 0);
	}
}

static void close_long(void)
{
	assert_int_equal(kv_pages_free(f.cache, 0, PAGES, ids), 0);
	fix_close(&f);
}

static void expect_same(void)
{
	assert_memory_equal(out, want, sizeof(out));
	assert_memory_equal(lse, want_lse, sizeof(lse));
	memset(out, 0x5a, sizeof(out));
	memset(lse, 0x5a, sizeof(lse));
}

static void the_same_bits_from_any_number(void **state)
{
	static const uint32_t nr[] = {1, 2, 7, 1, 3};
	uint32_t i, round, before;

	(void)state;
	open_long();
	before = nr_tasks();
	for (i = 0; i < 5; i++) {
		assert_int_equal(kv_threads_set(nr[i]), 0);
		for (round = 0; round < 3; round++) {
			assert_int_equal(kv_attn_pages(f.cache, &call, ptes, lens), 0);
			expect_same();
		}
		assert_int_equal(nr_tasks(), before + nr[i] - 1);
	}
	threads_stop();
	close_long();
}

/* Little work wakes nobody. */
static void a_short_call_stays_alone(void **state)
{
	static const uint32_t few[BATCH] = {100, 3, 0};
	uint32_t before;

	(void)state;
	open_long();
	assert_int_equal(kv_threads_set(3), 0);
	before = nr_tasks();
	assert_int_equal(kv_attn_pages(f.cache, &call, ptes, few), 0);
	assert_int_equal(nr_tasks(), before);
	close_long();
}

/* A plan for many threads says how finely it is cut, not how many of them there may be. */
static void a_run_keeps_the_limit(void **state)
{
	static const uint32_t nr[] = {1, 3, 2};
	struct kv_attn_plan *plan;
	uint32_t before, i;

	(void)state;
	open_long();
	before = nr_tasks();
	for (i = 0; i < 3; i++) {
		assert_int_equal(kv_threads_set(nr[i]), 0);
		assert_int_equal(kv_attn_plan_pages(f.cache, &call, ptes, lens, 2000, &plan), 0);
		assert_true(kv_attn_items(plan) > 3);
		assert_int_equal(kv_attn_run(plan), 0);
		assert_int_equal(nr_tasks(), before + nr[i] - 1);
		assert_int_equal(kv_attn_finish(plan), 0);
		expect_same();
	}
	threads_stop();
	close_long();
}

static void an_engine_brings_its_own(void **state)
{
	struct kv_attn_plan *plan;
	uint32_t nr;

	(void)state;
	open_long();
	for (nr = 1; nr <= 5; nr += 2) {
		struct kv_attn a = call;

		assert_int_equal(kv_attn_plan_pages(f.cache, &a, ptes, lens, nr, &plan), 0);
		memset(&a, 0xff, sizeof(a)); /* was copied */
		assert_true(kv_attn_items(plan) >= nr);
		assert_int_equal(kv_attn_item(plan, kv_attn_items(plan)), -EINVAL);
		fix_run_items(plan, nr);
		assert_int_equal(kv_attn_finish(plan), 0);
		expect_same();
	}
	close_long();
}

/* The first item twice does not stand for the last one, nor disturb what it is merged with. */
static void an_item_runs_once(void **state)
{
	struct kv_attn_plan *plan;
	uint32_t n, i;

	(void)state;
	open_long();
	assert_int_equal(kv_attn_plan_pages(f.cache, &call, ptes, lens, 3, &plan), 0);
	n = kv_attn_items(plan);
	assert_true(n > 3);
	for (i = 0; i < n - 1; i++)
		assert_int_equal(kv_attn_item(plan, i), 0);
	for (i = 0; i < n - 1; i++)
		assert_int_equal(kv_attn_item(plan, i), -EINVAL);
	assert_non_null(strstr(kv_error(), "was run already"));
	assert_int_equal(kv_attn_next(plan, &call), -EINVAL); /* the last one is missing */
	assert_int_equal(kv_attn_item(plan, n - 1), 0);
	expect_same();
	assert_int_equal(kv_attn_next(plan, &call), 0);
	for (i = n; i--;)
		assert_int_equal(kv_attn_item(plan, i), 0);
	expect_same();
	assert_int_equal(kv_attn_next(plan, &call), 0);
	for (i = 0; i < n; i++)
		kv_attn_item(plan, 0);
	assert_int_equal(kv_attn_finish(plan), -EINVAL);
	close_long();
}

static void plans_of_sequences(void **state)
{
	uint32_t tokens[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, i;
	struct kv_attn a = {.batch = 2, .heads = 2, .q = q, .out = out};
	float two[2 * 2 * OUT];
	struct kv_attn_plan *plan;
	struct kv_seq *s[2];

	(void)state;
	fix_open(&f, "embedded:host:8M", fix_layout(KV_GQA, KV_F32, 4), 0);
	assert_int_equal(kv_seq_create(f.cache, NULL, 0, &s[0]), 0);
	assert_int_equal(kv_seq_append(s[0], tokens, 10), 0);
	fix_store(&f, s[0], 0, 0, 10);
	assert_int_equal(kv_seq_fork(s[0], &s[1]), 0);
	a.seqs = s;
	assert_int_equal(kv_attn(f.cache, &a), 0);
	memcpy(two, out, sizeof(two));
	memset(out, 0, sizeof(out));
	assert_int_equal(kv_attn_plan(f.cache, &a, 4, &plan), 0);
	for (i = kv_attn_items(plan); i--;)
		assert_int_equal(kv_attn_item(plan, i), 0);
	assert_int_equal(kv_attn_finish(plan), 0);
	assert_memory_equal(two, out, sizeof(two));

	assert_int_equal(kv_attn_plan(f.cache, &a, 4, &plan), 0);
	assert_int_equal(kv_attn_finish(plan), -EINVAL); /* nothing was run */
	a.batch = 0;
	assert_int_equal(kv_attn_plan(f.cache, &a, 4, &plan), 0);
	assert_int_equal(kv_attn_items(plan), 0);
	assert_int_equal(kv_attn_finish(plan), 0);
	a.batch = 2;
	a.out = NULL;
	assert_int_equal(kv_attn_plan(f.cache, &a, 4, &plan), -EINVAL);
	assert_null(plan);
	a.out = out;
	a.dcp = 2;
	a.dcp_interleave = 1;
	assert_int_equal(kv_attn(f.cache, &a), -EINVAL);
	assert_non_null(strstr(kv_error(), "kv_attn_pages"));
	a.dcp_rank = 2;
	assert_int_equal(kv_attn_plan(f.cache, &a, 4, &plan), -EINVAL);
	a.dcp = 0;
	a.seqs = NULL;
	assert_int_equal(kv_attn_plan(f.cache, &a, 4, &plan), -EINVAL);
	assert_int_equal(kv_attn_plan_pages(f.cache, &a, NULL, NULL, 4, &plan), -EINVAL);
	assert_int_equal(kv_attn_plan(f.cache, &a, 4, NULL), -EINVAL);
	assert_int_equal(kv_attn_finish(NULL), 0);
	kv_seq_release(s[0]);
	kv_seq_release(s[1]);
	fix_close(&f);
}

/* Three ranks hold every third run of five tokens each: merged they give the whole. */
static void shards_of_ranks(void **state)
{
	static uint64_t local[3][4];
	static float k[130 * 2 * 16], v[130 * 2 * 8], part[3][HEADS * OUT], part_lse[3][HEADS];
	uint64_t own[12], page[12], whole[3];
	const uint64_t *pte[1] = {whole};
	uint32_t n[3] = {0}, len = 130, i, t, r;
	struct kv_attn a = {.batch = 1, .heads = HEADS, .q = q, .out = out, .lse = lse};

	(void)state;
	fix_open(&f, "embedded:host:8M", fix_layout(KV_GQA, KV_F32, 64), 0);
	assert_int_equal(kv_pages_alloc(f.cache, 0, 12, own), 0);
	assert_int_equal(kv_pages_pte(f.cache, 0, 12, own, page), 0);
	memcpy(whole, page + 9, sizeof(whole));
	for (i = 0; i < sizeof(k) / sizeof(*k); i++)
		k[i] = (float)(int)(fix_mix(3, i) & 255) / 128 - 1;
	for (i = 0; i < sizeof(v) / sizeof(*v); i++)
		v[i] = (float)(int)(fix_mix(4, i) & 255) / 128 - 1;
	assert_int_equal(kv_store_pages(f.cache, 0, 0, whole, 0, len, k, v), 0);
	assert_int_equal(kv_attn_pages(f.cache, &a, pte, &len), 0);
	a.dcp = 3;
	a.dcp_interleave = 5;
	for (r = 0; r < 3; r++)
		memcpy(local[r], page + 3 * r, 3 * sizeof(*page));
	for (t = 0; t < len; t++) {
		r = t / 5 % 3;
		assert_int_equal(kv_store_pages(f.cache, 0, 0, local[r], n[r]++, 1,
						k + t * 2 * 16, v + t * 2 * 8),
				 0);
	}
	for (r = 0; r < 3; r++) {
		pte[0] = local[r];
		a.dcp_rank = r;
		a.out = part[r];
		a.lse = part_lse[r];
		assert_int_equal(kv_attn_pages(f.cache, &a, pte, &len), 0);
	}
	kv_attn_merge(part[0], part_lse[0], (const float *const[]){part[0], part[1], part[2]},
		      (const float *const[]){part_lse[0], part_lse[1], part_lse[2]}, 3, HEADS, OUT);
	for (i = 0; i < HEADS * OUT; i++)
		assert_true(fabsf(part[0][i] - out[i]) < 1e-5f);
	for (i = 0; i < HEADS; i++)
		assert_true(fabsf(part_lse[0][i] - lse[i]) < 1e-5f);
	assert_int_equal(kv_pages_free(f.cache, 0, 12, own), 0);
	fix_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_the_environment_says),
		cmocka_unit_test(every_item_once),
		cmocka_unit_test(callers_at_the_same_time),
		cmocka_unit_test(started_late_and_joined),
		cmocka_unit_test(more_than_there_may_be),
		cmocka_unit_test(a_forked_child_has_its_own),
		cmocka_unit_test(the_same_bits_from_any_number),
		cmocka_unit_test(a_short_call_stays_alone),
		cmocka_unit_test(a_run_keeps_the_limit),
		cmocka_unit_test(an_engine_brings_its_own),
		cmocka_unit_test(an_item_runs_once),
		cmocka_unit_test(plans_of_sequences),
		cmocka_unit_test(shards_of_ranks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
