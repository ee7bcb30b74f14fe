// SPDX-License-Identifier: Apache-2.0
/* dev_host - host memory as a device: an extent is a sealed memfd, one worker thread
 *
 * An extent's pages exist before CREATE completes, so a client never meets a page that the host
 * cannot back. The file is mode 0400 and sealed in size: the one writable descriptor is ours and
 * whoever gets a dup of it; a reader's descriptor cannot be reopened for writing through /proc
 * by anybody but the daemon's own uid or root.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "io/dev.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define COPY_BYTES	65536u	/* on the worker's stack */

/* One ring serves both directions, since requests are carried out in order:
 *
 *	reaped <= done <= submitted <= reaped + size
 *
 * [reaped, done) hold completions, [done, submitted) requests. The worker owns slot done while it
 * runs it, the caller the others. */
struct slot {
	struct dev_request req;
	struct dev_completion cpl;
};

struct dev_host {
	struct dev dev;
	pthread_t worker;
	pthread_mutex_t lock;		/* everything below */
	pthread_cond_t work;
	uint64_t submitted, done, reaped;
	uint32_t size;
	bool stop;
	uint32_t free_head;		/* handles: a free list through next[], 0 ends it */
	int *fds;			/* [handle], -1: not live */
	uint32_t *next;
	struct slot *slots;
};

static struct dev_host *to_host(struct dev *dev)
{
	return (struct dev_host *)dev;
}

static uint32_t handle_alloc(struct dev_host *h, int fd)
{
	uint32_t handle;

	pthread_mutex_lock(&h->lock);
	handle = h->free_head;
	if (handle) {
		h->free_head = h->next[handle];
		h->fds[handle] = fd;
	}
	pthread_mutex_unlock(&h->lock);
	return handle;
}

/* -1: no such handle. */
static int handle_fd(const struct dev_host *h, uint32_t handle)
{
	return handle && handle <= h->size ? h->fds[handle] : -1;
}

static int handle_free(struct dev_host *h, uint32_t handle)
{
	int fd;

	pthread_mutex_lock(&h->lock);
	fd = handle_fd(h, handle);
	if (fd >= 0) {
		h->fds[handle] = -1;
		h->next[handle] = h->free_head;
		h->free_head = handle;
	}
	pthread_mutex_unlock(&h->lock);
	return fd;
}

/* fallocate() of more than the host has would not fail but wake the OOM killer. */
static uint64_t host_available_bytes(void)
{
	struct sysinfo si;
	unsigned long long kib;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) {
			fclose(f);
			return (uint64_t)kib * 1024;
		}
	}
	if (f)
		fclose(f);
	if (sysinfo(&si))
		return UINT64_MAX;
	return ((uint64_t)si.freeram + si.bufferram) * si.mem_unit;
}

static int memfd_new(void)
{
	int fd = memfd_create("kvd-extent", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL)		/* before Linux 6.3 */
		fd = memfd_create("kvd-extent", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)		/* a table of ours is full: the device is not broken */
		return errno == EMFILE || errno == ENFILE ? -ENOMEM : -errno;
	return fd;
}

static int fallocate_retry(int fd, int mode, uint64_t offset, uint64_t bytes)
{
	int err;

	do {
		err = fallocate(fd, mode, (off_t)offset, (off_t)bytes) ? errno : 0;
	} while (err == EINTR);
	return err == ENOSPC || err == EFBIG ? -ENOMEM : -err;
}

static int extent_prepare(int fd, uint64_t bytes)
{
	if (ftruncate(fd, (off_t)bytes))
		return errno == EFBIG ? -ENOMEM : -errno;
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) || fchmod(fd, 0400))
		return -errno;
	return fallocate_retry(fd, 0, 0, bytes);
}

static int run_create(struct dev_host *h, uint64_t bytes, uint32_t *handle)
{
	int fd, ret;

	if (!bytes || bytes > INT64_MAX)
		return -EINVAL;
	if (bytes > host_available_bytes())
		return -ENOMEM;
	fd = memfd_new();
	if (fd < 0)
		return fd;
	ret = extent_prepare(fd, bytes);
	if (!ret) {
		*handle = handle_alloc(h, fd);
		if (*handle)
			return 0;
		ret = -ENOMEM;
	}
	close(fd);
	return ret;
}

/* Whoever kept a descriptor or a mapping keeps the file, but not our pages, which are charged to
 * us: emptied, it costs the host nothing, and shows nothing of what stood there. */
static int run_destroy(struct dev_host *h, uint32_t handle)
{
	int fd = handle_free(h, handle);
	struct stat st;

	if (fd < 0)
		return -ENOENT;
	if (fstat(fd, &st) == 0)
		fallocate_retry(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
				(uint64_t)st.st_size);
	close(fd);
	return 0;
}

/* A hole reads as zero; filling it again keeps the promise that every page is backed. Not write():
 * a client's dup shares our file status flags, and with O_APPEND set a write would fail. Not a
 * mapping: a hole that a client punched would fault in here, beyond any error return. */
static int run_scrub(struct dev_host *h, uint32_t handle, uint64_t offset, uint64_t bytes)
{
	struct stat st;
	uint64_t size;
	int fd, ret;

	pthread_mutex_lock(&h->lock);
	fd = handle_fd(h, handle);
	pthread_mutex_unlock(&h->lock);
	if (fd < 0)
		return -ENOENT;
	if (fstat(fd, &st))
		return -errno;
	size = (uint64_t)st.st_size;
	if (!bytes || offset > size || bytes > size - offset)
		return -EINVAL;
	ret = fallocate_retry(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
	return ret ? ret : fallocate_retry(fd, FALLOC_FL_KEEP_SIZE, offset, bytes);
}

static bool within(int fd, uint64_t offset, uint64_t bytes)
{
	struct stat st;

	return !fstat(fd, &st) && bytes && offset <= (uint64_t)st.st_size &&
	       bytes <= (uint64_t)st.st_size - offset;
}

/* A client's dup shares the file status flags: with O_APPEND set the write goes to the end, where
 * the seals refuse it. Cleared, it may be set again: then this page is not copied, that is all. */
static ssize_t write_at(int fd, const void *buf, size_t len, uint64_t offset)
{
	ssize_t n = pwrite(fd, buf, len, (off_t)offset);

	if (n >= 0 || !(fcntl(fd, F_GETFL) & O_APPEND))
		return n;
	fcntl(fd, F_SETFL, 0);
	return pwrite(fd, buf, len, (off_t)offset);
}

/* Not through mappings, for the same reason as above: what a client punched out is read as zero,
 * and filled again, with an error where memory is short. */
static int run_copy(struct dev_host *h, const struct dev_request *req)
{
	char buf[COPY_BYTES];
	uint64_t done = 0;
	int from, to;

	pthread_mutex_lock(&h->lock);
	from = handle_fd(h, req->handle);
	to = handle_fd(h, req->to_handle);
	pthread_mutex_unlock(&h->lock);
	if (from < 0 || to < 0)
		return -ENOENT;
	if (from == to || !within(from, req->offset, req->bytes) ||
	    !within(to, req->to_offset, req->bytes))
		return -EINVAL;
	while (done < req->bytes) {
		uint64_t left = req->bytes - done;
		size_t len = left < sizeof(buf) ? (size_t)left : sizeof(buf);
		ssize_t n = pread(from, buf, len, (off_t)(req->offset + done));

		if (n > 0)
			n = write_at(to, buf, (size_t)n, req->to_offset + done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 && errno == ENOSPC ? -ENOMEM : -EIO;
		done += (uint64_t)n;
	}
	return 0;
}

static void run_request(struct dev_host *h, struct slot *s)
{
	const struct dev_request *req = &s->req;

	s->cpl = (struct dev_completion){ .user_data = req->user_data };
	switch (req->op) {
	case DEV_CREATE:
		s->cpl.result = run_create(h, req->bytes, &s->cpl.handle);
		break;
	case DEV_DESTROY:
		s->cpl.result = run_destroy(h, req->handle);
		break;
	case DEV_SCRUB:
		s->cpl.result = run_scrub(h, req->handle, req->offset, req->bytes);
		break;
	case DEV_COPY:
		s->cpl.result = run_copy(h, req);
		break;
	default:
		s->cpl.result = -EINVAL;
	}
}

/* Under the lock, so that the eventfd is readable exactly when [reaped, done) is not empty. */
static void signal_done(struct dev_host *h)
{
	uint64_t one = 1;
	ssize_t n = write(h->dev.fd, &one, sizeof(one));

	(void)n;	/* EAGAIN: the counter is full, so it is readable */
}

static void signal_clear(struct dev_host *h)
{
	uint64_t count;
	ssize_t n = read(h->dev.fd, &count, sizeof(count));

	(void)n;	/* EAGAIN: it was clear */
}

static void *worker_main(void *arg)
{
	struct dev_host *h = arg;

	pthread_mutex_lock(&h->lock);
	while (!h->stop) {
		if (h->done == h->submitted) {
			pthread_cond_wait(&h->work, &h->lock);
			continue;
		}
		pthread_mutex_unlock(&h->lock);
		run_request(h, &h->slots[h->done % h->size]);
		pthread_mutex_lock(&h->lock);
		h->done++;
		signal_done(h);
	}
	pthread_mutex_unlock(&h->lock);
	return NULL;
}

static int dev_host_submit(struct dev *dev, const struct dev_request *req)
{
	struct dev_host *h = to_host(dev);
	int ret = -EAGAIN;

	pthread_mutex_lock(&h->lock);
	if (h->submitted - h->reaped < h->size) {
		h->slots[h->submitted % h->size].req = *req;
		h->submitted++;
		pthread_cond_signal(&h->work);
		ret = 0;
	}
	pthread_mutex_unlock(&h->lock);
	return ret;
}

static bool dev_host_reap(struct dev *dev, struct dev_completion *cpl)
{
	struct dev_host *h = to_host(dev);
	bool found;

	pthread_mutex_lock(&h->lock);
	found = h->reaped < h->done;
	if (found) {
		*cpl = h->slots[h->reaped % h->size].cpl;
		h->reaped++;
	}
	if (h->reaped == h->done)
		signal_clear(h);
	pthread_mutex_unlock(&h->lock);
	return found;
}

static int dev_host_export(struct dev *dev, uint32_t handle, bool writable)
{
	struct dev_host *h = to_host(dev);
	char path[40];
	int fd, ret;

	/* The lock keeps the worker from closing the descriptor under us. */
	pthread_mutex_lock(&h->lock);
	fd = handle_fd(h, handle);
	if (fd < 0) {
		ret = -ENOENT;
	} else if (writable) {
		ret = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		ret = ret < 0 ? -errno : ret;
	} else {
		/* O_NONBLOCK: a reader with a file lease on it would make the open wait. */
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		ret = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		ret = ret < 0 ? -errno : ret;
	}
	pthread_mutex_unlock(&h->lock);
	return ret;
}

static void host_release(struct dev_host *h)
{
	for (uint32_t i = 1; h->fds && i <= h->size; i++) {
		if (h->fds[i] >= 0)
			close(h->fds[i]);
	}
	if (h->dev.fd >= 0)
		close(h->dev.fd);
	pthread_cond_destroy(&h->work);
	pthread_mutex_destroy(&h->lock);
	free(h->slots);
	free(h->next);
	free(h->fds);
	free(h);
}

/* Requests not yet begun are dropped: nobody is left to reap them, and every extent goes anyway. */
static void dev_host_destroy(struct dev *dev)
{
	struct dev_host *h = to_host(dev);

	pthread_mutex_lock(&h->lock);
	h->stop = true;
	pthread_cond_signal(&h->work);
	pthread_mutex_unlock(&h->lock);
	pthread_join(h->worker, NULL);
	host_release(h);
}

static const struct dev_ops host_ops = {
	.name = "host",
	.submit = dev_host_submit,
	.reap = dev_host_reap,
	.export = dev_host_export,
	.destroy = dev_host_destroy,
};

/* Signals belong to the process's own threads. */
static int worker_start(struct dev_host *h)
{
	sigset_t all, old;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(&h->worker, NULL, worker_main, h);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!err)
		pthread_setname_np(h->worker, "kvd-dev-host");
	return -err;
}

int dev_host_create(struct dev **dev, uint32_t max_extents)
{
	struct dev_host *h;
	int ret;

	if (!max_extents || max_extents > 1u << 24)
		return -EINVAL;
	h = calloc(1, sizeof(*h));
	if (!h)
		return -ENOMEM;
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->work, NULL);
	h->dev.ops = &host_ops;
	h->size = max_extents;
	h->fds = malloc((max_extents + 1ul) * sizeof(*h->fds));
	h->next = malloc((max_extents + 1ul) * sizeof(*h->next));
	h->slots = calloc(max_extents, sizeof(*h->slots));
	h->dev.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	ret = h->dev.fd < 0 ? -errno : 0;
	if (!ret && h->fds && h->next && h->slots) {
		for (uint32_t i = 0; i <= max_extents; i++) {
			h->fds[i] = -1;
			h->next[i] = i < max_extents ? i + 1 : 0;
		}
		h->free_head = 1;
		ret = worker_start(h);
	} else if (!ret) {
		ret = -ENOMEM;
	}
	if (ret) {
		free(h->fds);
		h->fds = NULL;		/* never filled in: nothing to close */
		host_release(h);
		return ret;
	}
	*dev = &h->dev;
	return 0;
}
