// SPDX-License-Identifier: Apache-2.0
/* session_fuzz - a whole server, two hostile clients with every fd of theirs, and one honest one
 *
 * Model:      the server runs in a thread on a private socket and serves many inputs. An input is a
 *             script for the hostile: hellos and packets of any size with or without fds, any write
 *             into the shared memory, eventfds filled and made to block, admin requests, hang-ups,
 *             deaths. The honest client makes a round trip every few actions; its answers must be
 *             right and what it wrote into its pages must still stand there. In the end the hostile
 *             die, and the pool must be as it was: no sessions, nothing held or quarantined,
 *             mm_check holds, no fd more than before.
 * Invariants: sock_peer is wrapped (--wrap), so that each connection is a process of its own, which
 *             dies when the script says so, with one of two uids.
 * Input:      command bytes with their operands, one after another; every byte string is one.
 */
#include <dirent.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/eventfd.h>

#include "../unit/srv/raw_client.h"
#include "io/log.h"
#include "io/sock.h"
#include "mm/mm.h"

#define MAX_STEPS	96u
#define HONEST_EVERY	6u
#define RESTART_EVERY	64u	/* inputs a server */
#define MAX_PROCS	64u
#define MAX_SEEN	64u
#define SCRIBBLE	16u	/* pages of a mapping that a hostile client writes into */
#define PAGE		4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int __wrap_sock_peer(int fd, struct sock_peer *peer);

struct hostile {
	struct raw r;
	bool open;
	uint64_t seen[MAX_SEEN];	/* pages it was granted */
	uint32_t nr_seen;
	int process;			/* eventfd: readable when the process is gone */
};

struct honest {
	struct raw r;
	uint8_t *map;			/* of the extent that its pages come from */
	size_t bytes;
	uint32_t extent, serial;
	int process;
};

struct world {
	struct raw_daemon d;
	struct hostile h[2];
	struct honest good;
	int procs[MAX_PROCS];
	uint32_t nr_procs, inputs;
	uint8_t token[KV_TOKEN_BYTES];	/* of the last lead that was welcomed */
	const uint8_t *in, *end;
};

static struct world w;

static _Noreturn void die(const char *what, ...)
{
	va_list ap;

	va_start(ap, what);
	fputs("session_fuzz: ", stderr);
	vfprintf(stderr, what, ap);
	fputc('\n', stderr);
	va_end(ap);
	abort();
}

/* ---- processes that are none --------------------------------------------------------------- */

static struct {
	sem_t accepted;
	struct sock_peer peer;
	int err;
} next_peer;

int __wrap_sock_peer(int fd, struct sock_peer *peer)
{
	int err = next_peer.err;

	(void)fd;
	*peer = next_peer.peer;
	sem_post(&next_peer.accepted);
	return err;
}

/* Connects as a new process of this uid, and waits until the server has seen it. */
static int connect_as(uid_t uid, int err, int *process)
{
	static pid_t pid = 100000;
	struct timespec until;
	int sock;

	*process = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	next_peer.peer = (struct sock_peer){
		.pid = ++pid, .uid = uid, .gid = uid,
		.pidfd = err ? -1 : fcntl(*process, F_DUPFD_CLOEXEC, 0),
	};
	next_peer.err = err;
	sock = raw_connect(w.d.path);
	if (*process < 0 || sock < 0)
		die("cannot connect: %d", sock);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += RAW_DEADLINE_MS / 1000;
	if (sem_timedwait(&next_peer.accepted, &until) < 0)
		die("the server does not accept");
	return sock;
}

static void kill_process(int *process)
{
	uint64_t one = 1;

	if (*process < 0)
		return;
	if (write(*process, &one, sizeof(one)) != sizeof(one))
		die("a process cannot die");
	close(*process);
	*process = -1;
}

/* ---- the script ---------------------------------------------------------------------------- */

static uint32_t u8(void)
{
	return w.in < w.end ? *w.in++ : 0;
}

static uint32_t u32(void)
{
	uint32_t v = u8();

	v |= u8() << 8;
	v |= u8() << 16;
	return v | u8() << 24;
}

static void bytes(void *to, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((uint8_t *)to)[i] = (uint8_t)u8();
}

/* ---- the honest client --------------------------------------------------------------------- */

static void stamp(uint64_t id, uint32_t serial, uint64_t out[2])
{
	out[0] = id;
	out[1] = 0x9e3779b97f4a7c15ull * (serial + 1ull);
}

/* The handshake on a socket that is connected: welcome.result, or what went wrong before it. */
static int shake(struct raw *r, int sock, const void *hello, size_t len, const int *fd)
{
	unsigned int nr = 0;
	ssize_t n;

	*r = (struct raw){ .sock = sock, .fds = { -1, -1, -1 } };
	raw_send(sock, hello, len, fd);
	n = raw_recv(sock, &r->w, sizeof(r->w), r->fds, &nr);
	if (n == -ETIMEDOUT)
		die("a hello was left without an answer");
	if (n <= 0)
		return n < 0 ? (int)n : -EPIPE;
	if (n != sizeof(r->w) || r->w.type != KV_MSG_WELCOME || nr != (r->w.result ? 0 : 3))
	{
		fprintf(stderr, "session_fuzz: %zd bytes, type %u, result %d, %u fds: %.200s\n", n,
			r->w.type, r->w.result, nr, r->w.text);
		die("a welcome that is none");
	}
	return r->w.result ? r->w.result : raw_map(r);
}

static void honest_unmap(void)
{
	if (!w.good.map)
		return;
	munmap(w.good.map, w.good.bytes);
	w.good.map = NULL;
	if (raw_unimport(&w.good.r, w.good.extent, 0))
		die("the honest client cannot unimport");
}

static void honest_map(uint64_t id)
{
	struct kv_msg_extent x;
	int fd;

	if (w.good.map && w.good.extent == mm_page_extent(id))
		return;
	honest_unmap();
	fd = raw_import(&w.good.r, mm_page_extent(id), 0, &x);
	if (fd < 0 || !x.writable || x.extent != mm_page_extent(id))
		die("the honest client cannot map its page: %d", fd);
	w.good.extent = x.extent;
	w.good.bytes = x.bytes;
	w.good.map = mmap(NULL, x.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (w.good.map == MAP_FAILED)
		die("mmap");
}

/* It gives back what it is asked for. */
static void honest_events(void)
{
	struct kv_sqe e = { .op = KV_OP_EVENTS, .out_off = 16384, .out_bytes = 4096 };
	struct kv_event ev;
	struct kv_cqe c;

	if (!(__atomic_load_n(&w.good.r.hdr->events, __ATOMIC_ACQUIRE) & KV_EVENT_PENDING))
		return;
	if (raw_call(&w.good.r, &e, &c))
		die("events were refused");
	for (uint32_t i = 0; i < c.id; i++) {
		memcpy(&ev, w.good.r.data + 16384 + i * sizeof(ev), sizeof(ev));
		if (ev.kind == MM_EVENT_RETIRE && w.good.map && ev.extent == w.good.extent)
			honest_unmap();
	}
}

static uint8_t *honest_page(uint64_t id)
{
	if ((mm_page_slot(id) + 1ull) * PAGE > w.good.bytes)
		die("a page outside of its extent");
	return w.good.map + (uint64_t)mm_page_slot(id) * PAGE;
}

static void honest_open(void)
{
	struct kv_msg_hello hello = raw_hello("honest");
	int process, ret;

	memset(&w.good, 0, sizeof(w.good));
	ret = shake(&w.good.r, connect_as(1000, 0, &process), &hello, sizeof(hello), NULL);
	if (!ret)
		ret = raw_open_cache(&w.good.r);
	if (ret)
		die("the honest client is refused: %d", ret);
	w.good.process = process;
}

static void honest_close(void)
{
	honest_unmap();
	raw_close(&w.good.r);
	kill_process(&w.good.process);
}

/* Pages are granted, keep what is written, and go back; the pool may be full. */
static void honest_round(void)
{
	uint64_t ids[4] = { 0 }, want[2];
	uint32_t n = 1 + w.good.serial % 4, i;
	struct kv_sqe nop = { .op = KV_OP_NOP, .user_data = ++w.good.serial };
	struct kv_cqe c;
	int ret;

	honest_events();
	ret = raw_call(&w.good.r, &nop, &c);
	if (ret || c.user_data != w.good.serial)
		die("a nop was answered %d", ret);
	ret = raw_alloc(&w.good.r, n, ids);
	if (ret == -ENOMEM)
		return;
	if (ret)
		die("an allocation was answered %d", ret);
	for (i = 0; i < n; i++) {
		if (!ids[i] || (i && ids[i] == ids[i - 1]))
			die("a page id makes no sense");
		if (i && mm_page_extent(ids[i]) != w.good.extent)
			continue;	/* it keeps one mapping */
		honest_map(ids[i]);
		stamp(ids[i], w.good.serial, want);
		memcpy(honest_page(ids[i]), want, sizeof(want));
	}
	if (raw_call(&w.good.r, &nop, &c))
		die("a nop failed");
	for (i = 0; i < n; i++) {
		if (mm_page_extent(ids[i]) != w.good.extent)
			continue;
		stamp(ids[i], w.good.serial, want);
		if (memcmp(honest_page(ids[i]), want, sizeof(want)))
			die("somebody wrote into a page of the honest client");
	}
	ret = raw_free(&w.good.r, n, ids);
	if (ret)
		die("a free was answered %d", ret);
}

/* ---- hostile: the socket ------------------------------------------------------------------- */

static void close_hostile(struct hostile *h)
{
	if (h->open)
		raw_close(&h->r);
	h->open = false;
}

/* What it may have mapped stays mapped until its process dies. */
static void leave(struct hostile *h)
{
	close_hostile(h);
	if (h->process >= 0 && w.nr_procs < MAX_PROCS)
		w.procs[w.nr_procs++] = h->process;
	else
		kill_process(&h->process);
	h->process = -1;
}

static void step_open(struct hostile *h)
{
	uint32_t how = u8(), what = u8();
	struct kv_msg_hello hello = raw_hello("hostile");
	uint8_t packet[256] = { 0 };
	size_t len = sizeof(hello);

	leave(h);
	if (how & 4)
		how |= 1;	/* with the honest client's token, but another's uid */
	if (how & 2) {
		hello.flags = KV_HELLO_MEMBER;
		hello.rank = u8() & 1;
		memcpy(hello.member_token, how & 4 ? w.good.r.w.member_token : w.token,
		       KV_TOKEN_BYTES);
	}
	memcpy(packet, &hello, sizeof(hello));
	if (what >= 192) {
		len = what >= 224 ? u8() : len;
		packet[u8() % sizeof(hello)] = (uint8_t)u8();
	}
	if (shake(&h->r, connect_as(1000 + (how & 1), what == 191 ? -ESRCH : 0, &h->process),
		  packet, len, what >= 240 ? &w.good.r.sock : NULL)) {
		raw_close(&h->r);
		return;
	}
	if ((how & 6) == 6)
		die("a token was good for another user");
	if (!(how & 2))
		memcpy(w.token, h->r.w.member_token, sizeof(w.token));
	h->open = true;
	h->nr_seen = 0;
}

static void step_packet(struct hostile *h)
{
	struct kv_msg_import import = { .type = KV_MSG_IMPORT };
	struct kv_msg_bye bye = { .type = KV_MSG_BYE };
	uint32_t how = u8();
	uint8_t packet[256] = { 0 };
	size_t len = sizeof(import);

	import.extent = u8() & 7;
	import.shard = u8() & 1;
	memcpy(packet, &import, sizeof(import));
	if ((how & 15) == 1) {
		len = sizeof(bye);
		memcpy(packet, &bye, len);
	} else if ((how & 15) == 2) {
		len = u8();
		bytes(packet, len < 32 ? len : 32);
	} else if ((how & 15) == 3) {
		packet[u8() % sizeof(import)] = (uint8_t)u8();
	}
	raw_send(h->r.sock, packet, len, how & 128 ? &h->r.fds[0] : NULL);
}

/* Whatever an extent holds that it was given: it writes there if it may. */
static void scribble(int fd, const struct kv_msg_extent *x)
{
	uint8_t *map = mmap(NULL, x->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (map == MAP_FAILED) {
		if (x->writable)
			die("an extent said to be writable is not");
		return;
	}
	if (!x->writable)
		die("an extent said to be read only is not");
	for (uint64_t at = 0; at < SCRIBBLE * PAGE && at < x->bytes; at += PAGE)
		memset(map + at, 0xbd, 16);
	munmap(map, x->bytes);
}

static void step_receive(struct hostile *h)
{
	struct pollfd p = { .fd = h->r.sock, .events = POLLIN };
	struct kv_msg_extent x;
	unsigned int nr;
	int fds[3];
	ssize_t n;

	while (poll(&p, 1, 0) == 1) {
		nr = 0;
		n = raw_recv(h->r.sock, &x, sizeof(x), fds, &nr);
		if (n <= 0)
			return;
		if (n != sizeof(x) || x.type != KV_MSG_EXTENT || nr != (x.result == 0))
			die("a packet that is no answer");
		if (!nr)
			continue;
		scribble(fds[0], &x);
		close(fds[0]);
	}
}

/* ---- hostile: eventfds --------------------------------------------------------------------- */

/* Never waits: the hostile may have filled it, and made it block. */
static void add(int fd, uint64_t v)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };

	if (v > 1 && !(fcntl(fd, F_GETFL) & O_NONBLOCK))
		return;
	if (poll(&p, 1, 0) == 1 && p.revents & POLLOUT)
		(void)!write(fd, &v, sizeof(v));
}

static void ring_bell(struct hostile *h)
{
	if (kv_ring_peer_sleeps(&h->r.hdr->sq_need_wakeup))
		add(h->r.fds[1], 1);
}

/* Its flags are shared with the server's. */
static void step_eventfd(struct hostile *h)
{
	uint32_t how = u8();
	int fd = h->r.fds[1 + (how & 1)];
	struct pollfd p = { .fd = fd, .events = POLLIN };
	uint64_t v;

	if (how & 4)
		fcntl(fd, F_SETFL, how & 8 ? 0 : O_NONBLOCK);
	if (!(how & 16))
		add(fd, how & 2 ? UINT64_MAX - 1 : u8());
	else if (poll(&p, 1, 0) == 1)
		(void)!read(fd, &v, sizeof(v));
}

/* ---- hostile: the shared memory ------------------------------------------------------------ */

/* Entries that get somewhere: their input stands where raw_client puts it. */
static void good_entry(struct hostile *h, struct kv_sqe *e)
{
	struct kv_cache_desc desc = { .page_tokens = 16, .nr_groups = 1, .nr_shards = 1 };
	uint32_t n = h->nr_seen < MAX_SEEN ? h->nr_seen : MAX_SEEN;

	e->cache = 1 + (u8() & 3);
	if (e->op == KV_OP_CACHE_OPEN) {
		desc.model_key[0] = e->cache == 1;
		desc.layout_key[0] = 1;
		desc.group[0].kind = 1;
		desc.shard[0].page_bytes[0] = PAGE;
		memcpy(h->r.data, &desc, sizeof(desc));
		e->cache = 0;
		e->in_bytes = sizeof(desc);
		e->out_bytes = sizeof(struct kv_cache_geom);
	} else if (e->op == KV_OP_ALLOC) {
		e->nr = 1 + (u8() & 31);
		e->arg = u8() & 3;
		e->out_bytes = e->nr * 8;
	} else if (e->op == KV_OP_FREE) {
		e->cache = 0;
		e->nr = 1 + u8() % 4;
		e->in_bytes = e->nr * 8;
		for (uint32_t i = 0; i < e->nr; i++)
			memcpy(h->r.data + 8 * i, &h->seen[n ? u8() % n : 0], 8);
	} else {
		e->cache &= u8();
		e->id = u8() & 7;
		e->nr = u8() & 3;
		e->in_bytes = u8();
		e->out_bytes = e->in_bytes & 1 ? 4096 : 0;
		bytes(h->r.data, 16);
	}
	e->out_off = e->out_bytes ? 4096 : 0;
}

static void step_entry(struct hostile *h)
{
	uint32_t how = u8(), at;
	struct kv_sqe e = { .op = (uint8_t)(u8() % KV_NR_OPS), .user_data = 1 };

	if (how < 224)
		good_entry(h, &e);
	else
		bytes(&e, sizeof(e));
	if (how >= 192 && how < 224) {
		at = u8();
		((uint8_t *)&e)[at % sizeof(e)] = (uint8_t)u8();
	}
	for (uint32_t i = 0; i <= (how & 7 ? 0 : how & 120); i++) {
		h->r.sqes[kv_ring_at(&h->r.sq, 0)] = e;
		kv_ring_publish(&h->r.sq, 1);	/* room or not */
	}
	if (how & 8)
		ring_bell(h);
}

static void step_reap(struct hostile *h)
{
	uint32_t wait = u8(), i = 0;
	struct kv_cqe c;

	if (wait < 64 && !raw_is_dead(&h->r) && kv_ring_avail(&h->r.cq) == 0) {
		struct pollfd p = { .fd = h->r.sock, .events = POLLIN };

		kv_ring_will_sleep(&h->r.hdr->cq_need_wakeup);
		poll(&p, 1, 1);
	}
	while (i++ < 64 && kv_ring_avail(&h->r.cq) > 0) {
		c = h->r.cqes[kv_ring_at(&h->r.cq, 0)];
		kv_ring_consume(&h->r.cq, 1);
		if (c.res > 0 || c.reserved[0] || c.reserved[1])
			die("a cqe that makes no sense");
		for (uint32_t k = 0; k < c.nr && c.out_bytes == 8 * c.nr && k < 32; k++)
			memcpy(&h->seen[h->nr_seen++ % MAX_SEEN], h->r.data + 4096 + 8 * k, 8);
	}
}

/* One of the indices and flags of the header; relative, absolute or by a byte. */
static void step_index(struct hostile *h)
{
	struct kv_shm_header *s = h->r.hdr;
	uint32_t *const field[] = { &s->sq_tail, &s->cq_head, &s->cq_need_wakeup,
				    &s->sq_need_wakeup, &s->sq_head, &s->cq_tail, &s->events,
				    &s->dead };
	uint32_t how = u8(), v = how & 8 ? u32() : u8();

	if (how & 16)
		v += __atomic_load_n(field[how & 7], __ATOMIC_RELAXED);
	__atomic_store_n(field[how & 7], v, __ATOMIC_SEQ_CST);
	if (how & 32)
		ring_bell(h);
}

static void step_poke(struct hostile *h)
{
	uint32_t at = u32(), n = u8() & 127;

	for (uint32_t i = 0; i < n; i++)
		h->r.shm[(at + i) % h->r.w.shm_bytes] = (uint8_t)u8();
}

/* Its size is sealed; holes and writes are not. */
static void step_memfd(struct hostile *h)
{
	uint32_t how = u8(), off = u32() % (1u << 20);

	if (ftruncate(h->r.fds[0], off) == 0 && off != h->r.w.shm_bytes)
		die("the session's memory can be resized");
	if (how & 1)
		fallocate(h->r.fds[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off & ~4095u,
			  PAGE);
	else
		(void)!pwrite(h->r.fds[0], &how, sizeof(how), off % h->r.w.shm_bytes);
}

/* ---- hostile: the admin socket ------------------------------------------------------------- */

static void step_admin(void)
{
	struct kv_admin_request q = { KV_ADMIN_MAGIC, KV_ABI_VERSION, u8() & 7, 0 };
	uint32_t how = u8();
	uint8_t packet[64];
	char path[CONTROL_PATH_BYTES];
	int fd;

	snprintf(path, sizeof(path), "%.101s.admin", w.d.path);
	fd = raw_connect(path);
	if (fd < 0)
		die("cannot connect to the admin socket: %d", fd);
	memset(packet, 0, sizeof(packet));
	memcpy(packet, &q, sizeof(q));
	if (how & 128)
		packet[u8() % sizeof(q)] = (uint8_t)u8();
	raw_send(fd, packet, how & 64 ? u8() % sizeof(packet) : sizeof(q),
		 how & 32 ? &w.good.r.sock : NULL);
	if (how & 16)
		raw_send(fd, packet, sizeof(q), NULL);
	close(fd);
}

/* ---- the program --------------------------------------------------------------------------- */

typedef void step_fn(struct hostile *);

static void step_die(struct hostile *h)
{
	close_hostile(h);
	kill_process(&h->process);
}

static void step(void)
{
	static step_fn *const steps[] = {
		step_packet, step_receive, step_entry, step_entry, step_reap, step_index,
		step_poke, step_eventfd, step_memfd,
	};
	uint32_t cmd = u8(), kind = (cmd >> 1) & 15;
	struct hostile *h = &w.h[cmd & 1];

	if (kind == 9)
		step_admin();
	else if (kind == 10)
		leave(h);
	else if (kind == 11)
		step_die(h);
	else if (kind >= 12 || !h->open)
		step_open(h);
	else
		steps[kind](h);
}

static uint32_t count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	uint32_t n = 0;

	if (!dir)
		die("no /proc");
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void ask(uint32_t cmd, void *record, size_t len)
{
	int ret = raw_admin(w.d.path, cmd, record, len);

	if (ret != 1)
		die("the admin socket answers %u with %d", cmd, ret);
}

/* As it was: only the honest client, which holds nothing. */
static bool at_rest(void)
{
	struct kv_admin_meminfo m = { 0 };
	struct kv_admin_status s = { 0 };

	ask(KV_ADMIN_STATUS, &s, sizeof(s));
	ask(KV_ADMIN_MEMINFO, &m, sizeof(m));
	return s.nr_sessions == 1 && s.nr_engines == 1 && !m.held_bytes && !m.quarantined_bytes &&
	       !m.leased_bytes && !m.reserved_bytes;
}

static void start(void)
{
	char err[256];

	if (raw_daemon_prepare(&w.d))
		die("no folder for a server");
	w.d.control.nr_devices = 0;
	if (control_set(&w.d.control, "device", "host:16M", err, sizeof(err)) ||
	    control_set(&w.d.control, "data_bytes", "64K", err, sizeof(err)) ||
	    control_set(&w.d.control, "ring_entries", "32", err, sizeof(err)) ||
	    control_set(&w.d.control, "max_sessions", "100", err, sizeof(err)) ||
	    control_set(&w.d.control, "spin_us", "5", err, sizeof(err)) ||
	    control_set(&w.d.control, "hello_ms", "60000", err, sizeof(err)) ||
	    raw_daemon_start(&w.d))
		die("no server");
	honest_open();
}

static void stop(void)
{
	if (!w.d.server)
		return;
	honest_close();
	raw_daemon_stop(&w.d);
}

static void run_script(void)
{
	for (uint32_t n = 0; n < MAX_STEPS && w.in < w.end; n++) {
		step();
		if (n % HONEST_EVERY == 0)
			honest_round();
	}
	for (uint32_t i = 0; i < 2; i++)
		step_die(&w.h[i]);
	while (w.nr_procs)
		kill_process(&w.procs[--w.nr_procs]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static bool ready;
	struct kv_admin_status s;
	uint32_t fds;

	if (!ready) {
		log_init(LOG_LEVEL_ERROR);
		signal(SIGPIPE, SIG_IGN);
		sem_init(&next_peer.accepted, 0, 0);
		w.h[0].process = w.h[1].process = -1;
		atexit(stop);
		ready = true;
	}
	if (w.inputs++ % RESTART_EVERY == 0) {
		stop();
		start();
	}
	honest_round();
	fds = count_fds();
	w.in = data;
	w.end = data + size;
	run_script();
	honest_round();
	if (!RAW_EVENTUALLY(at_rest()))
		die("the dead still own something");
	ask(KV_ADMIN_CHECK, &s, sizeof(s));
	if (!RAW_EVENTUALLY(count_fds() <= fds))
		die("file descriptors leak: %u, %u before", count_fds(), fds);
	return 0;
}
