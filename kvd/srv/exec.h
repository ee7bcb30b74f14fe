/* SPDX-License-Identifier: Apache-2.0 */
/* exec - runs mm's effects on devices: the same for the daemon and for a pool inside a process
 *
 * Model:      exec owns one mm and its devices. exec_run() pumps until nothing more can be done
 *             without waiting: effects go to devices, device completions and due deadlines go to
 *             mm, replies go to the reply callback, notifications to the notify callback, and
 *             engines to be killed to the kill callback.
 * Ownership:  exec owns the mm block, the (extent, shard) -> device handle table and the devices.
 * Context:    one thread. Never blocks; exec_fds()/exec_next_deadline() say what to wait for.
 * Errors:     0/-errno.
 * See:        kvd/mm/mm.h, kvd/io/dev.h
 */
#ifndef EXEC_H
#define EXEC_H

#include <stdint.h>
#include "mm/mm.h"
#include "io/dev.h"

struct exec;

struct exec_ops {
	void (*reply)(void *ctx, const struct mm_reply *);
	void (*notify)(void *ctx, uint32_t member);
	void (*kill)(void *ctx, uint32_t engine);	/* its processes; NULL: they are ours */
};

/* devs[i] serves cfg->device[i]; exec takes them over, also on error. */
int exec_create(struct exec **, const struct mm_config *cfg, struct dev *const *devs,
		const struct exec_ops *ops, void *ctx);
void exec_destroy(struct exec *);

struct mm *exec_mm(struct exec *);

/* Submit to mm; on -EAGAIN pumps once and tries again, so -EAGAIN means real back-pressure. */
int exec_submit(struct exec *, const struct mm_request *, uint64_t now_ns);
void exec_run(struct exec *, uint64_t now_ns);
uint64_t exec_next_deadline(const struct exec *);
int exec_dev_fd(const struct exec *, uint32_t device);

/* fd of a live extent for a process that mm allowed to import it; bytes of it. */
int exec_export(struct exec *, uint32_t extent, uint32_t shard, bool writable, uint64_t *bytes);

/* The defaults of docs/knobs.md for a pool of this size on nr_devices devices. */
void exec_default_config(struct mm_config *, uint32_t nr_devices, const uint64_t *pool_bytes,
			 uint64_t extent_bytes /* 0: from the pool's size */);

/* In permille of each pool; low is an extent at least, high two, where that is no more than a 16th
 * of the pool, else one; none where low is less than an extent that is more than that, or 0. */
void exec_watermarks(struct mm_config *, uint32_t min, uint32_t low, uint32_t high);

#endif
