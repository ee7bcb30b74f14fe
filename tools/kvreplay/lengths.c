// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "replay.h"
#include "world.h"

#define MAX_BATCH   (1u << 20) /* pages mm grants at once */
#define MAX_WAITING (1u << 18)

enum job_state { JOB_WAITS, JOB_RUNS, JOB_STALLS, JOB_LEAVES };

/* A request in flight. Token k of its answer is there at base_ns + k / rate. */
struct job {
	const struct trace_request *rq;
	enum job_state state;
	uint32_t engine, world;
	uint64_t asked_ns, base_ns;
	uint64_t *pages;
	uint32_t nr_pages;
	struct job *next_free;
};

struct event {
	uint64_t at_ns;
	struct job *job;
};

struct load {
	const struct trace *trace;
	const struct replay_config *cfg;
	struct replay_result *res;
	struct world *worlds;
	uint32_t nr_worlds;
	struct job **jobs;   /* by cookie - 1 */
	struct job *leaving; /* granted nothing: freed between calls */
	struct event *heap;  /* the next page or the end of each running job, earliest on top */
	uint32_t nr_heap;
	uint64_t *waits; /* ns, of allocations that waited and were granted or refused */
	uint64_t nr_waits, max_waits;
	uint32_t nr_waiting, nr_running;
	uint64_t now_ns;
	double area, some_ns, full_ns;
	int error; /* met where it could not be returned */
};

/* ---- events -------------------------------------------------------------------------------- */

static bool before(const struct event *a, const struct event *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->job->rq < b->job->rq;
}

static void push(struct load *l, struct event e)
{
	uint32_t i = l->nr_heap++, up;

	for (; i; i = up) {
		up = (i - 1) / 2;
		if (before(&l->heap[up], &e))
			break;
		l->heap[i] = l->heap[up];
	}
	l->heap[i] = e;
}

static struct event pop(struct load *l)
{
	struct event top = l->heap[0], e = l->heap[--l->nr_heap];
	uint32_t i = 0, kid;

	while ((kid = 2 * i + 1) < l->nr_heap) {
		kid += kid + 1 < l->nr_heap && before(&l->heap[kid + 1], &l->heap[kid]);
		if (before(&e, &l->heap[kid]))
			break;
		l->heap[i] = l->heap[kid];
		i = kid;
	}
	l->heap[i] = e;
	return top;
}

static uint32_t pages_for(const struct load *l, uint64_t tokens)
{
	uint32_t pt = l->cfg->page_tokens;

	return (uint32_t)((tokens + pt - 1) / pt);
}

/* When the job's pages are full, or its answer is complete. */
static void schedule(struct load *l, struct job *j)
{
	uint64_t room = (uint64_t)j->nr_pages * l->cfg->page_tokens - j->rq->input_tokens;
	uint64_t tokens = room < j->rq->output_tokens ? room : j->rq->output_tokens;

	push(l, (struct event){
			j->base_ns + (uint64_t)llround((double)tokens * 1e9 / l->cfg->decode_rate),
			j });
}

/* Full pages and a longer answer: one more. */
static bool wants_page(const struct load *l, const struct job *j)
{
	return (uint64_t)j->nr_pages * l->cfg->page_tokens <
	       (uint64_t)j->rq->input_tokens + j->rq->output_tokens;
}

/* ---- replies ------------------------------------------------------------------------------- */

static void note_wait(struct load *l, uint64_t ns)
{
	uint64_t max = l->max_waits ? 2 * l->max_waits : 1024, *more;

	if (l->nr_waits == l->max_waits) {
		more = realloc(l->waits, max * sizeof(*more));
		if (!more) {
			l->error = -ENOMEM;
			return;
		}
		l->waits = more;
		l->max_waits = max;
	}
	l->waits[l->nr_waits++] = ns;
}

static void leave(struct load *l, struct job *j)
{
	j->state = JOB_LEAVES;
	j->next_free = l->leaving;
	l->leaving = j;
}

static void on_alloc(struct world *w, const struct mm_reply *rp)
{
	struct load *l = w->ctx;
	struct job *j;

	if (rp->op != MM_ALLOC) {
		l->error = rp->result ? rp->result : l->error;
		return;
	}
	j = l->jobs[rp->cookie - 1];
	if (w->now_ns > j->asked_ns) {
		l->res->waited++;
		note_wait(l, w->now_ns - j->asked_ns);
	}
	l->nr_waiting--;
	if (rp->result) {
		l->res->refused += j->state == JOB_WAITS;
		l->res->aborted += j->state == JOB_STALLS;
		leave(l, j);
		return;
	}
	memcpy(j->pages + j->nr_pages, rp->pages, rp->nr_pages * sizeof(*j->pages));
	j->nr_pages += rp->nr_pages;
	j->base_ns = j->state == JOB_WAITS ? w->now_ns : j->base_ns + (w->now_ns - j->asked_ns);
	j->state = JOB_RUNS;
	l->nr_running++;
	schedule(l, j);
}

/* ---- what a job does ------------------------------------------------------------------------ */

static int ask(struct load *l, struct job *j, uint32_t nr)
{
	struct world *w = &l->worlds[j->world];
	struct mm_request rq = { .op = MM_ALLOC,
				 .cookie = (uint64_t)(j->rq - l->trace->requests) + 1,
				 .alloc = { nr, w->now_ns + l->cfg->wait_ns } };

	j->asked_ns = w->now_ns;
	l->nr_waiting++;
	return world_submit(w, j->engine, &rq);
}

static int drop(struct load *l, struct job *j)
{
	struct mm_request rq = { .op = MM_FREE,
				 .free = { .pages = j->pages, .nr_pages = j->nr_pages } };
	int err = j->nr_pages ? world_submit(&l->worlds[j->world], j->engine, &rq) : 0;

	l->jobs[j->rq - l->trace->requests] = NULL;
	free(j->pages);
	free(j);
	return err;
}

/* Those that got nothing leave, whereupon others may get something, or time out. */
static int drop_leaving(struct load *l)
{
	struct job *j;
	int err = 0;

	while ((j = l->leaving) && !err) {
		l->leaving = j->next_free;
		err = drop(l, j);
	}
	return err ? err : l->error;
}

static int arrive(struct load *l, uint32_t i)
{
	const struct trace_request *rq = &l->trace->requests[i];
	uint64_t tokens = (uint64_t)rq->input_tokens + rq->output_tokens;
	uint32_t world = l->cfg->apart ? i % l->cfg->nr_engines : 0;
	uint32_t now = pages_for(l, rq->input_tokens), most = pages_for(l, tokens);
	struct job *j;

	if (most > l->worlds[world].capacity_pages || most > MAX_BATCH) {
		l->res->oversized++;
		l->res->refused++;
		return 0;
	}
	if (!most) {
		l->res->served++;
		return 0;
	}
	j = calloc(1, sizeof(*j));
	if (!j)
		return -ENOMEM;
	*j = (struct job){ .rq = rq,
			   .state = JOB_WAITS,
			   .world = world,
			   .engine = l->cfg->apart ? 0 : i % l->cfg->nr_engines,
			   .pages = malloc(most * sizeof(*j->pages)) };
	l->jobs[i] = j;
	return j->pages ? ask(l, j, now ? now : 1) : -ENOMEM;
}

static int happen(struct load *l, struct job *j)
{
	l->nr_running--;
	if (wants_page(l, j)) {
		j->state = JOB_STALLS;
		return ask(l, j, 1);
	}
	l->res->served++;
	return drop(l, j);
}

/* ---- time ---------------------------------------------------------------------------------- */

static uint64_t used_pages(const struct load *l)
{
	uint64_t used = 0;
	uint32_t k;

	for (k = 0; k < l->nr_worlds; k++)
		used += world_used_pages(&l->worlds[k]);
	return used;
}

static void pass(struct load *l, uint64_t now_ns)
{
	double ns = (double)(now_ns - l->now_ns);

	l->area += (double)used_pages(l) * ns;
	l->some_ns += l->nr_waiting ? ns : 0;
	l->full_ns += l->nr_waiting && !l->nr_running ? ns : 0;
	l->now_ns = now_ns;
}

static uint64_t next_deadline(const struct load *l)
{
	uint64_t next = UINT64_MAX, due;
	uint32_t k;

	for (k = 0; k < l->nr_worlds; k++) {
		due = world_next_ns(&l->worlds[k]);
		next = due < next ? due : next;
	}
	return next;
}

/* The next thing that happens; false: nothing does any more. Without requests in flight mm's own
 * deadlines are of no interest. */
static bool next_time(const struct load *l, uint32_t i, uint64_t *at_ns)
{
	uint64_t due = l->nr_waiting ? next_deadline(l) : UINT64_MAX, t = UINT64_MAX;

	if (i < l->trace->nr_requests)
		t = l->trace->requests[i].at_ns;
	if (l->nr_heap && l->heap[0].at_ns < t)
		t = l->heap[0].at_ns;
	t = due < t ? due : t;
	*at_ns = t > l->now_ns ? t : l->now_ns;
	return t != UINT64_MAX;
}

static int run(struct load *l)
{
	uint64_t now, peak;
	uint32_t i = 0, k;
	int err = 0;

	while (!err && next_time(l, i, &now)) {
		pass(l, now);
		for (k = 0; k < l->nr_worlds; k++)
			world_advance(&l->worlds[k], now);
		err = drop_leaving(l);
		while (!err && l->nr_heap && l->heap[0].at_ns <= now) {
			err = happen(l, pop(l).job);
			err = err ? err : drop_leaving(l);
		}
		while (!err && i < l->trace->nr_requests && l->trace->requests[i].at_ns <= now) {
			err = arrive(l, i++);
			err = err ? err : drop_leaving(l);
			if (l->cfg->progress)
				l->cfg->progress(l->cfg->ctx, i);
		}
		peak = used_pages(l);
		l->res->peak_pages = peak > l->res->peak_pages ? peak : l->res->peak_pages;
	}
	return err || !l->nr_waiting ? err : -EPROTO; /* mm has forgotten a request */
}

/* ---- begin and end ------------------------------------------------------------------------- */

static int open_worlds(struct load *l)
{
	const struct replay_config *cfg = l->cfg;
	uint32_t nr = cfg->apart ? cfg->nr_engines : 1, i, pages;
	struct world_config wc = { .page_bytes = cfg->page_bytes,
				   .policy = cfg->policy,
				   .nr_engines = cfg->apart ? 1 : cfg->nr_engines,
				   .on_reply = on_alloc,
				   .ctx = l };
	int err;

	for (i = 0; i < l->trace->nr_requests; i++) {
		pages = pages_for(l, (uint64_t)l->trace->requests[i].input_tokens +
					     l->trace->requests[i].output_tokens);
		if (pages > MAX_BATCH || pages > cfg->capacity_pages)
			continue;
		wc.most_pages += pages;
		wc.batch_pages = pages > wc.batch_pages ? pages : wc.batch_pages;
	}
	wc.max_waiting = l->trace->nr_requests < MAX_WAITING ? l->trace->nr_requests : MAX_WAITING;
	l->worlds = calloc(nr, sizeof(*l->worlds));
	l->jobs = calloc(l->trace->nr_requests, sizeof(struct job *));
	l->heap = calloc(l->trace->nr_requests, sizeof(*l->heap));
	if (!l->worlds || !l->jobs || !l->heap)
		return -ENOMEM;
	for (; l->nr_worlds < nr; l->nr_worlds++) {
		wc.capacity_pages = replay_part(cfg->capacity_pages, nr, l->nr_worlds);
		err = world_open(&l->worlds[l->nr_worlds], &wc);
		if (err)
			return err;
		l->res->capacity_pages += l->worlds[l->nr_worlds].capacity_pages;
	}
	return 0;
}

static int ascending(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static uint64_t percentile(const struct load *l, unsigned int p)
{
	uint64_t at = (l->nr_waits * p + 99) / 100; /* nearest rank */

	return l->nr_waits ? l->waits[at ? at - 1 : 0] : 0;
}

static void sum_up(struct load *l)
{
	struct replay_result *res = l->res;
	uint32_t k;

	if (l->nr_waits)
		qsort(l->waits, l->nr_waits, sizeof(*l->waits), ascending);
	res->wait_p50_ns = percentile(l, 50);
	res->wait_p90_ns = percentile(l, 90);
	res->wait_p99_ns = percentile(l, 99);
	res->wait_max_ns = percentile(l, 100);
	res->mean_pages = l->now_ns ? l->area / (double)l->now_ns : 0;
	res->some_share = l->now_ns ? l->some_ns / (double)l->now_ns : 0;
	res->full_share = l->now_ns ? l->full_ns / (double)l->now_ns : 0;
	for (k = 0; k < l->nr_worlds; k++) {
		res->ops += l->worlds[k].nr_ops;
		res->evictions += mm_vmstat(l->worlds[k].mm)->pages_evict;
	}
}

static void close_all(struct load *l)
{
	uint32_t i;

	for (i = 0; l->jobs && i < l->trace->nr_requests; i++)
		if (l->jobs[i]) {
			free(l->jobs[i]->pages);
			free(l->jobs[i]);
		}
	while (l->nr_worlds)
		world_close(&l->worlds[--l->nr_worlds]);
	free(l->worlds);
	free(l->jobs);
	free(l->heap);
	free(l->waits);
}

int replay_lengths(const struct trace *t, const struct replay_config *cfg,
		   struct replay_result *res)
{
	struct load l = { .trace = t, .cfg = cfg, .res = res };
	struct timespec from, to;
	uint32_t i;
	int err;

	*res = (struct replay_result){ 0 };
	clock_gettime(CLOCK_MONOTONIC, &from);
	for (i = 0; i < t->nr_requests; i++)
		res->tokens += t->requests[i].input_tokens;
	err = open_worlds(&l);
	if (!err)
		err = run(&l);
	if (!err)
		sum_up(&l);
	close_all(&l);
	clock_gettime(CLOCK_MONOTONIC, &to);
	res->wall_ns = (uint64_t)(to.tv_sec - from.tv_sec) * 1000000000u + (uint64_t)to.tv_nsec -
		       (uint64_t)from.tv_nsec;
	return err;
}
