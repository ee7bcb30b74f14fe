/* SPDX-License-Identifier: Apache-2.0 */
#include "admin.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define ANSWER_TIMEOUT_MS 10000

static char text[512];

int admin_fail(int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return err;
}

const char *admin_error(void)
{
	return text;
}

const char *admin_default_socket(void)
{
	static char path[108];
	const char *dir = getenv("XDG_RUNTIME_DIR");

	if (dir && *dir)
		snprintf(path, sizeof(path), "%s/kvd.sock", dir);
	else
		snprintf(path, sizeof(path), "/run/kvd/kvd.sock");
	return path;
}

int admin_connect(const char *path)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	char dflt[120];
	int fd, err;

	if (!path) {
		snprintf(dflt, sizeof(dflt), "%s.admin", admin_default_socket());
		path = dflt;
	}
	if (strlen(path) >= sizeof(sa.sun_path))
		return admin_fail(-ENAMETOOLONG, "socket path '%s' is longer than %zu bytes", path,
				  sizeof(sa.sun_path) - 1);
	strcpy(sa.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return admin_fail(-errno, "socket: %s", strerror(errno));
	if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0)
		return fd;
	err = -errno;
	close(fd);
	if (err == -ENOENT || err == -ECONNREFUSED)
		return admin_fail(
			err, "no kvd answers at '%s': start kvd, or name its socket with --socket",
			path);
	if (err == -EACCES)
		return admin_fail(
			err,
			"'%s': permission denied: run as kvd's user, or start kvd with --group",
			path);
	return admin_fail(err, "'%s': %s", path, strerror(-err));
}

static int answer(int fd, uint32_t cmd, char *packet, size_t *len)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	struct kv_admin_head *h = (void *)packet;
	ssize_t n;

	if (poll(&pfd, 1, ANSWER_TIMEOUT_MS) <= 0)
		return admin_fail(-ETIMEDOUT, "kvd did not answer within %d s",
				  ANSWER_TIMEOUT_MS / 1000);
	n = recv(fd, packet, KV_ADMIN_PACKET, 0);
	if (n <= 0)
		return admin_fail(-EPIPE, "kvd closed the admin connection");
	if ((size_t)n < sizeof(*h) || h->magic != KV_ADMIN_MAGIC || h->cmd != cmd ||
	    (h->nr && h->record_bytes > ((size_t)n - sizeof(*h)) / h->nr))
		return admin_fail(-EPROTO,
				  "kvd's answer is malformed: kvctl and kvd differ in version?");
	if (h->result < 0 && h->nr)
		return admin_fail(h->result, "kvd: %.*s", KV_TEXT_BYTES, packet + sizeof(*h));
	if (h->result < 0)
		return admin_fail(h->result, "kvd: %s", strerror(-h->result));
	*len = (size_t)n;
	return 0;
}

int admin_get(int fd, uint32_t cmd, size_t record_bytes, void **records, uint32_t *nr)
{
	struct kv_admin_request rq;

	return admin_ask(fd, cmd, &rq, sizeof(rq), record_bytes, records, nr);
}

int admin_ask(int fd, uint32_t cmd, struct kv_admin_request *rq, size_t request_bytes,
	      size_t record_bytes, void **records, uint32_t *nr)
{
	char *packet = malloc(KV_ADMIN_PACKET), *out = NULL, *grown;
	const struct kv_admin_head *h = (void *)packet;
	size_t len, each;
	uint32_t i, n = 0;
	int err;

	if (!packet)
		return admin_fail(-ENOMEM, "out of memory");
	*rq = (struct kv_admin_request){ KV_ADMIN_MAGIC, KV_ABI_VERSION, cmd, 0 };
	if (send(fd, rq, request_bytes, MSG_NOSIGNAL) != (ssize_t)request_bytes) {
		free(packet);
		return admin_fail(-EPIPE, "kvd closed the admin connection");
	}
	do {
		err = answer(fd, cmd, packet, &len);
		if (err)
			break;
		grown = realloc(out, (n + h->nr + 1) * record_bytes);
		if (!grown) {
			err = admin_fail(-ENOMEM, "out of memory");
			break;
		}
		out = grown;
		each = h->record_bytes < record_bytes ? h->record_bytes : record_bytes;
		memset(out + n * record_bytes, 0, h->nr * record_bytes);
		for (i = 0; i < h->nr; i++)
			memcpy(out + (n + i) * record_bytes,
			       packet + sizeof(*h) + (size_t)i * h->record_bytes, each);
		n += h->nr;
	} while (h->flags & KV_ADMIN_MORE);
	free(packet);
	if (err) {
		free(out);
		return err;
	}
	*records = out;
	*nr = n;
	return 0;
}
