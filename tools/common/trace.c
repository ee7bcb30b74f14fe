/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define LINE	  64u
#define TRAP_FLAG 0x100
#define MAX_OPEN  4u /* pages one instruction may reach into */

#ifdef __x86_64__

static volatile uint64_t nr_steps;

static struct {
	char *base;
	size_t len, page;
	uint32_t *seen; /* a number a line: of the call that touched it last */
	uint32_t call;
	uint64_t nr;
	char *open[MAX_OPEN]; /* pages let through for one instruction */
	unsigned int nr_open;
} block;

static void count_step(int sig)
{
	(void)sig;
	nr_steps++;
}

/* The red zone below the stack pointer may be in use: stay clear of it. */
static void trap_on(void)
{
	__asm__ volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\torq $0x100, (%%rsp)\n\tpopfq\n\t"
			 "lea 128(%%rsp), %%rsp" : : : "memory", "cc");
}

static void trap_off(void)
{
	__asm__ volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\tandq $-257, (%%rsp)\n\tpopfq\n\t"
			 "lea 128(%%rsp), %%rsp" : : : "memory", "cc");
}

static uint64_t count(void (*fn)(void *), void *arg)
{
	struct sigaction sa = { .sa_handler = count_step }, old;

	nr_steps = 0;
	sigaction(SIGTRAP, &sa, &old);
	trap_on();
	fn(arg);
	trap_off();
	sigaction(SIGTRAP, &old, NULL);
	return nr_steps;
}

static void nothing(void *arg)
{
	(void)arg;
}

uint64_t trace_instructions(void (*fn)(void *), void *arg)
{
	uint64_t empty = count(nothing, NULL);

	return count(fn, arg) - empty;
}

static void on_access(int sig, siginfo_t *si, void *ctx)
{
	ucontext_t *uc = ctx;
	size_t at = (size_t)((char *)si->si_addr - block.base);
	char *page = block.base + at / block.page * block.page;

	(void)sig;
	if (at >= block.len || block.nr_open == MAX_OPEN) {
		signal(SIGSEGV, SIG_DFL); /* not ours: happens again, for good */
		return;
	}
	if (block.seen[at / LINE] != block.call)
		block.nr++;
	block.seen[at / LINE] = block.call;
	mprotect(page, block.page, PROT_READ | PROT_WRITE);
	block.open[block.nr_open++] = page;
	uc->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static void after_access(int sig, siginfo_t *si, void *ctx)
{
	ucontext_t *uc = ctx;

	(void)sig;
	(void)si;
	while (block.nr_open)
		mprotect(block.open[--block.nr_open], block.page, PROT_NONE);
	uc->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}

uint64_t trace_lines(void *base, size_t len, uint32_t nr, void (*fn)(void *), void *arg)
{
	struct sigaction access = { .sa_sigaction = on_access, .sa_flags = SA_SIGINFO };
	struct sigaction after = { .sa_sigaction = after_access, .sa_flags = SA_SIGINFO };
	struct sigaction old_access, old_after;

	block.base = base;
	block.len = len;
	block.page = (size_t)sysconf(_SC_PAGESIZE);
	block.nr = block.nr_open = 0;
	block.seen = calloc(len / LINE + 1, sizeof(*block.seen));
	if (!block.seen)
		return 0;
	sigaction(SIGSEGV, &access, &old_access);
	sigaction(SIGTRAP, &after, &old_after);
	if (!mprotect(base, len, PROT_NONE)) {
		for (block.call = 1; block.call <= nr; block.call++)
			fn(arg);
		mprotect(base, len, PROT_READ | PROT_WRITE);
	}
	sigaction(SIGSEGV, &old_access, NULL);
	sigaction(SIGTRAP, &old_after, NULL);
	free(block.seen);
	return block.nr;
}

static void three_additions(void *arg)
{
	__asm__ volatile("add $1, %0\n\tadd $1, %0\n\tadd $1, %0" : "+r"(arg) : : "cc");
}

static void six_additions(void *arg)
{
	three_additions(arg);
	three_additions(arg);
}

bool trace_works(void)
{
	uint64_t three = trace_instructions(three_additions, NULL);

	return three >= 3 && trace_instructions(six_additions, NULL) >= three + 3;
}

#else

bool trace_works(void)
{
	return false;
}

uint64_t trace_instructions(void (*fn)(void *), void *arg)
{
	fn(arg);
	return 0;
}

uint64_t trace_lines(void *base, size_t len, uint32_t nr, void (*fn)(void *), void *arg)
{
	(void)base;
	(void)len;
	while (nr--)
		fn(arg);
	return 0;
}

#endif
