/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch_world - four clients, one mm, one device without memory: the stage of the dispatch tests
 *
 * Model:      call() is a client's request and its answer; begin() and finish() are its halves.
 *             Each *_sqe() puts a well-formed input into the client's data area and returns the
 *             entry for it, so a test damages what it is about and nothing else. mm_check runs at
 *             each step.
 * Ownership:  setup() makes a world of its own for each test, teardown() ends it.
 * Context:    a header, since each test is one program; it defines mm_panic.
 * See:        dispatch_test.c (the entry), dispatch_ops_test.c (what ops do), fake_dev.h
 */
#ifndef DISPATCH_WORLD_H
#define DISPATCH_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "srv/dispatch.h"
#include "fake_dev.h"

#define MIB		(1ull << 20)
#define DATA_BYTES	(256u << 10)
#define OUT_OFF		(128u << 10)	/* inputs below, outputs from here on */
#define PAGE_TOKENS	16u
#define SLOTS		64

void mm_panic(const char *what, const char *file, int line)
{
	fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, what);
	abort();
}

enum who { A, B, OTHER, MEMBER, NR_CLIENTS };	/* A, B: one tenant; MEMBER: of A's engine */

struct slot {
	bool used, done;
	int client;			/* -1: raw request, reply kept */
	struct dispatch_pending pending;
	struct kv_cqe cqe;
	struct mm_reply reply;
};

struct world {
	struct exec *x;
	struct fake_dev dev;
	struct dispatch_client client[NR_CLIENTS];
	uint8_t data[NR_CLIENTS][DATA_BYTES];
	uint64_t scratch[NR_CLIENTS][DATA_BYTES / 8];
	struct slot slot[SLOTS];
	uint64_t now_ns;
	uint32_t nr_notified;
};

static inline void on_reply(void *ctx, const struct mm_reply *r)
{
	struct world *w = ctx;
	struct slot *s = &w->slot[r->cookie];

	assert_true(r->cookie < SLOTS && s->used && !s->done);
	s->done = true;
	s->reply = *r;
	if (s->client >= 0)
		dispatch_reply(&w->client[s->client], &s->pending, r, &s->cqe);
}

static inline void on_notify(void *ctx, uint32_t member)
{
	struct world *w = ctx;

	assert_int_not_equal(member, MM_NO_ID);
	w->nr_notified++;
}

static const struct exec_ops callbacks = { .reply = on_reply, .notify = on_notify };

static inline uint32_t slot_get(struct world *w, int client)
{
	for (uint32_t i = 0; i < SLOTS; i++) {
		if (!w->slot[i].used) {
			w->slot[i] = (struct slot){ .used = true, .client = client };
			return i;
		}
	}
	fail_msg("no slot left");
	return 0;
}

static inline void run(struct world *w)
{
	exec_run(w->x, w->now_ns);
	mm_check(exec_mm(w->x));
}

static inline struct mm_reply raw(struct world *w, struct mm_request req)
{
	uint32_t i = slot_get(w, -1);

	req.cookie = i;
	assert_int_equal(exec_submit(w->x, &req, w->now_ns), 0);
	run(w);
	assert_true(w->slot[i].done);
	w->slot[i].used = false;
	return w->slot[i].reply;
}

/* Begin a call; the slot's number, for finish(). */
static inline uint32_t begin(struct world *w, enum who who, struct kv_sqe sqe)
{
	uint32_t i = slot_get(w, who);
	struct slot *s = &w->slot[i];

	sqe.user_data = 0xabc000 + i;
	s->done = dispatch_submit(w->x, &w->client[who], &sqe, i, w->now_ns, &s->pending,
				  &s->cqe) == 1;
	run(w);
	return i;
}

static inline bool finished(struct world *w, uint32_t i)
{
	return w->slot[i].done;
}

static inline struct kv_cqe finish(struct world *w, uint32_t i)
{
	assert_true(w->slot[i].done);
	assert_int_equal(w->slot[i].cqe.user_data, 0xabc000 + i);
	w->slot[i].used = false;
	return w->slot[i].cqe;
}

static inline struct kv_cqe call(struct world *w, enum who who, struct kv_sqe sqe)
{
	return finish(w, begin(w, who, sqe));
}

#define expect(cqe, error, why) do { \
	struct kv_cqe got = (cqe); \
	assert_int_equal(got.res, error); \
	assert_int_equal(got.reason, why); \
	assert_true(!got.res || !got.out_bytes); \
} while (0)

static inline void *out(struct world *w, enum who who)
{
	return w->data[who] + OUT_OFF;
}

static inline void attach(struct world *w, enum who who, uint32_t uid)
{
	struct mm_reply r = raw(w, (struct mm_request){
		.op = MM_ENGINE_ATTACH, .attach = { uid } });

	assert_int_equal(r.result, 0);
	w->client[who].engine = r.engine;
	w->client[who].member = r.member;
	w->client[who].lead = true;
}

static inline int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	uint64_t pool = 32 * MIB;
	struct mm_config cfg;
	struct mm_reply r;
	struct dev *dev;

	assert_non_null(w);
	w->now_ns = 1000;
	exec_default_config(&cfg, 1, &pool, 0);
	cfg.max_parks = 8;
	cfg.batch_pages = 512;
	dev = fake_init(&w->dev);
	assert_int_equal(exec_create(&w->x, &cfg, &dev, &callbacks, w), 0);
	for (int i = 0; i < NR_CLIENTS; i++) {
		w->client[i].data = w->data[i];
		w->client[i].data_bytes = DATA_BYTES;
		w->client[i].scratch = w->scratch[i];
		w->client[i].batch_pages = cfg.batch_pages;
	}
	attach(w, A, 100);
	attach(w, B, 100);
	attach(w, OTHER, 200);
	r = raw(w, (struct mm_request){ .op = MM_MEMBER_ATTACH, .engine = w->client[A].engine });
	assert_int_equal(r.result, 0);
	w->client[MEMBER].engine = w->client[A].engine;
	w->client[MEMBER].member = r.member;
	*state = w;
	return 0;
}

static inline int teardown(void **state)
{
	struct world *w = *state;

	exec_destroy(w->x);
	assert_true(w->dev.ended);
	free(w);
	return 0;
}

/* ---- building requests --------------------------------------------------------------------- */

static inline struct kv_cache_desc desc_of(uint8_t key, uint32_t nr_groups)
{
	struct kv_cache_desc d = {
		.page_tokens = PAGE_TOKENS, .nr_groups = nr_groups, .nr_shards = 1,
	};

	memset(d.model_key, key, sizeof(d.model_key));
	memset(d.layout_key, 7, sizeof(d.layout_key));
	for (uint32_t g = 0; g < nr_groups; g++) {
		d.group[g].kind = g ? 2 : 1;
		d.group[g].window_tokens = g ? 2 * PAGE_TOKENS : 0;
		d.shard[0].page_bytes[g] = 4096;
	}
	return d;
}

static inline struct kv_sqe open_sqe(struct world *w, enum who who, const struct kv_cache_desc *d)
{
	memcpy(w->data[who], d, sizeof(*d));
	return (struct kv_sqe){
		.op = KV_OP_CACHE_OPEN, .in_bytes = sizeof(*d), .out_off = OUT_OFF,
		.out_bytes = sizeof(struct kv_cache_geom),
	};
}

static inline uint32_t open_cache(struct world *w, enum who who, uint8_t key, uint32_t nr_groups)
{
	struct kv_cache_desc d = desc_of(key, nr_groups);
	struct kv_cqe c = call(w, who, open_sqe(w, who, &d));

	expect(c, 0, KV_OK);
	assert_int_not_equal(c.id, 0);
	return c.id;
}

static inline struct kv_sqe alloc_sqe(uint32_t cache, uint32_t group, uint32_t nr, uint64_t ms)
{
	return (struct kv_sqe){
		.op = KV_OP_ALLOC, .cache = cache, .group = (uint16_t)group, .nr = nr, .arg = ms,
		.out_off = OUT_OFF, .out_bytes = nr * 8,
	};
}

static inline void alloc(struct world *w, enum who who, uint32_t cache, uint32_t group,
			 uint64_t *ids, uint32_t nr)
{
	struct kv_cqe c = call(w, who, alloc_sqe(cache, group, nr, 1000));

	expect(c, 0, KV_OK);
	assert_int_equal(c.nr, nr);
	assert_int_equal(c.out_bytes, nr * 8);
	memcpy(ids, out(w, who), nr * 8);
}

static inline struct kv_sqe ids_sqe(struct world *w, enum who who, uint8_t op, const void *ids,
			     uint32_t nr, uint32_t size)
{
	memcpy(w->data[who] + 64, ids, nr * size);
	return (struct kv_sqe){ .op = op, .nr = nr, .in_off = 64, .in_bytes = nr * size };
}

static inline struct kv_sqe free_sqe(struct world *w, enum who who, const uint64_t *ids,
				     uint32_t nr)
{
	return ids_sqe(w, who, KV_OP_FREE, ids, nr, 8);
}

static inline struct kv_sqe unlease_sqe(struct world *w, enum who who, uint32_t lease)
{
	return ids_sqe(w, who, KV_OP_UNLEASE, &lease, 1, 4);
}

static inline uint32_t put_tokens(uint8_t *at, uint32_t first, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++) {
		uint32_t token = first + i;

		memcpy(at + 4 * i, &token, 4);
	}
	if (nr & 1)
		memset(at + 4 * nr, 0, 4);
	return (4 * nr + 7) & ~7u;
}

static inline struct kv_sqe lookup_sqe(struct world *w, enum who who, uint32_t cache, uint32_t nr,
				uint32_t nr_keys, uint32_t groups)
{
	struct kv_lookup_in in = { nr, nr_keys };
	uint32_t at = sizeof(in);

	memcpy(w->data[who], &in, sizeof(in));
	at += put_tokens(w->data[who] + at, 1, nr);
	for (uint32_t i = 0; i < nr_keys; i++) {
		struct kv_page_key k = { .page = i };

		k.digest[0] = 1;
		memcpy(w->data[who] + at, &k, sizeof(k));
		at += sizeof(k);
	}
	return (struct kv_sqe){
		.op = KV_OP_LOOKUP, .cache = cache, .in_bytes = at, .out_off = OUT_OFF,
		.out_bytes = sizeof(struct kv_match_out) + nr / PAGE_TOKENS * groups * 8,
	};
}

/* nr_pages full pages of tokens 1, 2, ...; pages[group][nr_pages]. */
static inline struct kv_sqe commit_sqe(struct world *w, enum who who, uint32_t cache,
				const uint64_t *pages, uint32_t nr_pages, uint32_t groups)
{
	struct kv_commit_in in = { nr_pages * PAGE_TOKENS, nr_pages, groups, 0 };
	uint32_t at = sizeof(in);

	memcpy(w->data[who], &in, sizeof(in));
	at += put_tokens(w->data[who] + at, 1, in.nr_tokens);
	memcpy(w->data[who] + at, pages, 8ul * nr_pages * groups);
	return (struct kv_sqe){
		.op = KV_OP_COMMIT, .cache = cache, .in_bytes = at + 8 * nr_pages * groups,
		.out_off = OUT_OFF, .out_bytes = 8 * nr_pages * groups,
	};
}

/* Three committed pages of one group: the lease on them. */
static inline uint32_t commit_three(struct world *w, enum who who, uint32_t cache, uint64_t *ids)
{
	struct kv_cqe c;

	alloc(w, who, cache, 0, ids, 3);
	c = call(w, who, commit_sqe(w, who, cache, ids, 3, 1));
	expect(c, 0, KV_OK);
	assert_int_equal(c.nr, 3);
	assert_int_not_equal(c.id, 0);
	return c.id;
}

static inline struct kv_sqe id_sqe(uint8_t op, uint32_t id)
{
	return (struct kv_sqe){ .op = op, .id = id };
}

static inline struct kv_sqe resume_sqe(uint32_t park, uint32_t out_bytes)
{
	return (struct kv_sqe){
		.op = KV_OP_RESUME, .id = park, .out_off = OUT_OFF, .out_bytes = out_bytes,
	};
}

#define IN_WORLD(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

#endif
