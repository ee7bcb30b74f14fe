/* SPDX-License-Identifier: Apache-2.0 */
/* kern_row - one cached row: where its parts stand, and its values to and from fp32
 *
 * Model:      a struct kern_row is one token of one KV head. For MLA k is the whole row and v the
 *             rope part inside it; the two have one scale.
 * Invariants: everything that writes a row goes through kern_row_put(), so storing and converting
 *             quantise alike.
 * Ownership:  addresses into pages; the caller's buffers hold head_dim and head_dim_v floats.
 * Context:    internal to kernels/; views are checked.
 */
#ifndef KERN_ROW_H
#define KERN_ROW_H

#include "kern_impl.h"

struct kern_row {
	char *k, *v;
	char *k_scale, *v_scale; /* KERN_SCALE_TOKEN, else NULL; MLA: v_scale is k_scale */
};

struct kern_row_scales {
	float k, v;
};

struct kern_row kern_row_in(const struct kern_view *, uint64_t page, uint32_t head, uint32_t row);
struct kern_row kern_row_at(const struct kern_view *, const uint64_t *pte, uint32_t pos,
			    uint32_t head);

/* Bytes of a K row, MLA: of the row. */
uint32_t kern_row_bytes(const struct kern_view *);

/* What the elements are to be multiplied by; 1 for dtypes without a scale of the whole row. */
struct kern_row_scales kern_row_scales(const struct kern_view *, const struct kern_row *,
				       const float *k_scale, const float *v_scale, uint32_t head);

/* 0, or -EINVAL for scales of KERN_SCALE_HEAD that elements cannot be divided by: rows are to be
 * written with them. */
int kern_row_scales_check(const struct kern_view *, const float *k_scale, const float *v_scale);

void kern_row_get(const struct kern_view *, const struct kern_row *, const struct kern_row_scales *,
		  float *k, float *v);

/* k_scale and v_scale are this head's, NULL for 1; KERN_SCALE_TOKEN finds and stores its own. */
void kern_row_put(const struct kern_view *, const struct kern_row *, const float *k, const float *v,
		  const float *k_scale, const float *v_scale);

#endif
