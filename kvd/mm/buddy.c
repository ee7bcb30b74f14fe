// SPDX-License-Identifier: Apache-2.0
#include "core.h"

static struct link *unit_link(const struct mm *mm, const struct buddy *b, uint32_t u)
{
	return (struct link *)((uintptr_t)mm + b->off_links + (uint64_t)u * b->stride);
}

static uint8_t *unit_tag(const struct mm *mm, const struct buddy *b, uint32_t u)
{
	return (uint8_t *)((uintptr_t)mm + b->off_tags + u);
}

static uint32_t ilog2(uint32_t n)
{
	return 31 - (uint32_t)__builtin_clz(n);
}

static void push(struct mm *mm, struct buddy *b, uint32_t u, uint32_t order)
{
	*unit_link(mm, b, u) = (struct link){ NIL, b->head[order] };
	if (b->head[order])
		unit_link(mm, b, b->head[order] - 1)->prev = u + 1;
	b->head[order] = u + 1;
	b->mask |= 1u << order;
	*unit_tag(mm, b, u) = (uint8_t)(order + 1);
	b->free_units += 1u << order;
}

static void unlink_block(struct mm *mm, struct buddy *b, uint32_t u, uint32_t order)
{
	struct link k = *unit_link(mm, b, u);

	MM_ASSERT(*unit_tag(mm, b, u) == order + 1);
	if (k.prev)
		unit_link(mm, b, k.prev - 1)->next = k.next;
	else
		b->head[order] = k.next;
	if (k.next)
		unit_link(mm, b, k.next - 1)->prev = k.prev;
	if (!b->head[order])
		b->mask &= ~(1u << order);
	*unit_tag(mm, b, u) = 0;
	b->free_units -= 1u << order;
}

static void free_block(struct mm *mm, struct buddy *b, uint32_t u, uint32_t order)
{
	while (order + 1 < BUDDY_ORDERS) {
		uint32_t mate = u ^ (1u << order);

		if ((uint64_t)mate + (1u << order) > b->units ||
		    *unit_tag(mm, b, mate) != order + 1)
			break;
		unlink_block(mm, b, mate, order);
		u &= ~(1u << order);
		order++;
	}
	push(mm, b, u, order);
}

static void free_run(struct mm *mm, struct buddy *b, uint32_t u, uint32_t nr)
{
	while (nr) {
		uint32_t order = ilog2(nr);

		if (u && (uint32_t)__builtin_ctz(u) < order)
			order = (uint32_t)__builtin_ctz(u);
		free_block(mm, b, u, order);
		u += 1u << order;
		nr -= 1u << order;
	}
}

void buddy_init(struct mm *mm, struct buddy *b, uint32_t units)
{
	b->units = units;
	free_run(mm, b, 0, units);
}

uint32_t buddy_alloc(struct mm *mm, struct buddy *b, uint32_t nr)
{
	uint32_t order = ilog2(nr), u;

	if (nr & (nr - 1))
		order++;
	if (order >= BUDDY_ORDERS || !(b->mask >> order))
		return NIL;
	order += (uint32_t)__builtin_ctz(b->mask >> order);
	u = b->head[order] - 1;
	unlink_block(mm, b, u, order);
	free_run(mm, b, u + nr, (1u << order) - nr);
	return u + 1;
}

void buddy_free(struct mm *mm, struct buddy *b, uint32_t unit, uint32_t nr)
{
	MM_ASSERT(unit && (uint64_t)unit - 1 + nr <= b->units);
	free_run(mm, b, unit - 1, nr);
}

void buddy_check(const struct mm *mm, const struct buddy *b)
{
	uint64_t sum = 0;

	for (uint32_t order = 0; order < BUDDY_ORDERS; order++) {
		uint32_t prev = NIL;

		MM_ASSERT(!b->head[order] == !(b->mask >> order & 1));
		for (uint32_t i = b->head[order]; i; i = unit_link(mm, b, i - 1)->next) {
			uint32_t mate = (i - 1) ^ (1u << order);

			MM_ASSERT(*unit_tag(mm, b, i - 1) == order + 1);
			MM_ASSERT(unit_link(mm, b, i - 1)->prev == prev);
			MM_ASSERT(!((i - 1) & ((1u << order) - 1)));
			MM_ASSERT((uint64_t)i - 1 + (1u << order) <= b->units);
			if ((uint64_t)mate + (1u << order) <= b->units)
				MM_ASSERT(*unit_tag(mm, b, mate) != order + 1);
			sum += 1u << order;
			prev = i;
		}
	}
	MM_ASSERT(sum == b->free_units);
}
