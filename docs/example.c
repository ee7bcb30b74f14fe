/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest engine on libkv: one layer, one head of 8, made-up rows. Run it twice against a kvd
 * and the second run finds the prompt of the first.
 *
 *	cc example.c $(pkg-config --cflags --libs libkv) -o example
 *	./example unix:/run/kvd/kvd.sock		# or embedded:host:16M
 */
#include <kv/kv.h>
#include <stdio.h>

#define PROMPT	100u
#define DIM	8u

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, kv_error());
	return 1;
}

int main(int argc, char **argv)
{
	struct kv_cache_params params = {
		.model = "example", .revision = "1", .nr_groups = 1,
		.group[0] = {
			.kind = KV_GROUP_FULL,
			.layout = { .kind = KV_GQA, .dtype = KV_F16, .layers = 1, .kv_heads = 1,
				    .head_dim = DIM, .head_dim_v = DIM, .page_tokens = 16 },
		},
	};
	uint32_t prompt[PROMPT], hit, i;
	float k[DIM], v[DIM], q[DIM] = { 1 }, out[DIM];
	struct kv_cache *cache;
	struct kv_seq *seq;
	struct kv *kv;

	for (i = 0; i < PROMPT; i++)
		prompt[i] = i;
	if (kv_open(argc > 1 ? argv[1] : "embedded:host:16M", NULL, &kv))
		return fail("open");
	if (kv_cache_open(kv, &params, &cache) || kv_seq_create(cache, NULL, 0, &seq))
		return fail("cache");
	if (kv_seq_match(seq, prompt, PROMPT, &hit))
		return fail("match");
	if (kv_seq_append(seq, prompt + hit, PROMPT - hit))
		return fail("append");
	for (i = hit; i < PROMPT; i++) {	/* what is not cached must be computed */
		for (uint32_t c = 0; c < DIM; c++)
			k[c] = v[c] = (float)((i + c) % 7) / 7;
		if (kv_seq_store(seq, 0, 0, i, 1, k, v))
			return fail("store");
	}
	if (kv_attn(cache,
		    &(struct kv_attn){ .batch = 1, .seqs = &seq, .heads = 1, .q = q, .out = out }))
		return fail("attention");
	if (kv_seq_commit(seq, PROMPT))
		return fail("commit");
	printf("%u of %u tokens were cached; out[0] = %.6f\n", hit, PROMPT, out[0]);
	kv_seq_release(seq);
	kv_close(kv);
	return 0;
}
