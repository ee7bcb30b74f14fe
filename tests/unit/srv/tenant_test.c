// SPDX-License-Identifier: Apache-2.0
/* tenant: sections of the configuration, who belongs to which, keys that never collide, limits set
 * all or none in a running daemon. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "io/dev.h"
#include "raw_client.h"
#include "srv/exec.h"
#include "srv/tenant.h"

#define MIB	(1ull << 20)

static char err[512];
static struct tenant_rules rules;

static int line(const char *name, const char *key, const char *value)
{
	return tenant_rule_set(&rules, name, 1, key, value, err, sizeof(err));
}

/* ---- rules --------------------------------------------------------------------------------- */

static void a_section_has_users_and_limits(void **state)
{
	const struct tenant_rule *r = &rules.rule[0];

	(void)state;
	memset(&rules, 0, sizeof(rules));
	assert_int_equal(line("batch", "uid", "1000, 1003-1010"), 0);
	assert_int_equal(line("batch", "gid", "7"), 0);
	assert_int_equal(line("batch", "min", "2M"), 0);
	assert_int_equal(line("batch", "max", "1.5GiB"), 0);
	assert_int_equal(line("batch", "device.1.max", "none"), 0);
	assert_int_equal(line("batch", "device.2.high", "max"), 0);
	assert_int_equal(line("batch", "oom_action", "kill"), 0);
	assert_int_equal(rules.nr, 1);
	assert_string_equal(r->name, "batch");
	assert_int_equal(r->nr_uids, 2);
	assert_int_equal(r->uid[1].from, 1003);
	assert_int_equal(r->uid[1].to, 1010);
	assert_int_equal(r->all.limits.min_bytes, 2 * MIB);
	assert_int_equal(r->all.limits.max_bytes, 1536 * MIB);
	assert_true(r->device[1].limits.max_bytes == MM_NO_LIMIT);
	assert_true(r->device[2].limits.high_bytes == MM_NO_LIMIT);
	assert_int_equal(r->device[1].mask, KV_TENANT_SET_MAX);
	assert_int_equal(r->all.oom_action, MM_OOM_KILL);
	assert_int_equal(tenant_rules_check(&rules, 3, err, sizeof(err)), 0);
	assert_int_equal(tenant_rules_check(&rules, 2, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "device.2"));
}

static void mistakes_are_named(void **state)
{
	static const struct { const char *name, *key, *value, *says; } bad[] = {
		{ "a", "uid", "", "list of numbers" },
		{ "a", "uid", "10-5", "list of numbers" },
		{ "a", "uid", "5,", "list of numbers" },
		{ "a", "uid", "bob", "list of numbers" },
		{ "a", "gid", "4294967295", "list of numbers" },
		{ "a", "max", "8X", "no size" },
		{ "a", "max", "-1", "no size" },
		{ "a", "min", "max", "no size" },
		{ "a", "oom_action", "panic", "none or kill" },
		{ "a", "limit", "1", "no knob 'limit'" },
		{ "a", "device.8.max", "1M", "no knob" },
		{ "a", "device.1.uid", "1", "no knob" },
		{ "uid-5", "uid", "5", "no name" },
		{ "", "uid", "5", "no name" },
		{ "a b", "uid", "5", "no name" },
		{ "a-name-that-is-longer-than-31-chars", "uid", "5", "no name" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		memset(&rules, 0, sizeof(rules));
		assert_int_equal(line(bad[i].name, bad[i].key, bad[i].value), -EINVAL);
		assert_non_null(strstr(err, bad[i].says));
		assert_non_null(strstr(err, bad[i].name));
		assert_null(strchr(err, '\n'));
	}
	memset(&rules, 0, sizeof(rules));
	assert_int_equal(line("a", "max", "1M"), 0);
	assert_int_equal(line("a", "max", "1M"), -EINVAL);
	assert_non_null(strstr(err, "twice"));
	assert_int_equal(tenant_rules_check(&rules, 1, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "neither uid nor gid"));
	assert_int_equal(line("a", "uid", "1"), 0);
	assert_int_equal(line("a", "uid", "2"), -EINVAL);
	assert_int_equal(line("a", "high", "2M"), 0);
	assert_int_equal(tenant_rules_check(&rules, 1, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "above max (1.0 MiB)"));
	for (uint32_t i = 1; i < TENANT_MAX_RULES; i++) {
		char name[16];

		snprintf(name, sizeof(name), "t%u", i);
		assert_int_equal(line(name, "uid", "9"), 0);
	}
	assert_int_equal(line("last", "uid", "9"), -EINVAL);
	assert_non_null(strstr(err, "at most 64"));
}

static int load(const char *text)
{
	static struct control c;
	char path[] = "/tmp/kvd-tenant-XXXXXX";
	int fd = mkstemp(path), ret;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	control_init(&c);
	ret = control_load(&c, path, err, sizeof(err));
	rules = c.tenants;
	if (ret < 0)	/* unchanged */
		assert_int_equal(c.tenants.nr, 0);
	unlink(path);
	return ret;
}

static void the_file_has_a_section_for_each(void **state)
{
	(void)state;
	assert_int_equal(load("[kvd]\ndevice = host:8M\n[tenant a]\nuid = 1\n[tenant b]\n"
			      "; nobody yet\ngid=2\nmax = 4M ; bytes\n"), 0);
	assert_int_equal(rules.nr, 2);
	assert_int_equal(rules.rule[1].all.limits.max_bytes, 4 * MIB);
	assert_int_equal(load("[tenant a]\nuid = 1\n[tenant b]\nuid = 2\n[tenant a]\nmax=1M\n"),
			 -EINVAL);
	assert_non_null(strstr(err, ":6: tenant 'a' has two sections"));
	assert_int_equal(load("[tenant a]\nuid = 1\n[tenant a]\nmax=1M\n"), -EINVAL);
	assert_int_equal(load("[tenants]\nuid = 1\n"), -EINVAL);
	assert_non_null(strstr(err, "[tenant NAME]"));
	assert_int_equal(load("[tenant a]\nmax = 1Q\n"), -EINVAL);
	assert_non_null(strstr(err, ":2: tenant 'a'"));
}

/* ---- keys and names ------------------------------------------------------------------------ */

static struct exec *pool;
static struct tenants *tenants;
static void ignore(void *ctx, uint32_t member) { (void)ctx; (void)member; }

static void reply(void *ctx, const struct mm_reply *r)
{
	(void)ctx;
	tenants_reply(tenants, r);
}

static void start(uint32_t max_tenants)
{
	static const struct exec_ops ops = { .reply = reply, .notify = ignore };
	const uint64_t bytes[2] = { 16 * MIB, 32 * MIB };
	struct mm_config mm;
	struct dev *dev[2];

	exec_default_config(&mm, 2, bytes, 0);
	mm.max_extents = 64;
	mm.max_tenants = max_tenants;
	assert_int_equal(dev_host_create(&dev[0], 64), 0);
	assert_int_equal(dev_host_create(&dev[1], 64), 0);
	assert_int_equal(exec_create(&pool, &mm, dev, &ops, NULL), 0);
	assert_int_equal(tenants_create(&tenants, &rules, pool, 2), 0);
}

static void stop(void)
{
	mm_check(exec_mm(pool));
	tenants_destroy(tenants);
	exec_destroy(pool);
}

static uint32_t key_of(uint32_t uid, uint32_t gid)
{
	uint32_t key;

	assert_int_equal(tenants_key(tenants, uid, gid, &key), 0);
	return key;
}

static int set(const char *name, uint32_t device, struct tenant_change c)
{
	uint32_t key;

	return tenants_set(tenants, name, device, &c, &key, err, sizeof(err));
}

static struct tenant_change max_of(uint64_t bytes)
{
	return (struct tenant_change){ KV_TENANT_SET_MAX, 0, { .max_bytes = bytes } };
}

static void the_first_section_that_names_a_user_has_it(void **state)
{
	char name[TENANT_NAME_BYTES];

	(void)state;
	memset(&rules, 0, sizeof(rules));
	assert_int_equal(line("a", "uid", "5-9"), 0);
	assert_int_equal(line("b", "gid", "100"), 0);
	assert_int_equal(line("c", "uid", "7,4294967000"), 0);
	start(16);
	assert_string_equal(tenants_name(tenants, key_of(7, 100), name), "a");
	assert_string_equal(tenants_name(tenants, key_of(10, 100), name), "b");
	assert_string_equal(tenants_name(tenants, key_of(4294967000u, 1), name), "c");
	assert_string_equal(tenants_name(tenants, key_of(10, 1), name), "uid-10");
	assert_int_equal(key_of(10, 1), 10);
	assert_int_equal(key_of(0, 0), 0);
	stop();
}

static void large_users_have_keys_of_their_own(void **state)
{
	char name[TENANT_NAME_BYTES];
	uint32_t first = 0x80000000u, key, other;

	(void)state;
	memset(&rules, 0, sizeof(rules));
	assert_int_equal(line("a", "uid", "5"), 0);
	start(400);
	for (uint32_t i = 0; i < TENANT_MAX_LARGE; i++) {
		key = key_of(first + i, 0);
		assert_true(key != key_of(5, 0) && key >= 0x80000000u);
		assert_int_equal(key_of(first + i, 0), key);
		snprintf(name, sizeof(name), "uid-%u", first + i);
		assert_int_equal(set(name, 0, max_of(4 * MIB)), 0);
		assert_int_equal(mm_tenant_info(exec_mm(pool), key,
						&(struct mm_tenant_info){ 0 }), 0);
	}
	assert_int_equal(tenants_key(tenants, first + 5000, 0, &key), -EUSERS);
	assert_int_equal(set("uid-2147490000", 0, max_of(1)), -EUSERS);
	other = key_of(first + 3, 0);
	assert_int_equal(set("uid-2147483651", 0, max_of(MM_NO_LIMIT)), 0);
	assert_int_equal(key_of(first + 5000, 0), other);	/* mm has forgotten the old one */
	assert_string_equal(tenants_name(tenants, other, name), "uid-2147488648");
	stop();
}

/* ---- limits -------------------------------------------------------------------------------- */

static void the_limits_of_the_file_hold_from_the_start(void **state)
{
	struct mm_tenant_info i;

	(void)state;
	memset(&rules, 0, sizeof(rules));
	assert_int_equal(line("a", "uid", "5"), 0);
	assert_int_equal(line("a", "min", "6M"), 0);
	assert_int_equal(line("a", "device.1.max", "8M"), 0);
	assert_int_equal(line("b", "uid", "6"), 0);
	assert_int_equal(line("b", "min", "10M"), 0);
	start(16);
	assert_int_equal(tenants_apply(tenants, err, sizeof(err)), 0);
	assert_int_equal(mm_tenant_info(exec_mm(pool), key_of(5, 0), &i), 0);
	assert_int_equal(i.device[0].limits.min_bytes, 6 * MIB);
	assert_true(i.device[0].limits.max_bytes == MM_NO_LIMIT);
	assert_int_equal(i.device[1].limits.max_bytes, 8 * MIB);
	stop();
	rules.rule[1].all.limits.min_bytes = 11 * MIB;
	start(16);
	assert_int_equal(tenants_apply(tenants, err, sizeof(err)), -ENOMEM);
	assert_non_null(strstr(err, "'b': min 11.0 MiB does not fit device 0"));
	assert_non_null(strstr(err, "10.0 MiB"));
	stop();
}

static void a_change_is_made_on_all_devices_or_none(void **state)
{
	struct tenant_change c = { KV_TENANT_SET_MIN | KV_TENANT_SET_OOM, MM_OOM_KILL,
				   { .min_bytes = 12 * MIB } };
	struct mm_tenant_info i;
	uint64_t before;

	(void)state;
	memset(&rules, 0, sizeof(rules));
	start(2);
	assert_int_equal(set("uid-5", 1, max_of(20 * MIB)), 0);
	assert_int_equal(mm_tenant_info(exec_mm(pool), 5, &i), 0);
	assert_true(i.device[0].limits.max_bytes == MM_NO_LIMIT);
	assert_int_equal(set("uid-6", 1, (struct tenant_change){ KV_TENANT_SET_MIN, 0,
								 { .min_bytes = 24 * MIB } }), 0);
	before = mm_digest(exec_mm(pool));
	/* device 1 has 8 MiB left */
	assert_int_equal(set("uid-5", MM_ALL_DEVICES, c), -ENOMEM);
	assert_int_equal(set("uid-5", 2, c), -EINVAL);
	assert_int_equal(set("uid-7", 0, max_of(MIB)), -ENOMEM);
	assert_non_null(strstr(err, "max_sessions"));
	assert_int_equal(set("nobody", 0, max_of(MIB)), -ENOENT);
	assert_true(mm_digest(exec_mm(pool)) == before);
	assert_int_equal(set("uid-5", 0, c), 0);
	assert_int_equal(mm_tenant_info(exec_mm(pool), 5, &i), 0);
	assert_int_equal(i.device[0].limits.min_bytes, 12 * MIB);
	assert_int_equal(i.device[1].limits.max_bytes, 20 * MIB);
	assert_int_equal(i.oom_action, MM_OOM_KILL);
	stop();
}

/* ---- in a daemon --------------------------------------------------------------------------- */

static int ask_set(const char *path, const char *name, uint64_t max, struct kv_admin_tenant *t)
{
	struct kv_admin_tenant_set q = { .device = KV_ALL_DEVICES, .mask = KV_TENANT_SET_MAX,
					 .max_bytes = max };

	snprintf(q.name, sizeof(q.name), "%s", name);
	return raw_admin_ask(path, KV_ADMIN_TENANT_SET, &q.head, sizeof(q), t, sizeof(*t));
}

static void a_user_is_held_to_the_max_of_its_section(void **state)
{
	struct kv_admin_engine e;
	struct kv_admin_cache k;
	struct kv_admin_tenant t[2];
	struct raw_daemon d;
	uint64_t ids[512];
	struct raw r;
	char uid[16];

	(void)state;
	snprintf(uid, sizeof(uid), "%u", getuid());
	assert_int_equal(raw_daemon_prepare(&d), 0);
	memset(&rules, 0, sizeof(rules));
	assert_int_equal(line("batch", "uid", uid), 0);
	assert_int_equal(line("batch", "max", "2M"), 0);
	d.control.tenants = rules;
	assert_int_equal(raw_daemon_start(&d), 0);
	assert_int_equal(raw_open(&r, d.path, "one"), 0);
	assert_string_equal(r.w.text, "batch");
	assert_int_equal(raw_open_cache(&r), 0);
	assert_int_equal(raw_alloc(&r, 512, ids), 0);
	assert_int_equal(raw_alloc(&r, 1, ids), -EDQUOT);
	assert_int_equal(raw_admin(d.path, KV_ADMIN_ENGINES, &e, sizeof(e)), 1);
	assert_string_equal(e.tenant, "batch");
	assert_int_equal(raw_admin(d.path, KV_ADMIN_CACHES, &k, sizeof(k)), 1);
	assert_string_equal(k.tenant, "batch");
	assert_int_equal(ask_set(d.path, "batch", 4 * MIB, &t[0]), 1);
	assert_int_equal(t[0].device[0].max_bytes, 4 * MIB);
	assert_int_equal(t[0].device[0].current_bytes, 2 * MIB);
	assert_int_equal(t[0].max_events, 1);
	assert_int_equal(raw_alloc(&r, 1, ids), 0);
	assert_int_equal(ask_set(d.path, "uid-4000000000", MIB, &t[0]), 1);
	assert_int_equal(raw_admin(d.path, KV_ADMIN_TENANTS, t, sizeof(t)), 2);
	assert_string_equal(t[0].name, "batch");
	assert_string_equal(t[1].name, "uid-4000000000");
	assert_int_equal(t[0].device[0].held_bytes, 513 * 4096);
	assert_int_equal(ask_set(d.path, "uid-4000000000", KV_NO_LIMIT, &t[0]), 1);
	assert_true(t[0].device[0].max_bytes == KV_NO_LIMIT);
	assert_int_equal(raw_admin(d.path, KV_ADMIN_TENANTS, t, sizeof(t)), 1);
	assert_int_equal(ask_set(d.path, "nobody", MIB, &t[0]), -ENOENT);
	raw_close(&r);
	raw_daemon_stop(&d);
}

/* Takes pages, says so, and never answers anything again. */
static void hoard(const char *path, int told)
{
	static uint64_t ids[1024];
	struct raw r;
	char ok;

	ok = raw_open(&r, path, "hoarder") == 0 && raw_open_cache(&r) == 0 &&
	     raw_alloc(&r, 1024, ids) == 0;
	if (write(told, &ok, 1) != 1)
		_exit(2);
	for (;;)
		pause();
}

static void who_stays_above_max_is_killed_if_the_tenant_says_so(void **state)
{
	struct kv_admin_tenant_set q = { .device = KV_ALL_DEVICES,
					 .mask = KV_TENANT_SET_MAX | KV_TENANT_SET_OOM,
					 .max_bytes = 2 * MIB, .oom_action = MM_OOM_KILL };
	struct kv_admin_tenant t;
	struct raw_daemon d;
	int told[2], status;
	char ok = 0;
	pid_t pid;

	(void)state;
	assert_int_equal(raw_daemon_prepare(&d), 0);
	assert_int_equal(control_set(&d.control, "answer_ms", "50", err, sizeof(err)), 0);
	assert_int_equal(raw_daemon_start(&d), 0);
	assert_int_equal(pipe(told), 0);
	pid = fork();
	if (!pid)
		hoard(d.path, told[1]);
	assert_int_equal(read(told[0], &ok, 1), 1);
	assert_true(ok);
	snprintf(q.name, sizeof(q.name), "uid-%u", getuid());
	assert_int_equal(raw_admin_ask(d.path, KV_ADMIN_TENANT_SET, &q.head, sizeof(q), &t,
				       sizeof(t)), 1);
	assert_int_equal(t.device[0].current_bytes, 4 * MIB);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	/* Others of its tenant are served, within the limit. */
	assert_true(RAW_EVENTUALLY(raw_admin(d.path, KV_ADMIN_TENANTS, &t, sizeof(t)) == 1 &&
				   t.device[0].current_bytes == 0));
	close(told[0]);
	close(told[1]);
	raw_daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_section_has_users_and_limits),
		cmocka_unit_test(mistakes_are_named),
		cmocka_unit_test(the_file_has_a_section_for_each),
		cmocka_unit_test(the_first_section_that_names_a_user_has_it),
		cmocka_unit_test(large_users_have_keys_of_their_own),
		cmocka_unit_test(the_limits_of_the_file_hold_from_the_start),
		cmocka_unit_test(a_change_is_made_on_all_devices_or_none),
		cmocka_unit_test(a_user_is_held_to_the_max_of_its_section),
		cmocka_unit_test(who_stays_above_max_is_killed_if_the_tenant_says_so),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
