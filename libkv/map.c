// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "call.h"

static int grow(struct map *map, uint32_t extent)
{
	uint32_t nr = map->nr ? map->nr : 64;
	struct map_extent *ext;

	while (nr <= extent)
		nr *= 2;
	ext = realloc(map->ext, nr * sizeof(*ext));
	if (!ext)
		return err_set(-ENOMEM, "no memory for the table of %u extents", nr);
	memset(ext + map->nr, 0, (nr - map->nr) * sizeof(*ext));
	map->ext = ext;
	map->nr = nr;
	return 0;
}

static void forget(struct map *map, struct map_extent *e)
{
	map->nr_leaving -= e->leaving;
	free(e->page);
	*e = (struct map_extent){ .base = NULL };
}

/* The entry of an extent that is about to be used for (cache, group). */
static int claim(struct kv_cache *c, uint32_t group, uint64_t id, struct map_extent **out)
{
	uint32_t extent = map_id_extent(id);
	struct map *map = &c->kv->map;
	struct map_extent *e;
	int rc;

	if (extent >= map->nr) {
		rc = grow(map, extent);
		if (rc)
			return rc;
	}
	e = &map->ext[extent];
	/* Neither mapped nor held: mm may have destroyed it and given its id to a new one. */
	if (!e->base && !e->held)
		forget(map, e);
	if (e->cache && (e->cache != c || e->group != group))
		return err_set(-EINVAL,
			       "page %#llx is of group %u of cache %u, not of group %u of cache "
			       "%u",
			       (unsigned long long)id, e->group, e->cache->id, group, c->id);
	*out = e;
	return 0;
}

/* ---- who holds what ------------------------------------------------------------------------ */

static int hold(struct kv_cache *c, uint32_t group, uint64_t id)
{
	uint32_t slots = c->extent_pages[group];
	struct map_extent *e;
	int rc = claim(c, group, id, &e);

	if (rc)
		return rc;
	if (map_id_slot(id) >= slots)
		return kv_mark_dead(c->kv, "kvd granted a page outside its extent");
	if (!e->page)
		e->page = calloc(slots, sizeof(*e->page));
	if (!e->page)
		return err_set(-ENOMEM, "no memory for the table of %u pages", slots);
	if (e->page[map_id_slot(id)])
		return kv_mark_dead(c->kv, "kvd granted a page that is held already");
	e->cache = c;
	e->group = (uint8_t)group;
	e->slots = slots;
	e->writer = true;
	e->page[map_id_slot(id)] = map_word(id, MAP_USED);
	e->held++;
	return 0;
}

int map_hold(struct kv_cache *c, uint32_t group, const uint64_t *ids, uint32_t n)
{
	uint32_t i;
	int rc;

	for (i = 0; i < n; i++) {
		rc = ids[i] ? hold(c, group, ids[i]) : 0;
		if (rc) {
			map_unhold(c->kv, ids, i);
			return rc;
		}
	}
	return 0;
}

void map_unhold(struct kv *kv, const uint64_t *ids, uint32_t n)
{
	struct map_extent *e;
	uint32_t i;

	for (i = 0; i < n; i++) {
		if (!ids[i] || map_id_extent(ids[i]) >= kv->map.nr)
			continue;
		e = &kv->map.ext[map_id_extent(ids[i])];
		if (!e->page || !e->page[map_id_slot(ids[i])])
			continue;
		e->page[map_id_slot(ids[i])] = 0;
		e->held--;
	}
}

/* Why a page cannot be given away. */
static int not_held(const struct kv_cache *c, uint32_t group, uint64_t id, const uint32_t *page)
{
	const struct map *map = &c->kv->map;
	const struct map_extent *e =
		map_id_extent(id) < map->nr ? &map->ext[map_id_extent(id)] : NULL;

	if (e && e->cache && (e->cache != c || e->group != group))
		return err_set(-EINVAL,
			       "page %#llx is of group %u of cache %u, not of group %u of cache %u",
			       (unsigned long long)id, e->group, e->cache->id, group, c->id);
	if (page && *page == map_word(id, MAP_IDLE))
		return err_set(-ESTALE, "stale page id %#llx: it was freed or given away already",
			       (unsigned long long)id);
	return err_set(-ESTALE,
		       "stale page id %#llx: this engine does not hold it; it was freed, committed "
		       "or granted anew since, or never was this engine's",
		       (unsigned long long)id);
}

int map_take(struct kv_cache *c, uint32_t group, const uint64_t *ids, uint32_t n)
{
	uint32_t *page, i;
	int rc;

	for (i = 0; i < n; i++) {
		if (!ids[i])
			continue;
		page = map_page(&c->kv->map, c, group, ids[i]);
		if (!page || *page != map_word(ids[i], MAP_USED)) {
			rc = not_held(c, group, ids[i], page);
			map_give(c->kv, ids, i);
			return rc;
		}
		*page = map_word(ids[i], MAP_IDLE);
	}
	return 0;
}

void map_give(struct kv *kv, const uint64_t *ids, uint32_t n)
{
	struct map_extent *e;
	uint32_t i;

	for (i = 0; i < n; i++) {
		e = kv->map.ext + map_id_extent(ids[i]);
		if (ids[i] && map_id_extent(ids[i]) < kv->map.nr && e->page &&
		    e->page[map_id_slot(ids[i])] == map_word(ids[i], MAP_IDLE))
			e->page[map_id_slot(ids[i])] = map_word(ids[i], MAP_USED);
	}
}

uint32_t map_held(const struct kv *kv, uint32_t extent)
{
	return extent < kv->map.nr ? kv->map.ext[extent].held : 0;
}

bool map_leave(struct kv *kv, uint32_t extent)
{
	struct map_extent *e;

	if (!map_held(kv, extent))
		return false;
	e = kv->map.ext + extent;
	kv->map.nr_leaving += !e->leaving;
	e->leaving = true;
	return true;
}

void map_stay(struct kv *kv)
{
	uint32_t i;

	for (i = 0; kv->map.nr_leaving && i < kv->map.nr; i++) {
		kv->map.nr_leaving -= kv->map.ext[i].leaving;
		kv->map.ext[i].leaving = false;
	}
}

/* ---- addresses ----------------------------------------------------------------------------- */

static int unimport(struct kv *kv, uint32_t extent)
{
	const struct kv_sqe sqe = { .op = KV_OP_UNIMPORT, .id = extent, .nr = kv->rank };

	return call_plain(kv, &sqe, NULL);
}

/* The extent's size must be what its group's pages need, or its ids would point elsewhere. */
static int check_extent(const struct kv_cache *c, uint32_t group, uint32_t extent, uint64_t bytes)
{
	uint64_t want = c->extent_bytes[group];

	if (bytes >= c->page_bytes[group] && (!want || bytes == want))
		return 0;
	return err_set(-EINVAL,
		       "extent %u (%llu bytes) is none of group %u of cache %u (%llu bytes)",
		       extent, (unsigned long long)bytes, group, c->id, (unsigned long long)want);
}

static int place(struct map_extent *e, const struct link_extent *x)
{
	int prot = PROT_READ | (x->writable ? PROT_WRITE : 0);
	int fixed = e->base ? MAP_FIXED : 0;
	void *p;

	if (e->base && e->bytes != x->bytes)
		return err_set(-EPROTO, "an extent changed its size while it was mapped");
	p = mmap(e->base, x->bytes, prot, MAP_SHARED | fixed, x->fd, 0);
	if (p == MAP_FAILED)
		return err_set(-errno, "cannot map an extent of %llu bytes: %s",
			       (unsigned long long)x->bytes, strerror(errno));
	madvise(p, x->bytes, MADV_DONTFORK);
	e->base = p;
	e->bytes = x->bytes;
	e->writable = x->writable;
	return 0;
}

/* A member learns its extents' size from the first: 2^k pages, and less than a page more. */
static uint32_t below_pow2(uint64_t n)
{
	uint32_t pow = 1;

	while (pow <= n / 2)
		pow *= 2;
	return pow;
}

static int map_in(struct kv_cache *c, uint32_t group, uint64_t id, struct map_extent *e)
{
	uint32_t extent = map_id_extent(id);
	struct kv *kv = c->kv;
	bool was_mapped = e->base != NULL;
	struct link_extent x;
	int rc = kv->ops->import(kv, extent, kv->rank, &x);

	if (rc)
		return rc;
	rc = check_extent(c, group, extent, x.bytes);
	if (!rc)
		rc = place(e, &x);
	close(x.fd);
	if (rc) {
		if (!was_mapped && !kv->dead && unimport(kv, extent))
			return -EPIPE;
		return rc;
	}
	e->cache = c;
	e->group = (uint8_t)group;
	e->writer = x.writable;
	if (!c->extent_pages[group]) {
		c->extent_pages[group] = below_pow2(x.bytes / c->page_bytes[group]);
		c->extent_bytes[group] = x.bytes;
	}
	e->slots = c->extent_pages[group];
	return 0;
}

int map_addr(struct kv_cache *c, uint32_t group, uint64_t id, void **addr)
{
	struct map_extent *e;
	int rc = claim(c, group, id, &e);

	if (rc)
		return rc;
	if (!e->base || (e->writer && !e->writable)) {
		rc = call_check(c->kv);
		if (!rc)
			rc = map_in(c, group, id, e);
		if (rc)
			return rc;
	}
	if (map_id_slot(id) >= e->slots)
		return err_set(-EINVAL, "page %#llx: slot %u is outside its extent (%u pages)",
			       (unsigned long long)id, map_id_slot(id), e->slots);
	*addr = e->base + (uint64_t)map_id_slot(id) * c->page_bytes[group];
	return 0;
}

/* Unmap before telling: mm may give the memory to somebody else once it knows. What is held there
 * is not retired; it is mapped anew when it is asked for. */
int map_retire(struct kv *kv, uint32_t extent)
{
	struct map_extent *e = extent < kv->map.nr ? &kv->map.ext[extent] : NULL;
	bool mapped = e && e->base;

	if (mapped)
		munmap(e->base, e->bytes);
	if (e)
		e->base = NULL;
	if (e && !e->held)
		forget(&kv->map, e);
	return mapped ? unimport(kv, extent) : 0;
}

void map_drop_cache(struct kv_cache *c)
{
	struct map *map = &c->kv->map;
	uint32_t i;

	for (i = 0; i < map->nr; i++) {
		struct map_extent e = map->ext[i];

		if (e.cache != c)
			continue;
		forget(map, &map->ext[i]);
		if (e.base)
			munmap(e.base, e.bytes);
		if (e.base && !c->kv->dead)
			unimport(c->kv, i);
	}
}

void map_fini(struct kv *kv)
{
	uint32_t i;

	for (i = 0; i < kv->map.nr; i++) {
		if (kv->map.ext[i].base)
			munmap(kv->map.ext[i].base, kv->map.ext[i].bytes);
		free(kv->map.ext[i].page);
	}
	free(kv->map.ext);
	kv->map = (struct map){ .ext = NULL };
}
