/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A doubly linked list through a node inside the element. An unlinked node points to itself, so
 * unlinking twice is harmless.
 */
#ifndef POOL_LIST_H
#define POOL_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *prev, *next;
};

#define list_entry(node, type, member) ((type *)(void *)((char *)(node) - offsetof(type, member)))
/* The loop body may unlink the current node. */
#define list_for_each(node, tmp, head)                                                             \
    for (struct list *node = (head)->next, *tmp = node->next; node != (head);                      \
         node = tmp, tmp = node->next)

static inline void list_init(struct list *l)
{
    l->prev = l->next = l;
}

static inline bool list_empty(const struct list *head)
{
    return head->next == head;
}

static inline void list_remove(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

static inline void list_push_front(struct list *head, struct list *node)
{
    node->prev = head;
    node->next = head->next;
    head->next->prev = node;
    head->next = node;
}

static inline void list_push_back(struct list *head, struct list *node)
{
    list_push_front(head->prev, node);
}

#endif
