/* SPDX-License-Identifier: Apache-2.0 */
/* attn_lane - one shape with its pages, ready to be called again and again on cold ones
 *
 * Model:      a lane has a pool of its own, cut into page tables in shuffled order. Every call
 *             takes the next table, so pages come back only after all others were read; a
 *             pool larger than the caches makes them cold. All tables hold the same values.
 *             A call is planned for the threads before its time begins, since an engine plans once
 *             for all layers; planning has a time of its own.
 * Ownership:  attn_lane_open() maps and allocates, attn_lane_close() gives back.
 * Context:    one caller; the calls run on an attn_team.
 * Errors:     -ENOMEM, -EOPNOTSUPP for an implementation this CPU lacks or a call the kernels
 *             refuse.
 */
#ifndef ATTN_LANE_H
#define ATTN_LANE_H

#include <stddef.h>

#include "attn_shape.h"
#include "attn_team.h"
#include "kern_plan.h"

struct attn_lane {
	struct attn_shape shape;
	struct kern_attn at;		/* of table 0 */
	enum kern_impl impl;		/* what shape.impl stands for */
	bool fast;			/* it has an instance for this call */
	char *pool;
	size_t pool_bytes, page_bytes;
	uint32_t nr_tables, next;
	uint32_t table_pages;		/* distinct pages of a table: page[table][table_pages] */
	uint64_t *page;
	uint64_t *pte;			/* [table][batch][pages of a sequence] */
	const uint64_t **seq;		/* [table][batch] -> pte */
	uint32_t *len;			/* [batch] */
	float *scales;			/* [kv_heads], for KERN_SCALE_HEAD */
	void *q, *out;
	char *scratch;			/* [threads][scratch_bytes] */
	size_t scratch_bytes;
	void *plan_mem, *partials;
	size_t partial_bytes;
	struct kern_plan *plan;		/* of the table that comes next */
	_Atomic uint32_t item;		/* of it, to be taken by whoever is free */
	double plan_ns;			/* what planning took, the last time */
	int err;			/* of a call, if one failed */
};

/* A pool of at least pool_bytes, and of two tables in any case. */
int attn_lane_open(struct attn_lane *, const struct attn_shape *, size_t pool_bytes);
void attn_lane_close(struct attn_lane *);

/* Nanoseconds of calls calls on as many tables. */
uint64_t attn_lane_run(struct attn_lane *, struct attn_team *, uint32_t calls, bool *lost);

/* The pages of the table that the next call would take; moves on. */
const uint64_t *attn_lane_next_pages(struct attn_lane *);

/* Relative L2 distance of out from the float64 reference on one table. */
double attn_lane_error(struct attn_lane *, struct attn_team *);

#endif
