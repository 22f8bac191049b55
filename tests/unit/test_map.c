/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/map.c: from addresses to blocks. */
#include "pool/chunk.h"
#include "pool/map.h"
#include "pool/zone.h"
#include "tests/unit/expect.h"

#define BASE (UINT64_C(0x7f) << 40)

/* The map compares owners by address only. */
static char owner_mark, other_mark;
static struct pool *const owner = (struct pool *)(void *)&owner_mark;
static struct pool *const other = (struct pool *)(void *)&other_mark;
static struct zone small_zone, large_zone, other_small_zone, other_large_zone;

static int setup_group(void **state)
{
    zone_init(&small_zone, owner, ZONE_SMALL);
    zone_init(&large_zone, owner, ZONE_LARGE);
    zone_init(&other_small_zone, other, ZONE_SMALL);
    zone_init(&other_large_zone, other, ZONE_LARGE);
    return 0;
}

static struct block block(struct zone *z, uint64_t addr, uint64_t size_bytes, enum block_state s)
{
    return (struct block){.addr = addr, .size_bytes = size_bytes, .zone = z, .state = s};
}

static void claim(struct chunk *c, uint64_t addr, uint64_t size_bytes)
{
    *c = (struct chunk){.addr = addr, .size_bytes = size_bytes};
    EXPECT(map_ensure(addr, size_bytes), "there is host memory");
    map_claim(c, owner);
}

TEST(addresses_of_nobody_have_no_record)
{
    EXPECT(!map_find(UINT64_C(0x1111) << 30), "nobody ensured this part");
    EXPECT(!map_find(ADDR_LIMIT), "the map ends");
    EXPECT(!map_find(UINT64_MAX), "the map ends");
    EXPECT(!map_ensure(ADDR_LIMIT - GRANULE_BYTES, 2 * GRANULE_BYTES), "the map cannot grow");
    EXPECT(!map_ensure(UINT64_MAX - 100, 200), "ranges do not wrap");
}

TEST(a_claim_names_every_granule_and_no_other)
{
    struct chunk c;
    /* Across a leaf's border. */
    uint64_t addr = BASE + GIB(32) - MIB(4);
    claim(&c, addr, MIB(8));
    for (uint64_t at = addr; at < addr + MIB(8); at += MIB(2)) {
        EXPECT(map_find(at)->chunk == &c, "the chunk is found");
        EXPECT(atomic_load(&map_find(at + MIB(2) - 1)->pool) == owner, "so is the owner");
    }
    EXPECT(!map_find(addr - 1)->chunk && !map_find(addr + MIB(8))->chunk, "neighbours are not");
    map_disclaim(&c, owner);
    EXPECT(!map_find(addr)->chunk && !atomic_load(&map_find(addr + MIB(7))->pool),
           "nobody's again");
}

TEST(a_segment_is_claimed_where_nobody_is)
{
    struct pool *const pools[] = {owner, other};
    for (unsigned i = 0; i < 2; i++) {
        struct chunk first, lower = {.addr = BASE, .size_bytes = MIB(6)};
        claim(&first, BASE + MIB(4), MIB(4));
        EXPECT(!map_claim_segment(&lower, pools[i]), "a part of it is claimed");
        EXPECT(!map_find(BASE)->chunk && !pool_owns(BASE), "nothing is claimed below");
        EXPECT(map_chunk(BASE + MIB(4), owner) == &first, "what was claimed stays");
        map_disclaim(&first, owner);
        EXPECT(map_claim_segment(&lower, pools[i]), "it is nobody's");
        EXPECT(map_chunk(BASE + MIB(4), pools[i]) == &lower, "its end is claimed, too");
        map_disclaim(&lower, pools[i]);
    }
}

TEST(small_blocks_are_found_by_their_start_alone)
{
    struct chunk c;
    claim(&c, BASE, MIB(2));
    struct block a = block(&small_zone, BASE, 1024, BLOCK_LIVE);
    struct block b = block(&small_zone, BASE + 1024, KIB(512), BLOCK_LIVE);
    map_set(&a);
    map_set(&b);
    EXPECT(map_block(map_find(a.addr), a.addr) == &a, "found by its start");
    EXPECT(map_block(map_find(b.addr), b.addr) == &b, "found by its start");
    EXPECT(!map_block(map_find(a.addr), a.addr + 512), "not by an address inside");
    EXPECT(!map_block(map_find(a.addr), a.addr + 8), "not by an odd address inside");
    EXPECT(map_block_around(a.addr + 1023, owner) == &a, "around: its last byte");
    EXPECT(map_block_around(b.addr, owner) == &b, "around: its first byte");
    EXPECT(map_block_around(b.addr + KIB(512) - 1, owner) == &b, "around: its last byte");
    EXPECT(!map_block_around(b.addr + KIB(512), owner), "behind it is nothing");
    EXPECT(!map_block_around(b.addr, other), "another pool's memory is not looked at");
    map_clear(&a);
    EXPECT(!map_block(map_find(a.addr), a.addr), "cleared");
    EXPECT(!map_block_around(a.addr + 512, owner), "cleared");
    map_clear(&b);
    map_disclaim(&c, owner);
}

TEST(small_blocks_that_cross_granules_are_found_behind_the_border)
{
    struct chunk c;
    claim(&c, BASE, MIB(4));
    struct block a = block(&small_zone, BASE + MIB(2) - 512, MIB(1), BLOCK_LIVE);
    map_set(&a);
    EXPECT(map_block_around(BASE + MIB(2) + 5, owner) == &a, "walks back over the border");
    map_clear(&a);
    map_disclaim(&c, owner);
}

TEST(a_slab_is_found_by_every_address_in_it)
{
    struct chunk c;
    claim(&c, BASE, MIB(2));
    struct block s = block(&small_zone, BASE + KIB(64), KIB(256), BLOCK_SLAB);
    map_set(&s);
    for (uint64_t at = s.addr; at < block_end(&s); at += 512)
        EXPECT(map_block(map_find(at), at) == &s, "objects of a slab lead to it");
    EXPECT(!map_block(map_find(s.addr - 512), s.addr - 512), "not what lies before");
    EXPECT(!map_block(map_find(block_end(&s)), block_end(&s)), "not what lies behind");
    map_clear(&s);
    for (uint64_t at = s.addr; at < block_end(&s); at += 512)
        EXPECT(!map_block(map_find(at), at), "cleared at every page");
    map_disclaim(&c, owner);
}

TEST(two_large_blocks_start_in_one_granule)
{
    struct chunk c;
    claim(&c, BASE, MIB(64));
    struct block a = block(&large_zone, BASE, MIB(1) + 512, BLOCK_LIVE);
    struct block b = block(&large_zone, BASE + MIB(1) + 512, MIB(50), BLOCK_LIVE);
    map_set(&a);
    map_set(&b);
    EXPECT(map_block(map_find(a.addr), a.addr) == &a, "the first is found");
    EXPECT(map_block(map_find(b.addr), b.addr) == &b, "the second is found");
    EXPECT(map_block_around(b.addr - 1, owner) == &a, "the first ends where the second starts");
    EXPECT(map_block_around(b.addr + MIB(49), owner) == &b,
           "25 granules on it is still the second");
    map_clear(&a);
    EXPECT(map_block(map_find(b.addr), b.addr) == &b, "the second stays when the first goes");
    struct block again = block(&large_zone, BASE, MIB(1) + 512, BLOCK_LIVE);
    map_set(&again);
    EXPECT(map_block(map_find(BASE), BASE) == &again, "and found");
    map_clear(&again);
    map_clear(&b);
    EXPECT(!map_block_around(BASE + MIB(20), owner), "nothing is left");
    map_disclaim(&c, owner);
}

TEST(a_hole_in_the_way_ends_the_walk)
{
    struct chunk low, high;
    claim(&low, BASE, MIB(4));
    claim(&high, BASE + MIB(6), MIB(2));
    struct block a = block(&large_zone, BASE, MIB(4), BLOCK_LIVE);
    map_set(&a);
    EXPECT(!map_block_around(BASE + MIB(7), owner),
           "no block reaches over memory that is not there");
    map_clear(&a);
    map_disclaim(&low, owner);
    map_disclaim(&high, owner);
}

/* The driver has given a part of the range to another pool, and the one whose context ended has
 * forgotten that part before the rest. */
TEST(a_range_is_the_later_pools_whenever_the_earlier_one_forgets)
{
    struct chunk ended, later;
    claim(&ended, BASE, MIB(8));
    struct block large = block(&large_zone, BASE, MIB(3), BLOCK_LIVE);
    struct block small = block(&small_zone, BASE + MIB(4), KIB(300), BLOCK_LIVE);
    map_set(&large);
    map_set(&small);
    later = (struct chunk){.addr = BASE + MIB(2), .size_bytes = MIB(4)};
    map_forget(&later, owner);
    EXPECT(!map_block(map_find(small.addr), small.addr), "what was there is not found");
    EXPECT(!map_chunk(small.addr, owner) && map_chunk(BASE, owner) == &ended, "nor its memory");
    map_claim(&later, other);
    struct block now = block(&other_large_zone, BASE + MIB(4), MIB(1) + 512, BLOCK_LIVE);
    struct block behind = block(&other_large_zone, BASE + MIB(5) + 512, MIB(1) - 512, BLOCK_LIVE);
    struct block small_now = block(&other_small_zone, BASE + MIB(2), KIB(32), BLOCK_LIVE);
    struct block small_behind =
        block(&other_small_zone, BASE + MIB(2) + KIB(32), KIB(40), BLOCK_LIVE);
    map_set(&now);
    map_set(&behind);
    map_set(&small_now);
    map_set(&small_behind);
    EXPECT(map_block(map_find(now.addr), now.addr) == &now, "what is there is");
    EXPECT(!map_chunk(now.addr, owner) && map_chunk(now.addr, other) == &later, "for its pool");
    struct block old = block(&small_zone, BASE + MIB(2), KIB(300), BLOCK_LIVE);
    struct block old_large = block(&large_zone, BASE + MIB(4), MIB(1) + 512, BLOCK_LIVE);
    map_clear(&old_large);
    map_clear(&old);
    EXPECT(map_block(map_find(now.addr), now.addr) == &now &&
               map_block(map_find(behind.addr), behind.addr) == &behind,
           "the earlier pool clears nothing there");
    EXPECT(map_block(map_find(small_now.addr), small_now.addr) == &small_now &&
               map_block(map_find(small_behind.addr), small_behind.addr) == &small_behind,
           "nor in a page");
    map_forget(&ended, owner);
    EXPECT(!map_find(BASE)->pool && !map_find(BASE + MIB(6))->pool, "the rest is nobody's");
    EXPECT(!map_block(map_find(BASE), BASE), "with its blocks");
    EXPECT(map_find(BASE + MIB(2))->pool == other, "the later pool has its own");
    EXPECT(map_block_around(now.addr + MIB(1), other) == &now, "and its blocks");
    map_disclaim(&ended, owner);
    EXPECT(map_find(now.addr)->pool == other && map_find(now.addr)->chunk == &later,
           "it keeps them");
    map_clear(&now);
    map_clear(&behind);
    map_clear(&small_now);
    map_clear(&small_behind);
    map_disclaim(&later, other);
}

int main(void)
{
    return play_tests(setup_group, NULL);
}
