// SPDX-License-Identifier: Apache-2.0
#include "admit.h"
#include "cache.h"
#include "core.h"
#include "event.h"
#include "import.h"

/* ---- attaching ----------------------------------------------------------------------------- */

uint32_t engine_find(struct mm *mm, uint32_t id, struct mm_reply *rp, int *err)
{
	uint32_t engine = pool_find(mm, &mm->engines, id);

	*err = 0;
	if (!engine) {
		*err = reply_error(rp, -ENOENT, MM_NO_SUCH_ID, id, 0);
	} else if (engine_at(mm, engine)->fenced) {
		*err = reply_error(rp, -EACCES, MM_FENCED, id, 0);
		engine = NIL;
	}
	return engine;
}

static uint32_t add_member(struct mm *mm, uint32_t engine)
{
	uint32_t member = pool_get(mm, &mm->members);

	MM_ASSERT(member);
	if (member_at(mm, member)->obj.gen_live == POOL_LIVE)	/* the first to have this slot */
		import_init_member(mm, member);
	member_at(mm, member)->engine = engine;
	member_list_add_tail(mm, &engine_at(mm, engine)->members, member);
	return member;
}

int engine_op_attach(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	uint32_t tenant = tenant_find(mm, rq->attach.tenant), engine;

	if (pool_full(&mm->engines))
		return reply_table_full(rp, mm, max_engines);
	if (pool_full(&mm->members))
		return reply_table_full(rp, mm, max_members);
	if (!tenant && pool_full(&mm->tenants)) {
		int err = reply_table_full(rp, mm, max_tenants);

		return cache_clear_tenant(mm) ? -EAGAIN : err;
	}
	if (!tenant)
		tenant = tenant_create(mm, rq->attach.tenant);
	tenant_at(mm, tenant)->nr_refs++;
	engine = pool_get(mm, &mm->engines);
	engine_at(mm, engine)->tenant = tenant;
	engine_at(mm, engine)->lead = add_member(mm, engine);
	rp->engine = pool_id(mm, &mm->engines, engine);
	rp->member = pool_id(mm, &mm->members, engine_at(mm, engine)->lead);
	mm->vmstat.engines++;
	return 0;
}

int engine_op_member(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	int err = 0;
	uint32_t engine = engine_find(mm, rq->engine, rp, &err);

	if (!engine)
		return err;
	if (pool_full(&mm->members))
		return reply_table_full(rp, mm, max_members);
	rp->member = pool_id(mm, &mm->members, add_member(mm, engine));
	return 0;
}

/* ---- dying --------------------------------------------------------------------------------- */

static void quarantine(struct mm *mm, uint32_t ext)
{
	struct extent *x = extent_at(mm, ext);

	mm->vmstat.pages_quarantine += x->nr[FRAME_HELD];
	while (x->frames[FRAME_HELD].head)
		frame_set_state(mm, x->frames[FRAME_HELD].head, FRAME_QUARANTINED);
}

static void fence(struct mm *mm, uint32_t engine)
{
	struct engine *e = engine_at(mm, engine);

	e->fenced = true;
	e->fenced_ns = mm->now_ns;
	mm->vmstat.fences++;
	pending_drop(mm, engine);
	psi_forget(mm, engine);
	while (e->leases.head)
		lease_release(mm, e->leases.head);
	while (e->parks.head)
		park_free(mm, e->parks.head);
	for (uint32_t b = e->binds.head; b; b = bind_at(mm, b)->engine_link.next) {
		admit_promise(mm, b, 0);
		compact_leave(mm, b);
		extent_each(mm, b, quarantine);
		if (!cache_at(mm, bind_at(mm, b)->cache)->shared)
			extent_each(mm, b, extent_evict);	/* nobody can use it any more */
		slab_trim_soon(mm, b);
	}
	mm->dirty = true;
}

void engine_kill(struct mm *mm, uint32_t engine)
{
	fence(mm, engine);
	engine_at(mm, engine)->kill = true;
	mm->nr_kills++;
}

bool engine_next_effect(struct mm *mm, struct mm_effect *fx)
{
	uint32_t e = mm->nr_kills ? pool_next(mm, &mm->engines, 0) : NIL;

	if (!e)
		return false;
	while (!engine_at(mm, e)->kill)
		e = pool_next(mm, &mm->engines, e);
	engine_at(mm, e)->kill = false;
	mm->nr_kills--;
	*fx = (struct mm_effect){
		.kind = MM_EFFECT_KILL, .engine = pool_id(mm, &mm->engines, e),
	};
	return true;
}

/* Nobody maps its pages any more: quarantine may end. */
static void drain(struct mm *mm, uint32_t engine)
{
	struct engine *e = engine_at(mm, engine);

	e->draining = true;
	admit_unreserve(mm, engine);
	e->nr_scrubs++;		/* keeps it while extents are still being started */
	for (uint32_t b = e->binds.head; b; b = bind_at(mm, b)->engine_link.next)
		extent_each(mm, b, extent_scrub);
	e->nr_scrubs--;
	engine_drained(mm, engine);
}

void engine_drained(struct mm *mm, uint32_t engine)
{
	struct engine *e = engine_at(mm, engine);
	uint32_t tenant = e->tenant;

	if (e->nr_scrubs)
		return;
	while (e->binds.head)
		cache_leave(mm, e->binds.head);
	mm->nr_kills -= e->kill;
	pool_put(mm, &mm->engines, engine);
	tenant_put(mm, tenant);
	mm->dirty = true;
}

int engine_op_fence(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	uint32_t engine = pool_find(mm, &mm->engines, rq->engine);

	if (!engine)
		return reply_error(rp, -ENOENT, MM_NO_SUCH_ID, rq->engine, 0);
	if (!engine_at(mm, engine)->fenced)
		fence(mm, engine);
	return 0;
}

int engine_op_gone(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	uint32_t member = pool_find(mm, &mm->members, rq->member), engine;
	struct engine *e;

	if (!member)
		return reply_error(rp, -ENOENT, MM_NO_SUCH_ID, rq->member, 0);
	engine = member_at(mm, member)->engine;
	e = engine_at(mm, engine);
	rp->engine = pool_id(mm, &mm->engines, engine);
	if (!e->fenced)
		fence(mm, engine);
	import_drop_member(mm, member);
	event_forget(mm, member);
	member_list_del(mm, &e->members, member);
	if (e->lead == member)
		e->lead = NIL;
	pool_put(mm, &mm->members, member);
	if (!e->members.nr)
		drain(mm, engine);
	return 0;
}

/* ---- the rest ------------------------------------------------------------------------------ */

int engine_op_stat(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	int err = 0;
	uint32_t engine = engine_find(mm, rq->engine, rp, &err), prev;
	struct mm_engine_info info;

	if (!engine)
		return err;
	prev = engine - 1;
	mm_next_engine(mm, &prev, &info);
	rp->a = info.held_pages;
	rp->b = info.held_bytes;
	return 0;
}
