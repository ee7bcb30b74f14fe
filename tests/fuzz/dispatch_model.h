/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch_model - who was given what: the side of dispatch_fuzz that does not believe mm
 *
 * Model:      frames by (extent, slot) with the last id granted there and its state; leases, parks
 *             and open caches by owner; mappings. It is fed from answers alone, so it can be wrong
 *             only where an answer is.
 * Invariants: none of its own; a contradiction ends in die().
 * Context:    a header, since each fuzz target is one program.
 * See:        dispatch_fuzz.c
 */
#ifndef DISPATCH_MODEL_H
#define DISPATCH_MODEL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "mm/mm.h"

#define FRAMES		(1u << 15)	/* hash of (extent, slot) */
#define MAX_IDS		2048
#define MAX_MAPS	1024

enum page_state { UNKNOWN, HELD, CACHED, GONE };

struct page {
	uint64_t frame, id;		/* frame + 1: 0 is an empty place */
	uint64_t epoch;
	enum page_state state;
	uint32_t tenant, engine, cache;
	uint16_t group;
};

struct owned {				/* a lease, a park or an open cache */
	uint32_t id, engine;
};

struct owned_set {
	struct owned at[MAX_IDS];
	uint32_t nr;
};

struct mapping {
	uint32_t extent, shard, member, engine, tenant;
	bool writable;
};

struct model {
	uint64_t epoch; /* of frames[]: those of an earlier input are empty places */
	struct page frames[FRAMES];
	uint32_t used[FRAMES / 2];	/* places of this epoch */
	uint32_t nr_frames;
	struct owned_set leases, parks, caches;
	struct mapping maps[MAX_MAPS];
	uint32_t nr_maps;
};

static inline void die(const char *what)
{
	fprintf(stderr, "dispatch_fuzz: %s\n", what);
	abort();
}

static inline void model_reset(struct model *m)
{
	m->epoch++;
	m->nr_frames = m->nr_maps = 0;
	m->leases.nr = m->parks.nr = m->caches.nr = 0;
}

static inline struct page *page_of(struct model *m, uint64_t id, bool create)
{
	uint64_t frame = (id >> MM_GEN_BITS) + 1;
	uint32_t h = (uint32_t)((frame * 0x9e3779b97f4a7c15ull) >> 40) % FRAMES;

	while (m->frames[h].epoch == m->epoch && m->frames[h].frame != frame)
		h = (h + 1) % FRAMES;
	if (m->frames[h].epoch != m->epoch) {
		if (!create)
			return NULL;
		if (m->nr_frames == FRAMES / 2)
			die("the harness's frame table is too small");
		m->used[m->nr_frames++] = h;
		m->frames[h] = (struct page){ .frame = frame, .epoch = m->epoch };
	}
	return &m->frames[h];
}

static inline struct owned *owned_find(struct owned_set *s, uint32_t id, uint32_t engine)
{
	for (uint32_t i = 0; i < s->nr; i++) {
		if (s->at[i].id == id && s->at[i].engine == engine)
			return &s->at[i];
	}
	return NULL;
}

static inline void owned_add(struct owned_set *s, uint32_t id, uint32_t engine)
{
	if (!id)
		return;
	if (s->nr == MAX_IDS)
		die("the harness's id table is too small");
	s->at[s->nr++] = (struct owned){ id, engine };
}

static inline void owned_remove(struct owned_set *s, uint32_t id, uint32_t engine, const char *what)
{
	struct owned *o = owned_find(s, id, engine);

	if (!o)
		die(what);
	*o = s->at[--s->nr];
}

static inline void owned_drop_engine(struct owned_set *s, uint32_t engine)
{
	for (uint32_t i = 0; i < s->nr;) {
		if (s->at[i].engine == engine)
			s->at[i] = s->at[--s->nr];
		else
			i++;
	}
}

static inline void granted(struct owned_set *s, uint32_t id, uint32_t engine)
{
	for (uint32_t i = 0; i < s->nr; i++) {
		if (id && s->at[i].id == id)
			die("an id was granted while it lives");
	}
	owned_add(s, id, engine);
}

static inline void map_add(struct model *m, struct mapping map)
{
	for (uint32_t i = 0; i < m->nr_maps; i++) {
		const struct mapping *o = &m->maps[i];

		if (o->extent == map.extent && o->tenant != map.tenant)
			die("an extent is mapped in two tenants");
	}
	if (m->nr_maps == MAX_MAPS)
		die("the model's mapping table is too small");
	m->maps[m->nr_maps++] = map;
}

/* shard UINT32_MAX: all of the member, which is gone. */
static inline void map_remove(struct model *m, uint32_t member, uint32_t extent, uint32_t shard)
{
	for (uint32_t i = 0; i < m->nr_maps;) {
		const struct mapping *o = &m->maps[i];

		if (o->member == member &&
		    (shard == UINT32_MAX || (o->extent == extent && o->shard == shard)))
			m->maps[i] = m->maps[--m->nr_maps];
		else
			i++;
	}
}

/* A page of the extent was granted to the engine: who else can reach it? */
static inline void map_check_grant(const struct model *m, uint32_t extent, uint32_t engine,
				   uint32_t tenant)
{
	for (uint32_t i = 0; i < m->nr_maps; i++) {
		const struct mapping *o = &m->maps[i];

		if (o->extent != extent)
			continue;
		if (o->tenant != tenant)
			die("a page was granted that another tenant still maps");
		if (o->writable && o->engine != engine)
			die("a page was granted that another engine can write");
	}
}

#endif
