/* SPDX-License-Identifier: Apache-2.0 */
/* commit - held pages become content
 *
 * Model:      plan (validate and mark the pages, walk down what exists, count what is missing),
 *             make room (evict unpinned nodes if a table is full), then publish: no step after the
 *             plan can fail. An existing equal node is used as it is; where it lacks a frame the
 *             committed one fills the place.
 * Invariants: on error no page, node or lease has changed; only a token arena too fragmented for
 *             the request may have cost unpinned nodes.
 * Cost:       O(pages * (groups + log siblings)).
 * Errors:     -EINVAL, -ENOENT lease, -ESTALE, -EACCES pages, -ENOMEM with MM_TABLE_FULL.
 */
#ifndef MM_COMMIT_H
#define MM_COMMIT_H

#include "mm.h"

int commit_op(struct mm *, const struct mm_request *, struct mm_reply *);

#endif
