/* SPDX-License-Identifier: BSD-2-Clause */
/* A set of owned ranges, numbered. */
#include "tests/sim/owner.h"

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
    while ((one = (struct owned *)range_from(&owned, addr)) != NULL && one->range.lo < addr + size)
        range_delete(&owned, &one->range);
    one = range_add(&owned, sizeof *one, addr, addr + size);
    one->number = ++last_number;
}

void owner_end(uint64_t addr)
{
    struct owned *one = (struct owned *)range_find(&owned, addr);
    if (one != NULL && one->range.lo == addr)
        range_delete(&owned, &one->range);
}

uint64_t owner_of(uint64_t addr, uint64_t size)
{
    const struct owned *one = (const struct owned *)range_find(&owned, addr);
    return one != NULL && addr + size <= one->range.hi ? one->number : 0;
}
