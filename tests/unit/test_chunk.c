/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/chunk.c: which chunks are idle, and what is released. */
#include "pool/chunk.h"

#include "pool/map.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

/* Eight chunks of 4 MiB, each with one block, in the large zone. */
static struct rig *eight(void **state, uint64_t addr[8])
{
    struct rig *r = expect_single(state);
    rig_alloc_all(r, addr, 8, MIB(4));
    return r;
}

static uint64_t seize(struct rig *r, uint64_t want_bytes, bool fit)
{
    uint64_t got;
    state_lock(r->pool);
    struct chunk *list = chunk_seize_idle(&r->pool->large, want_bytes, UINT64_MAX, fit, &got);
    uint64_t sum = 0;
    for (struct chunk *c = list; c; c = c->plan) {
        EXPECT(c->busy_block->state == BLOCK_BUSY && c->busy_block->addr == c->addr &&
                   c->busy_block->size_bytes == c->size_bytes,
               "a seized chunk has one BUSY block of its own");
        sum += c->size_bytes;
    }
    EXPECT_EQ(sum, got, "the sum is that of the list");
    chunk_unseize(list);
    state_unlock(r->pool);
    EXPECT_SOUND(r);
    return got;
}

POOL_TEST(live_chunks_are_not_idle)
{
    uint64_t addr[8];
    struct rig *r = eight(state, addr);
    EXPECT_EQ(seize(r, UINT64_MAX, false), 0, "all are in use");
    rig_free(r, addr[2]);
    rig_free(r, addr[5]);
    rig_settle(r);
    EXPECT_EQ(seize(r, UINT64_MAX, false), MIB(8), "the two that were freed");
}

RIG_TEST(a_chunk_that_is_partly_live_is_not_idle, *state)
{
    r->config.prealloc_bytes = MIB(64);
    rig_start(r);
    rig_alloc(r, MIB(2));
    EXPECT_EQ(seize(r, UINT64_MAX, false), 0, "one block of 2 MiB holds 64");
}

RIG_TEST(a_chunk_below_several_blocks_is_idle_when_the_last_is_free, expect_single(state))
{
    uint64_t whole = rig_freed(r, MIB(64));
    uint64_t addr[4];
    rig_alloc_all(r, addr, 4, MIB(16));
    EXPECT_EQ(addr[3], whole + MIB(48), "one chunk below all four");
    for (int i = 0; i < 4; i++) {
        EXPECT_EQ(seize(r, UINT64_MAX, false), 0, "one of them is still live");
        rig_free(r, addr[i]);
        rig_settle(r);
    }
    EXPECT_EQ(seize(r, UINT64_MAX, false), MIB(64), "none is");
}

POOL_TEST(no_more_is_seized_than_wanted)
{
    uint64_t addr[8];
    struct rig *r = eight(state, addr);
    rig_free_all(r);
    rig_settle(r);
    EXPECT_EQ(seize(r, MIB(10), false), MIB(12), "until enough is together");
    EXPECT_EQ(seize(r, MIB(10), true), MIB(8), "to fit: no chunk larger than what is still wanted");
    EXPECT_EQ(seize(r, MIB(3), true), 0, "none is so small");
}

RIG_TEST(memory_that_is_complete_by_order_only_is_not_seized, expect_reuse(state, REUSE_ORDER))
{
    uint64_t a = rig_alloc(r, MIB(4)), b = rig_alloc(r, MIB(4));
    rig_free_behind(r, 1, MS(10), a);
    rig_free(r, b);
    rig_alloc(r, MIB(4));
    EXPECT(rig_stats(r).num_fence_orders, "the frees are ordered");
    EXPECT_EQ(seize(r, UINT64_MAX, false), 0, "but their work is not complete");
    model_advance(r->model, MS(10));
    rig_trim(r, GIB(1), false);
    EXPECT_EQ(seize(r, UINT64_MAX, false), MIB(4), "now it is");
}

POOL_TEST(release_gives_the_memory_back_and_keeps_the_addresses)
{
    uint64_t addr[8];
    struct rig *r = eight(state, addr);
    rig_free(r, addr[3]);
    rig_free(r, addr[4]);
    EXPECT_EQ(rig_trim(r, 0, true), MIB(8), "it says how much");
    EXPECT_EQ(model_used_bytes(r->model), MIB(24), "the driver has it");
    EXPECT_EQ(rig_stats(r).num_device_free, 2, "chunk by chunk");
    EXPECT_EQ(r->model->unmaps, 1, "but neighbours are unmapped by one call");
    EXPECT(!map_find(addr[3])->chunk, "the map knows");
    EXPECT_EQ(pool_free(addr[3]), POOL_FOREIGN, "nobody's memory");
    EXPECT_SOUND(r);
    EXPECT_EQ(rig_alloc(r, MIB(8)), addr[3], "the hole is filled again");
}

POOL_TEST(idle_time_counts_from_the_last_use)
{
    uint64_t addr[8];
    ((struct rig *)*state)->config.idle_timeout_ns = MS(100);
    struct rig *r = eight(state, addr);
    struct pool_trim t = {.idle_ns = MS(100)};
    rig_free(r, addr[0]);
    rig_settle(r);
    model_advance(r->model, MS(60));
    rig_settle(r);
    rig_free(r, addr[1]);
    rig_settle(r);
    model_advance(r->model, MS(60));
    EXPECT_EQ(pool_trim(r->pool, &t), MIB(4), "only the first was idle long enough");
    model_advance(r->model, MS(60));
    EXPECT_EQ(pool_trim(r->pool, &t), MIB(4), "then the second");
}

POOL_TEST(exposed_memory_is_dead_and_released)
{
    uint64_t addr[8];
    struct rig *r = eight(state, addr);
    rig_expose(r, addr[2]);
    rig_free(r, addr[2]);
    rig_settle(r);
    EXPECT_EQ(seize(r, UINT64_MAX, true), 0, "it is not moved to serve others");
    EXPECT(rig_alloc(r, MIB(4)) != addr[2], "nor handed out");
    EXPECT_EQ(pool_free(addr[2]), POOL_INVALID, "nor freed again");
    uint64_t before = rig_stats(r).reserved_bytes;
    rig_trim(r, 0, true);
    EXPECT_EQ(before - rig_stats(r).reserved_bytes, MIB(4), "but it goes back");
    for (int i = 0; i < 20; i++) {
        uint64_t a = rig_alloc(r, MIB(10));
        rig_expose(r, a);
        rig_free(r, a);
        rig_settle(r);
    }
    EXPECT(rig_stats(r).reserved_peak_bytes < MIB(32 + 32 + 20), "much of it before more is taken");
}

RIG_TEST(a_dead_block_over_several_chunks_goes_back_in_parts, expect_single(state))
{
    rig_alloc(r, MIB(3)); /* shares its second granule with the next */
    uint64_t b = rig_alloc(r, MIB(200));
    rig_expose(r, b);
    rig_free(r, b);
    rig_launch(r, 0, 0, 0);
    rig_trim(r, 0, true);
    EXPECT(rig_stats(r).reserved_bytes <= MIB(6),
           "all but the granule that is shared with live memory");
}

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
