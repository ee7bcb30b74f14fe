// SPDX-License-Identifier: Apache-2.0
/* seq_cache - what a sequence takes from the page cache and gives to it; contracts in kv/seq.h and
 * seq_impl.h */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "seq_impl.h"

#define COMMIT_TOKENS 16384u /* most tokens of one commit request */

/* Keys that say something about the first n tokens. */
static uint32_t keys_below(const struct kv_seq *s, uint32_t n)
{
	uint32_t nr = 0;

	while (nr < s->nr_keys && s->keys[nr].position < n)
		nr++;
	return nr;
}

/* ---- match, resume: take a chain ----------------------------------------------------------- */

/* The tail's rows come into pages of our own; those of an adopted tail are ours already. */
static int copy_tail(struct kv_seq *s, const struct kv_match *m)
{
	struct seq_range want[KV_MAX_GROUPS];
	uint64_t src[KV_MAX_GROUPS];
	uint32_t g, page = s->nr_pages;
	int err;

	for (g = 0; g < s->nr_groups; g++) {
		bool ours = m->tail_adopted && m->tail_pages[g];

		src[g] = 0;
		want[g] = (struct seq_range){page, !ours};
		if (ours)
			continue;
		err = kv_pages_pte(s->cache, g, 1, &m->tail_pages[g], &src[g]);
		if (err)
			return err;
	}
	err = seq_pages_grant(s, want);
	for (g = 0; !err && g < s->nr_groups; g++)
		if (src[g])
			layout_copy_tokens(seq_layout(s, g), s->group[g].pte[page], src[g],
					   m->tail_tokens);
	return err;
}

static int adopt_tail(struct kv_seq *s, const struct kv_match *m)
{
	uint32_t g;
	int err;

	for (g = 0; m->tail_adopted && g < s->nr_groups; g++) {
		if (!m->tail_pages[g])
			continue;
		err = seq_pages_adopt(s, g, s->nr_pages, m->tail_pages[g]);
		if (err)
			return err;
	}
	return 0;
}

/* Adopted pages that found no place in the sequence are ours all the same. */
static void refuse_tail(struct kv_seq *s, const struct kv_match *m)
{
	uint32_t g;

	for (g = 0; g < s->nr_groups; g++) {
		if (m->tail_adopted && m->tail_pages[g] && !s->group[g].held[s->nr_pages])
			kv_page_free(s->cache, g, m->tail_pages[g]);
		seq_pages_put(s, g, s->nr_pages, 1);
	}
}

/* Best effort: without room for the tail the full pages are still a good hit. */
static uint32_t take_tail(struct kv_seq *s, const struct kv_match *m)
{
	int err = m->tail_tokens ? adopt_tail(s, m) : 0;

	if (!err && m->tail_tokens)
		err = copy_tail(s, m);
	if (err)
		refuse_tail(s, m);
	if (m->tail_lease)
		kv_unlease(s->cache, 1, &m->tail_lease);
	return err ? 0 : m->tail_tokens;
}

/* m->pages are valid until the next call only, so they are copied before anything else. */
static int take_pages(struct kv_seq *s, const struct kv_match *m)
{
	uint32_t g;
	int err = 0;

	s->version++;
	for (g = 0; m->nr_pages && g < s->nr_groups; g++)
		memcpy(s->group[g].ids, m->pages[g], m->nr_pages * sizeof(*s->group[g].ids));
	for (g = 0; m->nr_pages && g < s->nr_groups && !err; g++)
		err = kv_pages_pte(s->cache, g, m->nr_pages, s->group[g].ids, s->group[g].pte);
	s->nr_pages = m->nr_pages;
	return err;
}

static void find_heads(struct kv_seq *s, const struct kv_match *m, uint32_t tail)
{
	uint32_t g;

	for (g = 0; g < s->nr_groups; g++) {
		uint32_t i = 0;

		while (i < m->nr_pages && !s->group[g].ids[i])
			i++;
		s->group[g].head = i * s->page_tokens;
		if (tail && !m->tail_pages[g])
			s->group[g].head = s->len;
	}
}

/* An empty sequence becomes what m says; its arrays have the room. On error it is empty and
 * everything m gave is given back. */
static int take_match(struct kv_seq *s, const struct kv_match *m)
{
	int err = take_pages(s, m);
	uint32_t tail;

	s->lease = m->lease;
	s->lease_pages = m->nr_pages;
	if (err) {
		seq_pages_cut(s, 0);
		refuse_tail(s, m);
		if (m->tail_lease)
			kv_unlease(s->cache, 1, &m->tail_lease);
		seq_lease_set(s, 0, 0);
		return err;
	}
	if (!m->nr_pages)
		seq_lease_set(s, 0, 0);
	tail = take_tail(s, m);
	s->nr_pages += tail > 0;
	s->len = s->committed = m->nr_pages * s->page_tokens + tail;
	find_heads(s, m, tail);
	return 0;
}

static int match(struct kv_seq *s, const uint32_t *tokens, uint32_t n)
{
	int err = seq_pages_reserve(s, seq_pages_of(s, n) + 1ull, n);
	struct kv_match m = {0};

	if (!err)
		err = kv_lookup(s->cache, tokens, n, s->keys, keys_below(s, n), true, &m);
	if (!err)
		err = take_match(s, &m);
	if (!err && s->len)
		memcpy(s->tokens, tokens, s->len * sizeof(*tokens));
	return err;
}

int kv_seq_match(struct kv_seq *s, const uint32_t *tokens, uint32_t nr_tokens, uint32_t *hit)
{
	int err = seq_enter(s);

	if (err)
		return err;
	if (!hit || (nr_tokens && !tokens))
		err = err_set(-EINVAL, "kv_seq_match: NULL");
	else if (s->len)
		err = err_set(-EINVAL, "the sequence has %u tokens: only an empty one can match",
			      s->len);
	else if (nr_tokens > 1)
		err = match(s, tokens, nr_tokens - 1);
	if (!err)
		*hit = s->len;
	seq_leave(s);
	return err;
}

/* ---- commit: give pages to the chain ------------------------------------------------------- */

/* What the chain has for a page that was offered: ours (it is leased now), another one with the
 * same tokens (ours is superfluous) or, in this group, none. A cached page that cannot be mapped
 * is no loss as long as ours is held. */
static void settle(struct kv_seq *s, uint32_t group, uint32_t page, uint64_t cached)
{
	struct seq_group *grp = &s->group[group];
	uint64_t pte;

	if (!grp->ids[page] || !cached)
		return;
	if (cached == grp->ids[page]) {
		free(grp->held[page]);
		grp->held[page] = NULL;
		return;
	}
	if (kv_pages_pte(s->cache, group, 1, &cached, &pte))
		return;
	seq_pages_put(s, group, page, 1);
	grp->ids[page] = cached;
	grp->pte[page] = pte;
	s->version++;
}

static int publish(struct kv_seq *s, uint32_t nr, uint32_t nr_tokens, bool partial)
{
	uint32_t first = s->lease_pages, start = first * s->page_tokens, g, i;
	uint64_t *ids = calloc((size_t)nr * s->nr_groups, sizeof(*ids));
	const uint64_t *pages[KV_MAX_GROUPS];
	uint64_t *chain[KV_MAX_GROUPS];
	int err;

	if (!ids)
		return err_set(-ENOMEM, "out of memory for a commit of %u pages", nr);
	for (g = 0; g < s->nr_groups; g++) {
		pages[g] = s->group[g].ids + first;
		chain[g] = ids + (size_t)g * nr;
	}
	err = kv_commit(s->cache, &s->lease, first, s->tokens + start, nr_tokens, nr, pages,
			partial, s->keys, keys_below(s, start + nr_tokens), chain);
	if (!err) {
		s->lease_pages += nr;
		for (g = 0; g < s->nr_groups; g++)
			for (i = 0; i < nr; i++)
				settle(s, g, first + i, chain[g][i]);
	}
	free(ids);
	return err;
}

/* In requests that mm takes whole or not at all, so that the lease is never ahead of the pages.
 * What was published before an error stays committed. */
static int publish_full(struct kv_seq *s, uint32_t upto_pages)
{
	uint32_t step = s->cache->kv->batch_pages / s->nr_groups, n;
	int err = 0;

	if (step > COMMIT_TOKENS / s->page_tokens)
		step = COMMIT_TOKENS / s->page_tokens;
	step = step ? step : 1;
	while (!err && s->lease_pages < upto_pages) {
		n = upto_pages - s->lease_pages;
		n = n < step ? n : step;
		err = publish(s, n, n * s->page_tokens, false);
		if (!err)
			s->committed = s->lease_pages * s->page_tokens;
	}
	return err;
}

int kv_seq_commit(struct kv_seq *s, uint32_t upto)
{
	int err = seq_enter(s);

	if (err)
		return err;
	if (upto > s->len)
		err = err_set(-EINVAL, "cannot commit %u tokens: the sequence has %u", upto,
			      s->len);
	else if (upto < s->committed)
		err = err_set(-EINVAL, "cannot commit %u tokens: %u are already; truncate instead",
			      upto, s->committed);
	else
		err = publish_full(s, upto / s->page_tokens);
	if (!err)
		s->committed = upto;
	seq_leave(s);
	return err;
}

void seq_cache_publish_tail(struct kv_seq *s)
{
	uint32_t rows = s->len % s->page_tokens, page = s->nr_pages - 1, g;

	if (!rows || s->lease_pages > page)
		return;
	for (g = 0; g < s->nr_groups; g++)
		if (seq_layout(s, g)->kind == KV_OPAQUE || !s->group[g].held[page] ||
		    s->group[g].held[page]->refs > 1)
			return;
	publish(s, 1, rows, true);
}

/* ---- park, resume -------------------------------------------------------------------------- */

/* A park is a chain of whole nodes. A sequence that ends inside a leased page parks what is before
 * it: with the whole page a resume would get tokens that were cut off, and not the window that the
 * end of the sequence needs. */
static int park_chain(struct kv_seq *s)
{
	bool inside = s->lease_pages > s->len / s->page_tokens;
	uint32_t lease;
	int err = 0;

	if (inside) {
		err = seq_lease_dup(s, s->len / s->page_tokens, &lease);
	} else {
		seq_cache_publish_tail(s);
		lease = s->lease;
	}
	s->park = 0;
	if (!err && lease)
		err = kv_park(s->cache, lease, &s->park);
	if (err) {
		if (inside && lease)
			kv_unlease(s->cache, 1, &lease);
		return err;
	}
	if (!inside)
		s->lease = 0;
	seq_lease_set(s, 0, 0);
	return 0;
}

static int park(struct kv_seq *s)
{
	int err;

	seq_pages_cut(s, seq_pages_of(s, s->committed));
	s->len = s->committed;
	err = park_chain(s);
	if (err)
		return err;
	seq_pages_cut(s, 0);
	s->park_len = s->len;
	s->len = s->committed = 0;
	s->parked = true;
	return 0;
}

int kv_seq_park(struct kv_seq *s)
{
	int err = seq_enter(s);

	if (err)
		return err;
	err = park(s);
	seq_leave(s);
	return err;
}

int kv_seq_resume(struct kv_seq *s, uint32_t *len)
{
	struct kv_match m = {0};
	int err = 0;

	if (!s || !len)
		return err_set(-EINVAL, "kv_seq_resume: NULL");
	if (s->busy)
		return err_set(-EBUSY, "this sequence is in a call that waits: choose another one");
	if (!s->parked)
		return err_set(-EINVAL, "the sequence is not parked");
	s->busy = true;
	err = seq_pages_reserve(s, seq_pages_of(s, s->park_len) + 1ull, s->park_len);
	if (!err && s->park)
		err = kv_resume(s->cache, s->park, true, &m);
	if (!err) {
		s->parked = false;
		s->park = 0;
		err = take_match(s, &m);
	}
	if (!err)
		*len = s->len;
	seq_leave(s);
	return err;
}
