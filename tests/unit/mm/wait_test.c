// SPDX-License-Identifier: Apache-2.0
/* Allocations that wait, and what they do to others. */
#include "two_engines.h"

static int setup(void **state)
{
	(void)state;
	return two_engines(1000, 2000);
}

static void one_extent_serves_all_that_wait_for_it(void **state)
{
	(void)state;
	t.hold = true;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 3, NULL), MMT_LATER);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 3, NULL), MMT_LATER);
	assert_int_equal(t.nr_fx, 1);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 3, NULL), MMT_LATER);
	assert_int_equal(t.nr_fx, 2);		/* that one did not fit any more */
	mmt_complete(&t, 0, 0);
	mmt_replies(&t, 0);
	assert_int_equal(t.nr_late, 2);
	mmt_complete(&t, 0, 0);
	assert_int_equal(mmt_replies(&t, t.cookie), 0);
	assert_int_equal(mm_vmstat(t.mm)->alloc_wait, 3);
}

static void a_refused_creation_is_not_tried_forever(void **state)
{
	(void)state;
	t.create_result = -ENOMEM;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 3, NULL), -ENOMEM);
	t.create_result = -EINVAL;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 3, NULL), -EIO);
	assert_int_equal(mm_vmstat(t.mm)->extents_create, 0);
	t.create_result = 0;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 3, NULL), 0);
}

static void without_a_deadline_a_full_pool_refuses(void **state)
{
	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 64, NULL), 0);
	mmt_refused(&t, mmt_alloc(&t, e2, c2, 0, 1, NULL), -ENOMEM, MM_POOL_FULL);
	assert_int_equal(t.nr_notify, 0);
	mmt_refused(&t, mmt_alloc_until(&t, e2, c2, 0, 1, t.now), -ENOMEM, MM_TIMED_OUT);
	/* Alone in the pool there is nobody to wait for. */
	mmt_refused(&t, mmt_alloc_until(&t, e1, c1, 0, 1, t.now + 100), -ENOMEM, MM_POOL_FULL);
}

static void pressure_is_raised_and_answered(void **state)
{
	uint64_t a[64], seq;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 64, a), 0);
	assert_int_equal(mmt_map(&t, MM_IMPORT, m1, mm_page_extent(a[0]), 0), 0);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 4, t.now + 500), MMT_LATER);
	assert_int_equal(t.nr_notify, 1);
	assert_int_equal(t.notified, m1);
	mmt_tick(&t, t.now);		/* looks for half-empty extents, of which there are none */
	assert_true(mm_next_deadline(t.mm) == t.now + 500);
	assert_int_equal(mmt_simple(&t, MM_EVENTS, 0, m1), 0);
	assert_int_equal(t.rp.nr_events, 1);
	assert_int_equal(t.events[0].kind, MM_EVENT_PRESSURE);
	assert_int_equal(t.events[0].bytes, MMT_EXTENT);
	assert_true(t.events[0].deadline_ns == t.now + 500);
	seq = t.events[0].seq;
	{
		struct mm_request rq = { .op = MM_PRESSURE_ACK, .engine = e1,
					 .ack = { .seq = 99 } };

		mmt_refused(&t, mmt_submit(&t, &rq), -EINVAL, MM_BAD_ARGUMENT);
		rq.ack.seq = (uint32_t)seq;
		assert_int_equal(mmt_submit(&t, &rq), 0);
		rq.op = MM_VACATE_ACK;
		mmt_refused(&t, mmt_submit(&t, &rq), -ENOENT, MM_NO_SUCH_ID);
	}
	assert_int_equal(mmt_simple(&t, MM_EVENTS, 0, m1), 0);
	assert_int_equal(t.rp.nr_events, 0);
	/* It gives back: all of one extent but the kept empty, and another one. */
	t.nr_late = 0;
	assert_int_equal(mmt_free(&t, e1, a, 8), 0);
	assert_int_equal(t.nr_late, 0);
	assert_int_equal(mmt_map(&t, MM_UNIMPORT, m1, mm_page_extent(a[0]), 0), 0);
	mmt_run(&t);
	assert_int_equal(t.nr_late, 1);
	assert_int_equal(t.late.result, 0);
	assert_int_equal(t.late.nr_pages, 4);
	assert_int_equal(t.late.engine, e2);
	assert_true(mm_next_deadline(t.mm) == UINT64_MAX);
}

static void waiting_ends_with_the_deadline(void **state)
{
	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 64, NULL), 0);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 4, t.now + 500), MMT_LATER);
	mmt_tick(&t, t.now + 499);
	assert_int_equal(t.nr_late, 0);
	assert_int_equal(mmt_simple(&t, MM_EVENTS, 0, m1), 0);
	assert_int_equal(t.rp.nr_events, 1);
	mmt_tick(&t, t.now + 1);
	assert_int_equal(t.nr_late, 1);
	assert_int_equal(t.late.result, -ENOMEM);
	assert_int_equal(t.late.reason, MM_TIMED_OUT);
	assert_int_equal(mmt_simple(&t, MM_EVENTS, 0, m1), 0);
	assert_int_equal(t.rp.nr_events, 0);	/* nobody waits for it any more */
}

/* Who cannot wait is refused, but what it lacks is on its way when it comes again. */
static void cold_extents_of_others_are_there_at_the_next_try(void **state)
{
	uint32_t a = mmt_chain(&t, e1, c1, 0, 32), b = mmt_chain(&t, e1, c1, 1000, 32);

	(void)state;
	assert_int_equal(mmt_unlease(&t, e1, a), 0);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 9, NULL), -ENOMEM);
	assert_int_equal(t.rp.reason, MM_POOL_FULL);
	assert_int_equal(mm_vmstat(t.mm)->reclaim_direct, 2);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 9, NULL), 0);
	assert_int_equal(mm_vmstat(t.mm)->reclaim_direct, 2);
	assert_int_equal(mmt_unlease(&t, e1, b), 0);
}

static void cold_extents_of_others_are_taken_for_a_deadline(void **state)
{
	uint32_t a = mmt_chain(&t, e1, c1, 0, 32), b = mmt_chain(&t, e1, c1, 1000, 32);

	(void)state;
	assert_int_equal(mmt_unlease(&t, e1, a), 0);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 9, t.now + 500), 0);
	assert_int_equal(mm_vmstat(t.mm)->extents_destroy, 2);
	assert_int_equal(mmt_lookup(&t, e1, c1, 0, mmt_tokens(0), 512), 0);
	assert_true(t.rp.nr_pages <= 16);
	assert_int_equal(mmt_unlease(&t, e1, t.rp.lease), t.rp.lease ? 0 : -ENOENT);
	assert_int_equal(mmt_lookup(&t, e1, c1, 0, mmt_tokens(1000), 512), 0);
	assert_int_equal(t.rp.nr_pages, 32);	/* leased */
	assert_int_equal(mmt_unlease(&t, e1, b), 0);
}

static void the_first_to_wait_is_the_first_to_get(void **state)
{
	struct mm_cache_desc d = mmt_desc(7);
	uint32_t e3, m3, c3;
	uint64_t a[64];

	(void)state;
	assert_int_equal(mmt_attach(&t, 3000, &e3, &m3), 0);
	assert_int_equal(mmt_open(&t, e3, &d, &c3), 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 64, a), 0);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 16, t.now + 500), MMT_LATER);
	assert_int_equal(mmt_alloc_until(&t, e3, c3, 0, 1, t.now + 500), MMT_LATER);
	assert_int_equal(mmt_free(&t, e1, a, 8), 0);	/* one empty extent: not enough yet */
	assert_int_equal(t.nr_late, 0);
	mmt_refused(&t, mmt_alloc(&t, e3, c3, 0, 1, NULL), -ENOMEM, MM_POOL_FULL);
	assert_int_equal(mmt_free(&t, e1, a + 8, 8), 0);
	assert_int_equal(t.nr_late, 1);
	assert_int_equal(t.late.engine, e2);
	assert_int_equal(mmt_free(&t, e1, a + 16, 8), 0);
	assert_int_equal(t.nr_late, 2);
	assert_int_equal(t.late.engine, e3);
	assert_int_equal(t.late.result, 0);
}

static void a_dead_engine_s_allocations_are_forgotten(void **state)
{
	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 64, NULL), 0);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 4, t.now + 500), MMT_LATER);
	mmt_refused(&t, mmt_close(&t, e2, c2), -EBUSY, MM_LEASED);
	assert_int_equal(mmt_simple(&t, MM_FENCE, e2, 0), 0);
	assert_int_equal(t.mm->waiting.nr, 0);
	mmt_tick(&t, t.now + 1000);
	assert_int_equal(t.nr_late, 0);
}

static void the_queue_is_bounded(void **state)
{
	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 60, NULL), 0);
	for (uint32_t i = 0; i < 4; i++)	/* half of the queue is its share */
		assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 4, t.now + 500), MMT_LATER);
	mmt_refused(&t, mmt_alloc_until(&t, e2, c2, 0, 4, t.now + 500), -ENOMEM, MM_TABLE_FULL);
	assert_int_equal(t.rp.a, offsetof(struct mm_config, max_pending));
	assert_int_equal(t.rp.b, 4);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 4, NULL), 0);	/* own pages need no queue */
}

static void a_reservation_and_the_pool_share_one_budget(void **state)
{
	(void)state;
	mmt_refused(&t, mmt_reserve(&t, e1, 2, 1), -EINVAL, MM_BAD_ARGUMENT);
	mmt_refused(&t, mmt_reserve(&t, e1, 0, 8 * MMT_EXTENT + 1), -ENOMEM, MM_POOL_FULL);
	assert_int_equal(t.rp.b, 8 * MMT_EXTENT);
	assert_int_equal(mmt_reserve(&t, e1, 0, 7 * MMT_EXTENT), 0);
	assert_int_equal(mmt_reserve(&t, e1, 0, 7 * MMT_EXTENT + 5), 0);	/* not added up */
	mmt_refused(&t, mmt_reserve(&t, e2, 0, MMT_EXTENT), -ENOMEM, MM_POOL_FULL);
	mmt_refused(&t, mmt_alloc(&t, e2, c2, 0, 1, NULL), -ENOMEM, MM_POOL_FULL);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 1, t.now + 500), MMT_LATER);
	assert_int_equal(mmt_reserve(&t, e1, 0, 6 * MMT_EXTENT), 0);
	assert_int_equal(t.nr_late, 1);
	assert_int_equal(t.late.result, 0);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m1), 0);
	assert_int_equal(t.mm->device[0].reserved_bytes, 0);
}

static void a_tenant_s_max_is_its_own_affair(void **state)
{
	uint32_t lease;

	(void)state;
	tenant_at(t.mm, 1)->limit[0].max_bytes = 2 * MMT_EXTENT;
	lease = mmt_chain(&t, e1, c1, 0, 16);
	mmt_refused(&t, mmt_alloc(&t, e1, c1, 0, 1, NULL), -EDQUOT, MM_TENANT_MAX);
	assert_int_equal(t.rp.a, 2 * MMT_EXTENT);
	assert_int_equal(mmt_unlease(&t, e1, lease), 0);
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 16, NULL), 0);	/* its own cached pages */
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 16, NULL), 0);
}

static void frames_may_be_fragmented(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1), big = mmt_desc(2);
	struct mmt s;
	uint64_t ids[16];
	uint32_t e, cs, cb;

	(void)state;
	cfg.max_frames = 16;
	mmt_init(&s, &cfg);
	big.shard[0].page_bytes[0] = 4096;		/* 16 pages an extent */
	assert_int_equal(mmt_attach(&s, 1, &e, NULL), 0);
	assert_int_equal(mmt_open(&s, e, &d, &cs), 0);
	assert_int_equal(mmt_open(&s, e, &big, &cb), 0);
	assert_int_equal(mmt_alloc(&s, e, cs, 0, 1, ids), 0);
	mmt_refused(&s, mmt_alloc(&s, e, cb, 0, 1, ids), -ENOMEM, MM_TABLE_FULL);
	assert_int_equal(s.rp.a, offsetof(struct mm_config, max_frames));
	assert_int_equal(mmt_alloc_until(&s, e, cb, 0, 1, s.now + 9), -ENOMEM);
	mmt_fini(&s);

	mmt_init(&s, &cfg);
	assert_int_equal(mmt_attach(&s, 1, &e, NULL), 0);
	assert_int_equal(mmt_open(&s, e, &d, &cs), 0);
	assert_int_equal(mmt_open(&s, e, &big, &cb), 0);
	assert_int_equal(mmt_unlease(&s, e, mmt_chain(&s, e, cs, 0, 1)), 0);
	assert_int_equal(mmt_alloc_until(&s, e, cb, 0, 1, s.now + 9), 0); /* cleared a block */
	mmt_fini(&s);
}

static void extent_slots_can_run_out(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);
	struct mmt s;
	uint32_t ea, eb, ca, cb;

	(void)state;
	cfg.max_extents = 2;
	mmt_init(&s, &cfg);
	assert_int_equal(mmt_attach(&s, 1, &ea, NULL), 0);
	assert_int_equal(mmt_attach(&s, 2, &eb, NULL), 0);
	assert_int_equal(mmt_open(&s, ea, &d, &ca), 0);
	assert_int_equal(mmt_open(&s, eb, &d, &cb), 0);
	assert_int_equal(mmt_unlease(&s, ea, mmt_chain(&s, ea, ca, 0, 16)), 0);
	assert_int_equal(mmt_alloc(&s, eb, cb, 0, 1, NULL), -ENOMEM);
	assert_int_equal(s.rp.reason, MM_TABLE_FULL);
	assert_int_equal(s.rp.a, offsetof(struct mm_config, max_extents));
	assert_int_equal(s.rp.b, 2);
	assert_int_equal(mmt_alloc(&s, eb, cb, 0, 1, NULL), 0);
	mmt_fini(&s);
}

/* Two waiters of different devices, two slots: the second must not build what the first takes. */
static void who_waits_for_a_slot_bars_all_devices(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1), other = mmt_desc(2);
	struct mmt s;
	uint64_t a[8];
	uint32_t ea, eb, ec, ca, cb, cc;

	(void)state;
	cfg.max_extents = 2;
	mmt_init(&s, &cfg);
	other.shard[0].device = 1;
	assert_int_equal(mmt_attach(&s, 1, &ea, NULL), 0);
	assert_int_equal(mmt_attach(&s, 2, &eb, NULL), 0);
	assert_int_equal(mmt_attach(&s, 3, &ec, NULL), 0);
	assert_int_equal(mmt_open(&s, ea, &d, &ca), 0);
	assert_int_equal(mmt_open(&s, eb, &d, &cb), 0);
	assert_int_equal(mmt_open(&s, ec, &other, &cc), 0);
	assert_int_equal(mmt_alloc(&s, ea, ca, 0, 8, a), 0);
	assert_int_equal(mmt_alloc_until(&s, eb, cb, 0, 16, s.now + 90), MMT_LATER);
	assert_int_equal(mmt_alloc_until(&s, ec, cc, 0, 1, s.now + 90), MMT_LATER);
	assert_int_equal(mmt_free(&s, ea, a, 8), 0);
	assert_int_equal(s.nr_late, 2);		/* ec had nobody on its device to wait for */
	assert_int_equal(s.late.engine, eb);
	assert_int_equal(s.late.result, 0);
	assert_int_equal(mm_vmstat(s.mm)->extents_create, 3);
	mmt_fini(&s);
}

static void answers_wait_for_room_in_the_reply_queue(void **state)
{
	uint64_t a[64];
	struct mm_reply rp;
	uint32_t nr = 0;
	uint64_t cookie = 100;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 64, a), 0);
	/* Fill the queue without fetching. */
	for (;; cookie++) {
		struct mm_request rq = { .op = MM_STAT, .engine = e1, .cookie = cookie };

		if (mm_submit(t.mm, &rq, t.now))
			break;
		nr++;
	}
	assert_int_equal(nr, REPLY_RING);
	{
		struct mm_request bad = { .op = 99 }, look = { .op = MM_LOOKUP, .engine = e1 };

		assert_int_equal(mm_submit(t.mm, &bad, t.now), -EAGAIN);
		assert_int_equal(mm_submit(t.mm, &look, t.now), -EAGAIN);
	}
	while (mm_next_reply(t.mm, &rp))
		nr--;
	assert_int_equal(nr, 0);
	assert_int_equal(mmt_simple(&t, 99, e1, 0), -EINVAL);
	assert_int_equal(mmt_simple(&t, 0, e1, 0), -EINVAL);
	/* Four wait; the queue has no room when they could be served. */
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 2, t.now + 500), MMT_LATER);
	t.hold = true;
	assert_int_equal(mmt_free(&t, e1, a, 16), 0);
	for (uint32_t i = 0; i < REPLY_RING - 1; i++) {
		struct mm_request rq = { .op = MM_STAT, .engine = e1 };

		assert_int_equal(mm_submit(t.mm, &rq, t.now), 0);
	}
	mmt_fetch(&t);
	assert_int_equal(t.nr_fx, 1);
	mmt_complete(&t, 0, 0);		/* destroyed */
	mmt_fetch(&t);
	assert_int_equal(t.fx[0].kind, MM_EFFECT_CREATE);
	mmt_complete(&t, 0, 0);
	assert_true(mm_next_deadline(t.mm) <= t.now);	/* work is left */
	while (mm_next_reply(t.mm, &rp))
		nr += rp.op == MM_ALLOC;
	mmt_tick(&t, t.now);
	assert_int_equal(nr + t.nr_late, 4);
}

/* ---- what a change costs those that wait --------------------------------------------------- */

#define MANY	1024u

/* Many engines' allocations wait for the pool, all of it held by the first one, which then frees
 * and allocates page after page: steps taken on the waiting. */
static uint64_t steps_of_frees(uint32_t nr_devices)
{
	struct mm_config cfg = mmt_config();
	struct mmt s;
	uint64_t ids[64], before;
	uint32_t e[2 * MANY / 64], c[2 * MANY / 64], nr = 0;

	cfg.max_pending = MANY;
	cfg.max_engines = cfg.max_members = cfg.max_tenants = 40;
	cfg.max_caches = 100;
	mmt_init(&s, &cfg);
	for (uint32_t i = 0; i < 33; i++) {
		struct mm_cache_desc d = mmt_desc(1);

		d.shard[0].device = i % nr_devices;
		assert_int_equal(mmt_attach(&s, 1 + i, &e[i % 32], NULL), 0);
		assert_int_equal(mmt_open(&s, e[i % 32], &d, &c[i % 32]), 0);
		if (i < nr_devices)		/* the first ones hold all there is */
			assert_int_equal(mmt_alloc(&s, e[i], c[i], 0, 64, i ? NULL : ids), 0);
		if (i < nr_devices)
			continue;
		for (uint32_t k = 0; k < 31; k++, nr++)
			assert_int_equal(mmt_alloc_until(&s, e[i % 32], c[i % 32], 0, 1,
							 s.now + 1000000), MMT_LATER);
		if (i == 31)
			break;
	}
	assert_true(nr > 900 && s.mm->waiting.nr == nr);
	before = s.mm->queue.nr_looks;
	for (uint32_t i = 0; i < 1000; i++) {
		assert_int_equal(mmt_free(&s, e[0], &ids[i % 7], 1), 0);
		assert_int_equal(mmt_alloc(&s, e[0], c[0], 0, 1, &ids[i % 7]), 0);
	}
	before = s.mm->queue.nr_looks - before;
	assert_true(s.mm->waiting.nr == nr);
	mmt_fini(&s);
	return before;
}

static void a_change_costs_nothing_to_those_it_is_no_use_to(void **state)
{
	(void)state;
	assert_true(steps_of_frees(1) == 0);
	assert_true(steps_of_frees(2) == 0);
}

/* An extent that is emptied, kept, and used again could be taken by the first that waits: only it
 * is asked. Here each waits for more than that. */
static void a_change_of_the_pool_is_looked_at_by_the_first(void **state)
{
	uint64_t a[64], before;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c1, 0, 64, a), 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 40, t.now + 500), MMT_LATER);
	assert_int_equal(mmt_free(&t, e1, a, 7), 0);
	before = t.mm->queue.nr_looks;
	for (uint32_t i = 0; i < 100; i++) {
		assert_int_equal(mmt_free(&t, e1, a + 7, 1), 0);
		assert_int_equal(mmt_alloc(&t, e1, c1, 0, 1, a + 7), 0);
	}
	assert_int_equal(t.mm->queue.nr_looks - before, 100);
	assert_int_equal(t.mm->waiting.nr, 4);
}

/* One slab's waiters are tried a budget at a time, the rest by ticks, and none is forgotten. */
static void a_long_queue_is_served_in_pieces(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);
	struct mmt s;
	uint64_t ids[64], before;
	uint32_t ea, eb, ca, cb, nr = 0;

	(void)state;
	cfg.max_pending = MANY;
	mmt_init(&s, &cfg);
	assert_int_equal(mmt_attach(&s, 1, &ea, NULL), 0);
	assert_int_equal(mmt_attach(&s, 2, &eb, NULL), 0);
	assert_int_equal(mmt_open(&s, ea, &d, &ca), 0);
	assert_int_equal(mmt_open(&s, eb, &d, &cb), 0);
	assert_int_equal(mmt_alloc(&s, ea, ca, 0, 56, NULL), 0);
	assert_int_equal(mmt_alloc(&s, eb, cb, 0, 8, ids), 0);
	for (; nr < 400; nr++)
		assert_int_equal(mmt_alloc_until(&s, eb, cb, 0, nr < 396 ? 5 : 1, s.now + 500),
				 MMT_LATER);
	before = s.mm->queue.nr_looks;
	assert_int_equal(mmt_free(&s, eb, ids, 4), 0);
	assert_true(s.mm->queue.nr_looks - before <= 2 * PENDING_BUDGET);
	assert_int_equal(s.nr_late, 0);			/* those it would do for come late */
	for (uint32_t i = 0; i < 8 && mm_next_deadline(s.mm) <= s.now; i++)
		mmt_tick(&s, s.now);
	assert_int_equal(s.nr_late, 4);
	assert_true(mm_next_deadline(s.mm) == s.now + 500);
	mmt_tick(&s, s.now + 500);			/* all are late at once */
	while (mm_next_deadline(s.mm) <= s.now)
		mmt_tick(&s, s.now);
	assert_int_equal(s.nr_late, 400);
	assert_int_equal(s.mm->waiting.nr, 0);
	mmt_fini(&s);
}

/* Two groups: what is reclaimed for one frees as many pages of the other, where somebody waits for
 * an extent that is still being made. */
static void pages_freed_for_another_group_are_not_overlooked(void **state)
{
	struct mm_cache_desc d = mmt_desc(9);
	uint64_t ids[16];
	uint32_t c, lease;

	(void)state;
	d.nr_groups = 2;
	d.group[1].kind = MM_GROUP_FULL;
	d.shard[0].page_bytes[1] = MMT_PAGE;
	assert_int_equal(mmt_open(&t, e1, &d, &c), 0);
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 8, ids), 0);
	assert_int_equal(mmt_alloc(&t, e1, c, 1, 8, ids + 8), 0);
	assert_int_equal(mmt_commit_keys(&t, e1, c, 0, 0, mmt_tokens(0), 8 * MMT_PT, ids, 8,
					 NULL, 0), 0);
	lease = t.rp.lease;
	assert_int_equal(mmt_alloc(&t, e1, c, 1, 32, NULL), 0);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 1, NULL), 0);	/* there is somebody to press */
	t.hold = true;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 3, NULL), MMT_LATER);
	assert_int_equal(mmt_alloc_until(&t, e1, c, 1, 4, t.now + 1000), MMT_LATER);
	t.nr_late = 0;
	assert_int_equal(mmt_unlease(&t, e1, lease), 0);
	assert_int_equal(t.nr_late, 2);
	assert_int_equal(t.nr_fx, 1);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(one_extent_serves_all_that_wait_for_it),
		T(a_refused_creation_is_not_tried_forever),
		T(without_a_deadline_a_full_pool_refuses),
		T(pressure_is_raised_and_answered),
		T(waiting_ends_with_the_deadline),
		T(cold_extents_of_others_are_there_at_the_next_try),
		T(cold_extents_of_others_are_taken_for_a_deadline),
		T(the_first_to_wait_is_the_first_to_get),
		T(a_dead_engine_s_allocations_are_forgotten),
		T(the_queue_is_bounded),
		T(a_reservation_and_the_pool_share_one_budget),
		T(a_tenant_s_max_is_its_own_affair),
		cmocka_unit_test(frames_may_be_fragmented),
		cmocka_unit_test(extent_slots_can_run_out),
		cmocka_unit_test(who_waits_for_a_slot_bars_all_devices),
		T(answers_wait_for_room_in_the_reply_queue),
		cmocka_unit_test(a_change_costs_nothing_to_those_it_is_no_use_to),
		T(a_change_of_the_pool_is_looked_at_by_the_first),
		cmocka_unit_test(a_long_queue_is_served_in_pieces),
		T(pages_freed_for_another_group_are_not_overlooked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
