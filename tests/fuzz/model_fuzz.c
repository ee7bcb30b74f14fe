// SPDX-License-Identifier: Apache-2.0
/* model_fuzz - damaged models and tokenizers, from memory
 *
 * Model:      the input is the file itself, or says how to make a good small one and what to change
 *             in it: fields of the header, bytes anywhere, its length. Size and checksum are made
 *             right again if the input says so, since both would end nearly every parse at once.
 *             What is accepted must keep the promises of model.h and tokenizer.h, and a .kvm's
 *             tokenizer must give any text back as it was; what is refused says why.
 * Input:      a byte of mode, one of settings, then changes or the file.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "tokenizer.h"

#define MAX_FILE	(1u << 18)
#define NR_FIELDS	19u
#define MAX_CHANGES	24u
#define MAX_TEXT	192u
#define EXTRA_PIECES	12u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct file {
	uint8_t at[MAX_FILE];
	size_t len;
	const uint8_t *in, *end;
};

static void die(const char *what)
{
	fprintf(stderr, "model_fuzz: %s\n", what);
	abort();
}

static uint32_t u8(struct file *f)
{
	return f->in < f->end ? *f->in++ : 0;
}

static uint32_t u16(struct file *f)
{
	uint32_t low = u8(f);

	return low | u8(f) << 8;
}

static void put(struct file *f, const void *p, size_t n)
{
	if (f->len + n > MAX_FILE)
		die("the harness's file is too large");
	memcpy(f->at + f->len, p, n);
	f->len += n;
}

static void put_u32(struct file *f, uint32_t v)
{
	put(f, &v, sizeof(v));
}

static void put_f32(struct file *f, float v)
{
	put(f, &v, sizeof(v));
}

static void set_u32(struct file *f, size_t at, uint32_t v)
{
	memcpy(f->at + at, &v, sizeof(v));
}

static uint32_t get_u32(const struct file *f, size_t at)
{
	uint32_t v;

	memcpy(&v, f->at + at, sizeof(v));
	return v;
}

/* ---- a good file --------------------------------------------------------------------------- */

static void put_piece(struct file *f, float score, const void *bytes, uint32_t len)
{
	put_f32(f, score);
	put_u32(f, len);
	put(f, bytes, len);
}

/* Pieces are cuts of it: " ", "a", "b", pairs of those, and joins of joins. */
static const char text_of_pieces[] = "a b aababaababaabb aab";

static void put_pieces(struct file *f, uint32_t vocab, bool spm)
{
	char text[16];

	for (uint32_t id = 0; id < vocab; id++) {
		uint8_t byte = (uint8_t)(id - TOKENIZER_BYTE0);

		if (id < TOKENIZER_BYTE0)
			put_piece(f, 0, "<s>", 3);
		else if (id < TOKENIZER_PIECE0 && spm)
			put_piece(f, 0, text,
				  (uint32_t)snprintf(text, sizeof(text), "<0x%02X>", byte));
		else if (id < TOKENIZER_PIECE0)
			put_piece(f, 0, &byte, 1);
		else
			put_piece(f, -(float)(u8(f) & 15),
				  &text_of_pieces[(id - TOKENIZER_PIECE0) % 16],
				  1 + (id - TOKENIZER_PIECE0) / 3 % 6);
	}
}

/* Field numbers of both formats, so that one change table does. */
static void put_kvm_header(struct file *f, bool mla, uint32_t vocab)
{
	const uint32_t head[15] = {
		0x314d564b, 1, mla ? 2 : 1, 1, 8, 8, 1, 2, mla ? 0 : 1, mla ? 0 : 8,
		mla ? 8 : 0, mla ? 8 : 0, mla ? 3 : 0, mla ? 5 : 0, vocab,
	};

	put(f, head, sizeof(head));
	put_f32(f, 10000.0f);
	put_f32(f, 1e-5f);
	put_u32(f, 64);
	put_u32(f, 0);
	while (f->len < 128)
		put(f, "", 1);
}

static uint64_t kvm_weights(const struct file *f)
{
	uint64_t v[NR_FIELDS], dim, attn;

	for (uint32_t i = 0; i < NR_FIELDS; i++)
		v[i] = get_u32(f, 4 * i);
	for (uint32_t i = 4; i < 15; i++)
		if (v[i] > 1024)
			return 0;	/* nothing of that size is made */
	dim = v[4];
	attn = v[2] == 1 ? dim * (2 * v[7] * v[9] + 2 * v[8] * v[9]) :
	       dim * (v[7] * (v[12] + v[11]) + v[10] + v[11] + v[7] * v[13]) + v[10] +
	       v[7] * (v[12] + v[13]) * v[10];
	return dim * v[14] + v[6] * (2 * dim + attn + 3 * dim * v[5]) + dim;
}

static uint64_t v0_weights(const struct file *f)
{
	uint64_t dim = get_u32(f, 0), hidden = get_u32(f, 4), layers = get_u32(f, 8), kv;
	uint64_t heads = get_u32(f, 12), kv_heads = get_u32(f, 16), pos = get_u32(f, 24), vocab;
	int32_t said = (int32_t)get_u32(f, 20);

	vocab = said < 0 ? 0ull - said : (uint64_t)said;
	if (!heads || (dim | hidden | layers | kv_heads | vocab | pos) > 4096)
		return 0;
	kv = kv_heads * (dim / heads);
	return dim * vocab * (said < 0 ? 2 : 1) + dim + pos * (dim / heads) +
	       layers * (2 * dim + 2 * dim * dim + 2 * dim * kv + 3 * dim * hidden);
}

/* Weights of some pattern, as many as the header now says. */
static void put_weights(struct file *f, uint64_t n, size_t width)
{
	if (n * width > MAX_FILE - 64 || f->len + n * width > MAX_FILE - 64)
		return;
	for (size_t i = 0; i < n * width; i++)
		f->at[f->len + i] = (uint8_t)(i % width == width - 1 ? 0x3e : i);
	f->len += n * width;
}

static void fix_crc(struct file *f)
{
	static uint32_t table[256];
	uint32_t crc = ~0u;

	for (uint32_t i = 0; i < 256 && !table[255]; i++) {
		table[i] = i;
		for (int bit = 0; bit < 8; bit++)
			table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
	}
	for (size_t i = 0; i + 4 < f->len; i++)
		crc = crc >> 8 ^ table[(crc ^ f->at[i]) & 0xff];
	if (f->len >= 4)
		set_u32(f, f->len - 4, ~crc);
}

/* Header fields first, so that sizes follow them. */
static void change_fields(struct file *f, uint32_t nr_fields, uint32_t nr)
{
	static const uint32_t odd[] = {
		0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 8192, 262144, 576
	};

	for (; nr; nr--) {
		uint32_t field = u8(f) % nr_fields, how = u8(f);

		if (how >= 248)
			set_u32(f, 4 * field, odd[how - 248]);
		else
			set_u32(f, 4 * field, how < 64 ? how : how < 128 ? 8 * (how - 64) :
						how < 192 ? get_u32(f, 4 * field) + how - 160 :
						how * 131u);
	}
}

static void change_bytes(struct file *f, uint32_t nr)
{
	for (; nr && f->len; nr--) {
		size_t at = u16(f) * (u8(f) & 1 ? 7u : 1u) % f->len;

		f->at[at] = (uint8_t)u8(f);
	}
}

static void make_kvm(struct file *f, uint32_t how)
{
	uint32_t vocab = TOKENIZER_PIECE0 + u8(f) % EXTRA_PIECES;
	bool fix = (u8(f) & 7) != 0;

	put_kvm_header(f, how & 1, vocab);
	put_pieces(f, vocab, false);
	set_u32(f, 72, (uint32_t)f->len - 128);
	change_fields(f, NR_FIELDS, how >> 1 & 3);
	if (how & 128)
		change_bytes(f, how >> 3 & 7);
	while (f->len % 64)
		put(f, "", 1);
	put_weights(f, kvm_weights(f), 2);
	put_u32(f, 0);
	if (!(how & 128))
		change_bytes(f, how >> 3 & 7);
	if (!fix)
		f->len -= u8(f) % (f->len + 1);
	if (how & 64 || fix)
		fix_crc(f);
}

static void make_v0(struct file *f, uint32_t how)
{
	const uint32_t head[7] = { 16, 8, 1, 2, 1 + (how & 1), 0, 4 };

	put(f, head, sizeof(head));
	set_u32(f, 20, how & 64 ? 0u - TOKENIZER_PIECE0 : TOKENIZER_PIECE0);
	change_fields(f, 7, how >> 1 & 3);
	put_weights(f, v0_weights(f), 4);
	change_bytes(f, how >> 3 & 7);
	if (how & 128)
		f->len -= u8(f) % (f->len + 1);
}

/* ---- what was accepted --------------------------------------------------------------------- */

static void check_tokenizer(struct file *f, const struct tokenizer *t, uint32_t vocab, bool exact)
{
	uint8_t text[MAX_TEXT], back[MAX_TEXT * 2 + 2];
	size_t n = 0, len = 0, given;
	uint32_t ids[2 * MAX_TEXT], prev = TOKENIZER_BOS, sum = 0;
	const uint8_t *piece;
	int nr;

	if (tokenizer_vocab(t) != vocab)
		die("a tokenizer of another vocabulary");
	while (n < MAX_TEXT && f->in < f->end)
		text[n++] = (uint8_t)u8(f);
	given = n;
	for (uint32_t id = 0; id <= vocab; id++)
		for (size_t i = tokenizer_piece(t, TOKENIZER_BOS, id, &piece); i; i--)
			sum += piece[i - 1];	/* every byte is there */
	nr = tokenizer_encode(t, text, n, false, ids, sizeof(ids) / sizeof(ids[0]));
	if (nr < 0 || (size_t)nr > n + 1 || sum == 1)
		die("a text cannot be encoded");
	for (int i = 0; i < nr; i++) {
		if (ids[i] >= vocab)
			die("an id outside of the vocabulary");
		n = tokenizer_piece(t, prev, ids[i], &piece);
		prev = ids[i];
		if (exact && len + n <= sizeof(back))
			memcpy(back + len, piece, n);
		len += n;
	}
	if (exact && (len != given || memcmp(back, text, len)))
		die("a text does not come back as it was");
}

static void check_inside(const struct model *m, const float *p, uint64_t n)
{
	if (p < m->weights || n > m->nr_weights || p > m->weights + (m->nr_weights - n))
		die("a tensor reaches out of the weights");
}

static void check_model(struct file *f, const struct model *m)
{
	const struct model_dims *d = &m->d;
	uint64_t dim = d->dim, out;

	if (!dim || dim > MODEL_MAX_DIM || !d->layers || d->layers > MODEL_MAX_LAYERS ||
	    !d->heads || d->heads > MODEL_MAX_HEADS || d->vocab < TOKENIZER_PIECE0 ||
	    d->vocab > MODEL_MAX_VOCAB || !d->max_pos || d->max_pos > MODEL_MAX_POS)
		die("a model beyond its limits");
	check_inside(m, m->embed, dim * d->vocab);
	check_inside(m, m->classifier, dim * d->vocab);
	check_inside(m, m->final_norm, dim);
	for (uint32_t i = 0; i < d->layers; i++) {
		const struct model_layer *l = &m->layer[i];

		out = (uint64_t)d->heads * (d->attn == MODEL_MLA ? d->v : d->head_dim);
		check_inside(m, l->wo, dim * out);
		check_inside(m, l->w2, dim * d->hidden);
		if (d->attn == MODEL_GQA) {
			check_inside(m, l->wv, dim * d->kv_heads * d->head_dim);
			continue;
		}
		check_inside(m, l->w_dkv, dim * (d->rank + d->rope));
		check_inside(m, l->w_uk, (uint64_t)d->heads * d->nope * d->rank);
		check_inside(m, l->w_uv, (uint64_t)d->heads * d->v * d->rank);
	}
	for (size_t i = 0; i < m->nr_weights; i++)
		if (!isfinite(m->weights[i]))
			die("a weight is not finite");
	if (m->tokenizer)
		check_tokenizer(f, m->tokenizer, d->vocab, true);
}

static void refused(const void *out, const struct fault *fault)
{
	if (out || !fault->text[0] || !memchr(fault->text, 0, sizeof(fault->text)))
		die("a refusal without a word");
}

/* A copy of exactly its length, so that a sanitizer sees a read beyond it. */
static void parse_model(struct file *f)
{
	uint8_t *copy = malloc(f->len ? f->len : 1);
	struct model *m = NULL;
	struct fault fault = { "" };

	memcpy(copy, f->at, f->len);
	if (model_parse(&m, copy, f->len, "file", &fault)) {
		refused(m, &fault);
	} else {
		memset(copy, 0xee, f->len);	/* nothing of it is used again */
		check_model(f, m);
		model_destroy(m);
	}
	free(copy);
}

static void parse_tokenizer(struct file *f, uint32_t vocab, bool spm)
{
	uint8_t *copy = malloc(f->len ? f->len : 1);
	struct tokenizer *t = NULL;
	struct fault fault = { "" };
	int err;

	memcpy(copy, f->at, f->len);
	err = spm ? tokenizer_parse(&t, copy, f->len, "file", vocab, &fault) :
		    tokenizer_parse_kvm(&t, copy, f->len, "file", vocab, &fault);
	if (err) {
		refused(t, &fault);
	} else {
		memset(copy, 0xee, f->len);
		check_tokenizer(f, t, vocab, !spm);
		tokenizer_destroy(t);
	}
	free(copy);
}

static void make_tokenizer(struct file *f, uint32_t how)
{
	uint32_t vocab = TOKENIZER_PIECE0 + u8(f) % EXTRA_PIECES;
	bool spm = how & 1;

	if (spm)
		put_u32(f, how & 2 ? u8(f) : 16);
	put_pieces(f, vocab, spm);
	change_bytes(f, how >> 2 & 7);
	if (how & 128)
		f->len -= u8(f) % (f->len + 1);
	parse_tokenizer(f, vocab + (how & 64 ? u8(f) - 128u : 0), spm);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct file f;
	uint32_t mode, how;

	f.len = 0;
	f.in = data;
	f.end = data + size;
	mode = u8(&f) & 7;
	how = u8(&f);
	if (mode < 3)
		make_kvm(&f, how);
	else if (mode == 3)
		make_v0(&f, how);
	else if (mode > 5)
		put(&f, f.in, (size_t)(f.end - f.in) < MAX_FILE ? (size_t)(f.end - f.in) : 0);
	if (mode < 4 || mode == 6)
		parse_model(&f);
	else if (mode < 6)
		make_tokenizer(&f, how);
	else
		parse_tokenizer(&f, how * 64, how & 1);
	return 0;
}
