// SPDX-License-Identifier: Apache-2.0
/* CSV with the header TIMESTAMP,ContextTokens,GeneratedTokens:
 * 2023-11-16 18:17:03.9799600,4808,10 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "format.h"
#include "trace.h"

#define HEADER	  "TIMESTAMP,ContextTokens,GeneratedTokens"
#define LINE_MAX_ 128

bool format_azure_header(const char *text, size_t len)
{
	return len == strlen(HEADER) && !memcmp(text, HEADER, len);
}

static bool digits(const char **s, unsigned int most, uint64_t *v)
{
	const char *from = *s;

	for (*v = 0; **s >= '0' && **s <= '9' && *s - from < (ptrdiff_t)most; (*s)++)
		*v = *v * 10 + (uint64_t)(**s - '0');
	return *s > from && !(**s >= '0' && **s <= '9');
}

/* A fraction of up to nine digits, and a time zone of +00:00 or Z, as later traces write it. */
static bool tail_of_time(const char **s, uint64_t *ns)
{
	const char *from;
	uint64_t v = 0;

	*ns = 0;
	if (**s == '.') {
		from = ++*s;
		if (!digits(s, 9, &v))
			return false;
		for (ptrdiff_t n = *s - from; n < 9; n++)
			v *= 10;
		*ns = v;
	}
	if (**s == 'Z')
		(*s)++;
	else if (!strncmp(*s, "+00:00", 6))
		*s += 6;
	return true;
}

static bool get_time(const char **s, uint64_t *ns)
{
	struct tm tm = { 0 };
	uint64_t frac;
	int n = 0;
	time_t t;

	if (sscanf(*s, "%4d-%2d-%2d%*1[ T]%2d:%2d:%2d%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
		   &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &n) < 6 ||
	    !n)
		return false;
	*s += n;
	if (tm.tm_year < 1970 || tm.tm_year > 2038 || tm.tm_mon < 1 || tm.tm_mon > 12 ||
	    tm.tm_mday < 1 || tm.tm_mday > 31 || tm.tm_hour < 0 || tm.tm_hour > 23 ||
	    tm.tm_min < 0 || tm.tm_min > 59 || tm.tm_sec < 0 || tm.tm_sec > 60)
		return false;
	tm.tm_year -= 1900;
	tm.tm_mon--;
	t = timegm(&tm);
	if (t < 0 || !tail_of_time(s, &frac))
		return false;
	*ns = (uint64_t)t * 1000000000u + frac;
	return true;
}

static int get_tokens(struct format_line *l, const char **s, const char *what, uint32_t *tokens)
{
	uint64_t v;

	if (**s != ',')
		return format_wrong(l, "no %s", what);
	(*s)++;
	if (!digits(s, 10, &v) || v > TRACE_MAX_TOKENS)
		return format_wrong(l, "%s is not a whole number from 0 to %u", what,
				    TRACE_MAX_TOKENS);
	*tokens = (uint32_t)v;
	return 0;
}

int format_azure(struct format_line *l, const char *text, size_t len)
{
	char line[LINE_MAX_];
	const char *s = line;
	int err;

	if (len >= sizeof(line) || memchr(text, 0, len))
		return format_wrong(l, "not a line of %s", HEADER);
	memcpy(line, text, len);
	line[len] = '\0';
	if (!get_time(&s, &l->at_ns))
		return format_wrong(l, "no time like 2023-11-16 18:17:03.9799600 in front");
	err = get_tokens(l, &s, "ContextTokens", &l->input_tokens);
	if (!err)
		err = get_tokens(l, &s, "GeneratedTokens", &l->output_tokens);
	if (!err && *s)
		err = format_wrong(l, "more than the columns %s", HEADER);
	l->nr_ids = 0;
	return err;
}
