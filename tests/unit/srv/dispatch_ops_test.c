// SPDX-License-Identifier: Apache-2.0
/* dispatch, exec and mm together: what each op does, its refusals, and what clients cannot do to
 * each other. */
#include "dispatch_world.h"

/* ---- what the ops do ----------------------------------------------------------------------- */

static void test_nop(void **state)
{
	struct world *w = *state;

	expect(call(w, A, (struct kv_sqe){ .op = KV_OP_NOP }), 0, KV_OK);
	expect(call(w, MEMBER, (struct kv_sqe){ .op = KV_OP_NOP }), 0, KV_OK);
}

static void test_open(void **state)
{
	struct world *w = *state;
	struct kv_cache_desc d = desc_of(1, 2);
	struct kv_cache_geom *g = out(w, A);
	uint32_t a = open_cache(w, A, 1, 2), b = open_cache(w, B, 1, 2),
		 o = open_cache(w, OTHER, 1, 2);

	assert_int_equal(a, b);
	assert_int_not_equal(a, o);
	for (int i = 0; i < KV_MAX_GROUPS; i++) {
		assert_int_equal(g->extent_pages[i], i < 2 ? 512 : 0);
		assert_int_equal(g->extent_bytes[i][0], i < 2 ? 2 * MIB : 0);
		assert_int_equal(g->extent_bytes[i][1], 0);
	}
	d.layout_key[0] ^= 1;
	expect(call(w, A, open_sqe(w, A, &d)), -EINVAL, KV_LAYOUT_DIFFERS);
	expect(call(w, A, (struct kv_sqe){ .op = KV_OP_CACHE_CLOSE, .cache = a }), 0, KV_OK);
	assert_int_not_equal(call(w, A, (struct kv_sqe){ .op = KV_OP_CACHE_CLOSE, .cache = a }).res,
			     0);
}

static void test_close_gives_back(void **state)
{
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 1, 1), i;
	struct kv_sqe s = { .op = KV_OP_CACHE_CLOSE, .cache = cache, .flags = KV_SQE_GIVE_BACK };
	struct kv_sqe stat = { .op = KV_OP_STAT, .out_off = OUT_OFF, .out_bytes = 200 };
	const struct kv_stat *st = out(w, A);
	uint64_t ids[5];

	alloc(w, A, cache, 0, ids, 5);
	expect(call(w, MEMBER, s), -EACCES, KV_NOT_LEAD);
	s.flags |= KV_SQE_ADOPT;
	expect(call(w, A, s), -EINVAL, KV_BAD_ENTRY);
	s.flags = KV_SQE_GIVE_BACK;
	expect(call(w, B, s), -EACCES, KV_NOT_OWNER);
	w->dev.hold = true;
	i = begin(w, A, alloc_sqe(cache, 0, 510, 1000));
	assert_false(finished(w, i));
	expect(call(w, A, s), 0, KV_OK);
	expect(finish(w, i), -EACCES, KV_NOT_OWNER);
	w->dev.hold = false;
	run(w);
	expect(call(w, A, stat), 0, KV_OK);
	assert_int_equal(st->held_pages, 0);
	assert_int_equal(st->frees, 5);
	expect(call(w, A, free_sqe(w, A, ids, 5)), -ESTALE, KV_STALE_PAGE);
}

static void test_alloc_and_free(void **state)
{
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 1, 1);
	uint64_t ids[5], twice[2];

	alloc(w, A, cache, 0, ids, 5);
	for (int i = 0; i < 5; i++)
		assert_int_not_equal(ids[i], 0);
	expect(call(w, A, (struct kv_sqe){ .op = KV_OP_CACHE_CLOSE, .cache = cache }), -EBUSY,
	       KV_LEASED);
	expect(call(w, A, free_sqe(w, A, ids, 4)), 0, KV_OK);
	assert_int_not_equal(call(w, A, free_sqe(w, A, ids, 5)).res, 0);
	twice[0] = twice[1] = ids[4];
	assert_int_not_equal(call(w, A, free_sqe(w, A, twice, 2)).res, 0);
	expect(call(w, A, free_sqe(w, A, ids + 4, 1)), 0, KV_OK);
	assert_int_not_equal(call(w, A, alloc_sqe(cache, 1, 1, 0)).res, 0);
	assert_int_not_equal(call(w, A, alloc_sqe(cache + 1, 0, 1, 0)).res, 0);
	assert_int_not_equal(call(w, A, alloc_sqe(cache, 0, 513, 0)).res, 0);
}

static void test_alloc_waits_for_the_device(void **state)
{
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 1, 1), i;
	struct kv_cqe c;

	w->dev.hold = true;
	i = begin(w, A, alloc_sqe(cache, 0, 4, 1000));
	assert_false(finished(w, i));
	/* the entry and the data area are the client's again: nothing is read twice */
	memset(w->data[A], 0xff, DATA_BYTES);
	expect(call(w, B, (struct kv_sqe){ .op = KV_OP_NOP }), 0, KV_OK);
	assert_false(finished(w, i));
	w->dev.hold = false;
	run(w);
	c = finish(w, i);
	expect(c, 0, KV_OK);
	assert_int_equal(c.out_bytes, 32);
	expect(call(w, A, free_sqe(w, A, out(w, A), 4)), 0, KV_OK);
}

static void test_alloc_times_out(void **state)
{
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 1, 1), other = open_cache(w, OTHER, 1, 1), i;
	uint64_t ids[512];
	struct kv_cqe c;

	for (int n = 0; n < 16; n++)
		alloc(w, OTHER, other, 0, ids, 512);
	c = call(w, A, alloc_sqe(cache, 0, 4, 0));
	expect(c, -ENOMEM, KV_POOL_FULL);
	i = begin(w, A, alloc_sqe(cache, 0, 4, 50));
	assert_false(finished(w, i));
	assert_int_equal(exec_next_deadline(w->x), w->now_ns + 50 * 1000000ull);
	w->now_ns += 50 * 1000000ull - 1;
	run(w);
	assert_false(finished(w, i));
	w->now_ns++;
	run(w);
	c = finish(w, i);
	assert_int_equal(c.reason, KV_TIMED_OUT);
	assert_true(c.res < 0);
}

static void test_device_fails(void **state)
{
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 1, 1);
	uint64_t ids[4];
	struct kv_cqe c;

	w->dev.fail_create = -ENOMEM;
	c = call(w, A, alloc_sqe(cache, 0, 4, 1000));
	assert_true(c.res < 0);
	assert_int_equal(c.out_bytes, 0);
	assert_int_equal(w->dev.nr_live, 0);
	w->dev.fail_create = 0;
	alloc(w, A, cache, 0, ids, 4);
	assert_int_equal(w->dev.nr_live, 1);
}

static void test_commit_and_lookup(void **state)
{
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 1, 1), lease;
	struct kv_match_out *m = out(w, B);
	uint64_t ids[3];
	struct kv_cqe c;

	assert_int_equal(open_cache(w, B, 1, 1), cache);
	lease = commit_three(w, A, cache, ids);
	assert_memory_equal(out(w, A), ids, sizeof(ids));
	c = call(w, B, lookup_sqe(w, B, cache, 3 * PAGE_TOKENS + 5, 0, 1));
	expect(c, 0, KV_OK);
	assert_int_equal(c.nr, 3);
	assert_int_equal(m->nr_pages, 3);
	assert_int_equal(m->nr_groups, 1);
	assert_int_equal(m->lease, c.id);
	assert_int_equal(m->tail_tokens, 0);
	assert_memory_equal(m + 1, ids, sizeof(ids));
	expect(call(w, B, unlease_sqe(w, B, c.id)), 0, KV_OK);
	/* 2 pages and 5 tokens of the third */
	c = call(w, B, lookup_sqe(w, B, cache, 2 * PAGE_TOKENS + 5, 0, 1));
	expect(c, 0, KV_OK);
	assert_int_equal(c.nr, 2);
	assert_int_equal(m->tail_tokens, 5);
	assert_int_equal(m->tail_pages[0], ids[2]);
	assert_int_not_equal(m->tail_lease, 0);
	expect(call(w, B, unlease_sqe(w, B, m->tail_lease)), 0, KV_OK);
	expect(call(w, B, unlease_sqe(w, B, c.id)), 0, KV_OK);
	/* another key is another prefix */
	c = call(w, B, lookup_sqe(w, B, cache, 3 * PAGE_TOKENS, 1, 1));
	expect(c, 0, KV_OK);
	assert_int_equal(c.nr, 0);
	if (c.id)
		expect(call(w, B, unlease_sqe(w, B, c.id)), 0, KV_OK);
	expect(call(w, A, unlease_sqe(w, A, lease)), 0, KV_OK);
	assert_int_not_equal(call(w, A, unlease_sqe(w, A, lease)).res, 0);
}

static void test_commit_partial(void **state)
{
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 1, 1);
	struct kv_commit_in in = { 5, 1, 1, 0 };
	struct kv_match_out *m = out(w, A);
	uint64_t id;
	uint32_t at = sizeof(in);
	struct kv_sqe s;
	struct kv_cqe c;

	alloc(w, A, cache, 0, &id, 1);
	memcpy(w->data[A], &in, sizeof(in));
	at += put_tokens(w->data[A] + at, 1, 5);
	memcpy(w->data[A] + at, &id, 8);
	s = (struct kv_sqe){
		.op = KV_OP_COMMIT, .cache = cache, .in_bytes = at + 8, .out_off = OUT_OFF,
		.out_bytes = 8,
	};
	assert_int_equal(call(w, A, s).res, -EINVAL);
	s.flags = KV_SQE_PARTIAL;
	c = call(w, A, s);
	expect(c, 0, KV_OK);
	expect(call(w, A, unlease_sqe(w, A, c.id)), 0, KV_OK);
	s = lookup_sqe(w, A, cache, 7, 0, 1);
	s.flags = KV_SQE_ADOPT;
	expect(call(w, A, s), 0, KV_OK);
	assert_int_equal(m->nr_pages, 0);
	assert_int_equal(m->tail_tokens, 5);
	assert_true(m->tail_adopted);
	assert_int_equal(m->tail_lease, 0);
	id = m->tail_pages[0];
	expect(call(w, A, free_sqe(w, A, &id, 1)), 0, KV_OK);
}

static void test_commit_refusals(void **state)
{
	struct world *w = *state;
	uint32_t one = open_cache(w, A, 1, 1), two = open_cache(w, A, 2, 2);
	uint64_t ids[6];

	alloc(w, A, one, 0, ids, 6);
	/* groups of another cache than the one named: mm would read past the array */
	expect(call(w, A, commit_sqe(w, A, two, ids, 6, 1)), -EINVAL, KV_BAD_ARGUMENT);
	expect(call(w, A, commit_sqe(w, A, one, ids, 3, 2)), -EINVAL, KV_BAD_ARGUMENT);
	expect(call(w, A, commit_sqe(w, A, 0, ids, 3, 1)), -ENOENT, KV_NO_SUCH_ID);
	expect(call(w, A, commit_sqe(w, A, 1u << 30, ids, 3, 1)), -ENOENT, KV_NO_SUCH_ID);
	assert_int_not_equal(call(w, A, commit_sqe(w, A, two, ids, 3, 2)).res, 0);
	ids[1] ^= 1;
	assert_int_not_equal(call(w, A, commit_sqe(w, A, one, ids, 6, 1)).res, 0);
	ids[1] ^= 1;
	expect(call(w, A, free_sqe(w, A, ids, 6)), 0, KV_OK);
}

static void test_leases_and_parks(void **state)
{
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 1, 1), lease, park;
	struct kv_match_out *m = out(w, A);
	uint64_t ids[3];
	struct kv_cqe c;

	lease = commit_three(w, A, cache, ids);
	c = call(w, A, (struct kv_sqe){ .op = KV_OP_LEASE_DUP, .id = lease, .nr = 2 });
	expect(c, 0, KV_OK);
	assert_int_not_equal(c.id, lease);
	expect(call(w, A, unlease_sqe(w, A, c.id)), 0, KV_OK);
	assert_int_not_equal(call(w, A, (struct kv_sqe){ .op = KV_OP_LEASE_DUP, .id = lease,
							  .nr = 4 }).res, 0);
	c = call(w, A, id_sqe(KV_OP_PARK, lease));
	expect(c, 0, KV_OK);
	park = c.id;
	assert_int_not_equal(call(w, A, id_sqe(KV_OP_PARK, lease)).res, 0);
	c = call(w, A, resume_sqe(park, 4096));
	expect(c, 0, KV_OK);
	assert_int_equal(m->nr_pages, 3);
	assert_memory_equal(m + 1, ids, sizeof(ids));
	assert_int_not_equal(call(w, A, resume_sqe(park, 4096)).res, 0);
	c = call(w, A, id_sqe(KV_OP_PARK, c.id));
	expect(c, 0, KV_OK);
	expect(call(w, A, id_sqe(KV_OP_UNPARK, c.id)), 0, KV_OK);
	assert_int_not_equal(call(w, A, id_sqe(KV_OP_UNPARK, c.id)).res, 0);
}

static void test_drop_head(void **state)
{
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 1, 2);
	uint64_t ids[8];
	struct kv_sqe s;
	struct kv_cqe c;

	alloc(w, A, cache, 0, ids, 4);
	alloc(w, A, cache, 1, ids + 4, 4);
	c = call(w, A, commit_sqe(w, A, cache, ids, 4, 2));
	expect(c, 0, KV_OK);
	s = (struct kv_sqe){ .op = KV_OP_DROP_HEAD, .id = c.id, .group = 1, .nr = 2 };
	expect(call(w, A, s), 0, KV_OK);
	s.group = 2;
	assert_int_not_equal(call(w, A, s).res, 0);
	s.group = 1;
	s.nr = 5;
	assert_int_not_equal(call(w, A, s).res, 0);
	expect(call(w, A, unlease_sqe(w, A, c.id)), 0, KV_OK);
}

static void test_reserve(void **state)
{
	struct world *w = *state;
	struct kv_sqe s = { .op = KV_OP_RESERVE, .arg = 31 * MIB };
	uint32_t cache = open_cache(w, B, 1, 1);

	expect(call(w, A, s), 0, KV_OK);
	expect(call(w, B, alloc_sqe(cache, 0, 4, 0)), -ENOMEM, KV_POOL_FULL);
	expect(call(w, B, s), -ENOMEM, KV_POOL_FULL);
	s.arg = UINT64_MAX;
	assert_int_not_equal(call(w, A, s).res, 0);
	s.group = 1;
	s.arg = 2 * MIB;
	expect(call(w, A, s), -ENOMEM, KV_POOL_FULL);
	s.group = 3;
	expect(call(w, A, s), -EINVAL, KV_BAD_ARGUMENT);
	s.group = 0;
	s.id = 1;
	assert_int_not_equal(call(w, A, s).res, 0);
	s.id = 0;
	s.arg = 0;
	expect(call(w, A, s), 0, KV_OK);
	expect(call(w, B, alloc_sqe(cache, 0, 4, 1000)), 0, KV_OK);
}

static void test_unimport(void **state)
{
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 1, 1);
	struct kv_sqe s = { .op = KV_OP_UNIMPORT };
	struct mm_request imp = {
		.op = MM_IMPORT, .engine = w->client[A].engine, .member = w->client[MEMBER].member,
	};
	uint64_t id, bytes;

	alloc(w, A, cache, 0, &id, 1);
	s.id = imp.map.extent = mm_page_extent(id);
	assert_int_not_equal(call(w, MEMBER, s).res, 0);
	assert_int_equal(raw(w, imp).result, 0);
	assert_true(exec_export(w->x, s.id, 0, true, &bytes) >= FAKE_FD);
	assert_int_equal(bytes, 2 * MIB);
	s.nr = 1;
	assert_int_not_equal(call(w, MEMBER, s).res, 0);
	s.nr = 0;
	expect(call(w, MEMBER, s), 0, KV_OK);
	assert_int_not_equal(call(w, MEMBER, s).res, 0);
}

/* Pressure on the holder of the pool, its event, and its answer. */
static void test_events(void **state)
{
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 1, 1), mine = open_cache(w, B, 1, 1), i;
	struct kv_sqe s = { .op = KV_OP_EVENTS, .out_off = OUT_OFF, .out_bytes = 64 };
	struct kv_event *e = out(w, A);
	uint64_t ids[512];
	struct kv_cqe c;

	c = call(w, A, s);
	expect(c, 0, KV_OK);
	assert_int_equal(c.id, 0);
	for (int n = 0; n < 16; n++)
		alloc(w, A, cache, 0, ids, 512);
	i = begin(w, B, alloc_sqe(mine, 0, 4, 1000));
	assert_false(finished(w, i));
	assert_true(w->nr_notified > 0);
	c = call(w, A, s);
	expect(c, 0, KV_OK);
	assert_int_equal(c.id, 1);
	assert_int_equal(c.nr, 1);
	assert_int_equal(c.out_bytes, sizeof(*e));
	assert_int_equal(e->kind, MM_EVENT_PRESSURE);
	assert_true(e->bytes > 0);
	/* no room: it says that there is one, and it stays */
	s.out_bytes = 31;
	c = call(w, A, s);
	expect(c, 0, KV_OK);
	assert_int_equal(c.id, 0);
	assert_int_equal(c.nr, 1);
	expect(call(w, A, (struct kv_sqe){ .op = KV_OP_PRESSURE_ACK, .id = e->seq }), 0, KV_OK);
	expect(call(w, A, free_sqe(w, A, ids, 512)), 0, KV_OK);
	w->now_ns += 2000 * 1000000ull;
	run(w);
	assert_true(finished(w, i));
}

static void test_acks_of_nothing(void **state)
{
	struct world *w = *state;

	assert_true(call(w, A, id_sqe(KV_OP_PRESSURE_ACK, 77)).res <= 0);
	assert_true(call(w, A, id_sqe(KV_OP_VACATE_ACK, 77)).res < 0);
	assert_true(call(w, A, id_sqe(KV_OP_VACATE_ACK, UINT32_MAX)).res < 0);
}

/* What a hint may say; whose lease it names is mm's to check. */
static void test_hint(void **state)
{
	static const struct kv_hint_in bad[] = {
		{ .reserved = 1 },		      { .priority = 3 },
		{ .priority = UINT32_MAX },	      { .from_page = 2, .to_page = 2 },
		{ .from_page = 3, .to_page = 2 },     { .from_page = UINT32_MAX, .to_page = 1 },
	};
	struct world *w = *state;
	struct kv_sqe s = { .op = KV_OP_HINT, .in_bytes = sizeof(bad[0]) };
	uint32_t cache = open_cache(w, A, 1, 1);
	uint64_t ids[3];

	s.id = commit_three(w, A, cache, ids);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		memcpy(w->data[A], &bad[i], sizeof(bad[i]));
		expect(call(w, A, s), -EINVAL, i ? KV_BAD_ARGUMENT : KV_BAD_ENTRY);
	}
	memset(w->data[A], 0, sizeof(bad[0]));
	expect(call(w, A, s), 0, KV_OK);
	for (s.in_bytes = 0; s.in_bytes <= 2 * sizeof(bad[0]); s.in_bytes += 4)
		if (s.in_bytes != sizeof(bad[0]))
			expect(call(w, A, s), -EINVAL, KV_BAD_ENTRY);
}

static void test_stat(void **state)
{
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 1, 1);
	struct kv_sqe s = { .op = KV_OP_STAT, .out_off = OUT_OFF, .out_bytes = 200 };
	struct kv_stat *st = out(w, A);
	uint64_t ids[4];
	struct kv_cqe c;

	alloc(w, A, cache, 0, ids, 4);
	c = call(w, A, s);
	expect(c, 0, KV_OK);
	assert_int_equal(c.out_bytes, sizeof(*st));
	assert_int_equal(st->held_pages, 4);
	assert_int_equal(st->held_bytes, 4 * 4096);
	assert_int_equal(st->nr_extents, 1);
	assert_int_equal(st->extent_bytes, 2 * MIB);
	assert_int_equal(st->allocs, 4);
	assert_int_equal(st->nr_members, 2);
	c = call(w, OTHER, s);
	expect(c, 0, KV_OK);
	assert_int_equal(((struct kv_stat *)out(w, OTHER))->held_pages, 0);
}

/* ---- between clients ----------------------------------------------------------------------- */

static void test_ids_of_others(void **state)
{
	static const enum who thief[] = { B, OTHER };
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 1, 1), lease, park;
	uint64_t ids[3], held[6] = { 0 };
	struct mm_engine_info before, after;
	uint32_t e = w->client[A].engine - 1;

	open_cache(w, B, 1, 1);
	lease = commit_three(w, A, cache, ids);
	park = call(w, A, id_sqe(KV_OP_PARK, call(w, A, (struct kv_sqe){
		.op = KV_OP_LEASE_DUP, .id = lease }).id)).id;
	assert_int_not_equal(park, 0);
	alloc(w, A, cache, 0, held, 2);
	assert_true(mm_next_engine(exec_mm(w->x), &e, &before));
	for (int i = 0; i < 2; i++) {
		enum who t = thief[i];
		struct kv_sqe s;

		assert_true(call(w, t, unlease_sqe(w, t, lease)).res < 0);
		assert_true(call(w, t, id_sqe(KV_OP_LEASE_DUP, lease)).res < 0);
		assert_true(call(w, t, id_sqe(KV_OP_PARK, lease)).res < 0);
		assert_true(call(w, t, (struct kv_sqe){ .op = KV_OP_DROP_HEAD, .id = lease,
							.nr = 1 }).res < 0);
		expect(call(w, t, resume_sqe(park, 0)), -ENOENT, KV_NO_SUCH_ID);
		expect(call(w, t, resume_sqe(park, 65536)), -ENOENT, KV_NO_SUCH_ID);
		assert_true(call(w, t, id_sqe(KV_OP_UNPARK, park)).res < 0);
		assert_true(call(w, t, free_sqe(w, t, held, 2)).res < 0);
		assert_true(call(w, t, free_sqe(w, t, ids, 1)).res < 0);
		assert_true(call(w, t, commit_sqe(w, t, cache, held, 2, 1)).res < 0);
		s = commit_sqe(w, t, cache, held, 2, 1);
		s.id = lease;
		assert_true(call(w, t, s).res < 0);
	}
	/* a cache of another tenant: not even its shape shows */
	expect(call(w, OTHER, lookup_sqe(w, OTHER, cache, 48, 0, 1)), -ENOENT, KV_NO_SUCH_ID);
	expect(call(w, OTHER, lookup_sqe(w, OTHER, cache, 48, 0, 0)), -ENOENT, KV_NO_SUCH_ID);
	expect(call(w, OTHER, commit_sqe(w, OTHER, cache, held, 2, 3)), -ENOENT, KV_NO_SUCH_ID);
	assert_true(call(w, OTHER, alloc_sqe(cache, 0, 1, 1000)).res < 0);
	assert_true(call(w, OTHER, (struct kv_sqe){ .op = KV_OP_CACHE_CLOSE, .cache = cache }).res <
		    0);
	e = w->client[A].engine - 1;
	assert_true(mm_next_engine(exec_mm(w->x), &e, &after));
	assert_memory_equal(&before, &after, sizeof(before));
	expect(call(w, A, free_sqe(w, A, held, 2)), 0, KV_OK);
	expect(call(w, A, unlease_sqe(w, A, lease)), 0, KV_OK);
}

/* Same tokens, same key, another tenant: not a hit. */
static void test_tenants_share_nothing(void **state)
{
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 1, 1), other = open_cache(w, OTHER, 1, 1);
	uint64_t ids[3];
	struct kv_cqe c;

	commit_three(w, A, cache, ids);
	c = call(w, OTHER, lookup_sqe(w, OTHER, other, 48, 0, 1));
	expect(c, 0, KV_OK);
	assert_int_equal(c.nr, 0);
	assert_int_equal(((struct kv_match_out *)out(w, OTHER))->tail_tokens, 0);
}

static void test_death_leaves_nothing(void **state)
{
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 0, 1), i;	/* key zero: the engine's own */
	struct mm_request gone = { .op = MM_MEMBER_GONE };
	uint64_t ids[3];

	commit_three(w, A, cache, ids);
	alloc(w, A, cache, 0, ids, 3);
	expect(call(w, A, (struct kv_sqe){ .op = KV_OP_RESERVE, .arg = MIB }), 0, KV_OK);
	assert_int_equal(w->dev.nr_live, 1);
	assert_int_equal(raw(w, (struct mm_request){ .op = MM_FENCE,
						     .engine = w->client[A].engine }).result, 0);
	i = begin(w, A, alloc_sqe(cache, 0, 1, 1000));
	assert_true(finish(w, i).res < 0);
	for (int m = 0; m < 2; m++) {
		gone.engine = w->client[A].engine;
		gone.member = w->client[m ? MEMBER : A].member;
		assert_int_equal(raw(w, gone).result, 0);
	}
	run(w);
	assert_int_equal(w->dev.nr_live, 0);
	assert_true(call(w, A, (struct kv_sqe){ .op = KV_OP_STAT, .out_off = OUT_OFF,
						.out_bytes = 96 }).res < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_WORLD(test_nop),
		IN_WORLD(test_open),
		IN_WORLD(test_close_gives_back),
		IN_WORLD(test_alloc_and_free),
		IN_WORLD(test_alloc_waits_for_the_device),
		IN_WORLD(test_alloc_times_out),
		IN_WORLD(test_device_fails),
		IN_WORLD(test_commit_and_lookup),
		IN_WORLD(test_commit_partial),
		IN_WORLD(test_commit_refusals),
		IN_WORLD(test_leases_and_parks),
		IN_WORLD(test_drop_head),
		IN_WORLD(test_reserve),
		IN_WORLD(test_unimport),
		IN_WORLD(test_events),
		IN_WORLD(test_acks_of_nothing),
		IN_WORLD(test_hint),
		IN_WORLD(test_stat),
		IN_WORLD(test_ids_of_others),
		IN_WORLD(test_tenants_share_nothing),
		IN_WORLD(test_death_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
