// SPDX-License-Identifier: Apache-2.0
/* An SVG that needs nothing from outside and follows the viewer's light or dark scheme. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emit.h"
#include "kvreplay.h"
#include "world.h"

#define WIDTH	 760.0
#define HEIGHT	 460.0
#define LEFT	 64.0
#define RIGHT	 24.0
#define TOP	 64.0
#define BOTTOM	 56.0
#define MIN_LINE MM_NR_POLICIES

struct axes {
	FILE *f;
	const struct kvreplay_run *runs;
	unsigned int nr;
	double x_lo, x_hi; /* log10 of pages */
	double y_hi, y_step;
};

/* Colours that keep apart for colour-blind readers too, darker on white than on black. */
static const char style[] =
	"text{font:13px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#24292f}"
	".title{font-size:15px;font-weight:600}.small{font-size:12px;fill:#57606a}"
	".bg{fill:#ffffff}.grid{stroke:#d8dee4;stroke-width:1}.axis{stroke:#57606a;stroke-width:1}"
	".line{fill:none;stroke-width:2.25;stroke-linejoin:round;stroke-linecap:round}"
	".dot{stroke:#ffffff;stroke-width:1.5}"
	".s0{stroke:#0969da}.f0{fill:#0969da}.s1{stroke:#bc4c00}.f1{fill:#bc4c00}"
	".s2{stroke:#6e7781;stroke-dasharray:6 5}.f2{fill:#6e7781}"
	"@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}"
	".bg{fill:#0d1117}.grid{stroke:#262c36}.axis{stroke:#9198a1}.dot{stroke:#0d1117}"
	".s0{stroke:#58a6ff}.f0{fill:#58a6ff}.s1{stroke:#f0883e}.f1{fill:#f0883e}"
	".s2{stroke:#8b949e}.f2{fill:#8b949e}}";

static double x_of(const struct axes *a, double log_pages)
{
	return LEFT + (log_pages - a->x_lo) / (a->x_hi - a->x_lo) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct axes *a, double ratio)
{
	return HEIGHT - BOTTOM - ratio / a->y_hi * (HEIGHT - TOP - BOTTOM);
}

static double run_x(const struct axes *a, unsigned int i)
{
	return x_of(a, log10((double)a->runs[i].res.capacity_pages));
}

static double run_ratio(const struct axes *a, unsigned int i, uint32_t line)
{
	const struct replay_result *r = &a->runs[i].res;

	if (line == MIN_LINE)
		return a->runs[i].min_ratio;
	return r->blocks ? (double)r->hit_blocks / (double)r->blocks : 0;
}

static void set_axes(struct axes *a)
{
	double lo = INFINITY, hi = 0, top = 0, l;
	unsigned int i;

	for (i = 0; i < a->nr; i++) {
		l = log10((double)a->runs[i].res.capacity_pages);
		lo = fmin(lo, l);
		hi = fmax(hi, l);
		top = fmax(top, run_ratio(a, i, a->runs[i].policy));
		top = fmax(top, a->runs[i].min_ratio); /* fmax takes NAN for nothing */
	}
	l = fmax((hi - lo) * .03, hi > lo ? .02 : .3);
	a->x_lo = lo - l;
	a->x_hi = hi + l;
	a->y_step = top > .5 ? .1 : top > .2 ? .05 : top > .08 ? .02 : .01;
	a->y_hi = fmax(ceil(top * 1.02 / a->y_step), 1) * a->y_step;
}

static void text(FILE *f, const char *s)
{
	for (; *s; s++) {
		if (strchr("<>&\"'", *s))
			fprintf(f, "&#%d;", *s);
		else
			fputc((unsigned char)*s < 0x20 ? '?' : *s, f);
	}
}

/* 1, 2 and 5 times powers of ten; 2 and 5 go unnamed where decades are many. */
static void x_ticks(const struct axes *a)
{
	static const char *const unit[] = { "", "k", "M", "G", "T", "P" };
	static const double steps[] = { 1, 2, 5 };
	bool wide = a->x_hi - a->x_lo < 3.4;
	double l, x;
	int d, s, k;

	for (d = (int)floor(a->x_lo); d <= (int)a->x_hi; d++)
		for (s = 0; s < 3; s++) {
			l = d + log10(steps[s]);
			if (d < 0 || l < a->x_lo || l > a->x_hi)
				continue;
			x = x_of(a, l);
			fprintf(a->f,
				"<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" "
				"y2=\"%.1f\"/>\n",
				x, x, TOP, HEIGHT - BOTTOM);
			k = d / 3 < 5 ? d / 3 : 5;
			if (!s || wide)
				fprintf(a->f,
					"<text class=\"small\" x=\"%.1f\" y=\"%.1f\" "
					"text-anchor=\"middle\">%.0f%s</text>\n",
					x, HEIGHT - BOTTOM + 18, steps[s] * pow(10, d - 3 * k),
					unit[k]);
		}
	fprintf(a->f,
		"<text class=\"small\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">"
		"capacity, pages (log scale)</text>\n",
		(LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14);
}

static void y_ticks(const struct axes *a)
{
	int i, nr = (int)round(a->y_hi / a->y_step);
	double y;

	for (i = 0; i <= nr; i++) {
		y = y_of(a, i * a->y_step);
		fprintf(a->f,
			"<line class=\"%s\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
			"\n<text class=\"small\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.0f %%"
			"</text>\n",
			i ? "grid" : "axis", LEFT, WIDTH - RIGHT, y, y, LEFT - 8, y + 4,
			100 * i * a->y_step);
	}
}

/* The runs of a policy, or for MIN those of the first one that has any, lie together. */
static void line(const struct axes *a, uint32_t which, uint32_t policy)
{
	char buf[32];
	unsigned int i;

	fprintf(a->f, "<polyline class=\"line s%u\" points=\"", which);
	for (i = 0; i < a->nr; i++)
		if (a->runs[i].policy == policy)
			fprintf(a->f, "%.1f,%.1f ", run_x(a, i), y_of(a, run_ratio(a, i, which)));
	fputs("\"/>\n", a->f);
	for (i = 0; i < a->nr; i++) {
		if (a->runs[i].policy != policy)
			continue;
		fprintf(a->f,
			"<circle class=\"dot f%u\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>%s "
			"at %s pages: %.4f</title></circle>\n",
			which, run_x(a, i), y_of(a, run_ratio(a, i, which)),
			which == MIN_LINE ? "MIN" : world_policy_name(which),
			emit_format(buf, EMIT_COUNT,
				    (union emit_val){ .u = a->runs[i].res.capacity_pages }),
			run_ratio(a, i, which));
	}
}

static void legend(const struct axes *a, uint32_t which, double *x)
{
	const char *name = which == MIN_LINE ? "MIN, knowing the future" : world_policy_name(which);

	fprintf(a->f,
		"<line class=\"line s%u\" x1=\"%.1f\" x2=\"%.1f\" y1=\"48\" y2=\"48\"/>"
		"<text x=\"%.1f\" y=\"52\">%s</text>\n",
		which, *x, *x + 26, *x + 33, name);
	*x += 33 + 7.2 * (double)strlen(name) + 22;
}

static void draw(struct axes *a, const struct kvreplay *k)
{
	const char *name = strrchr(k->trace_path, '/');
	uint32_t p, first = a->runs[0].policy;
	double x = LEFT;

	fprintf(a->f,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
		"width=\"%.0f\" height=\"%.0f\" role=\"img\">\n<style>%s</style>\n"
		"<rect class=\"bg\" width=\"100%%\" height=\"100%%\"/>\n"
		"<text class=\"title\" x=\"%.0f\" y=\"28\">Blocks hit, ",
		WIDTH, HEIGHT, WIDTH, HEIGHT, style, LEFT);
	text(a->f, name ? name + 1 : k->trace_path);
	if (k->nr_engines > 1)
		fprintf(a->f, ", %u engines%s", k->nr_engines, k->apart ? " apart" : "");
	fputs("</text>\n", a->f);
	x_ticks(a);
	y_ticks(a);
	if (k->bound) {
		line(a, MIN_LINE, first);
		legend(a, MIN_LINE, &x);
	}
	for (p = 0; p < MM_NR_POLICIES; p++)
		if (k->policy[p]) {
			line(a, p, p);
			legend(a, p, &x);
		}
	fputs("</svg>\n", a->f);
}

static int by_capacity(const void *x, const void *y)
{
	const struct kvreplay_run *a = x, *b = y;

	if (a->policy != b->policy)
		return a->policy < b->policy ? -1 : 1;
	return a->res.capacity_pages < b->res.capacity_pages
		       ? -1
		       : a->res.capacity_pages > b->res.capacity_pages;
}

int kvreplay_plot(const struct kvreplay *k, const struct kvreplay_run *runs, unsigned int nr_runs)
{
	struct kvreplay_run *sorted = malloc(nr_runs * sizeof(*sorted));
	struct axes a = { .runs = sorted, .nr = nr_runs };
	int err = sorted ? 0 : ENOMEM;

	a.f = sorted ? fopen(k->plot_path, "we") : NULL;
	if (a.f) {
		memcpy(sorted, runs, nr_runs * sizeof(*sorted));
		qsort(sorted, nr_runs, sizeof(*sorted), by_capacity);
		set_axes(&a);
		draw(&a, k);
		err = ferror(a.f) ? EIO : 0;
		if (fclose(a.f))
			err = errno;
	} else if (!err) {
		err = errno;
	}
	free(sorted);
	if (err)
		fprintf(stderr, "kvreplay: %s: %s\n", k->plot_path, strerror(err));
	return -err;
}
