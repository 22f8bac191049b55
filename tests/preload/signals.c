/* SPDX-License-Identifier: BSD-2-Clause */
/* The program's own handling of SIGUSR1, before and after its first CUDA call. */
#include "tests/preload/scene.h"

#include <poll.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>

/* ---- ways to handle the signal
 * The handler, installed before or after the first CUDA call, runs once for each signal, and errno
 * stays as it was. The ways of a handler are "before", "after", "siginfo" (before, three-argument
 * form), "ignore", "plain" (signal()), and "once". A handler of "once" is gone after one signal, so
 * only one is sent, except to the cache. In other ways the signal is blocked everywhere and taken
 * by "wait" (sigtimedwait), "sigwait" or "signalfd". With "masked" it is handled when the mask is
 * opened at last. */

static volatile sig_atomic_t plain_calls;
static volatile sig_atomic_t siginfo_calls;

static void plain(int number)
{
    plain_calls += number == SIGUSR1;
}

static void with_siginfo(int number, siginfo_t *info, void *ucontext)
{
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

static int handle(const char *how)
{
    static const char *const blocked[] = {"wait", "sigwait", "signalfd", "masked"};
    const uint64_t words = 64 * KIB;
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
    uint64_t live = NEW_FILLED(words, 6, NULL);
    if (strcmp(how, "after") == 0)
        install(how);
    for (int i = 0; i < 20; i++) {
        union sigval value = {.sival_int = 17};
        uint64_t idle = NEW_BLOCK(4 * MIB);
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

/* ---- calls that it interrupts
 * SIGUSR1 interrupts system calls in a program with its own handler for it. A read is restarted if
 * the handler asked for that, else it ends with EINTR. poll and nanosleep end with EINTR in both
 * cases. The handler is installed before or after the first CUDA call. It runs on the stack that it
 * asked for, with the signals blocked that it asked for. */

enum { CALLS = 3 };

static char alternate[64 * 1024];
static volatile sig_atomic_t on_alternate, usr2_blocked;
static atomic_int handled, in_call, sleeper;
static int ends[2]; /* a pipe */

/* Until the thread is in the call of that number and sleeps there. */
static void await_sleep(int call)
{
    for (int seen = 0; seen < 3; scene_sleep_ms(2)) {
        bool sleeps =
            atomic_load(&in_call) == call && scene_thread_state(atomic_load(&sleeper)) == 'S';
        seen = sleeps ? seen + 1 : 0;
    }
}

static void note_stack(int number)
{
    sigset_t now;
    char here;
    atomic_fetch_add(&handled, 1);
    on_alternate = &here >= alternate && &here < alternate + sizeof alternate;
    usr2_blocked = pthread_sigmask(SIG_BLOCK, NULL, &now) == 0 && sigismember(&now, SIGUSR2);
}

static void *interrupted(void *context)
{
    static const char *const names[CALLS] = {"read", "poll", "nanosleep"};
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    atomic_store(&sleeper, (int)syscall(SYS_gettid));
    REQUIRE(sigaltstack(&stack, NULL));
    for (int i = 0; i < CALLS; i++) {
        struct pollfd never = {.fd = ends[0], .events = POLLIN};
        struct timespec nap = {20, 0};
        char byte = 0;
        long rc = 0;
        errno = 0;
        atomic_store(&in_call, i + 1);
        if (i == 0)
            rc = read(ends[0], &byte, 1);
        else if (i == 1)
            rc = poll(&never, 1, 20000);
        else
            rc = nanosleep(&nap, NULL);
        printf("  %s: %ld%s\n", names[i], rc, rc < 0 && errno == EINTR ? " interrupted" : "");
    }
    stack.ss_flags = SS_DISABLE;
    REQUIRE(sigaltstack(&stack, NULL));
    return NULL;
}

static void install_with(int flags)
{
    struct sigaction action = {.sa_handler = note_stack, .sa_flags = flags};
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGUSR2);
    REQUIRE(sigaction(SIGUSR1, &action, NULL));
}

static void interrupt_all(const char *what, bool restarts)
{
    printf("%s\n", what);
    REQUIRE(pipe(ends));
    atomic_store(&in_call, 0);
    atomic_store(&handled, 0);
    pthread_t thread = NEW_THREAD(interrupted, NULL);
    for (int i = 0; i < CALLS; i++) {
        int before = atomic_load(&handled);
        await_sleep(i + 1);
        REQUIRE(pthread_kill(thread, SIGUSR1));
        if (i == 0 && restarts) {
            /* The thread sanitizer's runtime calls the handler after the read. */
            for (int waits = 0; atomic_load(&handled) == before && waits < 100; waits++)
                scene_sleep_ms(1);
            await_sleep(1);
            EXPECT(write(ends[1], "x", 1) == 1);
        }
    }
    REQUIRE(pthread_join(thread, NULL));
    printf("  handled %d, alternate stack %d, SIGUSR2 blocked %d\n", atomic_load(&handled),
           (int)on_alternate, (int)usr2_blocked);
    close(ends[0]);
    close(ends[1]);
}

static int interrupt(int flags)
{
    install_with(flags);
    scene_start(1, 60);
    uint64_t block = NEW_BLOCK(4 * MIB);
    interrupt_all("installed before", flags & SA_RESTART);
    install_with(flags);
    REQUIRE(gpu_free(block));
    block = NEW_BLOCK(4 * MIB);
    interrupt_all("installed after", flags & SA_RESTART);
    REQUIRE(gpu_free(block));
    return 0;
}

ACT_IS(ACT(a_handler_of_before_runs), handle("before"))
ACT_IS(ACT(a_handler_of_later_runs), handle("after"))
ACT_IS(ACT(a_handler_with_three_arguments_runs), handle("siginfo"))
ACT_IS(ACT(an_ignored_signal_harms_nobody), handle("ignore"))
ACT_IS(ACT(a_handler_by_signal_runs), handle("plain"))
ACT_IS(ACT(a_handler_for_one_signal_runs_once), handle("once"))
ACT_IS(ACT(a_blocked_signal_can_be_taken), handle("wait"))
ACT_IS(ACT(another_thread_can_take_it), handle("sigwait"))
ACT_IS(ACT(a_descriptor_can_take_it), handle("signalfd"))
ACT_IS(ACT(a_masked_signal_comes_late), handle("masked"))
ACT_IS(ACT(calls_are_restarted), interrupt(SA_RESTART))
ACT_IS(ACT(calls_are_interrupted), interrupt(0))
ACT_IS(ACT(the_handler_has_its_stack), interrupt(SA_ONSTACK))

static void *read_one(void *got)
{
    char byte = 0;
    atomic_store(&sleeper, (int)syscall(SYS_gettid));
    atomic_store(&in_call, 1);
    *(long *)got = read(ends[0], &byte, 1);
    return NULL;
}

/* Bare, the signal would end the program, and none is sent. */
ACT(without_a_handler_a_read_goes_on)
{
    long got = 0;
    scene_start(1, 60);
    NEW_BLOCK(4 * MIB);
    REQUIRE(pipe(ends));
    pthread_t thread = NEW_THREAD(read_one, &got);
    await_sleep(1);
    if (scene_preloaded())
        REQUIRE(pthread_kill(thread, SIGUSR1));
    scene_sleep_ms(100);
    EXPECT(write(ends[1], "x", 1) == 1);
    REQUIRE(pthread_join(thread, NULL));
    printf("read: %ld\n", got);
    return 0;
}

/* A program was started with SIGUSR1 ignored, as nohup and job systems do with signals. The signal
 * stays ignored: it interrupts no call, and children made in every way ignore it. */

static char command[] = "kill -USR1 $$; exit 3";
static char shell[] = "sh", option[] = "-c";
static char *const words[] = {shell, option, command, NULL};

static void show(const char *how, int status)
{
    if (WIFSIGNALED(status))
        printf("%s: ended by signal %d\n", how, WTERMSIG(status));
    else
        printf("%s: left with %d\n", how, WEXITSTATUS(status));
}

static void *signal_soon(void *main_thread)
{
    scene_sleep_ms(100);
    REQUIRE(pthread_kill(*(pthread_t *)main_thread, SIGUSR1));
    return NULL;
}

ACT(an_ignored_signal_stays_ignored)
{
    struct sigaction now;
    pid_t child;
    int status = 0;
    pthread_t self = pthread_self();
    if (scene_sanitized())
        scene_skip("a sanitizer's runtime does not survive vfork");
    EXPECT(signal(SIGUSR1, SIG_IGN) != SIG_ERR);
    scene_start(1, 60);
    TAKE_AND_GIVE(4 * MIB);
    REQUIRE(sigaction(SIGUSR1, NULL, &now));
    printf("%s\n", now.sa_handler == SIG_IGN ? "ignored" : "not ignored");
    pthread_t other = NEW_THREAD(signal_soon, &self);
    printf("poll: %d\n", poll(NULL, 0, 300));
    REQUIRE(pthread_join(other, NULL));
    fflush(stdout);
    REQUIRE(posix_spawn(&child, "/bin/sh", NULL, NULL, words, environ));
    EXPECT(waitpid(child, &status, 0) == child);
    show("posix_spawn", status);
    fflush(stdout);
    child = vfork();
    EXPECT(child >= 0);
    if (child == 0) {
        execve("/bin/sh", words, environ);
        _exit(1);
    }
    EXPECT(waitpid(child, &status, 0) == child);
    show("vfork", status);
    show("system", system(command));
    return 0;
}
