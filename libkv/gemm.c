// SPDX-License-Identifier: Apache-2.0
/* gemm - contract in gemm.h */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <kv/layout.h>

#include "blas.h"
#include "err.h"
#include "gemm.h"
#include "scratch.h"
#include "threads.h"

#define BLOCK_BYTES (1u << 20) /* stays in a core's second cache while all rows go through it */
#define BLOCK_STEP  64u	       /* outputs: the BLAS pads its packed weights to so many */
#define NR_SIZES    6u	       /* a single row is no faster than two */

static const uint32_t tile_sizes[NR_SIZES] = {2, 4, 8, 16, 32, GEMM_MAX_TILE};

enum { BODY, TAIL, NR_KINDS }; /* the last block of a group may be smaller */

struct gemm {
	uint32_t n, k, groups, dtype;
	uint32_t block_n, tail_n, group_blocks;
	uint32_t nr_sizes, size[NR_SIZES];
	struct blas_mm *mm[NR_KINDS][NR_SIZES];
	bool widen;		/* weights are bf16, products fp32 */
	bool by_row;		/* widen: a block is [n][k], else [k][n] */
	size_t block_bytes;	/* from one block to the next */
	size_t blas_scratch;
	unsigned char *data;
};

/* ---- conversion ------------------------------------------------------------------------------ */

#define INLINE static inline __attribute__((always_inline))

INLINE uint16_t to_bf16(float f)
{
	uint32_t x;

	memcpy(&x, &f, sizeof(x));
	/* a NaN keeps its upper bits and is quiet: rounding could carry it into infinity */
	x = (x & 0x7fffffff) > 0x7f800000 ? x | 0x400000 : x + 0x7fff + (x >> 16 & 1);
	return (uint16_t)(x >> 16);
}

INLINE void widen_any(float *restrict to, const uint16_t *restrict from, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++) {
		uint32_t x = (uint32_t)from[i] << 16;

		memcpy(to + i, &x, sizeof(x));
	}
}

INLINE void narrow_any(uint16_t *restrict to, const float *restrict from, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		to[i] = to_bf16(from[i]);
}

/* The baseline of x86-64 has no way to narrow a vector: half of a step went into these loops. */
#ifdef __x86_64__
static __attribute__((target("avx2"))) void widen_avx2(float *to, const uint16_t *from, size_t n)
{
	widen_any(to, from, n);
}

static __attribute__((target("avx2"))) void narrow_avx2(uint16_t *to, const float *from, size_t n)
{
	narrow_any(to, from, n);
}
#define HAVE_AVX2() __builtin_cpu_supports("avx2")
#else
#define widen_avx2  widen_any
#define narrow_avx2 narrow_any
#define HAVE_AVX2() false
#endif

static void widen(float *to, const uint16_t *from, size_t n)
{
	if (HAVE_AVX2())
		widen_avx2(to, from, n);
	else
		widen_any(to, from, n);
}

static void narrow(uint16_t *to, const float *from, size_t n)
{
	if (HAVE_AVX2())
		narrow_avx2(to, from, n);
	else
		narrow_any(to, from, n);
}

void gemm_convert(uint32_t to_dtype, void *to, uint32_t from_dtype, const void *from, size_t n)
{
	if (to_dtype == from_dtype)
		memcpy(to, from, n * kv_dtype_bytes(to_dtype));
	else if (to_dtype == KV_BF16)
		narrow(to, from, n);
	else
		widen(to, from, n);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static uint32_t round_up(uint32_t n, uint32_t step)
{
	return (n + step - 1) / step * step;
}

static size_t align64(size_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

/* The dtype that goes into a product. */
static uint32_t in_dtype(const struct gemm *g)
{
	return g->widen ? KV_F32 : g->dtype;
}

static void cut(struct gemm *g)
{
	uint64_t row = (uint64_t)g->k * kv_dtype_bytes(g->dtype);
	uint32_t fit = (uint32_t)(BLOCK_BYTES / row / BLOCK_STEP * BLOCK_STEP), blocks;

	fit = fit > BLOCK_STEP ? fit : BLOCK_STEP;
	blocks = (g->n + fit - 1) / fit;
	g->block_n = round_up((g->n + blocks - 1) / blocks, BLOCK_STEP);
	g->block_n = g->block_n < g->n ? g->block_n : g->n;
	g->group_blocks = (g->n + g->block_n - 1) / g->block_n;
	g->tail_n = g->n - (g->group_blocks - 1) * g->block_n;
}

static uint32_t nr_items(const struct gemm *g)
{
	return g->groups * g->group_blocks;
}

static uint32_t kind_n(const struct gemm *g, int kind)
{
	return kind == BODY ? g->block_n : g->tail_n;
}

static int kind_of(const struct gemm *g, uint32_t item)
{
	return g->tail_n != g->block_n && item % g->group_blocks == g->group_blocks - 1 ? TAIL
											: BODY;
}

/* ---- the products ---------------------------------------------------------------------------- */

static struct blas_shape shape(const struct gemm *g, const struct gemm_weights *w, int kind,
			       uint32_t size)
{
	struct blas_shape s = {.m = g->size[size], .n = kind_n(g, kind), .k = g->k};

	s.dtype = in_dtype(g);
	s.packed = !g->widen;
	s.w_n = w->n_stride;
	s.w_k = w->k_stride;
	if (g->widen) {
		s.w_n = g->by_row ? g->k : 1;
		s.w_k = g->by_row ? 1 : s.n;
	}
	return s;
}

static void drop_size(struct gemm *g, uint32_t size)
{
	int kind;

	for (kind = 0; kind < NR_KINDS; kind++) {
		blas_mm_destroy(g->mm[kind][size]);
		memmove(&g->mm[kind][size], &g->mm[kind][size + 1],
			(NR_SIZES - size - 1) * sizeof(struct blas_mm *));
		g->mm[kind][NR_SIZES - 1] = NULL;
	}
	memmove(&g->size[size], &g->size[size + 1], (NR_SIZES - size - 1) * sizeof(*g->size));
	g->nr_sizes--;
}

/* The largest tile decides how weights are packed. A smaller one that cannot read them so is left
 * out: rows are padded to the next. */
static int make_products(struct gemm *g, const struct gemm_weights *w)
{
	uint32_t i, last = g->nr_sizes - 1;
	int kind, err;

	for (i = g->nr_sizes; i-- > 0;) {
		for (kind = 0; kind < NR_KINDS; kind++) {
			struct blas_shape s = shape(g, w, kind, i);

			s.like = i == last ? NULL : g->mm[kind][last];
			err = blas_mm_create(&s, &g->mm[kind][i]);
			if (err && (i == last || err != -EOPNOTSUPP))
				return err;
			if (err)
				break;
		}
		if (err) {
			drop_size(g, i);
			last--;
		}
	}
	for (i = 0; i < g->nr_sizes; i++) {
		for (kind = 0; kind < NR_KINDS; kind++) {
			size_t need = blas_scratch_bytes(g->mm[kind][i]);

			g->blas_scratch = g->blas_scratch > need ? g->blas_scratch : need;
		}
	}
	return 0;
}

static void drop_products(struct gemm *g)
{
	uint32_t i;
	int kind;

	for (kind = 0; kind < NR_KINDS; kind++) {
		for (i = 0; i < NR_SIZES; i++) {
			blas_mm_destroy(g->mm[kind][i]);
			g->mm[kind][i] = NULL;
		}
	}
}

/* ---- weights --------------------------------------------------------------------------------- */

/* A block as it is, dense, to be widened later. */
static void copy_block(const struct gemm *g, const struct gemm_weights *w, const uint16_t *from,
		       uint32_t n, uint16_t *to)
{
	uint32_t rows = g->by_row ? n : g->k, cols = g->by_row ? g->k : n, i;
	uint64_t stride = g->by_row ? w->n_stride : w->k_stride;

	for (i = 0; i < rows; i++)
		memcpy(to + (size_t)i * cols, from + i * stride, cols * sizeof(*to));
}

static int load_weights(struct gemm *g, const struct gemm_weights *w)
{
	uint32_t items = nr_items(g), i, size = kv_dtype_bytes(g->dtype);
	int err;

	g->block_bytes = align64(g->widen ? (size_t)g->block_n * g->k * size
					  : blas_weight_bytes(g->mm[BODY][0]));
	g->data = aligned_alloc(64, g->block_bytes * items);
	if (!g->data)
		return err_set(-ENOMEM, "out of memory for %zu bytes of weights",
			       g->block_bytes * items);
	for (i = 0; i < items; i++) {
		uint64_t at = i / g->group_blocks * w->group_stride +
			      (uint64_t)(i % g->group_blocks) * g->block_n * w->n_stride;
		const char *from = (const char *)w->data + at * size;
		void *to = g->data + i * g->block_bytes;
		int kind = kind_of(g, i);

		if (g->widen) {
			copy_block(g, w, (const uint16_t *)from, kind_n(g, kind), to);
			continue;
		}
		err = blas_pack(g->mm[kind][0], from, to);
		if (err)
			return err;
	}
	return 0;
}

int gemm_create(const struct gemm_weights *w, struct gemm **out)
{
	struct gemm *g = calloc(1, sizeof(*g));
	int err;

	if (!g)
		return err_set(-ENOMEM, "out of memory for a weight matrix");
	g->n = w->n;
	g->k = w->k;
	g->groups = w->groups;
	g->dtype = w->dtype;
	g->by_row = w->k_stride == 1;
	g->nr_sizes = w->row_tile ? 1 : NR_SIZES;
	memcpy(g->size, tile_sizes, sizeof(tile_sizes));
	if (w->row_tile)
		g->size[0] = w->row_tile;
	cut(g);
	err = make_products(g, w);
	if (err == -EOPNOTSUPP && g->dtype == KV_BF16) {
		drop_products(g);
		g->widen = true;
		err = make_products(g, w);
	}
	if (!err)
		err = load_weights(g, w);
	if (err) {
		gemm_destroy(g);
		return err;
	}
	*out = g;
	return 0;
}

void gemm_destroy(struct gemm *g)
{
	if (!g)
		return;
	drop_products(g);
	free(g->data);
	free(g);
}

uint64_t gemm_bytes(const struct gemm *g)
{
	return (uint64_t)g->block_bytes * nr_items(g);
}

/* ---- a job ----------------------------------------------------------------------------------- */

/* The next tile: the smallest that holds what is left, or the largest. */
static uint32_t tile_for(const struct gemm *g, uint32_t left)
{
	uint32_t i = 0;

	while (i < g->nr_sizes - 1 && g->size[i] < left)
		i++;
	return i;
}

static uint32_t padded_rows(const struct gemm *g, uint32_t rows)
{
	uint32_t done, at;

	for (done = 0, at = 0; done < rows; done = at)
		at = done + g->size[tile_for(g, rows - done)];
	return at;
}

size_t gemm_scratch_bytes(const struct gemm *g, uint32_t rows)
{
	return align64((size_t)g->groups * padded_rows(g, rows) * g->k *
		       kv_dtype_bytes(in_dtype(g)));
}

/* Padding is zero: what it held before could be NaN, which is slow though it is never read back. */
static void load_rows(const struct gemm *g, uint32_t rows, const struct gemm_rows *x, void *in)
{
	uint32_t padded = padded_rows(g, rows), group, row, dtype = in_dtype(g);
	size_t size = kv_dtype_bytes(dtype), bytes = g->k * size;
	char *to = in;

	for (group = 0; group < g->groups; group++) {
		for (row = 0; row < rows; row++, to += bytes) {
			uint64_t at = row * x->row_stride + group * x->group_stride;

			gemm_convert(dtype, to, x->dtype,
				     (const char *)x->data + at * kv_dtype_bytes(x->dtype), g->k);
		}
		memset(to, 0, (padded - rows) * bytes);
		to += (padded - rows) * bytes;
	}
}

static size_t tile_bytes(const struct gemm *g)
{
	return align64((size_t)GEMM_MAX_TILE * g->block_n * sizeof(float));
}

static size_t item_bytes(const struct gemm *g)
{
	size_t wide = g->widen ? align64((size_t)g->block_n * g->k * sizeof(float)) : 0;

	return tile_bytes(g) + g->blas_scratch + wide;
}

static void put_tile(const struct gemm_rows *y, uint32_t group, uint32_t row, uint32_t col,
		     const float *tile, uint32_t rows, uint32_t n)
{
	size_t size = kv_dtype_bytes(y->dtype);
	uint32_t i;

	for (i = 0; i < rows; i++) {
		uint64_t at = (row + i) * y->row_stride + group * y->group_stride + col;

		gemm_convert(y->dtype, (char *)(uintptr_t)y->data + at * size, KV_F32,
			     tile + (size_t)i * n, n);
	}
}

struct job {
	const struct gemm *g;
	uint32_t rows;
	const void *in;
	const struct gemm_rows *y;
	_Atomic int err;
};

static int run_item(const struct job *j, uint32_t item)
{
	const struct gemm *g = j->g;
	uint32_t group = item / g->group_blocks, col = item % g->group_blocks * g->block_n;
	int kind = kind_of(g, item), err;
	size_t row_bytes = (size_t)g->k * kv_dtype_bytes(in_dtype(g));
	const char *x = (const char *)j->in + group * padded_rows(g, j->rows) * row_bytes;
	const void *w = g->data + item * g->block_bytes;
	uint32_t done, n = kind_n(g, kind);
	void *tile, *blas;

	err = scratch_get(SCRATCH_GEMM, item_bytes(g), &tile);
	if (err)
		return err;
	blas = (char *)tile + tile_bytes(g);
	if (g->widen) {
		float *wide = (float *)((char *)blas + g->blas_scratch);

		widen(wide, w, (size_t)n * g->k);
		w = wide;
	}
	for (done = 0; done < j->rows && !err;) {
		uint32_t size = tile_for(g, j->rows - done), rows = g->size[size];
		uint32_t real = j->rows - done < rows ? j->rows - done : rows;

		err = blas_run(g->mm[kind][size], x + done * row_bytes, w, tile, blas);
		if (!err)
			put_tile(j->y, group, done, col, tile, real, n);
		done += rows;
	}
	return err;
}

static void run_one(void *ctx, uint32_t item)
{
	struct job *j = ctx;
	int err = run_item(j, item);

	if (err)
		atomic_store(&j->err, err);
}

int gemm_run(const struct gemm *g, uint32_t rows, const struct gemm_rows *x,
	     const struct gemm_rows *y, void *scratch)
{
	struct job j = {.g = g, .rows = rows, .in = scratch, .y = y};
	int threads = threads_limit(), err;

	if (threads < 0)
		return threads;
	load_rows(g, rows, x, scratch);
	threads_run(run_one, &j, nr_items(g), (uint32_t)threads);
	err = atomic_load(&j.err);
	/* the text of another thread is not this one's */
	return err ? err_set(err, "a product of %u rows failed: %s", rows, strerror(-err)) : 0;
}
