// SPDX-License-Identifier: Apache-2.0
/* log_test - one printable line a message, levels, the journal's prefix, and floods */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/log.h"

static int pipe_fds[2];
static char text[65536];

static int setup(void **state)
{
	(void)state;
	unsetenv("JOURNAL_STREAM");
	log_init(LOG_LEVEL_INFO);
	if (pipe(pipe_fds) < 0)
		return -1;
	log_to(pipe_fds[1]);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	log_to(STDERR_FILENO);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	return 0;
}

/* What was logged so far; a mark written behind it ends the wait. */
static const char *logged(void)
{
	ssize_t n;

	assert_int_equal(write(pipe_fds[1], "\1", 1), 1);
	n = read(pipe_fds[0], text, sizeof(text) - 1);
	assert_true(n > 0 && text[n - 1] == 1);
	text[n - 1] = 0;
	return text;
}

static unsigned int nr_lines(const char *s)
{
	unsigned int n = 0;

	for (; *s; s++)
		n += *s == '\n';
	return n;
}

static void levels_filter(void **state)
{
	(void)state;
	log_debug("hidden");
	log_info("shown %d", 7);
	assert_string_equal(logged(), "kvd: shown 7\n");
	log_init(LOG_LEVEL_ERROR);
	log_warn("hidden");
	log_error("shown");
	assert_string_equal(logged(), "kvd: shown\n");
}

static void a_message_stays_one_printable_line(void **state)
{
	char big[2000];

	(void)state;
	log_info("name '%s'", "a\nkvd: forged\r\t\033[2J");
	assert_string_equal(logged(), "kvd: name 'a?kvd: forged???[2J'\n");
	memset(big, 'x', sizeof(big) - 1);
	big[sizeof(big) - 1] = 0;
	log_info("%s", big);
	assert_int_equal(strlen(logged()), LOG_LINE_BYTES);
	assert_int_equal(nr_lines(text), 1);
}

static void a_call_site_cannot_flood(void **state)
{
	(void)state;
	for (int i = 0; i < 1000; i++)
		log_warn("again %d", i);
	assert_int_equal(nr_lines(logged()), LOG_BURST);
	log_warn("another site still speaks");
	assert_string_equal(logged(), "kvd: another site still speaks\n");
}

static void a_new_window_counts_what_was_dropped(void **state)
{
	struct log_site site = { 0 };
	uint32_t dropped;

	(void)state;
	for (uint32_t i = 0; i < LOG_BURST; i++)
		assert_true(log_site_take(&site, 1000, &dropped));
	for (uint32_t i = 0; i < 5; i++)
		assert_false(log_site_take(&site, 1000 + LOG_WINDOW_NS - 1, &dropped));
	assert_true(log_site_take(&site, 1000 + LOG_WINDOW_NS, &dropped));
	assert_int_equal(dropped, 5);
	assert_true(log_site_take(&site, 1000 + LOG_WINDOW_NS, &dropped));
	assert_int_equal(dropped, 0);
}

/* The daemon's loop writes these lines. */
static void who_reads_no_log_stops_nobody(void **state)
{
	const char *said;
	int n = 0;

	(void)state;
	assert_true(fcntl(pipe_fds[1], F_SETPIPE_SZ, 4096) >= 4096);
	assert_int_equal(fcntl(pipe_fds[1], F_SETFL, O_NONBLOCK), 0);
	while (write(pipe_fds[1], "x", 1) == 1)
		n++;
	assert_int_equal(fcntl(pipe_fds[1], F_SETFL, 0), 0);
	alarm(20);
	log_warn("nobody reads this");
	alarm(0);
	while (n > 0)
		n -= (int)read(pipe_fds[0], text, sizeof(text));
	log_warn("somebody reads again");
	said = logged();
	assert_string_equal(said, "kvd: somebody reads again\n");
}

/* The journal's stream is a socket. */
static void a_full_socket_stops_nobody(void **state)
{
	int sock[2];

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sock), 0);
	while (send(sock[1], text, sizeof(text), MSG_DONTWAIT) > 0)
		;
	log_to(sock[1]);
	alarm(20);
	log_warn("nobody reads this");
	alarm(0);
	close(sock[0]);
	log_warn("nor will anybody");	/* and no SIGPIPE */
	close(sock[1]);
}

static void the_journal_gets_levels(void **state)
{
	char stream[64];
	struct stat st;

	(void)state;
	assert_int_equal(fstat(STDERR_FILENO, &st), 0);
	snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
		 (unsigned long long)st.st_ino);
	setenv("JOURNAL_STREAM", stream, 1);
	log_init(LOG_LEVEL_INFO);
	log_error("bad");
	assert_string_equal(logged(), "<3>bad\n");
	setenv("JOURNAL_STREAM", "1:1", 1);	/* inherited, but stderr went elsewhere */
	log_init(LOG_LEVEL_INFO);
	log_error("bad");
	assert_string_equal(logged(), "kvd: bad\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(levels_filter, setup, teardown),
		cmocka_unit_test_setup_teardown(a_message_stays_one_printable_line, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_call_site_cannot_flood, setup, teardown),
		cmocka_unit_test_setup_teardown(a_new_window_counts_what_was_dropped, setup,
						teardown),
		cmocka_unit_test_setup_teardown(who_reads_no_log_stops_nobody, setup, teardown),
		cmocka_unit_test_setup_teardown(a_full_socket_stops_nobody, setup, teardown),
		cmocka_unit_test_setup_teardown(the_journal_gets_levels, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
