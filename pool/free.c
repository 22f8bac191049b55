/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Frees under the pool's lock: see pool_free_slowly in pool.h.
 */
#include "pool/chunk.h"
#include "pool/lookup.h"
#include "pool/magazine_pool.h"
#include "pool/map.h"
#include "pool/state.h"
#include "pool/tuning.h"

/* An exposed segment goes back at once, because cuMemFree waits for the work itself. */
static void free_block(struct pool *p, struct block *b)
{
    zone_end_live(b);
    p->stats.allocated_bytes -= b->size_bytes;
    p->stats.requested_bytes -= item_requested_bytes(&b->item);
    if (unlikely(b->item.exposed)) {
        p->stats.num_exposed++;
        if (!p->arena && b->zone->kind == ZONE_LARGE) {
            struct chunk *c = map_chunk(b->addr, p);
            b->state = BLOCK_BUSY;
            c->busy_block = b;
            c->plan = NULL;
            c->in_use_by_gpu = true;
            chunk_release(p, c);
            return;
        }
    }
    pending_settle_block(p, b, fence_join(p, b->size_bytes));
}

static void free_object(struct pool *p, struct slab *s, unsigned slot)
{
    struct item *o = &s->items[slot];
    o->live = false;
    p->stats.allocated_bytes -= s->object_bytes;
    p->stats.requested_bytes -= item_requested_bytes(o);
    p->stats.num_exposed += o->exposed;
    pending_settle_object(p, s, slot, fence_join(p, s->object_bytes));
}

/* Waits as cudaFree does, for programs that rely on it. To be called before the free, while the
 * block is still live. There may be no fence to wait for: no event can be had, another thread has
 * the record of the epoch under way, or work followed meanwhile. Then the driver waits, at once: so
 * not for work that was submitted after this call. */
static void sync_before_free(struct pool *p)
{
    struct fences *f = &p->fences;
    uint64_t epoch = fence_join(p, 0);
    if (fence_wait(p, epoch, false, UINT64_MAX) || f->complete_epoch >= epoch || f->lost)
        return;
    state_unlock(p);
    p->backend->ops->drain(p->backend);
    state_lock(p);
}

enum pool_status pool_free_slowly(uint64_t addr)
{
    struct granule *g;
    struct pool *p = find_owner(addr, &g);
    if (!p)
        return POOL_FOREIGN;
    p->threads_inside++;
    if (unlikely(p->config.sync_free))
        sync_before_free(p);
    enum pool_status status = POOL_INVALID;
    /* Meanwhile the context may have ended, or another thread may have freed the address. Then it
     * may be another pool's. */
    bool owned = atomic_load_explicit(&g->pool, memory_order_relaxed) == p;
    struct block *b = likely(owned) ? map_block(g, addr) : NULL;
    if (b && b->state == BLOCK_LIVE && item_claim(&b->item)) {
        free_block(p, b);
        status = POOL_OK;
    } else if (b && b->state == BLOCK_SLAB) {
        struct slab *s = block_slab(b);
        int slot = slab_slot_around(s, addr);
        if (slot >= 0 && s->items[slot].live && slab_object_addr(s, (unsigned)slot) == addr &&
            item_claim(&s->items[slot])) {
            free_object(p, s, (unsigned)slot);
            status = POOL_OK;
        }
    }
    magazines_ensure(p);
    if (status == POOL_OK) {
        p->stats.live_blocks--;
        if (++p->stats.num_frees % CLOCK_EVERY == 0)
            p->now_ns = p->backend->ops->now_ns(p->backend);
    }
    state_leave(p);
    return status;
}

enum pool_status pool_free(uint64_t addr)
{
    return pool_free_fast(addr) ? POOL_OK : pool_free_slowly(addr);
}
