/* SPDX-License-Identifier: Apache-2.0 */
/* emit - one way to show numbers: aligned tables with human units, or JSON with raw ones
 *
 * Model:      a program describes columns once (JSON key, title, kind) and hands over rows; emit
 *             prints a table (people) or collects a JSON document (--json), never both.
 * Ownership:  strings are borrowed until emit_close().
 * Context:    one thread. Errors: out of memory, or an output that cannot be
 *             written, ends the program with a line.
 */
#ifndef EMIT_H
#define EMIT_H

#include <stdbool.h>
#include <stdint.h>

enum emit_kind {
	EMIT_STR,	/* left aligned */
	EMIT_ID,	/* a number that names something: 12345, left aligned */
	EMIT_COUNT,	/* 12,345 */
	EMIT_BYTES,	/* 1.5 GiB; JSON: bytes */
	EMIT_NS,	/* 1.2 ms; JSON: nanoseconds */
	EMIT_RATIO,	/* .75; JSON: number */
	EMIT_FRACTION,	/* the same with four decimals */
	EMIT_FLOAT,	/* three significant decimals */
	EMIT_BOOL,
	EMIT_LIMIT,	/* bytes; UINT64_MAX: none, JSON null */
	EMIT_ONCE,	/* a count; UINT64_MAX: nothing, as it stands in a row above; JSON null */
};

struct emit_col {
	const char *key, *title;
	enum emit_kind kind;
};

union emit_val {
	const char *s;
	uint64_t u;
	double f;
};

struct emit;

struct emit *emit_open(bool json);
void emit_one_line(struct emit *);	/* the JSON document, for streams of them */
/* name: the JSON member; NULL only for the single table or record of a document. */
void emit_table(struct emit *, const char *name, const struct emit_col *, unsigned int nr_cols,
		const union emit_val *rows, unsigned int nr_rows);
void emit_record(struct emit *, const char *name, const struct emit_col *, unsigned int nr_cols,
		 const union emit_val *row);
void emit_null(struct emit *, const char *name);	/* a member for JSON only */
/* A line for people only. */
void emit_note(struct emit *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void emit_close(struct emit *);		/* prints the JSON document */

/* "1.5 GiB", "12,345", "1.2 ms" into buf of 32 bytes; returns buf. */
const char *emit_format(char *buf, enum emit_kind, union emit_val);

#endif
