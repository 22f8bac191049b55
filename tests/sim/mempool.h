/* SPDX-License-Identifier: BSD-2-Clause */
/* Stream-ordered allocation. The pools keep nothing: memory goes back to the device when the free is
 * reached in its stream. Driver lock. */
#ifndef SIM_MEMPOOL_H
#define SIM_MEMPOOL_H

#include <stdint.h>

/* A cuMemFreeAsync of this address has been reached. */
void mempool_reclaim(uint64_t addr);

#endif
