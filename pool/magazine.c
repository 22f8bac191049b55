/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See magazine.h. Why a free may look at the map and at its block without the pool's lock:
 * 1. On the way to an item the free reads pages and starts of the map, a block's slab, a slab's
 *    shape, and the item's word. All these words are atomic. They are never zeroed with their
 *    record, and lead into records, which are never unmapped. So a thread may follow whatever it
 *    finds there.
 * 2. For a live pointer, all of them were written before the block was handed out. They stay until
 *    the block is freed, by this thread. So they lead to the block's item.
 * 3. For any other pointer they may lead to any item. A thread frees an item only if the item's
 *    word says that the program holds it at this very address. One thread takes that mark away, and
 *    only that thread frees the item.
 * 4. A record belongs to one pool for ever. The address was a pool's before the pool handed it out.
 *    So once the mark is seen, the map names that pool, or one that had the address later. In the
 *    second case the record's mark is lost.
 * 5. A pointer that is not found is left to the pool, which looks again under its lock. By 3 the
 *    thread may first look at what it was handed out lately, whatever has become of it.
 */
#include "pool/magazine.h"

#include "pool/map.h"
#include "pool/state.h"
#include "pool/tuning.h"

#include <string.h>

#define TIMES_4(x) x, x, x, x
#define TIMES_64(x) TIMES_4(TIMES_4(TIMES_4(x)))
struct item magazine_no_hint = {.row = MAGAZINE_NEVER};
struct magazine magazine_none = {.pool = (struct pool *)&magazine_none,
                                 .hints = {TIMES_64(&magazine_no_hint)}};
/* The model again: gcc forgets the declaration's. */
__thread struct magazine *magazine_mine __attribute__((tls_model("initial-exec"))) = &magazine_none;

/* The quick ways do not wait for a magazine that another thread holds. So they make no call, and
 * save no registers for one. */
static inline bool try_lock(struct magazine *m)
{
    return !atomic_exchange_explicit(&m->locked, 1, memory_order_acquire);
}

/* Row of a block's size in units, counted from the first row for blocks. */
static inline unsigned block_row(uint64_t units)
{
    return (uint32_t)units * UINT32_C(0x9e3779b1) >> 27;
}

static inline unsigned hint_of(uint64_t addr)
{
    return (unsigned)((addr * 0x9e3779b97f4a7c15u) >> 58);
}

/* The classes of objects by their units, four classes at a time. */
#define TIMES_1(x) x
#define TIMES_2(x) x, x
#define FOUR(times, x) times(x), times((x) + 1), times((x) + 2), times((x) + 3)
static const uint8_t class_rows[] = {MAGAZINE_NEVER,    FOUR(TIMES_1, 1),  FOUR(TIMES_1, 5),
                                     FOUR(TIMES_1, 9),  FOUR(TIMES_1, 13), FOUR(TIMES_2, 17),
                                     FOUR(TIMES_2, 21), FOUR(TIMES_4, 25), FOUR(TIMES_4, 29)};
_Static_assert(sizeof class_rows == 1 + (SLAB_MAX_BYTES >> UNIT_SHIFT),
               "a row for each size of an object");

/* Units of a request. 0 bytes give 0 units; so do sizes whose sum overflows. */
static inline uint64_t units_of(uint64_t size_bytes)
{
    uint64_t units = (size_bytes + UNIT_BYTES - 1) >> UNIT_SHIFT;
    __asm__("" : "+r"(units)); /* or the compiler would compare and add the unshifted sum */
    return units;
}

/* In one register from here on: the compiler would compute the address of each field anew. */
static inline struct magazine_row *row_at(struct magazine *m, unsigned at)
{
    struct magazine_row *row = &m->rows[at];
    __asm__("" : "+r"(row));
    return row;
}

/* The same for a size of blocks. Its first row is added last, where that costs nothing. */
static inline struct magazine_row *block_row_at(struct magazine *m, uint64_t units)
{
    uint64_t place = block_row(units) * sizeof m->rows[0];
    __asm__("" : "+r"(place));
    struct magazine_row *row = (struct magazine_row *)((char *)&m->rows[MAGAZINE_BLOCKS] + place);
    __asm__("" : "+r"(row));
    return row;
}

static inline struct magazine_cell *cell_at(struct magazine_row *row, uint64_t place)
{
    return (struct magazine_cell *)((char *)row + place);
}

static inline uint64_t ready_epoch(const struct pool *p)
{
    return atomic_load_explicit(&p->fences.ready, memory_order_acquire);
}

/* The program holds the item from here on. Unlocks the magazine. */
static inline __attribute__((always_inline)) uint64_t hand_out(struct magazine *m,
                                                               struct magazine_row *row,
                                                               struct item *item,
                                                               uint64_t size_bytes)
{
    int64_t cached = m->cached - item->magazine_cost;
    row->newest -= sizeof row->cells[0];
    m->cached = cached;
    if (unlikely((uint32_t)cached < m->cached_least_units))
        m->cached_least_units = (uint32_t)cached;
    m->requested_bytes += (int64_t)size_bytes;
    uint64_t addr = atomic_load_explicit(&item->word, memory_order_relaxed), serial = m->serial + 1;
    m->serial = serial;
    m->hints[item->hint] = item;
    item_begin(item, size_bytes, serial);
    atomic_store_explicit(&item->word, addr + ITEM_HELD, memory_order_release);
    magazine_unlock(m);
    return addr;
}

/* The large block, if there is one, does not serve either. */
static __attribute__((noinline)) uint64_t take_more(struct magazine *m, uint64_t size_bytes)
{
    struct magazine_row *row = &m->rows[MAGAZINE_MORE];
    if (row->units != units_of(size_bytes) || !try_lock(m))
        return 0;
    const struct magazine_cell *cell = cell_at(row, row->newest);
    if (cell->epoch > ready_epoch(m->pool)) {
        magazine_unlock(m);
        return 0;
    }
    m->cached -= MAGAZINE_COST(0, row->units);
    return hand_out(m, row, cell->item, size_bytes);
}

/* The newest is not ready: the oldest is, or nothing in the row. The rest stays in the order of its
 * epochs. */
static __attribute__((noinline)) uint64_t take_oldest(struct magazine *m, struct magazine_row *row,
                                                      uint64_t size_bytes)
{
    struct magazine_cell oldest = row->cells[1];
    uint64_t newest = row->newest;
    if (!newest || oldest.epoch > ready_epoch(m->pool)) {
        magazine_unlock(m);
        return row == &m->rows[MAGAZINE_LARGE] ? take_more(m, size_bytes) : 0;
    }
    memmove(&row->cells[1], &row->cells[2], newest - sizeof oldest);
    return hand_out(m, row, oldest.item, size_bytes);
}

/* The magazine is the pool's. */
static inline __attribute__((always_inline)) uint64_t take_from(const struct pool *p,
                                                                struct magazine *m,
                                                                struct magazine_row *row,
                                                                uint64_t size_bytes)
{
    if (unlikely(!try_lock(m)))
        return 0;
    const struct magazine_cell *cell = cell_at(row, row->newest);
    if (unlikely(cell->epoch > ready_epoch(p)))
        return take_oldest(m, row, size_bytes);
    return hand_out(m, row, cell->item, size_bytes);
}

static inline __attribute__((always_inline)) uint64_t take_item(const struct pool *p,
                                                                struct magazine *m,
                                                                uint64_t size_bytes)
{
    uint64_t units = units_of(size_bytes);
    if (likely(units < sizeof class_rows))
        return take_from(p, m, row_at(m, class_rows[units]), size_bytes);
    struct magazine_row *row = block_row_at(m, units);
    if (unlikely(row->units != units)) {
        row = row_at(m, MAGAZINE_LARGE);
        if (unlikely(row->units != units))
            return take_more(m, size_bytes);
    }
    return take_from(p, m, row, size_bytes);
}

/* The thread's first magazine is another pool's. Puts this pool's first. */
static __attribute__((noinline)) uint64_t take_elsewhere(const struct pool *p, uint64_t size_bytes)
{
    for (struct magazine **at = &magazine_mine; *at; at = &(*at)->next)
        if ((*at)->pool == p) {
            struct magazine *m = *at;
            *at = m->next;
            m->next = magazine_mine;
            magazine_mine = m;
            return take_item(p, m, size_bytes);
        }
    return 0;
}

uint64_t pool_alloc_fast(struct pool *p, uint64_t size_bytes)
{
    struct magazine *m = magazine_mine;
    return likely(m->pool == p) ? take_item(p, m, size_bytes) : take_elsewhere(p, size_bytes);
}

/* The last step. False: the program does not hold the item any more. */
static inline __attribute__((always_inline)) bool
put_item(struct magazine *m, struct magazine_row *row, uint64_t newest, struct item *item,
         uint64_t addr, uint64_t epoch, int64_t cached)
{
    uint64_t held = addr + ITEM_HELD;
    if (unlikely(!atomic_compare_exchange_strong_explicit(
            &item->word, &held, addr, memory_order_acquire, memory_order_relaxed)))
        return false;
    struct magazine_cell *cell = cell_at(row, newest) + 1;
    cell->item = item;
    cell->epoch = epoch;
    row->newest += sizeof *cell;
    m->cached = cached;
    m->requested_bytes -= (int64_t)item_requested_bytes(item);
    m->frees++;
    return true;
}

/* Counts what was freed into the magazine in its newest epoch. */
static void count_epoch(struct magazine *m, uint64_t epoch, uint64_t bytes)
{
    if (m->epoch != epoch) {
        m->epoch = epoch;
        m->epoch_frees = 0;
        m->epoch_bytes = 0;
    }
    m->epoch_bytes += bytes;
    fence_want(&m->pool->fences, ++m->epoch_frees, m->epoch_bytes);
}

/* With one stream, the first free after a submission: it marks the open epoch. There is room. The
 * magazine is locked; unlocks it. */
static __attribute__((noinline)) bool give_first(struct magazine *m, struct item *item,
                                                 uint64_t addr, struct magazine_row *row,
                                                 int64_t cached)
{
    uint64_t epoch = fence_join_unlocked(&m->pool->fences);
    bool given = put_item(m, row, row->newest, item, addr, epoch, cached);
    magazine_unlock(m);
    return given;
}

/* Into a row that may be of another size, or with several streams. With several streams large
 * blocks are left to the pool. It records their fences at once, and weighs how much memory waits.
 * The magazine is locked; unlocks it. */
static __attribute__((noinline)) bool give_carefully(struct magazine *m, struct item *item,
                                                     uint64_t addr)
{
    struct magazine_row *row = row_at(m, item_row(item));
    uint32_t units = item_units(item);
    int64_t cached = m->cached + item->magazine_cost;
    if (row == &m->rows[MAGAZINE_LARGE] && row->newest && row->units == units) {
        row = &m->rows[MAGAZINE_MORE];
        cached += MAGAZINE_COST(0, units);
    }
    if (row->newest >= row->last || (row->newest && row->units != units) || cached < 0) {
        magazine_unlock(m);
        return false;
    }
    struct fences *f = &m->pool->fences;
    uint64_t ready = ready_epoch(m->pool);
    bool single = ready == FENCE_READY_ALL, given = false;
    if (single || (ready != FENCE_READY_LOST && row < &m->rows[MAGAZINE_LARGE])) {
        uint64_t epoch = fence_join_unlocked(f);
        row->units = units;
        given = put_item(m, row, row->newest, item, addr, epoch, cached);
        if (given && !single)
            count_epoch(m, epoch, (uint64_t)units << UNIT_SHIFT);
    }
    magazine_unlock(m);
    return given;
}

/* No item starts at an odd address. One below an item that is free, the sum is its word. */
static inline bool is_held_at(const struct item *item, uint64_t addr)
{
    return likely(!(addr & ITEM_HELD)) &&
           atomic_load_explicit(&item->word, memory_order_acquire) == addr + ITEM_HELD;
}

/* The item that the program holds at addr, or NULL: none was seen. Without the lock. */
static struct item *find_item(const struct granule *g, uint64_t addr)
{
    struct block *b = map_block(g, addr);
    if (!b || is_held_at(&b->item, addr))
        return b ? &b->item : NULL;
    struct slab *s = block_slab(b);
    struct item *item = s ? slab_item_around(s, addr) : NULL;
    return item && is_held_at(item, addr) ? item : NULL;
}

/* A free of what the thread's first magazine has not handed out, or not lately. */
static __attribute__((noinline)) bool give_mapped(uint64_t addr)
{
    const struct granule *g = map_find(addr);
    struct pool *p = g ? atomic_load_explicit(&g->pool, memory_order_acquire) : NULL;
    struct magazine *m = p ? magazine_find_mine(p) : NULL;
    struct item *item = m ? find_item(g, addr) : NULL;
    bool ours =
        item && atomic_load_explicit(&g->pool, memory_order_relaxed) == p; /* still, or again */
    return ours && try_lock(m) && give_carefully(m, item, addr);
}

bool pool_free_fast(uint64_t addr)
{
    struct magazine *m = magazine_mine;
    struct item *item = m->hints[hint_of(addr)];
    if (unlikely(!is_held_at(item, addr)))
        return give_mapped(addr);
    if (unlikely(!try_lock(m)))
        return false;
    struct magazine_row *row = row_at(m, item_row(item));
    uint64_t newest = row->newest;
    int64_t cost = item->magazine_cost, cached = m->cached + cost;
    if (unlikely(cached < 0 || newest >= row->last || row->units != (uint32_t)cost))
        return give_carefully(m, item, addr);
    struct pool *p = m->pool;
    if (unlikely(ready_epoch(p) != FENCE_READY_ALL))
        return give_carefully(m, item, addr);
    uint64_t epoch = fence_open_epoch(&p->fences);
    if (unlikely(!fence_open_is_on_time(&p->fences)))
        return give_first(m, item, addr, row, cached);
    if (unlikely(!put_item(m, row, newest, item, addr, epoch, cached))) {
        magazine_unlock(m);
        return false;
    }
    magazine_unlock(m);
    return true;
}

/* Does the pool serve all requests that an item of this size would be handed out for? A magazine
 * knows units and classes; MIN_BLOCK and MAX_BLOCK are bytes. */
static bool serves_all(const struct pool_config *c, bool object, uint64_t most_bytes)
{
    unsigned class_index = object ? slab_class(most_bytes) : 0;
    uint64_t least_bytes = object ? 1 : most_bytes - UNIT_BYTES + 1;
    if (class_index)
        least_bytes = slab_object_bytes(class_index - 1) + 1;
    return least_bytes >= c->min_block_bytes && most_bytes <= c->max_block_bytes;
}

void magazine_hand_out(struct pool *p, struct item *item, uint64_t addr, uint64_t units)
{
    item->magazine_cost =
        MAGAZINE_COST(units, units <= MAGAZINE_BLOCK_BYTES >> UNIT_SHIFT ? units : 0);
    if (item->slot != PENDING_BLOCK)
        item_set_row(item, class_rows[units]);
    else if (units <= MAGAZINE_BLOCK_BYTES >> UNIT_SHIFT)
        item_set_row(item, MAGAZINE_BLOCKS + block_row(units));
    else
        item_set_row(item,
                     units <= MAGAZINE_LARGE_BYTES >> UNIT_SHIFT ? MAGAZINE_LARGE : MAGAZINE_NEVER);
    if (unlikely(!serves_all(&p->config, item->slot != PENDING_BLOCK, units << UNIT_SHIFT)))
        item_set_row(item, MAGAZINE_NEVER);
    item->hint = (uint8_t)hint_of(addr);
    atomic_store_explicit(&item->word, addr + ITEM_HELD, memory_order_release);
    if (likely(magazine_mine->pool == p))
        magazine_mine->hints[item->hint] = item;
}

bool magazine_awaits(const struct pool *p, uint64_t size_bytes)
{
    const struct magazine *m = magazine_find_mine(p);
    uint64_t units = units_of(size_bytes);
    if (!m || !magazine_units(m) || size_bytes > MAGAZINE_BLOCK_BYTES)
        return false;
    unsigned at =
        units < sizeof class_rows ? class_rows[units] : MAGAZINE_BLOCKS + block_row(units);
    const struct magazine_row *row = &m->rows[at];
    return row->newest && (units < sizeof class_rows || row->units == units);
}
