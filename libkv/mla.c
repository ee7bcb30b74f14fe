// SPDX-License-Identifier: Apache-2.0
/* mla - weights of one MLA layer; contract in kv/mla.h */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "err.h"
#include "kernels.h"
#include "mla.h"

/* ---- arenas ---------------------------------------------------------------------------------- */

int mla_arena_get(struct kv_mla *m, size_t bytes, struct mla_arena **out)
{
	struct mla_arena *a;

	pthread_mutex_lock(&m->lock);
	a = m->arenas;
	if (a)
		m->arenas = a->next;
	pthread_mutex_unlock(&m->lock);
	if (!a)
		a = calloc(1, sizeof(*a));
	if (a && a->bytes < bytes) {
		size_t had = a->bytes;

		free(a->mem);
		a->mem = aligned_alloc(64, (bytes + 63) / 64 * 64);
		a->bytes = a->mem ? bytes : 0;
		pthread_mutex_lock(&m->lock);
		m->arena_bytes += a->bytes - had;
		pthread_mutex_unlock(&m->lock);
	}
	if (!a || !a->mem) {
		free(a);
		return err_set(-ENOMEM, "out of memory for %zu bytes of scratch of an MLA step",
			       bytes);
	}
	*out = a;
	return 0;
}

void mla_arena_put(struct kv_mla *m, struct mla_arena *a)
{
	pthread_mutex_lock(&m->lock);
	a->next = m->arenas;
	m->arenas = a;
	pthread_mutex_unlock(&m->lock);
}

/* ---- parameters ------------------------------------------------------------------------------ */

static int check_sizes(const struct kv_mla_params *p)
{
	const struct {
		const char *name;
		uint32_t value, min, max;
	} range[] = {
		{"hidden", p->hidden, 1, 1u << 20},	 {"heads", p->heads, 1, KERN_MAX_HEADS},
		{"nope", p->nope, 1, 1u << 16},		 {"rope", p->rope, 2, KERN_MAX_DIM},
		{"v_dim", p->v_dim, 1, 1u << 16},	 {"rank", p->rank, 1, KERN_MAX_DIM},
		{"q_rank", p->q_rank, 0, 1u << 20},
		{"row_tile", p->row_tile, 0, GEMM_MAX_TILE},
	};
	size_t i;

	for (i = 0; i < sizeof(range) / sizeof(*range); i++)
		if (range[i].value < range[i].min || range[i].value > range[i].max)
			return err_set(-EINVAL, "mla: %s is %u, must be %u to %u", range[i].name,
				       range[i].value, range[i].min, range[i].max);
	if (p->dtype != KV_F32 && p->dtype != KV_BF16)
		return err_set(-EINVAL, "mla: dtype of the weights is %u, must be f32 or bf16",
			       p->dtype);
	return 0;
}

static int check_weights(const struct kv_mla_params *p)
{
	if (!p->wkv_a || !p->wkv_b || !p->wo)
		return err_set(-EINVAL, "mla: wkv_a, wkv_b or wo is NULL");
	if (p->q_rank ? !p->wq_a || !p->wq_b || p->wq : !p->wq || p->wq_a || p->wq_b)
		return err_set(-EINVAL, "mla: q_rank is %u: %s", p->q_rank,
			       p->q_rank ? "wq_a and wq_b are wanted and wq is not"
					 : "wq is wanted, wq_a and wq_b are not");
	if (p->q_norm && !p->q_rank)
		return err_set(-EINVAL, "mla: q_norm without a q_rank");
	if (!p->rotary || p->rotary->dim != p->rope)
		return err_set(-EINVAL, "mla: rotary has %u dimensions, must have rope's %u",
			       p->rotary ? p->rotary->dim : 0, p->rope);
	if (!(p->eps >= 0 && isfinite(p->eps) && isfinite(p->scale)))
		return err_set(-EINVAL, "mla: eps %g or scale %g is out of range", p->eps,
			       p->scale);
	return 0;
}

/* ---- matrices -------------------------------------------------------------------------------- */

static int plain(struct gemm **g, const struct kv_mla_params *p, const void *data, uint64_t n,
		 uint64_t k)
{
	struct gemm_weights w = {.n = (uint32_t)n,
				 .k = (uint32_t)k,
				 .groups = 1,
				 .dtype = p->dtype,
				 .data = data,
				 .n_stride = k,
				 .k_stride = 1,
				 .row_tile = p->row_tile};

	return gemm_create(&w, g);
}

/* Both halves of wkv_b, [head][nope | v][rank]: up gives the latent's width, from nope; down takes
 * it, to v. */
static struct gemm_weights half(const struct kv_mla_params *p, bool up, bool values)
{
	uint64_t from = values ? (uint64_t)p->nope * p->rank * kv_dtype_bytes(p->dtype) : 0;
	uint32_t rows = values ? p->v_dim : p->nope;

	return (struct gemm_weights){.n = up ? p->rank : rows,
				     .k = up ? rows : p->rank,
				     .groups = p->heads,
				     .dtype = p->dtype,
				     .data = (const char *)p->wkv_b + from,
				     .group_stride = (uint64_t)(p->nope + p->v_dim) * p->rank,
				     .n_stride = up ? 1 : p->rank,
				     .k_stride = up ? p->rank : 1,
				     .row_tile = p->row_tile};
}

/* W_O * W_UV: the rows of wo are activations that go through W_UV the other way round. */
static int premultiply(struct kv_mla *m, const struct kv_mla_params *p)
{
	struct gemm_weights w = half(p, true, true);
	uint64_t width = (uint64_t)p->heads * p->rank;
	struct gemm_rows x = {p->wo, p->dtype, (uint64_t)p->heads * p->v_dim, p->v_dim};
	struct gemm_rows y = {NULL, p->dtype, width, p->rank};
	struct gemm *uv = NULL;
	void *scratch = NULL, *product;
	int err = 0;

	w.row_tile = 0;
	product = malloc(p->hidden * width * kv_dtype_bytes(p->dtype));
	y.data = product;
	if (product)
		err = gemm_create(&w, &uv);
	if (uv)
		scratch = aligned_alloc(64, gemm_scratch_bytes(uv, p->hidden));
	if (!product || (uv && !scratch))
		err = err_set(-ENOMEM, "out of memory to premultiply W_O and W_UV");
	if (!err)
		err = gemm_run(uv, p->hidden, &x, &y, scratch);
	gemm_destroy(uv);
	free(scratch);
	if (!err)
		err = plain(&m->combined, p, product, p->hidden, width);
	free(product);
	return err;
}

static int load_matrices(struct kv_mla *m, const struct kv_mla_params *p)
{
	uint64_t q_width = (uint64_t)p->heads * (p->nope + p->rope);
	struct gemm_weights w = half(p, true, false);
	int err = gemm_create(&w, &m->uk);

	if (!err)
		err = plain(&m->kv_a, p, p->wkv_a, p->rank + p->rope, p->hidden);
	if (!err && !p->q_rank)
		err = plain(&m->q, p, p->wq, q_width, p->hidden);
	if (!err && p->q_rank)
		err = plain(&m->q_a, p, p->wq_a, p->q_rank, p->hidden);
	if (!err && p->q_rank)
		err = plain(&m->q_b, p, p->wq_b, q_width, p->q_rank);
	if (err)
		return err;
	if (p->premultiply)
		return premultiply(m, p);
	w = half(p, false, true);
	err = gemm_create(&w, &m->uv);
	return err ? err : plain(&m->o, p, p->wo, p->hidden, (uint64_t)p->heads * p->v_dim);
}

static int load_norm(float **to, const float *from, uint32_t n)
{
	uint32_t i;

	*to = malloc((n ? n : 1) * sizeof(**to));
	if (!*to)
		return err_set(-ENOMEM, "out of memory for a norm");
	for (i = 0; i < n; i++)
		(*to)[i] = from ? from[i] : 1;
	return 0;
}

int kv_mla_create(const struct kv_mla_params *p, struct kv_mla **out)
{
	struct kv_mla *m;
	int err;

	if (!p || !out)
		return err_set(-EINVAL, "mla: NULL");
	err = check_sizes(p);
	if (!err)
		err = check_weights(p);
	if (err)
		return err;
	m = calloc(1, sizeof(*m));
	if (!m)
		return err_set(-ENOMEM, "out of memory for an MLA layer");
	pthread_mutex_init(&m->lock, NULL);
	m->p = *p;
	m->p.wq = m->p.wq_a = m->p.wq_b = m->p.wkv_a = m->p.wkv_b = m->p.wo = NULL;
	m->p.q_norm = m->p.kv_norm = NULL;
	m->p.eps = p->eps ? p->eps : 1e-6f;
	m->scale = p->scale ? p->scale
			    : (float)(p->rotary->softmax / sqrt((double)p->nope + p->rope));
	err = load_norm(&m->q_norm, p->q_norm, p->q_rank);
	if (!err)
		err = load_norm(&m->kv_norm, p->kv_norm, p->rank);
	if (!err)
		err = load_matrices(m, p);
	if (err) {
		kv_mla_destroy(m);
		return err;
	}
	*out = m;
	return 0;
}

static struct gemm *const *matrices(const struct kv_mla *m)
{
	return &m->q;
}

_Static_assert(offsetof(struct kv_mla, combined) - offsetof(struct kv_mla, q) ==
		       7 * sizeof(struct gemm *),
	       "the eight matrices stand side by side");

void kv_mla_destroy(struct kv_mla *m)
{
	struct mla_arena *a;
	int i;

	if (!m)
		return;
	for (i = 0; i < 8; i++)
		gemm_destroy(matrices(m)[i]);
	while ((a = m->arenas)) {
		m->arenas = a->next;
		free(a->mem);
		free(a);
	}
	free(m->q_norm);
	free(m->kv_norm);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

void kv_mla_info(const struct kv_mla *m, struct kv_mla_info *info)
{
	pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&m->lock;
	int i;

	*info = (struct kv_mla_info){.scale = m->scale};
	for (i = 0; i < 8; i++)
		if (matrices(m)[i])
			info->weight_bytes += gemm_bytes(matrices(m)[i]);
	pthread_mutex_lock(lock);
	info->scratch_bytes = m->arena_bytes;
	pthread_mutex_unlock(lock);
}
