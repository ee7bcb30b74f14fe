/* SPDX-License-Identifier: Apache-2.0 */
/* Readers: what they make of good files, and what they say of bad ones. */
#include "kvreplay_test.h"

#include "kvreplay.h"

#define AZURE "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"

static void mooncake_lines_become_requests_with_blocks(void **state)
{
	struct trace t;

	(void)state;
	read_good(&t, "{\"timestamp\":5000,\"input_length\":600,\"output_length\":7,"
		      "\"hash_ids\":[10,20],\"more\":{}}\n\n" RQ(5250.5, 512, [10]));
	assert_int_equal(t.format, TRACE_MOONCAKE);
	assert_int_equal(t.nr_requests, 2);
	assert_int_equal(t.nr_blocks, 3);
	assert_int_equal(t.nr_distinct, 2);
	assert_int_equal(t.max_blocks, 2);
	assert_int_equal(t.requests[0].at_ns, 0);
	assert_int_equal(t.requests[0].input_tokens, 600);
	assert_int_equal(t.requests[0].output_tokens, 7);
	assert_int_equal(t.requests[1].at_ns, 250500000);
	assert_int_equal(t.blocks[2], t.blocks[0]);
	trace_free(&t);
}

/* An id names a block only together with what is before it. */
static void equal_ids_behind_different_prefixes_are_different_blocks(void **state)
{
	struct trace t;

	(void)state;
	read_good(&t, RQ(0, 1536, [1, 2, 2]) RQ(0, 1024, [3, 2]) RQ(0, 1024, [1, 2])
			      RQ(0, 512, [-9223372036854775808]));
	assert_int_equal(t.nr_distinct, 6);
	assert_int_not_equal(t.blocks[1], t.blocks[2]);
	assert_int_not_equal(t.blocks[1], t.blocks[4]);
	assert_int_equal(t.blocks[1], t.blocks[6]);
	trace_free(&t);
}

static void time_never_goes_back(void **state)
{
	struct trace t;

	(void)state;
	read_good(&t, RQ(1000, 1, []) RQ(3000, 1, []) RQ(0, 1, []) RQ(2000, 1, []) RQ(4000, 1, []));
	assert_int_equal(t.requests[1].at_ns, 2000000000);
	assert_int_equal(t.requests[2].at_ns, 2000000000);
	assert_int_equal(t.requests[3].at_ns, 2000000000);
	assert_int_equal(t.requests[4].at_ns, 3000000000);
	trace_free(&t);
}

static void azure_rows_become_requests_without_blocks(void **state)
{
	struct trace t;

	(void)state;
	read_good(&t, AZURE "2023-11-16 18:17:03.9799600,4808,10\r\n"
			    "2023-11-16 18:17:04,0,8\n2023-11-17T18:17:04.5+00:00,3,0");
	assert_int_equal(t.format, TRACE_AZURE);
	assert_int_equal(t.nr_requests, 3);
	assert_int_equal(t.nr_blocks, 0);
	assert_int_equal(t.requests[0].input_tokens, 4808);
	assert_int_equal(t.requests[0].output_tokens, 10);
	assert_int_equal(t.requests[1].at_ns, 20040000);
	assert_int_equal(t.requests[2].at_ns, 86400520040000);
	trace_free(&t);
}

static void gaps_are_counted_in_powers_of_two(void **state)
{
	struct trace_gaps g;
	struct trace t;

	(void)state;
	read_good(&t, RQ(0, 1, [1]) RQ(999, 1, [1]) RQ(1999, 1, [1]) RQ(9000, 1, [1])
			      RQ(17000, 1, [1, 2]));
	assert_int_equal(trace_gaps(&t, &g), 0);
	assert_int_equal(g.nr, 5);
	assert_int_equal(g.count[0], 1);
	assert_int_equal(g.count[1], 1);
	assert_int_equal(g.count[3], 1);	/* 7.001 s */
	assert_int_equal(g.count[4], 1);	/* 8 s */
	trace_free(&t);
}

static void bad_lines_are_named(void **state)
{
	static const struct {
		const char *text;
		int line;
		const char *says;
	} bad[] = {
		{ "", 0, "no request" },
		{ "\n\n \n", 0, "no request" },
		{ AZURE, 0, "no request" },
		{ "hello\n", 1, "--format" },
		{ RQ(0, 1, []) "{\"timestamp\": 1\n", 2, "column" },
		{ RQ(0, 1, []) "\n[1]\n", 3, "not a JSON object" },
		{ "{}\n", 1, "timestamp" },
		{ RQ(-1, 1, []), 1, "timestamp" },
		{ RQ(1e300, 1, []), 1, "timestamp" },
		{ RQ("x", 1, []), 1, "timestamp" },
		{ RQ(0, -1, []), 1, "input_length" },
		{ RQ(0, 1.5, []), 1, "input_length" },
		{ RQ(0, 99999999999, []), 1, "input_length" },
		{ RQ(0, 1, 7), 1, "hash_ids" },
		{ RQ(0, 1, [1, "2"]), 1, "hash_ids[1]" },
		{ RQ(0, 1, [99999999999999999999]), 1, "integer" },
		{ "{\"timestamp\": 0, \"timestamp\": 1}\n", 1, "duplicate" },
		{ "{\"timestamp\": 0, \"input_length\": 1, \"hash_ids\": []}\n", 1,
		  "output_length" },
		{ "{\"a\":\"\xff\"}\n", 1, "decode byte" },
		{ AZURE "yesterday,1,2\n", 2, "time" },
		{ AZURE "2023-13-16 18:17:03,1,2\n", 2, "time" },
		{ AZURE "2023-11-16 18:17:03,1\n", 2, "GeneratedTokens" },
		{ AZURE "2023-11-16 18:17:03,1,-2\n", 2, "GeneratedTokens" },
		{ AZURE "2023-11-16 18:17:03,1,2,3\n", 2, "more than the columns" },
		{ AZURE "2023-11-16 18:17:03,99999999999,2\n", 2, "ContextTokens" },
	};
	char why[TRACE_WHY_LEN], where[16];
	struct trace t;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_not_equal(read_text(&t, bad[i].text, why), 0);
		snprintf(where, sizeof(where), ":%d: ", bad[i].line);
		if (!strstr(why, bad[i].says) || (bad[i].line && !strstr(why, where)))
			fail_msg("'%s': %s", bad[i].text, why);
		trace_free(&t);
	}
}

static void hostile_files_are_refused_in_bounded_memory(void **state)
{
	static char deep[100000];
	char why[TRACE_WHY_LEN];
	const char *path;
	struct trace t;

	(void)state;
	assert_int_not_equal(trace_read(&t, "/dev/zero", TRACE_DETECT, 0, why), 0);
	assert_non_null(strstr(why, "longer than"));
	trace_free(&t);
	assert_int_not_equal(trace_read(&t, "/tmp", TRACE_DETECT, 0, why), 0);
	trace_free(&t);
	memset(deep, '[', sizeof(deep));
	memcpy(deep, "{\"a\":", 5);
	path = write_file(deep, sizeof(deep));
	assert_int_not_equal(trace_read(&t, path, TRACE_DETECT, 0, why), 0);
	assert_non_null(strstr(why, ":1: "));
	unlink(path);
	trace_free(&t);
	path = write_file("{\"a\":\0\n\x1b[2J", 12);
	assert_int_not_equal(trace_read(&t, path, TRACE_MOONCAKE, 0, why), 0);
	assert_null(strchr(why, 0x1b));
	unlink(path);
	trace_free(&t);
}

static void sizes_are_pages_or_bytes(void **state)
{
	static const struct {
		const char *text;
		uint64_t pages;		/* of 64 MiB; 0: refused */
	} size[] = {
		{ "1", 1 },	      { "5859", 5859 },	   { "10k", 10000 },   { "1.5K", 1500 },
		{ "2M", 2000000 },    { "64G", 1024 },	   { "1T", 16384 },    { "128MB", 2 },
		{ "128MiB", 2 },      { "65536KiB", 1 },   { "100MB", 1 },     { "134217728B", 2 },
		{ "unlimited", UINT64_MAX },		   { "", 0 },	       { "0", 0 },
		{ "-5", 0 },	      { "k", 0 },	   { "10q", 0 },       { "10kk", 0 },
		{ "0x10", 0 },	      { "1e3", 1000 },	   { "nan", 0 },       { "inf", 0 },
		{ "63MB", 0 },	      { "0.5", 0 },	   { "1e30", 0 },      { "10 k", 0 },
	};
	uint64_t pages;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(size) / sizeof(size[0]); i++) {
		int err = kvreplay_capacity(size[i].text, strlen(size[i].text), 64u << 20, &pages);

		if (!!err != !size[i].pages || (!err && pages != size[i].pages))
			fail_msg("'%s': %d, %llu pages", size[i].text, err,
				 (unsigned long long)pages);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mooncake_lines_become_requests_with_blocks),
		cmocka_unit_test(equal_ids_behind_different_prefixes_are_different_blocks),
		cmocka_unit_test(time_never_goes_back),
		cmocka_unit_test(azure_rows_become_requests_without_blocks),
		cmocka_unit_test(gaps_are_counted_in_powers_of_two),
		cmocka_unit_test(bad_lines_are_named),
		cmocka_unit_test(hostile_files_are_refused_in_bounded_memory),
		cmocka_unit_test(sizes_are_pages_or_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
