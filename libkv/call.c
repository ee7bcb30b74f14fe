// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "call.h"

int call_check(struct kv *kv)
{
	if (*kv->guard != 1)
		return err_set(-EINVAL,
			       "this struct kv belongs to the parent process: a forked child "
			       "must kv_open() its own");
	if (kv->dead)
		return err_set(-EPIPE, "%s: the session is gone; kv_close() it and open a new one",
			       kv->where);
	return 0;
}

static uint64_t round8(uint64_t n)
{
	return (n + 7) & ~7ull;
}

uint64_t call_room(const struct kv *kv)
{
	return kv->data_bytes - kv->data_used;
}

int call_begin(struct kv *kv, struct call *c, enum kv_op op, uint64_t in_bytes, uint64_t out_bytes)
{
	uint64_t in_off, out_off;
	int rc = call_check(kv);

	if (rc)
		return rc;
	/* An event that could not be served is asked for again; it is no fault of this call. */
	if (op != KV_OP_EVENTS && !kv->serving && kv->ops->pending(kv) &&
	    event_serve(kv, EVENT_QUIET) && kv->dead)
		return -EPIPE;
	in_off = kv->data_used;
	out_off = in_off + round8(in_bytes);
	if (in_bytes > kv->data_bytes || out_bytes > kv->data_bytes ||
	    out_off + round8(out_bytes) > kv->data_bytes)
		return err_set(-EINVAL,
			       "request of %" PRIu64 " bytes does not fit the session's data "
			       "area (%" PRIu64 " bytes): split it",
			       in_bytes + out_bytes, call_room(kv));
	*c = (struct call){
		.kv = kv,
		.mark = in_off,
		.in = kv->data + in_off,
		.out = kv->data + out_off,
		.sqe = { .op = (uint8_t)op,
			 .in_bytes = (uint32_t)in_bytes,
			 .out_bytes = (uint32_t)out_bytes },
	};
	if (in_bytes)
		c->sqe.in_off = in_off;
	if (out_bytes)
		c->sqe.out_off = out_off;
	kv->data_used = out_off + round8(out_bytes);
	return 0;
}

int call_run(struct call *c)
{
	struct kv *kv = c->kv;
	int rc;

	c->done = false;
	c->outer = kv->calls;
	kv->calls = c;
	rc = kv->ops->call(kv, c);
	kv->calls = c->outer;
	if (rc == -EPIPE || rc == -EPROTO)
		return kv_mark_dead(kv, rc == -EPIPE ? "kvd is gone or ended this session"
						     : "kvd broke the ring protocol");
	if (rc)
		return err_set(rc, "%s: %s", kv->where, strerror(-rc));
	if (c->cqe.out_bytes > c->sqe.out_bytes)
		return kv_mark_dead(kv, "kvd sent more than was asked for");
	return c->cqe.res < 0 ? call_refused(c) : 0;
}

void call_end(struct call *c)
{
	c->kv->data_used = c->mark;
}

int call_plain(struct kv *kv, const struct kv_sqe *sqe, struct kv_cqe *cqe)
{
	struct call c;
	int rc = call_begin(kv, &c, sqe->op, 0, 0);

	if (rc)
		return rc;
	c.sqe = *sqe;
	rc = call_run(&c);
	if (cqe)
		*cqe = c.cqe;
	call_end(&c);
	return rc;
}

bool call_answer(struct kv *kv, const struct kv_cqe *cqe)
{
	struct call *c;

	for (c = kv->calls; c; c = c->outer)
		if (!c->done && c->sqe.user_data == cqe->user_data) {
			c->cqe = *cqe;
			c->done = true;
			return true;
		}
	return false;
}

/* ---- refusals in words --------------------------------------------------------------------- */

static const char *const op_names[KV_NR_OPS] = {
	[KV_OP_NOP] = "nop",
	[KV_OP_CACHE_OPEN] = "open cache",
	[KV_OP_CACHE_CLOSE] = "close cache",
	[KV_OP_ALLOC] = "alloc",
	[KV_OP_FREE] = "free",
	[KV_OP_LOOKUP] = "lookup",
	[KV_OP_COMMIT] = "commit",
	[KV_OP_LEASE_DUP] = "duplicate lease",
	[KV_OP_UNLEASE] = "unlease",
	[KV_OP_PARK] = "park",
	[KV_OP_RESUME] = "resume",
	[KV_OP_UNPARK] = "unpark",
	[KV_OP_DROP_HEAD] = "drop head",
	[KV_OP_RESERVE] = "reserve",
	[KV_OP_UNIMPORT] = "unimport",
	[KV_OP_EVENTS] = "events",
	[KV_OP_PRESSURE_ACK] = "pressure ack",
	[KV_OP_VACATE_ACK] = "vacate ack",
	[KV_OP_STAT] = "stat",
	[KV_OP_HINT] = "hint",
};

static const char *human(uint64_t bytes, char buf[24])
{
	static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB" };
	uint64_t tenths = bytes * 10;
	uint32_t u = 0;

	if (bytes > UINT64_MAX / 10)
		tenths = UINT64_MAX;
	while (tenths >= 10240 && u < 4) {
		tenths /= 1024;
		u++;
	}
	if (u)
		snprintf(buf, 24, "%" PRIu64 ".%" PRIu64 " %s", tenths / 10, tenths % 10, unit[u]);
	else
		snprintf(buf, 24, "%" PRIu64 " B", bytes);
	return buf;
}

/* mm names no bytes when the room is there but others wait for it. */
static int refused_full(const struct call *c, const char *what)
{
	const char *can = c->sqe.op == KV_OP_CACHE_OPEN ? "can be promised" : "free";
	char want[24], have[24], bytes[96] = "others were first";
	const struct kv_cqe *e = &c->cqe;

	human(e->val[0], want);
	human(e->val[1], have);
	if (e->val[1] || e->val[0] > c->sqe.nr)
		snprintf(bytes, sizeof(bytes), "%s wanted, %s %s", want, have, can);
	if (e->res == -EAGAIN)
		return err_set(e->res,
			       "%s: cached pages are still making room (%s): try again, or wait "
			       "longer (kv_options.wait_ms)",
			       what, bytes);
	if (c->kv->embedded)
		return err_set(e->res,
			       "%s: the embedded pool is full: %s; give pages back or open it "
			       "with a larger SIZE",
			       what, bytes);
	if (c->kv->wait_ms && e->reason == KV_TIMED_OUT)
		return err_set(e->res,
			       "%s: kvd pool is full: %s, none came in %u ms; end an engine, "
			       "raise --device host:SIZE, or wait longer (kv_options.wait_ms)",
			       what, bytes, c->kv->wait_ms);
	return err_set(e->res, "%s: kvd pool is full: %s; end an engine%s", what, bytes,
		       e->reason == KV_TIMED_OUT ?
		       ", raise --device host:SIZE, or wait (kv_options.wait_ms)" :
		       " or raise --device host:SIZE");
}

static int refused_other(const struct call *c, const char *what)
{
	static const char *const why[] = {
		[KV_BAD_ARGUMENT] = "bad argument",
		[KV_NO_SUCH_ID] = "no such id: it was given back, or never was this engine's",
		[KV_STALE_PAGE] = "stale page id: the page was freed or granted anew since",
		[KV_NOT_OWNER] = "it belongs to another engine, or is not held",
		[KV_FENCED] = "this engine was fenced: a member of it died; open a new session",
		[KV_LEASED] = "still in use: give back its pages, leases and parks first",
		[KV_LAYOUT_DIFFERS] =
			"this model is cached with another layout (dtype, heads, scales, page "
			"tokens, groups or shards); use that layout or another model name",
		[KV_BAD_ENTRY] = "malformed request",
		[KV_NOT_LEAD] = "only the lead of an engine may do this; members map",
	};
	uint32_t r = c->cqe.reason;

	if (r < sizeof(why) / sizeof(why[0]) && why[r])
		return err_set(c->cqe.res, "%s: %s", what, why[r]);
	return err_set(c->cqe.res, "%s: %s", what, strerror(-c->cqe.res));
}

int call_refused(const struct call *c)
{
	const char *what = c->sqe.op < KV_NR_OPS ? op_names[c->sqe.op] : "request";
	char a[24], b[24];

	switch (c->cqe.reason) {
	case KV_POOL_FULL:
	case KV_TIMED_OUT:
		return refused_full(c, what);
	case KV_TENANT_MAX:
		human(c->cqe.val[0], a);
		human(c->cqe.val[1], b);
		return err_set(c->cqe.res,
			       "%s: tenant '%s' is at max (%s, %s taken or promised): raise it "
			       "with kvctl tenant set %s max=SIZE, or free pages",
			       what, c->kv->tenant, a, b, c->kv->tenant);
	case KV_TABLE_FULL:
		return err_set(c->cqe.res,
			       "%s: a table of the pool is full (%" PRIu64 " entries); give "
			       "back pages or leases, or start the pool with larger tables",
			       what, c->cqe.val[1]);
	default:
		return refused_other(c, what);
	}
}
