/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/arena.c: growing where memory is missing, moving idle chunks there, and what is left after a
 * failure of the driver half way. Moves below running work: test_ghost.c; moves that take too much
 * of the program's time: test_time_budget.c. */
#include "pool/arena.h"
#include "pool/chunk.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

/* Frees are ready at once with a single stream: what is under test is where memory goes. Here on a
 * device of 16 GiB. */
static struct rig *roomy(void **state)
{
    return expect_single(expect_capacity(state, GIB(16)));
}

RIG_TEST(an_arena_grows_by_what_is_missing, expect_single(state))
{
    uint64_t a = rig_alloc(r, MIB(6));
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(6), "whole granules, no more");
    uint64_t b = rig_alloc(r, MIB(3));
    EXPECT_EQ(b, a + MIB(6), "next to it");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(10), "3 MiB take two granules");
    uint64_t c = rig_alloc(r, MIB(3));
    EXPECT_EQ(c, b + MIB(3), "the rest of a granule is used");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(12), "so one granule is enough");
}

RIG_TEST(free_memory_at_the_edge_is_extended, expect_single(state))
{
    rig_alloc(r, MIB(8));
    uint64_t b = rig_freed(r, MIB(8));
    EXPECT_EQ(rig_alloc(r, MIB(20)), b, "idle memory at the end is part of the new block");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(28), "only 12 MiB were missing");
}

RIG_TEST(chunks_whose_work_is_not_complete_are_not_moved, expect_arena(state))
{
    uint64_t a[8];
    rig_alloc_all(r, a, 8, MIB(4));
    for (int i = 0; i < 8; i += 2)
        rig_free_behind(r, 1, MS(10), a[i]);
    rig_alloc(r, MIB(16));
    EXPECT_EQ(rig_stats(r).num_chunk_moves, 0, "work still uses them");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(48), "so the arena grew");
}

RIG_TEST(chunks_are_limited_and_cover_large_requests, roomy(state))
{
    rig_alloc(r, MIB(1024));
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_create), 1, "one request, one chunk");
    rig_alloc(r, MIB(5000));
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_create), 6, "4 of 1024 and one of 904 MiB");
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_allow), 2, "access is granted once for the range");
}

RIG_TEST(a_large_arena_grows_by_more_than_a_granule, roomy(state))
{
    rig_alloc(r, MIB(4200));
    uint64_t calls = model_calls(r->model, MODEL_ROW_create);
    rig_alloc_all(r, NULL, 32, MIB(2));
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_create) - calls, 2, "32 MiB of 4200 at a time");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(4264), "and nothing is left over");
    rig_alloc(r, MIB(8000));
    calls = model_calls(r->model, MODEL_ROW_create);
    rig_alloc_all(r, NULL, 32, MIB(2));
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_create) - calls, 1, "64 MiB at most");
}

RIG_TEST(chunks_are_small_once_memory_is_fragmented, expect_single(state))
{
    uint64_t a[16];
    rig_alloc_all(r, a, 16, MIB(10));
    uint64_t calls = model_calls(r->model, MODEL_ROW_create);
    EXPECT_EQ(calls, 16, "one for each request while nothing is idle");
    rig_free_every(r, a, 0, 16, 2);
    rig_alloc(r, MIB(5)); /* parts of chunks are idle now */
    rig_alloc(r, MIB(5));
    rig_alloc(r, MIB(5));
    rig_launch(r, 0, 0, 0);
    rig_trim(r, 0, true);
    rig_alloc(r, MIB(64));
    EXPECT(model_calls(r->model, MODEL_ROW_create) - calls >= 16, "2 or 4 MiB each");
    uint64_t before = model_calls(r->model, MODEL_ROW_create);
    rig_alloc(r, MIB(200));
    EXPECT(model_calls(r->model, MODEL_ROW_create) - before <= 60,
           "but not too many for one request");
}

RIG_TEST(the_small_zone_grows_gently, expect_single(state))
{
    rig_alloc(r, 512);
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(2), "a small program stays small");
    while (rig_stats(r).allocated_bytes < MIB(100))
        rig_alloc(r, KIB(512));
    EXPECT(rig_stats(r).reserved_bytes <= MIB(104), "steps of a thirty-second");
    while (rig_stats(r).allocated_bytes < MIB(400))
        rig_alloc(r, KIB(512));
    EXPECT(rig_stats(r).reserved_bytes <= MIB(413), "also later");
    EXPECT(model_calls(r->model, MODEL_ROW_create) < 120, "in few steps");
}

RIG_TEST(large_idle_chunks_are_taken_apart, expect_single(state))
{
    uint64_t a = rig_alloc(r, MIB(64));
    rig_alloc(r, MIB(8));
    rig_free(r, a);
    rig_settle(r);
    rig_alloc(r, MIB(66));
    EXPECT_EQ(rig_stats(r).num_chunk_moves, 0, "a chunk of 64 MiB is not moved");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(8 + 66), "the driver has it back");
    EXPECT_EQ(rig_stats(r).num_device_free, 1, "as a whole");
}

/* Free memory of 4 MiB, a hole of 8, and free memory of 16 again. */
RIG_TEST(a_free_block_that_a_request_needs_part_of_gives_the_rest, expect_single(state))
{
    uint64_t left = rig_alloc(r, MIB(4)), middle = rig_alloc(r, MIB(8)), right[4];
    rig_alloc_all(r, right, 4, MIB(4));
    rig_alloc(r, MIB(4));
    rig_free(r, middle);
    rig_settle(r);
    rig_alloc(r, MIB(16));
    EXPECT_EQ(rig_stats(r).num_chunk_moves, 1, "the middle leaves a hole");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(40), "8 are new");
    rig_free(r, left);
    rig_free_every(r, right, 0, 4, 1);
    rig_settle(r);
    EXPECT_EQ(rig_alloc(r, MIB(24)), left, "from the first of it over the hole");
    EXPECT_EQ(rig_stats(r).num_chunk_moves, 2, "the last of it moves into the hole");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(44), "4 more are missing");
}

RIG_TEST(small_memory_does_not_pin_large_memory, expect_single(state))
{
    uint64_t large[8], small[8];
    for (int i = 0; i < 8; i++) {
        large[i] = rig_alloc(r, MIB(8));
        small[i] = rig_alloc(r, 512);
    }
    rig_free_every(r, large, 0, 8, 1);
    rig_trim(r, 0, true);
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(2), "all large memory went back");
    rig_free_every(r, small, 0, 8, 1);
}

RIG_TEST(a_short_driver_leaves_what_it_gave_as_free_memory, roomy(state))
{
    model_fail(r->model, MODEL_ROW_create, 2, MODEL_NOMEM);
    /* The request tries again, and then the driver has memory. */
    EXPECT(rig_alloc(r, MIB(5000)), "a second try succeeds");
    EXPECT(model_failed(r->model), "the first has failed half way");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(5000),
              "the chunks of the first try were used or released");
}

/* Six chunks of 4 MiB, every other one idle, and a request that needs the idle ones in a row. */
static void prepare_move(struct rig *r)
{
    uint64_t a[6];
    rig_alloc_all(r, a, 6, MIB(4));
    rig_free_every(r, a, 0, 6, 2);
    rig_settle(r);
}

TEST(access_that_is_refused_to_a_range_is_asked_for_each_chunk)
{
    struct rig *r = rig_in(RIG_BYTES, false, true);
    rig_start(r);
    prepare_move(r);
    model_fail(r->model, MODEL_ROW_allow, 1, MODEL_BROKEN);
    EXPECT(rig_alloc(r, MIB(16)), "each chunk is accessible");
    EXPECT(model_failed(r->model), "the range was not");
    EXPECT_EQ(rig_stats(r).num_backend_failures, 0, "so nothing failed");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(28), "and no memory was lost on the way");
    EXPECT_SOUND(r);
    EXPECT_ENDS(r);
}

/* Access: to the range, and to the first nth chunks of it. */
TEST(a_chunk_that_cannot_be_mapped_again_is_forgotten)
{
    for (uint64_t nth = 1; nth <= 3; nth++) {
        for (int row = 0; row < 2; row++) {
            struct rig *r = rig_in(RIG_BYTES, false, true);
            rig_start(r);
            prepare_move(r);
            if (row)
                model_fail_many(r->model, MODEL_ROW_allow, 1, 1 + nth, MODEL_BROKEN);
            else
                model_fail(r->model, MODEL_ROW_map, nth, MODEL_BROKEN);
            uint64_t b = rig_alloc(r, MIB(16));
            EXPECT(model_failed(r->model), "the failure came");
            EXPECT(!b, "the request goes to the driver");
            EXPECT_EQ(r->status, POOL_PASS, "as one that the pool cannot serve");
            EXPECT_SOUND(r);
            EXPECT(rig_stats(r).num_backend_failures, "the failure is counted");
            EXPECT(rig_alloc(r, MIB(16)), "the next one succeeds");
            EXPECT_ENDS(r);
        }
    }
}

RIG_TEST(prealloc_of_more_than_the_device_takes_none,
         EXPECT_WITH(state, config.prealloc_bytes, UINT64_MAX))
{
    EXPECT_EQ(rig_stats(r).reserved_bytes, 0, "nothing is taken");
    rig_alloc(r, MIB(10));
}

RIG_TEST(prealloc_takes_memory_at_the_start, EXPECT_WITH(state, config.prealloc_bytes, MIB(50) + 1))
{
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(52), "in whole granules");
    uint64_t calls = model_calls(r->model, MODEL_ROW_create);
    rig_alloc_all(r, NULL, 5, MIB(10));
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_create), calls, "requests are served from it");
    EXPECT_EQ(rig_stats(r).num_hits, 5, "as hits");
}

PLAY_TESTS
