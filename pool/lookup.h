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

#endif
