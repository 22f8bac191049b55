/* SPDX-License-Identifier: BSD-2-Clause
 *
 * From an address to the pool and the block that hold it, for callers without the lock.
 */
#ifndef POOL_LOOKUP_H
#define POOL_LOOKUP_H

#include <stdint.h>

struct granule;
struct pool;

/* The pool that owns an address, with its lock held, and the map's record of the address. NULL: no
 * pool owns it. */
struct pool *find_owner(uint64_t addr, struct granule **g);
/* The driver has just handed out a range of whole granules, whose records were ensured. If they
 * still name a pool, the context of that pool has ended. Then the pool forgets the chunks there, as
 * a whole, and is lost from now on. It may be the caller's own pool. No lock held. See abandon.c.
 */
void find_evict(uint64_t addr, uint64_t size_bytes);

#endif
