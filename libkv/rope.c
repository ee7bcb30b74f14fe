// SPDX-License-Identifier: Apache-2.0
/* rope - tables of rotary embeddings; contract in kv/rope.h */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <kv/rope.h>

#include "err.h"
#include "kernels.h"

static bool yarn_applies(const struct kv_rope_params *p)
{
	return p->original_positions && p->max_positions > p->original_positions;
}

static double yarn_m(double factor, double mscale)
{
	return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double softmax_factor(const struct kv_rope_params *p)
{
	double m = yarn_applies(p) ? yarn_m(p->factor, p->mscale_all_dim) : 1;

	return m * m;
}

double kv_rope_softmax_scale(const struct kv_rope_params *p, uint32_t head_dim)
{
	return softmax_factor(p) / sqrt(head_dim);
}

/* The pair that turns rotations times over the original length; fractional. */
static double yarn_pair(const struct kv_rope_params *p, double theta, double rotations)
{
	return p->dim * log(p->original_positions / (rotations * 2 * M_PI)) / (2 * log(theta));
}

/* How much of the interpolated frequency pair i takes: 0 below low, 1 from high on. */
static double yarn_ramp(const struct kv_rope_params *p, double theta, uint32_t i)
{
	double low = floor(yarn_pair(p, theta, p->beta_fast ? p->beta_fast : 32));
	double high = ceil(yarn_pair(p, theta, p->beta_slow ? p->beta_slow : 1));
	double at;

	low = low > 0 ? low : 0;
	high = high < p->dim - 1 ? high : p->dim - 1;
	if (low == high)
		high += 0.001; /* the reference code's guard against a division by 0 */
	at = (i - low) / (high - low);
	return at < 0 ? 0 : at > 1 ? 1 : at;
}

static double frequency(const struct kv_rope_params *p, uint32_t i)
{
	double theta = p->theta ? p->theta : 10000, ramp;
	double plain = pow(theta, -2.0 * i / p->dim);

	if (p->factors)
		return plain / p->factors[i];
	if (!yarn_applies(p))
		return plain;
	ramp = yarn_ramp(p, theta, i);
	return plain / p->factor * ramp + plain * (1 - ramp);
}

static int check(const struct kv_rope_params *p)
{
	uint32_t i;

	if (!p->dim || p->dim % 2 || p->dim > KERN_MAX_DIM)
		return err_set(-EINVAL, "rope: dim is %u, must be even and at most %u", p->dim,
			       KERN_MAX_DIM);
	if (p->pairing > KV_ROPE_HALVES)
		return err_set(-EINVAL, "rope: pairing is %u, must be adjacent (%d) or halves (%d)",
			       p->pairing, KV_ROPE_ADJACENT, KV_ROPE_HALVES);
	if (p->theta && !(p->theta > 1 && isfinite(p->theta)))
		return err_set(-EINVAL, "rope: theta is %g, must be above 1", p->theta);
	if (p->first >= p->max_positions || p->nr > p->max_positions - p->first)
		return err_set(-EINVAL, "rope: positions %u to %llu, but the model has %u",
			       p->first, (unsigned long long)p->first + p->nr, p->max_positions);
	if (p->original_positions && !(p->factor >= 1 && isfinite(p->factor)))
		return err_set(-EINVAL, "rope: YaRN's factor is %g, must be at least 1", p->factor);
	if (!(p->beta_fast >= 0 && p->beta_slow >= 0 && isfinite(p->mscale) &&
	      isfinite(p->mscale_all_dim)))
		return err_set(-EINVAL, "rope: a YaRN parameter is out of range");
	if (p->factors && p->original_positions)
		return err_set(-EINVAL, "rope: YaRN or factors, not both");
	for (i = 0; p->factors && i < p->dim / 2; i++)
		if (!(p->factors[i] > 0) || !isfinite(p->factors[i]))
			return err_set(-EINVAL, "rope: factor %u is %g, must be above 0", i,
				       p->factors[i]);
	return 0;
}

int kv_rope_init(struct kv_rope *r, const struct kv_rope_params *p)
{
	uint32_t half, nr, at, i;
	double scale = 1, f;
	float *cosines, *sines;
	int err;

	if (!r || !p)
		return err_set(-EINVAL, "rope: NULL");
	err = check(p);
	if (err)
		return err;
	half = p->dim / 2;
	nr = p->nr ? p->nr : p->max_positions - p->first;
	cosines = malloc(2 * sizeof(float) * half * (size_t)nr);
	if (!cosines)
		return err_set(-ENOMEM, "out of memory for rope tables of %u positions", nr);
	sines = cosines + (size_t)half * nr;
	if (yarn_applies(p))
		scale = yarn_m(p->factor, p->mscale) / yarn_m(p->factor, p->mscale_all_dim);
	for (i = 0; i < half; i++) {
		f = frequency(p, i);
		for (at = 0; at < nr; at++) {
			double angle = ((double)p->first + at) * f;

			cosines[(size_t)at * half + i] = (float)(scale * cos(angle));
			sines[(size_t)at * half + i] = (float)(scale * sin(angle));
		}
	}
	*r = (struct kv_rope){.cos = cosines,
			      .sin = sines,
			      .dim = p->dim,
			      .pairing = p->pairing,
			      .first = p->first,
			      .nr = nr,
			      .softmax = (float)softmax_factor(p)};
	return 0;
}

void kv_rope_fini(struct kv_rope *r)
{
	if (!r)
		return;
	free((void *)(uintptr_t)r->cos);
	memset(r, 0, sizeof(*r));
}

int kv_rope_apply(const struct kv_rope *r, uint32_t position, float *rows, uint32_t nr_rows,
		  uint64_t stride)
{
	const uint32_t half = r->dim / 2, step = r->pairing == KV_ROPE_HALVES ? 1 : 2;
	const uint32_t other = r->pairing == KV_ROPE_HALVES ? half : 1;
	const float *cosines, *sines;
	uint32_t i;

	if (position < r->first || position - r->first >= r->nr)
		return err_set(-EINVAL, "rope: no position %u, the tables have %u from %u on",
			       position, r->nr, r->first);
	cosines = r->cos + (size_t)(position - r->first) * half;
	sines = r->sin + (size_t)(position - r->first) * half;
	for (; nr_rows--; rows += stride) {
		for (i = 0; i < half; i++) {
			float *a = rows + i * step, *b = a + other;
			float x = *a, y = *b;

			*a = x * cosines[i] - y * sines[i];
			*b = x * sines[i] + y * cosines[i];
		}
	}
	return 0;
}
