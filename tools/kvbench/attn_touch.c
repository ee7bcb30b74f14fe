// SPDX-License-Identifier: Apache-2.0
/* attn_touch - contract in attn_touch.h */
#include "attn_touch.h"

#define LINE 64u

typedef uint64_t wide __attribute__((vector_size(64), aligned(8), may_alias));

/* What is read goes here, so that reading is not for nothing. */
static volatile uint64_t sink;

struct run {
	const uint64_t *page;
	uint32_t nr;
	uint64_t off, bytes;	/* of each page */
};

/* One step of one page: lines lines from b on, and ahead bytes earlier a line is asked for, at a
 * page's end one of the page that comes after it. */
__attribute__((always_inline)) static inline uint64_t step(const struct run *r, uint32_t page,
							    uint32_t after, uint64_t b,
							    uint32_t lines, uint32_t ahead)
{
	const char *at = (const char *)r->page[page] + r->off + b;
	const char *soon = at + ahead;
	uint64_t sum = 0;
	uint32_t i;

	if (ahead && b + ahead >= r->bytes)
		soon = (const char *)r->page[after] + r->off + b + ahead - r->bytes;
	for (i = 0; i < lines; i++) {
		if (ahead)
			__builtin_prefetch(soon + i * LINE);
		sum += *(const uint64_t *)(at + i * LINE);
	}
	return sum;
}

/* Reads lanes pages in lockstep. All but run is constant where it is called. */
__attribute__((always_inline)) static inline uint64_t walk(const struct run *r, uint32_t lanes,
							    uint32_t lines, uint32_t ahead)
{
	uint64_t sum = 0, b;
	uint32_t p, lane;

	for (p = 0; p < r->nr; p += lanes) {
		uint32_t n = r->nr - p < lanes ? r->nr - p : lanes;
		uint32_t after = p + lanes + n <= r->nr ? lanes : 0;

		for (b = 0; b + lines * LINE <= r->bytes; b += lines * LINE)
			for (lane = 0; lane < n; lane++)
				sum += step(r, p + lane, p + lane + after, b, lines, ahead);
		for (; b < r->bytes; b += LINE)
			for (lane = 0; lane < n; lane++)
				sum += step(r, p + lane, p + lane + after, b, 1, 0);
	}
	return sum;
}

#define WALK(name, ...)                                                        \
	static uint64_t name(const struct run *r) { return walk(r, __VA_ARGS__); }

WALK(one_page, 1, 4, 0)
WALK(one_page_ahead, 1, 4, 2048)
WALK(one_page_wide, 1, 16, 0)
WALK(lockstep, 4, 1, 0)
WALK(lockstep_ahead, 4, 4, 1024)
WALK(lockstep_wide, 4, 8, 0)

/* Every byte, through registers as wide as there are. */
__attribute__((always_inline)) static inline uint64_t read_all(const struct run *r)
{
	wide a = { 0 }, b = { 0 };
	uint64_t at;
	uint32_t p;

	for (p = 0; p < r->nr; p++)
		for (at = 0; at + 2 * LINE <= r->bytes; at += 2 * LINE) {
			a += *(const wide *)(r->page[p] + r->off + at);
			b += *(const wide *)(r->page[p] + r->off + at + LINE);
		}
	a += b;
	return a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
}

#ifdef __x86_64__
__attribute__((target("avx512f"))) static uint64_t all_bytes_512(const struct run *r)
{
	return read_all(r);
}

__attribute__((target("avx2"))) static uint64_t all_bytes_256(const struct run *r)
{
	return read_all(r);
}

static uint64_t all_bytes(const struct run *r)
{
	if (__builtin_cpu_supports("avx512f"))
		return all_bytes_512(r);
	return __builtin_cpu_supports("avx2") ? all_bytes_256(r) : read_all(r);
}
#else
static uint64_t all_bytes(const struct run *r)
{
	return read_all(r);
}
#endif

static const struct {
	const char *name;
	uint64_t (*read)(const struct run *);
} touches[ATTN_NR_TOUCHES] = {
	{ "page by page", one_page },
	{ "page by page, prefetch", one_page_ahead },
	{ "page by page, 16 lines", one_page_wide },
	{ "4 pages in lockstep", lockstep },
	{ "4 pages in lockstep, prefetch", lockstep_ahead },
	{ "4 pages in lockstep, 8 lines", lockstep_wide },
	{ "page by page, all bytes", all_bytes },
};

static uint64_t (*const streams[ATTN_NR_STREAMS])(const struct run *) = {
	one_page_wide,
	one_page_ahead,
};

const char *attn_touch_name(unsigned int variant)
{
	return touches[variant].name;
}

struct job {
	struct run run;
	uint64_t (*read)(const struct run *);
	bool stream;		/* members share out the bytes of one run, not the pages */
};

static void job_member(void *arg, unsigned int me, unsigned int n)
{
	const struct job *j = arg;
	struct run r = j->run;
	uint64_t first, end;

	if (j->stream) {
		first = r.bytes / LINE * me / n * LINE;
		end = r.bytes / LINE * (me + 1) / n * LINE;
		r.off += first;
		r.bytes = end - first;
	} else {
		first = (uint64_t)r.nr * me / n;
		end = (uint64_t)r.nr * (me + 1) / n;
		r.page += first;
		r.nr = (uint32_t)(end - first);
	}
	sink += j->read(&r);
}

double attn_table_bytes(const struct attn_lane *l)
{
	return l->table_pages * (double)l->page_bytes;
}

uint64_t attn_touch_run(struct attn_lane *l, struct attn_team *team, unsigned int variant,
			uint32_t calls, bool *lost)
{
	struct job j = {
		.run = { .nr = l->table_pages, .bytes = l->page_bytes },
		.read = touches[variant].read,
	};
	uint64_t ns = 0;

	while (calls--) {
		j.run.page = attn_lane_next_pages(l);
		ns += attn_team_run(team, job_member, &j, lost);
	}
	return ns;
}

uint64_t attn_stream_run(struct attn_lane *l, struct attn_team *team, unsigned int variant,
			 uint32_t calls, bool *lost)
{
	uint64_t table = (uint64_t)l->table_pages * l->page_bytes, base = (uintptr_t)l->pool;
	struct job j = {
		.run = { .page = &base, .nr = 1, .bytes = table },
		.read = streams[variant],
		.stream = true,
	};
	uint64_t ns = 0;

	while (calls--) {
		j.run.off = l->next * table;
		l->next = (l->next + 1) % l->nr_tables;
		ns += attn_team_run(team, job_member, &j, lost);
	}
	return ns;
}
