// SPDX-License-Identifier: Apache-2.0
/* Pressure and reports of refusals, as kvctl and the log get them. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "io/log.h"
#include "raw_client.h"

#define BATCH	256u
#define POOL_PAGES (64u * 256)		/* of 4 KiB in the 64 MiB of raw_daemon */

static int log_pipe[2];

static int setup(void **state)
{
	struct raw_daemon *d = malloc(sizeof(*d));

	if (pipe2(log_pipe, O_NONBLOCK | O_CLOEXEC) < 0 || raw_daemon_prepare(d) < 0)
		return -1;
	log_init(LOG_LEVEL_WARN);
	log_to(log_pipe[1]);
	*state = d;
	return raw_daemon_start(d);
}

static int teardown(void **state)
{
	raw_daemon_stop(*state);
	free(*state);
	close(log_pipe[0]);
	close(log_pipe[1]);
	return 0;
}

static int alloc_until(struct raw *r, uint32_t nr, uint64_t deadline_ms)
{
	struct kv_sqe e = { .op = KV_OP_ALLOC, .cache = r->cache, .nr = nr, .arg = deadline_ms,
			    .out_off = 8192, .out_bytes = nr * (uint32_t)sizeof(uint64_t) };
	struct kv_cqe c;

	return raw_call(r, &e, &c);
}

/* An engine that holds the pool, and one that waits for a page in vain. */
static void squeeze(const char *path, struct raw *hog, struct raw *poor, uint64_t ms)
{
	uint64_t ids[BATCH];

	assert_int_equal(raw_open(hog, path, "hog"), 0);
	assert_int_equal(raw_open_cache(hog), 0);
	for (uint32_t i = 0; i < POOL_PAGES / BATCH; i++)
		assert_int_equal(raw_alloc(hog, BATCH, ids), 0);
	assert_int_equal(raw_open(poor, path, "poor"), 0);
	assert_int_equal(raw_open_cache(poor), 0);
	assert_int_equal(alloc_until(poor, 3, ms), -ENOMEM);
}

static void waiting_shows_as_pressure(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct kv_admin_pressure p[8];
	struct raw hog, poor;

	assert_int_equal(raw_admin(path, KV_ADMIN_PRESSURE, p, sizeof(p)), 1);
	assert_true(p[0].all && !p[0].some_total_ns && !p[0].tenant[0]);
	squeeze(path, &hog, &poor, 200);
	assert_int_equal(raw_admin(path, KV_ADMIN_PRESSURE, p, sizeof(p)), 2);
	assert_true(p[0].all && !p[1].all);
	assert_int_equal(p[1].key, getuid());
	assert_true(p[1].tenant[0]);
	assert_true(p[0].some_total_ns >= 200000000 && p[0].some_total_ns < 20000000000);
	assert_int_equal(p[1].some_total_ns, p[0].some_total_ns);
	/* The hog worked a moment before; it alone waited for extents to be made. */
	assert_true(p[0].some_total_ns - p[0].full_total_ns >= 200000000);
	raw_close(&hog);
	raw_close(&poor);
}

static void a_refusal_is_reported_and_logged(void **state)
{
	const char *path = ((struct raw_daemon *)*state)->path;
	struct kv_admin_oom r[8];
	struct raw hog, poor;
	char line[1024];
	ssize_t n;

	assert_int_equal(raw_admin(path, KV_ADMIN_OOM, r, sizeof(r)), 0);
	squeeze(path, &hog, &poor, 20);
	assert_int_equal(alloc_until(&poor, 3, 0), -ENOMEM);	/* a question, not reported */
	assert_int_equal(alloc_until(&poor, 4, 20), -ENOMEM);	/* counted in the first */
	assert_int_equal(raw_admin(path, KV_ADMIN_OOM, r, sizeof(r)), 1);
	assert_int_equal(r[0].seq, 1);
	assert_int_equal(r[0].count, 2);
	assert_string_equal(r[0].name, "poor");
	assert_int_equal(r[0].pid, getpid());
	assert_true(r[0].tenant[0] != 0);
	assert_string_equal(r[0].device_name, "host");
	assert_int_equal(r[0].result, -ENOMEM);
	assert_int_equal(r[0].reason, KV_TIMED_OUT);
	assert_int_equal(r[0].nr_pages, 3);
	assert_int_equal(r[0].bytes, 3 * 4096);
	assert_int_equal(r[0].held_bytes, POOL_PAGES * 4096);
	assert_int_equal(r[0].pool_bytes, 64 << 20);
	assert_int_equal(r[0].nr_holders, 1);
	assert_string_equal(r[0].holder[0].name, "hog");
	assert_int_equal(r[0].holder[0].held_bytes, POOL_PAGES * 4096);
	assert_true(r[0].age_ns < 20000000000);
	n = read(log_pipe[0], line, sizeof(line) - 1);
	assert_true(n > 0);
	line[n] = '\0';
	assert_non_null(strstr(line, "'poor'"));
	assert_non_null(strstr(line, "was refused 3 pages (12.0 KiB) on host"));
	assert_null(strchr(strchr(line, '\n') + 1, '\n'));	/* one line */
	raw_close(&hog);
	raw_close(&poor);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(waiting_shows_as_pressure),
		T(a_refusal_is_reported_and_logged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
