/* SPDX-License-Identifier: BSD-2-Clause */
/* One thread frees what is not the start of a live block, while another makes and unmakes the
 * blocks and slabs there. Each such free gets an error, and harms no other memory. To be run under
 * TSan and ASan as well. */
#include "pool/bits.h"
#include "shim/process/clock.h"
#include "tests/unit/expect.h"

#define LENGTH_NS UINT64_C(700000000)
#ifndef FEWER_ROUNDS
#define FEWER_ROUNDS 1 /* a divisor */
#endif
enum { ROUNDS = 1000 / FEWER_ROUNDS, FREES = 1000, OBJECTS = 400 };

static struct {
    struct rig *rig;
    _Atomic uint64_t around; /* the latest address that was handed out */
    atomic_bool done;
    atomic_uint wrong; /* frees that were taken */
    atomic_ullong frees;
} shared;

static void free_one_of_its_own(struct rig *r)
{
    uint64_t addr;
    int code;
    EXPECT_EQ(pool_alloc(r->pool, KIB(8), &addr, &code), POOL_OK, "there is memory");
    EXPECT_EQ(pool_free(addr), POOL_OK, "it was live"); /* from here on the thread has a magazine */
}

/* Inside an object, inside a block, behind it and far from any. The quick way mostly: it takes no
 * lock. */
static void *free_wrongly(void *arg)
{
    static const uint64_t offsets[] = {8, 256, 520, 1048, KIB(64) + 8, MIB(1) + 8};
    struct rig *r = shared.rig;
    free_one_of_its_own(r);
    for (unsigned i = 0; !atomic_load(&shared.done); i++) {
        uint64_t addr = atomic_load_explicit(&shared.around, memory_order_relaxed);
        uint64_t wrong =
            addr + offsets[i % 16 ? i % 2 : i / 16 % (sizeof offsets / sizeof *offsets)];
        if (addr && (i % 64 ? pool_free_fast(wrong) : pool_free(wrong) == POOL_OK))
            atomic_fetch_add(&shared.wrong, 1);
        atomic_fetch_add_explicit(&shared.frees, 1, memory_order_relaxed);
    }
    return NULL;
}

/* Slabs of one size after the other where others were, and blocks where slabs were. */
static void recycle(struct rig *r, unsigned round)
{
    static const uint64_t sizes[] = {512, KIB(3), KIB(9), KIB(30), KIB(40), KIB(500), MIB(3)};
    uint64_t addrs[OBJECTS], size_bytes = sizes[round % (sizeof sizes / sizeof *sizes)];
    unsigned count = round % 50 ? 1 : size_bytes > KIB(32) ? OBJECTS / 10 : OBJECTS;
    int code;
    for (unsigned i = 0; i < count; i++) {
        EXPECT_EQ(pool_alloc(r->pool, size_bytes, &addrs[i], &code), POOL_OK, "there is memory");
        atomic_store_explicit(&shared.around, addrs[i], memory_order_relaxed);
    }
    for (unsigned i = 0; i < count; i++)
        EXPECT_EQ(pool_free(addrs[i]), POOL_OK, "it was live");
    pool_trim(r->pool, &(struct pool_trim){.keep_bytes = 0});
}

static void recycle_beside_wrong_frees(struct rig *r)
{
    shared.rig = r;
    atomic_store(&shared.around, 0);
    atomic_store(&shared.done, false);
    atomic_store(&shared.wrong, 0);
    atomic_store(&shared.frees, 0);
    pthread_t thread = started(free_wrongly, NULL);
    uint64_t until_ns = clock_now_ns() + LENGTH_NS;
    for (unsigned round = 0;
         round < ROUNDS || atomic_load(&shared.frees) < FREES || clock_now_ns() < until_ns; round++)
        recycle(r, round);
    atomic_store(&shared.done, true);
    pthread_join(thread, NULL);
    EXPECT_EQ(atomic_load(&shared.wrong), 0, "none of them was a block's start");
    EXPECT_SOUND(r);
}

POOL_TEST_IS(wrong_frees_beside_slabs_that_come_and_go,
             recycle_beside_wrong_frees(expect_arena(state)))
POOL_TEST_IS(wrong_frees_beside_slabs_in_segments,
             recycle_beside_wrong_frees(expect_segments(state)))
POOL_TEST_IS(wrong_frees_with_one_stream, recycle_beside_wrong_frees(expect_single(state)))

/* While a free waits for the GPU its block is freed a second time, and its segment is another
 * pool's by then. */
struct meanwhile {
    struct rig *rig;
    struct pool *other;
    uint64_t addr, again;
};

static void free_and_give_away(struct model *m, enum model_row row)
{
    struct meanwhile *w = m->hook_arg;
    int code;
    if (row != MODEL_ROW_fence_wait)
        return;
    m->hook = NULL;
    EXPECT_EQ(pool_free(w->addr), POOL_OK, "it is live until then");
    EXPECT_EQ(pool_trim(w->rig->pool, &(struct pool_trim){.wait_ns = MS(100)}), MIB(4),
              "its segment goes back");
    EXPECT_EQ(pool_alloc(w->other, MIB(4), &w->again, &code), POOL_OK, "there is memory");
    EXPECT_EQ(w->again, w->addr, "at the same place");
}

RIG_TEST(a_free_that_waited_frees_nothing_of_another_pool, *state)
{
    struct meanwhile w = {.rig = r};
    r->config.backing = BACKING_SEGMENT;
    r->config.sync_free = true;
    rig_start(r);
    w.other = pool_create(&r->model->backend, &r->config, &w);
    w.addr = rig_alloc(r, MIB(4));
    rig_launch(r, 1, MS(1), w.addr);
    r->count = 0;
    model_note_free(r->model);
    rig_hook(r, free_and_give_away, &w);
    EXPECT_EQ(pool_free(w.addr), POOL_INVALID, "it was freed before");
    EXPECT(w.again, "meanwhile");
    EXPECT(!pool_check(r->pool), pool_check(r->pool));
    EXPECT(!pool_check(w.other), pool_check(w.other));
    EXPECT_EQ(pool_free(w.again), POOL_OK, "it is live");
    pool_trim(w.other, &(struct pool_trim){.wait_ns = MS(1000)});
    pool_abandon(w.other);
}

/* Frees addresses one below a multiple of a unit, all over blocks and slabs whose records had other
 * lives. At such an address the word of a free item is the same number as that of a held item. */
static void free_below_units(struct rig *r)
{
    static const uint64_t sizes[][4] = {{33000, KIB(64), 100000, 40000},
                                        {512, KIB(1), KIB(4), 9000}};
    enum { COUNT = 200, UNITS = 128, TURNS = 12 };
    uint64_t addrs[COUNT], random = 1;
    int code;
    for (unsigned turn = 0; turn < TURNS; turn++) {
        for (unsigned i = 0; i < COUNT; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            EXPECT_EQ(pool_alloc(r->pool, sizes[turn % 2][random >> 62], &addrs[i], &code), POOL_OK,
                      "there is memory");
        }
        for (unsigned i = 0; i < COUNT; i++)
            for (unsigned unit = 1; unit <= UNITS; unit++)
                EXPECT(pool_free(addrs[i] + unit * UNIT_BYTES - 1) != POOL_OK,
                       "no start of a block");
        for (unsigned i = 0; i < COUNT; i++)
            EXPECT_EQ(pool_free(addrs[i]), POOL_OK, "it was live");
        if (turn % 3 == 2)
            pool_trim(r->pool, &(struct pool_trim){.keep_bytes = 0});
    }
    EXPECT_SOUND(r);
}

POOL_TEST_IS(one_below_a_free_item_is_no_start, free_below_units(expect_arena(state)))
POOL_TEST_IS(one_below_a_free_item_in_segments, free_below_units(expect_segments(state)))
POOL_TEST_IS(one_below_a_free_item_with_one_stream, free_below_units(expect_single(state)))

PLAY_TESTS
