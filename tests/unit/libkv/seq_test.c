// SPDX-License-Identifier: Apache-2.0
/* kv/seq.h call by call: what is shared, what is copied, what is refused. seq_model_test.c mixes
 * them at random. */
#include "seq_fixture.h"
#include "seq_impl.h"

#define PT 4u

static struct fix f;
static uint32_t prompt[64];

static int open_plain(void **state)
{
	uint32_t i;

	(void)state;
	for (i = 0; i < 64; i++)
		prompt[i] = 100 + i;
	fix_open(&f, "embedded:host:8M", fix_layout(KV_GQA, KV_F32, PT), 0);
	return 0;
}

static int open_window(void **state)
{
	open_plain(state);
	kv_cache_close(f.cache);
	kv_close(f.kv);
	fix_open(&f, "embedded:host:8M", fix_layout(KV_MLA, KV_BF16, PT), FIX_WINDOW);
	return 0;
}

static int close_all(void **state)
{
	(void)state;
	fix_close(&f);
	return 0;
}

static struct kv_seq *create(void)
{
	struct kv_seq *s;

	if (kv_seq_create(f.cache, NULL, 0, &s))
		fail_msg("%s", kv_error());
	return s;
}

static void append(struct kv_seq *s, const uint32_t *tokens, uint32_t n)
{
	if (kv_seq_append(s, tokens, n))
		fail_msg("append: %s", kv_error());
}

/* Append and store n tokens of the prompt, commit all of them. */
static void extend(struct kv_seq *s, uint32_t n)
{
	uint32_t len = kv_seq_len(s);

	append(s, prompt + len, n);
	fix_store(&f, s, 0, len, len + n);
	if (kv_seq_commit(s, len + n))
		fail_msg("commit: %s", kv_error());
}

static struct kv_seq *sequence(uint32_t n)
{
	struct kv_seq *s = create();

	extend(s, n);
	return s;
}

static struct kv_seq *forked(struct kv_seq *s)
{
	struct kv_seq *child;

	if (kv_seq_fork(s, &child))
		fail_msg("fork: %s", kv_error());
	return child;
}

static uint32_t match(struct kv_seq *s, uint32_t n)
{
	uint32_t hit = 99;

	if (kv_seq_match(s, prompt, n, &hit))
		fail_msg("match: %s", kv_error());
	assert_int_equal(hit, kv_seq_len(s));
	assert_int_equal(hit, kv_seq_committed(s));
	return hit;
}

static uint64_t id(struct kv_seq *s, uint32_t group, uint32_t page)
{
	uint32_t nr;
	const uint64_t *ids = kv_seq_page_ids(s, group, &nr);

	assert_true(page < nr);
	return ids[page];
}

/* Of every group. */
static void assert_pages(struct kv_seq *s, uint32_t held, uint32_t leased)
{
	uint32_t h, l;

	kv_seq_pages(s, &h, &l);
	assert_int_equal(h, held * f.nr_groups);
	assert_int_equal(l, leased * f.nr_groups);
}

static void assert_good(struct kv_seq *s)
{
	fix_verify(&f, s, 0, kv_seq_len(s));
}

/* ---- create ---------------------------------------------------------------------------------- */

static void create_refuses(void **state)
{
	struct kv_key bad = {.kind = 9, .data = "x", .bytes = 1};
	struct kv_seq *s;

	(void)state;
	assert_int_equal(kv_seq_create(f.cache, &bad, 1, &s), -EINVAL);
	f.cache->kv->is_member = true;
	assert_int_equal(kv_seq_create(f.cache, NULL, 0, &s), -EPERM);
	assert_non_null(strstr(kv_error(), "member"));
	f.cache->kv->is_member = false;
	f.cache->group[0].kind = KV_GROUP_STATE;
	assert_int_equal(kv_seq_create(f.cache, NULL, 0, &s), -EOPNOTSUPP);
	assert_non_null(strstr(kv_error(), "group 0"));
	f.cache->group[0].kind = KV_GROUP_FULL;
}

static void empty(void **state)
{
	struct kv_seq *s = create(), *child;
	uint32_t nr = 9, len = 9;

	(void)state;
	assert_int_equal(kv_seq_len(s), 0);
	assert_int_equal(kv_seq_append(s, NULL, 0), 0);
	assert_int_equal(kv_seq_commit(s, 0), 0);
	assert_int_equal(kv_seq_truncate(s, 0), 0);
	assert_int_equal(match(s, 0), 0);
	assert_int_equal(match(s, 1), 0);
	kv_seq_pte(s, 0, &nr);
	assert_int_equal(nr, 0);
	assert_null(kv_seq_pte(s, 1, &nr));
	child = forked(s);
	assert_int_equal(kv_seq_park(s), 0);
	assert_int_equal(kv_seq_resume(s, &len), 0);
	assert_int_equal(len, 0);
	assert_int_equal(kv_seq_park(child), 0);
	kv_seq_release(child);
	kv_seq_release(s);
	kv_seq_release(NULL);
}

/* ---- append, store, commit ------------------------------------------------------------------- */

static void grow(void **state)
{
	struct kv_seq *s = create();
	uint32_t nr;

	(void)state;
	append(s, prompt, 6);
	kv_seq_pte(s, 0, &nr);
	assert_int_equal(nr, 2);
	assert_int_equal(kv_seq_len(s), 6);
	assert_int_equal(kv_seq_committed(s), 0);
	assert_memory_equal(kv_seq_tokens(s), prompt, 6 * sizeof(*prompt));
	assert_pages(s, 2, 0);
	fix_store(&f, s, 0, 0, 6);
	assert_int_equal(kv_seq_commit(s, 5), 0);
	assert_int_equal(kv_seq_committed(s), 5);
	assert_pages(s, 1, 1);
	extend(s, 2);
	assert_pages(s, 0, 2);
	assert_good(s);
	kv_seq_release(s);
}

static void bad_arguments(void **state)
{
	struct kv_seq *s = sequence(6);
	float row[FIX_MAX_ROW] = {0};
	uint32_t hit;

	(void)state;
	append(s, prompt + 6, 1);
	assert_int_equal(kv_seq_append(s, NULL, 1), -EINVAL);
	assert_int_equal(kv_seq_append(s, prompt, UINT32_MAX), -EINVAL);
	assert_int_equal(kv_seq_store(s, 0, 0, 5, 1, row, row), -EINVAL);
	assert_non_null(strstr(kv_error(), "committed"));
	assert_int_equal(kv_seq_store(s, 0, 0, 7, 1, row, row), -EINVAL);
	assert_int_equal(kv_seq_store(s, 0, 0, 6, 2, row, row), -EINVAL);
	assert_int_equal(kv_seq_store(s, 0, 0, 6, UINT32_MAX, row, row), -EINVAL);
	assert_int_equal(kv_seq_store(s, 1, 0, 6, 1, row, row), -EINVAL);
	assert_int_equal(kv_seq_store(s, 0, 2, 6, 1, row, row), -EINVAL);
	assert_int_equal(kv_seq_store(s, 0, 0, 6, 1, NULL, row), -EINVAL);
	assert_int_equal(kv_seq_commit(s, 8), -EINVAL);
	assert_int_equal(kv_seq_commit(s, 5), -EINVAL);
	assert_int_equal(kv_seq_truncate(s, 8), -EINVAL);
	assert_int_equal(kv_seq_match(s, prompt, 9, &hit), -EINVAL);
	assert_int_equal(kv_seq_drop_head(s, 0, 4), -EINVAL);
	assert_int_equal(kv_seq_drop_head(s, 1, 4), -EINVAL);
	assert_int_equal(kv_seq_resume(s, &hit), -EINVAL);
	assert_int_equal(kv_seq_len(s), 7);
	assert_int_equal(kv_seq_committed(s), 6);
	fix_verify(&f, s, 0, 6);
	kv_seq_release(s);
}

/* A sequence whose call waits is out of bounds for the pressure callback. */
static void busy(void **state)
{
	struct kv_seq *s = sequence(6), *child;
	uint32_t n;

	(void)state;
	assert_int_equal(kv_seq_park(s), 0);
	s->busy = true;
	assert_int_equal(kv_seq_resume(s, &n), -EBUSY);
	s->busy = false;
	assert_int_equal(kv_seq_resume(s, &n), 0);
	s->busy = true;
	assert_int_equal(kv_seq_append(s, prompt, 1), -EBUSY);
	assert_int_equal(kv_seq_commit(s, 6), -EBUSY);
	assert_int_equal(kv_seq_truncate(s, 1), -EBUSY);
	assert_int_equal(kv_seq_drop_head(s, 0, 1), -EBUSY);
	assert_int_equal(kv_seq_fork(s, &child), -EBUSY);
	assert_int_equal(kv_seq_park(s), -EBUSY);
	kv_seq_release(s);
	s->busy = false;
	assert_good(s);
	kv_seq_release(s);
}

/* Two that computed the same: the second takes the first's pages and frees its own. */
static void same_tokens_share(void **state)
{
	struct kv_seq *a = sequence(8), *b = create();

	(void)state;
	append(b, prompt, 10);
	fix_store(&f, b, 0, 0, 10);
	assert_pages(b, 3, 0);
	assert_int_not_equal(id(a, 0, 0), id(b, 0, 0));
	assert_int_equal(kv_seq_commit(b, 10), 0);
	assert_pages(b, 1, 2);
	assert_int_equal(id(a, 0, 0), id(b, 0, 0));
	assert_int_equal(id(a, 0, 1), id(b, 0, 1));
	assert_int_equal(kv_seq_pte(a, 0, NULL)[1], kv_seq_pte(b, 0, NULL)[1]);
	kv_seq_release(a);
	assert_good(b);
	kv_seq_release(b);
}

static void out_of_pages(void **state)
{
	struct kv_seq *s;
	uint32_t nr;

	(void)state;
	fix_shrink(&f, 4);
	s = sequence(6);
	assert_int_equal(kv_seq_append(s, prompt, 30), -ENOMEM);
	assert_true(strlen(kv_error()) > 5);
	assert_int_equal(kv_seq_len(s), 6);
	kv_seq_pte(s, 0, &nr);
	assert_int_equal(nr, 2);
	assert_good(s);
	extend(s, 6); /* what the refused call took is back */
	assert_good(s);
	kv_seq_release(s);
}

/* The second group has no page: what the first one gave goes back. */
static void out_of_pages_in_one_group(void **state)
{
	struct kv_seq *s = create();
	uint64_t taken[4], more;
	uint32_t i;

	(void)state;
	fix_shrink(&f, 4);
	while (!kv_page_alloc(f.cache, 1, &more))
		f.hog[1][f.nr_hog[1]++] = more;
	assert_int_equal(kv_seq_append(s, prompt, 9), -ENOMEM);
	for (i = 0; i < 4; i++)
		assert_int_equal(kv_page_alloc(f.cache, 0, &taken[i]), 0);
	assert_int_equal(kv_pages_free(f.cache, 0, 4, taken), 0);
	assert_pages(s, 0, 0);
	kv_seq_release(s);
}

/* ---- match ----------------------------------------------------------------------------------- */

static void match_full_pages(void **state)
{
	struct kv_seq *a = sequence(12), *b = create();

	(void)state;
	assert_int_equal(match(b, 13), 12);
	assert_pages(b, 0, 3);
	assert_int_equal(id(a, 0, 2), id(b, 0, 2));
	kv_seq_release(a);
	assert_good(b);
	extend(b, 5);
	assert_good(b);
	kv_seq_release(b);
}

/* All tokens are cached, but one is left to compute: the last page is a tail of 3. */
static void match_leaves_one(void **state)
{
	struct kv_seq *a = sequence(12), *b = create();

	(void)state;
	assert_int_equal(match(b, 12), 11);
	assert_pages(b, 1, 2);
	assert_int_not_equal(id(a, 0, 2), id(b, 0, 2));
	assert_good(b);
	extend(b, 1);
	assert_int_equal(id(a, 0, 2), id(b, 0, 2)); /* swapped at commit */
	kv_seq_release(a);
	kv_seq_release(b);
}

static void match_inside_a_page(void **state)
{
	struct kv_seq *a = sequence(12), *b = create();
	uint32_t other[12], hit;

	(void)state;
	memcpy(other, prompt, sizeof(other));
	other[6] = 7;
	assert_int_equal(kv_seq_match(b, other, 12, &hit), 0);
	assert_int_equal(hit, 6);
	assert_pages(b, 1, 1);
	assert_good(b);
	append(b, other + 6, 6);
	fix_store(&f, b, 0, 6, 12);
	assert_int_equal(kv_seq_commit(b, 12), 0);
	assert_good(a);
	assert_good(b);
	kv_seq_release(a);
	kv_seq_release(b);
}

/* No page for the tail: the full pages are a hit all the same. */
static void match_without_room_for_the_tail(void **state)
{
	struct kv_seq *a, *b = create();

	(void)state;
	fix_shrink(&f, 3);
	a = sequence(8);
	extend(a, 4);
	assert_int_equal(kv_seq_append(a, prompt, 4), -ENOMEM);
	assert_int_equal(match(b, 12), 8);
	assert_pages(b, 0, 2);
	kv_seq_release(a);
	assert_good(b);
	kv_seq_release(b);
}

static void keys_separate(void **state)
{
	const struct kv_key keys[] = {
		{.kind = KV_KEY_LORA, .data = "a", .bytes = 1},
		{.kind = KV_KEY_SALT, .data = "a", .bytes = 1},
		{.kind = KV_KEY_MEDIA, .position = 9, .data = "a", .bytes = 1},
	};
	/* media at 9 condition page 2 on, the others everything */
	static const uint32_t want[3][3] = {{12, 0, 0}, {0, 12, 0}, {0, 0, 12}};
	struct kv_seq *s;
	uint32_t i, j, hit;

	(void)state;
	for (i = 0; i < 3; i++) {
		assert_int_equal(kv_seq_create(f.cache, &keys[i], 1, &s), 0);
		extend(s, 12);
		kv_seq_release(s);
	}
	for (i = 0; i < 3; i++) {
		for (j = 0; j < 3; j++) {
			struct kv_key key = keys[j];

			if (i == 2 && j == 2)
				key.position = 10; /* elsewhere in that page */
			assert_int_equal(kv_seq_create(f.cache, &key, 1, &s), 0);
			assert_int_equal(kv_seq_match(s, prompt, 13, &hit), 0);
			if (i == j)
				assert_int_equal(hit, i == 2 ? 8 : want[i][j]);
			kv_seq_release(s);
		}
	}
	s = create(); /* no key: the media's first two pages */
	assert_int_equal(match(s, 13), 8);
	kv_seq_release(s);
}

/* An item that starts behind the end of a partial tail conditions none of its tokens. */
static void later_media_do_not_count(void **state)
{
	struct kv_key media = { .kind = KV_KEY_MEDIA, .position = 10, .data = "a", .bytes = 1 };
	struct kv_seq *s, *plain = create();

	(void)state;
	assert_int_equal(kv_seq_create(f.cache, &media, 1, &s), 0);
	extend(s, 10);
	kv_seq_release(s);
	assert_int_equal(match(plain, 12), 10);
	assert_good(plain);
	kv_seq_release(plain);
}

/* ---- fork ------------------------------------------------------------------------------------ */

static void fork_shares_and_copies_on_write(void **state)
{
	struct kv_seq *a = sequence(6), *b = forked(a), *c;
	uint32_t other[4] = {1, 2, 3, 4};
	uint64_t tail = id(a, 0, 1);

	(void)state;
	assert_int_equal(id(b, 0, 0), id(a, 0, 0));
	assert_int_equal(id(b, 0, 1), tail);
	assert_pages(b, 1, 1);
	append(b, other, 4); /* copies */
	fix_store(&f, b, 0, 6, 10);
	assert_int_equal(id(a, 0, 1), tail);
	assert_int_not_equal(id(b, 0, 1), tail);
	assert_good(a);
	assert_good(b);
	extend(a, 3); /* alone again: writes in place */
	assert_int_equal(kv_seq_commit(b, 10), 0);
	assert_good(a);
	assert_good(b);
	c = forked(b);
	kv_seq_release(b);
	kv_seq_release(a);
	assert_good(c);
	kv_seq_release(c);
}

/* Rows that are still to be written must not be written into the other's page. */
static void fork_of_uncommitted(void **state)
{
	struct kv_seq *a = sequence(5), *b;
	uint32_t i;

	(void)state;
	append(a, prompt + 5, 6);
	fix_store(&f, a, 0, 5, 7);
	b = forked(a);
	assert_int_equal(id(a, 0, 0), id(b, 0, 0));
	for (i = 1; i < 3; i++)
		assert_int_not_equal(id(a, 0, i), id(b, 0, i));
	fix_store(&f, a, 0, 7, 11);
	fix_verify(&f, b, 0, 7);
	fix_store(&f, b, 0, 7, 11);
	assert_good(a);
	assert_good(b);
	assert_int_equal(kv_seq_commit(a, 11), 0);
	assert_int_equal(kv_seq_commit(b, 11), 0);
	assert_int_equal(id(a, 0, 1), id(b, 0, 1));
	kv_seq_release(a);
	assert_good(b);
	kv_seq_release(b);
}

/* ---- truncate -------------------------------------------------------------------------------- */

static void truncate_above_committed(void **state)
{
	struct kv_seq *s = sequence(6);

	(void)state;
	append(s, prompt + 6, 10);
	assert_pages(s, 3, 1);
	assert_int_equal(kv_seq_truncate(s, 7), 0);
	assert_pages(s, 1, 1);
	assert_int_equal(kv_seq_len(s), 7);
	assert_int_equal(kv_seq_committed(s), 6);
	fix_verify(&f, s, 0, 6);
	kv_seq_release(s);
}

static void truncate_into_a_leased_page(void **state)
{
	struct kv_seq *s = sequence(12), *probe;
	uint32_t other[3] = {1, 2, 3};
	uint64_t page1 = id(s, 0, 1);

	(void)state;
	assert_int_equal(kv_seq_truncate(s, 6), 0);
	assert_int_equal(kv_seq_committed(s), 6);
	assert_pages(s, 0, 2);
	assert_good(s);
	append(s, other, 3);
	assert_int_not_equal(id(s, 0, 1), page1);
	assert_pages(s, 2, 1);
	fix_store(&f, s, 0, 6, 9);
	assert_int_equal(kv_seq_commit(s, 9), 0);
	assert_good(s);
	probe = create(); /* what was cut off is still cached */
	assert_int_equal(match(probe, 13), 12);
	assert_good(probe);
	kv_seq_release(probe);
	assert_int_equal(kv_seq_truncate(s, 0), 0);
	assert_pages(s, 0, 0);
	extend(s, 9);
	assert_good(s);
	kv_seq_release(s);
}

static void truncate_then_fork_then_both_write(void **state)
{
	struct kv_seq *a = sequence(12), *b;
	uint32_t other[3] = {1, 2, 3};

	(void)state;
	assert_int_equal(kv_seq_truncate(a, 7), 0);
	b = forked(a);
	append(b, other, 3);
	fix_store(&f, b, 0, 7, 10);
	extend(a, 2);
	assert_good(a);
	assert_good(b);
	kv_seq_release(a);
	kv_seq_release(b);
}

/* ---- windows --------------------------------------------------------------------------------- */

static void drop_head(void **state)
{
	struct kv_seq *s = sequence(22), *b;
	uint32_t i, held, leased;
	float row[FIX_MAX_ROW];

	(void)state;
	kv_seq_pages(s, &held, &leased);
	assert_int_equal(held, 2);
	assert_int_equal(leased, 10);
	assert_int_equal(kv_seq_drop_head(s, 0, 4), -EINVAL);
	assert_int_equal(kv_seq_drop_head(s, 1, 23), -EINVAL);
	assert_int_equal(kv_seq_drop_head(s, 1, 13), 0);
	for (i = 0; i < 6; i++) {
		assert_int_not_equal(id(s, 0, i), 0);
		assert_int_equal(!id(s, 1, i), i < 3);
	}
	assert_int_equal(kv_seq_drop_head(s, 1, 8), 0); /* nothing more to do */
	kv_seq_pages(s, &held, &leased);
	assert_int_equal(held, 2);
	assert_int_equal(leased, 7);
	assert_good(s);
	assert_int_equal(kv_seq_truncate(s, 20), -EINVAL); /* would see token 11 */
	assert_non_null(strstr(kv_error(), "truncate to 0"));
	assert_int_equal(kv_seq_len(s), 22);
	assert_int_equal(kv_seq_truncate(s, 21), 0);
	extend(s, 3);
	append(s, prompt + 24, 16);
	assert_int_equal(kv_seq_drop_head(s, 1, 31), 0); /* to 28: not even committed */
	assert_int_equal(kv_seq_store(s, 1, 0, 25, 1, row, row), -EINVAL);
	assert_non_null(strstr(kv_error(), "dropped"));
	b = forked(s);
	fix_store(&f, s, 0, 24, 40);
	fix_store(&f, b, 0, 24, 40);
	assert_int_equal(kv_seq_commit(s, 40), 0);
	assert_good(s);
	assert_good(b);
	assert_int_equal(kv_seq_truncate(b, 0), 0);
	extend(b, 4);
	assert_good(b);
	kv_seq_release(b);
	kv_seq_release(s);
}

static void window_match(void **state)
{
	struct kv_seq *a = sequence(24), *b = create();
	uint32_t hit = match(b, 24), i;

	(void)state;
	assert_int_equal(hit, 23);
	for (i = 0; i < 6; i++)
		assert_int_not_equal(id(b, 0, i), 0);
	assert_int_equal(id(b, 1, 0), 0);
	assert_int_not_equal(id(b, 1, 4), 0);
	assert_int_not_equal(id(b, 1, 5), 0);
	kv_seq_release(a);
	assert_good(b);
	extend(b, 5);
	assert_good(b);
	kv_seq_release(b);
}

/* ---- park, release --------------------------------------------------------------------------- */

static void park_and_resume(void **state)
{
	struct kv_seq *s = sequence(10);
	uint64_t tail = id(s, 0, 2), tokens;
	uint32_t len, nr;

	(void)state;
	append(s, prompt + 10, 5); /* never accepted */
	assert_int_equal(kv_seq_park(s), 0);
	assert_int_equal(kv_seq_len(s), 0);
	kv_seq_pte(s, 0, &nr);
	assert_int_equal(nr, 0);
	assert_int_equal(kv_seq_append(s, prompt, 1), -EINVAL);
	assert_int_equal(kv_seq_park(s), -EINVAL);
	assert_int_equal(kv_seq_resume(s, &len), 0);
	assert_int_equal(len, 10);
	tokens = kv_seq_tokens(s)[9];
	assert_int_equal(tokens, prompt[9]);
	assert_good(s);
	assert_int_equal(id(s, 0, 2) >> 24, tail >> 24); /* adopted, not copied */
	extend(s, 5);
	assert_good(s);
	kv_seq_release(s);
}

/* Parked in the middle of a page that is cached whole: what was cut off does not come back. */
static void park_after_truncate(void **state)
{
	struct kv_seq *s = sequence(12);
	uint32_t other[3] = {1, 2, 3}, len;

	(void)state;
	assert_int_equal(kv_seq_truncate(s, 6), 0);
	assert_int_equal(kv_seq_park(s), 0);
	assert_int_equal(kv_seq_resume(s, &len), 0);
	assert_int_equal(len, 4);
	append(s, other, 3);
	fix_store(&f, s, 0, 4, 7);
	assert_good(s);
	kv_seq_release(s);
}

static void park_gives_its_pages_up(void **state)
{
	struct kv_seq *s, *big;
	uint32_t len = 99;

	(void)state;
	fix_shrink(&f, 4);
	s = sequence(14);
	assert_int_equal(kv_seq_park(s), 0);
	big = create();
	append(big, prompt + 20, 12); /* three of four */
	assert_int_equal(kv_seq_resume(s, &len), 0);
	assert_true(len < 8);
	assert_good(s);
	kv_seq_release(big);
	extend(s, 14 - len);
	assert_good(s);
	kv_seq_release(s);
}

static void parked_and_released(void **state)
{
	struct kv_seq *s = sequence(10), *b;

	(void)state;
	assert_int_equal(kv_seq_park(s), 0);
	kv_seq_release(s);
	b = create();
	assert_int_equal(match(b, 11), 10);
	assert_good(b);
	kv_seq_release(b);
}

static void release_publishes_the_tail(void **state)
{
	struct kv_seq *s = sequence(10), *b = create();
	uint64_t tail = id(s, 0, 2);

	(void)state;
	append(s, prompt + 10, 1); /* above the mark: not for others */
	kv_seq_release(s);
	assert_int_equal(match(b, 12), 10);
	assert_int_equal(id(b, 0, 2) >> 24, tail >> 24);
	assert_pages(b, 1, 2);
	assert_good(b);
	extend(b, 6);
	assert_good(b);
	kv_seq_release(b);
}

static void a_shared_tail_is_not_published(void **state)
{
	struct kv_seq *s = sequence(10), *b = forked(s), *probe = create();

	(void)state;
	kv_seq_release(s);
	assert_int_equal(match(probe, 12), 8);
	kv_seq_release(probe);
	assert_good(b);
	kv_seq_release(b); /* now nobody shares it */
	probe = create();
	assert_int_equal(match(probe, 12), 10);
	assert_good(probe);
	kv_seq_release(probe);
}

static void close_releases_what_is_left(void **state)
{
	(void)state;
	sequence(10);
	forked(sequence(7));
	assert_int_equal(kv_seq_park(sequence(9)), 0);
}

/* ---- opaque pages ---------------------------------------------------------------------------- */

static int open_opaque(void **state)
{
	struct kv_layout l = {.kind = KV_OPAQUE, .page_tokens = PT, .opaque_token_bytes = 100};

	open_plain(state);
	kv_cache_close(f.cache);
	kv_close(f.kv);
	fix_open(&f, "embedded:host:8M", l, 0);
	return 0;
}

static void opaque(void **state)
{
	struct kv_seq *s = create(), *b;
	float row[FIX_MAX_ROW] = {0};
	char *page;

	(void)state;
	append(s, prompt, 6);
	assert_int_equal(kv_seq_store(s, 0, 0, 5, 1, row, row), -EOPNOTSUPP);
	page = (char *)(uintptr_t)kv_seq_pte(s, 0, NULL)[1];
	memset(page, 'x', PT * 100);
	assert_int_equal(kv_seq_commit(s, 6), 0);
	b = forked(s);
	append(b, prompt + 6, 1);
	assert_int_not_equal(id(b, 0, 1), id(s, 0, 1));
	assert_memory_equal((char *)(uintptr_t)kv_seq_pte(b, 0, NULL)[1], page, PT * 100);
	kv_seq_release(s);
	kv_seq_release(b);
	b = create();
	assert_int_equal(match(b, 9), 4);
	kv_seq_release(b);
}

#define PLAIN(t)  cmocka_unit_test_setup_teardown(t, open_plain, close_all)
#define WINDOW(t) cmocka_unit_test_setup_teardown(t, open_window, close_all)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PLAIN(create_refuses),
		PLAIN(empty),
		PLAIN(grow),
		PLAIN(bad_arguments),
		PLAIN(busy),
		PLAIN(same_tokens_share),
		PLAIN(out_of_pages),
		WINDOW(out_of_pages_in_one_group),
		PLAIN(match_full_pages),
		PLAIN(match_leaves_one),
		PLAIN(match_inside_a_page),
		PLAIN(match_without_room_for_the_tail),
		PLAIN(keys_separate),
		PLAIN(later_media_do_not_count),
		PLAIN(fork_shares_and_copies_on_write),
		PLAIN(fork_of_uncommitted),
		PLAIN(truncate_above_committed),
		PLAIN(truncate_into_a_leased_page),
		PLAIN(truncate_then_fork_then_both_write),
		WINDOW(drop_head),
		WINDOW(window_match),
		WINDOW(fork_shares_and_copies_on_write),
		WINDOW(truncate_into_a_leased_page),
		WINDOW(park_and_resume),
		PLAIN(park_and_resume),
		PLAIN(park_after_truncate),
		WINDOW(park_after_truncate),
		PLAIN(park_gives_its_pages_up),
		PLAIN(parked_and_released),
		PLAIN(release_publishes_the_tail),
		PLAIN(a_shared_tail_is_not_published),
		PLAIN(close_releases_what_is_left),
		cmocka_unit_test_setup_teardown(opaque, open_opaque, close_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
