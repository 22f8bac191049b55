/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The figures of the driver's own pools of one device, generated from async_stats.def.
 */
#ifndef SHIM_ASYNC_STATS_H
#define SHIM_ASYNC_STATS_H

#include <stdint.h>

struct async_stats {
#define ASYNC_STAT(field, kind, unit, help) uint64_t field;
#include "shim/stats/async_stats.def"
#undef ASYNC_STAT
};

#endif
