/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/list.h. */
#include "pool/list.h"

#include "tests/unit/expect.h"

struct item {
    int number;
    struct list link;
};

TEST(a_new_list_is_empty)
{
    struct list head;
    list_init(&head);
    EXPECT(list_empty(&head), "nothing was pushed");
}

TEST(order_is_that_of_the_pushes)
{
    struct list head;
    struct item items[4] = {{.number = 0}, {.number = 1}, {.number = 2}, {.number = 3}};
    int wanted[] = {3, 1, 0, 2}, at = 0;
    list_init(&head);
    list_push_back(&head, &items[0].link);
    list_push_front(&head, &items[1].link);
    list_push_back(&head, &items[2].link);
    list_push_front(&head, &items[3].link);
    list_for_each(n, tmp, &head)
        EXPECT_EQ(list_entry(n, struct item, link)->number, wanted[at++],
                  "front and back are kept");
    EXPECT_EQ(at, 4, "every element is seen once");
}

TEST(the_loop_may_remove_what_it_sees)
{
    struct list head;
    struct item items[5];
    list_init(&head);
    for (int i = 0; i < 5; i++) {
        items[i].number = i;
        list_push_back(&head, &items[i].link);
    }
    int seen = 0;
    list_for_each(n, tmp, &head) {
        seen++;
        if (list_entry(n, struct item, link)->number % 2 == 0)
            list_remove(n);
    }
    EXPECT_EQ(seen, 5, "removal skips nothing");
    EXPECT(head.next == &items[1].link && items[1].link.next == &items[3].link &&
               items[3].link.next == &head && head.prev == &items[3].link,
           "the others are linked both ways");
}

TEST(removing_twice_is_harmless)
{
    struct list head;
    struct item a, b, c;
    list_init(&head);
    list_push_back(&head, &a.link);
    list_push_back(&head, &b.link);
    list_remove(&a.link);
    list_push_front(&head, &c.link);
    list_remove(&a.link);
    EXPECT(head.next == &c.link && c.link.next == &b.link && head.prev == &b.link,
           "the list is as if removed once");
}

PLAY_TESTS
