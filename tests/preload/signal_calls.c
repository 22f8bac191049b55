/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * System calls that SIGUSR1 interrupts, in a program with its own handler for it: a read is restarted
 * if the handler asked for that and ends with EINTR if not, poll and nanosleep end with it either way.
 * The handler is installed before or after the first CUDA call; it runs on the stack that it asked for,
 * with the signals blocked that it asked for.
 */
#include "tests/preload/scene.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 3 };

static char alternate[64 * 1024];
static volatile sig_atomic_t handled, on_alternate, usr2_blocked;
static atomic_int in_call;
static int ends[2]; /* a pipe */

static void handler(int number)
{
    sigset_t now;
    char here;
    (void)number;
    handled = handled + 1;
    on_alternate = &here >= alternate && &here < alternate + sizeof alternate;
    usr2_blocked = pthread_sigmask(SIG_BLOCK, NULL, &now) == 0 && sigismember(&now, SIGUSR2);
}

static void *interrupted(void *context)
{
    static const char *const names[CALLS] = {"read", "poll", "nanosleep"};
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    (void)context;
    REQUIRE(sigaltstack(&stack, NULL));
    for (int i = 0; i < CALLS; i++) {
        struct pollfd never = {.fd = ends[0], .events = POLLIN};
        struct timespec nap = {2, 0};
        char byte = 0;
        long rc = 0;
        errno = 0;
        atomic_store(&in_call, i + 1);
        if (i == 0)
            rc = read(ends[0], &byte, 1);
        else if (i == 1)
            rc = poll(&never, 1, 2000);
        else
            rc = nanosleep(&nap, NULL);
        printf("  %s: %ld%s\n", names[i], rc, rc < 0 && errno == EINTR ? " interrupted" : "");
    }
    stack.ss_flags = SS_DISABLE;
    REQUIRE(sigaltstack(&stack, NULL));
    return NULL;
}

static void install(int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGUSR2);
    REQUIRE(sigaction(SIGUSR1, &action, NULL));
}

static void interrupt_all(const char *what, bool restarts)
{
    pthread_t thread;
    printf("%s\n", what);
    REQUIRE(pipe(ends));
    atomic_store(&in_call, 0);
    handled = 0;
    REQUIRE(pthread_create(&thread, NULL, interrupted, NULL));
    for (int i = 0; i < CALLS; i++) {
        while (atomic_load(&in_call) < i + 1)
            scene_sleep_ms(1);
        scene_sleep_ms(200); /* now it is in the call */
        REQUIRE(pthread_kill(thread, SIGUSR1));
        if (i == 0 && restarts) {
            scene_sleep_ms(100);
            EXPECT(write(ends[1], "x", 1) == 1);
        }
    }
    REQUIRE(pthread_join(thread, NULL));
    printf("  handled %d, alternate stack %d, SIGUSR2 blocked %d\n", (int)handled, (int)on_alternate,
           (int)usr2_blocked);
    close(ends[0]);
    close(ends[1]);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "restart";
    int flags = strcmp(how, "restart") == 0     ? SA_RESTART
                : strcmp(how, "alternate") == 0 ? SA_ONSTACK
                                                : 0;
    uint64_t block = 0;
    install(flags);
    scene_start(1, 60);
    REQUIRE(gpu_malloc(&block, 4 * MIB));
    interrupt_all("installed before", flags & SA_RESTART);
    install(flags);
    REQUIRE(gpu_free(block));
    REQUIRE(gpu_malloc(&block, 4 * MIB));
    interrupt_all("installed after", flags & SA_RESTART);
    REQUIRE(gpu_free(block));
    return 0;
}
