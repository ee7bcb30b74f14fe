// SPDX-License-Identifier: Apache-2.0
/* threads - contract in threads.h */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <kv/attn.h>

#include "err.h"
#include "threads.h"

#define SPINS 400 /* about 20 us: a layer's call is often followed by the next one's */

/* open: workers the job still takes; joined: those it has. Both in one word, so that closing it
 * and counting who came is one step. */
#define JOB(open, joined) ((uint32_t)(open) << 16 | (joined))
#define JOB_OPEN(word)	  ((word) >> 16)
#define JOB_JOINED(word)  ((word) & 0xffff)

static struct {
	pthread_mutex_t lock; /* one job, or one change of the crew, at a time */
	pthread_t worker[THREADS_MAX]; /* no allocation: a fork may come at any moment */
	uint32_t nr_workers;
	/* the job */
	void (*fn)(void *ctx, uint32_t i);
	void *ctx;
	uint32_t items;
	_Atomic uint32_t next;
	_Atomic uint32_t job;	/* JOB() */
	_Atomic uint32_t left;	/* who joined and has left again */
	_Atomic uint32_t calls; /* futex: there is a job, or an end */
	_Atomic uint32_t parked;
	_Atomic bool waiting, stop, spin;
} crew = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Atomic int limit; /* 0: not known yet */

/* ---- how many -------------------------------------------------------------------------------- */

static uint32_t nr_cpus(void)
{
	cpu_set_t set;
	long n;

	if (!sched_getaffinity(0, sizeof(set), &set))
		return (uint32_t)CPU_COUNT(&set);
	n = sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than the set has bits */
	return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : (uint32_t)n;
}

static int from_env(void)
{
	const char *text = getenv("KV_THREADS");
	unsigned long n;
	char *end;

	if (!text || !*text)
		return 1;
	errno = 0;
	n = strtoul(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno || n > THREADS_MAX)
		return err_set(-EINVAL, "KV_THREADS=%s: must be 0 (one a CPU) to %u, or unset",
			       text, THREADS_MAX);
	return n ? (int)n : (int)nr_cpus();
}

int threads_limit(void)
{
	int n = atomic_load_explicit(&limit, memory_order_relaxed);

	if (n)
		return n;
	n = from_env();
	if (n > 0)
		atomic_store_explicit(&limit, n, memory_order_relaxed);
	return n;
}

int kv_threads_set(uint32_t n)
{
	if (n > THREADS_MAX)
		return err_set(-EINVAL, "%u threads: must be 0 (one a CPU) to %u", n, THREADS_MAX);
	atomic_store_explicit(&limit, n ? (int)n : (int)nr_cpus(), memory_order_relaxed);
	threads_stop(); /* the next call starts as many as it may have */
	return 0;
}

/* ---- workers --------------------------------------------------------------------------------- */

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, uint32_t n)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void pause_cpu(void)
{
#ifdef __x86_64__
	__builtin_ia32_pause();
#endif
}

static void draw_items(void)
{
	uint32_t i;

	while ((i = atomic_fetch_add_explicit(&crew.next, 1, memory_order_relaxed)) < crew.items)
		crew.fn(crew.ctx, i);
}

static bool join_job(void)
{
	uint32_t word = atomic_load(&crew.job);

	while (JOB_OPEN(word))
		if (atomic_compare_exchange_weak(
			    &crew.job, &word, JOB(JOB_OPEN(word) - 1, JOB_JOINED(word) + 1)))
			return true;
	return false;
}

static void leave_job(void)
{
	atomic_fetch_add(&crew.left, 1);
	if (atomic_load(&crew.waiting))
		futex_wake(&crew.left, 1);
}

static void park(uint32_t seen)
{
	int i;

	for (i = 0; i < SPINS && atomic_load(&crew.spin); i++) {
		if (atomic_load(&crew.calls) != seen)
			return;
		pause_cpu();
	}
	atomic_fetch_add(&crew.parked, 1);
	futex_wait(&crew.calls, seen);
	atomic_fetch_sub(&crew.parked, 1);
}

static void *worker_main(void *arg)
{
	(void)arg;
	for (;;) {
		uint32_t seen = atomic_load(&crew.calls);

		if (atomic_load(&crew.stop))
			return NULL;
		if (join_job()) {
			draw_items();
			leave_job();
		}
		park(seen);
	}
}

static void call_workers(uint32_t n)
{
	atomic_fetch_add(&crew.calls, 1);
	if (atomic_load(&crew.parked))
		futex_wake(&crew.calls, n);
}

/* The child has this thread only; whatever the others held or were doing is no more. */
static void forked(void)
{
	crew.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	crew.nr_workers = 0;
	atomic_store(&crew.job, 0);
	atomic_store(&crew.parked, 0);
	atomic_store(&crew.stop, false);
}

static void on_fork(void)
{
	pthread_atfork(NULL, NULL, forked);
}

/* Up to n workers: with fewer, or none, the job is done all the same. */
static void start_workers(uint32_t n)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	sigset_t all, old;

	if (crew.nr_workers >= n)
		return;
	pthread_once(&once, on_fork);
	atomic_store(&crew.spin, n < nr_cpus());
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (crew.nr_workers < n &&
	       !pthread_create(&crew.worker[crew.nr_workers], NULL, worker_main, NULL))
		pthread_setname_np(crew.worker[crew.nr_workers++], "kv-attn");
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void threads_stop(void)
{
	uint32_t i;

	pthread_mutex_lock(&crew.lock);
	atomic_store(&crew.stop, true);
	call_workers(INT_MAX);
	for (i = 0; i < crew.nr_workers; i++)
		pthread_join(crew.worker[i], NULL);
	crew.nr_workers = 0;
	atomic_store(&crew.stop, false);
	pthread_mutex_unlock(&crew.lock);
}

/* ---- a job ----------------------------------------------------------------------------------- */

static void wait_until_left(uint32_t joined)
{
	uint32_t left;
	int i;

	for (i = 0; i < SPINS; i++) {
		if (atomic_load(&crew.left) == joined)
			return;
		pause_cpu();
	}
	atomic_store(&crew.waiting, true);
	while ((left = atomic_load(&crew.left)) != joined)
		futex_wait(&crew.left, left);
	atomic_store(&crew.waiting, false);
}

static void run_job(uint32_t helpers)
{
	uint32_t word;

	atomic_store(&crew.next, 0);
	atomic_store(&crew.left, 0);
	atomic_store(&crew.job, JOB(helpers, 0));
	call_workers(helpers);
	draw_items();
	word = atomic_load(&crew.job);
	while (!atomic_compare_exchange_weak(&crew.job, &word, JOB(0, JOB_JOINED(word))))
		;
	wait_until_left(JOB_JOINED(word));
}

void threads_run(void (*fn)(void *ctx, uint32_t i), void *ctx, uint32_t items, uint32_t most)
{
	uint32_t i;

	most = most < items ? most : items;
	most = most < THREADS_MAX ? most : THREADS_MAX;
	if (most <= 1 || pthread_mutex_trylock(&crew.lock)) {
		for (i = 0; i < items; i++)
			fn(ctx, i);
		return;
	}
	start_workers(most - 1);
	crew.fn = fn;
	crew.ctx = ctx;
	crew.items = items;
	run_job(most - 1 < crew.nr_workers ? most - 1 : crew.nr_workers);
	pthread_mutex_unlock(&crew.lock);
}
