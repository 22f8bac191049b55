/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/slab.c: small objects. */
#include "pool/map.h"
#include "pool/slab.h"
#include "pool/state.h"
#include "tests/unit/expect.h"

static unsigned empty_count(const struct rig *r)
{
    unsigned count = 0;
    for (unsigned c = 0; c < SLAB_CLASSES; c++) {
        const struct list *head = &r->pool->slabs.empty[c];
        for (const struct list *n = head->next; n != head; n = n->next)
            count++;
    }
    return count;
}

TEST(classes_lose_an_eighth_at_most)
{
    for (uint64_t size = 1; size <= SLAB_MAX_BYTES; size++) {
        unsigned c = slab_class(size);
        uint64_t object = slab_object_bytes(c);
        EXPECT(c < SLAB_CLASSES, "every size has a class");
        EXPECT(object >= size, "an object holds what was asked for");
        EXPECT(c == 0 || slab_object_bytes(c - 1) < size, "the smallest class that does");
        EXPECT(object - size < 512 || (object - size) * 8 <= object, "little is lost to rounding");
        EXPECT_EQ(object % 512, 0, "objects are aligned to 512 bytes");
    }
}

TEST(slabs_are_pages_and_waste_little)
{
    for (unsigned c = 0; c < SLAB_CLASSES; c++) {
        uint64_t block = slab_block_bytes(c), object = slab_object_bytes(c);
        uint64_t count = block / object;
        EXPECT_EQ(block % SLAB_PAGE_BYTES, 0, "slabs are whole pages");
        EXPECT(count >= 8, "a slab has several objects");
        EXPECT(count <= SLAB_OBJECTS_MAX, "the bitmap has a bit for each");
        EXPECT((block - count * object) * 8 <= block, "the tail that holds no object is small");
    }
}

RIG_TEST(an_empty_slab_serves_last, expect_single(state))
{
    uint64_t addr[16];
    rig_alloc_all(r, addr, 16, KIB(32));
    EXPECT_EQ(addr[8] - addr[0], KIB(256), "eight to a slab");
    rig_free_every(r, addr, 0, 8, 1);
    rig_empty_magazines(r);
    EXPECT_EQ(empty_count(r), 1, "the first slab is empty");
    rig_free(r, addr[12]);
    rig_empty_magazines(r);
    EXPECT_EQ(rig_alloc(r, KIB(32)), addr[12],
              "the other fills, so that the empty one can go back");
    EXPECT_EQ(rig_alloc(r, KIB(32)) / KIB(256), addr[0] / KIB(256), "then the empty one serves");
}

RIG_TEST(an_empty_slab_returns_its_block, expect_single(state))
{
    uint64_t addr[24];
    rig_alloc_all(r, addr, 24, KIB(32));
    EXPECT_EQ(empty_count(r), 0, "three full slabs");
    rig_free_every(r, addr, 0, 24, 1);
    rig_empty_magazines(r);
    EXPECT_EQ(empty_count(r), 1, "one stays, so that a loop does not make and unmake it");
    rig_trim(r, 0, true);
    EXPECT_EQ(empty_count(r), 0, "a trim takes the last one too");
    EXPECT_EQ(rig_stats(r).reserved_bytes, 0, "its chunk is back with the driver");
}

RIG_TEST(the_last_empty_slab_of_each_class_serves_before_memory_is_taken, expect_single(state))
{
    uint64_t addr[SLAB_CLASSES], halves = 0;
    for (unsigned c = 0; c < SLAB_CLASSES; c++)
        addr[c] = rig_alloc(r, slab_object_bytes(c));
    rig_free_every(r, addr, 0, SLAB_CLASSES, 1);
    rig_empty_magazines(r);
    EXPECT_EQ(empty_count(r), SLAB_CLASSES, "a slab of each class stays");
    uint64_t before = rig_stats(r).reserved_bytes;
    for (; rig_stats(r).reserved_bytes == before; halves++)
        EXPECT(rig_alloc(r, KIB(512)), "there is memory");
    EXPECT_EQ(halves - 1, before / KIB(512), "all of it is used first");
    EXPECT_EQ(empty_count(r), 0, "the slabs made room");
}

RIG_TEST(slots_are_found_from_addresses, expect_single(state))
{
    uint64_t a = rig_alloc(r, 20000);
    struct slab *s = map_block(map_find(a), a)->item.slab;
    for (unsigned i = 0; i < s->object_count; i++) {
        EXPECT_EQ(slab_slot_around(s, slab_object_addr(s, i)), i, "an object's first byte");
        EXPECT_EQ(slab_slot_around(s, slab_object_addr(s, i) + s->object_bytes - 1), i, "its last");
    }
    uint64_t end = slab_object_addr(s, s->object_count);
    EXPECT(end < block_end(s->block), "this class leaves a tail");
    EXPECT_EQ(slab_slot_around(s, end), (unsigned long long)-1, "the tail holds no object");
    struct pool_block b;
    EXPECT_EQ(pool_lookup(end, &b), POOL_INVALID, "nor is anything found there");
}

RIG_TEST(a_slab_with_nothing_but_dead_and_free_goes_back, expect_single(state))
{
    uint64_t addr[10];
    rig_alloc_all(r, addr, 10, 30000);
    for (int i = 0; i < 10; i += 3)
        rig_expose(r, addr[i]);
    rig_free_all(r);
    rig_trim(r, 0, true);
    EXPECT_EQ(rig_stats(r).reserved_bytes, 0, "shared objects do not keep their slabs");
    /* Shared again and again: the memory is not the sum of it all. */
    for (int i = 0; i < 10000; i++) {
        uint64_t a = rig_alloc(r, 30000);
        rig_expose(r, a);
        rig_free(r, a);
    }
    EXPECT(rig_stats(r).reserved_peak_bytes < MIB(48),
           "what was shared goes back before more is taken");
}

PLAY_TESTS
