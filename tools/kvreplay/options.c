// SPDX-License-Identifier: Apache-2.0
#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvreplay.h"
#include "world.h"

enum {
	OPT_FORMAT = 256,
	OPT_PRIVATE,
	OPT_BOUND,
	OPT_PLOT,
	OPT_PAGE_TOKENS,
	OPT_PAGE_BYTES,
	OPT_WAIT,
	OPT_RATE
};

static const struct argp_option options[] = {
	{ "trace", 't', "FILE", 0, "the trace; - is standard input", 0 },
	{ "format", OPT_FORMAT, "NAME", 0,
	  "mooncake (JSON lines with block ids) or azure (CSV of lengths); default: by content",
	  0 },
	{ "capacity", 'c', "SIZE[,..]", 0,
	  "size of the cache: see below; more than one for a table", 0 },
	{ "policy", 'p', "NAME[,..]", 0, "lru, gittins or all (default gittins)", 0 },
	{ "engines", 'n', "N", 0,
	  "engines; request i is the (i mod N)-th engine's (default 1; azure 4)", 0 },
	{ "private", OPT_PRIVATE, NULL, 0, "each engine has its own pool, an N-th of SIZE",
	  0 },
	{ "bound", OPT_BOUND, NULL, 0,
	  "also the hits of a policy that knows the future (Belady's MIN, block by block)", 0 },
	{ "plot", OPT_PLOT, "FILE.svg", 0, "draw hit ratio against capacity", 0 },
	{ "page-tokens", OPT_PAGE_TOKENS, "N", 0, "tokens of a page (default 512)", 0 },
	{ "page-bytes", OPT_PAGE_BYTES, "SIZE", 0,
	  "bytes of a page (default 64M: 512 tokens of 128 KiB)", 0 },
	{ "decode-rate", OPT_RATE, "R", 0,
	  "azure: tokens a second a request generates (default 30)", 0 },
	{ "wait", OPT_WAIT, "SECONDS", 0,
	  "azure: how long an allocation waits before it is given up (default 10)", 0 },
	{ "json", 'j', NULL, 0, "JSON with raw numbers", 0 },
	{ 0 },
};

static const char doc[] =
	"Replay a trace of requests through kvd's memory manager, in virtual time.\v"
	"SIZE counts pages, in thousands with k, in millions with M: 5859, 10k, 1.5M. With G or T, "
	"or with B at the end, it is bytes, in powers of 1024, and divided by --page-bytes: 64G, "
	"512MB, 512MiB. The word unlimited is as much as the trace can use.\n\n"
	"A trace without block ids (azure) has nothing to hit: pages are held from a request's "
	"arrival to its end, and what is shown is who waits for them. An allocation waits in the "
	"memory manager for room that other engines have.\n\n"
	"Examples:\n"
	"  kvreplay --trace conversation.jsonl --capacity 10k --policy lru --json\n"
	"  kvreplay --trace conversation.jsonl --capacity 1k,3k,10k,30k,100k \\\n"
	"           --policy all --bound --plot hits.svg\n"
	"  kvreplay --trace conversation.jsonl --capacity 640G --engines 4 --private\n"
	"  kvreplay --trace code.csv --capacity 40 --decode-rate 20 --wait 5\n";

__attribute__((visibility("default"))) /* libc looks for it */
const char *argp_program_version = "kvreplay " KV_VERSION;

static double number(struct argp_state *state, const char *name, const char *arg, double lo,
		     double hi)
{
	char *end;
	double v = strtod(arg, &end);

	if (end == arg || *end || !(v >= lo && v <= hi))
		argp_error(state, "--%s takes a number from %.12g to %.12g, not '%s'", name, lo, hi,
			   arg);
	return v;
}

static uint32_t whole(struct argp_state *state, const char *name, const char *arg, double lo,
		      double hi)
{
	double v = number(state, name, arg, lo, hi);

	if (v != floor(v))
		argp_error(state, "--%s takes a whole number, not '%s'", name, arg);
	return (uint32_t)v;
}

static void policies(struct argp_state *state, struct kvreplay *k, const char *arg)
{
	char name[16];
	uint32_t p;
	size_t len;

	memset(k->policy, 0, sizeof(k->policy));
	for (;; arg += len + 1) {
		len = strcspn(arg, ",");
		memcpy(name, arg, len < 15 ? len : 15);
		name[len < 15 ? len : 15] = '\0';
		p = world_policy_find(name);
		if (!strcmp(name, "all"))
			memset(k->policy, true, sizeof(k->policy));
		else if (p == MM_NR_POLICIES)
			argp_error(state, "no policy '%s': lru, gittins or all", name);
		else
			k->policy[p] = true;
		if (!arg[len])
			return;
	}
}

static void capacities(struct argp_state *state, struct kvreplay *k)
{
	const char *at = k->capacity_text;
	size_t len;

	for (;; at += len + 1) {
		len = strcspn(at, ",");
		if (k->nr_capacities == KVREPLAY_MAX_CAPACITIES)
			argp_error(state, "more than %d capacities", KVREPLAY_MAX_CAPACITIES);
		if (kvreplay_capacity(at, len, k->page_bytes, &k->capacities[k->nr_capacities++]))
			argp_error(state,
				   "'%.*s' is not a capacity of one page or more, like "
				   "5859, 10k or 64G",
				   (int)len, at);
		if (!at[len])
			return;
	}
}

static bool is_svg(const char *path)
{
	size_t len = strlen(path);

	return len > 4 && !strcmp(path + len - 4, ".svg");
}

static void finish(struct argp_state *state, struct kvreplay *k)
{
	uint32_t p = 0;

	if (!k->trace_path)
		argp_error(state, "which trace? --trace FILE");
	if (!k->capacity_text)
		argp_error(state, "how large is the cache? --capacity 10k");
	if (k->plot_path && !is_svg(k->plot_path))
		argp_error(state, "--plot draws SVG: name its file *.svg, not '%s'", k->plot_path);
	capacities(state, k);
	while (p < MM_NR_POLICIES && !k->policy[p])
		p++;
	if (p == MM_NR_POLICIES)
		k->policy[world_default_policy] = true;
}

static error_t parse_page(int key, char *arg, struct argp_state *state, struct kvreplay *k)
{
	switch (key) {
	case OPT_PAGE_TOKENS:
		k->page_tokens = whole(state, "page-tokens", arg, 1, 65536);
		return 0;
	case OPT_PAGE_BYTES:
		if (kvreplay_size(arg, strlen(arg), &k->page_bytes) || k->page_bytes % 64 ||
		    k->page_bytes > 1ull << 36)
			argp_error(state, "--page-bytes takes a multiple of 64 up to 64G, not '%s'",
				   arg);
		return 0;
	case OPT_WAIT:
		k->wait_ns = (uint64_t)(number(state, "wait", arg, 0, 3600) * 1e9);
		return 0;
	case OPT_RATE:
		k->decode_rate = number(state, "decode-rate", arg, 0.001, 1e6);
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct kvreplay *k = state->input;

	switch (key) {
	case 't':
		k->trace_path = arg;
		return 0;
	case OPT_FORMAT:
		k->format = trace_format_find(arg);
		if (k->format == TRACE_NR_FORMATS)
			argp_error(state, "no format '%s': mooncake or azure", arg);
		return 0;
	case 'c':
		k->capacity_text = arg;
		return 0;
	case 'p':
		policies(state, k, arg);
		return 0;
	case 'n':
		k->nr_engines = whole(state, "engines", arg, 1, KVREPLAY_MAX_ENGINES);
		return 0;
	case OPT_PRIVATE:
		k->apart = true;
		return 0;
	case OPT_BOUND:
		k->bound = true;
		return 0;
	case OPT_PLOT:
		k->plot_path = arg;
		return 0;
	case 'j':
		k->json = true;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "what is '%s'? the trace is --trace FILE", arg);
		return 0;
	case ARGP_KEY_END:
		finish(state, k);
		return 0;
	}
	return parse_page(key, arg, state, k);
}

void kvreplay_options(struct kvreplay *k, int argc, char **argv)
{
	static const struct argp argp = { options, parse, NULL, doc, NULL, NULL, NULL };

	*k = (struct kvreplay){ .page_bytes = 64u << 20,
				.page_tokens = 512,
				.wait_ns = 10000000000ull,
				.decode_rate = 30 };
	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, k);
}
