// SPDX-License-Identifier: Apache-2.0
#include "io/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/loop.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static enum log_level max_level = LOG_LEVEL_INFO;
static bool journal;
static int sink = STDERR_FILENO;

/* JOURNAL_STREAM is inherited by children whose stderr goes elsewhere: compare device and inode. */
static bool stderr_is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;

	if (!stream || sscanf(stream, "%llu:%llu", &dev, &ino) != 2 ||
	    fstat(STDERR_FILENO, &st) < 0)
		return false;
	return st.st_dev == dev && st.st_ino == ino;
}

void log_init(enum log_level max)
{
	pthread_mutex_lock(&lock);
	max_level = max;
	journal = stderr_is_journal();
	pthread_mutex_unlock(&lock);
}

void log_to(int fd)
{
	pthread_mutex_lock(&lock);
	sink = fd;
	pthread_mutex_unlock(&lock);
}

bool log_site_take(struct log_site *site, uint64_t now_ns, uint32_t *dropped)
{
	*dropped = 0;
	if (!site->window_ns || now_ns - site->window_ns >= LOG_WINDOW_NS) {
		*dropped = site->dropped;
		*site = (struct log_site){ .window_ns = now_ns ? now_ns : 1 };
	}
	if (site->said >= LOG_BURST) {
		site->dropped++;
		return false;
	}
	site->said++;
	return true;
}

static size_t clip(int n, size_t room)
{
	return n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1;
}

/* Clients choose names that end up here; a line stays a line. */
static void make_printable(char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
			s[i] = '?';
}

/* Never waits for who reads it: a pipe that has room at all has room for a line. False: lost. Not
 * O_NONBLOCK, which whoever gave us the file would get too. */
static bool put_line(const char *line, size_t n)
{
	struct pollfd p = { .fd = sink, .events = POLLOUT };

	if (send(sink, line, n, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
		return true;
	if (errno != ENOTSOCK || poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT))
		return false;
	return write(sink, line, n) >= 0;
}

void log_write(struct log_site *site, enum log_level level, const char *fmt, ...)
{
	char line[LOG_LINE_BYTES];
	size_t n, text;
	uint32_t dropped;
	va_list ap;

	pthread_mutex_lock(&lock);
	if (level > max_level || !log_site_take(site, loop_now(), &dropped))
		goto out;
	if (journal)
		n = clip(snprintf(line, sizeof(line), "<%d>", level), sizeof(line));
	else
		n = clip(snprintf(line, sizeof(line), "kvd: "), sizeof(line));
	text = n;
	if (dropped)
		n += clip(
			snprintf(line + n, sizeof(line) - n, "(%u like this not shown) ", dropped),
			sizeof(line) - n);
	va_start(ap, fmt);
	n += clip(vsnprintf(line + n, sizeof(line) - n, fmt, ap), sizeof(line) - n);
	va_end(ap);
	make_printable(line + text, n - text);
	line[n++] = '\n';
	if (!put_line(line, n))
		site->dropped += dropped + 1;
out:
	pthread_mutex_unlock(&lock);
}
