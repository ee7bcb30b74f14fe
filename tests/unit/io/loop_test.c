// SPDX-License-Identifier: Apache-2.0
/* loop_test - operations, cancellation, stale ids, and peers that block or break what they share */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <liburing.h>

#include "io/loop.h"

#define MAX_OPS		16u
#define DEADLINE_NS	20000000000ull
#define FULL		0xfffffffffffffffeull

static bool starved;

/* Stands before the library's: a kernel that has no memory for a while. */
int io_uring_submit(struct io_uring *ring)
{
	int (*real)(struct io_uring *);

	if (starved)
		return -EAGAIN;
	*(void **)&real = dlsym(RTLD_NEXT, "io_uring_submit");
	return real(ring);
}

struct seen {
	struct loop *loop;
	int calls, res;
	bool control, truncated, cancel_self;
	uint64_t id;
	size_t len;
	char data[64];
};

static int setup(void **state)
{
	struct loop *l;
	int ret = loop_create(&l, MAX_OPS);

	*state = l;
	return ret;
}

static int teardown(void **state)
{
	loop_stop(*state);
	if (loop_nr_ops(*state))
		return -1;
	loop_destroy(*state);
	return 0;
}

static void note(void *ctx, int res, const struct loop_msg *msg)
{
	struct seen *s = ctx;

	s->calls++;
	s->res = res;
	if (msg) {
		s->control = msg->control;
		s->truncated = msg->truncated;
		s->len = msg->len;
		memcpy(s->data, msg->data, msg->len < sizeof(s->data) ? msg->len : sizeof(s->data));
	}
	if (s->cancel_self)
		loop_cancel(s->loop, s->id);
}

static void wait_for(struct loop *l, const struct seen *s, int calls)
{
	uint64_t until = loop_now() + DEADLINE_NS;

	while (s->calls < calls && loop_now() < until)
		assert_int_equal(loop_wait(l, until), 0);
	assert_int_equal(s->calls, calls);
}

/* Everything that is ready now, and nothing more. */
static void settle(struct loop *l)
{
	for (int i = 0; i < 3; i++)
		loop_wait(l, loop_now() + 1000000);
}

static void pair(int fd[2])
{
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd), 0);
}

static void ring(int fd)
{
	uint64_t one = 1;

	assert_int_equal(write(fd, &one, sizeof(one)), sizeof(one));
}

static void poll_fires_for_every_ring_without_draining(void **state)
{
	struct loop *l = *state;
	int fd = eventfd(0, EFD_CLOEXEC);
	struct seen s = { 0 };
	uint64_t id = loop_poll(l, fd, note, &s);

	assert_true(id != 0);
	for (int i = 1; i <= 3; i++) {
		ring(fd);
		wait_for(l, &s, i);
		assert_true(s.res & POLLIN);
	}
	loop_cancel(l, id);
	ring(fd);
	settle(l);
	assert_int_equal(s.calls, 3);
	assert_int_equal(loop_nr_ops(l), 0);
	loop_close(l, fd);
}

static void a_cancelled_operation_never_calls_back(void **state)
{
	struct loop *l = *state;
	struct seen old = { 0 }, new = { 0 };
	uint64_t id;
	int fd[2];

	pair(fd);
	id = loop_recv(l, fd[0], 8, note, &old);
	settle(l);
	/* The packet is there before the kernel hears of the cancel: its completion is stale. */
	assert_int_equal(send(fd[1], "x", 1, 0), 1);
	loop_cancel(l, id);
	settle(l);
	assert_int_equal(old.calls, 0);
	assert_int_equal(loop_nr_ops(l), 0);
	/* The slot serves somebody else now: the old id must not hit it. */
	assert_int_equal(send(fd[1], "yz", 2, 0), 2);
	assert_true(loop_recv(l, fd[0], 8, note, &new) != id);
	loop_cancel(l, id);
	wait_for(l, &new, 1);
	assert_int_equal(old.calls, 0);
	loop_close(l, fd[0]);
	loop_close(l, fd[1]);
}

static void a_callback_may_cancel_itself(void **state)
{
	struct loop *l = *state;
	int fd = eventfd(1, EFD_CLOEXEC);
	struct seen s = { .loop = l, .cancel_self = true };

	s.id = loop_poll(l, fd, note, &s);
	wait_for(l, &s, 1);
	ring(fd);
	settle(l);
	assert_int_equal(s.calls, 1);
	loop_close(l, fd);
}

static void packets_come_whole_and_fds_do_not(void **state)
{
	struct loop *l = *state;
	struct seen s = { 0 }, sent = { 0 };
	int fd[2], extra = eventfd(0, EFD_CLOEXEC), before;

	pair(fd);
	assert_true(loop_send(l, fd[0], "hello", 5, &extra, 1, false, note, &sent) != 0);
	wait_for(l, &sent, 1);
	assert_int_equal(sent.res, 5);
	before = dup(0);
	close(before);
	loop_recv(l, fd[1], 4, note, &s);
	wait_for(l, &s, 1);
	assert_int_equal(s.res, 4);
	assert_true(s.truncated);
	assert_true(s.control);
	assert_memory_equal(s.data, "hell", 4);
	assert_int_equal(dup(0), before);	/* no fd came into our table */
	close(before);
	close(extra);
	close(fd[0]);
	loop_recv(l, fd[1], 4, note, &s);
	wait_for(l, &s, 2);
	assert_int_equal(s.res, 0);
	loop_close(l, fd[1]);
}

static void fds_given_away_are_closed_after_the_send(void **state)
{
	struct loop *l = *state;
	struct seen sent = { 0 };
	int fd[2], gift[2];

	pair(fd);
	pair(gift);
	assert_true(loop_send(l, fd[0], "x", 1, &gift[0], 1, true, note, &sent) != 0);
	wait_for(l, &sent, 1);
	assert_int_equal(fcntl(gift[0], F_GETFD), -1);
	loop_close(l, fd[1]);		/* and with it the copy in the queue */
	assert_int_equal(recv(gift[1], &sent, sizeof(sent), 0), 0);
	loop_close(l, fd[0]);
	loop_close(l, gift[1]);
}

static void a_send_to_a_dead_peer_is_an_error_not_a_signal(void **state)
{
	struct loop *l = *state;
	struct seen sent = { 0 };
	int fd[2];

	pair(fd);
	close(fd[1]);
	loop_send(l, fd[0], "x", 1, NULL, 0, false, note, &sent);
	wait_for(l, &sent, 1);
	assert_int_equal(sent.res, -EPIPE);
	loop_close(l, fd[0]);
}

static void a_full_eventfd_blocks_nothing(void **state)
{
	struct loop *l = *state;
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
	    other = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct seen s = { 0 }, o = { 0 };
	uint64_t full = FULL, id;

	assert_int_equal(write(fd, &full, sizeof(full)), sizeof(full));
	/* The peer shares the file description: without O_NONBLOCK a plain write would hang. */
	assert_int_equal(fcntl(fd, F_SETFL, 0), 0);
	id = loop_signal(l, fd, note, &s);
	loop_signal(l, other, note, &o);
	wait_for(l, &o, 1);
	assert_int_equal(o.res, 8);
	assert_int_equal(s.calls, 0);
	loop_cancel(l, id);
	settle(l);
	assert_int_equal(loop_nr_ops(l), 0);
	/* Drained, the write that waits gets through. */
	loop_signal(l, fd, note, &s);
	settle(l);
	assert_int_equal(read(fd, &full, sizeof(full)), sizeof(full));
	wait_for(l, &s, 1);
	assert_int_equal(s.res, 8);
	loop_close(l, fd);
	loop_close(l, other);
}

static void a_signal_reaches_a_poller(void **state)
{
	struct loop *l = *state;
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct pollfd p = { .fd = fd, .events = POLLIN };
	struct seen s = { 0 };

	loop_signal(l, fd, note, &s);
	wait_for(l, &s, 1);
	assert_int_equal(poll(&p, 1, 0), 1);
	loop_close(l, fd);
}

/* A bell is rung by a worker, later: the number of a closed eventfd may be a socket by then. */
static void a_bell_never_rings_a_reused_number(void **state)
{
	struct loop *l = *state;
	char byte;

	for (int i = 0; i < 500; i++) {
		int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), pair[2];
		struct seen s = { 0 };

		assert_true(loop_signal(l, fd, note, &s) != 0);
		loop_close(l, fd);
		assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
		wait_for(l, &s, 1);
		assert_int_equal(s.res, 8);
		assert_int_equal(recv(pair[0], &byte, 1, 0), -1);
		assert_int_equal(recv(pair[1], &byte, 1, 0), -1);
		close(pair[0]);
		close(pair[1]);
	}
}

static void timeouts_come_in_time(void **state)
{
	struct loop *l = *state;
	struct seen early = { 0 }, late = { 0 };
	uint64_t start = loop_now();
	uint64_t id = loop_timeout(l, start + DEADLINE_NS, note, &late);

	loop_timeout(l, start + 5000000, note, &early);
	wait_for(l, &early, 1);
	assert_int_equal(early.res, 0);
	assert_true(loop_now() >= start + 5000000);
	assert_int_equal(late.calls, 0);
	loop_cancel(l, id);
	settle(l);
	assert_int_equal(loop_nr_ops(l), 0);
}

static void sleep_ends_at_its_time(void **state)
{
	struct loop *l = *state;
	uint64_t start = loop_now();

	assert_int_equal(loop_wait(l, start + 3000000), 0);
	assert_true(loop_now() >= start + 3000000);
	start = loop_wakeups(l);
	assert_int_equal(loop_wait(l, 0), 0);	/* does not sleep */
	assert_int_equal(loop_wakeups(l), start);
}

static void a_dying_process_is_noticed(void **state)
{
	struct loop *l = *state;
	struct seen s = { 0 };
	int pidfd, hold[2];
	pid_t pid;

	assert_int_equal(pipe(hold), 0);
	pid = fork();
	if (pid == 0) {
		char c;

		close(hold[1]);
		_exit((int)read(hold[0], &c, 1));
	}
	close(hold[0]);
	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0 && errno == ENOSYS) {	/* an old valgrind */
		close(hold[1]);
		waitpid(pid, NULL, 0);
		skip();
	}
	assert_true(pidfd >= 0);
	loop_poll(l, pidfd, note, &s);
	settle(l);
	assert_int_equal(s.calls, 0);
	close(hold[1]);
	wait_for(l, &s, 1);
	waitpid(pid, NULL, 0);
	loop_stop(l);	/* a reaped process may fire again */
	loop_close(l, pidfd);
}

static void accept_gives_connections(void **state)
{
	struct loop *l = *state;
	struct seen s = { 0 };
	struct { sa_family_t family; char path[14]; } sa = { AF_UNIX, "\0kvd-loop-test" };
	int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0),
	    client = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	sa.path[1] = (char)('a' + getpid() % 26);
	assert_int_equal(bind(listener, (void *)&sa, sizeof(sa)), 0);
	assert_int_equal(listen(listener, 1), 0);
	loop_accept(l, listener, note, &s);
	settle(l);
	assert_int_equal(connect(client, (void *)&sa, sizeof(sa)), 0);
	wait_for(l, &s, 1);
	assert_true(s.res >= 0);
	assert_true(fcntl(s.res, F_GETFD) & FD_CLOEXEC);
	close(s.res);
	close(client);
	loop_close(l, listener);
}

static void a_full_table_is_said(void **state)
{
	struct loop *l = *state;
	struct seen s = { 0 };
	uint64_t id[MAX_OPS];

	for (unsigned int i = 0; i < MAX_OPS; i++) {
		id[i] = loop_timeout(l, loop_now() + DEADLINE_NS, note, &s);
		assert_true(id[i] != 0);
	}
	assert_true(loop_timeout(l, loop_now(), note, &s) == 0);
	loop_cancel(l, id[3]);
	settle(l);
	assert_true(loop_timeout(l, loop_now(), note, &s) != 0);
	wait_for(l, &s, 1);
}

enum { MANY = 600 };	/* more than the submission queue holds */

static int setup_many(void **state)
{
	struct loop *l;
	int ret = loop_create(&l, MANY + 16);

	*state = l;
	return ret;
}

static void what_the_kernel_does_not_take_is_started_later(void **state)
{
	struct loop *l = *state;
	struct seen s = { 0 };

	loop_wait(l, 0);
	starved = true;
	for (int i = 0; i < MANY; i++)
		assert_true(loop_timeout(l, loop_now(), note, &s));
	starved = false;
	wait_for(l, &s, MANY);
	assert_int_equal(loop_nr_ops(l), 0);
}

static void what_the_kernel_does_not_take_is_cancelled_later(void **state)
{
	struct loop *l = *state;
	struct seen s = { 0 }, poll = { 0 };
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	uint64_t id[MANY], polled = loop_poll(l, fd, note, &poll), until;

	loop_wait(l, 0);
	starved = true;
	for (int i = 0; i < MANY; i++)
		id[i] = loop_timeout(l, LOOP_NEVER / 2, note, &s);
	loop_cancel(l, polled);
	for (int i = 0; i < MANY; i++)
		loop_cancel(l, id[i]);
	starved = false;
	until = loop_now() + DEADLINE_NS;
	while (loop_nr_ops(l) && loop_now() < until)
		loop_wait(l, loop_now() + 1000000);
	assert_int_equal(loop_nr_ops(l), 0);
	assert_int_equal(s.calls + poll.calls, 0);
	close(fd);
}

/* An operation that still names a file by its number must not meet the next file of that number. */
static void a_number_is_not_used_again_too_early(void **state)
{
	struct loop *l = *state;
	struct seen s = { 0 }, fill = { 0 };
	int a[2], b[2];
	char got[8];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, a), 0);
	loop_wait(l, 0);
	starved = true;
	for (int i = 0; i < 300; i++)	/* this one finds no room in the queue */
		loop_timeout(l, loop_now(), note, &fill);
	assert_true(loop_send(l, a[0], "mine", 4, NULL, 0, false, note, &s));
	loop_close(l, a[0]);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, b), 0);
	starved = false;
	wait_for(l, &s, 1);
	wait_for(l, &fill, 300);
	assert_int_equal(s.res, 4);
	assert_int_equal(recv(a[1], got, sizeof(got), MSG_DONTWAIT), 4);
	assert_int_equal(recv(a[1], got, sizeof(got), MSG_DONTWAIT), 0);	/* closed now */
	assert_int_equal(recv(b[0], got, sizeof(got), MSG_DONTWAIT), -1);
	assert_int_equal(recv(b[1], got, sizeof(got), MSG_DONTWAIT), -1);
	close(a[1]);
	close(b[0]);
	close(b[1]);
}

static void an_idle_loop_uses_no_cpu(void **state)
{
	struct loop *l = *state;
	struct timespec ts;
	struct seen s = { 0 };
	int fd = eventfd(0, EFD_CLOEXEC);
	uint64_t before, after, wakeups;

	loop_poll(l, fd, note, &s);
	settle(l);
	wakeups = loop_wakeups(l);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	before = (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
	loop_wait(l, loop_now() + 100000000);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	after = (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
	assert_true(after - before < 20000000);
	assert_int_equal(loop_wakeups(l) - wakeups, 1);
	loop_close(l, fd);
}

static void refusals_name_the_way_out(void **state)
{
	(void)state;
	assert_non_null(strstr(loop_create_hint(-EPERM), "kernel.io_uring_disabled=0"));
	assert_non_null(strstr(loop_create_hint(-ENOSYS), "io_uring"));
}

#define T(f)		cmocka_unit_test_setup_teardown(f, setup, teardown)
#define T_MANY(f)	cmocka_unit_test_setup_teardown(f, setup_many, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(poll_fires_for_every_ring_without_draining),
		T(a_cancelled_operation_never_calls_back),
		T(a_callback_may_cancel_itself),
		T(packets_come_whole_and_fds_do_not),
		T(fds_given_away_are_closed_after_the_send),
		T(a_send_to_a_dead_peer_is_an_error_not_a_signal),
		T(a_full_eventfd_blocks_nothing),
		T(a_bell_never_rings_a_reused_number),
		T(a_signal_reaches_a_poller),
		T(timeouts_come_in_time),
		T(sleep_ends_at_its_time),
		T(a_dying_process_is_noticed),
		T(accept_gives_connections),
		T(a_full_table_is_said),
		T(an_idle_loop_uses_no_cpu),
		T_MANY(what_the_kernel_does_not_take_is_started_later),
		T_MANY(what_the_kernel_does_not_take_is_cancelled_later),
		T_MANY(a_number_is_not_used_again_too_early),
		cmocka_unit_test(refusals_name_the_way_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
