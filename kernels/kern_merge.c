// SPDX-License-Identifier: Apache-2.0
/* kern_merge - joins partial attention results; contract in kernels.h */
#include <math.h>

#include "kernels.h"

/* out may be parts[0], so that part is read before anything is added; a part without tokens is not
 * read at all, its rows may hold anything. */
static float merge_row(float *out, const float *const *parts, const float *const *lses,
		       uint32_t nr_parts, uint32_t row, uint32_t dim)
{
	float max = -INFINITY;
	bool empty = true;
	double sum = 0;
	uint32_t i, c;

	/* a NaN compares with nothing, but its part is no empty one: it has to reach the sum */
	for (i = 0; i < nr_parts; i++) {
		max = lses[i][row] > max ? lses[i][row] : max;
		empty = empty && lses[i][row] == -INFINITY;
	}
	if (!empty)
		for (i = 0; i < nr_parts; i++)
			sum += exp((double)lses[i][row] - max);
	if (!nr_parts || lses[0][row] == -INFINITY)
		for (c = 0; c < dim; c++)
			out[c] = 0;

	for (i = 0; i < nr_parts; i++) {
		const float *part = parts[i] + (size_t)row * dim;
		float weight;

		if (lses[i][row] == -INFINITY)
			continue;
		weight = (float)(exp((double)lses[i][row] - max) / sum);
		for (c = 0; c < dim; c++)
			out[c] = i ? out[c] + weight * part[c] : weight * part[c];
	}
	return empty ? -INFINITY : (float)(max + log(sum));
}

void kern_merge(float *out, float *lse, const float *const *parts, const float *const *lses,
		uint32_t nr_parts, uint32_t rows, uint32_t dim)
{
	uint32_t row;

	for (row = 0; row < rows; row++)
		lse[row] = merge_row(out + (size_t)row * dim, parts, lses, nr_parts, row, dim);
}
