/* SPDX-License-Identifier: Apache-2.0 */
/* mla - the weights of one MLA layer as a step uses them (public part: kv/mla.h)
 *
 * Model:      every matrix is a gemm; W_UK and W_UV have a group a head. Exactly one of q and
 *             (q_a, q_b), one of (uv, o) and combined.
 * Ownership:  a step takes an arena off the list, or makes one, and puts it back; nothing else in a
 *             kv_mla changes after kv_mla_create().
 * Context:    lock guards arenas and arena_bytes only.
 */
#ifndef MLA_H
#define MLA_H

#include <pthread.h>

#include <kv/mla.h>

#include "gemm.h"

struct mla_arena {
	struct mla_arena *next;
	size_t bytes;
	void *mem;
};

struct kv_mla {
	struct kv_mla_params p; /* its weights are not kept: pointers are NULL */
	float *q_norm, *kv_norm;
	struct gemm *q, *q_a, *q_b, *kv_a, *uk, *uv, *o, *combined;
	float scale;
	pthread_mutex_t lock;
	struct mla_arena *arenas; /* nobody uses them */
	uint64_t arena_bytes;	  /* of all, in use or not */
};

/* At least bytes, 64-byte aligned, this step's alone until it is put back. */
int mla_arena_get(struct kv_mla *, size_t bytes, struct mla_arena **);
void mla_arena_put(struct kv_mla *, struct mla_arena *);

#endif
