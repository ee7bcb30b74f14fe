/* SPDX-License-Identifier: Apache-2.0 */
/* call - one request to the pool: reserve its room in the data area, run it, read the answer
 *
 * Model:      call_begin -> fill c->in, c->sqe -> call_run -> read c->cqe, c->out -> call_end.
 *             The data area is a stack, so a call made while another one waits (an event, the
 *             engine's pressure callback) takes its room above it.
 * Invariants: begin and end pair up, innermost first; c stays where it is in between.
 * Context:    one thread per kv; call_run blocks until the answer is there or the link is dead.
 * Errors:     0/-errno with kv_error() text: -EPIPE link gone, -EINVAL after fork or when
 *             the request does not fit the data area, else what the pool said.
 */
#ifndef CALL_H
#define CALL_H

#include "internal.h"

struct call {
	struct kv *kv;
	struct kv_sqe sqe;
	struct kv_cqe cqe;
	void *in, *out;
	uint64_t mark;
	struct call *outer;
	bool done;
};

/* -EPIPE when the link is dead, -EINVAL in a forked child. */
int call_check(struct kv *);

int call_begin(struct kv *, struct call *, enum kv_op op, uint64_t in_bytes, uint64_t out_bytes);
int call_run(struct call *);
void call_end(struct call *);

/* Begin, run, end of a request without arrays. cqe may be NULL. */
int call_plain(struct kv *, const struct kv_sqe *, struct kv_cqe *cqe);

/* Room left for a request now. */
uint64_t call_room(const struct kv *);

/* An answer came (link_ops): find its call. False: nobody asked. */
bool call_answer(struct kv *, const struct kv_cqe *);

/* kv_error() text for a refused request; returns cqe->res. */
int call_refused(const struct call *);

#endif
