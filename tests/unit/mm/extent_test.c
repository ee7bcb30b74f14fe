// SPDX-License-Identifier: Apache-2.0
/* Extents: creation, retirement, importers, scrubbing, orphans. */
#include "mmt.h"

static struct mmt t;
static uint32_t e1, e2, m1, m2, c;

static int setup_with(bool scrub)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);

	cfg.device[0].scrub = scrub;
	mmt_init(&t, &cfg);
	assert_int_equal(mmt_attach(&t, 1000, &e1, &m1), 0);
	assert_int_equal(mmt_attach(&t, 1000, &e2, &m2), 0);
	assert_int_equal(mmt_open(&t, e1, &d, &c), 0);
	assert_int_equal(mmt_open(&t, e2, &d, &c), 0);
	return 0;
}

static int setup(void **state)
{
	(void)state;
	return setup_with(false);
}

static int setup_scrub(void **state)
{
	(void)state;
	return setup_with(true);
}

static int teardown(void **state)
{
	(void)state;
	mmt_fini(&t);
	return 0;
}

static void geometry_is_as_near_to_the_target_as_a_factor_goes(void **state)
{
	static const struct { uint64_t page; uint32_t pages; uint64_t bytes; } want[] = {
		{ 8192, 8, 65536 }, { 65536, 1, 65536 }, { 64, 1024, 65536 },
		{ 10240, 8, 81920 },	/* 80k is nearer than 40k */
		{ 12288, 4, 49152 },	/* 48k, not 96k */
		{ 1 << 20, 1, 1 << 20 }, { 4160, 16, 69632 },
	};
	uint32_t x;

	(void)state;
	t.mm->cfg.device[0].pool_bytes = 1 << 21;
	for (uint32_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		struct mm_cache_desc d = mmt_desc(2);

		d.shard[0].page_bytes[0] = want[i].page;
		assert_int_equal(mmt_open(&t, e1, &d, &x), 0);
		assert_int_equal(t.rp.geom[0].extent_pages, want[i].pages);
		assert_int_equal(t.rp.geom[0].extent_bytes[0], want[i].bytes);
		assert_int_equal(mmt_close(&t, e1, x), 0);
	}
	t.mm->cfg.device[0].pool_bytes = 8 * MMT_EXTENT;
}

static void an_extent_fits_the_pool(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(2);
	struct mmt small;
	uint32_t e, k;

	(void)state;
	cfg.device[0].pool_bytes = 20000;
	mmt_init(&small, &cfg);
	assert_int_equal(mmt_attach(&small, 1, &e, NULL), 0);
	assert_int_equal(mmt_open(&small, e, &d, &k), 0);
	assert_int_equal(small.rp.geom[0].extent_pages, 2);
	assert_int_equal(mmt_alloc(&small, e, k, 0, 2, NULL), 0);
	mmt_fini(&small);
}

static void importers_are_told_and_waited_for(void **state)
{
	uint64_t a[16];
	uint32_t x;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 16, a), 0);
	x = mm_page_extent(a[8]);
	assert_int_equal(mmt_map(&t, MM_IMPORT, m1, x, 0), 0);
	assert_true(t.rp.writable);
	assert_int_equal(mmt_map(&t, MM_IMPORT, m2, x, 0), 0);
	assert_false(t.rp.writable);
	assert_int_equal(mmt_map(&t, MM_IMPORT, m2, x, 0), 0);	/* twice is once */
	assert_false(t.rp.writable);
	t.nr_notify = 0;
	assert_int_equal(mmt_free(&t, e1, a, 16), 0);	/* which of the two retires is not said */
	assert_int_equal(mmt_simple(&t, MM_EVENTS, 0, m2), 0);
	if (!t.rp.nr_events)
		return;		/* the other went; the next test forces it */
	assert_int_equal(t.nr_notify, 2);
	assert_int_equal(t.events[0].kind, MM_EVENT_RETIRE);
	assert_int_equal(t.events[0].extent, x);
}

static void a_retiring_extent_goes_with_its_last_importer(void **state)
{
	uint64_t a[16];
	uint32_t x[2] = { 0 };

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 16, a), 0);
	for (uint32_t i = 0; i < 2; i++) {
		x[i] = mm_page_extent(a[i * 8]);
		assert_int_equal(mmt_map(&t, MM_IMPORT, m1, x[i], 0), 0);
		assert_int_equal(mmt_map(&t, MM_IMPORT, m2, x[i], 0), 0);
	}
	assert_int_equal(mmt_free(&t, e1, a, 16), 0);
	assert_int_equal(t.nr_notify, 2);
	assert_int_equal(mmt_device_extents(&t, 0), 2);
	assert_int_equal(mmt_simple(&t, MM_EVENTS, 0, m2), 0);
	assert_int_equal(t.rp.nr_events, 1);
	x[0] = t.events[0].extent;
	mmt_refused(&t, mmt_map(&t, MM_IMPORT, m2, x[0], 0), -ESTALE, MM_NO_SUCH_ID);
	assert_int_equal(mmt_map(&t, MM_UNIMPORT, m2, x[0], 0), 0);
	mmt_refused(&t, mmt_map(&t, MM_UNIMPORT, m2, x[0], 0), -ENOENT, MM_NO_SUCH_ID);
	assert_int_equal(mmt_simple(&t, MM_EVENTS, 0, m2), 0);
	assert_int_equal(t.rp.nr_events, 0);
	assert_int_equal(mmt_device_extents(&t, 0), 2);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m1), 0); /* the dead do not hold it */
	assert_int_equal(mmt_device_extents(&t, 0), 1);
	assert_int_equal(mmt_simple(&t, MM_EVENTS, 0, m2), 0);	/* nor is the last one kept */
	assert_int_equal(t.rp.nr_events, 1);
	assert_int_equal(mmt_map(&t, MM_UNIMPORT, m2, t.events[0].extent, 0), 0);
	assert_int_equal(mmt_device_extents(&t, 0), 0);
	mmt_refused(&t, mmt_map(&t, MM_IMPORT, m2, x[0], 0), -ENOENT, MM_NO_SUCH_ID);
}

static void imports_stay_within_tenant_and_cache(void **state)
{
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t e3, m3, c3, x, s;
	uint64_t a;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 1, &a), 0);
	x = mm_page_extent(a);
	assert_int_equal(mmt_attach(&t, 2000, &e3, &m3), 0);
	mmt_refused(&t, mmt_map(&t, MM_IMPORT, m3, x, 0), -EACCES, MM_NOT_OWNER);
	assert_int_equal(mmt_open(&t, e3, &d, &c3), 0);
	assert_int_not_equal(c3, c);		/* same key, another tenant: another cache */
	mmt_refused(&t, mmt_map(&t, MM_IMPORT, m3, x, 0), -EACCES, MM_NOT_OWNER);
	assert_int_equal(mmt_close(&t, e2, c), 0);
	mmt_refused(&t, mmt_map(&t, MM_IMPORT, m2, x, 0), -EACCES, MM_NOT_OWNER);
	mmt_refused(&t, mmt_map(&t, MM_IMPORT, m1, x, 1), -EINVAL, MM_BAD_ARGUMENT);
	mmt_refused(&t, mmt_map(&t, MM_IMPORT, m1, x + 1, 0), -ENOENT, MM_NO_SUCH_ID);
	mmt_refused(&t, mmt_map(&t, MM_IMPORT, m1, 0, 0), -ENOENT, MM_NO_SUCH_ID);
	mmt_refused(&t, mmt_map(&t, MM_IMPORT, m1 + 500, x, 0), -ENOENT, MM_NO_SUCH_ID);
	mmt_refused(&t, mmt_map(&t, MM_UNIMPORT, m1, x, 0), -ENOENT, MM_NO_SUCH_ID);
	mmt_refused(&t, mmt_simple(&t, MM_EVENTS, 0, m1 + 500), -ENOENT, MM_NO_SUCH_ID);
	t.hold = true;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 8, NULL), MMT_LATER);
	mmt_refused(&t, mmt_map(&t, MM_IMPORT, m1, t.fx[0].extent, 0), -ENOENT, MM_NO_SUCH_ID);
	assert_int_equal(mm_extent_shards(t.mm, x, &s), 0);
	assert_int_equal(s, 1);
	assert_int_equal(mm_extent_shards(t.mm, 60, &s), -ENOENT);
}

static void a_failed_destroy_is_tried_again(void **state)
{
	uint64_t a[16], next;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 16, a), 0);
	t.hold = true;
	assert_int_equal(mmt_free(&t, e1, a, 16), 0);
	assert_int_equal(t.nr_fx, 1);
	assert_int_equal(t.fx[0].kind, MM_EFFECT_DESTROY);
	mmt_complete(&t, 0, -EIO);
	assert_int_equal(mmt_device_extents(&t, 0), 2);	/* unsure means it stays */
	next = mm_next_deadline(t.mm);
	assert_true(next != UINT64_MAX);
	mmt_tick(&t, next);
	assert_int_equal(t.nr_fx, 1);
	mmt_complete(&t, 0, 0);
	assert_int_equal(mmt_device_extents(&t, 0), 1);
	assert_true(mm_next_deadline(t.mm) == UINT64_MAX);
}

/* Another request every 10 ms for 300 ms; ticks when mm says it is due. True: an effect came. */
static bool comes_again_though_busy(enum mm_effect_kind kind)
{
	for (uint32_t i = 0; i < 30 && !t.nr_fx; i++) {
		t.now += 10000000;
		assert_int_equal(mmt_simple(&t, MM_STAT, e2, 0), 0);
		if (mm_next_deadline(t.mm) <= t.now)
			mmt_tick(&t, t.now);
	}
	return t.nr_fx == 1 && t.fx[0].kind == kind;
}

static void a_busy_caller_does_not_put_off_a_failed_destroy(void **state)
{
	uint64_t a[16];

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 16, a), 0);
	t.hold = true;
	assert_int_equal(mmt_free(&t, e1, a, 16), 0);
	for (uint32_t i = 0; i < 3; i++) {
		mmt_complete(&t, 0, -EIO);
		assert_true(comes_again_though_busy(MM_EFFECT_DESTROY));
	}
	mmt_complete(&t, 0, 0);
	assert_int_equal(mmt_device_extents(&t, 0), 1);
	assert_true(mm_next_deadline(t.mm) == UINT64_MAX);
}

static void a_busy_caller_does_not_put_off_a_failed_scrub(void **state)
{
	struct mm_meminfo mi;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 8, NULL), 0);
	t.hold = true;
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m1), 0);
	assert_int_equal(t.fx[0].kind, MM_EFFECT_SCRUB);
	for (uint32_t i = 0; i < 3; i++) {
		mmt_complete(&t, 0, -EIO);
		assert_true(comes_again_though_busy(MM_EFFECT_SCRUB));
	}
	mmt_complete(&t, 0, 0);
	mm_meminfo(t.mm, 0, &mi);
	assert_int_equal(mi.quarantined_bytes, 0);
}

static void strange_completions_are_refused(void **state)
{
	struct mm_effect fx;

	(void)state;
	t.hold = true;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 1, NULL), MMT_LATER);
	fx = t.fx[0];
	assert_int_equal(mm_complete(t.mm, 0, 0, t.now), -ENOENT);
	assert_int_equal(mm_complete(t.mm, fx.id + (1ull << 24), 0, t.now), -ENOENT);
	assert_int_equal(mm_complete(t.mm, fx.id + 1, 0, t.now), -ENOENT);
	mmt_complete(&t, 0, 0);
	assert_int_equal(mm_complete(t.mm, fx.id, 0, t.now), -ENOENT);
}

static void scrubbing_ends_the_quarantine(void **state)
{
	uint64_t a[8], b[8];
	struct mm_meminfo mi;
	struct mm_engine_info info;
	uint32_t id = 0;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 8, a), 0);
	assert_int_equal(mmt_free(&t, e1, a + 2, 1), 0);
	assert_int_equal(mmt_commit(&t, e1, c, 0, mmt_tokens(0), 16, a + 7), 0);
	t.hold = true;
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m1), 0);
	assert_int_equal(t.nr_fx, 1);
	assert_int_equal(t.fx[0].kind, MM_EFFECT_SCRUB);
	assert_int_equal(t.fx[0].slot, 0);
	assert_int_equal(t.fx[0].nr_slots, 2);
	assert_int_equal(t.fx[0].page_bytes, MMT_PAGE);
	mmt_complete(&t, 0, -EIO);		/* not scrubbed: not free */
	mm_meminfo(t.mm, 0, &mi);
	assert_int_equal(mi.quarantined_bytes, 6 * MMT_PAGE);
	mmt_tick(&t, mm_next_deadline(t.mm));
	assert_int_equal(t.nr_fx, 1);
	mmt_complete(&t, 0, 0);
	mmt_fetch(&t);
	mm_meminfo(t.mm, 0, &mi);
	assert_int_equal(mi.quarantined_bytes, 4 * MMT_PAGE);
	assert_true(mm_next_engine(t.mm, &id, &info));
	assert_true(info.engine == e1 && info.fenced && info.quarantined_pages == 4);
	assert_int_equal(t.fx[0].slot, 3);
	assert_int_equal(t.fx[0].nr_slots, 4);
	mmt_complete(&t, 0, 0);
	mm_meminfo(t.mm, 0, &mi);
	assert_int_equal(mi.quarantined_bytes, 0);
	assert_int_equal(mi.cached_bytes, MMT_PAGE);
	/* Pages of a dead engine do not reach another one as they are. */
	t.hold = false;
	assert_int_equal(mmt_alloc(&t, e2, c, 0, 8, b), 0);
	assert_int_not_equal(mm_page_extent(b[0]), mm_page_extent(a[0]));
	assert_int_equal(mmt_lookup(&t, e2, c, 0, mmt_tokens(0), 16), 0);
	assert_int_equal(t.rp.nr_pages, 1);
}

static void every_shard_of_a_page_is_scrubbed(void **state)
{
	struct mm_cache_desc d = mmt_desc(4);
	struct mm_meminfo mi;
	uint32_t c3;

	(void)state;
	d.nr_shards = 2;
	d.shard[1] = d.shard[0];
	assert_int_equal(mmt_open(&t, e1, &d, &c3), 0);
	assert_int_equal(mmt_alloc(&t, e1, c3, 0, 2, NULL), 0);
	t.hold = true;
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m1), 0);
	assert_int_equal(t.nr_fx, 2);
	assert_int_equal(t.fx[0].kind, MM_EFFECT_SCRUB);
	assert_int_equal(t.fx[1].kind, MM_EFFECT_SCRUB);
	assert_int_equal(t.fx[0].shard + t.fx[1].shard, 1);
	mmt_complete(&t, 1, 0);
	mm_meminfo(t.mm, 0, &mi);
	assert_int_equal(mi.quarantined_bytes, 4 * MMT_PAGE);
	mmt_complete(&t, 0, 0);
	mm_meminfo(t.mm, 0, &mi);
	assert_int_equal(mi.quarantined_bytes, 0);
}

static void an_orphan_s_cached_pages_serve_the_adopter(void **state)
{
	uint64_t b[64];
	uint32_t lease = mmt_chain(&t, e1, c, 0, 24);

	(void)state;
	(void)lease;
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m1), 0);
	assert_int_equal(mmt_device_extents(&t, 0), 3);
	assert_int_equal(mmt_alloc(&t, e2, c, 0, 40, b), 0);	/* five new ones first */
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 0);
	assert_int_equal(mmt_alloc(&t, e2, c, 0, 4, b), 0);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 4);
	assert_int_equal(mmt_lookup(&t, e2, c, 0, mmt_tokens(0), 384), 0);
	assert_true(t.rp.nr_pages > 0 && t.rp.nr_pages <= 20);
	assert_int_equal(mmt_unlease(&t, e2, t.rp.lease), 0);
	assert_int_equal(mmt_alloc(&t, e2, c, 0, 20, b), 0);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 24);
	mmt_refused(&t, mmt_alloc(&t, e2, c, 0, 1, b), -ENOMEM, MM_POOL_FULL);
}

static void what_the_adopter_maps_already_is_not_adopted(void **state)
{
	uint64_t b[8];
	uint32_t lease = mmt_chain(&t, e1, c, 0, 2);

	(void)state;
	(void)lease;
	assert_int_equal(mmt_map(&t, MM_IMPORT, m2, 1, 0), 0);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m1), 0);
	assert_int_equal(mmt_alloc(&t, e2, c, 0, 6, b), 0);
	assert_int_equal(mm_page_extent(b[0]), 2);
	assert_int_equal(mmt_map(&t, MM_UNIMPORT, m2, 1, 0), 0);
	assert_int_equal(mmt_alloc(&t, e2, c, 0, 6, b), 0);
	assert_int_equal(mm_page_extent(b[0]), 2);
	assert_int_equal(mm_page_extent(b[5]), 1);
}

static void what_a_leaver_still_maps_writable_is_not_adopted(void **state)
{
	uint64_t b[8];
	uint32_t lease = mmt_chain(&t, e1, c, 0, 2);

	(void)state;
	assert_int_equal(mmt_map(&t, MM_IMPORT, m1, 1, 0), 0);
	assert_true(t.rp.writable);
	assert_int_equal(mmt_unlease(&t, e1, lease), 0);
	assert_int_equal(mmt_close(&t, e1, c), 0);
	assert_int_equal(mmt_alloc(&t, e2, c, 0, 6, b), 0);
	assert_int_equal(mm_page_extent(b[0]), 2);
	assert_int_equal(mmt_map(&t, MM_UNIMPORT, m1, 1, 0), 0);
	assert_int_equal(mmt_alloc(&t, e2, c, 0, 6, b), 0);
	assert_int_equal(mm_page_extent(b[5]), 1);
}

static void extents_in_the_making_outlive_their_engine(void **state)
{
	(void)state;
	t.hold = true;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 1, NULL), MMT_LATER);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m1), 0);
	assert_int_equal(mmt_simple(&t, MM_MEMBER_GONE, 0, m2), 0);
	assert_int_equal(mmt_device_extents(&t, 0), 1);
	mmt_complete(&t, 0, 0);
	mmt_fetch(&t);
	assert_int_equal(t.nr_fx, 1);
	assert_int_equal(t.fx[0].kind, MM_EFFECT_DESTROY);
	mmt_complete(&t, 0, 0);
	assert_int_equal(mmt_device_extents(&t, 0), 0);
	assert_int_equal(t.mm->caches.nr_used + t.mm->tenants.nr_used + t.mm->binds.nr_used, 0);
}

static void an_extent_made_for_the_fenced_retires(void **state)
{
	(void)state;
	t.hold = true;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 1, NULL), MMT_LATER);
	assert_int_equal(mmt_simple(&t, MM_FENCE, e1, 0), 0);
	t.hold = false;
	mmt_run(&t);
	assert_int_equal(mmt_device_extents(&t, 0), 0);
	assert_int_equal(t.nr_late, 0);		/* nobody is there to be answered */
}

/* An extent has no more pages than there are frames, however large it is to be. */
static void geometry_is_bounded_by_the_frames(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);
	uint32_t e, k;

	(void)state;
	for (uint32_t frames = 1; frames < 70; frames++) {
		struct mmt w;
		uint32_t most = 1;

		while (2 * most <= frames)
			most *= 2;
		cfg.max_frames = frames;
		cfg.device[0].extent_bytes = cfg.device[0].pool_bytes = 64 * MMT_PAGE;
		mmt_init(&w, &cfg);
		assert_int_equal(mmt_attach(&w, 1, &e, NULL), 0);
		assert_int_equal(mmt_open(&w, e, &d, &k), 0);
		assert_int_equal(w.rp.geom[0].extent_pages, most);
		assert_int_equal(mmt_alloc(&w, e, k, 0, 1, NULL), 0);
		mmt_fini(&w);
	}
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
#define S(f) cmocka_unit_test_setup_teardown(f, setup_scrub, teardown)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(geometry_is_bounded_by_the_frames),
		T(geometry_is_as_near_to_the_target_as_a_factor_goes),
		T(an_extent_fits_the_pool),
		T(importers_are_told_and_waited_for),
		T(a_retiring_extent_goes_with_its_last_importer),
		T(imports_stay_within_tenant_and_cache),
		T(a_failed_destroy_is_tried_again),
		T(a_busy_caller_does_not_put_off_a_failed_destroy),
		S(a_busy_caller_does_not_put_off_a_failed_scrub),
		T(strange_completions_are_refused),
		S(scrubbing_ends_the_quarantine),
		S(every_shard_of_a_page_is_scrubbed),
		T(an_orphan_s_cached_pages_serve_the_adopter),
		T(what_the_adopter_maps_already_is_not_adopted),
		T(what_a_leaver_still_maps_writable_is_not_adopted),
		T(extents_in_the_making_outlive_their_engine),
		T(an_extent_made_for_the_fenced_retires),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
