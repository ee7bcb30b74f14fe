/* SPDX-License-Identifier: Apache-2.0 */
/* control - the one table of knobs
 *
 * Model:      a knob has a name, type, default, range, unit and help. Command line, configuration
 *             file and `kvd --print-knobs` (docs/knobs.md) all come from control_knobs[]. The
 *             file's [tenant NAME] sections go to tenant.h.
 * Invariants: a struct control only ever holds values inside their range.
 * Context:    startup, one thread.
 * Units:      in the name or in the table; sizes accept K, M, G, T (powers of 1024).
 * Errors:     -EINVAL, -ENOENT, -errno of the file, with one line in err that names the knob, the
 *             limit and the way out; unchanged on error.
 * See:        docs/knobs.md, tests/unit/srv/control_test.c
 */
#ifndef CONTROL_H
#define CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "srv/tenant.h"

#define CONTROL_MAX_DEVICES	8u
#define CONTROL_PATH_BYTES	108u
#define CONTROL_NAME_BYTES	64u

struct control_device {
	char spec[CONTROL_NAME_BYTES];	/* as given: "host:1G" */
	uint64_t bytes;
};

struct control {
	struct control_device device[CONTROL_MAX_DEVICES];
	uint32_t nr_devices;
	char socket[CONTROL_PATH_BYTES];
	char group[CONTROL_NAME_BYTES];
	uint64_t socket_mode, extent_bytes, data_bytes, ring_entries, batch_pages;
	uint64_t max_sessions, max_sessions_per_uid, max_admin, policy;
	uint64_t hello_ms, spin_us, check_every, log_level;
	uint64_t wmark_min, wmark_low, wmark_high, answer_ms, idle_ms;
	struct tenant_rules tenants;	/* sections [tenant NAME] */
};

enum control_type {
	CONTROL_NUMBER,
	CONTROL_BYTES,
	CONTROL_MODE,		/* octal */
	CONTROL_POWER,		/* a power of two */
	CONTROL_CHOICE,		/* a word of unit, by its place there; standard, min, max too */
	CONTROL_TEXT,
	CONTROL_DEVICE,		/* may be said again: one more device */
};

struct control_knob {
	const char *name;
	enum control_type type;
	size_t offset;		/* in struct control */
	uint64_t standard, min, max;
	const char *unit, *help;
};

extern const struct control_knob control_knobs[];
extern const unsigned int control_nr_knobs;

void control_init(struct control *);	/* every knob at its default */
int control_set(struct control *, const char *name, const char *value, char *err, size_t err_len);
int control_load(struct control *, const char *path, char *err, size_t err_len);
int control_check(const struct control *, char *err, size_t err_len);	/* knobs among themselves */
void control_print(FILE *);		/* the markdown table */

/* "512M", "1.5GiB", "4096" and nothing else. */
bool control_parse_bytes(const char *, uint64_t *bytes);
/* "host", or "host:1" where there are more devices. */
void control_device_name(const struct control *, uint32_t device, char *buf, size_t len);
/* "1.5 GiB"; buf of 24 bytes or more. */
const char *control_human_bytes(uint64_t bytes, char *buf, size_t len);

#endif
