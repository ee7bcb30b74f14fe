// SPDX-License-Identifier: Apache-2.0
/* hint - what an engine says of the future of its pages, and the pins it asks for; contracts in
 * kv/page.h and kv/seq.h
 *
 * A pin is a lease. It belongs to the cache, since it outlives the sequence it was asked through;
 * the id of its last page says whose beginning it is, for a leased page keeps its id.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "seq_impl.h"

struct hint_pin {
	uint32_t lease;
	uint32_t page, group; /* the last one of its chain */
	uint64_t id;
};

static int check(const struct kv_hint *h)
{
	if (!h)
		return err_set(-EINVAL, "hint: NULL");
	if (h->priority > KV_PRIORITY_HIGH)
		return err_set(-EINVAL, "hint: priority %u: normal, low and high are 0, 1 and 2",
			       h->priority);
	return 0;
}

/* The ABI counts from low to high. */
static uint32_t rank_of(uint32_t priority)
{
	static const uint32_t rank[] = {
		[KV_PRIORITY_LOW] = 0, [KV_PRIORITY_NORMAL] = 1, [KV_PRIORITY_HIGH] = 2
	};

	return rank[priority];
}

static int send_hint(struct kv_cache *c, uint32_t lease, struct seq_range pages,
		     const struct kv_hint *h)
{
	struct call call;
	int rc = call_begin(c->kv, &call, KV_OP_HINT, sizeof(struct kv_hint_in), 0);

	if (rc)
		return rc;
	*(struct kv_hint_in *)call.in = (struct kv_hint_in){
		.from_page = pages.first,
		.to_page = pages.nr ? pages.first + pages.nr : 0,
		.priority = rank_of(h->priority),
		.reuse_ms = h->reuse_ms,
		.ttl_ms = h->ttl_ms,
	};
	call.sqe.id = lease;
	rc = call_run(&call);
	call_end(&call);
	return rc;
}

int kv_lease_hint(struct kv_cache *c, uint32_t lease, uint32_t from_page, uint32_t to_page,
		  const struct kv_hint *hint)
{
	struct seq_range pages = { .first = from_page };
	int rc = check(hint);

	if (rc)
		return rc;
	if (hint->pin)
		return err_set(-EINVAL, "hint: a lease is a pin: keep it, or one of its own by "
					"kv_lease_dup()");
	if (to_page && to_page <= from_page)
		return err_set(-EINVAL, "hint: pages %u to %u are none", from_page, to_page);
	pages.nr = to_page ? to_page - from_page : 0;
	return send_hint(c, lease, pages, hint);
}

/* ---- pins ---------------------------------------------------------------------------------- */

static bool pin_covers(const struct kv_seq *s, struct seq_range pages, const struct hint_pin *p)
{
	return p->page >= pages.first && p->page - pages.first < pages.nr &&
	       s->group[p->group].ids[p->page] == p->id;
}

static void unpin(struct kv_seq *s, struct seq_range pages)
{
	struct kv_cache *c = s->cache;
	uint32_t i = 0;

	while (i < c->nr_pins) {
		uint32_t lease = c->pins[i].lease;

		if (!pin_covers(s, pages, &c->pins[i])) {
			i++;
			continue;
		}
		c->pins[i] = c->pins[--c->nr_pins];
		kv_unlease(c, 1, &lease);
	}
}

static int pin_room(struct kv_cache *c)
{
	uint32_t cap = c->cap_pins ? 2 * c->cap_pins : 8;
	struct hint_pin *pins;

	if (c->nr_pins < c->cap_pins)
		return 0;
	pins = reallocarray(c->pins, cap, sizeof(*pins));
	if (!pins)
		return err_set(-ENOMEM, "no memory for a pin");
	c->pins = pins;
	c->cap_pins = cap;
	return 0;
}

static int pin_make(struct kv_seq *s, uint32_t depth, struct hint_pin *p)
{
	uint32_t g = 0;
	int rc;

	p->page = depth - 1;
	while (g < s->nr_groups && !seq_pages_leased(s, g, p->page))
		g++;
	if (g == s->nr_groups)
		return err_set(-ENOENT, "pin: page %u was dropped from every group", p->page);
	p->group = g;
	p->id = s->group[g].ids[p->page];
	rc = pin_room(s->cache);
	return rc ? rc : seq_lease_dup(s, depth, &p->lease);
}

void hint_drop(struct kv_cache *c)
{
	while (c->nr_pins && !c->kv->dead)
		kv_unlease(c, 1, &c->pins[--c->nr_pins].lease);
	free(c->pins);
	c->pins = NULL;
	c->nr_pins = c->cap_pins = 0;
}

/* ---- sequences ----------------------------------------------------------------------------- */

static int published(const struct kv_seq *s, uint32_t from, uint32_t to, struct seq_range *pages)
{
	uint32_t end = seq_pages_of(s, to);

	if (from >= to || to > s->len)
		return err_set(-EINVAL, "hint: tokens %u to %u of a sequence of %u", from, to,
			       s->len);
	end = end < s->lease_pages ? end : s->lease_pages;
	pages->first = from / s->page_tokens;
	if (pages->first >= end)
		return err_set(-ENOENT,
			       "hint: no page of tokens %u to %u is in the cache yet: commit first",
			       from, to);
	pages->nr = end - pages->first;
	return 0;
}

/* The new pin takes the place of those that it covers, so a growing prefix costs one lease. */
static int hint_pages(struct kv_seq *s, struct seq_range pages, const struct kv_hint *hint)
{
	struct hint_pin pin = { .lease = 0 };
	int rc = hint->pin ? pin_make(s, pages.first + pages.nr, &pin) : 0;

	if (!rc)
		rc = send_hint(s->cache, s->lease, pages, hint);
	if (rc) {
		if (pin.lease && !s->cache->kv->dead)
			kv_unlease(s->cache, 1, &pin.lease);
		return rc;
	}
	unpin(s, pages);
	if (hint->pin)
		s->cache->pins[s->cache->nr_pins++] = pin;
	return 0;
}

int kv_seq_hint(struct kv_seq *s, uint32_t from_token, uint32_t to_token,
		const struct kv_hint *hint)
{
	struct seq_range pages = { 0, 0 };
	int rc = seq_enter(s);

	if (rc)
		return rc;
	rc = check(hint);
	if (!rc)
		rc = published(s, from_token, to_token ? to_token : s->len, &pages);
	if (!rc)
		rc = hint_pages(s, pages, hint);
	seq_leave(s);
	return rc;
}
