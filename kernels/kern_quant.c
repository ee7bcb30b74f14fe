// SPDX-License-Identifier: Apache-2.0
/* kern_quant - contract in kern_quant.h */
#include <string.h>

#include "kern_num.h"
#include "kern_quant.h"

/* As integers, because that order has neither NaN nor rounding modes. */
float kern_quant_max(const float *src, uint32_t n)
{
	int32_t max = 0;
	uint32_t i;

	for (i = 0; i < n; i++) {
		int32_t mag = (int32_t)(kern_num_bits(src[i]) & 0x7fffffff);

		mag = mag < 0x7f800000 ? mag : 0;
		max = mag > max ? mag : max;
	}
	return kern_num_float((uint32_t)max);
}

float kern_quant_scale(uint32_t dtype, float max)
{
	float scale = max / (dtype == KERN_I8 ? 127 : 448);

	if (!(max > 0))
		return 1;
	return scale < 0x1p-126f ? 0x1p-126f : scale;
}

void kern_quant_put(uint32_t dtype, void *dst, const float *src, uint32_t n, float scale)
{
	uint8_t *to = dst;
	uint32_t i;

	if (dtype == KERN_F32)
		memcpy(dst, src, (size_t)n * sizeof(*src));
	else if (dtype == KERN_BF16)
		for (i = 0; i < n; i++)
			kern_num_put(KERN_BF16, dst, i, src[i]);
	else if (dtype == KERN_F16)
		for (i = 0; i < n; i++)
			kern_num_put(KERN_F16, dst, i, src[i]);
	else if (dtype == KERN_F8)
		for (i = 0; i < n; i++)
			to[i] = kern_num_to_f8(src[i] / scale);
	else
		for (i = 0; i < n; i++)
			to[i] = (uint8_t)kern_num_to_i8(src[i] / scale);
}

void kern_quant_get(uint32_t dtype, float *dst, const void *src, uint32_t n, float scale)
{
	uint32_t i;

	if (dtype == KERN_F32)
		memcpy(dst, src, (size_t)n * sizeof(*dst));
	else if (dtype == KERN_F16)
		for (i = 0; i < n; i++)
			dst[i] = kern_num_get(KERN_F16, src, i);
	else if (dtype == KERN_BF16)
		for (i = 0; i < n; i++)
			dst[i] = kern_num_get(KERN_BF16, src, i);
	else if (dtype == KERN_F8)
		for (i = 0; i < n; i++)
			dst[i] = kern_num_get(KERN_F8, src, i) * scale;
	else
		for (i = 0; i < n; i++)
			dst[i] = kern_num_get(KERN_I8, src, i) * scale;
}
