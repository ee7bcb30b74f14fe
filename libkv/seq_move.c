// SPDX-License-Identifier: Apache-2.0
/* seq_move - held pages of sequences leave an extent; contract in seq_impl.h
 *
 * The new page is in the old one's place in every sequence before the old one is freed, so whatever
 * stops the move in between leaves sequences whole. Old pages go back in batches: kvd grants none
 * of an extent that it wants empty, so nobody waits for the room.
 */
#include <errno.h>
#include <string.h>

#include "seq_impl.h"

#define LEFT_BATCH 64u

struct left {
	struct kv_cache *cache;
	uint32_t group, nr;
	uint64_t ids[LEFT_BATCH];
};

static int free_left(struct left *l)
{
	uint32_t n = l->nr;

	l->nr = 0;
	return n ? kv_pages_free(l->cache, l->group, n, l->ids) : 0;
}

static void repoint(struct kv_seq *s, uint32_t group, uint32_t page, uint64_t pte)
{
	struct seq_ref *ref = s->group[group].held[page];
	struct kv_seq *t;

	for (t = ref->refs > 1 ? s->cache->seqs : s; t; t = ref->refs > 1 ? t->next : NULL) {
		struct seq_group *grp = &t->group[group];

		if (page >= t->nr_pages || grp->held[page] != ref)
			continue;
		grp->ids[page] = ref->id;
		grp->pte[page] = pte;
		t->version++;
	}
}

static int move_page(struct kv_seq *s, uint32_t group, uint32_t page, struct left *left)
{
	struct seq_group *grp = &s->group[group];
	uint64_t to, pte;
	int err = kv_page_alloc(s->cache, group, &to);

	if (err)
		return err;
	err = kv_pages_pte(s->cache, group, 1, &to, &pte);
	if (err) {
		kv_page_free(s->cache, group, to);
		return err;
	}
	layout_copy_tokens(seq_layout(s, group), pte, grp->pte[page], s->page_tokens);
	left->ids[left->nr++] = grp->ids[page];
	grp->held[page]->id = to;
	repoint(s, group, page, pte);
	return left->nr == LEFT_BATCH ? free_left(left) : 0;
}

int seq_move(struct kv_cache *c, uint32_t group, uint32_t extent)
{
	struct left left = { .cache = c, .group = group };
	int err = 0, freed;
	struct kv_seq *s;
	uint32_t i;

	for (s = c->seqs; !err && s; s = s->next)
		for (i = 0; !err && i < s->nr_pages; i++)
			if (s->group[group].held[i] &&
			    map_id_extent(s->group[group].ids[i]) == extent)
				err = move_page(s, group, i, &left);
	freed = free_left(&left);
	return err ? err : freed;
}
