// SPDX-License-Identifier: Apache-2.0
/* serve - a live session's requests: the ring, and imports on the socket */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "srv/session_priv.h"

/* What a session may have taken in one pass, so that the others need not wait longer than that for
 * their turn. One entry is always taken, whatever its size. */
#define BUDGET_ENTRIES	64u
#define BUDGET_BYTES	(1ull << 20)	/* input and room for output */

static void listen_to(struct session *s);

int serve_open(struct session *s)
{
	const struct sessions_config *cfg = &s->all->cfg;
	int ret = chan_create(&s->chan, cfg->ring_entries, cfg->data_bytes);

	if (ret < 0)
		return ret;
	s->request = calloc(cfg->ring_entries, sizeof(*s->request));
	s->imports = calloc(cfg->max_extents + 1, sizeof(*s->imports));
	if (!s->request || !s->imports) {
		serve_close(s);
		return -ENOMEM;
	}
	for (uint32_t i = cfg->ring_entries; i > 0; i--) {
		s->request[i - 1].next_free = (uint16_t)s->request_free;
		s->request_free = i;
	}
	s->client.data = s->chan.data;
	s->client.data_bytes = s->chan.data_bytes;
	s->client.scratch = s->all->scratch;
	s->client.batch_pages = cfg->batch_pages;
	return 0;
}

void serve_close(struct session *s)
{
	struct loop *l = s->all->cfg.loop;

	if (s->chan.hdr) {
		loop_close(l, s->chan.memfd);
		loop_close(l, s->chan.sq_fd);
		loop_close(l, s->chan.cq_fd);
		chan_destroy(&s->chan);
	}
	s->client.data = NULL;
	free(s->request);
	free(s->imports);
	s->request = NULL;
	s->imports = NULL;
	s->nr_imports = 0;
}

/* ---- wake-ups ------------------------------------------------------------------------------ */

static void woken(void *ctx, int res, const struct loop_msg *msg)
{
	struct session *s = ctx;

	(void)msg;
	s->wake_op = 0;
	/* A full counter is readable all the same; kernels wait for room or say -EAGAIN. */
	if (res < 0 && res != -EAGAIN)
		session_fail(s, -EPROTO, "its completion eventfd cannot be written");
	if (s->wake_again && s->state == SESSION_LIVE) {
		s->wake_again = false;
		serve_wake(s);
	}
}

/* At most one write in flight: a client that makes its eventfd block ties up that one. What is due
 * meanwhile is written when it completes, since it may have been too early. */
void serve_wake(struct session *s)
{
	if (s->wake_op) {
		s->wake_again = true;
		return;
	}
	s->wake_op = loop_signal(s->all->cfg.loop, s->chan.cq_fd, woken, s);
	if (!s->wake_op)
		session_fail(s, -ENOMEM, "no loop operation left to wake it");
}

void serve_mark_dirty(struct session *s)
{
	struct sessions *t = s->all;

	if (s->dirty)
		return;
	s->dirty = true;
	t->dirty[t->nr_dirty++] = (uint32_t)(s - t->slot);
}

/* ---- the ring ------------------------------------------------------------------------------ */

void serve_activate(struct session *s, uint64_t now_ns)
{
	struct sessions *t = s->all;

	chan_awake(&s->chan);
	s->busy_ns = now_ns;
	s->retry_ns = s->wait_ns = 0;
	if (s->active)
		return;
	s->active = true;
	t->active[t->nr_active++] = (uint32_t)(s - t->slot);
}

void serve_deactivate(struct session *s)
{
	struct sessions *t = s->all;
	uint32_t me = (uint32_t)(s - t->slot);

	if (!s->active)
		return;
	s->active = s->blocked = false;
	for (uint32_t i = 0; i < t->nr_active; i++) {
		if (t->active[i] == me) {
			t->active[i] = t->active[--t->nr_active];
			return;
		}
	}
}

/* A bell without an entry is not worth a poll: else ringing would keep us awake. */
static void bell(void *ctx, int res, const struct loop_msg *msg)
{
	struct session *s = ctx;
	int64_t n;

	(void)msg;
	if (res < 0) {
		s->sq_op = 0;
		session_fail(s, res, "its submission eventfd cannot be watched");
		return;
	}
	if (s->state != SESSION_LIVE || s->failed)
		return;
	n = chan_pending(&s->chan);
	if (n < 0)
		session_fail(s, -EPROTO, "it broke the tail of its submission ring");
	else if (n > 0)
		serve_activate(s, loop_now());
}

static void answer(struct session *s, const struct kv_cqe *cqe)
{
	if (chan_answer(&s->chan, cqe) < 0)
		session_fail(s, -EPROTO, "it broke the head of its completion ring");
	else
		serve_mark_dirty(s);
}

static struct request *request_get(struct session *s)
{
	struct request *rq;

	if (!s->request_free)
		return NULL;
	rq = &s->request[s->request_free - 1];
	s->request_free = rq->next_free;
	rq->gen++;
	rq->busy = true;
	s->nr_inflight++;
	return rq;
}

static void request_put(struct session *s, struct request *rq)
{
	rq->busy = false;
	rq->next_free = (uint16_t)s->request_free;
	s->request_free = (uint32_t)(rq - s->request + 1);
	s->nr_inflight--;
}

/* 0: taken; -EAGAIN: left in the ring, since mm is full. *bytes: what the entry names is added. */
static int serve_one(struct session *s, uint64_t now_ns, uint64_t *bytes)
{
	struct request *rq = request_get(s);
	struct kv_sqe sqe;
	struct kv_cqe cqe;
	int ret;

	if (!rq)
		return -EAGAIN;
	chan_peek(&s->chan, &sqe);
	if (sqe.op == KV_OP_EVENTS)	/* before mm looks: what comes later sets it again */
		chan_clear_events(&s->chan);
	rq->extent = sqe.id;
	rq->shard = sqe.nr;
	ret = dispatch_submit(s->all->exec, &s->client, &sqe,
			      session_cookie(s, COOKIE_RING, (uint32_t)(rq - s->request), rq->gen),
			      now_ns, &rq->pending, &cqe);
	if (ret == 0) {
		s->all->pump = true;
	} else {
		request_put(s, rq);
		if (ret == -EAGAIN)
			return ret;
		answer(s, &cqe);
	}
	chan_take(&s->chan);
	*bytes += (uint64_t)sqe.in_bytes + sqe.out_bytes;
	s->all->stats.requests++;
	return 0;
}

/* Every request in flight has a CQ slot kept free for it. */
bool serve_ring(struct session *s, uint64_t now_ns)
{
	uint64_t bytes = 0;
	int64_t n, room;
	uint32_t done = 0;

	s->blocked = false;
	if (s->failed)
		return false;
	n = chan_pending(&s->chan);
	room = n > 0 ? chan_room(&s->chan) : 0;
	if (n < 0 || room < 0) {
		session_fail(s, -EPROTO, n < 0 ? "it broke the tail of its submission ring" :
			     "it broke the head of its completion ring");
		return false;
	}
	room -= s->nr_inflight;
	if (n > BUDGET_ENTRIES)
		n = BUDGET_ENTRIES;
	while (done < n && bytes < BUDGET_BYTES && !s->failed) {
		if (room-- <= 0 || serve_one(s, now_ns, &bytes) < 0) {
			s->blocked = true;
			break;
		}
		done++;
	}
	return done > 0;
}

static void note_unimport(struct session *s, const struct request *rq)
{
	uint16_t bit = rq->shard < KV_MAX_SHARDS ? (uint16_t)(1u << rq->shard) : 0;

	if (rq->extent > s->all->cfg.max_extents || !(s->imports[rq->extent] & bit))
		return;
	s->imports[rq->extent] &= (uint16_t)~bit;
	s->nr_imports--;
}

void serve_ring_reply(struct session *s, uint32_t index, uint32_t gen, const struct mm_reply *r)
{
	struct request *rq;
	struct kv_cqe cqe;

	if (s->state != SESSION_LIVE || index >= s->all->cfg.ring_entries)
		return;
	rq = &s->request[index];
	if (!rq->busy || (rq->gen & 0xffffu) != gen)
		return;
	dispatch_reply(&s->client, &rq->pending, r, &cqe);
	if (rq->pending.op == KV_OP_UNIMPORT && r->result == 0)
		note_unimport(s, rq);
	request_put(s, rq);
	s->retry_ns = 0;	/* room for one more */
	s->all->look_again |= s->blocked;
	if (!s->failed)
		answer(s, &cqe);
}

/* ---- the socket ---------------------------------------------------------------------------- */

static void import_answer(struct session *s, int result, int fd, uint64_t bytes, bool writable);

static void import_sent(void *ctx, int res, const struct loop_msg *msg)
{
	struct session *s = ctx;

	(void)msg;
	s->send_op = 0;
	if (res == -ETOOMANYREFS)	/* too many fds in flight: not its fault */
		import_answer(s, -EAGAIN, -1, 0, false);
	else if (res < 0)
		session_fail(s, res, "an extent could not be sent");
	else
		listen_to(s);
}

static void import_answer(struct session *s, int result, int fd, uint64_t bytes, bool writable)
{
	const struct kv_msg_extent x = {
		.type = KV_MSG_EXTENT, .result = result,
		.extent = s->import.extent, .shard = s->import.shard,
		.user_data = s->import.user_data, .bytes = bytes, .writable = writable,
	};

	s->send_op = loop_send(s->all->cfg.loop, s->sock, &x, sizeof(x), &fd, fd >= 0, true,
			       import_sent, s);
	if (!s->send_op)
		session_fail(s, -ENOMEM, "no loop operation left for an extent");
}

/* mm lists the member as an importer now; it stays one if the fd does not get through, until the
 * client says UNIMPORT or is gone. */
void serve_import_reply(struct session *s, const struct mm_reply *r)
{
	uint16_t bit = (uint16_t)(1u << (s->import.shard % KV_MAX_SHARDS));
	uint64_t bytes = 0;
	int fd;

	if (s->state != SESSION_LIVE || s->failed)
		return;
	if (r->result < 0) {
		import_answer(s, r->result, -1, 0, false);
		return;
	}
	if (s->import.extent <= s->all->cfg.max_extents && !(s->imports[s->import.extent] & bit)) {
		s->imports[s->import.extent] |= bit;
		s->nr_imports++;
	}
	fd = exec_export(s->all->exec, s->import.extent, s->import.shard, r->writable, &bytes);
	import_answer(s, fd < 0 ? fd : 0, fd, bytes, r->writable);
}

static void import_asked(struct session *s, const struct kv_msg_import *m)
{
	struct mm_request req = {
		.op = MM_IMPORT, .engine = s->client.engine, .member = s->client.member,
		.map = { .extent = m->extent, .shard = m->shard },
	};
	int ret = m->reserved ? -EINVAL : 0;

	s->import = *m;
	if (ret == 0)
		ret = session_submit(s, &req, COOKIE_IMPORT);
	if (ret < 0)
		import_answer(s, ret, -1, 0, false);
}

static void received(void *ctx, int res, const struct loop_msg *msg)
{
	struct session *s = ctx;
	struct kv_msg_import import;
	struct kv_msg_bye bye;

	s->recv_op = 0;
	if (s->state != SESSION_LIVE || s->failed)
		return;
	if (res <= 0) {
		session_fail(s, res, "it hung up");
	} else if (msg->control) {
		session_fail(s, -EPROTO, "it sent file descriptors");
	} else if (!msg->truncated && msg->len == sizeof(import) &&
		   (memcpy(&import, msg->data, sizeof(import)), import.type == KV_MSG_IMPORT)) {
		import_asked(s, &import);
	} else if (!msg->truncated && msg->len == sizeof(bye) &&
		   (memcpy(&bye, msg->data, sizeof(bye)),
		    bye.type == KV_MSG_BYE && !bye.reserved)) {
		s->bye = true;
		session_fail(s, 0, s->nr_imports ? "it said goodbye with extents mapped" :
			     "it said goodbye");
	} else {
		session_fail(s, -EPROTO, "it sent a message that is none");
	}
}

static void listen_to(struct session *s)
{
	s->recv_op =
		loop_recv(s->all->cfg.loop, s->sock, sizeof(struct kv_msg_import), received, s);
	if (!s->recv_op)
		session_fail(s, -ENOMEM, "no loop operation left");
}

void serve_start(struct session *s)
{
	s->sq_op = loop_poll(s->all->cfg.loop, s->chan.sq_fd, bell, s);
	if (!s->sq_op)
		session_fail(s, -ENOMEM, "no loop operation left");
	listen_to(s);
}
