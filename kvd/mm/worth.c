// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core.h"
#include "worth.h"

#define EPOCH_PAGES	4096u	/* then a new epoch begins and counts fade */
#define FADE		32u	/* by so small a part */
#define TABLE_PAGES	1024u	/* between tables at most */
#define FIRST_PAGES	64u	/* the first table */
#define SMOOTH		5u	/* buckets each way, an octave and a half at the foot */
#define ONE		(1ull << 30)	/* certainty */
#define WORTH_MAX	(1ull << 58)	/* hints multiply it */
#define ALIVE_MIN	(1ull << 8)	/* so that time goes on where all have come back */

struct point {
	uint64_t x, y;		/* time spent waiting, hits; << 30 */
};

struct worth *worth_at(const struct mm *mm, uint32_t tenant)
{
	if (mm->cfg.policy != MM_POLICY_GITTINS)
		return NULL;
	return (struct worth *)((uintptr_t)mm + mm->off_worth) + (tenant - 1);
}

void worth_init(struct mm *mm, uint32_t tenant)
{
	struct worth *w = worth_at(mm, tenant);

	if (w)
		memset(w, 0, sizeof(*w));
}

uint32_t worth_bucket(uint64_t ms)
{
	uint32_t top, b;

	if (ms < 4)
		return (uint32_t)ms;
	top = 63 - (uint32_t)__builtin_clzll(ms);
	b = 4 * (top - 1) + (uint32_t)(ms >> (top - 2) & 3);
	return b < WORTH_BUCKETS ? b : WORTH_BUCKETS - 1;
}

uint64_t worth_bucket_start(uint32_t b)
{
	return b < 4 ? b : (4ull + b % 4) << (b / 4 - 1);
}

uint64_t worth_of(const struct worth *w, uint32_t class, uint64_t age_ms)
{
	return w->table[class][worth_bucket(age_ms)];
}

/* ---- the table ----------------------------------------------------------------------------- */

/* A sixteenth of the median gap, as a bucket. */
static uint32_t floor_bucket(const struct worth *w)
{
	uint64_t sum = 0, half = 0;
	uint32_t b;

	for (uint32_t c = 0; c < POLICY_CLASSES; c++)
		for (b = 0; b < WORTH_BUCKETS; b++)
			sum += w->reuse[c][b];
	for (b = 0; b < WORTH_BUCKETS && 2 * half < sum; b++)
		for (uint32_t c = 0; c < POLICY_CLASSES; c++)
			half += w->reuse[c][b];
	return worth_bucket(worth_bucket_start(b) / 16);
}

/* Of an epoch, counted back from now. */
static uint32_t slot(const struct worth *w, uint32_t epoch)
{
	return (w->head + WORTH_EPOCHS - epoch) % WORTH_EPOCHS;
}

static uint64_t middle(const struct worth *w, uint32_t epoch, uint64_t now_ms)
{
	uint64_t start = w->start_ms[slot(w, epoch)];
	uint64_t end = epoch ? w->start_ms[slot(w, epoch - 1)] : now_ms;

	return start + (end - start) / 2;
}

/* The nearer a neighbour the more it weighs. Buckets under 8 ms are not of equal ratio. */
static uint64_t smooth(const struct worth *w, uint32_t class, uint32_t b)
{
	uint64_t sum = (SMOOTH + 1) * (uint64_t)w->reuse[class][b];

	if (b < 8 || b + SMOOTH >= WORTH_BUCKETS)
		return w->reuse[class][b];
	for (uint32_t i = 1; i <= SMOOTH; i++)
		sum += (SMOOTH + 1 - i) *
		       ((uint64_t)w->reuse[class][b - i] + w->reuse[class][b + i]);
	return sum / ((SMOOTH + 1) * (SMOOTH + 1));
}

/* The curve of a class: F over the time its pages spend waiting, at the start of each bucket. */
static void curve(const struct worth *w, uint32_t class, uint64_t now_ms, struct point *p)
{
	uint64_t alive = ONE, old = w->seen[class], least = old / 8 + 1;
	uint32_t epoch = 0;

	p[0] = (struct point){ 0, 0 };
	for (uint32_t b = 0; b < WORTH_BUCKETS; b++) {
		uint64_t from = worth_bucket_start(b), to = worth_bucket_start(b + 1), hit;

		while (epoch < w->nr_epochs && middle(w, epoch, now_ms) + from > now_ms)
			old = core_less(old, w->entered[slot(w, epoch++)][class]);
		hit = smooth(w, class, b) * ONE / (old > least ? old : least);
		hit = hit < alive ? hit : alive;
		p[b + 1].y = p[b].y + hit;
		p[b + 1].x = p[b].x + (to - from) * (alive - hit / 2);
		alive -= hit;
		alive = alive > ALIVE_MIN ? alive : ALIVE_MIN;
	}
}

static uint64_t slope(const struct point *a, const struct point *b)
{
	uint64_t wait = (b->x - a->x) >> 7, s = ((b->y - a->y) << 33) / (wait ? wait : 1);

	return s < WORTH_MAX ? s : WORTH_MAX;
}

/* The steepest chord from a to the hull, whose points left of the touching one fall off it. */
static uint64_t steepest(const struct point *a, const struct point *p, const uint8_t *hull,
			 uint32_t *nr)
{
	while (*nr > 1 && slope(a, &p[hull[*nr - 1]]) <= slope(a, &p[hull[*nr - 2]]))
		(*nr)--;
	return slope(a, &p[hull[*nr - 1]]);
}

static void make_table(struct worth *w, uint64_t now_ms)
{
	uint32_t first = floor_bucket(w);
	struct point p[WORTH_BUCKETS + 1];
	uint8_t hull[WORTH_BUCKETS + 1];

	for (uint32_t c = 0; c < POLICY_CLASSES; c++) {
		uint32_t nr = 0;

		curve(w, c, now_ms, p);
		hull[nr++] = WORTH_BUCKETS;
		for (uint32_t b = WORTH_BUCKETS; b-- > first; ) {
			w->table[c][b] = steepest(&p[b], p, hull, &nr);
			hull[nr++] = (uint8_t)b;
		}
		if (!first)
			continue;
		w->table[c][0] = steepest(&p[0], p, hull, &nr);
		for (uint32_t b = 1; b < first; b++)
			w->table[c][b] = w->table[c][0];
	}
}

/* ---- counting ------------------------------------------------------------------------------ */

static uint32_t faded(uint32_t v)
{
	return v - (v + FADE - 1) / FADE;
}

static void fade(struct worth *w)
{
	for (uint32_t c = 0; c < POLICY_CLASSES; c++) {
		w->seen[c] = faded(w->seen[c]);
		for (uint32_t b = 0; b < WORTH_BUCKETS; b++)
			w->reuse[c][b] = faded(w->reuse[c][b]);
		for (uint32_t e = 0; e < WORTH_EPOCHS; e++)
			w->entered[e][c] = faded(w->entered[e][c]);
	}
	for (uint32_t e = 0; e < WORTH_EPOCHS; e++)
		w->unit[e] = faded(w->unit[e]);
}

static void next_epoch(struct worth *w, uint64_t now_ms)
{
	w->head = (w->head + 1) % WORTH_EPOCHS;
	w->nr_epochs += w->nr_epochs < WORTH_EPOCHS;
	w->start_ms[w->head] = now_ms;
	w->unit[w->head] = WORTH_UNIT;
	memset(w->entered[w->head], 0, sizeof(w->entered[w->head]));
	w->in_epoch = 0;
}

void worth_enter(struct worth *w, uint32_t class, uint64_t now_ms)
{
	if (!w->nr_epochs) {
		next_epoch(w, now_ms);
		w->due = FIRST_PAGES;
	}
	w->seen[class] += WORTH_UNIT;
	w->entered[w->head][class] += WORTH_UNIT;
	w->total += w->total < 1u << 16;
	if (!--w->due) {
		make_table(w, now_ms);
		w->due = w->total / 8 < FIRST_PAGES ? FIRST_PAGES : w->total / 8;
		w->due = w->due < TABLE_PAGES ? w->due : TABLE_PAGES;
	}
	if (++w->in_epoch == EPOCH_PAGES) {
		fade(w);
		next_epoch(w, now_ms);
	}
}

/* The epoch in which a page entered then, the oldest for what is older. */
static uint32_t epoch_of(const struct worth *w, uint64_t then_ms)
{
	uint32_t from = 0, to = w->nr_epochs - 1;

	while (from < to) {
		uint32_t mid = (from + to) / 2;

		if (w->start_ms[slot(w, mid)] <= then_ms)
			to = mid;
		else
			from = mid + 1;
	}
	return from;
}

void worth_reuse(struct worth *w, uint32_t class, uint64_t gap_ms, uint64_t now_ms)
{
	if (w->nr_epochs)
		w->reuse[class][worth_bucket(gap_ms)] +=
			w->unit[slot(w, epoch_of(w, core_less(now_ms, gap_ms)))];
}

void worth_check(const struct worth *w)
{
	MM_ASSERT(w->head < WORTH_EPOCHS && w->nr_epochs <= WORTH_EPOCHS);
	MM_ASSERT(w->in_epoch < EPOCH_PAGES && w->due <= TABLE_PAGES);
	for (uint32_t e = 0; e < w->nr_epochs; e++) {
		MM_ASSERT(w->unit[slot(w, e)] <= WORTH_UNIT);
		if (e)
			MM_ASSERT(w->start_ms[slot(w, e)] <= w->start_ms[slot(w, e - 1)]);
	}
}
