// SPDX-License-Identifier: Apache-2.0
/* Whose turn it is when many wait: tenants, engines of one tenant, large and small. */
#include "mmt.h"

#define EXTENTS	24u
#define PER	8u		/* pages an extent */

/* A world of one device with a hoarder that holds the whole pool and gives back extent by extent;
 * actors ask for one size, again as soon as they are served. */
struct actor {
	uint32_t engine, member, cache, pages;
	bool greedy;			/* asks again */
	uint32_t nr_grants, nr_errors;
	uint64_t got_bytes;
	uint64_t held[64 * PER];
	uint32_t nr_held;
};

static struct mmt t;
static struct actor actor[16];
static uint32_t nr_actors, hoarder, nr_given;
static uint64_t hoard[EXTENTS * PER];

static int setup(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t m, c;

	(void)state;
	cfg.nr_devices = 1;
	cfg.device[0].pool_bytes = EXTENTS * MMT_EXTENT;
	cfg.max_pending = 256;
	cfg.max_tenants = cfg.max_engines = cfg.max_members = cfg.max_caches = 20;
	mmt_init(&t, &cfg);
	memset(actor, 0, sizeof(actor));
	nr_actors = nr_given = 0;
	assert_int_equal(mmt_attach(&t, 1, &hoarder, &m), 0);
	assert_int_equal(mmt_open(&t, hoarder, &d, &c), 0);
	for (uint32_t i = 0; i < EXTENTS; i++)
		assert_int_equal(mmt_alloc(&t, hoarder, c, 0, PER, hoard + i * PER), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	mmt_fini(&t);
	return 0;
}

static struct actor *join(uint32_t tenant, uint32_t pages, bool greedy)
{
	struct actor *a = &actor[nr_actors++];
	struct mm_cache_desc d = mmt_desc(1);

	*a = (struct actor){ .pages = pages, .greedy = greedy };
	assert_int_equal(mmt_attach(&t, tenant, &a->engine, &a->member), 0);
	assert_int_equal(mmt_open(&t, a->engine, &d, &a->cache), 0);
	return a;
}

static void ask(const struct actor *a)
{
	struct mm_request rq = { .op = MM_ALLOC, .engine = a->engine, .cache = a->cache,
				 .alloc = { a->pages, t.now + 1000000 } };

	rq.cookie = (uint64_t)(a - actor) + 1000;
	assert_int_equal(mm_submit(t.mm, &rq, t.now), 0);
	mm_check(t.mm);
}

static void take_replies(void)
{
	struct mm_reply rp;

	while (mm_next_reply(t.mm, &rp)) {
		struct actor *a;

		if (rp.cookie < 1000)
			continue;
		assert_true(rp.cookie - 1000 < nr_actors);
		a = &actor[rp.cookie - 1000];
		if (rp.result) {
			a->nr_errors++;
			continue;
		}
		a->nr_grants++;
		a->got_bytes += rp.nr_pages * MMT_PAGE;
		memcpy(a->held + a->nr_held, rp.pages, rp.nr_pages * sizeof(uint64_t));
		a->nr_held += rp.nr_pages;
	}
}

/* Carries out what there is until it is quiet, the greedy asking anew. */
static void run(void)
{
	uint32_t served[16];

	do {
		for (uint32_t i = 0; i < nr_actors; i++)
			served[i] = actor[i].nr_grants;
		mmt_fetch(&t);
		while (t.nr_fx) {
			mmt_complete(&t, 0, 0);
			take_replies();
			mmt_fetch(&t);
		}
		take_replies();
		for (uint32_t i = 0; i < nr_actors; i++)
			for (uint32_t k = served[i]; actor[i].greedy && k < actor[i].nr_grants; k++)
				ask(&actor[i]);
		take_replies();
		mmt_fetch(&t);
	} while (t.nr_fx);
}

static void give_extent(void)
{
	struct mm_request rq = { .op = MM_FREE, .engine = hoarder, .cookie = 1,
				 .free = { hoard + nr_given++ * PER, PER } };

	assert_true(nr_given <= EXTENTS);
	assert_int_equal(mm_submit(t.mm, &rq, t.now), 0);
	mm_check(t.mm);
	run();
}

/* What an actor was granted goes back, so that there is no end of extents. */
static void give_back(struct actor *a)
{
	struct mm_request rq = { .op = MM_FREE, .engine = a->engine, .cookie = 1,
				 .free = { a->held, a->nr_held } };

	assert_int_equal(mm_submit(t.mm, &rq, t.now), 0);
	a->nr_held = 0;
	mm_check(t.mm);
}

static uint32_t grants_of_others(const struct actor *a)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < nr_actors; i++)
		sum += &actor[i] == a ? 0 : actor[i].nr_grants;
	return sum;
}

/* Extents are given until it has had one grant. */
static uint32_t grants_before(const struct actor *a)
{
	uint32_t before = 0;

	while (!a->nr_grants) {
		before = grants_of_others(a);
		give_extent();
	}
	return before;
}

static void a_flood_does_not_starve_another_tenant(void **state)
{
	struct actor *flood = join(10, PER, true), *modest = join(20, PER, false);

	(void)state;
	for (uint32_t i = 0; i < 50; i++)
		ask(flood);
	ask(modest);
	assert_true(grants_before(modest) <= 2);
	/* Known by now, it does not even start behind. */
	modest->nr_grants = flood->nr_grants = 0;
	ask(modest);
	assert_true(grants_before(modest) <= 1);
}

static void many_engines_are_one_tenant(void **state)
{
	struct actor *modest;

	(void)state;
	for (uint32_t i = 0; i < 8; i++)
		for (uint32_t k = 0, a = (join(10, PER, true), i); k < 4; k++)
			ask(&actor[a]);
	modest = join(20, PER, true);
	ask(modest);
	for (uint32_t i = 0; i < 12; i++)
		give_extent();
	assert_in_range(modest->nr_grants, 5, 6);
	for (uint32_t i = 0; i < 8; i++)	/* within the tenant they take turns as well */
		assert_in_range(actor[i].nr_grants, 0, 1);
}

static void an_engine_does_not_starve_its_siblings(void **state)
{
	struct actor *flood = join(10, PER, true), *sibling = join(10, PER, true);

	(void)state;
	for (uint32_t i = 0; i < 40; i++)
		ask(flood);
	ask(sibling);
	assert_true(grants_before(sibling) <= 2);
	for (uint32_t i = 0; i < 10; i++)
		give_extent();
	assert_in_range(sibling->nr_grants + 1, flood->nr_grants - 1, flood->nr_grants + 1);
}

static void within_an_engine_the_first_comes_first(void **state)
{
	struct actor *a = join(10, PER, false);
	uint64_t last = 0;

	(void)state;
	for (uint32_t i = 0; i < 6; i++) {
		struct mm_request rq = { .op = MM_ALLOC, .engine = a->engine, .cache = a->cache,
					 .cookie = 100 + i, .alloc = { PER, t.now + 1000 } };

		assert_int_equal(mm_submit(t.mm, &rq, t.now), 0);
	}
	for (uint32_t i = 0; i < 6; i++) {
		struct mm_request rq = { .op = MM_FREE, .engine = hoarder, .cookie = 1,
					 .free = { hoard + i * PER, PER } };
		struct mm_reply rp;

		assert_int_equal(mm_submit(t.mm, &rq, t.now), 0);
		for (mmt_fetch(&t); t.nr_fx; mmt_fetch(&t))
			mmt_complete(&t, 0, 0);
		while (mm_next_reply(t.mm, &rp)) {
			if (rp.op != MM_ALLOC)
				continue;
			assert_int_equal(rp.result, 0);
			assert_true(rp.cookie > last);
			last = rp.cookie;
		}
	}
	assert_int_equal(last, 105);
}

/* Small ones that would fit at once come and come; the large one must get its turn. */
static void a_large_one_gets_its_turn(void **state)
{
	struct actor *small[3], *large;

	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		small[i] = join(10 + i, PER, true);
		ask(small[i]);
		ask(small[i]);
	}
	large = join(20, 6 * PER, false);
	ask(large);
	assert_true(grants_before(large) <= 3 * 8);
	assert_int_equal(large->nr_errors, 0);
}

/* Tenants that come, are served, and are never seen again: each new one is nobody's senior. */
static void new_tenants_without_end_do_not_starve_one_that_waits(void **state)
{
	struct actor *large;
	uint32_t nr = 0;

	(void)state;
	give_extent();
	large = join(20, 6 * PER, false);
	ask(large);
	while (!large->nr_grants) {
		struct actor *a = join(100 + nr, PER, false);

		assert_true(++nr <= 10);
		ask(a);
		give_extent();
		assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, a->member), 0);
		mmt_run(&t);
		take_replies();
		nr_actors--;
	}
}

static void bytes_count_not_requests(void **state)
{
	struct actor *large = join(10, 4 * PER, true), *small = join(20, PER, true);
	uint64_t diff;

	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		ask(large);
		ask(small);
	}
	for (uint32_t i = 0; i < EXTENTS; i++)
		give_extent();
	diff = large->got_bytes > small->got_bytes ? large->got_bytes - small->got_bytes :
						     small->got_bytes - large->got_bytes;
	assert_int_equal(large->nr_grants, 3);
	assert_true(diff <= 4 * PER * MMT_PAGE);
}

/* What was promised, and what a tenant's min says, is not for those before it. */
static void below_its_min_a_tenant_does_not_wait_its_turn(void **state)
{
	struct mm_request limits = { .op = MM_TENANT_SET, .tenant = {
		.tenant = 20, .device = 0,
		.limits = { MMT_EXTENT, MMT_EXTENT, MM_NO_LIMIT, MM_NO_LIMIT } } };
	struct actor *first = join(10, 8 * PER, false), *poor;

	(void)state;
	assert_int_equal(mmt_submit(&t, &limits), 0);
	ask(first);
	poor = join(20, PER, false);
	ask(poor);
	ask(poor);			/* that one is beyond its min */
	give_extent();
	give_extent();
	assert_int_equal(poor->nr_grants, 1);
	assert_int_equal(grants_before(first), 1);
}

/* ---- at a tenant's own max ----------------------------------------------------------------- */

static void set_max(uint32_t tenant, uint64_t bytes)
{
	struct mm_request rq = { .op = MM_TENANT_SET, .tenant = {
		.tenant = tenant, .device = MM_ALL_DEVICES,
		.limits = { .high_bytes = bytes, .max_bytes = bytes } } };

	assert_int_equal(mmt_submit(&t, &rq), 0);
}

static void at_its_max_a_tenant_bars_nobody_else(void **state)
{
	struct actor *first, *second, *other;

	(void)state;
	set_max(10, 2 * MMT_EXTENT);
	for (uint32_t i = 0; i < 4; i++)
		give_extent();
	first = join(10, 2 * PER, false);
	ask(first);
	run();
	assert_int_equal(first->nr_grants, 1);
	second = join(10, PER, false);
	ask(second);			/* waits for its sibling, with room in the pool */
	run();
	assert_int_equal(second->nr_grants + second->nr_errors, 0);
	other = join(20, PER, false);
	assert_int_equal(mmt_alloc(&t, other->engine, other->cache, 0, PER, NULL), 0);
	ask(other);
	run();
	assert_int_equal(other->nr_grants, 1);
	/* And its turn comes when the tenant has room, pool or not. */
	give_back(first);
	run();
	assert_int_equal(second->nr_grants, 1);
}

static void at_its_max_a_tenant_s_own_wait_in_order(void **state)
{
	struct actor *first, *large, *small;

	(void)state;
	set_max(10, 4 * MMT_EXTENT);
	for (uint32_t i = 0; i < 8; i++)
		give_extent();
	first = join(10, 3 * PER, false);
	ask(first);
	run();
	large = join(10, 4 * PER, false);
	ask(large);
	small = join(10, PER, false);
	ask(small);			/* would fit: 1 of 4 is left */
	run();
	assert_int_equal(first->nr_grants, 1);
	assert_int_equal(large->nr_grants + small->nr_grants, 0);
	give_back(first);
	run();
	assert_int_equal(large->nr_grants, 1);
	assert_int_equal(small->nr_grants, 0);
	give_back(large);
	run();
	assert_int_equal(small->nr_grants, 1);
}

static void at_its_max_waiting_ends_with_the_deadline(void **state)
{
	struct actor *first, *second;

	(void)state;
	set_max(10, MMT_EXTENT);
	give_extent();
	give_extent();
	first = join(10, PER, false);
	ask(first);
	run();
	second = join(10, PER, false);
	assert_int_equal(mmt_alloc_until(&t, second->engine, second->cache, 0, 1, t.now + 500),
			 MMT_LATER);
	mmt_tick(&t, t.now + 500);
	assert_int_equal(t.late.result, -EDQUOT);
	assert_int_equal(t.late.reason, MM_TIMED_OUT);
	assert_true(mm_next_deadline(t.mm) == UINT64_MAX);
	/* Alone in the tenant there is nobody to wait for. */
	mmt_refused(&t, mmt_alloc_until(&t, first->engine, first->cache, 0, 1, t.now + 500),
		    -EDQUOT, MM_TENANT_MAX);
}

static void at_its_max_a_tenant_takes_its_own_cached_extents(void **state)
{
	struct actor *first, *second, *other;
	uint32_t lease;
	uint64_t before;

	(void)state;
	set_max(10, 2 * MMT_EXTENT);
	for (uint32_t i = 0; i < 4; i++)
		give_extent();
	other = join(20, PER, false);
	lease = mmt_chain(&t, other->engine, other->cache, 500, PER);
	assert_int_equal(mmt_unlease(&t, other->engine, lease), 0);
	first = join(10, PER, false);
	lease = mmt_chain(&t, first->engine, first->cache, 0, 2 * PER);
	assert_int_equal(mmt_unlease(&t, first->engine, lease), 0);
	second = join(10, PER, false);
	before = mm_vmstat(t.mm)->extents_destroy;
	assert_int_equal(mmt_alloc_until(&t, second->engine, second->cache, 0, PER, t.now + 500),
			 0);
	assert_int_equal(mm_vmstat(t.mm)->extents_destroy, before + 1);
	/* Another's is not touched. */
	assert_int_equal(mmt_lookup(&t, other->engine, other->cache, 0, mmt_tokens(500),
				    PER * MMT_PT), 0);
	assert_int_equal(t.rp.nr_pages, PER);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(a_flood_does_not_starve_another_tenant),
		T(many_engines_are_one_tenant),
		T(an_engine_does_not_starve_its_siblings),
		T(within_an_engine_the_first_comes_first),
		T(a_large_one_gets_its_turn),
		T(new_tenants_without_end_do_not_starve_one_that_waits),
		T(bytes_count_not_requests),
		T(below_its_min_a_tenant_does_not_wait_its_turn),
		T(at_its_max_a_tenant_bars_nobody_else),
		T(at_its_max_a_tenant_s_own_wait_in_order),
		T(at_its_max_waiting_ends_with_the_deadline),
		T(at_its_max_a_tenant_takes_its_own_cached_extents),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
