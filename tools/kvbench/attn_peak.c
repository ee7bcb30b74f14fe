// SPDX-License-Identifier: Apache-2.0
/* attn_peak - contract in attn_peak.h. The loops are assembly: no compiler shortens them. */
#include "attn_peak.h"

#include <stddef.h>
#include <string.h>

#include "kernels.h"

static const char *const names[ATTN_NR_PEAKS] = { "fp32 fma", "vdpbf16ps", "tdpbf16ps" };
static bool has[ATTN_NR_PEAKS];

const char *attn_peak_name(enum attn_peak p)
{
	return names[p];
}

bool attn_peak_has(enum attn_peak p)
{
	return has[p];
}

#ifdef __x86_64__
#define OP8(op, r, a, b)                                                                    \
	op " " r "28, " r "29, " r #a "0\n\t" op " " r "28, " r "29, " r #a "1\n\t"          \
	op " " r "28, " r "29, " r #a "2\n\t" op " " r "28, " r "29, " r #a "3\n\t"          \
	op " " r "28, " r "29, " r #b "4\n\t" op " " r "28, " r "29, " r #b "5\n\t"          \
	op " " r "28, " r "29, " r #b "6\n\t" op " " r "28, " r "29, " r #b "7\n\t"

/* 24 accumulators: zmm0-7 and zmm10-17 and zmm20-27. */
#define OPS_ZMM 24
#define ALL_ZMM                                                                              \
	"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm10", "xmm11",      \
	"xmm12", "xmm13", "xmm14", "xmm15"
#define HIGH_ZMM                                                                             \
	"xmm16", "xmm17", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26",       \
	"xmm27", "xmm28", "xmm29"

__attribute__((target("avx512f"))) static double fma_zmm(uint64_t n)
{
	double flop = (double)n * OPS_ZMM * 16 * 2;

	__asm__ volatile("vpxord %%zmm28, %%zmm28, %%zmm28\n\t"
			 "vpxord %%zmm29, %%zmm29, %%zmm29\n\t"
			 "1:\n\t" OP8("vfmadd231ps", "%%zmm", , ) OP8("vfmadd231ps", "%%zmm", 1, 1)
			 OP8("vfmadd231ps", "%%zmm", 2, 2) "dec %0\n\tjnz 1b"
			 : "+r"(n)
			 :
			 : "cc", ALL_ZMM, HIGH_ZMM);
	return flop;
}

__attribute__((target("avx512f,avx512bf16"))) static double bf16_zmm(uint64_t n)
{
	double flop = (double)n * OPS_ZMM * 16 * 4;

	__asm__ volatile("vpxord %%zmm28, %%zmm28, %%zmm28\n\t"
			 "vpxord %%zmm29, %%zmm29, %%zmm29\n\t"
			 "1:\n\t" OP8("vdpbf16ps", "%%zmm", , ) OP8("vdpbf16ps", "%%zmm", 1, 1)
			 OP8("vdpbf16ps", "%%zmm", 2, 2) "dec %0\n\tjnz 1b"
			 : "+r"(n)
			 :
			 : "cc", ALL_ZMM, HIGH_ZMM);
	return flop;
}

#define Y(i) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #i "\n\t"
#define OPS_YMM 12

__attribute__((target("avx2,fma"))) static double fma_ymm(uint64_t n)
{
	double flop = (double)n * OPS_YMM * 8 * 2;

	__asm__ volatile("vxorps %%ymm14, %%ymm14, %%ymm14\n\t"
			 "vxorps %%ymm15, %%ymm15, %%ymm15\n\t"
			 "1:\n\t" Y(0) Y(1) Y(2) Y(3) Y(4) Y(5) Y(6) Y(7) Y(8) Y(9) Y(10) Y(11)
			 "dec %0\n\tjnz 1b"
			 : "+r"(n)
			 :
			 : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
			   "xmm8", "xmm9", "xmm10", "xmm11", "xmm14", "xmm15");
	return flop;
}

struct tile_config {
	uint8_t palette, start_row, reserved[14];
	uint16_t colsb[16];
	uint8_t rows[16];
};

#define TILE_OPS 8

/* Four accumulators and every pair of two and two operands, as a blocked product has it. */
static double amx_tiles(uint64_t n)
{
	struct tile_config cfg;
	double flop = (double)n * TILE_OPS * 16 * 16 * 32 * 2;
	int i;

	memset(&cfg, 0, sizeof(cfg));
	cfg.palette = 1;
	for (i = 0; i < 8; i++) {
		cfg.colsb[i] = 64;
		cfg.rows[i] = 16;
	}
	__asm__ volatile("ldtilecfg %1\n\t"
			 "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\t"
			 "tilezero %%tmm3\n\ttilezero %%tmm4\n\ttilezero %%tmm5\n\t"
			 "tilezero %%tmm6\n\ttilezero %%tmm7\n\t"
			 "1:\n\t"
			 "tdpbf16ps %%tmm4, %%tmm6, %%tmm0\n\ttdpbf16ps %%tmm5, %%tmm6, %%tmm1\n\t"
			 "tdpbf16ps %%tmm4, %%tmm7, %%tmm2\n\ttdpbf16ps %%tmm5, %%tmm7, %%tmm3\n\t"
			 "tdpbf16ps %%tmm4, %%tmm6, %%tmm0\n\ttdpbf16ps %%tmm5, %%tmm6, %%tmm1\n\t"
			 "tdpbf16ps %%tmm4, %%tmm7, %%tmm2\n\ttdpbf16ps %%tmm5, %%tmm7, %%tmm3\n\t"
			 "dec %0\n\tjnz 1b\n\t"
			 "tilerelease"
			 : "+r"(n)
			 : "m"(cfg)
			 : "cc");
	return flop;
}

void attn_peak_init(void)
{
	__builtin_cpu_init();
	has[ATTN_PEAK_FMA] = __builtin_cpu_supports("avx512f") ||
			     (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
	has[ATTN_PEAK_BF16] = __builtin_cpu_supports("avx512bf16");
	has[ATTN_PEAK_AMX] = kern_impl_usable(KERN_AMX); /* asks Linux for the registers */
}

double attn_peak_run(enum attn_peak p, uint64_t rounds)
{
	if (!has[p] || !rounds)
		return 0;
	if (p == ATTN_PEAK_AMX)
		return amx_tiles(rounds);
	if (p == ATTN_PEAK_BF16)
		return bf16_zmm(rounds);
	return __builtin_cpu_supports("avx512f") ? fma_zmm(rounds) : fma_ymm(rounds);
}
#else
void attn_peak_init(void)
{
	has[ATTN_PEAK_FMA] = true;
}

/* Sixteen chains of plain C: what the compiler makes of a * b + c here. */
double attn_peak_run(enum attn_peak p, uint64_t rounds)
{
	volatile float sink, seed = 0;
	float acc[64], a = seed, b = seed;
	uint64_t i;
	int j;

	if (p != ATTN_PEAK_FMA)
		return 0;
	memset(acc, 0, sizeof(acc));
	for (i = 0; i < rounds; i++)
		for (j = 0; j < 64; j++)
			acc[j] = acc[j] * a + b;
	for (j = 0, sink = 0; j < 64; j++)
		sink = sink + acc[j];
	return (double)rounds * 64 * 2;
}
#endif
