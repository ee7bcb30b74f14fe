/* SPDX-License-Identifier: Apache-2.0 */
/* log - one line a message, to the people who run the daemon
 *
 * Model:      log_error/warn/info/debug print one line to stderr: "kvd: text", or "<N>text" when
 *             stderr is the journal's stream (JOURNAL_STREAM).
 * Invariants: whatever a client put into an argument, the output is one line of printable text.
 *             A call site may speak LOG_BURST times in LOG_WINDOW_NS; what it says beyond that is
 *             counted and reported by its next message, so nobody can flood the log. Errors that
 *             end the daemon come once and are not affected. A line that nobody reads (a full pipe,
 *             a stopped terminal) is dropped and counted alike.
 * Context:    any thread; takes a mutex; one write() a line, which does not wait.
 * Limits:     LOG_LINE_BYTES a line, the rest is cut.
 * See:        tests/unit/io/log_test.c
 */
#ifndef LOG_H
#define LOG_H

#include <stdbool.h>
#include <stdint.h>

#define LOG_BURST	10u
#define LOG_WINDOW_NS	5000000000ull
#define LOG_LINE_BYTES	512u

enum log_level {		/* syslog's numbers, which are the journal's */
	LOG_LEVEL_ERROR = 3,
	LOG_LEVEL_WARN = 4,
	LOG_LEVEL_INFO = 6,
	LOG_LEVEL_DEBUG = 7,
};

struct log_site {
	uint64_t window_ns;	/* when the window began */
	uint32_t said, dropped;
};

void log_init(enum log_level max);	/* reads JOURNAL_STREAM */
void log_to(int fd);			/* another sink than stderr, for tests */
void log_write(struct log_site *, enum log_level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* One token of the site's budget at now_ns; *dropped: how many messages were lost before it. */
bool log_site_take(struct log_site *, uint64_t now_ns, uint32_t *dropped);

#define log_at(level, ...) do { \
	static struct log_site log_site_; \
	log_write(&log_site_, (level), __VA_ARGS__); \
} while (0)
#define log_error(...)	log_at(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)	log_at(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)	log_at(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)	log_at(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
