/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "blob.h"

#define KVM_MAGIC	0x314d564bu	/* "KVM1" */
#define KVM_VERSION	1u
#define KVM_HEADER	128u
#define KVM_ALIGN	64u
#define V0_HEADER	28u

enum weight_type { WEIGHT_F32 = 0, WEIGHT_BF16 = 1 };

/* One file being parsed: what the header says and where the rest is. */
struct source {
	const char *name;
	struct fault *f;
	const uint8_t *data;
	size_t len;
	struct model_dims d;
	bool v0, own_classifier;	/* v0: tensors grouped by kind, classifier may be apart */
	enum weight_type type;
	size_t tokenizer_bytes;
};

/* Hands out tensors in file order; with a NULL base it only counts. */
struct arena {
	float *base;
	uint64_t at;
};

static const float *take(struct arena *a, uint64_t n)
{
	const float *p = a->base ? a->base + a->at : NULL;

	a->at += n;
	return p;
}

/* ---- tensor order ---- */

static uint64_t out_width(const struct model_dims *d)
{
	return (uint64_t)d->heads * (d->attn == MODEL_MLA ? d->v : d->head_dim);
}

static void map_attn(const struct model_dims *d, struct model_layer *l, struct arena *a)
{
	uint64_t dim = d->dim;

	if (d->attn == MODEL_GQA) {
		l->wq = take(a, dim * d->heads * d->head_dim);
		l->wk = take(a, dim * d->kv_heads * d->head_dim);
		l->wv = take(a, dim * d->kv_heads * d->head_dim);
	} else {
		l->wq = take(a, dim * d->heads * (d->nope + d->rope));
		l->w_dkv = take(a, dim * (d->rank + d->rope));
		l->kv_norm = take(a, d->rank);
		l->w_uk = take(a, (uint64_t)d->heads * d->nope * d->rank);
		l->w_uv = take(a, (uint64_t)d->heads * d->v * d->rank);
	}
	l->wo = take(a, dim * out_width(d));
}

static void map_kvm(struct model *m, struct arena *a)
{
	const struct model_dims *d = &m->d;
	uint64_t dim = d->dim;

	m->embed = take(a, dim * d->vocab);
	for (uint32_t i = 0; i < d->layers; i++) {
		struct model_layer *l = &m->layer[i];

		l->attn_norm = take(a, dim);
		map_attn(d, l, a);
		l->ffn_norm = take(a, dim);
		l->w1 = take(a, dim * d->hidden);
		l->w2 = take(a, dim * d->hidden);
		l->w3 = take(a, dim * d->hidden);
	}
	m->final_norm = take(a, dim);
	m->classifier = m->embed;
}

#define MAP_EACH(member, n)						\
	do {								\
		for (uint32_t i_ = 0; i_ < d->layers; i_++)		\
			m->layer[i_].member = take(a, n);		\
	} while (0)

static void map_v0(struct model *m, struct arena *a, bool own_classifier)
{
	const struct model_dims *d = &m->d;
	uint64_t dim = d->dim, kv = (uint64_t)d->kv_heads * d->head_dim;

	m->embed = take(a, dim * d->vocab);
	MAP_EACH(attn_norm, dim);
	MAP_EACH(wq, dim * dim);
	MAP_EACH(wk, dim * kv);
	MAP_EACH(wv, dim * kv);
	MAP_EACH(wo, dim * dim);
	MAP_EACH(ffn_norm, dim);
	MAP_EACH(w1, dim * d->hidden);
	MAP_EACH(w2, dim * d->hidden);
	MAP_EACH(w3, dim * d->hidden);
	m->final_norm = take(a, dim);
	take(a, (uint64_t)d->max_pos * d->head_dim);	/* freq_cis_real and _imag, computed anew */
	m->classifier = own_classifier ? take(a, dim * d->vocab) : m->embed;
}

static uint64_t map_tensors(struct model *m, const struct source *s, float *base)
{
	struct arena a = { .base = base };

	if (s->v0)
		map_v0(m, &a, s->own_classifier);
	else
		map_kvm(m, &a);
	return a.at;
}

/* ---- headers ---- */

static int bad_value(const struct source *s, const char *what, uint64_t value, const char *rule)
{
	return fault_set(s->f, -EINVAL,
			 "%s: header says %s %llu, which must be %s: the file is damaged or no "
			 "model that kvgen can run",
			 s->name, what, (unsigned long long)value, rule);
}

static int check_common(const struct source *s)
{
	const struct model_dims *d = &s->d;

	if (!d->dim || d->dim > MODEL_MAX_DIM)
		return bad_value(s, "width", d->dim, "1 to 8192");
	if (!d->hidden || d->hidden > MODEL_MAX_HIDDEN)
		return bad_value(s, "hidden width", d->hidden, "1 to 65536");
	if (!d->layers || d->layers > MODEL_MAX_LAYERS)
		return bad_value(s, "layers", d->layers, "1 to 256");
	if (!d->heads || d->heads > MODEL_MAX_HEADS)
		return bad_value(s, "heads", d->heads, "1 to 1024");
	if (d->vocab < TOKENIZER_PIECE0 || d->vocab > MODEL_MAX_VOCAB)
		return bad_value(s, "vocabulary", d->vocab, "259 to 262144");
	if (!d->max_pos || d->max_pos > MODEL_MAX_POS)
		return bad_value(s, "positions", d->max_pos, "1 to 131072");
	return 0;
}

static int check_attn(const struct source *s)
{
	const struct model_dims *d = &s->d;

	if (d->attn == MODEL_GQA) {
		if (!d->kv_heads || d->kv_heads > d->heads || d->heads % d->kv_heads)
			return bad_value(s, "kv heads", d->kv_heads, "a divisor of the heads");
		if (!d->head_dim || d->head_dim % 8 || d->head_dim > MODEL_MAX_ROW)
			return bad_value(s, "head width", d->head_dim,
					 "a multiple of 8 up to 576");
		if (d->rank || d->rope || d->nope || d->v)
			return bad_value(s, "MLA widths sum", (uint64_t)d->rank + d->rope +
					 d->nope + d->v, "0 in a GQA model");
		return 0;
	}
	if (d->kv_heads || d->head_dim)
		return bad_value(s, "kv heads or head width", d->kv_heads | d->head_dim,
				 "0 in an MLA model");
	if (!d->rank || d->rank % 8 || d->rank > MODEL_MAX_ROW)
		return bad_value(s, "rank", d->rank, "a multiple of 8 up to 576");
	if (!d->rope || d->rope % 8 || d->rope > MODEL_MAX_ROW || d->rank + d->rope > MODEL_MAX_ROW)
		return bad_value(s, "rope width", d->rope,
				 "a multiple of 8, with the rank up to 576");
	if (!d->nope || d->nope > MODEL_MAX_ROW)
		return bad_value(s, "nope width", d->nope, "1 to 576");
	if (!d->v || d->v > MODEL_MAX_ROW)
		return bad_value(s, "v width", d->v, "1 to 576");
	return 0;
}

static int read_v0(struct source *s)
{
	struct cut c = { .at = s->data, .left = s->len };
	struct model_dims *d = &s->d;
	uint32_t vocab;

	d->attn = MODEL_GQA;
	d->dim = cut_u32(&c);
	d->hidden = cut_u32(&c);
	d->layers = cut_u32(&c);
	d->heads = cut_u32(&c);
	d->kv_heads = cut_u32(&c);
	vocab = cut_u32(&c);
	d->max_pos = cut_u32(&c);
	d->theta = 10000.0f;
	d->eps = 1e-5f;
	s->v0 = true;
	s->type = WEIGHT_F32;
	s->own_classifier = vocab >> 31;	/* negative: the classifier is apart */
	d->vocab = s->own_classifier ? -vocab : vocab;
	if (!d->heads || d->heads > d->dim || d->dim % d->heads)
		return fault_set(s->f, -EINVAL,
				 "%s: is neither a .kvm nor a llama2.c v0 file (%u heads in a "
				 "width of %u): convert the model first",
				 s->name, d->heads, d->dim);
	d->head_dim = d->dim / d->heads;
	return 0;
}

static int read_kvm(struct source *s)
{
	struct cut c = { .at = s->data, .left = KVM_HEADER };
	struct model_dims *d = &s->d;
	uint32_t version, type;

	cut_u32(&c);
	version = cut_u32(&c);
	if (version != KVM_VERSION)
		return bad_value(s, "version", version, "1 for this kvgen");
	d->attn = cut_u32(&c);
	type = cut_u32(&c);
	d->dim = cut_u32(&c);
	d->hidden = cut_u32(&c);
	d->layers = cut_u32(&c);
	d->heads = cut_u32(&c);
	d->kv_heads = cut_u32(&c);
	d->head_dim = cut_u32(&c);
	d->rank = cut_u32(&c);
	d->rope = cut_u32(&c);
	d->nope = cut_u32(&c);
	d->v = cut_u32(&c);
	d->vocab = cut_u32(&c);
	d->theta = cut_f32(&c);
	d->eps = cut_f32(&c);
	d->max_pos = cut_u32(&c);
	s->tokenizer_bytes = cut_u32(&c);
	s->type = WEIGHT_BF16;
	if (d->attn != MODEL_GQA && d->attn != MODEL_MLA)
		return bad_value(s, "attention", d->attn, "1 (GQA) or 2 (MLA)");
	if (type != WEIGHT_BF16)
		return bad_value(s, "weight type", type, "1 (bf16)");
	if (!(d->theta >= 1.0f && d->theta <= 1e9f) || !(d->eps > 0.0f && d->eps < 1.0f))
		return fault_set(s->f, -EINVAL,
				 "%s: header says theta %g and eps %g: the file is damaged",
				 s->name, (double)d->theta, (double)d->eps);
	for (; c.left; cut_take(&c, 1))
		if (*c.at)
			return bad_value(s, "reserved byte", *c.at, "0");
	return 0;
}

static int read_header(struct source *s)
{
	struct cut c = { .at = s->data, .left = s->len };
	bool kvm = cut_u32(&c) == KVM_MAGIC;
	uint32_t want = kvm ? KVM_HEADER : V0_HEADER;
	int err;

	if (s->len < want)
		return fault_set(s->f, -EINVAL,
				 "%s: has %zu bytes, its header alone %u: it is cut short, fetch "
				 "it again",
				 s->name, s->len, want);
	err = kvm ? read_kvm(s) : read_v0(s);
	if (!err)
		err = check_common(s);
	if (!err)
		err = check_attn(s);
	return err;
}

/* ---- body ---- */

static uint32_t crc32_of(const uint8_t *p, size_t len)
{
	uint32_t table[256], crc = ~0u;

	for (uint32_t i = 0; i < 256; i++) {
		table[i] = i;
		for (int bit = 0; bit < 8; bit++)
			table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
	}
	for (size_t i = 0; i < len; i++)
		crc = crc >> 8 ^ table[(crc ^ p[i]) & 0xff];
	return ~crc;
}

/* Where the weights start, once the file has exactly the size that its header implies. */
static int check_size(const struct source *s, uint64_t nr_weights, size_t *start)
{
	uint64_t want;

	if (s->v0) {
		*start = V0_HEADER;
		want = V0_HEADER + nr_weights * 4;
	} else {
		*start = (KVM_HEADER + s->tokenizer_bytes + KVM_ALIGN - 1) / KVM_ALIGN * KVM_ALIGN;
		want = *start + nr_weights * 2 + 4;
	}
	if (want != s->len)
		return fault_set(s->f, -EINVAL,
				 "%s: has %zu bytes, its header promises %llu: it is cut short or "
				 "its header is damaged, fetch it again",
				 s->name, s->len, (unsigned long long)want);
	return 0;
}

static int check_crc(const struct source *s)
{
	struct cut c = { .at = s->data + s->len - 4, .left = 4 };

	if (s->v0 || cut_u32(&c) == crc32_of(s->data, s->len - 4))
		return 0;
	return fault_set(s->f, -EINVAL, "%s: checksum does not match: it is damaged, fetch it "
			 "again", s->name);
}

static int read_weights(const struct source *s, struct model *m, size_t start)
{
	const uint8_t *p = s->data + start;

	for (size_t i = 0; i < m->nr_weights; i++) {
		uint32_t bits;

		if (s->type == WEIGHT_F32)
			bits = p[4 * i] | (uint32_t)p[4 * i + 1] << 8 |
			       (uint32_t)p[4 * i + 2] << 16 | (uint32_t)p[4 * i + 3] << 24;
		else
			bits = (uint32_t)p[2 * i] << 16 | (uint32_t)p[2 * i + 1] << 24;
		memcpy(&m->weights[i], &bits, sizeof(bits));
		if (!isfinite(m->weights[i]))
			return fault_set(s->f, -EINVAL,
					 "%s: weight %zu is not finite: it is damaged, fetch it "
					 "again",
					 s->name, i);
	}
	return 0;
}

static int read_body(const struct source *s, struct model *m)
{
	size_t start;
	int err;

	m->d = s->d;
	m->layer = calloc(m->d.layers, sizeof(*m->layer));
	if (!m->layer)
		return fault_set(s->f, -ENOMEM, "%s: no memory for the model", s->name);
	m->nr_weights = map_tensors(m, s, NULL);
	err = check_size(s, m->nr_weights, &start);
	if (!err)
		err = check_crc(s);
	if (!err && !s->v0)
		err = tokenizer_parse_kvm(&m->tokenizer, s->data + KVM_HEADER, s->tokenizer_bytes,
					  s->name, m->d.vocab, s->f);
	if (err)
		return err;
	m->weights = malloc(m->nr_weights * sizeof(*m->weights));
	if (!m->weights)
		return fault_set(s->f, -ENOMEM, "%s: no memory for %zu weights", s->name,
				 m->nr_weights);
	map_tensors(m, s, m->weights);
	return read_weights(s, m, start);
}

int model_parse(struct model **out, const void *data, size_t len, const char *name, struct fault *f)
{
	struct source s = { .name = name, .f = f, .data = data, .len = len };
	struct model *m;
	int err = read_header(&s);

	if (err)
		return err;
	m = calloc(1, sizeof(*m));
	if (!m)
		return fault_set(f, -ENOMEM, "%s: no memory for the model", name);
	err = read_body(&s, m);
	if (err) {
		model_destroy(m);
		return err;
	}
	*out = m;
	return 0;
}

int model_load(struct model **out, const char *path, struct fault *f)
{
	struct blob b;
	int err = blob_read(&b, path, MODEL_MAX_BYTES, f);

	if (err)
		return err;
	err = model_parse(out, b.data, b.len, path, f);
	blob_free(&b);
	return err;
}

void model_destroy(struct model *m)
{
	if (!m)
		return;
	tokenizer_destroy(m->tokenizer);
	free(m->layer);
	free(m->weights);
	free(m);
}
