/* SPDX-License-Identifier: Apache-2.0 */
#include "emit.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct emit {
	json_t *root; /* NULL: people */
	bool printed, one_line;
};

static void *must(void *p)
{
	if (!p) {
		fputs("out of memory\n", stderr);
		exit(1);
	}
	return p;
}

struct emit *emit_open(bool json)
{
	struct emit *e = must(calloc(1, sizeof(*e)));

	if (json)
		e->root = must(json_object());
	return e;
}

void emit_one_line(struct emit *e)
{
	e->one_line = true;
}

static const char *format_scaled(char *buf, double v, const char *const *units, double step)
{
	unsigned int i = 0;

	while (v >= step && units[i + 1]) {
		v /= step;
		i++;
	}
	if (i == 0 && v == floor(v))
		snprintf(buf, 32, "%.0f %s", v, units[0]);
	else
		snprintf(buf, 32, "%.1f %s", v, units[i]);
	return buf;
}

static const char *format_count(char *buf, uint64_t v)
{
	char digits[24];
	int n = snprintf(digits, sizeof(digits), "%" PRIu64, v), o = 0, i;

	for (i = 0; i < n; i++) {
		if (i && (n - i) % 3 == 0)
			buf[o++] = ',';
		buf[o++] = digits[i];
	}
	buf[o] = '\0';
	return buf;
}

const char *emit_format(char *buf, enum emit_kind kind, union emit_val v)
{
	static const char *const bytes[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", NULL };
	static const char *const ns[] = { "ns", "us", "ms", "s", NULL };

	switch (kind) {
	case EMIT_STR:
		return v.s ? v.s : "-";
	case EMIT_ID:
		snprintf(buf, 32, "%" PRIu64, v.u);
		return buf;
	case EMIT_COUNT:
		return format_count(buf, v.u);
	case EMIT_BYTES:
		return format_scaled(buf, (double)v.u, bytes, 1024);
	case EMIT_NS:
		return format_scaled(buf, (double)v.u, ns, 1000);
	case EMIT_RATIO:
	case EMIT_FRACTION:
	case EMIT_FLOAT:
		if (isnan(v.f))
			return "-";
		snprintf(buf, 32, kind == EMIT_RATIO ? "%.3f" :
				  kind == EMIT_FRACTION ? "%.4f" : "%.3g", v.f);
		return buf;
	case EMIT_BOOL:
		return v.u ? "yes" : "no";
	case EMIT_LIMIT:
		return v.u == UINT64_MAX ? "none" : format_scaled(buf, (double)v.u, bytes, 1024);
	case EMIT_ONCE:
		return v.u == UINT64_MAX ? "" : format_count(buf, v.u);
	}
	return "?";
}

static json_t *to_json(enum emit_kind kind, union emit_val v)
{
	switch (kind) {
	case EMIT_STR:
		return v.s ? json_string(v.s) : json_null();
	case EMIT_RATIO:
	case EMIT_FRACTION:
	case EMIT_FLOAT:
		return isnan(v.f) ? json_null() : json_real(v.f);
	case EMIT_BOOL:
		return json_boolean(v.u);
	case EMIT_LIMIT:
	case EMIT_ONCE:
		return v.u == UINT64_MAX ? json_null() : json_integer((json_int_t)v.u);
	default:
		return json_integer((json_int_t)v.u);
	}
}

static json_t *row_json(const struct emit_col *cols, unsigned int nr, const union emit_val *row)
{
	json_t *o = must(json_object());
	unsigned int i;

	for (i = 0; i < nr; i++)
		json_object_set_new(o, cols[i].key, to_json(cols[i].kind, row[i]));
	return o;
}

static void add(struct emit *e, const char *name, json_t *value)
{
	if (name) {
		json_object_set_new(e->root, name, value);
		return;
	}
	json_decref(e->root);
	e->root = value;
}

/* Columns are as wide as the characters (not bytes) of their widest cell. */
static int width(const char *s)
{
	int n = 0;

	for (; *s; s++)
		n += ((unsigned char)*s & 0xc0) != 0x80;
	return n;
}

static void cell(const char *s, int w, bool left, bool last)
{
	int pad = w - width(s);

	if (left)
		printf("%s%*s", s, last ? 0 : pad, "");
	else
		printf("%*s%s", pad, "", s);
	fputs(last ? "\n" : "  ", stdout);
}

static bool left_aligned(const struct emit_col *col)
{
	return col->kind == EMIT_STR || col->kind == EMIT_ID;
}

static void table_text(const struct emit_col *cols, unsigned int nc, const union emit_val *rows,
		       unsigned int nr)
{
	int *w = must(calloc(nc, sizeof(*w)));
	unsigned int r, c;
	char buf[32];

	for (c = 0; c < nc; c++)
		w[c] = width(cols[c].title);
	for (r = 0; r < nr; r++)
		for (c = 0; c < nc; c++) {
			int n = width(emit_format(buf, cols[c].kind, rows[r * nc + c]));

			w[c] = n > w[c] ? n : w[c];
		}
	for (c = 0; c < nc; c++)
		cell(cols[c].title, w[c], left_aligned(&cols[c]), c + 1 == nc);
	for (r = 0; r < nr; r++)
		for (c = 0; c < nc; c++)
			cell(emit_format(buf, cols[c].kind, rows[r * nc + c]), w[c],
			     left_aligned(&cols[c]), c + 1 == nc);
	free(w);
}

void emit_table(struct emit *e, const char *name, const struct emit_col *cols, unsigned int nr_cols,
		const union emit_val *rows, unsigned int nr_rows)
{
	unsigned int r;
	json_t *a;

	if (!e->root) {
		if (e->printed)
			putchar('\n');
		table_text(cols, nr_cols, rows, nr_rows);
		e->printed = true;
		return;
	}
	a = must(json_array());
	for (r = 0; r < nr_rows; r++)
		json_array_append_new(a, row_json(cols, nr_cols, rows + r * nr_cols));
	add(e, name, a);
}

void emit_record(struct emit *e, const char *name, const struct emit_col *cols,
		 unsigned int nr_cols, const union emit_val *row)
{
	unsigned int c;
	char buf[32];
	int w = 0;

	if (e->root) {
		add(e, name, row_json(cols, nr_cols, row));
		return;
	}
	if (e->printed)
		putchar('\n');
	e->printed = true;
	for (c = 0; c < nr_cols; c++)
		w = width(cols[c].title) > w ? width(cols[c].title) : w;
	for (c = 0; c < nr_cols; c++)
		printf("%s:%*s  %s\n", cols[c].title, w - width(cols[c].title), "",
		       emit_format(buf, cols[c].kind, row[c]));
}

void emit_null(struct emit *e, const char *name)
{
	if (e->root)
		add(e, name, must(json_null()));
}

void emit_note(struct emit *e, const char *fmt, ...)
{
	va_list ap;

	if (e->root)
		return;
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	e->printed = true;
}

void emit_close(struct emit *e)
{
	if (e->root) {
		json_dumpf(e->root, stdout,
			   JSON_REAL_PRECISION(12) | (e->one_line ? JSON_COMPACT : JSON_INDENT(2)));
		putchar('\n');
		json_decref(e->root);
	}
	free(e);
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "%s: standard output cannot be written: disk full or closed?\n",
			program_invocation_short_name);
		exit(1);
	}
}
