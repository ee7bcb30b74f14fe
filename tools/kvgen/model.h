/* SPDX-License-Identifier: Apache-2.0 */
/* model - the weights of a small transformer, read from a file and checked
 *
 * Model:      Llama-style: embedding, layers of (attention, SwiGLU) with RMSNorm before each and
 *             residuals around them, last norm, classifier. RoPE on adjacent pairs, no biases.
 *             Attention is MODEL_GQA (MHA and MQA included) or MODEL_MLA (DeepSeek-V2, 2024,
 *             without a query LoRA). Two file formats, told apart by their first bytes:
 *               .kvm          models/README.md; either attention, tokenizer inside, CRC-32
 *               llama2.c v0   seven int32 and fp32 weights; GQA only, tokenizer in its own file
 * Invariants: what model_load() returns is consistent: heads divide, widths are multiples of 8
 *             that libkv takes, every tensor has its full size, every weight is finite.
 * Ownership:  load/destroy; all pointers point into the model.
 * Context:    read-only after loading, any number of threads.
 * Units:      elements; matrices are [out][in], row-major, fp32 whatever the file has.
 * Limits:     MODEL_MAX_…; a file of at most MODEL_MAX_BYTES.
 * Errors:     -EINVAL not a model, cut short, damaged or contradictory; -ENOMEM; errno of reading.
 *             The fault names the file, what is wrong and the way out.
 * See:        models/README.md, tests/unit/kvgen/model_test.c
 */
#ifndef MODEL_H
#define MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "tokenizer.h"

#define MODEL_MAX_BYTES		((size_t)1 << 30)
#define MODEL_MAX_DIM		8192u
#define MODEL_MAX_HIDDEN	65536u
#define MODEL_MAX_LAYERS	256u
#define MODEL_MAX_HEADS		1024u
#define MODEL_MAX_ROW		576u	/* head_dim; rank + rope */
#define MODEL_MAX_VOCAB		262144u
#define MODEL_MAX_POS		131072u

enum model_attn { MODEL_GQA = 1, MODEL_MLA = 2 };

struct model_dims {
	uint32_t attn;			/* enum model_attn */
	uint32_t dim, hidden, layers, heads;
	uint32_t kv_heads, head_dim;	/* GQA, else 0 */
	uint32_t rank, rope, nope, v;	/* MLA, else 0 */
	uint32_t vocab, max_pos;
	float theta, eps;
};

struct model_layer {
	const float *attn_norm;		/* [dim] */
	const float *wq;		/* [heads][head_dim][dim]; MLA [heads][nope + rope][dim] */
	const float *wk, *wv;		/* GQA [kv_heads][head_dim][dim] */
	const float *w_dkv;		/* MLA [rank + rope][dim] */
	const float *kv_norm;		/* MLA [rank] */
	const float *w_uk, *w_uv;	/* MLA [heads][nope][rank], [heads][v][rank] */
	const float *wo;		/* [dim][heads * head_dim or v] */
	const float *ffn_norm;		/* [dim] */
	const float *w1, *w2, *w3;	/* [hidden][dim], [dim][hidden], [hidden][dim] */
};

struct model {
	struct model_dims d;
	const float *embed;		/* [vocab][dim] */
	const float *final_norm;	/* [dim] */
	const float *classifier;	/* [vocab][dim]; may be embed */
	struct model_layer *layer;
	struct tokenizer *tokenizer;	/* embedded one, or NULL */
	float *weights;
	size_t nr_weights;
};

int model_load(struct model **, const char *path, struct fault *);
/* The same from memory; name stands for the file in messages. */
int model_parse(struct model **, const void *data, size_t len, const char *name, struct fault *);
void model_destroy(struct model *);

#endif
