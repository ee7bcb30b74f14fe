// SPDX-License-Identifier: Apache-2.0
#include <stdarg.h>
#include <stdio.h>
#include <kv/pool.h>
#include "err.h"

static _Thread_local char text[ERR_TEXT_BYTES] = "no error";

int err_set(int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return err;
}

const char *kv_error(void)
{
	return text;
}
