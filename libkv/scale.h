/* SPDX-License-Identifier: Apache-2.0 */
/* scale - the scales of KV heads that a cache was opened with (KV_SCALE_HEAD; public: kv/cache.h)
 *
 * Model:      pages of a cache that engines share mean the same to all of them only if the scales
 *             are the same, so these are part of its identity, like the layout. The cache keeps
 *             those of this rank's heads as [layers][kv_heads]; what a call says must agree. A
 *             private cache that was opened without has none of its own: calls say.
 * Ownership:  a cache owns what it keeps; what scale_of() gives is the cache's or the caller's.
 * Context:    scale_of() from any thread; the others while a cache is opened or closed.
 * Errors:     -EINVAL with text, -ENOMEM.
 * See:        tests/unit/libkv/scale_test.c
 */
#ifndef SCALE_H
#define SCALE_H

#include "internal.h"

/* Group g as given: numbers above 0, where the layout (checked) has such scales. */
int scale_check(const struct kv_group *, uint32_t g);

/* Of a group's scales; false if it has none, or all are 1. */
bool scale_digest(const struct kv_group *, uint8_t out[KV_KEY_BYTES]);

/* Keeps this rank's part of group g's, which c->group[g] points to, and forgets the caller's. */
int scale_keep(struct kv_cache *, uint32_t g, bool shared);
void scale_drop(struct kv_cache *);

/* The scales of a call on a layer: *k and *v are what it was given, or NULL, and become what holds.
 * The group and the layer exist. */
int scale_of(const struct kv_cache *, uint32_t group, uint32_t layer, const float **k,
	     const float **v);

#endif
