// SPDX-License-Identifier: Apache-2.0
/* pass_test - the daemon's parts on a loop that the test turns itself, one pass at a time, with a
 * clock that it may put forward: turns, back-off, accept, what is in flight to who does not read */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "io/sock.h"
#include "raw_client.h"
#include "srv/admin.h"

#define MIB		(1ull << 20)
#define MS		1000000ull
#define S		(1000 * MS)
#define MAX_OPS		256u

struct world {
	struct loop *loop;
	struct exec *exec;
	struct sessions *sessions;
	struct tenants *tenants;
	struct admin *admin;
	struct control control;
	int listen_fd, admin_fd;
	uint64_t ahead_ns;	/* how far the clock was put forward */
	char dir[64], path[96], admin_path[104];
};

static void on_reply(void *ctx, const struct mm_reply *r)
{
	sessions_reply(((struct world *)ctx)->sessions, r);
}

static void on_notify(void *ctx, uint32_t member)
{
	sessions_notify(((struct world *)ctx)->sessions, member);
}

static int listen_at(const char *path)
{
	const struct sock_place at = { .path = path, .mode = 0600 };
	char err[256];

	return sock_listen(&at, err, sizeof(err));
}

static int create_clients(struct world *w, uint32_t ring_entries)
{
	const struct sessions_config cfg = {
		.loop = w->loop, .listen_fd = w->listen_fd, .max = 8, .max_per_uid = 8,
		.ring_entries = ring_entries, .batch_pages = 1u << 17, .nr_devices = 1,
		.max_extents = 64, .data_bytes = 8 * MIB, .pool_bytes = 16 * MIB,
		.hello_ns = 100 * S,
	};
	struct admin_config admin = {
		.loop = w->loop, .exec = w->exec, .control = &w->control, .release = "test",
		.listen_fd = w->admin_fd,
	};
	int ret = sessions_create(&w->sessions, &cfg);

	if (ret == 0)
		ret = tenants_create(&w->tenants, &w->control.tenants, w->exec, 1);
	admin.tenants = w->tenants;
	if (ret == 0)
		ret = admin_create(&w->admin, &admin);
	sessions_start(w->sessions, w->exec);
	return ret;
}

static int setup_with(void **state, uint32_t ring_entries)
{
	static const struct exec_ops ops = { .reply = on_reply, .notify = on_notify };
	const uint64_t pool_bytes = 16 * MIB;
	struct world *w = calloc(1, sizeof(*w));
	struct mm_config mm;
	struct dev *dev;

	*state = w;
	snprintf(w->dir, sizeof(w->dir), "/tmp/kvd-pass-XXXXXX");
	if (!mkdtemp(w->dir))
		return -1;
	snprintf(w->path, sizeof(w->path), "%s/s", w->dir);
	snprintf(w->admin_path, sizeof(w->admin_path), "%s.admin", w->path);
	control_init(&w->control);
	exec_default_config(&mm, 1, &pool_bytes, 0);
	mm.max_extents = 64;
	mm.batch_pages = 1u << 17;
	w->listen_fd = listen_at(w->path);
	w->admin_fd = listen_at(w->admin_path);
	if (loop_create(&w->loop, MAX_OPS) < 0 || dev_host_create(&dev, 64) < 0 ||
	    exec_create(&w->exec, &mm, &dev, &ops, w) < 0)
		return -1;
	return create_clients(w, ring_entries);
}

static int setup(void **state)
{
	return setup_with(state, 32);
}

static int setup_tiny(void **state)
{
	return setup_with(state, 8);
}

static int teardown(void **state)
{
	struct world *w = *state;

	sessions_stop(w->sessions);
	admin_destroy(w->admin);
	loop_stop(w->loop);
	sessions_destroy(w->sessions);
	tenants_destroy(w->tenants);
	exec_destroy(w->exec);
	loop_destroy(w->loop);
	sock_unlink(w->path, w->listen_fd);
	sock_unlink(w->admin_path, w->admin_fd);
	close(w->listen_fd);
	close(w->admin_fd);
	rmdir(w->dir);
	free(w);
	return 0;
}

static uint64_t now(const struct world *w)
{
	return loop_now() + w->ahead_ns;
}

/* What has happened by now, and one pass over what is due: how long it may wait for the next. */
static uint64_t pass(struct world *w)
{
	uint64_t at, next, admin;

	assert_int_equal(loop_wait(w->loop, 0), 0);
	at = now(w);
	next = sessions_run(w->sessions, at);
	admin = admin_run(w->admin, at);
	next = admin < next ? admin : next;
	return next < at ? 0 : next == LOOP_NEVER ? next : next - at;
}

#define UNTIL(w, cond) do { \
	uint64_t until_ = loop_now() + 20 * S; \
	bool ok_; \
	while (!(ok_ = (cond)) && loop_now() < until_) \
		pass(w); \
	assert_true(ok_); \
} while (0)

struct opening {
	const char *path;
	struct raw *raw;
	int ret;
	bool done;
};

static void *open_main(void *arg)
{
	struct opening *o = arg;

	o->ret = raw_open(o->raw, o->path, "one");
	__atomic_store_n(&o->done, true, __ATOMIC_RELEASE);
	return NULL;
}

static void open_one(struct world *w, struct raw *r)
{
	struct opening o = { .path = w->path, .raw = r };
	pthread_t t;

	assert_int_equal(pthread_create(&t, NULL, open_main, &o), 0);
	UNTIL(w, __atomic_load_n(&o.done, __ATOMIC_ACQUIRE));
	pthread_join(t, NULL);
	assert_int_equal(o.ret, 0);
}

static uint32_t nr_taken(const struct raw *r)
{
	return __atomic_load_n(&r->hdr->sq_head, __ATOMIC_ACQUIRE);
}

static uint32_t nr_answered(const struct raw *r)
{
	return __atomic_load_n(&r->hdr->cq_tail, __ATOMIC_ACQUIRE);
}

/* Published without a bell: the test rings, so that it knows who comes first. */
static void queue(struct raw *r, const struct kv_sqe *e)
{
	assert_true(kv_ring_room(&r->sq) > 0);
	r->sqes[kv_ring_at(&r->sq, 0)] = *e;
	kv_ring_publish(&r->sq, 1);
}

static void ring(struct raw *r)
{
	uint64_t one = 1;

	assert_int_equal(write(r->fds[1], &one, sizeof(one)), sizeof(one));
}

static void close_all(struct world *w, struct raw *r, int nr)
{
	for (int i = 0; i < nr; i++)
		raw_close(&r[i]);
	for (int i = 0; i < 4; i++)
		pass(w);
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* A prompt of a million tokens: 4 MiB to copy and look at. */
static struct kv_sqe big_lookup(struct raw *r)
{
	struct kv_lookup_in in = { .nr_tokens = 1000000 };
	struct kv_sqe e = { .op = KV_OP_LOOKUP, .cache = r->cache, .out_off = 5 * MIB };

	e.in_bytes = sizeof(in) + in.nr_tokens * 4;
	e.out_bytes = sizeof(struct kv_match_out) + in.nr_tokens / 16 * 8;
	memcpy(r->data, &in, sizeof(in));
	return e;
}

static void take_turns(struct world *w, bool big_first)
{
	enum { N = 16 };
	const struct kv_sqe nop = { .op = KV_OP_NOP };
	struct kv_sqe open, big;
	struct kv_cache_desc desc = { .page_tokens = 16, .nr_groups = 1, .nr_shards = 1 };
	struct raw r[2];
	uint32_t big0, nop0, before;

	open_one(w, &r[0]);
	open_one(w, &r[1]);
	desc.layout_key[0] = 1;
	desc.group[0].kind = 1;
	desc.shard[0].page_bytes[0] = 4096;
	memcpy(r[0].data, &desc, sizeof(desc));
	open = (struct kv_sqe){ .op = KV_OP_CACHE_OPEN, .in_bytes = sizeof(desc), .out_off = 4096,
				.out_bytes = sizeof(struct kv_cache_geom) };
	queue(&r[0], &open);
	ring(&r[0]);
	UNTIL(w, nr_answered(&r[0]) == 1);
	assert_int_equal(r[0].cqes[0].res, 0);
	r[0].cache = r[0].cqes[0].id;
	kv_ring_consume(&r[0].cq, 1);
	for (int i = 0; i < 4; i++)	/* both asleep */
		pass(w);
	big = big_lookup(&r[0]);
	big0 = nr_taken(&r[0]);
	nop0 = nr_answered(&r[1]);
	for (int i = 0; i < N; i++) {
		queue(&r[0], &big);
		queue(&r[1], &nop);
	}
	ring(&r[!big_first]);
	ring(&r[big_first]);
	UNTIL(w, nr_answered(&r[1]) - nop0 == N);
	assert_in_range(nr_taken(&r[0]) - big0, 0, 2);
	while (nr_answered(&r[0]) - 1 < N) {	/* each pass takes one, and asks for the next */
		before = nr_taken(&r[0]);
		assert_int_equal(pass(w), 0);
		assert_in_range(nr_taken(&r[0]) - before, nr_taken(&r[0]) - big0 == N ? 0 : 1, 1);
	}
	assert_int_equal(r[0].cqes[1].res, 0);
	close_all(w, r, 2);
}

static void big_requests_leave_others_their_turn(void **state)
{
	take_turns(*state, true);
	take_turns(*state, false);
}

/* ---- back-off -------------------------------------------------------------------------------- */

/* Nine requests, and a completion ring of eight that nobody reads. */
static void a_stuck_client_is_looked_at_less_and_less(void **state)
{
	const struct kv_sqe nop = { .op = KV_OP_NOP };
	struct world *w = *state;
	uint64_t wait = 0, was;
	struct raw r;

	open_one(w, &r);
	for (int i = 0; i < 8; i++)
		queue(&r, &nop);
	ring(&r);
	UNTIL(w, nr_answered(&r) == 8);
	queue(&r, &nop);
	ring(&r);
	for (int i = 0; i < 8; i++)
		wait = pass(w);
	assert_in_range(wait, 1, 10 * MS);
	for (int i = 0; i < 10; i++) {
		was = wait;
		w->ahead_ns += wait;
		wait = pass(w);
		assert_true(wait > was || wait > 900 * MS);
		assert_true(wait <= 1000 * MS);
	}
	assert_true(wait > 900 * MS);
	assert_int_equal(nr_answered(&r), 8);
	kv_ring_consume(&r.cq, 8);
	w->ahead_ns += wait;
	pass(w);
	assert_int_equal(nr_answered(&r), 9);
	close_all(w, &r, 1);
}

/* A new entry is a reason to look at once, whatever was put off. */
static void a_bell_ends_the_wait(void **state)
{
	const struct kv_sqe nop = { .op = KV_OP_NOP };
	struct world *w = *state;
	struct raw r;

	open_one(w, &r);
	for (int i = 0; i < 8; i++)
		queue(&r, &nop);
	ring(&r);
	UNTIL(w, nr_answered(&r) == 8);
	queue(&r, &nop);
	ring(&r);
	for (int i = 0; i < 16; i++)
		w->ahead_ns += pass(w);
	pass(w);		/* it will not look again for a second */
	kv_ring_consume(&r.cq, 8);
	queue(&r, &nop);
	ring(&r);
	for (int i = 0; i < 3; i++)
		pass(w);
	assert_int_equal(nr_answered(&r), 10);
	close_all(w, &r, 1);
}

/* ---- connections ----------------------------------------------------------------------------- */

static void nothing(void *ctx, int res, const struct loop_msg *msg)
{
	(void)ctx;
	(void)res;
	(void)msg;
}

/* Every operation of the loop is taken when a connection comes and accept must be armed again. */
static void accept_outlives_a_full_loop(void **state)
{
	struct world *w = *state;
	uint64_t id[MAX_OPS];
	unsigned int n = 0;
	struct raw r;
	int sock[2];

	pass(w);
	while ((id[n] = loop_timeout(w->loop, LOOP_NEVER / 2, nothing, NULL)))
		n++;
	sock[0] = raw_connect(w->path);
	sock[1] = raw_connect(w->admin_path);
	assert_true(sock[0] >= 0 && sock[1] >= 0);
	for (int i = 0; i < 16; i++) {
		id[n] = loop_timeout(w->loop, LOOP_NEVER / 2, nothing, NULL);
		n += id[n] && n + 1 < MAX_OPS;
		pass(w);
	}
	for (unsigned int i = 0; i < n; i++)
		loop_cancel(w->loop, id[i]);
	for (int i = 0; i < 4; i++)
		pass(w);
	w->ahead_ns += S;
	close(sock[0]);
	close(sock[1]);
	open_one(w, &r);
	sock[1] = raw_connect(w->admin_path);
	assert_int_equal(raw_send(sock[1], "?", 1, NULL), 0);
	UNTIL(w, recv(sock[1], id, 1, MSG_DONTWAIT) == 1);
	close(sock[1]);
	close_all(w, &r, 1);
}

/* Ranks that start together on a busy machine all get in; beyond that there is a word of why. */
static void many_may_connect_before_they_speak(void **state)
{
	const struct kv_msg_hello h = raw_hello("late");
	struct kv_msg_welcome w = { 0 };
	int sock[SESSION_SPARE_PER_UID + 1];

	for (unsigned int i = 0; i <= SESSION_SPARE_PER_UID; i++) {
		sock[i] = raw_connect(((struct world *)*state)->path);
		assert_true(sock[i] >= 0);
		if (i == SESSION_SPARE_PER_UID)
			assert_int_equal(raw_send(sock[i], &h, sizeof(h), NULL), 0);
		pass(*state);
		pass(*state);
	}
	UNTIL(*state, recv(sock[SESSION_SPARE_PER_UID], &w, sizeof(w), MSG_DONTWAIT) == sizeof(w));
	assert_int_equal(w.type, KV_MSG_WELCOME);
	assert_int_equal(w.result, -EUSERS);
	assert_non_null(strstr(w.text, "try again"));
	for (unsigned int i = 0; i < SESSION_SPARE_PER_UID; i++)
		assert_int_equal(recv(sock[i], &w, sizeof(w), MSG_DONTWAIT), -1);
	for (unsigned int i = 0; i <= SESSION_SPARE_PER_UID; i++)
		close(sock[i]);
}

static bool is_hung_up(int sock)
{
	struct pollfd p = { .fd = sock, .events = POLLIN };

	return poll(&p, 1, 0) == 1 && p.revents & POLLHUP;
}

static void idle_admin_connections_make_room(void **state)
{
	struct world *w = *state;
	uint32_t nr = (uint32_t)w->control.max_admin;
	int sock[64], one;

	for (uint32_t i = 0; i < nr; i++) {
		sock[i] = raw_connect(w->admin_path);
		assert_true(sock[i] >= 0);
	}
	for (uint32_t i = 0; i < 8 * nr; i++)
		pass(w);
	w->ahead_ns += 59 * S;
	pass(w);
	for (uint32_t i = 0; i < nr; i++)
		assert_false(is_hung_up(sock[i]));
	w->ahead_ns += 2 * S;
	UNTIL(w, is_hung_up(sock[0]) && is_hung_up(sock[nr - 1]));
	for (uint32_t i = 0; i < nr; i++)
		close(sock[i]);
	one = raw_connect(w->admin_path);
	for (int i = 0; i < 8; i++)
		pass(w);
	w->ahead_ns += 100 * S;		/* alone, it may be idle */
	pass(w);
	assert_false(is_hung_up(one));
	close(one);
}

/* Asks for an extent as fast as it can and reads no answer. Every answer holds an fd in flight, of
 * which the kernel allows kvd's user only so many: few may be on their way. */
static void who_reads_no_answers_holds_few_files(void **state)
{
	const struct kv_msg_import m = { .type = KV_MSG_IMPORT, .extent = 1, .user_data = 77 };
	struct world *w = *state;
	struct raw r;
	int bytes;

	open_one(w, &r);
	for (int i = 0; i < 2000; i++) {
		send(r.sock, &m, sizeof(m), MSG_DONTWAIT | MSG_NOSIGNAL);
		pass(w);
		pass(w);
	}
	assert_int_equal(ioctl(r.sock, SIOCINQ, &bytes), 0);
	assert_in_range(bytes / sizeof(struct kv_msg_extent), 1, 16);
	close_all(w, &r, 1);
}

/* What the daemon writes into by itself is there from the start, what the client fills is not. */
static void the_rings_are_backed(void **state)
{
	struct world *w = *state;
	struct stat st;
	struct raw r;

	open_one(w, &r);
	assert_int_equal(fstat(r.fds[0], &st), 0);
	assert_in_range((uint64_t)st.st_blocks * 512, r.w.data_offset, r.w.data_offset + MIB);
	close_all(w, &r, 1);
}

#define T(f)		cmocka_unit_test_setup_teardown(f, setup, teardown)
#define T_TINY(f)	cmocka_unit_test_setup_teardown(f, setup_tiny, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(big_requests_leave_others_their_turn),
		T_TINY(a_stuck_client_is_looked_at_less_and_less),
		T_TINY(a_bell_ends_the_wait),
		T(accept_outlives_a_full_loop),
		T(many_may_connect_before_they_speak),
		T(idle_admin_connections_make_room),
		T(who_reads_no_answers_holds_few_files),
		T(the_rings_are_backed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
