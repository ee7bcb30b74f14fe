// SPDX-License-Identifier: Apache-2.0
/* attn_shape - contract in attn_shape.h */
#include "attn_shape.h"

#include <stdio.h>

#define MAX_CTX	    (1u << 24)
#define MAX_BATCH   1024u
#define MAX_THREADS 256u

void attn_shape_default(struct attn_shape *s)
{
	bool mla = s->kind == KV_MLA;

	s->kind = mla ? KV_MLA : KV_GQA;
	s->heads = s->heads ? s->heads : mla ? 128 : 32;
	s->kv_heads = s->kv_heads ? s->kv_heads : mla ? 1 : 8;
	s->dim = s->dim ? s->dim : mla ? 576 : 128;
	s->dim_v = s->dim_v ? s->dim_v : mla ? 512 : s->dim;
	s->ctx = s->ctx ? s->ctx : mla ? 4096 : 8192;
	s->batch = s->batch ? s->batch : 1;
	s->q_len = s->q_len ? s->q_len : 1;
	s->dtype = s->dtype ? s->dtype : KV_BF16;
	if (!s->q_dtype)
		s->q_dtype = s->dtype == KV_F32 || s->dtype == KV_F16 ? s->dtype : KV_BF16;
	s->page_tokens = s->page_tokens ? s->page_tokens : 64;
	s->threads = s->threads ? s->threads : 1;
}

struct kv_layout attn_shape_layout(const struct attn_shape *s)
{
	struct kv_layout l = {
		.kind = s->kind,
		.dtype = s->dtype,
		.layers = 1,
		.page_tokens = s->page_tokens,
	};

	if (s->kind == KV_MLA) {
		l.rank = s->dim_v;
		l.rope = s->dim - s->dim_v;
	} else {
		l.kv_heads = s->kv_heads;
		l.head_dim = s->dim;
		l.head_dim_v = s->dim_v;
	}
	return l;
}

static const char *check_heads(const struct attn_shape *s)
{
	if (!s->kv_heads || !s->heads || s->heads > KERN_MAX_HEADS || s->heads % s->kv_heads)
		return "--heads must be a multiple of --kv-heads, at most 1024";
	if (s->kind == KV_MLA && s->kv_heads != 1)
		return "MLA has one row for all heads: --kv-heads 1";
	if (s->kind == KV_MLA && s->dim <= s->dim_v)
		return "MLA: --dim is rank + rope, --dim-v the rank: 576 and 512";
	return NULL;
}

const char *attn_shape_check(const struct attn_shape *s)
{
	struct kv_layout l = attn_shape_layout(s);
	const char *wrong = check_heads(s);

	if (wrong)
		return wrong;
	if (kv_layout_check(&l))
		return "--dim and --dim-v are multiples of 8 up to 576, --page is 1 to 65536";
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
	struct kv_layout l = attn_shape_layout(s);

	return (double)kv_layout_token_bytes(&l);
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

const char *attn_dtype_name(uint32_t dtype)
{
	static const char *const names[] = {
		[KV_F32] = "f32",
		[KV_F16] = "f16",
		[KV_BF16] = "bf16",
	};

	return dtype && dtype < sizeof(names) / sizeof(names[0]) ? names[dtype] : "?";
}

const char *attn_shape_name(const struct attn_shape *s, char *buf, unsigned int size)
{
	if (s->kind == KV_MLA)
		snprintf(buf, size, "mla %u heads %u/%u %s, %u tokens", s->heads, s->dim, s->dim_v,
			 attn_dtype_name(s->dtype), s->ctx);
	else
		snprintf(buf, size, "gqa %u/%u d%u %s, %u tokens", s->heads, s->kv_heads, s->dim,
			 attn_dtype_name(s->dtype), s->ctx);
	return buf;
}
