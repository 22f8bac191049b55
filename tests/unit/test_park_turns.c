/* SPDX-License-Identifier: BSD-2-Clause */
/* Many parks and wakes in turn, while the program allocates and frees: pool/park.c. */
#include "tests/unit/expect.h"

#ifndef FEWER_ROUNDS
#define FEWER_ROUNDS 1
#endif

static uint32_t seed = 1;

static uint32_t next(uint32_t below)
{
    seed = seed * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)(seed >> 4) * below >> 28);
}

/* Another thread, while the pool walks or the driver works. */
static void others_allocate_and_free(struct rig *r)
{
    static const uint64_t sizes[] = {512,      3000,   KIB(40), KIB(300),
                                     KIB(900), MIB(2), MIB(5),  MIB(9)};
    for (uint32_t n = next(4); n > 0; n--)
        if (r->count > 40 || (r->count && next(2)))
            rig_free(r, r->blocks[next(r->count)].addr);
        else
            rig_alloc(r, sizes[next(8)] + next(512));
}

/* Blocks of all sizes over the borders of chunks, slabs half free; blocks are freed and others
 * handed out in their places at each moment of a park and of a wake. */
RIG_TEST(no_byte_differs_in_ten_thousand_cycles, expect_bytes(*state))
{
    r->park_hook = others_allocate_and_free;
    for (int cycle = 0; cycle < 10000 / FEWER_ROUNDS / FEWER_ROUNDS; cycle++) {
        for (int i = 0; i < 3; i++)
            others_allocate_and_free(r);
        for (uint32_t i = 0; i < r->count; i++)
            if (!r->blocks[i].written && !pool_away_bytes(r->pool))
                rig_write(r, &r->blocks[i]);
        uint32_t keep = next(4) ? 0 : next(40), most = next(4) ? 0 : next(40);
        rig_park(r, MIB(keep), MIB(most), next(8) == 0);
        others_allocate_and_free(r);
        if (cycle % 64 == 0)
            EXPECT_SOUND(r);
        if (next(4))
            EXPECT_EQ(rig_wake(r), 0, "memory comes back");
        if (cycle % 64 == 32)
            EXPECT_SOUND(r);
    }
    EXPECT(rig_stats(r).num_device_free > 200, "chunks came and went");
    EXPECT_EQ(rig_wake(r), 0, "memory comes back");
}

static atomic_bool parks_are_over;

struct worker {
    pthread_t thread;
    struct pool *pool;
    uint32_t seed;
    uint64_t held[16];
};

static void *allocate_and_free(void *arg)
{
    struct worker *w = arg;
    int code;
    while (!atomic_load(&parks_are_over)) {
        w->seed = w->seed * 1664525 + 1013904223;
        uint64_t *slot = &w->held[w->seed >> 28];
        if (*slot && pool_free(*slot) != POOL_OK)
            abort();
        *slot = 0;
        if (w->seed & 0x800000)
            pool_alloc(w->pool, KIB(1) << (w->seed >> 16 & 15) >> 2, slot, &code);
    }
    for (int i = 0; i < 16; i++)
        if (w->held[i])
            pool_free(w->held[i]);
    return NULL;
}

static void *ask_and_trim(void *arg)
{
    struct pool *p = arg;
    struct pool_stats s;
    struct pool_range range = {0};
    struct pool_block block;
    while (!atomic_load(&parks_are_over)) {
        const struct pool_trim trim = {0};
        pool_trim(p, &trim);
        pool_tick(p, NULL);
        pool_stats(p, &s);
        if (pool_list_live(p, &range, 1) && pool_is_away(range.addr))
            pool_lookup(range.addr, &block);
        if (s.away_bytes > s.reserved_bytes || pool_away_bytes(p) > RIG_BYTES)
            abort();
    }
    return NULL;
}

static bool pass(void *arg, uint64_t addr, uint64_t size_bytes)
{
    if (pool_is_away(addr))
        abort(); /* it is held: see pool_park_each */
    return size_bytes > 0;
}

/* Other threads use the pool at each moment of a park and a wake. */
RIG_TEST(threads_allocate_free_and_ask_beside_parks, expect_arena(state))
{
    enum { WORKERS = 3 };
    static struct worker workers[WORKERS];
    r->model->late_allowed = true;
    for (uint32_t i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){.pool = r->pool, .seed = i + 1};
        pthread_create(&workers[i].thread, NULL, allocate_and_free, &workers[i]);
    }
    pthread_t asker = started(ask_and_trim, r->pool);
    uint64_t gone = 0;
    for (int cycle = 0; cycle < 300 / FEWER_ROUNDS / FEWER_ROUNDS; cycle++) {
        uint64_t held = pool_park_hold(r->pool, 0, cycle % 3 ? 0 : MIB(8));
        EXPECT(pool_park_each(r->pool, pass, NULL), "to the end");
        EXPECT_EQ(pool_park_end(r->pool, cycle % 5), cycle % 5 ? held : 0, "what is held");
        gone += held;
        if (cycle % 2) {
            EXPECT_EQ(pool_wake_begin(r->pool), 0, "it comes back");
            EXPECT(pool_park_each(r->pool, pass, NULL), "to the end");
            pool_wake_end(r->pool);
        }
    }
    EXPECT_EQ(pool_wake_begin(r->pool), 0, "it comes back");
    pool_wake_end(r->pool);
    atomic_store(&parks_are_over, true);
    for (int i = 0; i < WORKERS; i++)
        pthread_join(workers[i].thread, NULL);
    pthread_join(asker, NULL);
    EXPECT(gone > MIB(40), "memory went");
}

PLAY_TESTS
