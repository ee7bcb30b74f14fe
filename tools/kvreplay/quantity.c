// SPDX-License-Identifier: Apache-2.0
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvreplay.h"

#define MAX_QUANTITY 0x1p62

/* A number, and the unit behind it. */
static int split(const char *text, size_t len, double *v, char unit[8])
{
	char buf[40], *end;
	size_t i;

	if (!len || len >= sizeof(buf) || !(isdigit((unsigned char)*text) || *text == '.'))
		return -EINVAL;
	memcpy(buf, text, len);
	buf[len] = '\0';
	if (strpbrk(buf, "xXpPnN")) /* strtod knows more numbers than people write */
		return -EINVAL;
	*v = strtod(buf, &end);
	if (end == buf || strlen(end) >= 8 || !(*v > 0))
		return -EINVAL;
	for (i = 0; i <= strlen(end); i++)
		unit[i] = (char)toupper((unsigned char)end[i]);
	return 0;
}

/* Bytes a unit stands for; 0: it is none. K and M alone are left to the caller. */
static double unit_bytes(const char *unit)
{
	static const char *const scale = "KMGT";
	const char *at = *unit ? strchr(scale, *unit) : NULL;

	if (!strcmp(unit, "B"))
		return 1;
	if (!at || (unit[1] && strcmp(unit + 1, "B") && strcmp(unit + 1, "IB")))
		return 0;
	return exp2(10.0 * (double)(at - scale + 1));
}

int kvreplay_size(const char *text, size_t len, uint64_t *bytes)
{
	char unit[8];
	double v;
	int err = split(text, len, &v, unit);

	if (err)
		return err;
	if (*unit)
		v *= unit_bytes(unit);
	if (!(v >= 1) || v > MAX_QUANTITY)
		return -EINVAL;
	*bytes = (uint64_t)v;
	return 0;
}

int kvreplay_capacity(const char *text, size_t len, uint64_t page_bytes, uint64_t *pages)
{
	char unit[8];
	double v;
	int err;

	if (len == 9 && !memcmp(text, "unlimited", 9)) {
		*pages = UINT64_MAX;
		return 0;
	}
	err = split(text, len, &v, unit);
	if (err)
		return err;
	if (!*unit || !strcmp(unit, "K") || !strcmp(unit, "M"))
		v *= *unit == 'K' ? 1e3 : *unit == 'M' ? 1e6 : 1;
	else
		v = floor(v * unit_bytes(unit)) / (double)page_bytes;
	if (!(v >= 1) || v > MAX_QUANTITY)
		return -EINVAL;
	*pages = (uint64_t)v;
	return 0;
}
