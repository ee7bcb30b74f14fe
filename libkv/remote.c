// SPDX-License-Identifier: Apache-2.0
/* remote - a session with kvd: handshake, ring calls, imports over the socket */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>
#include "call.h"
#include "queue.h"

#define HANDSHAKE_SEC 10
#define REAP_BATCH    16u
#define RING_MAX      65536u

struct remote {
	struct queue queue;
	void *shm;
	uint64_t shm_bytes;
	uint64_t next;	  /* user_data of the next request */
	int sock, fds[3]; /* fds: ring memfd, sq eventfd, cq eventfd; -1: none */
};

/* ---- socket -------------------------------------------------------------------------------- */

static int connect_error(const char *path, int err)
{
	switch (err) {
	case ENOENT:
		return err_set(-err,
			       "cannot reach kvd: no socket at %s; is kvd running? start it "
			       "with: kvd --socket %s --device host:SIZE",
			       path, path);
	case ECONNREFUSED:
		return err_set(-err,
			       "cannot reach kvd: nobody listens at %s; kvd has ended, start it "
			       "with: kvd --socket %s --device host:SIZE",
			       path, path);
	case EACCES:
	case EPERM:
		return err_set(-EACCES,
			       "cannot reach kvd: no permission for %s; ask for access to the "
			       "socket, or start a kvd of your own with --socket",
			       path);
	case EPROTOTYPE:
		return err_set(-EPROTO,
			       "%s is a socket, but not kvd's: give the path that kvd was "
			       "started with",
			       path);
	case EAGAIN:
		return err_set(-EAGAIN,
			       "kvd at %s does not accept connections: it is overloaded or "
			       "stopped",
			       path);
	default:
		return err_set(-err, "cannot reach kvd at %s: %s", path, strerror(err));
	}
}

static int connect_to(const char *path, int *out)
{
	struct sockaddr_un sun = { .sun_family = AF_UNIX };
	struct timeval tv = { .tv_sec = HANDSHAKE_SEC };
	int sock, rc = 0;

	if (!*path || strlen(path) >= sizeof(sun.sun_path))
		return err_set(-EINVAL, "unix:%s: a socket path has 1 to %zu bytes", path,
			       sizeof(sun.sun_path) - 1);
	strcpy(sun.sun_path, path);
	sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return err_set(-errno, "cannot make a socket: %s", strerror(errno));
	setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	if (connect(sock, (struct sockaddr *)&sun, sizeof(sun)))
		rc = connect_error(path, errno);
	if (rc)
		close(sock);
	else
		*out = sock;
	return rc;
}

static int send_msg(int sock, const void *msg, size_t bytes)
{
	ssize_t n;

	do {
		n = send(sock, msg, bytes, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n == (ssize_t)bytes ? 0 : -EPIPE;
}

static uint32_t take_fds(struct msghdr *mh, int *fds, uint32_t max)
{
	struct cmsghdr *cm;
	uint32_t n = 0, i, have;
	int fd;

	for (cm = CMSG_FIRSTHDR(mh); cm; cm = CMSG_NXTHDR(mh, cm)) {
		if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS)
			continue;
		have = (uint32_t)((cm->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		for (i = 0; i < have; i++) {
			memcpy(&fd, CMSG_DATA(cm) + i * sizeof(int), sizeof(fd));
			if (n < max)
				fds[n++] = fd;
			else
				close(fd);
		}
	}
	return n;
}

/* One packet of exactly bytes with up to *nr fds; -EPIPE peer gone, -ETIMEDOUT, -EPROTO. */
static int recv_msg(int sock, void *msg, size_t bytes, int *fds, uint32_t *nr, int timeout_ms)
{
	union {
		char buf[CMSG_SPACE(4 * sizeof(int))];
		struct cmsghdr align;
	} ctl;
	struct iovec iov = { .iov_base = msg, .iov_len = bytes };
	struct msghdr mh = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = ctl.buf,
		.msg_controllen = sizeof(ctl.buf),
	};
	struct pollfd pfd = { .fd = sock, .events = POLLIN };
	uint32_t max = *nr;
	ssize_t n;
	int rc;

	*nr = 0;
	do {
		rc = poll(&pfd, 1, timeout_ms);
	} while (rc < 0 && errno == EINTR);
	if (rc <= 0)
		return rc ? -errno : -ETIMEDOUT;
	n = recvmsg(sock, &mh, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (n <= 0)
		return -EPIPE;
	*nr = take_fds(&mh, fds, max);
	return n == (ssize_t)bytes && !(mh.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) ? 0 : -EPROTO;
}

/* ---- handshake ----------------------------------------------------------------------------- */

static void fill_hello(struct kv_msg_hello *h, const struct kv_options *o)
{
	const char *name = o->name && *o->name ? o->name : program_invocation_short_name;
	uint32_t i;

	*h = (struct kv_msg_hello){
		.type = KV_MSG_HELLO,
		.magic = KV_ABI_MAGIC,
		.version = KV_ABI_VERSION,
		.features = KV_FEATURES,
		.rank = o->rank,
	};
	for (i = 0; i + 1 < sizeof(h->name) && name[i]; i++)
		h->name[i] = name[i] > ' ' && name[i] < 127 ? name[i] : '_';
	if (o->member_token) {
		h->flags = KV_HELLO_MEMBER;
		memcpy(h->member_token, o->member_token, sizeof(h->member_token));
	}
}

static bool in_shm(const struct kv_msg_welcome *w, uint64_t off, uint64_t bytes)
{
	return off % 64 == 0 && off >= sizeof(struct kv_shm_header) && off <= w->shm_bytes &&
	       bytes <= w->shm_bytes - off;
}

static bool ring_size_ok(uint32_t entries)
{
	return entries && entries <= RING_MAX && !(entries & (entries - 1));
}

static bool welcome_ok(const struct kv_msg_welcome *w)
{
	return ring_size_ok(w->sq_entries) && ring_size_ok(w->cq_entries) &&
	       in_shm(w, w->sq_offset, (uint64_t)w->sq_entries * sizeof(struct kv_sqe)) &&
	       in_shm(w, w->cq_offset, (uint64_t)w->cq_entries * sizeof(struct kv_cqe)) &&
	       in_shm(w, w->data_offset, w->data_bytes) && w->data_bytes <= UINT32_MAX &&
	       w->batch_pages && w->nr_devices;
}

static int check_welcome(const struct kv *kv, const struct kv_msg_welcome *w, uint32_t nr_fds)
{
	if (w->type != KV_MSG_WELCOME || w->magic != KV_ABI_MAGIC)
		return err_set(-EPROTO, "%s: the peer is not kvd", kv->where);
	if (w->result < 0)
		return err_set(w->result, "%s: kvd refused the session: %.*s", kv->where,
			       KV_TEXT_BYTES, w->text[0] ? w->text : strerror(-w->result));
	if (w->version != KV_ABI_VERSION || (w->features & ~KV_FEATURES))
		return err_set(-EPROTO,
			       "%s: kvd speaks version %u of the protocol (features %#llx), "
			       "this libkv %u: install matching versions",
			       kv->where, w->version, (unsigned long long)w->features,
			       KV_ABI_VERSION);
	if (nr_fds != 3 || !welcome_ok(w))
		return err_set(-EPROTO, "%s: kvd sent a malformed welcome", kv->where);
	return 0;
}

static int map_shm(struct kv *kv, struct remote *r, const struct kv_msg_welcome *w)
{
	struct stat st;

	if (fstat(r->fds[0], &st) || (uint64_t)st.st_size < w->shm_bytes)
		return err_set(-EPROTO, "%s: kvd's ring memory is smaller than it says", kv->where);
	r->shm = mmap(NULL, w->shm_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->fds[0], 0);
	if (r->shm == MAP_FAILED) {
		r->shm = NULL;
		return err_set(-errno, "cannot map the ring: %s", strerror(errno));
	}
	r->shm_bytes = w->shm_bytes;
	madvise(r->shm, r->shm_bytes, MADV_DONTFORK);
	queue_init(&r->queue, r->shm, w, r->fds + 1, r->sock);
	kv->data = (uint8_t *)r->shm + w->data_offset;
	kv->data_bytes = w->data_bytes;
	return 0;
}

static int handshake(struct kv *kv, struct remote *r, const struct kv_options *o)
{
	struct kv_msg_hello hello;
	struct kv_msg_welcome w;
	uint32_t nr = 3, i;
	int fds[3], rc;

	fill_hello(&hello, o);
	rc = send_msg(r->sock, &hello, sizeof(hello));
	if (!rc)
		rc = recv_msg(r->sock, &w, sizeof(w), fds, &nr, HANDSHAKE_SEC * 1000);
	else
		nr = 0;
	for (i = 0; i < nr; i++)
		r->fds[i] = fds[i];
	if (rc == -ETIMEDOUT)
		return err_set(rc, "%s: no answer in %d s: kvd is stopped or hung", kv->where,
			       HANDSHAKE_SEC);
	if (rc)
		return err_set(rc, "%s: %s", kv->where,
			       rc == -EPIPE ? "kvd closed the connection before its welcome"
					    : "the peer is not kvd");
	rc = check_welcome(kv, &w, nr);
	if (!rc)
		rc = map_shm(kv, r, &w);
	if (rc)
		return rc;
	kv->engine = w.engine;
	kv->member = w.member;
	kv->nr_devices = w.nr_devices;
	kv->pool_bytes = w.pool_bytes;
	snprintf(kv->tenant, sizeof(kv->tenant), "%.*s", KV_NAME_BYTES - 1, w.text);
	kv->batch_pages = w.batch_pages;
	memcpy(kv->token, w.member_token, sizeof(kv->token));
	return 0;
}

/* ---- link ---------------------------------------------------------------------------------- */

static int reap(struct kv *kv, struct remote *r)
{
	struct kv_cqe cqe[REAP_BATCH];
	int i, n = queue_reap(&r->queue, cqe, REAP_BATCH);

	for (i = 0; i < n; i++)
		if (!call_answer(kv, &cqe[i]))
			return -EPROTO;
	return n;
}

/* Asleep for an answer, the engine still serves events: kvd may be waiting for this process to
 * unmap what would satisfy the very call. */
static int await(struct kv *kv, struct remote *r)
{
	int rc = reap(kv, r);

	if (rc)
		return rc < 0 ? rc : 0;
	rc = queue_wait(&r->queue, !kv->serving);
	if (!rc && !kv->serving && queue_event(&r->queue) && !kv_ring_avail(&r->queue.cq)) {
		rc = event_serve(kv, EVENT_CALLBACK);
		if (rc && !kv->dead)
			rc = 0; /* refused events are no fault of the call that waits */
	}
	return rc;
}

static int remote_call(struct kv *kv, struct call *c)
{
	struct remote *r = kv->link;
	int rc;

	c->sqe.user_data = ++r->next;
	while ((rc = queue_push(&r->queue, &c->sqe)) == -EAGAIN) {
		rc = await(kv, r);
		if (rc)
			return rc;
	}
	if (!rc)
		rc = queue_publish(&r->queue);
	while (!rc && !c->done)
		rc = await(kv, r);
	if (!c->outer)
		queue_rest(&r->queue);
	return rc;
}

static int remote_import(struct kv *kv, uint32_t extent, uint32_t shard, struct link_extent *out)
{
	struct remote *r = kv->link;
	struct kv_msg_import ask = {
		.type = KV_MSG_IMPORT,
		.extent = extent,
		.shard = shard,
		.user_data = ++r->next,
	};
	struct kv_msg_extent got;
	uint32_t nr = 1;
	int fd = -1, rc = send_msg(r->sock, &ask, sizeof(ask));

	if (!rc)
		rc = recv_msg(r->sock, &got, sizeof(got), &fd, &nr, -1);
	else
		nr = 0;
	if (!rc && (got.type != KV_MSG_EXTENT || got.user_data != ask.user_data ||
		    nr != (got.result ? 0 : 1) || got.result > 0))
		rc = -EPROTO;
	if (!rc && !got.result) {
		*out = (struct link_extent){ fd, got.bytes, got.writable != 0 };
		return 0;
	}
	if (nr)
		close(fd);
	if (rc)
		return kv_mark_dead(kv, rc == -EPROTO ? "kvd broke the protocol"
						      : "kvd is gone or ended this session");
	return err_set(got.result, "cannot map extent %u: %s", extent,
		       got.result == -ENOENT ? "it is gone; its pages were given back"
					     : strerror(-got.result));
}

static bool remote_pending(struct kv *kv)
{
	struct remote *r = kv->link;

	return queue_event(&r->queue);
}

/* An event that is there already makes the eventfd readable again: queue_arm(). */
static void remote_arm(const struct kv *kv)
{
	struct remote *r = kv->link;
	struct pollfd pfd[2] = {
		{ .fd = r->fds[2], .events = POLLIN },
		{ .fd = r->sock, .events = POLLRDHUP },
	};
	uint64_t drained;

	if (poll(pfd, 2, 0) > 0) {
		if (pfd[0].revents & POLLIN && read(r->fds[2], &drained, sizeof(drained)) < 0)
			r->queue.dead = errno == EBADF;
		if (pfd[1].revents & (POLLRDHUP | POLLHUP | POLLERR))
			r->queue.dead = true;
	}
	queue_arm(&r->queue);
}

static void remote_free(struct remote *r)
{
	uint32_t i;

	if (r->shm)
		munmap(r->shm, r->shm_bytes);
	for (i = 0; i < 3; i++)
		if (r->fds[i] >= 0)
			close(r->fds[i]);
	if (r->sock >= 0)
		close(r->sock);
	free(r);
}

static void remote_close(struct kv *kv)
{
	const struct kv_msg_bye bye = { .type = KV_MSG_BYE };
	struct remote *r = kv->link;

	if (!kv->dead)
		send_msg(r->sock, &bye, sizeof(bye));
	remote_free(r);
}

static const struct link_ops remote_ops = {
	.call = remote_call,
	.import = remote_import,
	.pending = remote_pending,
	.arm = remote_arm,
	.close = remote_close,
};

int remote_open(struct kv *kv, const char *path, const struct kv_options *o)
{
	struct remote *r = calloc(1, sizeof(*r));
	int rc;

	if (!r)
		return err_set(-ENOMEM, "no memory for a session");
	r->sock = r->fds[0] = r->fds[1] = r->fds[2] = -1;
	rc = connect_to(path, &r->sock);
	if (!rc)
		rc = handshake(kv, r, o);
	if (!rc)
		rc = kv_watch(kv, r->sock);
	if (!rc)
		rc = kv_watch(kv, r->fds[2]);
	if (rc) {
		remote_free(r);
		return rc;
	}
	kv->ops = &remote_ops;
	kv->link = r;
	return 0;
}
