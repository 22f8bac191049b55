/* SPDX-License-Identifier: BSD-2-Clause */
/* Hands out sub-ranges of one span of addresses or offsets, lowest first. So a freed range is used
 * again first, which exposes a caller that still uses it. Driver lock. */
#ifndef SIM_SPACE_H
#define SIM_SPACE_H

#include <stdbool.h>

#include "tests/sim/range.h"

struct space {
    struct ranges free;
};

/* The space starts as [base, base + size). */
void space_init(struct space *space, uint64_t base, uint64_t size);
void space_finish(struct space *space);

/* Finds the first fit of size bytes at a multiple of alignment (a power of two). Returns false if
 * nothing fits. */
bool space_alloc(struct space *space, uint64_t size, uint64_t alignment, uint64_t *out);

/* [addr, addr + size) came from space_alloc, whole or in part. */
void space_free(struct space *space, uint64_t addr, uint64_t size);

#endif
