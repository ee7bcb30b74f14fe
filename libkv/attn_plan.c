// SPDX-License-Identifier: Apache-2.0
/* attn_plan - calls as items, for libkv's threads and for an engine's; contract in kv/attn.h */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "attn_impl.h"
#include "err.h"
#include "kern_plan.h"
#include "scratch.h"
#include "threads.h"

/* Bytes of cached rows, weighed by the heads that attend to them, for which another thread is
 * woken: some 50 us of work. */
#define WORK_PER_THREAD (1u << 20)

/* A plan at work. err is the first error of an item. */
struct running {
	const struct kern_attn *k;
	struct kern_plan *plan;
	_Atomic int err;
};

static int run_item(const struct kern_attn *k, struct kern_plan *plan, uint32_t item)
{
	void *scratch;
	int err = scratch_get(SCRATCH_KERNEL, kern_attn_scratch(k, KERN_AUTO), &scratch);

	if (!err)
		kern_plan_item(plan, k, item, scratch);
	return err;
}

static void run_one(void *ctx, uint32_t item)
{
	struct running *r = ctx;
	int err = run_item(r->k, r->plan, item);

	if (err)
		atomic_store(&r->err, err);
}

/* Threads worth waking for a call. */
static uint32_t workers(const struct kern_attn *k, uint32_t limit)
{
	const struct kern_view *v = &k->view;
	uint64_t rows = (uint64_t)k->heads / v->kv_heads * k->q_len, tokens = 0, n;
	uint32_t i;

	if (limit == 1)
		return 1;
	for (i = 0; i < k->batch; i++)
		tokens += k->window && k->kv_len[i] > k->window + k->q_len
				  ? k->window + k->q_len
				  : k->kv_len[i];
	n = tokens * v->kv_heads * (v->k_row + v->v_row) / WORK_PER_THREAD * (16 + rows) / 16;
	return n < 1 ? 1 : n < limit ? (uint32_t)n : limit;
}

static int run_alone(const struct kern_attn *k)
{
	void *scratch;
	int err = scratch_get(SCRATCH_KERNEL, kern_attn_scratch(k, KERN_AUTO), &scratch);

	return err ? err : kern_attn(k, KERN_AUTO, scratch);
}

static int run_planned(const struct kern_attn *k, uint32_t threads)
{
	struct running r = {.k = k};
	size_t bytes = kern_plan_bytes(k, threads);
	void *mem;
	int err = scratch_get(SCRATCH_PLAN, bytes ? bytes : 1, &mem);

	if (!err)
		err = kern_plan_make(k, KERN_AUTO, threads, mem, &r.plan);
	if (err)
		return err;
	if (threads == 1 && !r.plan->nr_shared)
		return run_alone(k);
	err = scratch_get(SCRATCH_PARTIALS, r.plan->partial_bytes, &mem);
	if (err)
		return err;
	kern_plan_partials(r.plan, k, mem);
	threads_run(run_one, &r, r.plan->nr_items, threads);
	err = atomic_load(&r.err);
	/* kv_error() of another thread is not this one's */
	return err ? err_set(err, "attention: out of memory on a thread of libkv's") : 0;
}

static int explain(int err)
{
	if (err == -EOPNOTSUPP)
		return attn_bad_cpu();
	if (err == -EINVAL)
		return err_set(err, "attention: the kernel refused its arguments");
	return err;
}

static int check_buffers(const struct kern_attn *k)
{
	if (k->batch && (!k->q || !k->out))
		return err_set(-EINVAL, "attention: q or out is NULL");
	return 0;
}

int attn_run(const struct kern_attn *k)
{
	int limit = threads_limit(), err = check_buffers(k);
	uint32_t threads;

	if (err || limit < 0)
		return err ? err : limit;
	threads = workers(k, (uint32_t)limit);
	return explain(threads == 1 && k->batch == 1 ? run_alone(k) : run_planned(k, threads));
}

/* ---- an engine's own threads ----------------------------------------------------------------- */

struct kv_attn_plan {
	struct kern_attn k;
	const struct kv_cache *cache;
	struct kern_plan *plan;
	uint32_t group, threads;
	void *mem, *partials;
	const uint64_t **pte; /* of sequences; NULL: the caller's */
	uint32_t *lens;	      /* behind k.kv_len, of sequences */
	uint32_t *planned;    /* the lengths it was made for */
	atomic_bool *taken;   /* [nr_items] run or running: none runs twice */
	_Atomic uint32_t done;
};

static void *alloc64(size_t bytes)
{
	return aligned_alloc(64, (bytes / 64 + 1) * 64);
}

static void plan_free(struct kv_attn_plan *p)
{
	free(p->mem);
	free(p->partials);
	free(p->pte);
	free(p->lens);
	free(p->planned);
	free(p->taken);
	free(p);
}

static int no_memory(void)
{
	return err_set(-ENOMEM, "attention: out of memory for a plan");
}

/* threads 0: what attn_run() would take. */
static int plan_threads(struct kv_attn_plan *p, uint32_t threads)
{
	int limit = threads ? 0 : threads_limit();

	if (limit < 0)
		return limit;
	p->threads = threads ? threads : workers(&p->k, (uint32_t)limit);
	return 0;
}

/* p->k is complete. */
static int plan_make(struct kv_attn_plan *p, uint32_t threads)
{
	int err = check_buffers(&p->k);

	if (!err)
		err = plan_threads(p, threads);
	if (err)
		return err;
	p->planned = malloc((p->k.batch + 1ull) * sizeof(*p->planned));
	p->mem = alloc64(kern_plan_bytes(&p->k, p->threads));
	if (!p->mem || !p->planned)
		return no_memory();
	if (p->k.batch)
		memcpy(p->planned, p->k.kv_len, p->k.batch * sizeof(*p->planned));
	err = kern_plan_make(&p->k, KERN_AUTO, p->threads, p->mem, &p->plan);
	if (err)
		return explain(err);
	p->partials = alloc64(p->plan->partial_bytes);
	p->taken = calloc(p->plan->nr_items + 1ull, sizeof(*p->taken));
	if (!p->partials || !p->taken)
		return no_memory();
	kern_plan_partials(p->plan, &p->k, p->partials);
	return 0;
}

static int plan_new(const struct kv_cache *c, const struct kv_attn *a, struct kv_attn_plan **out)
{
	struct kv_attn_plan *p;
	int err;

	if (!out)
		return err_set(-EINVAL, "attention: no place for the plan");
	*out = NULL;
	p = calloc(1, sizeof(*p));
	if (!p)
		return no_memory();
	err = attn_fill(c, a, &p->k);
	if (err) {
		free(p);
		return err;
	}
	p->cache = c;
	p->group = a->group;
	*out = p;
	return 0;
}

static int plan_done(int err, struct kv_attn_plan **out)
{
	if (err) {
		plan_free(*out);
		*out = NULL;
	}
	return err;
}

int kv_attn_plan(struct kv_cache *c, const struct kv_attn *a, uint32_t threads,
		 struct kv_attn_plan **out)
{
	struct kv_attn_plan *p;
	int err = plan_new(c, a, out);

	if (err)
		return err;
	p = *out;
	p->pte = calloc(a->batch + 1ull, sizeof(*p->pte));
	p->lens = calloc(a->batch + 1ull, sizeof(*p->lens));
	err = !p->pte || !p->lens ? no_memory()
	      : a->batch	  ? attn_gather(c, a, &p->k, p->pte, p->lens)
				  : 0;
	p->k.pte = p->pte;
	p->k.kv_len = p->lens;
	return plan_done(err ? err : plan_make(p, threads), out);
}

int kv_attn_plan_pages(struct kv_cache *c, const struct kv_attn *a, const uint64_t *const *pte,
		       const uint32_t *lens, uint32_t threads, struct kv_attn_plan **out)
{
	int err = plan_new(c, a, out);

	if (err)
		return err;
	if (a->batch && (!pte || !lens))
		err = err_set(-EINVAL, "attention: page tables or lengths are NULL");
	(*out)->k.pte = pte;
	(*out)->k.kv_len = lens;
	return plan_done(err ? err : plan_make(*out, threads), out);
}

uint32_t kv_attn_items(const struct kv_attn_plan *p)
{
	return p ? p->plan->nr_items : 0;
}

int kv_attn_item(struct kv_attn_plan *p, uint32_t item)
{
	int err;

	if (!p || item >= p->plan->nr_items)
		return err_set(-EINVAL, "item %u does not exist: the plan has %u", item,
			       kv_attn_items(p));
	if (atomic_exchange(&p->taken[item], true))
		return err_set(-EINVAL, "item %u was run already", item);
	err = run_item(&p->k, p->plan, item);
	if (err)
		atomic_store(&p->taken[item], false);
	else
		atomic_fetch_add(&p->done, 1);
	return err;
}

static void run_counted(void *ctx, uint32_t item)
{
	struct kv_attn_plan *p = ctx;

	kv_attn_item(p, item);
}

int kv_attn_run(struct kv_attn_plan *p)
{
	int limit = threads_limit();
	uint32_t done;

	if (!p)
		return err_set(-EINVAL, "attention: no plan");
	if (limit < 0)
		return limit;
	if (atomic_load(&p->done))
		return err_set(-EINVAL, "attention: items were run already: kv_attn_next() first");
	threads_run(run_counted, p, p->plan->nr_items,
		    p->threads < (uint32_t)limit ? p->threads : (uint32_t)limit);
	done = atomic_load(&p->done);
	/* kv_error() of another thread is not this one's */
	return done == p->plan->nr_items
		       ? 0
		       : err_set(-ENOMEM, "attention: out of memory on a thread of libkv's");
}

/* All that a plan depends on but tables, lengths and what the group says. */
static bool same_call(const struct kern_attn *a, const struct kern_attn *b)
{
	return a->batch == b->batch && a->heads == b->heads && a->q_len == b->q_len &&
	       a->q_dtype == b->q_dtype && a->dcp == b->dcp && a->dcp_rank == b->dcp_rank &&
	       a->dcp_interleave == b->dcp_interleave;
}

static int check_next(const struct kv_attn_plan *p, const struct kv_attn *a, struct kern_attn *k)
{
	uint32_t done = atomic_load(&p->done);
	int err = attn_fill(p->cache, a, k);

	if (!err)
		err = check_buffers(k);
	if (err)
		return err;
	if (done != p->plan->nr_items)
		return err_set(-EINVAL, "%u items were run of a plan of %u", done,
			       p->plan->nr_items);
	if (a->group != p->group || !same_call(&p->k, k))
		return err_set(-EINVAL, "attention: the plan is for another group, batch, heads, "
					"q_len, q_dtype or dcp: only another layer may follow");
	return 0;
}

int kv_attn_next(struct kv_attn_plan *p, const struct kv_attn *a)
{
	struct kern_attn k;
	uint32_t i;
	int err;

	if (!p || !a)
		return err_set(-EINVAL, "attention: NULL");
	err = check_next(p, a, &k);
	if (!err && p->pte && k.batch)
		err = attn_gather(p->cache, a, &k, p->pte, p->lens);
	if (err)
		return err;
	k.pte = p->k.pte;
	k.kv_len = p->k.kv_len;
	if (k.batch && (memcmp(k.kv_len, p->planned, k.batch * sizeof(*p->planned)) ||
			!kern_plan_holds(p->plan, &k)))
		return err_set(-ESTALE, "attention: lengths or page tables are no longer those of "
					"the plan: make another");
	p->k = k;
	for (i = 0; i < p->plan->nr_items; i++)
		atomic_store_explicit(&p->taken[i], false, memory_order_relaxed);
	atomic_store(&p->done, 0);
	return 0;
}

int kv_attn_finish(struct kv_attn_plan *p)
{
	uint32_t done, items;

	if (!p)
		return 0;
	done = atomic_load(&p->done);
	items = p->plan->nr_items;
	plan_free(p);
	if (done != items)
		return err_set(-EINVAL, "%u items were run of a plan of %u", done, items);
	return 0;
}
