/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A magazine holds the blocks that one thread has just freed, so that the same thread gets them
 * again without the pool's lock. A thread has one magazine for each pool that it uses. To the rest
 * of the pool a block in a magazine is live: it keeps its place in the map and its chunk. Only its
 * word (ITEM_HELD, block.h) tells that the program does not hold it.
 *
 * With one stream all of a magazine is ready (single_stream.h), and it hands out the latest free
 * first. With several streams it hands out the oldest free of a size, which is the likeliest to be
 * ready. A magazine holds blocks up to MAGAZINE_BLOCK_BYTES, MAGAZINE_BYTES in all. With one stream
 * it also holds one larger block, up to MAGAZINE_LARGE_BYTES, and more of the same size as far as
 * MAGAZINE_BYTES has room. Those make a pair with two live blocks of 3 MiB take 191 instructions
 * instead of 636.
 *
 * The pool empties all magazines before it asks the driver for more memory, lets a request wait, or
 * trims. So memory in a magazine makes no other request fail or wait.
 *
 * Each magazine has a spin lock. Its thread holds it for some tens of instructions. A thread that
 * empties it holds it while up to a few hundred items go back to the pool. No thread holds it over
 * a driver call. Order: the pool's lock, then a magazine's. magazine_pool.h has what happens to
 * magazines under the pool's lock.
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

#define MAGAZINE_SIZES 32 /* rows for blocks, by a hash of their size */
#define MAGAZINE_DEPTH 7
#define MAGAZINE_HINTS 64
#define MAGAZINE_EMPTY MAGAZINE_COST(0, -(int64_t)(MAGAZINE_BYTES >> UNIT_SHIFT))

/* The rows, in this order. First there is one for each class of objects, then MAGAZINE_SIZES for
 * blocks. Then there is one each for the large block, for more blocks of its size, and for what no
 * magazine takes. The place of row 0 is taken by the magazine's other fields. */
enum {
    MAGAZINE_OBJECTS = 1,
    MAGAZINE_BLOCKS = MAGAZINE_OBJECTS + SLAB_CLASSES,
    MAGAZINE_LARGE = MAGAZINE_BLOCKS + MAGAZINE_SIZES,
    MAGAZINE_MORE,
    MAGAZINE_NEVER,
    MAGAZINE_ROWS
};

struct magazine_cell {
    struct item *item;
    uint64_t epoch; /* of the block's free */
};

/* Cells of one size: of a class of objects, or of the block that came first while the row was
 * empty. The first cell is never ready, and holds the fields of the row. Places in a row are in
 * bytes. */
struct magazine_row {
    union {
        struct {
            uint16_t newest, last; /* the newest cell, and the last that may be filled; 0: none */
            uint32_t units;
            uint64_t never;
        };
        struct magazine_cell cells[1 + MAGAZINE_DEPTH];
    };
} __attribute__((aligned(128)));

/* The code finds the lock and every row from the magazine's address alone. If the first row had an
 * offset, each look would take one more instruction. */
struct magazine {
    union {
        struct {
            _Atomic uint32_t locked;
            /* What happened here since the statistics of the pool were synced: cached_least_units,
             * requested_bytes, frees and serials (each allocation takes one). Memory that comes in
             * or goes out changes what the program holds by as much. */
            uint32_t cached_least_units, cached_synced_units;
            unsigned epoch_frees;
            int64_t cached; /* cost of all items in it; MAGAZINE_EMPTY: nothing */
            struct pool *pool;
            uint64_t serial, serial_synced, frees;
            int64_t requested_bytes;
            uint64_t epoch, epoch_bytes; /* several streams: of the latest frees into it */
            struct magazine *next;       /* the same thread's magazine of another pool */
            struct list link;            /* in pool.magazines */
        };
        struct magazine_row rows[MAGAZINE_ROWS];
    };
    /* Written by its thread: items that were handed out lately, by a hash of their address. An
     * item may have been freed since, and be the record of something else. */
    struct item *hints[MAGAZINE_HINTS];
    uint64_t last_serial; /* of a magazine that is used no more; last, see host_cache_init */
};
_Static_assert(offsetof(struct magazine, link) + sizeof(struct list) <= sizeof(struct magazine_row),
               "its place");

static inline uint32_t magazine_units(const struct magazine *m)
{
    return (uint32_t)m->cached;
}

/* The calling thread's magazines, the one used last first. The list ends with magazine_none. */
extern __thread struct magazine *magazine_mine
    __attribute__((tls_model("initial-exec"), visibility("hidden")));
/* magazine_none: the magazine of a thread without one. It belongs to no pool and stays empty.
 * magazine_no_hint: the item of an address that was not handed out lately. Its word can match an
 * address, its row takes nothing. */
extern struct magazine magazine_none __attribute__((visibility("hidden")));
extern struct item magazine_no_hint __attribute__((visibility("hidden")));

/* The thread's magazine for that pool; NULL: it has none. */
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

/* These want the pool's lock held. */

/* Writes the item's size, address and the mark that the program holds it. The other fields are
 * written before. */
void magazine_hand_out(struct pool *p, struct item *item, uint64_t addr, uint64_t units);
/* Does the thread's own magazine hold an item that would serve the request once it is ready? */
bool magazine_awaits(const struct pool *p, uint64_t size_bytes);

#endif
