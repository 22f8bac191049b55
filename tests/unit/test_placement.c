/* SPDX-License-Identifier: BSD-2-Clause
 *
 * pool/placement.c: best fit over free blocks, and the window in which the least memory is
 * missing. */
#include "pool/placement.h"

#include "pool/state.h"
#include "tests/unit/expect.h"

static struct placement bins;

static struct block *insert(uint64_t addr, uint64_t size_bytes)
{
    struct block *b = calloc(1, sizeof *b);
    b->addr = addr;
    b->size_bytes = size_bytes;
    list_init(&b->link);
    placement_insert(&bins, b);
    return b;
}

static int setup(void **state)
{
    placement_init(&bins);
    return 0;
}

/* Takes out whatever is left, and frees it. */
static int teardown(void **state)
{
    int rc = 0;
    for (int i = 0; i < PLACEMENT_BINS; i++) {
        if (!(bins.map[i / 64] >> (i % 64) & 1))
            continue;
        list_for_each(n, tmp, &bins.heads[i]) {
            struct block *b = list_entry(n, struct block, link);
            placement_remove(&bins, b);
            free(b);
        }
    }
    for (int i = 0; i < PLACEMENT_BINS / 64; i++)
        rc |= bins.map[i] != 0;
    if (rc)
        print_error("bins that are empty are marked\n");
    return rc;
}

#define BINS_TEST(name) TEST_WITH(name, setup, teardown)

BINS_TEST(nothing_is_found_in_empty_bins)
{
    EXPECT(!placement_find(&bins, 512, 512), "nothing was inserted");
    EXPECT(!placement_find(&bins, UINT64_C(1) << 40, 512), "nothing was inserted");
}

BINS_TEST(the_smallest_block_that_fits_is_found)
{
    struct block *blocks[40];
    /* Sizes of one bin and of several, inserted out of order. */
    for (int i = 0; i < 40; i++) {
        int k = i * 17 % 40;
        blocks[k] = insert(GRANULE_BYTES * 64 * (uint64_t)(k + 1), MIB(8) + (uint64_t)k * MIB(1));
    }
    for (int k = 0; k < 40; k++)
        EXPECT(placement_find(&bins, blocks[k]->size_bytes, 512) == blocks[k],
               "an exact fit is best");
    for (int k = 1; k < 40; k++)
        EXPECT(placement_find(&bins, blocks[k]->size_bytes - 512, 512) == blocks[k],
               "the next larger block is best");
    EXPECT(!placement_find(&bins, blocks[39]->size_bytes + 512, 512), "nothing is large enough");
}

BINS_TEST(a_smaller_block_of_the_same_bin_is_not_mistaken_for_a_fit)
{
    /* The bins of 1 MiB are 32 KiB apart. */
    insert(MIB(100), MIB(1));
    EXPECT(!placement_find(&bins, MIB(1) + 512, 512), "the bin's block is too small");
    struct block *b = insert(MIB(200), MIB(1) + 1024);
    EXPECT(placement_find(&bins, MIB(1) + 512, 512) == b, "the bin's other block fits");
}

BINS_TEST(alignment_counts)
{
    insert(MIB(100) + 512, KIB(64) + 512);
    EXPECT(!placement_find(&bins, KIB(64), KIB(64)), "no aligned part is large enough");
    struct block *b = insert(MIB(200) + 512, KIB(128) + 512);
    EXPECT(placement_find(&bins, KIB(64), KIB(64)) == b, "an aligned part is large enough");
}

BINS_TEST(sizes_beyond_the_last_bin_are_kept_in_it)
{
    struct block *b = insert(MIB(2), UINT64_C(1) << 45), *s = insert(MIB(4), UINT64_C(1) << 44);
    EXPECT(placement_find(&bins, UINT64_C(1) << 45, 512) == b, "a huge block is found");
    EXPECT(placement_find(&bins, UINT64_C(1) << 44, 512) == s,
           "the smaller of huge blocks is found");
}

BINS_TEST(a_removed_block_is_not_found)
{
    struct block *a = insert(MIB(100), 4096), *b = insert(MIB(200), 4096);
    placement_remove(&bins, a);
    EXPECT(placement_find(&bins, 4096, 512) == b, "the other is still there");
    placement_remove(&bins, b);
    EXPECT(!placement_find(&bins, 4096, 512), "none is left");
    free(a);
    free(b);
}

BINS_TEST(the_largest_blocks_come_first)
{
    EXPECT(!placement_largest(&bins), "nothing was inserted");
    struct block *blocks[40];
    for (int i = 0; i < 40; i++) {
        int k = i * 17 % 40;
        blocks[k] = insert(GRANULE_BYTES * 64 * (uint64_t)(k + 1), UINT64_C(4096) << (k / 2));
    }
    int seen = 0;
    uint64_t before = UINT64_MAX;
    for (const struct block *b = placement_largest(&bins); b; b = placement_next(&bins, b)) {
        EXPECT(b->size_bytes <= before, "none is larger than the one before");
        before = b->size_bytes;
        seen++;
    }
    EXPECT_EQ(seen, 40, "each comes once");
    EXPECT(placement_largest(&bins)->size_bytes == blocks[39]->size_bytes, "the largest is first");
}

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

RIG_TEST(an_empty_arena_is_one_window, expect_single(state))
{
    struct window w = found(r, MIB(3), 512);
    EXPECT_EQ(w.start, r->pool->large.base, "at its start");
    EXPECT_EQ(w.missing_bytes, MIB(4), "whole granules are missing");
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

RIG_TEST(the_fewest_missing_bytes_win, expect_single(state))
{
    uint64_t base = build(r);
    struct window w = found(r, MIB(10), 512);
    EXPECT_EQ(w.start, base + MIB(8), "the first hole, the lowest of equals");
    EXPECT_EQ(w.missing_bytes, MIB(10), "of which all is missing");
    w = found(r, MIB(14), 512);
    EXPECT_EQ(w.start, base + MIB(44), "too large for it: at the end");
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
