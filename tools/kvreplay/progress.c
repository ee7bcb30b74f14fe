// SPDX-License-Identifier: Apache-2.0
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "kvreplay.h"

#define WIDTH	   30u
#define PERIOD_NS  100000000ull
#define LOOK_EVERY 64u /* requests between looks at the clock */

static struct {
	bool on, drawn;
	const char *what;
	uint64_t before, total, drawn_ns;
} bar;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void draw(uint64_t done)
{
	static const char full[WIDTH + 1] = "##############################";
	int n = (int)(WIDTH * done / bar.total);

	fprintf(stderr, "\r\033[K[%.*s%*s] %3u %%  %s", n, full, (int)WIDTH - n, "",
		(unsigned int)(100 * done / bar.total), bar.what);
	fflush(stderr);
	bar.drawn = true;
	bar.drawn_ns = now();
}

void kvreplay_progress_begin(const char *what, uint64_t done, uint64_t total)
{
	bar.on = total && isatty(STDERR_FILENO);
	bar.what = what;
	bar.before = done;
	bar.total = total;
	if (bar.on)
		draw(done);
}

void kvreplay_progress(void *unused, uint32_t done)
{
	(void)unused;
	if (bar.on && done % LOOK_EVERY == 0 && now() - bar.drawn_ns >= PERIOD_NS)
		draw(bar.before + done);
}

void kvreplay_progress_end(void)
{
	if (bar.drawn)
		fputs("\r\033[K", stderr);
	bar.drawn = bar.on = false;
}
