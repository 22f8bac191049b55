/* SPDX-License-Identifier: BSD-2-Clause
 *
 * What enforces the limits on idle memory while nobody asks: MAX_IDLE, MAX_RESERVED where it was
 * lowered, MIN_FREE and IDLE_TIMEOUT. pool_tick does, every pool_tick_ns. Lock held.
 */
#ifndef POOL_LIMITS_H
#define POOL_LIMITS_H

#include <stdint.h>

struct pool;

/* Computes how often pool_tick is needed, and what MAX_RESERVED allows now. */
void limits_set_tick(struct pool *p);
/* What the driver says is free, or `unknown` if it does not say. Drops the lock meanwhile. */
uint64_t limits_driver_free_bytes(struct pool *p, uint64_t unknown);

#endif
