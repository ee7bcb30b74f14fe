// SPDX-License-Identifier: Apache-2.0
/* kvd wants an extent empty: sequences' held pages move in kv_poll() and nowhere else, with their
 * bytes, for every fork; magazines let go at once; raw pages are the engine's to move. */
#include <poll.h>

#include "drain.h"
#include "seq_impl.h"

#define PT   4u
#define POOL "embedded:host:32M"

static struct fix f;
static uint32_t tokens[256];

static int start(void **state)
{
	uint32_t i;

	(void)state;
	for (i = 0; i < 256; i++)
		tokens[i] = i % 5 + i / 7;
	fix_open(&f, POOL, fix_layout(KV_GQA, KV_F32, PT), 0);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	drain_end();
	fix_close(&f);
	return 0;
}

static struct kv_seq *grown(uint32_t n, uint32_t committed)
{
	struct kv_seq *s;

	assert_int_equal(kv_seq_create(f.cache, NULL, 0, &s), 0);
	assert_int_equal(kv_seq_append(s, tokens, n), 0);
	fix_store(&f, s, 0, 0, n);
	assert_int_equal(kv_seq_commit(s, committed), 0);
	return s;
}

static uint32_t extent_of(struct kv_seq *s, uint32_t page)
{
	return kv_page_extent(kv_seq_page_ids(s, 0, NULL)[page]);
}

static uint32_t held_in(struct kv_seq *s, uint32_t extent)
{
	uint32_t i, n = 0, nr;
	const uint64_t *ids = kv_seq_page_ids(s, 0, &nr);

	for (i = 0; i < nr; i++)
		n += s->group[0].held[i] && kv_page_extent(ids[i]) == extent;
	return n;
}

static void poll_ok(void)
{
	if (kv_poll(f.kv))
		fail_msg("kv_poll: %s", kv_error());
}

static bool fd_ready(void)
{
	struct pollfd pfd = { .fd = f.kv->due_fd, .events = POLLIN };

	return poll(&pfd, 1, 0) == 1;
}

static void held_pages_move_with_their_bytes(void **state)
{
	struct kv_seq *s = grown(22, 8);
	const uint64_t *ids = kv_seq_page_ids(s, 0, NULL), *pte = kv_seq_pte(s, 0, NULL);
	uint64_t old[6], at[6], version = kv_seq_pte_version(s);
	uint32_t extent = extent_of(s, 5), i;

	(void)state;
	memcpy(old, ids, sizeof(old));
	memcpy(at, pte, sizeof(at));
	drain_begin(f.cache, extent);
	assert_int_equal(held_in(s, extent), 4);
	poll_ok();
	assert_int_equal(held_in(s, extent), 0);
	assert_true(kv_seq_pte_version(s) != version);
	for (i = 0; i < 6; i++) {
		assert_int_equal(ids[i] == old[i], i < 2); /* what is leased stays */
		assert_int_equal(pte[i] == at[i], i < 2);
		if (i >= 2)
			assert_int_equal(kv_page_free(f.cache, 0, old[i]), -ESTALE);
	}
	fix_verify(&f, s, 0, 22);
	assert_int_equal(drain.acks, 1);
	assert_int_equal(drain.busy, 0);
	/* nothing is due any more, and the sequence lives on */
	version = kv_seq_pte_version(s);
	poll_ok();
	assert_true(kv_seq_pte_version(s) == version);
	fix_store(&f, s, 0, 8, 22);
	assert_int_equal(kv_seq_commit(s, 22), 0);
	fix_verify(&f, s, 0, 22);
	kv_seq_release(s);
}

static void forks_move_together(void **state)
{
	struct kv_seq *s = grown(10, 10), *t[2];
	uint32_t extent, i, more[3] = { 9, 8, 7 };

	(void)state;
	assert_int_equal(kv_seq_fork(s, &t[0]), 0);
	assert_int_equal(kv_seq_fork(t[0], &t[1]), 0);
	extent = extent_of(s, 2);
	drain_begin(f.cache, extent);
	poll_ok();
	assert_int_equal(drain.acks, 1);
	for (i = 0; i < 2; i++) {
		assert_int_equal(held_in(t[i], extent), 0);
		assert_memory_equal(kv_seq_page_ids(t[i], 0, NULL), kv_seq_page_ids(s, 0, NULL),
				    3 * sizeof(uint64_t));
		assert_memory_equal(kv_seq_pte(t[i], 0, NULL), kv_seq_pte(s, 0, NULL),
				    3 * sizeof(uint64_t));
		fix_verify(&f, t[i], 0, 10);
	}
	/* still copied on write */
	assert_int_equal(kv_seq_append(t[0], more, 3), 0);
	fix_store(&f, t[0], 0, 10, 13);
	assert_true(kv_seq_page_ids(t[0], 0, NULL)[2] != kv_seq_page_ids(s, 0, NULL)[2]);
	fix_verify(&f, t[0], 0, 13);
	fix_verify(&f, s, 0, 10);
	kv_seq_release(s);
	kv_seq_release(t[1]);
	fix_verify(&f, t[0], 0, 13);
	kv_seq_release(t[0]);
}

static void no_other_call_moves(void **state)
{
	struct kv_seq *s = grown(10, 0);
	uint32_t extent = extent_of(s, 0);
	uint64_t old[3], version;
	struct kv_info info;

	(void)state;
	memcpy(old, kv_seq_page_ids(s, 0, NULL), sizeof(old));
	assert_false(fd_ready());
	drain_begin(f.cache, extent);
	assert_int_equal(kv_info(f.kv, &info), 0);
	assert_false(drain.pending);
	version = kv_seq_pte_version(s);
	assert_int_equal(kv_seq_append(s, tokens, 1), 0);
	assert_int_equal(kv_seq_commit(s, 4), 0);
	assert_true(kv_seq_pte_version(s) == version);
	assert_memory_equal(kv_seq_page_ids(s, 0, NULL), old, sizeof(old));
	assert_true(fd_ready());
	poll_ok();
	assert_false(fd_ready());
	assert_int_equal(held_in(s, extent), 0);
	assert_int_equal(drain.acks, 1);
	kv_seq_release(s);
}

static void magazines_let_go_in_any_call(void **state)
{
	struct magazine *m = f.cache->mag[0];
	struct kv_info info;
	uint32_t extent;
	uint64_t id[3];

	(void)state;
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(kv_page_alloc(f.cache, 0, &id[i]), 0);
	extent = kv_page_extent(id[0]);
	assert_int_equal(kv_page_free(f.cache, 0, id[0]), 0);
	assert_true(m->nr > 0);
	drain_begin(f.cache, extent);
	assert_int_equal(kv_info(f.kv, &info), 0);
	assert_int_equal(m->nr, 0);
	assert_int_equal(map_held(f.kv, extent), 2);
	assert_int_equal(drain.acks, 0);
	/* what is freed there goes back at once, and nothing of it is had again */
	assert_int_equal(kv_page_free(f.cache, 0, id[1]), 0);
	assert_int_equal(map_held(f.kv, extent), 1);
	assert_int_equal(kv_page_alloc(f.cache, 0, &id[1]), 0);
	assert_true(kv_page_extent(id[1]) != extent);
	assert_int_equal(kv_page_free(f.cache, 0, id[2]), 0);
	assert_int_equal(map_held(f.kv, extent), 0);
	drain.pending = true;
	assert_int_equal(kv_info(f.kv, &info), 0);
	assert_int_equal(drain.acks, 1);
	assert_int_equal(kv_page_free(f.cache, 0, id[1]), 0);
}

static void called_off(void **state)
{
	struct kv_info info;
	uint64_t id[2];

	(void)state;
	assert_int_equal(kv_page_alloc(f.cache, 0, &id[0]), 0);
	assert_int_equal(kv_page_alloc(f.cache, 0, &id[1]), 0);
	drain_begin(f.cache, kv_page_extent(id[0]));
	assert_int_equal(kv_info(f.kv, &info), 0);
	assert_true(map_leaving(&f.kv->map, id[0]));
	assert_int_equal(kv_page_free(f.cache, 0, id[0]), 0);
	assert_int_equal(f.cache->mag[0]->nr, 0);
	drain_end();
	poll_ok(); /* vacate_due: asks again */
	assert_false(map_leaving(&f.kv->map, id[1]));
	assert_int_equal(kv_page_free(f.cache, 0, id[1]), 0);
	assert_int_equal(f.cache->mag[0]->nr, 1);
}

/* ---- raw pages ----------------------------------------------------------------------------- */

static struct {
	uint64_t ids[8];
	uint32_t nr, calls, most;
	uint64_t deadline_ns;
} raw;

static void move_raw(void *ctx, struct kv *kv, uint32_t extent, uint64_t deadline_ns)
{
	uint32_t i, done = 0;
	void *from, *to;
	uint64_t id;

	assert_ptr_equal(ctx, &raw);
	assert_int_equal(kv_poll(kv), -EBUSY);
	raw.calls++;
	raw.deadline_ns = deadline_ns;
	for (i = 0; i < raw.nr && done < raw.most; i++) {
		if (kv_page_extent(raw.ids[i]) != extent)
			continue;
		assert_int_equal(kv_page_alloc(f.cache, 0, &id), 0);
		assert_true(kv_page_extent(id) != extent);
		assert_int_equal(kv_page_map(f.cache, 0, raw.ids[i], &from), 0);
		assert_int_equal(kv_page_map(f.cache, 0, id, &to), 0);
		memcpy(to, from, kv_cache_page_bytes(f.cache, 0));
		assert_int_equal(kv_page_free(f.cache, 0, raw.ids[i]), 0);
		raw.ids[i] = id;
		done++;
	}
}

static void raw_pages(uint32_t most)
{
	uint32_t i;
	void *p;

	memset(&raw, 0, sizeof(raw));
	raw.nr = 8;
	raw.most = most;
	for (i = 0; i < raw.nr; i++) {
		assert_int_equal(kv_page_alloc(f.cache, 0, &raw.ids[i]), 0);
		assert_int_equal(kv_page_map(f.cache, 0, raw.ids[i], &p), 0);
		*(uint32_t *)p = 1000 + i;
	}
}

static void raw_pages_check(void)
{
	uint32_t i;
	void *p;

	for (i = 0; i < raw.nr; i++) {
		assert_int_equal(kv_page_map(f.cache, 0, raw.ids[i], &p), 0);
		assert_int_equal(*(uint32_t *)p, 1000 + i);
		assert_int_equal(kv_page_free(f.cache, 0, raw.ids[i]), 0);
	}
}

static void raw_pages_stay(void **state)
{
	struct kv_seq *s = grown(6, 0);
	uint32_t extent, i;
	uint64_t old[8];

	(void)state;
	raw_pages(0);
	memcpy(old, raw.ids, sizeof(old));
	extent = extent_of(s, 0);
	drain_begin(f.cache, extent);
	for (i = 0; i < 3; i++)
		poll_ok();
	assert_int_equal(held_in(s, extent), 0);
	assert_int_equal(map_held(f.kv, extent), 8);
	assert_int_equal(drain.acks, 0);
	assert_false(fd_ready()); /* an engine that sleeps is not woken for what it cannot do */
	raw_pages_check();
	assert_memory_equal(old, raw.ids, sizeof(old));
	kv_seq_release(s);
}

static void raw_pages_are_moved_by_the_engine(void **state)
{
	uint32_t extent, i;

	(void)state;
	raw_pages(3);
	f.kv->on_vacate = move_raw;
	f.kv->ctx = &raw;
	extent = kv_page_extent(raw.ids[0]);
	drain_begin(f.cache, extent);
	drain.deadline_ns = 12345;
	for (i = 1; i <= 3; i++) { /* it gets on by three a time, until it is done */
		assert_int_equal(drain.acks, 0);
		poll_ok();
		assert_int_equal(raw.calls, i);
	}
	assert_int_equal(raw.deadline_ns, 12345);
	assert_int_equal(drain.acks, 1);
	poll_ok();
	assert_int_equal(raw.calls, 3);
	raw_pages_check();
}

/* ---- what stops a move --------------------------------------------------------------------- */

static void without_room_it_stays_and_is_tried_again(void **state)
{
	struct kv_seq *s = grown(32, 0), *t;
	uint32_t extent = extent_of(s, 0), round;
	uint64_t old[8];

	(void)state;
	assert_int_equal(kv_seq_fork(s, &t), 0);
	memcpy(old, kv_seq_page_ids(s, 0, NULL), sizeof(old));
	drain_begin(f.cache, extent);
	drain.room = 0;
	poll_ok();
	assert_memory_equal(kv_seq_page_ids(s, 0, NULL), old, sizeof(old));
	assert_int_equal(drain.acks, 0);
	for (round = 0; round < 16 && !drain.acks; round++) {
		drain.room = 1;
		poll_ok();
		fix_verify(&f, s, 0, 32);
		assert_int_equal(held_in(s, extent) + held_in(t, extent), 15 - round);
	}
	assert_int_equal(drain.acks, 1);
	assert_int_equal(round, 16);
	kv_seq_release(t);
	kv_seq_release(s);
}

static int no_import(struct kv *kv, uint32_t extent, uint32_t shard, struct link_extent *x)
{
	(void)kv;
	(void)extent;
	(void)shard;
	(void)x;
	return err_set(-ENOMEM, "no room to map");
}

static void what_cannot_be_mapped_is_no_place_to_move_to(void **state)
{
	struct kv_seq *s = grown(12, 0);
	uint32_t extent = extent_of(s, 0);
	uint64_t held = map_held(f.kv, extent), version = kv_seq_pte_version(s);

	(void)state;
	drain_begin(f.cache, extent);
	drain.ops.import = no_import;
	poll_ok();
	assert_true(kv_seq_pte_version(s) == version);
	assert_int_equal(held_in(s, extent), 3);
	assert_in_range(map_held(f.kv, extent), 3, held);
	fix_verify(&f, s, 0, 12);
	drain.ops.import = drain.real->import;
	poll_ok();
	assert_int_equal(held_in(s, extent), 0);
	assert_int_equal(drain.acks, 1);
	fix_verify(&f, s, 0, 12);
	kv_seq_release(s);
}

/* The link breaks at each step of a move. */
static void a_dead_link_is_reported(void **state)
{
	int step, rc = -EPIPE;

	(void)state;
	for (step = 0; rc; step++) {
		struct kv_seq *s = grown(40, 5), *t;

		assert_true(step < 100);
		assert_int_equal(kv_seq_fork(s, &t), 0);
		drain_begin(f.cache, extent_of(s, 3));
		drain.die_at = step;
		rc = kv_poll(f.kv);
		if (rc) {
			assert_int_equal(rc, -EPIPE);
			assert_int_equal(kv_poll(f.kv), -EPIPE);
			drain.on = drain.pending = false;
			drain.nr_stash = 0;
			kv_close(f.kv);
			fix_open(&f, POOL, fix_layout(KV_GQA, KV_F32, PT), 0);
			continue;
		}
		drain.die_at = -1;
		assert_int_equal(drain.acks, 1);
		kv_seq_release(t);
		kv_seq_release(s);
	}
	assert_true(step > 3);
}

static void with_several_shards_the_engine_moves(void **state)
{
	struct kv_cache_params p = f.params;
	struct kv_cache *c, *keep = f.cache;
	struct kv_seq *s;
	uint32_t extent;
	uint64_t old[3];

	(void)state;
	p.model = "shards";
	p.nr_shards = 2;
	assert_int_equal(kv_cache_open(f.kv, &p, &c), 0);
	f.cache = c;
	s = grown(10, 0);
	f.cache = keep;
	memcpy(old, kv_seq_page_ids(s, 0, NULL), sizeof(old));
	extent = extent_of(s, 0);
	memset(&raw, 0, sizeof(raw));
	f.kv->on_vacate = move_raw;
	f.kv->ctx = &raw;
	drain_begin(c, extent);
	poll_ok();
	assert_int_equal(raw.calls, 1);
	assert_memory_equal(kv_seq_page_ids(s, 0, NULL), old, sizeof(old));
	kv_seq_release(s);
	poll_ok();
	assert_int_equal(drain.acks, 1);
	drain_end();
	kv_cache_close(c);
}

static void opaque_and_window_pages_move(void **state)
{
	struct fix keep = f;
	struct kv_seq *s;
	uint32_t g, extent, i;

	(void)state;
	f.params.model = "two groups";
	f.params.nr_groups = f.nr_groups = 2;
	f.params.group[1] = f.params.group[0];
	f.params.group[1].kind = KV_GROUP_WINDOW;
	f.params.group[1].window_tokens = FIX_WINDOW;
	assert_int_equal(kv_cache_open(f.kv, &f.params, &f.cache), 0);
	s = grown(30, 6);
	assert_int_equal(kv_seq_drop_head(s, 1, 30 - FIX_WINDOW), 0);
	for (g = 0; g < 2; g++) {
		extent = kv_page_extent(kv_seq_page_ids(s, g, NULL)[7]);
		drain_begin(f.cache, extent);
		poll_ok();
		assert_int_equal(drain.acks, 1);
		drain_end();
		for (i = 2; i < 8; i++)
			assert_true(kv_page_extent(kv_seq_page_ids(s, g, NULL)[i]) != extent);
		fix_verify(&f, s, 0, 30);
	}
	kv_seq_release(s);
	kv_cache_close(f.cache);
	f = keep;
}

/* ---- callbacks ----------------------------------------------------------------------------- */

static struct kv_seq *leaving;
static uint32_t met;
static const struct link_ops *plain;

/* A pressure callback may run inside any call. */
static int call_and_touch(struct kv *kv, struct call *c)
{
	if (leaving && c->sqe.op != KV_OP_EVENTS) {
		met++;
		assert_int_equal(kv_seq_park(leaving), -EBUSY);
		assert_int_equal(kv_seq_commit(leaving, 1), -EBUSY);
		kv_seq_release(leaving);
	}
	return plain->call(kv, c);
}

static void a_sequence_that_is_released_is_busy(void **state)
{
	struct link_ops ops = *f.kv->ops;
	struct kv_seq *s = grown(22, 21);

	(void)state;
	plain = f.kv->ops;
	ops.call = call_and_touch;
	f.kv->ops = &ops;
	leaving = s;
	kv_seq_release(s);
	leaving = NULL;
	f.kv->ops = plain;
	assert_true(met >= 2);
}

/* ---- the version --------------------------------------------------------------------------- */

static void version_tells_every_change(void **state)
{
	struct kv_seq *s = grown(10, 10), *t;
	uint64_t v = kv_seq_pte_version(s);
	uint32_t len;

	(void)state;
	assert_int_equal(kv_seq_append(s, tokens, 1), 0); /* within the page */
	assert_int_equal(kv_seq_commit(s, 11), 0);
	assert_true(kv_seq_pte_version(s) == v);
	assert_int_equal(kv_seq_append(s, tokens, 4), 0);
	assert_true(kv_seq_pte_version(s) != v);
	v = kv_seq_pte_version(s);
	assert_int_equal(kv_seq_truncate(s, 6), 0);
	assert_true(kv_seq_pte_version(s) != v);
	v = kv_seq_pte_version(s);
	assert_int_equal(kv_seq_fork(s, &t), 0);
	assert_true(kv_seq_pte_version(s) == v);
	assert_int_equal(kv_seq_append(s, tokens, 1), 0); /* copy-on-write */
	assert_true(kv_seq_pte_version(s) != v);
	v = kv_seq_pte_version(t);
	assert_int_equal(kv_seq_park(t), 0);
	assert_true(kv_seq_pte_version(t) != v);
	v = kv_seq_pte_version(t);
	assert_int_equal(kv_seq_resume(t, &len), 0);
	assert_true(kv_seq_pte_version(t) != v);
	kv_seq_release(t);
	kv_seq_release(s);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, start, stop)
	const struct CMUnitTest tests[] = {
		T(held_pages_move_with_their_bytes),
		T(forks_move_together),
		T(no_other_call_moves),
		T(magazines_let_go_in_any_call),
		T(called_off),
		T(raw_pages_stay),
		T(raw_pages_are_moved_by_the_engine),
		T(without_room_it_stays_and_is_tried_again),
		T(what_cannot_be_mapped_is_no_place_to_move_to),
		T(a_dead_link_is_reported),
		T(with_several_shards_the_engine_moves),
		T(opaque_and_window_pages_move),
		T(a_sequence_that_is_released_is_busy),
		T(version_tells_every_change),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
