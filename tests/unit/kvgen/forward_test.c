/* SPDX-License-Identifier: Apache-2.0 */
/* Greedy text of real models through the whole forward pass, in every attention form. */
#include "kvgen_test.h"

#include <errno.h>

#include "ops.h"

#define MAX_TOKENS 1024

struct run {
	struct model *m;
	struct tokenizer *tok;
	struct forward *fw;
	struct mem_kv kv;
	struct attn_backend b;
	float *logits;
	uint32_t ids[MAX_TOKENS];	/* BOS, prompt, what was generated (a last BOS included) */
	float top[MAX_TOKENS];		/* the top logit after each position */
	uint32_t nr;
};

static void run_begin(struct run *r, struct model *m, enum forward_mode mode, uint32_t chunk)
{
	struct fault f;

	memset(r, 0, sizeof(*r));
	r->m = m;
	r->tok = m->tokenizer;
	assert_int_equal(forward_create(&r->fw, m, mode, chunk, &f), 0);
	r->b = mem_create(&r->kv, r->fw);
	r->logits = malloc(m->d.vocab * sizeof(float));
	assert_non_null(r->logits);
}

static void run_end(struct run *r)
{
	forward_destroy(r->fw);
	mem_destroy(&r->kv);
	free(r->logits);
}

/* llama2.c's loop: at most limit positions are computed; BOS ends the text. */
static void run_greedy(struct run *r, uint32_t chunk, uint32_t limit)
{
	uint32_t pos = 0;

	while (pos < limit) {
		uint32_t n = r->nr - pos < chunk ? r->nr - pos : chunk;

		assert_int_equal(forward_step(r->fw, &r->b, r->ids + pos, n, pos, r->logits), 0);
		pos += n;
		if (pos < r->nr)
			continue;
		r->ids[r->nr] = ops_argmax(r->logits, r->m->d.vocab);
		r->top[pos - 1] = r->logits[r->ids[r->nr]];
		if (r->ids[r->nr++] == TOKENIZER_BOS)
			break;
	}
}

static char *run_text(const struct run *r, const struct tokenizer *tok)
{
	char *text = calloc(r->nr + 1, TOKENIZER_MAX_PIECE);
	const uint8_t *piece;
	size_t at = 0;

	assert_non_null(text);
	for (uint32_t i = 1; i < r->nr; i++) {
		size_t n = tokenizer_piece(tok, r->ids[i - 1], r->ids[i], &piece);

		if (n)
			memcpy(text + at, piece, n);
		at += n;
	}
	return text;
}

static struct model *load(const char *path)
{
	struct model *m = NULL;
	struct fault f = { .text = "" };

	if (model_load(&m, path, &f))
		fail_msg("%s", f.text);
	return m;
}

/* ---- stories260K against llama2.c's own output ---- */

static void check_text(const struct run *r)
{
	struct tokenizer *tok = NULL;
	struct fault f;
	size_t len;
	uint8_t *want;
	char *text;

	assert_int_equal(tokenizer_load(&tok, kvgen_shared("tok512.bin"), 512, &f), 0);
	want = kvgen_slurp(kvgen_shared("ref_greedy_n200.txt"), &len);
	text = run_text(r, tok);
	strcat(text, "\n");
	assert_string_equal(text, (char *)want);
	free(text);
	free(want);
	tokenizer_destroy(tok);
}

static void check_tokens(const struct run *r)
{
	FILE *file = fopen(kvgen_shared("ref_greedy_tokens.tsv"), "r");
	unsigned int pos, in, next;
	float top, gap;
	char line[128];
	uint32_t nr = 0;

	assert_non_null(file);
	assert_non_null(fgets(line, sizeof(line), file));
	while (fgets(line, sizeof(line), file)) {
		assert_int_equal(sscanf(line, "%u %u %u %f %f", &pos, &in, &next, &top, &gap), 5);
		assert_int_equal(pos, nr);
		assert_int_equal(r->ids[pos], in);
		assert_int_equal(r->ids[pos + 1], next);
		assert_float_equal(r->top[pos], top, 1e-3);
		nr++;
	}
	fclose(file);
	assert_int_equal(nr, 346);
	assert_int_equal(r->nr, nr + 1);
}

static void check_stories260k(enum forward_mode mode)
{
	struct model *m = load(kvgen_shared("stories260K.bin"));
	struct run r;

	run_begin(&r, m, mode, 1);
	r.ids[r.nr++] = TOKENIZER_BOS;
	run_greedy(&r, 1, 200);
	check_text(&r);
	r.ids[0] = TOKENIZER_BOS;
	r.nr = 1;
	run_greedy(&r, 1, 512);
	check_tokens(&r);
	run_end(&r);
	model_destroy(m);
}

static void stories260k_gqa(void **state)
{
	(void)state;
	check_stories260k(FORWARD_NATIVE);
}

static void stories260k_as_mla(void **state)
{
	(void)state;
	check_stories260k(FORWARD_AS_MLA);
}

/* ---- our own models: what the training framework printed for the same weights ---- */

#include "pinned.h"

static void check_pinned(const char *file, enum forward_mode mode, uint32_t chunk,
			 const char *prompt, const char *want)
{
	struct model *m = load(kvgen_path(file));
	struct run r;
	char *text;
	int n;

	run_begin(&r, m, mode, chunk);
	n = tokenizer_encode(m->tokenizer, prompt, strlen(prompt), true, r.ids, MAX_TOKENS);
	assert_true(n > 0);
	r.nr = (uint32_t)n;
	run_greedy(&r, chunk, 299);
	text = run_text(&r, m->tokenizer);
	assert_string_equal(text, want);
	free(text);
	run_end(&r);
	model_destroy(m);
}

static void pinned_mha(void **state)
{
	(void)state;
	check_pinned(PINNED_MHA, FORWARD_NATIVE, 1, "", pinned_mha_free);
	check_pinned(PINNED_MHA, FORWARD_NATIVE, 64, PINNED_PROMPT, pinned_mha_prompt);
}

static void pinned_mha_as_mla(void **state)
{
	(void)state;
	check_pinned(PINNED_MHA, FORWARD_AS_MLA, 1, "", pinned_mha_free);
	check_pinned(PINNED_MHA, FORWARD_AS_MLA, 64, PINNED_PROMPT, pinned_mha_prompt);
}

static void pinned_mla(void **state)
{
	(void)state;
	check_pinned(PINNED_MLA, FORWARD_NATIVE, 1, "", pinned_mla_free);
	check_pinned(PINNED_MLA, FORWARD_NATIVE, 64, PINNED_PROMPT, pinned_mla_prompt);
}

/* ---- the step itself ---- */

/* The last logits of a fixed token sequence, computed in chunks. */
static void logits_in_chunks(struct model *m, enum forward_mode mode, uint32_t chunk, float *out)
{
	uint32_t nr = 100, n;
	struct run r;

	run_begin(&r, m, mode, chunk);
	for (uint32_t i = 0; i < nr; i++)
		r.ids[i] = i ? (i * 37 + 11) % m->d.vocab : TOKENIZER_BOS;
	for (uint32_t pos = 0; pos < nr; pos += n) {
		n = nr - pos < chunk ? nr - pos : chunk;
		assert_int_equal(forward_step(r.fw, &r.b, r.ids + pos, n, pos,
					      pos + n == nr ? out : NULL), 0);
	}
	run_end(&r);
}

static void check_chunks(const char *file, enum forward_mode mode)
{
	struct model *m = load(kvgen_path(file));
	size_t bytes = m->d.vocab * sizeof(float);
	float *one = malloc(bytes), *many = malloc(bytes);

	assert_non_null(one);
	assert_non_null(many);
	logits_in_chunks(m, mode, 1, one);
	for (uint32_t chunk = 7; chunk <= 128; chunk += 57) {
		logits_in_chunks(m, mode, chunk, many);
		assert_memory_equal(one, many, bytes);
	}
	free(one);
	free(many);
	model_destroy(m);
}

static void chunks_do_not_matter(void **state)
{
	(void)state;
	check_chunks(PINNED_MHA, FORWARD_NATIVE);
	check_chunks(PINNED_MHA, FORWARD_AS_MLA);
	check_chunks(PINNED_MLA, FORWARD_NATIVE);
}

static void step_refuses(void **state)
{
	struct model *m = load(kvgen_path(PINNED_MHA));
	uint32_t bad = m->d.vocab;
	struct run r;

	(void)state;
	run_begin(&r, m, FORWARD_NATIVE, 8);
	assert_int_equal(forward_step(r.fw, &r.b, r.ids, 0, 0, NULL), -EINVAL);
	assert_int_equal(forward_step(r.fw, &r.b, r.ids, 9, 0, NULL), -EINVAL);
	assert_int_equal(forward_step(r.fw, &r.b, r.ids, 1, m->d.max_pos, NULL), -EINVAL);
	assert_int_equal(forward_step(r.fw, &r.b, r.ids, 2, m->d.max_pos - 1, NULL), -EINVAL);
	assert_int_equal(forward_step(r.fw, &r.b, &bad, 1, 0, NULL), -EINVAL);
	r.kv.fail_layer = 2;
	assert_int_equal(forward_step(r.fw, &r.b, r.ids, 1, 0, NULL), -5);
	run_end(&r);
	model_destroy(m);
}

static void create_refuses(void **state)
{
	struct model *mha = load(kvgen_path(PINNED_MHA)), *mla = load(kvgen_path(PINNED_MLA));
	struct forward *fw = NULL;
	struct fault f;

	(void)state;
	assert_int_equal(forward_create(&fw, mha, FORWARD_NATIVE, 0, &f), -EINVAL);
	assert_int_equal(forward_create(&fw, mha, FORWARD_NATIVE, 513, &f), -EINVAL);
	assert_int_equal(forward_create(&fw, mla, FORWARD_AS_MLA, 1, &f), -EINVAL);
	mha->d.kv_heads = mha->d.heads = 16;	/* rows of 1,024 elements */
	assert_int_equal(forward_create(&fw, mha, FORWARD_AS_MLA, 1, &f), -EINVAL);
	assert_non_null(strstr(f.text, "576"));
	assert_null(fw);
	model_destroy(mha);
	model_destroy(mla);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stories260k_gqa),
		cmocka_unit_test(stories260k_as_mla),
		cmocka_unit_test(pinned_mha),
		cmocka_unit_test(pinned_mha_as_mla),
		cmocka_unit_test(pinned_mla),
		cmocka_unit_test(chunks_do_not_matter),
		cmocka_unit_test(step_refuses),
		cmocka_unit_test(create_refuses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
