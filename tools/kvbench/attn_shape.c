// SPDX-License-Identifier: Apache-2.0
/* attn_shape - contract in attn_shape.h */
#include "attn_shape.h"

#include <stdio.h>
#include <string.h>

#include <kv/layout.h>

#define MAX_CTX	    (1u << 24)
#define MAX_PAGE    65536u
#define MAX_BATCH   1024u
#define MAX_THREADS 256u

static bool eight_bits(uint32_t dtype)
{
	return dtype == KERN_F8 || dtype == KERN_I8;
}

void attn_shape_default(struct attn_shape *s)
{
	bool mla = s->kind == KERN_MLA;

	s->kind = mla ? KERN_MLA : KERN_GQA;
	s->heads = s->heads ? s->heads : mla ? 128 : 32;
	s->kv_heads = s->kv_heads ? s->kv_heads : mla ? 1 : 8;
	s->dim = s->dim ? s->dim : mla ? 576 : 128;
	s->dim_v = s->dim_v ? s->dim_v : mla ? 512 : s->dim;
	s->ctx = s->ctx ? s->ctx : mla ? 4096 : 8192;
	s->batch = s->batch ? s->batch : 1;
	s->q_len = s->q_len ? s->q_len : 1;
	s->dtype = s->dtype ? s->dtype : KERN_BF16;
	if (!s->q_dtype)
		s->q_dtype = s->dtype == KERN_F32 || s->dtype == KERN_F16 ? s->dtype : KERN_BF16;
	if (!s->scale && eight_bits(s->dtype))
		s->scale = KERN_SCALE_TOKEN;
	s->page_tokens = s->page_tokens ? s->page_tokens : 64;
	s->threads = s->threads ? s->threads : 1;
}

/* Blocks of rows and of scales start at multiples of 64 bytes. */
static uint64_t block(uint64_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

uint64_t attn_shape_view(const struct attn_shape *s, struct kern_view *v)
{
	uint64_t size = kern_dtype_size(s->dtype), tokens = s->page_tokens;
	uint64_t scales = s->scale == KERN_SCALE_TOKEN ? block(4 * tokens) : 0;

	*v = (struct kern_view){
		.kind = s->kind,
		.dtype = s->dtype,
		.page_tokens = s->page_tokens,
		.kv_heads = s->kv_heads,
		.scale = s->scale,
	};
	if (s->kind == KERN_MLA) {
		v->head_dim = s->dim_v;
		v->head_dim_v = s->dim - s->dim_v;
		v->k_row = kern_mla_row_bytes(s->dtype, v->head_dim, v->head_dim_v);
		v->k_scale_off = scales ? block(v->k_row * tokens) : 0;
		return block(v->k_row * tokens) + scales;
	}
	v->head_dim = s->dim;
	v->head_dim_v = s->dim_v;
	v->k_row = size * s->dim;
	v->v_row = size * s->dim_v;
	v->v_off = block(v->k_row * tokens);
	v->k_scale_off = scales ? v->v_off + block(v->v_row * tokens) : 0;
	v->v_scale_off = scales ? v->k_scale_off + scales : 0;
	v->head_stride = v->v_off + block(v->v_row * tokens) + 2 * scales;
	return v->head_stride * s->kv_heads;
}

static const char *check_heads(const struct attn_shape *s)
{
	if (!s->kv_heads || !s->heads || s->heads > KERN_MAX_HEADS || s->heads % s->kv_heads)
		return "--heads must be a multiple of --kv-heads, at most 1024";
	if (s->kind == KERN_MLA && s->kv_heads != 1)
		return "MLA has one row for all heads: --kv-heads 1";
	if (s->kind == KERN_MLA && s->dim <= s->dim_v)
		return "MLA: --dim is rank + rope, --dim-v the rank: 576 and 512";
	return NULL;
}

static const char *check_rows(const struct attn_shape *s)
{
	if (s->dim < 8 || s->dim > KERN_MAX_DIM || s->dim % 8 || s->dim_v < 8 ||
	    s->dim_v > KERN_MAX_DIM || s->dim_v % 8)
		return "--dim and --dim-v are multiples of 8 up to 576";
	if (s->page_tokens < 1 || s->page_tokens > MAX_PAGE)
		return "--page is 1 to 65536";
	if (s->dtype == KERN_F8_DS && (s->kind != KERN_MLA || s->dim_v % KERN_DS_BLOCK))
		return "--dtype f8_ds is for MLA, of a --dim-v that 128 divides";
	if (s->scale && !eight_bits(s->dtype))
		return "--scale is for f8 and i8";
	return NULL;
}

const char *attn_shape_check(const struct attn_shape *s)
{
	const char *wrong = check_heads(s);

	wrong = wrong ? wrong : check_rows(s);
	if (wrong)
		return wrong;
	if (s->ctx < 1 || s->ctx > MAX_CTX)
		return "--ctx is 1 to 16777216";
	if (s->batch < 1 || s->batch > MAX_BATCH)
		return "--batch is 1 to 1024";
	if (s->q_len < 1 || s->q_len > KERN_MAX_Q || s->q_len > s->ctx)
		return "--q-len is 1 to 512, and no more than --ctx";
	if (s->threads < 1 || s->threads > MAX_THREADS)
		return "--threads is 1 to 256";
	if (s->shared > s->ctx)
		return "--shared-prefix is no more than --ctx";
	return NULL;
}

double attn_shape_flop_pos(const struct attn_shape *s)
{
	return 2.0 * s->heads * ((double)s->dim + s->dim_v);
}

double attn_shape_bytes_pos(const struct attn_shape *s)
{
	double scale = s->scale == KERN_SCALE_TOKEN ? 4 : 0, size = kern_dtype_size(s->dtype);

	if (s->kind == KERN_MLA)
		return kern_mla_row_bytes(s->dtype, s->dim_v, s->dim - s->dim_v) + scale;
	return s->kv_heads * (size * s->dim + size * s->dim_v + 2 * scale);
}

double attn_shape_flop(const struct attn_shape *s)
{
	double seen = (double)s->q_len * s->ctx - (double)s->q_len * (s->q_len - 1) / 2;

	return seen * s->batch * attn_shape_flop_pos(s);
}

uint32_t attn_shape_pages(const struct attn_shape *s)
{
	return (s->ctx + s->page_tokens - 1) / s->page_tokens;
}

uint32_t attn_shape_shared_pages(const struct attn_shape *s)
{
	return s->batch > 1 ? s->shared / s->page_tokens : 0;
}

uint32_t attn_shape_table_pages(const struct attn_shape *s)
{
	uint32_t shared = attn_shape_shared_pages(s);

	return shared + s->batch * (attn_shape_pages(s) - shared);
}

double attn_shape_bytes(const struct attn_shape *s)
{
	double shared = (double)attn_shape_shared_pages(s) * s->page_tokens;

	return (shared + s->batch * (s->ctx - shared)) * attn_shape_bytes_pos(s);
}

static const char *const dtypes[] = {
	[KERN_F32] = "f32", [KERN_F16] = "f16", [KERN_BF16] = "bf16",
	[KERN_F8] = "f8",   [KERN_I8] = "i8",	[KERN_F8_DS] = "f8_ds",
};
#define NR_DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

const char *attn_dtype_name(uint32_t dtype)
{
	return dtype && dtype < NR_DTYPES ? dtypes[dtype] : "?";
}

uint32_t attn_dtype_parse(const char *name)
{
	uint32_t dtype;

	return kv_dtype_parse(name, &dtype) ? 0 : dtype;
}

const char *attn_shape_name(const struct attn_shape *s, char *buf, unsigned int size)
{
	if (s->kind == KERN_MLA)
		snprintf(buf, size, "mla %u heads %u/%u %s, %u tokens", s->heads, s->dim, s->dim_v,
			 attn_dtype_name(s->dtype), s->ctx);
	else
		snprintf(buf, size, "gqa %u/%u d%u %s, %u tokens", s->heads, s->kv_heads, s->dim,
			 attn_dtype_name(s->dtype), s->ctx);
	return buf;
}
