// SPDX-License-Identifier: Apache-2.0
/* sock_test - socket files that are free, stale, taken or something else; and who connected */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/sock.h"

static char dir[64], path[96], err[512];

static int setup(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/kvd-sock-XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/s", dir);
	err[0] = 0;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	unlink(path);
	return rmdir(dir);
}

static int listen_on(const char *p)
{
	const struct sock_place at = { .path = p, .mode = 0600 };
	int fd = sock_listen(&at, err, sizeof(err));

	/* a refusal is one line that names what it is about */
	assert_true(fd >= 0 || (err[0] && !strchr(err, '\n')));
	return fd;
}

static int connect_to(const char *p)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", p);
	assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	return fd;
}

static void mode_is_exact_whatever_the_umask(void **state)
{
	struct sock_place at = { .path = path, .mode = 0660 };
	mode_t old = umask(0);
	struct stat st;
	int fd;

	(void)state;
	fd = sock_listen(&at, err, sizeof(err));
	assert_true(fd >= 0);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0660);
	sock_unlink(path, fd);
	close(fd);
	umask(0777);
	at.mode = 0600;
	fd = sock_listen(&at, err, sizeof(err));
	assert_true(fd >= 0);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	umask(old);
	sock_unlink(path, fd);
	assert_int_equal(access(path, F_OK), -1);
	close(fd);
}

static void a_live_daemon_is_not_replaced(void **state)
{
	int fd = listen_on(path), client;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(listen_on(path), -EADDRINUSE);
	assert_non_null(strstr(err, path));
	client = connect_to(path);	/* still the first one's */
	close(client);
	close(fd);
}

static void a_full_backlog_is_alive(void **state)
{
	int fd = listen_on(path), client[256], n = 0;
	struct sockaddr_un sa = { .sun_family = AF_UNIX };

	(void)state;
	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
	for (; n < 256; n++) {
		client[n] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
		if (connect(client[n], (struct sockaddr *)&sa, sizeof(sa)) < 0)
			break;
	}
	assert_true(n < 256 && errno == EAGAIN);
	assert_int_equal(listen_on(path), -EADDRINUSE);
	for (int i = 0; i <= n; i++)
		close(client[i]);
	close(fd);
}

static void a_stale_socket_is_replaced(void **state)
{
	int fd = listen_on(path);

	(void)state;
	assert_true(fd >= 0);
	close(fd);		/* as after kill -9 */
	assert_int_equal(access(path, F_OK), 0);
	fd = listen_on(path);
	assert_true(fd >= 0);
	close(connect_to(path));
	close(fd);
}

static void other_files_are_left_alone(void **state)
{
	int fd = open(path, O_CREAT | O_WRONLY, 0600);

	(void)state;
	assert_int_equal(write(fd, "mine", 4), 4);
	close(fd);
	assert_int_equal(listen_on(path), -EEXIST);
	assert_int_equal(access(path, F_OK), 0);
	unlink(path);
	assert_int_equal(symlink("/tmp", path), 0);
	assert_int_equal(listen_on(path), -EEXIST);
}

static void a_successor_keeps_its_socket(void **state)
{
	int old = listen_on(path), new;

	(void)state;
	unlink(path);
	new = listen_on(path);
	assert_true(new >= 0);
	sock_unlink(path, old);
	close(connect_to(path));
	sock_unlink(path, new);
	assert_int_equal(access(path, F_OK), -1);
	close(old);
	close(new);
}

/* Anybody who can read a directory can lock it, for as long as they like. */
static void a_lock_on_the_directory_holds_up_nobody(void **state)
{
	int fd = listen_on(path), lock = open(dir, O_RDONLY | O_DIRECTORY);

	(void)state;
	assert_true(fd >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0);
	alarm(60);
	sock_unlink(path, fd);
	close(fd);
	assert_int_equal(listen_on(path), -EBUSY);
	assert_non_null(strstr(err, dir));
	alarm(0);
	close(lock);
	fd = listen_on(path);		/* what was left is stale, as after kill -9 */
	assert_true(fd >= 0);
	close(fd);
}

static void bad_places_are_named(void **state)
{
	struct sock_place at = { .path = path, .mode = 0660, .group = "no-such-group" };
	char longer[200];

	(void)state;
	memset(longer, 'x', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = 0;
	assert_int_equal(listen_on(longer), -ENAMETOOLONG);
	assert_int_equal(listen_on(""), -ENAMETOOLONG);
	assert_int_equal(listen_on("/tmp/no/such/dir/s"), -ENOENT);
	assert_non_null(strstr(err, "/tmp/no/such/dir"));
	assert_int_equal(sock_listen(&at, err, sizeof(err)), -ENOENT);
	assert_non_null(strstr(err, "no-such-group"));
	assert_int_equal(access(path, F_OK), -1);
}

static void permission_is_said(void **state)
{
	pid_t pid;
	int status;

	(void)state;
	if (geteuid() != 0)
		skip();
	pid = fork();
	if (pid == 0) {
		struct sock_place at = { .path = path, .mode = 0600 };

		if (setgid(65534) || setuid(65534))
			_exit(9);
		_exit(sock_listen(&at, err, sizeof(err)) == -EACCES && strstr(err, path) ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void the_peer_is_known(void **state)
{
	int listener = listen_on(path), client, server;
	struct sock_peer peer;
	struct pollfd p;
	pid_t pid;

	(void)state;
	client = connect_to(path);
	server = accept(listener, NULL, NULL);
	assert_int_equal(sock_peer(server, &peer), 0);
	assert_int_equal(peer.pid, getpid());
	assert_int_equal(peer.uid, getuid());
	assert_int_equal(peer.gid, getgid());
	assert_true(peer.pidfd >= 0 && fcntl(peer.pidfd, F_GETFD) & FD_CLOEXEC);
	close(peer.pidfd);
	close(server);
	close(client);
	pid = fork();
	if (pid == 0) {
		char c;

		client = connect_to(path);
		_exit((int)read(client, &c, 1));
	}
	server = accept(listener, NULL, NULL);
	assert_int_equal(sock_peer(server, &peer), 0);
	assert_int_equal(peer.pid, pid);
	p = (struct pollfd){ .fd = peer.pidfd, .events = POLLIN };
	assert_int_equal(poll(&p, 1, 0), 0);
	close(server);
	assert_int_equal(poll(&p, 1, 20000), 1);
	waitpid(pid, NULL, 0);
	close(peer.pidfd);
	close(listener);
}

static bool write_file(const char *name, const char *text)
{
	int fd = open(name, O_WRONLY);
	bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	close(fd);
	return ok;
}

/* Two strangers whom a namespace does not map look like the same user to whoever lives in it. */
static void who_cannot_be_told_apart_is_nobody(void **state)
{
	int listener = listen_on(path), status;
	struct sock_peer peer;
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip();
	chmod(path, 0666);
	chmod(dir, 0755);
	close(connect_to(path));	/* root first, who is mapped, then who is not */
	pid = fork();
	if (pid == 0)
		_exit(setuid(65533) || connect_to(path) < 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	pid = fork();
	if (pid == 0) {
		if (unshare(CLONE_NEWUSER) || !write_file("/proc/self/uid_map", "0 0 1"))
			_exit(77);
		if (sock_peer(accept(listener, NULL, NULL), &peer) || peer.nobody || peer.uid)
			_exit(1);
		_exit(sock_peer(accept(listener, NULL, NULL), &peer) || !peer.nobody ? 2 : 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(status, 0);
	close(listener);
}

/* Where every user is mapped, that number is an account like any other. */
static void the_account_nobody_is_somebody(void **state)
{
	int listener = listen_on(path), server, status;
	struct sock_peer peer;
	char map[64] = "";
	FILE *f = fopen("/proc/self/uid_map", "re");
	pid_t pid;

	(void)state;
	if (geteuid() != 0 || !f || !fgets(map, sizeof(map), f) || !strstr(map, "4294967295"))
		skip();
	fclose(f);
	chmod(path, 0666);
	chmod(dir, 0755);
	pid = fork();
	if (pid == 0)
		_exit(setuid(65534) || connect_to(path) < 0);
	server = accept(listener, NULL, NULL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	if (sock_peer(server, &peer) == 0) {	/* -ESRCH: an old kernel, and it is gone */
		assert_int_equal(peer.uid, 65534);
		assert_false(peer.nobody);
		close(peer.pidfd);
	}
	close(server);
	close(listener);
}

static void start_times_tell_processes_apart(void **state)
{
	uint64_t mine = sock_start_time(getpid());
	pid_t pid = fork();

	(void)state;
	if (pid == 0)
		_exit(0);
	assert_true(mine > 0);
	assert_int_equal(sock_start_time(getpid()), mine);
	assert_true(sock_start_time(pid) >= mine);
	waitpid(pid, NULL, 0);
	assert_int_equal(sock_start_time(pid), 0);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(mode_is_exact_whatever_the_umask),
		T(a_live_daemon_is_not_replaced),
		T(a_full_backlog_is_alive),
		T(a_stale_socket_is_replaced),
		T(other_files_are_left_alone),
		T(a_successor_keeps_its_socket),
		T(a_lock_on_the_directory_holds_up_nobody),
		T(bad_places_are_named),
		T(permission_is_said),
		T(the_peer_is_known),
		T(who_cannot_be_told_apart_is_nobody),
		T(the_account_nobody_is_somebody),
		T(start_times_tell_processes_apart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
