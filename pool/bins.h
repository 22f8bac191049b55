/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The free blocks of a zone by size: exact bins below 16 KiB, then 32 to a doubling (3 % apart), and
 * a bitmap over them. Finding is O(1): a bounded look into the bin of the size asked for, else into
 * the next bin that holds anything, where every block fits.
 */
#ifndef POOL_BINS_H
#define POOL_BINS_H

#include "pool/block.h"

#define BIN_COUNT 1024

struct bins {
    uint64_t map[BIN_COUNT / 64];
    struct list heads[BIN_COUNT]; /* only those whose bit is set: a new pool touches few pages */
};

/* All zero so far, or in use: then what is in them is forgotten. */
void bins_init(struct bins *bins);
void bins_insert(struct bins *bins, struct block *b);
void bins_remove(struct bins *bins, struct block *b);

/* The smallest block of at least size_bytes, the lowest of equals, within the bounded look; NULL: none.
 * align: the block must hold size_bytes from a multiple of it on. */
struct block *bins_find(const struct bins *bins, uint64_t size_bytes, uint64_t align);

#endif
