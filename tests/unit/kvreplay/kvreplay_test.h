/* SPDX-License-Identifier: Apache-2.0 */
/* kvreplay_test - what the tests of kvreplay share: traces written by hand into a file
 *
 * Everything is static, as each test is one source file.
 */
#ifndef KVREPLAY_TEST_H
#define KVREPLAY_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "trace.h"

#define UNUSED __attribute__((unused))

/* A file with this text; its path lives until the next call. */
static UNUSED const char *write_file(const void *text, size_t len)
{
	static char path[64];
	int fd;

	strcpy(path, "/tmp/kvreplay.XXXXXX");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, len), len);
	close(fd);
	return path;
}

static UNUSED int read_text(struct trace *t, const char *text, char *why)
{
	const char *path = write_file(text, strlen(text));
	int err = trace_read(t, path, TRACE_DETECT, 0, why);

	unlink(path);
	return err;
}

static UNUSED void read_good(struct trace *t, const char *text)
{
	char why[TRACE_WHY_LEN];

	if (read_text(t, text, why))
		fail_msg("%s", why);
}

/* One line of a mooncake trace. */
#define RQ(ms, in, ...) \
	"{\"timestamp\": " #ms ", \"input_length\": " #in ", \"output_length\": 1, \"hash_ids\": " \
	#__VA_ARGS__ "}\n"

#endif
