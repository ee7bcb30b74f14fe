/* SPDX-License-Identifier: Apache-2.0 */
/* kern_num - IEEE half and bfloat16 to and from float, one value at a time
 *
 * Model:      pure integer arithmetic on the bits, so it is the same on every machine and under
 *             every rounding or flush-to-zero mode.
 * Invariants: widening is exact, subnormals included; narrowing rounds to nearest even, overflows
 *             to infinity, keeps a NaN a (quiet) NaN and the sign always.
 * See:        tests/unit/kernels/rows_test.c (every half, every tie)
 */
#ifndef KERN_NUM_H
#define KERN_NUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels.h"

static inline float kern_num_float(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static inline uint32_t kern_num_bits(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

static inline float kern_num_from_bf16(uint16_t h)
{
	return kern_num_float((uint32_t)h << 16);
}

static inline uint16_t kern_num_to_bf16(float f)
{
	uint32_t x = kern_num_bits(f);

	if ((x & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(x >> 16 | 0x40); /* rounding could carry a NaN into infinity */
	return (uint16_t)((x + 0x7fff + (x >> 16 & 1)) >> 16);
}

static inline float kern_num_from_f16(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16;
	uint32_t mag = h & 0x7fff;
	int shift;

	if (mag >= 0x7c00)
		return kern_num_float(sign | 0x7f800000 | (mag & 0x3ff) << 13);
	if (mag >= 0x400)
		return kern_num_float(sign | ((mag << 13) + (112u << 23)));
	if (!mag)
		return kern_num_float(sign);
	/* subnormal: move its leading one up to the implicit bit */
	shift = __builtin_clz(mag) - 21;
	return kern_num_float(sign | ((113u - (uint32_t)shift) << 23) |
			      ((mag << shift & 0x3ff) << 13));
}

static inline uint16_t kern_num_to_f16(float f)
{
	uint32_t x = kern_num_bits(f);
	uint32_t mag = x & 0x7fffffff;
	uint16_t sign = (uint16_t)(x >> 16 & 0x8000);
	uint32_t m, shift, half, h;

	if (mag > 0x7f800000)
		return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x1ff));
	if (mag >= 0x477ff000) /* 65520: the tie above the largest half */
		return sign | 0x7c00;
	if (mag >= 0x38800000) { /* normal: a carry may step the exponent */
		h = mag - (112u << 23) + 0xfff + (mag >> 13 & 1);
		return (uint16_t)(sign | h >> 13);
	}
	if (mag < 0x33000000) /* below half of the smallest subnormal */
		return sign;
	m = (mag & 0x7fffff) | 0x800000;
	shift = 126 - (mag >> 23); /* 14 .. 24 */
	h = m >> shift;
	half = m & ((1u << shift) - 1);
	h += half > 1u << (shift - 1) || (half == 1u << (shift - 1) && h & 1);
	return (uint16_t)(sign | h);
}

/* Element i of an array of a dtype. The array needs no alignment. */
static inline float kern_num_get(uint32_t dtype, const void *p, size_t i)
{
	uint16_t h;
	float f;

	if (dtype == KERN_F32) {
		memcpy(&f, (const char *)p + i * 4, sizeof(f));
		return f;
	}
	memcpy(&h, (const char *)p + i * 2, sizeof(h));
	return dtype == KERN_F16 ? kern_num_from_f16(h) : kern_num_from_bf16(h);
}

static inline void kern_num_put(uint32_t dtype, void *p, size_t i, float f)
{
	uint16_t h;

	if (dtype == KERN_F32) {
		memcpy((char *)p + i * 4, &f, sizeof(f));
		return;
	}
	h = dtype == KERN_F16 ? kern_num_to_f16(f) : kern_num_to_bf16(f);
	memcpy((char *)p + i * 2, &h, sizeof(h));
}

#endif
