/* SPDX-License-Identifier: Apache-2.0 */
/* kv_ring - the SPSC rings of a session, as both sides see them
 *
 * Model:      free-running 32-bit indices over a power-of-two array. A producer fills entries, then
 *             publishes the tail; a consumer reads them, then publishes the head.
 * Invariants: tail - head <= entries. A side trusts only its own private copy of the index it
 *             writes; the other side's is loaded once per use and range-checked (kv_ring_avail
 *             says -EPROTO), so a hostile peer can at worst break its own session.
 * Ownership:  one producer thread and one consumer thread a ring. The daemon copies an SQ entry
 *             out before it looks at it.
 * Context:    lock-free, no system call. A side about to sleep sets its need_wakeup, fences, looks
 *             at the ring once more, sleeps in poll on its eventfd, clears it.
 * Barriers:   P1 publish tail (release) pairs with C1 load tail (acquire): entries are visible.
 *             C2 publish head (release) pairs with P2 load head (acquire): slots are reusable.
 *             W1 seq_cst fence between publish and load of need_wakeup pairs with W2 seq_cst fence
 *             between store of need_wakeup and the last look at the ring: one of the two sides
 *             sees the other, so no wake-up is lost (store buffering).
 * Cost:       O(1); one shared cache line a direction on the fast path.
 * See:        kv_abi.h, docs/abi.md, tests/unit/ipc/ring_test.c
 */
#ifndef KV_RING_H
#define KV_RING_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

struct kv_ring {
	uint32_t *head, *tail;	/* shared */
	uint32_t mask;
	uint32_t mine;		/* private copy of the index this side writes */
	uint32_t seen;		/* last value of the other side's index that passed the check */
};

static inline void kv_ring_init(struct kv_ring *r, uint32_t *head, uint32_t *tail, uint32_t entries)
{
	*r = (struct kv_ring){ .head = head, .tail = tail, .mask = entries - 1 };
}

/* Consumer: entries ready to read, or -EPROTO. */
static inline int64_t kv_ring_avail(struct kv_ring *r)
{
	uint32_t tail = __atomic_load_n(r->tail, __ATOMIC_ACQUIRE);	/* C1 */
	uint32_t n = tail - r->mine;

	if (n > r->mask + 1 || tail - r->seen > r->mask + 1)
		return -EPROTO;
	r->seen = tail;
	return n;
}

/* Consumer: index of the entry to read next; kv_ring_consume gives n of them back. */
static inline uint32_t kv_ring_at(const struct kv_ring *r, uint32_t i)
{
	return (r->mine + i) & r->mask;
}

static inline void kv_ring_consume(struct kv_ring *r, uint32_t n)
{
	r->mine += n;
	__atomic_store_n(r->head, r->mine, __ATOMIC_RELEASE);		/* C2 */
}

/* Producer: slots free to fill, or -EPROTO. */
static inline int64_t kv_ring_room(struct kv_ring *r)
{
	uint32_t head = __atomic_load_n(r->head, __ATOMIC_ACQUIRE);	/* P2 */
	uint32_t used = r->mine - head;

	if (used > r->mask + 1)
		return -EPROTO;
	return (int64_t)(r->mask + 1 - used);
}

static inline void kv_ring_publish(struct kv_ring *r, uint32_t n)
{
	r->mine += n;
	__atomic_store_n(r->tail, r->mine, __ATOMIC_RELEASE);		/* P1 */
}

/* Producer, after publish: must the peer be woken? */
static inline bool kv_ring_peer_sleeps(const uint32_t *need_wakeup)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);			/* W1 */
	return __atomic_load_n(need_wakeup, __ATOMIC_RELAXED) != 0;
}

/* Consumer, before its last look and sleep. */
static inline void kv_ring_will_sleep(uint32_t *need_wakeup)
{
	__atomic_store_n(need_wakeup, 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);			/* W2 */
}

static inline void kv_ring_awake(uint32_t *need_wakeup)
{
	__atomic_store_n(need_wakeup, 0, __ATOMIC_RELAXED);
}

#endif
