/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/magazine.c: a thread gets what it freed again without the pool's lock. To all others the
 * memory looks freed meanwhile, it makes no request fail, and it is counted as if the pool had done
 * it. */
#include "tests/unit/magazine.h"

RIG_TEST(what_was_freed_comes_back_newest_first, start(state))
{
    static const uint64_t sizes[] = {1, 512, 5000, KIB(32), KIB(33), KIB(700), MIB(1), MIB(2)};
    for (unsigned i = 0; i < 8; i++) {
        uint64_t a = rig_alloc(r, sizes[i]), b = rig_alloc(r, sizes[i]);
        uint64_t before = cached(r);
        rig_free(r, a);
        rig_free(r, b);
        EXPECT(cached(r) >= before + 2 * sizes[i], "both are in the magazine");
        EXPECT(rig_alloc(r, sizes[i]) == b && rig_alloc(r, sizes[i]) == a, "newest first");
        EXPECT_EQ(cached(r), before, "and it holds them no more");
        EXPECT_SOUND(r);
    }
}

RIG_TEST(its_contents_look_freed, start(state))
{
    uint64_t sizes[] = {700, KIB(300)};
    for (int i = 0; i < 2; i++) {
        uint64_t a = rig_alloc(r, sizes[i]);
        struct pool_block first, block;
        EXPECT_EQ(pool_lookup(a, &first), POOL_OK, "live");
        rig_free(r, a);
        EXPECT(cached(r) >= sizes[i], "it is in the magazine");
        EXPECT_EQ(pool_lookup(a, &block), POOL_INVALID, "the program does not hold it");
        EXPECT_EQ(pool_lookup(a + sizes[i] / 2, &block), POOL_INVALID, "nor anything inside");
        EXPECT_EQ(pool_expose(a), POOL_INVALID, "it cannot be shared");
        EXPECT_EQ(pool_free(a), POOL_INVALID, "nor freed twice");
        EXPECT_EQ(rig_alloc(r, sizes[i] - 5), a, "it comes back");
        EXPECT_EQ(pool_lookup(a, &block), POOL_OK, "and is live again");
        EXPECT(block.serial != first.serial && block.requested_bytes == sizes[i] - 5,
               "as another block, of another size");
        EXPECT(pool_free(a + 512) == POOL_INVALID && pool_free(a + 1) == POOL_INVALID,
               "which is freed by its start alone");
    }
}

RIG_TEST(it_is_counted_as_the_pools_own, start(state))
{
    struct pool_stats before = rig_stats(r), after;
    uint64_t a = rig_alloc(r, 600);
    for (int i = 0; i < 1000; i++) {
        rig_free(r, a);
        a = rig_alloc(r, 600);
    }
    after = rig_stats(r);
    EXPECT_EQ(after.num_allocs, before.num_allocs + 1001, "allocations");
    EXPECT_EQ(after.num_hits, before.num_hits + 1001, "none asked the driver");
    EXPECT_EQ(after.num_frees, before.num_frees + 1000, "frees");
    EXPECT_EQ(after.live_blocks, 1, "blocks");
    EXPECT_EQ(after.requested_bytes, 600, "bytes asked for");
    EXPECT_EQ(after.allocated_bytes, 1024, "bytes handed out");
    EXPECT_EQ(after.allocated_peak_bytes, 1024, "never more than that");
    rig_freed(r, KIB(64));
    EXPECT_EQ(rig_stats(r).allocated_bytes, 1024, "what lies in the magazine is not live");
    EXPECT_EQ(pool_idle_bytes(r->pool), rig_stats(r).reserved_bytes - 1024, "but idle");
    rig_free(r, a);
    rig_alloc(r, KIB(64));
    rig_alloc(r, 600);
    rig_alloc(r, KIB(200));
    EXPECT_EQ(rig_stats(r).allocated_peak_bytes, 1024 + KIB(264), "the peak counts all of them");
}

RIG_TEST(serials_do_not_repeat, start(state))
{
    uint64_t last = 0;
    for (int i = 0; i < 20000; i++) {
        struct pool_block block;
        uint64_t a = rig_alloc(r, i % 7 ? 512 : MIB(3));
        EXPECT(pool_lookup(a, &block) == POOL_OK && block.serial != last, "a block of its own");
        last = block.serial;
        rig_free(r, a);
    }
    EXPECT_EQ(rig_stats(r).num_allocs, 20001, "all counted");
}

RIG_TEST(it_holds_little, start(state))
{
    uint64_t a[64];
    for (int i = 0; i < 64; i++)
        a[i] = rig_alloc(r, MIB(1) + 512 * (uint64_t)i);
    rig_free_every(r, a, 0, 64, 1);
    EXPECT(cached(r) > MIB(2) && cached(r) <= MAGAZINE_BYTES, "some, within its bounds");
    EXPECT_SOUND(r);
    rig_empty_magazines(r);
    uint64_t large = rig_alloc(r, MAGAZINE_LARGE_BYTES), second = rig_alloc(r, MIB(3)),
             small = rig_alloc(r, KIB(100));
    rig_free(r, rig_alloc(r, MAGAZINE_LARGE_BYTES + 512));
    EXPECT_EQ(cached(r), 0, "nothing larger");
    rig_free(r, large);
    rig_free(r, second);
    EXPECT_EQ(cached(r), MAGAZINE_LARGE_BYTES, "one large block");
    rig_free(r, small);
    EXPECT_EQ(cached(r), MAGAZINE_LARGE_BYTES + KIB(100), "and small ones beside it");
    EXPECT_EQ(rig_alloc(r, MAGAZINE_LARGE_BYTES), large, "it comes back");
    rig_free(r, rig_alloc(r, MIB(3)));
    EXPECT_EQ(cached(r) & ~KIB(127), MIB(3), "and leaves its place to another");
    EXPECT_SOUND(r);
    rig_empty_magazines(r);
    for (uint64_t size = KIB(2052); size <= MIB(6); size += KIB(676)) {
        rig_alloc_all(r, a, 12, size);
        rig_free_every(r, a, 0, 12, 1);
        EXPECT(cached(r) > MAGAZINE_BYTES && cached(r) <= MAGAZINE_BYTES + size,
               "many of one size");
        uint64_t left = cached(r), b[12];
        int count = 0;
        for (; left; left -= size) {
            EXPECT_EQ(cached(r), left, "all of them come back");
            b[count++] = rig_alloc(r, size);
        }
        EXPECT_EQ(cached(r), 0, "and no more");
        rig_alloc_all(r, a, 7, MIB(2));
        rig_free_every(r, b, 0, count, 1);
        rig_free_every(r, a, 0, 7, 1);
        EXPECT(cached(r) > MAGAZINE_BYTES && cached(r) <= MAGAZINE_BYTES + size,
               "with small ones beside them");
        rig_empty_magazines(r);
        EXPECT_SOUND(r);
    }
}

/* Whatever went in and came out again, in whatever order. */
RIG_TEST(empty_it_has_room_for_all_that_it_may_hold, start(state))
{
    static const uint64_t sizes[] = {512,    KIB(5), KIB(100), MIB(2),
                                     MIB(3), MIB(3), MIB(5),   MIB(64)};
    rig_empty_magazines(r);
    int64_t nothing = magazine(r)->cached;
    uint64_t held[64] = {0}, random = 1;
    for (int turn = 0; turn < 4000; turn++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t *at = &held[random >> 58], size = sizes[random >> 40 & 7];
        if (*at)
            rig_free(r, *at);
        *at = *at ? 0 : rig_alloc(r, size);
        EXPECT(cached(r) <= MAGAZINE_BYTES + MAGAZINE_LARGE_BYTES, "within its bounds");
        if (turn % 500 == 0) {
            rig_empty_magazines(r);
            EXPECT_EQ(magazine(r)->cached, nothing, "emptied by the pool");
            EXPECT_SOUND(r);
        }
    }
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint64_t before = UINT64_MAX; cached(r) < before;) {
            before = cached(r);
            rig_alloc(r, sizes[i]);
        }
    EXPECT_EQ(magazine(r)->cached, nothing, "emptied by requests");
}

RIG_TEST(trims_and_growth_empty_it, start(state))
{
    rig_freed(r, MIB(2));
    EXPECT(cached(r) >= MIB(2), "one is cached");
    EXPECT(rig_trim(r, 0, true) > 0, "it is given back");
    EXPECT_EQ(cached(r), 0, "all of it");
    EXPECT_EQ(rig_stats(r).reserved_bytes, 0, "to the last byte");
    uint64_t b[4];
    rig_alloc_all(r, b, 4, MIB(2));
    uint64_t reserved = rig_stats(r).reserved_bytes;
    rig_free_every(r, b, 0, 4, 1);
    EXPECT(cached(r) >= MIB(8), "all four are cached");
    EXPECT(rig_alloc(r, reserved), "a request for all of it");
    EXPECT_EQ(rig_stats(r).reserved_bytes, reserved, "is served by what lay there");
}

/* Before a large free block is cut: what lies here may make one that fits better. An exact one is
 * taken and leaves the magazine alone. */
RIG_TEST(its_blocks_merge_before_free_memory_is_cut, start(state))
{
    uint64_t large = rig_alloc(r, MIB(66)), wall = rig_alloc(r, MIB(2)), parts[3];
    rig_alloc_all(r, parts, 3, MIB(1) + MIB(1) / 2);
    EXPECT(wall && rig_alloc(r, MIB(2)), "walls on both sides of them");
    rig_free(r, large);
    rig_free_every(r, parts, 0, 3, 1);
    uint64_t full = cached(r);
    EXPECT(full >= MIB(4), "all three are in the magazine");
    EXPECT_EQ(rig_alloc(r, MIB(66)), large, "an exact one");
    EXPECT_EQ(cached(r), full, "the magazine is as it was");
    rig_free(r, large);
    EXPECT_EQ(rig_alloc(r, MIB(4)), parts[0], "the three parts, merged");
    EXPECT(cached(r) < KIB(64), "their magazine holds objects alone");
}

/* What it was handed out lately is asked first when it frees. That may be the program's no more,
 * and its record another block's. */
RIG_TEST(the_record_of_another_block_is_left_alone, start(state))
{
    uint64_t sizes[] = {700, KIB(300)};
    for (int i = 0; i < 2; i++) {
        uint64_t a = rig_alloc(r, sizes[i]), b = rig_alloc(r, sizes[i]);
        struct magazine *m = magazine(r);
        struct item *of_a = NULL, *of_b = NULL;
        for (unsigned at = 0; at < MAGAZINE_HINTS; at++) {
            of_a = item_addr(m->hints[at]) == a ? m->hints[at] : of_a;
            of_b = item_addr(m->hints[at]) == b ? m->hints[at] : of_b;
        }
        EXPECT(of_a && of_b && of_a != of_b, "both are known");
        m->hints[of_a->hint] = of_b;
        rig_free(r, a);
        EXPECT_EQ(pool_free(a), POOL_INVALID, "it is freed");
        struct pool_block block;
        EXPECT_EQ(pool_lookup(b, &block), POOL_OK, "the other is not");
        rig_free(r, b);
        EXPECT_EQ(rig_alloc(r, sizes[i]), b, "both lie in the magazine");
        EXPECT_EQ(rig_alloc(r, sizes[i]), a, "the first below");
        EXPECT_SOUND(r);
    }
}

/* Whatever the address, what stands for "nothing" among what was handed out lately is not taken for
 * its record. */
RIG_TEST(what_no_record_names_is_not_taken_in, start(state))
{
    static const uint64_t wild[] = {0,         1, 2, 511, 512, UINT64_MAX - 511, UINT64_MAX - 1,
                                    UINT64_MAX};
    rig_empty_magazines(r);
    for (unsigned i = 0; i < sizeof wild / sizeof *wild; i++)
        EXPECT(!pool_free_fast(wild[i]), "no pool's");
    EXPECT_EQ(cached(r), 0, "nothing came in");
    pool_forget_thread();
    for (unsigned i = 0; i < sizeof wild / sizeof *wild; i++)
        EXPECT(!pool_free_fast(wild[i]), "nor where there is no magazine");
}

RIG_TEST(with_several_streams_frees_wait_for_fences, start(state))
{
    uint64_t a = rig_alloc(r, KIB(64)), b = rig_alloc(r, KIB(64));
    rig_free_behind(r, 0, MS(20), a);
    EXPECT(cached(r) >= KIB(64), "stream order makes it safe");
    rig_free_behind(r, 1, MS(5), b);
    EXPECT_EQ(cached(r), KIB(128), "this one waits for its fence beside it");
    EXPECT_EQ(rig_alloc(r, KIB(64)), a, "the other was ordered as the stream was left");
    LOCKED(r->pool, EXPECT_EQ(magazine_awaits(r->pool, KIB(64)), 1, "that one is still there"));
}

RIG_TEST(with_several_streams_what_came_first_comes_back_first, start(state))
{
    uint64_t a[5], large = rig_alloc(r, MIB(3));
    rig_launch(r, 1, 0, 0);
    rig_alloc_all(r, a, 5, KIB(64));
    for (int i = 0; i < 5; i++) {
        rig_free_behind(r, 1, MS(10), a[i]);
        LOCKED(r->pool, fence_seal(r->pool));
    }
    EXPECT_EQ(cached(r), 5 * KIB(64), "all are in the magazine");
    model_advance(r->model, MS(25));
    LOCKED(r->pool, EXPECT(fence_poll(r->pool), "two are complete"));
    EXPECT(pool_alloc_fast(r->pool, KIB(64)) == a[0] && pool_alloc_fast(r->pool, KIB(64)) == a[1],
           "the two oldest");
    EXPECT_EQ(pool_alloc_fast(r->pool, KIB(64)), 0, "and no other");
    EXPECT_EQ(cached(r), 3 * KIB(64), "those stay");
    rig_free(r, large);
    EXPECT_EQ(cached(r), 3 * KIB(64), "a large block is for the pool to weigh");
    EXPECT(pool_free_fast(a[0]) && pool_free_fast(a[1]), "freed again");
    model_drain(r->model);
}

RIG_TEST(what_came_late_waits_for_its_fence, start(state))
{
    uint64_t a = rig_alloc(r, KIB(64));
    rig_launch(r, 0, MS(20), a);
    /* As a thread does that saw one stream, was held up, and went on after the stream was left. */
    rig_free(r, a);
    struct magazine_row *row = NULL;
    for (unsigned i = MAGAZINE_BLOCKS; i < MAGAZINE_BLOCKS + MAGAZINE_SIZES; i++)
        row = magazine(r)->rows[i].newest ? &magazine(r)->rows[i] : row;
    EXPECT(row && row->newest == sizeof row->cells[0], "it is in the magazine");
    rig_launch(r, 1, 0, 0);
    row->cells[1].epoch = pool_mark(r->pool);
    uint64_t b = rig_alloc(r, KIB(64));
    EXPECT(b && b != a, "not handed out before its fence");
    rig_empty_magazines(r);
    EXPECT_EQ(r->pool->stats.pending_bytes, KIB(64), "it waits in the queue");
}

RIG_TEST(a_lost_context_hands_nothing_out, start(state))
{
    rig_pending(r, 0, MS(20), KIB(64));
    r->model->broken = true;
    rig_launch(r, 0, MS(1), 0);
    r->lost = true;
    EXPECT(!rig_alloc(r, KIB(64)), "not from the magazine either");
    EXPECT_EQ(r->status, POOL_PASS, "the driver is asked");
}

RIG_TEST(sync_free_has_no_magazines, *state)
{
    r->model->backend.single_stream = true;
    r->config.sync_free = true;
    rig_start(r);
    for (int i = 0; i < 3; i++)
        rig_free(r, rig_alloc(r, 512));
    EXPECT_EQ(cached(r), 0, "each free waits, none is kept aside");
}

RIG_TEST(where_each_free_is_looked_at_there_are_none, *state)
{
    r->model->backend.single_stream = true;
    r->model->backend.sees_all = true;
    rig_start(r);
    for (int i = 0; i < 3; i++) {
        uint64_t a = rig_alloc(r, 512);
        EXPECT(!pool_free_fast(a), "a free comes the slow way");
        rig_free(r, a);
        EXPECT(!pool_alloc_fast(r->pool, 512), "and so does the next request");
    }
}

/* As in a signal handler that interrupted this thread under a lock. */
RIG_TEST(a_thread_learns_that_it_would_wait_for_itself, start(state))
{
    struct magazine *m = magazine(r);
    EXPECT(pool_can_tell(r->pool), "no thread is in the pool");
    atomic_store(&m->locked, 1);
    bool can = pool_can_tell(r->pool);
    magazine_unlock(m);
    EXPECT(!can, "its magazine is locked");
    LOCKED(r->pool, can = pool_can_tell(r->pool));
    EXPECT(!can, "the pool is locked");
    EXPECT(pool_can_tell(r->pool), "it keeps no lock itself");
}

PLAY_TESTS
