/* SPDX-License-Identifier: Apache-2.0 */
#include "ops.h"

#include <math.h>
#include <string.h>

/* Eight lanes whatever the CPU has: lane count and reduction tree fix the order of additions. */
typedef float vec8 __attribute__((vector_size(32), aligned(4), may_alias));

static float dot(const float *a, const float *b, uint32_t n)
{
	vec8 s0 = { 0 }, s1 = { 0 };
	uint32_t i = 0;
	float sum;

	for (; i + 16 <= n; i += 16) {
		s0 += *(const vec8 *)(a + i) * *(const vec8 *)(b + i);
		s1 += *(const vec8 *)(a + i + 8) * *(const vec8 *)(b + i + 8);
	}
	s0 += s1;
	sum = ((s0[0] + s0[4]) + (s0[1] + s0[5])) + ((s0[2] + s0[6]) + (s0[3] + s0[7]));
	for (; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

void ops_matmul(float *out, const float *x, const float *w, uint32_t rows, uint32_t n_in,
		uint32_t n_out)
{
	/* Weights outside, rows inside: a weight is read from memory once for all rows. */
	for (uint32_t o = 0; o < n_out; o++)
		for (uint32_t r = 0; r < rows; r++)
			out[(size_t)r * n_out + o] =
				dot(x + (size_t)r * n_in, w + (size_t)o * n_in, n_in);
}

void ops_matmul_t(float *out, const float *x, const float *w, uint32_t n_in, uint32_t n_out)
{
	memset(out, 0, n_out * sizeof(*out));
	for (uint32_t i = 0; i < n_in; i++)
		for (uint32_t o = 0; o < n_out; o++)
			out[o] += x[i] * w[(size_t)i * n_out + o];
}

void ops_rmsnorm(float *out, const float *x, const float *weight, uint32_t n, float eps)
{
	float scale = 1.0f / sqrtf(dot(x, x, n) / (float)n + eps);

	for (uint32_t i = 0; i < n; i++)
		out[i] = weight[i] * (scale * x[i]);
}

void ops_swiglu(float *gate, const float *up, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

void ops_add(float *x, const float *y, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		x[i] += y[i];
}

void ops_rope_table(float *table, uint32_t max_pos, uint32_t width, float theta)
{
	for (uint32_t i = 0; i < width / 2; i++) {
		double freq = pow((double)theta, -2.0 * i / width);

		for (uint32_t pos = 0; pos < max_pos; pos++) {
			float *pair = table + ((size_t)pos * (width / 2) + i) * 2;

			pair[0] = (float)cos(pos * freq);
			pair[1] = (float)sin(pos * freq);
		}
	}
}

void ops_rope(float *x, const float *row, uint32_t width)
{
	for (uint32_t i = 0; i + 1 < width; i += 2) {
		float a = x[i], b = x[i + 1];

		x[i] = a * row[i] - b * row[i + 1];
		x[i + 1] = a * row[i + 1] + b * row[i];
	}
}

uint32_t ops_argmax(const float *x, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++)
		if (x[i] > x[best])
			best = i;
	return best;
}
