// SPDX-License-Identifier: Apache-2.0
/* ring_test - the SPSC ring between two threads, and against a hostile peer */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "kv_abi.h"
#include "kv_ring.h"

#define ENTRIES		8u
#define NR_ITEMS	200000u
#define NR_SLEEPS	20000u
#define NR_ROUNDS	200000u
#define DEADLINE_MS	60000

struct shared {
	uint32_t head __attribute__((aligned(64)));
	uint32_t need_wakeup;
	uint32_t tail __attribute__((aligned(64)));
	struct kv_sqe entry[ENTRIES];
	int bell;
	bool consumer_sleeps;
};

/* cmocka's asserts may only be used by its own thread. */
static void must(bool ok)
{
	if (!ok)
		abort();
}

static void fill(struct kv_sqe *e, uint64_t i)
{
	memset(e, (int)(i & 0xff), sizeof(*e));
	e->user_data = i;
	e->arg = ~i;
}

static bool is_item(const struct kv_sqe *e, uint64_t i)
{
	struct kv_sqe want;

	fill(&want, i);
	return memcmp(e, &want, sizeof(want)) == 0;
}

static void ring_bell(struct shared *s)
{
	uint64_t one = 1;

	if (kv_ring_peer_sleeps(&s->need_wakeup))
		must(write(s->bell, &one, sizeof(one)) == sizeof(one));
}

static void pause_now_and_then(unsigned int *spins)
{
	if (++*spins % 1024 == 0)
		sched_yield();
}

static void *produce(void *arg)
{
	struct shared *s = arg;
	uint64_t nr = s->consumer_sleeps ? NR_SLEEPS : NR_ITEMS;
	unsigned int spins = 0;
	struct kv_ring r;

	kv_ring_init(&r, &s->head, &s->tail, ENTRIES);
	for (uint64_t i = 0; i < nr;) {
		int64_t room = kv_ring_room(&r);

		must(room >= 0 && room <= ENTRIES);
		/* one at a time: the consumer is then always about to sleep when the next comes */
		if (s->consumer_sleeps && room < ENTRIES) {
			pause_now_and_then(&spins);
		} else if (room == 0) {
			sched_yield();
		} else {
			fill(&s->entry[kv_ring_at(&r, 0)], i++);
			kv_ring_publish(&r, 1);
			ring_bell(s);
		}
	}
	return NULL;
}

/* No timeout rescues a lost wake-up: poll either returns or the test fails. */
static void wait_for_bell(struct shared *s, struct kv_ring *r)
{
	struct pollfd p = { .fd = s->bell, .events = POLLIN };
	uint64_t count;

	kv_ring_will_sleep(&s->need_wakeup);
	if (kv_ring_avail(r) == 0) {
		assert_int_equal(poll(&p, 1, DEADLINE_MS), 1);
		assert_int_equal(read(s->bell, &count, sizeof(count)), sizeof(count));
	}
	kv_ring_awake(&s->need_wakeup);
}

static void consume(struct shared *s)
{
	uint64_t nr = s->consumer_sleeps ? NR_SLEEPS : NR_ITEMS;
	struct kv_ring r;

	kv_ring_init(&r, &s->head, &s->tail, ENTRIES);
	for (uint64_t i = 0; i < nr;) {
		int64_t n = kv_ring_avail(&r);

		assert_true(n >= 0 && n <= ENTRIES);
		if (n == 0 && s->consumer_sleeps)
			wait_for_bell(s, &r);
		else if (n == 0)
			sched_yield();
		for (int64_t k = 0; k < n; k++)
			assert_true(is_item(&s->entry[kv_ring_at(&r, (uint32_t)k)], i++));
		kv_ring_consume(&r, (uint32_t)n);
	}
}

static void run_pair(bool consumer_sleeps)
{
	static struct shared s;
	pthread_t t;

	memset(&s, 0, sizeof(s));
	s.consumer_sleeps = consumer_sleeps;
	s.bell = eventfd(0, EFD_CLOEXEC);
	assert_true(s.bell >= 0);
	assert_int_equal(pthread_create(&t, NULL, produce, &s), 0);
	consume(&s);
	pthread_join(t, NULL);
	assert_int_equal(s.head, s.tail);
	close(s.bell);
}

static void entries_arrive_whole_and_in_order(void **state)
{
	(void)state;
	run_pair(false);
}

static void no_wake_up_is_lost(void **state)
{
	(void)state;
	run_pair(true);
}

/* The race behind a lost wake-up, by itself (store buffering): in every round one side publishes
 * and looks at need_wakeup while the other sets it and looks at the ring. Both must not miss. */
struct litmus {
	uint32_t head __attribute__((aligned(64)));
	uint32_t tail __attribute__((aligned(64)));
	uint32_t need_wakeup __attribute__((aligned(64)));
	uint32_t round __attribute__((aligned(64)));
	uint32_t ready __attribute__((aligned(64)));
	bool rang;
};

static void *litmus_publish(void *arg)
{
	struct litmus *l = arg;
	unsigned int spins = 0;
	struct kv_ring r;

	kv_ring_init(&r, &l->head, &l->tail, ENTRIES);
	for (uint32_t i = 1; i <= NR_ROUNDS; i++) {
		while (__atomic_load_n(&l->round, __ATOMIC_ACQUIRE) != i)
			pause_now_and_then(&spins);
		kv_ring_publish(&r, 1);
		l->rang = kv_ring_peer_sleeps(&l->need_wakeup);
		__atomic_store_n(&l->ready, i, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void one_side_sees_the_other(void **state)
{
	static struct litmus l;
	unsigned int spins = 0, missed = 0;
	struct kv_ring r;
	pthread_t t;

	(void)state;
	kv_ring_init(&r, &l.head, &l.tail, ENTRIES);
	assert_int_equal(pthread_create(&t, NULL, litmus_publish, &l), 0);
	for (uint32_t i = 1; i <= NR_ROUNDS; i++) {
		bool saw;

		__atomic_store_n(&l.round, i, __ATOMIC_RELEASE);
		for (volatile unsigned int jitter = i % 64; jitter > 0; jitter--)
			;
		kv_ring_will_sleep(&l.need_wakeup);
		saw = kv_ring_avail(&r) > 0;
		while (__atomic_load_n(&l.ready, __ATOMIC_ACQUIRE) != i)
			pause_now_and_then(&spins);
		missed += !saw && !l.rang;
		kv_ring_awake(&l.need_wakeup);
		kv_ring_consume(&r, 1);
	}
	pthread_join(t, NULL);
	assert_int_equal(missed, 0);
}

static void indices_wrap(void **state)
{
	uint32_t head = 0xfffffffdu, tail = 0xfffffffdu;
	struct kv_ring p, c;

	(void)state;
	kv_ring_init(&p, &head, &tail, ENTRIES);
	kv_ring_init(&c, &head, &tail, ENTRIES);
	p.mine = p.seen = c.mine = c.seen = 0xfffffffdu;
	assert_int_equal(kv_ring_room(&p), ENTRIES);
	kv_ring_publish(&p, ENTRIES);
	assert_int_equal(tail, 5);
	assert_int_equal(kv_ring_room(&p), 0);
	assert_int_equal(kv_ring_avail(&c), ENTRIES);
	assert_int_equal(kv_ring_at(&c, 3), 0);
	kv_ring_consume(&c, ENTRIES);
	assert_int_equal(kv_ring_avail(&c), 0);
	assert_int_equal(kv_ring_room(&p), ENTRIES);
}

static void hostile_tail_is_a_protocol_error(void **state)
{
	uint32_t head = 0, tail = 0;
	struct kv_ring c;

	(void)state;
	kv_ring_init(&c, &head, &tail, ENTRIES);
	tail = ENTRIES + 1;
	assert_int_equal(kv_ring_avail(&c), -EPROTO);
	tail = 0xffffffffu;
	assert_int_equal(kv_ring_avail(&c), -EPROTO);
	tail = ENTRIES;
	assert_int_equal(kv_ring_avail(&c), ENTRIES);
	/* taking back what was published */
	tail = 3;
	assert_int_equal(kv_ring_avail(&c), -EPROTO);
	/* the shared head is the daemon's: what the client writes there changes nothing */
	tail = ENTRIES;
	head = 77;
	assert_int_equal(kv_ring_avail(&c), ENTRIES);
	kv_ring_consume(&c, 2);
	assert_int_equal(head, 2);
}

static void hostile_head_is_a_protocol_error(void **state)
{
	uint32_t head = 0, tail = 0;
	struct kv_ring p;

	(void)state;
	kv_ring_init(&p, &head, &tail, ENTRIES);
	kv_ring_publish(&p, 3);
	head = 4;	/* gives back what was never sent */
	assert_int_equal(kv_ring_room(&p), -EPROTO);
	head = 0x80000000u;
	assert_int_equal(kv_ring_room(&p), -EPROTO);
	head = 3;
	assert_int_equal(kv_ring_room(&p), ENTRIES);
	tail = 99;	/* ours: only the private copy counts */
	kv_ring_publish(&p, 1);
	assert_int_equal(tail, 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(entries_arrive_whole_and_in_order),
		cmocka_unit_test(no_wake_up_is_lost),
		cmocka_unit_test(one_side_sees_the_other),
		cmocka_unit_test(indices_wrap),
		cmocka_unit_test(hostile_tail_is_a_protocol_error),
		cmocka_unit_test(hostile_head_is_a_protocol_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
