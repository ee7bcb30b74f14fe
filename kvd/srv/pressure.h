/* SPDX-License-Identifier: Apache-2.0 */
/* pressure - who waits for memory and who was refused it, for kvctl and the log
 *
 * Model:      mm's averages and reports (mm.h: mm_psi, mm_next_oom) with the names people know: of
 *             tenants, of engines as long as they are connected, of devices and limits.
 * Context:    the loop's thread. Changes nothing.
 * Cost:       a record O(sessions).
 * See:        ipc/kv_admin.h, kvctl pressure, kvctl oom
 */
#ifndef PRESSURE_H
#define PRESSURE_H

#include <stdbool.h>
#include <stdint.h>
#include "kv_admin.h"
#include "srv/control.h"
#include "srv/exec.h"
#include "srv/session.h"
#include "srv/tenant.h"

struct pressure_view {
	struct exec *exec;
	const struct sessions *sessions;
	const struct tenants *tenants;
	const struct control *control;
};

/* The next record; *cursor 0 starts, false ends. All tenants together come first. */
bool pressure_next(const struct pressure_view *, uint32_t *cursor, struct kv_admin_pressure *);
bool pressure_next_oom(const struct pressure_view *, uint64_t *seq, struct kv_admin_oom *);
/* A line in the log for each report after *seq. */
void pressure_log(const struct pressure_view *, uint64_t *seq);

#endif
