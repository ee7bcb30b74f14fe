// SPDX-License-Identifier: Apache-2.0
/* embed - the same mm, dispatch and executor, inside this process
 *
 * A call is submitted and pumped until its reply came; what mm waits for meanwhile (the device's
 * worker, a deadline) is waited for in poll. Nothing here knows what a request means.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "call.h"
#include "mm/mm.h"
#include "srv/dispatch.h"
#include "srv/exec.h"

#define EMBED_DATA_BYTES (8ull << 20)
#define EMBED_MIN_BYTES	 (2ull << 20)
#define EMBED_TRIES	 100 /* of 10 ms, while mm is full */

struct embed {
	struct exec *exec;
	struct dispatch_client client;
	int notify_fd;
	bool notified;
};

/* The cookie of a request: who waits for its reply. Lives on the waiter's stack. */
struct wait {
	struct call *call; /* NULL: reply is wanted as it is */
	struct dispatch_pending pending;
	struct mm_reply reply;
	bool done;
};

__attribute__((weak, noreturn)) void mm_panic(const char *what, const char *file, int line)
{
	fprintf(stderr, "kvd: %s:%d: broken invariant: %s\n", file, line, what);
	abort();
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void on_reply(void *ctx, const struct mm_reply *reply)
{
	struct wait *w = (struct wait *)(uintptr_t)reply->cookie;
	struct embed *e = ctx;

	if (w->call) {
		dispatch_reply(&e->client, &w->pending, reply, &w->call->cqe);
		w->call->done = true;
	}
	w->reply = *reply;
	w->done = true;
}

static void on_notify(void *ctx, uint32_t member)
{
	const uint64_t one = 1;
	struct embed *e = ctx;

	if (member != e->client.member || e->notified)
		return;
	/* A full counter is readable as well: nothing is lost. */
	e->notified = write(e->notify_fd, &one, sizeof(one)) >= 0 || errno == EAGAIN;
}

static const struct exec_ops embed_exec_ops = { .reply = on_reply, .notify = on_notify };

/* Until the device or a deadline has something, at most limit_ms (-1: as long as it takes). */
static void pause_for_work(struct embed *e, int limit_ms)
{
	struct pollfd pfd = { .fd = exec_dev_fd(e->exec, 0), .events = POLLIN };
	uint64_t due = exec_next_deadline(e->exec), now = now_ns();
	int ms = limit_ms;

	if (due != UINT64_MAX) {
		uint64_t left = due > now ? (due - now + 999999) / 1000000 : 0;

		if (ms < 0 || left < (uint64_t)ms)
			ms = left < 60000 ? (int)left : 60000;
	}
	poll(&pfd, 1, ms);
}

static void events_fetched(struct embed *e)
{
	uint64_t drained;

	e->notified = false;
	while (read(e->notify_fd, &drained, sizeof(drained)) > 0)
		;
}

static int embed_call(struct kv *kv, struct call *c)
{
	struct embed *e = kv->link;
	struct wait w = { .call = c };
	int rc, tries;

	if (c->sqe.op == KV_OP_EVENTS)
		events_fetched(e);
	for (tries = 0; tries < EMBED_TRIES; tries++) {
		/* Nobody else writes here: what was given is read where it lies. */
		e->client.scratch = (uint8_t *)e->client.data + c->sqe.in_off;
		rc = dispatch_submit(e->exec, &e->client, &c->sqe, (uint64_t)(uintptr_t)&w,
				     now_ns(), &w.pending, &c->cqe);
		if (rc != -EAGAIN)
			break;
		exec_run(e->exec, now_ns());
		pause_for_work(e, 10);
	}
	if (rc < 0)
		return rc;
	c->done = rc == 1;
	while (exec_run(e->exec, now_ns()), !c->done) {
		if (e->notified && !kv->serving)
			event_serve(kv, EVENT_CALLBACK);
		else
			pause_for_work(e, -1);
	}
	return 0;
}

static int submit_plain(struct embed *e, struct mm_request *req, struct mm_reply *reply)
{
	struct wait w = { .call = NULL };
	int rc;

	req->cookie = (uint64_t)(uintptr_t)&w;
	rc = exec_submit(e->exec, req, now_ns());
	if (rc)
		return rc;
	while (exec_run(e->exec, now_ns()), !w.done)
		pause_for_work(e, -1);
	*reply = w.reply;
	return w.reply.result;
}

static int embed_import(struct kv *kv, uint32_t extent, uint32_t shard, struct link_extent *out)
{
	struct embed *e = kv->link;
	struct mm_request req = {
		.op = MM_IMPORT,
		.engine = kv->engine,
		.member = kv->member,
		.map = { .extent = extent, .shard = shard },
	};
	struct mm_reply reply;
	int rc = submit_plain(e, &req, &reply);

	if (!rc) {
		out->writable = reply.writable;
		out->fd = exec_export(e->exec, extent, shard, reply.writable, &out->bytes);
		if (out->fd >= 0)
			return 0;
		rc = out->fd;
		req.op = MM_UNIMPORT;
		submit_plain(e, &req, &reply);
	}
	return err_set(rc, "cannot map extent %u: %s", extent,
		       rc == -ENOENT ? "it is gone; its pages were given back" : strerror(-rc));
}

static bool embed_pending(struct kv *kv)
{
	struct embed *e = kv->link;

	exec_run(e->exec, now_ns());
	return e->notified;
}

static void embed_arm(const struct kv *kv)
{
	(void)kv;
}

static void embed_close(struct kv *kv)
{
	struct embed *e = kv->link;

	if (e->exec)
		exec_destroy(e->exec);
	if (e->notify_fd >= 0)
		close(e->notify_fd);
	free(e->client.data);
	free(e);
}

static const struct link_ops embed_ops = {
	.call = embed_call,
	.import = embed_import,
	.pending = embed_pending,
	.arm = embed_arm,
	.close = embed_close,
};

static int start_exec(struct embed *e, uint64_t pool_bytes)
{
	struct mm_config cfg;
	struct dev *dev;
	int rc;

	exec_default_config(&cfg, 1, &pool_bytes, 0);
	rc = dev_host_create(&dev, cfg.max_extents);
	if (!rc)
		rc = exec_create(&e->exec, &cfg, &dev, &embed_exec_ops, e);
	if (rc)
		return err_set(rc, "cannot start an embedded pool: %s", strerror(-rc));
	e->client.batch_pages = cfg.batch_pages;
	return 0;
}

static int attach(struct kv *kv, struct embed *e)
{
	struct mm_request req = { .op = MM_ENGINE_ATTACH, .attach = { .tenant = getuid() } };
	struct mm_reply reply;
	int rc = submit_plain(e, &req, &reply);

	if (rc)
		return err_set(rc, "the embedded pool refused its engine: %s", strerror(-rc));
	kv->engine = e->client.engine = reply.engine;
	kv->member = e->client.member = reply.member;
	e->client.lead = true;
	return 0;
}

static int embed_init(struct kv *kv, struct embed *e, uint64_t pool_bytes)
{
	int rc;

	e->notify_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	e->client.data_bytes = EMBED_DATA_BYTES;
	e->client.data = calloc(1, EMBED_DATA_BYTES);
	if (e->notify_fd < 0 || !e->client.data)
		return err_set(-ENOMEM, "no memory for an embedded pool");
	rc = start_exec(e, pool_bytes);
	if (!rc)
		rc = attach(kv, e);
	if (!rc)
		rc = kv_watch(kv, e->notify_fd);
	return rc ? rc : kv_watch(kv, exec_dev_fd(e->exec, 0));
}

int embed_open(struct kv *kv, uint64_t pool_bytes, const struct kv_options *o)
{
	struct embed *e;
	int rc;

	if (o->member_token)
		return err_set(-EINVAL, "an embedded pool has one process: members need a kvd");
	if (pool_bytes < EMBED_MIN_BYTES)
		return err_set(-EINVAL, "an embedded pool of %llu bytes is too small: at least 2M",
			       (unsigned long long)pool_bytes);
	e = calloc(1, sizeof(*e));
	if (!e)
		return err_set(-ENOMEM, "no memory for an embedded pool");
	kv->link = e;
	rc = embed_init(kv, e, pool_bytes);
	if (rc) {
		embed_close(kv);
		return rc;
	}
	kv->ops = &embed_ops;
	kv->embedded = true;
	kv->nr_devices = 1;
	kv->pool_bytes = pool_bytes;
	snprintf(kv->tenant, sizeof(kv->tenant), "embedded");
	kv->batch_pages = e->client.batch_pages;
	kv->data = e->client.data;
	kv->data_bytes = EMBED_DATA_BYTES;
	return 0;
}
