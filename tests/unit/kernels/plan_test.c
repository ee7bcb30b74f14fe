// SPDX-License-Identifier: Apache-2.0
/* Plans: every chunk once, items of equal cost, shared pages found, and the bits of kern_attn()
 * whatever is shared, split, or run by how many threads. */
#include "attn_case.h"

#include <pthread.h>
#include <time.h>

#include "kern_impl.h"

struct made {
	struct kern_plan *plan;
	void *mem, *partials;
};

static struct made make(const struct kern_attn *at, enum kern_impl impl, uint32_t workers)
{
	struct made m = {.mem = attn_alloc(kern_plan_bytes(at, workers))};

	assert_int_equal(kern_plan_make(at, impl, workers, m.mem, &m.plan), 0);
	m.partials = attn_alloc(m.plan->partial_bytes);
	kern_plan_partials(m.plan, at, m.partials);
	return m;
}

static void drop(struct made *m)
{
	free(m->mem);
	free(m->partials);
}

/* A case of long sequences, so that calls are split over several chunks. */
static struct attn_case draw(uint64_t seed)
{
	static const uint32_t pages[] = {1, 16, 61, 64, 128, 1000, 4096};
	static const uint32_t lens[] = {2047, 2048, 2049, 4096, 6145};
	uint64_t *s = &seed;
	struct attn_case c = {
		.kind = attn_below(s, 3) ? KERN_GQA : KERN_MLA,
		.dtype = 1 + attn_below(s, 5),
		.scale = attn_below(s, 3),
		.q_dtype = 1 + attn_below(s, 3),
		.page_tokens = pages[attn_below(s, 7)],
		.kv_heads = 1 + attn_below(s, 3),
		.group = 1 + attn_below(s, 6),
		.dk = 8 + 8 * attn_below(s, 4),
		.dv = 8 + 8 * attn_below(s, 4),
		.batch = 1 + attn_below(s, 4),
		.q_len = attn_below(s, 3) ? 1 : 1 + attn_below(s, 5),
		.window = attn_below(s, 4) ? 0 : 1 + attn_below(s, 5000),
		.softcap = attn_below(s, 5) ? 0 : 3,
		.starts = !attn_below(s, 5),
		.ends = !attn_below(s, 5),
		.sinks = !attn_below(s, 3),
		.alibi = !attn_below(s, 4),
		.strided = attn_below(s, 2),
		.no_lse = !attn_below(s, 8),
	};
	uint32_t i;

	if (c.kind == KERN_MLA)
		c.kv_heads = 1;
	if (c.ends) /* fp32 has no digits for small differences of far biases */
		c.alibi = false;
	if (!attn_below(s, 8)) /* more rows than a block has */
		c.q_len = 30 + attn_below(s, 30);
	for (i = 0; i < c.batch; i++) {
		c.len[i] = attn_below(s, 2) ? lens[attn_below(s, 5)] : attn_below(s, 7000);
		c.start[i] = attn_below(s, c.len[i] + 2);
		c.end[i] = attn_below(s, c.len[i] + 70);
	}
	c.seed = seed;
	return c;
}

static void split_in_every_way(void **state)
{
	uint32_t i;

	(void)state;
	for (i = 0; i < 40; i++)
		attn_check_all(draw(i));
}

/* ---- sharing ---- */

/* Pages [from, to) of the sequences in mask are copies of the first one's, or the same ones. */
struct share {
	uint32_t mask, from, to;
};

static void share(struct attn_case *c, struct share s, bool copies)
{
	uint32_t first = (uint32_t)__builtin_ctz(s.mask), seq, page;

	for (seq = first + 1; seq < c->batch; seq++)
		for (page = s.from; page < s.to && s.mask >> seq & 1; page++)
			if (copies)
				memcpy((void *)(uintptr_t)c->pte[seq][page],
				       (void *)(uintptr_t)c->pte[first][page], c->page_bytes);
			else
				c->pte[seq][page] = c->pte[first][page];
}

/* What the batch gives with copies it gives with shared pages, planned or not. */
static void check_shared(struct attn_case c, const struct share *s, uint32_t nr, uint32_t segments)
{
	static const uint32_t workers[] = {1, 2, 7, 300};
	uint32_t i, w;

	attn_build(&c);
	for (i = 0; i < nr; i++)
		share(&c, s[i], true);
	free(c.ref_out);
	free(c.ref_lse);
	attn_reference(&c);
	attn_for_each_impl(impl)
	{
		attn_expect(&c, impl);
		attn_expect_plans(&c, impl);
		assert_int_equal(attn_run_plan(&c.at, impl, 2, 0), 0);
	}
	for (i = 0; i < nr; i++)
		share(&c, s[i], false);
	attn_for_each_impl(impl)
	{
		size_t size = c.out_elems * 4;
		void *out = malloc(size), *lse = malloc(c.out_rows * 4);

		attn_expect(&c, impl);
		attn_expect_plans(&c, impl);
		memcpy(out, c.out, size);
		memcpy(lse, c.lse, c.out_rows * 4);
		for (w = 0; w < 4; w++) {
			memset(c.out, ATTN_POISON, size);
			i = attn_run_plan(&c.at, impl, workers[w], w);
			if (i != segments)
				fail_msg("%u shared segments, not %u", i, segments);
			assert_memory_equal(out, c.out, size);
			if (c.at.lse)
				assert_memory_equal(lse, c.lse, c.out_rows * 4);
		}
		free(out);
		free(lse);
	}
	attn_free(&c);
}

static void eight_sharers(void **state)
{
	struct attn_case c = {
		.batch = 8, .kv_heads = 2, .group = 4, .dk = 32, .q_dtype = KERN_BF16, .seed = 1};
	uint32_t i;

	(void)state;
	for (i = 0; i < 8; i++)
		c.len[i] = 4096 + 100 * i;
	check_shared(c, &(struct share){0xff, 0, 64}, 1, 1);
	/* the border of the shared pages is not one of chunks */
	check_shared(c, &(struct share){0xff, 0, 50}, 1, 1);
	check_shared(c, &(struct share){0xff, 0, 31}, 1, 0);
	for (c.dtype = KERN_F8; c.dtype <= KERN_I8; c.dtype++) {
		c.scale = c.dtype == KERN_F8 ? KERN_SCALE_TOKEN : KERN_SCALE_HEAD;
		check_shared(c, &(struct share){0xff, 0, 64}, 1, 1);
	}
	c.dtype = KERN_BF16;
	c.q_len = 3;
	c.sinks = true;
	c.len[0] += 2; /* all its queries see the whole of the second chunk, or only the last */
	check_shared(c, &(struct share){0xff, 0, 64}, 1, 1);
	c.len[0]--;
	check_shared(c, &(struct share){0xff, 0, 64}, 1, 2);
}

/* A tree: all share a chunk, some of them more, two others another tail of their own. */
static void tree_of_prefixes(void **state)
{
	struct attn_case c = {.batch = 6,
			      .group = 3,
			      .dk = 16,
			      .len = {7000, 6500, 6600, 7000, 2300, 6144},
			      .softcap = 2,
			      .alibi = true,
			      .seed = 2};

	(void)state;
	check_shared(c,
		     (const struct share[]){
			     {0x3f, 0, 32}, {0x27, 0, 64}, {0x18, 0, 36}, {0x21, 0, 96}},
		     4, 3);
}

static void shared_latents(void **state)
{
	struct attn_case c = {.kind = KERN_MLA,
			      .batch = 5,
			      .group = 16,
			      .dk = 64,
			      .dv = 16,
			      .len = {4200, 4196, 5000, 4100, 4100},
			      .q_dtype = KERN_BF16,
			      .seed = 3};

	(void)state;
	check_shared(c, &(struct share){0x1f, 0, 64}, 1, 1);
	/* two fit a block: two pairs, and one alone */
	c.q_len = 4;
	check_shared(c, &(struct share){0x1f, 0, 64}, 1, 2);
	/* more rows than half a block: nothing is gained */
	c.q_len = 5;
	check_shared(c, &(struct share){0x1f, 0, 64}, 1, 0);
}

/* Windows begin in different chunks: those all see wholly are shared, and what stands in a table
 * before them is not looked at. */
static void shared_behind_windows(void **state)
{
	struct attn_case c = {.batch = 3,
			      .group = 2,
			      .dk = 16,
			      .len = {10300, 10250, 12200},
			      .window = 8100,
			      .seed = 4};

	(void)state;
	check_shared(c, &(struct share){7, 64, 160}, 1, 2);
}

/* ---- what a plan is made of ---- */

static uint32_t chunks_of(const struct kern_attn *at, uint32_t seq, uint32_t *first)
{
	struct kern_span lo = kern_span(at, seq, 0), hi = kern_span(at, seq, at->q_len - 1);
	uint32_t chunk = kern_chunk_tokens(&at->view);

	*first = lo.lo / chunk;
	return lo.lo < hi.hi ? (hi.hi - 1) / chunk + 1 : *first;
}

/* Counts the part in seen[head][block][chunk of the sequence]. */
static void count_part(const struct kern_part *p, unsigned char *seen, uint32_t blocks,
		       uint32_t first, uint32_t end)
{
	uint32_t h, b, c;

	assert_true(p->chunk0 >= first && p->chunk1 <= end && p->block1 <= blocks);
	for (h = p->head0; h < p->head1; h++)
		for (b = p->block0; b < p->block1; b++)
			for (c = p->chunk0; c < p->chunk1; c++)
				seen[(h * blocks + b) * (end - first) + c - first]++;
}

/* Every (sequence, head, block, chunk) is in one part. */
static void check_cover(const struct kern_attn *at, const struct kern_plan *plan)
{
	uint32_t heads = at->view.kv_heads, blocks = kern_blocks(at), seq, i, m, first, end;

	for (seq = 0; seq < at->batch; seq++) {
		unsigned char *seen;

		end = chunks_of(at, seq, &first);
		if (first == end)
			continue;
		seen = calloc((size_t)heads * blocks * (end - first), 1);
		for (i = 0; i < plan->items[plan->nr_items]; i++)
			for (m = 0; m < plan->parts[i].nr_seqs; m++)
				if (plan->parts[i].seqs[m] == seq)
					count_part(&plan->parts[i], seen, blocks, first, end);
		for (i = 0; i < heads * blocks * (end - first); i++)
			assert_int_equal(seen[i], 1);
		free(seen);
	}
}

static void every_chunk_once(void **state)
{
	static const uint32_t workers[] = {1, 2, 3, 16, 1000};
	uint32_t i, w;

	(void)state;
	for (i = 0; i < 20; i++) {
		struct attn_case c = draw(100 + i);

		attn_build(&c);
		if (c.batch > 1 && c.len[0] > 2100 && c.len[1] > 2100)
			share(&c, (struct share){3, 0, 2048 / c.page_tokens}, false);
		for (w = 0; w < 5; w++) {
			struct made m = make(&c.at, KERN_GENERIC, workers[w]);

			check_cover(&c.at, m.plan);
			drop(&m);
			m = make(&c.at, KERN_REF, workers[w]);
			check_cover(&c.at, m.plan);
			assert_true(!m.plan->partial_bytes);
			drop(&m);
		}
		attn_free(&c);
	}
}

static uint64_t item_rows(const struct kern_plan *plan, const struct kern_attn *at, uint32_t item)
{
	uint64_t rows = 0, chunk = kern_chunk_tokens(&at->view), lo, hi;
	uint32_t i;

	for (i = plan->items[item]; i < plan->items[item + 1]; i++) {
		const struct kern_part *p = &plan->parts[i];

		lo = p->chunk0 * chunk;
		hi = p->chunk1 * chunk;
		if (hi > at->kv_len[p->seqs[0]])
			hi = at->kv_len[p->seqs[0]];
		rows += (hi - lo) * (p->head1 - p->head0);
	}
	return rows;
}

/* A call of unequal sequences on two workers: no item is much more than its share. */
static void items_of_equal_cost(void **state)
{
	static const uint32_t sets[3][4] = {
		{65536, 100, 1, 3000}, {8192, 8192, 8192, 8192}, {16384, 0, 0, 0}};
	static uint64_t pages[2048];
	const uint64_t *pte[4] = {pages, pages, pages, pages};
	uint32_t i, k;

	(void)state;
	for (i = 0; i < 2048; i++)
		pages[i] = 64ull * i;
	for (k = 0; k < 3; k++) {
		struct attn_case c = {.kv_heads = 8, .group = 4, .dk = 128, .dv = 128, .batch = 4};
		uint64_t most = 0, sum = 0;
		struct made m;

		attn_defaults(&c);
		attn_build_view(&c);
		c.at.batch = 4;
		c.at.heads = 32;
		c.at.q_len = 1;
		c.at.q_dtype = KERN_F32;
		c.at.pte = pte;
		c.at.kv_len = sets[k];
		c.at.q = c.at.out = pages;
		c.at.out_stride_seq = c.at.out_stride_tok = c.at.out_stride_head = 4096;
		c.at.scale = 1;
		c.at.window = k == 1 ? 8192 : 0;
		m = make(&c.at, KERN_GENERIC, 2);
		for (i = 0; i < m.plan->nr_items; i++) {
			uint64_t rows = item_rows(m.plan, &c.at, i);

			most = rows > most ? rows : most;
			sum += rows;
		}
		assert_true(m.plan->nr_items >= 4 && m.plan->nr_items <= 16);
		if (most > sum / 4)
			fail_msg("an item of %lu of %lu rows", most, sum);
		drop(&m);
	}
}

static double seconds_to_plan(uint32_t batch, bool shared)
{
	uint32_t pages = 128, i, run, *len = malloc(batch * sizeof(*len));
	uint64_t *words = malloc((size_t)batch * pages * sizeof(*words));
	const uint64_t **pte = malloc(batch * sizeof(*pte));
	struct attn_case c = {.group = 4, .batch = 1};
	double best = 1e9;
	struct made m;

	attn_defaults(&c);
	attn_build_view(&c);
	for (i = 0; i < batch * pages; i++)
		words[i] = 64ull * (shared ? i % pages : i);
	for (i = 0; i < batch; i++) {
		pte[i] = words + (size_t)i * pages;
		len[i] = pages * 64;
	}
	c.at.batch = batch;
	c.at.heads = 4;
	c.at.q_len = 1;
	c.at.q_dtype = KERN_F32;
	c.at.pte = pte;
	c.at.kv_len = len;
	c.at.q = c.at.out = words;
	c.at.out_stride_seq = c.at.out_stride_head = 64;
	c.at.scale = 1;
	for (run = 0; run < 7; run++) {
		struct timespec a, b;
		double s;

		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
		m = make(&c.at, KERN_GENERIC, 8);
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
		assert_int_equal(m.plan->nr_shared, shared ? (batch + 31) / 32 : 0);
		drop(&m);
		s = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
		best = s < best ? s : best;
	}
	free(len);
	free(words);
	free(pte);
	return best;
}

/* Eight times the sequences take eight times as long, not 64 times. */
static void a_thousand_sequences(void **state)
{
	(void)state;
	assert_true(seconds_to_plan(1024, false) < 28 * seconds_to_plan(128, false));
	assert_true(seconds_to_plan(1024, true) < 28 * seconds_to_plan(128, true));
}

/* ---- threads, and a plan that is used twice ---- */

struct crew {
	struct kern_plan *plan;
	const struct kern_attn *at;
	enum kern_impl impl;
	_Atomic uint32_t next;
};

static void *pull(void *arg)
{
	struct crew *crew = arg;
	void *scratch = attn_alloc(kern_attn_scratch(crew->at, crew->impl));
	uint32_t i;

	while ((i = atomic_fetch_add(&crew->next, 1)) < crew->plan->nr_items)
		kern_plan_item(crew->plan, crew->at, i, scratch);
	free(scratch);
	return NULL;
}

static void same_bits_from_any_number_of_threads(void **state)
{
	static const uint32_t nr[] = {1, 2, 7};
	struct attn_case c = {.batch = 3,
			      .len = {9000, 4500, 4200},
			      .kv_heads = 2,
			      .group = 4,
			      .dk = 32,
			      .sinks = true,
			      .seed = 9};
	pthread_t thread[7];
	uint32_t i, t;

	(void)state;
	attn_build(&c);
	share(&c, (struct share){6, 0, 64}, false);
	attn_for_each_impl(impl)
	{
		float *out = malloc(c.out_elems * 4);

		assert_int_equal(attn_run(&c.at, impl), 0);
		memcpy(out, c.out, c.out_elems * 4);
		for (i = 0; i < 6; i++) {
			struct made m = make(&c.at, impl, nr[i / 2]);
			struct crew crew = {.plan = m.plan, .at = &c.at, .impl = impl};
			uint32_t twice;

			for (twice = 0; twice < 2; twice++) {
				memset(c.out, ATTN_POISON, c.out_elems * 4);
				atomic_store(&crew.next, 0);
				for (t = 0; t < nr[i / 2]; t++)
					assert_int_equal(
						pthread_create(&thread[t], NULL, pull, &crew), 0);
				for (t = 0; t < nr[i / 2]; t++)
					pthread_join(thread[t], NULL);
				assert_memory_equal(out, c.out, c.out_elems * 4);
			}
			drop(&m);
		}
		free(out);
	}
	attn_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(split_in_every_way),
		cmocka_unit_test(eight_sharers),
		cmocka_unit_test(tree_of_prefixes),
		cmocka_unit_test(shared_latents),
		cmocka_unit_test(shared_behind_windows),
		cmocka_unit_test(every_chunk_once),
		cmocka_unit_test(items_of_equal_cost),
		cmocka_unit_test(a_thousand_sequences),
		cmocka_unit_test(same_bits_from_any_number_of_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
