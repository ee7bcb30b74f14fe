/* SPDX-License-Identifier: Apache-2.0 */
/* kern_quant - rows of elements to and from fp32, with a scale
 *
 * Model:      element = value / scale on the way in, value = element * scale on the way out; every
 *             dtype with elements of one size. Plain loops, one a dtype, that the compiler turns
 *             into vectors of the least CPU it may assume.
 * Invariants: narrowing is kern_num's, bit for bit.
 * Ownership:  the caller's memory; no alignment is needed.
 * Units:      n in elements.
 * Context:    internal to kernels/.
 */
#ifndef KERN_QUANT_H
#define KERN_QUANT_H

#include <stdint.h>

/* max |element| over the finite ones */
float kern_quant_max(const float *src, uint32_t n);

/* The scale that makes max the largest number of a dtype: max / 448 (int8: / 127), 1 for 0, and
 * never so small that dividing by it leaves the range of fp32. */
float kern_quant_scale(uint32_t dtype, float max);

void kern_quant_put(uint32_t dtype, void *dst, const float *src, uint32_t n, float scale);
void kern_quant_get(uint32_t dtype, float *dst, const void *src, uint32_t n, float scale);

#endif
