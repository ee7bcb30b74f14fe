/* SPDX-License-Identifier: Apache-2.0 */
/* daemon_test - a private kvd for a test: KVD_BIN or build/kvd, in a directory of its own
 *
 * daemon_here() is false when there is no binary: main() then skips with the reason printed.
 */
#ifndef DAEMON_TEST_H
#define DAEMON_TEST_H

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "pool_test.h"

#define DAEMON_TRIES 1000 /* of 20 ms */

struct daemon_proc {
	pid_t pid;
	char dir[32], sock[48], spec[64];
};

static inline const char *daemon_bin(void)
{
	return getenv("KVD_BIN") ? getenv("KVD_BIN") : "build/kvd";
}

static inline bool daemon_here(void)
{
	if (!access(daemon_bin(), X_OK))
		return true;
	print_message("skipped: no daemon at %s (set KVD_BIN)\n", daemon_bin());
	return false;
}

/* What kvd says goes to a file, shown when it does not start or stop as it should. */
static inline void daemon_log(const struct daemon_proc *d)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "%s/log", d->dir);
	fd = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
	if (fd >= 0)
		dup2(dup2(fd, STDOUT_FILENO), STDERR_FILENO);
}

static inline void daemon_show(const struct daemon_proc *d)
{
	char line[256];
	FILE *log;

	snprintf(line, sizeof(line), "%s/log", d->dir);
	log = fopen(line, "r");
	while (log && fgets(line, sizeof(line), log))
		print_message("%s", line);
	if (log)
		fclose(log);
}

static inline void daemon_start(struct daemon_proc *d, const char *const *args, uint32_t nr_args)
{
	const char *argv[16] = { daemon_bin(), "--socket", d->sock };
	struct kv *kv;
	uint32_t i;

	snprintf(d->dir, sizeof(d->dir), "/tmp/kvd-test-XXXXXX");
	assert_non_null(mkdtemp(d->dir));
	snprintf(d->sock, sizeof(d->sock), "%s/sock", d->dir);
	snprintf(d->spec, sizeof(d->spec), "unix:%s", d->sock);
	for (i = 0; i < nr_args; i++)
		argv[3 + i] = args[i];
	d->pid = fork();
	if (!d->pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		daemon_log(d);
		execv(argv[0], (char *const *)argv);
		_exit(127);
	}
	for (i = 0; kv_open(d->spec, NULL, &kv); i++) {
		if (waitpid(d->pid, NULL, WNOHANG) == d->pid || i == DAEMON_TRIES) {
			daemon_show(d);
			fail_msg("kvd did not start: %s", kv_error());
		}
		poll(NULL, 0, 20);
	}
	kv_close(kv);
}

static inline void daemon_kill(struct daemon_proc *d)
{
	if (d->pid > 0) {
		kill(d->pid, SIGKILL);
		waitpid(d->pid, NULL, 0);
	}
	d->pid = 0;
}

static inline void daemon_stop(struct daemon_proc *d)
{
	char path[64];
	int status;

	if (d->pid > 0) {
		kill(d->pid, SIGTERM);
		waitpid(d->pid, &status, 0);
		if (!WIFEXITED(status) || WEXITSTATUS(status)) {
			daemon_show(d);
			fail_msg("kvd ended with status %#x", status);
		}
	}
	d->pid = 0;
	snprintf(path, sizeof(path), "%s.admin", d->sock);
	unlink(path);
	snprintf(path, sizeof(path), "%s/log", d->dir);
	unlink(path);
	unlink(d->sock);
	rmdir(d->dir);
}

/* A process of its own; it talks to the test through a socket: peer_tell and peer_hear. */
struct peer {
	pid_t pid;
	int fd;
};

static inline void peer_start(struct peer *p, void (*run)(int fd, void *arg), void *arg)
{
	int sv[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
	p->pid = fork();
	if (!p->pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(sv[0]);
		test_in_peer = true;
		run(sv[1], arg);
		_exit(0);
	}
	close(sv[1]);
	p->fd = sv[0];
}

static inline void peer_tell(int fd, const void *msg, size_t bytes)
{
	if (send(fd, msg, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
		_exit(99);
}

static inline bool peer_hear(int fd, void *msg, size_t bytes)
{
	return recv(fd, msg, bytes, 0) == (ssize_t)bytes;
}

static inline int peer_end(struct peer *p)
{
	int status = -1;

	close(p->fd);
	waitpid(p->pid, &status, 0);
	return status;
}

#endif
