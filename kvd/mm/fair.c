// SPDX-License-Identifier: Apache-2.0
#include "core.h"
#include "fair.h"

static struct fair *of_engine(const struct mm *mm, uint32_t engine)
{
	return &engine_at(mm, engine)->fair;
}

static struct fair *of_tenant(const struct mm *mm, uint32_t engine)
{
	return &tenant_at(mm, engine_at(mm, engine)->tenant)->fair;
}

/* Devices have one tag in common, so a finish may be far from what the rivals here have got to. */
static uint64_t start_of(const struct fair *f, uint64_t base, uint64_t bytes)
{
	uint64_t latest = base + (f->seen ? f->last_bytes : bytes);

	if (!f->seen || f->finish > latest)
		return latest;
	return f->finish > base ? f->finish : base;
}

static void place_in(const struct fair *f, uint64_t base, uint64_t bytes, uint64_t *start,
		     uint64_t *stamp)
{
	*start = f->nr ? f->start : start_of(f, base, bytes);
	*stamp = f->nr ? f->stamp : UINT64_MAX;
}

struct fair_place fair_place(const struct mm *mm, uint32_t engine, uint64_t seq,
			     const struct fair_base *base, uint64_t bytes)
{
	struct fair_place at = { .seq = seq };

	place_in(of_tenant(mm, engine), base->tenant, bytes, &at.tenant_start, &at.tenant_stamp);
	place_in(of_engine(mm, engine), base->engine, bytes, &at.engine_start, &at.engine_stamp);
	return at;
}

bool fair_before(const struct fair_place *a, const struct fair_place *b)
{
	if (a->tenant_start != b->tenant_start)
		return a->tenant_start < b->tenant_start;
	if (a->tenant_stamp != b->tenant_stamp)
		return a->tenant_stamp < b->tenant_stamp;
	if (a->engine_start != b->engine_start)
		return a->engine_start < b->engine_start;
	if (a->engine_stamp != b->engine_stamp)
		return a->engine_stamp < b->engine_stamp;
	return a->seq < b->seq;
}

static void set_start(struct mm *mm, struct fair *f, uint64_t start)
{
	f->start = start;
	f->stamp = ++mm->queue.last_stamp;
}

static void enter(struct mm *mm, struct fair *f, uint64_t base, uint64_t bytes)
{
	if (!f->nr++)
		set_start(mm, f, start_of(f, base, bytes));
}

void fair_enter(struct mm *mm, uint32_t engine, const struct fair_base *base, uint64_t bytes)
{
	enter(mm, of_tenant(mm, engine), base->tenant, bytes);
	enter(mm, of_engine(mm, engine), base->engine, bytes);
}

void fair_leave(struct mm *mm, uint32_t engine)
{
	MM_ASSERT(of_tenant(mm, engine)->nr && of_engine(mm, engine)->nr);
	of_tenant(mm, engine)->nr--;
	of_engine(mm, engine)->nr--;
}

/* Returns the start it was taken at. */
static uint64_t take(struct mm *mm, struct fair *f, uint64_t base, uint64_t bytes)
{
	uint64_t start = f->nr ? f->start : start_of(f, base, bytes);

	f->finish = start + bytes;
	f->last_bytes = bytes;
	f->seen = true;
	if (f->nr)
		set_start(mm, f, f->finish);
	return start;
}

void fair_take(struct mm *mm, uint32_t engine, const struct fair_base *base, uint64_t bytes)
{
	struct tenant *t = tenant_at(mm, engine_at(mm, engine)->tenant);

	mm->queue.start = take(mm, of_tenant(mm, engine), base->tenant, bytes);
	t->queue.start = take(mm, of_engine(mm, engine), base->engine, bytes);
}
