/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/single_stream.c: what must not be handed out while the single-stream mode ends, what its end
 * waits for, and when it may not come again. */
#include "pool/single_stream.h"
#include "tests/unit/leaver.h"
#include "tests/unit/magazine.h"

/* A step of another thread of the program, at the first call of a row while the stream is left. */
struct meanwhile {
    struct rig *rig;
    enum model_row row;
    uint64_t addr, taken;
    bool happened;
};

static void free_and_take(struct model *m, enum model_row row)
{
    struct meanwhile *w = m->hook_arg;
    if (row != w->row)
        return;
    m->hook = NULL;
    w->happened = true;
    rig_free(w->rig, w->addr);
    EXPECT(magazine_units(magazine(w->rig)), "it is in the magazine");
    w->taken = pool_alloc_fast(w->rig->pool, KIB(64));
}

TEST(what_is_freed_while_the_stream_is_left_waits_for_its_fence)
{
    static const enum model_row rows[] = {MODEL_ROW_fence_create, MODEL_ROW_fence_record,
                                          MODEL_ROW_fence_query, MODEL_ROW_fence_order};
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct rig *r = rig_in(RIG_BYTES, false, true);
        rig_start(r);
        rig_free(r, rig_alloc(r, 512));
        struct meanwhile w = {.rig = r, .row = rows[i], .addr = rig_alloc(r, KIB(64))};
        uint64_t b = rig_alloc(r, KIB(128));
        rig_launch(r, 0, MS(20), w.addr);
        rig_free(r, b);
        rig_hook(r, free_and_take, &w);
        rig_launch(r, 1, MS(1), 0); /* leaves */
        EXPECT(w.happened, "it was freed meanwhile");
        EXPECT_EQ(w.taken, 0, "the fence of its free is to come");
        EXPECT(rig_alloc(r, KIB(64)), "there is other memory, or a later fence is ordered");
        const char *words = rig_destroy(r);
        if (words)
            fail_msg("row %u: %s", rows[i], words);
    }
}

RIG_TEST(a_thread_inside_a_magazine_is_waited_for, expect_single(state))
{
    struct leaver leaver = {0};
    rig_free(r, rig_alloc(r, 512));
    rig_pending(r, 0, MS(20), KIB(128));
    uint64_t before = model_calls(r->model, MODEL_ROW_fence_record);
    /* As one that has seen one stream, and is about to hand something out, or to put something
     * in. */
    EXPECT(!atomic_exchange(&magazine(r)->locked, 1), "nobody else is inside");
    leaver_start(&leaver, r->pool);
    bool is_told = atomic_load(&r->pool->fences.ready) != FENCE_READY_ALL;
    uint64_t meanwhile = model_calls(r->model, MODEL_ROW_fence_record);
    magazine_unlock(magazine(r));
    pthread_join(leaver.thread, NULL);
    EXPECT(is_told, "no later thread takes it for the time of one stream");
    EXPECT_EQ(meanwhile, before, "what it does is to be fenced, too");
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_fence_record), before + 1,
              "as soon as it is through");
    r->several_streams = true;
}

/* When the stream is left, later work would be ordered behind the late fence. */
RIG_TEST(one_stream_is_not_enough_while_a_late_fence_runs, expect_single(state))
{
    uint64_t a = rig_alloc(r, MIB(3)), b = rig_alloc(r, MIB(3));
    rig_launch(r, 1, 0, a);
    rig_launch(r, 2, 0, a); /* alone from here on */
    rig_free(r, b);
    rig_launch(r, 2, MS(5), a); /* records */
    model_drain(r->model);
    model_capture_begin(r->model);
    rig_free(r, a);
    rig_launch(r, 2, MS(500), 0); /* after the free, without a record */
    model_capture_end(r->model);
    EXPECT(rig_alloc(r, MIB(6)), "asks for a fence, which is late");
    EXPECT(r->pool->fences.late_epoch > r->pool->fences.complete_epoch, "and runs");
    EXPECT(pool_passed(r->pool, r->run_mark), "the other streams' work is complete");
    EXPECT(!rig_enter_single(r), "the stream could not be left behind its frees alone");
    model_drain(r->model);
    EXPECT(rig_enter_single(r), "now it can");
}

RIG_TEST(one_stream_is_not_enough_while_others_work, expect_single(state))
{
    uint64_t a = rig_alloc(r, MIB(3)), b = rig_alloc(r, MIB(3));
    rig_launch(r, 1, MS(50), b);
    rig_launch(r, 2, 0, a); /* alone from here on */
    uint64_t mark = pool_mark(r->pool);
    rig_free(r, a);
    rig_launch(r, 2, 0, 0); /* records */
    EXPECT(!pool_enter_single_stream(r->pool, mark, 2 << 3, &r->breached), "stream 1 has work");
    EXPECT(atomic_load(&r->pool->fences.ready) != FENCE_READY_ALL, "so fences rule");
    model_drain(r->model);
    EXPECT(pool_passed(r->pool, mark), "it is complete");
    EXPECT(rig_enter_single(r), "and one stream is enough");
}

/* A thread that wants one stream to be enough, while another one has a record under way. */
struct entry {
    struct rig *rig;
    uint64_t mark;
    bool asked, entered;
};

static void enter_meanwhile(struct model *m, enum model_row row)
{
    struct entry *e = m->hook_arg;
    if (row != MODEL_ROW_fence_record)
        return;
    m->hook = NULL;
    e->asked = true;
    e->entered = pool_enter_single_stream(e->rig->pool, e->mark, 2 << 3, &e->rig->breached);
}

RIG_TEST(one_stream_is_not_enough_while_a_record_is_under_way, expect_single(state))
{
    uint64_t a = rig_alloc(r, MIB(3)), b = rig_alloc(r, MIB(3));
    rig_launch(r, 1, MS(5), b);
    rig_launch(r, 2, 0, a); /* alone from here on */
    struct entry e = {.rig = r, .mark = pool_mark(r->pool)};
    rig_free(r, a);
    rig_launch(r, 2, 0, 0); /* records */
    model_drain(r->model);
    EXPECT(pool_passed(r->pool, e.mark), "the other stream's work is complete");
    rig_free(r, b);
    rig_hook(r, enter_meanwhile, &e);
    pool_seal(r->pool);
    EXPECT(e.asked && !e.entered, "the record may be late: work may have come since the frees");
    EXPECT(rig_enter_single(r), "once it is over one stream is enough");
}

/* A signal handler submits work to a stream of its own, in a call of the thread that it stopped. */
struct handler {
    struct rig *rig;
    enum model_row row;
    uint64_t addr; /* what that work touches */
    bool happened;
};

static void submit_inside(struct model *m, enum model_row row)
{
    struct handler *h = m->hook_arg;
    if (row != h->row)
        return;
    m->hook = NULL;
    h->happened = true;
    rig_launch(h->rig, 2, MS(1), h->addr);
}

/* The thread is about to submit to this stream: another one, which it leaves the single one for, or
 * the single one, behind a record. Work of that one still runs on memory that has its next owner.
 */
static void submit_beside(unsigned stream, enum model_row row)
{
    struct rig *r = rig_in(RIG_BYTES, false, true);
    struct handler h = {.rig = r, .row = row};
    rig_start(r);
    rig_free_behind(r, 0, MS(20), rig_alloc(r, KIB(300)));
    h.addr = rig_alloc(r, KIB(300));
    rig_free(r, rig_alloc(r, 512));
    rig_hook(r, submit_inside, &h);
    rig_launch(r, stream, MS(1), 0);
    EXPECT(h.happened, "the handler came");
    EXPECT(!r->pool->fences.lost, "nothing was given up for it");
    EXPECT_EQ(r->pool->fences.mode, FENCE_MULTI, "one stream is not enough any more");
    rig_launch(r, 3, MS(1), h.addr);
    const char *words = rig_destroy(r);
    if (words)
        fail_msg("stream %u, row %u: %s", stream, row, words);
}

TEST(a_handler_in_the_thread_that_leaves_waits_for_no_other)
{
    static const enum model_row rows[] = {MODEL_ROW_fence_create, MODEL_ROW_fence_record,
                                          MODEL_ROW_fence_query, MODEL_ROW_fence_order};
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
        submit_beside(1, rows[i]);
    submit_beside(0, MODEL_ROW_fence_create);
    submit_beside(0, MODEL_ROW_fence_record);
}

PLAY_TESTS
