/* SPDX-License-Identifier: Apache-2.0 */
/* list - doubly linked lists over indices into a table
 *
 * Model:      a struct link inside each element, a struct list as the head; LIST_DEFINE makes the
 *             operations for one link of one table. Index 0 is nobody.
 * Invariants: nr counts the elements; the head has no prev, the tail no next.
 *             splice: from the head of one list to last, nr elements, to the tail of another.
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
	} \
	static inline void name##_splice(struct mm *mm, struct list *from, uint32_t last, \
					 uint32_t nr, struct list *to) \
	{ \
		uint32_t first = from->head, rest = at(mm, last)->field.next; \
		if (rest) \
			at(mm, rest)->field.prev = NIL; \
		else \
			from->tail = NIL; \
		if (to->tail) \
			at(mm, to->tail)->field.next = first; \
		else \
			to->head = first; \
		at(mm, first)->field.prev = to->tail; \
		at(mm, last)->field.next = NIL; \
		from->head = rest; \
		from->nr -= nr; \
		to->tail = last; \
		to->nr += nr; \
	}

#endif
