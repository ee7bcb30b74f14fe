// SPDX-License-Identifier: Apache-2.0
#include "core.h"
#include "lru.h"

uint32_t lru_home(const struct mm *mm, uint32_t node)
{
	const struct node *n = node_at(mm, node);

	for (uint32_t g = 0; g < MM_MAX_GROUPS; g++)
		if (n->loc[g])
			return extent_at(mm, frame_at(mm, n->loc[g])->extent)->bind;
	return NIL;
}

void lru_add_hot(struct mm *mm, uint32_t node)
{
	uint32_t home = lru_home(mm, node);

	if (home)
		lru_list_add_tail(mm, &bind_at(mm, home)->lru, node);
}

void lru_add_cold(struct mm *mm, uint32_t node)
{
	uint32_t home = lru_home(mm, node);

	if (home)
		lru_list_add_head(mm, &bind_at(mm, home)->lru, node);
}

void lru_del(struct mm *mm, uint32_t node)
{
	uint32_t home = lru_home(mm, node);

	if (home)
		lru_list_del(mm, &bind_at(mm, home)->lru, node);
}

uint32_t lru_coldest(const struct mm *mm, uint32_t bind)
{
	return bind_at(mm, bind)->lru.head;
}
