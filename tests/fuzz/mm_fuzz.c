// SPDX-License-Identifier: Apache-2.0
/* mm_fuzz - bytes as requests to mm, arrays and completions included
 *
 * Model:      the first bytes pick a small config; after that each op byte is a request, a
 *             completion or a tick, its fields taken from the following bytes. Ids are mostly ones
 *             mm gave earlier (of any engine), sometimes raw bytes.
 * Ownership:  arrays are heap copies of exactly their length, so that a sanitizer sees a read
 *             beyond them.
 * Errors:     mm_check after every few operations; a broken invariant aborts.
 * See:        kvd/mm/mm.h, tests/fuzz/standalone.c.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mm.h"

#define RING		32
#define PAGES		128
#define MAX_TOKENS	96
#define MAX_PAGES	24
#define CHECK_EVERY	8
#define MAX_OPS		600

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

void mm_panic(const char *what, const char *file, int line)
{
	fprintf(stderr, "mm_panic: %s at %s:%d\n", what, file, line);
	abort();
}

struct ring {
	uint32_t id[RING];
	uint32_t nr;
};

struct fuzz {
	const uint8_t *data;
	size_t len;
	struct mm *mm;
	struct mm_config cfg;
	struct mm_cache_desc desc[3];
	struct ring engine, member, cache, lease, park;
	uint64_t page[PAGES];
	uint32_t nr_pages;
	uint64_t effect[RING];
	uint32_t nr_effects;
	uint64_t now_ns, cookie, replies;
};

static uint32_t byte(struct fuzz *f)
{
	if (!f->len)
		return 0;
	f->len--;
	return *f->data++;
}

static uint32_t word(struct fuzz *f)
{
	uint32_t v = byte(f);

	v |= byte(f) << 8;
	v |= byte(f) << 16;
	return v | byte(f) << 24;
}

static void push(struct ring *r, uint32_t id)
{
	if (id)
		r->id[r->nr++ % RING] = id;
}

static uint32_t pick(struct fuzz *f, const struct ring *r)
{
	uint32_t b = byte(f), nr = r->nr < RING ? r->nr : RING;

	if (b >= 0xfa)
		return word(f);
	if (b >= 0xf8 || !nr)
		return 0;
	return r->id[(r->nr - 1 - b % nr) % RING];
}

static uint64_t pick_page(struct fuzz *f)
{
	uint32_t b = byte(f), nr = f->nr_pages < PAGES ? f->nr_pages : PAGES;

	if (b >= 0xfc)
		return (uint64_t)word(f) << 32 | word(f);
	if (b >= 0xf0 || !nr)
		return 0;
	return f->page[(f->nr_pages - 1 - b % nr) % PAGES];
}

static void pick_config(struct fuzz *f)
{
	struct mm_config *c = &f->cfg;
	uint32_t b = byte(f);

	c->seed = b;
	c->nr_devices = 1 + (b & 1);
	c->policy = b >> 4 & 1;
	c->max_shadows = (b >> 5) * 7;
	for (uint32_t d = 0; d < c->nr_devices; d++) {
		c->device[d].extent_align = 4096;
		c->device[d].extent_bytes = 4096ull * (1 + (b >> 1 & 3));
		c->device[d].pool_bytes = c->device[d].extent_bytes * (2 + byte(f) % 12);
		c->device[d].scrub = b >> 3 & 1;
	}
	c->max_tenants = 3;
	c->max_engines = 4;
	c->max_members = 8;
	c->max_caches = 5;
	c->max_extents = 4 + byte(f) % 16;
	c->max_frames = 64 + byte(f);
	c->max_nodes = 8 + byte(f);
	c->max_leases = 2 + byte(f) % 40;
	c->max_parks = 1 + byte(f) % 8;
	c->max_keys = 1 + byte(f) % 8;
	c->max_pending = 1 + byte(f) % 8;
	c->max_tokens = 64 + 16 * byte(f);
	c->batch_pages = 1 + byte(f) % MAX_PAGES;
}

static void pick_descs(struct fuzz *f)
{
	for (uint32_t i = 0; i < 3; i++) {
		struct mm_cache_desc *d = &f->desc[i];
		uint32_t b = byte(f);

		d->model_key[3] = (uint8_t)i;		/* 0 is private */
		d->layout_key[0] = (uint8_t)(i + 1);
		d->page_tokens = 1 + b % 8;
		d->nr_groups = 1 + (b >> 3) % 3;
		d->nr_shards = 1 + (b >> 5) % 2;
		for (uint32_t g = 0; g < d->nr_groups; g++) {
			b = byte(f);
			d->group[g].kind = g ? MM_GROUP_FULL + b % 3 : MM_GROUP_FULL;
			d->group[g].window_tokens = 1 + (b >> 2) % 16;
			d->group[g].opaque = b >> 7;
		}
		for (uint32_t s = 0; s < d->nr_shards; s++) {
			b = byte(f);
			d->shard[s].device = b % f->cfg.nr_devices;
			d->shard[s].replicated = b >> 7;
			for (uint32_t g = 0; g < d->nr_groups; g++)
				d->shard[s].page_bytes[g] = 64ull * (1 + (b >> 1) % 32);
		}
	}
}

/* ---- replies and effects --------------------------------------------------------------------- */

static void take_pages(struct fuzz *f, const uint64_t *pages, uint64_t nr)
{
	for (uint64_t i = 0; i < nr; i++)
		if (pages[i])
			f->page[f->nr_pages++ % PAGES] = pages[i];
}

static void drain(struct fuzz *f)
{
	struct mm_effect e;
	struct mm_reply r;

	while (mm_next_reply(f->mm, &r)) {
		f->replies++;
		if (r.result)
			continue;
		if (r.op == MM_ENGINE_ATTACH)
			push(&f->engine, r.engine);
		if (r.op == MM_ENGINE_ATTACH || r.op == MM_MEMBER_ATTACH)
			push(&f->member, r.member);
		if (r.op == MM_CACHE_OPEN)
			push(&f->cache, r.cache);
		push(&f->lease, r.lease);
		push(&f->lease, r.tail_lease);
		push(&f->park, r.park);
		if (r.op == MM_ALLOC)
			take_pages(f, r.pages, r.nr_pages);
		if (r.op == MM_LOOKUP || r.op == MM_RESUME) {
			take_pages(f, r.pages, (uint64_t)r.nr_pages * r.nr_groups);
			take_pages(f, r.tail_pages, r.tail_tokens ? r.nr_groups : 0);
		}
	}
	while (f->nr_effects < RING && mm_next_effect(f->mm, &e))
		if (e.kind != MM_EFFECT_NOTIFY)
			f->effect[f->nr_effects++] = e.id;
}

static void complete(struct fuzz *f, uint32_t b)
{
	uint32_t i;

	if (b >= 0xf8) {
		mm_complete(f->mm, word(f), 0, f->now_ns);
		return;
	}
	if (!f->nr_effects)
		return;
	i = b % f->nr_effects;
	mm_complete(f->mm, f->effect[i], b >= 0xe0 ? -ENOMEM : 0, f->now_ns);
	f->effect[i] = f->effect[--f->nr_effects];
}

/* ---- requests -------------------------------------------------------------------------------- */

static void *copy(const void *from, size_t size)
{
	void *to = malloc(size ? size : 1);

	if (!to)
		abort();
	if (size)
		memcpy(to, from, size);
	return to;
}

/* Few token values, so that sequences meet. */
static uint32_t *pick_tokens(struct fuzz *f, uint32_t *nr)
{
	uint32_t tokens[MAX_TOKENS], b = byte(f), x = byte(f);

	*nr = b % MAX_TOKENS;
	for (uint32_t i = 0; i < *nr; i++) {
		if (i % 8 == 0)
			x = byte(f);
		tokens[i] = x >> i % 8 & 1;
	}
	return copy(tokens, *nr * sizeof(*tokens));
}

static struct mm_page_key *pick_keys(struct fuzz *f, uint32_t *nr)
{
	struct mm_page_key keys[4];
	uint32_t b = byte(f), page = 0;

	memset(keys, 0, sizeof(keys));
	*nr = b < 0xc0 ? 0 : b & 3;
	for (uint32_t i = 0; i < *nr; i++) {
		b = byte(f);
		page += b & 7;
		keys[i].page = page;
		keys[i].digest[0] = (uint8_t)(1 + (b >> 4));
	}
	return copy(keys, *nr * sizeof(*keys));
}

/* nr picked ones in an array of room. */
static uint64_t *pick_pages(struct fuzz *f, uint32_t nr, uint32_t room)
{
	uint64_t pages[MAX_PAGES * MM_MAX_GROUPS] = { 0 };

	for (uint32_t i = 0; i < nr; i++)
		pages[i] = pick_page(f);
	return copy(pages, room * sizeof(*pages));
}

static void submit(struct fuzz *f, struct mm_request *r, void *a, void *b, void *c)
{
	r->cookie = ++f->cookie;
	mm_submit(f->mm, r, f->now_ns);
	free(a);
	free(b);
	free(c);
	drain(f);
}

static void fuzz_open(struct fuzz *f, struct mm_request *r)
{
	uint32_t b = byte(f);
	struct mm_cache_desc *d = copy(&f->desc[b % 3], sizeof(*d));

	if (b >= 0xf0) {
		uint32_t at = (word(f) & 0xffff) % sizeof(*d);

		((uint8_t *)d)[at] = (uint8_t)byte(f);
	}
	r->open.desc = d;
	r->open.min_pages = b & 0x40 ? b & 0x3f : 0;
	submit(f, r, d, NULL, NULL);
}

static void fuzz_free(struct fuzz *f, struct mm_request *r)
{
	uint32_t nr = byte(f) % MAX_PAGES;
	uint64_t *pages = pick_pages(f, nr, nr);

	r->free.pages = pages;
	r->free.nr_pages = nr;
	submit(f, r, pages, NULL, NULL);
}

static void fuzz_lookup(struct fuzz *f, struct mm_request *r)
{
	uint32_t *tokens = pick_tokens(f, &r->lookup.nr_tokens);
	struct mm_page_key *keys = pick_keys(f, &r->lookup.nr_keys);

	r->lookup.tokens = tokens;
	r->lookup.keys = keys;
	submit(f, r, tokens, keys, NULL);
}

static void fuzz_commit(struct fuzz *f, struct mm_request *r, uint32_t b)
{
	uint32_t *tokens = pick_tokens(f, &r->commit.nr_tokens), i = b % 3;
	struct mm_page_key *keys = pick_keys(f, &r->commit.nr_keys);
	uint32_t pt = f->desc[i].page_tokens, nr_groups = f->desc[i].nr_groups;
	uint64_t *pages;

	r->commit.lease = b & 0x40 ? 0 : pick(f, &f->lease);
	r->commit.nr_pages = (r->commit.nr_tokens + pt - 1) / pt;
	if (r->commit.nr_pages > MAX_PAGES)
		r->commit.nr_pages = MAX_PAGES;
	if (b & 0x80)	/* whole pages */
		r->commit.nr_tokens -= r->commit.nr_tokens % pt;
	/* The cache may be another one, of more groups. */
	pages = pick_pages(f, r->commit.nr_pages * nr_groups, r->commit.nr_pages * MM_MAX_GROUPS);
	r->commit.tokens = tokens;
	r->commit.keys = keys;
	r->commit.pages = pages;
	submit(f, r, tokens, keys, pages);
}

static void fuzz_unlease(struct fuzz *f, struct mm_request *r)
{
	uint32_t leases[RING], nr = 1 + byte(f) % 4;

	for (uint32_t i = 0; i < nr; i++)
		leases[i] = pick(f, &f->lease);
	r->unlease.nr_leases = nr;
	r->unlease.leases = copy(leases, nr * sizeof(*leases));
	submit(f, r, (void *)(uintptr_t)r->unlease.leases, NULL, NULL);
}

static void fuzz_plain(struct fuzz *f, struct mm_request *r)
{
	uint32_t b = byte(f);

	switch (r->op) {
	case MM_ENGINE_ATTACH:
		r->attach.tenant = b % 4;
		break;
	case MM_IMPORT:
	case MM_UNIMPORT:
		r->map.extent = b >= 0xf8 ? word(f) : b % 16;
		r->map.shard = b >= 0xf0 ? word(f) : b >> 4 & 1;
		break;
	case MM_ALLOC:
		r->alloc.nr_pages = b >= 0xf8 ? word(f) : b % 12;
		r->alloc.deadline_ns = b & 0x40 ? f->now_ns + word(f) % 5000 : 0;
		break;
	case MM_LEASE_DUP:
	case MM_DROP_HEAD:
		r->lease.lease = pick(f, &f->lease);
		r->lease.depth_pages = b >= 0xf8 ? word(f) : b % 8;
		break;
	case MM_PARK:
	case MM_RESUME:
	case MM_UNPARK:
		r->park.lease = pick(f, &f->lease);
		r->park.park = pick(f, &f->park);
		break;
	case MM_RESERVE:
		r->reserve.device = b % 3;
		r->reserve.what = b / 3 % 4;
		r->reserve.bytes = b >= 0xf8 ? ~0ull - b : 512ull * (b >> 2);
		break;
	case MM_TENANT_SET:
		r->tenant.tenant = b % 4;
		r->tenant.device = b & 8 ? b >> 4 & 3 : MM_ALL_DEVICES;
		r->tenant.oom_action = b >> 6;
		r->tenant.limits = (struct mm_limits){
			512ull * byte(f), 512ull * byte(f), MM_NO_LIMIT, 512ull * byte(f),
		};
		if (byte(f) & 1)
			r->tenant.limits = (struct mm_limits){ 0, 0, MM_NO_LIMIT, MM_NO_LIMIT };
		break;
	default:
		r->ack.extent = b % 16;
		r->ack.seq = b >> 4;
		r->ack.bytes = 64ull * b;
	}
	submit(f, r, NULL, NULL, NULL);
}

/* Likelier what makes pages and content than what ends them. */
static enum mm_op pick_op(uint32_t b)
{
	static const uint8_t often[] = {
		MM_ALLOC, MM_ALLOC, MM_COMMIT, MM_COMMIT, MM_COMMIT, MM_LOOKUP, MM_LOOKUP, MM_FREE,
		MM_UNLEASE, MM_PARK, MM_RESUME, MM_IMPORT, MM_CACHE_OPEN, MM_LEASE_DUP,
	};

	return b < 0x30 ? b % (MM_NR_OPS + 1) : often[b % sizeof(often)];
}

static void fuzz_request(struct fuzz *f, uint32_t op)
{
	struct mm_request r;
	uint32_t b = byte(f);

	memset(&r, 0, sizeof(r));
	r.op = pick_op(op);
	r.engine = pick(f, &f->engine);
	r.member = pick(f, &f->member);
	r.cache = pick(f, &f->cache);
	r.group = b >= 0xf0 ? word(f) : b % 3;
	r.flags = b >> 2 & 3;
	switch (r.op) {
	case MM_CACHE_OPEN:
		fuzz_open(f, &r);
		break;
	case MM_FREE:
		fuzz_free(f, &r);
		break;
	case MM_LOOKUP:
		fuzz_lookup(f, &r);
		break;
	case MM_COMMIT:
		fuzz_commit(f, &r, b);
		break;
	case MM_UNLEASE:
		fuzz_unlease(f, &r);
		break;
	default:
		fuzz_plain(f, &r);
	}
}

static void fuzz_step(struct fuzz *f)
{
	uint32_t b = byte(f);

	if (b >= 0xe8) {
		complete(f, byte(f));
	} else if (b >= 0xe0) {
		f->now_ns += word(f) % 100000;
		mm_tick(f->mm, f->now_ns, 1 + byte(f) % 16);
	} else {
		fuzz_request(f, b);
	}
	drain(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct fuzz *f = calloc(1, sizeof(*f));
	size_t footprint;
	void *mem;

	if (!f)
		abort();
	f->data = data;
	f->len = len;
	pick_config(f);
	pick_descs(f);
	footprint = mm_footprint(&f->cfg);
	if (!footprint)
		abort();	/* all of these are in range */
	mem = aligned_alloc(64, (footprint + 63) / 64 * 64);
	if (!mem)
		abort();
	memset(mem, 0xa5, footprint);
	if (mm_init(&f->mm, mem, footprint, &f->cfg))
		abort();
	for (uint32_t i = 0; f->len && i < MAX_OPS; i++) {
		fuzz_step(f);
		if (i % CHECK_EVERY == 0)
			mm_check(f->mm);
	}
	mm_check(f->mm);
	free(mem);
	free(f);
	return 0;
}
