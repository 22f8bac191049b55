/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See explain.h.
 */
#include "tests/bench/explain.h"

#include "pool/chunk.h"
#include "pool/map.h"
#include "pool/state.h"

#include <stdio.h>

/* The sum of count() over all free blocks. */
static uint64_t sum_of_free(const struct zone *z, uint64_t (*count)(const struct block *b))
{
    uint64_t sum = 0;
    for (const struct block *b = placement_largest(&z->placement); b;
         b = placement_next(&z->placement, b))
        sum += count(b);
    return sum;
}

static uint64_t size_bytes(const struct block *b)
{
    return b->size_bytes;
}

/* Chunks that lie within the block. */
static uint64_t idle_bytes(const struct block *b)
{
    uint64_t sum = 0;
    for (uint64_t at = b->addr; at < block_end(b);) {
        const struct chunk *c = map_find(at)->chunk;
        bool whole = c->addr >= b->addr && c->addr + c->size_bytes <= block_end(b);
        sum += whole ? c->size_bytes : 0;
        at = c->addr + c->size_bytes;
    }
    return sum;
}

void explain_look(struct explain *e, struct pool *p)
{
    state_lock(p);
    const struct pool_stats *s = &p->stats;
    if (s->reserved_bytes > e->reserved_bytes) {
        e->reserved_bytes = s->reserved_bytes;
        e->requested_bytes = s->requested_bytes;
        e->rounding_bytes = s->allocated_bytes - s->requested_bytes;
        e->pending_bytes = s->pending_bytes;
        e->small_free_bytes = sum_of_free(&p->small, size_bytes);
        e->large_free_bytes = sum_of_free(&p->large, size_bytes);
        e->slab_empty_bytes = e->slab_free_bytes = 0;
        e->large_idle_bytes = sum_of_free(&p->large, idle_bytes);
        for (unsigned c = 0; c < SLAB_CLASSES; c++) {
            const struct list *partial = &p->slabs.partial[c], *empty = &p->slabs.empty[c];
            for (const struct list *n = partial->next; n != partial; n = n->next) {
                const struct slab *slab = list_entry(n, struct slab, link);
                e->slab_free_bytes += slab->free_count * slab->object_bytes;
            }
            for (const struct list *n = empty->next; n != empty; n = n->next)
                e->slab_empty_bytes += list_entry(n, struct slab, link)->block->size_bytes;
        }
        uint64_t known = s->allocated_bytes + s->pending_bytes + e->small_free_bytes +
                         e->large_free_bytes + e->slab_empty_bytes + e->slab_free_bytes;
        e->slab_free_bytes += s->reserved_bytes - known; /* what is left are the tails */
    }
    state_unlock(p);
}

static void line(const char *what, uint64_t bytes, uint64_t of_bytes)
{
    printf("    %-32s %14llu  %6.2f %%\n", what, (unsigned long long)bytes,
           100.0 * (double)bytes / (double)of_bytes);
}

void explain_print(const struct explain *e)
{
    line("reserved at its peak", e->reserved_bytes, e->requested_bytes);
    line("held by the program then", e->requested_bytes, e->requested_bytes);
    line("rounding", e->rounding_bytes, e->requested_bytes);
    line("pending", e->pending_bytes, e->requested_bytes);
    line("free in the large zone", e->large_free_bytes, e->requested_bytes);
    line("... whole chunks of it", e->large_idle_bytes, e->requested_bytes);
    line("free in the small zone", e->small_free_bytes, e->requested_bytes);
    line("free in slabs", e->slab_free_bytes, e->requested_bytes);
    line("empty slabs", e->slab_empty_bytes, e->requested_bytes);
}
