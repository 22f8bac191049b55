/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A block: a range of device addresses in one state. The blocks of a region (an arena's zone, or one
 * segment) are linked by address and cover it without a gap. All fields belong to the pool's lock.
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

/* What waits in the pending queue: a block, or one object of a slab. */
struct pending {
    struct pending *next;
    uint64_t epoch; /* the fence epoch of its free */
    uint16_t slot;  /* object number in its slab, or PENDING_BLOCK */
};

#define PENDING_BLOCK UINT16_MAX

struct block {
    uint64_t addr, size_bytes;
    struct block *prev, *next; /* neighbours by address in the region; NULL at its ends */
    struct zone *zone;
    struct list link;          /* in a bin (FREE), the zone's holes (HOLE) or dead (DEAD), the ghosts */
    struct pending pending;    /* while PENDING */
    struct slab *slab;         /* while SLAB */
    uint64_t scan;             /* FREE: the last walk over the bins that saw it */
    uint64_t epoch;            /* FREE: newest epoch in which a part of it was freed */
    uint64_t requested_bytes;  /* LIVE: as asked for */
    uint64_t serial;           /* LIVE: unique in the process */
    enum block_state state;
    bool tainted;
    atomic_bool held;          /* LIVE and the program's; not so if it lies in a magazine */
    bool was_free;             /* BUSY: it held free memory, not a hole */
};

/* Slabs start at multiples of this, so that an object's slab is found from its address. */
#define SLAB_PAGE_BYTES (UINT64_C(64) << 10)

enum zone_kind { ZONE_SMALL, ZONE_LARGE };

static inline uint64_t block_end(const struct block *b)
{
    return b->addr + b->size_bytes;
}

#endif
