// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "intern.h"

static uint64_t mix(uint64_t z)
{
	z += 0x9e3779b97f4a7c15ull;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static struct intern_slot *slot_of(struct intern_slot *slots, uint64_t nr, uint32_t parent,
				   int64_t id)
{
	uint64_t at = mix(mix((uint64_t)id) ^ parent) & (nr - 1);

	while (slots[at].index_1 && (slots[at].parent != parent || slots[at].id != id))
		at = (at + 1) & (nr - 1);
	return &slots[at];
}

static int grow(struct intern *in)
{
	uint64_t nr = in->nr_slots ? 2 * in->nr_slots : 1024, i;
	struct intern_slot *slots = calloc(nr, sizeof(*slots));

	if (!slots)
		return -1;
	for (i = 0; i < in->nr_slots; i++)
		if (in->slots[i].index_1)
			*slot_of(slots, nr, in->slots[i].parent, in->slots[i].id) = in->slots[i];
	free(in->slots);
	in->slots = slots;
	in->nr_slots = nr;
	return 0;
}

uint32_t intern_get(struct intern *in, uint32_t parent, int64_t id)
{
	struct intern_slot *s;

	if (in->nr >= in->nr_slots / 3 * 2 && (in->nr >= UINT32_MAX - 2 || grow(in)))
		return INTERN_FULL;
	s = slot_of(in->slots, in->nr_slots, parent, id);
	if (!s->index_1)
		*s = (struct intern_slot){ .id = id, .parent = parent, .index_1 = ++in->nr };
	return s->index_1 - 1;
}

void intern_free(struct intern *in)
{
	free(in->slots);
	*in = (struct intern){ 0 };
}
