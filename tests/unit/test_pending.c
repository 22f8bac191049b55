/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/pending.c: freed memory that work may still use. */
#include "pool/pending.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

static struct rig *slow(void **state)
{
    return expect_reuse(state, REUSE_READY);
}

RIG_TEST(pending_memory_is_counted_until_it_is_retired, slow(state))
{
    uint64_t a = rig_alloc(r, MIB(4)), b = rig_alloc(r, 700);
    rig_free_behind(r, 1, MS(10), a);
    rig_free(r, b);
    rig_empty_magazines(r);
    EXPECT_EQ(rig_stats(r).pending_bytes, MIB(4) + 1024, "blocks and objects");
    EXPECT_EQ(rig_stats(r).allocated_bytes, 0, "nothing is live");
    EXPECT_EQ(pool_idle_bytes(r->pool), rig_stats(r).reserved_bytes, "free, to the program");
    EXPECT_SOUND(r);
    rig_trim(r, GIB(1), false);
    EXPECT_EQ(rig_stats(r).pending_bytes, MIB(4) + 1024, "the work is running");
    model_advance(r->model, MS(10));
    rig_trim(r, GIB(1), false);
    EXPECT_EQ(rig_stats(r).pending_bytes, 0, "the work is complete");
    EXPECT_EQ(rig_stats(r).pending_peak_bytes, MIB(4) + 1024, "the peak stays");
}

RIG_TEST(memory_is_retired_in_the_order_of_its_frees, slow(state))
{
    uint64_t a[5];
    rig_alloc_all(r, a, 5, MIB(4));
    for (int i = 0; i < 5; i++)
        rig_free_behind(r, 1, MS(10), a[i]);
    for (int i = 0; i < 5; i++) {
        EXPECT_EQ(rig_stats(r).pending_bytes, MIB(4) * (5 - (uint64_t)i), "one after the other");
        model_advance(r->model, MS(10));
        rig_trim(r, GIB(1), false);
    }
}

static uint64_t found(struct rig *r, struct zone *z, uint64_t size_bytes)
{
    uint64_t epoch;
    LOCKED(r->pool, epoch = pending_find(r->pool, z, size_bytes));
    return epoch;
}

RIG_TEST(the_oldest_that_fits_is_found, slow(state))
{
    uint64_t a[4], epochs[4];
    static const uint64_t sizes[] = {MIB(2), MIB(8), 3000, MIB(8)};
    for (int i = 0; i < 4; i++)
        a[i] = rig_alloc(r, sizes[i]);
    for (int i = 0; i < 4; i++) {
        epochs[i] = r->pool->fences.open_epoch;
        rig_free(r, a[i]);
        rig_launch(r, 1, MS(10), 0);
    }
    rig_empty_magazines(r);
    EXPECT_EQ(found(r, &r->pool->large, MIB(2)), epochs[0], "the first holds 2 MiB");
    EXPECT_EQ(found(r, &r->pool->large, MIB(4)), epochs[1], "the second holds 4 MiB");
    EXPECT_EQ(found(r, &r->pool->large, MIB(9)), 0, "none holds 9 MiB");
    EXPECT_EQ(found(r, &r->pool->small, 3072), epochs[2], "an object of the same class");
    EXPECT_EQ(found(r, &r->pool->small, 2048), 0, "no object of another class");
}

RIG_TEST(exposed_memory_is_buried_not_reused, slow(state))
{
    uint64_t a = rig_alloc(r, MIB(4));
    rig_expose(r, a);
    rig_free_behind(r, 1, MS(10), a);
    EXPECT_EQ(found(r, &r->pool->large, MIB(4)), 0, "it serves nobody");
    model_advance(r->model, MS(20));
    EXPECT(rig_alloc(r, MIB(4)) != a, "not even when its work is complete");
}

RIG_TEST(a_slab_that_drains_while_pending_comes_back, slow(state))
{
    rig_alloc_all(r, NULL, 500, 600);
    rig_launch(r, 2, MS(5), r->blocks[499].addr);
    rig_free_all(r);
    rig_launch(r, 2, 0, 0);
    model_advance(r->model, MS(5));
    rig_trim(r, 0, false);
    EXPECT_EQ(rig_stats(r).reserved_bytes, 0, "every slab is empty, every chunk released");
}

/* Where its place is too far to be looked for, it waits as long as what is newest. */
RIG_TEST(what_comes_late_keeps_the_queue_in_order, slow(state))
{
    uint64_t addrs[80], late;
    rig_free(r, rig_alloc(r, 512));
    rig_alloc_all(r, addrs, 80, MIB(2) + KIB(64));
    late = rig_alloc(r, KIB(64));
    rig_launch(r, 1, MS(10), addrs[0]);
    rig_free_every(r, addrs, 0, 79, 1);
    rig_free(r, late); /* into the magazine */
    rig_free_behind(r, 1, MS(10), addrs[79]);
    uint64_t before = rig_stats(r).pending_bytes;
    EXPECT(before >= 80 * MIB(2), "more than are looked at");
    rig_empty_magazines(r);
    EXPECT_EQ(rig_stats(r).pending_bytes, before + KIB(64), "it is in the queue");
    EXPECT_SOUND(r);
    rig_launch(r, 1, 0, 0);
    model_drain(r->model);
    rig_trim(r, GIB(1), false);
    EXPECT_EQ(rig_stats(r).pending_bytes, 0, "and comes out of it");
}

/* So many that it takes many batches to come to what the request is for, which was freed last. */
RIG_TEST(a_request_retires_until_it_is_served, slow(state))
{
    enum { OBJECTS = 6000 };
    uint64_t objects[OBJECTS];
    uint64_t large = rig_alloc(r, MIB(64));
    rig_alloc_all(r, objects, OBJECTS, 512);
    rig_launch(r, 1, MS(10), large);
    rig_free_every(r, objects, 0, OBJECTS, 1);
    rig_empty_magazines(r);
    rig_free(r, large);
    EXPECT_EQ(rig_stats(r).pending_bytes, OBJECTS * 512 + MIB(64),
              "the last one is the large block");
    uint64_t reserved_bytes = rig_stats(r).reserved_bytes;
    rig_launch(r, 1, 0, 0);
    model_drain(r->model);
    EXPECT_EQ(rig_alloc(r, MIB(64)), large, "it is ready, behind all the objects");
    EXPECT_EQ(rig_stats(r).reserved_bytes, reserved_bytes, "nothing was taken for it");
}

RIG_TEST(how_much_may_be_pending_depends_on_the_peak, slow(state))
{
    struct pool_stats *s = &r->pool->stats, before = *s;
    static const uint64_t rows[][3] = {
        {MIB(0), MIB(100), MIB(64)}, {MIB(0), MIB(400), MIB(100)}, {MIB(400), MIB(400), MIB(100)},
        {MIB(0), GIB(16), MIB(256)}, {GIB(8), GIB(16), MIB(512)},
    };
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        s->allocated_bytes = rows[i][0];
        s->allocated_peak_bytes = rows[i][1];
        EXPECT_EQ(pending_run_ahead_bytes(r->pool), rows[i][2], "live, and its peak");
    }
    *s = before;
}

PLAY_TESTS
