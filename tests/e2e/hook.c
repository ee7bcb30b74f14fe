/* SPDX-License-Identifier: Apache-2.0 */
/* Linked into churn-hooked with --wrap=queue_publish: KILL_RING=N kills this process just before
 * the Nth publication of ring entries (N > 0) or just after it (N < 0); COUNT_RING=1 prints how
 * many there were. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

struct queue;
int __real_queue_publish(struct queue *);
int __wrap_queue_publish(struct queue *);

static long published;

static void report(void)
{
	fprintf(stderr, "ring %ld\n", published);
}

int __wrap_queue_publish(struct queue *q)
{
	static long at;
	const char *env;
	int err;

	if (!published) {
		env = getenv("KILL_RING");
		at = env ? atol(env) : 0;
		if (getenv("COUNT_RING"))
			atexit(report);
	}
	published++;
	if (at > 0 && published == at)
		raise(SIGKILL);
	err = __real_queue_publish(q);
	if (at < 0 && published == -at)
		raise(SIGKILL);
	return err;
}
