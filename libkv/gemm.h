/* SPDX-License-Identifier: Apache-2.0 */
/* gemm - a weight matrix cut into blocks of outputs, and products of any number of rows with it
 *
 * Model:      y[row][group][n] = sum_k x[row][group][k] * w[group][n][k]. groups is 1 for a plain
 *             layer; a group is a head where every head has a matrix of its own. The outputs of a
 *             group are cut into equal blocks of about 1 MiB of weights: an item, the unit that
 *             threads share. Rows go through a block in tiles of a few fixed sizes, padded,
 *             so the products the BLAS must know are made once, by gemm_create().
 *             bf16 weights meet inputs rounded to bf16 where the CPU multiplies those; elsewhere a
 *             block is widened when it is used.
 * Invariants: blocks do not depend on the number of threads, and with row_tile tiles do not depend
 *             on the number of rows: then y is the same to the bit.
 * Ownership:  a gemm owns its copy of the weights and is read only; scratch is the caller's and
 *             64-byte aligned.
 * Context:    any thread; a gemm by several at once.
 * Units:      strides in elements.
 * Errors:     blas.h's, -ENOMEM
 */
#ifndef GEMM_H
#define GEMM_H

#include <stddef.h>
#include <stdint.h>

#define GEMM_MAX_TILE 64u

struct gemm;

struct gemm_weights {
	uint32_t n, k, groups;
	uint32_t dtype; /* KV_F32 or KV_BF16 */
	const void *data;
	uint64_t group_stride, n_stride, k_stride; /* n_stride or k_stride is 1 */
	uint32_t row_tile;			   /* 0: tiles as they fit */
};

/* Rows of activations; of x they are read, of y written. */
struct gemm_rows {
	const void *data;
	uint32_t dtype; /* KV_F32 or KV_BF16 */
	uint64_t row_stride, group_stride;
};

int gemm_create(const struct gemm_weights *, struct gemm **);
void gemm_destroy(struct gemm *); /* NULL is allowed */
uint64_t gemm_bytes(const struct gemm *);

/* On the calling thread and those of libkv's own that are free (threads.h). scratch is
 * gemm_scratch_bytes(); what an item needs is its thread's (scratch.h). */
size_t gemm_scratch_bytes(const struct gemm *, uint32_t rows);
int gemm_run(const struct gemm *, uint32_t rows, const struct gemm_rows *x,
	     const struct gemm_rows *y, void *scratch);

/* n elements between fp32 and bf16; rounds to nearest even, NaN stays NaN. */
void gemm_convert(uint32_t to_dtype, void *to, uint32_t from_dtype, const void *from, size_t n);

#endif
