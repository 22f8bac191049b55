/* SPDX-License-Identifier: BSD-2-Clause */
/* The ladder of pool/alloc.c: which calls of the driver a request makes, in which order, until it
 * has memory, and which statistic counts it. */
#include "tests/unit/expect.h"

/* The calls of the latest request, a letter each: q asks whether a fence is done, o orders, w waits
 * on the host, g gets memory of the driver, b gives some back, a asks others. Calls of one kind in
 * a row are one letter. */
static char trace[64];
static struct rig *rig;

static void note(char letter)
{
    size_t length = strlen(trace);
    if ((!length || trace[length - 1] != letter) && length + 1 < sizeof trace)
        trace[length] = letter;
}

static void note_row(struct model *m, enum model_row row)
{
    static const char letters[MODEL_ROWS] = {
        [MODEL_ROW_create] = 'g',      [MODEL_ROW_segment_alloc] = 'g',
        [MODEL_ROW_fence_query] = 'q', [MODEL_ROW_fence_order] = 'o',
        [MODEL_ROW_fence_wait] = 'w',
    };
    if (letters[row])
        note(letters[row]);
}

static void note_unmap(struct model *m)
{
    note('b');
}

static void note_freed(struct model *m, uint64_t addr)
{
    note('b');
}

static bool ask_others(struct backend *b, uint64_t size_bytes, struct lend_attempt *attempt)
{
    note('a');
    return !attempt->last_try && (attempt->last_try = true);
}

/* 32 MiB that work of that long uses, freed. Another stream has work then. */
static void free_behind(uint64_t work_ns)
{
    uint64_t a = rig_alloc(rig, MIB(32));
    rig_launch(rig, 1, work_ns, a);
    rig_free(rig, a);
    rig_launch(rig, 2, work_ns, 0);
}

static void complete(void)
{
    free_behind(MS(1));
    model_advance(rig->model, MS(2));
}

static void pending(void)
{
    free_behind(MS(50));
}

static void pending_and_full(void)
{
    rig_alloc(rig, MIB(32));
    pending();
}

/* Four segments that fit no request of the scenes. */
static void idle_and_full(void)
{
    uint64_t a[4];
    for (int i = 0; i < 4; i++)
        a[i] = rig_alloc(rig, MIB(8));
    rig_alloc(rig, MIB(32));
    for (int i = 0; i < 4; i++)
        rig_free(rig, a[i]);
    rig_launch(rig, 1, 0, 0);
    model_advance(rig->model, 1);
    rig_launch(rig, 2, MS(1), 0);
}

static void full(void)
{
    rig_alloc(rig, MIB(40));
}

#define COUNTS(name) offsetof(struct pool_stats, name)

/* A device of 64 MiB, or a limit of as much. */
static const struct {
    const char *step;
    enum pool_backing backing;
    enum pool_reuse reuse;
    bool limited;
    void (*begin)(void);
    uint64_t bytes;
    const char *trace;
    enum pool_status status;
    size_t counts; /* the statistic that rises by one */
} scenes[] = {
    {"4: what is complete", BACKING_ARENA, REUSE_AUTO, false, complete, MIB(32), "q", POOL_OK,
     COUNTS(num_hits)},
    {"8: the host waits, and keeps the overlap", BACKING_ARENA, REUSE_AUTO, true, pending, MIB(40),
     "qwg", POOL_OK, COUNTS(num_allocs)},
    {"9: order", BACKING_ARENA, REUSE_ORDER, false, pending, MIB(32), "qo", POOL_OK,
     COUNTS(num_hits)},
    {"10: a wait for all", BACKING_ARENA, REUSE_WAIT, false, pending, MIB(32), "qw", POOL_OK,
     COUNTS(num_hits)},
    {"12: more memory", BACKING_ARENA, REUSE_READY, false, pending, MIB(16), "qg", POOL_OK,
     COUNTS(num_allocs)},
    {"13: order, after the driver has refused", BACKING_ARENA, REUSE_READY, false, pending_and_full,
     MIB(32), "qgo", POOL_OK, COUNTS(num_oom_ordered)},
    {"14: idle memory goes back", BACKING_SEGMENT, REUSE_AUTO, false, idle_and_full, MIB(32),
     "qgbg", POOL_OK, COUNTS(num_oom_released)},
    {"15: a wait, so that more goes back", BACKING_SEGMENT, REUSE_READY, false, pending_and_full,
     MIB(20), "qgoqgwbg", POOL_OK, COUNTS(num_oom_waited)},
    {"16: others are asked", BACKING_ARENA, REUSE_AUTO, false, full, MIB(32), "gaga", POOL_NOMEM,
     COUNTS(num_ooms)},
    {"16, after 13 to 15", BACKING_SEGMENT, REUSE_READY, false, pending_and_full, MIB(48),
     "qgoqgwbgaga", POOL_NOMEM, COUNTS(num_ooms)},
    {"16 is left out", BACKING_SEGMENT, REUSE_READY, true, pending_and_full, MIB(48), "qoqwb",
     POOL_LIMIT, COUNTS(num_limit_rejections)},
};

static uint64_t counted(size_t at)
{
    struct pool_stats s = rig_stats(rig);
    return *(const uint64_t *)(const void *)((const char *)&s + at);
}

TEST(each_step_comes_in_its_turn_and_counts)
{
    for (unsigned i = 0; i < sizeof scenes / sizeof scenes[0]; i++) {
        rig = rig_create(scenes[i].limited ? RIG_BYTES : MIB(64));
        rig->several_streams = true;
        struct model *m = rig->model;
        struct backend_ops ops = *m->backend.ops;
        ops.ask_others = ask_others;
        m->backend.ops = &ops;
        rig->config.backing = scenes[i].backing;
        rig->config.reuse = scenes[i].reuse;
        if (scenes[i].limited)
            rig->config.max_reserved_bytes = MIB(64);
        rig_start(rig);
        scenes[i].begin();
        memset(trace, 0, sizeof trace);
        m->hook = note_row;
        m->hook_unmap = note_unmap;
        m->hook_freed = note_freed;
        uint64_t before = counted(scenes[i].counts);
        bool served = rig_alloc(rig, scenes[i].bytes);
        m->hook = NULL;
        m->hook_unmap = NULL;
        m->hook_freed = NULL;
        if (strcmp(trace, scenes[i].trace) != 0)
            fail_msg("step %s: %s, not %s", scenes[i].step, trace, scenes[i].trace);
        EXPECT_EQ(served, scenes[i].status == POOL_OK, scenes[i].step);
        EXPECT_EQ(rig->status, scenes[i].status, scenes[i].step);
        EXPECT_EQ(counted(scenes[i].counts), before + 1, scenes[i].step);
        EXPECT_EQ(rig_stats(rig).num_alloc_retries, atoi(scenes[i].step) >= 13, scenes[i].step);
        EXPECT_ENDS(rig);
    }
}

/* Who took a part of what the driver does not have would take it from other processes. */
static uint64_t most_used_bytes;

static void note_used(struct model *m, enum model_row row)
{
    if (model_used_bytes(m) > most_used_bytes)
        most_used_bytes = model_used_bytes(m);
}

static bool others_give(struct backend *b, uint64_t size_bytes, struct lend_attempt *attempt)
{
    bool gave = rig->model->other_bytes;
    rig->model->other_bytes = 0;
    return gave;
}

TEST(what_the_driver_lacks_is_not_taken_in_part)
{
    static const struct {
        uint64_t others_bytes, asked_bytes;
        bool unknown; /* the driver does not say what is free */
        bool served;
    } cases[] = {{0, GIB(12), false, false},
                 {0, GIB(12), true, false},
                 {GIB(4), GIB(8), false, true},
                 {GIB(4), GIB(8), true, true}};
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rig = rig_create(GIB(16));
        struct backend_ops ops = *rig->model->backend.ops;
        ops.ask_others = others_give;
        rig->model->backend.ops = &ops;
        rig_start(rig);
        rig_alloc(rig, GIB(6));
        rig->model->other_bytes = cases[i].others_bytes;
        if (cases[i].unknown)
            model_fail_many(rig->model, MODEL_ROW_mem_info, 1, UINT64_MAX, 999);
        most_used_bytes = 0;
        rig->model->hook = note_used;
        bool served = rig_alloc(rig, cases[i].asked_bytes);
        rig->model->hook = NULL;
        EXPECT_EQ(served, cases[i].served, "the request");
        EXPECT_EQ(most_used_bytes, GIB(6) + (served ? GIB(8) : 0), "taken at the most");
        EXPECT_ENDS(rig);
    }
}

/* The first growth would pass the limit. Once memory went back it is within it, and the driver has
 * none: others are asked, as without a limit. */
TEST(a_limit_is_no_reason_once_memory_went_back)
{
    for (enum pool_backing backing = BACKING_ARENA; backing <= BACKING_SEGMENT; backing++) {
        rig = rig_create(GIB(16));
        rig->several_streams = true;
        struct backend_ops ops = *rig->model->backend.ops;
        ops.ask_others = others_give;
        rig->model->backend.ops = &ops;
        rig->config.backing = backing;
        rig->config.reuse = REUSE_READY;
        rig->config.max_reserved_bytes = GIB(12);
        rig_start(rig);
        rig_alloc(rig, GIB(4));
        uint64_t a = rig_alloc(rig, GIB(4));
        rig_launch(rig, 1, MS(1), a);
        rig_free(rig, a);
        rig_launch(rig, 2, MS(1), 0);
        rig->model->other_bytes = GIB(8);
        EXPECT(rig_alloc(rig, GIB(7)), "the others gave memory");
        EXPECT_EQ(rig_stats(rig).num_oom_borrowed, 1, "the request");
        EXPECT_ENDS(rig);
    }
}

/* Also below a gigabyte, where memory is fragmented. */
TEST(small_chunks_are_not_taken_in_part)
{
    rig = rig_create(GIB(2));
    rig_start(rig);
    uint64_t a = rig_alloc(rig, MIB(40));
    rig_alloc(rig, MIB(40));
    rig_free(rig, a);
    rig->model->other_bytes = GIB(1);
    most_used_bytes = 0;
    rig->model->hook = note_used;
    EXPECT(!rig_alloc(rig, MIB(1020)), "there is too little memory");
    rig->model->hook = NULL;
    EXPECT_EQ(most_used_bytes, MIB(80), "taken at the most");
    EXPECT_ENDS(rig);
}

static int says_none_is_free(struct backend *b, uint64_t *free_bytes, uint64_t *total_bytes)
{
    *free_bytes = 0;
    *total_bytes = b->total_bytes;
    return 0;
}

/* What is refused for another reason may come chunk by chunk. */
TEST(a_driver_that_refuses_one_handle_of_all_may_give_several)
{
    for (int broken = 0; broken < 2; broken++) {
        rig = rig_create(GIB(16));
        struct backend_ops ops = *rig->model->backend.ops;
        ops.mem_info = says_none_is_free;
        rig->model->backend.ops = &ops;
        rig_start(rig);
        model_fail(rig->model, MODEL_ROW_create, 1, broken ? MODEL_BROKEN : 999);
        EXPECT(rig_alloc(rig, GIB(4)), "the request");
        EXPECT_ENDS(rig);
    }
}

/* The driver does not count what its own pools hold idle, and gives it all the same. So its word
 * holds only for what it has just refused: not after a wait, and not where a limit refused. */
TEST(what_the_driver_says_is_free_is_no_reason_before_it_refused)
{
    for (int limited = 0; limited < 2; limited++) {
        rig = rig_create(limited ? GIB(32) : GIB(16));
        rig->several_streams = true;
        struct backend_ops ops = *rig->model->backend.ops;
        ops.mem_info = says_none_is_free;
        rig->model->backend.has_order = false;
        rig->model->backend.ops = &ops;
        rig->config.reuse = REUSE_READY;
        if (limited)
            rig->config.max_reserved_bytes = GIB(16);
        rig_start(rig);
        uint64_t a = rig_alloc(rig, GIB(8));
        rig_launch(rig, 1, MS(1), a);
        rig_free(rig, a);
        rig_launch(rig, 2, MS(1), 0);
        EXPECT(rig_alloc(rig, GIB(12)), "it is served once the work has ended");
        EXPECT_ENDS(rig);
    }
}

PLAY_TESTS
