/* SPDX-License-Identifier: Apache-2.0 */
/* kv_abi - what kvd and its clients say to each other, version 1
 *
 * Model:      One SOCK_SEQPACKET connection per process carries the handshake, the fds of extents
 *             and nothing else. Everything else goes through one memfd, made and sealed by kvd:
 *
 *               | kv_shm_header | SQ: sq_entries x 64 B | CQ: cq_entries x 64 B | data area |
 *
 *             The client owns the data area and names pieces of it by offset; kvd copies a piece
 *             once, then checks the copy.
 * Invariants: fixed-size structs, little-endian, no pointers, no implicit padding (asserted
 *             below); a reserved field must be zero or the request is refused with -EINVAL.
 * Ownership:  client writes sq_tail, cq_head, SQ entries, the data area; kvd writes the rest.
 * Units:      bytes unless the name says otherwise; offsets from the start of the data area.
 * Errors:     cqe.res is 0 or -errno, cqe.reason says why (enum kv_reason), cqe.val[] by reason.
 *             A malformed entry gets -EINVAL/-EPROTO in its cqe; a broken ring index ends the
 *             session. Growth: new ops and flags need a feature bit in both hellos.
 * See:        docs/abi.md, kv_ring.h (the ring protocol and its barriers). Uses nothing of ours.
 */
#ifndef KV_ABI_H
#define KV_ABI_H

#include <stdint.h>

#define KV_ABI_MAGIC	0x3144564bu	/* "KVD1" */
#define KV_ABI_VERSION	1u
#define KV_FEATURES	0ull		/* bits both sides must know; none yet */

#define KV_MAX_GROUPS	8
#define KV_MAX_SHARDS	16
#define KV_KEY_BYTES	32
#define KV_TOKEN_BYTES	16
#define KV_NAME_BYTES	32
#define KV_TEXT_BYTES	200

/* ---- socket messages: one struct a packet -------------------------------------------------- */

enum kv_msg_type {
	KV_MSG_HELLO = 1,	/* client -> kvd, first packet */
	KV_MSG_WELCOME,		/* kvd -> client, with fds: ring memfd, sq eventfd, cq eventfd */
	KV_MSG_IMPORT,		/* client -> kvd: I want to map (extent, shard) */
	KV_MSG_EXTENT,		/* kvd -> client: the answer, with one fd if result is 0 */
	KV_MSG_BYE,		/* client -> kvd: everything is unmapped; no quarantine needed */
};

#define KV_HELLO_MEMBER	1u	/* join the engine whose lead holds member_token */

struct kv_msg_hello {
	uint32_t type, magic, version, flags;
	uint64_t features;
	uint8_t member_token[KV_TOKEN_BYTES];
	char name[KV_NAME_BYTES];	/* for people; printable ASCII, NUL-padded */
	uint32_t rank;			/* member's shard: 0 for a lead */
	uint32_t reserved[5];
};

struct kv_msg_welcome {
	uint32_t type, magic, version;
	int32_t result;			/* -errno: no fds follow */
	uint64_t features;
	uint32_t engine, member;
	uint8_t member_token[KV_TOKEN_BYTES];	/* lead only: give it to your ranks */
	uint64_t shm_bytes, data_offset, data_bytes;
	uint32_t sq_entries, cq_entries, sq_offset, cq_offset;
	uint32_t batch_pages;		/* most pages one request may name */
	uint32_t nr_devices;
	uint64_t pool_bytes;		/* of device 0 */
	uint32_t reserved[4];
	char text[KV_TEXT_BYTES];	/* welcome: the tenant's name; else why not */
};

struct kv_msg_import {
	uint32_t type, extent, shard, reserved;
	uint64_t user_data;
};

struct kv_msg_extent {
	uint32_t type;
	int32_t result;
	uint32_t extent, shard;
	uint64_t user_data;
	uint64_t bytes;
	uint32_t writable;
	uint32_t reserved[3];
};

struct kv_msg_bye {
	uint32_t type, reserved;
};

/* ---- shared memory ------------------------------------------------------------------------- */

/* Bits of kv_shm_header.events: level-triggered, set by kvd, fetched with KV_OP_EVENTS. */
#define KV_EVENT_PENDING	1u

struct kv_shm_header {
	/* written by kvd */
	uint32_t sq_head __attribute__((aligned(64)));
	uint32_t sq_need_wakeup;	/* kvd sleeps: write the sq eventfd after publishing */
	uint32_t cq_tail __attribute__((aligned(64)));
	uint32_t events;
	uint32_t dead; /* kvd ended this session: every call is -EPIPE from now on */
	/* written by the client */
	uint32_t sq_tail __attribute__((aligned(64)));
	uint32_t cq_head __attribute__((aligned(64)));
	uint32_t cq_need_wakeup;	/* the client sleeps in poll() on the cq eventfd */
	uint32_t pad[14];
};

enum kv_op {
	KV_OP_NOP = 0,
	KV_OP_CACHE_OPEN,  /* nr min_pages promised of every group (0: none), in: struct
			    * kv_cache_desc -> cqe.id cache; out: struct kv_cache_geom */
	KV_OP_CACHE_CLOSE, /* cache; -EBUSY while pages or leases of it are held */
	KV_OP_ALLOC,	   /* cache, group, nr (pages), arg deadline_ms -> out: u64 ids[nr] */
	KV_OP_FREE,	   /* in: u64 ids[nr] */
	KV_OP_LOOKUP,	   /* cache, in: tokens, keys -> out: struct kv_match_out + ids */
	KV_OP_COMMIT,	   /* cache, id lease, in: struct kv_commit_in + arrays -> out: ids */
	KV_OP_LEASE_DUP,   /* id lease, nr depth_pages (0 whole) -> cqe.id */
	KV_OP_UNLEASE,	   /* in: u32 leases[nr] */
	KV_OP_PARK,	   /* id lease -> cqe.id park */
	KV_OP_RESUME,	   /* id park -> as LOOKUP */
	KV_OP_UNPARK,	   /* id park */
	KV_OP_DROP_HEAD,   /* id lease, group, nr depth_pages */
	KV_OP_RESERVE,	   /* id device, group what (0 weights, 1 activations, 2 other), arg
			    * bytes (absolute; 0 gives back); -EAGAIN: cached pages make room */
	KV_OP_UNIMPORT,	   /* id extent, nr shard: I have unmapped it */
	KV_OP_EVENTS,	   /* -> out: struct kv_event[], cqe.id count; clears KV_EVENT_PENDING */
	KV_OP_PRESSURE_ACK, /* id seq, arg bytes given back */
	KV_OP_VACATE_ACK,   /* id extent */
	KV_OP_STAT,	    /* -> out: struct kv_stat */
	KV_OP_HINT,	    /* id lease, in: struct kv_hint_in */
	KV_NR_OPS,
};

#define KV_SQE_PARTIAL	1u	/* COMMIT: last page partial, given up */
#define KV_SQE_ADOPT	2u	/* LOOKUP, RESUME: may take over a partial tail */
#define KV_SQE_GIVE_BACK	4u /* CACHE_CLOSE: all that the engine has in the cache */

struct kv_sqe {
	uint8_t op;
	uint8_t flags;
	uint16_t group;
	uint32_t cache;
	uint64_t user_data;
	uint32_t id;			/* lease, park, extent, device or seq, by op */
	uint32_t nr;			/* pages, leases, depth or shard, by op */
	uint64_t arg;
	uint64_t in_off, out_off;
	uint32_t in_bytes, out_bytes;	/* exact size of the input; room for the output */
	uint64_t reserved;
};

struct kv_cqe {
	uint64_t user_data;
	int32_t res;
	uint32_t reason;		/* enum kv_reason when res < 0 */
	uint32_t id, nr;
	uint64_t val[2];		/* limit and use, by reason */
	uint32_t out_bytes;		/* written at out_off */
	uint32_t flags;
	uint64_t reserved[2];
};

/* Why. The same numbers as mm's reasons (asserted in srv/dispatch.c), ours above 64. */
enum kv_reason {
	KV_OK = 0,
	KV_BAD_ARGUMENT,
	KV_NO_SUCH_ID,
	KV_STALE_PAGE,
	KV_NOT_OWNER,
	KV_POOL_FULL,
	KV_TENANT_MAX,
	KV_TABLE_FULL,
	KV_FENCED,
	KV_LEASED,
	KV_TIMED_OUT,
	KV_LAYOUT_DIFFERS,
	KV_BAD_ENTRY = 64, /* the sqe itself: unknown op, flag, reserved field, offset or size */
	KV_NOT_LEAD,	   /* a member may only import, unimport and ask for events */
};

/* ---- what stands in the data area ---------------------------------------------------------- */

struct kv_group_desc {
	uint32_t kind;			/* 1 full, 2 window, 3 state */
	uint32_t window_tokens;
	uint32_t opaque;
	uint32_t reserved;
};

struct kv_shard_desc {
	uint32_t device, replicated;
	uint64_t page_bytes[KV_MAX_GROUPS];
};

struct kv_cache_desc {
	uint8_t model_key[KV_KEY_BYTES];
	uint8_t layout_key[KV_KEY_BYTES];
	uint32_t page_tokens, nr_groups, nr_shards, reserved;
	struct kv_group_desc group[KV_MAX_GROUPS];
	struct kv_shard_desc shard[KV_MAX_SHARDS];
};

struct kv_cache_geom {
	uint32_t extent_pages[KV_MAX_GROUPS];
	uint64_t extent_bytes[KV_MAX_GROUPS][KV_MAX_SHARDS];
};

struct kv_page_key {
	uint32_t page, reserved;
	uint8_t digest[KV_KEY_BYTES];
};

/* LOOKUP in: struct kv_lookup_in, u32 tokens[nr_tokens] padded to 8 bytes, kv_page_key[nr_keys].
 * LOOKUP and RESUME out: struct kv_match_out, then u64 ids[nr_groups][nr_pages]. */
struct kv_lookup_in {
	uint32_t nr_tokens, nr_keys;
};

struct kv_match_out {
	uint32_t lease, nr_pages, nr_groups;
	uint32_t tail_tokens, tail_lease, tail_adopted;
	uint64_t tail_pages[KV_MAX_GROUPS];
};

/* COMMIT in: struct kv_commit_in, u32 tokens[nr_tokens] padded to 8, u64 ids[nr_groups][nr_pages],
 * kv_page_key[nr_keys]. out: u64 ids[nr_groups][nr_pages] of the chain; cqe.id the new lease. */
struct kv_commit_in {
	uint32_t nr_tokens, nr_pages, nr_groups, nr_keys;
};

/* HINT: what the engine knows of the future of pages [from_page, to_page) of the chain of a lease;
 * to_page 0: to the end. Advice only. */
struct kv_hint_in {
	uint32_t from_page, to_page;
	uint32_t priority;		/* 0 low, 1 normal, 2 high */
	uint32_t reuse_ms;		/* expected next use, from now; 0: not known */
	uint32_t ttl_ms;		/* of no use after; 0: no end */
	uint32_t reserved;
};

struct kv_event {
	uint32_t kind;			/* 1 retire, 2 pressure, 3 vacate */
	uint32_t extent, seq, reserved;
	uint64_t bytes, deadline_ns;	/* CLOCK_MONOTONIC */
};

struct kv_stat {
	uint64_t held_pages, held_bytes, quarantined_pages, extent_bytes, reserved_bytes;
	uint64_t allocs, frees, lookup_tokens, hit_tokens, commits;
	uint32_t nr_extents, nr_leases, nr_parks, nr_members;
};

#define KV_ABI_ASSERT(type, size) \
	_Static_assert(sizeof(type) == (size), #type " must stay " #size " bytes in v1")
KV_ABI_ASSERT(struct kv_msg_hello, 96);
KV_ABI_ASSERT(struct kv_msg_welcome, 320);
KV_ABI_ASSERT(struct kv_msg_import, 24);
KV_ABI_ASSERT(struct kv_msg_extent, 48);
KV_ABI_ASSERT(struct kv_msg_bye, 8);
KV_ABI_ASSERT(struct kv_sqe, 64);
KV_ABI_ASSERT(struct kv_cqe, 64);
KV_ABI_ASSERT(struct kv_cache_desc, 80 + 8 * 16 + 16 * 72);
KV_ABI_ASSERT(struct kv_cache_geom, 32 + 1024);
KV_ABI_ASSERT(struct kv_match_out, 24 + 64);
KV_ABI_ASSERT(struct kv_hint_in, 24);
KV_ABI_ASSERT(struct kv_event, 32);
KV_ABI_ASSERT(struct kv_stat, 96);

#endif
