/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A block: a range of device addresses in one state. The blocks of a region (an arena's zone, or one
 * segment) are linked by address and cover it without a gap. All fields belong to the pool's lock, but for
 * those of a piece.
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
    BLOCK_LIVE,    /* the program's */
    BLOCK_PENDING, /* freed; GPU work may still use it */
    BLOCK_SLAB,    /* carved into small objects */
    BLOCK_HOLE,    /* address space of an arena without memory */
    BLOCK_BUSY,    /* being committed, moved or released; the thread that does it owns it */
    BLOCK_GHOST,   /* addresses whose memory was moved; old GPU work may still use it through them */
    BLOCK_DEAD,    /* freed after it was shared with the outside: never handed out again */
};

#define PENDING_BLOCK UINT16_MAX

/* A live block, or a live object of a slab, which the program or a magazine holds; and, while it is
 * pending, what the program freed. The record of a block has one piece, that of a slab one for each
 * object.
 * 1. A piece is never zeroed and stays a piece for ever, so that a free may look at the word of
 *    any.
 * 2. The word names one address at a time. HELD is set only while the program holds the memory
 *    there.
 * 3. Who takes HELD away, by compare and exchange or under the pool's lock, frees.
 * 4. The other fields are written before HELD is set, and then only by who exposes. */
struct piece {
    _Atomic uint64_t word; /* the address, plus HELD or not */
    uint64_t serial;       /* unique in the process, and new each time that the piece is handed out */
    uint64_t requested_bytes;
    int64_t weight;        /* its units, less the room that it takes in a magazine: PIECE_WEIGHT */
    uint8_t row, recent;   /* in a magazine: of its size, or none once it is exposed; of its address */
    uint16_t slot;         /* object number in its slab, or PENDING_BLOCK */
    /* From here on under the pool's lock alone. */
    bool live;             /* an object: the program's, or in a magazine */
    bool exposed, noted;
    /* Of an object; of a block while SLAB. A free reads it without the lock. */
    _Atomic(struct slab *) slab;
    union {
        struct piece *next;   /* in the pending queue */
        uint64_t slack_bytes; /* LIVE, a segment: what it has beyond a new one for its request */
    };
    uint64_t epoch; /* pending: of its free. A FREE block's: newest in which a part was freed */
} __attribute__((aligned(64))); /* neighbours belong to different threads */
_Static_assert(sizeof(struct piece) == 64, "one line of a processor's cache");

#define PIECE_HELD UINT64_C(1)

/* Units in the lower half, room in the upper: both are counted with one addition, and where no room is left the sum
 * is negative. */
#define PIECE_WEIGHT(units, room_units) ((int64_t)(units) - (int64_t)(room_units) * (INT64_C(1) << 32))

static inline uint64_t piece_addr(const struct piece *p)
{
    return atomic_load_explicit(&p->word, memory_order_relaxed) & ~(UNIT_BYTES - 1);
}

static inline uint32_t piece_units(const struct piece *p)
{
    return (uint32_t)p->weight;
}

static inline bool piece_is_held(const struct piece *p)
{
    return atomic_load_explicit(&p->word, memory_order_acquire) & PIECE_HELD;
}

/* By one of several who try to free it at the same time, here or into a magazine. The pool's lock held. */
static inline bool piece_claim(struct piece *p)
{
    return atomic_fetch_and_explicit(&p->word, ~PIECE_HELD, memory_order_acquire) & PIECE_HELD;
}

struct block {
    uint64_t addr, size_bytes;
    struct block *prev, *next; /* neighbours by address in the region; NULL at its ends */
    struct zone *zone;
    struct list link;          /* in a bin (FREE), the zone's holes (HOLE) or dead (DEAD), the ghosts */
    enum block_state state;
    bool was_free;             /* BUSY: it held free memory, not a hole */
    struct piece piece;        /* LIVE, PENDING, SLAB; from here on never zeroed, see host_cache_init */
};
_Static_assert(sizeof(struct block) == 2 * sizeof(struct piece), "what a live block costs: tests/bench/LATENCY.md");

/* Slabs start at multiples of this, so that an object's slab is found from its address. */
#define SLAB_PAGE_BYTES (UINT64_C(64) << 10)

enum zone_kind { ZONE_SMALL, ZONE_LARGE };

static inline struct slab *block_slab(const struct block *b)
{
    return atomic_load_explicit(&b->piece.slab, memory_order_acquire);
}

static inline uint64_t block_end(const struct block *b)
{
    return b->addr + b->size_bytes;
}

#endif
