/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The sizes of segments: which segment a request takes, and which idle segment serves it. Only
 * arithmetic, in bytes.
 */
#ifndef POOL_FIT_H
#define POOL_FIT_H

#include "pool/tuning.h"

/* The size of a new segment for a request, in whole granules. From 32 MiB on there are sixteen
 * sizes to a doubling, so that requests of slightly different sizes can use the same segment. */
static inline uint64_t fit_segment_bytes(uint64_t size_bytes)
{
    uint64_t step = UINT64_C(1) << (log2_floor(size_bytes) - FIT_SIZES_SHIFT);
    return round_up(size_bytes, max_u64(GRANULE_BYTES, step));
}

/* The largest segment that a request takes where there is no need to save memory. The slack is at
 * most an eighth of the request, or the slack of a new segment if that is more. */
static inline uint64_t fit_most_bytes(uint64_t size_bytes)
{
    return max_u64(fit_segment_bytes(size_bytes), size_bytes + (size_bytes >> FIT_SLACK_SHIFT));
}

/* Does an idle segment of have_bytes serve the request? */
static inline bool fit_serves(uint64_t have_bytes, uint64_t size_bytes)
{
    return have_bytes >= size_bytes && have_bytes <= fit_most_bytes(size_bytes);
}

#endif
