/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory that goes to the host and comes back: pool/park.c. rig_park and rig_wake do what the shim
 * does, with marks in place of bytes. What comes back: test_wake.c. */
#include "pool/chunk.h"
#include "pool/map.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

#define CASE(name) RIG_TEST(name, expect_bytes(*state))

static const struct chunk *chunk_at(uint64_t addr)
{
    return map_find(addr)->chunk;
}

CASE(everything_goes_and_comes_back_with_its_bytes)
{
    static const uint64_t sizes[] = {1,         512,    3000,   KIB(17), KIB(130), KIB(700), MIB(1),
                                     KIB(1025), MIB(2), MIB(5), MIB(33), MIB(70),  KIB(64),  777};
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            rig_written(r, sizes[i]);
    for (uint32_t i = 0; i < r->count; i += 3)
        rig_free(r, r->blocks[i].addr);
    rig_settle(r);
    rig_trim(r, 0, true);
    uint64_t reserved = rig_stats(r).reserved_bytes;
    EXPECT_EQ(rig_park(r, 0, 0, false), reserved, "all of it goes");
    EXPECT_EQ(model_used_bytes(r->model), 0, "no device memory is left");
    struct pool_stats s = rig_stats(r);
    EXPECT_EQ(s.reserved_bytes, reserved, "what is away is still reserved");
    EXPECT_EQ(s.away_bytes, reserved, "and counts as away");
    EXPECT_SOUND(r);
    EXPECT_EQ(rig_wake(r), 0, "it comes back");
    EXPECT_EQ(rig_stats(r).away_bytes, 0, "nothing is away");
    EXPECT_EQ(model_used_bytes(r->model), rig_stats(r).reserved_bytes, "all of it");
}

CASE(a_park_that_is_cancelled_changes_nothing)
{
    rig_written(r, MIB(40));
    uint64_t calls = model_calls(r->model, MODEL_ROW_create), used = model_used_bytes(r->model);
    EXPECT_EQ(rig_park(r, 0, 0, true), 0, "nothing goes");
    EXPECT_EQ(r->model->unmaps, 0, "nothing is unmapped");
    EXPECT_EQ(model_calls(r->model, MODEL_ROW_create), calls, "nothing is created");
    EXPECT_EQ(model_used_bytes(r->model), used, "all is there");
    EXPECT(list_empty(&r->pool->parked), "nothing is held");
    rig_check_bytes(r);
}

/* Live, pending or dead: what is known outside keeps its memory. */
CASE(what_was_ever_exposed_stays)
{
    uint64_t big = rig_written(r, MIB(40)), other = rig_written(r, MIB(40)),
             object = rig_written(r, 3000);
    uint64_t middle = rig_written(r, KIB(300));
    rig_expose(r, big);
    rig_expose(r, object);
    uint64_t stays = chunk_at(big)->size_bytes + chunk_at(object)->size_bytes;
    EXPECT(chunk_at(other) != chunk_at(big), "chunks of their own");
    EXPECT_EQ(pool_exposed_bytes(r->pool), stays, "it is counted");
    uint64_t gone = rig_park(r, 0, 0, false);
    EXPECT_EQ(gone, rig_stats(r).reserved_bytes - stays, "all else goes");
    EXPECT(!pool_is_away(big) && !pool_is_away(object) && !pool_is_away(middle), "they are here");
    EXPECT(pool_is_away(other), "the other is not");
    EXPECT_SOUND(r);
    EXPECT_EQ(rig_wake(r), 0, "it comes back");
    rig_free(r, big);
    rig_free(r, object);
    rig_settle(r); /* they are dead, the slab not yet */
    EXPECT(rig_park(r, 0, 0, false) > 0, "something goes");
    EXPECT(!pool_is_away(big) && !pool_is_away(object), "dead memory stays");
}

/* A dead block that lies on two chunks, one of which is given back. */
CASE(the_rest_of_a_dead_block_stays)
{
    uint64_t a = rig_alloc(r, MIB(4)), b = rig_alloc(r, MIB(4));
    rig_free(r, a);
    rig_free(r, b);
    rig_settle(r);
    rig_empty_magazines(r);
    uint64_t both = rig_written(r, MIB(6)), pin = rig_written(r, MIB(2));
    EXPECT(chunk_at(both) != chunk_at(pin), "the block lies on two chunks");
    rig_expose(r, both);
    rig_free(r, both);
    rig_settle(r);
    rig_trim(r, 0, true);
    EXPECT(!map_find(both)->chunk, "the first chunk has gone");
    rig_park(r, 0, 0, false);
    EXPECT(!pool_is_away(pin), "the second holds dead memory");
}

CASE(what_is_exposed_while_it_is_held_stays)
{
    uint64_t a = rig_written(r, MIB(40)), b = rig_written(r, MIB(40));
    uint64_t held = pool_park_hold(r->pool, 0, 0);
    EXPECT_EQ(held, rig_stats(r).reserved_bytes, "all is held");
    EXPECT_EQ(pool_expose(b), POOL_OK, "another thread shares it");
    EXPECT_EQ(pool_park_end(r->pool, true), held - chunk_at(b)->size_bytes, "the others go");
    EXPECT(pool_is_away(a) && !pool_is_away(b), "the shared one does not");
}

/* The small zone first, then by address. */
CASE(what_is_to_be_kept_stays)
{
    uint64_t low = rig_written(r, MIB(40)), high = rig_written(r, MIB(40)),
             small = rig_written(r, KIB(700));
    EXPECT(low < high && small < low, "they lie so");
    uint64_t kept = chunk_at(small)->size_bytes + 1;
    EXPECT_EQ(rig_park(r, kept, 0, false), chunk_at(high)->size_bytes, "whole chunks stay");
    EXPECT(!pool_is_away(small) && !pool_is_away(low) && pool_is_away(high), "the lowest");
    rig_wake(r);
    EXPECT_EQ(rig_park(r, GIB(1), 0, false), 0, "so much is not there");
    EXPECT(list_empty(&r->pool->parked), "nothing is held");
    rig_expose(r, high);
    EXPECT_EQ(rig_park(r, MIB(40), 0, false),
              chunk_at(small)->size_bytes + chunk_at(low)->size_bytes, "what cannot go counts");
}

CASE(no_more_goes_than_is_asked_for_and_the_largest_first)
{
    uint64_t a = rig_written(r, MIB(20)), b = rig_written(r, MIB(100)), c = rig_written(r, MIB(50));
    uint64_t small = rig_written(r, KIB(700));
    EXPECT_EQ(rig_park(r, 0, MIB(90), false), chunk_at(b)->size_bytes, "one is enough");
    EXPECT(pool_is_away(b), "the largest");
    EXPECT_EQ(rig_park(r, 0, MIB(40), false), chunk_at(c)->size_bytes, "the next joins it");
    EXPECT(pool_is_away(b) && pool_is_away(c) && !pool_is_away(a) && !pool_is_away(small),
           "the others stay");
    EXPECT_SOUND(r);
    EXPECT_EQ(rig_wake(r), 0, "both parks end together");
    EXPECT_EQ(rig_park(r, 0, 1, false), chunk_at(b)->size_bytes, "whole chunks go");
}

static unsigned walked;
static uint64_t walk_starts[64], walk_sizes[64];

static bool note(void *arg, uint64_t addr, uint64_t size_bytes)
{
    walk_starts[walked] = addr;
    walk_sizes[walked++] = size_bytes;
    return walked != (unsigned)(uintptr_t)arg;
}

static unsigned walk(struct rig *r)
{
    walked = 0;
    EXPECT(pool_park_each(r->pool, note, NULL), "to the end");
    return walked;
}

/* Small free ranges are kept along with what is around them. */
CASE(only_live_memory_is_named_and_small_gaps)
{
    uint64_t a[8];
    for (int i = 0; i < 8; i++)
        a[i] = rig_alloc(r, KIB(255) + KIB(i >= 5));
    for (int i = 0; i < 7; i++)
        EXPECT_EQ(a[i + 1], a[i] + KIB(255) + KIB(i >= 5), "one after the other");
    uint64_t slab = rig_alloc(r, KIB(17)), large = rig_alloc(r, MIB(40)),
             gap = rig_alloc(r, MIB(8));
    uint64_t last = rig_alloc(r, MIB(40));
    EXPECT(gap == large + MIB(40) && last == gap + MIB(8), "one after the other");
    rig_free(r, a[1]);
    rig_free(r, a[6]);
    rig_free(r, gap);
    rig_settle(r);
    pool_park_hold(r->pool, 0, 0);
    EXPECT_EQ(walk(r), 4, "as many ranges");
    EXPECT_EQ(walk_starts[0], a[0], "the first block");
    EXPECT_EQ(walk_sizes[0], a[6] - a[0], "over a gap of 255 KiB, to one of 256");
    EXPECT_EQ(walk_starts[1], a[7], "the last of them");
    EXPECT_EQ(walk_sizes[1], slab + KIB(256) - a[7], "and all of the slab");
    EXPECT_EQ(walk_starts[2], large, "large blocks");
    EXPECT_EQ(walk_sizes[2], MIB(40), "no more than that");
    EXPECT_EQ(walk_starts[3], last, "large blocks");
    walked = 0;
    EXPECT(!pool_park_each(r->pool, note, (void *)(uintptr_t)2), "a walk can be ended");
    EXPECT_EQ(walked, 2, "at once");
    pool_park_end(r->pool, false);
    EXPECT_EQ(walk(r), 0, "nothing is held");
}

/* More ranges than one look of the walk can name. */
CASE(a_long_walk_misses_nothing)
{
    uint64_t a[400];
    for (int i = 0; i < 400; i++)
        a[i] = rig_written(r, KIB(300));
    rig_free_every(r, a, 0, 400, 2);
    uint64_t huge = rig_written(r, MIB(300));
    EXPECT(rig_park(r, 0, 0, false) > MIB(400), "all of it goes");
    EXPECT(pool_is_away(huge), "also this");
    EXPECT_EQ(rig_wake(r), 0, "and comes back, with its bytes");
}

static uint64_t driver_calls(struct rig *r)
{
    return model_calls(r->model, MODEL_ROW_create) + model_calls(r->model, MODEL_ROW_map) +
           model_calls(r->model, MODEL_ROW_allow) + r->model->unmaps;
}

/* A request larger than anything free: the pool looks for idle chunks to move. */
static void press(struct rig *r)
{
    struct pool_config config = r->config;
    rig_trim(r, 0, true);
    pool_release(r->pool, POOL_RELEASE_IDLE);
    pool_release(r->pool, POOL_RELEASE_PENDING);
    config.max_idle_bytes = config.max_reserved_bytes = 0;
    config.idle_timeout_ns = 1;
    pool_set_config(r->pool, &config);
    model_advance(r->model, MS(1000));
    pool_tick(r->pool, NULL);
    model_advance(r->model, MS(1000));
    pool_tick(r->pool, NULL);
    pool_set_config(r->pool, &r->config);
    pool_tick(r->pool, NULL);
}

/* Held or away, idle or not: nothing of it is released, moved or taken. */
CASE(nothing_else_touches_what_is_held_or_away)
{
    uint64_t a = rig_written(r, MIB(30)), b = rig_written(r, MIB(40)), pin = rig_written(r, MIB(6));
    r->model->late_allowed = true;
    uint64_t held = pool_park_hold(r->pool, 0, 0);
    rig_free(r, a);
    rig_free(r, b);
    for (int away = 0; away < 2; away++) {
        uint64_t calls = driver_calls(r);
        press(r);
        EXPECT_EQ(driver_calls(r), calls, "nothing is given back");
        EXPECT_EQ(pool_behind_work_bytes(r->pool), 0, "nor will be");
        EXPECT_EQ(rig_stats(r).reserved_bytes, held, "it is all there");
        uint64_t moves = rig_stats(r).num_chunk_moves, big = rig_alloc(r, MIB(120));
        EXPECT(big, "a request is served");
        EXPECT_EQ(rig_stats(r).num_chunk_moves, moves, "by no chunk that is parked");
        EXPECT(!pool_is_away(big + MIB(119)), "what is new is here");
        EXPECT_SOUND(r);
        rig_free(r, big);
        rig_trim(r, 0, true);
        EXPECT_EQ(rig_stats(r).reserved_bytes, held, "the new memory goes back");
        if (!away)
            EXPECT_EQ(pool_park_end(r->pool, true), held, "all of it goes");
    }
    EXPECT(pool_is_away(pin), "this, too");
}

static uint64_t held_beside, holds;
static const char *said_beside;

/* A park begins while a thread has chunks to move. */
static void hold_beside(struct model *m, enum model_row row)
{
    if (row != MODEL_ROW_map || holds++)
        return;
    held_beside = pool_park_hold(m->hook_arg, 0, 0);
    said_beside = pool_check(m->hook_arg);
}

CASE(what_another_thread_moves_is_not_held)
{
    uint64_t a[10];
    rig_alloc_all(r, a, 10, MIB(8));
    rig_free_every(r, a, 0, 10, 2);
    rig_settle(r);
    rig_hook(r, hold_beside, r->pool);
    uint64_t big = rig_alloc(r, MIB(32));
    r->model->hook = NULL;
    EXPECT(big && rig_stats(r).num_chunk_moves >= 4, "chunks have moved");
    EXPECT(!said_beside, "nobody moves what is held");
    EXPECT(held_beside >= MIB(40) && held_beside < MIB(80), "the others are held");
    EXPECT_EQ(pool_park_end(r->pool, true), held_beside, "and go");
    EXPECT(!pool_is_away(big), "what has moved is here");
}

static unsigned unmaps_seen, away_seen;

static void look_whether_away(struct model *m)
{
    const uint64_t *a = m->hook_arg;
    unmaps_seen++;
    away_seen += pool_is_away(a[0]) && pool_is_away(a[1]);
}

/* Who asks whether an address is away must not learn that it is there when it is gone. */
CASE(memory_counts_as_away_before_it_is_unmapped)
{
    uint64_t a[2] = {rig_written(r, MIB(10)), rig_written(r, 3000)};
    r->model->hook_unmap = look_whether_away;
    r->model->hook_arg = a;
    EXPECT(rig_park(r, 0, 0, false), "it goes");
    r->model->hook_unmap = NULL;
    EXPECT_EQ(unmaps_seen, 2, "both were unmapped");
    EXPECT_EQ(away_seen, 2, "and were away before");
}

/* It has its bytes, serves requests, and goes with the next park. */
CASE(what_the_driver_does_not_unmap_stays)
{
    uint64_t a = rig_written(r, MIB(40)), used = model_used_bytes(r->model);
    r->model->unmap_code = MODEL_BROKEN;
    EXPECT_EQ(pool_park_hold(r->pool, 0, 0), used, "all is held");
    EXPECT_EQ(pool_park_end(r->pool, true), 0, "nothing goes");
    EXPECT(!pool_is_away(a) && !pool_away_bytes(r->pool), "nothing is away");
    EXPECT(list_empty(&r->pool->parked), "nothing is held");
    EXPECT_EQ(model_used_bytes(r->model), used, "all is there");
    rig_check_bytes(r);
    r->model->unmap_code = 0;
    EXPECT_EQ(rig_park(r, 0, 0, false), used, "all goes");
    EXPECT_EQ(rig_wake(r), 0, "and comes back");
}

CASE(frees_and_allocations_in_what_is_away_call_no_driver)
{
    uint64_t a[6], object = rig_written(r, 700);
    for (int i = 0; i < 6; i++)
        a[i] = rig_written(r, MIB(10));
    rig_free(r, a[1]);
    rig_settle(r);
    EXPECT(rig_park(r, 0, 0, false) > MIB(60), "all goes");
    uint64_t calls = driver_calls(r);
    EXPECT_EQ(rig_alloc(r, MIB(10)), a[1], "free memory that is away serves a request");
    rig_free(r, a[3]);
    rig_free(r, object);
    EXPECT(rig_alloc(r, 700), "a slab that is away, too");
    EXPECT_EQ(driver_calls(r), calls, "the driver is not asked");
    EXPECT_EQ(rig_wake(r), 0, "what was not touched has its bytes");
    EXPECT_EQ(rig_alloc(r, MIB(10)), a[3], "what was freed is free");
}

PLAY_TESTS
