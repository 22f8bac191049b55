/* SPDX-License-Identifier: BSD-2-Clause */
/* An ordered set of address ranges [lo, hi) that do not overlap, as an intrusive treap. It owns no
 * memory. Driver lock. */
#ifndef SIM_RANGE_H
#define SIM_RANGE_H

#include <stddef.h>
#include <stdint.h>

struct range {
    uint64_t lo, hi;
    struct range *left, *right;
    uint32_t priority;
};

struct ranges {
    struct range *root;
    size_t count;
    uint32_t seed;
};

/* Returns the range that contains addr, or NULL. */
struct range *range_find(const struct ranges *set, uint64_t addr);

/* Returns the lowest range with hi > addr, or NULL: the one that contains addr, else the next
 * above. */
struct range *range_from(const struct ranges *set, uint64_t addr);

/* node->lo and node->hi are set, lo < hi, and overlap no member. */
void range_insert(struct ranges *set, struct range *node);

/* node is a member. */
void range_remove(struct ranges *set, struct range *node);

#endif
