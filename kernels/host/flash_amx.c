// SPDX-License-Identifier: Apache-2.0
/* flash_amx - the host kernel for CPUs with AMX-BF16: bf16 queries over all rows but fp32 and half
 *
 * Model:      A tile register holds 16 rows of 64 bytes. Per row block of 16 query rows:
 *               scores   S^T[token][row] = K x Q^T. K is read in place, 16 tokens a tile; Q^T is
 *                        packed once a block as [row block][32 columns][pair][row].
 *               softmax  down the columns of S^T, 16 rows at a time: no sum across lanes. The
 *                        weights become bf16 pairs and are transposed to P[row][token].
 *               values   acc += P x V, with V interleaved by pairs of tokens once for all row
 *                        blocks. Interleaving works within 128 bits, which leaves acc in the order
 *                        of flash_bf16_avx512 until unpack().
 *             MLA is the same with V = the rank part of K's rows.
 *             Elements of 8 bits are all exact in bf16: they are widened to scratch, and what
 *             follows is the same; see flash_amx_bytes.inc, and for KERN_F8_DS flash_amx_ds.inc.
 * Invariants: what a tile instruction multiplies is rows the block sees, or zeroes: tokens that are
 *             not 16 rows of one stride, and rows that are no multiple of 64 bytes, are copied to
 *             scratch first. A row of P or V outside the queries' range is zero.
 *             A query row's bits do not depend on the rows it shares a block with.
 * See:        docs: tdpbf16ps flushes subnormals and rounds each step to nearest even; Linux,
 *             Documentation/arch/x86/xstate.rst, for the permission.
 */
#ifdef __x86_64__
#include <cpuid.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vec_avx512.inc"

#define AMX_ROWS 16u /* of a tile register; floats in a vector, too */
#define AMX_WIDE 32u /* bf16 elements in a row of one */
#define AMX_TILE 1024u /* its bytes */
#define FEW_ROWS 16u   /* of a call, see there */

static size_t extra_bytes(const struct kern_attn *at);

#define FLASH_ROW_PAD	 AMX_ROWS
#define FLASH_LANE_MAJOR true
#define FLASH_EXTRA(at)	 extra_bytes(at)

#include "flash.inc"

#define AMX_GROUPS (FLASH_TILE / AMX_ROWS) /* tile registers of tokens in a tile */
#define AMX_STEPS  (FLASH_TILE / AMX_WIDE)

_Static_assert(KERN_ROW_PAD % AMX_WIDE == 0 && FLASH_ROWS % AMX_ROWS == 0 && AMX_GROUPS == 4,
	       "tiles fill tile registers");

/* gcc's tile loads do not say that they read memory. */
#define amx_barrier(p) __asm__ volatile("" : : "r"(p) : "memory")

/* 16 rows for a tile register */
struct amx_rows {
	const char *at;
	size_t stride;
};

/* What flash.inc keeps for us. */
struct amx {
	char *k;	/* [FLASH_TILE][padded k_width] bf16: rows that cannot be read in place */
	char *v;	/* [step][16 columns][pair][16] pairs of bf16; or like k */
	uint32_t *p;	/* [row block][step][row][16] pairs of bf16, or see weigh_row() */
	float *stage;	/* [16][ldacc]: rows of acc of which a neighbour must not be touched */
	bool *ready;	/* few rows: work on the tile was done with the one before, see there */
	uint32_t *failed;	/* few rows of 8 bits: of keys and of values, see widen_job */
	uint32_t *half;		/* and where keys are, see few_bytes_half() */
};

static size_t extra_bytes(const struct kern_attn *at)
{
	size_t k = kern_row_pad(kern_q_width(&at->view));
	size_t v = kern_row_pad(kern_out_width(&at->view));

	return 64 + FLASH_TILE * 2 * (k + v) + (size_t)FLASH_ROWS * FLASH_TILE * 8 +
	       AMX_ROWS * v * sizeof(float);
}

static struct amx scratch_of(const struct flash *f)
{
	struct amx x;

	x.ready = f->extra;
	x.failed = (uint32_t *)f->extra + 1;
	x.half = (uint32_t *)f->extra + 3;
	x.k = (char *)f->extra + 64;
	x.v = x.k + (size_t)FLASH_TILE * 2 * f->ldq;
	x.stage = (float *)(void *)(x.v + (size_t)FLASH_TILE * 2 * f->ldacc);
	x.p = (uint32_t *)(void *)(x.stage + (size_t)AMX_ROWS * f->ldacc);
	return x;
}

static uint32_t nr_blocks(const struct flash *f)
{
	return (f->rows + AMX_ROWS - 1) / AMX_ROWS;
}

/* The lanes of row block b that are rows of [r0, r1). */
static __mmask16 block_lanes(uint32_t b, uint32_t r0, uint32_t r1)
{
	uint32_t from = r0 > b * AMX_ROWS ? r0 - b * AMX_ROWS : 0;
	uint32_t to = r1 - b * AMX_ROWS < AMX_ROWS ? r1 - b * AMX_ROWS : AMX_ROWS;

	return (__mmask16)((1u << to) - (1u << from));
}

/* ---- rows ---- */

/* 32 elements of a bf16 row from column c on, 0 past n. */
VEC_INLINE __m512i row_load(const char *row, uint32_t c, uint32_t n)
{
	if (n >= AMX_WIDE)
		return _mm512_loadu_si512(row + (size_t)c * 2);
	return _mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), row + (size_t)c * 2);
}

/* Are the cached elements bytes, to be widened? */
static bool of_bytes(const struct flash *f)
{
	return f->at->view.dtype == KERN_F8 || f->at->view.dtype == KERN_I8;
}

/* to[i][j] = from[j][i] of 16 x 16 words, for the first 4 * quads i. Loads put the 4 x 4 squares in
 * place, so that shuffles, of which there is one a cycle, are left for within the squares. */
VEC_INLINE void transpose(uint32_t *to, const char *from, size_t stride, uint32_t quads)
{
	uint32_t i, j;

	for (j = 0; j < quads; j++) {
		__m512i x[4], t[4];

		VEC_UNROLL
		for (i = 0; i < 4; i++) {
			const char *at = from + i * stride + 16 * j;

#define SQUARE(l) _mm_loadu_si128((const __m128i *)(const void *)(at + 4 * (l) * stride))
			x[i] = _mm512_castsi128_si512(SQUARE(0));
			x[i] = _mm512_mask_broadcast_i32x4(x[i], 0x00f0, SQUARE(1));
			x[i] = _mm512_mask_broadcast_i32x4(x[i], 0x0f00, SQUARE(2));
			x[i] = _mm512_mask_broadcast_i32x4(x[i], 0xf000, SQUARE(3));
#undef SQUARE
		}
		t[0] = _mm512_unpacklo_epi32(x[0], x[1]);
		t[1] = _mm512_unpackhi_epi32(x[0], x[1]);
		t[2] = _mm512_unpacklo_epi32(x[2], x[3]);
		t[3] = _mm512_unpackhi_epi32(x[2], x[3]);
		_mm512_store_si512(to + 64 * j, _mm512_unpacklo_epi64(t[0], t[2]));
		_mm512_store_si512(to + 64 * j + 16, _mm512_unpackhi_epi64(t[0], t[2]));
		_mm512_store_si512(to + 64 * j + 32, _mm512_unpacklo_epi64(t[1], t[3]));
		_mm512_store_si512(to + 64 * j + 48, _mm512_unpackhi_epi64(t[1], t[3]));
	}
}

/* ---- the next tile ----
 *
 * Its rows are asked for all along the work on this one, a few lines at a time: a burst would wait
 * for memory. AHEAD parts of it are shared out: scores have the first, then softmax, then values.
 * Keys and values in turn and, in a lockstep tile, row by row over the pages: that is eight streams
 * for the hardware to run ahead in. */

#define AHEAD		(2 * FLASH_TILE)
#define AHEAD_SCORES	48u
#define AHEAD_SOFTMAX	64u

VEC_INLINE void prefetch(const char *row, uint32_t from, uint32_t to)
{
	for (; from < to; from += 64)
		__builtin_prefetch(row + from, 0, 2); /* to L2: two tiles fill L1 */
}

/* Parts [from, to): keys and values in turn; MLA: halves of its rows. */
VEC_INLINE void ahead(const struct flash *f, uint32_t from, uint32_t to)
{
	const struct flash_tile *next = f->next;
	const bool mla = f->at->view.kind == KERN_MLA;
	const uint32_t mla_half = (uint32_t)f->at->view.k_row / 2;
	uint32_t part;

	if (of_bytes(f))
		return; /* see bytes_ahead() */

	for (part = from; part < to && part / 2 < next->n; part++) {
		uint32_t t = part / 2, half = part % 2;

		if (!next->in_order)
			t = t % FLASH_LANES * AMX_ROWS + t / FLASH_LANES;
		if (mla)
			prefetch(next->k[t], half * mla_half, (half + 1) * mla_half);
		else if (half)
			prefetch(next->v[t], 0, f->v_width * 2);
		else
			prefetch(next->k[t], 0, f->k_width * 2);
	}
}

/* Share i of n of the parts [from, to). */
VEC_INLINE void ahead_share(const struct flash *f, uint32_t from, uint32_t to, uint32_t i,
			    uint32_t n)
{
	ahead(f, from + (to - from) * i / n, from + (to - from) * (i + 1) / n);
}

/* ---- queries ---- */

static void load_q(const struct flash *f, void *to, uint64_t from)
{
	memcpy(to, (const uint16_t *)f->at->q + from, (size_t)f->k_width * 2);
	memset((uint16_t *)to + f->k_width, 0, (size_t)(f->ldq - f->k_width) * 2);
}

#include "flash_amx_bytes.inc"
#include "widen_shift.inc"

/* Q^T of row block b: behind the rows themselves, which take half of the room for q. */
static uint32_t *packed_q(const struct flash *f, uint32_t b)
{
	uint32_t row_words = f->ldq / 2, rows = nr_blocks(f) * AMX_ROWS;

	return (uint32_t *)f->q + (size_t)(rows + b * AMX_ROWS) * row_words;
}

/* Palette 1: registers of 16 rows of 64 bytes, 4 to 7 (8 bits: and 1) of as many as there are. */
static void configure(uint32_t rows, bool bytes)
{
	struct {
		uint8_t palette, start_row, none[14];
		uint16_t bytes[16];
		uint8_t rows[16];
	} config __attribute__((aligned(64))) = {.palette = 1};
	uint32_t i;

	for (i = 0; i < 8; i++) {
		bool few = i > 3 || (bytes && i == 1);

		config.bytes[i] = 64;
		config.rows[i] = (uint8_t)(few && rows < AMX_ROWS ? rows : AMX_ROWS);
	}
	amx_barrier(&config);
	_tile_loadconfig(&config);
}

static void begin(const struct flash *f)
{
	uint32_t rows = nr_blocks(f) * AMX_ROWS, b, c;

	*scratch_of(f).ready = false;
	memset(scratch_of(f).failed, 0, 2 * sizeof(uint32_t));
	*scratch_of(f).half = 0;
	if (kern_head_rows(f->at) > FEW_ROWS)
		configure(AMX_ROWS, false);
	else
		configure(f->at->view.dtype == KERN_BF16 ? 2 * f->rows : f->rows, of_bytes(f));
	memset((uint16_t *)f->q + (size_t)f->rows * f->ldq, 0,
	       (size_t)(rows - f->rows) * f->ldq * 2);
	for (b = 0; b < nr_blocks(f); b++)
		for (c = 0; c < f->ldq; c += AMX_WIDE)
			transpose(packed_q(f, b) + (size_t)c * AMX_ROWS / 2,
				  (const char *)f->q + ((size_t)b * AMX_ROWS * f->ldq + c) * 2,
				  (size_t)f->ldq * 2, 4);
}

/* ---- scores ---- */

static bool in_place(const struct flash_tile *tile, const char *const *rows, size_t stride)
{
	size_t off = 0;
	uint32_t i;

	if (!tile->in_order)
		return true; /* a group is a part of a page */
	for (i = 1; i < AMX_ROWS; i++)
		off |= (size_t)(rows[i] - rows[i - 1]) ^ stride;
	return !off;
}

/* Group g of a tile's rows, of which [t0, t1) are to be used; zeroes are in place of the others. */
static struct amx_rows group_rows(const struct flash_tile *tile, const char *const *rows,
				  size_t row_bytes, uint32_t width, uint32_t g, uint32_t t0,
				  uint32_t t1, char *copy)
{
	const size_t stride = (size_t)kern_row_pad(width) * 2;
	uint32_t t = g * AMX_ROWS, i, c;

	if (t >= t0 && t + AMX_ROWS <= t1 && width % AMX_WIDE == 0 &&
	    in_place(tile, rows + t, row_bytes))
		return (struct amx_rows){rows[t], row_bytes};
	copy += t * stride;
	memset(copy, 0, AMX_ROWS * stride);
	for (i = 0; i < AMX_ROWS; i++)
		for (c = 0; c < width && t + i >= t0 && t + i < t1; c += AMX_WIDE)
			_mm512_store_si512(copy + i * stride + (size_t)c * 2,
					   row_load(rows[t + i], c, width - c));
	return (struct amx_rows){copy, stride};
}

static struct amx_rows key_rows(const struct flash *f, const struct flash_tile *tile, uint32_t g)
{
	return group_rows(tile, tile->k, f->at->view.k_row, f->k_width, g, 0, tile->n,
			  scratch_of(f).k);
}

/* Four groups of tokens, one row block. */
static void scores_4x1(const struct flash *f, const struct amx_rows *k, const uint32_t *packed,
		       float *s, uint32_t part)
{
	const uint32_t steps = f->ldq / AMX_WIDE;
	const char *k0 = k[0].at, *k1 = k[1].at, *k2 = k[2].at, *k3 = k[3].at;
	const char *q = (const char *)packed;
	uint32_t i;

	_tile_zero(0);
	_tile_zero(1);
	_tile_zero(2);
	_tile_zero(3);
	for (i = 0; i < steps; i++, q += AMX_TILE) {
		ahead_share(f, part, AHEAD_SCORES, i, steps);
		_tile_loadd(7, q, 64);
		_tile_loadd(4, k0 + 64 * i, k[0].stride);
		_tile_dpbf16ps(0, 4, 7);
		_tile_loadd(5, k1 + 64 * i, k[1].stride);
		_tile_dpbf16ps(1, 5, 7);
		_tile_loadd(6, k2 + 64 * i, k[2].stride);
		_tile_dpbf16ps(2, 6, 7);
		_tile_loadd(4, k3 + 64 * i, k[3].stride);
		_tile_dpbf16ps(3, 4, 7);
	}
	_tile_stored(0, s, 64);
	_tile_stored(1, s + 256, 64);
	_tile_stored(2, s + 512, 64);
	_tile_stored(3, s + 768, 64);
}

/* Two groups of tokens, two row blocks. */
static void scores_2x2(const struct amx_rows *k, const uint32_t *packed0, const uint32_t *packed1,
		       float *s, uint32_t steps)
{
	const char *k0 = k[0].at, *k1 = k[1].at;
	const char *q0 = (const char *)packed0, *q1 = (const char *)packed1;
	uint32_t i;

	_tile_zero(0);
	_tile_zero(1);
	_tile_zero(2);
	_tile_zero(3);
	for (i = 0; i < steps; i++, q0 += AMX_TILE, q1 += AMX_TILE) {
		_tile_loadd(4, k0 + 64 * i, k[0].stride);
		_tile_loadd(6, q0, 64);
		_tile_dpbf16ps(0, 4, 6);
		_tile_loadd(5, k1 + 64 * i, k[1].stride);
		_tile_dpbf16ps(1, 5, 6);
		_tile_loadd(7, q1, 64);
		_tile_dpbf16ps(2, 4, 7);
		_tile_dpbf16ps(3, 5, 7);
	}
	_tile_stored(0, s, 64);
	_tile_stored(1, s + 256, 64);
	_tile_stored(2, s + AMX_ROWS * FLASH_TILE, 64);
	_tile_stored(3, s + AMX_ROWS * FLASH_TILE + 256, 64);
}

static float *block_scores(const struct flash *f, uint32_t b)
{
	return f->s + (size_t)b * AMX_ROWS * FLASH_TILE;
}

static void scores(const struct flash *f)
{
	const uint32_t blocks = nr_blocks(f), steps = f->ldq / AMX_WIDE;
	struct amx_rows k[AMX_GROUPS];
	uint32_t b, g, part = 0;

	/* past the last token: the first group once more, its scores are not looked at */
	for (g = 0; g < AMX_GROUPS; g++) {
		if (g * AMX_ROWS >= f->tile->n)
			k[g] = k[0];
		else
			k[g] = of_bytes(f) ? bytes_keys(f, g) : key_rows(f, f->tile, g);
	}
	amx_barrier(f);
	for (g = 0; g < AMX_GROUPS; g += 2)
		for (b = 0; b + 2 <= blocks; b += 2) {
			ahead(f, part, part + AHEAD_SCORES / 2 / blocks * 2);
			part += AHEAD_SCORES / 2 / blocks * 2;
			scores_2x2(k + g, packed_q(f, b), packed_q(f, b + 1),
				   block_scores(f, b) + (size_t)g * 256, steps);
		}
	if (blocks % 2)
		scores_4x1(f, k, packed_q(f, blocks - 1), block_scores(f, blocks - 1), part);
	else
		ahead(f, part, AHEAD_SCORES);
}

#include "flash_amx_ds.inc"

/* ---- softmax ---- */

#define LOG2E 1.44269504088896341f

/* 2^x for x < 128, relative error below 2e-7; 0 for -inf. A Remez polynomial on [0, 1). */
VEC_INLINE vec exp2_floor(vec x)
{
	vec r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
	vec y = vec_set(1.8775766733667028e-3f);

	y = _mm512_fmadd_ps(y, r, vec_set(8.98934009471393e-3f));
	y = _mm512_fmadd_ps(y, r, vec_set(5.5826318050039916e-2f));
	y = _mm512_fmadd_ps(y, r, vec_set(2.4015361704533342e-1f));
	y = _mm512_fmadd_ps(y, r, vec_set(6.931530732000758e-1f));
	y = _mm512_fmadd_ps(y, r, vec_set(9.999999250635297e-1f));
	return _mm512_scalef_ps(y, x);
}

/* What a score is to be multiplied by, and a value. */
static float unit(const struct flash *f)
{
	bool few = kern_head_rows(f->at) <= FEW_ROWS;

	return few && f->at->view.dtype == KERN_F8 ? E4M3_UNIT : 1;
}

/* What cannot be folded into the scale: soft-cap and ALiBi, and scales of tokens. A token seen is
 * never past the query, so that their distance is no negative number. */
static void bias(const struct flash *f, uint32_t b, uint32_t r0, uint32_t r1, uint32_t t0,
		 uint32_t t1)
{
	const struct kern_attn *at = f->at;
	float slope[AMX_ROWS] = {0}, *s = block_scores(f, b), scale = unit(f) * flash_scale(f);
	uint32_t pos[AMX_ROWS] = {0}, i, r, t;

	for (i = 0; i < AMX_ROWS; i++) {
		r = b * AMX_ROWS + i;
		if (r < r0 || r >= r1)
			continue;
		slope[i] = at->alibi ? at->alibi[flash_head(f, r)] : 0;
		pos[i] = (uint32_t)kern_span(at, flash_seq(f, r), flash_query(f, r)).pos;
	}
	for (t = t0; t < t1; t++) {
		vec x = vec_load(s + t * AMX_ROWS) *
			vec_set(f->k_scales ? scale * f->k_scales[t] : scale);
		int token = (int)kern_position(at, f->tile->pos[t]);
		__m512i far = _mm512_sub_epi32(_mm512_loadu_si512(pos), _mm512_set1_epi32(token));

		if (at->softcap > 0)
			x = vec_tanh(x / vec_set(at->softcap)) * vec_set(at->softcap);
		if (at->alibi)
			x -= vec_load(slope) * _mm512_cvtepu32_ps(far);
		_mm512_mask_storeu_ps(s + t * AMX_ROWS, block_lanes(b, r0, r1), x);
	}
}

VEC_INLINE vec column_max(const float *s, vec scale, uint32_t t0, uint32_t t1)
{
	vec a = vec_set(-INFINITY), b = a;
	uint32_t t;

	for (t = t0; t + 2 <= t1; t += 2) {
		a = vec_max(vec_load(s + t * AMX_ROWS) * scale, a);
		b = vec_max(vec_load(s + t * AMX_ROWS + AMX_ROWS) * scale, b);
	}
	if (t < t1)
		a = vec_max(vec_load(s + t * AMX_ROWS) * scale, a);
	return vec_max(a, b);
}

struct amx_weigh {
	vec scale, base;	/* to the base 2 */
	uint32_t t0, t1;
	uint64_t seen;		/* [t0, t1) as bits */
	__mmask16 lanes;
	const float *k_scales, *v_scales;	/* of tokens, or NULL */
	const vec *scaled;	/* weights times v_scales of the tile, summed; or NULL */
	vec over;		/* what they are to be multiplied by */
};

#define LEAST_TOP 0x1p-120f	/* of which the inverse is finite */

/* Adds the weight of token t to sum and returns it times the scale of its value. */
VEC_INLINE vec weight(const struct amx_weigh *w, const float *s, uint32_t t, const bool whole,
		      vec *sum)
{
	__mmask16 lanes = whole || (t >= w->t0 && t < w->t1) ? w->lanes : 0;
	vec p;

	if (w->scaled)
		return w->scaled[t] * w->over;
	p = exp2_floor(_mm512_fmsub_ps(vec_load(s + t * AMX_ROWS), w->scale, w->base));
	p = _mm512_maskz_mov_ps(lanes, p);
	*sum += p;
	if (w->v_scales)
		p = _mm512_maskz_mul_ps(lanes, p, vec_set(w->v_scales[t]));
	return p;
}

/* Weights of 32 tokens from t on, as P[row][token]; returns their sum. */
VEC_INLINE vec weigh_step(const struct amx_weigh *w, const float *s, uint32_t t, uint32_t *p,
			  const bool whole)
{
	const __m512i pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25,
					       9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2,
					       17, 1, 16, 0);
	uint32_t columns[AMX_ROWS * AMX_ROWS] __attribute__((aligned(64)));
	vec even = vec_set(0), odd = vec_set(0);
	uint32_t i;

	for (i = 0; i < AMX_ROWS; i++) {
		vec a = weight(w, s, t + 2 * i, whole, &even);
		vec b = weight(w, s, t + 2 * i + 1, whole, &odd);

		_mm512_store_si512(columns + i * AMX_ROWS,
				   _mm512_permutexvar_epi16(pairs,
							    (__m512i)_mm512_cvtne2ps_pbh(b, a)));
	}
	transpose(p, (const char *)columns, 64, 4);
	return even + odd;
}

/* The scores' new maximum becomes that of block b, and w is what it means for their weights. */
static void new_max(const struct flash *f, uint32_t b, float scale, struct amx_weigh *w)
{
	float *max_at = f->max + b * AMX_ROWS;
	vec old = vec_load(max_at), alpha;
	vec max = vec_max(column_max(block_scores(f, b), vec_set(scale), w->t0, w->t1), old);

	/* all scores so far -inf: any finite base gives weights of 0 and no NaN */
	w->base = vec_select((veci)(max == vec_set(-INFINITY)), vec_set(0), max) * vec_set(LOG2E);
	w->scale = vec_set(scale * LOG2E);
	alpha = exp2_floor(_mm512_fmsub_ps(old, vec_set(LOG2E), w->base));
	alpha = vec_select((veci)(max == old), vec_set(1), alpha);
	_mm512_mask_storeu_ps(max_at, w->lanes, max);
	_mm512_mask_storeu_ps(f->alpha + b * AMX_ROWS, w->lanes, alpha);
}

static void add_sum(const struct flash *f, uint32_t b, __mmask16 lanes, vec sum)
{
	float *to = f->sum + b * AMX_ROWS;

	sum = _mm512_fmadd_ps(vec_load(to), vec_load(f->alpha + b * AMX_ROWS), sum);
	_mm512_mask_storeu_ps(to, lanes, sum);
}

/* Scales of tokens make the weight that counts most one that bf16 rounds, and with few tokens that
 * is the error of the result. So weights are divided by the largest so far, which then is 1, and
 * acc is of such weights until the chunk is done. */
static void weigh_scaled(const struct flash *f, uint32_t b, const float *s, struct amx_weigh *w,
			 vec *scaled)
{
	float *alpha_at = f->alpha + b * AMX_ROWS, *over_at = f->over + b * AMX_ROWS;
	vec sum = vec_set(0), top = vec_set(LEAST_TOP), over = vec_load(over_at), had;
	uint32_t t, end = (w->t1 + AMX_WIDE - 1) / AMX_WIDE * AMX_WIDE;

	w->scaled = NULL;
	for (t = w->t0 / AMX_WIDE * AMX_WIDE; t < end; t++) {
		scaled[t] = weight(w, s, t, false, &sum);
		top = vec_max(scaled[t], top);
	}
	add_sum(f, b, w->lanes, sum);
	had = vec_select((veci)(over > vec_set(0)), vec_load(alpha_at) / over, vec_set(0));
	top = vec_max(had, top);
	w->scaled = scaled;
	w->over = vec_set(1) / top;
	_mm512_mask_storeu_ps(over_at, w->lanes, w->over);
	_mm512_mask_storeu_ps(alpha_at, w->lanes, had / top);
}

static void softmax_block(const struct flash *f, uint32_t b, float scale, struct amx_weigh *w)
{
	const float *s = block_scores(f, b);
	uint32_t *p = scratch_of(f).p + (size_t)b * AMX_STEPS * 256;
	vec sum = vec_set(0), scaled[FLASH_TILE];
	uint32_t t;

	if (b == 0)
		ahead(f, AHEAD_SCORES, AHEAD_SOFTMAX);
	new_max(f, b, scale, w);
	if (w->v_scales)
		weigh_scaled(f, b, s, w, scaled);
	for (t = w->t0 / AMX_WIDE * AMX_WIDE; t < w->t1; t += AMX_WIDE) {
		uint32_t *to = p + t * AMX_ROWS / 2;

		if (t >= w->t0 && t + AMX_WIDE <= w->t1)
			sum += weigh_step(w, s, t, to, true);
		else
			sum += weigh_step(w, s, t, to, false);
	}
	if (!w->v_scales)
		add_sum(f, b, w->lanes, sum);
}

/* by_token: block sees to the scales of tokens, unless bias() has */
VEC_INLINE void softmax_by(struct flash *f, uint32_t r0, uint32_t r1, uint32_t t0, uint32_t t1,
			   const bool by_token,
			   void (*block)(const struct flash *, uint32_t b, float scale,
					 struct amx_weigh *))
{
	bool biased = f->at->softcap > 0 || f->at->alibi || (f->k_scales && !by_token);
	struct amx_weigh w = {.t0 = t0, .t1 = t1, .v_scales = f->v_scales};
	uint32_t b;

	w.k_scales = biased ? NULL : f->k_scales;

	amx_barrier(f);
	for (b = r0 / AMX_ROWS; b * AMX_ROWS < r1; b++) {
		if (biased)
			bias(f, b, r0, r1, t0, t1);
		w.lanes = block_lanes(b, r0, r1);
		block(f, b, biased ? 1 : unit(f) * flash_scale(f), &w);
	}
}

static void softmax(struct flash *f, uint32_t r0, uint32_t r1, uint32_t t0, uint32_t t1)
{
	softmax_by(f, r0, r1, t0, t1, false, softmax_block);
}

/* ---- values ---- */

/* Tokens [t0, t1) and zeroes around them, up to whole steps. */
static void pack_values(const struct flash *f, char *to, uint32_t t0, uint32_t t1)
{
	static const char none[KERN_MAX_DIM * 2] __attribute__((aligned(64)));
	const size_t step_bytes = (size_t)f->ldacc * AMX_WIDE * 2;
	uint32_t t, c;

	for (t = t0 / AMX_WIDE * AMX_WIDE; t % AMX_WIDE || t < t1; t += 2) {
		const char *a = t >= t0 && t < t1 ? f->tile->v[t] : none;
		const char *b = t + 1 >= t0 && t + 1 < t1 ? f->tile->v[t + 1] : none;
		char *pair = to + t / AMX_WIDE * step_bytes + (size_t)(t % AMX_WIDE) / 2 * 64;

		ahead_share(f, AHEAD_SOFTMAX, AHEAD, t / 2, FLASH_TILE / 2);
		for (c = 0; c < f->v_width; c += AMX_WIDE, pair += 2 * AMX_TILE) {
			__m512i x = row_load(a, c, f->v_width - c);
			__m512i y = row_load(b, c, f->v_width - c);

			_mm512_store_si512(pair, _mm512_unpacklo_epi16(x, y));
			_mm512_store_si512(pair + AMX_TILE, _mm512_unpackhi_epi16(x, y));
		}
	}
}

/* One row block, 64 or 32 columns: acc += P x V over the steps [s0, s1). */
VEC_INLINE void values_1(float *acc, size_t ldacc, const uint32_t *p, const char *v,
			 size_t step_bytes, uint32_t s0, uint32_t s1, const bool four)
{
	const size_t stride = ldacc * sizeof(float);
	uint32_t s;

	_tile_loadd(0, acc, stride);
	_tile_loadd(1, acc + 16, stride);
	if (four) {
		_tile_loadd(2, acc + 32, stride);
		_tile_loadd(3, acc + 48, stride);
	}
	for (s = s0; s < s1; s++) {
		const char *x = v + s * step_bytes;

		_tile_loadd(4, p + s * 256, 64);
		_tile_loadd(5, x, 64);
		_tile_dpbf16ps(0, 4, 5);
		_tile_loadd(6, x + AMX_TILE, 64);
		_tile_dpbf16ps(1, 4, 6);
		if (four) {
			_tile_loadd(7, x + 2 * AMX_TILE, 64);
			_tile_dpbf16ps(2, 4, 7);
			_tile_loadd(5, x + 3 * AMX_TILE, 64);
			_tile_dpbf16ps(3, 4, 5);
		}
	}
	_tile_stored(0, acc, stride);
	_tile_stored(1, acc + 16, stride);
	if (four) {
		_tile_stored(2, acc + 32, stride);
		_tile_stored(3, acc + 48, stride);
	}
}

/* Two row blocks, 32 columns. */
static void values_2(float *acc, size_t ldacc, const uint32_t *p, const char *v, size_t step_bytes,
		     uint32_t s0, uint32_t s1)
{
	const size_t stride = ldacc * sizeof(float);
	float *acc1 = acc + AMX_ROWS * ldacc;
	uint32_t s;

	_tile_loadd(0, acc, stride);
	_tile_loadd(1, acc + 16, stride);
	_tile_loadd(2, acc1, stride);
	_tile_loadd(3, acc1 + 16, stride);
	for (s = s0; s < s1; s++) {
		const char *x = v + s * step_bytes;

		_tile_loadd(4, p + s * 256, 64);
		_tile_loadd(6, x, 64);
		_tile_dpbf16ps(0, 4, 6);
		_tile_loadd(7, x + AMX_TILE, 64);
		_tile_dpbf16ps(1, 4, 7);
		_tile_loadd(5, p + AMX_STEPS * 256 + s * 256, 64);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
	}
	_tile_stored(0, acc, stride);
	_tile_stored(1, acc + 16, stride);
	_tile_stored(2, acc1, stride);
	_tile_stored(3, acc1 + 16, stride);
}

static void values_block(const struct flash *f, const struct amx *x, float *acc, uint32_t b,
			 uint32_t s0, uint32_t s1)
{
	const size_t step_bytes = (size_t)f->ldacc * AMX_WIDE * 2;
	const uint32_t *p = x->p + (size_t)b * AMX_STEPS * 256;
	uint32_t c;

	for (c = 0; c + 64 <= f->ldacc; c += 64)
		values_1(acc + c, f->ldacc, p, x->v + (size_t)c * 64, step_bytes, s0, s1, true);
	if (c < f->ldacc)
		values_1(acc + c, f->ldacc, p, x->v + (size_t)c * 64, step_bytes, s0, s1, false);
}

static void scale_row(float *to, const float *from, float alpha, uint32_t n)
{
	uint32_t c;

	for (c = 0; c < n; c += VEC_LEN)
		vec_store(to + c, vec_load(from + c) * vec_set(alpha));
}

/* Some rows of a block: a product with 0 may be NaN for the others, so they are kept out. */
static float *stage_rows(const struct flash *f, uint32_t b, __mmask16 lanes)
{
	const size_t ld = f->ldacc;
	const float *acc = f->acc + b * AMX_ROWS * ld;
	float *stage = scratch_of(f).stage;
	uint32_t i;

	for (i = 0; i < AMX_ROWS; i++) {
		if (lanes >> i & 1)
			scale_row(stage + i * ld, acc + i * ld, f->alpha[b * AMX_ROWS + i],
				  f->ldacc);
		else
			memset(stage + i * ld, 0, ld * sizeof(float));
	}
	amx_barrier(stage);
	return stage;
}

static void unstage_rows(const struct flash *f, uint32_t b, __mmask16 lanes, const float *stage)
{
	const size_t ld = f->ldacc;
	float *acc = f->acc + b * AMX_ROWS * ld;
	uint32_t i;

	amx_barrier(stage);
	for (i = 0; i < AMX_ROWS; i++)
		if (lanes >> i & 1)
			memcpy(acc + i * ld, stage + i * ld, ld * sizeof(float));
}

static void rescale(const struct flash *f)
{
	uint32_t r;

	for (r = 0; r < f->rows; r++) {
		float *row = f->acc + (size_t)r * f->ldacc;

		if (f->alpha[r] < 1 || f->alpha[r] > 1)
			scale_row(row, row, f->alpha[r], f->ldacc);
	}
	amx_barrier(f->acc);
}

static void values_all(const struct flash *f, const struct amx *x, uint32_t s0, uint32_t s1)
{
	const size_t step_bytes = (size_t)f->ldacc * AMX_WIDE * 2;
	const uint32_t blocks = nr_blocks(f);
	uint32_t b, c;

	rescale(f);
	for (c = 0; c < f->ldacc; c += AMX_WIDE)
		for (b = 0; b + 2 <= blocks; b += 2)
			values_2(f->acc + (size_t)b * AMX_ROWS * f->ldacc + c, f->ldacc,
				 x->p + (size_t)b * AMX_STEPS * 256, x->v + (size_t)c * 64,
				 step_bytes, s0, s1);
	if (blocks % 2)
		values_block(f, x, f->acc + (size_t)(blocks - 1) * AMX_ROWS * f->ldacc, blocks - 1,
			     s0, s1);
	amx_barrier(f->acc);
}

/* Packed values, for some rows of the block only. */
VEC_INLINE void values_some(const struct flash *f, const struct amx *x, uint32_t r0, uint32_t r1,
			    uint32_t s0, uint32_t s1,
			    void (*block)(const struct flash *, const struct amx *, float *acc,
					  uint32_t b, uint32_t s0, uint32_t s1))
{
	uint32_t b;

	for (b = r0 / AMX_ROWS; b * AMX_ROWS < r1; b++) {
		__mmask16 lanes = block_lanes(b, r0, r1);
		float *stage = stage_rows(f, b, lanes);

		block(f, x, stage, b, s0, s1);
		unstage_rows(f, b, lanes, stage);
	}
}

static void values(const struct flash *f, uint32_t r0, uint32_t r1, uint32_t t0, uint32_t t1)
{
	uint32_t s0 = t0 / AMX_WIDE, s1 = (t1 + AMX_WIDE - 1) / AMX_WIDE;
	struct amx x = scratch_of(f);

	if (of_bytes(f))
		bytes_pack(f, x.v, t0, t1);
	else if (of_parts(f))
		ds_pack(f, x.v, t0, t1);
	else
		pack_values(f, x.v, t0, t1);
	if (r0 == 0 && r1 == f->rows)
		values_all(f, &x, s0, s1);
	else
		values_some(f, &x, r0, r1, s0, s1, values_block);
}

static void unpack(const struct flash *f, float *acc)
{
	vec_undo_unpack(acc, f->v_width);
}

static const struct flash_ops flash_amx = {
	.q_size = 2,
	.load_q = load_q,
	.begin = begin,
	.scores = scores,
	.softmax = softmax,
	.values = values,
	.unpack = unpack,
};

static const struct flash_ops flash_amx_bytes = {
	.q_size = 2,
	.load_q = bytes_load_q,
	.begin = begin,
	.scores = scores,
	.softmax = softmax,
	.values = values,
	.unpack = bytes_unpack,
};

#include "flash_amx_few.inc"
#include "flash_amx_few_bytes.inc"

static const struct flash_ops flash_amx_ds = {
	.q_size = 2,
	.load_q = ds_load_q,
	.begin = begin,
	.scores = ds_scores,
	.softmax = softmax,
	.values = values,
	.unpack = unpack,
};

static void ds_few_values(const struct flash *f, uint32_t r0, uint32_t r1, uint32_t t0,
			  uint32_t t1)
{
	uint32_t s0 = t0 / AMX_WIDE, s1 = (t1 + AMX_WIDE - 1) / AMX_WIDE, b;
	struct amx x = scratch_of(f);

	ds_pack(f, x.v, t0, t1);
	if (!flash_whole(f)) {
		values_some(f, &x, r0, r1, s0, s1, few_bytes_block);
		return;
	}
	rescale(f);
	for (b = 0; b < nr_blocks(f); b++)
		few_bytes_block(f, &x, f->acc + (size_t)b * AMX_ROWS * f->ldacc, b, s0, s1);
	amx_barrier(f->acc);
}

static const struct flash_ops flash_amx_ds_few = {
	.q_size = 2,
	.load_q = ds_load_q,
	.begin = begin,
	.scores = ds_few_scores,
	.softmax = few_bytes_softmax,
	.values = ds_few_values,
	.unpack = unpack,
};

/* ---- the implementation ---- */

static bool cpu_has_amx(void)
{
	unsigned int a, b, c, d;

	/* leaf 7: AMX-BF16 is bit 22 of edx, AMX-TILE bit 24 */
	return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & 1u << 22 && d & 1u << 24;
}

/* A process must ask for the 8 KiB of tile registers before it touches one; the kernel refuses if
 * it knows no AMX, or if a thread has a signal stack that could not hold them. */
static bool permitted(void)
{
	const long req_xcomp_perm = 0x1023, xtiledata = 18;
	static _Atomic int known; /* 0: not asked; racing threads get the same answer */
	int answer = atomic_load_explicit(&known, memory_order_relaxed);

	if (!answer) {
		answer = syscall(SYS_arch_prctl, req_xcomp_perm, xtiledata) ? -1 : 1;
		atomic_store_explicit(&known, answer, memory_order_relaxed);
	}
	return answer > 0;
}

static bool usable(void)
{
	return kern_ops_avx512_bf16.usable() && __builtin_cpu_supports("avx512vbmi") &&
	       __builtin_cpu_supports("gfni") && cpu_has_amx() && permitted();
}

static bool fast(const struct kern_attn *at)
{
	uint32_t dtype = at->view.dtype;

	return at->q_dtype == KERN_BF16 &&
	       (dtype == KERN_BF16 || dtype == KERN_F8 || dtype == KERN_I8 || dtype == KERN_F8_DS);
}

/* For one or two rows vectors do as well with less to set up. For three or four the two are as fast
 * as memory, but several sequences that share pages make blocks of many rows; only rows that would
 * all be copied are not worth it, unless of 8 bits, which the others must widen as well. The choice
 * must be the same for a call of one of them. */
static bool suits(const struct kern_attn *at)
{
	const struct kern_view *view = &at->view;
	uint32_t rows = view->kv_heads ? kern_head_rows(at) : 0; /* not checked yet */
	bool copies = view->dtype == KERN_BF16 &&
		      (view->page_tokens % AMX_ROWS || kern_q_width(view) % AMX_WIDE ||
		       kern_out_width(view) % AMX_WIDE);

	return fast(at) && rows > (copies ? 4u : 2u);
}

static size_t scratch_bytes(const struct kern_attn *at)
{
	return fast(at) ? flash_scratch(at) : kern_ops_avx512.scratch(at);
}

static void run(const struct kern_attn *at, const struct kern_part *part, void *scratch)
{
	bool few = kern_head_rows(at) <= FEW_ROWS;

	if (!fast(at)) {
		kern_ops_avx512.run(at, part, scratch);
		return;
	}
	if (at->view.dtype == KERN_BF16)
		flash_run(at, few ? &flash_amx_few : &flash_amx, part, scratch);
	else if (at->view.dtype == KERN_F8_DS)
		flash_run(at, few ? &flash_amx_ds_few : &flash_amx_ds, part, scratch);
	else
		flash_run(at, few ? &flash_amx_few_bytes : &flash_amx_bytes, part, scratch);
	_tile_release();
}

const struct kern_ops kern_ops_amx = {
	.splits = true,
	.usable = usable,
	.preferred = usable,
	.fast = fast,
	.suits = suits,
	.scratch = scratch_bytes,
	.run = run,
};
#endif
