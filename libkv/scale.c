// SPDX-License-Identifier: Apache-2.0
/* scale - contract in scale.h */
#include <errno.h>
#include <math.h>
#include <sha2.h>
#include <stdlib.h>
#include <string.h>

#include "digest.h"
#include "scale.h"

static uint32_t heads_of(const struct kv_layout *l)
{
	return l->kind == KV_MLA ? 1 : l->kv_heads;
}

static int check_array(const struct kv_layout *l, uint32_t g, const char *name, const float *scale)
{
	uint32_t heads = heads_of(l), i;

	if (!scale)
		return 0;
	if (l->kind == KV_OPAQUE || l->scale != KV_SCALE_HEAD)
		return err_set(-EINVAL,
			       "group %u: %s is given, but its layout has no KV_SCALE_HEAD", g,
			       name);
	for (i = 0; i < l->layers * heads; i++)
		if (!isfinite(scale[i]) || scale[i] <= 0)
			return err_set(-EINVAL,
				       "group %u: %s of layer %u, head %u is %g, must be above 0",
				       g, name, i / heads, i % heads, (double)scale[i]);
	return 0;
}

int scale_check(const struct kv_group *grp, uint32_t g)
{
	int err = check_array(&grp->layout, g, "k_scale", grp->k_scale);

	if (!err)
		err = check_array(&grp->layout, g, "v_scale", grp->v_scale);
	if (!err && grp->v_scale && grp->layout.kind == KV_MLA)
		err = err_set(-EINVAL, "group %u: v_scale is given, but MLA rows have k_scale only",
			      g);
	return err;
}

/* Missing ones are ones. Returns whether there is another number. */
static bool put_array(SHA2_CTX *sha, const struct kv_layout *l, const float *scale)
{
	uint32_t i, bits;
	bool other = false;

	for (i = 0; i < l->layers * heads_of(l); i++) {
		float f = scale ? scale[i] : 1;

		memcpy(&bits, &f, sizeof(bits));
		digest_le(sha, bits, sizeof(bits));
		other = other || f < 1 || f > 1;
	}
	return other;
}

bool scale_digest(const struct kv_group *grp, uint8_t out[KV_KEY_BYTES])
{
	bool k, v;
	SHA2_CTX sha;

	if (!grp->k_scale && !grp->v_scale)
		return false;
	SHA256Init(&sha);
	k = put_array(&sha, &grp->layout, grp->k_scale);
	v = put_array(&sha, &grp->layout, grp->v_scale);
	SHA256Final(out, &sha);
	return k || v;
}

/* Rows [layers][heads] of a whole model to this rank's [layers][n], from head first on. */
static float *keep(const struct kv_layout *whole, const float *scale, uint32_t first, uint32_t n)
{
	uint32_t heads = heads_of(whole), layer, i;
	float *kept = malloc(sizeof(*kept) * whole->layers * n);

	for (layer = 0; kept && layer < whole->layers; layer++)
		for (i = 0; i < n; i++)
			kept[(size_t)layer * n + i] =
				scale ? scale[(size_t)layer * heads + first + i] : 1;
	return kept;
}

int scale_keep(struct kv_cache *c, uint32_t g, bool shared)
{
	struct kv_group *grp = &c->group[g];
	const float *k = grp->k_scale, *v = grp->v_scale;
	const struct kv_layout *l = &grp->layout;
	uint32_t n = heads_of(&c->layout[g]);
	/* as kv_layout_shard() gives heads to ranks, replicated ones included */
	uint32_t first = (uint32_t)((uint64_t)c->kv->rank * heads_of(l) / c->nr_shards);

	grp->k_scale = grp->v_scale = NULL;
	if (l->kind == KV_OPAQUE || l->scale != KV_SCALE_HEAD || !(shared || k || v))
		return 0;
	c->k_scale[g] = keep(l, k, first, n);
	c->v_scale[g] = keep(l, v, first, n);
	if (c->k_scale[g] && c->v_scale[g])
		return 0;
	return err_set(-ENOMEM, "no memory for the scales of group %u", g);
}

void scale_drop(struct kv_cache *c)
{
	uint32_t g;

	for (g = 0; g < KV_MAX_GROUPS; g++) {
		free(c->k_scale[g]);
		free(c->v_scale[g]);
	}
}

static int agree(const char *name, uint32_t layer, const float *call, const float *kept, uint32_t n)
{
	uint32_t i;

	for (i = 0; call && i < n; i++)
		if (memcmp(&call[i], &kept[i], sizeof(*call)))
			return err_set(-EINVAL,
				       "%s of layer %u, head %u is %g, but the cache was opened "
				       "with %g (kv_group.%s): pages of one cache have one meaning",
				       name, layer, i, (double)call[i], (double)kept[i], name);
	return 0;
}

int scale_of(const struct kv_cache *c, uint32_t group, uint32_t layer, const float **k,
	     const float **v)
{
	uint32_t n = heads_of(&c->layout[group]);
	const float *kept_k = c->k_scale[group], *kept_v = c->v_scale[group];
	int err;

	if (!kept_k)
		return 0;
	kept_k += (size_t)layer * n;
	kept_v += (size_t)layer * n;
	err = agree("k_scale", layer, *k, kept_k, n);
	if (!err && c->layout[group].kind == KV_GQA)
		err = agree("v_scale", layer, *v, kept_v, n);
	if (err)
		return err;
	*k = kept_k;
	*v = kept_v;
	return 0;
}
