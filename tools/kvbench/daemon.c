/* SPDX-License-Identifier: Apache-2.0 */
/* A kvd of our own for the time of a run, on a private socket. */
#include "bench.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_TIMEOUT_MS 20000

static void child(const struct bench_env *env, int out)
{
	char sock[100];

	snprintf(sock, sizeof(sock), "%s/kvd.sock", env->dir);
	dup2(out, STDERR_FILENO);
	dup2(out, STDOUT_FILENO);
	execl(env->kvd, env->kvd, "--device", "host:1G", "--socket", sock, (char *)NULL);
	_exit(127);
}

/* kvd says one line once it listens. */
static int wait_ready(int fd)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	char line[512];
	ssize_t n;

	if (poll(&pfd, 1, START_TIMEOUT_MS) <= 0)
		return -ETIMEDOUT;
	n = read(fd, line, sizeof(line) - 1);
	if (n <= 0)
		return -EPIPE;
	line[n] = '\0';
	if (strstr(line, "socket"))
		return 0;
	fputs(line, stderr);
	return -EIO;
}

int bench_daemon_start(struct bench_env *env)
{
	int out[2], err;

	if (env->connect) {
		if (strncmp(env->connect, "unix:", 5)) {
			fprintf(stderr, "kvbench: --connect '%s': a daemon is unix:PATH\n",
				env->connect);
			return -EINVAL;
		}
		snprintf(env->spec, sizeof(env->spec), "%s", env->connect);
		return 0;
	}
	strcpy(env->dir, "/tmp/kvbench.XXXXXX");
	if (!mkdtemp(env->dir) || pipe(out) < 0) {
		perror("kvbench: temporary directory");
		return -errno;
	}
	env->daemon = fork();
	if (env->daemon == 0)
		child(env, out[1]);
	close(out[1]);
	err = env->daemon < 0 ? -errno : wait_ready(out[0]);
	if (err) {
		fprintf(stderr, "kvbench: kvd ('%s') did not start: see --kvd\n", env->kvd);
		bench_daemon_stop(env);
		return err;
	}
	snprintf(env->spec, sizeof(env->spec), "unix:%s/kvd.sock", env->dir);
	return 0;
}

void bench_daemon_stop(struct bench_env *env)
{
	char path[120];

	if (env->daemon <= 0)
		return;
	kill(env->daemon, SIGTERM);
	waitpid(env->daemon, NULL, 0);
	env->daemon = 0;
	snprintf(path, sizeof(path), "%s/kvd.sock", env->dir);
	unlink(path);
	snprintf(path, sizeof(path), "%s/kvd.sock.admin", env->dir);
	unlink(path);
	rmdir(env->dir);
}

double bench_daemon_cpu_seconds(pid_t pid)
{
	unsigned long user, sys;
	char path[64];
	FILE *f;
	int n;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	f = fopen(path, "r");
	if (!f)
		return -1;
	n = fscanf(f, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
		   &sys);
	fclose(f);
	return n == 2 ? (double)(user + sys) / (double)sysconf(_SC_CLK_TCK) : -1;
}
