// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "queue.h"

void queue_init(struct queue *q, void *shm, const struct kv_msg_welcome *w, const int fds[2],
		int sock)
{
	struct kv_shm_header *hdr = shm;

	*q = (struct queue){
		.hdr = hdr,
		.sqes = (void *)((char *)shm + w->sq_offset),
		.cqes = (void *)((char *)shm + w->cq_offset),
		.spin_ns = QUEUE_SPIN_MAX_NS,
		.sq_fd = fds[0],
		.cq_fd = fds[1],
		.sock = sock,
	};
	kv_ring_init(&q->sq, &hdr->sq_head, &hdr->sq_tail, w->sq_entries);
	kv_ring_init(&q->cq, &hdr->cq_head, &hdr->cq_tail, w->cq_entries);
}

int queue_push(struct queue *q, const struct kv_sqe *sqe)
{
	int64_t room = kv_ring_room(&q->sq);

	if (q->dead)
		return -EPIPE;
	if (room < 0)
		return -EPROTO;
	if (room <= q->staged)
		return -EAGAIN;
	q->sqes[kv_ring_at(&q->sq, q->staged)] = *sqe;
	q->staged++;
	return 0;
}

int queue_publish(struct queue *q)
{
	const uint64_t one = 1;

	if (q->dead)
		return -EPIPE;
	if (!q->staged)
		return 0;
	if (q->armed)
		kv_ring_awake(&q->hdr->cq_need_wakeup);
	kv_ring_publish(&q->sq, q->staged);
	q->staged = 0;
	/* A failed write (the daemon filled it) is no loss: its death shows on the socket. */
	if (kv_ring_peer_sleeps(&q->hdr->sq_need_wakeup) && write(q->sq_fd, &one, 8) < 0 &&
	    errno == EBADF)
		return -EPIPE;
	return 0;
}

int queue_reap(struct queue *q, struct kv_cqe *out, uint32_t max)
{
	int64_t n = kv_ring_avail(&q->cq);
	uint32_t i;

	if (n < 0)
		return (int)n;
	if (!n)
		return q->dead ? -EPIPE : 0;
	if (n > max)
		n = max;
	for (i = 0; i < n; i++)
		out[i] = q->cqes[kv_ring_at(&q->cq, i)];
	kv_ring_consume(&q->cq, (uint32_t)n);
	return (int)n;
}

bool queue_event(const struct queue *q)
{
	return __atomic_load_n(&q->hdr->events, __ATOMIC_ACQUIRE) & KV_EVENT_PENDING;
}

void queue_arm(struct queue *q)
{
	q->armed = true;
	queue_rest(q);
}

void queue_rest(struct queue *q)
{
	const uint64_t one = 1;

	if (!q->armed || q->dead)
		return;
	kv_ring_will_sleep(&q->hdr->cq_need_wakeup);
	if (queue_event(q) && write(q->cq_fd, &one, sizeof(one)) < 0 && errno == EBADF)
		q->dead = true;
}

static bool told_dead(const struct queue *q)
{
	return __atomic_load_n(&q->hdr->dead, __ATOMIC_ACQUIRE) != 0;
}

static bool ready(struct queue *q, bool events)
{
	return kv_ring_avail(&q->cq) != 0 || (events && queue_event(q)) || told_dead(q);
}

static uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Spinning pays while the answer comes sooner than a sleep and a wake-up would cost; each miss
 * halves the next spin, each hit doubles it. */
static bool spin(struct queue *q, bool events)
{
	uint64_t end = clock_ns() + q->spin_ns;
	uint32_t i;

	do {
		for (i = 0; i < 32; i++) {
			if (ready(q, events)) {
				if (q->spin_ns < QUEUE_SPIN_MAX_NS)
					q->spin_ns *= 2;
				return true;
			}
			relax();
		}
	} while (clock_ns() < end);
	if (q->spin_ns > QUEUE_SPIN_MIN_NS)
		q->spin_ns /= 2;
	return false;
}

static int sleep_once(struct queue *q)
{
	struct pollfd pfd[2] = {
		{ .fd = q->cq_fd, .events = POLLIN },
		{ .fd = q->sock, .events = POLLRDHUP },
	};
	uint64_t drained;

	if (poll(pfd, 2, -1) < 0)
		return errno == EINTR ? 0 : -errno;
	if ((pfd[0].revents & POLLIN) && read(q->cq_fd, &drained, 8) < 0 && errno == EBADF)
		return -EPIPE;
	return pfd[1].revents & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL) ? -EPIPE : 0;
}

int queue_wait(struct queue *q, bool events)
{
	int rc = 0;

	if (!q->dead && !ready(q, events) && !spin(q, events)) {
		kv_ring_will_sleep(&q->hdr->cq_need_wakeup);
		while (!rc && !ready(q, events))
			rc = sleep_once(q);
		kv_ring_awake(&q->hdr->cq_need_wakeup);
	}
	if (rc || told_dead(q))
		q->dead = true;
	if (kv_ring_avail(&q->cq) != 0)
		return 0;
	return q->dead ? -EPIPE : 0;
}
