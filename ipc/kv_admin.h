/* SPDX-License-Identifier: Apache-2.0 */
/* kv_admin - the admin socket: how kvctl asks kvd
 *
 * Model:      SOCK_SEQPACKET at PATH.admin (mode 0600 unless a group is configured). One request
 *             packet, then answer packets: a kv_admin_head followed by nr records of one type;
 *             flags KV_ADMIN_MORE on all but the last. A request is a kv_admin_request, or begins
 *             with one.
 * Invariants: fixed-size records, record_bytes says their size so that fields can be added at the
 *             end; reserved is zero. No strings but the NUL-padded names.
 * Context:    any number of requests on one connection, answered in order.
 * Errors:     head.result -errno and one kv_admin_text record.
 * See:        docs/man/kvctl.1, kvd/srv/admin.c, tools/kvctl.
 */
#ifndef KV_ADMIN_H
#define KV_ADMIN_H

#include <stdint.h>
#include "kv_abi.h"

#define KV_ADMIN_MAGIC	0x4144564bu	/* "KVDA" */
#define KV_ADMIN_PACKET	65536u

enum kv_admin_cmd {
	KV_ADMIN_STATUS = 1,	/* one kv_admin_status */
	KV_ADMIN_MEMINFO,	/* one kv_admin_meminfo a device */
	KV_ADMIN_ENGINES,	/* kv_admin_engine */
	KV_ADMIN_CACHES,	/* kv_admin_cache */
	KV_ADMIN_VMSTAT,	/* kv_admin_counter */
	KV_ADMIN_CHECK,		/* runs mm_check; one kv_admin_status */
	KV_ADMIN_TENANTS,	/* kv_admin_tenant */
	KV_ADMIN_TENANT_SET,	/* asked with a kv_admin_tenant_set; one kv_admin_tenant */
	KV_ADMIN_PRESSURE,	/* kv_admin_pressure: of all, then of each tenant */
	KV_ADMIN_OOM,		/* kv_admin_oom, the oldest first */
};

#define KV_ADMIN_MORE	1u

struct kv_admin_request {
	uint32_t magic, version, cmd, reserved;
};

/* Bits of kv_admin_tenant_set.mask: what is to be changed, all or none of it. No enum kv_reason has
 * such a name. */
#define KV_TENANT_SET_MIN	1u
#define KV_TENANT_SET_LOW	2u
#define KV_TENANT_SET_HIGH	4u
#define KV_TENANT_SET_MAX	8u
#define KV_TENANT_SET_OOM	16u

#define KV_ALL_DEVICES	UINT32_MAX
#define KV_NO_LIMIT	UINT64_MAX	/* high, max; min and low: 0 */

struct kv_admin_tenant_set {
	struct kv_admin_request head;
	char name[KV_NAME_BYTES];
	uint32_t device, mask;		/* device: one, or KV_ALL_DEVICES */
	uint32_t oom_action, reserved;	/* 0 none, 1 kill */
	uint64_t min_bytes, low_bytes, high_bytes, max_bytes;
};

struct kv_admin_head {
	uint32_t magic, version, cmd;
	int32_t result;
	uint32_t nr, record_bytes, flags, reserved;
};

struct kv_admin_text {
	char text[KV_TEXT_BYTES];
};

struct kv_admin_status {
	char release[KV_NAME_BYTES];
	uint32_t pid, nr_devices, nr_engines, nr_sessions, nr_caches, reserved;
	uint64_t uptime_ns, requests, loop_wakeups, checks;
	char socket[112];
};

struct kv_admin_meminfo {
	char name[KV_NAME_BYTES];	/* "host"; of several "host:0", "host:1" */
	uint64_t pool_bytes, extent_bytes, reserved_bytes, free_bytes;
	uint64_t held_bytes, cached_bytes, leased_bytes, quarantined_bytes, frame_free_bytes;
	uint32_t nr_extents, reserved;
	uint64_t promised_bytes;
};

struct kv_admin_engine {
	char name[KV_NAME_BYTES];
	uint32_t engine, tenant_uid, pid, nr_members, fenced;
	uint32_t nr_extents, nr_leases, nr_parks;
	uint64_t age_ns;
	uint64_t held_pages, held_bytes, quarantined_pages, extent_bytes, reserved_bytes;
	uint64_t allocs, frees, lookup_tokens, hit_tokens, commits;
	char tenant[KV_NAME_BYTES];
};

struct kv_admin_cache {
	uint8_t model_key[KV_KEY_BYTES];
	uint32_t cache, tenant_uid, nr_engines, page_tokens;
	uint32_t nr_groups, nr_shards, nr_extents, shared;
	uint64_t held_pages, cached_pages, leased_pages, free_pages, nodes, cached_tokens;
	uint64_t page_bytes, lookup_tokens, hit_tokens;
	char tenant[KV_NAME_BYTES];
};

/* Of a tenant on one device. leaving: part of current that is on its way back. */
struct kv_admin_tenant_device {
	uint64_t min_bytes, low_bytes, high_bytes, max_bytes;
	uint64_t current_bytes, peak_bytes, leaving_bytes, reserved_bytes, promised_bytes;
	uint64_t held_bytes, cached_bytes, leased_bytes, quarantined_bytes, free_bytes;
};

/* Bucket b: 2^(b-1) to 2^b - 1; 0 for 0; the last for all above. */
#define KV_LOG2_BUCKETS	34u

struct kv_admin_tenant {
	char name[KV_NAME_BYTES];
	uint32_t key, nr_engines, nr_caches, nr_devices;
	uint32_t oom_action, configured;
	uint64_t low_events, high_events, max_events, oom_events, oom_kills;
	uint64_t lookup_tokens, hit_tokens;
	struct kv_admin_tenant_device device[8];
	/* As in kvd/mm/workingset.h: distance in evictions, gap in ms of 2^20 ns. */
	uint64_t evictions, refaults;
	uint64_t refault_distance[KV_LOG2_BUCKETS], reuse_gap_ms[KV_LOG2_BUCKETS];
};

/* Shares of time in 1/10000 over the last 10, 60 and 300 s: some allocation waited for memory;
 * every engine that works did. */
struct kv_admin_pressure {
	char tenant[KV_NAME_BYTES];	/* empty: all of them */
	uint32_t key, all;
	uint32_t some_avg[3], full_avg[3];
	uint64_t some_total_ns, full_total_ns;
};

#define KV_OOM_HOLDERS	8u

struct kv_admin_oom_holder {
	char name[KV_NAME_BYTES], tenant[KV_NAME_BYTES];	/* name: empty once it is gone */
	uint32_t engine, pid;
	uint64_t held_bytes, leased_bytes, cached_bytes, reserved_bytes;
};

/* A refused allocation; what the bytes are is said of the device that was short, at that time. */
struct kv_admin_oom {
	uint64_t seq;
	uint64_t age_ns, span_ns;	/* since the first of count; from there to the last */
	char name[KV_NAME_BYTES], tenant[KV_NAME_BYTES], device_name[KV_NAME_BYTES];
	char limit[KV_NAME_BYTES];	/* KV_TABLE_FULL: which, as in docs/knobs.md */
	uint32_t engine, pid, cache, group, nr_pages, device;
	uint32_t count, missed;		/* see mm_oom_report */
	int32_t result;
	uint32_t reason;		/* enum kv_reason */
	uint64_t a, b;
	uint64_t bytes, pool_bytes, extent_bytes, reserved_bytes, free_bytes;
	uint64_t held_bytes, leased_bytes, cached_bytes, protected_bytes, quarantined_bytes;
	uint64_t fragmented_bytes, leaving_bytes, promised_bytes;
	uint32_t nr_waiting, nr_holders;
	struct kv_admin_oom_holder holder[KV_OOM_HOLDERS];
};

struct kv_admin_counter {
	char name[KV_NAME_BYTES];
	char help[64];
	uint64_t value;
};

#endif
