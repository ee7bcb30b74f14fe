// SPDX-License-Identifier: Apache-2.0
#include <sys/types.h>
#include <errno.h>
#include <sha2.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "call.h"
#include "digest.h"
#include "scale.h"

#define OPEN_TRIES	20u
#define OPEN_PAUSE_NS	5000000l

/* ---- digests: tagged, length-prefixed, little-endian, so no two encode alike ---------- */

static void put_u32(SHA2_CTX *sha, uint32_t v)
{
	digest_le(sha, v, sizeof(v));
}

static void put_text(SHA2_CTX *sha, const char *text)
{
	size_t n = text ? strlen(text) : 0;

	put_u32(sha, text != NULL);
	put_u32(sha, (uint32_t)n);
	SHA256Update(sha, (const uint8_t *)text, n);
}

static void model_digest(const struct kv_cache_params *p, uint8_t out[KV_KEY_BYTES])
{
	SHA2_CTX sha;

	memset(out, 0, KV_KEY_BYTES);
	if (!p->model)
		return;
	SHA256Init(&sha);
	put_text(&sha, "kvd.model.v1");
	put_text(&sha, p->model);
	put_text(&sha, p->revision);
	SHA256Final(out, &sha);
}

static void put_layout(SHA2_CTX *sha, const struct kv_group *grp)
{
	const struct kv_layout *l = &grp->layout;
	uint8_t scales[KV_KEY_BYTES];

	put_u32(sha, l->kind);
	put_u32(sha, l->dtype | l->scale << 16); /* one word: no scale, the digest of old */
	put_u32(sha, l->layers);
	put_u32(sha, l->kv_heads);
	put_u32(sha, l->head_dim);
	put_u32(sha, l->head_dim_v);
	put_u32(sha, l->rank);
	put_u32(sha, l->rope);
	put_u32(sha, l->page_tokens);
	put_u32(sha, l->opaque_token_bytes);
	if (scale_digest(grp, scales))
		SHA256Update(sha, scales, sizeof(scales));
}

static void layout_digest(const struct kv_cache *c, const struct kv_cache_params *p,
			  uint8_t out[KV_KEY_BYTES])
{
	SHA2_CTX sha;
	uint32_t i;

	SHA256Init(&sha);
	put_text(&sha, "kvd.layout.v1");
	put_u32(&sha, c->nr_shards);
	for (i = 0; i < c->nr_shards; i++)
		put_u32(&sha, p->device[i]);
	put_u32(&sha, c->nr_groups);
	for (i = 0; i < c->nr_groups; i++) {
		put_u32(&sha, c->group[i].kind);
		put_u32(&sha, c->group[i].window_tokens);
		put_layout(&sha, &c->group[i]);
	}
	SHA256Final(out, &sha);
}

/* ---- parameters ---------------------------------------------------------------------------- */

static int check_group(const struct kv_cache_params *p, uint32_t g)
{
	const struct kv_group *grp = &p->group[g];
	int err;

	if (grp->kind < KV_GROUP_FULL || grp->kind > KV_GROUP_STATE)
		return err_set(-EINVAL, "group %u: unknown kind %u", g, grp->kind);
	if ((grp->kind == KV_GROUP_WINDOW) != (grp->window_tokens != 0))
		return err_set(-EINVAL,
			       "group %u: window_tokens is %u, but the group is %sa window", g,
			       grp->window_tokens, grp->kind == KV_GROUP_WINDOW ? "" : "not ");
	if (grp->layout.page_tokens != p->group[0].layout.page_tokens)
		return err_set(-EINVAL,
			       "group %u has %u tokens a page, group 0 has %u: all groups of a "
			       "cache share page_tokens",
			       g, grp->layout.page_tokens, p->group[0].layout.page_tokens);
	err = kv_layout_check(&grp->layout);
	return err ? err : scale_check(grp, g);
}

static int check_params(const struct kv *kv, const struct kv_cache_params *p, uint32_t nr_shards)
{
	uint32_t i;
	int rc = 0;

	if (!p->nr_groups || p->nr_groups > KV_MAX_GROUPS)
		return err_set(-EINVAL, "a cache has 1 to %u groups, not %u", KV_MAX_GROUPS,
			       p->nr_groups);
	if (nr_shards > KV_MAX_SHARDS)
		return err_set(-EINVAL, "a cache has 1 to %u shards, not %u", KV_MAX_SHARDS,
			       nr_shards);
	if (kv->rank >= nr_shards)
		return err_set(-EINVAL, "this process is rank %u of a cache of %u shards", kv->rank,
			       nr_shards);
	for (i = 0; i < nr_shards; i++)
		if (p->device[i] >= kv->nr_devices)
			return err_set(-EINVAL, "shard %u is on device %u: the pool has %u", i,
				       p->device[i], kv->nr_devices);
	for (i = 0; !rc && i < p->nr_groups; i++)
		rc = check_group(p, i);
	return rc;
}

/* Does this shard hold what shard 0 holds? */
static bool same_as_first(const struct kv_layout *whole, uint32_t nr_shards, uint32_t shard,
			  bool replicated)
{
	if (!replicated || !shard)
		return false;
	return whole->kind != KV_GQA || (uint64_t)shard * whole->kv_heads / nr_shards == 0;
}

static int shard_group(struct kv_cache *c, uint32_t g, uint32_t s, struct kv_shard_desc *d)
{
	const struct kv_layout *whole = &c->group[g].layout;
	struct kv_layout part;
	bool replicated = false;
	int rc = kv_layout_shard(whole, c->nr_shards, s, &part, &replicated);

	if (rc)
		return rc;
	d->page_bytes[g] = kv_layout_page_bytes(&part);
	d->replicated &= same_as_first(whole, c->nr_shards, s, replicated);
	c->charge_bytes[g] += d->page_bytes[g];
	if (s == c->kv->rank) {
		c->layout[g] = part;
		c->page_bytes[g] = d->page_bytes[g];
	}
	return 0;
}

static int describe(struct kv_cache *c, const struct kv_cache_params *p, struct kv_cache_desc *d)
{
	uint32_t g, s;
	int rc = 0;

	*d = (struct kv_cache_desc){
		.page_tokens = c->page_tokens,
		.nr_groups = c->nr_groups,
		.nr_shards = c->nr_shards,
	};
	model_digest(p, d->model_key);
	layout_digest(c, p, d->layout_key);
	for (g = 0; g < c->nr_groups; g++)
		d->group[g] = (struct kv_group_desc){
			.kind = c->group[g].kind,
			.window_tokens = c->group[g].window_tokens,
			.opaque = c->group[g].layout.kind == KV_OPAQUE,
		};
	for (s = 0; s < c->nr_shards; s++) {
		d->shard[s].device = p->device[s];
		d->shard[s].replicated = 1;
		for (g = 0; !rc && g < c->nr_groups; g++)
			rc = shard_group(c, g, s, &d->shard[s]);
	}
	return rc;
}

/* ---- open, join, close --------------------------------------------------------------------- */

static void cache_destroy(struct kv_cache *c)
{
	uint32_t g;

	for (g = 0; g < KV_MAX_GROUPS; g++)
		magazine_destroy(c->mag[g]);
	scale_drop(c);
	free(c->match_ids);
	free(c);
}

static int cache_create(struct kv *kv, const struct kv_cache_params *p, struct kv_cache **out,
			struct kv_cache_desc *desc)
{
	uint32_t nr_shards = p->nr_shards ? p->nr_shards : 1, g;
	struct kv_cache *c;
	int rc = call_check(kv);

	if (!rc)
		rc = check_params(kv, p, nr_shards);
	if (rc)
		return rc;
	c = calloc(1, sizeof(*c));
	if (!c)
		return err_set(-ENOMEM, "no memory for a cache");
	c->kv = kv;
	c->nr_groups = p->nr_groups;
	c->nr_shards = nr_shards;
	c->page_tokens = p->group[0].layout.page_tokens;
	memcpy(c->group, p->group, sizeof(c->group[0]) * p->nr_groups);
	rc = describe(c, p, desc);
	for (g = 0; !rc && g < c->nr_groups; g++)
		rc = scale_keep(c, g, p->model != NULL);
	for (g = 0; !rc && g < c->nr_groups; g++) {
		c->mag[g] = magazine_create(
			kv->is_member ? 0 : magazine_cap(kv->pool_bytes, c->charge_bytes[g]));
		if (!c->mag[g])
			rc = err_set(-ENOMEM, "no memory for a magazine");
	}
	if (rc) {
		cache_destroy(c);
		return rc;
	}
	*out = c;
	return 0;
}

static int open_call(struct kv_cache *c, const struct kv_cache_desc *desc, uint32_t min_pages)
{
	const struct kv_cache_geom *geom;
	struct call call;
	uint32_t g;
	int rc = call_begin(c->kv, &call, KV_OP_CACHE_OPEN, sizeof(*desc), sizeof(*geom));

	if (rc)
		return rc;
	memcpy(call.in, desc, sizeof(*desc));
	call.sqe.nr = min_pages;
	rc = call_run(&call);
	geom = call.out;
	if (!rc && call.cqe.out_bytes != sizeof(*geom))
		rc = kv_mark_dead(c->kv, "kvd sent a geometry of the wrong size");
	for (g = 0; !rc && g < c->nr_groups; g++) {
		c->extent_pages[g] = geom->extent_pages[g];
		c->extent_bytes[g] = geom->extent_bytes[g][c->kv->rank];
		if (c->extent_pages[g] * c->page_bytes[g] > c->extent_bytes[g])
			rc = kv_mark_dead(c->kv, "kvd sent extents smaller than their pages");
	}
	c->id = call.cqe.id;
	call_end(&call);
	return rc;
}

/* A full table of caches is making room: clearing one nobody uses takes the device a moment. */
static int open_patiently(struct kv_cache *c, const struct kv_cache_desc *desc, uint32_t min_tokens)
{
	struct timespec moment = { 0, OPEN_PAUSE_NS };
	uint32_t i, min_pages = min_tokens / c->page_tokens + (min_tokens % c->page_tokens != 0);
	int rc = open_call(c, desc, min_pages);

	for (i = 1; rc == -EAGAIN && i < OPEN_TRIES; i++) {
		nanosleep(&moment, NULL);
		rc = open_call(c, desc, min_pages);
	}
	return rc;
}

static void link_in(struct kv_cache *c, struct kv_cache **out)
{
	c->next = c->kv->caches;
	c->kv->caches = c;
	*out = c;
}

int kv_cache_open(struct kv *kv, const struct kv_cache_params *p, struct kv_cache **out)
{
	struct kv_cache_desc desc;
	struct kv_cache *c;
	int rc;

	if (kv->is_member)
		return err_set(-EACCES,
			       "a member joins the cache its lead opened: kv_cache_join()");
	rc = cache_create(kv, p, &c, &desc);
	if (rc)
		return rc;
	rc = open_patiently(c, &desc, p->min_tokens);
	if (rc) {
		cache_destroy(c);
		return rc;
	}
	link_in(c, out);
	return 0;
}

int kv_cache_join(struct kv *kv, const struct kv_cache_params *p, uint32_t id,
		  struct kv_cache **out)
{
	struct kv_cache_desc desc;
	struct kv_cache *c;
	int rc;

	if (!kv->is_member)
		return err_set(-EINVAL, "a lead opens its caches: kv_cache_open()");
	if (!id)
		return err_set(-EINVAL,
			       "cache id 0 names no cache: take it from kv_cache_id() of the lead");
	rc = cache_create(kv, p, &c, &desc);
	if (rc)
		return rc;
	c->id = id;
	link_in(c, out);
	return 0;
}

void kv_cache_close(struct kv_cache *c)
{
	struct kv_cache **p;
	struct kv_sqe sqe = { .op = KV_OP_CACHE_CLOSE, .flags = KV_SQE_GIVE_BACK };
	bool serving;

	if (!c || *c->kv->guard != 1)
		return;
	/* A callback would find sequences that are gone already: events wait for the next call. */
	serving = c->kv->serving;
	c->kv->serving = true;
	if (c->on_close)
		c->on_close(c);
	hint_drop(c);
	if (!c->kv->dead)
		magazine_flush(c);
	map_drop_cache(c);
	sqe.cache = c->id;
	if (!c->kv->dead && !c->kv->is_member)
		call_plain(c->kv, &sqe, NULL);
	c->kv->serving = serving;
	for (p = &c->kv->caches; *p; p = &(*p)->next)
		if (*p == c) {
			*p = c->next;
			break;
		}
	cache_destroy(c);
}

/* ---- accessors ----------------------------------------------------------------------------- */

uint32_t kv_cache_id(const struct kv_cache *c)
{
	return c->id;
}

uint32_t kv_cache_page_tokens(const struct kv_cache *c)
{
	return c->page_tokens;
}

uint64_t kv_cache_page_bytes(const struct kv_cache *c, uint32_t group)
{
	return group < c->nr_groups ? c->page_bytes[group] : 0;
}

uint32_t kv_cache_extent_pages(const struct kv_cache *c, uint32_t group)
{
	return group < c->nr_groups ? c->extent_pages[group] : 0;
}

const struct kv_layout *kv_cache_layout(const struct kv_cache *c, uint32_t group)
{
	return group < c->nr_groups ? &c->layout[group] : NULL;
}
