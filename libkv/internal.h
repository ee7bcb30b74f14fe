/* SPDX-License-Identifier: Apache-2.0 */
/* internal - what libkv's own files know of each other: struct kv and struct kv_cache
 *
 * Model:      a struct kv reaches its pool through link_ops: remote.c speaks to kvd over the ring,
 *             embed.c runs the same mm in this process. Everything above (page, cache, event, map,
 *             magazine) sees only calls (call.h) and link_ops.
 *
 *                page.c cache.c event.c -> call.c -> link_ops: remote.c (queue.c) | embed.c
 *
 * Ownership:  kv owns caches, map and data area; a cache owns its magazines and match arrays; its
 *             sequences (seq.c) hang off cache->seqs and are released by cache->on_close, its pins
 *             (hint.c) by hint_drop().
 * Context:    one thread at a time per kv, as pool.h says.
 */
#ifndef INTERNAL_H
#define INTERNAL_H

#include <kv/kv.h>
#include "err.h"
#include "kv_abi.h"
#include "magazine.h"
#include "map.h"

struct call;
struct hint_pin;

/* What an import gives: the caller owns fd. */
struct link_extent {
	int fd;
	uint64_t bytes;
	bool writable;
};

struct link_ops {
	/* Hand c to the pool and wait until c->done; 0, or -EPIPE/-EPROTO when the link broke. */
	int (*call)(struct kv *, struct call *c);
	int (*import)(struct kv *, uint32_t extent, uint32_t shard, struct link_extent *out);
	bool (*pending)(struct kv *); /* events wait to be fetched; also does what is due */
	/* The engine may sleep on kv_event_fd() from now on: old wake-ups are read away. */
	void (*arm)(const struct kv *);
	void (*close)(struct kv *); /* everything is unmapped */
};

/* A pressure event that was fetched where the engine's callback may not run. */
struct kv_pressure {
	bool due;
	uint32_t seq;
	uint64_t bytes, deadline_ns;
};

struct kv {
	uint32_t *guard; /* a page wiped by fork(): 1 only in the process that opened */
	const struct link_ops *ops;
	void *link;    /* struct remote or struct embed */
	uint8_t *data; /* data area; used grows and shrinks like a stack */
	uint64_t data_bytes, data_used;
	struct call *calls; /* in flight, innermost first */
	struct map map;
	struct kv_cache *caches;
	uint32_t engine, member, rank, nr_devices, batch_pages, wait_ms;
	bool is_member, embedded;
	bool dead;    /* -EPIPE for ever */
	bool serving; /* inside event.c: do not start it again */
	bool vacating; /* pages are allocated to leave an extent: the pool may make room for them */
	uint8_t token[KV_TOKEN_BYTES];
	uint64_t pool_bytes;
	uint64_t given_bytes; /* pages given back so far, for pressure acks */
	uint64_t retired;     /* extents unmapped on demand so far */
	struct kv_pressure pressure;
	bool vacate_due; /* pages are held in an extent that is to be left: kv_poll() moves them */
	kv_pressure_fn *on_pressure;
	kv_vacate_fn *on_vacate;
	void *ctx;
	int epoll_fd;	 /* kv_event_fd(): due_fd and what the link adds */
	int due_fd;	 /* readable while an event waits for kv_poll() */
	char where[128]; /* the spec, for messages */
	char tenant[KV_NAME_BYTES]; /* who pays, for messages */
};

struct kv_cache {
	struct magazine *mag[KV_MAX_GROUPS]; /* first: the hot path reads only these two */
	uint32_t nr_groups;
	uint32_t id;
	struct kv *kv;
	struct kv_cache *next;
	uint32_t page_tokens, nr_shards;
	struct kv_group group[KV_MAX_GROUPS];	/* as opened; layout of the whole model */
	struct kv_layout layout[KV_MAX_GROUPS]; /* of this rank */
	float *k_scale[KV_MAX_GROUPS];		/* scale.c's: [layers][kv_heads] of this rank, */
	float *v_scale[KV_MAX_GROUPS];		/* or NULL */
	uint64_t page_bytes[KV_MAX_GROUPS];	/* of this rank: the stride inside an extent */
	uint64_t charge_bytes[KV_MAX_GROUPS];	/* a page in all shards */
	uint64_t extent_bytes[KV_MAX_GROUPS];	/* of this rank; 0: not known yet (member) */
	uint32_t extent_pages[KV_MAX_GROUPS];	/* 0: not known yet (member) */
	uint64_t *match_ids;			/* behind kv_match.pages */
	uint64_t match_cap;
	struct hint_pin *pins;		     /* hint.c's: [nr_pins] */
	uint32_t nr_pins, cap_pins;
	void *seqs;			     /* seq.c's */
	void (*on_close)(struct kv_cache *); /* seq.c: release what is left; may be NULL */
	/* seq_move.c: move what sequences hold in an extent of a group; may be NULL */
	int (*on_leave)(struct kv_cache *, uint32_t group, uint32_t extent);
};

/* setup.c: from now on every call is -EPIPE; the magazines are emptied so that they say so too. */
int kv_mark_dead(struct kv *, const char *why);

/* event.c: serve what is pending. What may happen to the engine meanwhile: */
enum event_mode {
	EVENT_QUIET,	/* nothing that it sees */
	EVENT_CALLBACK, /* on_pressure may run */
	EVENT_POLL,	/* on_pressure and on_vacate may run, pages of sequences move */
};
int event_serve(struct kv *, enum event_mode);

/* page.c: ids straight to mm, in batches; of what is local only the map learns of it. wait: give
 * back what this engine hoards and wait for room. */
int page_alloc_batch(struct kv_cache *, uint32_t group, uint32_t n, uint64_t *ids, bool wait);
int page_free_batch(struct kv_cache *, uint32_t group, uint32_t n, const uint64_t *ids);

/* hint.c: give up every pin of a cache. */
void hint_drop(struct kv_cache *);

/* setup.c: let kv_event_fd() wake on fd; 0/-errno with text. */
int kv_watch(struct kv *, int fd);

/* remote.c and embed.c: fill kv->ops, link, identity and data area. */
int remote_open(struct kv *, const char *path, const struct kv_options *);
int embed_open(struct kv *, uint64_t pool_bytes, const struct kv_options *);

#endif
