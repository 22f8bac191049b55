/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/release.c: idle memory back to the driver, on request. */
#include "pool/release.h"
#include "tests/unit/expect.h"

RIG_TEST(live_memory_stays, expect_arena(state))
{
    uint64_t keep = rig_alloc(r, MIB(4)), small = rig_alloc(r, 100);
    rig_alloc_all(r, NULL, 10, MIB(8));
    while (r->count > 2)
        rig_free(r, r->blocks[2].addr);
    EXPECT_EQ(rig_trim(r, 0, true), MIB(80), "all that is idle");
    rig_launch(r, 1, 0, keep);
    rig_launch(r, 1, 0, small);
    EXPECT_SOUND(r);
    EXPECT_EQ(rig_stats(r).num_flushes, 1, "the request is counted");
    EXPECT_EQ(rig_stats(r).flushed_bytes, MIB(80), "with what it gave");
}

RIG_TEST(many_chunks_go_back_some_at_a_time, expect_arena(state))
{
    rig_alloc_all(r, NULL, 200, MIB(2));
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_create), 200, "each with a chunk of its own");
    rig_free_all(r);
    EXPECT_EQ(rig_trim(r, 0, true), MIB(400), "all of it");
    EXPECT_EQ(r->model->unmaps, 4, "64, 64, 64 and 8, with the lock free in between");
}

RIG_TEST(what_is_to_be_kept_is_kept, expect_arena(state))
{
    rig_alloc_all(r, NULL, 10, MIB(8));
    rig_free_all(r);
    rig_trim(r, MIB(30), true);
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(24), "30 MiB, in whole chunks");
    EXPECT_EQ(rig_trim(r, MIB(30), true), 0, "the next request finds nothing to do");
}

RIG_TEST(pending_memory_is_waited_for_if_asked, expect_arena(state))
{
    rig_pending(r, 1, MS(30), MIB(8));
    EXPECT_EQ(rig_trim(r, 0, false), 0, "its work is running");
    EXPECT_EQ(rig_stats(r).num_fence_waits, 0, "and nobody waits");
    EXPECT_EQ(rig_trim(r, 0, true), MIB(8), "waited for");
    EXPECT_EQ(rig_stats(r).flush_ns, MS(30), "for as long as it took");
}

/* With one stream nothing is pending. */
RIG_TEST(what_can_go_back_only_after_its_work_is_told, expect_single(state))
{
    uint64_t a = rig_alloc(r, MIB(8));
    rig_alloc(r, MIB(2));
    EXPECT_EQ(pool_behind_work_bytes(r->pool), 0, "all is live");
    rig_free_behind(r, 0, MS(30), a);
    EXPECT_EQ(rig_trim(r, 0, false), 0, "its work is running");
    EXPECT_EQ(rig_stats(r).pending_bytes, 0, "it could be handed out");
    EXPECT_EQ(pool_behind_work_bytes(r->pool), MIB(8), "but not given back");
    EXPECT_EQ(rig_trim(r, MIB(8), true), 0, "waited for, and kept");
    EXPECT_EQ(pool_behind_work_bytes(r->pool), 0, "it is idle, and no work uses it any more");
    EXPECT_EQ(rig_trim(r, 0, false), MIB(8), "so it can go back");
}

RIG_TEST(the_wait_is_bounded, expect_arena(state))
{
    uint64_t a = rig_alloc(r, MIB(8));
    struct pool_trim t = {.wait_ns = MS(10)};
    rig_free_behind(r, 1, MS(30), a);
    uint64_t before = model_now(r->model);
    EXPECT_EQ(pool_trim(r->pool, &t), 0, "not complete in time");
    EXPECT_EQ(model_now(r->model) - before, MS(10), "no longer than asked");
}

RIG_TEST(a_wait_in_turns_is_for_what_was_freed_before_it, expect_arena(state))
{
    uint64_t a = rig_alloc(r, MIB(8)), b = rig_alloc(r, MIB(8));
    EXPECT(pool_has_settled(r->pool, pool_settle(r->pool)), "nothing was freed");
    rig_free_behind(r, 1, MS(30), a);
    uint64_t before = model_now(r->model), mark = pool_settle(r->pool);
    EXPECT(!pool_has_settled(r->pool, mark), "its work is running");
    EXPECT(model_now(r->model) - before < MS(1), "and nobody waits");
    model_advance(r->model, MS(20));
    rig_free_behind(r, 1, MS(30), b);
    EXPECT(!pool_has_settled(r->pool, mark), "still");
    model_advance(r->model, MS(20));
    EXPECT(pool_has_settled(r->pool, mark), "that of the later free does not matter");
    EXPECT(!pool_has_settled(r->pool, pool_settle(r->pool)), "but to a later wait");
    EXPECT_EQ(rig_trim(r, 0, false), MIB(8), "what was waited for");
    r->model->backend.has_order = false;
    EXPECT(pool_has_settled(r->pool, pool_settle(r->pool)), "where only a wait tells");
}

/* The call whose failure asks for it may be told of it late: memory that just went back counts as
 * well. */
RIG_TEST(a_driver_without_memory_gets_what_is_idle_then_what_is_pending, expect_arena(state))
{
    uint64_t a = rig_alloc(r, MIB(8)), b = rig_alloc(r, MIB(8));
    EXPECT(!pool_release(r->pool, POOL_RELEASE_IDLE), "nothing is idle");
    EXPECT(!pool_release(r->pool, POOL_RELEASE_PENDING), "nor freed at all");
    rig_launch(r, 1, 0, a);
    rig_launch(r, 2, MS(3000), b);
    rig_free(r, a);
    rig_free(r, b);
    uint64_t before = model_now(r->model);
    pool_release(r->pool, POOL_RELEASE_IDLE);
    EXPECT_EQ(model_now(r->model), before, "no wait");
    EXPECT(pool_release(r->pool, POOL_RELEASE_PENDING), "what was freed behind work");
    EXPECT_EQ(model_now(r->model) - before, MS(3000), "is waited for");
    EXPECT_EQ(rig_stats(r).reserved_bytes, 0, "all of it");
    EXPECT(pool_release(r->pool, POOL_RELEASE_IDLE), "it went back just now");
    model_advance(r->model, MS(200));
    EXPECT(!pool_release(r->pool, POOL_RELEASE_IDLE), "long ago");
}

RIG_TEST(the_wait_of_a_driver_without_memory_is_bounded, expect_arena(state))
{
    rig_pending(r, 1, MS(30000), MIB(8));
    uint64_t before = model_now(r->model);
    EXPECT(!pool_release(r->pool, POOL_RELEASE_PENDING), "its work takes too long");
    EXPECT(model_now(r->model) - before <= MS(11000), "10 s, and one for what came later");
}

/* Each fence is recorded at the submission after the free. */
RIG_TEST(what_is_complete_goes_back_beside_longer_work, expect_arena(state))
{
    uint64_t a = rig_alloc(r, MIB(8)), b = rig_alloc(r, MIB(8));
    rig_free_behind(r, 1, MS(3000), a);
    rig_free_behind(r, 2, MS(1000000), b);
    EXPECT(pool_release(r->pool, POOL_RELEASE_PENDING), "the first is complete after 3 s");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(8), "it went back");
}

RIG_TEST(a_loss_is_counted_once, expect_arena(state))
{
    pool_lose(r->pool);
    pool_lose(r->pool);
    EXPECT_EQ(rig_stats(r).num_backend_failures, 1, "not twice");
    r->lost = true;
}

RIG_TEST(a_flush_synchronises_nothing_in_an_arena, expect_arena(state))
{
    rig_freed(r, MIB(8));
    rig_launch(r, 1, MODEL_FOREVER, 0);
    EXPECT_EQ(rig_trim(r, 0, false), MIB(8), "idle memory goes back beside an endless kernel");
}

RIG_TEST(a_flush_in_a_capture_gives_what_is_known_idle, expect_arena(state))
{
    uint64_t a = rig_alloc(r, MIB(8)), b = rig_alloc(r, MIB(6));
    rig_free(r, a);
    rig_launch(r, 1, 0, 0);
    model_capture_begin(r->model);
    rig_free(r, b);
    EXPECT_EQ(rig_trim(r, 0, false), MIB(8), "what was fenced before");
    model_capture_end(r->model);
    EXPECT_EQ(rig_trim(r, 0, false), MIB(6), "the rest after it");
}

/* The second segment of two is on its way back when a call begins that may end the context, and
 * fails. exposed: both are, so that frees give them back. */
static void end_begins(struct model *m, uint64_t addr)
{
    atomic_store(&m->backend.gone, true);
    m->hook_freed = NULL;
}

static void look_at_an_end_that_fails(struct rig *r, bool exposed)
{
    uint64_t a = rig_alloc(r, MIB(8)), b = rig_alloc(r, MIB(8));
    if (exposed) {
        rig_expose(r, a);
        rig_expose(r, b);
    }
    rig_launch(r, 1, MS(50), b);
    r->model->hook_freed = end_begins;
    rig_free(r, a);
    rig_free(r, b);
    rig_trim(r, 0, true);
    EXPECT_EQ(model_used_bytes(r->model), MIB(8), "the other one is not given back");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(8), "and not forgotten");
    EXPECT_SOUND(r);
    atomic_store(&r->model->backend.gone, false);
    EXPECT(rig_alloc(r, MIB(8)), "the context lives on");
    EXPECT_EQ(model_used_bytes(r->model), exposed ? MIB(16) : MIB(8),
              "only memory that nobody knows is handed out again");
    rig_free_all(r);
    rig_trim(r, 0, true);
    EXPECT_EQ(rig_stats(r).reserved_bytes, 0, "all of it goes back");
    EXPECT_EQ(model_used_bytes(r->model), 0, "to the driver");
    EXPECT_SOUND(r);
}

POOL_TEST_IS(segments_outlast_an_end_of_the_context_that_fails,
             look_at_an_end_that_fails(expect_segments(state), false))
POOL_TEST_IS(exposed_segments_outlast_an_end_of_the_context_that_fails,
             look_at_an_end_that_fails(expect_segments(state), true))

/* An unmap may answer an error of other work and have done its own. What it names is never handed
 * out as if it were there. */
RIG_TEST(an_unmap_that_fails_may_have_done_its_own, expect_arena(state))
{
    rig_free(r, rig_alloc(r, MIB(8)));
    rig_settle(r);
    r->model->work_code = MODEL_BROKEN;
    rig_trim(r, 0, true);
    r->model->work_code = 0;
    EXPECT(rig_alloc(r, MIB(8)), "a block");
    EXPECT_EQ(model_used_bytes(r->model), MIB(8), "its memory is there");
    EXPECT_SOUND(r);
}

/* A large request takes two chunks, and the driver maps one of them, or none. */
TEST(a_request_that_fails_keeps_nothing)
{
    for (unsigned refused = 2; refused > 0; refused--) {
        struct rig *r = rig_create(GIB(8));
        rig_start(r);
        model_fail_many(r->model, MODEL_ROW_map, refused, UINT64_MAX, r->model->backend.nomem_code);
        EXPECT_EQ(rig_alloc(r, GIB(3)), 0, "a chunk cannot be mapped");
        EXPECT_EQ(rig_stats(r).num_device_alloc > 0, refused > 1, "chunks that came");
        EXPECT_EQ(rig_stats(r).reserved_bytes, 0, "the driver has it for the program's own call");
        EXPECT_EQ(model_used_bytes(r->model), 0, "all of it");
        EXPECT_SOUND(r);
        EXPECT_ENDS(r);
    }
}

static unsigned num_maps;

static void count_maps(struct model *m, enum model_row row)
{
    num_maps += row == MODEL_ROW_map;
}

/* .. or has memory for one of them: that one is not mapped. */
TEST(what_the_driver_lacks_is_not_mapped_in_part)
{
    struct rig *r = rig_create(GIB(8));
    rig_start(r);
    num_maps = 0;
    r->model->other_bytes = GIB(6);
    r->model->hook = count_maps;
    EXPECT_EQ(rig_alloc(r, GIB(3)), 0, "there is too little memory");
    r->model->hook = NULL;
    EXPECT_EQ(num_maps, 0, "mappings");
    EXPECT_EQ(rig_stats(r).num_device_alloc, 0, "no chunk came");
    EXPECT_SOUND(r);
    r->model->other_bytes = 0;
    EXPECT_EQ(model_used_bytes(r->model), 0, "the driver has it for the program's own call");
    EXPECT_ENDS(r);
}

PLAY_TESTS
