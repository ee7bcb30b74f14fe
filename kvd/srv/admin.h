/* SPDX-License-Identifier: Apache-2.0 */
/* admin - the admin socket: kvctl's questions
 *
 * Model:      a connection asks one thing at a time; an answer is one or more packets, each made
 *             when the one before it has been sent, from a cursor into mm's tables.
 * Invariants: nothing here but TENANT_SET changes anything, and that all or none. A slow reader
 *             holds up itself: one packet in flight.
 *             While all max connections are in use, those that have been idle for ADMIN_IDLE_NS are
 *             closed, so nobody can keep kvctl out by holding them.
 * Context:    the loop's thread. Cost: at most one packet of records a callback.
 * Limits:     max connections; a request is one struct of kv_admin.h, an answer packet
 *             KV_ADMIN_PACKET.
 * Errors:     a request that is none gets head.result -errno and a kv_admin_text.
 * See:        ipc/kv_admin.h, tests/unit/srv/admin_test.c
 */
#ifndef ADMIN_H
#define ADMIN_H

#include <stdint.h>
#include "io/loop.h"
#include "srv/control.h"
#include "srv/exec.h"
#include "srv/session.h"
#include "srv/tenant.h"

#define ADMIN_IDLE_NS	60000000000ull

struct admin_config {
	struct loop *loop;
	struct exec *exec;
	struct sessions *sessions;
	struct tenants *tenants;
	const struct control *control;
	const char *release;
	int listen_fd;
	uint64_t started_ns;
};

struct admin;

int admin_create(struct admin **, const struct admin_config *);
/* What is due. Returns when it wants to be called again at the latest; call it after each wait. */
uint64_t admin_run(struct admin *, uint64_t now_ns);
void admin_destroy(struct admin *);	/* after loop_stop, or before it */

#endif
