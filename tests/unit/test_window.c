/* SPDX-License-Identifier: BSD-2-Clause
 *
 * pool/window.c: where the least memory is missing.
 */
#include "pool/window.h"

#include "pool/state.h"
#include "tests/unit/expect.h"

static struct window found(struct rig *r, uint64_t size_bytes, uint64_t align)
{
    struct window w;
    state_lock(r->pool);
    EXPECT(window_find(&r->pool->large, size_bytes, align, &w), "an arena always has one");
    EXPECT_EQ(w.end - w.start, size_bytes, "of that size");
    EXPECT_EQ(w.start % align, 0, "aligned");
    state_unlock(r->pool);
    return w;
}

static void an_empty_arena_is_one_window(void **state)
{
    struct rig *r = expect_single(state);
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

static void the_fewest_missing_bytes_win(void **state)
{
    struct rig *r = expect_single(state);
    uint64_t base = build(r);
    struct window w = found(r, MIB(10), 512);
    EXPECT_EQ(w.start, base + MIB(8), "the first hole, the lowest of equals");
    EXPECT_EQ(w.missing_bytes, MIB(10), "of which all is missing");
    w = found(r, MIB(14), 512);
    EXPECT_EQ(w.start, base + MIB(44), "too large for it: at the end");
}

static void free_memory_next_to_a_hole_counts(void **state)
{
    struct rig *r = expect_single(state);
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

/* Every second of 32 blocks is a hole and the others are free: each window is summed up anew and
 * compared. */
static void of_a_long_run_the_best_is_found(void **state)
{
    struct rig *r = expect_single(state);
    uint64_t a[32];
    for (int i = 0; i < 32; i++)
        a[i] = rig_alloc(r, MIB(2 + 2 * (i * 7 % 5)));
    for (int i = 0; i < 32; i += 2)
        rig_free(r, a[i]);
    rig_launch(r, 0, 0, 0);
    rig_trim(r, 0, true);
    for (int i = 1; i < 32; i += 2)
        rig_free(r, a[i]);
    rig_empty_magazines(r);
    const struct zone *z = &r->pool->large;
    EXPECT(!list_entry(z->holes.next, struct block, link)->next,
           "the rest of the reservation stands first");
    for (uint64_t size = MIB(1); size < MIB(60); size += MIB(7) + KIB(512)) {
        struct window w = found(r, size, 512);
        uint64_t least = UINT64_MAX;
        for (uint64_t start = z->base; start < z->base + MIB(300); start += MIB(2)) {
            uint64_t sum = 0;
            for (const struct block *b = z->first; b && b->addr < start + size; b = b->next)
                if (b->state == BLOCK_HOLE && block_end(b) > start)
                    sum += round_up(min_u64(start + size, block_end(b)), GRANULE_BYTES) -
                           max_u64(start, b->addr);
            least = min_u64(least, sum);
        }
        EXPECT(w.missing_bytes <= least, "no window at a granule misses less");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(an_empty_arena_is_one_window),
        RIG_TEST(the_fewest_missing_bytes_win),
        RIG_TEST(free_memory_next_to_a_hole_counts),
        RIG_TEST(of_a_long_run_the_best_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
