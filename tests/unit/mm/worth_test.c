// SPDX-License-Identifier: Apache-2.0
/* What is learnt of reuse, beside the definition in worth.h in double and by brute force. */
#include <math.h>

#include "mmt.h"
#include "worth.h"

#define EPOCH		4096u		/* pages; then all that was counted before fades ... */
#define FADE		(31.0 / 32)	/* ... to this */
#define MAX_EPOCHS	80u
#define MAX_HITS	(MAX_EPOCHS * EPOCH)
#define CLASS		4u
#define OTHER		7u

struct hit {
	uint32_t class, epoch;		/* epoch: of the page it is of */
	uint64_t gap_ms;
};

/* All that happened; pages by the epoch they entered in. */
struct history {
	uint32_t entered[MAX_EPOCHS][POLICY_CLASSES];
	uint64_t epoch_ms[MAX_EPOCHS + 1], now_ms;
	struct hit hit[MAX_HITS];
	uint32_t nr_pages, nr_hits;
	struct worth w;
	bool fresh;			/* the last page made a table */
};

static void enter(struct history *h, uint32_t class, uint64_t now_ms)
{
	assert_true(h->nr_pages < MAX_EPOCHS * EPOCH);
	if (!h->nr_pages)
		h->epoch_ms[0] = now_ms;
	h->fresh = h->w.due == 1;
	worth_enter(&h->w, class, now_ms);
	worth_check(&h->w);
	h->entered[h->nr_pages++ / EPOCH][class]++;
	h->now_ms = now_ms;
	if (h->nr_pages % EPOCH == 0)
		h->epoch_ms[h->nr_pages / EPOCH] = now_ms;
}

static void hit(struct history *h, uint32_t class, uint64_t gap_ms, uint64_t now_ms)
{
	uint32_t epoch = h->nr_pages / EPOCH;

	assert_true(h->nr_hits < MAX_HITS);
	while (epoch && h->epoch_ms[epoch] > now_ms - gap_ms)
		epoch--;
	worth_reuse(&h->w, class, gap_ms, now_ms);
	h->hit[h->nr_hits++] = (struct hit){ class, epoch, gap_ms };
}

/* ---- the definition ------------------------------------------------------------------------ */

static double start_of(uint32_t b)
{
	return b < 4 ? b : ldexp(4 + b % 4, (int)(b / 4) - 1);
}

static uint32_t bucket_of(double ms)
{
	uint32_t b = 0;

	while (b + 1 < WORTH_BUCKETS && start_of(b + 1) <= ms)
		b++;
	return b;
}

static double weight(uint32_t epoch, uint32_t now_epoch)
{
	return pow(FADE, now_epoch - epoch);
}

/* Hits of a class in a bucket, averaged with five neighbours each way in a triangle. */
static double smoothed(const double *raw, uint32_t b)
{
	double sum = 0;

	if (b < 8 || b + 5 >= WORTH_BUCKETS)
		return raw[b];
	for (int i = -5; i <= 5; i++)
		sum += (6 - abs(i)) * raw[(int)b + i];
	return sum / 36;
}

/* Pages a class had that are old enough to have reached an age, by the middle of their epoch; the
 * time of the last 64 epochs is known, what is older has reached any. */
static double reached(const struct history *h, uint32_t class, double age, double now,
		      uint32_t now_epoch)
{
	double sum = 0;

	for (uint32_t e = 0; e <= now_epoch; e++) {
		double from = (double)h->epoch_ms[e];
		double to = e == now_epoch ? now : (double)h->epoch_ms[e + 1];

		if (e + WORTH_EPOCHS <= now_epoch || from + floor((to - from) / 2) + age <= now)
			sum += h->entered[e][class] * weight(e, now_epoch);
	}
	return sum;
}

static uint32_t lowest_bucket(const struct history *h, uint32_t now_epoch)
{
	double raw[WORTH_BUCKETS] = { 0 }, sum = 0, half = 0;
	uint32_t b;

	for (uint32_t i = 0; i < h->nr_hits; i++) {
		double by = weight(h->hit[i].epoch, now_epoch);

		raw[bucket_of((double)h->hit[i].gap_ms)] += by;
		sum += by;
	}
	for (b = 0; b < WORTH_BUCKETS && half < sum / 2; b++)
		half += raw[b];
	return bucket_of(floor(start_of(b) / 16));
}

static void define(const struct history *h, uint32_t class, double *index)
{
	uint32_t now_epoch = (h->nr_pages - 1) / EPOCH, first = lowest_bucket(h, now_epoch);
	double now = (double)h->now_ms, raw[WORTH_BUCKETS] = { 0 };
	double x[WORTH_BUCKETS + 1] = { 0 }, y[WORTH_BUCKETS + 1] = { 0 }, alive = 1;
	double all = reached(h, class, 0, now, now_epoch);

	for (uint32_t i = 0; i < h->nr_hits; i++)
		if (h->hit[i].class == class)
			raw[bucket_of((double)h->hit[i].gap_ms)] +=
				weight(h->hit[i].epoch, now_epoch);
	for (uint32_t b = 0; b < WORTH_BUCKETS; b++) {
		double old = reached(h, class, start_of(b), now, now_epoch), f;

		f = smoothed(raw, b) / fmax(old, all / 8);
		f = fmin(f, alive);
		y[b + 1] = y[b] + f;
		x[b + 1] = x[b] + (start_of(b + 1) - start_of(b)) * (alive - f / 2);
		alive = fmax(alive - f, ldexp(1, -22));
	}
	for (uint32_t b = 0; b < WORTH_BUCKETS; b++) {
		uint32_t from = b < first ? 0 : b;

		index[b] = 0;
		for (uint32_t to = (from < first ? first : from + 1); to <= WORTH_BUCKETS; to++)
			index[b] = fmax(index[b], (y[to] - y[from]) / (x[to] - x[from]));
	}
}

static void assert_as_defined(struct history *h, uint32_t class)
{
	double index[WORTH_BUCKETS], most = 0;

	assert_true(h->fresh);
	define(h, class, index);
	for (uint32_t b = 0; b < WORTH_BUCKETS; b++)
		most = fmax(most, index[b]);
	for (uint32_t b = 0; b < WORTH_BUCKETS - 1; b++) {
		uint64_t got = worth_of(&h->w, class, worth_bucket_start(b));
		double want = index[b] * (double)WORTH_ONE;

		if (fabs((double)got - want) > .01 * want + 1e-6 * most * (double)WORTH_ONE)
			fail_msg("class %u from %.0f ms: %.6g, defined %.6g", class, start_of(b),
				 (double)got, want);
	}
}

/* ---- histories ----------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *s)
{
	*s = core_mix(*s);
	return *s >> 20;
}

/* A page every step ms, of two classes; of ten of CLASS so many are used again, of OTHER six, after
 * gaps whose logarithm is uniform. */
static void live(struct history *h, uint32_t pages, uint32_t step, uint32_t chance, uint64_t seed)
{
	for (uint32_t i = 0; i < pages || !h->fresh; i++) {
		uint64_t now = 1000 + (uint64_t)(h->nr_pages + 1) * step, gap;
		uint32_t class = next_random(&seed) % 3 ? CLASS : OTHER;

		enter(h, class, now);
		if (next_random(&seed) % 10 < (class == CLASS ? chance : 6u)) {
			gap = 1ull << next_random(&seed) % 14;
			gap += next_random(&seed) % gap - 1;
			if (gap < now - 1000 && !h->fresh)
				hit(h, class, gap, now);
		}
	}
}

static void *zeroed(void)
{
	void *p = calloc(1, sizeof(struct history));

	assert_non_null(p);
	return p;
}

static void index_is_as_defined(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 6; seed++) {
		struct history *h = zeroed();

		live(h, 500 * (uint32_t)seed, 1 + (uint32_t)seed * 7, 3, seed);
		assert_as_defined(h, CLASS);
		assert_as_defined(h, OTHER);
		free(h);
	}
}

static void index_is_as_defined_once_counts_have_faded(void **state)
{
	struct history *h = zeroed();

	(void)state;
	live(h, 3 * EPOCH, 3, 4, 11);
	assert_as_defined(h, CLASS);
	live(h, 68 * EPOCH, 3, 2, 12);
	assert_as_defined(h, CLASS);
	assert_as_defined(h, OTHER);
	free(h);
}

/* Every page comes back, and some twice: none is left alive. */
static void more_hits_than_pages_are_a_certainty(void **state)
{
	struct history *h = zeroed();

	(void)state;
	for (uint32_t i = 0; i < 3000 || !h->fresh; i++) {
		uint64_t now = 1000 + i * 10ull;

		enter(h, CLASS, now);
		for (uint32_t k = 0; k < 2 && i > 50 && !h->fresh; k++)
			hit(h, CLASS, 100 + k * 150, now);
	}
	assert_as_defined(h, CLASS);
	free(h);
}

/* What a class once was is forgotten, to the last unit. */
static void counts_fade_to_nothing(void **state)
{
	struct worth *w = calloc(1, sizeof(*w));

	(void)state;
	assert_non_null(w);
	worth_enter(w, OTHER, 1000);
	worth_reuse(w, OTHER, 0, 1000);
	worth_reuse(w, OTHER, 500, 1000);
	assert_true(w->seen[OTHER] && w->reuse[OTHER][0]);
	for (uint32_t i = 0; i < 300 * EPOCH; i++)
		worth_enter(w, CLASS, 1001 + i);
	assert_int_equal(w->seen[OTHER], 0);
	for (uint32_t b = 0; b < WORTH_BUCKETS; b++)
		assert_int_equal(w->reuse[OTHER][b], 0);
	free(w);
}

/* A class of which nothing ever comes back is worth nothing at any age. */
static void what_never_comes_back_is_worth_nothing(void **state)
{
	struct history *h = zeroed();

	(void)state;
	for (uint32_t i = 0; i < 1000 || !h->fresh; i++) {
		enter(h, i % 2 ? CLASS : OTHER, 1000 + i * 10);
		if (i % 2 && i > 300)
			hit(h, CLASS, 2000, 1000 + i * 10);
	}
	for (uint32_t b = 0; b < WORTH_BUCKETS; b++)
		assert_int_equal(worth_of(&h->w, OTHER, worth_bucket_start(b)), 0);
	assert_true(worth_of(&h->w, CLASS, 1000) > 0);
	free(h);
}

/* Tables are made often while little is known. */
static void tables_come_early_and_then_every_thousand_pages(void **state)
{
	struct history *h = zeroed();
	uint32_t last = 0, nr = 0;

	(void)state;
	for (uint32_t i = 1; i <= 20000; i++) {
		enter(h, CLASS, 1000 + i);
		if (!h->fresh)
			continue;
		assert_int_equal(i - last, !nr ? 64 : last / 8 < 64 ? 64 :
				 last / 8 < 1024 ? last / 8 : 1024);
		last = i;
		nr++;
	}
	assert_true(nr > 20);
	free(h);
}

static void buckets_are_four_an_octave(void **state)
{
	(void)state;
	for (uint32_t b = 0; b < WORTH_BUCKETS; b++) {
		assert_int_equal(worth_bucket_start(b), (uint64_t)start_of(b));
		assert_int_equal(worth_bucket(worth_bucket_start(b)), b);
		if (b)
			assert_int_equal(worth_bucket(worth_bucket_start(b) - 1), b - 1);
	}
	assert_int_equal(worth_bucket((uint64_t)start_of(WORTH_BUCKETS)), WORTH_BUCKETS - 1);
	assert_int_equal(worth_bucket(UINT64_MAX), WORTH_BUCKETS - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(index_is_as_defined),
		cmocka_unit_test(index_is_as_defined_once_counts_have_faded),
		cmocka_unit_test(more_hits_than_pages_are_a_certainty),
		cmocka_unit_test(counts_fade_to_nothing),
		cmocka_unit_test(what_never_comes_back_is_worth_nothing),
		cmocka_unit_test(tables_come_early_and_then_every_thousand_pages),
		cmocka_unit_test(buckets_are_four_an_octave),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
