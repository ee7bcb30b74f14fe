// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "call.h"

#define EVENT_BATCH  32u
#define EVENT_ROUNDS 64u

enum { EVENT_RETIRE = 1, EVENT_PRESSURE = 2, EVENT_VACATE = 3 };

static int fetch(struct kv *kv, struct kv_event *ev, uint32_t *nr, uint32_t *total)
{
	struct call call;
	int rc = call_begin(kv, &call, KV_OP_EVENTS, 0, EVENT_BATCH * sizeof(*ev));

	if (rc)
		return rc;
	rc = call_run(&call);
	if (!rc && call.cqe.out_bytes != call.cqe.id * sizeof(*ev))
		rc = kv_mark_dead(kv, "kvd sent events of the wrong size");
	if (!rc) {
		*nr = call.cqe.id;
		*total = call.cqe.nr;
		memcpy(ev, call.out, *nr * sizeof(*ev));
	}
	call_end(&call);
	return rc;
}

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
	const uint64_t one = 1;
	uint64_t before = kv->given_bytes;

	kv->pressure = (struct kv_pressure){
		.due = true,
		.seq = ev->seq,
		.bytes = ev->bytes,
		.deadline_ns = ev->deadline_ns,
	};
	if (magazine_flush_all(kv) < 0 && kv->dead)
		return -EPIPE;
	if (!kv->on_pressure)
		return ack_pressure(kv, kv->given_bytes - before);
	if (write(kv->due_fd, &one, sizeof(one)) < 0)
		return err_set(-errno, "cannot signal kv_event_fd(): %s", strerror(errno));
	return 0;
}

static int call_engine(struct kv *kv)
{
	uint64_t drained, before = kv->given_bytes;

	if (read(kv->due_fd, &drained, sizeof(drained)) < 0 && errno != EAGAIN)
		return err_set(-errno, "cannot read kv_event_fd(): %s", strerror(errno));
	kv->on_pressure(kv->ctx, kv, kv->pressure.bytes, kv->pressure.deadline_ns);
	if (magazine_flush_all(kv) < 0 && kv->dead)
		return -EPIPE;
	return ack_pressure(kv, kv->given_bytes - before);
}

/* Held pages are the engine's to move; only an extent it holds nothing of is left at once. */
static int vacate(struct kv *kv, uint32_t extent)
{
	const struct kv_sqe sqe = { .op = KV_OP_VACATE_ACK, .id = extent };

	if (magazine_flush_all(kv) < 0 && kv->dead)
		return -EPIPE;
	return map_held(kv, extent) ? 0 : call_plain(kv, &sqe, NULL);
}

static int serve_one(struct kv *kv, const struct kv_event *ev)
{
	switch (ev->kind) {
	case EVENT_RETIRE:
		kv->retired++;
		return map_retire(kv, ev->extent);
	case EVENT_PRESSURE:
		return take_pressure(kv, ev);
	case EVENT_VACATE:
		return vacate(kv, ev->extent);
	default:
		return 0; /* a later kvd's; features keep those we must know */
	}
}

int event_serve(struct kv *kv, bool engine)
{
	struct kv_event ev[EVENT_BATCH];
	uint32_t nr = 0, total = 0, i, round;
	int rc = 0;

	kv->serving = true;
	for (round = 0; !rc && round < EVENT_ROUNDS; round++) {
		rc = fetch(kv, ev, &nr, &total);
		for (i = 0; !rc && i < nr; i++)
			rc = serve_one(kv, &ev[i]);
		if (!rc && total <= nr)
			break;
	}
	if (!rc && engine && kv->pressure.due)
		rc = call_engine(kv);
	kv->serving = false;
	return rc;
}

int kv_poll(struct kv *kv)
{
	int rc = call_check(kv);

	if (rc)
		return rc;
	if (kv->serving)
		return err_set(-EBUSY,
			       "kv_poll() inside the pressure callback: it is running already");
	if (kv->ops->pending(kv) || kv->pressure.due)
		rc = event_serve(kv, true);
	if (rc)
		return rc;
	kv->ops->arm(kv);
	return kv->ops->pending(kv) ? event_serve(kv, true) : 0;
}

int kv_event_fd(const struct kv *kv)
{
	if (*kv->guard == 1)
		kv->ops->arm(kv);
	return kv->epoll_fd;
}
