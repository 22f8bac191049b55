/* SPDX-License-Identifier: BSD-2-Clause */
/* The N-th call to the driver fails, for N = 1, 2, 3... until a scenario goes through untouched;
 * after each, the pool is sound and empties without a leak. In both backings, for every row of the
 * backend. */
#include "pool/state.h"
#include "tests/unit/expect.h"

#include <inttypes.h>

#define MOST 400

/* Scenarios go on whatever fails: a request that fails is simply not used. */
static void grow_and_shrink(struct rig *r)
{
    for (int round = 0; round < 3; round++) {
        for (uint64_t i = 1; i <= 6; i++) {
            rig_alloc(r, MIB(3) * i);
            rig_alloc(r, KIB(50) * i);
            rig_alloc(r, 700 * i);
        }
        for (uint32_t i = 0; i < r->count; i += 2)
            rig_launch(r, i % 3, MS(1), r->blocks[i].addr);
        for (uint32_t i = 0; i < r->count; i++)
            rig_free(r, r->blocks[i].addr);
        model_advance(r->model, MS(2));
        rig_trim(r, MIB(10), round == 1);
    }
}

/* Gaps whose chunks have to move, on a device that is nearly full. */
static void move_and_run_out(struct rig *r)
{
    uint64_t a[16];
    rig_alloc_all(r, a, 16, MIB(4));
    for (int i = 0; i < 16; i += 2)
        if (a[i])
            rig_free(r, a[i]);
    rig_launch(r, 1, 0, 0);
    rig_alloc(r, MIB(30));
    rig_alloc(r, MIB(12));
    for (int i = 1; i < 16; i += 4)
        if (a[i])
            rig_free_behind(r, 2, MS(5), a[i]);
    rig_alloc(r, MIB(16));
    rig_alloc(r, MIB(64));
}

static void leave_the_single_stream(struct rig *r)
{
    uint64_t a = rig_alloc(r, MIB(4));
    if (a)
        rig_free_behind(r, 0, MS(5), a);
    rig_alloc(r, MIB(4));
    if (r->count)
        rig_launch(r, 1, MS(5), r->blocks[0].addr);
    rig_alloc(r, MIB(4));
}

struct scenario {
    const char *name;
    void (*run)(struct rig *r);
    uint64_t capacity_bytes;
    bool single;
};

static const struct scenario scenarios[] = {
    {"grow and shrink", grow_and_shrink, MIB(512), false},
    {"grow and shrink with one stream", grow_and_shrink, MIB(512), true},
    {"move and run out", move_and_run_out, MIB(80), false},
    {"leave the single stream", leave_the_single_stream, MIB(512), true},
};

/* Some failures end the context for the pool: nothing is known about GPU work any more. */
static bool loses(enum model_row row, int code)
{
    return (row == MODEL_ROW_fence_create && code != MODEL_NOMEM) || row == MODEL_ROW_fence_query ||
           (row == MODEL_ROW_fence_record && code != MODEL_REFUSED);
}

/* Runs a scenario with one failure; false: the failure did not come about. */
static bool run_once(const struct scenario *s, bool segments, enum model_row row, uint64_t nth,
                     int code)
{
    struct rig *r = rig_in(s->capacity_bytes, segments, s->single);
    r->model->late_allowed = true; /* safety is under test here */
    /* What is refused to a range is asked for each chunk. */
    model_fail_many(r->model, row, nth, row == MODEL_ROW_allow ? 3 : 1, code);
    rig_start(r);
    s->run(r);
    bool failed = model_failed(r->model);
    r->lost = failed && (loses(row, code) || r->pool->fences.lost);
    if (r->lost && row == MODEL_ROW_fence_create && code == MODEL_NOMEM)
        fail_msg("%s: no event at call %" PRIu64 ", and the pool is lost", s->name, nth);
    model_fail(r->model, MODEL_ANY, 0, 0);
    const char *words = rig_check(r);
    if (!words && !r->lost) {
        uint64_t a = rig_alloc(r, MIB(1));
        if (a)
            rig_free(r, a);
        else if (r->status != POOL_NOMEM)
            words = "after a failure that passes, requests are served";
    }
    const char *last = rig_destroy(r);
    words = words ? words : last;
    if (words)
        fail_msg("%s, %s, row %d, call %" PRIu64 ", code %d: %s", s->name,
                 segments ? "segments" : "arena", row, nth, code, words);
    return failed;
}

static void sweep(enum model_row row, int code)
{
    unsigned came = 0;
    for (unsigned i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        for (int segments = 0; segments < 2; segments++) {
            uint64_t nth = 1;
            /* A capture needs a second stream, so none is open while the first is left. */
            if (scenarios[i].single && code == MODEL_REFUSED)
                continue;
            while (nth < MOST && run_once(&scenarios[i], segments, row, nth, code)) {
                came++;
                nth += 1 + nth / 16; /* all of the first, then some */
            }
            EXPECT(nth < MOST, "in the end a scenario goes through");
        }
    EXPECT(came > 0 || row == MODEL_ROW_mem_info, "some scenario makes this call");
}

TEST(out_of_memory_at_any_call_leaves_the_pool_sound)
{
    sweep(MODEL_ROW_create, MODEL_NOMEM);
    sweep(MODEL_ROW_map, MODEL_NOMEM);
    sweep(MODEL_ROW_segment_alloc, MODEL_NOMEM);
}

TEST(any_other_failure_of_memory_calls_leaves_the_pool_sound)
{
    sweep(MODEL_ROW_reserve, MODEL_BROKEN);
    sweep(MODEL_ROW_create, MODEL_BROKEN);
    sweep(MODEL_ROW_map, MODEL_BROKEN);
    sweep(MODEL_ROW_allow, MODEL_BROKEN);
    sweep(MODEL_ROW_segment_alloc, MODEL_BROKEN);
}

TEST(any_failure_of_fence_calls_leaves_the_pool_safe)
{
    sweep(MODEL_ROW_fence_create, MODEL_BROKEN);
    sweep(MODEL_ROW_fence_create, MODEL_NOMEM);
    sweep(MODEL_ROW_fence_record, MODEL_BROKEN);
    sweep(MODEL_ROW_fence_record, MODEL_REFUSED);
    sweep(MODEL_ROW_fence_query, MODEL_BROKEN);
    sweep(MODEL_ROW_fence_order, MODEL_BROKEN);
    sweep(MODEL_ROW_fence_wait, MODEL_BROKEN);
}

PLAY_TESTS
