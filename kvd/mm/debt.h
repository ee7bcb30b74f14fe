/* SPDX-License-Identifier: Apache-2.0 */
/* debt - a tenant above its max whose time to answer is up: it is counted, and who is killed for it
 *
 * Model:      A tenant falls into debt once, when everything was tried (shrink.h) and its charge is
 *             above max; it is out of it when its charge is within max again on every device.
 *             An engine's part is what would not be there without it: pages it holds, and cached
 *             pages its leases pin, in whoever's extents they lie; each once. With MM_OOM_KILL the
 *             one with the largest part is fenced and killed; nobody who has no part in it. The
 *             next one when that is gone, or has been fenced for DEBT_DYING_NS: a process that does
 *             not die (it hangs in a driver) keeps what it has, but no longer delays the others.
 *             An extent that reclaim took is charged until nobody maps it. Mapped past answer_ns
 *             it is debt, too, if with it the tenant is above max; the engine whose members map
 *             most of that is killed. While the device takes extents back nobody is to blame.
 * Invariants: in_debt only above max; a node is marked only while a part is added up.
 * Cost:       a part O(leases and nodes they pin), before a kill only; a look at a tenant above
 *             max O(RETIRING extents).
 * See:        shrink.h, tests/unit/mm/reclaim_test.c
 */
#ifndef MM_DEBT_H
#define MM_DEBT_H

#include <stdbool.h>
#include <stdint.h>

#include "mm.h"

#define DEBT_DYING_NS	10000000000ull

void debt_begin(struct mm *, uint32_t tenant);		/* everything was tried */
void debt_settle(struct mm *, uint32_t tenant);		/* its charge fell, its max rose */
void debt_check(const struct mm *, uint32_t tenant);
/* Looks at what is mapped past its time; returns when there may be more of it. */
uint64_t debt_mapped(struct mm *, uint32_t tenant);
/* Its engine with the largest part in what is on the devices (late_only: in what is mapped past its
 * time), unless one is dying. */
void debt_kill(struct mm *, uint32_t tenant, uint32_t devices, bool late_only);

#endif
