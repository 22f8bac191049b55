/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The program's own SIGUSR1 handling, installed before or after its first CUDA call: its handler
 * runs once for each signal, errno stays as it was, and blocked system calls restart as it asked.
 * Argument: "before", "after", "siginfo" (before, three-argument form), "ignore", or "wait":
 * blocked everywhere and taken by sigtimedwait.
 */
#include "tests/preload/scene.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t plain_calls;
static volatile sig_atomic_t siginfo_calls;

static void plain(int number)
{
    plain_calls += number == SIGUSR1;
}

static void with_siginfo(int number, siginfo_t *info, void *ucontext)
{
    (void)ucontext;
    siginfo_calls += number == SIGUSR1 && info->si_value.sival_int == 17;
}

static void install(const char *how)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    if (strcmp(how, "siginfo") == 0) {
        action.sa_flags |= SA_SIGINFO;
        action.sa_sigaction = with_siginfo;
    } else {
        action.sa_handler = strcmp(how, "ignore") == 0 ? SIG_IGN : plain;
    }
    REQUIRE(sigaction(SIGUSR1, &action, NULL));
}

int main(int argc, char **argv)
{
    const uint64_t words = 64 * KIB;
    const char *how = argc > 1 ? argv[1] : "before";
    uint64_t live = 0;
    uint64_t idle = 0;
    bool waits = strcmp(how, "wait") == 0;
    sigset_t usr1;
    int taken = 0;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    if (waits)
        REQUIRE(pthread_sigmask(SIG_BLOCK, &usr1, NULL));
    else if (strcmp(how, "after") != 0)
        install(how);
    scene_start(1, 60);
    REQUIRE(gpu_malloc(&live, words * 4));
    REQUIRE(gpu_fill(live, words, 6, NULL));
    if (strcmp(how, "after") == 0)
        install(how);
    for (int i = 0; i < 20; i++) {
        union sigval value = {.sival_int = 17};
        REQUIRE(gpu_malloc(&idle, 4 * MIB));
        REQUIRE(gpu_free(idle));
        errno = E2BIG;
        EXPECT(sigqueue(getpid(), SIGUSR1, value) == 0);
        EXPECT(errno == E2BIG);
        struct timespec timeout = {5, 0};
        if (waits)
            taken += sigtimedwait(&usr1, NULL, &timeout) == SIGUSR1;
        scene_sleep_ms(2);
    }
    printf("%d plain calls, %d with a value, %d taken\n", (int)plain_calls, (int)siginfo_calls,
           taken);
    printf("%u wrong words\n", scene_wrong_words(live, words, 6, NULL));
    REQUIRE(gpu_free(live));
    return 0;
}
