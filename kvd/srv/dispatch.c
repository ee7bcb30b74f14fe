// SPDX-License-Identifier: Apache-2.0
/* dispatch - the opcode table and its parsers
 *
 * Room for the answer is proved before mm is asked, from the most that mm can say, because an
 * answer that does not fit would strand the lease or the pages it names. Who asks is taken from
 * dispatch_client alone: mm compares every id of an entry with that engine.
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "srv/dispatch.h"

#define SAME_REASON(name) \
	_Static_assert((int)KV_##name == (int)MM_##name, "kv_reason and mm_reason differ: " #name)
SAME_REASON(OK);
SAME_REASON(BAD_ARGUMENT);
SAME_REASON(NO_SUCH_ID);
SAME_REASON(STALE_PAGE);
SAME_REASON(NOT_OWNER);
SAME_REASON(POOL_FULL);
SAME_REASON(TENANT_MAX);
SAME_REASON(TABLE_FULL);
SAME_REASON(FENCED);
SAME_REASON(LEASED);
SAME_REASON(TIMED_OUT);
SAME_REASON(LAYOUT_DIFFERS);

#define SAME_FIELD(kv, mm, a, b) \
	_Static_assert(offsetof(kv, a) == offsetof(mm, b) && \
		       sizeof(((kv *)0)->a) == sizeof(((mm *)0)->b), #kv "." #a " is copied as is")
_Static_assert(sizeof(struct kv_event) == sizeof(struct mm_event), "events are copied as is");
SAME_FIELD(struct kv_event, struct mm_event, kind, kind);
SAME_FIELD(struct kv_event, struct mm_event, extent, extent);
SAME_FIELD(struct kv_event, struct mm_event, seq, seq);
SAME_FIELD(struct kv_event, struct mm_event, reserved, pad);
SAME_FIELD(struct kv_event, struct mm_event, bytes, bytes);
SAME_FIELD(struct kv_event, struct mm_event, deadline_ns, deadline_ns);
_Static_assert(sizeof(struct kv_page_key) == sizeof(struct mm_page_key), "keys are used in place");
SAME_FIELD(struct kv_page_key, struct mm_page_key, page, page);
SAME_FIELD(struct kv_page_key, struct mm_page_key, reserved, pad);
SAME_FIELD(struct kv_page_key, struct mm_page_key, digest, digest);
_Static_assert(MM_EVENT_RETIRE == 1 && MM_EVENT_PRESSURE == 2 && MM_EVENT_VACATE == 3, "ABI");
_Static_assert(MM_GROUP_FULL == 1 && MM_GROUP_WINDOW == 2 && MM_GROUP_STATE == 3, "ABI");
_Static_assert(KV_SQE_PARTIAL == MM_COMMIT_PARTIAL && KV_SQE_ADOPT == MM_LOOKUP_ADOPT, "ABI");
_Static_assert(KV_SQE_GIVE_BACK == MM_CLOSE_GIVE_BACK, "ABI");
_Static_assert(!MM_RESERVE_WEIGHTS && MM_RESERVE_ACTIVATIONS == 1 && MM_RESERVE_OTHER == 2, "ABI");
_Static_assert(KV_MAX_GROUPS == MM_MAX_GROUPS && KV_MAX_SHARDS == MM_MAX_SHARDS, "ABI");
_Static_assert(KV_KEY_BYTES == MM_KEY_BYTES, "ABI");

#define NS_PER_MS	1000000ull

/* What an op may use of an entry; everything else must be zero. */
#define F_LEAD		1u	/* the lead session only */
#define F_GROUP		2u
#define F_CACHE		4u
#define F_ID		8u
#define F_NR		16u
#define F_ARG		32u
#define F_IN		64u
#define F_OUT		128u

struct parse {
	struct exec *exec;
	const struct dispatch_client *client;
	const struct kv_sqe *sqe;
	uint64_t now_ns;
	struct mm_request req;
	struct mm_cache_desc desc;
	struct kv_cqe *cqe;
};

struct answer {
	const struct dispatch_client *client;
	const struct dispatch_pending *pending;
	const struct mm_reply *reply;
	struct kv_cqe *cqe;
};

struct op {
	const char *name;
	uint8_t mm_op;
	uint8_t sqe_flags;		/* allowed */
	uint16_t fields;
	int (*parse)(struct parse *);	/* 0: submit; 1: answered; -errno: refused */
	void (*answer)(struct answer *);
};

/* ---- checks -------------------------------------------------------------------------------- */

static int refuse(struct parse *p, int err, uint32_t reason)
{
	p->cqe->res = err;
	p->cqe->reason = reason;
	return err;
}

static int bad_entry(struct parse *p)
{
	return refuse(p, -EINVAL, KV_BAD_ENTRY);
}

static int need_in(struct parse *p, uint64_t bytes)
{
	return p->sqe->in_bytes == bytes ? 0 : bad_entry(p);
}

static int need_out(struct parse *p, uint64_t bytes)
{
	if (p->sqe->out_bytes >= bytes)
		return 0;
	p->cqe->val[0] = bytes;
	p->cqe->val[1] = p->sqe->out_bytes;
	return refuse(p, -ENOSPC, KV_BAD_ENTRY);
}

static bool in_data(const struct dispatch_client *c, uint64_t off, uint64_t bytes)
{
	return off <= c->data_bytes && bytes <= c->data_bytes - off;
}

static bool fields_ok(const struct op *op, const struct dispatch_client *c,
		      const struct kv_sqe *sqe)
{
	unsigned int unused = ~(unsigned int)op->fields;

	return !(sqe->flags & ~op->sqe_flags) && !sqe->reserved &&
	       !((unused & F_GROUP) && sqe->group) && !((unused & F_CACHE) && sqe->cache) &&
	       !((unused & F_ID) && sqe->id) && !((unused & F_NR) && sqe->nr) &&
	       !((unused & F_ARG) && sqe->arg) &&
	       !((unused & F_IN) && (sqe->in_off || sqe->in_bytes)) &&
	       !((unused & F_OUT) && (sqe->out_off || sqe->out_bytes)) &&
	       in_data(c, sqe->in_off, sqe->in_bytes) && in_data(c, sqe->out_off, sqe->out_bytes);
}

static bool all_zero(const void *mem, size_t bytes)
{
	const uint8_t *p = mem;

	for (size_t i = 0; i < bytes; i++) {
		if (p[i])
			return false;
	}
	return true;
}

static uint64_t token_bytes(uint64_t nr_tokens)
{
	return (nr_tokens * sizeof(uint32_t) + 7) & ~7ull;
}

/* ---- parsers ------------------------------------------------------------------------------- */

static int parse_nop(struct parse *p)
{
	(void)p;
	return 1;
}

static int parse_plain(struct parse *p)
{
	(void)p;
	return 0;
}

static bool group_from_client(struct mm_group_desc *g, const struct kv_group_desc *k)
{
	*g = (struct mm_group_desc){ k->kind, k->window_tokens, k->opaque };
	return !k->reserved;
}

static bool shard_from_client(struct mm_shard_desc *s, const struct kv_shard_desc *k,
			      uint32_t nr_groups)
{
	s->device = k->device;
	s->replicated = k->replicated;
	memcpy(s->page_bytes, k->page_bytes, sizeof(s->page_bytes));
	return all_zero(&k->page_bytes[nr_groups],
			(KV_MAX_GROUPS - nr_groups) * sizeof(k->page_bytes[0]));
}

static int parse_cache_open(struct parse *p)
{
	const struct kv_cache_desc *in = p->client->scratch;
	struct mm_cache_desc *d = &p->desc;
	bool ok;

	if (need_in(p, sizeof(*in)) || need_out(p, sizeof(struct kv_cache_geom)))
		return p->cqe->res;
	if (!in->nr_groups || in->nr_groups > KV_MAX_GROUPS || !in->nr_shards ||
	    in->nr_shards > KV_MAX_SHARDS)
		return refuse(p, -EINVAL, KV_BAD_ARGUMENT);
	memcpy(d->model_key, in->model_key, sizeof(d->model_key));
	memcpy(d->layout_key, in->layout_key, sizeof(d->layout_key));
	d->page_tokens = in->page_tokens;
	d->nr_groups = in->nr_groups;
	d->nr_shards = in->nr_shards;
	ok = !in->reserved &&
	     all_zero(&in->group[d->nr_groups],
		      (KV_MAX_GROUPS - d->nr_groups) * sizeof(in->group[0])) &&
	     all_zero(&in->shard[d->nr_shards],
		      (KV_MAX_SHARDS - d->nr_shards) * sizeof(in->shard[0]));
	for (uint32_t g = 0; g < d->nr_groups; g++)
		ok &= group_from_client(&d->group[g], &in->group[g]);
	for (uint32_t s = 0; s < d->nr_shards; s++)
		ok &= shard_from_client(&d->shard[s], &in->shard[s], d->nr_groups);
	p->req.open.desc = d;
	p->req.open.min_pages = p->sqe->nr;
	return ok ? 0 : bad_entry(p);
}

static int parse_alloc(struct parse *p)
{
	uint64_t ms = p->sqe->arg;

	if (ms > UINT32_MAX)
		return refuse(p, -EINVAL, KV_BAD_ARGUMENT);
	p->req.alloc.nr_pages = p->sqe->nr;
	p->req.alloc.deadline_ns = ms ? p->now_ns + ms * NS_PER_MS : 0;
	return need_out(p, (uint64_t)p->sqe->nr * sizeof(uint64_t));
}

static int parse_free(struct parse *p)
{
	p->req.free.pages = p->client->scratch;
	p->req.free.nr_pages = p->sqe->nr;
	return need_in(p, (uint64_t)p->sqe->nr * sizeof(uint64_t));
}

static int parse_unlease(struct parse *p)
{
	p->req.unlease.leases = p->client->scratch;
	p->req.unlease.nr_leases = p->sqe->nr;
	return need_in(p, (uint64_t)p->sqe->nr * sizeof(uint32_t));
}

static int check_keys(struct parse *p, const struct mm_page_key *keys, uint32_t nr_keys)
{
	for (uint32_t i = 0; i < nr_keys; i++) {
		if (keys[i].pad)
			return bad_entry(p);
	}
	return 0;
}

/* mm cuts a hit at batch_pages. */
static int need_match(struct parse *p, uint32_t nr_pages, uint32_t nr_groups)
{
	uint64_t most = nr_pages < p->client->batch_pages ? nr_pages : p->client->batch_pages;

	return need_out(p, sizeof(struct kv_match_out) + most * nr_groups * sizeof(uint64_t));
}

static int parse_lookup(struct parse *p)
{
	const uint8_t *scratch = p->client->scratch;
	struct kv_lookup_in in;
	uint32_t page_tokens, nr_groups;
	uint64_t keys_off;

	if (p->sqe->in_bytes < sizeof(in))
		return bad_entry(p);
	memcpy(&in, scratch, sizeof(in));
	keys_off = sizeof(in) + token_bytes(in.nr_tokens);
	if (need_in(p, keys_off + (uint64_t)in.nr_keys * sizeof(struct kv_page_key)))
		return p->cqe->res;
	if (mm_cache_shape(exec_mm(p->exec), p->client->engine, p->sqe->cache, &page_tokens,
			   &nr_groups))
		return refuse(p, -ENOENT, KV_NO_SUCH_ID);
	if (need_match(p, in.nr_tokens / page_tokens, nr_groups))
		return p->cqe->res;
	p->req.lookup.tokens = (const uint32_t *)(scratch + sizeof(in));
	p->req.lookup.nr_tokens = in.nr_tokens;
	p->req.lookup.keys = (const struct mm_page_key *)(scratch + keys_off);
	p->req.lookup.nr_keys = in.nr_keys;
	return check_keys(p, p->req.lookup.keys, in.nr_keys);
}

/* mm takes pages as [the cache's groups][nr_pages], so the client must mean the same. */
static int parse_commit(struct parse *p)
{
	const uint8_t *scratch = p->client->scratch;
	struct kv_commit_in in;
	uint32_t page_tokens, nr_groups;
	uint64_t pages_off, keys_off;

	if (p->sqe->in_bytes < sizeof(in))
		return bad_entry(p);
	memcpy(&in, scratch, sizeof(in));
	if (in.nr_groups > KV_MAX_GROUPS)
		return refuse(p, -EINVAL, KV_BAD_ARGUMENT);
	pages_off = sizeof(in) + token_bytes(in.nr_tokens);
	keys_off = pages_off + (uint64_t)in.nr_groups * in.nr_pages * sizeof(uint64_t);
	if (need_in(p, keys_off + (uint64_t)in.nr_keys * sizeof(struct kv_page_key)) ||
	    need_out(p, keys_off - pages_off))
		return p->cqe->res;
	if (mm_cache_shape(exec_mm(p->exec), p->client->engine, p->sqe->cache, &page_tokens,
			   &nr_groups))
		return refuse(p, -ENOENT, KV_NO_SUCH_ID);
	if (in.nr_groups != nr_groups)
		return refuse(p, -EINVAL, KV_BAD_ARGUMENT);
	p->req.commit.lease = p->sqe->id;
	p->req.commit.tokens = (const uint32_t *)(scratch + sizeof(in));
	p->req.commit.nr_tokens = in.nr_tokens;
	p->req.commit.pages = (const uint64_t *)(scratch + pages_off);
	p->req.commit.nr_pages = in.nr_pages;
	p->req.commit.keys = (const struct mm_page_key *)(scratch + keys_off);
	p->req.commit.nr_keys = in.nr_keys;
	return check_keys(p, p->req.commit.keys, in.nr_keys);
}

/* LEASE_DUP, DROP_HEAD */
static int parse_lease(struct parse *p)
{
	p->req.lease.lease = p->sqe->id;
	p->req.lease.depth_pages = p->sqe->nr;
	return 0;
}

static int parse_park(struct parse *p)
{
	p->req.park.lease = p->sqe->id;
	return 0;
}

static int parse_unpark(struct parse *p)
{
	p->req.park.park = p->sqe->id;
	return 0;
}

static int parse_resume(struct parse *p)
{
	uint32_t nr_pages, nr_groups;

	if (mm_park_shape(exec_mm(p->exec), p->client->engine, p->sqe->id, &nr_pages, &nr_groups))
		return refuse(p, -ENOENT, KV_NO_SUCH_ID);
	p->req.park.park = p->sqe->id;
	return need_match(p, nr_pages, nr_groups);
}

static int parse_reserve(struct parse *p)
{
	p->req.reserve.device = p->sqe->id;
	p->req.reserve.what = p->sqe->group;
	p->req.reserve.bytes = p->sqe->arg;
	return 0;
}

static int parse_unimport(struct parse *p)
{
	p->req.map.extent = p->sqe->id;
	p->req.map.shard = p->sqe->nr;
	return 0;
}

static int parse_hint(struct parse *p)
{
	const struct kv_hint_in *in = p->client->scratch;

	if (need_in(p, sizeof(*in)))
		return p->cqe->res;
	if (in->reserved)
		return bad_entry(p);
	if (in->priority > 2 || (in->to_page && in->to_page <= in->from_page))
		return refuse(p, -EINVAL, KV_BAD_ARGUMENT);
	p->req.hint.lease = p->sqe->id;
	p->req.hint.hint = (struct mm_hint){
		.from_page = in->from_page, .to_page = in->to_page, .priority = in->priority,
		.reuse_ms = in->reuse_ms, .ttl_ms = in->ttl_ms,
	};
	return 0;
}

static int parse_pressure_ack(struct parse *p)
{
	p->req.ack.seq = p->sqe->id;
	p->req.ack.bytes = p->sqe->arg;
	return 0;
}

static int parse_vacate_ack(struct parse *p)
{
	p->req.ack.extent = p->sqe->id;
	return 0;
}

/* Answered here: struct mm_reply has no room for an engine's numbers. */
static int parse_stat(struct parse *p)
{
	struct mm_engine_info i;
	struct kv_stat s;

	if (need_out(p, sizeof(s)))
		return p->cqe->res;
	if (mm_engine_info(exec_mm(p->exec), p->client->engine, &i))
		return refuse(p, -ENOENT, KV_NO_SUCH_ID);
	s = (struct kv_stat){
		.held_pages = i.held_pages, .held_bytes = i.held_bytes,
		.quarantined_pages = i.quarantined_pages, .extent_bytes = i.extent_bytes,
		.reserved_bytes = i.reserved_bytes, .allocs = i.allocs, .frees = i.frees,
		.lookup_tokens = i.lookup_tokens, .hit_tokens = i.hit_tokens,
		.commits = i.commits, .nr_extents = i.nr_extents, .nr_leases = i.nr_leases,
		.nr_parks = i.nr_parks, .nr_members = i.nr_members,
	};
	memcpy((uint8_t *)p->client->data + p->sqe->out_off, &s, sizeof(s));
	p->cqe->out_bytes = sizeof(s);
	return 1;
}

/* ---- answers ------------------------------------------------------------------------------- */

static void put(struct answer *a, const void *src, uint64_t bytes)
{
	struct kv_cqe *cqe = a->cqe;

	if (bytes > a->pending->out_bytes - cqe->out_bytes)
		mm_panic("dispatch: an answer larger than the room asked for", __FILE__, __LINE__);
	if (bytes)
		memcpy((uint8_t *)a->client->data + a->pending->out_off + cqe->out_bytes, src,
		       bytes);
	cqe->out_bytes += (uint32_t)bytes;
}

static void answer_plain(struct answer *a)
{
	(void)a;
}

static void answer_cache_open(struct answer *a)
{
	struct kv_cache_geom g = { 0 };

	for (uint32_t i = 0; i < a->reply->nr_groups; i++) {
		g.extent_pages[i] = a->reply->geom[i].extent_pages;
		memcpy(g.extent_bytes[i], a->reply->geom[i].extent_bytes,
		       sizeof(g.extent_bytes[i]));
	}
	a->cqe->id = a->reply->cache;
	put(a, &g, sizeof(g));
}

static void put_pages(struct answer *a, uint32_t nr_groups)
{
	a->cqe->nr = a->reply->nr_pages;
	put(a, a->reply->pages, (uint64_t)nr_groups * a->reply->nr_pages * sizeof(uint64_t));
}

static void answer_alloc(struct answer *a)
{
	put_pages(a, 1);
}

static void answer_match(struct answer *a)
{
	const struct mm_reply *r = a->reply;
	struct kv_match_out m = {
		.lease = r->lease, .nr_pages = r->nr_pages, .nr_groups = r->nr_groups,
		.tail_tokens = r->tail_tokens, .tail_lease = r->tail_lease,
		.tail_adopted = r->tail_adopted,
	};

	if (r->tail_pages)
		memcpy(m.tail_pages, r->tail_pages, r->nr_groups * sizeof(*m.tail_pages));
	a->cqe->id = r->lease;
	put(a, &m, sizeof(m));
	put_pages(a, r->nr_groups);
}

static void answer_commit(struct answer *a)
{
	a->cqe->id = a->reply->lease;
	put_pages(a, a->reply->nr_groups);
}

static void answer_lease(struct answer *a)
{
	a->cqe->id = a->reply->lease;
}

static void answer_park(struct answer *a)
{
	a->cqe->id = a->reply->park;
}

/* Events are levels: what does not fit now is asked for again. nr says how many there were. */
static void answer_events(struct answer *a)
{
	uint32_t room = a->pending->out_bytes / sizeof(struct kv_event);
	uint32_t n = a->reply->nr_events < room ? a->reply->nr_events : room;

	a->cqe->id = n;
	a->cqe->nr = a->reply->nr_events;
	put(a, a->reply->events, (uint64_t)n * sizeof(struct kv_event));
}

/* ---- the table ----------------------------------------------------------------------------- */

#define OP(name, mm, flags, fields, parse, answer) \
	[KV_OP_##name] = { #name, mm, flags, fields, parse, answer }

static const struct op ops[KV_NR_OPS] = {
	OP(NOP, 0, 0, 0, parse_nop, answer_plain),
	OP(CACHE_OPEN, MM_CACHE_OPEN, 0, F_LEAD | F_NR | F_IN | F_OUT, parse_cache_open,
	   answer_cache_open),
	OP(CACHE_CLOSE, MM_CACHE_CLOSE, KV_SQE_GIVE_BACK, F_LEAD | F_CACHE, parse_plain,
	   answer_plain),
	OP(ALLOC, MM_ALLOC, 0, F_LEAD | F_CACHE | F_GROUP | F_NR | F_ARG | F_OUT, parse_alloc,
	   answer_alloc),
	OP(FREE, MM_FREE, 0, F_LEAD | F_NR | F_IN, parse_free, answer_plain),
	OP(LOOKUP, MM_LOOKUP, KV_SQE_ADOPT, F_LEAD | F_CACHE | F_IN | F_OUT, parse_lookup,
	   answer_match),
	OP(COMMIT, MM_COMMIT, KV_SQE_PARTIAL, F_LEAD | F_CACHE | F_ID | F_IN | F_OUT, parse_commit,
	   answer_commit),
	OP(LEASE_DUP, MM_LEASE_DUP, 0, F_LEAD | F_ID | F_NR, parse_lease, answer_lease),
	OP(UNLEASE, MM_UNLEASE, 0, F_LEAD | F_NR | F_IN, parse_unlease, answer_plain),
	OP(PARK, MM_PARK, 0, F_LEAD | F_ID, parse_park, answer_park),
	OP(RESUME, MM_RESUME, KV_SQE_ADOPT, F_LEAD | F_ID | F_OUT, parse_resume, answer_match),
	OP(UNPARK, MM_UNPARK, 0, F_LEAD | F_ID, parse_unpark, answer_plain),
	OP(DROP_HEAD, MM_DROP_HEAD, 0, F_LEAD | F_ID | F_GROUP | F_NR, parse_lease, answer_plain),
	OP(RESERVE, MM_RESERVE, 0, F_LEAD | F_ID | F_GROUP | F_ARG, parse_reserve, answer_plain),
	OP(UNIMPORT, MM_UNIMPORT, 0, F_ID | F_NR, parse_unimport, answer_plain),
	OP(EVENTS, MM_EVENTS, 0, F_OUT, parse_plain, answer_events),
	OP(PRESSURE_ACK, MM_PRESSURE_ACK, 0, F_LEAD | F_ID | F_ARG, parse_pressure_ack,
	   answer_plain),
	OP(VACATE_ACK, MM_VACATE_ACK, 0, F_LEAD | F_ID, parse_vacate_ack, answer_plain),
	OP(STAT, MM_STAT, 0, F_OUT, parse_stat, answer_plain),
	OP(HINT, MM_HINT, 0, F_LEAD | F_ID | F_IN, parse_hint, answer_plain),
};

int dispatch_submit(struct exec *exec, const struct dispatch_client *client,
		    const struct kv_sqe *sqe, uint64_t cookie, uint64_t now_ns,
		    struct dispatch_pending *pending, struct kv_cqe *cqe)
{
	const struct op *op = sqe->op < KV_NR_OPS ? &ops[sqe->op] : NULL;
	struct parse p = { exec, client, sqe, now_ns, .cqe = cqe };
	const uint8_t *in;
	int ret;

	*cqe = (struct kv_cqe){ .user_data = sqe->user_data };
	if (op && (op->fields & F_LEAD) && !client->lead) {
		refuse(&p, -EACCES, KV_NOT_LEAD);
		return 1;
	}
	if (!op || !fields_ok(op, client, sqe)) {
		bad_entry(&p);
		return 1;
	}
	in = (const uint8_t *)client->data + sqe->in_off;
	if (sqe->in_bytes && client->scratch != in)
		memcpy(client->scratch, in, sqe->in_bytes);
	p.req = (struct mm_request){
		.op = op->mm_op, .flags = sqe->flags, .cookie = cookie, .engine = client->engine,
		.member = client->member, .cache = sqe->cache, .group = sqe->group,
	};
	if (op->parse(&p))
		return 1;
	ret = exec_submit(exec, &p.req, now_ns);
	if (ret == -EAGAIN)
		return ret;
	if (ret) {
		refuse(&p, ret, KV_BAD_ARGUMENT);
		return 1;
	}
	*pending = (struct dispatch_pending){
		.user_data = sqe->user_data, .out_off = sqe->out_off,
		.out_bytes = sqe->out_bytes, .op = sqe->op,
	};
	return 0;
}

void dispatch_reply(const struct dispatch_client *client, const struct dispatch_pending *pending,
		    const struct mm_reply *reply, struct kv_cqe *cqe)
{
	struct answer a = { client, pending, reply, cqe };

	*cqe = (struct kv_cqe){ .user_data = pending->user_data, .res = reply->result };
	if (reply->result) {
		cqe->reason = reply->reason;
		cqe->val[0] = reply->a;
		cqe->val[1] = reply->b;
		return;
	}
	ops[pending->op].answer(&a);
}

const char *dispatch_op_name(uint32_t op)
{
	return op < KV_NR_OPS ? ops[op].name : "?";
}

const char *dispatch_reason_text(uint32_t reason)
{
	static const char *const text[] = {
		[KV_OK] = "done",
		[KV_BAD_ARGUMENT] = "an argument is out of range: see docs/abi.md for its limits",
		[KV_NO_SUCH_ID] = "no such cache, lease, park, extent or device of this engine: "
				  "ids end with close, unlease, unpark or the engine",
		[KV_STALE_PAGE] = "the page was given back since (its generation differs): "
				  "look the prefix up again",
		[KV_NOT_OWNER] = "it belongs to another engine: use what this engine was given",
		[KV_POOL_FULL] =
			"the pool is full: free or unlease pages, allocate with a deadline, "
			"or start kvd with a larger --device",
		[KV_TENANT_MAX] = "the tenant is at its max: free pages, or raise it with kvctl "
				  "tenant set",
		[KV_TABLE_FULL] = "a table of kvd is full: give ids back, or raise the limit "
				  "(docs/knobs.md)",
		[KV_FENCED] = "the engine is fenced (a process of it died): open a new one",
		[KV_LEASED] = "pages of it are still held or leased: give them back first",
		[KV_TIMED_OUT] =
			"no room came free before the deadline: free pages, or wait longer",
		[KV_LAYOUT_DIFFERS] =
			"the model key is open with another layout: close that cache, "
			"or use another key",
		[KV_BAD_ENTRY] =
			"malformed request: an unknown op or flag, a field the op does not "
			"use, or a size that does not fit (docs/abi.md)",
		[KV_NOT_LEAD] = "a member session may only unmap, ask for events and statistics: "
				"send it from the lead",
	};

	if (reason < sizeof(text) / sizeof(text[0]) && text[reason])
		return text[reason];
	return "unknown reason: the daemon is newer than this library";
}
