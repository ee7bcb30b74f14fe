// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>

#include "sim.h"

#define TICK_ROUNDS 10000

struct call *call_new(struct sim *s, enum mm_op op)
{
	struct call *free = NULL;

	for (uint32_t i = 0; i < SIM_CALLS && !free; i++)
		if (!s->call[i].used)
			free = &s->call[i];
	/* Those of fenced engines may never be answered. */
	for (uint32_t i = 0; i < SIM_CALLS && !free; i++)
		if (s->engine[s->call[i].engine].fenced)
			free = &s->call[i];
	SIM_CHECK(s, free, "%u requests wait for a reply", SIM_CALLS);
	memset(free, 0, sizeof(*free));
	free->req.op = op;
	return free;
}

/* Only these may have to wait for an effect or for somebody else. */
static bool may_wait(enum mm_op op)
{
	return op == MM_ALLOC || op == MM_RESERVE;
}

static void say_tokens(const struct call *c, uint32_t nr, uint32_t nr_keys, uint32_t nr_pages)
{
	const uint32_t *tokens =
		c->req.op == MM_LOOKUP ? c->req.lookup.tokens : c->req.commit.tokens;

	printf("           tokens");
	for (uint32_t i = 0; i < nr && i < SIM_TOKENS; i++)
		printf(" %u", tokens[i]);
	for (uint32_t i = 0; i < nr_keys; i++)
		printf(" key[%u]=%u", c->keys[i].page, c->seq.key[c->keys[i].page]);
	for (uint32_t i = 0; i < nr_pages; i++)
		printf(" %llx", (unsigned long long)c->pages[i]);
	putchar('\n');
}

static void say_desc(const struct mm_cache_desc *d)
{
	printf("           page_tokens %u shards %u model %02x%02x%02x", d->page_tokens,
	       d->nr_shards, d->model_key[31], d->model_key[30], d->model_key[29]);
	for (uint32_t g = 0; g < d->nr_groups && g < MM_MAX_GROUPS; g++)
		printf(" group %u kind %u window %u opaque %u", g, d->group[g].kind,
		       d->group[g].window_tokens, d->group[g].opaque);
	putchar('\n');
}

static void say_request(struct sim *s, const struct call *c)
{
	const struct mm_request *r = &c->req;
	const struct cache *k = &s->cache[c->cache];

	sim_say(s, "op %d cookie %llu engine %x member %x cache %x group %u flags %x expect %d",
		r->op, (unsigned long long)r->cookie, r->engine, r->member, r->cache, r->group,
		r->flags, c->expect);
	if (r->op == MM_LOOKUP)
		say_tokens(c, r->lookup.nr_tokens, r->lookup.nr_keys, 0);
	if (r->op == MM_COMMIT) {
		printf("           lease %x pages %u\n", r->commit.lease, r->commit.nr_pages);
		say_tokens(c, r->commit.nr_tokens, r->commit.nr_keys,
			   r->commit.nr_pages * k->desc.nr_groups);
	}
	if (r->op == MM_FREE)
		say_tokens(c, 0, 0, r->free.nr_pages);
	if (r->op == MM_CACHE_OPEN)
		say_desc(&c->desc);
	if (r->op == MM_LEASE_DUP || r->op == MM_DROP_HEAD)
		printf("           lease %x depth %u\n", r->lease.lease, r->lease.depth_pages);
	if (r->op == MM_PARK || r->op == MM_RESUME || r->op == MM_UNPARK)
		printf("           lease %x park %x\n", r->park.lease, r->park.park);
	for (uint32_t i = 0; r->op == MM_UNLEASE && i < r->unlease.nr_leases; i++)
		printf("           lease %x\n", r->unlease.leases[i]);
	if (r->op == MM_ALLOC)
		printf("           pages %u deadline %llu now %llu\n", r->alloc.nr_pages,
		       (unsigned long long)r->alloc.deadline_ns, (unsigned long long)s->now_ns);
}

static void say_reply(struct sim *s, const struct mm_reply *r, uint64_t nr)
{
	sim_say(s,
		"  reply op %d cookie %llu: %d reason %d (%llu, %llu) engine %x member %x cache %x "
		"pages %u lease %x park %x tail %u tail_lease %x adopted %d evicts %llu",
		r->op, (unsigned long long)r->cookie, r->result, r->reason,
		(unsigned long long)r->a, (unsigned long long)r->b, r->engine, r->member, r->cache,
		r->nr_pages, r->lease, r->park, r->tail_tokens, r->tail_lease, r->tail_adopted,
		(unsigned long long)s->evicts);
	printf("          ");
	for (uint64_t i = 0; i < nr; i++)
		printf(" %llx", (unsigned long long)r->pages[i]);
	for (uint32_t g = 0; r->tail_tokens && g < r->nr_groups; g++)
		printf(" tail[%u] %llx", g, (unsigned long long)r->tail_pages[g]);
	putchar('\n');
}

int call_submit(struct sim *s, struct call *c)
{
	struct mm_request *r = &c->req;
	uint64_t cookie;
	int rc;

	c->expect = oracle_expect(s, c);
	c->evicts_before = s->evicts;
	cookie = r->cookie = ++s->next_cookie;
	/* What is due by now is done in any call, whatever becomes of the request. */
	c->have_before = (c->expect == EXPECT_FAIL ||
			  rng_below(s, r->op == MM_COMMIT ? 4 : 16) == 0) &&
			 mm_next_deadline(s->mm) > s->now_ns;
	if (s->opt->verbose)
		say_request(s, c);
	for (int try = 0;; try++) {
		if (c->have_before)
			c->digest_before = mm_digest(s->mm);
		c->used = true;
		rc = mm_submit(s->mm, r, world_clock(s));
		if (rc != -EAGAIN)
			break;
		c->used = false;
		SIM_CHECK(s, !c->have_before || mm_digest(s->mm) == c->digest_before,
			  "-EAGAIN changed something");
		if (try == 2)
			return rc;
		call_drain(s);
		effects_drain(s);
	}
	SIM_CHECK(s, !rc, "mm_submit returned %d", rc);
	call_drain(s);
	if (!c->used || r->cookie != cookie)
		return 0;
	SIM_CHECK(s, may_wait(r->op), "op %d got no reply at once", r->op);
	s->sum.deferred++;
	return 1;
}

static uint64_t fold(uint64_t h, uint64_t v)
{
	return (h ^ v) * 0x9e3779b97f4a7c15ull + (h >> 29);
}

static void trail_reply(struct sim *s, const struct mm_reply *r, uint32_t nr)
{
	uint64_t h = s->trail;

	h = fold(h, r->cookie);
	h = fold(h, (uint64_t)(int64_t)r->result + r->reason);
	h = fold(h, r->a ^ r->b << 32 ^ r->b >> 32);
	h = fold(h, (uint64_t)r->engine << 32 | r->member);
	h = fold(h, (uint64_t)r->lease << 32 | r->park);
	h = fold(h, (uint64_t)r->tail_tokens << 32 | r->tail_lease);
	for (uint32_t i = 0; i < nr; i++)
		h = fold(h, r->pages[i]);
	s->trail = h;
}

static void take_reply(struct sim *s, const struct mm_reply *reply)
{
	struct mm_reply r = *reply;
	struct call *c = NULL;
	uint64_t nr = r.op == MM_ALLOC ? r.nr_pages : (uint64_t)r.nr_pages * r.nr_groups;

	if (r.result)
		nr = 0;
	SIM_CHECK(s, nr <= sizeof(s->reply_pages) / sizeof(*s->reply_pages),
		  "a reply names %llu pages", (unsigned long long)nr);
	SIM_CHECK(s, !nr || r.pages, "a reply of %llu pages has no array", (unsigned long long)nr);
	if (nr) {	/* else the array, if any, is not of pages */
		memcpy(s->reply_pages, r.pages, nr * sizeof(*r.pages));
		r.pages = s->reply_pages;
	}
	trail_reply(s, &r, (uint32_t)nr);
	for (uint32_t i = 0; i < SIM_CALLS && !c; i++)
		if (s->call[i].used && s->call[i].req.cookie == r.cookie)
			c = &s->call[i];
	if (s->opt->verbose)
		say_reply(s, &r, nr);
	for (uint64_t i = 0; i < nr && r.op != MM_ALLOC; i++)
		model_name(s, r.pages[i]);
	for (uint32_t g = 0; g < r.nr_groups && !r.result && r.tail_tokens && !r.tail_adopted; g++)
		model_name(s, r.tail_pages[g]);
	if (c && s->canary) {
		if (canary_swallow(s, c, &r))
			return;
		canary_reply(s, c, &r, s->reply_pages);
	}
	oracle_reply(s, &r);
	if (s->repeat) {
		s->repeat = false;
		oracle_reply(s, &r);
	}
}

/* Engines that mm has killed in this call: what it says to them was said before, to the others
 * perhaps afterwards. */
static uint32_t find_killed(struct sim *s, uint32_t *killed)
{
	uint64_t kills = mm_vmstat(s->mm)->oom_kills;
	struct mm_engine_info info;
	uint32_t nr = 0;

	if (kills == s->sum.kills)
		return 0;
	for (uint32_t i = 0; i < s->nr_live; i++) {
		struct engine *e = &s->engine[s->live[i]];

		if (e->fenced || mm_engine_info(s->mm, e->id, &info) || !info.fenced)
			continue;
		budget_killed(s, e);
		killed[nr++] = s->live[i];
	}
	s->sum.kills += nr;
	SIM_CHECK(s, kills == s->sum.kills, "%llu engines killed, %llu known",
		  (unsigned long long)kills, (unsigned long long)s->sum.kills);
	return nr;
}

static bool is_to(struct sim *s, const struct mm_reply *r, const uint32_t *killed, uint32_t nr)
{
	for (uint32_t i = 0; i < SIM_CALLS; i++)
		for (uint32_t k = 0; s->call[i].used && k < nr; k++)
			if (s->call[i].req.cookie == r->cookie && s->call[i].engine == killed[k])
				return true;
	return false;
}

/* With nr engines killed: first what was said to them (before), then the rest. */
static void take_replies(struct sim *s, const uint32_t *killed, uint32_t nr)
{
	static struct mm_reply all[SIM_CALLS];
	static bool first[SIM_CALLS];
	uint32_t n = 0;

	while (n < SIM_CALLS && mm_next_reply(s->mm, &all[n])) {
		first[n] = is_to(s, &all[n], killed, nr);
		n++;
	}
	SIM_CHECK(s, n < SIM_CALLS, "replies without end");
	for (uint32_t i = 0; i < n; i++)
		if (first[i])
			take_reply(s, &all[i]);
	for (uint32_t k = 0; k < nr; k++)
		model_fence(s, &s->engine[killed[k]]);
	for (uint32_t i = 0; i < n; i++)
		if (!first[i])
			take_reply(s, &all[i]);
}

void call_drain(struct sim *s)
{
	uint32_t killed[SIM_MEMBERS * 4], nr = find_killed(s, killed);
	struct mm_reply r;

	s->evicts = mm_vmstat(s->mm)->pages_evict;
	if (nr)
		take_replies(s, killed, nr);
	while (mm_next_reply(s->mm, &r))
		take_reply(s, &r);
}

/* After its deadline an allocation has an answer; without one it waits for its own creates only. */
static void check_waiting(struct sim *s)
{
	for (uint32_t i = 0; i < SIM_CALLS; i++) {
		struct call *c = &s->call[i];

		if (!c->used || c->req.op != MM_ALLOC || s->engine[c->engine].fenced)
			continue;
		SIM_CHECK(s, c->req.alloc.deadline_ns > s->now_ns || effects_coming(s),
			  "allocation %llu waits beyond its deadline %llu",
			  (unsigned long long)c->req.cookie,
			  (unsigned long long)c->req.alloc.deadline_ns);
	}
}

void call_tick(struct sim *s, unsigned int budget)
{
	for (uint32_t i = 0; i < TICK_ROUNDS; i++) {
		mm_tick(s->mm, s->now_ns, budget);
		call_drain(s);
		effects_drain(s);
		if (mm_next_deadline(s->mm) > s->now_ns) {
			check_waiting(s);
			return;
		}
	}
	sim_fail(s, "mm_next_deadline stays at %llu, now is %llu",
		 (unsigned long long)mm_next_deadline(s->mm), (unsigned long long)s->now_ns);
}
