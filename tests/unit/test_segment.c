/* SPDX-License-Identifier: BSD-2-Clause
 *
 * pool/segment.c: the driver's own allocations, cached whole.
 */
#include "pool/segment.h"

#include "pool/state.h"
#include "tests/unit/expect.h"

#include <stdatomic.h>

static void segments_have_little_slack(void **state)
{
    for (uint64_t size = MIB(2); size < GIB(4); size += size / 5 + 12345) {
        uint64_t bytes = segment_bytes(size);
        EXPECT(bytes >= size && bytes % MIB(2) == 0, "whole granules that hold the request");
        EXPECT(bytes - size < MIB(2) || (bytes - size) * 8 <= size,
               "an eighth, or less than a granule");
        EXPECT(segment_fits(bytes, size), "a new segment serves what it was taken for");
        EXPECT(segment_fits(size, size), "an exact one is no waste");
        EXPECT(!segment_fits(size - 512, size), "a smaller one does not hold it");
        EXPECT(!segment_fits(bytes + size / 4, size), "a much larger one is waste");
    }
}

static void a_large_block_has_its_own_segment(void **state)
{
    struct rig *r = expect_segments(state);
    uint64_t a = rig_alloc(r, MIB(6)), b = rig_alloc(r, MIB(6));
    struct pool_block f;
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_segment_alloc), 2, "one each");
    EXPECT(pool_find(a, &f) == POOL_OK && f.segment_addr == a, "the segment starts with the block");
    EXPECT(pool_find(b + MIB(5), &f) == POOL_OK && f.segment_addr == b, "also seen from inside");
    EXPECT_EQ(f.size_bytes, MIB(6), "the whole of it");
}

static void small_blocks_share_a_segment(void **state)
{
    struct rig *r = expect_segments(state);
    uint64_t first = rig_alloc(r, 100);
    struct pool_block f;
    for (int i = 0; i < 8; i++) {
        uint64_t a = rig_alloc(r, (uint64_t)(i + 1) * 2000);
        EXPECT_EQ(pool_find(a, &f), POOL_OK, "it is found");
        EXPECT_EQ(f.segment_addr, first & ~(MIB(2) - 1), "in the same 2 MiB");
    }
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_segment_alloc), 1, "one segment serves them");
}

/* 1.1 MiB take 2 MiB of a segment: a few such blocks have one each, a program full of them shares.
 */
static void blocks_that_round_badly_share(void **state)
{
    struct rig *r = expect_segments(state);
    uint64_t at[256], size = MIB(1) + MIB(1) / 10;
    struct pool_block f;
    for (int i = 0; i < 256; i++)
        at[i] = rig_alloc(r, size);
    EXPECT(pool_find(at[0], &f) == POOL_OK && f.segment_addr == at[0], "the first have their own");
    EXPECT_EQ(pool_find(at[255] + size - 1, &f), POOL_OK, "a shared one is found from its end");
    EXPECT(f.addr == at[255] && f.size_bytes < size + 512, "and is rounded to 512 bytes");
    EXPECT(rig_stats(r).reserved_bytes < 256 * size * 12 / 10, "in all less than a fifth is lost");
    EXPECT_SOUND(r);
    for (int i = 0; i < 256; i++)
        rig_free(r, at[i]);
    uint64_t large = rig_alloc(r, MIB(6));
    EXPECT(pool_find(large, &f) == POOL_OK && f.segment_addr == large, "larger ones never share");
    rig_free(r, large);
    pool_trim(r->pool, &(struct pool_trim){0});
    EXPECT_EQ(rig_stats(r).reserved_bytes, 0, "everything can be given back");
    EXPECT_SOUND(r);
}

static void a_cached_segment_serves_with_little_slack_only(void **state)
{
    struct rig *r = expect_segments(state);
    uint64_t a = rig_alloc(r, MIB(36));
    rig_free(r, a);
    EXPECT_EQ(rig_alloc(r, MIB(32)), a, "an eighth of slack is taken");
    rig_free(r, a);
    struct pool_block f;
    EXPECT_EQ(pool_find(rig_alloc(r, MIB(20)), &f), POOL_OK, "there is memory");
    EXPECT_EQ(f.size_bytes, MIB(20), "half of it is not");
    EXPECT_SOUND(r);
}

static void pending_segments_serve_behind_their_work_with_little_slack(void **state)
{
    struct rig *r = expect_segments(state);
    uint64_t a = rig_alloc(r, MIB(36)), b = rig_alloc(r, MIB(20));
    rig_launch(r, 1, MS(20), a);
    rig_launch(r, 1, MS(20), b);
    rig_free(r, a);
    rig_free(r, b);
    EXPECT_EQ(rig_alloc(r, MIB(20)), b, "not the larger one, though it was freed before");
    EXPECT_EQ(rig_alloc(r, MIB(34)), a, "which serves what fits it");
}

static void every_idle_segment_is_releasable(void **state)
{
    struct rig *r = expect_segments(state);
    for (int i = 0; i < 6; i++)
        rig_alloc(r, MIB(3) * (uint64_t)(i + 1));
    uint64_t live = rig_alloc(r, MIB(7));
    while (r->count > 1)
        rig_free(r, r->blocks[0].addr == live ? r->blocks[1].addr : r->blocks[0].addr);
    rig_trim(r, 0, true);
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(8), "all but the live one");
}

static void segments_go_back_before_the_peak_is_passed(void **state)
{
    struct rig *r = expect_segments(state);
    /* One block after the other, each of another size: none serves the next. */
    for (int i = 0; i < 12; i++) {
        uint64_t a = rig_alloc(r, MIB(40) - MIB(3) * (uint64_t)i);
        rig_launch(r, 1, 0, a);
        rig_free(r, a);
    }
    EXPECT(rig_stats(r).reserved_peak_bytes <= MIB(45), "an eighth over what the program held");
}

static void no_segment_goes_back_while_a_kernel_runs(void **state)
{
    struct rig *r = expect_segments(state);
    uint64_t a = rig_alloc(r, MIB(40));
    rig_free(r, a);
    rig_launch(r, 1, MODEL_FOREVER, 0);
    EXPECT(rig_alloc(r, MIB(20)), "the pool grows instead");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(60), "since cuMemFree would wait for ever");
    EXPECT_SOUND(r);
}

/* Blocks of less and less, one after the other, below work in flight. */
static void go_through_sizes(struct rig *r, uint64_t work_ns)
{
    for (int i = 0; i < 20; i++) {
        uint64_t a = rig_alloc(r, MIB(60) - MIB(2) * (uint64_t)i);
        rig_launch(r, 1, work_ns, a);
        rig_free(r, a);
    }
}

static void a_free_pays_what_growing_below_work_in_flight_owes(void **state)
{
    struct rig *r = expect_segments(state);
    rig_launch(r, 2, MS(20), 0);
    go_through_sizes(r, MS(20));
    EXPECT(rig_stats(r).reserved_peak_bytes <= MIB(60 + 60 + 58),
           "the peak once more, and a block");
    EXPECT(rig_stats(r).num_device_free >= 3, "frees gave the others back");
    EXPECT(!atomic_load(&pool_owes), "nothing is owed");
    EXPECT_SOUND(r);
}

static void a_debt_beyond_the_allowance_waits_until_it_is_large(void **state)
{
    struct rig *r = expect_segments(state);
    for (int i = 0; i < 5; i++)
        rig_alloc(r, MIB(40)); /* 200 MiB live, 230 at the peak */
    effort_is_left(&r->pool->effort, model_now(r->model));
    effort_spend(&r->pool->effort, MS(100000));
    uint64_t sizes[] = {MIB(30), MIB(24), MIB(18), MIB(12), MIB(8)};
    for (int i = 0; i < 5; i++) {
        uint64_t a = rig_alloc(r, sizes[i]);
        rig_launch(r, 1, MS(20), a);
        rig_free(r, a);
        if (i < 4)
            EXPECT_EQ(rig_stats(r).num_device_free, 0, "less than a quarter over the peak");
    }
    EXPECT(rig_stats(r).num_device_free > 0, "more than that is paid in any case");
    EXPECT_SOUND(r);
}

static void a_large_debt_is_paid_in_part(void **state)
{
    rig_destroy(*state);
    *state = rig_create(GIB(4));
    struct rig *r = expect_segments(state);
    uint64_t sizes[] = {MIB(38), MIB(33), MIB(28), MIB(24)};
    rig_alloc(r, MIB(40)); /* with the first: 78 MiB at the peak */
    effort_is_left(&r->pool->effort, model_now(r->model));
    effort_spend(&r->pool->effort, MS(100000));
    for (int i = 0; i < 4; i++) {
        EXPECT_EQ(rig_stats(r).num_device_free, 0, "less than the peak once more");
        uint64_t a = rig_alloc(r, sizes[i]);
        rig_launch(r, 1, MS(20), a);
        rig_free(r, a);
    }
    EXPECT(rig_stats(r).num_device_free > 0, "that is too much");
    EXPECT(rig_stats(r).reserved_bytes <= MIB(78 + 39), "half of it is not");
    EXPECT(rig_stats(r).reserved_bytes > MIB(78 + 5), "so the rest stays");
    EXPECT_SOUND(r);
}

static void no_debt_is_paid_below_a_kernel_that_never_ends(void **state)
{
    struct rig *r = expect_segments(state);
    rig_alloc(r, MIB(40));
    rig_alloc(r, MIB(30));
    rig_free_all(r);
    rig_launch(r, 1, 0, 0);
    rig_trim(r, GIB(1), true);
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(70), "two segments are idle");
    rig_launch(r, 2, MODEL_FOREVER, 0);
    uint64_t b = rig_alloc(r, MIB(20));
    EXPECT(atomic_load(&pool_owes), "a quarter more than the program ever needed");
    rig_free(r, b);
    EXPECT_EQ(rig_stats(r).num_device_free, 0, "the free gave up after a moment");
    EXPECT_SOUND(r);
}

static void a_tainted_segment_goes_back_when_freed(void **state)
{
    struct rig *r = expect_segments(state);
    uint64_t a = rig_alloc(r, MIB(6));
    rig_taint(r, a);
    rig_launch(r, 1, MS(3), a);
    rig_free(r, a);
    EXPECT_EQ(model_used_bytes(r->model), 0, "at once: cuMemFree waits for its work");
    EXPECT_EQ(rig_stats(r).reserved_bytes, 0, "and it is counted");
    EXPECT_EQ(rig_stats(r).num_tainted, 1, "as tainted");
    EXPECT_EQ(pool_free(a), POOL_FOREIGN, "its address is the driver's again");
    EXPECT_SOUND(r);
}

static void a_driver_that_does_not_align_is_not_used(void **state)
{
    struct rig *r = *state;
    r->model->odd_segments = true;
    r->config.backing = BACKING_SEGMENT;
    rig_start(r);
    EXPECT(!rig_alloc(r, MIB(3)), "the map wants whole granules");
    EXPECT_EQ(r->status, POOL_PASS, "the driver serves the request itself");
    EXPECT_EQ(model_used_bytes(r->model), 0, "what was taken went back");
    EXPECT_EQ(rig_stats(r).num_backend_failures, 1, "it is counted");
}

static void prealloc_is_one_segment(void **state)
{
    struct rig *r = *state;
    r->config.prealloc_bytes = MIB(64);
    r->config.backing = BACKING_SEGMENT;
    rig_start(r);
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(64), "taken at the start");
    EXPECT(rig_alloc(r, MIB(62)), "serves what fits it");
    EXPECT_EQ(rig_stats(r).num_hits, 1, "as a hit");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_have_little_slack),
        RIG_TEST(a_large_block_has_its_own_segment),
        RIG_TEST(small_blocks_share_a_segment),
        RIG_TEST(blocks_that_round_badly_share),
        RIG_TEST(a_cached_segment_serves_with_little_slack_only),
        RIG_TEST(pending_segments_serve_behind_their_work_with_little_slack),
        RIG_TEST(every_idle_segment_is_releasable),
        RIG_TEST(segments_go_back_before_the_peak_is_passed),
        RIG_TEST(no_segment_goes_back_while_a_kernel_runs),
        RIG_TEST(a_free_pays_what_growing_below_work_in_flight_owes),
        RIG_TEST(a_debt_beyond_the_allowance_waits_until_it_is_large),
        RIG_TEST(a_large_debt_is_paid_in_part),
        RIG_TEST(no_debt_is_paid_below_a_kernel_that_never_ends),
        RIG_TEST(a_tainted_segment_goes_back_when_freed),
        RIG_TEST(a_driver_that_does_not_align_is_not_used),
        RIG_TEST(prealloc_is_one_segment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
