/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See magazine.h. Why a free may look at the map and at its block without the pool's lock: for a live
 * pointer all that is read here was written before the block was handed out, and stays until it is
 * freed, by the thread that is here. For any other pointer the records may be changing under our eyes:
 * they are never unmapped, so looking is harmless; `held` is taken away by exchange, by one thread at most,
 * and only from what the program holds; and what does not look right is left to the pool, which looks
 * again under its lock.
 */
#include "pool/magazine.h"

#include "pool/map.h"
#include "pool/state.h"

#include <pthread.h>
#include <sched.h>

#define SERIALS 4096 /* drawn at a time */
#define SPINS 100

static __thread struct magazine *mine __attribute__((tls_model("initial-exec")));
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool key_made;

static inline struct magazine *find_mine(const struct pool *p)
{
    struct magazine *m = mine;
    while (unlikely(m && m->pool != p))
        m = m->next;
    return m;
}

static __attribute__((cold, noinline)) void lock_slowly(struct magazine *m)
{
    for (unsigned spin = 1;; spin++) {
        if (!atomic_load_explicit(&m->locked, memory_order_relaxed) &&
            !atomic_exchange_explicit(&m->locked, 1, memory_order_acquire))
            return;
        if (spin % SPINS == 0)
            sched_yield();
    }
}

static inline void lock(struct magazine *m)
{
    if (unlikely(atomic_exchange_explicit(&m->locked, 1, memory_order_acquire)))
        lock_slowly(m);
}

/* The quick ways leave a magazine that another thread is at alone: they make no call, so that they
 * save no registers for one. */
static inline bool try_lock(struct magazine *m)
{
    return !atomic_exchange_explicit(&m->locked, 1, memory_order_acquire);
}

static inline void unlock(struct magazine *m)
{
    atomic_store_explicit(&m->locked, 0, memory_order_release);
}

/* Of a size in units; objects have a row for each class, blocks share some. */
static inline uint32_t row_of(uint64_t units)
{
    if (units <= SLAB_MAX_BYTES >> UNIT_SHIFT)
        return slab_class(units << UNIT_SHIFT);
    return SLAB_CLASSES + (uint32_t)((units * 0x9e3779b97f4a7c15u) >> 59);
}

static inline void count_alloc(struct magazine *m, uint64_t bytes, uint64_t requested_bytes)
{
    atomic_store_explicit(&m->untold, true, memory_order_relaxed);
    m->cached_bytes -= bytes;
    if (unlikely(bytes > MAGAZINE_BLOCK_BYTES))
        m->large_bytes = 0;
    m->requested_bytes += (int64_t)requested_bytes;
    m->allocated_bytes += (int64_t)bytes;
    if (m->allocated_bytes > m->allocated_peak_bytes)
        m->allocated_peak_bytes = m->allocated_bytes;
}

bool pool_take(struct pool *p, uint64_t size_bytes, uint64_t *addr)
{
    struct magazine *m = find_mine(p);
    if (unlikely(!m || size_bytes > MAGAZINE_LARGE_BYTES || !try_lock(m)))
        return false;
    uint64_t units = (size_bytes + UNIT_BYTES - 1) >> UNIT_SHIFT;
    struct magazine_row *row = &m->rows[row_of(units)];
    bool object = units <= SLAB_MAX_BYTES >> UNIT_SHIFT;
    uint32_t at = row->count - (row->count != 0);
    const struct magazine_cell *cell = &row->cells[at];
    if (unlikely(!row->count || (!object && row->units != units) || m->serial == m->serial_end ||
                 cell->epoch > atomic_load_explicit(&p->fences.ready, memory_order_acquire))) {
        unlock(m);
        return false;
    }
    row->count = at;
    uint64_t serial = ++m->serial;
    if (likely(object)) {
        struct slab_object *o = cell->record;
        *addr = o->addr;
        o->requested_less_one = (uint16_t)(size_bytes - 1);
        o->serial = serial;
        atomic_store_explicit(&o->held, true, memory_order_release);
    } else {
        struct block *b = cell->record;
        *addr = b->addr;
        b->requested_bytes = size_bytes;
        b->serial = serial;
        atomic_store_explicit(&b->held, true, memory_order_release);
    }
    count_alloc(m, (uint64_t)row->units << UNIT_SHIFT, size_bytes);
    unlock(m);
    return true;
}

static inline bool has_room(const struct magazine *m, uint64_t bytes)
{
    return likely(bytes <= MAGAZINE_BLOCK_BYTES) ? m->cached_bytes - m->large_bytes + bytes <= MAGAZINE_BYTES
                                                 : !m->large_bytes;
}

/* One free on its way into a magazine. */
struct gift {
    struct pool *pool;
    struct magazine *magazine;
    struct magazine_row *row;
    void *record;
    atomic_bool *held;
    uint64_t bytes, requested_bytes;
};

enum given { GIVEN, REFUSED, UNARMED };

/* Into the row, if it has room and the memory is the program's to free. The open epoch has to be
 * armed by then: `arms` does it. */
static inline __attribute__((always_inline)) enum given put(const struct gift *g, bool arms)
{
    struct fences *f = &g->pool->fences;
    struct magazine *m = g->magazine;
    struct magazine_row *row = g->row;
    uint32_t units = (uint32_t)(g->bytes >> UNIT_SHIFT), at = row->count;
    if (unlikely(at == MAGAZINE_DEPTH || (at && row->units != units) ||
                 !has_room(m, g->bytes)))
        return REFUSED;
    uint64_t epoch =
        arms ? fence_join_unlocked(f) : atomic_load_explicit(&f->open_epoch, memory_order_acquire);
    if (!arms && unlikely(!fence_is_armed(f)))
        return UNARMED;
    if (unlikely(!atomic_exchange_explicit(g->held, false, memory_order_acquire)))
        return REFUSED;
    row->units = units;
    row->count = at + 1;
    row->cells[at].record = g->record;
    row->cells[at].epoch = epoch;
    m->cached_bytes += g->bytes;
    if (unlikely(g->bytes > MAGAZINE_BLOCK_BYTES))
        m->large_bytes = g->bytes;
    m->allocated_bytes -= (int64_t)g->bytes;
    m->requested_bytes -= (int64_t)g->requested_bytes;
    m->frees++;
    atomic_store_explicit(&m->untold, true, memory_order_relaxed);
    return GIVEN;
}

static inline bool find_object(struct gift *gift, struct slab *s, uint64_t addr)
{
    int slot = slab_slot_around(s, addr);
    if (unlikely(slot < 0))
        return false;
    struct slab_object *o = &s->objects[slot];
    gift->row = &gift->magazine->rows[s->class_index];
    gift->record = o;
    gift->held = &o->held;
    gift->bytes = s->object_bytes;
    gift->requested_bytes = o->requested_less_one + UINT64_C(1);
    return likely(o->addr == addr && !o->tainted);
}

static inline bool find_block(struct gift *gift, struct block *b)
{
    gift->row = &gift->magazine->rows[row_of(b->size_bytes >> UNIT_SHIFT)];
    gift->record = b;
    gift->held = &b->held;
    gift->bytes = b->size_bytes;
    gift->requested_bytes = b->requested_bytes;
    return likely(b->state == BLOCK_LIVE && !b->tainted &&
                  b->size_bytes <= MAGAZINE_LARGE_BYTES);
}

static inline __attribute__((always_inline)) enum given give(uint64_t addr, bool arms)
{
    const struct granule *g = map_find(addr);
    struct gift gift = {.pool = g ? atomic_load_explicit(&g->pool, memory_order_acquire) : NULL};
    if (unlikely(!gift.pool))
        return REFUSED;
    gift.magazine = find_mine(gift.pool);
    if (unlikely(!gift.magazine || atomic_load_explicit(&gift.pool->fences.ready,
                                                        memory_order_acquire) != FENCE_READY_ALL))
        return REFUSED;
    struct block *b = map_block(g, addr);
    if (unlikely(!b || !(b->state == BLOCK_SLAB ? find_object(&gift, b->slab, addr)
                                                : find_block(&gift, b))))
        return REFUSED;
    if (arms)
        lock(gift.magazine);
    else if (unlikely(!try_lock(gift.magazine)))
        return REFUSED;
    enum given given = put(&gift, arms);
    unlock(gift.magazine);
    return given;
}

/* The first free after a submission. */
static __attribute__((noinline)) bool give_and_arm(uint64_t addr)
{
    return give(addr, true) == GIVEN;
}

bool pool_give(uint64_t addr)
{
    enum given given = give(addr, false);
    if (unlikely(given == UNARMED))
        return give_and_arm(addr);
    return given == GIVEN;
}

/* The peaks of what was asked for, and of the number of blocks, are those seen at such moments. */
static void tell(struct pool *p, struct magazine *m)
{
    struct pool_stats *s = &p->stats;
    uint64_t allocs = m->serial - m->serial_told;
    atomic_store_explicit(&m->untold, false, memory_order_relaxed);
    s->allocated_peak_bytes =
        max_u64(s->allocated_peak_bytes, s->allocated_bytes + (uint64_t)m->allocated_peak_bytes);
    s->allocated_bytes += (uint64_t)m->allocated_bytes;
    stats_raise(&s->requested_bytes, (uint64_t)m->requested_bytes);
    stats_raise(&s->live_blocks, allocs - m->frees);
    s->num_allocs += allocs;
    s->num_hits += allocs;
    s->num_frees += m->frees;
    m->allocated_bytes = m->allocated_peak_bytes = m->requested_bytes = 0;
    m->frees = 0;
    if (m->serial_end - m->serial < SERIALS / 2) {
        m->serial = p->serial_base + p->serial;
        m->serial_end = m->serial + SERIALS;
        p->serial += SERIALS;
    }
    m->serial_told = m->serial;
}

void magazine_tell(struct pool *p)
{
    struct magazine *m = find_mine(p);
    if (!m || !atomic_load_explicit(&m->untold, memory_order_relaxed))
        return;
    lock(m);
    tell(p, m);
    unlock(m);
}

void magazine_tell_all(struct pool *p)
{
    list_for_each (n, tmp, &p->magazines) {
        struct magazine *m = list_entry(n, struct magazine, link);
        lock(m);
        tell(p, m);
        unlock(m);
    }
}

void magazine_pass_all(struct pool *p)
{
    list_for_each (n, tmp, &p->magazines) {
        struct magazine *m = list_entry(n, struct magazine, link);
        lock(m);
        unlock(m);
    }
}

static void release(struct pool *p, const struct magazine_cell *cell, bool object)
{
    if (object) {
        struct slab_object *o = cell->record;
        o->live = false;
        pending_settle_object(p, slab_of(&o->pending), o->pending.slot, cell->epoch);
    } else {
        struct block *b = cell->record;
        map_clear(b);
        pending_settle_block(p, b, cell->epoch);
    }
}

static bool empty_from(struct pool *p, struct magazine *m, uint32_t first)
{
    bool any = false;
    lock(m);
    tell(p, m);
    for (uint32_t at = first; at < SLAB_CLASSES + MAGAZINE_SIZES && m->cached_bytes; at++) {
        struct magazine_row *row = &m->rows[at];
        for (uint32_t i = 0; i < row->count; i++) {
            release(p, &row->cells[i], at < SLAB_CLASSES);
            m->cached_bytes -= (uint64_t)row->units << UNIT_SHIFT;
            any = true;
        }
        row->count = 0;
    }
    if (any)
        m->large_bytes = 0;
    unlock(m);
    return any;
}

static bool empty(struct pool *p, struct magazine *m)
{
    return empty_from(p, m, 0);
}

bool magazine_is_empty(const struct pool *p)
{
    const struct magazine *m = find_mine(p);
    return !m || !m->cached_bytes;
}

void magazine_empty_blocks(struct pool *p)
{
    empty_from(p, find_mine(p), SLAB_CLASSES);
}

bool magazine_empty_all(struct pool *p)
{
    bool any = false;
    list_for_each (n, tmp, &p->magazines) {
        struct magazine *m = list_entry(n, struct magazine, link);
        any = empty(p, m) || any;
    }
    return any;
}

void magazine_forget_all(struct pool *p)
{
    list_for_each (n, tmp, &p->magazines) {
        struct magazine *m = list_entry(n, struct magazine, link);
        lock(m);
        tell(p, m);
        for (uint32_t at = 0; at < SLAB_CLASSES + MAGAZINE_SIZES; at++)
            m->rows[at].count = 0;
        m->cached_bytes = m->large_bytes = 0;
        unlock(m);
    }
}

/* The thread ends: its magazines go back to their pools. Whatever it frees after that makes new
 * ones. */
static void thread_ends(void *first)
{
    struct magazine *m = first;
    mine = NULL;
    while (m) {
        struct magazine *next = m->next;
        struct pool *p = m->pool;
        state_lock(p);
        empty(p, m);
        list_remove(&m->link);
        host_cache_put(&p->magazine_cache, m);
        state_unlock(p);
        m = next;
    }
}

static void make_key(void)
{
    key_made = pthread_key_create(&key, thread_ends) == 0;
}

void magazine_ensure(struct pool *p)
{
    if (likely(find_mine(p)))
        return;
    if (p->config->sync_free)
        return; /* each free has to wait */
    pthread_once(&key_once, make_key);
    struct magazine *m = key_made ? host_cache_get(&p->magazine_cache) : NULL;
    if (!m)
        return;
    m->pool = p;
    m->next = mine;
    if (pthread_setspecific(key, m)) {
        host_cache_put(&p->magazine_cache, m);
        return;
    }
    mine = m;
    list_push_front(&p->magazines, &m->link);
    lock(m);
    tell(p, m);
    unlock(m);
}
