/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/zone.c: splitting, merging, and the chain of blocks. On the zones of a pool, whose requests
 * bring the memory. */
#include "pool/zone.h"

#include "pool/chunk.h"
#include "pool/map.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

/* 64 MiB of free memory in one block of the large zone. */
static struct zone *with_memory(void **state)
{
    struct rig *r = *state;
    r->config.prealloc_bytes = MIB(64);
    rig_start(r);
    return &r->pool->large;
}

static unsigned free_blocks(const struct zone *z)
{
    unsigned n = 0;
    for (const struct block *b = z->first; b; b = b->next)
        n += b->state == BLOCK_FREE;
    return n;
}

POOL_TEST(a_block_is_cut_from_the_low_end)
{
    struct zone *z = with_memory(state);
    struct block *a = zone_take(z, MIB(3), 512, BLOCK_PENDING);
    struct block *b = zone_take(z, MIB(5), 512, BLOCK_PENDING);
    EXPECT_EQ(a->addr, z->base, "the first lies at the start");
    EXPECT_EQ(b->addr, block_end(a), "the second behind it");
    EXPECT_EQ(a->size_bytes, MIB(3), "as large as asked for");
    EXPECT_EQ(free_blocks(z), 1, "one rest is left");
    zone_give(a);
    zone_give(b);
}

POOL_TEST(freed_neighbours_merge_on_both_sides)
{
    struct zone *z = with_memory(state);
    struct block *b[4];
    for (int i = 0; i < 4; i++)
        b[i] = zone_take(z, MIB(3), 512, BLOCK_PENDING);
    zone_give(b[0]);
    zone_give(b[2]);
    EXPECT_EQ(free_blocks(z), 3, "apart while something lies between");
    zone_give(b[1]);
    EXPECT_EQ(free_blocks(z), 2, "below and above merged");
    zone_give(b[3]);
    EXPECT_EQ(free_blocks(z), 1, "all in one");
    EXPECT_EQ(z->first->size_bytes, MIB(64), "nothing is lost");
}

POOL_TEST(merged_memory_has_the_newest_epoch_of_its_parts)
{
    struct zone *z = with_memory(state);
    struct block *a = zone_take(z, MIB(3), 512, BLOCK_PENDING);
    struct block *b = zone_take(z, MIB(3), 512, BLOCK_PENDING);
    struct block *c = zone_take(z, MIB(3), 512, BLOCK_PENDING);
    b->item.epoch = 1;
    zone_give(c);
    zone_give(a);
    zone_give(b);
    EXPECT_EQ(z->first->item.epoch, 1, "memory is as young as its youngest part");
    z->first->item.epoch = 0;
}

POOL_TEST(an_aligned_block_leaves_what_is_before_it)
{
    struct zone *z = with_memory(state);
    struct block *a = zone_take(z, MIB(2) + 512, 512, BLOCK_PENDING);
    struct block *b = zone_take(z, MIB(4), MIB(1), BLOCK_PENDING);
    EXPECT_EQ(b->addr % MIB(1), 0, "aligned as asked");
    EXPECT_EQ(b->prev->state, BLOCK_FREE, "the gap is free memory");
    EXPECT_EQ(b->prev->addr, block_end(a), "from where the other ends");
    zone_give(b);
    zone_give(a);
    EXPECT_EQ(free_blocks(z), 1, "and merges again");
}

POOL_TEST(the_best_fit_is_taken)
{
    struct zone *z = with_memory(state);
    static const unsigned sizes[] = {9, 2, 5, 2, 3, 2, 4, 2};
    struct block *b[8], *t;
    for (int i = 0; i < 8; i++)
        b[i] = zone_take(z, MIB(sizes[i]), 512, BLOCK_PENDING);
    for (int i = 0; i < 8; i += 2)
        zone_give(b[i]);
    t = zone_take(z, MIB(3), 512, BLOCK_PENDING);
    EXPECT_EQ(t->addr, b[3]->addr + MIB(2), "the gap of 3 MiB, not the lower ones of 9 and 5");
    zone_give(t);
    t = zone_take(z, MIB(4) + 512, 512, BLOCK_PENDING);
    EXPECT_EQ(t->addr, b[1]->addr + MIB(2), "the gap of 5 MiB");
    zone_give(t);
    for (int i = 1; i < 8; i += 2)
        zone_give(b[i]);
}

POOL_TEST(what_was_split_stays_in_its_lists)
{
    struct zone *z = with_memory(state);
    struct rig *r = *state;
    EXPECT(host_cache_ensure(&r->pool->block_cache, 1), "there is host memory");
    struct block *upper = zone_split(z->first, z->base + MIB(10));
    EXPECT_EQ(z->first->size_bytes, MIB(10), "the lower part is as long as asked");
    EXPECT_EQ(upper->addr, z->base + MIB(10), "the upper part starts there");
    struct block *t = zone_take(z, MIB(10), 512, BLOCK_PENDING);
    EXPECT(t == z->first, "the lower part is in the bin of its size");
    struct block *u = zone_take(z, MIB(54), 512, BLOCK_PENDING);
    EXPECT(u == upper, "the upper part is in the bin of its size");
    zone_give(t);
    zone_give(u);
}

POOL_TEST(seized_memory_is_out_of_every_list)
{
    struct zone *z = with_memory(state);
    struct rig *r = *state;
    EXPECT(host_cache_ensure(&r->pool->block_cache, 2), "there is host memory");
    struct block *b = zone_seize(z->first, z->base + MIB(8), MIB(4));
    EXPECT(b->addr == z->base + MIB(8) && b->size_bytes == MIB(4), "exactly the range");
    EXPECT_EQ(b->state, BLOCK_BUSY, "nobody else touches it");
    EXPECT(!zone_take(z, MIB(60), 512, BLOCK_PENDING), "it is not free memory");
    struct block *below = zone_take(z, MIB(8), 512, BLOCK_PENDING);
    EXPECT_EQ(below->addr, z->base, "what lies below still is");
    zone_give(below);
    zone_give(b);
    EXPECT_EQ(free_blocks(z), 1, "given back, it merges");
}

PLAY_TESTS
