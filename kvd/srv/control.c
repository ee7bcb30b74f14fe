// SPDX-License-Identifier: Apache-2.0
#include "srv/control.h"

#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>

#include "mm/mm.h"

#define KIB	(1ull << 10)
#define MIB	(1ull << 20)
#define CONTROL_MIN_EXTENT	(2ull << 20)	/* exec's extent_align */
#define GIB	(1ull << 30)
#define TIB	(1ull << 40)

#define at(field) offsetof(struct control, field)
#define say(err, len, ...) snprintf((err), (len), __VA_ARGS__)

const struct control_knob control_knobs[] = {
	{"device", CONTROL_DEVICE, at(device), 0, 4 * MIB, 64 * TIB, "bytes",
	 "a provider of memory and how much of it the pool may take, as in host:1G; say it once a "
	 "device"},
	{"socket", CONTROL_TEXT, at(socket), 0, 0, CONTROL_PATH_BYTES - 1, "path",
	 "where clients connect; empty: $XDG_RUNTIME_DIR/kvd.sock, else /run/kvd/kvd.sock; the "
	 "admin socket is beside it, with .admin at the end"},
	{"group", CONTROL_TEXT, at(group), 0, 0, CONTROL_NAME_BYTES - 1, "name",
	 "group that may connect, to the admin socket too; empty: only kvd's own user and root"},
	{"socket_mode", CONTROL_MODE, at(socket_mode), 0, 0, 0777, "octal",
	 "mode of the client socket; 0: 0660 with a group, else 0600"},
	{"extent_bytes", CONTROL_BYTES, at(extent_bytes), 0, 0, GIB, "bytes",
	 "target size of an extent, 2 MiB or more; 0: a 64th of the pool, between 2 MiB "
	 "and 64 MiB"},
	{"data_bytes", CONTROL_BYTES, at(data_bytes), 8 * MIB, 64 * KIB, 256 * MIB, "bytes",
	 "data area of a session: bounds the prompt that one lookup or commit may name"},
	{"ring_entries", CONTROL_POWER, at(ring_entries), 256, 8, 4096, "entries",
	 "submission and completion ring of a session, each; requests it may have in flight"},
	{"batch_pages", CONTROL_NUMBER, at(batch_pages), 0, 0, 1 << 20, "pages",
	 "most pages one request may name or be granted; 0: as the pool's tables are sized"},
	{"policy", CONTROL_CHOICE, at(policy), MM_POLICY_GITTINS, MM_POLICY_LRU, MM_POLICY_GITTINS,
	 "lru gittins",
	 "which cached pages go first: lru, those used longest ago; gittins, those whose keeping "
	 "is worth least by the reuse seen so far"},
	{"max_sessions", CONTROL_NUMBER, at(max_sessions), 256, 1, 1024, "sessions",
	 "processes connected or not yet gone, of all users"},
	{"max_sessions_per_uid", CONTROL_NUMBER, at(max_sessions_per_uid), 128, 1, 1024, "sessions",
	 "the same, of one user"},
	{"max_admin", CONTROL_NUMBER, at(max_admin), 8, 1, 64, "connections",
	 "admin connections at once"},
	{"hello_ms", CONTROL_NUMBER, at(hello_ms), 2000, 10, 60000, "ms",
	 "how long a new connection may take to say hello"},
	{"spin_us", CONTROL_NUMBER, at(spin_us), 50, 0, 100000, "us",
	 "how long kvd polls a session's ring after its last request before it sleeps"},
	{"wmark_min", CONTROL_NUMBER, at(wmark_min), 0, 0, 500, "permille",
	 "of each device's pool: the last bytes, for tenants below their min only"},
	{"wmark_low", CONTROL_NUMBER, at(wmark_low), 8, 0, 900, "permille",
	 "below so much free cached pages are reclaimed in the background; an extent at least, but "
	 "no watermarks where that is more than a 16th of the pool; 0: none"},
	{"wmark_high", CONTROL_NUMBER, at(wmark_high), 16, 0, 900, "permille",
	 "until so much is free; two extents at least, one where two are more than a 16th"},
	{"answer_ms", CONTROL_NUMBER, at(answer_ms), 1000, 0, 3600000, "ms",
	 "how long an engine has to answer when it is pressed or asked to leave an extent; 0: it "
	 "is not asked, and not killed"},
	{"idle_ms", CONTROL_NUMBER, at(idle_ms), 5000, 0, 3600000, "ms",
	 "an engine that asked nothing for so long is packed into as few extents as it needs and "
	 "one; 0: never"},
	{"check_every", CONTROL_NUMBER, at(check_every), 0, 0, 1ull << 32, "requests",
	 "prove every invariant of the pool after so many requests; 0: never (for tests: it is "
	 "slow)"},
	{"log_level", CONTROL_NUMBER, at(log_level), 6, 3, 7, "level",
	 "3 errors, 4 warnings, 6 sessions coming and going, 7 everything"},
};
const unsigned int control_nr_knobs = sizeof(control_knobs) / sizeof(control_knobs[0]);

static void *field(struct control *c, const struct control_knob *k)
{
	return (char *)c + k->offset;
}

static bool is_text(const struct control_knob *k)
{
	return k->type == CONTROL_TEXT || k->type == CONTROL_DEVICE;
}

void control_init(struct control *c)
{
	memset(c, 0, sizeof(*c));
	for (unsigned int i = 0; i < control_nr_knobs; i++)
		if (!is_text(&control_knobs[i]))
			*(uint64_t *)field(c, &control_knobs[i]) = control_knobs[i].standard;
}

const char *control_human_bytes(uint64_t bytes, char *buf, size_t len)
{
	static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	unsigned int u = 0;
	uint64_t rest = 0;

	while (bytes >= 1024) {
		rest = bytes % 1024;
		bytes /= 1024;
		u++;
	}
	if (u)
		snprintf(buf, len, "%llu.%llu %s", (unsigned long long)bytes,
			 (unsigned long long)(rest * 10 / 1024), unit[u]);
	else
		snprintf(buf, len, "%llu B", (unsigned long long)bytes);
	return buf;
}

/* The digits after a point, as thousandths; *s moves behind them. */
static uint64_t parse_fraction(char **s)
{
	uint64_t thousandths = 0, place = 100;

	if (**s != '.' || !isdigit((unsigned char)(*s)[1]))
		return 0;
	for ((*s)++; isdigit((unsigned char)**s); (*s)++, place /= 10)
		thousandths += place * (uint64_t)(**s - '0');
	return thousandths;
}

/* Digits with an optional size suffix (then also a fraction, as in 1.5GiB) and nothing else. */
static bool parse_number(const char *s, int base, bool suffix, uint64_t *out)
{
	static const char units[] = "KMGT";
	const char *unit;
	uint64_t scale = 1, thousandths;
	char *end;

	if (!isdigit((unsigned char)s[0]))
		return false;
	errno = 0;
	*out = strtoull(s, &end, base);
	if (errno)
		return false;
	thousandths = suffix ? parse_fraction(&end) : 0;
	unit = suffix && *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
	if (unit) {
		scale = KIB << (10 * (unit - units));
		end++;
		if (!strcmp(end, "iB") || !strcmp(end, "B"))
			end += strlen(end);
	}
	return !*end && !(thousandths && !unit) && !__builtin_mul_overflow(*out, scale, out) &&
	       !__builtin_add_overflow(*out, scale * thousandths / 1000, out);
}

bool control_parse_bytes(const char *s, uint64_t *bytes)
{
	return parse_number(s, 10, true, bytes);
}

static int set_number(struct control *c, const struct control_knob *k, const char *value, char *err,
		      size_t err_len)
{
	bool size = k->type == CONTROL_BYTES;
	uint64_t n;

	if (!parse_number(value, k->type == CONTROL_MODE ? 8 : 10, size, &n)) {
		say(err, err_len, "%s=%s is not a number (unit: %s)%s", k->name, value, k->unit,
		    size ? ": write it as 8M or 8388608" : "");
		return -EINVAL;
	}
	if (n < k->min || n > k->max) {
		say(err, err_len,
		    k->type == CONTROL_MODE ? "%s=%s is out of range: %llo to %llo %s"
					    : "%s=%s is out of range: %llu to %llu %s",
		    k->name, value, (unsigned long long)k->min, (unsigned long long)k->max,
		    k->unit);
		return -EINVAL;
	}
	if (k->type == CONTROL_POWER && (n & (n - 1))) {
		say(err, err_len, "%s=%s must be a power of two", k->name, value);
		return -EINVAL;
	}
	*(uint64_t *)field(c, k) = n;
	return 0;
}

/* The n-th word of a list, and its length. */
static const char *word(const char *list, uint64_t n, size_t *len)
{
	for (; n; n--)
		list += strcspn(list, " ") + 1;
	*len = strcspn(list, " ");
	return list;
}

static int set_choice(struct control *c, const struct control_knob *k, const char *value, char *err,
		      size_t err_len)
{
	for (uint64_t n = 0; n <= k->max; n++) {
		size_t len;
		const char *w = word(k->unit, n, &len);

		if (strlen(value) == len && !strncmp(value, w, len)) {
			*(uint64_t *)field(c, k) = n;
			return 0;
		}
	}
	say(err, err_len, "%s='%s' is none of: %s", k->name, value, k->unit);
	return -EINVAL;
}

static int set_text(struct control *c, const struct control_knob *k, const char *value, char *err,
		    size_t err_len)
{
	if (strlen(value) > k->max) {
		say(err, err_len, "%s='%s' is too long: at most %llu bytes", k->name, value,
		    (unsigned long long)k->max);
		return -EINVAL;
	}
	strcpy(field(c, k), value);
	return 0;
}

static int set_device(struct control *c, const struct control_knob *k, const char *value, char *err,
		      size_t err_len)
{
	struct control_device d = { 0 };
	char human[24];

	if (strncmp(value, "host:", 5) || !parse_number(value + 5, 10, true, &d.bytes) ||
	    strlen(value) >= sizeof(d.spec)) {
		say(err, err_len,
		    "device '%s' is none: write host:SIZE, as in host:1G or host:1.5GiB", value);
		return -EINVAL;
	}
	if (d.bytes < k->min || d.bytes > k->max) {
		say(err, err_len, "device '%s' is too %s: a pool has 4 MiB to 64 TiB", value,
		    d.bytes < k->min ? "small" : "big");
		return -EINVAL;
	}
	if (c->nr_devices == CONTROL_MAX_DEVICES) {
		say(err, err_len, "device '%s' is one too many: at most %u (the first is %s: %s)",
		    value, CONTROL_MAX_DEVICES, c->device[0].spec,
		    control_human_bytes(c->device[0].bytes, human, sizeof(human)));
		return -EINVAL;
	}
	strcpy(d.spec, value);
	c->device[c->nr_devices++] = d;
	return 0;
}

int control_set(struct control *c, const char *name, const char *value, char *err, size_t err_len)
{
	for (unsigned int i = 0; i < control_nr_knobs; i++) {
		const struct control_knob *k = &control_knobs[i];

		if (strcmp(k->name, name))
			continue;
		if (k->type == CONTROL_DEVICE)
			return set_device(c, k, value, err, err_len);
		if (k->type == CONTROL_TEXT)
			return set_text(c, k, value, err, err_len);
		if (k->type == CONTROL_CHOICE)
			return set_choice(c, k, value, err, err_len);
		return set_number(c, k, value, err, err_len);
	}
	say(err, err_len, "no knob '%s': kvd --print-knobs lists them", name);
	return -ENOENT;
}

#define TENANT_SECTION "tenant "

#define MAX_LINES	100000u	/* whoever names a device or a disk is told so */

struct load {
	struct control *c;
	FILE *f;
	uint32_t section;	/* how many have begun: inih does not tell two of a name apart */
	int line, empty;	/* empty: the line of a section without a key, which inih skips */
	int began;		/* where a tenant's section without a key so far does; 0: none */
	int ret;
	char why[256];
};

static char *read_line(char *line, int len, void *ctx)
{
	struct load *l = ctx;
	char *got = fgets(line, len, l->f), *at = got ? got + strspn(got, " \t") : NULL;

	if (got && ++l->line > (int)MAX_LINES) {
		say(l->why, sizeof(l->why), "more than %u lines: this is no configuration",
		    MAX_LINES);
		l->ret = -EINVAL;
		return NULL;
	}
	if (at && *at != '[')
		return got;
	if (l->began && !l->ret) {
		say(l->why, sizeof(l->why), "a tenant's section with nothing in it: give it uid or "
		    "gid, and limits");
		l->ret = -EINVAL;
		l->empty = l->began;
		return NULL;
	}
	l->section += at != NULL;
	l->began = at && !strncmp(at + 1, TENANT_SECTION, strlen(TENANT_SECTION)) ? l->line : 0;
	return got;
}

static int load_tenant(struct load *l, const char *name, const char *key, const char *value)
{
	return tenant_rule_set(&l->c->tenants, name, l->section, key, value, l->why,
			       sizeof(l->why));
}

static int load_line(void *ctx, const char *section, const char *name, const char *value)
{
	struct load *l = ctx;

	if (l->ret)
		return 0;
	l->began = 0;
	if (!strncmp(section, TENANT_SECTION, strlen(TENANT_SECTION))) {
		l->ret = load_tenant(l, section + strlen(TENANT_SECTION), name,
				     value ? value : "");
	} else if (strcmp(section, "kvd")) {
		say(l->why, sizeof(l->why), "section [%s] is unknown: knobs stand in [kvd], "
		    "tenants in [tenant NAME]", section);
		l->ret = -EINVAL;
	} else {
		l->ret = control_set(l->c, name, value ? value : "", l->why, sizeof(l->why));
	}
	return l->ret == 0;
}

int control_load(struct control *c, const char *path, char *err, size_t err_len)
{
	struct control next = *c;
	struct load l = { .c = &next, .f = fopen(path, "re") };
	FILE *f = l.f;
	int line;

	if (!f) {
		int ret = -errno;

		say(err, err_len, "cannot read configuration '%s': %s", path, strerror(errno));
		return ret;
	}
	line = ini_parse_stream(read_line, &l, load_line, &l);
	if (ferror(f))
		line = -1;
	fclose(f);
	if (line < 0 || l.ret) {
		say(err, err_len, "%s:%d: %s", path, l.empty ? l.empty : line > 0 ? line : l.line,
		    l.ret ? l.why : "cannot be read");
		return l.ret ? l.ret : -EIO;
	}
	if (line > 0) {
		say(err, err_len, "%s:%d: neither '[kvd]', '[tenant NAME]' nor 'knob = value'",
		    path, line);
		return -EINVAL;
	}
	*c = next;
	return 0;
}

void control_device_name(const struct control *c, uint32_t device, char *buf, size_t len)
{
	const char *spec = c->device[device].spec;
	int n = (int)strcspn(spec, ":");

	if (c->nr_devices > 1)
		snprintf(buf, len, "%.*s:%u", n, spec, device);
	else
		snprintf(buf, len, "%.*s", n, spec);
}

int control_check(const struct control *c, char *err, size_t err_len)
{
	if (!c->nr_devices) {
		say(err, err_len,
		    "no device: say how much memory the pool has, as in --device host:1G");
		return -EINVAL;
	}
	if (!c->socket[0]) {
		say(err, err_len,
		    "no socket: say where clients connect, as in --socket /run/kvd/kvd.sock");
		return -EINVAL;
	}
	if (strlen(c->socket) + sizeof(".admin") > CONTROL_PATH_BYTES) {
		say(err, err_len,
		    "socket '%s' is too long: at most %zu bytes; choose another --socket",
		    c->socket, CONTROL_PATH_BYTES - sizeof(".admin"));
		return -ENAMETOOLONG;
	}
	if (c->extent_bytes && c->extent_bytes < CONTROL_MIN_EXTENT) {
		say(err, err_len,
		    "extent_bytes is below 2 MiB, the least a device gives: use 0 or 2M and more");
		return -EINVAL;
	}
	for (uint32_t d = 0; d < c->nr_devices; d++) {
		if (c->extent_bytes > c->device[d].bytes) {
			say(err, err_len,
			    "extent_bytes is more than device '%s' has: make it smaller",
			    c->device[d].spec);
			return -EINVAL;
		}
	}
	if (c->wmark_min > c->wmark_low || c->wmark_low > c->wmark_high) {
		say(err, err_len, "wmark_min, wmark_low and wmark_high must ascend");
		return -EINVAL;
	}
	return tenant_rules_check(&c->tenants, c->nr_devices, err, err_len);
}

static void print_value(FILE *f, const struct control_knob *k, uint64_t v)
{
	char buf[24];
	size_t len;
	const char *w;

	if (k->type == CONTROL_CHOICE) {
		w = word(k->unit, v, &len);
		fprintf(f, " %.*s |", (int)len, w);
	} else if (k->type == CONTROL_BYTES || k->type == CONTROL_DEVICE) {
		fprintf(f, " %s |", v ? control_human_bytes(v, buf, sizeof(buf)) : "0");
	} else {
		fprintf(f, k->type == CONTROL_MODE && v ? " 0%llo |" : " %llu |",
			(unsigned long long)v);
	}
}

void control_print(FILE *f)
{
	fprintf(f, "| knob | default | min | max | unit | meaning |\n|---|---|---|---|---|---|\n");
	for (unsigned int i = 0; i < control_nr_knobs; i++) {
		const struct control_knob *k = &control_knobs[i];

		fprintf(f, "| %s |", k->name);
		if (is_text(k))
			fprintf(f, " |");
		else
			print_value(f, k, k->standard);
		if (k->type == CONTROL_TEXT) {
			fprintf(f, " | %llu bytes |", (unsigned long long)k->max);
		} else {
			print_value(f, k, k->min);
			print_value(f, k, k->max);
		}
		fprintf(f, " %s | %s |\n", k->unit, k->help);
	}
}
