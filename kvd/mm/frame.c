// SPDX-License-Identifier: Apache-2.0
#include "core.h"

#define TO(state) (1u << FRAME_##state)

static const uint8_t allowed[FRAME_NR] = {
	[FRAME_FREE] = TO(HELD) | TO(IO),
	[FRAME_HELD] = TO(FREE) | TO(CACHED) | TO(QUARANTINED),
	[FRAME_CACHED] = TO(FREE) | TO(COLD) | TO(HELD),
	[FRAME_COLD] = TO(FREE) | TO(CACHED) | TO(HELD),
	[FRAME_QUARANTINED] = TO(FREE),
	[FRAME_IO] = TO(FREE) | TO(CACHED),
};

/* by frames more of a state in an extent and its slab; pinned: of those CACHED. */
static void count(struct extent *x, struct slab *s, enum frame_state state, uint32_t by,
		  uint32_t pinned)
{
	slab_count(s, x, state, by);
	if (state == FRAME_CACHED && pinned)
		slab_count_pinned(s, x, pinned);
}

void frame_set_state(struct mm *mm, uint32_t f, enum frame_state to)
{
	struct frame *fr = frame_at(mm, f);
	struct extent *x = extent_at(mm, fr->extent);
	enum frame_state from = fr->state;
	struct slab *s = slab_of(mm, x);
	uint32_t pinned = fr->node && node_at(mm, fr->node)->pins;

	MM_ASSERT(allowed[from] & 1u << to);
	MM_ASSERT(x->state == EXTENT_LIVE);
	frame_list_del(mm, &x->frames[from], f);
	count(x, s, from, -1u, -pinned);
	fr->state = to;
	if (to == FRAME_FREE)
		frame_list_add_head(mm, &x->frames[to], f);
	else
		frame_list_add_tail(mm, &x->frames[to], f);
	count(x, s, to, 1, pinned);
	if (to == FRAME_FREE || to == FRAME_COLD)
		pending_wake(mm, x->bind, x->group);
	if (!slab_in_place(x))
		extent_update(mm, fr->extent);
}

/* A new generation. */
static uint32_t renew(struct extent *x, struct frame *fr)
{
	uint32_t gen = (fr->gen + 1) & 0xffffff;

	if (!gen)
		gen = 1;
	fr->gen = gen;
	/* Serial comparison: the newest survives a wrap. */
	if (((gen - x->gen_top) & 0xffffff) < 0x800000)
		x->gen_top = gen;
	return gen;
}

void frame_renew(struct mm *mm, uint32_t f)
{
	renew(extent_at(mm, frame_at(mm, f)->extent), frame_at(mm, f));
}

static uint64_t id_of(uint32_t ext, uint32_t slot, uint32_t gen)
{
	return (uint64_t)ext << (MM_SLOT_BITS + MM_GEN_BITS) | (uint64_t)slot << MM_GEN_BITS | gen;
}

/* A slot never granted before, FREE and on no list. */
static uint32_t first_use(struct mm *mm, struct extent *x, uint32_t ext)
{
	uint32_t f = x->base + x->fresh;

	MM_ASSERT(x->fresh < extent_pages(x));
	x->fresh++;
	/* Ids given out under this extent id in an earlier life must stay stale. */
	*frame_at(mm, f) = (struct frame){ .gen = x->gen_top, .extent = ext };
	return f;
}

/* ---- many of one extent: counters and lists of extents change once ------------------------- */

static inline uint64_t hold(struct extent *x, uint32_t ext, uint32_t slot, struct frame *fr)
{
	uint32_t gen = renew(x, fr);

	MM_ASSERT(fr->state == FRAME_FREE && !fr->node);
	fr->state = FRAME_HELD;
	return id_of(ext, slot, gen);
}

uint32_t frame_grant(struct mm *mm, uint32_t ext, uint32_t nr, uint64_t *ids)
{
	struct extent *x = extent_at(mm, ext);
	struct list *free = &x->frames[FRAME_FREE];
	uint32_t f = free->head, last = NIL, i, listed;

	MM_ASSERT(x->state == EXTENT_LIVE);
	if (nr > x->nr[FRAME_FREE])
		nr = x->nr[FRAME_FREE];
	listed = nr < free->nr ? nr : free->nr;
	for (i = 0; i < listed; i++) {
		struct frame *fr = frame_at(mm, f);

		ids[i] = hold(x, ext, f - x->base, fr);
		last = f;
		f = fr->link.next;
	}
	if (listed)
		frame_list_splice(mm, free, last, listed, &x->frames[FRAME_HELD]);
	for (; i < nr; i++) {
		f = first_use(mm, x, ext);
		ids[i] = hold(x, ext, f - x->base, frame_at(mm, f));
		frame_list_add_tail(mm, &x->frames[FRAME_HELD], f);
	}
	slab_recount(slab_of(mm, x), x, FRAME_FREE, FRAME_HELD, nr);
	extent_update(mm, ext);
	return nr;
}

uint32_t frame_reserve(struct mm *mm, uint32_t ext)
{
	struct extent *x = extent_at(mm, ext);
	uint32_t f = x->frames[FRAME_FREE].head;

	if (f)
		frame_list_del(mm, &x->frames[FRAME_FREE], f);
	else
		f = first_use(mm, x, ext);
	MM_ASSERT(x->state == EXTENT_LIVE && frame_at(mm, f)->state == FRAME_FREE);
	frame_at(mm, f)->state = FRAME_IO;
	renew(x, frame_at(mm, f));
	frame_list_add_tail(mm, &x->frames[FRAME_IO], f);
	slab_recount(slab_of(mm, x), x, FRAME_FREE, FRAME_IO, 1);
	extent_update(mm, ext);
	return f;
}

uint32_t frame_mark_held(struct mm *mm, uint32_t ext, const uint64_t *ids, uint32_t nr)
{
	struct extent *x = extent_at(mm, ext);
	struct frame *frames = frame_at(mm, x->base);
	uint32_t fresh = x->fresh, i;

	for (i = 0; i < nr && mm_page_extent(ids[i]) == ext; i++) {
		uint32_t slot = mm_page_slot(ids[i]);
		struct frame *fr = frames + slot;

		if (slot >= fresh || fr->gen != mm_page_gen(ids[i]) || fr->state != FRAME_HELD ||
		    fr->mark)
			break;
		fr->mark = 1;
	}
	return i;
}

void frame_release(struct mm *mm, uint32_t ext, const uint64_t *ids, uint32_t nr)
{
	struct extent *x = extent_at(mm, ext);
	struct list *held = &x->frames[FRAME_HELD], *free = &x->frames[FRAME_FREE];

	for (uint32_t i = 0; i < nr; i++) {
		uint32_t f = x->base + mm_page_slot(ids[i]);
		struct frame *fr = frame_at(mm, f);

		MM_ASSERT(fr->state == FRAME_HELD && fr->mark);
		fr->state = FRAME_FREE;
		fr->mark = 0;
		frame_list_del(mm, held, f);
		frame_list_add_head(mm, free, f);
	}
	slab_recount(slab_of(mm, x), x, FRAME_HELD, FRAME_FREE, nr);
	pending_wake(mm, x->bind, x->group);
	extent_update(mm, ext);
}

/* ---- ids ----------------------------------------------------------------------------------- */

uint32_t frame_slot(const struct mm *mm, uint32_t f)
{
	return f - extent_at(mm, frame_at(mm, f)->extent)->base;
}

uint64_t frame_id(const struct mm *mm, uint32_t f)
{
	const struct frame *fr = frame_at(mm, f);

	return f ? id_of(fr->extent, frame_slot(mm, f), fr->gen) : 0;
}

int frame_resolve(struct mm *mm, uint64_t id, uint32_t *f, struct mm_reply *rp)
{
	uint32_t ext = mm_page_extent(id), slot = mm_page_slot(id), gen = mm_page_gen(id);
	const struct extent *x = extent_at(mm, ext);

	if (!ext || ext > mm->cfg.max_extents || !gen)
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, id, 0);
	if (ext > mm->extents.fresh)
		return reply_error(rp, -ENOENT, MM_NO_SUCH_ID, id, 0);
	if (x->state != EXTENT_LIVE || slot >= x->fresh ||
	    frame_at(mm, x->base + slot)->gen != gen ||
	    frame_at(mm, x->base + slot)->state == FRAME_FREE ||
	    frame_at(mm, x->base + slot)->state == FRAME_IO)
		return reply_error(rp, -ESTALE, MM_STALE_PAGE, id, 0);
	*f = x->base + slot;
	return 0;
}

int frame_take_held(struct mm *mm, uint64_t id, uint32_t bind, uint32_t group, uint32_t *f,
		    struct mm_reply *rp)
{
	int err = frame_resolve(mm, id, f, rp);
	const struct extent *x;
	struct frame *fr;

	if (err)
		return err;
	fr = frame_at(mm, *f);
	x = extent_at(mm, fr->extent);
	if (bind_at(mm, x->bind)->engine != bind_at(mm, bind)->engine || fr->state != FRAME_HELD)
		return reply_error(rp, -EACCES, MM_NOT_OWNER, id, 0);
	if (x->bind != bind || x->group != group || fr->mark)
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, id, 0);
	fr->mark = 1;
	return 0;
}

void frame_unmark(struct mm *mm, const uint64_t *ids, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++)
		if (ids[i])
			frame_at(mm, extent_at(mm, mm_page_extent(ids[i]))->base +
				 mm_page_slot(ids[i]))->mark = 0;
}
