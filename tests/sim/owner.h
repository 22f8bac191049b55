/* SPDX-License-Identifier: BSD-2-Clause */
/* What the program says it owns: an allocator that reuses addresses does not tell the driver, so
 * test programs announce each allocation and free. Driver lock. */
#ifndef SIM_OWNER_H
#define SIM_OWNER_H

#include <stdint.h>

/* The program has got [addr, addr + size). Replaces what was announced there before. */
void owner_begin(uint64_t addr, uint64_t size);
/* The program has given up what begins at addr. */
void owner_end(uint64_t addr);

/* The number of the ownership that holds all of the range, or 0. Never the same for two
 * allocations. */
uint64_t owner_of(uint64_t addr, uint64_t size);

#endif
