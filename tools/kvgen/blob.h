/* SPDX-License-Identifier: Apache-2.0 */
/* blob - a whole file in memory, and a reader that cannot leave it
 *
 * Model:      blob_read() takes a regular file of at most max bytes; a FIFO, a device or a
 *             directory is refused without blocking. A cut is a bounded view: cut_take() hands out
 *             the next n bytes or NULL, and after a NULL every further take is NULL too.
 * Ownership:  blob_free() frees data; a cut borrows the bytes it was made from.
 * Units:      bytes; integers and floats in files are little-endian.
 * Errors:     -EINVAL not a regular file, empty or too big; errno of open and read. The fault
 *             names the file.      See: tests/unit/kvgen/model_test.c
 */
#ifndef BLOB_H
#define BLOB_H

#include <stddef.h>
#include <stdint.h>

#include "fault.h"

struct blob {
	uint8_t *data;
	size_t len;
};

struct cut {
	const uint8_t *at;
	size_t left;
	int broken;	/* a take went past the end */
};

int blob_read(struct blob *, const char *path, size_t max, struct fault *);
void blob_free(struct blob *);

const uint8_t *cut_take(struct cut *, size_t n);
uint32_t cut_u32(struct cut *);	/* 0 past the end, see broken */
float cut_f32(struct cut *);

#endif
