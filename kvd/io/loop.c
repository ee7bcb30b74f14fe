// SPDX-License-Identifier: Apache-2.0
#include "io/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S	1000000000ull
#define SQ_ENTRIES	256u
#define CQ_ENTRIES	4096u
#define REAP_BATCH	64u
#define STOP_NS		(2 * NS_PER_S)
#define DUE_NS		(NS_PER_S / 100)	/* between two tries at what the kernel refused */

enum op_kind {
	OP_FREE = 0,
	OP_POLL,
	OP_ACCEPT,
	OP_RECV,
	OP_SEND,
	OP_SIGNAL,
	OP_TIMEOUT,
	OP_CLOSE,	/* never the kernel's: an fd to close when it cannot be named any more */
};

/* Everything the kernel points into while a message is in flight. */
struct packet {
	struct msghdr hdr;
	struct iovec iov;
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(LOOP_MAX_FDS * sizeof(int))];
	int fds[LOOP_MAX_FDS];
	unsigned int nr_fds;	/* to be closed when the kernel is done */
	char data[];
};

struct op {
	enum op_kind kind;
	bool cancelled;
	bool due_start, due_cancel;	/* the submission queue had no room */
	uint32_t gen;
	int fd;
	loop_fn *fn;
	void *ctx;
	uint32_t next_free;	/* index + 1 */
	union {
		struct packet *packet;
		struct __kernel_timespec at;
		uint64_t one;
	};
};

struct loop {
	struct io_uring ring;
	bool started;
	uint32_t nr_ops, nr_live, free_head;	/* index + 1 */
	uint32_t nr_due;		/* due bits set, and OP_CLOSE */
	uint64_t wakeups;
	struct op op[];
};

struct reaped {
	uint64_t user_data;
	int res;
	uint32_t flags;
};

uint64_t loop_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* Best flags first; older kernels answer -EINVAL to what they do not know. */
static int ring_init(struct loop *l)
{
	static const unsigned int flags[] = {
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_R_DISABLED,
		IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_R_DISABLED,
		IORING_SETUP_R_DISABLED,
	};
	int ret = -EINVAL;

	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]) && ret == -EINVAL; i++) {
		struct io_uring_params p = {
			.flags = flags[i] | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
			.cq_entries = CQ_ENTRIES,
		};

		ret = io_uring_queue_init_params(SQ_ENTRIES, &l->ring, &p);
	}
	return ret;
}

int loop_create(struct loop **out, unsigned int max_ops)
{
	struct loop *l = calloc(1, sizeof(*l) + max_ops * sizeof(l->op[0]));
	int ret;

	if (!l)
		return -ENOMEM;
	ret = ring_init(l);
	if (ret < 0) {
		free(l);
		return ret;
	}
	l->nr_ops = max_ops;
	for (uint32_t i = max_ops; i > 0; i--) {
		l->op[i - 1].next_free = l->free_head;
		l->free_head = i;
	}
	*out = l;
	return 0;
}

const char *loop_create_hint(int err)
{
	switch (err) {
	case -EPERM:
		return "io_uring is disabled: set sysctl kernel.io_uring_disabled=0, or =1 and "
		       "kernel.io_uring_group to a group of kvd";
	case -ENOSYS:
		return "this kernel or container has no io_uring: kvd needs Linux 5.19 or later "
		       "and a seccomp profile that lets io_uring_setup through";
	case -ENOMEM:
		return "no memory for io_uring: raise RLIMIT_MEMLOCK (ulimit -l)";
	default:
		return strerror(-err);
	}
}

static uint64_t op_id(const struct loop *l, const struct op *op)
{
	return (uint64_t)op->gen << 32 | (uint64_t)(op - l->op + 1);
}

static struct op *op_find(struct loop *l, uint64_t id)
{
	uint32_t slot = (uint32_t)id;
	struct op *op;

	if (slot == 0 || slot > l->nr_ops)
		return NULL;
	op = &l->op[slot - 1];
	return op->kind != OP_FREE && op->gen == (uint32_t)(id >> 32) ? op : NULL;
}

static struct op *op_get(struct loop *l, enum op_kind kind, int fd, loop_fn *fn, void *ctx)
{
	struct op *op;

	if (!l->free_head)
		return NULL;
	op = &l->op[l->free_head - 1];
	l->free_head = op->next_free;
	*op = (struct op){ .kind = kind, .gen = op->gen + 1, .fd = fd, .fn = fn, .ctx = ctx };
	l->nr_live++;
	return op;
}

static void packet_free(struct packet *p)
{
	if (!p)
		return;
	for (unsigned int i = 0; i < p->nr_fds; i++)
		close(p->fds[i]);
	free(p);
}

static void op_put(struct loop *l, struct op *op)
{
	op->kind = OP_FREE;
	op->next_free = l->free_head;
	l->free_head = (uint32_t)(op - l->op + 1);
	l->nr_live--;
}

static void submit(struct loop *l)
{
	if (l->started && io_uring_sq_ready(&l->ring))
		io_uring_submit(&l->ring);
}

/* NULL when the queue is full and the kernel takes nothing: before the loop runs, or when it is
 * short of memory. What was to be done is then due, and loop_wait comes back to it. */
static struct io_uring_sqe *get_sqe(struct loop *l)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&l->ring);

	if (!sqe) {
		submit(l);
		sqe = io_uring_get_sqe(&l->ring);
	}
	return sqe;
}

static void prep(struct op *op, struct io_uring_sqe *sqe)
{
	switch (op->kind) {
	case OP_POLL:
		io_uring_prep_poll_multishot(sqe, op->fd, POLLIN);
		break;
	case OP_ACCEPT:
		io_uring_prep_accept(sqe, op->fd, NULL, NULL, SOCK_CLOEXEC);
		break;
	case OP_RECV:
		io_uring_prep_recvmsg(sqe, op->fd, &op->packet->hdr, MSG_CMSG_CLOEXEC);
		break;
	case OP_SEND:
		io_uring_prep_sendmsg(sqe, op->fd, &op->packet->hdr, MSG_NOSIGNAL);
		break;
	case OP_SIGNAL:
		/* Never on this thread: the client shares the eventfd's O_NONBLOCK, and toggling it
		 * beside a full counter can make a write sleep that was checked not to. */
		io_uring_prep_write(sqe, op->fd, &op->one, sizeof(op->one), 0);
		sqe->flags |= IOSQE_ASYNC;
		break;
	case OP_TIMEOUT:
		io_uring_prep_timeout(sqe, &op->at, 0, IORING_TIMEOUT_ABS);
		break;
	case OP_FREE:
	case OP_CLOSE:
		abort();
	}
}

/* What is due is named to the kernel in any order; ids and cancellation do not depend on it. */
static bool push_start(struct loop *l, struct op *op)
{
	struct io_uring_sqe *sqe = get_sqe(l);

	if (!sqe)
		return false;
	prep(op, sqe);
	io_uring_sqe_set_data64(sqe, op_id(l, op));
	return true;
}

static bool push_cancel(struct loop *l, struct op *op)
{
	struct io_uring_sqe *sqe = get_sqe(l);

	if (!sqe)
		return false;
	io_uring_prep_cancel64(sqe, op_id(l, op), 0);
	io_uring_sqe_set_data64(sqe, 0);
	return true;
}

static uint64_t start(struct loop *l, struct op *op)
{
	if (!push_start(l, op)) {
		op->due_start = true;
		l->nr_due++;
	}
	return op_id(l, op);
}

uint64_t loop_poll(struct loop *l, int fd, loop_fn *fn, void *ctx)
{
	struct op *op = op_get(l, OP_POLL, fd, fn, ctx);

	return op ? start(l, op) : 0;
}

uint64_t loop_accept(struct loop *l, int fd, loop_fn *fn, void *ctx)
{
	struct op *op = op_get(l, OP_ACCEPT, fd, fn, ctx);

	return op ? start(l, op) : 0;
}

/* The worker looks the number up when it gets there: by then the caller may have closed it and the
 * number may be another session's socket. So the operation has a number of its own. */
uint64_t loop_signal(struct loop *l, int eventfd, loop_fn *fn, void *ctx)
{
	int own = fcntl(eventfd, F_DUPFD_CLOEXEC, 0);
	struct op *op = own < 0 ? NULL : op_get(l, OP_SIGNAL, own, fn, ctx);

	if (!op) {
		if (own >= 0)
			close(own);
		return 0;
	}
	op->one = 1;
	return start(l, op);
}

uint64_t loop_timeout(struct loop *l, uint64_t at_ns, loop_fn *fn, void *ctx)
{
	struct op *op = op_get(l, OP_TIMEOUT, -1, fn, ctx);

	if (!op)
		return 0;
	op->at.tv_sec = (long long)(at_ns / NS_PER_S);
	op->at.tv_nsec = (long long)(at_ns % NS_PER_S);
	return start(l, op);
}

static uint64_t start_packet(struct loop *l, enum op_kind kind, int fd, struct packet *p,
			     size_t len, loop_fn *fn, void *ctx)
{
	struct op *op = p ? op_get(l, kind, fd, fn, ctx) : NULL;

	if (!op) {
		free(p);
		return 0;
	}
	p->iov = (struct iovec){ .iov_base = p->data, .iov_len = len };
	p->hdr.msg_iov = &p->iov;
	p->hdr.msg_iovlen = 1;
	op->packet = p;
	return start(l, op);
}

/* No room for control data: the kernel then drops what a client attached and says MSG_CTRUNC, so
 * a foreign fd never enters our table. */
uint64_t loop_recv(struct loop *l, int fd, size_t room, loop_fn *fn, void *ctx)
{
	return start_packet(l, OP_RECV, fd, calloc(1, sizeof(struct packet) + room), room, fn, ctx);
}

uint64_t loop_send(struct loop *l, int fd, const void *data, size_t len, const int *fds,
		   unsigned int nr_fds, bool close_fds, loop_fn *fn, void *ctx)
{
	struct packet *p = calloc(1, sizeof(*p) + len);
	uint64_t id = 0;

	if (p && nr_fds <= LOOP_MAX_FDS) {
		memcpy(p->data, data, len);
		if (nr_fds) {
			struct cmsghdr *c = (struct cmsghdr *)p->control;

			p->hdr.msg_control = p->control;
			p->hdr.msg_controllen = CMSG_SPACE(nr_fds * sizeof(int));
			c->cmsg_level = SOL_SOCKET;
			c->cmsg_type = SCM_RIGHTS;
			c->cmsg_len = CMSG_LEN(nr_fds * sizeof(int));
			memcpy(CMSG_DATA(c), fds, nr_fds * sizeof(int));
		}
		if (close_fds) {
			memcpy(p->fds, fds, nr_fds * sizeof(int));
			p->nr_fds = nr_fds;
		}
		id = start_packet(l, OP_SEND, fd, p, len, fn, ctx);
	} else {
		free(p);
	}
	for (unsigned int i = 0; !id && close_fds && i < nr_fds; i++)
		close(fds[i]);
	return id;
}

void loop_cancel(struct loop *l, uint64_t id)
{
	struct op *op = op_find(l, id);

	if (!op || op->cancelled || op->kind == OP_CLOSE)
		return;
	op->cancelled = true;
	if (!push_cancel(l, op)) {
		op->due_cancel = true;
		l->nr_due++;
	}
}

static bool all_submitted(const struct loop *l)
{
	return !l->nr_due && !io_uring_sq_ready(&l->ring);
}

/* A started operation names its file by number until it is submitted: with one that the kernel has
 * not taken yet, the number must not be used again. */
void loop_close(struct loop *l, int fd)
{
	struct op *op = NULL;

	if (fd < 0)
		return;
	submit(l);
	if (l->started && !all_submitted(l))
		op = op_get(l, OP_CLOSE, fd, NULL, NULL);
	if (op)
		l->nr_due++;
	else
		close(fd);
}

static int result_of(enum op_kind kind, int res)
{
	if (kind == OP_TIMEOUT && res == -ETIME)
		return 0;
	return res;
}

static void finish(struct loop *l, struct op *op, int res)
{
	struct op was = *op;
	bool has_packet = was.kind == OP_RECV || was.kind == OP_SEND;

	l->nr_due -= (uint32_t)was.due_start + was.due_cancel;
	op_put(l, op);
	if (was.kind == OP_SIGNAL)
		close(was.fd);
	if (was.kind == OP_ACCEPT && was.cancelled && res >= 0)
		close(res);
	if (!was.cancelled && was.kind == OP_RECV && res >= 0) {
		const struct loop_msg msg = {
			.data = was.packet->data,
			.len = (size_t)res,
			.truncated = was.packet->hdr.msg_flags & MSG_TRUNC,
			.control = was.packet->hdr.msg_flags & MSG_CTRUNC,
		};

		was.fn(was.ctx, res, &msg);
	} else if (!was.cancelled) {
		was.fn(was.ctx, result_of(was.kind, res), NULL);
	}
	if (has_packet)
		packet_free(was.packet);
}

static void complete(struct loop *l, const struct reaped *r)
{
	struct op *op = op_find(l, r->user_data);

	if (!op)
		return;
	if (op->kind != OP_POLL || op->cancelled || r->res < 0) {
		if (!(r->flags & IORING_CQE_F_MORE))
			finish(l, op, r->res);
		return;
	}
	/* The kernel may end a multishot poll on its own (a full completion queue): go on. */
	if (!(r->flags & IORING_CQE_F_MORE))
		start(l, op);
	op->fn(op->ctx, r->res, NULL);
}

/* Completions are taken out before callbacks run, since those start and submit new operations. */
static unsigned int reap(struct loop *l)
{
	struct reaped got[REAP_BATCH];
	struct io_uring_cqe *cqe;
	unsigned int head, n = 0;

	io_uring_for_each_cqe(&l->ring, head, cqe) {
		got[n++] = (struct reaped){ cqe->user_data, cqe->res, cqe->flags };
		if (n == REAP_BATCH)
			break;
	}
	io_uring_cq_advance(&l->ring, n);
	for (unsigned int i = 0; i < n; i++)
		complete(l, &got[i]);
	return n;
}

static bool kernel_has_work(const struct loop *l)
{
	unsigned int flags = __atomic_load_n(l->ring.sq.kflags, __ATOMIC_RELAXED);

	return flags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW);
}

/* True when it is done or needs no more. */
static bool do_due(struct loop *l, struct op *op)
{
	if (op->due_start && op->cancelled) {
		finish(l, op, -ECANCELED);
		return true;
	}
	if (op->due_start && push_start(l, op)) {
		op->due_start = false;
		l->nr_due--;
	}
	if (op->due_cancel && push_cancel(l, op)) {
		op->due_cancel = false;
		l->nr_due--;
	}
	return !op->due_start && !op->due_cancel;
}

/* Again what found no room. Files are closed once no operation names one by number. */
static void run_due(struct loop *l)
{
	uint32_t nr_close = 0;
	bool room = true;

	for (uint32_t i = 0; i < l->nr_ops && room; i++)
		if (l->op[i].kind == OP_CLOSE)
			nr_close++;
		else if (l->op[i].kind != OP_FREE)
			room = do_due(l, &l->op[i]);
	submit(l);
	if (l->nr_due > nr_close || io_uring_sq_ready(&l->ring))
		return;
	for (uint32_t i = 0; i < l->nr_ops; i++) {
		if (l->op[i].kind == OP_CLOSE) {
			close(l->op[i].fd);
			l->nr_due--;
			op_put(l, &l->op[i]);
		}
	}
}

/* liburing 2.3 declares io_uring_enable_rings, but its library does not export it. */
static int start_ring(struct loop *l)
{
	int ret = 0;

	if (!l->started)
		ret = io_uring_register((unsigned int)l->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS,
					NULL, 0);
	l->started = ret >= 0;
	return ret < 0 ? ret : 0;
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static void sleep_until(struct loop *l, uint64_t until_ns)
{
	uint64_t now = loop_now();
	uint64_t left = until_ns > now ? until_ns - now : 0;
	struct __kernel_timespec ts = {
		.tv_sec = (long long)(left / NS_PER_S),
		.tv_nsec = (long long)(left % NS_PER_S),
	};
	struct io_uring_cqe *cqe;

	io_uring_submit_and_wait_timeout(&l->ring, &cqe, 1, until_ns == LOOP_NEVER ? NULL : &ts,
					 NULL);
	l->wakeups++;
}

int loop_wait(struct loop *l, uint64_t until_ns)
{
	int ret = start_ring(l);

	if (ret < 0)
		return ret;
	if (l->nr_due)
		run_due(l);
	if (l->nr_due)		/* still none: come back soon */
		until_ns = earlier(until_ns, loop_now() + DUE_NS);
	if (until_ns && !io_uring_cq_ready(&l->ring))
		sleep_until(l, until_ns);
	else if (kernel_has_work(l))
		io_uring_submit_and_get_events(&l->ring);
	else
		submit(l);
	while (reap(l) == REAP_BATCH)
		;
	return 0;
}

uint64_t loop_wakeups(const struct loop *l)
{
	return l->wakeups;
}

unsigned int loop_nr_ops(const struct loop *l)
{
	return l->nr_live;
}

void loop_stop(struct loop *l)
{
	uint64_t until = loop_now() + STOP_NS;

	if (!l->started)
		return;
	for (uint32_t i = 0; i < l->nr_ops; i++)
		if (l->op[i].kind != OP_FREE)
			loop_cancel(l, op_id(l, &l->op[i]));
	while (l->nr_live && loop_now() < until)
		loop_wait(l, until);
	l->started = false;
}

void loop_destroy(struct loop *l)
{
	if (!l)
		return;
	io_uring_queue_exit(&l->ring);
	for (uint32_t i = 0; i < l->nr_ops; i++)
		if (l->op[i].kind == OP_RECV || l->op[i].kind == OP_SEND)
			packet_free(l->op[i].packet);
		else if (l->op[i].kind == OP_CLOSE || l->op[i].kind == OP_SIGNAL)
			close(l->op[i].fd);
	free(l);
}
