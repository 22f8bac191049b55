/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A pool's statistics, generated from pool/stats.def. Written under the pool's lock; pool_stats()
 * copies them out.
 */
#ifndef POOL_STATS_H
#define POOL_STATS_H

#include <stdint.h>

struct pool_stats {
#define POOL_STAT(field, kind, unit, help) uint64_t field;
#include "pool/stats.def"
#undef POOL_STAT
};

/* Raise a gauge and its peak; a gauge's peak is the row after it. */
static inline void stats_raise(uint64_t *gauge, uint64_t by)
{
    gauge[0] += by;
    if (gauge[0] > gauge[1])
        gauge[1] = gauge[0];
}

#endif
