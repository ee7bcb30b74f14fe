// SPDX-License-Identifier: Apache-2.0
/* seq_pages - the page arrays of a sequence; contract in seq_impl.h */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "seq_impl.h"

#define FREE_BATCH 64u

static int grow(void **array, size_t old, size_t cap, size_t size)
{
	void *p = reallocarray(*array, cap, size);

	if (!p)
		return err_set(-ENOMEM, "out of memory for a sequence's page table");
	memset((char *)p + old * size, 0, (cap - old) * size);
	*array = p;
	return 0;
}

/* cap_pages moves only when all arrays have grown, so a failure in the middle costs nothing. */
static int grow_pages(struct kv_seq *s, uint64_t nr_pages)
{
	uint64_t cap = s->cap_pages * 2ull;
	uint32_t g;
	int err = 0;

	if (nr_pages <= s->cap_pages)
		return 0;
	cap = cap > nr_pages ? cap : nr_pages;
	cap = cap < 8 ? 8 : cap;
	if (cap > UINT32_MAX)
		return err_set(-ENOMEM, "a sequence has at most 2^32 - 1 pages");
	for (g = 0; g < s->nr_groups && !err; g++) {
		struct seq_group *grp = &s->group[g];

		err = grow((void **)&grp->ids, s->cap_pages, cap, sizeof(*grp->ids));
		if (!err)
			err = grow((void **)&grp->pte, s->cap_pages, cap, sizeof(*grp->pte));
		if (!err)
			err = grow((void **)&grp->held, s->cap_pages, cap, sizeof(*grp->held));
	}
	s->version++;
	if (!err)
		s->cap_pages = (uint32_t)cap;
	return err;
}

int seq_pages_reserve(struct kv_seq *s, uint64_t nr_pages, uint64_t nr_tokens)
{
	uint64_t cap = s->cap_tokens * 2ull;
	int err = grow_pages(s, nr_pages);

	if (err || nr_tokens <= s->cap_tokens)
		return err;
	cap = cap > nr_tokens ? cap : nr_tokens;
	cap = cap < 64 ? 64 : cap;
	cap = cap > UINT32_MAX ? UINT32_MAX : cap;
	err = grow((void **)&s->tokens, s->cap_tokens, cap, sizeof(*s->tokens));
	if (!err)
		s->cap_tokens = (uint32_t)cap;
	return err;
}

/* A page that cannot be given back means that the session is gone, and with it the page. */
static void free_ids(struct kv_seq *s, uint32_t group, uint32_t n, const uint64_t *ids)
{
	if (n == 1)
		kv_page_free(s->cache, group, ids[0]);
	else if (n)
		kv_pages_free(s->cache, group, n, ids);
}

void seq_pages_put(struct kv_seq *s, uint32_t group, uint32_t first, uint32_t nr)
{
	struct seq_group *grp = &s->group[group];
	uint64_t ids[FREE_BATCH];
	uint32_t i, n = 0;

	s->version += nr > 0;
	for (i = first; i < first + nr; i++) {
		struct seq_ref *ref = grp->held[i];

		if (ref && !--ref->refs) {
			ids[n++] = ref->id;
			free(ref);
		}
		grp->held[i] = NULL;
		grp->ids[i] = grp->pte[i] = 0;
		if (n == FREE_BATCH) {
			free_ids(s, group, n, ids);
			n = 0;
		}
	}
	free_ids(s, group, n, ids);
}

void seq_pages_cut(struct kv_seq *s, uint32_t nr_pages)
{
	uint32_t g;

	for (g = 0; g < s->nr_groups; g++)
		seq_pages_put(s, g, nr_pages, s->nr_pages - nr_pages);
	s->nr_pages = nr_pages;
}

static int make_refs(struct seq_group *grp, uint32_t first, uint32_t nr)
{
	uint32_t i;

	for (i = first; i < first + nr; i++) {
		struct seq_ref *ref = malloc(sizeof(*ref));

		if (!ref) {
			while (i > first) {
				free(grp->held[--i]);
				grp->held[i] = NULL;
			}
			return err_set(-ENOMEM, "out of memory for a sequence's pages");
		}
		*ref = (struct seq_ref){.id = grp->ids[i], .refs = 1};
		grp->held[i] = ref;
	}
	return 0;
}

static int grant_group(struct kv_seq *s, uint32_t group, struct seq_range want)
{
	struct seq_group *grp = &s->group[group];
	uint64_t *ids = grp->ids + want.first;
	int err;

	if (!want.nr)
		return 0;
	s->version++;
	err = want.nr == 1 ? kv_page_alloc(s->cache, group, ids)
			   : kv_pages_alloc(s->cache, group, want.nr, ids);
	if (!err) {
		err = kv_pages_pte(s->cache, group, want.nr, ids, grp->pte + want.first);
		if (!err)
			err = make_refs(grp, want.first, want.nr);
		if (err)
			free_ids(s, group, want.nr, ids);
	}
	if (err) {
		memset(ids, 0, want.nr * sizeof(*ids));
		memset(grp->pte + want.first, 0, want.nr * sizeof(*grp->pte));
	}
	return err;
}

int seq_pages_grant(struct kv_seq *s, const struct seq_range want[KV_MAX_GROUPS])
{
	uint32_t g;
	int err;

	for (g = 0; g < s->nr_groups; g++) {
		err = grant_group(s, g, want[g]);
		if (err) {
			while (g-- > 0)
				seq_pages_put(s, g, want[g].first, want[g].nr);
			return err;
		}
	}
	return 0;
}

void seq_pages_revoke(struct kv_seq *s, const struct seq_range had[KV_MAX_GROUPS])
{
	uint32_t g;

	for (g = 0; g < s->nr_groups; g++)
		seq_pages_put(s, g, had[g].first, had[g].nr);
}

int seq_pages_adopt(struct kv_seq *s, uint32_t group, uint32_t page, uint64_t id)
{
	struct seq_group *grp = &s->group[group];
	int err = kv_pages_pte(s->cache, group, 1, &id, grp->pte + page);

	s->version++;
	grp->ids[page] = id;
	if (!err)
		err = make_refs(grp, page, 1);
	if (err)
		grp->ids[page] = grp->pte[page] = 0;
	return err;
}

bool seq_pages_leased(const struct kv_seq *s, uint32_t group, uint32_t page)
{
	return s->group[group].ids[page] && !s->group[group].held[page];
}

bool seq_pages_shared(const struct kv_seq *s, uint32_t group, uint32_t page)
{
	const struct seq_ref *ref = s->group[group].held[page];

	return s->len % s->page_tokens && s->group[group].ids[page] && (!ref || ref->refs > 1);
}

int seq_lease_dup(struct kv_seq *s, uint32_t depth, uint32_t *lease)
{
	*lease = 0;
	return depth ? kv_lease_dup(s->cache, s->lease, depth, lease) : 0;
}

void seq_lease_set(struct kv_seq *s, uint32_t lease, uint32_t depth)
{
	if (s->lease && s->lease != lease)
		kv_unlease(s->cache, 1, &s->lease);
	s->lease = lease;
	s->lease_pages = depth;
}
