/* SPDX-License-Identifier: Apache-2.0 */
/* raw_client - a client written from ipc/ alone, and a daemon in a thread, for tests that misbehave
 *
 * Model:      raw_open says hello and maps the rings; raw_call is one request and its answer;
 *             everything inside struct raw may be abused. raw_daemon_* runs a server on a private
 *             socket; raw_admin asks it.
 * Context:    waits end at RAW_DEADLINE_MS with an error, never with a hang.
 */
#ifndef RAW_CLIENT_H
#define RAW_CLIENT_H

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "kv_abi.h"
#include "kv_admin.h"
#include "kv_ring.h"
#include "srv/control.h"
#include "srv/server.h"

#define RAW_DEADLINE_MS	20000

struct raw {
	int sock, fds[3];	/* memfd, sq eventfd, cq eventfd */
	struct kv_msg_welcome w;
	uint8_t *shm, *data;
	struct kv_shm_header *hdr;
	struct kv_sqe *sqes;
	struct kv_cqe *cqes;
	struct kv_ring sq, cq;
	uint32_t cache;
};

/* ---- sockets ------------------------------------------------------------------------------- */

static inline int raw_connect(const char *path)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
	if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0) {
		close(fd);
		return -errno;
	}
	return fd;
}

static inline int raw_send(int sock, const void *data, size_t len, const int *fd)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)data, .iov_len = len };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *c = (struct cmsghdr *)control;

	if (fd) {
		m.msg_control = control;
		m.msg_controllen = sizeof(control);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), fd, sizeof(int));
	}
	return sendmsg(sock, &m, MSG_NOSIGNAL) == (ssize_t)len ? 0 : -errno;
}

/* Bytes of one packet, 0 at its end, -ETIMEDOUT. fds: up to 3, *nr of them. */
static inline ssize_t raw_recv(int sock, void *buf, size_t len, int *fds, unsigned int *nr)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))] = { 0 };
	struct iovec iov = { .iov_base = buf, .iov_len = len };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
			    .msg_controllen = sizeof(control) };
	struct pollfd p = { .fd = sock, .events = POLLIN };
	struct cmsghdr *c;
	ssize_t n;

	if (poll(&p, 1, RAW_DEADLINE_MS) != 1)
		return -ETIMEDOUT;
	n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	if (n < 0)
		return -errno;
	c = CMSG_FIRSTHDR(&m);
	if (nr)
		*nr = c ? (unsigned int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int)) : 0;
	if (nr && *nr)
		memcpy(fds, CMSG_DATA(c), *nr * sizeof(int));
	return n;
}

/* The peer closed or shut down, within the deadline. Packets before that are thrown away. */
static inline bool raw_hung_up(int sock)
{
	char buf[512];
	ssize_t n;

	do
		n = raw_recv(sock, buf, sizeof(buf), NULL, NULL);
	while (n > 0);
	return n == 0 || n == -ECONNRESET;
}

/* ---- handshake ----------------------------------------------------------------------------- */

static inline struct kv_msg_hello raw_hello(const char *name)
{
	struct kv_msg_hello h = {
		.type = KV_MSG_HELLO, .magic = KV_ABI_MAGIC, .version = KV_ABI_VERSION,
		.features = KV_FEATURES,
	};

	snprintf(h.name, sizeof(h.name), "%s", name);
	return h;
}

static inline int raw_map(struct raw *r)
{
	r->shm = mmap(NULL, r->w.shm_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->fds[0], 0);
	if (r->shm == MAP_FAILED)
		return -errno;
	r->hdr = (struct kv_shm_header *)r->shm;
	r->sqes = (struct kv_sqe *)(r->shm + r->w.sq_offset);
	r->cqes = (struct kv_cqe *)(r->shm + r->w.cq_offset);
	r->data = r->shm + r->w.data_offset;
	kv_ring_init(&r->sq, &r->hdr->sq_head, &r->hdr->sq_tail, r->w.sq_entries);
	kv_ring_init(&r->cq, &r->hdr->cq_head, &r->hdr->cq_tail, r->w.cq_entries);
	return 0;
}

/* welcome.result, or what went wrong before it. */
static inline int raw_open_with(struct raw *r, const char *path, const struct kv_msg_hello *h)
{
	unsigned int nr = 0;
	ssize_t n;

	*r = (struct raw){ .sock = raw_connect(path), .fds = { -1, -1, -1 } };
	if (r->sock < 0)
		return r->sock;
	raw_send(r->sock, h, sizeof(*h), NULL);
	n = raw_recv(r->sock, &r->w, sizeof(r->w), r->fds, &nr);
	if (n != sizeof(r->w) || r->w.type != KV_MSG_WELCOME)
		return n < 0 ? (int)n : -EBADMSG;
	if (r->w.result < 0)
		return nr ? -EBADMSG : r->w.result;
	return nr == 3 ? raw_map(r) : -EBADMSG;
}

static inline int raw_open(struct raw *r, const char *path, const char *name)
{
	struct kv_msg_hello h = raw_hello(name);

	return raw_open_with(r, path, &h);
}

static inline int raw_join(struct raw *r, const char *path, const uint8_t *token, uint32_t rank)
{
	struct kv_msg_hello h = raw_hello("rank");

	h.flags = KV_HELLO_MEMBER;
	h.rank = rank;
	memcpy(h.member_token, token, sizeof(h.member_token));
	return raw_open_with(r, path, &h);
}

static inline void raw_unmap(struct raw *r)
{
	if (r->shm)
		munmap(r->shm, r->w.shm_bytes);
	r->shm = NULL;
	for (int i = 0; i < 3; i++) {
		if (r->fds[i] >= 0)
			close(r->fds[i]);
		r->fds[i] = -1;
	}
}

static inline void raw_close(struct raw *r)
{
	raw_unmap(r);
	if (r->sock >= 0)
		close(r->sock);
	r->sock = -1;
}

static inline int raw_bye(struct raw *r)
{
	struct kv_msg_bye bye = { .type = KV_MSG_BYE };

	return raw_send(r->sock, &bye, sizeof(bye), NULL);
}

/* ---- ring ---------------------------------------------------------------------------------- */

static inline void raw_ring_bell(struct raw *r)
{
	uint64_t one = 1;

	if (kv_ring_peer_sleeps(&r->hdr->sq_need_wakeup) &&
	    write(r->fds[1], &one, sizeof(one)) != sizeof(one))
		abort();
}

static inline bool raw_push(struct raw *r, const struct kv_sqe *e)
{
	if (kv_ring_room(&r->sq) <= 0)
		return false;
	r->sqes[kv_ring_at(&r->sq, 0)] = *e;
	kv_ring_publish(&r->sq, 1);
	raw_ring_bell(r);
	return true;
}

static inline bool raw_is_dead(const struct raw *r)
{
	return __atomic_load_n(&r->hdr->dead, __ATOMIC_ACQUIRE) != 0;
}

/* Sleeps like a good client: 1 with an answer, 0 when the session is dead, -ETIMEDOUT. */
static inline int raw_wait(struct raw *r, struct kv_cqe *out)
{
	struct pollfd p[2] = {{.fd = r->fds[2], .events = POLLIN}, {.fd = r->sock, .events = 0}};
	uint64_t count;

	for (;;) {
		if (kv_ring_avail(&r->cq) > 0) {
			*out = r->cqes[kv_ring_at(&r->cq, 0)];
			kv_ring_consume(&r->cq, 1);
			return 1;
		}
		if (raw_is_dead(r))
			return 0;
		p[0].revents = p[1].revents = 0;
		kv_ring_will_sleep(&r->hdr->cq_need_wakeup);
		if (kv_ring_avail(&r->cq) == 0 && !raw_is_dead(r) &&
		    poll(p, 2, RAW_DEADLINE_MS) == 0)
			return -ETIMEDOUT;
		kv_ring_awake(&r->hdr->cq_need_wakeup);
		if (p[0].revents & POLLIN && read(r->fds[2], &count, sizeof(count)) < 0)
			return -errno;
		if (p[1].revents & POLLHUP && kv_ring_avail(&r->cq) == 0)
			return 0;
	}
}

/* The answer's res; -EPIPE when the session ended instead. */
static inline int raw_call(struct raw *r, const struct kv_sqe *e, struct kv_cqe *out)
{
	int ret;

	*out = (struct kv_cqe){ 0 };
	if (!raw_push(r, e))
		return -ENOBUFS;
	ret = raw_wait(r, out);
	return ret == 1 ? out->res : ret == 0 ? -EPIPE : ret;
}

/* A private cache with pages of 4 KiB; its input stands at offset 0, output behind it. */
static inline int raw_open_cache(struct raw *r)
{
	struct kv_cache_desc desc = { .page_tokens = 16, .nr_groups = 1, .nr_shards = 1 };
	struct kv_sqe e = { .op = KV_OP_CACHE_OPEN, .in_bytes = sizeof(desc), .out_off = 4096,
			    .out_bytes = sizeof(struct kv_cache_geom) };
	struct kv_cqe c;
	int ret;

	desc.layout_key[0] = 1;
	desc.group[0].kind = 1;
	desc.shard[0].page_bytes[0] = 4096;
	memcpy(r->data, &desc, sizeof(desc));
	ret = raw_call(r, &e, &c);
	r->cache = c.id;
	return ret;
}

/* nr page ids into ids; they also stand at offset 8192 of the data area. */
static inline int raw_alloc(struct raw *r, uint32_t nr, uint64_t *ids)
{
	struct kv_sqe e = { .op = KV_OP_ALLOC, .cache = r->cache, .nr = nr, .out_off = 8192,
			    .out_bytes = nr * (uint32_t)sizeof(*ids) };
	struct kv_cqe c;
	int ret = raw_call(r, &e, &c);

	if (ret == 0)
		memcpy(ids, r->data + 8192, nr * sizeof(*ids));
	return ret;
}

static inline int raw_free(struct raw *r, uint32_t nr, const uint64_t *ids)
{
	struct kv_sqe e = { .op = KV_OP_FREE, .nr = nr, .in_off = 8192,
			    .in_bytes = nr * (uint32_t)sizeof(*ids) };
	struct kv_cqe c;

	memcpy(r->data + 8192, ids, nr * sizeof(*ids));
	return raw_call(r, &e, &c);
}

/* The fd of an extent, or the answer's -errno. */
static inline int raw_import(struct raw *r, uint32_t extent, uint32_t shard,
			     struct kv_msg_extent *x)
{
	struct kv_msg_import m = { .type = KV_MSG_IMPORT, .extent = extent, .shard = shard,
				   .user_data = 77 };
	unsigned int nr = 0;
	int fds[3];
	ssize_t n;

	if (raw_send(r->sock, &m, sizeof(m), NULL) < 0)
		return -EPIPE;
	n = raw_recv(r->sock, x, sizeof(*x), fds, &nr);
	if (n <= 0)
		return n < 0 ? (int)n : -EPIPE;
	if (n != sizeof(*x) || x->type != KV_MSG_EXTENT || x->user_data != 77)
		return -EBADMSG;
	if (x->result < 0)
		return nr ? -EBADMSG : x->result;
	return nr == 1 ? fds[0] : -EBADMSG;
}

static inline int raw_unimport(struct raw *r, uint32_t extent, uint32_t shard)
{
	struct kv_sqe e = { .op = KV_OP_UNIMPORT, .id = extent, .nr = shard };
	struct kv_cqe c;

	return raw_call(r, &e, &c);
}

/* ---- admin --------------------------------------------------------------------------------- */

/* Records of one answer packet at most: how many, or -errno. */
static inline int raw_admin_ask(const char *path, uint32_t cmd, struct kv_admin_request *req,
				size_t req_bytes, void *records, size_t bytes)
{
	static _Thread_local char packet[KV_ADMIN_PACKET];
	struct kv_admin_head head = { 0 };
	char admin[CONTROL_PATH_BYTES];
	ssize_t n;
	int fd;

	snprintf(admin, sizeof(admin), "%.101s.admin", path);
	fd = raw_connect(admin);
	if (fd < 0)
		return fd;
	*req = (struct kv_admin_request){ KV_ADMIN_MAGIC, KV_ABI_VERSION, cmd, 0 };
	raw_send(fd, req, req_bytes, NULL);
	n = raw_recv(fd, packet, sizeof(packet), NULL, NULL);
	close(fd);
	if (n < (ssize_t)sizeof(head))
		return -EBADMSG;
	memcpy(&head, packet, sizeof(head));
	if (head.result < 0)
		return head.result;
	if ((size_t)n - sizeof(head) > bytes)
		return -EMSGSIZE;
	memcpy(records, packet + sizeof(head), (size_t)n - sizeof(head));
	return (int)head.nr;
}

static inline int raw_admin(const char *path, uint32_t cmd, void *records, size_t bytes)
{
	struct kv_admin_request req;

	return raw_admin_ask(path, cmd, &req, sizeof(req), records, bytes);
}

/* ---- daemon -------------------------------------------------------------------------------- */

struct raw_daemon {
	struct control control;
	struct server *server;
	pthread_t thread;
	char dir[64];
	const char *path;
};

static inline void *raw_daemon_run(void *arg)
{
	server_run(((struct raw_daemon *)arg)->server);
	return NULL;
}

/* Defaults for tests: 64 MiB, every invariant proved after every request. */
static inline int raw_daemon_prepare(struct raw_daemon *d)
{
	char err[512], path[96];

	memset(d, 0, sizeof(*d));
	snprintf(d->dir, sizeof(d->dir), "%s/kvd-test-XXXXXX", "/tmp");
	if (!mkdtemp(d->dir))
		return -errno;
	snprintf(path, sizeof(path), "%s/kvd.sock", d->dir);
	control_init(&d->control);
	control_set(&d->control, "device", "host:64M", err, sizeof(err));
	control_set(&d->control, "socket", path, err, sizeof(err));
	control_set(&d->control, "check_every", "1", err, sizeof(err));
	control_set(&d->control, "data_bytes", "1M", err, sizeof(err));
	d->path = d->control.socket;
	return 0;
}

static inline int raw_daemon_start(struct raw_daemon *d)
{
	char err[512] = "";
	int ret = server_create(&d->server, &d->control, false, err, sizeof(err));

	if (ret < 0) {
		fprintf(stderr, "server_create: %s\n", err);
		return ret;
	}
	return -pthread_create(&d->thread, NULL, raw_daemon_run, d);
}

static inline void raw_daemon_stop(struct raw_daemon *d)
{
	if (!d->server)
		return;
	server_stop(d->server);
	pthread_join(d->thread, NULL);
	server_destroy(d->server);
	d->server = NULL;
	rmdir(d->dir);
}

/* ---- waiting for what must become true ------------------------------------------------------ */

static inline uint64_t raw_now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

#define RAW_EVENTUALLY(cond) ({ \
	uint64_t until_ = raw_now_ms() + RAW_DEADLINE_MS; \
	bool ok_ = false; \
	while (!(ok_ = (cond)) && raw_now_ms() < until_) \
		usleep(1000); \
	ok_; })

#endif
