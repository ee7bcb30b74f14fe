// SPDX-License-Identifier: Apache-2.0
/* control_test - the table of knobs: defaults, ranges, files, messages, the documented table */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "mm/mm.h"
#include "srv/control.h"

static char err[512];

static int set(struct control *c, const char *name, const char *value)
{
	struct control before = *c;
	int ret = control_set(c, name, value, err, sizeof(err));

	if (ret < 0) {	/* unchanged, and a message of one line that names the knob or value */
		assert_memory_equal(c, &before, sizeof(before));
		assert_null(strchr(err, '\n'));
		assert_true(strstr(err, name) || strstr(err, value));
	}
	return ret;
}

static void defaults_are_in_range(void **state)
{
	struct control c;

	(void)state;
	control_init(&c);
	assert_int_equal(c.data_bytes, 8 << 20);
	assert_int_equal(c.ring_entries, 256);
	assert_int_equal(c.spin_us, 50);
	for (unsigned int i = 0; i < control_nr_knobs; i++) {
		const struct control_knob *k = &control_knobs[i];

		assert_true(k->min <= k->max && strlen(k->help) > 10);
		if (k->type != CONTROL_TEXT && k->type != CONTROL_DEVICE)
			assert_in_range(k->standard, k->min, k->max);
		for (unsigned int j = 0; j < i; j++)
			assert_string_not_equal(k->name, control_knobs[j].name);
	}
}

static void a_choice_is_a_word_of_its_list(void **state)
{
	struct control c;

	(void)state;
	control_init(&c);
	assert_int_equal(c.policy, MM_POLICY_GITTINS);
	assert_int_equal(set(&c, "policy", "lru"), 0);
	assert_int_equal(c.policy, MM_POLICY_LRU);
	assert_int_equal(set(&c, "policy", "gittins"), 0);
	assert_int_equal(c.policy, MM_POLICY_GITTINS);
	assert_int_equal(set(&c, "policy", "gitt"), -EINVAL);
	assert_int_equal(set(&c, "policy", "lru gittins"), -EINVAL);
	assert_int_equal(set(&c, "policy", ""), -EINVAL);
	assert_int_equal(set(&c, "policy", "1"), -EINVAL);
}

static void values_are_parsed_and_bounded(void **state)
{
	struct control c;

	(void)state;
	control_init(&c);
	assert_int_equal(set(&c, "data_bytes", "64K"), 0);
	assert_int_equal(c.data_bytes, 65536);
	assert_int_equal(set(&c, "data_bytes", "256MiB"), 0);
	assert_int_equal(c.data_bytes, 256 << 20);
	assert_int_equal(set(&c, "data_bytes", "1048576"), 0);
	assert_int_equal(set(&c, "socket_mode", "0666"), 0);
	assert_int_equal(c.socket_mode, 0666);
	assert_int_equal(set(&c, "data_bytes", "63K"), -EINVAL);
	assert_int_equal(set(&c, "data_bytes", "257M"), -EINVAL);
	assert_int_equal(set(&c, "data_bytes", "99999999999T"), -EINVAL);
	assert_int_equal(set(&c, "data_bytes", "18446744073709551616"), -EINVAL);
	assert_int_equal(set(&c, "data_bytes", "-1"), -EINVAL);
	assert_int_equal(set(&c, "data_bytes", " 1M"), -EINVAL);
	assert_int_equal(set(&c, "data_bytes", "1M!"), -EINVAL);
	assert_int_equal(set(&c, "data_bytes", ""), -EINVAL);
	assert_int_equal(set(&c, "spin_us", "1K"), -EINVAL);
	assert_int_equal(set(&c, "spin_us", "0x10"), -EINVAL);
	assert_int_equal(set(&c, "ring_entries", "100"), -EINVAL);
	assert_int_equal(set(&c, "ring_entries", "128"), 0);
	assert_int_equal(set(&c, "socket_mode", "0888"), -EINVAL);
	assert_int_equal(set(&c, "no_such_knob", "1"), -ENOENT);
	assert_non_null(strstr(err, "--print-knobs"));
}

static void devices_add_up(void **state)
{
	struct control c;
	char longest[80] = "host:";

	(void)state;
	control_init(&c);
	assert_int_equal(control_check(&c, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "--device host:1G"));
	assert_int_equal(set(&c, "device", "host:1G"), 0);
	assert_int_equal(c.device[0].bytes, 1 << 30);
	assert_int_equal(set(&c, "device", "host"), -EINVAL);
	assert_int_equal(set(&c, "device", "host:"), -EINVAL);
	assert_int_equal(set(&c, "device", "host:1X"), -EINVAL);
	assert_int_equal(set(&c, "device", "cuda:0"), -EINVAL);
	assert_int_equal(set(&c, "device", "host:1M"), -EINVAL);
	assert_non_null(strstr(err, "too small"));
	assert_int_equal(set(&c, "device", "host:65T"), -EINVAL);
	memset(longest + 5, '0', 70);
	longest[75] = '1';
	assert_int_equal(set(&c, "device", longest), -EINVAL);
	for (unsigned int i = 1; i < CONTROL_MAX_DEVICES; i++)
		assert_int_equal(set(&c, "device", "host:4M"), 0);
	assert_int_equal(set(&c, "device", "host:4M"), -EINVAL);
}

static void knobs_are_checked_against_each_other(void **state)
{
	char path[CONTROL_PATH_BYTES + 8];
	struct control c;

	(void)state;
	control_init(&c);
	set(&c, "device", "host:8M");
	assert_int_equal(control_check(&c, err, sizeof(err)), -EINVAL);	/* no socket */
	memset(path, 'a', sizeof(path));
	path[CONTROL_PATH_BYTES] = 0;
	assert_int_equal(set(&c, "socket", path), -EINVAL);
	path[CONTROL_PATH_BYTES - 2] = 0;
	assert_int_equal(set(&c, "socket", path), 0);
	assert_int_equal(control_check(&c, err, sizeof(err)), -ENAMETOOLONG);	/* with .admin */
	set(&c, "socket", "/tmp/s");
	assert_int_equal(control_check(&c, err, sizeof(err)), 0);
	set(&c, "extent_bytes", "16M");
	assert_int_equal(control_check(&c, err, sizeof(err)), -EINVAL);
}

static int load(struct control *c, const char *text)
{
	char path[] = "/tmp/kvd-control-XXXXXX";
	int fd = mkstemp(path), ret;

	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
	ret = control_load(c, path, err, sizeof(err));
	unlink(path);
	return ret;
}

static void a_file_is_all_or_nothing(void **state)
{
	struct control c, before;

	(void)state;
	control_init(&c);
	assert_int_equal(load(&c, "# a comment\n[kvd]\ndevice = host:1G\ndevice = host:2G\n"
			      "spin_us = 7 ; why\nsocket=/tmp/x\n"), 0);
	assert_int_equal(c.nr_devices, 2);
	assert_int_equal(c.spin_us, 7);
	assert_string_equal(c.socket, "/tmp/x");
	before = c;
	assert_int_equal(load(&c, "[kvd]\nspin_us = 9\ndata_bytes = 1\n"), -EINVAL);
	assert_non_null(strstr(err, ":3: data_bytes=1"));
	assert_int_equal(load(&c, "[kvd]\nspin_us = 9\nwhat = 1\n"), -ENOENT);
	assert_int_equal(load(&c, "[other]\nspin_us = 9\n"), -EINVAL);
	assert_int_equal(load(&c, "spin_us = 9\n"), -EINVAL);
	assert_int_equal(load(&c, "[kvd]\njunk\n"), -EINVAL);
	assert_int_equal(control_load(&c, "/tmp/no/such/file", err, sizeof(err)), -ENOENT);
	assert_non_null(strstr(err, "/tmp/no/such/file"));
	assert_true(control_load(&c, "/tmp", err, sizeof(err)) < 0);
	assert_memory_equal(&c, &before, sizeof(c));
}

static char *slurp(FILE *f)
{
	char *text = calloc(1, 65536);

	rewind(f);
	text[fread(text, 1, 65535, f)] = 0;
	return text;
}

/* docs/knobs.md carries the table as --print-knobs prints it. */
static void the_documented_table_is_this_one(void **state)
{
	FILE *doc = fopen("docs/knobs.md", "re"), *out = tmpfile();
	char *want, *have;

	(void)state;
	assert_non_null(out);
	control_print(out);
	want = slurp(out);
	fclose(out);
	for (unsigned int i = 0; i < control_nr_knobs; i++)
		assert_non_null(strstr(want, control_knobs[i].name));
	if (!doc) {
		free(want);
		skip();		/* not run from the top of the tree */
	}
	have = slurp(doc);
	fclose(doc);
	assert_non_null(strstr(have, want));
	free(want);
	free(have);
}

static void sizes_read_well(void **state)
{
	char buf[24];

	(void)state;
	assert_string_equal(control_human_bytes(0, buf, sizeof(buf)), "0 B");
	assert_string_equal(control_human_bytes(1023, buf, sizeof(buf)), "1023 B");
	assert_string_equal(control_human_bytes(1536, buf, sizeof(buf)), "1.5 KiB");
	assert_string_equal(control_human_bytes(1ull << 30, buf, sizeof(buf)), "1.0 GiB");
	assert_string_equal(control_human_bytes(UINT64_MAX, buf, sizeof(buf)), "15.9 EiB");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults_are_in_range),
		cmocka_unit_test(a_choice_is_a_word_of_its_list),
		cmocka_unit_test(values_are_parsed_and_bounded),
		cmocka_unit_test(devices_add_up),
		cmocka_unit_test(knobs_are_checked_against_each_other),
		cmocka_unit_test(a_file_is_all_or_nothing),
		cmocka_unit_test(the_documented_table_is_this_one),
		cmocka_unit_test(sizes_read_well),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
