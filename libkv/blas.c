// SPDX-License-Identifier: Apache-2.0
/* blas - oneDNN's C interface of 2.x (Debian 12) and 3.x (Ubuntu 24.04); contract in blas.h */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <dnnl.h>
#include <kv/layout.h>

#include "blas.h"
#include "err.h"

/* Memory descriptors are values in 2.x and handles in 3.x; MD() is what functions take. */
#if DNNL_VERSION_MAJOR >= 3
#define MD(md) (md)
#define MATMUL_FUNCS(F) \
	F(matmul_primitive_desc_create) F(memory_desc_create_with_strides) \
	F(memory_desc_create_with_tag) F(memory_desc_destroy) F(memory_desc_clone)
#else
#define MD(md) (&(md))
#define MATMUL_FUNCS(F) \
	F(matmul_desc_init) F(primitive_desc_create) F(memory_desc_init_by_strides) \
	F(memory_desc_init_by_tag)
#endif

#define FUNCS(F) \
	MATMUL_FUNCS(F) \
	F(engine_create) F(stream_create) F(stream_wait) F(memory_create) F(memory_destroy) \
	F(primitive_attr_create) F(primitive_attr_destroy) F(primitive_attr_set_scratchpad_mode) \
	F(primitive_desc_query_md) F(primitive_desc_destroy) F(primitive_create) \
	F(primitive_destroy) F(primitive_execute) F(reorder_primitive_desc_create) \
	F(memory_desc_get_size)

#define FUNC_DECLARE(name) __typeof__(&dnnl_##name) name;
#define FUNC_NAME(name)	   "dnnl_" #name,

/* ---- loading --------------------------------------------------------------------------------- */

static struct dnn {
	FUNCS(FUNC_DECLARE)
	dnnl_engine_t engine;
	dnnl_stream_t stream;		/* of the CPU and its own runtime: it keeps no state */
	int (*get_threads)(void);	/* OpenMP's, NULL if oneDNN was built without it */
	void (*set_threads)(int);
} dnn;

static pthread_once_t dnn_once = PTHREAD_ONCE_INIT;
static int dnn_err;
static char dnn_why[256];

static const char *const func_names[] = { FUNCS(FUNC_NAME) };

static int resolve(void *lib)
{
	void **to = (void **)&dnn; /* the functions stand first, in this order */
	size_t i;

	for (i = 0; i < sizeof(func_names) / sizeof(*func_names); i++) {
		to[i] = dlsym(lib, func_names[i]);
		if (!to[i])
			return -1;
	}
	/* found through the library's own dependencies */
	dnn.get_threads = (int (*)(void))dlsym(lib, "omp_get_max_threads");
	dnn.set_threads = (void (*)(int))dlsym(lib, "omp_set_num_threads");
	if (!dnn.get_threads || !dnn.set_threads)
		dnn.get_threads = NULL;
	return 0;
}

/* Never unloaded: OpenMP's runtime does not survive that. */
static void load(void)
{
	void *lib = dlopen(BLAS_SONAME, RTLD_NOW | RTLD_LOCAL);
	const char *why = lib ? NULL : dlerror();

	if (lib && resolve(lib))
		why = dlerror();
	if (!why && (dnn.engine_create(&dnn.engine, dnnl_cpu, 0) ||
		     dnn.stream_create(&dnn.stream, dnn.engine, dnnl_stream_default_flags)))
		why = "it has no CPU engine";
	if (why) {
		dnn_err = -EOPNOTSUPP;
		strncpy(dnn_why, why, sizeof(dnn_why) - 1);
	}
}

static int loaded(void)
{
	pthread_once(&dnn_once, load);
	return dnn_err ? err_set(dnn_err, "oneDNN is not there (%s): install " BLAS_SONAME, dnn_why)
		       : 0;
}

/* The setting is the calling thread's own in OpenMP; oneDNN reads it when it makes a product and
 * when it runs one. */
static int one_thread(void)
{
	int was = dnn.get_threads ? dnn.get_threads() : 1;

	if (was != 1)
		dnn.set_threads(1);
	return was;
}

static void put_threads(int was)
{
	if (was != 1)
		dnn.set_threads(was);
}

/* ---- descriptors ----------------------------------------------------------------------------- */

struct blas_mm {
	dnnl_primitive_t prim;
	dnnl_memory_desc_t x, w, plain, y, pad;
	size_t weight_bytes, scratch_bytes;
};

/* rows x cols with strides; col_stride 0: in the order the BLAS likes best. */
static int md_make(dnnl_memory_desc_t *md, uint32_t rows, uint32_t cols, uint32_t dtype,
		   uint64_t row_stride, uint64_t col_stride)
{
	dnnl_dims_t dims = { rows, cols };
	dnnl_dims_t strides = { (dnnl_dim_t)row_stride, (dnnl_dim_t)col_stride };
	dnnl_data_type_t type = dtype == KV_BF16 ? dnnl_bf16 : dnnl_f32;

#if DNNL_VERSION_MAJOR >= 3
	if (!col_stride)
		return dnn.memory_desc_create_with_tag(md, 2, dims, type, dnnl_format_tag_any);
	return dnn.memory_desc_create_with_strides(md, 2, dims, type, strides);
#else
	if (!col_stride)
		return dnn.memory_desc_init_by_tag(md, 2, dims, type, dnnl_format_tag_any);
	return dnn.memory_desc_init_by_strides(md, 2, dims, type, strides);
#endif
}

static int md_query(dnnl_memory_desc_t *md, const_dnnl_primitive_desc_t pd, dnnl_query_t what)
{
#if DNNL_VERSION_MAJOR >= 3
	return dnn.memory_desc_clone(md, dnn.primitive_desc_query_md(pd, what, 0));
#else
	*md = *dnn.primitive_desc_query_md(pd, what, 0);
	return 0;
#endif
}

static int md_copy(dnnl_memory_desc_t *md, const dnnl_memory_desc_t *from)
{
#if DNNL_VERSION_MAJOR >= 3
	return dnn.memory_desc_clone(md, *from);
#else
	*md = *from;
	return 0;
#endif
}

static void md_free(dnnl_memory_desc_t *md)
{
#if DNNL_VERSION_MAJOR >= 3
	if (*md)
		dnn.memory_desc_destroy(*md);
#else
	(void)md;
#endif
}

static int pd_make(dnnl_primitive_desc_t *pd, const struct blas_mm *mm, dnnl_memory_desc_t *w)
{
	dnnl_primitive_attr_t attr;
	int err = dnn.primitive_attr_create(&attr);

	if (err)
		return err;
	/* the library's own scratch pad belongs to the thread that made the primitive */
	dnn.primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
#if DNNL_VERSION_MAJOR >= 3
	err = dnn.matmul_primitive_desc_create(pd, dnn.engine, mm->x, *w, NULL, mm->y, attr);
#else
	dnnl_matmul_desc_t desc;

	err = dnn.matmul_desc_init(&desc, &mm->x, w, NULL, &mm->y);
	if (!err)
		err = dnn.primitive_desc_create(pd, &desc, attr, dnn.engine, NULL);
#endif
	dnn.primitive_attr_destroy(attr);
	return err;
}

static int mm_init(struct blas_mm *mm, const struct blas_shape *s)
{
	dnnl_memory_desc_t any = { 0 };
	dnnl_primitive_desc_t pd;
	int err = md_make(&mm->x, s->m, s->k, s->dtype, s->k, 1);

	if (!err)
		err = md_make(&mm->y, s->m, s->n, KV_F32, s->n, 1);
	if (!err)
		err = md_make(&mm->plain, s->k, s->n, s->dtype, s->w_k, s->w_n);
	if (!err && s->packed)
		err = s->like ? md_copy(&any, &s->like->w)
			      : md_make(&any, s->k, s->n, s->dtype, 0, 0);
	if (!err)
		err = pd_make(&pd, mm, s->packed ? &any : &mm->plain);
	md_free(&any);
	if (err)
		return err;
	err = md_query(&mm->w, pd, dnnl_query_weights_md);
	if (!err)
		err = md_query(&mm->pad, pd, dnnl_query_scratchpad_md);
	if (!err)
		err = dnn.primitive_create(&mm->prim, pd);
	dnn.primitive_desc_destroy(pd);
	if (err)
		return err;
	mm->weight_bytes = dnn.memory_desc_get_size(MD(mm->w));
	mm->scratch_bytes = dnn.memory_desc_get_size(MD(mm->pad));
	return 0;
}

int blas_mm_create(const struct blas_shape *s, struct blas_mm **out)
{
	struct blas_mm *mm;
	int err = loaded(), was;

	if (err)
		return err;
	mm = calloc(1, sizeof(*mm));
	if (!mm)
		return err_set(-ENOMEM, "out of memory for a product");
	was = one_thread();
	err = mm_init(mm, s);
	put_threads(was);
	if (err) {
		blas_mm_destroy(mm);
		return err_set(err == dnnl_out_of_memory ? -ENOMEM : -EOPNOTSUPP,
			       "oneDNN has no product %u x %u x %u of dtype %u (status %d)", s->m,
			       s->n, s->k, s->dtype, err);
	}
	*out = mm;
	return 0;
}

void blas_mm_destroy(struct blas_mm *mm)
{
	if (!mm)
		return;
	if (mm->prim)
		dnn.primitive_destroy(mm->prim);
	md_free(&mm->x);
	md_free(&mm->w);
	md_free(&mm->plain);
	md_free(&mm->y);
	md_free(&mm->pad);
	free(mm);
}

size_t blas_weight_bytes(const struct blas_mm *mm)
{
	return mm->weight_bytes;
}

size_t blas_scratch_bytes(const struct blas_mm *mm)
{
	return (mm->scratch_bytes + 63) / 64 * 64;
}

/* ---- running --------------------------------------------------------------------------------- */

#define MAX_ARGS 4

struct arg {
	int index;
	const dnnl_memory_desc_t *md;
	void *at;
};

/* Memory objects hold the address, so each run has its own. */
static int execute(dnnl_primitive_t prim, const struct arg *args, int nr)
{
	dnnl_exec_arg_t exec[MAX_ARGS];
	int i, err = 0, was = one_thread();

	for (i = 0; i < nr && !err; i++) {
		exec[i].arg = args[i].index;
		err = dnn.memory_create(&exec[i].memory, MD(*args[i].md), dnn.engine, args[i].at);
		if (err)
			break;
	}
	if (!err)
		err = dnn.primitive_execute(prim, dnn.stream, nr, exec);
	if (!err)
		err = dnn.stream_wait(dnn.stream);
	while (i-- > 0)
		dnn.memory_destroy(exec[i].memory);
	put_threads(was);
	return err ? err_set(-EIO, "oneDNN failed (status %d)", err) : 0;
}

int blas_run(const struct blas_mm *mm, const void *x, const void *w, float *y, void *scratch)
{
	const struct arg args[] = {
		{ DNNL_ARG_SRC, &mm->x, (void *)(uintptr_t)x },
		{ DNNL_ARG_WEIGHTS, &mm->w, (void *)(uintptr_t)w },
		{ DNNL_ARG_DST, &mm->y, y },
		{ DNNL_ARG_SCRATCHPAD, &mm->pad, scratch },
	};

	return execute(mm->prim, args, mm->scratch_bytes ? 4 : 3);
}

int blas_pack(const struct blas_mm *mm, const void *plain, void *packed)
{
	const struct arg args[] = {
		{ DNNL_ARG_FROM, &mm->plain, (void *)(uintptr_t)plain },
		{ DNNL_ARG_TO, &mm->w, packed },
	};
	dnnl_primitive_desc_t pd;
	dnnl_primitive_t prim;
	int was = one_thread();
	int err = dnn.reorder_primitive_desc_create(&pd, MD(mm->plain), dnn.engine, MD(mm->w),
						    dnn.engine, NULL);

	if (!err) {
		err = dnn.primitive_create(&prim, pd);
		dnn.primitive_desc_destroy(pd);
	}
	put_threads(was);
	if (err)
		return err_set(-EIO, "oneDNN cannot pack weights (status %d)", err);
	err = execute(prim, args, 2);
	dnn.primitive_destroy(prim);
	return err;
}
