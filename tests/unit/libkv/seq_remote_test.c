// SPDX-License-Identifier: Apache-2.0
/* Sequences through a real kvd: a full and a window group in two engines, and engines of two ranks
 * (a lead and a member process) on one cache of two shards; attention against float64. */
#include <errno.h>
#include <sys/un.h>

#include "attn_fixture.h"
#include "daemon_test.h"
#include "kv_admin.h"

#define HEADS	  8u /* of the whole model, over 4 KV heads; a rank has half */
#define MAX_PAGES (MAX_TOK / PT)

static struct daemon_proc d;

static int start(void **state)
{
	static const char *const args[] = {
		"--device", "host:16M", "--device", "host:16M", "--check-every", "1",
	};

	(void)state;
	d = (struct daemon_proc){ .pid = 0 };
	daemon_start(&d, args, 6);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	daemon_stop(&d);
	return 0;
}

static void meminfo(struct kv_admin_meminfo out[2])
{
	const struct kv_admin_request ask = { KV_ADMIN_MAGIC, KV_ABI_VERSION, KV_ADMIN_MEMINFO, 0 };
	struct sockaddr_un sun = { .sun_family = AF_UNIX };
	struct {
		struct kv_admin_head head;
		struct kv_admin_meminfo dev[2];
	} answer;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	snprintf(sun.sun_path, sizeof(sun.sun_path), "%s.admin", d.sock);
	assert_int_equal(connect(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
	assert_int_equal(send(fd, &ask, sizeof(ask), 0), sizeof(ask));
	assert_int_equal(recv(fd, &answer, sizeof(answer), 0), sizeof(answer));
	assert_int_equal(answer.head.result, 0);
	memcpy(out, answer.dev, sizeof(answer.dev));
	close(fd);
}

/* kvd hears of a death a moment later; then nothing is held or quarantined on any device. */
static void wait_until_free(void)
{
	struct kv_admin_meminfo m[2] = { { .name = "" } };
	uint64_t busy = 1;
	uint32_t i;

	for (i = 0; busy && i < DAEMON_TRIES; i++) {
		meminfo(m);
		busy = m[0].held_bytes + m[0].quarantined_bytes + m[1].held_bytes +
		       m[1].quarantined_bytes;
		if (busy)
			poll(NULL, 0, 10);
	}
	if (busy)
		fail_msg("held %llu and %llu bytes, quarantined %llu and %llu",
			 (unsigned long long)m[0].held_bytes, (unsigned long long)m[1].held_bytes,
			 (unsigned long long)m[0].quarantined_bytes,
			 (unsigned long long)m[1].quarantined_bytes);
}

static void count_up(uint32_t *tokens, uint32_t first, uint32_t n)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		tokens[i] = first + i;
}

/* ---- a full and a window group -------------------------------------------------------------- */

/* Grows in steps and drops what the window has passed, as an engine does. */
static void generate(struct kv_seq *s, uint32_t first, uint32_t steps, uint32_t n)
{
	uint32_t i, len;

	for (i = 0; i < steps; i++) {
		extend(s, first + i * n, n, true);
		len = kv_seq_len(s);
		if (len + 1 > FIX_WINDOW + MAX_Q)
			ok(kv_seq_drop_head(s, 1, len + 1 - FIX_WINDOW - MAX_Q));
		check_all(&s, 1);
	}
}

static void writer(int fd, void *arg)
{
	struct kv_seq *s;
	char go;

	fix_open(&f, d.spec, *(struct kv_layout *)arg, FIX_WINDOW);
	ok(kv_seq_create(f.cache, NULL, 0, &s));
	extend(s, 100, 42, true);
	kv_seq_release(s); /* publishes the partial tail: 10 full pages and two tokens */
	peer_tell(fd, "k", 1);
	peer_hear(fd, &go, 1);
}

static void two_engines(uint32_t kind, uint32_t dtype)
{
	struct kv_layout l = fix_layout(kind, dtype, PT);
	struct kv_seq *s[2];
	uint32_t tokens[MAX_TOK], hit;
	struct peer peer;
	char done;

	count_up(tokens, 100, MAX_TOK);
	peer_start(&peer, writer, &l);
	assert_true(peer_hear(peer.fd, &done, 1));
	fix_open(&f, d.spec, l, FIX_WINDOW);
	ok(kv_seq_create(f.cache, NULL, 0, &s[0]));
	ok(kv_seq_match(s[0], tokens, 50, &hit));
	assert_int_equal(hit, 42);
	fix_verify(&f, s[0], 0, hit);
	assert_true(kv_seq_pte(s[0], 0, NULL)[0] && !kv_seq_pte(s[0], 1, NULL)[0]);
	generate(s[0], 142, 4, 3);
	kill(peer.pid, SIGKILL); /* what it wrote stays where it is read */
	peer_end(&peer);
	check_all(s, 1);
	ok(kv_seq_fork(s[0], &s[1]));
	generate(s[1], 700, 2, 3);
	check_all(s, 2);
	ok(kv_seq_park(s[0]));
	ok(kv_seq_resume(s[0], &hit));
	assert_true(hit >= 52 && hit <= 54);
	check_all(s, 2);
	kv_seq_release(s[0]);
	kv_seq_release(s[1]);
	fix_close(&f);
	wait_until_free();
}

static void window_gqa_f32(void **state)
{
	(void)state;
	two_engines(KV_GQA, KV_F32);
}

static void window_mla_bf16(void **state)
{
	(void)state;
	two_engines(KV_MLA, KV_BF16);
}

/* ---- two ranks ------------------------------------------------------------------------------- */

struct engine {
	struct kv *kv;
	struct kv_cache *cache;
	struct peer member;
	struct kv_seq *seq;
};

struct hire {
	uint8_t token[16];
	uint32_t cache;
};

/* What a lead tells its member of a step: rows [from, len) are new, the rest is there. */
struct step {
	uint32_t from, len, nr;
	uint32_t tokens[MAX_TOK];
	uint64_t ids[2][MAX_PAGES];
};

struct result {
	uint32_t extent_pages;
	float out[2][2][HEADS / 2 * 8], lse[2][2][HEADS / 2];
};

static struct kv_cache_params split_params(void)
{
	struct kv_layout l = { .kind = KV_GQA,
			       .dtype = KV_F32,
			       .layers = 2,
			       .kv_heads = 4,
			       .head_dim = 16,
			       .head_dim_v = 8,
			       .page_tokens = PT };
	struct kv_cache_params p = {
		.model = "two ranks", .nr_groups = 2, .nr_shards = 2, .device = { 0, 1 }
	};

	p.group[0] = (struct kv_group){ .kind = KV_GROUP_FULL, .layout = l };
	l.layers = 1;
	p.group[1] = (struct kv_group){
		.kind = KV_GROUP_WINDOW, .window_tokens = FIX_WINDOW, .layout = l
	};
	return p;
}

static void fill_q(void)
{
	uint64_t r = 7;
	uint32_t i;

	for (i = 0; i < HEADS * 16; i++) {
		r = r * 6364136223846793005ull + 1442695040888963407ull;
		q_mem[i] = (float)(int)(r >> 40 & 0xff) / 128 - 1;
	}
}

/* One rank's part of a step: its heads of the new rows, then its heads of the attention. */
static void rank_step(struct kv_cache *c, uint32_t rank, const struct step *t,
		      const uint64_t *const pte[2], struct result *r)
{
	static const struct kv_layout whole = { .kind = KV_GQA, .kv_heads = 4, .head_dim = 16,
						.head_dim_v = 8 };
	struct kv_attn a = { .batch = 1, .heads = HEADS / 2 };
	uint32_t vw, kw = fix_widths(&whole, &vw), pos;
	float k[FIX_MAX_ROW], v[FIX_MAX_ROW];

	fill_q();
	for (a.group = 0; a.group < 2; a.group++)
		for (a.layer = 0; a.layer < 2 - a.group; a.layer++) {
			for (pos = t->from; pos < t->len; pos++) {
				uint64_t h = fix_history(t->tokens, pos, 0);

				fix_row(h, a.group, a.layer, k, kw, 0);
				fix_row(h, a.group, a.layer, v, vw, 1);
				ok(kv_store_pages(c, a.group, a.layer, pte[a.group], pos, 1,
						  k + rank * kw / 2, v + rank * vw / 2));
			}
			a.q = q_mem + rank * HEADS / 2 * 16;
			a.out = r->out[a.group][a.layer];
			a.lse = r->lse[a.group][a.layer];
			ok(kv_attn_pages(c, &a, &pte[a.group], &t->len));
		}
	r->extent_pages = kv_cache_extent_pages(c, 0);
}

static void member(int fd, void *arg)
{
	struct kv_cache_params p = split_params();
	struct hire *h = arg;
	struct kv_options o = { .name = "member", .member_token = h->token, .rank = 1 };
	uint64_t pte[2][MAX_PAGES];
	const uint64_t *ptes[2] = { pte[0], pte[1] };
	struct kv_cache *c;
	struct kv_seq *none;
	struct result r;
	struct step t;
	struct kv *kv;
	uint32_t g;

	ok(kv_open(d.spec, &o, &kv));
	ok(kv_cache_join(kv, &p, h->cache, &c));
	if (kv_seq_create(c, NULL, 0, &none) != -EPERM || kv_cache_extent_pages(c, 0))
		test_fail("a member has a sequence, or knows an extent it has not seen\n");
	while (peer_hear(fd, &t, sizeof(t))) {
		for (g = 0; g < 2; g++)
			ok(kv_pages_pte(c, g, t.nr, t.ids[g], pte[g]));
		rank_step(c, 1, &t, ptes, &r);
		peer_tell(fd, &r, sizeof(r));
	}
	kv_close(kv);
}

static void engine_start(struct engine *e)
{
	struct kv_cache_params p = split_params();
	struct hire h;

	ok(kv_open(d.spec, NULL, &e->kv));
	ok(kv_cache_open(e->kv, &p, &e->cache));
	ok(kv_member_token(e->kv, h.token));
	h.cache = kv_cache_id(e->cache);
	peer_start(&e->member, member, &h);
	ok(kv_seq_create(e->cache, NULL, 0, &e->seq));
}

/* Both ranks' heads side by side are the unsharded model's. */
static void merged(const struct step *t, const struct result *half, uint32_t group, uint32_t layer)
{
	struct check c = { .batch = 1, .group = group, .layer = layer, .q_len = 1, .heads = HEADS };
	static struct dense whole;
	uint32_t i, n = HEADS / 2;

	for (i = 0; i < 2; i++) {
		memcpy(out_mem + i * n * 8, half[i].out[group][layer], n * 8 * sizeof(float));
		memcpy(lse_mem + i * n, half[i].lse[group][layer], n * sizeof(float));
	}
	f.params = split_params();
	load_dense(&whole, t->tokens, t->len, group, layer, HEADS);
	compare(&c, &whole, 0, t->len);
}

/* The sequence has rows [0, from); those after it are stored by both ranks, then all attend. */
static void engine_step(struct engine *e, uint32_t from)
{
	const uint64_t *pte[2];
	struct result half[2];
	struct step t = { .from = from, .len = kv_seq_len(e->seq) };
	uint32_t g;

	memcpy(t.tokens, kv_seq_tokens(e->seq), t.len * sizeof(*t.tokens));
	for (g = 0; g < 2; g++) {
		const uint64_t *ids = kv_seq_page_ids(e->seq, g, &t.nr);

		memcpy(t.ids[g], ids, t.nr * sizeof(*ids));
		pte[g] = kv_seq_pte(e->seq, g, NULL);
	}
	peer_tell(e->member.fd, &t, sizeof(t));
	rank_step(e->cache, 0, &t, pte, &half[0]);
	if (!peer_hear(e->member.fd, &half[1], sizeof(half[1])))
		fail_msg("the member failed: status %#x", peer_end(&e->member));
	assert_int_equal(half[1].extent_pages, half[0].extent_pages);
	for (g = 0; g < 2; g++) {
		merged(&t, half, g, 0);
		if (!g)
			merged(&t, half, g, 1);
	}
	ok(kv_seq_commit(e->seq, t.len));
}

static void engine_append(struct engine *e, uint32_t first, uint32_t n)
{
	uint32_t tokens[MAX_TOK], from = kv_seq_len(e->seq);

	count_up(tokens, first, n);
	ok(kv_seq_append(e->seq, tokens, n));
	engine_step(e, from);
}

static int last_error(struct kv *kv)
{
	struct kv_info info;
	uint32_t i;
	int rc = 0;

	for (i = 0; !rc && i < DAEMON_TRIES; i++) {
		rc = kv_info(kv, &info);
		if (!rc)
			poll(NULL, 0, 10);
	}
	return rc;
}

/* A lead is a process too: its frames come back only when it is gone as well. */
static void first_engine(int fd, void *arg)
{
	uint32_t tokens[MAX_TOK];
	struct engine a;
	char go;

	(void)arg;
	count_up(tokens, 100, MAX_TOK);
	engine_start(&a);
	engine_append(&a, 100, 21);
	engine_append(&a, 121, 1);
	ok(kv_seq_drop_head(a.seq, 1, 22 + 1 - FIX_WINDOW));
	engine_append(&a, 122, 20);
	peer_tell(fd, "k", 1);
	peer_hear(fd, &go, 1);
	engine_append(&a, 142, 3);
	kill(a.member.pid, SIGKILL);
	peer_end(&a.member);
	if (last_error(a.kv) != -EPIPE || kv_seq_append(a.seq, tokens, PT) != -EPIPE)
		test_fail("an engine without its member lives on\n");
	kv_seq_release(a.seq);
	kv_close(a.kv);
	peer_tell(fd, "k", 1);
	peer_hear(fd, &go, 1);
}

static void two_ranks(void **state)
{
	struct peer lead;
	struct engine b;
	uint32_t tokens[MAX_TOK], hit;
	char done;

	(void)state;
	count_up(tokens, 100, MAX_TOK);
	peer_start(&lead, first_engine, NULL);
	assert_true(peer_hear(lead.fd, &done, 1));
	engine_start(&b); /* reads in both ranks what the other's ranks wrote: full pages only */
	ok(kv_seq_match(b.seq, tokens, 41, &hit));
	assert_int_equal(hit, 40);
	engine_step(&b, hit);
	engine_append(&b, 700, 5);
	ok(kv_seq_truncate(b.seq, 40));
	engine_append(&b, 140, 9);
	peer_tell(lead.fd, "g", 1);
	assert_true(peer_hear(lead.fd, &done, 1)); /* its member was killed */
	engine_append(&b, 149, 2);
	peer_tell(lead.fd, "g", 1);
	assert_int_equal(peer_end(&lead), 0);
	engine_append(&b, 151, 2); /* its pages outlive it */
	kv_seq_release(b.seq);
	kv_close(b.kv);
	assert_int_equal(peer_end(&b.member), 0);
	wait_until_free();
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, start, stop)
	const struct CMUnitTest tests[] = {
		T(window_gqa_f32),
		T(window_mla_bf16),
		T(two_ranks),
	};

	if (!daemon_here())
		return 0;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
