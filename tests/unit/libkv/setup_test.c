// SPDX-License-Identifier: Apache-2.0
/* Opening a pool: specs, options, sizes, every connect error, fork, embedded facts. */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "pool_test.h"

static void test_parse_size(void **state)
{
	static const struct {
		const char *text;
		uint64_t want;
	} good[] = {
		{ "0", 0 },
		{ "1073741824", 1ull << 30 },
		{ "64M", 64ull << 20 },
		{ "1.5GiB", 3ull << 29 },
		{ "1.5 GiB", 3ull << 29 },
		{ "2K", 2048 },
		{ "2KB", 2048 },
		{ "3T", 3ull << 40 },
		{ "7B", 7 },
		{ "0.5K", 512 },
		{ "18446744073709551615", UINT64_MAX },
		{ "0.3K", 307 },
		{ "1.0000000000000000000000000000001G", 1ull << 30 },
	};
	static const char *const bad[] = {
		"",
		"M",
		"-1",
		"+1",
		" 1",
		"1.5",
		"1.",
		".5G",
		"1Q",
		"1GB ",
		"1Gi",
		"1iB",
		"1m",
		"0x10",
		"18446744073709551616",
		"99999999999999999999999",
		"16777216T",
		"1e9",
		"1 000",
		"nan",
	};
	uint64_t v;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		v = 1234567;
		ok(kv_parse_size(good[i].text, &v));
		assert_int_equal(v, good[i].want);
	}
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		v = 42;
		if (kv_parse_size(bad[i], &v) != -EINVAL)
			fail_msg("'%s' was taken as a size: %llu", bad[i], (unsigned long long)v);
		assert_int_equal(v, 42);
		assert_non_null(strstr(kv_error(), "is no size"));
	}
	refused(kv_parse_size(NULL, &v), -EINVAL, "is no size");
}

static void test_bad_specs(void **state)
{
	struct kv *kv = NULL;
	char longish[200] = "unix:/";

	(void)state;
	memset(longish + 6, 'x', 150);
	refused(kv_open(NULL, NULL, &kv), -EINVAL, "no pool named");
	refused(kv_open("", NULL, &kv), -EINVAL, "names no pool");
	refused(kv_open("tcp:host", NULL, &kv), -EINVAL, "unix:PATH");
	refused(kv_open("unix:", NULL, &kv), -EINVAL, "socket path");
	refused(kv_open(longish, NULL, &kv), -EINVAL, "socket path");
	refused(kv_open("embedded:64M", NULL, &kv), -EINVAL, "embedded:host:SIZE");
	refused(kv_open("embedded:cuda:0:1G", NULL, &kv), -EINVAL, "host memory");
	refused(kv_open("embedded:host:", NULL, &kv), -EINVAL, "is no size");
	refused(kv_open("embedded:host:lots", NULL, &kv), -EINVAL, "is no size");
	refused(kv_open("embedded:host:4K", NULL, &kv), -EINVAL, "too small");
	assert_null(kv);
}

static void test_bad_options(void **state)
{
	const uint8_t token[16] = { 1 };
	struct kv_options o = { .rank = 1 };
	struct kv *kv = NULL;

	(void)state;
	refused(kv_open("embedded:host:16M", &o, &kv), -EINVAL, "member_token");
	o.member_token = token;
	refused(kv_open("embedded:host:16M", &o, &kv), -EINVAL, "one process");
	o.rank = 16;
	refused(kv_open("embedded:host:16M", &o, &kv), -EINVAL, "at most 16");
	assert_null(kv);
}

/* A path in a fresh directory. */
static void temp_path(char *path, size_t bytes)
{
	char dir[] = "/tmp/kvd-setup-XXXXXX";

	assert_non_null(mkdtemp(dir));
	snprintf(path, bytes, "%s/sock", dir);
}

static void temp_remove(char *path)
{
	unlink(path);
	*strrchr(path, '/') = 0;
	rmdir(path);
}

static int listen_at(const char *path, int type)
{
	struct sockaddr_un sun = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	snprintf(sun.sun_path, sizeof(sun.sun_path), "%s", path);
	assert_int_equal(bind(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
	assert_int_equal(listen(fd, 4), 0);
	return fd;
}

static void test_connect_errors(void **state)
{
	char path[64], spec[80];
	struct kv *kv = NULL;
	int fd;

	(void)state;
	temp_path(path, sizeof(path));
	snprintf(spec, sizeof(spec), "unix:%s", path);
	refused(kv_open(spec, NULL, &kv), -ENOENT, "is kvd running");
	assert_non_null(strstr(kv_error(), path));
	fd = listen_at(path, SOCK_SEQPACKET);
	close(fd);
	refused(kv_open(spec, NULL, &kv), -ECONNREFUSED, "nobody listens");
	unlink(path);
	fd = listen_at(path, SOCK_STREAM);
	refused(kv_open(spec, NULL, &kv), -EPROTO, "not kvd's");
	close(fd);
	unlink(path);
	if (geteuid()) {
		fd = listen_at(path, SOCK_SEQPACKET);
		assert_int_equal(chmod(path, 0), 0);
		refused(kv_open(spec, NULL, &kv), -EACCES, "no permission");
		close(fd);
	} else {
		print_message("permission check skipped: root may connect anywhere\n");
	}
	temp_remove(path);
	assert_null(kv);
}

/* A peer that answers the hello with these bytes, in a child. */
static void test_false_peer(void **state)
{
	char path[64], spec[80], junk[320] = { 2 };
	struct kv *kv = NULL;
	int listener, i;

	(void)state;
	temp_path(path, sizeof(path));
	snprintf(spec, sizeof(spec), "unix:%s", path);
	listener = listen_at(path, SOCK_SEQPACKET);
	for (i = 0; i < 3; i++) {
		pid_t pid = fork();

		if (!pid) {
			int fd = accept(listener, NULL, NULL);
			char hello[96];

			if (recv(fd, hello, sizeof(hello), 0) == sizeof(hello) && i)
				send(fd, junk, i == 1 ? 100 : sizeof(junk), 0);
			_exit(0);
		}
		refused(kv_open(spec, NULL, &kv), i ? -EPROTO : -EPIPE, i ? "not kvd" : "closed");
		assert_int_equal(waitpid(pid, NULL, 0), pid);
	}
	close(listener);
	temp_remove(path);
}

static void test_embedded_facts(void **state)
{
	struct kv_info info;
	uint8_t token[16];
	struct kv *kv;

	(void)state;
	ok(kv_open("embedded:host:16M", NULL, &kv));
	ok(kv_info(kv, &info));
	assert_true(info.embedded);
	assert_int_equal(info.pool_bytes, 16 << 20);
	assert_int_equal(info.nr_devices, 1);
	assert_int_equal(info.held_pages, 0);
	assert_true(info.engine && info.member);
	refused(kv_member_token(kv, token), -EINVAL, "one process");
	ok(kv_poll(kv));
	assert_true(kv_event_fd(kv) >= 0);
	kv_close(kv);
	kv_close(NULL);
	assert_true(strlen(kv_version()) > 0);
}

static void test_reserve(void **state)
{
	struct kv_info info;
	struct kv *kv;

	(void)state;
	ok(kv_open("embedded:host:16M", NULL, &kv));
	ok(kv_reserve(kv, 0, 4 << 20, KV_RESERVE_WEIGHTS));
	ok(kv_info(kv, &info));
	assert_int_equal(info.reserved_bytes, 4 << 20);
	refused(kv_reserve(kv, 0, 17 << 20, KV_RESERVE_WEIGHTS), -ENOMEM, "pool is full");
	refused(kv_reserve(kv, 3, 1, KV_RESERVE_OTHER), -EINVAL, "reserve");
	refused(kv_reserve(kv, 0, 1, 3), -EINVAL, "kv_reserve_what");
	ok(kv_reserve(kv, 0, 2 << 20, KV_RESERVE_ACTIVATIONS));
	ok(kv_info(kv, &info));
	assert_int_equal(info.reserved_bytes, 6 << 20);
	ok(kv_reserve(kv, 0, 0, KV_RESERVE_ACTIVATIONS));
	ok(kv_reserve(kv, 0, 0, KV_RESERVE_WEIGHTS));
	ok(kv_info(kv, &info));
	assert_int_equal(info.reserved_bytes, 0);
	kv_close(kv);
}

/* In a child: alloc from the magazine the parent filled, and everything else, is refused. */
static void child_uses(struct kv *kv, struct kv_cache *c, uint64_t held)
{
	uint64_t id;
	struct kv_info info;
	struct kv_match m;
	uint32_t token = 1;

	if (kv_page_alloc(c, 0, &id) != -EINVAL || !strstr(kv_error(), "forked"))
		_exit(1);
	if (kv_page_free(c, 0, held) != -EINVAL)
		_exit(2);
	if (kv_info(kv, &info) != -EINVAL || kv_poll(kv) != -EINVAL)
		_exit(3);
	if (kv_lookup(c, &token, 1, NULL, 0, false, &m) != -EINVAL)
		_exit(4);
	kv_cache_close(c);
	kv_close(kv);
	_exit(0);
}

static void test_fork(void **state)
{
	struct kv_cache_params p = test_params(NULL);
	struct kv_cache *c;
	struct kv *kv;
	uint64_t ids[2];
	int status;
	pid_t pid;

	(void)state;
	ok(kv_open("embedded:host:16M", NULL, &kv));
	ok(kv_cache_open(kv, &p, &c));
	ok(kv_page_alloc(c, 0, &ids[0]));
	ok(kv_page_alloc(c, 0, &ids[1]));
	ok(kv_page_free(c, 0, ids[1]));
	pid = fork();
	if (!pid)
		child_uses(kv, c, ids[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	ok(kv_page_alloc(c, 0, &ids[1]));
	kv_close(kv);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parse_size),  cmocka_unit_test(test_bad_specs),
		cmocka_unit_test(test_bad_options), cmocka_unit_test(test_connect_errors),
		cmocka_unit_test(test_false_peer),  cmocka_unit_test(test_embedded_facts),
		cmocka_unit_test(test_reserve),	    cmocka_unit_test(test_fork),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
