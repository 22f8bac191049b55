/* SPDX-License-Identifier: BSD-2-Clause
 *
 * pool/magazine.c: another thread frees the same block at every moment of a free into a magazine.
 * One of the two frees it, and the other is told that it is not the program's.
 */
#include "tests/unit/steps.h"
/* After it. */
#include "pool/magazine.c"

#include "tests/unit/expect.h"

struct other {
    uint64_t addr;
    enum pool_status status;
};

static void *free_it(void *arg)
{
    struct other *o = arg;
    o->status = pool_free_slowly(o->addr);
    return NULL;
}

static void free_elsewhere(void *arg)
{
    pthread_t thread;
    pthread_create(&thread, NULL, free_it, arg);
    pthread_join(thread, NULL);
}

static void one_of_two_frees_at_the_same_time_is_refused(void **state)
{
    static const uint64_t sizes[] = {700, KIB(300), MIB(3)};
    struct rig *r = expect_single(state);
    int code;
    rig_free(r, rig_alloc(r, 512));
    for (unsigned several = 0; several < 2; several++) {
        if (several)
            rig_launch(r, 1, 0, 0);
        for (unsigned i = 0; i < 3; i++) {
            unsigned moments = 0;
            for (unsigned at = 1;; at++) {
                struct other o = {.status = POOL_FOREIGN};
                struct steps steps = {.step = free_elsewhere, .arg = &o, .at = at};
                EXPECT_EQ(pool_alloc(r->pool, sizes[i], &o.addr, &code), POOL_OK,
                          "there is memory");
                steps_mine = &steps;
                enum pool_status mine = pool_free(o.addr);
                steps_mine = NULL;
                if (steps.loads < at)
                    break;
                moments++;
                EXPECT((mine == POOL_OK) + (o.status == POOL_OK) == 1, "one frees it");
                EXPECT(mine != POOL_FOREIGN && o.status != POOL_FOREIGN,
                       "it is the pool's all the time");
                uint64_t a, b;
                EXPECT_EQ(pool_alloc(r->pool, sizes[i], &a, &code), POOL_OK, "there is memory");
                EXPECT_EQ(pool_alloc(r->pool, sizes[i], &b, &code), POOL_OK, "and more of it");
                EXPECT(a != b, "it is not handed out twice");
                EXPECT(pool_free(a) == POOL_OK && pool_free(b) == POOL_OK, "each is freed once");
                EXPECT_SOUND(r);
            }
            EXPECT(moments >= 3, "there are such moments");
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(one_of_two_frees_at_the_same_time_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
