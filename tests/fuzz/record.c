// SPDX-License-Identifier: Apache-2.0
/* record - real traffic of libkv as inputs of dispatch_fuzz
 *
 *	record FOLDER
 *
 * Model:      an engine works on an embedded pool of dispatch_fuzz's size. dispatch_submit and
 *             dispatch_reply are wrapped (--wrap): each entry is written down with its input, ids
 *             in it by how long ago an answer named them. One file an engine, FOLDER/traffic-NN;
 *             the same files every time. What libkv never sends on its own is sent through its call
 *             layer, so that every opcode occurs; if one does not, it ends 1.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kv/kv.h>
#include "call.h"
#include "srv/dispatch.h"
#include "dispatch_input.h"

#define NR_FILES	36u
#define MAX_OPS		60u
#define MAX_BYTES	6000u	/* a file: it ends after the entry that crosses this */
#define MAX_IDS		2048u
#define MAX_IN		4095u
#define NR_CALLS	8u	/* one inside another */
#define SEQS		4u
#define PAGE		4u

int __real_dispatch_submit(struct exec *, const struct dispatch_client *, const struct kv_sqe *,
			   uint64_t, uint64_t, struct dispatch_pending *, struct kv_cqe *);
int __wrap_dispatch_submit(struct exec *, const struct dispatch_client *, const struct kv_sqe *,
			   uint64_t, uint64_t, struct dispatch_pending *, struct kv_cqe *);
void __real_dispatch_reply(const struct dispatch_client *, const struct dispatch_pending *,
			   const struct mm_reply *, struct kv_cqe *);
void __wrap_dispatch_reply(const struct dispatch_client *, const struct dispatch_pending *,
			   const struct mm_reply *, struct kv_cqe *);
int __real_exec_submit(struct exec *, const struct mm_request *, uint64_t);
int __wrap_exec_submit(struct exec *, const struct mm_request *, uint64_t);
void __wrap_exec_default_config(struct mm_config *, uint32_t, const uint64_t *, uint64_t);

struct sent {
	const struct dispatch_pending *pending;
	struct kv_sqe sqe;
	uint8_t in[MAX_IN];
};

static FILE *file;
static uint32_t client, nr_ids, nr_pages, ops[KV_NR_OPS];
static uint32_t ids[MAX_IDS];
static uint64_t pages[MAX_IDS];
static struct sent calls[NR_CALLS];
static uint64_t rng;

static _Noreturn void die(const char *what, const char *why)
{
	fprintf(stderr, "record: %s: %s\n", what, why);
	exit(1);
}

static uint32_t below(uint32_t n)
{
	rng = rng * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((rng >> 33) % n);
}

/* ---- writing down -------------------------------------------------------------------------- */

static void put8(uint32_t v)
{
	fputc((int)(v < 256 ? v : 0), file);
}

static void put16(uint32_t v)
{
	put8(v & 255);
	put8(v >> 8 & 255);
}

/* 0: none, or too long ago for a byte. */
static uint32_t id_ref(uint32_t id)
{
	for (uint32_t r = 1; id && r <= nr_ids && r < 256; r++)
		if (ids[nr_ids - r] == id)
			return r;
	return 0;
}

static uint32_t page_ref(uint64_t id)
{
	for (uint32_t r = 1; id && r <= nr_pages && r < 256; r++)
		if (pages[nr_pages - r] == id)
			return r;
	return 0;
}

static void remember_id(uint32_t id)
{
	if (id && nr_ids < MAX_IDS)
		ids[nr_ids++] = id;
}

static void remember_page(uint64_t id)
{
	if (id && nr_pages < MAX_IDS)
		pages[nr_pages++] = id;
}

static uint64_t u64_at(const uint8_t *at, uint64_t i)
{
	uint64_t v;

	memcpy(&v, at + 8 * i, sizeof(v));
	return v;
}

/* Where the ids of an input begin and how many there are. */
static uint32_t find_ids(const struct kv_sqe *s, const uint8_t *in, uint32_t *nr)
{
	struct kv_commit_in c;

	*nr = s->op == KV_OP_FREE || s->op == KV_OP_UNLEASE ? s->nr : 0;
	if (s->op != KV_OP_COMMIT)
		return 0;
	memcpy(&c, in, sizeof(c));
	*nr = c.nr_pages * c.nr_groups;
	return (uint32_t)sizeof(c) + ((4 * c.nr_tokens + 7) & ~7u);
}

static void put_patches(const struct kv_sqe *s, const uint8_t *in)
{
	uint32_t nr, off = find_ids(s, in, &nr), width = s->op == KV_OP_UNLEASE ? 4 : 8, lease;

	for (uint32_t i = 0; i < nr; i++) {
		put16(off + i * width);
		memcpy(&lease, in + off + i * width, sizeof(lease));
		put8(width == 4 ? id_ref(lease) : page_ref(u64_at(in + off, i)));
	}
}

static void put_entry(const struct kv_sqe *s, const uint8_t *in)
{
	uint32_t room = DISPATCH_DATA - DISPATCH_OUT, nr;

	find_ids(s, in, &nr);
	if (s->in_bytes > MAX_IN || nr > 255)
		die("an entry", "larger than dispatch_fuzz takes");
	if (ftell(file) > MAX_BYTES)
		return;
	ops[s->op]++;
	put8(DISPATCH_TRAFFIC << 2 | client);
	put8(s->op);
	put8(s->flags);
	put8(s->group);
	put8(id_ref(s->cache));
	put8(dispatch_id_given(s->op) ? id_ref(s->id) : s->id);
	put16(s->nr);
	put16((uint32_t)(s->arg >> DISPATCH_ARG_SHIFT));
	put16(s->in_bytes);
	put16(s->out_bytes < room ? s->out_bytes : room);
	put8(nr);
	fwrite(in, 1, s->in_bytes, file);
	put_patches(s, in);
	put8(0);
}

/* ---- listening in -------------------------------------------------------------------------- */

int __wrap_dispatch_submit(struct exec *x, const struct dispatch_client *c,
			   const struct kv_sqe *sqe, uint64_t cookie, uint64_t now_ns,
			   struct dispatch_pending *pending, struct kv_cqe *cqe)
{
	struct sent *s = calls;
	int ret;

	while (s < calls + NR_CALLS && s->pending)
		s++;
	if (s == calls + NR_CALLS)
		die("calls", "too many in flight");
	s->sqe = *sqe;
	memcpy(s->in, (uint8_t *)c->data + sqe->in_off, sqe->in_bytes < MAX_IN ? sqe->in_bytes : 0);
	ret = __real_dispatch_submit(x, c, sqe, cookie, now_ns, pending, cqe);
	if (ret != -EAGAIN)
		put_entry(&s->sqe, s->in);
	s->pending = ret == 0 ? pending : NULL;
	return ret;
}

static void saw_match(const struct kv_cqe *cqe, const uint8_t *out)
{
	struct kv_match_out m;

	memcpy(&m, out, sizeof(m));
	for (uint32_t i = 0; i < m.nr_pages * m.nr_groups; i++)
		remember_page(u64_at(out + sizeof(m), i));
	for (uint32_t g = 0; g < KV_MAX_GROUPS; g++)
		remember_page(m.tail_pages[g]);
	remember_id(cqe->id);
	remember_id(m.tail_lease);
}

static void saw_commit(const struct sent *s, const struct kv_cqe *cqe, const uint8_t *out)
{
	uint32_t nr, off = find_ids(&s->sqe, s->in, &nr);

	for (uint32_t i = 0; i < nr; i++)
		if (u64_at(out, i) != u64_at(s->in + off, i))
			remember_page(u64_at(out, i));
	remember_id(cqe->id);
}

static void saw_answer(const struct sent *s, const struct kv_cqe *cqe, const uint8_t *out)
{
	switch (s->sqe.op) {
	case KV_OP_ALLOC:
		for (uint32_t i = 0; i < cqe->nr; i++)
			remember_page(u64_at(out, i));
		break;
	case KV_OP_LOOKUP:
	case KV_OP_RESUME:
		saw_match(cqe, out);
		break;
	case KV_OP_COMMIT:
		saw_commit(s, cqe, out);
		break;
	case KV_OP_CACHE_OPEN:
	case KV_OP_LEASE_DUP:
	case KV_OP_PARK:
		remember_id(cqe->id);
		break;
	}
}

void __wrap_dispatch_reply(const struct dispatch_client *c, const struct dispatch_pending *pending,
			   const struct mm_reply *r, struct kv_cqe *cqe)
{
	struct sent *s = calls;

	__real_dispatch_reply(c, pending, r, cqe);
	while (s < calls + NR_CALLS && s->pending != pending)
		s++;
	if (s == calls + NR_CALLS)
		die("an answer", "nobody asked");
	if (cqe->res == 0)
		saw_answer(s, cqe, (uint8_t *)c->data + pending->out_off);
	s->pending = NULL;
}

/* Imports do not go through dispatch. */
int __wrap_exec_submit(struct exec *x, const struct mm_request *req, uint64_t now_ns)
{
	for (uint32_t r = 1; req->op == MM_IMPORT && r <= nr_pages && r < 255; r++) {
		if (mm_page_extent(pages[nr_pages - r]) != req->map.extent)
			continue;
		put8(DISPATCH_IMPORT << 2 | client);
		put8(r - 1);
		put8(req->map.shard);
		break;
	}
	return __real_exec_submit(x, req, now_ns);
}

void __wrap_exec_default_config(struct mm_config *cfg, uint32_t nr_devices, const uint64_t *bytes,
				uint64_t extent_bytes)
{
	(void)nr_devices;
	(void)bytes;
	(void)extent_bytes;
	*cfg = dispatch_config();
}

/* ---- an engine at work --------------------------------------------------------------------- */

static struct kv *kv;
static struct kv_cache *cache;
static struct kv_seq *seqs[SEQS];
static uint32_t last_group;	/* the window one, if there is one */

static void open_cache(uint32_t kind)
{
	struct kv_cache_params p = { .model = kind & 1 ? "traffic" : NULL, .nr_groups = 1,
				     .nr_shards = 1 };

	p.group[0].layout = (struct kv_layout){ .kind = KV_GQA, .dtype = KV_F32, .layers = 2,
						.kv_heads = 2, .head_dim = 8, .head_dim_v = 8,
						.page_tokens = PAGE };
	p.group[0].kind = KV_GROUP_FULL;
	if (kind & 2) {
		p.group[1] = p.group[0];
		p.group[1].kind = KV_GROUP_WINDOW;
		p.group[1].window_tokens = 2 * PAGE;
		p.nr_groups = 2;
	}
	last_group = p.nr_groups - 1;
	if (kv_cache_open(kv, &p, &cache))
		die("cache", kv_error());
}

static void begin(struct kv_seq **s)
{
	uint32_t prompt[24], n = 1 + below(24), hit = 0;

	if (kv_seq_create(cache, NULL, 0, s)) {
		*s = NULL;
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		prompt[i] = i < 12 ? 7 : below(2);
	if (kv_seq_match(*s, prompt, n, &hit) == 0)
		kv_seq_append(*s, prompt + hit, n - hit);
}

static void work(uint32_t what)
{
	struct kv_seq **s = &seqs[below(SEQS)], **to = &seqs[below(SEQS)];
	uint32_t more[6] = { 0, 1, 1, 0, 1, 1 }, len = 0;

	if (!*s) {
		begin(s);
		return;
	}
	if (what < 4) {
		kv_seq_append(*s, more, 1 + what);
	} else if (what == 7 && kv_seq_committed(*s) >= PAGE) {
		kv_seq_hint(*s, 0, PAGE, &(struct kv_hint){ .priority = below(3), .ttl_ms = 9 });
	} else if (what < 8) {
		kv_seq_commit(*s, kv_seq_len(*s));
	} else if (what < 10 && !*to) {
		if (kv_seq_fork(*s, to))
			*to = NULL;
	} else if (what == 10) {
		kv_seq_truncate(*s, below(kv_seq_len(*s) + 1));
	} else if (what == 11) {
		kv_seq_drop_head(*s, last_group, kv_seq_len(*s) / 2);
	} else if (what < 14) {
		if (kv_seq_park(*s) == 0 && what == 12)
			kv_seq_resume(*s, &len);
	} else {
		kv_seq_release(*s);
		*s = NULL;
	}
}

/* A pool of one engine asks for little: these come from others otherwise. */
static void send_rare(void)
{
	static const uint8_t rare[] = { KV_OP_NOP, KV_OP_PRESSURE_ACK, KV_OP_VACATE_ACK,
					KV_OP_UNIMPORT };
	struct kv_info info;

	for (uint32_t i = 0; i < sizeof(rare); i++)
		call_plain(kv, &(struct kv_sqe){ .op = rare[i], .id = rare[i] ? 1 : 0 }, NULL);
	kv_reserve(kv, 0, 2 * MIB, KV_RESERVE_WEIGHTS);
	kv_info(kv, &info);
	kv_reserve(kv, 0, 0, KV_RESERVE_WEIGHTS);
	event_serve(kv, EVENT_CALLBACK);
}

static void record(const char *folder, uint32_t n)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/traffic-%02u", folder, n);
	file = fopen(path, "wb");
	if (!file)
		die(path, strerror(errno));
	rng = n * 2654435761u + 1;
	client = n % 3;
	nr_ids = nr_pages = 0;
	put8(n & 1);
	if (kv_open("embedded:host:16M", NULL, &kv))
		die("open", kv_error());
	open_cache(n);
	for (uint32_t i = 0; i < 4 + n * MAX_OPS / NR_FILES; i++)
		work(below(16));
	if (n % 4 == 0)
		send_rare();
	for (uint32_t i = 0; i < SEQS; i++)
		kv_seq_release(seqs[i]);
	memset(seqs, 0, sizeof(seqs));
	kv_close(kv);
	if (fclose(file))
		die(path, strerror(errno));
}

int main(int argc, char **argv)
{
	int rc = 0;

	if (argc != 2) {
		fputs("usage: record FOLDER\n", stderr);
		return 2;
	}
	for (uint32_t n = 0; n < NR_FILES; n++)
		record(argv[1], n);
	for (uint32_t op = 0; op < KV_NR_OPS; op++) {
		printf("%-14s %4u\n", dispatch_op_name(op), ops[op]);
		if (!ops[op])
			rc = 1;
	}
	return rc;
}
