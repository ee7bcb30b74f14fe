/* SPDX-License-Identifier: Apache-2.0 */
/* mm - the memory manager's only door: requests in, effects and replies out
 *
 * Model:      mm owns the *bookkeeping* of a page pool, never the bytes. A caller submits requests
 *             (mm_submit), carries out effects (mm_next_effect: create an extent, destroy it, tell
 *             somebody) and reports back (mm_complete); replies leave by mm_next_reply.
 *
 *                request --> [ mm ] --> reply
 *                   effect <--   ^--- completion, tick
 *
 *             Most replies are ready when mm_submit returns; an allocation that needs a new
 *             extent, or room somebody else is giving back, is replied to later.
 * Invariants: deterministic: same config, same calls, same mm_digest. mm_check proves every
 *             invariant and cross-module sum of the modules below.
 * Ownership:  the caller owns the memory given to mm_init; mm keeps indices, never pointers, so
 *             the memory may be mapped elsewhere later. Request arrays are read during mm_submit
 *             only. A reply's arrays are mm's and valid until the next
 *             mm_submit/mm_complete/mm_tick.
 * Context:    one thread at a time; no system call, clock, malloc, float or printing.
 * Units:      pages, tokens, bytes and ns by name; ranges are [start, end).
 * Cost:       O(1) a page for alloc, free, evict; O(log siblings) a page for lookup and commit.
 * Errors:     mm_submit returns 0 (a reply with this cookie comes, now or later) or -EAGAIN (a
 *             bound is full, nothing changed, try after draining replies and effects). The
 *             request's own outcome is mm_reply.result: 0/-errno with a reason; on error nothing
 *             has changed (but for room on its way after -ENOMEM, -EDQUOT, -EAGAIN). Bad input is
 *             an errno, a broken invariant of ours an abort.
 * See:        docs/architecture.md, docs/glossary.md, tests/unit/mm.
 */
#ifndef MM_H
#define MM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MM_MAX_GROUPS	8
#define MM_MAX_SHARDS	16
#define MM_MAX_DEVICES	8
#define MM_KEY_BYTES	32	/* digests: model key, extra key */
#define MM_MAX_WAIT_NS	3600000000000ull /* an allocation's deadline is at most so far ahead */
#define MM_NO_ID	0u	/* ids of engines, members, caches, leases, parks start at 1 */

/* A page id: extent 20 bits | slot 20 bits | generation 24 bits (never 0, so no id is 0). */
#define MM_SLOT_BITS	20
#define MM_GEN_BITS	24
#define MM_EXTENT_BITS	20

static inline uint32_t mm_page_extent(uint64_t id) { return (uint32_t)(id >> 44); }
static inline uint32_t mm_page_slot(uint64_t id) { return (uint32_t)(id >> 24) & 0xfffffu; }
static inline uint32_t mm_page_gen(uint64_t id) { return (uint32_t)id & 0xffffffu; }

struct mm_device_config {
	uint64_t pool_bytes;		/* what extents and reservations together may take */
	uint64_t extent_bytes;		/* target size of an extent (64 MiB by default) */
	uint64_t extent_align;		/* sizes are rounded up to this (2 MiB) */
	bool scrub;			/* scrub frames before another engine gets them */
	/* Free bytes: below low background reclaim starts and goes on until high; the last min are
	 * for tenants below their own min only. All 0: no background reclaim. */
	uint64_t wmark_min_bytes, wmark_low_bytes, wmark_high_bytes;
};

/* max_caches, max_leases, max_parks, max_keys, max_pending are shared by all engines: one may take
 * one more only while it has fewer than are left, so alone it gets half of a table, next to others
 * as hungry an equal part with one part left over, and a newcomer never finds a table empty. What
 * it may have at most at the moment is its share (MM_TABLE_FULL, b). Counted are caches it opened
 * first (as long as they are open or have extents on their way out), its leases, parks and waiting
 * allocations, and those of the keys it brought that leases keep from reclaim. */
struct mm_config {
	uint64_t seed;
	uint32_t nr_devices;
	struct mm_device_config device[MM_MAX_DEVICES];
	uint32_t max_tenants;
	uint32_t max_engines;
	uint32_t max_members;		/* sessions: leads and members together */
	uint32_t max_caches;
	uint32_t max_extents;
	uint32_t max_frames;
	uint32_t max_nodes;
	uint32_t max_leases;
	uint32_t max_parks;
	uint32_t max_keys;		/* distinct extra keys alive at once */
	uint32_t max_pending;		/* allocations waiting */
	uint64_t max_tokens;		/* token ids stored behind nodes */
	uint32_t batch_pages;		/* most pages one request may name or be granted */
	/* Evicted pages remembered, for refaults and the policy; 0: none. As many as the cache can
	 * have pages, but not fewer than MM_MIN_SHADOWS: a small cache learns from what it lost. */
	uint32_t max_shadows;
	uint32_t policy;		/* enum mm_policy */
	uint64_t answer_ns;	/* how long an engine has to answer pressure and vacate events */
	uint64_t idle_ns;	/* an engine that asked nothing for so long is packed; 0: never */
};

#define MM_MIN_SHADOWS		32768u

enum mm_policy {
	MM_POLICY_LRU,
	MM_POLICY_GITTINS,		/* worth of keeping a page, learnt: policy.h */
	MM_NR_POLICIES,
};

/* ---- requests ------------------------------------------------------------------------------ */

enum mm_op {
	/* ENGINE_ATTACH and CACHE_OPEN with a full table: -EAGAIN with MM_TABLE_FULL when content
	 * nobody has open was, or is being, cleared for the newcomer: ask again in a moment. */
	MM_ENGINE_ATTACH = 1,	/* -> engine id, member id of its lead */
	MM_MEMBER_ATTACH,	/* another process of the same engine -> member id */
	MM_FENCE,	/* engine: no more grants; its leases go, its held pages are quarantined */
	MM_MEMBER_GONE,	/* member: its process is gone (or said it has unmapped everything) */
	MM_CACHE_OPEN,		/* -> cache id, geometry */
	/* Engine leaves a cache. What it held or leased there must be given back before: -EBUSY, or
	 * is with MM_CLOSE_GIVE_BACK, then allocations that wait are answered -EACCES. */
	MM_CACHE_CLOSE,
	MM_IMPORT,		/* member maps (extent, shard) -> writable? */
	MM_UNIMPORT,		/* member has unmapped (extent, shard) */
	MM_ALLOC,		/* n pages of one group -> page ids */
	MM_FREE,		/* held pages -> nothing; all or none */
	MM_LOOKUP,	/* tokens -> lease on the longest cached chain, its pages, the tail match */
	MM_COMMIT,		/* tokens + held pages -> nodes; the lease moves to the new tail */
	MM_LEASE_DUP,	/* a second lease on the same chain, or on an ancestor (depth pages) */
	MM_UNLEASE,
	MM_PARK,		/* lease -> park id: reclaimable, remembered as one object */
	MM_RESUME,	/* park id -> at most what a lookup of what is left would give; ends it */
	MM_UNPARK,		/* forget a park */
	MM_DROP_HEAD,		/* lease: group pages before a depth are not needed by this lease */
	MM_RESERVE, /* bytes of a device outside the pool (0 gives back); engine's death frees */
	MM_EVENTS,		/* member: what is pending for it (level, not edge) */
	MM_PRESSURE_ACK,	/* engine: answered pressure seq */
	MM_VACATE_ACK,	/* engine: holds nothing in extent any more; -EBUSY, a: it does */
	MM_STAT,		/* engine: its own numbers */
	/* Limits of a tenant on one device or all; makes the tenant, which then stays as long as
	 * something is not at its default. -EINVAL; -ENOMEM MM_POOL_FULL when the mins of all
	 * tenants would not fit (a: its min, b: what is left for it), MM_TABLE_FULL. */
	MM_TENANT_SET,
	MM_HINT,		/* lease: what the engine knows about the future of its pages */
	MM_NR_OPS,
};

enum mm_group_kind {
	MM_GROUP_FULL = 1,	/* every token of the sequence */
	MM_GROUP_WINDOW,	/* the last window_tokens */
	MM_GROUP_STATE,		/* a snapshot at exactly one length */
};

struct mm_group_desc {
	uint32_t kind;			/* enum mm_group_kind */
	uint32_t window_tokens;		/* MM_GROUP_WINDOW */
	uint32_t opaque;		/* whole pages only: no tail match inside a page */
};

struct mm_shard_desc {
	uint32_t device;
	uint32_t replicated;			/* same content as shard 0 */
	uint64_t page_bytes[MM_MAX_GROUPS];	/* from the client's layout; > 0, multiple of 64 */
};

struct mm_cache_desc {
	uint8_t model_key[MM_KEY_BYTES];	/* all zero: private to this engine */
	uint8_t layout_key[MM_KEY_BYTES];	/* same model key with another layout is -EINVAL */
	uint32_t page_tokens;	/* 1 to 65536; one for all groups, so a node is a page in each */
	uint32_t nr_groups, nr_shards;
	struct mm_group_desc group[MM_MAX_GROUPS];
	struct mm_shard_desc shard[MM_MAX_SHARDS];
};

/* The extra key of one page: LoRA, salt, multimodal items, folded to a digest by the client. */
struct mm_page_key {
	uint32_t page;			/* index of the page in the sequence; strictly ascending */
	uint32_t pad;
	uint8_t digest[MM_KEY_BYTES];
};

#define MM_ALL_DEVICES		UINT32_MAX
#define MM_NO_LIMIT		UINT64_MAX

/* Of a tenant on one device, as in cgroup v2, charged by extents. min <= low, high <= max, but low
 * 0 (it is as min then) and high MM_NO_LIMIT may stand with any.
 *   min   never reclaimed below; the mins of all tenants fit the pool together
 *   low   not reclaimed below while another tenant above its low has something to take
 *   high  above it own cached pages go before more is taken, and the engines are pressed
 *   max   never exceeded by a new extent; lowered below the charge, the tenant is shrunk */
struct mm_limits {
	uint64_t min_bytes, low_bytes, high_bytes, max_bytes;
};

enum mm_oom_action {
	MM_OOM_NONE,		/* what stays above max is charged and reported */
	MM_OOM_KILL,	/* past the deadline the engine that holds most is fenced and killed */
};

/* How often a tenant met one of its limits. */
enum mm_memcg_event {
	MM_MEMCG_LOW,		/* taken from below its low, everybody else having nothing */
	MM_MEMCG_HIGH,		/* its charge passed high, or own cached pages went instead */
	MM_MEMCG_MAX,		/* an allocation, a promise was kept from more by max */
	MM_MEMCG_OOM,		/* what stayed above max after everything was tried */
	MM_NR_MEMCG_EVENTS,
};

/* What a reservation is for; each kind is absolute and apart from the others. */
enum mm_reserve { MM_RESERVE_WEIGHTS, MM_RESERVE_ACTIVATIONS, MM_RESERVE_OTHER, MM_NR_RESERVES };

/* Pages [from, to) of a lease's chain. Advice: it changes what is evicted first, nothing else, and
 * holds for whoever uses those pages, until the next hint; reuse_ms until the next use. */
struct mm_hint {
	uint32_t from_page, to_page;	/* to_page 0: to the end */
	uint32_t priority;		/* 0 low, 1 normal, 2 high */
	uint32_t reuse_ms;	/* expected next use, from the end of this one; 0: not known */
	uint32_t ttl_ms;		/* of no use so long after the last use; 0: no end */
};

#define MM_COMMIT_PARTIAL	1u	/* the last page is partial and its writer gives it up */
#define MM_LOOKUP_ADOPT		2u /* take over an unshared partial tail instead of copying it */
#define MM_CLOSE_GIVE_BACK	4u	/* all that the engine has in the cache */

struct mm_request {
	enum mm_op op;
	uint32_t flags;
	uint64_t cookie;		/* comes back in the reply */
	uint32_t engine, member, cache, group;
	union {
		/* ENGINE_ATTACH; MEMBER_ATTACH uses engine */
		struct { uint32_t tenant; } attach;	/* the caller's number for it */
		struct { uint32_t tenant, device, oom_action; struct mm_limits limits; } tenant;
		/* min_pages of every group are promised: the pool keeps room for them, or -ENOMEM,
		 * -EDQUOT. Asked again for an open cache: a new promise. */
		struct { const struct mm_cache_desc *desc; uint32_t min_pages; } open;
		struct { uint32_t extent, shard; } map;		/* IMPORT, UNIMPORT */
		struct { uint32_t nr_pages; uint64_t deadline_ns; } alloc; /* 0: fail at once */
		struct { const uint64_t *pages; uint32_t nr_pages; } free;
		struct {
			const uint32_t *tokens; uint32_t nr_tokens;
			const struct mm_page_key *keys; uint32_t nr_keys;
		} lookup;
		/* COMMIT appends to the chain of lease (0: the root), which moves to the new tail
		 * under a new id, in the reply. pages is [group][nr_pages], 0 where
		 * the group has none for that page (behind its window); nr_tokens fills nr_pages
		 * pages, the last one partly only with MM_COMMIT_PARTIAL. keys[].page counts from
		 * the root. */
		struct {
			uint32_t lease;
			const uint32_t *tokens; uint32_t nr_tokens;
			const uint64_t *pages; uint32_t nr_pages;
			const struct mm_page_key *keys; uint32_t nr_keys;
		} commit;
		/* LEASE_DUP (depth 0: whole), DROP_HEAD */
		struct { uint32_t lease, depth_pages; } lease;
		struct { const uint32_t *leases; uint32_t nr_leases; } unlease;
		struct { uint32_t lease, park; } park;		/* PARK, RESUME, UNPARK */
		struct { uint32_t device, what; uint64_t bytes; } reserve;
		struct { uint32_t lease; struct mm_hint hint; } hint;
		struct { uint32_t extent; uint32_t seq; uint64_t bytes; } ack;
	};
};

/* ---- replies ------------------------------------------------------------------------------- */

/* Why a request failed, for a message that names the limit and the way out. */
enum mm_reason {
	MM_OK = 0,
	MM_BAD_ARGUMENT,	/* a: what was asked, b: what would have been the most, or 0 */
	MM_NO_SUCH_ID,		/* a: the id, b: 0; so in the next two */
	MM_STALE_PAGE,		/* generation differs */
	MM_NOT_OWNER,
	MM_POOL_FULL,		/* a: bytes wanted, b: bytes the pool has free */
	MM_TENANT_MAX,		/* a: tenant's max, b: its charge */
	MM_TABLE_FULL,	/* a: which limit (offset in mm_config), b: its value or engine's share */
	MM_FENCED,
	MM_LEASED,
	MM_TIMED_OUT,
	MM_LAYOUT_DIFFERS,
};

/* Geometry of a group's extents, fixed when the cache is opened. */
struct mm_group_geom {
	uint32_t extent_pages;			/* 2^k */
	uint32_t pad;
	uint64_t extent_bytes[MM_MAX_SHARDS];	/* device allocation, a multiple of extent_align */
};

#define MM_EVENT_RETIRE		1u	/* unmap (extent, every shard you map), then UNIMPORT */
#define MM_EVENT_PRESSURE	2u	/* give back about bytes before deadline_ns */
#define MM_EVENT_VACATE		3u	/* move your held pages out of extent before deadline_ns */

struct mm_event {
	uint32_t kind, extent, seq, pad;
	uint64_t bytes, deadline_ns;
};

struct mm_reply {
	uint64_t cookie;
	enum mm_op op;
	int result;			/* 0/-errno */
	enum mm_reason reason;
	bool writable;			/* IMPORT */
	bool tail_adopted;
	uint64_t a, b;			/* see reason */
	uint32_t engine, member, cache;
	uint32_t lease, park;		/* LOOKUP, COMMIT, LEASE_DUP, PARK, RESUME */
	/* LOOKUP, RESUME: nr_pages full pages of nr_groups groups, pages[group][nr_pages], 0 where
	 * a window group has none (none is needed there). tail_*: the page after them matches
	 * tail_tokens > 0 of the rest: its source pages tail_pages[nr_groups], leased by tail_lease
	 * (0 if adopted: then the ids are held by the engine now, tail_adopted). In window groups
	 * tail_lease keeps its own page only: who reads the window before it, while the tail is
	 * being copied or after, keeps both leases.
	 * COMMIT: nr_pages as given; pages[group][nr_pages] are the ids of the chain: the committed
	 * page's own id, or the one already cached (then the committer still holds its own).
	 * ALLOC: pages[nr_pages]. */
	uint32_t nr_pages, nr_groups;
	uint32_t tail_tokens, tail_lease;
	uint32_t nr_events;
	union {
		const uint64_t *pages;
		const struct mm_event *events;		/* EVENTS */
		const struct mm_group_geom *geom;	/* CACHE_OPEN: [nr_groups] */
	};
	const uint64_t *tail_pages;	/* NULL: no tail */
};

/* ---- effects ------------------------------------------------------------------------------- */

enum mm_effect_kind {
	MM_EFFECT_CREATE = 1,	/* (extent, shard) of bytes on device; complete with 0/-errno */
	MM_EFFECT_DESTROY,	/* complete when the device has it back */
	MM_EFFECT_SCRUB,	/* slots [slot, slot + nr_slots) of (extent, shard); complete */
	MM_EFFECT_NOTIFY,	/* member has events; no completion */
	MM_EFFECT_MOVE,		/* copy slot of (extent, shard) to to_slot of to_extent; complete */
	MM_EFFECT_KILL,		/* every process of engine; no completion, MM_MEMBER_GONE follows */
};

struct mm_effect {
	uint64_t id;		/* for mm_complete; carries a generation */
	enum mm_effect_kind kind;
	uint32_t extent, shard, device, member;
	uint32_t slot, nr_slots;
	uint32_t to_extent, to_slot;	/* MOVE */
	uint32_t engine;		/* KILL: id */
	uint64_t bytes;		/* CREATE, SCRUB: of the extent; page_bytes gives the stride */
	uint64_t page_bytes;
};

/* ---- what it says about itself ------------------------------------------------------------- */

/* One counter a row: name, meaning. The order is the ABI of struct mm_vmstat. */
#define MM_VMSTAT(X) \
	X(pages_alloc,		"pages granted") \
	X(pages_free,		"held pages given back") \
	X(pages_commit,		"held pages published") \
	X(pages_dup,		"pages whose tokens were already cached at commit") \
	X(pages_adopt,		"partial tails taken over without a copy") \
	X(pages_evict,		"cached pages reclaimed") \
	X(pages_quarantine,	"held pages of dead engines, ever") \
	X(alloc_fail,		"allocations refused") \
	X(alloc_wait,		"allocations that had to wait") \
	X(extents_create,	"extents taken from a device") \
	X(extents_destroy,	"extents given back to a device") \
	X(extents_adopt,	"orphaned extents given a new writer") \
	X(pages_move,		"cached pages moved to another extent") \
	X(move_fail,		"moves that came to nothing") \
	X(vacates,		"extents that engines were asked to leave") \
	X(vacate_fail,		"extents they did not leave in time") \
	X(reclaim_background,	"extents taken to have enough free") \
	X(reclaim_limit,	"extents taken from tenants above their limits") \
	X(reclaim_direct,	"extents taken for one allocation, promise or reservation") \
	X(oom_kills,		"engines killed because their tenant stayed above max") \
	X(lookups,		"lookups") \
	X(lookup_tokens,	"tokens asked for") \
	X(hit_tokens,		"tokens found, tails included") \
	X(hit_pages,		"full pages found") \
	X(tail_hits,		"lookups with a match inside a page") \
	X(leases,		"leases granted") \
	X(engines,		"engines attached, ever") \
	X(fences,		"engines fenced") \
	X(oom,			"allocations refused for want of memory that had a deadline") \
	X(refaults,		"pages committed again after they were evicted")

struct mm_vmstat {
#define X(name, help) uint64_t name;
	MM_VMSTAT(X)
#undef X
};

struct mm_meminfo {			/* of one device */
	uint64_t pool_bytes, extent_bytes, reserved_bytes, free_bytes;
	uint64_t held_bytes, cached_bytes, leased_bytes, quarantined_bytes, frame_free_bytes;
	uint32_t nr_extents, pad;
	uint64_t promised_bytes;	/* of free and leaving ones: for whom they were promised */
};

struct mm_engine_info {
	uint32_t engine, tenant_uid, nr_members, fenced;
	uint32_t nr_extents, nr_leases, nr_parks, pad;
	uint64_t held_pages, held_bytes, quarantined_pages, extent_bytes, reserved_bytes;
	uint64_t allocs, frees, lookup_tokens, hit_tokens, commits;
	uint64_t debts;		/* extents it was asked to leave and did not */
};

struct mm_cache_info {
	uint32_t cache, tenant_uid, nr_engines, page_tokens;
	uint32_t nr_groups, nr_shards, nr_extents, shared;
	uint8_t model_key[MM_KEY_BYTES];
	uint64_t held_pages, cached_pages, leased_pages, free_pages, nodes, cached_tokens;
	uint64_t page_bytes;			/* all groups and shards */
	uint64_t lookup_tokens, hit_tokens;
};

struct mm_tenant_device {
	struct mm_limits limits;
	/* leaving: part of the charge that is on its way back to the device. promised: what opened
	 * caches may still take of what they were promised. */
	uint64_t charge_bytes, peak_bytes, leaving_bytes, reserved_bytes, promised_bytes;
	uint64_t held_bytes, cached_bytes, leased_bytes, quarantined_bytes, free_bytes; /* pages */
};

struct mm_tenant_info {
	uint32_t key, nr_engines, nr_caches;
	uint32_t oom_action;			/* enum mm_oom_action */
	uint32_t configured, pad;		/* limits were set: it stays without engines */
	uint64_t events[MM_NR_MEMCG_EVENTS], oom_kills;
	uint64_t lookup_tokens, hit_tokens;
	struct mm_tenant_device device[MM_MAX_DEVICES];
};

/* Shares of time in 1/10000 over the last 10, 60 and 300 s, and totals: some allocation waited;
 * every engine that works did. */
struct mm_psi {
	uint32_t some_avg[3], full_avg[3];
	uint64_t some_total_ns, full_total_ns;
};

#define MM_ALL_TENANTS	UINT32_MAX

#define MM_OOM_REPORTS	8u		/* kept */
#define MM_OOM_HOLDERS	8u

/* Of one engine on the device a report is about. */
struct mm_oom_holder {
	uint32_t engine, tenant;
	uint64_t held_bytes;		/* quarantined ones too */
	uint64_t leased_bytes;		/* cached ones somebody pins */
	uint64_t cached_bytes;		/* the other cached ones */
	uint64_t reserved_bytes;
};

/* An allocation with a deadline that was refused for want of memory; the picture is of the moment,
 * of the device that was short. */
struct mm_oom_report {
	uint64_t seq;
	uint64_t when_ns, last_ns;	/* first and last of count */
	uint32_t count;			/* of this engine, within a second */
	uint32_t missed;		/* of others before it that have no report */
	uint32_t engine, tenant, cache, group, nr_pages, device;
	uint64_t bytes;			/* asked for, on the device */
	int result;
	enum mm_reason reason;
	uint64_t a, b;			/* see reason */
	uint64_t pool_bytes, extent_bytes, reserved_bytes, free_bytes;
	/* Of the extents. cached: not leased, so it could be taken, but for protected: what the
	 * min and low of other tenants keep. fragmented: free pages in extents that stay.
	 * leaving: extents not unmapped or given back yet. */
	uint64_t held_bytes, leased_bytes, cached_bytes, protected_bytes, quarantined_bytes;
	uint64_t fragmented_bytes, leaving_bytes;
	uint64_t promised_bytes;	/* of the free bytes */
	uint32_t nr_waiting;		/* allocations, this one too if it waited */
	uint32_t nr_holders;		/* who holds most, first */
	struct mm_oom_holder holder[MM_OOM_HOLDERS];
};

#define MM_LOG2_BUCKETS	34	/* bucket b: 2^(b-1) to 2^b - 1; 0 for 0; the last for all above */

struct mm_workingset_info {		/* of one tenant */
	uint64_t evictions, refaults;
	uint64_t distance[MM_LOG2_BUCKETS];	/* refaults by evictions in between */
	uint64_t gap_ms[MM_LOG2_BUCKETS];	/* reuses, of evicted pages too, by time between */
};

/* ---- calls --------------------------------------------------------------------------------- */

struct mm;

size_t mm_footprint(const struct mm_config *);	/* 0: the config is out of range */
/* mem is aligned to 64 bytes and may hold anything; most of it is not touched before its use. */
int mm_init(struct mm **, void *mem, size_t len, const struct mm_config *);
int mm_submit(struct mm *, const struct mm_request *, uint64_t now_ns);
int mm_complete(struct mm *, uint64_t effect_id, int result, uint64_t now_ns);
void mm_tick(struct mm *, uint64_t now_ns, unsigned int budget); /* deadlines, background work */
uint64_t mm_next_deadline(const struct mm *);	/* when mm_tick is next due; UINT64_MAX: never */
bool mm_next_effect(struct mm *, struct mm_effect *);
const struct mm_reply *mm_take_reply(struct mm *); /* NULL: none; valid as long as its arrays */
bool mm_next_reply(struct mm *, struct mm_reply *);	/* the same, copied; false: none */

void mm_check(const struct mm *);	/* aborts with the broken invariant's name */
uint64_t mm_digest(const struct mm *);

const struct mm_vmstat *mm_vmstat(const struct mm *);
void mm_meminfo(const struct mm *, uint32_t device, struct mm_meminfo *);
/* Walk by id: *id 0 starts, false ends. */
bool mm_next_engine(const struct mm *, uint32_t *id, struct mm_engine_info *);
bool mm_next_cache(const struct mm *, uint32_t *id, struct mm_cache_info *);
bool mm_next_tenant(const struct mm *, uint32_t *id, struct mm_tenant_info *);
int mm_tenant_info(const struct mm *, uint32_t key, struct mm_tenant_info *);	/* -ENOENT */
int mm_psi(const struct mm *, uint32_t tenant_key, uint64_t now_ns, struct mm_psi *); /* -ENOENT */
/* The next report after *seq that is still kept; false: none. Its count may still rise. */
bool mm_next_oom(const struct mm *, uint64_t *seq, struct mm_oom_report *);

/* What a caller must know before it asks; -ENOENT unless the id is the engine's. */
int mm_cache_shape(const struct mm *, uint32_t engine, uint32_t cache, uint32_t *page_tokens,
		   uint32_t *nr_groups);
int mm_park_shape(const struct mm *, uint32_t engine, uint32_t park, uint32_t *nr_pages,
		  uint32_t *nr_groups);
int mm_workingset(const struct mm *, uint32_t tenant, struct mm_workingset_info *); /* -ENOENT */
int mm_engine_info(const struct mm *, uint32_t engine, struct mm_engine_info *);

/* Facts the executor needs. -ENOENT for an extent that does not exist. */
int mm_extent_shards(const struct mm *, uint32_t extent, uint32_t *nr_shards);

/* Called once on a broken invariant of ours, with its text; must not return. Set by whoever links
 * mm (it may print and abort); mm itself only loops if it returns. */
extern void mm_panic(const char *what, const char *file, int line) __attribute__((noreturn));

#endif
