/* SPDX-License-Identifier: Apache-2.0 */
/* fair - whose turn it is: start-time fair queueing between tenants, within one between engines
 *
 * Model:      two levels of the same rule, weights equal. Who begins to wait gets a start tag: its
 *             last finish tag, but not before the start of those that wait for the same devices
 *             already (base), nor later than that by more than what it took last. Bytes taken from
 *             the pool while somebody waits for it move its finish, and with it its next start, on
 *             by as much. First is the tenant with the lowest start, in it the engine with the
 *             lowest start, of that its oldest; of equal starts the one set first.
 *
 *                tenant a  start 10  [ engine 1: start 3, p q ] [ engine 2: start 5, r ]   p q r
 *                tenant b  start 12  [ engine 7: start 0, s ]                              s
 *
 *             One nobody has seen take anything starts behind base by what it asks, so that new
 *             identities, one after the other, cannot stay ahead of those that wait.
 * Invariants: nr counts what waits; start and stamp mean something while nr is not 0. Starts of
 *             those that wait only rise, so a waiting one comes first after finitely many bytes.
 * Ownership:  fair.c writes struct fair; pending.c calls it and finds the first ones.
 * Units:      tags are bytes; 2^64 of them are not reached.
 * Cost:       O(1).
 * See:        Goyal, Vin, Cheng: Start-time Fair Queuing (1996); tests/unit/mm/fair_test.c
 */
#ifndef MM_FAIR_H
#define MM_FAIR_H

#include <stdbool.h>
#include <stdint.h>

struct mm;

struct fair {
	uint64_t start, finish;
	uint64_t last_bytes;	/* what it took last */
	uint64_t stamp;		/* order in which starts were set */
	uint32_t nr;
	bool seen;		/* has taken something */
};

/* A place in the order of all that wait: lower comes first. */
struct fair_place {
	uint64_t tenant_start, tenant_stamp, engine_start, engine_stamp, seq;
};

/* What a newcomer's tags start from: the lowest start of its rivals, or of who took last. */
struct fair_base {
	uint64_t tenant, engine;
};

/* Of one in the queue by seq; UINT64_MAX: of one that would enter it now, asking for bytes. */
struct fair_place fair_place(const struct mm *, uint32_t engine, uint64_t seq,
			     const struct fair_base *, uint64_t bytes);
bool fair_before(const struct fair_place *, const struct fair_place *);
void fair_enter(struct mm *, uint32_t engine, const struct fair_base *, uint64_t bytes);
void fair_leave(struct mm *, uint32_t engine);
/* The engine takes bytes of what others wait for, at its place. */
void fair_take(struct mm *, uint32_t engine, const struct fair_base *, uint64_t bytes);

#endif
