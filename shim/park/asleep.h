/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Whether the process uses the GPU at all: GPUCACHE_PARK=idle:TIME and lend:TIME. A duty of the
 * control thread reads a count of the uses four times within the shorter of both times. A launch
 * reads no clock for it.
 *
 * 1. The process is asleep from the look on that found the count unchanged, if no work runs in any
 *    context (pool_is_idle). So TIME is at least the option's, and a quarter more at most. A wake
 *    counts as a use, also one by request.
 * 2. It parks itself once it is asleep for idle:TIME, after the packages emptied their caches. A
 *    process that was awake for less than ASLEEP_WORTH times what the park and the wake took waits
 *    twice as long the next time, up to ASLEEP_MOST_NS. After a sleep of ASLEEP_LONG_NS the time is
 *    the option's again. So a program that uses the GPU once in a while is parked ever less often.
 *    A park of this kind that is refused before the gate is closed, as it always is in some
 *    processes, also doubles the time until the next one. Else such a process would empty its
 *    caches again and again.
 * 3. It parks for a neighbour only if it is asleep for lend:TIME. So it has at least TIME of work
 *    between two such parks.
 * 4. It lends only what is on the device. A park for a neighbour may bring nothing: of some
 *    processes each one, of others one for want of room. Then the next one that is to bring as much
 *    of that device waits for ASLEEP_VAIN_NS, and twice as long after each further one, up to 16
 *    times that, until the next use. Else each request of one that waits would try it again.
 */
#ifndef SHIM_ASLEEP_H
#define SHIM_ASLEEP_H

#include "shim/process/clock.h"

#include <stdbool.h>
#include <stdint.h>

#define ASLEEP_WORTH 10
#define ASLEEP_MOST_NS (600 * SEC_NS)
#define ASLEEP_LONG_NS (3600 * SEC_NS)
#define ASLEEP_VAIN_NS SEC_NS

/* GPUCACHE_PARK changed, or the library has started. */
void asleep_options_changed(void);
/* May a neighbour have so much of its memory of this device now? And: a park for that brought
 * nothing. Both on the control thread. */
bool asleep_may_lend(int device, uint64_t bytes);
void asleep_lent_nothing(int device, uint64_t bytes);
#endif
