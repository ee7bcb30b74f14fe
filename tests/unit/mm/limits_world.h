/* SPDX-License-Identifier: Apache-2.0 */
/* limits_world - two tenants with an engine and a cache each, for tests of limits and watermarks
 *
 * Model:      bytes are counted in extents of PAGES pages; time passes by pass() only, and settle()
 *             ticks until nothing is due. All is on device mmt_device: limits_run() runs tests once
 *             for each.
 */
#ifndef LIMITS_WORLD_H
#define LIMITS_WORLD_H

#include "mmt.h"

#define ANSWER	1000000ull
#define PAGES	8u		/* an extent */
#define X	MMT_EXTENT

static struct mmt t;
static uint32_t e1, m1, c1, e2, m2, c2;

/* Two tenants with an engine and a cache each, a pool of so many extents. */
static UNUSED void start(uint32_t extents, uint32_t low, uint32_t high)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);

	cfg.answer_ns = ANSWER;
	cfg.device[mmt_device].pool_bytes = extents * X;
	cfg.device[mmt_device].wmark_low_bytes = low * X;
	cfg.device[mmt_device].wmark_high_bytes = high * X;
	mmt_init(&t, &cfg);
	assert_int_equal(mmt_attach(&t, 1, &e1, &m1), 0);
	assert_int_equal(mmt_attach(&t, 2, &e2, &m2), 0);
	assert_int_equal(mmt_open(&t, e1, &d, &c1), 0);
	assert_int_equal(mmt_open(&t, e2, &d, &c2), 0);
}

static UNUSED void settle(void)
{
	for (uint32_t i = 0; i < 1000 && mm_next_deadline(t.mm) <= t.now; i++) {
		mmt_tick(&t, t.now);
		mmt_run(&t);
	}
	assert_true(mm_next_deadline(t.mm) > t.now);
}

static UNUSED void pass(uint64_t ns)
{
	mmt_tick(&t, t.now + ns);
	mmt_run(&t);
	settle();
}

/* Limits of a tenant in extents; UINT32_MAX is none. */
static UNUSED void limit(uint32_t tenant, uint32_t min, uint32_t low, uint32_t high, uint32_t max,
		  uint32_t oom_action)
{
	struct mm_limits l = { min * X, low * X, high == UINT32_MAX ? MM_NO_LIMIT : high * X,
			       max == UINT32_MAX ? MM_NO_LIMIT : max * X };

	assert_int_equal(mmt_limits(&t, tenant, MM_ALL_DEVICES, l, oom_action), 0);
}

static UNUSED uint64_t charge(uint32_t tenant)
{
	struct mm_tenant_info info;

	assert_int_equal(mm_tenant_info(t.mm, tenant, &info), 0);
	return (info.device[mmt_device].charge_bytes -
		info.device[mmt_device].leaving_bytes) / X;
}

static UNUSED uint64_t event(uint32_t tenant, enum mm_memcg_event which)
{
	struct mm_tenant_info info;

	assert_int_equal(mm_tenant_info(t.mm, tenant, &info), 0);
	return info.events[which];
}

/* One extent of cached pages, of nobody any more, with tokens from on. */
static UNUSED void cached(uint32_t e, uint32_t c, uint32_t from)
{
	assert_int_equal(mmt_unlease(&t, e, mmt_chain(&t, e, c, from, PAGES)), 0);
}

/* The same by an engine that waits for its pages, and time after time, each prompt a new one. */
static UNUSED void busy(uint32_t e, uint32_t c, uint32_t times)
{
	for (uint32_t i = 0; i < times; i++) {
		assert_int_equal(mmt_alloc_until(&t, e, c, 0, PAGES, t.now + ANSWER), 0);
		assert_int_equal(mmt_commit(&t, e, c, 0, mmt_tokens(2000 + i * 32),
					    PAGES * MMT_PT, t.pages), 0);
		assert_int_equal(mmt_unlease(&t, e, t.rp.lease), 0);
		settle();
	}
}

static UNUSED uint32_t found(uint32_t e, uint32_t c, uint32_t from)
{
	uint32_t nr;

	assert_int_equal(mmt_lookup(&t, e, c, 0, mmt_tokens(from), PAGES * MMT_PT), 0);
	nr = t.rp.nr_pages;
	if (nr)
		assert_int_equal(mmt_unlease(&t, e, t.rp.lease), 0);
	return nr;
}

static UNUSED const struct mm_event *pressure(uint32_t member)
{
	mmt_simple(&t, MM_EVENTS, 0, member);
	for (uint32_t i = 0; i < t.rp.nr_events; i++)
		if (t.events[i].kind == MM_EVENT_PRESSURE)
			return &t.events[i];
	return NULL;
}

#define limits_run(tests) \
	(mmt_device = 0, cmocka_run_group_tests_name("device 0", tests, NULL, NULL)) + \
	(mmt_device = 1, cmocka_run_group_tests_name("device 1", tests, NULL, NULL))

#endif
