/* SPDX-License-Identifier: Apache-2.0 */
/* server - the daemon, put together from its parts
 *
 * Model:      control -> devices -> exec (mm) -> sockets -> sessions and admin, all on one loop.
 * Invariants: after server_create the sockets accept connections (served once server_run runs).
 * Ownership:  server_destroy closes and removes everything, the socket files too.
 * Context:    create, run and destroy from any one thread each, one after the other; server_stop
 *             from anywhere, a signal handler too.
 * Errors:     -errno, with one line in err that names the thing and the way out.
 * See:        docs/architecture.md; tests/unit/srv
 */
#ifndef SERVER_H
#define SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include "srv/control.h"

#ifdef KV_VERSION
#define SERVER_RELEASE KV_VERSION
#else
#define SERVER_RELEASE "of no version"
#endif

struct server;

/* signals: SIGTERM and SIGINT, which the caller has blocked, stop it. */
int server_create(struct server **, const struct control *, bool signals, char *err,
		  size_t err_len);
void server_describe(const struct server *, char *buf, size_t len);	/* one line, when ready */
int server_run(struct server *);		/* until it is stopped */
void server_stop(struct server *);
void server_destroy(struct server *);

#endif
