/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The storage of the process-wide counters; everything else about them is in counters.h.
 */
#include "shim/stats/counters.h"

_Atomic uint64_t counter_values[NUM_COUNTERS];
