// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include "call.h"

uint32_t magazine_cap(uint64_t pool_bytes, uint64_t page_bytes)
{
	uint64_t bytes = pool_bytes / 100, n;

	if (bytes > MAGAZINE_MAX_BYTES)
		bytes = MAGAZINE_MAX_BYTES;
	n = bytes / page_bytes;
	if (n > MAGAZINE_MAX_PAGES)
		n = MAGAZINE_MAX_PAGES;
	return n ? (uint32_t)n : 1;
}

struct magazine *magazine_create(uint32_t cap)
{
	struct magazine *m =
		mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (m == MAP_FAILED)
		return NULL;
	if (madvise(m, sizeof(*m), MADV_WIPEONFORK)) {
		munmap(m, sizeof(*m));
		return NULL;
	}
	m->cap = cap;
	return m;
}

void magazine_destroy(struct magazine *m)
{
	if (m)
		munmap(m, sizeof(*m));
}

static uint32_t half(const struct magazine *m)
{
	return m->cap > 1 ? m->cap / 2 : 1;
}

/* Half a magazine is had only where it costs nobody anything; one page is waited for. */
int magazine_refill(struct kv_cache *c, uint32_t group, uint64_t *id)
{
	uint64_t ids[MAGAZINE_MAX_PAGES];
	struct magazine *m = c->mag[group];
	uint32_t n = half(m), room;
	int rc;

	if (n > 1 && c->kv->batch_pages < n)
		n = c->kv->batch_pages;
	rc = n > 1 ? page_alloc_batch(c, group, n, ids, false) : -ENOMEM;
	if (rc == -ENOMEM || rc == -EDQUOT) {
		n = 1;
		rc = page_alloc_batch(c, group, n, ids, true);
	}
	if (rc)
		return rc;
	*id = ids[--n];
	rc = map_take(c, group, ids, n);
	/* The engine's pressure callback may have put pages here while the batch was waited for. */
	while (!rc && n > m->cap - m->nr) {
		room = m->cap - m->nr;
		rc = page_free_batch(c, group, n - room, ids + room);
		n = room;
	}
	if (rc)
		return rc;
	memcpy(m->ids + m->nr, ids, n * sizeof(ids[0]));
	m->nr += n;
	return 0;
}

static int drain(struct kv_cache *c, uint32_t group, uint32_t n)
{
	uint64_t ids[MAGAZINE_MAX_PAGES];
	struct magazine *m = c->mag[group];

	m->nr -= n;
	memcpy(ids, m->ids + m->nr, n * sizeof(ids[0]));
	return page_free_batch(c, group, n, ids);
}

int magazine_spill(struct kv_cache *c, uint32_t group, uint64_t id)
{
	struct magazine *m = c->mag[group];
	int rc = call_check(c->kv);

	if (rc)
		return rc;
	/* The pool tells a member why not; a page of an extent that is being left is not kept. */
	if (!m->cap || map_leaving(&c->kv->map, id))
		return kv_pages_free(c, group, 1, &id);
	rc = map_take(c, group, &id, 1);
	if (rc)
		return rc;
	/* The engine's pressure callback may fill it again while the batch goes back. */
	while (!rc && m->nr == m->cap)
		rc = drain(c, group, half(m));
	if (rc) {
		map_give(c->kv, &id, 1);
		return rc;
	}
	m->ids[m->nr++] = id;
	return 0;
}

int64_t magazine_flush(struct kv_cache *c)
{
	int64_t total = 0;
	uint32_t g, n;
	int rc = 0, err;

	for (g = 0; g < c->nr_groups; g++) {
		n = c->mag[g] ? c->mag[g]->nr : 0;
		if (!n)
			continue;
		err = drain(c, g, n);
		if (err)
			rc = err;
		else
			total += n;
	}
	return rc ? rc : total;
}

int magazine_leave(struct kv_cache *c, uint32_t group, uint32_t extent)
{
	uint64_t ids[MAGAZINE_MAX_PAGES];
	struct magazine *m = c->mag[group];
	uint32_t i, n = 0, kept = 0;

	for (i = 0; i < m->nr; i++) {
		if (map_id_extent(m->ids[i]) == extent)
			ids[n++] = m->ids[i];
		else
			m->ids[kept++] = m->ids[i];
	}
	m->nr = kept;
	return n ? page_free_batch(c, group, n, ids) : 0;
}

int64_t magazine_flush_all(struct kv *kv)
{
	struct kv_cache *c;
	int64_t total = 0, n;

	for (c = kv->caches; c; c = c->next) {
		n = magazine_flush(c);
		if (n < 0)
			return n;
		total += n;
	}
	return total;
}
