/* SPDX-License-Identifier: Apache-2.0 */
/* attn.h - decode attention over sequences, on their pages in place
 *
 * GQA:  q [seq][q_len][heads][head_dim] -> out [seq][q_len][heads][head_dim_v]
 * MLA:  absorbed. q rows are q_nope*W_UK (rank wide) followed by the roped part, out is rank wide
 *       and still to be multiplied by W_UV (DeepSeek-V2, 2024). scale comes from the unabsorbed
 *       head size.
 * Query i of q_len sees the tokens up to length - (q_len - 1 - i) of its sequence (causal).
 * LSE is natural log, fp32; an empty sequence gives out 0 and lse -inf. softmax in fp32.
 */
#ifndef KV_ATTN_H
#define KV_ATTN_H

#include <kv/seq.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kv_attn {
	uint32_t group, layer;		/* layer: index inside the group's layout */
	uint32_t batch;
	struct kv_seq *const *seqs;	/* [batch], all of this cache */
	const uint32_t *lens;		/* [batch] tokens to attend to, or NULL for kv_seq_len() */
	uint32_t heads, q_len;		/* heads of this rank; q_len 0 means 1 */
	uint32_t q_dtype;		/* enum kv_dtype of q and out; 0 means KV_F32 */
	const void *q;			/* dense */
	void *out;			/* dense */
	float *lse;			/* [batch][q_len][heads] or NULL */
	float scale;			/* 0 means head_dim^-0.5 (GQA only) */
	float softcap;			/* 0: none */
	const float *sinks;		/* [heads] or NULL */
	const float *alibi;		/* [heads] or NULL */
	/* kv_attn_pages() on one context-parallel rank of dcp (0, 1: none): pages hold the tokens t
	 * with t / dcp_interleave % dcp == dcp_rank only, close together; lengths are those of the
	 * whole sequence. Exactly one rank may have the sinks; merge by lse: kv_attn_merge(). */
	uint32_t dcp, dcp_rank, dcp_interleave;
	const float *k_scale, *v_scale;	/* KV_SCALE_HEAD: [kv_heads] (MLA: k_scale[0]), those the
					 * cache was opened with; NULL: these (cache.h), else 1 */
};

/* A window group applies its window; -EINVAL if that reaches tokens the sequence has dropped.
 * Sequences whose leading pages are the same (forks, matched prefixes) are attended together over
 * them: nothing needs to be told. Results are the same, to the bit, for a sequence alone or in any
 * batch, shared or not, and for any number of threads. The caller's thread computes, and those of
 * kv_threads_set() when there is enough to do; scratch is kept per thread and freed when it ends.
 * [concurrent] */
KV_API int kv_attn(struct kv_cache *, const struct kv_attn *);

/* The same on page tables of the caller's own, for engines with block tables (page.h) and member
 * ranks: pte[i] are this rank's page addresses of entry i (kv_pages_pte()), lens[i] its tokens;
 * seqs and lens of the struct are ignored. Pages wholly before a window may be 0. [concurrent] */
KV_API int kv_attn_pages(struct kv_cache *, const struct kv_attn *, const uint64_t *const *pte,
			 const uint32_t *lens);

/* Threads of libkv's own that may help a call, the caller's included: 1 (the default) for none, 0
 * for one on each CPU this process may run on; more CPUs than there are only if asked for. The
 * environment's KV_THREADS is what holds until this is called. Workers start with the first call
 * that wants them, sleep between calls, and serve one call at a time: another one at the same time
 * is computed by its caller alone. Waits for a call that is running. [concurrent] */
KV_API int kv_threads_set(uint32_t threads);

/* A call as work items, for an engine with threads of its own:
 *
 *	if (kv_attn_plan(cache, &a, nr_threads, &plan))
 *		...
 *	on each thread:
 *		while ((i = atomic_fetch_add(&next, 1)) < kv_attn_items(plan))
 *			kv_attn_item(plan, i);
 *	when all are done:
 *		kv_attn_finish(plan);
 *
 * Items are of about equal cost, a few for each thread, in any order, each exactly once, at the
 * same time on any threads [concurrent]. What the struct points to, the page tables and lengths of
 * _pages(), and the sequences must stay as they are until kv_attn_finish(), which frees the plan;
 * the struct itself is copied. out and lse are complete when finish returns 0; -EINVAL if items
 * were not run. An item fails with -ENOMEM, and may be run again then; of one that was run, or is
 * running, a second run is -EINVAL and does nothing.
 *
 * A plan serves all layers of a step, since their page tables are the same. kv_attn_run() takes the
 * place of the threads' loop where libkv's own are to compute:
 *
 *	for (a.layer = 0; a.layer < nr_layers; a.layer++) {
 *		... q of this layer ...
 *		if (a.layer ? kv_attn_next(plan, &a) : kv_attn_plan(cache, &a, 0, &plan))
 *			...
 *		kv_attn_run(plan);
 *	}
 *	kv_attn_finish(plan);
 */
struct kv_attn_plan;
KV_API int kv_attn_plan(struct kv_cache *, const struct kv_attn *, uint32_t threads,
			struct kv_attn_plan **out);
KV_API int kv_attn_plan_pages(struct kv_cache *, const struct kv_attn *,
			      const uint64_t *const *pte, const uint32_t *lens, uint32_t threads,
			      struct kv_attn_plan **out);
KV_API uint32_t kv_attn_items(const struct kv_attn_plan *);
KV_API int kv_attn_item(struct kv_attn_plan *, uint32_t item);

/* All items, on this thread and as many of kv_threads_set() as the plan is for: threads, or with 0
 * what kv_attn() would take. What an item would return; after an error there is only
 * kv_attn_finish(). One caller at a time. */
KV_API int kv_attn_run(struct kv_attn_plan *);

/* The same items again, each once more, for another call: of group, batch, heads, q_len, q_dtype
 * and dcp as planned, all else (layer, q, out, lse, scale, sinks, ...) as it likes. It gives what
 * kv_attn() would give, to the bit. Of kv_attn_plan_pages() the tables and lengths are those given
 * then. -EINVAL if the call differs, or if items were not run. -ESTALE if a length has changed, or
 * tables that were equal and no longer are: they are compared, so nothing is read by a plan that
 * does not hold; a plan of sequences follows pages that have moved. Nothing of the plan is used at
 * the time; on error it stays as it was. */
KV_API int kv_attn_next(struct kv_attn_plan *, const struct kv_attn *);
KV_API int kv_attn_finish(struct kv_attn_plan *);

/* kv_seq_store() on a page table of the caller's own: n rows of one layer from token pos on. The
 * pages must be held by this engine (a leased page may fault). [concurrent] for different pages. */
KV_API int kv_store_pages(struct kv_cache *, uint32_t group, uint32_t layer, const uint64_t *pte,
			  uint32_t pos, uint32_t n, const float *k, const float *v);

/* The same for rows that are not plain fp32 (seq.h). */
KV_API int kv_store_page_rows(struct kv_cache *, const struct kv_store *, const uint64_t *pte);

/* One layer's rows of one sequence, in pages of any layout: also those of another engine, or plain
 * rows [n][row] as one page of n tokens. */
struct kv_rows {
	const struct kv_layout *layout;
	uint32_t layer;
	const uint64_t *pte;		/* page addresses, indexed by token / page_tokens */
	const float *k_scale, *v_scale;	/* KV_SCALE_HEAD: as of a call; NULL: 1 */
};

/* n tokens from from_pos on become those from to_pos on in another dtype, scale or page size:
 * import and export. Kinds, heads and dimensions are the same. Equal dtypes and scales are copied
 * bit for bit; a KV_F8 latent keeps its bytes as KV_F8_DS; all else is dequantised and stored anew.
 * Rows may not overlap. [concurrent] */
KV_API int kv_convert_rows(const struct kv_rows *to, uint32_t to_pos, const struct kv_rows *from,
			   uint32_t from_pos, uint32_t n);

/* Which implementation a call would take ("ref", "generic", "avx2", "avx512", "avx512bf16", "amx")
 * and whether it has a fast instance for these dimensions. Looks at group, layer, heads, q_len,
 * q_dtype and scale only; impl and fast may be NULL. [concurrent] */
KV_API int kv_attn_query(struct kv_cache *, const struct kv_attn *, const char **impl, bool *fast);

/* Merge partial results over disjoint token sets: out, lse [rows][dim], [rows]; may be parts[0]. */
KV_API void kv_attn_merge(float *out, float *lse, const float *const *parts,
			  const float *const *lses, uint32_t nr_parts, uint32_t rows, uint32_t dim);

#ifdef __cplusplus
}
#endif
#endif
