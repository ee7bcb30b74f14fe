/* SPDX-License-Identifier: Apache-2.0 */
/* blas - dense products by oneDNN, loaded when the first one is wanted
 *
 * Model:      a blas_mm is y[m][n] = sum_k x[m][k] * w, for one m, n, k and dtype of x and w; y is
 *             fp32 and dense. Its weights are either packed (the BLAS's own order, made once by
 *             blas_pack() from an mm with packed set) or plain (any two strides).
 *             All packed mms of one n, k, dtype and strides take the same packed weights.
 * Invariants: one thread: the number of OpenMP threads is set for the calling thread and for the
 *             length of one call only.
 * Ownership:  an mm belongs to its creator and is read only; memory belongs to callers.
 * Context:    any thread; blas_run() on one mm by several at once.
 * Errors:     -EOPNOTSUPP: no oneDNN on this system, or a product it does not have on this CPU
 *             (bf16 below AVX-512); -EIO: it failed. err_set() has the text.
 * See:        docs/decisions/0004-blas.md
 */
#ifndef BLAS_H
#define BLAS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct blas_mm;

struct blas_shape {
	uint32_t m, n, k;
	uint32_t dtype;		/* KV_F32 or KV_BF16, of x and w */
	uint64_t w_n, w_k;	/* strides of plain weights, in elements; one of them is 1 */
	bool packed;
	const struct blas_mm *like; /* packed: take the weights of this one; NULL: the first */
};

int blas_mm_create(const struct blas_shape *, struct blas_mm **);
void blas_mm_destroy(struct blas_mm *); /* NULL is allowed */

size_t blas_weight_bytes(const struct blas_mm *);
size_t blas_scratch_bytes(const struct blas_mm *); /* of one blas_run(); 64-byte aligned */

int blas_pack(const struct blas_mm *, const void *plain, void *packed);

/* x is dense, [m][k] of the dtype; y [m][n]. All 64-byte aligned, please. */
int blas_run(const struct blas_mm *, const void *x, const void *w, float *y, void *scratch);

#endif
