/* SPDX-License-Identifier: Apache-2.0 */
/* park - an idle sequence, remembered but not pinned
 *
 * Model:      a park hangs on the tail node of its sequence; when that node is evicted it moves to
 *             the parent, so what RESUME gives back shrinks. On the root (node 0) it is empty.
 *             RESUME consumes the park, and an error leaves it.
 * Invariants: node.parks lists exactly the parks that name the node.
 * Cost:       O(1); evicting a node O(parks on it).      Limits: max_parks.
 */
#ifndef MM_PARK_H
#define MM_PARK_H

#include <stdint.h>

#include "list.h"
#include "mm.h"
#include "pool.h"

struct park {
	struct pool_obj obj;
	uint32_t engine, bind, node;
	struct link engine_link, node_link;
};

void park_free(struct mm *, uint32_t park);
void park_move_up(struct mm *, uint32_t node);		/* all parks of a node to its parent */

int park_op_park(struct mm *, const struct mm_request *, struct mm_reply *);
int park_op_resume(struct mm *, const struct mm_request *, struct mm_reply *);
int park_op_unpark(struct mm *, const struct mm_request *, struct mm_reply *);

#endif
