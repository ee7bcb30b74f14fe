/* SPDX-License-Identifier: Apache-2.0 */
/* seq_fixture - a cache in an embedded pool and rows whose content tells where they belong
 *
 * A row's numbers are drawn from (history of tokens and salt, group, layer), so two rows are equal
 * exactly if the model would have computed the same. All are n/128 with |n| < 128: exact in every
 * cache dtype.
 */
#ifndef SEQ_FIXTURE_H
#define SEQ_FIXTURE_H

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <kv/kv.h>

#include "kernels.h"

#define FIX	    __attribute__((unused)) static
#define FIX_MAX_ROW 64
#define FIX_WINDOW  10u
#define FIX_MAX_HOG 65536u

struct fix {
	struct kv *kv;
	struct kv_cache *cache;
	struct kv_cache_params params;
	uint32_t nr_groups;
	uint32_t nr_hog[2];
	uint64_t hog[2][FIX_MAX_HOG]; /* held so that nobody else has them */
};

FIX struct kv_layout fix_layout(uint32_t kind, uint32_t dtype, uint32_t page_tokens)
{
	if (kind == KV_MLA)
		return (struct kv_layout){.kind = KV_MLA,
					  .dtype = dtype,
					  .layers = 2,
					  .rank = 32,
					  .rope = 8,
					  .page_tokens = page_tokens};
	return (struct kv_layout){.kind = KV_GQA,
				  .dtype = dtype,
				  .layers = 2,
				  .kv_heads = 2,
				  .head_dim = 16,
				  .head_dim_v = 8,
				  .page_tokens = page_tokens};
}

/* window 0: one full group; else a second group with that window. */
FIX void fix_params(struct fix *f, struct kv_layout layout, uint32_t window)
{
	memset(f, 0, sizeof(*f));
	f->nr_groups = window ? 2 : 1;
	f->params = (struct kv_cache_params){.model = "fixture", .nr_groups = f->nr_groups};
	f->params.group[0] = (struct kv_group){.kind = KV_GROUP_FULL, .layout = layout};
	layout.layers = 1;
	f->params.group[1] = (struct kv_group){
		.kind = KV_GROUP_WINDOW, .window_tokens = window, .layout = layout};
	if (!window)
		memset(&f->params.group[1], 0, sizeof(f->params.group[1]));
}

FIX void fix_open(struct fix *f, const char *spec, struct kv_layout layout, uint32_t window)
{
	fix_params(f, layout, window);
	if (kv_open(spec, NULL, &f->kv) || kv_cache_open(f->kv, &f->params, &f->cache))
		fail_msg("%s", kv_error());
}

/* Take pages until no more than nr of each group are left; in turns, so that each has an extent. */
FIX void fix_shrink(struct fix *f, uint32_t nr)
{
	uint32_t g, full = 0;

	while (full != (1u << f->nr_groups) - 1) {
		for (g = 0; g < f->nr_groups; g++) {
			if (full & 1u << g)
				continue;
			if (f->nr_hog[g] == FIX_MAX_HOG ||
			    kv_page_alloc(f->cache, g, &f->hog[g][f->nr_hog[g]]))
				full |= 1u << g; /* a refusal by a daemon takes a while: once */
			else
				f->nr_hog[g]++;
		}
	}
	for (g = 0; g < f->nr_groups; g++) {
		assert_in_range(f->nr_hog[g], nr + 1, FIX_MAX_HOG - 1);
		f->nr_hog[g] -= nr;
		if (kv_pages_free(f->cache, g, nr, f->hog[g] + f->nr_hog[g]))
			fail_msg("%s", kv_error());
	}
}

/* Everything is back where it came from. */
FIX void fix_close(struct fix *f)
{
	struct kv_info info;

	uint32_t g;

	for (g = 0; g < f->nr_groups; g++)
		assert_int_equal(kv_pages_free(f->cache, g, f->nr_hog[g], f->hog[g]), 0);
	kv_cache_close(f->cache);
	assert_int_equal(kv_info(f->kv, &info), 0);
	assert_int_equal(info.held_pages, 0);
	assert_int_equal(info.nr_leases, 0);
	assert_int_equal(info.nr_parks, 0);
	kv_close(f->kv);
}

FIX uint64_t fix_mix(uint64_t h, uint64_t v)
{
	h = (h ^ v) * 0x9e3779b97f4a7c15ull;
	h ^= h >> 29;
	h *= 0xbf58476d1ce4e5b9ull;
	return h ^ h >> 32;
}

/* Of token pos and everything before it. */
FIX uint64_t fix_history(const uint32_t *tokens, uint32_t pos, uint32_t salt)
{
	uint64_t h = fix_mix(0x1234567, salt);
	uint32_t i;

	for (i = 0; i <= pos; i++)
		h = fix_mix(h, tokens[i] + 1ull);
	return h;
}

FIX uint32_t fix_widths(const struct kv_layout *l, uint32_t *v)
{
	*v = l->kind == KV_MLA ? l->rope : l->kv_heads * l->head_dim_v;
	return l->kind == KV_MLA ? l->rank : l->kv_heads * l->head_dim;
}

FIX void fix_row(uint64_t history, uint32_t group, uint32_t layer, float *row, uint32_t n,
		 uint32_t part)
{
	uint64_t h = fix_mix(fix_mix(history, group * 1000 + layer), part);
	uint32_t i;

	for (i = 0; i < n; i++) {
		h = h * 6364136223846793005ull + 1442695040888963407ull;
		row[i] = (float)((int)(h >> 40) % 128) / 128;
	}
}

/* Rows [from, to) of all layers and groups; what a group has dropped is left out. */
FIX void fix_store(struct fix *f, struct kv_seq *s, uint32_t salt, uint32_t from, uint32_t to)
{
	static float k[FIX_MAX_ROW], v[FIX_MAX_ROW];
	uint32_t g, layer, pos, kw, vw;

	for (g = 0; g < f->nr_groups; g++) {
		const struct kv_layout *l = &f->params.group[g].layout;

		kw = fix_widths(l, &vw);
		for (pos = from; pos < to; pos++) {
			uint64_t h = fix_history(kv_seq_tokens(s), pos, salt);

			if (!kv_seq_pte(s, g, NULL)[pos / l->page_tokens])
				continue;
			for (layer = 0; layer < l->layers; layer++) {
				fix_row(h, g, layer, k, kw, 0);
				fix_row(h, g, layer, v, vw, 1);
				if (kv_seq_store(s, g, layer, pos, 1, k, v))
					fail_msg("store: %s", kv_error());
			}
		}
	}
}

/* Where a row stands, by the documented layout alone. */
FIX struct kern_view fix_view(const struct kv_layout *l, uint32_t layer)
{
	bool mla = l->kind == KV_MLA;
	struct kv_view v;

	assert_int_equal(kv_layout_view(l, layer, &v), 0);
	return (struct kern_view){.kind = l->kind,
				  .dtype = l->dtype,
				  .page_tokens = l->page_tokens,
				  .kv_heads = mla ? 1 : l->kv_heads,
				  .head_dim = mla ? l->rank : l->head_dim,
				  .head_dim_v = mla ? l->rope : l->head_dim_v,
				  .layer_off = v.layer_off,
				  .head_stride = v.head_stride,
				  .v_off = v.v_off,
				  .k_row = v.k_row,
				  .v_row = v.v_row};
}

FIX void fix_verify_row(struct fix *f, struct kv_seq *s, uint32_t g, uint32_t layer, uint32_t pos,
			uint64_t history)
{
	static float k[FIX_MAX_ROW], v[FIX_MAX_ROW], want[FIX_MAX_ROW];
	const struct kv_layout *l = &f->params.group[g].layout;
	struct kern_rows rows = { .view = fix_view(l, layer), .pte = kv_seq_pte(s, g, NULL) };
	uint32_t vw, kw = fix_widths(l, &vw);

	assert_int_equal(kern_load(&rows, pos, 1, k, v), 0);
	fix_row(history, g, layer, want, kw, 0);
	if (memcmp(k, want, kw * sizeof(*k)))
		fail_msg("group %u layer %u token %u of %u: wrong key row", g, layer, pos,
			 kv_seq_len(s));
	fix_row(history, g, layer, want, vw, 1);
	if (memcmp(v, want, vw * sizeof(*v)))
		fail_msg("group %u layer %u token %u of %u: wrong value row", g, layer, pos,
			 kv_seq_len(s));
}

/* Rows [0, upto) are what they should be; a window group may lack those behind its window. */
FIX void fix_verify(struct fix *f, struct kv_seq *s, uint32_t salt, uint32_t upto)
{
	const uint32_t *tokens = kv_seq_tokens(s);
	uint32_t g, layer, pos, nr, len = kv_seq_len(s), pt = kv_cache_page_tokens(f->cache);
	uint64_t h = fix_mix(0x1234567, salt);

	for (pos = 0; pos < upto; pos++) {
		h = fix_mix(h, tokens[pos] + 1ull);
		for (g = 0; g < f->nr_groups; g++) {
			uint32_t window = f->params.group[g].window_tokens;
			const uint64_t *pte = kv_seq_pte(s, g, &nr);

			assert_int_equal(nr, (len + pt - 1) / pt);
			if (!pte[pos / pt]) {
				assert_true(window && pos + window < len + 1);
				continue;
			}
			for (layer = 0; layer < f->params.group[g].layout.layers; layer++)
				fix_verify_row(f, s, g, layer, pos, h);
		}
	}
}

/* ---- an engine's own threads ---- */

struct fix_items {
	struct kv_attn_plan *plan;
	_Atomic uint32_t next, failed;
};

FIX void *fix_items_thread(void *arg)
{
	struct fix_items *e = arg;
	uint32_t i;

	while ((i = atomic_fetch_add(&e->next, 1)) < kv_attn_items(e->plan))
		if (kv_attn_item(e->plan, i))
			atomic_store(&e->failed, 1);
	return NULL;
}

/* All items of a plan on nr threads of the test's. */
FIX void fix_run_items(struct kv_attn_plan *plan, uint32_t nr)
{
	struct fix_items e = {.plan = plan};
	pthread_t thread[8];
	uint32_t i;

	assert_true(nr <= 8);
	for (i = 0; i < nr; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, fix_items_thread, &e), 0);
	for (i = 0; i < nr; i++)
		pthread_join(thread[i], NULL);
	assert_false(atomic_load(&e.failed));
}

#endif
