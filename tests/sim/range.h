/* SPDX-License-Identifier: BSD-2-Clause */
/* An ordered set of address ranges [lo, hi) that do not overlap, as an intrusive treap. Driver
 * lock. */
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

/* Adds a new object of so many bytes that begins with the range, lo < hi, which overlaps no member;
 * removes one and frees it. */
void *range_add(struct ranges *set, size_t bytes, uint64_t lo, uint64_t hi);
void range_delete(struct ranges *set, struct range *node);

#endif
