// SPDX-License-Identifier: Apache-2.0
/* admin_test - kvctl's questions: every command, bad requests, pages of records, slow readers */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "io/log.h"
#include "raw_client.h"

static int setup(void **state)
{
	struct raw_daemon *d = malloc(sizeof(*d));
	char err[256];

	if (raw_daemon_prepare(d) < 0 ||
	    control_set(&d->control, "max_admin", "3", err, sizeof(err)) < 0)
		return -1;
	*state = d;
	return raw_daemon_start(d);
}

static int teardown(void **state)
{
	raw_daemon_stop(*state);
	free(*state);
	return 0;
}

static int admin_connect(const char *path)
{
	char admin[CONTROL_PATH_BYTES];

	snprintf(admin, sizeof(admin), "%.101s.admin", path);
	return raw_connect(admin);
}

static int ask(int fd, const void *req, size_t len, struct kv_admin_head *head, char *text)
{
	char packet[sizeof(*head) + sizeof(struct kv_admin_text)];
	ssize_t n;

	assert_int_equal(raw_send(fd, req, len, NULL), 0);
	n = raw_recv(fd, packet, sizeof(packet), NULL, NULL);
	if (n < (ssize_t)sizeof(*head))
		return -1;
	memcpy(head, packet, sizeof(*head));
	memcpy(text, packet + sizeof(*head), KV_TEXT_BYTES);
	return 0;
}

static void status_tells_who_and_how_much(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	const struct kv_sqe nop = { .op = KV_OP_NOP };
	struct kv_admin_status before, s;
	struct raw r;
	struct kv_cqe c;

	assert_int_equal(raw_admin(path, KV_ADMIN_STATUS, &before, sizeof(before)), 1);
	assert_int_equal(before.pid, getpid());
	assert_string_equal(before.socket, path);
	assert_string_equal(before.release, SERVER_RELEASE);
	assert_int_equal(before.nr_devices, 1);
	assert_int_equal(before.nr_engines + before.nr_sessions + before.nr_caches, 0);
	assert_int_equal(raw_open(&r, path, "one"), 0);
	assert_int_equal(raw_open_cache(&r), 0);
	assert_int_equal(raw_call(&r, &nop, &c), 0);
	assert_int_equal(raw_admin(path, KV_ADMIN_STATUS, &s, sizeof(s)), 1);
	assert_int_equal(s.nr_engines, 1);
	assert_int_equal(s.nr_sessions, 1);
	assert_int_equal(s.nr_caches, 1);
	assert_int_equal(s.requests, before.requests + 2);
	assert_true(s.uptime_ns > before.uptime_ns && s.loop_wakeups > before.loop_wakeups);
	raw_close(&r);
}

static void numbers_follow_the_pages(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct kv_admin_meminfo m;
	struct kv_admin_engine e;
	struct kv_admin_cache k;
	uint64_t ids[64];
	struct raw r;

	assert_int_equal(raw_open(&r, path, "holder"), 0);
	assert_int_equal(raw_open_cache(&r), 0);
	assert_int_equal(raw_alloc(&r, 64, ids), 0);
	assert_int_equal(raw_admin(path, KV_ADMIN_MEMINFO, &m, sizeof(m)), 1);
	assert_string_equal(m.name, "host");
	assert_int_equal(m.pool_bytes, 64 << 20);
	assert_int_equal(m.held_bytes, 64 * 4096);
	assert_int_equal(m.extent_bytes + m.reserved_bytes + m.free_bytes, m.pool_bytes);
	assert_true(m.nr_extents >= 1);
	assert_int_equal(raw_admin(path, KV_ADMIN_ENGINES, &e, sizeof(e)), 1);
	assert_string_equal(e.name, "holder");
	assert_int_equal(e.pid, getpid());
	assert_int_equal(e.tenant_uid, getuid());
	assert_memory_equal(e.tenant, "uid-", 4);
	assert_int_equal(atoi(e.tenant + 4), getuid());
	assert_int_equal(e.nr_members, 1);
	assert_int_equal(e.held_pages, 64);
	assert_true(e.age_ns > 0);
	assert_int_equal(raw_admin(path, KV_ADMIN_CACHES, &k, sizeof(k)), 1);
	assert_int_equal(k.cache, r.cache);
	assert_int_equal(k.page_tokens, 16);
	assert_int_equal(k.page_bytes, 4096);
	assert_int_equal(k.held_pages, 64);
	raw_close(&r);
}

static void counters_have_names_and_meanings(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct kv_admin_counter all[128];
	int n = raw_admin(path, KV_ADMIN_VMSTAT, all, sizeof(all));

	assert_true(n > 20);
	assert_string_equal(all[0].name, "pages_alloc");
	for (int i = 0; i < n; i++)
		assert_true(all[i].name[0] && all[i].help[0]);
}

static void check_proves_the_pool(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct kv_admin_status a, b;

	assert_int_equal(raw_admin(path, KV_ADMIN_CHECK, &a, sizeof(a)), 1);
	assert_int_equal(raw_admin(path, KV_ADMIN_CHECK, &b, sizeof(b)), 1);
	assert_int_equal(b.checks, a.checks + 1);
}

static void many_engines_take_many_packets(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	const struct kv_admin_request req = { KV_ADMIN_MAGIC, KV_ABI_VERSION, KV_ADMIN_ENGINES, 0 };
	const uint32_t nr = 100, room = (KV_ADMIN_PACKET - sizeof(struct kv_admin_head)) /
					sizeof(struct kv_admin_engine);
	static char packet[KV_ADMIN_PACKET];
	struct raw r[100];
	uint32_t seen = 0, packets = 0;
	struct kv_admin_head head;
	int fd;

	for (uint32_t i = 0; i < nr; i++)
		assert_int_equal(raw_open(&r[i], path, "many"), 0);
	fd = admin_connect(path);
	for (int again = 0; again < 2; again++) {
		raw_send(fd, &req, sizeof(req), NULL);
		do {
			ssize_t n = raw_recv(fd, packet, sizeof(packet), NULL, NULL);

			assert_true(n >= (ssize_t)sizeof(head));
			memcpy(&head, packet, sizeof(head));
			assert_int_equal(head.result, 0);
			assert_int_equal(n, sizeof(head) + head.nr * head.record_bytes);
			seen += head.nr;
			packets++;
		} while (head.flags & KV_ADMIN_MORE);
	}
	assert_int_equal(seen, 2 * nr);
	assert_int_equal(packets, 2 * (nr / room + 1));
	close(fd);
	for (uint32_t i = 0; i < nr; i++)
		raw_close(&r[i]);
}

static void bad_requests_are_answered(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	const struct kv_admin_request good = { KV_ADMIN_MAGIC, KV_ABI_VERSION, KV_ADMIN_STATUS, 0 };
	struct kv_admin_request req;
	struct kv_admin_head head;
	char text[KV_TEXT_BYTES];
	int fd = admin_connect(path), extra = dup(0);

#define REFUSED(err, ...) do { \
	req = good; \
	__VA_ARGS__; \
	assert_int_equal(ask(fd, &req, sizeof(req), &head, text), 0); \
	assert_int_equal(head.result, err); \
	assert_int_equal(head.record_bytes, sizeof(struct kv_admin_text)); \
	assert_true(strlen(text) > 10); \
} while (0)
	REFUSED(-EPROTO, req.magic++);
	REFUSED(-EPROTO, req.version++);
	REFUSED(-EINVAL, req.cmd = 0);
	REFUSED(-EINVAL, req.cmd = KV_ADMIN_OOM + 1);
	REFUSED(-EPROTO, req.cmd = KV_ADMIN_TENANT_SET);	/* too short */
	REFUSED(-EINVAL, req.cmd = 0xffffffffu);
	REFUSED(-EINVAL, req.reserved = 1);
#undef REFUSED
	assert_int_equal(ask(fd, &good, sizeof(good) - 1, &head, text), 0);
	assert_int_equal(head.result, -EPROTO);
	/* the connection is still good */
	assert_int_equal(raw_send(fd, &good, sizeof(good), NULL), 0);
	assert_int_equal(raw_recv(fd, &head, sizeof(head), NULL, NULL), sizeof(head));
	assert_int_equal(head.result, 0);
	/* fds are refused */
	assert_int_equal(raw_send(fd, &good, sizeof(good), &extra), 0);
	assert_true(raw_hung_up(fd));
	close(extra);
	close(fd);
}

static void connections_are_bounded_and_come_back(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct kv_admin_status s;
	int fd[4];

	for (int i = 0; i < 4; i++)
		assert_true((fd[i] = admin_connect(path)) >= 0);
	assert_true(raw_hung_up(fd[3]));
	for (int i = 0; i < 4; i++)
		close(fd[i]);
	assert_true(RAW_EVENTUALLY(raw_admin(path, KV_ADMIN_STATUS, &s, sizeof(s)) == 1));
}

/* One that asks and never reads stalls itself; ring and other admins go on. */
static void a_slow_reader_holds_up_nobody(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	const struct kv_admin_request req = { KV_ADMIN_MAGIC, KV_ABI_VERSION, KV_ADMIN_VMSTAT, 0 };
	const struct kv_sqe nop = { .op = KV_OP_NOP };
	struct kv_admin_status s;
	struct raw r;
	struct kv_cqe c;
	int fd = admin_connect(path), sent = 0;

	while (sent < 10000 && send(fd, &req, sizeof(req), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		sent++;
	assert_int_equal(raw_open(&r, path, "other"), 0);
	assert_int_equal(raw_call(&r, &nop, &c), 0);
	assert_int_equal(raw_admin(path, KV_ADMIN_STATUS, &s, sizeof(s)), 1);
	raw_close(&r);
	close(fd);
}

static void only_the_owner_may_ask(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	char admin[CONTROL_PATH_BYTES];
	struct stat st;

	snprintf(admin, sizeof(admin), "%.101s.admin", path);
	assert_int_equal(stat(admin, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(status_tells_who_and_how_much),
		T(numbers_follow_the_pages),
		T(counters_have_names_and_meanings),
		T(check_proves_the_pool),
		T(many_engines_take_many_packets),
		T(bad_requests_are_answered),
		T(connections_are_bounded_and_come_back),
		T(a_slow_reader_holds_up_nobody),
		T(only_the_owner_may_ask),
	};

	log_init(LOG_LEVEL_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
