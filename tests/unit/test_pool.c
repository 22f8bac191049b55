/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The pool's policy as a program sees it: what is served from where, limits, the ladder when memory is
 * short, misuse, and the end of a context.
 */
#include "tests/unit/expect.h"

static void memory_is_found_by_any_address_in_it(void **state)
{
    struct rig *r = expect_arena(state);
    static const uint64_t sizes[] = {1, 511, 512, 513, 4096, 8193, KIB(32), KIB(32) + 1, KIB(64) + 1,
                                     KIB(100), MIB(1), MIB(1) + 1, MIB(2), MIB(3) + 7, MIB(40)};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        EXPECT(rig_alloc(r, sizes[i]), "there is memory enough");
    for (uint32_t i = 0; i < r->count; i++) {
        struct pool_block b;
        const struct rig_block *mine = &r->blocks[i];
        for (uint64_t at = 0; at < mine->size_bytes; at += 1 + mine->size_bytes / 7) {
            EXPECT_EQ(pool_find(mine->addr + at, &b), POOL_OK, "an interior address is found");
            EXPECT_EQ(b.addr, mine->addr, "an interior address leads to its block's start");
        }
    }
    EXPECT_SOUND(r);
}

static void the_same_size_is_served_from_the_freed_block(void **state)
{
    struct rig *r = expect_arena(state);
    uint64_t a = rig_alloc(r, MIB(6));
    rig_free(r, a);
    uint64_t calls = model_calls(r->model, MODEL_ROW_create);
    EXPECT_EQ(rig_alloc(r, MIB(6)), a, "idle memory is reused");
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_create), calls, "no memory was asked of the driver");
    EXPECT_EQ(rig_stats(r).num_hits, 1, "it counts as a hit");
}

static void every_size_is_served_by_segments_once_and_again(void **state)
{
    struct rig *r = expect_segments(state);
    for (uint64_t size = MIB(1) + 1; size <= MIB(48); size += size / 7 + 513) {
        uint64_t a = rig_alloc(r, size);
        EXPECT(a, "there is memory for one block");
        rig_free(r, a);
        EXPECT_EQ(rig_alloc(r, size), a, "the same segment serves the same size again");
        rig_free(r, a);
        uint64_t least = (size + MIB(2) - 1) & ~(MIB(2) - 1);
        EXPECT(rig_stats(r).reserved_bytes <= least + size / 8, "a segment has little slack");
        rig_trim(r, 0, true);
    }
}

static void a_context_that_goes_with_live_memory_leaves_nothing_behind(void **state)
{
    struct rig *old = expect_arena(state);
    uint64_t small = rig_alloc(old, 700), large = rig_alloc(old, MIB(5));
    model_destroy_context(old->model);
    pool_abandon(old->pool);
    EXPECT_EQ(pool_free(small), POOL_FOREIGN, "memory of a lost context is nobody's");
    EXPECT_EQ(pool_free(large), POOL_FOREIGN, "memory of a lost context is nobody's");
    EXPECT(!rig_destroy(old), "the lost pool left the driver nothing");

    /* The model hands the same addresses out again, as drivers do. */
    struct rig *r = rig_create(RIG_BYTES);
    *state = r;
    rig_start(r);
    EXPECT_EQ(rig_alloc(r, MIB(100)) & ~(MIB(128) - 1), large & ~(MIB(128) - 1), "same addresses");
    EXPECT_EQ(pool_free(large + MIB(1)), POOL_INVALID, "the old block is not seen");
    EXPECT_EQ(pool_free(large), r->blocks[0].addr == large ? POOL_OK : POOL_INVALID,
              "an old address frees nothing but a new block's start");
    r->count = r->blocks[0].addr == large ? 0 : 1;
    uint64_t again = rig_alloc(r, KIB(600));
    EXPECT(again, "there is memory");
    EXPECT_EQ(pool_free(small + 512), POOL_INVALID, "the old object is not seen");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(memory_is_found_by_any_address_in_it),
        RIG_TEST(the_same_size_is_served_from_the_freed_block),
        RIG_TEST(every_size_is_served_by_segments_once_and_again),
        RIG_TEST(a_context_that_goes_with_live_memory_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
