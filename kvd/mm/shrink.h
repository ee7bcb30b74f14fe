/* SPDX-License-Identifier: Apache-2.0 */
/* shrink - reclaim in the background: devices up to their watermarks, tenants down to their limits
 *
 * Model:      A device with less than low free gives extents back until high is free: the cheapest
 *             cached-only ones, of whom protection allows; when there are none, half-empty ones
 *             are packed (compact.h). What is free up to low is for those who have no cached
 *             pages of their own to use again: the others would have whole extents evicted for
 *             them where single pages, chosen by the policy, do.
 *             A tenant above high or max, each step only if the ones before are not enough:
 *               1. its cached-only extents, cheapest first, none that parked sequences need
 *               2. its engines are asked (pressure, answer_ns to answer), its slabs packed
 *               3. past that, above max: parked sequences
 *               4. what stays is debt (debt.h): counted as oom, asked for again ever more rarely;
 *                  with MM_OOM_KILL an engine is killed for it, then 2 again
 *             Protection: nobody is taken below min; below low only when nobody above has anything,
 *             not even extents that can be had by packing what is used there into the room of what
 *             is cached (DRAIN_ROOM), and none of those is under way.
 *             A victim is drained (DRAIN_EVICT): the work is done in compact.c's steps.
 * Invariants: draining[] of devices and tenants is what draining extents will give back; reclaim
 *             counts it as given.
 * Cost:       a step O(extents) to find a victim, mostly O(1); nothing while all is within bounds.
 * See:        reclaim.h (room for one allocation), docs/knobs.md, tests/unit/mm/reclaim_test.c
 */
#ifndef MM_SHRINK_H
#define MM_SHRINK_H

#include <stdbool.h>
#include <stdint.h>

#include "mm.h"

struct extent;

struct shrink {
	bool kick;		/* something changed: look */
	bool hungry;		/* somebody is short: whatever can be taken is of interest */
	uint32_t filling;	/* devices on their way up to high */
	uint64_t next_ns;	/* when to look again anyway */
	uint32_t at;		/* bind where the look for mixed extents has come to */
	uint32_t hand;		/* extent where the look for colder content has, or a former one */
};

void shrink_charged(struct mm *, uint32_t tenant, uint32_t device);	/* or less is free */
bool shrink_parked(const struct mm *, const struct extent *);	/* parked sequences need it */
/* May an extent be taken from its tenant by others: without going below min, below low. */
bool shrink_may_take(const struct mm *, const struct extent *, bool below_low);
/* Begins to empty one in which used and cached pages are mixed, of a tenant that stays above its
 * low, its cached pages making the room; not in that slab. False: there is none. */
bool shrink_drain_mixed(struct mm *, uint32_t devices, uint32_t not_bind, uint32_t not_group);
/* How many of nr extents more of that slab leave the devices at low, or are owed to its tenant: by
 * a promise, min or low. */
uint32_t shrink_spares(const struct mm *, uint32_t bind, uint32_t group, uint32_t nr);
/* Begins to empty an extent of somebody else that the policy would have go before that bind's own
 * next victim, so that who is idle does not keep for ever what others need more. Looks at a few,
 * others at the next call, none while something drains there. False: none of them. */
bool shrink_trade(struct mm *, uint32_t bind, uint32_t group);
/* The same for a tenant that is owed more (a promise, min, low), of extents in which used and
 * cached pages are mixed, whatever the policy thinks of them. */
void shrink_claim(struct mm *, uint32_t bind, uint32_t group);
void shrink_tick(struct mm *, uint32_t *budget);
uint64_t shrink_next_deadline(const struct mm *);

#endif
