// SPDX-License-Identifier: Apache-2.0
/* libkv against a real kvd: shared prefixes, members, exhaustion, retirement, its death. */
#include <errno.h>
#include <pthread.h>
#include <sys/un.h>
#include "daemon_test.h"
#include "internal.h"
#include "kv_admin.h"

#define N 4u

static struct daemon_proc d;

static int start(void **state)
{
	static const char *const args[] = {
		"--device", "host:32M", "--device", "host:32M", "--check-every", "1",
	};

	(void)state;
	d = (struct daemon_proc){ .pid = 0 };
	daemon_start(&d, args, 6);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	if (d.dir[0])
		daemon_stop(&d);
	return 0;
}

static struct kv *open_kv(uint32_t wait_ms)
{
	const struct kv_options o = { .name = "remote test", .wait_ms = wait_ms };
	struct kv *kv = NULL;

	ok(kv_open(d.spec, &o, &kv));
	return kv;
}

static struct kv_cache *open_cache(struct kv *kv, const char *model, uint32_t page_bytes)
{
	struct kv_cache_params p = test_params(model);
	struct kv_cache *c;

	if (page_bytes)
		p.group[0].layout = opaque_layout(page_bytes);
	ok(kv_cache_open(kv, &p, &c));
	return c;
}

/* nr pages, filled with fill + page number, cached under seed's tokens. */
static uint32_t publish(struct kv_cache *c, uint32_t nr, uint32_t seed, uint8_t fill, uint64_t *ids)
{
	uint32_t tokens[64 * PAGE_TOKENS], lease = 0, i;
	const uint64_t *pages[1] = { ids };
	void *addr;

	test_tokens(tokens, nr * PAGE_TOKENS, seed);
	ok(kv_pages_alloc(c, 0, nr, ids));
	for (i = 0; i < nr; i++) {
		ok(kv_page_map(c, 0, ids[i], &addr));
		memset(addr, (int)(fill + i), kv_cache_page_bytes(c, 0));
	}
	ok(kv_commit(c, &lease, 0, tokens, nr * PAGE_TOKENS, nr, pages, false, NULL, 0, NULL));
	return lease;
}

static void find(struct kv_cache *c, uint32_t nr, uint32_t seed, struct kv_match *m)
{
	uint32_t tokens[64 * PAGE_TOKENS];

	test_tokens(tokens, nr * PAGE_TOKENS, seed);
	ok(kv_lookup(c, tokens, nr * PAGE_TOKENS, NULL, 0, false, m));
}

static sigjmp_buf fault_jmp;

static void on_fault(int sig)
{
	(void)sig;
	siglongjmp(fault_jmp, 1);
}

static bool store_faults(void *addr)
{
	struct sigaction old, sa = { .sa_handler = on_fault };
	bool faulted = true;

	sigaction(SIGSEGV, &sa, &old);
	if (!sigsetjmp(fault_jmp, 1)) {
		*(volatile uint8_t *)addr = 0xff;
		faulted = false;
	}
	sigaction(SIGSEGV, &old, NULL);
	return faulted;
}

static void test_session(void **state)
{
	struct kv *kv = open_kv(0), *other = open_kv(0);
	uint8_t token[16], zero[16] = { 0 };
	struct kv_info a, b;

	(void)state;
	ok(kv_info(kv, &a));
	ok(kv_info(other, &b));
	assert_false(a.embedded);
	assert_int_not_equal(a.engine, b.engine);
	assert_int_equal(a.nr_devices, 2);
	assert_int_equal(a.pool_bytes, 32 << 20);
	ok(kv_member_token(kv, token));
	assert_memory_not_equal(token, zero, 16);
	ok(kv_poll(kv));
	ok(kv_reserve(kv, 1, 30 << 20, KV_RESERVE_WEIGHTS));
	refused(kv_reserve(other, 1, 3 << 20, KV_RESERVE_WEIGHTS), -ENOMEM, "kvd pool is full");
	kv_close(kv);
	ok(kv_info(other, &b)); /* a close leaves others alone */
	kv_close(other);
}

struct shared {
	uint64_t ids[N];
};

static void writer(int fd, void *arg)
{
	struct kv *kv = open_kv(0);
	struct kv_cache *c = open_cache(kv, "shared", 0);
	struct shared s;
	char go;

	(void)arg;
	publish(c, N, 1, 0x40, s.ids);
	peer_tell(fd, &s, sizeof(s));
	peer_hear(fd, &go, 1); /* until the test is done with us */
}

static void check_filled(struct kv_cache *c, const uint64_t *ids, uint32_t nr, uint8_t fill)
{
	uint64_t bytes = kv_cache_page_bytes(c, 0), k;
	uint32_t i;
	void *addr;

	for (i = 0; i < nr; i++) {
		ok(kv_page_map(c, 0, ids[i], &addr));
		for (k = 0; k < bytes; k++)
			assert_int_equal(((uint8_t *)addr)[k], fill + i);
	}
}

/* What one process wrote the other reads in place, and cannot change; the writer's death at any
 * moment changes nothing for the reader. */
static void test_two_processes(void **state)
{
	struct kv_match m;
	struct kv_cache *c;
	struct peer peer;
	struct shared s;
	struct kv *kv;
	void *addr;

	(void)state;
	peer_start(&peer, writer, NULL);
	kv = open_kv(0);
	c = open_cache(kv, "shared", 0);
	assert_true(peer_hear(peer.fd, &s, sizeof(s)));
	find(c, N, 1, &m);
	assert_int_equal(m.nr_pages, N);
	assert_memory_equal(m.pages[0], s.ids, sizeof(s.ids));
	check_filled(c, s.ids, N, 0x40);
	ok(kv_page_map(c, 0, s.ids[1], &addr));
	assert_true(store_faults(addr));
	kill(peer.pid, SIGKILL);
	peer_end(&peer);
	check_filled(c, s.ids, N, 0x40);
	find(c, N, 1, &m);
	assert_int_equal(m.nr_pages, N);
	kv_close(kv);
}

/* The records of an answer that fits one packet; how many there are. */
static uint32_t admin(uint32_t cmd, void *records, size_t bytes)
{
	const struct kv_admin_request ask = { KV_ADMIN_MAGIC, KV_ABI_VERSION, cmd, 0 };
	struct sockaddr_un sun = { .sun_family = AF_UNIX };
	static struct {
		struct kv_admin_head head;
		uint8_t records[KV_ADMIN_PACKET];
	} answer;
	ssize_t n;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	snprintf(sun.sun_path, sizeof(sun.sun_path), "%s.admin", d.sock);
	assert_int_equal(connect(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
	assert_int_equal(send(fd, &ask, sizeof(ask), 0), sizeof(ask));
	n = recv(fd, &answer, sizeof(answer), 0);
	assert_true(n >= (ssize_t)sizeof(answer.head));
	assert_int_equal(answer.head.result, 0);
	n -= sizeof(answer.head);
	assert_true((size_t)n <= bytes);
	memcpy(records, answer.records, (size_t)n);
	close(fd);
	return answer.head.nr;
}

static uint32_t nr_engines(void)
{
	struct kv_admin_status status;

	assert_int_equal(admin(KV_ADMIN_STATUS, &status, sizeof(status)), 1);
	return status.nr_engines;
}

/* kvd hears of a death a moment later. */
static void wait_for_engines(uint32_t nr)
{
	uint32_t i;

	for (i = 0; nr_engines() != nr && i < DAEMON_TRIES; i++)
		poll(NULL, 0, 10);
	assert_int_equal(nr_engines(), nr);
}

/* A page in the extent of id, taken from the pool; 0 if none comes. */
static uint64_t page_beside(struct kv_cache *c, uint64_t id)
{
	uint64_t ids[256];
	uint32_t n, i;

	for (n = 0; n < 24; n++) {
		ok(kv_pages_alloc(c, 0, 256, ids));
		for (i = 0; i < 256; i++)
			if (ids[i] >> 44 == id >> 44)
				return ids[i];
	}
	return 0;
}

/* The extent of a dead writer gets this engine as its writer: its content stays, its free pages are
 * written here from now on. One that is mapped read-only already is left alone. */
static void new_writer(bool mapped)
{
	struct kv *kv = open_kv(0);
	struct kv_cache *c = open_cache(kv, "shared", 0);
	struct kv_match m;
	struct peer peer;
	struct shared s;
	uint64_t mine;
	void *addr;

	peer_start(&peer, writer, NULL);
	assert_true(peer_hear(peer.fd, &s, sizeof(s)));
	find(c, N, 1, &m);
	assert_int_equal(m.nr_pages, N);
	if (mapped)
		check_filled(c, s.ids, N, 0x40);
	kill(peer.pid, SIGKILL);
	peer_end(&peer);
	wait_for_engines(1);
	mine = page_beside(c, s.ids[0]);
	assert_int_equal(mine == 0, mapped);
	if (mine) {
		ok(kv_page_map(c, 0, mine, &addr));
		memset(addr, 1, kv_cache_page_bytes(c, 0));
	}
	check_filled(c, s.ids, N, 0x40);
	kv_close(kv);
}

static void test_new_writer(void **state)
{
	(void)state;
	new_writer(false);
}

static void test_no_new_writer(void **state)
{
	(void)state;
	new_writer(true);
}

struct member_arg {
	uint8_t token[16];
	uint32_t cache, rank;
	uint64_t id;
	uint8_t expect, fill;
};

static struct kv_cache_params split_params(void)
{
	struct kv_cache_params p = test_params("split");

	p.nr_shards = 2;
	p.device[1] = 1;
	return p;
}

#define need(cond) \
	do { \
		if (!(cond)) \
			test_fail("line %d: %s: %s\n", __LINE__, #cond, kv_error()); \
	} while (0)

static void member(int fd, void *arg)
{
	struct kv_cache_params p = split_params();
	struct member_arg *a = arg;
	struct kv_options o = { .name = "member", .member_token = a->token, .rank = a->rank };
	struct kv_cache *c;
	struct kv *kv;
	uint64_t id;
	void *addr;

	need(!kv_open(d.spec, &o, &kv));
	need(kv_cache_open(kv, &p, &c) == -EACCES);
	need(!kv_cache_join(kv, &p, a->cache, &c));
	need(!kv_page_map(c, 0, a->id, &addr));
	need(((uint8_t *)addr)[0] == a->expect);
	memset(addr, a->fill, kv_cache_page_bytes(c, 0));
	need(kv_page_alloc(c, 0, &id) == -EACCES && strstr(kv_error(), "only the lead"));
	need(kv_page_free(c, 0, a->id) == -EACCES);
	need(kv_member_token(kv, a->token) == -EACCES);
	need(!kv_poll(kv));
	peer_tell(fd, "k", 1);
	peer_hear(fd, &id, 1); /* until the test is done with us */
}

static void run_member(struct peer *peer, struct member_arg *a)
{
	char done;

	peer_start(peer, member, a);
	if (!peer_hear(peer->fd, &done, 1))
		fail_msg("the member failed: status %#x", peer_end(peer));
}

/* kvd hears of a death a moment later. */
static void wait_for_end(struct kv *kv)
{
	struct kv_info info;
	uint32_t i;
	int rc = 0;

	for (i = 0; !rc && i < DAEMON_TRIES; i++) {
		rc = kv_info(kv, &info);
		if (!rc)
			poll(NULL, 0, 10);
	}
	if (rc != -EPIPE)
		fail_msg("the engine lives on: %d: %s", rc, kv_error());
}

static void test_member(void **state)
{
	struct kv_cache_params p = split_params();
	struct kv_options o = { .rank = 0 };
	struct member_arg a = { .rank = 1, .fill = 0x22 };
	struct kv_layout whole = test_layout(2);
	struct kv *kv = open_kv(0), *none = NULL;
	struct peer first, second;
	struct kv_info info;
	struct kv_cache *c;
	uint64_t id;
	void *addr;

	(void)state;
	ok(kv_cache_open(kv, &p, &c));
	assert_int_equal(kv_cache_page_bytes(c, 0), kv_layout_page_bytes(&whole) / 2);
	ok(kv_member_token(kv, a.token));
	a.cache = kv_cache_id(c);
	ok(kv_page_alloc(c, 0, &id));
	ok(kv_page_map(c, 0, id, &addr));
	memset(addr, 0x11, kv_cache_page_bytes(c, 0));
	a.id = id;
	run_member(&first, &a); /* shard 1 is fresh, gets 0x22 */
	a.expect = 0x22;
	run_member(&second, &a); /* and keeps it, apart from shard 0 */
	assert_int_equal(((uint8_t *)addr)[0], 0x11);
	a.token[3] ^= 1;
	o.member_token = a.token;
	o.rank = 1;
	assert_int_equal(kv_open(d.spec, &o, &none), -EACCES);
	assert_non_null(strstr(kv_error(), "refused the session"));
	ok(kv_page_free(c, 0, id));
	ok(kv_info(kv, &info));
	assert_int_equal(info.nr_members, 3);
	kill(second.pid, SIGKILL); /* the death of any member is the engine's */
	peer_end(&second);
	wait_for_end(kv);
	peer_end(&first);
	kv_close(kv);
}

static void test_exhaustion(void **state)
{
	struct kv *a = open_kv(0), *b = open_kv(0), *w;
	struct kv_cache *ca = open_cache(a, NULL, 1 << 20), *cb = open_cache(b, NULL, 1 << 20), *cw;
	uint64_t ids[32], id;
	uint32_t n = 0;

	(void)state;
	while (n < 32 && !kv_pages_alloc(ca, 0, 1, &ids[n]))
		n++;
	assert_int_equal(n, 32);
	refused(kv_page_alloc(cb, 0, &id), -ENOMEM, "kvd pool is full");
	assert_non_null(strstr(kv_error(), "wanted"));
	assert_non_null(strstr(kv_error(), "wait_ms"));
	w = open_kv(20000);
	cw = open_cache(w, NULL, 1 << 20);
	kv_close(a);
	ok(kv_pages_alloc(cw, 0, 16, ids)); /* waits until a's room is back */
	ok(kv_page_alloc(cb, 0, &id));
	kv_close(b);
	kv_close(w);
}

struct reader {
	struct kv *kv;
	int stop[2];
	int rc;
};

static void *idle_reader(void *arg)
{
	struct reader *r = arg;
	struct pollfd pfd[2] = {
		{ .fd = kv_event_fd(r->kv), .events = POLLIN },
		{ .fd = r->stop[0], .events = POLLIN },
	};

	while (!r->rc && poll(pfd, 2, -1) > 0 && !pfd[1].revents)
		r->rc = kv_poll(r->kv);
	return NULL;
}

/* A idle engine that has mapped, not leased, another one's pages gives way when its kv_event_fd()
 * calls: the allocation that waits for that room is served. */
static void test_retire_reader(void **state)
{
	struct kv *a = open_kv(20000);
	struct reader r = { .kv = open_kv(0) };
	struct kv_cache *ca = open_cache(a, "r", 512 << 10), *cr = open_cache(r.kv, "r", 512 << 10),
			*big;
	uint64_t ids[64];
	pthread_t thread;
	struct kv_match m;
	uint32_t lease;

	(void)state;
	lease = publish(ca, 64, 5, 1, ids);
	find(cr, 64, 5, &m);
	assert_int_equal(m.nr_pages, 64);
	check_filled(cr, ids, 64, 1);
	ok(kv_unlease(cr, 1, &m.lease));
	ok(kv_unlease(ca, 1, &lease));
	assert_int_equal(pipe(r.stop), 0);
	pthread_create(&thread, NULL, idle_reader, &r);
	big = open_cache(a, NULL, 1 << 20);
	ok(kv_pages_alloc(big, 0, 30, ids));
	assert_int_equal(write(r.stop[1], "x", 1), 1);
	pthread_join(thread, NULL);
	assert_int_equal(r.rc, 0);
	assert_true(r.kv->retired > 0);
	kv_close(r.kv);
	kv_close(a);
	close(r.stop[0]);
	close(r.stop[1]);
}

static void expect_dead(struct kv *kv, struct kv_cache *c)
{
	struct kv_info info;
	struct kv_match m;
	uint64_t id;

	refused(kv_info(kv, &info), -EPIPE, "session");
	refused(kv_page_alloc(c, 0, &id), -EPIPE, "session is gone");
	refused(kv_page_free(c, 0, 5ull << 44 | 1), -EPIPE, "session is gone");
	refused(kv_pages_alloc(c, 0, 1, &id), -EPIPE, "session is gone");
	refused(kv_poll(kv), -EPIPE, "session is gone");
	assert_int_equal(kv_lookup(c, (const uint32_t *)&info, 1, NULL, 0, false, &m), -EPIPE);
}

static void test_daemon_killed(void **state)
{
	struct kv *kv = open_kv(0);
	struct kv_cache *c = open_cache(kv, "killed", 0);
	struct kv *fresh = NULL;
	uint64_t ids[N];
	void *addr;

	(void)state;
	publish(c, N, 1, 3, ids);
	ok(kv_page_alloc(c, 0, &ids[0]));
	ok(kv_page_map(c, 0, ids[0], &addr));
	daemon_kill(&d);
	*(volatile uint8_t *)addr = 9; /* mapped memory stays */
	assert_int_equal(*(volatile uint8_t *)addr, 9);
	expect_dead(kv, c);
	kv_close(kv);
	assert_int_equal(kv_open(d.spec, NULL, &fresh), -ECONNREFUSED);
}

/* The daemon hangs, a call waits for it, then it is killed: the call ends. */
static void test_killed_while_waiting(void **state)
{
	struct kv *kv = open_kv(0);
	struct kv_cache *c = open_cache(kv, "killed", 0);
	struct kv_info info;
	pid_t killer;

	(void)state;
	kill(d.pid, SIGSTOP);
	killer = fork();
	if (!killer) {
		kill(d.pid, SIGKILL);
		_exit(0);
	}
	refused(kv_info(kv, &info), -EPIPE, "session");
	waitpid(killer, NULL, 0);
	expect_dead(kv, c);
	kv_close(kv);
	daemon_kill(&d);
}

/* SIGTERM: the daemon says goodbye (dead flag), clients hear it at their next call. */
static void test_daemon_stops(void **state)
{
	struct kv *kv = open_kv(0);
	struct kv_cache *c = open_cache(kv, "stopped", 0);

	(void)state;
	daemon_stop(&d);
	d.dir[0] = 0;
	expect_dead(kv, c);
	kv_close(kv);
}

/* Extents of 2 MiB, 512 pages: ten and seven of them are more than 32 MiB. */
static void test_promise(void **state)
{
	struct kv *kv = open_kv(0), *other = open_kv(0);
	struct kv_cache_params p = test_params("promised");
	const uint32_t extent = 512 * PAGE_TOKENS;
	struct kv_cache *c, *c2;

	(void)state;
	assert_memory_equal(kv->tenant, "uid-", 4);
	p.min_tokens = 9 * extent + 1;
	ok(kv_cache_open(kv, &p, &c));
	assert_int_equal(kv_cache_page_bytes(c, 0), 4096);
	p.min_tokens = 7 * extent;
	refused(kv_cache_open(other, &p, &c2), -ENOMEM, "14.0 MiB wanted, 12.0 MiB can be");
	refused(kv_reserve(other, 0, 13 << 20, KV_RESERVE_WEIGHTS), -ENOMEM, "12.0 MiB free");
	p.min_tokens = 6 * extent;
	ok(kv_cache_open(other, &p, &c2));
	refused(kv_reserve(other, 0, 1, KV_RESERVE_WEIGHTS), -ENOMEM, "kvd pool is full");
	kv_cache_close(c);
	ok(kv_reserve(other, 0, 20 << 20, KV_RESERVE_WEIGHTS));
	kv_close(kv);
	kv_close(other);
}

/* What was not given back before: raw pages, a lease, a park and the promise. */
static void test_close_gives_back(void **state)
{
	struct kv_cache_params p = test_params("closed");
	struct kv *kv = open_kv(0);
	struct kv_admin_meminfo m[2];
	struct kv_admin_cache row[2];
	uint64_t ids[3], raw[5];
	struct kv_cache *c, *other;
	uint32_t lease, dup, park;
	struct kv_match match;
	struct kv_info info;
	void *addr;

	(void)state;
	p.min_tokens = 9 * 512 * PAGE_TOKENS;
	ok(kv_cache_open(kv, &p, &c));
	other = open_cache(kv, "stays open", 0);
	lease = publish(c, 3, 1, 0x20, ids);
	ok(kv_lease_dup(c, lease, 2, &dup));
	ok(kv_park(c, dup, &park));
	ok(kv_pages_alloc(c, 0, 5, raw));
	ok(kv_page_map(c, 0, raw[0], &addr));
	assert_int_equal(admin(KV_ADMIN_MEMINFO, m, sizeof(m)), 2);
	assert_int_not_equal(m[0].promised_bytes, 0);
	kv_cache_close(c);
	ok(kv_info(kv, &info));
	assert_int_equal(info.held_pages, 0);
	assert_int_equal(info.nr_leases + info.nr_parks, 0);
	assert_int_equal(admin(KV_ADMIN_MEMINFO, m, sizeof(m)), 2);
	assert_int_equal(m[0].promised_bytes + m[0].held_bytes + m[0].leased_bytes, 0);
	assert_int_equal(admin(KV_ADMIN_CACHES, row, sizeof(row)), 2);
	assert_int_equal(row[0].nr_engines + row[1].nr_engines, 1);
	/* Others still find what was published. */
	c = open_cache(kv, "closed", 0);
	find(c, 3, 1, &match);
	assert_int_equal(match.nr_pages, 3);
	check_filled(c, match.pages[0], 3, 0x20);
	kv_cache_close(other);
	kv_close(kv);
	wait_for_engines(0);
	assert_int_equal(admin(KV_ADMIN_MEMINFO, m, sizeof(m)), 2);
	assert_int_equal(m[0].held_bytes + m[0].quarantined_bytes + m[0].leased_bytes, 0);
}

static void test_reserve_waits_for_cached_pages(void **state)
{
	struct kv *kv = open_kv(0), *other = open_kv(20000);
	struct kv_cache *c = open_cache(kv, "big pages", 1 << 20);
	uint64_t ids[30];
	uint32_t lease = publish(c, 30, 1, 1, ids);

	(void)state;
	refused(kv_reserve(other, 0, 8 << 20, KV_RESERVE_ACTIVATIONS), -ENOMEM, "2.0 MiB free");
	ok(kv_unlease(c, 1, &lease));
	kv_close(kv);
	ok(kv_reserve(other, 0, 8 << 20, KV_RESERVE_ACTIVATIONS));
	kv_close(other);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, start, stop)
	const struct CMUnitTest tests[] = {
		T(test_session),       T(test_two_processes), T(test_new_writer),
		T(test_no_new_writer), T(test_member),	      T(test_exhaustion),
		T(test_retire_reader), T(test_daemon_killed), T(test_killed_while_waiting),
		T(test_daemon_stops),  T(test_promise),
		T(test_reserve_waits_for_cached_pages),
		T(test_close_gives_back),
	};

	if (!daemon_here())
		return 0;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
