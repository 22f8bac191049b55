/* SPDX-License-Identifier: BSD-2-Clause
 *
 * MIN_BLOCK and MAX_BLOCK beside magazines.
 */
#include "tests/unit/expect.h"

/* A magazine knows a request's class, or its units; the limits are bytes in the middle of those. */
static void what_the_limits_leave_to_the_driver_comes_out_of_no_magazine(void **state)
{
    (void)state;
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
            struct rig *r = rig_create(RIG_BYTES);
            uint64_t addrs[3], addr;
            int code;
            r->model->backend.single_stream = way & 1;
            r->config.backing = way & 2 ? BACKING_SEGMENT : BACKING_ARENA;
            r->config.min_block_bytes = cases[i].min_bytes;
            r->config.max_block_bytes = cases[i].max_bytes;
            rig_start(r);
            for (unsigned k = 0; k < 3; k++)
                EXPECT(addrs[k] = rig_alloc(r, cases[i].served_bytes), "within the limits");
            for (unsigned k = 0; k < 3; k++)
                rig_free(r, addrs[k]);
            EXPECT_EQ(pool_alloc(r->pool, cases[i].refused_bytes, &addr, &code), POOL_PASS,
                      "beyond a limit");
            EXPECT(rig_alloc(r, cases[i].served_bytes), "within the limits, still");
            EXPECT_ENDS(r);
        }
}

/* Limits that no class or unit lies across cost nothing. */
static void limits_elsewhere_leave_magazines_alone(void **state)
{
    struct rig *r = *state;
    r->config.min_block_bytes = 513;
    r->config.max_block_bytes = MIB(4);
    r->model->backend.single_stream = true;
    rig_start(r);
    static const uint64_t sizes[] = {600, 1024, KIB(20) + 50, KIB(300), MIB(4)};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        rig_free(r, rig_alloc(r, sizes[i]));
        uint64_t a = rig_alloc(r, sizes[i]);
        rig_free(r, a);
        EXPECT_EQ(pool_alloc_fast(r->pool, sizes[i]), a, "out of the magazine");
        EXPECT(pool_free_fast(a), "and into it");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_limits_leave_to_the_driver_comes_out_of_no_magazine),
        RIG_TEST(limits_elsewhere_leave_magazines_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
