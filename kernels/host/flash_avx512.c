// SPDX-License-Identifier: Apache-2.0
/* flash_avx512 - the host kernels for CPUs with AVX-512 F, BW, VL and DQ: one in fp32, one with the
 * bf16 products of AVX512-BF16 */
#ifdef __x86_64__
#include "vec_avx512.inc"

#include "flash.inc"
#include "flash_f32.inc"
#include "flash_bf16_avx512.inc"
#include "flash_f8.h"

static bool usable(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
	       kern_ops_avx2.usable();
}

static bool fast(const struct kern_attn *at)
{
	(void)at;
	return true;
}

/* e4m3 has an instance that looks 64 elements up at once, for CPUs since Ice Lake and Zen 4. */
static void run(const struct kern_attn *at, const struct kern_part *part, void *scratch)
{
	bool f8 = at->view.dtype == KERN_F8 || at->view.dtype == KERN_F8_DS;

	if (f8 && __builtin_cpu_supports("avx512vbmi"))
		flash_f8_vbmi_run(at, part, scratch);
	else
		flash_f32_run(at, part, scratch);
}

const struct kern_ops kern_ops_avx512 = {
	.splits = true,
	.usable = usable,
	.preferred = usable,
	.fast = fast,
	.scratch = flash_scratch,
	.run = run,
};

/* Other queries would have to be rounded to bf16 first: they take the exact way. */
static bool bf16_fast(const struct kern_attn *at)
{
	return at->view.dtype == KERN_BF16 && at->q_dtype == KERN_BF16;
}

static void bf16_run(const struct kern_attn *at, const struct kern_part *part, void *scratch)
{
	if (bf16_fast(at))
		flash_run(at, &flash_dp, part, scratch);
	else
		run(at, part, scratch);
}

static bool bf16_usable(void)
{
	return usable() && __builtin_cpu_supports("avx512bf16");
}

/* Zen 4 and 5 retire one or two vdpbf16ps a cycle. Intel's cores up to Sapphire Rapids take
 * between two and three cycles for one, in which two fp32 FMAs a cycle do more. */
static bool bf16_preferred(void)
{
	return bf16_usable() && __builtin_cpu_is("amd");
}

const struct kern_ops kern_ops_avx512_bf16 = {
	.splits = true,
	.usable = bf16_usable,
	.preferred = bf16_preferred,
	.fast = bf16_fast,
	.scratch = flash_scratch,
	.run = bf16_run,
};
#endif
