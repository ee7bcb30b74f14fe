/* SPDX-License-Identifier: Apache-2.0 */
/* attn_impl - a call's way from the public struct to the kernels: filled, gathered, run
 *
 * Context: as kv/attn.h.
 */
#ifndef ATTN_IMPL_H
#define ATTN_IMPL_H

#include <kv/attn.h>

#include "kernels.h"

/* Checks a call and fills the kernel's block, all but page tables and lengths. */
int attn_fill(const struct kv_cache *, const struct kv_attn *, struct kern_attn *);

/* What a call would be refused for, page tables aside: nothing is run, q and out are not looked at.
 * by_seq: as kv_attn(), else as kv_attn_pages(). */
int attn_check(const struct kv_cache *, const struct kv_attn *, bool by_seq);

/* The page tables and lengths of a call's sequences, checked: [batch] each. */
int attn_gather(const struct kv_cache *, const struct kv_attn *, const struct kern_attn *,
		const uint64_t **pte, uint32_t *lens);

/* Runs a complete block, here or on several threads. */
int attn_run(const struct kern_attn *);

/* -EOPNOTSUPP: KV_CPU names nothing that runs here. */
int attn_bad_cpu(void);

#endif
