// SPDX-License-Identifier: Apache-2.0
/* key - contract in key.h */
#include <errno.h>
#include <sha256.h>
#include <stdlib.h>
#include <string.h>

#include "digest.h"
#include "err.h"
#include "key.h"

_Static_assert(SHA256_DIGEST_LENGTH == KV_KEY_BYTES, "a page key is one SHA-256");

static const char tag[] = "kvd page key v1";

/* Where a key goes. place is 0 for keys of the whole sequence. */
struct slot {
	uint32_t page, kind, place, index;
};

int key_check(const struct kv_key *keys, uint32_t nr)
{
	uint32_t i;

	if (nr && !keys)
		return err_set(-EINVAL, "%u keys, but the array is NULL", nr);
	for (i = 0; i < nr; i++) {
		if (keys[i].kind < KV_KEY_LORA || keys[i].kind > KV_KEY_OTHER)
			return err_set(-EINVAL, "key %u: unknown kind %u", i, keys[i].kind);
		if (keys[i].position && keys[i].kind != KV_KEY_MEDIA)
			return err_set(-EINVAL, "key %u: position %u, but only media have one", i,
				       keys[i].position);
		if (!keys[i].data || !keys[i].bytes)
			return err_set(-EINVAL, "key %u: no data", i);
	}
	return 0;
}

static int compare(uint32_t a, uint32_t b)
{
	return a < b ? -1 : a > b;
}

/* Total, by index in the end, so that qsort() is as good as a stable sort. */
static int slot_order(const void *pa, const void *pb)
{
	const struct slot *a = pa, *b = pb;
	int order = compare(a->page, b->page);

	if (!order)
		order = compare(a->kind, b->kind);
	if (!order)
		order = compare(a->place, b->place);
	return order ? order : compare(a->index, b->index);
}

static void put_field(SHA256_CTX *ctx, const struct slot *slot, const struct kv_key *key)
{
	digest_le(ctx, slot->kind, 4);
	digest_le(ctx, slot->place, 4);
	digest_le(ctx, key->bytes, 8);
	SHA256Update(ctx, key->data, key->bytes);
}

static int fold(const struct slot *slots, const struct kv_key *keys, uint32_t nr,
		struct kv_page_key *out, uint32_t max, uint32_t *nr_out)
{
	uint32_t i = 0, n = 0;
	SHA256_CTX ctx;

	while (i < nr) {
		uint32_t page = slots[i].page;

		if (n == max)
			return err_set(-E2BIG, "keys stand in more than %u pages", max);
		SHA256Init(&ctx);
		SHA256Update(&ctx, (const uint8_t *)tag, sizeof(tag) - 1);
		for (; i < nr && slots[i].page == page; i++)
			put_field(&ctx, &slots[i], &keys[slots[i].index]);
		out[n] = (struct kv_page_key){.page = page};
		SHA256Final(out[n++].digest, &ctx);
	}
	*nr_out = n;
	return 0;
}

int key_build(const struct kv_key *keys, uint32_t nr, uint32_t page_tokens, struct kv_page_key *out,
	      uint32_t max, uint32_t *nr_out)
{
	int err = key_check(keys, nr);
	struct slot *slots;
	uint32_t i;

	if (err)
		return err;
	if (!page_tokens)
		return err_set(-EINVAL, "keys need page_tokens");
	*nr_out = 0;
	if (!nr)
		return 0;
	slots = calloc(nr, sizeof(*slots));
	if (!slots)
		return err_set(-ENOMEM, "out of memory for %u keys", nr);
	for (i = 0; i < nr; i++)
		slots[i] = (struct slot){
			.page = keys[i].position / page_tokens,
			.kind = keys[i].kind,
			.place = keys[i].position % page_tokens,
			.index = i,
		};
	qsort(slots, nr, sizeof(*slots), slot_order);
	err = fold(slots, keys, nr, out, max, nr_out);
	free(slots);
	return err;
}
