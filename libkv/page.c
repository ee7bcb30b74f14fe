// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "call.h"
#include "key.h"

/* Room that a long call leaves for those made while it waits. */
#define NESTED_BYTES 65536u

/* ---- grants -------------------------------------------------------------------------------- */

static int alloc_once(struct kv_cache *c, uint32_t group, uint32_t n, uint64_t *ids,
		      uint32_t wait_ms)
{
	uint64_t bytes = (uint64_t)n * sizeof(*ids);
	struct call call;
	int rc = call_begin(c->kv, &call, KV_OP_ALLOC, 0, bytes);

	if (rc)
		return rc;
	call.sqe.cache = c->id;
	call.sqe.group = (uint16_t)group;
	call.sqe.nr = n;
	call.sqe.arg = wait_ms;
	rc = call_run(&call);
	if (!rc && call.cqe.out_bytes != bytes)
		rc = kv_mark_dead(c->kv, "kvd granted another number of pages than asked for");
	if (!rc)
		memcpy(ids, call.out, bytes);
	call_end(&call);
	return rc;
}

/* What the pool may take by itself (cached pages nobody leases, empty extents) takes a moment:
 * readers unmap it, the device frees it. That is no wait for anybody's permission, so it is had
 * without wait_ms too. */
#define RECLAIM_MS 50u

/* Refused: what this engine hoards may be the room that is missing, or others' cached pages. */
static int alloc_pages(struct kv_cache *c, uint32_t group, uint32_t n, uint64_t *ids)
{
	struct kv *kv = c->kv;
	int rc = alloc_once(c, group, n, ids, 0);

	if (rc != -ENOMEM && rc != -EDQUOT)
		return rc;
	if (kv->vacating)
		return alloc_once(c, group, n, ids, RECLAIM_MS);
	if (kv->serving)
		return rc;
	if (magazine_flush_all(kv) < 0 && kv->dead)
		return -EPIPE;
	if ((kv->ops->pending(kv) || kv->pressure.due) && event_serve(kv, EVENT_CALLBACK) &&
	    kv->dead)
		return -EPIPE;
	return alloc_once(c, group, n, ids, kv->wait_ms > RECLAIM_MS ? kv->wait_ms : RECLAIM_MS);
}

static int send_free(struct kv_cache *c, uint32_t group, uint32_t n, const uint64_t *ids)
{
	uint64_t bytes = (uint64_t)n * sizeof(*ids);
	struct call call;
	int rc = call_begin(c->kv, &call, KV_OP_FREE, bytes, 0);

	if (rc)
		return rc;
	memcpy(call.in, ids, bytes);
	call.sqe.nr = n;
	rc = call_run(&call);
	call_end(&call);
	if (!rc)
		c->kv->given_bytes += n * c->charge_bytes[group];
	return rc;
}

/* Pages that cannot be kept go back; the reason why stays the error. */
static int give_back(struct kv_cache *c, uint32_t group, uint32_t n, const uint64_t *ids, int why)
{
	char text[ERR_TEXT_BYTES];

	strcpy(text, kv_error());
	if (!c->kv->dead && send_free(c, group, n, ids) && c->kv->dead)
		return -EPIPE;
	return err_set(why, "%s", text);
}

int page_alloc_batch(struct kv_cache *c, uint32_t group, uint32_t n, uint64_t *ids, bool wait)
{
	int rc = wait ? alloc_pages(c, group, n, ids) : alloc_once(c, group, n, ids, 0);

	if (rc)
		return rc;
	rc = map_hold(c, group, ids, n);
	return rc ? give_back(c, group, n, ids, rc) : 0;
}

int page_free_batch(struct kv_cache *c, uint32_t group, uint32_t n, const uint64_t *ids)
{
	int rc = send_free(c, group, n, ids);

	if (!rc)
		map_unhold(c->kv, ids, n);
	return rc;
}

static int bad_group(const struct kv_cache *c, uint32_t group)
{
	return err_set(-EINVAL, "group %u: cache %u has %u groups", group, c->id, c->nr_groups);
}

int kv_page_alloc(struct kv_cache *c, uint32_t group, uint64_t *id)
{
	struct magazine *m;

	if (__builtin_expect(group >= c->nr_groups, 0))
		return bad_group(c, group);
	m = c->mag[group];
	if (__builtin_expect(m->nr != 0, 1)) {
		*id = m->ids[--m->nr];
		c->kv->map.ext[map_id_extent(*id)].page[map_id_slot(*id)] =
			map_word(*id, MAP_USED);
		return 0;
	}
	return magazine_refill(c, group, id);
}

int kv_page_free(struct kv_cache *c, uint32_t group, uint64_t id)
{
	struct magazine *m;
	uint32_t *page;

	if (__builtin_expect(group >= c->nr_groups, 0))
		return bad_group(c, group);
	m = c->mag[group];
	page = map_page(&c->kv->map, c, group, id);
	if (__builtin_expect(m->nr < m->cap && page && *page == map_word(id, MAP_USED) &&
				     !c->kv->map.ext[map_id_extent(id)].leaving,
			     1)) {
		*page = map_word(id, MAP_IDLE);
		m->ids[m->nr++] = id;
		return 0;
	}
	if (!id)
		return err_set(-EINVAL, "page id 0 names no page");
	return magazine_spill(c, group, id);
}

int kv_pages_alloc(struct kv_cache *c, uint32_t group, uint32_t n, uint64_t *ids)
{
	uint32_t done = 0, step;
	int rc = 0;

	if (group >= c->nr_groups)
		return bad_group(c, group);
	while (!rc && done < n) {
		step = n - done < c->kv->batch_pages ? n - done : c->kv->batch_pages;
		rc = page_alloc_batch(c, group, step, ids + done, true);
		if (!rc)
			done += step;
	}
	if (rc && done) {
		char text[ERR_TEXT_BYTES];

		strcpy(text, kv_error());
		if (!c->kv->dead)
			kv_pages_free(c, group, done, ids);
		err_set(rc, "%s", text);
	}
	return rc;
}

int kv_pages_alloc_wait(struct kv_cache *c, uint32_t group, uint32_t n, uint64_t *ids,
			uint32_t wait_ms)
{
	uint32_t usual = c->kv->wait_ms;
	int rc;

	c->kv->wait_ms = wait_ms;
	rc = kv_pages_alloc(c, group, n, ids);
	c->kv->wait_ms = usual;
	return rc;
}

int kv_pages_free(struct kv_cache *c, uint32_t group, uint32_t n, const uint64_t *ids)
{
	uint32_t step, i;
	int rc = call_check(c->kv);

	if (rc)
		return rc;
	if (group >= c->nr_groups)
		return bad_group(c, group);
	for (i = 0; i < n; i++)
		if (!ids[i])
			return err_set(-EINVAL, "page id 0 names no page");
	if (c->kv->is_member) /* the pool says why not */
		return n ? send_free(c, group, 1, ids) : 0;
	rc = map_take(c, group, ids, n);
	for (; !rc && n; n -= step, ids += step) {
		step = n < c->kv->batch_pages ? n : c->kv->batch_pages;
		rc = page_free_batch(c, group, step, ids);
		if (rc)
			map_give(c->kv, ids, n);
	}
	return rc;
}

/* ---- addresses ----------------------------------------------------------------------------- */

int kv_page_map(struct kv_cache *c, uint32_t group, uint64_t id, void **addr)
{
	int rc;

	if (group >= c->nr_groups)
		return bad_group(c, group);
	if (!id)
		return err_set(-EINVAL, "page id 0 names no page");
	rc = call_check(c->kv);
	return rc ? rc : map_addr(c, group, id, addr);
}

int kv_pages_pte(struct kv_cache *c, uint32_t group, uint32_t n, const uint64_t *ids, uint64_t *pte)
{
	int rc = call_check(c->kv);
	void *addr;
	uint32_t i;

	if (rc)
		return rc;
	if (group >= c->nr_groups)
		return bad_group(c, group);
	for (i = 0; i < n; i++) {
		addr = NULL;
		rc = ids[i] ? map_addr(c, group, ids[i], &addr) : 0;
		if (rc)
			return rc;
		pte[i] = (uint64_t)(uintptr_t)addr;
	}
	return 0;
}

/* ---- lookup and commit --------------------------------------------------------------------- */

static uint64_t round8(uint64_t n)
{
	return (n + 7) & ~7ull;
}

static int match_room(struct kv_cache *c, uint64_t nr_ids)
{
	uint64_t *ids;

	if (nr_ids <= c->match_cap)
		return 0;
	ids = realloc(c->match_ids, nr_ids * sizeof(*ids));
	if (!ids)
		return err_set(-ENOMEM, "no memory for %llu page ids", (unsigned long long)nr_ids);
	c->match_ids = ids;
	c->match_cap = nr_ids;
	return 0;
}

/* Adopted pages are this engine's. Without memory to remember them they go back, and the match is
 * one without a tail: a lookup that was answered does not fail. */
static int hold_tail(struct kv_cache *c, struct kv_match *m)
{
	uint32_t g, i;
	int rc = 0;

	for (g = 0; !rc && g < c->nr_groups; g++)
		rc = map_hold(c, g, &m->tail_pages[g], 1);
	if (!rc)
		return 0;
	for (i = 0; !c->kv->dead && i < c->nr_groups; i++) {
		if (!m->tail_pages[i])
			continue;
		map_unhold(c->kv, &m->tail_pages[i], 1);
		send_free(c, i, 1, &m->tail_pages[i]);
	}
	if (c->kv->dead)
		return -EPIPE;
	m->tail_tokens = 0;
	m->tail_adopted = false;
	memset(m->tail_pages, 0, sizeof(m->tail_pages));
	return 0;
}

/* Answer of LOOKUP and RESUME: struct kv_match_out, then ids by group. */
static int match_read(struct kv_cache *c, const struct call *call, struct kv_match *m)
{
	const struct kv_match_out *o = call->out;
	uint64_t nr_ids = (uint64_t)o->nr_pages * c->nr_groups;
	uint32_t g;

	if (call->cqe.out_bytes < sizeof(*o) || o->nr_groups != c->nr_groups ||
	    call->cqe.out_bytes != sizeof(*o) + nr_ids * sizeof(uint64_t) || nr_ids > c->match_cap)
		return kv_mark_dead(c->kv, "kvd answered a lookup with the wrong size");
	if (nr_ids)
		memcpy(c->match_ids, o + 1, nr_ids * sizeof(uint64_t));
	*m = (struct kv_match){
		.lease = o->lease,
		.nr_pages = o->nr_pages,
		.tail_tokens = o->tail_tokens,
		.tail_lease = o->tail_lease,
		.tail_adopted = o->tail_adopted != 0,
	};
	for (g = 0; g < c->nr_groups; g++) {
		m->pages[g] = c->match_ids + (uint64_t)g * o->nr_pages;
		m->tail_pages[g] = o->tail_pages[g];
	}
	return m->tail_adopted ? hold_tail(c, m) : 0;
}

/* The keys of pages [first, first + nr) go behind the tokens; how many. */
static uint32_t put_keys(struct kv_page_key *out, const struct kv_page_key *keys, uint32_t nr_keys,
			 uint32_t first, uint32_t nr)
{
	uint32_t i, n = 0;

	for (i = 0; i < nr_keys; i++)
		if (keys[i].page >= first && keys[i].page - first < nr)
			out[n++] = keys[i];
	return n;
}

/* All media keys may stand on pages of their own; LoRA, salt and others fold into the first. */
static int fold_keys(const struct kv_cache *c, const struct kv_key *keys, uint32_t nr_keys,
		     struct kv_page_key **out, uint32_t *nr)
{
	int rc;

	*out = NULL;
	*nr = 0;
	if (!nr_keys)
		return 0;
	*out = calloc(nr_keys + 1, sizeof(**out));
	if (!*out)
		return err_set(-ENOMEM, "no memory for %u keys", nr_keys);
	rc = key_build(keys, nr_keys, c->page_tokens, *out, nr_keys + 1, nr);
	if (rc) {
		free(*out);
		*out = NULL;
	}
	return rc;
}

/* A prompt longer than one request can carry is asked for as far as it goes. */
static uint32_t lookup_tokens(const struct kv_cache *c, uint32_t nr_tokens, uint32_t nr_keys)
{
	uint64_t fixed = sizeof(struct kv_lookup_in) + sizeof(struct kv_match_out) + 64 +
			 (uint64_t)nr_keys * sizeof(struct kv_page_key);
	uint64_t room = call_room(c->kv), pages;
	uint64_t page = 4ull * c->page_tokens + 8ull * c->nr_groups;

	fixed += room > 2 * NESTED_BYTES ? NESTED_BYTES : 0;
	pages = room > fixed ? (room - fixed) / page : 0;
	if ((uint64_t)nr_tokens / c->page_tokens < pages)
		return nr_tokens;
	return (uint32_t)(pages * c->page_tokens);
}

static int lookup(struct kv_cache *c, const uint32_t *tokens, uint32_t nr_tokens,
		  const struct kv_page_key *keys, uint32_t nr_keys, bool adopt, struct kv_match *m)
{
	uint32_t nr_pages = (uint32_t)(((uint64_t)nr_tokens + c->page_tokens - 1) / c->page_tokens);
	uint64_t tokens_bytes = round8(4ull * nr_tokens);
	struct kv_page_key *out;
	struct kv_lookup_in *in;
	struct call call;
	uint64_t most = (uint64_t)c->nr_groups * (nr_tokens / c->page_tokens);
	int rc = match_room(c, most);

	if (!rc)
		rc = call_begin(c->kv, &call, KV_OP_LOOKUP,
				sizeof(*in) + tokens_bytes + nr_keys * sizeof(*keys),
				sizeof(struct kv_match_out) + 8 * most);
	if (rc)
		return rc;
	in = call.in;
	memset(in, 0, sizeof(*in) + tokens_bytes);
	if (nr_tokens)
		memcpy(in + 1, tokens, 4ull * nr_tokens);
	out = (void *)((char *)(in + 1) + tokens_bytes);
	in->nr_tokens = nr_tokens;
	in->nr_keys = put_keys(out, keys, nr_keys, 0, nr_pages);
	call.sqe.in_bytes = (uint32_t)(sizeof(*in) + tokens_bytes + in->nr_keys * sizeof(*keys));
	call.sqe.cache = c->id;
	call.sqe.flags = adopt ? KV_SQE_ADOPT : 0;
	rc = call_run(&call);
	if (!rc)
		rc = match_read(c, &call, m);
	call_end(&call);
	return rc;
}

int kv_lookup(struct kv_cache *c, const uint32_t *tokens, uint32_t nr_tokens,
	      const struct kv_key *keys, uint32_t nr_keys, bool adopt, struct kv_match *m)
{
	struct kv_page_key *folded;
	uint32_t nr_folded;
	int rc = fold_keys(c, keys, nr_keys, &folded, &nr_folded);

	if (rc)
		return rc;
	rc = lookup(c, tokens, lookup_tokens(c, nr_tokens, nr_folded), folded, nr_folded, adopt, m);
	free(folded);
	return rc;
}

struct commit {
	struct kv_cache *cache;
	uint32_t first_page, nr_pages, nr_tokens, nr_keys;
	const uint32_t *tokens;
	const uint64_t *const *pages;
	const struct kv_page_key *keys;
	uint64_t *const *chain;
	uint32_t at; /* pages of the arrays that earlier requests took */
};

static void commit_fill(const struct commit *m, struct call *call)
{
	struct kv_commit_in *in = call->in;
	uint32_t *tokens = (void *)(in + 1);
	uint64_t tokens_bytes = round8(4ull * m->nr_tokens);
	uint64_t *ids = (void *)((char *)tokens + tokens_bytes);
	struct kv_page_key *keys = (void *)(ids + (uint64_t)m->nr_pages * m->cache->nr_groups);
	uint32_t g;

	memset(in, 0, sizeof(*in) + tokens_bytes);
	memcpy(tokens, m->tokens + (uint64_t)m->at * m->cache->page_tokens, 4ull * m->nr_tokens);
	for (g = 0; g < m->cache->nr_groups; g++)
		memcpy(ids + (uint64_t)g * m->nr_pages, m->pages[g] + m->at, 8ull * m->nr_pages);
	in->nr_tokens = m->nr_tokens;
	in->nr_pages = m->nr_pages;
	in->nr_groups = m->cache->nr_groups;
	in->nr_keys = put_keys(keys, m->keys, m->nr_keys, m->first_page + m->at, m->nr_pages);
	call->sqe.in_bytes = (uint32_t)((char *)(keys + in->nr_keys) - (char *)in);
}

/* Pages from at on are the engine's again. */
static void commit_give(const struct commit *m, uint32_t nr_pages)
{
	uint32_t g;

	for (g = 0; !m->cache->kv->is_member && g < m->cache->nr_groups; g++)
		map_give(m->cache->kv, m->pages[g] + m->at, nr_pages - m->at);
}

/* All of them must be held, and nobody else gives them away while the requests run. A member holds
 * none; the pool says why it cannot commit. */
static int commit_take(const struct commit *m, uint32_t nr_pages)
{
	uint32_t g;
	int rc = 0;

	for (g = 0; !m->cache->kv->is_member && g < m->cache->nr_groups; g++) {
		rc = map_take(m->cache, g, m->pages[g], nr_pages);
		if (rc)
			break;
	}
	while (rc && g-- > 0)
		map_give(m->cache->kv, m->pages[g], nr_pages);
	return rc;
}

/* A page whose id comes back is cached now; any other is still held. */
static void commit_settle(const struct commit *m, const uint64_t *ids)
{
	uint32_t g, i;

	for (g = 0; g < m->cache->nr_groups; g++) {
		const uint64_t *chain = ids + (uint64_t)g * m->nr_pages;

		for (i = 0; i < m->nr_pages; i++)
			if (chain[i] == m->pages[g][m->at + i])
				map_unhold(m->cache->kv, &chain[i], 1);
		map_give(m->cache->kv, m->pages[g] + m->at, m->nr_pages);
		if (m->chain && m->chain[g])
			memcpy(m->chain[g] + m->at, chain, 8ull * m->nr_pages);
	}
}

static int commit_once(const struct commit *m, uint32_t *lease, bool partial)
{
	uint64_t ids_bytes = 8ull * m->nr_pages * m->cache->nr_groups;
	struct call call;
	int rc = call_begin(m->cache->kv, &call, KV_OP_COMMIT,
			    sizeof(struct kv_commit_in) + round8(4ull * m->nr_tokens) + ids_bytes +
				    m->nr_keys * sizeof(struct kv_page_key),
			    ids_bytes);

	if (rc)
		return rc;
	commit_fill(m, &call);
	call.sqe.cache = m->cache->id;
	call.sqe.id = *lease;
	call.sqe.flags = partial ? KV_SQE_PARTIAL : 0;
	rc = call_run(&call);
	if (!rc && call.cqe.out_bytes != ids_bytes)
		rc = kv_mark_dead(m->cache->kv, "kvd answered a commit with the wrong size");
	if (!rc) {
		*lease = call.cqe.id;
		commit_settle(m, call.out);
	}
	call_end(&call);
	return rc;
}

static int commit_check(const struct kv_cache *c, uint32_t nr_tokens, uint32_t nr_pages,
			const uint64_t *const *pages, bool partial)
{
	uint64_t full = (uint64_t)nr_pages * c->page_tokens;
	uint32_t g;

	if (!nr_pages || nr_tokens > full || nr_tokens + (uint64_t)c->page_tokens <= full)
		return err_set(-EINVAL, "commit: %u tokens do not fill %u pages of %u tokens",
			       nr_tokens, nr_pages, c->page_tokens);
	if (!partial && nr_tokens != full)
		return err_set(-EINVAL,
			       "commit: the last page is partial; only its writer that gives "
			       "it up may publish it (partial)");
	for (g = 0; g < c->nr_groups; g++)
		if (!pages[g])
			return err_set(-EINVAL, "commit: no page array for group %u", g);
	return 0;
}

/* Pages that one request may carry: mm's bound over all groups, and what the data area holds. */
static uint32_t commit_step(const struct kv_cache *c, uint32_t nr_keys)
{
	uint64_t room = call_room(c->kv), step = c->kv->batch_pages / c->nr_groups;
	uint64_t fixed = (uint64_t)nr_keys * sizeof(struct kv_page_key) + 64;
	uint64_t page = 4ull * c->page_tokens + 16ull * c->nr_groups;

	fixed += room > 2 * NESTED_BYTES ? NESTED_BYTES : 0;
	if (room > fixed && step > (room - fixed) / page)
		step = (room - fixed) / page;
	return step ? (uint32_t)step : 1;
}

int kv_commit(struct kv_cache *c, uint32_t *lease, uint32_t first_page, const uint32_t *tokens,
	      uint32_t nr_tokens, uint32_t nr_pages, const uint64_t *const *pages, bool partial,
	      const struct kv_key *keys, uint32_t nr_keys, uint64_t *const *chain)
{
	struct commit m = {
		.cache = c,
		.first_page = first_page,
		.tokens = tokens,
		.pages = pages,
		.chain = chain,
	};
	struct kv_page_key *folded;
	uint32_t step, g;
	int rc = commit_check(c, nr_tokens, nr_pages, pages, partial);

	if (!rc)
		rc = fold_keys(c, keys, nr_keys, &folded, &m.nr_keys);
	if (rc)
		return rc;
	m.keys = folded;
	rc = commit_take(&m, nr_pages);
	for (g = 0; !rc && chain && g < c->nr_groups; g++)
		if (chain[g])
			memset(chain[g], 0, 8ull * nr_pages);
	step = commit_step(c, m.nr_keys);
	while (!rc && m.at < nr_pages) {
		bool last = nr_pages - m.at <= step;

		m.nr_pages = last ? nr_pages - m.at : step;
		m.nr_tokens = last ? nr_tokens - m.at * c->page_tokens : step * c->page_tokens;
		rc = commit_once(&m, lease, partial && last);
		if (rc)
			commit_give(&m, nr_pages);
		m.at += m.nr_pages;
	}
	free(folded);
	return rc;
}

/* ---- leases and parks ---------------------------------------------------------------------- */

static int lease_op(struct kv_cache *c, const struct kv_sqe *sqe, uint32_t *out)
{
	struct kv_cqe cqe;
	int rc = call_plain(c->kv, sqe, &cqe);

	if (!rc && out)
		*out = cqe.id;
	return rc;
}

int kv_lease_dup(struct kv_cache *c, uint32_t lease, uint32_t depth_pages, uint32_t *out)
{
	const struct kv_sqe sqe = { .op = KV_OP_LEASE_DUP, .id = lease, .nr = depth_pages };

	return lease_op(c, &sqe, out);
}

int kv_unlease(struct kv_cache *c, uint32_t n, const uint32_t *leases)
{
	struct call call;
	uint32_t step;
	int rc = 0;

	for (; !rc && n; n -= step, leases += step) {
		step = n < c->kv->batch_pages ? n : c->kv->batch_pages;
		rc = call_begin(c->kv, &call, KV_OP_UNLEASE, 4ull * step, 0);
		if (rc)
			return rc;
		memcpy(call.in, leases, 4ull * step);
		call.sqe.nr = step;
		rc = call_run(&call);
		call_end(&call);
	}
	return rc;
}

int kv_lease_drop_head(struct kv_cache *c, uint32_t lease, uint32_t group, uint32_t depth_pages)
{
	const struct kv_sqe sqe = {
		.op = KV_OP_DROP_HEAD, .id = lease, .nr = depth_pages, .group = (uint16_t)group
	};

	if (group >= c->nr_groups)
		return bad_group(c, group);
	return lease_op(c, &sqe, NULL);
}

int kv_park(struct kv_cache *c, uint32_t lease, uint32_t *park)
{
	const struct kv_sqe sqe = { .op = KV_OP_PARK, .id = lease };

	return lease_op(c, &sqe, park);
}

int kv_unpark(struct kv_cache *c, uint32_t park)
{
	const struct kv_sqe sqe = { .op = KV_OP_UNPARK, .id = park };

	return lease_op(c, &sqe, NULL);
}

/* How long the parked chain is, only mm knows: room for as many ids as fit. */
int kv_resume(struct kv_cache *c, uint32_t park, bool adopt, struct kv_match *m)
{
	uint64_t room = call_room(c->kv);
	struct call call;
	int rc;

	if (room > 2 * NESTED_BYTES)
		room -= NESTED_BYTES;
	rc = match_room(c, room / 8);
	if (!rc)
		rc = call_begin(c->kv, &call, KV_OP_RESUME, 0, room & ~7ull);
	if (rc)
		return rc;
	call.sqe.id = park;
	call.sqe.flags = adopt ? KV_SQE_ADOPT : 0;
	rc = call_run(&call);
	if (!rc)
		rc = match_read(c, &call, m);
	call_end(&call);
	return rc;
}
