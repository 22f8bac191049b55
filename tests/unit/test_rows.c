/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/magazine.c: sizes that share a row of a magazine, and limits that lie across one. What comes
 * out of it is what was asked for, whatever was freed into it before. */
#include "pool/map.h"
#include "tests/unit/magazine.h"

static unsigned row_of(uint64_t addr)
{
    return map_block(map_find(addr), addr)->item.row;
}

/* The rig blames each block that is too small. */
static void mix(struct rig *r, uint64_t small_bytes, uint64_t large_bytes)
{
    uint64_t held[8];
    for (int i = 0; i < 8; i++)
        held[i] = rig_alloc(r, i % 2 ? large_bytes : small_bytes);
    for (int from = 0; from < 8; from++) {
        for (int i = 0; i < 8; i++)
            rig_free(r, held[(from + i * 3) % 8]);
        for (int i = 0; i < 8; i++)
            held[i] = rig_alloc(r, i % 2 ? large_bytes : small_bytes);
        EXPECT_SOUND(r);
    }
    rig_free_every(r, held, 0, 8, 1);
    rig_empty_magazines(r);
    EXPECT_SOUND(r);
}

RIG_TEST(two_sizes_that_share_a_row_are_told_apart, start(state))
{
    uint64_t first[MAGAZINE_ROWS] = {0};
    unsigned shared = 0;
    for (uint64_t size = KIB(33); size <= MIB(2); size += KIB(16)) {
        uint64_t a = rig_alloc(r, size);
        unsigned row = row_of(a);
        rig_free(r, a);
        if (first[row] && shared++ < 40)
            mix(r, first[row], size);
        if (!first[row] || shared % 3 == 0)
            first[row] = size;
    }
    EXPECT(shared > 20, "more sizes than rows");
}

RIG_TEST(two_large_sizes_are_told_apart, start(state))
{
    uint64_t a[2], b[2];
    for (int i = 0; i < 2; i++) {
        a[i] = rig_alloc(r, MIB(3));
        b[i] = rig_alloc(r, MIB(5));
    }
    rig_free(r, a[0]);
    rig_free(r, a[1]); /* among more of the size */
    EXPECT(rig_alloc(r, MIB(3)), "the one large block");
    rig_free(r, b[0]);
    rig_free(r, b[1]); /* not among the others */
    for (int i = 0; i < 3; i++)
        EXPECT(rig_alloc(r, MIB(5)), "of the size that was asked for");
    EXPECT(rig_alloc(r, MIB(3)), "the other stayed");
}

/* A magazine knows a request's class, or its units; the limits are bytes in the middle of those. */
TEST(what_the_limits_leave_to_the_driver_comes_out_of_no_magazine)
{
    static const struct {
        uint64_t min_bytes, max_bytes, served_bytes, refused_bytes;
    } cases[] = {
        {0, 1000, 1000, 1020},
        {0, 1000, 513, 1001},
        {0, KIB(20) + 100, KIB(20) + 50, KIB(20) + 200},
        {0, KIB(300) + 100, KIB(300) + 100, KIB(300) + 200},
        {0, MIB(5) + 1, MIB(5) + 1, MIB(5) + 2},
        {1000, UINT64_MAX, 1010, 990},
        {KIB(20) + 100, UINT64_MAX, KIB(20) + 100, KIB(20) + 99},
        {KIB(300) + 100, UINT64_MAX, KIB(300) + 400, KIB(300) + 1},
    };
    for (unsigned way = 0; way < 4; way++)
        for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct rig *r = rig_in(RIG_BYTES, way & 2, way & 1);
            uint64_t addrs[3], addr;
            int code;
            r->config.min_block_bytes = cases[i].min_bytes;
            r->config.max_block_bytes = cases[i].max_bytes;
            rig_start(r);
            for (unsigned k = 0; k < 3; k++)
                EXPECT(addrs[k] = rig_alloc(r, cases[i].served_bytes), "within the limits");
            rig_free_every(r, addrs, 0, 3, 1);
            EXPECT_EQ(pool_alloc(r->pool, cases[i].refused_bytes, &addr, &code), POOL_PASS,
                      "beyond a limit");
            EXPECT(rig_alloc(r, cases[i].served_bytes), "within the limits, still");
            EXPECT_ENDS(r);
        }
}

/* Limits that no class or unit lies across cost nothing. */
RIG_TEST(limits_elsewhere_leave_magazines_alone, *state)
{
    r->config.min_block_bytes = 513;
    r->config.max_block_bytes = MIB(4);
    r->model->backend.single_stream = true;
    rig_start(r);
    static const uint64_t sizes[] = {600, 1024, KIB(20) + 50, KIB(300), MIB(4)};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        rig_free(r, rig_alloc(r, sizes[i]));
        uint64_t a = rig_freed(r, sizes[i]);
        EXPECT_EQ(pool_alloc_fast(r->pool, sizes[i]), a, "out of the magazine");
        EXPECT(pool_free_fast(a), "and into it");
    }
}

PLAY_TESTS
