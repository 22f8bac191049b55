/* SPDX-License-Identifier: BSD-2-Clause
 *
 * From an address to what is there: one radix map for the process, one record per 2 MiB granule of
 * device address space that a pool owns. map_find and the pool field may be read by any thread
 * without a lock (a free of somebody else's pointer must cost next to nothing); every other field
 * belongs to the lock of the pool named there. Leaves are made once and stay.
 */
#ifndef POOL_MAP_H
#define POOL_MAP_H

#include "pool/bits.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct block;
struct chunk;
struct pool;

#define GRANULE_UNITS (GRANULE_BYTES / UNIT_BYTES)

struct granule {
    _Atomic(struct pool *) pool; /* owner of the address space; NULL: nobody's */
    struct chunk *chunk;         /* physical memory here; NULL: none */
    struct block *starts[2];     /* large zone: live blocks that start here */
    struct block **units;        /* small zone: live blocks by the unit they start at; a slab also at
                                    every SLAB_PAGE_BYTES it covers. Made on first use, then kept */
};

/* NULL if no pool ever owned this part of the address space. */
struct granule *map_find(uint64_t addr);

/* Makes the records of a range; false: no host memory, or addresses beyond what the map covers. */
bool map_ensure(uint64_t addr, uint64_t size_bytes);
/* Names pool and chunk as owners of the chunk's range (multiples of GRANULE_BYTES, ensured before). */
void map_claim(struct chunk *c, struct pool *owner);
/* The chunk's range is nobody's any more. */
void map_disclaim(const struct chunk *c);
/* The same, for a chunk with blocks that are still recorded: they are forgotten. */
void map_forget(const struct chunk *c);

/* Records a live block by its start; false: no host memory. Undone by map_clear. */
bool map_set(struct block *b);
void map_clear(const struct block *b);
/* The live block that starts at addr, or the slab that covers it; NULL: neither. */
struct block *map_block(const struct granule *g, uint64_t addr);
/* The live block or slab that covers addr; walks back to its start. */
struct block *map_block_around(uint64_t addr, const struct pool *owner);

#endif
