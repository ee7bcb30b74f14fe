/* SPDX-License-Identifier: Apache-2.0 */
/* admin - ask a running kvd through its admin socket
 *
 * Errors: -errno; admin_error() has the line for people (static buffer, one thread).
 */
#ifndef ADMIN_H
#define ADMIN_H

#include <stddef.h>
#include <stdint.h>
#include "kv_admin.h"

/* path: the admin socket, or NULL for the default place. Returns an fd. */
int admin_connect(const char *path);

/* All records of cmd, each copied into record_bytes (shorter ones zero-filled, longer cut). The
 * caller frees *records. */
int admin_get(int fd, uint32_t cmd, size_t record_bytes, void **records, uint32_t *nr);

/* The same for a request that is more than a command: its head is filled in here. */
int admin_ask(int fd, uint32_t cmd, struct kv_admin_request *, size_t request_bytes,
	      size_t record_bytes, void **records, uint32_t *nr);

const char *admin_error(void);
/* Sets that line; returns err. */
int admin_fail(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Where kvd listens by default: $XDG_RUNTIME_DIR/kvd.sock, else /run/kvd/kvd.sock. */
const char *admin_default_socket(void);

#endif
