// SPDX-License-Identifier: Apache-2.0
/* Pressure: the engine's callback makes room for another engine's waiting allocation, whether the
 * event is met by an idle engine in kv_poll() or by a busy one in a call. */
#include <errno.h>
#include <pthread.h>
#include "daemon_test.h"
#include "internal.h"

#define PAGES 16u

static struct daemon_proc d;

/* An engine that fills the pool and gives a page back for each call of its callback. */
struct holder {
	struct kv *kv;
	struct kv_cache *cache;
	uint64_t ids[PAGES];
	uint32_t nr, calls, give;
	bool again; /* kv_poll() from inside was refused */
	uint64_t asked;
};

static int start(void **state)
{
	static const char *const args[] = { "--device", "host:32M", "--check-every", "1" };

	(void)state;
	d = (struct daemon_proc){ .pid = 0 };
	daemon_start(&d, args, 4);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	daemon_stop(&d);
	return 0;
}

static void give(void *ctx, struct kv *kv, uint64_t bytes, uint64_t deadline_ns)
{
	struct holder *h = ctx;
	uint32_t i;

	h->calls++;
	h->asked = bytes;
	h->again = kv_poll(kv) == -EBUSY;
	for (i = 0; deadline_ns && i < h->give && h->nr; i++)
		ok(kv_page_free(h->cache, 0, h->ids[--h->nr]));
}

static void holder_open(struct holder *h, bool callback)
{
	struct kv_options o = { .on_pressure = callback ? give : NULL, .ctx = h };
	struct kv_cache_params p = test_params(NULL);

	*h = (struct holder){ .give = PAGES };
	p.group[0].layout = opaque_layout(2 << 20);
	ok(kv_open(d.spec, &o, &h->kv));
	ok(kv_cache_open(h->kv, &p, &h->cache));
	for (h->nr = 0; h->nr < PAGES; h->nr++)
		ok(kv_pages_alloc(h->cache, 0, 1, &h->ids[h->nr]));
}

/* Another engine asks for two pages and waits: as it always does, or for this call only. */
static void *ask_by(const struct kv_options *o, const uint32_t *wait_ms)
{
	struct kv_cache_params p = test_params(NULL);
	uint64_t ids[2];
	struct kv_cache *c;
	struct kv *kv;
	int rc;

	p.group[0].layout = opaque_layout(2 << 20);
	if (kv_open(d.spec, o, &kv) || kv_cache_open(kv, &p, &c))
		return (void *)(intptr_t)-1;
	rc = wait_ms ? kv_pages_alloc_wait(c, 0, 2, ids, *wait_ms) : kv_pages_alloc(c, 0, 2, ids);
	if (kv->wait_ms != (o ? o->wait_ms : 0))
		rc = -1;
	if (rc == -ENOMEM && !strstr(kv_error(), "none came in"))
		rc = -1;
	kv_close(kv);
	return (void *)(intptr_t)rc;
}

static void *ask(void *arg)
{
	struct kv_options o = { .wait_ms = *(uint32_t *)arg };

	return ask_by(&o, NULL);
}

static void *ask_once(void *arg)
{
	return ask_by(NULL, arg);
}

static void idle_holder(void *(*how)(void *))
{
	struct holder h;
	uint32_t wait_ms = 20000, i;
	struct pollfd pfd;
	pthread_t thread;
	void *rc;

	holder_open(&h, true);
	pfd = (struct pollfd){ .fd = kv_event_fd(h.kv), .events = POLLIN };
	pthread_create(&thread, NULL, how, &wait_ms);
	for (i = 0; !h.calls && i < DAEMON_TRIES; i++) {
		assert_int_equal(poll(&pfd, 1, 20000), 1);
		ok(kv_poll(h.kv));
	}
	pthread_join(thread, &rc);
	assert_null(rc);
	assert_int_equal(h.calls, 1);
	assert_true(h.again);
	assert_true(h.asked >= 4 << 20);
	kv_close(h.kv);
}

static void test_idle_holder(void **state)
{
	(void)state;
	idle_holder(ask);
}

static void test_a_wait_of_its_own(void **state)
{
	(void)state;
	idle_holder(ask_once);
}

/* ---- what a callback does with sequences --------------------------------------------------- */

#define CHATS 8u

/* An engine whose idle sequences fill the pool; what it is asked for it parks. */
struct server {
	struct kv *kv;
	struct kv_cache *cache;
	struct kv_seq *idle[CHATS];
	uint32_t nr, parked;
};

static void park_idle(void *ctx, struct kv *kv, uint64_t bytes, uint64_t deadline_ns)
{
	struct server *v = ctx;
	uint64_t page = kv_cache_page_bytes(v->cache, 0), given = 0;
	uint32_t i, held, leased;

	(void)kv;
	(void)deadline_ns;
	for (i = v->parked; i < v->nr && (!bytes || given < bytes); i++) {
		kv_seq_pages(v->idle[i], &held, &leased);
		ok(kv_seq_park(v->idle[i]));
		given += (held + leased) * page;
		v->parked = i + 1;
	}
}

static void server_open(struct server *v)
{
	struct kv_options o = { .on_pressure = park_idle, .ctx = v };
	struct kv_cache_params p = test_params("chats");
	uint32_t tokens[2 * PAGE_TOKENS], hit;

	*v = (struct server){ .nr = 0 };
	p.group[0].layout = opaque_layout(2 << 20);
	ok(kv_open(d.spec, &o, &v->kv));
	ok(kv_cache_open(v->kv, &p, &v->cache));
	for (; v->nr < CHATS; v->nr++) {
		test_tokens(tokens, 2 * PAGE_TOKENS, v->nr);
		ok(kv_seq_create(v->cache, NULL, 0, &v->idle[v->nr]));
		ok(kv_seq_match(v->idle[v->nr], tokens, 2 * PAGE_TOKENS, &hit));
		ok(kv_seq_append(v->idle[v->nr], tokens, 2 * PAGE_TOKENS));
		ok(kv_seq_commit(v->idle[v->nr], 2 * PAGE_TOKENS));
	}
}

/* Two of eight sequences make room for what is asked; the others stay as they are, and a parked one
 * comes back with what the pool had no need of. */
static void test_parks_on_pressure(void **state)
{
	struct server v;
	uint32_t wait_ms = 20000, i, len, whole = 0;
	struct pollfd pfd;
	pthread_t thread;
	void *rc;

	(void)state;
	server_open(&v);
	pfd = (struct pollfd){ .fd = kv_event_fd(v.kv), .events = POLLIN };
	pthread_create(&thread, NULL, ask, &wait_ms);
	for (i = 0; !v.parked && i < DAEMON_TRIES; i++) {
		assert_int_equal(poll(&pfd, 1, 20000), 1);
		ok(kv_poll(v.kv));
	}
	for (i = 0; pthread_tryjoin_np(thread, &rc) && i < DAEMON_TRIES; i++) {
		ok(kv_poll(v.kv));
		poll(&pfd, 1, 20);
	}
	assert_null(rc);
	assert_in_range(v.parked, 1, CHATS - 1);
	for (i = 0; i < v.nr; i++) {
		if (i >= v.parked) {
			assert_int_equal(kv_seq_len(v.idle[i]), 2 * PAGE_TOKENS);
			continue;
		}
		ok(kv_seq_resume(v.idle[i], &len));
		assert_true(len <= 2 * PAGE_TOKENS);
		whole += len == 2 * PAGE_TOKENS;
	}
	assert_true(whole < v.parked);
	kv_close(v.kv);
}

/* A busy engine meets the event in one of its calls, where its callback may not run: then
 * kv_event_fd() stays readable until kv_poll() runs it. */
static void test_busy_holder(void **state)
{
	struct holder h;
	uint32_t wait_ms = 20000, i;
	struct kv_info info;
	struct pollfd pfd;
	pthread_t thread;
	void *rc;

	(void)state;
	holder_open(&h, true);
	pfd = (struct pollfd){ .fd = kv_event_fd(h.kv), .events = POLLIN };
	pthread_create(&thread, NULL, ask, &wait_ms);
	for (i = 0; !h.kv->pressure.due && i < DAEMON_TRIES; i++) {
		ok(kv_info(h.kv, &info));
		poll(NULL, 0, 10);
	}
	assert_true(h.kv->pressure.due);
	assert_int_equal(h.calls, 0);
	for (i = 0; !h.calls && i < 10; i++) {
		assert_int_equal(poll(&pfd, 1, 20000), 1);
		ok(kv_poll(h.kv));
	}
	assert_int_equal(h.calls, 1);
	pthread_join(thread, &rc);
	assert_null(rc);
	ok(kv_poll(h.kv));
	assert_int_equal(h.calls, 1); /* answered: not told again */
	kv_close(h.kv);
}

/* Without a callback what lies in the magazine goes back by itself. */
static void test_no_callback(void **state)
{
	struct holder h;
	uint32_t wait_ms = 20000;
	struct pollfd pfd;
	pthread_t thread;
	void *rc;

	(void)state;
	holder_open(&h, false);
	ok(kv_page_free(h.cache, 0, h.ids[0]));
	assert_int_equal(h.cache->mag[0]->nr, 1);
	ok(kv_pages_free(h.cache, 0, 1, h.ids + 1));
	pfd = (struct pollfd){ .fd = kv_event_fd(h.kv), .events = POLLIN };
	pthread_create(&thread, NULL, ask, &wait_ms);
	while (h.cache->mag[0]->nr) {
		assert_int_equal(poll(&pfd, 1, 20000), 1);
		ok(kv_poll(h.kv));
	}
	pthread_join(thread, &rc);
	assert_null(rc);
	kv_close(h.kv);
}

/* Nobody gives: the one that waited is told how long and what for. */
static void test_nobody_gives(void **state)
{
	struct holder h;
	uint32_t wait_ms = 300;
	pthread_t thread;
	void *rc;

	(void)state;
	holder_open(&h, false);
	pthread_create(&thread, NULL, ask, &wait_ms);
	pthread_join(thread, &rc);
	assert_int_equal((intptr_t)rc, -ENOMEM);
	kv_close(h.kv);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, start, stop)
	const struct CMUnitTest tests[] = {
		T(test_idle_holder),
		T(test_a_wait_of_its_own),
		T(test_parks_on_pressure),
		T(test_busy_holder),
		T(test_no_callback),
		T(test_nobody_gives),
	};

	if (!daemon_here())
		return 0;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
