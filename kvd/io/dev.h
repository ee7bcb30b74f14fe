/* SPDX-License-Identifier: Apache-2.0 */
/* dev - a provider of memory, seen as a queue: submit a request, reap its completion
 *
 * Model:      one struct dev a device ("host", later "cuda:N"). Requests are carried out by the
 *             device's own worker thread, in order, so a driver call or the zeroing of 64 MiB
 *             never blocks the caller. dev->fd (an eventfd) is readable when completions wait.
 * Invariants: every submitted request is completed exactly once; an extent handle is live from a
 *             successful CREATE to the DESTROY of it.
 * Ownership:  the caller (srv/exec.c) owns handles; export makes an fd that the caller closes.
 * Context:    submit, reap and export from one thread; the worker is the device's business.
 * Units:      bytes.
 * Errors:     completion result 0/-errno; submit -EAGAIN when the queue is full (nothing happened).
 * See:        dev_host.c; docs/architecture.md
 */
#ifndef DEV_H
#define DEV_H

#include <stdbool.h>
#include <stdint.h>

enum dev_op {
	DEV_CREATE = 1,		/* bytes -> handle */
	DEV_DESTROY,		/* handle */
	DEV_SCRUB,		/* handle, [offset, offset + bytes) becomes zero */
	DEV_COPY,		/* [offset, offset + bytes) of handle to to_offset of to_handle */
};

struct dev_request {
	enum dev_op op;
	uint32_t handle;	/* DESTROY, SCRUB, COPY */
	uint32_t to_handle;	/* COPY: another one */
	uint64_t user_data;
	uint64_t bytes, offset, to_offset;
};

struct dev_completion {
	uint64_t user_data;
	int result;
	uint32_t handle;	/* CREATE */
};

struct dev;

struct dev_ops {
	const char *name;
	int (*submit)(struct dev *, const struct dev_request *);
	bool (*reap)(struct dev *, struct dev_completion *);
	/* A new fd (O_CLOEXEC) of the extent, writable or not; never blocks. */
	int (*export)(struct dev *, uint32_t handle, bool writable);
	void (*destroy)(struct dev *);	/* waits for the worker, frees everything */
};

struct dev {
	const struct dev_ops *ops;
	int fd;			/* readable when reap() has something */
};

/* max_extents bounds live handles and the queue. 0/-errno. */
int dev_host_create(struct dev **, uint32_t max_extents);

#endif
