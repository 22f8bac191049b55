/* SPDX-License-Identifier: BSD-2-Clause */
/* pool_list_live and pool_list_chunks: they list what the program holds, and no more. */
#include "tests/unit/cases.h"
#include "tests/unit/rig.h"

enum { RANGES_MAX = 4096 };

static struct pool_range ranges[RANGES_MAX];

static int by_address(const void *a, const void *b)
{
    const struct pool_range *x = a, *y = b;
    return (x->addr > y->addr) - (x->addr < y->addr);
}

static int rig_by_address(const void *a, const void *b)
{
    const struct rig_block *x = a, *y = b;
    return (x->addr > y->addr) - (x->addr < y->addr);
}

/* What the pool lists is what the rig holds. */
static void compare(struct rig *r)
{
    size_t count = pool_list_live(r->pool, ranges, RANGES_MAX);
    assert_int_equal(count, r->count);
    qsort(ranges, count, sizeof *ranges, by_address);
    qsort(r->blocks, r->count, sizeof *r->blocks, rig_by_address);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(ranges[i].addr, r->blocks[i].addr);
        assert_int_equal(ranges[i].size_bytes, r->blocks[i].size_bytes);
    }
    struct pool_stats stats;
    uint64_t held_bytes = 0;
    pool_stats(r->pool, &stats);
    count = pool_list_chunks(r->pool, ranges, RANGES_MAX);
    assert_true(count < RANGES_MAX);
    for (size_t i = 0; i < count; i++)
        held_bytes += ranges[i].size_bytes;
    assert_int_equal(held_bytes, stats.reserved_bytes);
}

static void play(enum pool_backing backing)
{
    static const uint64_t sizes[] = {1,          512,       513,       3000,    KIB(17),  KIB(130),
                                     KIB(700),   MIB(1),    KIB(1536), MIB(2),  MIB(5),   MIB(33),
                                     MIB(2) - 1, KIB(1025), MIB(70),   KIB(64), KIB(512), 777};
    struct rig *r = rig_create(GIB(8));
    r->config.backing = backing;
    rig_start(r);
    compare(r);
    uint32_t seed = 1;
    for (unsigned round = 0; round < 600; round++) {
        seed = seed * 1664525 + 1013904223;
        if (r->count > 80 || (r->count && seed >> 29 < 3))
            rig_free(r, r->blocks[(seed >> 8) % r->count].addr);
        else
            assert_true(rig_alloc(r, sizes[(seed >> 8) % (sizeof sizes / sizeof *sizes)]) != 0);
        if (round % 20 == 0)
            compare(r);
    }
    compare(r);
    rig_free_all(r);
    compare(r);
    assert_null(rig_destroy(r));
}

TEST_IS(all_that_the_program_holds_is_listed_in_an_arena, play(BACKING_AUTO))
TEST_IS(all_that_the_program_holds_is_listed_in_segments, play(BACKING_SEGMENT))

TEST(a_list_is_no_longer_than_its_room)
{
    struct rig *r = rig_create(GIB(1));
    rig_start(r);
    for (int i = 0; i < 20; i++)
        assert_true(rig_alloc(r, KIB(100)) != 0);
    ranges[3].addr = 77;
    assert_int_equal(pool_list_live(r->pool, ranges, 3), 20);
    assert_int_equal(ranges[3].addr, 77);
    assert_int_equal(pool_list_live(r->pool, NULL, 0), 20);
    assert_null(rig_destroy(r));
}

static struct pool *ending;
static size_t live_at_end, chunks_at_end;
static bool looked;

static void look_at_end(struct model *m)
{
    if (ending && !looked) {
        live_at_end = pool_list_live(ending, NULL, 0);
        chunks_at_end = pool_list_chunks(ending, NULL, 0);
        looked = true;
    }
}

/* Another thread asks while pool_abandon unmaps what old work used. The pool has its chunks still,
 * but their memory is going. */
TEST(a_pool_that_is_being_abandoned_lists_nothing)
{
    struct rig *r = rig_create(MIB(512));
    uint64_t a[20];
    r->config.reuse = REUSE_ORDER;
    rig_start(r);
    rig_alloc_all(r, a, 20, MIB(10));
    for (int i = 0; i < 20; i++)
        rig_launch(r, 1, 1000000, a[i]);
    rig_free_every(r, a, 0, 20, 2);
    rig_alloc(r, MIB(60));
    assert_true(pool_list_live(r->pool, NULL, 0) == 11);
    r->model->hook_unmap = look_at_end;
    ending = r->pool;
    model_destroy_context(r->model);
    pool_abandon(r->pool);
    ending = NULL;
    assert_true(looked);
    assert_int_equal(live_at_end, 0);
    assert_int_equal(chunks_at_end, 0);
    assert_int_equal(pool_list_live(r->pool, NULL, 0), 0);
    assert_int_equal(pool_list_chunks(r->pool, NULL, 0), 0);
    assert_null(rig_destroy(r));
}

PLAY_TESTS
