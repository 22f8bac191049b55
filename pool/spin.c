/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See spin.h.
 */
#include "pool/spin.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

/* 0: only yields. */
static void pause_for(long ns)
{
    int saved_errno = errno, saved_cancel;
    if (ns == 0) {
        sched_yield();
    } else {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &saved_cancel);
        nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
        pthread_setcancelstate(saved_cancel, &saved_cancel);
    }
    errno = saved_errno;
}

void spin_pause(unsigned turn)
{
    pause_for(turn < SPIN_YIELDS ? 0 : SPIN_SLEEP_NS);
}

void spin_pause_longer(unsigned turn)
{
    unsigned sleeps = turn < SPIN_YIELDS ? 0 : turn - SPIN_YIELDS;
    unsigned shift = sleeps < SPIN_LONG_SHIFT ? sleeps : SPIN_LONG_SHIFT;
    pause_for(turn < SPIN_YIELDS ? 0 : (long)SPIN_SLEEP_NS << shift);
}
