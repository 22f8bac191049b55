/* SPDX-License-Identifier: BSD-2-Clause */
/* The treap behind range.h: a search tree by address and a heap by random priority. Its expected
 * depth is logarithmic for any order of insertion. */
#include "tests/sim/range.h"

#include "tests/sim/alloc.h"

struct range *range_find(const struct ranges *set, uint64_t addr)
{
    struct range *node = range_from(set, addr);
    return node != NULL && node->lo <= addr ? node : NULL;
}

struct range *range_from(const struct ranges *set, uint64_t addr)
{
    struct range *best = NULL;
    for (struct range *node = set->root; node != NULL;) {
        if (node->hi > addr) {
            best = node;
            node = node->left;
        } else {
            node = node->right;
        }
    }
    return best;
}

static void split(struct range *node, uint64_t addr, struct range **below, struct range **above)
{
    if (node == NULL) {
        *below = *above = NULL;
    } else if (node->lo < addr) {
        split(node->right, addr, &node->right, above);
        *below = node;
    } else {
        split(node->left, addr, below, &node->left);
        *above = node;
    }
}

static struct range *join(struct range *below, struct range *above)
{
    if (below == NULL)
        return above;
    if (above == NULL)
        return below;
    if (below->priority > above->priority) {
        below->right = join(below->right, above);
        return below;
    }
    above->left = join(below, above->left);
    return above;
}

static void insert(struct ranges *set, struct range *node)
{
    set->seed = set->seed * 1664525u + 1013904223u;
    node->priority = set->seed ^ (set->seed >> 15);
    set->count++;
    struct range **link = &set->root;
    while (*link != NULL && (*link)->priority >= node->priority)
        link = node->lo < (*link)->lo ? &(*link)->left : &(*link)->right;
    split(*link, node->lo, &node->left, &node->right);
    *link = node;
}

void *range_add(struct ranges *set, size_t bytes, uint64_t lo, uint64_t hi)
{
    struct range *node = never_null(calloc(1, bytes));
    node->lo = lo;
    node->hi = hi;
    insert(set, node);
    return node;
}

void range_delete(struct ranges *set, struct range *node)
{
    struct range **link = &set->root;
    while (*link != node)
        link = node->lo < (*link)->lo ? &(*link)->left : &(*link)->right;
    *link = join(node->left, node->right);
    set->count--;
    free(node);
}
