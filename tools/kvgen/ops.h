/* SPDX-License-Identifier: Apache-2.0 */
/* ops - the arithmetic of a transformer outside attention, fp32 on the host
 *
 * Invariants: each output is computed by a fixed sequence of fp32 operations that depends on the
 *             widths only, never on how many rows are given at once: a token has the same
 *             activations in a prefill chunk as alone.
 * Context:    pure functions of their arguments; nothing may overlap unless it says so.
 * Units:      elements. (Not called math.h: that would hide the C library's.)
 * See:        tests/unit/kvgen/forward_test.c
 */
#ifndef OPS_H
#define OPS_H

#include <stdint.h>

/* out[rows][n_out] = x[rows][n_in] · w[n_out][n_in]ᵀ */
void ops_matmul(float *out, const float *x, const float *w, uint32_t rows, uint32_t n_in,
		uint32_t n_out);

/* out[n_out] = x[n_in] · w[n_in][n_out]: the other way through the same matrix */
void ops_matmul_t(float *out, const float *x, const float *w, uint32_t n_in, uint32_t n_out);

/* RMSNorm of one row; out may be x (Zhang & Sennrich, 2019). */
void ops_rmsnorm(float *out, const float *x, const float *weight, uint32_t n, float eps);

/* gate[i] = silu(gate[i]) * up[i] (SwiGLU: Shazeer, 2020) */
void ops_swiglu(float *gate, const float *up, uint32_t n);

void ops_add(float *x, const float *y, uint32_t n);

/* cos and sin of all positions: [max_pos][width / 2] pairs (cos, sin), in fp64 rounded once. */
void ops_rope_table(float *table, uint32_t max_pos, uint32_t width, float theta);

/* Rotate the adjacent pairs of one head in place; row is the table's at this position. */
void ops_rope(float *x, const float *row, uint32_t width);

/* The lowest index of the greatest value. */
uint32_t ops_argmax(const float *x, uint32_t n);

#endif
