/* SPDX-License-Identifier: Apache-2.0 */
/* event - what members are told: unmap an extent, give something back, leave an extent
 *
 * Model:      events are levels, not edges: MM_EVENTS derives them from the state (RETIRING extents
 *             the member maps; pressure on its engine; its draining extents with held pages). A
 *             change queues one notify effect a member.
 * Invariants: a member is on the notify queue at most once.
 * Cost:       EVENTS O(retiring and draining extents); a notify O(1); retiring O(max_members).
 * Limits:     EVENT_MAX events a reply; the rest show once those are dealt with.
 */
#ifndef MM_EVENT_H
#define MM_EVENT_H

#include <stdbool.h>
#include <stdint.h>

#include "mm.h"

#define EVENT_MAX 256u

void event_notify(struct mm *, uint32_t member);
void event_forget(struct mm *, uint32_t member);
void event_pressure(struct mm *, uint32_t engine, uint64_t bytes, uint64_t deadline_ns);
bool event_next_effect(struct mm *, struct mm_effect *);
int event_op_events(struct mm *, const struct mm_request *, struct mm_reply *);
int event_op_pressure_ack(struct mm *, const struct mm_request *, struct mm_reply *);

#endif
