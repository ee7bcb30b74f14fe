// SPDX-License-Identifier: Apache-2.0
#include "srv/chan.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE		4096u
#define SEALS		(F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL	0x0008u		/* Linux 6.3 */
#endif

/* The first `rings` bytes, which we write ourselves, are backed from the start: without memory the
 * session is refused, rather than that we run short in the middle of an answer. The data area grows
 * as the client fills it. */
static int memfd_sealed(size_t bytes, size_t rings)
{
	int fd = memfd_create("kvd-session", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	int ret;

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create("kvd-session", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) < 0 || fallocate(fd, 0, 0, (off_t)rings) < 0 ||
	    fcntl(fd, F_ADD_SEALS, SEALS) < 0) {
		ret = -errno;
		close(fd);
		return ret;
	}
	return fd;
}

static void close_fds(const struct chan *c)
{
	if (c->memfd >= 0)
		close(c->memfd);
	if (c->sq_fd >= 0)
		close(c->sq_fd);
	if (c->cq_fd >= 0)
		close(c->cq_fd);
}

int chan_create(struct chan *c, uint32_t entries, uint64_t data_bytes)
{
	uint8_t *base = MAP_FAILED;
	int ret;

	*c = (struct chan){ .memfd = -1, .sq_fd = -1, .cq_fd = -1, .entries = entries };
	c->sq_offset = sizeof(struct kv_shm_header);
	c->cq_offset = c->sq_offset + entries * (uint32_t)sizeof(struct kv_sqe);
	c->data_offset = c->cq_offset + entries * (uint32_t)sizeof(struct kv_cqe);
	c->data_offset = (c->data_offset + PAGE - 1) / PAGE * PAGE;
	c->data_bytes = data_bytes;
	c->bytes = c->data_offset + data_bytes;
	c->memfd = memfd_sealed(c->bytes, c->data_offset);
	if (c->memfd < 0)
		return c->memfd;
	c->sq_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	c->cq_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->sq_fd >= 0 && c->cq_fd >= 0)
		base = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->memfd, 0);
	if (base == MAP_FAILED) {
		ret = -errno;
		close_fds(c);
		return ret;
	}
	c->hdr = (struct kv_shm_header *)base;
	c->sqes = (struct kv_sqe *)(base + c->sq_offset);
	c->cqes = (struct kv_cqe *)(base + c->cq_offset);
	c->data = base + c->data_offset;
	kv_ring_init(&c->sq, &c->hdr->sq_head, &c->hdr->sq_tail, entries);
	kv_ring_init(&c->cq, &c->hdr->cq_head, &c->hdr->cq_tail, entries);
	c->hdr->sq_need_wakeup = 1;
	c->asleep = true;
	return 0;
}

void chan_destroy(struct chan *c)
{
	if (c->hdr)
		munmap(c->hdr, c->bytes);
	c->hdr = NULL;
}

int64_t chan_pending(struct chan *c)
{
	return kv_ring_avail(&c->sq);
}

/* The barrier keeps the compiler from reading the shared entry again in place of the copy. */
void chan_peek(const struct chan *c, struct kv_sqe *out)
{
	memcpy(out, &c->sqes[kv_ring_at(&c->sq, 0)], sizeof(*out));
	__asm__ volatile("" : "+m"(*out) : : "memory");
}

void chan_take(struct chan *c)
{
	kv_ring_consume(&c->sq, 1);
}

int64_t chan_room(struct chan *c)
{
	return kv_ring_room(&c->cq);
}

int chan_answer(struct chan *c, const struct kv_cqe *cqe)
{
	int64_t room = kv_ring_room(&c->cq);

	if (room <= 0)
		return room < 0 ? (int)room : -ENOSPC;
	memcpy(&c->cqes[kv_ring_at(&c->cq, 0)], cqe, sizeof(*cqe));
	kv_ring_publish(&c->cq, 1);
	return 0;
}

bool chan_client_sleeps(const struct chan *c)
{
	return kv_ring_peer_sleeps(&c->hdr->cq_need_wakeup);
}

bool chan_sleep(struct chan *c)
{
	c->asleep = true;
	kv_ring_will_sleep(&c->hdr->sq_need_wakeup);
	return kv_ring_avail(&c->sq) == 0;
}

void chan_awake(struct chan *c)
{
	if (c->asleep)
		kv_ring_awake(&c->hdr->sq_need_wakeup);
	c->asleep = false;
}

void chan_set_events(struct chan *c)
{
	__atomic_fetch_or(&c->hdr->events, KV_EVENT_PENDING, __ATOMIC_SEQ_CST);
}

void chan_clear_events(struct chan *c)
{
	__atomic_fetch_and(&c->hdr->events, ~KV_EVENT_PENDING, __ATOMIC_SEQ_CST);
}

void chan_set_dead(struct chan *c)
{
	__atomic_store_n(&c->hdr->dead, 1, __ATOMIC_SEQ_CST);
}
