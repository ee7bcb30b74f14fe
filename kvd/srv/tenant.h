/* SPDX-License-Identifier: Apache-2.0 */
/* tenant - who is which tenant, by what name, and with which limits
 *
 * Model:      a configuration section [tenant NAME] has a rule (users, groups) and limits:
 *
 *               [tenant batch]
 *               uid = 1000,1003-1010
 *               gid = 200
 *               min = 2G
 *               max = 8G
 *               device.1.max = none
 *               oom_action = kill
 *
 *             A user belongs to the first section, in the order of the file, that names its uid or
 *             its primary gid; one that none names is a tenant of its own, uid-N.
 *             mm knows tenants by key: a section is TENANT_CONFIGURED | its place, a uid below 2^31
 *             is its own key, one above gets a slot of TENANT_LARGE when it first appears.
 * Invariants: a key means one tenant as long as mm knows it; names are unique, uid-N is nobody
 *             else's. Setting limits is all or none.
 * Context:    the loop's thread; rules at startup.
 * Limits:     TENANT_MAX_RULES sections of TENANT_MAX_RANGES ranges; TENANT_MAX_LARGE uids of 2^31
 *             and more at a time.
 * Errors:     -errno with one line in err that names the tenant, the limit and the way out.
 * See:        docs/tenants.md, tests/unit/srv/tenant_test.c
 */
#ifndef TENANT_H
#define TENANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kv_admin.h"
#include "srv/exec.h"

#define TENANT_NAME_BYTES	32u
#define TENANT_MAX_RULES	64u
#define TENANT_MAX_RANGES	16u
#define TENANT_MAX_LARGE	256u
#define TENANT_CONFIGURED	0x80000000u
#define TENANT_LARGE		0x80000100u
#define TENANT_MAX_BYTES	(64ull << 40)	/* as a device's */

struct tenant_change {
	uint32_t mask;			/* KV_TENANT_SET_MIN..: the knobs it is about */
	uint32_t oom_action;		/* enum mm_oom_action */
	struct mm_limits limits;
};

struct tenant_range {
	uint32_t from, to;		/* both included */
};

struct tenant_rule {
	char name[TENANT_NAME_BYTES];
	uint32_t section;		/* which of the file's, to find a name used twice */
	uint32_t nr_uids, nr_gids;
	struct tenant_range uid[TENANT_MAX_RANGES], gid[TENANT_MAX_RANGES];
	struct tenant_change all, device[MM_MAX_DEVICES];
};

struct tenant_rules {
	uint32_t nr;
	struct tenant_rule rule[TENANT_MAX_RULES];
};

/* One line of a [tenant NAME] section. */
int tenant_rule_set(struct tenant_rules *, const char *name, uint32_t section, const char *key,
		    const char *value, char *err, size_t err_len);
/* Among themselves, and for a pool of so many devices. */
int tenant_rules_check(const struct tenant_rules *, uint32_t nr_devices, char *err, size_t err_len);

struct tenants;

int tenants_create(struct tenants **, const struct tenant_rules *, struct exec *,
		   uint32_t nr_devices);
void tenants_destroy(struct tenants *);
int tenants_apply(struct tenants *, char *err, size_t err_len);	/* the limits of the rules */

/* -EUSERS: too many large uids. */
int tenants_key(struct tenants *, uint32_t uid, uint32_t gid, uint32_t *key);
const char *tenants_name(const struct tenants *, uint32_t key, char buf[TENANT_NAME_BYTES]);
/* device: one, or MM_ALL_DEVICES. Makes the tenant if mm does not know it yet. */
int tenants_set(struct tenants *, const char *name, uint32_t device, const struct tenant_change *,
		uint32_t *key, char *err, size_t err_len);
/* The key of the i-th section; false: there are fewer. */
bool tenants_rule(const struct tenants *, uint32_t i, uint32_t *key);
bool tenants_reply(struct tenants *, const struct mm_reply *);	/* struct exec_ops: was it ours? */

#endif
