// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "sim.h"

#define ULL(x) ((unsigned long long)(x))

/* Bytes of all pages of a state on a device. */
static uint64_t state_bytes(struct sim *s, uint32_t device, enum page_state state)
{
	uint64_t bytes = 0;

	for (uint32_t c = 1; c < s->nr_caches; c++) {
		const struct cache *k = &s->cache[c];

		for (uint32_t i = 0; i < k->desc.nr_shards; i++)
			for (uint32_t g = 0; g < k->desc.nr_groups; g++)
				if (k->desc.shard[i].device == device)
					bytes += k->nr[state][g] * k->desc.shard[i].page_bytes[g];
	}
	return bytes;
}

static void check_device(struct sim *s, uint32_t d)
{
	uint64_t extents = 0, left = 0, reserved = 0, held = state_bytes(s, d, PAGE_HELD);
	uint64_t quarantined = state_bytes(s, d, PAGE_QUARANTINED);
	uint64_t cached = state_bytes(s, d, PAGE_CACHED) + state_bytes(s, d, PAGE_DROPPED);
	struct mm_meminfo m;

	memset(&m, 0, sizeof(m));
	mm_meminfo(s->mm, d, &m);
	for (uint32_t x = 0; x < s->top_extent; x++)
		for (uint32_t i = 0; i < MM_MAX_SHARDS; i++)
			if (s->extent[x].shard[i].state != SHARD_NONE &&
			    s->extent[x].shard[i].device == d) {
				extents += s->extent[x].shard[i].bytes;
				if (s->extent[x].shard[i].state == SHARD_LEFT)
					left += s->extent[x].shard[i].bytes;
			}
	for (uint32_t i = 0; i < s->nr_live; i++)
		reserved += s->engine[s->live[i]].reserved[d];
	m.held_bytes = canary_number(s, CANARY_MEMINFO, m.held_bytes);
	SIM_CHECK(s, m.pool_bytes == s->cfg.device[d].pool_bytes, "device %u: pool_bytes %llu", d,
		  ULL(m.pool_bytes));
	SIM_CHECK(s, m.extent_bytes <= extents && m.extent_bytes + left >= extents,
		  "device %u: extent_bytes %llu, model %llu", d, ULL(m.extent_bytes), ULL(extents));
	SIM_CHECK(s,
		  m.reserved_bytes >= reserved &&
			  m.reserved_bytes <= reserved + s->late_reserved[d],
		  "device %u: reserved_bytes %llu, model %llu", d, ULL(m.reserved_bytes),
		  ULL(reserved));
	SIM_CHECK(s, m.free_bytes + m.extent_bytes + m.reserved_bytes == m.pool_bytes,
		  "device %u: free_bytes %llu", d, ULL(m.free_bytes));
	SIM_CHECK(s, m.held_bytes == held, "device %u: held_bytes %llu, model %llu", d,
		  ULL(m.held_bytes), ULL(held));
	SIM_CHECK(s,
		  m.quarantined_bytes >= quarantined &&
			  (s->cfg.device[d].scrub || s->cfg.nr_devices > 1 ||
			   m.quarantined_bytes == quarantined),
		  "device %u: quarantined_bytes %llu, model %llu", d, ULL(m.quarantined_bytes),
		  ULL(quarantined));
	SIM_CHECK(s, m.cached_bytes <= cached, "device %u: cached_bytes %llu, model at most %llu",
		  d, ULL(m.cached_bytes), ULL(cached));
}

static void check_engine(struct sim *s, const struct mm_engine_info *i)
{
	struct engine *e = model_engine(s, i->engine);
	uint64_t reserved = 0;

	if (!e)
		return; /* its last frames may still be scrubbed */
	for (uint32_t d = 0; d < s->cfg.nr_devices; d++)
		reserved += e->reserved[d];
	SIM_CHECK(s,
		  i->tenant_uid == e->uid && !i->fenced == !e->fenced &&
			  i->nr_members == e->nr_alive && i->reserved_bytes == reserved,
		  "engine %u: tenant %u fenced %u members %u (%u) reserved %llu (%llu)", e->id,
		  i->tenant_uid, i->fenced, i->nr_members, e->nr_alive, ULL(i->reserved_bytes),
		  ULL(reserved));
	SIM_CHECK(s, i->nr_leases == e->nr_leases && i->nr_parks == e->nr_parks,
		  "engine %u: %u leases, model %u; %u parks, model %u", e->id, i->nr_leases,
		  e->nr_leases, i->nr_parks, e->nr_parks);
	SIM_CHECK(s,
		  canary_number(s, CANARY_ENGINE_INFO, i->held_pages) ==
				  (e->fenced ? 0 : e->nr_held) &&
			  i->quarantined_pages == (e->fenced ? e->nr_held : 0),
		  "engine %u: %llu pages held, %llu quarantined; model %u", e->id,
		  ULL(i->held_pages), ULL(i->quarantined_pages), e->nr_held);
}

/* What it asked and got since it came. */
static void check_engine_sums(struct sim *s, const struct mm_engine_info *i)
{
	struct engine *e = model_engine(s, i->engine);

	if (!e)
		return;
	SIM_CHECK(s, i->lookup_tokens == e->lookup_tokens && i->hit_tokens == e->hit_tokens,
		  "engine %u: %llu tokens looked up, %llu found; model %llu, %llu", e->id,
		  ULL(i->lookup_tokens), ULL(i->hit_tokens), ULL(e->lookup_tokens),
		  ULL(e->hit_tokens));
	SIM_CHECK(s, i->allocs == e->allocs && i->frees == e->frees && i->commits == e->commits,
		  "engine %u: %llu pages granted, %llu freed, %llu committed; model %llu, %llu, "
		  "%llu",
		  e->id, ULL(i->allocs), ULL(i->frees), ULL(i->commits), ULL(e->allocs),
		  ULL(e->frees), ULL(e->commits));
}

static void check_engines(struct sim *s)
{
	struct mm_engine_info info;
	uint32_t id = 0, seen = 0;

	while (mm_next_engine(s->mm, &id, &info)) {
		check_engine(s, &info);
		check_engine_sums(s, &info);
		seen += model_engine(s, info.engine) != NULL;
		SIM_CHECK(s, seen <= s->nr_live, "mm_next_engine walks in circles");
	}
	SIM_CHECK(s, seen == s->nr_live, "mm_next_engine sees %u engines, the model has %u", seen,
		  s->nr_live);
}

static uint64_t sum_state(const struct cache *k, enum page_state state)
{
	uint64_t nr = 0;

	for (uint32_t g = 0; g < k->desc.nr_groups; g++)
		nr += k->nr[state][g];
	return nr;
}

static uint64_t check_cache(struct sim *s, const struct mm_cache_info *i)
{
	struct cache *k = model_cache(s, i->cache);
	uint64_t pinned = 0;

	if (!k)
		return i->cached_pages;
	for (uint32_t g = 0; g < k->desc.nr_groups; g++)
		pinned += k->nr_pinned[g];
	SIM_CHECK(s,
		  i->tenant_uid == k->uid && !i->shared == !k->shared &&
			  i->page_tokens == k->desc.page_tokens &&
			  (!k->shared || !memcmp(i->model_key, k->desc.model_key, MM_KEY_BYTES)),
		  "cache %u is described as another", k->id);
	SIM_CHECK(s,
		  i->nr_groups == k->desc.nr_groups && i->nr_shards == k->desc.nr_shards &&
			  i->lookup_tokens == k->lookup_tokens && i->hit_tokens == k->hit_tokens,
		  "cache %u: %llu tokens looked up, %llu found; model %llu, %llu", k->id,
		  ULL(i->lookup_tokens), ULL(i->hit_tokens), ULL(k->lookup_tokens),
		  ULL(k->hit_tokens));
	SIM_CHECK(s, i->nr_engines >= k->nr_engines, "cache %u: %u engines, model %u", k->id,
		  i->nr_engines, k->nr_engines);
	SIM_CHECK(s,
		  i->held_pages >= sum_state(k, PAGE_HELD) &&
			  i->held_pages <= sum_state(k, PAGE_HELD) + sum_state(k, PAGE_QUARANTINED),
		  "cache %u: %llu pages held, model %llu + %llu", k->id, ULL(i->held_pages),
		  ULL(sum_state(k, PAGE_HELD)), ULL(sum_state(k, PAGE_QUARANTINED)));
	SIM_CHECK(s, i->cached_pages <= sum_state(k, PAGE_CACHED) && i->leased_pages >= pinned,
		  "cache %u: %llu pages cached, %llu leased; model at most %llu, at least %llu",
		  k->id, ULL(i->cached_pages), ULL(i->leased_pages), ULL(sum_state(k, PAGE_CACHED)),
		  ULL(pinned));
	return i->cached_pages;
}

static void check_caches(struct sim *s)
{
	const struct mm_vmstat *v = mm_vmstat(s->mm);
	uint64_t cached = 0, model = 0, unknown;
	struct mm_cache_info info;
	uint32_t id = 0, seen = 0;

	while (mm_next_cache(s->mm, &id, &info)) {
		cached += check_cache(s, &info);
		SIM_CHECK(s, ++seen <= SIM_SERIALS, "mm_next_cache walks in circles");
	}
	for (uint32_t c = 1; c < s->nr_caches; c++)
		model += sum_state(&s->cache[c], PAGE_CACHED);
	SIM_CHECK(s, v->pages_evict + s->sum.dropped >= s->sum.evicted,
		  "pages_evict %llu, the model knows of %llu", ULL(v->pages_evict),
		  ULL(s->sum.evicted));
	/* Evictions the model has not noticed yet; those of closed caches may be counted or not. */
	unknown = v->pages_evict > s->sum.evicted ? v->pages_evict - s->sum.evicted : 0;
	SIM_CHECK(s, cached + unknown >= model && cached <= model + s->sum.dropped,
		  "%llu pages cached, model %llu of which %llu evicted", ULL(cached), ULL(model),
		  ULL(unknown));
	SIM_CHECK(s, s->sum.dropped || cached + unknown == model,
		  "%llu pages cached, model %llu of which %llu evicted", ULL(cached), ULL(model),
		  ULL(unknown));
}

#define IN(name, lo, hi) \
	SIM_CHECK(s, v.name >= (lo) && v.name <= (hi), \
		  "vmstat " #name " is %llu, model [%llu, %llu]", ULL(v.name), ULL(lo), ULL(hi))

static void check_vmstat(struct sim *s)
{
	struct mm_vmstat v = *mm_vmstat(s->mm);
	const struct totals *t = &s->sum;

	v.pages_alloc = canary_number(s, CANARY_VMSTAT, v.pages_alloc);
	IN(pages_alloc, t->granted, t->granted + t->adopted_pages);
	IN(pages_free, t->freed, t->freed + t->quarantined);
	IN(pages_commit, t->committed, t->committed);
	IN(pages_dup, t->dup_nodes < t->dup_pages ? t->dup_nodes : t->dup_pages, t->dup_pages);
	IN(pages_adopt, t->adopted, t->adopted_pages);
	IN(pages_quarantine, t->quarantined, t->quarantined);
	IN(lookups, t->lookups, t->lookups + t->resumes);
	IN(lookup_tokens, t->lookup_tokens, t->lookup_tokens + t->resume_tokens);
	IN(hit_tokens, t->hit_tokens, t->hit_tokens);
	IN(hit_pages, t->hit_pages, t->hit_pages);
	IN(tail_hits, t->tail_hits, t->tail_hits);
	IN(leases, t->leases_new - (t->leases_new < t->resumes ? t->leases_new : t->resumes),
	   t->leases_new + t->leases_moved);
	IN(engines, t->engines, t->engines);
	IN(fences, t->fences, t->fences);
	IN(oom_kills, t->kills, t->kills);
	SIM_CHECK(s, v.alloc_fail <= s->op_err[MM_ALLOC], "vmstat alloc_fail is %llu, model %llu",
		  ULL(v.alloc_fail), ULL(s->op_err[MM_ALLOC]));
	SIM_CHECK(s, v.hit_tokens <= v.lookup_tokens, "vmstat hit_tokens is %llu of %llu",
		  ULL(v.hit_tokens), ULL(v.lookup_tokens));
}

void totals_check(struct sim *s)
{
	effects_drain(s);
	for (uint32_t d = 0; d < s->cfg.nr_devices; d++)
		check_device(s, d);
	check_engines(s);
	check_caches(s);
	budget_check(s);
	check_vmstat(s);
}

/* Everything is given back and everybody gone: only cached content may keep an extent. */
void totals_end(struct sim *s)
{
	for (uint32_t d = 0; d < s->cfg.nr_devices; d++) {
		struct mm_meminfo m;

		mm_meminfo(s->mm, d, &m);
		SIM_CHECK(s, !m.held_bytes && !m.quarantined_bytes && !m.reserved_bytes,
			  "at the end device %u has held %llu, quarantined %llu, reserved %llu", d,
			  ULL(m.held_bytes), ULL(m.quarantined_bytes), ULL(m.reserved_bytes));
	}
	for (uint32_t x = 0; x < s->top_extent; x++) {
		bool cached = false;

		for (uint32_t f = 0; f < s->extent[x].nr_slots; f++)
			cached |= s->extent[x].frame[f].page &&
				  s->page[s->extent[x].frame[f].page].state == PAGE_CACHED;
		SIM_CHECK(s, cached || model_extent_idle(&s->extent[x]),
			  "at the end extent %u is left without content", x);
	}
	for (uint32_t i = 0; i < SIM_CALLS; i++)
		SIM_CHECK(s, !s->call[i].used || s->engine[s->call[i].engine].fenced,
			  "request %llu is never answered", ULL(s->call[i].req.cookie));
}
