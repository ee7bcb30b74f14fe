// SPDX-License-Identifier: Apache-2.0
/* server_test - the daemon put together: tables that follow the knobs, files, long paths */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "io/log.h"
#include "raw_client.h"

static void prepare(struct raw_daemon *d)
{
	char err[256];

	assert_int_equal(raw_daemon_prepare(d), 0);
	assert_int_equal(control_set(&d->control, "check_every", "0", err, sizeof(err)), 0);
}

static void set(struct raw_daemon *d, const char *knob, const char *value)
{
	char err[256];

	assert_int_equal(control_set(&d->control, knob, value, err, sizeof(err)), 0);
}

/* Each session an engine with a cache of its own: more than mm has room for by itself. */
static void max_sessions_is_what_can_be_had(void **state)
{
	enum { NR = 600 };
	static struct raw r[NR];
	struct raw_daemon d;
	struct rlimit lim;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &lim), 0);
	if (lim.rlim_max < 12 * NR)
		skip();
	lim.rlim_cur = lim.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &lim), 0);
	prepare(&d);
	set(&d, "max_sessions", "1000");
	set(&d, "max_sessions_per_uid", "1000");
	set(&d, "log_level", "3");
	log_init(LOG_LEVEL_ERROR);
	assert_int_equal(raw_daemon_start(&d), 0);
	for (int i = 0; i < NR; i++) {
		assert_int_equal(raw_open(&r[i], d.path, "one"), 0);
		assert_int_equal(raw_open_cache(&r[i]), 0);
	}
	for (int i = 0; i < NR; i++)
		raw_close(&r[i]);
	raw_daemon_stop(&d);
	log_init(LOG_LEVEL_INFO);
}

/* The longest socket path that is accepted still has its admin socket where kvctl looks for it. */
static void the_longest_path_has_an_admin_socket(void **state)
{
	struct kv_admin_status st;
	struct raw_daemon d;
	char path[CONTROL_PATH_BYTES], err[256];
	size_t n;

	(void)state;
	prepare(&d);
	n = (size_t)snprintf(path, sizeof(path), "%s/", d.dir);
	memset(path + n, 'x', 102 - n);
	path[102] = 0;
	set(&d, "socket", path);
	assert_int_equal(control_check(&d.control, err, sizeof(err)), -ENAMETOOLONG);
	path[101] = 0;
	set(&d, "socket", path);
	assert_int_equal(control_check(&d.control, err, sizeof(err)), 0);
	assert_int_equal(raw_daemon_start(&d), 0);
	assert_int_equal(raw_admin(d.path, KV_ADMIN_STATUS, &st, sizeof(st)), 1);
	raw_daemon_stop(&d);
}

static void too_few_files_are_said_at_the_start(void **state)
{
	struct rlimit lim, low;
	struct raw_daemon d;
	char text[1024];
	ssize_t n;
	int fds[2];

	(void)state;
	assert_int_equal(pipe(fds), 0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &lim), 0);
	low = lim;
	low.rlim_cur = 400;
	prepare(&d);
	log_init(LOG_LEVEL_WARN);
	log_to(fds[1]);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	assert_int_equal(raw_daemon_start(&d), 0);
	raw_daemon_stop(&d);
	assert_int_equal(write(fds[1], "", 1), 1);
	n = read(fds[0], text, sizeof(text) - 1);
	assert_true(n > 0);
	text[n] = 0;
	assert_non_null(strstr(text, "400"));
	assert_non_null(strstr(text, "LimitNOFILE="));
	prepare(&d);			/* it helps to follow the advice */
	set(&d, "max_sessions", "2");
	assert_int_equal(write(fds[1], "", 1), 1);
	low.rlim_cur = lim.rlim_max < 1024 ? lim.rlim_max : 1024;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	assert_int_equal(raw_daemon_start(&d), 0);
	raw_daemon_stop(&d);
	assert_int_equal(read(fds[0], text, sizeof(text)), 1);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &lim), 0);
	log_to(STDERR_FILENO);
	log_init(LOG_LEVEL_INFO);
	close(fds[0]);
	close(fds[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(max_sessions_is_what_can_be_had),
		cmocka_unit_test(the_longest_path_has_an_admin_socket),
		cmocka_unit_test(too_few_files_are_said_at_the_start),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
