/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See magazine.h. Why a free may look at the map and at its block without the pool's lock:
 * 1. On the way to a piece the free reads pages and starts of the map, a block's slab, a slab's
 *    shape, and the piece's word. All these words are atomic. They are never zeroed with their
 *    record, and lead into records, which are never unmapped. So a thread may follow whatever it
 *    finds there.
 * 2. For a live pointer, all of them were written before the block was handed out. They stay until
 *    the block is freed, by this thread. So they lead to the block's piece.
 * 3. For any other pointer they may lead to any piece. A thread frees a piece only if the piece's
 *    word says that the program holds it at this very address. One thread takes that mark away, and
 *    only that thread frees the piece.
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
struct piece magazine_no_hint = {.row = MAGAZINE_NEVER};
struct magazine magazine_none = {.pool = (struct pool *)&magazine_none,
                                 .recent = {TIMES_64(&magazine_no_hint)}};
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

static inline unsigned recent_of(uint64_t addr)
{
    return (unsigned)((addr * 0x9e3779b97f4a7c15u) >> 58);
}

/* The classes of objects by their units. */
#define TIMES_2(x) x, x
static const uint8_t class_rows[] = {
    MAGAZINE_NEVER,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    13,
    14,
    15,
    16,
    TIMES_2(17),
    TIMES_2(18),
    TIMES_2(19),
    TIMES_2(20),
    TIMES_2(21),
    TIMES_2(22),
    TIMES_2(23),
    TIMES_2(24),
    TIMES_4(25),
    TIMES_4(26),
    TIMES_4(27),
    TIMES_4(28),
    TIMES_4(29),
    TIMES_4(30),
    TIMES_4(31),
    TIMES_4(32),
};
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

/* The program holds the piece from here on. Unlocks the magazine. */
static inline __attribute__((always_inline)) uint64_t hand_out(struct magazine *m,
                                                               struct magazine_row *row,
                                                               struct piece *piece,
                                                               uint64_t size_bytes)
{
    int64_t cached = m->cached - piece->weight;
    row->newest -= sizeof row->cells[0];
    m->cached = cached;
    if (unlikely((uint32_t)cached < m->cached_least_units))
        m->cached_least_units = (uint32_t)cached;
    m->requested_bytes += (int64_t)size_bytes;
    uint64_t addr = atomic_load_explicit(&piece->word, memory_order_relaxed),
             serial = m->serial + 1;
    m->serial = serial;
    m->recent[piece->recent] = piece;
    piece_begin(piece, size_bytes, serial);
    atomic_store_explicit(&piece->word, addr + PIECE_HELD, memory_order_release);
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
    m->cached -= PIECE_WEIGHT(0, row->units);
    return hand_out(m, row, cell->piece, size_bytes);
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
    return hand_out(m, row, oldest.piece, size_bytes);
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
    return hand_out(m, row, cell->piece, size_bytes);
}

static inline __attribute__((always_inline)) uint64_t take(const struct pool *p, struct magazine *m,
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
            return take(p, m, size_bytes);
        }
    return 0;
}

uint64_t pool_alloc_fast(struct pool *p, uint64_t size_bytes)
{
    struct magazine *m = magazine_mine;
    return likely(m->pool == p) ? take(p, m, size_bytes) : take_elsewhere(p, size_bytes);
}

/* The last step. False: the program does not hold the piece any more. */
static inline __attribute__((always_inline)) bool put(struct magazine *m, struct magazine_row *row,
                                                      uint64_t newest, struct piece *piece,
                                                      uint64_t addr, uint64_t epoch, int64_t cached)
{
    uint64_t held = addr + PIECE_HELD;
    if (unlikely(!atomic_compare_exchange_strong_explicit(
            &piece->word, &held, addr, memory_order_acquire, memory_order_relaxed)))
        return false;
    struct magazine_cell *cell = cell_at(row, newest) + 1;
    cell->piece = piece;
    cell->epoch = epoch;
    row->newest += sizeof *cell;
    m->cached = cached;
    m->requested_bytes -= (int64_t)piece_requested_bytes(piece);
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

/* With one stream, the first free after a submission: it arms the open epoch. There is room. The
 * magazine is locked; unlocks it. */
static __attribute__((noinline)) bool give_first(struct magazine *m, struct piece *piece,
                                                 uint64_t addr, struct magazine_row *row,
                                                 int64_t cached)
{
    uint64_t epoch = fence_join_unlocked(&m->pool->fences);
    bool given = put(m, row, row->newest, piece, addr, epoch, cached);
    magazine_unlock(m);
    return given;
}

/* Into a row that may be of another size, or with several streams. With several streams large
 * blocks are left to the pool. It records their fences at once, and weighs how much memory waits.
 * The magazine is locked; unlocks it. */
static __attribute__((noinline)) bool give_carefully(struct magazine *m, struct piece *piece,
                                                     uint64_t addr)
{
    struct magazine_row *row = row_at(m, piece_row(piece));
    uint32_t units = piece_units(piece);
    int64_t cached = m->cached + piece->weight;
    if (row == &m->rows[MAGAZINE_LARGE] && row->newest && row->units == units) {
        row = &m->rows[MAGAZINE_MORE];
        cached += PIECE_WEIGHT(0, units);
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
        given = put(m, row, row->newest, piece, addr, epoch, cached);
        if (given && !single)
            count_epoch(m, epoch, (uint64_t)units << UNIT_SHIFT);
    }
    magazine_unlock(m);
    return given;
}

/* No piece starts at an odd address. One below a piece that is free, the sum is its word. */
static inline bool is_held_at(const struct piece *piece, uint64_t addr)
{
    return likely(!(addr & PIECE_HELD)) &&
           atomic_load_explicit(&piece->word, memory_order_acquire) == addr + PIECE_HELD;
}

/* The piece that the program holds at addr, or NULL: none was seen. Without the lock. */
static struct piece *find_piece(const struct granule *g, uint64_t addr)
{
    struct block *b = map_block(g, addr);
    if (!b || is_held_at(&b->piece, addr))
        return b ? &b->piece : NULL;
    struct slab *s = block_slab(b);
    struct piece *piece = s ? slab_piece_around(s, addr) : NULL;
    return piece && is_held_at(piece, addr) ? piece : NULL;
}

/* A free of what the thread's first magazine has not handed out, or not lately. */
static __attribute__((noinline)) bool give_mapped(uint64_t addr)
{
    const struct granule *g = map_find(addr);
    struct pool *p = g ? atomic_load_explicit(&g->pool, memory_order_acquire) : NULL;
    struct magazine *m = p ? magazine_find_mine(p) : NULL;
    struct piece *piece = m ? find_piece(g, addr) : NULL;
    bool ours =
        piece && atomic_load_explicit(&g->pool, memory_order_relaxed) == p; /* still, or again */
    return ours && try_lock(m) && give_carefully(m, piece, addr);
}

bool pool_free_fast(uint64_t addr)
{
    struct magazine *m = magazine_mine;
    struct piece *piece = m->recent[recent_of(addr)];
    if (unlikely(!is_held_at(piece, addr)))
        return give_mapped(addr);
    if (unlikely(!try_lock(m)))
        return false;
    struct magazine_row *row = row_at(m, piece_row(piece));
    uint64_t newest = row->newest;
    int64_t weight = piece->weight, cached = m->cached + weight;
    if (unlikely(cached < 0 || newest >= row->last || row->units != (uint32_t)weight))
        return give_carefully(m, piece, addr);
    struct pool *p = m->pool;
    if (unlikely(ready_epoch(p) != FENCE_READY_ALL))
        return give_carefully(m, piece, addr);
    uint64_t epoch = fence_open_epoch(&p->fences);
    if (unlikely(!fence_is_armed(&p->fences)))
        return give_first(m, piece, addr, row, cached);
    if (unlikely(!put(m, row, newest, piece, addr, epoch, cached))) {
        magazine_unlock(m);
        return false;
    }
    magazine_unlock(m);
    return true;
}

/* Does the pool serve all requests that a piece of this size would be handed out for? A magazine
 * knows units and classes; MIN_BLOCK and MAX_BLOCK are bytes. */
static bool serves_all(const struct pool_config *c, bool object, uint64_t most_bytes)
{
    unsigned class_index = object ? slab_class(most_bytes) : 0;
    uint64_t least_bytes = object ? 1 : most_bytes - UNIT_BYTES + 1;
    if (class_index)
        least_bytes = slab_object_bytes(class_index - 1) + 1;
    return least_bytes >= c->min_block_bytes && most_bytes <= c->max_block_bytes;
}

void magazine_hand_out(struct pool *p, struct piece *piece, uint64_t addr, uint64_t units)
{
    piece->weight = PIECE_WEIGHT(units, units <= MAGAZINE_BLOCK_BYTES >> UNIT_SHIFT ? units : 0);
    if (piece->slot != PENDING_BLOCK)
        piece_set_row(piece, class_rows[units]);
    else if (units <= MAGAZINE_BLOCK_BYTES >> UNIT_SHIFT)
        piece_set_row(piece, MAGAZINE_BLOCKS + block_row(units));
    else
        piece_set_row(piece, units <= MAGAZINE_LARGE_BYTES >> UNIT_SHIFT ? MAGAZINE_LARGE
                                                                         : MAGAZINE_NEVER);
    if (unlikely(!serves_all(&p->config, piece->slot != PENDING_BLOCK, units << UNIT_SHIFT)))
        piece_set_row(piece, MAGAZINE_NEVER);
    piece->recent = (uint8_t)recent_of(addr);
    atomic_store_explicit(&piece->word, addr + PIECE_HELD, memory_order_release);
    if (likely(magazine_mine->pool == p))
        magazine_mine->recent[piece->recent] = piece;
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
