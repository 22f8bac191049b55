/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/fence.c, pool/ring.c, pool/single_stream.c. Freed memory is not handed out while old work
 * may use it (safety). No request waits for work submitted after the free (liveness). The model
 * reports a breach of either by itself. */
#include "pool/fence.h"
#include "pool/state.h"
#include "tests/unit/expect.h"
#include "tests/unit/leaver.h"

static struct fences *fences(struct rig *r)
{
    return &r->pool->fences;
}

RIG_TEST(memory_of_running_work_is_not_handed_out, expect_reuse(state, REUSE_READY))
{
    uint64_t a = rig_pending(r, 1, MS(20), MIB(4));
    uint64_t b = rig_alloc(r, MIB(4));
    EXPECT(b != a, "its work is running");
    model_advance(r->model, MS(19));
    uint64_t c = rig_alloc(r, MIB(4));
    EXPECT(c != a, "its work is still running");
    model_advance(r->model, MS(1));
    EXPECT_EQ(rig_alloc(r, MIB(4)), a, "its work is complete");
    EXPECT_EQ(rig_stats(r).num_fence_orders + rig_stats(r).num_fence_waits, 0, "nobody waited");
}

RIG_TEST(one_fence_serves_all_frees_before_it, expect_arena(state))
{
    rig_alloc_all(r, NULL, 100, MIB(2));
    rig_launch(r, 1, MS(1), r->blocks[0].addr);
    rig_free_all(r);
    rig_launch(r, 1, MS(1), 0);
    rig_launch(r, 1, MS(1), 0);
    EXPECT_EQ(rig_stats(r).num_fences, 1, "frees in a row share their fence");
}

RIG_TEST(work_without_frees_records_nothing, expect_arena(state))
{
    rig_alloc(r, MIB(2));
    for (int i = 0; i < 10; i++)
        rig_launch(r, i % 3, 0, 0);
    EXPECT_EQ(rig_stats(r).num_fences, 0, "there is nothing to fence");
    EXPECT_EQ(atomic_load(&pool_watch), 0, "and submissions are not looked at");
}

TEST(a_later_endless_kernel_does_not_hold_up_reuse)
{
    static const enum pool_reuse policies[] = {REUSE_AUTO, REUSE_ORDER, REUSE_READY, REUSE_WAIT};
    for (unsigned i = 0; i < 4; i++)
        for (unsigned backing = 0; backing < 2; backing++)
            for (unsigned order = 0; order < 2; order++) {
                struct rig *r = rig_in(MIB(32), backing, false);
                r->config.reuse = policies[i];
                r->model->backend.has_order = order;
                rig_start(r);
                /* The old work ends, the new kernel never does; the device is full. */
                uint64_t a = rig_pending(r, 1, MS(5), MIB(32));
                rig_launch(r, 2, MODEL_FOREVER, 0);
                EXPECT_EQ(rig_alloc(r, MIB(32)), a, "served: natively it would have been");
                rig_launch(r, 3, MS(1), a);
                rig_launch(r, 0, MS(1), a);
                model_advance(r->model, MS(10));
                EXPECT_EQ(r->model->work_count, 1,
                          "what uses the memory runs, beside the endless kernel");
                const char *words = rig_destroy(r);
                if (words)
                    fail_msg("policy %u, backing %u, order %u: %s", i, backing, order, words);
            }
}

POOL_TEST(an_endless_kernel_that_came_between_free_and_fence_holds_nobody_up)
{
    struct rig *r = expect_device_of(state, MIB(32));
    uint64_t a = rig_alloc(r, MIB(32));
    rig_launch(r, 1, MS(5), a);
    model_capture_begin(r->model);
    rig_free(r, a);
    rig_launch(r, 2, MODEL_FOREVER, 0); /* no record was possible before it */
    model_capture_end(r->model);
    uint64_t before = model_now(r->model);
    EXPECT(!rig_alloc(r, MIB(32)), "nothing is known complete");
    EXPECT(model_now(r->model) - before <= MS(1100), "after a brief wait");
    EXPECT_EQ(r->status, POOL_NOMEM, "so memory is short");
    EXPECT_EQ(r->code, MODEL_NOMEM, "in the driver's words");
    EXPECT_EQ(rig_stats(r).num_fence_orders, 0, "nothing is ordered behind it");
    EXPECT(rig_stats(r).num_fence_queries, "of the late fence");
    EXPECT_SOUND(r);
    model_end_forever(r->model);
    model_advance(r->model, MS(5));
    EXPECT_EQ(rig_alloc(r, MIB(32)), a, "complete: the late fence tells");
}

RIG_TEST(a_late_fence_is_passed_by_one_that_is_not, expect_device_of(state, MIB(32)))
{
    uint64_t a = rig_alloc(r, MIB(16)), b = rig_alloc(r, MIB(16));
    rig_launch(r, 1, MS(5), a);
    model_capture_begin(r->model);
    rig_free(r, a);
    rig_launch(r, 2, MS(50), b);
    model_capture_end(r->model);
    rig_free(r, b);
    /* Natively this free would have waited for both. */
    EXPECT(rig_alloc(r, MIB(32)), "the newer fence covers both");
    EXPECT(rig_stats(r).num_fence_orders + rig_stats(r).num_fence_waits > 0,
           "and may be waited for");
}

RIG_TEST(a_single_stream_needs_no_waiting, expect_single(state))
{
    uint64_t a = rig_alloc(r, MIB(4));
    for (int i = 0; i < 50; i++) {
        rig_free_behind(r, 0, MS(1), a);
        EXPECT_EQ(rig_alloc(r, MIB(4)), a, "stream order alone makes reuse safe");
    }
    struct pool_stats s = rig_stats(r);
    EXPECT_EQ(s.num_fence_orders + s.num_fence_waits + s.num_fence_queries, 0,
              "no fence was asked");
    EXPECT_EQ(s.reserved_bytes, MIB(4), "one block is enough");
}

RIG_TEST(leaving_the_single_stream_orders_what_it_relied_on, expect_single(state))
{
    uint64_t a = rig_pending(r, 0, MS(20), MIB(4));
    uint64_t b = rig_alloc(r, MIB(4));
    EXPECT_EQ(b, a, "reused at once");
    rig_launch(r, 1, MS(1), b); /* leaves the mode first */
    EXPECT_EQ(rig_stats(r).num_fence_orders, 1, "later work runs behind the old");
    EXPECT_SOUND(r);
    rig_pending(r, 0, MS(20), MIB(4));
    EXPECT(fences(r)->mode == FENCE_MULTI, "from now on fences rule");
    EXPECT(r->pool->stats.pending_bytes == MIB(4), "a free waits for its fence");
}

RIG_TEST(leaving_counts_frees_whose_fence_was_recorded_before, expect_single(state))
{
    uint64_t a = rig_pending(r, 0, MS(20), MIB(4));
    rig_launch(r, 0, MS(20), 0); /* records */
    EXPECT_EQ(rig_alloc(r, MIB(4)), a, "reused at once");
    rig_launch(r, 2, MS(1), a);
}

/* A single stream on a driver without order, with a block that was freed behind work. */
static struct rig *freed_without_order(void **state, uint64_t *a)
{
    struct rig *r = *state;
    r->model->backend.has_order = false;
    r->model->backend.single_stream = true;
    rig_start(r);
    *a = rig_alloc(r, MIB(4));
    rig_launch(r, 0, MS(20), *a);
    rig_free(r, *a);
    return r;
}

POOL_TEST(leaving_without_order_waits_on_the_host)
{
    uint64_t a;
    struct rig *r = freed_without_order(state, &a);
    EXPECT_EQ(rig_alloc(r, MIB(4)), a, "reused at once");
    rig_launch(r, 1, MS(1), a);
    EXPECT_EQ(rig_stats(r).num_fence_waits, 1, "there is no other way");
}

POOL_TEST(leaving_in_vain_hands_nothing_out_any_more)
{
    uint64_t a;
    struct rig *r = freed_without_order(state, &a);
    model_fail(r->model, MODEL_ROW_fence_wait, 1, MODEL_BROKEN);
    rig_launch(r, 1, MS(1), 0);
    r->lost = true;
    EXPECT(!rig_alloc(r, MIB(4)), "what is in the bins may be in use");
    EXPECT_EQ(r->status, POOL_PASS, "the driver serves");
}

RIG_TEST(leaving_twice_or_with_nothing_freed_asks_nothing, expect_single(state))
{
    rig_launch(r, 1, 0, 0);
    pool_leave_single_stream(r->pool);
    struct pool_stats s = rig_stats(r);
    EXPECT_EQ(s.num_fences + s.num_fence_orders + s.num_fence_waits, 0,
              "nothing relied on the order");
    EXPECT_EQ(atomic_load(&pool_watch) & POOL_WATCH_UNSEALED, 0, "no fence is wanted");
    pool_give_up_single_stream(r->pool);
    EXPECT_EQ(atomic_load(&pool_watch), 0, "submissions are left alone");
}

/* Frees and goes on with a stream, so that fences are recorded. */
static void turn(struct rig *r, unsigned stream, uint64_t duration_ns)
{
    rig_pending(r, stream, duration_ns, MIB(3));
    rig_launch(r, stream, 0, 0);
}

RIG_TEST(one_stream_is_enough_again_when_the_others_are_done, expect_single(state))
{
    uint64_t a = rig_alloc(r, MIB(4));
    rig_launch(r, 1, MS(20), a); /* leaves */
    turn(r, 2, MS(1));
    EXPECT(!rig_enter_single(r), "the first stream's work is still running");
    rig_free(r, a);
    EXPECT(rig_alloc(r, MIB(4)) != a || rig_stats(r).num_fence_orders,
           "so memory is not free to use");
    model_drain(r->model);
    EXPECT(rig_enter_single(r), "everything else is complete");
    EXPECT_EQ(rig_stats(r).num_single_streams, 1, "and it is counted");
    EXPECT_EQ(r->pool->stats.pending_bytes, 0, "nothing waits any more");
    struct pool_stats before = rig_stats(r);
    for (int i = 0; i < 20; i++)
        turn(r, 2, MS(5));
    EXPECT_EQ(rig_stats(r).num_fence_orders, before.num_fence_orders, "stream order is enough");
    EXPECT_EQ(rig_stats(r).reserved_bytes, before.reserved_bytes, "one block is enough");
    uint64_t b = rig_alloc(r, MIB(3));
    rig_launch(r, 3, MS(1), b); /* leaves again: runs behind the old work */
    EXPECT_EQ(rig_stats(r).num_fence_orders, before.num_fence_orders + 1, "once it is not");
}

RIG_TEST(a_pool_knows_whether_work_of_before_it_is_running, expect_single(state))
{
    EXPECT(pool_is_idle(r->pool), "nothing was submitted");
    model_submit(r->model, 1, MS(5), 0, 0, 0);
    EXPECT(!pool_is_idle(r->pool), "of which the pool was not told");
    model_drain(r->model);
    EXPECT(pool_is_idle(r->pool), "it is complete");
    EXPECT_EQ(atomic_load(&pool_watch) & POOL_WATCH_UNSEALED, 0, "no fence is wanted");
}

RIG_TEST(one_stream_is_not_enough_if_other_work_came_until_it_was_announced, expect_single(state))
{
    turn(r, 1, 0);
    turn(r, 2, MS(1)); /* leaves */
    model_drain(r->model);
    atomic_store(&r->breached, true);
    EXPECT(!rig_enter_single(r), "work for another stream was noted");
    EXPECT_EQ(atomic_load(&pool_single_stream), POOL_STREAM_NONE, "no stream is single");
    EXPECT(atomic_load(&r->pool->fences.ready) != FENCE_READY_ALL, "and none was for a moment");
    atomic_store(&r->breached, false);
    EXPECT(rig_enter_single(r), "the next time it is");
}

RIG_TEST(one_stream_is_never_enough_again_after_giving_up, expect_single(state))
{
    turn(r, 1, 0);
    turn(r, 2, 0);
    turn(r, 2, 0);
    pool_give_up_single_stream(r->pool);
    model_drain(r->model);
    EXPECT(!rig_enter_single(r), "it was given up");
    EXPECT_EQ(atomic_load(&pool_watch) & POOL_WATCH_STREAMS, 0, "submissions need not tell");
}

struct second {
    struct leaver leaver;
    bool started;
};

/* While the first thread's record is under way, the program's second thread creates a stream. */
static void start_second(struct model *m, enum model_row row)
{
    struct second *s = m->hook_arg;
    if (row != MODEL_ROW_fence_record || s->started)
        return;
    s->started = true;
    leaver_start(&s->leaver, s->leaver.pool);
}

RIG_TEST(leaving_waits_for_a_record_under_way, expect_single(state))
{
    struct second second = {.leaver.pool = r->pool};
    uint64_t a = rig_pending(r, 0, MS(20), MIB(4));
    rig_hook(r, start_second, &second);
    r->model->late_allowed = true;
    rig_launch(r, 0, MS(1), 0);
    EXPECT(second.started, "a record was under way");
    pthread_join(second.leaver.thread, NULL);
    r->several_streams = true;
    EXPECT_EQ(rig_stats(r).num_fence_orders, 1, "its fence was ordered");
    EXPECT_EQ(rig_alloc(r, MIB(4)), a, "the memory is in the bins");
    rig_launch(r, 1, MS(1), a);
}

struct freed {
    struct rig *rig;
    uint64_t addr;
};

static void free_while_recording(struct model *m, enum model_row row)
{
    struct freed *f = m->hook_arg;
    if (row != MODEL_ROW_fence_record)
        return;
    m->hook = NULL;
    rig_free(f->rig, f->addr);
}

RIG_TEST(a_free_during_a_record_is_not_covered_by_it, expect_reuse(state, REUSE_ORDER))
{
    uint64_t a = rig_alloc(r, MIB(4)), b = rig_alloc(r, MIB(6));
    struct freed freed = {r, b};
    rig_launch(r, 1, MS(5), b);
    rig_free(r, a);
    rig_hook(r, free_while_recording, &freed);
    /* Records for a; meanwhile b is freed; then work that never ends is submitted without a
     * record. */
    rig_launch(r, 2, MODEL_FOREVER, 0);
    EXPECT(rig_alloc(r, MIB(6)) != b, "nothing may be waited for");
    EXPECT_SOUND(r);
    model_advance(r->model, MS(5));
    EXPECT_EQ(rig_alloc(r, MIB(4)), a, "the other is known complete");
}

RIG_TEST(a_full_ring_of_fences_does_not_stop_the_program, expect_reuse(state, REUSE_READY))
{
    rig_launch(r, 1, MODEL_FOREVER, 0);
    uint64_t a[600];
    rig_alloc_all(r, a, 600, 512);
    r->model->late_allowed = true;
    for (int i = 0; i < 600; i++) {
        rig_free(r, a[i]);
        rig_launch(r, 2, 1000, 0);
    }
    rig_empty_magazines(r);
    EXPECT_SOUND(r);
    EXPECT(fences(r)->ring.count < RING_MAX, "the ring has an end");
    EXPECT(fences(r)->open_epoch > 550, "and every free has a fence all the same");
    EXPECT(rig_stats(r).pending_bytes >= KIB(300), "all is pending");
    model_end_forever(r->model);
    model_drain(r->model);
    rig_trim(r, 0, true);
    EXPECT_EQ(rig_stats(r).pending_bytes, 0, "all is known complete in the end");
}

RIG_TEST(few_queries_find_what_is_complete, expect_reuse(state, REUSE_READY))
{
    uint64_t a[100];
    rig_alloc_all(r, a, 100, MIB(2));
    for (int i = 0; i < 100; i++)
        rig_free_behind(r, 1, MS(1), a[i]);
    model_advance(r->model, MS(60) + 1);
    uint64_t before = rig_stats(r).num_fence_queries;
    rig_alloc(r, MIB(2));
    EXPECT(rig_stats(r).num_fence_queries - before < 12, "they are found by halving");
    EXPECT_EQ(rig_stats(r).pending_bytes, MIB(80), "sixty are complete, ninety-nine were recorded");
}

/* The record of its fence tells, or a query. */
TEST(a_broken_context_hands_nothing_out_again)
{
    for (int recorded = 0; recorded < 2; recorded++) {
        struct rig *r = rig_create(RIG_BYTES);
        rig_start(r);
        rig_pending(r, 1, MS(1), MIB(4));
        if (recorded)
            rig_launch(r, 1, MS(1), 0);
        r->model->broken = r->lost = true;
        EXPECT(!rig_alloc(r, MIB(4)), "the pool steps aside");
        EXPECT_EQ(r->status, POOL_PASS, "and the driver tells its error");
        EXPECT_ENDS(r);
    }
}

RIG_TEST(sync_free_waits_as_the_drivers_own_free_does, EXPECT_WITH(state, config.sync_free, true))
{
    uint64_t a = rig_alloc(r, MIB(4));
    rig_launch(r, 3, MS(20), 0);
    uint64_t before = model_now(r->model);
    rig_free(r, a);
    EXPECT_EQ(model_now(r->model) - before, MS(20), "until all work of the context is complete");
}

/* The driver makes no event at first, or none after the first one. */
TEST(sync_free_waits_without_events)
{
    for (unsigned nth = 1; nth < 3; nth++) {
        struct rig *r = rig_create(RIG_BYTES);
        uint64_t addrs[4];
        r->config.sync_free = true;
        rig_start(r);
        rig_alloc_all(r, addrs, 4, MIB(4));
        model_fail_many(r->model, MODEL_ROW_fence_create, nth, 100, MODEL_NOMEM);
        for (int i = 0; i < 4; i++) {
            rig_launch(r, (unsigned)i & 1, MS(20), 0);
            uint64_t before = model_now(r->model);
            rig_free(r, addrs[i]);
            EXPECT_EQ(model_now(r->model) - before, MS(20), "each of them, for all work");
        }
        EXPECT_ENDS(r);
    }
}

PLAY_TESTS
