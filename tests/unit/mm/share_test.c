// SPDX-License-Identifier: Apache-2.0
/* What one engine may have of the tables all use, and how the departed make room for newcomers. */
#include "two_engines.h"

static int setup(void **state)
{
	(void)state;
	return two_engines(1000, 1000);
}

/* ---- shares -------------------------------------------------------------------------------- */

static void a_share_is_as_much_as_is_left_to_others(void **state)
{
	struct mm_reply rp = { 0 };

	(void)state;
	assert_int_equal(reply_share(&rp, 0, 0, 1, 1), 0);	/* of a table of one: all */
	assert_int_equal(reply_share(&rp, 8, 1, 1, 1), -ENOMEM);
	assert_int_equal(rp.reason, MM_TABLE_FULL);
	assert_true(rp.a == 8 && rp.b == 1);
	assert_int_equal(reply_share(&rp, 0, 1, 1, 2), 0);
	assert_int_equal(reply_share(&rp, 0, 0, 2, 2), -ENOMEM);
	assert_int_equal(reply_share(&rp, 0, 0, 2, 3), 0);
	assert_int_equal(reply_share(&rp, 0, 5, 0, 0), -ENOMEM);
	assert_int_equal(reply_share(&rp, 0, 0, 1u << 31, UINT32_MAX), 0);
	assert_int_equal(reply_share(&rp, 0, UINT32_MAX, UINT32_MAX, UINT32_MAX), -ENOMEM);
}

static void a_greedy_engine_leaves_leases_and_parks_to_others(void **state)
{
	uint32_t lease = mmt_chain(&t, e1, c1, 0, 2), nr = 1;

	(void)state;
	for (uint32_t i = 0; i < 16; i++) {
		assert_int_equal(mmt_lease(&t, MM_LEASE_DUP, e1, 0, lease, 0), 0);
		assert_int_equal(mmt_park(&t, MM_PARK, e1, t.rp.lease, 0, 0), 0);
	}
	mmt_refused(&t, mmt_park(&t, MM_PARK, e1, lease, 0, 0), -ENOMEM, MM_TABLE_FULL);
	assert_int_equal(t.rp.a, offsetof(struct mm_config, max_parks));
	assert_int_equal(t.rp.b, 16);
	while (!mmt_lease(&t, MM_LEASE_DUP, e1, 0, lease, 0))
		nr++;
	assert_int_equal(nr, 64);
	assert_int_equal(t.rp.a, offsetof(struct mm_config, max_leases));
	assert_int_equal(t.rp.b, 64);
	for (nr = 0; !mmt_lookup(&t, e2, c2, 0, mmt_tokens(0), 32); nr++)
		assert_int_equal(t.rp.nr_pages, 2);
	assert_int_equal(nr, 32);		/* as many as it leaves */
}

static void a_lookup_that_needs_two_leases_gets_both_or_none(void **state)
{
	uint32_t lease = mmt_chain(&t, e1, c1, 0, 2), nr = 1;

	(void)state;
	for (; nr < 63; nr++)
		assert_int_equal(mmt_lease(&t, MM_LEASE_DUP, e1, 0, lease, 0), 0);
	mmt_refused(&t, mmt_lookup(&t, e1, c1, 0, mmt_tokens(0), 24), -ENOMEM, MM_TABLE_FULL);
	assert_int_equal(mmt_lookup(&t, e1, c1, 0, mmt_tokens(0), 16), 0);
}

static void keys_in_use_are_shared_and_idle_ones_are_not_counted(void **state)
{
	struct mm_page_key key = { 0 };
	uint32_t nr = 0, lease = 0;
	uint64_t id;

	(void)state;
	for (; nr < 40; nr++) {			/* of 32: idle ones give way */
		key.digest[0] = (uint8_t)(nr + 1);
		assert_int_equal(mmt_alloc(&t, e1, c1, 0, 1, &id), 0);
		assert_int_equal(mmt_commit_keys(&t, e1, c1, 0, 0, mmt_tokens(nr), 16, &id, 1, &key,
						 1), 0);
		assert_int_equal(mmt_unlease(&t, e1, t.rp.lease), 0);
	}
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 1, &id), 0);
	for (nr = 0; ; nr++) {
		key.digest[0] = (uint8_t)(nr + 100);
		if (mmt_commit_keys(&t, e1, c1, 0, 0, mmt_tokens(nr), 16, &id, 1, &key, 1))
			break;
		lease = t.rp.lease;
		assert_int_equal(mmt_alloc(&t, e1, c1, 0, 1, &id), 0);
	}
	assert_int_equal(nr, 16);
	assert_int_equal(t.rp.a, offsetof(struct mm_config, max_keys));
	assert_int_equal(t.rp.b, 16);
	assert_int_equal(mmt_unlease(&t, e1, lease), 0);
	assert_int_equal(mmt_commit_keys(&t, e1, c1, 0, 0, mmt_tokens(nr), 16, &id, 1, &key, 1), 0);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 1, &id), 0);
	key.digest[0] = 99;
	assert_int_equal(mmt_commit_keys(&t, e2, c2, 0, 0, mmt_tokens(0), 16, &id, 1, &key, 1), 0);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m1), 0);	/* its count goes with it */
}

static void a_far_deadline_is_brought_near(void **state)
{
	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 64, NULL), 0);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 1, UINT64_MAX), MMT_LATER);
	mmt_tick(&t, t.now + MM_MAX_WAIT_NS - 1);
	assert_int_equal(t.late.reason, MM_OK);
	assert_true(mm_next_deadline(t.mm) == t.now + 1);
	mmt_tick(&t, t.now + 1);
	assert_int_equal(t.late.reason, MM_TIMED_OUT);
}

/* ---- the departed -------------------------------------------------------------------------- */

static uint32_t live_caches(void)
{
	return t.mm->caches.nr_used;
}

/* An engine of that tenant comes, caches a chain in one extent, and goes. */
static void come_and_go(uint32_t uid, uint8_t model, uint32_t nr_pages)
{
	struct mm_cache_desc d = mmt_desc(model);
	uint32_t e, m, c;

	assert_int_equal(mmt_attach(&t, uid, &e, &m), 0);
	assert_int_equal(mmt_open(&t, e, &d, &c), 0);
	mmt_chain(&t, e, c, 0, nr_pages);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m), 0);
}

static uint32_t pages_of(uint32_t engine, uint8_t model)
{
	struct mm_cache_desc d = mmt_desc(model);
	uint32_t c, nr;

	assert_int_equal(mmt_open(&t, engine, &d, &c), 0);
	assert_int_equal(mmt_lookup(&t, engine, c, 0, mmt_tokens(0), 64), 0);
	nr = t.rp.nr_pages;
	if (nr)
		assert_int_equal(mmt_unlease(&t, engine, t.rp.lease), 0);
	return nr;
}

static void the_coldest_cache_left_behind_gives_way(void **state)
{
	struct mm_cache_desc d = mmt_desc(9);
	uint32_t c;

	(void)state;
	for (uint8_t i = 2; i <= 6; i++)
		come_and_go(1000, i, 1);
	assert_int_equal(live_caches(), 6);
	assert_int_equal(pages_of(e1, 2), 1);		/* warm again, and open */
	t.hold = true;
	assert_int_equal(mmt_open(&t, e1, &d, &c), -EAGAIN);
	assert_int_equal(t.rp.reason, MM_TABLE_FULL);
	assert_int_equal(t.rp.a, offsetof(struct mm_config, max_caches));
	assert_int_equal(t.nr_fx, 1);
	assert_int_equal(mmt_open(&t, e1, &d, &c), -EAGAIN);	/* one is enough */
	assert_int_equal(t.nr_fx, 1);
	t.hold = false;
	mmt_complete(&t, 0, 0);
	assert_int_equal(live_caches(), 5);
	assert_int_equal(mmt_open(&t, e1, &d, &c), 0);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 1);
	for (uint8_t i = 4; i <= 6; i++)
		assert_int_equal(pages_of(e2, i), 1);	/* the third model's was the coldest */
}

static void what_is_open_or_mapped_does_not_give_way(void **state)
{
	struct mm_cache_desc d;
	uint32_t c, e3;

	(void)state;
	for (uint8_t i = 2; i <= 3; i++) {
		d = mmt_desc(i);
		assert_int_equal(mmt_open(&t, e1, &d, &c), 0);
	}
	d = mmt_desc(4);
	assert_int_equal(mmt_open(&t, e2, &d, &c), 0);
	assert_int_equal(mmt_unlease(&t, e2, mmt_chain(&t, e2, c, 0, 1)), 0);
	assert_int_equal(mmt_map(&t, MM_IMPORT, m2, 1, 0), 0);
	assert_int_equal(mmt_close(&t, e2, c), 0);
	d = mmt_desc(5);
	assert_int_equal(mmt_open(&t, e2, &d, &c), 0);
	come_and_go(2000, 6, 1);
	assert_int_equal(live_caches(), 6);
	assert_int_equal(mmt_attach(&t, 1000, &e3, NULL), 0);
	d = mmt_desc(7);
	assert_int_equal(mmt_open(&t, e3, &d, &c), -EAGAIN);	/* model 4 was colder ... */
	assert_int_equal(live_caches(), 6);
	mmt_refused(&t, mmt_open(&t, e2, &d, &c), -ENOMEM, MM_TABLE_FULL);	/* on its account */
	assert_int_equal(mmt_open(&t, e3, &d, &c), -EAGAIN);	/* ... but is still mapped */
	assert_int_equal(live_caches(), 5);
	assert_int_equal(mmt_open(&t, e3, &d, &c), 0);
	d = mmt_desc(8);
	mmt_refused(&t, mmt_open(&t, e3, &d, &c), -ENOMEM, MM_TABLE_FULL);
	assert_int_equal(mmt_map(&t, MM_UNIMPORT, m2, 1, 0), 0);
	assert_int_equal(live_caches(), 5);
}

static void a_tenant_left_behind_gives_way(void **state)
{
	uint32_t e, m;

	(void)state;
	for (uint32_t uid = 2000; uid < 2003; uid++)
		come_and_go(uid, 1, 2);
	assert_int_equal(t.mm->tenants.nr_used, 4);
	t.hold = true;
	assert_int_equal(mmt_attach(&t, 3000, &e, &m), -EAGAIN);
	assert_int_equal(t.rp.reason, MM_TABLE_FULL);
	assert_int_equal(t.rp.a, offsetof(struct mm_config, max_tenants));
	assert_int_equal(t.nr_fx, 1);
	assert_int_equal(mmt_attach(&t, 3000, &e, &m), -EAGAIN);
	assert_int_equal(t.nr_fx, 1);
	t.hold = false;
	mmt_complete(&t, 0, 0);
	assert_int_equal(mmt_attach(&t, 3000, &e, &m), 0);
	assert_int_equal(mmt_attach(&t, 2000, &e, &m), -EAGAIN);	/* the coldest */
	assert_int_equal(mmt_attach(&t, 2000, &e, &m), 0);
	assert_int_equal(mmt_attach(&t, 2002, &e, &m), 0);		/* still there */
	assert_int_equal(pages_of(e, 1), 2);
	/* Now all four tenants are at home. */
	mmt_refused(&t, mmt_attach(&t, 4000, &e, &m), -ENOMEM, MM_TABLE_FULL);
}

/* ---- nodes --------------------------------------------------------------------------------- */

static void a_full_node_table_costs_the_own_tenant_first(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1), other = mmt_desc(2);
	uint32_t ea, eb, ec, ca, cb, cc;
	struct mmt s;

	(void)state;
	cfg.max_nodes = 8;
	mmt_init(&s, &cfg);
	assert_int_equal(mmt_attach(&s, 1, &ea, NULL), 0);
	assert_int_equal(mmt_attach(&s, 2, &eb, NULL), 0);
	assert_int_equal(mmt_attach(&s, 2, &ec, NULL), 0);
	assert_int_equal(mmt_open(&s, ea, &d, &ca), 0);
	assert_int_equal(mmt_open(&s, eb, &d, &cb), 0);
	assert_int_equal(mmt_open(&s, ec, &other, &cc), 0);
	assert_int_equal(mmt_unlease(&s, ea, mmt_chain(&s, ea, ca, 0, 4)), 0);	/* the coldest */
	assert_int_equal(mmt_unlease(&s, eb, mmt_chain(&s, eb, cb, 0, 4)), 0);
	mmt_chain(&s, ec, cc, 0, 3);
	assert_int_equal(mmt_lookup(&s, eb, cb, 0, mmt_tokens(0), 64), 0);
	assert_int_equal(s.rp.nr_pages, 1);
	assert_int_equal(mmt_lookup(&s, ea, ca, 0, mmt_tokens(0), 64), 0);
	assert_int_equal(s.rp.nr_pages, 4);
	assert_int_equal(mmt_unlease(&s, ea, s.rp.lease), 0);
	mmt_chain(&s, ec, cc, 1000, 2);			/* now only others have some */
	assert_int_equal(mmt_lookup(&s, ea, ca, 0, mmt_tokens(0), 64), 0);
	assert_int_equal(s.rp.nr_pages, 2);
	mmt_fini(&s);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(a_share_is_as_much_as_is_left_to_others),
		T(a_greedy_engine_leaves_leases_and_parks_to_others),
		T(a_lookup_that_needs_two_leases_gets_both_or_none),
		T(keys_in_use_are_shared_and_idle_ones_are_not_counted),
		T(a_far_deadline_is_brought_near),
		T(the_coldest_cache_left_behind_gives_way),
		T(what_is_open_or_mapped_does_not_give_way),
		T(a_tenant_left_behind_gives_way),
		cmocka_unit_test(a_full_node_table_costs_the_own_tenant_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
