// SPDX-License-Identifier: Apache-2.0
/* attn_step - contract in attn_step.h */
#include "attn_step.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <kv/kv.h>

#include "bench.h"
#include "kern_num.h"

#define MAX_LAYERS    6u
#define CALL_NS	      8e6
#define PROBE_ROUNDS  20000u
#define MIN_SAMPLES   25u
#define KEEP_AT_LEAST 10u
#define PATIENCE      12

static const struct attn_model models[] = {
	{ "v3", 7168, 128, 1536, 128, 64, 128, 512 },
	{ "v2-lite", 2048, 16, 0, 128, 64, 128, 512 },
	{ "kimi-k2", 7168, 64, 1536, 128, 64, 128, 512 },
};

struct sample {
	double step, attention; /* ns */
	double sequential, peak;
};

struct step {
	const struct attn_model *model;
	const struct attn_shape *shape;
	const struct attn_opts *opts;
	struct attn_lane lane;
	struct attn_team *team;
	enum attn_peak peak;
	struct kv *kv;
	struct kv_cache *cache;
	struct kv_rope rope;
	struct kv_mla *mla[MAX_LAYERS];
	uint32_t layers, next;
	uint64_t weight_bytes;
	float scale;
	void *x, *y; /* into a step and out of it */
	void *q, *o; /* of attention alone */
	uint32_t step_calls, attention_calls;
	struct sample *sample;
	unsigned int nr;
	char *why; /* [ATTN_WHY] */
};

const struct attn_model *attn_model_find(const char *name)
{
	size_t i;

	for (i = 0; i < sizeof(models) / sizeof(models[0]); i++)
		if (!strcmp(name, models[i].name))
			return &models[i];
	return NULL;
}

static uint32_t weight_dtype(const struct attn_shape *s)
{
	return s->q_dtype == KERN_F32 ? KV_F32 : KV_BF16;
}

void attn_step_shape(const struct attn_model *m, struct attn_shape *s)
{
	s->kind = KERN_MLA;
	s->heads = s->heads ? s->heads : m->heads;
	s->q_dtype = s->q_dtype ? s->q_dtype : KERN_BF16;
	attn_shape_default(s);
}

const char *attn_step_check(const struct attn_model *m, const struct attn_shape *s)
{
	if (s->dim != m->rank + m->rope || s->dim_v != m->rank)
		return "--layer-step has the rows of its model";
	if (s->q_dtype == KERN_F16)
		return "--layer-step: --q-dtype is that of the weights too, f32 or bf16";
	if (s->impl != KERN_AUTO)
		return "--layer-step takes what libkv takes: KV_CPU=NAME instead of --impl";
	if (s->shared + s->q_len > s->ctx)
		return "--layer-step writes its new tokens: --shared-prefix must end before them";
	return NULL;
}

/* ---- a model -------------------------------------------------------------------------------- */

static double products_flop(const struct attn_model *m, const struct attn_shape *s)
{
	double heads = s->heads, hidden = m->hidden, q = heads * (m->nope + m->rope);
	double row = hidden * (m->rank + m->rope) + heads * m->nope * m->rank +
		     heads * m->rank * m->v_dim + heads * m->v_dim * hidden;

	row += m->q_rank ? hidden * m->q_rank + m->q_rank * q : hidden * q;
	return 2 * row * s->batch * s->q_len;
}

/* Random numbers that keep activations of about the size they have: each matrix takes the same,
 * since how fast they are multiplied does not depend on them. */
static void *make_weights(const struct attn_model *m, const struct attn_shape *s)
{
	size_t wo = (size_t)m->hidden * s->heads * m->v_dim, i;
	size_t q = (size_t)s->heads * (m->nope + m->rope) * (m->q_rank ? m->q_rank : m->hidden);
	size_t most = wo > q ? wo : q, b = (size_t)s->heads * (m->nope + m->v_dim) * m->rank;
	uint32_t dtype = weight_dtype(s), seed = 1;
	void *w;

	most = most > b ? most : b;
	w = malloc(most * kern_dtype_size(dtype));
	for (i = 0; w && i < most; i++) {
		seed = seed * 1664525 + 1013904223;
		kern_num_put(dtype, w, i, ((float)(seed >> 8) / (1 << 23) - 1) / 50);
	}
	return w;
}

/* An error of which kv_error() does not know. */
static int ours(struct step *st, int err)
{
	if (err)
		attn_explain(st->shape, st->lane.pool_bytes, err, st->why, ATTN_WHY);
	return err;
}

static int make_layers(struct step *st)
{
	const struct attn_model *m = st->model;
	const struct attn_shape *s = st->shape;
	void *w = make_weights(m, s);
	struct kv_mla_params p = { .hidden = m->hidden, .heads = s->heads, .nope = m->nope,
				   .rope = m->rope, .v_dim = m->v_dim, .rank = m->rank,
				   .q_rank = m->q_rank, .dtype = weight_dtype(s),
				   .wkv_a = w, .wkv_b = w, .wo = w, .rotary = &st->rope };
	uint64_t goal = st->opts->pool_bytes ? st->opts->pool_bytes : attn_pool_bytes();
	struct kv_mla_info info;
	int err = ours(st, w ? 0 : -ENOMEM);

	if (m->q_rank)
		p.wq_a = p.wq_b = w;
	else
		p.wq = w;
	while (!err && st->layers < MAX_LAYERS && st->layers * st->weight_bytes < goal) {
		err = kv_mla_create(&p, &st->mla[st->layers]);
		if (err)
			break;
		kv_mla_info(st->mla[st->layers++], &info);
		st->weight_bytes = info.weight_bytes;
		st->scale = info.scale;
	}
	free(w);
	return err;
}

static int open_cache(struct step *st)
{
	const struct attn_shape *s = st->shape;
	const struct kv_rope_params rope = { .dim = st->model->rope, .max_positions = s->ctx };
	const struct kv_cache_params c = {
		.nr_groups = 1,
		.group[0] = { .kind = KV_GROUP_FULL,
			      .layout = { .kind = KV_MLA,
					  .dtype = s->dtype,
					  .layers = 1,
					  .rank = s->dim_v,
					  .rope = s->dim - s->dim_v,
					  .page_tokens = s->page_tokens,
					  .scale = s->scale } },
	};
	int err = kv_open("embedded:host:64M", NULL, &st->kv);

	err = err ? err : kv_cache_open(st->kv, &c, &st->cache);
	err = err ? err : kv_rope_init(&st->rope, &rope);
	return err ? err : kv_threads_set(s->threads);
}

static int open_rows(struct step *st)
{
	const struct attn_shape *s = st->shape;
	size_t rows = (size_t)s->batch * s->q_len, heads = rows * s->heads, i;
	size_t x = rows * st->model->hidden, q = heads * s->dim;
	uint32_t seed = 7;

	st->x = malloc(x * sizeof(float));
	st->y = malloc(x * sizeof(float));
	st->q = malloc(q * sizeof(float));
	st->o = malloc(heads * s->dim_v * sizeof(float));
	if (!st->x || !st->y || !st->q || !st->o)
		return -ENOMEM;
	for (i = 0; i < x || i < q; i++) {
		float f;

		seed = seed * 1664525 + 1013904223;
		f = (float)(seed >> 8) / (1 << 23) - 1;
		if (i < x)
			((float *)st->x)[i] = f;
		if (i < q)
			kern_num_put(s->q_dtype, st->q, i, f);
	}
	return 0;
}

static void step_close(struct step *st)
{
	while (st->layers)
		kv_mla_destroy(st->mla[--st->layers]);
	kv_rope_fini(&st->rope);
	kv_cache_close(st->cache);
	kv_close(st->kv);
	attn_team_stop(st->team);
	attn_lane_close(&st->lane);
	free(st->x);
	free(st->y);
	free(st->q);
	free(st->o);
	free(st->sample);
}

static int step_open(struct step *st)
{
	size_t pool = st->opts->pool_bytes ? st->opts->pool_bytes : attn_pool_bytes();
	int err = ours(st, attn_lane_open(&st->lane, st->shape, pool));

	if (err)
		return err;
	st->team = attn_team_start(st->shape->threads);
	st->sample = calloc(ATTN_MAX_SAMPLES, sizeof(*st->sample));
	err = ours(st, st->team && st->sample ? 0 : -ENOMEM);
	err = err ? err : open_cache(st);
	err = err ? err : ours(st, open_rows(st));
	return err ? err : make_layers(st);
}

/* ---- measurements --------------------------------------------------------------------------- */

/* Of one thread the time it had a processor, of several the time that passed. */
static double now_ns(const struct step *st)
{
	struct timespec t;

	clock_gettime(st->shape->threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static const uint64_t *const *next_table(struct step *st)
{
	struct attn_lane *l = &st->lane;
	uint32_t t = l->next;

	l->next = (t + 1) % l->nr_tables;
	return l->seq + (size_t)t * st->shape->batch;
}

static int one_step(struct step *st)
{
	const struct attn_shape *s = st->shape;
	const struct kv_mla_step a = { .batch = s->batch, .q_len = s->q_len, .x = st->x,
				       .out = st->y, .k_scale = st->lane.scales };
	struct kv_mla *mla = st->mla[st->next];

	st->next = (st->next + 1) % st->layers;
	return kv_mla_step_pages(mla, st->cache, &a, next_table(st), st->lane.len);
}

static int one_attention(struct step *st)
{
	const struct attn_shape *s = st->shape;
	const struct kv_attn a = { .batch = s->batch, .heads = s->heads, .q_len = s->q_len,
				   .q_dtype = s->q_dtype, .q = st->q, .out = st->o,
				   .scale = st->scale, .k_scale = st->lane.scales };

	return kv_attn_pages(st->cache, &a, next_table(st), st->lane.len);
}

static int timed(struct step *st, int (*fn)(struct step *), uint32_t calls, double *ns)
{
	double start = now_ns(st);
	uint32_t i;
	int err = 0;

	for (i = 0; i < calls && !err; i++)
		err = fn(st);
	*ns = (now_ns(st) - start) / calls;
	return err;
}

static void probe_member(void *arg, unsigned int me, unsigned int n)
{
	(void)me;
	(void)n;
	attn_peak_run(*(enum attn_peak *)arg, PROBE_ROUNDS);
}

static double probe(struct step *st)
{
	double flop = attn_peak_run(st->peak, 1) * PROBE_ROUNDS;

	return flop * st->shape->threads /
	       (double)attn_team_run(st->team, probe_member, &st->peak, NULL);
}

static double sequential(struct step *st)
{
	double best = 0, bytes = attn_table_bytes(&st->lane);
	uint32_t calls = (uint32_t)(3e7 / bytes) + 1, i;

	for (i = 0; i < ATTN_NR_STREAMS; i++)
		best = fmax(best, bytes * calls / (double)attn_stream_run(&st->lane, st->team, i,
									  calls, NULL));
	return best;
}

static int take(struct step *st, struct sample *s)
{
	double before = probe(st);
	int err = timed(st, one_step, st->step_calls, &s->step);

	if (!err)
		err = timed(st, one_attention, st->attention_calls, &s->attention);
	s->sequential = sequential(st);
	s->peak = (before + probe(st)) / 2;
	return err;
}

static uint32_t calls_for(double ns)
{
	double n = ceil(CALL_NS / (ns > 1 ? ns : 1));

	return n < 1e5 ? (uint32_t)n : 100000;
}

static int calibrate(struct step *st)
{
	double ns;
	int err = timed(st, one_step, st->layers, &ns); /* each takes its scratch */

	if (!err)
		err = timed(st, one_step, 1, &ns);
	st->step_calls = calls_for(ns);
	if (!err)
		err = timed(st, one_attention, 2, &ns);
	st->attention_calls = calls_for(ns);
	return err;
}

static double best_peak(const struct step *st)
{
	double best = 0;
	unsigned int i;

	for (i = 0; i < st->nr; i++)
		best = fmax(best, st->sample[i].peak);
	return best;
}

static unsigned int keep_steady(struct step *st, bool drop)
{
	double best = best_peak(st);
	unsigned int i, n = 0;

	for (i = 0; i < st->nr; i++)
		if (!(st->sample[i].peak < ATTN_MIN_PROBE * best)) {
			if (drop)
				st->sample[n] = st->sample[i];
			n++;
		}
	return n;
}

static int sample_all(struct step *st, double *seconds)
{
	double goal = st->opts->seconds * 1e9, spent = 0;
	uint64_t start = bench_now_ns();
	int err = calibrate(st);

	while (!err && st->nr < ATTN_MAX_SAMPLES && spent < PATIENCE * goal) {
		if (spent >= goal && keep_steady(st, false) >= MIN_SAMPLES)
			break;
		err = take(st, &st->sample[st->nr++]);
		spent = (double)(bench_now_ns() - start);
	}
	*seconds = spent / 1e9;
	return err;
}

/* ---- figures -------------------------------------------------------------------------------- */

/* The statistics of an expression of each sample s; p is what the products took. */
#define STAT(st, expr) __extension__({						\
	double stat_v[ATTN_MAX_SAMPLES];					\
	unsigned int stat_i;							\
	for (stat_i = 0; stat_i < (st)->nr; stat_i++) {				\
		const struct sample *s = &(st)->sample[stat_i];			\
		double p = fmax(s->step - s->attention, 1);			\
		(void)p;							\
		stat_v[stat_i] = (expr);					\
	}									\
	attn_stat_of(stat_v, (st)->nr);						\
})

static void figure(struct step *st, struct attn_step_result *r)
{
	double flop = r->products_flop, bytes = (double)st->weight_bytes;
	double rows = (double)st->shape->batch * st->shape->q_len;
	unsigned int all = st->nr;

	st->nr = r->kept = keep_steady(st, true);
	r->dropped = all - r->kept;
	r->step = STAT(st, s->step);
	r->attention = STAT(st, s->attention);
	r->products = STAT(st, p);
	r->tokens = STAT(st, rows * 1e9 / s->step);
	r->products_gflops = STAT(st, flop / p);
	r->weights_gbs = STAT(st, bytes / p);
	r->attention_gflops = STAT(st, attn_shape_flop(st->shape) / s->attention);
	r->attention_gbs = STAT(st, attn_shape_bytes(st->shape) / s->attention);
	r->sequential = STAT(st, s->sequential);
	r->peak = STAT(st, s->peak);
	r->attention_share = STAT(st, s->attention / s->step);
	r->products_bound = STAT(st, fmax(flop / s->peak, bytes / s->sequential) / p);
	r->step_bound = STAT(st, fmax(flop / s->peak, bytes / s->sequential) / s->step);
	if (r->kept < KEEP_AT_LEAST)
		snprintf(r->void_why, sizeof(r->void_why),
			 "only %u samples with steady arithmetic: the machine is busy", r->kept);
}

int attn_step_run(const struct attn_model *m, const struct attn_shape *shape,
		  const struct attn_opts *opts, struct attn_step_result *r)
{
	struct step st = { .model = m, .shape = shape, .opts = opts, .why = r->void_why };
	const struct kv_attn a = { .heads = shape->heads, .q_len = shape->q_len,
				   .q_dtype = shape->q_dtype, .scale = 1 };
	int err;

	memset(r, 0, sizeof(*r));
	attn_peak_init();
	st.peak = weight_dtype(shape) == KV_F32	       ? ATTN_PEAK_FMA
		  : attn_peak_has(ATTN_PEAK_AMX)       ? ATTN_PEAK_AMX
		  : attn_peak_has(ATTN_PEAK_BF16)      ? ATTN_PEAK_BF16
						       : ATTN_PEAK_FMA;
	err = step_open(&st);
	r->arithmetic = attn_peak_name(st.peak);
	r->products_flop = products_flop(m, shape);
	r->weight_bytes = st.weight_bytes;
	r->layers = st.layers;
	if (!err)
		err = kv_attn_query(st.cache, &a, &r->impl, NULL);
	if (!err)
		err = sample_all(&st, &r->seconds);
	if (!err)
		figure(&st, r);
	step_close(&st);
	return err;
}
