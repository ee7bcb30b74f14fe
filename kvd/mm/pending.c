// SPDX-License-Identifier: Apache-2.0
#include "admit.h"
#include "cache.h"
#include "core.h"
#include "event.h"
#include "reclaim.h"
#include "vmstat.h"

enum verdict {
	GRANTED,
	WAIT_CREATE,	/* an extent of its own is being made */
	WAIT_ROOM,	/* somebody is giving room back, or has been asked to */
	REFUSED,
};

struct want {
	uint32_t bind, group, nr, cache;
	uint64_t deadline_ns;
	uint32_t claimed;	/* pages of the same slab that earlier ones wait for */
	struct fair_place at;	/* in the queue, or where it would be */
	bool may_wait;		/* there is, or will be, an entry in the queue */
	bool barred, own_barred;	/* by one before it: of anybody, of its tenant */
	uint32_t bars, own;	/* waiting for room: what pending has */
	bool pressed;
	int32_t create_error;
	uint64_t *ids;
};

static struct slab *slab(const struct mm *mm, const struct want *w)
{
	return &bind_at(mm, w->bind)->slab[w->group];
}

/* What orphans of the same cache and group could give: at once, and by eviction. */
static void count_orphans(const struct mm *mm, const struct want *w, uint64_t *easy, uint64_t *more)
{
	const struct cache *c = cache_at(mm, w->cache);

	for (uint32_t o = slab_orphans(c); o; o = bind_at(mm, o)->cache_link.next) {
		const struct slab *s = &bind_at(mm, o)->slab[w->group];

		for (uint32_t k = 0; k <= SLAB_FULL; k++)
			for (uint32_t e = s->bucket[k].head; e;
			     e = extent_at(mm, e)->bucket_link.next) {
				const struct extent *x = extent_at(mm, e);

				if (!slab_adoptable(mm, w->bind, e))
					continue;
				*easy += x->nr[FRAME_FREE] + x->nr[FRAME_COLD];
				*more += x->nr[FRAME_CACHED] - x->nr_pinned;
			}
	}
}

static enum verdict grant(struct mm *mm, const struct want *w)
{
	while (slab_ready(slab(mm, w)) < w->nr)
		MM_ASSERT(slab_adopt(mm, w->bind, w->group, false));
	slab_strip_cold(mm, w->bind, w->group, w->nr);
	slab_grant(mm, w->bind, w->group, w->nr, w->ids);
	return GRANTED;
}

/* ---- asking others ------------------------------------------------------------------------- */

static bool holds_on(const struct mm *mm, uint32_t engine, uint32_t devices)
{
	const struct engine *e = engine_at(mm, engine);

	for (uint32_t b = e->binds.head; b; b = bind_at(mm, b)->engine_link.next)
		if (bind_at(mm, b)->nr_extents &&
		    cache_at(mm, bind_at(mm, b)->cache)->device_mask & devices)
			return true;
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		if (devices >> d & 1 && e->reserved[d])
			return true;
	return false;
}

/* True if anybody else (of the tenant, if that is at its max) has room on the devices; those alive
 * are told. */
static bool press(struct mm *mm, struct want *w, uint32_t nr_extents)
{
	const struct cache *c = cache_at(mm, w->cache);
	uint32_t me = bind_at(mm, w->bind)->engine;
	uint64_t bytes = 0;
	bool others = false;

	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		bytes += c->need[w->group][d] * nr_extents;
	for (uint32_t e = pool_next(mm, &mm->engines, 0); e; e = pool_next(mm, &mm->engines, e)) {
		if (e == me || (w->own && engine_at(mm, e)->tenant != c->tenant) ||
		    !holds_on(mm, e, c->device_mask))
			continue;
		others = true;
		if (!w->pressed && !engine_at(mm, e)->fenced)
			event_pressure(mm, e, bytes, w->deadline_ns);
	}
	w->pressed = true;
	return others;
}

/* Is room that w can use on its way? */
static bool leaving(const struct mm *mm, const struct want *w)
{
	const struct cache *c = cache_at(mm, w->cache);

	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		if (c->device_mask >> d & 1 &&
		    (w->own ? tenant_at(mm, c->tenant)->leaving[d] : mm->device[d].leaving_bytes))
			return true;
	return false;
}

/* ---- the order ----------------------------------------------------------------------------- */

static uint32_t devices_of(const struct mm *mm, uint32_t bind)
{
	return cache_at(mm, bind_at(mm, bind)->cache)->device_mask;
}

struct fair_place pending_place(const struct mm *mm, uint32_t p)
{
	static const struct fair_base none;

	return fair_place(mm, pending_at(mm, p)->engine, pending_at(mm, p)->seq, &none, 0);
}

/* Is one of the first ones of these devices before this place? */
static bool barred(const struct mm *mm, const uint32_t *head, uint32_t devices,
		   const struct fair_place *at)
{
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		if (devices >> d & 1 && head[d]) {
			struct fair_place first = pending_place(mm, head[d]);

			if (fair_before(&first, at))
				return true;
		}
	return false;
}

/* NULL: none of the tenant waits for room. */
static const struct pending_tenant *waiting_of(const struct mm *mm, uint32_t tenant)
{
	const struct pending_tenant *t = &tenant_at(mm, tenant)->queue;

	return t->pass == mm->queue.pass && t->floor != UINT64_MAX ? t : NULL;
}

static struct fair_base base_of(const struct mm *mm, const struct want *w)
{
	uint32_t tenant = cache_at(mm, w->cache)->tenant;
	const struct pending_tenant *t = waiting_of(mm, tenant);
	struct fair_base base = { .tenant = UINT64_MAX,
				  .engine = t ? t->floor : tenant_at(mm, tenant)->queue.start };

	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++) {
		uint32_t p = devices_of(mm, w->bind) >> d & 1 ? mm->queue.head[d] : NIL, owner;

		owner = p ? engine_at(mm, pending_at(mm, p)->engine)->tenant : NIL;
		if (p && tenant_at(mm, owner)->fair.start < base.tenant)
			base.tenant = tenant_at(mm, owner)->fair.start;
	}
	if (base.tenant == UINT64_MAX)
		base.tenant = mm->queue.start;
	return base;
}

static uint64_t bytes_of(const struct mm *mm, const struct want *w)
{
	return w->nr * vmstat_page_bytes(mm, w->cache, w->group, VMSTAT_ALL_DEVICES);
}

/* Its place, and who is before it. */
static void look_before(struct mm *mm, struct want *w, uint64_t seq)
{
	const struct cache *c = cache_at(mm, w->cache);
	const struct pending_tenant *t = waiting_of(mm, c->tenant);
	struct fair_base base = base_of(mm, w);

	w->at = fair_place(mm, bind_at(mm, w->bind)->engine, seq, &base, bytes_of(mm, w));
	w->barred = barred(mm, mm->queue.head, c->device_mask, &w->at);
	w->own_barred = t && barred(mm, t->own_head, c->device_mask, &w->at);
}

/* Extents made for w are what others wait for, if any do. Before the queue is looked at again. */
static void took(struct mm *mm, const struct want *w, uint32_t nr_extents)
{
	const struct cache *c = cache_at(mm, w->cache);
	const struct pending_tenant *t = waiting_of(mm, c->tenant);
	struct fair_base base = base_of(mm, w);
	uint64_t bytes = 0;
	bool wanted = false;

	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++) {
		bytes += c->need[w->group][d] * nr_extents;
		wanted = wanted || (c->device_mask >> d & 1 &&
				    (mm->queue.head[d] || (t && t->own_head[d])));
	}
	if (!wanted || !bytes)
		return;
	fair_take(mm, bind_at(mm, w->bind)->engine, &base, bytes);
	mm->queue.stale = true;		/* its next one may be after others now */
	mm->dirty = true;
}

/* ---- the decision -------------------------------------------------------------------------- */

static uint32_t extents_for(uint64_t pages, const struct cache *c, uint32_t group)
{
	return (uint32_t)((pages + (1u << c->order[group]) - 1) >> c->order[group]);
}

static enum verdict create(struct mm *mm, const struct want *w, uint32_t nr)
{
	uint32_t made = 0;

	while (made < nr && extent_create(mm, w->bind, w->group))
		made++;		/* frames fragmented: the rest is made when these are used up */
	took(mm, w, made);
	return WAIT_CREATE;
}

/* With so many extents more the tenant would be above its max. */
static bool at_max(const struct mm *mm, const struct want *w, uint32_t extents,
		   struct mm_reply *why)
{
	const struct cache *c = cache_at(mm, w->cache);

	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++) {
		uint64_t room = admit_quota(mm, w->bind, w->group, d);
		uint64_t limit = tenant_at(mm, c->tenant)->limit[d].max_bytes;

		if (c->need[w->group][d] * extents <= room)
			continue;
		reply_error(why, -EDQUOT, MM_TENANT_MAX, limit, core_less(limit, room));
		return true;
	}
	return false;
}

static enum verdict wait_room(struct mm *mm, struct want *w, uint64_t missing, struct mm_reply *rp)
{
	const struct cache *c = cache_at(mm, w->cache);
	uint32_t extents = extents_for(missing, c, w->group);
	struct reclaim take = { w->bind, w->group, w->at,
				w->own_barred || at_max(mm, w, extents, rp) };
	bool coming;

	if (!w->may_wait || w->create_error)
		return REFUSED;
	/* Who cannot wait comes again, perhaps: the room is on its way by then. */
	if (!w->deadline_ns && !(take.own ? w->own_barred : w->barred))
		reclaim_extents(mm, &take, extents);
	if (w->deadline_ns <= mm->now_ns)
		return REFUSED;
	w->own = take.own ? c->device_mask : 0;
	w->bars = take.own ? 0 : c->device_mask;
	if (take.own ? w->own_barred : w->barred)
		return WAIT_ROOM;
	/* Extent slots and frames are of no device: who lacks them bars all. */
	if (w->bars && (mm->extents.max - mm->extents.nr_used < extents ||
			!buddy_fits(&mm->frame_buddy, c->order[w->group])))
		w->bars = UINT32_MAX;
	coming = reclaim_extents(mm, &take, extents);
	if (!press(mm, w, extents) && !coming && !leaving(mm, w))
		return REFUSED;
	if (!coming)
		compact_want(mm, c->device_mask, 0);
	return WAIT_ROOM;
}

/* A tenant that more extents would take above its high has its own cached pages taken first; so
 * has a slab of which others are being given room, and one that would take a device below low. */
static uint32_t prefer_cached(struct mm *mm, const struct want *w, uint32_t can, uint64_t have)
{
	const struct cache *c = cache_at(mm, w->cache);
	uint32_t fewer = extents_for(core_less(w->nr, have), c, w->group), spares;

	if (fewer >= can)
		return can;
	if (slab(mm, w)->bucket[SLAB_DRAINING].nr)
		return fewer;
	if (memcg_would_pass_high(mm, c->tenant, c->need[w->group], can)) {
		if (!fewer)
			memcg_event(mm, c->tenant, MM_MEMCG_HIGH);
		return fewer;
	}
	spares = shrink_spares(mm, w->bind, w->group, can);
	return spares > fewer ? spares : fewer;
}

/* Whoever is before it, what it was promised and what its tenant's min says is its own. */
static uint32_t creatable(const struct mm *mm, const struct want *w, uint32_t nr,
			  struct mm_reply *rp)
{
	const struct cache *c = cache_at(mm, w->cache);
	uint32_t can = extent_creatable(mm, w->bind, w->group, nr, rp);

	for (uint32_t d = 0; d < mm->cfg.nr_devices && (w->barred || w->own_barred); d++) {
		uint64_t need = c->need[w->group][d];

		if (need && admit_entitled(mm, w->bind, w->group, d) / need < can)
			can = (uint32_t)(admit_entitled(mm, w->bind, w->group, d) / need);
	}
	return can;
}

static enum verdict decide(struct mm *mm, struct want *w, struct mm_reply *rp)
{
	struct slab *s = slab(mm, w);
	const struct cache *c = cache_at(mm, w->cache);
	uint64_t easy = slab_ready(s), more = slab_reclaimable(s), ahead, missing;
	uint32_t want_extents, can = 0;
	bool traded;

	if (easy < w->nr && compact_give_back(mm, w->bind, w->group, w->nr)) {
		easy = slab_ready(s);
		more = slab_reclaimable(s);
	}
	if (easy >= w->nr)
		return grant(mm, w);
	count_orphans(mm, w, &easy, &more);
	if (easy >= w->nr)
		return grant(mm, w);
	ahead = core_less(easy + s->nr_coming, w->claimed);
	if (ahead >= w->nr && w->may_wait)
		return WAIT_CREATE;
	want_extents = extents_for(core_less(w->nr, ahead), c, w->group);
	if (!w->create_error && w->may_wait)
		can = creatable(mm, w, want_extents, rp);
	can = prefer_cached(mm, w, can, ahead + more);
	/* New memory first, all there is, if with the cached pages it will do. */
	if (can && ahead + more + ((uint64_t)can << c->order[w->group]) >= w->nr)
		return create(mm, w, can);
	if (w->may_wait && ahead > core_less(easy, w->claimed) && ahead + more >= w->nr)
		return WAIT_CREATE;	/* more of it is coming */
	if (easy + more >= w->nr) {
		/* Others may have what is colder: then there is new memory the next time. */
		traded = shrink_trade(mm, w->bind, w->group);
		if (reclaim_pages(mm, w->bind, w->group, w->nr)) {
			if (!traded)
				shrink_claim(mm, w->bind, w->group);
			return grant(mm, w);
		}
		mm->more = true;
		mm->queue.left = 0;
		pending_wake(mm, w->bind, w->group);
		return w->may_wait ? WAIT_CREATE : REFUSED;
	}
	missing = core_less(w->nr, ahead + more);
	return wait_room(mm, w, missing, rp);
}

/* ---- the queue ----------------------------------------------------------------------------- */

static int share_full(const struct mm *mm, uint32_t engine, struct mm_reply *rp)
{
	return reply_share_of(rp, max_pending, engine_at(mm, engine)->nr_pending, 1,
			      pool_free(&mm->pendings));
}

static void say_why(const struct mm *mm, const struct want *w, struct mm_reply *rp)
{
	const struct cache *c = cache_at(mm, w->cache);
	uint32_t short_of = extents_for(w->nr, c, w->group);
	bool room;

	if (w->create_error) {
		rp->result = reply_error(rp, w->create_error == -ENOMEM ? -ENOMEM : -EIO,
					 MM_POOL_FULL, 0, 0);
		return;
	}
	rp->reason = MM_OK;
	extent_creatable(mm, w->bind, w->group, short_of, rp);
	at_max(mm, w, short_of, rp);	/* then room in the pool would not help either */
	room = rp->reason == MM_OK;
	if (room)	/* there is, but others were first, or none may wait */
		reply_error(rp, -ENOMEM, MM_POOL_FULL, w->nr, 0);
	rp->result = rp->reason == MM_TENANT_MAX ? -EDQUOT : -ENOMEM;
	if (!w->may_wait && rp->reason != MM_TENANT_MAX && (room || w->deadline_ns))
		rp->result = share_full(mm, bind_at(mm, w->bind)->engine, rp);
	else if (w->deadline_ns && w->deadline_ns <= mm->now_ns)
		rp->reason = MM_TIMED_OUT;
}

static void refuse(struct mm *mm, const struct want *w, struct mm_reply *rp)
{
	struct oom_ask ask = { w->bind, w->group, w->nr, rp };

	say_why(mm, w, rp);
	mm->vmstat.alloc_fail++;
	if (w->deadline_ns && rp->result != -EIO)
		oom_refused(mm, &ask);
}

/* ---- who bars whom, and until when --------------------------------------------------------- */

/* What is known of a tenant is from the last walk, or nothing. */
static struct pending_tenant *known(struct mm *mm, uint32_t tenant)
{
	struct pending_tenant *t = &tenant_at(mm, tenant)->queue;

	if (t->pass != mm->queue.pass)
		*t = (struct pending_tenant){ .start = t->start, .pass = mm->queue.pass,
					      .floor = UINT64_MAX };
	return t;
}

static void make_first(const struct mm *mm, uint32_t *head, uint32_t p)
{
	struct fair_place mine = pending_place(mm, p), its;

	if (*head)
		its = pending_place(mm, *head);
	if (!*head || fair_before(&mine, &its))
		*head = p;
}

/* Not called while stale: refresh finds it. */
static void note_bars(struct mm *mm, uint32_t p)
{
	const struct pending *pe = pending_at(mm, p);
	const struct engine *e = engine_at(mm, pe->engine);
	struct pending_queue *q = &mm->queue;
	struct pending_tenant *t = known(mm, e->tenant);

	if (!pending_wants_room(pe))
		return;
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++) {
		if (pe->bars >> d & 1)
			make_first(mm, &q->head[d], p);
		if (pe->own >> d & 1)
			make_first(mm, &t->own_head[d], p);
	}
	if (pe->own && !t->listed) {
		t->listed = true;
		t->next = q->own;
		q->own = e->tenant;
	}
	t->floor = e->fair.start < t->floor ? e->fair.start : t->floor;
	/* One whose extent is being made outlives its deadline: it wakes by completion. */
	q->due_ns = pe->deadline_ns < q->due_ns ? pe->deadline_ns : q->due_ns;
}

static void set_bars(struct mm *mm, uint32_t p, uint32_t bars, uint32_t own)
{
	struct pending *pe = pending_at(mm, p);

	if (bars == pe->bars && own == pe->own)
		return;
	mm->queue.stale = mm->queue.stale || pending_wants_room(pe);
	pe->bars = bars;
	pe->own = own;
	if (!mm->queue.stale)
		note_bars(mm, p);
	mm->dirty = true;	/* there may be another first one */
}

static void refresh(struct mm *mm)
{
	struct pending_queue *q = &mm->queue;

	if (!q->stale)
		return;
	q->stale = false;
	q->pass++;
	q->due_ns = UINT64_MAX;
	q->own = NIL;
	for (uint32_t d = 0; d < MM_MAX_DEVICES; d++)
		q->head[d] = NIL;
	for (uint32_t p = mm->waiting.head; p; p = pending_at(mm, p)->link.next) {
		note_bars(mm, p);
		q->nr_looks++;
	}
}

uint64_t pending_next_deadline(const struct mm *mm)
{
	return mm->queue.due_ns;
}

/* ---- into the queue and out of it ---------------------------------------------------------- */

static void enqueue(struct mm *mm, const struct want *w, const struct mm_request *rq,
		    bool for_room)
{
	uint32_t p = pool_get(mm, &mm->pendings);
	struct pending *pe = pending_at(mm, p);
	struct fair_base base;

	MM_ASSERT(p);
	refresh(mm);
	base = base_of(mm, w);
	pe->engine = bind_at(mm, w->bind)->engine;
	pe->bind = w->bind;
	pe->group = w->group;
	pe->nr_pages = w->nr;
	pe->deadline_ns = w->deadline_ns;
	pe->cookie = rq->cookie;
	pe->pressed = w->pressed;
	pe->seq = ++mm->queue.last_seq;
	slab(mm, w)->pend_pages += w->nr;
	if (!engine_at(mm, pe->engine)->nr_pending++)
		psi_stall(mm, pe->engine);
	fair_enter(mm, pe->engine, &base, bytes_of(mm, w));
	pending_list_add_tail(mm, &mm->waiting, p);
	waiter_list_add_tail(mm, &slab(mm, w)->waiters, p);
	set_bars(mm, p, for_room ? w->bars : 0, for_room ? w->own : 0);
	mm->vmstat.alloc_wait++;
}

/* It waits no more, but is still there. */
static void leave_queue(struct mm *mm, uint32_t p)
{
	struct pending *pe = pending_at(mm, p);
	struct slab *s = &bind_at(mm, pe->bind)->slab[pe->group];

	set_bars(mm, p, 0, 0);
	if (s->wake_at == p)
		s->wake_at = pe->slab_link.next;
	waiter_list_del(mm, &s->waiters, p);
	s->pend_pages -= pe->nr_pages;
	if (!--engine_at(mm, pe->engine)->nr_pending)
		psi_resume(mm, pe->engine);
	fair_leave(mm, pe->engine);
	slab_trim_soon(mm, pe->bind);
	pending_list_del(mm, &mm->waiting, p);
	mm->dirty = true;	/* what it collected extents in may be taken now */
	mm->shrink.kick = mm->shrink.kick || mm->shrink.hungry;
}

static void dequeue(struct mm *mm, uint32_t p)
{
	leave_queue(mm, p);
	pool_put(mm, &mm->pendings, p);
}

/* More than the slab has FREE is wanted. */
static int alloc_more(struct mm *mm, const struct mm_request *rq, uint32_t bind,
		      struct mm_reply *rp)
{
	uint32_t engine = bind_at(mm, bind)->engine;
	struct want w = { .bind = bind, .group = rq->group, .nr = rq->alloc.nr_pages,
			  .cache = bind_at(mm, bind)->cache,
			  .deadline_ns = rq->alloc.deadline_ns };
	enum verdict v;

	if (w.deadline_ns > mm->now_ns && w.deadline_ns - mm->now_ns > MM_MAX_WAIT_NS)
		w.deadline_ns = mm->now_ns + MM_MAX_WAIT_NS;
	w.may_wait = !share_full(mm, engine, rp);
	w.claimed = slab(mm, &w)->pend_pages;
	look_before(mm, &w, UINT64_MAX);
	w.ids = reply_words(mm, w.nr);
	v = decide(mm, &w, rp);
	if (rp->reason == MM_TENANT_MAX)
		memcg_event(mm, engine_at(mm, engine)->tenant, MM_MEMCG_MAX);
	if (v == GRANTED) {
		*rp = (struct mm_reply){ .cookie = rp->cookie, .op = rp->op, .engine = rp->engine,
					 .cache = rp->cache, .pages = w.ids, .nr_pages = w.nr };
		return 0;
	}
	if (v == REFUSED) {
		refuse(mm, &w, rp);
		return rp->result;
	}
	enqueue(mm, &w, rq, v == WAIT_ROOM);
	return REPLY_LATER;
}

int pending_op_alloc(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	int err = 0;
	uint32_t engine = engine_find(mm, rq->engine, rp, &err), nr = rq->alloc.nr_pages, bind;
	const struct bind *b;
	uint64_t *ids;

	if (!engine)
		return err;
	bind = cache_bind(mm, engine, rq->cache, rp, &err);
	if (!bind)
		return err;
	b = bind_at(mm, bind);
	if (rq->group >= cache_at(mm, b->cache)->desc.nr_groups || !nr || nr > mm->cfg.batch_pages)
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, nr, mm->cfg.batch_pages);
	if (slab_free(&b->slab[rq->group]) < nr)
		return alloc_more(mm, rq, bind, rp);
	/* Whatever waits: decide() would do the same. */
	rp->pages = ids = reply_words(mm, nr);
	rp->nr_pages = nr;
	slab_grant(mm, bind, rq->group, nr, ids);
	return 0;
}

/* ---- trying again -------------------------------------------------------------------------- */

/* One more try; false: it goes on waiting. */
static bool retry(struct mm *mm, uint32_t p, uint32_t claimed)
{
	struct pending *pe = pending_at(mm, p);
	struct want w = {
		.bind = pe->bind, .group = pe->group, .nr = pe->nr_pages, .claimed = claimed,
		.cache = bind_at(mm, pe->bind)->cache,
		.deadline_ns = pe->deadline_ns, .may_wait = true, .pressed = pe->pressed,
		.create_error = pe->create_error,
	};
	struct mm_reply rp = {
		.cookie = pe->cookie, .op = MM_ALLOC,
		.engine = pool_id(mm, &mm->engines, pe->engine),
		.cache = pool_id(mm, &mm->caches, w.cache),
	};
	enum verdict v;

	refresh(mm);
	look_before(mm, &w, pe->seq);
	w.ids = reply_words(mm, w.nr);
	mm->queue.left--;
	mm->queue.nr_looks++;
	v = decide(mm, &w, &rp);
	if (v == WAIT_CREATE || v == WAIT_ROOM) {
		mm->replies.used_words -= w.nr;
		set_bars(mm, p, v == WAIT_ROOM ? w.bars : 0, v == WAIT_ROOM ? w.own : 0);
		pe->pressed = w.pressed;
		return false;
	}
	if (v == REFUSED) {
		mm->replies.used_words -= w.nr;
		refuse(mm, &w, &rp);
		pending_wake(mm, w.bind, w.group);	/* its claim is void */
	} else {
		rp = (struct mm_reply){ .cookie = rp.cookie, .op = rp.op, .engine = rp.engine,
					.cache = rp.cache, .pages = w.ids, .nr_pages = w.nr };
	}
	dequeue(mm, p);
	reply_push(mm, &rp);
	return true;
}

/* Budget and reply queue allow another try? If not the rest is mm_tick's. */
static bool may_retry(struct mm *mm, uint32_t p)
{
	if (mm->queue.left && reply_room(mm, pending_at(mm, p)->nr_pages))
		return true;
	mm->more = true;
	return false;
}

static uint32_t claimed_before(struct mm *mm, const struct slab *s, uint32_t p)
{
	uint32_t claimed = 0;

	for (uint32_t q = s->waiters.head; q != p; q = pending_at(mm, q)->slab_link.next) {
		claimed += pending_at(mm, q)->nr_pages;
		mm->queue.nr_looks++;
	}
	return claimed;
}

static bool run_slab(struct mm *mm, struct slab *s)
{
	uint32_t claimed = claimed_before(mm, s, s->wake_at);

	while (s->wake_at) {
		uint32_t p = s->wake_at, nr = pending_at(mm, p)->nr_pages;

		if (!may_retry(mm, p))
			return false;
		if (retry(mm, p, claimed))
			continue;	/* leaving the queue moved wake_at on */
		claimed += nr;
		s->wake_at = pending_at(mm, p)->slab_link.next;
	}
	return true;
}

/* Those of slabs that have changed. A pass is finished before one anew, lest the last starve. */
static bool run_wakes(struct mm *mm)
{
	uint32_t bind;

	while ((bind = mm->wake.head)) {
		struct bind *b = bind_at(mm, bind);

		for (uint32_t g = 0; g < MM_MAX_GROUPS; g++) {
			struct slab *s = &b->slab[g];

			while (b->wake >> g & 1 || s->wake_at) {
				if (!s->wake_at) {
					b->wake &= ~(1u << g);
					s->wake_at = s->waiters.head;
				}
				if (!run_slab(mm, s))
					return false;
			}
		}
		if (b->wake)
			continue;	/* reclaim for one group freed pages of one before it */
		wake_list_del(mm, &mm->wake, bind);
		b->on_wake = false;
	}
	return true;
}

static struct slab *slab_of_waiter(const struct mm *mm, uint32_t p)
{
	return &bind_at(mm, pending_at(mm, p)->bind)->slab[pending_at(mm, p)->group];
}

static void run_due(struct mm *mm)
{
	uint32_t next;

	for (uint32_t p = mm->waiting.head; p; p = next) {
		const struct pending *pe = pending_at(mm, p);

		next = pe->link.next;
		mm->queue.nr_looks++;
		if (!pending_wants_room(pe) || pe->deadline_ns > mm->now_ns)
			continue;
		if (!may_retry(mm, p))
			return;
		retry(mm, p, claimed_before(mm, slab_of_waiter(mm, p), p));
	}
}

/* True: something changed, so there may be another first one. */
static bool retry_first(struct mm *mm, uint32_t p)
{
	uint32_t bars = pending_at(mm, p)->bars, own = pending_at(mm, p)->own;

	return retry(mm, p, claimed_before(mm, slab_of_waiter(mm, p), p)) ||
	       pending_at(mm, p)->bars != bars || pending_at(mm, p)->own != own;
}

/* Is one that bars a device itself barred on another? */
static bool barred_elsewhere(const struct mm *mm, uint32_t p)
{
	struct fair_place at = pending_place(mm, p);

	return barred(mm, mm->queue.head, devices_of(mm, pending_at(mm, p)->bind), &at);
}

static bool run_pool_heads(struct mm *mm, bool *again)
{
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++) {
		uint32_t p;

		refresh(mm);
		p = mm->queue.head[d];
		if (!p || barred_elsewhere(mm, p))
			continue;
		if (!may_retry(mm, p))
			return false;
		*again |= retry_first(mm, p);
	}
	return true;
}

static bool run_own_heads(struct mm *mm, bool *again)
{
	refresh(mm);
	for (uint32_t t = mm->queue.own; t && !*again; t = tenant_at(mm, t)->queue.next)
		for (uint32_t d = 0, p = NIL; d < mm->cfg.nr_devices && !*again; d++) {
			uint32_t head = tenant_at(mm, t)->queue.own_head[d];

			if (!head || head == p)
				continue;
			p = head;
			if (!may_retry(mm, p))
				return false;
			*again = retry_first(mm, p);
		}
	return true;
}

/* The first ones that bar a device, or their tenant, until all of them go on waiting. */
static void run_heads(struct mm *mm)
{
	bool again = true;

	mm->dirty = false;
	while (again) {
		again = false;
		if (!run_pool_heads(mm, &again) || !run_own_heads(mm, &again)) {
			mm->dirty = true;
			return;
		}
	}
}

static void answer_cancelled(struct mm *mm)
{
	uint32_t p;

	while ((p = mm->cancelled.head) && reply_room(mm, 0)) {
		const struct pending *pe = pending_at(mm, p);
		struct mm_reply rp = {
			.cookie = pe->cookie, .op = MM_ALLOC, .cache = pe->cache,
			.engine = pool_id(mm, &mm->engines, pe->engine),
		};

		rp.result = reply_error(&rp, -EACCES, MM_NOT_OWNER, pe->cache, 0);
		reply_push(mm, &rp);
		pending_list_del(mm, &mm->cancelled, p);
		pool_put(mm, &mm->pendings, p);
	}
	mm->more = mm->more || p;
}

void pending_run(struct mm *mm)
{
	answer_cancelled(mm);
	mm->queue.left = PENDING_BUDGET;
	if (run_wakes(mm)) {
		refresh(mm);
		if (mm->queue.due_ns <= mm->now_ns)
			run_due(mm);
		if (mm->dirty)
			run_heads(mm);
	}
	refresh(mm);
}

/* ---- what changed -------------------------------------------------------------------------- */

static void wake(struct mm *mm, uint32_t bind, uint32_t group)
{
	struct bind *b = bind_at(mm, bind);

	if (!b->slab[group].waiters.head)
		return;
	b->wake |= 1u << group;
	if (!b->on_wake)
		wake_list_add_tail(mm, &mm->wake, bind);
	b->on_wake = true;
}

void pending_wake(struct mm *mm, uint32_t bind, uint32_t group)
{
	if (!mm->waiting.head)
		return;
	if (bind_at(mm, bind)->engine) {
		wake(mm, bind, group);
		return;
	}
	for (uint32_t b = cache_at(mm, bind_at(mm, bind)->cache)->binds.head; b;
	     b = bind_at(mm, b)->cache_link.next)
		wake(mm, b, group);
}

void pending_leave(struct mm *mm, uint32_t bind)
{
	struct bind *b = bind_at(mm, bind);

	if (b->on_wake)
		wake_list_del(mm, &mm->wake, bind);
	b->on_wake = false;
	b->wake = 0;
	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++) {
		MM_ASSERT(!b->slab[g].waiters.head);
		pending_wake(mm, bind, g);	/* of others, who may adopt now */
	}
}

void pending_drop(struct mm *mm, uint32_t engine)
{
	uint32_t next;

	for (uint32_t p = mm->waiting.head; p; p = next) {
		next = pending_at(mm, p)->link.next;
		if (pending_at(mm, p)->engine == engine)
			dequeue(mm, p);
	}
	for (uint32_t p = mm->cancelled.head; p; p = next) {
		next = pending_at(mm, p)->link.next;
		if (pending_at(mm, p)->engine != engine)
			continue;
		pending_list_del(mm, &mm->cancelled, p);
		pool_put(mm, &mm->pendings, p);
	}
	mm->dirty = true;
}

/* The close that cancels them is answered first, and there may be more of them than replies. */
void pending_cancel(struct mm *mm, uint32_t bind)
{
	uint32_t cache = pool_id(mm, &mm->caches, bind_at(mm, bind)->cache);

	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++) {
		const struct slab *s = &bind_at(mm, bind)->slab[g];
		uint32_t p;

		while ((p = s->waiters.head)) {
			leave_queue(mm, p);
			pending_at(mm, p)->bind = NIL;
			pending_at(mm, p)->cache = cache;
			pending_list_add_tail(mm, &mm->cancelled, p);
		}
	}
}

void pending_create_failed(struct mm *mm, uint32_t bind, uint32_t group, int error)
{
	for (uint32_t p = mm->waiting.head; p; p = pending_at(mm, p)->link.next)
		if (pending_at(mm, p)->bind == bind && pending_at(mm, p)->group == group)
			pending_at(mm, p)->create_error = error;
}
