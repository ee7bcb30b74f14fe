// SPDX-License-Identifier: Apache-2.0
/* dev_host: extents exist, are bounded, cannot be written through a reader's descriptor, and
 * nothing leaks however the device ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/dev.h"

#define MIB		(1ull << 20)
#define DEADLINE_MS	20000

static int nr_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static struct dev_completion wait_one(struct dev *dev)
{
	struct pollfd p = { .fd = dev->fd, .events = POLLIN };
	struct dev_completion c;

	while (!dev->ops->reap(dev, &c))
		assert_int_equal(poll(&p, 1, DEADLINE_MS), 1);
	return c;
}

static struct dev_completion call(struct dev *dev, enum dev_op op, uint32_t handle,
				  uint64_t offset, uint64_t bytes)
{
	static uint64_t user_data;
	struct dev_request r = {
		.op = op, .handle = handle, .offset = offset, .bytes = bytes,
		.user_data = ++user_data,
	};
	struct dev_completion c;

	assert_int_equal(dev->ops->submit(dev, &r), 0);
	c = wait_one(dev);
	assert_int_equal(c.user_data, r.user_data);
	return c;
}

static uint32_t make(struct dev *dev, uint64_t bytes)
{
	struct dev_completion c = call(dev, DEV_CREATE, 0, 0, bytes);

	assert_int_equal(c.result, 0);
	assert_int_not_equal(c.handle, 0);
	return c.handle;
}

static struct dev *open_dev(uint32_t max_extents)
{
	struct dev *dev = NULL;

	assert_int_equal(dev_host_create(&dev, max_extents), 0);
	return dev;
}

static bool readable(struct dev *dev)
{
	struct pollfd p = { .fd = dev->fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

static void test_create_is_backed(void **state)
{
	struct dev *dev = open_dev(4);
	uint32_t h = make(dev, 4 * MIB);
	int fd = dev->ops->export(dev, h, true);
	struct stat st;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, 4 * MIB);
	assert_true((uint64_t)st.st_blocks * 512 >= 4 * MIB);
	assert_int_equal(st.st_mode & 07777, 0400);
	assert_int_equal(ftruncate(fd, 2 * MIB), -1);
	assert_int_equal(ftruncate(fd, 8 * MIB), -1);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	close(fd);
	dev->ops->destroy(dev);
}

static void test_two_views(void **state)
{
	struct dev *dev = open_dev(4);
	uint32_t h = make(dev, 2 * MIB);
	int w = dev->ops->export(dev, h, true), r = dev->ops->export(dev, h, false);
	char *pw, *pr;

	(void)state;
	assert_true(w >= 0 && r >= 0);
	assert_int_equal(fcntl(r, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_int_equal(fcntl(r, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	assert_ptr_equal(mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, r, 0), MAP_FAILED);
	assert_int_equal(errno, EACCES);
	pw = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, w, 0);
	pr = mmap(NULL, 2 * MIB, PROT_READ, MAP_SHARED, r, 0);
	assert_true(pw != MAP_FAILED && pr != MAP_FAILED);
	assert_int_equal(mprotect(pr, 4096, PROT_READ | PROT_WRITE), -1);
	assert_int_equal(pr[12345], 0);
	pw[12345] = 'x';
	assert_int_equal(pr[12345], 'x');
	assert_int_equal(write(r, "y", 1), -1);
	munmap(pw, 2 * MIB);
	munmap(pr, 2 * MIB);
	close(w);
	close(r);
	dev->ops->destroy(dev);
}

static int reopen(int fd, int flags)
{
	char path[40];
	int got;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	got = open(path, flags | O_CLOEXEC);
	return got < 0 ? -errno : got;
}

static int drop_caps(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2] = { 0 };

	return (int)syscall(SYS_capset, &head, none);
}

/* Exit status of a child that tries to reopen; bit set = what should have happened did not. */
static int try_as(uid_t uid, int control, int r, bool owner)
{
	int bad = 0;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid) {
		if (setresuid(uid, uid, uid) || drop_caps() || prctl(PR_SET_DUMPABLE, 1))
			_exit(64);
		/* a file anybody may write: it shows that /proc itself does not refuse us */
		bad |= reopen(control, O_RDWR) < 0 ? 1 : 0;
		bad |= reopen(r, O_RDWR) != -EACCES ? 2 : 0;
		bad |= reopen(r, O_WRONLY) != -EACCES ? 4 : 0;
		bad |= (reopen(r, O_RDONLY) >= 0) != owner ? 8 : 0;
		bad |= !owner && fchmod(r, 0666) != -1 ? 16 : 0;
		_exit(bad);
	}
	assert_int_equal(waitpid(pid, &bad, 0), pid);
	assert_true(WIFEXITED(bad));
	return WEXITSTATUS(bad);
}

static void test_no_way_back_to_writable(void **state)
{
	struct dev *dev = open_dev(4);
	int r = dev->ops->export(dev, make(dev, 2 * MIB), false);
	int control = memfd_create("control", MFD_CLOEXEC);

	(void)state;
	assert_true(r >= 0 && control >= 0);
	assert_int_equal(fchmod(control, 0666), 0);
	assert_int_equal(try_as(getuid(), control, r, true), 0);
	if (!getuid())
		assert_int_equal(try_as(65534, control, r, false), 0);
	close(control);
	close(r);
	dev->ops->destroy(dev);
}

/* The daemon without root: the export itself must not need a capability. */
static void test_export_without_capabilities(void **state)
{
	pid_t pid = fork();
	int status;

	(void)state;
	assert_true(pid >= 0);
	if (!pid) {
		struct dev *dev;
		struct dev_completion c;
		uid_t uid = getuid() ? getuid() : 65534;
		struct dev_request req = { .op = DEV_CREATE, .bytes = 2 * MIB };
		struct pollfd p = { .events = POLLIN };

		if (setresuid(uid, uid, uid) || drop_caps() || prctl(PR_SET_DUMPABLE, 1))
			_exit(1);
		if (dev_host_create(&dev, 2) || dev->ops->submit(dev, &req))
			_exit(2);
		p.fd = dev->fd;
		if (poll(&p, 1, DEADLINE_MS) != 1 || !dev->ops->reap(dev, &c) || c.result)
			_exit(3);
		if (dev->ops->export(dev, c.handle, true) < 0)
			_exit(4);
		_exit(dev->ops->export(dev, c.handle, false) < 0 ? 5 : 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_refusals(void **state)
{
	struct dev *dev = open_dev(2);
	struct sysinfo si;
	uint64_t ram;
	uint32_t a, b;
	int fds;

	(void)state;
	assert_int_equal(sysinfo(&si), 0);
	ram = (uint64_t)si.totalram * si.mem_unit;
	fds = nr_fds();
	assert_int_equal(call(dev, DEV_CREATE, 0, 0, 0).result, -EINVAL);
	assert_int_equal(call(dev, DEV_CREATE, 0, 0, UINT64_MAX).result, -EINVAL);
	assert_int_equal(call(dev, DEV_CREATE, 0, 0, 1ull << 62).result, -ENOMEM);
	assert_int_equal(call(dev, DEV_CREATE, 0, 0, 2 * ram).result, -ENOMEM);
	assert_int_equal(call(dev, DEV_DESTROY, 1, 0, 0).result, -ENOENT);
	assert_int_equal(call(dev, DEV_DESTROY, 0, 0, 0).result, -ENOENT);
	assert_int_equal(call(dev, DEV_DESTROY, 3, 0, 0).result, -ENOENT);
	assert_int_equal(call(dev, DEV_SCRUB, UINT32_MAX, 0, 64).result, -ENOENT);
	assert_int_equal(call(dev, (enum dev_op)9, 0, 0, 0).result, -EINVAL);
	assert_int_equal(dev->ops->export(dev, 1, true), -ENOENT);
	assert_int_equal(dev->ops->export(dev, 77, false), -ENOENT);
	assert_int_equal(nr_fds(), fds);

	a = make(dev, 2 * MIB);
	b = make(dev, 2 * MIB);
	assert_int_not_equal(a, b);
	assert_int_equal(call(dev, DEV_CREATE, 0, 0, 2 * MIB).result, -ENOMEM);
	assert_int_equal(nr_fds(), fds + 2);
	assert_int_equal(call(dev, DEV_SCRUB, a, 2 * MIB, 64).result, -EINVAL);
	assert_int_equal(call(dev, DEV_SCRUB, a, 64, UINT64_MAX - 32).result, -EINVAL);
	assert_int_equal(call(dev, DEV_SCRUB, a, 0, 0).result, -EINVAL);
	assert_int_equal(call(dev, DEV_DESTROY, a, 0, 0).result, 0);
	assert_int_equal(call(dev, DEV_DESTROY, a, 0, 0).result, -ENOENT);
	assert_int_equal(nr_fds(), fds + 1);
	make(dev, 2 * MIB);
	dev->ops->destroy(dev);

	assert_int_equal(dev_host_create(&dev, 0), -EINVAL);
	assert_int_equal(dev_host_create(&dev, UINT32_MAX), -EINVAL);
}

/* The kernel refuses in the middle of a CREATE: nothing of it stays. */
static void test_create_fails_cleanly(void **state)
{
	struct dev *dev = open_dev(4);
	struct rlimit old, small;
	int fds = nr_fds();
	struct dev_completion c;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	small = (struct rlimit){ 1 * MIB, old.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	c = call(dev, DEV_CREATE, 0, 0, 2 * MIB);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	assert_int_equal(c.result, -ENOMEM);
	assert_int_equal(c.handle, 0);
	assert_int_equal(nr_fds(), fds);

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	small = (struct rlimit){ 1, old.rlim_max };	/* poll() itself wants one */
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
	c = call(dev, DEV_CREATE, 0, 0, 2 * MIB);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	assert_true(c.result < 0);
	assert_int_equal(nr_fds(), fds);
	make(dev, 2 * MIB);
	dev->ops->destroy(dev);
}

static void test_scrub(void **state)
{
	struct dev *dev = open_dev(4);
	uint32_t h = make(dev, 2 * MIB);
	int fd = dev->ops->export(dev, h, true);
	uint64_t from = 4096 + 64, to = 5 * 4096 + 192;
	struct stat st;
	uint8_t *p;

	(void)state;
	p = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(p != MAP_FAILED);
	memset(p, 0xaa, 2 * MIB);
	/* what a hostile client can do to the file we share: a hole, file status flags */
	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8192, 4096), 0);
	assert_int_equal(fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK), 0);
	assert_int_equal(call(dev, DEV_SCRUB, h, from, to - from).result, 0);
	assert_int_equal(fstat(fd, &st), 0);	/* before a look at p faults pages in */
	assert_true((uint64_t)st.st_blocks * 512 >= 2 * MIB);
	for (uint64_t i = 0; i < 2 * MIB; i++) {
		if (p[i] != (i >= from && i < to ? 0 : 0xaa))
			fail_msg("byte %llu is %#x", (unsigned long long)i, p[i]);
	}
	assert_int_equal(call(dev, DEV_SCRUB, h, 0, 2 * MIB).result, 0);
	for (uint64_t i = 0; i < 2 * MIB; i++)
		assert_int_equal(p[i], 0);
	munmap(p, 2 * MIB);
	close(fd);
	dev->ops->destroy(dev);
}

static struct dev_completion copy(struct dev *dev, uint32_t from, uint64_t offset, uint32_t to,
				  uint64_t to_offset, uint64_t bytes)
{
	struct dev_request r = {
		.op = DEV_COPY, .handle = from, .offset = offset, .to_handle = to,
		.to_offset = to_offset, .bytes = bytes, .user_data = 77,
	};
	struct dev_completion c;

	assert_int_equal(dev->ops->submit(dev, &r), 0);
	c = wait_one(dev);
	assert_int_equal(c.user_data, 77);
	return c;
}

static uint8_t *map(struct dev *dev, uint32_t handle, int *fd)
{
	uint8_t *p;

	*fd = dev->ops->export(dev, handle, true);
	p = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	assert_true(p != MAP_FAILED);
	return p;
}

static void test_copy(void **state)
{
	struct dev *dev = open_dev(4);
	uint32_t a = make(dev, 2 * MIB), b = make(dev, 2 * MIB);
	uint64_t from = 192, to = 4096 * 3 + 64, len = 256 * 1024 + 64;
	int fd_a, fd_b;
	uint8_t *pa = map(dev, a, &fd_a), *pb = map(dev, b, &fd_b);

	(void)state;
	for (uint64_t i = 0; i < 2 * MIB; i++)
		pa[i] = (uint8_t)(i * 7 + i / 4096);
	memset(pb, 0x55, 2 * MIB);
	assert_int_equal(copy(dev, a, from, b, to, len).result, 0);
	for (uint64_t i = 0; i < 2 * MIB; i++)
		if (pb[i] != (i >= to && i < to + len ? pa[from + i - to] : 0x55))
			fail_msg("byte %llu is %#x", (unsigned long long)i, pb[i]);
	/* A client's file status flags do not send it elsewhere, and its holes read as zero. */
	assert_int_equal(fcntl(fd_b, F_SETFL, O_APPEND | O_NONBLOCK), 0);
	assert_int_equal(fallocate(fd_a, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2 * MIB),
			 0);
	assert_int_equal(fallocate(fd_b, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2 * MIB),
			 0);
	pa[0] = 1;
	assert_int_equal(copy(dev, a, 0, b, 2 * MIB - 8192, 8192).result, 0);
	assert_int_equal(pb[2 * MIB - 8192], 1);
	assert_int_equal(pb[2 * MIB - 8191], 0);
	/* What does not fit, or is not there, changes nothing. */
	memset(pb, 0x66, 2 * MIB);
	assert_int_equal(copy(dev, a, 2 * MIB - 64, b, 0, 128).result, -EINVAL);
	assert_int_equal(copy(dev, a, 0, b, 2 * MIB - 64, 128).result, -EINVAL);
	assert_int_equal(copy(dev, a, UINT64_MAX - 63, b, 0, 64).result, -EINVAL);
	assert_int_equal(copy(dev, a, 0, b, 0, 0).result, -EINVAL);
	assert_int_equal(copy(dev, a, 0, a, 4096, 4096).result, -EINVAL);
	assert_int_equal(copy(dev, a, 0, 3, 0, 64).result, -ENOENT);
	assert_int_equal(copy(dev, 0, 0, b, 0, 64).result, -ENOENT);
	for (uint64_t i = 0; i < 2 * MIB; i++)
		assert_int_equal(pb[i], 0x66);
	munmap(pa, 2 * MIB);
	munmap(pb, 2 * MIB);
	close(fd_a);
	close(fd_b);
	dev->ops->destroy(dev);
}

/* A client that died or lied may still have it mapped. It reads zero and holds none of our pages:
 * else it could pin as much memory as it likes outside the pool, extent after extent, and go on
 * reading what was published there. What it stores from now on is its own, as malloc's would be,
 * and the next extent is another file. */
static void test_destroy_while_mapped(void **state)
{
	struct dev *dev = open_dev(1);
	uint32_t h = make(dev, 2 * MIB);
	int fd = dev->ops->export(dev, h, true);
	char *p = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), *q;
	struct stat st;

	(void)state;
	assert_true(p != MAP_FAILED);
	p[0] = 'a';
	assert_int_equal(call(dev, DEV_DESTROY, h, 0, 0).result, 0);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_blocks, 0);
	assert_int_equal(p[0], 0);
	close(fd);
	h = make(dev, 2 * MIB);
	fd = dev->ops->export(dev, h, true);
	p[1] = 'b';
	q = mmap(NULL, 2 * MIB, PROT_READ, MAP_SHARED, fd, 0);
	assert_true(q != MAP_FAILED);
	assert_int_equal(q[1], 0);
	munmap(q, 2 * MIB);
	munmap(p, 2 * MIB);
	close(fd);
	dev->ops->destroy(dev);
}

static void test_many(void **state)
{
	enum { N = 64, ROUNDS = 4 };
	int fds = nr_fds();
	struct dev *dev = open_dev(N);
	uint32_t handle[N];
	struct pollfd p = { .events = POLLIN };
	struct dev_completion c;

	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct dev_request r = { .op = DEV_CREATE, .bytes = 256 * 1024 };

		for (uint64_t i = 0; i < N; i++) {
			r.user_data = i;
			assert_int_equal(dev->ops->submit(dev, &r), 0);
		}
		/* unreaped completions count: the ring must hold them */
		p.fd = dev->fd;
		assert_int_equal(poll(&p, 1, DEADLINE_MS), 1);
		assert_int_equal(dev->ops->submit(dev, &r), -EAGAIN);
		for (uint64_t i = 0; i < N; i++) {
			c = wait_one(dev);
			assert_int_equal(c.user_data, i);
			assert_int_equal(c.result, 0);
			handle[i] = c.handle;
			for (uint64_t j = 0; j < i; j++)
				assert_int_not_equal(handle[j], handle[i]);
		}
		assert_false(readable(dev));
		assert_false(dev->ops->reap(dev, &c));
		assert_int_equal(nr_fds(), fds + 1 + N);
		r.op = DEV_DESTROY;
		for (uint64_t i = 0; i < N; i++) {
			r.handle = handle[i];
			assert_int_equal(dev->ops->submit(dev, &r), 0);
		}
		for (uint64_t i = 0; i < N; i++)
			assert_int_equal(wait_one(dev).result, 0);
		assert_int_equal(nr_fds(), fds + 1);
	}
	dev->ops->destroy(dev);
	assert_int_equal(nr_fds(), fds);
}

static void test_readable_until_reaped(void **state)
{
	struct dev *dev = open_dev(4);
	struct dev_request r = { .op = DEV_DESTROY, .handle = 1 };
	struct pollfd p = { .fd = dev->fd, .events = POLLIN };
	struct dev_completion c;

	(void)state;
	assert_false(readable(dev));
	assert_int_equal(dev->ops->submit(dev, &r), 0);
	assert_int_equal(poll(&p, 1, DEADLINE_MS), 1);
	assert_true(readable(dev));
	assert_true(dev->ops->reap(dev, &c));
	assert_false(readable(dev));
	dev->ops->destroy(dev);
}

static void test_shutdown_with_work_queued(void **state)
{
	int fds = nr_fds();

	(void)state;
	for (int round = 0; round < 8; round++) {
		struct dev *dev = open_dev(32);
		struct dev_request r = { .op = DEV_CREATE, .bytes = 4 * MIB };

		for (int i = 0; i < 32; i++)
			assert_int_equal(dev->ops->submit(dev, &r), 0);
		if (round & 1)
			wait_one(dev);
		dev->ops->destroy(dev);
		assert_int_equal(nr_fds(), fds);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_create_is_backed),
		cmocka_unit_test(test_two_views),
		cmocka_unit_test(test_no_way_back_to_writable),
		cmocka_unit_test(test_export_without_capabilities),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_create_fails_cleanly),
		cmocka_unit_test(test_scrub),
		cmocka_unit_test(test_copy),
		cmocka_unit_test(test_destroy_while_mapped),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_readable_until_reaped),
		cmocka_unit_test(test_shutdown_with_work_queued),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
