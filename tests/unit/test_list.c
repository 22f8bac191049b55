/* SPDX-License-Identifier: BSD-2-Clause */
/* pool/list.h. */
#include "pool/list.h"
#include "tests/unit/expect.h"

struct item {
    struct list link;
};

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
