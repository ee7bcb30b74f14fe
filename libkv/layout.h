/* SPDX-License-Identifier: Apache-2.0 */
/* layout - where rows stand in a page, as the kernels want it (public part: kv/layout.h)
 *
 * Model:      one layer of one group is a struct kern_view; the view of layer n is that of layer 0
 *             moved by n * layer_stride. Nothing outside layout.c computes an offset or a size.
 * Ownership:  pure functions; the caller owns both structs.
 * Context:    any thread; never allocates, never blocks.
 * Units:      bytes from the page base.
 * Errors:     -EOPNOTSUPP for an opaque layout (nobody looks inside), -EINVAL for a layer it does
 *             not have; err_set() has the text. The layout itself is taken as checked.
 * See:        kernels/kernels.h, tests/unit/libkv/layout_test.c
 */
#ifndef LAYOUT_H
#define LAYOUT_H

#include <kv/layout.h>

#include "kernels.h"

int layout_kern_view(const struct kv_layout *, uint32_t layer, struct kern_view *);

/* Copies what a page's first tokens tokens hold, all layers; an opaque page is copied whole. */
void layout_copy_tokens(const struct kv_layout *, uint64_t dst_page, uint64_t src_page,
			uint32_t tokens);

#endif
