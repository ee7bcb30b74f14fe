/* SPDX-License-Identifier: Apache-2.0 */
/* import - which member maps which shards of which extent
 *
 * Model:      a table [member][extent] of shard bits; a row is cleared when its first member comes.
 * Invariants: extent.nr_imports counts its bits; no bit for a member that is gone.
 * Cost:       O(1) a map; O(max_extents) when a member comes or goes; O(max_members) when an
 *             extent retires.
 * Errors:     -ENOENT, -ESTALE (on its way out), -EACCES (other tenant, cache not open).
 */
#ifndef MM_IMPORT_H
#define MM_IMPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "mm.h"

uint16_t *import_bits(const struct mm *, uint32_t member, uint32_t ext);
uint32_t import_count(uint16_t bits);	/* shards in a mask */
bool import_maps(const struct mm *, uint32_t engine, uint32_t ext);	/* some member; 0: none */
void import_init_member(struct mm *, uint32_t member);	/* its row has never been written */
void import_drop_member(struct mm *, uint32_t member);
int import_op_import(struct mm *, const struct mm_request *, struct mm_reply *);
int import_op_unimport(struct mm *, const struct mm_request *, struct mm_reply *);

#endif
