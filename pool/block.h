/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A block: a range of device addresses in one state. The blocks of a region (an arena's zone, or
 * one segment) are linked by address and cover it without a gap. All fields belong to the pool's
 * lock, but for those of an item.
 */
#ifndef POOL_BLOCK_H
#define POOL_BLOCK_H

#include "pool/bits.h"
#include "pool/list.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct slab;
struct zone;

enum block_state {
    BLOCK_FREE,    /* committed, in the zone's bins, safe to hand out */
    BLOCK_LIVE,    /* the program or a magazine holds it */
    BLOCK_PENDING, /* freed; GPU work may still use it */
    BLOCK_SLAB,    /* carved into small objects */
    BLOCK_HOLE,    /* address space of an arena without memory */
    BLOCK_BUSY,    /* a thread commits, moves or releases it, and owns it meanwhile */
    BLOCK_GHOST,   /* addresses of moved memory, which old GPU work may still use */
    BLOCK_DEAD,    /* freed after it was known outside: never handed out again */
};

#define PENDING_BLOCK UINT16_MAX

/* A live block, or a live object of a slab, that the program or a magazine holds. While it is
 * pending, it is memory that the program freed. A block's record has one item, a slab's record one
 * for each object.
 * 1. An item is never zeroed and stays an item for ever, so a free may look at the word of any
 *    item.
 * 2. The word names one address at a time. HELD is set only while the program holds the memory
 *    there.
 * 3. The thread that takes HELD away, by compare and exchange or under the pool's lock, frees.
 * 4. The other fields are written before HELD is set. After that only a thread that exposes writes
 *    them.
 * 5. A thread that asks about an address looks under the pool's lock, and a magazine hands out
 *    without it. So what both of them touch is atomic. Where the program asks about memory that is
 *    being handed out, the answer may be of any life of the item. */
struct item {
    _Atomic uint64_t word;   /* the address, plus HELD or not */
    _Atomic uint64_t serial; /* unique in the process, and new each time it is handed out */
    _Atomic uint64_t requested_bytes;
    int64_t magazine_cost; /* its units, less the room that it takes in a magazine: MAGAZINE_COST */
    _Atomic uint8_t row;   /* place in a magazine, of its size */
    uint8_t hint;          /* .. of its address */
    uint16_t slot;         /* object number in its slab, or PENDING_BLOCK */
    /* From here on under the pool's lock alone. */
    bool live; /* an object: the program or a magazine holds it */
    bool exposed, sync_memops;
    /* Of an object; of a block while SLAB. A free reads it without the lock. */
    _Atomic(struct slab *) slab;
    union {
        struct item *next;    /* in the pending queue */
        uint64_t slack_bytes; /* LIVE, a segment: its bytes beyond a new segment for the request */
    };
    uint64_t epoch; /* PENDING: of its free. FREE: the newest in which a part was freed */
} __attribute__((aligned(64))); /* neighbours belong to different threads */
_Static_assert(sizeof(struct item) == 64, "one line of a processor's cache");

#define ITEM_HELD UINT64_C(1)

/* Units are in the lower half, room in the upper half. So one addition counts both. The sum is
 * negative where no room is left. */
#define MAGAZINE_COST(units, room_units)                                                           \
    ((int64_t)(units) - (int64_t)(room_units) * (INT64_C(1) << 32))

static inline uint64_t item_addr(const struct item *p)
{
    return atomic_load_explicit(&p->word, memory_order_relaxed) & ~(UNIT_BYTES - 1);
}

static inline uint32_t item_units(const struct item *p)
{
    return (uint32_t)p->magazine_cost;
}

static inline uint64_t item_requested_bytes(const struct item *p)
{
    return atomic_load_explicit(&p->requested_bytes, memory_order_relaxed);
}

static inline uint64_t item_serial(const struct item *p)
{
    return atomic_load_explicit(&p->serial, memory_order_relaxed);
}

static inline unsigned item_row(const struct item *p)
{
    return atomic_load_explicit(&p->row, memory_order_relaxed);
}

static inline void item_set_row(struct item *p, unsigned row)
{
    atomic_store_explicit(&p->row, (uint8_t)row, memory_order_relaxed);
}

/* Another life of the item begins. */
static inline void item_begin(struct item *p, uint64_t requested_bytes, uint64_t serial)
{
    atomic_store_explicit(&p->requested_bytes, requested_bytes, memory_order_relaxed);
    atomic_store_explicit(&p->serial, serial, memory_order_relaxed);
}

static inline bool item_is_held(const struct item *p)
{
    return atomic_load_explicit(&p->word, memory_order_acquire) & ITEM_HELD;
}

/* Several threads may try to free an item at the same time: true for one of them. The pool's lock
 * held. */
static inline bool item_claim(struct item *p)
{
    return atomic_fetch_and_explicit(&p->word, ~ITEM_HELD, memory_order_acquire) & ITEM_HELD;
}

struct block {
    uint64_t addr, size_bytes;
    struct block *prev, *next; /* neighbours by address in the region; NULL at its ends */
    struct zone *zone;
    struct list link; /* FREE: placement.h; HOLE, DEAD: the zone's; GHOST: the pool's */
    enum block_state state;
    bool was_free;    /* BUSY: it held free memory, not a hole */
    struct item item; /* LIVE, PENDING, SLAB; never zeroed, see host_cache_init */
};
_Static_assert(sizeof(struct block) == 2 * sizeof(struct item), "see tests/bench/LATENCY.md");

/* Slabs start at multiples of this, so that an object's slab is found from its address. */
#define SLAB_PAGE_BYTES (UINT64_C(64) << 10)

enum zone_kind { ZONE_SMALL, ZONE_LARGE };

static inline struct slab *block_slab(const struct block *b)
{
    return atomic_load_explicit(&b->item.slab, memory_order_acquire);
}

static inline uint64_t block_end(const struct block *b)
{
    return b->addr + b->size_bytes;
}

#endif
