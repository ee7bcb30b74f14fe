/* SPDX-License-Identifier: Apache-2.0 */
/* threads - the workers that help a call to compute, one crew a process
 *
 * Model:      A job is a function and a number of items. Whoever takes part draws the next item
 *             until there are none. The caller always does; workers join if they wake in time:
 *
 *               parked --job--> joining --allowed--> working --no items left--> parked
 *                                  +-----closed-----------------------------------^
 *
 *             The caller closes the job when it finds no item left, and waits for those that joined
 *             only: a worker that is late costs nothing.
 * Invariants: T1 a job's fields are read only between joining and leaving, and the caller does not
 *                return before all who joined have left
 *             T2 one job at a time: a second caller computes on its own, so threads never exceed
 *                the limit but by the callers themselves
 * Ownership:  workers start with the first job that wants them and are joined by threads_stop(),
 *             by a lower limit and when the library is unloaded. They block all signals.
 *             A forked child has none and starts its own.
 * Context:    any thread; no thread of the crew may call.
 */
#ifndef THREADS_H
#define THREADS_H

#include <stdint.h>

#define THREADS_MAX 1024u

/* Threads a call may use, its own included: kv_threads_set(), else KV_THREADS, else 1. -EINVAL if
 * KV_THREADS is no number; kv_error() says so. */
int threads_limit(void);

/* fn(ctx, i) for each i below items, on up to most threads, never more than THREADS_MAX. The limit
 * is the caller's to keep: most is taken as it is. */
void threads_run(void (*fn)(void *ctx, uint32_t i), void *ctx, uint32_t items, uint32_t most);

void threads_stop(void);

#endif
