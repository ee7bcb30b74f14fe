/* SPDX-License-Identifier: Apache-2.0 */
/* list - doubly linked lists over indices into a table
 *
 * Model:      a struct link inside each element, a struct list as the head; LIST_DEFINE makes the
 *             three operations for one link of one table. Index 0 is nobody.
 * Invariants: nr counts the elements; the head has no prev, the tail no next.
 * Cost:       O(1).
 */
#ifndef MM_LIST_H
#define MM_LIST_H

#include <stdint.h>

#define NIL 0u

struct link {
	uint32_t prev, next;
};

struct list {
	uint32_t head, tail, nr;
};

/* at(mm, i) gives the element, field names its struct link. */
#define LIST_DEFINE(name, at, field) \
	static inline void name##_add_tail(struct mm *mm, struct list *l, uint32_t i) \
	{ \
		at(mm, i)->field = (struct link){ l->tail, NIL }; \
		if (l->tail) \
			at(mm, l->tail)->field.next = i; \
		else \
			l->head = i; \
		l->tail = i; \
		l->nr++; \
	} \
	static inline void name##_add_head(struct mm *mm, struct list *l, uint32_t i) \
	{ \
		at(mm, i)->field = (struct link){ NIL, l->head }; \
		if (l->head) \
			at(mm, l->head)->field.prev = i; \
		else \
			l->tail = i; \
		l->head = i; \
		l->nr++; \
	} \
	static inline void name##_del(struct mm *mm, struct list *l, uint32_t i) \
	{ \
		struct link k = at(mm, i)->field; \
		if (k.prev) \
			at(mm, k.prev)->field.next = k.next; \
		else \
			l->head = k.next; \
		if (k.next) \
			at(mm, k.next)->field.prev = k.prev; \
		else \
			l->tail = k.prev; \
		at(mm, i)->field = (struct link){ NIL, NIL }; \
		l->nr--; \
	}

#endif
