/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/ring.c: which fences are collected, dropped and kept, and whose events may be recorded
 * again. With the pool's own use of it: a fence that the driver is asked about keeps its event
 * meanwhile. */
#include "pool/ring.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

/* Epochs from 1 to count; the event of each is 100 more. */
static struct ring *ring_of(unsigned count)
{
    struct ring *r = calloc(1, sizeof *r);
    for (unsigned epoch = 1; epoch <= count; epoch++)
        ring_insert(r, epoch, 100 + epoch, false);
    return r;
}

static bool is_there(const struct ring *r, uint64_t epoch)
{
    unsigned at = ring_find(r, epoch);
    return at < r->count && r->at[at].epoch == epoch;
}

static bool is_spare(const struct ring *r, uint64_t event)
{
    for (unsigned i = 0; i < r->spares; i++)
        if (r->spare[i] == event)
            return true;
    return false;
}

TEST(fences_stand_in_order_whatever_order_they_came_in)
{
    struct ring *r = ring_of(0);
    for (unsigned i = 0; i < 20; i++)
        ring_insert(r, 1 + i * 7 % 20, 200 + i, i % 2);
    for (unsigned i = 0; i < 20; i++)
        EXPECT_EQ(r->at[i].epoch, i + 1, "by epoch");
    EXPECT_EQ(ring_find(r, 21), r->count, "none is so new");
    EXPECT_EQ(r->at[ring_find_waitable(r, 1, true)].epoch, 1, "the oldest that covers it");
    for (unsigned epoch = 1; epoch <= 20; epoch++) {
        unsigned at = ring_find_waitable(r, epoch, false);
        EXPECT(at == r->count || (!r->at[at].late && r->at[at].epoch >= epoch),
               "one that may be waited for");
    }
    free(r);
}

TEST(done_fences_are_collected_but_for_pinned_ones)
{
    struct ring *r = ring_of(10);
    uint64_t third = ring_pin(r, 2).event, fourth = ring_pin(r, 3).event;
    ring_pin(r, 3);
    ring_collect(r, 6, 0);
    EXPECT_EQ(r->count, 6, "the four that are not done, and two pinned ones");
    EXPECT(is_there(r, 3) && is_there(r, 4) && is_there(r, 7), "these");
    EXPECT(r->spares == 4 && !is_spare(r, third) && !is_spare(r, fourth),
           "nobody records their events");
    ring_unpin(r, 2, third);
    ring_unpin(r, 3, fourth);
    ring_collect(r, 6, 0);
    EXPECT(!is_there(r, 3) && is_spare(r, third), "its user is back");
    EXPECT(is_there(r, 4) && !is_spare(r, fourth), "one of two is");
    ring_unpin(r, 3, fourth);
    ring_collect(r, 6, 0);
    EXPECT(r->count == 4 && is_spare(r, fourth), "and the other");
    free(r);
}

TEST(passed_fences_are_collected_many_at_a_time)
{
    struct ring *r = ring_of(16);
    ring_collect(r, 0, RING_ALL);
    EXPECT_EQ(r->count, 16, "so few are kept");
    ring_insert(r, 17, 117, false);
    uint64_t second = ring_pin(r, 1).event;
    ring_collect(r, 0, RING_ALL);
    EXPECT_EQ(r->count, 8, "more are not");
    EXPECT(is_there(r, 1) && is_there(r, 17), "the oldest and the newest stay");
    EXPECT(is_there(r, 2) && !is_spare(r, second), "so does the pinned one");
    for (unsigned epoch = 18; epoch <= 40; epoch++)
        ring_insert(r, epoch, 100 + epoch, false);
    unsigned before = r->count;
    ring_collect(r, 0, 30);
    EXPECT(r->count < before && is_there(r, 30) && is_there(r, 31) && is_there(r, 40),
           "none that was not passed");
    free(r);
}

TEST(every_second_fence_is_dropped_but_for_pinned_ones)
{
    struct ring *r = ring_of(20);
    uint64_t first = ring_pin(r, 0).event, fifth = ring_pin(r, 4).event;
    ring_thin(r);
    EXPECT(r->count < 13 && is_there(r, 20), "many go, the newest stays");
    EXPECT(is_there(r, 1) && is_there(r, 5), "and the pinned ones");
    EXPECT(!is_spare(r, first) && !is_spare(r, fifth), "with their events");
    EXPECT_EQ(r->count + r->spares, 20, "every event is somewhere");
    free(r);
}

TEST(a_fence_that_may_be_waited_for_leaves_none_behind_that_may_not)
{
    struct ring *r = ring_of(0);
    for (unsigned epoch = 1; epoch <= 20; epoch++)
        ring_insert(r, epoch, 100 + epoch, epoch % 3 == 0);
    for (unsigned turn = 0; turn < 5; turn++) {
        ring_thin(r);
        for (unsigned epoch = 1; epoch <= 20; epoch++)
            EXPECT(epoch % 3 == 0 || !r->at[ring_find(r, epoch)].late, "the next one covers it");
    }
    EXPECT(r->count < 10, "though most are gone");
    free(r);
}

TEST(a_pin_is_found_wherever_its_fence_is_by_then)
{
    struct ring *r = ring_of(10);
    uint64_t event = ring_pin(r, 7).event;
    ring_collect(r, 5, 0);
    ring_unpin(r, 7, event);
    EXPECT_EQ(r->at[ring_find(r, 8)].pins, 0, "further to the front");
    event = ring_pin(r, 1).event;
    for (unsigned i = 0; i < 3; i++)
        ring_insert(r, 2 + i, 300 + i, false);
    ring_unpin(r, 1, event);
    for (unsigned i = 0; i < r->count; i++)
        EXPECT_EQ(r->at[i].pins, 0, "further to the end");
    event = ring_pin(r, 0).event;
    r->count = 0;
    ring_unpin(r, 0, event); /* nothing is there any more: the pool has ended */
    free(r);
}

/* What other threads may do while one is inside the driver with a fence. The fence is known done.
 * An event is recorded for a later one, and captures a kernel that never ends. */
struct meanwhile {
    struct rig *rig;
    enum model_row row;
    uint64_t addr; /* freed then */
    bool happened;
};

static void record_again(struct model *m, enum model_row row)
{
    struct meanwhile *w = m->hook_arg;
    struct pool *p = w->rig->pool;
    if (row != w->row)
        return;
    m->hook = NULL;
    w->happened = true;
    model_advance(m, MS(6));
    LOCKED(p, EXPECT(fence_poll(p), "the fence is done"));
    model_capture_begin(m);
    rig_free(w->rig, w->addr);
    rig_launch(w->rig, 2, MODEL_FOREVER, 0);
    model_capture_end(m);
    LOCKED(p, fence_seal(p));
}

/* The model blames who waits for the kernel. */
TEST(an_event_in_use_is_not_recorded_again)
{
    for (unsigned order = 0; order < 2; order++) {
        struct rig *r = rig_create(RIG_BYTES);
        struct meanwhile w = {.rig = r,
                              .row = order ? MODEL_ROW_fence_order : MODEL_ROW_fence_wait};
        r->config.reuse = order ? REUSE_ORDER : REUSE_WAIT;
        r->model->backend.has_order = order;
        rig_start(r);
        uint64_t a = rig_alloc(r, MIB(4));
        w.addr = rig_alloc(r, MIB(6));
        rig_free_behind(r, 1, MS(5), a);
        rig_hook(r, record_again, &w);
        EXPECT(rig_alloc(r, MIB(4)), "behind its own work alone, or elsewhere");
        EXPECT(w.happened, "the driver was inside");
        EXPECT(fence_is_running(&r->pool->fences), "the later fence is under way");
        EXPECT_SOUND(r);
        EXPECT_ENDS(r);
    }
}

PLAY_TESTS
