/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A window: where in an arena a request may come to lie, over free memory and holes, so that the
 * least memory is missing. It holds nothing. All functions want the pool's lock held.
 */
#ifndef POOL_WINDOW_H
#define POOL_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

struct block;
struct zone;

struct window {
    struct block *run; /* lowest block of the run of free memory and holes that it lies in */
    uint64_t start, end;
    uint64_t missing_bytes; /* without memory, in whole granules */
};

/* The window of size_bytes at a multiple of align with the fewest bytes missing, the lowest of
 * equals, among those that can reach into a hole (free memory alone is the bins' matter); false:
 * none. */
bool window_find(const struct zone *z, uint64_t size_bytes, uint64_t align, struct window *best);

#endif
