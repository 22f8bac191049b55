/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Slabs: blocks of the small zone carved into objects of one size, for requests up to
 * SLAB_MAX_BYTES. A bitmap in host memory tells which objects are free. An empty slab serves last,
 * so that it can go back. All functions want the pool's lock held, but for those that only compute
 * and slab_item_around.
 */
#ifndef POOL_SLAB_H
#define POOL_SLAB_H

#include "pool/block.h"
#include "pool/host_memory.h"
#include "pool/tuning.h"

#include <stdatomic.h>

struct pool;

#define SLAB_MAX_BYTES (UINT64_C(32) << 10)
#define SLAB_CLASSES 32
#define SLAB_OBJECTS_MAX 128

struct slab {
    struct block *block;
    struct list link; /* partial or empty, while it has free objects */
    uint64_t epoch;   /* newest epoch in which an object was freed */
    uint64_t free_map[SLAB_OBJECTS_MAX / 64];
    uint32_t object_bytes;
    uint8_t class_index, object_count, free_count;
    uint8_t dead_count; /* freed after they were known outside: never handed out again */
    /* From here on the record is never zeroed, see host_cache_init: a free reads it without the
     * lock. A record serves one class for ever, so all its shapes have as many items. */
    _Atomic uint64_t shape; /* see slab_show; stays as it was once the slab is gone */
    struct item items[];    /* of the objects; no free one is exposed or has sync_memops */
};
_Static_assert(sizeof(struct slab) == sizeof(struct item), "see tests/bench/LATENCY.md");

/* Lists of their own for empty slabs: slab_release_empty walks over no others. That they serve last
 * is worth little: peak reserved of 78 synthetic programs would be 0.1 % higher in the mean. */
struct slabs {
    struct list partial[SLAB_CLASSES]; /* with free objects, and others */
    struct list empty[SLAB_CLASSES];   /* with nothing in them */
};

void slab_init(struct slabs *s);
/* A cache of records for each class, because a record has one item for each object. */
void slab_init_caches(struct host_cache caches[SLAB_CLASSES]);
/* Steps of 512 bytes up to 8 KiB, then eight to a doubling: at most 12.5 % of a block is lost. */
static inline unsigned slab_class(uint64_t size_bytes)
{
    uint64_t units = (size_bytes + UNIT_BYTES - 1) >> UNIT_SHIFT;
    if (units <= 16)
        return (unsigned)units - 1;
    if (units <= 32)
        return 16 + (unsigned)((units - 17) >> 1);
    return 24 + (unsigned)((units - 33) >> 2);
}
uint64_t slab_object_bytes(unsigned class_index);
/* Bytes and alignment of the block that a new slab of this class needs. */
uint64_t slab_block_bytes(unsigned class_index);

/* A free object; NULL slab: none. */
struct slab *slab_take(struct pool *p, unsigned class_index, unsigned *slot);
/* A block in state SLAB becomes an empty slab. False: no host memory. */
bool slab_add(struct pool *p, struct block *b, unsigned class_index);
/* The object is neither live nor pending any more: it is free, or dead if it is exposed. An empty
 * slab may return to the zone. A slab whose objects are all free or dead, one at least dead, dies
 * as a whole (zone_bury). */
void slab_give(struct pool *p, struct slab *s, unsigned slot, uint64_t epoch);
/* Every empty slab goes back to the small zone. True: there was one. */
bool slab_release_empty(struct pool *p);

static inline uint64_t slab_object_addr(const struct slab *s, unsigned slot)
{
    return s->block->addr + slot * s->object_bytes;
}

/* What a free needs to find a slot. It is one word, so that all of it is of one slab. From the top:
 * the start of the slab's block in pages, the reciprocal of an object's units, and the number of
 * objects. The reciprocal is times 2^16, rounded up. */
#define SLAB_SHAPE_COUNT_BITS 8
#define SLAB_SHAPE_START_SHIFT 32
_Static_assert(SLAB_OBJECTS_MAX < 1 << SLAB_SHAPE_COUNT_BITS, "fits");
static inline void slab_show(struct slab *s)
{
    uint64_t start = s->block->addr / SLAB_PAGE_BYTES, units = s->object_bytes >> UNIT_SHIFT;
    uint64_t reciprocal = ((UINT64_C(1) << 16) + units - 1) / units;
    uint64_t shape = start << SLAB_SHAPE_START_SHIFT | reciprocal << SLAB_SHAPE_COUNT_BITS;
    atomic_store_explicit(&s->shape, shape | s->object_count, memory_order_relaxed);
}

/* The slot that covers addr in a slab of that shape; -1: the tail, which holds no object. A slab
 * has 512 units at most and an object 64, so the product with the reciprocal is exact. */
static inline int slab_slot_in(uint64_t shape, uint64_t addr)
{
    uint64_t unit = (addr - (shape >> SLAB_SHAPE_START_SHIFT) * SLAB_PAGE_BYTES) >> UNIT_SHIFT;
    uint64_t slot = unit * ((uint32_t)shape >> SLAB_SHAPE_COUNT_BITS) >> 16;
    return slot < (shape & ((1u << SLAB_SHAPE_COUNT_BITS) - 1)) ? (int)slot : -1;
}

/* The item of the slot that covers addr, or NULL. Without the lock, in any record that ever was a
 * slab's. The item may be of another address, or of none; its word tells. */
static inline struct item *slab_item_around(struct slab *s, uint64_t addr)
{
    int slot = slab_slot_in(atomic_load_explicit(&s->shape, memory_order_relaxed), addr);
    return slot >= 0 ? &s->items[slot] : NULL;
}

static inline int slab_slot_around(const struct slab *s, uint64_t addr)
{
    return slab_slot_in(atomic_load_explicit(&s->shape, memory_order_relaxed), addr);
}

#endif
