// SPDX-License-Identifier: Apache-2.0
#include "srv/session.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "io/log.h"
#include "srv/session_priv.h"

#define RETRY_NS	10000000ull	/* back-pressure: the first look, each next one later */
#define RETRY_MAX_NS	1000000000ull
#define ACCEPT_RETRY_NS	100000000ull	/* no free fd, or no loop operation */

int sessions_create(struct sessions **out, const struct sessions_config *cfg)
{
	uint32_t nr = cfg->max + SESSION_SPARE;
	struct sessions *t = calloc(1, sizeof(*t) + nr * sizeof(t->slot[0]));

	if (!t)
		return -ENOMEM;
	t->cfg = *cfg;
	t->nr_slots = nr;
	t->next_check = cfg->check_every;
	t->active = calloc(nr, sizeof(*t->active));
	t->dirty = calloc(nr, sizeof(*t->dirty));
	t->scratch = malloc(cfg->data_bytes);
	if (!t->active || !t->dirty || !t->scratch) {
		sessions_destroy(t);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < nr; i++)
		t->slot[i].all = t;
	*out = t;
	return 0;
}

void sessions_start(struct sessions *t, struct exec *exec)
{
	t->exec = exec;
}

static void release(struct session *s)
{
	struct sessions *t = s->all;
	struct loop *l = t->cfg.loop;
	uint32_t gen = s->gen;

	loop_cancel(l, s->recv_op);
	loop_cancel(l, s->send_op);
	loop_cancel(l, s->sq_op);
	loop_cancel(l, s->wake_op);
	loop_cancel(l, s->pid_op);
	loop_cancel(l, s->timer_op);
	loop_close(l, s->sock);
	loop_close(l, s->peer.pidfd);
	*s = (struct session){ .all = t, .gen = gen + 1 };
}

void sessions_destroy(struct sessions *t)
{
	if (!t)
		return;
	for (uint32_t i = 0; i < t->nr_slots; i++) {
		struct session *s = &t->slot[i];

		if (s->state == SESSION_FREE)
			continue;
		serve_close(s);
		release(s);
	}
	free(t->active);
	free(t->dirty);
	free(t->scratch);
	free(t);
}

void session_fail(struct session *s, int err, const char *why)
{
	if (s->state == SESSION_FREE || s->failed)
		return;
	s->failed = true;
	s->err = err;
	s->why = why;
	s->all->todo = true;
}

int session_submit(struct session *s, struct mm_request *req, enum cookie_kind kind)
{
	int ret;

	req->cookie = session_cookie(s, kind, 0, 0);
	ret = exec_submit(s->all->exec, req, loop_now());
	s->all->pump |= ret == 0;
	return ret;
}

static void process_gone(void *ctx, int res, const struct loop_msg *msg)
{
	struct session *s = ctx;

	(void)msg;
	if (res < 0)
		s->pid_op = 0;
	else
		s->gone = true;
	session_fail(s, res < 0 ? res : 0,
		     res < 0 ? "its pidfd cannot be watched" : "process ended");
	s->all->todo = true;
}

void session_go_live(struct session *s)
{
	struct loop *l = s->all->cfg.loop;

	s->state = SESSION_LIVE;
	s->all->todo |= s->failed;	/* its time ran out meanwhile */
	loop_cancel(l, s->timer_op);
	s->timer_op = 0;
	if (s->peer.pidfd >= 0) {
		s->pid_op = loop_poll(l, s->peer.pidfd, process_gone, s);
		if (!s->pid_op)
			session_fail(s, -ENOMEM, "no loop operation left for its pidfd");
	}
	log_info("session of '%s' (pid %d, uid %u): %s of engine %u", s->name, s->peer.pid,
		 s->peer.uid, s->client.lead ? "lead" : "member", s->client.engine);
	serve_start(s);
}

static void refused(void *ctx, int res, const struct loop_msg *msg)
{
	struct session *s = ctx;

	(void)res;
	(void)msg;
	s->send_op = 0;
	session_fail(s, 0, "refused");
	s->all->todo = true;
}

static void engine_failed(const struct session *dead)
{
	struct sessions *t = dead->all;

	for (uint32_t i = 0; i < t->nr_slots; i++) {
		struct session *s = &t->slot[i];

		if (s != dead && s->state == SESSION_LIVE &&
		    s->client.engine == dead->client.engine)
			session_fail(s, -EPIPE, "another process of its engine ended");
	}
}

/* mm may already know it as a member: then it is fenced and leaves like any other. */
void session_refuse(struct session *s, int err, const char *text)
{
	s->all->stats.refused++;
	log_warn("refused '%s' (pid %d, uid %u): %s", s->name, s->peer.pid, s->peer.uid, text);
	serve_close(s);
	s->bye = true;
	s->want_fence = s->client.engine != 0;
	s->state = SESSION_REFUSE;
	if (s->want_fence)
		engine_failed(s);
	hello_answer(s, err, text, refused);
}

/* From LIVE to LINGER: tell the client on every channel it may be looking at, then let go of
 * everything but the pidfd. A wake-up in flight is left to complete. */
static void bury(struct session *s)
{
	struct loop *l = s->all->cfg.loop;
	bool clean = s->bye && s->nr_imports == 0;

	if (s->err == -EPROTO) {
		s->all->stats.broken++;
		log_warn("session of '%s' (pid %d, uid %u) ends: %s", s->name, s->peer.pid,
			 s->peer.uid, s->why);
	} else {
		log_info("session of '%s' (pid %d, uid %u) ends: %s", s->name, s->peer.pid,
			 s->peer.uid, s->why);
	}
	chan_set_dead(&s->chan);
	serve_wake(s);
	serve_deactivate(s);
	loop_cancel(l, s->recv_op);
	loop_cancel(l, s->sq_op);
	loop_cancel(l, s->send_op);
	s->recv_op = s->sq_op = s->send_op = 0;
	shutdown(s->sock, SHUT_RDWR);
	loop_close(l, s->sock);
	s->sock = -1;
	serve_close(s);
	s->bye = clean;
	s->want_fence = true;
	s->state = SESSION_LINGER;
	if (s->peer.pidfd < 0 && !clean)
		log_warn("'%s' (uid %u) has no pidfd and did not say goodbye: its pages stay "
			 "quarantined until kvd restarts", s->name, s->peer.uid);
	engine_failed(s);
}

/* Fence before gone, each until mm takes it. True when the slot is free. */
static bool leave(struct session *s)
{
	struct mm_request req = { .op = MM_FENCE, .engine = s->client.engine };

	if (s->want_fence) {
		if (session_submit(s, &req, COOKIE_NOBODY) < 0)
			return false;
		s->want_fence = false;
	}
	if (!s->gone && !s->bye)
		return false;
	if (s->client.member) {
		req = (struct mm_request){ .op = MM_MEMBER_GONE, .engine = s->client.engine,
					   .member = s->client.member };
		if (session_submit(s, &req, COOKIE_NOBODY) < 0)
			return false;
	}
	log_debug("'%s' (pid %d) is gone", s->name, s->peer.pid);
	release(s);
	return true;
}

/* True when it must be looked at again soon. */
static bool attend(struct session *s)
{
	switch (s->state) {
	case SESSION_FREE:
	case SESSION_ATTACH:	/* mm's answer decides: see hello_attached */
		return false;
	case SESSION_HELLO:
		if (s->failed)
			release(s);
		return false;
	case SESSION_REFUSE:
		return s->failed && !leave(s);
	case SESSION_LIVE:
		if (!s->failed)
			return false;
		bury(s);
		/* fall through */
	case SESSION_LINGER:
		return !leave(s) && (s->want_fence || s->gone || s->bye);
	}
	return false;
}

/* Burying one session can fail others of its engine, hence again until nothing is due. */
static bool attend_all(struct sessions *t)
{
	bool again = false;

	while (t->todo) {
		t->todo = false;
		again = false;
		for (uint32_t i = 0; i < t->nr_slots; i++)
			again |= attend(&t->slot[i]);
	}
	t->todo = again;
	return again;
}

static void check(struct sessions *t)
{
	if (!t->cfg.check_every || t->stats.requests < t->next_check)
		return;
	t->next_check = t->stats.requests + t->cfg.check_every;
	t->stats.checks++;
	mm_check(exec_mm(t->exec));
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* It stays asleep: the bell says there is a new entry, a reply of its own that there is room. What
 * else may help, a CQ that is read or an mm with room, nobody tells: look now and then, less often
 * the longer it takes, so that a client that is stuck costs nothing. */
static uint64_t put_off(struct session *s, uint64_t now_ns)
{
	if (s->retry_ns <= now_ns) {
		s->wait_ns = s->wait_ns ? s->wait_ns * 2 : RETRY_NS;
		if (s->wait_ns > RETRY_MAX_NS)
			s->wait_ns = RETRY_MAX_NS;
		s->retry_ns = now_ns + s->wait_ns;
	}
	return s->retry_ns;
}

/* Serve the polled sessions; those that were quiet for spin_ns go to sleep. */
static uint64_t run_active(struct sessions *t, uint64_t now_ns)
{
	uint64_t next = LOOP_NEVER;

	for (uint32_t i = t->nr_active; i > 0; i--) {
		struct session *s = &t->slot[t->active[i - 1]];

		if (s->blocked && s->retry_ns > now_ns) {
			next = earlier(next, s->retry_ns);
			continue;
		}
		if (serve_ring(s, now_ns))
			serve_activate(s, now_ns);
		if (s->failed)
			continue;
		if (now_ns - s->busy_ns <= t->cfg.spin_ns && !s->blocked) {
			next = 0;
		} else if (chan_sleep(&s->chan)) {
			serve_deactivate(s);
		} else if (s->blocked) {
			next = earlier(next, put_off(s, now_ns));
		} else {
			chan_awake(&s->chan);
			next = 0;
		}
	}
	return next;
}

static void wake_dirty(struct sessions *t)
{
	while (t->nr_dirty) {
		struct session *s = &t->slot[t->dirty[--t->nr_dirty]];

		s->dirty = false;
		if (s->state == SESSION_LIVE && chan_client_sleeps(&s->chan))
			serve_wake(s);
	}
}

static void accepted(void *ctx, int res, const struct loop_msg *msg);

/* Whatever kept accept from being under way, it is tried again. */
static uint64_t run_accept(struct sessions *t, uint64_t now_ns)
{
	if (t->accept_op || t->stopping)
		return LOOP_NEVER;
	if (t->accept_ns <= now_ns) {
		t->accept_op = loop_accept(t->cfg.loop, t->cfg.listen_fd, accepted, t);
		if (t->accept_op)
			return LOOP_NEVER;
		t->accept_ns = now_ns + ACCEPT_RETRY_NS;
	}
	return t->accept_ns;
}

uint64_t sessions_run(struct sessions *t, uint64_t now_ns)
{
	uint64_t next = earlier(run_active(t, now_ns), run_accept(t, now_ns));
	bool again = t->todo && attend_all(t);

	if (t->pump || exec_next_deadline(t->exec) <= now_ns) {
		t->pump = false;
		exec_run(t->exec, now_ns);
	}
	check(t);
	wake_dirty(t);
	if (t->look_again)
		next = 0;
	t->look_again = false;
	return t->todo ? earlier(next, again ? now_ns + RETRY_NS : 0) : next;
}

void sessions_reply(struct sessions *t, const struct mm_reply *r)
{
	uint32_t slot = (uint32_t)(r->cookie >> 48) & 0xfffu;
	struct session *s = slot < t->nr_slots ? &t->slot[slot] : NULL;

	if (!s || s->state == SESSION_FREE || (s->gen & 0xffffu) != ((r->cookie >> 32) & 0xffffu))
		return;
	switch ((enum cookie_kind)(r->cookie >> 60)) {
	case COOKIE_NOBODY:
		break;
	case COOKIE_ATTACH:
		hello_attached(s, r);
		break;
	case COOKIE_IMPORT:
		serve_import_reply(s, r);
		break;
	case COOKIE_RING:
		serve_ring_reply(s, (uint32_t)(r->cookie >> 16) & 0xffffu,
				 (uint32_t)r->cookie & 0xffffu, r);
		break;
	}
}

/* mm has fenced it. The pidfd names the process we identified, whatever became of its number; who
 * has none, or is not ours to kill, loses the session at least. */
void sessions_kill(struct sessions *t, uint32_t engine)
{
	for (uint32_t i = 0; i < t->nr_slots; i++) {
		struct session *s = &t->slot[i];

		if (s->state == SESSION_FREE || s->client.engine != engine || s->gone)
			continue;
		if (s->peer.pidfd < 0 ||
		    syscall(SYS_pidfd_send_signal, s->peer.pidfd, SIGKILL, NULL, 0) < 0)
			log_warn("'%s' (pid %d, uid %u) cannot be killed: %s", s->name, s->peer.pid,
				 s->peer.uid, s->peer.pidfd < 0 ? "no pidfd" : strerror(errno));
		else
			log_warn("'%s' (pid %d, uid %u) is killed: its tenant is above max and it "
				 "keeps most", s->name, s->peer.pid, s->peer.uid);
		session_fail(s, 0, "killed: its tenant is above max");
	}
}

void sessions_notify(struct sessions *t, uint32_t member)
{
	for (uint32_t i = 0; i < t->nr_slots; i++) {
		struct session *s = &t->slot[i];

		if (s->state != SESSION_LIVE || s->client.member != member)
			continue;
		chan_set_events(&s->chan);
		serve_mark_dirty(s);
		return;
	}
}

static void hello_cb(void *ctx, int res, const struct loop_msg *msg)
{
	struct session *s = ctx;

	s->recv_op = 0;
	hello_received(s, res, msg);
}

static void hello_late(void *ctx, int res, const struct loop_msg *msg)
{
	struct session *s = ctx;

	(void)res;
	(void)msg;
	s->timer_op = 0;
	session_fail(s, -ETIMEDOUT, "said no hello in time");
}

/* A slot for a connection that has said nothing yet; nobody may fill all of them. */
static struct session *find_slot(struct sessions *t, uid_t uid)
{
	struct session *found = NULL;
	uint32_t same = 0, all = 0;

	for (uint32_t i = 0; i < t->nr_slots; i++) {
		struct session *s = &t->slot[i];

		if (s->state == SESSION_FREE)
			found = s;
		else if (s->state == SESSION_HELLO || s->state == SESSION_REFUSE) {
			all++;
			same += s->peer.uid == uid;
		}
	}
	return same < SESSION_SPARE_PER_UID && all < SESSION_SPARE ? found : NULL;
}

/* No slot to wait for its hello in: say so to whoever is listening already. A hello left unread
 * would make the end a reset, and the text go unread too. */
static void turn_away(int fd)
{
	struct kv_msg_welcome w = {
		.type = KV_MSG_WELCOME, .magic = KV_ABI_MAGIC, .version = KV_ABI_VERSION,
		.result = -EUSERS, .features = KV_FEATURES,
		.text = "too many connections that have not said hello: try again",
	};
	char hello[sizeof(struct kv_msg_hello)];
	ssize_t n = recv(fd, hello, sizeof(hello), MSG_DONTWAIT);

	n = send(fd, &w, sizeof(w), MSG_DONTWAIT | MSG_NOSIGNAL);
	(void)n;	/* it is closed either way */
}

static void open_session(struct sessions *t, int fd)
{
	struct sock_peer peer;
	struct session *s;
	int ret = sock_peer(fd, &peer), least = 1;

	if (ret < 0) {
		log_warn("connection refused: cannot tell who it is: %s", strerror(-ret));
		close(fd);
		return;
	}
	s = find_slot(t, peer.uid);
	if (!s) {
		log_warn("connection refused: too many that have not said hello (uid %u)",
			 peer.uid);
		turn_away(fd);
		close(fd);
		if (peer.pidfd >= 0)
			close(peer.pidfd);
		return;
	}
	/* A client that asks for extents and reads none would hold fds in flight, of which the
	 * kernel gives a user only so many: room for a few answers is enough. */
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &least, sizeof(least));
	s->state = SESSION_HELLO;
	s->sock = fd;
	s->peer = peer;
	s->born_ns = loop_now();
	s->recv_op = loop_recv(t->cfg.loop, fd, sizeof(struct kv_msg_hello), hello_cb, s);
	s->timer_op = loop_timeout(t->cfg.loop, s->born_ns + t->cfg.hello_ns, hello_late, s);
	if (!s->recv_op || !s->timer_op)
		session_fail(s, -ENOMEM, "no loop operation left");
}

/* Once: the next pass goes on. */
static void accepted(void *ctx, int res, const struct loop_msg *msg)
{
	struct sessions *t = ctx;

	(void)msg;
	t->accept_op = 0;
	if (res >= 0) {
		open_session(t, res);
		return;
	}
	if (t->stopping)
		return;
	log_error("accept: %s", strerror(-res));
	t->accept_ns = loop_now() + ACCEPT_RETRY_NS;
}

void sessions_stop(struct sessions *t)
{
	t->stopping = true;
	loop_cancel(t->cfg.loop, t->accept_op);
	for (uint32_t i = 0; i < t->nr_slots; i++)
		session_fail(&t->slot[i], 0, "kvd stops");
	attend_all(t);
}

void sessions_stats(const struct sessions *t, struct sessions_stats *out)
{
	*out = t->stats;
	out->nr_live = out->nr_linger = out->nr_hello = 0;
	for (uint32_t i = 0; i < t->nr_slots; i++) {
		enum session_state state = t->slot[i].state;

		out->nr_live += state == SESSION_LIVE;
		out->nr_linger += state == SESSION_LINGER;
		out->nr_hello += state == SESSION_HELLO || state == SESSION_REFUSE;
	}
}

bool sessions_engine(const struct sessions *t, uint32_t engine, struct session_info *info)
{
	const struct session *found = NULL;

	for (uint32_t i = 0; i < t->nr_slots; i++) {
		const struct session *s = &t->slot[i];

		if (s->state < SESSION_LIVE || s->client.engine != engine)
			continue;
		if (!found || s->client.lead)
			found = s;
	}
	if (!found)
		return false;
	*info = (struct session_info){ .pid = found->peer.pid, .born_ns = found->born_ns };
	memcpy(info->name, found->name, sizeof(info->name));
	return true;
}
