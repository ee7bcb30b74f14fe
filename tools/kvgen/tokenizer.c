/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct piece {
	const uint8_t *bytes;
	uint32_t len;
	uint32_t id;
	float score;
};

struct tokenizer {
	uint32_t vocab;
	uint32_t nr_sorted;
	bool spm;		/* llama2.c's dialect */
	struct piece *pieces;	/* by id */
	struct piece *sorted;	/* by bytes, then id: what text can become */
	uint8_t *text;		/* all pieces */
	uint8_t bytes[256];	/* what the byte tokens of the llama2.c dialect stand for */
};

uint32_t tokenizer_vocab(const struct tokenizer *t)
{
	return t->vocab;
}

void tokenizer_destroy(struct tokenizer *t)
{
	if (!t)
		return;
	free(t->pieces);
	free(t->sorted);
	free(t->text);
	free(t);
}

static int compare_bytes(const struct piece *a, const struct piece *b)
{
	uint32_t len = a->len < b->len ? a->len : b->len;
	int order = memcmp(a->bytes, b->bytes, len);

	return order ? order : (a->len > b->len) - (a->len < b->len);
}

static int compare_pieces(const void *x, const void *y)
{
	const struct piece *a = x, *b = y;
	int order = compare_bytes(a, b);

	return order ? order : (a->id > b->id) - (a->id < b->id);
}

/* The piece with these bytes and the lowest id, or NULL. */
static const struct piece *find(const struct tokenizer *t, const uint8_t *bytes, uint32_t len)
{
	struct piece key = { .bytes = bytes, .len = len };
	uint32_t lo = 0, hi = t->nr_sorted;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (compare_bytes(&t->sorted[mid], &key) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo == t->nr_sorted || compare_bytes(&t->sorted[lo], &key))
		return NULL;
	return &t->sorted[lo];
}

/* ---- loading ---- */

static struct tokenizer *create(const void *data, size_t len, uint32_t vocab, bool spm)
{
	struct tokenizer *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->vocab = vocab;
	t->spm = spm;
	t->pieces = calloc(vocab, sizeof(*t->pieces));
	t->sorted = calloc(vocab, sizeof(*t->sorted));
	t->text = malloc(len);
	if (!t->pieces || !t->sorted || !t->text) {
		tokenizer_destroy(t);
		return NULL;
	}
	memcpy(t->text, data, len);
	for (uint32_t b = 0; b < 256; b++)
		t->bytes[b] = (uint8_t)b;
	return t;
}

static int read_pieces(struct tokenizer *t, struct cut *c, const char *name, struct fault *f)
{
	for (uint32_t id = 0; id < t->vocab; id++) {
		struct piece *p = &t->pieces[id];

		p->id = id;
		p->score = cut_f32(c);
		p->len = cut_u32(c);
		if (!c->broken && (!p->len || p->len > TOKENIZER_MAX_PIECE || isnan(p->score)))
			return fault_set(f, -EINVAL,
					 "%s: token %u has length %u (1..%u) and score %g: "
					 "the file is damaged, fetch it again",
					 name, id, p->len, TOKENIZER_MAX_PIECE, (double)p->score);
		p->bytes = cut_take(c, p->len);
		if (c->broken)
			return fault_set(f, -EINVAL,
					 "%s: the tokenizer ends at token %u, the model has %u: it "
					 "is cut short or belongs to another model",
					 name, id, t->vocab);
	}
	if (c->left)
		return fault_set(f, -EINVAL,
				 "%s: the tokenizer holds more than the model's %u tokens: it "
				 "belongs to another model",
				 name, t->vocab);
	return 0;
}

/* Byte tokens are "<0x00>".."<0xFF>" in a tokenizer.bin and the byte itself in a .kvm. */
static int check_bytes(struct tokenizer *t, const char *name, struct fault *f)
{
	for (uint32_t b = 0; b < 256; b++) {
		struct piece *p = &t->pieces[TOKENIZER_BYTE0 + b];
		char want[8];
		uint32_t len = 1;

		if (t->spm)
			len = (uint32_t)snprintf(want, sizeof(want), "<0x%02X>", b);
		else
			want[0] = (char)b;
		if (p->len != len || memcmp(p->bytes, want, len))
			return fault_set(f, -EINVAL,
					 "%s: token %u is not byte 0x%02X: kvgen needs a tokenizer "
					 "with byte fallback at 3..258",
					 name, TOKENIZER_BYTE0 + b, b);
		if (t->spm) {
			p->bytes = &t->bytes[b];
			p->len = 1;
		}
	}
	return 0;
}

static int parse(struct tokenizer **out, struct cut *c, const char *name, uint32_t vocab, bool spm,
		 struct fault *f)
{
	struct tokenizer *t;
	struct cut body;
	uint32_t first;
	int err;

	if (vocab < TOKENIZER_PIECE0)
		return fault_set(f, -EINVAL,
				 "%s: a vocabulary of %u has no room for the byte tokens: kvgen "
				 "needs at least %u",
				 name, vocab, TOKENIZER_PIECE0);
	if (c->left / 9 < vocab)
		return fault_set(f, -EINVAL,
				 "%s: %zu bytes of tokenizer cannot hold the model's %u tokens: it "
				 "is cut short or belongs to another model",
				 name, c->left, vocab);
	t = create(c->at, c->left, vocab, spm);
	if (!t)
		return fault_set(f, -ENOMEM, "%s: no memory for the tokenizer", name);
	body = (struct cut){ .at = t->text, .left = c->left };
	err = read_pieces(t, &body, name, f);
	if (!err)
		err = check_bytes(t, name, f);
	if (err) {
		tokenizer_destroy(t);
		return err;
	}
	first = spm ? TOKENIZER_PIECE0 : TOKENIZER_BYTE0;
	t->nr_sorted = vocab - first;
	memcpy(t->sorted, t->pieces + first, t->nr_sorted * sizeof(*t->sorted));
	qsort(t->sorted, t->nr_sorted, sizeof(*t->sorted), compare_pieces);
	*out = t;
	return 0;
}

int tokenizer_parse_kvm(struct tokenizer **out, const void *data, size_t len, const char *name,
			uint32_t vocab, struct fault *f)
{
	struct cut c = { .at = data, .left = len };

	return parse(out, &c, name, vocab, false, f);
}

int tokenizer_parse(struct tokenizer **out, const void *data, size_t len, const char *name,
		    uint32_t vocab, struct fault *f)
{
	struct cut c = { .at = data, .left = len };
	uint32_t max_piece = cut_u32(&c);

	if (c.broken || !max_piece || max_piece > TOKENIZER_MAX_PIECE)
		return fault_set(f, -EINVAL,
				 "%s: longest token %u is not in 1..%u: not a llama2.c "
				 "tokenizer.bin",
				 name, max_piece, TOKENIZER_MAX_PIECE);
	return parse(out, &c, name, vocab, true, f);
}

int tokenizer_load(struct tokenizer **out, const char *path, uint32_t vocab, struct fault *f)
{
	struct blob b;
	int err = blob_read(&b, path, (size_t)16 << 20, f);

	if (err)
		return err;
	err = tokenizer_parse(out, b.data, b.len, path, vocab, f);
	blob_free(&b);
	return err;
}

/* ---- encoding ---- */

/* One text being encoded: ids, and for each the piece that joining it with its right neighbour
 * gives (NULL: none), so that a join recomputes two entries only. */
struct work {
	const struct tokenizer *t;
	uint32_t *ids;
	const struct piece **joined;
	uint32_t nr;
};

static void add_bytes(struct work *w, const uint8_t *bytes, uint32_t len)
{
	for (uint32_t i = 0; i < len; i++)
		w->ids[w->nr++] = TOKENIZER_BYTE0 + bytes[i];
}

/* A code point is at most four bytes; stray continuation bytes stick to what precedes them. */
static void split_utf8(struct work *w, const uint8_t *text, size_t len)
{
	const struct piece *p;

	for (size_t i = 0; i < len;) {
		uint32_t n = 1;

		while (i + n < len && n < 4 && (text[i + n] & 0xc0) == 0x80)
			n++;
		p = find(w->t, text + i, n);
		if (p)
			w->ids[w->nr++] = p->id;
		else
			add_bytes(w, text + i, n);
		i += n;
	}
}

static const struct piece *join(const struct work *w, uint32_t i)
{
	uint8_t bytes[2 * TOKENIZER_MAX_PIECE];
	const struct piece *a, *b;

	if (i + 1 >= w->nr)
		return NULL;
	a = &w->t->pieces[w->ids[i]];
	b = &w->t->pieces[w->ids[i + 1]];
	/* llama2.c never joins fallback bytes. */
	if (w->t->spm && (a->id < TOKENIZER_PIECE0 || b->id < TOKENIZER_PIECE0))
		return NULL;
	memcpy(bytes, a->bytes, a->len);
	memcpy(bytes + a->len, b->bytes, b->len);
	return find(w->t, bytes, a->len + b->len);
}

static void merge(struct work *w)
{
	for (uint32_t i = 0; i < w->nr; i++)
		w->joined[i] = join(w, i);
	for (;;) {
		uint32_t best = w->nr;

		for (uint32_t i = 0; i + 1 < w->nr; i++)
			if (w->joined[i] &&
			    (best == w->nr || w->joined[i]->score > w->joined[best]->score))
				best = i;
		if (best == w->nr)
			return;
		w->ids[best] = w->joined[best]->id;
		w->nr--;
		memmove(w->ids + best + 1, w->ids + best + 2,
			(w->nr - best - 1) * sizeof(*w->ids));
		memmove(w->joined + best + 1, w->joined + best + 2,
			(w->nr - best - 1) * sizeof(*w->joined));
		w->joined[best] = join(w, best);
		if (best)
			w->joined[best - 1] = join(w, best - 1);
	}
}

static int emit(const struct work *w, bool bos, uint32_t *ids, uint32_t max)
{
	uint32_t nr = 0;

	if (w->nr + bos > max)
		return -E2BIG;
	if (bos)
		ids[nr++] = TOKENIZER_BOS;
	memcpy(ids + nr, w->ids, w->nr * sizeof(*ids));
	return (int)(nr + w->nr);
}

int tokenizer_encode(const struct tokenizer *t, const void *text, size_t len, bool bos,
		     uint32_t *ids, uint32_t max)
{
	struct work w = { .t = t };
	int ret = -ENOMEM;

	if (len > TOKENIZER_MAX_TEXT)
		return -E2BIG;
	w.ids = malloc((len + 1) * sizeof(*w.ids));
	w.joined = malloc((len + 1) * sizeof(*w.joined));
	if (w.ids && w.joined) {
		if (t->spm && len)
			split_utf8(&w, (const uint8_t *)" ", 1);
		if (t->spm)
			split_utf8(&w, text, len);
		else
			add_bytes(&w, text, (uint32_t)len);
		merge(&w);
		ret = emit(&w, bos, ids, max);
	}
	free(w.ids);
	free(w.joined);
	return ret;
}

size_t tokenizer_piece(const struct tokenizer *t, uint32_t prev, uint32_t id, const uint8_t **piece)
{
	const struct piece *p;

	*piece = NULL;
	if (id < TOKENIZER_BYTE0 || id >= t->vocab)
		return 0;
	p = &t->pieces[id];
	*piece = p->bytes;
	if (t->spm && prev == TOKENIZER_BOS && p->bytes[0] == ' ') {
		*piece = p->bytes + 1;
		return p->len - 1;
	}
	return p->len;
}
