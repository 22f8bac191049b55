/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Segment backing: every chunk is one allocation of the driver's (cuMemAlloc) and a region of its own.
 * Large blocks have a segment each, cached whole; small ones share segments. Freeing a segment may wait
 * for the device, as cuMemFree does.
 *
 * A segment is whole granules, of which a block of 1.1 MiB wastes half. A program that holds mostly such
 * blocks makes them share: once rounding has cost an eighth of what is held, blocks of up to
 * SEGMENT_SHARED_MAX_BYTES are small ones. Not before, because a block with a segment of its own is an
 * allocation of the driver's to everybody who looks, other processes included.
 */
#ifndef POOL_SEGMENT_H
#define POOL_SEGMENT_H

#include "pool/arena.h"

#define SEGMENT_SHARED_MAX_BYTES (UINT64_C(4) << 20)

/* What a new segment for so many bytes has: whole granules, then sixteen sizes to a doubling. */
uint64_t segment_bytes(uint64_t size_bytes);

/* Does a segment of have_bytes serve a request? Not with more slack than an eighth of it, or than a new
 * segment would have. */
bool segment_fits(uint64_t have_bytes, uint64_t size_bytes);

/* Takes a segment that holds size_bytes (at any multiple of align up to GRANULE_BYTES). Lock held;
 * drops it. */
enum grow_result segment_grow(struct pool *p, struct zone *z, uint64_t size_bytes, int *code);

#endif
