/* SPDX-License-Identifier: Apache-2.0 */
/* lru - unpinned nodes in order of last use, one list a bind
 *
 * Model:      a node is homed in the bind that writes the extent of its first frame (in group
 *             order) and sits on that bind's list while unpinned; a node without frames has no home
 *             and sits nowhere. Unpinning puts it at the hot end, tail before head, so a parent is
 *             never colder than its child; adopted and re-homed nodes go to the cold end.
 * Invariants: on the list <=> unpinned and homed.
 * Ownership:  whoever changes a node's pins or frames takes it off before and puts it back after.
 * Cost:       O(groups).
 */
#ifndef MM_LRU_H
#define MM_LRU_H

#include <stdint.h>

struct mm;

uint32_t lru_home(const struct mm *, uint32_t node);	/* bind; 0: none */
void lru_add_hot(struct mm *, uint32_t node);
void lru_add_cold(struct mm *, uint32_t node);
void lru_del(struct mm *, uint32_t node);
uint32_t lru_coldest(const struct mm *, uint32_t bind);	/* 0: none */

#endif
