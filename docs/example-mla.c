/* SPDX-License-Identifier: Apache-2.0 */
/* One MLA layer from its weights: a prompt of 32 tokens, then one token more. Weights are made up
 * and small; the shapes are those of a checkpoint.
 *
 *	cc example-mla.c $(pkg-config --cflags --libs libkv) -o example-mla
 */
#include <kv/kv.h>
#include <stdio.h>
#include <stdlib.h>

#define HIDDEN	64u
#define HEADS	4u
#define NOPE	16u
#define ROPE	8u
#define V	16u
#define RANK	32u
#define PROMPT	32u

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, kv_error());
	return 1;
}

static float *weights(size_t n)
{
	float *w = malloc(n * sizeof(*w));

	for (size_t i = 0; i < n; i++)
		w[i] = (float)((int)(i * 2654435761u >> 20 & 0xff) - 128) / 1024;
	return w;
}

int main(void)
{
	struct kv_rope_params yarn = {	/* "rope_scaling" of a config.json, and its maximum */
		.dim = ROPE, .max_positions = 163840, .nr = 4096, .original_positions = 4096,
		.factor = 40, .mscale = 1, .mscale_all_dim = 1,
	};
	struct kv_mla_params layer = {
		.hidden = HIDDEN, .heads = HEADS, .nope = NOPE, .rope = ROPE, .v_dim = V,
		.rank = RANK, .dtype = KV_F32,
		.wq = weights(HEADS * (NOPE + ROPE) * HIDDEN),
		.wkv_a = weights((RANK + ROPE) * HIDDEN),
		.wkv_b = weights(HEADS * (NOPE + V) * RANK),
		.wo = weights(HIDDEN * HEADS * V),
	};
	struct kv_cache_params params = {
		.model = "example-mla", .nr_groups = 1,
		.group[0] = {
			.kind = KV_GROUP_FULL,
			.layout = { .kind = KV_MLA, .dtype = KV_BF16, .layers = 1, .rank = RANK,
				    .rope = ROPE, .page_tokens = 16 },
		},
	};
	uint32_t tokens[PROMPT + 1] = { 0 };
	float *x = weights((PROMPT + 1) * HIDDEN), *out = weights(PROMPT * HIDDEN);
	struct kv_cache *cache;
	struct kv_mla_info info;
	struct kv_rope rope;
	struct kv_mla *mla;
	struct kv_seq *seq;
	struct kv *kv;

	if (kv_rope_init(&rope, &yarn))
		return fail("rope");
	layer.rotary = &rope;
	if (kv_mla_create(&layer, &mla))
		return fail("layer");
	if (kv_open("embedded:host:16M", NULL, &kv) || kv_cache_open(kv, &params, &cache) ||
	    kv_seq_create(cache, NULL, 0, &seq))
		return fail("cache");
	struct kv_mla_step step = { .batch = 1, .q_len = PROMPT, .seqs = &seq, .x = x, .out = out };
	if (kv_seq_append(seq, tokens, PROMPT) || kv_mla_step(mla, cache, &step))
		return fail("prefill");
	step.q_len = 1;
	step.x = x + PROMPT * HIDDEN;
	if (kv_seq_append(seq, tokens, 1) || kv_mla_step(mla, cache, &step))
		return fail("decode");
	kv_mla_info(mla, &info);
	printf("%u tokens, scale %.6f, %llu bytes of weights, out[0] = %.6f\n", kv_seq_len(seq),
	       info.scale, (unsigned long long)info.weight_bytes, out[0]);
	kv_seq_release(seq);
	kv_close(kv);
	kv_mla_destroy(mla);
	kv_rope_fini(&rope);
	return 0;
}
