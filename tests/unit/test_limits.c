/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/limits.c: idle memory back to the driver, over limits and after a time. */
#include "pool/limits.h"
#include "tests/unit/expect.h"

RIG_TEST(an_idle_pool_has_no_timer, expect_arena(state))
{
    EXPECT_EQ(pool_tick_ns(r->pool), 0, "nothing to look at");
    rig_alloc(r, MIB(8));
    rig_free_all(r);
    EXPECT_EQ(pool_tick(r->pool), 0, "without limits everything is kept");
}

RIG_TEST(idle_memory_over_the_limit_goes_back, *state)
{
    r->config.max_idle_bytes = MIB(16);
    rig_start(r);
    EXPECT(pool_tick_ns(r->pool), "the limit wants looking at");
    rig_alloc_all(r, NULL, 8, MIB(8));
    EXPECT_EQ(pool_tick(r->pool), 0, "nothing is idle");
    rig_free_all(r);
    EXPECT_EQ(pool_tick(r->pool), MIB(48), "what is over the limit");
    EXPECT_EQ(pool_tick(r->pool), 0, "once");
}

RIG_TEST(others_are_left_their_part, *state)
{
    r->config.min_free_bytes = MIB(300);
    rig_start(r);
    rig_alloc_all(r, NULL, 20, MIB(8));
    rig_free_all(r);
    EXPECT_EQ(pool_tick(r->pool), 0, "352 of 512 MiB are free");
    r->model->other_bytes = MIB(100);
    EXPECT_EQ(pool_tick(r->pool), MIB(48), "252 were: 48 are missing");
    r->model->other_bytes = 0;
}

RIG_TEST(memory_unused_for_long_goes_back, *state)
{
    r->config.idle_timeout_ns = MS(1000);
    rig_start(r);
    EXPECT_EQ(pool_tick_ns(r->pool), MS(125), "an eighth of the time");
    uint64_t a = rig_alloc(r, MIB(8)), b = rig_alloc(r, MIB(6));
    rig_free(r, b);
    pool_tick(r->pool);
    for (int i = 0; i < 7; i++) {
        model_advance(r->model, MS(125));
        EXPECT_EQ(pool_tick(r->pool), 0, "not yet");
    }
    model_advance(r->model, MS(250));
    EXPECT_EQ(pool_tick(r->pool), MIB(6), "unused for a second");
    rig_free(r, a);
}

RIG_TEST(memory_in_use_now_and_then_stays, *state)
{
    r->config.idle_timeout_ns = MS(1000);
    rig_start(r);
    rig_freed(r, MIB(8));
    for (int i = 0; i < 20; i++) {
        model_advance(r->model, MS(500));
        EXPECT_EQ(pool_tick(r->pool), 0, "a steady loop does not thrash");
        rig_free(r, rig_alloc(r, MIB(8)));
    }
    EXPECT_EQ(rig_stats(r).num_device_alloc, 1, "taken once");
}

PLAY_TESTS
