// SPDX-License-Identifier: Apache-2.0
/* main_test - the kvd program: options, messages, signals, and what a same-user process may not do.
 * KVD_BIN names the program (tests/run.sh sets it); without it everything is skipped. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "raw_client.h"

#define MAX_ARGS 16

struct program {
	pid_t pid;
	int out;	/* stdout and stderr */
	char text[8192];
};

static char dir[64], sock[96];

static int setup(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/kvd-main-XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(sock, sizeof(sock), "%s/kvd.sock", dir);
	return 0;
}

static int teardown(void **state)
{
	char admin[CONTROL_PATH_BYTES];

	(void)state;
	snprintf(admin, sizeof(admin), "%.90s.admin", sock);
	unlink(sock);
	unlink(admin);
	return rmdir(dir);
}

static struct program start(const char *const *args)
{
	const char *bin = getenv("KVD_BIN");
	const char *argv[MAX_ARGS] = { bin };
	struct program p = { 0 };
	int out[2];

	if (!bin || access(bin, X_OK) < 0)
		skip();
	for (int i = 0; args[i] && i < MAX_ARGS - 2; i++)
		argv[i + 1] = args[i];
	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	p.pid = fork();
	assert_true(p.pid >= 0);
	if (p.pid == 0) {
		dup2(out[1], STDOUT_FILENO);
		dup2(out[1], STDERR_FILENO);
		execv(bin, (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	close(out[1]);
	p.out = out[0];
	return p;
}

/* Until what it printed contains want (true) or it closed its output. */
static bool read_until(struct program *p, const char *want)
{
	size_t n = strlen(p->text);
	struct pollfd poll_out = { .fd = p->out, .events = POLLIN };

	while (!strstr(p->text, want) && n < sizeof(p->text) - 1) {
		ssize_t got = 0;

		if (poll(&poll_out, 1, RAW_DEADLINE_MS) == 1)
			got = read(p->out, p->text + n, sizeof(p->text) - 1 - n);
		if (got <= 0)
			return false;
		n += (size_t)got;
	}
	return true;
}

static int finish(struct program *p)
{
	int status;

	read_until(p, "\1");
	close(p->out);
	assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static struct program start_daemon(void)
{
	struct program p = start((const char *[]){"--device", "host:64M", "--socket", sock, NULL});

	assert_true(read_until(&p, sock));
	assert_non_null(strstr(p.text, "kvd: host pool 64.0 MiB, extents 2.0 MiB, socket "));
	return p;
}

static void refuse(const char *names, const char *const *args)
{
	struct program p = start(args);

	assert_true(finish(&p) > 0);
	if (!strstr(p.text, names))
		fail_msg("'%s' does not name '%s'", p.text, names);
}

#define REFUSED(names, ...) refuse(names, (const char *[]){ __VA_ARGS__, NULL })

static void bad_options_are_named(void **state)
{
	(void)state;
	REFUSED("--device host:1G", "--socket", sock);
	REFUSED("--nonsense", "--nonsense");
	REFUSED("stray", "stray");
	REFUSED("'cuda:9'", "--device", "cuda:9", "--socket", sock);
	REFUSED("'host:1K'", "--device", "host:1K", "--socket", sock);
	REFUSED("no knob 'what'", "--device", "host:64M", "--set", "what=1");
	REFUSED("KNOB=VALUE", "--device", "host:64M", "--set", "spin_us");
	REFUSED("spin_us=x", "--device", "host:64M", "--set", "spin_us=x");
	REFUSED("/no/such/file", "--config", "/no/such/file");
	REFUSED("/no/such/dir", "--device", "host:64M", "--socket", "/no/such/dir/s");
	REFUSED("no-such-group", "--device", "host:64M", "--socket", sock, "--group",
		"no-such-group");
	REFUSED("extent_bytes", "--device", "host:64M", "--socket", sock, "--set",
		"extent_bytes=1G");
}

static void a_second_daemon_is_refused(void **state)
{
	struct program p = start_daemon();

	(void)state;
	REFUSED(sock, "--device", "host:64M", "--socket", sock);
	kill(p.pid, SIGTERM);
	assert_int_equal(finish(&p), 0);
}

static void help_and_version_and_knobs_print(void **state)
{
	static const char *const arg[] = { "--help", "--version", "--print-knobs" };
	static const char *const want[] = { "Examples:", "kvd ", "| spin_us |" };

	(void)state;
	for (int i = 0; i < 3; i++) {
		struct program p = start((const char *[]){ arg[i], NULL });

		assert_int_equal(finish(&p), 0);
		assert_non_null(strstr(p.text, want[i]));
	}
}

static void the_command_line_wins_over_the_file(void **state)
{
	char conf[96];
	struct program p;
	struct raw r;
	FILE *f;

	(void)state;
	snprintf(conf, sizeof(conf), "%s/conf", dir);
	f = fopen(conf, "we");
	fprintf(f, "[kvd]\ndevice = host:1G\nring_entries = 16\nsocket = %s\n", sock);
	fclose(f);
	p = start((const char *[]){ "--device", "host:64M", "--config", conf, "--set",
				    "data_bytes=128K", NULL });
	assert_true(read_until(&p, sock));
	assert_int_equal(raw_open(&r, sock, "conf"), 0);
	assert_int_equal(r.w.pool_bytes, 64 << 20);
	assert_int_equal(r.w.nr_devices, 1);
	assert_int_equal(r.w.sq_entries, 16);
	assert_int_equal(r.w.data_bytes, 128 << 10);
	kill(p.pid, SIGTERM);
	assert_int_equal(finish(&p), 0);
	raw_close(&r);
	unlink(conf);
}

static void signals_end_it_and_clients_learn(void **state)
{
	static const int signals[] = { SIGTERM, SIGINT, SIGKILL };

	(void)state;
	for (int i = 0; i < 3; i++) {
		struct program p = start_daemon();
		const struct kv_sqe nop = { .op = KV_OP_NOP };
		struct raw r;
		struct kv_cqe c;

		assert_int_equal(raw_open(&r, sock, "client"), 0);
		assert_int_equal(raw_call(&r, &nop, &c), 0);
		kill(p.pid, signals[i]);
		assert_true(raw_hung_up(r.sock));
		assert_int_equal(raw_call(&r, &nop, &c), -EPIPE);
		assert_int_equal(finish(&p), signals[i] == SIGKILL ? -SIGKILL : 0);
		assert_int_equal(access(sock, F_OK), signals[i] == SIGKILL ? 0 : -1);
		raw_close(&r);
	}
}

/* Another process of kvd's user must not get at its memfds or memory through /proc. */
static void a_same_user_process_cannot_look_inside(void **state)
{
	char path[64];
	struct program p;
	uid_t uid = 65534;
	int status;
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip();
	assert_int_equal(chmod(dir, 0777), 0);
	if (!getenv("KVD_BIN"))
		skip();
	pid = fork();
	if (pid == 0) {	/* kvd and the curious one both run as nobody */
		if (setgid(uid) || setuid(uid))
			_exit(2);
		if (access(getenv("KVD_BIN"), X_OK) < 0)
			_exit(3);
		p = start((const char *[]){ "--device", "host:64M", "--socket", sock, NULL });
		if (!read_until(&p, sock))
			_exit(3);
		snprintf(path, sizeof(path), "/proc/%d/fd", p.pid);
		status = opendir(path) ? 4 : errno == EACCES ? 0 : 5;
		snprintf(path, sizeof(path), "/proc/%d/mem", p.pid);
		status = open(path, O_RDONLY) >= 0 ? 6 : status;
		kill(p.pid, SIGTERM);
		_exit(finish(&p) ? 7 : status);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 3)
		skip();		/* the tree is not readable to nobody */
	assert_int_equal(WEXITSTATUS(status), 0);
}

static uint64_t cpu_ticks(pid_t pid)
{
	unsigned long long user, sys;
	char path[64], buf[1024] = "", *p;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY);
	assert_true(fd >= 0 && read(fd, buf, sizeof(buf) - 1) > 0);
	close(fd);
	p = strrchr(buf, ')');
	assert_int_equal(sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu",
				&user, &sys),
			 2);
	return user + sys;
}

static void an_idle_daemon_uses_no_cpu(void **state)
{
	struct program p = start_daemon();
	const struct kv_sqe nop = { .op = KV_OP_NOP };
	uint64_t before;
	struct raw r;
	struct kv_cqe c;

	(void)state;
	assert_int_equal(raw_open(&r, sock, "idle"), 0);
	assert_int_equal(raw_call(&r, &nop, &c), 0);
	assert_true(RAW_EVENTUALLY(__atomic_load_n(&r.hdr->sq_need_wakeup, __ATOMIC_RELAXED)));
	before = cpu_ticks(p.pid);
	usleep(500000);
	assert_in_range(cpu_ticks(p.pid) - before, 0, 1);	/* a tick is 10 ms */
	kill(p.pid, SIGTERM);
	assert_int_equal(finish(&p), 0);
	raw_close(&r);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(bad_options_are_named),
		T(a_second_daemon_is_refused),
		T(help_and_version_and_knobs_print),
		T(the_command_line_wins_over_the_file),
		T(signals_end_it_and_clients_learn),
		T(a_same_user_process_cannot_look_inside),
		T(an_idle_daemon_uses_no_cpu),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
