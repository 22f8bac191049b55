/* SPDX-License-Identifier: BSD-2-Clause */
/* A library whose constructor forks after 0.3 s, while its thread holds the loader's lock. It ends
 * the process if the fork takes nearly as long as shim/process/fork_gate.h lets one wait. */
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

__attribute__((constructor)) static void start(void)
{
    usleep(300000);
    double begun_s = now_s();
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    if (child < 0 || now_s() - begun_s > 0.9)
        abort();
    waitpid(child, NULL, 0);
}
