// SPDX-License-Identifier: Apache-2.0
/* exec against a scripted mm, so that every order of effects and completions can be played, also
 * those that today's mm never produces. The real pair is under test in dispatch_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

/* exec.c is compiled into this file against the script below, under names of its own so that the
 * program can be linked with the real ones. */
#define exec_create		scripted_exec_create
#define exec_destroy		scripted_exec_destroy
#define exec_mm			scripted_exec_mm
#define exec_submit		scripted_exec_submit
#define exec_run		scripted_exec_run
#define exec_next_deadline	scripted_exec_next_deadline
#define exec_dev_fd		scripted_exec_dev_fd
#define exec_export		scripted_exec_export
#define exec_default_config	scripted_exec_default_config
#define mm_footprint		script_footprint
#define mm_init			script_init
#define mm_submit		script_submit
#define mm_complete		script_complete
#define mm_tick			script_tick
#define mm_next_deadline	script_next_deadline
#define mm_next_effect		script_next_effect
#define mm_next_reply		script_next_reply
#define mm_panic		script_panic
#include "../../../kvd/srv/exec.c"

#include "fake_dev.h"

#define LOG	256

struct mm {
	struct mm_effect effect[LOG];
	uint32_t effect_head, effect_tail;
	struct mm_reply reply[LOG];
	uint32_t reply_head, reply_tail;
	struct { uint64_t id; int result; } done[LOG];	/* mm_complete calls */
	uint32_t nr_done;
	int complete_result;
	uint32_t submit_eagain, submits, ticks;
	uint64_t deadline, tick_until;	/* each tick moves the deadline on until this many */
};

static struct mm script;
static int init_result;
static size_t footprint = 4096;

size_t script_footprint(const struct mm_config *cfg)
{
	(void)cfg;
	return footprint;
}

int script_init(struct mm **mm, void *mem, size_t len, const struct mm_config *cfg)
{
	(void)cfg;
	assert_int_equal(len, footprint);
	for (size_t i = 0; i < len; i++)
		assert_int_equal(((char *)mem)[i], 0);
	script = (struct mm){ .deadline = UINT64_MAX };
	*mm = &script;
	return init_result;
}

int script_submit(struct mm *mm, const struct mm_request *req, uint64_t now_ns)
{
	(void)now_ns;
	if (mm->submit_eagain) {
		mm->submit_eagain--;
		return -EAGAIN;
	}
	mm->submits++;
	mm->reply[mm->reply_tail++ % LOG] = (struct mm_reply){ .cookie = req->cookie };
	return 0;
}

int script_complete(struct mm *mm, uint64_t effect_id, int result, uint64_t now_ns)
{
	(void)now_ns;
	mm->done[mm->nr_done % LOG].id = effect_id;
	mm->done[mm->nr_done++ % LOG].result = result;
	return mm->complete_result;
}

void script_tick(struct mm *mm, uint64_t now_ns, unsigned int budget)
{
	assert_true(budget > 0);
	assert_true(mm->deadline <= now_ns);
	mm->ticks++;
	if (mm->ticks >= mm->tick_until)
		mm->deadline = UINT64_MAX;
}

uint64_t script_next_deadline(const struct mm *mm)
{
	return mm->deadline;
}

bool script_next_effect(struct mm *mm, struct mm_effect *e)
{
	if (mm->effect_head == mm->effect_tail)
		return false;
	*e = mm->effect[mm->effect_head++ % LOG];
	return true;
}

bool script_next_reply(struct mm *mm, struct mm_reply *r)
{
	if (mm->reply_head == mm->reply_tail)
		return false;
	*r = mm->reply[mm->reply_head++ % LOG];
	return true;
}

static bool panic_expected;
static jmp_buf panic_jump;

void script_panic(const char *what, const char *file, int line)
{
	if (panic_expected)
		longjmp(panic_jump, 1);
	fprintf(stderr, "%s:%d: %s\n", file, line, what);
	abort();
}

/* ---- fixture ------------------------------------------------------------------------------- */

struct fix {
	struct exec *x;
	struct fake_dev dev[2];
	uint64_t cookie[LOG];
	uint32_t nr_replies;
	uint32_t notified[LOG];
	uint32_t nr_notified;
	uint32_t killed, nr_killed;
	uint32_t resubmit;		/* the reply callback submits again this often */
};

static void on_reply(void *ctx, const struct mm_reply *r)
{
	struct fix *f = ctx;

	f->cookie[f->nr_replies++ % LOG] = r->cookie;
	if (f->resubmit) {
		struct mm_request req = { .cookie = r->cookie + 1 };

		f->resubmit--;
		script.submit_eagain = f->resubmit == 0;
		assert_int_equal(exec_submit(f->x, &req, 0), f->resubmit ? 0 : -EAGAIN);
	}
}

static void on_notify(void *ctx, uint32_t member)
{
	struct fix *f = ctx;

	f->notified[f->nr_notified++ % LOG] = member;
}

static void on_kill(void *ctx, uint32_t engine)
{
	struct fix *f = ctx;

	f->nr_killed++;
	f->killed = engine;
}

static const struct exec_ops exec_callbacks = { on_reply, on_notify, on_kill };

static struct mm_config config(void)
{
	return (struct mm_config){ .nr_devices = 2, .max_extents = 16 };
}

static int setup(void **state)
{
	struct fix *f = calloc(1, sizeof(*f));
	struct mm_config cfg = config();
	struct dev *devs[2];

	assert_non_null(f);
	devs[0] = fake_init(&f->dev[0]);
	devs[1] = fake_init(&f->dev[1]);
	f->dev[1].dev.fd = 77;
	assert_int_equal(exec_create(&f->x, &cfg, devs, &exec_callbacks, f), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fix *f = *state;

	exec_destroy(f->x);
	assert_true(f->dev[0].ended && f->dev[1].ended);
	free(f);
	return 0;
}

static void effect(enum mm_effect_kind kind, uint64_t id, uint32_t extent, uint32_t shard,
		   uint32_t device)
{
	script.effect[script.effect_tail++ % LOG] = (struct mm_effect){
		.id = id, .kind = kind, .extent = extent, .shard = shard, .device = device,
		.bytes = 2u << 20, .page_bytes = 4096, .slot = 3, .nr_slots = 2, .member = 9,
	};
}

static void expect_done(uint32_t i, uint64_t id, int result)
{
	assert_true(i < script.nr_done);
	assert_int_equal(script.done[i].id, id);
	assert_int_equal(script.done[i].result, result);
}

/* ---- tests --------------------------------------------------------------------------------- */

static void test_life_of_an_extent(void **state)
{
	struct fix *f = *state;
	uint64_t bytes = 0;

	effect(MM_EFFECT_CREATE, 101, 5, 3, 0);
	assert_int_equal(exec_export(f->x, 5, 3, true, &bytes), -ENOENT);
	exec_run(f->x, 1);
	expect_done(0, 101, 0);
	assert_int_equal(exec_export(f->x, 5, 3, true, &bytes), FAKE_FD + 2 + 1);
	assert_int_equal(bytes, 2u << 20);
	assert_int_equal(exec_export(f->x, 5, 3, false, &bytes), FAKE_FD + 2);
	assert_int_equal(exec_export(f->x, 5, 2, false, &bytes), -ENOENT);
	assert_int_equal(exec_export(f->x, 4, 3, false, &bytes), -ENOENT);
	assert_int_equal(exec_export(f->x, 5, MM_MAX_SHARDS, false, &bytes), -ENOENT);
	assert_int_equal(exec_export(f->x, UINT32_MAX, 3, false, &bytes), -ENOENT);
	effect(MM_EFFECT_SCRUB, 102, 5, 3, 0);
	exec_run(f->x, 2);
	expect_done(1, 102, 0);
	assert_int_equal(f->dev[0].scrubs, 1);
	assert_int_equal(f->dev[0].queue[1].offset, 3 * 4096);
	assert_int_equal(f->dev[0].queue[1].bytes, 2 * 4096);
	effect(MM_EFFECT_DESTROY, 103, 5, 3, 0);
	exec_run(f->x, 3);
	expect_done(2, 103, 0);
	assert_int_equal(f->dev[0].nr_live, 0);
	assert_int_equal(exec_export(f->x, 5, 3, false, &bytes), -ENOENT);
	assert_int_equal(script.nr_done, 3);
}

static void test_move(void **state)
{
	struct fix *f = *state;
	struct mm_effect move = { .id = 103, .kind = MM_EFFECT_MOVE, .extent = 5, .slot = 3,
				  .to_extent = 6, .to_slot = 1, .nr_slots = 1, .page_bytes = 4096 };

	effect(MM_EFFECT_CREATE, 101, 5, 0, 0);
	effect(MM_EFFECT_CREATE, 102, 6, 0, 0);
	exec_run(f->x, 1);
	script.effect[script.effect_tail++ % LOG] = move;
	exec_run(f->x, 2);
	expect_done(2, 103, 0);
	assert_int_equal(f->dev[0].copies, 1);
	assert_int_equal(f->dev[0].copy.offset, 3 * 4096);
	assert_int_equal(f->dev[0].copy.to_offset, 4096);
	assert_int_equal(f->dev[0].copy.bytes, 4096);
	assert_int_not_equal(f->dev[0].copy.handle, f->dev[0].copy.to_handle);
	f->dev[0].fail_copy = -EIO;
	move.id = 104;
	script.effect[script.effect_tail++ % LOG] = move;
	exec_run(f->x, 3);
	expect_done(3, 104, -EIO);
	/* To where nothing is, and out of any extent. */
	move.id = 105;
	move.to_extent = 7;
	script.effect[script.effect_tail++ % LOG] = move;
	move.id = 106;
	move.to_extent = UINT32_MAX;
	script.effect[script.effect_tail++ % LOG] = move;
	exec_run(f->x, 4);
	expect_done(4, 105, -ENOENT);
	expect_done(5, 106, -ENOENT);
	assert_int_equal(f->dev[0].copies, 1);
}

static void test_kill(void **state)
{
	struct fix *f = *state;

	script.effect[script.effect_tail++ % LOG] =
		(struct mm_effect){ .kind = MM_EFFECT_KILL, .engine = 42 };
	exec_run(f->x, 1);
	assert_int_equal(f->nr_killed, 1);
	assert_int_equal(f->killed, 42);
	assert_int_equal(script.nr_done, 0);
}

static void test_create_fails(void **state)
{
	struct fix *f = *state;
	uint64_t bytes;

	f->dev[0].fail_create = -ENOMEM;
	effect(MM_EFFECT_CREATE, 1, 2, 0, 0);
	effect(MM_EFFECT_CREATE, 2, 2, 1, 1);
	exec_run(f->x, 0);
	expect_done(0, 1, -ENOMEM);
	expect_done(1, 2, 0);
	assert_int_equal(exec_export(f->x, 2, 0, true, &bytes), -ENOENT);
	/* mm takes the whole extent back: the shard that never was is no error */
	effect(MM_EFFECT_DESTROY, 3, 2, 0, 0);
	effect(MM_EFFECT_DESTROY, 4, 2, 1, 1);
	effect(MM_EFFECT_SCRUB, 5, 2, 0, 0);
	exec_run(f->x, 0);
	expect_done(2, 3, 0);
	expect_done(3, 5, -ENOENT);
	expect_done(4, 4, 0);
	assert_int_equal(f->dev[1].nr_live, 0);
	f->dev[0].fail_create = 0;
	effect(MM_EFFECT_CREATE, 6, 2, 0, 0);
	exec_run(f->x, 0);
	expect_done(5, 6, 0);
}

static void test_destroy_overtakes_create(void **state)
{
	struct fix *f = *state;

	f->dev[0].hold = true;
	effect(MM_EFFECT_CREATE, 1, 2, 0, 0);
	effect(MM_EFFECT_DESTROY, 2, 2, 0, 0);
	exec_run(f->x, 0);
	assert_int_equal(script.nr_done, 0);
	f->dev[0].hold = false;
	exec_run(f->x, 0);
	expect_done(0, 1, 0);
	expect_done(1, 2, 0);
	assert_int_equal(f->dev[0].nr_live, 0);
	assert_int_equal(f->dev[0].destroys, 1);

	f->dev[0].hold = true;
	f->dev[0].fail_create = -EIO;
	effect(MM_EFFECT_CREATE, 3, 2, 0, 0);
	effect(MM_EFFECT_DESTROY, 4, 2, 0, 0);
	exec_run(f->x, 0);
	f->dev[0].hold = false;
	exec_run(f->x, 0);
	expect_done(2, 3, -EIO);
	expect_done(3, 4, 0);
	assert_int_equal(script.nr_done, 4);
}

/* The id comes back while the device still works on its former life. */
static void test_id_reused_before_destroy_is_done(void **state)
{
	struct fix *f = *state;
	uint64_t bytes;

	effect(MM_EFFECT_CREATE, 1, 2, 0, 0);
	exec_run(f->x, 0);
	f->dev[0].hold = true;
	effect(MM_EFFECT_DESTROY, 2, 2, 0, 0);
	effect(MM_EFFECT_CREATE, 3, 2, 0, 1);
	exec_run(f->x, 0);
	expect_done(1, 3, 0);
	assert_true(exec_export(f->x, 2, 0, true, &bytes) > 0);
	f->dev[0].hold = false;
	exec_run(f->x, 0);
	expect_done(2, 2, 0);
	assert_int_equal(f->dev[0].nr_live, 0);
	assert_int_equal(f->dev[1].nr_live, 1);
	assert_true(exec_export(f->x, 2, 0, true, &bytes) > 0);
}

/* mm no longer knows the effect: what the device made must not stay. */
static void test_create_nobody_wants(void **state)
{
	struct fix *f = *state;
	uint64_t bytes;

	script.complete_result = -ESTALE;
	effect(MM_EFFECT_CREATE, 1, 2, 0, 0);
	exec_run(f->x, 0);
	assert_int_equal(f->dev[0].creates, 1);
	assert_int_equal(f->dev[0].nr_live, 0);
	assert_int_equal(exec_export(f->x, 2, 0, true, &bytes), -ENOENT);
	assert_int_equal(script.nr_done, 1);
}

static void test_full_device_delays_only_its_own(void **state)
{
	struct fix *f = *state;

	f->dev[0].hold = true;
	f->dev[0].room = 2;
	for (uint32_t i = 0; i < 8; i++)
		effect(MM_EFFECT_CREATE, 10 + i, i, 0, 0);
	effect(MM_EFFECT_CREATE, 50, 9, 0, 1);
	effect(MM_EFFECT_NOTIFY, 0, 0, 0, 0);
	exec_run(f->x, 0);
	assert_int_equal(script.nr_done, 1);
	expect_done(0, 50, 0);
	assert_int_equal(f->nr_notified, 1);
	assert_int_equal(f->notified[0], 9);
	f->dev[0].hold = false;
	exec_run(f->x, 0);
	assert_int_equal(script.nr_done, 9);
	for (uint32_t i = 0; i < 8; i++)
		expect_done(1 + i, 10 + i, 0);
}

static void test_submit_error_completes(void **state)
{
	struct fix *f = *state;

	f->dev[0].submit_error = -EIO;
	effect(MM_EFFECT_CREATE, 1, 2, 0, 0);
	exec_run(f->x, 0);
	expect_done(0, 1, -EIO);
}

/* More effects than slots: the rest stays in mm and nothing is lost. */
static void test_more_effects_than_slots(void **state)
{
	struct fix *f = *state;
	uint64_t id = 0, total = EXEC_MAX_OPS + 100;

	f->dev[0].room = 1;
	effect(MM_EFFECT_CREATE, ++id, 1, 0, 0);
	exec_run(f->x, 0);
	f->dev[0].hold = true;
	while (id < total) {
		for (uint32_t i = 0; i < LOG / 2 && id < total; i++)
			effect(MM_EFFECT_SCRUB, ++id, 1, 0, 0);
		exec_run(f->x, 0);
		if (script.effect_head != script.effect_tail)
			break;
	}
	assert_true(script.effect_head != script.effect_tail);
	assert_int_equal(f->x->free_ops, 0);
	f->dev[0].hold = false;
	exec_run(f->x, 0);
	assert_int_equal(script.nr_done, id);
	assert_int_equal(f->dev[0].scrubs, id - 1);
	assert_int_equal(script.effect_head, script.effect_tail);
}

static void test_submit_pumps_once(void **state)
{
	struct fix *f = *state;
	struct mm_request req = { .cookie = 7 };

	script.submit_eagain = 1;
	assert_int_equal(exec_submit(f->x, &req, 0), 0);
	assert_int_equal(script.submits, 1);
	script.submit_eagain = 2;
	assert_int_equal(exec_submit(f->x, &req, 0), -EAGAIN);
	assert_int_equal(f->nr_replies, 1);
	exec_run(f->x, 0);
	assert_int_equal(f->nr_replies, 1);
	assert_int_equal(f->cookie[0], 7);
}

static void test_reply_may_submit(void **state)
{
	struct fix *f = *state;
	struct mm_request req = { .cookie = 1 };

	f->resubmit = 3;
	assert_int_equal(exec_submit(f->x, &req, 0), 0);
	exec_run(f->x, 0);
	assert_int_equal(f->nr_replies, 3);
	assert_int_equal(f->cookie[2], 3);
}

static void test_ticks(void **state)
{
	struct fix *f = *state;

	script.deadline = 100;
	script.tick_until = 3;
	assert_int_equal(exec_next_deadline(f->x), 100);
	exec_run(f->x, 99);
	assert_int_equal(script.ticks, 0);
	exec_run(f->x, 100);
	assert_int_equal(script.ticks, 3);
	assert_int_equal(exec_next_deadline(f->x), UINT64_MAX);
	/* background work without end does not keep the loop */
	script.deadline = 0;
	script.tick_until = UINT64_MAX;
	exec_run(f->x, 100);
	assert_int_equal(script.ticks, 3 + EXEC_TICKS);
}

static void test_dev_fd(void **state)
{
	struct fix *f = *state;

	assert_int_equal(exec_dev_fd(f->x, 1), 77);
	assert_int_equal(exec_dev_fd(f->x, 2), -ENODEV);
}

static bool run_panics(struct exec *x)
{
	panic_expected = true;
	if (setjmp(panic_jump)) {
		panic_expected = false;
		return true;
	}
	exec_run(x, 0);
	panic_expected = false;
	return false;
}

static void test_broken_effects_panic(void **state)
{
	static const struct { uint32_t kind, extent, shard, device; } bad[] = {
		{ MM_EFFECT_CREATE, 17, 0, 0 },
		{ MM_EFFECT_CREATE, 1, MM_MAX_SHARDS, 0 },
		{ MM_EFFECT_CREATE, 1, 0, 2 },
		{ MM_EFFECT_DESTROY, UINT32_MAX, 0, 0 },
		{ 99, 1, 0, 0 },
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct fix *f = *state;

		effect((enum mm_effect_kind)bad[i].kind, 1, bad[i].extent, bad[i].shard,
		       bad[i].device);
		assert_true(run_panics(f->x));
		f->x->running = false;
	}
}

static void test_create_takes_devices_over(void **state)
{
	struct mm_config cfg = config();
	struct fake_dev dev[2];
	struct dev *devs[2];
	struct exec *x;

	(void)state;
	for (int i = 0; i < 3; i++) {
		devs[0] = fake_init(&dev[0]);
		devs[1] = fake_init(&dev[1]);
		footprint = i == 0 ? 0 : i == 1 ? SIZE_MAX / 2 : 4096;
		init_result = i == 2 ? -EINVAL : 0;
		assert_int_equal(exec_create(&x, &cfg, devs, &exec_callbacks, NULL),
				 i == 1 ? -ENOMEM : -EINVAL);
		assert_true(dev[0].ended && dev[1].ended);
	}
	footprint = 4096;
	init_result = 0;
	cfg.nr_devices = 0;
	assert_int_equal(exec_create(&x, &cfg, devs, &exec_callbacks, NULL), -EINVAL);
}

static void test_default_config(void **state)
{
	static const struct { uint64_t pool, extent; } want[] = {
		{ 2 * MIB, 2 * MIB }, { 64 * MIB, 2 * MIB }, { 255 * MIB, 2 * MIB },
		{ 256 * MIB, 4 * MIB }, { 1024 * MIB, 16 * MIB }, { 4096 * MIB, 64 * MIB },
		{ 1ull << 40, 64 * MIB },
	};
	struct mm_config cfg;

	(void)state;
	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		exec_default_config(&cfg, 1, &want[i].pool, 0);
		assert_int_equal(cfg.nr_devices, 1);
		assert_int_equal(cfg.device[0].pool_bytes, want[i].pool);
		assert_int_equal(cfg.device[0].extent_bytes, want[i].extent);
		assert_int_equal(cfg.device[0].extent_align, 2 * MIB);
		assert_true(cfg.max_extents >= 2 * (want[i].pool / want[i].extent));
		assert_true(cfg.max_extents < 1u << MM_EXTENT_BITS);
		assert_true(cfg.max_frames * 65536ull >= want[i].pool);
		assert_true(cfg.max_nodes >= cfg.max_frames);
		assert_true(cfg.max_keys * 16ull >= cfg.max_frames || cfg.max_keys == 1u << 18);
	}
	/* One extent and two where that is more, none in the smallest pools. */
	for (uint64_t pool = 4 * MIB; pool <= 1ull << 40; pool *= 2) {
		bool big = pool / 1000 * 8 >= 64 * MIB;
		uint64_t extents = pool < 32 * MIB ? 0 : pool < 64 * MIB ? 1 : 2;

		exec_default_config(&cfg, 1, &pool, 0);
		assert_int_equal(cfg.device[0].wmark_low_bytes, big ? pool / 1000 * 8 :
				 (extents != 0) * cfg.device[0].extent_bytes);
		assert_int_equal(cfg.device[0].wmark_high_bytes, big ? pool / 1000 * 16 :
				 extents * cfg.device[0].extent_bytes);
		assert_int_equal(cfg.device[0].wmark_min_bytes, 0);
		assert_int_equal(cfg.answer_ns, 1000000000);
		assert_int_equal(cfg.idle_ns, 5000000000);
	}
	exec_default_config(&cfg, 1, &want[3].pool, 8 * MIB);
	assert_int_equal(cfg.device[0].extent_bytes, 8 * MIB);
	exec_watermarks(&cfg, 0, 0, 0);
	assert_int_equal(cfg.device[0].wmark_low_bytes, 0);
	assert_int_equal(cfg.device[0].wmark_high_bytes, 0);
	exec_watermarks(&cfg, 10, 50, 60);
	assert_int_equal(cfg.device[0].wmark_min_bytes, 256 * MIB / 1000 * 10);
	assert_int_equal(cfg.device[0].wmark_low_bytes, 256 * MIB / 1000 * 50);
	assert_int_equal(cfg.device[0].wmark_high_bytes, 16 * MIB);	/* two extents */
}

#define WITH_EXEC(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_EXEC(test_life_of_an_extent),
		WITH_EXEC(test_move),
		WITH_EXEC(test_kill),
		WITH_EXEC(test_create_fails),
		WITH_EXEC(test_destroy_overtakes_create),
		WITH_EXEC(test_id_reused_before_destroy_is_done),
		WITH_EXEC(test_create_nobody_wants),
		WITH_EXEC(test_full_device_delays_only_its_own),
		WITH_EXEC(test_submit_error_completes),
		WITH_EXEC(test_more_effects_than_slots),
		WITH_EXEC(test_submit_pumps_once),
		WITH_EXEC(test_reply_may_submit),
		WITH_EXEC(test_ticks),
		WITH_EXEC(test_dev_fd),
		WITH_EXEC(test_broken_effects_panic),
		cmocka_unit_test(test_create_takes_devices_over),
		cmocka_unit_test(test_default_config),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
