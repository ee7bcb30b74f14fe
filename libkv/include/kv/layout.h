/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h - what a page of one group holds; the only place that computes bytes
 *
 * GQA (MHA and MQA included), page = [layer][kv_head][ K: page_tokens x head_dim |
 *                                                      V: page_tokens x head_dim_v |
 *                                                      K scales | V scales: page_tokens x fp32 ]
 * MLA, page = [layer][ page_tokens x [latent: rank | roped key: rope] |
 *                      scales: page_tokens x fp32 ]
 *   one row serves all heads as key and, its first rank elements, as value (DeepSeek-V2, 2024).
 *   KV_F8_DS rows are [rank e4m3 | fp32 scale of each 128 of them | rope bf16]: 656 bytes for
 *   512 + 64, the layout of DeepSeek's FlashMLA.
 * Scales are there with KV_SCALE_TOKEN only. An 8-bit element stands for element * scale.
 * Opaque, page = page_tokens x opaque_token_bytes, nobody looks inside.
 *
 * Every block of rows or scales starts at a multiple of 64 bytes from the page base, and a page is
 * a multiple of 64 bytes. All calls are [concurrent] and pure.
 */
#ifndef KV_LAYOUT_H
#define KV_LAYOUT_H

#include <kv/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kv_kind { KV_GQA = 1, KV_MLA = 2, KV_OPAQUE = 3 };
enum kv_dtype {
	KV_F32 = 1,
	KV_F16 = 2,
	KV_BF16 = 3,
	KV_F8 = 4,			/* e4m3fn: up to 448, no infinity */
	KV_I8 = 5,			/* needs a scale */
	KV_F8_DS = 6,			/* MLA only, rank a multiple of 128; has its scales */
};

/* Of KV_F8 and KV_I8; all other dtypes have KV_SCALE_NONE. */
enum kv_scale {
	KV_SCALE_NONE = 0,
	KV_SCALE_HEAD,			/* K and V of a KV head have one each: part of the model,
					 * so given when it is opened (kv_group.k_scale) */
	KV_SCALE_TOKEN,			/* each row has its own, in the page: found by the store */
};

/* Fields of another kind must be 0; opaque pages ignore dtype and layers. */
struct kv_layout {
	uint32_t kind;			/* enum kv_kind */
	uint32_t dtype;			/* enum kv_dtype, of cached rows */
	uint32_t layers;
	uint32_t kv_heads;		/* GQA */
	uint32_t head_dim, head_dim_v;	/* GQA; multiples of 8 up to 576 */
	uint32_t rank, rope;		/* MLA; multiples of 8, together up to 576 */
	uint32_t page_tokens;		/* 1 to 65536; caches default to 64 */
	uint32_t opaque_token_bytes;	/* OPAQUE */
	uint32_t scale;			/* enum kv_scale */
};

/* Where one layer stands inside a page, in bytes from the page base. */
struct kv_view {
	uint64_t layer_off, layer_stride;
	uint64_t head_stride, v_off;	/* GQA */
	uint64_t k_row, v_row;		/* between tokens */
	uint64_t k_scale_off, v_scale_off; /* KV_SCALE_TOKEN: from a head's K rows (MLA: from
					 * layer_off, k only); fp32 next to each other */
};

KV_API int kv_layout_check(const struct kv_layout *); /* 0 or -EINVAL, kv_error() says why */
KV_API uint64_t kv_layout_page_bytes(const struct kv_layout *);	/* padding included; 0 if invalid */
KV_API uint64_t kv_layout_token_bytes(const struct kv_layout *); /* with scales, all layers */
KV_API int kv_layout_view(const struct kv_layout *, uint32_t layer, struct kv_view *);

/* The layout of one shard when a model is split over nr_shards ranks: GQA heads are divided
 * (replicated when there are fewer heads than ranks), MLA rows replicated. -EINVAL names both
 * numbers when they do not divide. *replicated (may be NULL): an earlier shard has the same
 * content. Opaque: every shard has the whole layout and counts as content of its own. */
KV_API int kv_layout_shard(const struct kv_layout *, uint32_t nr_shards, uint32_t shard,
			   struct kv_layout *out, bool *replicated);

/* Of an element; 0 if unknown or, KV_F8_DS, not all are alike. */
KV_API uint32_t kv_dtype_bytes(uint32_t dtype);
/* f32 f16 bf16 f8 i8 f8_ds; fp8 and int8 are understood too. */
KV_API int kv_dtype_parse(const char *name, uint32_t *dtype);

#ifdef __cplusplus
}
#endif
#endif
