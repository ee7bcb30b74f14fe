// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format.h"
#include "intern.h"
#include "trace.h"

struct reader {
	struct trace *trace;
	FILE *file;
	char *line;
	size_t len, max; /* of line, without its end */
	uint64_t nr_lines;
	struct intern intern;
	struct format_line parsed;
	uint32_t max_requests;
	uint64_t max_blocks;
	uint32_t page_tokens;
	uint64_t first_ns; /* the file's clock at our 0 */
	char *why;
};

static const char *const names[TRACE_NR_FORMATS] = {
	[TRACE_DETECT] = "detect",
	[TRACE_MOONCAKE] = "mooncake",
	[TRACE_AZURE] = "azure",
};

const char *trace_format_name(enum trace_format f)
{
	return names[f];
}

enum trace_format trace_format_find(const char *name)
{
	unsigned int f;

	for (f = TRACE_MOONCAKE; f < TRACE_NR_FORMATS; f++)
		if (!strcmp(names[f], name))
			break;
	return f;
}

/* ---- what went wrong ----------------------------------------------------------------------- */

int format_wrong(struct format_line *l, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(l->why, sizeof(l->why), fmt, ap);
	va_end(ap);
	return -EINVAL;
}

/* The file's words may be in it: only printable ones reach a terminal. */
static int wrong_line(struct reader *r, const char *what)
{
	char *c;

	snprintf(r->why, TRACE_WHY_LEN, "%.200s:%llu: %s", r->trace->path,
		 (unsigned long long)r->nr_lines, what);
	for (c = r->why; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	return -EINVAL;
}

static int wrong_file(struct reader *r, const char *what)
{
	snprintf(r->why, TRACE_WHY_LEN, "%.200s: %s", r->trace->path, what);
	return -EINVAL;
}

static int no_memory(struct reader *r)
{
	wrong_file(r, "out of memory");
	return -ENOMEM;
}

/* ---- lines --------------------------------------------------------------------------------- */

static int line_grow(struct reader *r)
{
	size_t max = r->max ? 2 * r->max : 4096;
	char *line;

	if (max > TRACE_MAX_LINE) {
		char what[64];

		snprintf(what, sizeof(what), "a line longer than %u bytes", TRACE_MAX_LINE);
		return wrong_line(r, what);
	}
	line = realloc(r->line, max);
	if (!line)
		return no_memory(r);
	r->line = line;
	r->max = max;
	return 0;
}

/* 1: a line; 0: the end. Lines end in LF or CR LF. */
static int read_line(struct reader *r)
{
	int c, err;

	r->len = 0;
	r->nr_lines++;
	while ((c = getc_unlocked(r->file)) != EOF && c != '\n') {
		if (r->len == r->max) {
			err = line_grow(r);
			if (err)
				return err;
		}
		r->line[r->len++] = (char)c;
	}
	if (ferror(r->file)) {
		int e = errno;

		wrong_file(r, strerror(e));
		return -e;
	}
	if (r->len && r->line[r->len - 1] == '\r')
		r->len--;
	return c != EOF || r->len;
}

static bool blank(const struct reader *r)
{
	size_t i;

	for (i = 0; i < r->len && strchr(" \t", r->line[i]) && r->line[i]; i++)
		;
	return i == r->len;
}

/* ---- requests ------------------------------------------------------------------------------ */

static bool grow(void **array, uint64_t nr, uint64_t *max, size_t size)
{
	uint64_t more = *max ? *max : 1024;
	void *p;

	if (nr <= *max)
		return true;
	while (more < nr)
		more *= 2;
	p = realloc(*array, more * size);
	if (!p)
		return false;
	*array = p;
	*max = more;
	return true;
}

static int add_blocks(struct reader *r)
{
	const struct format_line *l = &r->parsed;
	struct trace *t = r->trace;
	uint32_t i, at = INTERN_ROOT;

	if (t->nr_blocks + l->nr_ids > UINT32_MAX - 1)
		return wrong_line(r, "more than 4294967294 blocks");
	if (!grow((void **)&t->blocks, t->nr_blocks + l->nr_ids, &r->max_blocks,
		  sizeof(*t->blocks)))
		return no_memory(r);
	for (i = 0; i < l->nr_ids; i++) {
		at = intern_get(&r->intern, at, l->ids[i]);
		if (at == INTERN_FULL)
			return no_memory(r);
		t->blocks[t->nr_blocks++] = at;
	}
	t->nr_distinct = r->intern.nr;
	if (l->nr_ids > t->max_blocks)
		t->max_blocks = l->nr_ids;
	return 0;
}

static int check_blocks(struct reader *r)
{
	const struct format_line *l = &r->parsed;
	uint64_t want = r->page_tokens ?
			(l->input_tokens + r->page_tokens - 1ull) / r->page_tokens : l->nr_ids;
	char what[120];

	if (r->trace->format != TRACE_MOONCAKE || l->nr_ids == want)
		return 0;
	snprintf(what, sizeof(what), "%u hash_ids, but \"input_length\" %u is %llu pages of %u "
		 "tokens: see --page-tokens", l->nr_ids, l->input_tokens,
		 (unsigned long long)want, r->page_tokens);
	return wrong_line(r, what);
}

static int add_request(struct reader *r)
{
	const struct format_line *l = &r->parsed;
	struct trace *t = r->trace;
	struct trace_request *rq;
	uint64_t max = r->max_requests, before;
	int err;

	if (t->nr_requests == UINT32_MAX - 1)
		return wrong_line(r, "more than 4294967294 requests");
	if (!grow((void **)&t->requests, t->nr_requests + 1ull, &max, sizeof(*rq)))
		return no_memory(r);
	r->max_requests = (uint32_t)(max < UINT32_MAX ? max : UINT32_MAX);
	if (!t->nr_requests)
		r->first_ns = l->at_ns;
	before = t->nr_requests ? t->requests[t->nr_requests - 1].at_ns : 0;
	rq = &t->requests[t->nr_requests];
	*rq = (struct trace_request){ .at_ns = l->at_ns > r->first_ns + before
						       ? l->at_ns - r->first_ns
						       : before,
				      .first_block = t->nr_blocks,
				      .nr_blocks = l->nr_ids,
				      .input_tokens = l->input_tokens,
				      .output_tokens = l->output_tokens };
	err = add_blocks(r);
	t->nr_requests += !err;
	return err;
}

static int detect(struct reader *r)
{
	struct trace *t = r->trace;

	if (t->format != TRACE_DETECT)
		return 0;
	if (format_azure_header(r->line, r->len))
		t->format = TRACE_AZURE;
	else if (r->len && r->line[strspn(r->line, " \t")] == '{')
		t->format = TRACE_MOONCAKE;
	else
		return wrong_line(r, "neither a JSON object nor the header of an azure trace: "
				     "say --format");
	return 0;
}

static int parse(struct reader *r, bool first)
{
	int err;

	if (r->trace->format == TRACE_AZURE && first) {
		if (!format_azure_header(r->line, r->len))
			return wrong_line(r, "the first line of an azure trace is "
					     "TIMESTAMP,ContextTokens,GeneratedTokens");
		return 0;
	}
	err = r->trace->format == TRACE_AZURE ? format_azure(&r->parsed, r->line, r->len)
					      : format_mooncake(&r->parsed, r->line, r->len);
	if (err == -ENOMEM)
		return no_memory(r);
	if (err)
		return wrong_line(r, r->parsed.why);
	err = check_blocks(r);
	return err ? err : add_request(r);
}

static int read_all(struct reader *r)
{
	bool first = true;
	int more, err;

	while ((more = read_line(r)) > 0) {
		/* The terminator is for strspn in detect(). */
		if (blank(r))
			continue;
		err = r->len == r->max ? line_grow(r) : 0;
		if (err)
			return err;
		r->line[r->len] = '\0';
		err = detect(r);
		if (!err)
			err = parse(r, first);
		if (err)
			return err;
		first = false;
	}
	if (!more && !r->trace->nr_requests)
		return wrong_file(r, "no request in it");
	return more;
}

int trace_read(struct trace *t, const char *path, enum trace_format format, uint32_t page_tokens,
	       char why[TRACE_WHY_LEN])
{
	struct reader r = { .trace = t, .page_tokens = page_tokens, .why = why };
	int err;

	*t = (struct trace){ .path = path, .format = format };
	r.file = strcmp(path, "-") ? fopen(path, "re") : stdin;
	if (!r.file) {
		err = errno;
		wrong_file(&r, strerror(err));
		return -err;
	}
	err = read_all(&r);
	if (r.file != stdin)
		fclose(r.file);
	free(r.line);
	free(r.parsed.ids);
	intern_free(&r.intern);
	return err;
}

void trace_free(struct trace *t)
{
	free(t->requests);
	free(t->blocks);
	*t = (struct trace){ 0 };
}

uint64_t trace_end_ns(const struct trace *t)
{
	return t->nr_requests ? t->requests[t->nr_requests - 1].at_ns : 0;
}

/* ---- reuse --------------------------------------------------------------------------------- */

static unsigned int bucket_of(uint64_t gap_ns)
{
	uint64_t s = gap_ns / 1000000000u;
	unsigned int k = s ? 64 - (unsigned int)__builtin_clzll(s) : 0;

	return k < TRACE_NR_GAPS ? k : TRACE_NR_GAPS - 1;
}

int trace_gaps(const struct trace *t, struct trace_gaps *g)
{
	uint64_t *last = malloc((t->nr_distinct + 1ull) * sizeof(*last)), i;
	const struct trace_request *rq;
	uint32_t k;

	*g = (struct trace_gaps){ 0 };
	if (!last)
		return -ENOMEM;
	memset(last, 0xff, (t->nr_distinct + 1ull) * sizeof(*last));
	for (k = 0; k < t->nr_requests; k++) {
		rq = &t->requests[k];
		for (i = rq->first_block; i < rq->first_block + rq->nr_blocks; i++) {
			uint64_t *seen = &last[t->blocks[i]];

			if (*seen != UINT64_MAX)
				g->count[bucket_of(rq->at_ns - *seen)]++;
			*seen = rq->at_ns;
		}
	}
	for (k = 0; k < TRACE_NR_GAPS; k++)
		if (g->count[k])
			g->nr = k + 1;
	free(last);
	return 0;
}
