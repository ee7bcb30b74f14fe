// SPDX-License-Identifier: Apache-2.0
/* mla_step - one step of an MLA layer; contract in kv/mla.h */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "attn_impl.h"
#include "err.h"
#include "mla.h"
#include "seq_impl.h"

#define PASS_ROWS 512u /* that go through together: bounds the scratch of a step */

/* Entries [first, first + batch) of a call, and where their activations stand. */
struct pass {
	struct kv_mla *m;
	struct kv_cache *cache;
	const struct kv_mla_step *s;
	const uint64_t *const *pte; /* NULL: by sequence */
	const uint32_t *lens;	    /* with pte */
	uint32_t q_len, first, batch, rows;
	uint32_t dtype;	   /* of x and out */
	uint32_t q_dtype;  /* of query and attended */
	float *kv_a;	   /* [rows][rank + rope] */
	float *latent;	   /* [rows][rank] */
	float *k_pe;	   /* [rows][rope] */
	float *q_a;	   /* [rows][q_rank] */
	float *q;	   /* [rows][heads][nope | rope] */
	void *query;	   /* [rows][heads][rank | rope] */
	void *attended;	   /* [rows][heads][rank] */
	float *values;	   /* [rows][heads][v_dim] */
	void *scratch;	   /* of the products, one after the other */
};

static uint32_t len_of(const struct pass *p, uint32_t i)
{
	if (p->lens)
		return p->lens[i];
	return p->s->lens ? p->s->lens[i] : kv_seq_len(p->s->seqs[i]);
}

static uint32_t position_of(const struct pass *p, uint32_t i)
{
	return p->s->positions ? p->s->positions[i] : len_of(p, i) - p->q_len;
}

/* ---- arguments ------------------------------------------------------------------------------- */

static int check_cache(const struct pass *p)
{
	const struct kv_layout *l = kv_cache_layout(p->cache, p->s->group);

	if (!l)
		return err_set(-EINVAL, "mla step: group %u does not exist", p->s->group);
	if (l->kind != KV_MLA || l->rank != p->m->p.rank || l->rope != p->m->p.rope)
		return err_set(-EINVAL,
			       "mla step: group %u has rows of %u + %u, the layer %u + %u",
			       p->s->group, l->rank, l->rope, p->m->p.rank, p->m->p.rope);
	if (p->s->layer >= l->layers)
		return err_set(-EINVAL, "mla step: layer %u does not exist, the group has %u",
			       p->s->layer, l->layers);
	if (p->s->dtype && p->s->dtype != KV_F32 && p->s->dtype != KV_BF16)
		return err_set(-EINVAL, "mla step: dtype is %u, must be f32 or bf16", p->s->dtype);
	if (p->s->batch && (!p->s->x || !p->s->out))
		return err_set(-EINVAL, "mla step: x or out is NULL");
	return 0;
}

/* A step's rows go where they belong, and every position is one the tables have. */
static int check_entry(const struct pass *p, uint32_t i)
{
	const struct kv_rope *r = p->m->p.rotary;
	uint32_t len = len_of(p, i), at;

	if (!len)
		return 0;
	if (len < p->q_len)
		return err_set(-EINVAL, "mla step: entry %u has %u tokens, fewer than its %u new",
			       i, len, p->q_len);
	at = position_of(p, i);
	if (at < r->first || at - r->first >= r->nr || p->q_len > r->nr - (at - r->first))
		return err_set(-EINVAL,
			       "mla step: entry %u: positions %u to %llu, the tables have %u from "
			       "%u on",
			       i, at, (unsigned long long)at + p->q_len, r->nr, r->first);
	if (p->pte)
		return p->pte[i] ? 0 : err_set(-EINVAL, "mla step: page table %u is NULL", i);
	return seq_check_store(p->s->seqs[i], p->s->group, len - p->q_len, p->q_len);
}

/* Entries [first, first + batch). */
static struct kv_attn attention_of(const struct pass *p, uint32_t first, uint32_t batch)
{
	struct kv_attn a = {.group = p->s->group,
			    .layer = p->s->layer,
			    .batch = batch,
			    .heads = p->m->p.heads,
			    .q_len = p->q_len,
			    .q_dtype = p->q_dtype,
			    .q = p->query,
			    .out = p->attended,
			    .scale = p->m->scale,
			    .k_scale = p->s->k_scale};

	if (p->s->lse)
		a.lse = p->s->lse + (size_t)first * p->q_len * a.heads;
	if (p->pte)
		return a;
	a.seqs = p->s->seqs + first;
	a.lens = p->s->lens ? p->s->lens + first : NULL;
	return a;
}

/* All that a store or attention would refuse, before anything is written. Attention first: it knows
 * whose the sequences are. */
static int check_entries(const struct pass *p)
{
	struct kv_attn a = attention_of(p, 0, p->s->batch);
	int err = attn_check(p->cache, &a, !p->pte);
	uint32_t i;

	for (i = 0; i < p->s->batch && !err; i++)
		err = check_entry(p, i);
	return err;
}

/* ---- scratch --------------------------------------------------------------------------------- */

static size_t max_scratch(const struct kv_mla *m, uint32_t rows)
{
	const struct gemm *all[] = {m->q, m->q_a, m->q_b, m->kv_a, m->uk, m->uv, m->o, m->combined};
	size_t most = 0, i;

	for (i = 0; i < sizeof(all) / sizeof(*all); i++) {
		size_t need = all[i] ? gemm_scratch_bytes(all[i], rows) : 0;

		most = most > need ? most : need;
	}
	return most;
}

/* Hands out parts of the arena, or only adds them up where base is NULL. */
static void *part(char *base, size_t *used, size_t bytes)
{
	void *at = base ? base + *used : NULL;

	*used += (bytes + 63) / 64 * 64;
	return at;
}

static size_t lay_out(struct pass *p, char *base)
{
	const struct kv_mla_params *w = &p->m->p;
	size_t used = 0, rows = p->rows, heads = rows * w->heads, size = kv_dtype_bytes(p->q_dtype);

	p->kv_a = part(base, &used, rows * (w->rank + w->rope) * sizeof(float));
	p->latent = part(base, &used, rows * w->rank * sizeof(float));
	p->k_pe = part(base, &used, rows * w->rope * sizeof(float));
	p->q_a = part(base, &used, rows * w->q_rank * sizeof(float));
	p->q = part(base, &used, heads * (w->nope + w->rope) * sizeof(float));
	p->query = part(base, &used, heads * (w->rank + w->rope) * size);
	p->attended = part(base, &used, heads * w->rank * size);
	p->values = part(base, &used, heads * w->v_dim * sizeof(float));
	p->scratch = part(base, &used, max_scratch(p->m, p->rows));
	return used;
}

/* ---- the new rows ---------------------------------------------------------------------------- */

static void rms_norm(float *to, const float *from, const float *weight, uint32_t n, float eps)
{
	double sum = 0;
	float by;
	uint32_t i;

	for (i = 0; i < n; i++)
		sum += (double)from[i] * from[i];
	by = (float)(1 / sqrt(sum / n + eps));
	for (i = 0; i < n; i++)
		to[i] = from[i] * by * weight[i];
}

static int multiply(const struct pass *p, const struct gemm *g, struct gemm_rows x,
		    struct gemm_rows y)
{
	return gemm_run(g, p->rows, &x, &y, p->scratch);
}

static struct gemm_rows dense(const void *data, uint32_t dtype, uint64_t width)
{
	return (struct gemm_rows){data, dtype, width, 0};
}

static struct gemm_rows input(const struct pass *p)
{
	uint64_t width = p->m->p.hidden, at = (uint64_t)p->first * p->q_len * width;

	return dense((const char *)p->s->x + at * kv_dtype_bytes(p->dtype), p->dtype, width);
}

/* Calls for each row of a padded entry, too, with position 0 of the tables: nobody looks at it. */
static uint32_t row_position(const struct pass *p, uint32_t row)
{
	uint32_t i = p->first + row / p->q_len;

	return len_of(p, i) ? position_of(p, i) + row % p->q_len : p->m->p.rotary->first;
}

static int store_entry(const struct pass *p, uint32_t i)
{
	const struct kv_mla_params *w = &p->m->p;
	size_t row = (size_t)(i - p->first) * p->q_len;
	uint32_t len = len_of(p, i);
	const struct kv_store s = {.group = p->s->group,
				   .layer = p->s->layer,
				   .pos = len - p->q_len,
				   .n = p->q_len,
				   .k = p->latent + row * w->rank,
				   .v = p->k_pe + row * w->rope,
				   .k_scale = p->s->k_scale};

	if (!len)
		return 0;
	return p->pte ? kv_store_page_rows(p->cache, &s, p->pte[i])
		      : kv_seq_store_rows(p->s->seqs[i], &s);
}

static int append(const struct pass *p)
{
	const struct kv_mla_params *w = &p->m->p;
	uint32_t width = w->rank + w->rope, row, i;
	int err = multiply(p, p->m->kv_a, input(p), dense(p->kv_a, KV_F32, width));

	for (row = 0; row < p->rows && !err; row++) {
		const float *from = p->kv_a + (size_t)row * width;
		float *k_pe = p->k_pe + (size_t)row * w->rope;

		rms_norm(p->latent + (size_t)row * w->rank, from, p->m->kv_norm, w->rank, w->eps);
		memcpy(k_pe, from + w->rank, w->rope * sizeof(*k_pe));
		err = kv_rope_apply(w->rotary, row_position(p, row), k_pe, 1, 0);
	}
	for (i = p->first; i < p->first + p->batch && !err; i++)
		err = store_entry(p, i);
	return err;
}

/* ---- the query ------------------------------------------------------------------------------- */

static int project(const struct pass *p)
{
	const struct kv_mla_params *w = &p->m->p;
	struct gemm_rows q = dense(p->q, KV_F32, (uint64_t)w->heads * (w->nope + w->rope));
	uint32_t row;
	int err;

	if (!w->q_rank)
		return multiply(p, p->m->q, input(p), q);
	err = multiply(p, p->m->q_a, input(p), dense(p->q_a, KV_F32, w->q_rank));
	for (row = 0; row < p->rows && !err; row++) {
		float *a = p->q_a + (size_t)row * w->q_rank;

		rms_norm(a, a, p->m->q_norm, w->q_rank, w->eps);
	}
	return err ? err : multiply(p, p->m->q_b, dense(p->q_a, KV_F32, w->q_rank), q);
}

/* q_pe is rotated where it stands and copied behind the absorbed part. */
static int absorb(const struct pass *p)
{
	const struct kv_mla_params *w = &p->m->p;
	uint32_t from = w->nope + w->rope, to = w->rank + w->rope, row, head;
	size_t size = kv_dtype_bytes(p->q_dtype);
	struct gemm_rows x = {p->q, KV_F32, (uint64_t)w->heads * from, from};
	struct gemm_rows y = {p->query, p->q_dtype, (uint64_t)w->heads * to, to};
	int err = multiply(p, p->m->uk, x, y);

	for (row = 0; row < p->rows && !err; row++) {
		float *q = p->q + (size_t)row * w->heads * from + w->nope;
		char *query = (char *)p->query + (size_t)row * w->heads * to * size;

		err = kv_rope_apply(w->rotary, row_position(p, row), q, w->heads, from);
		for (head = 0; head < w->heads; head++)
			gemm_convert(p->q_dtype, query + ((size_t)head * to + w->rank) * size,
				     KV_F32, q + (size_t)head * from, w->rope);
	}
	return err;
}

/* ---- attention and the way out --------------------------------------------------------------- */

static int attend(const struct pass *p)
{
	struct kv_attn a = attention_of(p, p->first, p->batch);

	return p->pte ? kv_attn_pages(p->cache, &a, p->pte + p->first, p->lens + p->first)
		      : kv_attn(p->cache, &a);
}

static int finish(const struct pass *p)
{
	const struct kv_mla_params *w = &p->m->p;
	uint64_t at = (uint64_t)p->first * p->q_len * w->hidden;
	struct gemm_rows x = {p->attended, p->q_dtype, (uint64_t)w->heads * w->rank, w->rank};
	struct gemm_rows v = {p->values, KV_F32, (uint64_t)w->heads * w->v_dim, w->v_dim};
	struct gemm_rows out = dense((char *)p->s->out + at * kv_dtype_bytes(p->dtype), p->dtype,
				     w->hidden);
	int err;

	if (w->premultiply)
		return multiply(p, p->m->combined, x, out);
	err = multiply(p, p->m->uv, x, v);
	return err ? err : multiply(p, p->m->o, v, out);
}

static int run_pass(struct pass *p)
{
	int err = append(p);

	if (!err)
		err = project(p);
	if (!err)
		err = absorb(p);
	if (!err)
		err = attend(p);
	return err ? err : finish(p);
}

/* ---- the call -------------------------------------------------------------------------------- */

/* Queries are narrowed only where the cache is narrower still or the same. */
static uint32_t query_dtype(const struct pass *p)
{
	uint32_t cached = kv_cache_layout(p->cache, p->s->group)->dtype;

	return p->m->p.dtype == KV_BF16 && cached != KV_F32 && cached != KV_F16 ? KV_BF16 : KV_F32;
}

static int run(struct pass *p)
{
	uint32_t i, batch = p->s->batch, per_pass;
	struct mla_arena *arena;
	int err = check_cache(p);

	if (err || !batch)
		return err;
	p->dtype = p->s->dtype ? p->s->dtype : KV_F32;
	p->q_dtype = query_dtype(p);
	err = check_entries(p);
	if (err)
		return err;
	per_pass = p->q_len < PASS_ROWS ? PASS_ROWS / p->q_len : 1;
	per_pass = per_pass < batch ? per_pass : batch;
	p->rows = per_pass * p->q_len;
	err = mla_arena_get(p->m, lay_out(p, NULL), &arena);
	if (err)
		return err;
	for (i = 0; i < batch && !err; i += per_pass) {
		p->first = i;
		p->batch = batch - i < per_pass ? batch - i : per_pass;
		p->rows = p->batch * p->q_len;
		lay_out(p, arena->mem);
		err = run_pass(p);
	}
	mla_arena_put(p->m, arena);
	return err;
}

int kv_mla_step(struct kv_mla *m, struct kv_cache *c, const struct kv_mla_step *s)
{
	struct pass p = {.m = m, .cache = c, .s = s};

	if (!m || !c || !s)
		return err_set(-EINVAL, "mla step: NULL");
	if (s->batch && !s->seqs)
		return err_set(-EINVAL, "mla step: seqs is NULL");
	p.q_len = s->q_len ? s->q_len : 1;
	return run(&p);
}

int kv_mla_step_pages(struct kv_mla *m, struct kv_cache *c, const struct kv_mla_step *s,
		      const uint64_t *const *pte, const uint32_t *lens)
{
	struct pass p = {.m = m, .cache = c, .s = s, .pte = pte, .lens = lens};

	if (!m || !c || !s)
		return err_set(-EINVAL, "mla step: NULL");
	if (s->batch && (!pte || !lens))
		return err_set(-EINVAL, "mla step: page tables or lengths are NULL");
	p.q_len = s->q_len ? s->q_len : 1;
	return run(&p);
}
