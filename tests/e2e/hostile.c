// SPDX-License-Identifier: Apache-2.0
/* hostile KVD CHURN SOCKET DIR SEED: the handshake, the socket, the rings and their memory */
#include "hostile.h"

/* ---- handshake ----------------------------------------------------------------------------- */

static void spoil_magic(struct kv_msg_hello *h)
{
	h->magic ^= 1;
}
static void spoil_version(struct kv_msg_hello *h)
{
	h->version = 2;
}
static void spoil_version0(struct kv_msg_hello *h)
{
	h->version = 0;
}
static void spoil_type(struct kv_msg_hello *h)
{
	h->type = KV_MSG_WELCOME;
}
static void spoil_features(struct kv_msg_hello *h)
{
	h->features = 1ull << 63;
}
static void spoil_flags(struct kv_msg_hello *h)
{
	h->flags = 2;
}
static void spoil_reserved(struct kv_msg_hello *h)
{
	h->reserved[4] = 1;
}
static void spoil_rank(struct kv_msg_hello *h)
{
	h->rank = 1;
}
static void spoil_big_rank(struct kv_msg_hello *h)
{
	h->flags = 1;
	h->rank = UINT32_MAX;
}
static void spoil_token(struct kv_msg_hello *h)
{
	h->flags = KV_HELLO_MEMBER;
}
static void spoil_name_end(struct kv_msg_hello *h)
{
	memset(h->name, 'x', sizeof(h->name));
}
static void spoil_name_none(struct kv_msg_hello *h)
{
	memset(h->name, 0, sizeof(h->name));
}
static void spoil_name_line(struct kv_msg_hello *h)
{
	h->name[1] = '\n';
}
static void spoil_name_tail(struct kv_msg_hello *h)
{
	h->name[31] = 'x';
}
static void spoil_nothing(struct kv_msg_hello *h)
{
	(void)h;
}

static const struct bad_hello {
	const char *name;
	void (*spoil)(struct kv_msg_hello *);
	int bytes; /* more or less than a hello */
	bool fd;
} bad_hellos[] = {
	{ "magic", spoil_magic, 0, false },
	{ "version 2", spoil_version, 0, false },
	{ "version 0", spoil_version0, 0, false },
	{ "type", spoil_type, 0, false },
	{ "features", spoil_features, 0, false },
	{ "flags", spoil_flags, 0, false },
	{ "reserved", spoil_reserved, 0, false },
	{ "rank of a lead", spoil_rank, 0, false },
	{ "rank of a member", spoil_big_rank, 0, false },
	{ "unknown token", spoil_token, 0, false },
	{ "name without end", spoil_name_end, 0, false },
	{ "no name", spoil_name_none, 0, false },
	{ "name of two lines", spoil_name_line, 0, false },
	{ "name with a tail", spoil_name_tail, 0, false },
	{ "one byte short", spoil_nothing, -1, false },
	{ "one byte long", spoil_nothing, 1, false },
	{ "4 bytes", spoil_nothing, -92, false },
	{ "a file descriptor", spoil_nothing, 0, true },
};
static const struct bad_hello *bad_hello;

static void attack_hello(void)
{
	struct {
		struct kv_msg_hello h;
		char more[8];
	} m = { .h = hello_of("hostile", NULL) };
	struct kv_msg_welcome w;
	int fds[3], sock = dial(sock_path);

	bad_hello->spoil(&m.h);
	MUST(send_fd(sock, &m, sizeof(m.h) + (size_t)bad_hello->bytes, bad_hello->fd ? 0 : -1));
	MUST(hear(sock, &w, sizeof(w), fds) == sizeof(w));
	MUST(w.type == KV_MSG_WELCOME && w.result < 0 && fds[0] < 0);
	MUST(w.text[0] && memchr(w.text, 0, sizeof(w.text)));
	MUST(hear(sock, &w, sizeof(w), fds) == 0);
}

static void attack_empty_hello(void)
{
	struct kv_msg_welcome w;
	int fds[3], sock = dial(sock_path);

	MUST(send_fd(sock, &w, 0, -1));
	MUST(hung_up(sock));
	MUST(hear(sock, &w, sizeof(w), fds) <= (ssize_t)sizeof(w));
}

static void attack_silence(void)
{
	int sock = dial(sock_path);

	MUST(sock >= 0 && hung_up(sock));
}

/* A stranger's silent connections, by the thousand, leave room for others. */
static void attack_connections(void)
{
	struct rlimit lim = { 0 };
	struct client c;
	int held, ready[2];
	char byte;
	pid_t pid;

	MUST(pipe(ready) == 0);
	pid = fork();
	if (!pid) {
		getrlimit(RLIMIT_NOFILE, &lim);
		lim.rlim_cur = lim.rlim_max;
		setrlimit(RLIMIT_NOFILE, &lim);
		become(STRANGER);
		for (held = 0; held < 3000 && dial(sock_path) >= 0; held++)
			;
		MUST(write(ready[1], "x", 1) == 1);
		pause();
	}
	MUST(read(ready[0], &byte, 1) == 1);
	if (root)
		MUST(join(&c) == 0 && nop(&c) == 0);
	MUST(ask_at(sock_path, KV_ADMIN_STATUS, &(struct kv_admin_status){ 0 },
		    sizeof(struct kv_admin_status), 1, WAIT_MS) == 1);
	kill(pid, SIGKILL);
	status_of(pid);
}

static void attack_sessions(void)
{
	static struct client c[300];
	int n = 0, rc;

	become(STRANGER);
	while ((rc = join(&c[n])) == 0 && ++n < 300)
		;
	MUST(rc == -EUSERS && n >= 8);
	MUST(strstr(c[n].w.text, "max_sessions_per_uid"));
	leave(&c[0]);
	MUST(nop(&c[1]) == 0);
}

/* Many ranks that start together are no attack. */
static void attack_burst(void)
{
	pid_t pid[30];
	int go[2], bad = 0;
	char byte;

	MUST(pipe(go) == 0);
	for (int i = 0; i < 30; i++) {
		pid[i] = fork();
		if (!pid[i]) {
			struct client c;

			close(go[1]);
			if (read(go[0], &byte, 1) != 0 || join(&c) || nop(&c))
				_exit(1);
			leave(&c);
			_exit(0);
		}
	}
	close(go[1]);
	for (int i = 0; i < 30; i++)
		bad += status_of(pid[i]) != 0;
	if (bad)
		printf("# %d of 30 honest clients were turned away\n", bad);
	MUST(!bad);
}

/* ---- the socket of a session --------------------------------------------------------------- */

static void attack_hello_twice(void)
{
	struct kv_msg_hello h = hello_of("again", NULL);
	struct client c;

	MUST(join(&c) == 0 && send_fd(c.sock, &h, sizeof(h), -1));
	must_end(&c);
}

static void attack_import_fd(void)
{
	const struct kv_msg_import m = { .type = KV_MSG_IMPORT, .extent = 1 };
	struct client c;

	MUST(join(&c) == 0 && send_fd(c.sock, &m, sizeof(m), c.shm));
	must_end(&c);
}

static void attack_bye_reserved(void)
{
	const struct kv_msg_bye m = { .type = KV_MSG_BYE, .reserved = 1 };
	struct client c;

	MUST(join(&c) == 0 && send_fd(c.sock, &m, sizeof(m), -1));
	must_end(&c);
}

static void attack_big_packet(void)
{
	static char junk[65536];
	struct client c;

	for (size_t i = 0; i < sizeof(junk); i++)
		junk[i] = (char)dice();
	MUST(join(&c) == 0 && send_fd(c.sock, junk, sizeof(junk), -1));
	must_end(&c);
}

static void attack_import_ids(void)
{
	static const uint32_t bad[] = { 0, 65, 129, 1u << 20, UINT32_MAX };
	struct kv_msg_import m = { .type = KV_MSG_IMPORT, .extent = 1, .reserved = 1 };
	struct kv_msg_extent x;
	struct client c;
	int fds[3];

	MUST(join(&c) == 0);
	for (unsigned int i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		MUST(import(&c, bad[i], &x) < 0 && unimport(&c, bad[i]) < 0);
	MUST(send_fd(c.sock, &m, sizeof(m), -1) && hear(c.sock, &x, sizeof(x), fds) == sizeof(x));
	MUST(x.result == -EINVAL && fds[0] < 0);
	/* What others own: the bystander's, a private cache of the same tenant. */
	for (uint32_t e = 1; e < 64; e++)
		MUST(import(&c, e, &x) < 0);
}

/* Fds pile up in a socket that nobody reads. */
static void attack_import_flood(void)
{
	struct kv_msg_import m = { .type = KV_MSG_IMPORT };
	struct pollfd p = { .events = POLLOUT };
	struct client c;
	uint64_t id;
	uint32_t cache, i = 0;
	pid_t pid = fork();

	if (pid) {
		MUST(status_of(pid) == 128 + SIGKILL);
		return;
	}
	MUST(join(&c) == 0);
	cache = open_cache(&c, 0, PAGE_BYTES);
	MUST(alloc_pages(&c, cache, 1, &id) == 0);
	p.fd = c.sock;
	m.extent = extent_of(id);
	while (i++ < 20000 && poll(&p, 1, 200) > 0)
		MUST(send(c.sock, &m, sizeof(m), MSG_DONTWAIT) > 0 || errno == EAGAIN);
	MUST(i > 64 && nop(&c) == 0);
	kill(getpid(), SIGKILL);
}

/* ---- ring indices -------------------------------------------------------------------------- */

static uint32_t tail_step;

static void attack_tail(void)
{
	struct client c;

	MUST(join(&c) == 0 && nop(&c) == 0);
	__atomic_store_n(&c.hdr->sq_tail, c.sq.mine + tail_step, __ATOMIC_RELEASE);
	ring_bell(&c);
	must_end(&c);
}

static void attack_head(void)
{
	struct client c;

	MUST(join(&c) == 0 && nop(&c) == 0);
	__atomic_store_n(&c.hdr->cq_head, c.cq.mine + tail_step, __ATOMIC_RELEASE);
	push(&c, &(struct kv_sqe){ .op = KV_OP_NOP });
	must_end(&c);
}

/* A full completion ring stops its own session and nothing else. */
static void attack_cq_full(void)
{
	struct client c;
	struct kv_cqe cqe;
	uint32_t n;

	MUST(join(&c) == 0);
	n = c.w.sq_entries;
	for (int round = 0; round < 2; round++)
		for (uint32_t i = 0; i < n; i++) {
			while (kv_ring_room(&c.sq) <= 0)
				sched_yield();
			push(&c, &(struct kv_sqe){ .op = KV_OP_NOP, .user_data = i });
		}
	for (uint32_t i = 0; i < 2 * n; i++)
		MUST(take(&c, &cqe) && cqe.user_data == i % n);
}

/* ---- entries ------------------------------------------------------------------------------- */

static uint64_t nasty(const struct client *c)
{
	const uint64_t v[] = { 0,
			       0,
			       0,
			       1,
			       2,
			       7,
			       8,
			       64,
			       4096,
			       c->w.data_bytes - 8,
			       c->w.data_bytes,
			       c->w.data_bytes + 1,
			       UINT32_MAX,
			       1ull << 31,
			       1ull << 32,
			       1ull << 63,
			       UINT64_MAX,
			       UINT64_MAX - 7,
			       dice(),
			       dice() & 0xff };

	return v[dice() % (sizeof(v) / sizeof(v[0]))];
}

/* Half of the entries are all noise; the others are right but for one or two fields. */
static struct kv_sqe noise(const struct client *c, uint32_t cache)
{
	struct kv_sqe s = { .op = (uint8_t)(dice() % KV_NR_OPS), .cache = cache };
	uint64_t fields = dice() & 1 ? UINT64_MAX : 1ull << dice() % 11 | 1ull << dice() % 11;

	if (s.op == KV_OP_FREE || s.op == KV_OP_ALLOC)
		s.nr = (uint32_t)(dice() % 9);
	if (s.op == KV_OP_LOOKUP || s.op == KV_OP_COMMIT || s.op == KV_OP_FREE ||
	    s.op == KV_OP_CACHE_OPEN || s.op == KV_OP_UNLEASE)
		s.in_bytes =
			s.op == KV_OP_CACHE_OPEN ? sizeof(struct kv_cache_desc) : 8 * s.nr + 64;
	s.out_off = OUT_OFF;
	s.out_bytes = dice() & 1 ? 0 : 65536;
	if (fields & 1)
		s.op = (uint8_t)nasty(c);
	if (fields & 2)
		s.flags = (uint8_t)nasty(c);
	if (fields & 4)
		s.group = (uint16_t)nasty(c);
	if (fields & 8)
		s.cache = (uint32_t)nasty(c);
	if (fields & 16)
		s.id = (uint32_t)nasty(c);
	if (fields & 32)
		s.nr = (uint32_t)nasty(c);
	if (fields & 64)
		s.arg = nasty(c);
	if (fields & 128)
		s.in_off = nasty(c);
	if (fields & 256)
		s.out_off = nasty(c);
	if (fields & 512)
		s.in_bytes = (uint32_t)nasty(c);
	if (fields & 1024)
		s.out_bytes = (uint32_t)nasty(c);
	if (fields == UINT64_MAX && dice() & 1)
		s.reserved = nasty(c);
	if (s.op == KV_OP_ALLOC && s.arg < 1ull << 32)
		s.arg &= 3; /* else it may wait for weeks */
	if (s.op == KV_OP_RESERVE)
		s.arg &= ~(uint64_t)0xfffff;
	return s;
}

static void stir(const struct client *c)
{
	for (int i = 0; i < 64; i++) {
		uint64_t at = dice() % (c->w.data_bytes / 8), v = nasty(c);

		memcpy(c->data + (i & 1 ? at % 64 : at) * 8, &v, sizeof(v));
	}
}

/* Each entry gets its one answer. */
static void attack_noise(void)
{
	struct client c;
	struct kv_cqe cqe;
	uint64_t id[8], sent = 0, got = 0;
	uint32_t cache;

	MUST(join(&c) == 0);
	cache = open_cache(&c, 7, 64);
	MUST(cache && alloc_pages(&c, cache, 8, id) == 0);
	while (got < 100000) {
		stir(&c);
		for (int i = 0; i < 64; i++, sent++) {
			struct kv_sqe s = noise(&c, cache);

			s.user_data = sent;
			push(&c, &s);
		}
		for (int i = 0; i < 64; i++, got++)
			MUST(take(&c, &cqe) && cqe.user_data < sent && cqe.res <= 0 &&
			     cqe.out_bytes <= c.w.data_bytes);
	}
	MUST(nop(&c) == 0);
}

static void attack_edges(void)
{
	struct client c;
	uint64_t d;

	MUST(join(&c) == 0);
	d = c.w.data_bytes;
	const struct {
		uint64_t off;
		uint32_t bytes;
		bool fits;
	} edge[] = {
		{ d, 0, true },
		{ d - 32, 32, true },
		{ d - 31, 32, false },
		{ d, 1, false },
		{ d + 1, 0, false },
		{ d - 1, 2, false },
		{ 0, (uint32_t)d, true },
		{ 0, (uint32_t)d + 1, false },
		{ 0, UINT32_MAX, false },
		{ UINT64_MAX, 0, false },
		{ UINT64_MAX, 1, false },
		{ UINT64_MAX - 31, 32, false },
		{ 1ull << 63, 32, false },
		{ UINT64_MAX - UINT32_MAX + 1, UINT32_MAX, false },
		{ 1ull << 32, 32, false },
	};

	for (unsigned int i = 0; i < sizeof(edge) / sizeof(edge[0]); i++) {
		struct kv_cqe out = call(&c, (struct kv_sqe){ .op = KV_OP_EVENTS,
							      .out_off = edge[i].off,
							      .out_bytes = edge[i].bytes });
		struct kv_cqe in = call(&c, (struct kv_sqe){ .op = KV_OP_UNLEASE,
							     .in_off = edge[i].off,
							     .nr = edge[i].bytes / 4,
							     .in_bytes = edge[i].bytes });

		MUST(edge[i].fits ? out.res == 0
				  : out.res == -EINVAL && out.reason == KV_BAD_ENTRY);
		MUST(edge[i].fits || (in.res == -EINVAL && in.reason == KV_BAD_ENTRY));
	}
	for (uint32_t op = 0; op < KV_NR_OPS; op++)
		MUST(call(&c, (struct kv_sqe){ .op = (uint8_t)op, .reserved = 1 }).res < 0);
	MUST(call(&c, (struct kv_sqe){ .op = KV_OP_STAT, .out_off = d - 96, .out_bytes = 96 })
		     .res == 0);
}

/* ---- shared memory that moves -------------------------------------------------------------- */

static volatile bool flipping;

static void *flip(void *arg)
{
	const struct client *c = arg;
	uint64_t x = rng | 1;

	while (flipping) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		/* the counts at the front, the entries' sizes, now and then anything */
		((volatile uint32_t *)c->data)[x % 8] = (uint32_t)(x >> 40);
		((volatile uint32_t *)c->data)[x % 8] = (uint32_t)(x >> 60);
		((volatile uint8_t *)c->sqes)[x % (c->w.sq_entries * 64)] ^= (uint8_t)(x >> 20);
		((volatile uint8_t *)c->data)[x % 65536] ^= (uint8_t)(x >> 30);
	}
	return NULL;
}

static void attack_flip(void)
{
	struct client c;
	struct kv_cqe cqe;
	pthread_t thread;
	uint64_t id[4];
	uint32_t cache;

	MUST(join(&c) == 0);
	cache = open_cache(&c, 7, PAGE_BYTES);
	MUST(cache && alloc_pages(&c, cache, 4, id) == 0);
	flipping = true;
	MUST(pthread_create(&thread, NULL, flip, &c) == 0);
	for (int i = 0; i < 20000; i++) {
		static const uint8_t op[] = { KV_OP_LOOKUP, KV_OP_COMMIT, KV_OP_CACHE_OPEN,
					      KV_OP_FREE };
		struct kv_sqe s = { .op = op[i & 3],
				    .in_bytes = (uint32_t)(dice() % 512),
				    .out_off = OUT_OFF,
				    .out_bytes = 65536 };

		s.cache = s.op == KV_OP_LOOKUP || s.op == KV_OP_COMMIT ? cache : 0;
		push(&c, &s);
		/* A flipped entry may be an allocation that waits: no more than that. */
		if (i % 32 == 31)
			for (int j = 0; j < 32 && kv_ring_avail(&c.cq) > 0; j++)
				take(&c, &cqe);
		while (kv_ring_room(&c.sq) <= 0 && kv_ring_avail(&c.cq) > 0)
			take(&c, &cqe);
		if (kv_ring_room(&c.sq) <= 0)
			break;
	}
	flipping = false;
	pthread_join(thread, NULL);
}

static void *punch(void *arg)
{
	const struct client *c = arg;

	while (flipping)
		if (fallocate(c->shm, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			      (off_t)c->w.shm_bytes))
			break;
	return NULL;
}

/* The file cannot be resized. Holes may be punched: they read as zero and fault nobody. */
static void attack_memfd(void)
{
	struct client c, other;
	pthread_t thread;

	MUST(join(&c) == 0 && join(&other) == 0);
	MUST(ftruncate(c.shm, 0) < 0 && errno == EPERM);
	MUST(ftruncate(c.shm, (off_t)c.w.shm_bytes * 2) < 0 && errno == EPERM);
	MUST(fallocate(c.shm, 0, 0, (off_t)c.w.shm_bytes * 2) < 0 && errno == EPERM);
	MUST(fcntl(c.shm, F_ADD_SEALS, F_SEAL_WRITE) < 0 && errno == EPERM);
	MUST(fcntl(c.shm, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) < 0 && errno == EPERM);
	flipping = true;
	MUST(pthread_create(&thread, NULL, punch, &c) == 0);
	for (int i = 0; i < 2000; i++) {
		__atomic_store_n(&c.hdr->sq_tail, (uint32_t)dice() % 3, __ATOMIC_RELEASE);
		ring_bell(&c);
		if (i % 100 == 0)
			MUST(nop(&other) == 0);
	}
	flipping = false;
	pthread_join(thread, NULL);
	madvise(c.base, c.w.shm_bytes, MADV_REMOVE);
	MUST(nop(&other) == 0);
}

/* ---- eventfds ------------------------------------------------------------------------------ */

static void attack_full_bell(void)
{
	const uint64_t full = EVENTFD_FULL;
	struct client c;
	uint64_t count;

	MUST(join(&c) == 0);
	MUST(write(c.sq_fd, &full, sizeof(full)) == sizeof(full));
	for (int i = 0; i < 1000; i++)
		ring_bell(&c);
	MUST(read(c.sq_fd, &count, sizeof(count)) == sizeof(count) && nop(&c) == 0);
}

/* Reading the daemon's bell away, as it rings. */
static void attack_stolen_bell(void)
{
	struct client c;
	uint64_t count;

	MUST(join(&c) == 0);
	for (int i = 0; i < 500; i++) {
		struct kv_cqe cqe;

		push(&c, &(struct kv_sqe){ .op = KV_OP_NOP });
		if (read(c.sq_fd, &count, sizeof(count)) < 0)
			MUST(errno == EAGAIN);
		MUST(take(&c, &cqe));
	}
}

/* The fds are shared descriptions: the client can make them block. */
static void attack_blocking_bell(void)
{
	const uint64_t full = EVENTFD_FULL;
	struct client c[8], other;
	uint32_t answered = 0;

	for (int k = 0; k < 8; k++) {
		MUST(join(&c[k]) == 0);
		MUST(fcntl(c[k].cq_fd, F_SETFL, 0) == 0 && fcntl(c[k].sq_fd, F_SETFL, 0) == 0);
		MUST(write(c[k].cq_fd, &full, sizeof(full)) == sizeof(full));
	}
	MUST(join(&other) == 0);
	for (int i = 0; i < 200; i++) {
		for (int k = 0; k < 8; k++) {
			c[k].hdr->cq_need_wakeup = 1;
			push(&c[k], &(struct kv_sqe){ .op = KV_OP_NOP });
		}
		MUST(nop(&other) == 0);
	}
	for (uint64_t until = now_ms() + WAIT_MS; answered < 8 * 200 && now_ms() < until;
	     sched_yield())
		for (int k = 0; k < 8; k++)
			if (kv_ring_avail(&c[k].cq) > 0) {
				kv_ring_consume(&c[k].cq, 1);
				answered++;
			}
	MUST(answered == 8 * 200);
}

/* ---- the list ------------------------------------------------------------------------------ */

static const struct {
	const char *name;
	void (*fn)(void);
} attacks[] = {
	{ "an empty hello", attack_empty_hello },
	{ "no hello at all", attack_silence },
	{ "3000 silent connections", attack_connections },
	{ "sessions up to the limit", attack_sessions },
	{ "30 honest clients at once", attack_burst },
	{ "hello twice", attack_hello_twice },
	{ "a file descriptor with an import", attack_import_fd },
	{ "a goodbye with a reserved field", attack_bye_reserved },
	{ "a packet of 64 KiB of noise", attack_big_packet },
	{ "imports of what there is not, or is another's", attack_import_ids },
	{ "imports without reading the answers", attack_import_flood },
	{ "a full completion ring", attack_cq_full },
	{ "100000 entries of noise", attack_noise },
	{ "offsets and sizes at the edges", attack_edges },
	{ "data that changes while it is read", attack_flip },
	{ "resizing and punching the session's memory", attack_memfd },
	{ "a submission eventfd at its maximum", attack_full_bell },
	{ "the daemon's bell read away", attack_stolen_bell },
	{ "completion eventfds that block", attack_blocking_bell },
};

static void run_hellos(const char *only)
{
	char name[80];

	for (unsigned int i = 0; i < sizeof(bad_hellos) / sizeof(bad_hellos[0]); i++) {
		bad_hello = &bad_hellos[i];
		snprintf(name, sizeof(name), "malformed hello: %s", bad_hello->name);
		run(name, attack_hello, only);
	}
}

static void run_indices(const char *only)
{
	const uint32_t step[] = { 257, UINT32_MAX, (uint32_t)dice() | 1u << 30 };
	static const char *const how[] = { "by entries + 1", "by -1", "somewhere" };
	char name[80];

	for (unsigned int i = 0; i < 3; i++) {
		tail_step = step[i];
		snprintf(name, sizeof(name), "the submission tail jumps %s", how[i]);
		run(name, attack_tail, only);
	}
	tail_step = 1;
	run("the completion head passes its tail", attack_head, only);
}

static void all(const char *only)
{
	run_hellos(only);
	run_indices(only);
	for (unsigned int i = 0; i < sizeof(attacks) / sizeof(attacks[0]); i++)
		run(attacks[i].name, attacks[i].fn, only);
}

int main(int argc, char **argv)
{
	return hostile_main(argc, argv, all);
}
