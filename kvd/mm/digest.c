// SPDX-License-Identifier: Apache-2.0
/* The digest covers what later answers depend on: tables, the order of lists, pins, queues; not
 * statistics (vmstat, sums per engine and cache) and not the clock, so that a refused request
 * leaves it alone. */
#include <string.h>

#include "cache.h"
#include "core.h"
#include "import.h"
#include "workingset.h"
#include "worth.h"

static uint64_t add(uint64_t h, uint64_t v)
{
	return core_mix(h ^ v) + (h << 7);
}

static uint64_t add_bytes(uint64_t h, const void *p, uint32_t bytes)
{
	uint64_t w;

	for (; bytes >= 8; bytes -= 8, p = (const char *)p + 8) {
		memcpy(&w, p, 8);
		h = add(h, w);
	}
	w = 0;
	memcpy(&w, p, bytes);
	return add(h, w);
}

static uint64_t add_list(uint64_t h, const struct list *l)
{
	return add(add(h, l->head), (uint64_t)l->tail << 32 | l->nr);
}

static uint64_t add_extent(const struct mm *mm, uint64_t h, uint32_t ext)
{
	const struct extent *x = extent_at(mm, ext);

	h = add(h, (uint64_t)ext << 32 | (uint32_t)x->state << 8 | x->group);
	h = add(h, (uint64_t)x->cache << 32 | x->bind);
	h = add(h, (uint64_t)x->base << 32 | x->order << 24 | x->fresh);
	h = add(h, (uint64_t)x->fx_todo << 48 | (uint64_t)x->fx_busy << 32 |
		   (uint64_t)x->fx_ok << 16 | x->fx_retry);
	h = add(h, (uint64_t)x->fx_seq << 32 | x->gen_top);
	h = add(h, (uint64_t)x->nr_from << 32 | x->drain_slot << 16 | x->drain_fails << 8 |
		   x->drain_flags << 1 | x->draining);
	h = add(h, (uint64_t)x->drain_seq << 32 | x->drain_link.next);
	h = add(h, x->drain_ns);
	h = add(h, (uint64_t)x->take_link.next << 32 | x->bucket_link.next);
	for (uint32_t slot = 0; slot < x->fresh; slot++) {
		const struct frame *fr = frame_at(mm, x->base + slot);

		h = add(h, (uint64_t)fr->node << 32 | fr->gen << 8 | fr->moving << 7 | fr->state);
		h = add(h, fr->link.next);
	}
	for (uint32_t m = pool_next(mm, &mm->members, 0); m; m = pool_next(mm, &mm->members, m))
		h = add(h, *import_bits(mm, m, ext));
	return h;
}

static uint64_t add_fair(const struct fair *f, uint64_t h)
{
	h = add(add(h, f->finish), f->last_bytes << 1 | f->seen);
	return f->nr ? add(add(h, f->start), f->stamp) : h;
}

static uint64_t add_tenant(const struct tenant *t, uint64_t h)
{
	h = add(add_fair(&t->fair, h), t->queue.start);
	h = add_bytes(add(add(h, t->key), t->oom_action), t->limit, sizeof(t->limit));
	h = add(add(h, t->ask_ns), (uint64_t)t->asks << 1 | t->in_debt);
	return add_bytes(h, t->charge, sizeof(t->charge));
}

static uint64_t add_engines(const struct mm *mm, uint64_t h)
{
	for (uint32_t i = pool_next(mm, &mm->engines, 0); i; i = pool_next(mm, &mm->engines, i)) {
		const struct engine *e = engine_at(mm, i);

		h = add(h, (uint64_t)pool_id(mm, &mm->engines, i) << 32 | e->tenant);
		h = add(h, (uint64_t)e->lead << 32 | e->fenced << 1 | e->draining);
		h = add(h, e->fenced_ns);
		h = add_bytes(h, e->reserved_for, sizeof(e->reserved_for));
		h = add(h, (uint64_t)e->pressure.seq << 32 | e->pressure.acked);
		h = add_fair(&e->fair, h);
		h = add(h, (uint64_t)e->kill << 1 | e->packed);
	}
	for (uint32_t i = pool_next(mm, &mm->members, 0); i; i = pool_next(mm, &mm->members, i))
		h = add(h, (uint64_t)pool_id(mm, &mm->members, i) << 32 |
			   member_at(mm, i)->engine << 1 | member_at(mm, i)->on_notify);
	for (uint32_t i = pool_next(mm, &mm->tenants, 0); i; i = pool_next(mm, &mm->tenants, i)) {
		h = add_tenant(tenant_at(mm, i), h);
		if (worth_at(mm, i))
			h = add_bytes(h, worth_at(mm, i), sizeof(struct worth));
	}
	return h;
}

static uint64_t add_caches(const struct mm *mm, uint64_t h)
{
	for (uint32_t i = pool_next(mm, &mm->caches, 0); i; i = pool_next(mm, &mm->caches, i)) {
		const struct cache *c = cache_at(mm, i);

		h = add(h, (uint64_t)pool_id(mm, &mm->caches, i) << 32 | c->tenant);
		h = add_bytes(h, c->desc.model_key, MM_KEY_BYTES);
		h = add(h, (uint64_t)c->nr_extents << 32 | c->nr_nodes);
	}
	for (uint32_t i = pool_next(mm, &mm->binds, 0); i; i = pool_next(mm, &mm->binds, i)) {
		const struct bind *b = bind_at(mm, i);

		h = add(h, (uint64_t)b->engine << 32 | b->cache);
		h = add_bytes(h, &b->policy, sizeof(b->policy));
		for (uint32_t g = 0; g < MM_MAX_GROUPS; g++) {
			const struct slab *s = &b->slab[g];

			h = add(add(h, s->promise), (uint64_t)s->nr_coming << 32 | s->pend_pages);
			h = add(add(h, s->vain_ns), s->nr_vain);
		}
	}
	return h;
}

static uint64_t add_queues(const struct mm *mm, uint64_t h)
{
	for (uint32_t p = mm->waiting.head; p; p = pending_at(mm, p)->link.next) {
		const struct pending *pe = pending_at(mm, p);

		h = add(h, (uint64_t)pe->bind << 32 | pe->group << 24 | pe->nr_pages);
		h = add(add(h, pe->deadline_ns), pe->cookie);
		h = add(h, (uint64_t)pe->bars << 32 | pe->own);
	}
	for (uint32_t p = mm->cancelled.head; p; p = pending_at(mm, p)->link.next)
		h = add(add(h, pending_at(mm, p)->cookie), pending_at(mm, p)->cache);
	h = add(h, mm->queue.start);
	for (uint32_t d = 0; d < mm->cfg.nr_devices; d++)
		h = add(add(h, mm->device[d].extent_bytes), mm->device[d].reserved_bytes);
	for (uint32_t i = 0; i < COMPACT_MOVES; i++) {
		const struct move *mv = &mm->compact.move[i];

		if (!mv->to)
			continue;
		h = add(h, (uint64_t)mv->from << 32 | mv->to);
		h = add(h, (uint64_t)mv->seq << 32 | mv->todo << 17 | mv->busy << 1 | mv->failed);
	}
	h = add(h, (uint64_t)mm->compact.want << 32 | mm->compact.at);
	h = add(h, (uint64_t)mm->compact.fill << 32 | mm->shrink.filling << 2 |
		   mm->shrink.kick << 1 | mm->shrink.hungry);
	h = add(add(h, mm->shrink.next_ns), (uint64_t)mm->shrink.hand << 32 | mm->shrink.at);
	h = add_list(add(h, mm->compact.pack_ns), &mm->draining);
	return add_list(h, &mm->fx);
}

static uint64_t add_content(const struct mm *mm, uint64_t h)
{
	for (uint32_t i = pool_next(mm, &mm->nodes, 0); i; i = pool_next(mm, &mm->nodes, i)) {
		const struct node *n = node_at(mm, i);

		h = add(h, (uint64_t)n->cache << 32 | i);
		h = add(h, (uint64_t)n->parent << 32 | n->key);
		h = add(h, (uint64_t)n->pins << 32 | n->need);
		h = add(h, (uint64_t)n->queue.next << 32 | (uint32_t)n->hits << 24 |
			   (uint32_t)n->appended << 16 | (uint32_t)n->class << 12 |
			   (uint32_t)n->prio << 8 | n->dropped);
		h = add(h, (uint32_t)n->ttl << 8 | n->reuse);
		h = add_bytes(h, n->loc, sizeof(n->loc));
		h = add_bytes(h, node_tokens(mm, i), n->nr_tokens * 4);
	}
	for (uint32_t i = pool_next(mm, &mm->leases, 0); i; i = pool_next(mm, &mm->leases, i)) {
		const struct lease *l = lease_at(mm, i);

		h = add(h, (uint64_t)pool_id(mm, &mm->leases, i) << 32 | l->node);
		h = add_bytes(add(h, l->engine), l->drop, sizeof(l->drop));
	}
	for (uint32_t i = pool_next(mm, &mm->parks, 0); i; i = pool_next(mm, &mm->parks, i))
		h = add(h, (uint64_t)pool_id(mm, &mm->parks, i) << 32 | park_at(mm, i)->node);
	for (uint32_t i = pool_next(mm, &mm->keys, 0); i; i = pool_next(mm, &mm->keys, i))
		h = add_bytes(add(h, i), key_at(mm, i)->digest, MM_KEY_BYTES);
	return h;
}

uint64_t mm_digest(const struct mm *mm)
{
	uint64_t h = MM_MAGIC;

	for (uint32_t e = pool_next(mm, &mm->extents, 0); e; e = pool_next(mm, &mm->extents, e))
		h = add_extent(mm, h, e);
	h = add_engines(mm, h);
	h = add_caches(mm, h);
	h = add_queues(mm, h);
	h = workingset_digest(mm, h);
	return add_content(mm, h);
}
