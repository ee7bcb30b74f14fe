// SPDX-License-Identifier: Apache-2.0
/* kern_rows - writes, reads and copies cached rows; contract in kernels.h */
#include <errno.h>
#include <string.h>

#include "kern_impl.h"
#include "kern_num.h"

/* The k and v part of a token for one head: for MLA both stand in one row. */
struct row_parts {
	char *k, *v;
};

static struct row_parts row_parts(const struct kern_view *view, uint64_t page, uint32_t head,
				  uint32_t row)
{
	char *k = (char *)(uintptr_t)kern_k_row(view, page, head, row);

	if (view->kind == KERN_MLA)
		return (struct row_parts){k, k + (size_t)view->head_dim *
							     kern_dtype_size(view->dtype)};
	return (struct row_parts){k, (char *)(uintptr_t)kern_v_row(view, page, head, row)};
}

static void put_row(uint32_t dtype, char *dst, const float *src, uint32_t n)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		kern_num_put(dtype, dst, i, src[i]);
}

static void get_row(uint32_t dtype, float *dst, const char *src, uint32_t n)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		dst[i] = kern_num_get(dtype, src, i);
}

static int range_check(const struct kern_view *view, uint32_t pos, uint32_t n)
{
	return n > UINT32_MAX - pos ? -EINVAL : kern_view_check(view);
}

int kern_store(const struct kern_view *view, const uint64_t *pte, uint32_t pos, uint32_t n,
	       const float *k, const float *v)
{
	int err = range_check(view, pos, n);
	uint32_t i, head;

	if (err)
		return err;
	for (i = 0; i < n; i++) {
		uint64_t page = pte[(pos + i) / view->page_tokens];

		for (head = 0; head < view->kv_heads; head++) {
			struct row_parts to =
				row_parts(view, page, head, (pos + i) % view->page_tokens);

			put_row(view->dtype, to.k, k, view->head_dim);
			put_row(view->dtype, to.v, v, view->head_dim_v);
			k += view->head_dim;
			v += view->head_dim_v;
		}
	}
	return 0;
}

int kern_load(const struct kern_view *view, const uint64_t *pte, uint32_t pos, uint32_t n, float *k,
	      float *v)
{
	int err = range_check(view, pos, n);
	uint32_t i, head;

	if (err)
		return err;
	for (i = 0; i < n; i++) {
		uint64_t page = pte[(pos + i) / view->page_tokens];

		for (head = 0; head < view->kv_heads; head++) {
			struct row_parts from =
				row_parts(view, page, head, (pos + i) % view->page_tokens);

			get_row(view->dtype, k, from.k, view->head_dim);
			get_row(view->dtype, v, from.v, view->head_dim_v);
			k += view->head_dim;
			v += view->head_dim_v;
		}
	}
	return 0;
}

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

void kern_copy_rows(void *dst_page, const void *src_page, const struct kern_view *view,
		    uint32_t layers, uint64_t layer_stride, uint32_t tokens)
{
	uint64_t size = kern_dtype_size(view->dtype);
	uint32_t layer, head;

	for (layer = 0; layer < layers; layer++) {
		uint64_t dst = (uintptr_t)dst_page + layer * layer_stride;
		uint64_t src = (uintptr_t)src_page + layer * layer_stride;

		for (head = 0; head < view->kv_heads; head++) {
			struct row_parts to = row_parts(view, dst, head, 0);
			struct row_parts from = row_parts(view, src, head, 0);

			copy_part(to.k, from.k, view->k_row, size * kern_q_width(view), tokens);
			if (view->kind == KERN_GQA)
				copy_part(to.v, from.v, view->v_row, size * view->head_dim_v,
					  tokens);
		}
	}
}
