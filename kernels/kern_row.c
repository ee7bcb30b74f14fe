// SPDX-License-Identifier: Apache-2.0
/* kern_row - contract in kern_row.h */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "kern_quant.h"
#include "kern_row.h"

struct kern_row kern_row_in(const struct kern_view *view, uint64_t page, uint32_t head,
			    uint32_t row)
{
	struct kern_row r = {.k = (char *)(uintptr_t)kern_k_row(view, page, head, row)};

	if (view->kind == KERN_GQA)
		r.v = (char *)(uintptr_t)kern_v_row(view, page, head, row);
	else if (view->dtype == KERN_F8_DS)
		r.v = r.k + kern_ds_rope(view);
	else
		r.v = r.k + (size_t)view->head_dim * kern_dtype_size(view->dtype);
	if (view->scale == KERN_SCALE_TOKEN) {
		r.k_scale = (char *)(uintptr_t)kern_scale_at(view, page, head, row);
		r.v_scale = r.k_scale;
		if (view->kind == KERN_GQA)
			r.v_scale += (int64_t)(view->v_scale_off - view->k_scale_off);
	}
	return r;
}

struct kern_row kern_row_at(const struct kern_view *view, const uint64_t *pte, uint32_t pos,
			    uint32_t head)
{
	return kern_row_in(view, pte[pos / view->page_tokens], head, pos % view->page_tokens);
}

uint32_t kern_row_bytes(const struct kern_view *view)
{
	if (view->kind == KERN_MLA)
		return kern_mla_row_bytes(view->dtype, view->head_dim, view->head_dim_v);
	return kern_dtype_size(view->dtype) * view->head_dim;
}

static float get_float(const char *p)
{
	float f;

	memcpy(&f, p, sizeof(f));
	return f;
}

static void put_float(char *p, float f)
{
	memcpy(p, &f, sizeof(f));
}

struct kern_row_scales kern_row_scales(const struct kern_view *view, const struct kern_row *row,
				       const float *k_scale, const float *v_scale, uint32_t head)
{
	struct kern_row_scales s = {1, 1};

	if (view->scale == KERN_SCALE_TOKEN) {
		s.k = get_float(row->k_scale);
		s.v = get_float(row->v_scale);
	} else if (view->scale == KERN_SCALE_HEAD) {
		s.k = k_scale ? k_scale[head] : 1;
		s.v = v_scale ? v_scale[head] : 1;
	}
	if (view->kind == KERN_MLA)
		s.v = s.k;
	return s;
}

static bool scales_valid(const float *scale, uint32_t n)
{
	uint32_t i;

	for (i = 0; scale && i < n; i++)
		if (!(scale[i] > 0) || !isfinite(scale[i]))
			return false;
	return true;
}

int kern_row_scales_check(const struct kern_view *view, const float *k_scale, const float *v_scale)
{
	if (view->scale != KERN_SCALE_HEAD)
		return 0;
	if (!scales_valid(k_scale, view->kv_heads))
		return -EINVAL;
	/* an MLA row has one */
	return view->kind == KERN_GQA && !scales_valid(v_scale, view->kv_heads) ? -EINVAL : 0;
}

/* ---- KERN_F8_DS ------------------------------------------------------------------------------ */

static void ds_get(const struct kern_view *view, const struct kern_row *row, float *k, float *v)
{
	uint32_t c;

	for (c = 0; c < view->head_dim; c += KERN_DS_BLOCK)
		kern_quant_get(KERN_F8, k + c, row->k + c, KERN_DS_BLOCK,
			       get_float(row->k + kern_ds_scales(view) +
					 c / KERN_DS_BLOCK * sizeof(float)));
	kern_quant_get(KERN_BF16, v, row->v, view->head_dim_v, 1);
}

static void ds_put(const struct kern_view *view, const struct kern_row *row, const float *k,
		   const float *v)
{
	uint32_t c;

	for (c = 0; c < view->head_dim; c += KERN_DS_BLOCK) {
		float scale =
			kern_quant_scale(KERN_F8, kern_quant_max(k + c, KERN_DS_BLOCK));

		kern_quant_put(KERN_F8, row->k + c, k + c, KERN_DS_BLOCK, scale);
		put_float(row->k + kern_ds_scales(view) + c / KERN_DS_BLOCK * sizeof(float), scale);
	}
	kern_quant_put(KERN_BF16, row->v, v, view->head_dim_v, 1);
}

/* ---- rows of one element size ---------------------------------------------------------------- */

void kern_row_get(const struct kern_view *view, const struct kern_row *row,
		  const struct kern_row_scales *scales, float *k, float *v)
{
	if (view->dtype == KERN_F8_DS) {
		ds_get(view, row, k, v);
		return;
	}
	kern_quant_get(view->dtype, k, row->k, view->head_dim, scales->k);
	kern_quant_get(view->dtype, v, row->v, view->head_dim_v, scales->v);
}

/* Of a token, from its values. The two parts of an MLA row share one scale. */
static struct kern_row_scales find_scales(const struct kern_view *view, const float *k,
					  const float *v)
{
	float k_max = kern_quant_max(k, view->head_dim);
	float v_max = kern_quant_max(v, view->head_dim_v);

	if (view->kind == KERN_MLA)
		k_max = v_max = k_max > v_max ? k_max : v_max;
	return (struct kern_row_scales){kern_quant_scale(view->dtype, k_max),
					kern_quant_scale(view->dtype, v_max)};
}

void kern_row_put(const struct kern_view *view, const struct kern_row *row, const float *k,
		  const float *v, const float *k_scale, const float *v_scale)
{
	struct kern_row_scales s = {1, 1};

	if (view->dtype == KERN_F8_DS) {
		ds_put(view, row, k, v);
		return;
	}
	if (view->scale == KERN_SCALE_TOKEN) {
		s = find_scales(view, k, v);
		put_float(row->k_scale, s.k);
		put_float(row->v_scale, s.v);
	} else if (view->scale == KERN_SCALE_HEAD) {
		s.k = k_scale ? *k_scale : 1;
		s.v = view->kind == KERN_MLA ? s.k : v_scale ? *v_scale : 1;
	}
	kern_quant_put(view->dtype, row->k, k, view->head_dim, s.k);
	kern_quant_put(view->dtype, row->v, v, view->head_dim_v, s.v);
}
