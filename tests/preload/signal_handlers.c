/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The program's own SIGUSR1 handling, installed before or after its first CUDA call: its handler
 * runs once for each signal, errno stays as it was, and blocked system calls restart as it asked.
 * Argument: "before", "after", "siginfo" (before, three-argument form), "ignore", "plain" (signal()),
 * "once" (a handler that is gone after one signal: only one is sent, except to the cache);
 * or blocked everywhere and taken by "wait" (sigtimedwait), "sigwait" in another thread, or "signalfd",
 * or "masked": handled when the mask is opened at last.
 */
#include "tests/preload/scene.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
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
    } else if (strcmp(how, "plain") == 0) {
        EXPECT(signal(SIGUSR1, plain) == SIG_DFL);
        return;
    } else {
        if (strcmp(how, "once") == 0)
            action.sa_flags |= (int)SA_RESETHAND;
        action.sa_handler = strcmp(how, "ignore") == 0 ? SIG_IGN : plain;
    }
    REQUIRE(sigaction(SIGUSR1, &action, NULL));
}

/* For a process whose threads all have the signal blocked: takes one that is pending. */
static int take(const char *how, const sigset_t *usr1, int descriptor)
{
    struct timespec timeout = {5, 0};
    struct signalfd_siginfo info;
    int number = 0;
    if (strcmp(how, "wait") == 0)
        return sigtimedwait(usr1, NULL, &timeout) == SIGUSR1;
    if (strcmp(how, "sigwait") == 0)
        return sigwait(usr1, &number) == 0 && number == SIGUSR1;
    if (strcmp(how, "signalfd") == 0)
        return read(descriptor, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR1 &&
               info.ssi_int == 17;
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const blocked[] = {"wait", "sigwait", "signalfd", "masked"};
    const uint64_t words = 64 * KIB;
    const char *how = argc > 1 ? argv[1] : "before";
    uint64_t live = 0;
    uint64_t idle = 0;
    bool waits = false, once = strcmp(how, "once") == 0;
    sigset_t usr1;
    int taken = 0;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    for (size_t i = 0; i < sizeof blocked / sizeof *blocked; i++)
        waits |= strcmp(how, blocked[i]) == 0;
    if (waits)
        REQUIRE(pthread_sigmask(SIG_BLOCK, &usr1, NULL));
    int descriptor = signalfd(-1, &usr1, SFD_CLOEXEC);
    EXPECT(descriptor >= 0);
    if ((!waits || strcmp(how, "masked") == 0) && strcmp(how, "after") != 0)
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
        if (i == 0 || !once || scene_preloaded())
            EXPECT(sigqueue(getpid(), SIGUSR1, value) == 0);
        EXPECT(errno == E2BIG);
        if (waits)
            taken += take(how, &usr1, descriptor);
        scene_sleep_ms(2);
    }
    if (strcmp(how, "masked") == 0)
        REQUIRE(pthread_sigmask(SIG_UNBLOCK, &usr1, NULL));
    printf("%d plain calls, %d with a value, %d taken\n", (int)plain_calls, (int)siginfo_calls,
           taken);
    printf("%u wrong words\n", scene_wrong_words(live, words, 6, NULL));
    REQUIRE(gpu_free(live));
    return 0;
}
