// SPDX-License-Identifier: Apache-2.0
/* Admission: promises and reservations against one budget. 8 pages an extent, 8 extents a pool. */
#include "mmt.h"

#define A 7u
#define B 8u
#define EXTENTS(n) ((uint64_t)(n) * MMT_EXTENT)

static struct mmt t;
static struct mm_cache_desc d1, d2;
static uint32_t e1, e2, m1, m2, c1, c2;

static int setup(void **state)
{
	struct mm_config cfg = mmt_config();

	(void)state;
	mmt_init(&t, &cfg);
	d1 = mmt_desc(1);
	d2 = mmt_desc(2);
	assert_int_equal(mmt_attach(&t, A, &e1, &m1), 0);
	assert_int_equal(mmt_attach(&t, B, &e2, &m2), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	mmt_fini(&t);
	return 0;
}

static uint64_t promised(uint32_t tenant)
{
	struct mm_tenant_info i;

	assert_int_equal(mm_tenant_info(t.mm, tenant, &i), 0);
	return i.device[0].promised_bytes;
}

static struct mm_limits max_of(uint64_t max)
{
	return (struct mm_limits){ 0, 0, max, max };
}

/* ---- promises ------------------------------------------------------------------------------ */

static void a_promise_is_room_that_others_do_not_see(void **state)
{
	(void)state;
	assert_int_equal(mmt_open_min(&t, e1, &d1, 33, &c1), 0);	/* 5 extents */
	assert_int_equal(promised(A), EXTENTS(5));
	assert_int_equal(mmt_open(&t, e2, &d2, &c2), 0);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 24, t.now + 1000), 0);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 1, NULL), -ENOMEM);
	assert_int_equal(t.rp.reason, MM_POOL_FULL);
	assert_int_equal(t.rp.b, 0);
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 40, t.now + 1000), 0);
	assert_int_equal(promised(A), 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 1, NULL), -ENOMEM);
}

static void a_promise_that_does_not_fit_is_refused_with_what_would(void **state)
{
	(void)state;
	assert_int_equal(mmt_open_min(&t, e1, &d1, 40, &c1), 0);
	mmt_refused(&t, mmt_open_min(&t, e2, &d2, 32, &c2), -ENOMEM, MM_POOL_FULL);
	assert_int_equal(t.rp.a, EXTENTS(4));
	assert_int_equal(t.rp.b, EXTENTS(3));
	mmt_refused(&t, mmt_open_min(&t, e2, &d2, UINT32_MAX, &c2), -ENOMEM, MM_POOL_FULL);
	assert_int_equal(mmt_open_min(&t, e2, &d2, 24, &c2), 0);
}

/* 2^72 bytes in a pool of 2^62. */
static void a_promise_of_more_than_can_be_counted_is_refused(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);

	(void)state;
	mmt_fini(&t);
	cfg.device[0].pool_bytes = 1ull << 62;
	cfg.device[0].extent_bytes = 1ull << 40;
	mmt_init(&t, &cfg);
	assert_int_equal(mmt_attach(&t, A, &e1, &m1), 0);
	d.shard[0].page_bytes[0] = 1ull << 40;
	mmt_refused(&t, mmt_open_min(&t, e1, &d, UINT32_MAX, &c1), -ENOMEM, MM_POOL_FULL);
	assert_int_equal(mmt_open_min(&t, e1, &d, 16, &c1), 0);
	assert_int_equal(promised(A), 16ull << 40);
	mmt_refused(&t, mmt_open_min(&t, e1, &d, UINT32_MAX, &c1), -ENOMEM, MM_POOL_FULL);
	assert_int_equal(promised(A), 16ull << 40);
}

static void opening_again_makes_a_new_promise(void **state)
{
	uint32_t again;

	(void)state;
	assert_int_equal(mmt_open_min(&t, e1, &d1, 64, &c1), 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 8, NULL), 0);
	assert_int_equal(promised(A), EXTENTS(7));
	assert_int_equal(mmt_open_min(&t, e1, &d1, 32, &again), 0);
	assert_int_equal(again, c1);
	assert_int_equal(promised(A), EXTENTS(3));
	assert_int_equal(mmt_open_min(&t, e2, &d2, 32, &c2), 0);
	mmt_refused(&t, mmt_open_min(&t, e1, &d1, 40, &again), -ENOMEM, MM_POOL_FULL);
	assert_int_equal(promised(A), EXTENTS(3));
	assert_int_equal(mmt_open(&t, e1, &d1, &again), 0);
	assert_int_equal(promised(A), 0);
}

static void closing_or_dying_ends_a_promise(void **state)
{
	(void)state;
	assert_int_equal(mmt_open_min(&t, e1, &d1, 64, &c1), 0);
	assert_int_equal(mmt_close(&t, e1, c1), 0);
	assert_int_equal(t.mm->device[0].promised_bytes, 0);
	assert_int_equal(mmt_open_min(&t, e1, &d1, 64, &c1), 0);
	assert_int_equal(mmt_open_min(&t, e2, &d2, 1, &c2), -ENOMEM);
	assert_int_equal(mmt_simple(&t, MM_FENCE, e1, 0), 0);
	assert_int_equal(mmt_open_min(&t, e2, &d2, 64, &c2), 0);
}

static void a_waiting_allocation_gets_what_an_ended_promise_leaves(void **state)
{
	(void)state;
	assert_int_equal(mmt_open_min(&t, e1, &d1, 64, &c1), 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 8, NULL), 0);
	assert_int_equal(mmt_open(&t, e2, &d2, &c2), 0);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 8, t.now + 1000), MMT_LATER);
	assert_int_equal(mmt_open_min(&t, e1, &d1, 8, &c1), 0);
	assert_int_equal(t.nr_late, 1);
	assert_int_equal(t.late.result, 0);
}

static void a_promise_is_held_against_the_tenants_max_too(void **state)
{
	uint32_t e3;

	(void)state;
	assert_int_equal(mmt_limits(&t, A, MM_ALL_DEVICES, max_of(EXTENTS(4)), 0), 0);
	mmt_refused(&t, mmt_open_min(&t, e1, &d1, 40, &c1), -EDQUOT, MM_TENANT_MAX);
	assert_int_equal(t.rp.a, EXTENTS(4));
	assert_int_equal(t.rp.b, 0);
	assert_int_equal(mmt_open_min(&t, e1, &d1, 24, &c1), 0);
	assert_int_equal(mmt_attach(&t, A, &e3, NULL), 0);
	mmt_refused(&t, mmt_open_min(&t, e3, &d2, 16, &c2), -EDQUOT, MM_TENANT_MAX);
	assert_int_equal(mmt_open(&t, e3, &d2, &c2), 0);
	assert_int_equal(mmt_alloc(&t, e3, c2, 0, 8, NULL), 0);
	assert_int_equal(mmt_alloc(&t, e3, c2, 0, 8, NULL), -EDQUOT);
	assert_int_equal(t.rp.b, EXTENTS(4));
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 24, t.now + 1000), 0);
}

static void cached_pages_give_way_to_a_promise(void **state)
{
	(void)state;
	assert_int_equal(mmt_open(&t, e1, &d1, &c1), 0);
	assert_int_equal(mmt_unlease(&t, e1, mmt_chain(&t, e1, c1, 0, 64)), 0);
	assert_int_equal(mmt_device_extents(&t, 0), 8);
	t.hold = true;
	assert_int_equal(mmt_open_min(&t, e2, &d2, 24, &c2), 0);
	assert_int_equal(t.mm->nr_leaving, 3);
	assert_int_equal(promised(B), EXTENTS(3));
	/* Room on its way counts for one promise only. */
	assert_int_equal(mmt_reserve(&t, e1, 0, EXTENTS(5) + 1), -ENOMEM);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 24, t.now + 1000), MMT_LATER);
	t.hold = false;
	mmt_run(&t);
	assert_int_equal(mmt_replies(&t, t.cookie), MMT_LATER);
	assert_int_equal(t.late.result, 0);
	assert_int_equal(promised(B), 0);
	assert_int_equal(mmt_device_extents(&t, 0), 8);
}

static void own_cached_pages_give_way_to_a_promise_under_max(void **state)
{
	uint32_t e3;

	(void)state;
	assert_int_equal(mmt_limits(&t, A, 0, max_of(EXTENTS(4)), 0), 0);
	assert_int_equal(mmt_open(&t, e1, &d1, &c1), 0);
	assert_int_equal(mmt_unlease(&t, e1, mmt_chain(&t, e1, c1, 0, 32)), 0);
	assert_int_equal(mmt_attach(&t, A, &e3, NULL), 0);
	assert_int_equal(mmt_open_min(&t, e3, &d2, 16, &c2), 0);
	assert_int_equal(mmt_device_extents(&t, 0), 2);
	assert_int_equal(mmt_alloc_until(&t, e3, c2, 0, 16, t.now + 1000), 0);
}

/* What is taken from a slab below its promise goes to the slab again, not to who took it. */
static void the_extents_of_a_promise_are_not_taken(void **state)
{
	(void)state;
	assert_int_equal(mmt_open_min(&t, e1, &d1, 48, &c1), 0);
	assert_int_equal(mmt_unlease(&t, e1, mmt_chain(&t, e1, c1, 0, 64)), 0);
	assert_int_equal(mmt_open(&t, e2, &d2, &c2), 0);
	assert_int_equal(mmt_open_min(&t, e2, &d2, 24, &c2), -ENOMEM);
	assert_int_equal(t.rp.b, EXTENTS(2));
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 16, t.now + 1000), 0);
	assert_int_equal(t.mm->vmstat.pages_evict, 16);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 1, NULL), -ENOMEM);
	assert_int_equal(t.mm->vmstat.pages_evict, 16);
}

static void a_failed_creation_leaves_the_promise_whole(void **state)
{
	(void)state;
	d1.nr_shards = 2;
	d1.shard[1] = d1.shard[0];
	d1.shard[1].device = 1;
	assert_int_equal(mmt_open_min(&t, e1, &d1, 64, &c1), 0);
	t.hold = true;
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 8, t.now + 1000), MMT_LATER);
	assert_int_equal(promised(A), EXTENTS(7));
	assert_int_equal(t.nr_fx, 2);
	mmt_complete(&t, 0, 0);
	mmt_complete(&t, 0, -ENOMEM);	/* mm_check: the budget holds while one shard goes */
	assert_int_equal(promised(A), EXTENTS(8));
	mmt_fetch(&t);
	t.hold = false;
	mmt_run(&t);
	assert_int_equal(t.late.result, -ENOMEM);
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 64, t.now + 1000), 0);
}

static void every_group_and_device_gets_its_part_of_a_promise(void **state)
{
	struct mm_meminfo mi;

	(void)state;
	d1.nr_groups = 2;
	d1.group[1].kind = MM_GROUP_FULL;
	d1.shard[0].page_bytes[1] = 2 * MMT_PAGE;	/* 4 pages an extent */
	d1.nr_shards = 2;
	d1.shard[1] = d1.shard[0];
	d1.shard[1].device = 1;
	assert_int_equal(mmt_open_min(&t, e1, &d1, 16, &c1), 0);
	mm_meminfo(t.mm, 0, &mi);
	assert_int_equal(mi.promised_bytes, EXTENTS(6));
	assert_int_equal(t.mm->device[1].promised_bytes, EXTENTS(6));
	assert_int_equal(mmt_open(&t, e2, &d2, &c2), 0);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 16, t.now + 1000), 0);
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 16, t.now + 1000), 0);
	/* What one group was promised is not another's. */
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 1, NULL), -ENOMEM);
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 1, 16, t.now + 1000), 0);
}

static void room_on_its_way_can_be_promised_as_it_is(void **state)
{
	uint64_t ids[64];

	(void)state;
	assert_int_equal(mmt_open(&t, e1, &d1, &c1), 0);
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 64, t.now + 1000), 0);
	memcpy(ids, t.pages, sizeof(ids));
	t.hold = true;
	assert_int_equal(mmt_free(&t, e1, ids + 1, 63), 0);
	assert_int_equal(t.mm->nr_leaving, 6);	/* and one kept, empty */
	mmt_refused(&t, mmt_open_min(&t, e2, &d2, 64, &c2), -ENOMEM, MM_POOL_FULL);
	assert_int_equal(t.rp.b, EXTENTS(7));
	assert_int_equal(mmt_open_min(&t, e2, &d2, 56, &c2), 0);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 1, NULL), -ENOMEM);	/* nothing is here yet */
	t.hold = false;
	mmt_run(&t);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 56, t.now + 1000), 0);
}

/* Who takes more than it was promised takes the rest from others, and no more. */
static void beyond_a_promise_no_more_is_taken_than_is_short(void **state)
{
	(void)state;
	assert_int_equal(mmt_open_min(&t, e1, &d1, 32, &c1), 0);
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 16, t.now + 1000), 0);
	assert_int_equal(mmt_open(&t, e2, &d2, &c2), 0);
	assert_int_equal(mmt_unlease(&t, e2, mmt_chain(&t, e2, c2, 0, 32)), 0);
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 32, t.now + 1000), 0);
	assert_int_equal(t.mm->vmstat.pages_evict, 16);
	assert_int_equal(mmt_device_extents(&t, 0), 8);
}

/* What the bind has counts towards its new promise, so taking it would not help. */
static void own_extents_are_not_taken_for_ones_own_promise(void **state)
{
	(void)state;
	assert_int_equal(mmt_open(&t, e1, &d1, &c1), 0);
	assert_int_equal(mmt_unlease(&t, e1, mmt_chain(&t, e1, c1, 0, 48)), 0);
	assert_int_equal(mmt_open_min(&t, e1, &d1, 72, &c1), -ENOMEM);
	assert_int_equal(t.rp.a, EXTENTS(3));
	assert_int_equal(t.rp.b, EXTENTS(2));
	assert_int_equal(mmt_device_extents(&t, 0), 6);
	assert_int_equal(mmt_open(&t, e2, &d2, &c2), 0);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 16, t.now + 1000), 0);
	assert_int_equal(mmt_open_min(&t, e1, &d1, 56, &c1), -ENOMEM);
	assert_int_equal(mmt_open_min(&t, e1, &d1, 48, &c1), 0);
	assert_int_equal(mmt_device_extents(&t, 0), 8);
}

/* Those who wait for the pool see nothing of it, so it cannot be their turn first. */
static void promised_room_is_had_past_those_who_wait(void **state)
{
	uint64_t ids[8], first;

	(void)state;
	assert_int_equal(mmt_open_min(&t, e1, &d1, 32, &c1), 0);
	assert_int_equal(mmt_open(&t, e2, &d2, &c2), 0);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 32, t.now + 1000), 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 8, ids), 0);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 8, t.now + 100000), MMT_LATER);
	first = t.cookie;
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 16, t.now + 1000), 0);
	/* Also when it is leaving still. */
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 8, t.now + 1000), 0);
	t.hold = true;
	assert_int_equal(mmt_free(&t, e1, t.pages, 8), 0);
	assert_int_equal(mmt_free(&t, e1, ids, 8), 0);
	assert_int_equal(t.mm->nr_leaving, 1);
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 16, t.now + 1000), MMT_LATER);
	t.hold = false;
	mmt_run(&t);
	assert_int_equal(t.nr_late, 1);
	assert_int_equal(t.late.cookie, first + 5);
	assert_int_equal(t.late.result, 0);
}

/* ---- reservations -------------------------------------------------------------------------- */

static void reservations_are_absolute_and_apart_by_purpose(void **state)
{
	(void)state;
	assert_int_equal(mmt_reserve_for(&t, e1, 0, MM_RESERVE_WEIGHTS, EXTENTS(4)), 0);
	assert_int_equal(mmt_reserve_for(&t, e1, 0, MM_RESERVE_ACTIVATIONS, EXTENTS(2)), 0);
	assert_int_equal(mmt_reserve_for(&t, e1, 0, MM_RESERVE_WEIGHTS, EXTENTS(3)), 0);
	assert_int_equal(t.mm->device[0].reserved_bytes, EXTENTS(5));
	mmt_refused(&t, mmt_reserve_for(&t, e1, 0, MM_RESERVE_OTHER, EXTENTS(4)), -ENOMEM,
		    MM_POOL_FULL);
	assert_int_equal(t.rp.b, EXTENTS(3));
	mmt_refused(&t, mmt_reserve_for(&t, e1, 0, MM_NR_RESERVES, 1), -EINVAL, MM_BAD_ARGUMENT);
	assert_int_equal(mmt_open_min(&t, e2, &d2, 32, &c2), -ENOMEM);
	assert_int_equal(mmt_open_min(&t, e2, &d2, 24, &c2), 0);
	mmt_refused(&t, mmt_reserve_for(&t, e1, 0, MM_RESERVE_OTHER, 1), -ENOMEM, MM_POOL_FULL);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m1), 0);
	assert_int_equal(t.mm->device[0].reserved_bytes, 0);
}

static void a_reservation_waits_for_cached_pages_to_go(void **state)
{
	(void)state;
	assert_int_equal(mmt_open(&t, e1, &d1, &c1), 0);
	assert_int_equal(mmt_unlease(&t, e1, mmt_chain(&t, e1, c1, 0, 64)), 0);
	t.hold = true;
	assert_int_equal(mmt_reserve(&t, e2, 0, EXTENTS(2)), -EAGAIN);
	assert_int_equal(t.rp.reason, MM_POOL_FULL);
	assert_int_equal(t.mm->nr_leaving, 2);
	mmt_refused(&t, mmt_reserve(&t, e2, 0, EXTENTS(2)), -EAGAIN, MM_POOL_FULL);
	assert_int_equal(t.mm->nr_leaving, 2);		/* no more than it takes */
	t.hold = false;
	mmt_run(&t);
	assert_int_equal(mmt_reserve(&t, e2, 0, EXTENTS(2)), 0);
	assert_int_equal(mmt_device_extents(&t, 0), 6);
	mmt_refused(&t, mmt_reserve(&t, e2, 0, EXTENTS(9)), -ENOMEM, MM_POOL_FULL);
}

static void a_reservation_takes_of_its_device_only(void **state)
{
	(void)state;
	assert_int_equal(mmt_open(&t, e1, &d1, &c1), 0);
	assert_int_equal(mmt_unlease(&t, e1, mmt_chain(&t, e1, c1, 0, 64)), 0);
	d2.shard[0].device = 1;
	assert_int_equal(mmt_open(&t, e2, &d2, &c2), 0);
	assert_int_equal(mmt_unlease(&t, e2, mmt_chain(&t, e2, c2, 0, 64)), 0);
	assert_int_equal(mmt_reserve(&t, e2, 1, EXTENTS(2)), -EAGAIN);
	assert_int_equal(mmt_device_extents(&t, 0), 8);
	assert_int_equal(mmt_device_extents(&t, 1), 6);
	assert_int_equal(mmt_reserve(&t, e2, 1, EXTENTS(2)), 0);
}

static void held_pages_do_not_make_room_for_a_reservation(void **state)
{
	(void)state;
	assert_int_equal(mmt_open(&t, e1, &d1, &c1), 0);
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 48, t.now + 1000), 0);
	mmt_refused(&t, mmt_reserve(&t, e2, 0, EXTENTS(3)), -ENOMEM, MM_POOL_FULL);
	assert_int_equal(mmt_reserve(&t, e2, 0, EXTENTS(2)), 0);
}

/* ---- the last free bytes ------------------------------------------------------------------- */

static void the_last_free_bytes_are_for_those_below_their_min(void **state)
{
	struct mm_config cfg = mmt_config();
	(void)state;
	mmt_fini(&t);
	cfg.device[0].wmark_min_bytes = EXTENTS(2);
	mmt_init(&t, &cfg);
	assert_int_equal(mmt_attach(&t, A, &e1, &m1), 0);
	assert_int_equal(mmt_attach(&t, B, &e2, &m2), 0);
	assert_int_equal(mmt_limits(&t, B, 0, (struct mm_limits){ EXTENTS(1), EXTENTS(1),
								  MM_NO_LIMIT, MM_NO_LIMIT }, 0),
			 0);
	assert_int_equal(mmt_open(&t, e1, &d1, &c1), 0);
	assert_int_equal(mmt_open(&t, e2, &d2, &c2), 0);
	assert_int_equal(mmt_open_min(&t, e1, &d1, 56, &c1), -ENOMEM);
	assert_int_equal(mmt_reserve(&t, e1, 0, EXTENTS(6) + 1), -ENOMEM);
	assert_int_equal(mmt_alloc_until(&t, e1, c1, 0, 48, t.now + 1000), 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 1, NULL), -ENOMEM);
	assert_int_equal(t.rp.b, 0);
	assert_int_equal(mmt_open_min(&t, e2, &d2, 8, &c2), 0);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 8, NULL), 0);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 1, NULL), -ENOMEM);
	assert_int_equal(mmt_reserve(&t, e1, 0, 1), -ENOMEM);
}

/* ---- two engines starting together --------------------------------------------------------- */

struct starter {
	uint32_t engine, cache, min_extents;
	uint64_t weights;
	bool open;
	struct mm_cache_desc desc;
};

static uint64_t seed;

static uint32_t rnd(uint32_t below)
{
	seed = core_mix(seed);
	return (uint32_t)(seed >> 33) % below;
}

static uint32_t held(const struct starter *s)
{
	struct mm_engine_info i;

	assert_int_equal(mm_engine_info(t.mm, s->engine, &i), 0);
	return (uint32_t)i.held_pages;
}

/* One step of an engine's start: reserve, open with a minimum, take pages; effects may lag. */
static void start_step(struct starter *s)
{
	uint32_t pages;

	switch (rnd(6)) {
	case 0:
		pages = rnd(5);
		if (!mmt_reserve_for(&t, s->engine, 0, MM_RESERVE_WEIGHTS, EXTENTS(pages)))
			s->weights = EXTENTS(pages);
		break;
	case 1:
		pages = rnd(9) * 8;
		if (!mmt_open_min(&t, s->engine, &s->desc, pages, &s->cache)) {
			s->open = true;
			s->min_extents = pages / 8;
		}
		break;
	case 2:
	case 3:
		if (s->open)
			mmt_alloc(&t, s->engine, s->cache, 0, 1 + rnd(3), NULL);
		break;
	default:
		mmt_fetch(&t);
		if (t.nr_fx) {
			struct mm_effect fx = t.fx[0];
			bool fail = fx.kind == MM_EFFECT_CREATE && !rnd(4);

			mmt_complete(&t, 0, fail ? -ENOMEM : 0);
			mmt_replies(&t, 0);
		}
	}
}

/* Whatever two starting engines do in whichever order: what both were told they have fits, and each
 * of them really gets it afterwards, all at once. */
static void two_starting_engines_are_never_promised_the_same_memory(void **state)
{
	struct starter s[2] = { 0 };

	(void)state;
	for (seed = 1; seed < 400; seed++) {
		uint64_t keep = seed, sum = 0;

		mmt_fini(&t);
		assert_int_equal(setup(NULL), 0);
		s[0] = (struct starter){ .engine = e1, .desc = d1 };
		s[1] = (struct starter){ .engine = e2, .desc = d2 };
		t.hold = true;
		for (uint32_t i = 0; i < 60; i++) {
			start_step(&s[rnd(2)]);
			sum = s[0].weights + s[1].weights;
			for (uint32_t k = 0; k < 2; k++) {
				uint32_t own = (held(&s[k]) + 7) / 8;

				sum += EXTENTS(own > s[k].min_extents ? own : s[k].min_extents);
			}
			assert_true(sum <= EXTENTS(8));
		}
		t.hold = false;
		mmt_run(&t);
		for (uint32_t k = 0; k < 2; k++) {
			uint32_t has = held(&s[k]), more = s[k].min_extents * 8 - has;

			if (s[k].min_extents * 8 <= has)
				continue;
			assert_int_equal(mmt_alloc_until(&t, s[k].engine, s[k].cache, 0, more,
							 t.now + 1000), 0);
		}
		seed = keep;
	}
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_promise_is_room_that_others_do_not_see),
		TEST(a_promise_that_does_not_fit_is_refused_with_what_would),
		TEST(a_promise_of_more_than_can_be_counted_is_refused),
		TEST(opening_again_makes_a_new_promise),
		TEST(closing_or_dying_ends_a_promise),
		TEST(a_waiting_allocation_gets_what_an_ended_promise_leaves),
		TEST(a_promise_is_held_against_the_tenants_max_too),
		TEST(cached_pages_give_way_to_a_promise),
		TEST(own_cached_pages_give_way_to_a_promise_under_max),
		TEST(the_extents_of_a_promise_are_not_taken),
		TEST(a_failed_creation_leaves_the_promise_whole),
		TEST(every_group_and_device_gets_its_part_of_a_promise),
		TEST(room_on_its_way_can_be_promised_as_it_is),
		TEST(beyond_a_promise_no_more_is_taken_than_is_short),
		TEST(own_extents_are_not_taken_for_ones_own_promise),
		TEST(promised_room_is_had_past_those_who_wait),
		TEST(reservations_are_absolute_and_apart_by_purpose),
		TEST(a_reservation_waits_for_cached_pages_to_go),
		TEST(a_reservation_takes_of_its_device_only),
		TEST(held_pages_do_not_make_room_for_a_reservation),
		TEST(the_last_free_bytes_are_for_those_below_their_min),
		TEST(two_starting_engines_are_never_promised_the_same_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
