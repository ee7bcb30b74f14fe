/* SPDX-License-Identifier: Apache-2.0 */
/* err - the one line a failing call leaves behind, per thread (kv_error())
 *
 * Context: any thread; never allocates. Text beyond ERR_TEXT_BYTES is cut.
 */
#ifndef ERR_H
#define ERR_H

#define ERR_TEXT_BYTES 512

/* Remembers the text and returns err (negative errno): callers `return err_set(...)`. */
int err_set(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
