/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch_input - what dispatch_fuzz and the recorder of its corpus agree on
 *
 * Model:      the pool's sizes, and how one entry of real traffic stands in an input, after a
 *             command byte DISPATCH_TRAFFIC << 2 | client:
 *
 *               u8 op, flags, group, ref of cache, ref of id; u16 nr, arg >> DISPATCH_ARG_SHIFT,
 *               in_bytes, out_bytes; u8 patches; in_bytes of input; for each patch u16 offset in
 *               the input, u8 ref; u8 damage (0: none, see damage())
 *
 *             A ref counts back from the id given last (1) among those that answers named; 0 is no
 *             id. Patches are the page ids of FREE and COMMIT and the leases of UNLEASE. An id that
 *             no answer names (extent, device, seq) stands for itself.
 * Invariants: both sides remember ids in the same order (saw_* in dispatch_fuzz.c).
 * Context:    a header, since each is one program.
 * See:        dispatch_fuzz.c, record.c
 */
#ifndef DISPATCH_INPUT_H
#define DISPATCH_INPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "kv_abi.h"
#include "mm/mm.h"

#define MIB			(1ull << 20)
#define DISPATCH_DATA		8192u	/* data area of a client */
#define DISPATCH_OUT		4096u	/* where answers are asked for */
#define DISPATCH_BATCH		32u
#define DISPATCH_ARG_SHIFT	12
#define DISPATCH_TRAFFIC	51u	/* commands: one entry of real traffic, */
#define DISPATCH_IMPORT		52u	/* ref - 1 of a page, shard */

static inline bool dispatch_id_given(uint32_t op)
{
	return op == KV_OP_COMMIT || op == KV_OP_LEASE_DUP || op == KV_OP_DROP_HEAD ||
	       op == KV_OP_PARK || op == KV_OP_RESUME || op == KV_OP_UNPARK ||
	       op == KV_OP_HINT;
}

static inline struct mm_config dispatch_config(void)
{
	return (struct mm_config){
		.seed = 1, .nr_devices = 1,
		.device = { { .pool_bytes = 16 * MIB, .extent_bytes = 2 * MIB,
			      .extent_align = 2 * MIB } },
		.max_tenants = 4, .max_engines = 6, .max_members = 10, .max_caches = 8,
		.max_extents = 12, .max_frames = 16384, .max_nodes = 64, .max_leases = 24,
		.max_parks = 8, .max_keys = 8, .max_pending = 6, .max_tokens = 4096,
		.batch_pages = DISPATCH_BATCH,
	};
}

#endif
