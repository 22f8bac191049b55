/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The end of a pool, with its context: see pool_abandon in pool.h.
 *
 * Other threads may be inside it then: the control thread, and those of a program that ends a context while
 * it allocates in it. Those that hold memory out of the pool's lists are `busy` and waited for. The others
 * have dropped the lock for a call about a fence, with nothing of the pool's in their hands; when they go on
 * they find it empty, in every list that leads to memory. The records of blocks stay, as all of the pool's
 * host memory does.
 */
#include "pool/arena.h"
#include "pool/chunk.h"
#include "pool/map.h"
#include "pool/rack.h"
#include "pool/state.h"

/* Every chunk out of the map and the lists, as a list through plan. */
static struct chunk *detach_chunks(struct pool *p)
{
    struct zone *zones[] = {&p->small, &p->large};
    struct chunk *list = NULL;
    for (int i = 0; i < 2; i++)
        list_for_each(n, tmp, &zones[i]->chunks)
        {
            struct chunk *c = list_entry(n, struct chunk, all);
            map_forget(c);
            list_remove(&c->all);
            c->plan = list;
            list = c;
        }
    return list;
}

static void empty_zone(struct zone *z)
{
    bins_init(&z->bins);
    list_init(&z->holes);
    list_init(&z->dead);
    z->first = NULL;
    z->pending_bytes = z->looked_bytes = z->chunk_bytes = z->dead_bytes = 0;
}

void pool_abandon(struct pool *p)
{
    const struct backend_ops *ops = p->backend->ops;
    state_lock(p);
    if (p->abandoned) {
        state_unlock(p);
        return;
    }
    p->abandoned = true;
    fence_finish(p);
    for (;;) { /* until nobody is busy and the lock has not been dropped since */
        while (p->busy)
            state_wait(p);
        if (list_empty(&p->ghosts))
            break;
        arena_reap(p, true);
    }
    struct chunk *list = detach_chunks(p);
    rack_forget_all(p);
    slab_init(&p->slabs);
    pending_init(&p->pendings);
    empty_zone(&p->small);
    empty_zone(&p->large);
    p->stats.reserved_bytes = p->stats.allocated_bytes = p->stats.requested_bytes = 0;
    p->stats.pending_bytes = p->stats.live_blocks = p->slack_bytes = 0;
    state_unlock(p);
    if (!p->arena)
        return; /* the driver freed the segments with the context */
    for (struct chunk *c = list; c; c = c->plan) {
        ops->unmap(p->backend, c->addr, c->size_bytes);
        ops->release(p->backend, c->handle, c->size_bytes);
    }
    arena_unreserve(p);
}
