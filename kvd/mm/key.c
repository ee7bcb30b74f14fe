// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core.h"

static uint32_t *head_of(const struct mm *mm, const uint8_t *digest)
{
	uint64_t w[MM_KEY_BYTES / 8], h = mm->cfg.seed;

	memcpy(w, digest, sizeof(w));
	for (uint32_t i = 0; i < MM_KEY_BYTES / 8; i++)
		h = core_mix(h ^ w[i]);
	return (uint32_t *)((uintptr_t)mm + mm->off_key_heads) + (h & mm->key_mask);
}

uint32_t key_find(const struct mm *mm, const uint8_t *digest)
{
	for (uint32_t k = *head_of(mm, digest); k; k = key_at(mm, k)->next)
		if (!memcmp(key_at(mm, k)->digest, digest, MM_KEY_BYTES))
			return k;
	return KEY_UNKNOWN;
}

uint32_t key_get(struct mm *mm, uint32_t engine, const uint8_t *digest)
{
	uint32_t k = key_find(mm, digest), *head = head_of(mm, digest);
	uint32_t owner = pool_id(mm, &mm->engines, engine);

	if (k != KEY_UNKNOWN) {
		key_at(mm, k)->nr_refs++;
		if (!key_at(mm, k)->nr_pinned)
			key_at(mm, k)->owner = owner;
		return k;
	}
	k = pool_get(mm, &mm->keys);
	if (!k)
		return NIL;
	memcpy(key_at(mm, k)->digest, digest, MM_KEY_BYTES);
	key_at(mm, k)->nr_refs = 1;
	key_at(mm, k)->owner = owner;
	mm->nr_idle_keys++;
	key_at(mm, k)->next = *head;
	*head = k;
	return k;
}

void key_put(struct mm *mm, uint32_t key)
{
	struct key *k = key_at(mm, key);
	uint32_t *ref;

	MM_ASSERT(k->nr_refs);
	if (--k->nr_refs)
		return;
	MM_ASSERT(!k->nr_pinned);
	mm->nr_idle_keys--;
	ref = head_of(mm, k->digest);
	while (*ref != key)
		ref = &key_at(mm, *ref)->next;
	*ref = k->next;
	pool_put(mm, &mm->keys, key);
}

static void count(struct mm *mm, const struct key *k, uint32_t by)
{
	uint32_t owner = pool_find(mm, &mm->engines, k->owner);

	mm->nr_idle_keys -= by;
	if (owner)
		engine_at(mm, owner)->nr_keys += by;
}

void key_pin(struct mm *mm, uint32_t key)
{
	if (key && !key_at(mm, key)->nr_pinned++)
		count(mm, key_at(mm, key), 1);
}

void key_unpin(struct mm *mm, uint32_t key)
{
	if (key && !--key_at(mm, key)->nr_pinned)
		count(mm, key_at(mm, key), -1u);
}
