/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/map.c: a range is forgotten. At every moment of that, a granule without an owner, which
 * another pool may claim, holds nothing of the last one. */
#include "tests/unit/steps.h"
/* After it. */
#include "pool/map.c"
#include "tests/unit/expect.h"

#define BASE (UINT64_C(0x7e) << 40)
enum { GRANULES = 3 };

static char owner_mark;
static struct pool *const owner = (struct pool *)(void *)&owner_mark;

struct look {
    unsigned owned, stale; /* granules */
};

static bool is_empty(const struct granule *g)
{
    bool empty = !g->starts[0] && !g->starts[1];
    for (uint64_t i = 0; g->pages && i < GRANULE_PAGES; i++)
        empty = empty && !g->pages[i].starts[0] && !g->pages[i].starts[1];
    return empty;
}

static void look(void *arg)
{
    struct look *l = arg;
    for (unsigned i = 0; i < GRANULES; i++) {
        const struct granule *g = map_find(BASE + i * GRANULE_BYTES);
        if (g->pool)
            l->owned++;
        else if (!is_empty(g))
            l->stale++;
    }
}

static void what_is_nobodys_is_empty(void **state)
{
    struct zone zone = {.kind = (enum zone_kind)(uintptr_t)*state};
    struct block blocks[GRANULES];
    unsigned before = 0, after = 0;
    EXPECT(map_ensure(BASE, GRANULES * GRANULE_BYTES), "there is host memory");
    for (unsigned at = 1;; at++) {
        struct chunk c = {.addr = BASE, .size_bytes = GRANULES * GRANULE_BYTES};
        struct look seen = {0};
        struct steps steps = {.step = look, .arg = &seen, .at = at};
        map_claim(&c, owner);
        for (unsigned i = 0; i < GRANULES; i++) {
            blocks[i] = (struct block){.addr = BASE + i * GRANULE_BYTES + KIB(512),
                                       .size_bytes = MIB(1),
                                       .zone = &zone,
                                       .state = BLOCK_LIVE};
            map_set(&blocks[i]);
        }
        steps_mine = &steps;
        map_forget(&c, owner);
        steps_mine = NULL;
        if (steps.loads < at)
            break;
        EXPECT_EQ(seen.stale, 0, "the owner goes last");
        before += seen.owned == GRANULES;
        after += seen.owned < GRANULES;
    }
    EXPECT(before && after, "it was looked at before and after the first was nobody's");
    struct look end = {0};
    look(&end);
    EXPECT(!end.owned && !end.stale, "all is forgotten");
}

int main(void)
{
    static void *small = (void *)(uintptr_t)ZONE_SMALL, *large = (void *)(uintptr_t)ZONE_LARGE;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(what_is_nobodys_is_empty, small),
        cmocka_unit_test_prestate(what_is_nobodys_is_empty, large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
