/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The end of a pool, with its context: see pool_abandon in pool.h.
 *
 * Other threads may be inside it then: the control thread, and threads of a program that ends a
 * context while it allocates in it. Threads that hold memory out of the pool's lists are
 * `unlocked_jobs`, and pool_abandon waits for them, within a bound. The other threads dropped the
 * lock for a call about a fence, or to let further threads have it. They hold no memory of the
 * pool's. When they go on they find every list empty that leads to memory. The records of blocks
 * stay, as all of the pool's host memory does.
 *
 * What a thread inside may still read. The driver frees segments with their context, before the
 * pool learns of the end. From then on it may give their addresses to the next context's pool.
 * 1. What the pool's own lists lead to is the pool's own: records of blocks, slabs, chunks and
 *    fences. Records are never unmapped. So every walk stays within this pool.
 * 2. What the map says of an address belongs to the lock of the pool that it names (map.h). A pool
 *    that gets a range from the driver takes it from the pool that the map still names, under that
 *    pool's lock (find_evict). It holds no lock of its own then, and names itself only afterwards,
 *    under its own lock (map_claim_segment). So a thread inside the old pool, which holds that
 *    pool's lock, sees a record name its pool with all that belongs to it, or not name it. A chunk
 *    is evicted as a whole, so all records of its range name its pool, or none does.
 * 3. A thread inside asks the map for a chunk by the name of its own pool (map_chunk), and takes a
 *    block out of the map only where the map names its pool (map_clear). Where the map does not,
 *    the memory is gone: there is no chunk, and the thread leaves out what it wanted of it.
 * 4. The driver gives no range twice while its context lives, for the pool disowns a segment before
 *    the segment goes back. So eviction proves that the context has ended. The evicted pool is lost
 *    at once: it hands nothing out (alloc.c: take), be its range the next pool's or not. Nor does
 *    it free a segment any more, because the driver may have given that address to anybody. If the
 *    program frees an address of an ended context, it may hit a segment that the pool has just got
 *    from the driver and not claimed yet. Then the driver gives that segment out again, and the
 *    pool may be evicted while its context lives. It is lost all the same.
 * 5. A pool may evict itself: its thread was in the driver for a segment when the context ended,
 *    and the next life of a primary context has the same handle. Then the pool is lost as well.
 * 6. No two chunks of a pool that free or dead blocks lie on share an address. So the chunk that
 *    the map has at such a block is the block's own, and nothing is seized twice. For a chunk's
 *    records name the pool from the claim on, until one of two things happens. The pool disowns the
 *    chunk: then its block is busy until both are forgotten. Or the pool is evicted: then it takes
 *    no segment any more. And no pool takes a segment of which a record names a pool, be it itself
 *    (map_claim_segment): a segment may come to two threads, as in step 4, and none of them finds
 *    the other's claim in find_evict.
 * 7. A segment that a pool does not take goes with its context. It is not freed, because the
 *    address may be the other claimant's, or of a later life.
 * 8. An arena's addresses are the pool's until pool_abandon unreserves them, after the last busy
 *    thread. Nobody else gets them before.
 *
 * A job may not end: the caller is a signal handler in its thread, or was left by a jump, or the
 * driver keeps the thread for long. Then the lists and the map stay as they are, for that thread
 * goes on with them. The pool holds the memory of an arena until it is vacant, or for ever.
 * 1. The pool is lost, so it hands nothing out, and every request goes to the driver. And it is
 *    evicted, so it neither frees nor takes a segment (4). What finds the end of a pool by
 *    `abandoned` leaves it alone. Frees go into its lists, and nobody takes them out.
 * 2. The thread that goes on changes lists and records of this pool alone, under its lock, and
 *    finds them as it left them.
 * 3. pool_is_vacant gives all back, once no thread is inside and none is in a job. It comes before
 *    another context has the backend.
 *
 * The next context may have the pool (pool_revive): its object, its lock, its magazines and its
 * host memory. Its records are free again and keep their kind: blocks stay blocks, slabs stay
 * slabs. Why that harms no thread that still looks at the old pool:
 * 1. A thread that may drop the lock on its way counts in `threads_inside`, under the lock. While
 *    there is such a thread the pool is not revived. So no thread goes on in the new pool with an
 *    event, an epoch or a place in the ring of the old one.
 * 2. A thread that comes later, with a pointer from before, finds a pool like any other. What is
 *    done for all pools (submission, trim, leaving the single-stream mode) may be done for this
 *    one. Only a request is for one context. It comes here with the old context in one case only.
 *    The thread has asked which context is current, and that context ends before the thread asks
 *    this pool. Without the library that request fails, or its memory goes with the context. Here
 *    the thread gets a block of the new context that no other thread has.
 * 3. Magazines belong to threads, and their pool stays the same object. After the pool is published
 *    as lost, each magazine is locked and emptied. A thread that was taking or giving then is
 *    through. A thread that locks a magazine afterwards sees that nothing is ready, so it takes
 *    nothing out and puts nothing in.
 * 4. After that no item becomes held, and the mark is taken off every item that the program still
 *    held. So an address of the old context frees nothing of the new one through what a thread was
 *    handed out lately.
 * 5. The map leads to the pool by its chunks only, and all of them are out of it. A thread that
 *    found the pool there before locks it and looks again (find_owner).
 */
#include "pool/chunk.h"
#include "pool/job.h"
#include "pool/magazine_pool.h"
#include "pool/map.h"
#include "pool/single_stream.h"
#include "pool/state.h"

/* Takes every chunk out of the map and the lists. Returns those with memory as a list through
 * plan. */
static struct chunk *detach_chunks(struct pool *p)
{
    struct zone *zones[] = {&p->small, &p->large};
    struct chunk *list = NULL;
    for (int i = 0; i < 2; i++)
        list_for_each(n, tmp, &zones[i]->chunks) {
            struct chunk *c = list_entry(n, struct chunk, all);
            map_forget(c, p);
            list_remove(&c->all);
            if (c->park == CHUNK_AWAY)
                continue; /* it has neither a mapping nor a handle */
            c->plan = list;
            list = c;
        }
    list_init(&p->parked);
    chunk_count_away(p, 0, p->stats.away_bytes);
    return list;
}

static void disown(struct item *item)
{
    item_claim(item);
    item->live = item->exposed = item->sync_memops = false;
}

static void disown_block(void *record)
{
    struct block *b = record;
    disown(&b->item);
    atomic_store_explicit(&b->item.slab, NULL, memory_order_relaxed);
}

static void disown_slab(void *record)
{
    struct slab *s = record;
    for (unsigned slot = 0; slot < s->object_count; slot++)
        disown(&s->items[slot]);
}

/* The lock is held, and dropped for calls. No thread is in a job. */
static void give_all_back(struct pool *p)
{
    const struct backend_ops *ops = p->backend->ops;
    struct chunk *list = detach_chunks(p);
    uint64_t base = p->small.base, reserved_bytes = p->small.size_bytes + p->large.size_bytes;
    p->holds_memory = false;
    magazines_forget_all(p);
    fence_clear_marks(&p->fences); /* frees that came since fence_finish; from here on no free finds
                                 a way to this pool */
    host_cache_each(&p->block_cache, disown_block);
    for (unsigned c = 0; c < SLAB_CLASSES; c++)
        host_cache_each(&p->slab_caches[c], disown_slab);
    slab_init(&p->slabs);
    pending_init(&p->pendings);
    zone_init(&p->small, p, ZONE_SMALL);
    zone_init(&p->large, p, ZONE_LARGE);
    p->stats.reserved_bytes = p->stats.allocated_bytes = p->stats.requested_bytes = 0;
    p->stats.pending_bytes = p->stats.live_blocks = p->slack_bytes = 0;
    state_unlock(p);
    /* The driver freed segments with the context. */
    for (struct chunk *c = list; c && p->arena; c = c->plan) {
        ops->unmap(p->backend, c->addr, c->size_bytes);
        ops->release(p->backend, c->handle, c->size_bytes);
    }
    if (reserved_bytes)
        ops->unreserve(p->backend, base, reserved_bytes);
    state_lock(p);
}

/* Waits until no thread is in a job, and the lock was not dropped since. Then all goes back. Else
 * it stays, as that of an evicted pool. */
static void end_pool(struct pool *p)
{
    while (job_await_end(p)) {
        if (list_empty(&p->ghosts)) {
            give_all_back(p);
            return;
        }
        chunk_reap_ghosts(p, true);
    }
    p->holds_memory = p->evicted = true;
}

void pool_abandon(struct pool *p)
{
    state_enter(p);
    if (!p->abandoned) {
        p->abandoned = true;
        single_stream_finish(&p->fences);
        fence_finish(p);
        end_pool(p);
    }
    state_leave(p);
}

/* A thread that comes after the abandonment finds a lost pool without events, and asks the backend
 * for nothing but the time. */
bool pool_is_vacant(struct pool *p)
{
    state_lock(p);
    bool vacant = p->abandoned && !p->threads_inside && !p->unlocked_jobs;
    if (vacant && p->holds_memory) {
        p->threads_inside++;
        end_pool(p);
        p->threads_inside--;
        vacant = !p->holds_memory && !p->threads_inside;
    }
    state_unlock(p);
    return vacant;
}
