/* SPDX-License-Identifier: Apache-2.0 */
/* engine - a model whose KV lives in a pool: forward.h's backend over libkv
 *
 * Model:      struct engine is one model opened on one pool: the cache is named by the weights, so
 *             that every engine running the same model with the same cache layout shares prefixes.
 *             struct run is one sequence: run_start() takes the cached prefix of the prompt and
 *             computes the rest; run_push() appends a token; run_next() is the greedy choice.
 * Ownership:  open/close, start/end; runs end before their engine closes.
 * Context:    one thread; runs of one engine take turns.
 * Errors:     -errno with the line for people in engine_error().
 * See:        main.c, tests/unit/kvgen/engine_test.c
 */
#ifndef ENGINE_H
#define ENGINE_H

#include <stdbool.h>
#include <stdint.h>

struct engine_options {
	const char *model, *tokenizer;	/* files; tokenizer NULL: inside the model */
	const char *connect;		/* libkv spec */
	const char *name;		/* for kvctl */
	bool as_mla;			/* run a GQA model through the MLA path */
	uint32_t cache_dtype;		/* enum kv_dtype */
	uint32_t page_tokens;
	uint32_t wait_ms;		/* how long to wait for room in the pool */
};

struct engine;
struct run;
struct tokenizer;

int engine_open(struct engine **, const struct engine_options *);
void engine_close(struct engine *);
const char *engine_error(void);
const struct tokenizer *engine_tokenizer(const struct engine *);
const char *engine_attention(const struct engine *);	/* "gqa/avx512" */
uint32_t engine_max_tokens(const struct engine *);

/* At least one token. *hit: tokens whose rows came from the cache. */
int run_start(struct engine *, const uint32_t *tokens, uint32_t n, uint32_t *hit, struct run **);
int run_push(struct run *, uint32_t token);
uint32_t run_next(const struct run *, float *top, float *gap);	/* top, gap may be NULL */
uint32_t run_len(const struct run *);
uint32_t run_pages(const struct run *);			/* held and leased */
int run_fork(const struct run *, struct run **child);
/* Give everything up to the pool; come back and recompute what was lost meanwhile. */
int run_park(struct run *);
int run_resume(struct run *, uint32_t *kept);
void run_end(struct run *);

#endif
