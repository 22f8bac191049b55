/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See magazine_pool.h, and pool_stats, pool_idle_bytes and pool_forget_thread in pool.h.
 */
#include "pool/magazine_pool.h"

#include "pool/magazine.h"
#include "pool/spin.h"
#include "pool/state.h"
#include "pool/tuning.h"

#include <pthread.h>

/* Serials of one range: more than a pool or a magazine ever uses. */
#define SERIALS_SHIFT 44

static _Atomic uint64_t serials_drawn;

uint64_t magazines_serials(void)
{
    return (atomic_fetch_add(&serials_drawn, 1) + 1) << SERIALS_SHIFT;
}

static __attribute__((cold, noinline)) void lock_slowly(struct magazine *m)
{
    for (unsigned turn = 0;; turn++) {
        for (unsigned spin = 0; spin < MAGAZINE_SPINS; spin++)
            if (!atomic_load_explicit(&m->locked, memory_order_relaxed) &&
                !atomic_exchange_explicit(&m->locked, 1, memory_order_acquire))
                return;
        spin_pause(turn);
    }
}

static inline void lock_magazine(struct magazine *m)
{
    if (unlikely(atomic_exchange_explicit(&m->locked, 1, memory_order_acquire)))
        lock_slowly(m);
}

/* The peaks of requested bytes and of the number of blocks are those seen at such moments. */
static void sync_stats(struct pool *p, struct magazine *m)
{
    struct pool_stats *s = &p->stats;
    uint64_t allocs = m->serial - m->serial_synced, before = s->allocated_bytes;
    uint64_t cached_synced_bytes = (uint64_t)m->cached_synced_units << UNIT_SHIFT;
    s->allocated_peak_bytes =
        max_u64(s->allocated_peak_bytes,
                before + cached_synced_bytes - ((uint64_t)m->cached_least_units << UNIT_SHIFT));
    s->allocated_bytes = before + cached_synced_bytes - ((uint64_t)magazine_units(m) << UNIT_SHIFT);
    stats_raise(&s->requested_bytes, (uint64_t)m->requested_bytes);
    stats_raise(&s->live_blocks, allocs - m->frees);
    s->num_allocs += allocs;
    s->num_hits += allocs;
    s->num_frees += m->frees;
    m->cached_synced_units = m->cached_least_units = magazine_units(m);
    m->requested_bytes = 0;
    m->frees = 0;
    if (unlikely(m->serial >> (SERIALS_SHIFT - 1) & 1))
        m->serial = magazines_serials(); /* the other half serves until the next time */
    m->serial_synced = m->serial;
}

void magazines_sync_own(struct pool *p)
{
    struct magazine *m = magazine_find_mine(p);
    if (!m || (m->serial == m->serial_synced && !m->frees))
        return;
    lock_magazine(m);
    sync_stats(p, m);
    magazine_unlock(m);
}

void magazines_sync_stats(struct pool *p)
{
    list_for_each(n, tmp, &p->magazines) {
        struct magazine *m = list_entry(n, struct magazine, link);
        lock_magazine(m);
        sync_stats(p, m);
        magazine_unlock(m);
    }
}

void pool_stats(struct pool *p, struct pool_stats *stats)
{
    state_lock(p);
    magazines_sync_stats(p);
    *stats = p->stats;
    state_unlock(p);
}

bool pool_can_tell(struct pool *p)
{
    bool can = true;
    for (unsigned turn = 0; pthread_mutex_trylock(&p->lock); turn++) {
        if (turn == CAN_TELL_TURNS)
            return false;
        spin_pause(turn);
    }
    list_for_each(n, tmp, &p->magazines) {
        struct magazine *m = list_entry(n, struct magazine, link);
        for (unsigned turn = 0; atomic_load_explicit(&m->locked, memory_order_relaxed) && can;
             turn++) {
            can = turn < CAN_TELL_TURNS;
            spin_pause(turn);
        }
    }
    state_unlock(p);
    return can;
}

uint64_t pool_idle_bytes(struct pool *p)
{
    state_lock(p);
    magazines_sync_stats(p);
    uint64_t idle = p->stats.reserved_bytes - p->stats.allocated_bytes;
    state_unlock(p);
    return idle;
}

void magazines_pass_all(struct pool *p)
{
    list_for_each(n, tmp, &p->magazines) {
        struct magazine *m = list_entry(n, struct magazine, link);
        lock_magazine(m);
        magazine_unlock(m);
    }
}

static void release(struct pool *p, const struct magazine_cell *cell)
{
    struct item *item = cell->item;
    if (item->slot == PENDING_BLOCK) {
        struct block *b = list_entry(item, struct block, item);
        zone_end_live(b);
        pending_settle_block(p, b, cell->epoch);
    } else {
        item->live = false;
        pending_settle_object(p, item->slab, item->slot, cell->epoch);
    }
}

static bool empty_from(struct pool *p, struct magazine *m, uint32_t first)
{
    if (p->abandoned)
        return false; /* what a late free has left in it is forgotten */
    lock_magazine(m);
    sync_stats(p, m);
    uint32_t before = magazine_units(m);
    for (uint32_t at = first; at < MAGAZINE_ROWS && magazine_units(m); at++) {
        struct magazine_row *row = &m->rows[at];
        uint32_t count = row->newest / sizeof row->cells[0];
        for (uint32_t i = 1; i <= count; i++) {
            m->cached -= row->cells[i].item->magazine_cost +
                         (at == MAGAZINE_MORE ? MAGAZINE_COST(0, row->units) : 0);
            release(p, &row->cells[i]);
        }
        row->newest = 0;
    }
    m->cached_synced_units = m->cached_least_units = magazine_units(m);
    bool any = magazine_units(m) != before;
    magazine_unlock(m);
    return any;
}

static bool empty(struct pool *p, struct magazine *m)
{
    return empty_from(p, m, MAGAZINE_OBJECTS);
}

void magazines_empty_blocks(struct pool *p)
{
    struct magazine *m = magazine_find_mine(p);
    if (m && magazine_units(m))
        empty_from(p, m, MAGAZINE_BLOCKS);
}

bool magazines_empty_all(struct pool *p)
{
    bool any = false;
    unsigned count = 0;
    for (const struct list *n = p->magazines.next; n != &p->magazines; n = n->next)
        count++;
    /* Each emptied magazine goes to the end of the list, and new ones too. So a thread that comes
     * meanwhile goes on where this one is: all magazines of the start are emptied when both are
     * through. What another thread emptied counts here as well. */
    for (unsigned done = 1; done <= count && !list_empty(&p->magazines); done++) {
        struct list *first = p->magazines.next;
        list_remove(first);
        list_push_back(&p->magazines, first);
        any = empty(p, list_entry(first, struct magazine, link)) || any;
        if (done % MAGAZINE_EMPTIED_AT_ONCE == 0) {
            any = true;
            state_yield(p);
        }
    }
    return any;
}

void magazines_forget_all(struct pool *p)
{
    list_for_each(n, tmp, &p->magazines) {
        struct magazine *m = list_entry(n, struct magazine, link);
        lock_magazine(m);
        sync_stats(p, m);
        for (uint32_t at = MAGAZINE_OBJECTS; at < MAGAZINE_ROWS; at++)
            m->rows[at].newest = 0;
        m->cached = MAGAZINE_EMPTY;
        m->cached_synced_units = m->cached_least_units = 0;
        magazine_unlock(m);
    }
}

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool key_made;

/* The thread ends: its magazines go back to their pools. A later free of the thread makes a new
 * one. */
static void return_magazines(void *unused)
{
    struct magazine *m = magazine_mine;
    magazine_mine = &magazine_none;
    while (m != &magazine_none) {
        struct magazine *next = m->next;
        struct pool *p = m->pool;
        state_lock(p);
        empty(p, m);
        list_remove(&m->link);
        m->last_serial = m->serial;
        host_cache_put(&p->magazine_cache, m);
        state_unlock(p);
        m = next;
    }
}

void pool_forget_thread(void)
{
    magazine_mine = &magazine_none;
}

static void make_magazine_key(void)
{
    key_made = pthread_key_create(&key, return_magazines) == 0;
}

void magazines_ensure(struct pool *p)
{
    if (likely(magazine_find_mine(p)))
        return;
    if (p->config.sync_free || p->backend->sees_all)
        return; /* each free has to wait, or to be looked at */
    pthread_once(&key_once, make_magazine_key);
    struct magazine *m = key_made ? host_cache_get(&p->magazine_cache) : NULL;
    if (!m)
        return;
    if (pthread_setspecific(key, m)) {
        host_cache_put(&p->magazine_cache, m);
        return;
    }
    m->pool = p;
    m->serial = m->serial_synced = m->last_serial ? m->last_serial : magazines_serials();
    m->cached = MAGAZINE_EMPTY;
    for (unsigned i = 0; i < MAGAZINE_HINTS; i++)
        m->hints[i] = &magazine_no_hint;
    for (unsigned i = MAGAZINE_OBJECTS; i < MAGAZINE_ROWS; i++) {
        m->rows[i].never = FENCE_READY_NEVER;
        unsigned depth = i == MAGAZINE_NEVER ? 0 : i == MAGAZINE_LARGE ? 1 : MAGAZINE_DEPTH;
        m->rows[i].last = (uint16_t)(depth * sizeof(struct magazine_cell));
        m->rows[i].units = i < MAGAZINE_BLOCKS
                               ? (uint32_t)(slab_object_bytes(i - MAGAZINE_OBJECTS) >> UNIT_SHIFT)
                               : 0;
    }
    m->next = magazine_mine;
    magazine_mine = m;
    list_push_back(&p->magazines, &m->link); /* see magazines_empty_all */
}
