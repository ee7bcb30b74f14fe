// SPDX-License-Identifier: Apache-2.0
/* kern_plan - cuts a call into items; contract in kern_plan.h */
#include <errno.h>
#include <string.h>

#include "kern_impl.h"
#include "kern_plan.h"

#define ITEMS_PER_WORKER 4u /* more items than workers: one that is late does not hold up all */
#define READ_COST	 8u /* reading a row costs about what attending with 8 queries does */
#define OVERHEAD_TOKENS	 16u /* what a part costs besides its tokens, in tokens */
#define MAX_WORKERS	 4096u
#define MIN_ITEM_ROWS	 1024u /* cached rows of a head: less is not worth another item */

/* What some query of a sequence sees, in chunks: [first, end); [whole0, whole1) every query sees
 * wholly. open is the segment that had its last chunk. */
struct plan_seq {
	uint32_t lo, hi;
	uint32_t first, end;
	uint32_t whole0, whole1;
	uint32_t open;
	uint32_t next, tail, count; /* of its group, in the chunk at hand */
};

/* members[at .. at + nr) over chunks [c0, c1) */
struct plan_segment {
	uint32_t at, nr;
	uint32_t c0, c1;
};

struct plan_slot {
	uint64_t hash;
	uint32_t leader, level; /* level: the one it was written in */
};

struct planner {
	const struct kern_attn *a;
	struct kern_plan *plan;
	uint32_t workers, chunk, max_group;
	uint64_t nr_chunks; /* of all sequences */
	struct plan_seq *seqs;
	struct plan_segment *segments;
	uint32_t nr_segments;
	uint32_t *members;
	uint32_t nr_members;
	uint32_t *active, nr_active; /* sequences with chunks still to come */
	uint32_t *leaders, nr_leaders;
	struct plan_slot *table;
	uint32_t table_mask, level;
	uint32_t nr_parts;
	uint64_t target; /* cost of an item */
};

#define NONE UINT32_MAX

/* ---- memory ---- */

static uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static struct plan_seq plan_seq(const struct planner *p, uint32_t seq)
{
	struct kern_span first = kern_span(p->a, seq, 0);
	struct kern_span last = kern_span(p->a, seq, p->a->q_len - 1);
	struct plan_seq s = {.lo = first.lo, .hi = last.hi, .open = NONE};

	if (s.lo >= s.hi)
		s.lo = s.hi = 0;
	s.first = s.lo / p->chunk;
	s.end = s.hi ? (s.hi - 1) / p->chunk + 1 : s.first;
	s.whole0 = last.lo / p->chunk + (last.lo % p->chunk > 0);
	s.whole1 = first.hi / p->chunk;
	return s;
}

static void *carve(char **mem, size_t bytes)
{
	void *at = *mem;

	*mem += (bytes + 63) / 64 * 64;
	return at;
}

/* Every array's bound: a segment has a member's chunk of its own or is an empty sequence's; parts
 * are the segments and what cutting adds, see cut(). */
static size_t layout(struct planner *p, char *mem)
{
	char *from = mem;
	size_t batch = p->a->batch, segments = p->nr_chunks + batch, slots = 2;
	size_t parts = segments + (size_t)p->workers * ITEMS_PER_WORKER;

	while (slots < 2 * batch)
		slots *= 2;
	p->table_mask = (uint32_t)slots - 1;
	p->plan = carve(&mem, sizeof(*p->plan));
	p->seqs = carve(&mem, batch * sizeof(*p->seqs));
	p->segments = carve(&mem, segments * sizeof(*p->segments));
	p->members = carve(&mem, segments * sizeof(*p->members));
	p->active = carve(&mem, batch * sizeof(*p->active));
	p->leaders = carve(&mem, batch * sizeof(*p->leaders));
	p->table = carve(&mem, slots * sizeof(*p->table));
	if (from)
		*p->plan = (struct kern_plan){
			.batch = p->a->batch,
			.parts = carve(&mem, parts * sizeof(struct kern_part)),
			.items = carve(&mem, (parts + 1) * sizeof(uint32_t)),
			.places = carve(&mem, batch * sizeof(struct kern_place)),
			.pending = carve(&mem, batch * sizeof(uint32_t)),
			.nr_parts = carve(&mem, batch * sizeof(uint32_t)),
		};
	else
		mem += (parts * (sizeof(struct kern_part) + sizeof(uint32_t)) +
			batch * (sizeof(struct kern_place) + 8)) + 6 * 64;
	return (size_t)(mem - from);
}

static void measure(struct planner *p, const struct kern_attn *a, uint32_t workers)
{
	uint32_t i;

	workers = !workers ? 1 : min_u32(workers, MAX_WORKERS);
	*p = (struct planner){.a = a, .workers = workers};
	p->chunk = kern_chunk_tokens(&a->view);
	p->max_group = KERN_BLOCK_ROWS / kern_head_rows(a);
	for (i = 0; i < a->batch; i++) {
		struct plan_seq s = plan_seq(p, i);

		p->nr_chunks += s.end - s.first;
	}
}

size_t kern_plan_bytes(const struct kern_attn *a, uint32_t workers)
{
	struct planner p;

	if (kern_attn_check(a))
		return 0;
	measure(&p, a, workers);
	return layout(&p, NULL);
}

/* ---- segments: which sequences read the same pages ---- */

static const uint64_t *chunk_words(const struct planner *p, uint32_t seq, uint32_t c,
				   uint32_t *words)
{
	*words = p->chunk / p->a->view.page_tokens;
	return p->a->pte[seq] + (size_t)c * *words;
}

static uint64_t chunk_hash(const struct planner *p, uint32_t seq, uint32_t c)
{
	uint32_t n, i;
	const uint64_t *words = chunk_words(p, seq, c, &n);
	uint64_t h = n;

	for (i = 0; i < n; i++) {
		h = (h ^ words[i]) * 0x9e3779b97f4a7c15ull;
		h ^= h >> 29;
	}
	return h;
}

static bool chunk_equal(const struct planner *p, uint32_t a, uint32_t b, uint32_t c)
{
	uint32_t n;
	const uint64_t *words = chunk_words(p, a, c, &n);

	return !memcmp(words, chunk_words(p, b, c, &n), n * sizeof(*words));
}

static void lead(struct planner *p, uint32_t seq)
{
	p->seqs[seq].next = NONE;
	p->seqs[seq].tail = seq;
	p->seqs[seq].count = 1;
	p->leaders[p->nr_leaders++] = seq;
}

/* Puts a sequence into the group of those with the same pages in chunk c, or makes it the first of
 * a new one. */
static void group(struct planner *p, uint32_t seq, uint32_t c)
{
	uint64_t hash = chunk_hash(p, seq, c);
	struct plan_slot *slot = &p->table[hash & p->table_mask];
	struct plan_seq *leader;

	while (slot->level == p->level &&
	       (slot->hash != hash || !chunk_equal(p, slot->leader, seq, c)))
		slot = slot == &p->table[p->table_mask] ? p->table : slot + 1;
	leader = slot->level == p->level ? &p->seqs[slot->leader] : NULL;
	if (!leader || leader->count == p->max_group) {
		lead(p, seq);
		*slot = (struct plan_slot){hash, seq, p->level};
		return;
	}
	p->seqs[leader->tail].next = seq;
	p->seqs[seq].next = NONE;
	leader->tail = seq;
	leader->count++;
}

/* Is the group what the segment of its first member was one chunk earlier? */
static bool goes_on(const struct planner *p, uint32_t leader, uint32_t c)
{
	uint32_t open = p->seqs[leader].open, seq;

	if (open == NONE || p->segments[open].c1 != c ||
	    p->segments[open].nr != p->seqs[leader].count)
		return false;
	for (seq = leader; seq != NONE; seq = p->seqs[seq].next)
		if (p->seqs[seq].open != open)
			return false;
	return true;
}

static void add_segment(struct planner *p, uint32_t leader, uint32_t c0, uint32_t c1)
{
	struct plan_segment *s = &p->segments[p->nr_segments];
	uint32_t seq;

	*s = (struct plan_segment){.at = p->nr_members, .c0 = c0, .c1 = c1};
	for (seq = leader; seq != NONE; seq = p->seqs[seq].next) {
		p->members[p->nr_members++] = seq;
		p->seqs[seq].open = p->nr_segments;
		s->nr++;
	}
	p->plan->nr_shared += s->nr > 1;
	p->nr_segments++;
}

/* One chunk of all sequences. Returns the next chunk any of them sees. */
static uint32_t add_level(struct planner *p, uint32_t c)
{
	uint32_t i, kept = 0, next = NONE;

	p->level++;
	p->nr_leaders = 0;
	for (i = 0; i < p->nr_active; i++) {
		uint32_t seq = p->active[i];
		const struct plan_seq *s = &p->seqs[seq];

		if (c >= s->first && p->max_group > 1 && c >= s->whole0 && c < s->whole1)
			group(p, seq, c);
		else if (c >= s->first)
			lead(p, seq);
		if (c + 1 >= s->end)
			continue;
		p->active[kept++] = seq;
		next = min_u32(next, c < s->first ? s->first : c + 1);
	}
	p->nr_active = kept;
	for (i = 0; i < p->nr_leaders; i++) {
		if (goes_on(p, p->leaders[i], c))
			p->segments[p->seqs[p->leaders[i]].open].c1++;
		else
			add_segment(p, p->leaders[i], c, c + 1);
	}
	return next;
}

static void add_segments(struct planner *p)
{
	uint32_t i, c = NONE;

	memset(p->table, 0, (p->table_mask + 1ull) * sizeof(*p->table));
	if (!p->plan->ops->splits || p->a->batch < 2)
		p->max_group = 1;
	for (i = 0; i < p->a->batch; i++) {
		p->seqs[i] = plan_seq(p, i);
		p->seqs[i].next = NONE;
		if (p->seqs[i].first == p->seqs[i].end) {
			add_segment(p, i, p->seqs[i].first, p->seqs[i].end);
			continue;
		}
		p->active[p->nr_active++] = i;
		c = min_u32(c, p->seqs[i].first);
	}
	while (c != NONE)
		c = add_level(p, c);
}

/* ---- parts ---- */

static void segment_tokens(const struct planner *p, const struct plan_segment *s, uint64_t *lo,
			   uint64_t *hi)
{
	const struct plan_seq *q = &p->seqs[p->members[s->at]];

	*lo = (uint64_t)s->c0 * p->chunk;
	*hi = (uint64_t)s->c1 * p->chunk;
	*lo = *lo < q->lo ? q->lo : *lo;
	*hi = *hi > q->hi ? q->hi : *hi;
}

static uint64_t row_cost(const struct planner *p, uint32_t nr_seqs)
{
	return (uint64_t)kern_head_rows(p->a) * nr_seqs + READ_COST * kern_blocks(p->a);
}

static uint64_t cost(const struct planner *p, const struct plan_segment *s)
{
	uint64_t lo, hi;

	segment_tokens(p, s, &lo, &hi);
	return (hi - lo + OVERHEAD_TOKENS) * p->a->view.kv_heads * row_cost(p, s->nr);
}

/* Into how many along each axis. Chunks come first, so that a thread reads whole pages; but many
 * blocks of rows are enough to share out by themselves and need no partials. Their product is at
 * most cost / target, which bounds the parts of a call. */
static void cut(const struct planner *p, const struct plan_segment *s, uint32_t *chunks,
		uint32_t *heads, uint32_t *blocks)
{
	uint64_t n = cost(p, s) / p->target, all = kern_blocks(p->a);

	n = n ? n : 1;
	*blocks = (uint32_t)(n < all ? n : all);
	n /= *blocks;
	all = p->plan->ops->splits && s->c1 > s->c0 ? s->c1 - s->c0 : 1;
	*chunks = (uint32_t)(n < all ? n : all);
	n /= *chunks;
	all = p->a->view.kv_heads;
	*heads = (uint32_t)(n < all ? n : all);
}

/* Where piece k of n ends: equal numbers of tokens, to the nearest chunk, one left for each of the
 * pieces behind. */
static uint32_t cut_chunk(const struct planner *p, const struct plan_segment *s, uint32_t k,
			  uint32_t n)
{
	uint64_t lo, hi, c;

	segment_tokens(p, s, &lo, &hi);
	c = (lo + (hi - lo) * k / n + p->chunk / 2) / p->chunk;
	if (k == n || c > s->c1 - (n - k))
		c = s->c1 - (n - k);
	return (uint32_t)c;
}

/* Do all members begin, and do all end, with this segment? */
static void ends(const struct planner *p, const struct plan_segment *s, bool *begin, bool *end)
{
	uint32_t i;

	*begin = *end = true;
	for (i = 0; i < s->nr; i++) {
		const struct plan_seq *q = &p->seqs[p->members[s->at + i]];

		*begin = *begin && q->first == s->c0;
		*end = *end && q->end == s->c1;
	}
}

static void add_pieces(struct planner *p, const struct plan_segment *s, struct kern_part part)
{
	uint32_t nc, nh, nb, c, h, b;
	uint32_t heads = p->a->view.kv_heads, blocks = kern_blocks(p->a);
	bool begin, end;

	ends(p, s, &begin, &end);
	cut(p, s, &nc, &nh, &nb);
	part.chunk1 = s->c0;
	for (c = 0; c < nc; c++) {
		part.chunk0 = part.chunk1;
		part.chunk1 = cut_chunk(p, s, c + 1, nc);
		if (part.chunk1 == part.chunk0 && s->c1 > s->c0)
			part.chunk1++;
		part.kind = begin && end && nc == 1 ? KERN_PART_WHOLE
			    : begin && !c	    ? KERN_PART_LEAD
						    : KERN_PART_CHUNKS;
		for (h = 0; h < nh; h++)
			for (b = 0; b < nb; b++) {
				part.head0 = (uint32_t)((uint64_t)heads * h / nh);
				part.head1 = (uint32_t)((uint64_t)heads * (h + 1) / nh);
				part.block0 = (uint32_t)((uint64_t)blocks * b / nb);
				part.block1 = (uint32_t)((uint64_t)blocks * (b + 1) / nb);
				p->plan->parts[p->nr_parts++] = part;
			}
	}
}

/* Counts a sequence's parts and finds what slot 0 of its partials has. */
static void note_parts(const struct planner *p, const struct plan_segment *s, uint32_t from)
{
	struct kern_plan *plan = p->plan;
	const struct kern_part *first = &plan->parts[from];
	uint32_t i, seq;

	if (first->kind == KERN_PART_WHOLE)
		return;
	for (i = 0; i < s->nr; i++) {
		seq = p->members[s->at + i];
		plan->nr_parts[seq] += p->nr_parts - from;
		if (p->seqs[seq].first == s->c0)
			plan->places[seq].base =
				first->kind == KERN_PART_LEAD ? first->chunk1 - 1 : s->c0;
	}
}

static uint64_t part_cost(const struct planner *p, const struct kern_part *part)
{
	struct plan_segment s = {.c0 = part->chunk0, .c1 = part->chunk1, .nr = part->nr_seqs};
	uint64_t lo, hi;

	s.at = (uint32_t)(part->seqs - p->members);
	segment_tokens(p, &s, &lo, &hi);
	return (hi - lo + OVERHEAD_TOKENS) * (part->head1 - part->head0) *
	       row_cost(p, part->nr_seqs) * (part->block1 - part->block0) / kern_blocks(p->a);
}

/* Parts in a row make an item until it has the target's cost. */
static void pack(struct planner *p)
{
	struct kern_plan *plan = p->plan;
	uint64_t sum = 0;
	uint32_t i;

	for (i = 0; i < p->nr_parts; i++) {
		uint64_t c = part_cost(p, &plan->parts[i]);

		if (!i || sum + c / 2 > p->target) {
			plan->items[plan->nr_items++] = i;
			sum = 0;
		}
		sum += c;
	}
	plan->items[plan->nr_items] = p->nr_parts;
}

static void add_parts(struct planner *p)
{
	uint64_t total = 0, least = MIN_ITEM_ROWS * row_cost(p, 1);
	uint32_t i, from;

	for (i = 0; i < p->nr_segments; i++)
		total += cost(p, &p->segments[i]);
	p->target = p->workers > 1 ? total / (p->workers * ITEMS_PER_WORKER) + 1 : total + 1;
	p->target = p->target < least ? least : p->target;
	for (i = 0; i < p->nr_segments; i++) {
		const struct plan_segment *s = &p->segments[i];

		from = p->nr_parts;
		add_pieces(p, s,
			   (struct kern_part){.seqs = p->members + s->at,
					      .nr_seqs = s->nr,
					      .places = p->plan->places});
		note_parts(p, s, from);
	}
	pack(p);
}

static size_t slot_floats(const struct kern_attn *a)
{
	return (size_t)a->view.kv_heads * kern_head_rows(a) * kern_partial_floats(a);
}

int kern_plan_make(const struct kern_attn *a, enum kern_impl impl, uint32_t workers, void *mem,
		   struct kern_plan **out)
{
	const struct kern_ops *ops;
	struct planner p;
	uint32_t i;
	int err = kern_ops_get(a, impl, &ops);

	if (err)
		return err;
	if (!mem || (uintptr_t)mem % 64)
		return -EINVAL;
	measure(&p, a, workers);
	layout(&p, mem);
	p.plan->ops = ops;
	memset(p.plan->nr_parts, 0, a->batch * sizeof(*p.plan->nr_parts));
	memset(p.plan->places, 0, a->batch * sizeof(*p.plan->places));
	add_segments(&p);
	add_parts(&p);
	for (i = 0; i < a->batch; i++) {
		atomic_init(&p.plan->pending[i], p.plan->nr_parts[i]);
		if (!p.plan->nr_parts[i])
			continue;
		p.plan->places[i].nr_slots = p.seqs[i].end - p.plan->places[i].base;
		p.plan->partial_bytes +=
			p.plan->places[i].nr_slots * slot_floats(a) * sizeof(float);
	}
	*out = p.plan;
	return 0;
}

void kern_plan_partials(struct kern_plan *plan, const struct kern_attn *a, void *mem)
{
	float *at = mem;
	uint32_t i;

	for (i = 0; i < plan->batch; i++) {
		plan->places[i].rows = at;
		at += plan->places[i].nr_slots * slot_floats(a);
	}
}

/* A segment's parts stand side by side: one of them is enough for the same chunks. */
bool kern_plan_holds(const struct kern_plan *plan, const struct kern_attn *a)
{
	const size_t words = kern_chunk_tokens(&a->view) / a->view.page_tokens;
	const struct kern_part *last = NULL;
	uint32_t i, m;

	for (i = 0; i < plan->items[plan->nr_items]; i++) {
		const struct kern_part *part = &plan->parts[i];
		size_t from = part->chunk0 * words, n = (part->chunk1 - part->chunk0) * words;

		if (part->nr_seqs < 2 || (last && last->seqs == part->seqs &&
					  last->chunk0 == part->chunk0))
			continue;
		last = part;
		for (m = 1; m < part->nr_seqs; m++)
			if (memcmp(a->pte[part->seqs[0]] + from, a->pte[part->seqs[m]] + from,
				   n * sizeof(uint64_t)))
				return false;
	}
	return true;
}

/* ---- running ---- */

/* The last part of a sequence to be done sees all the others' partials. */
static void part_done(struct kern_plan *plan, const struct kern_attn *a, uint32_t seq,
		      void *scratch)
{
	struct kern_part fold = {
		.kind = KERN_PART_FOLD,
		.seqs = &seq,
		.nr_seqs = 1,
		.head1 = a->view.kv_heads,
		.block1 = kern_blocks(a),
		.places = plan->places,
	};

	if (atomic_fetch_sub_explicit(&plan->pending[seq], 1, memory_order_acq_rel) != 1)
		return;
	atomic_store_explicit(&plan->pending[seq], plan->nr_parts[seq], memory_order_relaxed);
	plan->ops->run(a, &fold, scratch);
}

void kern_plan_item(struct kern_plan *plan, const struct kern_attn *a, uint32_t item, void *scratch)
{
	uint32_t i, m;

	for (i = plan->items[item]; i < plan->items[item + 1]; i++) {
		const struct kern_part *part = &plan->parts[i];

		plan->ops->run(a, part, scratch);
		if (part->kind == KERN_PART_WHOLE)
			continue;
		for (m = 0; m < part->nr_seqs; m++)
			part_done(plan, a, part->seqs[m], scratch);
	}
}
