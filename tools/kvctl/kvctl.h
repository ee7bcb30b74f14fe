/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl - show and steer a running pool; one function a command
 *
 * Context: each command gets a connected admin socket and where to print; it returns 0 or -errno
 *          with admin_error() set.
 */
#ifndef KVCTL_H
#define KVCTL_H

#include <stdbool.h>

struct emit;

/* name: the JSON member to print under, NULL for a document of its own. */
int kvctl_status(int fd, struct emit *, const char *name);
int kvctl_meminfo(int fd, struct emit *, const char *name);
int kvctl_engines(int fd, struct emit *, const char *name);
int kvctl_caches(int fd, struct emit *, const char *name);
int kvctl_vmstat(int fd, struct emit *, const char *name);
int kvctl_check(int fd, struct emit *, const char *name);
int kvctl_pressure(int fd, struct emit *, const char *name);

/* The last reports, 0: all that are kept. */
int kvctl_oom(int fd, struct emit *, bool json, unsigned int last);

/* list; show NAME; set NAME KNOB=VALUE... words is what follows "tenant". device: one, or
 * KV_ALL_DEVICES. The words have passed kvctl_tenant_usage. */
int kvctl_tenant(int fd, struct emit *, bool json, char *const *words, unsigned int nr_words,
		 unsigned int device);
const char *kvctl_tenant_usage(char *const *words, unsigned int nr_words);	/* NULL: good */

/* Repeats until count samples (0: for ever) are shown. */
int kvctl_top(int fd, bool json, unsigned int interval_ms, unsigned int count);

#endif
