// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static void usage(void)
{
	puts("usage: mmsim [--seed N | --seeds A..B] [--ops N] [--jobs N] [--resume FILE]\n"
	     "             [--progress] [--check-every N] [--off FEATURES] [--without OPERATIONS]\n"
	     "             [--canary] [--once] [--stop] [--verbose]\n"
	     "Drives the memory manager with random requests and compares it with a naive model.\n"
	     "Each seed runs twice and must end alike. A failing seed is shrunk unless --once.\n"
	     "--stop: at the first seed that fails.\n"
	     "--jobs: so many processes. --resume: what FILE says is done is not done again.\n"
	     "--check-every: mm_check at least as often; it is more often while there is little.\n"
	     "With 1 the sums are compared as often, too.\n"
	     "--off, --without: bits of features and kinds of operations to leave out.\n"
	     "--canary falsifies replies: every kind of lie must be caught.");
}

static void parse(int argc, char **argv, struct sim_options *o)
{
	for (int i = 1; i < argc; i++) {
		char *end, *arg = i + 1 < argc ? argv[i + 1] : (char *)"";

		if (!strcmp(argv[i], "--verbose")) {
			o->verbose = true;
			continue;
		} else if (!strcmp(argv[i], "--canary")) {
			o->canary = true;
			continue;
		} else if (!strcmp(argv[i], "--once")) {
			o->once = true;
			continue;
		}
		if (!strcmp(argv[i], "--stop")) {
			o->stop = true;
			continue;
		}
		if (!strcmp(argv[i], "--progress")) {
			o->progress = true;
			continue;
		}
		i++;
		if (!strcmp(argv[i - 1], "--resume")) {
			o->resume = arg;
			end = arg + strlen(arg);
		} else if (!strcmp(argv[i - 1], "--seed")) {
			o->first_seed = o->last_seed = strtoull(arg, &end, 0);
		} else if (!strcmp(argv[i - 1], "--seeds")) {
			o->first_seed = o->last_seed = strtoull(arg, &end, 0);
			if (!strncmp(end, "..", 2))
				o->last_seed = strtoull(end + 2, &end, 0);
		} else if (!strcmp(argv[i - 1], "--ops")) {
			o->nr_ops = strtoull(arg, &end, 0);
		} else if (!strcmp(argv[i - 1], "--check-every")) {
			o->check_every = strtoull(arg, &end, 0);
		} else if (!strcmp(argv[i - 1], "--without")) {
			o->without = strtoull(arg, &end, 0);
		} else if (!strcmp(argv[i - 1], "--off")) {
			o->off = strtoull(arg, &end, 0);
		} else if (!strcmp(argv[i - 1], "--jobs")) {
			o->jobs = (uint32_t)strtoul(arg, &end, 0);
		} else {
			usage();
			exit(!strcmp(argv[i - 1], "--help") ? 0 : 2);
		}
		if (end == arg || *end || *arg == '-') {
			fprintf(stderr, "mmsim: %s: bad number '%s'\n", argv[i - 1], arg);
			exit(2);
		}
	}
}

int main(int argc, char **argv)
{
	struct sim_options opt = {
		.first_seed = 1,
		.last_seed = 20,
		.nr_ops = 5000,
		.check_every = 1000,
	};
	struct sim *s;

	parse(argc, argv, &opt);
	if (!opt.check_every)
		opt.check_every = UINT64_MAX / 2;
	s = run_start();
	return opt.canary ? run_canaries(s, &opt) : jobs_run(s, &opt);
}
