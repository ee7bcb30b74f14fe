// SPDX-License-Identifier: Apache-2.0
/* Pressure averages: what counts as waiting, the sums, the averages against a naive model. */
#include "mmt.h"

#define MS	1000000ull
#define SEC	1000000000ull
#define PAGES	64u			/* the pool */

static struct mmt t;
static uint32_t e1, e2, m1, m2, c1, c2;
static uint64_t held[PAGES];

/* Engine 1 of tenant 10 has the pool, engine 2 is of tenant 20. Time starts at 100 s. */
static int setup(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);

	(void)state;
	mmt_init(&t, &cfg);
	t.now = 100 * SEC;
	assert_int_equal(mmt_attach(&t, 10, &e1, &m1), 0);
	assert_int_equal(mmt_attach(&t, 20, &e2, &m2), 0);
	assert_int_equal(mmt_open(&t, e1, &d, &c1), 0);
	assert_int_equal(mmt_open(&t, e2, &d, &c2), 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, PAGES, held), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	mmt_fini(&t);
	return 0;
}

static struct mm_psi psi_at(uint32_t tenant, uint64_t now)
{
	struct mm_psi p;

	assert_int_equal(mm_psi(t.mm, tenant, now, &p), 0);
	return p;
}

static struct mm_psi psi(uint32_t tenant)
{
	return psi_at(tenant, t.now);
}

static void work(uint32_t engine)
{
	assert_int_equal(mmt_simple(&t, MM_STAT, engine, 0), 0);
}

static void wait_begins(uint64_t ns)
{
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 8, t.now + ns), MMT_LATER);
}

static void wait_ends(uint64_t ns)
{
	t.nr_late = 0;
	for (uint64_t end = t.now + ns; t.now < end; work(e1))	/* engine 1 works all the while */
		mmt_tick(&t, end - t.now > SEC ? t.now + SEC : end);
	assert_int_equal(t.nr_late, 1);
}

static void without_waiting_there_is_no_pressure(void **state)
{
	struct mm_psi p, zero;

	(void)state;
	memset(&zero, 0, sizeof(zero));
	mmt_tick(&t, t.now + 30 * SEC);
	p = psi(MM_ALL_TENANTS);
	assert_memory_equal(&p, &zero, sizeof(p));
	assert_int_equal(mm_psi(t.mm, 77, t.now, &p), -ENOENT);
	/* A refusal is no stall. */
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 1, NULL), -ENOMEM);
	p = psi_at(MM_ALL_TENANTS, t.now + 30 * SEC);
	assert_memory_equal(&p, &zero, sizeof(p));
}

static void some_is_one_that_waits_full_is_all(void **state)
{
	struct mm_psi p;

	(void)state;
	wait_begins(3 * SEC);
	wait_ends(3 * SEC);
	p = psi(MM_ALL_TENANTS);
	assert_int_equal(p.some_total_ns, 3 * SEC);
	assert_int_equal(p.full_total_ns, 0);		/* engine 1 worked */
	p = psi(20);					/* alone in its tenant */
	assert_int_equal(p.some_total_ns, 3 * SEC);
	assert_int_equal(p.full_total_ns, 3 * SEC);
	p = psi(10);
	assert_int_equal(p.some_total_ns, 0);
}

static void two_that_wait_at_once_are_counted_once(void **state)
{
	(void)state;
	wait_begins(4 * SEC);
	mmt_tick(&t, t.now + SEC);
	wait_begins(2 * SEC);
	mmt_tick(&t, t.now + 2 * SEC);
	mmt_tick(&t, t.now + SEC);
	assert_int_equal(psi_at(MM_ALL_TENANTS, t.now + SEC).some_total_ns, 4 * SEC);
}

/* The other engine asked last at 100 s: from 110 s on it does not count as working. */
static void a_silent_engine_does_not_keep_pressure_from_being_full(void **state)
{
	uint64_t start = t.now;

	(void)state;
	mmt_tick(&t, start + 3 * SEC);
	wait_begins(20 * SEC);
	assert_int_equal(psi_at(MM_ALL_TENANTS, start + 10 * SEC).full_total_ns, 0);
	assert_int_equal(psi_at(MM_ALL_TENANTS, start + 10 * SEC + 5).full_total_ns, 5);
	assert_int_equal(psi_at(10, start + 12 * SEC).full_total_ns, 0);
	mmt_tick(&t, start + 14 * SEC);
	assert_int_equal(psi(MM_ALL_TENANTS).full_total_ns, 4 * SEC);
	work(e1);			/* and now it does again, up to 24 s */
	mmt_tick(&t, start + 23 * SEC);
	mmt_run(&t);
	assert_int_equal(psi_at(MM_ALL_TENANTS, start + 40 * SEC).full_total_ns, 4 * SEC);
	assert_int_equal(psi(MM_ALL_TENANTS).some_total_ns, 20 * SEC);
}

static void an_engine_without_a_cache_does_not_count(void **state)
{
	uint32_t e3, m3, c3;
	struct mm_cache_desc d = mmt_desc(1);

	(void)state;
	assert_int_equal(mmt_attach(&t, 20, &e3, &m3), 0);
	work(e3);
	wait_begins(60 * SEC);
	mmt_tick(&t, t.now + SEC);
	assert_int_equal(psi(20).full_total_ns, SEC);
	assert_int_equal(mmt_open(&t, e3, &d, &c3), 0);
	mmt_tick(&t, t.now + SEC);
	assert_int_equal(psi(20).full_total_ns, SEC);
	assert_int_equal(mmt_close(&t, e3, c3), 0);
	mmt_tick(&t, t.now + SEC);
	assert_int_equal(psi(20).full_total_ns, 2 * SEC);
	assert_int_equal(mmt_open(&t, e3, &d, &c3), 0);
	assert_int_equal(mmt_simple(&t, MM_FENCE, e3, 0), 0);
	mmt_tick(&t, t.now + SEC);
	assert_int_equal(psi(20).full_total_ns, 3 * SEC);
}

static void a_dead_engine_stalls_no_more(void **state)
{
	(void)state;
	wait_begins(60 * SEC);
	mmt_tick(&t, t.now + SEC);
	assert_int_equal(mmt_simple(&t, MM_FENCE, e2, 0), 0);
	mmt_tick(&t, t.now + 5 * SEC);
	assert_int_equal(psi(MM_ALL_TENANTS).some_total_ns, SEC);
	assert_int_equal(psi(20).some_total_ns, SEC);
}

/* ---- averages ------------------------------------------------------------------------------ */

/* exp(-2 s / window) for 10, 60, 300 s, and what is left after seconds. */
static const double decay[3] = { 0.8187307530779818, 0.9672161004820059, 0.9933555062550344 };

static double left(uint32_t window, uint32_t seconds)
{
	double v = 1;

	for (uint32_t i = 0; i < seconds / 2; i++)
		v *= decay[window];
	return v;
}

static void near(uint32_t have, double want)
{
	assert_true(have - want * 10000 <= 1.5 && want * 10000 - have <= 1.5);
}

static void averages_follow_the_formula(void **state)
{
	struct mm_psi p;

	(void)state;
	t.now = 200 * SEC;	/* a period begins */
	wait_begins(30 * SEC);
	p = psi_at(20, t.now + 30 * SEC);
	for (uint32_t i = 0; i < 3; i++)
		near(p.some_avg[i], 1 - left(i, 30));
	wait_ends(30 * SEC);
	p = psi_at(20, t.now + 60 * SEC);
	for (uint32_t i = 0; i < 3; i++)
		near(p.some_avg[i], (1 - left(i, 30)) * left(i, 60));
	p = psi_at(20, t.now + 3600 * SEC);
	assert_true(!p.some_avg[0] && !p.some_avg[1] && p.some_total_ns == 30 * SEC);
}

static void a_part_of_a_period_counts_as_its_share(void **state)
{
	(void)state;
	t.now = 200 * SEC + 500 * MS;
	wait_begins(SEC);
	wait_ends(SEC);
	assert_int_equal(psi_at(20, 202 * SEC - 1).some_avg[0], 0);	/* not over yet */
	near(psi_at(20, 202 * SEC).some_avg[0], 0.5 * (1 - decay[0]));
}

static void they_decay_while_nothing_happens(void **state)
{
	struct mm_psi late, step;
	uint64_t digest;

	(void)state;
	wait_begins(20 * SEC);
	wait_ends(20 * SEC);
	assert_true(mm_next_deadline(t.mm) == UINT64_MAX);	/* nobody need wake up for it */
	digest = mm_digest(t.mm);
	late = psi_at(20, t.now + 100 * SEC);
	assert_true(late.some_avg[0] < 5 && late.some_avg[1] < psi(20).some_avg[1]);
	assert_true(mm_digest(t.mm) == digest);
	/* Looked at all the time or once: the same. */
	for (uint32_t i = 0; i < 100; i++) {
		mmt_tick(&t, t.now + SEC);
		psi(20);
	}
	step = psi(20);
	for (uint32_t i = 0; i < 3; i++)
		assert_in_range(step.some_avg[i] + 1, late.some_avg[i], late.some_avg[i] + 2);
	assert_int_equal(step.some_total_ns, late.some_total_ns);
}

/* A naive account in steps of 1 ms, of both kinds, for one tenant and all. */
struct naive {
	double avg[2][3], in_period[2];
	uint64_t total_ms[2];
};

static void naive_step(struct naive *n, uint64_t ms, bool some, bool full)
{
	bool is[2] = { some, full };

	for (uint32_t k = 0; k < 2; k++) {
		n->in_period[k] += is[k];
		n->total_ms[k] += is[k];
		for (uint32_t i = 0; i < 3 && (ms + 1) % 2000 == 0; i++)
			n->avg[k][i] = n->avg[k][i] * decay[i] +
				       n->in_period[k] / 2000 * (1 - decay[i]);
		n->in_period[k] = (ms + 1) % 2000 == 0 ? 0 : n->in_period[k];
	}
}

static void check_naive(const struct naive *n, const struct mm_psi *p)
{
	for (uint32_t i = 0; i < 3; i++) {
		near(p->some_avg[i], n->avg[0][i]);
		near(p->full_avg[i], n->avg[1][i]);
	}
	assert_int_equal(p->some_total_ns, n->total_ms[0] * MS);
	assert_int_equal(p->full_total_ns, n->total_ms[1] * MS);
}

static void a_random_history_is_accounted_exactly(void **state)
{
	struct naive all = { 0 }, one = { 0 };
	uint64_t rng = 5, waits_until = 0, last[2] = { t.now / MS, t.now / MS }, ms = t.now / MS;
	uint64_t looked = 0;

	(void)state;
	for (uint32_t i = 0; i < 400; i++) {
		uint64_t next;

		rng = core_mix(rng);
		next = ms + 1 + rng % (rng >> 40 & 1 ? 300 : 9000);
		for (; ms < next; ms++) {
			bool wait = ms < waits_until, works1, works2;

			if (ms == waits_until)
				last[1] = ms;
			works1 = ms < last[0] + 10000;
			works2 = !wait && ms < last[1] + 10000;
			naive_step(&all, ms, wait, wait && !works1);
			naive_step(&one, ms, wait, wait && !works2);
			if (ms + 1 == waits_until)
				mmt_tick(&t, (ms + 1) * MS);
		}
		t.now = ms * MS;
		if (ms >= waits_until && rng >> 50 & 1) {
			waits_until = ms + 1 + (rng >> 20) % 15000;
			wait_begins((waits_until - ms) * MS);
		} else {
			if (waits_until == ms)
				mmt_tick(&t, t.now);
			work(e1);
			if (ms - last[0] >= PSI_TOUCH_NS / MS)
				last[0] = ms;
			if (ms >= waits_until && ms - last[1] >= PSI_TOUCH_NS / MS)
				last[1] = ms;
			work(e2);
		}
		if (rng >> 60 & 1) {
			struct mm_psi a = psi(MM_ALL_TENANTS), b = psi(20);

			check_naive(&all, &a);
			check_naive(&one, &b);
			looked++;
		}
	}
	assert_true(looked > 100 && all.total_ms[1] && all.total_ms[1] < all.total_ms[0]);
	assert_true(psi(10).some_total_ns == 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(without_waiting_there_is_no_pressure),
		T(some_is_one_that_waits_full_is_all),
		T(two_that_wait_at_once_are_counted_once),
		T(a_silent_engine_does_not_keep_pressure_from_being_full),
		T(an_engine_without_a_cache_does_not_count),
		T(a_dead_engine_stalls_no_more),
		T(averages_follow_the_formula),
		T(a_part_of_a_period_counts_as_its_share),
		T(they_decay_while_nothing_happens),
		T(a_random_history_is_accounted_exactly),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
