/* SPDX-License-Identifier: BSD-2-Clause */
/* space.h, as a set of free ranges. A free merges neighbours. */
#include "tests/sim/space.h"

static void add_free(struct space *space, uint64_t lo, uint64_t hi)
{
    if (lo < hi)
        range_add(&space->free, sizeof(struct range), lo, hi);
}

void space_init(struct space *space, uint64_t base, uint64_t size)
{
    *space = (struct space){.free = {.seed = 1}};
    add_free(space, base, base + size);
}

void space_finish(struct space *space)
{
    while (space->free.root != NULL)
        range_delete(&space->free, space->free.root);
}

bool space_alloc(struct space *space, uint64_t size, uint64_t alignment, uint64_t *out)
{
    for (struct range *node = range_from(&space->free, 0); node != NULL;
         node = range_from(&space->free, node->hi)) {
        uint64_t at = (node->lo + alignment - 1) & ~(alignment - 1);
        if (at > node->hi || node->hi - at < size)
            continue;
        uint64_t lo = node->lo, hi = node->hi;
        range_delete(&space->free, node);
        add_free(space, lo, at);
        add_free(space, at + size, hi);
        *out = at;
        return true;
    }
    return false;
}

void space_free(struct space *space, uint64_t addr, uint64_t size)
{
    uint64_t lo = addr, hi = addr + size;
    struct range *below = lo > 0 ? range_find(&space->free, lo - 1) : NULL;
    if (below != NULL) {
        lo = below->lo;
        range_delete(&space->free, below);
    }
    struct range *above = range_find(&space->free, hi);
    if (above != NULL) {
        hi = above->hi;
        range_delete(&space->free, above);
    }
    add_free(space, lo, hi);
}
