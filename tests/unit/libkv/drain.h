/* SPDX-License-Identifier: Apache-2.0 */
/* drain - a pool that wants one extent empty, between libkv and the embedded pool
 *
 * While it drains, EVENTS tell of the extent, no grant comes from it (what the real pool grants
 * there is kept back until drain_end) and VACATE_ACK is checked against what libkv's map says is
 * held. fail_alloc refuses grants; die_at breaks the link at the nth call from now.
 */
#ifndef DRAIN_H
#define DRAIN_H

#include "call.h"
#include "seq_fixture.h"

#define DRAIN_STASH 65536u

static struct {
	const struct link_ops *real;
	struct link_ops ops;
	bool on, pending;
	uint32_t extent, acks, busy, nr_stash, room; /* room: grants until the pool is full */
	int die_at;
	uint64_t deadline_ns;
	struct kv_cache *cache;
	uint64_t stash[DRAIN_STASH];
} drain;

FIX int drain_full(struct call *c)
{
	c->cqe = (struct kv_cqe){ .user_data = c->sqe.user_data, .res = -ENOMEM,
				  .reason = KV_POOL_FULL };
	c->done = true;
	return 0;
}

/* One page in place of one that may not be granted; false: the pool has no other. */
FIX bool drain_replace(struct kv *kv, const struct call *c, uint32_t i)
{
	uint64_t *ids = c->out;
	struct call one = *c;

	while (map_id_extent(ids[i]) == drain.extent) {
		assert_true(drain.nr_stash < DRAIN_STASH);
		drain.stash[drain.nr_stash++] = ids[i];
		one = *c;
		one.done = false;
		one.sqe.nr = 1;
		one.sqe.out_off = c->sqe.out_off + 8ull * i;
		one.sqe.out_bytes = 8;
		one.sqe.arg = 0;
		one.outer = kv->calls;
		kv->calls = &one;
		assert_int_equal(drain.real->call(kv, &one), 0);
		kv->calls = one.outer;
		if (one.cqe.res)
			return false;
	}
	return true;
}

FIX int drain_alloc(struct kv *kv, struct call *c)
{
	const uint64_t *ids = c->out;
	uint32_t i;
	int rc;

	if (c->sqe.nr > drain.room)
		return drain_full(c);
	rc = drain.real->call(kv, c);
	if (rc || c->cqe.res)
		return rc;
	for (i = 0; i < c->sqe.nr; i++) {
		if (drain_replace(kv, c, i))
			continue;
		for (uint32_t j = 0; j < c->sqe.nr; j++) /* keep all but what was not granted */
			if (j != i && map_id_extent(ids[j]) != drain.extent)
				drain.stash[drain.nr_stash++] = ids[j];
			else if (j > i)
				drain.stash[drain.nr_stash++] = ids[j];
		return drain_full(c);
	}
	drain.room -= c->sqe.nr;
	return 0;
}

FIX int drain_events(struct kv *kv, struct call *c)
{
	struct kv_event ev = { .kind = 3, .extent = drain.extent, .seq = 1,
			       .deadline_ns = drain.deadline_ns };
	int rc = drain.real->call(kv, c);

	if (rc || c->cqe.res)
		return rc;
	assert_true(c->cqe.out_bytes + sizeof(ev) <= c->sqe.out_bytes);
	memcpy((uint8_t *)c->out + c->cqe.out_bytes, &ev, sizeof(ev));
	c->cqe.out_bytes += sizeof(ev);
	c->cqe.id++;
	c->cqe.nr++;
	drain.pending = false;
	return 0;
}

FIX int drain_ack(struct kv *kv, struct call *c)
{
	bool busy = map_held(kv, drain.extent) != 0;

	assert_int_equal(c->sqe.id, drain.extent);
	drain.busy += busy;
	drain.acks += !busy;
	c->cqe = (struct kv_cqe){ .user_data = c->sqe.user_data, .res = busy ? -EBUSY : 0,
				  .reason = busy ? KV_LEASED : KV_OK };
	c->done = true;
	return 0;
}

FIX int drain_call(struct kv *kv, struct call *c)
{
	if (drain.die_at >= 0 && !drain.die_at--)
		return -EPIPE;
	if (!drain.on)
		return drain.real->call(kv, c);
	switch (c->sqe.op) {
	case KV_OP_ALLOC:
		return drain_alloc(kv, c);
	case KV_OP_EVENTS:
		return drain_events(kv, c);
	case KV_OP_VACATE_ACK:
		return drain_ack(kv, c);
	default:
		return drain.real->call(kv, c);
	}
}

FIX bool drain_pending(struct kv *kv)
{
	return drain.real->pending(kv) || drain.pending;
}

FIX void drain_begin(struct kv_cache *c, uint32_t extent)
{
	struct kv *kv = c->kv;

	if (!drain.real || kv->ops != &drain.ops) {
		memset(&drain, 0, sizeof(drain));
		drain.real = kv->ops;
		drain.ops = *kv->ops;
		drain.ops.call = drain_call;
		drain.ops.pending = drain_pending;
		kv->ops = &drain.ops;
	}
	drain.die_at = -1;
	drain.room = UINT32_MAX;
	drain.on = drain.pending = true;
	drain.cache = c;
	drain.extent = extent;
	drain.acks = drain.busy = 0;
	drain.deadline_ns = UINT64_MAX;
}

FIX void drain_end(void)
{
	struct call call;
	uint32_t n;

	drain.on = drain.pending = false;
	for (; drain.nr_stash; drain.nr_stash -= n) {
		n = drain.nr_stash < 64 ? drain.nr_stash : 64;
		if (call_begin(drain.cache->kv, &call, KV_OP_FREE, 8ull * n, 0))
			fail_msg("%s", kv_error());
		memcpy(call.in, drain.stash + drain.nr_stash - n, 8ull * n);
		call.sqe.nr = n;
		if (call_run(&call))
			fail_msg("%s", kv_error());
		call_end(&call);
	}
}

#endif
