// SPDX-License-Identifier: Apache-2.0
/* kern_attn - checks a call and picks the implementation; contract in kernels.h */
#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kern_impl.h"

static const struct {
	const char *name;
	const struct kern_ops *ops;
} impls[KERN_NR_IMPL] = {
	[KERN_AUTO] = {"auto", NULL},
	[KERN_REF] = {"ref", &kern_ops_ref},
	[KERN_GENERIC] = {"generic", &kern_ops_generic},
#ifdef __x86_64__
	[KERN_AVX2] = {"avx2", &kern_ops_avx2},
	[KERN_AVX512] = {"avx512", &kern_ops_avx512},
	[KERN_AVX512_BF16] = {"avx512bf16", &kern_ops_avx512_bf16},
	[KERN_AMX] = {"amx", &kern_ops_amx},
#else
	[KERN_AVX2] = {"avx2", NULL},
	[KERN_AVX512] = {"avx512", NULL},
	[KERN_AVX512_BF16] = {"avx512bf16", NULL},
	[KERN_AMX] = {"amx", NULL},
#endif
};

static bool dim_valid(uint32_t dim)
{
	return dim >= 8 && dim <= KERN_MAX_DIM && dim % 8 == 0;
}

static bool scale_valid(const struct kern_view *v)
{
	if (v->scale == KERN_SCALE_NONE)
		return !v->k_scale_off && !v->v_scale_off;
	if (v->dtype != KERN_F8 && v->dtype != KERN_I8)
		return false;
	if (v->scale == KERN_SCALE_HEAD)
		return !v->k_scale_off && !v->v_scale_off;
	return v->scale == KERN_SCALE_TOKEN && v->layer_off % 4 == 0 && v->head_stride % 4 == 0 &&
	       v->k_scale_off % 4 == 0 && v->v_scale_off % 4 == 0 &&
	       (v->kind == KERN_GQA || !v->v_scale_off);
}

static int mla_check(const struct kern_view *v)
{
	/* a scaled row has fp32 between its elements */
	uint32_t align = v->dtype == KERN_F8_DS ? 4 : kern_dtype_size(v->dtype);
	uint32_t bytes = kern_mla_row_bytes(v->dtype, v->head_dim, v->head_dim_v);

	if (v->kv_heads != 1 || v->head_stride || v->v_off || v->v_row)
		return -EINVAL;
	if (!bytes || !dim_valid(v->head_dim + v->head_dim_v))
		return -EINVAL;
	if (v->dtype == KERN_F8_DS && v->head_dim % KERN_DS_BLOCK)
		return -EINVAL;
	return v->layer_off % align || v->k_row % align || v->k_row < bytes ? -EINVAL : 0;
}

static int gqa_check(const struct kern_view *v)
{
	uint64_t size = kern_dtype_size(v->dtype);

	if (!size || !v->kv_heads || v->kv_heads > KERN_MAX_HEADS)
		return -EINVAL;
	if (v->layer_off % size || v->k_row % size)
		return -EINVAL;
	if (v->head_stride % size || v->v_off % size || v->v_row % size)
		return -EINVAL;
	return v->k_row < size * v->head_dim || v->v_row < size * v->head_dim_v ? -EINVAL : 0;
}

int kern_view_check(const struct kern_view *v)
{
	if (!v->page_tokens || !dim_valid(v->head_dim) || !dim_valid(v->head_dim_v))
		return -EINVAL;
	if (!scale_valid(v))
		return -EINVAL;
	if (v->kind == KERN_MLA)
		return mla_check(v);
	return v->kind == KERN_GQA ? gqa_check(v) : -EINVAL;
}

/* Two output rows on the same bytes would make the result depend on the order of work. */
static bool out_strides_valid(const struct kern_attn *a)
{
	uint32_t width = kern_out_width(&a->view);

	return (a->batch <= 1 || a->out_stride_seq >= width) &&
	       (a->q_len <= 1 || a->out_stride_tok >= width) &&
	       (a->heads <= 1 || a->out_stride_head >= width);
}

int kern_attn_check(const struct kern_attn *a)
{
	int err = kern_view_check(&a->view);

	if (err)
		return err;
	if (!a->heads || a->heads > KERN_MAX_HEADS || a->heads % a->view.kv_heads)
		return -EINVAL;
	if (!a->q_len || a->q_len > KERN_MAX_Q || !kern_dtype_float(a->q_dtype))
		return -EINVAL;
	if (a->batch && (!a->pte || !a->kv_len || !a->q || !a->out))
		return -EINVAL;
	if (!isfinite(a->scale) || !isfinite(a->softcap) || a->softcap < 0)
		return -EINVAL;
	if (a->dcp > 1 && (a->dcp_rank >= a->dcp || !a->dcp_interleave))
		return -EINVAL;
	return out_strides_valid(a) ? 0 : -EINVAL;
}

const char *kern_impl_name(enum kern_impl impl)
{
	return (unsigned int)impl < KERN_NR_IMPL ? impls[impl].name : "unknown";
}

/* Asked once each: where a hypervisor answers cpuid, asking takes longer than a short call. */
bool kern_impl_usable(enum kern_impl impl)
{
	static _Atomic int8_t known[KERN_NR_IMPL]; /* 0: not asked */
	int8_t answer;

	if (impl == KERN_AUTO)
		return true;
	if ((unsigned int)impl >= KERN_NR_IMPL || !impls[impl].ops)
		return false;
	answer = atomic_load_explicit(&known[impl], memory_order_relaxed);
	if (!answer) {
		answer = impls[impl].ops->usable() ? 1 : -1;
		atomic_store_explicit(&known[impl], answer, memory_order_relaxed);
	}
	return answer > 0;
}

/* What KERN_AUTO may be, as bits. A forced implementation that is unknown or does not run here
 * must fail the call, not be replaced in silence: whoever sets KV_CPU wants to know what was
 * measured. */
static uint32_t probe(void)
{
	const char *forced = getenv("KV_CPU");
	uint32_t found = 1u << KERN_GENERIC;
	int i;

	if (forced && *forced) {
		for (i = KERN_REF; i < KERN_NR_IMPL; i++)
			if (!strcmp(forced, impls[i].name))
				return 1u << i;
		return 1u << KERN_NR_IMPL;
	}
	for (i = KERN_GENERIC + 1; i < KERN_NR_IMPL; i++)
		if (impls[i].ops && impls[i].ops->preferred())
			found |= 1u << i;
	return found;
}

static bool suits(const struct kern_ops *ops, const struct kern_attn *a)
{
	return ops->suits ? ops->suits(a) : ops->fast(a);
}

/* The last one that suits the call, or the only one. */
static enum kern_impl resolve(const struct kern_attn *a, enum kern_impl impl)
{
	static _Atomic uint32_t found; /* 0: not probed; racing probes store the same value */
	uint32_t left;
	int last;

	if (impl != KERN_AUTO)
		return impl;
	left = atomic_load_explicit(&found, memory_order_relaxed);
	if (!left) {
		left = probe();
		atomic_store_explicit(&found, left, memory_order_relaxed);
	}
	for (;; left ^= 1u << last) {
		last = 31 - __builtin_clz(left);
		if (left == 1u << last || suits(impls[last].ops, a))
			return last;
	}
}

enum kern_impl kern_attn_query(const struct kern_attn *a, bool *fast)
{
	enum kern_impl impl = resolve(a, KERN_AUTO);
	bool usable = kern_impl_usable(impl);

	if (fast)
		*fast = usable && impls[impl].ops->fast(a);
	return usable ? impl : KERN_AUTO;
}

int kern_ops_get(const struct kern_attn *a, enum kern_impl impl, const struct kern_ops **ops)
{
	int err = kern_attn_check(a);

	if (err)
		return err;
	impl = resolve(a, impl);
	if (!kern_impl_usable(impl))
		return -EOPNOTSUPP;
	*ops = impls[impl].ops;
	return 0;
}

size_t kern_attn_scratch(const struct kern_attn *a, enum kern_impl impl)
{
	const struct kern_ops *ops;

	return kern_ops_get(a, impl, &ops) ? 0 : ops->scratch(a);
}

int kern_attn(const struct kern_attn *a, enum kern_impl impl, void *scratch)
{
	const struct kern_ops *ops;
	struct kern_part part;
	uint32_t seq;
	int err = kern_ops_get(a, impl, &ops);

	if (err)
		return err;
	if (ops->scratch(a) && (!scratch || (uintptr_t)scratch % 64))
		return -EINVAL;
	part = (struct kern_part){
		.kind = KERN_PART_WHOLE,
		.seqs = &seq,
		.nr_seqs = 1,
		.head1 = a->view.kv_heads,
		.block1 = kern_blocks(a),
	};
	for (seq = 0; seq < a->batch; seq++)
		ops->run(a, &part, scratch);
	return 0;
}
