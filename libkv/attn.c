// SPDX-License-Identifier: Apache-2.0
/* attn - attention and stores through page tables; contract in kv/attn.h */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include <kv/rope.h>
#include "attn_impl.h"
#include "scale.h"
#include "scratch.h"
#include "seq_impl.h"
#include "threads.h"

/* ---- the kernel's parameter block ------------------------------------------------------------ */

static int check_args(const struct kv_cache *c, const struct kv_attn *a)
{
	const struct kv_layout *l;

	if (!c || !a)
		return err_set(-EINVAL, "attention: NULL");
	if (a->group >= c->nr_groups)
		return err_set(-EINVAL, "group %u does not exist: the cache has %u", a->group,
			       c->nr_groups);
	l = &c->layout[a->group];
	if (l->kind == KV_GQA && (!a->heads || a->heads % l->kv_heads))
		return err_set(-EINVAL, "attention: %u heads are no multiple of %u KV heads",
			       a->heads, l->kv_heads);
	if (!a->heads || a->heads > KERN_MAX_HEADS)
		return err_set(-EINVAL, "attention: %u heads, must be 1 to %u", a->heads,
			       KERN_MAX_HEADS);
	if (a->q_len > KERN_MAX_Q)
		return err_set(-EINVAL, "attention: q_len %u, must be at most %u", a->q_len,
			       KERN_MAX_Q);
	if (a->q_dtype && !kern_dtype_float(a->q_dtype))
		return err_set(-EINVAL, "attention: q_dtype is %u, must be f32, f16 or bf16",
			       a->q_dtype);
	if (!a->scale && l->kind == KV_MLA)
		return err_set(-EINVAL,
			       "attention: MLA needs a scale: it depends on the unabsorbed "
			       "head size, which rank + rope does not tell");
	if (!isfinite(a->scale) || !isfinite(a->softcap) || a->softcap < 0)
		return err_set(-EINVAL, "attention: scale %g or softcap %g is out of range",
			       a->scale, a->softcap);
	if (a->dcp > 1 && (a->dcp_rank >= a->dcp || !a->dcp_interleave))
		return err_set(-EINVAL,
			       "attention: rank %u of %u with runs of %u tokens does not exist",
			       a->dcp_rank, a->dcp, a->dcp_interleave);
	return 0;
}

/* Everything but the page tables. q and out are dense. */
int attn_fill(const struct kv_cache *c, const struct kv_attn *a, struct kern_attn *k)
{
	uint32_t q_width, out_width;
	int err = check_args(c, a);

	if (err)
		return err;
	*k = (struct kern_attn){.batch = a->batch, .heads = a->heads};
	err = layout_kern_view(&c->layout[a->group], a->layer, &k->view);
	if (err)
		return err;
	q_width = k->view.head_dim + (k->view.kind == KERN_MLA ? k->view.head_dim_v : 0);
	out_width = k->view.kind == KERN_MLA ? k->view.head_dim : k->view.head_dim_v;
	k->q_len = a->q_len ? a->q_len : 1;
	k->q_dtype = a->q_dtype ? a->q_dtype : KV_F32;
	k->q = a->q;
	k->q_stride_head = q_width;
	k->q_stride_tok = (uint64_t)q_width * a->heads;
	k->q_stride_seq = k->q_stride_tok * k->q_len;
	k->out = a->out;
	k->out_stride_head = out_width;
	k->out_stride_tok = (uint64_t)out_width * a->heads;
	k->out_stride_seq = k->out_stride_tok * k->q_len;
	k->lse = a->lse;
	k->scale = a->scale ? a->scale : 1 / sqrtf(k->view.head_dim);
	k->softcap = a->softcap;
	if (c->group[a->group].kind == KV_GROUP_WINDOW)
		k->window = c->group[a->group].window_tokens;
	k->sinks = a->sinks;
	k->alibi = a->alibi;
	k->dcp = a->dcp;
	k->dcp_rank = a->dcp_rank;
	k->dcp_interleave = a->dcp_interleave;
	k->k_scale = a->k_scale;
	k->v_scale = a->v_scale;
	return scale_of(c, a->group, a->layer, &k->k_scale, &k->v_scale);
}

/* KV_CPU names nothing that runs here. */
int attn_bad_cpu(void)
{
	const char *name = getenv("KV_CPU");

	return err_set(-EOPNOTSUPP,
		       "KV_CPU=%s is no implementation that runs on this CPU: ref, generic, avx2, "
		       "avx512, avx512bf16 or amx, or unset it",
		       name ? name : "");
}

int kv_attn_pages(struct kv_cache *c, const struct kv_attn *a, const uint64_t *const *pte,
		  const uint32_t *lens)
{
	struct kern_attn k;
	int err = attn_fill(c, a, &k);

	if (err || !k.batch)
		return err;
	if (!pte || !lens)
		return err_set(-EINVAL, "attention: page tables or lengths are NULL");
	k.pte = pte;
	k.kv_len = lens;
	return attn_run(&k);
}

/* ---- sequences ------------------------------------------------------------------------------- */

/* The first query sees furthest back; nothing it sees may be gone. */
static int check_window(const struct kv_seq *s, uint32_t i, const struct kern_attn *k,
			uint32_t group, uint32_t len)
{
	int64_t past = (int64_t)len - (k->q_len - 1);
	int64_t first = k->window && past > k->window ? past - k->window : 0;

	if (first >= s->group[group].head || !len)
		return 0;
	return err_set(
		-EINVAL,
		"sequence %u: attention reaches back to token %lld, but group %u has dropped "
		"those before %u",
		i, (long long)first, group, s->group[group].head);
}

static int check_seqs(const struct kv_attn *a)
{
	if (!a->seqs)
		return err_set(-EINVAL, "attention: seqs is NULL");
	if (a->dcp > 1)
		return err_set(-EINVAL, "attention: a sequence has all its tokens; shards are for "
					"kv_attn_pages()");
	return 0;
}

static int check_seq(const struct kv_cache *c, const struct kv_attn *a, const struct kern_attn *k,
		     uint32_t i)
{
	const struct kv_seq *s = a->seqs[i];
	uint32_t len;

	if (!s || s->cache != c)
		return err_set(-EINVAL, "sequence %u is %s", i, s ? "of another cache" : "NULL");
	if (s->parked)
		return err_set(-EINVAL, "sequence %u is parked: resume it first", i);
	len = a->lens ? a->lens[i] : s->len;
	if (len > s->len)
		return err_set(-EINVAL, "sequence %u: %u tokens to attend to, but it has %u", i,
			       len, s->len);
	return check_window(s, i, k, a->group, len);
}

int attn_check(const struct kv_cache *c, const struct kv_attn *a, bool by_seq)
{
	struct kern_attn k;
	uint32_t i;
	int err = attn_fill(c, a, &k);

	if (!err && kern_attn_query(&k, NULL) == KERN_AUTO)
		err = attn_bad_cpu();
	if (!err && threads_limit() < 0)
		err = -EINVAL;
	if (!err && by_seq)
		err = check_seqs(a);
	for (i = 0; i < a->batch && by_seq && !err; i++)
		err = check_seq(c, a, &k, i);
	return err;
}

int attn_gather(const struct kv_cache *c, const struct kv_attn *a, const struct kern_attn *k,
		const uint64_t **pte, uint32_t *lens)
{
	uint32_t i;
	int err = check_seqs(a);

	for (i = 0; i < a->batch && !err; i++) {
		err = check_seq(c, a, k, i);
		if (err)
			break;
		lens[i] = a->lens ? a->lens[i] : a->seqs[i]->len;
		pte[i] = a->seqs[i]->group[a->group].pte;
	}
	return err;
}

int kv_attn(struct kv_cache *c, const struct kv_attn *a)
{
	struct kern_attn k;
	const uint64_t **pte;
	uint32_t *lens;
	void *mem;
	int err = attn_fill(c, a, &k);

	if (err || !a->batch)
		return err;
	err = scratch_get(SCRATCH_TABLE, a->batch * (sizeof(*pte) + sizeof(*lens)), &mem);
	if (err)
		return err;
	pte = mem;
	lens = (uint32_t *)(pte + a->batch);
	err = attn_gather(c, a, &k, pte, lens);
	if (err)
		return err;
	k.pte = pte;
	k.kv_len = lens;
	return attn_run(&k);
}

int kv_attn_query(struct kv_cache *c, const struct kv_attn *a, const char **impl, bool *fast)
{
	struct kern_attn k;
	enum kern_impl found;
	int err = attn_fill(c, a, &k);

	if (err)
		return err;
	found = kern_attn_query(&k, fast);
	if (found == KERN_AUTO)
		return attn_bad_cpu();
	if (impl)
		*impl = kern_impl_name(found);
	return 0;
}

void kv_attn_merge(float *out, float *lse, const float *const *parts, const float *const *lses,
		   uint32_t nr_parts, uint32_t rows, uint32_t dim)
{
	kern_merge(out, lse, parts, lses, nr_parts, rows, dim);
}

/* ---- stores and conversions ------------------------------------------------------------------ */

static int check_rope(const struct kern_store *s)
{
	uint32_t i, pos;

	for (i = 0; i < s->n; i++) {
		pos = s->positions ? s->positions[i] : s->pos + i;
		if (pos < s->rope->first || pos - s->rope->first >= s->rope->nr)
			return err_set(-EINVAL,
				       "store: position %u is outside the rope tables, %u to %llu",
				       pos, s->rope->first,
				       (unsigned long long)s->rope->first + s->rope->nr);
	}
	return 0;
}

static int store(struct kern_store *s, const struct kv_rope *rope)
{
	struct kern_rope tables;
	int err;

	if (rope) {
		tables = (struct kern_rope){
			.cos = rope->cos,
			.sin = rope->sin,
			.dim = rope->dim,
			.pairing = rope->pairing,
			.first = rope->first,
			.nr = rope->nr,
		};
		s->rope = &tables;
		err = check_rope(s);
		if (err)
			return err;
	}
	err = kern_store(s);
	return err ? err_set(err, "store: %u rows at token %u: a range, dtype, scale or rope that "
			     "the layout does not allow", s->n, s->pos)
		   : 0;
}

int kv_store_page_rows(struct kv_cache *c, const struct kv_store *rows, const uint64_t *pte)
{
	struct kern_store s;
	int err;

	if (!c || !rows || rows->group >= c->nr_groups)
		return err_set(-EINVAL, "store: group %u does not exist", rows ? rows->group : 0);
	s = (struct kern_store){
		.pte = pte,
		.pos = rows->pos,
		.n = rows->n,
		.src_dtype = rows->dtype,
		.k = rows->k,
		.v = rows->v,
		.k_stride = rows->k_stride,
		.v_stride = rows->v_stride,
		.k_scale = rows->k_scale,
		.v_scale = rows->v_scale,
		.positions = rows->positions,
	};
	err = layout_kern_view(&c->layout[rows->group], rows->layer, &s.view);
	if (!err)
		err = scale_of(c, rows->group, rows->layer, &s.k_scale, &s.v_scale);
	if (err || !rows->n)
		return err;
	if (!pte || !rows->k || !rows->v)
		return err_set(-EINVAL, "store: page table or rows are NULL");
	return store(&s, rows->rope);
}

int kv_store_pages(struct kv_cache *c, uint32_t group, uint32_t layer, const uint64_t *pte,
		   uint32_t pos, uint32_t n, const float *k, const float *v)
{
	const struct kv_store rows = {
		.group = group, .layer = layer, .pos = pos, .n = n, .k = k, .v = v};

	return kv_store_page_rows(c, &rows, pte);
}

static int rows_of(const struct kv_rows *rows, struct kern_rows *out)
{
	int err = kv_layout_check(rows ? rows->layout : NULL);

	if (err)
		return err;
	out->pte = rows->pte;
	out->k_scale = rows->k_scale;
	out->v_scale = rows->v_scale;
	return layout_kern_view(rows->layout, rows->layer, &out->view);
}

int kv_convert_rows(const struct kv_rows *to, uint32_t to_pos, const struct kv_rows *from,
		    uint32_t from_pos, uint32_t n)
{
	struct kern_rows dst, src;
	int err = rows_of(to, &dst);

	if (!err)
		err = rows_of(from, &src);
	if (err || !n)
		return err;
	if (!dst.pte || !src.pte)
		return err_set(-EINVAL, "convert: a page table is NULL");
	err = kern_convert(&dst, to_pos, &src, from_pos, n);
	return err ? err_set(err, "convert: layouts of different kinds, heads or dimensions, or "
			     "tokens out of range")
		   : 0;
}
