/* SPDX-License-Identifier: Apache-2.0 */
/* attn_team - the threads of a measurement: all do the same thing at the same time
 *
 * Model:      the caller is member 0. attn_team_run() hands all members a function, waits for all
 *             and gives the time from the start to the last one's end. A member that lost its
 *             processor on the way makes the time void: it says what the machine was busy with, not
 *             how fast it is. Alone the caller is given the time it had a processor, which is the
 *             same on an idle machine and still means something on a busy one.
 * Ownership:  attn_team_start() allocates, attn_team_stop() frees and joins.
 * Context:    one caller; members spin for a moment before they sleep.
 */
#ifndef ATTN_TEAM_H
#define ATTN_TEAM_H

#include <stdbool.h>
#include <stdint.h>

struct attn_team;

typedef void (*attn_team_fn)(void *arg, unsigned int me, unsigned int n);

struct attn_team *attn_team_start(unsigned int members);	/* NULL: out of memory or threads */
void attn_team_stop(struct attn_team *);
unsigned int attn_team_size(const struct attn_team *);

/* Nanoseconds; *lost (may be NULL) says that one of several members waited for a processor. */
uint64_t attn_team_run(struct attn_team *, attn_team_fn, void *arg, bool *lost);

#endif
