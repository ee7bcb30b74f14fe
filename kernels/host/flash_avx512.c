// SPDX-License-Identifier: Apache-2.0
/* flash_avx512 - the host kernels for CPUs with AVX-512 F, BW, VL and DQ: one in fp32, one with the
 * bf16 products of AVX512-BF16 */
#ifdef __x86_64__
#include <immintrin.h>

#define VEC_BYTES 64
#include "vec.inc"

#include "kernels.h"

#define FLASH_MR 4 /* 4 x 4 sums, 4 rows and a query row of 32 registers */

VEC_INLINE vec vec_fma(vec a, vec b, vec c)
{
	return _mm512_fmadd_ps(a, b, c);
}

VEC_INLINE vec vec_max(vec a, vec b)
{
	return _mm512_max_ps(a, b);
}

VEC_INLINE vec vec_load_row(uint32_t dtype, const char *p, uint32_t n)
{
	__m256i h;

	if (dtype == KERN_F32)
		return n == VEC_LEN ? _mm512_loadu_ps(p)
				    : _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
	h = n == VEC_LEN ? _mm256_loadu_si256((const __m256i *)(const void *)p)
			 : _mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p);
	if (dtype == KERN_F16)
		return _mm512_cvtph_ps(h);
	return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
}

VEC_INLINE veci vec_load_words(const char *p, uint32_t n)
{
	return (veci)(n == 2 * VEC_LEN ? _mm512_loadu_si512(p) :
		      _mm512_maskz_loadu_epi32((__mmask16)((1u << n / 2) - 1), p));
}

VEC_INLINE void vec_sum4(const vec *v, float *out)
{
	__m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
	__m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
	__m512 abcd = _mm512_add_ps((__m512)_mm512_unpacklo_pd((__m512d)ab, (__m512d)cd),
				    (__m512)_mm512_unpackhi_pd((__m512d)ab, (__m512d)cd));
	__m256 half = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));

	_mm_storeu_ps(out,
		      _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

#include "flash.inc"
#include "flash_f32.inc"
#include "flash_bf16_avx512.inc"

static bool usable(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
	       kern_ops_avx2.usable();
}

static bool fast(const struct kern_attn *at)
{
	(void)at;
	return true;
}

const struct kern_ops kern_ops_avx512 = {
	.splits = true,
	.usable = usable,
	.preferred = usable,
	.fast = fast,
	.scratch = flash_scratch,
	.run = flash_f32_run,
};

/* Other queries would have to be rounded to bf16 first: they take the exact way. */
static bool bf16_fast(const struct kern_attn *at)
{
	return at->view.dtype == KERN_BF16 && at->q_dtype == KERN_BF16;
}

static void bf16_run(const struct kern_attn *at, const struct kern_part *part, void *scratch)
{
	if (bf16_fast(at))
		flash_run(at, &flash_dp, part, scratch);
	else
		flash_f32_run(at, part, scratch);
}

static bool bf16_usable(void)
{
	return usable() && __builtin_cpu_supports("avx512bf16");
}

/* Zen 4 and 5 retire one or two vdpbf16ps a cycle. Intel's cores up to Sapphire Rapids take
 * between two and three cycles for one, in which two fp32 FMAs a cycle do more. */
static bool bf16_preferred(void)
{
	return bf16_usable() && __builtin_cpu_is("amd");
}

const struct kern_ops kern_ops_avx512_bf16 = {
	.splits = true,
	.usable = bf16_usable,
	.preferred = bf16_preferred,
	.fast = bf16_fast,
	.scratch = flash_scratch,
	.run = bf16_run,
};
#endif
