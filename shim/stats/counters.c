/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See counters.h: the storage of the counters.
 */
#include "shim/stats/counters.h"

_Atomic uint64_t counter_values[NUM_COUNTERS];
