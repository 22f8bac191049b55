/* SPDX-License-Identifier: BSD-2-Clause */
/* A library whose constructor takes a while if SLOW_START is "yes". The thread that loads it holds
 * the loader's lock meanwhile. No signal shortens the wait. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

void wait_a_while(void);

void wait_a_while(void)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += 1;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL))
        ;
}

__attribute__((constructor)) static void start(void)
{
    const char *slow = getenv("SLOW_START");
    if (slow && strcmp(slow, "yes") == 0)
        wait_a_while();
}
