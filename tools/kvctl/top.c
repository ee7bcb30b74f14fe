/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl top: memory, caches and engines again and again, with what changed in between as rates. */
#include "kvctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "admin.h"
#include "emit.h"

static uint64_t counter(const struct kv_admin_counter *c, uint32_t nr, const char *name)
{
	uint32_t i;

	for (i = 0; i < nr; i++)
		if (!strcmp(c[i].name, name))
			return c[i].value;
	return 0;
}

static void rates(const struct kv_admin_counter *now, uint32_t nr, struct kv_admin_counter **before,
		  uint32_t *nr_before, double seconds)
{
	static const char *const shown[] = { "pages_alloc", "pages_free", "pages_commit",
					     "pages_evict", "lookups",	  "hit_tokens" };
	size_t i;

	for (i = 0; *before && i < sizeof(shown) / sizeof(shown[0]); i++)
		printf("%s%s %.0f/s", i ? "  " : "", shown[i],
		       (double)(counter(now, nr, shown[i]) -
				counter(*before, *nr_before, shown[i])) /
			       seconds);
	puts(*before ? "\n" : "rates: from the second sample on\n");
}

static int screen(int fd, bool json, double seconds, struct kv_admin_counter **before,
		  uint32_t *nr_before)
{
	struct kv_admin_counter *now;
	struct emit *e;
	uint32_t nr;
	int err = admin_get(fd, KV_ADMIN_VMSTAT, sizeof(*now), (void **)&now, &nr);

	if (err)
		return err;
	e = emit_open(json);
	emit_one_line(e);
	if (!json && isatty(STDOUT_FILENO))
		fputs("\033[H\033[2J", stdout);
	if (!json)
		rates(now, nr, before, nr_before, seconds);
	free(*before);
	*before = now;
	*nr_before = nr;
	err = kvctl_meminfo(fd, e, "meminfo");
	if (!err)
		err = kvctl_caches(fd, e, "caches");
	if (!err)
		err = kvctl_engines(fd, e, "engines");
	if (!err && json)
		err = kvctl_vmstat(fd, e, "vmstat");
	emit_close(e);
	return err;
}

int kvctl_top(int fd, bool json, unsigned int interval_ms, unsigned int count)
{
	struct timespec pause = { interval_ms / 1000, interval_ms % 1000 * 1000000l };
	struct kv_admin_counter *before = NULL;
	uint32_t nr_before = 0;
	unsigned int n = 0;
	int err;

	for (;;) {
		err = screen(fd, json, interval_ms / 1000.0, &before, &nr_before);
		if (err || (count && ++n >= count))
			break;
		nanosleep(&pause, NULL);
	}
	free(before);
	return err;
}
