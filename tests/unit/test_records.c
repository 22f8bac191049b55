/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/fence.c: when a submission records the fence of what was freed before, and when it leaves
 * that for later. */
#include "pool/fence.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

static struct fences *fences(struct rig *r)
{
    return &r->pool->fences;
}

/* A block in use by work of each of so many streams in turn. */
static void turns(struct rig *r, unsigned streams, unsigned count, uint64_t size_bytes)
{
    for (unsigned i = 0; i < count; i++)
        rig_pending(r, 1 + i % streams, MS(1), size_bytes);
}

/* The same, on a pool of 64 MiB at work: how many fences a hundred of them took. */
static uint64_t fences_of_a_hundred(struct rig *r, unsigned streams, uint64_t size_bytes)
{
    rig_alloc(r, MIB(64));
    turns(r, streams, 20, size_bytes);
    uint64_t before = rig_stats(r).num_fences;
    turns(r, streams, 100, size_bytes);
    return rig_stats(r).num_fences - before;
}

RIG_TEST(little_memory_of_several_streams_shares_a_fence, expect_arena(state))
{
    uint64_t few = fences_of_a_hundred(r, 2, KIB(300));
    EXPECT(few >= 100 / FENCE_PATIENCE_FREES / 2 && few <= 100 / 2, "one for several frees");
    uint64_t before = rig_stats(r).num_fences;
    model_drain(r->model);
    turns(r, 2, 5, MIB(6));
    EXPECT(rig_stats(r).num_fences - before >= 4, "one for each where it is much");
    EXPECT_EQ(rig_stats(r).num_fence_orders, 0, "nobody waits");
}

RIG_TEST(each_free_has_a_fence_where_one_stream_follows, expect_arena(state))
{
    EXPECT(fences_of_a_hundred(r, 1, KIB(300)) >= 99,
           "later work may be ordered behind each at once");
}

RIG_TEST(each_free_has_a_fence_where_memory_is_scarce,
         EXPECT_WITH(state, config.max_reserved_bytes, MIB(100)))
{
    EXPECT(fences_of_a_hundred(r, 2, KIB(300)) >= 99, "any of them may be waited for");
}

RIG_TEST(an_endless_kernel_behind_little_freed_memory_holds_nobody_up, expect_arena(state))
{
    rig_alloc(r, MIB(64));
    turns(r, 2, 20, KIB(300));
    model_drain(r->model);
    turns(r, 2, FENCE_PATIENCE_FREES / 2, KIB(300));
    rig_launch(r, 1, MODEL_FOREVER, 0);
    uint64_t before = model_now(r->model);
    for (int i = 0; i < 500; i++) {
        rig_pending(r, 2, 1000, KIB(500));
        model_advance(r->model, 2000);
    }
    EXPECT_EQ(model_now(r->model) - before, 500 * 2000, "the host has not waited");
    rig_launch(r, 2, 1000, 0);
    model_advance(r->model, MS(1));
    EXPECT_SOUND(r);
    model_end_forever(r->model);
}

POOL_TEST(one_stream_is_not_enough_before_every_fence_of_its_past_may_be_ordered)
{
    struct rig *r = expect_single(state);
    rig_alloc(r, MIB(64));
    turns(r, 2, 20, KIB(300));
    model_drain(r->model);
    rig_trim(r, GIB(1), true);
    turns(r, 2, 1, KIB(300));
    rig_launch(r, 3, MS(1), 0);
    EXPECT(atomic_load(&fences(r)->marks) == (FENCE_UNSEALED | FENCE_WORK_FOLLOWED),
           "the free has no fence yet");
    model_drain(r->model);
    uint64_t mark = pool_mark(r->pool) - 1;
    EXPECT(pool_passed(r->pool, mark), "all before it is complete");
    EXPECT(!pool_enter_single_stream(r->pool, mark, 3, &r->breached),
           "its memory could not be ordered later");
    rig_trim(r, GIB(1), true);
    EXPECT(pool_enter_single_stream(r->pool, mark, 3, &r->breached), "complete: it need not");
    r->several_streams = false;
    r->single = 3;
}

PLAY_TESTS
