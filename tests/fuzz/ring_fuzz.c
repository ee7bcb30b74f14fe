// SPDX-License-Identifier: Apache-2.0
/* ring_fuzz - kv_ring.h against a peer that stores what it likes
 *
 * Model:      a good producer and a good consumer share one ring; between their steps the script
 *             stores anything into both shared indices and every slot. A shadow keeps what each end
 *             may rely on: the index it writes is its own, so however hostile the other is, it is
 *             never told of more than the ring has, and either -EPROTO or the distance to the index
 *             that stood there is the answer.
 * Input:      a byte of size, then commands with their operands; every byte string is one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_ring.h"

#define MAX_LOG2	6u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A private index must match what the end has published or consumed, whatever stands in shared. */
struct world {
	struct kv_ring producer, consumer;
	uint32_t shared_head, shared_tail, need_wakeup;
	uint32_t slot[1u << MAX_LOG2];
	uint32_t entries, produced, consumed;
	bool honest;			/* nobody stored anything yet */
	const uint8_t *in, *end;
};

static void die(const char *what)
{
	fprintf(stderr, "ring_fuzz: %s\n", what);
	abort();
}

static uint32_t u8(struct world *w)
{
	return w->in < w->end ? *w->in++ : 0;
}

static uint32_t u32(struct world *w)
{
	uint32_t v = u8(w);

	v |= u8(w) << 8;
	v |= u8(w) << 16;
	return v | u8(w) << 24;
}

/* An index near the other, near a wrap, or anything. */
static uint32_t some_index(struct world *w)
{
	uint32_t how = u8(w);

	if (how < 64)
		return w->produced - 32 + how;
	if (how < 128)
		return w->consumed - 96 + how;
	return how < 192 ? how - 160u : u32(w);
}

static void produce(struct world *w)
{
	uint32_t head = w->shared_head, n = u8(w) % (w->entries + 1);
	int64_t room = kv_ring_room(&w->producer);

	if (w->produced - head <= w->entries ? room != w->entries - (w->produced - head) :
					       room != -EPROTO)
		die("room is not what the indices say");
	if (w->honest && room < 0)
		die("an honest consumer was taken for hostile");
	if (room < 0)
		return;
	n = n < (uint64_t)room ? n : (uint32_t)room;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = kv_ring_at(&w->producer, i);

		if (at >= w->entries)
			die("the producer writes outside of the ring");
		w->slot[at] = w->produced + i;
	}
	kv_ring_publish(&w->producer, n);
	w->produced += n;
	if (w->shared_tail != w->produced || w->producer.mine != w->produced)
		die("the tail is not what was published");
	if (kv_ring_peer_sleeps(&w->need_wakeup) != (w->need_wakeup != 0))
		die("a sleeping peer is overlooked");
}

static void consume(struct world *w)
{
	uint32_t tail = w->shared_tail, seen = w->consumer.seen, n = u8(w) % (w->entries + 1);
	int64_t ready = kv_ring_avail(&w->consumer);

	if (ready != -EPROTO && ready != tail - w->consumed)
		die("avail is not what the indices say");
	if (ready > w->entries)
		die("more entries than the ring has");
	if (ready == -EPROTO && w->consumer.seen != seen)
		die("a bad index was remembered");
	if (w->honest && ready != w->produced - w->consumed)
		die("an honest producer was taken for hostile");
	if (ready < 0)
		return;
	n = n < (uint64_t)ready ? n : (uint32_t)ready;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = kv_ring_at(&w->consumer, i);

		if (at >= w->entries)
			die("the consumer reads outside of the ring");
		if (w->honest && w->slot[at] != w->consumed + i)
			die("an entry is lost or comes twice");
	}
	kv_ring_consume(&w->consumer, n);
	w->consumed += n;
	if (w->shared_head != w->consumed || w->consumer.mine != w->consumed)
		die("the head is not what was consumed");
}

static void sleep_and_wake(struct world *w)
{
	kv_ring_will_sleep(&w->need_wakeup);
	if (!kv_ring_peer_sleeps(&w->need_wakeup))
		die("nobody saw it go to sleep");
	kv_ring_awake(&w->need_wakeup);
	if (kv_ring_peer_sleeps(&w->need_wakeup))
		die("it cannot wake up");
}

static void step(struct world *w)
{
	uint32_t cmd = u8(w);

	switch (cmd & 7) {
	case 0:
	case 1:
		produce(w);
		break;
	case 2:
	case 3:
		consume(w);
		break;
	case 4:
		sleep_and_wake(w);
		break;
	case 5:
		w->shared_tail = some_index(w);
		w->honest = false;
		break;
	case 6:
		w->shared_head = some_index(w);
		w->honest = false;
		break;
	default:
		w->slot[u8(w) % w->entries] = u32(w);
		w->need_wakeup = cmd >> 3;
		w->honest = false;
	}
}

/* Indices run free: a session that is old enough starts anywhere. */
static void world_init(struct world *w, uint32_t start)
{
	w->shared_head = w->shared_tail = w->produced = w->consumed = start;
	kv_ring_init(&w->producer, &w->shared_head, &w->shared_tail, w->entries);
	kv_ring_init(&w->consumer, &w->shared_head, &w->shared_tail, w->entries);
	w->producer.mine = w->consumer.mine = w->consumer.seen = start;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct world w = { .honest = true, .in = data, .end = data + size };
	uint32_t how = u8(&w);

	w.entries = 1u << (how & 7) % (MAX_LOG2 + 1);
	world_init(&w, how & 8 ? 0u - (how >> 4) : how >> 4);
	while (w.in < w.end)
		step(&w);
	return 0;
}
