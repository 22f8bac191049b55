/* SPDX-License-Identifier: BSD-2-Clause */
/* A library whose constructor, if SLOW_START is "yes", asks for a flush and takes a second after
 * that. The thread that loads it holds the loader's lock meanwhile. No signal shortens the wait. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void hold(void);

/* Says that the call has begun, and ends it once there is a byte to read. */
void hold(void)
{
    char byte;
    if (write(STDOUT_FILENO, "inside\n", 7) != 7)
        return;
    while (read(STDIN_FILENO, &byte, 1) < 0)
        ;
}

__attribute__((constructor)) static void start(void)
{
    const char *slow = getenv("SLOW_START");
    struct timespec end;
    if (!slow || strcmp(slow, "yes") != 0)
        return;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += 1;
    kill(getpid(), SIGUSR1);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL))
        ;
}
