// SPDX-License-Identifier: Apache-2.0
/* hello - the handshake: who may open a session, and what it is told */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "srv/session_priv.h"

static bool is_zero(const void *p, size_t n)
{
	const uint8_t *b = p;
	uint8_t any = 0;

	while (n--)
		any |= *b++;
	return any == 0;
}

/* Time independent of where they differ. */
static bool same_token(const uint8_t *a, const uint8_t *b)
{
	uint8_t diff = 0;

	for (size_t i = 0; i < KV_TOKEN_BYTES; i++)
		diff |= (uint8_t)(a[i] ^ b[i]);
	return diff == 0;
}

/* Printable ASCII, then zeros to the end. */
static bool name_is_good(const char name[KV_NAME_BYTES])
{
	size_t n = strnlen(name, KV_NAME_BYTES);

	for (size_t i = 0; i < n; i++)
		if (name[i] < 0x20 || name[i] > 0x7e)
			return false;
	return n > 0 && n < KV_NAME_BYTES && is_zero(name + n, KV_NAME_BYTES - n);
}

/* NULL: a good hello. */
static const char *complain(const struct kv_msg_hello *h, const struct loop_msg *msg, char *buf,
			    size_t len, int *err)
{
	*err = -EPROTO;
	if (msg->control)
		return "kvd takes no file descriptors";
	if (msg->truncated || msg->len != sizeof(*h))
		return "the hello has the wrong size: is this a kvd client?";
	if (h->type != KV_MSG_HELLO || h->magic != KV_ABI_MAGIC)
		return "this is not a hello: is this a kvd client?";
	if (h->version != KV_ABI_VERSION) {
		snprintf(buf, len,
			 "client speaks ABI version %u, this kvd %u: use a libkv of this release",
			 h->version, KV_ABI_VERSION);
		return buf;
	}
	*err = -EINVAL;
	if (h->features & ~KV_FEATURES) {
		snprintf(
			buf, len,
			"client needs features 0x%llx that this kvd does not know: use a newer kvd",
			(unsigned long long)(h->features & ~KV_FEATURES));
		return buf;
	}
	if (h->flags & ~KV_HELLO_MEMBER || !is_zero(h->reserved, sizeof(h->reserved)))
		return "unknown flags or a reserved field that is not zero: use a libkv of this "
		       "release";
	if (!name_is_good(h->name))
		return "the name must be 1 to 31 printable ASCII characters, padded with zeros";
	if (h->rank >= KV_MAX_SHARDS || (!(h->flags & KV_HELLO_MEMBER) && h->rank))
		return "the rank must be below 16, and 0 for a lead";
	return NULL;
}

static bool within_limits(const struct session *me, char *buf, size_t len)
{
	const struct sessions *t = me->all;
	uint32_t all = 0, same = 0, lingering = 0;

	for (uint32_t i = 0; i < t->nr_slots; i++) {
		const struct session *s = &t->slot[i];

		if (s->state != SESSION_LIVE && s->state != SESSION_LINGER &&
		    s->state != SESSION_ATTACH)
			continue;
		all++;
		if (s->peer.uid != me->peer.uid)
			continue;
		same++;
		lingering += s->state == SESSION_LINGER;
	}
	if (same >= t->cfg.max_per_uid) {
		snprintf(buf, len,
			 "uid %u has %u sessions, the most one user may have (%u of them ended, "
			 "but their process lives): end some or raise max_sessions_per_uid",
			 me->peer.uid, same, lingering);
		return false;
	}
	if (all >= t->cfg.max) {
		snprintf(buf, len, "kvd has %u sessions, its limit: end some or raise max_sessions",
			 all);
		return false;
	}
	return true;
}

/* Every candidate is compared in full, so timing tells nothing about any of them. */
static const struct session *find_lead(const struct session *me, const uint8_t *token)
{
	const struct sessions *t = me->all;
	const struct session *found = NULL;

	for (uint32_t i = 0; i < t->nr_slots; i++) {
		const struct session *s = &t->slot[i];

		if (s->state == SESSION_LIVE && !s->failed && s->client.lead &&
		    s->peer.uid == me->peer.uid && same_token(s->token, token))
			found = s;
	}
	return found;
}

static bool engine_lives(const struct session *me)
{
	const struct sessions *t = me->all;

	for (uint32_t i = 0; i < t->nr_slots; i++) {
		const struct session *s = &t->slot[i];

		if (s->state == SESSION_LIVE && !s->failed && s->client.lead &&
		    s->client.engine == me->client.engine)
			return true;
	}
	return false;
}

static void attach(struct session *s, const struct kv_msg_hello *h)
{
	struct mm_request req = { .op = MM_ENGINE_ATTACH, .attach.tenant = s->peer.uid };
	struct tenants *t = s->all->cfg.tenants;

	if (t && tenants_key(t, s->peer.uid, s->peer.gid, &req.attach.tenant) < 0) {
		session_refuse(s, -EUSERS, "too many users with ids from 2^31 on: give them a "
			       "[tenant NAME] section");
		return;
	}
	s->tenant = req.attach.tenant;
	s->client.lead = !(h->flags & KV_HELLO_MEMBER);
	if (!s->client.lead) {
		const struct session *lead = find_lead(s, h->member_token);

		if (!lead) {
			session_refuse(s, -EACCES,
				       "no engine of this user has this member token: pass on "
				       "the token of a living lead");
			return;
		}
		s->tenant = lead->tenant;
		req = (struct mm_request){ .op = MM_MEMBER_ATTACH, .engine = lead->client.engine };
	}
	if (session_submit(s, &req, COOKIE_ATTACH) < 0) {
		session_refuse(s, -EAGAIN, "kvd is busy: try again");
		return;
	}
	s->state = SESSION_ATTACH;
}

void hello_received(struct session *s, int res, const struct loop_msg *msg)
{
	struct kv_msg_hello h;
	char buf[KV_TEXT_BYTES];
	const char *text;
	int err;

	if (res <= 0) {
		session_fail(s, res, "left without a hello");
		return;
	}
	memset(&h, 0, sizeof(h));
	memcpy(&h, msg->data, msg->len < sizeof(h) ? msg->len : sizeof(h));
	text = complain(&h, msg, buf, sizeof(buf), &err);
	if (text) {
		session_refuse(s, err, text);
		return;
	}
	memcpy(s->name, h.name, sizeof(s->name));
	if (s->peer.nobody)
		session_refuse(s, -EACCES, "kvd cannot tell which user you are: your uid is not "
			       "mapped in its user namespace; map it, or run kvd outside of one");
	else if (!within_limits(s, buf, sizeof(buf)))
		session_refuse(s, -EUSERS, buf);
	else
		attach(s, &h);
}

static void welcomed(void *ctx, int res, const struct loop_msg *msg)
{
	struct session *s = ctx;

	(void)msg;
	s->send_op = 0;
	if (res < 0)
		session_fail(s, res, "the welcome could not be sent");
}

/* mm's answer to ATTACH: from here on mm knows the client, so an end means fence and gone. */
void hello_attached(struct session *s, const struct mm_reply *r)
{
	char name[TENANT_NAME_BYTES] = "";
	int ret;

	if (s->state != SESSION_ATTACH)
		return;
	if (r->result < 0) {
		session_refuse(s, r->result, dispatch_reason_text(r->reason));
		return;
	}
	s->client.engine = r->engine;
	s->client.member = r->member;
	ret = serve_open(s);
	if (ret == 0 && s->client.lead &&
	    getrandom(s->token, sizeof(s->token), 0) != (ssize_t)sizeof(s->token))
		ret = -EIO;
	if (ret < 0) {
		session_refuse(s, ret, "kvd cannot make a session: it is out of memory or file "
			       "descriptors; end some sessions or raise its limits");
		return;
	}
	session_go_live(s);
	if (s->all->cfg.tenants)
		tenants_name(s->all->cfg.tenants, s->tenant, name);
	hello_answer(s, 0, name, welcomed);
	if (!engine_lives(s))	/* its lead ended while mm was asked */
		session_fail(s, -EPIPE, "another process of its engine ended");
}

static void describe(const struct session *s, struct kv_msg_welcome *w)
{
	const struct sessions_config *cfg = &s->all->cfg;
	const struct chan *c = &s->chan;

	w->engine = s->client.engine;
	w->member = s->client.member;
	memcpy(w->member_token, s->token, sizeof(w->member_token));
	w->shm_bytes = c->bytes;
	w->data_offset = c->data_offset;
	w->data_bytes = c->data_bytes;
	w->sq_entries = w->cq_entries = c->entries;
	w->sq_offset = c->sq_offset;
	w->cq_offset = c->cq_offset;
	w->batch_pages = cfg->batch_pages;
	w->nr_devices = cfg->nr_devices;
	w->pool_bytes = cfg->pool_bytes;
}

/* The kernel looks the numbers up when the send is carried out. That may be after the session has
 * ended and its numbers name somebody else's files, so the send has some of its own. */
static int dup_fds(const struct chan *c, int fds[3])
{
	const int from[3] = { c->memfd, c->sq_fd, c->cq_fd };

	for (int i = 0; i < 3; i++) {
		fds[i] = fcntl(from[i], F_DUPFD_CLOEXEC, 0);
		if (fds[i] < 0) {
			int ret = -errno;

			while (i-- > 0)
				close(fds[i]);
			return ret;
		}
	}
	return 3;
}

void hello_answer(struct session *s, int result, const char *text, loop_fn *done)
{
	struct kv_msg_welcome w = {
		.type = KV_MSG_WELCOME, .magic = KV_ABI_MAGIC, .version = KV_ABI_VERSION,
		.result = result, .features = KV_FEATURES,
	};
	int fds[3], nr = 0;

	if (result == 0) {
		describe(s, &w);
		nr = dup_fds(&s->chan, fds);
		if (nr < 0) {
			session_fail(s, nr, "no file descriptors left for the welcome");
			return;
		}
	}
	snprintf(w.text, sizeof(w.text), "%s", text);
	s->send_op = loop_send(s->all->cfg.loop, s->sock, &w, sizeof(w), fds, (unsigned int)nr,
			       true, done, s);
	if (!s->send_op)
		session_fail(s, -ENOMEM, "no loop operation left for the welcome");
}
