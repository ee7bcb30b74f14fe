/* SPDX-License-Identifier: Apache-2.0 */
/* The pool benchmarks: alloc, ring, prefix, session, idle. */
#include "bench.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <kv/kv.h>
#include "bare.h"

#define BATCH	      64u
#define PAIRS	      200000u
#define ROUNDS	      2000u
#define PING_SPREAD 2.0 /* samples beyond it times the best ping-pong are void */
#define PREFIX_TOKENS 131072u
#define PREFIX_PAGE   64u

static int complain(const char *what)
{
	fprintf(stderr, "kvbench: %s: %s\n", what, kv_error());
	return -EIO;
}

int bench_cache(struct kv *kv, uint32_t page_tokens, struct kv_cache **cache)
{
	struct kv_cache_params p = { .model = "kvbench", .nr_groups = 1, .nr_shards = 1 };

	p.group[0].kind = KV_GROUP_FULL;
	p.group[0].layout = (struct kv_layout){ .kind = KV_GQA,
						.dtype = KV_F16,
						.layers = 1,
						.kv_heads = 1,
						.head_dim = 8,
						.head_dim_v = 8,
						.page_tokens = page_tokens };
	return kv_cache_open(kv, &p, cache);
}

/* ---- a mm of our own, without a daemon ----------------------------------------------------- */

/* 64 single-page allocations and their frees, straight into mm. */
static int bare_pairs(struct bare_mm *b)
{
	struct mm_request rq;
	struct mm_reply re;
	uint64_t ids[BATCH];
	unsigned int i;

	for (i = 0; i < BATCH; i++) {
		rq = (struct mm_request){
			.op = MM_ALLOC, .engine = b->engine, .cache = b->cache, .alloc.nr_pages = 1
		};
		re = *bare_call(b, &rq);
		if (re.result)
			return re.result;
		ids[i] = re.pages[0];
	}
	for (i = 0; i < BATCH; i++) {
		rq = (struct mm_request){ .op = MM_FREE,
					  .engine = b->engine,
					  .cache = b->cache,
					  .free = { .pages = &ids[i], .nr_pages = 1 } };
		re = *bare_call(b, &rq);
		if (re.result)
			return re.result;
	}
	return 0;
}

/* ---- a raw shared-memory ping-pong ---------------------------------------------------------- */

struct pingpong {
	uint32_t ping __attribute__((aligned(64)));
	uint32_t pong __attribute__((aligned(64)));
};

static pid_t pong_start(struct pingpong **shared)
{
	struct pingpong *p =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint32_t seen = 0, v;
	pid_t pid;

	if (p == MAP_FAILED)
		return -1;
	*shared = p;
	pid = fork();
	if (pid)
		return pid;
	while (getppid() != 1) {
		/* The other side is asleep between samples: give the processor away. */
		for (v = 0; v < 20000; v++) {
			uint32_t now = __atomic_load_n(&p->ping, __ATOMIC_ACQUIRE);

			if (now == seen)
				continue;
			seen = now;
			__atomic_store_n(&p->pong, now, __ATOMIC_RELEASE);
			v = 0;
		}
		sched_yield();
	}
	_exit(0);
}

static double pingpong_ns(struct pingpong *p, unsigned int rounds)
{
	uint32_t v = __atomic_load_n(&p->ping, __ATOMIC_RELAXED);
	uint64_t t;
	unsigned int i;

	for (i = 0, t = 0; i < rounds + 100; i++) {
		if (i == 100)
			t = bench_now_ns();
		__atomic_store_n(&p->ping, ++v, __ATOMIC_RELEASE);
		while (__atomic_load_n(&p->pong, __ATOMIC_ACQUIRE) != v)
			;
	}
	return (double)(bench_now_ns() - t) / rounds;
}

static double pingpong_sample(void)
{
	struct pingpong *p;
	pid_t pid = pong_start(&p);
	double ns;

	if (pid < 0)
		return 0;
	ns = pingpong_ns(p, ROUNDS);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	munmap(p, 4096);
	return ns;
}

/* ---- alloc ---------------------------------------------------------------------------------- */

static double magazine_pair_ns(struct kv_cache *cache)
{
	uint64_t id, t = bench_now_ns();
	unsigned int i;

	for (i = 0; i < PAIRS; i++)
		if (kv_page_alloc(cache, 0, &id) || kv_page_free(cache, 0, id))
			return -1;
	return (double)(bench_now_ns() - t) / PAIRS;
}

static double malloc_pair_ns(void)
{
	uint64_t t = bench_now_ns();
	unsigned int i;
	void *p;

	for (i = 0; i < PAIRS; i++) {
		p = malloc(64);
		__asm__ volatile("" : : "r"(p) : "memory");
		free(p);
	}
	return (double)(bench_now_ns() - t) / PAIRS;
}

static double batch_ns(struct kv_cache *cache)
{
	uint64_t ids[BATCH], t = 0;
	unsigned int i;

	for (i = 0; i < ROUNDS + 100; i++) {
		if (i == 100)
			t = bench_now_ns();
		if (kv_pages_alloc(cache, 0, BATCH, ids) || kv_pages_free(cache, 0, BATCH, ids))
			return -1;
	}
	return (double)(bench_now_ns() - t) / ROUNDS;
}

static double bare_ns(struct bare_mm *b)
{
	uint64_t t = bench_now_ns();
	unsigned int i;

	for (i = 0; i < ROUNDS; i++)
		if (bare_pairs(b))
			return -1;
	return (double)(bench_now_ns() - t) / ROUNDS;
}

/* One sample of each; a ping-pong whose partner was preempted says nothing about the ring: samples
 * far from the best ping-pong are taken again. */
struct alloc_sample {
	double magazine, malloc_, batch, ping, mm;
};

static int alloc_sample(struct kv_cache *cache, struct bare_mm *bare, struct alloc_sample *s)
{
	s->magazine = magazine_pair_ns(cache);
	s->malloc_ = malloc_pair_ns();
	s->ping = pingpong_sample();
	s->batch = batch_ns(cache);
	s->mm = bare_ns(bare);
	return s->magazine < 0 || s->batch < 0 || s->mm < 0 ? complain("allocation") : 0;
}

static void alloc_report(struct bench *b, const struct alloc_sample *all, unsigned int nr,
			 double best)
{
	struct bench_series *mag = bench_series(b, "magazine alloc+free, one page");
	struct bench_series *mal = bench_series(b, "malloc(64)+free");
	struct bench_series *bat = bench_series(b, "ring alloc+free, 64 pages");
	struct bench_series *png = bench_series(b, "raw ping-pong");
	struct bench_series *mmo = bench_series(b, "64 mm alloc+free, one page each");
	struct bench_ratio *r1 = bench_ratio(b, "magazine / malloc", 1.0);
	struct bench_ratio *r2 =
		bench_ratio(b, "ring batch / (2 ping-pongs + 64 mm operations)", 1.25);
	unsigned int i;

	for (i = 0; i < nr; i++) {
		if (all[i].ping > PING_SPREAD * best)
			continue;
		bench_add(mag, all[i].magazine);
		bench_add(mal, all[i].malloc_);
		bench_add(bat, all[i].batch);
		bench_add(png, all[i].ping);
		bench_add(mmo, all[i].mm);
		bench_add_ratio(r1, all[i].magazine / all[i].malloc_);
		bench_add_ratio(r2, all[i].batch / (2 * all[i].ping + all[i].mm));
	}
}

static int alloc_samples(struct bench_env *env, struct bench *b, struct kv_cache *cache,
			 struct bare_mm *bare)
{
	struct alloc_sample all[4 * BENCH_MAX_SAMPLES];
	unsigned int nr = 0, good = 0, i;
	double best = 0;

	while (good < env->samples && nr < 4 * env->samples) {
		if (alloc_sample(cache, bare, &all[nr]))
			return -EIO;
		nr++;
		for (i = 0, best = all[0].ping; i < nr; i++)
			best = all[i].ping < best ? all[i].ping : best;
		for (i = good = 0; i < nr; i++)
			good += all[i].ping <= PING_SPREAD * best;
	}
	alloc_report(b, all, nr, best);
	return 0;
}

int bench_alloc(struct bench_env *env, struct bench *b)
{
	struct bare_mm bare = { 0 };
	struct kv_cache *cache;
	struct kv *kv;
	int err;

	if (kv_open(env->spec, NULL, &kv))
		return complain(env->spec);
	if (bench_cache(kv, 64, &cache))
		return complain("cache");
	err = bare_init(&bare);
	if (!err)
		err = alloc_samples(env, b, cache, &bare);
	if (bare.mem)
		munmap(bare.mem, bare.len);
	kv_close(kv);
	return err;
}

/* ---- ring ----------------------------------------------------------------------------------- */

static double info_ns(struct kv *kv)
{
	struct kv_info info;
	uint64_t t = 0;
	unsigned int i;

	for (i = 0; i < ROUNDS + 100; i++) {
		if (i == 100)
			t = bench_now_ns();
		if (kv_info(kv, &info))
			return -1;
	}
	return (double)(bench_now_ns() - t) / ROUNDS;
}

int bench_ring(struct bench_env *env, struct bench *b)
{
	struct bench_series *ring = bench_series(b, "ring round trip (stat)");
	struct bench_series *png = bench_series(b, "raw ping-pong");
	struct bench_ratio *r = bench_ratio(b, "ring / ping-pong", 0);
	struct kv *kv;
	double t, p;
	unsigned int i;

	if (kv_open(env->spec, NULL, &kv))
		return complain(env->spec);
	for (i = 0; i < env->samples; i++) {
		p = pingpong_sample();
		t = info_ns(kv);
		if (t < 0)
			return complain("stat");
		bench_add(ring, t);
		bench_add(png, p);
		bench_add_ratio(r, t / p);
	}
	kv_close(kv);
	return 0;
}

/* ---- prefix --------------------------------------------------------------------------------- */

/* Publish PREFIX_TOKENS tokens as one chain. */
static int prefix_fill(struct kv_cache *cache, const uint32_t *tokens)
{
	uint32_t lease = 0, done, n, pages;
	uint64_t ids[256];
	const uint64_t *groups[KV_MAX_GROUPS] = { ids };

	for (done = 0; done < PREFIX_TOKENS; done += n) {
		n = 256 * PREFIX_PAGE;
		n = n > PREFIX_TOKENS - done ? PREFIX_TOKENS - done : n;
		pages = n / PREFIX_PAGE;
		if (kv_pages_alloc(cache, 0, pages, ids))
			return complain("prefix pages");
		if (kv_commit(cache, &lease, done / PREFIX_PAGE, tokens + done, n, pages, groups,
			      false, NULL, 0, NULL))
			return complain("prefix commit");
	}
	return kv_unlease(cache, 1, &lease) ? complain("unlease") : 0;
}

static double lookup_ns(struct kv_cache *cache, const uint32_t *tokens)
{
	struct kv_match m;
	uint64_t t = bench_now_ns();

	if (kv_lookup(cache, tokens, PREFIX_TOKENS, NULL, 0, false, &m))
		return -1;
	t = bench_now_ns() - t;
	if (m.nr_pages != PREFIX_TOKENS / PREFIX_PAGE || kv_unlease(cache, 1, &m.lease))
		return -1;
	return (double)t;
}

static double memcmp_ns(const uint32_t *a, const uint32_t *b)
{
	uint64_t t = bench_now_ns();
	int differs = memcmp(a, b, PREFIX_TOKENS * sizeof(*a));

	__asm__ volatile("" : : "r"(differs) : "memory");
	return (double)(bench_now_ns() - t);
}

static int prefix_samples(struct bench_env *env, struct bench *b, struct kv_cache *remote,
			  struct kv_cache *local, const uint32_t *tokens, const uint32_t *copy)
{
	struct bench_series *rem = bench_series(b, "lookup 131,072 tokens, daemon");
	struct bench_series *loc = bench_series(b, "lookup 131,072 tokens, in process");
	struct bench_series *cmp = bench_series(b, "memcmp of the same array");
	struct bench_ratio *r1 = bench_ratio(b, "daemon / memcmp", 0);
	struct bench_ratio *r2 = bench_ratio(b, "in process / memcmp", 10);
	double x, y, z;
	unsigned int i;

	for (i = 0; i < env->samples; i++) {
		lookup_ns(remote, tokens); /* wake the daemon; all are warm, memcmp too */
		x = lookup_ns(remote, tokens);
		lookup_ns(local, tokens);
		y = lookup_ns(local, tokens);
		memcmp_ns(tokens, copy);
		z = memcmp_ns(tokens, copy);
		if (x < 0 || y < 0)
			return complain("lookup");
		bench_add(rem, x);
		bench_add(loc, y);
		bench_add(cmp, z);
		bench_add_ratio(r1, x / z);
		bench_add_ratio(r2, y / z);
	}
	return 0;
}

int bench_prefix(struct bench_env *env, struct bench *b)
{
	uint32_t *tokens = malloc(2 * PREFIX_TOKENS * sizeof(*tokens)), i;
	struct kv_cache *remote, *local;
	struct kv *kr, *kl;
	int err;

	if (!tokens)
		return -ENOMEM;
	for (i = 0; i < PREFIX_TOKENS; i++)
		tokens[i] = tokens[PREFIX_TOKENS + i] = i * 2654435761u >> 8;
	if (kv_open(env->spec, NULL, &kr) || kv_open("embedded:host:256M", NULL, &kl))
		return complain("open");
	if (bench_cache(kr, PREFIX_PAGE, &remote) || bench_cache(kl, PREFIX_PAGE, &local))
		return complain("cache");
	err = prefix_fill(remote, tokens);
	if (!err)
		err = prefix_fill(local, tokens);
	if (!err)
		err = prefix_samples(env, b, remote, local, tokens, tokens + PREFIX_TOKENS);
	kv_close(kr);
	kv_close(kl);
	free(tokens);
	return err;
}

/* ---- session and idle ----------------------------------------------------------------------- */

int bench_session(struct bench_env *env, struct bench *b)
{
	struct bench_series *s = bench_series(b, "open+close of a session");
	struct kv *kv;
	unsigned int i;
	uint64_t t;

	for (i = 0; i < env->samples; i++) {
		t = bench_now_ns();
		if (kv_open(env->spec, NULL, &kv))
			return complain(env->spec);
		kv_close(kv);
		bench_add(s, (double)(bench_now_ns() - t));
	}
	return 0;
}

int bench_idle(struct bench_env *env, struct bench *b)
{
	struct bench_series *s = bench_series(b, "daemon CPU while idle, per second");
	struct timespec settle = { 0, 200000000 }, second = { 1, 0 };
	struct kv *kv;
	double before;
	unsigned int i;

	if (!env->daemon)
		return 0; /* only our own daemon is known to be idle */
	if (kv_open(env->spec, NULL, &kv))
		return complain(env->spec);
	nanosleep(&settle, NULL);
	for (i = 0; i < 3; i++) {
		before = bench_daemon_cpu_seconds(env->daemon);
		nanosleep(&second, NULL);
		bench_add(s, (bench_daemon_cpu_seconds(env->daemon) - before) * 1e9);
	}
	kv_close(kv);
	return 0;
}
