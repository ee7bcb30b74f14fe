/* SPDX-License-Identifier: Apache-2.0 */
/* The reference model's 346 greedy tokens through pages: both attention paths, three cache types,
 * embedded and through the daemon; cold, with prefix hits of every kind of length, after forks in
 * the middle, after park and resume. */
#include "kvgen_test.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <kv/kv.h>
#include "engine.h"

#define NR_TOKENS 346u
#define START_MS  20000

static uint32_t want[NR_TOKENS + 1]; /* token_in of each position, then the last argmax */
static float want_top[NR_TOKENS], want_gap[NR_TOKENS];
static char spec[128], dir[32];
static pid_t daemon_pid;

static int load_reference(void)
{
	char line[128], path[256];
	uint32_t pos, in, next;
	float top, gap;
	FILE *f;

	snprintf(path, sizeof(path), "%s", kvgen_path(KVGEN_SHARED "ref_greedy_tokens.tsv"));
	f = fopen(path, "r");
	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "%u %u %u %f %f", &pos, &in, &next, &top, &gap) == 5 &&
		    pos < NR_TOKENS) {
			want[pos] = in;
			want[pos + 1] = next;
			want_top[pos] = top;
			want_gap[pos] = gap;
		}
	fclose(f);
	return 0;
}

static struct engine *open_engine(const char *connect, bool mla, uint32_t dtype, uint32_t page)
{
	char model[512], tok[512];
	struct engine_options opt = { .model = model,
				      .tokenizer = tok,
				      .connect = connect,
				      .name = "engine_test",
				      .as_mla = mla,
				      .cache_dtype = dtype,
				      .page_tokens = page };
	struct engine *e;

	snprintf(model, sizeof(model), "%s", kvgen_shared("stories260K.bin"));
	snprintf(tok, sizeof(tok), "%s", kvgen_shared("tok512.bin"));
	if (load_reference())
		skip();
	if (engine_open(&e, &opt))
		fail_msg("%s", engine_error());
	return e;
}

static struct run *start(struct engine *e, uint32_t n, uint32_t want_hit)
{
	struct run *r;
	uint32_t hit;

	if (run_start(e, want, n, &hit, &r))
		fail_msg("%s", engine_error());
	assert_int_equal(hit, want_hit);
	return r;
}

/* The greedy continuation from here to position to is the reference's. */
static void follow(struct run *r, uint32_t to, bool exact)
{
	float top, gap;
	uint32_t id;

	for (;;) {
		id = run_next(r, &top, &gap);
		assert_int_equal(id, want[run_len(r)]);
		if (exact) { /* an f32 cache: logits too */
			assert_true(fabsf(top - want_top[run_len(r) - 1]) < 2e-3f);
			assert_true(fabsf(gap - want_gap[run_len(r) - 1]) < 2e-3f);
		}
		if (run_len(r) >= to)
			return;
		if (run_push(r, id))
			fail_msg("%s", engine_error());
	}
}

static void cold_then_hits(struct engine *e, bool exact)
{
	static const uint32_t prompts[] = { 1, 2, 15, 16, 17, 50, 128, 129, 200, 346 };
	struct run *r = start(e, 1, 0);
	size_t i;

	follow(r, NR_TOKENS, exact);
	run_end(r);
	for (i = 0; i < sizeof(prompts) / sizeof(prompts[0]); i++) {
		r = start(e, prompts[i], prompts[i] - 1);
		follow(r, prompts[i] + 20 < NR_TOKENS ? prompts[i] + 20 : NR_TOKENS, exact);
		run_end(r);
	}
}

/* Fork inside a page; both go on, one after the other and in turn. */
static void fork_in_the_middle(struct engine *e, bool exact)
{
	struct run *r = start(e, 1, 0), *child, *grandchild;

	follow(r, 101, exact);
	assert_int_equal(run_fork(r, &child), 0);
	follow(child, 140, exact);
	follow(r, 120, exact);
	assert_int_equal(run_fork(child, &grandchild), 0);
	follow(grandchild, NR_TOKENS, exact);
	run_end(child);
	follow(r, NR_TOKENS, exact);
	run_end(grandchild);
	run_end(r);
}

static void park_and_resume(struct engine *e, bool exact)
{
	struct run *r = start(e, 1, 0), *other;
	uint32_t kept;

	follow(r, 77, exact);
	assert_int_equal(run_park(r), 0);
	other = start(e, 30, 29);
	follow(other, 60, exact);
	assert_int_equal(run_resume(r, &kept), 0);
	assert_int_equal(kept, 77);
	follow(r, 130, exact);
	assert_int_equal(run_park(r), 0);
	assert_int_equal(run_resume(r, &kept), 0);
	follow(r, NR_TOKENS, exact);
	run_end(other);
	run_end(r);
}

static void everything(const char *connect, bool mla, uint32_t dtype)
{
	void (*const parts[])(struct engine *, bool) = { cold_then_hits, fork_in_the_middle,
							 park_and_resume };
	struct engine *e;
	size_t i;

	for (i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		/* Each part wants a cold cache: its own page size makes one. */
		e = open_engine(connect, mla, dtype, 16 + 8 * (uint32_t)i);
		parts[i](e, dtype == KV_F32);
		engine_close(e);
	}
}

static void test_embedded(void **state)
{
	uint32_t dtype;

	(void)state;
	for (dtype = KV_F32; dtype <= KV_BF16; dtype++) {
		everything("embedded:host:64M", false, dtype);
		everything("embedded:host:64M", true, dtype);
	}
}

static void test_daemon(void **state)
{
	uint32_t dtype;

	(void)state;
	if (!daemon_pid) {
		print_message("skipped: no kvd to start (KVD_BIN)\n");
		skip();
	}
	for (dtype = KV_F32; dtype <= KV_BF16; dtype++) {
		everything(spec, false, dtype);
		everything(spec, true, dtype);
	}
}

/* Two engines in turn, token by token, on one cache: both read what the other committed. */
static void test_two_engines(void **state)
{
	struct engine *a, *b;
	struct run *x, *y;
	uint32_t to;

	(void)state;
	if (!daemon_pid)
		skip();
	a = open_engine(spec, false, KV_F16, 8);
	b = open_engine(spec, false, KV_F16, 8);
	x = start(a, 1, 0);
	y = start(b, 1, 0);
	for (to = 2; to <= NR_TOKENS; to++) {
		follow(x, to, false);
		follow(y, to, false);
	}
	run_end(x);
	engine_close(a);
	run_end(y);
	y = start(b, NR_TOKENS, NR_TOKENS - 1);
	follow(y, NR_TOKENS, false);
	run_end(y);
	engine_close(b);
}

static void test_pool_too_small(void **state)
{
	struct engine *e = open_engine("embedded:host:2M", false, KV_F32, 256);
	struct run *r[64];
	uint32_t hit, n, i;
	int err = 0;

	(void)state;
	for (n = 0; n < 64; n++) {
		want[1] = n + 3; /* no two share a page */
		err = run_start(e, want, 2, &hit, &r[n]);
		if (err)
			break;
	}
	assert_int_equal(err, -ENOMEM);
	assert_true(n > 0);
	assert_non_null(strstr(engine_error(), "pool"));
	run_end(r[0]);
	want[1] = 90;
	assert_int_equal(run_start(e, want, 2, &hit, &r[0]), 0);
	for (i = 0; i < n; i++)
		run_end(r[i]);
	engine_close(e);
}

static int start_daemon(void **state)
{
	const char *bin = getenv("KVD_BIN");
	char sock[100], line[512];
	struct pollfd pfd;
	int out[2];

	(void)state;
	if (!bin || access(bin, X_OK))
		return 0;
	strcpy(dir, "/tmp/kvgen-test.XXXXXX");
	if (!mkdtemp(dir) || pipe(out))
		return -1;
	snprintf(sock, sizeof(sock), "%s/kvd.sock", dir);
	snprintf(spec, sizeof(spec), "unix:%s", sock);
	daemon_pid = fork();
	if (!daemon_pid) {
		dup2(out[1], STDERR_FILENO);
		dup2(out[1], STDOUT_FILENO);
		execl(bin, bin, "--device", "host:128M", "--socket", sock, "--check-every", "200",
		      (char *)NULL);
		_exit(127);
	}
	close(out[1]);
	pfd = (struct pollfd){ .fd = out[0], .events = POLLIN };
	return poll(&pfd, 1, START_MS) == 1 && read(out[0], line, sizeof(line)) > 0 ? 0 : -1;
}

static int stop_daemon(void **state)
{
	char path[128];
	int st;

	(void)state;
	if (!daemon_pid)
		return 0;
	kill(daemon_pid, SIGTERM);
	waitpid(daemon_pid, &st, 0);
	snprintf(path, sizeof(path), "%s/kvd.sock", dir);
	unlink(path);
	snprintf(path, sizeof(path), "%s/kvd.sock.admin", dir);
	unlink(path);
	rmdir(dir);
	return WIFEXITED(st) && WEXITSTATUS(st) == 0 ? 0 : -1;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_embedded),
		cmocka_unit_test(test_daemon),
		cmocka_unit_test(test_two_engines),
		cmocka_unit_test(test_pool_too_small),
	};

	return cmocka_run_group_tests_name("engine", tests, start_daemon, stop_daemon);
}
