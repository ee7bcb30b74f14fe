/* SPDX-License-Identifier: Apache-2.0 */
/* hostile - a client that means harm: no libkv, the ABI's headers only
 *
 * Model:      hostile.c attacks the handshake and the rings, hostile_pages.c the pool and the
 *             daemon itself. Each attack runs in a process of its own against the kvd at SOCKET,
 *             beside an honest engine that checks every byte it reads. After each: the daemon
 *             answers, mm_check holds, nothing of the attacker is left, the honest engine has
 *             gone on.
 * Invariants: an attack ends its process with 0, or says on a "# " line what did not hold. Same
 *             SEED, same attacks.
 * Ownership:  DIR is private to the test and may be written by STRANGER, the uid that attacks
 *             where the test is root.
 * See:        hostile.sh
 */
#ifndef HOSTILE_H
#define HOSTILE_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kv_abi.h"
#include "kv_admin.h"
#include "kv_ring.h"

#define STRANGER     65534
#define WAIT_MS	     20000
#define PAGE_BYTES   4096u
#define PAGE_TOKENS  8u
#define EVENTFD_FULL 0xfffffffffffffffeull

static const char *sock_path, *work_dir, *kvd_path, *churn_path;
static uint64_t rng;
static bool root;
static int failures;

struct client {
	int sock, shm, sq_fd, cq_fd;
	struct kv_msg_welcome w;
	uint8_t *base, *data;
	struct kv_shm_header *hdr;
	struct kv_sqe *sqes;
	struct kv_cqe *cqes;
	struct kv_ring sq, cq;
};

/* ---- small things -------------------------------------------------------------------------- */

static inline uint64_t dice(void)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	return rng ^= rng << 17;
}

static inline uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* Between two looks at something that only the daemon can change. */
static inline void pause_ms(long ms)
{
	const struct timespec ts = { .tv_nsec = ms * 1000000 };

	nanosleep(&ts, NULL);
}

static inline void verdict(bool good, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline void verdict(bool good, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs(good ? "ok " : "not ok ", stdout);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
	failures += !good;
}

/* In an attacker: what must be true. */
#define MUST(cond) \
	do { \
		if (!(cond)) { \
			printf("# %s:%d: %s (errno %d)\n", __func__, __LINE__, #cond, errno); \
			fflush(stdout); \
			_exit(1); \
		} \
	} while (0)

static inline void become(uid_t uid)
{
	if (root && (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid)))
		_exit(3);
	signal(SIGPIPE, SIG_IGN);
}

static inline int status_of(pid_t pid)
{
	int st;

	while (waitpid(pid, &st, 0) < 0)
		if (errno != EINTR)
			return -1;
	return WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
}

/* ---- the wire ------------------------------------------------------------------------------ */

static inline int dial(const char *path)
{
	struct sockaddr_un sun = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(sun.sun_path, sizeof(sun.sun_path), "%.100s", path);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&sun, sizeof(sun))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static inline bool send_fd(int sock, const void *msg, size_t len, int fd)
{
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} ctl = { { 0 } };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)msg, .iov_len = len };
	struct msghdr mh = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (fd >= 0) {
		mh.msg_control = ctl.buf;
		mh.msg_controllen = sizeof(ctl.buf);
		ctl.align.cmsg_level = SOL_SOCKET;
		ctl.align.cmsg_type = SCM_RIGHTS;
		ctl.align.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&ctl.align), &fd, sizeof(fd));
	}
	return sendmsg(sock, &mh, MSG_NOSIGNAL) == (ssize_t)len;
}

/* Bytes of one packet, 0 at its end, -1 when nothing comes; fds[3], -1 where there is none. */
static inline ssize_t hear(int sock, void *buf, size_t len, int *fds)
{
	union {
		char buf[CMSG_SPACE(3 * sizeof(int))];
		struct cmsghdr align;
	} ctl;
	struct iovec iov = { .iov_base = buf, .iov_len = len };
	struct msghdr mh = { .msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = ctl.buf,
			     .msg_controllen = sizeof(ctl.buf) };
	struct pollfd p = { .fd = sock, .events = POLLIN };
	struct cmsghdr *c;
	ssize_t n;

	fds[0] = fds[1] = fds[2] = -1;
	if (poll(&p, 1, WAIT_MS) <= 0)
		return -1;
	n = recvmsg(sock, &mh, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (n < 0)
		return errno == ECONNRESET || errno == EPIPE ? 0 : -1;
	c = CMSG_FIRSTHDR(&mh);
	if (c && c->cmsg_type == SCM_RIGHTS)
		memcpy(fds, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
	return n;
}

static inline bool hung_up(int sock)
{
	struct pollfd p = { .fd = sock, .events = POLLRDHUP };

	return poll(&p, 1, WAIT_MS) > 0;
}

static inline struct kv_msg_hello hello_of(const char *name, const uint8_t *token)
{
	struct kv_msg_hello h = { .type = KV_MSG_HELLO,
				  .magic = KV_ABI_MAGIC,
				  .version = KV_ABI_VERSION,
				  .features = KV_FEATURES };

	snprintf(h.name, sizeof(h.name), "%s", name);
	if (token) {
		h.flags = KV_HELLO_MEMBER;
		memcpy(h.member_token, token, sizeof(h.member_token));
	}
	return h;
}

/* 0, or what the welcome refused with; 1: no welcome at all. */
static inline int join_at(struct client *c, const char *path, const uint8_t *token)
{
	struct kv_msg_hello h = hello_of("hostile", token);
	int fds[3];

	memset(c, 0, sizeof(*c));
	c->sock = dial(path);
	if (c->sock < 0 || !send_fd(c->sock, &h, sizeof(h), -1) ||
	    hear(c->sock, &c->w, sizeof(c->w), fds) != sizeof(c->w))
		return 1;
	if (c->w.result)
		return c->w.result;
	c->shm = fds[0];
	c->sq_fd = fds[1];
	c->cq_fd = fds[2];
	c->base = mmap(NULL, c->w.shm_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->shm, 0);
	if (c->base == MAP_FAILED)
		return 1;
	c->hdr = (struct kv_shm_header *)c->base;
	c->sqes = (struct kv_sqe *)(c->base + c->w.sq_offset);
	c->cqes = (struct kv_cqe *)(c->base + c->w.cq_offset);
	c->data = c->base + c->w.data_offset;
	kv_ring_init(&c->sq, &c->hdr->sq_head, &c->hdr->sq_tail, c->w.sq_entries);
	kv_ring_init(&c->cq, &c->hdr->cq_head, &c->hdr->cq_tail, c->w.cq_entries);
	return 0;
}

static inline int join(struct client *c)
{
	return join_at(c, sock_path, NULL);
}

static inline void leave(struct client *c)
{
	const struct kv_msg_bye bye = { .type = KV_MSG_BYE };

	send_fd(c->sock, &bye, sizeof(bye), -1);
	munmap(c->base, c->w.shm_bytes);
	close(c->sock);
	close(c->shm);
	close(c->sq_fd);
	close(c->cq_fd);
}

static inline void ring_bell(const struct client *c)
{
	const uint64_t one = 1;

	if (write(c->sq_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		printf("# the bell is broken: %d\n", errno);
}

static inline void push(struct client *c, const struct kv_sqe *sqe)
{
	c->sqes[kv_ring_at(&c->sq, 0)] = *sqe;
	kv_ring_publish(&c->sq, 1);
	if (kv_ring_peer_sleeps(&c->hdr->sq_need_wakeup))
		ring_bell(c);
}

/* False: the session ended, or nothing came. */
static inline bool take(struct client *c, struct kv_cqe *out)
{
	struct pollfd p[2] = { { .fd = c->cq_fd, .events = POLLIN },
			       { .fd = c->sock, .events = POLLRDHUP } };
	uint64_t until = now_ms() + WAIT_MS, count;

	for (;;) {
		kv_ring_will_sleep(&c->hdr->cq_need_wakeup);
		if (kv_ring_avail(&c->cq) > 0)
			break;
		if (now_ms() > until || poll(p, 2, WAIT_MS) <= 0 || p[1].revents)
			return false;
		if (read(c->cq_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
			return false;
	}
	kv_ring_awake(&c->hdr->cq_need_wakeup);
	*out = c->cqes[kv_ring_at(&c->cq, 0)];
	kv_ring_consume(&c->cq, 1);
	return true;
}

static inline struct kv_cqe call(struct client *c, struct kv_sqe sqe)
{
	struct kv_cqe cqe = { .res = -EPIPE };

	push(c, &sqe);
	take(c, &cqe);
	return cqe;
}

static inline int nop(struct client *c)
{
	return call(c, (struct kv_sqe){ .op = KV_OP_NOP }).res;
}

static inline void must_end(struct client *c)
{
	MUST(hung_up(c->sock));
	MUST(__atomic_load_n(&c->hdr->dead, __ATOMIC_ACQUIRE) == 1);
}

/* ---- what an honest raw client does -------------------------------------------------------- */

#define IN_OFF	0u
#define OUT_OFF 65536u

/* key 0: private */
static inline uint32_t open_cache(struct client *c, uint8_t key, uint64_t page_bytes)
{
	struct kv_cache_desc d = { .page_tokens = PAGE_TOKENS, .nr_groups = 1, .nr_shards = 1 };

	memset(d.model_key, key, sizeof(d.model_key));
	d.group[0].kind = 1;
	d.shard[0].page_bytes[0] = page_bytes;
	memcpy(c->data + IN_OFF, &d, sizeof(d));
	return call(c, (struct kv_sqe){ .op = KV_OP_CACHE_OPEN,
					.in_off = IN_OFF,
					.in_bytes = sizeof(d),
					.out_off = OUT_OFF,
					.out_bytes = sizeof(struct kv_cache_geom) })
		.id;
}

static inline int alloc_pages(struct client *c, uint32_t cache, uint32_t nr, uint64_t *ids)
{
	struct kv_cqe cqe = call(c, (struct kv_sqe){ .op = KV_OP_ALLOC,
						     .cache = cache,
						     .nr = nr,
						     .arg = 2000,
						     .out_off = OUT_OFF,
						     .out_bytes = nr * 8 });

	if (!cqe.res)
		memcpy(ids, c->data + OUT_OFF, nr * 8);
	return cqe.res;
}

static inline int free_pages(struct client *c, const uint64_t *ids, uint32_t nr)
{
	memcpy(c->data + IN_OFF, ids, nr * 8);
	return call(c,
		    (struct kv_sqe){
			    .op = KV_OP_FREE, .nr = nr, .in_off = IN_OFF, .in_bytes = nr * 8 })
		.res;
}

/* One full page of the token t. */
static inline int commit_page(struct client *c, uint32_t cache, uint32_t t, uint64_t id)
{
	struct {
		struct kv_commit_in in;
		uint32_t token[PAGE_TOKENS];
		uint64_t id;
	} m = {
		.in = { .nr_tokens = PAGE_TOKENS, .nr_pages = 1, .nr_groups = 1 },
		.id = id,
	};

	for (uint32_t i = 0; i < PAGE_TOKENS; i++)
		m.token[i] = t;
	memcpy(c->data + IN_OFF, &m, sizeof(m));
	return call(c, (struct kv_sqe){ .op = KV_OP_COMMIT,
					.cache = cache,
					.in_off = IN_OFF,
					.in_bytes = sizeof(m),
					.out_off = OUT_OFF,
					.out_bytes = 8 })
		.res;
}

static inline uint32_t extent_of(uint64_t id)
{
	return (uint32_t)(id >> 44);
}

/* The fd, or -errno. */
static inline int import(struct client *c, uint32_t extent, struct kv_msg_extent *x)
{
	const struct kv_msg_import m = { .type = KV_MSG_IMPORT, .extent = extent };
	int fds[3];

	if (!send_fd(c->sock, &m, sizeof(m), -1) || hear(c->sock, x, sizeof(*x), fds) != sizeof(*x))
		return -EPIPE;
	return x->result ? x->result : fds[0];
}

static inline int unimport(struct client *c, uint32_t extent)
{
	return call(c, (struct kv_sqe){ .op = KV_OP_UNIMPORT, .id = extent }).res;
}

/* ---- the admin's view ---------------------------------------------------------------------- */

/* Number of records, or -1: no answer within ms. */
static inline int ask_at(const char *path, uint32_t cmd, void *out, size_t record, unsigned int max,
			 int ms)
{
	static uint64_t packet[KV_ADMIN_PACKET / 8];
	const struct kv_admin_request rq = { .magic = KV_ADMIN_MAGIC,
					     .version = KV_ABI_VERSION,
					     .cmd = cmd };
	const struct kv_admin_head *h = (struct kv_admin_head *)packet;
	char admin[128];
	struct pollfd p = { .events = POLLIN };
	int n = -1;

	snprintf(admin, sizeof(admin), "%s.admin", path);
	p.fd = dial(admin);
	if (p.fd >= 0 && send(p.fd, &rq, sizeof(rq), MSG_NOSIGNAL) == sizeof(rq) &&
	    poll(&p, 1, ms) > 0 && recv(p.fd, packet, sizeof(packet), 0) > 0 && !h->result &&
	    h->record_bytes == record) {
		n = (int)(h->nr < max ? h->nr : max);
		memcpy(out, h + 1, (size_t)n * record);
	}
	if (p.fd >= 0)
		close(p.fd);
	return n;
}

#define ask(cmd, out, max) ask_at(sock_path, cmd, out, sizeof(*(out)), max, WAIT_MS)

static struct kv_admin_engine engines[300];

static inline const struct kv_admin_engine *engine_with(uint32_t id, const char *name)
{
	int n = ask(KV_ADMIN_ENGINES, engines, 300);

	for (int i = 0; i < n; i++)
		if (name ? !strcmp(engines[i].name, name) : engines[i].engine == id)
			return &engines[i];
	return NULL;
}

static inline uint64_t quarantined(uint32_t engine)
{
	const struct kv_admin_engine *e = engine_with(engine, NULL);

	return e ? e->quarantined_pages : 0;
}

/* ---- the honest engine --------------------------------------------------------------------- */

static pid_t bystander;

static inline void start_bystander(void)
{
	char spec[160], seed[24];

	snprintf(spec, sizeof(spec), "unix:%s", sock_path);
	snprintf(seed, sizeof(seed), "%u", (unsigned int)dice());
	bystander = fork();
	if (!bystander) {
		execl(churn_path, churn_path, spec, seed, "1000000000", "bystander", NULL);
		_exit(127);
	}
}

static inline uint64_t progress(void)
{
	const struct kv_admin_engine *e = engine_with(0, "bystander");

	return e ? e->allocs + e->frees + e->commits + e->lookup_tokens : 0;
}

static inline bool moves_on(void)
{
	uint64_t was = progress(), until = now_ms() + WAIT_MS;

	while (now_ms() < until) {
		if (waitpid(bystander, NULL, WNOHANG))
			return false;
		if (progress() > was)
			return true;
		pause_ms(1);
	}
	return false;
}

/* Nothing of anybody but the bystander is left, and all is well. NULL, or what is not. */
static inline const char *unwell(void)
{
	struct kv_admin_status st = { 0 };
	uint64_t until = now_ms() + WAIT_MS;

	do {
		if (ask(KV_ADMIN_STATUS, &st, 1) != 1)
			return "kvd does not answer";
		if ((st.nr_sessions == 1 && st.nr_engines == 1) || kill(bystander, 0) ||
		    waitpid(bystander, NULL, WNOHANG))
			break;
		pause_ms(2);
	} while (now_ms() < until);
	if (kill(bystander, 0)) {
		start_bystander(); /* the next attack has one again */
		return "the bystander is dead";
	}
	if (st.nr_sessions != 1 || st.nr_engines != 1)
		return "the attacker's session or engine is still there";
	if (ask(KV_ADMIN_CHECK, &st, 1) != 1)
		return "the self-check does not answer";
	return moves_on() ? NULL : "the bystander is disturbed";
}

/* What an attack prints after "# " explains a "not ok". */
static inline void attack(const char *name, void (*fn)(void))
{
	const char *ill;
	int st;
	pid_t pid = fork();

	if (!pid) {
		signal(SIGPIPE, SIG_IGN);
		alarm(50);
		fn();
		_exit(0);
	}
	st = status_of(pid);
	ill = unwell();
	if (ill)
		printf("# %s: %s\n", name, ill);
	verdict(st == 0 && !ill, "%s", name);
}

/* ---- kvd from outside --------------------------------------------------------------------- */

static inline pid_t kvd_pid(void)
{
	struct kv_admin_status st = { 0 };

	return ask(KV_ADMIN_STATUS, &st, 1) == 1 ? (pid_t)st.pid : -1;
}

static inline int count_fds(void)
{
	char path[40];
	int n = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", kvd_pid());
	d = opendir(path);
	if (!d)
		return -1;
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static int fds_before;

static inline bool fds_are_back(void)
{
	uint64_t until = now_ms() + WAIT_MS;
	int n;

	/* The bystander's extents come and go. */
	while ((n = count_fds()) > fds_before + 32 && now_ms() < until)
		pause_ms(5);
	if (n > fds_before + 32)
		printf("# kvd has %d open files, it had %d\n", n, fds_before);
	return n <= fds_before + 32;
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* only: a part of a name, or NULL for all. */
static inline void run(const char *name, void (*fn)(void), const char *only)
{
	if (!only || strstr(name, only))
		attack(name, fn);
}

static inline int hostile_main(int argc, char **argv, void (*all)(const char *only))
{
	const char *only = argc > 6 ? argv[6] : NULL;

	if (argc < 6) {
		fputs("usage: hostile KVD CHURN SOCKET DIR SEED [PART OF A NAME]\n", stderr);
		return 2;
	}
	kvd_path = argv[1];
	churn_path = argv[2];
	sock_path = argv[3];
	work_dir = argv[4];
	rng = strtoul(argv[5], NULL, 10) * 0x9e3779b97f4a7c15ull + 1;
	root = geteuid() == 0;
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	start_bystander();
	for (uint64_t until = now_ms() + WAIT_MS; !progress() && now_ms() < until;)
		pause_ms(5);
	verdict(!unwell(), "all is well before the attacks");
	fds_before = count_fds();
	all(only);
	if (fds_before >= 0)
		verdict(fds_are_back(), "kvd has no more open files than before");
	else
		puts("skip kvd's open files: only root may count them");
	verdict(!waitpid(bystander, NULL, WNOHANG), "the bystander read nothing wrong");
	kill(bystander, SIGKILL);
	status_of(bystander);
	return failures != 0;
}

#endif
