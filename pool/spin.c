/* SPDX-License-Identifier: BSD-2-Clause
 *
 * See spin.h.
 */
#include "pool/spin.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

void spin_pause(unsigned turn)
{
    int saved_errno = errno, saved_cancel;
    if (turn < SPIN_YIELDS) {
        sched_yield();
    } else {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &saved_cancel);
        nanosleep(&(struct timespec){.tv_nsec = SPIN_SLEEP_NS}, NULL);
        pthread_setcancelstate(saved_cancel, &saved_cancel);
    }
    errno = saved_errno;
}
