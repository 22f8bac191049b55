/* SPDX-License-Identifier: BSD-2-Clause */
/* Stream-ordered allocation. When the stream reaches the free, the memory stays with its pool, up
 * to the release threshold. (A real driver keeps it until the next synchronisation.) The bytes that
 * a pool keeps count as taken; they have no addresses. Other allocations do not get them, so a
 * program has to trim. Memory nodes of graphs are not simulated, but for bytes that a test says
 * graphs keep. Driver lock. */
#ifndef SIM_MEMPOOL_H
#define SIM_MEMPOOL_H

#include "tests/sim/driver.h"

/* The device may access memory of the pool. Peer access between contexts does not matter. */
bool mempool_allows(CUmemoryPool pool, int device);

/* Memory of the pool was freed. */
void mempool_gets_back(CUmemoryPool pool, uint64_t bytes);

/* The primary context ends, and with it the pools that were made on its device. */
void mempool_device_ends(int device);

/* The stream has reached the cuMemFreeAsync of this address. */
void mempool_reclaim(uint64_t addr);

#endif
