/* SPDX-License-Identifier: BSD-2-Clause
 *
 * A child with a time limit. See child.h.
 */
#include "tests/gpu/child.h"

#include "tests/gpu/driver.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define POLL_US 2000
#define GIVE_UP_POLLS 2500

int child_run(int (*body)(void *arg), void *arg, unsigned limit_s)
{
    uint64_t end_ns = driver_now_ns() + limit_s * UINT64_C(1000000000);
    int status = 0;
    pid_t child, ended;

    fflush(stdout);
    child = fork();
    if (child == 0) {
        setpgid(0, 0);
        status = body(arg);
        fflush(stdout);
        _exit(status);
    }
    if (child < 0)
        exit(2);
    setpgid(child, child);
    while ((ended = waitpid(child, &status, WNOHANG)) == 0 && driver_now_ns() < end_ns)
        usleep(POLL_US);
    kill(-child, SIGKILL);
    if (ended == 0) {
        /* One that the driver holds in the kernel may not end at once. */
        for (int i = 0; i < GIVE_UP_POLLS && waitpid(child, &status, WNOHANG) == 0; i++)
            usleep(POLL_US);
        return CHILD_LATE;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : CHILD_SIGNAL + WTERMSIG(status);
}

const char *child_words(int status)
{
    static char words[64];

    if (status == CHILD_LATE)
        return "does not return";
    if (status >= CHILD_SIGNAL)
        snprintf(words, sizeof words, "ends by signal %d", status - CHILD_SIGNAL);
    else
        snprintf(words, sizeof words, "exit status %d", status);
    return words;
}
