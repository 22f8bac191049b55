/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/lookup.c: whose memory is it, seen from outside. */
#include "pool/chunk.h"
#include "pool/lookup.h"
#include "pool/map.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

RIG_TEST(the_owner_of_an_address_is_found_locked, expect_arena(state))
{
    struct granule *g;
    uint64_t a = rig_alloc(r, MIB(6));
    EXPECT(find_owner(a + MIB(5), &g) == r->pool, "the pool");
    EXPECT(pthread_mutex_trylock(&r->pool->lock) != 0, "and it is locked");
    state_unlock(r->pool);
    EXPECT(g == map_find(a + MIB(5)), "with the address's record");
    EXPECT(!find_owner(UINT64_C(0x123) << 30, &g), "nobody's address");
    EXPECT(!find_owner(UINT64_MAX, &g), "no address");
}

POOL_TEST(two_pools_know_their_own)
{
    struct rig *r = expect_arena(state), *other = rig_create(RIG_BYTES);
    struct pool_block b;
    rig_start(other);
    uint64_t mine = rig_alloc(r, MIB(6)), theirs = rig_alloc(other, MIB(6));
    EXPECT(pool_lookup(mine, &b) == POOL_OK && b.pool == r->pool, "mine");
    EXPECT(pool_lookup(theirs, &b) == POOL_OK && b.pool == other->pool, "theirs");
    EXPECT(pool_owner(b.pool) == other, "with what its maker gave it");
    const char *words = rig_destroy(other);
    EXPECT(!words, "the other pool is emptied");
    EXPECT_EQ(pool_lookup(theirs, &b), POOL_FOREIGN, "and forgotten");
    EXPECT_EQ(pool_lookup(mine, &b), POOL_OK, "mine is still there");
}

RIG_TEST(a_block_is_described_as_it_was_handed_out, expect_arena(state))
{
    struct pool_block b;
    uint64_t large = rig_alloc(r, MIB(3) + 5), small = rig_alloc(r, 5000);
    EXPECT_EQ(pool_lookup(large, &b), POOL_OK, "the rig looks at what was asked for");
    EXPECT_EQ(b.size_bytes, MIB(3) + 512, "as handed out");
    EXPECT_EQ(b.segment_addr, 0, "an arena has no segments");
    EXPECT_EQ(pool_lookup(small, &b), POOL_OK, "a small one");
    EXPECT_EQ(b.size_bytes, 5120, "as handed out");
}

RIG_TEST(freed_memory_is_not_found, expect_arena(state))
{
    struct pool_block b;
    static const uint64_t sizes[] = {100, 5000, KIB(32), KIB(100), MIB(1), MIB(3), MIB(50)};
    for (unsigned i = 0; i < 7; i++) {
        uint64_t a = rig_alloc(r, sizes[i]);
        uint64_t other = rig_alloc(r, sizes[i]);
        rig_free(r, a);
        EXPECT_EQ(pool_lookup(a, &b), POOL_INVALID, "pending: freed");
        EXPECT_EQ(pool_free(a), POOL_INVALID, "a second free is told");
        EXPECT_EQ(pool_expose(a), POOL_INVALID, "nothing to expose");
        rig_launch(r, 1, 0, 0);
        rig_trim(r, GIB(1), true);
        EXPECT_EQ(pool_lookup(a, &b), POOL_INVALID, "free: freed");
        EXPECT_EQ(pool_free(a), POOL_INVALID, "a second free is told");
        EXPECT_EQ(pool_lookup(other, &b), POOL_OK, "the neighbour is found");
    }
}

RIG_TEST(only_the_start_of_a_block_frees_it, expect_arena(state))
{
    static const uint64_t sizes[] = {2048, KIB(32), KIB(100), MIB(1), MIB(3), MIB(50)};
    for (unsigned i = 0; i < 6; i++) {
        uint64_t a = rig_alloc(r, sizes[i]);
        for (uint64_t at = 1; at < sizes[i]; at += 1 + at / 2)
            EXPECT_EQ(pool_free(a + at), POOL_INVALID, "an interior address frees nothing");
        EXPECT_EQ(pool_free(a + 512), POOL_INVALID, "an aligned one neither");
        EXPECT_EQ(pool_free(a + sizes[i] / 2), POOL_INVALID, "nor one in its middle");
    }
    EXPECT_EQ(rig_stats(r).live_blocks, 6, "all are live");
}

RIG_TEST(an_exposure_shows, expect_arena(state))
{
    struct pool_block b;
    uint64_t large = rig_alloc(r, MIB(3)), small = rig_alloc(r, 5000), other = rig_alloc(r, 5000);
    rig_expose(r, large);
    rig_expose(r, small);
    EXPECT(pool_lookup(large, &b) == POOL_OK && b.exposed, "the block");
    EXPECT(pool_lookup(small, &b) == POOL_OK && b.exposed, "the object");
    EXPECT(pool_lookup(other, &b) == POOL_OK && !b.exposed, "not its neighbour");
    EXPECT_EQ(pool_expose(UINT64_C(0x5000)), POOL_FOREIGN, "nobody's memory");
}

static bool sync_memops(uint64_t addr)
{
    struct pool_block b;
    EXPECT_EQ(pool_lookup(addr, &b), POOL_OK, "a block");
    return b.sync_memops;
}

RIG_TEST(a_note_is_a_blocks_own, expect_arena(state))
{
    static const uint64_t sizes[] = {5000, KIB(200), MIB(3)};
    for (unsigned i = 0; i < 3; i++) {
        uint64_t a = rig_alloc(r, sizes[i]), b = rig_alloc(r, sizes[i]);
        rig_expose(r, a);
        EXPECT(!sync_memops(a) && !sync_memops(b), "there is none at first");
        EXPECT_EQ(pool_set_sync_memops(a + sizes[i] / 2, true), POOL_OK, "a live block has one");
        EXPECT(sync_memops(a) && !sync_memops(b), "its neighbour has not");
        EXPECT_EQ(pool_set_sync_memops(a, false), POOL_OK, "it is taken back");
        EXPECT(!sync_memops(a), "then it is gone");
        EXPECT_EQ(pool_set_sync_memops(a, true), POOL_OK, "again");
        rig_free_all(r);
        EXPECT_EQ(pool_set_sync_memops(a, true), POOL_INVALID, "nothing lives there");
        for (int again = 0; again < 20; again++)
            EXPECT(!sync_memops(rig_alloc(r, sizes[i])), "who comes later has none");
        rig_free_all(r);
    }
    EXPECT_EQ(pool_set_sync_memops(UINT64_C(0x5000), true), POOL_FOREIGN, "nobody's memory");
}

PLAY_TESTS
