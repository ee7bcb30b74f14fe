/* SPDX-License-Identifier: Apache-2.0 */
/* chan - the shared memory of one session: header, rings and data area, from the daemon's end
 *
 * Model:      | kv_shm_header | SQ | CQ | data area | in one memfd, and an eventfd a direction.
 * Invariants: the memfd cannot be resized by anybody, so no access of ours can fault. An SQ entry
 *             is copied out before anybody looks at it. A CQ entry is never overwritten before
 *             the client has given its slot back.
 * Ownership:  the chan owns mapping and fds; the client gets duplicates by SCM_RIGHTS.
 * Context:    one thread; no system call but in create and destroy.
 * Errors:     -EPROTO: the client broke an index; -ENOSPC: no room in the CQ.
 * See:        ipc/kv_ring.h (protocol, barriers), tests/unit/srv/session_test.c
 */
#ifndef CHAN_H
#define CHAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kv_abi.h"
#include "kv_ring.h"

struct chan {
	int memfd, sq_fd, cq_fd;	/* sq_fd: the client wakes us; cq_fd: we wake the client */
	size_t bytes;
	uint32_t entries, sq_offset, cq_offset, data_offset;
	uint64_t data_bytes;
	struct kv_shm_header *hdr;
	struct kv_sqe *sqes;
	struct kv_cqe *cqes;
	void *data;
	struct kv_ring sq, cq;
	bool asleep;			/* sq_need_wakeup is set */
};

int chan_create(struct chan *, uint32_t entries, uint64_t data_bytes);
void chan_destroy(struct chan *);	/* unmaps; the fds are the caller's to close */

int64_t chan_pending(struct chan *);	/* SQ entries to take, or -EPROTO */
void chan_peek(const struct chan *, struct kv_sqe *);	/* private copy of the next one */
void chan_take(struct chan *);		/* give its slot back */
int64_t chan_room(struct chan *);	/* free CQ slots, or -EPROTO */
int chan_answer(struct chan *, const struct kv_cqe *);
bool chan_client_sleeps(const struct chan *);

/* Announce that we are about to sleep; true: nothing came in between, so we may. */
bool chan_sleep(struct chan *);
void chan_awake(struct chan *);

void chan_set_events(struct chan *);
void chan_clear_events(struct chan *);
void chan_set_dead(struct chan *);

#endif
