// SPDX-License-Identifier: Apache-2.0
/* JSON lines: {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [..]}; members
 * beyond these are allowed, as traces of the family have some. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "format.h"
#include "trace.h"

static int get_tokens(struct format_line *l, const json_t *o, const char *key, uint32_t *tokens)
{
	const json_t *v = json_object_get(o, key);

	if (!v)
		return format_wrong(l, "no \"%s\"", key);
	if (!json_is_integer(v) || json_integer_value(v) < 0 ||
	    json_integer_value(v) > TRACE_MAX_TOKENS)
		return format_wrong(l, "\"%s\" is not a whole number from 0 to %u", key,
				    TRACE_MAX_TOKENS);
	*tokens = (uint32_t)json_integer_value(v);
	return 0;
}

static int get_time(struct format_line *l, const json_t *o)
{
	const json_t *v = json_object_get(o, "timestamp");
	double ms;

	if (!v)
		return format_wrong(l, "no \"timestamp\"");
	ms = json_number_value(v);
	if (!json_is_number(v) || !(ms >= 0) || ms * 1e6 > (double)TRACE_MAX_NS)
		return format_wrong(l, "\"timestamp\" is not a number of milliseconds from 0 on");
	l->at_ns = json_is_integer(v) ? (uint64_t)json_integer_value(v) * 1000000u
				      : (uint64_t)llround(ms * 1e6);
	return 0;
}

static int get_ids(struct format_line *l, const json_t *o)
{
	const json_t *ids = json_object_get(o, "hash_ids"), *v;
	size_t i, nr = json_array_size(ids);
	int64_t *more;

	if (!json_is_array(ids))
		return format_wrong(l, ids ? "\"hash_ids\" is not an array" : "no \"hash_ids\"");
	if (nr > TRACE_MAX_BLOCKS)
		return format_wrong(l, "%zu hash_ids: more than %u", nr, TRACE_MAX_BLOCKS);
	if (nr > l->max_ids) {
		more = realloc(l->ids, nr * sizeof(*more));
		if (!more)
			return -ENOMEM;
		l->ids = more;
		l->max_ids = (uint32_t)nr;
	}
	for (i = 0; i < nr; i++) {
		v = json_array_get(ids, i);
		if (!json_is_integer(v))
			return format_wrong(l, "hash_ids[%zu] is not a whole number", i);
		l->ids[i] = json_integer_value(v);
	}
	l->nr_ids = (uint32_t)nr;
	return 0;
}

int format_mooncake(struct format_line *l, const char *text, size_t len)
{
	json_error_t e;
	json_t *o = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
	int err;

	if (!o)
		return format_wrong(l, "column %d: %s", e.column, e.text);
	err = json_is_object(o) ? get_time(l, o) : format_wrong(l, "not a JSON object");
	if (!err)
		err = get_tokens(l, o, "input_length", &l->input_tokens);
	if (!err)
		err = get_tokens(l, o, "output_length", &l->output_tokens);
	if (!err)
		err = get_ids(l, o);
	json_decref(o);
	return err;
}
