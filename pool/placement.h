/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The placement policy: which free block serves a request, where an arena grows, and which free
 * blocks lose their chunks first. Another policy is another placement.c; nothing else knows how
 * free blocks are found.
 *
 * This policy is good fit. The free blocks of a zone lie in bins by size. Below 32 KiB each size
 * has a bin of its own. Above, a doubling has 32 bins, 3 % apart. A bitmap tells which bins hold
 * blocks. Finding is O(1). The search looks at a few blocks of the bin of the size asked for, then
 * goes to the next bins that hold any. There every block fits, unless the request has an alignment.
 * Best fit within a bin changed the mean peak of replays by less than 0.4 %.
 *
 * All functions want the pool's lock held.
 */
#ifndef POOL_PLACEMENT_H
#define POOL_PLACEMENT_H

#include "pool/block.h"

#define PLACEMENT_BINS 1024

/* The free blocks of one zone, by their `link`. */
struct placement {
    uint64_t map[PLACEMENT_BINS / 64];
    struct list heads[PLACEMENT_BINS]; /* valid where the bit is set: few pages are touched */
};

/* *pl is all zero so far, or in use: then its blocks are forgotten. */
void placement_init(struct placement *pl);
void placement_insert(struct placement *pl, struct block *b);
void placement_remove(struct placement *pl, struct block *b);

/* A block of the lowest bin in which a bounded look finds one of at least size_bytes. NULL: none.
 * align: the block must hold size_bytes from a multiple of it on. */
struct block *placement_find(const struct placement *pl, uint64_t size_bytes, uint64_t align);

/* All free blocks, the largest first, as far as bins tell sizes apart. */
struct block *placement_largest(const struct placement *pl);
/* The next after b; NULL: b was the last. To be called before b is taken out. */
struct block *placement_next(const struct placement *pl, const struct block *b);

/* Where in an arena a request may come to lie, over free memory and holes. */
struct window {
    struct block *run; /* lowest block of the run of free memory and holes that it lies in */
    uint64_t start, end;
    uint64_t missing_bytes; /* without memory, in whole granules */
};

/* Finds the window of size_bytes at a multiple of align with the fewest bytes missing, and of equal
 * ones the lowest. Looks only at windows that can reach into a hole, because placement_find serves
 * from free memory alone. False: there is none. */
bool placement_find_window(const struct zone *z, uint64_t size_bytes, uint64_t align,
                           struct window *best);

/* For pool_check: the words of the first broken invariant of the zone's free blocks, or NULL, and
 * their sum. */
const char *placement_check(const struct zone *z, uint64_t *free_bytes);

#endif
