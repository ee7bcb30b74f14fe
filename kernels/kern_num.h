/* SPDX-License-Identifier: Apache-2.0 */
/* kern_num - half, bfloat16, e4m3 and int8 to and from float, one value at a time
 *
 * Model:      pure integer arithmetic on the bits, so it is the same on every machine and under
 *             every rounding or flush-to-zero mode.
 * Invariants: widening is exact, subnormals included; narrowing rounds to nearest even, overflows
 *             to infinity (e4m3 and int8 have none: they saturate), keeps a NaN a (quiet) NaN
 *             (int8: 0) and the sign always. To 8 bits without a branch, so that loops become
 *             vectors.
 * See:        tests/unit/kernels/num_test.c (every half and e4m3, every tie)
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

static inline float kern_num_from_f8(uint8_t e)
{
	uint32_t sign = (uint32_t)(e & 0x80) << 24, mag = e & 0x7f;
	uint32_t bits = mag < 8 ? kern_num_bits((float)mag * 0x1p-9f) : (mag << 20) + (120u << 23);

	return kern_num_float(sign | (mag == 0x7f ? 0x7fc00000 : bits));
}

static inline uint8_t kern_num_to_f8(float f)
{
	const uint32_t unit = 118u << 23; /* 2^-9, the smallest subnormal */
	int32_t mag = (int32_t)(kern_num_bits(f) & 0x7fffffff);
	int32_t top = mag < 0x43e00000 ? mag : 0x43e00000; /* 448 */
	int32_t normal = (top - (120 << 23) + 0x7ffff + (top >> 20 & 1)) >> 20;
	/* below 2^-6: how many of the middles between multiples of 2^-9 lie under it; the even
	 * neighbour of a middle takes it */
	int32_t small = (mag > (int32_t)unit - 0x800000) + (mag >= (int32_t)unit + 0x400000) +
			(mag > (int32_t)unit + 0xa00000) + (mag >= (int32_t)unit + 0xe00000) +
			(mag > (int32_t)unit + 0x1100000) + (mag >= (int32_t)unit + 0x1300000) +
			(mag > (int32_t)unit + 0x1500000) + (mag >= (int32_t)unit + 0x1700000);
	int32_t e = mag < 0x3c800000 ? small : normal;

	e = mag > 0x7f800000 ? 0x7f : e;
	return (uint8_t)(e | (int32_t)(kern_num_bits(f) >> 24 & 0x80));
}

/* The addition rounds as the CPU is set to: to nearest even, where nobody changed it. */
static inline int8_t kern_num_to_i8(float f)
{
	float x = f == f ? f : 0;

	x = x > 127 ? 127 : x;
	x = x < -127 ? -127 : x;
	return (int8_t)(kern_num_bits(x + 12582912.0f) & 0xff);
}

/* Element i of an array of a dtype. The array needs no alignment. */
static inline float kern_num_get(uint32_t dtype, const void *p, size_t i)
{
	uint16_t h;
	float f;

	if (dtype == KERN_F8)
		return kern_num_from_f8(((const uint8_t *)p)[i]);
	if (dtype == KERN_I8)
		return ((const int8_t *)p)[i];
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

	if (dtype == KERN_F8) {
		((uint8_t *)p)[i] = kern_num_to_f8(f);
		return;
	}
	if (dtype == KERN_I8) {
		((int8_t *)p)[i] = kern_num_to_i8(f);
		return;
	}
	if (dtype == KERN_F32) {
		memcpy((char *)p + i * 4, &f, sizeof(f));
		return;
	}
	h = dtype == KERN_F16 ? kern_num_to_f16(f) : kern_num_to_bf16(f);
	memcpy((char *)p + i * 2, &h, sizeof(h));
}

#endif
