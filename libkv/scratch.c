// SPDX-License-Identifier: Apache-2.0
/* scratch - contract in scratch.h */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "err.h"
#include "scratch.h"
#include "threads.h"

struct scratch {
	void *mem[NR_SCRATCH];
	size_t bytes[NR_SCRATCH];
};

static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
static pthread_key_t scratch_key;
static int scratch_err;

static void scratch_free(void *p)
{
	struct scratch *s = p;
	int i;

	for (i = 0; i < NR_SCRATCH; i++)
		free(s->mem[i]);
	free(s);
}

static void scratch_init(void)
{
	scratch_err = pthread_key_create(&scratch_key, scratch_free);
}

/* A library that is unloaded must leave neither a thread nor a destructor behind. */
static void __attribute__((destructor)) scratch_fini(void)
{
	struct scratch *s;

	threads_stop();
	pthread_once(&scratch_once, scratch_init);
	if (scratch_err)
		return;
	s = pthread_getspecific(scratch_key);
	if (s)
		scratch_free(s);
	pthread_key_delete(scratch_key);
}

static struct scratch *scratch_own(void)
{
	struct scratch *s;

	pthread_once(&scratch_once, scratch_init);
	if (scratch_err)
		return NULL;
	s = pthread_getspecific(scratch_key);
	if (s)
		return s;
	s = calloc(1, sizeof(*s));
	if (s && pthread_setspecific(scratch_key, s)) {
		free(s);
		s = NULL;
	}
	return s;
}

int scratch_get(enum scratch_kind which, size_t bytes, void **mem)
{
	struct scratch *s = scratch_own();

	if (s && s->bytes[which] < bytes) {
		size_t want = bytes > s->bytes[which] * 2 ? bytes : s->bytes[which] * 2;

		want = (want + 63) / 64 * 64;
		free(s->mem[which]);
		s->mem[which] = aligned_alloc(64, want);
		s->bytes[which] = s->mem[which] ? want : 0;
	}
	if (!s || s->bytes[which] < bytes)
		return err_set(-ENOMEM, "out of memory for %zu bytes of attention scratch", bytes);
	*mem = s->mem[which];
	return 0;
}
