/* SPDX-License-Identifier: Apache-2.0 */
/* two_engines - a world for tests: two engines, of one tenant or two, each with a cache open */
#ifndef TWO_ENGINES_H
#define TWO_ENGINES_H

#include "mmt.h"

static struct mmt t;
static uint32_t e1, e2, m1, m2, c1, c2;

static int two_engines_of(const struct mm_config *cfg, uint32_t tenant1, uint32_t tenant2)
{
	struct mm_cache_desc d = mmt_desc(1);

	mmt_init(&t, cfg);
	assert_int_equal(mmt_attach(&t, tenant1, &e1, &m1), 0);
	assert_int_equal(mmt_attach(&t, tenant2, &e2, &m2), 0);
	assert_int_equal(mmt_open(&t, e1, &d, &c1), 0);
	assert_int_equal(mmt_open(&t, e2, &d, &c2), 0);
	return 0;
}

static UNUSED int two_engines(uint32_t tenant1, uint32_t tenant2)
{
	struct mm_config cfg = mmt_config();

	return two_engines_of(&cfg, tenant1, tenant2);
}

static int teardown(void **state)
{
	(void)state;
	mmt_fini(&t);
	return 0;
}

#endif
