/* SPDX-License-Identifier: BSD-2-Clause */
/* Children of fork, before and after the first CUDA call. */
#include "tests/preload/scene.h"

#include <sys/syscall.h>
#include <sys/time.h>

/* Children are forked before any CUDA call. Each opens the GPU for itself and works, and so does
 * the parent. The memory of each is its own. */

static uint32_t work(uint32_t value)
{
    const uint64_t words = 16 * KIB;
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < 20; i++) {
        uint64_t block = NEW_FILLED(words, value + i, NULL);
        wrong += scene_wrong_words(block, words, value + i, NULL);
        REQUIRE(gpu_free(block));
    }
    return wrong;
}

ACT(children_of_before_have_memory_of_their_own)
{
    enum { CHILDREN = 3 };
    pid_t children[CHILDREN];
    int failed = 0;
    scene_watchdog(60);
    for (uint32_t i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        EXPECT(children[i] >= 0);
        if (children[i] == 0) {
            scene_start(1, 60);
            exit(work(100 * i) == 0 ? 0 : 1);
        }
    }
    scene_start(1, 60);
    uint32_t wrong = work(1000);
    for (int i = 0; i < CHILDREN; i++)
        failed += scene_wait(children[i]) != 0;
    printf("parent %u wrong words, %d children failed\n", wrong, failed);
    return wrong != 0 || failed != 0;
}

/* A child is forked after the parent used CUDA. Its own CUDA calls give the driver's error. It ends
 * by exit() and by _exit() without harm, and may start another program. The parent goes on with its
 * blocks whole. Also while other threads of the parent are at work. */

static atomic_bool over;

static void child_calls(uint64_t block)
{
    uint64_t mine = 0;
    printf("child: malloc %d", gpu_malloc(&mine, 4096));
    printf(", free %d", gpu_free(block));
    printf(", synchronise %d\n", gpu_sync());
}

static void *churn_quickly(void *context)
{
    REQUIRE(gpu_open(0));
    while (!atomic_load(&over))
        TAKE_AND_GIVE(256 * KIB);
    return NULL;
}

ACT(children_of_after_are_refused)
{
    const uint64_t words = 32 * KIB;
    uint64_t block = 0;
    uint32_t wrong = 0;
    pthread_t threads[3];
    scene_start(1, 60);
    /* The thread has had the block before, and so could have it quickly. */
    for (int i = 0; i < 3; i++) {
        if (block)
            REQUIRE(gpu_free(block));
        block = NEW_BLOCK(words * 4);
    }
    REQUIRE(gpu_fill(block, words, 9, NULL));
    REQUIRE(gpu_sync());

    pid_t child = scene_fork();
    if (child == 0) {
        child_calls(block);
        exit(0);
    }
    printf("exit: %d\n", scene_wait(child));
    child = scene_fork();
    if (child == 0)
        _exit(3);
    printf("_exit: %d\n", scene_wait(child));
    child = scene_fork();
    if (child == 0) {
        scene_leave_sanitizer();
        execlp("sh", "sh", "-c", "echo started; exit 5", (char *)NULL);
        _exit(127);
    }
    printf("exec: %d\n", scene_wait(child));
    wrong += scene_wrong_words(block, words, 9, NULL);

    for (int i = 0; i < 3; i++)
        REQUIRE(pthread_create(&threads[i], NULL, churn_quickly, NULL));
    int failed = 0;
    fflush(stdout);
    for (int i = 0; i < 8; i++) {
        child = fork();
        if (child == 0)
            exit(0);
        failed += scene_wait(child) != 0;
    }
    atomic_store(&over, true);
    for (int i = 0; i < 3; i++)
        REQUIRE(pthread_join(threads[i], NULL));
    printf("forked beside busy threads: %d failed\n", failed);
    wrong += scene_wrong_words(block, words, 9, NULL);
    printf("parent: %u wrong words\n", wrong);
    return wrong != 0 || failed != 0;
}

/* Forks in the middle of things: while three threads are inside allocations and frees, and from a
 * signal handler that interrupts one. The children make CUDA calls, which the driver refuses as
 * bare, and end. SIGUSR1 ends one of them, as it ends a process that handles no signals. The parent
 * goes on. */

enum { THREADS = 3, FORKS = 30, FORKS_IN_HANDLER = 20, CHILD_S = 30 };

static atomic_bool stop;
static volatile sig_atomic_t forked, failed_in_handler;

/* In a child. Whether all calls are refused. */
static bool refused(uint64_t block)
{
    uint64_t mine = 0;
    return gpu_malloc(&mine, 4096) != 0 && gpu_malloc(&mine, 8 * MIB) != 0 &&
           gpu_free(block) != 0 && gpu_sync() != 0;
}

static void *churn(void *context)
{
    size_t size_bytes = 256 * KIB << (intptr_t)context;
    sigset_t alarm_set;
    sigemptyset(&alarm_set);
    sigaddset(&alarm_set, SIGVTALRM);
    REQUIRE(pthread_sigmask(SIG_BLOCK, &alarm_set, NULL));
    REQUIRE(gpu_open(0));
    while (!atomic_load(&stop))
        TAKE_AND_GIVE(size_bytes);
    return NULL;
}

static void fork_in_handler(int number)
{
    /* Not fork(): that waits for malloc's locks, which the thread itself may hold here. */
    pid_t child = (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L);
    if (child == 0)
        _exit(6);
    int status = -1;
    if (child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
        WEXITSTATUS(status) == 6)
        forked = forked + 1;
    else
        failed_in_handler = failed_in_handler + 1;
}

static void allocate_while_the_timer_forks(void)
{
    struct sigaction action = {.sa_handler = fork_in_handler, .sa_flags = SA_RESTART};
    /* Of the time that this process computes: it lands in the middle of an allocation. */
    struct itimerval timer = {.it_interval = {0, 1000}, .it_value = {0, 1000}};
    sigemptyset(&action.sa_mask);
    REQUIRE(sigaction(SIGVTALRM, &action, NULL));
    REQUIRE(setitimer(ITIMER_VIRTUAL, &timer, NULL));
    while (forked + failed_in_handler < FORKS_IN_HANDLER)
        TAKE_AND_GIVE(64 * KIB);
    timer = (struct itimerval){0};
    REQUIRE(setitimer(ITIMER_VIRTUAL, &timer, NULL));
}

ACT(forks_in_the_middle_of_allocations)
{
    const uint64_t words = 32 * KIB;
    pthread_t threads[THREADS];
    int failed = 0;
    scene_start(1, 120);
    uint64_t block = NEW_FILLED(words, 9, NULL);
    REQUIRE(gpu_sync());
    printf("before\n");
    fflush(stdout);

    for (intptr_t i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&threads[i], NULL, churn, (void *)i));
    /* A process of a real driver takes long to fork. */
    for (int i = 0; i < (scene_simulated() ? FORKS : FORKS / 5); i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(CHILD_S);
            _exit(refused(block) ? 5 : 6);
        }
        failed += scene_wait(child) != 5;
    }
    printf("beside busy threads: %d failed\n", failed);

    pid_t child = scene_fork();
    if (child == 0) {
        kill(getpid(), SIGUSR1);
        _exit(0);
    }
    printf("SIGUSR1 in a child: %d\n", scene_wait(child) == -SIGUSR1);
    fflush(stdout);
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++)
        REQUIRE(pthread_join(threads[i], NULL));

    allocate_while_the_timer_forks();
    printf("from a handler: %d failed\n", (int)failed_in_handler);
    uint32_t wrong = scene_wrong_words(block, words, 9, NULL);
    printf("parent: %u wrong words\n", wrong);
    return wrong != 0 || failed != 0;
}
