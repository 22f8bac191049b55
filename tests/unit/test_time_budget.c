/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/time_budget.c: how much time may go into saving memory, and what the pool does where that is
 * used up. */
#include "pool/state.h"
#include "pool/time_budget.h"
#include "pool/tuning.h"
#include "tests/unit/expect.h"

static struct time_budget full_at_5_ms(void)
{
    struct time_budget e = {0};
    time_budget_is_left(&e, MS(5));
    return e;
}

/* The same, of a program that has grown 40 times, each time in 2 ms. */
static struct time_budget grown_in_2_ms(void)
{
    struct time_budget e = full_at_5_ms();
    for (int i = 0; i < 40; i++)
        time_budget_note_growth(&e, MS(2));
    return e;
}

TEST(a_program_starts_with_all_of_it)
{
    struct time_budget e = {0};
    EXPECT(time_budget_is_left(&e, MS(5)), "there is some");
    EXPECT(time_budget_is_full(&e), "there is all");
    time_budget_spend(&e, MS(19), false);
    EXPECT(!time_budget_is_full(&e), "something is gone");
    EXPECT(time_budget_is_left(&e, MS(5)), "19 of 20 ms are gone");
    time_budget_spend(&e, MS(2), false);
    EXPECT(!time_budget_is_left(&e, MS(5)), "21 are");
}

TEST(a_part_of_the_time_is_added)
{
    struct time_budget e = full_at_5_ms();
    time_budget_spend(&e, MS(21), false);
    EXPECT(!time_budget_is_left(&e, MS(5 + 127)), "less than 1 ms in 127");
    EXPECT(time_budget_is_left(&e, MS(5 + 130)), "more in 130");
}

TEST(small_steps_add_up)
{
    struct time_budget e = {0};
    time_budget_is_left(&e, 1000);
    time_budget_spend(&e, MS(21), false);
    bool left = false;
    for (uint64_t ns = 1000; ns < MS(129); ns += 100)
        left = time_budget_is_left(&e, ns);
    EXPECT(left, "asked every 100 ns");
}

TEST(it_is_saved_up_to_a_limit)
{
    struct time_budget e = full_at_5_ms();
    time_budget_spend(&e, MS(10), false);
    EXPECT(time_budget_is_left(&e, MS(1000000000)), "after many days");
    time_budget_spend(&e, MS(21), false);
    EXPECT(!time_budget_is_left(&e, MS(1000000000)), "no more than 20 ms were there");
    EXPECT(!time_budget_is_left(&e, MS(5)), "a clock that goes back adds nothing");
}

TEST(what_was_overdrawn_is_forgotten_at_last)
{
    struct time_budget e = full_at_5_ms();
    time_budget_spend(&e, UINT64_MAX, false);
    time_budget_spend(&e, MS(100000), false);
    EXPECT(!time_budget_is_left(&e, MS(5) + 127 * TIME_BUDGET_DEBT_MAX_NS), "it takes its time");
    EXPECT(time_budget_is_left(&e, MS(5) + 129 * TIME_BUDGET_DEBT_MAX_NS), "but so much at most");
}

TEST(growth_that_is_needed_is_no_charge)
{
    struct time_budget e = grown_in_2_ms();
    EXPECT(time_budget_is_left(&e, MS(5)), "growth by one chunk costs nothing");
    for (int i = 0; i < 19; i++)
        time_budget_spend(&e, MS(3), true);
    EXPECT(time_budget_is_left(&e, MS(5)), "1 ms of each was beyond a growth");
    time_budget_spend(&e, MS(1), true);
    EXPECT(time_budget_is_left(&e, MS(5)), "less than a growth is no charge, and earns nothing");
    time_budget_spend(&e, MS(4), true);
    EXPECT(!time_budget_is_left(&e, MS(5)), "21 of 20 ms are gone");
}

TEST(moves_below_the_peak_are_charged_whole)
{
    struct time_budget e = grown_in_2_ms();
    for (int i = 0; i < 7; i++)
        time_budget_spend(&e, MS(3), false);
    EXPECT(!time_budget_is_left(&e, MS(5)), "seven times 3 ms");
}

TEST(one_slow_growth_excuses_little)
{
    struct time_budget e = grown_in_2_ms();
    time_budget_note_growth(&e, MS(18));
    for (int i = 0; i < 6; i++)
        time_budget_spend(&e, MS(10), true);
    EXPECT(!time_budget_is_left(&e, MS(5)), "6 ms of each are growth, 4 are charged");
    e = full_at_5_ms();
    time_budget_note_growth(&e, UINT64_MAX);
    time_budget_spend(&e, MS(26), true);
    EXPECT(!time_budget_is_left(&e, MS(5)), "as if it had taken 20 ms");
}

/* With room to grow. */
#define ROOMY_TEST(name, start) RIG_TEST(name, start(expect_capacity(state, GIB(16))))

/* Granting access takes long, as on a busy GPU. */
static void allow_slowly(struct model *m, enum model_row row)
{
    if (row == MODEL_ROW_allow)
        model_advance(m, MS(30));
}

/* 64 blocks of 4 MiB, one of 768, and the time that may go into moving used up. */
static void overdraw(struct rig *r, uint64_t a[64])
{
    rig_alloc_all(r, a, 64, MIB(4));
    rig_alloc(r, MIB(768));
    r->model->hook = allow_slowly;
    rig_free_every(r, a, 0, 8, 2);
    rig_settle(r);
    rig_alloc(r, MIB(16));
    EXPECT_EQ(rig_stats(r).num_chunk_moves, 4, "at first idle memory is moved");
    EXPECT_EQ(rig_stats(r).num_refused_moves, 0, "nothing was refused");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(1024), "and none is taken");
    rig_free_every(r, a, 8, 16, 2);
    rig_settle(r);
}

ROOMY_TEST(memory_is_spent_where_moves_take_too_long, expect_single)
{
    uint64_t a[64], created;
    overdraw(r, a);
    created = model_calls(r->model, MODEL_ROW_create);
    rig_alloc(r, MIB(16));
    EXPECT_EQ(rig_stats(r).num_chunk_moves, 4, "no more moves");
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_create), created + 4, "but fine chunks");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(1040), "beside what is idle");
    rig_free_every(r, a, 16, 32, 2);
    rig_settle(r);
    rig_alloc(r, MIB(32));
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(1040), "no more than a 32nd over the peak");
    uint64_t moved = rig_stats(r).num_chunk_moves;
    EXPECT(moved > 4, "after that moves it is");
    model_advance(r->model, MS(100000));
    rig_free_every(r, a, 32, 40, 2);
    rig_settle(r);
    rig_alloc(r, MIB(16));
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(1040), "time has passed: nothing is spent");
    EXPECT(rig_stats(r).num_chunk_moves > moved, "what is idle moves again");
}

ROOMY_TEST(at_a_new_peak_moves_cost_no_more_than_growth, expect_single)
{
    uint64_t a[64];
    r->model->hook = allow_slowly;
    rig_alloc_all(r, a, 64, MIB(4));
    rig_alloc(r, MIB(768));
    for (int i = 0; i < 24; i += 8) {
        for (int k = 0; k < 8; k += 2)
            rig_free(r, a[i + k]);
        rig_settle(r);
        rig_alloc(r, MIB(32));
        EXPECT_EQ(rig_stats(r).num_chunk_moves, i / 2 + 4, "what is idle moves, each time");
        EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(1024 + 2 * i + 16), "the rest is new");
    }
}

static void use_two_streams(struct rig *r)
{
    for (unsigned i = 0; i < 4; i++)
        rig_pending(r, 1 + i % 2, MS(1), KIB(600));
}

ROOMY_TEST(growth_that_fails_does_not_tell_what_growth_takes, expect_single)
{
    r->model->hook = allow_slowly;
    rig_alloc_all(r, NULL, 64, MIB(4));
    EXPECT(r->pool->time_budget.growth_ns > MS(19), "each took 30 ms, of which 20 count");
    r->config.max_reserved_bytes = rig_stats(r).reserved_bytes;
    pool_set_config(r->pool, &r->config);
    for (int i = 0; i < 8; i++)
        EXPECT_EQ(rig_alloc(r, MIB(4)), 0, "no more is allowed");
    EXPECT(r->pool->time_budget.growth_ns > MS(19), "these took no time, and were no growth");
}

/* Much is idle, and the time budget used up, when the program uses two streams for a moment. */
static struct rig *overdrawn_on_two_streams(void **state, enum pool_reuse reuse)
{
    struct rig *r = *expect_capacity(state, GIB(16));
    uint64_t a[64];
    r->config.reuse = reuse;
    rig_start(r);
    overdraw(r, a);
    rig_free_every(r, a, 16, 36, 2);
    rig_settle(r);
    use_two_streams(r);
    return r;
}

RIG_TEST(with_several_streams_more_memory_is_spent, overdrawn_on_two_streams(state, REUSE_AUTO))
{
    uint64_t moved = rig_stats(r).num_chunk_moves, reserved = rig_stats(r).reserved_bytes;
    rig_alloc(r, MIB(64));
    EXPECT_EQ(rig_stats(r).num_chunk_moves, moved, "no move, with the budget used up");
    EXPECT_EQ(rig_stats(r).reserved_bytes, reserved + MIB(64), "more than a 32nd");
}

RIG_TEST(streams_of_long_ago_are_no_reason_to_spend_memory,
         overdrawn_on_two_streams(state, REUSE_AUTO))
{
    uint64_t moved = rig_stats(r).num_chunk_moves;
    struct fences *f = &r->pool->fences;
    atomic_store(&f->run_length, FENCE_RUN); /* one stream alone by now */
    f->several_epoch = f->open_epoch - FENCE_LATELY;
    rig_alloc(r, MIB(64));
    EXPECT(rig_stats(r).num_chunk_moves > moved, "a 32nd is enough");
}

RIG_TEST(where_pending_memory_is_not_spent_on_overlap_idle_memory_is_not,
         overdrawn_on_two_streams(state, REUSE_ORDER))
{
    uint64_t moved = rig_stats(r).num_chunk_moves;
    rig_alloc(r, MIB(64));
    EXPECT(rig_stats(r).num_chunk_moves > moved, "a 32nd is enough");
}

/* The budget is used up, and will be for long. */
static void use_up(struct rig *r)
{
    time_budget_is_left(&r->pool->time_budget, model_now(r->model));
    time_budget_spend(&r->pool->time_budget, SECOND_NS, false);
}

/* 64 blocks of 4 MiB and one of 768. Each second one of the first `idle` is free, its work done. */
static void scatter(struct rig *r, uint64_t a[64], int idle)
{
    rig_alloc_all(r, a, 64, MIB(4));
    rig_alloc(r, MIB(768));
    rig_free_every(r, a, 0, idle, 2);
    rig_settle(r);
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(1024), "no more than that");
}

ROOMY_TEST(chunks_are_the_finest_until_time_is_spent, expect_single)
{
    uint64_t a[64], created;
    scatter(r, a, 8);
    rig_alloc(r, MIB(64));
    created = model_calls(r->model, MODEL_ROW_create);
    EXPECT_EQ(created, 65 + 24, "48 MiB in chunks of 2: the driver's calls took no time");
    rig_free_every(r, a, 8, 16, 2);
    rig_settle(r);
    time_budget_spend(&r->pool->time_budget, MS(1), false);
    rig_alloc(r, MIB(128));
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_create), created + 14, "112 MiB in chunks of 8");
    created += 14;
    model_advance(r->model, MS(1000));
    rig_free_every(r, a, 16, 24, 2);
    rig_settle(r);
    rig_alloc(r, MIB(64));
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_create), created + 24, "the time is earned again");
    EXPECT_EQ(rig_stats(r).num_chunk_moves, 12, "all that was idle moved");
}

/* Work on two streams that outlives the test, on memory that is freed. */
static void free_behind_work(struct rig *r, uint64_t addr)
{
    rig_launch(r, 1, MS(1000000), addr);
    rig_free_behind(r, 2, MS(1000000), addr);
}

/* 16 MiB idle, and 80 MiB pending: below the peak of live memory, and above it with them. */
static struct rig *with_pending_memory(void **state)
{
    struct rig *r = *state;
    uint64_t a[64];
    r->config.reuse = REUSE_READY;
    rig_start(r);
    r->model->hook = allow_slowly;
    scatter(r, a, 8);
    for (int i = 9; i < 49; i += 2)
        free_behind_work(r, a[i]);
    return r;
}

ROOMY_TEST(memory_that_waits_for_work_counts_for_a_new_peak, with_pending_memory)
{
    model_advance(r->model, MS(10000)); /* the budget is full again */
    rig_alloc(r, MIB(64));
    EXPECT_EQ(rig_stats(r).num_chunk_moves, 4, "what is idle moved");
    EXPECT_EQ(rig_stats(r).pending_bytes, MIB(80), "the rest is new");
    EXPECT(r->pool->time_budget.left_ns > 0, "20 of 30 ms are those of a growth");
}

ROOMY_TEST(memory_that_waits_for_work_counts_for_what_may_be_spent, with_pending_memory)
{
    use_up(r);
    rig_alloc(r, MIB(64));
    EXPECT_EQ(rig_stats(r).num_chunk_moves, 0, "a 32nd over all that the program needs");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(1088), "is more than that");
}

ROOMY_TEST(the_request_itself_counts_for_what_may_be_spent, expect_single)
{
    uint64_t a[64];
    scatter(r, a, 8);
    use_up(r);
    rig_alloc(r, MIB(64));
    EXPECT_EQ(rig_stats(r).num_chunk_moves, 0, "the peak is higher by it");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(1088), "all of it is new");
}

/* In the middle of the program's request, as if by another thread. */
static void request_beside(struct model *m, enum model_row row)
{
    if (row != MODEL_ROW_create)
        return;
    m->hook = NULL;
    rig_alloc(m->hook_arg, MIB(24));
}

ROOMY_TEST(what_another_thread_is_taking_counts_for_what_may_be_spent, expect_single)
{
    uint64_t a[64];
    scatter(r, a, 32);
    use_up(r);
    rig_hook(r, request_beside, r);
    rig_alloc(r, MIB(24));
    EXPECT(!r->model->hook, "there was one beside it");
    EXPECT(rig_stats(r).num_chunk_moves > 0, "both would be more than a 32nd");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(1048), "the first is new memory");
}

/* With several streams a quarter of the peak may be pending, or idle. */
ROOMY_TEST(memory_is_spent_on_overlap_once, expect_arena)
{
    uint64_t a[64], b[2];
    scatter(r, a, 64);
    use_up(r);
    use_two_streams(r);
    uint64_t before = rig_stats(r).reserved_bytes;
    rig_alloc_all(r, b, 2, MIB(64));
    free_behind_work(r, b[0]);
    rig_alloc(r, MIB(64));
    EXPECT_EQ(rig_stats(r).reserved_bytes, before + MIB(192), "beside what is idle or pending");
    EXPECT_EQ(rig_stats(r).num_chunk_moves, 0, "within a quarter more than the peak");
    free_behind_work(r, b[1]);
    rig_alloc(r, MIB(72));
    EXPECT(rig_stats(r).pending_bytes >= MIB(128), "nothing waited for the work");
    EXPECT(rig_stats(r).num_chunk_moves > 0, "what is idle moves");
    EXPECT(rig_stats(r).reserved_bytes < MIB(1280), "no more than a quarter in all");
}

RIG_TEST(no_memory_is_spent_where_the_device_is_half_full, *expect_capacity(state, GIB(16)))
{
    r->model->backend.total_bytes = GIB(2);
    r->model->backend.single_stream = true;
    rig_start(r);
    uint64_t a[64];
    overdraw(r, a);
    rig_alloc(r, MIB(16));
    EXPECT_EQ(rig_stats(r).num_chunk_moves, 8, "moves go on");
    EXPECT_EQ(rig_stats(r).reserved_bytes, MIB(1024), "nothing is taken");
}

TEST(where_there_is_no_memory_to_spend_idle_memory_moves)
{
    for (int limit = 0; limit < 2; limit++) {
        struct rig *r = rig_in(GIB(4), false, true);
        uint64_t a[64];
        r->config.max_reserved_bytes = limit ? MIB(1024) : UINT64_MAX;
        rig_start(r);
        overdraw(r, a);
        if (!limit)
            model_fail(r->model, MODEL_ROW_create, 1, MODEL_NOMEM);
        EXPECT(rig_alloc(r, MIB(16)), "there is idle memory");
        EXPECT(limit || model_failed(r->model), "the driver had none");
        EXPECT_EQ(rig_stats(r).num_chunk_moves, 8, "so it was moved");
        EXPECT_EQ(rig_stats(r).num_alloc_retries, 0, "and nothing had to be given back first");
        EXPECT_ENDS(r);
    }
}

PLAY_TESTS
