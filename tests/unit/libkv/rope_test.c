// SPDX-License-Identifier: Apache-2.0
/* kv_rope tables and softmax scales against the formulas and against published models. */
#include <errno.h>
#include <math.h>

#include "pool_test.h"

/* deepseek-ai/DeepSeek-V3: theta 1e4, factor 40 over 4096, beta 32 and 1, 64 elements. */
static const struct kv_rope_params v3 = {.dim = 64, .theta = 1e4, .max_positions = 163840, .nr = 8,
					 .original_positions = 4096, .factor = 40, .beta_fast = 32,
					 .beta_slow = 1, .mscale = 1, .mscale_all_dim = 1};

static void near(double got, double want, double limit)
{
	if (!(fabs(got - want) <= limit))
		fail_msg("%.9g is not %.9g +- %g", got, want, limit);
}

static void softmax_scales(void **state)
{
	struct kv_rope_params v2 = v3, k2 = v3, minicpm3, glm5, plain = v3, own_v2 = v3;

	(void)state;
	v2.mscale = v2.mscale_all_dim = 0.707;
	k2.theta = 5e4;
	k2.factor = 32;
	k2.beta_fast = k2.beta_slow = 1;
	k2.max_positions = 131072;
	minicpm3 = (struct kv_rope_params){.dim = 32, .max_positions = 32768};
	glm5 = (struct kv_rope_params){.dim = 64, .theta = 1e6, .max_positions = 202752};
	near(kv_rope_softmax_scale(&v3, 192), 0.135234, 5e-7);
	near(kv_rope_softmax_scale(&v2, 192), 0.114721, 5e-7);
	near(kv_rope_softmax_scale(&k2, 192), 0.130861, 5e-7);
	near(kv_rope_softmax_scale(&minicpm3, 96), 0.102062, 5e-7);
	near(kv_rope_softmax_scale(&glm5, 256), 0.0625, 1e-12);
	/* the configured maximum decides, once: at the original length there is no YaRN */
	plain.max_positions = 4096;
	near(kv_rope_softmax_scale(&plain, 192), 1 / sqrt(192), 1e-12);
	plain.max_positions = 4097;
	near(kv_rope_softmax_scale(&plain, 192), 0.135234, 5e-7);
	/* a config without mscale_all_dim leaves the scores alone */
	own_v2.mscale_all_dim = 0;
	near(kv_rope_softmax_scale(&own_v2, 192), 1 / sqrt(192), 1e-12);
}

static void check_row(const struct kv_rope_params *p, uint32_t position, const double *frequency,
		      double scale)
{
	struct kv_rope_params at = *p;
	struct kv_rope r;
	uint32_t i;

	at.first = position;
	at.nr = 1;
	ok(kv_rope_init(&r, &at));
	assert_int_equal(r.first, position);
	assert_int_equal(r.nr, 1);
	for (i = 0; i < p->dim / 2; i++) {
		near(r.cos[i], scale * cos(position * frequency[i]), 1e-7);
		near(r.sin[i], scale * sin(position * frequency[i]), 1e-7);
	}
	kv_rope_fini(&r);
}

/* Pairs up to 10 keep their frequency, from 23 on it is divided by 40, between them a ramp. */
static void yarn_frequencies(void **state)
{
	struct kv_rope_params p = v3;
	double f[32];
	uint32_t i;

	(void)state;
	for (i = 0; i < 32; i++) {
		double plain = pow(1e4, -2.0 * i / 64), t = ((double)i - 10) / 13;

		t = t < 0 ? 0 : t > 1 ? 1 : t;
		f[i] = plain * (1 - t) + plain / 40 * t;
	}
	check_row(&p, 0, f, 1);
	check_row(&p, 1, f, 1);
	check_row(&p, 100, f, 1);
	check_row(&p, 163839, f, 1);
	/* standard YaRN scales the tables instead of the scores */
	p.mscale_all_dim = 0;
	check_row(&p, 77, f, 0.1 * log(40) + 1);
	/* short positions of a model that is short: plain frequencies */
	p = v3;
	p.max_positions = 4096;
	for (i = 0; i < 32; i++)
		f[i] = pow(1e4, -2.0 * i / 64);
	check_row(&p, 77, f, 1);
}

/* Kimi-K2 has beta_fast = beta_slow = 1: the ramp is one pair wide. */
static void yarn_narrow_ramp(void **state)
{
	struct kv_rope_params p = v3;
	double f[32];
	uint32_t i;

	(void)state;
	p.theta = 5e4;
	p.factor = 32;
	p.beta_fast = p.beta_slow = 1;
	for (i = 0; i < 32; i++)
		f[i] = pow(5e4, -2.0 * i / 64) / (i < 20 ? 1 : 32);
	check_row(&p, 1000, f, 1);
}

static void given_factors(void **state)
{
	float factors[4] = {1, 2, 4, 8};
	struct kv_rope_params p = {.dim = 8, .max_positions = 100, .factors = factors};
	double f[4];
	uint32_t i;

	(void)state;
	for (i = 0; i < 4; i++)
		f[i] = pow(1e4, -2.0 * i / 8) / factors[i];
	check_row(&p, 99, f, 1);
}

static void apply(void **state)
{
	struct kv_rope_params p = {.dim = 4, .max_positions = 10, .first = 3, .nr = 2};
	float rows[2][6] = {{1, 2, 3, 4, 5, 6}, {6, 5, 4, 3, 2, 1}};
	float same[2][6];
	struct kv_rope r;
	double c0 = cos(4), s0 = sin(4), c1 = cos(0.04), s1 = sin(0.04);

	(void)state;
	ok(kv_rope_init(&r, &p));
	memcpy(same, rows, sizeof(rows));
	ok(kv_rope_apply(&r, 4, rows[0], 2, 6));
	near(rows[0][0], 1 * c0 - 2 * s0, 1e-6);
	near(rows[0][1], 1 * s0 + 2 * c0, 1e-6);
	near(rows[0][2], 3 * c1 - 4 * s1, 1e-6);
	near(rows[0][3], 3 * s1 + 4 * c1, 1e-6);
	near(rows[1][0], 6 * c0 - 5 * s0, 1e-6);
	assert_true(rows[0][4] == 5 && rows[0][5] == 6 && rows[1][5] == 1);
	refused(kv_rope_apply(&r, 2, rows[0], 1, 0), -EINVAL, "no position 2");
	refused(kv_rope_apply(&r, 5, rows[0], 1, 0), -EINVAL, "no position 5");
	r.pairing = KV_ROPE_HALVES;
	ok(kv_rope_apply(&r, 4, same[0], 1, 0));
	near(same[0][0], 1 * c0 - 3 * s0, 1e-6);
	near(same[0][2], 1 * s0 + 3 * c0, 1e-6);
	near(same[0][1], 2 * c1 - 4 * s1, 1e-6);
	near(same[0][3], 2 * s1 + 4 * c1, 1e-6);
	kv_rope_fini(&r);
	assert_null(r.cos);
	kv_rope_fini(&r);
	kv_rope_fini(NULL);
}

static void refusals(void **state)
{
	float factors[32] = {0};
	struct kv_rope_params p;
	struct kv_rope r;

	(void)state;
#define REFUSED(word, change) \
	do { \
		p = v3; \
		change; \
		refused(kv_rope_init(&r, &p), -EINVAL, word); \
	} while (0)
	REFUSED("dim is 0", p.dim = 0);
	REFUSED("dim is 63", p.dim = 63);
	REFUSED("dim is 578", p.dim = 578);
	REFUSED("pairing", p.pairing = 2);
	REFUSED("theta", p.theta = 1);
	REFUSED("theta", p.theta = NAN);
	REFUSED("positions", p.first = 163840);
	REFUSED("positions", p.nr = 163841);
	REFUSED("factor is 0.5", p.factor = 0.5);
	REFUSED("out of range", p.beta_fast = -1);
	REFUSED("out of range", p.mscale = NAN);
	REFUSED("not both", p.factors = factors);
	REFUSED("factor 0 is 0", p.factors = factors; p.original_positions = 0);
	refused(kv_rope_init(&r, NULL), -EINVAL, "NULL");
	refused(kv_rope_init(NULL, &v3), -EINVAL, "NULL");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(softmax_scales),   cmocka_unit_test(yarn_frequencies),
		cmocka_unit_test(yarn_narrow_ramp), cmocka_unit_test(given_factors),
		cmocka_unit_test(apply),	    cmocka_unit_test(refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
