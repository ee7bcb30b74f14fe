// SPDX-License-Identifier: Apache-2.0
/* event - what kvd asks of this engine; contract in internal.h
 *
 * Events are levels: each fetch says all that is to be done, so nothing is remembered of them but
 * that kv_poll() has to fetch them again (vacate_due), and the pressure a callback must answer.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "call.h"

#define EVENT_BATCH  128u
#define EVENT_ROUNDS 64u

enum { EVENT_RETIRE = 1, EVENT_PRESSURE = 2, EVENT_VACATE = 3 };

struct fetched {
	struct kv_event ev[EVENT_BATCH];
	uint32_t nr, total;
};

static int fetch(struct kv *kv, struct fetched *f)
{
	struct call call;
	int rc = call_begin(kv, &call, KV_OP_EVENTS, 0, sizeof(f->ev));

	if (rc)
		return rc;
	rc = call_run(&call);
	if (!rc && call.cqe.out_bytes != call.cqe.id * sizeof(f->ev[0]))
		rc = kv_mark_dead(kv, "kvd sent events of the wrong size");
	if (!rc) {
		f->nr = call.cqe.id;
		f->total = call.cqe.nr;
		memcpy(f->ev, call.out, f->nr * sizeof(f->ev[0]));
	}
	call_end(&call);
	return rc;
}

/* ---- pressure ------------------------------------------------------------------------------ */

static int ack_pressure(struct kv *kv, uint64_t bytes)
{
	const struct kv_sqe sqe = { .op = KV_OP_PRESSURE_ACK,
				    .id = kv->pressure.seq,
				    .arg = bytes };

	kv->pressure.due = false;
	return call_plain(kv, &sqe, NULL);
}

/* Without a callback the magazines are all there is to give; that needs no permission. */
static int take_pressure(struct kv *kv, const struct kv_event *ev)
{
	uint64_t before = kv->given_bytes;

	kv->pressure = (struct kv_pressure){
		.due = true,
		.seq = ev->seq,
		.bytes = ev->bytes,
		.deadline_ns = ev->deadline_ns,
	};
	if (magazine_flush_all(kv) < 0 && kv->dead)
		return -EPIPE;
	return kv->on_pressure ? 0 : ack_pressure(kv, kv->given_bytes - before);
}

static int call_engine(struct kv *kv)
{
	uint64_t before = kv->given_bytes;

	kv->on_pressure(kv->ctx, kv, kv->pressure.bytes, kv->pressure.deadline_ns);
	if (magazine_flush_all(kv) < 0 && kv->dead)
		return -EPIPE;
	return ack_pressure(kv, kv->given_bytes - before);
}

/* ---- vacate -------------------------------------------------------------------------------- */

/* The magazine's pages of it go; what is left is held by sequences or by the engine itself. kvd may
 * have thought better of it meanwhile: a refused answer is no failure. */
static int leave_magazine(struct kv *kv, uint32_t extent)
{
	const struct kv_sqe ack = { .op = KV_OP_VACATE_ACK, .id = extent };
	const struct map_extent *e;

	if (map_leave(kv, extent)) {
		e = &kv->map.ext[extent];
		if (magazine_leave(e->cache, e->group, extent) && kv->dead)
			return -EPIPE;
	}
	if (map_held(kv, extent))
		return 0;
	return call_plain(kv, &ack, NULL) && kv->dead ? -EPIPE : 0;
}

static int take_vacate(struct kv *kv, const struct kv_event *ev)
{
	int rc;

	if (kv->is_member)
		return 0;
	rc = leave_magazine(kv, ev->extent);
	kv->vacate_due |= map_held(kv, ev->extent) != 0;
	return rc;
}

/* One rank cannot copy for the others: with several shards it is the engine that moves. */
static int leave(struct kv *kv, const struct kv_event *ev)
{
	const struct map_extent *e;
	struct kv_cache *c;

	if (!map_held(kv, ev->extent))
		return 0;
	e = &kv->map.ext[ev->extent];
	c = e->cache;
	if (c->on_leave && c->nr_shards == 1 && c->on_leave(c, e->group, ev->extent) && kv->dead)
		return -EPIPE;
	if (map_held(kv, ev->extent) && kv->on_vacate)
		kv->on_vacate(kv->ctx, kv, ev->extent, ev->deadline_ns);
	return kv->dead ? -EPIPE : leave_magazine(kv, ev->extent);
}

/* What could not be left is tried again by the next kv_poll(), as long as kvd asks for it. */
static int leave_all(struct kv *kv, const struct fetched *f)
{
	uint32_t i;
	int rc = 0;

	kv->vacate_due = false;
	kv->vacating = true;
	for (i = 0; !rc && i < f->nr; i++) {
		if (f->ev[i].kind != EVENT_VACATE)
			continue;
		rc = leave(kv, &f->ev[i]);
		kv->vacate_due |= map_held(kv, f->ev[i].extent) != 0;
	}
	kv->vacating = false;
	return rc;
}

/* ---- serving ------------------------------------------------------------------------------- */

static int serve_one(struct kv *kv, const struct kv_event *ev)
{
	switch (ev->kind) {
	case EVENT_RETIRE:
		kv->retired++;
		return map_retire(kv, ev->extent);
	case EVENT_PRESSURE:
		return take_pressure(kv, ev);
	case EVENT_VACATE:
		return take_vacate(kv, ev);
	default:
		return 0; /* a later kvd's; features keep those we must know */
	}
}

/* Until a fetch says no more than could be told at once, or nothing more gets done. */
static int serve_all(struct kv *kv, struct fetched *f)
{
	uint32_t before = UINT32_MAX, round, i;
	int rc = 0;

	for (round = 0; !rc && round < EVENT_ROUNDS; round++) {
		rc = fetch(kv, f);
		if (rc)
			break;
		map_stay(kv);
		kv->vacate_due = false;
		for (i = 0; !rc && i < f->nr; i++)
			rc = serve_one(kv, &f->ev[i]);
		if (f->total <= f->nr || f->total >= before)
			break;
		before = f->total;
	}
	return rc;
}

/* kv_event_fd() is readable while something waits for kv_poll(). */
static int tell(struct kv *kv, bool due)
{
	uint64_t n = 1;
	ssize_t done = due ? write(kv->due_fd, &n, sizeof(n)) : read(kv->due_fd, &n, sizeof(n));

	if (done < 0 && errno != EAGAIN)
		return err_set(-errno, "cannot signal kv_event_fd(): %s", strerror(errno));
	return 0;
}

int event_serve(struct kv *kv, enum event_mode mode)
{
	struct fetched f = { .nr = 0 };
	int rc, told;

	kv->serving = true;
	rc = serve_all(kv, &f);
	if (!rc && mode != EVENT_QUIET && kv->pressure.due)
		rc = call_engine(kv);
	if (!rc && mode == EVENT_POLL && kv->vacate_due)
		rc = leave_all(kv, &f);
	kv->serving = false;
	told = kv->dead ? 0 :
			  tell(kv, kv->pressure.due || (kv->vacate_due && mode != EVENT_POLL));
	return rc ? rc : told;
}

int kv_poll(struct kv *kv)
{
	int rc = call_check(kv);

	if (rc)
		return rc;
	if (kv->serving)
		return err_set(-EBUSY, "kv_poll() inside a callback: it is running already");
	if (kv->ops->pending(kv) || kv->pressure.due || kv->vacate_due)
		rc = event_serve(kv, EVENT_POLL);
	if (rc)
		return rc;
	kv->ops->arm(kv);
	return kv->ops->pending(kv) ? event_serve(kv, EVENT_POLL) : 0;
}

int kv_event_fd(const struct kv *kv)
{
	if (*kv->guard == 1)
		kv->ops->arm(kv);
	return kv->epoll_fd;
}
