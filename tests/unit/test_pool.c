/* SPDX-License-Identifier: BSD-2-Clause */
/* The pool's policy as a program sees it: what is served from where, limits, what is tried when
 * memory is short, misuse, and a context's end. */
#include "pool/state.h"
#include "tests/unit/expect.h"

/* A large free block and a pending one of just the size: which is taken? */
RIG_TEST(pending_memory_is_looked_at_before_free_memory_is_cut, expect_arena(state))
{
    uint64_t large = rig_alloc(r, MIB(60)), wall = rig_alloc(r, MIB(2)), fit = rig_alloc(r, MIB(6));
    EXPECT(wall && rig_alloc(r, MIB(2)), "walls on both sides");
    rig_free(r, large);
    rig_trim(r, MIB(100), true);
    EXPECT_EQ(rig_stats(r).pending_bytes, 0, "the large one is free");
    rig_free(r, fit);
    EXPECT_EQ(rig_stats(r).pending_bytes, MIB(6), "the small one is pending, its work complete");
    EXPECT_EQ(rig_alloc(r, MIB(6)), fit, "it is taken");
    rig_free(r, fit);
    EXPECT_EQ(rig_alloc(r, MIB(60)), large, "one that fits exactly is taken without a look");
    EXPECT_EQ(rig_stats(r).pending_bytes, MIB(6), "which would have shown this");
}

/* The same while the work goes on: with one stream later work runs behind it anyway, with two it
 * would lose their overlap. */
POOL_TEST(pending_memory_is_ordered_before_free_memory_is_cut_for_one_stream)
{
    for (unsigned streams = 1; streams <= 2; streams++) {
        struct rig *r = streams == 1 ? expect_arena(state) : rig_create(RIG_BYTES);
        if (streams == 2)
            rig_start(r);
        uint64_t large = rig_alloc(r, MIB(60)), wall = rig_alloc(r, MIB(2)),
                 fit = rig_alloc(r, MIB(6));
        EXPECT(wall && rig_alloc(r, MIB(2)), "walls on both sides");
        rig_free(r, large);
        rig_trim(r, MIB(100), true);
        for (unsigned i = 0; i < 20; i++) {
            rig_launch(r, i % streams, 1000000, fit);
            /* For its fence: the pool then sees which streams are at work. */
            rig_free(r, rig_alloc(r, 512));
        }
        rig_free(r, fit);
        EXPECT_EQ(rig_alloc(r, MIB(6)) == fit, streams == 1,
                  "the pending block for one stream only");
        if (streams == 2)
            EXPECT(!rig_destroy(r), "all was sound");
    }
}

RIG_TEST(every_size_is_served_by_segments_once_and_again, expect_segments(state))
{
    for (uint64_t size = MIB(1) + 1; size <= MIB(48); size += size / 7 + 513) {
        uint64_t a = rig_alloc(r, size);
        EXPECT(a, "there is memory for one block");
        rig_free(r, a);
        EXPECT_EQ(rig_alloc(r, size), a, "the same segment serves the same size again");
        rig_free(r, a);
        uint64_t least = (size + MIB(2) - 1) & ~(MIB(2) - 1);
        EXPECT(rig_stats(r).reserved_bytes <= least + size / 8, "a segment has little slack");
        rig_trim(r, 0, true);
    }
}

POOL_TEST(a_context_that_goes_with_live_memory_leaves_nothing_behind)
{
    struct rig *old = expect_arena(state);
    uint64_t small = rig_alloc(old, 700), large = rig_alloc(old, MIB(5));
    model_destroy_context(old->model);
    pool_abandon(old->pool);
    EXPECT_EQ(pool_free(small), POOL_FOREIGN, "memory of a lost context is nobody's");
    EXPECT_EQ(pool_free(large), POOL_FOREIGN, "memory of a lost context is nobody's");
    EXPECT(!rig_destroy(old), "the lost pool left the driver nothing");

    /* The model hands the same addresses out again, as drivers do. */
    struct rig *r = rig_create(RIG_BYTES);
    *state = r;
    rig_start(r);
    EXPECT_EQ(rig_alloc(r, MIB(100)) & ~(MIB(128) - 1), large & ~(MIB(128) - 1), "same addresses");
    EXPECT_EQ(pool_free(large + MIB(1)), POOL_INVALID, "the old block is not seen");
    EXPECT_EQ(pool_free(large), r->blocks[0].addr == large ? POOL_OK : POOL_INVALID,
              "an old address frees nothing but a new block's start");
    r->count = r->blocks[0].addr == large ? 0 : 1;
    uint64_t again = rig_alloc(r, KIB(600));
    EXPECT(again, "there is memory");
    EXPECT_EQ(pool_free(small + 512), POOL_INVALID, "the old object is not seen");
}

RIG_TEST(requests_outside_the_limits_go_to_the_driver, *state)
{
    r->config.min_block_bytes = 4096;
    r->config.max_block_bytes = MIB(64);
    rig_start(r);
    EXPECT(!rig_alloc(r, 4095) && r->status == POOL_PASS, "smaller than MIN_BLOCK");
    EXPECT(rig_alloc(r, 4096), "just large enough");
    EXPECT(!rig_alloc(r, MIB(64) + 1) && r->status == POOL_PASS, "larger than MAX_BLOCK");
    EXPECT(rig_alloc(r, MIB(64)), "just small enough");
    EXPECT(!rig_alloc(r, RIG_BYTES + 1) && r->status == POOL_PASS, "larger than the device");
    EXPECT(!rig_alloc(r, UINT64_MAX) && r->status == POOL_PASS, "larger than anything");
}

RIG_TEST(large_blocks_are_aligned_as_their_sizes_are, expect_arena(state))
{
    const uint64_t sizes[] = {MIB(2), MIB(6), MIB(3), MIB(5) + KIB(64), MIB(7) + KIB(4)};
    const uint64_t align[] = {MIB(2), MIB(2), MIB(1), KIB(64), KIB(4)};
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 5; i++) {
            rig_alloc(r, MIB(2) + 512 * (uint64_t)(i + 1));
            EXPECT_EQ(rig_alloc(r, sizes[i]) % align[i], 0, "so a card can register it");
        }
        while (round < 2 && r->count > 2)
            rig_free(r, r->blocks[r->count / 2].addr);
    }
}

BACKINGS_TEST(more_than_max_reserved_is_never_taken)
{
    r->config.max_reserved_bytes = MIB(64);
    rig_start(r);
    for (int i = 0; i < 7; i++)
        EXPECT(rig_alloc(r, MIB(8)), "below the limit");
    EXPECT(!rig_alloc(r, MIB(10)), "beyond it");
    EXPECT_EQ(r->status, POOL_LIMIT, "which the driver is not to serve");
    EXPECT_EQ(r->code, MODEL_NOMEM, "in the driver's words");
    EXPECT_EQ(rig_stats(r).num_limit_rejections, 1, "the refusal is counted");
    EXPECT_EQ(rig_stats(r).num_ooms, 0, "but it is no shortage of the driver's");
    EXPECT(rig_alloc(r, MIB(8)), "what still fits is served");
    rig_free(r, r->blocks[2].addr);
    rig_free(r, r->blocks[5].addr);
    EXPECT(rig_alloc(r, MIB(14)), "idle memory makes room");
    EXPECT(rig_stats(r).reserved_peak_bytes <= MIB(64), "the limit was kept throughout");
}

static struct rig *small_device(void **state)
{
    struct rig *r = *state;
    r->model->backend.total_bytes = MIB(64);
    return r;
}

/* The host waits for the newest of both, in vain. */
RIG_TEST(short_memory_is_met_by_what_ends_during_a_wait_in_vain, small_device(state))
{
    r->config.backing = BACKING_SEGMENT;
    r->model->backend.has_order = false;
    r->config.reuse = REUSE_READY;
    rig_start(r);
    uint64_t a = rig_alloc(r, MIB(32)), b = rig_alloc(r, MIB(32));
    rig_free_behind(r, 1, MS(3000), a);
    rig_free_behind(r, 2, MS(1000000), b);
    EXPECT_EQ(rig_alloc(r, MIB(32)), a, "complete after 3 s");
    EXPECT_EQ(rig_stats(r).num_oom_waited, 1, "met by waiting");
}

/* Free memory of 6 MiB between live blocks, not from whole granules on. Chunks cannot be cut. */
RIG_TEST(where_memory_is_short_alignment_is_not_an_error, small_device(state))
{
    rig_start(r);
    uint64_t first = rig_alloc(r, MIB(1) + KIB(512)), odd = rig_alloc(r, MIB(6) + 512);
    while (rig_alloc(r, MIB(1) + KIB(512)))
        ;
    rig_free(r, odd);
    EXPECT(rig_alloc(r, MIB(6)), "the memory is there");
    EXPECT(first, "beside it");
}

RIG_TEST(other_errors_of_the_driver_pass_the_request_on, expect_arena(state))
{
    model_fail(r->model, MODEL_ROW_create, 1, MODEL_BROKEN);
    EXPECT(!rig_alloc(r, MIB(4)), "the pool has nothing");
    EXPECT_EQ(r->status, POOL_PASS, "the driver answers for itself");
    EXPECT_EQ(rig_stats(r).num_backend_failures, 1, "counted");
    EXPECT_EQ(rig_stats(r).num_ooms, 0, "it is no shortage");
}

/* 64 blocks of 8 MiB, each in use by one of four streams; what the pool has then beyond live_bytes
 * that the program holds. */
static uint64_t run_ahead(struct rig *r, uint64_t live_bytes)
{
    if (live_bytes)
        rig_alloc(r, live_bytes);
    for (unsigned i = 0; i < 64; i++) {
        rig_pending(r, i % 4, MS(100), MIB(8));
        rig_launch(r, (i + 1) % 4, MS(1), 0);
    }
    struct pool_stats s = rig_stats(r);
    EXPECT(s.num_fence_waits > 0, "the host waited at last");
    EXPECT_EQ(s.num_fence_orders, 0, "and the streams kept their overlap");
    return s.reserved_bytes - live_bytes;
}

RIG_TEST(with_several_streams_memory_is_spent_before_overlap, expect_arena(state))
{
    uint64_t more = run_ahead(r, 0);
    EXPECT(more >= MIB(56) && more <= MIB(80), "a small program, 64 MiB");
}

POOL_TEST(what_is_spent_on_overlap_is_a_part_of_the_program)
{
    uint64_t more = run_ahead(expect_arena(expect_capacity(state, GIB(8))), MIB(600));
    EXPECT(more >= MIB(136) && more <= MIB(168), "a quarter of 600 MiB");
    more = run_ahead(expect_arena(expect_capacity(state, GIB(8))), GIB(2));
    EXPECT(more >= MIB(232) && more <= MIB(272), "no more than 256 MiB");
}

/* The work takes longer than a request waits for it. */
RIG_TEST(a_wait_in_vain_is_not_made_again, expect_arena(state))
{
    for (unsigned i = 0; i < 40; i++) {
        rig_pending(r, i % 4, MS(1000000), MIB(8));
        rig_launch(r, (i + 1) % 4, MS(1), 0);
    }
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_fence_wait), 1, "one request waited");
    EXPECT(rig_stats(r).num_fence_orders > 4, "the others were served behind that work");
    model_drain(r->model);
    for (unsigned i = 0; i < 40; i++) {
        rig_pending(r, i % 4, MS(1000000), MIB(8));
        rig_launch(r, (i + 1) % 4, MS(1), 0);
    }
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_fence_wait), 2, "once it is complete, one more did");
}

RIG_TEST(statistics_add_up, expect_arena(state))
{
    uint64_t a = rig_alloc(r, MIB(4) + 1), b = rig_alloc(r, 700);
    struct pool_stats s = rig_stats(r);
    EXPECT_EQ(s.requested_bytes, MIB(4) + 1 + 700, "as asked for");
    EXPECT_EQ(s.allocated_bytes, MIB(4) + 512 + 1024, "as handed out");
    EXPECT_EQ(s.live_blocks, 2, "two blocks");
    EXPECT_EQ(s.num_allocs, 2, "two requests");
    EXPECT_EQ(s.num_device_alloc, 2, "each took memory");
    EXPECT_EQ(s.num_hits, 0, "so none was a hit");
    rig_free(r, a);
    rig_free(r, b);
    s = rig_stats(r);
    EXPECT_EQ(s.num_frees, 2, "two frees");
    EXPECT_EQ(s.live_blocks_peak, 2, "peaks stay");
    EXPECT_EQ(s.allocated_peak_bytes, MIB(4) + 512 + 1024, "peaks stay");
    EXPECT_EQ(s.requested_peak_bytes, MIB(4) + 1 + 700, "peaks stay");
    EXPECT_EQ(s.reserved_bytes, model_used_bytes(r->model), "reserved is what the driver gave");
    EXPECT_EQ(s.reserved_peak_bytes, MIB(8), "6 MiB for the one, 2 for the other");
}

BACKINGS_TEST(an_abandoned_pool_passes_everything_on)
{
    rig_start(r);
    uint64_t a = rig_alloc(r, MIB(4));
    rig_launch(r, 1, MS(1), a);
    rig_free(r, rig_alloc(r, 5000));
    model_destroy_context(r->model);
    pool_abandon(r->pool);
    pool_abandon(r->pool);
    EXPECT_EQ(model_used_bytes(r->model), 0, "memory that outlives its context is given back");
    EXPECT(!rig_alloc(r, MIB(4)) && r->status == POOL_PASS, "large requests");
    EXPECT(!rig_alloc(r, 100) && r->status == POOL_PASS, "small requests");
    EXPECT_EQ(pool_trim(r->pool, &(struct pool_trim){0}), 0, "nothing to trim");
    EXPECT_EQ(pool_tick(r->pool, NULL), 0, "nothing to look at");
    pool_submit(r->pool, 1);
    pool_leave_single_stream(r->pool);
    EXPECT_EQ(rig_stats(r).reserved_bytes, 0, "nothing is reserved");
}

RIG_TEST(what_was_shared_is_not_handed_out_again_on_one_stream_either, expect_single(state))
{
    static const uint64_t sizes[] = {700, KIB(300), MIB(4)};
    for (int turn = 0; turn < 4; turn++)
        for (int i = 0; i < 3; i++) {
            uint64_t a = rig_alloc(r, sizes[i]);
            rig_expose(r, a);
            rig_free(r, a);
            EXPECT(rig_alloc(r, sizes[i]) != a && rig_alloc(r, sizes[i]) != a,
                   "somebody outside may use it");
            EXPECT_SOUND(r);
        }
    EXPECT_EQ(rig_stats(r).num_exposed, 12, "they are counted");
}

/* In the driver's hands, before anything is there: it counts, so that all threads together keep
 * MAX_RESERVED. */
static void note_planned(struct model *m, enum model_row row)
{
    uint64_t *planned_bytes = m->hook_arg;
    struct pool *p = (struct pool *)(uintptr_t)planned_bytes[1];
    if (row != MODEL_ROW_create && row != MODEL_ROW_segment_alloc)
        return;
    LOCKED(p, planned_bytes[0] = p->planned_bytes);
}

BACKINGS_TEST(what_is_being_taken_from_the_driver_counts)
{
    rig_start(r);
    uint64_t planned_bytes[2] = {0, (uintptr_t)r->pool};
    rig_hook(r, note_planned, planned_bytes);
    rig_alloc(r, MIB(6));
    r->model->hook = NULL;
    EXPECT_EQ(planned_bytes[0], MIB(6), "until it is reserved");
}

PLAY_TESTS
