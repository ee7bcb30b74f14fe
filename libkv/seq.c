// SPDX-License-Identifier: Apache-2.0
/* seq - sequences: their life, appends, forks and truncations; contracts in kv/seq.h, seq_impl.h */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "key.h"
#include "seq_impl.h"

int seq_enter(struct kv_seq *s)
{
	if (!s)
		return err_set(-EINVAL, "sequence: NULL");
	if (s->busy)
		return err_set(-EBUSY, "this sequence is in a call that waits: choose another one");
	if (s->parked)
		return err_set(-EINVAL, "the sequence is parked: resume or release it first");
	s->busy = true;
	return 0;
}

void seq_leave(struct kv_seq *s)
{
	s->busy = false;
}

/* ---- life ---------------------------------------------------------------------------------- */

static void release_all(struct kv_cache *cache)
{
	struct kv_seq *s;

	while ((s = cache->seqs)) {
		s->busy = false;
		kv_seq_release(s);
	}
}

static void link_seq(struct kv_seq *s)
{
	struct kv_cache *cache = s->cache;

	s->next = cache->seqs;
	if (s->next)
		s->next->prev = s;
	cache->seqs = s;
	cache->on_close = release_all;
	cache->on_leave = seq_move;
}

static void unlink_seq(struct kv_seq *s)
{
	if (s->prev)
		s->prev->next = s->next;
	else
		s->cache->seqs = s->next;
	if (s->next)
		s->next->prev = s->prev;
}

/* One block: the keys, then their bytes. Ascending by position, so that those of any prefix of the
 * tokens are a prefix of the keys; key_build() does not care about the rest of the order. */
static struct kv_key *copy_keys(const struct kv_key *keys, uint32_t nr)
{
	size_t bytes = nr * sizeof(*keys);
	struct kv_key *copy;
	uint32_t i, j;
	char *data;

	for (i = 0; i < nr; i++)
		bytes += keys[i].bytes;
	copy = malloc(bytes);
	if (!copy)
		return NULL;
	data = (char *)(copy + nr);
	for (i = 0; i < nr; i++) {
		struct kv_key key = keys[i];

		key.data = memcpy(data, key.data, key.bytes);
		data += key.bytes;
		for (j = i; j > 0 && copy[j - 1].position > key.position; j--)
			copy[j] = copy[j - 1];
		copy[j] = key;
	}
	return copy;
}

static void free_seq(struct kv_seq *s)
{
	uint32_t g;

	for (g = 0; g < s->nr_groups; g++) {
		free(s->group[g].ids);
		free(s->group[g].pte);
		free(s->group[g].held);
	}
	free(s->tokens);
	free(s->keys);
	free(s);
}

static struct kv_seq *new_seq(struct kv_cache *cache, const struct kv_key *keys, uint32_t nr_keys)
{
	struct kv_seq *s = calloc(1, sizeof(*s));

	if (s) {
		s->cache = cache;
		s->page_tokens = cache->page_tokens;
		s->nr_groups = cache->nr_groups;
		s->nr_keys = nr_keys;
		if (nr_keys)
			s->keys = copy_keys(keys, nr_keys);
	}
	if (!s || (nr_keys && !s->keys)) {
		free(s);
		err_set(-ENOMEM, "out of memory for a sequence");
		return NULL;
	}
	return s;
}

int kv_seq_create(struct kv_cache *cache, const struct kv_key *keys, uint32_t nr_keys,
		  struct kv_seq **out)
{
	struct kv_seq *s;
	uint32_t g;
	int err;

	if (!cache || !out)
		return err_set(-EINVAL, "kv_seq_create: NULL");
	if (cache->kv->is_member)
		return err_set(-EPERM, "a member rank has no sequences: its lead decides, members "
				       "use kv_pages_pte() and kv_attn_pages()");
	for (g = 0; g < cache->nr_groups; g++)
		if (cache->group[g].kind == KV_GROUP_STATE)
			return err_set(
				-EOPNOTSUPP,
				"group %u holds state snapshots: sequences serve full and "
				"window groups, use the page calls (kv/page.h) for this cache",
				g);
	err = key_check(keys, nr_keys);
	if (err)
		return err;
	s = new_seq(cache, keys, nr_keys);
	if (!s)
		return -ENOMEM;
	link_seq(s);
	*out = s;
	return 0;
}

void kv_seq_release(struct kv_seq *s)
{
	if (!s)
		return;
	if (s->busy) {
		err_set(-EBUSY, "this sequence is in a call that waits: it cannot be released now");
		return;
	}
	s->busy = true; /* the pressure callback still knows it */
	if (s->parked) {
		if (s->park)
			kv_unpark(s->cache, s->park);
	} else {
		seq_pages_cut(s, seq_pages_of(s, s->committed));
		s->len = s->committed;
		seq_cache_publish_tail(s);
		seq_pages_cut(s, 0);
		seq_lease_set(s, 0, 0);
	}
	unlink_seq(s);
	free_seq(s);
}

/* ---- append -------------------------------------------------------------------------------- */

/* The last page is partly filled and somebody else reads it: page spare of a group, granted for
 * this, takes its place with a copy of the rows. The lease that pins a leased source goes last. */
static int unshare_tail(struct kv_seq *s, uint32_t spare)
{
	uint32_t page = s->nr_pages - 1, g, lease = 0;
	bool leased = s->lease_pages > page;
	int err;

	if (leased) {
		err = seq_lease_dup(s, page, &lease);
		if (err)
			return err;
	}
	for (g = 0; g < s->nr_groups; g++) {
		struct seq_group *grp = &s->group[g];

		if (!seq_pages_shared(s, g, page))
			continue;
		layout_copy_tokens(seq_layout(s, g), grp->pte[spare], grp->pte[page],
				   s->len % s->page_tokens);
		seq_pages_put(s, g, page, 1);
		grp->ids[page] = grp->ids[spare];
		grp->pte[page] = grp->pte[spare];
		grp->held[page] = grp->held[spare];
		grp->ids[spare] = grp->pte[spare] = 0;
		grp->held[spare] = NULL;
	}
	s->version++;
	if (leased)
		seq_lease_set(s, lease, page);
	return 0;
}

static int append(struct kv_seq *s, const uint32_t *tokens, uint32_t n)
{
	struct seq_range want[KV_MAX_GROUPS];
	uint32_t g, need, spare = 0;
	int err;

	if (n > UINT32_MAX - s->len)
		return err_set(-EINVAL, "%u + %u tokens: a sequence has at most 2^32 - 1", s->len,
			       n);
	need = seq_pages_of(s, s->len + n);
	err = seq_pages_reserve(s, need + 1ull, (uint64_t)s->len + n);
	if (err)
		return err;
	for (g = 0; g < s->nr_groups; g++) {
		bool shared = s->nr_pages && seq_pages_shared(s, g, s->nr_pages - 1);

		want[g] = (struct seq_range){s->nr_pages, need - s->nr_pages + shared};
		spare |= shared;
	}
	err = seq_pages_grant(s, want);
	if (!err && spare) {
		err = unshare_tail(s, need);
		if (err)
			seq_pages_revoke(s, want);
	}
	if (err)
		return err;
	memcpy(s->tokens + s->len, tokens, n * sizeof(*tokens));
	s->len += n;
	s->nr_pages = need;
	return 0;
}

int kv_seq_append(struct kv_seq *s, const uint32_t *tokens, uint32_t n)
{
	int err = seq_enter(s);

	if (err)
		return err;
	if (n && !tokens)
		err = err_set(-EINVAL, "kv_seq_append: NULL tokens");
	else if (n)
		err = append(s, tokens, n);
	seq_leave(s);
	return err;
}

static int check_group(const struct kv_seq *s, uint32_t group)
{
	if (group < s->nr_groups)
		return 0;
	return err_set(-EINVAL, "group %u does not exist: the cache has %u", group, s->nr_groups);
}

int seq_check_store(const struct kv_seq *s, uint32_t group, uint32_t pos, uint32_t n)
{
	int err;

	if (!s || s->parked)
		return err_set(-EINVAL,
			       s ? "the sequence is parked: resume it first" : "sequence: NULL");
	err = check_group(s, group);
	if (err)
		return err;
	if (pos > s->len || n > s->len - pos)
		return err_set(-EINVAL,
			       "tokens %u to %llu have no place: the sequence has %u, append first",
			       pos, (unsigned long long)pos + n, s->len);
	if (n && pos < s->committed)
		return err_set(-EINVAL, "token %u is committed (below %u) and cannot be written",
			       pos, s->committed);
	if (n && pos < s->group[group].head)
		return err_set(-EINVAL, "token %u was dropped from group %u (before %u)", pos,
			       group, s->group[group].head);
	return 0;
}

/* Runs in parallel with itself on other sequences: touches nothing but this one's pages. */
int kv_seq_store_rows(struct kv_seq *s, const struct kv_store *rows)
{
	int err;

	if (!rows)
		return err_set(-EINVAL, "store: NULL");
	err = seq_check_store(s, rows->group, rows->pos, rows->n);
	return err ? err : kv_store_page_rows(s->cache, rows, s->group[rows->group].pte);
}

int kv_seq_store(struct kv_seq *s, uint32_t group, uint32_t layer, uint32_t pos, uint32_t n,
		 const float *k, const float *v)
{
	const struct kv_store rows = {
		.group = group, .layer = layer, .pos = pos, .n = n, .k = k, .v = v};

	return kv_seq_store_rows(s, &rows);
}

/* ---- fork ---------------------------------------------------------------------------------- */

/* Pages whose tokens are all committed are shared. Rows of the others may still be written in both
 * sequences, so the child gets its own. */
static void share_pages(struct kv_seq *child, struct kv_seq *s, uint32_t nr)
{
	uint32_t g, i;

	for (g = 0; g < s->nr_groups; g++) {
		struct seq_group *to = &child->group[g], *from = &s->group[g];

		for (i = 0; i < nr; i++) {
			to->ids[i] = from->ids[i];
			to->pte[i] = from->pte[i];
			to->held[i] = from->held[i];
			if (to->held[i])
				to->held[i]->refs++;
		}
		to->head = from->head;
	}
}

static int copy_pages(struct kv_seq *child, const struct kv_seq *s, uint32_t first)
{
	struct seq_range want[KV_MAX_GROUPS];
	uint32_t g, i, rows;
	int err;

	for (g = 0; g < s->nr_groups; g++) {
		uint32_t from = s->group[g].head / s->page_tokens;

		from = from > first ? from : first;
		want[g] = (struct seq_range){from, s->nr_pages - from};
	}
	err = seq_pages_grant(child, want);
	if (err)
		return err;
	for (g = 0; g < s->nr_groups; g++) {
		for (i = want[g].first; i < s->nr_pages; i++) {
			rows = s->len - i * s->page_tokens;
			rows = rows < s->page_tokens ? rows : s->page_tokens;
			layout_copy_tokens(seq_layout(s, g), child->group[g].pte[i],
					   s->group[g].pte[i], rows);
		}
	}
	return 0;
}

static int fork_into(struct kv_seq *child, struct kv_seq *s)
{
	uint32_t shared = s->committed == s->len ? s->nr_pages : s->committed / s->page_tokens;
	int err = seq_pages_reserve(child, s->nr_pages, s->len);

	if (!err)
		err = seq_lease_dup(s, s->lease_pages, &child->lease);
	if (err)
		return err;
	child->lease_pages = s->lease_pages;
	err = copy_pages(child, s, shared);
	if (err) {
		seq_lease_set(child, 0, 0);
		return err;
	}
	share_pages(child, s, shared);
	memcpy(child->tokens, s->tokens, s->len * sizeof(*s->tokens));
	child->nr_pages = s->nr_pages;
	child->len = s->len;
	child->committed = s->committed;
	return 0;
}

int kv_seq_fork(struct kv_seq *s, struct kv_seq **out)
{
	struct kv_seq *child;
	int err = seq_enter(s);

	if (err)
		return err;
	child = new_seq(s->cache, s->keys, s->nr_keys);
	err = child ? 0 : -ENOMEM;
	if (!err && s->len)
		err = fork_into(child, s);
	seq_leave(s);
	if (err) {
		if (child)
			free_seq(child);
		return err;
	}
	link_seq(child);
	*out = child;
	return 0;
}

/* ---- truncate, drop head ------------------------------------------------------------------- */

/* The next token must still see its whole window, and the page it may land in must be there. */
static int check_heads(const struct kv_seq *s, uint32_t len)
{
	uint32_t g;

	for (g = 0; len && g < s->nr_groups; g++) {
		uint32_t window = s->cache->group[g].window_tokens, head = s->group[g].head;

		if (head && (len < head || (uint64_t)len + 1 < (uint64_t)head + window))
			return err_set(
				-EINVAL,
				"cannot truncate to %u: group %u has dropped the tokens before "
				"%u and a window of %u would reach them; truncate to 0 instead",
				len, g, head, window);
	}
	return 0;
}

static int truncate_to(struct kv_seq *s, uint32_t len)
{
	uint32_t pages = seq_pages_of(s, len), lease, g;
	int err;

	if (len > s->len)
		return err_set(-EINVAL, "cannot truncate to %u: the sequence has %u tokens", len,
			       s->len);
	if (len == s->len)
		return 0;
	err = check_heads(s, len);
	if (err)
		return err;
	if (pages < s->lease_pages) {
		err = seq_lease_dup(s, pages, &lease);
		if (err)
			return err;
		seq_lease_set(s, lease, pages);
	}
	seq_pages_cut(s, pages);
	s->len = len;
	s->committed = s->committed < len ? s->committed : len;
	for (g = 0; !len && g < s->nr_groups; g++)
		s->group[g].head = 0;
	return 0;
}

int kv_seq_truncate(struct kv_seq *s, uint32_t len)
{
	int err = seq_enter(s);

	if (err)
		return err;
	err = truncate_to(s, len);
	seq_leave(s);
	return err;
}

static int drop_head(struct kv_seq *s, uint32_t group, uint32_t upto)
{
	uint32_t pages = upto / s->page_tokens, leased;
	int err = check_group(s, group);

	if (err)
		return err;
	if (s->cache->group[group].kind != KV_GROUP_WINDOW)
		return err_set(-EINVAL, "group %u is no window group: all its tokens stay", group);
	if (upto > s->len)
		return err_set(-EINVAL, "cannot drop before %u: the sequence has %u tokens", upto,
			       s->len);
	if (pages <= s->group[group].head / s->page_tokens)
		return 0;
	leased = pages < s->lease_pages ? pages : s->lease_pages;
	if (leased) {
		err = kv_lease_drop_head(s->cache, s->lease, group, leased);
		if (err)
			return err;
	}
	seq_pages_put(s, group, 0, pages);
	s->group[group].head = pages * s->page_tokens;
	return 0;
}

int kv_seq_drop_head(struct kv_seq *s, uint32_t group, uint32_t upto)
{
	int err = seq_enter(s);

	if (err)
		return err;
	err = drop_head(s, group, upto);
	seq_leave(s);
	return err;
}

/* ---- what it is ---------------------------------------------------------------------------- */

uint32_t kv_seq_len(const struct kv_seq *s)
{
	return s->len;
}

uint32_t kv_seq_committed(const struct kv_seq *s)
{
	return s->committed;
}

const uint32_t *kv_seq_tokens(const struct kv_seq *s)
{
	return s->tokens;
}

void kv_seq_pages(const struct kv_seq *s, uint32_t *held, uint32_t *leased)
{
	uint32_t h = 0, l = 0, g, i;

	for (g = 0; g < s->nr_groups; g++) {
		for (i = 0; i < s->nr_pages; i++) {
			h += s->group[g].held[i] != NULL;
			l += seq_pages_leased(s, g, i);
		}
	}
	if (held)
		*held = h;
	if (leased)
		*leased = l;
}

const uint64_t *kv_seq_pte(const struct kv_seq *s, uint32_t group, uint32_t *nr)
{
	bool ok = group < s->nr_groups;

	if (nr)
		*nr = ok ? s->nr_pages : 0;
	return ok ? s->group[group].pte : NULL;
}

const uint64_t *kv_seq_page_ids(const struct kv_seq *s, uint32_t group, uint32_t *nr)
{
	bool ok = group < s->nr_groups;

	if (nr)
		*nr = ok ? s->nr_pages : 0;
	return ok ? s->group[group].ids : NULL;
}

uint64_t kv_seq_pte_version(const struct kv_seq *s)
{
	return s->version;
}
