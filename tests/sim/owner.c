/* SPDX-License-Identifier: BSD-2-Clause */
/* A set of owned ranges, numbered. */
#include "tests/sim/owner.h"

#include <stdlib.h>

#include "tests/sim/range.h"

struct owned {
    struct range range; /* first */
    uint64_t number;
};

static struct ranges owned = {.seed = 5};
static uint64_t last_number;

void owner_begin(uint64_t addr, uint64_t size)
{
    struct owned *one;
    if (size == 0)
        return;
    while ((one = (struct owned *)range_from(&owned, addr)) != NULL &&
           one->range.lo < addr + size) {
        range_remove(&owned, &one->range);
        free(one);
    }
    one = calloc(1, sizeof *one);
    if (one == NULL)
        abort();
    one->range.lo = addr;
    one->range.hi = addr + size;
    one->number = ++last_number;
    range_insert(&owned, &one->range);
}

void owner_end(uint64_t addr)
{
    struct owned *one = (struct owned *)range_find(&owned, addr);
    if (one == NULL || one->range.lo != addr)
        return;
    range_remove(&owned, &one->range);
    free(one);
}

uint64_t owner_of(uint64_t addr, uint64_t size)
{
    const struct owned *one = (const struct owned *)range_find(&owned, addr);
    return one != NULL && addr + size <= one->range.hi ? one->number : 0;
}
