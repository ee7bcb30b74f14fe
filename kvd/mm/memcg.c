// SPDX-License-Identifier: Apache-2.0
#include "core.h"
#include "worth.h"

uint32_t tenant_find(const struct mm *mm, uint32_t key)
{
	uint32_t t = pool_next(mm, &mm->tenants, 0);

	while (t && tenant_at(mm, t)->key != key)
		t = pool_next(mm, &mm->tenants, t);
	return t;
}

uint32_t tenant_create(struct mm *mm, uint32_t key)
{
	uint32_t t = pool_get(mm, &mm->tenants);

	if (!t)
		return NIL;
	tenant_at(mm, t)->key = key;
	worth_init(mm, t);
	for (uint32_t d = 0; d < MM_MAX_DEVICES; d++)
		tenant_at(mm, t)->limit[d] = (struct mm_limits){
			.high_bytes = MM_NO_LIMIT, .max_bytes = MM_NO_LIMIT,
		};
	return t;
}

void tenant_put(struct mm *mm, uint32_t tenant)
{
	if (--tenant_at(mm, tenant)->nr_refs)
		return;
	for (uint32_t d = 0; d < MM_MAX_DEVICES; d++)
		MM_ASSERT(!tenant_at(mm, tenant)->charge[d]);
	pool_put(mm, &mm->tenants, tenant);
}

uint64_t memcg_room(const struct mm *mm, uint32_t tenant, uint32_t device)
{
	const struct tenant *t = tenant_at(mm, tenant);

	return core_less(t->limit[device].max_bytes, t->charge[device]);
}

void memcg_charge(struct mm *mm, uint32_t tenant, uint32_t device, uint64_t bytes)
{
	struct tenant *t = tenant_at(mm, tenant);

	t->charge[device] += bytes;
	if (t->charge[device] > t->peak[device])
		t->peak[device] = t->charge[device];
	mm->device[device].extent_bytes += bytes;
}

void memcg_uncharge(struct mm *mm, uint32_t tenant, uint32_t device, uint64_t bytes)
{
	tenant_at(mm, tenant)->charge[device] -= bytes;
	mm->device[device].extent_bytes -= bytes;
}
