/* SPDX-License-Identifier: Apache-2.0 */
/* flash_f8 - the e4m3 instance of the AVX-512 kernel for CPUs with VBMI
 *
 * Model:      flash_avx512.c hands it KERN_F8 and KERN_F8_DS where the CPU can run it; what it
 *             gives is the same to the bit.
 * Context:    internal to kernels/host.
 */
#ifndef FLASH_F8_H
#define FLASH_F8_H

#include "kern_impl.h"

void flash_f8_vbmi_run(const struct kern_attn *, const struct kern_part *, void *scratch);

#endif
