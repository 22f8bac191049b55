/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/magazine.c: another thread frees the same block at every moment of a free into a magazine.
 * One of the two frees it, and the other is told that it is not the program's. */
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
    pthread_join(started(free_it, arg), NULL);
}

RIG_TEST(one_of_two_frees_at_the_same_time_is_refused, expect_single(state))
{
    static const uint64_t sizes[] = {700, KIB(300), MIB(3)};
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

/* At some moment of a free another thread frees the block. Its segment goes to another pool, whose
 * program gets the same address. */
struct move {
    struct rig *rig;
    struct pool *other;
    const struct magazine *magazine; /* of the thread that is looked at */
    uint64_t addr, again;
};

static void give_away(void *arg)
{
    struct move *m = arg;
    int code;
    if (m->magazine->locked)
        return; /* the trim would wait for it */
    if (pool_free_slowly(m->addr) == POOL_OK &&
        pool_trim(m->rig->pool, &(struct pool_trim){.wait_ns = MS(100)}) == MIB(4) &&
        pool_alloc(m->other, MIB(4), &m->again, &code) != POOL_OK)
        m->again = 0;
}

static void *give_away_elsewhere(void *arg)
{
    give_away(arg);
    return NULL;
}

static void move_elsewhere(void *arg)
{
    pthread_join(started(give_away_elsewhere, arg), NULL);
}

RIG_TEST(what_went_to_another_pool_comes_into_no_magazine_of_this_one, *state)
{
    unsigned moved = 0;
    r->config.backing = BACKING_SEGMENT;
    r->model->backend.single_stream = true;
    rig_start(r);
    struct move m = {.rig = r, .other = pool_create(&r->model->backend, &r->config, &m)};
    rig_free(r, rig_alloc(r, 512));
    for (unsigned at = 1;; at++) {
        struct steps steps = {.step = move_elsewhere, .arg = &m, .at = at};
        int code;
        m.magazine = magazine_mine;
        m.again = 0;
        EXPECT_EQ(pool_alloc(r->pool, MIB(4), &m.addr, &code), POOL_OK, "there is memory");
        /* As if the thread was not handed the block lately. */
        for (unsigned i = 0; i < MAGAZINE_HINTS; i++)
            magazine_mine->hints[i] = &magazine_no_hint;
        steps_mine = &steps;
        enum pool_status mine = pool_free(m.addr);
        steps_mine = NULL;
        if (steps.loads < at)
            break;
        const char *words = pool_check(r->pool);
        EXPECT(!words, words);
        words = pool_check(m.other);
        EXPECT(!words, words);
        moved += m.again == m.addr;
        if (m.again)
            EXPECT_EQ((mine == POOL_OK) + (pool_free(m.again) == POOL_OK), 1,
                      "the address is freed once");
        pool_trim(m.other, &(struct pool_trim){.wait_ns = MS(100)});
        pool_trim(r->pool, &(struct pool_trim){.wait_ns = MS(100)});
    }
    EXPECT(moved >= 3, "there are such moments");
    pool_abandon(m.other);
}

PLAY_TESTS
