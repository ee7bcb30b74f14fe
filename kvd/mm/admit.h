/* SPDX-License-Identifier: Apache-2.0 */
/* admit - the one budget of a device: extents, reservations and promises never exceed the pool
 *
 * Model:      |<------------------------------ pool_bytes --------------------------->|
 *             | extents (leaving ones too) | reserved | promised, not taken | free | wmark_min |
 *             A promise belongs to a slab: so many extents it will be able to have. What it has
 *             already counts; the rest is its unmet part, which others do not see as free. Every
 *             extent taken moves bytes from the promise to the extents, every one given back
 *             moves them back. Reservations are bytes outside the pool's extents, by purpose.
 * Invariants: extents + reserved + unmet promises <= pool + leaving, on each device, whatever comes
 *             in whichever order; so nobody can be promised, or take, what another was promised.
 *             device.promised_bytes and tenant.promised are the sums of the unmet parts.
 *             The last wmark_min bytes go to unmet promises and to tenants below their min only.
 * Ownership:  admit.c writes promises and reservations; whoever moves an extent into or out of a
 *             slab calls admit_count.
 * Cost:       O(devices) an extent; a promise O(groups * devices), O(extents) when it must take.
 * Errors:     -ENOMEM MM_POOL_FULL, -EDQUOT MM_TENANT_MAX; reserving also -EAGAIN while cached
 *             pages are making room.
 * See:        docs/tenants.md, tests/unit/mm/admit_test.c
 */
#ifndef MM_ADMIT_H
#define MM_ADMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "mm.h"

struct cache;

/* Bytes that extents of a slab may take of a device now: by the pool, by the tenant's max. */
uint64_t admit_room(const struct mm *, uint32_t bind, uint32_t group, uint32_t device);
/* The part of it nobody else may have, whoever waits. */
uint64_t admit_entitled(const struct mm *, uint32_t bind, uint32_t group, uint32_t device);
uint64_t admit_quota(const struct mm *, uint32_t bind, uint32_t group, uint32_t device);
/* Bytes missing for nr more of them when all that is leaving has left. */
uint64_t admit_short(const struct mm *, uint32_t bind, uint32_t group, uint32_t device,
		     uint32_t nr);

void admit_wake(struct mm *, uint32_t device);	/* room came: those who wait for promised room */

void admit_count(struct mm *, uint32_t bind, uint32_t group, bool joins); /* an extent */

/* May the bind (0: a new one) of such a cache be promised so many pages of every group? What
 * stands in the way and can be taken is taken. 0, or the error in the reply. */
int admit_check(struct mm *, uint32_t tenant, const struct cache *, uint32_t bind,
		uint32_t min_pages, struct mm_reply *);
void admit_promise(struct mm *, uint32_t bind, uint32_t min_pages);	/* after admit_check */

void admit_unreserve(struct mm *, uint32_t engine);	/* all of it */
int admit_op_reserve(struct mm *, const struct mm_request *, struct mm_reply *);

#endif
