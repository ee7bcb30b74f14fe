/* SPDX-License-Identifier: Apache-2.0 */
/* trace - how many instructions a call takes, and how many cache lines of a block it touches
 *
 * Model:      instructions: the processor's trap flag stops the thread after each one, the handler
 *             counts. Lines: the block is made inaccessible, each access to it is noted by address,
 *             let through alone, and shut out again. Both are exact, need no privileges and no
 *             quiet machine: the same call gives the same number.
 * Cost:       a microsecond an instruction, several an access.
 * Context:    one thread; SIGTRAP and SIGSEGV are taken for the time of a call. The call makes no
 *             system call on the block.
 * Limits:     x86-64 Linux, and not under valgrind: trace_works() says. An access that straddles
 *             two lines counts the first.
 */
#ifndef TRACE_H
#define TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool trace_works(void);
uint64_t trace_instructions(void (*fn)(void *), void *arg);
/* nr calls; the sum of each one's distinct 64-byte lines of [base, base + len), which is whole
 * pages. 0: it did not work. */
uint64_t trace_lines(void *base, size_t len, uint32_t nr, void (*fn)(void *), void *arg);

#endif
