/* SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"

#include <errno.h>
#include <math.h>
#include <sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kv/kv.h>
#include "forward.h"
#include "model.h"
#include "ops.h"

#define CHUNK 64u /* tokens of one prefill step */

struct engine {
	struct model *model;
	struct tokenizer *own_tokenizer; /* from its own file */
	struct forward *forward;
	struct forward_shape shape;
	uint32_t chunk;
	struct kv *kv;
	struct kv_cache *cache;
};

struct run {
	struct engine *engine;
	struct kv_seq *seq;
	float *logits;
	uint32_t *tokens; /* all of them, room for max_pos */
	uint32_t len;
};

static struct fault fault;

const char *engine_error(void)
{
	return fault.text;
}

static int kv_failed(int err)
{
	return fault_set(&fault, err, "%s", kv_error());
}

/* The cache's name must differ whenever any row could: weights, dimensions, path, element type. */
static void revision(const struct engine *e, const struct engine_options *opt, char *out,
		     size_t len)
{
	uint8_t digest[SHA256_DIGEST_LENGTH];
	SHA2_CTX ctx;
	int n, i;

	SHA256Init(&ctx);
	SHA256Update(&ctx, (const uint8_t *)&e->model->d, sizeof(e->model->d));
	SHA256Update(&ctx, (const uint8_t *)e->model->weights,
		     e->model->nr_weights * sizeof(*e->model->weights));
	SHA256Final(digest, &ctx);
	n = snprintf(out, len, "mla=%d,dtype=%u,page=%u,", opt->as_mla, opt->cache_dtype,
		     opt->page_tokens);
	for (i = 0; i < SHA256_DIGEST_LENGTH && (size_t)n + 3 < len; i++)
		n += snprintf(out + n, len - (size_t)n, "%02x", digest[i]);
}

static int open_cache(struct engine *e, const struct engine_options *opt)
{
	const struct forward_shape *s = &e->shape;
	struct kv_cache_params p = { .model = "kvgen", .nr_groups = 1, .nr_shards = 1 };
	struct kv_layout *l = &p.group[0].layout;
	char rev[128];
	int err;

	revision(e, opt, rev, sizeof(rev));
	p.revision = rev;
	p.group[0].kind = KV_GROUP_FULL;
	l->dtype = opt->cache_dtype;
	if (l->dtype == KV_F8 || l->dtype == KV_I8)
		l->scale = KV_SCALE_TOKEN;
	l->layers = s->layers;
	l->page_tokens = opt->page_tokens;
	if (s->kind == FORWARD_MLA) {
		l->kind = KV_MLA;
		l->rank = s->rank;
		l->rope = s->rope;
	} else {
		l->kind = KV_GQA;
		l->kv_heads = s->kv_heads;
		l->head_dim = l->head_dim_v = s->head_dim;
	}
	err = kv_cache_open(e->kv, &p, &e->cache);
	return err ? kv_failed(err) : 0;
}

static int load(struct engine *e, const struct engine_options *opt)
{
	int err = model_load(&e->model, opt->model, &fault);

	if (!err && opt->tokenizer)
		err = tokenizer_load(&e->own_tokenizer, opt->tokenizer, e->model->d.vocab, &fault);
	if (!err && !engine_tokenizer(e))
		err = fault_set(&fault, -EINVAL,
				"'%s' has no tokenizer inside: name one with --tokenizer",
				opt->model);
	return err;
}

int engine_open(struct engine **out, const struct engine_options *opt)
{
	struct kv_options kvo = { .name = opt->name, .wait_ms = opt->wait_ms };
	struct engine *e = calloc(1, sizeof(*e));
	bool as_mla;
	int err;

	if (!e)
		return fault_set(&fault, -ENOMEM, "out of memory");
	err = load(e, opt);
	if (!err) {
		as_mla = opt->as_mla && e->model->d.attn == MODEL_GQA;
		e->chunk = e->model->d.max_pos < CHUNK ? e->model->d.max_pos : CHUNK;
		err = forward_create(&e->forward, e->model,
				     as_mla ? FORWARD_AS_MLA : FORWARD_NATIVE, e->chunk, &fault);
	}
	if (!err) {
		forward_shape(e->forward, &e->shape);
		err = kv_open(opt->connect, &kvo, &e->kv);
		if (err)
			kv_failed(err);
	}
	if (!err)
		err = open_cache(e, opt);
	if (err) {
		engine_close(e);
		return err;
	}
	*out = e;
	return 0;
}

void engine_close(struct engine *e)
{
	if (!e)
		return;
	kv_close(e->kv);
	forward_destroy(e->forward);
	tokenizer_destroy(e->own_tokenizer);
	model_destroy(e->model);
	free(e);
}

const struct tokenizer *engine_tokenizer(const struct engine *e)
{
	return e->own_tokenizer ? e->own_tokenizer : e->model->tokenizer;
}

uint32_t engine_max_tokens(const struct engine *e)
{
	return e->shape.max_pos;
}

static void attn_args(const struct engine *e, struct kv_attn *a)
{
	*a = (struct kv_attn){ .batch = 1,
			       .heads = e->shape.heads,
			       .q_len = 1,
			       .q_dtype = KV_F32,
			       .scale = e->shape.scale };
}

const char *engine_attention(const struct engine *e)
{
	static char text[32];
	const char *impl = "?";
	struct kv_attn a;
	bool fast;

	attn_args(e, &a);
	kv_attn_query(e->cache, &a, &impl, &fast);
	snprintf(text, sizeof(text), "%s/%s", e->shape.kind == FORWARD_MLA ? "mla" : "gqa", impl);
	return text;
}

/* ---- forward's backend --------------------------------------------------------------------- */

static int store(void *ctx, uint32_t layer, uint32_t pos, uint32_t n, const float *k,
		 const float *v)
{
	struct run *r = ctx;
	int err = kv_seq_store(r->seq, 0, layer, pos, n, k, v);

	return err ? kv_failed(err) : 0;
}

static int attend(void *ctx, uint32_t layer, uint32_t pos, uint32_t n, const float *q, float *out)
{
	struct run *r = ctx;
	uint32_t len = pos + n;
	struct kv_attn a;
	int err;

	attn_args(r->engine, &a);
	a.layer = layer;
	a.seqs = &r->seq;
	a.lens = &len;
	a.q_len = n;
	a.q = q;
	a.out = out;
	err = kv_attn(r->engine->cache, &a);
	return err ? kv_failed(err) : 0;
}

/* Tokens r->tokens[from, to): their places, rows in every layer, the mark. */
static int compute(struct run *r, uint32_t from, uint32_t to)
{
	struct attn_backend backend = { store, attend, r };
	uint32_t n, chunk = r->engine->chunk;
	int err;

	for (; from < to; from += n) {
		n = to - from < chunk ? to - from : chunk;
		err = kv_seq_append(r->seq, r->tokens + from, n);
		if (err)
			return kv_failed(err);
		err = forward_step(r->engine->forward, &backend, r->tokens + from, n, from,
				   from + n == to ? r->logits : NULL);
		if (err)
			return err == -EINVAL ? fault_set(&fault, err, "token out of range") : err;
		err = kv_seq_commit(r->seq, from + n);
		if (err)
			return kv_failed(err);
	}
	r->len = to;
	return 0;
}

static struct run *run_alloc(struct engine *e)
{
	struct run *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->engine = e;
	r->logits = calloc(e->model->d.vocab, sizeof(*r->logits));
	r->tokens = calloc(e->shape.max_pos, sizeof(*r->tokens));
	if (r->logits && r->tokens)
		return r;
	run_end(r);
	return NULL;
}

int run_start(struct engine *e, const uint32_t *tokens, uint32_t n, uint32_t *hit, struct run **out)
{
	struct run *r;
	int err;

	if (n == 0 || n > e->shape.max_pos)
		return fault_set(&fault, -E2BIG,
				 "the prompt has %u tokens, the model takes 1 to %u", n,
				 e->shape.max_pos);
	r = run_alloc(e);
	if (!r)
		return fault_set(&fault, -ENOMEM, "out of memory");
	memcpy(r->tokens, tokens, n * sizeof(*tokens));
	err = kv_seq_create(e->cache, NULL, 0, &r->seq);
	if (!err)
		err = kv_seq_match(r->seq, tokens, n, hit);
	err = err ? kv_failed(err) : compute(r, *hit, n);
	if (err) {
		run_end(r);
		return err;
	}
	*out = r;
	return 0;
}

/* Between two steps nothing reads or writes pages: kvd may have some moved. */
int run_push(struct run *r, uint32_t token)
{
	int err = kv_poll(r->engine->kv);

	if (err)
		return kv_failed(err);
	if (r->len >= r->engine->shape.max_pos)
		return fault_set(&fault, -E2BIG, "the model's %u positions are used up",
				 r->engine->shape.max_pos);
	r->tokens[r->len] = token;
	return compute(r, r->len, r->len + 1);
}

uint32_t run_next(const struct run *r, float *top, float *gap)
{
	uint32_t vocab = r->engine->model->d.vocab, best = ops_argmax(r->logits, vocab), i;
	float second = -INFINITY;

	for (i = 0; i < vocab; i++)
		if (i != best && r->logits[i] > second)
			second = r->logits[i];
	if (top)
		*top = r->logits[best];
	if (gap)
		*gap = r->logits[best] - second;
	return best;
}

uint32_t run_len(const struct run *r)
{
	return r->len;
}

uint32_t run_pages(const struct run *r)
{
	uint32_t held = 0, leased = 0;

	kv_seq_pages(r->seq, &held, &leased);
	return held + leased;
}

int run_fork(const struct run *r, struct run **child)
{
	struct run *c = run_alloc(r->engine);
	int err;

	if (!c)
		return fault_set(&fault, -ENOMEM, "out of memory");
	memcpy(c->tokens, r->tokens, r->len * sizeof(*r->tokens));
	memcpy(c->logits, r->logits, r->engine->model->d.vocab * sizeof(*r->logits));
	c->len = r->len;
	err = kv_seq_fork(r->seq, &c->seq);
	if (err) {
		run_end(c);
		return kv_failed(err);
	}
	*child = c;
	return 0;
}

int run_park(struct run *r)
{
	int err = kv_seq_park(r->seq);

	return err ? kv_failed(err) : 0;
}

int run_resume(struct run *r, uint32_t *kept)
{
	int err = kv_seq_resume(r->seq, kept);

	return err ? kv_failed(err) : compute(r, *kept, r->len);
}

void run_end(struct run *r)
{
	if (!r)
		return;
	kv_seq_release(r->seq);
	free(r->logits);
	free(r->tokens);
	free(r);
}
