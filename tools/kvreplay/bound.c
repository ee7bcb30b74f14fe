// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bound.h"

#define NEVER UINT32_MAX

/* Next use and block, the latest on top; an entry is void unless it is its block's newest. */
struct entry {
	uint32_t next, block;
};

struct min {
	const struct trace *trace;
	uint32_t engine, nr_engines;
	uint32_t *next;	  /* of each access: the access that uses its block again */
	uint32_t *cached; /* of each block: its next use while cached, else 0 */
	uint32_t *last;	  /* of each block: the earliest use seen going backwards */
	struct entry *heap;
	uint64_t nr_heap, nr_cached, hits;
};

static void push(struct min *m, struct entry e)
{
	uint64_t i = m->nr_heap++, up;

	for (; i; i = up) {
		up = (i - 1) / 2;
		if (m->heap[up].next >= e.next)
			break;
		m->heap[i] = m->heap[up];
	}
	m->heap[i] = e;
}

static void pop(struct min *m)
{
	struct entry e = m->heap[--m->nr_heap];
	uint64_t i = 0, kid;

	while ((kid = 2 * i + 1) < m->nr_heap) {
		kid += kid + 1 < m->nr_heap && m->heap[kid + 1].next > m->heap[kid].next;
		if (m->heap[kid].next <= e.next)
			break;
		m->heap[i] = m->heap[kid];
		i = kid;
	}
	m->heap[i] = e;
}

/* The cached block used latest; void entries go. */
static const struct entry *latest(struct min *m)
{
	while (m->nr_heap && m->cached[m->heap[0].block] != m->heap[0].next)
		pop(m);
	return m->nr_heap ? &m->heap[0] : NULL;
}

static void access_block(struct min *m, uint32_t block, uint32_t next, uint64_t pages)
{
	const struct entry *e;

	if (m->cached[block]) {
		m->hits++;
		m->cached[block] = 0;
		m->nr_cached--;
	}
	if (next == NEVER || !pages)
		return;
	if (m->nr_cached == pages) {
		e = latest(m);
		if (e->next <= next)
			return;
		m->cached[e->block] = 0;
		m->nr_cached--;
		pop(m);
	}
	m->cached[block] = next;
	m->nr_cached++;
	push(m, (struct entry){ next, block });
}

static void find_next(struct min *m)
{
	const struct trace *t = m->trace;
	uint64_t i;
	uint32_t k;

	memset(m->last, 0xff, t->nr_distinct * sizeof(*m->last));
	for (k = t->nr_requests; k--;) {
		if (k % m->nr_engines != m->engine)
			continue;
		i = t->requests[k].first_block + t->requests[k].nr_blocks;
		while (i-- > t->requests[k].first_block) {
			m->next[i] = m->last[t->blocks[i]];
			m->last[t->blocks[i]] = (uint32_t)i;
		}
	}
}

static int alloc(struct min *m)
{
	uint64_t nr = m->trace->nr_blocks + 1, distinct = m->trace->nr_distinct + 1ull;

	m->next = malloc(nr * sizeof(*m->next));
	m->cached = calloc(distinct, sizeof(*m->cached));
	m->last = malloc(distinct * sizeof(*m->last));
	m->heap = malloc(nr * sizeof(*m->heap));
	return m->next && m->cached && m->last && m->heap ? 0 : -ENOMEM;
}

int bound_min(const struct trace *t, uint64_t pages, uint32_t engine, uint32_t nr_engines,
	      uint64_t *hits)
{
	struct min m = { .trace = t, .engine = engine, .nr_engines = nr_engines };
	int err = alloc(&m);
	uint64_t i, k;

	if (!err)
		find_next(&m);
	for (k = engine; k < t->nr_requests && !err; k += nr_engines)
		for (i = t->requests[k].first_block;
		     i < t->requests[k].first_block + t->requests[k].nr_blocks; i++)
			access_block(&m, t->blocks[i], m.next[i], pages);
	*hits = m.hits;
	free(m.next);
	free(m.cached);
	free(m.last);
	free(m.heap);
	return err;
}
