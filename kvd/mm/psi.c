// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core.h"
#include "psi.h"

#define ONE (1ull << PSI_SHIFT)

/* exp(-2 s / window) for 10, 60 and 300 s */
static const uint32_t decay[PSI_AVGS] = { 879105452, 1038540380, 1066607353 };

/* ---- averages ------------------------------------------------------------------------------ */

static uint64_t times(uint64_t a, uint64_t b)
{
	return (a * b + ONE / 2) >> PSI_SHIFT;
}

static uint64_t power(uint64_t x, uint64_t n)
{
	uint64_t result = ONE;

	for (; n && result; n >>= 1, x = times(x, x))
		if (n & 1)
			result = times(result, x);
	return result;
}

/* n periods with the same share of stalled time. */
static void fold(struct psi *p, enum psi_kind kind, uint64_t share, uint64_t n)
{
	for (uint32_t i = 0; i < PSI_AVGS; i++) {
		uint64_t e = power(decay[i], n);

		p->avg[kind][i] = (uint32_t)(times(p->avg[kind][i], e) + times(share, ONE - e));
	}
}

static bool stalled(const struct psi *p, enum psi_kind kind)
{
	return p->nr_stalled && (kind == PSI_SOME || !p->nr_running);
}

static void spend(struct psi *p, uint64_t ns)
{
	for (enum psi_kind k = 0; k < PSI_KINDS; k++)
		if (stalled(p, k)) {
			p->stall_ns[k] += ns;
			p->total_ns[k] += ns;
		}
	p->since_ns += ns;
}

/* Up to a moment in the same state: the rest of the period begun, whole ones, part of another. */
static void account(struct psi *p, uint64_t to_ns)
{
	uint64_t rest = PSI_PERIOD_NS - p->since_ns % PSI_PERIOD_NS, n;

	if (to_ns <= p->since_ns)
		return;
	if (to_ns - p->since_ns < rest) {
		spend(p, to_ns - p->since_ns);
		return;
	}
	spend(p, rest);
	n = (to_ns - p->since_ns) / PSI_PERIOD_NS;
	for (enum psi_kind k = 0; k < PSI_KINDS; k++) {
		fold(p, k, p->stall_ns[k] * ONE / PSI_PERIOD_NS, 1);
		if (n)
			fold(p, k, stalled(p, k) ? ONE : 0, n);
	}
	spend(p, to_ns - p->since_ns);
	for (enum psi_kind k = 0; k < PSI_KINDS; k++)
		p->stall_ns[k] = stalled(p, k) ? to_ns % PSI_PERIOD_NS : 0;
}

/* ---- who works, who waits ------------------------------------------------------------------ */

/* Both domains of an engine, brought up to a moment. */
static void change(struct mm *mm, uint32_t engine, uint64_t when_ns, int stalled, int running)
{
	struct psi *of[] = { &mm->psi, &tenant_at(mm, engine_at(mm, engine)->tenant)->psi };

	for (uint32_t i = 0; i < 2; i++) {
		account(of[i], when_ns);
		of[i]->nr_stalled += (uint32_t)stalled;
		of[i]->nr_running += (uint32_t)running;
	}
}

static uint64_t silent_at(const struct mm *mm, uint32_t engine)
{
	return engine_at(mm, engine)->active_ns + PSI_RECENT_NS;
}

static void stop(struct mm *mm, uint32_t engine, uint64_t when_ns)
{
	struct engine *e = engine_at(mm, engine);

	if (!e->on_recent)
		return;
	change(mm, engine, when_ns, 0, -1);
	recent_list_del(mm, &mm->recent, engine);
	e->on_recent = false;
}

static void start(struct mm *mm, uint32_t engine)
{
	struct engine *e = engine_at(mm, engine);

	e->active_ns = mm->now_ns;
	if (e->on_recent)
		recent_list_del(mm, &mm->recent, engine);
	else
		change(mm, engine, mm->now_ns, 0, 1);
	recent_list_add_tail(mm, &mm->recent, engine);
	e->on_recent = true;
}

void psi_advance(struct mm *mm)
{
	while (mm->recent.head && silent_at(mm, mm->recent.head) <= mm->now_ns)
		stop(mm, mm->recent.head, silent_at(mm, mm->recent.head));
}

void psi_stall(struct mm *mm, uint32_t engine)
{
	stop(mm, engine, mm->now_ns);
	change(mm, engine, mm->now_ns, 1, 0);
}

void psi_resume(struct mm *mm, uint32_t engine)
{
	change(mm, engine, mm->now_ns, -1, 0);
	start(mm, engine);
}

void psi_touch(struct mm *mm, uint32_t engine)
{
	const struct engine *e = engine_at(mm, engine);

	/* It is neither fenced nor waiting while it is on the list. */
	if (e->on_recent && e->binds.nr && mm->now_ns - e->active_ns < PSI_TOUCH_NS)
		return;
	if (e->fenced || e->nr_pending)
		return;
	if (!e->binds.nr)
		stop(mm, engine, mm->now_ns);
	else
		start(mm, engine);
}

void psi_forget(struct mm *mm, uint32_t engine)
{
	stop(mm, engine, mm->now_ns);
}

/* ---- reading ------------------------------------------------------------------------------- */

static uint32_t out(uint32_t avg)
{
	return (uint32_t)(((uint64_t)avg * 10000 + ONE / 2) >> PSI_SHIFT);
}

int mm_psi(const struct mm *mm, uint32_t tenant, uint64_t now_ns, struct mm_psi *psi)
{
	uint32_t t = tenant == MM_ALL_TENANTS ? NIL : tenant_find(mm, tenant);
	struct psi p;

	if (!t && tenant != MM_ALL_TENANTS)
		return -ENOENT;
	p = t ? tenant_at(mm, t)->psi : mm->psi;
	for (uint32_t e = mm->recent.head; e && silent_at(mm, e) <= now_ns;
	     e = engine_at(mm, e)->recent_link.next) {
		if (t && engine_at(mm, e)->tenant != t)
			continue;
		account(&p, silent_at(mm, e));
		p.nr_running--;
	}
	account(&p, now_ns);
	memset(psi, 0, sizeof(*psi));
	for (uint32_t i = 0; i < PSI_AVGS; i++) {
		psi->some_avg[i] = out(p.avg[PSI_SOME][i]);
		psi->full_avg[i] = out(p.avg[PSI_FULL][i]);
	}
	psi->some_total_ns = p.total_ns[PSI_SOME];
	psi->full_total_ns = p.total_ns[PSI_FULL];
	return 0;
}
