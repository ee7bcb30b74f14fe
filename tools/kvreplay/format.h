/* SPDX-License-Identifier: Apache-2.0 */
/* format - one line of a trace file to one request; a file a format
 *
 * Model:      trace.c reads lines and hands each to the format's parser, which fills in a
 *             format_line. ids is the parser's to grow and is reused from line to line.
 * Errors:     -EINVAL with the reason in why (what is wrong, without file and line), -ENOMEM.
 */
#ifndef FORMAT_H
#define FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FORMAT_WHY_LEN 200

struct format_line {
	uint64_t at_ns;			/* on the file's own clock */
	uint32_t input_tokens, output_tokens;
	int64_t *ids;
	uint32_t nr_ids, max_ids;
	char why[FORMAT_WHY_LEN];
};

/* text has no line end and is not terminated. */
int format_mooncake(struct format_line *, const char *text, size_t len);
int format_azure(struct format_line *, const char *text, size_t len);
bool format_azure_header(const char *text, size_t len);

int format_wrong(struct format_line *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
