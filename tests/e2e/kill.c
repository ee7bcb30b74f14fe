/* SPDX-License-Identifier: Apache-2.0 */
/* kill - SIGKILL an engine at chosen points of its life and look at what is left
 *
 *	kill SOCKET CHURN CHURN_HOOKED --points N --seed S
 *
 * Points: before and after the nth publication of ring entries, and the nth system call (ptrace).
 * Two bystanders churn all the time. After each death: the engine disappears from the daemon's
 * table (deadline 20 times the goal of 100 ms), mm_check holds, nothing stays quarantined. At the
 * end the bystanders must have finished right and nothing may be held.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "admin.h"

#define OPS	    "120"
#define BYSTANDERS  2
#define DEADLINE_MS 2000u

enum mode { RING_BEFORE, RING_AFTER, SYSCALL, NR_MODES };
static const char *const mode_name[] = { "before ring publication", "after ring publication",
					 "at system call" };

static const char *churn, *hooked;
static char spec[200];
static int admin;
static uint64_t rng;
static double back_ms[4096];
static unsigned int nr_back;

static uint32_t random_below(uint32_t n)
{
	rng = rng * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((rng >> 33) % n);
}

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void fail(const char *what, const char *more)
{
	printf("not ok kill: %s %s\n", what, more);
	kill(0, SIGTERM);
	exit(1);
}

static pid_t spawn(const char *prog, const char *seed, const char *ops, const char *name,
		   bool traced, long ring)
{
	pid_t pid = fork();
	char env[32];

	if (pid)
		return pid;
	if (ring) {
		snprintf(env, sizeof(env), "%ld", ring);
		setenv("KILL_RING", env, 1);
	}
	if (traced) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		raise(SIGSTOP);
	}
	execl(prog, prog, spec, seed, ops, name, (char *)NULL);
	_exit(127);
}

/* Let a traced child run; kill it at its nth stop at a system call's entry. How many it made. */
static long trace(pid_t pid, long at)
{
	long n = 0, sig = 0;
	bool entry = true;
	int st;

	waitpid(pid, &st, 0);
	ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
	for (;;) {
		if (ptrace(PTRACE_SYSCALL, pid, NULL, sig) || waitpid(pid, &st, 0) < 0)
			return n;
		sig = 0;
		if (WIFEXITED(st) || WIFSIGNALED(st))
			return n;
		if (!WIFSTOPPED(st))
			continue;
		if (WSTOPSIG(st) != (SIGTRAP | 0x80)) {
			sig = WSTOPSIG(st) == SIGTRAP ? 0 : WSTOPSIG(st);
			continue;
		}
		if (entry && ++n == at) {
			kill(pid, SIGKILL);
			waitpid(pid, &st, 0);
			return n;
		}
		entry = !entry;
	}
}

static long count_ring(const char *seed)
{
	long n = -1;
	int out[2];
	FILE *f;
	pid_t pid;

	if (pipe(out))
		fail("pipe", strerror(errno));
	pid = fork();
	if (!pid) {
		dup2(out[1], STDERR_FILENO);
		setenv("COUNT_RING", "1", 1);
		execl(hooked, hooked, spec, seed, OPS, "count", (char *)NULL);
		_exit(127);
	}
	close(out[1]);
	f = fdopen(out[0], "r");
	if (!f || fscanf(f, "ring %ld", &n) != 1)
		n = -1;
	if (f)
		fclose(f);
	waitpid(pid, NULL, 0);
	if (n <= 0)
		fail("counting ring publications of", hooked);
	return n;
}

static long count_syscalls(const char *seed)
{
	long n = trace(spawn(churn, seed, OPS, "count", true, 0), -1);

	if (n <= 0)
		fail("counting system calls of", churn);
	return n;
}

/* Is an engine of this name (NULL: any at all) still known? Also sums what is quarantined. */
static bool engine_there(const char *name, uint64_t *quarantined)
{
	struct kv_admin_engine *g;
	bool there = false;
	uint32_t nr, i;

	if (admin_get(admin, KV_ADMIN_ENGINES, sizeof(*g), (void **)&g, &nr))
		fail("admin:", admin_error());
	*quarantined = 0;
	for (i = 0; i < nr; i++) {
		there |= !name || !strcmp(g[i].name, name);
		*quarantined += g[i].quarantined_pages;
	}
	free(g);
	return there;
}

static void check(void)
{
	struct kv_admin_status *s;
	uint32_t nr;

	if (admin_get(admin, KV_ADMIN_CHECK, sizeof(*s), (void **)&s, &nr))
		fail("mm_check:", admin_error());
	free(s);
}

static void wait_gone(const char *name, const char *point)
{
	struct timespec nap = { 0, 1000000 };
	double t = now_ms();
	uint64_t quarantined;

	while (engine_there(name, &quarantined) || quarantined) {
		if (now_ms() - t > DEADLINE_MS)
			fail("the engine's pages did not come back after death", point);
		nanosleep(&nap, NULL);
	}
	if (nr_back < sizeof(back_ms) / sizeof(back_ms[0]))
		back_ms[nr_back++] = now_ms() - t;
}

static void one_point(enum mode mode, long at, const char *seed)
{
	char point[96];
	pid_t pid;
	int st;

	snprintf(point, sizeof(point), "%s %ld", mode_name[mode], at);
	if (mode == SYSCALL) {
		trace(spawn(churn, seed, OPS, "victim", true, 0), at);
	} else {
		pid = spawn(hooked, seed, OPS, "victim", false, mode == RING_BEFORE ? at : -at);
		waitpid(pid, &st, 0);
		if (!WIFSIGNALED(st) && !(WIFEXITED(st) && WEXITSTATUS(st) == 0))
			fail("the victim failed by itself", point);
	}
	wait_gone("victim", point);
	check();
	printf("  killed %s\n", point);
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Bystanders run in rounds of their own until they are told to stop. */
static pid_t bystander(int i)
{
	char name[32], seed[32];
	pid_t pid = fork(), c;
	int st, round;

	if (pid)
		return pid;
	snprintf(name, sizeof(name), "bystander-%d", i);
	for (round = 0; access("/proc/self", F_OK) == 0 && getppid() != 1; round++) {
		snprintf(seed, sizeof(seed), "%d", 1000 * (i + 1) + round);
		c = spawn(churn, seed, "400", name, false, 0);
		waitpid(c, &st, 0);
		if (!WIFEXITED(st) || WEXITSTATUS(st))
			_exit(1);
		if (getenv("BYSTANDER_STOP") && access(getenv("BYSTANDER_STOP"), F_OK) == 0)
			_exit(0);
	}
	_exit(2);
}

static void finish(const pid_t *by, const char *stop, unsigned int points)
{
	struct kv_admin_meminfo *m;
	uint32_t nr;
	FILE *f = fopen(stop, "w");
	int i, st;

	if (f)
		fclose(f);
	for (i = 0; i < BYSTANDERS; i++) {
		waitpid(by[i], &st, 0);
		if (!WIFEXITED(st) || WEXITSTATUS(st))
			fail("a bystander was disturbed", "");
	}
	unlink(stop);
	wait_gone(NULL, "of everybody");
	check();
	if (admin_get(admin, KV_ADMIN_MEMINFO, sizeof(*m), (void **)&m, &nr))
		fail("admin:", admin_error());
	if (m->held_bytes || m->leased_bytes || m->quarantined_bytes)
		fail("pages are still held, leased or quarantined at the end", "");
	free(m);
	qsort(back_ms, nr_back, sizeof(*back_ms), ascending);
	printf("  %u points; pages back after %.1f ms (median), %.1f ms (worst)\n", points,
	       back_ms[nr_back / 2], back_ms[nr_back - 1]);
	puts("ok kill: every death left the pool right and the bystanders undisturbed");
}

int main(int argc, char **argv)
{
	unsigned int points = 20, i;
	unsigned long seed = 1;
	pid_t by[BYSTANDERS];
	char path[200], stop[200], s[32];
	long ring, calls, at;

	if (argc < 4) {
		fputs("usage: kill SOCKET CHURN CHURN_HOOKED [POINTS [SEED]]\n", stderr);
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	snprintf(spec, sizeof(spec), "unix:%s", argv[1]);
	snprintf(path, sizeof(path), "%s.admin", argv[1]);
	snprintf(stop, sizeof(stop), "%s.stop", argv[1]);
	churn = argv[2];
	hooked = argv[3];
	points = argc > 4 ? (unsigned int)atoi(argv[4]) : points;
	seed = argc > 5 ? strtoul(argv[5], NULL, 10) : seed;
	rng = seed * 2654435761u + 99;
	setenv("BYSTANDER_STOP", stop, 1);
	admin = admin_connect(path);
	if (admin < 0)
		fail("admin:", admin_error());
	ring = count_ring("1");
	calls = count_syscalls("1");
	printf("  a victim publishes %ld times and makes %ld system calls; seed %lu\n", ring, calls,
	       seed);
	for (i = 0; i < BYSTANDERS; i++)
		by[i] = bystander((int)i);
	for (i = 0; i < points; i++) {
		enum mode mode = i % NR_MODES;

		at = 1 + random_below((uint32_t)(mode == SYSCALL ? calls : ring));
		snprintf(s, sizeof(s), "%u", 1 + i / 7);
		one_point(mode, at, s);
	}
	finish(by, stop, points);
	return 0;
}
