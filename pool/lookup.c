/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See lookup.h, and pool_lookup, pool_expose, pool_set_sync_memops and pool_for_each_range in
 * pool.h.
 */
#include "pool/lookup.h"

#include "pool/chunk.h"
#include "pool/magazine.h"
#include "pool/map.h"
#include "pool/spin.h"
#include "pool/state.h"
#include "pool/tuning.h"

struct pool *find_owner(uint64_t addr, struct granule **g)
{
    *g = map_find(addr);
    if (!*g)
        return NULL;
    for (;;) {
        struct pool *p = atomic_load_explicit(&(*g)->pool, memory_order_acquire);
        if (!p)
            return NULL;
        state_lock(p);
        if (atomic_load_explicit(&(*g)->pool, memory_order_relaxed) == p)
            return p;
        state_unlock(p);
    }
}

void find_evict(uint64_t addr, uint64_t size_bytes)
{
    for (uint64_t at = addr; at < addr + size_bytes; at += GRANULE_BYTES) {
        struct granule *g;
        struct pool *p = find_owner(at, &g);
        if (likely(!p))
            continue;
        p->evicted = p->fences.lost = true;
        fence_publish(&p->fences);
        map_forget(g->chunk, p); /* as a whole: a slab may begin below the range */
        state_unlock(p);
    }
}

bool pool_owns(uint64_t addr)
{
    const struct granule *g = map_find(addr);
    return g && atomic_load_explicit(&g->pool, memory_order_acquire);
}

bool pool_is_away(uint64_t addr)
{
    struct granule *g;
    struct pool *p = atomic_load(&chunk_away_bytes) ? find_owner(addr, &g) : NULL;
    if (!p)
        return false;
    bool away = g->chunk && g->chunk->park == CHUNK_AWAY;
    state_unlock(p);
    return away;
}

/* What is live around an address: a block, or an object of the slab in it. */
struct found {
    struct pool *pool;
    struct block *block;
    struct item *item;
    bool *exposed, *sync_memops;
    uint64_t addr, size_bytes;
};

/* On POOL_OK the lock of found->pool is held. On POOL_INVALID that field alone is set. */
static enum pool_status find_live(uint64_t addr, struct found *found)
{
    struct granule *g;
    struct pool *p = find_owner(addr, &g);
    if (!p)
        return POOL_FOREIGN;
    struct block *b = map_block_around(addr, p);
    if (b && b->state == BLOCK_LIVE && item_is_held(&b->item)) {
        *found = (struct found){
            p, b, &b->item, &b->item.exposed, &b->item.sync_memops, b->addr, b->size_bytes};
        return POOL_OK;
    }
    if (b && b->state == BLOCK_SLAB) {
        struct slab *s = block_slab(b);
        int slot = slab_slot_around(s, addr);
        if (slot >= 0 && s->items[slot].live && item_is_held(&s->items[slot])) {
            struct item *o = &s->items[slot];
            *found = (struct found){p,
                                    b,
                                    o,
                                    &o->exposed,
                                    &o->sync_memops,
                                    slab_object_addr(s, (unsigned)slot),
                                    s->object_bytes};
            return POOL_OK;
        }
    }
    state_unlock(p);
    found->pool = p;
    return POOL_INVALID;
}

enum pool_status pool_lookup(uint64_t addr, struct pool_block *out)
{
    struct found f;
    enum pool_status status = find_live(addr, &f);
    if (status == POOL_INVALID)
        out->pool = f.pool;
    if (status != POOL_OK)
        return status;
    *out = (struct pool_block){.pool = f.pool,
                               .addr = f.addr,
                               .size_bytes = f.size_bytes,
                               .requested_bytes = item_requested_bytes(f.item),
                               .serial = item_serial(f.item),
                               .exposed = *f.exposed,
                               .sync_memops = *f.sync_memops};
    if (!f.pool->arena)
        out->segment_addr = map_chunk(f.block->addr, f.pool)->addr;
    state_unlock(f.pool);
    return POOL_OK;
}

enum pool_status pool_expose(uint64_t addr)
{
    struct found f;
    enum pool_status status = find_live(addr, &f);
    if (status != POOL_OK)
        return status;
    *f.exposed = true;
    chunk_expose(f.block);
    item_set_row(f.item, MAGAZINE_NEVER);
    state_unlock(f.pool);
    return POOL_OK;
}

enum pool_status pool_set_sync_memops(uint64_t addr, bool sync_memops)
{
    struct found f;
    enum pool_status status = find_live(addr, &f);
    if (status != POOL_OK)
        return status;
    *f.sync_memops = sync_memops;
    state_unlock(f.pool);
    return POOL_OK;
}

/* The next chunks from *at on, until one that a thread works on: *busy. They are copied to the
 * stack, because host memory may be short. f runs without the lock: until it has, no thread takes
 * the memory away from there. */
static unsigned next_chunks(const struct pool *p, uint64_t *at, uint64_t end,
                            struct chunk *chunks[RANGES_AT_ONCE], bool *busy)
{
    unsigned count = 0, looks = RANGE_LOOKS;
    struct chunk *c;
    *busy = false;
    while (count < RANGES_AT_ONCE && !*busy && (c = chunk_next(p, at, end, &looks))) {
        if (c->park == CHUNK_AWAY)
            continue;
        *busy = c->busy_block;
        if (*busy) {
            *at = c->addr;
        } else {
            c->walks++;
            chunks[count++] = c;
        }
    }
    return count;
}

/* One turn of a wait for other threads. False: it has taken too long. Drops the lock. Nobody wakes
 * the caller, who may be a signal handler in the very thread that is at work. */
static bool await_turn(struct pool *p, unsigned *turn, uint64_t start_ns)
{
    if (p->backend->ops->now_ns(p->backend) - start_ns >= OOM_WAIT_NS)
        return false;
    state_unlock(p);
    spin_pause((*turn)++);
    state_lock(p);
    return true;
}

/* Waits for the jobs that are under way, and not for later ones, of which there may always be some.
 * 1. A job belongs to the side that turns_begun has when it begins. A turn begins when the one
 *    before has ended, and ends when no job of the other side is left. So when a turn begins, all
 *    jobs are of the side that becomes the other one, and when it ends, none of those is left.
 * 2. The next turn to begin has all jobs before it that are under way now.
 * 3. A turn belongs to no thread: each one that waits begins it or ends it, whoever comes first.
 *    Threads that come during a turn share the next one. So each waits for two turns at most. */
static void await_chunks(struct pool *p)
{
    uint64_t wanted = p->turns_begun + 1, start_ns = p->backend->ops->now_ns(p->backend);
    unsigned turn = 0;
    bool waits = true;
    while (waits && p->turns_ended < wanted) {
        if (p->jobs_of[(p->turns_begun + 1) % 2])
            waits = await_turn(p, &turn, start_ns);
        else if (p->turns_ended < p->turns_begun)
            p->turns_ended++;
        else
            p->turns_begun++;
    }
}

void pool_for_each_range(struct pool *p, void (*f)(void *arg, uint64_t addr, uint64_t size_bytes),
                         void *arg)
{
    struct zone *zones[] = {&p->small, &p->large};
    struct chunk *chunks[RANGES_AT_ONCE];
    uint64_t start_ns = p->backend->ops->now_ns(p->backend);
    unsigned turn = 0;
    state_enter(p);
    /* Chunks under way may have the rights that the backend knew before. The walk does not see them
     * until they are in their places. */
    if (!p->abandoned)
        await_chunks(p);
    if (p->abandoned) { /* and perhaps under revival, which reserves its zones without the lock */
        state_leave(p);
        return;
    }
    p->unlocked_jobs++;
    /* Chunks that come from here on are mapped with the rights that the backend knows by then. */
    for (int i = 0; i < 2; i++) {
        uint64_t end = zones[i]->base + zones[i]->size_bytes;
        for (uint64_t at = zones[i]->base; at < end;) {
            bool busy;
            unsigned count = next_chunks(p, &at, end, chunks, &busy);
            if (busy && !count) { /* it may come back as it was, or go */
                at += await_turn(p, &turn, start_ns) ? 0 : GRANULE_BYTES;
                continue;
            }
            state_unlock(p);
            for (unsigned k = 0; k < count; k++)
                f(arg, chunks[k]->addr, chunks[k]->size_bytes);
            state_lock(p);
            for (unsigned k = 0; k < count; k++)
                chunks[k]->walks--;
        }
    }
    p->unlocked_jobs--;
    state_broadcast(p);
    state_leave(p);
}
