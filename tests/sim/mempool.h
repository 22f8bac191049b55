/* SPDX-License-Identifier: BSD-2-Clause */
/* Stream-ordered allocation. The pools keep nothing: memory goes back to the device when the free
 * is reached in its stream. Driver lock. */
#ifndef SIM_MEMPOOL_H
#define SIM_MEMPOOL_H

#include "tests/sim/driver.h"

/* Memory of the pool may be accessed from the device. Peer access between contexts does not matter
 * for it. */
bool mempool_allows(CUmemoryPool pool, int device);

/* A cuMemFreeAsync of this address has been reached. */
void mempool_reclaim(uint64_t addr);

#endif
