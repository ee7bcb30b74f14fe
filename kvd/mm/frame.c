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
	slab_count(s, x, from, -1u);
	if (from == FRAME_CACHED)
		slab_count_pinned(s, x, -pinned);
	fr->state = to;
	if (to == FRAME_FREE)
		frame_list_add_head(mm, &x->frames[to], f);
	else
		frame_list_add_tail(mm, &x->frames[to], f);
	slab_count(s, x, to, 1);
	if (to == FRAME_CACHED)
		slab_count_pinned(s, x, pinned);
	if (to == FRAME_FREE || to == FRAME_COLD)
		pending_wake(mm, x->bind, x->group);
	extent_update(mm, fr->extent);
}

void frame_renew(struct mm *mm, uint32_t f)
{
	struct frame *fr = frame_at(mm, f);
	struct extent *x = extent_at(mm, fr->extent);
	uint32_t gen = (fr->gen + 1) & 0xffffff;

	if (!gen)
		gen = 1;
	fr->gen = gen;
	/* Serial comparison: the newest survives a wrap. */
	if (((gen - x->gen_top) & 0xffffff) < 0x800000)
		x->gen_top = gen;
}

uint32_t frame_grant(struct mm *mm, uint32_t ext, enum frame_state to)
{
	struct extent *x = extent_at(mm, ext);
	uint32_t f = x->frames[FRAME_FREE].head;

	if (!f) {
		MM_ASSERT(x->fresh < extent_pages(x));
		f = x->base + x->fresh++;
		/* Ids given out under this extent id in an earlier life must stay stale. */
		*frame_at(mm, f) = (struct frame){ .gen = x->gen_top, .extent = ext };
		frame_list_add_head(mm, &x->frames[FRAME_FREE], f);
	}
	frame_set_state(mm, f, to);
	frame_renew(mm, f);
	return f;
}

uint32_t frame_slot(const struct mm *mm, uint32_t f)
{
	return f - extent_at(mm, frame_at(mm, f)->extent)->base;
}

uint64_t frame_id(const struct mm *mm, uint32_t f)
{
	const struct frame *fr = frame_at(mm, f);

	if (!f)
		return 0;
	return (uint64_t)fr->extent << (MM_SLOT_BITS + MM_GEN_BITS) |
	       (uint64_t)frame_slot(mm, f) << MM_GEN_BITS | fr->gen;
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
