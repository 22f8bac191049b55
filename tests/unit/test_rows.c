/* SPDX-License-Identifier: BSD-2-Clause
 *
 * pool/magazine.c: sizes that share a row of a magazine. What comes out of it is what was asked
 * for, whatever was freed into it before.
 */
#include "pool/magazine.h"

#include "pool/map.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

static unsigned row_of(uint64_t addr)
{
    return map_block(map_find(addr), addr)->item.row;
}

static struct rig *start(void **state)
{
    struct rig *r = expect_single(state);
    rig_free(r, rig_alloc(r, 512));
    return r;
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
    for (int i = 0; i < 8; i++)
        rig_free(r, held[i]);
    rig_empty_magazines(r);
    EXPECT_SOUND(r);
}

static void two_sizes_that_share_a_row_are_told_apart(void **state)
{
    struct rig *r = start(state);
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

static void two_large_sizes_are_told_apart(void **state)
{
    struct rig *r = start(state);
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
    EXPECT_SOUND(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(two_sizes_that_share_a_row_are_told_apart),
        RIG_TEST(two_large_sizes_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
