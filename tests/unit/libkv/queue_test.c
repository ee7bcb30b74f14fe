// SPDX-License-Identifier: Apache-2.0
/* The client's rings against a peer thread: order, batches, wake-ups, broken indices, death. */
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "pool_test.h"
#include "queue.h"

#define ENTRIES 8u
#define MANY	20000u

struct peer {
	struct kv_shm_header *hdr;
	struct kv_sqe *sqes;
	struct kv_cqe *cqes;
	struct kv_ring sq, cq;
	int fds[2], sock[2];
	uint32_t todo;
	bool sleepy; /* sleep on the sq eventfd, never spin */
	struct queue queue;
	void *shm;
};

static int setup(void **state)
{
	struct kv_msg_welcome w = { .sq_entries = ENTRIES, .cq_entries = ENTRIES };
	struct peer *p = calloc(1, sizeof(*p));

	w.sq_offset = sizeof(struct kv_shm_header);
	w.cq_offset = w.sq_offset + ENTRIES * sizeof(struct kv_sqe);
	w.shm_bytes = w.cq_offset + ENTRIES * sizeof(struct kv_cqe);
	assert_int_equal(posix_memalign(&p->shm, 64, w.shm_bytes), 0);
	memset(p->shm, 0, w.shm_bytes);
	p->hdr = p->shm;
	p->sqes = (void *)((char *)p->shm + w.sq_offset);
	p->cqes = (void *)((char *)p->shm + w.cq_offset);
	p->fds[0] = eventfd(0, EFD_CLOEXEC);
	p->fds[1] = eventfd(0, EFD_CLOEXEC);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, p->sock), 0);
	kv_ring_init(&p->sq, &p->hdr->sq_head, &p->hdr->sq_tail, ENTRIES);
	kv_ring_init(&p->cq, &p->hdr->cq_head, &p->hdr->cq_tail, ENTRIES);
	queue_init(&p->queue, p->shm, &w, p->fds, p->sock[0]);
	*state = p;
	return 0;
}

static int teardown(void **state)
{
	struct peer *p = *state;

	close(p->fds[0]);
	close(p->fds[1]);
	close(p->sock[0]);
	if (p->sock[1] >= 0)
		close(p->sock[1]);
	free(p->shm);
	free(p);
	return 0;
}

static void peer_wait(struct peer *p)
{
	struct pollfd pfd = { .fd = p->fds[0], .events = POLLIN };
	uint64_t drained;

	if (!p->sleepy)
		return;
	kv_ring_will_sleep(&p->hdr->sq_need_wakeup);
	while (!kv_ring_avail(&p->sq))
		if (poll(&pfd, 1, -1) > 0 && read(p->fds[0], &drained, 8) < 0)
			break;
	kv_ring_awake(&p->hdr->sq_need_wakeup);
}

/* Answers each entry with its own numbers. */
static void *serve(void *arg)
{
	struct peer *p = arg;
	const uint64_t one = 1;
	struct kv_sqe sqe;

	while (p->todo) {
		if (kv_ring_avail(&p->sq) <= 0) {
			peer_wait(p);
			continue;
		}
		sqe = p->sqes[kv_ring_at(&p->sq, 0)];
		kv_ring_consume(&p->sq, 1);
		while (!kv_ring_room(&p->cq))
			;
		p->cqes[kv_ring_at(&p->cq, 0)] = (struct kv_cqe){
			.user_data = sqe.user_data,
			.id = sqe.id + 1,
		};
		kv_ring_publish(&p->cq, 1);
		if (kv_ring_peer_sleeps(&p->hdr->cq_need_wakeup))
			assert_int_equal(write(p->fds[1], &one, 8), 8);
		p->todo--;
	}
	return NULL;
}

static void round_trips(struct peer *p, bool sleepy)
{
	struct queue *q = &p->queue;
	struct kv_cqe cqe;
	pthread_t thread;
	uint32_t i;

	p->todo = sleepy ? MANY / 10 : MANY;
	p->sleepy = sleepy;
	pthread_create(&thread, NULL, serve, p);
	for (i = 0; i < (sleepy ? MANY / 10 : MANY); i++) {
		const struct kv_sqe sqe = { .user_data = i, .id = i * 3 };
		int n;

		assert_int_equal(queue_push(q, &sqe), 0);
		assert_int_equal(queue_publish(q), 0);
		while (!(n = queue_reap(q, &cqe, 1)))
			assert_int_equal(queue_wait(q, false), 0);
		assert_int_equal(n, 1);
		assert_int_equal(cqe.user_data, i);
		assert_int_equal(cqe.id, i * 3 + 1);
	}
	pthread_join(thread, NULL);
}

static void test_round_trip(void **state)
{
	round_trips(*state, false);
}

/* No wake-up may be lost when both sides sleep: a lost one hangs here. */
static void test_round_trip_asleep(void **state)
{
	struct peer *p = *state;

	p->queue.spin_ns = 0;
	round_trips(p, true);
}

static void test_batches(void **state)
{
	struct peer *p = *state;
	struct queue *q = &p->queue;
	struct kv_cqe cqe[ENTRIES];
	uint32_t sent = 0, got = 0;
	pthread_t thread;
	int n, i;

	p->todo = MANY;
	pthread_create(&thread, NULL, serve, p);
	while (got < MANY) {
		while (sent < MANY && sent - got < ENTRIES) {
			const struct kv_sqe sqe = { .user_data = sent };

			if (queue_push(q, &sqe))
				break;
			sent++;
		}
		assert_int_equal(queue_publish(q), 0);
		n = queue_reap(q, cqe, ENTRIES);
		assert_true(n >= 0);
		for (i = 0; i < n; i++)
			assert_int_equal(cqe[i].user_data, got++);
		if (!n)
			assert_int_equal(queue_wait(q, false), 0);
	}
	pthread_join(thread, NULL);
}

static void test_full(void **state)
{
	struct peer *p = *state;
	const struct kv_sqe sqe = { .op = KV_OP_NOP };
	uint32_t i;

	for (i = 0; i < ENTRIES; i++)
		assert_int_equal(queue_push(&p->queue, &sqe), 0);
	assert_int_equal(queue_push(&p->queue, &sqe), -EAGAIN);
	assert_int_equal(p->hdr->sq_tail, 0); /* nothing is visible yet */
	assert_int_equal(queue_publish(&p->queue), 0);
	assert_int_equal(p->hdr->sq_tail, ENTRIES);
	assert_int_equal(queue_push(&p->queue, &sqe), -EAGAIN);
	p->hdr->sq_head = 1;
	assert_int_equal(queue_push(&p->queue, &sqe), 0);
}

static void test_broken_ring(void **state)
{
	struct peer *p = *state;
	const struct kv_sqe sqe = { .op = KV_OP_NOP };
	struct kv_cqe cqe;

	p->hdr->cq_tail = ENTRIES + 1;
	assert_int_equal(queue_reap(&p->queue, &cqe, 1), -EPROTO);
	p->hdr->sq_head = 5; /* consumed what was never sent */
	assert_int_equal(queue_push(&p->queue, &sqe), -EPROTO);
}

static void test_peer_dies(void **state)
{
	struct peer *p = *state;
	const struct kv_sqe sqe = { .user_data = 1 };
	struct kv_cqe cqe;

	assert_int_equal(queue_push(&p->queue, &sqe), 0);
	assert_int_equal(queue_publish(&p->queue), 0);
	close(p->sock[1]);
	p->sock[1] = -1;
	assert_int_equal(queue_wait(&p->queue, false), -EPIPE);
	assert_int_equal(queue_reap(&p->queue, &cqe, 1), -EPIPE);
	assert_int_equal(queue_push(&p->queue, &sqe), -EPIPE);
}

/* What was answered before the death is still read. */
static void test_answer_before_death(void **state)
{
	struct peer *p = *state;
	const struct kv_sqe sqe = { .user_data = 7 };
	struct kv_cqe cqe;

	p->todo = 1;
	assert_int_equal(queue_push(&p->queue, &sqe), 0);
	assert_int_equal(queue_publish(&p->queue), 0);
	serve(p);
	p->hdr->dead = 1;
	assert_int_equal(queue_wait(&p->queue, false), 0);
	assert_int_equal(queue_reap(&p->queue, &cqe, 1), 1);
	assert_int_equal(cqe.user_data, 7);
	assert_int_equal(queue_reap(&p->queue, &cqe, 1), -EPIPE);
}

static bool readable(int fd)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };

	return poll(&pfd, 1, 0) == 1;
}

/* An engine that sleeps on the eventfd between calls sees an event that came during the call. */
static void test_event_at_rest(void **state)
{
	struct peer *p = *state;
	struct queue *q = &p->queue;
	const struct kv_sqe sqe = { .user_data = 1 };

	queue_rest(q);
	assert_int_equal(p->hdr->cq_need_wakeup, 0); /* not armed: nothing to do */
	queue_arm(q);
	assert_int_equal(p->hdr->cq_need_wakeup, 1);
	assert_int_equal(queue_push(q, &sqe), 0);
	assert_int_equal(queue_publish(q), 0);
	assert_int_equal(p->hdr->cq_need_wakeup, 0); /* no wake-ups for answers */
	p->hdr->events = KV_EVENT_PENDING;
	assert_int_equal(queue_wait(q, true), 0);
	assert_false(readable(p->fds[1]));
	queue_rest(q);
	assert_int_equal(p->hdr->cq_need_wakeup, 1);
	assert_true(readable(p->fds[1]));
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_round_trip),
		T(test_round_trip_asleep),
		T(test_batches),
		T(test_full),
		T(test_broken_ring),
		T(test_peer_dies),
		T(test_answer_before_death),
		T(test_event_at_rest),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
