/* SPDX-License-Identifier: Apache-2.0 */
/* session_priv - what session.c (life and death), hello.c (handshake) and serve.c (rings, imports)
 * know of each other; nobody else includes it.
 *
 * Invariants: state changes in session.c only. session_fail marks, the next pass buries, so that
 *             callbacks deep inside exec never see a session vanish. op ids are 0 when nothing is
 *             in flight.
 */
#ifndef SESSION_PRIV_H
#define SESSION_PRIV_H

#include "io/sock.h"
#include "srv/chan.h"
#include "srv/dispatch.h"
#include "srv/session.h"

enum session_state {
	SESSION_FREE = 0,
	SESSION_HELLO,		/* connected, nothing said */
	SESSION_ATTACH,		/* mm was asked for an engine or member */
	SESSION_LIVE,
	SESSION_REFUSE,		/* the refusal is on its way */
	SESSION_LINGER,		/* over, the process may live */
};

enum cookie_kind {
	COOKIE_NOBODY = 0,	/* the answer interests nobody */
	COOKIE_ATTACH,
	COOKIE_IMPORT,
	COOKIE_RING,
};

struct request {		/* one in flight */
	uint32_t gen;
	uint16_t next_free;	/* index + 1 */
	bool busy;
	uint32_t extent, shard;	/* UNIMPORT */
	struct dispatch_pending pending;
};

struct session {
	struct sessions *all;
	enum session_state state;
	uint32_t gen;
	int sock;
	struct sock_peer peer;
	uint32_t tenant;		/* key */
	char name[KV_NAME_BYTES];
	uint8_t token[KV_TOKEN_BYTES];
	uint64_t born_ns, busy_ns;	/* busy: when it last gave us work */

	struct dispatch_client client;	/* engine, member, lead; data only while LIVE */
	struct chan chan;
	struct request *request;	/* [ring_entries] */
	uint32_t request_free;		/* index + 1 */
	uint32_t nr_inflight;

	uint64_t recv_op, send_op, sq_op, wake_op, pid_op, timer_op;
	bool wake_again;		/* a wake-up was due while one was in flight */
	bool dirty;			/* answers or events since the last look at need_wakeup */
	bool active;			/* on the list that is polled */
	bool blocked;			/* entries wait, but mm or the CQ has no room */
	uint64_t retry_ns, wait_ns;	/* blocked: when to look again; how long that was put off */

	struct kv_msg_import import;	/* being answered */
	uint16_t *imports;		/* [max_extents + 1]: shards it may have mapped */
	uint32_t nr_imports;		/* bits in there */

	bool failed, bye, gone;		/* gone: the process has exited */
	bool want_fence;
	int err;
	const char *why;
};

struct sessions {
	struct sessions_config cfg;
	struct exec *exec;
	uint32_t nr_slots, nr_active, nr_dirty;
	uint32_t *active, *dirty;	/* slot numbers */
	void *scratch;			/* dispatch's, used during one submit */
	uint64_t accept_op;
	uint64_t accept_ns;		/* no accept_op: when to try for one */
	bool todo;			/* some session failed or lingers with work to do */
	bool pump;			/* something was submitted since exec last ran */
	bool look_again;		/* a blocked session has room now */
	bool stopping;
	uint64_t next_check;
	struct sessions_stats stats;
	struct session slot[];
};

static inline uint64_t session_cookie(const struct session *s, enum cookie_kind kind,
				      uint32_t index, uint32_t gen)
{
	uint64_t slot = (uint64_t)(s - s->all->slot);

	return (uint64_t)kind << 60 | slot << 48 | (uint64_t)(s->gen & 0xffffu) << 32 |
	       (uint64_t)index << 16 | (gen & 0xffffu);
}

/* session.c */
void session_fail(struct session *, int err, const char *why);
void session_refuse(struct session *, int err, const char *text);
void session_go_live(struct session *);
int session_submit(struct session *, struct mm_request *, enum cookie_kind);

/* hello.c */
void hello_received(struct session *, int res, const struct loop_msg *);
void hello_attached(struct session *, const struct mm_reply *);
void hello_answer(struct session *, int result, const char *text, loop_fn *done);

/* serve.c */
int serve_open(struct session *);	/* chan and request table */
void serve_close(struct session *);
void serve_start(struct session *);	/* polls, recv */
bool serve_ring(struct session *, uint64_t now_ns);	/* some progress was made */
void serve_activate(struct session *, uint64_t now_ns);
void serve_deactivate(struct session *);
void serve_mark_dirty(struct session *);
void serve_wake(struct session *);
void serve_ring_reply(struct session *, uint32_t index, uint32_t gen, const struct mm_reply *);
void serve_import_reply(struct session *, const struct mm_reply *);

#endif
