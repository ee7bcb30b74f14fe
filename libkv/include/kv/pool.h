/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h - connect to a KV-cache pool
 *
 * A pool belongs to kvd (spec "unix:PATH") or lives in this process ("embedded:host:SIZE", SIZE as
 * 64M or 1G): same calls, same memory manager.
 *
 * Errors: every call that returns int gives 0 or -errno and leaves one line for people in
 *   kv_error(). -EINVAL argument, -ENOENT no such thing, -ESTALE page generation, -ENOMEM pool,
 *   -EDQUOT tenant limit, -EAGAIN try later, -EBUSY leased, -EPIPE the daemon or the session is
 *   gone (every later call says so too), -EPROTO broken peer, -EACCES permission. Nothing has
 *   changed on error unless a call says otherwise.
 * Threads: calls on one struct kv and everything opened from it must be serialised by the caller;
 *   different struct kv are independent. Calls marked [concurrent] may run in parallel with each
 *   other on the same objects. kv_error() is per thread.
 * fork(2): a child must not use its parent's struct kv; the pool's memory is not inherited.
 */
#ifndef KV_POOL_H
#define KV_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KV_API __attribute__((visibility("default")))

struct kv;

/* Give back about bytes (0: whatever you can) before the deadline: kv_seq_park() idle sequences,
 * kv_seq_release() others, free raw pages. Called from inside kv_poll() or a call that waits; may
 * call libkv. What libkv keeps at hand for later allocations has gone back already; without a
 * callback that is all that is given. */
typedef void kv_pressure_fn(void *ctx, struct kv *, uint64_t bytes, uint64_t deadline_ns);

/* kvd wants an extent empty and libkv cannot move what is left there: pages the engine allocated
 * itself (kv_page_extent() of their ids is extent) and, of a cache with several shards, those of
 * sequences. Of its own pages the engine allocates new ones (never of this extent), has each rank
 * copy its bytes and frees the old ones; a sequence it may park or release. What it leaves stays
 * where it is, and so it is without a callback: pages in use are never taken. Called from inside
 * kv_poll() only, at each one until the extent is left or the deadline passes; may call libkv. */
typedef void kv_vacate_fn(void *ctx, struct kv *, uint32_t extent, uint64_t deadline_ns);

struct kv_options {
	const char *name; /* for people (kvctl engines); default: the program's name */
	const uint8_t
		*member_token; /* 16 bytes from kv_member_token() of the lead: join its engine */
	uint32_t rank;			/* the shard this process maps; 0 for a lead */
	/* How long an allocation may wait for room that others must give. 0: not for them, but
	 * up to 50 ms a try for cached pages that the pool takes back by itself. */
	uint32_t wait_ms;
	kv_pressure_fn *on_pressure;	/* may be NULL */
	void *ctx;			/* of both callbacks */
	kv_vacate_fn *on_vacate;	/* may be NULL */
};

/* opts may be NULL. */
KV_API int kv_open(const char *spec, const struct kv_options *opts, struct kv **);

/* Releases everything opened from it, unmaps the pool, says goodbye. NULL is allowed. */
KV_API void kv_close(struct kv *);

/* The last error of this thread as one line: the thing, the limit, the way out. Never NULL. */
KV_API const char *kv_error(void);

/* 16 bytes that let other processes of the same user join this engine as members. */
KV_API int kv_member_token(const struct kv *, uint8_t token[16]);

/* Serve what the daemon asks for: unmap retired memory, shrink, leave extents. Every call that
 * talks to the daemon does this too, but for leaving extents; so a busy engine calls kv_poll() now
 * and then, between two steps, and an idle one when kv_event_fd() is readable.
 * Leaving extents may take a while: 50 ms for each try to get room, besides the copies.
 * It may move pages that sequences hold: no work that reads or writes pages of this engine (kernels
 * of any rank, kv_seq_store(), kv_attn()) may be running, and page ids and PTEs that were fetched
 * before are to be fetched again where kv_seq_pte_version() says so. No other call moves pages. */
KV_API int kv_poll(struct kv *);
KV_API int kv_event_fd(const struct kv *);

enum kv_reserve_what { KV_RESERVE_WEIGHTS, KV_RESERVE_ACTIVATIONS, KV_RESERVE_OTHER };

/* Bytes of device memory outside the pool that the pool must leave alone from now on. Absolute,
 * apart for each engine, device and purpose (enum kv_reserve_what); 0 gives back; gone with the
 * engine. Cached pages make way: it waits for them up to kv_options.wait_ms (50 ms at least), then
 * -EAGAIN. -ENOMEM if it does not fit beside what others hold, reserved or were promised. */
KV_API int kv_reserve(struct kv *, uint32_t device, uint64_t bytes, uint32_t what);

struct kv_info {
	uint32_t engine, member, rank, nr_devices;
	bool embedded;
	uint64_t pool_bytes;		/* of device 0 */
	uint64_t held_pages, held_bytes, extent_bytes, reserved_bytes;
	uint64_t allocs, frees, commits, lookup_tokens, hit_tokens;
	uint32_t nr_extents, nr_leases, nr_parks, nr_members;
};

KV_API int kv_info(struct kv *, struct kv_info *);

/* "1.5 GiB"-style sizes: parse "64M", "1.5GiB", "1073741824". -EINVAL on anything else. */
KV_API int kv_parse_size(const char *text, uint64_t *bytes);

KV_API const char *kv_version(void);

#ifdef __cplusplus
}
#endif

#endif
