// SPDX-License-Identifier: Apache-2.0
/* kern_rows - reads, copies and converts cached rows; contract in kernels.h */
#include <errno.h>
#include <string.h>

#include "kern_impl.h"
#include "kern_quant.h"
#include "kern_row.h"

int kern_load(const struct kern_rows *rows, uint32_t pos, uint32_t n, float *k, float *v)
{
	const struct kern_view *view = &rows->view;
	int err = n > UINT32_MAX - pos ? -EINVAL : kern_view_check(view);
	uint32_t i, head;

	if (err)
		return err;
	for (i = 0; i < n; i++)
		for (head = 0; head < view->kv_heads; head++) {
			struct kern_row row = kern_row_at(view, rows->pte, pos + i, head);
			struct kern_row_scales scales =
				kern_row_scales(view, &row, rows->k_scale, rows->v_scale, head);

			kern_row_get(view, &row, &scales, k, v);
			k += view->head_dim;
			v += view->head_dim_v;
		}
	return 0;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Only the rows are copied, never what may stand between them: with [token][head] rows the gap is
 * another head's. */
static void copy_part(char *dst, const char *src, uint64_t stride, uint64_t width, uint32_t rows)
{
	uint32_t i;

	if (stride == width) {
		memcpy(dst, src, width * rows);
		return;
	}
	for (i = 0; i < rows; i++)
		memcpy(dst + i * stride, src + i * stride, width);
}

static void copy_head(const struct kern_view *view, uint64_t dst, uint64_t src, uint32_t head,
		      uint32_t tokens)
{
	struct kern_row to = kern_row_in(view, dst, head, 0);
	struct kern_row from = kern_row_in(view, src, head, 0);

	copy_part(to.k, from.k, view->k_row, kern_row_bytes(view), tokens);
	if (view->kind == KERN_GQA)
		copy_part(to.v, from.v, view->v_row,
			  (uint64_t)kern_dtype_size(view->dtype) * view->head_dim_v, tokens);
	if (view->scale != KERN_SCALE_TOKEN)
		return;
	memcpy(to.k_scale, from.k_scale, tokens * sizeof(float));
	if (view->kind == KERN_GQA)
		memcpy(to.v_scale, from.v_scale, tokens * sizeof(float));
}

void kern_copy_rows(void *dst_page, const void *src_page, const struct kern_view *view,
		    uint32_t layers, uint64_t layer_stride, uint32_t tokens)
{
	uint32_t layer, head;

	for (layer = 0; layer < layers; layer++)
		for (head = 0; head < view->kv_heads; head++)
			copy_head(view, (uintptr_t)dst_page + layer * layer_stride,
				  (uintptr_t)src_page + layer * layer_stride, head, tokens);
}

/* ---- conversions ----------------------------------------------------------------------------- */

enum way {
	BY_VALUE, /* through fp32 */
	BY_BYTES, /* nothing changes */
	KEEP_LATENT, /* flat e4m3 to KERN_F8_DS: the latent's bytes stay */
};

static bool same_scale(const float *a, const float *b)
{
	return (a ? *a : 1) == (b ? *b : 1);
}

/* Whether given scales agree for all heads: then the bytes mean the same. */
static bool same_scales(const struct kern_rows *a, const struct kern_rows *b)
{
	uint32_t head;

	if (a->view.scale != KERN_SCALE_HEAD)
		return true;
	for (head = 0; head < a->view.kv_heads; head++)
		if (!same_scale(a->k_scale ? a->k_scale + head : NULL,
				b->k_scale ? b->k_scale + head : NULL) ||
		    (a->view.kind == KERN_GQA &&
		     !same_scale(a->v_scale ? a->v_scale + head : NULL,
				 b->v_scale ? b->v_scale + head : NULL)))
			return false;
	return true;
}

static enum way choose(const struct kern_rows *to, const struct kern_rows *from)
{
	if (to->view.dtype == from->view.dtype && to->view.scale == from->view.scale &&
	    same_scales(to, from))
		return BY_BYTES;
	if (to->view.dtype == KERN_F8_DS && from->view.dtype == KERN_F8)
		return KEEP_LATENT;
	return BY_VALUE;
}

static void convert_bytes(const struct kern_view *view, const struct kern_row *to,
			  const struct kern_row *from)
{
	memcpy(to->k, from->k, kern_row_bytes(view));
	if (view->kind == KERN_GQA)
		memcpy(to->v, from->v, (size_t)kern_dtype_size(view->dtype) * view->head_dim_v);
	if (view->scale != KERN_SCALE_TOKEN)
		return;
	memcpy(to->k_scale, from->k_scale, sizeof(float));
	if (view->kind == KERN_GQA)
		memcpy(to->v_scale, from->v_scale, sizeof(float));
}

static void convert_latent(const struct kern_view *view, const struct kern_row *to,
			   const struct kern_row *from, float scale)
{
	float rope[KERN_MAX_DIM];
	uint32_t b;

	memcpy(to->k, from->k, view->head_dim);
	for (b = 0; b < view->head_dim / KERN_DS_BLOCK; b++)
		memcpy(to->k + kern_ds_scales(view) + b * sizeof(float), &scale, sizeof(scale));
	kern_quant_get(KERN_F8, rope, from->v, view->head_dim_v, scale);
	kern_quant_put(KERN_BF16, to->v, rope, view->head_dim_v, 1);
}

static void convert(const struct kern_rows *to, const struct kern_row *to_row,
		    const struct kern_rows *from, const struct kern_row *from_row, uint32_t head,
		    enum way way)
{
	float k[KERN_MAX_DIM], v[KERN_MAX_DIM];
	struct kern_row_scales scales;

	if (way == BY_BYTES) {
		convert_bytes(&to->view, to_row, from_row);
		return;
	}
	scales = kern_row_scales(&from->view, from_row, from->k_scale, from->v_scale, head);
	if (way == KEEP_LATENT) {
		convert_latent(&to->view, to_row, from_row, scales.k);
		return;
	}
	kern_row_get(&from->view, from_row, &scales, k, v);
	kern_row_put(&to->view, to_row, k, v, to->k_scale ? to->k_scale + head : NULL,
		     to->v_scale ? to->v_scale + head : NULL);
}

static int convert_check(const struct kern_rows *to, uint32_t to_pos, const struct kern_rows *from,
			 uint32_t from_pos, uint32_t n)
{
	if (n > UINT32_MAX - to_pos || n > UINT32_MAX - from_pos || kern_view_check(&to->view) ||
	    kern_view_check(&from->view))
		return -EINVAL;
	if (to->view.kind != from->view.kind || to->view.kv_heads != from->view.kv_heads ||
	    to->view.head_dim != from->view.head_dim ||
	    to->view.head_dim_v != from->view.head_dim_v)
		return -EINVAL;
	return kern_row_scales_check(&to->view, to->k_scale, to->v_scale);
}

int kern_convert(const struct kern_rows *to, uint32_t to_pos, const struct kern_rows *from,
		 uint32_t from_pos, uint32_t n)
{
	int err = convert_check(to, to_pos, from, from_pos, n);
	uint32_t i, head;
	enum way way;

	if (err)
		return err;
	way = choose(to, from);
	for (i = 0; i < n; i++)
		for (head = 0; head < to->view.kv_heads; head++) {
			struct kern_row a = kern_row_at(&to->view, to->pte, to_pos + i, head);
			struct kern_row b = kern_row_at(&from->view, from->pte, from_pos + i, head);

			convert(to, &a, from, &b, head, way);
		}
	return 0;
}
