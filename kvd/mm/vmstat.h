/* SPDX-License-Identifier: Apache-2.0 */
/* vmstat - what mm says about itself: counters, and sums made when asked
 *
 * Model:      events are counted where they happen (mm.vmstat, one table in mm.h); amounts are
 *             summed from the extents' own counters when somebody asks.
 * Units:      bytes of a page count on the device of each shard.
 * Cost:       mm_meminfo, mm_next_engine and mm_next_cache O(extents).
 */
#ifndef MM_VMSTAT_H
#define MM_VMSTAT_H

#include <stdint.h>

struct mm;

/* Bytes of one page: of the shards that are on these devices, a bit each. */
#define VMSTAT_ALL_DEVICES UINT32_MAX
uint64_t vmstat_page_bytes(const struct mm *, uint32_t cache, uint32_t group, uint32_t devices);

#endif
