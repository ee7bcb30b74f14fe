// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "call.h"

#define VERSION	     "0.1.0"
#define UNIX_PREFIX  "unix:"
#define EMBED_PREFIX "embedded:"
#define EMBED_HOST   "embedded:host:"

#define RESERVE_WAIT_MS	 50u
#define RESERVE_PAUSE_MS 5u

const char *kv_version(void)
{
	return VERSION;
}

/* ---- sizes --------------------------------------------------------------------------------- */

static int suffix_shift(const char *s, uint32_t *shift)
{
	static const char units[] = "KMGT";
	const char *u = *s ? strchr(units, *s) : NULL;

	*shift = u ? (uint32_t)(u - units + 1) * 10 : 0;
	if (u)
		s++;
	if (!*s || !strcmp(s, "B") || (u && !strcmp(s, "iB")))
		return 0;
	return -EINVAL;
}

/* digits [. digits] [K|M|G|T] [iB|B], powers of 1024; a fraction is exact to the byte below. */
int kv_parse_size(const char *text, uint64_t *bytes)
{
	unsigned __int128 whole = 0, part = 0, scale = 1;
	const char *s = text ? text : "";
	uint32_t shift;

	if (*s < '0' || *s > '9')
		goto bad;
	for (; *s >= '0' && *s <= '9'; s++) {
		whole = whole * 10 + (unsigned int)(*s - '0');
		if (whole > UINT64_MAX)
			goto bad;
	}
	if (*s == '.' && (s[1] < '0' || s[1] > '9'))
		goto bad;
	if (*s == '.')
		for (s++; *s >= '0' && *s <= '9'; s++)
			if (scale < 1000000000000000u) {
				part = part * 10 + (unsigned int)(*s - '0');
				scale *= 10;
			}
	while (*s == ' ')
		s++;
	if (suffix_shift(s, &shift) || (scale > 1 && !shift))
		goto bad;
	whole = (whole << shift) + ((part << shift) / scale);
	if (whole > UINT64_MAX)
		goto bad;
	*bytes = (uint64_t)whole;
	return 0;
bad:
	return err_set(-EINVAL,
		       "'%s' is no size: give bytes, or a number with K, M, G or T (64M, "
		       "1.5GiB)",
		       text ? text : "");
}

/* ---- open ---------------------------------------------------------------------------------- */

int kv_watch(struct kv *kv, int fd)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLRDHUP };

	if (epoll_ctl(kv->epoll_fd, EPOLL_CTL_ADD, fd, &ev))
		return err_set(-errno, "cannot watch fd %d: %s", fd, strerror(errno));
	return 0;
}

static void kv_free(struct kv *kv)
{
	if (kv->guard)
		munmap(kv->guard, sizeof(*kv->guard));
	if (kv->due_fd >= 0)
		close(kv->due_fd);
	if (kv->epoll_fd >= 0)
		close(kv->epoll_fd);
	free(kv);
}

static int kv_init(struct kv *kv, const char *spec, const struct kv_options *o)
{
	void *page = mmap(NULL, sizeof(*kv->guard), PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	kv->due_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	kv->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	kv->guard = page == MAP_FAILED ? NULL : page;
	if (!kv->guard || kv->due_fd < 0 || kv->epoll_fd < 0 ||
	    madvise(page, sizeof(*kv->guard), MADV_WIPEONFORK))
		return err_set(-errno, "cannot set up a session: %s", strerror(errno));
	*kv->guard = 1;
	snprintf(kv->where, sizeof(kv->where), "%s", spec);
	kv->rank = o->rank;
	kv->wait_ms = o->wait_ms;
	kv->on_pressure = o->on_pressure;
	kv->on_vacate = o->on_vacate;
	kv->ctx = o->ctx;
	kv->is_member = o->member_token != NULL;
	return kv_watch(kv, kv->due_fd);
}

static int link_open(struct kv *kv, const char *spec, const struct kv_options *o)
{
	uint64_t bytes;
	int rc;

	if (!strncmp(spec, UNIX_PREFIX, strlen(UNIX_PREFIX)))
		return remote_open(kv, spec + strlen(UNIX_PREFIX), o);
	if (!strncmp(spec, EMBED_HOST, strlen(EMBED_HOST))) {
		rc = kv_parse_size(spec + strlen(EMBED_HOST), &bytes);
		return rc ? rc : embed_open(kv, bytes, o);
	}
	if (!strncmp(spec, EMBED_PREFIX, strlen(EMBED_PREFIX)))
		return err_set(-EINVAL,
			       "'%s': an embedded pool is made of host memory: "
			       "embedded:host:SIZE",
			       spec);
	return err_set(-EINVAL,
		       "'%s' names no pool: give unix:PATH of a running kvd, or "
		       "embedded:host:SIZE",
		       spec);
}

static int check_options(const struct kv_options *o)
{
	if (!o->member_token && o->rank)
		return err_set(-EINVAL,
			       "rank %u: a lead maps shard 0; other ranks join it with "
			       "member_token",
			       o->rank);
	if (o->rank >= KV_MAX_SHARDS)
		return err_set(-EINVAL, "rank %u: a cache has at most %u shards", o->rank,
			       KV_MAX_SHARDS);
	return 0;
}

int kv_open(const char *spec, const struct kv_options *opts, struct kv **out)
{
	static const struct kv_options none;
	const struct kv_options *o = opts ? opts : &none;
	struct kv *kv;
	int rc = check_options(o);

	if (rc)
		return rc;
	if (!spec)
		return err_set(-EINVAL, "no pool named: give unix:PATH or embedded:host:SIZE");
	kv = calloc(1, sizeof(*kv));
	if (!kv)
		return err_set(-ENOMEM, "no memory for a session");
	kv->due_fd = -1;
	kv->epoll_fd = -1;
	rc = kv_init(kv, spec, o);
	if (!rc)
		rc = link_open(kv, spec, o);
	if (rc) {
		kv_free(kv);
		return rc;
	}
	*out = kv;
	return 0;
}

/* In a forked child nothing is touched: the session and its memory are the parent's. */
void kv_close(struct kv *kv)
{
	if (!kv || *kv->guard != 1)
		return;
	while (kv->caches)
		kv_cache_close(kv->caches);
	map_fini(kv);
	kv->ops->close(kv);
	kv_free(kv);
}

int kv_mark_dead(struct kv *kv, const char *why)
{
	struct kv_cache *c;
	uint32_t g;

	kv->dead = true;
	for (c = kv->caches; c; c = c->next)
		for (g = 0; g < c->nr_groups; g++)
			c->mag[g]->nr = c->mag[g]->cap = 0;
	return err_set(-EPIPE, "%s: %s; kv_close() and open a new session", kv->where, why);
}

/* ---- facts --------------------------------------------------------------------------------- */

int kv_member_token(const struct kv *kv, uint8_t token[16])
{
	if (kv->embedded)
		return err_set(-EINVAL, "an embedded pool has one process: members need a kvd");
	if (kv->is_member)
		return err_set(-EACCES, "the token is the lead's to give");
	memcpy(token, kv->token, KV_TOKEN_BYTES);
	return 0;
}

/* While the pool takes cached pages back, which needs the events that each call serves. */
int kv_reserve(struct kv *kv, uint32_t device, uint64_t bytes, uint32_t what)
{
	const struct kv_sqe sqe = {
		.op = KV_OP_RESERVE, .id = device, .group = (uint16_t)what, .arg = bytes,
	};
	struct timespec moment = { 0, RESERVE_PAUSE_MS * 1000000l };
	uint32_t ms = kv->wait_ms > RESERVE_WAIT_MS ? kv->wait_ms : RESERVE_WAIT_MS, waited;
	int rc;

	if (what > KV_RESERVE_OTHER)
		return err_set(-EINVAL, "reserve: %u is no enum kv_reserve_what", what);
	rc = call_plain(kv, &sqe, NULL);
	for (waited = 0; rc == -EAGAIN && waited < ms; waited += RESERVE_PAUSE_MS) {
		nanosleep(&moment, NULL);
		rc = call_plain(kv, &sqe, NULL);
	}
	return rc;
}

static int stat_call(struct kv *kv, struct kv_stat *st)
{
	struct call call;
	int rc = call_begin(kv, &call, KV_OP_STAT, 0, sizeof(*st));

	if (rc)
		return rc;
	rc = call_run(&call);
	if (!rc && call.cqe.out_bytes != sizeof(*st))
		rc = kv_mark_dead(kv, "kvd sent statistics of the wrong size");
	if (!rc)
		memcpy(st, call.out, sizeof(*st));
	call_end(&call);
	return rc;
}

int kv_info(struct kv *kv, struct kv_info *info)
{
	struct kv_stat st;
	int rc = stat_call(kv, &st);

	if (rc)
		return rc;
	*info = (struct kv_info){
		.engine = kv->engine,
		.member = kv->member,
		.rank = kv->rank,
		.nr_devices = kv->nr_devices,
		.embedded = kv->embedded,
		.pool_bytes = kv->pool_bytes,
		.held_pages = st.held_pages,
		.held_bytes = st.held_bytes,
		.extent_bytes = st.extent_bytes,
		.reserved_bytes = st.reserved_bytes,
		.allocs = st.allocs,
		.frees = st.frees,
		.commits = st.commits,
		.lookup_tokens = st.lookup_tokens,
		.hit_tokens = st.hit_tokens,
		.nr_extents = st.nr_extents,
		.nr_leases = st.nr_leases,
		.nr_parks = st.nr_parks,
		.nr_members = st.nr_members,
	};
	return 0;
}
