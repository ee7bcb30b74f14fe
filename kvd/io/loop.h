/* SPDX-License-Identifier: Apache-2.0 */
/* loop - the only clock and the only waiter: io_uring, one thread
 *
 * Model:      an operation is started by loop_poll/accept/recv/send/signal/timeout, gets an id and
 *             ends in its callback. loop_wait submits what was started, sleeps until something
 *             completes or a time comes, and runs the callbacks.
 * Invariants: after loop_cancel(id) the callback is never called again, whatever the kernel still
 *             has in flight; ids carry a generation, so an old id hits nothing. The memory and fds
 *             of an operation belong to the loop until the kernel is done with them, so a caller
 *             may free its own state at any time.
 * Ownership:  the loop copies what is sent; fds given to loop_send with close_fds are the loop's.
 *             Use loop_close for an fd that operations may still name.
 * Context:    created anywhere, then used by the one thread that first calls loop_wait until
 *             loop_stop. Callbacks run inside loop_wait only. Never blocks but in loop_wait.
 * Units:      ns of CLOCK_MONOTONIC.
 * Cost:       one io_uring_enter a sleep; none while nothing is pending (loop_wait until 0).
 * Limits:     max_ops operations; beyond that an id of 0 comes back and nothing was started. What
 *             the kernel does not take at once (its queue is full, it has no memory) is tried again
 *             by each loop_wait.
 * Errors:     res of a callback: >= 0 by operation, or -errno.
 * See:        tests/unit/io/loop_test.c
 */
#ifndef LOOP_H
#define LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOOP_NEVER	UINT64_MAX
#define LOOP_MAX_FDS	4u

struct loop;

struct loop_msg {		/* what loop_recv got; valid during the callback */
	const void *data;
	size_t len;
	bool truncated;		/* the packet was longer than room */
	bool control;		/* fds or other control data came along; the kernel dropped them */
};

typedef void loop_fn(void *ctx, int res, const struct loop_msg *msg);

int loop_create(struct loop **, unsigned int max_ops);	/* -EPERM, -ENOSYS: no io_uring */
const char *loop_create_hint(int err);			/* the way out, for people */
void loop_stop(struct loop *);	/* by the loop's thread: cancels all, waits for the kernel */
void loop_destroy(struct loop *);

uint64_t loop_now(void);

/* Sleep until something happened or until_ns has come (0: do not sleep); run callbacks. */
int loop_wait(struct loop *, uint64_t until_ns);
uint64_t loop_wakeups(const struct loop *);	/* times it slept and woke */
unsigned int loop_nr_ops(const struct loop *);	/* in flight, cancelled ones included */

/* Readable, again and again until cancelled: eventfds (which need no draining), pidfds, signals. */
uint64_t loop_poll(struct loop *, int fd, loop_fn *, void *ctx);
uint64_t loop_accept(struct loop *, int fd, loop_fn *, void *ctx);		/* once; res: fd */
/* Once; res: bytes. */
uint64_t loop_recv(struct loop *, int fd, size_t room, loop_fn *, void *ctx);
uint64_t loop_send(struct loop *, int fd, const void *data, size_t len, const int *fds,
		   unsigned int nr_fds, bool close_fds, loop_fn *, void *ctx);	/* once */
/* Once: adds 1, waits while the counter is full. */
uint64_t loop_signal(struct loop *, int eventfd, loop_fn *, void *ctx);
uint64_t loop_timeout(struct loop *, uint64_t at_ns, loop_fn *, void *ctx);	/* once; res 0 */

void loop_cancel(struct loop *, uint64_t id);
void loop_close(struct loop *, int fd);		/* after what was started on it is submitted */

#endif
