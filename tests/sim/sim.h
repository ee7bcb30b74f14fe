/* SPDX-License-Identifier: Apache-2.0 */
/* sim - drives mm with seeded random requests and compares every answer with a naive model
 *
 * Model:      one struct sim is one run of one seed: a random config and the features that are on
 *             (world.c), a generator of requests (gen.c), an executor of effects (effects.c) on
 *             devices whose every page says who wrote what (memory.c), and the oracle: plain tables
 *             of what mm has said so far (model.c, tree.c), rules for each request (oracle.c), for
 *             each reply (reply.c, hit.c) and for the sums (totals.c). When faults have stopped
 *             everything must converge (end.c). Seeds are spread over processes (jobs.c).
 *
 *                gen --request--> mm --reply--> canary --> oracle
 *                                  ^--effect--> canary --> effects
 *
 * Invariants: the oracle knows mm.h and nothing of mm's insides. It learns of an eviction only from
 *             what mm answers, so a cached page is "surely there" when a live lease needs it, or
 *             when vmstat's pages_evict has not moved since mm last named the page.
 * Units:      pages, tokens, bytes; time in steps and ns.
 * Errors:     a broken rule prints the seed, the step and the rule, and ends the run.
 * See:        kvd/mm/mm.h, docs/testing.md.
 */
#ifndef SIM_H
#define SIM_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "mm.h"

#define SIM_GROUPS	3
#define SIM_SHARDS	2
#define SIM_PAGE_TOKENS	16
#define SIM_DEPTH	12		/* pages in a sequence */
#define SIM_TOKENS	((SIM_DEPTH + 1) * SIM_PAGE_TOKENS)
#define SIM_BATCH	64		/* room in request arrays */
#define SIM_EXTENTS	1024		/* extent ids the model can follow */
#define SIM_SERIALS	4096		/* engines, members, caches in one run */
#define SIM_MEMBERS	12		/* of one engine */
#define SIM_OPENS	6		/* caches one engine opens */
#define SIM_SLOTS	256		/* leases, parks alive */
#define SIM_PINS	(SIM_GROUPS * (SIM_DEPTH + 2))
#define SIM_KEYS	5		/* extra keys; 0 is none */
#define SIM_TENANTS	8		/* numbers of tenants that may come up */
#define SIM_FIRST_TENANT 1000
#define SIM_DOCS	10
#define SIM_MODELS	3
#define SIM_CALLS	256		/* requests not yet answered */
#define SIM_EFFECTS	1024
#define SIM_STALE	16
#define SIM_EVENTS_MAX	64

struct sim;

/* ---- the model's tables; index 0 means none -------------------------------------- */

/* DROPPED: was cached in a cache that is no more. */
enum page_state {
	PAGE_GONE,
	PAGE_HELD,
	PAGE_CACHED,
	PAGE_QUARANTINED,
	PAGE_DROPPED,
	PAGE_STATES,
};

struct page {			/* one grant of one frame, kept for the whole run */
	uint64_t id;
	enum page_state state;
	uint32_t cache, group;
	uint32_t engine;	/* HELD, QUARANTINED: whose */
	uint32_t pos;		/* HELD: index in the engine's list */
	uint32_t node;		/* CACHED: the content */
	bool unnamed;		/* moved here: its generation is not known yet, id has 0 */
};

struct frame {
	uint32_t page;		/* last grant */
	uint32_t owner;		/* engine of the last grant */
	uint32_t scrubbed;	/* shards scrubbed since */
};

struct import {
	uint32_t member, shard;
	bool writable;
};

/* LEFT: failed or destroyed, while other shards of the extent are still there. */
/* DOOMED: its destruction failed; it must be tried again. */
enum shard_state {
	SHARD_NONE, SHARD_LEFT, SHARD_CREATING, SHARD_LIVE, SHARD_DESTROYING, SHARD_DOOMED,
};

struct cell {			/* the bytes of a page of a shard: who wrote what */
	uint32_t writer;	/* engine; 0: zeros, as from the device or a scrub */
	uint64_t what;
};

struct shard {
	enum shard_state state;
	uint32_t device;
	uint64_t bytes, page_bytes;
	struct cell *mem;	/* from the creation on */
	uint32_t nr_mem;
};

struct extent {
	struct shard shard[MM_MAX_SHARDS];
	uint32_t cache, group;	/* known from the first grant on */
	uint32_t writer;	/* engine */
	uint32_t nr_slots;
	struct frame *frame;
	struct import *import;
	uint32_t nr_imports, max_imports;
};

struct node {			/* content: one page of one sequence */
	uint32_t cache, parent, child, next;
	uint32_t depth, nr_tokens, key;
	uint64_t what;		/* stands for the content: of this page and all before it */
	uint32_t tokens[SIM_PAGE_TOKENS];
	uint32_t page[SIM_GROUPS];
	uint32_t pins[SIM_GROUPS];	/* live leases that need it */
	uint64_t stamp[SIM_GROUPS];	/* pages_evict when mm last named it */
	bool live;
};

struct cache {
	uint32_t id, uid, model, owner, root, nr_engines;
	bool shared, dead;
	struct mm_cache_desc desc;
	struct mm_group_geom geom[SIM_GROUPS];
	uint32_t nr[PAGE_STATES][SIM_GROUPS];
	uint32_t nr_pinned[SIM_GROUPS];
	uint64_t lookup_tokens, hit_tokens;
	bool plain;		/* full groups only */
	bool opaque;		/* some group is */
	uint32_t full;		/* a full group */
};

struct member {
	uint32_t id, engine;
	bool alive, notified;
	bool lazy;		/* answers RETIRE and VACATE late or never */
};

struct engine {
	uint32_t id, uid;
	bool fenced, gone, killed;
	uint64_t dies_step;	/* killed: when its processes are gone */
	uint32_t nr_members, nr_alive, member[SIM_MEMBERS];
	uint32_t nr_opens, open[SIM_OPENS];
	uint32_t *held, nr_held, max_held;	/* quarantined ones once fenced */
	uint64_t allocs, frees, commits, lookup_tokens, hit_tokens;
	uint32_t nr_leases, nr_parks;
	uint64_t reserved[MM_MAX_DEVICES], reserved_for[MM_NR_RESERVES][MM_MAX_DEVICES];
	struct { uint32_t cache, min_pages; } promise[SIM_OPENS];
};

struct tenant {
	struct mm_limits limit[MM_MAX_DEVICES];
	uint64_t ceiling[MM_MAX_DEVICES];	/* its charge may not be above */
	uint32_t oom_action;
	bool configured, seen;
	bool limited;		/* has ever been */
};

struct lease {
	uint32_t id, engine, cache, node;
	uint32_t nr_pins;
	struct { uint32_t node, group; } pin[SIM_PINS];
};

struct seq {			/* a sequence: tokens, and the extra key of each page */
	uint32_t nr_tokens;
	uint32_t tokens[SIM_TOKENS];
	uint32_t key[SIM_DEPTH + 1];
};

struct park {
	uint32_t id, engine, cache;
	uint64_t stamp;		/* evictions and adoptions before it */
	struct seq seq;
};

/* ---- a request on its way -------------------------------------------------------- */

enum expect {
	EXPECT_ANY,		/* not specified: either outcome, checked if it succeeds */
	EXPECT_OK,		/* nothing may refuse it */
	EXPECT_ROOM,		/* only a full pool or table may refuse it */
	EXPECT_FAIL,
};

struct call {
	bool used;
	enum expect expect;
	struct mm_request req;
	uint32_t engine, cache;	/* indices in the model, 0: unknown */
	bool have_before;
	bool cancelled;		/* ALLOC: its cache was closed while it waited */
	uint64_t digest_before, evicts_before;
	struct seq seq;		/* LOOKUP, COMMIT: from the root */
	uint64_t pages[SIM_GROUPS * SIM_BATCH];
	uint32_t ids[SIM_BATCH];
	struct mm_page_key keys[SIM_DEPTH + 1];
	struct mm_cache_desc desc;
};

struct todo {			/* an effect mm waits for */
	struct mm_effect effect;
	uint64_t due_step;
	uint32_t page;		/* MOVE: what stood at its source */
};

struct totals {			/* to hold against mm_vmstat */
	uint64_t granted, freed, committed, dup_nodes, dup_pages, adopted, adopted_pages;
	uint64_t quarantined, lookups, lookup_tokens, resumes, resume_tokens;
	uint64_t hit_tokens, hit_pages, tail_hits;
	uint64_t leases_new, leases_moved;
	uint64_t engines, fences, extents, destroys, evicted, dropped, refused, scrubs, imports;
	uint64_t deferred, events, failed_creates, short_hits, orphans;
	uint64_t promised, redeemed;
	uint64_t failed_destroys, failed_scrubs, reads, scribbles, jumps, backward;
	uint64_t given_back, cancelled;
	uint64_t kills, moves, moved, failed_moves, vacates, vacated;
};

enum sim_op {
	SIM_ATTACH, SIM_MEMBER, SIM_FENCE, SIM_GONE, SIM_OPEN, SIM_CLOSE, SIM_IMPORT, SIM_UNIMPORT,
	SIM_ALLOC, SIM_FREE, SIM_LOOKUP, SIM_COMMIT, SIM_DUP, SIM_UNLEASE, SIM_PARK, SIM_RESUME,
	SIM_UNPARK, SIM_DROP_HEAD, SIM_RESERVE, SIM_EVENTS, SIM_ACK, SIM_STAT, SIM_COMPLETE,
	SIM_GARBAGE, SIM_READ, SIM_SCRIBBLE,
	SIM_TENANT_SET, SIM_HINT, SIM_NR_OPS,
};

/* A seed draws which are on. Each is a bit of --off. */
#define SIM_FEATURES(X) \
	X(CORE) X(MEMBERS) X(DEATH) X(CLOSE) X(MAP) X(LOOKUP) X(COMMIT) X(DUP) X(PARK) \
	X(DROP_HEAD) X(RESERVE) X(HOSTILE) X(KEYS) X(ADOPT) X(PARTIAL) X(HYBRID) X(SHARDS) \
	X(PRIVATE) X(DEADLINE) X(LAZY) X(SLOW) X(HOLD) X(FAIL_CREATE) X(FAIL_DESTROY) \
	X(FAIL_SCRUB) X(JUMP) X(BACKWARD) X(SCRUB) X(SMALL) \
	X(LIMITS) X(PROMISE) X(FAIL_MOVE) X(WMARK) X(KILL) \
	X(HINT) X(SHADOWS) X(GITTINS)

enum sim_feature {
#define X(name) FEAT_##name,
	SIM_FEATURES(X)
#undef X
	FEAT_NR,
};

struct sim_op_desc {
	const char *name;
	uint32_t weight;
	enum sim_feature feature;
	void (*gen)(struct sim *);
};

enum canary {
	CANARY_NONE, CANARY_SWAP_PAGES, CANARY_GRANT_HELD, CANARY_GRANT_OLD, CANARY_GRANT_TWICE,
	CANARY_GRANT_CACHED, CANARY_FOREIGN_PAGE, CANARY_SHORT_GRANT, CANARY_WRITABLE,
	CANARY_HIT_SHORT, CANARY_TAIL_LONG, CANARY_TAIL_NONE, CANARY_COMMIT_PAGE,
	CANARY_COMMIT_OTHER, CANARY_LEASE_TWICE, CANARY_SWALLOW, CANARY_REPEAT, CANARY_REFUSE,
	CANARY_ACCEPT, CANARY_CREATE_BIG, CANARY_CREATE_TWICE, CANARY_DESTROY_LIVE,
	CANARY_SCRUB_LIVE, CANARY_LOST_DESTROY, CANARY_MEMINFO, CANARY_VMSTAT, CANARY_ENGINE_INFO,
	CANARY_DIRTY_CREATE, CANARY_OVERWRITE, CANARY_STALE_ZEROS, CANARY_LOST_SCRUB,
	CANARY_CHARGE, CANARY_OVER_MAX, CANARY_PROMISED, CANARY_BAD_COPY, CANARY_KILL, CANARY_PSI,
	CANARY_NR,
};

struct sim_options {
	uint64_t first_seed, last_seed, nr_ops, check_every;
	bool verbose, canary, once, stop, progress;
	uint32_t jobs;
	const char *resume;	/* file of what is done */
	uint64_t without;	/* operations left out, bits of enum sim_op */
	uint64_t off;		/* features left out, bits of enum sim_feature */
};

struct world {			/* what the seed drew */
	uint64_t features;
	uint32_t weight[SIM_NR_OPS], weights;
	uint32_t nr_tenants, nr_models, page_tokens, alphabet;
	struct mm_cache_desc model[SIM_MODELS];
	uint32_t hostile_permille, lazy_percent, hold_effects_percent;
	uint32_t fail_create_permille, fail_destroy_permille, fail_scrub_permille;
	uint32_t jump_permille, backward_permille, private_percent, deadline_percent;
	uint32_t unlimited_percent, promise_percent, kill_percent;
	uint32_t max_delay_steps, max_engines, max_held, fail_move_permille;
	uint32_t adopt_percent, partial_percent, key_percent;
	uint64_t max_step_ns;
	struct seq doc[SIM_DOCS];
};

struct sim {
	const struct sim_options *opt;
	uint64_t seed, rng, now_ns;
	uint64_t step, trail;	/* trail: hash of all replies and effects */
	struct mm_config cfg;
	struct mm *mm;
	struct world world;

	struct page *page;
	uint32_t nr_pages, max_pages;
	uint32_t *bucket, nr_buckets;
	struct node *node;
	uint32_t nr_nodes, max_nodes, free_node;
	struct extent extent[SIM_EXTENTS];
	uint32_t top_extent;
	struct engine engine[SIM_SERIALS];
	struct member member[SIM_SERIALS];
	struct cache cache[SIM_SERIALS];
	uint32_t nr_engines, nr_members, nr_caches;
	struct tenant tenant[SIM_TENANTS];
	uint32_t live[SIM_SERIALS], nr_live;	/* engines not gone */
	struct lease lease[SIM_SLOTS];
	struct park park[SIM_SLOTS];
	uint32_t stale_engine[SIM_STALE], stale_member[SIM_STALE], stale_cache[SIM_STALE];
	uint32_t stale_lease[SIM_STALE], stale_park[SIM_STALE];
	uint64_t stale_effect[SIM_STALE];
	uint32_t nr_stale;

	struct call call[SIM_CALLS];
	uint64_t next_cookie;
	struct todo todo[SIM_EFFECTS];
	uint32_t nr_todo, nr_doomed;
	uint64_t evicts;		/* mm's pages_evict, as of the reply being looked at */
	struct totals sum;
	uint64_t late_reserved[MM_MAX_DEVICES];	/* of engines gone, perhaps not yet given back */
	uint64_t op_ok[MM_NR_OPS], op_err[MM_NR_OPS];

	enum canary canary;
	bool canary_fired, stopping;
	enum mm_reason last_reason;	/* of a refusal */
	struct mm_reply last_reply;	/* to EVENTS; its events below */
	struct mm_event events[SIM_EVENTS_MAX];
	bool repeat;
	uint64_t reply_pages[SIM_GROUPS * 4096];
	jmp_buf failed;
	char why[512];
};

struct coverage {
	struct totals sum;
	uint64_t ok[MM_NR_OPS], err[MM_NR_OPS], seeds, failed, steps, evicts;
	uint64_t trail;		/* sum over seeds: of all they were told */
};

/* run.c: one seed, twice; a failing one is shrunk and printed */
struct sim *run_start(void);
bool run_seed_twice(struct sim *, const struct sim_options *, uint64_t seed, struct coverage *);
int run_canaries(struct sim *, const struct sim_options *);

/* jobs.c: a range of seeds over processes */
int jobs_run(struct sim *, const struct sim_options *);

void sim_fail(struct sim *, const char *fmt, ...) __attribute__((noreturn, format(printf, 2, 3)));
void sim_say(struct sim *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define SIM_CHECK(s, cond, ...) do { if (!(cond)) sim_fail((s), __VA_ARGS__); } while (0)

/* world.c: random numbers, and everything a seed draws before the first step */
uint64_t rng_next(struct sim *);
uint32_t rng_below(struct sim *, uint32_t n);
uint32_t rng_range(struct sim *, uint32_t lo, uint32_t hi);	/* [lo, hi] */
bool rng_permille(struct sim *, uint32_t permille);
bool rng_percent(struct sim *, uint32_t percent);
uint64_t world_clock(struct sim *);	/* now, or a little earlier: the caller's clock may lie */
void world_draw(struct sim *);
void world_key(uint32_t key, uint8_t digest[MM_KEY_BYTES]);
void world_seq(struct sim *, struct seq *);	/* likely to share a prefix with others */
void world_extend(struct sim *, struct seq *, uint32_t nr_tokens);

/* model.c: the tables and their primitive steps */
struct page *model_page(struct sim *, uint64_t id);	/* NULL: never granted */
void model_moved(struct sim *, const struct mm_effect *, uint32_t page);
void model_name(struct sim *, uint64_t id);		/* perhaps of a page that was moved */
struct engine *model_engine(struct sim *, uint32_t id);	/* NULL: none alive */
struct member *model_member(struct sim *, uint32_t id);
struct cache *model_cache(struct sim *, uint32_t id);
struct lease *model_lease(struct sim *, uint32_t id);
struct park *model_park(struct sim *, uint32_t id);
bool model_has_open(const struct sim *, const struct engine *, const struct cache *);
uint32_t model_engine_index(const struct sim *, const struct engine *);
uint32_t model_cache_index(const struct sim *, const struct cache *);
struct extent *model_extent(struct sim *, uint32_t extent);
bool model_extent_whole(const struct extent *);		/* every shard it has is live */
bool model_extent_idle(const struct extent *);		/* no shard exists */
struct import *model_import_find(struct extent *, uint32_t member, uint32_t shard);
void model_import_add(struct sim *, uint32_t extent, uint32_t member, uint32_t shard,
		      bool writable);
void model_import_del(struct extent *, struct import *);
void model_claim(struct sim *, uint32_t extent, uint32_t engine);	/* it writes here now */
void model_grant(struct sim *, uint32_t engine, uint32_t cache, uint32_t group, uint64_t id);
void model_release(struct sim *, struct page *);	/* HELD -> GONE */
void model_publish(struct sim *, struct page *, uint32_t node);
void model_forget(struct sim *, struct page *);		/* CACHED -> GONE, evicted */
void model_fence(struct sim *, struct engine *);
void model_engine_gone(struct sim *, struct engine *);
void model_cache_drop(struct sim *, struct cache *);
void model_stale(struct sim *, uint32_t *ring, uint32_t id);
void model_dump(struct sim *);

/* tree.c: content and leases */
uint32_t tree_new(struct sim *, uint32_t cache, uint32_t parent, const uint32_t *tokens,
		  uint32_t nr_tokens, uint32_t key);
uint32_t tree_child(struct sim *, uint32_t parent, const uint32_t *tokens, uint32_t nr_tokens,
		    uint32_t key);			/* exactly these; 0: none */
uint32_t tree_prefix(const struct node *, const uint32_t *tokens, uint32_t nr_tokens);
void tree_forget(struct sim *, uint32_t node, enum page_state); /* and everything below it */
void tree_remove(struct sim *, uint32_t node);		/* no page left */
bool tree_sure(const struct sim *, uint32_t node, uint32_t group);
bool tree_pinned(const struct sim *, uint32_t node);
void tree_path(struct sim *, uint32_t node, struct seq *);
uint32_t tree_ancestor(const struct sim *, uint32_t node, uint32_t depth);
uint32_t tree_tokens(const struct sim *, uint32_t node);	/* from the root */
bool tree_window_needs(const struct mm_cache_desc *, uint32_t group, uint32_t page,
		       uint64_t len_tokens);
struct lease *tree_lease(struct sim *, uint32_t id, uint32_t engine, uint32_t cache, uint32_t node);
struct lease *tree_lease_new(struct sim *, uint32_t id, uint32_t engine, uint32_t cache,
			     uint32_t node);
void tree_pin(struct sim *, struct lease *, uint32_t node, uint32_t group);
void tree_pin_chain(struct sim *, struct lease *, const struct lease *old);
void tree_unlease(struct sim *, struct lease *);

/* oracle.c */
enum expect oracle_expect(struct sim *, struct call *);

/* reply.c: what each reply may say, and what the model learns from it */
void oracle_reply(struct sim *, const struct mm_reply *);

/* hit.c: LOOKUP, RESUME, COMMIT */
void hit_check(struct sim *, const struct call *, const struct seq *, bool complete,
	       const struct mm_reply *);
void commit_check(struct sim *, const struct call *, const struct mm_reply *);

/* memory.c: the bytes of the devices */
void memory_create(struct sim *, struct shard *);
void memory_drop(struct shard *);
void memory_move(struct sim *, const struct mm_effect *, int result);
void memory_scrub(struct sim *, const struct mm_effect *);
void memory_granted(struct sim *, const struct page *, uint32_t engine);  /* it writes there now */
void memory_publish(struct sim *, const struct page *, uint32_t node);	/* it had written content */
void memory_read(struct sim *, const struct page *, uint32_t node);	/* finds that content */
void memory_read_lease(struct sim *, const struct lease *);
void memory_scribble(struct sim *, const struct page *);		/* its holder, dying */

/* budget.c: tenants and their limits */
struct tenant *budget_tenant(struct sim *, uint32_t key);
void budget_killed(struct sim *, const struct engine *);	/* may it be? */
void budget_start(struct sim *);
void budget_check(struct sim *);
void budget_promise(struct sim *, struct engine *, const struct cache *, uint32_t min_pages);
void budget_redeem(struct sim *);		/* all promises, at the same time */
void budget_end(struct sim *);			/* no more limits */
void gen_tenant_set(struct sim *);
enum expect expect_tenant_set(struct sim *, const struct call *);
void ok_tenant_set(struct sim *, struct call *, const struct mm_reply *);

/* effects.c */
void effects_drain(struct sim *);
void effects_run(struct sim *, bool all);	/* complete what is due, or everything */
bool effects_coming(const struct sim *);	/* creations and destructions are on their way */

/* totals.c */
void totals_check(struct sim *);
void totals_end(struct sim *);			/* nothing runs any more */

/* call.c: submit, drain */
struct call *call_new(struct sim *, enum mm_op op);
int call_submit(struct sim *, struct call *);	/* the result, 1: not yet replied */
void call_drain(struct sim *);
void call_tick(struct sim *, unsigned int budget);

/* gen.c */
void gen_step(struct sim *);
bool gen_hostile(struct sim *);			/* now something that is wrong */
struct call *gen_call(struct sim *, enum mm_op, uint32_t engine);
void gen_give(struct sim *, uint32_t engine, uint32_t nr_pages);	/* FREE of what it holds */
void gen_poll(struct sim *, uint32_t member);
void gen_deaths(struct sim *, bool all);	/* of the killed */
void gen_member_gone(struct sim *, uint32_t member);
extern const struct sim_op_desc sim_ops[SIM_NR_OPS];

/* end.c */
void end_settle(struct sim *);			/* until nobody waits */
void end_run(struct sim *);			/* give back, detach, see the pool empty */

/* canary.c */
extern const char *const canary_name[CANARY_NR];
void canary_reply(struct sim *, struct call *, struct mm_reply *, uint64_t *pages);
bool canary_swallow(struct sim *, const struct call *, const struct mm_reply *);
void canary_effect(struct sim *, struct mm_effect *);
bool canary_lose(struct sim *, enum canary);
uint64_t canary_number(struct sim *, enum canary, uint64_t value);

#endif
