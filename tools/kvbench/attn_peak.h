/* SPDX-License-Identifier: Apache-2.0 */
/* attn_peak - what the arithmetic of this CPU does at most, operands in registers
 *
 * Model:      a probe is one instruction, as many independent ones in flight as hide its latency.
 *             Rates count a multiply and an add as two.
 * Context:    any thread. attn_peak_init() first, once, before other threads run: AMX has to be
 *             asked for.
 */
#ifndef ATTN_PEAK_H
#define ATTN_PEAK_H

#include <stdbool.h>
#include <stdint.h>

enum attn_peak {
	ATTN_PEAK_FMA,		/* fp32, the widest vectors there are */
	ATTN_PEAK_BF16,		/* vdpbf16ps */
	ATTN_PEAK_AMX,		/* tdpbf16ps */
	ATTN_NR_PEAKS,
};

void attn_peak_init(void);
bool attn_peak_has(enum attn_peak);
const char *attn_peak_name(enum attn_peak);
/* Runs it rounds times and returns the flop done; 0 if this CPU has none. */
double attn_peak_run(enum attn_peak, uint64_t rounds);

#endif
