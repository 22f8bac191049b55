/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Arena backing: one reserved address range, a part for each zone, in which the pool commits
 * physical memory chunk by chunk. Address space is plentiful (cuMemAddressReserve takes
 * microseconds at any size). So a request never fails for want of a contiguous range: only physical
 * memory counts. The pool moves idle chunks to where memory is needed before it asks the driver for
 * more. Moves take time, so they have a budget (time_budget.h). When it is used up, the arena grows
 * instead, within bounds.
 *
 * The pool may move a chunk before the work that used it is complete, as long as later work is
 * ordered behind that work. The chunk gets its new mapping at once and keeps the old one, a ghost,
 * until the old work is known complete. Both mappings are of the same memory. No access through one
 * overlaps in time with one through the other, which is what CUDA asks for (programming guide,
 * virtual aliasing).
 */
#ifndef POOL_ARENA_H
#define POOL_ARENA_H

#include "pool/zone.h"

enum grow_result {
    GROW_OK,
    GROW_NOMEM,  /* the driver has none; *code is its error */
    GROW_LIMIT,  /* MAX_RESERVED */
    GROW_FAILED, /* anything else: no host memory, no address space, a driver error */
};

/* Reserves address space for both zones. False: the caller uses segment backing. Lock not held. */
bool arena_reserve(struct pool *p);

/* Commits memory so that the zone holds a free range of size_bytes at a multiple of align. If it
 * fails, part of it may have been committed, and stays as free memory. Lock held; drops it. */
enum grow_result arena_grow(struct pool *p, struct zone *z, uint64_t size_bytes, uint64_t align,
                            int *code);

#endif
