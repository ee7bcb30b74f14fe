/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer - byte-pair encoding by score, with byte fallback
 *
 * Model:      ids 0 <unk>, 1 BOS, 2 EOS, 3..258 the 256 bytes, 259.. pieces. Encoding starts from
 *             characters and joins the adjacent pair whose concatenation is the piece with the
 *             best score, leftmost first, until none is left. Two dialects:
 *               llama2.c (tokenizer.bin)  characters are UTF-8 code points, a character without a
 *                                         piece falls back to its bytes, a space is put in front
 *                                         and the first piece after BOS loses its space again
 *               .kvm (inside the model)   characters are bytes, nothing is added or removed: any
 *                                         byte string, NUL included, encodes and decodes exactly
 * Invariants: every id in [0, vocab) has a piece of 1..TOKENIZER_MAX_PIECE bytes that is inside
 *             the tokenizer's own memory; the same input gives the same ids.
 * Ownership:  create/destroy; pieces returned by tokenizer_piece() live as long as the tokenizer.
 * Context:    read-only after loading, any number of threads.
 * Cost:       encoding n bytes is O(n) per join; n is at most TOKENIZER_MAX_TEXT.
 * Errors:     -EINVAL malformed or not for this vocabulary; -E2BIG text too long or ids too small;
 *             -ENOMEM. The fault names the file.      See: tests/unit/kvgen/tokenizer_test.c
 */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "blob.h"
#include "fault.h"

#define TOKENIZER_BOS		1
#define TOKENIZER_EOS		2
#define TOKENIZER_BYTE0		3	/* id of byte 0 */
#define TOKENIZER_PIECE0	259	/* id of the first piece that is no byte */
#define TOKENIZER_MAX_PIECE	256u
#define TOKENIZER_MAX_TEXT	65536u

struct tokenizer;

/* A llama2.c tokenizer.bin for a model with vocab tokens. */
int tokenizer_load(struct tokenizer **, const char *path, uint32_t vocab, struct fault *);
/* The same from memory; name stands for the file in messages. */
int tokenizer_parse(struct tokenizer **, const void *data, size_t len, const char *name,
		    uint32_t vocab, struct fault *);
/* The tokenizer section of a .kvm file: all of data. */
int tokenizer_parse_kvm(struct tokenizer **, const void *data, size_t len, const char *name,
			uint32_t vocab, struct fault *);
void tokenizer_destroy(struct tokenizer *);

/* Writes at most max ids, BOS first if asked; returns how many, or a negative errno. */
int tokenizer_encode(const struct tokenizer *, const void *text, size_t len, bool bos,
		     uint32_t *ids, uint32_t max);

/* The bytes that id stands for after prev (the id before it); 0 for unknown, BOS and EOS. */
size_t tokenizer_piece(const struct tokenizer *, uint32_t prev, uint32_t id, const uint8_t **piece);

uint32_t tokenizer_vocab(const struct tokenizer *);

#endif
