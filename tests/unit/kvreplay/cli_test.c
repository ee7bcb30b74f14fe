/* SPDX-License-Identifier: Apache-2.0 */
/* The program itself: its JSON is JSON with the documented members, and the same each time. */
#include "kvreplay_test.h"

#include <jansson.h>
#include <libgen.h>

static const char four[] =
	RQ(0, 1024, [1, 2]) RQ(1000, 1024, [1, 3]) RQ(2000, 512, [4]) RQ(3000, 600, [1, 2]);
static const char rows[] = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
			   "2023-11-16 18:00:00,1024,10\r\n2023-11-16 18:00:01,1000,10\r\n";

/* Output of kvreplay, which lies two folders above this program. The trace is a file of a new name
 * each time, named after args: as their last word, or as what they are fed from ("<"). */
static char *output(const char *trace, size_t len, const char *args, int *status)
{
	char self[4096], command[9000], *out = calloc(1, 1u << 20);
	const char *path = write_file(trace, len);
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	FILE *f;

	assert_true(n > 0);
	self[n] = '\0';
	snprintf(command, sizeof(command), "%s/../../kvreplay %s %s 2>&1", dirname(self), args,
		 path);
	f = popen(command, "r");
	assert_non_null(f);
	assert_true(fread(out, 1, (1u << 20) - 1, f) > 0);
	*status = pclose(f);
	unlink(path);
	return out;
}

static json_t *document(const char *trace, const char *args)
{
	int status;
	char *out = output(trace, strlen(trace), args, &status);
	json_error_t e;
	json_t *o = json_loads(out, JSON_REJECT_DUPLICATES, &e);

	if (status || !o)
		fail_msg("status %d, %s: %s", status, e.text, out);
	free(out);
	return o;
}

static json_int_t whole(const json_t *o, const char *key)
{
	assert_true(json_is_integer(json_object_get(o, key)));
	return json_integer_value(json_object_get(o, key));
}

static double real(const json_t *o, const char *key)
{
	assert_true(json_is_real(json_object_get(o, key)));
	return json_real_value(json_object_get(o, key));
}

static void a_single_run_is_one_object(void **state)
{
	json_t *o = document(four, "-c 3 -p lru --bound --json --trace"), *gap;

	(void)state;
	assert_string_equal(json_string_value(json_object_get(o, "format")), "mooncake");
	assert_string_equal(json_string_value(json_object_get(o, "policy")), "lru");
	assert_int_equal(whole(o, "requests"), 4);
	assert_int_equal(whole(o, "blocks"), 7);
	assert_int_equal(whole(o, "capacity_pages"), 3);
	assert_int_equal(whole(o, "capacity_bytes"), 3 * (64 << 20));
	assert_true(real(o, "hit_ratio_blocks") > 2. / 7 - 1e-9);
	assert_true(real(o, "hit_ratio_blocks") < 2. / 7 + 1e-9);
	assert_true(real(o, "min_ratio_blocks") > 3. / 7 - 1e-9);
	assert_true(real(o, "ratio_to_min") > 2. / 3 - 1e-9);
	assert_int_equal(whole(o, "evictions"), 2);
	assert_int_equal(whole(o, "refaults"), 1);
	assert_int_equal(whole(o, "occupancy_peak_pages"), 3);
	assert_true(real(o, "occupancy_mean_pages") > 2);
	gap = json_object_get(o, "reuse_gap");
	assert_int_equal(json_array_size(gap), 3);
	assert_int_equal(whole(json_array_get(gap, 1), "from_s"), 1);
	assert_int_equal(whole(json_array_get(gap, 1), "count"), 1);
	assert_int_equal(whole(json_array_get(gap, 2), "count"), 2);
	json_decref(o);
}

static void several_runs_are_a_table(void **state)
{
	json_t *o = document(four, "-c 1,2,unlimited -p all --json --trace"), *runs, *run;
	size_t i;

	(void)state;
	runs = json_object_get(o, "runs");
	assert_int_equal(json_array_size(runs), 6);
	json_array_foreach(runs, i, run) {
		assert_int_equal(whole(run, "blocks"), 7);
		assert_int_equal(whole(run, "capacity_pages"), i % 3 == 2 ? 4 : i % 3 + 1);
	}
	json_decref(o);
}

static void lengths_have_no_hits(void **state)
{
	json_t *o = document(rows, "-c 4 --json --trace");

	(void)state;
	assert_string_equal(json_string_value(json_object_get(o, "format")), "azure");
	assert_true(json_is_null(json_object_get(o, "hit_ratio_blocks")));
	assert_true(json_is_null(json_object_get(o, "hit_ratio_tokens")));
	assert_true(json_is_null(json_object_get(o, "refaults")));
	assert_true(json_is_null(json_object_get(o, "reuse_gap")));
	assert_int_equal(whole(o, "served"), 2);
	assert_int_equal(whole(o, "waited"), 0);
	assert_true(real(o, "pressure_some") == 0);
	json_decref(o);
}

static void says(const char *trace, const char *args, int want, const char *text)
{
	int status;
	char *out = output(trace, strlen(trace), args, &status);

	if (WEXITSTATUS(status) != want || !strstr(out, text))
		fail_msg("%s: status %d: %s", args, WEXITSTATUS(status), out);
	free(out);
}

static void what_cannot_be_is_refused(void **state)
{
	json_t *o = document(rows, "-c 8 --private --json --trace");

	(void)state;
	assert_int_equal(whole(o, "engines"), 4);
	json_decref(o);
	says(four, "-c 8 --private --trace", 2, "--private needs --engines N");
	says(rows, "-c 8 --bound --trace", 2, "--bound: ");
	says(four, "-c 8 --plot hits.png --trace", 2, "hits.png");
	says(RQ(0, 512, [1]) RQ(0, 1025, [1, 2]), "-c 8 --trace", 1,
	     ":2: 2 hash_ids, but \"input_length\" 1025 is 3 pages of 512 tokens");
	says(four, "-c 8 --page-tokens 256 --trace", 1, ":1: 2 hash_ids");
}

static void two_runs_say_the_same(void **state)
{
	static const char *const args[] = { "--trace - -c 2,3 -p all --bound --json <",
					    "--trace - -c 3 -n 2 --private --json <",
					    "--trace - -c 3 -n 2 --json <" };
	char *a, *b;
	int status;
	size_t i;

	(void)state;
	for (i = 0; i < 3; i++) {
		a = output(four, strlen(four), args[i], &status);
		assert_int_equal(status, 0);
		b = output(four, strlen(four), args[i], &status);
		assert_string_equal(a, b);
		free(a);
		free(b);
	}
}

static void bad_traces_are_one_line_and_status_1(void **state)
{
	int status;
	char *out = output("{\"timestamp\": 0}\n", 17, "-c 2 --json --trace", &status);

	(void)state;
	assert_int_equal(WEXITSTATUS(status), 1);
	assert_non_null(strstr(out, ":1: no \"input_length\""));
	assert_ptr_equal(strchr(out, '\n'), out + strlen(out) - 1);
	free(out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_single_run_is_one_object),
		cmocka_unit_test(several_runs_are_a_table),
		cmocka_unit_test(lengths_have_no_hits),
		cmocka_unit_test(what_cannot_be_is_refused),
		cmocka_unit_test(two_runs_say_the_same),
		cmocka_unit_test(bad_traces_are_one_line_and_status_1),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
