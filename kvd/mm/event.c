// SPDX-License-Identifier: Apache-2.0
#include "core.h"
#include "event.h"
#include "import.h"

void event_notify(struct mm *mm, uint32_t member)
{
	struct member *m = member_at(mm, member);

	if (!m->on_notify)
		notify_list_add_tail(mm, &mm->notify, member);
	m->on_notify = true;
}

void event_forget(struct mm *mm, uint32_t member)
{
	struct member *m = member_at(mm, member);

	if (m->on_notify)
		notify_list_del(mm, &mm->notify, member);
	m->on_notify = false;
}

void event_pressure(struct mm *mm, uint32_t engine, uint64_t bytes, uint64_t deadline_ns)
{
	struct engine *e = engine_at(mm, engine);

	e->pressure = (struct pressure){
		.seq = ++mm->pressure_seq, .acked = e->pressure.acked,
		.bytes = bytes, .deadline_ns = deadline_ns,
	};
	if (e->lead)
		event_notify(mm, e->lead);
}

bool event_next_effect(struct mm *mm, struct mm_effect *fx)
{
	uint32_t member = mm->notify.head;

	if (!member)
		return false;
	event_forget(mm, member);
	*fx = (struct mm_effect){
		.kind = MM_EFFECT_NOTIFY, .member = pool_id(mm, &mm->members, member),
	};
	return true;
}

static bool pressed(const struct mm *mm, const struct engine *e)
{
	return e->pressure.seq != e->pressure.acked && e->pressure.deadline_ns > mm->now_ns;
}

int event_op_events(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	uint32_t member = pool_find(mm, &mm->members, rq->member), nr = 0;
	const struct engine *e;
	struct mm_event *ev;

	if (!member)
		return reply_error(rp, -ENOENT, MM_NO_SUCH_ID, rq->member, 0);
	e = engine_at(mm, member_at(mm, member)->engine);
	ev = (struct mm_event *)reply_words(mm, EVENT_MAX * sizeof(*ev) / sizeof(uint64_t));
	if (e->lead == member && pressed(mm, e))
		ev[nr++] = (struct mm_event){
			.kind = MM_EVENT_PRESSURE, .seq = e->pressure.seq,
			.bytes = e->pressure.bytes, .deadline_ns = e->pressure.deadline_ns,
		};
	if (e->lead == member && !e->fenced)
		nr += compact_events(mm, member_at(mm, member)->engine, ev + nr, EVENT_MAX - nr);
	for (uint32_t x = mm->retiring.head; x && nr < EVENT_MAX;
	     x = extent_at(mm, x)->retire_link.next)
		if (*import_bits(mm, member, x))
			ev[nr++] = (struct mm_event){ .kind = MM_EVENT_RETIRE, .extent = x };
	rp->engine = pool_id(mm, &mm->engines, member_at(mm, member)->engine);
	rp->events = nr ? ev : NULL;
	rp->nr_events = nr;
	return 0;
}

int event_op_pressure_ack(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	int err = 0;
	uint32_t engine = engine_find(mm, rq->engine, rp, &err);
	struct engine *e = engine_at(mm, engine);

	if (!engine)
		return err;
	if (!rq->ack.seq || rq->ack.seq > mm->pressure_seq)
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, rq->ack.seq, mm->pressure_seq);
	if (rq->ack.seq == e->pressure.seq)	/* an older one has been overtaken: nothing to do */
		e->pressure.acked = e->pressure.seq;
	return 0;
}
