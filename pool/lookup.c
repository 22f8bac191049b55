/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See lookup.h, and pool_lookup, pool_expose, pool_set_sync_memops and pool_for_each_range in
 * pool.h.
 */
#include "pool/lookup.h"

#include "pool/chunk.h"
#include "pool/job.h"
#include "pool/magazine.h"
#include "pool/map.h"
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

struct range {
    uint64_t addr, size_bytes;
};

/* The next chunks from *at on. They are copied to the stack, because host memory may be short, and
 * f runs without the lock. */
static unsigned next_ranges(const struct pool *p, uint64_t *at, uint64_t end,
                            struct range ranges[RANGES_AT_ONCE])
{
    unsigned count = 0, looks = RANGE_LOOKS;
    const struct chunk *c;
    while (count < RANGES_AT_ONCE && (c = chunk_next(p, at, end, &looks)))
        if (c->park != CHUNK_AWAY)
            ranges[count++] = (struct range){c->addr, c->size_bytes};
    return count;
}

void pool_for_each_range(struct pool *p, void (*f)(void *arg, uint64_t addr, uint64_t size_bytes),
                         void *arg)
{
    struct zone *zones[] = {&p->small, &p->large};
    struct range ranges[RANGES_AT_ONCE];
    state_lock(p);
    if (p->abandoned) { /* and perhaps under revival, which reserves its zones without the lock */
        state_unlock(p);
        return;
    }
    job_begin_walk(p);
    for (int i = 0; i < 2; i++) {
        uint64_t end = zones[i]->base + zones[i]->size_bytes;
        for (uint64_t at = zones[i]->base; at < end;) {
            unsigned count = next_ranges(p, &at, end, ranges);
            state_unlock(p);
            for (unsigned k = 0; k < count; k++)
                f(arg, ranges[k].addr, ranges[k].size_bytes);
            state_lock(p);
        }
    }
    job_end_walk(p);
    state_unlock(p);
}
