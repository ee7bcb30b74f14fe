/* SPDX-License-Identifier: Apache-2.0 */
/* queue - the client's end of a session's rings
 *
 * Model:      push entries, publish them together, reap answers in the order they come. Waiting
 *             spins for a while (as long as it lately paid), then sleeps in poll on the completion
 *             eventfd and the socket, so that the daemon's death ends every wait.
 * Invariants: pushed entries are invisible until queue_publish. Protocol and barriers: kv_ring.h.
 * Ownership:  borrows the shared memory and the fds from remote.c.
 * Context:    one thread. push, publish (but for a wake-up write) and reap make no system call.
 * Errors:     -EAGAIN ring full; -EPIPE daemon or session gone; -EPROTO ring broken by the peer.
 * See:        ipc/kv_ring.h; tests/unit/libkv/queue_test.c; kvbench drives push/reap in batches.
 */
#ifndef QUEUE_H
#define QUEUE_H

#include <stdbool.h>
#include <stdint.h>
#include "kv_abi.h"
#include "kv_ring.h"

#define QUEUE_SPIN_MAX_NS 20000u
#define QUEUE_SPIN_MIN_NS 500u

struct queue {
	struct kv_shm_header *hdr;
	struct kv_sqe *sqes;
	const struct kv_cqe *cqes;
	struct kv_ring sq, cq;
	uint32_t staged;  /* pushed, not yet published */
	uint32_t spin_ns; /* how long the next wait spins */
	int sq_fd, cq_fd, sock;
	bool armed; /* somebody may sleep on cq_fd outside queue_wait */
	bool dead;
};

void queue_init(struct queue *, void *shm, const struct kv_msg_welcome *, const int fds[2],
		int sock);

int queue_push(struct queue *, const struct kv_sqe *);
int queue_publish(struct queue *);

/* Up to max answers that are there now: how many, or -errno (answers come before -EPIPE). */
int queue_reap(struct queue *, struct kv_cqe *, uint32_t max);

/* 0 when there is something to reap, or (events) an event is pending. */
int queue_wait(struct queue *, bool events);

/* KV_EVENT_PENDING is set. */
bool queue_event(const struct queue *);

/* From now on the completion eventfd is armed between calls, for an engine that sleeps on
 * kv_event_fd(): queue_rest() arms it again and makes it readable if an event came meanwhile. */
void queue_arm(struct queue *);
void queue_rest(struct queue *);

#endif
