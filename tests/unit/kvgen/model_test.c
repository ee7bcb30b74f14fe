/* SPDX-License-Identifier: Apache-2.0 */
/* Loading: what is right is accepted, everything else is refused with a line that helps. */
#include "kvgen_test.h"

#include <errno.h>
#include <sys/stat.h>

#include "model.h"

enum field {
	F_VERSION = 1, F_ATTN, F_TYPE, F_DIM, F_HIDDEN, F_LAYERS, F_HEADS, F_KV_HEADS, F_HEAD_DIM,
	F_RANK, F_ROPE, F_NOPE, F_V, F_VOCAB, F_THETA, F_EPS, F_MAX_POS, F_TOKENIZER, NR_FIELDS
};

/* A file under construction. */
struct image {
	uint8_t *data;
	size_t len;
};

static void put32(uint8_t *p, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(value >> 8 * i);
}

static uint32_t get32(const uint8_t *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void seal(struct image *im)
{
	uint32_t crc = ~0u;

	for (size_t i = 0; i < im->len - 4; i++) {
		crc ^= im->data[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
	}
	put32(im->data + im->len - 4, ~crc);
}

static size_t put_tokenizer(uint8_t *p, uint32_t vocab)
{
	uint8_t *begin = p;

	for (uint32_t id = 0; id < vocab; id++) {
		uint32_t len = id < 3 || id >= TOKENIZER_PIECE0 ? 2 : 1;

		put32(p, 0);
		put32(p + 4, len);
		p[8] = (uint8_t)(len == 1 ? id - 3 : 'a' + id % 26);
		p[9] = (uint8_t)id;
		p += 8 + len;
	}
	return (size_t)(p - begin);
}

/* A valid tiny .kvm: width 8, hidden 16, 2 layers, 2 heads. */
static struct image make_kvm(enum model_attn attn)
{
	const uint32_t gqa[] = { 1, 8, 0, 0, 0, 0 }, mla[] = { 0, 0, 16, 8, 4, 4 };
	const uint32_t vocab = 260, dim = 8, hidden = 16, layers = 2;
	struct image im = { .data = calloc(1, 1 << 16) };
	uint32_t attn_size = attn == MODEL_GQA ?
		dim * 16 + 2 * dim * 8 + dim * 16 :
		dim * 24 + dim * 24 + 16 + 8 * 16 + 8 * 16 + dim * 8;
	size_t nr = vocab * dim + layers * (attn_size + 2 * dim + 3 * dim * hidden) + dim;
	size_t start;

	assert_non_null(im.data);
	memcpy(im.data, "KVM1", 4);
	put32(im.data + 4 * F_VERSION, 1);
	put32(im.data + 4 * F_ATTN, attn);
	put32(im.data + 4 * F_TYPE, 1);
	put32(im.data + 4 * F_DIM, dim);
	put32(im.data + 4 * F_HIDDEN, hidden);
	put32(im.data + 4 * F_LAYERS, layers);
	put32(im.data + 4 * F_HEADS, 2);
	for (int i = 0; i < 6; i++)
		put32(im.data + 4 * (F_KV_HEADS + i), attn == MODEL_GQA ? gqa[i] : mla[i]);
	put32(im.data + 4 * F_VOCAB, vocab);
	put32(im.data + 4 * F_THETA, 0x461c4000);	/* 10000 */
	put32(im.data + 4 * F_EPS, 0x3727c5ac);		/* 1e-5 */
	put32(im.data + 4 * F_MAX_POS, 32);
	put32(im.data + 4 * F_TOKENIZER, (uint32_t)put_tokenizer(im.data + 128, vocab));
	start = (128 + get32(im.data + 4 * F_TOKENIZER) + 63) / 64 * 64;
	for (size_t i = 0; i < nr; i++)
		im.data[start + 2 * i + 1] = (uint8_t)(i % 2 ? 0x3d : 0xbd);
	im.len = start + 2 * nr + 4;
	assert_true(im.len <= 1 << 16);
	seal(&im);
	return im;
}

/* A valid tiny v0: width 16, hidden 8, 1 layer, 2 heads, 1 KV head, 260 tokens, 4 positions. */
static struct image make_v0(bool own_classifier)
{
	uint32_t vocab = 260;
	const uint32_t head[] = { 16, 8, 1, 2, 1, own_classifier ? -vocab : vocab, 4 };
	size_t nr = 16 * vocab + 16 + 16 * 16 + 2 * 16 * 8 + 16 * 16 + 16 + 3 * 16 * 8 + 16 +
		    4 * 8 + (own_classifier ? 16 * vocab : 0);
	struct image im = { .data = calloc(1, 1 << 16), .len = 28 + 4 * nr };

	assert_non_null(im.data);
	assert_true(im.len <= 1 << 16);
	for (int i = 0; i < 7; i++)
		put32(im.data + 4 * i, head[i]);
	for (size_t i = 0; i < nr; i++)
		put32(im.data + 28 + 4 * i, i % 2 ? 0x3d000000 : 0xbd000000);
	return im;
}

/* Parses a copy of exactly len bytes, so that a sanitizer sees any read past them. */
static int parse(const struct image *im, size_t len, struct model **m, struct fault *f)
{
	uint8_t *copy = malloc(len ? len : 1);
	int err;

	assert_non_null(copy);
	memcpy(copy, im->data, len);
	*m = NULL;
	f->text[0] = 0;
	err = model_parse(m, copy, len, "tiny.kvm", f);
	free(copy);
	return err;
}

static void refused(const struct image *im, size_t len, const char *text)
{
	struct model *m;
	struct fault f;

	assert_int_equal(parse(im, len, &m, &f), -EINVAL);
	assert_null(m);
	assert_ptr_equal(strstr(f.text, "tiny.kvm: "), f.text);
	assert_null(strchr(f.text, '\n'));
	if (!strstr(f.text, text))
		fail_msg("expected \"%s\" in: %s", text, f.text);
}

static void accepted(const struct image *im)
{
	struct model *m;
	struct fault f;

	if (parse(im, im->len, &m, &f))
		fail_msg("%s", f.text);
	assert_ptr_equal(m->embed, m->weights);
	model_destroy(m);
}

static void valid_files_load(void **state)
{
	struct image im;

	(void)state;
	for (int attn = MODEL_GQA; attn <= MODEL_MLA; attn++) {
		im = make_kvm(attn);
		accepted(&im);
		free(im.data);
	}
	for (int own = 0; own < 2; own++) {
		im = make_v0(own);
		accepted(&im);
		free(im.data);
	}
}

static void every_truncation_is_refused(void **state)
{
	struct image im[] = { make_kvm(MODEL_GQA), make_kvm(MODEL_MLA), make_v0(false) };

	(void)state;
	for (int i = 0; i < 3; i++) {
		for (size_t len = 0; len < im[i].len; len += len < 300 ? 1 : 97)
			refused(&im[i], len, "cut short");
		refused(&im[i], im[i].len - 1, "cut short");
		im[i].data[im[i].len] = 0;
		refused(&im[i], im[i].len + 1, "cut short");
		free(im[i].data);
	}
}

/* Any flipped bit: the checksum, if nothing before it. */
static void every_flip_is_refused(void **state)
{
	struct image im = make_kvm(MODEL_MLA);

	(void)state;
	for (size_t i = 0; i < im.len; i += i < 256 ? 1 : 61)
		for (int bit = 0; bit < 8; bit++) {
			im.data[i] ^= (uint8_t)(1 << bit);
			refused(&im, im.len, "");
			im.data[i] ^= (uint8_t)(1 << bit);
		}
	accepted(&im);
	free(im.data);
}

struct bad {
	enum field field;
	uint32_t value;
	const char *text;
};

static void check_bad(enum model_attn attn, const struct bad *bad, size_t nr)
{
	struct image im = make_kvm(attn);

	for (size_t i = 0; i < nr; i++) {
		uint8_t *at = im.data + 4 * bad[i].field;
		uint32_t old = get32(at);

		put32(at, bad[i].value);
		seal(&im);
		refused(&im, im.len, bad[i].text);
		put32(at, old);
	}
	free(im.data);
}

/* With a matching checksum, so that the header's own checks are what refuses. */
static void bad_headers_are_refused(void **state)
{
	const struct bad any[] = {
		{ F_VERSION, 0, "version" },	{ F_VERSION, 2, "version" },
		{ F_ATTN, 0, "attention" },	{ F_ATTN, 3, "attention" },
		{ F_TYPE, 0, "weight type" },	{ F_TYPE, 9, "weight type" },
		{ F_DIM, 0, "width 0" },	{ F_DIM, 8193, "width" },
		{ F_DIM, 9, "promises" },	{ F_HIDDEN, 0, "hidden" },
		{ F_HIDDEN, ~0u, "hidden" },	{ F_HIDDEN, 17, "promises" },
		{ F_LAYERS, 0, "layers" },	{ F_LAYERS, 257, "layers" },
		{ F_LAYERS, 3, "promises" },	{ F_HEADS, 0, "heads" },
		{ F_HEADS, ~0u, "heads" },	{ F_HEADS, 4, "promises" },
		{ F_VOCAB, 0, "vocabulary" },	{ F_VOCAB, 258, "vocabulary" },
		{ F_VOCAB, ~0u, "vocabulary" },	{ F_VOCAB, 261, "promises" },
		{ F_THETA, 0, "theta" },	{ F_THETA, 0x7fc00000, "theta" },
		{ F_EPS, 0, "eps" },		{ F_EPS, 0xff800000, "eps" },
		{ F_MAX_POS, 0, "positions" },	{ F_MAX_POS, ~0u, "positions" },
		{ F_TOKENIZER, 0, "promises" },	{ F_TOKENIZER, ~0u, "promises" },
		{ NR_FIELDS, 1, "reserved" },	{ 31, 1, "reserved" },
	};
	const struct bad gqa[] = {
		{ F_KV_HEADS, 0, "kv heads" },	{ F_KV_HEADS, 3, "kv heads" },
		{ F_HEADS, 3, "promises" },	{ F_HEAD_DIM, 0, "head width" },
		{ F_HEAD_DIM, 12, "head width" }, { F_HEAD_DIM, 584, "head width" },
		{ F_RANK, 8, "MLA" },		{ F_V, ~0u, "MLA" },
		{ F_ATTN, MODEL_MLA, "kv heads" },
	};
	const struct bad mla[] = {
		{ F_RANK, 0, "rank" },		{ F_RANK, 12, "rank" },
		{ F_RANK, 576, "rope" },	{ F_ROPE, 0, "rope" },
		{ F_ROPE, 4, "rope" },		{ F_ROPE, ~7u, "rope" },
		{ F_NOPE, 0, "nope" },		{ F_NOPE, 577, "nope" },
		{ F_V, 0, "v width" },		{ F_V, 5, "promises" },
		{ F_KV_HEADS, 1, "kv heads" },	{ F_HEAD_DIM, 8, "head width" },
		{ F_ATTN, MODEL_GQA, "kv heads" },
	};

	(void)state;
	check_bad(MODEL_GQA, any, sizeof(any) / sizeof(*any));
	check_bad(MODEL_MLA, any, sizeof(any) / sizeof(*any));
	check_bad(MODEL_GQA, gqa, sizeof(gqa) / sizeof(*gqa));
	check_bad(MODEL_MLA, mla, sizeof(mla) / sizeof(*mla));
}

static void bad_v0_headers_are_refused(void **state)
{
	const uint32_t values[] = { 0, 3, 5, 7, 1000, 65536, 0x7fffffff, 0x80000000, ~0u };
	struct image im = make_v0(false);

	(void)state;
	for (int field = 0; field < 7; field++)
		for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
			uint32_t old = get32(im.data + 4 * field);

			put32(im.data + 4 * field, values[i]);
			refused(&im, im.len, "");
			put32(im.data + 4 * field, old);
		}
	memcpy(im.data, "GGUF", 4);
	refused(&im, im.len, "convert");
	free(im.data);
}

static void bad_bodies_are_refused(void **state)
{
	struct image im = make_v0(false);

	(void)state;
	put32(im.data + 28 + 40, 0x7fc00000);
	refused(&im, im.len, "weight 10 is not finite");
	free(im.data);

	im = make_kvm(MODEL_GQA);
	put32(im.data + 128 + 4, 0);		/* length of token 0 */
	seal(&im);
	refused(&im, im.len, "token 0 has length 0");
	put32(im.data + 128 + 4, ~0u);
	seal(&im);
	refused(&im, im.len, "token 0 has length");
	put32(im.data + 128 + 4, 3);		/* shifts all that follows */
	seal(&im);
	refused(&im, im.len, "token 1");
	put32(im.data + 128 + 4, 2);
	im.data[128 + 30 + 8] = 'x';		/* token 3 is byte 0 */
	seal(&im);
	refused(&im, im.len, "token 3 is not byte 0x00");
	free(im.data);
}

/* ---- paths ---- */

static void refused_path(const char *path, int err, const char *text)
{
	struct model *m = NULL;
	struct fault f = { .text = "" };

	assert_int_equal(model_load(&m, path, &f), err);
	assert_null(m);
	assert_ptr_equal(strstr(f.text, path), f.text);
	if (!strstr(f.text, text))
		fail_msg("expected \"%s\" in: %s", text, f.text);
}

static void paths_that_are_no_files(void **state)
{
	char dir[] = "/tmp/kvgen-model-XXXXXX", path[64];
	FILE *file;

	(void)state;
	assert_non_null(mkdtemp(dir));
	refused_path(dir, -EINVAL, "regular file");
	refused_path("/dev/zero", -EINVAL, "regular file");
	snprintf(path, sizeof(path), "%s/absent", dir);
	refused_path(path, -ENOENT, "No such file");
	snprintf(path, sizeof(path), "%s/x", dir);
	assert_int_equal(mkfifo(path, 0600), 0);
	refused_path(path, -EINVAL, "regular file");
	unlink(path);
	file = fopen(path, "w");
	assert_non_null(file);
	fclose(file);
	refused_path(path, -EINVAL, "empty");
	assert_int_equal(truncate(path, (off_t)MODEL_MAX_BYTES + 1), 0);
	refused_path(path, -EINVAL, "smaller model");
	unlink(path);
	rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(valid_files_load),
		cmocka_unit_test(every_truncation_is_refused),
		cmocka_unit_test(every_flip_is_refused),
		cmocka_unit_test(bad_headers_are_refused),
		cmocka_unit_test(bad_v0_headers_are_refused),
		cmocka_unit_test(bad_bodies_are_refused),
		cmocka_unit_test(paths_that_are_no_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
