/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/limits.c: idle memory back to the driver, over limits and after a time, also where they
 * change while the pool works (pool_set_config). test_threads.c changes them while eight threads
 * use the pool. */
#include "pool/limits.h"
#include "tests/unit/expect.h"

/* So many blocks of 8 MiB, all freed again and ready. */
static void fill(struct rig *r, unsigned blocks)
{
    rig_alloc_all(r, NULL, blocks, MIB(8));
    rig_free_all(r);
}

static void set(struct rig *r)
{
    pool_set_config(r->pool, &r->config);
    EXPECT_SOUND(r);
}

RIG_TEST(a_lower_limit_on_idle_memory_is_kept_from_the_next_tick_on, expect_arena(state))
{
    fill(r, 10);
    EXPECT_EQ(pool_tick_ns(r->pool), 0, "no limit");
    EXPECT_EQ(pool_tick(r->pool, NULL), 0, "everything is kept");
    r->config.max_idle_bytes = MIB(16);
    set(r);
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(80), "nothing goes back on the thread that sets it");
    EXPECT_EQ(pool_tick_ns(r->pool), MS(100), "there is something to look at now");
    EXPECT_EQ(pool_tick(r->pool, NULL), MIB(64), "what is over the limit");
    r->config.max_idle_bytes = UINT64_MAX;
    set(r);
    EXPECT_EQ(pool_tick_ns(r->pool), 0, "nothing any more");
    fill(r, 10);
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(80), "and memory is kept again");
}

RIG_TEST(memory_left_to_others_can_change, expect_arena(state))
{
    fill(r, 20);
    r->config.min_free_bytes = MIB(400);
    set(r);
    EXPECT_EQ(pool_tick_ns(r->pool), MS(100), "a tick");
    EXPECT_EQ(pool_tick(r->pool, NULL), MIB(48), "352 of 512 MiB were free");
}

RIG_TEST(a_limit_below_what_is_live_is_reached_as_memory_becomes_idle,
         expect_reuse(state, REUSE_ORDER))
{
    uint64_t a[10];
    rig_alloc_all(r, a, 10, MIB(8));
    r->config.max_reserved_bytes = MIB(40);
    set(r);
    EXPECT_EQ(pool_tick_ns(r->pool), MS(100), "until the limit is reached");
    EXPECT_EQ(pool_tick(r->pool, NULL), 0, "live memory stays");
    EXPECT_EQ(rig_alloc(r, MIB(2)), 0, "and there is none for more");
    EXPECT_EQ(r->status, POOL_LIMIT, "as if the device were full");
    rig_free_every(r, a, 0, 3, 1);
    EXPECT_EQ(pool_tick(r->pool, NULL), MIB(24), "what is free is over the limit");
    EXPECT_EQ(pool_tick_ns(r->pool), MS(100), "56 MiB are");
    EXPECT_SOUND(r);
    rig_free_every(r, a, 3, 8, 1);
    EXPECT_EQ(pool_tick(r->pool, NULL), MIB(16), "no more than that");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(40), "the limit");
    EXPECT_EQ(pool_tick_ns(r->pool), 0, "it holds by itself now");
    EXPECT(rig_alloc(r, MIB(8)), "idle memory serves");
    r->config.max_reserved_bytes = UINT64_MAX;
    set(r);
    EXPECT(rig_alloc(r, MIB(100)), "no limit any more");
}

RIG_TEST(a_timeout_counts_from_the_moment_that_it_is_set, expect_arena(state))
{
    uint64_t a = rig_alloc(r, MIB(8));
    rig_free(r, rig_alloc(r, MIB(6)));
    model_advance(r->model, MS(60000));
    rig_free(r, a);
    rig_trim(r, GIB(1), false); /* all of it is ready, and all of it stays */
    r->config.idle_timeout_ns = MS(1000);
    set(r);
    EXPECT_EQ(pool_tick_ns(r->pool), MS(125), "an eighth");
    EXPECT_EQ(pool_tick(r->pool, NULL), 0, "no use before was noted: it may have been just now");
    model_advance(r->model, MS(900));
    a = rig_freed(r, MIB(8));
    EXPECT_EQ(pool_tick(r->pool, NULL), 0, "not yet");
    model_advance(r->model, MS(200));
    EXPECT_EQ(pool_tick(r->pool, NULL), MIB(6), "unused for a second; 8 MiB were in use");
    model_advance(r->model, MS(1000));
    EXPECT_EQ(pool_tick(r->pool, NULL), MIB(8), "then these");
}

RIG_TEST(a_shorter_timeout_counts_from_the_last_use,
         EXPECT_WITH(state, config.idle_timeout_ns, MS(60000)))
{
    EXPECT_EQ(pool_tick_ns(r->pool), MS(7500), "an eighth of the time");
    fill(r, 2);
    pool_tick(r->pool, NULL);
    model_advance(r->model, MS(5000));
    r->config.idle_timeout_ns = MS(1000);
    set(r);
    EXPECT_EQ(pool_tick(r->pool, NULL), MIB(16), "unused for five seconds");
}

RIG_TEST(memory_in_use_now_and_then_stays, EXPECT_WITH(state, config.idle_timeout_ns, MS(1000)))
{
    rig_freed(r, MIB(8));
    for (int i = 0; i < 20; i++) {
        model_advance(r->model, MS(500));
        EXPECT_EQ(pool_tick(r->pool, NULL), 0, "a steady loop does not thrash");
        rig_free(r, rig_alloc(r, MIB(8)));
    }
    EXPECT_EQ(rig_stats(r).num_device_alloc, 1, "taken once");
}

RIG_TEST(the_way_of_reuse_can_change, expect_reuse(state, REUSE_READY))
{
    r->several_streams = true;
    uint64_t a = rig_pending(r, 1, MS(10), MIB(8));
    EXPECT(rig_alloc(r, MIB(8)) != a, "work still uses it");
    r->config.reuse = REUSE_ORDER;
    set(r);
    EXPECT_EQ(rig_alloc(r, MIB(8)), a, "behind its work");
}

RIG_TEST(what_is_fixed_stays, expect_arena(state))
{
    r->config.min_block_bytes = MIB(1);
    r->config.max_block_bytes = MIB(2);
    r->config.sync_free = true;
    r->config.backing = BACKING_SEGMENT;
    r->config.prealloc_bytes = MIB(100);
    r->config.max_idle_bytes = MIB(1);
    set(r);
    EXPECT(rig_alloc(r, 512), "not too small");
    EXPECT(rig_alloc(r, MIB(8)), "nor too large");
    EXPECT(pool_uses_arena(r->pool), "the same backing");
    EXPECT(pool_tick_ns(r->pool), "but the limit is new");
}

RIG_TEST(the_next_context_has_the_new_limits, expect_arena(state))
{
    fill(r, 4);
    r->config.max_reserved_bytes = MIB(16);
    set(r);
    EXPECT(pool_tick_ns(r->pool), "32 MiB are reserved");
    pool_abandon(r->pool);
    EXPECT(pool_revive(r->pool), "another context has the pool");
    EXPECT_EQ(pool_tick_ns(r->pool), 0, "nothing is reserved");
    EXPECT(!rig_alloc(r, MIB(17)), "the limit holds");
    EXPECT(rig_alloc(r, MIB(16)), "for it too");
}

PLAY_TESTS
