/* SPDX-License-Identifier: BSD-2-Clause */
/* The row ask_others: when the pool asks, and what it does with memory that comes from elsewhere.
 */
#include "tests/unit/expect.h"

/* What the others give at each call, and what they were asked. The row has no argument of its own.
 */
static struct {
    struct rig *rig;
    uint64_t gives_bytes, asked_bytes, deadline_ns;
    unsigned calls, calls_in_background;
    uint64_t creates; /* of the pool, when the context broke */
    bool breaks;      /* the context does, while others are asked */
} others;

static struct backend_ops ops;

static void note_call(uint64_t size_bytes)
{
    others.asked_bytes = size_bytes;
    /* Would hang if the thread held the pool's lock. */
    EXPECT_EQ(pool_idle_bytes(others.rig->pool), 0, "the own idle memory came first");
}

static void ask_in_background(struct backend *b, uint64_t size_bytes)
{
    others.calls_in_background++;
    note_call(size_bytes);
}

static bool ask_others(struct backend *b, uint64_t size_bytes, struct lend_attempt *attempt)
{
    struct model *m = others.rig->model;
    others.calls++;
    note_call(size_bytes);
    EXPECT_EQ(attempt->deadline_ns, others.deadline_ns, "0 at first, then what the row stored");
    attempt->deadline_ns = ++others.deadline_ns;
    if (others.breaks) {
        pool_lose(others.rig->pool);
        others.creates = model_calls(m, MODEL_ROW_create);
    }
    uint64_t gives = others.gives_bytes < m->other_bytes ? others.gives_bytes : m->other_bytes;
    m->other_bytes -= gives;
    return gives > 0;
}

static struct rig *start(struct rig *r, uint64_t other_bytes, uint64_t gives_bytes)
{
    ops = *r->model->backend.ops;
    ops.ask_others = ask_others;
    ops.ask_in_background = ask_in_background;
    r->model->backend.ops = &ops;
    r->model->other_bytes = other_bytes;
    memset(&others, 0, sizeof others);
    others.rig = r;
    others.gives_bytes = gives_bytes;
    rig_start(r);
    return r;
}

BACKINGS_TEST(others_are_asked_until_enough_came)
{
    start(r, MIB(480), MIB(16));
    /* Idle memory of the wrong kind goes first. */
    uint64_t live = rig_alloc(r, MIB(8));
    rig_free(r, rig_alloc(r, MIB(4)));
    EXPECT(rig_alloc(r, MIB(64)), "32 MiB are free, 8 of them taken");
    EXPECT_EQ(others.calls, 3, "16, 32, 48 MiB: 40 are missing");
    EXPECT_EQ(others.asked_bytes, MIB(64), "the whole request");
    struct pool_stats s = rig_stats(r);
    EXPECT_EQ(s.num_oom_borrowed, 1, "counted");
    EXPECT_EQ(s.num_ooms + s.num_oom_released, 0, "and nothing else");
    rig_launch(r, 0, 0, live);
}

POOL_TEST(the_program_gets_the_error_once_no_more_comes)
{
    struct rig *r = start(*state, MIB(480), MIB(16));
    rig_alloc(r, MIB(2));
    EXPECT(!rig_alloc(r, MIB(512)), "2 MiB more than there is");
    others.deadline_ns = 0;
    others.gives_bytes = 0;
    unsigned calls = others.calls;
    r->model->other_bytes = MIB(480);
    EXPECT(!rig_alloc(r, MIB(64)), "nobody gives any");
    EXPECT_EQ(others.calls, calls + 1, "asked once");
    EXPECT_EQ(rig_stats(r).num_ooms, 2, "told the program");
    EXPECT_EQ(rig_stats(r).num_oom_borrowed, 0, "met none");
}

RIG_TEST(a_limit_of_the_pools_own_asks_nobody, *state)
{
    r->config.max_reserved_bytes = MIB(64);
    start(r, MIB(256), MIB(16));
    EXPECT(!rig_alloc(r, MIB(128)), "beyond MAX_RESERVED");
    EXPECT_EQ(rig_stats(r).num_limit_rejections, 1, "that is the reason");
    EXPECT_EQ(others.calls, 0, "so nobody is asked");
}

static int refuse(struct backend *b, uint64_t size_bytes, uint64_t *handle)
{
    return MODEL_NOMEM;
}

/* Otherwise each request would wait for all neighbours. */
POOL_TEST(where_the_driver_serves_the_program_instead_nobody_is_asked)
{
    struct rig *r = start(*state, 0, MIB(16));
    r->driver_serves = true;
    ops.create = refuse;
    EXPECT(!rig_alloc(r, MIB(8)) && r->status == POOL_NOMEM, "the pool gets no memory");
    EXPECT_EQ(others.calls, 1, "and cannot know why");
    others.deadline_ns = 0;
    EXPECT(!rig_alloc(r, MIB(8)) && r->status == POOL_NOMEM, "nor at the next request");
    EXPECT_EQ(others.calls, 1, "but the device has enough");
    EXPECT_EQ(rig_stats(r).num_oom_passed, 2, "which the driver gives the program");
    EXPECT_EQ(rig_stats(r).num_ooms, 0, "so nothing is short");
    others.gives_bytes = 0;
    r->model->other_bytes = RIG_BYTES - MIB(4);
    EXPECT(!rig_alloc(r, MIB(8)), "where the device is full");
    EXPECT_EQ(others.calls, 2, "others may help");
}

/* The pool reads its clock in ticks. */
RIG_TEST(a_shortage_that_stays_is_told_without_a_wait, *state)
{
    r->config.min_free_bytes = MIB(200);
    start(r, MIB(400), MIB(16));
    rig_alloc(r, MIB(20));
    rig_free(r, rig_alloc(r, MIB(8)));
    pool_tick(r->pool, NULL);
    EXPECT_EQ(others.calls_in_background, 1, "112 MiB are free");
    EXPECT_EQ(others.asked_bytes, MIB(200) - MIB(512 - 400 - 20), "after the own idle memory");
    r->model->other_bytes = MIB(100);
    pool_tick(r->pool, NULL);
    EXPECT_EQ(others.calls_in_background, 1, "enough is free");
    EXPECT_EQ(others.calls, 0, "and nobody waits");
}

RIG_TEST(a_trim_gives_no_more_than_it_was_asked_for, expect_arena(state))
{
    rig_alloc_all(r, NULL, 10, MIB(8));
    rig_free_all(r);
    struct pool_trim trim = {.most_bytes = MIB(15)};
    EXPECT_EQ(pool_trim(r->pool, &trim), MIB(16), "in whole chunks");
    trim = (struct pool_trim){.most_bytes = MIB(60), .keep_bytes = MIB(60)};
    EXPECT_EQ(pool_trim(r->pool, &trim), MIB(8), "the other bound counts too");
    trim = (struct pool_trim){.most_bytes = GIB(1)};
    EXPECT_EQ(pool_trim(r->pool, &trim), MIB(56), "no more than there is");
}

/* The context breaks: while the driver is asked, or while others are. */
TEST(a_lost_pool_asks_nobody_and_takes_nothing)
{
    for (int later = 0; later < 2; later++) {
        struct rig *r = start(rig_create(RIG_BYTES), MIB(480), MIB(16));
        rig_alloc(r, MIB(2));
        rig_launch(r, 1, MS(1), rig_alloc(r, MIB(2)));
        if (later) {
            others.breaks = true;
        } else {
            rig_free_all(r);
            r->model->broken = true;
            others.creates = model_calls(r->model, MODEL_ROW_create);
        }
        r->lost = true;
        EXPECT(!rig_alloc(r, MIB(64)) && r->status == POOL_PASS, "the driver says why");
        EXPECT_EQ(others.calls, later, "nobody is asked once the context is lost");
        EXPECT_EQ(model_calls(r->model, MODEL_ROW_create), others.creates, "nothing is taken");
        rig_destroy(r);
    }
}

PLAY_TESTS
