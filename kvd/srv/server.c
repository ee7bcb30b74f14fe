// SPDX-License-Identifier: Apache-2.0
#include "srv/server.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "io/log.h"
#include "io/loop.h"
#include "io/sock.h"
#include "srv/admin.h"
#include "srv/exec.h"
#include "srv/pressure.h"
#include "srv/session.h"

#define say(err, len, ...) snprintf((err), (len), __VA_ARGS__)

struct server {
	struct control control;
	char admin_path[CONTROL_PATH_BYTES];
	struct loop *loop;
	struct exec *exec;
	struct sessions *sessions;
	struct admin *admin;
	struct tenants *tenants;
	struct mm_config mm;
	int listen_fd, admin_fd, stop_fd, signal_fd;
	uint64_t oom_seq;	/* last report that is in the log */
	bool stopping;
};

void mm_panic(const char *what, const char *file, int line)
{
	log_error("broken invariant: %s (%s:%d); this is a bug in kvd", what, file, line);
	abort();
}

static void on_reply(void *ctx, const struct mm_reply *r)
{
	struct server *s = ctx;

	if (!tenants_reply(s->tenants, r))
		sessions_reply(s->sessions, r);
}

static void on_notify(void *ctx, uint32_t member)
{
	struct server *s = ctx;

	sessions_notify(s->sessions, member);
}

static void on_kill(void *ctx, uint32_t engine)
{
	struct server *s = ctx;

	sessions_kill(s->sessions, engine);
}

static void device_ready(void *ctx, int res, const struct loop_msg *msg)
{
	struct server *s = ctx;

	(void)msg;
	if (res < 0)
		log_error("a device cannot be watched: %s", strerror(-res));
	exec_run(s->exec, loop_now());
}

static void stop_asked(void *ctx, int res, const struct loop_msg *msg)
{
	struct server *s = ctx;

	(void)res;
	(void)msg;
	s->stopping = true;
}

/* Every session is a process of some engine, and each may be another's, another user's, with a
 * cache of its own. The dead stay until their pages are back, hence a few more. */
static void size_tables(struct mm_config *cfg, uint32_t max_sessions, uint32_t nr_rules)
{
	uint32_t nr = max_sessions + SESSION_SPARE;

	cfg->max_members = cfg->max_engines = nr;
	if (cfg->max_tenants < nr + nr_rules)
		cfg->max_tenants = nr + nr_rules;
	if (cfg->max_caches < nr)
		cfg->max_caches = nr;
}

/* A session has its socket, pidfd, memfd and two eventfds, and an answer with an fd on the way. */
static uint64_t descriptors_needed(const struct server *s)
{
	return 6 * (s->control.max_sessions + SESSION_SPARE) + s->control.max_admin +
	       s->mm.max_extents + 64;
}

/* Not refused: it is what may be needed, and most daemons are never full. */
static void check_descriptors(const struct server *s)
{
	uint64_t need = descriptors_needed(s);
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim) < 0 || lim.rlim_cur >= need)
		return;
	log_warn("kvd may open %llu files, and needs up to %llu for max_sessions=%llu and %u "
		 "extents: raise the limit (LimitNOFILE=, ulimit -Hn), lower max_sessions or raise "
		 "extent_bytes", (unsigned long long)lim.rlim_cur, (unsigned long long)need,
		 (unsigned long long)s->control.max_sessions, s->mm.max_extents);
}

static int create_exec(struct server *s, char *err, size_t err_len)
{
	static const struct exec_ops ops = { .reply = on_reply, .notify = on_notify,
					     .kill = on_kill };
	struct dev *devs[MM_MAX_DEVICES];
	uint64_t bytes[MM_MAX_DEVICES];
	uint32_t n = s->control.nr_devices;
	int ret = 0;

	for (uint32_t d = 0; d < n; d++)
		bytes[d] = s->control.device[d].bytes;
	exec_default_config(&s->mm, n, bytes, s->control.extent_bytes);
	size_tables(&s->mm, (uint32_t)s->control.max_sessions, s->control.tenants.nr);
	exec_watermarks(&s->mm, (uint32_t)s->control.wmark_min, (uint32_t)s->control.wmark_low,
			(uint32_t)s->control.wmark_high);
	s->mm.answer_ns = s->control.answer_ms * 1000000;
	s->mm.idle_ns = s->control.idle_ms * 1000000;
	s->mm.policy = (uint32_t)s->control.policy;
	if (s->control.batch_pages)
		s->mm.batch_pages = (uint32_t)s->control.batch_pages;
	for (uint32_t d = 0; d < n; d++) {
		ret = dev_host_create(&devs[d], s->mm.max_extents);
		if (ret == 0)
			continue;
		say(err, err_len, "device %s cannot start: %s", s->control.device[d].spec,
		    strerror(-ret));
		while (d-- > 0)
			devs[d]->ops->destroy(devs[d]);
		return ret;
	}
	ret = exec_create(&s->exec, &s->mm, devs, &ops, s);
	if (ret < 0)
		say(err, err_len,
		    "cannot set up a pool of this size: %s; choose another --device size, "
		    "extent_bytes or batch_pages",
		    strerror(-ret));
	return ret;
}

static int create_tenants(struct server *s, char *err, size_t err_len)
{
	int ret = tenants_create(&s->tenants, &s->control.tenants, s->exec, s->control.nr_devices);

	if (ret < 0)
		say(err, err_len, "no memory for the tenants: %s", strerror(-ret));
	return ret < 0 ? ret : tenants_apply(s->tenants, err, err_len);
}

static int create_sockets(struct server *s, char *err, size_t err_len)
{
	bool group = s->control.group[0];
	mode_t mode = s->control.socket_mode ? (mode_t)s->control.socket_mode : group ? 0660 : 0600;
	struct sock_place at = {.path = s->control.socket, .mode = mode, .group = s->control.group};

	s->listen_fd = sock_listen(&at, err, err_len);
	if (s->listen_fd < 0)
		return s->listen_fd;
	at.path = s->admin_path;
	at.mode = group ? 0660 : 0600;
	s->admin_fd = sock_listen(&at, err, err_len);
	return s->admin_fd < 0 ? s->admin_fd : 0;
}

static int create_loop(struct server *s, char *err, size_t err_len)
{
	unsigned int ops =
		SESSION_OPS * ((unsigned int)s->control.max_sessions + SESSION_SPARE) + 256;
	int ret = loop_create(&s->loop, ops);

	if (ret < 0)
		say(err, err_len, "no event loop: %s", loop_create_hint(ret));
	return ret;
}

static int create_sessions(struct server *s)
{
	const struct control *c = &s->control;
	struct sessions_config cfg = {
		.loop = s->loop, .tenants = s->tenants, .listen_fd = s->listen_fd,
		.max = (uint32_t)c->max_sessions, .max_per_uid = (uint32_t)c->max_sessions_per_uid,
		.ring_entries = (uint32_t)c->ring_entries, .batch_pages = s->mm.batch_pages,
		.nr_devices = c->nr_devices, .max_extents = s->mm.max_extents,
		.data_bytes = c->data_bytes, .pool_bytes = c->device[0].bytes,
		.spin_ns = c->spin_us * 1000, .hello_ns = c->hello_ms * 1000000,
		.check_every = c->check_every,
	};

	return sessions_create(&s->sessions, &cfg);
}

static int create_admin(struct server *s)
{
	struct admin_config cfg = {
		.loop = s->loop, .exec = s->exec, .sessions = s->sessions, .tenants = s->tenants,
		.control = &s->control,
		.release = SERVER_RELEASE, .listen_fd = s->admin_fd, .started_ns = loop_now(),
	};

	return admin_create(&s->admin, &cfg);
}

static int watch_signals(struct server *s)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return s->signal_fd < 0 ? -errno : 0;
}

static int watch(struct server *s, bool signals)
{
	bool ok = true;
	int ret = signals ? watch_signals(s) : 0;

	s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->stop_fd < 0)
		ret = -errno;
	if (ret < 0)
		return ret;
	ok &= loop_poll(s->loop, s->stop_fd, stop_asked, s) != 0;
	if (signals)
		ok &= loop_poll(s->loop, s->signal_fd, stop_asked, s) != 0;
	for (uint32_t d = 0; d < s->control.nr_devices; d++)
		ok &= loop_poll(s->loop, exec_dev_fd(s->exec, d), device_ready, s) != 0;
	return ok ? 0 : -ENOMEM;
}

/* Sockets come last: whoever can connect finds a daemon that can serve. */
static int create_parts(struct server *s, bool signals, char *err, size_t err_len)
{
	int ret = create_loop(s, err, err_len);

	if (ret == 0)
		ret = create_exec(s, err, err_len);
	if (ret == 0)
		ret = create_tenants(s, err, err_len);
	if (ret < 0)
		return ret;
	check_descriptors(s);
	ret = watch(s, signals);
	if (ret < 0) {
		say(err, err_len, "no file descriptors for the event loop: %s", strerror(-ret));
		return ret;
	}
	ret = create_sockets(s, err, err_len);
	if (ret < 0)
		return ret;
	ret = create_sessions(s);
	if (ret == 0)
		ret = create_admin(s);
	if (ret < 0) {
		say(err, err_len,
		    "no memory for the session tables: lower max_sessions or data_bytes");
		return ret;
	}
	sessions_start(s->sessions, s->exec);
	return 0;
}

int server_create(struct server **out, const struct control *c, bool signals, char *err,
		  size_t err_len)
{
	struct server *s;
	int ret = control_check(c, err, err_len);

	if (ret < 0)
		return ret;
	s = calloc(1, sizeof(*s));
	if (!s) {
		say(err, err_len, "out of memory");
		return -ENOMEM;
	}
	s->control = *c;
	s->listen_fd = s->admin_fd = s->stop_fd = s->signal_fd = -1;
	snprintf(s->admin_path, sizeof(s->admin_path), "%.101s.admin", c->socket);
	ret = create_parts(s, signals, err, err_len);
	if (ret < 0) {
		server_destroy(s);
		return ret;
	}
	*out = s;
	return 0;
}

void server_describe(const struct server *s, char *buf, size_t len)
{
	char pool[24], extent[24];
	size_t n = 0;

	for (uint32_t d = 0; d < s->control.nr_devices && n < len; d++) {
		char name[CONTROL_NAME_BYTES];

		control_device_name(&s->control, d, name, sizeof(name));
		n += (size_t)snprintf(
			buf + n, len - n, "%s pool %s, extents %s, ", name,
			control_human_bytes(s->mm.device[d].pool_bytes, pool, sizeof(pool)),
			control_human_bytes(s->mm.device[d].extent_bytes, extent, sizeof(extent)));
	}
	if (n < len)
		snprintf(buf + n, len - n, "socket %s", s->control.socket);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* While it polls, leave the core's other thread its share. */
static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static void log_pressure(struct server *s)
{
	const struct pressure_view v = { s->exec, s->sessions, s->tenants, &s->control };

	pressure_log(&v, &s->oom_seq);
}

int server_run(struct server *s)
{
	int ret = 0;

	while (!s->stopping && ret == 0) {
		uint64_t now_ns = loop_now();
		uint64_t until = earlier(sessions_run(s->sessions, now_ns),
					 admin_run(s->admin, now_ns));

		log_pressure(s);
		if (until == 0)
			relax();
		ret = loop_wait(s->loop, earlier(until, exec_next_deadline(s->exec)));
	}
	sessions_stop(s->sessions);
	admin_destroy(s->admin);
	s->admin = NULL;
	loop_wait(s->loop, 0);		/* the clients' wake-ups leave */
	loop_stop(s->loop);
	return ret;
}

void server_stop(struct server *s)
{
	uint64_t one = 1;

	if (write(s->stop_fd, &one, sizeof(one)) < 0)
		s->stopping = true;	/* only a full counter fails, and then it is readable */
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

void server_destroy(struct server *s)
{
	admin_destroy(s->admin);
	sessions_destroy(s->sessions);
	if (s->exec)
		exec_destroy(s->exec);
	tenants_destroy(s->tenants);
	loop_destroy(s->loop);
	if (s->listen_fd >= 0)
		sock_unlink(s->control.socket, s->listen_fd);
	if (s->admin_fd >= 0)
		sock_unlink(s->admin_path, s->admin_fd);
	close_fd(s->listen_fd);
	close_fd(s->admin_fd);
	close_fd(s->stop_fd);
	close_fd(s->signal_fd);
	free(s);
}
