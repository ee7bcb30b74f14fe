/* SPDX-License-Identifier: Apache-2.0 */
/* kvgen_test - what the tests of kvgen share: paths, and a KV backend of contiguous floats
 *
 * Everything is static inline, as each test is one source file. Test data that is not part of the
 * repository lives in ../shared next to it and is skipped, with a reason, where it is absent.
 */
#ifndef KVGEN_TEST_H
#define KVGEN_TEST_H

#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "forward.h"

/* The repository root, found upwards from the working directory or from the test itself. */
static inline int kvgen_root(char *root, size_t len)
{
	char dir[PATH_MAX], probe[PATH_MAX + 32];

	for (int from_exe = 0; from_exe < 2; from_exe++) {
		ssize_t n;

		if (!from_exe && !getcwd(dir, sizeof(dir)))
			continue;
		if (from_exe) {
			n = readlink("/proc/self/exe", dir, sizeof(dir) - 1);
			if (n < 0)
				continue;
			dir[n] = 0;
		}
		for (char *slash = dir + strlen(dir); slash; slash = strrchr(dir, '/')) {
			*slash = 0;
			snprintf(probe, sizeof(probe), "%s/tools/kvgen/models", dir);
			if (!access(probe, F_OK)) {
				snprintf(root, len, "%s", dir);
				return 0;
			}
		}
	}
	return -1;
}

/* path below the repository root; a static buffer per call site is not needed: two are kept. */
static inline const char *kvgen_path(const char *below)
{
	static char path[2][PATH_MAX + 256];
	static int turn;
	char root[PATH_MAX];

	assert_int_equal(kvgen_root(root, sizeof(root)), 0);
	turn = !turn;
	snprintf(path[turn], sizeof(path[turn]), "%s/%s", root, below);
	return path[turn];
}

#define KVGEN_SHARED "../shared/data/models/"

/* The path of shared test data, or skip() this test. */
static inline const char *kvgen_shared(const char *file)
{
	char below[128];
	const char *path;

	snprintf(below, sizeof(below), KVGEN_SHARED "%s", file);
	path = kvgen_path(below);
	if (access(path, R_OK)) {
		print_message("skipped: %s is absent\n", path);
		skip();
	}
	return path;
}

static inline uint8_t *kvgen_slurp(const char *path, size_t *len)
{
	FILE *file = fopen(path, "rb");
	uint8_t *data;
	long size;

	assert_non_null(file);
	assert_int_equal(fseek(file, 0, SEEK_END), 0);
	size = ftell(file);
	assert_true(size >= 0);
	rewind(file);
	data = malloc((size_t)size + 1);
	assert_non_null(data);
	*len = fread(data, 1, (size_t)size, file);
	assert_int_equal(*len, size);
	data[*len] = 0;
	fclose(file);
	return data;
}

/* ---- the backend: rows of all layers in two arrays ---- */

struct mem_kv {
	struct forward_shape s;
	uint32_t k_width, v_width;
	float *k, *v;		/* [layer][pos][width] */
	float *score;		/* [max_pos] */
	uint32_t fail_layer;	/* store() of this layer fails; UINT32_MAX: none */
};

static inline float *mem_row(float *rows, const struct mem_kv *kv, uint32_t width, uint32_t layer,
			     uint32_t pos)
{
	return rows + ((size_t)layer * kv->s.max_pos + pos) * width;
}

static inline int mem_store(void *ctx, uint32_t layer, uint32_t pos, uint32_t n, const float *k,
			    const float *v)
{
	struct mem_kv *kv = ctx;

	if (layer == kv->fail_layer)
		return -5;
	memcpy(mem_row(kv->k, kv, kv->k_width, layer, pos), k, sizeof(float) * n * kv->k_width);
	memcpy(mem_row(kv->v, kv, kv->v_width, layer, pos), v, sizeof(float) * n * kv->v_width);
	return 0;
}

static inline float mem_dot(const float *a, const float *b, uint32_t n)
{
	float sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

/* One query over len rows. MLA: key is (latent, roped key), value is the latent. */
static inline void mem_attend_head(struct mem_kv *kv, uint32_t layer, uint32_t len, uint32_t head,
				   const float *q, float *out)
{
	int mla = kv->s.kind == FORWARD_MLA;
	uint32_t width = mla ? kv->s.rank : kv->s.head_dim;
	uint32_t at = mla ? 0 : head / (kv->s.heads / kv->s.kv_heads) * width;
	float max = -INFINITY, sum = 0;

	for (uint32_t t = 0; t < len; t++) {
		const float *k = mem_row(kv->k, kv, kv->k_width, layer, t) + at;

		kv->score[t] = mem_dot(q, k, width);
		if (mla)
			kv->score[t] += mem_dot(q + width,
						mem_row(kv->v, kv, kv->v_width, layer, t),
						kv->s.rope);
		kv->score[t] *= kv->s.scale;
		max = fmaxf(max, kv->score[t]);
	}
	memset(out, 0, width * sizeof(*out));
	for (uint32_t t = 0; t < len; t++) {
		const float *v = mla ? mem_row(kv->k, kv, kv->k_width, layer, t)
				     : mem_row(kv->v, kv, kv->v_width, layer, t) + at;
		float p = expf(kv->score[t] - max);

		sum += p;
		for (uint32_t i = 0; i < width; i++)
			out[i] += p * v[i];
	}
	for (uint32_t i = 0; i < width; i++)
		out[i] /= sum;
}

static inline int mem_attend(void *ctx, uint32_t layer, uint32_t pos, uint32_t n, const float *q,
			     float *out)
{
	struct mem_kv *kv = ctx;
	int mla = kv->s.kind == FORWARD_MLA;
	uint32_t q_width = mla ? kv->s.rank + kv->s.rope : kv->s.head_dim;
	uint32_t out_width = mla ? kv->s.rank : kv->s.head_dim;

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t h = 0; h < kv->s.heads; h++) {
			size_t row = (size_t)i * kv->s.heads + h;

			mem_attend_head(kv, layer, pos + i + 1, h, q + row * q_width,
					out + row * out_width);
		}
	return 0;
}

static inline struct attn_backend mem_create(struct mem_kv *kv, const struct forward *fw)
{
	size_t rows;

	forward_shape(fw, &kv->s);
	kv->k_width = kv->s.kind == FORWARD_MLA ? kv->s.rank : kv->s.kv_heads * kv->s.head_dim;
	kv->v_width = kv->s.kind == FORWARD_MLA ? kv->s.rope : kv->k_width;
	kv->fail_layer = UINT32_MAX;
	rows = (size_t)kv->s.layers * kv->s.max_pos;
	kv->k = malloc(rows * kv->k_width * sizeof(float));
	kv->v = malloc(rows * kv->v_width * sizeof(float));
	kv->score = malloc(kv->s.max_pos * sizeof(float));
	assert_non_null(kv->k);
	assert_non_null(kv->v);
	assert_non_null(kv->score);
	return (struct attn_backend){ .store = mem_store, .attend = mem_attend, .ctx = kv };
}

static inline void mem_destroy(struct mem_kv *kv)
{
	free(kv->k);
	free(kv->v);
	free(kv->score);
}

#endif
