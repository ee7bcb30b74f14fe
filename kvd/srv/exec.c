// SPDX-License-Identifier: Apache-2.0
/* exec - mm's effects on devices: in-flight operations and the handle table */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "srv/exec.h"

#define EXEC_MAX_OPS		4096u	/* effects taken from mm and not completed */
#define EXEC_TICKS		64u	/* mm_tick calls an exec_run: the rest waits for the next */
#define EXEC_TICK_BUDGET	256u

#define MIB			(1ull << 20)

/* As control.c's knobs. */
#define WMARK_LOW		8u	/* permille of a pool */
#define WMARK_HIGH		16u
#define WMARK_RAISED		16u	/* part of a pool that extents may raise them to */
#define ANSWER_NS		1000000000ull
#define IDLE_NS			5000000000ull

/* One effect on its way through a device. Slot 0 is nobody, so 0 ends every list. */
struct op {
	struct dev_request req;
	uint64_t effect;		/* 0: exec's own, mm does not wait for it */
	enum mm_effect_kind kind;
	uint32_t extent, shard, device;
	uint32_t next;			/* in free_ops or in its device's queue */
	uint32_t destroy;		/* CREATE: the op that waits for it to destroy the result */
};

/* (extent, shard) on its device. */
struct piece {
	uint64_t bytes;
	uint32_t handle;		/* 0: none */
	uint32_t device;
	uint32_t create;		/* op in flight, 0: none */
	uint32_t pad;
};

/* A device and the ops its own queue had no room for, oldest first: one that hangs holds up
 * nothing but them. */
struct queue {
	struct dev *dev;
	uint32_t head, tail;
};

struct exec {
	struct mm *mm;
	void *mem;
	size_t mem_bytes;
	struct piece *pieces;		/* [max_extents + 1][MM_MAX_SHARDS] */
	size_t pieces_bytes;
	uint32_t nr_extents;		/* bound of extent ids */
	uint32_t nr_devices;
	struct queue queue[MM_MAX_DEVICES];
	struct exec_ops ops;
	void *ctx;
	uint32_t free_ops;
	bool running;			/* a callback called back: never pump twice at once */
	struct op op[EXEC_MAX_OPS + 1];
};

static void *zero_pages(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static struct piece *piece_of(const struct exec *x, uint32_t extent, uint32_t shard)
{
	if (extent >= x->nr_extents || shard >= MM_MAX_SHARDS)
		return NULL;
	return &x->pieces[(size_t)extent * MM_MAX_SHARDS + shard];
}

static void op_free(struct exec *x, uint32_t i)
{
	x->op[i].next = x->free_ops;
	x->free_ops = i;
}

static void queue_push(struct exec *x, uint32_t i)
{
	struct queue *q = &x->queue[x->op[i].device];

	x->op[i].next = 0;
	if (q->tail)
		x->op[q->tail].next = i;
	else
		q->head = i;
	q->tail = i;
}

static uint32_t queue_pop(struct exec *x, struct queue *q)
{
	uint32_t i = q->head;

	q->head = x->op[i].next;
	if (!q->head)
		q->tail = 0;
	return i;
}

/* Point a DESTROY at the handle and take it out of the table: from here on the ids may be used
 * again, by a CREATE that the device carries out after it. */
static void push_destroy(struct exec *x, uint32_t i, struct piece *p)
{
	x->op[i].req.handle = p->handle;
	x->op[i].device = p->device;
	*p = (struct piece){ 0 };
	queue_push(x, i);
}

static void create_done(struct exec *x, uint32_t i, int result, uint32_t handle, uint64_t now_ns)
{
	struct op *op = &x->op[i];
	struct piece *p = piece_of(x, op->extent, op->shard);
	uint32_t waiter = op->destroy;
	bool unwanted;

	p->create = 0;
	if (!result) {
		p->handle = handle;
		p->bytes = op->req.bytes;
		p->device = op->device;
	}
	unwanted = mm_complete(x->mm, op->effect, result, now_ns) != 0 && !result;
	if (waiter && !result) {
		push_destroy(x, waiter, p);
	} else if (waiter) {
		mm_complete(x->mm, x->op[waiter].effect, 0, now_ns);
		op_free(x, waiter);
	} else if (unwanted) {
		*op = (struct op){ .kind = MM_EFFECT_DESTROY, .req.op = DEV_DESTROY };
		op->req.user_data = i;
		push_destroy(x, i, p);
		return;
	}
	op_free(x, i);
}

static void op_done(struct exec *x, uint32_t i, int result, uint32_t handle, uint64_t now_ns)
{
	struct op *op = &x->op[i];

	if (op->kind == MM_EFFECT_CREATE) {
		create_done(x, i, result, handle, now_ns);
		return;
	}
	if (op->effect)
		mm_complete(x->mm, op->effect, result, now_ns);
	op_free(x, i);
}

static void start_create(struct exec *x, uint32_t i, struct piece *p)
{
	struct op *op = &x->op[i];

	if (p->handle || p->create)
		mm_panic("exec: an extent is created twice", __FILE__, __LINE__);
	p->create = i;
	op->req.op = DEV_CREATE;
	queue_push(x, i);
}

static void start_destroy(struct exec *x, uint32_t i, struct piece *p, uint64_t now_ns)
{
	x->op[i].req.op = DEV_DESTROY;
	if (p->create)
		x->op[p->create].destroy = i;
	else if (p->handle)
		push_destroy(x, i, p);
	else
		op_done(x, i, 0, 0, now_ns);	/* its CREATE failed: the device has it back */
}

static void start_scrub(struct exec *x, uint32_t i, const struct mm_effect *e,
			const struct piece *p, uint64_t now_ns)
{
	struct dev_request *req = &x->op[i].req;

	if (!p->handle) {
		op_done(x, i, -ENOENT, 0, now_ns);
		return;
	}
	req->op = DEV_SCRUB;
	req->handle = p->handle;
	req->offset = e->slot * e->page_bytes;
	req->bytes = e->nr_slots * e->page_bytes;
	queue_push(x, i);
}

/* mm lets no extent go while pages move out of it or into it. */
static void start_move(struct exec *x, uint32_t i, const struct mm_effect *e,
		       const struct piece *p, uint64_t now_ns)
{
	const struct piece *to = piece_of(x, e->to_extent, e->shard);
	struct dev_request *req = &x->op[i].req;

	if (!to || !p->handle || !to->handle || to->device != p->device) {
		op_done(x, i, -ENOENT, 0, now_ns);
		return;
	}
	req->op = DEV_COPY;
	req->handle = p->handle;
	req->to_handle = to->handle;
	req->offset = e->slot * e->page_bytes;
	req->to_offset = e->to_slot * e->page_bytes;
	req->bytes = e->nr_slots * e->page_bytes;
	queue_push(x, i);
}

static void start_effect(struct exec *x, const struct mm_effect *e, uint64_t now_ns)
{
	struct piece *p = piece_of(x, e->extent, e->shard);
	uint32_t i;

	if (e->kind == MM_EFFECT_NOTIFY) {
		x->ops.notify(x->ctx, e->member);
		return;
	}
	if (e->kind == MM_EFFECT_KILL) {
		if (x->ops.kill)
			x->ops.kill(x->ctx, e->engine);
		return;
	}
	if (!p || e->device >= x->nr_devices)
		mm_panic("exec: an effect names no extent or device", __FILE__, __LINE__);
	i = x->free_ops;
	x->free_ops = x->op[i].next;
	x->op[i] = (struct op){
		.req = { .user_data = i, .bytes = e->bytes },
		.effect = e->id, .kind = e->kind,
		.extent = e->extent, .shard = e->shard, .device = e->device,
	};
	switch (e->kind) {
	case MM_EFFECT_CREATE:
		start_create(x, i, p);
		break;
	case MM_EFFECT_DESTROY:
		start_destroy(x, i, p, now_ns);
		break;
	case MM_EFFECT_SCRUB:
		start_scrub(x, i, e, p, now_ns);
		break;
	case MM_EFFECT_MOVE:
		start_move(x, i, e, p, now_ns);
		break;
	default:
		mm_panic("exec: an effect of no known kind", __FILE__, __LINE__);
	}
}

static bool run_effects(struct exec *x, uint64_t now_ns)
{
	struct mm_effect e;
	bool any = false;

	while (x->free_ops && mm_next_effect(x->mm, &e)) {
		start_effect(x, &e, now_ns);
		any = true;
	}
	return any;
}

static bool run_device(struct exec *x, struct queue *q, uint64_t now_ns)
{
	struct dev_completion c;
	bool any = false;

	while (q->head) {
		int ret = q->dev->ops->submit(q->dev, &x->op[q->head].req);

		if (ret == -EAGAIN)
			break;
		any = true;
		if (ret)
			op_done(x, queue_pop(x, q), ret, 0, now_ns);
		else
			queue_pop(x, q);
	}
	while (q->dev->ops->reap(q->dev, &c)) {
		if (!c.user_data || c.user_data > EXEC_MAX_OPS)
			mm_panic("exec: a completion nobody waits for", __FILE__, __LINE__);
		op_done(x, (uint32_t)c.user_data, c.result, c.handle, now_ns);
		any = true;
	}
	return any;
}

static bool run_replies(struct exec *x)
{
	struct mm_reply r;
	bool any = false;

	while (mm_next_reply(x->mm, &r)) {
		x->ops.reply(x->ctx, &r);
		any = true;
	}
	return any;
}

void exec_run(struct exec *x, uint64_t now_ns)
{
	uint32_t ticks = EXEC_TICKS;
	bool more = true;

	if (x->running)
		return;
	x->running = true;
	while (more) {
		more = run_replies(x);
		more |= run_effects(x, now_ns);
		for (uint32_t d = 0; d < x->nr_devices; d++)
			more |= run_device(x, &x->queue[d], now_ns);
		if (mm_next_deadline(x->mm) <= now_ns && ticks) {
			ticks--;
			mm_tick(x->mm, now_ns, EXEC_TICK_BUDGET);
			more = true;
		}
	}
	x->running = false;
}

int exec_submit(struct exec *x, const struct mm_request *req, uint64_t now_ns)
{
	int ret = mm_submit(x->mm, req, now_ns);

	if (ret == -EAGAIN && !x->running) {
		exec_run(x, now_ns);
		ret = mm_submit(x->mm, req, now_ns);
	}
	return ret;
}

struct mm *exec_mm(struct exec *x)
{
	return x->mm;
}

uint64_t exec_next_deadline(const struct exec *x)
{
	return mm_next_deadline(x->mm);
}

int exec_dev_fd(const struct exec *x, uint32_t device)
{
	return device < x->nr_devices ? x->queue[device].dev->fd : -ENODEV;
}

int exec_export(struct exec *x, uint32_t extent, uint32_t shard, bool writable, uint64_t *bytes)
{
	struct piece *p = piece_of(x, extent, shard);
	struct dev *dev;
	int fd;

	if (!p || !p->handle)
		return -ENOENT;
	dev = x->queue[p->device].dev;
	fd = dev->ops->export(dev, p->handle, writable);
	if (fd >= 0)
		*bytes = p->bytes;
	return fd;
}

static int exec_init(struct exec *x, const struct mm_config *cfg)
{
	x->mem_bytes = mm_footprint(cfg);
	if (!x->mem_bytes)
		return -EINVAL;
	x->nr_extents = cfg->max_extents + 1;
	x->pieces_bytes = (size_t)x->nr_extents * MM_MAX_SHARDS * sizeof(*x->pieces);
	x->mem = zero_pages(x->mem_bytes);
	x->pieces = zero_pages(x->pieces_bytes);
	if (!x->mem || !x->pieces)
		return -ENOMEM;
	for (uint32_t i = EXEC_MAX_OPS; i; i--)
		op_free(x, i);
	return mm_init(&x->mm, x->mem, x->mem_bytes, cfg);
}

static void devices_destroy(struct dev *const *devs, uint32_t nr)
{
	for (uint32_t d = 0; d < nr; d++)
		devs[d]->ops->destroy(devs[d]);
}

int exec_create(struct exec **exec, const struct mm_config *cfg, struct dev *const *devs,
		const struct exec_ops *ops, void *ctx)
{
	struct exec *x = calloc(1, sizeof(*x));
	int ret = x ? 0 : -ENOMEM;

	if (!cfg->nr_devices || cfg->nr_devices > MM_MAX_DEVICES)
		ret = -EINVAL;
	if (ret) {
		devices_destroy(devs, cfg->nr_devices);
		free(x);
		return ret;
	}
	for (uint32_t d = 0; d < cfg->nr_devices; d++)
		x->queue[d].dev = devs[d];
	x->nr_devices = cfg->nr_devices;
	x->ops = *ops;
	x->ctx = ctx;
	ret = exec_init(x, cfg);
	if (ret) {
		exec_destroy(x);
		return ret;
	}
	*exec = x;
	return 0;
}

void exec_destroy(struct exec *x)
{
	for (uint32_t d = 0; d < x->nr_devices; d++)
		x->queue[d].dev->ops->destroy(x->queue[d].dev);
	if (x->mem)
		munmap(x->mem, x->mem_bytes);
	if (x->pieces)
		munmap(x->pieces, x->pieces_bytes);
	free(x);
}

static uint64_t clamp_u64(uint64_t v, uint64_t lo, uint64_t hi)
{
	return v < lo ? lo : v > hi ? hi : v;
}

static uint64_t default_extent_bytes(uint64_t pool_bytes)
{
	uint64_t want = pool_bytes / 64, pow2 = 2 * MIB;

	while (pow2 < 64 * MIB && pow2 * 2 <= want)
		pow2 *= 2;
	return pow2;
}

static uint64_t at_least(uint64_t v, uint64_t lo)
{
	return v < lo ? lo : v;
}

/* What is free by bits of extents is nobody's: memory comes and goes in whole ones. */
void exec_watermarks(struct mm_config *cfg, uint32_t min, uint32_t low, uint32_t high)
{
	for (uint32_t d = 0; d < cfg->nr_devices && d < MM_MAX_DEVICES; d++) {
		struct mm_device_config *dc = &cfg->device[d];
		uint64_t part = dc->pool_bytes / 1000, most = dc->pool_bytes / WMARK_RAISED;
		uint64_t extent = dc->extent_bytes, two = 2 * extent > most ? extent : 2 * extent;
		bool none = !low || (part * low < extent && extent > most);

		dc->wmark_min_bytes = none ? 0 : part * min;
		dc->wmark_low_bytes = none ? 0 : at_least(part * low, extent);
		dc->wmark_high_bytes = none ? 0 : at_least(part * high, two);
	}
}

/* Room for pages far smaller than a real model's, which have 256 KiB and more: 4 KiB up to a pool
 * of 16 GiB, 64 KiB in one of a TiB. */
static uint32_t default_frames(uint64_t pool_bytes)
{
	uint64_t small = clamp_u64(pool_bytes / 4096, 1u << 16, 1u << 22);

	return (uint32_t)clamp_u64(pool_bytes / 65536, small, 1u << 24);
}

/* Tables are address space until they are touched (zero_pages): 30 MiB of it for the smallest pool,
 * 0.4 KiB a frame for the largest, of which mm_init touches 5 bytes a frame. */
void exec_default_config(struct mm_config *cfg, uint32_t nr_devices, const uint64_t *pool_bytes,
			 uint64_t extent_bytes)
{
	uint64_t total = 0, extents = 64;

	memset(cfg, 0, sizeof(*cfg));
	cfg->nr_devices = nr_devices;
	for (uint32_t d = 0; d < nr_devices && d < MM_MAX_DEVICES; d++) {
		struct mm_device_config *dc = &cfg->device[d];

		dc->pool_bytes = pool_bytes[d];
		dc->extent_bytes =
			extent_bytes ? extent_bytes : default_extent_bytes(pool_bytes[d]);
		dc->extent_align = 2 * MIB;
		total += pool_bytes[d];
		/* extents come as near to the target as 2^k pages do: half of it at worst */
		extents += 2 * (pool_bytes[d] / dc->extent_bytes);
	}
	exec_watermarks(cfg, 0, WMARK_LOW, WMARK_HIGH);
	cfg->answer_ns = ANSWER_NS;
	cfg->idle_ns = IDLE_NS;
	cfg->max_tenants = 64;
	cfg->max_engines = 256;
	cfg->max_members = 512;
	cfg->max_caches = 256;
	cfg->max_extents = (uint32_t)clamp_u64(extents, 64, (1u << MM_EXTENT_BITS) - 1);
	cfg->max_frames = default_frames(total);
	cfg->max_nodes = cfg->max_frames;
	cfg->max_tokens = (uint64_t)cfg->max_nodes * 64;
	cfg->max_leases = (uint32_t)clamp_u64(cfg->max_frames / 4, 1u << 14, 1u << 18);
	cfg->max_parks = cfg->max_leases / 4;
	cfg->max_keys = (uint32_t)clamp_u64(cfg->max_frames / 16, 1u << 14, 1u << 18);
	cfg->max_pending = 1024;
	cfg->batch_pages = 1u << 14;
	cfg->policy = MM_POLICY_GITTINS;
	/* as many as pages; a small pool turns over faster than its pages come back */
	cfg->max_shadows = (uint32_t)clamp_u64(cfg->max_frames, MM_MIN_SHADOWS, 1u << 28);
}
