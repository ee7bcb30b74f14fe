// SPDX-License-Identifier: Apache-2.0
/* attn_lane - contract in attn_lane.h */
#include "attn_lane.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench.h"
#include "kern_num.h"

#define HUGE_PAGE    (2ull << 20)
#define MAX_TEMPLATE 16u /* pages whose values differ */

/* ---- values ---- */

static uint64_t rand_next(uint64_t *s)
{
	uint64_t z = *s += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

/* About randn / 10. */
static float rand_value(uint64_t *s)
{
	uint64_t r = rand_next(s);
	int sum = (int)(r & 0xffff) + (int)(r >> 16 & 0xffff) + (int)(r >> 32 & 0xffff) +
		  (int)(r >> 48);

	return ((float)sum / 65536 - 2) * 1.7320508f / 10;
}

static void rand_fill(float *p, size_t n, uint64_t *s)
{
	while (n--)
		*p++ = rand_value(s);
}

/* ---- geometry ---- */

/* A scale for each head, of values up to 1: others are in the pages. */
static int lane_scales(struct attn_lane *l)
{
	uint32_t i, n = l->shape.kv_heads;

	if (l->shape.scale != KERN_SCALE_HEAD)
		return 0;
	l->scales = malloc(n * sizeof(*l->scales));
	if (!l->scales)
		return -ENOMEM;
	for (i = 0; i < n; i++)
		l->scales[i] = l->shape.dtype == KERN_F8 ? 1.0f / 448 : 1.0f / 127;
	l->at.k_scale = l->scales;
	l->at.v_scale = l->shape.kind == KERN_MLA ? NULL : l->scales;
	return 0;
}

static int lane_map(struct attn_lane *l, size_t want)
{
	size_t table = l->page_bytes * l->table_pages;

	l->nr_tables = (uint32_t)((want + table - 1) / table);
	if (l->nr_tables < 2)
		l->nr_tables = 2;
	l->pool_bytes = (l->nr_tables * table + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
	l->pool = mmap(NULL, l->pool_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		       0);
	if (l->pool == MAP_FAILED) {
		l->pool = NULL;
		return -ENOMEM;
	}
	/* where it may not have huge pages it is measured with small ones, as are the ceilings */
	madvise(l->pool, l->pool_bytes, MADV_HUGEPAGE);
	return 0;
}

/* The first pages get values by way of the store, all others are copies of them. */
static int lane_fill(struct attn_lane *l)
{
	const struct kern_view *v = &l->at.view;
	bool mla = v->kind == KERN_MLA;
	size_t nk = (size_t)v->page_tokens * (mla ? v->head_dim : v->kv_heads * v->head_dim);
	size_t nv = (size_t)v->page_tokens * (mla ? v->head_dim_v : v->kv_heads * v->head_dim_v);
	float *k = malloc(nk * sizeof(*k)), *val = malloc(nv * sizeof(*val));
	size_t i, pages = (size_t)l->nr_tables * l->table_pages;
	uint64_t seed = 1, pte;
	int err = k && val ? 0 : -ENOMEM;

	for (i = 0; i < pages && !err; i++) {
		char *page = l->pool + i * l->page_bytes;

		if (i >= MAX_TEMPLATE) {
			memcpy(page, l->pool + i % MAX_TEMPLATE * l->page_bytes, l->page_bytes);
			continue;
		}
		rand_fill(k, nk, &seed);
		rand_fill(val, nv, &seed);
		pte = (uintptr_t)page;
		err = kern_store(&(struct kern_store){ .view = *v,
						       .pte = &pte,
						       .n = v->page_tokens,
						       .k = k,
						       .v = val,
						       .k_scale = l->at.k_scale,
						       .v_scale = l->at.v_scale });
	}
	free(k);
	free(val);
	return err;
}

static int lane_pages(struct attn_lane *l)
{
	size_t n = (size_t)l->nr_tables * l->table_pages, i, j;
	uint64_t seed = 2, p;

	l->page = malloc(n * sizeof(*l->page));
	if (!l->page)
		return -ENOMEM;
	for (i = 0; i < n; i++)
		l->page[i] = (uintptr_t)l->pool + i * l->page_bytes;
	for (i = n; i > 1 && !l->shape.contiguous; i--) {
		j = rand_next(&seed) % i;
		p = l->page[j];
		l->page[j] = l->page[i - 1];
		l->page[i - 1] = p;
	}
	return 0;
}

/* The shared pages of a table come first, then each sequence's own. */
static int lane_tables(struct attn_lane *l)
{
	const struct attn_shape *s = &l->shape;
	uint32_t pages = attn_shape_pages(s), shared = attn_shape_shared_pages(s), t, b;
	size_t per_table = (size_t)s->batch * pages;

	l->pte = malloc(l->nr_tables * per_table * sizeof(*l->pte));
	l->seq = malloc(l->nr_tables * (size_t)s->batch * sizeof(*l->seq));
	l->len = malloc(s->batch * sizeof(*l->len));
	if (!l->pte || !l->seq || !l->len)
		return -ENOMEM;
	for (t = 0; t < l->nr_tables; t++)
		for (b = 0; b < s->batch; b++) {
			uint64_t *to = l->pte + t * per_table + (size_t)b * pages;
			const uint64_t *from = l->page + (size_t)t * l->table_pages;

			memcpy(to, from, shared * sizeof(*to));
			memcpy(to + shared, from + shared + (size_t)b * (pages - shared),
			       (pages - shared) * sizeof(*to));
			l->seq[(size_t)t * s->batch + b] = to;
			l->len[b] = s->ctx;
		}
	return 0;
}

static void *aligned(size_t bytes)
{
	return aligned_alloc(64, (bytes + 127) / 64 * 64);
}

static uint32_t q_width(const struct attn_shape *s)
{
	return s->dim;
}

static uint32_t out_width(const struct attn_shape *s)
{
	return s->dim_v;
}

static size_t q_rows(const struct attn_shape *s)
{
	return (size_t)s->batch * s->q_len * s->heads;
}

static int lane_queries(struct attn_lane *l)
{
	const struct attn_shape *s = &l->shape;
	struct kern_attn *at = &l->at;
	size_t i, n = q_rows(s) * q_width(s);
	uint64_t seed = 3;

	l->q = aligned(n * sizeof(float));
	l->out = aligned(q_rows(s) * out_width(s) * sizeof(float));
	if (!l->q || !l->out)
		return -ENOMEM;
	for (i = 0; i < n; i++)
		kern_num_put(s->q_dtype, l->q, i, rand_value(&seed));
	at->batch = s->batch;
	at->heads = s->heads;
	at->q_len = s->q_len;
	at->q_dtype = s->q_dtype;
	at->pte = l->seq;
	at->kv_len = l->len;
	at->q = l->q;
	at->q_stride_head = q_width(s);
	at->q_stride_tok = at->q_stride_head * s->heads;
	at->q_stride_seq = at->q_stride_tok * s->q_len;
	at->out = l->out;
	at->out_stride_head = out_width(s);
	at->out_stride_tok = at->out_stride_head * s->heads;
	at->out_stride_seq = at->out_stride_tok * s->q_len;
	/* logits of a standard deviation of about 1, as trained models have them */
	at->scale = 100.0f / sqrtf((float)q_width(s));
	return 0;
}

static int lane_scratch(struct attn_lane *l)
{
	size_t bytes;

	l->impl = l->shape.impl;
	if (l->impl == KERN_AUTO)
		l->impl = kern_attn_query(&l->at, &l->fast);
	if (l->impl == KERN_AUTO || !kern_impl_usable(l->impl) || kern_attn_check(&l->at))
		return -EOPNOTSUPP;
	l->scratch_bytes = (kern_attn_scratch(&l->at, l->impl) + 4095) / 4096 * 4096 + 64;
	l->scratch = aligned(l->scratch_bytes * l->shape.threads);
	bytes = kern_plan_bytes(&l->at, l->shape.threads);
	l->plan_mem = bytes ? aligned(bytes) : NULL;
	return l->scratch && l->plan_mem ? 0 : -ENOMEM;
}

/* Plans the call on the next table. */
static int lane_plan(struct attn_lane *l)
{
	uint64_t start = bench_now_ns();
	int err;

	l->at.pte = l->seq + (size_t)l->next * l->shape.batch;
	err = kern_plan_make(&l->at, l->impl, l->shape.threads, l->plan_mem, &l->plan);
	l->plan_ns = (double)(bench_now_ns() - start);
	if (err || !l->plan->partial_bytes)
		return err;
	if (l->plan->partial_bytes > l->partial_bytes) {
		free(l->partials);
		l->partial_bytes = l->plan->partial_bytes;
		l->partials = aligned(l->partial_bytes);
		if (!l->partials) {
			l->partial_bytes = 0;
			return -ENOMEM;
		}
	}
	kern_plan_partials(l->plan, &l->at, l->partials);
	return 0;
}

int attn_lane_open(struct attn_lane *l, const struct attn_shape *s, size_t pool_bytes)
{
	int err;

	memset(l, 0, sizeof(*l));
	l->shape = *s;
	l->table_pages = attn_shape_table_pages(s);
	l->page_bytes = attn_shape_view(s, &l->at.view);
	err = lane_scales(l);
	err = err ? err : lane_map(l, pool_bytes);
	err = err ? err : lane_fill(l);
	err = err ? err : lane_pages(l);
	err = err ? err : lane_tables(l);
	err = err ? err : lane_queries(l);
	err = err ? err : lane_scratch(l);
	if (err) {
		size_t pool = l->pool_bytes;

		attn_lane_close(l);
		l->pool_bytes = pool; /* what there was too little memory for */
	}
	return err;
}

void attn_lane_close(struct attn_lane *l)
{
	if (l->pool)
		munmap(l->pool, l->pool_bytes);
	free(l->page);
	free(l->pte);
	free(l->seq);
	free(l->scales);
	free(l->len);
	free(l->q);
	free(l->out);
	free(l->scratch);
	free(l->plan_mem);
	free(l->partials);
	memset(l, 0, sizeof(*l));
}

/* ---- calls ---- */

const uint64_t *attn_lane_next_pages(struct attn_lane *l)
{
	uint32_t t = l->next;

	l->next = (t + 1) % l->nr_tables;
	return l->page + (size_t)t * l->table_pages;
}

/* Whoever is free takes the next item. */
static void lane_member(void *arg, unsigned int me, unsigned int n)
{
	struct attn_lane *l = arg;
	uint32_t i;

	(void)n;
	while ((i = atomic_fetch_add_explicit(&l->item, 1, memory_order_relaxed)) <
	       l->plan->nr_items)
		kern_plan_item(l->plan, &l->at, i, l->scratch + me * l->scratch_bytes);
}

uint64_t attn_lane_run(struct attn_lane *l, struct attn_team *team, uint32_t calls, bool *lost)
{
	uint64_t ns = 0;

	while (calls--) {
		l->err = l->err ? l->err : lane_plan(l);
		if (l->err)
			return 1;
		atomic_store_explicit(&l->item, 0, memory_order_relaxed);
		ns += attn_team_run(team, lane_member, l, lost);
		l->next = (l->next + 1) % l->nr_tables;
	}
	return ns;
}

static double distance(const struct attn_lane *l, const float *want)
{
	size_t i, n = q_rows(&l->shape) * out_width(&l->shape);
	double err = 0, norm = 0, diff;

	for (i = 0; i < n; i++) {
		diff = (double)kern_num_get(l->shape.q_dtype, l->out, i) - (double)want[i];
		err += diff * diff;
		norm += (double)want[i] * (double)want[i];
	}
	return sqrt(err / norm);
}

double attn_lane_error(struct attn_lane *l, struct attn_team *team)
{
	size_t i, n = q_rows(&l->shape) * q_width(&l->shape);
	struct kern_attn at = l->at;
	float *q = aligned(n * sizeof(float));
	float *out = aligned(q_rows(&l->shape) * out_width(&l->shape) * sizeof(float));
	void *scratch;
	double err = NAN;

	at.q_dtype = KERN_F32;
	scratch = aligned(kern_attn_scratch(&at, KERN_REF));
	if (q && out && scratch) {
		for (i = 0; i < n; i++)
			q[i] = kern_num_get(l->shape.q_dtype, l->q, i);
		at.q = q;
		at.out = out;
		at.pte = l->seq + (size_t)l->next * l->shape.batch;
		l->err = kern_attn(&at, KERN_REF, scratch);
		attn_lane_run(l, team, 1, NULL);
		err = distance(l, out);
	}
	free(q);
	free(out);
	free(scratch);
	return err;
}
