/* SPDX-License-Identifier: Apache-2.0 */
/* kern_plan - one attention call cut into items that any number of threads may run
 *
 * Model:      The call's work is laid out as segments: one sequence, or several whose page tables
 *             are equal there, over a run of chunks (kern_impl.h). Segments are cut into parts and
 *             parts packed into items of about equal cost, counted in tokens read (FlashMLA's
 *             scheduler: equal blocks for each worker and a fixed overhead for each request).
 *               equal pages     found by hashing each chunk's table words, then comparing them: no
 *                               hint. A shared segment reads its pages once for all its sequences.
 *               whole sequence  a sequence that is one part writes its output itself
 *               split sequence  its parts keep partials; whoever finishes the last one folds them
 * Invariants: P1 each chunk some query of a sequence sees is in exactly one part for each KV head
 *                and block of rows
 *             P2 the result is that of kern_attn(), to the bit, for any number of workers, any
 *                order of items and any sharing
 * Ownership:  all memory is the caller's: kern_plan_bytes() for the plan, then plan->partial_bytes
 *             for partials; scratch as for kern_attn(), one a thread.
 * Context:    items of one plan run on any threads at once. A plan may be run again, for another
 *             layer too, once all its items are done: view.layer_off, q, out, lse, scales, softcap,
 *             sinks and slopes may differ, all else must be as it was made with. Of the page tables
 *             that means: what was equal still is. See kern_plan_holds().
 * Cost:       O(pages of the batch) to make. Partials: an fp32 row for each query row of a split or
 *             shared sequence and each chunk, the leading ones folded: of the chunk's bytes .2 % at
 *             4 bf16 heads a KV head, 11 % at MLA's 128.
 * See:        FlashMLA 2025 (scheduler), Juravsky 2024 (Hydragen), Ye 2024 (cascade)
 */
#ifndef KERN_PLAN_H
#define KERN_PLAN_H

#include <stdatomic.h>

#include "kernels.h"

struct kern_part;
struct kern_place;
struct kern_ops;

struct kern_plan {
	uint32_t nr_items;
	uint32_t nr_shared;   /* segments read once for several sequences */
	size_t partial_bytes; /* 0: no sequence is split or shared */
	/* private: all in the memory given to kern_plan_make() */
	const struct kern_ops *ops;
	struct kern_part *parts;
	uint32_t *items; /* [nr_items + 1], the first part of each */
	struct kern_place *places;
	_Atomic uint32_t *pending; /* by sequence: parts still to come */
	uint32_t *nr_parts;	   /* by sequence: what pending starts from; 0 for whole ones */
	uint32_t batch;
};

/* Bytes of memory kern_plan_make() needs; 0 for a call that would fail. */
size_t kern_plan_bytes(const struct kern_attn *, uint32_t workers);

/* Plans a call for workers threads (at least 1) in mem, 64-byte aligned. The plan stands in mem.
 * -EINVAL and -EOPNOTSUPP as kern_attn(). */
int kern_plan_make(const struct kern_attn *, enum kern_impl, uint32_t workers, void *mem,
		   struct kern_plan **);

/* Must be called before the first item when partial_bytes is not 0; mem is 64-byte aligned. */
void kern_plan_partials(struct kern_plan *, const struct kern_attn *, void *mem);

/* Do sequences that the plan attends to together still have the same pages? Lengths and the call's
 * shape are as it was made with. Reads the tables of such sequences only. */
bool kern_plan_holds(const struct kern_plan *, const struct kern_attn *);

/* Runs an item, once each. scratch: kern_attn_scratch() bytes, not shared with another thread. */
void kern_plan_item(struct kern_plan *, const struct kern_attn *, uint32_t item, void *scratch);

#endif
