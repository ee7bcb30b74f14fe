// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "cache.h"
#include "core.h"
#include "import.h"

uint16_t *import_bits(const struct mm *mm, uint32_t member, uint32_t ext)
{
	return (uint16_t *)((uintptr_t)mm + mm->off_imports) +
	       (uint64_t)(member - 1) * mm->cfg.max_extents + (ext - 1);
}

uint32_t import_count(uint16_t bits)
{
	uint32_t nr = 0;

	for (; bits; bits &= (uint16_t)(bits - 1))
		nr++;
	return nr;
}

bool import_maps(const struct mm *mm, uint32_t engine, uint32_t ext)
{
	uint32_t m = engine ? engine_at(mm, engine)->members.head : NIL;

	while (m && !*import_bits(mm, m, ext))
		m = member_at(mm, m)->engine_link.next;
	return m != NIL;
}

void import_init_member(struct mm *mm, uint32_t member)
{
	memset(import_bits(mm, member, 1), 0, mm->cfg.max_extents * sizeof(uint16_t));
}

/* It may be adopted, or destroyed, now. */
static void unmapped(struct mm *mm, uint32_t ext)
{
	const struct extent *x = extent_at(mm, ext);

	if (x->state == EXTENT_LIVE)
		pending_wake(mm, x->bind, x->group);
	extent_unmapped(mm, ext);
}

void import_drop_member(struct mm *mm, uint32_t member)
{
	for (uint32_t e = pool_next(mm, &mm->extents, 0); e; e = pool_next(mm, &mm->extents, e)) {
		uint16_t *bits = import_bits(mm, member, e);

		if (!*bits)
			continue;
		extent_at(mm, e)->nr_imports -= import_count(*bits);
		*bits = 0;
		unmapped(mm, e);
	}
}

static int find(struct mm *mm, const struct mm_request *rq, uint32_t *member, struct mm_reply *rp)
{
	uint32_t ext = rq->map.extent;

	*member = pool_find(mm, &mm->members, rq->member);
	if (!*member)
		return reply_error(rp, -ENOENT, MM_NO_SUCH_ID, rq->member, 0);
	if (!extent_lookup(mm, ext) || extent_at(mm, ext)->state == EXTENT_CREATING)
		return reply_error(rp, -ENOENT, MM_NO_SUCH_ID, ext, 0);
	if (rq->map.shard >= cache_at(mm, extent_at(mm, ext)->cache)->desc.nr_shards)
		return reply_error(rp, -EINVAL, MM_BAD_ARGUMENT, rq->map.shard, 0);
	return 0;
}

int import_op_import(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	uint32_t member, engine, ext = rq->map.extent, b;
	int err = find(mm, rq, &member, rp);
	struct extent *x = extent_at(mm, ext);
	uint16_t *bits, bit = (uint16_t)(1u << (rq->map.shard & 15));

	if (err)
		return err;
	engine = member_at(mm, member)->engine;
	if (engine_at(mm, engine)->fenced)
		return reply_error(rp, -EACCES, MM_FENCED, rq->member, 0);
	b = engine_at(mm, engine)->binds.head;
	while (b && bind_at(mm, b)->cache != x->cache)
		b = bind_at(mm, b)->engine_link.next;
	if (!b)
		return reply_error(rp, -EACCES, MM_NOT_OWNER, ext, 0);
	if (x->state != EXTENT_LIVE)
		return reply_error(rp, -ESTALE, MM_NO_SUCH_ID, ext, 0);
	bits = import_bits(mm, member, ext);
	if (!(*bits & bit))
		x->nr_imports++;
	*bits |= bit;
	rp->engine = pool_id(mm, &mm->engines, engine);
	rp->cache = pool_id(mm, &mm->caches, x->cache);
	rp->writable = x->bind == b;
	return 0;
}

/* Giving back is allowed to the fenced too. */
int import_op_unimport(struct mm *mm, const struct mm_request *rq, struct mm_reply *rp)
{
	uint32_t member, ext = rq->map.extent;
	int err = find(mm, rq, &member, rp);
	uint16_t *bits, bit = (uint16_t)(1u << (rq->map.shard & 15));

	if (err)
		return err;
	bits = import_bits(mm, member, ext);
	if (!(*bits & bit))
		return reply_error(rp, -ENOENT, MM_NO_SUCH_ID, ext, rq->map.shard);
	*bits &= (uint16_t)~bit;
	extent_at(mm, ext)->nr_imports--;
	unmapped(mm, ext);
	return 0;
}
