// SPDX-License-Identifier: Apache-2.0
#include "cache.h"
#include "compact.h"
#include "core.h"
#include "event.h"

#define FX_MOVE		(1ull << 63)	/* in an effect's id: not extent.c's */
#define FX_SHARD_BITS	4
#define FX_SLOT_BITS	8
#define MAX_FAILS	6u		/* the backoff doubles so often */
#define VAIN		8u		/* in a row, before a slab is left alone */
#define LOOK		64u		/* extents of a bucket looked at for one to drain */

/* ---- moves --------------------------------------------------------------------------------- */

static uint32_t fullest_with_room(const struct slab *s)
{
	uint32_t mask = s->mask & ((1u << SLAB_FULL) - 1) & ~(1u << SLAB_EMPTY);

	return mask ? s->bucket[31 - (uint32_t)__builtin_clz(mask)].head : NIL;
}

static bool move_begin(struct mm *mm, uint32_t f)
{
	struct extent *x = extent_at(mm, frame_at(mm, f)->extent);
	uint32_t to = fullest_with_room(slab_of(mm, x)), i = 0;
	struct move *mv;

	if (!to)
		return false;
	while (mm->compact.move[i].to)
		i++;
	mv = &mm->compact.move[i];
	*mv = (struct move){
		.from = f, .to = frame_reserve(mm, to), .gen = frame_at(mm, f)->gen,
		.seq = ++mm->compact.move_seq,
		.todo = (uint16_t)((1u << cache_at(mm, x->cache)->desc.nr_shards) - 1),
	};
	mm->compact.nr_moves++;
	mm->compact.nr_todo++;
	frame_at(mm, f)->moving = 1;
	x->nr_from++;
	extent_update(mm, frame_at(mm, f)->extent);
	return true;
}

/* Is what was copied still what the cache means, and nobody's address? */
static bool still_there(const struct mm *mm, const struct move *mv)
{
	const struct frame *from = frame_at(mm, mv->from);

	return from->gen == mv->gen && from->state == FRAME_CACHED &&
	       !node_at(mm, from->node)->pins &&
	       extent_at(mm, from->extent)->bind ==
		       extent_at(mm, frame_at(mm, mv->to)->extent)->bind;
}

static void move_end(struct mm *mm, struct move *mv)
{
	uint32_t from = mv->from, to = mv->to, ext = frame_at(mm, from)->extent;
	struct extent *x = extent_at(mm, ext);
	bool good = !mv->failed && still_there(mm, mv);

	mv->to = NIL;
	mm->compact.nr_moves--;
	frame_at(mm, from)->moving = 0;
	x->nr_from--;
	if (good) {
		node_move(mm, frame_at(mm, from)->node, x->group, to);
		mm->vmstat.pages_move++;
	} else {
		frame_set_state(mm, to, FRAME_FREE);
		mm->vmstat.move_fail++;
	}
	extent_update(mm, ext);
	slab_trim_soon(mm, x->bind);
	pending_wake(mm, x->bind, x->group);
}

bool compact_next_effect(struct mm *mm, struct mm_effect *fx)
{
	struct compact *c = &mm->compact;
	const struct cache *ca;
	const struct extent *x;
	struct move *mv = c->move;
	uint32_t shard;

	if (!c->nr_todo)
		return false;
	while (!mv->to || !mv->todo)
		mv++;
	shard = (uint32_t)__builtin_ctz(mv->todo);
	mv->todo &= (uint16_t)~(1u << shard);
	mv->busy |= (uint16_t)(1u << shard);
	c->nr_todo -= !mv->todo;
	x = extent_at(mm, frame_at(mm, mv->from)->extent);
	ca = cache_at(mm, x->cache);
	*fx = (struct mm_effect){
		.id = FX_MOVE | (uint64_t)mv->seq << (FX_SLOT_BITS + FX_SHARD_BITS) |
		      (uint64_t)(mv - c->move) << FX_SHARD_BITS | shard,
		.kind = MM_EFFECT_MOVE,
		.extent = frame_at(mm, mv->from)->extent, .slot = frame_slot(mm, mv->from),
		.to_extent = frame_at(mm, mv->to)->extent, .to_slot = frame_slot(mm, mv->to),
		.shard = shard, .nr_slots = 1, .device = ca->desc.shard[shard].device,
		.bytes = ca->extent_bytes[x->group][shard],
		.page_bytes = ca->desc.shard[shard].page_bytes[x->group],
	};
	return true;
}

bool compact_is_effect(uint64_t id)
{
	return id & FX_MOVE;
}

int compact_complete(struct mm *mm, uint64_t id, int result)
{
	uint32_t shard = id & ((1u << FX_SHARD_BITS) - 1);
	uint32_t slot = (uint32_t)(id >> FX_SHARD_BITS) & ((1u << FX_SLOT_BITS) - 1);
	uint16_t bit = (uint16_t)(1u << shard);
	struct compact *c = &mm->compact;
	struct move *mv = &c->move[slot % COMPACT_MOVES];

	if (slot >= COMPACT_MOVES || !mv->to || !(mv->busy & bit) ||
	    mv->seq != (uint32_t)(id >> (FX_SLOT_BITS + FX_SHARD_BITS)))
		return -ENOENT;
	mv->busy &= (uint16_t)~bit;
	if (result) {
		mv->failed = true;	/* the other shards are not worth starting */
		c->nr_todo -= mv->todo != 0;
		mv->todo = 0;
		compact_end(mm, frame_at(mm, mv->from)->extent);
	}
	if (!mv->todo && !mv->busy)
		move_end(mm, mv);
	return 0;
}

uint64_t compact_rest_ns(const struct mm *mm)
{
	return mm->cfg.answer_ns ? mm->cfg.answer_ns : COMPACT_REST_NS;
}

/* ---- drains -------------------------------------------------------------------------------- */

static void ask(struct mm *mm, uint32_t ext)
{
	struct extent *x = extent_at(mm, ext);
	uint32_t engine = bind_at(mm, x->bind)->engine;

	if (x->drain_flags & DRAIN_ASKED || !engine)
		return;
	x->drain_flags |= DRAIN_ASKED;
	mm->vmstat.vacates++;
	if (engine_at(mm, engine)->lead)
		event_notify(mm, engine_at(mm, engine)->lead);
}

void compact_changed(struct mm *mm, uint32_t ext)
{
	const struct extent *x = extent_at(mm, ext);

	if (x->nr[FRAME_HELD])
		ask(mm, ext);
	if (x->nr[FRAME_FREE] == extent_pages(x))
		slab_trim_soon(mm, x->bind);
}

static bool can_ask(const struct mm *mm, uint32_t bind)
{
	uint32_t engine = bind_at(mm, bind)->engine;

	return mm->cfg.answer_ns && engine && engine_at(mm, engine)->lead &&
	       !engine_at(mm, engine)->fenced;
}

/* May it be drained at all, now? With DRAIN_ROOM also while some of it is leased: that leaves by
 * itself, and nothing new is granted there meanwhile. */
static bool drainable(const struct mm *mm, const struct extent *x, uint32_t flags)
{
	return x->state == EXTENT_LIVE && !x->draining && !x->nr[FRAME_QUARANTINED] &&
	       !x->nr[FRAME_IO] && (!x->nr_pinned || flags & DRAIN_ROOM) &&
	       (!x->nr[FRAME_HELD] || can_ask(mm, x->bind));
}

/* What it will give back, if all goes well. */
static void count_draining(struct mm *mm, const struct extent *x, bool begins)
{
	const struct cache *c = cache_at(mm, x->cache);

	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++) {
		uint64_t by = begins ? c->need[x->group][d] : -c->need[x->group][d];

		tenant_at(mm, c->tenant)->draining[d] += by;
		mm->device[d].draining_bytes += by;
	}
	if (!(x->drain_flags & DRAIN_EVICT))
		mm->compact.nr_packing += begins ? 1 : -1u;
}

bool compact_drain(struct mm *mm, uint32_t ext, uint32_t flags)
{
	struct extent *x = extent_at(mm, ext);

	if (!drainable(mm, x, flags))
		return false;
	if (!(flags & DRAIN_EVICT) &&
	    (mm->compact.nr_packing == COMPACT_DRAINS || x->drain_ns > mm->now_ns))
		return false;
	drain_list_add_tail(mm, &mm->draining, ext);
	x->drain_flags = (uint8_t)(flags & (DRAIN_EVICT | DRAIN_STICKY | DRAIN_LAST));
	x->drain_seq = ++mm->compact.drain_seq;
	x->drain_slot = 0;
	x->drain_ns = mm->now_ns + compact_rest_ns(mm);
	count_draining(mm, x, true);
	slab_set_draining(mm, ext, true);
	return true;
}

/* An engine that again and again makes no room for others is left alone for a time, all its
 * extents. One that once did not may just have had something leased there for longer. */
static void count_vain(struct mm *mm, const struct extent *x)
{
	struct slab *s = slab_of(mm, x);

	if (x->nr[FRAME_FREE] == extent_pages(x)) {
		s->nr_vain = 0;
	} else {
		if (s->nr_vain >= VAIN)
			s->vain_ns = mm->now_ns + (compact_rest_ns(mm) << (s->nr_vain - VAIN));
		s->nr_vain += s->nr_vain < VAIN + MAX_FAILS;
	}
}

void compact_end(struct mm *mm, uint32_t ext)
{
	struct extent *x = extent_at(mm, ext);

	if (!x->draining)
		return;
	if (x->drain_flags & DRAIN_LAST)
		count_vain(mm, x);
	drain_list_del(mm, &mm->draining, ext);
	count_draining(mm, x, false);
	x->drain_ns = mm->now_ns + (compact_rest_ns(mm) << x->drain_fails);
	x->drain_fails += x->drain_fails < MAX_FAILS;
	mm->dirty = true;	/* who waits for it must look for something else */
	/* It did not give back what was counted on, or it did. */
	mm->shrink.kick = mm->shrink.kick || mm->shrink.hungry ||
			  x->drain_flags & (DRAIN_EVICT | DRAIN_STICKY | DRAIN_LAST);
	slab_set_draining(mm, ext, false);
	pending_wake(mm, x->bind, x->group);
}

static void give_up(struct mm *mm, uint32_t ext)
{
	const struct extent *x = extent_at(mm, ext);
	uint32_t engine = bind_at(mm, x->bind)->engine;

	if (x->nr[FRAME_HELD] && x->drain_flags & DRAIN_ASKED) {
		mm->vmstat.vacate_fail++;
		if (engine)
			engine_at(mm, engine)->debts++;
	}
	compact_end(mm, ext);
}

/* What is left of a slab is less than it was promised. */
static bool promised(const struct slab *s)
{
	return s->nr_extents - s->bucket[SLAB_DRAINING].nr < s->promise;
}

/* Is its tenant above max, with what is draining? It may not be any more. */
static bool in_excess(const struct mm *mm, uint32_t bind)
{
	uint32_t tenant = cache_at(mm, bind_at(mm, bind)->cache)->tenant;

	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		if (memcg_excess(mm, tenant, d))
			return true;
	return false;
}

/* Drains of which flags go on although the slab wants nr pages? */
static uint32_t kept(const struct mm *mm, uint32_t bind, const struct slab *s, uint32_t nr)
{
	uint32_t flags = 0;

	if (promised(s))
		return 0;
	if (in_excess(mm, bind))
		flags |= DRAIN_STICKY;
	if (slab_ready(s) + slab_reclaimable(s) >= nr)
		flags |= DRAIN_LAST;
	return flags;
}

bool compact_give_back(struct mm *mm, uint32_t bind, uint32_t group, uint32_t nr)
{
	const struct slab *s = &bind_at(mm, bind)->slab[group];
	const struct list *l = &s->bucket[SLAB_DRAINING];
	uint32_t keep = l->head ? kept(mm, bind, s, nr) : 0, next;
	bool any = false;

	for (uint32_t e = l->head; e; e = next) {
		next = extent_at(mm, e)->bucket_link.next;
		if (extent_at(mm, e)->drain_flags & keep)
			continue;
		compact_end(mm, e);
		any = true;
	}
	return any;
}

void compact_leave(struct mm *mm, uint32_t bind)
{
	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++) {
		struct list *l = &bind_at(mm, bind)->slab[g].bucket[SLAB_DRAINING];

		while (l->head)
			compact_end(mm, l->head);
	}
}

/* Unpinned pages that are not on their way. */
static bool has_work(const struct extent *x)
{
	return x->nr[FRAME_COLD] || x->nr[FRAME_CACHED] - x->nr_pinned > x->nr_from;
}

/* While something there is leased a copy gains nothing: what was moved out of one such extent would
 * be moved back when the next one has its turn. */
static bool can_work(const struct mm *mm, const struct extent *x)
{
	return has_work(x) &&
	       (x->drain_flags & DRAIN_EVICT ||
		(!x->nr_pinned && mm->compact.nr_moves < COMPACT_MOVES));
}

/* The look at it is paid already: at least one page goes. */
static void evict_one(struct mm *mm, const struct extent *x, uint32_t n, uint32_t *budget)
{
	if (cache_at(mm, x->cache)->desc.group[x->group].kind != MM_GROUP_FULL) {
		node_strip(mm, n, x->group);
		return;
	}
	(*budget)++;
	node_evict(mm, n, budget);
}

/* Held pages on their way out have the first claim: they cannot be evicted. */
static bool room_to_move(const struct slab *s)
{
	return slab_free(s) > s->off[FRAME_HELD];
}

static void drain_frame(struct mm *mm, uint32_t ext, uint32_t f, uint32_t *budget)
{
	struct extent *x = extent_at(mm, ext);
	const struct frame *fr = frame_at(mm, f);

	if (fr->state == FRAME_COLD)
		node_strip(mm, fr->node, x->group);
	if (fr->state != FRAME_CACHED || fr->moving || node_at(mm, fr->node)->pins)
		return;
	if (!(x->drain_flags & DRAIN_EVICT) && room_to_move(slab_of(mm, x)) && move_begin(mm, f))
		return;
	if (x->drain_flags & (DRAIN_EVICT | DRAIN_STICKY | DRAIN_LAST))
		evict_one(mm, x, fr->node, budget);
	else
		give_up(mm, ext);
}

/* Something in it does not leave by itself. What was cold when it was picked is not any more. */
static bool stuck(const struct extent *x)
{
	return x->nr[FRAME_HELD] || x->nr_pinned;
}

static void drain_step(struct mm *mm, uint32_t ext, uint32_t *budget)
{
	struct extent *x = extent_at(mm, ext);

	while (*budget && x->draining && can_work(mm, x)) {
		if (x->drain_slot >= x->fresh)
			x->drain_slot = 0;
		(*budget)--;
		drain_frame(mm, ext, x->base + x->drain_slot++, budget);
	}
	if (x->draining && stuck(x) && (x->drain_ns <= mm->now_ns || x->drain_flags & DRAIN_EVICT))
		give_up(mm, ext);
}

/* ---- what to drain ------------------------------------------------------------------------- */

/* Pages that are somebody's, so that the extent cannot be taken as a whole. */
static uint32_t in_use(const struct extent *x)
{
	return x->nr[FRAME_HELD] + x->nr_pinned;
}

/* Do its pages find room in the others, beside those that are leaving theirs already? With
 * DRAIN_ROOM only what is held must find some, for cached pages give way. */
static bool fits(const struct slab *s, const struct extent *x, uint32_t flags)
{
	uint64_t held = (uint64_t)x->nr[FRAME_HELD] + s->off[FRAME_HELD];
	uint64_t room = slab_free(s) - x->nr[FRAME_FREE];

	if (flags & DRAIN_ROOM && in_use(x))
		return held <= room + slab_reclaimable(s) - (x->nr[FRAME_CACHED] - x->nr_pinned);
	room -= (uint64_t)s->bucket[SLAB_EMPTY].nr * extent_pages(x);
	return held + x->nr[FRAME_CACHED] + s->off[FRAME_CACHED] <= room;
}

/* The first of a bucket that may go; with DRAIN_ROOM the least used one among a few. */
static uint32_t least_used(const struct mm *mm, const struct slab *s, uint32_t k, uint32_t flags)
{
	uint32_t look = LOOK, best = NIL, least = UINT32_MAX;

	for (uint32_t e = s->bucket[k].head; e && look--; e = extent_at(mm, e)->bucket_link.next) {
		const struct extent *x = extent_at(mm, e);
		uint32_t used = in_use(x);

		if (k == SLAB_FULL && !used)
			continue;	/* reclaim's, in its own time */
		if (!drainable(mm, x, flags) || x->drain_ns > mm->now_ns ||
		    (flags & DRAIN_HELD && !x->nr[FRAME_HELD]))
			continue;
		if (!(flags & DRAIN_ROOM))
			return e;
		if (used < least) {
			least = used;
			best = e;
		}
	}
	return best;
}

/* Would what waits for pages of it get them without the extent? */
static bool has_enough(const struct mm *mm, const struct slab *s)
{
	uint32_t e = s->bucket[SLAB_FULL].head;

	return e && slab_ready(s) + slab_reclaimable(s) >=
			    (uint64_t)s->pend_pages + extent_pages(extent_at(mm, e));
}

bool compact_pack(struct mm *mm, uint32_t bind, uint32_t group, uint32_t flags)
{
	const struct slab *s = &bind_at(mm, bind)->slab[group];
	uint32_t last = flags & DRAIN_ROOM ? SLAB_FULL : SLAB_FULL - 1;

	if (s->pend_pages && !(flags & DRAIN_STICKY) && !(flags & DRAIN_LAST && has_enough(mm, s)))
		return false;
	if (flags & DRAIN_LAST && s->vain_ns > mm->now_ns)
		return false;
	if (!slab_can_spare(s))
		return false;
	for (uint32_t k = 1; k <= last; k++) {
		uint32_t e = least_used(mm, s, k, flags);

		if (e)
			return fits(s, extent_at(mm, e), flags) && compact_drain(mm, e, flags);
	}
	return false;
}

void compact_want(struct mm *mm, uint32_t waits, uint32_t fill)
{
	if (!mm->compact.want && !mm->compact.fill)
		mm->compact.at = NIL;
	mm->compact.want |= waits;
	mm->compact.fill |= fill;
}

static uint32_t wanted(const struct mm *mm)
{
	return (mm->waiting.head ? mm->compact.want : 0) |
	       (mm->compact.fill & mm->shrink.filling);
}

/* One bind after the other; the next look is not before what was begun may have helped. */
static void look_for_room(struct mm *mm, uint32_t *budget)
{
	struct compact *c = &mm->compact;

	if (!wanted(mm) || c->pack_ns > mm->now_ns)
		return;
	while (*budget) {
		const struct bind *b;

		(*budget)--;
		c->at = pool_next(mm, &mm->binds, c->at);
		if (!c->at) {
			c->want = c->fill = 0;
			c->pack_ns = mm->now_ns + compact_rest_ns(mm);
			return;
		}
		b = bind_at(mm, c->at);
		if (!(cache_at(mm, b->cache)->device_mask & wanted(mm)))
			continue;
		for (uint32_t g = 0; g < MM_MAX_GROUPS; g++)
			while (*budget && compact_pack(mm, c->at, g, 0))
				(*budget)--;
	}
}

/* ---- idle engines -------------------------------------------------------------------------- */

void compact_seen(struct mm *mm, uint32_t engine)
{
	if (!mm->cfg.idle_ns)
		return;
	engine_at(mm, engine)->seen_ns = mm->now_ns;
	engine_at(mm, engine)->packed = false;
	if (mm->compact.idle_ns > mm->now_ns + mm->cfg.idle_ns)
		mm->compact.idle_ns = mm->now_ns + mm->cfg.idle_ns;
}

/* Extents of a slab that only its engine keeps from others. */
static uint32_t nr_kept(const struct mm *mm, const struct slab *s, uint32_t *budget)
{
	uint32_t nr = s->bucket[SLAB_EMPTY].nr;

	for (uint32_t k = 1; k <= SLAB_FULL; k++)
		for (uint32_t e = s->bucket[k].head; e; e = extent_at(mm, e)->bucket_link.next) {
			nr += extent_at(mm, e)->nr[FRAME_HELD] != 0;
			*budget -= *budget != 0;
		}
	return nr;
}

static void pack_engine(struct mm *mm, uint32_t engine, uint32_t *budget)
{
	uint32_t b = engine_at(mm, engine)->binds.head;

	for (; b; b = bind_at(mm, b)->engine_link.next)
		for (uint32_t g = 0; g < MM_MAX_GROUPS; g++) {
			const struct slab *s = &bind_at(mm, b)->slab[g];
			uint32_t order = cache_at(mm, bind_at(mm, b)->cache)->order[g];
			uint32_t kept = nr_kept(mm, s, budget);
			uint32_t may = 1 + ((s->nr[FRAME_HELD] + (1u << order) - 1) >> order);

			while (kept > may && compact_pack(mm, b, g, DRAIN_HELD))
				kept--;
		}
	engine_at(mm, engine)->packed = true;
}

static void look_for_idle(struct mm *mm, uint32_t *budget)
{
	uint64_t next = UINT64_MAX;

	if (mm->compact.idle_ns > mm->now_ns)
		return;
	for (uint32_t e = pool_next(mm, &mm->engines, 0); e; e = pool_next(mm, &mm->engines, e)) {
		const struct engine *en = engine_at(mm, e);
		uint64_t due = en->seen_ns + mm->cfg.idle_ns;

		if (en->packed || en->fenced)
			continue;
		if (due <= mm->now_ns && *budget)
			pack_engine(mm, e, budget);
		else
			next = due < next ? due : next;
	}
	mm->compact.idle_ns = next;
}

/* ---- time ---------------------------------------------------------------------------------- */

void compact_tick(struct mm *mm, uint32_t *budget)
{
	uint32_t next, seq;

	look_for_idle(mm, budget);
	look_for_room(mm, budget);
	for (uint32_t e = mm->draining.head; e; e = next) {
		next = extent_at(mm, e)->drain_link.next;
		seq = next ? extent_at(mm, next)->drain_seq : 0;
		drain_step(mm, e, budget);
		/* A node evicted there may have had its pages here. The rest is due at once. */
		if (next && (!extent_at(mm, next)->draining ||
			     extent_at(mm, next)->drain_seq != seq))
			return;
	}
}

uint64_t compact_next_deadline(const struct mm *mm)
{
	const struct compact *c = &mm->compact;
	uint64_t next = mm->cfg.idle_ns ? c->idle_ns : UINT64_MAX;

	if (wanted(mm) && c->pack_ns < next)
		next = c->pack_ns;
	for (uint32_t e = mm->draining.head; e; e = extent_at(mm, e)->drain_link.next) {
		const struct extent *x = extent_at(mm, e);

		if (can_work(mm, x))
			return mm->now_ns;
		if (stuck(x) && x->drain_flags & DRAIN_EVICT)
			return mm->now_ns;
		if (stuck(x) && x->drain_ns < next)
			next = x->drain_ns;
	}
	return next;
}

/* ---- vacating ------------------------------------------------------------------------------ */

uint32_t compact_events(const struct mm *mm, uint32_t engine, struct mm_event *ev, uint32_t max)
{
	uint32_t nr = 0;

	for (uint32_t e = mm->draining.head; e && nr < max; e = extent_at(mm, e)->drain_link.next) {
		const struct extent *x = extent_at(mm, e);

		if (bind_at(mm, x->bind)->engine != engine || !x->nr[FRAME_HELD])
			continue;
		ev[nr++] = (struct mm_event){
			.kind = MM_EVENT_VACATE, .extent = e, .seq = x->drain_seq,
			.deadline_ns = x->drain_ns,
		};
	}
	return nr;
}

/* The state says all there is to know: the answer only tells the engine whether it is right. An
 * extent whose last page it gave back may be on its way out by now. */
int compact_op_vacate_ack(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	int err = 0;
	uint32_t engine = engine_find(mm, rq->engine, rp, &err);
	const struct extent *x = extent_lookup(mm, rq->ack.extent);

	if (!engine)
		return err;
	if (!x || x->writer != rq->engine)
		return reply_error(rp, -ENOENT, MM_NO_SUCH_ID, rq->ack.extent, 0);
	if (x->nr[FRAME_HELD])
		return reply_error(rp, -EBUSY, MM_LEASED, x->nr[FRAME_HELD], 0);
	return 0;
}

/* ---- proof --------------------------------------------------------------------------------- */

static void check_moves(const struct mm *mm)
{
	const struct compact *c = &mm->compact;
	uint32_t used = 0, todo = 0, from = 0, to = 0;

	for (uint32_t i = 0; i < COMPACT_MOVES; i++) {
		const struct move *mv = &c->move[i];

		if (!mv->to)
			continue;
		used++;
		todo += mv->todo != 0;
		MM_ASSERT((mv->todo || mv->busy) && !(mv->todo & mv->busy));
		MM_ASSERT(frame_at(mm, mv->to)->state == FRAME_IO);
		MM_ASSERT(frame_at(mm, mv->from)->moving);
		for (uint32_t k = 0; k < i; k++)
			MM_ASSERT(!c->move[k].to || (c->move[k].to != mv->to &&
						     c->move[k].from != mv->from));
	}
	for (uint32_t e = pool_next(mm, &mm->extents, 0); e; e = pool_next(mm, &mm->extents, e)) {
		MM_ASSERT(!extent_at(mm, e)->nr_from || extent_at(mm, e)->state == EXTENT_LIVE);
		from += extent_at(mm, e)->nr_from;
		to += extent_at(mm, e)->nr[FRAME_IO];
	}
	MM_ASSERT(used == c->nr_moves && todo == c->nr_todo && from == used && to == used);
}

static void check_draining(const struct mm *mm)
{
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++) {
		uint64_t sum = 0, tenants = 0;

		for (uint32_t e = mm->draining.head; e; e = extent_at(mm, e)->drain_link.next) {
			const struct extent *x = extent_at(mm, e);

			sum += cache_at(mm, x->cache)->need[x->group][d];
		}
		for (uint32_t t = pool_next(mm, &mm->tenants, 0); t;
		     t = pool_next(mm, &mm->tenants, t)) {
			const struct tenant *te = tenant_at(mm, t);

			tenants += te->draining[d];
			MM_ASSERT(!te->marked[d]);
			MM_ASSERT(te->draining[d] + te->leaving[d] <= te->charge[d]);
		}
		MM_ASSERT(sum == mm->device[d].draining_bytes && sum == tenants);
	}
}

void compact_check(const struct mm *mm)
{
	uint32_t listed = 0, draining = 0, packing = 0;

	check_moves(mm);
	check_draining(mm);
	for (uint32_t e = mm->draining.head; e; e = extent_at(mm, e)->drain_link.next) {
		MM_ASSERT(extent_at(mm, e)->draining && ++listed <= mm->draining.nr);
		MM_ASSERT(extent_at(mm, e)->bucket == SLAB_DRAINING);
	}
	for (uint32_t e = pool_next(mm, &mm->extents, 0); e; e = pool_next(mm, &mm->extents, e)) {
		const struct extent *x = extent_at(mm, e);

		draining += x->draining;
		packing += x->draining && !(x->drain_flags & DRAIN_EVICT);
		if (x->draining)
			MM_ASSERT(x->state == EXTENT_LIVE &&
				  (x->nr[FRAME_FREE] != extent_pages(x) || x->nr_from));
	}
	MM_ASSERT(listed == mm->draining.nr && draining == listed);
	MM_ASSERT(packing == mm->compact.nr_packing && packing <= COMPACT_DRAINS);
}
