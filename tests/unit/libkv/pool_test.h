/* SPDX-License-Identifier: Apache-2.0 */
/* pool_test - caches and tokens that the libkv tests share
 *
 * One GQA group of 16 tokens a page by default: 2 layers x 2 heads x 8 elements, f32.
 */
#ifndef POOL_TEST_H
#define POOL_TEST_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <kv/kv.h>

#define PAGE_TOKENS 16u

/* In a forked peer a failed check ends the process; cmocka would go on with the next test there. */
static __attribute__((unused)) bool test_in_peer;

#define test_fail(...) \
	do { \
		if (test_in_peer) { \
			fprintf(stderr, __VA_ARGS__); \
			_exit(1); \
		} \
		fail_msg(__VA_ARGS__); \
	} while (0)

/* A call that must succeed: shows kv_error() when it does not. */
#define ok(call) \
	do { \
		int rc_ = (call); \
		if (rc_) \
			test_fail("%s: %d: %s", #call, rc_, kv_error()); \
	} while (0)

/* A call that must fail with err and with a text that holds word. */
#define refused(call, err, word) \
	do { \
		int rc_ = (call); \
		if (rc_ != (err) || !strstr(kv_error(), (word))) \
			test_fail("%s: %d instead of %d, text: %s", #call, rc_, (err), \
				  kv_error()); \
	} while (0)

static inline struct kv_layout test_layout(uint32_t layers)
{
	return (struct kv_layout){
		.kind = KV_GQA,
		.dtype = KV_F32,
		.layers = layers,
		.kv_heads = 2,
		.head_dim = 8,
		.head_dim_v = 8,
		.page_tokens = PAGE_TOKENS,
	};
}

/* A page of exactly bytes (a multiple of 64 * PAGE_TOKENS). */
static inline struct kv_layout opaque_layout(uint32_t bytes)
{
	return (struct kv_layout){
		.kind = KV_OPAQUE,
		.dtype = KV_F32,
		.layers = 1,
		.page_tokens = PAGE_TOKENS,
		.opaque_token_bytes = bytes / PAGE_TOKENS,
	};
}

static inline struct kv_cache_params test_params(const char *model)
{
	return (struct kv_cache_params){
		.model = model,
		.nr_groups = 1,
		.nr_shards = 1,
		.group[0] = { .kind = KV_GROUP_FULL, .layout = test_layout(2) },
	};
}

static inline void test_tokens(uint32_t *tokens, uint32_t n, uint32_t seed)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		tokens[i] = seed * 1000003u + i * 7u + 1u;
}

#endif
