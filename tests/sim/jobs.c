// SPDX-License-Identifier: Apache-2.0
/* A range of seeds, in chunks; a process a chunk, so that a crash costs a chunk and no more. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

#define MAX_JOBS    64
#define CHUNK_STEPS 200000 /* about as many in a chunk, each done twice */
#define SAY_SECONDS 10

struct job {
	pid_t pid;
	uint64_t first, last;
};

struct jobs {
	struct sim *sim;
	const struct sim_options *opt;
	struct coverage total, *slot; /* a slot a job, shared with its process */
	struct job job[MAX_JOBS];
	uint64_t chunk, next, skipped;
	struct job *done; /* chunks that an earlier run did without failure */
	uint32_t nr_done;
	FILE *resume;
	double start, said;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void add(struct coverage *to, const struct coverage *from)
{
	const uint64_t *f = (const uint64_t *)from;
	uint64_t *t = (uint64_t *)to;

	for (size_t i = 0; i < sizeof(*to) / sizeof(*t); i++)
		t[i] += f[i];
}

static void print_coverage(const struct coverage *c, double seconds)
{
	const struct totals *t = &c->sum;

	printf("mmsim: %" PRIu64 " seeds, %" PRIu64 " failed, %" PRIu64
	       " steps twice, %.0f steps/s\n",
	       c->seeds, c->failed, c->steps, 2 * (double)c->steps / seconds);
	printf("  ok/refused by op:");
	for (uint32_t op = 1; op < MM_NR_OPS; op++)
		printf(" %u:%" PRIu64 "/%" PRIu64, op, c->ok[op], c->err[op]);
	printf("\n  granted %" PRIu64 " freed %" PRIu64 " committed %" PRIu64 " dup %" PRIu64
	       " adopted %" PRIu64 " evicted %" PRIu64 " quarantined %" PRIu64 " extents %" PRIu64
	       " destroyed %" PRIu64 " failed creates %" PRIu64 " scrubs %" PRIu64
	       " orphans %" PRIu64 " deferred %" PRIu64 " events %" PRIu64 "\n"
	       "  failed destroys %" PRIu64 " failed scrubs %" PRIu64 " pages read %" PRIu64
	       " scribbles %" PRIu64 " clock jumps %" PRIu64 " clock lies %" PRIu64 "\n"
	       "  moves %" PRIu64 " done %" PRIu64 " failed %" PRIu64 " kills %" PRIu64
	       " vacates %" PRIu64 " pages %" PRIu64 " promises %" PRIu64
	       " pages redeemed %" PRIu64 "\n"
	       "  closes that give back %" PRIu64 " cancelled %" PRIu64 "\n"
	       "  trail %016" PRIx64 "\n",
	       t->granted, t->freed, t->committed, t->dup_pages, t->adopted, c->evicts,
	       t->quarantined, t->extents, t->destroys, t->failed_creates, t->scrubs, t->orphans,
	       t->deferred, t->events, t->failed_destroys, t->failed_scrubs, t->reads, t->scribbles,
	       t->jumps, t->backward, t->moves, t->moved, t->failed_moves, t->kills,
	       t->vacates, t->vacated,
	       t->promised, t->redeemed, t->given_back, t->cancelled, c->trail);
}

/* ---- the file that says what is done: a line a chunk ----------------------------------------- */

static bool resume_line(struct jobs *j, const char *line)
{
	uint64_t first, last, ops, failed;

	if (sscanf(line, "seeds %" SCNu64 "..%" SCNu64 " ops %" SCNu64 " failed %" SCNu64, &first,
		   &last, &ops, &failed) != 4)
		return false;
	if (ops != j->opt->nr_ops || failed)
		return true;
	j->done = realloc(j->done, (j->nr_done + 1) * sizeof(*j->done));
	if (!j->done)
		abort();
	j->done[j->nr_done++] = (struct job){0, first, last};
	return true;
}

static bool resume_open(struct jobs *j)
{
	char line[256];

	if (!j->opt->resume)
		return true;
	j->resume = fopen(j->opt->resume, "a+");
	if (!j->resume) {
		fprintf(stderr, "mmsim: %s: %s\n", j->opt->resume, strerror(errno));
		return false;
	}
	rewind(j->resume);
	while (fgets(line, sizeof(line), j->resume))
		if (!resume_line(j, line)) {
			fprintf(stderr, "mmsim: %s: what is this: %s", j->opt->resume, line);
			return false;
		}
	return true;
}

static bool is_done(const struct jobs *j, const struct job *job)
{
	for (uint32_t i = 0; i < j->nr_done; i++)
		if (j->done[i].first <= job->first && j->done[i].last >= job->last)
			return true;
	return false;
}

/* ---- processes ------------------------------------------------------------------------------- */

static void run_chunk(struct jobs *j, const struct job *job, struct coverage *c)
{
	for (uint64_t seed = job->first; seed <= job->last; seed++)
		if (!run_seed_twice(j->sim, j->opt, seed, c) && j->opt->stop)
			exit(1);
}

static bool take_next(struct jobs *j, struct job *job)
{
	while (j->next <= j->opt->last_seed) {
		job->first = j->next;
		job->last = (job->first / j->chunk + 1) * j->chunk - 1;
		if (job->last > j->opt->last_seed)
			job->last = j->opt->last_seed;
		j->next = job->last + 1;
		if (!is_done(j, job))
			return true;
		j->skipped += job->last - job->first + 1;
	}
	return false;
}

static bool start(struct jobs *j, uint32_t i)
{
	if (!take_next(j, &j->job[i]))
		return false;
	memset(&j->slot[i], 0, sizeof(j->slot[i]));
	fflush(stdout);
	j->job[i].pid = fork();
	if (j->job[i].pid < 0) {
		perror("mmsim: fork");
		exit(1);
	}
	if (!j->job[i].pid) {
		run_chunk(j, &j->job[i], &j->slot[i]);
		fflush(stdout);
		_exit(0);
	}
	return true;
}

static void say(struct jobs *j, bool last)
{
	double t = now(), rate = 2 * (double)j->total.steps / (t - j->start);
	uint64_t all = j->opt->last_seed - j->opt->first_seed + 1;

	if (!j->opt->progress && !last && t - j->said < SAY_SECONDS)
		return;
	j->said = t;
	fprintf(stderr, "%smmsim: seeds %" PRIu64 " of %" PRIu64 ", %" PRIu64 " steps twice, %"
		PRIu64 " failed, %.0f steps/s%s", j->opt->progress ? "\r" : "",
		j->total.seeds + j->skipped, all, j->total.steps, j->total.failed, rate,
		j->opt->progress && !last ? "  " : "\n");
}

static void finish(struct jobs *j, uint32_t i, int status)
{
	const struct job *job = &j->job[i];

	if (!WIFEXITED(status) || WEXITSTATUS(status)) {
		printf("mmsim: FAILED seeds %" PRIu64 "..%" PRIu64 ": the process ended with %x\n",
		       job->first, job->last, status);
		j->slot[i].failed++;
	}
	add(&j->total, &j->slot[i]);
	if (j->resume) {
		fprintf(j->resume, "seeds %" PRIu64 "..%" PRIu64 " ops %" PRIu64 " failed %" PRIu64
			"\n", job->first, job->last, j->opt->nr_ops, j->slot[i].failed);
		fflush(j->resume);
	}
	j->job[i].pid = 0;
	say(j, false);
}

static void run_all(struct jobs *j)
{
	uint32_t running = 0;

	while (running < j->opt->jobs && start(j, running))
		running++;
	while (running) {
		int status;
		pid_t pid = wait(&status);

		for (uint32_t i = 0; i < j->opt->jobs; i++) {
			if (!j->job[i].pid || j->job[i].pid != pid)
				continue;
			finish(j, i, status);
			running -= !start(j, i);
			break;
		}
	}
}

int jobs_run(struct sim *s, const struct sim_options *opt)
{
	static struct jobs j;

	j = (struct jobs){.sim = s, .opt = opt, .next = opt->first_seed, .start = now()};
	j.said = j.start;
	j.chunk = opt->nr_ops >= CHUNK_STEPS ? 1 : CHUNK_STEPS / (opt->nr_ops ? opt->nr_ops : 1);
	j.slot = mmap(NULL, MAX_JOBS * sizeof(*j.slot), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (j.slot == MAP_FAILED || opt->jobs > MAX_JOBS || !resume_open(&j))
		return 2;
	if (opt->jobs) {
		run_all(&j);
	} else {
		for (struct job job; take_next(&j, &job);)
			run_chunk(&j, &job, &j.total);
	}
	if (opt->jobs)
		say(&j, true);
	print_coverage(&j.total, now() - j.start);
	if (j.skipped)
		printf("  %" PRIu64 " seeds were done before\n", j.skipped);
	return j.total.failed != 0;
}
