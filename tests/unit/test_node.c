/* SPDX-License-Identifier: BSD-2-Clause */
/* shim/park/node.c: the processors near a GPU, by the kernel's files. */
#include "shim/park/node.h"
#include "tests/unit/made_root.h"

static const struct node_place place = {0, 0x3b, 0};

static int make_root(void **state)
{
    if (root_begin())
        return -1;
    put("/sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
    put("/sys/devices/system/node/node1/cpulist", "2-3,70,126-130\n");
    return 0;
}

static int remove_root(void **state)
{
    return root_end();
}

static void fill(struct node_processors *p, uint64_t word)
{
    for (unsigned i = 0; i < NODE_WORDS; i++)
        p->words[i] = word;
}

TEST_WITH(the_processors_of_the_node_are_near, make_root, remove_root)
{
    struct node_processors all, near;
    fill(&all, UINT64_MAX);
    assert_true(node_near(root, &place, &all, &near));
    assert_int_equal(node_count(&near), 8);
    assert_int_equal(near.words[0], 12);
    assert_int_equal(near.words[1], UINT64_C(3) << 62 | 1 << 6);
    assert_int_equal(near.words[2], 7);
}

TEST_WITH(only_allowed_ones_count, make_root, remove_root)
{
    struct node_processors some = {{8, 1 << 6}}, near;
    assert_true(node_near(root, &place, &some, &near));
    assert_memory_equal(&near, &some, sizeof near);
    some = (struct node_processors){{1}};
    assert_false(node_near(root, &place, &some, &near));
}

TEST_WITH(a_machine_that_names_none_has_none, make_root, remove_root)
{
    struct node_processors all, near;
    fill(&all, UINT64_MAX);
    put("/sys/bus/pci/devices/0000:3b:00.0/numa_node", "-1\n");
    assert_false(node_near(root, &place, &all, &near));
    put("/sys/bus/pci/devices/0000:3b:00.0/numa_node", "2\n");
    assert_false(node_near(root, &place, &all, &near));
    assert_false(node_near(root, &(struct node_place){0, 0x3c, 0}, &all, &near));
    put("/sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
    put("/sys/devices/system/node/node1/cpulist", "\n");
    assert_false(node_near(root, &place, &all, &near));
}

TEST(a_thread_runs_where_it_is_bound)
{
    struct node_processors before, one = {0}, now;
    unsigned i = 0;
    node_allowed(&before);
    assert_true(node_count(&before) > 0);
    while (!before.words[i])
        i++;
    one.words[i] = before.words[i] & -before.words[i];
    node_bind(&one);
    node_allowed(&now);
    assert_memory_equal(&now, &one, sizeof now);
    node_bind(&before);
    node_allowed(&now);
    assert_memory_equal(&now, &before, sizeof now);
}

PLAY_TESTS
