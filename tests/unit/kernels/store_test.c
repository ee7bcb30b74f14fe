// SPDX-License-Identifier: Apache-2.0
/* kern_store with scales and rope, kern_convert between the layouts of rows. */
#include "attn_case.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#define N   23u
#define DK  256u
#define DV  40u
#define MAX (N * 3 * (DK + DV))

static float k_src[MAX], v_src[MAX], k_got[MAX], v_got[MAX], k_two[MAX], v_two[MAX];

static void random_rows(uint64_t seed, bool odd)
{
	uint32_t i;

	for (i = 0; i < MAX; i++) {
		k_src[i] = attn_value(&seed);
		v_src[i] = attn_value(&seed) * 50;
		if (odd && !attn_below(&seed, 64))
			k_src[i] = v_src[i] = attn_below(&seed, 2) ? INFINITY : NAN;
	}
}

static struct attn_case scaled_case(uint32_t kind, uint32_t dtype, uint32_t scale)
{
	return (struct attn_case){.kind = kind,
				  .dtype = dtype,
				  .scale = scale,
				  .len = {N},
				  .page_tokens = 7,
				  .kv_heads = kind == KERN_MLA ? 1 : 3,
				  .dk = DK,
				  .dv = DV,
				  .seed = 77 + dtype};
}

static struct kern_store store_of(const struct attn_case *c)
{
	return (struct kern_store){.view = c->at.view,
				   .pte = c->pte[0],
				   .n = N,
				   .k = k_src,
				   .v = v_src,
				   .k_scale = c->at.k_scale,
				   .v_scale = c->at.v_scale};
}

static struct kern_rows rows_of(const struct attn_case *c)
{
	return (struct kern_rows){.view = c->at.view,
				  .pte = c->pte[0],
				  .k_scale = c->at.k_scale,
				  .v_scale = c->at.v_scale};
}

/* What an element should become, from the definition. */
static float quantised(uint32_t dtype, float x, float scale)
{
	float e;

	kern_num_put(dtype, &e, 0, x / scale);
	return kern_num_get(dtype, &e, 0) * scale;
}

/* The largest finite magnitude, at least that of the elements before. */
static float max_of(const float *x, uint32_t n, float max)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		if (isfinite(x[i]) && fabsf(x[i]) > max)
			max = fabsf(x[i]);
	return max;
}

static float scale_of(uint32_t dtype, float max)
{
	return max > 0 ? max / (dtype == KERN_I8 ? 127 : 448) : 1;
}

static bool same(float a, float b)
{
	return a == b || (isnan(a) && isnan(b));
}

static void expect_row(const struct attn_case *c, uint32_t row)
{
	const float *k = k_src + row * DK, *v = v_src + row * DV;
	uint32_t head = row % c->kv_heads, i;
	float ks = 1, vs = 1;

	if (c->scale == KERN_SCALE_HEAD) {
		ks = c->at.k_scale ? c->at.k_scale[head] : 1;
		vs = c->kind == KERN_MLA ? ks : c->at.v_scale ? c->at.v_scale[head] : 1;
	} else if (c->scale == KERN_SCALE_TOKEN) {
		float both = max_of(v, DV, max_of(k, DK, 0));

		ks = scale_of(c->dtype, c->kind == KERN_MLA ? both : max_of(k, DK, 0));
		vs = scale_of(c->dtype, c->kind == KERN_MLA ? both : max_of(v, DV, 0));
	}
	for (i = 0; i < DK; i++) {
		float s = c->dtype == KERN_F8_DS ?
				scale_of(KERN_F8, max_of(k + i / 128 * 128, 128, 0)) : ks;

		assert_true(same(k_got[row * DK + i],
				 quantised(c->dtype == KERN_F8_DS ? KERN_F8 : c->dtype, k[i], s)));
	}
	for (i = 0; i < DV; i++) {
		uint32_t dtype = c->dtype == KERN_F8_DS ? KERN_BF16 : c->dtype;

		assert_true(same(v_got[row * DV + i], quantised(dtype, v[i], vs)));
	}
}

static void store_scaled(uint32_t kind, uint32_t dtype, uint32_t scale)
{
	struct attn_case c = scaled_case(kind, dtype, scale);
	struct kern_store s;
	struct kern_rows rows;
	uint32_t row;

	attn_build(&c);
	s = store_of(&c);
	rows = rows_of(&c);
	assert_int_equal(kern_store(&s), 0);
	assert_int_equal(kern_load(&rows, 0, N, k_got, v_got), 0);
	for (row = 0; row < N * c.kv_heads; row++)
		expect_row(&c, row);
	attn_free(&c);
}

#define FOR_EACH_SCALED(kind, dtype, scale) \
	for (uint32_t kind = KERN_GQA; kind <= KERN_MLA; kind++) \
		for (uint32_t dtype = KERN_F8; dtype <= (kind == KERN_MLA ? KERN_F8_DS : KERN_I8); \
		     dtype++) \
			for (uint32_t scale = 0; scale <= attn_max_scale(dtype); scale++)

static void stores_quantise(void **state)
{
	(void)state;
	for (int odd = 0; odd < 2; odd++) {
		random_rows(3, odd);
		FOR_EACH_SCALED(kind, dtype, scale) store_scaled(kind, dtype, scale);
	}
	memset(k_src, 0, sizeof(k_src)); /* scale 1, not 0 / 0 */
	FOR_EACH_SCALED(kind, dtype, scale) store_scaled(kind, dtype, scale);
	for (uint32_t i = 0; i < MAX; i++)
		k_src[i] = 0x1p-140f; /* a maximum whose scale would not be a normal number */
	store_scaled(KERN_GQA, KERN_F16, 0);
}

/* Other source dtypes, strides and two goes give the same bytes. */
static void stores_agree(void **state)
{
	static uint16_t k16[2 * MAX], v16[2 * MAX];
	uint32_t i, t, kw = 3 * DK, vw = 3 * DV;

	(void)state;
	random_rows(4, false);
	for (i = 0; i < MAX; i++) {
		k_src[i] = kern_num_from_bf16(kern_num_to_bf16(k_src[i]));
		v_src[i] = kern_num_from_bf16(kern_num_to_bf16(v_src[i]));
	}
	for (t = 0; t < N; t++) {
		for (i = 0; i < kw; i++)
			k16[t * (kw + 8) + i] = kern_num_to_bf16(k_src[t * kw + i]);
		for (i = 0; i < vw; i++)
			v16[t * (vw + 24) + i] = kern_num_to_bf16(v_src[t * vw + i]);
	}
	for (uint32_t dtype = KERN_F32; dtype <= KERN_I8; dtype++) {
		struct attn_case c = scaled_case(KERN_GQA, dtype, attn_max_scale(dtype));
		struct kern_store s;
		struct kern_rows rows;

		attn_build(&c);
		rows = rows_of(&c);
		s = store_of(&c);
		assert_int_equal(kern_store(&s), 0);
		assert_int_equal(kern_load(&rows, 0, N, k_got, v_got), 0);
		s.src_dtype = KERN_BF16;
		s.k_stride = kw + 8;
		s.v_stride = vw + 24;
		s.n = 9;
		s.k = k16;
		s.v = v16;
		for (i = 0; i < c.nr_pages; i++)
			memset(c.pages[i], 0, c.page_bytes);
		assert_int_equal(kern_store(&s), 0);
		s.pos = 9;
		s.n = N - 9;
		s.k = k16 + 9 * s.k_stride;
		s.v = v16 + 9 * s.v_stride;
		assert_int_equal(kern_store(&s), 0);
		assert_int_equal(kern_load(&rows, 0, N, k_two, v_two), 0);
		assert_memory_equal(k_got, k_two, N * kw * 4);
		assert_memory_equal(v_got, v_two, N * vw * 4);
		attn_free(&c);
	}
}

/* ---- rope ---- */

static float cos_table[64 * 20], sin_table[64 * 20];

static void rope_tables(uint32_t dim, uint32_t first)
{
	uint32_t p, i;

	for (p = 0; p < 64; p++)
		for (i = 0; i < dim / 2; i++) {
			double angle = (first + p) * pow(10000, -2.0 * i / dim);

			cos_table[p * (dim / 2) + i] = (float)cos(angle);
			sin_table[p * (dim / 2) + i] = (float)sin(angle);
		}
}

static void expect_rope(const float *got, const float *src, uint32_t width, uint32_t dim,
			bool halves, uint32_t position)
{
	uint32_t i;

	for (i = 0; i < dim / 2; i++) {
		uint32_t a = halves ? i : 2 * i, b = halves ? i + dim / 2 : 2 * i + 1;
		double angle = position * pow(10000, -2.0 * i / dim);

		double limit = 3e-7 * (fabsf(src[a]) + fabsf(src[b]));

		assert_true(fabs(got[a] - (src[a] * cos(angle) - src[b] * sin(angle))) <= limit);
		assert_true(fabs(got[b] - (src[a] * sin(angle) + src[b] * cos(angle))) <= limit);
	}
	for (i = dim; i < width; i++)
		assert_true(got[i] == src[i]);
}

/* Partial and whole, both pairings, positions of the store and given ones; V stays (MLA: K). */
static void store_rotates(uint32_t kind, uint32_t dim, bool halves, bool given)
{
	struct attn_case c = scaled_case(kind, KERN_F32, 0);
	const uint32_t first = given ? 100 : 2;
	const struct kern_rope rope = {.cos = cos_table,
				       .sin = sin_table,
				       .dim = dim,
				       .pairing = halves ? KERN_ROPE_HALVES : KERN_ROPE_ADJACENT,
				       .first = first,
				       .nr = 64};
	uint32_t positions[N - 3], i, row;
	struct kern_rows rows;
	struct kern_store s;

	rope_tables(dim, first);
	for (i = 0; i < N - 3; i++)
		positions[i] = given ? 163 - i : i + 3;
	attn_build(&c);
	rows = rows_of(&c);
	s = store_of(&c);
	s.pos = 3;
	s.n = N - 3;
	s.rope = &rope;
	s.positions = given ? positions : NULL;
	assert_int_equal(kern_store(&s), 0);
	assert_int_equal(kern_load(&rows, 3, N - 3, k_got, v_got), 0);
	for (row = 0; row < (N - 3) * c.kv_heads; row++) {
		uint32_t position = positions[row / c.kv_heads];

		if (kind == KERN_MLA) {
			expect_rope(v_got + row * DV, v_src + row * DV, DV, dim, halves, position);
			assert_memory_equal(k_got + row * DK, k_src + row * DK, DK * 4);
		} else {
			expect_rope(k_got + row * DK, k_src + row * DK, DK, dim, halves, position);
			assert_memory_equal(v_got + row * DV, v_src + row * DV, DV * 4);
		}
	}
	attn_free(&c);
}

static void stores_rotate(void **state)
{
	(void)state;
	random_rows(9, false);
	for (uint32_t kind = KERN_GQA; kind <= KERN_MLA; kind++)
		for (uint32_t dim = 2; dim <= DV; dim += 38)
			for (int way = 0; way < 4; way++)
				store_rotates(kind, dim, way & 1, way >> 1);
}

static void stores_refuse(void **state)
{
	struct attn_case c = scaled_case(KERN_GQA, KERN_F8, KERN_SCALE_HEAD);
	struct kern_rope rope = {.cos = cos_table, .sin = sin_table, .dim = 8, .nr = N};
	static float bad[3] = {1, 0, 1};
	struct kern_store s, t;

	(void)state;
	attn_build(&c);
	s = store_of(&c);
	s.rope = &rope;
	assert_int_equal(kern_store(&s), 0);
	memset(c.pages[0], 0x11, c.page_bytes);
#define REFUSED(change) \
	do { \
		t = s; \
		change; \
		assert_int_equal(kern_store(&t), -EINVAL); \
		rope = (struct kern_rope){ \
			.cos = cos_table, .sin = sin_table, .dim = 8, .nr = N}; \
	} while (0)
	REFUSED(t.k_scale = bad);
	REFUSED(t.v_scale = bad);
	REFUSED(t.src_dtype = KERN_F8);
	REFUSED(t.pos = 1);
	REFUSED(rope.first = 1);
	REFUSED(rope.nr = N - 1);
	REFUSED(rope.dim = 0);
	REFUSED(rope.dim = 7);
	REFUSED(rope.dim = DK + 2);
	REFUSED(rope.pairing = 2);
	for (size_t i = 0; i < c.page_bytes; i++)
		assert_int_equal(((char *)c.pages[0])[i], 0x11);
	attn_free(&c);
}

/* ---- conversions ---- */

/* From every layout of MLA rows to every other: what a load and a store would do, or better. */
static void convert_pair(uint32_t from_dtype, uint32_t from_scale, uint32_t to_dtype,
			 uint32_t to_scale)
{
	struct attn_case a = scaled_case(KERN_MLA, from_dtype, from_scale);
	struct attn_case b = scaled_case(KERN_MLA, to_dtype, to_scale);
	struct kern_rows from, to;
	struct kern_store s;
	bool latent = from_dtype == KERN_F8 && to_dtype == KERN_F8_DS;
	uint32_t i;

	b.page_tokens = 5;
	attn_build(&a);
	attn_build(&b);
	from = rows_of(&a);
	to = rows_of(&b);
	s = store_of(&a);
	assert_int_equal(kern_store(&s), 0);
	assert_int_equal(kern_load(&from, 0, N, k_got, v_got), 0);
	assert_int_equal(kern_convert(&to, 2, &from, 1, N - 2), 0);
	assert_int_equal(kern_load(&to, 2, N - 2, k_two, v_two), 0);
	if (latent || (from_dtype == to_dtype && from_scale == to_scale &&
		       from_scale != KERN_SCALE_HEAD))
		assert_memory_equal(k_two, k_got + DK, (N - 2) * DK * 4);
	s = store_of(&b);
	s.pos = 2;
	s.n = N - 2;
	s.k = k_got + DK;
	s.v = v_got + DV;
	assert_int_equal(kern_store(&s), 0);
	assert_int_equal(kern_load(&to, 2, N - 2, k_got, v_got), 0);
	for (i = 0; i < (N - 2) * DK; i++) {
		float max = max_of(k_got + i / DK * DK, DK, 0);

		assert_true(fabsf(k_two[i] - k_got[i]) <= (latent ? max / 16 : max * 1e-6f));
	}
	for (i = 0; i < (N - 2) * DV; i++)
		assert_true(fabsf(v_two[i] - v_got[i]) <= fabsf(v_got[i]) * 1e-6f);
	attn_free(&a);
	attn_free(&b);
}

static void mla_rows_convert(void **state)
{
	(void)state;
	random_rows(12, false);
	for (uint32_t a = KERN_F32; a <= KERN_F8_DS; a++)
		for (uint32_t as = 0; as <= attn_max_scale(a); as++)
			for (uint32_t b = KERN_F32; b <= KERN_F8_DS; b++)
				for (uint32_t bs = 0; bs <= attn_max_scale(b); bs++)
					convert_pair(a, as, b, bs);
}

/* A copied page carries its scales and nothing of the rows behind. */
static void copies_carry_scales(void **state)
{
	struct attn_case c = scaled_case(KERN_GQA, KERN_I8, KERN_SCALE_TOKEN);
	struct kern_rows from, to;
	uint64_t page[1];
	void *copy;

	(void)state;
	random_rows(13, false);
	for (c.kind = KERN_GQA; c.kind <= KERN_MLA; c.kind++) {
		struct kern_store s;

		c.kv_heads = c.kind == KERN_MLA ? 1 : 3;
		attn_build(&c);
		from = to = rows_of(&c);
		s = store_of(&c);
		assert_int_equal(kern_store(&s), 0);
		copy = attn_alloc(c.page_bytes);
		memset(copy, 0xff, c.page_bytes);
		page[0] = (uintptr_t)copy;
		kern_copy_rows(copy, (void *)(uintptr_t)c.pte[0][0], &c.at.view, 1, 0, 5);
		to.pte = page;
		assert_int_equal(kern_load(&from, 0, 5, k_got, v_got), 0);
		assert_int_equal(kern_load(&to, 0, 5, k_two, v_two), 0);
		assert_memory_equal(k_got, k_two, 5 * c.kv_heads * DK * 4);
		assert_memory_equal(v_got, v_two, 5 * c.kv_heads * DV * 4);
		assert_int_equal(kern_load(&to, 5, 1, k_two, v_two), 0);
		assert_true(isnan(k_two[0]) && isnan(v_two[0]));
		free(copy);
		attn_free(&c);
		c = scaled_case(c.kind, KERN_I8, KERN_SCALE_TOKEN);
	}
}

/* A call's scales, the last of them the last float before memory nobody may read. */
static float *scales_at_the_end(uint32_t n)
{
	long page = sysconf(_SC_PAGESIZE);
	char *mem = mmap(NULL, (size_t)page * 2, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	float *scale = (float *)(mem + page) - n;
	uint32_t i;

	assert_true(mem != MAP_FAILED);
	assert_int_equal(mprotect(mem + page, (size_t)page, PROT_NONE), 0);
	for (i = 0; i < n; i++)
		scale[i] = 1;
	return scale;
}

static struct kern_rows rows_with_scales(const uint64_t *pte, uint32_t kv_heads, float *scale)
{
	return (struct kern_rows){.view = {.kind = KERN_GQA,
					   .dtype = KERN_F8,
					   .scale = KERN_SCALE_HEAD,
					   .page_tokens = 4,
					   .kv_heads = kv_heads,
					   .head_dim = 8,
					   .head_dim_v = 8,
					   .head_stride = 64,
					   .v_off = 32,
					   .k_row = 8,
					   .v_row = 8},
				  .pte = pte,
				  .k_scale = scale,
				  .v_scale = scale};
}

/* Nothing of calls that do not fit each other is read, nothing is written. */
static void conversions_are_checked_before_scales_are_read(void **state)
{
	float *eight = scales_at_the_end(8), *four = scales_at_the_end(4);
	static char page[2][512];
	uint64_t pte[2] = {(uintptr_t)page[0], (uintptr_t)page[1]};
	struct kern_rows a = rows_with_scales(&pte[0], 8, eight);
	struct kern_rows b = rows_with_scales(&pte[1], 4, four);

	(void)state;
	memset(page[0], 0x11, sizeof(page[0]));
	assert_int_equal(kern_convert(&a, 0, &b, 0, 1), -EINVAL);
	assert_int_equal(kern_convert(&b, 0, &a, 0, 1), -EINVAL);
	b = rows_with_scales(&pte[1], 8, eight);
	assert_int_equal(kern_convert(&b, 0, &a, 0, 1), 0);
	munmap((char *)(eight + 8) - sysconf(_SC_PAGESIZE), (size_t)sysconf(_SC_PAGESIZE) * 2);
	munmap((char *)(four + 4) - sysconf(_SC_PAGESIZE), (size_t)sysconf(_SC_PAGESIZE) * 2);
}

/* Whatever the way: bytes would be copied where the scales are equal, values divided elsewhere. */
static void conversions_refuse_scales_that_stores_refuse(void **state)
{
	static const float bads[] = {0, -1, INFINITY, NAN};
	static char page[2][512];
	uint64_t pte[2] = {(uintptr_t)page[0], (uintptr_t)page[1]};
	float good[2] = {1, 1}, bad[2] = {1, 1};
	uint32_t i, same;

	(void)state;
	for (i = 0; i < sizeof(bads) / sizeof(*bads); i++)
		for (same = 0; same < 2; same++) {
			struct kern_rows from = rows_with_scales(&pte[0], 2, same ? bad : good);
			struct kern_rows to = rows_with_scales(&pte[1], 2, bad);
			float row[16] = {1};
			struct kern_store s = {
				.view = to.view, .pte = to.pte, .n = 1, .k = row, .v = row};

			bad[1] = bads[i];
			memset(page[1], 0x11, sizeof(page[1]));
			assert_int_equal(kern_convert(&to, 0, &from, 0, 1), -EINVAL);
			to.k_scale = NULL;
			assert_int_equal(kern_convert(&to, 0, &from, 0, 1), -EINVAL);
			to.k_scale = bad;
			to.v_scale = NULL;
			assert_int_equal(kern_convert(&to, 0, &from, 0, 1), -EINVAL);
			s.k_scale = bad;
			assert_int_equal(kern_store(&s), -EINVAL);
			assert_int_equal(page[1][0], 0x11);
			assert_memory_equal(page[1], page[1] + 1, sizeof(page[1]) - 1);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stores_quantise),   cmocka_unit_test(stores_agree),
		cmocka_unit_test(stores_rotate),     cmocka_unit_test(stores_refuse),
		cmocka_unit_test(mla_rows_convert),  cmocka_unit_test(copies_carry_scales),
		cmocka_unit_test(conversions_are_checked_before_scales_are_read),
		cmocka_unit_test(conversions_refuse_scales_that_stores_refuse),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
