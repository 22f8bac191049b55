/* SPDX-License-Identifier: BSD-2-Clause
 *
 * GPUCACHE_REDZONE, for debugging: bytes behind each block of a pool that hold a pattern, looked at when
 * the block is freed. What wrote past the end of a block is then known by address, size and offset. The
 * pool counts the bytes as asked for; redzone_hide takes them off what it tells of a block. No lock.
 */
#ifndef SHIM_REDZONE_H
#define SHIM_REDZONE_H

#include "shim/context/context.h"

/* Whether any pool has redzones; never false again. */
extern atomic_bool redzone_in_use __attribute__((visibility("hidden")));

static inline bool redzone_watches(void)
{
    return __builtin_expect(atomic_load_explicit(&redzone_in_use, memory_order_relaxed), 0);
}

/* Fills c->redzone_bytes at addr, in the context of c, and waits for it. False: it could not. */
bool redzone_fill(struct context *c, uint64_t addr);

/* Before a free: waits for all work of the block's context, as cudaFree does, then looks at the bytes
 * behind the block at addr. If they changed: says so, counts, and taints the block, so that its memory
 * is never handed out again. While a capture is open, and in a context that is broken, nothing happens.
 * Keeps errno. */
void redzone_check(uint64_t addr);

static inline void redzone_hide(struct pool_block *block)
{
    const struct context *c = pool_owner(block->pool);
    block->requested_bytes -= c->redzone_bytes;
}

#endif
