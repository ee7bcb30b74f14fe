// SPDX-License-Identifier: Apache-2.0
/* session_test - a raw client against the daemon: handshake, rings, hostility, death */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <dirent.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "io/log.h"
#include "raw_client.h"

static int setup_with(void **state, const char *knob, const char *value)
{
	struct raw_daemon *d = malloc(sizeof(*d));
	char err[256];

	if (raw_daemon_prepare(d) < 0)
		return -1;
	if (knob && control_set(&d->control, knob, value, err, sizeof(err)) < 0)
		return -1;
	*state = d;
	return raw_daemon_start(d);
}

static int setup(void **state)
{
	return setup_with(state, NULL, NULL);
}

static int setup_hasty(void **state)
{
	return setup_with(state, "hello_ms", "50");
}

static int setup_sleepy(void **state)
{
	return setup_with(state, "spin_us", "0");
}

static int setup_small(void **state)
{
	return setup_with(state, "max_sessions_per_uid", "2");
}

static int teardown(void **state)
{
	raw_daemon_stop(*state);
	free(*state);
	return 0;
}

/* ---- what the daemon says about itself ------------------------------------------------------ */

static int engine_info(const char *path, uint32_t engine, struct kv_admin_engine *out)
{
	struct kv_admin_engine all[64];
	int n = raw_admin(path, KV_ADMIN_ENGINES, all, sizeof(all));

	for (int i = 0; i < n; i++) {
		if (all[i].engine == engine) {
			*out = all[i];
			return 0;
		}
	}
	return n < 0 ? n : -ENOENT;
}

static bool engine_is_gone(const char *path, uint32_t engine)
{
	struct kv_admin_engine e;

	return engine_info(path, engine, &e) == -ENOENT;
}

static bool engine_is_fenced(const char *path, uint32_t engine)
{
	struct kv_admin_engine e;

	return engine_info(path, engine, &e) == 0 && e.fenced;
}

static bool all_pages_are_back(const char *path)
{
	struct kv_admin_meminfo m;

	return raw_admin(path, KV_ADMIN_MEMINFO, &m, sizeof(m)) == 1 && !m.held_bytes &&
	       !m.quarantined_bytes && !m.cached_bytes;
}

static uint64_t counter(const char *path, const char *name)
{
	struct kv_admin_counter all[128];
	int n = raw_admin(path, KV_ADMIN_VMSTAT, all, sizeof(all));

	for (int i = 0; i < n; i++)
		if (!strcmp(all[i].name, name))
			return all[i].value;
	return UINT64_MAX;
}

/* The daemon is unharmed: a stranger gets in, is served, leaves. */
static void assert_daemon_serves(const char *path)
{
	const struct kv_sqe nop = { .op = KV_OP_NOP, .user_data = 5 };
	struct raw r;
	struct kv_cqe c;

	assert_int_equal(raw_open(&r, path, "stranger"), 0);
	assert_int_equal(raw_call(&r, &nop, &c), 0);
	assert_int_equal(c.user_data, 5);
	assert_int_equal(raw_bye(&r), 0);
	assert_true(raw_hung_up(r.sock));
	raw_close(&r);
}

static unsigned int nr_open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned int n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* ---- clients in processes of their own ------------------------------------------------------ */

struct child {
	pid_t pid;
	int to, from;		/* one byte each way is a step */
	struct kv_msg_welcome w;
};

typedef void child_fn(const char *path, struct raw *r, const uint8_t *token);

static void step(const struct child *c)
{
	char b = 1;

	assert_int_equal(write(c->to, &b, 1), 1);
	assert_int_equal(read(c->from, &b, 1), 1);
}

/* Opens (or joins), runs fn, reports its welcome, then one more fn per step. */
static void child_main(const char *path, const uint8_t *token, int in, int out, child_fn *first,
		       child_fn *second)
{
	struct raw r;
	char b;

	if ((token ? raw_join(&r, path, token, 1) : raw_open(&r, path, "child")) < 0)
		_exit(1);
	if (first)
		first(path, &r, token);
	if (write(out, &r.w, sizeof(r.w)) < 0)
		_exit(2);
	while (read(in, &b, 1) == 1) {
		if (second)
			second(path, &r, token);
		if (write(out, &b, 1) < 0)
			_exit(3);
	}
	_exit(0);
}

static struct child spawn(const char *path, const uint8_t *token, child_fn *first, child_fn *second)
{
	struct child c;
	int to[2], from[2];

	assert_int_equal(pipe2(to, O_CLOEXEC) | pipe2(from, O_CLOEXEC), 0);
	c.pid = fork();
	assert_true(c.pid >= 0);
	if (c.pid == 0) {
		close(to[1]);
		close(from[0]);
		child_main(path, token, to[0], from[1], first, second);
	}
	close(to[0]);
	close(from[1]);
	c.to = to[1];
	c.from = from[0];
	assert_int_equal(read(c.from, &c.w, sizeof(c.w)), sizeof(c.w));
	return c;
}

static void reap(struct child *c)
{
	if (c->pid > 0)
		waitpid(c->pid, NULL, 0);
	close(c->to);
	close(c->from);
}

static void kill_child(struct child *c)
{
	kill(c->pid, SIGKILL);
	reap(c);
}

static void hold_pages(const char *path, struct raw *r, const uint8_t *token)
{
	struct kv_msg_extent x;
	uint64_t ids[64];

	(void)path;
	(void)token;
	if (raw_open_cache(r) < 0 || raw_alloc(r, 64, ids) < 0 ||
	    raw_import(r, (uint32_t)(ids[0] >> 44), 0, &x) < 0)
		_exit(4);
}

static void close_socket(const char *path, struct raw *r, const uint8_t *token)
{
	(void)path;
	(void)token;
	close(r->sock);
	r->sock = -1;
}

/* ---- handshake ------------------------------------------------------------------------------ */

static int refusal(const char *path, const void *msg, size_t len, const int *fd)
{
	struct kv_msg_welcome w = { 0 };
	int sock = raw_connect(path);

	assert_true(sock >= 0);
	assert_int_equal(raw_send(sock, msg, len, fd), 0);
	assert_int_equal(raw_recv(sock, &w, sizeof(w), NULL, NULL), sizeof(w));
	assert_int_equal(w.type, KV_MSG_WELCOME);
	assert_true(strlen(w.text) > 10);
	assert_true(raw_hung_up(sock));
	close(sock);
	return w.result;
}

static void bad_hellos_are_refused_with_a_reason(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct kv_msg_hello good = raw_hello("bad"), h;
	char longer[sizeof(good) + 1] = { 0 };
	int fd = dup(0);

#define REFUSED(err, ...) do { \
	h = good; \
	__VA_ARGS__; \
	assert_int_equal(refusal(path, &h, sizeof(h), NULL), err); \
} while (0)
	REFUSED(-EPROTO, h.magic++);
	REFUSED(-EPROTO, h.type = KV_MSG_BYE);
	REFUSED(-EPROTO, h.version = 2);
	REFUSED(-EINVAL, h.features = 1ull << 63);
	REFUSED(-EINVAL, h.flags = 2);
	REFUSED(-EINVAL, h.reserved[4] = 1);
	REFUSED(-EINVAL, h.name[0] = '\n');
	REFUSED(-EINVAL, h.name[31] = 'x');
	REFUSED(-EINVAL, memset(h.name, 'x', sizeof(h.name)));
	REFUSED(-EINVAL, memset(h.name, 0, sizeof(h.name)));
	REFUSED(-EINVAL, h.rank = 1);
	REFUSED(-EACCES, h.flags = KV_HELLO_MEMBER);
#undef REFUSED
	memcpy(longer, &good, sizeof(good));
	assert_int_equal(refusal(path, longer, sizeof(longer), NULL), -EPROTO);
	assert_int_equal(refusal(path, &good, sizeof(good) - 1, NULL), -EPROTO);
	assert_int_equal(refusal(path, &good, 1, NULL), -EPROTO);
	assert_int_equal(refusal(path, &good, sizeof(good), &fd), -EPROTO);
	close(fd);
	assert_int_equal(counter(path, "sessions_refused"), 16);
	assert_int_equal(counter(path, "engines"), 0);
	assert_daemon_serves(path);
}

static void silence_is_not_waited_for(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	int sock = raw_connect(path);

	assert_true(sock >= 0);
	assert_true(raw_hung_up(sock));
	close(sock);
	assert_daemon_serves(path);
}

static void silent_connections_do_not_shut_others_out(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	int sock[64];

	for (int i = 0; i < 64; i++)
		assert_true((sock[i] = raw_connect(path)) >= 0);
	assert_true(raw_hung_up(sock[63]));	/* over the bound: at once */
	for (int i = 0; i < 64; i++)
		close(sock[i]);
	assert_true(RAW_EVENTUALLY(counter(path, "sessions_hello") == 0));
	assert_daemon_serves(path);
}

static void a_welcome_describes_a_sealed_memory(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct raw r;

	assert_int_equal(raw_open(&r, path, "good"), 0);
	assert_int_equal(r.w.version, KV_ABI_VERSION);
	assert_int_equal(r.w.sq_entries, 256);
	assert_int_equal(r.w.data_bytes, 1 << 20);
	assert_int_equal(r.w.data_offset + r.w.data_bytes, r.w.shm_bytes);
	assert_int_equal(r.w.nr_devices, 1);
	assert_int_equal(r.w.pool_bytes, 64 << 20);
	assert_true(r.w.engine && r.w.member && r.w.batch_pages);
	assert_int_equal(ftruncate(r.fds[0], 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(r.fds[0], 1 << 30), -1);
	assert_int_equal(fcntl(r.fds[0], F_ADD_SEALS, F_SEAL_WRITE), -1);
	raw_close(&r);
	assert_daemon_serves(path);
}

static void a_user_has_a_bound_of_sessions(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct raw a, b, c;

	assert_int_equal(raw_open(&a, path, "a"), 0);
	assert_int_equal(raw_open(&b, path, "b"), 0);
	assert_int_equal(raw_open(&c, path, "c"), -EUSERS);
	assert_non_null(strstr(c.w.text, "max_sessions_per_uid"));
	raw_close(&c);
	/* ended, but we live on: it still counts */
	raw_close(&b);
	assert_true(RAW_EVENTUALLY(counter(path, "sessions_linger") == 1));
	assert_int_equal(raw_open(&c, path, "c"), -EUSERS);
	raw_close(&c);
	raw_bye(&a);
	assert_true(raw_hung_up(a.sock));
	raw_close(&a);
	assert_daemon_serves(path);
}

static void sessions_leave_no_fds_behind(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	unsigned int before;

	assert_daemon_serves(path);
	before = nr_open_fds();
	for (int i = 0; i < 20; i++)
		assert_daemon_serves(path);
	assert_true(RAW_EVENTUALLY(nr_open_fds() <= before));
}

/* ---- the ring ------------------------------------------------------------------------------- */

static void bad_entries_are_answered_and_the_session_lives(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	const struct kv_sqe bad[] = {
		{.op = KV_NR_OPS},
		{.op = 255},
		{.op = KV_OP_NOP, .reserved = 1},
		{.op = KV_OP_FREE, .nr = 1, .in_off = 1 << 20, .in_bytes = 8},
		{.op = KV_OP_FREE, .nr = 1, .in_off = UINT64_MAX - 3, .in_bytes = 8},
		{.op = KV_OP_FREE, .nr = 0x80000000u, .in_off = 0, .in_bytes = 0},
		{.op = KV_OP_STAT, .out_off = (1 << 20) - 8, .out_bytes = sizeof(struct kv_stat)},
		{.op = KV_OP_LOOKUP,
		 .in_bytes = 8,
		 .out_off = UINT64_MAX,
		 .out_bytes = 0xffffffffu},
	};
	const struct kv_sqe nop = { .op = KV_OP_NOP };
	struct raw r;
	struct kv_cqe c;

	assert_int_equal(raw_open(&r, path, "bad"), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct kv_sqe e = bad[i];

		e.user_data = i + 100;
		assert_true(raw_call(&r, &e, &c) < 0);
		assert_true(c.res != -EPIPE && c.reason != KV_OK);
		assert_int_equal(c.user_data, i + 100);
	}
	assert_int_equal(raw_call(&r, &nop, &c), 0);
	raw_close(&r);
}

static void pages_are_granted_and_taken_back(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	uint64_t ids[64];
	struct raw r;

	assert_int_equal(raw_open(&r, path, "pages"), 0);
	assert_int_equal(raw_open_cache(&r), 0);
	for (int i = 0; i < 50; i++) {
		assert_int_equal(raw_alloc(&r, 64, ids), 0);
		assert_int_equal(raw_free(&r, 64, ids), 0);
	}
	assert_int_equal(raw_alloc(&r, 64, ids), 0);
	assert_int_equal(raw_free(&r, 64, ids), 0);
	assert_int_equal(raw_free(&r, 64, ids), -ESTALE);
	assert_true(all_pages_are_back(path));
	raw_close(&r);
}

static void a_client_that_reads_no_answers_loses_none(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct kv_sqe nop = { .op = KV_OP_NOP };
	struct raw r;
	struct kv_cqe c;
	uint64_t sent = 0;

	assert_int_equal(raw_open(&r, path, "flood"), 0);
	/* Fill the CQ, then the SQ behind it. */
	while (sent < r.w.cq_entries + r.w.sq_entries) {
		nop.user_data = sent;
		if (raw_push(&r, &nop))
			sent++;
		else
			sched_yield();
	}
	assert_daemon_serves(path);
	assert_false(raw_push(&r, &nop));
	assert_int_equal(kv_ring_avail(&r.cq), r.w.cq_entries);
	/* Reading makes room; the bell tells a daemon that sleeps. */
	for (uint64_t i = 0; i < sent; i++) {
		assert_int_equal(raw_wait(&r, &c), 1);
		assert_int_equal(c.user_data, i);
		raw_ring_bell(&r);
	}
	assert_int_equal(kv_ring_avail(&r.cq), 0);
	raw_close(&r);
}

/* Even one that never rings is served in the end. */
static void room_is_found_without_a_bell(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct kv_sqe nop = { .op = KV_OP_NOP };
	struct raw r;
	struct kv_cqe c;
	uint32_t sent = 0;

	assert_int_equal(raw_open(&r, path, "deaf"), 0);
	while (sent < r.w.cq_entries + 10)
		if (raw_push(&r, &nop))
			sent++;
	for (uint32_t i = 0; i < sent; i++)
		assert_int_equal(raw_wait(&r, &c), 1);
	raw_close(&r);
}

static void no_wake_up_is_lost_between_sleepers(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct kv_sqe nop = { .op = KV_OP_NOP };
	struct raw r;
	struct kv_cqe c;

	assert_int_equal(raw_open(&r, path, "sleeper"), 0);
	for (uint64_t i = 0; i < 3000; i++) {
		nop.user_data = i;
		assert_int_equal(raw_call(&r, &nop, &c), 0);
		assert_int_equal(c.user_data, i);
	}
	raw_close(&r);
}

/* The hang-up of the socket tells the client; a last bell may be cancelled with the session. */
static void assert_dies(struct raw *r, const char *path)
{
	assert_true(raw_hung_up(r->sock));
	assert_true(raw_is_dead(r));
	assert_true(RAW_EVENTUALLY(engine_is_fenced(path, r->w.engine)));
	raw_close(r);
	assert_daemon_serves(path);
}

static void set_and_ring(struct raw *r, uint32_t *index, uint32_t value)
{
	uint64_t one = 1;

	__atomic_store_n(index, value, __ATOMIC_SEQ_CST);
	assert_int_equal(write(r->fds[1], &one, sizeof(one)), sizeof(one));
}

static void broken_indices_end_the_session_only(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	const struct kv_sqe nop = { .op = KV_OP_NOP };
	struct raw r, other;
	struct kv_cqe c;

	assert_int_equal(raw_open(&other, path, "other"), 0);
	assert_int_equal(raw_open(&r, path, "tail"), 0);
	set_and_ring(&r, &r.hdr->sq_tail, 257);
	assert_dies(&r, path);
	assert_int_equal(raw_open(&r, path, "tail"), 0);
	assert_int_equal(raw_call(&r, &nop, &c), 0);
	set_and_ring(&r, &r.hdr->sq_tail, 0);	/* backwards */
	assert_dies(&r, path);
	assert_int_equal(raw_open(&r, path, "head"), 0);
	__atomic_store_n(&r.hdr->cq_head, 1000, __ATOMIC_SEQ_CST);
	assert_true(raw_push(&r, &nop));
	assert_dies(&r, path);
	assert_int_equal(counter(path, "sessions_broken"), 3);
	assert_int_equal(raw_call(&other, &nop, &c), 0);
	raw_close(&other);
}

/* What the client writes where only the daemon may is its own loss. */
static void the_daemons_fields_are_not_trusted(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	const struct kv_sqe nop = { .op = KV_OP_NOP, .user_data = 9 };
	struct raw r;
	struct kv_cqe c;

	assert_int_equal(raw_open(&r, path, "liar"), 0);
	for (uint32_t i = 0; i < 3; i++) {
		__atomic_store_n(&r.hdr->sq_head, 12345 + i, __ATOMIC_SEQ_CST);
		__atomic_store_n(&r.hdr->cq_tail, 54321 + i, __ATOMIC_SEQ_CST);
		r.sqes[i] = nop;
		set_and_ring(&r, &r.hdr->sq_tail, i + 1);
		assert_true(RAW_EVENTUALLY(__atomic_load_n(&r.hdr->cq_tail, __ATOMIC_ACQUIRE) ==
					   i + 1));
		c = r.cqes[i];
		assert_int_equal(c.user_data, 9);
	}
	raw_close(&r);
	assert_daemon_serves(path);
}

static void a_client_cannot_block_the_daemon_with_its_eventfd(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	const struct kv_sqe nop = { .op = KV_OP_NOP };
	uint64_t full = 0xfffffffffffffffeull;
	struct raw r[8];
	struct kv_cqe c;

	for (int i = 0; i < 8; i++) {
		assert_int_equal(raw_open(&r[i], path, "blocker"), 0);
		assert_int_equal(write(r[i].fds[2], &full, sizeof(full)), sizeof(full));
		assert_int_equal(fcntl(r[i].fds[2], F_SETFL, 0), 0);
		kv_ring_will_sleep(&r[i].hdr->cq_need_wakeup);
	}
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < 8; i++)
			assert_true(raw_push(&r[i], &nop));
		assert_daemon_serves(path);
	}
	for (int i = 0; i < 8; i++) {
		for (int round = 0; round < 20; round++)
			assert_int_equal(raw_wait(&r[i], &c), 1);
		/* Once drained it is told of what comes next. */
		assert_int_equal(read(r[i].fds[2], &full, sizeof(full)), sizeof(full));
		assert_int_equal(fcntl(r[i].fds[2], F_SETFL, O_NONBLOCK), 0);
		assert_int_equal(raw_call(&r[i], &nop, &c), 0);
	}
	/* And one that dies while its eventfd blocks does not hold up its own end. */
	full = 0xfffffffffffffffeull;
	while (write(r[0].fds[2], &full, sizeof(full)) < 0 && errno == EAGAIN)
		assert_true(read(r[0].fds[2], &full, sizeof(full)) > 0);
	fcntl(r[0].fds[2], F_SETFL, 0);
	kv_ring_will_sleep(&r[0].hdr->cq_need_wakeup);
	assert_true(raw_push(&r[0], &nop));
	raw_bye(&r[0]);
	assert_true(raw_hung_up(r[0].sock));
	assert_true(RAW_EVENTUALLY(engine_is_gone(path, r[0].w.engine)));
	for (int i = 0; i < 8; i++)
		raw_close(&r[i]);
}

/* A wake-up that came due while one was in flight is written after it: that may have been early. */
static void a_wake_up_due_during_another_is_not_dropped(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	const struct kv_sqe nop = { .op = KV_OP_NOP };
	uint64_t full = 0xfffffffffffffffeull, count = 0, n;
	struct raw r;

	assert_int_equal(raw_open(&r, path, "twice"), 0);
	assert_int_equal(write(r.fds[2], &full, sizeof(full)), sizeof(full));
	kv_ring_will_sleep(&r.hdr->cq_need_wakeup);
	for (int i = 1; i <= 2; i++) {
		assert_true(raw_push(&r, &nop));
		assert_true(RAW_EVENTUALLY(kv_ring_avail(&r.cq) == i));
		assert_daemon_serves(path);	/* the pass that answered is over */
	}
	assert_int_equal(read(r.fds[2], &full, sizeof(full)), sizeof(full));
	assert_true(RAW_EVENTUALLY((count += read(r.fds[2], &n, sizeof(n)) > 0 ? n : 0) >= 2));
	raw_close(&r);
}

static void junk_on_the_socket_ends_the_session(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct kv_msg_import m = { .type = KV_MSG_IMPORT, .extent = 1 };
	struct kv_msg_bye bye = { .type = KV_MSG_BYE, .reserved = 1 };
	struct kv_msg_hello again = raw_hello("again");
	struct raw r;
	int fd = dup(0);

	assert_int_equal(raw_open(&r, path, "fds"), 0);
	assert_int_equal(raw_send(r.sock, &m, sizeof(m), &fd), 0);
	assert_dies(&r, path);
	assert_int_equal(raw_open(&r, path, "hello"), 0);
	assert_int_equal(raw_send(r.sock, &again, sizeof(again), NULL), 0);
	assert_dies(&r, path);
	assert_int_equal(raw_open(&r, path, "bye"), 0);
	assert_int_equal(raw_send(r.sock, &bye, sizeof(bye), NULL), 0);
	assert_dies(&r, path);
	assert_int_equal(raw_open(&r, path, "short"), 0);
	assert_int_equal(raw_send(r.sock, &m, 3, NULL), 0);
	assert_dies(&r, path);
	close(fd);
}

/* ---- imports -------------------------------------------------------------------------------- */

static void an_extent_is_mapped_by_its_writer(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct kv_msg_extent x;
	uint64_t ids[8];
	struct raw r;
	char *p;
	int fd;

	assert_int_equal(raw_open(&r, path, "writer"), 0);
	assert_int_equal(raw_import(&r, 1, 0, &x), -ENOENT);
	assert_int_equal(raw_import(&r, 0xffffffffu, 0, &x), -ENOENT);
	assert_int_equal(raw_open_cache(&r), 0);
	assert_int_equal(raw_alloc(&r, 8, ids), 0);
	assert_true(raw_import(&r, (uint32_t)(ids[0] >> 44), 99, &x) < 0);
	fd = raw_import(&r, (uint32_t)(ids[0] >> 44), 0, &x);
	assert_true(fd >= 0);
	assert_true(x.writable && x.bytes >= 8 * 4096);
	p = mmap(NULL, x.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(p != MAP_FAILED);
	memset(p, 0xaa, x.bytes);
	munmap(p, x.bytes);
	close(fd);
	raw_close(&r);
}

static void nobody_maps_what_its_cache_is_not(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct kv_msg_extent x;
	uint64_t ids[8];
	struct raw a, b;

	assert_int_equal(raw_open(&a, path, "a"), 0);
	assert_int_equal(raw_open_cache(&a), 0);
	assert_int_equal(raw_alloc(&a, 8, ids), 0);
	assert_int_equal(raw_open(&b, path, "b"), 0);
	assert_true(raw_import(&b, (uint32_t)(ids[0] >> 44), 0, &x) < 0);
	raw_close(&a);
	raw_close(&b);
}

/* Answers that nobody reads pile up only so far, and with them the fds in flight. */
static void unread_extents_hold_up_nobody(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct kv_msg_import m = { .type = KV_MSG_IMPORT };
	struct kv_msg_extent x;
	uint64_t ids[8];
	struct raw greedy, r;
	unsigned int before = nr_open_fds(), asked = 0, nr = 0, fds_in = 0;
	struct pollfd p;
	int fd;

	assert_int_equal(raw_open(&greedy, path, "greedy"), 0);
	assert_int_equal(raw_open_cache(&greedy), 0);
	assert_int_equal(raw_alloc(&greedy, 8, ids), 0);
	m.extent = (uint32_t)(ids[0] >> 44);
	p = (struct pollfd){ .fd = greedy.sock, .events = POLLOUT };
	while (asked < 2000 && poll(&p, 1, 100) == 1)
		asked += send(greedy.sock, &m, sizeof(m), MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
	assert_in_range(asked, 10, 1999);	/* at last its requests are left where they are */
	assert_int_equal(raw_open(&r, path, "modest"), 0);
	assert_int_equal(raw_open_cache(&r), 0);
	assert_int_equal(raw_alloc(&r, 8, ids), 0);
	fd = raw_import(&r, (uint32_t)(ids[0] >> 44), 0, &x);
	assert_true(fd >= 0);
	close(fd);
	raw_close(&r);
	/* What is read goes on to be answered, each with its fd. */
	for (unsigned int i = 0; i < asked; i++) {
		assert_int_equal(raw_recv(greedy.sock, &x, sizeof(x), &fd, &nr), sizeof(x));
		fds_in += nr;
		close(fd);
	}
	assert_int_equal(fds_in, asked);
	raw_close(&greedy);
	/* two pidfds, two extents */
	assert_true(RAW_EVENTUALLY(nr_open_fds() <= before + 4));
}

/* ---- members and death ---------------------------------------------------------------------- */

static void a_member_needs_the_token(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct kv_sqe alloc = { .op = KV_OP_ALLOC, .nr = 1, .out_bytes = 8 };
	uint8_t token[KV_TOKEN_BYTES], none[KV_TOKEN_BYTES] = { 0 };
	struct raw lead, member;
	struct kv_cqe c;

	assert_int_equal(raw_open(&lead, path, "lead"), 0);
	memcpy(token, lead.w.member_token, sizeof(token));
	assert_int_equal(raw_join(&member, path, none, 1), -EACCES);
	raw_close(&member);
	token[15] ^= 1;
	assert_int_equal(raw_join(&member, path, token, 1), -EACCES);
	raw_close(&member);
	token[15] ^= 1;
	assert_int_equal(raw_join(&member, path, token, 1), 0);
	assert_int_equal(member.w.engine, lead.w.engine);
	assert_int_not_equal(member.w.member, lead.w.member);
	assert_memory_equal(member.w.member_token, none, sizeof(none));
	assert_true(raw_call(&member, &alloc, &c) < 0);
	assert_int_equal(c.reason, KV_NOT_LEAD);
	/* a member's empty token is nobody's */
	raw_close(&lead);
	assert_true(raw_hung_up(member.sock));
	assert_true(raw_is_dead(&member));
	raw_close(&member);
	assert_int_equal(raw_join(&member, path, token, 1), -EACCES);
	raw_close(&member);
}

static void death_of_a_member_is_the_engines(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct child lead = spawn(path, NULL, hold_pages, NULL), member;
	struct kv_admin_engine e;

	member = spawn(path, lead.w.member_token, NULL, NULL);
	assert_int_equal(engine_info(path, lead.w.engine, &e), 0);
	assert_int_equal(e.nr_members, 2);
	assert_int_equal(e.held_pages, 64);
	assert_int_equal(e.fenced, 0);
	kill_child(&member);
	assert_true(RAW_EVENTUALLY(engine_is_fenced(path, lead.w.engine)));
	assert_int_equal(engine_info(path, lead.w.engine, &e), 0);
	assert_int_equal(e.quarantined_pages, 64);
	assert_int_equal(e.pid, lead.pid);
	assert_string_equal(e.name, "child");
	kill_child(&lead);
	assert_true(RAW_EVENTUALLY(engine_is_gone(path, lead.w.engine)));
	assert_true(all_pages_are_back(path));
}

static void a_closed_socket_alone_frees_nothing(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct child c = spawn(path, NULL, hold_pages, close_socket);
	struct kv_admin_engine e;

	step(&c);
	assert_true(RAW_EVENTUALLY(engine_is_fenced(path, c.w.engine)));
	for (int i = 0; i < 20; i++)
		assert_daemon_serves(path);
	assert_int_equal(engine_info(path, c.w.engine, &e), 0);
	assert_int_equal(e.quarantined_pages, 64);
	kill_child(&c);
	assert_true(RAW_EVENTUALLY(engine_is_gone(path, c.w.engine)));
	assert_true(all_pages_are_back(path));
}

static void a_killed_client_gives_everything_back(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;

	for (int i = 0; i < 10; i++) {
		struct child c = spawn(path, NULL, hold_pages, NULL);

		assert_false(all_pages_are_back(path));
		kill_child(&c);
		assert_true(RAW_EVENTUALLY(engine_is_gone(path, c.w.engine)));
		assert_true(all_pages_are_back(path));
	}
	assert_int_equal(counter(path, "sessions_linger"), 0);
}

static void goodbye_frees_only_with_nothing_mapped(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct kv_msg_extent x;
	uint64_t ids[8];
	struct raw r;
	int fd;

	/* mapped: our word is not enough */
	assert_int_equal(raw_open(&r, path, "mapped"), 0);
	assert_int_equal(raw_open_cache(&r), 0);
	assert_int_equal(raw_alloc(&r, 8, ids), 0);
	fd = raw_import(&r, (uint32_t)(ids[0] >> 44), 0, &x);
	assert_true(fd >= 0);
	raw_bye(&r);
	assert_true(raw_hung_up(r.sock));
	assert_true(RAW_EVENTUALLY(engine_is_fenced(path, r.w.engine)));
	assert_false(all_pages_are_back(path));
	raw_close(&r);
	close(fd);
	/* imported twice, unmapped once */
	assert_int_equal(raw_open(&r, path, "unmapped"), 0);
	assert_int_equal(raw_open_cache(&r), 0);
	assert_int_equal(raw_alloc(&r, 8, ids), 0);
	for (int i = 0; i < 2; i++) {
		fd = raw_import(&r, (uint32_t)(ids[0] >> 44), 0, &x);
		assert_true(fd >= 0);
		close(fd);
	}
	assert_int_equal(raw_unimport(&r, (uint32_t)(ids[0] >> 44), 0), 0);
	raw_bye(&r);
	assert_true(raw_hung_up(r.sock));
	assert_true(RAW_EVENTUALLY(engine_is_gone(path, r.w.engine)));
	raw_close(&r);
}

static void a_stopping_daemon_tells_its_clients(void **state)
{
	struct raw_daemon *d = *state;
	const struct kv_sqe nop = { .op = KV_OP_NOP };
	struct raw r;
	struct kv_cqe c;

	assert_int_equal(raw_open(&r, d->path, "last"), 0);
	assert_int_equal(raw_call(&r, &nop, &c), 0);
	raw_daemon_stop(d);
	assert_true(raw_is_dead(&r));
	assert_true(raw_hung_up(r.sock));
	assert_int_equal(raw_call(&r, &nop, &c), -EPIPE);
	raw_close(&r);
	assert_int_equal(access(d->path, F_OK), -1);
}

static void an_idle_daemon_sleeps(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	const struct kv_sqe nop = { .op = KV_OP_NOP };
	uint64_t before, after;
	struct raw r;
	struct kv_cqe c;

	assert_int_equal(raw_open(&r, path, "idle"), 0);
	assert_int_equal(raw_call(&r, &nop, &c), 0);
	assert_true(RAW_EVENTUALLY(__atomic_load_n(&r.hdr->sq_need_wakeup, __ATOMIC_RELAXED)));
	before = counter(path, "loop_wakeups");
	usleep(300000);
	after = counter(path, "loop_wakeups");
	/* the questions themselves: accept, request, answer, hang-up, each at most one sleep */
	assert_in_range(after - before, 1, 8);
	raw_close(&r);
}

#define T(f)		cmocka_unit_test_setup_teardown(f, setup, teardown)
#define T_WITH(f, s)	cmocka_unit_test_setup_teardown(f, s, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(bad_hellos_are_refused_with_a_reason),
		T_WITH(silence_is_not_waited_for, setup_hasty),
		T(silent_connections_do_not_shut_others_out),
		T(a_welcome_describes_a_sealed_memory),
		T_WITH(a_user_has_a_bound_of_sessions, setup_small),
		T(sessions_leave_no_fds_behind),
		T(bad_entries_are_answered_and_the_session_lives),
		T(pages_are_granted_and_taken_back),
		T(a_client_that_reads_no_answers_loses_none),
		T(room_is_found_without_a_bell),
		T(no_wake_up_is_lost_between_sleepers),
		T_WITH(no_wake_up_is_lost_between_sleepers, setup_sleepy),
		T(broken_indices_end_the_session_only),
		T(the_daemons_fields_are_not_trusted),
		T(a_client_cannot_block_the_daemon_with_its_eventfd),
		T(a_wake_up_due_during_another_is_not_dropped),
		T(junk_on_the_socket_ends_the_session),
		T(an_extent_is_mapped_by_its_writer),
		T(nobody_maps_what_its_cache_is_not),
		T(unread_extents_hold_up_nobody),
		T(a_member_needs_the_token),
		T(death_of_a_member_is_the_engines),
		T(a_closed_socket_alone_frees_nothing),
		T(a_killed_client_gives_everything_back),
		T(goodbye_frees_only_with_nothing_mapped),
		T(a_stopping_daemon_tells_its_clients),
		T(an_idle_daemon_sleeps),
	};

	log_init(LOG_LEVEL_ERROR);	/* the refusals are the point here, not news */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
