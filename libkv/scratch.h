/* SPDX-License-Identifier: Apache-2.0 */
/* scratch - memory that calls compute in, per thread
 *
 * Model:     Each thread has one block of each kind, grown on demand, kept for its next call and
 *            freed when the thread ends or the library is unloaded.
 * Ownership: the library's; a block is the caller's until its thread asks for that kind again.
 * Context:   any thread, no lock.
 */
#ifndef SCRATCH_H
#define SCRATCH_H

#include <stddef.h>

enum scratch_kind {
	SCRATCH_KERNEL,
	SCRATCH_TABLE,
	SCRATCH_PLAN,
	SCRATCH_PARTIALS,
	SCRATCH_GEMM,
	NR_SCRATCH,
};

/* At least bytes of memory, 64-byte aligned; -ENOMEM with kv_error() set. */
int scratch_get(enum scratch_kind kind, size_t bytes, void **mem);

#endif
