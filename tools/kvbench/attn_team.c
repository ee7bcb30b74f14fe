// SPDX-License-Identifier: Apache-2.0
/* attn_team - contract in attn_team.h */
#include "attn_team.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "bench.h"

#define SPINS	   20000
#define LOST_NS	   20000	/* what a clock read and an interrupt may take */
#define LOST_SHARE 50		/* and one part in so many of the time */

struct member {
	pthread_t thread;
	struct attn_team *team;
	unsigned int me;
	uint64_t cpu;
	bool lost;
};

struct attn_team {
	unsigned int n, joined;
	attn_team_fn fn;
	void *arg;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	_Atomic unsigned int round;	/* changes under lock; spun upon without */
	_Atomic unsigned int done;
	bool stop;
	struct member member[];
};

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void work(struct member *m)
{
	uint64_t cpu = cpu_ns(), wall = bench_now_ns();

	m->team->fn(m->team->arg, m->me, m->team->n);
	wall = bench_now_ns() - wall;
	cpu = cpu_ns() - cpu;
	m->cpu = cpu;
	m->lost = wall > cpu + LOST_NS + wall / LOST_SHARE;
}

static void wait_round(struct attn_team *t, unsigned int seen)
{
	int i;

	for (i = 0; i < SPINS; i++)
		if (atomic_load_explicit(&t->round, memory_order_acquire) != seen)
			return;
	pthread_mutex_lock(&t->lock);
	while (t->round == seen)
		pthread_cond_wait(&t->wake, &t->lock);
	pthread_mutex_unlock(&t->lock);
}

static void *member_main(void *arg)
{
	struct member *m = arg;
	unsigned int round = 0;

	for (;;) {
		wait_round(m->team, round);
		round++;
		if (m->team->stop)
			return NULL;
		work(m);
		atomic_fetch_add_explicit(&m->team->done, 1, memory_order_release);
	}
}

static void next_round(struct attn_team *t)
{
	pthread_mutex_lock(&t->lock);
	atomic_fetch_add_explicit(&t->round, 1, memory_order_release);
	pthread_cond_broadcast(&t->wake);
	pthread_mutex_unlock(&t->lock);
}

struct attn_team *attn_team_start(unsigned int members)
{
	struct attn_team *t = calloc(1, sizeof(*t) + members * sizeof(t->member[0]));
	unsigned int i;

	if (!t)
		return NULL;
	t->n = members;
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->wake, NULL);
	for (i = 0; i < members; i++)
		t->member[i] = (struct member){ .team = t, .me = i };
	for (t->joined = 1; t->joined < members; t->joined++)
		if (pthread_create(&t->member[t->joined].thread, NULL, member_main,
				   &t->member[t->joined])) {
			attn_team_stop(t);
			return NULL;
		}
	return t;
}

void attn_team_stop(struct attn_team *t)
{
	unsigned int i;

	if (!t)
		return;
	t->stop = true;
	next_round(t);
	for (i = 1; i < t->joined; i++)
		pthread_join(t->member[i].thread, NULL);
	pthread_cond_destroy(&t->wake);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

unsigned int attn_team_size(const struct attn_team *t)
{
	return t->n;
}

uint64_t attn_team_run(struct attn_team *t, attn_team_fn fn, void *arg, bool *lost)
{
	uint64_t start;
	unsigned int i;

	t->fn = fn;
	t->arg = arg;
	atomic_store(&t->done, 0);
	start = bench_now_ns();
	if (t->n > 1)
		next_round(t);
	work(&t->member[0]);
	while (atomic_load_explicit(&t->done, memory_order_acquire) != t->n - 1)
		;
	start = bench_now_ns() - start;
	if (t->n == 1)
		return t->member[0].cpu ? t->member[0].cpu : 1;
	for (i = 0; lost && i < t->n; i++)
		*lost |= t->member[i].lost;
	return start;
}
