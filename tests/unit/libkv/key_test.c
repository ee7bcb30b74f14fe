// SPDX-License-Identifier: Apache-2.0
/* key_build(): what must give equal digests, what must not, and the encoding by hand */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <sha256.h>

#include "key.h"

#define PT  16u
#define MAX 8u

static struct kv_key key(uint32_t kind, uint32_t position, const char *data)
{
	return (struct kv_key){kind, position, data, strlen(data)};
}

static uint32_t build(const struct kv_key *keys, uint32_t nr, struct kv_page_key *out)
{
	uint32_t n = 99;

	assert_int_equal(key_build(keys, nr, PT, out, MAX, &n), 0);
	return n;
}

static bool same(const struct kv_key *a, uint32_t na, const struct kv_key *b, uint32_t nb)
{
	struct kv_page_key x[MAX], y[MAX];
	uint32_t nx = build(a, na, x), ny = build(b, nb, y), i;

	if (nx != ny)
		return false;
	for (i = 0; i < nx; i++)
		if (memcmp(&x[i], &y[i], sizeof(x[i])))
			return false;
	return true;
}

static bool same1(struct kv_key a, struct kv_key b)
{
	return same(&a, 1, &b, 1);
}

static void none(void **state)
{
	struct kv_page_key out[MAX];

	(void)state;
	assert_int_equal(build(NULL, 0, out), 0);
}

static void encoding_by_hand(void **state)
{
	static const char text[] = "kvd page key v1"
				   "\1\0\0\0"
				   "\0\0\0\0"
				   "\4\0\0\0\0\0\0\0"
				   "lora"
				   "\3\0\0\0"
				   "\5\0\0\0"
				   "\3\0\0\0\0\0\0\0"
				   "img";
	struct kv_key keys[] = {key(KV_KEY_LORA, 0, "lora"), key(KV_KEY_MEDIA, 5, "img")};
	struct kv_page_key out[MAX];
	uint8_t digest[32];
	SHA256_CTX ctx;

	(void)state;
	SHA256Init(&ctx);
	SHA256Update(&ctx, (const uint8_t *)text, sizeof(text) - 1);
	SHA256Final(digest, &ctx);
	assert_int_equal(build(keys, 2, out), 1);
	assert_int_equal(out[0].page, 0);
	assert_int_equal(out[0].reserved, 0);
	assert_memory_equal(out[0].digest, digest, 32);
}

static void kinds_differ(void **state)
{
	uint32_t a, b;

	(void)state;
	for (a = KV_KEY_LORA; a <= KV_KEY_OTHER; a++)
		for (b = KV_KEY_LORA; b <= KV_KEY_OTHER; b++)
			assert_int_equal(same1(key(a, 0, "x"), key(b, 0, "x")), a == b);
}

/* Length prefixes: no two lists run together. */
static void boundaries(void **state)
{
	struct kv_key ab_c[] = {key(KV_KEY_LORA, 0, "ab"), key(KV_KEY_LORA, 0, "c")};
	struct kv_key a_bc[] = {key(KV_KEY_LORA, 0, "a"), key(KV_KEY_LORA, 0, "bc")};
	struct kv_key abc = key(KV_KEY_LORA, 0, "abc");
	/* one key whose data looks like the fields of two */
	char fields[64];
	struct kv_key fake = {KV_KEY_LORA, 0, fields, 2 + 16 + 1};

	(void)state;
	memcpy(fields, "ab\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0c", 19);
	assert_false(same(ab_c, 2, a_bc, 2));
	assert_false(same(ab_c, 2, &abc, 1));
	assert_false(same(ab_c, 2, &fake, 1));
}

static void sequence_wide_go_to_page_0(void **state)
{
	struct kv_key keys[] = {key(KV_KEY_SALT, 0, "s"), key(KV_KEY_LORA, 0, "l"),
				key(KV_KEY_OTHER, 0, "o")};
	struct kv_key turned[] = {keys[2], keys[1], keys[0]};
	struct kv_page_key out[MAX];

	(void)state;
	assert_int_equal(build(keys, 3, out), 1);
	assert_int_equal(out[0].page, 0);
	assert_true(same(keys, 3, turned, 3)); /* kinds have an order of their own */
	assert_false(same(keys, 3, keys, 2));
}

static void media_go_to_their_page(void **state)
{
	struct kv_key keys[] = {key(KV_KEY_MEDIA, 3 * PT + 2, "c"), key(KV_KEY_MEDIA, PT - 1, "a"),
				key(KV_KEY_MEDIA, PT, "b"), key(KV_KEY_SALT, 0, "s")};
	struct kv_key b1 = key(KV_KEY_MEDIA, 2, "b"), b2 = key(KV_KEY_MEDIA, PT + 2, "b");
	struct kv_page_key out[MAX], one[MAX], two[MAX];

	(void)state;
	assert_int_equal(build(keys, 4, out), 3);
	assert_int_equal(out[0].page, 0);
	assert_int_equal(out[1].page, 1);
	assert_int_equal(out[2].page, 3);
	/* the digest says where inside the page, the page says which */
	build(&b1, 1, one);
	build(&b2, 1, two);
	assert_int_equal(one[0].page, 0);
	assert_int_equal(two[0].page, 1);
	assert_memory_equal(one[0].digest, two[0].digest, 32);
	assert_false(same1(key(KV_KEY_MEDIA, 2, "b"), key(KV_KEY_MEDIA, 3, "b")));
	assert_false(same1(key(KV_KEY_MEDIA, 2, "b"), key(KV_KEY_MEDIA, 2, "c")));
}

static void media_order(void **state)
{
	struct kv_key ab[] = {key(KV_KEY_MEDIA, 1, "a"), key(KV_KEY_MEDIA, 5, "b")};
	struct kv_key ba[] = {ab[1], ab[0]};
	struct kv_key swapped[] = {key(KV_KEY_MEDIA, 1, "b"), key(KV_KEY_MEDIA, 5, "a")};
	struct kv_key at1[] = {key(KV_KEY_MEDIA, 1, "a"), key(KV_KEY_MEDIA, 1, "b")};
	struct kv_key at1_turned[] = {at1[1], at1[0]};

	(void)state;
	assert_true(same(ab, 2, ba, 2)); /* position decides */
	assert_false(same(ab, 2, swapped, 2));
	assert_false(same(at1, 2, at1_turned, 2)); /* at one place the caller does */
}

static void media_and_salt_on_page_0(void **state)
{
	struct kv_key both[] = {key(KV_KEY_SALT, 0, "s"), key(KV_KEY_MEDIA, 0, "m")};
	struct kv_page_key a[MAX], b[MAX];

	(void)state;
	assert_int_equal(build(both, 2, a), 1);
	assert_int_equal(build(both, 1, b), 1);
	assert_memory_not_equal(a[0].digest, b[0].digest, 32);
}

static void bad_keys(void **state)
{
	struct kv_key k = key(KV_KEY_LORA, 0, "x"), many[MAX + 1];
	struct kv_page_key out[MAX];
	uint32_t n, i;

	(void)state;
	k.kind = 0;
	assert_int_equal(key_build(&k, 1, PT, out, MAX, &n), -EINVAL);
	k.kind = 5;
	assert_int_equal(key_build(&k, 1, PT, out, MAX, &n), -EINVAL);
	k = key(KV_KEY_SALT, 1, "x");
	assert_int_equal(key_build(&k, 1, PT, out, MAX, &n), -EINVAL);
	k = (struct kv_key){KV_KEY_SALT, 0, NULL, 3};
	assert_int_equal(key_build(&k, 1, PT, out, MAX, &n), -EINVAL);
	k = key(KV_KEY_SALT, 0, "");
	assert_int_equal(key_build(&k, 1, PT, out, MAX, &n), -EINVAL);
	assert_int_equal(key_build(NULL, 1, PT, out, MAX, &n), -EINVAL);
	k = key(KV_KEY_SALT, 0, "x");
	assert_int_equal(key_build(&k, 1, 0, out, MAX, &n), -EINVAL);
	for (i = 0; i <= MAX; i++)
		many[i] = key(KV_KEY_MEDIA, i * PT, "m");
	assert_int_equal(key_build(many, MAX, PT, out, MAX, &n), 0);
	assert_int_equal(n, MAX);
	assert_int_equal(key_build(many, MAX + 1, PT, out, MAX, &n), -E2BIG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(none),
		cmocka_unit_test(encoding_by_hand),
		cmocka_unit_test(kinds_differ),
		cmocka_unit_test(boundaries),
		cmocka_unit_test(sequence_wide_go_to_page_0),
		cmocka_unit_test(media_go_to_their_page),
		cmocka_unit_test(media_order),
		cmocka_unit_test(media_and_salt_on_page_0),
		cmocka_unit_test(bad_keys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
