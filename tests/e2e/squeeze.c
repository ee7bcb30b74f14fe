// SPDX-License-Identifier: Apache-2.0
/* squeeze - an engine for squeeze.sh: it trusts no byte, answers what kvd asks, and does not die
 *
 *	squeeze SPEC UID NAME keep PROMPTS PAGES	reads the same prompts again and again
 *	squeeze SPEC UID NAME take CHATS PAGES		always new ones, some of them kept alive
 *
 * Each row is computed from the tokens before it, so a page with the wrong content shows when it is
 * read. keep matches a prompt, checks every row that was cached, computes the rest and lets go: its
 * hits are what protection is worth. take holds up to CHATS sequences, committed and not, lets them
 * grow, fork, park and resume, and checks one in every step; under pressure it parks idle ones. A
 * full pool or a tenant at its max is expected and no failure. Between two steps comes kv_poll(),
 * which may move pages.
 *
 * A line of counters every second or so, and at the end (SIGTERM). Exit 0; 1 with a line if a byte
 * was wrong or a call failed in a way it may not.
 */
#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <kv/kv.h>

#define PT	  16u
#define COLS	  64u /* of k and of v: 8 KiB a page */
#define MAX_CHATS 64u
#define REST_MS	  10
#define MAX_PAGES 64u

static struct kv *kv;
static struct kv_cache *cache;
static volatile sig_atomic_t ended;
static uint64_t rng;
static bool keeper;

static struct {
	uint64_t steps, asked, hit, checked, refused, pressed, parked, moved;
} nr;

struct chat {
	struct kv_seq *seq;
	uint32_t stored; /* tokens before it have their rows */
	bool parked;
	uint64_t version;
};

static struct chat chats[MAX_CHATS];
static uint32_t nr_chats, max_pages;

static void die(const char *what, int err)
{
	fprintf(stderr, "squeeze: %s: %s (%d)\n", what, err ? kv_error() : "wrong content", err);
	exit(1);
}

static bool full(const char *what, int err)
{
	if (err && err != -ENOMEM && err != -EDQUOT)
		die(what, err);
	nr.refused += err != 0;
	return err != 0;
}

static uint32_t below(uint32_t n)
{
	rng = rng * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((rng >> 33) % n);
}

static void on_term(int sig)
{
	(void)sig;
	ended = 1;
}

/* ---- content ------------------------------------------------------------------------------- */

static uint64_t history(uint64_t h, uint32_t token)
{
	h = (h ^ token) * 0x9e3779b97f4a7c15ull;
	return h ^ h >> 29;
}

static void row_of(uint64_t h, float *k, float *v)
{
	for (uint32_t c = 0; c < COLS; c++) {
		h = h * 6364136223846793005ull + 1442695040888963407ull;
		k[c] = (float)(h >> 50);
		v[c] = (float)(h >> 20 & 0x3fff);
	}
}

static void store(struct chat *c)
{
	const uint32_t *tokens = kv_seq_tokens(c->seq);
	float k[COLS], v[COLS];
	uint64_t h = 1;

	for (uint32_t t = 0; t < kv_seq_len(c->seq); t++) {
		h = history(h, tokens[t]);
		if (t < c->stored)
			continue;
		row_of(h, k, v);
		int err = kv_seq_store(c->seq, 0, 0, t, 1, k, v);

		if (err)
			die("store", err);
	}
	c->stored = kv_seq_len(c->seq);
}

/* Reads where the PTEs of now say. */
static void check(const struct chat *c)
{
	const uint32_t *tokens = kv_seq_tokens(c->seq);
	const uint64_t *pte = kv_seq_pte(c->seq, 0, NULL);
	float k[COLS], v[COLS];
	struct kv_view view;
	uint64_t h = 1;

	kv_layout_view(kv_cache_layout(cache, 0), 0, &view);
	for (uint32_t t = 0; t < c->stored; t++) {
		const char *head = (const char *)(uintptr_t)pte[t / PT] + view.layer_off;

		h = history(h, tokens[t]);
		row_of(h, k, v);
		if (memcmp(head + t % PT * view.k_row, k, sizeof(k)) ||
		    memcmp(head + view.v_off + t % PT * view.v_row, v, sizeof(v)))
			die("check", 0);
	}
	nr.checked += c->stored;
}

static void match(struct chat *c, const uint32_t *tokens, uint32_t n)
{
	uint32_t hit = 0;
	int err = kv_seq_create(cache, NULL, 0, &c->seq);

	if (err)
		die("create", err);
	c->parked = false;
	c->stored = 0;
	nr.asked += n - 1;
	if (full("match", kv_seq_match(c->seq, tokens, n, &hit)))
		return;
	nr.hit += hit;
	c->stored = hit;
	check(c);
	if (!full("append", kv_seq_append(c->seq, tokens + hit, n - hit)))
		store(c);
	c->version = kv_seq_pte_version(c->seq);
}

static void drop(struct chat *c)
{
	kv_seq_release(c->seq);
	*c = (struct chat){ .seq = NULL };
}

/* ---- what kvd asks ------------------------------------------------------------------------- */

/* -EBUSY: the call that waits is one on this sequence. */
static bool park(struct chat *c)
{
	int err = c->seq && !c->parked ? kv_seq_commit(c->seq, c->stored) : -EBUSY;

	if (err == -EBUSY || full("commit", err))
		return false;
	c->parked = !full("park", kv_seq_park(c->seq));
	c->stored = c->parked ? 0 : kv_seq_len(c->seq);
	nr.parked += c->parked;
	return c->parked;
}

static void on_pressure(void *ctx, struct kv *k, uint64_t bytes, uint64_t deadline_ns)
{
	uint64_t page = kv_cache_page_bytes(cache, 0), given = 0;
	uint32_t held, leased;

	(void)ctx;
	(void)k;
	(void)deadline_ns;
	nr.pressed++;
	for (uint32_t i = 0; !keeper && i < nr_chats && (!bytes || given < bytes); i++) {
		if (!chats[i].seq || chats[i].parked)
			continue;
		kv_seq_pages(chats[i].seq, &held, &leased);
		if (park(&chats[i]))
			given += (held + leased) * page;
	}
}

static void serve(void)
{
	int err;

	for (uint32_t i = 0; i < nr_chats; i++)
		chats[i].version = chats[i].seq ? kv_seq_pte_version(chats[i].seq) : 0;
	err = kv_poll(kv);
	if (err)
		die("poll", err);
	for (uint32_t i = 0; i < nr_chats; i++) {
		struct chat *c = &chats[i];

		if (!c->seq || c->parked || c->version == kv_seq_pte_version(c->seq))
			continue;
		nr.moved++;
		check(c);
	}
}

/* Between two prompts the protected engine is idle. */
static void rest(void)
{
	struct pollfd pfd = { .fd = kv_event_fd(kv), .events = POLLIN };
	int err;

	poll(&pfd, 1, REST_MS);
	err = kv_poll(kv);
	if (err)
		die("poll", err);
}

/* ---- what the two kinds do ----------------------------------------------------------------- */

static void keep_step(void)
{
	uint32_t tokens[MAX_PAGES * PT], n = max_pages * PT;
	struct chat c = { .seq = NULL };

	for (uint32_t i = 0; i < n; i++)
		tokens[i] = (uint32_t)(nr.steps % nr_chats) * 7919 + i;
	match(&c, tokens, n);
	full("commit", kv_seq_commit(c.seq, c.stored));
	drop(&c);
}

static void grow(struct chat *c)
{
	uint32_t more[PT * 2], n = 1 + below(PT * 2);

	if (kv_seq_len(c->seq) + n > max_pages * PT) {
		drop(c);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		more[i] = below(1000);
	if (!full("append", kv_seq_append(c->seq, more, n)))
		store(c);
	if (below(3) == 0)
		full("commit", kv_seq_commit(c->seq, c->stored));
}

static void take_fork(struct chat *c)
{
	struct chat *to = &chats[below(nr_chats)];

	if (to->seq || full("commit", kv_seq_commit(c->seq, c->stored)))
		return;
	if (full("fork", kv_seq_fork(c->seq, &to->seq))) {
		to->seq = NULL;
		return;
	}
	to->stored = c->stored;
	to->parked = false;
}

static void take_step(void)
{
	struct chat *c = &chats[below(nr_chats)];
	uint32_t tokens[MAX_PAGES * PT], n = 1 + below(max_pages * PT / 2), len;

	if (!c->seq) {
		for (uint32_t i = 0; i < n; i++)
			tokens[i] = (uint32_t)rng + i;
		match(c, tokens, n);
		return;
	}
	if (c->parked) {
		if (full("resume", kv_seq_resume(c->seq, &len)))
			return;
		c->parked = false;
		c->stored = len;
		check(c);
		return;
	}
	check(c);
	switch (below(10)) {
	case 0:
		take_fork(c);
		break;
	case 1:
		park(c);
		break;
	case 2:
	case 3:
		full("commit", kv_seq_commit(c->seq, c->stored));
		drop(c);
		break;
	default:
		grow(c);
	}
}

/* ---- running ------------------------------------------------------------------------------- */

static void become(const char *uid)
{
	uid_t id = (uid_t)strtoul(uid, NULL, 10);

	if (id == getuid())
		return;
	if (setgroups(0, NULL) || setresgid(id, id, id) || setresuid(id, id, id)) {
		perror("squeeze: becoming another user");
		exit(1);
	}
}

static void open_cache(const char *spec, const char *name)
{
	struct kv_options opt = { .name = name, .on_pressure = on_pressure, .wait_ms = 200 };
	struct kv_cache_params p = { .model = "squeeze", .nr_groups = 1, .nr_shards = 1 };
	int err;

	p.group[0].kind = KV_GROUP_FULL;
	p.group[0].layout = (struct kv_layout){ .kind = KV_GQA, .dtype = KV_F32, .layers = 1,
						.kv_heads = 1, .head_dim = COLS,
						.head_dim_v = COLS, .page_tokens = PT };
	err = kv_open(spec, &opt, &kv);
	if (err)
		die("open", err);
	err = kv_cache_open(kv, &p, &cache);
	if (err)
		die("cache", err);
}

static void tell(void)
{
	printf("steps %llu asked %llu hit %llu checked %llu refused %llu pressed %llu parked %llu "
	       "moved %llu\n",
	       (unsigned long long)nr.steps, (unsigned long long)nr.asked,
	       (unsigned long long)nr.hit, (unsigned long long)nr.checked,
	       (unsigned long long)nr.refused, (unsigned long long)nr.pressed,
	       (unsigned long long)nr.parked, (unsigned long long)nr.moved);
}

int main(int argc, char **argv)
{
	time_t told = 0;

	if (argc != 7) {
		fputs("usage: squeeze SPEC UID NAME keep|take COUNT PAGES\n", stderr);
		return 2;
	}
	signal(SIGTERM, on_term);
	setvbuf(stdout, NULL, _IOLBF, 0);
	become(argv[2]);
	keeper = !strcmp(argv[4], "keep");
	nr_chats = (uint32_t)strtoul(argv[5], NULL, 10);
	max_pages = (uint32_t)strtoul(argv[6], NULL, 10);
	if (!nr_chats || (!keeper && nr_chats > MAX_CHATS) || !max_pages || max_pages > MAX_PAGES)
		return 2;
	for (const char *s = argv[3]; *s; s++)
		rng = rng * 31 + (unsigned char)*s;
	open_cache(argv[1], argv[3]);
	while (!ended) {
		if (keeper)
			keep_step();
		else
			take_step();
		nr.steps++;
		if (keeper)
			rest();
		else
			serve();
		if (keeper ? nr.steps % nr_chats == 0 : time(NULL) != told)
			tell();
		told = time(NULL);
	}
	for (uint32_t i = 0; !keeper && i < nr_chats; i++)
		drop(&chats[i]);
	kv_close(kv);
	tell();
	return 0;
}
