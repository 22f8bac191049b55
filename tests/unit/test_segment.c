/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/segment.c: the driver's own allocations, cached whole. */
#include "pool/segment.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

static struct rig *segments_on_a_device_of(void **state, uint64_t capacity_bytes)
{
    return expect_segments(expect_capacity(state, capacity_bytes));
}

TEST(segments_have_little_slack)
{
    for (uint64_t size = MIB(2); size < GIB(4); size += size / 5 + 12345) {
        uint64_t bytes = segment_new_bytes(size);
        EXPECT(bytes >= size && bytes % MIB(2) == 0, "whole granules that hold the request");
        EXPECT(bytes - size < MIB(2) || (bytes - size) * 8 <= size,
               "an eighth, or less than a granule");
        EXPECT(segment_fits(bytes, size), "a new segment serves what it was taken for");
        EXPECT(segment_fits(size, size), "an exact one is no waste");
        EXPECT(!segment_fits(size - 512, size), "a smaller one does not hold it");
        EXPECT(!segment_fits(bytes + size / 4, size), "a much larger one is waste");
    }
}

RIG_TEST(a_large_block_has_its_own_segment, expect_segments(state))
{
    uint64_t a = rig_alloc(r, MIB(6)), b = rig_alloc(r, MIB(6));
    struct pool_block f;
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_segment_alloc), 2, "one each");
    EXPECT(pool_lookup(a, &f) == POOL_OK && f.segment_addr == a,
           "the segment starts with the block");
    EXPECT(pool_lookup(b + MIB(5), &f) == POOL_OK && f.segment_addr == b, "also seen from inside");
    EXPECT_EQ(f.size_bytes, MIB(6), "the whole of it");
}

RIG_TEST(small_blocks_share_a_segment, expect_segments(state))
{
    uint64_t first = rig_alloc(r, 100);
    struct pool_block f;
    for (int i = 0; i < 8; i++) {
        uint64_t a = rig_alloc(r, (uint64_t)(i + 1) * 2000);
        EXPECT_EQ(pool_lookup(a, &f), POOL_OK, "it is found");
        EXPECT_EQ(f.segment_addr, first & ~(MIB(2) - 1), "in the same 2 MiB");
    }
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_segment_alloc), 1, "one segment serves them");
}

/* 1.1 MiB take 2 MiB of a segment: a few such blocks have one each, a program full of them
 * shares. */
RIG_TEST(blocks_that_round_badly_share, expect_segments(state))
{
    uint64_t at[256], size = MIB(1) + MIB(1) / 10;
    struct pool_block f;
    rig_alloc_all(r, at, 256, size);
    EXPECT(pool_lookup(at[0], &f) == POOL_OK && f.segment_addr == at[0],
           "the first have their own");
    EXPECT_EQ(pool_lookup(at[255] + size - 1, &f), POOL_OK, "a shared one is found from its end");
    EXPECT(f.addr == at[255] && f.size_bytes < size + 512, "and is rounded to 512 bytes");
    EXPECT(rig_stats(r).reserved_bytes < 256 * size * 12 / 10, "in all less than a fifth is lost");
    EXPECT_SOUND(r);
    rig_free_every(r, at, 0, 256, 1);
    uint64_t large = rig_alloc(r, MIB(6));
    EXPECT(pool_lookup(large, &f) == POOL_OK && f.segment_addr == large, "larger ones never share");
    rig_free(r, large);
    pool_trim(r->pool, &(struct pool_trim){0});
    EXPECT_EQ(rig_stats(r).reserved_bytes, 0, "everything can be given back");
}

RIG_TEST(a_cached_segment_serves_with_little_slack_only, expect_segments(state))
{
    uint64_t a = rig_freed(r, MIB(36));
    EXPECT_EQ(rig_alloc(r, MIB(32)), a, "an eighth of slack is taken");
    rig_free(r, a);
    struct pool_block f;
    EXPECT_EQ(pool_lookup(rig_alloc(r, MIB(20)), &f), POOL_OK, "there is memory");
    EXPECT_EQ(f.size_bytes, MIB(20), "half of it is not");
}

RIG_TEST(pending_segments_serve_behind_their_work_with_little_slack, expect_segments(state))
{
    uint64_t a = rig_alloc(r, MIB(36)), b = rig_alloc(r, MIB(20));
    rig_launch(r, 1, MS(20), a);
    rig_launch(r, 1, MS(20), b);
    rig_free(r, a);
    rig_free(r, b);
    EXPECT_EQ(rig_alloc(r, MIB(20)), b, "not the larger one, though it was freed before");
    EXPECT_EQ(rig_alloc(r, MIB(34)), a, "which serves what fits it");
}

RIG_TEST(segments_go_back_before_the_peak_is_passed, expect_segments(state))
{
    /* One block after the other, each of another size: none serves the next. */
    for (int i = 0; i < 12; i++)
        rig_pending(r, 1, 0, MIB(40) - MIB(3) * (uint64_t)i);
    EXPECT(rig_stats(r).reserved_peak_bytes <= MIB(45), "an eighth over what the program held");
}

RIG_TEST(no_segment_goes_back_while_a_kernel_runs, expect_segments(state))
{
    rig_freed(r, MIB(40));
    rig_launch(r, 1, MODEL_FOREVER, 0);
    EXPECT(rig_alloc(r, MIB(20)), "the pool grows instead");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(60), "since cuMemFree would wait for ever");
}

RIG_TEST(segments_go_back_beside_a_kernel_where_they_can, expect_segments(state))
{
    r->model->backend.frees_beside = true;
    rig_pending(r, 1, MS(1), MIB(40));
    model_advance(r->model, MS(2));
    rig_launch(r, 1, MODEL_FOREVER, 0);
    EXPECT(rig_alloc(r, MIB(16)), "there is memory");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(16), "the other segment went back");
}

RIG_TEST(no_segment_goes_back_below_its_own_work, expect_segments(state))
{
    r->model->backend.frees_beside = true;
    rig_pending(r, 1, MS(20), MIB(40));
    EXPECT(rig_alloc(r, MIB(16)), "there is memory");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(56), "the other segment is still in use");
}

RIG_TEST(an_exposed_segment_waits_for_its_work, expect_segments(state))
{
    r->model->backend.frees_beside = true;
    uint64_t a = rig_alloc(r, MIB(6));
    rig_expose(r, a);
    rig_launch(r, 1, MS(3), a);
    uint64_t now_ns = model_now(r->model);
    rig_free(r, a);
    EXPECT(model_now(r->model) >= now_ns + MS(3), "though an idle one would go back beside it");
}

/* Blocks of less and less, one after the other, below work in flight. */
static void go_through_sizes(struct rig *r, uint64_t work_ns)
{
    for (int i = 0; i < 20; i++)
        rig_pending(r, 1, work_ns, MIB(60) - MIB(2) * (uint64_t)i);
}

RIG_TEST(a_free_pays_what_growing_below_work_in_flight_owes, expect_segments(state))
{
    rig_launch(r, 2, MS(20), 0);
    go_through_sizes(r, MS(20));
    EXPECT(rig_stats(r).reserved_peak_bytes <= MIB(60 + 60), "the peak and a block");
    EXPECT(rig_stats(r).num_device_free >= 2, "frees gave the others back");
    EXPECT(!atomic_load(&pool_release_due), "nothing is owed");
}

/* Takes and frees ever smaller blocks below work that never lets the GPU idle, with so much of the
 * time budget overdrawn. Returns what is idle at most beyond the program's peak of 80 MiB. */
static uint64_t worst_debt_bytes(struct rig *r, uint64_t overdrawn_ns)
{
    uint64_t worst_bytes = 0;
    rig_alloc(r, MIB(40));
    rig_free(r, rig_alloc(r, MIB(40)));
    time_budget_is_left(&r->pool->time_budget, model_now(r->model));
    time_budget_spend(&r->pool->time_budget, overdrawn_ns + MS(20), false);
    for (uint64_t size = MIB(34); size >= MIB(4); size -= size / 3) {
        rig_pending(r, 1, MS(1), size);
        uint64_t have = rig_stats(r).reserved_bytes;
        worst_bytes = have - MIB(80) > worst_bytes && have > MIB(80) ? have - MIB(80) : worst_bytes;
    }
    EXPECT_SOUND(r);
    return worst_bytes;
}

POOL_TEST(a_program_that_overdraws_may_owe_more_and_more)
{
    const struct {
        uint64_t overdrawn_ns, most_bytes;
    } cases[] = {{0, MIB(10)}, {MS(600), MIB(20)}, {MS(1100), MIB(40)}, {MS(100000), MIB(80)}};
    for (int i = 0; i < 4; i++) {
        struct rig *r = segments_on_a_device_of(state, GIB(4));
        uint64_t worst = worst_debt_bytes(r, cases[i].overdrawn_ns);
        EXPECT(worst <= cases[i].most_bytes, "no more than that part of the peak");
        EXPECT(i == 0 || worst > cases[i - 1].most_bytes || i == 3, "but more than those in time");
    }
}

POOL_TEST(with_half_of_the_device_a_quarter_is_owed_at_most)
{
    struct rig *r = segments_on_a_device_of(state, MIB(160));
    EXPECT(worst_debt_bytes(r, MS(100000)) <= MIB(20), "however much is overdrawn");
}

RIG_TEST(a_free_waits_as_long_as_the_gpu_gets_on, expect_segments(state))
{
    uint64_t at[8];
    rig_alloc_all(r, at, 8, MIB(10));
    for (int i = 0; i < 8; i++) {
        rig_launch(r, 0, MS(400), at[i]); /* 3.2 s in all */
        if (i < 7)
            rig_free(r, at[i]);
    }
    rig_alloc(r, MIB(40));
    EXPECT(atomic_load(&pool_release_due), "it is half as much again");
    rig_free(r, at[7]);
    EXPECT(rig_stats(r).reserved_bytes <= MIB(80), "the rest went back");
}

RIG_TEST(no_debt_is_paid_below_a_kernel_that_never_ends, expect_segments(state))
{
    rig_alloc(r, MIB(40));
    rig_alloc(r, MIB(30));
    rig_free_all(r);
    rig_launch(r, 1, 0, 0);
    rig_trim(r, GIB(1), true);
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(70), "two segments are idle");
    rig_launch(r, 2, MODEL_FOREVER, 0);
    uint64_t b = rig_alloc(r, MIB(16)), c = rig_alloc(r, MIB(10));
    EXPECT(atomic_load(&pool_release_due), "more than the program ever needed");
    rig_free(r, b);
    EXPECT_EQ(rig_stats(r).num_device_free, 0, "the free gave up after a moment");
    uint64_t now_ns = model_now(r->model);
    rig_alloc(r, MIB(6));
    EXPECT(atomic_load(&pool_release_due), "still more");
    rig_free(r, c);
    EXPECT_EQ(model_now(r->model), now_ns, "the next does not wait again");
    EXPECT_EQ(rig_stats(r).num_device_free, 0, "nor give anything back");
}

/* 260 MiB at the peak, and one idle segment of 60 below work in flight. */
static uint64_t leave_one_idle(struct rig *r, uint64_t work_ns)
{
    rig_alloc_all(r, NULL, 5, MIB(40));
    uint64_t a = rig_pending(r, 0, work_ns, MIB(60));
    return a;
}

RIG_TEST(a_larger_segment_serves_before_the_peak_is_passed, segments_on_a_device_of(state, GIB(4)))
{
    uint64_t a = leave_one_idle(r, MS(20));
    EXPECT_EQ(rig_alloc(r, MIB(44)), a, "rather than 44 MiB more");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(260), "nothing is taken");
    rig_free(r, a);
    EXPECT(rig_alloc(r, MIB(28)) != a, "not one of more than twice the size");
}

RIG_TEST(slack_is_a_small_part_of_the_peak, segments_on_a_device_of(state, GIB(4)))
{
    uint64_t at[4];
    rig_alloc_all(r, at, 4, MIB(60)); /* 240 MiB: slack of 30 */
    for (int i = 0; i < 4; i++)
        rig_free_behind(r, 0, MS(20), at[i]);
    rig_alloc_all(r, NULL, 4, MIB(46));
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(240 + 2 * 46), "two of four have 14 MiB of it");
}

RIG_TEST(with_half_of_the_device_there_is_no_slack, segments_on_a_device_of(state, MIB(600)))
{
    uint64_t a = leave_one_idle(r, MS(20));
    EXPECT(rig_alloc(r, MIB(44)) != a, "there would be less for others");
}

RIG_TEST(rounding_may_leave_no_slack, segments_on_a_device_of(state, GIB(4)))
{
    rig_alloc_all(r, NULL, 16, MIB(1) + MIB(1) / 10); /* 14 MiB of it */
    uint64_t a = rig_pending(r, 0, MS(20), MIB(6));
    EXPECT(rig_alloc(r, MIB(3) + MIB(1) / 4) != a,
           "that is more than an eighth of the peak by itself");
}

RIG_TEST(slack_makes_no_blocks_share, segments_on_a_device_of(state, GIB(4)))
{
    struct pool_block f;
    rig_alloc_all(r, NULL, 8, MIB(64));
    rig_launch(r, 0, MS(20), r->blocks[0].addr);
    rig_free_all(r);
    rig_alloc_all(r, NULL, 4, MIB(50));
    EXPECT_EQ(rig_stats(r).allocated_bytes, MIB(256), "56 MiB of slack");
    for (int i = 0; i < 4; i++) {
        uint64_t a = rig_alloc(r, MIB(3));
        EXPECT(pool_lookup(a, &f) == POOL_OK && f.segment_addr == a, "each has its own");
    }
}

RIG_TEST(no_request_waits_for_what_is_ordered, segments_on_a_device_of(state, GIB(4)))
{
    r->model->backend.frees_beside = true;
    leave_one_idle(r, 0);
    uint64_t b = rig_pending(r, 0, MS(20), MIB(4));
    EXPECT_EQ(rig_alloc(r, MIB(4)), b, "later work runs behind its old work, a free beside it too");
    uint64_t now_ns = model_now(r->model);
    rig_alloc(r, MIB(28));
    rig_alloc(r, MIB(26));
    EXPECT_EQ(model_now(r->model), now_ns, "nobody waits for that");
    EXPECT_EQ(rig_stats(r).num_device_free, 0, "so the idle one stays");
}

POOL_TEST(while_the_gpu_is_idle_a_segment_of_the_size_is_better)
{
    struct rig *r = segments_on_a_device_of(state, GIB(4));
    leave_one_idle(r, 0);
    EXPECT(rig_alloc(r, MIB(44)), "it has memory");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(244), "and the other one goes back");
}

RIG_TEST(an_exposed_segment_goes_back_when_freed, expect_segments(state))
{
    uint64_t a = rig_alloc(r, MIB(6));
    rig_expose(r, a);
    rig_free_behind(r, 1, MS(3), a);
    EXPECT_EQ(model_used_bytes(r->model), 0, "at once: cuMemFree waits for its work");
    EXPECT_EQ(rig_stats(r).reserved_bytes, 0, "and it is counted");
    EXPECT_EQ(rig_stats(r).num_exposed, 1, "as exposed");
    EXPECT_EQ(pool_free(a), POOL_FOREIGN, "its address is the driver's again");
}

RIG_TEST(a_driver_that_does_not_align_is_not_used, *state)
{
    r->model->odd_segments = true;
    r->config.backing = BACKING_SEGMENT;
    rig_start(r);
    EXPECT(!rig_alloc(r, MIB(3)), "the map wants whole granules");
    EXPECT_EQ(r->status, POOL_PASS, "the driver serves the request itself");
    EXPECT_EQ(model_used_bytes(r->model), 0, "what was taken went back");
    EXPECT_EQ(rig_stats(r).num_backend_failures, 1, "it is counted");
}

RIG_TEST(prealloc_is_one_segment, *state)
{
    r->config.prealloc_bytes = MIB(64);
    r->config.backing = BACKING_SEGMENT;
    rig_start(r);
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(64), "taken at the start");
    EXPECT(rig_alloc(r, MIB(62)), "serves what fits it");
    EXPECT_EQ(rig_stats(r).num_hits, 1, "as a hit");
}

/* They do not go back earlier, because that waits for the kernel. */
POOL_TEST(out_of_memory_idle_segments_go_back_beside_work)
{
    struct rig *r = *state;
    r->model->backend.total_bytes = MIB(64);
    expect_segments(state);
    uint64_t a = rig_alloc(r, MIB(32)), b = rig_alloc(r, MIB(20)), c = rig_alloc(r, MIB(4));
    rig_free(r, a);
    rig_free(r, b);
    rig_trim(r, GIB(1), true);
    rig_launch(r, 1, MS(50), c);
    EXPECT(rig_alloc(r, MIB(50)), "in the place of both");
    EXPECT_EQ(rig_stats(r).num_oom_released, 1, "which is counted");
    EXPECT_EQ(rig_stats(r).num_ooms, 0, "and not told to the program");
}

/* The device has none, or there is no address space. */
TEST(without_an_arena_segments_serve)
{
    for (int has_none = 0; has_none < 2; has_none++) {
        struct rig *r = rig_create(RIG_BYTES);
        r->model->backend.has_arena = !has_none;
        model_fail(r->model, MODEL_ROW_reserve, 1, MODEL_BROKEN);
        rig_start(r);
        EXPECT(!pool_uses_arena(r->pool), "there is none");
        EXPECT(rig_alloc(r, MIB(3)) && rig_alloc(r, 100), "segments serve");
        EXPECT_EQ(model_calls(r->model, MODEL_ROW_reserve), !has_none, "asked if there may be one");
        EXPECT_ENDS(r);
    }
}

PLAY_TESTS

/* The context may be ending for so many frees. */
static unsigned num_vain, num_waited, num_ended;

static bool begin_free(struct backend *b, bool waits)
{
    num_waited += waits;
    num_vain -= num_vain > 0;
    return num_vain == 0;
}

static void end_free(struct backend *b)
{
    num_ended++;
}

RIG_TEST(a_segment_stays_whose_free_may_not_begin, expect_segments(state))
{
    const struct backend_ops *before = r->model->backend.ops;
    struct backend_ops ops = *before;
    ops.segment_free_begin = begin_free;
    ops.segment_free_end = end_free;
    r->model->backend.ops = &ops;
    uint64_t addrs[3];
    rig_alloc_all(r, addrs, 3, MIB(6));
    for (int i = 0; i < 3; i++)
        rig_free(r, addrs[i]);
    num_vain = 4;
    num_waited = num_ended = 0;
    EXPECT_EQ(rig_trim(r, 0, true), 0, "none goes");
    EXPECT_EQ(num_waited, 1, "after one in vain none waits");
    EXPECT_EQ(num_ended, 0, "what did not begin does not end");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(18), "they stay");
    uint64_t again = rig_alloc(r, MIB(6));
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_segment_alloc), 3, "and serve");
    rig_free(r, again);
    EXPECT_EQ(rig_trim(r, 0, true), MIB(18), "later they go");
    EXPECT_EQ(num_ended, 3, "each of them");
    r->model->backend.ops = before;
}

static const struct backend_ops *ops_before;
static uint64_t last_alloc;

static int alloc_noted(struct backend *b, uint64_t size_bytes, uint64_t *addr)
{
    int code = ops_before->segment_alloc(b, size_bytes, addr);
    last_alloc = *addr;
    return code;
}

RIG_TEST(an_odd_segment_stays_whose_free_may_not_begin, *state)
{
    struct backend_ops ops = *(ops_before = r->model->backend.ops);
    ops.segment_alloc = alloc_noted;
    ops.segment_free_begin = begin_free;
    ops.segment_free_end = end_free;
    r->model->backend.ops = &ops;
    r->model->odd_segments = true;
    r->config.backing = BACKING_SEGMENT;
    rig_start(r);
    num_vain = 2;
    num_waited = num_ended = 0;
    EXPECT(!rig_alloc(r, MIB(3)), "the map wants whole granules");
    EXPECT_EQ(model_used_bytes(r->model), MIB(4), "it goes with its context");
    EXPECT_EQ(num_waited, 1, "after a while in which it might have begun");
    EXPECT_EQ(num_ended, 0, "what did not begin does not end");
    ops.segment_free(&r->model->backend, last_alloc, true);
    num_vain = 0;
    EXPECT(!rig_alloc(r, MIB(3)), "the next one is no use either");
    EXPECT_EQ(model_used_bytes(r->model), 0, "but goes back");
    EXPECT_EQ(num_ended, 1, "and that ends");
    atomic_store(&r->model->backend.gone, true);
    EXPECT(!rig_alloc(r, MIB(3)), "nor is one of a context that has ended");
    EXPECT_EQ(model_used_bytes(r->model), MIB(4), "which is not freed");
    EXPECT_EQ(num_ended, 2, "though that began");
    ops.segment_free(&r->model->backend, last_alloc, true);
    r->model->backend.ops = ops_before;
}
