// SPDX-License-Identifier: Apache-2.0
#include "srv/admin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/log.h"
#include "kv_admin.h"
#include "srv/pressure.h"

#define RETRY_NS	100000000ull
#define UNSEEN		0x80000000u	/* a tenant's cursor: | the section, instead of mm's id */

struct conn {
	struct admin *admin;
	int fd;			/* -1: free */
	uint64_t busy_ns;	/* when it last asked, or took an answer */
	uint64_t op;		/* recv or send */
	uint32_t cmd;
	uint32_t cursor;	/* where the next packet goes on; meaning by command */
	bool more;
};

struct packet {
	struct kv_admin_head head;
	uint8_t records[];
};

struct admin {
	struct admin_config cfg;
	uint64_t accept_op, checks;
	uint64_t accept_ns;	/* no accept_op: when to try for one */
	uint64_t due_ns;	/* nothing to do in admin_run before */
	uint32_t nr_conns;
	uint32_t set_key;	/* the tenant whose new state is being answered */
	struct packet *packet;	/* KV_ADMIN_PACKET, filled and sent within one callback */
	struct conn conn[];
};

struct command {
	const char *name;
	uint32_t record_bytes;
	/* The next record; false: there is none. */
	bool (*next)(struct admin *, uint32_t *cursor, void *record);
};

static void received(void *ctx, int res, const struct loop_msg *msg);

/* ---- records ------------------------------------------------------------------------------- */

static bool next_status(struct admin *a, uint32_t *cursor, void *record)
{
	struct kv_admin_status *out = record;
	struct mm_engine_info engine;
	struct mm_cache_info cache;
	struct sessions_stats st;
	uint32_t id;

	if ((*cursor)++)
		return false;
	sessions_stats(a->cfg.sessions, &st);
	snprintf(out->release, sizeof(out->release), "%s", a->cfg.release);
	snprintf(out->socket, sizeof(out->socket), "%s", a->cfg.control->socket);
	out->pid = (uint32_t)getpid();
	out->nr_devices = a->cfg.control->nr_devices;
	for (id = 0; mm_next_engine(exec_mm(a->cfg.exec), &id, &engine);)
		out->nr_engines++;
	for (id = 0; mm_next_cache(exec_mm(a->cfg.exec), &id, &cache);)
		out->nr_caches++;
	out->nr_sessions = st.nr_live;
	out->uptime_ns = loop_now() - a->cfg.started_ns;
	out->requests = st.requests;
	out->loop_wakeups = loop_wakeups(a->cfg.loop);
	out->checks = st.checks + a->checks;
	return true;
}

static bool next_check(struct admin *a, uint32_t *cursor, void *record)
{
	if (*cursor == 0) {
		mm_check(exec_mm(a->cfg.exec));
		a->checks++;
	}
	return next_status(a, cursor, record);
}

static bool next_meminfo(struct admin *a, uint32_t *cursor, void *record)
{
	const struct control *c = a->cfg.control;
	struct kv_admin_meminfo *out = record;
	struct mm_meminfo in;
	uint32_t device = *cursor;

	if (device >= c->nr_devices)
		return false;
	(*cursor)++;
	mm_meminfo(exec_mm(a->cfg.exec), device, &in);
	*out = (struct kv_admin_meminfo){
		.pool_bytes = in.pool_bytes, .extent_bytes = in.extent_bytes,
		.reserved_bytes = in.reserved_bytes, .free_bytes = in.free_bytes,
		.held_bytes = in.held_bytes, .cached_bytes = in.cached_bytes,
		.leased_bytes = in.leased_bytes, .quarantined_bytes = in.quarantined_bytes,
		.frame_free_bytes = in.frame_free_bytes, .nr_extents = in.nr_extents,
		.promised_bytes = in.promised_bytes,
	};
	control_device_name(c, device, out->name, sizeof(out->name));
	return true;
}

static bool next_engine(struct admin *a, uint32_t *cursor, void *record)
{
	struct kv_admin_engine *out = record;
	struct session_info who;
	struct mm_engine_info in;

	if (!mm_next_engine(exec_mm(a->cfg.exec), cursor, &in))
		return false;
	*out = (struct kv_admin_engine){
		.engine = in.engine, .tenant_uid = in.tenant_uid, .nr_members = in.nr_members,
		.fenced = in.fenced, .nr_extents = in.nr_extents, .nr_leases = in.nr_leases,
		.nr_parks = in.nr_parks, .held_pages = in.held_pages, .held_bytes = in.held_bytes,
		.quarantined_pages = in.quarantined_pages, .extent_bytes = in.extent_bytes,
		.reserved_bytes = in.reserved_bytes, .allocs = in.allocs, .frees = in.frees,
		.lookup_tokens = in.lookup_tokens, .hit_tokens = in.hit_tokens,
		.commits = in.commits,
	};
	if (sessions_engine(a->cfg.sessions, in.engine, &who)) {
		memcpy(out->name, who.name, sizeof(out->name));
		out->pid = (uint32_t)who.pid;
		out->age_ns = loop_now() - who.born_ns;
	}
	tenants_name(a->cfg.tenants, in.tenant_uid, out->tenant);
	return true;
}

static bool next_cache(struct admin *a, uint32_t *cursor, void *record)
{
	struct kv_admin_cache *out = record;
	struct mm_cache_info in;

	if (!mm_next_cache(exec_mm(a->cfg.exec), cursor, &in))
		return false;
	*out = (struct kv_admin_cache){
		.cache = in.cache, .tenant_uid = in.tenant_uid, .nr_engines = in.nr_engines,
		.page_tokens = in.page_tokens, .nr_groups = in.nr_groups, .nr_shards = in.nr_shards,
		.nr_extents = in.nr_extents, .shared = in.shared, .held_pages = in.held_pages,
		.cached_pages = in.cached_pages, .leased_pages = in.leased_pages,
		.free_pages = in.free_pages, .nodes = in.nodes, .cached_tokens = in.cached_tokens,
		.page_bytes = in.page_bytes, .lookup_tokens = in.lookup_tokens,
		.hit_tokens = in.hit_tokens,
	};
	memcpy(out->model_key, in.model_key, sizeof(out->model_key));
	tenants_name(a->cfg.tenants, in.tenant_uid, out->tenant);
	return true;
}

static void fill_workingset(struct admin *a, struct kv_admin_tenant *out)
{
	struct mm_workingset_info ws;

	_Static_assert(MM_LOG2_BUCKETS == KV_LOG2_BUCKETS, "the same buckets");
	if (mm_workingset(exec_mm(a->cfg.exec), out->key, &ws) < 0)
		return;
	out->evictions = ws.evictions;
	out->refaults = ws.refaults;
	memcpy(out->refault_distance, ws.distance, sizeof(out->refault_distance));
	memcpy(out->reuse_gap_ms, ws.gap_ms, sizeof(out->reuse_gap_ms));
}

static void fill_tenant(struct admin *a, const struct mm_tenant_info *in,
			struct kv_admin_tenant *out)
{
	*out = (struct kv_admin_tenant){
		.key = in->key, .nr_engines = in->nr_engines, .nr_caches = in->nr_caches,
		.nr_devices = a->cfg.control->nr_devices, .oom_action = in->oom_action,
		.configured = in->configured, .low_events = in->events[MM_MEMCG_LOW],
		.high_events = in->events[MM_MEMCG_HIGH], .max_events = in->events[MM_MEMCG_MAX],
		.oom_events = in->events[MM_MEMCG_OOM], .oom_kills = in->oom_kills,
		.lookup_tokens = in->lookup_tokens, .hit_tokens = in->hit_tokens,
	};
	tenants_name(a->cfg.tenants, in->key, out->name);
	fill_workingset(a, out);
	for (uint32_t d = 0; d < MM_MAX_DEVICES; d++) {
		const struct mm_tenant_device *m = &in->device[d];

		out->device[d] = (struct kv_admin_tenant_device){
			.min_bytes = m->limits.min_bytes, .low_bytes = m->limits.low_bytes,
			.high_bytes = m->limits.high_bytes, .max_bytes = m->limits.max_bytes,
			.current_bytes = m->charge_bytes, .peak_bytes = m->peak_bytes,
			.leaving_bytes = m->leaving_bytes, .reserved_bytes = m->reserved_bytes,
			.promised_bytes = m->promised_bytes, .held_bytes = m->held_bytes,
			.cached_bytes = m->cached_bytes, .leased_bytes = m->leased_bytes,
			.quarantined_bytes = m->quarantined_bytes, .free_bytes = m->free_bytes,
		};
	}
}

/* One that mm does not know is as one nobody ever saw; true: mm knows it. */
static bool get_tenant(struct admin *a, uint32_t key, struct mm_tenant_info *in)
{
	*in = (struct mm_tenant_info){ .key = key };
	for (uint32_t d = 0; d < MM_MAX_DEVICES; d++)
		in->device[d].limits.high_bytes = in->device[d].limits.max_bytes = MM_NO_LIMIT;
	return mm_tenant_info(exec_mm(a->cfg.exec), key, in) == 0;
}

/* Those mm knows, then the sections without limits that nobody has used yet. */
static bool next_tenant(struct admin *a, uint32_t *cursor, void *record)
{
	struct mm_tenant_info in;
	uint32_t key;
	bool unseen = false;

	if (!(*cursor & UNSEEN) && mm_next_tenant(exec_mm(a->cfg.exec), cursor, &in)) {
		fill_tenant(a, &in, record);
		return true;
	}
	for (*cursor |= UNSEEN; !unseen; (*cursor)++) {
		if (!tenants_rule(a->cfg.tenants, *cursor & ~UNSEEN, &key))
			return false;
		unseen = !get_tenant(a, key, &in);
	}
	fill_tenant(a, &in, record);
	return true;
}

/* A tenant whose limits were set to the default may be gone. */
static bool next_set(struct admin *a, uint32_t *cursor, void *record)
{
	struct mm_tenant_info in;

	if ((*cursor)++)
		return false;
	get_tenant(a, a->set_key, &in);
	fill_tenant(a, &in, record);
	return true;
}

#define MM_ROW(field, text) { #field, text, offsetof(struct mm_vmstat, field) },
static const struct {
	const char *name, *help;
	size_t offset;
} mm_rows[] = { MM_VMSTAT(MM_ROW) };
#define NR_MM_ROWS (sizeof(mm_rows) / sizeof(mm_rows[0]))

static bool session_counter(struct admin *a, uint32_t row, struct kv_admin_counter *out)
{
	struct sessions_stats st;

	sessions_stats(a->cfg.sessions, &st);
	const struct {
		const char *name, *help;
		uint64_t value;
	} rows[] = {
		{ "requests", "ring entries taken", st.requests },
		{ "sessions", "sessions now", st.nr_live },
		{ "sessions_linger", "sessions that ended, their process alive", st.nr_linger },
		{ "sessions_hello", "connections that have not said hello", st.nr_hello },
		{ "sessions_refused", "handshakes refused", st.refused },
		{ "sessions_broken", "sessions ended for breaking the protocol", st.broken },
		{ "loop_wakeups", "times the daemon slept and woke", loop_wakeups(a->cfg.loop) },
	};

	if (row >= sizeof(rows) / sizeof(rows[0]))
		return false;
	snprintf(out->name, sizeof(out->name), "%s", rows[row].name);
	snprintf(out->help, sizeof(out->help), "%s", rows[row].help);
	out->value = rows[row].value;
	return true;
}

static bool next_counter(struct admin *a, uint32_t *cursor, void *record)
{
	const struct mm_vmstat *vmstat = mm_vmstat(exec_mm(a->cfg.exec));
	struct kv_admin_counter *out = record;
	uint32_t row = (*cursor)++;

	if (row >= NR_MM_ROWS)
		return session_counter(a, row - (uint32_t)NR_MM_ROWS, out);
	snprintf(out->name, sizeof(out->name), "%s", mm_rows[row].name);
	snprintf(out->help, sizeof(out->help), "%s", mm_rows[row].help);
	memcpy(&out->value, (const char *)vmstat + mm_rows[row].offset, sizeof(out->value));
	return true;
}

static struct pressure_view view(const struct admin *a)
{
	return (struct pressure_view){ a->cfg.exec, a->cfg.sessions, a->cfg.tenants,
				       a->cfg.control };
}

static bool next_pressure(struct admin *a, uint32_t *cursor, void *record)
{
	const struct pressure_view v = view(a);

	return pressure_next(&v, cursor, record);
}

static bool next_oom(struct admin *a, uint32_t *cursor, void *record)
{
	const struct pressure_view v = view(a);
	uint64_t seq = *cursor;
	bool is = pressure_next_oom(&v, &seq, record);

	*cursor = (uint32_t)seq;
	return is;
}

static const struct command commands[] = {
	[KV_ADMIN_STATUS] = { "status", sizeof(struct kv_admin_status), next_status },
	[KV_ADMIN_MEMINFO] = { "meminfo", sizeof(struct kv_admin_meminfo), next_meminfo },
	[KV_ADMIN_ENGINES] = { "engines", sizeof(struct kv_admin_engine), next_engine },
	[KV_ADMIN_CACHES] = { "caches", sizeof(struct kv_admin_cache), next_cache },
	[KV_ADMIN_VMSTAT] = { "vmstat", sizeof(struct kv_admin_counter), next_counter },
	[KV_ADMIN_TENANTS] = { "tenants", sizeof(struct kv_admin_tenant), next_tenant },
	[KV_ADMIN_TENANT_SET] = { "tenant set", sizeof(struct kv_admin_tenant), next_set },
	[KV_ADMIN_PRESSURE] = { "pressure", sizeof(struct kv_admin_pressure), next_pressure },
	[KV_ADMIN_OOM] = { "oom", sizeof(struct kv_admin_oom), next_oom },
	[KV_ADMIN_CHECK] = { "check", sizeof(struct kv_admin_status), next_check },
};

/* ---- connections --------------------------------------------------------------------------- */

static void hang_up(struct conn *c)
{
	struct loop *l = c->admin->cfg.loop;

	loop_cancel(l, c->op);
	loop_close(l, c->fd);
	*c = (struct conn){ .admin = c->admin, .fd = -1 };
}

static void listen_to(struct conn *c)
{
	c->op = loop_recv(c->admin->cfg.loop, c->fd, sizeof(struct kv_admin_tenant_set), received,
			  c);
	if (!c->op)
		hang_up(c);
}

static void send_more(struct conn *c);

static void sent(void *ctx, int res, const struct loop_msg *msg)
{
	struct conn *c = ctx;

	(void)msg;
	c->op = 0;
	c->busy_ns = loop_now();
	if (res < 0)
		hang_up(c);
	else if (c->more)
		send_more(c);
	else
		listen_to(c);
}

static void send_packet(struct conn *c, size_t bytes)
{
	struct packet *p = c->admin->packet;

	p->head.magic = KV_ADMIN_MAGIC;
	p->head.version = KV_ABI_VERSION;
	p->head.cmd = c->cmd;
	c->op = loop_send(c->admin->cfg.loop, c->fd, p, sizeof(*p) + bytes, NULL, 0, false, sent,
			  c);
	if (!c->op)
		hang_up(c);
}

/* A full packet may be the last one: then an empty one without MORE follows. */
static void send_more(struct conn *c)
{
	const struct command *cmd = &commands[c->cmd];
	uint32_t room = (KV_ADMIN_PACKET - (uint32_t)sizeof(struct packet)) / cmd->record_bytes;
	struct packet *p = c->admin->packet;
	uint32_t nr = 0;

	memset(p, 0, KV_ADMIN_PACKET);
	while (nr < room && cmd->next(c->admin, &c->cursor, p->records + nr * cmd->record_bytes))
		nr++;
	c->more = nr == room;
	p->head.nr = nr;
	p->head.record_bytes = cmd->record_bytes;
	p->head.flags = c->more ? KV_ADMIN_MORE : 0;
	send_packet(c, nr * cmd->record_bytes);
}

static void send_error(struct conn *c, int err, const char *text)
{
	struct packet *p = c->admin->packet;
	struct kv_admin_text *t = (struct kv_admin_text *)p->records;

	memset(p, 0, sizeof(*p) + sizeof(*t));
	p->head.result = err;
	p->head.nr = 1;
	p->head.record_bytes = sizeof(*t);
	snprintf(t->text, sizeof(t->text), "%s", text);
	c->more = false;
	send_packet(c, sizeof(*t));
}

static void set_tenant(struct conn *c, const struct kv_admin_tenant_set *q)
{
	const struct tenant_change change = {
		.mask = q->mask, .oom_action = q->oom_action,
		.limits = { q->min_bytes, q->low_bytes, q->high_bytes, q->max_bytes },
	};
	struct admin *a = c->admin;
	char text[KV_TEXT_BYTES] = "";
	int ret;

	if (q->reserved || !memchr(q->name, 0, sizeof(q->name)) || q->mask & ~31u ||
	    q->oom_action > MM_OOM_KILL) {
		send_error(c, -EINVAL, "kvd knows no such change: use the kvctl of this release");
		return;
	}
	ret = tenants_set(a->cfg.tenants, q->name, q->device, &change, &a->set_key, text,
			  sizeof(text));
	if (ret < 0)
		send_error(c, ret, text);
	else
		send_more(c);
}

static size_t request_bytes(uint32_t cmd)
{
	return cmd == KV_ADMIN_TENANT_SET ? sizeof(struct kv_admin_tenant_set) :
					    sizeof(struct kv_admin_request);
}

static void received(void *ctx, int res, const struct loop_msg *msg)
{
	struct conn *c = ctx;
	struct kv_admin_tenant_set set = { 0 };
	const struct kv_admin_request *req = &set.head;

	c->op = 0;
	if (res <= 0 || msg->control) {
		hang_up(c);
		return;
	}
	memcpy(&set, msg->data, msg->len < sizeof(set) ? msg->len : sizeof(set));
	c->busy_ns = loop_now();
	c->cmd = req->cmd;
	c->cursor = 0;
	if (msg->truncated || msg->len != request_bytes(req->cmd) || req->magic != KV_ADMIN_MAGIC)
		send_error(c, -EPROTO, "this is not an admin request: is this kvctl?");
	else if (req->version != KV_ABI_VERSION)
		send_error(c, -EPROTO, "another ABI version: use the kvctl of this release");
	else if (req->reserved || req->cmd >= sizeof(commands) / sizeof(commands[0]) ||
		 !commands[req->cmd].next)
		send_error(c, -EINVAL, "kvd knows no such command: use the kvctl of this release");
	else if (req->cmd == KV_ADMIN_TENANT_SET)
		set_tenant(c, &set);
	else
		send_more(c);
}

/* Once: the next pass goes on. */
static void accepted(void *ctx, int res, const struct loop_msg *msg)
{
	struct admin *a = ctx;
	struct conn *c = NULL;

	(void)msg;
	a->accept_op = 0;
	a->due_ns = 0;
	if (res < 0) {
		log_error("accept on the admin socket: %s", strerror(-res));
		a->accept_ns = loop_now() + RETRY_NS;
		return;
	}
	for (uint32_t i = 0; i < a->nr_conns && !c; i++)
		c = a->conn[i].fd < 0 ? &a->conn[i] : NULL;
	if (c) {
		c->fd = res;
		c->busy_ns = loop_now();
		listen_to(c);
	} else {
		log_warn("admin connection refused: %u are open, the most (max_admin)",
			 a->nr_conns);
		close(res);
	}
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Whatever kept accept from being under way, it is tried again. */
static uint64_t run_accept(struct admin *a, uint64_t now_ns)
{
	if (!a->accept_op && a->accept_ns <= now_ns) {
		a->accept_op = loop_accept(a->cfg.loop, a->cfg.listen_fd, accepted, a);
		if (!a->accept_op)
			a->accept_ns = now_ns + RETRY_NS;
	}
	return a->accept_op ? LOOP_NEVER : a->accept_ns;
}

static bool is_full(const struct admin *a)
{
	for (uint32_t i = 0; i < a->nr_conns; i++)
		if (a->conn[i].fd < 0)
			return false;
	return true;
}

uint64_t admin_run(struct admin *a, uint64_t now_ns)
{
	if (now_ns < a->due_ns)
		return a->due_ns;
	a->due_ns = run_accept(a, now_ns);
	if (!is_full(a))
		return a->due_ns;
	for (uint32_t i = 0; i < a->nr_conns; i++) {
		struct conn *c = &a->conn[i];

		if (now_ns >= c->busy_ns + ADMIN_IDLE_NS)
			hang_up(c);
		else
			a->due_ns = earlier(a->due_ns, c->busy_ns + ADMIN_IDLE_NS);
	}
	return a->due_ns;
}

int admin_create(struct admin **out, const struct admin_config *cfg)
{
	uint32_t nr = (uint32_t)cfg->control->max_admin;
	struct admin *a = calloc(1, sizeof(*a) + nr * sizeof(a->conn[0]));
	struct packet *p = calloc(1, KV_ADMIN_PACKET);

	if (!a || !p) {
		free(a);
		free(p);
		return -ENOMEM;
	}
	a->cfg = *cfg;
	a->packet = p;
	a->nr_conns = nr;
	for (uint32_t i = 0; i < nr; i++)
		a->conn[i] = (struct conn){ .admin = a, .fd = -1 };
	*out = a;
	return 0;
}

void admin_destroy(struct admin *a)
{
	if (!a)
		return;
	loop_cancel(a->cfg.loop, a->accept_op);
	for (uint32_t i = 0; i < a->nr_conns; i++)
		hang_up(&a->conn[i]);
	free(a->packet);
	free(a);
}
