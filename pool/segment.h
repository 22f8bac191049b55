/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Segment backing: every chunk is one allocation of the driver's (cuMemAlloc) and a region of its
 * own. Each large block has a segment of its own, which the pool caches whole, so that idle always
 * means releasable. Small blocks share segments. Freeing a segment may wait for the device, as
 * cuMemFree does (backend.h: frees_beside).
 *
 * Idle segments have other sizes than requests, and may have to stay while the GPU is at work. So
 * before the pool takes more than the program ever needed at once, a larger idle segment serves.
 * The slack costs no memory that the pool would not have anyhow, as long as all slack stays a small
 * part of that peak. The pool cannot cut segments instead: to other processes a large block is an
 * allocation of the driver's (shim/share).
 *
 * A segment is whole granules, so a block of 1.1 MiB wastes almost half. Once rounding has cost a
 * program an eighth of what it holds, blocks of up to SEGMENT_SHARED_MAX_BYTES share segments. They
 * do not share before, because a block with a segment of its own is an allocation of the driver's
 * to the program and to other processes.
 */
#ifndef POOL_SEGMENT_H
#define POOL_SEGMENT_H

#include "pool/arena.h"
#include "pool/tuning.h"

/* The sizes of segments, in bytes: which segment a request takes, and which idle one serves it. */

/* The size of a new segment for a request, in whole granules. From 32 MiB on there are sixteen
 * sizes to a doubling, so that requests of slightly different sizes can use the same segment. */
static inline uint64_t segment_new_bytes(uint64_t size_bytes)
{
    uint64_t step = UINT64_C(1) << (log2_floor(size_bytes) - SEGMENT_SIZES_SHIFT);
    return round_up(size_bytes, max_u64(GRANULE_BYTES, step));
}

/* The largest segment that a request takes where there is no need to save memory. The slack is at
 * most an eighth of the request, or the slack of a new segment if that is more. */
static inline uint64_t segment_most_bytes(uint64_t size_bytes)
{
    return max_u64(segment_new_bytes(size_bytes), size_bytes + (size_bytes >> SEGMENT_FIT_SHIFT));
}

/* Does an idle segment of have_bytes serve the request? */
static inline bool segment_fits(uint64_t have_bytes, uint64_t size_bytes)
{
    return have_bytes >= size_bytes && have_bytes <= segment_most_bytes(size_bytes);
}

/* An idle segment that fits, as a live block; NULL: none. */
struct block *segment_take(struct pool *p, uint64_t size_bytes);
/* A larger idle segment, where the pool would otherwise have more than the program needed at its
 * peak, and the GPU is at work. Without it, peak reserved of cupy is 1.27 of peak live instead of
 * 1.16 (work in flight). The mean of 26 synthetic programs is 1.48 instead of 1.41. Drops the lock.
 */
struct block *segment_take_spare(struct pool *p, uint64_t size_bytes);

/* Takes a segment from the driver that holds size_bytes (at any multiple of a power of two up to
 * GRANULE_BYTES). Lock held; drops it. */
enum grow_result segment_grow(struct pool *p, struct zone *z, uint64_t size_bytes, int *code);

#endif
