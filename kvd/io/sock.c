// SPDX-License-Identifier: Apache-2.0
#include "io/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77		/* Linux 6.5 */
#endif

#define BACKLOG		64
#define LOCK_TRIES	50
#define LOCK_STEP_US	20000

#define say(err, len, ...) snprintf((err), (len), __VA_ARGS__)

static int fill_address(const char *path, struct sockaddr_un *sa, char *err, size_t err_len)
{
	if (!path[0] || strlen(path) >= sizeof(sa->sun_path)) {
		say(err, err_len,
		    "socket path '%s' must have 1 to %zu bytes: choose another --socket", path,
		    sizeof(sa->sun_path) - 1);
		return -ENAMETOOLONG;
	}
	*sa = (struct sockaddr_un){ .sun_family = AF_UNIX };
	memcpy(sa->sun_path, path, strlen(path));
	return 0;
}

static int find_group(const char *name, gid_t *gid, char *err, size_t err_len)
{
	struct group *g = getgrnam(name);

	if (!g) {
		say(err, err_len,
		    "no group '%s': create it with groupadd or choose another --group", name);
		return -ENOENT;
	}
	*gid = g->gr_gid;
	return 0;
}

/* A daemon holds it for moments, but anybody who can read the directory may hold it for ever. */
static int take_lock(int fd)
{
	for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; i++) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return -errno;
		if (i == LOCK_TRIES)
			return -EBUSY;
		usleep(LOCK_STEP_US);
	}
	return 0;
}

/* Held while the old file is probed and replaced, so that two starting daemons take turns. */
static int lock_directory(const char *path, char *err, size_t err_len)
{
	char *copy = strdup(path);
	const char *dir = copy ? dirname(copy) : ".";
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int ret = fd < 0 ? -errno : take_lock(fd);

	if (ret == -EBUSY)
		say(err, err_len,
		    "somebody holds a lock on directory '%s' of socket '%s': find out who with "
		    "lslocks, or choose another --socket", dir, path);
	else if (ret < 0)
		say(err, err_len,
		    "cannot use directory '%s' for socket '%s': %s; create it or choose "
		    "another --socket", dir, path, strerror(-ret));
	free(copy);
	if (ret < 0 && fd >= 0)
		close(fd);
	return ret < 0 ? ret : fd;
}

/* Non-blocking: a live daemon with a full backlog says EAGAIN and is no less alive. */
static bool answers(const struct sockaddr_un *sa)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	bool alive = true;

	if (fd < 0)
		return true;
	if (connect(fd, (const struct sockaddr *)sa, sizeof(*sa)) < 0)
		alive = errno != ECONNREFUSED && errno != ENOENT;
	close(fd);
	return alive;
}

static int clear_path(const struct sockaddr_un *sa, char *err, size_t err_len)
{
	struct stat st;

	if (lstat(sa->sun_path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode)) {
		say(err, err_len, "'%s' exists and is not a socket: remove it or choose another "
		    "--socket", sa->sun_path);
		return -EEXIST;
	}
	if (answers(sa)) {
		say(err, err_len, "a daemon already listens on '%s': stop it or choose another "
		    "--socket", sa->sun_path);
		return -EADDRINUSE;
	}
	if (unlink(sa->sun_path) < 0) {
		int ret = -errno;

		say(err, err_len, "cannot replace the stale socket '%s': %s; remove it or choose "
		    "another --socket", sa->sun_path, strerror(errno));
		return ret;
	}
	return 0;
}

/* fchmod before bind: the file never exists with a wider mode, whatever the umask is. */
static int bind_path(int fd, const struct sockaddr_un *sa, const struct sock_place *at, gid_t gid,
		     char *err, size_t err_len)
{
	int ret;

	if (fchmod(fd, 0600) < 0 || bind(fd, (const struct sockaddr *)sa, sizeof(*sa)) < 0) {
		ret = -errno;
		say(err, err_len, "cannot create socket '%s': %s; choose another --socket",
		    at->path, strerror(-ret));
		return ret;
	}
	if ((gid != (gid_t)-1 && chown(at->path, (uid_t)-1, gid) < 0) ||
	    chmod(at->path, at->mode) < 0 || listen(fd, BACKLOG) < 0) {
		ret = -errno;
		say(err, err_len,
		    "cannot give socket '%s' its mode %03o and group '%s': %s; start kvd "
		    "as a member of the group or choose another --group",
		    at->path, (unsigned int)at->mode, at->group ? at->group : "", strerror(-ret));
		unlink(at->path);
		return ret;
	}
	return 0;
}

int sock_listen(const struct sock_place *at, char *err, size_t err_len)
{
	struct sockaddr_un sa;
	gid_t gid = (gid_t)-1;
	int fd, lock, ret;

	ret = fill_address(at->path, &sa, err, err_len);
	if (ret == 0 && at->group && at->group[0])
		ret = find_group(at->group, &gid, err, err_len);
	if (ret < 0)
		return ret;
	lock = lock_directory(at->path, err, err_len);
	if (lock < 0)
		return lock;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		ret = -errno;
		say(err, err_len, "no socket: %s", strerror(errno));
	} else {
		ret = clear_path(&sa, err, err_len);
		if (ret == 0)
			ret = bind_path(fd, &sa, at, gid, err, err_len);
	}
	close(lock);
	if (ret < 0) {
		if (fd >= 0)
			close(fd);
		return ret;
	}
	return fd;
}

/* Once ours refuses connections, a path that still answers belongs to somebody else. */
void sock_unlink(const char *path, int fd)
{
	struct sockaddr_un sa;
	int lock;

	shutdown(fd, SHUT_RDWR);
	lock = lock_directory(path, NULL, 0);
	if (lock < 0)
		return;
	if (fill_address(path, &sa, NULL, 0) == 0 && !answers(&sa))
		unlink(path);
	close(lock);
}

uint64_t sock_start_time(pid_t pid)
{
	char path[32], buf[1024], *p;
	unsigned long long start;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, buf, sizeof(buf) - 1);
	close(fd);
	if (n <= 0)
		return 0;
	buf[n] = 0;
	p = strrchr(buf, ')');	/* the name may hold anything, parentheses too */
	if (!p || sscanf(p + 1,
			 " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
			 "%*d %*d %llu",
			 &start) != 1)
		return 0;
	return start;
}

static bool owned_by(pid_t pid, uid_t uid)
{
	char path[32];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d", pid);
	return stat(path, &st) == 0 && (st.st_uid == uid || st.st_uid == 0);
}

/* A pid may be reused between connect and now. The start time must be the same before and after
 * the pidfd is opened, and the process must be the peer's user's; else we do not know who it is. */
static int pidfd_by_number(pid_t pid, uid_t uid)
{
	uint64_t start = sock_start_time(pid);
	int fd;

	if (!start)
		return -ESRCH;
	fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (fd < 0)
		return -errno;
	if (sock_start_time(pid) != start || !owned_by(pid, uid)) {
		close(fd);
		return -ESRCH;
	}
	return fd;
}

static bool read_line(const char *path, char *line, int len)
{
	FILE *f = fopen(path, "re");
	bool ok = f && fgets(line, len, f);

	if (f)
		fclose(f);
	return ok;
}

/* Every user whom our namespace does not map shows as this one uid. Outside of all namespaces there
 * is no such user, and the number is an account like any other. */
static bool is_nobody(uid_t uid)
{
	unsigned int overflow = 65534, inside, outside, count;
	char line[128];

	if (read_line("/proc/sys/fs/overflowuid", line, sizeof(line)))
		sscanf(line, "%u", &overflow);
	if (uid != overflow || !read_line("/proc/self/uid_map", line, sizeof(line)))
		return false;
	return sscanf(line, "%u %u %u", &inside, &outside, &count) == 3 && count != UINT32_MAX;
}

int sock_peer(int fd, struct sock_peer *peer)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);
	int pidfd = -1;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		return -errno;
	len = sizeof(pidfd);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) < 0) {
		if (errno != ENOPROTOOPT)
			return -errno;
		pidfd = -1;
		if (cred.pid > 0) {
			pidfd = pidfd_by_number(cred.pid, cred.uid);
			if (pidfd < 0)
				return pidfd;
		}
	}
	*peer = (struct sock_peer){
		.pid = cred.pid, .uid = cred.uid, .gid = cred.gid, .pidfd = pidfd,
		.nobody = is_nobody(cred.uid),
	};
	return 0;
}
