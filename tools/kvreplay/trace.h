/* SPDX-License-Identifier: Apache-2.0 */
/* trace - a request trace in memory, whatever format it came in
 *
 * Model:      requests in file order, each with the blocks of its prompt. A block is what a prefix
 *             cache keeps: its index stands for (the block before it, the id in the file), so equal
 *             indices are equal prefixes even where a file uses an id twice. Formats without ids
 *             have no blocks, only lengths.
 *             Times count from the first request and never go back: a line with an earlier time
 *             than the one before it happens at that one's.
 * Ownership:  trace_free() frees what trace_read() made; also after an error.
 * Units:      ns, tokens.  Limits: TRACE_MAX_LINE bytes a line, TRACE_MAX_BLOCKS blocks a request,
 *             TRACE_MAX_TOKENS tokens each way, 2^32 - 2 blocks.
 * Errors:     -errno, with a line for people in *why that names file and line.
 */
#ifndef TRACE_H
#define TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_MAX_LINE	 (16u << 20)
#define TRACE_MAX_BLOCKS (1u << 18)
#define TRACE_MAX_TOKENS (1u << 30)
#define TRACE_MAX_NS	 (1ull << 61)
#define TRACE_WHY_LEN	 512

enum trace_format {
	TRACE_DETECT,
	TRACE_MOONCAKE,		/* JSON lines with a hash id for each block */
	TRACE_AZURE,		/* CSV: time, prompt tokens, generated tokens */
	TRACE_NR_FORMATS,
};

struct trace_request {
	uint64_t at_ns;
	uint64_t first_block;	/* in trace.blocks */
	uint32_t nr_blocks;
	uint32_t input_tokens, output_tokens;
};

struct trace {
	const char *path;
	enum trace_format format;
	struct trace_request *requests;
	uint32_t nr_requests;
	uint32_t *blocks;
	uint64_t nr_blocks;
	uint32_t nr_distinct;	/* blocks are 0 .. nr_distinct - 1 */
	uint32_t max_blocks;	/* of one request */
};

#define TRACE_NR_GAPS	26

/* Times between two uses of the same block: gaps[0] under 1 s, gaps[k] in [2^(k-1), 2^k) s. */
struct trace_gaps {
	uint64_t count[TRACE_NR_GAPS];
	unsigned int nr;	/* buckets up to the last one with something in it */
};

/* path "-": standard input. A line must have as many blocks as its input has pages of page_tokens;
 * 0: any number. */
int trace_read(struct trace *, const char *path, enum trace_format, uint32_t page_tokens,
	       char why[TRACE_WHY_LEN]);
void trace_free(struct trace *);
uint64_t trace_end_ns(const struct trace *);	/* when the last request comes */
int trace_gaps(const struct trace *, struct trace_gaps *);

const char *trace_format_name(enum trace_format);
enum trace_format trace_format_find(const char *name);	/* TRACE_NR_FORMATS: none */

#endif
