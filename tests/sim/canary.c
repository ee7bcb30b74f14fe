// SPDX-License-Identifier: Apache-2.0
/* Lies told to the oracle, one a run: a test of the test. */
#include <errno.h>
#include <string.h>

#include "sim.h"

#define QUIET_STEPS 50 /* let the run get going first */

const char *const canary_name[CANARY_NR] = {
	"none",		"swap-pages",	"grant-held",  "grant-old",    "grant-twice",
	"grant-cached", "foreign-page", "short-grant", "writable",     "hit-short",
	"tail-long",	"tail-none",	"commit-page", "commit-other", "lease-twice",
	"swallow",	"repeat",	"refuse",      "accept",       "create-big",
	"create-twice", "destroy-live", "scrub-live",  "lost-destroy", "meminfo",
	"vmstat",	"engine-info",	"dirty-create", "overwrite",	"stale-zeros",
	"lost-scrub",	"charge",	"over-max",	"promised",	"bad-copy",
	"kill",		"psi",
};

static bool ready(const struct sim *s)
{
	return s->canary && !s->canary_fired && s->step >= QUIET_STEPS && !s->stopping;
}

/* Some page of a state other than those named by the reply; 0: none. */
static uint32_t some_page(struct sim *s, enum page_state state, uint32_t not_engine)
{
	for (uint32_t p = s->nr_pages; p > 1; p--)
		if (s->page[p - 1].state == state &&
		    (!not_engine || s->page[p - 1].engine != not_engine))
			return p - 1;
	return 0;
}

static uint64_t id_of(struct sim *s, uint32_t page, uint32_t gen_step_by)
{
	uint64_t id = s->page[page].id;

	return page ? (id & ~0xffffffull) | ((id + gen_step_by) & 0xffffff) : 0;
}

static bool lie_alloc(struct sim *s, const struct call *c, struct mm_reply *r, uint64_t *pages)
{
	uint32_t p = 0;

	switch (s->canary) {
	case CANARY_GRANT_HELD:
		p = some_page(s, PAGE_HELD, 0);
		pages[0] = p ? id_of(s, p, 1000) : pages[0];
		return p;
	case CANARY_GRANT_OLD:
		p = some_page(s, PAGE_GONE, 0);
		pages[0] = p ? id_of(s, p, 0) : pages[0];
		return p;
	case CANARY_GRANT_TWICE:
		if (r->nr_pages > 1)
			pages[1] = pages[0];
		return r->nr_pages > 1;
	case CANARY_GRANT_CACHED:
		for (uint32_t i = 0; i < SIM_SLOTS && !p; i++)
			if (s->lease[i].id && s->lease[i].nr_pins)
				p = s->node[s->lease[i].pin[0].node].page[s->lease[i].pin[0].group];
		pages[0] = p ? id_of(s, p, 1000) : pages[0];
		return p;
	case CANARY_FOREIGN_PAGE:
		p = some_page(s, PAGE_GONE, c->engine);
		for (; p > 0; p--) {
			uint32_t x = mm_page_extent(s->page[p].id);
			uint32_t w = s->extent[x].writer;

			if (s->page[p].state == PAGE_GONE && w && w != c->engine &&
			    !s->engine[w].fenced && s->extent[x].cache == s->page[p].cache &&
			    model_has_open(s, &s->engine[w], &s->cache[s->page[p].cache]))
				break;
		}
		pages[0] = p ? id_of(s, p, 1000) : pages[0];
		return p;
	default:
		r->nr_pages--;
		return true;
	}
}

static bool sure_page(struct sim *s, uint64_t id)
{
	struct page *p = model_page(s, id);

	return p && p->state == PAGE_CACHED && tree_sure(s, p->node, p->group);
}

static bool lie_lookup(struct sim *s, struct mm_reply *r, uint64_t *pages)
{
	uint64_t id = pages[0];

	switch (s->canary) {
	case CANARY_SWAP_PAGES:
		if (r->nr_pages < 2 || !pages[0] || !pages[1])
			return false;
		pages[0] = pages[1];
		pages[1] = id;
		return true;
	case CANARY_HIT_SHORT:
		if (r->nr_groups != 1 || !r->nr_pages || r->tail_adopted ||
		    !sure_page(s, pages[r->nr_pages - 1]))
			return false;
		r->nr_pages--;
		r->tail_tokens = r->tail_lease = 0;
		return true;
	case CANARY_TAIL_LONG:
		if (!r->tail_tokens)
			return false;
		r->tail_tokens++;
		return true;
	default:
		if (!r->tail_tokens || r->nr_groups != 1 || r->tail_adopted ||
		    !sure_page(s, r->tail_pages[0]))
			return false;
		r->tail_tokens = r->tail_lease = 0;
		return true;
	}
}

static bool lie_commit(struct sim *s, const struct call *c, struct mm_reply *r, uint64_t *pages)
{
	uint32_t last = r->nr_pages * r->nr_groups - 1, p;

	switch (s->canary) {
	case CANARY_COMMIT_PAGE:
		p = some_page(s, PAGE_CACHED, 0);
		if (!p || !pages[0] || pages[0] == s->page[p].id)
			return false;
		pages[0] = s->page[p].id;
		return true;
	case CANARY_COMMIT_OTHER:
		if (!c->pages[last] || pages[last] == c->pages[last] || !sure_page(s, pages[last]))
			return false;
		pages[last] = c->pages[last];
		return true;
	default:
		for (uint32_t i = 0; i < SIM_SLOTS; i++)
			if (s->lease[i].id && s->lease[i].id != c->req.commit.lease) {
				r->lease = s->lease[i].id;
				return true;
			}
		return false;
	}
}

void canary_reply(struct sim *s, struct call *c, struct mm_reply *r, uint64_t *pages)
{
	bool fired = false;

	if (!ready(s))
		return;
	if (s->canary >= CANARY_GRANT_HELD && s->canary <= CANARY_SHORT_GRANT)
		fired = r->op == MM_ALLOC && !r->result && lie_alloc(s, c, r, pages);
	if (s->canary == CANARY_SWAP_PAGES || s->canary == CANARY_HIT_SHORT ||
	    s->canary == CANARY_TAIL_LONG || s->canary == CANARY_TAIL_NONE)
		fired = r->op == MM_LOOKUP && !r->result && lie_lookup(s, r, pages);
	if (s->canary == CANARY_COMMIT_PAGE || s->canary == CANARY_COMMIT_OTHER ||
	    s->canary == CANARY_LEASE_TWICE)
		fired = r->op == MM_COMMIT && !r->result && lie_commit(s, c, r, pages);
	if (s->canary == CANARY_WRITABLE && r->op == MM_IMPORT && !r->result &&
	    c->expect == EXPECT_OK) {
		r->writable = !r->writable;
		fired = true;
	}
	if (s->canary == CANARY_REPEAT)
		fired = s->repeat = true;
	if (s->canary == CANARY_REFUSE && c->expect == EXPECT_OK && !r->result) {
		r->result = -EINVAL;
		r->reason = MM_BAD_ARGUMENT;
		fired = true;
	}
	if (s->canary == CANARY_ACCEPT && c->expect == EXPECT_FAIL && r->result) {
		r->result = 0;
		fired = true;
	}
	s->canary_fired = fired;
}

/* A late refusal leaves no trace: whoever waits may wait as long as extents are being made. */
bool canary_swallow(struct sim *s, const struct call *c, const struct mm_reply *r)
{
	if (!ready(s) || s->canary != CANARY_SWALLOW || c->req.op == MM_FENCE ||
	    (c->req.op == MM_ALLOC && r->result))
		return false;
	s->canary_fired = true;
	return true;
}

void canary_effect(struct sim *s, struct mm_effect *e)
{
	uint32_t p = some_page(s, PAGE_HELD, 0);

	if (!ready(s))
		return;
	if (e->kind == MM_EFFECT_CREATE && s->canary == CANARY_CREATE_BIG) {
		e->bytes += s->cfg.device[e->device].extent_align;
		s->canary_fired = true;
	}
	if (e->kind == MM_EFFECT_CREATE && s->canary == CANARY_CREATE_TWICE && p) {
		e->extent = mm_page_extent(s->page[p].id);
		e->shard = 0;
		s->canary_fired = true;
	}
	if ((s->canary == CANARY_DESTROY_LIVE || s->canary == CANARY_SCRUB_LIVE) && p) {
		e->kind = s->canary == CANARY_SCRUB_LIVE ? MM_EFFECT_SCRUB : MM_EFFECT_DESTROY;
		e->extent = mm_page_extent(s->page[p].id);
		e->shard = 0;
		e->slot = mm_page_slot(s->page[p].id);
		e->nr_slots = 1;
		s->canary_fired = true;
	}
}

bool canary_lose(struct sim *s, enum canary which)
{
	if (s->canary != which || s->step < QUIET_STEPS || s->stopping)
		return false;
	if (s->canary_fired && which != CANARY_DIRTY_CREATE)
		return false;
	s->canary_fired = true;
	return true;
}

uint64_t canary_number(struct sim *s, enum canary which, uint64_t value)
{
	if (!ready(s) || s->canary != which)
		return value;
	s->canary_fired = true;
	return value + 64;
}
