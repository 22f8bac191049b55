/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/placement.c: the window in which the least memory is missing. What fits best: walk, magazine
 * and pool. */
#include "pool/placement.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

static struct window found(struct rig *r, uint64_t size_bytes, uint64_t align)
{
    struct window w;
    state_lock(r->pool);
    EXPECT(placement_find_window(&r->pool->large, size_bytes, align, &w),
           "an arena always has one");
    EXPECT_EQ(w.end - w.start, size_bytes, "of that size");
    EXPECT_EQ(w.start % align, 0, "aligned");
    state_unlock(r->pool);
    return w;
}

/* Live, 12 MiB of hole, live, 8 MiB of free memory, live, and the rest of the arena. */
static uint64_t build(struct rig *r)
{
    uint64_t a[5];
    for (int i = 0; i < 5; i++)
        a[i] = rig_alloc(r, i == 1 ? MIB(12) : MIB(8));
    rig_free(r, a[1]);
    rig_launch(r, 0, 0, 0);
    rig_trim(r, 0, true);
    rig_free(r, a[3]);
    return a[0];
}

RIG_TEST(free_memory_next_to_a_hole_counts, expect_single(state))
{
    uint64_t base = build(r);
    rig_free(r, base + MIB(20)); /* the live block between hole and free memory */
    rig_empty_magazines(r);
    struct window w = found(r, MIB(24), 512);
    EXPECT_EQ(w.start, base + MIB(12), "both free blocks, and of the hole what is nearest to them");
    EXPECT_EQ(w.missing_bytes, MIB(8), "the rest");
    w = found(r, MIB(24), MIB(8));
    EXPECT_EQ(w.start, base + MIB(8), "aligned, it reaches further into the hole");
    EXPECT_EQ(w.missing_bytes, MIB(12), "so more is missing");
}

/* Bytes of holes in the granules that a window touches. */
static uint64_t sum_missing(const struct zone *z, uint64_t start, uint64_t end)
{
    uint64_t sum = 0;
    for (const struct block *b = z->first; b && b->addr < end; b = b->next)
        if (b->state == BLOCK_HOLE && block_end(b) > start)
            sum += round_up(min_u64(end, block_end(b)), GRANULE_BYTES) -
                   round_down(max_u64(start, b->addr), GRANULE_BYTES);
    return sum;
}

/* Every second of 32 blocks is a hole and the others are free: each window is summed up anew and
 * compared. */
RIG_TEST(of_a_long_run_the_best_is_found, expect_single(state))
{
    uint64_t a[32];
    for (int i = 0; i < 32; i++)
        a[i] = rig_alloc(r, MIB(2 + 2 * (i * 7 % 5)));
    rig_free_every(r, a, 0, 32, 2);
    rig_launch(r, 0, 0, 0);
    rig_trim(r, 0, true);
    rig_free_every(r, a, 1, 32, 2);
    rig_empty_magazines(r);
    const struct zone *z = &r->pool->large;
    EXPECT(!list_entry(z->holes.next, struct block, link)->next,
           "the rest of the reservation stands first");
    for (uint64_t size = MIB(1); size < MIB(60); size += MIB(7) + KIB(512)) {
        struct window w = found(r, size, 512);
        uint64_t least = UINT64_MAX;
        for (uint64_t start = z->base; start < z->base + MIB(300); start += MIB(2))
            least = min_u64(least, sum_missing(z, start, start + size));
        EXPECT(w.missing_bytes <= least, "no window at a granule misses less");
        EXPECT_EQ(w.missing_bytes, sum_missing(z, w.start, w.end), "and so much is missing");
    }
}

PLAY_TESTS
