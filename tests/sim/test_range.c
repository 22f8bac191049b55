/* SPDX-License-Identifier: BSD-2-Clause */
/* The ordered set of ranges and the space allocator against simple models. */
#include "tests/sim/range.h"
#include "tests/sim/space.h"
#include "tests/sim/vector.h"
#include "tests/unit/cases.h"

#define CELLS 512

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

TEST(range_set_agrees_with_a_map_of_cells)
{
    struct ranges set = {.seed = 9};
    struct range *map[CELLS + 1] = {NULL};
    uint32_t seed = 1;
    for (int step = 0; step < 20000; step++) {
        uint32_t at = next_random(&seed) % CELLS;
        struct range *found = range_find(&set, at);
        assert_ptr_equal(found, map[at]);
        uint32_t above = at;
        while (above < CELLS && map[above] == NULL)
            above++;
        assert_ptr_equal(range_from(&set, at), above < CELLS ? map[above] : NULL);
        if (found != NULL) {
            for (uint64_t i = found->lo; i < found->hi; i++)
                map[i] = NULL;
            range_delete(&set, found);
        } else {
            uint32_t end = at + 1;
            while (end < CELLS && end < at + 20 && map[end] == NULL)
                end++;
            found = range_add(&set, sizeof *found, at, end);
            for (uint32_t i = at; i < end; i++)
                map[i] = found;
        }
    }
    size_t count = 0;
    for (struct range *node = range_from(&set, 0); node != NULL; node = range_from(&set, node->hi))
        count++;
    assert_int_equal(count, set.count);
    while (set.root != NULL)
        range_delete(&set, set.root);
}

TEST(space_is_first_fit_and_merges)
{
    struct space space;
    uint64_t a, b, c, d;
    space_init(&space, 1000, 100);
    assert_true(space_alloc(&space, 30, 1, &a));
    assert_true(space_alloc(&space, 30, 1, &b));
    assert_true(space_alloc(&space, 40, 1, &c));
    assert_false(space_alloc(&space, 1, 1, &d));
    assert_int_equal(a, 1000);
    assert_int_equal(c, 1060);
    space_free(&space, a, 30);
    space_free(&space, c, 40);
    assert_false(space_alloc(&space, 41, 1, &d));
    assert_true(space_alloc(&space, 10, 1, &d));
    assert_int_equal(d, 1000); /* the lowest */
    space_free(&space, d, 10);
    space_free(&space, b, 30);
    assert_int_equal(space.free.count, 1);
    assert_true(space_alloc(&space, 100, 1, &d));
    space_free(&space, d, 100);
    assert_true(space_alloc(&space, 10, 64, &d)); /* aligned: 1024 */
    assert_int_equal(d, 1024);
    space_finish(&space);
}

TEST(vectors_join_to_the_maximum)
{
    struct vector a = {0}, b = {0}, c = {0};
    vector_set(&a, 3, 5);
    vector_set(&b, 1, 7);
    vector_set(&b, 3, 4);
    vector_copy(&c, &a);
    vector_join(&c, &b);
    assert_int_equal(vector_get(&c, 0), 0);
    assert_int_equal(vector_get(&c, 1), 7);
    assert_int_equal(vector_get(&c, 3), 5);
    assert_int_equal(vector_get(&c, 99), 0);
    vector_copy(&c, &(struct vector){0});
    assert_int_equal(vector_get(&c, 3), 0);
    vector_finish(&a);
    vector_finish(&b);
    vector_finish(&c);
}

PLAY_TESTS
