/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A zone holds the small blocks, or the large ones. Small blocks have at most SMALL_MAX_BYTES (in
 * segment backing perhaps more), and slabs are among them. So one live 512-byte block cannot stop a
 * large chunk from being released. A zone splits and merges blocks. It makes no driver call. All
 * functions want the pool's lock held.
 */
#ifndef POOL_ZONE_H
#define POOL_ZONE_H

#include "pool/block.h"
#include "pool/placement.h"

struct pool;

struct zone {
    struct pool *pool;
    enum zone_kind kind;
    uint64_t base, size_bytes;            /* reserved address space (arena), else 0 */
    struct block *first;                  /* lowest block of the arena; NULL in segment backing */
    struct list holes;                    /* HOLE blocks, the untouched rest of an arena first */
    struct list chunks;                   /* struct chunk.all; see chunk_enter */
    struct list dead;                     /* DEAD blocks */
    uint64_t chunk_bytes, dead_bytes;     /* sums of the two lists */
    uint64_t pending_bytes, looked_bytes; /* looked: at the latest pending_look */
    struct placement placement;           /* FREE blocks */
};

void zone_init(struct zone *z, struct pool *p, enum zone_kind kind);
/* Gives an arena zone its address space, one hole. False: no host memory. */
bool zone_reserve(struct zone *z, uint64_t base, uint64_t size_bytes);

/* Takes size_bytes (a multiple of UNIT_BYTES) of a free block as a block in the given state,
 * aligned to align (a power of two). NULL: nothing fits, or no host memory to split with. */
struct block *zone_take(struct zone *z, uint64_t size_bytes, uint64_t align,
                        enum block_state state);
/* The same of a whole free block, which is no larger than most_bytes. */
struct block *zone_take_whole(struct zone *z, uint64_t size_bytes, uint64_t most_bytes,
                              enum block_state state);
/* Would zone_take cut a larger free block in two? */
bool zone_would_cut(const struct zone *z, uint64_t size_bytes);
/* A live block is freed: the map no longer leads to it, and the slack of its segment counts no
 * more. */
void zone_end_live(struct block *b);
/* A block that is used no more, or a BUSY one that has memory, becomes free, merged with its free
 * neighbours. */
void zone_give(struct block *b);
/* The memory of the block must never be handed out again. Its chunk can still be released. */
void zone_bury(struct block *b);
/* Address space whose memory is gone becomes a hole, merged with neighbouring holes. */
void zone_make_hole(struct block *b);

/* Cuts b in two at addr (inside it, a multiple of UNIT_BYTES). Returns the upper part, in the same
 * state and in the same lists. A record must have been ensured in the pool's block_cache. */
struct block *zone_split(struct block *b, uint64_t addr);
/* The free or dead blocks that cover [addr, addr + size_bytes) become one BUSY block, out of every
 * list. inside is any block of the range. Two records must have been ensured. */
struct block *zone_seize(struct block *inside, uint64_t addr, uint64_t size_bytes);

/* A new region of one chunk (segment backing): one block in the given state. NULL: no host
 * memory. */
struct block *zone_add_region(struct zone *z, uint64_t addr, uint64_t size_bytes,
                              enum block_state state);
/* Forgets the only block of a region, which is BUSY. */
void zone_drop_region(struct block *b);

#endif
