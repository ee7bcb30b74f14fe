// SPDX-License-Identifier: Apache-2.0
/* kern_store - writes cached rows and rotates keys; contract in kernels.h */
#include <errno.h>
#include <string.h>

#include "kern_num.h"
#include "kern_quant.h"
#include "kern_row.h"

/* ---- rotary embedding ------------------------------------------------------------------------ */

void kern_rope_row(const struct kern_rope *rope, uint32_t position, float *row)
{
	const uint32_t half = rope->dim / 2;
	const float *cos = rope->cos + (size_t)(position - rope->first) * half;
	const float *sin = rope->sin + (size_t)(position - rope->first) * half;
	uint32_t i;

	if (rope->pairing == KERN_ROPE_HALVES) {
		for (i = 0; i < half; i++) {
			float a = row[i], b = row[half + i];

			row[i] = a * cos[i] - b * sin[i];
			row[half + i] = a * sin[i] + b * cos[i];
		}
		return;
	}
	for (i = 0; i < half; i++) {
		float a = row[2 * i], b = row[2 * i + 1];

		row[2 * i] = a * cos[i] - b * sin[i];
		row[2 * i + 1] = a * sin[i] + b * cos[i];
	}
}

static uint32_t position_of(const struct kern_store *s, uint32_t i)
{
	return s->positions ? s->positions[i] : s->pos + i;
}

static int rope_check(const struct kern_store *s)
{
	const struct kern_rope *rope = s->rope;
	uint32_t width = s->view.kind == KERN_MLA ? s->view.head_dim_v : s->view.head_dim;
	uint32_t i;

	if (!rope->dim || rope->dim % 2 || rope->dim > width || rope->pairing > KERN_ROPE_HALVES)
		return -EINVAL;
	for (i = 0; i < s->n; i++) {
		uint32_t position = position_of(s, i);

		if (position < rope->first || position - rope->first >= rope->nr)
			return -EINVAL;
	}
	return 0;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static int store_check(const struct kern_store *s)
{
	if (s->n > UINT32_MAX - s->pos || kern_view_check(&s->view))
		return -EINVAL;
	if (s->src_dtype && !kern_dtype_float(s->src_dtype))
		return -EINVAL;
	if (kern_row_scales_check(&s->view, s->k_scale, s->v_scale))
		return -EINVAL;
	return s->rope ? rope_check(s) : 0;
}

/* Source elements as fp32: in place if they are and stay so, otherwise in buf. */
static const float *widen(const struct kern_store *s, const void *src, uint64_t at, uint32_t n,
			  bool modify, float *buf)
{
	uint32_t dtype = s->src_dtype ? s->src_dtype : KERN_F32;

	if (dtype == KERN_F32 && !modify)
		return (const float *)src + at;
	kern_quant_get(dtype, buf, (const char *)src + at * kern_dtype_size(dtype), n, 1);
	return buf;
}

static void store_row(const struct kern_store *s, uint32_t i, uint32_t head)
{
	const struct kern_view *view = &s->view;
	uint64_t k_stride = s->k_stride ? s->k_stride : (uint64_t)view->kv_heads * view->head_dim;
	uint64_t v_stride = s->v_stride ? s->v_stride : (uint64_t)view->kv_heads * view->head_dim_v;
	bool mla = view->kind == KERN_MLA;
	struct kern_row row = kern_row_at(view, s->pte, s->pos + i, head);
	float k_buf[KERN_MAX_DIM], v_buf[KERN_MAX_DIM];
	const float *k = widen(s, s->k, i * k_stride + (uint64_t)head * view->head_dim,
			       view->head_dim, s->rope && !mla, k_buf);
	const float *v = widen(s, s->v, i * v_stride + (uint64_t)head * view->head_dim_v,
			       view->head_dim_v, s->rope && mla, v_buf);

	if (s->rope)
		kern_rope_row(s->rope, position_of(s, i), mla ? v_buf : k_buf);
	kern_row_put(view, &row, k, v, s->k_scale ? s->k_scale + head : NULL,
		     s->v_scale ? s->v_scale + head : NULL);
}

int kern_store(const struct kern_store *s)
{
	int err = store_check(s);
	uint32_t i, head;

	if (err)
		return err;
	for (i = 0; i < s->n; i++)
		for (head = 0; head < s->view.kv_heads; head++)
			store_row(s, i, head);
	return 0;
}
