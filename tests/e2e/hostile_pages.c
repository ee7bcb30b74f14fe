// SPDX-License-Identifier: Apache-2.0
/* hostile_pages KVD CHURN SOCKET DIR SEED: extents, death, leaks, the daemon itself */
#include "hostile.h"

/* ---- extents ------------------------------------------------------------------------------- */

/* Two engines of one tenant with a cache in common: w has published a page, r may read it. */
static int share(struct client *w, struct client *r, uint64_t *id, struct kv_msg_extent *x)
{
	uint32_t cache;

	MUST(join(w) == 0 && join(r) == 0);
	cache = open_cache(w, 9, PAGE_BYTES);
	MUST(cache && open_cache(r, 9, PAGE_BYTES) == cache);
	MUST(alloc_pages(w, cache, 1, id) == 0 && commit_page(w, cache, 77, *id) == 0);
	return import(r, extent_of(*id), x);
}

static void attack_reader(void)
{
	struct client w, r;
	struct kv_msg_extent x;
	char path[40], *p;
	uint64_t id;
	pid_t pid;
	int fd, st;

	become(STRANGER);
	fd = share(&w, &r, &id, &x);
	MUST(fd >= 0 && !x.writable && x.bytes);
	p = mmap(NULL, x.bytes, PROT_READ, MAP_SHARED, fd, 0);
	MUST(p != MAP_FAILED);
	MUST(mprotect(p, x.bytes, PROT_READ | PROT_WRITE) < 0 && errno == EACCES);
	MUST(mmap(NULL, x.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	MUST(write(fd, "x", 1) < 0 && ftruncate(fd, 0) < 0 && madvise(p, x.bytes, MADV_REMOVE) < 0);
	MUST(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)x.bytes) < 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (root) { /* else kvd's uid is ours, and the file is our own */
		MUST(open(path, O_RDWR) < 0 && errno == EACCES);
		MUST(open(path, O_WRONLY) < 0 && errno == EACCES);
		MUST(fchmod(fd, 0600) < 0 && errno == EPERM);
	}
	pid = fork();
	if (!pid) {
		*(volatile char *)p = 1;
		_exit(0);
	}
	MUST(waitpid(pid, &st, 0) == pid && WIFSIGNALED(st) && WTERMSIG(st) == SIGSEGV);
}

static void attack_writer(void)
{
	struct client w;
	struct kv_msg_extent x;
	uint64_t id;
	uint32_t cache;
	int fd;

	become(STRANGER);
	MUST(join(&w) == 0);
	cache = open_cache(&w, 0, PAGE_BYTES);
	MUST(alloc_pages(&w, cache, 1, &id) == 0);
	fd = import(&w, extent_of(id), &x);
	MUST(fd >= 0 && x.writable);
	MUST(ftruncate(fd, 0) < 0 && errno == EPERM);
	MUST(ftruncate(fd, (off_t)x.bytes * 2) < 0 && errno == EPERM);
	MUST(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0);
	MUST(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)x.bytes) == 0);
	MUST(fcntl(fd, F_SETFL, O_APPEND) == 0 && nop(&w) == 0);
}

/* A lease on the file makes the next open of it wait for the holder: a reader that holds one must
 * not hold up the daemon. Only a process of the daemon's own uid, or root, can have it. */
static void attack_lease(void)
{
	struct kv_msg_import m = { .type = KV_MSG_IMPORT };
	struct client w, r, other;
	struct kv_msg_extent x;
	uint64_t id;
	int fd;

	signal(SIGIO, SIG_IGN);
	fd = share(&w, &r, &id, &x);
	MUST(fd >= 0 && !x.writable && join(&other) == 0 && open_cache(&other, 9, PAGE_BYTES));
	if (fcntl(fd, F_SETLEASE, F_WRLCK))
		return; /* this kernel grants none on a memfd */
	m.extent = extent_of(id);
	MUST(send_fd(other.sock, &m, sizeof(m), -1));
	if (ask_at(sock_path, KV_ADMIN_STATUS, &(struct kv_admin_status){ 0 },
		   sizeof(struct kv_admin_status), 1, 5000) != 1) {
		printf("# the daemon waits for the holder of a file lease\n");
		_exit(1);
	}
}

/* Who says "unmapped" and keeps the fd must not keep the pool's memory: a client could pin any
 * amount of it by doing so again and again. */
static void attack_keep_fd(void)
{
	struct kv_msg_extent x;
	struct stat st = { 0 };
	struct client c;
	uint64_t id, until = now_ms() + 5000;
	uint32_t cache;
	int fd;

	MUST(join(&c) == 0);
	cache = open_cache(&c, 0, PAGE_BYTES);
	MUST(alloc_pages(&c, cache, 1, &id) == 0);
	fd = import(&c, extent_of(id), &x);
	MUST(fd >= 0 && unimport(&c, extent_of(id)) == 0 && free_pages(&c, &id, 1) == 0);
	leave(&c);
	do {
		MUST(fstat(fd, &st) == 0);
		pause_ms(2);
	} while (st.st_blocks && now_ms() < until);
	if (st.st_blocks)
		printf("# the extent was given back and still holds %ld KiB\n",
		       (long)st.st_blocks / 2);
	MUST(!st.st_blocks);
}

/* ---- death --------------------------------------------------------------------------------- */

/* In a child: takes n pages of the shared cache, tells engine and ids; c: close, x: exit. */
static void hold_pages(int out, int in, uint32_t n)
{
	uint64_t id[512];
	struct client c;
	uint32_t cache;
	char what;

	MUST(join(&c) == 0);
	cache = open_cache(&c, 11, PAGE_BYTES);
	MUST(alloc_pages(&c, cache, n, id) == 0);
	MUST(write(out, &c.w.engine, 4) == 4 && write(out, id, n * 8) == (ssize_t)n * 8);
	while (read(in, &what, 1) == 1 && what == 'c')
		close(c.sock);
	_exit(0);
}

/* A closed socket is no death: what the process may have mapped stays out of use. */
static void attack_close_and_live(void)
{
	uint64_t id[100], mine[512], until = now_ms() + WAIT_MS;
	uint32_t engine, cache, granted = 0;
	struct client c;
	int up[2], down[2];
	pid_t pid;

	MUST(pipe(up) == 0 && pipe(down) == 0);
	pid = fork();
	if (!pid)
		hold_pages(up[1], down[0], 100);
	MUST(read(up[0], &engine, 4) == 4 && read(up[0], id, sizeof(id)) == sizeof(id));
	MUST(write(down[1], "c", 1) == 1);
	while (quarantined(engine) != 100 && now_ms() < until)
		pause_ms(2);
	MUST(quarantined(engine) == 100);
	MUST(join(&c) == 0);
	cache = open_cache(&c, 11, PAGE_BYTES);
	while (granted < 16384 && alloc_pages(&c, cache, 64, mine) == 0)
		for (uint32_t i = 0; i < 64; i++, granted++)
			for (uint32_t k = 0; k < 100; k++)
				MUST(mine[i] >> 24 != id[k] >> 24);
	MUST(granted && quarantined(engine) == 100);
	MUST(write(down[1], "x", 1) == 1 && status_of(pid) == 0);
	for (until = now_ms() + WAIT_MS; engine_with(engine, NULL) && now_ms() < until;)
		pause_ms(2);
	MUST(!engine_with(engine, NULL));
}

/* The process that connected dies, a child of it keeps socket, fds and mappings. What the daemon
 * can know is that the process is gone; what protects others is that an extent never reaches
 * another tenant: it goes back to the device, and the next is a new file. */
static void attack_orphaned_child(void)
{
	struct {
		uint32_t engine;
		ino_t ino;
	} told = { 0, 0 };
	struct kv_msg_extent x;
	struct client c;
	struct stat st;
	uint64_t id[64], until = now_ms() + WAIT_MS;
	uint32_t cache;
	int up[2], nr = 0, fd;
	pid_t pid, child;

	MUST(pipe(up) == 0);
	pid = fork();
	if (!pid) {
		become(STRANGER);
		MUST(join(&c) == 0);
		cache = open_cache(&c, 0, PAGE_BYTES);
		MUST(alloc_pages(&c, cache, 64, id) == 0);
		fd = import(&c, extent_of(id[0]), &x);
		MUST(fd >= 0 && fstat(fd, &st) == 0);
		told.engine = c.w.engine;
		told.ino = st.st_ino;
		child = fork();
		if (!child) {
			alarm(40);
			pause();
		}
		MUST(write(up[1], &told, sizeof(told)) == sizeof(told) &&
		     write(up[1], &child, 4) == 4);
		_exit(0);
	}
	MUST(read(up[0], &told, sizeof(told)) == sizeof(told) && read(up[0], &child, 4) == 4);
	MUST(status_of(pid) == 0);
	while (engine_with(told.engine, NULL) && now_ms() < until)
		pause_ms(2);
	MUST(!engine_with(told.engine, NULL) && join(&c) == 0);
	cache = open_cache(&c, 0, PAGE_BYTES);
	for (; nr < 200 && alloc_pages(&c, cache, 64, id) == 0; nr++) {
		fd = import(&c, extent_of(id[0]), &x);
		MUST(fd >= 0 && fstat(fd, &st) == 0 && st.st_ino != told.ino);
		close(fd);
	}
	kill(child, SIGKILL);
	MUST(nr);
}

static void attack_stopped(void)
{
	uint64_t id[10], until;
	struct client c;
	uint32_t engine;
	int up[2], down[2];
	pid_t pid;

	MUST(pipe(up) == 0 && pipe(down) == 0);
	pid = fork();
	if (!pid)
		hold_pages(up[1], down[0], 10);
	MUST(read(up[0], &engine, 4) == 4 && read(up[0], id, sizeof(id)) == sizeof(id));
	MUST(kill(pid, SIGSTOP) == 0 && join(&c) == 0);
	until = now_ms() + WAIT_MS;
	for (int i = 0; i < 2000; i++)
		MUST(nop(&c) == 0);
	MUST(now_ms() < until);
	kill(pid, SIGKILL);
	status_of(pid);
}

static void attack_member(void)
{
	struct client lead, member, outsider;
	struct kv_cqe cqe;
	int up[2];
	char byte;
	pid_t pid;

	MUST(join(&lead) == 0 && pipe(up) == 0);
	pid = fork();
	if (!pid) {
		MUST(join_at(&member, sock_path, lead.w.member_token) == 0);
		MUST(member.w.engine == lead.w.engine && member.w.member != lead.w.member);
		cqe = call(&member, (struct kv_sqe){ .op = KV_OP_ALLOC, .nr = 1, .out_bytes = 8 });
		MUST(cqe.res == -EACCES && cqe.reason == KV_NOT_LEAD);
		MUST(write(up[1], "x", 1) == 1);
		pause();
	}
	MUST(read(up[0], &byte, 1) == 1);
	if (root && !fork()) { /* a token is no use to another tenant */
		become(STRANGER);
		_exit(join_at(&outsider, sock_path, lead.w.member_token) == -EACCES ? 0 : 1);
	} else if (root) {
		int st;

		MUST(wait(&st) > 0 && st == 0);
	}
	MUST(nop(&lead) == 0 && kill(pid, SIGKILL) == 0 && status_of(pid) == 128 + SIGKILL);
	must_end(&lead);
}

/* ---- leaks ----------------------------------------------------------------------------------- */

static long rss_kib(void)
{
	char path[40], line[128];
	long kib = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", kvd_pid());
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "RssAnon: %ld kB", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib;
}

static void some_sessions(int n)
{
	struct client c;

	for (int i = 0; i < n; i++) {
		MUST(join(&c) == 0);
		if (i % 4 == 0)
			MUST(nop(&c) == 0);
		leave(&c);
	}
}

static void attack_many_sessions(void)
{
	long before, after;

	some_sessions(200);
	before = rss_kib();
	some_sessions(2000);
	after = rss_kib();
	if (after - before > 4096)
		printf("# anonymous memory grew from %ld to %ld KiB\n", before, after);
	MUST(after - before <= 4096);
}

/* ---- daemons of our own -------------------------------------------------------------------- */

/* Runs a kvd on DIR/name as STRANGER; its pid. */
static pid_t private_kvd(const char *dir, char *path, size_t len)
{
	int bin = open(kvd_path, O_RDONLY | O_CLOEXEC);
	uint64_t until = now_ms() + WAIT_MS;
	struct kv_admin_status st;
	pid_t pid;

	snprintf(path, len, "%s/own.sock", dir);
	pid = fork();
	if (!pid) {
		static char name[] = "kvd", device[] = "--device=host:16M", at[] = "--socket";
		char *argv[] = { name, device, at, path, NULL };
		int null = open("/dev/null", O_RDWR);

		become(STRANGER);
		dup2(null, 1);
		dup2(null, 2);
		fexecve(bin, argv, environ);
		_exit(127);
	}
	close(bin);
	while (ask_at(path, KV_ADMIN_STATUS, &st, sizeof(st), 1, 1000) != 1)
		if (now_ms() > until || waitpid(pid, NULL, WNOHANG))
			return -1;
		else
			pause_ms(5);
	return pid;
}

/* A client of the daemon's own uid. */
static void attack_proc(void)
{
	char path[128], buf[64];
	struct iovec local = { .iov_base = buf, .iov_len = sizeof(buf) }, remote = local;
	pid_t kvd = private_kvd(work_dir, path, sizeof(path)), pid;
	struct client c;
	int st, pidfd;

	MUST(kvd > 0);
	pid = fork();
	if (!pid) {
		become(STRANGER);
		MUST(join_at(&c, path, NULL) == 0 && nop(&c) == 0);
		snprintf(path, sizeof(path), "/proc/%d/fd", kvd);
		MUST(!opendir(path));
		for (int i = 0; i < 64; i++) {
			snprintf(path, sizeof(path), "/proc/%d/fd/%d", kvd, i);
			MUST(open(path, O_RDONLY) < 0 && errno != ENOENT);
		}
		snprintf(path, sizeof(path), "/proc/%d/mem", kvd);
		MUST(open(path, O_RDONLY) < 0);
		snprintf(path, sizeof(path), "/proc/%d/environ", kvd);
		MUST(open(path, O_RDONLY) < 0);
		MUST(ptrace(PTRACE_SEIZE, kvd, NULL, NULL) < 0);
		MUST(process_vm_readv(kvd, &local, 1, &remote, 1, 0) < 0 && errno == EPERM);
		pidfd = (int)syscall(SYS_pidfd_open, kvd, 0);
		for (int i = 0; pidfd >= 0 && i < 64; i++)
			MUST(syscall(SYS_pidfd_getfd, pidfd, i, 0) < 0);
		_exit(0);
	}
	st = status_of(pid);
	kill(kvd, SIGTERM);
	MUST(status_of(kvd) == 0 && st == 0);
}

static void attack_kill_kvd(void)
{
	struct pollfd p = { .events = POLLRDHUP };
	char path[128];
	pid_t kvd = private_kvd(work_dir, path, sizeof(path));
	struct client c;
	struct kv_cqe cqe;

	MUST(kvd > 0);
	MUST(join_at(&c, path, NULL) == 0 && nop(&c) == 0);
	kill(kvd, SIGKILL);
	MUST(status_of(kvd) == 128 + SIGKILL);
	p.fd = c.sock;
	MUST(poll(&p, 1, WAIT_MS) == 1 && p.revents & (POLLHUP | POLLRDHUP));
	push(&c, &(struct kv_sqe){ .op = KV_OP_NOP });
	MUST(!take(&c, &cqe));
}

/* Anybody who can read a directory can lock it. */
static void attack_lock(void)
{
	char path[128];
	pid_t kvd = private_kvd(work_dir, path, sizeof(path));
	uint64_t until = now_ms() + 5000;
	int st = 0, dir = open(work_dir, O_RDONLY | O_DIRECTORY);
	pid_t got = 0;

	MUST(kvd > 0 && flock(dir, LOCK_EX | LOCK_NB) == 0);
	kill(kvd, SIGTERM);
	while (!(got = waitpid(kvd, &st, WNOHANG)) && now_ms() < until)
		pause_ms(5);
	if (!got) {
		printf("# kvd does not stop while somebody holds a lock on its directory\n");
		kill(kvd, SIGKILL);
		status_of(kvd);
	}
	MUST(got == kvd && st == 0);
}

/* ---- the list ------------------------------------------------------------------------------ */

static const struct {
	const char *name;
	void (*fn)(void);
} attacks[] = {
	{ "a reader that wants to write", attack_reader },
	{ "a writer that resizes and punches its extent", attack_writer },
	{ "a file lease on an extent", attack_lease },
	{ "an extent's fd kept after its end", attack_keep_fd },
	{ "a socket closed by a process that lives", attack_close_and_live },
	{ "a dead client's child with its mappings", attack_orphaned_child },
	{ "a stopped client", attack_stopped },
	{ "a member's death is its engine's", attack_member },
	{ "2000 sessions one after the other", attack_many_sessions },
	{ "kvd's files and memory through /proc", attack_proc },
	{ "kill -9 of kvd hangs its clients up", attack_kill_kvd },
	{ "a lock on kvd's directory", attack_lock },
};

static void all(const char *only)
{
	for (unsigned int i = 0; i < sizeof(attacks) / sizeof(attacks[0]); i++)
		run(attacks[i].name, attacks[i].fn, only);
}

int main(int argc, char **argv)
{
	return hostile_main(argc, argv, all);
}
