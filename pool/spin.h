/* SPDX-License-Identifier: BSD-2-Clause
 *
 * One turn of a loop that waits for a few steps of another thread, where there is nothing to sleep
 * on. The first turns only yield: the other thread may run on another processor. Later turns sleep.
 * If a thread with a real-time policy only yielded, no thread of lower priority would get its
 * processor. The thread may be waiting for one of those. Keeps errno, and is no cancellation point.
 * Takes no lock. The shim may use it too.
 */
#ifndef POOL_SPIN_H
#define POOL_SPIN_H

#include "pool/tuning.h"

/* turn counts from 0 in each loop. */
void spin_pause(unsigned turn);
/* The same for a wait that may be long: each sleep takes twice as long as the one before it, up to
 * SPIN_SLEEP_NS << SPIN_LONG_SHIFT. So a wait is at most twice as long as what it waits for. */
void spin_pause_longer(unsigned turn);

#endif
