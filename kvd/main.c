// SPDX-License-Identifier: Apache-2.0
/* kvd - the daemon: options and configuration in, a running server out */
#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "io/log.h"
#include "srv/control.h"
#include "srv/server.h"

#define MAX_SETTINGS	64
#define TEXT_BYTES	512

/* libc looks it up by name. */
__attribute__((visibility("default"))) const char *argp_program_version = "kvd " SERVER_RELEASE;

/* What the command line said, applied after the file, whatever the order was. */
struct arguments {
	const char *config;
	const char *name[MAX_SETTINGS], *value[MAX_SETTINGS];
	unsigned int nr;
	bool devices, print_knobs;
};

enum { OPT_SOCKET = 256, OPT_GROUP, OPT_SET, OPT_CHECK_EVERY, OPT_PRINT_KNOBS };

static const struct argp_option options[] = {
	{"device", 'd', "host:SIZE", 0, "Memory for the pool, as in host:1G; once a device", 0},
	{"socket", OPT_SOCKET, "PATH", 0,
	 "Where clients connect (default: $XDG_RUNTIME_DIR/kvd.sock, else /run/kvd/kvd.sock)", 0},
	{"group", OPT_GROUP, "NAME", 0, "Group that may connect", 0},
	{"config", 'c', "FILE", 0, "Knobs in an ini file, section [kvd]; the command line wins", 0},
	{"set", OPT_SET, "KNOB=VALUE", 0, "Set any knob", 0},
	{"check-every", OPT_CHECK_EVERY, "N", 0, "Prove every invariant after N requests (tests)",
	 0},
	{"print-knobs", OPT_PRINT_KNOBS, NULL, 0, "Print the table of knobs as markdown", 0},
	{0},
};

static const char doc[] =
	"kvd - one pool of KV-cache pages for every inference engine on this machine"
	"\v"
	"Examples:\n"
	"  kvd --device host:1G\n"
	"  kvd --device host:64G --socket /run/kvd/kvd.sock --group inference\n"
	"  kvd --config /etc/kvd.conf --set spin_us=0\n\n"
	"Look at it with kvctl status. SIGTERM stops it.";

static void add(struct arguments *a, struct argp_state *state, const char *name, const char *value)
{
	if (a->nr == MAX_SETTINGS)
		argp_error(state, "more than %d options: put them into a --config file",
			   MAX_SETTINGS);
	a->name[a->nr] = name;
	a->value[a->nr++] = value;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;
	char *equals;

	switch (key) {
	case 'd':
		a->devices = true;
		add(a, state, "device", arg);
		return 0;
	case OPT_SOCKET:
		add(a, state, "socket", arg);
		return 0;
	case OPT_GROUP:
		add(a, state, "group", arg);
		return 0;
	case OPT_CHECK_EVERY:
		add(a, state, "check_every", arg);
		return 0;
	case OPT_SET:
		equals = strchr(arg, '=');
		if (!equals)
			argp_error(state, "--set %s: write it as KNOB=VALUE", arg);
		*equals = 0;
		a->devices |= !strcmp(arg, "device");
		add(a, state, arg, equals + 1);
		return 0;
	case OPT_PRINT_KNOBS:
		a->print_knobs = true;
		return 0;
	case 'c':
		a->config = arg;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "'%s' is no option: kvd takes none without --", arg);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void default_socket(struct control *c)
{
	const char *dir = getenv("XDG_RUNTIME_DIR");

	if (c->socket[0])
		return;
	if (dir && dir[0]) {
		snprintf(c->socket, sizeof(c->socket), "%s/kvd.sock", dir);
		return;
	}
	mkdir("/run/kvd", 0755);	/* if it cannot, the socket says why */
	snprintf(c->socket, sizeof(c->socket), "/run/kvd/kvd.sock");
}

static int configure(struct control *c, const struct arguments *a, char *err, size_t err_len)
{
	int ret = 0;

	control_init(c);
	if (a->config)
		ret = control_load(c, a->config, err, err_len);
	if (a->devices)
		c->nr_devices = 0;
	for (unsigned int i = 0; i < a->nr && ret == 0; i++)
		ret = control_set(c, a->name[i], a->value[i], err, err_len);
	if (ret == 0)
		default_socket(c);
	return ret;
}

/* A client of our own uid could otherwise open our memfds for writing through /proc/PID/fd, and
 * read tokens with ptrace. Signals are blocked here so that every thread inherits it. */
static void harden(void)
{
	struct rlimit lim;
	sigset_t set;

	prctl(PR_SET_DUMPABLE, 0);
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	if (getrlimit(RLIMIT_NOFILE, &lim) == 0) {
		lim.rlim_cur = lim.rlim_max;
		setrlimit(RLIMIT_NOFILE, &lim);
	}
}

/* systemd's readiness protocol is one datagram: no library needed. */
static void notify_ready(void)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	socklen_t len;
	int fd;

	if (!path || strlen(path) >= sizeof(sa.sun_path) || (path[0] != '/' && path[0] != '@'))
		return;
	memcpy(sa.sun_path, path, strlen(path));
	if (sa.sun_path[0] == '@')
		sa.sun_path[0] = 0;
	len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	if (sendto(fd, "READY=1", 7, MSG_NOSIGNAL, (struct sockaddr *)&sa, len) < 0)
		log_warn("systemd cannot be told that kvd is ready: %s", strerror(errno));
	close(fd);
}

int main(int argc, char **argv)
{
	static const struct argp argp = { options, parse, NULL, doc, NULL, NULL, NULL };
	struct arguments args = { 0 };
	struct server *server;
	struct control control;
	char text[TEXT_BYTES] = "";
	int ret;

	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, &args);
	if (args.print_knobs) {
		control_print(stdout);
		return fflush(stdout) || ferror(stdout);
	}
	ret = configure(&control, &args, text, sizeof(text));
	if (ret == 0) {
		log_init((enum log_level)control.log_level);
		harden();
		ret = server_create(&server, &control, true, text, sizeof(text));
	}
	if (ret < 0) {
		fprintf(stderr, "kvd: %s\n", text);
		return 1;
	}
	server_describe(server, text, sizeof(text));
	printf("kvd: %s\n", text);
	fflush(stdout);
	notify_ready();
	ret = server_run(server);
	server_destroy(server);
	if (ret < 0)
		fprintf(stderr, "kvd: the event loop failed: %s\n", strerror(-ret));
	return ret < 0;
}
