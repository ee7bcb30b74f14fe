/* SPDX-License-Identifier: Apache-2.0 */
/* intern - (block before, id in the file) to a small index, the same each time
 *
 * Model:      open addressing over at most 2^32 - 3 pairs; indices count from 0 as pairs come.
 * Cost:       O(1) amortised, 24 to 48 bytes a pair.
 * Errors:     INTERN_FULL when out of memory or indices.
 */
#ifndef INTERN_H
#define INTERN_H

#include <stdint.h>

#define INTERN_ROOT UINT32_MAX	/* no block before */
#define INTERN_FULL UINT32_MAX

struct intern_slot {
	int64_t id;
	uint32_t parent, index_1;	/* index + 1; 0: free */
};

struct intern {
	struct intern_slot *slots;
	uint64_t nr_slots;
	uint32_t nr;
};

uint32_t intern_get(struct intern *, uint32_t parent, int64_t id);
void intern_free(struct intern *);

#endif
