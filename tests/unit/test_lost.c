/* SPDX-License-Identifier: BSD-2-Clause */
/* A pool that is lost hands nothing out, whoever is inside it at that moment; and what does not
 * lose a pool. */
#include "pool/state.h"
#include "tests/unit/expect.h"

static const uint64_t sizes[] = {600, KIB(20), KIB(300), MIB(3), MIB(24)};
enum { SIZES = sizeof sizes / sizeof *sizes, MOMENTS = 40 };

/* The pool is lost at call number `at` of any row. */
struct loss {
    struct pool *pool;
    uint64_t at, calls;
    bool lost;
};

static void lose_meanwhile(struct model *m, enum model_row row)
{
    struct loss *l = m->hook_arg;
    if (l->lost || ++l->calls < l->at)
        return;
    l->lost = true;
    pool_lose(l->pool);
}

/* Live, idle and pending memory of all kinds, some of it in magazines. */
static void fill(struct rig *r)
{
    uint64_t addrs[6 * SIZES];
    for (unsigned i = 0; i < 6 * SIZES; i++)
        addrs[i] = rig_alloc(r, sizes[i % SIZES]);
    for (unsigned i = 0; i < 6 * SIZES; i++) {
        if (i % 4)
            rig_launch(r, r->several_streams ? 1 + i % 3 : 0, MS(1 + i % 4), addrs[i]);
        if (i % 3)
            rig_free(r, addrs[i]);
    }
    model_advance(r->model, MS(2));
}

static bool request_beside_a_loss(bool segments, bool single, uint64_t size_bytes, uint64_t at)
{
    struct rig *r = rig_in(MIB(320), segments, single);
    struct loss loss = {.at = at};
    uint64_t addr;
    int code;
    rig_start(r);
    fill(r);
    loss.pool = r->pool;
    rig_hook(r, lose_meanwhile, &loss);
    /* Until the loss comes: what is ready runs out, and the driver's memory too. */
    bool served_after = false;
    for (unsigned i = 0; i < 200 && !loss.lost; i++)
        served_after = pool_alloc(r->pool, size_bytes, &addr, &code) == POOL_OK && loss.lost;
    for (unsigned i = 0; i < SIZES && loss.lost; i++)
        served_after = served_after || pool_alloc_fast(r->pool, sizes[i]) ||
                       pool_alloc(r->pool, sizes[i], &addr, &code) == POOL_OK;
    r->model->hook = NULL;
    r->lost = true;
    if (served_after)
        fail_msg(
            "segments %d, single %d, %llu bytes, lost at call %llu: memory was handed out after it",
            segments, single, (unsigned long long)size_bytes, (unsigned long long)at);
    model_drain(r->model);
    const char *words = pool_check(r->pool);
    EXPECT(!words, words);
    rig_destroy(r);
    return loss.lost;
}

TEST(nothing_is_handed_out_once_lost)
{
    unsigned losses = 0;
    for (unsigned way = 0; way < 4; way++)
        for (unsigned i = 0; i < SIZES; i++)
            for (uint64_t at = 1; at <= MOMENTS; at++)
                losses += request_beside_a_loss(way & 1, way & 2, sizes[i], at);
    EXPECT(losses > 200, "it was tried at many moments");
}

/* The request asks what is complete, to learn whether the larger segment may go back instead. */
static bool ask_for_a_larger_segment(uint64_t at)
{
    struct rig *r = rig_in(GIB(4), true, false);
    struct loss loss = {.at = at};
    uint64_t addr;
    int code;
    r->model->backend.frees_beside = true;
    rig_start(r);
    rig_alloc_all(r, NULL, 5, MIB(40));
    rig_free(r, rig_alloc(r, MIB(60)));
    rig_settle(r);
    uint64_t a = rig_alloc(r, MIB(3)), b = rig_alloc(r, MIB(4));
    rig_free_behind(r, 1, MS(20), b);
    EXPECT_EQ(rig_alloc(r, MIB(4)), b, "later work runs behind its old work");
    rig_free(r, a);
    loss.pool = r->pool;
    rig_hook(r, lose_meanwhile, &loss);
    bool served = pool_alloc(r->pool, MIB(44), &addr, &code) == POOL_OK;
    r->model->hook = NULL;
    if (loss.lost && served)
        fail_msg("lost at call %llu: a larger segment was handed out after it",
                 (unsigned long long)at);
    r->lost = true;
    model_drain(r->model);
    rig_destroy(r);
    return loss.lost;
}

TEST(a_larger_segment_does_not_serve_once_lost)
{
    uint64_t at = 1;
    while (ask_for_a_larger_segment(at))
        at++;
    EXPECT(at > 3, "it was lost at each call");
}

/* Another thread leaves the one stream while this one waits for the driver, and cannot order. */
static void leave_in_vain(struct model *m, enum model_row row)
{
    struct rig *r = m->hook_arg;
    if (row != MODEL_ROW_create && row != MODEL_ROW_segment_alloc)
        return;
    m->hook = NULL;
    m->backend.has_order = false;
    model_fail(m, MODEL_ROW_fence_wait, 1, MODEL_TIMEOUT);
    pool_leave_single_stream(r->pool);
    r->several_streams = true;
}

/* In the time of one stream what is freed is free at once, though work of that stream still uses
 * it. */
RIG_TEST(memory_that_could_not_be_ordered_is_not_handed_out, expect_single(state))
{
    uint64_t a = rig_alloc(r, MIB(4));
    uint64_t b = rig_alloc(r, MIB(4));
    rig_launch(r, 0, MODEL_FOREVER, a);
    rig_launch(r, 0, MODEL_FOREVER, b);
    rig_free(r, a);
    rig_free(r, b);
    rig_hook(r, leave_in_vain, r);
    uint64_t c = rig_alloc(r, MIB(12)); /* both, merged, and what the driver gives */
    EXPECT(r->pool->fences.lost, "later work is not behind that of the first stream");
    EXPECT(!c, "work of another stream could meet it");
    EXPECT_EQ(r->status, POOL_PASS, "the driver is asked");
    r->lost = true;
}

/* Without an event what was freed waits for the next one. */
TEST(a_fence_that_cannot_be_made_is_made_later)
{
    for (unsigned single = 0; single < 2; single++) {
        struct rig *r = rig_in(RIG_BYTES, false, single);
        rig_start(r);
        uint64_t a = rig_alloc(r, MIB(4));
        rig_launch(r, 0, MS(2), a);
        model_fail(r->model, MODEL_ROW_fence_create, 1, MODEL_NOMEM);
        rig_free(r, a);
        rig_launch(r, 0, MS(1), 0); /* records, or cannot */
        EXPECT_EQ(model_calls(r->model, MODEL_ROW_fence_create), 1, "it was tried");
        EXPECT(!r->pool->fences.lost, "nothing is known to be wrong with the context");
        uint64_t b = rig_alloc(r, MIB(4));
        EXPECT(b, "requests are served");
        rig_launch(r, 1, MS(2), b); /* behind what stream order alone ordered so far */
        EXPECT(!r->pool->fences.lost, "fences could be made again");
        model_advance(r->model, MS(10));
        rig_trim(r, 0, true);
        EXPECT_EQ(rig_stats(r).pending_bytes, 0, "all of it was fenced in the end");
        EXPECT_ENDS(r);
    }
}

/* As long as none can be made at all, those that are there are recorded again. */
RIG_TEST(fences_that_are_there_serve_again, expect_single(state))
{
    for (unsigned i = 0; i < 4; i++) {
        rig_pending(r, 0, MS(1), MIB(4));
        rig_launch(r, 0, MS(1), 0);
    }
    uint64_t before = model_calls(r->model, MODEL_ROW_fence_create);
    for (unsigned i = 0; i < 20; i++) {
        model_fail(r->model, MODEL_ROW_fence_create, 1, MODEL_NOMEM);
        uint64_t a = rig_alloc(r, MIB(4));
        EXPECT(a, "requests are served");
        rig_free_behind(r, 0, MS(1), a);
        rig_launch(r, 0, MS(1), 0);
    }
    EXPECT(model_calls(r->model, MODEL_ROW_fence_create) > before, "more were wanted");
    model_fail(r->model, MODEL_ROW_fence_create, 1, MODEL_NOMEM);
    uint64_t b = rig_alloc(r, MIB(4));
    rig_launch(r, 1, MS(2), b);
    EXPECT(!r->pool->fences.lost, "the one stream was left");
    model_fail(r->model, MODEL_ROW_fence_create, 0, 0);
}

PLAY_TESTS
