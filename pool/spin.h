/* SPDX-License-Identifier: BSD-2-Clause
 *
 * One turn of a loop that waits for a few steps of another thread, where there is nothing to sleep
 * on. The first turns only yield: the other thread may run on another processor. Later turns sleep.
 * A thread with a real-time policy that only yields keeps every thread of lower priority from its
 * processor, and it may wait for one of them. Keeps errno, and is no cancellation point. Takes no
 * lock. The shim may use it too.
 */
#ifndef POOL_SPIN_H
#define POOL_SPIN_H

#include "pool/tuning.h"

/* turn counts from 0 in each loop. */
void spin_pause(unsigned turn);

#endif
