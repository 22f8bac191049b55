/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The end of a pool, with its context: see pool_abandon in pool.h.
 */
#include "pool/arena.h"
#include "pool/chunk.h"
#include "pool/magazine.h"
#include "pool/map.h"
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

void pool_abandon(struct pool *p)
{
    const struct backend_ops *ops = p->backend->ops;
    state_lock(p);
    if (p->abandoned) {
        state_unlock(p);
        return;
    }
    p->abandoned = true;
    while (p->busy)
        state_wait(p);
    fence_finish(p);
    magazine_forget_all(p);
    arena_reap(p, true);
    struct chunk *list = detach_chunks(p);
    p->stats.reserved_bytes = p->stats.allocated_bytes = p->stats.requested_bytes = 0;
    p->stats.pending_bytes = p->stats.live_blocks = 0;
    state_unlock(p);
    if (!p->arena)
        return; /* the driver freed the segments with the context */
    for (struct chunk *c = list; c; c = c->plan) {
        ops->unmap(p->backend, c->addr, c->size_bytes);
        ops->release(p->backend, c->handle, c->size_bytes);
    }
    arena_unreserve(p);
}
