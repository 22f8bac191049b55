/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Arena backing: one reserved address range, a part for each zone, in which physical memory is committed
 * chunk by chunk. Address space is plentiful (cuMemAddressReserve takes microseconds at any size), so a
 * request never fails for want of a contiguous range: only physical memory counts, and idle chunks
 * are moved to where memory is needed before new memory is asked of the driver. Moves take time, so
 * they have an allowance (move_budget.h); when it is used up, the arena grows instead, within bounds.
 *
 * A chunk may be moved before the work that used it is complete, as long as later work is ordered
 * behind that: it gets its new mapping at once and keeps the old one, a ghost, until the old work is
 * known complete. Both mappings are of the same memory, and no access through one overlaps in time with
 * one through the other, which is what CUDA asks for (programming guide, virtual aliasing).
 */
#ifndef POOL_ARENA_H
#define POOL_ARENA_H

#include "pool/zone.h"

enum grow_result {
    GROW_OK,
    GROW_NOMEM,  /* the driver has none; *code says it in its words */
    GROW_LIMIT,  /* MAX_RESERVED */
    GROW_FAILED, /* anything else: no host memory, no address space, a driver error */
};

/* Reserves address space for both zones; false: the caller takes segment backing. Lock not held. */
bool arena_reserve(struct pool *p);

/* Commits memory so that the zone holds a free range of size_bytes at a multiple of align. Even when
 * it fails, part of it may have been committed, and stays as free memory. Lock held; drops it. */
enum grow_result arena_grow(struct pool *p, struct zone *z, uint64_t size_bytes, uint64_t align,
                            int *code);

#endif
