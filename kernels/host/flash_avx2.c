// SPDX-License-Identifier: Apache-2.0
/* flash_avx2 - the host kernel for CPUs with AVX2, FMA and F16C; all arithmetic in fp32 */
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>

#define VEC_BYTES 32
#include "vec.inc"

#include "kernels.h"

/* 4 x 2 sums, 2 words and their halves leave 4 of the 16 registers */
#define FLASH_MR 4
#define FLASH_NK 2
#define FLASH_NC 2

VEC_INLINE vec vec_fma(vec a, vec b, vec c)
{
	return _mm256_fmadd_ps(a, b, c);
}

VEC_INLINE vec vec_max(vec a, vec b)
{
	return _mm256_max_ps(a, b);
}

VEC_INLINE vec vec_load_byte_row(uint32_t dtype, const char *p)
{
	__m128i b = _mm_loadl_epi64((const __m128i *)(const void *)p);

	if (dtype == KERN_I8)
		return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b));
	return vec_from_f8((vecu)_mm256_cvtepu8_epi32(b));
}

VEC_INLINE vec vec_load_row(uint32_t dtype, const char *p, uint32_t n)
{
	__m128i h;

	(void)n; /* rows are multiples of 8 */
	if (dtype == KERN_F32)
		return _mm256_loadu_ps((const float *)(const void *)p);
	if (dtype == KERN_F8 || dtype == KERN_I8)
		return vec_load_byte_row(dtype, p);
	h = _mm_loadu_si128((const __m128i *)(const void *)p);
	if (dtype == KERN_F16)
		return _mm256_cvtph_ps(h);
	return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16);
}

VEC_INLINE float vec_sum(vec v)
{
	__m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

	s = _mm_add_ps(s, _mm_movehl_ps(s, s));
	return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

VEC_INLINE float vec_top(vec v)
{
	__m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

	m = _mm_max_ps(m, _mm_movehl_ps(m, m));
	return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

VEC_INLINE veci vec_load_words(const char *p, uint32_t n)
{
	if (n == 2 * VEC_LEN)
		return (veci)_mm256_loadu_si256((const __m256i *)(const void *)p);
	return (veci)_mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p));
}

VEC_INLINE void vec_sum4(const vec *v, float *out)
{
	__m256 ab = _mm256_hadd_ps(v[0], v[1]);
	__m256 cd = _mm256_hadd_ps(v[2], v[3]);
	__m256 abcd = _mm256_hadd_ps(ab, cd);

	_mm_storeu_ps(out,
		      _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
}

/* Moved up by 7 bits, e4m3 is a half of 2^-8 its value, subnormals included; NaN alone is not. */
VEC_INLINE void f8_load2(const char *p, vec *x)
{
	__m256i e = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
	__m256i h = _mm256_and_si256(_mm256_slli_epi16(e, 7), _mm256_set1_epi16((short)0xbfff));
	__m256i mag = _mm256_and_si256(h, _mm256_set1_epi16(0x7fff));

	h = _mm256_or_si256(h, _mm256_cmpeq_epi16(mag, _mm256_set1_epi16(0x3f80)));
	x[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(h)) * vec_set(256);
	x[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)) * vec_set(256);
}

#define vec_load_cols(dtype, p, x) avx2_load_cols(dtype, p, x)

VEC_INLINE void avx2_load_cols(uint32_t dtype, const char *p, vec *x)
{
	const size_t step =
		VEC_LEN * (size_t)(dtype == KERN_F32 ? 4 : dtype == KERN_I8 ? 1 : 2);

	if (dtype == KERN_F8) {
		f8_load2(p, x);
		return;
	}
	x[0] = vec_load_row(dtype, p, VEC_LEN);
	x[1] = vec_load_row(dtype, p + step, VEC_LEN);
}

/* A shuffle where a shift would do: shifts take turns with multiplications. */
#define vec_even(words) avx2_even(words)

VEC_INLINE vec avx2_even(veci words)
{
	const __m256i up = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12,
					    13, -1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1,
					    12, 13);

	return (vec)_mm256_shuffle_epi8((__m256i)words, up);
}

#include "flash.inc"
#include "flash_f32.inc"

static bool usable(void)
{
	unsigned int a, b, c, d;

	/* __builtin_cpu_supports() also asks whether the system saves the registers; clang's does
	 * not know f16c */
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
	       __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}

static bool fast(const struct kern_attn *at)
{
	(void)at;
	return true;
}

const struct kern_ops kern_ops_avx2 = {
	.splits = true,
	.usable = usable,
	.preferred = usable,
	.fast = fast,
	.scratch = flash_scratch,
	.run = flash_f32_run,
};
#endif
