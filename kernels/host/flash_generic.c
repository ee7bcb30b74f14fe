// SPDX-License-Identifier: Apache-2.0
/* flash_generic - the host kernel for any CPU: 16-byte vectors of the compiler, no intrinsics */
#define VEC_BYTES 16
#include "vec.inc"

#include "kernels.h"

#define FLASH_MR 4
#define FLASH_NK 2
#define FLASH_NC 2

typedef uint16_t vec_u16 __attribute__((vector_size(8)));
typedef uint8_t vec_u8 __attribute__((vector_size(4)));
typedef int8_t vec_i8 __attribute__((vector_size(4)));

VEC_INLINE vec vec_fma(vec a, vec b, vec c)
{
	return a * b + c;
}

VEC_INLINE vec vec_max(vec a, vec b)
{
	return vec_select((veci)(a > b), a, b);
}

VEC_INLINE vec vec_from_f16(vecu h)
{
	vecu mag = (h & 0x7fff) << 13;
	/* the multiplication moves the exponent's bias and normalises subnormals */
	vecu bits = (vecu)((vec)mag * vec_set(0x1p112f));

	bits |= (vecu)(mag >= 0x7c00u << 13) & 0x7f800000;
	return (vec)(bits | (h & 0x8000) << 16);
}

VEC_INLINE vec vec_load_byte_row(uint32_t dtype, const char *p)
{
	vec_u8 e;

	memcpy(&e, p, sizeof(e));
	if (dtype == KERN_F8)
		return vec_from_f8(__builtin_convertvector(e, vecu));
	return __builtin_convertvector((vec_i8)e, vec);
}

VEC_INLINE vec vec_load_row(uint32_t dtype, const char *p, uint32_t n)
{
	vec_u16 h;
	vecu wide;

	(void)n;
	if (dtype == KERN_F8 || dtype == KERN_I8)
		return vec_load_byte_row(dtype, p);
	if (dtype == KERN_F32)
		return vec_load((const float *)(const void *)p);
	memcpy(&h, p, sizeof(h));
	wide = __builtin_convertvector(h, vecu);
	return dtype == KERN_BF16 ? (vec)(wide << 16) : vec_from_f16(wide);
}

VEC_INLINE float vec_sum(vec v)
{
	return v[0] + v[1] + v[2] + v[3];
}

VEC_INLINE float vec_top(vec v)
{
	float a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];

	return a > b ? a : b;
}

VEC_INLINE veci vec_load_words(const char *p, uint32_t n)
{
	veci words;

	(void)n; /* rows are multiples of 8 */
	memcpy(&words, p, sizeof(words));
	return words;
}

VEC_INLINE void vec_sum4(const vec *v, float *out)
{
	int i;

	VEC_UNROLL
	for (i = 0; i < 4; i++)
		out[i] = vec_sum(v[i]);
}

#include "flash.inc"
#include "flash_f32.inc"

static bool usable(void)
{
	return true;
}

static bool fast(const struct kern_attn *at)
{
	(void)at;
	return false;
}

const struct kern_ops kern_ops_generic = {
	.splits = true,
	.usable = usable,
	.preferred = usable,
	.fast = fast,
	.scratch = flash_scratch,
	.run = flash_f32_run,
};
