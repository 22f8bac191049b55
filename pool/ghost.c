/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See ghost.h.
 */
#include "pool/ghost.h"

#include "pool/state.h"
#include "pool/tuning.h"

void ghost_add(struct block *b)
{
    struct pool *p = b->zone->pool;
    b->state = BLOCK_GHOST;
    list_push_back(&p->ghosts, &b->link);
    p->ghost_bytes += b->size_bytes;
}

/* Unmaps ghosts that follow each other in the list and in the address space by one call, see
 * chunk_release. Returns the first node after them. */
static struct list *unmap_run(struct backend *b, struct list *node, const struct list *list)
{
    const struct block *ghost = list_entry(node, struct block, link);
    uint64_t start = ghost->addr, end = block_end(ghost);
    for (node = node->next; node != list; node = node->next) {
        ghost = list_entry(node, struct block, link);
        if (ghost->addr == end)
            end = block_end(ghost);
        else if (block_end(ghost) == start)
            start = ghost->addr;
        else
            break;
    }
    b->ops->unmap(b, start, end - start);
    return node;
}

/* Looks at GHOSTS_AT_ONCE of them. True: some of those went, and there are more. */
static bool reap_some(struct pool *p, bool all)
{
    struct list list;
    int left = GHOSTS_AT_ONCE;
    list_init(&list);
    /* The oldest come first. Behind many whose work is not complete hardly any is complete. */
    list_for_each(n, tmp, &p->ghosts) {
        struct block *b = list_entry(n, struct block, link);
        if (left-- <= 0)
            break;
        if (!all && b->piece.epoch > p->fences.complete_epoch)
            continue;
        list_remove(n);
        list_push_back(&list, n);
        b->state = BLOCK_BUSY;
        p->ghost_bytes -= b->size_bytes;
    }
    if (list_empty(&list))
        return false;
    p->busy++;
    state_unlock(p);
    for (struct list *n = list.next; n != &list;)
        n = unmap_run(p->backend, n, &list);
    state_lock(p);
    p->busy--;
    list_for_each(n, tmp, &list) {
        list_remove(n);
        zone_make_hole(list_entry(n, struct block, link));
    }
    state_broadcast(p);
    return left < 0;
}

/* A loop, as threads of programs may have small stacks. */
void ghost_reap(struct pool *p, bool all)
{
    while (reap_some(p, all))
        continue;
}
