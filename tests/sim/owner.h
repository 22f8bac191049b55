/* SPDX-License-Identifier: BSD-2-Clause */
/* The memory that the program owns. An allocator that reuses addresses does not tell the driver, so
 * test programs announce each allocation and free. Driver lock. */
#ifndef SIM_OWNER_H
#define SIM_OWNER_H

#include <stdint.h>

/* The program has allocated [addr, addr + size). Replaces earlier announcements there. */
void owner_begin(uint64_t addr, uint64_t size);
/* The program has freed the allocation that begins at addr. */
void owner_end(uint64_t addr);

/* Returns the number of the ownership that holds the whole range, or 0. Two allocations never have
 * the same number. */
uint64_t owner_of(uint64_t addr, uint64_t size);

#endif
