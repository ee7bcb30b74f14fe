// SPDX-License-Identifier: Apache-2.0
/* layout - contracts in kv/layout.h and layout.h */
#include <errno.h>
#include <string.h>

#include "err.h"
#include "layout.h"

#define BLOCK_ALIGN	64u /* of every K, V or latent block, and so of a page */
#define MAX_LAYERS	4096u
#define MAX_PAGE_TOKENS 65536u
#define MAX_SHARDS	16u /* KV_MAX_SHARDS, kept by tests/unit/libkv/layout_test.c */

_Static_assert((int)KV_GQA == (int)KERN_GQA && (int)KV_MLA == (int)KERN_MLA,
	       "kinds are the kernels'");
_Static_assert((int)KV_F32 == (int)KERN_F32 && (int)KV_F16 == (int)KERN_F16 &&
		       (int)KV_BF16 == (int)KERN_BF16 && (int)KV_F8 == (int)KERN_F8 &&
		       (int)KV_I8 == (int)KERN_I8 && (int)KV_F8_DS == (int)KERN_F8_DS,
	       "dtypes are the kernels'");
_Static_assert((int)KV_SCALE_HEAD == (int)KERN_SCALE_HEAD &&
		       (int)KV_SCALE_TOKEN == (int)KERN_SCALE_TOKEN,
	       "scales are the kernels'");
/* The largest legal page, padding included, stays far below 2^64. */
_Static_assert(MAX_LAYERS *KERN_MAX_HEADS * 2ull * (MAX_PAGE_TOKENS * KERN_MAX_DIM * 4ull + 64) <
		       1ull << 52,
	       "page bytes fit 64 bits");

static const struct {
	const char *name, *other;
} dtype_names[] = {
	[KV_F32] = {"f32", "fp32"}, [KV_F16] = {"f16", "fp16"}, [KV_BF16] = {"bf16", "bf16"},
	[KV_F8] = {"f8", "fp8"},    [KV_I8] = {"i8", "int8"},	[KV_F8_DS] = {"f8_ds", "fp8_ds"},
};

#define NR_DTYPES (sizeof(dtype_names) / sizeof(dtype_names[0]))

uint32_t kv_dtype_bytes(uint32_t dtype)
{
	return kern_dtype_size(dtype);
}

int kv_dtype_parse(const char *name, uint32_t *dtype)
{
	uint32_t i;

	for (i = KV_F32; name && i < NR_DTYPES; i++) {
		if (!strcmp(name, dtype_names[i].name) || !strcmp(name, dtype_names[i].other)) {
			*dtype = i;
			return 0;
		}
	}
	return err_set(-EINVAL, "unknown dtype '%s': f32, f16, bf16, f8, i8 or f8_ds",
		       name ? name : "(null)");
}

static uint64_t align_block(uint64_t bytes)
{
	return (bytes + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
}

static int check_range(const char *what, uint32_t value, uint32_t max)
{
	if (value && value <= max)
		return 0;
	return err_set(-EINVAL, "layout: %s is %u, must be 1 to %u", what, value, max);
}

static int check_dim(const char *what, uint32_t value)
{
	if (value && value <= KERN_MAX_DIM && value % 8 == 0)
		return 0;
	return err_set(-EINVAL, "layout: %s is %u, must be a multiple of 8 from 8 to %u", what,
		       value, KERN_MAX_DIM);
}

/* A field of another kind is a mistake or an uninitialised struct, and would make two engines with
 * the same pages disagree about their layout. */
static int check_zero(const char *kind, const char *what, uint32_t value)
{
	if (!value)
		return 0;
	return err_set(-EINVAL, "layout: %s is %u, but %s pages have none: must be 0", what, value,
		       kind);
}

static int check_gqa(const struct kv_layout *l)
{
	int err = check_range("kv_heads", l->kv_heads, KERN_MAX_HEADS);

	if (!err)
		err = check_dim("head_dim", l->head_dim);
	if (!err)
		err = check_dim("head_dim_v", l->head_dim_v);
	if (!err)
		err = check_zero("GQA", "rank", l->rank);
	if (!err)
		err = check_zero("GQA", "rope", l->rope);
	return err ? err : check_zero("GQA", "opaque_token_bytes", l->opaque_token_bytes);
}

static int check_mla(const struct kv_layout *l)
{
	int err = check_dim("rank", l->rank);

	if (!err)
		err = check_dim("rope", l->rope);
	if (!err && l->rank + l->rope > KERN_MAX_DIM)
		err = err_set(-EINVAL, "layout: rank %u + rope %u is %u, must be at most %u",
			      l->rank, l->rope, l->rank + l->rope, KERN_MAX_DIM);
	if (!err)
		err = check_zero("MLA", "kv_heads", l->kv_heads);
	if (!err)
		err = check_zero("MLA", "head_dim", l->head_dim);
	if (!err)
		err = check_zero("MLA", "head_dim_v", l->head_dim_v);
	return err ? err : check_zero("MLA", "opaque_token_bytes", l->opaque_token_bytes);
}

static int check_opaque(const struct kv_layout *l)
{
	int err = 0;

	if (!l->opaque_token_bytes)
		err = err_set(-EINVAL, "layout: opaque_token_bytes is 0, must be at least 1");
	if (!err)
		err = check_zero("opaque", "kv_heads", l->kv_heads);
	if (!err)
		err = check_zero("opaque", "head_dim", l->head_dim);
	if (!err)
		err = check_zero("opaque", "head_dim_v", l->head_dim_v);
	if (!err)
		err = check_zero("opaque", "rank", l->rank);
	if (!err)
		err = check_zero("opaque", "scale", l->scale);
	return err ? err : check_zero("opaque", "rope", l->rope);
}

static int check_dtype(const struct kv_layout *l)
{
	bool scaled = l->dtype == KV_F8 || l->dtype == KV_I8;

	if (l->dtype < KV_F32 || l->dtype > KV_F8_DS)
		return err_set(-EINVAL,
			       "layout: dtype is %u, must be %d (f32), %d (f16), %d (bf16), "
			       "%d (f8), %d (i8) or %d (f8_ds)",
			       l->dtype, KV_F32, KV_F16, KV_BF16, KV_F8, KV_I8, KV_F8_DS);
	if (l->scale > (scaled ? KV_SCALE_TOKEN : KV_SCALE_NONE))
		return err_set(-EINVAL, "layout: scale is %u, but %s", l->scale,
			       scaled ? "the largest is KV_SCALE_TOKEN"
				      : "only f8 and i8 rows have one: must be 0");
	if (l->dtype == KV_I8 && l->scale == KV_SCALE_NONE)
		return err_set(-EINVAL, "layout: i8 rows need a scale, of heads or of tokens");
	if (l->dtype == KV_F8_DS && (l->kind != KV_MLA || l->rank % KERN_DS_BLOCK))
		return err_set(-EINVAL,
			       "layout: f8_ds rows are MLA's with a rank that is a multiple of %u",
			       KERN_DS_BLOCK);
	return 0;
}

int kv_layout_check(const struct kv_layout *l)
{
	int err;

	if (!l)
		return err_set(-EINVAL, "layout: NULL");
	err = check_range("page_tokens", l->page_tokens, MAX_PAGE_TOKENS);
	if (err)
		return err;
	if (l->kind == KV_OPAQUE)
		return check_opaque(l);
	if (l->kind != KV_GQA && l->kind != KV_MLA)
		return err_set(-EINVAL,
			       "layout: kind is %u, must be GQA (%d), MLA (%d) or opaque (%d)",
			       l->kind, KV_GQA, KV_MLA, KV_OPAQUE);
	err = check_dtype(l);
	if (err)
		return err;
	err = check_range("layers", l->layers, MAX_LAYERS);
	if (err)
		return err;
	return l->kind == KV_GQA ? check_gqa(l) : check_mla(l);
}

/* The geometry of a checked GQA or MLA layout; everything else is derived from it. */
static void view_first_layer(const struct kv_layout *l, struct kv_view *v)
{
	uint64_t size = kv_dtype_bytes(l->dtype);
	bool scales = l->scale == KV_SCALE_TOKEN;
	uint64_t scale_block = scales ? align_block(l->page_tokens * sizeof(float)) : 0;

	memset(v, 0, sizeof(*v));
	if (l->kind == KV_MLA) {
		v->k_row = kern_mla_row_bytes(l->dtype, l->rank, l->rope);
		v->layer_stride = align_block(l->page_tokens * v->k_row);
		v->k_scale_off = scales ? v->layer_stride : 0;
		v->layer_stride += scale_block;
		return;
	}
	v->k_row = l->head_dim * size;
	v->v_row = l->head_dim_v * size;
	v->v_off = align_block(l->page_tokens * v->k_row);
	v->head_stride = v->v_off + align_block(l->page_tokens * v->v_row);
	if (scales) {
		v->k_scale_off = v->head_stride;
		v->v_scale_off = v->k_scale_off + scale_block;
	}
	v->head_stride += 2 * scale_block;
	v->layer_stride = l->kv_heads * v->head_stride;
}

uint64_t kv_layout_page_bytes(const struct kv_layout *l)
{
	struct kv_view v;

	if (kv_layout_check(l))
		return 0;
	if (l->kind == KV_OPAQUE)
		return align_block((uint64_t)l->page_tokens * l->opaque_token_bytes);
	view_first_layer(l, &v);
	return l->layers * v.layer_stride;
}

uint64_t kv_layout_token_bytes(const struct kv_layout *l)
{
	struct kv_view v;
	uint64_t scale;

	if (kv_layout_check(l))
		return 0;
	if (l->kind == KV_OPAQUE)
		return l->opaque_token_bytes;
	view_first_layer(l, &v);
	scale = l->scale == KV_SCALE_TOKEN ? sizeof(float) : 0;
	if (l->kind == KV_MLA)
		return l->layers * (v.k_row + scale);
	return l->layers * l->kv_heads * (v.k_row + v.v_row + 2 * scale);
}

static int check_layer(const struct kv_layout *l, uint32_t layer)
{
	if (l->kind == KV_OPAQUE)
		return err_set(-EOPNOTSUPP,
			       "an opaque layout has no rows: only its engine knows them");
	if (layer >= l->layers)
		return err_set(-EINVAL, "layer %u does not exist: the group has %u", layer,
			       l->layers);
	return 0;
}

int kv_layout_view(const struct kv_layout *l, uint32_t layer, struct kv_view *v)
{
	int err = kv_layout_check(l);

	if (!err)
		err = check_layer(l, layer);
	if (err)
		return err;
	view_first_layer(l, v);
	v->layer_off = layer * v->layer_stride;
	return 0;
}

int layout_kern_view(const struct kv_layout *l, uint32_t layer, struct kern_view *k)
{
	bool mla = l->kind == KV_MLA;
	int err = check_layer(l, layer);
	struct kv_view v;

	if (err)
		return err;
	view_first_layer(l, &v);
	*k = (struct kern_view){
		.kind = l->kind,
		.dtype = l->dtype,
		.page_tokens = l->page_tokens,
		.kv_heads = mla ? 1 : l->kv_heads,
		.head_dim = mla ? l->rank : l->head_dim,
		.head_dim_v = mla ? l->rope : l->head_dim_v,
		.layer_off = layer * v.layer_stride,
		.head_stride = v.head_stride,
		.v_off = v.v_off,
		.k_row = v.k_row,
		.v_row = v.v_row,
		.scale = l->scale,
		.k_scale_off = v.k_scale_off,
		.v_scale_off = v.v_scale_off,
	};
	return 0;
}

void layout_copy_tokens(const struct kv_layout *l, uint64_t dst_page, uint64_t src_page,
			uint32_t tokens)
{
	void *dst = (void *)(uintptr_t)dst_page;
	const void *src = (const void *)(uintptr_t)src_page;
	struct kern_view k;
	struct kv_view v;

	if (l->kind == KV_OPAQUE) {
		memcpy(dst, src, (size_t)l->page_tokens * l->opaque_token_bytes);
		return;
	}
	view_first_layer(l, &v);
	if (!layout_kern_view(l, 0, &k))
		kern_copy_rows(dst, src, &k, l->layers, v.layer_stride, tokens);
}

/* KV heads per rank follow the engines' rule: whole heads, and when there are more ranks than
 * heads, equally many ranks repeat each head. */
static int shard_heads(const struct kv_layout *l, uint32_t nr_shards, uint32_t shard,
		       struct kv_layout *out, bool *replicated)
{
	uint32_t heads = l->kv_heads;

	if (heads >= nr_shards ? heads % nr_shards : nr_shards % heads)
		return err_set(
			-EINVAL,
			"%u KV heads and %u shards: %s; choose a number of shards that divides "
			"the heads or is a multiple of them",
			heads, nr_shards,
			heads >= nr_shards ? "the heads do not divide evenly over the shards"
					   : "the shards do not divide evenly over the heads");
	*out = *l;
	out->kv_heads = heads >= nr_shards ? heads / nr_shards : 1;
	*replicated = heads < nr_shards && shard % (nr_shards / heads);
	return 0;
}

int kv_layout_shard(const struct kv_layout *l, uint32_t nr_shards, uint32_t shard,
		    struct kv_layout *out, bool *replicated)
{
	int err = kv_layout_check(l);
	bool unused;

	if (err)
		return err;
	if (!nr_shards || nr_shards > MAX_SHARDS)
		return err_set(-EINVAL, "%u shards: must be 1 to %u", nr_shards, MAX_SHARDS);
	if (shard >= nr_shards)
		return err_set(-EINVAL, "shard %u does not exist: there are %u", shard, nr_shards);
	if (!replicated)
		replicated = &unused;
	if (l->kind == KV_GQA)
		return shard_heads(l, nr_shards, shard, out, replicated);
	/* Nobody knows what opaque ranks share, so each counts as content of its own. */
	*replicated = l->kind == KV_MLA && shard > 0;
	*out = *l;
	return 0;
}
