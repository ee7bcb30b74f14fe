// SPDX-License-Identifier: Apache-2.0
/* Random calls on several sequences in a pool that is too small for them. After every call every
 * stored row of every sequence must be what its history says, and a refused call must have changed
 * nothing. Salts and a two-token alphabet make sequences meet in the cache all the time.
 * SEQ_MODEL_SEED=n runs another series, SEQ_MODEL_VERBOSE=1 tells how often what happened. */
#include <sys/socket.h>

#include "daemon_test.h"
#include "drain.h"

#define NR_SEQS	 6
#define MAX_LEN	 160
#define NR_STEPS 1000
#define NR_REMOTE 200 /* a refusal by a daemon takes a while: it waits for what others may give */

struct one {
	struct kv_seq *seq;
	uint32_t salt, stored;
	bool parked;
	uint32_t parked_len, tokens[MAX_LEN]; /* what a park must be a prefix of */
};

struct model {
	struct fix f;
	struct one s[NR_SEQS];
	uint64_t rng;
	uint32_t refused, hits, tail_hits, resumed, moved;
	bool may_drop;
};

static uint32_t rnd(struct model *m, uint32_t n)
{
	m->rng = m->rng * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((m->rng >> 33) % n);
}

static struct one *pick(struct model *m, bool used)
{
	uint32_t i, start = rnd(m, NR_SEQS);

	for (i = 0; i < NR_SEQS; i++) {
		struct one *o = &m->s[(start + i) % NR_SEQS];

		if (!!o->seq == used)
			return o;
	}
	return NULL;
}

/* ---- a refused call has changed nothing ------------------------------------------------------ */

struct shot {
	uint32_t len, committed, nr;
	uint32_t tokens[MAX_LEN];
	uint64_t ids[2][MAX_LEN], pte[2][MAX_LEN];
};

static void shoot(struct model *m, struct kv_seq *s, struct shot *t)
{
	uint32_t g;

	memset(t, 0, sizeof(*t));
	t->len = kv_seq_len(s);
	t->committed = kv_seq_committed(s);
	if (t->len)
		memcpy(t->tokens, kv_seq_tokens(s), t->len * sizeof(*t->tokens));
	for (g = 0; g < m->f.nr_groups; g++) {
		const uint64_t *ids = kv_seq_page_ids(s, g, &t->nr);
		const uint64_t *pte = kv_seq_pte(s, g, NULL);

		if (!t->nr)
			continue;
		memcpy(t->ids[g], ids, t->nr * sizeof(*ids));
		memcpy(t->pte[g], pte, t->nr * sizeof(*pte));
	}
}

static bool no_room(struct model *m, struct kv_seq *s, const struct shot *before, int err)
{
	static struct shot after;

	if (!err)
		return false;
	if (err != -ENOMEM)
		fail_msg("%d: %s", err, kv_error());
	m->refused++;
	shoot(m, s, &after);
	assert_memory_equal(before, &after, sizeof(after));
	return true;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static struct kv_key salt_key(const uint32_t *salt)
{
	return (struct kv_key){.kind = KV_KEY_SALT, .data = salt, .bytes = sizeof(*salt)};
}

/* Full pages that a live sequence has committed are pinned, so a match must find them. */
static uint32_t sure_hit(struct model *m, uint32_t salt, const uint32_t *tokens, uint32_t n)
{
	uint32_t i, best = 0, pt = kv_cache_page_tokens(m->f.cache);

	for (i = 0; i < NR_SEQS; i++) {
		const struct one *o = &m->s[i];
		uint32_t common = 0, most;

		if (!o->seq || o->parked || o->salt != salt)
			continue;
		most = kv_seq_committed(o->seq) / pt * pt;
		most = most < n - 1 ? most : n - 1;
		while (common < most && kv_seq_tokens(o->seq)[common] == tokens[common])
			common++;
		common = common / pt * pt;
		best = common > best ? common : best;
	}
	return m->f.nr_groups == 1 ? best : 0;
}

static void do_create(struct model *m)
{
	struct one *o = pick(m, false);
	uint32_t tokens[MAX_LEN], n = 1 + rnd(m, MAX_LEN / 2), i, hit, sure;
	struct kv_key key;

	if (!o)
		return;
	o->salt = rnd(m, 2);
	key = salt_key(&o->salt);
	if (kv_seq_create(m->f.cache, &key, o->salt ? 1 : 0, &o->seq))
		fail_msg("%s", kv_error());
	for (i = 0; i < n; i++)
		tokens[i] = rnd(m, 8) ? 0 : 1;
	sure = sure_hit(m, o->salt, tokens, n);
	if (kv_seq_match(o->seq, tokens, n, &hit))
		fail_msg("match: %s", kv_error());
	assert_true(hit >= sure && hit < n);
	assert_int_equal(hit, kv_seq_len(o->seq));
	assert_int_equal(hit, kv_seq_committed(o->seq));
	if (hit)
		assert_memory_equal(tokens, kv_seq_tokens(o->seq), hit * sizeof(*tokens));
	o->stored = hit;
	o->parked = false;
	m->hits += hit > 0;
	m->tail_hits += hit % kv_cache_page_tokens(m->f.cache) != 0;
}

static void do_append(struct model *m, struct one *o)
{
	uint32_t tokens[MAX_LEN], n = 1 + rnd(m, rnd(m, 3) ? 8 : 60), i;
	static struct shot before;

	if (kv_seq_len(o->seq) + n > MAX_LEN)
		return;
	for (i = 0; i < n; i++)
		tokens[i] = rnd(m, 8) ? 0 : 1;
	shoot(m, o->seq, &before);
	if (no_room(m, o->seq, &before, kv_seq_append(o->seq, tokens, n)))
		return;
	assert_int_equal(kv_seq_len(o->seq), before.len + n);
	if (rnd(m, 3)) {
		fix_store(&m->f, o->seq, o->salt, o->stored, kv_seq_len(o->seq));
		o->stored = kv_seq_len(o->seq);
	}
}

static void do_store(struct model *m, struct one *o)
{
	fix_store(&m->f, o->seq, o->salt, o->stored, kv_seq_len(o->seq));
	o->stored = kv_seq_len(o->seq);
}

static void do_commit(struct model *m, struct one *o)
{
	uint32_t from = kv_seq_committed(o->seq), upto = from + rnd(m, o->stored - from + 1);
	int err = kv_seq_commit(o->seq, upto);

	if (err && err != -ENOMEM)
		fail_msg("commit: %s", kv_error());
	assert_true(kv_seq_committed(o->seq) <= upto && kv_seq_committed(o->seq) >= from);
	if (!err)
		assert_int_equal(kv_seq_committed(o->seq), upto);
}

static void do_fork(struct model *m, struct one *o)
{
	struct one *to = pick(m, false);
	static struct shot before, child;
	struct kv_seq *seq = NULL;

	if (!to)
		return;
	shoot(m, o->seq, &before);
	if (no_room(m, o->seq, &before, kv_seq_fork(o->seq, &seq)))
		return;
	*to = *o;
	to->seq = seq;
	shoot(m, seq, &child);
	assert_int_equal(child.len, before.len);
	assert_int_equal(child.committed, before.committed);
	assert_memory_equal(child.tokens, before.tokens, sizeof(child.tokens));
}

static void do_truncate(struct model *m, struct one *o)
{
	uint32_t len = rnd(m, kv_seq_len(o->seq) + 1);
	static struct shot before;
	int err;

	shoot(m, o->seq, &before);
	err = kv_seq_truncate(o->seq, len);
	if (err == -EINVAL && m->f.nr_groups > 1) { /* its window is gone */
		static struct shot after;

		shoot(m, o->seq, &after);
		assert_memory_equal(&before, &after, sizeof(after));
		assert_int_equal(before.ids[1][0], 0);
		return;
	}
	if (no_room(m, o->seq, &before, err))
		return;
	assert_int_equal(kv_seq_len(o->seq), len);
	o->stored = o->stored < len ? o->stored : len;
}

static void do_drop(struct model *m, struct one *o)
{
	uint32_t len = kv_seq_len(o->seq);
	static struct shot before;

	if (m->f.nr_groups < 2 || len < FIX_WINDOW)
		return;
	shoot(m, o->seq, &before);
	no_room(m, o->seq, &before, kv_seq_drop_head(o->seq, 1, len + 1 - FIX_WINDOW));
}

static void do_park(struct model *m, struct one *o)
{
	uint32_t nr, g;
	int err = kv_seq_park(o->seq);

	if (err) {
		assert_int_equal(err, -ENOMEM);
		assert_int_equal(kv_seq_len(o->seq), kv_seq_committed(o->seq));
		o->stored = kv_seq_len(o->seq);
		return;
	}
	for (g = 0; g < m->f.nr_groups; g++) {
		kv_seq_pte(o->seq, g, &nr);
		assert_int_equal(nr, 0);
	}
	o->parked = true;
	o->stored = 0;
}

static void do_resume(struct model *m, struct one *o)
{
	uint32_t len = 0;

	if (kv_seq_resume(o->seq, &len))
		fail_msg("resume: %s", kv_error());
	assert_int_equal(len, kv_seq_len(o->seq));
	assert_int_equal(len, kv_seq_committed(o->seq));
	assert_true(len <= o->parked_len);
	if (len)
		assert_memory_equal(kv_seq_tokens(o->seq), o->tokens, len * sizeof(*o->tokens));
	m->resumed += len > 0;
	o->parked = false;
	o->stored = len;
}

/* An extent where the sequence has a page is to be left; held pages go as far as there is room for
 * them, and all that are left there are of the extent still. */
static void do_vacate(struct model *m)
{
	uint32_t g = rnd(m, m->f.nr_groups), nr = 0, extent;
	struct one *o = pick(m, true);
	const uint64_t *ids = o ? kv_seq_page_ids(o->seq, g, &nr) : NULL;
	uint64_t before;

	if (!nr || !ids[nr - 1])
		return;
	before = kv_seq_pte_version(o->seq);
	extent = kv_page_extent(ids[nr - 1]);
	drain_begin(m->f.cache, extent);
	drain.room = rnd(m, 3) ? UINT32_MAX : rnd(m, 4);
	if (kv_poll(m->f.kv))
		fail_msg("poll: %s", kv_error());
	m->moved += kv_seq_pte_version(o->seq) != before;
	if (rnd(m, 2) && kv_poll(m->f.kv))
		fail_msg("poll: %s", kv_error());
	drain_end();
}

static void step(struct model *m)
{
	uint32_t op = rnd(m, 100);
	struct one *o = pick(m, true);

	if (!o || op < 12) {
		do_create(m);
	} else if (o->parked) {
		if (op < 80) {
			do_resume(m, o);
		} else {
			kv_seq_release(o->seq);
			o->seq = NULL;
		}
	} else if (op < 40) {
		do_append(m, o);
	} else if (op < 50) {
		do_store(m, o);
	} else if (op < 65) {
		do_commit(m, o);
	} else if (op < 75) {
		do_fork(m, o);
	} else if (op < 83) {
		do_truncate(m, o);
	} else if (op < 87) {
		do_drop(m, o);
	} else if (op < 93) {
		o->parked_len = kv_seq_committed(o->seq);
		if (o->parked_len)
			memcpy(o->tokens, kv_seq_tokens(o->seq),
			       o->parked_len * sizeof(*o->tokens));
		do_park(m, o);
	} else {
		kv_seq_release(o->seq);
		o->seq = NULL;
	}
}

static void verify_all(struct model *m)
{
	uint32_t i;

	for (i = 0; i < NR_SEQS; i++)
		if (m->s[i].seq && !m->s[i].parked)
			fix_verify(&m->f, m->s[i].seq, m->s[i].salt, m->s[i].stored);
}

/* Half of the free pages in the first extent, half in the last one. */
static void spread(struct fix *f, uint32_t nr)
{
	uint32_t g, i;

	for (g = 0; g < f->nr_groups; g++)
		for (i = 0; i < nr / 2; i++) {
			if (kv_page_free(f->cache, g, f->hog[g][i]) ||
			    kv_pages_alloc(f->cache, g, 1, &f->hog[g][i]))
				fail_msg("%s", kv_error());
		}
}

static void run_steps(struct model *m, uint32_t nr_steps)
{
	uint32_t i, nr = 7 + 90 / kv_cache_page_tokens(m->f.cache);

	fix_shrink(&m->f, nr);
	if (m->f.kv->embedded)
		spread(&m->f, nr);
	for (i = 0; i < nr_steps; i++) {
		step(m);
		if (m->f.kv->embedded && rnd(m, 8) == 0)
			do_vacate(m);
		verify_all(m);
	}
	for (i = 0; i < NR_SEQS; i++)
		kv_seq_release(m->s[i].seq);
	fix_close(&m->f);
	if (getenv("SEQ_MODEL_VERBOSE"))
		print_message("page %u groups %u: %u refused, %u hits, %u tails, %u resumed, "
			      "%u moved\n",
			      m->f.params.group[0].layout.page_tokens, m->f.nr_groups, m->refused,
			      m->hits, m->tail_hits, m->resumed, m->moved);
	assert_true(m->refused && m->hits && m->resumed);
}

static uint32_t run_model(uint32_t kind, uint32_t dtype, uint32_t page_tokens, uint32_t window,
		      uint64_t seed)
{
	static struct model m;

	memset(&m, 0, sizeof(m));
	m.rng = seed * 77 + page_tokens;
	fix_open(&m.f, window ? "embedded:host:8M" : "embedded:host:4M",
		 fix_layout(kind, dtype, page_tokens), window);
	run_steps(&m, NR_STEPS);
	assert_true(page_tokens == 1 || m.tail_hits);
	return m.moved;
}

static void all_pages(uint32_t kind, uint32_t dtype, uint32_t window)
{
	static const uint32_t page_tokens[] = {1, 4, 16};
	const char *seed = getenv("SEQ_MODEL_SEED");
	uint32_t i, moved = 0;

	for (i = 0; i < 3; i++)
		moved += run_model(kind, dtype, page_tokens[i], window,
				   kind * 10 + dtype +
					   (seed ? strtoul(seed, NULL, 0) * 100 : 0));
	assert_true(moved > 0);
}

#define MODEL(name, kind, dtype, window) \
	static void name(void **state) \
	{ \
		(void)state; \
		all_pages(kind, dtype, window); \
	}

MODEL(gqa_f32, KV_GQA, KV_F32, 0)
MODEL(gqa_f16, KV_GQA, KV_F16, 0)
MODEL(gqa_bf16, KV_GQA, KV_BF16, 0)
MODEL(mla_f32, KV_MLA, KV_F32, 0)
MODEL(mla_bf16, KV_MLA, KV_BF16, 0)
MODEL(gqa_window_f32, KV_GQA, KV_F32, FIX_WINDOW)
MODEL(mla_window_bf16, KV_MLA, KV_BF16, FIX_WINDOW)

/* ---- two engines in two processes, on one daemon --------------------------------------------- */

/* Run as "PROGRAM SPEC SEED WINDOW FD": one engine. It takes a page of each group, so that it has
 * an extent of its own, and waits for the other one before both take the rest. */
static char *const *engine_args;

static void engine(void **state)
{
	uint32_t window = (uint32_t)strtoul(engine_args[3], NULL, 0), g;
	int fd = atoi(engine_args[4]);
	static struct model m;
	char go;

	(void)state;
	m.rng = strtoul(engine_args[2], NULL, 0);
	fix_open(&m.f, engine_args[1], fix_layout(KV_GQA, KV_F32, 4), window);
	for (g = 0; g < m.f.nr_groups; g++) {
		assert_int_equal(kv_page_alloc(m.f.cache, g, &m.f.hog[g][0]), 0);
		m.f.nr_hog[g] = 1;
	}
	assert_int_equal(write(fd, "r", 1), 1);
	assert_int_equal(read(fd, &go, 1), 1);
	run_steps(&m, NR_REMOTE);
}

static pid_t spawn(const char *spec, uint64_t seed, uint32_t window, int *fd)
{
	char text[3][24];
	char *argv[] = { (char *)"seq_model_test", (char *)spec, text[0], text[1], text[2], NULL };
	int sv[2];
	pid_t pid;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	fcntl(sv[0], F_SETFD, FD_CLOEXEC);
	snprintf(text[0], sizeof(text[0]), "%llu", (unsigned long long)seed);
	snprintf(text[1], sizeof(text[1]), "%u", window);
	snprintf(text[2], sizeof(text[2]), "%d", sv[1]);
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execv("/proc/self/exe", argv);
		_exit(127);
	}
	close(sv[1]);
	*fd = sv[0];
	return pid;
}

/* The pool has two extents a group, one for each engine. */
static void two_engines(uint32_t window, uint64_t seed)
{
	const char *args[] = { "--device", window ? "host:8M" : "host:4M", "--check-every", "16" };
	struct daemon_proc d = { .pid = 0 };
	int fd[2], status;
	pid_t pid[2];
	uint32_t i;
	char ready;

	daemon_start(&d, args, 4);
	for (i = 0; i < 2; i++)
		pid[i] = spawn(d.spec, seed + i, window, &fd[i]);
	for (i = 0; i < 2; i++)
		assert_int_equal(read(fd[i], &ready, 1), 1);
	for (i = 0; i < 2; i++)
		assert_int_equal(write(fd[i], "g", 1), 1);
	for (i = 0; i < 2; i++) {
		assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
		assert_int_equal(status, 0);
		close(fd[i]);
	}
	daemon_stop(&d);
}

static void on_a_daemon(void **state)
{
	const char *seed = getenv("SEQ_MODEL_SEED");
	uint64_t first = 1000 + (seed ? strtoul(seed, NULL, 0) * 100 : 0);

	(void)state;
	if (!daemon_here())
		skip();
	two_engines(0, first);
	two_engines(FIX_WINDOW, first + 10);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest one[] = { cmocka_unit_test(engine) };
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gqa_f32),	   cmocka_unit_test(gqa_f16),
		cmocka_unit_test(gqa_bf16),	   cmocka_unit_test(mla_f32),
		cmocka_unit_test(mla_bf16),	   cmocka_unit_test(gqa_window_f32),
		cmocka_unit_test(mla_window_bf16),  cmocka_unit_test(on_a_daemon),
	};

	engine_args = argv;
	if (argc == 5)
		return cmocka_run_group_tests(one, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
