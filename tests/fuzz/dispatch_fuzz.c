// SPDX-License-Identifier: Apache-2.0
/* dispatch_fuzz - hostile entries and data areas through dispatch, exec and mm
 *
 * Two engines of one tenant, one of another and a member of the first send what the input says: raw
 * entries, or well-formed ones whose ids come from anybody's earlier replies, then damaged by a
 * byte or two. A model on the side keeps who was given what, and dies when an op succeeds on
 * something that the asking engine does not own, when a frame is granted twice, or when a page
 * crosses tenants. mm_check runs every few steps.
 *
 * Input: a byte of settings, then a program: one command byte and its operands after another; every
 * byte string is one. dispatch_input.h says what recorded traffic looks like.
 * Corpus: tests/fuzz/corpus/dispatch: traffic-*, which `make fuzz-corpus` records of libkv at work
 *	(record.c); short programs written by hand, under a name; and some that libFuzzer found. To
 *	renew those: run the libFuzzer build on it for a while, then
 *	dispatch_fuzz -set_cover_merge=1 NEW_DIR OLD_DIR and keep the longest few.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "srv/dispatch.h"
#include "../unit/srv/fake_dev.h"
#include "dispatch_input.h"
#include "dispatch_model.h"

#define SLOTS		12
#define NR_CLIENTS	4
#define MAX_STEPS	512
#define CHECK_EVERY	8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

void mm_panic(const char *what, const char *file, int line)
{
	fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, what);
	abort();
}

/* ---- the world ------------------------------------------------------------------------------ */

struct slot {
	bool used;
	uint32_t client, engine;
	struct kv_sqe sqe;
	struct dispatch_pending pending;
	uint8_t in[DISPATCH_DATA];
};

struct world {
	struct exec *x;
	struct fake_dev dev;
	struct dispatch_client client[NR_CLIENTS];
	uint32_t tenant[NR_CLIENTS];
	struct slot slot[SLOTS];
	struct mm_reply raw_reply;
	bool raw_done;
	uint64_t now_ns;
	struct model *model;
	/* ids to make requests of: whatever any reply named, live or not */
	uint64_t pages[MAX_IDS];
	uint32_t ids[MAX_IDS];
	uint32_t nr_pages, nr_ids;
	const uint8_t *in, *end;
};

static void remember_id(struct world *w, uint32_t id)
{
	if (id)
		w->ids[w->nr_ids++ % MAX_IDS] = id;
}

static void remember_page(struct world *w, uint64_t id)
{
	if (id)
		w->pages[w->nr_pages++ % MAX_IDS] = id;
}

/* A page that a reply names as content: published, and of the asker's tenant. */
static void see_cached(struct world *w, const struct slot *s, uint64_t id)
{
	const struct page *p = page_of(w->model, id, false);

	if (!p || p->id != id)
		die("a reply names a page that was never granted");
	if (p->state != CACHED)
		die("a reply names a page that is not published");
	if (p->tenant != w->tenant[s->client])
		die("a page crossed tenants");
	remember_page(w, id);
}

/* A published page taken over: the frame of it, under a new id. */
static void adopt_page(struct world *w, const struct slot *s, uint64_t id)
{
	struct page *p = page_of(w->model, id, false);

	if (!p || p->id == id || p->state != CACHED || p->tenant != w->tenant[s->client])
		die("a page was adopted that was not the tenant's content");
	p->id = id;
	p->state = HELD;
	p->engine = s->engine;
	map_check_grant(w->model, mm_page_extent(id), s->engine, p->tenant);
	remember_page(w, id);
}

static void grant_page(struct world *w, const struct slot *s, uint64_t id)
{
	struct page *p = page_of(w->model, id, true);

	if (!mm_page_gen(id))
		die("a page id without generation");
	if (p->state == HELD)
		die("a frame was granted twice");
	if (p->id == id)
		die("a page id was granted twice");
	p->id = id;
	p->state = HELD;
	p->tenant = w->tenant[s->client];
	p->engine = s->engine;
	p->cache = s->sqe.cache;
	p->group = s->sqe.group;
	map_check_grant(w->model, mm_page_extent(id), s->engine, p->tenant);
	remember_page(w, id);
}

static struct page *page_held(struct world *w, const struct slot *s, uint64_t id)
{
	struct page *p = page_of(w->model, id, false);

	if (!p || p->id != id || p->state != HELD || p->engine != s->engine)
		die("an op succeeded on a page that the engine does not hold");
	return p;
}

static void need_owned(struct owned_set *set, uint32_t id, const struct slot *s, const char *what)
{
	if (!owned_find(set, id, s->engine))
		die(what);
}

static uint64_t u64_at(const uint8_t *at, uint64_t i)
{
	uint64_t v;

	memcpy(&v, at + 8 * i, sizeof(v));
	return v;
}

/* ---- what a success means ------------------------------------------------------------------ */

static void saw_open(struct world *w, const struct slot *s, uint32_t cache)
{
	for (uint32_t i = 0; i < w->model->caches.nr; i++) {
		for (uint32_t c = 0; c < NR_CLIENTS; c++) {
			if (w->model->caches.at[i].id == cache &&
			    w->client[c].engine == w->model->caches.at[i].engine &&
			    w->tenant[c] != w->tenant[s->client])
				die("a cache is open in two tenants");
		}
	}
	if (!owned_find(&w->model->caches, cache, s->engine))
		owned_add(&w->model->caches, cache, s->engine);
	remember_id(w, cache);
}

static void saw_match(struct world *w, const struct slot *s, const struct kv_cqe *cqe,
		      const uint8_t *out)
{
	struct kv_match_out m;

	memcpy(&m, out, sizeof(m));
	if (m.lease != cqe->id || m.nr_pages != cqe->nr || m.nr_groups > KV_MAX_GROUPS ||
	    cqe->out_bytes != sizeof(m) + 8ull * m.nr_pages * m.nr_groups)
		die("a match disagrees with its size");
	for (uint64_t i = 0; i < (uint64_t)m.nr_pages * m.nr_groups; i++) {
		if (u64_at(out + sizeof(m), i))
			see_cached(w, s, u64_at(out + sizeof(m), i));
	}
	for (uint32_t g = 0; g < KV_MAX_GROUPS; g++) {
		if (!m.tail_pages[g])
			continue;
		if (!m.tail_tokens || g >= m.nr_groups)
			die("a tail page without a tail");
		if (m.tail_adopted)
			adopt_page(w, s, m.tail_pages[g]);
		else
			see_cached(w, s, m.tail_pages[g]);
	}
	granted(&w->model->leases, m.lease, s->engine);
	granted(&w->model->leases, m.tail_lease, s->engine);
	remember_id(w, m.lease);
	remember_id(w, m.tail_lease);
}

static void saw_commit(struct world *w, const struct slot *s, const struct kv_cqe *cqe,
		       const uint8_t *out)
{
	struct kv_commit_in in;
	const uint8_t *given;
	uint64_t nr;

	memcpy(&in, s->in, sizeof(in));
	given = s->in + sizeof(in) + ((in.nr_tokens * 4ull + 7) & ~7ull);
	nr = (uint64_t)in.nr_pages * in.nr_groups;
	if (cqe->nr != in.nr_pages || cqe->out_bytes != 8 * nr)
		die("a commit answers for other pages than it was given");
	for (uint64_t i = 0; i < nr; i++) {
		if (u64_at(given, i))
			page_held(w, s, u64_at(given, i));
	}
	for (uint64_t i = 0; i < nr; i++) {
		if (u64_at(given, i) && u64_at(given, i) == u64_at(out, i))
			page_held(w, s, u64_at(given, i))->state = CACHED;
		else if (u64_at(out, i))
			see_cached(w, s, u64_at(out, i));
	}
	if (s->sqe.id)
		owned_remove(&w->model->leases, s->sqe.id, s->engine,
			     "a commit moved another's lease");
	granted(&w->model->leases, cqe->id, s->engine);
	remember_id(w, cqe->id);
}

static void saw_arrays(struct world *w, const struct slot *s, const struct kv_cqe *cqe,
		       const uint8_t *out)
{
	uint32_t lease;

	switch (s->sqe.op) {
	case KV_OP_ALLOC:
		if (cqe->nr != s->sqe.nr || cqe->out_bytes != 8 * cqe->nr)
			die("an allocation of another size");
		for (uint32_t i = 0; i < cqe->nr; i++)
			grant_page(w, s, u64_at(out, i));
		break;
	case KV_OP_FREE:
		for (uint32_t i = 0; i < s->sqe.nr; i++)
			page_held(w, s, u64_at(s->in, i))->state = GONE;
		break;
	case KV_OP_UNLEASE:
		for (uint32_t i = 0; i < s->sqe.nr; i++) {
			memcpy(&lease, s->in + 4 * i, 4);
			owned_remove(&w->model->leases, lease, s->engine,
				     "another's lease was released");
		}
		break;
	case KV_OP_COMMIT:
		saw_commit(w, s, cqe, out);
		break;
	case KV_OP_RESUME:
		owned_remove(&w->model->parks, s->sqe.id, s->engine, "another's park was resumed");
		saw_match(w, s, cqe, out);
		break;
	case KV_OP_LOOKUP:
		saw_match(w, s, cqe, out);
		break;
	}
}

/* Its leases stay in the model: that they are not usable any more is the simulator's to prove. */
static void saw_close(struct world *w, const struct slot *s)
{
	struct model *m = w->model;

	owned_remove(&m->caches, s->sqe.cache, s->engine, "another's cache was closed");
	for (uint32_t i = 0; i < m->nr_frames; i++) {
		struct page *p = &m->frames[m->used[i]];

		if (p->state != HELD || p->engine != s->engine || p->cache != s->sqe.cache)
			continue;
		if (!(s->sqe.flags & KV_SQE_GIVE_BACK))
			die("a cache was closed with pages held");
		p->state = GONE;
	}
}

static void saw_ids(struct world *w, const struct slot *s, const struct kv_cqe *cqe)
{
	switch (s->sqe.op) {
	case KV_OP_CACHE_OPEN:
		saw_open(w, s, cqe->id);
		break;
	case KV_OP_CACHE_CLOSE:
		saw_close(w, s);
		break;
	case KV_OP_LEASE_DUP:
		granted(&w->model->leases, cqe->id, s->engine);
		remember_id(w, cqe->id);
		/* fall through */
	case KV_OP_DROP_HEAD:
	case KV_OP_HINT:
		need_owned(&w->model->leases, s->sqe.id, s, "another's lease was used");
		break;
	case KV_OP_PARK:
		owned_remove(&w->model->leases, s->sqe.id, s->engine, "another's lease was parked");
		granted(&w->model->parks, cqe->id, s->engine);
		remember_id(w, cqe->id);
		break;
	case KV_OP_UNIMPORT:
		map_remove(w->model, w->client[s->client].member, s->sqe.id, s->sqe.nr);
		break;
	case KV_OP_UNPARK:
		owned_remove(&w->model->parks, s->sqe.id, s->engine,
			     "another's park was forgotten");
		break;
	}
}

static void check_answer(struct world *w, const struct slot *s, const struct kv_cqe *cqe)
{
	const struct dispatch_client *c = &w->client[s->client];

	if (cqe->user_data != s->sqe.user_data || cqe->reserved[0] || cqe->reserved[1])
		die("a cqe with another's user_data, or one not initialised");
	if (cqe->res > 0 || (cqe->res && cqe->out_bytes) || cqe->out_bytes > s->sqe.out_bytes)
		die("a cqe that makes no sense");
	if (cqe->res)
		return;
	if (!c->lead && s->sqe.op != KV_OP_NOP && s->sqe.op != KV_OP_UNIMPORT &&
	    s->sqe.op != KV_OP_EVENTS && s->sqe.op != KV_OP_STAT)
		die("a member decided something");
	if (s->sqe.op == KV_OP_ALLOC || s->sqe.op == KV_OP_LOOKUP || s->sqe.op == KV_OP_COMMIT)
		need_owned(&w->model->caches, s->sqe.cache, s, "a cache that is not open was used");
	saw_arrays(w, s, cqe, (const uint8_t *)c->data + s->sqe.out_off);
	saw_ids(w, s, cqe);
}

/* ---- plumbing ------------------------------------------------------------------------------ */

static void on_reply(void *ctx, const struct mm_reply *r)
{
	struct world *w = ctx;
	struct kv_cqe cqe;
	struct slot *s;

	if (r->cookie == SLOTS) {
		w->raw_reply = *r;
		w->raw_done = true;
		return;
	}
	if (r->cookie > SLOTS || !w->slot[r->cookie].used)
		die("a reply that nobody waits for");
	s = &w->slot[r->cookie];
	dispatch_reply(&w->client[s->client], &s->pending, r, &cqe);
	check_answer(w, s, &cqe);
	s->used = false;
}

static void on_notify(void *ctx, uint32_t member)
{
	(void)ctx;
	if (!member)
		die("nobody was notified");
}

static const struct exec_ops callbacks = { .reply = on_reply, .notify = on_notify };

static void run(struct world *w)
{
	exec_run(w->x, w->now_ns);
}

static struct mm_reply raw(struct world *w, struct mm_request req)
{
	req.cookie = SLOTS;
	w->raw_done = false;
	if (exec_submit(w->x, &req, w->now_ns))
		die("mm has no room although everything is drained");
	run(w);
	if (!w->raw_done)
		die("a control request was not answered at once");
	return w->raw_reply;
}

static void submit(struct world *w, uint32_t client, struct kv_sqe sqe)
{
	struct dispatch_client *c = &w->client[client];
	struct kv_cqe cqe;
	uint32_t i = 0;
	struct slot *s;
	int ret;

	while (i < SLOTS && w->slot[i].used)
		i++;
	if (i == SLOTS)
		return;
	s = &w->slot[i];
	s->used = true;
	s->client = client;
	s->engine = c->engine;
	s->sqe = sqe;
	memset(c->scratch, 0xee, 256);
	ret = dispatch_submit(w->x, c, &sqe, i, w->now_ns, &s->pending, &cqe);
	if (ret == 0) {
		memcpy(s->in, c->scratch, sqe.in_bytes);
		run(w);
		return;
	}
	if (ret != 1 && ret != -EAGAIN)
		die("dispatch_submit answers neither now nor later");
	if (ret == 1)
		check_answer(w, s, &cqe);
	s->used = false;
}

static void device_fails(struct world *w, uint32_t what)
{
	w->dev.fail_create = what & 1 ? -ENOMEM : 0;
	w->dev.fail_destroy = what & 2 ? -EIO : 0;
	w->dev.fail_scrub = what & 4 ? -EIO : 0;
}

static void device_heals(struct world *w)
{
	w->dev.hold = false;
	device_fails(w, 0);
	w->now_ns += 1000000000000ull;		/* what failed is tried again */
	run(w);
}

static void attach(struct world *w, uint32_t client)
{
	struct mm_request req = { .op = MM_ENGINE_ATTACH };
	struct mm_reply r;

	if (client == 3) {
		req.op = MM_MEMBER_ATTACH;
		req.engine = w->client[0].engine;
	} else {
		req.attach.tenant = 1000 + w->tenant[client];
	}
	r = raw(w, req);
	if (r.result) {				/* the dead wait for the device to scrub */
		device_heals(w);
		r = raw(w, req);
	}
	if (r.result)
		die("attach failed");
	w->client[client].engine = client == 3 ? w->client[0].engine : r.engine;
	w->client[client].member = r.member;
	w->client[client].lead = client != 3;
}

/* The engine dies: fenced, then every process of it gone. */
static void detach(struct world *w, uint32_t client)
{
	uint32_t engine = w->client[client].engine;

	run(w);
	if (raw(w, (struct mm_request){ .op = MM_FENCE, .engine = engine }).result)
		die("fence failed");
	for (uint32_t i = 0; i < SLOTS; i++) {
		if (w->slot[i].used && w->slot[i].engine == engine)
			w->slot[i].used = false;
	}
	for (uint32_t i = 0; i < w->model->nr_frames; i++) {
		struct page *p = &w->model->frames[w->model->used[i]];

		if (p->state == HELD && p->engine == engine)
			p->state = GONE;
	}
	owned_drop_engine(&w->model->leases, engine);
	owned_drop_engine(&w->model->parks, engine);
	for (uint32_t c = 0; c < NR_CLIENTS; c++) {
		if (w->client[c].engine == engine)
			map_remove(w->model, w->client[c].member, 0, UINT32_MAX);
		if (w->client[c].engine == engine &&
		    raw(w, (struct mm_request){ .op = MM_MEMBER_GONE, .engine = engine,
						.member = w->client[c].member }).result)
			die("a member could not go");
	}
	owned_drop_engine(&w->model->caches, engine);
}

/* ---- the program --------------------------------------------------------------------------- */

static uint32_t u8(struct world *w)
{
	return w->in < w->end ? *w->in++ : 0;
}

static uint32_t u16(struct world *w)
{
	uint32_t lo = u8(w);

	return lo | u8(w) << 8;
}

static void bytes(struct world *w, void *to, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((uint8_t *)to)[i] = (uint8_t)u8(w);
}

/* One of the last 16 by the low bits, any by the high ones. */
static uint32_t some_id(struct world *w)
{
	uint32_t b = u8(w), n = w->nr_ids < MAX_IDS ? w->nr_ids : MAX_IDS;

	if (!n || b == 255)
		return u16(w);
	return w->ids[(w->nr_ids - 1 - (b < 128 ? b % 16 : b - 128) % n) % MAX_IDS];
}

static uint64_t some_page(struct world *w)
{
	uint32_t b = u8(w), n = w->nr_pages < MAX_IDS ? w->nr_pages : MAX_IDS;

	if (!n || b == 255)
		return (uint64_t)u16(w) << 20;
	return w->pages[(w->nr_pages - 1 - b % n) % MAX_IDS];
}

/* An id that the client owns, so that programs get anywhere; else some_id. */
static uint32_t own_id(struct world *w, const struct owned_set *set, uint32_t client)
{
	uint32_t b = u8(w), nr = 0, pick[16];

	for (uint32_t i = set->nr; i-- && nr < 16;) {
		if (set->at[i].engine == w->client[client].engine)
			pick[nr++] = set->at[i].id;
	}
	return nr && b < 224 ? pick[b % nr] : some_id(w);
}

static uint64_t own_page(struct world *w, uint32_t client, uint32_t cache, uint32_t group,
			 uint32_t skip)
{
	uint32_t n = w->nr_pages < MAX_IDS ? w->nr_pages : MAX_IDS;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t id = w->pages[(w->nr_pages - 1 - i) % MAX_IDS];
		struct page *p = page_of(w->model, id, false);

		if (p && p->id == id && p->state == HELD && p->cache == cache &&
		    p->group == group && p->engine == w->client[client].engine && !skip--)
			return id;
	}
	return 0;
}

static void build_open(struct world *w, uint32_t client, struct kv_sqe *s)
{
	static const uint32_t tokens[] = { 4, 16, 1, 3 };
	static const uint64_t page[] = { 65536, 4096, 1u << 20, 192, 2u << 20, 512u << 10 };
	struct kv_cache_desc d = { .nr_shards = 1 };
	uint32_t b = u8(w), kinds = u8(w), sizes = u8(w);

	d.model_key[0] = b & 3;		/* 0: the engine's own */
	d.layout_key[0] = (uint8_t)(1 + kinds + sizes);
	d.page_tokens = tokens[(b >> 2) & 3];
	d.nr_groups = 1 + ((b >> 4) & 3) % 3;
	d.nr_shards = 1 + (b >> 7);
	for (uint32_t g = 0; g < d.nr_groups; g++, kinds >>= 2, sizes >>= 2) {
		d.group[g].kind = 1 + (kinds & 3) % 3;
		if (d.group[g].kind == MM_GROUP_WINDOW)
			d.group[g].window_tokens = 2 * d.page_tokens + g;
		d.group[g].opaque = (kinds & 3) == 3;
		for (uint32_t i = 0; i < d.nr_shards; i++)
			d.shard[i].page_bytes[g] = page[(sizes & 3) + 2 * (g & 1)];
	}
	memcpy(w->client[client].data, &d, sizeof(d));
	s->in_bytes = sizeof(d);
	s->out_bytes = sizeof(struct kv_cache_geom);
	s->nr = b & 0x40 ? b : 0;	/* promised pages */
}

static const struct mm_cache_info *cache_info(struct world *w, uint32_t cache)
{
	static struct mm_cache_info info;
	uint32_t id = 0;

	while (mm_next_cache(exec_mm(w->x), &id, &info)) {
		if (info.cache == cache)
			return &info;
	}
	info = (struct mm_cache_info){ .page_tokens = 4, .nr_groups = 1 };
	return &info;
}

/* Few token values, so that prompts meet. */
static uint32_t put_tokens(struct world *w, uint8_t *at, uint32_t nr)
{
	uint32_t pattern = u8(w);

	for (uint32_t i = 0; i < nr; i++) {
		uint32_t token = 1 + ((pattern >> (i / 4 % 8)) & 1);

		memcpy(at + 4 * i, &token, 4);
	}
	return (4 * nr + 7) & ~7u;
}

static uint32_t put_keys(struct world *w, uint8_t *at, uint32_t nr, uint32_t first)
{
	for (uint32_t i = 0; i < nr; i++) {
		struct kv_page_key k = { .page = first + i };

		k.digest[0] = u8(w) & 3;
		memcpy(at + i * sizeof(k), &k, sizeof(k));
	}
	return nr * (uint32_t)sizeof(struct kv_page_key);
}

static void build_lookup(struct world *w, uint32_t client, struct kv_sqe *s)
{
	const struct mm_cache_info *ci = cache_info(w, s->cache);
	struct kv_lookup_in in = { u8(w) % 100, u8(w) };
	uint8_t *at = w->client[client].data;
	uint32_t off = sizeof(in);

	in.nr_keys = in.nr_keys < 200 ? 0 : in.nr_keys & 3;
	memcpy(at, &in, sizeof(in));
	off += put_tokens(w, at + off, in.nr_tokens);
	off += put_keys(w, at + off, in.nr_keys, 0);
	s->in_bytes = off;
	s->out_bytes = (uint32_t)sizeof(struct kv_match_out) +
		       in.nr_tokens / ci->page_tokens * ci->nr_groups * 8;
}

static void build_commit(struct world *w, uint32_t client, struct kv_sqe *s)
{
	const struct mm_cache_info *ci = cache_info(w, s->cache);
	uint32_t b = u8(w), keys = u8(w), off = sizeof(struct kv_commit_in);
	struct kv_commit_in in = { .nr_pages = 1 + (b & 7), .nr_groups = ci->nr_groups };
	uint8_t *at = w->client[client].data;

	in.nr_keys = keys < 200 ? 0 : 1;
	in.nr_tokens = in.nr_pages * ci->page_tokens;
	if (s->flags & KV_SQE_PARTIAL)
		in.nr_tokens -= (b >> 3) % ci->page_tokens;
	if (in.nr_tokens > 512)
		in.nr_tokens = 512;
	memcpy(at, &in, sizeof(in));
	off += put_tokens(w, at + off, in.nr_tokens);
	for (uint32_t g = 0; g < in.nr_groups; g++) {
		for (uint32_t i = 0; i < in.nr_pages; i++, off += 8) {
			uint64_t id = own_page(w, client, s->cache, g, i);

			if (b == 255)
				id = some_page(w);
			if (b >> 6 == 2 && g)
				id = 0;
			memcpy(at + off, &id, 8);
		}
	}
	off += put_keys(w, at + off, in.nr_keys, keys & 15);
	s->in_bytes = off;
	s->out_bytes = in.nr_pages * in.nr_groups * 8;
}

static void build_ids(struct world *w, uint32_t client, struct kv_sqe *s)
{
	uint8_t *at = w->client[client].data;
	uint32_t b = u8(w);

	s->nr = 1 + b % 6;
	for (uint32_t i = 0; i < s->nr; i++) {
		uint64_t page = own_page(w, client, s->cache, s->group, i);
		uint32_t id;

		if (s->op == KV_OP_FREE) {
			page = b < 128 && page ? page : some_page(w);
			memcpy(at + 8 * i, &page, 8);
		} else {
			id = own_id(w, &w->model->leases, client);
			memcpy(at + 4 * i, &id, 4);
		}
	}
	s->in_bytes = s->nr * (s->op == KV_OP_FREE ? 8 : 4);
	s->cache = 0;
	s->group = 0;
}

static void build_hint(struct world *w, uint32_t client, struct kv_sqe *s)
{
	struct kv_hint_in in = { .from_page = u8(w) % 6, .priority = u8(w) % 4 };

	in.to_page = u8(w) % 8;
	in.reuse_ms = u16(w);
	in.ttl_ms = u16(w);
	s->id = own_id(w, &w->model->leases, client);
	s->in_bytes = sizeof(in);
	memcpy(w->client[client].data, &in, sizeof(in));
}

/* Operands of a well-formed entry; what the op does not use stays zero. */
static void build(struct world *w, uint32_t client, struct kv_sqe *s)
{
	switch (s->op) {
	case KV_OP_CACHE_OPEN:
		build_open(w, client, s);
		break;
	case KV_OP_ALLOC:
		s->nr = 1 + u8(w) % DISPATCH_BATCH;
		s->arg = u8(w) & 7;
		s->out_bytes = s->nr * 8;
		break;
	case KV_OP_LOOKUP:
		build_lookup(w, client, s);
		break;
	case KV_OP_COMMIT:
		s->id = u8(w) & 1 ? own_id(w, &w->model->leases, client) : 0;
		build_commit(w, client, s);
		break;
	case KV_OP_FREE:
	case KV_OP_UNLEASE:
		build_ids(w, client, s);
		break;
	case KV_OP_LEASE_DUP:
	case KV_OP_DROP_HEAD:
		s->id = own_id(w, &w->model->leases, client);
		s->nr = u8(w) % 6;
		break;
	case KV_OP_PARK:
		s->id = own_id(w, &w->model->leases, client);
		break;
	case KV_OP_RESUME:
		s->out_bytes = 3072;
		/* fall through */
	case KV_OP_UNPARK:
		s->id = own_id(w, &w->model->parks, client);
		break;
	case KV_OP_RESERVE:
		s->arg = u8(w) * (MIB / 16);
		s->group = s->arg / MIB % 3;
		break;
	case KV_OP_UNIMPORT:
	case KV_OP_VACATE_ACK:
		s->id = mm_page_extent(some_page(w));
		s->nr = s->op == KV_OP_UNIMPORT ? u8(w) & 1 : 0;
		break;
	case KV_OP_PRESSURE_ACK:
		s->id = u8(w);
		break;
	case KV_OP_HINT:
		build_hint(w, client, s);
		break;
	case KV_OP_EVENTS:
	case KV_OP_STAT:
		s->out_bytes = 96 + u8(w);
		break;
	}
}

/* A piece that ends about where the data area does. */
static void move_to_edge(struct world *w, struct kv_sqe *s)
{
	uint32_t how = u8(w), bytes_to_end = u8(w);

	if (how & 2)
		*(how & 1 ? &s->in_bytes : &s->out_bytes) += (how >> 2 & 15) - 8;
	if (how & 1)
		s->in_off = DISPATCH_DATA - bytes_to_end * (how & 64 ? 8 : 1);
	else
		s->out_off = DISPATCH_DATA - bytes_to_end * (how & 64 ? 8 : 1);
}

/* Sometimes an offset, or a byte of the entry or of its input, is replaced. */
static void damage(struct world *w, uint32_t client, struct kv_sqe *s)
{
	uint32_t mode = u8(w), at, value;

	if (mode < 192)
		return;
	if (mode < 208) {
		move_to_edge(w, s);
		return;
	}
	at = u16(w);
	value = u8(w);
	if (mode < 232)
		((uint8_t *)s)[at % sizeof(*s)] = (uint8_t)value;
	else
		((uint8_t *)w->client[client].data)[at % DISPATCH_DATA] = (uint8_t)value;
}

static void step_op(struct world *w, uint32_t client)
{
	struct kv_sqe s = { .op = (uint8_t)(u8(w) % KV_NR_OPS), .user_data = u8(w) };
	uint32_t b = u8(w);

	if (s.op == KV_OP_COMMIT)
		s.flags = b & KV_SQE_PARTIAL;
	if (s.op == KV_OP_LOOKUP || s.op == KV_OP_RESUME)
		s.flags = b & KV_SQE_ADOPT;
	if (s.op == KV_OP_CACHE_CLOSE)
		s.flags = b & KV_SQE_GIVE_BACK;
	if (s.op == KV_OP_ALLOC || s.op == KV_OP_LOOKUP || s.op == KV_OP_COMMIT ||
	    s.op == KV_OP_CACHE_CLOSE || s.op == KV_OP_FREE)
		s.cache = own_id(w, &w->model->caches, client);
	if (s.op == KV_OP_ALLOC || s.op == KV_OP_DROP_HEAD || s.op == KV_OP_FREE)
		s.group = (b >> 2) & 3;
	build(w, client, &s);
	if (s.out_bytes)
		s.out_off = DISPATCH_OUT;
	damage(w, client, &s);
	submit(w, client, s);
}

static void step_import(struct world *w, uint32_t client)
{
	struct dispatch_client *c = &w->client[client];
	struct mm_request req = { .op = MM_IMPORT, .engine = c->engine, .member = c->member };
	uint64_t page = some_page(w), len;
	struct page *p = page_of(w->model, page, false);
	struct mm_reply r;
	uint32_t shard = u8(w) & 1;

	req.map.extent = mm_page_extent(page);
	req.map.shard = shard;
	r = raw(w, req);
	if (r.result)
		return;
	if (p && p->id == page && (p->state == HELD || p->state == CACHED) &&
	    p->tenant != w->tenant[client])
		die("an extent with another tenant's page was mapped");
	if (r.writable && p && p->id == page && p->state == HELD && p->engine != c->engine)
		die("another's held page was mapped writable");
	map_remove(w->model, c->member, req.map.extent, shard);	/* mapped again */
	map_add(w->model, (struct mapping){ req.map.extent, shard, c->member, c->engine,
					    w->tenant[client], r.writable });
	if (exec_export(w->x, req.map.extent, shard, r.writable, &len) < 0)
		die("mm let an extent be mapped that does not exist");
}

static void step_raw(struct world *w, uint32_t client)
{
	uint32_t mode = u8(w), len = u8(w);
	struct kv_sqe s;

	bytes(w, (uint8_t *)w->client[client].data + (mode & 15) * 64, len);
	bytes(w, &s, sizeof(s));
	if (mode & 0x80)
		s.op %= KV_NR_OPS;
	if (mode & 0x40) {
		s.in_off %= DISPATCH_DATA;
		s.out_off %= DISPATCH_DATA;
		s.in_bytes %= 512;
		s.out_bytes %= 4096;
		s.reserved = 0;
	}
	submit(w, client, s);
}

/* The rth last id that was given, so that recorded traffic finds the ids of this world. */
static uint64_t last_id(struct world *w, uint32_t r)
{
	return r && r <= w->nr_ids && r <= MAX_IDS ? w->ids[(w->nr_ids - r) % MAX_IDS] : 0;
}

static uint64_t last_page(struct world *w, uint32_t r)
{
	return r && r <= w->nr_pages && r <= MAX_IDS ? w->pages[(w->nr_pages - r) % MAX_IDS] : 0;
}

static void step_traffic(struct world *w, uint32_t client)
{
	uint8_t *at = w->client[client].data;
	struct kv_sqe s = { .op = (uint8_t)(u8(w) % KV_NR_OPS), .flags = (uint8_t)u8(w) };
	uint32_t ref, off, nr;
	uint64_t id;

	s.group = (uint16_t)u8(w);
	s.cache = (uint32_t)last_id(w, u8(w));
	ref = u8(w);
	s.id = dispatch_id_given(s.op) ? (uint32_t)last_id(w, ref) : ref;
	s.nr = u16(w);
	s.arg = (uint64_t)u16(w) << DISPATCH_ARG_SHIFT;
	s.in_bytes = u16(w) % DISPATCH_OUT;
	s.out_bytes = u16(w) % (DISPATCH_DATA - DISPATCH_OUT + 1);
	s.out_off = s.out_bytes ? DISPATCH_OUT : 0;
	nr = u8(w);
	bytes(w, at, s.in_bytes);
	for (; nr; nr--) {
		off = u16(w);
		ref = u8(w);
		id = s.op == KV_OP_UNLEASE ? last_id(w, ref) : last_page(w, ref);
		if (off + 8 <= DISPATCH_DATA)
			memcpy(at + off, &id, s.op == KV_OP_UNLEASE ? 4 : 8);
	}
	damage(w, client, &s);
	submit(w, client, s);
}

static void step(struct world *w)
{
	uint32_t cmd = u8(w), client = cmd & 3, kind = cmd >> 2;

	if (kind < 48) {
		step_op(w, client);
	} else if (kind < DISPATCH_TRAFFIC) {
		step_raw(w, client);
	} else if (kind == DISPATCH_TRAFFIC) {
		step_traffic(w, client);
	} else if (kind < 55) {
		step_import(w, client);
	} else if (kind < 57) {
		w->now_ns += (uint64_t)u8(w) * 200000;
		run(w);
	} else if (kind < 59) {
		w->dev.hold = kind == 57;
		run(w);
	} else if (kind < 61) {
		device_fails(w, kind == 59 ? u8(w) : 0);
		run(w);
	} else if (kind < 62) {
		memset(w->client[client].data, (int)u8(w), DISPATCH_DATA);
	} else {
		detach(w, client);
		if (client == 0 || client == 3) {
			attach(w, 0);
			attach(w, 3);
		} else {
			attach(w, client);
		}
	}
}

static void world_init(struct world *w, const uint8_t *data, size_t size)
{
	struct mm_config cfg = dispatch_config();
	struct dev *dev = fake_init(&w->dev);

	model_reset(w->model);
	w->in = data;
	w->end = data + size;
	cfg.device[0].scrub = u8(w) & 1;
	w->now_ns = 1000;
	w->tenant[2] = 1;
	if (exec_create(&w->x, &cfg, &dev, &callbacks, w))
		die("exec_create");
	for (uint32_t c = 0; c < NR_CLIENTS; c++) {
		w->client[c] = (struct dispatch_client){
			.data = calloc(1, DISPATCH_DATA), .data_bytes = DISPATCH_DATA,
			.scratch = malloc(DISPATCH_DATA), .batch_pages = DISPATCH_BATCH,
		};
		attach(w, c);
	}
}

/* Everybody dies, the device works again: nothing may be left but content nobody leases. */
static void world_fini(struct world *w)
{
	struct mm_meminfo m;

	device_heals(w);
	for (uint32_t c = 0; c < 3; c++)
		detach(w, c);
	run(w);
	mm_check(exec_mm(w->x));
	mm_meminfo(exec_mm(w->x), 0, &m);
	if (m.held_bytes || m.leased_bytes || m.quarantined_bytes || m.reserved_bytes)
		die("the dead still own something");
	exec_destroy(w->x);
	for (uint32_t c = 0; c < NR_CLIENTS; c++) {
		free(w->client[c].data);
		free(w->client[c].scratch);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct model model;
	static struct world w;

	memset(&w, 0, sizeof(w));
	w.model = &model;
	world_init(&w, data, size);
	for (uint32_t n = 0; n < MAX_STEPS && w.in < w.end; n++) {
		step(&w);
		if (n % CHECK_EVERY == 0)
			mm_check(exec_mm(w.x));
	}
	world_fini(&w);
	return 0;
}
