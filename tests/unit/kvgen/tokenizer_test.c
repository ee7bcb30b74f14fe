/* SPDX-License-Identifier: Apache-2.0 */
/* Both dialects: known encodings, exact round trips, refusals. */
#include "kvgen_test.h"

#include <errno.h>

#include "tokenizer.h"

static uint8_t *put_piece(uint8_t *p, float score, const void *bytes, uint32_t len)
{
	memcpy(p, &score, 4);
	memcpy(p + 4, &len, 4);
	memcpy(p + 8, bytes, len);
	return p + 8 + len;
}

/* Control tokens, bytes (spelled as the dialect does) and five pieces. */
static size_t make(uint8_t *p, bool spm)
{
	static const char *const pieces[] = { "a", "b", " ", "ab", "aba" };
	uint8_t *begin = p;
	char text[8];

	if (spm) {
		memcpy(p, &(uint32_t){ 3 }, 4);
		p += 4;
	}
	p = put_piece(p, 0, "<unk>", 5);
	p = put_piece(p, 0, "<s>", 3);
	p = put_piece(p, 0, "</s>", 4);
	for (unsigned int b = 0; b < 256; b++) {
		snprintf(text, sizeof(text), "<0x%02X>", b);
		p = spm ? put_piece(p, 0, text, 6) : put_piece(p, 0, &(uint8_t){ (uint8_t)b }, 1);
	}
	for (int i = 0; i < 5; i++)
		p = put_piece(p, (float)-i, pieces[i], (uint32_t)strlen(pieces[i]));
	return (size_t)(p - begin);
}

#define VOCAB 264

static struct tokenizer *tiny(bool spm)
{
	uint8_t data[4096];
	size_t len = make(data, spm);
	struct tokenizer *t = NULL;
	struct fault f = { .text = "" };
	int err = spm ? tokenizer_parse(&t, data, len, "tiny", VOCAB, &f)
		      : tokenizer_parse_kvm(&t, data, len, "tiny", VOCAB, &f);

	if (err)
		fail_msg("%s", f.text);
	assert_int_equal(tokenizer_vocab(t), VOCAB);
	return t;
}

static void check_ids(const struct tokenizer *t, const void *text, size_t len, const uint32_t *want,
		      int nr)
{
	uint32_t ids[64];

	assert_int_equal(tokenizer_encode(t, text, len, true, ids, 64), nr);
	for (int i = 0; i < nr; i++)
		assert_int_equal(ids[i], want[i]);
}

static void llama2c_dialect(void **state)
{
	struct tokenizer *t = tiny(true);
	const uint8_t *piece;

	(void)state;
	/* dummy space; "ab" before "aba"; unknown characters as bytes that never join */
	check_ids(t, "ababa", 5, (uint32_t[]){ 1, 261, 262, 263 }, 4);
	check_ids(t, "", 0, (uint32_t[]){ 1 }, 1);
	check_ids(t, "\xc3\xa9z", 3, (uint32_t[]){ 1, 261, 3 + 0xc3, 3 + 0xa9, 3 + 'z' }, 5);
	/* a space is stripped after BOS only */
	assert_int_equal(tokenizer_piece(t, TOKENIZER_BOS, 261, &piece), 0);
	assert_int_equal(tokenizer_piece(t, 259, 261, &piece), 1);
	assert_int_equal(tokenizer_piece(t, 259, 3 + 0xa9, &piece), 1);
	assert_int_equal(piece[0], 0xa9);
	assert_int_equal(tokenizer_piece(t, 259, TOKENIZER_BOS, &piece), 0);
	assert_int_equal(tokenizer_piece(t, 259, VOCAB, &piece), 0);
	tokenizer_destroy(t);
}

static void kvm_dialect(void **state)
{
	struct tokenizer *t = tiny(false);
	const uint8_t *piece;

	(void)state;
	check_ids(t, "ababa", 5, (uint32_t[]){ 1, 262, 263 }, 3);
	check_ids(t, " z\0", 3, (uint32_t[]){ 1, 3 + ' ', 3 + 'z', 3 }, 4);
	assert_int_equal(tokenizer_piece(t, TOKENIZER_BOS, 3 + ' ', &piece), 1);
	tokenizer_destroy(t);
}

static void limits(void **state)
{
	struct tokenizer *t = tiny(false);
	char *text = calloc(1, TOKENIZER_MAX_TEXT + 1);
	uint32_t ids[4];

	(void)state;
	assert_non_null(text);
	assert_int_equal(tokenizer_encode(t, "zzzz", 4, true, ids, 4), -E2BIG);
	assert_int_equal(tokenizer_encode(t, "zzzz", 4, false, ids, 4), 4);
	assert_int_equal(tokenizer_encode(t, text, TOKENIZER_MAX_TEXT + 1, false, ids, 4), -E2BIG);
	free(text);
	tokenizer_destroy(t);
}

static void refused(const uint8_t *data, size_t len, uint32_t vocab, const char *text)
{
	struct tokenizer *t = NULL;
	struct fault f = { .text = "" };
	uint8_t *copy = malloc(len + 1);

	assert_non_null(copy);
	memcpy(copy, data, len);
	assert_int_equal(tokenizer_parse(&t, copy, len, "tok.bin", vocab, &f), -EINVAL);
	free(copy);
	assert_null(t);
	assert_ptr_equal(strstr(f.text, "tok.bin: "), f.text);
	if (!strstr(f.text, text))
		fail_msg("expected \"%s\" in: %s", text, f.text);
}

static void malformed_files_are_refused(void **state)
{
	uint8_t data[4096], *token3 = data + 4 + 13 + 11 + 12;
	size_t len = make(data, true);

	(void)state;
	for (size_t n = 0; n < len; n += n < 64 ? 1 : 13)
		refused(data, n, VOCAB, "");
	refused(data, len, VOCAB - 1, "belongs to another model");
	refused(data, len, VOCAB + 1, "belongs to another model");
	refused(data, len, 1u << 18, "belongs to another model");
	refused(data, len, 12, "at least 259");
	token3[11] = '1';
	refused(data, len, VOCAB, "token 3 is not byte 0x00");
	token3[4] = 0;
	refused(data, len, VOCAB, "token 3 has length 0");
	token3[7] = 0x80;
	refused(data, len, VOCAB, "token 3 has length");
	memset(data, 0xff, 4);
	refused(data, len, VOCAB, "longest token");
}

static void tok512(void **state)
{
	const char *text = "Once upon a time, Lily said: \xe2\x82\xac 5!";
	struct tokenizer *t = NULL;
	struct fault f;
	uint32_t ids[64];
	char back[128] = "";
	const uint8_t *piece;
	int nr;

	(void)state;
	assert_int_equal(tokenizer_load(&t, kvgen_shared("tok512.bin"), 512, &f), 0);
	nr = tokenizer_encode(t, text, strlen(text), true, ids, 64);
	assert_true(nr > 2 && nr < 30);
	assert_int_equal(ids[1], 403);	/* "Once", as llama2.c has it */
	for (int i = 1; i < nr; i++) {
		size_t n = tokenizer_piece(t, ids[i - 1], ids[i], &piece);

		strncat(back, (const char *)piece, n);
	}
	assert_string_equal(back, text);
	tokenizer_destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(llama2c_dialect),
		cmocka_unit_test(kvm_dialect),
		cmocka_unit_test(limits),
		cmocka_unit_test(malformed_files_are_refused),
		cmocka_unit_test(tok512),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
