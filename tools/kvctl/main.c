/* SPDX-License-Identifier: Apache-2.0 */
#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "admin.h"
#include "emit.h"
#include "kvctl.h"

#define MAX_WORDS 16u

static const struct {
	const char *name;
	int (*run)(int fd, struct emit *, const char *name);
} commands[] = {
	{ "status", kvctl_status },
	{ "meminfo", kvctl_meminfo },
	{ "engines", kvctl_engines },
	{ "caches", kvctl_caches },
	{ "vmstat", kvctl_vmstat },
	{ "check", kvctl_check },
	{ "top", NULL },
	{ "tenant", NULL },
	{ "pressure", kvctl_pressure },
	{ "oom", NULL },
};

struct args {
	const char *command, *socket;
	char *words[MAX_WORDS];	/* behind the command */
	bool json;
	unsigned int interval_ms, count, last, nr_words, device;
};

static const struct argp_option options[] = {
	{ "socket", 's', "PATH", 0, "kvd's socket (its admin socket is PATH.admin)", 0 },
	{ "json", 'j', NULL, 0, "JSON with raw numbers instead of a table", 0 },
	{ "interval", 'i', "SECONDS", 0, "top: pause between samples (default 1)", 0 },
	{ "count", 'n', "N", 0, "top: stop after N samples (default: until interrupted)", 0 },
	{ "once", '1', NULL, 0, "top: one sample, for scripts", 0 },
	{ "last", 'l', "N", 0, "oom: only the last N reports", 0 },
	{ "device", 'd', "N", 0, "tenant set: only on device N (default: on all)", 0 },
	{ 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct args *a = state->input;
	char *end;
	double v;

	switch (key) {
	case 's':
		a->socket = arg;
		return 0;
	case 'j':
		a->json = true;
		return 0;
	case '1':
		a->count = 1;
		return 0;
	case 'i':
	case 'n':
		v = strtod(arg, &end);
		if (end == arg || *end || v <= 0 || v > 86400)
			argp_error(state, "'%s' is not a number between 0 and 86400", arg);
		if (key == 'i')
			a->interval_ms = v * 1000 < 1 ? 1 : (unsigned int)(v * 1000);
		else
			a->count = (unsigned int)v;
		return 0;
	case ARGP_KEY_ARG:
		if (!a->command)
			a->command = arg;
		else if (strcmp(a->command, "tenant"))
			argp_error(state, "one command at a time: '%s' or '%s'", a->command, arg);
		else if (a->nr_words == MAX_WORDS)
			argp_error(state, "too many words behind 'tenant'");
		else
			a->words[a->nr_words++] = arg;
		return 0;
	case 'd':
		v = strtod(arg, &end);
		if (end == arg || *end || v < 0 || v > 7 || v != (unsigned int)v)
			argp_error(state, "'%s' is no device: they count from 0", arg);
		a->device = (unsigned int)v;
		return 0;
	case 'l':
		v = strtod(arg, &end);
		if (end == arg || *end || v < 1 || v > 1000 || v != (unsigned int)v)
			argp_error(state, "'%s' is not a number from 1 to 1000", arg);
		a->last = (unsigned int)v;
		return 0;
	case ARGP_KEY_NO_ARGS:
		argp_error(state,
			   "which command? status, meminfo, engines, caches, tenant, pressure, "
			   "oom, vmstat, top, check");
	}
	return ARGP_ERR_UNKNOWN;
}

__attribute__((visibility("default"))) /* libc looks for it */
const char *argp_program_version = "kvctl " KV_VERSION;

static const char doc[] =
	"Show, check and steer a running kvd.\v"
	"Commands:\n"
	"  status    the daemon: release, uptime, sessions, requests\n"
	"  meminfo   each device's pool: held, cached, leased, quarantined, free\n"
	"  engines   who is connected and what they hold\n"
	"  caches    the KV caches: pages by state, tokens, hit ratio\n"
	"  tenant    list; show NAME; set NAME KNOB=VALUE... (min, low, high, max,\n"
	"            oom_action): who pays, how far, and how often the limits were met\n"
	"  pressure  share of time that allocations waited for memory, a tenant a line\n"
	"  oom       allocations that were refused: who asked, who has it, what to do\n"
	"  vmstat    every counter with its meaning\n"
	"  top       meminfo, caches and engines again and again, with rates\n"
	"  check     make the daemon prove all its invariants now\n\n"
	"Examples:\n"
	"  kvctl meminfo\n"
	"  kvctl --socket /run/kvd/kvd.sock engines --json\n"
	"  kvctl tenant list\n"
	"  kvctl tenant show batch\n"
	"  kvctl tenant set batch max=8G high=none\n"
	"  kvctl tenant set uid-4243 max=2G --device 1\n"
	"  kvctl pressure\n"
	"  kvctl oom --last 1\n"
	"  kvctl top --interval 0.5 --count 20\n";

static int run(size_t command, int fd, const struct args *a)
{
	struct emit *e;
	int err;

	if (!strcmp(a->command, "top"))
		return kvctl_top(fd, a->json, a->interval_ms, a->count);
	e = emit_open(a->json);
	if (commands[command].run)
		err = commands[command].run(fd, e, NULL);
	else if (!strcmp(a->command, "oom"))
		err = kvctl_oom(fd, e, a->json, a->last);
	else
		err = kvctl_tenant(fd, e, a->json, a->words, a->nr_words, a->device);
	if (!err)
		emit_close(e);
	return err;
}

int main(int argc, char **argv)
{
	static const struct argp argp = { options, parse, "COMMAND", doc, NULL, NULL, NULL };
	struct args a = { .interval_ms = 1000, .device = UINT32_MAX };
	char admin[256], *path = NULL;
	const char *usage;
	size_t i;
	int fd, err;

	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, &a);
	for (i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(commands[i].name, a.command))
			break;
	if (i == sizeof(commands) / sizeof(commands[0])) {
		fprintf(stderr, "kvctl: no command '%s': see kvctl --help\n", a.command);
		return 2;
	}
	usage = strcmp(a.command, "tenant") ? NULL : kvctl_tenant_usage(a.words, a.nr_words);
	if (!usage && a.device != UINT32_MAX && (!a.nr_words || strcmp(a.words[0], "set")))
		usage = "--device is for tenant set only";
	if (usage) {
		fprintf(stderr, "kvctl: %s\n", usage);
		return 2;
	}
	if (a.socket) {
		snprintf(admin, sizeof(admin), "%.240s.admin", a.socket);
		path = admin;
	}
	fd = admin_connect(path);
	err = fd < 0 ? fd : run(i, fd, &a);
	if (err)
		fprintf(stderr, "kvctl: %s\n", admin_error());
	if (fd >= 0)
		close(fd);
	return err ? 1 : 0;
}
