// SPDX-License-Identifier: Apache-2.0
/* A pool a hundred times as large costs no more an operation: counted, not timed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "mm_world.h"
#include "trace.h"

#define SMALL	 10000u
#define LARGE	 1000000u
#define AT_MOST	 1.3

static struct world_count cost[2][WORLD_NR_OPS];

static uint32_t counted_steps(enum world_op op)
{
	return op == WORLD_COMMIT_CHAIN ? 1 : op == WORLD_LOOKUP ? 3 : 8;
}

static int count_both(void **state)
{
	static const uint32_t pages[2] = { SMALL, LARGE };
	struct world *w;

	(void)state;
	for (uint32_t i = 0; i < 2 && trace_works(); i++) {
		if (world_create(&w, pages[i]))
			return -1;
		for (uint32_t op = 0; op < WORLD_NR_OPS; op++) {
			world_count(w, op, counted_steps(op), &cost[i][op]);
			printf("%7u pages: %-16s %8.1f instructions %6.1f lines\n", pages[i],
			       world_op_name(op), cost[i][op].instructions, cost[i][op].lines);
		}
		if (pages[i] == SMALL)
			mm_check(w->bare.mm);	/* quadratic */
		world_destroy(w);
	}
	return 0;
}

static void need_trace(void)
{
	if (trace_works())
		return;
	printf("# skipped: instructions cannot be counted by the trap flag here\n");
	skip();
}

static void no_operation_takes_more_instructions_in_a_larger_pool(void **state)
{
	(void)state;
	need_trace();
	for (uint32_t op = 0; op < WORLD_NR_OPS; op++) {
		assert_true(cost[0][op].instructions > 100);
		assert_true(cost[1][op].instructions <= AT_MOST * cost[0][op].instructions);
	}
}

/* A single page is found among all that begin at the root: two lines for each doubling of those. */
static void no_operation_touches_more_memory_in_a_larger_pool(void **state)
{
	(void)state;
	need_trace();
	for (uint32_t op = 0; op < WORLD_NR_OPS; op++) {
		double more = op == WORLD_LOOKUP_ONE ? 2 * 7 * 1.5 * 1.39 : 0;

		assert_true(cost[0][op].lines > 10);
		assert_true(cost[1][op].lines <= AT_MOST * cost[0][op].lines + more);
	}
}

/* What an operation may cost at all: some room above what it takes, so that waste shows. */
static void operations_stay_cheap(void **state)
{
	static const double limit[WORLD_NR_OPS] = {
		[WORLD_ALLOC] = 1200, [WORLD_FREE] = 1100,
		[WORLD_LOOKUP] = 64 * 900, [WORLD_LOOKUP_ONE] = 5000,
		[WORLD_COMMIT] = 4000, [WORLD_COMMIT_CHAIN] = 64 * 1900, [WORLD_EVICT] = 3500,
	};

	(void)state;
	need_trace();
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__)
	for (uint32_t op = 0; op < WORLD_NR_OPS; op++)
		assert_true(cost[1][op].instructions <= limit[op]);
#else
	(void)limit;
	skip();
#endif
}

static double bytes_each(uint32_t frames, uint32_t nodes)
{
	struct mm_config a, b;

	world_config(&a, LARGE);
	b = a;
	b.max_frames += frames;
	b.max_nodes += nodes;
	return (double)(mm_footprint(&b) - mm_footprint(&a)) / (frames + nodes);
}

static void a_frame_takes_64_bytes_and_a_node_96_at_most(void **state)
{
	(void)state;
	assert_true(bytes_each(1u << 20, 0) <= 64);
	assert_true(bytes_each(0, 1u << 20) <= 96);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_operation_takes_more_instructions_in_a_larger_pool),
		cmocka_unit_test(no_operation_touches_more_memory_in_a_larger_pool),
		cmocka_unit_test(operations_stay_cheap),
		cmocka_unit_test(a_frame_takes_64_bytes_and_a_node_96_at_most),
	};

	return cmocka_run_group_tests(tests, count_both, NULL);
}
