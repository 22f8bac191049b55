/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/fence.c, pool/alloc.c: while a capture is open no fence can be recorded. Nothing is asked
 * that would spoil the capture, and where memory is short its end is waited for, unless that would
 * be in vain. */
#include "pool/fence.h"
#include "tests/unit/expect.h"

RIG_TEST(nothing_is_recorded_or_ordered_during_a_capture, expect_arena(state))
{
    uint64_t a = rig_alloc(r, MIB(4)), b = rig_alloc(r, MIB(4));
    rig_free_behind(r, 1, MS(5), a);
    rig_launch(r, 1, MS(5), b);
    uint64_t fences_before = rig_stats(r).num_fences;
    model_capture_begin(r->model);
    rig_free(r, b);
    EXPECT(rig_alloc(r, MIB(8)), "the arena grows in a capture");
    EXPECT_EQ(rig_stats(r).num_fences, fences_before, "no record was made");
    for (int i = 0; i < MODEL_STREAMS; i++)
        EXPECT_EQ(r->model->barrier[i], 0, "no order was made");
    model_advance(r->model, MS(10));
    uint64_t c = rig_alloc(r, MIB(4));
    EXPECT_EQ(c, a, "an older fence may be queried in a capture");
    model_capture_end(r->model);
    EXPECT(rig_alloc(r, MIB(4)), "and after it all goes on");
}

RIG_TEST(a_backend_that_refuses_queries_in_captures_is_served_too,
         EXPECT_WITH(state, model->query_refused, true))
{
    uint64_t a = rig_pending(r, 1, MS(5), MIB(4));
    rig_launch(r, 1, MS(5), 0);
    model_advance(r->model, MS(50));
    model_capture_begin(r->model);
    EXPECT(rig_alloc(r, MIB(4)) != a, "nothing can be known");
    model_capture_end(r->model);
    EXPECT_EQ(rig_alloc(r, MIB(4)), a, "now it can");
}

/* Full, with work of so long on what was freed while a capture was open. */
static uint64_t fill_beside_a_capture(struct rig *r, uint64_t work_ns)
{
    r->model->backend.total_bytes = MIB(32);
    rig_start(r);
    uint64_t a = rig_alloc(r, MIB(32));
    rig_launch(r, 1, work_ns, a);
    model_capture_begin(r->model);
    rig_free(r, a);
    return a;
}

static void end_it_when_awaited(struct model *m, enum model_row row)
{
    if (row == MODEL_ROW_fence_await && m->captures)
        model_capture_end(m);
}

TEST(short_memory_awaits_the_end_of_a_capture)
{
    for (unsigned backing = 0; backing < 2; backing++)
        for (unsigned order = 0; order < 2; order++) {
            struct rig *r = rig_in(MIB(32), backing, false);
            r->model->backend.has_order = order;
            uint64_t a = fill_beside_a_capture(r, MS(5));
            r->model->hook = end_it_when_awaited;
            EXPECT_EQ(rig_alloc(r, MIB(32)), a, "natively the free had given it back");
            EXPECT_EQ(rig_stats(r).num_oom_waited, 1, "met by waiting");
            EXPECT_EQ(rig_stats(r).num_ooms, 0, "and not told to the program");
            const char *words = rig_destroy(r);
            if (words)
                fail_msg("backing %u, order %u: %s", backing, order, words);
        }
}

RIG_TEST(what_was_freed_beside_a_capture_is_waited_for_as_natively, *state)
{
    uint64_t a = fill_beside_a_capture(r, MS(5000)), before = model_now(r->model);
    r->model->hook = end_it_when_awaited;
    EXPECT_EQ(rig_alloc(r, MIB(32)), a,
              "nothing was submitted since the free: its fence is not late");
    EXPECT_EQ(model_now(r->model) - before, MS(5000),
              "so the wait is as long as the free's would have been");
}

/* Three captures begin just before the record, each as soon as the one before has ended. */
static void begin_again_before_the_record(struct model *m, enum model_row row)
{
    int *more = m->hook_arg;
    end_it_when_awaited(m, row);
    if (row == MODEL_ROW_fence_record && *more > 0 && !m->captures) {
        --*more;
        model_capture_begin(m);
    }
}

RIG_TEST(captures_in_turn_are_all_awaited, *state)
{
    int more = 3;
    uint64_t a = fill_beside_a_capture(r, MS(5));
    rig_hook(r, begin_again_before_the_record, &more);
    EXPECT_EQ(rig_alloc(r, MIB(32)), a, "at last a fence can be recorded");
    EXPECT_EQ(more, 0, "after the others");
}

/* Another thread frees one block when the driver has refused the pool memory twice. Beside the
 * record of that free it frees a second block, and begins a capture. */
struct beside {
    struct rig *rig;
    uint64_t first, second;
    int refusals, records;
};

static void free_twice_and_capture(struct model *m, enum model_row row)
{
    struct beside *b = m->hook_arg;
    end_it_when_awaited(m, row);
    if (row == MODEL_ROW_create && ++b->refusals == 2)
        rig_free(b->rig, b->first);
    if (row != MODEL_ROW_fence_record || b->refusals != 2)
        return;
    if (++b->records == 1)
        rig_free(b->rig, b->second);
    else if (b->records == 2)
        model_capture_begin(m);
}

RIG_TEST(a_capture_that_comes_before_the_wait_is_awaited_too, expect_device_of(state, MIB(32)))
{
    struct beside b = {r, rig_alloc(r, MIB(16)), rig_alloc(r, MIB(8)), 0, 0};
    rig_alloc(r, MIB(8));
    rig_launch(r, 1, MS(5000), b.first);
    rig_hook(r, free_twice_and_capture, &b);
    EXPECT_EQ(rig_alloc(r, MIB(16)), b.first, "its free had waited for the work, not the capture");
    r->model->hook = NULL;
}

RIG_TEST(a_capture_without_end_is_not_awaited_for_ever, *state)
{
    fill_beside_a_capture(r, MS(5));
    uint64_t before = model_now(r->model);
    EXPECT(!rig_alloc(r, MIB(32)), "nothing is known complete");
    EXPECT(model_now(r->model) - before <= MS(11000), "after ten seconds, and a brief wait");
    EXPECT_EQ(r->status, POOL_NOMEM, "so memory is short");
    EXPECT_EQ(r->code, MODEL_NOMEM, "in the driver's words");
    model_capture_end(r->model);
    EXPECT(rig_alloc(r, MIB(32)), "later it is there");
}

RIG_TEST(a_capture_of_the_threads_own_is_not_awaited, *state)
{
    r->model->own_capture = true;
    fill_beside_a_capture(r, MS(5));
    uint64_t before = model_now(r->model);
    EXPECT(!rig_alloc(r, MIB(32)), "its end would come after the request");
    EXPECT_EQ(model_now(r->model), before, "which is refused at once");
    model_capture_end(r->model);
    EXPECT(rig_alloc(r, MIB(32)), "later it is there");
}

static unsigned records;

static void count_records(struct model *m, enum model_row row)
{
    records += row == MODEL_ROW_fence_record;
}

RIG_TEST(a_capture_that_nobody_knows_of_is_not_awaited, expect_device_of(state, MIB(32)))
{
    uint64_t a = rig_alloc(r, MIB(32));
    rig_launch(r, 1, MS(5), a);
    r->model->unseen_capture = true;
    rig_free(r, a);
    r->model->hook = count_records;
    records = 0;
    uint64_t before = model_now(r->model);
    EXPECT(!rig_alloc(r, MIB(32)), "nothing is known complete");
    EXPECT(model_now(r->model) - before < MS(1000), "and nothing to wait for");
    EXPECT(records > 0 && records < 100, "records are not tried again without a pause");
    r->model->hook = NULL;
    r->model->unseen_capture = false;
    EXPECT(rig_alloc(r, MIB(32)), "later it is there");
}

PLAY_TESTS
