/* SPDX-License-Identifier: Apache-2.0 */
#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>
#include <kv/kv.h>
#include "engine.h"
#include "tokenizer.h"

#define DEFAULT_TOKENS	256u
#define DEFAULT_CONNECT "embedded:host:256M"

struct args {
	struct engine_options opt;
	const char *prompt, *prompt_file;
	uint32_t steps;
	uint32_t delay_ms;
	bool stats;
};

struct stats {
	uint32_t prompt_tokens, hit, generated, pages;
	double seconds;
	const char *attention;
};

enum {
	KEY_ATTN = 256,
	KEY_DTYPE,
	KEY_CONNECT,
	KEY_STATS,
	KEY_PAGE,
	KEY_FILE,
	KEY_WAIT,
	KEY_NAME,
	KEY_DELAY
};

static const struct argp_option options[] = {
	{ "model", 'm', "FILE", 0, "a .kvm model or a llama2.c v0 checkpoint", 0 },
	{ "tokenizer", 't', "FILE", 0, "llama2.c tokenizer.bin (a .kvm has its own inside)", 0 },
	{ "prompt", 'p', "TEXT", 0, "what to continue (default: nothing)", 0 },
	{ "prompt-file", KEY_FILE, "FILE", 0, "the prompt, from a file", 0 },
	{ "tokens", 'n', "N", 0, "stop after N tokens, the prompt's included (default 256)", 0 },
	{ "attn", KEY_ATTN, "gqa|mla", 0,
	  "mla: run a GQA model through the MLA path, exactly (default: the model's own)", 0 },
	{ "cache-dtype", KEY_DTYPE, "f32|f16|bf16|f8|i8|f8_ds", 0,
	  "element type of the cache (default f32)", 0 },
	{ "page-tokens", KEY_PAGE, "N", 0, "tokens a page holds (default 64)", 0 },
	{ "connect", KEY_CONNECT, "SPEC", 0,
	  "unix:PATH of kvd, or embedded:host:SIZE (default embedded:host:256M)", 0 },
	{ "wait", KEY_WAIT, "MS", 0, "wait this long for room in the pool (default 0)", 0 },
	{ "name", KEY_NAME, "NAME", 0, "what kvctl calls this engine", 0 },
	{ "pace", KEY_DELAY, "MS", 0, "pause after each generated token, to watch", 0 },
	{ "stats", KEY_STATS, NULL, 0, "one JSON line to stderr at the end", 0 },
	{ 0 },
};

static uint32_t number(struct argp_state *state, const char *what, const char *arg,
		       unsigned long max)
{
	char *end;
	unsigned long v = strtoul(arg, &end, 10);

	if (end == arg || *end || *arg == '-' || v > max)
		argp_error(state, "%s takes a number up to %lu, not '%s'", what, max, arg);
	return (uint32_t)v;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct args *a = state->input;

	switch (key) {
	case 'm':
		a->opt.model = arg;
		return 0;
	case 't':
		a->opt.tokenizer = arg;
		return 0;
	case 'p':
		a->prompt = arg;
		return 0;
	case KEY_FILE:
		a->prompt_file = arg;
		return 0;
	case 'n':
		a->steps = number(state, "--tokens", arg, 1u << 20);
		return 0;
	case KEY_ATTN:
		if (strcmp(arg, "gqa") && strcmp(arg, "mla"))
			argp_error(state, "--attn is gqa or mla, not '%s'", arg);
		a->opt.as_mla = !strcmp(arg, "mla");
		return 0;
	case KEY_DTYPE:
		if (kv_dtype_parse(arg, &a->opt.cache_dtype))
			argp_error(state,
				   "--cache-dtype is f32, f16, bf16, f8, i8 or f8_ds, not '%s'",
				   arg);
		return 0;
	case KEY_PAGE:
		a->opt.page_tokens = number(state, "--page-tokens", arg, 65536);
		return 0;
	case KEY_CONNECT:
		a->opt.connect = arg;
		return 0;
	case KEY_WAIT:
		a->opt.wait_ms = number(state, "--wait", arg, 3600000);
		return 0;
	case KEY_NAME:
		a->opt.name = arg;
		return 0;
	case KEY_DELAY:
		a->delay_ms = number(state, "--pace", arg, 60000);
		return 0;
	case KEY_STATS:
		a->stats = true;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "what is '%s'? a prompt is given with --prompt", arg);
		return 0;
	case ARGP_KEY_END:
		if (!a->opt.model)
			argp_error(state, "which model? --model FILE");
		if (a->prompt && a->prompt_file)
			argp_error(state, "--prompt or --prompt-file, not both");
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

__attribute__((visibility("default"))) /* libc looks for it */
const char *argp_program_version = "kvgen " KV_VERSION;

static const char doc[] =
	"Continue a text with a small language model whose KV cache lives in a kvd pool. The text "
	"goes "
	"to standard output and nothing else does. Greedy decoding.\v"
	"Examples:\n"
	"  kvgen --model tools/kvgen/models/stories-mha.kvm --prompt 'One day'\n"
	"  kvgen --model m.kvm --connect unix:/run/kvd/kvd.sock --stats\n"
	"  kvgen --model stories260K.bin --tokenizer tok512.bin -n 200 --attn mla\n";

/* A whole file as a string; -errno with a line printed. */
static int read_file(const char *path, char **text, size_t *len)
{
	FILE *f = fopen(path, "rb");
	char *buf = malloc(TOKENIZER_MAX_TEXT + 1);
	int err = 0;

	if (!f || !buf) {
		err = f ? -ENOMEM : -errno;
		fprintf(stderr, "kvgen: prompt file '%s': %s\n", path, strerror(-err));
	} else {
		*len = fread(buf, 1, TOKENIZER_MAX_TEXT + 1, f);
		if (ferror(f)) {
			err = -EIO;
			fprintf(stderr, "kvgen: prompt file '%s' cannot be read: is it a file?\n",
				path);
		} else if (*len > TOKENIZER_MAX_TEXT) {
			err = -E2BIG;
			fprintf(stderr,
				"kvgen: prompt file '%s' has more than %u bytes: shorten it\n",
				path, TOKENIZER_MAX_TEXT);
		}
	}
	if (f)
		fclose(f);
	if (err)
		free(buf);
	else
		*text = buf;
	return err;
}

static int encode(const struct engine *e, const struct args *a, uint32_t **ids, uint32_t *n)
{
	const char *text = a->prompt ? a->prompt : "";
	size_t len = strlen(text);
	char *file = NULL;
	int got, err;

	if (a->prompt_file) {
		err = read_file(a->prompt_file, &file, &len);
		if (err)
			return err;
		text = file;
	}
	*ids = malloc((len + 3) * sizeof(**ids));
	got = *ids ? tokenizer_encode(engine_tokenizer(e), text, len, true, *ids, (uint32_t)len + 3)
		   : -ENOMEM;
	free(file);
	if (got < 0) {
		fprintf(stderr, "kvgen: the prompt cannot be encoded: %s (at most %u bytes)\n",
			strerror(-got), TOKENIZER_MAX_TEXT);
		return got;
	}
	*n = (uint32_t)got;
	return 0;
}

/* False when the text has ended or nobody reads it any more. */
static bool say(const struct engine *e, uint32_t prev, uint32_t id)
{
	const uint8_t *piece;
	size_t len;

	if (id == TOKENIZER_BOS || id == TOKENIZER_EOS)
		return false;
	len = tokenizer_piece(engine_tokenizer(e), prev, id, &piece);
	return fwrite(piece, 1, len, stdout) == len && fflush(stdout) == 0;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void pace(uint32_t ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000l };

	if (ms)
		nanosleep(&t, NULL);
}

static int complain(int err)
{
	fprintf(stderr, "kvgen: %s\n", engine_error());
	return err;
}

/* 0, or -errno with a line printed. */
static int generate(struct engine *e, const struct args *a, const uint32_t *ids, uint32_t n,
		    struct stats *st)
{
	uint32_t steps = a->steps, said = 0, id, prev;
	struct run *r;
	int err;

	if (n > engine_max_tokens(e)) {
		fprintf(stderr,
			"kvgen: the prompt has %u tokens, the model takes at most %u: shorten it\n",
			n, engine_max_tokens(e));
		return -E2BIG;
	}
	if (steps > engine_max_tokens(e))
		steps = engine_max_tokens(e);
	if (n > steps + 1) {
		fprintf(stderr, "kvgen: note: -n %u ends inside the prompt of %u tokens\n",
			steps, n);
		n = steps + 1;
	}
	st->prompt_tokens = n;
	/* A last token that is only said needs no place. */
	err = run_start(e, ids, n > 1 && n > steps ? n - 1 : n, &st->hit, &r);
	if (err)
		return complain(err);
	st->seconds = now(); /* of generation, the prompt apart */
	for (; said + 1 < n; said++)
		if (!say(e, ids[said], ids[said + 1]))
			break;
	prev = ids[n - 1];
	while (said < steps && !err) {
		id = run_next(r, NULL, NULL);
		st->generated++;
		if (!say(e, prev, id))
			break;
		pace(a->delay_ms);
		if (++said < steps)
			err = run_push(r, id);
		prev = id;
	}
	st->seconds = now() - st->seconds;
	st->pages = run_pages(r);
	run_end(r);
	putchar('\n');
	if (fflush(stdout) || ferror(stdout)) {
		fputs("kvgen: standard output cannot be written: disk full or closed?\n", stderr);
		return -EIO;
	}
	return err ? complain(err) : 0;
}

static void report(const struct stats *st)
{
	json_t *o = json_pack("{s:i, s:i, s:i, s:i, s:f, s:s}", "prompt_tokens", st->prompt_tokens,
			      "prefix_hit_tokens", st->hit, "generated_tokens", st->generated,
			      "pages_held", st->pages, "tokens_per_second",
			      st->seconds > 0 ? st->generated / st->seconds : 0.0, "attention",
			      st->attention);

	json_dumpf(o, stderr, JSON_REAL_PRECISION(6));
	fputc('\n', stderr);
	json_decref(o);
}

int main(int argc, char **argv)
{
	static const struct argp argp = { options, parse, NULL, doc, NULL, NULL, NULL };
	struct args a = { .opt = { .connect = DEFAULT_CONNECT,
				   .name = "kvgen",
				   .cache_dtype = KV_F32,
				   .page_tokens = 64 },
			  .steps = DEFAULT_TOKENS };
	struct stats st = { 0 };
	uint32_t *ids = NULL, n;
	struct engine *e;
	int err;

	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, &a);
	if (engine_open(&e, &a.opt)) {
		fprintf(stderr, "kvgen: %s\n", engine_error());
		return 1;
	}
	err = encode(e, &a, &ids, &n);
	if (!err) {
		err = generate(e, &a, ids, n, &st);
		st.attention = engine_attention(e);
		if (!err && a.stats)
			report(&st);
	}
	free(ids);
	engine_close(e);
	return err ? 1 : 0;
}
