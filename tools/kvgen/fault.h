/* SPDX-License-Identifier: Apache-2.0 */
/* fault - the one line that tells a person what is wrong with a file, and the way out
 *
 * Ownership: the caller's struct, usually on its stack; never NULL.
 * Context:   allocates nothing; text beyond FAULT_TEXT_BYTES is cut.
 */
#ifndef FAULT_H
#define FAULT_H

#define FAULT_TEXT_BYTES 512

struct fault {
	char text[FAULT_TEXT_BYTES];
};

/* Writes the text and returns err (negative errno), so that callers can `return fault_set(...)`. */
int fault_set(struct fault *, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
