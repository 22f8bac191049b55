/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Magazines: what a thread has just freed, to be handed out to the same thread again without the
 * pool's lock. A thread has one per pool that it uses. To the rest of the pool a block in a
 * magazine is live: it keeps its place in the map and its chunk; only its word (PIECE_HELD,
 * block.h) tells that it is not the program's.
 *
 * A magazine hands out what is ready: what came last, as is all of it while stream order alone
 * makes reuse safe (sole.h); or else what came first, the likeliest to be ready with several
 * streams. It holds MAGAZINE_BYTES at most and, with one stream, one large block. Whatever the pool
 * does before it asks the driver for more, lets a request wait, or trims, empties all
 * magazines first: what lies in one costs nobody memory.
 *
 * Each has a spin lock. Its thread holds it for some tens of instructions. A thread that empties
 * the magazine holds it while up to a few hundred pieces go back to the pool. Nobody holds it over
 * a call of the driver's. Order: the pool's lock, then a magazine's. What happens to them under the
 * pool's lock is in rack.h.
 */
#ifndef POOL_MAGAZINE_H
#define POOL_MAGAZINE_H

#include "pool/block.h"
#include "pool/slab.h"
#include "pool/tuning.h"

#include <stdatomic.h>
#include <stddef.h>

struct granule;
struct pool;

#define MAGAZINE_SIZES 32 /* rows for blocks */
#define MAGAZINE_DEPTH 7
#define MAGAZINE_RECENT 64
#define MAGAZINE_EMPTY PIECE_WEIGHT(0, -(int64_t)(MAGAZINE_BYTES >> UNIT_SHIFT))

/* The rows: of each class of objects; of blocks; of the one large block; of more of its size; of what never goes in. In
 * the place of the first is the rest of the magazine. */
enum {
    MAGAZINE_OBJECTS = 1,
    MAGAZINE_BLOCKS = MAGAZINE_OBJECTS + SLAB_CLASSES,
    MAGAZINE_LARGE = MAGAZINE_BLOCKS + MAGAZINE_SIZES,
    MAGAZINE_MORE,
    MAGAZINE_NEVER,
    MAGAZINE_ROWS
};

struct magazine_cell {
    struct piece *piece;
    uint64_t epoch; /* of its free */
};

/* Cells of one size: of a class of objects, or of the size that came first while the row was empty. Before the first
 * stands one that is never ready, and holds what else there is to say. Places in a row are told in bytes. */
struct magazine_row {
    union {
        struct {
            uint16_t newest, last; /* where those cells are, the last that may be filled; 0: none */
            uint32_t units;
            uint64_t never;
        };
        struct magazine_cell cells[1 + MAGAZINE_DEPTH];
    };
} __attribute__((aligned(128)));

/* Its lock, its rows and the place of each are found with no more than its address: an offset of the first takes an
 * instruction of its own. */
struct magazine {
    union {
        struct {
            _Atomic uint32_t locked;
            /* What happened here since the pool's statistics heard of it last: cached_least_units, requested_bytes,
             * frees and serials (each allocation takes one). Memory that comes in here or goes out changes by as much
             * what the program holds. */
            uint32_t cached_least_units, cached_told_units;
            unsigned epoch_frees;
            int64_t cached; /* the weight of what is in it, and of nothing: MAGAZINE_EMPTY */
            struct pool *pool;
            uint64_t serial, serial_told, frees;
            int64_t requested_bytes;
            uint64_t epoch, epoch_bytes; /* several streams: of the latest frees into it, and how much that was */
            struct magazine *next; /* the thread's, for another pool */
            struct list link;      /* the pool's */
        };
        struct magazine_row rows[MAGAZINE_ROWS];
    };
    /* Its thread's: what it was handed out lately, by address. It may be the program's no more, and the record of
     * something else. */
    struct piece *recent[MAGAZINE_RECENT];
    uint64_t last_serial; /* of a magazine that is used no more; last, see host_cache_init */
};
_Static_assert(offsetof(struct magazine, link) + sizeof(struct list) <= sizeof(struct magazine_row), "its place");

static inline uint32_t magazine_units(const struct magazine *m)
{
    return (uint32_t)m->cached;
}

/* The calling thread's, the one used last first; at their end stands magazine_none. */
extern __thread struct magazine *magazine_mine __attribute__((tls_model("initial-exec"), visibility("hidden")));
/* What a thread without a magazine has: no pool's, nothing in it, and nothing is put there. And what was not handed
 * out lately: its word fits an address too, but not its row. */
extern struct magazine magazine_none __attribute__((visibility("hidden")));
extern struct piece magazine_nothing __attribute__((visibility("hidden")));

/* The thread's for that pool; NULL: it has none. */
static inline struct magazine *magazine_find_mine(const struct pool *p)
{
    struct magazine *m = magazine_mine;
    while (m && m->pool != p)
        m = m->next;
    return m;
}

static inline void magazine_unlock(struct magazine *m)
{
    atomic_store_explicit(&m->locked, 0, memory_order_release);
}

/* All of these want the pool's lock held. */

/* The piece's size and address and the mark that the program holds it; its other fields are there. */
void magazine_hand_out(struct pool *p, struct piece *piece, uint64_t addr, uint64_t units);
/* Does something lie in the thread's own that would serve the request, once it is ready? */
bool magazine_awaits(const struct pool *p, uint64_t size_bytes);

#endif
