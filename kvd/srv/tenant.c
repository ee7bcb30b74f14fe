// SPDX-License-Identifier: Apache-2.0
#include "srv/tenant.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/loop.h"
#include "srv/control.h"

#define COOKIE		(9ull << 60)	/* session cookies have a kind below 8 there */
#define DEVICE_KEY	"device."

#define say(err, len, ...) snprintf((err), (len), __VA_ARGS__)

struct tenants {
	const struct tenant_rules *rules;
	struct exec *exec;
	uint32_t nr_devices, nr_large;
	uint32_t large[TENANT_MAX_LARGE];	/* uids */
	struct mm_reply reply;
	bool answered;
};

static const struct {
	const char *name;
	uint32_t bit;
	size_t offset;			/* in struct mm_limits */
	uint64_t none;			/* what "none" means */
} knobs[] = {
	{ "min", KV_TENANT_SET_MIN, offsetof(struct mm_limits, min_bytes), 0 },
	{ "low", KV_TENANT_SET_LOW, offsetof(struct mm_limits, low_bytes), 0 },
	{ "high", KV_TENANT_SET_HIGH, offsetof(struct mm_limits, high_bytes), MM_NO_LIMIT },
	{ "max", KV_TENANT_SET_MAX, offsetof(struct mm_limits, max_bytes), MM_NO_LIMIT },
};
#define NR_KNOBS (sizeof(knobs) / sizeof(knobs[0]))

static uint64_t *limit_of(struct mm_limits *l, size_t i)
{
	return (uint64_t *)((char *)l + knobs[i].offset);
}

/* ---- rules --------------------------------------------------------------------------------- */

static bool name_is_good(const char *name)
{
	size_t n = strlen(name);

	for (size_t i = 0; i < n; i++)
		if (!isalnum((unsigned char)name[i]) && !strchr("._-", name[i]))
			return false;
	return n > 0 && n < TENANT_NAME_BYTES && strncmp(name, "uid-", 4) != 0;
}

/* A number, or two with a dash, up to a comma or the end; moves *s behind it. */
static bool parse_range(const char **s, struct tenant_range *r)
{
	char *end;
	unsigned long from, to;

	if (!isdigit((unsigned char)**s))
		return false;
	from = to = strtoul(*s, &end, 10);
	if (*end == '-' && isdigit((unsigned char)end[1]))
		to = strtoul(end + 1, &end, 10);
	while (*end == ' ')
		end++;
	if ((*end && *end != ',') || from > to || to >= UINT32_MAX)
		return false;
	*r = (struct tenant_range){ (uint32_t)from, (uint32_t)to };
	*s = end;
	return true;
}

static int set_ranges(const struct tenant_rule *t, const char *key, const char *value,
		      struct tenant_range *range, uint32_t *nr, char *err, size_t err_len)
{
	const char *s = value;
	bool more = true;

	if (*nr) {
		say(err, err_len, "tenant '%s': %s stands twice: list all of them in one line",
		    t->name, key);
		return -EINVAL;
	}
	while (more) {
		while (*s == ' ')
			s++;
		if (*nr == TENANT_MAX_RANGES) {
			say(err, err_len, "tenant '%s': %s has more than %u ranges: join some, or "
			    "use a gid", t->name, key, TENANT_MAX_RANGES);
			return -EINVAL;
		}
		if (!parse_range(&s, &range[*nr])) {
			say(err, err_len, "tenant '%s': %s = %s is no list of numbers and ranges, "
			    "as in 1000,1003-1010", t->name, key, value);
			return -EINVAL;
		}
		(*nr)++;
		more = *s++ == ',';
	}
	return 0;
}

static int set_limit(const struct tenant_rule *t, struct tenant_change *c, size_t i,
		     const char *value, char *err, size_t err_len)
{
	uint64_t *to = limit_of(&c->limits, i);

	if (!strcmp(value, "none") || (!strcmp(value, "max") && knobs[i].none)) {
		*to = knobs[i].none;
	} else if (!control_parse_bytes(value, to) || *to == MM_NO_LIMIT) {
		say(err, err_len, "tenant '%s': %s = %s is no size: write it as 8G or 512M, or "
		    "none", t->name, knobs[i].name, value);
		return -EINVAL;
	}
	c->mask |= knobs[i].bit;
	return 0;
}

/* "device.N." in front of a limit names one device. */
static struct tenant_change *change_of(struct tenant_rule *t, const char **key)
{
	size_t n = strlen(DEVICE_KEY);
	const char *digit = *key + n;

	if (strncmp(*key, DEVICE_KEY, n))
		return &t->all;
	if (*digit < '0' || *digit >= '0' + (int)MM_MAX_DEVICES || digit[1] != '.')
		return NULL;
	*key = digit + 2;
	return &t->device[*digit - '0'];
}

static int set_knob(struct tenant_rule *t, const char *key, const char *value, char *err,
		    size_t err_len)
{
	const char *name = key;
	struct tenant_change *c = change_of(t, &name);

	for (size_t i = 0; c && i < NR_KNOBS; i++) {
		if (strcmp(knobs[i].name, name))
			continue;
		if (c->mask & knobs[i].bit) {
			say(err, err_len, "tenant '%s': %s stands twice", t->name, key);
			return -EINVAL;
		}
		return set_limit(t, c, i, value, err, err_len);
	}
	say(err, err_len, "tenant '%s': no knob '%s': there are uid, gid, min, low, high, max, "
	    "device.N.max (min, low, high) and oom_action", t->name, key);
	return -EINVAL;
}

static int set_oom(struct tenant_rule *t, const char *value, char *err, size_t err_len)
{
	if (strcmp(value, "none") && strcmp(value, "kill")) {
		say(err, err_len, "tenant '%s': oom_action = %s: it is none or kill", t->name,
		    value);
		return -EINVAL;
	}
	t->all.oom_action = value[0] == 'k' ? MM_OOM_KILL : MM_OOM_NONE;
	t->all.mask |= KV_TENANT_SET_OOM;
	return 0;
}

static int find_rule(struct tenant_rules *rules, const char *name, uint32_t section,
		     struct tenant_rule **out, char *err, size_t err_len)
{
	for (uint32_t i = 0; i < rules->nr; i++) {
		*out = &rules->rule[i];
		if (strcmp(name, (*out)->name))
			continue;
		if ((*out)->section == section)
			return 0;
		say(err, err_len, "tenant '%s' has two sections: join them", name);
		return -EINVAL;
	}
	if (!name_is_good(name)) {
		say(err, err_len, "'%s' is no name for a tenant: 1 to %u letters, digits, '.', '_' "
		    "and '-'; uid-N is that of users without a section", name,
		    TENANT_NAME_BYTES - 1);
		return -EINVAL;
	}
	if (rules->nr == TENANT_MAX_RULES) {
		say(err, err_len, "tenant '%s' is one too many: at most %u sections", name,
		    TENANT_MAX_RULES);
		return -EINVAL;
	}
	*out = &rules->rule[rules->nr++];
	memset(*out, 0, sizeof(**out));
	strcpy((*out)->name, name);
	(*out)->section = section;
	return 0;
}

int tenant_rule_set(struct tenant_rules *rules, const char *name, uint32_t section,
		    const char *key, const char *value, char *err, size_t err_len)
{
	struct tenant_rule *t;
	int ret = find_rule(rules, name, section, &t, err, err_len);

	if (ret < 0)
		return ret;
	if (!strcmp(key, "uid"))
		return set_ranges(t, key, value, t->uid, &t->nr_uids, err, err_len);
	if (!strcmp(key, "gid"))
		return set_ranges(t, key, value, t->gid, &t->nr_gids, err, err_len);
	if (!strcmp(key, "oom_action"))
		return set_oom(t, value, err, err_len);
	return set_knob(t, key, value, err, err_len);
}

static void merge(struct mm_limits *l, const struct tenant_change *c)
{
	struct mm_limits from = c->limits;

	for (size_t i = 0; i < NR_KNOBS; i++)
		if (c->mask & knobs[i].bit)
			*limit_of(l, i) = *limit_of(&from, i);
}

static struct mm_limits no_limits(void)
{
	return (struct mm_limits){ .high_bytes = MM_NO_LIMIT, .max_bytes = MM_NO_LIMIT };
}

static int check_order(const char *name, const struct mm_limits *l, char *err, size_t err_len)
{
	struct mm_limits all = *l;
	char a[24], b[24];

	for (size_t i = 0; i < NR_KNOBS; i++) {
		uint64_t v = *limit_of(&all, i);

		if (v <= TENANT_MAX_BYTES || v == knobs[i].none)
			continue;
		say(err, err_len, "tenant '%s': %s (%s) is more than any device has: at most 64 "
		    "TiB, or none", name, knobs[i].name, control_human_bytes(v, a, sizeof(a)));
		return -EINVAL;
	}
	if (l->low_bytes && l->min_bytes > l->low_bytes) {
		say(err, err_len, "tenant '%s': min (%s) is above low (%s): low is min or more, "
		    "or none", name, control_human_bytes(l->min_bytes, a, sizeof(a)),
		    control_human_bytes(l->low_bytes, b, sizeof(b)));
		return -EINVAL;
	}
	if (l->min_bytes > l->max_bytes) {
		say(err, err_len, "tenant '%s': min (%s) is above max (%s): it could never have "
		    "it", name, control_human_bytes(l->min_bytes, a, sizeof(a)),
		    control_human_bytes(l->max_bytes, b, sizeof(b)));
		return -EINVAL;
	}
	if (l->high_bytes != MM_NO_LIMIT && l->high_bytes > l->max_bytes) {
		say(err, err_len, "tenant '%s': high (%s) is above max (%s): high is max or less, "
		    "or none", name, control_human_bytes(l->high_bytes, a, sizeof(a)),
		    control_human_bytes(l->max_bytes, b, sizeof(b)));
		return -EINVAL;
	}
	return 0;
}

int tenant_rules_check(const struct tenant_rules *rules, uint32_t nr_devices, char *err,
		       size_t err_len)
{
	for (uint32_t i = 0; i < rules->nr; i++) {
		const struct tenant_rule *t = &rules->rule[i];

		if (!t->nr_uids && !t->nr_gids) {
			say(err, err_len, "tenant '%s' has neither uid nor gid: nobody would "
			    "belong to it", t->name);
			return -EINVAL;
		}
		for (uint32_t d = 0; d < MM_MAX_DEVICES; d++) {
			struct mm_limits l = no_limits();

			if (t->device[d].mask && d >= nr_devices) {
				say(err, err_len, "tenant '%s': there is no device.%u: the pool "
				    "has %u, counted from 0", t->name, d, nr_devices);
				return -EINVAL;
			}
			merge(&l, &t->all);
			merge(&l, &t->device[d]);
			if (check_order(t->name, &l, err, err_len) < 0)
				return -EINVAL;
		}
	}
	return 0;
}

/* ---- keys and names ------------------------------------------------------------------------ */

static bool in_ranges(const struct tenant_range *r, uint32_t nr, uint32_t id)
{
	for (uint32_t i = 0; i < nr; i++)
		if (id >= r[i].from && id <= r[i].to)
			return true;
	return false;
}

/* A slot whose tenant mm has forgotten may have another uid. */
static int large_key(struct tenants *t, uint32_t uid, uint32_t *key)
{
	struct mm_tenant_info info;
	uint32_t i = 0;

	while (i < t->nr_large && t->large[i] != uid)
		i++;
	for (uint32_t k = 0; i == TENANT_MAX_LARGE && k < TENANT_MAX_LARGE; k++)
		if (mm_tenant_info(exec_mm(t->exec), TENANT_LARGE + k, &info))
			i = k;
	if (i == TENANT_MAX_LARGE)
		return -EUSERS;
	t->large[i] = uid;
	t->nr_large += i == t->nr_large;
	*key = TENANT_LARGE + i;
	return 0;
}

static int uid_key(struct tenants *t, uint32_t uid, uint32_t *key)
{
	*key = uid;
	return uid < TENANT_CONFIGURED ? 0 : large_key(t, uid, key);
}

int tenants_key(struct tenants *t, uint32_t uid, uint32_t gid, uint32_t *key)
{
	for (uint32_t i = 0; i < t->rules->nr; i++) {
		const struct tenant_rule *r = &t->rules->rule[i];

		if (in_ranges(r->uid, r->nr_uids, uid) || in_ranges(r->gid, r->nr_gids, gid)) {
			*key = TENANT_CONFIGURED | i;
			return 0;
		}
	}
	return uid_key(t, uid, key);
}

const char *tenants_name(const struct tenants *t, uint32_t key, char buf[TENANT_NAME_BYTES])
{
	if (key >= TENANT_LARGE && key - TENANT_LARGE < t->nr_large)
		snprintf(buf, TENANT_NAME_BYTES, "uid-%u", t->large[key - TENANT_LARGE]);
	else if (key >= TENANT_CONFIGURED && key - TENANT_CONFIGURED < t->rules->nr)
		snprintf(buf, TENANT_NAME_BYTES, "%s",
			 t->rules->rule[key - TENANT_CONFIGURED].name);
	else
		snprintf(buf, TENANT_NAME_BYTES, "uid-%u", key);
	return buf;
}

bool tenants_rule(const struct tenants *t, uint32_t i, uint32_t *key)
{
	*key = TENANT_CONFIGURED | i;
	return i < t->rules->nr;
}

static int parse_uid(const char *name, uint32_t *uid, char *err, size_t err_len)
{
	const char *digits = name + 4;
	unsigned long v;
	char *end;

	if (strncmp(name, "uid-", 4) || !isdigit((unsigned char)*digits)) {
		say(err, err_len, "no tenant '%s': kvctl tenant list shows them; one for a single "
		    "user is uid-N, others are sections of the configuration file", name);
		return -ENOENT;
	}
	v = strtoul(digits, &end, 10);
	if (*end || v >= UINT32_MAX || (*digits == '0' && digits[1])) {
		say(err, err_len, "tenant '%s': %s is no user id: write uid-4243", name, digits);
		return -EINVAL;
	}
	*uid = (uint32_t)v;
	return 0;
}

static int find_key(struct tenants *t, const char *name, uint32_t *key, char *err, size_t err_len)
{
	uint32_t uid;
	int ret;

	for (uint32_t i = 0; tenants_rule(t, i, key); i++)
		if (!strcmp(name, t->rules->rule[i].name))
			return 0;
	ret = parse_uid(name, &uid, err, err_len);
	if (ret < 0)
		return ret;
	for (uint32_t i = 0; i < t->rules->nr; i++) {
		const struct tenant_rule *r = &t->rules->rule[i];

		if (!in_ranges(r->uid, r->nr_uids, uid))
			continue;
		say(err, err_len, "tenant '%s': user %u belongs to tenant '%s': set that one", name,
		    uid, r->name);
		return -EINVAL;
	}
	if (uid_key(t, uid, key) == 0)
		return 0;
	say(err, err_len, "tenant '%s': %u users with ids from 2^31 on have tenants, the most "
	    "there may be", name, TENANT_MAX_LARGE);
	return -EUSERS;
}

/* ---- setting limits ------------------------------------------------------------------------ */

bool tenants_reply(struct tenants *t, const struct mm_reply *r)
{
	if (r->cookie != COOKIE)
		return false;
	t->reply = *r;
	t->answered = true;
	return true;
}

static int submit(struct tenants *t, uint32_t key, uint32_t device, const struct mm_limits *l,
		  uint32_t oom_action)
{
	struct mm_request rq = {
		.op = MM_TENANT_SET, .cookie = COOKIE,
		.tenant = { key, device, oom_action, *l },
	};
	int ret;

	t->answered = false;
	ret = exec_submit(t->exec, &rq, loop_now());
	if (ret < 0)
		return ret;
	exec_run(t->exec, loop_now());
	return t->answered ? t->reply.result : -EAGAIN;
}

/* What the mins of all other tenants leave of a device. */
static uint64_t min_left(const struct tenants *t, uint32_t key, uint32_t device)
{
	struct mm *mm = exec_mm(t->exec);
	struct mm_tenant_info info;
	struct mm_meminfo mi;
	uint64_t others = 0;

	mm_meminfo(mm, device, &mi);
	for (uint32_t id = 0; mm_next_tenant(mm, &id, &info);)
		others += info.key == key ? 0 : info.device[device].limits.min_bytes;
	return mi.pool_bytes - others;
}

static int check_new(const struct tenants *t, const char *name, uint32_t key, uint32_t device,
		     const struct mm_limits *l, char *err, size_t err_len)
{
	uint64_t left = min_left(t, key, device);
	char a[24], b[24];

	if (check_order(name, l, err, err_len) < 0)
		return -EINVAL;
	if (l->min_bytes <= left)
		return 0;
	say(err, err_len, "tenant '%s': min %s does not fit device %u: the mins of the other "
	    "tenants leave %s of it; lower one of theirs, or this", name,
	    control_human_bytes(l->min_bytes, a, sizeof(a)), device,
	    control_human_bytes(left, b, sizeof(b)));
	return -ENOMEM;
}

static void now_of(const struct tenants *t, uint32_t key, struct mm_limits *l, uint32_t *oom)
{
	struct mm_tenant_info info;
	bool known = mm_tenant_info(exec_mm(t->exec), key, &info) == 0;

	*oom = known ? info.oom_action : MM_OOM_NONE;
	for (uint32_t d = 0; d < MM_MAX_DEVICES; d++)
		l[d] = known ? info.device[d].limits : no_limits();
}

/* Room comes only from a tenant with neither limits nor engines. */
static void say_full(const struct tenants *t, const char *name, int ret, char *err, size_t err_len)
{
	struct mm_tenant_info info;
	uint32_t nr = 0, idle = 0;

	for (uint32_t id = 0; mm_next_tenant(exec_mm(t->exec), &id, &info); nr++)
		idle += !info.configured && !info.nr_engines;
	if (ret == -EAGAIN && idle)
		say(err, err_len, "tenant '%s': kvd is making room for it: try again", name);
	else
		say(err, err_len, "tenant '%s': kvd has %u tenants with limits or engines, the "
		    "most it can: set the limits of some to none, or raise max_sessions", name,
		    nr - idle);
}

/* Each device to its new limits; after a failure those done already go back. */
static int set_all(struct tenants *t, const char *name, uint32_t key, const struct mm_limits *l,
		   uint32_t oom_action, char *err, size_t err_len)
{
	struct mm_limits old[MM_MAX_DEVICES];
	uint32_t old_oom;
	int ret = 0;

	now_of(t, key, old, &old_oom);
	for (uint32_t d = 0; d < t->nr_devices && ret == 0; d++)
		ret = check_new(t, name, key, d, &l[d], err, err_len);
	for (uint32_t d = 0; d < t->nr_devices && ret == 0; d++) {
		ret = submit(t, key, d, &l[d], oom_action);
		if (ret == 0)
			continue;
		say_full(t, name, ret, err, err_len);
		while (d-- > 0)
			submit(t, key, d, &old[d], old_oom);
	}
	return ret;
}

int tenants_set(struct tenants *t, const char *name, uint32_t device,
		const struct tenant_change *c, uint32_t *key, char *err, size_t err_len)
{
	struct mm_limits l[MM_MAX_DEVICES];
	uint32_t oom;
	int ret = find_key(t, name, key, err, err_len);

	if (ret < 0)
		return ret;
	if (device != MM_ALL_DEVICES && device >= t->nr_devices) {
		say(err, err_len, "tenant '%s': no device %u: the pool has %u, counted from 0",
		    name, device, t->nr_devices);
		return -EINVAL;
	}
	now_of(t, *key, l, &oom);
	for (uint32_t d = 0; d < t->nr_devices; d++)
		if (device == MM_ALL_DEVICES || device == d)
			merge(&l[d], c);
	if (c->mask & KV_TENANT_SET_OOM)
		oom = c->oom_action;
	return set_all(t, name, *key, l, oom, err, err_len);
}

int tenants_apply(struct tenants *t, char *err, size_t err_len)
{
	int ret = 0;

	for (uint32_t i = 0; i < t->rules->nr && ret == 0; i++) {
		const struct tenant_rule *r = &t->rules->rule[i];
		struct mm_limits l[MM_MAX_DEVICES];

		for (uint32_t d = 0; d < MM_MAX_DEVICES; d++) {
			l[d] = no_limits();
			merge(&l[d], &r->all);
			merge(&l[d], &r->device[d]);
		}
		ret = set_all(t, r->name, TENANT_CONFIGURED | i, l, r->all.oom_action, err,
			      err_len);
	}
	return ret;
}

int tenants_create(struct tenants **out, const struct tenant_rules *rules, struct exec *exec,
		   uint32_t nr_devices)
{
	struct tenants *t = calloc(1, sizeof(*t));

	if (!t)
		return -ENOMEM;
	t->rules = rules;
	t->exec = exec;
	t->nr_devices = nr_devices;
	*out = t;
	return 0;
}

void tenants_destroy(struct tenants *t)
{
	free(t);
}
