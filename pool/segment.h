/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Segment backing: every chunk is one allocation of the driver's (cuMemAlloc) and a region of its own.
 * Large blocks have a segment each, cached whole, so that idle always means releasable; small ones share
 * segments. Freeing a segment may wait for the device, as cuMemFree does (backend.h: frees_beside).
 *
 * What idles is of other sizes than what is asked for, and may have to stay while the GPU is at work. So
 * before the pool takes more than the program ever needed at once, a larger idle segment serves: the
 * slack costs no memory that would not be there anyhow, as long as all slack together stays a small part
 * of that peak. Segments cannot be cut instead: a large block is an allocation of the driver's to other
 * processes (shim/share/ticket.h).
 *
 * A segment is whole granules, of which a block of 1.1 MiB wastes half. A program that holds mostly such
 * blocks makes them share: once rounding has cost an eighth of what is held, blocks of up to
 * FIT_SHARED_MAX_BYTES are small ones. Not before, because a block with a segment of its own is an
 * allocation of the driver's to everybody who looks, other processes included.
 */
#ifndef POOL_SEGMENT_H
#define POOL_SEGMENT_H

#include "pool/arena.h"
#include "pool/tuning.h"

/* An idle segment that fits, as a live block; NULL: none. */
struct block *segment_take(struct pool *p, uint64_t size_bytes);
/* A larger one, where the pool would otherwise have more than the program needed at its peak, and the GPU
 * is at work. Drops the lock. */
struct block *segment_take_spare(struct pool *p, uint64_t size_bytes);

/* Takes a segment that holds size_bytes (at any multiple of align up to GRANULE_BYTES). Lock held;
 * drops it. */
enum grow_result segment_grow(struct pool *p, struct zone *z, uint64_t size_bytes, int *code);

#endif
