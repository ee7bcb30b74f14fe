// SPDX-License-Identifier: Apache-2.0
/* Every call on a sequence with every step of it failing once: memory of this process, what the
 * pool refuses, and a session that dies. After -ENOMEM the sequence is as before (or as kv/seq.h
 * says) and the same call succeeds; nothing stays held, leased or parked; nothing crashes. */
#include "call.h"
#include "seq_fixture.h"
#include "seq_impl.h"

#define PT	 4u
#define MAX_STEP 400u

enum fault { FAULT_MEMORY, FAULT_POOL, FAULT_LINK, NR_FAULTS };

static struct fix f;
static uint32_t prompt[64], left;
static enum fault fault;
static _Thread_local bool armed, fired, inside;
static const struct link_ops *real;

/* True for the step that fails; the pool's refusals and a broken link go on. */
static bool hit(enum fault kind)
{
	if (!armed || inside || kind != fault)
		return false;
	if (left)
		left--;
	else
		fired = true;
	if (fired && kind == FAULT_MEMORY)
		armed = false;
	return fired;
}

/* ---- the process's memory -------------------------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REAL(fn) __interceptor_##fn
#else
#define REAL(fn) __libc_##fn
#endif

void *REAL(malloc)(size_t);
void *REAL(calloc)(size_t, size_t);
void *REAL(realloc)(void *, size_t);

void *malloc(size_t n)
{
	return hit(FAULT_MEMORY) ? NULL : REAL(malloc)(n);
}

void *calloc(size_t n, size_t size)
{
	return hit(FAULT_MEMORY) ? NULL : REAL(calloc)(n, size);
}

void *realloc(void *p, size_t n)
{
	return hit(FAULT_MEMORY) ? NULL : REAL(realloc)(p, n);
}

void *reallocarray(void *p, size_t n, size_t size)
{
	return realloc(p, n * size);
}

/* ---- the pool -------------------------------------------------------------------------------- */

/* What gives back or forgets is never refused by a pool that lives. */
static bool may_refuse(uint8_t op)
{
	return op == KV_OP_ALLOC || op == KV_OP_LOOKUP || op == KV_OP_COMMIT ||
	       op == KV_OP_LEASE_DUP || op == KV_OP_PARK || op == KV_OP_RESUME ||
	       op == KV_OP_DROP_HEAD;
}

static int call_or_fail(struct kv *kv, struct call *c)
{
	int rc;

	if (hit(FAULT_LINK))
		return -EPIPE;
	if (may_refuse(c->sqe.op) && hit(FAULT_POOL)) {
		c->cqe = (struct kv_cqe){ .res = -ENOMEM, .reason = KV_POOL_FULL };
		c->done = true;
		return 0;
	}
	inside = true;
	rc = real->call(kv, c);
	inside = false;
	return rc;
}

static int import_or_fail(struct kv *kv, uint32_t extent, uint32_t shard, struct link_extent *x)
{
	int rc;

	if (hit(FAULT_LINK))
		return kv_mark_dead(kv, "the link broke");
	if (hit(FAULT_POOL))
		return err_set(-ENOMEM, "no room to map");
	inside = true;
	rc = real->import(kv, extent, shard, x);
	inside = false;
	return rc;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static struct kv_seq *seqs[4];
static uint32_t nr_seqs;

static struct kv_seq *create(void)
{
	assert_int_equal(kv_seq_create(f.cache, NULL, 0, &seqs[nr_seqs]), 0);
	return seqs[nr_seqs++];
}

static struct kv_seq *grown(uint32_t n, uint32_t stored, uint32_t committed)
{
	struct kv_seq *s = create();

	assert_int_equal(kv_seq_append(s, prompt, n), 0);
	fix_store(&f, s, 0, 0, stored);
	assert_int_equal(kv_seq_commit(s, committed), 0);
	return s;
}

struct scene {
	const char *name;
	struct kv_seq *(*set)(void);
	int (*run)(struct kv_seq *);
};

static struct kv_seq *set_match(void)
{
	grown(22, 22, 22);
	return create();
}

/* The partial tail is nobody's: it is adopted. */
static struct kv_seq *set_adopt(void)
{
	kv_seq_release(grown(22, 22, 22));
	nr_seqs = 0;
	return create();
}

static int run_match(struct kv_seq *s)
{
	uint32_t got;
	int err = kv_seq_match(s, prompt, 23, &got);

	return err;
}

static struct kv_seq *set_append(void)
{
	struct kv_seq *s = grown(22, 22, 22);

	assert_int_equal(kv_seq_fork(s, &seqs[nr_seqs++]), 0);
	return s;
}

/* The tail of a truncated sequence stands in a page of the cache. */
static struct kv_seq *set_append_leased(void)
{
	struct kv_seq *s = grown(24, 24, 24);

	assert_int_equal(kv_seq_truncate(s, 22), 0);
	return s;
}

static int run_append(struct kv_seq *s)
{
	return kv_seq_append(s, prompt + 22, 30);
}

static struct kv_seq *set_commit(void)
{
	return grown(22, 22, 0);
}

/* All its tokens are cached already: pages are swapped. */
static struct kv_seq *set_commit_again(void)
{
	grown(22, 22, 22);
	return grown(22, 22, 0);
}

static int run_commit(struct kv_seq *s)
{
	return kv_seq_commit(s, 22);
}

static struct kv_seq *set_fork(void)
{
	return grown(22, 14, 10);
}

static int run_fork(struct kv_seq *s)
{
	int err = kv_seq_fork(s, &seqs[nr_seqs]);

	nr_seqs += !err;
	return err;
}

static struct kv_seq *set_whole(void)
{
	return grown(22, 22, 22);
}

static int run_truncate(struct kv_seq *s)
{
	return kv_seq_truncate(s, 10);
}

static int run_drop(struct kv_seq *s)
{
	return kv_seq_drop_head(s, 1, 13);
}

static int run_park(struct kv_seq *s)
{
	return kv_seq_park(s);
}

static struct kv_seq *set_parked(void)
{
	struct kv_seq *s = grown(22, 22, 22);

	assert_int_equal(kv_seq_park(s), 0);
	return s;
}

static int run_resume(struct kv_seq *s)
{
	uint32_t len;

	return s->parked ? kv_seq_resume(s, &len) : 0;
}

/* ---- one step fails -------------------------------------------------------------------------- */

struct shot {
	uint32_t len, committed, nr;
	uint64_t ids[2][64];
};

static struct shot shoot(struct kv_seq *s)
{
	struct shot t = { .len = kv_seq_len(s), .committed = kv_seq_committed(s) };
	uint32_t g;

	for (g = 0; g < 2; g++) {
		const uint64_t *ids = kv_seq_page_ids(s, g, &t.nr);

		if (t.nr)
			memcpy(t.ids[g], ids, t.nr * sizeof(*ids));
	}
	return t;
}

static void check_unchanged(const struct scene *c, struct kv_seq *s, const struct shot *before)
{
	struct shot after = shoot(s);

	if (c->run == run_commit) { /* what was published before the error stays committed */
		assert_true(after.len == before->len && after.committed >= before->committed);
		return;
	}
	if (memcmp(before, &after, sizeof(after)) && c->run != run_park)
		fail_msg("%s: a failed call changed the sequence", c->name);
}

static void open_again(void)
{
	static struct link_ops ops;

	fix_open(&f, "embedded:host:16M", fix_layout(KV_GQA, KV_F32, PT), FIX_WINDOW);
	real = f.kv->ops;
	ops = *real;
	ops.call = call_or_fail;
	ops.import = import_or_fail;
	f.kv->ops = &ops;
	nr_seqs = 0;
}

static void drop_maps(void)
{
	uint32_t i;

	for (i = 0; i < f.kv->map.nr; i++)
		map_retire(f.kv, i);
}

/* False: the call has fewer steps than that. */
static bool step_fails(const struct scene *c, enum fault kind, uint32_t step, bool unmapped)
{
	struct kv_seq *s;
	struct shot before;
	uint32_t i;
	int err;

	open_again();
	s = c->set();
	before = shoot(s);
	magazine_flush_all(f.kv);
	if (unmapped) /* PTEs of live sequences go stale: only for those that have none */
		drop_maps();
	fault = kind;
	left = step;
	fired = false;
	armed = true;
	err = c->run(s);
	armed = false;
	if (err && err != (kind == FAULT_LINK ? -EPIPE : -ENOMEM))
		fail_msg("%s: %d: %s", c->name, err, kv_error());
	if (err && !fired)
		fail_msg("%s fails by itself: %s", c->name, kv_error());
	if (kind != FAULT_LINK) {
		if (err)
			check_unchanged(c, s, &before);
		if (err && c->run(s))
			fail_msg("%s, again: %s", c->name, kv_error());
		if (!s->parked)
			fix_verify(&f, s, 0, kv_seq_committed(s));
	}
	for (i = 0; i < nr_seqs; i++)
		kv_seq_release(seqs[i]);
	if (kind == FAULT_LINK)
		kv_close(f.kv);
	else
		fix_close(&f);
	return fired;
}

static void every_step(const struct scene *c, bool unmapped)
{
	uint32_t kind, step;

	for (kind = 0; kind < NR_FAULTS; kind++) {
		for (step = 0; step_fails(c, kind, step, unmapped); step++)
			assert_true(step < MAX_STEP);
	}
}

#define SCENE(id, set_fn, run_fn, unmapped) \
	static void id(void **state) \
	{ \
		static const struct scene c = { #id, set_fn, run_fn }; \
		(void)state; \
		every_step(&c, unmapped); \
	}

SCENE(match, set_match, run_match, false)
SCENE(match_adopts, set_adopt, run_match, false)
SCENE(match_adopts_unmapped, set_adopt, run_match, true)
SCENE(append_shared_tail, set_append, run_append, false)
SCENE(append_leased_tail, set_append_leased, run_append, false)
SCENE(commit, set_commit, run_commit, false)
SCENE(commit_again, set_commit_again, run_commit, false)
SCENE(fork_uncommitted, set_fork, run_fork, false)
SCENE(truncate_leased, set_whole, run_truncate, false)
SCENE(drop_head, set_whole, run_drop, false)
SCENE(park, set_whole, run_park, false)
SCENE(resume, set_parked, run_resume, false)
SCENE(resume_unmapped, set_parked, run_resume, true)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(match),
		cmocka_unit_test(match_adopts),
		cmocka_unit_test(match_adopts_unmapped),
		cmocka_unit_test(append_shared_tail),
		cmocka_unit_test(append_leased_tail),
		cmocka_unit_test(commit),
		cmocka_unit_test(commit_again),
		cmocka_unit_test(fork_uncommitted),
		cmocka_unit_test(truncate_leased),
		cmocka_unit_test(drop_head),
		cmocka_unit_test(park),
		cmocka_unit_test(resume),
		cmocka_unit_test(resume_unmapped),
	};
	uint32_t i;

	for (i = 0; i < 64; i++)
		prompt[i] = 100 + i;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
