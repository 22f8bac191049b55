/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/peak.c: what reserved memory consisted of when there was most of it. */
#include "pool/state.h"
#include "pool/tuning.h"
#include "tests/unit/expect.h"

static uint64_t sum(const struct pool_stats *s)
{
    return s->at_peak_requested_bytes + s->at_peak_rounding_bytes + s->at_peak_pending_bytes +
           s->at_peak_whole_bytes + s->at_peak_cut_bytes + s->at_peak_small_bytes;
}

/* Two blocks lie on three granules of their own, one of 100 bytes in a slab on a fourth. */
RIG_TEST(live_memory_is_told_from_its_rounding_and_what_is_free, expect_single(state))
{
    rig_alloc(r, 100);
    uint64_t a = rig_alloc(r, MIB(3) - 100);
    rig_alloc(r, MIB(2) + KIB(512) - 200);
    struct pool_stats s = rig_stats(r);
    EXPECT_EQ(sum(&s), s.reserved_peak_bytes, "the rows add up");
    EXPECT_EQ(s.at_peak_requested_bytes, s.requested_bytes, "the last request is live");
    EXPECT_EQ(s.at_peak_rounding_bytes, s.allocated_bytes - s.requested_bytes, "rounding");
    EXPECT_EQ(s.at_peak_cut_bytes, KIB(512), "behind the last block");
    EXPECT_EQ(s.at_peak_small_bytes, MIB(2) - (s.allocated_bytes - MIB(5) - KIB(512)),
              "beside the object");
    rig_free(r, a);
    rig_alloc(r, MIB(2));
    EXPECT_EQ(rig_stats(r).at_peak_requested_bytes, s.at_peak_requested_bytes,
              "a request without growth changes nothing");
}

/* A chunk that another block holds cannot move; whole ones can. */
RIG_TEST(free_memory_is_told_by_whether_its_chunk_could_move,
         expect_single(expect_capacity(state, GIB(16))))
{
    uint64_t a = rig_alloc(r, MIB(8));
    rig_alloc(r, MIB(4));
    uint64_t b = rig_alloc(r, MIB(3));
    rig_alloc(r, MIB(3));
    rig_alloc(r, MIB(1024));
    rig_free(r, a);
    rig_free(r, b);
    rig_empty_magazines(r);
    model_advance(r->model, MS(1));
    time_budget_is_left(&r->pool->time_budget, model_now(r->model));
    time_budget_spend(&r->pool->time_budget, SECOND_NS, false);
    rig_alloc(r, MIB(30));
    struct pool_stats s = rig_stats(r);
    EXPECT_EQ(s.num_chunk_moves, 0, "the budget was used up");
    EXPECT(s.num_refused_moves > 0, "so the pool did not look for chunks to move");
    EXPECT_EQ(s.at_peak_refused_moves, s.num_refused_moves, "as it was then");
    EXPECT_EQ(sum(&s), s.reserved_peak_bytes, "the rows add up");
    EXPECT_EQ(s.at_peak_whole_bytes, MIB(8), "a chunk of its own");
    EXPECT_EQ(s.at_peak_cut_bytes, s.reserved_bytes - MIB(1061) - MIB(8), "all other that is free");
    EXPECT(s.at_peak_cut_bytes >= MIB(3), "a part of a chunk is in it");
}

POOL_TEST(pending_memory_is_told_and_the_time)
{
    struct rig *r = *state;
    r->config.reuse = REUSE_READY;
    expect_arena(state);
    uint64_t a = rig_alloc(r, MIB(8));
    rig_launch(r, 1, MS(10), a);
    rig_launch(r, 2, MS(10), 0);
    rig_free(r, a);
    model_advance(r->model, MS(3));
    rig_alloc(r, MIB(20));
    struct pool_stats s = rig_stats(r);
    EXPECT_EQ(s.at_peak_pending_bytes, MIB(8), "its work still runs");
    EXPECT_EQ(sum(&s), s.reserved_peak_bytes, "the rows add up");
    EXPECT(s.at_peak_running_ns >= MS(3) && s.at_peak_running_ns < MS(10), "since the pool began");
}

RIG_TEST(segments_add_up_too, expect_segments(state))
{
    rig_alloc(r, 100);
    rig_freed(r, MIB(40));
    rig_empty_magazines(r);
    rig_alloc(r, MIB(90));
    struct pool_stats s = rig_stats(r);
    EXPECT_EQ(sum(&s), s.reserved_peak_bytes, "the rows add up");
    EXPECT_EQ(s.at_peak_requested_bytes, MIB(90) + 100, "the last request is live");
}

/* Also of the segment that the last request takes: it is the request's, whole. */
RIG_TEST(the_slack_of_segments_is_rounding, expect_segments(state))
{
    rig_alloc(r, MIB(90) + 100);
    struct pool_stats s = rig_stats(r);
    EXPECT(s.allocated_bytes > MIB(91), "the segment is larger");
    EXPECT_EQ(s.at_peak_rounding_bytes, s.allocated_bytes - s.requested_bytes, "as it is now");
    EXPECT_EQ(s.at_peak_cut_bytes, 0, "nothing is free");
}

BACKINGS_TEST(memory_taken_beforehand_is_a_peak)
{
    r->config.prealloc_bytes = MIB(24);
    rig_start(r);
    EXPECT_SOUND(r);
    struct pool_stats s = rig_stats(r);
    EXPECT_EQ(s.at_peak_whole_bytes, MIB(24), "all of it is free");
    EXPECT_EQ(sum(&s), s.reserved_peak_bytes, "the rows add up");
}

/* Idle memory in chunks that are cut, so that new chunks are fine; then a request of more than the
 * device has. */
RIG_TEST(a_request_that_fails_is_not_live_at_the_peak, expect_single(state))
{
    uint64_t a[16];
    rig_alloc_all(r, a, 16, MIB(10));
    rig_free_every(r, a, 0, 16, 2);
    rig_alloc_all(r, NULL, 8, MIB(6));
    model_fail(r->model, MODEL_ROW_map, 3, MODEL_BROKEN);
    EXPECT_EQ(rig_alloc(r, MIB(64)), 0, "the third chunk cannot be mapped");
    struct pool_stats s = rig_stats(r);
    EXPECT(s.reserved_bytes > MIB(160), "two are there");
    EXPECT_EQ(s.at_peak_requested_bytes, s.requested_bytes, "the request holds nothing");
    EXPECT_EQ(sum(&s), s.reserved_peak_bytes, "the rows add up");
}

PLAY_TESTS
