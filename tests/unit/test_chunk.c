/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/chunk.c: whose memory is when it goes back, and what stays. What is idle and released:
 * arena, limits, release. */
#include "pool/chunk.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

/* As soon as the driver has a segment back, another pool gets the same addresses. */
struct second {
    struct pool *pool;
    uint64_t addr;
    bool owned; /* by any pool, before this one got it */
};

static void take_again(struct model *m, uint64_t addr)
{
    struct second *s = m->hook_arg;
    int code;
    m->hook_freed = NULL;
    s->owned = pool_owns(addr);
    EXPECT_EQ(pool_alloc(s->pool, MIB(4), &s->addr, &code), POOL_OK, "there is memory");
    EXPECT_EQ(s->addr, addr, "at the same place");
}

RIG_TEST(a_segment_that_goes_back_is_nobodys_before_it_is_anothers, expect_segments(state))
{
    struct second s = {.pool = pool_create(&r->model->backend, &r->config, &s)};
    struct pool_block block;
    rig_free(r, rig_alloc(r, MIB(4)));
    r->model->hook_arg = &s;
    r->model->hook_freed = take_again;
    EXPECT_EQ(rig_trim(r, 0, true), MIB(4), "it goes back");
    EXPECT(!s.owned, "it is nobody's");
    EXPECT(s.addr, "and then another pool's");
    EXPECT_EQ(pool_lookup(s.addr, &block), POOL_OK, "which knows it");
    EXPECT(block.pool == s.pool, "as its own");
    EXPECT_EQ(pool_free(s.addr), POOL_OK, "and frees it");
    pool_trim(s.pool, &(struct pool_trim){.wait_ns = MS(1000)});
    pool_abandon(s.pool);
}

struct departure {
    uint64_t addrs[3];
    unsigned gone, told, mine; /* of the others: nobody's memory, and the pool's but not live */
};

static void look_at_others(struct model *m, uint64_t addr)
{
    struct departure *d = m->hook_arg;
    struct pool_block block;
    d->gone++;
    for (int i = 0; i < 3; i++)
        if (d->addrs[i] == addr)
            d->addrs[i] = 0;
    for (int i = 0; i < 3; i++) {
        enum pool_status status = d->addrs[i] ? pool_lookup(d->addrs[i], &block) : POOL_OK;
        d->told += status == POOL_FOREIGN;
        d->mine += status == POOL_INVALID;
    }
}

RIG_TEST(a_segment_is_the_pools_until_it_goes_back, expect_segments(state))
{
    struct departure d = {.gone = 0};
    for (int i = 0; i < 3; i++)
        d.addrs[i] = rig_alloc(r, MIB(4));
    rig_free_all(r);
    r->model->hook_arg = &d;
    r->model->hook_freed = look_at_others;
    EXPECT_EQ(rig_trim(r, 0, true), MIB(12), "they go back");
    r->model->hook_freed = NULL;
    EXPECT_EQ(d.gone, 3, "one by one");
    EXPECT_EQ(d.told, 0, "no other one is said to be the driver's, which still has it");
    EXPECT_EQ(d.mine, 3, "two beside the first, and one beside the second");
}

/* Merged with memory whose work was complete before. */
RIG_TEST(what_is_ordered_but_not_complete_stays_mapped, expect_arena(state))
{
    uint64_t a = rig_alloc(r, MIB(4)), b = rig_alloc(r, MIB(4));
    EXPECT(a < b, "in this order");
    rig_free(r, a);
    rig_trim(r, GIB(1), true);
    rig_free_behind(r, 1, MS(50), b);
    state_lock(r->pool);
    fence_seal(r->pool);
    EXPECT(fence_order(r->pool, fence_newest_waitable(&r->pool->fences), false),
           "later work runs behind it");
    state_unlock(r->pool);
    rig_trim(r, GIB(1), false);
    EXPECT_EQ(rig_stats(r).pending_bytes, 0, "it is free, beside the other");
    EXPECT_EQ(rig_trim(r, 0, false), 0, "none of it goes back yet");
    EXPECT_SOUND(r);
    model_advance(r->model, MS(50));
    EXPECT_EQ(rig_trim(r, 0, false), MIB(8), "now all of it does");
}

PLAY_TESTS
