// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "cache.h"
#include "core.h"
#include "vmstat.h"

const struct mm_vmstat *mm_vmstat(const struct mm *mm)
{
	return &mm->vmstat;
}

uint64_t vmstat_page_bytes(const struct mm *mm, uint32_t cache, uint32_t group, uint32_t devices)
{
	const struct mm_cache_desc *d = &cache_at(mm, cache)->desc;
	uint64_t sum = 0;

	for (uint32_t s = 0; s < d->nr_shards; s++)
		if (devices >> d->shard[s].device & 1)
			sum += d->shard[s].page_bytes[group];
	return sum;
}

void mm_meminfo(const struct mm *mm, uint32_t device, struct mm_meminfo *mi)
{
	memset(mi, 0, sizeof(*mi));
	if (device >= mm->cfg.nr_devices)
		return;
	mi->pool_bytes = mm->cfg.device[device].pool_bytes;
	mi->extent_bytes = mm->device[device].extent_bytes;
	mi->reserved_bytes = mm->device[device].reserved_bytes;
	mi->promised_bytes = mm->device[device].promised_bytes;
	mi->free_bytes = mi->pool_bytes - mi->extent_bytes - mi->reserved_bytes;
	for (uint32_t e = pool_next(mm, &mm->extents, 0); e; e = pool_next(mm, &mm->extents, e)) {
		const struct extent *x = extent_at(mm, e);
		uint64_t page = vmstat_page_bytes(mm, x->cache, x->group, 1u << device);

		if (!page)
			continue;
		mi->nr_extents++;
		mi->held_bytes += page * x->nr[FRAME_HELD];
		mi->cached_bytes += page * (x->nr[FRAME_CACHED] + x->nr[FRAME_COLD]);
		mi->leased_bytes += page * x->nr_pinned;
		mi->quarantined_bytes += page * x->nr[FRAME_QUARANTINED];
		if (x->state == EXTENT_LIVE)
			mi->frame_free_bytes += page * x->nr[FRAME_FREE];
	}
}

static void sum_bind(const struct mm *mm, const struct bind *b, struct mm_engine_info *info)
{
	const struct cache *c = cache_at(mm, b->cache);

	for (uint32_t g = 0; g < c->desc.nr_groups; g++) {
		const struct slab *s = &b->slab[g];
		uint64_t page = vmstat_page_bytes(mm, b->cache, g, VMSTAT_ALL_DEVICES);
		uint64_t extents = s->bucket[SLAB_CREATING].nr, bytes = 0;

		for (uint32_t k = 0; k <= SLAB_FULL; k++)
			extents += s->bucket[k].nr;
		for (uint32_t i = 0; i < c->desc.nr_shards; i++)
			bytes += c->extent_bytes[g][i];
		info->extent_bytes += bytes * extents;
		info->held_pages += s->nr[FRAME_HELD];
		info->held_bytes += s->nr[FRAME_HELD] * page;
		info->quarantined_pages += s->nr[FRAME_QUARANTINED];
	}
	info->nr_extents += b->nr_extents;
}

bool mm_next_engine(const struct mm *mm, uint32_t *id, struct mm_engine_info *info)
{
	uint32_t at = *id & ((1u << mm->engines.id_bits) - 1);
	uint32_t engine = pool_next(mm, &mm->engines, at);
	const struct engine *e = engine_at(mm, engine);

	if (!engine)
		return false;
	*id = pool_id(mm, &mm->engines, engine);
	*info = (struct mm_engine_info){
		.engine = *id, .tenant_uid = tenant_at(mm, e->tenant)->key,
		.nr_members = e->members.nr, .fenced = e->fenced,
		.nr_leases = e->leases.nr, .nr_parks = e->parks.nr,
		.allocs = e->allocs, .frees = e->frees, .commits = e->commits,
		.lookup_tokens = e->lookup_tokens, .hit_tokens = e->hit_tokens, .debts = e->debts,
	};
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		info->reserved_bytes += e->reserved[d];
	for (uint32_t b = e->binds.head; b; b = bind_at(mm, b)->engine_link.next)
		sum_bind(mm, bind_at(mm, b), info);
	return true;
}

static void sum_slabs(const struct mm *mm, uint32_t bind, struct mm_cache_info *info)
{
	for (; bind; bind = bind_at(mm, bind)->cache_link.next)
		for (uint32_t g = 0; g < MM_MAX_GROUPS; g++) {
			const struct slab *s = &bind_at(mm, bind)->slab[g];

			info->held_pages += s->nr[FRAME_HELD];
			info->cached_pages += s->nr[FRAME_CACHED] + s->nr[FRAME_COLD];
			info->leased_pages += s->nr_pinned;
			info->free_pages += s->nr[FRAME_FREE];
		}
}

bool mm_next_cache(const struct mm *mm, uint32_t *id, struct mm_cache_info *info)
{
	uint32_t at = *id & ((1u << mm->caches.id_bits) - 1);
	uint32_t cache = pool_next(mm, &mm->caches, at);
	const struct cache *c = cache_at(mm, cache);

	if (!cache)
		return false;
	*id = pool_id(mm, &mm->caches, cache);
	*info = (struct mm_cache_info){
		.cache = *id, .tenant_uid = tenant_at(mm, c->tenant)->key,
		.nr_engines = c->binds.nr, .page_tokens = c->desc.page_tokens,
		.nr_groups = c->desc.nr_groups, .nr_shards = c->desc.nr_shards,
		.nr_extents = c->nr_extents, .shared = c->shared,
		.nodes = c->nr_nodes, .cached_tokens = c->cached_tokens,
		.lookup_tokens = c->lookup_tokens, .hit_tokens = c->hit_tokens,
	};
	memcpy(info->model_key, c->desc.model_key, MM_KEY_BYTES);
	for (uint32_t g = 0; g < c->desc.nr_groups; g++)
		info->page_bytes += vmstat_page_bytes(mm, cache, g, VMSTAT_ALL_DEVICES);
	sum_slabs(mm, c->binds.head, info);
	sum_slabs(mm, c->orphans.head, info);
	return true;
}

static void sum_tenant(const struct mm *mm, uint32_t bind, struct mm_tenant_info *info)
{
	for (; bind; bind = bind_at(mm, bind)->cache_link.next) {
		const struct bind *b = bind_at(mm, bind);
		const struct cache *c = cache_at(mm, b->cache);

		for (uint32_t g = 0; g < c->desc.nr_groups; g++)
			for (uint32_t s = 0; s < c->desc.nr_shards; s++) {
				struct mm_tenant_device *d = &info->device[c->desc.shard[s].device];
				const struct slab *sl = &b->slab[g];
				uint64_t page = c->desc.shard[s].page_bytes[g];

				d->held_bytes += page * sl->nr[FRAME_HELD];
				d->cached_bytes += page * (sl->nr[FRAME_CACHED] +
							   sl->nr[FRAME_COLD]);
				d->leased_bytes += page * sl->nr_pinned;
				d->quarantined_bytes += page * sl->nr[FRAME_QUARANTINED];
				d->free_bytes += page * sl->nr[FRAME_FREE];
			}
	}
}

bool mm_next_tenant(const struct mm *mm, uint32_t *id, struct mm_tenant_info *info)
{
	uint32_t tenant = pool_next(mm, &mm->tenants, *id);
	const struct tenant *t = tenant_at(mm, tenant);

	if (!tenant)
		return false;
	*id = tenant;
	*info = (struct mm_tenant_info){
		.key = t->key, .nr_caches = t->caches.nr, .oom_action = t->oom_action,
		.configured = t->configured, .oom_kills = t->oom_kills,
		.lookup_tokens = t->lookup_tokens, .hit_tokens = t->hit_tokens,
	};
	memcpy(info->events, t->events, sizeof(info->events));
	for (uint32_t d = 0; d < MM_MAX_DEVICES; d++) {
		info->device[d].limits = t->limit[d];
		info->device[d].charge_bytes = t->charge[d];
		info->device[d].peak_bytes = t->peak[d];
		info->device[d].leaving_bytes = t->leaving[d];
		info->device[d].promised_bytes = t->promised[d];
	}
	for (uint32_t e = pool_next(mm, &mm->engines, 0); e; e = pool_next(mm, &mm->engines, e)) {
		if (engine_at(mm, e)->tenant != tenant)
			continue;
		info->nr_engines++;
		for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
			info->device[d].reserved_bytes += engine_at(mm, e)->reserved[d];
	}
	for (uint32_t c = t->caches.head; c; c = cache_at(mm, c)->tenant_link.next) {
		sum_tenant(mm, cache_at(mm, c)->binds.head, info);
		sum_tenant(mm, cache_at(mm, c)->orphans.head, info);
	}
	return true;
}

int mm_tenant_info(const struct mm *mm, uint32_t key, struct mm_tenant_info *info)
{
	uint32_t tenant = tenant_find(mm, key), id = tenant - 1;

	return tenant && mm_next_tenant(mm, &id, info) ? 0 : -ENOENT;
}

int mm_engine_info(const struct mm *mm, uint32_t engine, struct mm_engine_info *info)
{
	uint32_t id = engine - 1;

	if (!pool_find(mm, &mm->engines, engine))
		return -ENOENT;
	return mm_next_engine(mm, &id, info) && info->engine == engine ? 0 : -ENOENT;
}
