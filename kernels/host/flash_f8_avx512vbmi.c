// SPDX-License-Identifier: Apache-2.0
/* flash_f8_avx512vbmi - contract in flash_f8.h
 *
 * e4m3 is widened by looking up the two upper bytes of the float, see widen_vbmi.inc.
 */
#ifdef __x86_64__
#include "vec_avx512.inc"
#include "widen_vbmi.inc"

/* Column of each byte after the shuffle: of 16 bytes, the words of the lower half become lane by
 * lane the vectors 0 and 1, those of the upper half 2 and 3. */
#define F8_PAIR(c) c, (c) + 16
#define F8_LANE(c) F8_PAIR(c), F8_PAIR((c) + 1), F8_PAIR((c) + 2), F8_PAIR((c) + 3)
#define F8_COLS(c) F8_LANE(c), F8_LANE((c) + 32)

static const uint8_t f8_cols[64] __attribute__((aligned(64))) = {F8_COLS(0), F8_COLS(4), F8_COLS(8),
								 F8_COLS(12)};

VEC_INLINE void f8_load4(const char *p, vec *x)
{
	__m512i e = _mm512_permutexvar_epi8(_mm512_load_si512(f8_cols), _mm512_loadu_si512(p));
	const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
	__m512i lo, hi, words;

	widen(KERN_F8, e, &lo, &hi);
	words = _mm512_unpacklo_epi8(lo, hi);
	x[0] = (vec)_mm512_slli_epi32(words, 16);
	x[1] = (vec)_mm512_and_si512(words, upper);
	words = _mm512_unpackhi_epi8(lo, hi);
	x[2] = (vec)_mm512_slli_epi32(words, 16);
	x[3] = (vec)_mm512_and_si512(words, upper);
}

#define vec_load_cols(dtype, p, x) f8_load_cols(dtype, p, x)

VEC_INLINE void f8_load_cols(uint32_t dtype, const char *p, vec *x)
{
	const size_t step = VEC_LEN * (size_t)(dtype == KERN_F32 ? 4 : 2);
	int i;

	if (dtype == KERN_F8) {
		f8_load4(p, x);
		return;
	}
	VEC_UNROLL
	for (i = 0; i < 4; i++)
		x[i] = vec_load_row(dtype, p + step * (size_t)i, VEC_LEN);
}

#define FLASH_F32_F8_ONLY
#include "flash.inc"
#include "flash_f32.inc"
#include "flash_f8.h"

void flash_f8_vbmi_run(const struct kern_attn *at, const struct kern_part *part, void *scratch)
{
	flash_f32_run(at, part, scratch);
}
#endif
