/* SPDX-License-Identifier: Apache-2.0 */
/* fake_dev - a device without memory that does what a test tells it to
 *
 * Model:      requests wait in a FIFO and are carried out by reap(), so there are no threads and
 *             the order is the caller's. Knobs: hold (nothing completes), room (submit answers
 *             -EAGAIN beyond it), fail_* and submit_error (errno to answer with).
 * Invariants: a handle is live from its CREATE to its DESTROY; anything else is an assert, so a
 *             test that leaks or destroys twice cannot pass.
 * Ownership:  the test owns the struct; dev_ops.destroy only marks it ended.
 * See:        exec_test.c, dispatch_test.c, tests/fuzz/dispatch_fuzz.c
 */
#ifndef FAKE_DEV_H
#define FAKE_DEV_H

#include <assert.h>
#include <errno.h>
#include <string.h>
#include "io/dev.h"

#define FAKE_HANDLES	1024u
#define FAKE_QUEUE	1024u
#define FAKE_FD		1000	/* export answers FAKE_FD + 2 * handle + writable */

struct fake_dev {
	struct dev dev;
	struct dev_request queue[FAKE_QUEUE];
	uint32_t head, tail;
	bool hold, ended;
	uint32_t room;
	int fail_create, fail_destroy, fail_scrub, fail_copy, submit_error;
	struct dev_request copy;	/* the last one */
	uint64_t bytes[FAKE_HANDLES];	/* [handle], 0: not live */
	uint32_t nr_live;
	uint32_t creates, destroys, scrubs, copies;	/* carried out with success */
};

static int fake_submit(struct dev *dev, const struct dev_request *req)
{
	struct fake_dev *f = (struct fake_dev *)dev;

	if (f->submit_error)
		return f->submit_error;
	if (f->tail - f->head >= f->room)
		return -EAGAIN;
	f->queue[f->tail++ % FAKE_QUEUE] = *req;
	return 0;
}

static int fake_create(struct fake_dev *f, uint64_t bytes, uint32_t *handle)
{
	uint32_t h = 1;

	assert(bytes);
	if (f->fail_create)
		return f->fail_create;
	while (h < FAKE_HANDLES && f->bytes[h])
		h++;
	if (h == FAKE_HANDLES)
		return -ENOMEM;
	f->bytes[h] = bytes;
	f->nr_live++;
	f->creates++;
	*handle = h;
	return 0;
}

static bool fake_reap(struct dev *dev, struct dev_completion *c)
{
	struct fake_dev *f = (struct fake_dev *)dev;
	struct dev_request *r = &f->queue[f->head % FAKE_QUEUE];

	if (f->hold || f->head == f->tail)
		return false;
	f->head++;
	*c = (struct dev_completion){ .user_data = r->user_data };
	if (r->op == DEV_CREATE) {
		c->result = fake_create(f, r->bytes, &c->handle);
		return true;
	}
	assert(r->op == DEV_DESTROY || r->op == DEV_SCRUB || r->op == DEV_COPY);
	assert(r->handle && r->handle < FAKE_HANDLES && f->bytes[r->handle]);
	c->result = r->op == DEV_DESTROY ? f->fail_destroy :
		    r->op == DEV_SCRUB ? f->fail_scrub : f->fail_copy;
	if (c->result)
		return true;
	if (r->op == DEV_DESTROY) {
		f->bytes[r->handle] = 0;
		f->nr_live--;
		f->destroys++;
	} else {
		assert(r->bytes && r->offset <= f->bytes[r->handle] &&
		       r->bytes <= f->bytes[r->handle] - r->offset);
		f->scrubs += r->op == DEV_SCRUB;
	}
	if (r->op == DEV_COPY) {
		assert(r->to_handle != r->handle && r->to_handle < FAKE_HANDLES);
		assert(r->to_offset + r->bytes <= f->bytes[r->to_handle]);
		f->copy = *r;
		f->copies++;
	}
	return true;
}

static int fake_export(struct dev *dev, uint32_t handle, bool writable)
{
	struct fake_dev *f = (struct fake_dev *)dev;

	assert(handle && handle < FAKE_HANDLES && f->bytes[handle]);
	return FAKE_FD + 2 * (int)handle + writable;
}

static void fake_destroy(struct dev *dev)
{
	((struct fake_dev *)dev)->ended = true;
}

static const struct dev_ops fake_ops = {
	.name = "fake", .submit = fake_submit, .reap = fake_reap, .export = fake_export,
	.destroy = fake_destroy,
};

static struct dev *fake_init(struct fake_dev *f)
{
	memset(f, 0, sizeof(*f));
	f->dev.ops = &fake_ops;
	f->dev.fd = -1;
	f->room = FAKE_QUEUE;
	return &f->dev;
}

#endif
