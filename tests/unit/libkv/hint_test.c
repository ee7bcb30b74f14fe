// SPDX-License-Identifier: Apache-2.0
/* What hints say on the wire, which of them are refused, and that a pin holds: beyond its sequence,
 * for whoever has the same beginning, until it is lifted. */
#include "call.h"
#include "seq_fixture.h"

#define PT 4u

static struct fix f;
static uint32_t tokens[64];
static const struct link_ops *real;
static struct link_ops ops;

static struct {
	struct kv_hint_in in;
	uint32_t lease, calls;
	int refuse;	/* HINT */
	bool no_leases; /* LEASE_DUP */
} seen;

static int watch(struct kv *kv, struct call *c)
{
	int res = c->sqe.op == KV_OP_LEASE_DUP && seen.no_leases ? -ENOMEM : 0;

	if (c->sqe.op == KV_OP_HINT) {
		assert_int_equal(c->sqe.in_bytes, sizeof(seen.in));
		memcpy(&seen.in, c->in, sizeof(seen.in));
		seen.lease = c->sqe.id;
		seen.calls++;
		res = seen.refuse;
	}
	if (!res)
		return real->call(kv, c);
	c->cqe = (struct kv_cqe){ .user_data = c->sqe.user_data, .res = res,
				  .reason = res ? KV_TABLE_FULL : KV_OK };
	c->done = true;
	return 0;
}

static int start(void **state)
{
	uint32_t i;

	(void)state;
	for (i = 0; i < 64; i++)
		tokens[i] = i + 1;
	fix_open(&f, "embedded:host:4M", fix_layout(KV_GQA, KV_F32, PT), 0);
	real = f.kv->ops;
	ops = *real;
	ops.call = watch;
	f.kv->ops = &ops;
	memset(&seen, 0, sizeof(seen));
	return 0;
}

static int stop(void **state)
{
	(void)state;
	fix_close(&f);
	return 0;
}

static uint32_t leases(void)
{
	struct kv_info info;

	assert_int_equal(kv_info(f.kv, &info), 0);
	return info.nr_leases;
}

static struct kv_seq *grown(uint32_t n, uint32_t committed)
{
	struct kv_seq *s;
	uint32_t hit;

	assert_int_equal(kv_seq_create(f.cache, NULL, 0, &s), 0);
	assert_int_equal(kv_seq_match(s, tokens, n, &hit), 0);
	assert_int_equal(kv_seq_append(s, tokens + hit, n - hit), 0);
	fix_store(&f, s, 0, hit, n);
	assert_int_equal(kv_seq_commit(s, committed > hit ? committed : hit), 0);
	return s;
}

static uint32_t hit_of(uint32_t n)
{
	struct kv_seq *s;
	uint32_t hit;

	assert_int_equal(kv_seq_create(f.cache, NULL, 0, &s), 0);
	assert_int_equal(kv_seq_match(s, tokens, n, &hit), 0);
	fix_verify(&f, s, 0, hit);
	kv_seq_release(s);
	return hit;
}

/* Everything that is not held or leased is evicted. */
static void squeeze(void)
{
	fix_shrink(&f, 4);
	assert_int_equal(kv_pages_free(f.cache, 0, f.nr_hog[0], f.hog[0]), 0);
	f.nr_hog[0] = 0;
}

static void what_is_sent(void **state)
{
	const struct kv_hint high = { .priority = KV_PRIORITY_HIGH, .reuse_ms = 7, .ttl_ms = 9 };
	const struct kv_hint low = { .priority = KV_PRIORITY_LOW };
	const struct kv_hint none = { .ttl_ms = 0 };
	struct kv_seq *s = grown(22, 18);

	(void)state;
	assert_int_equal(kv_seq_hint(s, 5, 9, &high), 0);
	assert_int_equal(seen.in.from_page, 1);
	assert_int_equal(seen.in.to_page, 3);
	assert_int_equal(seen.in.priority, 2);
	assert_int_equal(seen.in.reuse_ms, 7);
	assert_int_equal(seen.in.ttl_ms, 9);
	assert_int_equal(seen.in.reserved, 0);
	assert_true(seen.lease != 0);
	/* to the end, as far as it is published: four pages of the 18 committed tokens */
	assert_int_equal(kv_seq_hint(s, 0, 0, &low), 0);
	assert_int_equal(seen.in.from_page, 0);
	assert_int_equal(seen.in.to_page, 4);
	assert_int_equal(seen.in.priority, 0);
	assert_int_equal(kv_seq_hint(s, 15, 22, &none), 0);
	assert_int_equal(seen.in.from_page, 3);
	assert_int_equal(seen.in.to_page, 4);
	assert_int_equal(seen.in.priority, 1);
	assert_int_equal(kv_lease_hint(f.cache, seen.lease, 2, 0, &high), 0);
	assert_int_equal(seen.in.from_page, 2);
	assert_int_equal(seen.in.to_page, 0);
	assert_int_equal(kv_lease_hint(f.cache, seen.lease, 2, 3, &high), 0);
	assert_int_equal(seen.in.to_page, 3);
	kv_seq_release(s);
}

static void what_is_refused(void **state)
{
	const struct kv_hint good = { .priority = 0 }, bad = { .priority = 3 };
	const struct kv_hint pin = { .pin = true };
	struct kv_seq *s = grown(22, 18);
	uint32_t before = leases();

	(void)state;
	assert_int_equal(kv_seq_hint(NULL, 0, 0, &good), -EINVAL);
	assert_int_equal(kv_seq_hint(s, 0, 0, NULL), -EINVAL);
	assert_int_equal(kv_seq_hint(s, 0, 0, &bad), -EINVAL);
	assert_int_equal(kv_seq_hint(s, 9, 9, &good), -EINVAL);
	assert_int_equal(kv_seq_hint(s, 9, 5, &good), -EINVAL);
	assert_int_equal(kv_seq_hint(s, 0, 23, &good), -EINVAL);
	assert_int_equal(kv_seq_hint(s, 22, 0, &good), -EINVAL);
	assert_int_equal(kv_seq_hint(s, 16, 22, &good), -ENOENT);
	assert_int_equal(kv_lease_hint(f.cache, 1, 0, 0, NULL), -EINVAL);
	assert_int_equal(kv_lease_hint(f.cache, 1, 0, 0, &bad), -EINVAL);
	assert_int_equal(kv_lease_hint(f.cache, 1, 3, 3, &good), -EINVAL);
	assert_int_equal(kv_lease_hint(f.cache, 1, 0, 0, &pin), -EINVAL);
	assert_int_equal(seen.calls, 0);
	/* the pool refuses: as before */
	seen.no_leases = true;
	assert_int_equal(kv_seq_hint(s, 0, 0, &pin), -ENOMEM);
	assert_int_equal(seen.calls, 0);
	seen.no_leases = false;
	seen.refuse = -ENOMEM;
	assert_int_equal(kv_seq_hint(s, 0, 0, &pin), -ENOMEM);
	assert_int_equal(leases(), before);
	seen.refuse = 0;
	assert_int_equal(kv_seq_park(s), 0);
	assert_int_equal(kv_seq_hint(s, 0, 0, &good), -EINVAL);
	kv_seq_release(s);
	s = grown(3, 3);
	kv_seq_release(s);
}

static void a_pin_outlives_its_sequence(void **state)
{
	const struct kv_hint pin = { .pin = true }, lift = { .pin = false };
	struct kv_seq *s = grown(22, 20);

	(void)state;
	assert_int_equal(kv_seq_hint(s, 0, 10, &pin), 0);
	kv_seq_release(s);
	squeeze();
	assert_int_equal(hit_of(22), 12); /* three pages: up to token 10 */
	s = grown(22, 20);
	/* a hint that does not cover the end of the pin leaves it */
	assert_int_equal(kv_seq_hint(s, 0, 8, &lift), 0);
	assert_int_equal(kv_seq_hint(s, 12, 0, &lift), 0);
	kv_seq_release(s);
	squeeze();
	assert_int_equal(hit_of(22), 12);
	s = grown(13, 12);
	assert_int_equal(kv_seq_hint(s, 0, 0, &lift), 0);
	kv_seq_release(s);
	assert_int_equal(leases(), 0);
	squeeze();
	assert_int_equal(hit_of(22), 0);
}

static void a_growing_pin_is_one_lease(void **state)
{
	const struct kv_hint pin = { .pin = true };
	struct kv_seq *s = grown(40, 8), *other;
	uint32_t n, before = leases();

	(void)state;
	for (n = 8; n <= 40; n += 4) {
		assert_int_equal(kv_seq_commit(s, n), 0);
		assert_int_equal(kv_seq_hint(s, 0, n, &pin), 0);
		assert_int_equal(kv_seq_hint(s, 0, n, &pin), 0);
		assert_int_equal(leases(), before + 1);
	}
	/* another beginning is another pin, and not lifted by this one's hint */
	tokens[1] = 99;
	other = grown(12, 12);
	assert_int_equal(kv_seq_hint(other, 0, 0, &pin), 0);
	assert_int_equal(leases(), before + 3);
	assert_int_equal(kv_seq_hint(s, 0, 0, &(struct kv_hint){ .ttl_ms = 1 }), 0);
	assert_int_equal(leases(), before + 2);
	kv_seq_release(other);
	kv_seq_release(s);
	assert_int_equal(leases(), 1); /* goes with the cache: fix_close() looks */
}

static void many_pins(void **state)
{
	const struct kv_hint pin = { .pin = true };
	uint32_t i;

	(void)state;
	for (i = 0; i < 40; i++) {
		struct kv_seq *s;

		tokens[0] = 1000 + i;
		s = grown(8, 8);
		assert_int_equal(kv_seq_hint(s, 0, 0, &pin), 0);
		kv_seq_release(s);
	}
	assert_int_equal(leases(), 40);
	squeeze();
	for (i = 0; i < 40; i++) {
		tokens[0] = 1000 + i;
		assert_int_equal(hit_of(9), 8);
	}
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, start, stop)
	const struct CMUnitTest tests[] = {
		T(what_is_sent),
		T(what_is_refused),
		T(a_pin_outlives_its_sequence),
		T(a_growing_pin_is_one_lease),
		T(many_pins),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
