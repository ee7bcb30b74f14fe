/* SPDX-License-Identifier: Apache-2.0 */
/* session - the daemon's clients: handshake, rings, death
 *
 * Model:      one session a connection:
 *
 *               HELLO --> ATTACH --> LIVE --> LINGER --> (free)
 *                  \________\_________ REFUSE ___/
 *
 *             LIVE serves the ring and the socket. LINGER is a session that is over while its
 *             process may still have pages mapped: mm keeps them quarantined.
 * Invariants: a session ends (pidfd, hang-up, protocol error) -> its engine is fenced at once and
 *             every session of that engine ends. mm hears MEMBER_GONE only when the process is
 *             gone, or said BYE with nothing mapped. Without a pidfd an unclean end lingers for
 *             ever: unsure means it stays.
 *             What a client does wrong ends its own engine only: its bytes are copied, then
 *             checked; it cannot make the daemon wait, since all that could is io_uring's.
 *             A request is taken from the SQ only when a CQ slot is left for its answer.
 * Ownership:  sessions own sockets, pidfds and chans; mm the engines. A cookie names (session,
 *             generation, request), so a late reply finds nobody.
 * Context:    the loop's thread.
 * Limits:     max, max_per_uid (lingering ones count), SESSION_SPARE connections in handshake.
 * See:        ipc/kv_abi.h, docs/abi.md, tests/unit/srv/session_test.c
 */
#ifndef SESSION_H
#define SESSION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "io/loop.h"
#include "kv_abi.h"
#include "srv/exec.h"
#include "srv/tenant.h"

#define SESSION_SPARE		64u	/* connections that have not said hello */
#define SESSION_SPARE_PER_UID	32u	/* the ranks of an engine may all start at once */
#define SESSION_MAX		1024u
#define SESSION_OPS		8u	/* loop operations a session may have in flight */
#define SESSION_MAX_ENTRIES	4096u

struct sessions_config {
	struct loop *loop;
	struct tenants *tenants;	/* who is which; NULL: each uid is its own */
	int listen_fd;
	uint32_t max, max_per_uid, ring_entries, batch_pages, nr_devices, max_extents;
	uint64_t data_bytes, pool_bytes, spin_ns, hello_ns, check_every;
};

struct sessions_stats {
	uint32_t nr_live, nr_linger, nr_hello;
	uint64_t requests, checks, refused, broken;
};

struct session_info {
	char name[KV_NAME_BYTES];
	pid_t pid;
	uint64_t born_ns;
};

struct sessions;

int sessions_create(struct sessions **, const struct sessions_config *);
void sessions_start(struct sessions *, struct exec *);	/* the next pass begins to accept */
void sessions_stop(struct sessions *);	/* ends every session, tells the clients */
void sessions_destroy(struct sessions *);

/* One pass over what is due. Returns when it wants to be called again at the latest: 0 at once. */
uint64_t sessions_run(struct sessions *, uint64_t now_ns);

void sessions_reply(struct sessions *, const struct mm_reply *);	/* struct exec_ops */
void sessions_notify(struct sessions *, uint32_t member);
void sessions_kill(struct sessions *, uint32_t engine);

void sessions_stats(const struct sessions *, struct sessions_stats *);
bool sessions_engine(const struct sessions *, uint32_t engine, struct session_info *);

#endif
