/* SPDX-License-Identifier: Apache-2.0 */
/* check - every invariant of every module, and every sum across them
 *
 * Model:      mm_check walks all tables and recomputes what is kept incrementally. The module
 *             headers name the invariants. check_tree is its second half: nodes, leases, parks,
 *             keys; check_fair whose turn it is, and who is counted as stalled.
 * Context:    changes nothing; recurses as deep as a tree of siblings is high.
 * Cost:       O(everything).
 */
#ifndef MM_CHECK_H
#define MM_CHECK_H

struct mm;

void check_fair(const struct mm *);
void check_tree(const struct mm *);

#endif
