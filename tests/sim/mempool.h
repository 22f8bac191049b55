/* SPDX-License-Identifier: BSD-2-Clause */
/* Stream-ordered allocation. The pools keep nothing: when the stream reaches the free, the memory
 * goes back to the device. Driver lock. */
#ifndef SIM_MEMPOOL_H
#define SIM_MEMPOOL_H

#include "tests/sim/driver.h"

/* The device may access memory of the pool. Peer access between contexts does not matter. */
bool mempool_allows(CUmemoryPool pool, int device);

/* The stream has reached the cuMemFreeAsync of this address. */
void mempool_reclaim(uint64_t addr);

#endif
