// SPDX-License-Identifier: Apache-2.0
#include "mmt.h"

static struct mmt t;
static uint32_t e1, e2, m1, m2, c;

static int setup(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);

	(void)state;
	mmt_init(&t, &cfg);
	assert_int_equal(mmt_attach(&t, 1000, &e1, &m1), 0);
	assert_int_equal(mmt_attach(&t, 1000, &e2, &m2), 0);
	assert_int_equal(mmt_open(&t, e1, &d, &c), 0);
	assert_int_equal(mmt_open(&t, e2, &d, &c), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	mmt_fini(&t);
	return 0;
}

static void a_prefix_is_found_and_leased(void **state)
{
	uint64_t ids[4];

	(void)state;
	assert_int_equal(mmt_lookup(&t, e1, c, 0, mmt_tokens(0), 64), 0);
	assert_int_equal(t.rp.nr_pages, 0);
	assert_int_equal(t.rp.lease, 0);
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 4, ids), 0);
	assert_int_equal(mmt_commit(&t, e1, c, 0, mmt_tokens(0), 64, ids), 0);
	assert_int_equal(t.rp.nr_pages, 4);
	assert_memory_equal(t.pages, ids, sizeof(ids));
	assert_int_equal(mmt_lookup(&t, e2, c, 0, mmt_tokens(0), 50), 0);
	assert_int_equal(t.rp.nr_pages, 3);
	assert_int_equal(t.rp.nr_groups, 1);
	assert_memory_equal(t.pages, ids, 3 * sizeof(*ids));
	assert_int_equal(t.rp.tail_tokens, 2);		/* 48, 49 of the fourth page */
	assert_true(t.rp.tail_pages[0] == ids[3]);
	assert_int_not_equal(t.rp.tail_lease, 0);
	assert_int_equal(mmt_lookup(&t, e2, c, 0, mmt_tokens(1), 50), 0);
	assert_int_equal(t.rp.nr_pages + t.rp.tail_tokens + t.rp.lease, 0);
	assert_int_equal(mmt_lookup(&t, e2, c, 0, NULL, 0), 0);
	assert_int_equal(t.rp.lease, 0);
	assert_int_equal(mm_vmstat(t.mm)->hit_pages, 3);
	assert_int_equal(mm_vmstat(t.mm)->hit_tokens, 50);
	assert_int_equal(mm_vmstat(t.mm)->tail_hits, 1);
}

static void a_lease_grows_by_commits(void **state)
{
	uint64_t ids[3];
	uint32_t first, second;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 3, ids), 0);
	assert_int_equal(mmt_commit(&t, e1, c, 0, mmt_tokens(0), 16, ids), 0);
	first = t.rp.lease;
	assert_int_equal(mmt_commit(&t, e1, c, first, mmt_tokens(16), 20, ids + 1), 0);
	second = t.rp.lease;
	assert_int_not_equal(first, second);
	mmt_refused(&t, mmt_unlease(&t, e1, first), -ENOENT, MM_NO_SUCH_ID);	/* it has moved */
	mmt_refused(&t, mmt_unlease(&t, e2, second), -ENOENT, MM_NO_SUCH_ID);
	/* Nothing follows a partial page. */
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 1, ids), 0);
	mmt_refused(&t, mmt_commit(&t, e1, c, second, mmt_tokens(36), 16, ids), -EINVAL,
		    MM_BAD_ARGUMENT);
	assert_int_equal(mmt_unlease(&t, e1, second), 0);
	mmt_refused(&t, mmt_unlease(&t, e1, second), -ENOENT, MM_NO_SUCH_ID);
}

static void a_bad_commit_changes_nothing(void **state)
{
	uint64_t ids[3], bad[3];
	struct mm_page_key k[2] = { { .page = 1 }, { .page = 1 } };
	const uint32_t *tok = mmt_tokens(0);

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 3, ids), 0);
	mmt_refused(&t, mmt_commit_keys(&t, e1, c, 0, 0, tok, 0, ids, 0, NULL, 0), -EINVAL,
		    MM_BAD_ARGUMENT);
	mmt_refused(&t, mmt_commit_keys(&t, e1, c, 0, 0, tok, 33, ids, 2, NULL, 0), -EINVAL,
		    MM_BAD_ARGUMENT);
	mmt_refused(&t, mmt_commit_keys(&t, e1, c, 0, 0, tok, 31, ids, 2, NULL, 0), -EINVAL,
		    MM_BAD_ARGUMENT);			/* partial, but not said so */
	mmt_refused(&t, mmt_commit_keys(&t, e1, c, 1, 0, tok, 16, ids, 2, NULL, 0), -EINVAL,
		    MM_BAD_ARGUMENT);			/* the last page would be empty */
	mmt_refused(&t, mmt_commit_keys(&t, e1, c, 0, 0, tok, 16 * 65, ids, 65, NULL, 0), -EINVAL,
		    MM_BAD_ARGUMENT);
	mmt_refused(&t, mmt_commit_keys(&t, e1, c, 8, 0, tok, 16, ids, 1, NULL, 0), -EINVAL,
		    MM_BAD_ARGUMENT);
	mmt_refused(&t, mmt_commit_keys(&t, e1, c, 0, 99, tok, 16, ids, 1, NULL, 0), -ENOENT,
		    MM_NO_SUCH_ID);
	mmt_refused(&t, mmt_commit_keys(&t, e1, c, 0, 0, tok, 32, ids, 2, k, 2), -EINVAL,
		    MM_BAD_ARGUMENT);			/* keys must ascend */
	k[1].page = 2;
	mmt_refused(&t, mmt_commit_keys(&t, e1, c, 0, 0, tok, 32, ids, 2, k, 2), -EINVAL,
		    MM_BAD_ARGUMENT);
	memcpy(bad, ids, sizeof(bad));
	bad[1] = ids[0];
	mmt_refused(&t, mmt_commit(&t, e1, c, 0, tok, 32, bad), -EINVAL, MM_BAD_ARGUMENT);
	bad[1] = 0;
	mmt_refused(&t, mmt_commit(&t, e1, c, 0, tok, 32, bad), -EINVAL, MM_BAD_ARGUMENT);
	bad[1] = ids[1] + 1;
	mmt_refused(&t, mmt_commit(&t, e1, c, 0, tok, 32, bad), -ESTALE, MM_STALE_PAGE);
	mmt_refused(&t, mmt_commit(&t, e2, c, 0, tok, 32, ids), -EACCES, MM_NOT_OWNER);
	mmt_refused(&t, mmt_commit(&t, e1, c + 1, 0, tok, 32, ids), -ENOENT, MM_NO_SUCH_ID);
	assert_int_equal(mmt_free(&t, e1, ids, 3), 0);
}

static void equal_content_is_kept_once(void **state)
{
	uint64_t a[2], b[3];

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 2, a), 0);
	assert_int_equal(mmt_alloc(&t, e2, c, 0, 3, b), 0);
	assert_int_equal(mmt_commit(&t, e1, c, 0, mmt_tokens(0), 32, a), 0);
	assert_int_equal(mmt_commit(&t, e2, c, 0, mmt_tokens(0), 48, b), 0);
	assert_true(t.pages[0] == a[0] && t.pages[1] == a[1] && t.pages[2] == b[2]);
	assert_int_equal(mm_vmstat(t.mm)->pages_dup, 2);
	assert_int_equal(mm_vmstat(t.mm)->pages_commit, 3);
	assert_int_equal(mmt_free(&t, e2, b, 2), 0);	/* still its own */
	mmt_refused(&t, mmt_free(&t, e2, b + 2, 1), -EACCES, MM_NOT_OWNER);
}

static void extra_keys_tell_equal_tokens_apart(void **state)
{
	struct mm_page_key k[2] = { { .page = 1, .digest = { 1 } },
				    { .page = 1, .digest = { 2 } } };
	uint64_t a[4];

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 4, a), 0);
	assert_int_equal(mmt_commit_keys(&t, e1, c, 0, 0, mmt_tokens(0), 32, a, 2, k, 1), 0);
	assert_int_equal(mmt_commit_keys(&t, e1, c, 0, 0, mmt_tokens(0), 32, a + 2, 2,
					 k + 1, 1), 0);
	assert_true(t.pages[0] == a[0] && t.pages[1] == a[3]);
	assert_int_equal(mmt_lookup_keys(&t, e1, c, 0, mmt_tokens(0), 32, k, 1), 0);
	assert_true(t.rp.nr_pages == 2 && t.pages[1] == a[1]);
	assert_int_equal(mmt_lookup_keys(&t, e1, c, 0, mmt_tokens(0), 32, k + 1, 1), 0);
	assert_true(t.rp.nr_pages == 2 && t.pages[1] == a[3]);
	assert_int_equal(mmt_lookup(&t, e1, c, 0, mmt_tokens(0), 32), 0);
	assert_true(t.rp.nr_pages == 1 && !t.rp.tail_tokens);
	k[0].digest[0] = 3;		/* nobody's key */
	assert_int_equal(mmt_lookup_keys(&t, e1, c, 0, mmt_tokens(0), 32, k, 1), 0);
	assert_int_equal(t.rp.nr_pages, 1);
	k[0].page = 2;
	mmt_refused(&t, mmt_lookup_keys(&t, e1, c, 0, mmt_tokens(0), 32, k, 1), -EINVAL,
		    MM_BAD_ARGUMENT);
	mmt_refused(&t, mmt_lookup(&t, e1, c, 1, mmt_tokens(0), 32), -EINVAL, MM_BAD_ARGUMENT);
}

static void the_longest_common_prefix_is_found_among_many(void **state)
{
	uint32_t tok[MMT_PT], probe[MMT_PT];
	uint64_t id;

	(void)state;
	for (uint32_t i = 0; i < 60; i++) {
		for (uint32_t k = 0; k < MMT_PT; k++)
			tok[k] = k < 8 ? i % 4 + k : i * 7 + k;
		assert_int_equal(mmt_alloc(&t, e1, c, 0, 1, &id), 0);
		assert_int_equal(mmt_commit(&t, e1, c, 0, tok, MMT_PT, &id), 0);
		assert_int_equal(mmt_unlease(&t, e1, t.rp.lease), 0);
	}
	for (uint32_t i = 0; i < 60; i++) {
		for (uint32_t k = 0; k < MMT_PT; k++)
			probe[k] = k < 8 ? i % 4 + k : i * 7 + k;
		probe[12] = 9999;
		assert_int_equal(mmt_lookup(&t, e2, c, 0, probe, MMT_PT), 0);
		assert_int_equal(t.rp.tail_tokens, 12);
		probe[8] = 9999;
		assert_int_equal(mmt_lookup(&t, e2, c, 0, probe, MMT_PT), 0);
		assert_int_equal(t.rp.tail_tokens, 8);
		if (t.rp.tail_lease)
			assert_int_equal(mmt_unlease(&t, e2, t.rp.tail_lease), 0);
	}
}

static void an_unshared_partial_tail_is_adopted(void **state)
{
	uint64_t a[3], got;
	uint32_t lease;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 3, a), 0);
	assert_int_equal(mmt_commit(&t, e1, c, 0, mmt_tokens(0), 40, a), 0);
	lease = t.rp.lease;
	/* Somebody leases it: a copy has to do. */
	assert_int_equal(mmt_lookup(&t, e1, c, MM_LOOKUP_ADOPT, mmt_tokens(0), 60), 0);
	assert_true(t.rp.nr_pages == 2 && t.rp.tail_tokens == 8 && !t.rp.tail_adopted);
	assert_int_equal(mmt_unlease(&t, e1, t.rp.tail_lease), 0);
	assert_int_equal(mmt_unlease(&t, e1, lease), 0);
	/* Not the writer; not entirely matched; not asked. */
	assert_int_equal(mmt_lookup(&t, e2, c, MM_LOOKUP_ADOPT, mmt_tokens(0), 60), 0);
	assert_true(t.rp.tail_tokens == 8 && !t.rp.tail_adopted);
	assert_int_equal(mmt_unlease(&t, e2, t.rp.tail_lease), 0);
	assert_int_equal(mmt_lookup(&t, e1, c, MM_LOOKUP_ADOPT, mmt_tokens(0), 39), 0);
	assert_true(t.rp.tail_tokens == 7 && !t.rp.tail_adopted);
	assert_int_equal(mmt_unlease(&t, e1, t.rp.tail_lease), 0);
	assert_int_equal(mmt_lookup(&t, e1, c, 0, mmt_tokens(0), 40), 0);
	assert_true(t.rp.tail_tokens == 8 && !t.rp.tail_adopted);
	assert_int_equal(mmt_unlease(&t, e1, t.rp.tail_lease), 0);
	assert_int_equal(mmt_lookup(&t, e1, c, MM_LOOKUP_ADOPT, mmt_tokens(0), 60), 0);
	assert_true(t.rp.tail_tokens == 8 && t.rp.tail_adopted && !t.rp.tail_lease);
	assert_true(t.rp.tail_pages[0] != a[2] && t.rp.tail_pages[0] >> 24 == a[2] >> 24);
	got = t.rp.tail_pages[0];
	mmt_refused(&t, mmt_free(&t, e1, a + 2, 1), -ESTALE, MM_STALE_PAGE);
	a[2] = got;
	assert_int_equal(mmt_lookup(&t, e1, c, 0, mmt_tokens(0), 60), 0);
	assert_int_equal(t.rp.tail_tokens, 0);
	assert_int_equal(mmt_free(&t, e1, a + 2, 1), 0);
	assert_int_equal(mm_vmstat(t.mm)->pages_adopt, 1);
}

static void a_partial_page_and_a_full_one_live_side_by_side(void **state)
{
	uint64_t a[4];

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 4, a), 0);
	assert_int_equal(mmt_commit(&t, e1, c, 0, mmt_tokens(0), 10, a), 0);
	assert_int_equal(mmt_commit(&t, e1, c, 0, mmt_tokens(0), 16, a + 1), 0);
	assert_true(t.pages[0] == a[1]);
	assert_int_equal(mmt_commit(&t, e1, c, 0, mmt_tokens(0), 10, a + 2), 0);
	assert_true(t.pages[0] == a[0]);
	assert_int_equal(mmt_lookup(&t, e1, c, 0, mmt_tokens(0), 16), 0);
	assert_true(t.rp.nr_pages == 1 && t.pages[0] == a[1]);
	assert_int_equal(mmt_lookup(&t, e1, c, 0, mmt_tokens(0), 12), 0);
	assert_true(t.rp.tail_tokens == 12 && t.rp.tail_pages[0] == a[1]);
}

static void leases_can_be_doubled_and_shortened(void **state)
{
	uint32_t lease = mmt_chain(&t, e1, c, 0, 4), dup, top;

	(void)state;
	assert_int_equal(mmt_lease(&t, MM_LEASE_DUP, e1, 0, lease, 0), 0);
	dup = t.rp.lease;
	assert_int_equal(mmt_lease(&t, MM_LEASE_DUP, e1, 0, lease, 2), 0);
	top = t.rp.lease;
	mmt_refused(&t, mmt_lease(&t, MM_LEASE_DUP, e1, 0, lease, 5), -EINVAL, MM_BAD_ARGUMENT);
	mmt_refused(&t, mmt_lease(&t, MM_LEASE_DUP, e2, 0, lease, 0), -ENOENT, MM_NO_SUCH_ID);
	mmt_refused(&t, mmt_lease(&t, MM_DROP_HEAD, e1, 0, lease, 1), -EINVAL, MM_BAD_ARGUMENT);
	{
		uint32_t twice[2] = { dup, dup }, mixed[2] = { dup, 4711 };
		struct mm_request rq = { .op = MM_UNLEASE, .engine = e1, .unlease = { twice, 2 } };

		mmt_refused(&t, mmt_submit(&t, &rq), -EINVAL, MM_BAD_ARGUMENT);
		rq.unlease.leases = mixed;
		mmt_refused(&t, mmt_submit(&t, &rq), -ENOENT, MM_NO_SUCH_ID);
		rq.unlease.nr_leases = 65;
		mmt_refused(&t, mmt_submit(&t, &rq), -EINVAL, MM_BAD_ARGUMENT);
		rq.unlease.nr_leases = 0;
		assert_int_equal(mmt_submit(&t, &rq), 0);
		twice[1] = lease;
		rq.unlease = (typeof(rq.unlease)){ twice, 2 };
		assert_int_equal(mmt_submit(&t, &rq), 0);
	}
	assert_int_equal(mmt_unlease(&t, e1, top), 0);
}

static void pressure_evicts_leaves_before_parents_and_never_the_leased(void **state)
{
	uint32_t cold = mmt_chain(&t, e1, c, 0, 30), warm = mmt_chain(&t, e1, c, 1000, 30);
	uint64_t ids[20];

	(void)state;
	assert_int_equal(mmt_unlease(&t, e1, cold), 0);
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 20, ids), 0);	/* 64 frames in all */
	assert_int_equal(mmt_lookup(&t, e1, c, 0, mmt_tokens(0), 480), 0);
	assert_int_equal(t.rp.nr_pages, 14);
	assert_int_equal(t.rp.tail_tokens, 0);
	assert_int_equal(mmt_lookup(&t, e1, c, 0, mmt_tokens(1000), 480), 0);
	assert_int_equal(t.rp.nr_pages, 30);
	assert_int_equal(mm_vmstat(t.mm)->pages_evict, 16);
	mmt_refused(&t, mmt_alloc(&t, e1, c, 0, 1, NULL), -ENOMEM, MM_POOL_FULL);
	assert_int_equal(mmt_unlease(&t, e1, warm), 0);
}

static void a_lookup_keeps_a_chain_warm(void **state)
{
	uint32_t a = mmt_chain(&t, e1, c, 0, 20), b = mmt_chain(&t, e1, c, 1000, 20);

	(void)state;
	assert_int_equal(mmt_unlease(&t, e1, a), 0);
	assert_int_equal(mmt_unlease(&t, e1, b), 0);
	assert_int_equal(mmt_lookup(&t, e1, c, 0, mmt_tokens(0), 320), 0);
	assert_int_equal(mmt_unlease(&t, e1, t.rp.lease), 0);
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 44, NULL), 0);
	assert_int_equal(mmt_lookup(&t, e1, c, 0, mmt_tokens(0), 320), 0);
	assert_int_equal(t.rp.nr_pages, 20);
	assert_int_equal(mmt_lookup(&t, e1, c, 0, mmt_tokens(1000), 320), 0);
	assert_int_equal(t.rp.nr_pages, 0);
}

static void parks_shrink_with_their_chain(void **state)
{
	uint32_t lease = mmt_chain(&t, e1, c, 0, 20), park, other = 0;
	struct mm_request rq = { .op = MM_PARK };

	(void)state;
	mmt_refused(&t, mmt_park(&t, MM_PARK, e2, lease, 0, 0), -ENOENT, MM_NO_SUCH_ID);
	assert_int_equal(mmt_lease(&t, MM_LEASE_DUP, e1, 0, lease, 3), 0);
	assert_int_equal(mmt_park(&t, MM_PARK, e1, t.rp.lease, 0, 0), 0);
	other = t.rp.park;
	assert_int_equal(mmt_park(&t, MM_PARK, e1, lease, 0, 0), 0);
	park = t.rp.park;
	mmt_refused(&t, mmt_unlease(&t, e1, lease), -ENOENT, MM_NO_SUCH_ID);
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 54, NULL), 0);		/* evicts 10 */
	mmt_refused(&t, mmt_park(&t, MM_RESUME, e2, 0, park, 0), -ENOENT, MM_NO_SUCH_ID);
	mmt_refused(&t, mmt_park(&t, MM_RESUME, e1, 0, park, 1), -EINVAL, MM_BAD_ARGUMENT);
	assert_int_equal(mmt_park(&t, MM_RESUME, e1, 0, park, 0), 0);
	assert_int_equal(t.rp.nr_pages, 10);
	mmt_refused(&t, mmt_park(&t, MM_RESUME, e1, 0, park, 0), -ENOENT, MM_NO_SUCH_ID);
	assert_int_equal(mmt_unlease(&t, e1, t.rp.lease), -ENOENT);	/* the refusal cleared it */
	assert_int_equal(mmt_park(&t, MM_UNPARK, e1, 0, other, 0), 0);
	mmt_refused(&t, mmt_park(&t, MM_UNPARK, e1, 0, other, 0), -ENOENT, MM_NO_SUCH_ID);
	(void)rq;
}

static void a_park_ends_on_the_root(void **state)
{
	uint32_t lease = mmt_chain(&t, e1, c, 0, 4), park;

	(void)state;
	assert_int_equal(mmt_park(&t, MM_PARK, e1, lease, 0, 0), 0);
	park = t.rp.park;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 64, NULL), 0);
	assert_int_equal(mmt_park(&t, MM_RESUME, e1, 0, park, 0), 0);
	assert_int_equal(t.rp.nr_pages + t.rp.lease + t.rp.tail_tokens, 0);
}

static void a_parked_partial_tail_comes_back(void **state)
{
	uint64_t a[2];
	uint32_t park, lease;

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 2, a), 0);
	assert_int_equal(mmt_commit(&t, e1, c, 0, mmt_tokens(0), 20, a), 0);
	assert_int_equal(mmt_lease(&t, MM_LEASE_DUP, e1, 0, t.rp.lease, 0), 0);
	lease = t.rp.lease;
	assert_int_equal(mmt_park(&t, MM_PARK, e1, lease, 0, 0), 0);
	park = t.rp.park;
	assert_int_equal(mmt_park(&t, MM_RESUME, e1, 0, park, MM_LOOKUP_ADOPT), 0);
	assert_true(t.rp.nr_pages == 1 && t.rp.tail_tokens == 4 && !t.rp.tail_adopted);
	assert_true(t.rp.tail_pages[0] == a[1]);
}

static void a_park_s_own_tail_is_adopted(void **state)
{
	uint64_t a[2];

	(void)state;
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 2, a), 0);
	assert_int_equal(mmt_commit(&t, e1, c, 0, mmt_tokens(0), 20, a), 0);
	assert_int_equal(mmt_park(&t, MM_PARK, e1, t.rp.lease, 0, 0), 0);
	/* Another lookup does not take a parked tail away. */
	assert_int_equal(mmt_lookup(&t, e1, c, MM_LOOKUP_ADOPT, mmt_tokens(0), 20), 0);
	assert_true(t.rp.tail_tokens == 4 && !t.rp.tail_adopted);
	assert_int_equal(mmt_unlease(&t, e1, t.rp.tail_lease), 0);
	assert_int_equal(mmt_park(&t, MM_RESUME, e1, 0, 1, MM_LOOKUP_ADOPT), 0);
	assert_true(t.rp.nr_pages == 1 && t.rp.tail_tokens == 4 && t.rp.tail_adopted);
}

static void a_hit_is_cut_at_a_batch(void **state)
{
	uint32_t lease = mmt_chain(&t, e1, c, 0, 40), park;
	uint64_t ids[24];

	(void)state;
	t.mm->cfg.batch_pages = 30;
	assert_int_equal(mmt_lookup(&t, e1, c, 0, mmt_tokens(0), 640), 0);
	assert_true(t.rp.nr_pages == 30 && !t.rp.tail_tokens);
	assert_int_equal(mmt_unlease(&t, e1, t.rp.lease), 0);
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 24, ids), 0);
	assert_int_equal(mmt_commit(&t, e1, c, lease, mmt_tokens(640), 24 * 16, ids), 0);
	assert_int_equal(mmt_park(&t, MM_PARK, e1, t.rp.lease, 0, 0), 0);
	park = t.rp.park;
	assert_int_equal(mmt_park(&t, MM_RESUME, e1, 0, park, 0), 0);
	assert_int_equal(t.rp.nr_pages, 30);
	t.mm->cfg.batch_pages = 64;
}

/* ---- closing with something left ----------------------------------------------------------- */

static void a_close_gives_back_what_is_left(void **state)
{
	struct mm_cache_desc d = mmt_desc(2);
	struct mm_request odd = { .op = MM_CACHE_CLOSE, .engine = e1, .flags = 2 };
	struct mm_engine_info mine, others;
	struct mm_meminfo mi;
	uint64_t ids[8], kept[2];
	uint32_t lease = mmt_chain(&t, e1, c, 0, 3), park, other = 0;

	(void)state;
	assert_int_equal(mmt_lease(&t, MM_LEASE_DUP, e1, 0, lease, 2), 0);
	assert_int_equal(mmt_park(&t, MM_PARK, e1, t.rp.lease, 0, 0), 0);
	park = t.rp.park;
	assert_int_equal(mmt_lookup(&t, e2, c, 0, mmt_tokens(0), 48), 0);
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 8, ids), 0);
	assert_int_equal(mmt_open_min(&t, e1, &d, 32, &other), 0);
	mmt_chain(&t, e1, other, 0, 1);
	assert_int_equal(mmt_alloc(&t, e1, other, 0, 2, kept), 0);
	odd.cache = c;
	mmt_refused(&t, mmt_submit(&t, &odd), -EINVAL, MM_BAD_ARGUMENT);
	mmt_refused(&t, mmt_close(&t, e1, c), -EBUSY, MM_LEASED);
	assert_int_equal(mmt_close_all(&t, e1, c), 0);
	assert_int_equal(mm_engine_info(t.mm, e1, &mine), 0);
	assert_int_equal(mm_engine_info(t.mm, e2, &others), 0);
	assert_true(mine.held_pages == 2 && mine.nr_leases == 1 && mine.nr_parks == 0);
	assert_true(mine.frees == 8 && mm_vmstat(t.mm)->pages_free == 8);
	assert_int_equal(others.nr_leases, 1);
	mmt_refused(&t, mmt_close_all(&t, e1, c), -EACCES, MM_NOT_OWNER);
	mmt_refused(&t, mmt_unlease(&t, e1, lease), -ENOENT, MM_NO_SUCH_ID);
	mmt_refused(&t, mmt_park(&t, MM_UNPARK, e1, 0, park, 0), -ENOENT, MM_NO_SUCH_ID);
	mmt_refused(&t, mmt_free(&t, e1, ids, 8), -ESTALE, MM_STALE_PAGE);
	/* What is cached stays for the others, and what is of another cache for itself. */
	assert_int_equal(mmt_lookup(&t, e2, c, 0, mmt_tokens(0), 48), 0);
	assert_int_equal(t.rp.nr_pages, 3);
	mm_meminfo(t.mm, 0, &mi);
	assert_int_not_equal(mi.promised_bytes, 0);
	assert_int_equal(mmt_close_all(&t, e1, other), 0);
	mm_meminfo(t.mm, 0, &mi);
	assert_int_equal(mi.promised_bytes, 0);
	assert_int_equal(mm_engine_info(t.mm, e1, &mine), 0);
	assert_int_equal(mine.held_pages + mine.nr_leases, 0);
}

/* More of them than there is room for replies: none is forgotten. */
static void allocations_that_wait_hear_of_a_close(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);

	(void)state;
	mmt_fini(&t);
	cfg.max_pending = 128;
	mmt_init(&t, &cfg);
	assert_int_equal(mmt_attach(&t, 1000, &e1, &m1), 0);
	assert_int_equal(mmt_open(&t, e1, &d, &c), 0);
	t.hold = true;
	for (int i = 0; i < 50; i++)
		assert_int_equal(mmt_alloc_until(&t, e1, c, 0, 1, t.now + 1000), MMT_LATER);
	mmt_refused(&t, mmt_close(&t, e1, c), -EBUSY, MM_LEASED);
	assert_int_equal(mmt_close_all(&t, e1, c), 0);
	assert_true(t.nr_late > 0 && t.nr_late < 50);
	assert_true(mm_next_deadline(t.mm) <= t.now);
	mmt_tick(&t, t.now);
	assert_int_equal(t.nr_late, 50);
	assert_int_equal(t.late.result, -EACCES);
	assert_int_equal(t.late.reason, MM_NOT_OWNER);
	assert_true(mm_next_deadline(t.mm) > t.now);
	t.hold = false;
	mmt_run(&t);
	assert_int_equal(mmt_device_extents(&t, 0), 0);
}

/* One that dies meanwhile hears nothing. */
static void a_close_and_a_death(void **state)
{
	struct mm_config cfg = mmt_config();
	struct mm_cache_desc d = mmt_desc(1);

	(void)state;
	mmt_fini(&t);
	cfg.max_pending = 128;
	mmt_init(&t, &cfg);
	assert_int_equal(mmt_attach(&t, 1000, &e1, &m1), 0);
	assert_int_equal(mmt_open(&t, e1, &d, &c), 0);
	t.hold = true;
	for (int i = 0; i < 50; i++)
		assert_int_equal(mmt_alloc_until(&t, e1, c, 0, 1, t.now + 1000), MMT_LATER);
	assert_int_equal(mmt_close_all(&t, e1, c), 0);
	t.nr_late = 0;
	mm_submit(t.mm, &(struct mm_request){ .op = MM_FENCE, .engine = e1, .cookie = 1 }, t.now);
	assert_int_equal(mmt_replies(&t, 1), 0);
	assert_int_equal(t.nr_late, 0);
	mmt_tick(&t, t.now);
	assert_int_equal(t.nr_late, 0);
	t.hold = false;
	mmt_run(&t);
}

/* Given back by a close, pages that its process can still write to go to nobody. */
static void what_is_still_mapped_is_not_given_away(void **state)
{
	uint64_t ids[4];
	uint32_t ext, nr = 0;

	(void)state;
	mmt_chain(&t, e1, c, 0, 2);
	assert_int_equal(mmt_alloc(&t, e1, c, 0, 4, ids), 0);
	ext = mm_page_extent(ids[0]);
	assert_int_equal(mmt_map(&t, MM_IMPORT, m1, ext, 0), 0);
	assert_int_equal(mmt_close_all(&t, e1, c), 0);
	assert_int_equal(mmt_alloc(&t, e2, c, 0, 8, NULL), 0);
	for (int i = 0; i < 8; i++)
		assert_true(mm_page_extent(t.pages[i]) != ext);
	assert_int_equal(mmt_map(&t, MM_UNIMPORT, m1, ext, 0), 0);
	assert_int_equal(mmt_alloc(&t, e2, c, 0, 6, NULL), 0);
	for (int i = 0; i < 6; i++)
		nr += mm_page_extent(t.pages[i]) == ext;
	assert_int_equal(nr, 6);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(a_prefix_is_found_and_leased),
		T(a_lease_grows_by_commits),
		T(a_bad_commit_changes_nothing),
		T(equal_content_is_kept_once),
		T(extra_keys_tell_equal_tokens_apart),
		T(the_longest_common_prefix_is_found_among_many),
		T(an_unshared_partial_tail_is_adopted),
		T(a_partial_page_and_a_full_one_live_side_by_side),
		T(leases_can_be_doubled_and_shortened),
		T(pressure_evicts_leaves_before_parents_and_never_the_leased),
		T(a_lookup_keeps_a_chain_warm),
		T(parks_shrink_with_their_chain),
		T(a_park_ends_on_the_root),
		T(a_parked_partial_tail_comes_back),
		T(a_park_s_own_tail_is_adopted),
		T(a_hit_is_cut_at_a_batch),
		T(a_close_gives_back_what_is_left),
		T(allocations_that_wait_hear_of_a_close),
		T(a_close_and_a_death),
		T(what_is_still_mapped_is_not_given_away),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
