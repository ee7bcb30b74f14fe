/* SPDX-License-Identifier: Apache-2.0 */
/* attn - the command `kvbench attn`: one call, or the suite of all that has a goal
 *
 * Errors:     exit status 0; 1 if a run failed, 2 for a wrong command line, 3 if a run is void.
 */
#ifndef ATTN_H
#define ATTN_H

#include "attn_run.h"
#include "emit.h"

#define ATTN_EXIT_VOID 3

int attn_main(int argc, char **argv);

/* Both return 0, -errno after a line on stderr, or ATTN_EXIT_VOID. */
int attn_one(const struct attn_shape *, const struct attn_opts *, struct emit *);
int attn_suite(const struct attn_opts *, struct emit *);

#endif
