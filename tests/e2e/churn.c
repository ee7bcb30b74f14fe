/* SPDX-License-Identifier: Apache-2.0 */
/* churn - an engine that does everything to its sequences and checks every byte it reads back
 *
 *	churn SPEC SEED OPS [NAME]
 *
 * Each stored row is computed from the tokens up to it, the layer and the column, so any page that
 * holds the wrong content, from this engine or another, is seen. Ends 0, or 1 with a line; the pool
 * being full is expected and no failure. Used as the victim and the bystander of kill.c.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kv/kv.h>

#define SEQS	6u
#define LAYERS	2u
#define HEADS	2u
#define DIM	8u
#define PAGE	8u
#define MAX_LEN 160u
#define WORDS	3u /* few tokens, so that prefixes coincide between engines */

static struct kv *kv;
static struct kv_cache *cache;
static struct kv_seq *seqs[SEQS];
static uint32_t fresh[SEQS]; /* tokens before it have their rows */
static bool parked[SEQS];
static uint64_t rng;

static uint32_t random_below(uint32_t n)
{
	rng = rng * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((rng >> 33) % n);
}

static void die(const char *what, int err)
{
	fprintf(stderr, "churn: %s: %s (%d)\n", what, err ? kv_error() : "wrong content", err);
	exit(1);
}

/* The pool may be full; anything else is a failure. */
static bool full(const char *what, int err)
{
	if (err && err != -ENOMEM)
		die(what, err);
	return err != 0;
}

/* What column c of row t must be: a small integer that every dtype holds exactly. */
static float expect(const uint32_t *tokens, uint32_t t, uint32_t layer, uint32_t c)
{
	uint64_t h = 1469598103934665603ull;
	uint32_t i;

	for (i = 0; i <= t; i++)
		h = (h ^ tokens[i]) * 1099511628211ull;
	h = (h ^ layer << 8 ^ c) * 1099511628211ull;
	return (float)(h >> 40 & 1023) - 512;
}

static void store(uint32_t s, uint32_t from, uint32_t to)
{
	const uint32_t *tokens = kv_seq_tokens(seqs[s]);
	float k[HEADS * DIM], v[HEADS * DIM];
	uint32_t t, l, c;
	int err;

	for (t = from; t < to; t++)
		for (l = 0; l < LAYERS; l++) {
			for (c = 0; c < HEADS * DIM; c++) {
				k[c] = expect(tokens, t, l, c);
				v[c] = expect(tokens, t, l, c + HEADS * DIM);
			}
			err = kv_seq_store(seqs[s], 0, l, t, 1, k, v);
			if (err)
				die("store", err);
		}
	fresh[s] = to;
}

static void verify(uint32_t s)
{
	const struct kv_layout *lay = kv_cache_layout(cache, 0);
	const uint32_t *tokens = kv_seq_tokens(seqs[s]);
	uint32_t nr, t, l, h, c;
	const uint64_t *pte = kv_seq_pte(seqs[s], 0, &nr);
	struct kv_view view;

	for (t = 0; t < kv_seq_len(seqs[s]); t++)
		for (l = 0; l < LAYERS; l++) {
			kv_layout_view(lay, l, &view);
			for (h = 0; h < HEADS; h++) {
				const char *head = (const char *)(uintptr_t)pte[t / PAGE] +
						   view.layer_off + h * view.head_stride;
				const float *k = (const float *)(head + t % PAGE * view.k_row);
				const float *v =
					(const float *)(head + view.v_off + t % PAGE * view.v_row);

				for (c = 0; c < DIM; c++)
					if (k[c] != expect(tokens, t, l, h * DIM + c) ||
					    v[c] != expect(tokens, t, l, (h + HEADS) * DIM + c))
						die("verify", 0);
			}
		}
}

static void begin(uint32_t s)
{
	uint32_t prompt[MAX_LEN / 2], n = 1 + random_below(MAX_LEN / 2), i, hit;
	int err = kv_seq_create(cache, NULL, 0, &seqs[s]);

	if (err)
		die("create", err);
	for (i = 0; i < n; i++)
		prompt[i] = i < 40 ? i % 7 : random_below(WORDS);
	if (full("match", kv_seq_match(seqs[s], prompt, n, &hit)))
		return;
	fresh[s] = hit;
	verify(s);
	if (full("append", kv_seq_append(seqs[s], prompt + hit, n - hit)))
		return;
	store(s, hit, n);
}

static void grow(uint32_t s)
{
	uint32_t n = 1 + random_below(12), more[12], i, len = kv_seq_len(seqs[s]);

	if (len + n > MAX_LEN)
		return;
	for (i = 0; i < n; i++)
		more[i] = random_below(WORDS);
	if (!full("append", kv_seq_append(seqs[s], more, n)))
		store(s, len, len + n);
}

static void fork_into(uint32_t s, uint32_t to)
{
	int err;

	if (seqs[to])
		return;
	err = kv_seq_fork(seqs[s], &seqs[to]);
	if (full("fork", err)) {
		seqs[to] = NULL;
		return;
	}
	fresh[to] = fresh[s];
	parked[to] = false;
}

static void end(uint32_t s)
{
	kv_seq_release(seqs[s]);
	seqs[s] = NULL;
	parked[s] = false;
}

static void truncate_to(uint32_t s, uint32_t len)
{
	if (!full("truncate", kv_seq_truncate(seqs[s], len)) && fresh[s] > len)
		fresh[s] = len;
}

static void toggle_park(uint32_t s)
{
	uint32_t len;
	int err;

	if (!parked[s]) {
		if (fresh[s])
			err = kv_seq_commit(seqs[s], fresh[s]);
		else
			err = 0;
		if (full("commit", err))
			return;
		parked[s] = !full("park", kv_seq_park(seqs[s]));
		return;
	}
	if (full("resume", kv_seq_resume(seqs[s], &len)))
		return;
	parked[s] = false;
	fresh[s] = len;
}

static void step(void)
{
	uint32_t s = random_below(SEQS), what = random_below(16);
	int err;

	if (!seqs[s]) {
		begin(s);
		return;
	}
	if (parked[s] && what != 15) {
		toggle_park(s);
		return;
	}
	switch (what) {
	case 0:
	case 1:
	case 2:
	case 3:
	case 4:
	case 5:
		grow(s);
		break;
	case 6:
	case 7:
	case 8:
		err = kv_seq_commit(seqs[s], fresh[s]);
		full("commit", err);
		break;
	case 9:
	case 10:
		fork_into(s, random_below(SEQS));
		break;
	case 11:
		truncate_to(s, random_below(kv_seq_len(seqs[s]) + 1));
		break;
	case 12:
	case 13:
		toggle_park(s);
		break;
	default:
		end(s);
	}
	if (seqs[s] && !parked[s])
		verify(s);
}

int main(int argc, char **argv)
{
	struct kv_options opt = { .name = argc > 4 ? argv[4] : "churn" };
	struct kv_cache_params p = { .model = "churn", .nr_groups = 1, .nr_shards = 1 };
	unsigned long i, ops;
	int err;

	if (argc < 4) {
		fputs("usage: churn SPEC SEED OPS [NAME]\n", stderr);
		return 2;
	}
	rng = strtoul(argv[2], NULL, 10) * 2654435761u + 1;
	ops = strtoul(argv[3], NULL, 10);
	p.group[0].kind = KV_GROUP_FULL;
	p.group[0].layout = (struct kv_layout){ .kind = KV_GQA,
						.dtype = KV_F32,
						.layers = LAYERS,
						.kv_heads = HEADS,
						.head_dim = DIM,
						.head_dim_v = DIM,
						.page_tokens = PAGE };
	err = kv_open(argv[1], &opt, &kv);
	if (err)
		die("open", err);
	err = kv_cache_open(kv, &p, &cache);
	if (err)
		die("cache", err);
	for (i = 0; i < ops; i++)
		step();
	for (i = 0; i < SEQS; i++)
		end((uint32_t)i);
	kv_close(kv);
	printf("churn: %lu operations, every row right\n", ops);
	return 0;
}
