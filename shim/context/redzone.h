/* SPDX-License-Identifier: BSD-2-Clause
 *
 * GPUCACHE_REDZONE, for debugging: bytes with a pattern behind each block of a pool, which are
 * checked when the block is freed. A write past the end is reported with the block's address and
 * size, and the offset of the write. The pool counts these bytes as requested; redzone_hide
 * subtracts them. No lock.
 */
#ifndef SHIM_REDZONE_H
#define SHIM_REDZONE_H

#include "shim/context/context.h"

/* Does any pool have redzones? Once true it remains true. */
extern atomic_bool redzone_in_use __attribute__((visibility("hidden")));

static inline bool redzone_watches(void)
{
    return __builtin_expect(atomic_load_explicit(&redzone_in_use, memory_order_relaxed), 0);
}

/* Fills c->redzone_bytes at addr, in the context of c, and waits until they are written. False: the
 * driver failed. */
bool redzone_fill(struct context *c, uint64_t addr);

/* Before a free: waits for all work of the block's context, as cudaFree does, then checks the bytes
 * behind the block at addr. If they changed, warns, counts, and exposes the block: its memory is
 * never handed out again. Does nothing while a capture is open, or if the context is broken. Keeps
 * errno. */
void redzone_check(uint64_t addr);

static inline void redzone_hide(struct pool_block *block)
{
    const struct context *c = pool_owner(block->pool);
    block->requested_bytes -= c->redzone_bytes;
}

#endif
