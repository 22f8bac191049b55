/* SPDX-License-Identifier: BSD-2-Clause
 *
 * From an address to what is there. The process has one radix map. It has a record for each 2 MiB
 * granule of device address space that a pool owns.
 *
 * Any thread may call map_find and read the pool field without a lock. So a free of a pointer that
 * is no pool's costs a few loads. The words that lead to blocks (pages, starts, start_units) are
 * atomic, so any thread may read them too. By then the record that a word names may have another
 * block, or none. But records are never unmapped. Every other field belongs to the lock of the pool
 * named there. Who holds that lock reads the pool field before the other fields: the driver may
 * have given the range to another pool (abandon.c). A record that names no pool belongs to the pool
 * that has the range from the driver. Leaves are made once and stay, with their pages.
 */
#ifndef POOL_MAP_H
#define POOL_MAP_H

#include "pool/bits.h"
#include "pool/block.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct chunk;
struct pool;

#define GRANULE_PAGES (GRANULE_BYTES / SLAB_PAGE_BYTES)

/* Small zone: the live blocks that start in one page of SLAB_PAGE_BYTES, or the slab that covers
 * it. At most two blocks start in a page, because a block that is no slab has half a page at
 * least. */
struct map_page {
    _Atomic(struct block *) starts[2];
    /* The unit in the granule, plus one. 0: no block. MAP_SLAB in the first: a slab. */
    _Atomic uint16_t start_units[2];
};
#define MAP_SLAB UINT16_MAX

struct granule {
    _Atomic(struct pool *) pool;       /* owner of the address space; NULL: nobody's */
    struct chunk *chunk;               /* physical memory here; NULL: none */
    _Atomic(struct block *) starts[2]; /* large zone: live blocks that start here */
    _Atomic uint16_t start_units[2];   /* .. and at which unit, plus one; 0: none */
    _Atomic(struct map_page *) pages;  /* small zone; from its first use on */
};

/* Two levels: 2^13 roots of 2^14 granules, 32 GiB of device addresses each. */
#define MAP_LEAF_BITS 14
#define MAP_LEAF_BYTES (UINT64_C(1) << (GRANULE_SHIFT + MAP_LEAF_BITS)) /* of device addresses */
#define MAP_ROOTS (ADDR_LIMIT >> (GRANULE_SHIFT + MAP_LEAF_BITS))
extern _Atomic(struct granule *) map_roots[MAP_ROOTS];

/* NULL if no pool ever owned this part of the address space. */
static inline struct granule *map_find(uint64_t addr)
{
    if (unlikely(addr >= ADDR_LIMIT))
        return NULL;
    struct granule *leaf = atomic_load_explicit(&map_roots[addr >> (GRANULE_SHIFT + MAP_LEAF_BITS)],
                                                memory_order_acquire);
    return leaf ? &leaf[(addr >> GRANULE_SHIFT) & ((UINT64_C(1) << MAP_LEAF_BITS) - 1)] : NULL;
}

/* Makes the records of a range. False: no host memory, or addresses beyond the map. */
bool map_ensure(uint64_t addr, uint64_t size_bytes);
/* Touches the host memory of these records, which are no pool's, so that it is there when they are
 * written under a lock. */
void map_touch(uint64_t addr, uint64_t size_bytes);
/* Names pool and chunk as owners of the chunk's range, whose records were ensured. The range is
 * nobody's: its addresses are reserved, and find_evict has seen to the rest. */
void map_claim(struct chunk *c, struct pool *owner);
/* The same, for a segment. False: a pool has claimed a part of the range since find_evict, the
 * owner itself perhaps, and nothing was claimed. */
bool map_claim_segment(struct chunk *c, struct pool *owner);
/* The chunk's range is nobody's any more. What another pool has claimed meanwhile stays its own. */
void map_disclaim(const struct chunk *c, const struct pool *owner);
/* The same, for a chunk whose blocks are still recorded: they are forgotten. */
void map_forget(const struct chunk *c, const struct pool *owner);

/* The owner's chunk at addr. NULL: there is none, or another pool has the range by now. The
 * owner's lock is held. */
static inline struct chunk *map_chunk(uint64_t addr, const struct pool *owner)
{
    const struct granule *g = map_find(addr);
    if (!g || atomic_load_explicit(&g->pool, memory_order_relaxed) != owner)
        return NULL;
    return g->chunk;
}

/* Records a live block by its start. Undone by map_clear, which leaves alone what is another
 * pool's by now. */
void map_set(struct block *b);
void map_clear(const struct block *b);
/* Does the map say that a block of the large zone starts in addr's granule? For pool_check. */
bool map_starts_large(uint64_t addr);
static inline uint64_t map_unit_of(uint64_t addr)
{
    return (addr & (GRANULE_BYTES - 1)) >> UNIT_SHIFT;
}

/* The live block that starts at addr, or the slab that covers it; NULL: neither. */
static inline struct block *map_start(const _Atomic(struct block *) starts[2],
                                      const _Atomic uint16_t start_units[2], uint64_t addr)
{
    for (int i = 0; i < 2; i++)
        if (atomic_load_explicit(&start_units[i], memory_order_acquire) == map_unit_of(addr) + 1)
            return atomic_load_explicit(&starts[i], memory_order_relaxed);
    return NULL;
}

static inline struct block *map_block(const struct granule *g, uint64_t addr)
{
    struct block *b = NULL;
    const struct map_page *pages = atomic_load_explicit(&g->pages, memory_order_acquire);
    if (likely(pages != NULL)) {
        const struct map_page *page = &pages[(addr & (GRANULE_BYTES - 1)) / SLAB_PAGE_BYTES];
        if (atomic_load_explicit(&page->start_units[0], memory_order_acquire) == MAP_SLAB)
            return atomic_load_explicit(&page->starts[0], memory_order_relaxed);
        b = addr & (UNIT_BYTES - 1) ? NULL : map_start(page->starts, page->start_units, addr);
    }
    return b || addr & (UNIT_BYTES - 1) ? b : map_start(g->starts, g->start_units, addr);
}

/* The live block or slab that covers addr. */
struct block *map_block_around(uint64_t addr, const struct pool *owner);

#endif
