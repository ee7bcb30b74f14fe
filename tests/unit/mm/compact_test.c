// SPDX-License-Identifier: Apache-2.0
/* Extents are emptied: content moves, engines are asked, the pool gets the extents back. */
#include "mmt.h"

#define ANSWER	1000000ull
#define IDLE	(50 * ANSWER)
#define PAGES	8u		/* an extent */
#define NONE	99u

static struct mm_config config(uint32_t extents)
{
	struct mm_config c = mmt_config();

	c.answer_ns = ANSWER;
	c.idle_ns = IDLE;
	c.device[0].pool_bytes = extents * MMT_EXTENT;
	c.max_leases = 512;
	c.max_extents = 256;
	c.max_frames = 4096;
	c.max_nodes = 2048;
	c.max_tokens = 32768;
	return c;
}

static uint32_t nr_extents(struct mmt *t)
{
	return mmt_device_extents(t, 0);
}

static void ticks(struct mmt *t, uint32_t nr)
{
	while (nr-- && mm_next_deadline(t->mm) <= t->now) {
		mmt_tick(t, t->now);
		if (!t->hold)
			mmt_run(t);
	}
}

static const struct mm_event *event_of(struct mmt *t, uint32_t member, uint32_t kind)
{
	mmt_simple(t, MM_EVENTS, 0, member);
	for (uint32_t i = 0; i < t->rp.nr_events; i++)
		if (t->events[i].kind == kind)
			return &t->events[i];
	return NULL;
}

static int ack(struct mmt *t, uint32_t engine, uint32_t extent)
{
	struct mm_request rq = { .op = MM_VACATE_ACK, .engine = engine,
				 .ack = { .extent = extent } };

	return mmt_submit(t, &rq);
}

/* nr extents of which keep pages each stay held: ids[extent * keep + i]. */
static void hold_parts(struct mmt *t, uint32_t e, uint32_t c, uint32_t nr, uint32_t keep,
		       uint64_t *ids)
{
	uint64_t all[128 * PAGES];

	for (uint32_t x = 0; x < nr; x++)
		assert_int_equal(mmt_alloc(t, e, c, 0, PAGES, all + x * PAGES), 0);
	for (uint32_t x = 0; x < nr; x++) {
		memcpy(ids + x * keep, all + x * PAGES, keep * sizeof(*ids));
		assert_int_equal(mmt_free(t, e, all + x * PAGES + keep, PAGES - keep), 0);
	}
}

/* Serves every vacate event as libkv does; returns the number of pages that moved. */
static uint32_t vacate(struct mmt *t, uint32_t e, uint32_t m, uint32_t c, uint64_t *ids,
		       uint32_t nr)
{
	const struct mm_event *ev;
	uint32_t moved = 0;

	while ((ev = event_of(t, m, MM_EVENT_VACATE))) {
		uint32_t ext = ev->extent;

		for (uint32_t i = 0; i < nr; i++) {
			uint64_t old = ids[i];

			if (mm_page_extent(old) != ext)
				continue;
			assert_int_equal(mmt_alloc(t, e, c, 0, 1, &ids[i]), 0);
			assert_true(mm_page_extent(ids[i]) != ext);
			assert_int_equal(mmt_free(t, e, &old, 1), 0);
			moved++;
		}
		ack(t, e, ext);
	}
	return moved;
}

static uint32_t bind_of(struct mmt *t, uint64_t id)
{
	return extent_at(t->mm, mm_page_extent(id))->bind;
}

/* Begins to drain what can be; how many extents? */
static uint32_t pack(struct mmt *t, uint32_t bind)
{
	uint32_t nr = 0;

	while (compact_pack(t->mm, bind, 0, 0))
		nr++;
	return nr;
}

/* ---- held pages ---------------------------------------------------------------------------- */

static void engine_leaves_an_extent_it_is_asked_to_leave(void **state)
{
	struct mm_config cfg = config(4);
	struct mm_cache_desc d = mmt_desc(1);
	const struct mm_event *ev;
	struct mmt t;
	uint32_t e, m, c, ext, moved;
	uint64_t ids[8];

	(void)state;
	mmt_init(&t, &cfg);
	mmt_attach(&t, 1, &e, &m);
	mmt_open(&t, e, &d, &c);
	hold_parts(&t, e, c, 2, 4, ids);
	t.nr_notify = 0;
	assert_true(compact_pack(t.mm, bind_of(&t, ids[0]), 0, 0));
	mm_check(t.mm);
	mmt_fetch(&t);
	assert_int_equal(t.nr_notify, 1);
	ev = event_of(&t, m, MM_EVENT_VACATE);
	assert_non_null(ev);
	assert_true(ev->seq != 0 && ev->deadline_ns == t.now + ANSWER);
	ext = ev->extent;
	mmt_refused(&t, ack(&t, e, ext), -EBUSY, MM_LEASED);
	assert_int_equal(t.rp.a, 4);
	moved = vacate(&t, e, m, c, ids, 8);
	assert_int_equal(moved, 4);
	assert_int_equal(nr_extents(&t), 1);
	assert_int_equal(mm_vmstat(t.mm)->vacates, 1);
	assert_int_equal(mm_vmstat(t.mm)->vacate_fail, 0);
	assert_null(event_of(&t, m, MM_EVENT_VACATE));
	mmt_fini(&t);
}

static void vacate_past_its_deadline_is_given_up_and_rests(void **state)
{
	struct mm_config cfg = config(4);
	struct mm_cache_desc d = mmt_desc(1);
	struct mm_engine_info info;
	struct mmt t;
	uint32_t e, m, c, bind;
	uint64_t ids[8];

	(void)state;
	mmt_init(&t, &cfg);
	mmt_attach(&t, 1, &e, &m);
	mmt_open(&t, e, &d, &c);
	hold_parts(&t, e, c, 2, 4, ids);
	bind = bind_of(&t, ids[0]);
	assert_true(compact_pack(t.mm, bind, 0, 0));
	assert_int_equal(mm_next_deadline(t.mm), t.now + ANSWER);
	mmt_tick(&t, t.now + ANSWER - 1);
	assert_non_null(event_of(&t, m, MM_EVENT_VACATE));
	mmt_tick(&t, t.now + 1);
	assert_null(event_of(&t, m, MM_EVENT_VACATE));
	assert_int_equal(mm_vmstat(t.mm)->vacate_fail, 1);
	assert_int_equal(mm_engine_info(t.mm, e, &info), 0);
	assert_int_equal(info.debts, 1);
	/* The other one may be tried, it itself not; nor is anything lost. */
	assert_true(compact_pack(t.mm, bind, 0, 0));
	assert_false(compact_pack(t.mm, bind, 0, 0));
	mmt_tick(&t, t.now + ANSWER);
	assert_true(compact_pack(t.mm, bind, 0, 0));
	mmt_tick(&t, t.now + ANSWER);
	assert_int_equal(mmt_free(&t, e, ids, 8), 0);
	mmt_fini(&t);
}

static void owner_that_runs_out_of_pages_takes_its_extent_back(void **state)
{
	struct mm_config cfg = config(2);
	struct mm_cache_desc d = mmt_desc(1);
	struct mmt t;
	uint32_t e, m, c;
	struct mm_limits one = { .high_bytes = MM_NO_LIMIT, .max_bytes = MMT_EXTENT };
	struct mm_limits two = { .high_bytes = MM_NO_LIMIT, .max_bytes = 2 * MMT_EXTENT };
	uint64_t ids[8], more[8];

	(void)state;
	mmt_init(&t, &cfg);
	mmt_attach(&t, 1, &e, &m);
	mmt_open(&t, e, &d, &c);
	hold_parts(&t, e, c, 2, 4, ids);
	assert_true(compact_pack(t.mm, bind_of(&t, ids[0]), 0, 0));
	assert_int_equal(mmt_alloc(&t, e, c, 0, 8, more), 0);
	assert_null(event_of(&t, m, MM_EVENT_VACATE));
	assert_int_equal(mmt_free(&t, e, more, 8), 0);

	/* One that a limit wants is not given back. */
	mmt_tick(&t, t.now + ANSWER);
	assert_true(compact_pack(t.mm, bind_of(&t, ids[0]), 0, DRAIN_STICKY));
	assert_int_equal(mmt_limits(&t, 1, 0, one, MM_OOM_NONE), 0);
	assert_int_equal(mmt_alloc(&t, e, c, 0, 8, more), -EDQUOT);
	assert_int_equal(mmt_alloc(&t, e, c, 0, 4, more), 0);
	assert_non_null(event_of(&t, m, MM_EVENT_VACATE));
	/* Unless the limit is met without it. */
	assert_int_equal(mmt_limits(&t, 1, 0, two, MM_OOM_NONE), 0);
	assert_int_equal(mmt_alloc(&t, e, c, 0, 4, more), 0);
	assert_null(event_of(&t, m, MM_EVENT_VACATE));
	mmt_fini(&t);
}

static void hundred_half_empty_extents_of_held_pages_shrink_to_55(void **state)
{
	struct mm_config cfg = config(101);
	struct mm_cache_desc d = mmt_desc(1);
	static uint64_t ids[400];
	struct mmt t;
	uint32_t e, m, c, moved = 0;

	(void)state;
	mmt_init(&t, &cfg);
	mmt_attach(&t, 1, &e, &m);
	mmt_open(&t, e, &d, &c);
	hold_parts(&t, e, c, 100, 4, ids);
	assert_int_equal(nr_extents(&t), 100);
	for (uint32_t i = 0; i < 8; i++) {
		pack(&t, bind_of(&t, ids[0]));
		moved += vacate(&t, e, m, c, ids, 400);
	}
	print_message("held: %u extents, %u pages moved by the client\n", nr_extents(&t), moved);
	assert_true(nr_extents(&t) <= 55);
	assert_true(moved <= 220);
	for (uint32_t i = 0; i < 400; i += 40)
		assert_int_equal(mmt_free(&t, e, ids + i, 40), 0);
	mmt_fini(&t);
}

/* A request of each kind, right in all it names. */
static struct mm_request good(struct mmt *t, enum mm_op op, uint32_t e, uint32_t c, uint64_t *page)
{
	static struct mm_cache_desc other;
	static uint32_t lease;
	uint32_t window;

	other = mmt_desc(2);
	other.group[0] = (struct mm_group_desc){ .kind = MM_GROUP_WINDOW, .window_tokens = 16 };
	assert_int_equal(mmt_open(t, e, &other, &window), 0);
	lease = mmt_chain(t, e, op == MM_DROP_HEAD ? window : c, 0, 4);
	switch (op) {
	case MM_CACHE_OPEN:
		return (struct mm_request){ .op = op, .engine = e, .open.desc = &other };
	case MM_ALLOC:
		return (struct mm_request){ .op = op, .engine = e, .cache = c,
					    .alloc.nr_pages = 1 };
	case MM_FREE:
		return (struct mm_request){ .op = op, .engine = e, .free = { page, 1 } };
	case MM_LOOKUP:
		return (struct mm_request){ .op = op, .engine = e, .cache = c,
					    .lookup = { mmt_tokens(0), MMT_PT, NULL, 0 } };
	case MM_COMMIT:
		return (struct mm_request){ .op = op, .engine = e, .cache = c,
					    .commit = { 0, mmt_tokens(300), MMT_PT, page, 1, NULL,
							0 } };
	case MM_UNLEASE:
		return (struct mm_request){ .op = op, .engine = e, .unlease = { &lease, 1 } };
	case MM_RESUME:
	case MM_UNPARK:
		assert_int_equal(mmt_park(t, MM_PARK, e, lease, 0, 0), 0);
		return (struct mm_request){ .op = op, .engine = e, .park.park = t->rp.park };
	case MM_PARK:
		return (struct mm_request){ .op = op, .engine = e, .park.lease = lease };
	case MM_HINT:
		return (struct mm_request){ .op = op, .engine = e, .hint.lease = lease };
	case MM_RESERVE:
		return (struct mm_request){ .op = op, .engine = e };
	default:
		return (struct mm_request){ .op = op, .engine = e, .lease = { lease, 1 } };
	}
}

/* Looking at its own numbers is not, nor is asking what there is to do. */
static void engine_that_asks_for_anything_is_at_work(void **state)
{
	const enum mm_op ops[] = {
		MM_CACHE_OPEN, MM_ALLOC, MM_FREE, MM_LOOKUP, MM_COMMIT, MM_LEASE_DUP, MM_UNLEASE,
		MM_PARK, MM_RESUME, MM_UNPARK, MM_DROP_HEAD, MM_RESERVE, MM_HINT, MM_STAT,
	};
	struct mm_config cfg = config(20);
	struct mm_cache_desc d = mmt_desc(1);

	(void)state;
	for (uint32_t i = 0; i < sizeof(ops) / sizeof(*ops); i++) {
		struct mm_request rq;
		struct mmt t;
		uint32_t e, m, c;
		uint64_t ids[20];

		mmt_init(&t, &cfg);
		mmt_attach(&t, 1, &e, &m);
		mmt_open(&t, e, &d, &c);
		hold_parts(&t, e, c, 10, 2, ids);
		rq = good(&t, ops[i], e, c, ids);
		t.now += IDLE - 1;
		assert_int_equal(mmt_submit(&t, &rq), 0);
		t.now += 1;
		ticks(&t, 100);
		if (!event_of(&t, m, MM_EVENT_VACATE) != (ops[i] != MM_STAT))
			fail_msg("op %u", ops[i]);
		mmt_fini(&t);
	}
}

static void idle_engine_keeps_its_held_pages_and_one_extent(void **state)
{
	struct mm_config cfg = config(12);
	struct mm_cache_desc d = mmt_desc(1);
	struct mmt t;
	uint32_t e, m, c;
	uint64_t ids[20];

	(void)state;
	mmt_init(&t, &cfg);
	mmt_attach(&t, 1, &e, &m);
	mmt_open(&t, e, &d, &c);
	hold_parts(&t, e, c, 10, 2, ids);
	assert_int_equal(nr_extents(&t), 10);
	assert_int_equal(mm_next_deadline(t.mm), t.now + IDLE);
	mmt_tick(&t, t.now + IDLE - 1);
	assert_null(event_of(&t, m, MM_EVENT_VACATE));
	t.now += 1;
	ticks(&t, 100);
	/* 20 pages need 3 extents; one more is its to keep. */
	assert_int_equal(vacate(&t, e, m, c, ids, 20), 12);
	assert_int_equal(nr_extents(&t), 4);
	/* It has asked for pages meanwhile; idle again, there is nothing more to do. */
	t.now += IDLE;
	ticks(&t, 100);
	assert_null(event_of(&t, m, MM_EVENT_VACATE));
	assert_true(mm_next_deadline(t.mm) == UINT64_MAX);
	mmt_fini(&t);
}

/* ---- cached pages -------------------------------------------------------------------------- */

/* A chain of two pages in each of nr extents, the other six pages freed. */
static uint32_t cached_parts(struct mmt *t, uint32_t e, uint32_t c, uint32_t nr, uint32_t keep,
			     uint32_t *leases)
{
	static uint64_t all[128 * PAGES];

	for (uint32_t x = 0; x < nr; x++)
		assert_int_equal(mmt_alloc(t, e, c, 0, PAGES, all + x * PAGES), 0);
	for (uint32_t x = 0; x < nr; x++) {
		uint32_t tokens[PAGES * MMT_PT];

		for (uint32_t i = 0; i < keep * MMT_PT; i++)
			tokens[i] = x * 1000 + i;
		assert_int_equal(mmt_commit(t, e, c, 0, tokens, keep * MMT_PT, all + x * PAGES), 0);
		leases[x] = t->rp.lease;
		assert_int_equal(mmt_free(t, e, all + x * PAGES + keep, PAGES - keep), 0);
	}
	return nr;
}

/* Finds chain x whole; its pages are in t->pages, the lease is returned. */
static uint32_t find_chain(struct mmt *t, uint32_t e, uint32_t c, uint32_t x, uint32_t keep)
{
	uint32_t tokens[PAGES * MMT_PT];

	for (uint32_t i = 0; i < keep * MMT_PT; i++)
		tokens[i] = x * 1000 + i;
	assert_int_equal(mmt_lookup(t, e, c, 0, tokens, keep * MMT_PT), 0);
	assert_int_equal(t->rp.nr_pages, keep);
	return t->rp.lease;
}

/* What stands in each place: the executor's view, which knows nothing of nodes. */
static uint64_t content[256][2][PAGES];

static void carry_out(struct mmt *t)
{
	mmt_fetch(t);
	while (t->nr_fx) {
		const struct mm_effect *fx = &t->fx[0];

		if (fx->kind == MM_EFFECT_MOVE) {
			assert_true(fx->extent != fx->to_extent);
			assert_int_equal(fx->page_bytes, MMT_PAGE);
			content[fx->to_extent][fx->shard][fx->to_slot] =
				content[fx->extent][fx->shard][fx->slot];
		}
		mmt_complete(t, 0, 0);
		mmt_fetch(t);
	}
}

static uint64_t *place(uint64_t id, uint32_t shard)
{
	return &content[mm_page_extent(id)][shard][mm_page_slot(id)];
}

static void hundred_half_empty_extents_of_cached_pages_shrink_to_55(void **state)
{
	struct mm_config cfg = config(101);
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t e, c, leases[100];
	struct mmt t;

	(void)state;
	mmt_init(&t, &cfg);
	mmt_attach(&t, 1, &e, NULL);
	mmt_open(&t, e, &d, &c);
	cached_parts(&t, e, c, 100, 4, leases);
	for (uint32_t x = 0; x < 100; x++) {
		uint32_t lease = find_chain(&t, e, c, x, 4);

		for (uint32_t i = 0; i < 4; i++)
			*place(t.pages[i], 0) = x * 100 + i;
		mmt_unlease(&t, e, lease);
		mmt_unlease(&t, e, leases[x]);
	}
	assert_int_equal(nr_extents(&t), 100);
	t.hold = true;
	while (pack(&t, bind_of(&t, t.pages[0])))
		while (mm_next_deadline(t.mm) <= t.now) {
			ticks(&t, 1);
			carry_out(&t);
		}
	print_message("cached: %u extents, %u pages moved\n", nr_extents(&t),
		      (uint32_t)mm_vmstat(t.mm)->pages_move);
	assert_true(nr_extents(&t) <= 55);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 0);
	assert_int_equal(mm_vmstat(t.mm)->move_fail, 0);
	for (uint32_t x = 0; x < 100; x++) {
		find_chain(&t, e, c, x, 4);
		for (uint32_t i = 0; i < 4; i++)
			assert_int_equal(*place(t.pages[i], 0), x * 100 + i);
	}
	mmt_fini(&t);
}

/* Two extents of two cached pages each; one of them is being drained, its moves are in t->fx. */
static uint32_t begin_moves(struct mmt *t, const struct mm_cache_desc *d, uint32_t *e, uint32_t *m,
			    uint32_t *c)
{
	struct mm_config cfg = config(8);
	uint32_t leases[2], victim = NONE;
	uint64_t from;

	cfg.device[1].pool_bytes = cfg.device[0].pool_bytes;
	mmt_init(t, &cfg);
	mmt_attach(t, 1, e, m);
	mmt_open(t, *e, d, c);
	cached_parts(t, *e, *c, 2, 2, leases);
	mmt_unlease(t, *e, leases[0]);
	mmt_unlease(t, *e, leases[1]);
	t->hold = true;
	compact_pack(t->mm, bind_of(t, t->pages[0]), 0, 0);
	mmt_tick(t, t->now);
	assert_int_equal(t->nr_fx, 2 * d->nr_shards);
	from = t->fx[0].extent;
	for (uint32_t x = 0; x < 2; x++) {
		uint32_t lease = find_chain(t, *e, *c, x, 2);

		if (mm_page_extent(t->pages[0]) == from)
			victim = x;
		mmt_unlease(t, *e, lease);
	}
	assert_true(victim != NONE);
	return victim;
}

static void page_leased_while_it_moves_stays(void **state)
{
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t e, m, c, x, lease;
	uint64_t ids[2];
	struct mmt t;

	(void)state;
	x = begin_moves(&t, &d, &e, &m, &c);
	lease = find_chain(&t, e, c, x, 2);
	memcpy(ids, t.pages, sizeof(ids));
	carry_out(&t);
	assert_int_equal(mm_vmstat(t.mm)->pages_move, 0);
	assert_int_equal(mm_vmstat(t.mm)->move_fail, 2);
	find_chain(&t, e, c, x, 2);
	assert_memory_equal(ids, t.pages, sizeof(ids));
	/* Past the deadline the leases win; afterwards it is tried again. */
	mmt_tick(&t, t.now + ANSWER);
	mmt_unlease(&t, e, lease);
	mmt_unlease(&t, e, t.rp.lease);
	mmt_fini(&t);
}

static void page_evicted_while_it_moves_frees_both_places(void **state)
{
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t e, m, c, budget = 100;
	struct mmt t;

	(void)state;
	begin_moves(&t, &d, &e, &m, &c);
	while (cache_at(t.mm, 1)->children)
		node_evict(t.mm, cache_at(t.mm, 1)->children, &budget);
	mmt_tick(&t, t.now);
	assert_int_equal(nr_extents(&t), 2);	/* copies are still made from one, to the other */
	carry_out(&t);
	mmt_tick(&t, t.now);
	carry_out(&t);
	assert_int_equal(mm_vmstat(t.mm)->move_fail, 2);
	assert_int_equal(nr_extents(&t), 1);
	mmt_fini(&t);
}

static void engine_that_dies_while_its_pages_move_leaves_them_whole(void **state)
{
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t e, m, c, x, e2, m2, c2;
	struct mmt t;

	(void)state;
	x = begin_moves(&t, &d, &e, &m, &c);
	mmt_attach(&t, 1, &e2, &m2);
	mmt_open(&t, e2, &d, &c2);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m), 0);
	carry_out(&t);
	assert_int_equal(mm_vmstat(t.mm)->pages_move, 2);
	find_chain(&t, e2, c2, x, 2);
	find_chain(&t, e2, c2, 1 - x, 2);
	mmt_fini(&t);
}

static void private_cache_that_goes_while_pages_move_leaves_nothing(void **state)
{
	struct mm_cache_desc d = mmt_desc(0);
	uint32_t e, m, c;
	struct mmt t;

	(void)state;
	begin_moves(&t, &d, &e, &m, &c);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m), 0);
	carry_out(&t);
	assert_int_equal(mm_vmstat(t.mm)->pages_move, 0);
	assert_int_equal(nr_extents(&t), 0);
	mmt_fini(&t);
}

static void orphans_adopted_while_pages_move_keep_their_content(void **state)
{
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t e, m, c, x, e2, m2, c2;
	uint64_t ids[6];
	struct mmt t;

	(void)state;
	x = begin_moves(&t, &d, &e, &m, &c);
	mmt_attach(&t, 1, &e2, &m2);
	mmt_open(&t, e2, &d, &c2);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m), 0);
	assert_int_equal(mmt_alloc(&t, e2, c2, 0, 4, ids), 0);
	assert_int_equal(mm_vmstat(t.mm)->extents_adopt, 1);
	carry_out(&t);
	find_chain(&t, e2, c2, x, 2);
	find_chain(&t, e2, c2, 1 - x, 2);
	mmt_fini(&t);
}

static void one_shard_that_fails_leaves_the_page_where_it_is(void **state)
{
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t e, m, c, x, moves = 0;
	struct mmt t;

	(void)state;
	d.nr_shards = 2;
	d.shard[1] = d.shard[0];
	d.shard[1].device = 1;
	x = begin_moves(&t, &d, &e, &m, &c);
	for (uint32_t i = 0; i < t.nr_fx; i++) {
		assert_int_equal(t.fx[i].device, t.fx[i].shard);
		moves |= 1u << t.fx[i].shard;
	}
	assert_int_equal(moves, 3);
	mmt_complete(&t, 0, -EIO);
	while (t.nr_fx)
		mmt_complete(&t, 0, 0);
	assert_int_equal(mm_vmstat(t.mm)->pages_move, 1);
	assert_int_equal(mm_vmstat(t.mm)->move_fail, 1);
	assert_true(mm_next_deadline(t.mm) > t.now);	/* not at once again */
	find_chain(&t, e, c, x, 2);
	find_chain(&t, e, c, 1 - x, 2);
	mmt_fini(&t);
}

/* What is no longer, or was never, under way cannot end. */
static void a_move_ends_once_and_by_its_own_id(void **state)
{
	struct mm_cache_desc d = mmt_desc(1);
	uint64_t digest, id[2];
	uint32_t e, m, c, x;
	struct mmt t;

	(void)state;
	x = begin_moves(&t, &d, &e, &m, &c);
	assert_int_equal(t.nr_fx, 2);
	id[0] = t.fx[0].id;
	id[1] = t.fx[1].id;
	digest = mm_digest(t.mm);
	for (uint32_t bit = 0; bit < 44; bit++)	/* shard, slot, number */
		if ((id[0] ^ 1ull << bit) != id[1])
			assert_int_equal(mm_complete(t.mm, id[0] ^ 1ull << bit, 0, t.now), -ENOENT);
	assert_true(mm_digest(t.mm) == digest);
	mmt_complete(&t, 0, 0);
	digest = mm_digest(t.mm);
	assert_int_equal(mm_complete(t.mm, id[0], 0, t.now), -ENOENT);
	assert_int_equal(mm_complete(t.mm, id[0], -EIO, t.now), -ENOENT);
	assert_true(mm_digest(t.mm) == digest);
	carry_out(&t);
	assert_int_equal(mm_complete(t.mm, id[1], 0, t.now), -ENOENT);
	assert_int_equal(mm_vmstat(t.mm)->pages_move, 2);
	find_chain(&t, e, c, x, 2);
	mmt_fini(&t);
}

static void page_id_of_moved_content_is_new_and_the_old_one_stale(void **state)
{
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t e, m, c, x, lease;
	uint64_t old[2];
	struct mmt t;

	(void)state;
	x = begin_moves(&t, &d, &e, &m, &c);
	lease = find_chain(&t, e, c, x, 2);
	memcpy(old, t.pages, sizeof(old));
	mmt_unlease(&t, e, lease);
	assert_int_equal(mm_complete(t.mm, t.fx[0].id + (1ull << 40), 0, t.now), -ENOENT);
	carry_out(&t);
	assert_int_equal(mm_vmstat(t.mm)->pages_move, 2);
	find_chain(&t, e, c, x, 2);
	assert_true(t.pages[0] != old[0] && t.pages[1] != old[1]);
	mmt_refused(&t, mmt_free(&t, e, old, 2), -ESTALE, MM_STALE_PAGE);
	mmt_fini(&t);
}

/* Extents that are emptied for others: its own cached pages go before it takes one back. */
static void owner_uses_up_its_cached_pages_before_it_takes_back(void **state)
{
	struct mm_config cfg = config(3);
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t e, m, c, bind;
	uint64_t ids[3 * PAGES], held[3];
	struct mmt t;

	(void)state;
	mmt_init(&t, &cfg);
	mmt_attach(&t, 1, &e, &m);
	mmt_open(&t, e, &d, &c);
	assert_int_equal(mmt_alloc(&t, e, c, 0, 3 * PAGES, ids), 0);
	for (uint32_t i = 0; i < 3; i++) {
		held[i] = ids[i * PAGES];
		assert_int_equal(mmt_commit(&t, e, c, 0, mmt_tokens(i * 200), 7 * MMT_PT,
					    ids + i * PAGES + 1), 0);
		assert_int_equal(mmt_unlease(&t, e, t.rp.lease), 0);
	}
	bind = bind_of(&t, ids[0]);
	assert_false(compact_pack(t.mm, bind, 0, 0));		/* full of cached pages */
	assert_true(compact_pack(t.mm, bind, 0, DRAIN_ROOM | DRAIN_LAST));
	assert_non_null(event_of(&t, m, MM_EVENT_VACATE));
	assert_int_equal(mmt_alloc(&t, e, c, 0, 1, ids), 0);
	assert_non_null(event_of(&t, m, MM_EVENT_VACATE));
	assert_int_equal(mmt_alloc(&t, e, c, 0, 13, ids), 0);
	assert_non_null(event_of(&t, m, MM_EVENT_VACATE));
	assert_int_equal(mmt_alloc(&t, e, c, 0, 1, ids), 0);
	assert_null(event_of(&t, m, MM_EVENT_VACATE));
	assert_int_equal(mmt_free(&t, e, held, 3), 0);
	mmt_fini(&t);
}

/* Cached pages of an extent being emptied go where there is room, else they go. */
static void cached_pages_beside_held_ones_give_way(void **state)
{
	struct mm_config cfg = config(2);
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t e, m, c;
	uint64_t ids[2 * PAGES], held[2];
	struct mmt t;

	(void)state;
	mmt_init(&t, &cfg);
	mmt_attach(&t, 1, &e, &m);
	mmt_open(&t, e, &d, &c);
	assert_int_equal(mmt_alloc(&t, e, c, 0, 2 * PAGES, ids), 0);
	for (uint32_t i = 0; i < 2; i++) {
		held[i] = ids[i * PAGES];
		assert_int_equal(mmt_commit(&t, e, c, 0, mmt_tokens(i * 200), 7 * MMT_PT,
					    ids + i * PAGES + 1), 0);
		assert_int_equal(mmt_unlease(&t, e, t.rp.lease), 0);
	}
	assert_true(compact_pack(t.mm, bind_of(&t, ids[0]), 0, DRAIN_ROOM | DRAIN_LAST));
	ticks(&t, 100);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 7);
	assert_int_equal(vacate(&t, e, m, c, held, 2), 1);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 8);
	assert_int_equal(nr_extents(&t), 1);
	mmt_fini(&t);
}

/* Cached pages do not move to where held ones must go, in whichever order they come. */
static void held_pages_have_the_first_claim_to_the_room(void **state)
{
	struct mm_config cfg = config(2);
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t e, m, c;
	uint64_t ids[2 * PAGES], held[3];
	struct mmt t;

	(void)state;
	mmt_init(&t, &cfg);
	mmt_attach(&t, 1, &e, &m);
	mmt_open(&t, e, &d, &c);
	assert_int_equal(mmt_alloc(&t, e, c, 0, 2 * PAGES, ids), 0);
	memcpy(held, ids + 2, sizeof(held));
	assert_int_equal(mmt_commit(&t, e, c, 0, mmt_tokens(0), 2 * MMT_PT, ids), 0);
	assert_int_equal(mmt_unlease(&t, e, t.rp.lease), 0);
	assert_int_equal(mmt_commit(&t, e, c, 0, mmt_tokens(200), 5 * MMT_PT, ids + PAGES), 0);
	assert_int_equal(mmt_free(&t, e, ids + 5, 3), 0);
	assert_int_equal(mmt_free(&t, e, ids + PAGES + 5, 3), 0);
	assert_true(compact_pack(t.mm, bind_of(&t, ids[0]), 0, DRAIN_ROOM | DRAIN_LAST));
	ticks(&t, 100);
	assert_int_equal(mm_vmstat(t.mm)->pages_move, 0);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 2);
	assert_int_equal(vacate(&t, e, m, c, held, 3), 3);
	assert_int_equal(nr_extents(&t), 1);
	mmt_fini(&t);
}

/* ---- who waits gets the room --------------------------------------------------------------- */

/* Whose tenant is protected loses nothing by it either. */
static void wait_beside_half_empty_extents(uint64_t low)
{
	struct mm_limits limits = { .low_bytes = low, .high_bytes = MM_NO_LIMIT,
				    .max_bytes = MM_NO_LIMIT };
	struct mm_config cfg = config(4);
	struct mm_cache_desc d = mmt_desc(1), d2 = mmt_desc(2);
	uint32_t e, m, c, e2, c2;
	uint64_t ids[8];
	struct mmt t;

	cfg.idle_ns = 1ull << 60;	/* for who waits alone, not since its engine rests */
	mmt_init(&t, &cfg);
	mmt_attach(&t, 1, &e, &m);
	mmt_open(&t, e, &d, &c);
	hold_parts(&t, e, c, 4, 2, ids);
	assert_int_equal(mmt_limits(&t, 1, 0, limits, MM_OOM_NONE), 0);
	mmt_attach(&t, 2, &e2, NULL);
	mmt_open(&t, e2, &d2, &c2);
	assert_int_equal(mmt_alloc_until(&t, e2, c2, 0, 1, t.now + 100 * ANSWER), MMT_LATER);
	ticks(&t, 100);
	assert_true(vacate(&t, e, m, c, ids, 8) >= 2);
	mmt_run(&t);
	assert_int_equal(t.late.result, 0);
	assert_int_equal(t.late.nr_pages, 1);
	mmt_fini(&t);
}

static void waiting_allocation_gets_what_half_empty_extents_give_back(void **state)
{
	(void)state;
	wait_beside_half_empty_extents(0);
	wait_beside_half_empty_extents(4 * MMT_EXTENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(engine_leaves_an_extent_it_is_asked_to_leave),
		cmocka_unit_test(vacate_past_its_deadline_is_given_up_and_rests),
		cmocka_unit_test(owner_that_runs_out_of_pages_takes_its_extent_back),
		cmocka_unit_test(hundred_half_empty_extents_of_held_pages_shrink_to_55),
		cmocka_unit_test(engine_that_asks_for_anything_is_at_work),
		cmocka_unit_test(idle_engine_keeps_its_held_pages_and_one_extent),
		cmocka_unit_test(hundred_half_empty_extents_of_cached_pages_shrink_to_55),
		cmocka_unit_test(page_leased_while_it_moves_stays),
		cmocka_unit_test(page_evicted_while_it_moves_frees_both_places),
		cmocka_unit_test(engine_that_dies_while_its_pages_move_leaves_them_whole),
		cmocka_unit_test(private_cache_that_goes_while_pages_move_leaves_nothing),
		cmocka_unit_test(orphans_adopted_while_pages_move_keep_their_content),
		cmocka_unit_test(one_shard_that_fails_leaves_the_page_where_it_is),
		cmocka_unit_test(a_move_ends_once_and_by_its_own_id),
		cmocka_unit_test(page_id_of_moved_content_is_new_and_the_old_one_stale),
		cmocka_unit_test(owner_uses_up_its_cached_pages_before_it_takes_back),
		cmocka_unit_test(cached_pages_beside_held_ones_give_way),
		cmocka_unit_test(held_pages_have_the_first_claim_to_the_room),
		cmocka_unit_test(waiting_allocation_gets_what_half_empty_extents_give_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
