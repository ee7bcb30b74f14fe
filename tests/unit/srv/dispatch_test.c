// SPDX-License-Identifier: Apache-2.0
/* dispatch: what an entry may say. Every field, flag, size, range and room, and who may send it. */
#include "dispatch_world.h"

/* ---- the entry itself ---------------------------------------------------------------------- */

/* Which fields an op uses: group cache id nr arg in out, and which flags. Written down again here,
 * from kv_abi.h, so that a slip in the table of dispatch.c shows. */
static const struct {
	uint8_t op;
	const char *fields;
	uint8_t flags;
	bool member;
} ops[] = {
	{ KV_OP_NOP, "", 0, true },
	{ KV_OP_CACHE_OPEN, "nio", 0, false },
	{ KV_OP_CACHE_CLOSE, "c", KV_SQE_GIVE_BACK, false },
	{ KV_OP_ALLOC, "cgnao", 0, false },
	{ KV_OP_FREE, "ni", 0, false },
	{ KV_OP_LOOKUP, "cio", KV_SQE_ADOPT, false },
	{ KV_OP_COMMIT, "cdio", KV_SQE_PARTIAL, false },
	{ KV_OP_LEASE_DUP, "dn", 0, false },
	{ KV_OP_UNLEASE, "ni", 0, false },
	{ KV_OP_PARK, "d", 0, false },
	{ KV_OP_RESUME, "do", KV_SQE_ADOPT, false },
	{ KV_OP_UNPARK, "d", 0, false },
	{ KV_OP_DROP_HEAD, "dgn", 0, false },
	{ KV_OP_RESERVE, "gda", 0, false },
	{ KV_OP_UNIMPORT, "dn", 0, true },
	{ KV_OP_EVENTS, "o", 0, true },
	{ KV_OP_PRESSURE_ACK, "da", 0, false },
	{ KV_OP_VACATE_ACK, "d", 0, false },
	{ KV_OP_STAT, "o", 0, true },
	{ KV_OP_HINT, "di", 0, false },
};
#define NR_OPS (sizeof(ops) / sizeof(ops[0]))
_Static_assert(NR_OPS == KV_NR_OPS, "an op without a row");

static void test_unused_fields(void **state)
{
	static const char fields[] = "gcdnaioIO";
	struct world *w = *state;

	for (size_t i = 0; i < NR_OPS; i++) {
		for (const char *f = fields; *f; f++) {
			struct kv_sqe s = { .op = ops[i].op };
			char name = *f == 'I' ? 'i' : *f == 'O' ? 'o' : *f;

			s.group = *f == 'g';
			s.cache = *f == 'c';
			s.id = *f == 'd';
			s.nr = *f == 'n';
			s.arg = *f == 'a';
			s.in_bytes = *f == 'i';
			s.in_off = *f == 'I';
			s.out_bytes = *f == 'o';
			s.out_off = *f == 'O';
			if (!strchr(ops[i].fields, name))
				expect(call(w, A, s), -EINVAL, KV_BAD_ENTRY);
		}
		for (unsigned int bit = 1; bit < 256; bit <<= 1) {
			struct kv_sqe s = { .op = ops[i].op, .flags = (uint8_t)bit };

			if (!(bit & ops[i].flags))
				expect(call(w, A, s), -EINVAL, KV_BAD_ENTRY);
		}
		expect(call(w, A, (struct kv_sqe){ .op = ops[i].op, .reserved = 1ull << 63 }),
		       -EINVAL, KV_BAD_ENTRY);
	}
	for (unsigned int op = KV_NR_OPS; op < 256; op++)
		expect(call(w, A, (struct kv_sqe){ .op = (uint8_t)op }), -EINVAL, KV_BAD_ENTRY);
}

static void test_members_only_map(void **state)
{
	struct world *w = *state;
	struct kv_sqe stat = { .op = KV_OP_STAT, .out_off = OUT_OFF, .out_bytes = 96 };

	for (size_t i = 0; i < NR_OPS; i++) {
		struct kv_cqe c = call(w, MEMBER, (struct kv_sqe){ .op = ops[i].op });

		if (!ops[i].member)
			expect(c, -EACCES, KV_NOT_LEAD);
		else
			assert_int_not_equal(c.reason, KV_NOT_LEAD);
	}
	expect(call(w, MEMBER, stat), 0, KV_OK);
	assert_int_equal(((struct kv_stat *)out(w, MEMBER))->nr_members, 2);
}

static void test_ranges(void **state)
{
	static const struct { uint64_t off; uint32_t bytes;
	} bad[] = {
		{ DATA_BYTES + 1, 0 },	  { DATA_BYTES, 8 },	      { DATA_BYTES - 7, 8 },
		{ 0, DATA_BYTES + 1 },	  { 0, UINT32_MAX },	      { UINT64_MAX, 8 },
		{ UINT64_MAX - 7, 8 },	  { UINT64_MAX, UINT32_MAX }, { 1ull << 32, 8 },
		{ 1ull << 63, 1u << 31 },
	};
	struct world *w = *state;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct kv_sqe in = { .op = KV_OP_FREE, .nr = bad[i].bytes / 8 };
		struct kv_sqe ev = { .op = KV_OP_EVENTS };

		in.in_off = ev.out_off = bad[i].off;
		in.in_bytes = ev.out_bytes = bad[i].bytes;
		expect(call(w, A, in), -EINVAL, KV_BAD_ENTRY);
		expect(call(w, A, ev), -EINVAL, KV_BAD_ENTRY);
	}
	expect(call(w, A, (struct kv_sqe){ .op = KV_OP_EVENTS, .out_off = DATA_BYTES }), 0, KV_OK);
}

static void test_exact_sizes(void **state)
{
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 1, 1);
	struct kv_cache_desc d = desc_of(2, 1);
	uint64_t ids[4] = { 1, 2, 3, 4 };

	for (int delta = -1; delta <= 1; delta += 2) {
		struct kv_sqe s[] = {
			open_sqe(w, A, &d), free_sqe(w, A, ids, 4), unlease_sqe(w, A, 1),
			lookup_sqe(w, A, cache, 33, 2, 1), commit_sqe(w, A, cache, ids, 4, 1),
		};

		for (size_t i = 0; i < sizeof(s) / sizeof(s[0]); i++) {
			s[i].in_bytes = s[i].in_bytes + (uint32_t)delta;
			if (i == 3)
				lookup_sqe(w, A, cache, 33, 2, 1);
			expect(call(w, A, s[i]), -EINVAL, KV_BAD_ENTRY);
		}
	}
	for (uint32_t n = 0; n < sizeof(struct kv_commit_in); n++) {
		struct kv_sqe s = commit_sqe(w, A, cache, ids, 4, 1);

		s.in_bytes = n;
		expect(call(w, A, s), -EINVAL, KV_BAD_ENTRY);
		s = lookup_sqe(w, A, cache, 1, 0, 1);
		s.in_bytes = n < sizeof(struct kv_lookup_in) ? n : 9;
		expect(call(w, A, s), -EINVAL, KV_BAD_ENTRY);
	}
}

/* Counts whose product does not fit 32 bits must not pass for a small input. */
static void test_counts_overflow(void **state)
{
	static const struct kv_commit_in in[] = {
		{ 0x40000000, 0, 1, 0 }, { 0, 0x20000000, 8, 0 }, { 0, 0x80000000, 4, 0 },
		{ 0xffffffff, 0xffffffff, 8, 0xffffffff }, { 0, 0x20000000, 1, 0 },
		{ 0, 0, 0xffffffff, 0 }, { 0, 0, 9, 0 }, { 0, 0, 1, 0x66666666 },
	};
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 1, 1);

	for (size_t i = 0; i < sizeof(in) / sizeof(in[0]); i++) {
		struct kv_lookup_in l = { in[i].nr_tokens, in[i].nr_keys };
		struct kv_sqe s = {
			.op = KV_OP_COMMIT, .cache = cache, .in_bytes = sizeof(in[i]),
			.out_off = OUT_OFF, .out_bytes = 4096,
		};

		memcpy(w->data[A], &in[i], sizeof(in[i]));
		assert_int_equal(call(w, A, s).res, -EINVAL);
		if (!l.nr_tokens && !l.nr_keys)
			continue;
		memcpy(w->data[A], &l, sizeof(l));
		s.op = KV_OP_LOOKUP;
		s.in_bytes = sizeof(l);
		assert_int_equal(call(w, A, s).res, -EINVAL);
	}
	expect(call(w, A, (struct kv_sqe){ .op = KV_OP_FREE, .nr = 0x20000000 }), -EINVAL,
	       KV_BAD_ENTRY);
	expect(call(w, A, (struct kv_sqe){ .op = KV_OP_UNLEASE, .nr = 0x40000000 }), -EINVAL,
	       KV_BAD_ENTRY);
	expect(call(w, A, alloc_sqe(cache, 0, 0x20000000, 0)), -ENOSPC, KV_BAD_ENTRY);
	expect(call(w, A, alloc_sqe(cache, 0, 1, 1ull << 32)), -EINVAL, KV_BAD_ARGUMENT);
	expect(call(w, A, alloc_sqe(cache, 0, 1, UINT64_MAX)), -EINVAL, KV_BAD_ARGUMENT);
}

static void test_reserved_inside_arrays(void **state)
{
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 1, 1);
	struct kv_cache_desc d[6];
	struct kv_sqe s = lookup_sqe(w, A, cache, 32, 2, 1);
	struct kv_page_key *keys = (void *)(w->data[A] + sizeof(struct kv_lookup_in) + 32 * 4);

	expect(call(w, A, s), 0, KV_OK);
	keys[1].reserved = 1;
	expect(call(w, A, s), -EINVAL, KV_BAD_ENTRY);

	for (int i = 0; i < 6; i++)
		d[i] = desc_of(9, 1);
	d[0].reserved = 1;
	d[1].group[0].reserved = 1;
	d[2].group[1].kind = 1;
	d[3].shard[1].device = 1;
	d[4].shard[0].page_bytes[1] = 64;
	d[5].group[7].reserved = 1;
	for (int i = 0; i < 6; i++)
		expect(call(w, A, open_sqe(w, A, &d[i])), -EINVAL, KV_BAD_ENTRY);
	for (int i = 0; i < 4; i++) {
		d[i] = desc_of(9, 1);
		d[i].nr_groups = i == 0 ? 0 : i == 1 ? 9 : 1;
		d[i].nr_shards = i == 2 ? 0 : i == 3 ? UINT32_MAX : 1;
		expect(call(w, A, open_sqe(w, A, &d[i])), -EINVAL, KV_BAD_ARGUMENT);
	}
}

/* Too little room is refused before anything is taken, and says how much it takes. */
static void test_room(void **state)
{
	struct world *w = *state;
	uint32_t cache = open_cache(w, A, 1, 1), lease;
	struct kv_cache_desc d = desc_of(2, 1);
	uint64_t ids[3], more[3];
	struct mm_engine_info before, after;
	struct kv_cqe c;
	struct kv_sqe s[6];
	uint32_t e = w->client[A].engine - 1;

	lease = commit_three(w, A, cache, ids);
	alloc(w, A, cache, 0, more, 3);
	c = call(w, A, (struct kv_sqe){ .op = KV_OP_LEASE_DUP, .id = lease });
	expect(c, 0, KV_OK);
	c = call(w, A, id_sqe(KV_OP_PARK, c.id));
	expect(c, 0, KV_OK);
	assert_int_not_equal(c.id, 0);
	assert_true(mm_next_engine(exec_mm(w->x), &e, &before));
	for (int i = 0; i < 6; i++) {
		s[0] = alloc_sqe(cache, 0, 3, 1000);
		s[1] = (struct kv_sqe){ .op = KV_OP_STAT, .out_off = OUT_OFF, .out_bytes = 96 };
		s[2] = resume_sqe(c.id, sizeof(struct kv_match_out) + 3 * 8);
		s[3] = i == 3 ? open_sqe(w, A, &d) : s[0];
		s[4] = i == 4 ? lookup_sqe(w, A, cache, 60, 0, 1) : s[0];
		s[5] = i == 5 ? commit_sqe(w, A, cache, more, 3, 1) : s[0];
		for (uint32_t room = 0; room < s[i].out_bytes; room += 8) {
			struct kv_sqe small = s[i];
			struct kv_cqe r;

			small.out_bytes = room;
			r = call(w, A, small);
			expect(r, -ENOSPC, KV_BAD_ENTRY);
			assert_int_equal(r.val[0], s[i].out_bytes);
			assert_int_equal(r.val[1], room);
		}
	}
	e = w->client[A].engine - 1;
	assert_true(mm_next_engine(exec_mm(w->x), &e, &after));
	assert_memory_equal(&before, &after, sizeof(before));
	c = call(w, A, s[2]);
	expect(c, 0, KV_OK);
	assert_int_equal(c.nr, 3);
	assert_int_equal(c.out_bytes, s[2].out_bytes);
	assert_memory_equal((uint8_t *)out(w, A) + sizeof(struct kv_match_out), ids, sizeof(ids));
}

static void test_texts(void **state)
{
	static const uint32_t reasons[] = {
		KV_OK, KV_BAD_ARGUMENT, KV_NO_SUCH_ID, KV_STALE_PAGE, KV_NOT_OWNER, KV_POOL_FULL,
		KV_TENANT_MAX, KV_TABLE_FULL, KV_FENCED, KV_LEASED, KV_TIMED_OUT, KV_LAYOUT_DIFFERS,
		KV_BAD_ENTRY, KV_NOT_LEAD,
	};
	const char *unknown = dispatch_reason_text(UINT32_MAX);

	(void)state;
	assert_string_equal(unknown, dispatch_reason_text(63));
	for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
		assert_string_not_equal(dispatch_reason_text(reasons[i]), unknown);
		for (size_t j = 0; j < i; j++)
			assert_string_not_equal(dispatch_reason_text(reasons[i]),
						dispatch_reason_text(reasons[j]));
	}
	assert_string_equal(dispatch_op_name(KV_OP_DROP_HEAD), "DROP_HEAD");
	assert_string_equal(dispatch_op_name(KV_NR_OPS), "?");
}

/* mm takes the defaults for every pool that people start it with. */
static void test_default_configs_fit(void **state)
{
	static const uint64_t mib[] = { 2, 8, 64, 1024, 16384, 143360, 1u << 20 };
	struct mm_config cfg;

	(void)state;
	for (size_t i = 0; i < sizeof(mib) / sizeof(mib[0]); i++) {
		uint64_t pool[2] = { mib[i] * MIB, mib[i] * MIB };

		for (uint32_t n = 1; n <= 2; n++) {
			exec_default_config(&cfg, n, pool, 0);
			assert_true(mm_footprint(&cfg) > 0);
			assert_true(mm_footprint(&cfg) < 1ull << 34);
		}
		exec_default_config(&cfg, 1, pool, 2 * MIB);
		assert_true(mm_footprint(&cfg) > 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_WORLD(test_unused_fields),
		IN_WORLD(test_members_only_map),
		IN_WORLD(test_ranges),
		IN_WORLD(test_exact_sizes),
		IN_WORLD(test_counts_overflow),
		IN_WORLD(test_reserved_inside_arrays),
		IN_WORLD(test_room),
		cmocka_unit_test(test_texts),
		cmocka_unit_test(test_default_configs_fit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
